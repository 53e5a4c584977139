"""Inputs that come at the worst moment: between a read of the inbox and what is made of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import holdfast as hf
from holdfast.policy.limits import LEASE_MS
from holdfast.runtime.runtime import Runtime
from holdfast.store.client import Store
from holdfast.testing import MemoryBackend, ScriptedModel, error, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.store import Lease


class _Interleaved(Store):
    """A store that takes so long to tell what is in a session that something else happens meanwhile.

    It tells that when the session is read, or, of one that is made in the same commit, with its lease.
    """

    meanwhile: Callable[[], Awaitable[Any]] | None = None
    by_lease = False

    def claim(self, journal: str, *, ttl_ms: int = LEASE_MS) -> asyncio.Future[Lease]:
        return asyncio.ensure_future(self._told(super().claim(journal, ttl_ms=ttl_ms)))

    async def _told(self, claim: asyncio.Future[Lease]) -> Lease:
        lease = await claim
        if not self.by_lease:
            return msgspec.structs.replace(lease, made=None)
        assert lease.made is not None or self.meanwhile is None
        await self._pass()
        return lease

    async def read_with_inbox(self, journal: str, *, after: int | None = None) -> Any:
        found = await super().read_with_inbox(journal, after=after)
        await self._pass()
        return found

    async def _pass(self) -> None:
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            await happens()


@pytest.fixture(params=[False, True], ids=["read", "by_lease"])
async def store(request: pytest.FixtureRequest) -> _Interleaved:
    store = _Interleaved(MemoryBackend())
    store.by_lease = request.param
    return store


@pytest.mark.parametrize("first", [text("one"), error("no")], ids=["completed", "failed"])
async def test_an_input_that_comes_while_the_session_is_being_read_is_not_lost(store: _Interleaved, first: Any) -> None:
    agent = hf.Agent("a", model=ScriptedModel([first, text("two")]))
    async with store, Runtime(store, [agent]) as runtime:
        session = runtime.session("s", agent=agent)

        async def second() -> None:
            await session.send("second")

        store.meanwhile = second
        await (await session.send("first")).outcome(timeout=5)
        assert (await session.turn("t2").outcome(timeout=5)).text == "two"


async def test_a_cancel_that_comes_while_the_session_is_being_read_is_honoured(store: _Interleaved) -> None:
    agent = hf.Agent("a", model=ScriptedModel([text("one"), text("two")]))
    async with store, Runtime(store, [agent]) as runtime:
        session = runtime.session("s", agent=agent)

        async def cancel() -> None:
            assert await session.turn("t1").cancel("changed my mind") == "requested"

        store.meanwhile = cancel
        turn = await session.send("first")
        assert (await turn.outcome(timeout=5)).status == "cancelled"
