"""Signals with a key, and the attempts of a process: each attempt hears them anew."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.behaviour.talk import SOON, until

import holdfast as hf

if TYPE_CHECKING:
    import pytest

    from holdfast.runtime.runtime import Runtime


class Editor:
    """A process whose first attempt fails when a test lets it; the second waits for a word."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.fail = asyncio.Event()

    def function(self) -> Any:
        @hf.process(retry=hf.ToolRetryPolicy(attempts=2, pause=0.01))
        async def asks(ctx: hf.ProcessContext) -> Any:
            if ctx.attempt == 1:
                self.begun.set()
                await self.fail.wait()
                raise RuntimeError
            return await ctx.wait("editor")

        return asks

    async def fails(self, runtime: Runtime) -> None:
        """Let the first attempt fail; the second one has begun then."""
        self.fail.set()

        async def second() -> bool:
            return (await runtime.processes.line("p")).attempt == 2

        await until(second)


async def test_a_signal_that_a_failed_attempt_was_given_can_be_given_to_the_next_under_its_key() -> None:
    editor = Editor()
    asks = editor.function()
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks, id="p")
        await asyncio.wait_for(editor.begun.wait(), SOON)
        first = await process.signal("editor", "yes", key="k")
        await editor.fails(runtime)
        assert [first, await process.signal("editor", "yes", key="k")] == ["signalled", "signalled"]
        assert await process.result(timeout=SOON) == "yes"


async def test_a_signal_on_its_way_while_the_attempt_fails_reaches_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    editor = Editor()
    asks = editor.function()
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks, id="p")
        await asyncio.wait_for(editor.begun.wait(), SOON)
        answer = runtime.store.answer_next

        async def late(*args: Any, **given: Any) -> Any:
            await editor.fails(runtime)
            return await answer(*args, **given)

        monkeypatch.setattr(runtime.store, "answer_next", late)
        assert await process.signal("editor", "yes", key="k") == "signalled"
        assert await process.result(timeout=SOON) == "yes"
