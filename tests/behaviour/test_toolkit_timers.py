"""Timers that an agent sets itself: they go off once, at their time, whatever happens to the process meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import SESSION, asked, heard, notices, results, told
from tests.behaviour.talk import SOON
from tests.every import every

import holdfast as hf
from holdfast.errors import InvalidNumber
from holdfast.testing import ManualClock, ScriptedModel, arm_from_environment, call, text
from holdfast.toolkits.timers import TimerLimits, TimerRequest, check_timer, parse_timer, timers

if TYPE_CHECKING:
    from holdfast.messages import ModelRequest
    from holdfast.runtime.runtime import Runtime
    from holdfast.testing.scripted import ScriptReply

ROOT = Path(__file__).parents[2]
NOW = 1_800_000_000_000
"""2027-01-15T08:00:00Z, where a manual clock begins."""
SETTER, LISTER, CANCELLER = timers()


def agent(**options: Any) -> hf.Agent:
    """Calls whatever the user writes: the name of a tool and its arguments."""

    def say(request: ModelRequest) -> ScriptReply:
        said = request.messages[-1]
        if isinstance(said, hf.UserMessage) and said.text.startswith("{"):
            wanted = json.loads(said.text)
            return call(wanted.pop("tool"), **wanted)
        return text("well")

    return hf.Agent("a", model=ScriptedModel(say), tools=[hf.tools.timers(**options)], policy=[hf.allow("*")])


async def use(runtime: Runtime, tool: str, **arguments: object) -> str:
    """What the model gets when it calls a tool."""
    await asked(runtime, runtime.agents["a"], json.dumps({"tool": tool, **arguments}))
    return results(await runtime.session(SESSION).history())[-1].content


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat()


# ---- the family ------------------------------------------------------------------------------------------------------


def test_the_family_has_three_tools() -> None:
    assert [tool.name for tool in timers()] == ["set_timer", "list_timers", "cancel_timer"]


@pytest.mark.parametrize("tool", timers(), ids=lambda tool: tool.name)
def test_none_of_them_goes_to_the_background(tool: hf.Tool[..., Any]) -> None:
    assert tool.background is False


@pytest.mark.parametrize("tool", timers(), ids=lambda tool: tool.name)
def test_all_of_them_may_be_repeated(tool: hf.Tool[..., Any]) -> None:
    assert tool.read_only or tool.idempotent


@every(
    "options",
    [
        {"most": 0},
        {"most": True},
        {"most": 10_000},
        {"shortest": 0},
        {"longest": -1},
        {"longest": float("inf")},
        {"longest": "a week"},
        {"shortest": 100, "longest": 10},
    ],
    ids=str,
)
def test_bounds_that_can_not_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidNumber):
        timers(**options)


# ---- the time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "at", "due"),
    [
        (90, "", NOW + 90_000),
        (0.5, "", NOW + 500),
        (None, "2027-01-15T09:00:00Z", NOW + 3_600_000),
        (None, "2027-01-15T10:00:00+01:00", NOW + 3_600_000),
        (None, "2027-01-15 09:00Z", NOW + 3_600_000),
    ],
)
def test_a_time_is_read_as_it_was_meant(seconds: float | None, at: str, due: int) -> None:
    assert parse_timer(seconds, at, "note", NOW).due == due


@pytest.mark.parametrize(
    ("seconds", "at", "reason"),
    [
        (None, "", "Give either seconds or at"),
        (1, "2027-01-15T09:00:00Z", "Give either seconds or at"),
        (None, "tomorrow", "is no ISO 8601 date"),
        (None, "2027-01-15T09:00:00", "does not say in which time zone"),
    ],
)
def test_a_time_that_is_not_clear_is_asked_for_again_with_the_time_of_now(
    seconds: float | None, at: str, reason: str
) -> None:
    with pytest.raises(hf.ToolRetry, match=reason) as caught:
        parse_timer(seconds, at, "note", NOW)
    assert "it is now 2027-01-15T08:00:00Z" in str(caught.value).replace("It", "it")


def test_what_a_timer_says_does_not_depend_on_the_clock() -> None:
    assert parse_timer(90, "", "note", NOW).body == parse_timer(90, "", "note", NOW + 5_000).body


@pytest.mark.parametrize(
    ("ahead", "waiting", "reason"),
    [
        (-60_000, 0, "That is 1 min ago."),
        (999, 0, "That is too soon."),
        (3_600_001, 0, "That is too late. A timer goes off within 1 h."),
        (5_000, 3, "3 timers are set already"),
    ],
)
def test_a_timer_out_of_bounds_is_refused_with_the_bound(ahead: int, waiting: int, reason: str) -> None:
    said = check_timer(TimerRequest(NOW + ahead, "note"), waiting, NOW, TimerLimits(3, 1_000, 3_600_000))
    assert said is not None
    assert said.startswith(reason)


@pytest.mark.parametrize("ahead", [1_000, 3_600_000])
def test_a_timer_at_its_bounds_may_be_set(ahead: int) -> None:
    assert check_timer(TimerRequest(NOW + ahead, "note"), 2, NOW, TimerLimits(3, 1_000, 3_600_000)) is None


# ---- setting and going off -------------------------------------------------------------------------------------------


async def test_a_timer_goes_off_at_its_time_and_begins_a_turn() -> None:
    made = agent(shortest=0.01)
    async with hf.open(None, agents=[made]) as runtime:
        await use(runtime, "set_timer", seconds=0.05, note="turn the stove off")
        (notice,) = await told(runtime.store)
        assert (notice.kind, notice.state) == ("timer", "acknowledged")
        (said,) = await notices(runtime)
        assert "| turn the stove off" in said
        assert notice.updated >= notice.due


async def test_a_timer_does_not_go_off_before_its_time() -> None:
    clock = ManualClock()
    made = agent()
    async with hf.open(None, agents=[made], clock=clock) as runtime:
        said = await use(runtime, "set_timer", seconds=60, note="later")
        assert said == "Timer 1 is set for 2027-01-15T08:01:00Z, in 1 min."
        clock.advance(59_000)
        await use(runtime, "list_timers")
        assert await notices(runtime) == []


async def test_a_timer_that_became_due_while_nothing_ran_goes_off_at_once_and_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with hf.open(tmp_path / "s.db", agents=[agent()], clock=clock) as runtime:
        await use(runtime, "set_timer", at=iso(NOW + 3_600_000), note="an hour")
    clock.advance(86_400_000)
    for _ in range(2):
        async with hf.open(tmp_path / "s.db", agents=[agent()], clock=clock) as runtime:
            assert [found.state for found in await told(runtime.store)] == ["acknowledged"]
            assert len(await notices(runtime)) == 1


async def test_a_timer_that_is_not_due_waits_over_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with hf.open(tmp_path / "s.db", agents=[agent()], clock=clock) as runtime:
        await use(runtime, "set_timer", seconds=3_600, note="an hour")
    async with hf.open(tmp_path / "s.db", agents=[agent()], clock=clock) as runtime:
        assert "in 1 h: an hour" in await use(runtime, "list_timers")


@pytest.mark.parametrize("point", ["tool.before_run", "tool.after_run", "tool.before_outcome"])
async def test_a_call_that_is_repeated_after_a_crash_sets_one_timer(tmp_path: Path, point: str) -> None:
    await killed(tmp_path / "s.db", point, seconds=0.3, note="once")
    async with hf.open(tmp_path / "s.db", agents=[agent(shortest=0.01)]) as runtime:
        await runtime.session(SESSION).turn("t1").outcome(timeout=SOON)
        assert len(await told(runtime.store)) == 1
        assert len(await notices(runtime)) == 1


async def test_a_repeated_call_is_answered_also_when_its_timer_has_gone_off_meanwhile(tmp_path: Path) -> None:
    for ahead in (2.5, 10, 40):  # the other process may be slow to start, and then the moment is past
        at, path = datetime.now(tz=UTC) + timedelta(seconds=ahead), tmp_path / f"{ahead}.db"
        if await ended(path, "tool.after_run", at=at.isoformat(), note="once") == -signal.SIGKILL:
            break
    while datetime.now(tz=UTC) < at:  # a moment must pass
        await asyncio.sleep(0.01)
    async with hf.open(path, agents=[agent(most=1, shortest=0.01)]) as runtime:
        await told(runtime.store)
        (result,) = results(await runtime.session(SESSION).history())
        assert result.content == f"Timer 1 is set for {at:%Y-%m-%dT%H:%M:%SZ}, due now."


async def killed(path: Path, point: str, **arguments: object) -> None:
    """Let another process set a timer, and end it at a crash point."""
    assert await ended(path, point, **arguments) == -signal.SIGKILL


async def ended(path: Path, point: str, **arguments: object) -> int:
    """How another process ended that was to set a timer, and to be killed at a crash point."""
    wanted = json.dumps({"tool": "set_timer", **arguments})
    code = f"from tests.behaviour.test_toolkit_timers import work; work({str(path)!r}, {wanted!r})"
    env = {**os.environ, "HOLDFAST_CRASH_AT": f"{point}:1"}
    done = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT, env=env)
    return await done.wait()


def work(path: str, wanted: str) -> None:
    """In that process."""
    arm_from_environment()

    async def main() -> None:
        made = agent(shortest=0.01)
        async with hf.open(path, agents=[made]) as runtime:
            await asked(runtime, made, wanted)

    asyncio.run(main())


async def test_two_calls_with_the_same_note_are_two_timers() -> None:
    async with hf.open(None, agents=[agent()], clock=ManualClock()) as runtime:
        for _ in range(2):
            await use(runtime, "set_timer", seconds=60, note="same")
        assert (await use(runtime, "list_timers")).count("same") == 2


# ---- bounds ----------------------------------------------------------------------------------------------------------


async def test_no_more_timers_can_be_set_than_the_host_allows() -> None:
    async with hf.open(None, agents=[agent(most=2)], clock=ManualClock()) as runtime:
        for _ in range(2):
            await use(runtime, "set_timer", seconds=60, note="x")
        assert "2 timers are set already" in await use(runtime, "set_timer", seconds=60, note="x")
        assert len(await runtime.store.notifications(SESSION)) == 2


async def test_a_timer_further_ahead_than_the_host_allows_is_refused() -> None:
    async with hf.open(None, agents=[agent(longest=timedelta(days=1))], clock=ManualClock()) as runtime:
        assert "within 1 d" in await use(runtime, "set_timer", seconds=86_401, note="x")


@pytest.mark.parametrize(
    "arguments",
    [
        {"note": ""},
        {"note": "x" * 5_000, "seconds": 60},
        {"note": "x", "seconds": -1},
        {"note": "x", "seconds": 1e300},
        {"note": "x", "at": "x" * 1_000},
        {"note": "x", "at": "0001-01-01T00:00:00+14:00"},
        {"note": "x", "at": "9999-12-31T23:59:59-14:00"},
        {"note": "x", "at": "2027-01-15"},
    ],
    ids=lambda arguments: str(arguments)[:40],
)
async def test_arguments_that_can_not_be_meant_set_nothing(arguments: dict[str, Any]) -> None:
    async with hf.open(None, agents=[agent()], clock=ManualClock()) as runtime:
        await use(runtime, "set_timer", **arguments)
        assert results(await runtime.session(SESSION).history())[-1].state == "error"
        assert await runtime.store.notifications(SESSION) == []


# ---- listing and cancelling ------------------------------------------------------------------------------------------


async def test_timers_are_listed_the_next_one_first() -> None:
    async with hf.open(None, agents=[agent()], clock=ManualClock()) as runtime:
        await use(runtime, "set_timer", seconds=7_200, note="second")
        await use(runtime, "set_timer", seconds=60, note="first\nof all")
        assert (await use(runtime, "list_timers")).splitlines() == [
            "It is now 2027-01-15T08:00:00Z.",
            "2: 2027-01-15T08:01:00Z, in 1 min: first of all (set to go off after 1 min)",
            "1: 2027-01-15T10:00:00Z, in 2 h: second (set to go off after 2 h)",
        ]


async def test_a_session_without_timers_is_told_so() -> None:
    async with hf.open(None, agents=[agent()], clock=ManualClock()) as runtime:
        assert (await use(runtime, "list_timers")).endswith("\nNo timer is set.")


async def test_a_timer_that_was_cancelled_never_goes_off(tmp_path: Path) -> None:
    clock = ManualClock()
    async with hf.open(tmp_path / "s.db", agents=[agent()], clock=clock) as runtime:
        await use(runtime, "set_timer", seconds=60, note="x")
        assert await use(runtime, "cancel_timer", id=1) == "Timer 1 is cancelled."
    clock.advance(120_000)
    async with hf.open(tmp_path / "s.db", agents=[agent()], clock=clock) as runtime:
        assert (await use(runtime, "list_timers")).endswith("No timer is set.")
        assert heard(await runtime.session(SESSION).history()) == []


async def test_a_timer_is_cancelled_however_often_it_is_asked_for() -> None:
    async with hf.open(None, agents=[agent()], clock=ManualClock()) as runtime:
        await use(runtime, "set_timer", seconds=60, note="x")
        for _ in range(2):
            assert await use(runtime, "cancel_timer", id=1) == "Timer 1 is cancelled."


async def test_a_timer_that_has_gone_off_can_not_be_cancelled() -> None:
    async with hf.open(None, agents=[agent(shortest=0.01)]) as runtime:
        await use(runtime, "set_timer", seconds=0.02, note="x")
        await told(runtime.store)
        assert await use(runtime, "cancel_timer", id=1) == "Too late: timer 1 has gone off (acknowledged)."


async def test_what_is_no_timer_of_this_session_can_not_be_cancelled() -> None:
    async with hf.open(None, agents=[agent()], clock=ManualClock(), can_deliver=lambda _: False) as runtime:
        made = runtime.agents["a"]
        await asked(runtime, made, json.dumps({"tool": "set_timer", "seconds": 60, "note": "x"}), session="other")
        await use(runtime, "list_timers")
        await runtime.notify(SESSION, "of the host")
        for number in (1, 2, 99):
            assert f"There is no timer {number}." in await use(runtime, "cancel_timer", id=number)
        assert {found.state for found in await runtime.store.notifications()} == {"queued"}
