"""Threads that nobody waits for any more, and tools that block the event loop: each is told of by name."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import until
from tests.patience import PATIENCE as SOON

from holdfast.tools import AnyTool, Bound, abandoned, functions, tool
from holdfast.tools import functions as threads_module
from holdfast.tools.functions import (
    calls_here,
    describe_block,
    run_in_thread,
    watch_event_loop,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Gate:
    """A plain function that hangs until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    def hang(self) -> str:
        """Wait."""
        self.begun.set()
        self.go.wait(SOON)
        return "done"


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.go.set()


async def started(gate: Gate, name: str = "hang") -> asyncio.Task[Any]:
    call = asyncio.create_task(tool(name)(gate.hang).call(Bound({})))
    await until(gate.begun.is_set)
    return call


async def given_up(call: asyncio.Task[Any]) -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


# ---- abandoned threads -----------------------------------------------------------------------------------------------


async def test_a_thread_whose_caller_was_cancelled_is_counted_and_named(gate: Gate) -> None:
    before = abandoned().total
    await given_up(await started(gate, "slow_search"))
    assert abandoned().total == before + 1
    assert "slow_search" in abandoned().running


async def test_a_thread_whose_caller_ran_out_of_time_is_abandoned(gate: Gate) -> None:
    made = tool("too_slow")(gate.hang)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await made.call(Bound({}))
    assert "too_slow" in abandoned().running


