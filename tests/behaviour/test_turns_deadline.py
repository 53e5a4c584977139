"""A deadline ends the turn wherever it is, within a second of its time; time in the queue counts."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.stage import A_SECOND, SOON, agent_of
from tests.behaviour.talk import asked, states
from tests.patience import stopwatch

import holdfast as hf
from holdfast.testing import ManualClock, call, check, delayed, text

if TYPE_CHECKING:
    from pathlib import Path

    from tests.behaviour.stage import Stage


SHORT = 0.5


async def ended_in_time(turn: hf.Turn, begun: float, deadline: float = SHORT) -> hf.TurnOutcome:
    async with stopwatch() as watch:
        outcome = await turn.outcome(timeout=SOON)
    took = time.monotonic() - begun
    assert (outcome.status, outcome.code, outcome.blame) == ("limit", "deadline", "limit")
    assert took >= deadline - 0.05
    assert watch.seconds < deadline + A_SECOND
    return outcome


async def test_a_deadline_passes_while_the_model_thinks(stage: Stage) -> None:
    agent = agent_of(stage, [delayed(60, text("late"))])
    async with hf.open(None, agents=[agent]) as runtime:
        begun = time.monotonic()
        turn = await runtime.session("s", agent=agent).send("go", deadline=SHORT)
        await ended_in_time(turn, begun)


@pytest.mark.parametrize(
    ("tool", "state"),
    [("reads", "cancelled"), ("acts", "unknown"), ("blocks", "cancelled"), ("stubborn", "unknown")],
)
async def test_a_deadline_passes_while_a_tool_runs(stage: Stage, tool: str, state: str) -> None:
    agent = agent_of(stage, [call(tool), text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        begun = time.monotonic()
        turn = await session.send("go", deadline=SHORT)
        await ended_in_time(turn, begun)
        assert states(await session.history()) == [state]
        assert await check(runtime.store) == []


async def test_a_deadline_passes_while_the_turn_waits_for_somebody(stage: Stage) -> None:
    agent = agent_of(stage, [call("asks"), text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        begun = time.monotonic()
        turn = await session.send("go", deadline=SHORT)
        await ended_in_time(turn, begun)
        assert states(await session.history()) == ["cancelled"]


async def test_a_deadline_passes_in_the_queue(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await session.send("first")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        begun = time.monotonic()
        second = await session.send("second", deadline=SHORT)
        await ended_in_time(second, begun)
        stage.go_on.set()
        assert (await first.outcome(timeout=SOON)).text == "Done."
        assert len(asked(agent)) == 2


async def test_a_deadline_passes_in_the_queue_behind_a_turn_that_waits(stage: Stage) -> None:
    agent = agent_of(stage, [call("asks"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await session.send("first")
        await _until_waiting(first)
        begun = time.monotonic()
        second = await session.send("second", deadline=SHORT)
        await ended_in_time(second, begun)
        assert await first.status() == "waiting"


async def _until_waiting(turn: hf.Turn) -> None:
    async with asyncio.timeout(SOON):
        while await turn.status() != "waiting":  # what is awaited is in the store
            await asyncio.sleep(0.005)


async def test_the_agents_own_deadline_passes_in_the_queue_behind_a_turn_that_waits(stage: Stage) -> None:
    limits = hf.Limits(deadline=timedelta(seconds=SHORT))
    agent = agent_of(stage, [call("asks"), text("Done.")], limits=limits)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await session.send("first", deadline=60)
        await _until_waiting(first)
        begun = time.monotonic()
        second = await session.send("second")
        await ended_in_time(second, begun)
        assert await first.status() == "waiting"


@pytest.mark.parametrize("span", [timedelta(seconds=SHORT), SHORT], ids=["span", "seconds"])
async def test_the_agents_own_deadline_holds_for_every_turn(stage: Stage, span: timedelta | float) -> None:
    agent = agent_of(stage, [call("reads")], limits=hf.Limits(deadline=span))
    async with hf.open(None, agents=[agent]) as runtime:
        begun = time.monotonic()
        await ended_in_time(await runtime.session("s", agent=agent).send("go"), begun)


async def test_a_deadline_that_is_given_goes_before_the_agents_own(stage: Stage) -> None:
    agent = agent_of(stage, [call("reads")], limits=hf.Limits(deadline=timedelta(hours=1)))
    async with hf.open(None, agents=[agent]) as runtime:
        begun = time.monotonic()
        await ended_in_time(await runtime.session("s", agent=agent).send("go", deadline=SHORT), begun)


async def test_a_tool_knows_the_deadline(stage: Stage) -> None:
    agent = agent_of(stage, [call("reads"), text("Done.")])
    clock, span = ManualClock(), timedelta(minutes=1)
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        sent = datetime.fromtimestamp(clock.read().wall / 1000, tz=UTC)
        turn = await runtime.session("s", agent=agent).send("go", deadline=span)
        stage.go_on.set()
        await turn.outcome(timeout=SOON)
        assert stage.deadlines == [sent + span]


async def test_a_tool_in_a_thread_can_see_that_its_turn_is_over(stage: Stage) -> None:
    agent = agent_of(stage, [call("listens")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go", deadline=SHORT)
        await turn.outcome(timeout=SOON)
        async with asyncio.timeout(SOON):
            while stage.done != ["heard"]:  # a thread is awaited
                await asyncio.sleep(0.005)


async def test_a_deadline_that_passed_while_nothing_ran_ends_the_turn_without_a_model_call(
    tmp_path: Path, stage: Stage
) -> None:
    agent = agent_of(stage, [text("late")])
    async with hf.open(tmp_path / "s.db", agents=[agent], drive=False) as runtime:
        turn = await runtime.session("s", agent=agent).send("go", deadline=0.05)
        due = runtime.store.clock.read().wall + 50
        async with asyncio.timeout(SOON):
            while runtime.store.clock.read().wall <= due:  # time is awaited
                await asyncio.sleep(0.01)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        outcome = await runtime.session("s").turn(turn.id).outcome(timeout=SOON)
        assert (outcome.code, asked(agent)) == ("deadline", [])


async def test_a_deadline_goes_on_to_count_after_a_restart(tmp_path: Path, stage: Stage) -> None:
    agent = agent_of(stage, [call("reads"), text("Done.")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        begun = time.monotonic()
        turn = await runtime.session("s", agent=agent).send("go", deadline=A_SECOND)
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await ended_in_time(runtime.session("s").turn(turn.id), begun, A_SECOND)


async def test_a_turn_that_was_in_time_is_not_touched_when_its_deadline_passes(stage: Stage) -> None:
    agent = agent_of(stage, [text("Done."), call("reads"), text("Done again.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await session.send("go", deadline=A_SECOND)
        assert (await first.outcome(timeout=SOON)).text == "Done."
        due = runtime.store.clock.read().wall + round(A_SECOND * 1000) + 50
        second = await session.send("more")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        async with asyncio.timeout(SOON):
            while runtime.store.clock.read().wall <= due:  # time is awaited
                await asyncio.sleep(0.01)
        stage.go_on.set()
        assert (await second.outcome(timeout=SOON)).text == "Done again."
        assert (await first.outcome(timeout=SOON)).status == "completed"


async def test_a_deadline_is_no_wait_that_somebody_could_answer(stage: Stage) -> None:
    agent = agent_of(stage, [call("asks"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go", deadline=60)
        await _until_waiting(turn)
        (wait,) = await runtime.waits("s")
        await runtime.resolve(runtime.wait_token("s", wait.name), "yes")
        assert (await turn.outcome(timeout=SOON)).text == "Done."


async def test_nothing_is_waited_for_after_a_turn_that_was_in_time(stage: Stage) -> None:
    agent = agent_of(stage, [text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go", deadline=60)
        await turn.outcome(timeout=SOON)
        assert await runtime.waits("s") == []


async def test_the_same_key_with_the_same_deadline_is_the_same_turn(stage: Stage) -> None:
    agent = agent_of(stage, [text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turns = [await session.send("go", key="k", deadline=60) for _ in range(2)]
        assert turns[0].id == turns[1].id


@pytest.mark.parametrize(
    "deadline", [0, -1, float("nan"), float("inf"), "5", True, b"", timedelta(0), timedelta(days=99_999)], ids=repr
)
async def test_a_deadline_that_can_not_be_meant_is_refused_and_nothing_is_accepted(stage: Stage, deadline: Any) -> None:
    agent = agent_of(stage, [text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        with pytest.raises(hf.UsageError):
            await runtime.session("s", agent=agent).send("go", deadline=deadline)
        assert await runtime.sessions() == []


async def test_waiting_for_an_outcome_with_a_timeout_leaves_the_turn_alone(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        with pytest.raises(TimeoutError):
            await turn.outcome(timeout=0.05)
        stage.go_on.set()
        assert (await turn.outcome(timeout=SOON)).text == "Done."
