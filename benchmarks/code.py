"""The bars of programs: what a call out of one costs, made and replayed, against the bare interpreter.

The bare interpreter is the same worker in the same sandbox, driven by hand in a loop that does nothing with a call. CPU
is that of this process and of the worker together. `python benchmarks/code.py` measures them.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pydantic_monty as monty

from holdfast.messages import ToolSpec
from holdfast.sandbox import Calls, Ended, MontySandbox, ProgramLimits, Result, Returned, stubs_of
from holdfast.sandbox.execution import resource_limits
from holdfast.sandbox.launching import Launcher

SHORT, LONG, ROUNDS = 100, 10_000, 5
REPLAY_BAR, CALL_BAR = 60.0, 200.0
TICK = 1 / os.sysconf("SC_CLK_TCK")
LIMITS = ProgramLimits(seconds=120, calls=2 * LONG)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "tag": {"type": "string"}}, "required": ["n"]}
TOOLS = stubs_of([ToolSpec("fetch", "Fetch one.", SCHEMA)])


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds for one call."""

    wall: float
    ours: float
    worker: float

    @property
    def cpu(self) -> float:
        return self.ours + self.worker

    def __str__(self) -> str:
        return f"{self.wall:6.1f} us, CPU {self.cpu:6.1f} us ({self.ours:.1f} ours, {self.worker:.1f} of the worker)"


def source(calls: int) -> str:
    return f"total = 0\nfor n in range({calls}):\n    total += await fetch(n, tag='x')\ntotal"


class Clock:
    """The time that passes, ours and that of all processes that come from us."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._begun = time.perf_counter(), time.process_time(), _of_workers()

    def cost(self) -> Cost:
        wall, ours, worker = self._begun
        each = 1e6 / self._calls
        return Cost(
            (time.perf_counter() - wall) * each, (time.process_time() - ours) * each, (_of_workers() - worker) * each
        )


def _of_workers() -> float:
    return sum(_used(child) for child in _children(os.getpid()))


def _children(number: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{number}/task").iterdir():
        told = (thread / "children").read_text(encoding="ascii").split()
        found += [each for child in map(int, told) for each in (child, *_children(child))]
    return found


def _used(number: int) -> float:
    """Of all its threads, finer than clock ticks where the kernel tells."""
    try:
        threads = Path(f"/proc/{number}/task").iterdir()
        return sum(int((thread / "schedstat").read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9
    except (OSError, ValueError):
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK


def bare(calls: int) -> Cost:
    """The interpreter alone."""
    launcher = Launcher(LIMITS.memory)
    with (
        monty.Monty(binary_path=launcher.path, min_processes=1, max_processes=1) as pool,
        pool.checkout(limits=resource_limits(LIMITS, replaying=True)) as session,
    ):
        session.feed_run("0")
        clock = Clock(calls)
        snapshot = session.feed_start(source(calls))
        while not isinstance(snapshot, monty.MontyComplete):
            if isinstance(snapshot, monty.FunctionSnapshot):
                snapshot = snapshot.resume({"future": ...})
            elif isinstance(snapshot, monty.FutureSnapshot):
                snapshot = snapshot.resume({snapshot.pending_call_ids[0]: {"return_value": 1}})
        cost = clock.cost()
    launcher.close()
    return cost


async def made(sandbox: MontySandbox, calls: int) -> tuple[Cost, list[Result]]:
    """Calls that a host answers one by one. The start of the worker and the check of the program are not counted."""
    program = await sandbox.start(f"await fetch(0)\n{source(calls)}\nawait fetch(0)", tools=TOOLS, limits=LIMITS)
    step = await program.run()
    results: list[Result] = []
    clock = Clock(calls)
    while isinstance(step, Calls) and len(results) <= calls:
        given = [Result(call.id, Returned(1), call.digest) for call in step.calls]
        results += given
        step = await program.answer(given)
    cost = clock.cost()
    await program.close()
    return cost, results


async def replayed(sandbox: MontySandbox, calls: int) -> Cost:
    """The same calls from a record, to where the program waits for the last one."""
    text = f"await fetch(0)\n{source(calls)}\nawait fetch(0)"
    program = await sandbox.start(text, tools=TOOLS, limits=LIMITS)
    recorded = (await made(sandbox, calls))[1]
    clock = Clock(calls)
    step = await program.run(recorded)
    cost = clock.cost()
    assert isinstance(step, Calls), step
    await program.close()
    return cost


async def started(sandbox: MontySandbox) -> float:
    """Milliseconds from nothing to the end of a program that does nothing."""
    begun = time.perf_counter()
    program = await sandbox.start("1 + 1", tools=TOOLS)
    assert isinstance(await program.run(), Ended)
    return (time.perf_counter() - begun) * 1e3


async def main() -> int:
    async with MontySandbox() as sandbox:
        alone: list[Cost] = []
        short: list[Cost] = []
        long: list[Cost] = []
        starts: list[float] = []
        for _ in range(ROUNDS):
            alone.append(await asyncio.to_thread(bare, LONG))
            short.append((await made(sandbox, SHORT))[0])
            long.append(await replayed(sandbox, LONG))
            starts.append(await started(sandbox))
    best = min(long, key=lambda cost: cost.wall)
    call = min(short, key=lambda cost: cost.cpu)
    print(f"bare interpreter, a call      {min(alone, key=lambda cost: cost.wall)}")
    print(f"a call that is made           {call}; bar < {CALL_BAR:g} us of CPU")
    print(f"a call that is replayed       {best}; bar <= {REPLAY_BAR:g} us")
    print(f"from nothing to the end       {min(starts):6.1f} ms")
    return int(call.cpu >= CALL_BAR or best.wall > REPLAY_BAR)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
