"""Code that catches its own suspension and goes on is stopped and reported; everything else goes on meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.effects.drive import drive
from holdfast.effects.scopes import REFUSALS
from holdfast.errors import JournalQuarantined
from holdfast.messages import ToolMessage
from holdfast.testing import ScriptedModel, call, check, text

if TYPE_CHECKING:
    from holdfast.effects.drive import Boundary

pytestmark = pytest.mark.timeout(60)


@hf.process
async def swallows_waits(ctx: hf.ProcessContext) -> None:
    while True:
        try:  # noqa: SIM105
            await ctx.wait("never")
        except:  # noqa: E722, S110
            pass


@hf.process
async def swallows_in_branches(ctx: hf.ProcessContext) -> None:
    async def branch() -> None:
        while True:
            try:  # noqa: SIM105
                await ctx.wait("never")
            except:  # noqa: E722, S110
                pass

    await asyncio.gather(branch(), branch())


@hf.process
async def cleans_up(ctx: hf.ProcessContext) -> Any:
    try:
        return await ctx.wait("go")
    finally:
        await ctx.step("clean", list)


@hf.process
async def counts(ctx: hf.ProcessContext) -> int:
    for number in range(5):
        await ctx.step(f"step {number}", int)
    return 5


async def test_a_process_that_swallows_its_suspension_fails_and_says_why() -> None:
    async with hf.open(None, processes=[swallows_waits]) as runtime:
        process = await runtime.start(swallows_waits)
        with pytest.raises(hf.ProcessFailed, match="SuspensionSwallowed"):
            await process.result(timeout=SOON)
        assert not await check(runtime.store)


async def test_others_go_on_while_a_process_swallows_its_suspension() -> None:
    async with hf.open(None, processes=[swallows_waits, counts]) as runtime:
        await runtime.start(swallows_waits)
        others = [await runtime.start(counts) for _ in range(3)]
        assert [await other.result(timeout=SOON) for other in others] == [5, 5, 5]


async def test_branches_that_swallow_their_suspension_are_stopped() -> None:
    async with hf.open(None, processes=[swallows_in_branches]) as runtime:
        process = await runtime.start(swallows_in_branches)
        with pytest.raises(hf.ProcessFailed, match="SuspensionSwallowed"):
            await process.result(timeout=SOON)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_process_that_swallows_its_suspension_can_be_cancelled() -> None:
    @hf.process
    async def holds(ctx: hf.ProcessContext) -> None:
        while True:
            try:  # noqa: SIM105
                await ctx.step("hold", asyncio.Event().wait)
            except:  # noqa: E722, S110
                pass

    async with hf.open(None, processes=[holds]) as runtime:
        process = await runtime.start(holds)
        await until(lambda: _started(process))
        await process.cancel("enough")
        with pytest.raises(hf.errors.ProcessCancelled):
            await process.result(timeout=SOON)


async def _started(process: hf.Process) -> bool:
    return (await process.line()).starts > 0


async def test_a_process_that_cleans_up_when_it_is_suspended_goes_on_afterwards() -> None:
    async with hf.open(None, processes=[cleans_up]) as runtime:
        process = await runtime.start(cleans_up)
        await until(lambda: _waits(process))
        await process.signal("go", 7)
        assert await process.result(timeout=SOON) == 7


async def _waits(process: hf.Process) -> bool:
    return await process.status() == "waiting"


async def test_a_tool_that_swallows_its_suspension_gives_an_error_and_the_turn_goes_on() -> None:
    @hf.tool
    async def asks(ctx: hf.Context) -> str:
        while True:
            try:
                return str(await ctx.wait("answer"))
            except:  # noqa: E722, S110
                pass

    agent = hf.Agent("a", model=ScriptedModel([call("asks"), text("done")]), tools=[asks], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await asyncio.wait_for(runtime.run(agent, "go", session="s"), SOON)
        assert outcome.text == "done"
        history = await runtime.session("s").history()
        (result,) = [found for each in history if isinstance(each, ToolMessage) for found in each.results]
        assert "went on after it was suspended" in str(result.content)
        assert not await check(runtime.store)


async def test_a_tool_that_swallows_its_suspension_opens_no_more_waits() -> None:
    @hf.tool
    async def asks(ctx: hf.Context) -> str:
        for _ in range(REFUSALS // 2):
            try:  # noqa: SIM105
                await ctx.wait("answer")
            except:  # noqa: E722, S110
                pass
        return "gave up"

    agent = hf.Agent("a", model=ScriptedModel([call("asks"), text("done")]), tools=[asks], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        await asyncio.wait_for(runtime.run(agent, "go", session="s"), SOON)
        assert len(await runtime.store.waits("s")) == 1


async def test_a_driven_function_that_swallows_its_cancellation_is_stopped() -> None:
    reached = asyncio.Event()

    async def body(boundary: Boundary) -> None:
        while True:
            try:
                reached.set()
                await boundary.step("wait", asyncio.Event().wait)
            except:  # noqa: E722, S110
                pass

    async with hf.open_store(None) as store:
        driving = asyncio.ensure_future(drive(store, "j", body))
        await asyncio.wait_for(reached.wait(), SOON)
        driving.cancel()
        await asyncio.wait({driving}, timeout=SOON)
        assert driving.cancelled()


async def test_a_driven_function_that_swallows_the_end_of_its_journal_is_stopped() -> None:
    async def body(boundary: Boundary) -> None:
        while True:
            try:  # noqa: SIM105
                await boundary.step("wait", asyncio.sleep, 0)
            except:  # noqa: E722, S110
                pass

    async with hf.open_store(None) as store:
        driving = asyncio.ensure_future(drive(store, "j", body))
        await until(lambda: _has_records(store))
        await store.quarantine("j", "a test")
        with pytest.raises(JournalQuarantined):
            await asyncio.wait_for(driving, SOON)


async def _has_records(store: hf.Store) -> bool:
    return (await store.heads(["j"])).get("j", 0) > 3
