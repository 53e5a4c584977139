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
from tests.programs import Program

import holdfast as hf
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

    async def close(self) -> float:
        """Ask it to stop; answers how long that took, in seconds."""
        assert self._process.stdin is not None
        began = time.monotonic()
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert await asyncio.to_thread(self._line) == "closed"
        return time.monotonic() - began

    async def killed(self) -> None:
        """Wait until it has ended by a crash point."""
        assert await asyncio.to_thread(self._process.wait, 20) == -signal.SIGKILL

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def state(self) -> str:
        return self._stat()[0]

    def cpu(self) -> float:
        """Processor time that it has used, in seconds."""
        user, system = self._stat()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _stat(self) -> list[str]:
        return Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


async def _until(condition: Callable[[], bool], what: str, seconds: float = 8) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
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


async def _stop(shop: Shop, worker: Worker) -> float:
    """Stop a process, not in the middle of a commit: there it would hold the lock of the file. Answers when."""
    for attempt in range(50):
        worker.signal(signal.SIGSTOP)
        await _until(lambda: worker.state() == "T", "it is stopped")
        stopped = time.monotonic()
        probe = asyncio.ensure_future(shop.runtime.store.open_journal(f"probe-{attempt}"))
        done, _ = await asyncio.wait([probe], timeout=0.5)
        if done:
            return stopped
        worker.signal(signal.SIGCONT)
        await probe
    message = "it was always stopped in the middle of a commit"
    raise AssertionError(message)


async def test_two_processes_share_the_work_and_nothing_is_done_twice(shop: Shop) -> None:
    with (
        shop.worker(concurrency=3, pause=0.01) as one,
        shop.worker(concurrency=3, pause=0.01) as two,
    ):
        await one.opened()
        await two.opened()
        turns = await asyncio.gather(*(shop.send(f"s{number}", "short") for number in range(40)))
        outcomes = await asyncio.gather(*(turn.outcome(timeout=20) for turn in turns))
    assert {outcome.text for outcome in outcomes} == {"done"}
    done = [(mark.session, mark.what) for mark in shop.marks()]
    assert sorted(done) == sorted((f"s{number}", what) for number in range(40) for what in ("one", "two"))
    assert {mark.pid for mark in shop.marks()} == {one.pid, two.pid}


async def test_turns_of_one_session_never_overlap_whoever_drives_them(shop: Shop) -> None:
    with shop.worker() as one, shop.worker() as two:
        first, _, _ = await _taken_up(shop, "held", one, two)
        second = await shop.send("s", "held")
        other = await shop.send("other", "held")  # both have looked at the store since, when this is under way
        await _until(lambda: any(mark.session == "other" for mark in shop.marks()), "the other session is driven")
        shop.open_gate()
        for turn in (first, second, other):
            assert (await turn.outcome(timeout=10)).ok
    done = [(mark.turn, mark.what) for mark in shop.marks() if mark.session == "s"]
    assert done == [("t1", "hold"), ("t1", "after"), ("t2", "hold"), ("t2", "after")]


async def test_a_killed_process_is_replaced_within_about_a_second(shop: Shop) -> None:
    with shop.worker() as one, shop.worker() as two:
        turn, holder, other = await _taken_up(shop, "held", one, two)
        killed = time.monotonic()
        holder.signal(signal.SIGKILL)
        taken = await shop.marked("hold", other.pid)
        shop.open_gate()
        outcome = await turn.outcome(timeout=10)
    assert outcome.text == "done"
    assert taken.at - killed < 1.5
    assert [mark.pid for mark in shop.marks("after")] == [other.pid]


async def test_what_a_killed_process_was_in_the_middle_of_is_not_repeated_by_another(shop: Shop) -> None:
    with shop.worker() as one, shop.worker() as two:
        turn, holder, _ = await _taken_up(shop, "charging", one, two)
        holder.signal(signal.SIGKILL)
        await turn.outcome(timeout=10)
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
            assert (await turn.outcome(timeout=10)).text == "done"
    assert {mark.pid for mark in shop.marks()} == {two.pid}


