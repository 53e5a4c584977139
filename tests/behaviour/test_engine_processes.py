"""Several processes on one file: the work is shared, a dead one is replaced at once, a stopped one is fenced off."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import pytest
from tests import proc
from tests.patience import PATIENCE
from tests.programs import Program

import holdfast as hf
from holdfast.policy.limits import LEASE_MS
from holdfast.testing import ScriptedModel, check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.programs import Programs

WORKER: Final = Path(__file__).parents[1] / "faults" / "engine_workers.py"
NAMES: Final = ("short", "held", "charging")


class Mark(msgspec.Struct, frozen=True):
    """One thing that a tool did."""

    what: str
    session: str
    turn: str
    pid: int
    at: float


class Worker:
    """A process with a runtime that drives what there is."""

    def __init__(self, programs: Programs, database: Path, crash_at: str = "", **options: Any) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_CRASH")}
        program = Program(
            str(WORKER),
            (database, json.dumps(options)),
            database.parent,
            environment={**env, "HOLDFAST_CRASH_AT": crash_at},
            stdin=None,
        )
        self._process = programs.start(program)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    async def opened(self) -> None:
        assert await asyncio.to_thread(self._line) == "open"

    async def close(self) -> None:
        """Ask it to stop, and wait until it has."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert await asyncio.to_thread(self._line) == "closed"

    async def killed(self) -> None:
        """Wait until it has ended by a crash point."""
        assert await asyncio.to_thread(self._process.wait, 20) == -signal.SIGKILL

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        await asyncio.sleep(0.01)


class Shop:
    """One file, the processes that work on it, and what their tools did."""

    def __init__(self, folder: Path, runtime: hf.Runtime, programs: Programs) -> None:
        self.database = folder / "store.db"
        self.runtime = runtime
        self._folder = folder
        self._programs = programs

    def worker(self, **options: Any) -> Worker:
        """One more process."""
        return Worker(self._programs, self.database, **options)

    def marks(self, what: str = "") -> list[Mark]:
        file = self._folder / "marks"
        lines = file.read_bytes().splitlines() if file.exists() else []
        found = [msgspec.json.decode(line, type=Mark) for line in lines]
        return [mark for mark in found if what in ("", mark.what)]

    def open_gate(self) -> None:
        (self._folder / "gate").touch()

    async def send(self, session: str, agent: str) -> hf.Turn:
        return await self.runtime.session(session, agent=agent).send("go")

    async def marked(self, what: str, pid: int) -> Mark:
        """Wait until that process did something."""
        await _until(lambda: any(mark.pid == pid for mark in self.marks(what)), f"{what} by {pid}")
        return next(mark for mark in self.marks(what) if mark.pid == pid)


@pytest.fixture
async def shop(tmp_path: Path, programs: Programs) -> AsyncIterator[Shop]:
    agents = [hf.Agent(name, model=ScriptedModel([])) for name in NAMES]
    async with hf.open(tmp_path / "store.db", agents=agents, drive=False) as runtime:
        yield Shop(tmp_path, runtime, programs)
        assert await check(runtime.store) == []


async def _taken_up(shop: Shop, agent: str, one: Worker, two: Worker) -> tuple[hf.Turn, Worker, Worker]:
    """A turn in the middle of its first tool: with the process that drives it, and the one that does not."""
    await one.opened()
    await two.opened()
    turn = await shop.send("s", agent)
    await _until(lambda: bool(shop.marks()), "somebody drives it")
    return (turn, one, two) if shop.marks()[0].pid == one.pid else (turn, two, one)


async def _stop(shop: Shop, worker: Worker) -> None:
    """Stop a process, not in the middle of a commit: there it would hold the lock of the file."""
    for attempt in range(50):
        worker.signal(signal.SIGSTOP)
        await _until(lambda: proc.state(worker.pid) == "T", "it is stopped")
        probe = asyncio.ensure_future(shop.runtime.store.open_journal(f"probe-{attempt}"))
        done, _ = await asyncio.wait([probe], timeout=0.5)
        if done:
            return
        worker.signal(signal.SIGCONT)
        await probe
    message = "it was always stopped in the middle of a commit"
    raise AssertionError(message)


