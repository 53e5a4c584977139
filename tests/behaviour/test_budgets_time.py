"""Budgets of time and of background work: of a session, a day and an agent, over restarts and side by side."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import Held
from tests.behaviour.talk import SOON, states, until

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.runtime.budgets import spend_of_record
from holdfast.runtime.replay_check import check_turns
from holdfast.store.spending import DAY_MS, day_of
from holdfast.testing import ManualClock, ScriptedModel, call, check, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime

MINUTE = 60_000
SCOPES = ("session", "daily", "total")


class Worker:
    """An agent that works for a minute in each turn."""

    def __init__(self, clock: ManualClock, **limits: Any) -> None:
        @hf.tool(read_only=True)
        async def work() -> str:
            """Work for a minute."""
            clock.advance(MINUTE)
            return "worked"

        def say(request: hf.ModelRequest) -> Any:
            return text("done") if isinstance(request.messages[-1], hf.ToolMessage) else call(work)

        self.agent = hf.Agent("a", model=ScriptedModel(say), tools=[work], limits=hf.Limits(**limits))

    async def ran(self, runtime: Runtime, session: str = "s") -> hf.TurnOutcome:
        return await (await runtime.session(session, agent=self.agent).send("go")).outcome(timeout=SOON)


def limits_of(**limits: Any) -> hf.Limits:
    return hf.Limits(**limits)


def minutes(number: float) -> hf.Budget:
    return hf.Budget(wall_time=timedelta(minutes=number))


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_budget_of_time_ends_the_turn_before_its_next_effect(scope: str) -> None:
    clock = ManualClock()
    worker = Worker(clock, **{scope: minutes(1.5)})
    async with hf.open(None, agents=[worker.agent], clock=clock) as runtime:
        assert (await worker.ran(runtime)).status == "completed"
        outcome = await worker.ran(runtime)
        found = (outcome.status, outcome.code, outcome.allowed, outcome.used)
        assert found == ("limit", f"{scope}_wall_time", 90.0, 120.0)
        assert await check(runtime.store) == []


async def test_each_turn_has_time_of_its_own() -> None:
    clock = ManualClock()
    worker = Worker(clock, wall_time=timedelta(minutes=1.5))
    async with hf.open(None, agents=[worker.agent], clock=clock) as runtime:
        for _ in range(3):
            assert (await worker.ran(runtime)).status == "completed"


async def test_the_time_of_a_turn_ends_it_before_its_next_effect(tmp_path: Path) -> None:
    clock = ManualClock()
    worker = Worker(clock, wall_time=timedelta(minutes=0.5))
    for _ in range(2):
        async with hf.open(tmp_path / "s.db", agents=[worker.agent], clock=clock) as runtime:
            outcome = await worker.ran(runtime)
            assert (outcome.code, outcome.allowed, outcome.used, outcome.steps) == ("wall_time", 30.0, 60.0, 1)
    async with hf.open(tmp_path / "s.db", agents=[worker.agent], clock=clock) as runtime:
        assert [turn.verdict for turn in await check_turns(runtime.store, "s", worker.agent)] == ["ok", "ok"]
        assert await check(runtime.store) == []


async def test_the_time_of_a_turn_stops_a_call_under_way() -> None:
    agent = held_agent(Held(), wall_time=timedelta(seconds=0.2))
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await (await runtime.session("s", agent=agent).send("go")).outcome(timeout=SOON)
        assert (outcome.status, outcome.code, outcome.blame) == ("limit", "wall_time", "limit")
        assert states(await runtime.session("s").history()) == ["cancelled"]


async def test_nothing_is_begun_once_the_time_is_used_up() -> None:
    clock = ManualClock()
    worker = Worker(clock, session=minutes(0.5))
    async with hf.open(None, agents=[worker.agent], clock=clock) as runtime:
        assert (await worker.ran(runtime)).steps == 1
        outcome = await worker.ran(runtime)
        assert (outcome.code, outcome.steps) == ("session_wall_time", 0)


async def test_a_turn_that_ended_for_want_of_time_fits_its_records() -> None:
    clock = ManualClock()
    worker = Worker(clock, session=minutes(1))
    async with hf.open(None, agents=[worker.agent], clock=clock) as runtime:
        for _ in range(2):
            await worker.ran(runtime)
        found = [turn.verdict for turn in await check_turns(runtime.store, "s", worker.agent)]
        assert found == ["ok", "ok"]


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_restart_does_not_give_the_time_back(tmp_path: Path, scope: str) -> None:
    clock = ManualClock()
    worker = Worker(clock, **{scope: minutes(1.5)})
    found: list[str] = []
    for _ in range(3):
        async with hf.open(tmp_path / "s.db", agents=[worker.agent], clock=clock) as runtime:
            found.append((await worker.ran(runtime)).code)
        clock.advance(MINUTE)
    assert found == ["", f"{scope}_wall_time", f"{scope}_wall_time"]


async def test_time_between_turns_does_not_count() -> None:
    clock = ManualClock()
    worker = Worker(clock, session=minutes(3))
    async with hf.open(None, agents=[worker.agent], clock=clock) as runtime:
        for _ in range(2):
            assert (await worker.ran(runtime)).status == "completed"
            clock.advance(60 * MINUTE)


async def test_the_next_day_has_time_of_its_own() -> None:
    clock = ManualClock()
    worker = Worker(clock, daily=minutes(1.5))
    async with hf.open(None, agents=[worker.agent], clock=clock) as runtime:
        found: list[str] = []
        for _ in range(2):
            found += [(await worker.ran(runtime)).code for _ in range(2)]
            clock.advance(DAY_MS)
    assert found == ["", "daily_wall_time", "", "daily_wall_time"]


async def test_work_over_midnight_counts_for_the_day_on_which_it_was_done() -> None:
    clock = ManualClock(wall=20_000 * DAY_MS - MINUTE // 4)
    worker = Worker(clock, daily=minutes(1))
    async with hf.open(None, agents=[worker.agent], clock=clock) as runtime:
        assert (await worker.ran(runtime)).status == "completed"
        spent = [(await runtime.store.spent("a", day)).wall_ms for day in (19_999, 20_000)]
        assert spent == [MINUTE // 4, MINUTE * 3 // 4]
        assert (await worker.ran(runtime)).code == "daily_wall_time"


async def test_calls_that_end_together_over_midnight_count_each_for_its_own_day() -> None:
    clock = ManualClock(wall=20_000 * DAY_MS - 2)

    @hf.tool(read_only=True)
    async def look(at: int) -> int:
        clock.advance(1)
        return at

    agent = hf.Agent(
        "a", model=ScriptedModel([[call(look, at=number) for number in range(5)], text("done")]), tools=[look]
    )
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        assert (await runtime.run(agent, "go", session="s")).ok
        assert [(await runtime.store.spent("a", day)).tool_calls for day in (19_999, 20_000)] == [1, 4]
        assert await check(runtime.store) == []


async def test_a_day_that_comes_twice_goes_on_with_its_count() -> None:
    clock = ManualClock(wall=20_000 * DAY_MS + MINUTE)
    worker = Worker(clock, daily=minutes(1.5))
    async with hf.open(None, agents=[worker.agent], clock=clock) as runtime:
        found = [(await worker.ran(runtime)).code]
        clock.jump(-5 * MINUTE)  # back over midnight: another day, with time of its own
        found.append((await worker.ran(runtime)).code)
        clock.jump(5 * MINUTE)
        found.append((await worker.ran(runtime)).code)
    assert found == ["", "", "daily_wall_time"]


@pytest.mark.parametrize(
    "limits", [hf.Limits(session=minutes(1)), hf.Limits(wall_time=timedelta(minutes=1))], ids=["session", "turn"]
)
async def test_time_in_which_a_turn_waits_for_a_person_does_not_count(limits: hf.Limits) -> None:
    clock = ManualClock()
    script = [call("act"), text("done")]

    @hf.tool
    async def act() -> str:
        return "acted"

    agent = hf.Agent("a", model=ScriptedModel(script), tools=[act], policy=[hf.ask("act")], limits=limits)
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")

        async def parked() -> bool:
            return (await runtime.session("s").status()) == "waiting"

        await until(parked)
        clock.advance(60 * MINUTE)
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id, by="ops")
        assert (await turn.outcome(timeout=SOON)).text == "done"


# ---- while an effect is under way ------------------------------------------------------------------------------------


def held_agent(held: Held, **limits: Any) -> hf.Agent:
    tool = held.tool(inline_budget=None, read_only=True)
    script = ScriptedModel(lambda request: call(tool) if len(request.messages) == 1 else text("done"))
    return hf.Agent("a", model=script, tools=[tool], limits=hf.Limits(**limits))


@pytest.mark.parametrize("scope", SCOPES)
async def test_time_that_is_used_up_stops_a_call_under_way(scope: str) -> None:
    held = Held()
    agent = held_agent(held, **{scope: hf.Budget(wall_time=timedelta(seconds=0.3))})
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await (await runtime.session("s", agent=agent).send("go")).outcome(timeout=SOON)
        assert (outcome.status, outcome.code, outcome.blame) == ("limit", f"{scope}_wall_time", "limit")
        assert states(await runtime.session("s").history()) == ["cancelled"]
        assert await check(runtime.store) == []


async def test_time_that_another_session_used_up_stops_a_call_under_way() -> None:
    clock = ManualClock()
    held = Held()
    worker = Worker(clock, daily=minutes(2))
    slow = held.tool(inline_budget=None, read_only=True)

    def say(request: hf.ModelRequest) -> Any:
        first = request.messages[0]
        done = isinstance(request.messages[-1], hf.ToolMessage)
        wanted = "slow" if isinstance(first, hf.UserMessage) and first.text == "hold" else "work"
        return text("done") if done else call(wanted)

    tools = [slow, *worker.agent.tools.values()]
    agent = worker.agent = hf.Agent("a", model=ScriptedModel(say), tools=tools, limits=worker.agent.limits)
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        turn = await runtime.session("one", agent=agent).send("hold")
        async with asyncio.timeout(SOON):
            await held.begun.wait()
        assert (await worker.ran(runtime, "two")).status == "completed"  # a minute for both
        clock.advance(1)
        runtime.gate_changed("one")
        outcome = await turn.outcome(timeout=SOON)
        assert (outcome.status, outcome.code) == ("limit", "daily_wall_time")


async def test_the_time_of_two_sessions_is_added_up() -> None:
    clock = ManualClock()
    worker = Worker(clock, total=minutes(1.5))
    async with hf.open(None, agents=[worker.agent], clock=clock) as runtime:
        turns = [await runtime.session(name, agent=worker.agent).send("go") for name in ("one", "two", "three")]
        found = [(await turn.outcome(timeout=SOON)).code for turn in turns]
        assert "total_wall_time" in found
        assert (await worker.ran(runtime, "four")).code == "total_wall_time"


async def test_midnight_gives_new_time_to_a_call_under_way() -> None:
    clock = ManualClock(wall=20_000 * DAY_MS - MINUTE)
    held = Held()
    agent = held_agent(held, daily=minutes(2))
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        async with asyncio.timeout(SOON):
            await held.begun.wait()
        clock.advance(2 * MINUTE)  # one before midnight, one after
        runtime.gate_changed("s")
        held.go.set()
        assert (await turn.outcome(timeout=SOON)).status == "completed"


async def test_time_is_counted_as_the_records_tell_it() -> None:
    clock = ManualClock()
    worker = Worker(clock)
    async with hf.open(None, agents=[worker.agent], clock=clock) as runtime:
        await worker.ran(runtime)
        await worker.ran(runtime)
        before = await runtime.store.spent("a", day_of(clock.read().wall))
        await runtime.store.rebuild_spending(spend_of_record)
        assert await runtime.store.spent("a", day_of(clock.read().wall)) == before
        assert before.wall_ms == 2 * MINUTE


# ---- background ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_call_for_the_background_is_not_begun_beyond_a_budget(scope: str) -> None:
    held = Held()
    slow = held.tool(background=True, inline_budget=None)
    agent = hf.Agent(
        "a",
        model=ScriptedModel(lambda request: call(slow) if request.position in {0, 1} else text("done")),
        tools=[slow],
        policy=[hf.allow("*")],
        limits=limits_of(**{scope: hf.Budget(background=1)}),
    )
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        outcome = await turn.outcome(timeout=SOON)
        found = (outcome.status, outcome.code, outcome.allowed, outcome.used)
        assert found == ("limit", f"{scope}_background", 1, 1)
        assert len(await runtime.tasks.list(session="s")) == 1
        held.go.set()


async def test_a_call_stays_in_the_turn_where_a_budget_has_no_room_in_the_background() -> None:
    held = Held()
    slow = held.tool()
    agent = hf.Agent(
        "a",
        model=ScriptedModel(lambda request: call(slow) if request.position == 0 else text("done")),
        tools=[slow],
        policy=[hf.allow("*")],
        limits=hf.Limits(daily=hf.Budget(background=0)),
    )
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        async with asyncio.timeout(SOON):
            await held.begun.wait()
        held.go.set()
        assert (await turn.outcome(timeout=SOON)).text == "done"
        assert await runtime.tasks.list(session="s") == []


@pytest.mark.parametrize(
    "wrong", [{"wall_time": timedelta(0)}, {"wall_time": -1}, {"background": -1}, {"background": 1.5}], ids=repr
)
def test_a_budget_that_can_not_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError):
        hf.Budget(**wrong)