async def test_an_abandoned_thread_is_told_in_the_log(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.tools"):
        await given_up(await started(gate, "slow_search"))
    assert "the thread of 'slow_search' was abandoned after" in caplog.text


async def test_an_abandoned_thread_that_ends_is_not_among_those_that_run(gate: Gate) -> None:
    await given_up(await started(gate, "ends_late"))
    gate.go.set()
    await until(lambda: "ends_late" not in abandoned().running)


async def test_a_thread_that_ends_in_time_is_not_abandoned(gate: Gate) -> None:
    before = abandoned()
    call = await started(gate)
    gate.go.set()
    assert await call == "done"
    assert abandoned() == before


async def test_a_function_that_raises_is_not_abandoned() -> None:
    @tool
    def fails() -> None:
        raise ZeroDivisionError

    before = abandoned()
    with pytest.raises(ZeroDivisionError):
        await fails.call(Bound({}))
    assert abandoned() == before


async def test_when_all_threads_hang_abandoned_a_call_is_refused_and_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    monkeypatch.setattr(threads_module, "MAX_THREADS", 1)
    await given_up(await started(gate, "hangs_for_good"))
    with pytest.raises(RuntimeError, match=r"it was not begun: all 1 threads .*\(hangs_for_good\)"):
        await asyncio.wait_for(run_in_thread(lambda: None, {}), SOON)


async def test_a_call_waits_for_a_thread_that_is_only_busy(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    monkeypatch.setattr(threads_module, "MAX_THREADS", 1)
    first = await started(gate)
    second = asyncio.create_task(run_in_thread(lambda: "second", {}))
    await asyncio.sleep(0)
    gate.go.set()
    assert (await first, await second) == ("done", "second")


# ---- how many at once ------------------------------------------------------------------------------------------------


class Crowd:
    """Counts how many are in it at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def enter(self) -> None:
        """Be in it for a moment."""
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.now -= 1


async def in_place(made: AnyTool, entered: list[str] | None = None) -> object:
    with await calls_here().place_for(made):
        if entered is not None:
            entered.append(made.name)
        return await made.call(Bound({}))


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (None, 10)])
async def test_no_more_calls_of_a_tool_run_at_once_than_it_allows(limit: int | None, most: int) -> None:
    crowd = Crowd()
    made = tool(max_parallel=limit)(crowd.enter)
    await asyncio.gather(*(in_place(made) for _ in range(10)))
    assert crowd.most == most


async def test_one_function_under_two_names_is_one_tool() -> None:
    crowd = Crowd()
    tools = [tool(name, max_parallel=1)(crowd.enter) for name in ("one", "two")]
    await asyncio.gather(*(in_place(made) for made in tools * 3))
    assert crowd.most == 1


async def test_an_abandoned_thread_keeps_its_place_until_it_ends(gate: Gate) -> None:
    made = tool(max_parallel=1)(gate.hang)
    call = asyncio.create_task(in_place(made))
    await until(gate.begun.is_set)
    await given_up(call)
    entered: list[str] = []
    following = asyncio.create_task(in_place(made, entered))
    for _ in range(5):  # as often as it would take to come in
        await asyncio.sleep(0)
    assert entered == []
    gate.go.set()
    assert await asyncio.wait_for(following, SOON) == "done"


async def test_a_call_that_is_cancelled_while_it_waits_takes_no_place(gate: Gate) -> None:
    made = tool(max_parallel=1)(gate.hang)
    first = asyncio.create_task(in_place(made))
    await until(gate.begun.is_set)
    await given_up(asyncio.create_task(in_place(made)))
    gate.go.set()
    assert await first == "done"
    assert await asyncio.wait_for(in_place(made), SOON) == "done"


# ---- the watchdog ----------------------------------------------------------------------------------------------------


def blocks() -> None: ...
def innocent() -> None: ...


CALLS = [(each.__name__, each) for each in (blocks, innocent)]


def test_the_tool_whose_code_the_loop_is_in_is_the_one() -> None:
    said = describe_block(2.5, [(blocks.__code__, "here.py:3 in blocks")], CALLS)
    assert said.startswith("the tool 'blocks' blocks the event loop: no answer for 2.5 s, at here.py:3 in blocks;")


async def test_a_call_on_another_loop_runs_there() -> None:
    seen: list[tuple[int, int]] = []
    outside = calls_here().running

    @tool
    async def inner() -> None:
        seen.append((len(calls_here().running), len(outside)))

    @tool
    def outer() -> None:
        asyncio.run(inner.call(Bound({})))

    with await calls_here().place_for(outer):
        await outer.call(Bound({}))
    assert seen == [(1, 0)]


def test_if_no_code_is_known_all_that_run_are_told() -> None:
    said = describe_block(2.5, [], CALLS)
    assert "of the tools, 'blocks', 'innocent' may be it" in said
    assert "at an unknown place" in said


def _blocking(heard: threading.Event) -> AnyTool:
    @tool
    async def hogs() -> None:
        heard.wait(SOON)

    return hogs


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "MAX_SILENCE", 0.05)
    monkeypatch.setattr(functions, "PROBE_INTERVAL", 0.01)


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What the watchdog logs; `event` is set by its first report."""
    heard = Heard()
    log = logging.getLogger("holdfast.tools")
    log.addHandler(heard)
    try:
        yield heard
    finally:
        log.removeHandler(heard)


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "the event loop" in record.getMessage():
            self.told.append(record.getMessage())
            self.event.set()


@pytest.mark.usefixtures("quick")
async def test_a_tool_that_blocks_the_event_loop_is_named_and_one_that_waits_is_not(heard: Heard) -> None:
    with watch_event_loop():
        calls_here().running["call"] = "waits", innocent
        await _blocking(heard.event).call(Bound({}))
    assert heard.told[0].startswith("the tool 'hogs' blocks")
    assert "test_tool_threads.py" in heard.told[0] or "threading.py" in heard.told[0]


@pytest.mark.usefixtures("quick")
async def test_a_tool_behind_a_decorator_is_named_too(heard: Heard) -> None:
    inner = _blocking(heard.event).function

    @functools.wraps(inner)
    def outer() -> object:
        return inner()

    with watch_event_loop():
        await tool(outer).call(Bound({}))
    assert heard.told[0].startswith("the tool 'hogs' blocks")


@pytest.mark.usefixtures("quick")
async def test_a_plain_function_that_takes_long_does_not_block_and_is_not_told(heard: Heard) -> None:
    looked = threading.Event()

    @tool
    def slow() -> None:
        looked.wait(0.2)

    with watch_event_loop():
        await slow.call(Bound({}))
    assert heard.told == []


async def test_a_loop_that_answers_soon_is_not_blocked(monkeypatch: pytest.MonkeyPatch, heard: Heard) -> None:
    monkeypatch.setattr(functions, "PROBE_INTERVAL", 0.01)
    looked = threading.Event()

    @tool
    async def brief() -> None:
        looked.wait(0.1)

    with watch_event_loop():
        await brief.call(Bound({}))
    assert heard.told == []


@pytest.mark.usefixtures("quick")
async def test_the_log_says_who_blocks_and_when_it_is_over(heard: Heard) -> None:
    with watch_event_loop():
        await _blocking(heard.event).call(Bound({}))
        await until(lambda: any("the event loop answers again" in line for line in heard.told))
    assert "the tool 'hogs' blocks the event loop: no answer for" in heard.told[0]


async def test_one_loop_is_watched_by_one_thread_however_many_ask() -> None:
    def watchdogs() -> int:
        return sum(thread.name == "holdfast watchdog" for thread in threading.enumerate())

    with watch_event_loop(), watch_event_loop():
        assert watchdogs() == 1
    await until(lambda: watchdogs() == 0)
