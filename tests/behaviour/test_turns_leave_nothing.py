"""What is over is gone: nothing of a turn waits for the garbage collector, which would stop the process for long."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.behaviour.talk import until

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.testing.scripted import ScriptReply

KINDS = {
    *("SessionDrive", "TurnRunner", "Performer", "ToolBatch", "ToolCallRunner"),
    *("ToolExecutor", "ModelCaller", "LeasedJournal"),
    *("FunctionDrive", "TaskDrive", "ProcessContext", "ProcessWaits"),
}


@hf.tool(read_only=True)
async def look(item: int) -> int:
    """How many there are of an item."""
    return item


@hf.tool(read_only=True)
async def wait(ctx: hf.Context) -> str:
    """Wait for a person."""
    return await ctx.wait("approval")


@hf.tool
async def book() -> str:
    """Book something."""
    return "booked"


@hf.tool(read_only=True)
async def hang() -> str:
    """Never ends by itself."""
    await asyncio.Event().wait()
    return "?"


@hf.process
async def editor(ctx: hf.ProcessContext) -> object:
    """Wait for an editor."""
    return await ctx.wait("editor")


def alive() -> Counter[str]:
    """What there is of turns and processes and of those who drive them."""
    return Counter(name for name in (type(each).__name__ for each in gc.get_objects()) if name in KINDS)


@contextmanager
def no_collector() -> Generator[Counter[str]]:
    """What is alive before; nothing is collected in the block, and no log keeps the frames of exceptions."""
    gc.collect()
    gc.disable()
    logging.disable()
    try:
        yield alive()
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()


async def test_nothing_of_a_turn_that_is_over_waits_for_the_collector() -> None:
    script = [[call(look, item=1), call(look, item=2)], text("done")]
    agent = hf.Agent("a", model=ScriptedModel(script * 3), tools=[look])
    with no_collector() as before:
        async with hf.open(None, agents=[agent]) as runtime:
            for number in range(3):
                assert (await runtime.run(agent, "go", session=f"s{number}")).ok
            await until(lambda: alive() == before)


async def test_nothing_of_a_turn_that_waits_in_a_tool_waits_for_the_collector() -> None:
    agent = hf.Agent("a", model=ScriptedModel([call(wait)]), tools=[wait])
    await _leaves_nothing(agent, "waiting")


async def test_nothing_of_a_turn_that_waits_for_an_approval_waits_for_the_collector() -> None:
    agent = hf.Agent("a", model=ScriptedModel([call(book)]), tools=[book], policy=[hf.ask("book")])
    await _leaves_nothing(agent, "waiting")


async def test_nothing_of_a_turn_whose_model_raised_waits_for_the_collector() -> None:
    def broken(_: hf.ModelRequest) -> ScriptReply:
        raise ZeroDivisionError

    await _leaves_nothing(hf.Agent("a", model=ScriptedModel(broken)), "failed")


async def test_nothing_of_a_turn_that_was_cancelled_in_a_tool_waits_for_the_collector() -> None:
    agent = hf.Agent("a", model=ScriptedModel([call(hang)]), tools=[hang])
    with no_collector() as before:
        async with hf.open(None, agents=[agent]) as runtime:
            turn = await runtime.session("s", agent=agent).send("go")
            async for event in turn.events():
                if isinstance(event, hf.events.ToolCallAnnounced):
                    await turn.cancel("enough")
            assert (await turn.outcome()).status == "cancelled"
            del turn
            await until(lambda: alive() == before)


async def test_nothing_of_a_process_that_waits_is_left_for_the_collector() -> None:
    with no_collector() as before:
        async with hf.open(None, processes=[editor]) as runtime:
            process = await runtime.start(editor, id="p")
            await until(lambda: runtime.active == 0)
            assert await process.status() == "waiting"
            await until(lambda: alive() == before)


async def _leaves_nothing(agent: hf.Agent, status: str) -> None:
    with no_collector() as before:
        async with hf.open(None, agents=[agent]) as runtime:
            await runtime.session("s", agent=agent).send("go")
            await until(lambda: runtime.active == 0)
            (found,) = await runtime.sessions()
            assert found.status == status
            await until(lambda: alive() == before)
