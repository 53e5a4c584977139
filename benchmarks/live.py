"""The bars of live events between processes: their delay with many watchers, and what they cost the driving process.

`python benchmarks/live.py [PROCESSES]` measures these bars alone, with the watchers in so many processes.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bars import Bar

import holdfast as hf
from holdfast.messages import ModelReply, StreamEnd, StreamStart, TextChunk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

WATCHERS = 50
PROCESSES = 2
"""The processes that the watchers share."""
SESSIONS = 10
"""Sessions that are driven at once; each has five watchers."""
CHUNKS, PAUSE = 300, 0.01
"""What each model writes: about a hundred words a second."""
ROUNDS = 4


class Writer:
    """A model that writes at a steady pace; each word is the time at which it was written."""

    name = "bench:writer"

    async def stream(self, request: hf.ModelRequest) -> AsyncIterator[hf.StreamEvent]:
        yield StreamStart(self.name)
        begun = time.monotonic()
        for number in range(CHUNKS):
            await asyncio.sleep(max(0.0, begun + number * PAUSE - time.monotonic()))
            yield TextChunk(f"{time.monotonic():.6f} ")
        yield StreamEnd(ModelReply((hf.Text("Done."),), "stop", model=self.name))


# ---- a process of watchers -------------------------------------------------------------------------------------------


async def _watch(path: str, watchers: int) -> None:
    """Follow the sessions, and print how late each word came, in seconds, and how many gaps there were."""
    late: list[float] = []
    gaps = 0

    async def follow(runtime: hf.Runtime, session: str) -> None:
        nonlocal gaps
        async for event in runtime.session(session).events():
            if isinstance(event, hf.TextDelta):
                now = time.monotonic()
                late.extend(now - float(word) for word in event.text.split())
            gaps += isinstance(event, hf.events.Gap)
            if isinstance(event, hf.TurnCompleted):
                return

    async with hf.open(path, drive=False) as runtime:
        names = [f"s{number % SESSIONS}" for number in range(watchers)]
        tasks = [asyncio.create_task(follow(runtime, name)) for name in names]
        await asyncio.sleep(0.2)
        print("ready", flush=True)
        await asyncio.gather(*tasks)
    print(json.dumps({"late": late, "gaps": gaps}), flush=True)


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@asynccontextmanager
async def _watching(path: Path, watchers: int, processes: int) -> AsyncGenerator[list[subprocess.Popen[str]]]:
    """Processes that follow the sessions of a store, once all of them do."""
    command = [sys.executable, __file__, "--watch", str(path), str(watchers // max(1, processes))]
    started = [_start(command) for _ in range(processes)]
    try:
        for process in started:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


# ---- the driving process ---------------------------------------------------------------------------------------------


async def _drive(path: Path, watchers: int, processes: int) -> tuple[float, list[float], int]:
    """CPU of the driving process in seconds, the delays that the watchers saw, and their gaps."""
    agent = hf.Agent("writer", model=Writer())
    late: list[float] = []
    gaps = 0
    async with hf.open(path, agents=[agent]) as runtime, _watching(path, watchers, processes) as started:
        before = time.process_time()
        turns = [await runtime.session(f"s{number}", agent=agent).send("Go.") for number in range(SESSIONS)]
        for turn in turns:
            await turn.outcome()
        used = time.process_time() - before
        for process in started:
            assert process.stdout is not None
            told = json.loads(await asyncio.to_thread(process.stdout.readline))
            late += told["late"]
            gaps += told["gaps"]
    return used, late, gaps


def live(folder: Path, processes: int = PROCESSES) -> list[Bar]:
    alone: list[float] = []
    watched: list[float] = []
    late: list[float] = []
    gaps = 0
    for number in range(ROUNDS):
        used, _, _ = asyncio.run(_drive(folder / f"alone-{number}.db", 0, 0))
        alone.append(used)
        used, seen, missed = asyncio.run(_drive(folder / f"watched-{number}.db", WATCHERS, processes))
        watched.append(used)
        late += seen
        gaps += missed
        print(".", end="", file=sys.stderr, flush=True)
    words = ROUNDS * WATCHERS * CHUNKS
    p99 = statistics.quantiles(late, n=100)[98] * 1000
    time_of_run = CHUNKS * PAUSE
    more = 100 * (min(watched) - min(alone)) / time_of_run
    who = f"{WATCHERS} watchers in {processes} processes, {SESSIONS} sessions"
    return [
        Bar(
            "live events in other processes, delay p99",
            p99,
            100,
            "at most",
            "ms",
            f"{who}; median {statistics.median(late) * 1000:.1f} ms, latest {max(late) * 1000:.0f} ms; "
            f"{len(late):,} of {words:,} words, {gaps} gaps",
        ),
        Bar(
            "live events in other processes, CPU of the driver",
            more,
            5,
            "at most",
            "%",
            f"of a core, more than without watchers: {min(watched):.3f} of {min(alone):.3f} s in {time_of_run:.1f} s",
        ),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--watch"]:
        asyncio.run(_watch(sys.argv[2], int(sys.argv[3])))
    else:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path(__file__).parent) as place:
            for bar in live(Path(place), int(sys.argv[1]) if sys.argv[1:] else PROCESSES):
                print(bar.line())
