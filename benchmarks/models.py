"""The bars of models: a durable agent over HTTP, against the same agent written by hand on the same HTTP client.

The provider is a process of its own, so that its time is not ours. `python benchmarks/models.py profile` shows where
the time of a run goes, `... profile crowd` that of many at once; `... figures` measures these bars alone.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import io
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from bars import Bar, best_of, median_of
from baselines import InLoop, InThread, bare_run, fresh
from turns import _lags, _rows, look  # pyright: ignore[reportPrivateUsage]

import holdfast as hf
from holdfast.models.chat import DIALECT
from holdfast.models.dialect import NO_STREAM, Endpoint
from holdfast.models.http import HttpModel
from holdfast.testing import CutStream, FakeProvider, call, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from baselines import Save

    from holdfast.testing.scripted import ScriptItem
    from holdfast.tools import AnyTool

SHORT, LONG = 20, 100
ROUNDS = 7
CHUNKS = 8
PACE = 0.001
"""Seconds between the chunks of a stream: enough that each is a packet that has to be read by itself."""
CROWD, CROWD_STEPS, CROWD_ROUNDS = 200, 20, 3
DIES_AT, DIES_AFTER = 10, 5


# ---- the provider ----------------------------------------------------------------------------------------------------


def script(steps: int) -> list[ScriptItem]:
    """Three calls in each step, then an answer."""
    return [*[[call(look, item=3 * step + number) for number in range(3)] for step in range(steps)], text("Done.")]


@contextmanager
def served(steps: int, chunks: int = 1, pace: float = 0.0) -> Generator[str]:
    """The address of a provider in a process of its own."""
    command = [sys.executable, str(Path(__file__)), "serve", str(steps), str(chunks), str(pace)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()  # it serves until nobody can tell it anything any more
            process.wait(timeout=10)


async def serve(steps: int, chunks: int, pace: float) -> None:
    gc.disable()  # it keeps nothing, and shall not pause while others are measured
    async with FakeProvider(script(steps), chunks=chunks, pace=pace, keep=0) as provider:
        print(provider.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def agent(url: str, tool: AnyTool = look, *, streamed: bool = False) -> hf.Agent:
    flags = frozenset[str]() if streamed else frozenset({NO_STREAM})
    endpoint = Endpoint(provider="fake", dialect="chat", base_url=f"{url}/v1", auth="none", flags=flags)
    model = HttpModel(endpoint, "m", DIALECT)
    return hf.Agent("bench", model=model, tools=[tool], limits=hf.Limits(steps=None))


# ---- one run ---------------------------------------------------------------------------------------------------------


async def _twice(steps: int, run: Callable[[str], Awaitable[int]]) -> float:
    """CPU time of a step in milliseconds, all threads: of the second run, when connections and code are warm."""
    taken = 0.0
    for name in ("first", "second"):
        begun = time.process_time()
        asked = await run(name)
        taken = time.process_time() - begun
        assert asked == steps + 1
    return taken * 1000 / steps


@asynccontextmanager
async def by_hand(
    url: str, journal: Callable[[], InLoop | InThread] | None = None, *, streamed: bool = False
) -> AsyncGenerator[Callable[[str], Awaitable[int]]]:
    """An agent by hand, ready to run; with `journal` it saves every effect. Ours always streams, this one need not."""
    save: Save | None = None if journal is None else journal()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield lambda name: bare_run(session, url, look, name, save, streamed=streamed)
    if isinstance(save, InLoop | InThread):
        save.close()


@asynccontextmanager
async def durable(
    url: str, path: Path, *, streamed: bool = False, watched: bool = False
) -> AsyncGenerator[Callable[[str], Awaitable[int]]]:
    """Ours, ready to run; `watched`: somebody reads every event of the turn meanwhile."""
    bench = agent(url, streamed=streamed)
    async with hf.open(fresh(path), agents=[bench]) as runtime:

        async def run(name: str) -> int:
            turn = await runtime.session(name, agent=bench).send("Go.")
            if watched:
                async for _ in turn.events():
                    pass
            outcome = await turn.outcome()
            assert outcome.ok, outcome
            return outcome.steps

        yield run


@dataclass(frozen=True)
class Sides:
    """CPU of a step in milliseconds."""

    loop: float
    journal: float
    ours: float
    watched: float

    def __str__(self) -> str:
        return f"{self.ours:.2f} ms; by hand {self.loop:.2f}, with a journal {self.journal:.2f}"


def _sides(folder: Path, url: str, steps: int, *, streamed: bool = False) -> Sides:
    async def bare() -> float:
        async with by_hand(url, streamed=streamed) as run:
            return await _twice(steps, run)

    async def journal(kind: Callable[[Path], InLoop | InThread]) -> float:
        async with by_hand(url, lambda: kind(folder / "by-hand.db"), streamed=streamed) as run:
            return await _twice(steps, run)

    async def ours(*, watched: bool) -> float:
        async with durable(url, folder / "durable.db", streamed=streamed, watched=watched) as run:
            return await _twice(steps, run)

    # Of the two ways to keep a journal by hand, the one with less CPU counts.
    loop, in_loop, in_thread, own, watched = best_of(
        ROUNDS,
        lambda: asyncio.run(bare()),
        lambda: asyncio.run(journal(InLoop)),
        lambda: asyncio.run(journal(InThread)),
        lambda: asyncio.run(ours(watched=False)),
        lambda: asyncio.run(ours(watched=True)),
    )
    return Sides(loop, min(in_loop, in_thread), own, watched)


def single_runs(folder: Path) -> list[Bar]:
    with served(SHORT) as url:
        short = _sides(folder, url, SHORT)
    with served(LONG) as url:
        long = _sides(folder, url, LONG)
    with served(SHORT, CHUNKS, PACE) as url:
        chunked = _sides(folder, url, SHORT, streamed=True)
    return [
        Bar("a step over HTTP, against a bare journal", short.ours / short.journal, 1.5, "at most", "x", str(short)),
        Bar("a step over HTTP, against a bare loop", short.ours / short.loop, 4, "at most", "x", ""),
        Bar("the same at 100 steps, against a bare loop", long.ours / long.loop, 2, "at most", "x", str(long)),
        Bar("the same at 100 steps, against ours at 20", long.ours / short.ours, 1.3, "at most", "x", ""),
        Bar(
            f"{CHUNKS} chunks a step, against a bare journal",
            chunked.ours / chunked.journal,
            1.5,
            "at most",
            "x",
            str(chunked),
        ),
        Bar(
            f"{CHUNKS} chunks a step and watched, against a bare journal",
            chunked.watched / chunked.journal,
            1.3,
            "at most",
            "x",
            f"{chunked.watched:.2f} ms; watching a step of whole replies: {short.watched - short.ours:.2f} ms",
        ),
        Bar(f"{CHUNKS} chunks a step, against a bare loop", chunked.ours / chunked.loop, 4, "at most", "x", ""),
    ]


# ---- many runs at once -----------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """How late the event loop was, over all rounds, and how long garbage was collected; in milliseconds."""

    lags: list[float] = field(default_factory=list[float])
    collections: list[float] = field(default_factory=list[float])


async def _at_once(run: Callable[[str], Awaitable[int]], seen: Seen | None = None) -> float:
    """Steps per second, when the connections stand."""
    await asyncio.gather(*[run(f"warm-{number}") for number in range(CROWD)])
    begun = time.perf_counter()
    async with nullcontext() if seen is None else _lags(seen.lags, seen.collections):
        asked = await asyncio.gather(*[run(f"run-{number}") for number in range(CROWD)])
    taken = time.perf_counter() - begun
    assert set(asked) == {CROWD_STEPS + 1}
    return CROWD * CROWD_STEPS / taken


def crowd_over_http(folder: Path) -> list[Bar]:
    seen = Seen()

    async def bare() -> float:
        async with by_hand(url) as run:
            return await _at_once(run)

    async def journal(kind: Callable[[Path], InLoop | InThread]) -> float:
        async with by_hand(url, lambda: kind(folder / "by-hand.db")) as run:
            return await _at_once(run)

    async def ours() -> float:
        async with durable(url, folder / "durable.db") as run:
            return await _at_once(run, seen)

    with served(CROWD_STEPS) as url:
        loop, in_loop, in_thread, own = median_of(
            CROWD_ROUNDS,
            lambda: asyncio.run(bare()),
            lambda: asyncio.run(journal(InLoop)),
            lambda: asyncio.run(journal(InThread)),
            lambda: asyncio.run(ours()),
        )
    best = max(in_loop, in_thread)
    collection = f"longest garbage collection {max(seen.collections, default=0):.0f}"
    return [
        Bar(
            f"{CROWD} runs over HTTP, against a bare journal",
            own / best,
            1.5,
            "at least",
            "x",
            f"{own:,.0f} steps/s of {in_thread:,.0f}/s with a thread that commits, {in_loop:,.0f}/s without; "
            f"no journal: {loop:,.0f}/s",
        ),
        Bar(
            f"{CROWD} runs over HTTP: lag p99",
            statistics.quantiles(seen.lags, n=100)[-1],
            50,
            "at most",
            "ms",
            f"median {statistics.median(seen.lags):.1f}, worst {max(seen.lags):.0f} of {len(seen.lags)}; {collection}",
        ),
    ]


# ---- a stream that dies ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disturbed:
    """What a run took, with or without a stream that dies."""

    requests: int
    rows: int
    tools: int
    tokens: int
    seconds: float


async def _disturbed(path: Path, *, dies: bool) -> Disturbed:
    done = 0

    @hf.tool(read_only=True, name="look")
    async def counted(item: int) -> dict[str, int]:
        """How many there are of an item."""
        nonlocal done
        done += 1
        return {"item": item, "stock": 3}

    faults = {DIES_AT: CutStream(DIES_AFTER, clean=False)} if dies else {}
    async with FakeProvider(script(SHORT), chunks=CHUNKS, faults=faults) as provider:
        bench = agent(provider.url, counted)
        async with hf.open(fresh(path), agents=[bench]) as runtime:
            begun = time.perf_counter()
            outcome = await runtime.run(bench, "Go.", session="one")
            taken = time.perf_counter() - begun
        assert outcome.ok, outcome
        assert outcome.steps == SHORT + 1
        rows = len(_rows(path))
        return Disturbed(len(provider.requests), rows, done, outcome.usage.total, taken)


def dying_stream(folder: Path) -> list[Bar]:
    """A stream that dies costs one more request; records, tools and tokens are those of a run without it."""
    path = folder / "dying.db"
    quiet = asyncio.run(_disturbed(path, dies=False))
    met = asyncio.run(_disturbed(path, dies=True))
    print(".", end="", file=sys.stderr, flush=True)
    assert quiet.requests == SHORT + 1
    more = {
        "records": met.rows - quiet.rows,
        "tool runs": met.tools - quiet.tools,
        "tokens": met.tokens - quiet.tokens,
    }
    told = ", ".join(f"{count} {what}" for what, count in more.items())
    pause = f"{met.seconds - quiet.seconds:.2f} s later, most of it the pause before the retry"
    name = f"a stream that dies after {DIES_AFTER} chunks: "
    return [
        Bar(f"{name}requests", met.requests - quiet.requests, 1, "at most", "", f"more than without; {pause}"),
        Bar(f"{name}else", sum(map(abs, more.values())), 0, "at most", "", f"more than without: {told}"),
    ]


# ---- where the time goes ---------------------------------------------------------------------------------------------


def profile(what: str = "run", lines: int = 30) -> str:
    """The functions that take the most time themselves, in the thread of the event loop."""

    async def runs(path: Path, url: str) -> None:
        async with durable(url, path) as run:
            if what == "crowd":
                await _at_once(run)
            else:
                for number in range(10):
                    await run(f"run-{number}")

    kinds = {
        "run": (SHORT, 1, 0.0),
        "long": (LONG, 1, 0.0),
        "chunks": (SHORT, CHUNKS, PACE),
        "crowd": (CROWD_STEPS, 1, 0.0),
    }
    if what not in kinds:
        raise SystemExit(f"there is no profile of {what!r}; choose from {', '.join(kinds)}")
    with _folder() as folder, served(*kinds[what]) as url:
        asyncio.run(runs(folder / "profile.db", url))  # imports, schemas
        profiler = cProfile.Profile()
        profiler.runcall(lambda: asyncio.run(runs(folder / "profile.db", url)))
    told = io.StringIO()
    pstats.Stats(profiler, stream=told).strip_dirs().sort_stats("tottime").print_stats(lines)
    return told.getvalue()


@contextmanager
def _folder() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path(__file__).parent) as name:
        yield Path(name)


def over_http(folder: Path) -> list[Bar]:
    return [*single_runs(folder), *crowd_over_http(folder), *dying_stream(folder)]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", steps, chunks, pace]:
            asyncio.run(serve(int(steps), int(chunks), float(pace)))
        case ["profile"]:
            print(profile())
        case ["profile", what]:
            print(profile(what))
        case ["figures"]:
            with _folder() as place:
                found = over_http(place)
            print(*["", *[bar.line() for bar in found]], sep="\n")
        case _:
            sys.exit("python benchmarks/models.py figures | profile [run|long|chunks|crowd]")
