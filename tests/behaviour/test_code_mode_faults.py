"""Programs that can't go on as they began: their worker is gone, their turn is over, tools and clocks changed."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.approving import ended, parked
from tests.behaviour.background import SESSION, result, talkative
from tests.behaviour.coding import Shop, came_to, program, said
from tests.behaviour.talk import SOON, at_rest, until
from tests.sandboxed import needs_sandbox

import holdfast as hf
from holdfast import crashpoints
from holdfast.errors.world import WorkerFailed
from holdfast.records import Unknown
from holdfast.runtime.replay_check import check_turns
from holdfast.sandbox import LimitHit, MontySandbox
from holdfast.testing import ManualClock, call, check, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime
    from holdfast.sandbox import CallResult, Program, ProgramStep, Sandbox

pytestmark = needs_sandbox


@pytest.fixture
def shop() -> Shop:
    return Shop()


# ---- workers that fail -----------------------------------------------------------------------------------------------


class Failing:
    """A program, with what happens when it is run and when it is closed."""

    def __init__(self, inside: Program, sandbox: Troubled) -> None:
        self._inside = inside
        self._sandbox = sandbox

    @property
    def digest(self) -> str:
        return self._inside.digest

    async def run(self, recorded: Sequence[CallResult] = (), *, begun: bool = False) -> ProgramStep:
        if self._sandbox.instead is not None:
            return self._sandbox.instead()
        return await self._inside.run(recorded, begun=begun)

    async def answer(self, results: Sequence[CallResult]) -> ProgramStep:
        return await self._inside.answer(results)

    async def close(self) -> None:
        await self._inside.close()
        if self._sandbox.closing is not None:
            await self._sandbox.closing()


class Troubled:
    """A sandbox whose workers do something else `instead` of running, and take their time in `closing`."""

    def __init__(self, inside: Sandbox) -> None:
        self._inside = inside
        self.instead: Callable[[], ProgramStep] | None = None
        self.closing: Callable[[], Awaitable[object]] | None = None

    async def start(self, source: str, **given: Any) -> Program:
        return Failing(await self._inside.start(source, **given), self)

    async def close(self) -> None:
        await self._inside.close()


class Die(BaseException):
    """The end of whoever drives a turn."""


@contextmanager
def dying(*points: str) -> Generator[list[str]]:
    """The first who passes these crash points, one after the other, dies at the last one; answers those passed."""
    passed: list[str] = []

    def reached(name: str) -> None:
        if len(passed) < len(points) and name == points[len(passed)]:
            passed.append(name)
            if len(passed) == len(points):
                raise Die

    crashpoints.arm(reached)
    try:
        yield passed
    finally:
        crashpoints.arm(None)


async def died(path: Path, agent: hf.Agent, *points: str) -> None:
    """A turn whose driver died at the last of these points."""
    with dying(*points) as passed:
        async with hf.open(path, agents=[agent]) as runtime:
            await runtime.session(SESSION, agent=agent).send("go")

            async def dead() -> bool:
                return len(passed) == len(points)

            await until(dead)
            await runtime.close(grace=0.05)


async def interrupted(path: Path, agent: hf.Agent, begun: asyncio.Event) -> None:
    """A turn that was left in the middle of the call that says that it has `begun`."""
    async with hf.open(path, agents=[agent]) as runtime:
        await runtime.session(SESSION, agent=agent).send("go")
        await asyncio.wait_for(begun.wait(), SOON)
        await runtime.close(grace=0.05)


async def sound(runtime: Runtime, agent: hf.Agent) -> bool:
    checked = await check_turns(runtime.store, SESSION, agent)
    return await check(runtime.store) == [] and [found.verdict for found in checked] == ["ok"]


def no_worker() -> ProgramStep:
    raise WorkerFailed("it did not come up")


async def test_of_a_program_whose_worker_does_not_start_again_the_model_is_told_what_it_did(
    shop: Shop, tmp_path: Path
) -> None:
    async with MontySandbox() as inside:
        sandbox = Troubled(inside)
        agent = shop.agent("await price('p')\nawait work('a')", sandbox=sandbox)
        await interrupted(tmp_path / "s.db", agent, shop.begun)
        sandbox.instead = no_worker
        async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
            await ended(runtime)
            content = (await result(runtime)).content
            assert "What it had done stays done: price." in content
            assert "it is not known whether they took effect: work." in content
            assert "its worker did not start: it did not come up" in content
            assert await sound(runtime, agent)


async def test_of_a_call_that_only_reads_and_is_given_up_nobody_says_that_it_may_have_taken_effect(
    shop: Shop, tmp_path: Path
) -> None:
    keys: list[str] = []

    @hf.tool(read_only=True)
    async def ask(ctx: hf.Context, what: str) -> Any:
        """Ask somebody outside."""
        pending: hf.Deferred[Any] = await ctx.defer()
        keys.append(pending.key)
        return pending

    async with MontySandbox() as inside:
        sandbox = Troubled(inside)
        source = "import asyncio\nawait asyncio.gather(ask('x'), ask('y'))"
        agent = shop.agent(source, sandbox=sandbox, tools=[*shop.tools(), ask])
        async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
            await runtime.session(SESSION, agent=agent).send("go")
            await at_rest(runtime, SESSION)
        sandbox.instead = no_worker
        async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
            await runtime.resolve(keys[0], "yes")
            await ended(runtime)
            assert "not known" not in (await result(runtime)).content
            records = [entry.record async for entry in runtime.store.read_all(SESSION)]
            assert not [record for record in records if isinstance(record, Unknown)]
            assert await sound(runtime, agent)


async def test_a_program_whose_worker_never_starts_was_not_run(shop: Shop) -> None:
    async with MontySandbox() as inside:
        sandbox = Troubled(inside)
        sandbox.instead = no_worker
        (found,) = await came_to(shop.agent("await price('p')", sandbox=sandbox))
        assert found.content == "The program was not run: its worker did not start: it did not come up"


def dead_worker() -> ProgramStep:
    return LimitHit("worker", "the worker died", "")


@pytest.mark.parametrize("instead", [dead_worker, no_worker], ids=["dies in the replay", "does not start again"])
async def test_a_turn_that_a_program_ended_stays_ended_whatever_becomes_of_its_worker(
    instead: Callable[[], ProgramStep], shop: Shop, tmp_path: Path
) -> None:
    async with MontySandbox() as inside:
        sandbox = Troubled(inside)
        agent = shop.agent("await price('p')\nawait finish('enough')", sandbox=sandbox)
        await died(tmp_path / "s.db", agent, "program.before_finish", "tool.before_outcome")
        sandbox.instead = instead
        async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
            outcome = await ended(runtime)
            assert (outcome.status, outcome.text) == ("completed", "enough")
            assert await sound(runtime, agent)


async def test_calls_of_a_program_stop_at_once_however_long_its_worker_takes_to_end(shop: Shop) -> None:
    begun, stopped, free = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @hf.tool
    async def charge(cents: int) -> int:
        """Charge."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return cents

    async with MontySandbox() as inside:
        sandbox = Troubled(inside)
        sandbox.closing = free.wait
        source = "import asyncio\nawait asyncio.gather(charge(5), asyncio.sleep(1.9))"
        agent = shop.agent(source, tools=[charge], policy=[hf.allow("*")], sandbox=sandbox)
        async with hf.open(None, agents=[agent], clock=ManualClock()) as runtime:
            turn = await runtime.session(SESSION, agent=agent).send("go")
            await asyncio.wait_for(begun.wait(), SOON)
            await turn.cancel("enough")
            try:
                await asyncio.wait_for(stopped.wait(), SOON)
            finally:
                free.set()
            assert (await turn.outcome(timeout=SOON)).status == "cancelled"