async def test_a_stopped_process_keeps_its_lease_until_it_expires(shop: Shop) -> None:
    with shop.worker(lease_ms=1_500) as one, shop.worker(lease_ms=1_500) as two:
        _, holder, other = await _taken_up(shop, "held", one, two)
        stopped = await _stop(shop, holder)
        taken = await shop.marked("hold", other.pid)
    # The lease was renewed at most a third of its time before; leases are looked at four times a second.
    assert 0.95 < taken.at - stopped < 3


async def _overtaken(shop: Shop, one: Worker, two: Worker) -> tuple[hf.Turn, Worker, Worker]:
    """A turn that one process began and another one finished while the first was stopped."""
    turn, stopped, other = await _taken_up(shop, "held", one, two)
    await _stop(shop, stopped)
    await shop.marked("hold", other.pid)
    shop.open_gate()
    assert (await turn.outcome(timeout=10)).text == "done"
    return turn, stopped, other


async def test_a_stopped_process_that_wakes_up_is_fenced_off_and_nothing_is_doubled(shop: Shop) -> None:
    with shop.worker(lease_ms=300) as one, shop.worker(lease_ms=300) as two:
        _, stopped, other = await _overtaken(shop, one, two)
        before = await shop.runtime.session("s").history()
        stopped.signal(signal.SIGCONT)
        assert await stopped.close() < 5
        after = await shop.runtime.session("s").history()
    assert after == before
    assert [mark.pid for mark in shop.marks("after")] == [other.pid]


async def test_a_process_that_was_fenced_off_drives_the_same_session_again_later(shop: Shop) -> None:
    with shop.worker(lease_ms=300) as one, shop.worker(lease_ms=300) as two:
        _, stopped, other = await _overtaken(shop, one, two)
        stopped.signal(signal.SIGCONT)
        assert await other.close() < 5
        again = await shop.send("s", "held")
        assert (await again.outcome(timeout=10)).ok
    assert {mark.pid for mark in shop.marks() if mark.turn == again.id} == {stopped.pid}


async def test_a_process_that_was_fenced_off_rests_when_there_is_nothing_to_do(shop: Shop) -> None:
    with shop.worker(lease_ms=300) as one, shop.worker(lease_ms=300) as two:
        _, stopped, _ = await _overtaken(shop, one, two)
        stopped.signal(signal.SIGCONT)
        await asyncio.sleep(1)  # what is measured is that nothing happens: there is no condition to wait for
        before = stopped.cpu()
        await asyncio.sleep(1)
        used = stopped.cpu() - before
    assert used < 0.2, f"{used:.2f} s of processor time in a second without work"


async def test_a_process_that_comes_later_goes_on_where_a_dead_one_stopped(shop: Shop) -> None:
    with shop.worker(crash_at="model.after_reply:2") as one:
        await one.opened()
        turn = await shop.send("s", "short")
        await one.killed()
    assert [mark.what for mark in shop.marks()] == ["one"]
    with shop.worker() as two:
        assert (await turn.outcome(timeout=10)).text == "done"
    assert [(mark.what, mark.pid) for mark in shop.marks()] == [("one", one.pid), ("two", two.pid)]


async def test_work_that_is_left_by_a_process_that_closes_goes_on_in_the_other(shop: Shop) -> None:
    with shop.worker() as one, shop.worker() as two:
        turn, holder, other = await _taken_up(shop, "held", one, two)
        assert await holder.close() < 5
        await shop.marked("hold", other.pid)
        shop.open_gate()
        assert (await turn.outcome(timeout=10)).text == "done"


async def test_a_cancel_from_another_process_reaches_the_one_that_drives_within_a_second(shop: Shop) -> None:
    with shop.worker() as one, shop.worker() as two:
        turn, _, _ = await _taken_up(shop, "held", one, two)
        asked = time.monotonic()
        await turn.cancel("enough")
        outcome = await turn.outcome(timeout=10)
        took = time.monotonic() - asked
    assert outcome.status == "cancelled"
    assert took < 1