async def _left(shop: Shop, session: str) -> float:
    """How long the lease of a session still lasts, in seconds."""
    return next(work.left_ms for work in await shop.runtime.store.work() if work.journal == session) / 1000


async def test_two_processes_share_the_work_and_nothing_is_done_twice(shop: Shop) -> None:
    with (
        shop.worker(concurrency=3, pause=0.01) as one,
        shop.worker(concurrency=3, pause=0.01) as two,
    ):
        await one.opened()
        await two.opened()
        held = await asyncio.gather(*(shop.send(f"h{number}", "held") for number in range(6)))
        await _until(lambda: len(shop.marks("hold")) == 6, "both drive as many as they may")
        turns = await asyncio.gather(*(shop.send(f"s{number}", "short") for number in range(40)))
        shop.open_gate()
        outcomes = await asyncio.gather(*(turn.outcome(timeout=PATIENCE) for turn in (*held, *turns)))
    assert {outcome.text for outcome in outcomes} == {"done"}
    done = [(mark.session, mark.what) for mark in shop.marks() if mark.session.startswith("s")]
    assert sorted(done) == sorted((f"s{number}", what) for number in range(40) for what in ("one", "two"))
    assert sorted(mark.pid for mark in shop.marks("hold")) == sorted([one.pid, two.pid] * 3)


async def test_turns_of_one_session_never_overlap_whoever_drives_them(shop: Shop) -> None:
    with shop.worker() as one, shop.worker() as two:
        first, _, _ = await _taken_up(shop, "held", one, two)
        second = await shop.send("s", "held")
        other = await shop.send("other", "held")  # both have looked at the store since, when this is under way
        await _until(lambda: any(mark.session == "other" for mark in shop.marks()), "the other session is driven")
        shop.open_gate()
        for turn in (first, second, other):
            assert (await turn.outcome(timeout=PATIENCE)).ok
    done = [(mark.turn, mark.what) for mark in shop.marks() if mark.session == "s"]
    assert done == [("t1", "hold"), ("t1", "after"), ("t2", "hold"), ("t2", "after")]


async def test_a_killed_process_is_replaced_within_about_a_second(shop: Shop) -> None:
    with shop.worker() as one, shop.worker() as two:
        turn, holder, other = await _taken_up(shop, "held", one, two)
        killed = time.monotonic()
        holder.signal(signal.SIGKILL)
        taken = await shop.marked("hold", other.pid)
        shop.open_gate()
        outcome = await turn.outcome(timeout=PATIENCE)
    assert outcome.text == "done"
    assert taken.at - killed < LEASE_MS / 1000 / 2  # if its death were not noticed, its lease would have to run out
    assert [mark.pid for mark in shop.marks("after")] == [other.pid]


async def test_what_a_killed_process_was_in_the_middle_of_is_not_repeated_by_another(shop: Shop) -> None:
    with shop.worker() as one, shop.worker() as two:
        turn, holder, _ = await _taken_up(shop, "charging", one, two)
        holder.signal(signal.SIGKILL)
        await turn.outcome(timeout=PATIENCE)
        history = await shop.runtime.session("s").history()
    states = [result.state for said in history if isinstance(said, hf.ToolMessage) for result in said.results]
    assert states == ["unknown"]
    assert len(shop.marks("charge")) == 1


async def test_a_process_that_was_killed_right_after_it_claimed_a_session_is_replaced(shop: Shop) -> None:
    with shop.worker(crash_at="drive.claimed:1") as one:
        await one.opened()
        turn = await shop.send("s", "short")
        await one.killed()
        with shop.worker() as two:
            assert (await turn.outcome(timeout=PATIENCE)).text == "done"
    assert {mark.pid for mark in shop.marks()} == {two.pid}


async def test_a_stopped_process_keeps_its_lease_until_it_expires(shop: Shop) -> None:
    with shop.worker(lease_ms=1_500) as one, shop.worker(lease_ms=1_500) as two:
        _, holder, other = await _taken_up(shop, "held", one, two)
        await _stop(shop, holder)
        left, looked = await _left(shop, "s"), time.monotonic()
        taken = await shop.marked("hold", other.pid)
    assert taken.at >= looked + left - 0.05