# ---- turns that are over ---------------------------------------------------------------------------------------------


async def test_a_limit_that_one_of_two_programs_came_to_holds_after_a_restart(shop: Shop, tmp_path: Path) -> None:
    both = [program("for n in range(9):\n    await price('b')"), program("await price('c')")]
    agent = shop.agent(both, limits=hf.Limits(tool_calls=5))
    await died(tmp_path / "s.db", agent, "turn.before_end")
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        outcome = await ended(runtime)
        assert (outcome.status, outcome.code) == ("limit", "tool_calls")


async def test_a_program_that_ends_the_turn_takes_back_the_question_about_a_handoff_beside_it(shop: Shop) -> None:
    clerk = hf.Agent("clerk", model=talkative(text("x")))
    agent = shop.agent(
        [program("await finish('enough')"), call("transfer_to_clerk", reason="m")],
        tools=[*shop.tools(), hf.handoff(clerk)],
        policy=[hf.ask("transfer_to_clerk"), hf.allow("*")],
    )
    async with hf.open(None, agents=[agent, clerk]) as runtime:
        outcome = await said(runtime, agent)
        assert (outcome.status, outcome.text, await runtime.approvals()) == ("completed", "enough", [])
        assert await sound(runtime, agent)


async def test_of_a_call_that_left_no_word_the_model_is_told_that_it_may_have_taken_effect(
    shop: Shop, tmp_path: Path
) -> None:
    begun = asyncio.Event()

    @hf.tool(idempotent=True)
    async def charge(cents: int) -> int:
        """Charge."""
        begun.set()
        await asyncio.Event().wait()
        return cents

    tools = [*shop.tools(), charge]
    agent = shop.agent("await price('p')\nawait charge(5)", tools=tools, policy=[hf.allow("*")])
    await interrupted(tmp_path / "s.db", agent, begun)
    async with hf.open(tmp_path / "s.db", drive=False) as outside:
        await outside.session(SESSION).turn("t1").cancel("enough")
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert (await ended(runtime)).status == "cancelled"
        assert "The call that came next may have taken effect, too" in (await result(runtime)).content


