"""The bars of durable functions: the first step, results that are awaited, many timers that are pending, long lists.

`python benchmarks/processes.py` measures these bars alone.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bars import Bar, best_of
from baselines import fresh

import holdfast as hf
from holdfast.processes.keys import FIRST_RUN, PROCESS_ROLE
from holdfast.records import Parked, Started
from holdfast.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTS = 60
TIMERS = 100_000
AT_ONCE = 500
SLEEPS = 10
DAY_MS = 86_400_000
LISTINGS = 7
CROWD, STEPS, CROWDS, ROUNDS = 100, 20, 4, 15

begun: list[float] = []


@hf.process
async def first(ctx: hf.ProcessContext) -> None:
    await ctx.step("first", _begun)


async def _begun() -> None:
    begun.append(time.perf_counter())
    await asyncio.sleep(0)


@hf.process
async def naps(ctx: hf.ProcessContext, due: float) -> float:
    """How late it wakes, in seconds."""
    await ctx.sleep(max(0.001, due - time.time()))
    return time.time() - due


# ---- the first step --------------------------------------------------------------------------------------------------


async def _starts(path: Path) -> tuple[float, float]:
    """Seconds from `start` to the first step, and that one commit takes: the median of each."""
    taken: list[float] = []
    commits: list[float] = []
    async with hf.open(path, processes=[first]) as runtime:
        for number in range(STARTS):
            before = time.perf_counter()
            await runtime.store.accept_into(f"bare-{number}", "process", None, {"n": number}, key="k")
            commits.append(time.perf_counter() - before)
            begun.clear()
            before = time.perf_counter()
            process = await runtime.start(first)
            await process.result()
            taken.append(begun[0] - before)
    return statistics.median(taken), statistics.median(commits)


# ---- waiting for results ---------------------------------------------------------------------------------------------


@hf.process
async def walks(ctx: hf.ProcessContext) -> None:
    for number in range(STEPS):
        await ctx.step(f"step {number}", _nothing)


async def _nothing() -> None:
    await asyncio.sleep(0)


async def _crowd(path: Path, *, awaited: bool) -> tuple[float, float]:
    """Seconds of CPU and of time until all processes of a few crowds have ended, with or without one waiter for each.

    One crowd takes 25 to 55 commits, as its processes meet or miss each other: a few of them even that out.
    """
    async with hf.open(path, processes=[walks]) as runtime:
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(CROWDS):
            started = await asyncio.gather(*[runtime.start(walks) for _ in range(CROWD)])
            if awaited:
                await asyncio.gather(*[process.result() for process in started])
            while runtime.active:
                await asyncio.sleep(0.005)
        return time.process_time() - cpu, time.perf_counter() - wall


def _awaited(folder: Path) -> Bar:
    walls: dict[bool, list[float]] = {False: [], True: []}

    def side(*, awaited: bool) -> float:
        cpu, wall = asyncio.run(_crowd(fresh(folder / "crowd.db"), awaited=awaited))
        walls[awaited].append(wall)
        return cpu

    alone, waited = best_of(ROUNDS, lambda: side(awaited=False), lambda: side(awaited=True))
    steps = CROWDS * CROWD * STEPS
    speeds = {awaited: steps / min(taken) for awaited, taken in walls.items()}
    detail = f"CPU; {speeds[True]:,.0f} steps/s with `await process.result()` of each, {speeds[False]:,.0f} without"
    return Bar(f"process: {CROWD} x {STEPS} steps, awaited / not", alone / waited, 0.95, "at least", "x", detail)


# ---- many timers -----------------------------------------------------------------------------------------------------


async def _fill(path: Path) -> None:
    """Processes that sleep for a day."""
    async with open_store(path, durability="process") as store:
        due = store.clock.read().wall + DAY_MS

        async def one(number: int) -> None:
            name = f"process/sleeper-{number}"
            await store.open_journal(name, "process", "naps", role=PROCESS_ROLE)
            lease = await store.claim(name)
            now = store.clock.read().wall
            wait = f"{FIRST_RUN}/sleep"
            await store.open_wait(name, wait, deadline=due + number)
            records = [Started(at=now, run=FIRST_RUN, by="pid 1"), Parked(at=now, run=FIRST_RUN, waits=(wait,))]
            await store.append(lease, records, head=lease.head)
            await store.release(lease, seen=lease.wakes)

        for begin in range(0, TIMERS, AT_ONCE):
            await asyncio.gather(*[one(number) for number in range(begin, begin + AT_ONCE)])


async def _late(path: Path) -> tuple[float, float]:
    """How late the latest of some is, in ms, and by how many MB the process grew, with all others pending."""
    before = _resident()
    async with hf.open(path, processes=[naps]) as runtime:
        due = [time.time() + 0.5 + 0.1 * number for number in range(SLEEPS)]
        started = [await runtime.start(naps, at) for at in due]
        late: list[Any] = [await process.result() for process in started]
        return max(late) * 1000, _resident() - before


async def _listed(path: Path) -> tuple[float, float]:
    """Milliseconds until the newest 50 of all are listed, and until it is known that none of them is stuck."""
    async with hf.open(path, processes=[naps], drive=False) as runtime:
        lists: list[float] = []
        stuck: list[float] = []
        for _ in range(LISTINGS):
            before = time.perf_counter()
            await runtime.processes.list(status="waiting")
            between = time.perf_counter()
            await runtime.processes.stuck()
            lists.append((between - before) * 1000)
            stuck.append((time.perf_counter() - between) * 1000)
        return statistics.median(lists), statistics.median(stuck)


def _resident() -> float:
    """The memory of this process now, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def processes(folder: Path) -> Iterator[Bar]:
    """All bars of durable functions."""
    taken, commit = asyncio.run(_starts(folder / "starts.db"))
    detail = f"{taken * 1000:.2f} ms from start to the first step, one commit {commit * 1000:.2f} ms"
    yield Bar("process: start to first step, over a commit", (taken - commit) * 1000, 10, "at most", "ms", detail)
    yield _awaited(folder)
    asyncio.run(_fill(folder / "timers.db"))
    listed, stuck = asyncio.run(_listed(folder / "timers.db"))
    yield Bar("process: list the newest 50 of 100,000", listed, 50, "at most", "ms", f"median of {LISTINGS}")
    yield Bar("process: what is stuck among 100,000", stuck, 500, "at most", "ms", f"median of {LISTINGS}; all sleep")
    late, grown = asyncio.run(_late(folder / "timers.db"))
    yield Bar("process: a due timer among 100,000 is late by", late, 100, "at most", "ms", f"the latest of {SLEEPS}")
    yield Bar("process: memory for 100,000 pending timers", grown, 20, "at most", "MB", "growth while they are pending")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path(__file__).parent) as name:
        found = list(processes(Path(name)))
    for bar in found:
        print(bar.line())
    sys.exit(0 if all(bar.ok for bar in found) else 1)
