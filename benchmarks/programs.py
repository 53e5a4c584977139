"""The bars of programs: what a call out of one costs, made, in a turn and replayed, against the bare interpreter.

The bare interpreter is the same worker in the same sandbox, driven by its own package in a loop that does nothing with
a call. CPU is that of this process and of the worker together. `python benchmarks/programs.py` measures these alone.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic_monty as monty
from bars import Bar

import holdfast as hf
from holdfast.messages import ToolSpec
from holdfast.sandbox import CallResult, CallValue, MontySandbox, PendingCalls, ProgramEnd, ProgramLimits, stubs_of
from holdfast.sandbox.worker import Launcher
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

SHORT, LONG, ROUNDS, MORE = 100, 10_000, 5, 5
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


@contextmanager
def _at_once(launcher: Launcher) -> Generator[str]:
    """The same launcher without the line that it waits for: the interpreter's own package does not send one."""
    shell, _, script = launcher.command
    waits = "read -r go || exit 125\n"
    assert waits in script
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "launcher")
        path.write_text(f"#!{shell}\n{script.replace(waits, '')}", encoding="utf-8")
        path.chmod(0o700)
        yield str(path)


def bare(calls: int) -> Cost:
    """The interpreter alone."""
    launcher = Launcher(LIMITS.memory)
    with (
        _at_once(launcher) as path,
        monty.Monty(binary_path=path, min_processes=1, max_processes=1) as pool,
        pool.checkout(limits={"max_suspensions": 4 * calls}) as session,
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


async def made(sandbox: MontySandbox, calls: int) -> tuple[Cost, list[CallResult]]:
    """Calls that a host answers one by one. The start of the worker and the check of the program are not counted."""
    program = await sandbox.start(f"await fetch(0)\n{source(calls)}\nawait fetch(0)", tools=TOOLS, limits=LIMITS)
    step = await program.run()
    results: list[CallResult] = []
    clock = Clock(calls)
    while isinstance(step, PendingCalls) and len(results) <= calls:
        given = [CallResult(asked.id, CallValue(1), asked.digest) for asked in step.calls]
        results += given
        step = await program.answer(given)
    cost = clock.cost()
    await program.close()
    return cost, results


async def replayed(sandbox: MontySandbox, calls: int) -> Cost:
    """The same calls from a record, to where the program waits for the last one."""
    words = f"await fetch(0)\n{source(calls)}\nawait fetch(0)"
    program = await sandbox.start(words, tools=TOOLS, limits=LIMITS)
    recorded = (await made(sandbox, calls))[1]
    clock = Clock(calls)
    step = await program.run(recorded)
    cost = clock.cost()
    assert isinstance(step, PendingCalls), step
    await program.close()
    return cost


async def started(sandbox: MontySandbox) -> float:
    """Milliseconds from nothing to the end of a program that does nothing."""
    begun = time.perf_counter()
    program = await sandbox.start("1 + 1", tools=TOOLS)
    assert isinstance(await program.run(), ProgramEnd)
    return (time.perf_counter() - begun) * 1e3


async def turned(calls: int) -> Cost:
    """Calls of a program in a turn of an agent, each recorded, on a store in memory: without any sync."""
    clocks: list[Clock] = []
    costs: list[Cost] = []

    @hf.tool(read_only=True)
    async def fetch(n: int, tag: str = "") -> int:  # noqa: ARG001
        """Fetch one."""
        if n < 0:
            clocks.append(Clock(calls))
        elif n == calls - 1:
            costs.append(clocks[0].cost())
        return 1

    model = ScriptedModel([call("run_program", source=f"await fetch(-1)\n{source(calls)}"), text("done")])
    agent = hf.Agent("bench", model=model, tools=[fetch], mode="code", limits=hf.Limits(tool_calls=2 * calls))
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await runtime.run(agent, "go")
    assert outcome.text == "done", outcome
    return costs[0]


async def _measured() -> Iterator[Bar]:
    alone: list[Cost] = []
    short: list[Cost] = []
    turns: list[Cost] = []
    long: list[Cost] = []
    starts: list[float] = []
    async with MontySandbox() as sandbox:
        for _ in range(ROUNDS):
            alone.append(await asyncio.to_thread(bare, LONG))
            long.append(await replayed(sandbox, LONG))
            starts.append(await started(sandbox))
            short += [(await made(sandbox, SHORT))[0] for _ in range(MORE)]
            turns += [await turned(SHORT) for _ in range(MORE)]
            print(".", end="", file=sys.stderr, flush=True)
    least = min(alone, key=lambda cost: cost.wall)
    out = min(short, key=lambda cost: cost.cpu)
    turn = min(turns, key=lambda cost: cost.cpu)
    again = min(long, key=lambda cost: cost.wall)
    detail = f"from nothing to the end of a program {min(starts):.1f} ms"
    return iter(
        (
            Bar(
                "program: CPU of a call, the sandbox alone", out.cpu, CALL_BAR, "at most", "us", f"{out}; bare {least}"
            ),
            Bar("program: CPU of a call in a turn", turn.cpu, CALL_BAR, "at most", "us", str(turn)),
            Bar("program: replay of 10,000 calls, each", again.wall, REPLAY_BAR, "at most", "us", f"{again}; {detail}"),
        )
    )


def programs() -> Iterator[Bar]:
    """All bars of programs."""
    return asyncio.run(_measured())


if __name__ == "__main__":
    found = list(programs())
    print(file=sys.stderr)
    for bar in found:
        print(bar.line())
    raise SystemExit(int(not all(bar.ok for bar in found)))