# ---- what changed meanwhile ------------------------------------------------------------------------------------------


async def test_a_short_pause_ends_though_the_clock_is_set_back(shop: Shop) -> None:
    clock = ManualClock()

    @hf.tool(read_only=True)
    async def set_back() -> str:
        """Set the clock back by an hour."""
        clock.jump(-3_600_000)
        return "done"

    source = "import asyncio\nawait asyncio.gather(asyncio.sleep(1), set_back())\n7"
    agent = shop.agent(source, tools=[set_back], policy=None)
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        await said(runtime, agent)
        assert (await result(runtime)).content["value"] == 7


def without_price(shop: Shop, source: str) -> hf.Agent:
    """The agent, with a tool less."""
    return shop.agent(source, tools=[tool for tool in shop.tools() if tool.name != "price"])


async def test_a_call_that_a_person_allowed_is_made_though_the_program_calls_a_tool_that_is_gone(
    shop: Shop, tmp_path: Path
) -> None:
    source = "await refund('7')\nawait price('x')"
    agent = shop.agent(source)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session(SESSION, agent=agent).send("go")
        (approval,) = await parked(runtime)
    async with hf.open(tmp_path / "s.db", agents=[without_price(shop, source)]) as runtime:
        await runtime.approve(approval.id)
        await ended(runtime)
        assert shop.done == [("7", 100)]


async def test_a_program_that_was_interrupted_in_its_first_call_is_not_told_as_never_run_where_a_tool_is_gone(
    shop: Shop, tmp_path: Path
) -> None:
    source = "await work('a')\nawait price('x')"
    await interrupted(tmp_path / "s.db", shop.agent(source), shop.begun)
    async with hf.open(tmp_path / "s.db", agents=[without_price(shop, source)]) as runtime:
        await ended(runtime)
        assert "nothing of it was done" not in (await result(runtime)).content


async def test_a_tool_that_ran_out_of_its_own_time_is_not_taken_for_a_limit_of_the_program(shop: Shop) -> None:
    @hf.tool(read_only=True)
    async def query() -> str:
        """Query."""
        message = "statement time limit exceeded"
        raise TimeoutError(message)

    agent = shop.agent("x = 5\nawait query()", "x", tools=[query], policy=None)
    failed, after = await came_to(agent)
    assert "statement time limit exceeded" in failed.content
    assert after.content["value"] == 5
