"""Inputs that come at the worst moment: between a read of the inbox and what is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.runtime import Runtime
from holdfast.store.store import Store
from holdfast.testing import MemoryBackend, ScriptedModel, error, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class _Interleaved(Store):
    """A store whose first read of a session takes so long that something else happens meanwhile."""

    meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def read_with_inbox(self, journal: str) -> Any:
        found = await super().read_with_inbox(journal)
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            await happens()
        return found


@pytest.mark.parametrize("first", [text("one"), error("no")], ids=["completed", "failed"])
async def test_an_input_that_comes_while_the_session_is_being_read_is_not_lost(first: Any) -> None:
    agent = hf.Agent("a", model=ScriptedModel([first, text("two")]))
    store = _Interleaved(MemoryBackend())
    async with store, Runtime(store, [agent]) as runtime:
        session = runtime.session("s", agent=agent)

        async def second() -> None:
            await session.send("second")

        store.meanwhile = second
        await (await session.send("first")).outcome(timeout=5)
        assert (await session.turn("t2").outcome(timeout=5)).text == "two"


async def test_a_cancel_that_comes_while_the_session_is_being_read_is_honoured() -> None:
    agent = hf.Agent("a", model=ScriptedModel([text("one"), text("two")]))
    store = _Interleaved(MemoryBackend())
    async with store, Runtime(store, [agent]) as runtime:
        session = runtime.session("s", agent=agent)

        async def cancel() -> None:
            assert await session.turn("t1").cancel("changed my mind") == "requested"

        store.meanwhile = cancel
        turn = await session.send("first")
        assert (await turn.outcome(timeout=5)).status == "cancelled"
