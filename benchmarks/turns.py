"""The bars of turns and sessions: many at once, the loop alone, a long turn again, a long session, parked sessions.

`python benchmarks/turns.py profile` shows where the time of the loop goes, `... profile crowd` that of many sessions.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import io
import os
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
from bars import Bar, best_of, median_of
from baselines import Row, commit_each, fresh, work_and_commit

import holdfast as hf
from holdfast import records
from holdfast.messages import ModelRequest, Usage
from holdfast.store import StoreLimits
from holdfast.telemetry import Telemetry
from holdfast.testing import ScriptedModel, call, reply, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator

    from holdfast.records import Status
    from holdfast.testing.scripted import ScriptReply
    from holdfast.tools import AnyTool

ROUNDS = 5
CROWD_ROUNDS = 3
CROWD = 200
STEPS = 5
SHORT, LONG = 20, 100
REDRIVEN = 2_500
TRACED_TURNS = 5
TURNS = 1_000
FIRST_TURNS, ENDLESS = 9, 9_999
GROWN_AT_ONCE = 20
WINDOW = 2_500
WARM_TURNS = 10
COLD_ROUNDS = 5
WARM = 2_500
PARKED_FEW, PARKED_MANY = 100, 10_000
PARKED_AT_ONCE = 100
PARKED_MB = 2
"""Two processes that do the same differ by half of this. One task for each session would take fifty."""


# ---- the work --------------------------------------------------------------------------------------------------------


@hf.tool(read_only=True)
async def look(item: int) -> dict[str, int]:
    """How many there are of an item."""
    return {"item": item, "stock": 3}


@hf.tool
async def book(item: int) -> dict[str, int]:
    """Book an item: never to be repeated."""
    return {"item": item, "booked": 1}


@hf.tool(read_only=True)
async def approve(ctx: hf.Context) -> str:
    """Wait for a person."""
    return await ctx.wait("approval")


def agent(tool: AnyTool, steps: int) -> hf.Agent:
    """A model that asks for three calls of `tool` in each of its steps, then answers."""
    work = [[call(tool, item=number) for number in range(3)] for _ in range(steps)]
    model = ScriptedModel([*work, text("Done.")], keep=0)
    # A policy is needed where a tool changes something. That each step is the same is meant.
    policy = None if tool.read_only else [hf.allow(tool.name)]
    return hf.Agent("bench", model=model, tools=[tool], limits=hf.Limits(steps=None, repeats=None), policy=policy)


# ---- many sessions at once -------------------------------------------------------------------------------------------


@dataclass
class Crowd:
    """What was seen of many sessions at once, over all rounds."""

    tool: AnyTool
    rows: list[Row] = field(default_factory=list[Row])
    lags: list[float] = field(default_factory=list[float])
    collections: list[float] = field(default_factory=list[float])

    async def run(self, path: Path, limits: StoreLimits | None = None, *, watched: bool = True) -> float:
        """Durable steps per second."""
        bench = agent(self.tool, STEPS)
        async with hf.open(fresh(path), agents=[bench], limits=limits) as runtime:
            names = [f"session-{number}" for number in range(CROWD)]
            begun = time.perf_counter()
            async with _lags(self.lags, self.collections) if watched else nullcontext():
                outcomes = await asyncio.gather(*[runtime.run(bench, "Go.", session=name) for name in names])
            taken = time.perf_counter() - begun
        assert all(outcome.ok and outcome.steps == STEPS + 1 for outcome in outcomes)
        return CROWD * STEPS / taken

    def committed_together(self, path: Path) -> float:
        speed = asyncio.run(self.run(path))
        self.rows = _rows(path)
        return speed

    def committed_apart(self, path: Path) -> float:
        """The same runtime, with one command in each transaction."""
        return asyncio.run(self.run(path, StoreLimits(batch=1), watched=False))

    def by_hand(self, path: Path) -> float:
        """The same model, tools and records without a runtime, each record committed by itself."""
        model = ScriptedModel([text("Done.")], keep=0)
        request = ModelRequest(messages=(), position=0)
        work: dict[str | None, Callable[[], Awaitable[object]]] = {
            "model_call": lambda: model.respond(request),
            "tool_call": lambda: self.tool(item=1),
            "sync_environment": _nothing,
            None: _nothing,
        }
        sessions: dict[str, list[tuple[Callable[[], Awaitable[object]], Row]]] = {}
        for row in self.rows:
            ask = getattr(records.decode(row[2]), "ask", None)
            sessions.setdefault(row[0], []).append((work[ask and ask.kind], row))
        return CROWD * STEPS / work_and_commit(path, list(sessions.values()))

    def bare(self, path: Path) -> float:
        """The rows alone, one after the other in one thread: nobody works, nobody waits for an answer."""
        return CROWD * STEPS / commit_each(path, self.rows, "keyed")


async def _nothing() -> None:
    pass


@asynccontextmanager
async def _lags(seen: list[float], collections: list[float]) -> AsyncGenerator[None]:
    """How late the event loop is for somebody who wants 5 ms of sleep; and how long the garbage collector stops all.

    In milliseconds.
    """

    async def doze() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.005)
            seen.append((time.perf_counter() - begun) * 1000 - 5)

    def watch(phase: str, _: dict[str, int]) -> None:
        now = time.perf_counter() * 1000
        if phase == "start":
            collections.append(-now)
        else:
            collections[-1] += now

    gc.callbacks.append(watch)
    task = asyncio.create_task(doze())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gc.callbacks.remove(watch)


def _rows(path: Path) -> list[Row]:
    db: Any = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    query = "SELECT j.id, r.seq, r.body FROM records r JOIN journals j ON j.no = r.journal ORDER BY r.pos"
    rows = db.execute(query).fetchall()
    db.close()
    return rows


def _crowd(folder: Path, tool: AnyTool, what: str) -> list[Bar]:
    crowd = Crowd(tool)
    together, apart, by_hand, bare = median_of(
        CROWD_ROUNDS,
        lambda: crowd.committed_together(folder / "crowd.db"),
        lambda: crowd.committed_apart(folder / "apart.db"),
        lambda: crowd.by_hand(folder / "by-hand.db"),
        lambda: crowd.bare(folder / "bare.db"),
    )
    lags = crowd.lags
    each = f"{len(crowd.rows) / CROWD / STEPS:.1f} records a step"
    collection = f"longest garbage collection {max(crowd.collections, default=0):.0f}"
    return [
        Bar(
            f"{CROWD} sessions, {what}: group commit",
            together / apart,
            2,
            "at least",
            "x",
            f"{together:,.0f} steps/s of {apart:,.0f}/s with one command in a transaction; {each}; "
            f"{together / by_hand:.2f} x of {by_hand:,.0f}/s by hand, each record committed alone; "
            f"rows alone: {bare:,.0f}/s",
        ),
        Bar(
            f"{CROWD} sessions, {what}: lag p99",
            statistics.quantiles(lags, n=100)[-1],
            50,
            "at most",
            "ms",
            f"median {statistics.median(lags):.1f}, worst {max(lags):.0f} of {len(lags)}; {collection}",
        ),
    ]


def crowds(folder: Path) -> list[Bar]:
    return [*_crowd(folder, look, "3 reads"), *_crowd(folder, book, "3 writes")]


# ---- the loop alone --------------------------------------------------------------------------------------------------


async def _cpu(steps: int, path: Path | None, tool: AnyTool = look) -> float:
    """CPU time of one step in milliseconds, all threads, from the input to the outcome."""
    bench = agent(tool, steps)
    async with hf.open(None if path is None else fresh(path), agents=[bench]) as runtime:
        begun = time.process_time()
        outcome = await runtime.run(bench, "Go.")
        taken = time.process_time() - begun
    assert outcome.ok
    assert outcome.steps == steps + 1
    return taken * 1000 / steps


def loop_alone(folder: Path) -> list[Bar]:
    path = folder / "loop.db"
    short, long, once, stored_short, stored_long = best_of(
        2 * ROUNDS,
        lambda: asyncio.run(_cpu(SHORT, None)),
        lambda: asyncio.run(_cpu(LONG, None)),
        lambda: asyncio.run(_cpu(LONG, None, book)),
        lambda: asyncio.run(_cpu(SHORT, path)),
        lambda: asyncio.run(_cpu(LONG, path)),
    )
    stored = f"on SQLite FULL with its writer {stored_short:.2f} and {stored_long:.2f}"
    detail = f"{short:.2f} at {SHORT} steps, {long:.2f} at {LONG}; tools done once {once:.2f}; {stored}"
    return [
        Bar("CPU of a step of 1 model and 3 tool calls", max(short, long), 0.6, "at most", "ms", detail),
        Bar("CPU of a step at 100 steps, against 20", long / short, 1.3, "at most", "x", ""),
    ]


# ---- tracing ---------------------------------------------------------------------------------------------------------

_COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


async def _cpu_of_turns(to: Telemetry | None) -> float:
    """CPU time of one step in milliseconds, all threads, until the runtime has closed and the spans are sent."""
    bench = agent(look, LONG)
    async with hf.open(None, agents=[bench], telemetry=to) as runtime:
        begun = time.process_time()
        for _ in range(TRACED_TURNS):
            outcome = await runtime.run(bench, "Go.")
            assert outcome.steps == LONG + 1
    return (time.process_time() - begun) * 1000 / (TRACED_TURNS * LONG)


def tracing(_: Path) -> list[Bar]:
    """The price of a step with its four spans, sent to a collector in another process."""
    with subprocess.Popen([sys.executable, "-c", _COLLECTOR], stdout=subprocess.PIPE, text=True) as collector:
        try:
            assert collector.stdout is not None
            address = f"http://127.0.0.1:{collector.stdout.readline().strip()}"
            spans, all_of_it = Telemetry(endpoint=address, metrics=False), Telemetry(endpoint=address)
            asyncio.run(_cpu_of_turns(all_of_it))  # loads OpenTelemetry
            off, on, measured = best_of(
                2 * ROUNDS,
                lambda: asyncio.run(_cpu_of_turns(None)),
                lambda: asyncio.run(_cpu_of_turns(spans)),
                lambda: asyncio.run(_cpu_of_turns(all_of_it)),
            )
        finally:
            collector.kill()
    detail = f"{off:.3f} without, {on:.3f} with spans, {measured:.3f} with metrics too; 1 model and 3 tool calls"
    return [Bar("CPU that tracing adds to a step", measured - off, 0.15, "at most", "ms", detail)]


# ---- a long turn again -----------------------------------------------------------------------------------------------


class Halting:
    """Asks for three calls in each step, and waits for ever when it is asked for the last reply."""

    def __init__(self, steps: int) -> None:
        self.asked = asyncio.Event()
        self._steps = steps

    async def __call__(self, request: ModelRequest) -> ScriptReply:
        if request.position == self._steps:
            self.asked.set()
            await asyncio.Event().wait()
        return [call(look, item=number) for number in range(3)]


async def _until_asked(path: Path) -> float:
    """Seconds from opening until the model is asked for the reply that is not recorded."""
    script = Halting(REDRIVEN)
    model = ScriptedModel(script, keep=0)
    # Each step repeats the one before: without `repeats=None` the loop guard would end the turn.
    bench = hf.Agent("bench", model=model, tools=[look], limits=hf.Limits(steps=None, repeats=None))
    begun = time.perf_counter()
    async with hf.open(path, agents=[bench], durability="process") as runtime:
        await runtime.session("long", agent=bench).send("Go.", key="only")
        await script.asked.wait()
        taken = time.perf_counter() - begun
        await runtime.close(grace=0)
    return taken


def redrive(folder: Path) -> list[Bar]:
    path = fresh(folder / "redrive.db")
    first = asyncio.run(_until_asked(path))
    before = len(_rows(path))
    (again,) = median_of(ROUNDS, lambda: asyncio.run(_until_asked(path)))
    assert len(_rows(path)) == before + ROUNDS, "nothing but one `resumed` for each drive"
    detail = f"{REDRIVEN * 4:,} effects; open until the model is asked; the first time {first:.1f} s"
    return [Bar("re-driving a turn of 10,000 effects", again, 1.0, "at most", "s", detail)]


# ---- a long session --------------------------------------------------------------------------------------------------


def _call_then_answer(request: ModelRequest) -> ScriptReply:
    return text("Done.") if (request.position or 0) % 2 else call(look, item=1)


@dataclass
class LongSession:
    """What each turn of one session cost: bytes handed to the kernel, pages of the file, milliseconds."""

    written: list[int] = field(default_factory=list[int])
    pages: list[int] = field(default_factory=list[int])
    ms: list[float] = field(default_factory=list[float])

    async def run(self, path: Path) -> None:
        bench = hf.Agent("bench", model=ScriptedModel(_call_then_answer, keep=0), tools=[look])
        async with hf.open(fresh(path), agents=[bench], durability="process") as runtime:
            db: Any = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
            for _ in range(TURNS):
                wrote, begun = _wrote(), time.perf_counter()
                async with asyncio.timeout(60):
                    assert (await runtime.run(bench, "Go on.", session="long")).ok
                self.ms.append((time.perf_counter() - begun) * 1000)
                self.written.append(_wrote() - wrote)
                self.pages.append(db.execute("PRAGMA page_count").get)
            db.close()


def _wrote() -> int:
    """Bytes that this process has handed to the kernel, in files of any kind."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def _bytes_per_turn(rows: list[Row]) -> list[int]:
    """Bytes of the records that each turn appended."""
    sizes: list[int] = []
    for _, _, body in rows[1:]:
        if b'"t":"started"' in body:
            sizes.append(0)
        sizes[-1] += len(body)
    assert len(sizes) == TURNS
    return sizes