async def _overtaken(shop: Shop, one: Worker, two: Worker) -> tuple[hf.Turn, Worker, Worker]:
    """A turn that one process began and another one finished while the first was stopped."""
    turn, stopped, other = await _taken_up(shop, "held", one, two)
    await _stop(shop, stopped)
    await shop.marked("hold", other.pid)
    shop.open_gate()
    assert (await turn.outcome(timeout=PATIENCE)).text == "done"
    return turn, stopped, other


async def test_a_stopped_process_that_wakes_up_is_fenced_off_and_nothing_is_doubled(shop: Shop) -> None:
    with shop.worker(lease_ms=300) as one, shop.worker(lease_ms=300) as two:
        _, stopped, other = await _overtaken(shop, one, two)
        before = await shop.runtime.session("s").history()
        stopped.signal(signal.SIGCONT)
        await stopped.close()
        after = await shop.runtime.session("s").history()
    assert after == before
    assert [mark.pid for mark in shop.marks("after")] == [other.pid]


async def test_a_process_that_was_fenced_off_drives_the_same_session_again_later(shop: Shop) -> None:
    with shop.worker(lease_ms=300) as one, shop.worker(lease_ms=300) as two:
        _, stopped, other = await _overtaken(shop, one, two)
        stopped.signal(signal.SIGCONT)
        await other.close()
        again = await shop.send("s", "held")
        assert (await again.outcome(timeout=PATIENCE)).ok
    assert {mark.pid for mark in shop.marks() if mark.turn == again.id} == {stopped.pid}


async def test_a_process_that_was_fenced_off_rests_when_there_is_nothing_to_do(shop: Shop) -> None:
    with shop.worker(lease_ms=300) as one, shop.worker(lease_ms=300) as two:
        _, stopped, _ = await _overtaken(shop, one, two)
        stopped.signal(signal.SIGCONT)
        await asyncio.sleep(1)  # what is measured is that nothing happens: there is no condition to wait for
        before = proc.worked(stopped.pid)
        await asyncio.sleep(1)
        used = proc.worked(stopped.pid) - before
    assert used < 0.4, f"{used:.2f} s of processor time in a second without work"


async def test_a_process_that_comes_later_goes_on_where_a_dead_one_stopped(shop: Shop) -> None:
    with shop.worker(crash_at="model.after_reply:2") as one:
        await one.opened()
        turn = await shop.send("s", "short")
        await one.killed()
    assert [mark.what for mark in shop.marks()] == ["one"]
    with shop.worker() as two:
        assert (await turn.outcome(timeout=PATIENCE)).text == "done"
    assert [(mark.what, mark.pid) for mark in shop.marks()] == [("one", one.pid), ("two", two.pid)]


async def test_work_that_is_left_by_a_process_that_closes_goes_on_in_the_other(shop: Shop) -> None:
    with shop.worker() as one, shop.worker() as two:
        turn, holder, other = await _taken_up(shop, "held", one, two)
        await holder.close()
        await shop.marked("hold", other.pid)
        shop.open_gate()
        assert (await turn.outcome(timeout=PATIENCE)).text == "done"


async def _cancelled(shop: Shop, session: str) -> float:
    """How long it took until a turn that another process drives was cancelled, in seconds."""
    turn = await shop.send(session, "held")
    await _until(lambda: any(mark.session == session for mark in shop.marks()), "somebody drives it")
    asked = time.monotonic()
    await turn.cancel("enough")
    assert (await turn.outcome(timeout=PATIENCE)).status == "cancelled"
    return time.monotonic() - asked


async def test_a_cancel_from_another_process_reaches_the_one_that_drives_within_a_second(shop: Shop) -> None:
    with shop.worker() as one:
        await one.opened()
        took = [await _cancelled(shop, f"s{number}") for number in range(5)]
    assert min(took) < 1  # the machine has other things to do, too