def long_session(folder: Path) -> list[Bar]:
    session = LongSession()
    asyncio.run(session.run(folder / "turns.db"))
    sizes = _bytes_per_turn(_rows(folder / "turns.db"))
    print(".", end="", file=sys.stderr, flush=True)
    pages = (session.pages[109] - session.pages[9], session.pages[-1] - session.pages[-101])
    written = (sum(session.written[10:110]) // 100, sum(session.written[-100:]) // 100)
    ms = (statistics.median(session.ms[5:15]), statistics.median(session.ms[-10:]))
    return [
        Bar(
            "bytes of turn 1,000, against turn 10",
            sizes[-1] / sizes[9],
            1.2,
            "at most",
            "x",
            f"{sizes[-1]} of {sizes[9]}",
        ),
        Bar(
            "file growth, last 100 turns against turns 10 on",
            pages[1] / pages[0],
            1.2,
            "at most",
            "x",
            f"{pages[1]} of {pages[0]} pages; written to files per turn: {written[1]:,} of {written[0]:,} bytes; "
            f"time of a turn: {ms[1]:.1f} of {ms[0]:.1f} ms",
        ),
    ]


# ---- a session of 10,000 turns ---------------------------------------------------------------------------------------

SUMMARY = "## Goal\nLook.\n## Decisions\nnone\n## Facts\nnone\n## Files\nnone\n## Open points\nnone"


@hf.tool(read_only=True)
async def recite(item: int) -> str:
    """Some text about an item."""
    return f"item {item}: " + "word " * 150


def _endless() -> hf.Agent:
    """An agent whose window is full after a few turns: from then on, only the length of the journal differs."""

    def answer(request: ModelRequest) -> ScriptReply:
        if request.position is None:
            return text(SUMMARY)
        # By itself, this model reports usage that grows with the position.
        return reply(text("Done.") if request.position % 2 else call(recite, item=1), usage=Usage(output=5))

    window = hf.Compaction(window=WINDOW)
    return hf.Agent("bench", model=ScriptedModel(answer, keep=0), tools=[recite], compaction=window)


@dataclass
class TurnCost:
    """The cost of turns, one entry for each: CPU and time in milliseconds, bytes in the rows that the store reads.

    Files are read by pages of 4 kB, so the bytes read from them grow with the depth of the trees in the file.
    """

    cpu: list[float] = field(default_factory=list[float])
    ms: list[float] = field(default_factory=list[float])
    read: list[int] = field(default_factory=list[int])
    rows: int = 0

    @contextmanager
    def counting(self) -> Generator[None]:
        """Count the bytes of the rows that connections opened within the block read."""

        def trace(_: apsw.Cursor, row: Any) -> Any:
            self.rows += sum(len(value) if isinstance(value, bytes | str) else 8 for value in row)
            return row

        def hook(connection: apsw.Connection) -> None:
            connection.row_trace = trace

        apsw.connection_hooks.append(hook)
        try:
            yield
        finally:
            apsw.connection_hooks.remove(hook)

    async def add(self, session: hf.Session) -> None:
        """Run one turn."""
        read, cpu, begun = self.rows, time.process_time(), time.perf_counter()
        assert (await (await session.send("Go on.")).outcome(timeout=60)).ok
        self.ms.append((time.perf_counter() - begun) * 1000)
        self.cpu.append((time.process_time() - cpu) * 1000)
        self.read.append(self.rows - read)

    def against(self, other: TurnCost) -> Iterator[tuple[str, float, str]]:
        """Each cost against that of other turns, with both sides."""
        for name, unit in (("cpu", "ms of CPU"), ("ms", "ms"), ("read", "bytes read")):
            # The least: other programs, and a look of the engine that falls into a turn, can only add to it.
            mine, theirs = (min(getattr(each, name)) for each in (self, other))
            # A turn that reads next to nothing must not make a ratio of nothing.
            yield (
                name,
                (mine + 1) / (theirs + 1) if name == "read" else mine / theirs,
                f"{mine:,.3g} of {theirs:,.3g} {unit}",
            )


async def _grow(path: Path, turns: int) -> None:
    """Bring a session to so many turns."""
    async with hf.open(path, agents=[_endless()], durability="process") as runtime:
        session = runtime.session("long", agent="bench")
        left = turns
        while left > 0:
            sent = [await session.send("Go on.") for _ in range(min(left, GROWN_AT_ONCE))]
            assert (await sent[-1].outcome(timeout=60)).ok
            left -= len(sent)


async def _warm(path: Path, cost: TurnCost) -> None:
    """One turn after the other in one process, from the second one on."""
    async with hf.open(path, agents=[_endless()], durability="process") as runtime:
        session = runtime.session("long", agent="bench")
        await TurnCost().add(session)
        for _ in range(WARM_TURNS):
            await cost.add(session)


async def _cold(path: Path, cost: TurnCost, *, fork: bool = False) -> None:
    """The first turn after a reopening, of the session or of a fork of it."""
    async with hf.open(path, agents=[_endless()], durability="process") as runtime:
        session = runtime.session("long", agent="bench")
        if fork:
            session = await session.fork()
        await cost.add(session)


async def _back(path: Path, cost: TurnCost) -> None:
    """The first turn of a fork in the middle of a long session, or at the end of a short one, after a reopening."""
    async with hf.open(path, agents=[_endless()], durability="process") as runtime:
        session = runtime.session("long", agent="bench")
        head = (await runtime.store.journal("long")).head
        await cost.add(await session.fork(at=head if head < ENDLESS else head // 2))


def endless_session(folder: Path) -> list[Bar]:
    paths = {turns: fresh(folder / f"turns-{turns}.db") for turns in (FIRST_TURNS, ENDLESS)}
    for turns, path in paths.items():
        asyncio.run(_grow(path, turns))
        print(".", end="", file=sys.stderr, flush=True)
    bars: list[Bar] = []
    kinds: dict[str, Callable[[Path, TurnCost], Coroutine[Any, Any, None]]] = {
        "": _warm,
        " after a reopening": _cold,
        " of a fork, after a reopening": partial(_cold, fork=True),
        " of a fork in the middle": _back,
    }
    for name, measure in kinds.items():
        early, late = TurnCost(), TurnCost()
        for number in range(COLD_ROUNDS):
            for turns, cost in ((FIRST_TURNS, early), (ENDLESS, late)):
                copy = folder / f"copy-{number}.db"
                for end in ("", "-wal", "-shm", ".key"):
                    Path(f"{copy}{end}").unlink(missing_ok=True)
                    if Path(f"{paths[turns]}{end}").exists():
                        shutil.copy2(f"{paths[turns]}{end}", f"{copy}{end}")
                with cost.counting():
                    asyncio.run(measure(copy, cost))
            print(".", end="", file=sys.stderr, flush=True)
        for what, ratio, detail in late.against(early):
            title = {"cpu": "CPU", "ms": "time", "read": "bytes read"}[what]
            bars.append(Bar(f"{title}, turn 10,000 / 10{name}", ratio, 1.3, "at most", "x", detail))
    return bars


# ---- many runs without a runtime of their host -----------------------------------------------------------------------


async def _runs(seen: list[float]) -> float:
    """Seconds that `CROWD` times `hf.run` at once take."""
    bench = agent(look, STEPS)
    begun = time.perf_counter()
    async with _lags(seen, []):
        outcomes = await asyncio.gather(*[hf.run(bench, "Go.") for _ in range(CROWD)])
    assert all(outcome.ok for outcome in outcomes)
    return time.perf_counter() - begun


def runs(_: Path) -> list[Bar]:
    lags: list[float] = []
    (taken,) = median_of(CROWD_ROUNDS, lambda: asyncio.run(_runs(lags)))
    detail = f"{CROWD * STEPS / taken:,.0f} steps/s, a store in memory for each; worst {max(lags):.0f} ms"
    return [
        Bar(
            f"{CROWD} times hf.run at once: lag p99", statistics.quantiles(lags, n=100)[-1], 50, "at most", "ms", detail
        )
    ]


# ---- one message after the other -------------------------------------------------------------------------------------


async def _answer_time(path: Path, pause: float) -> float:
    """Milliseconds from a message to its outcome, the median of forty in one session, `pause` seconds apart."""
    bench = hf.Agent("bench", model=ScriptedModel(lambda _: text("Done."), keep=0))
    taken: list[float] = []
    async with hf.open(fresh(path), agents=[bench]) as runtime:
        session = runtime.session("talk", agent=bench)
        for _ in range(40):
            begun = time.perf_counter()
            await (await session.send("Go on.")).outcome()
            taken.append((time.perf_counter() - begun) * 1000)
            await asyncio.sleep(pause)
    return statistics.median(taken)


def dialogue(folder: Path) -> list[Bar]:
    at_once, later = median_of(
        ROUNDS,
        lambda: asyncio.run(_answer_time(folder / "at-once.db", 0)),
        lambda: asyncio.run(_answer_time(folder / "later.db", 0.02)),
    )
    detail = f"{at_once:.1f} of {later:.1f} ms from the message to its outcome"
    return [Bar("message right after an outcome, against later", at_once / later, 1.5, "at most", "x", detail)]


# ---- parked sessions -------------------------------------------------------------------------------------------------


def _resident() -> float:
    """Resident memory of this process in MB, after everything that can be collected was."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _park(path: Path) -> None:
    """Prints resident memory and tasks with few and with many parked sessions: run in a process of its own.

    Sessions that are parked, resolved and done come first, until the allocator and SQLite's page caches have the size
    at which they stay.
    """
    bench = hf.Agent("bench", model=ScriptedModel([call(approve), text("Done.")], keep=0), tools=[approve])
    async with hf.open(path, agents=[bench], durability="process") as runtime:
        for name in await _send(runtime, bench, "warm", 0, WARM):
            (wait,) = await runtime.waits(name)
            await runtime.resolve(runtime.wait_token(name, wait.name), "yes")
        await _until_idle(runtime)
        assert await _count(runtime, "completed") == WARM
        parked = 0
        for until in (PARKED_FEW, PARKED_MANY):
            await _send(runtime, bench, "parked", parked, until)
            parked = until
            print(_resident(), len(asyncio.all_tasks()))
        assert await _count(runtime, "waiting") == parked


async def _send(runtime: hf.Runtime, to: hf.Agent, name: str, begin: int, end: int) -> list[str]:
    """Sessions from number `begin` to `end`, a hundred at once, each until nobody drives it any more."""
    names = [f"{name}-{number}" for number in range(begin, end)]
    for first in range(0, len(names), PARKED_AT_ONCE):
        some = names[first : first + PARKED_AT_ONCE]
        await asyncio.gather(*[runtime.session(found, agent=to).send("Go.") for found in some])
        await _until_idle(runtime)
    return names


async def _until_idle(runtime: hf.Runtime) -> None:
    while runtime.active:  # the runtime has no event for it
        await asyncio.sleep(0.005)


async def _count(runtime: hf.Runtime, status: Status) -> int:
    count, last = 0, None
    while page := await runtime.sessions(status=status, before=last, limit=1_000):
        count, last = count + len(page), page[-1]
    return count


def parked(folder: Path) -> list[Bar]:
    path = fresh(folder / "parked.db")
    begun = time.perf_counter()
    command = [sys.executable, __file__, "park", str(path)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    taken = time.perf_counter() - begun
    print(".", end="", file=sys.stderr, flush=True)
    (few, few_tasks), (many, many_tasks) = (float(told[0]), int(told[1])), (float(told[2]), int(told[3]))
    each = (many - few) * 1e6 / (PARKED_MANY - PARKED_FEW)
    return [
        Bar(
            "10,000 parked sessions, memory over that of 100",
            many - few,
            PARKED_MB,
            "at most",
            "MB",
            f"{many:.1f} MB after {few:.1f} MB: {each:.0f} bytes a session; parked in {taken:.0f} s",
        ),
        Bar(
            "10,000 parked sessions, tasks over those of 100",
            many_tasks - few_tasks,
            2,
            "at most",
            "",
            f"{many_tasks} after {few_tasks}; the engine's own come and go",
        ),
    ]


# ---- where the time goes ---------------------------------------------------------------------------------------------


def profile(what: str = "loop", lines: int = 25) -> str:
    """The functions that take the most time themselves, in the thread of the event loop."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path(__file__).parent) as name:
        path = Path(name) / "profile.db"
        work: dict[str, Callable[[], float]] = {
            "loop": lambda: asyncio.run(_cpu(10 * LONG, None)),
            "stored": lambda: asyncio.run(_cpu(10 * LONG, path)),
            "crowd": lambda: asyncio.run(Crowd(look).run(path)),
            "redrive": lambda: asyncio.run(_until_asked(path)),
        }
        if what not in work:
            raise SystemExit(f"there is no profile of {what!r}; choose from {', '.join(work)}")
        work[what]()  # imports, schemas, the file
        profiler = cProfile.Profile()
        profiler.runcall(work[what])
    told = io.StringIO()
    pstats.Stats(profiler, stream=told).strip_dirs().sort_stats("tottime").print_stats(lines)
    return told.getvalue()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["profile"]:
            print(profile())
        case ["profile", what]:
            print(profile(what))
        case ["park", where]:
            asyncio.run(_park(Path(where)))
        case _:
            sys.exit("python benchmarks/turns.py profile [loop|stored|crowd|redrive]")
