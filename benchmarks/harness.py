"""The bars of the harness: many finished tasks and notifications, progress, results, trivial calls, forgetting, the
sandbox.

`python benchmarks/harness.py figures` measures these bars alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bars import Bar, best_of
from baselines import fresh
from turns import look

import holdfast as hf
from holdfast.records import TASK_RUN, Ended, Started
from holdfast.store import Notify, open_store
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.store.contract import Lease
    from holdfast.tools import AnyTool

FINISHED = 100_000
AT_ONCE = 500
REPORTS = 10_000
CALLS, ROUNDS = 300, 5
DEPS_ROUNDS, TURNS = 15, 10
FORGOTTEN = 10_000
RESULT = 5_000_000
COMMANDS = 20


# ---- many that have ended --------------------------------------------------------------------------------------------


async def _fill(path: Path) -> None:
    """Tasks that have ended, each with its notification, which somebody has acknowledged."""
    async with open_store(path, durability="process") as store:
        await store.open_journal("s")

        async def one(number: int) -> None:
            name = f"task-{number:020x}"
            await store.open_journal(name, "process", "a", role="task", session="s")
            lease = await store.claim(name)
            now = store.clock.read().wall
            notice = Notify("s", "task_succeeded", "It has ended", "{}", source=name, key=f"task/{name}")
            records = [Started(at=now, run=TASK_RUN, by="pid 1"), Ended(at=now, run=TASK_RUN, status="completed")]
            await store.append(lease, records, head=lease.head, notify=[notice])
            await store.release(lease)
            await store.settle_notification(number, "acknowledged")

        for begin in range(1, FINISHED + 1, AT_ONCE):
            await asyncio.gather(*[one(number) for number in range(begin, begin + AT_ONCE)])
        await store.notify("s", kind="host", title="one more")


async def _timed(rounds: int, what: Callable[[], Awaitable[object]]) -> float:
    taken: list[float] = []
    for _ in range(rounds):
        begun = time.perf_counter()
        await what()
        taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)


def finished(folder: Path) -> list[Bar]:
    path = fresh(folder / "finished.db")
    begun = time.perf_counter()
    asyncio.run(_fill(path))
    filled = time.perf_counter() - begun
    print(".", end="", file=sys.stderr, flush=True)

    async def measured() -> tuple[float, float, float, float]:
        begun = time.perf_counter()
        async with open_store(path) as store:
            opened = (time.perf_counter() - begun) * 1000
            tasks = await _timed(9, lambda: store.journals(role="task", limit=50))
            notices = await _timed(9, lambda: store.notifications(limit=50))
            following = await _timed(9, lambda: store.next_notifications("s", 1))
            return opened, tasks, notices, following

    opened, tasks, notices, following = asyncio.run(measured())
    many = f"{FINISHED:,} tasks and as many notifications, made in {filled:.0f} s"
    return [
        Bar("opening a store with finished work", opened, 200, "at most", "ms", many),
        Bar("the newest 50 tasks", tasks, 5, "at most", "ms", ""),
        Bar("the newest 50 notifications", notices, 5, "at most", "ms", ""),
        Bar("the next notification", following, 5, "at most", "ms", ""),
    ]


# ---- one task --------------------------------------------------------------------------------------------------------


def progress(folder: Path) -> list[Bar]:
    """Reports of progress one after the other, each durable: in a long journal against those in a new one.

    CPU of a hundred reports, the least of ten, in turns: the store and its writer are as warm for both.
    """
    from holdfast.records import Progressed

    async def measured() -> tuple[float, float]:
        async with open_store(fresh(folder / "progress.db"), durability="process") as store:
            leases: dict[str, Lease] = {}
            heads: dict[str, int] = {}
            for journal in ("new", "long"):
                await store.open_journal(journal, "process", "a", role="task", session="s")
                leases[journal] = lease = await store.claim(journal)
                heads[journal] = lease.head

            async def report(journal: str) -> float:
                begun = time.process_time()
                for _ in range(100):
                    added = [Progressed(at=1, run=TASK_RUN, note=f"step {heads[journal]}")]
                    heads[journal] = await store.append(leases[journal], added, head=heads[journal])
                return (time.process_time() - begun) / 100

            for _ in range(REPORTS // 100 - 10):
                await report("long")
            times = [(await report("new"), await report("long")) for _ in range(10)]
            first, last = (min(each) * 1e6 for each in zip(*times, strict=True))
            return first, last

    first, last = asyncio.run(measured())
    print(".", end="", file=sys.stderr, flush=True)
    detail = f"{last:.0f} us of {first:.0f} us"
    return [Bar(f"progress report {REPORTS:,} against the first", last / first, 1.3, "at most", "x", detail)]


@hf.tool(read_only=True, background=True, output_limit=10_000_000)
async def large() -> str:
    """Much text."""
    return "x" * RESULT


def stored_once(folder: Path) -> list[Bar]:
    path = fresh(folder / "large.db")

    async def measured() -> int:
        agent = hf.Agent("a", model=ScriptedModel([call(large), text("ok"), text("seen")]), tools=[large])
        async with hf.open(path, agents=[agent]) as runtime:
            await runtime.run(agent, "go", session="s")
            async for event in runtime.events(after=0):
                if isinstance(event, hf.TurnCompleted) and event.turn != "t1":
                    break
        async with open_store(path):
            pass  # closing copies the log into the file
        return path.stat().st_size

    size = asyncio.run(measured())
    print(".", end="", file=sys.stderr, flush=True)
    return [
        Bar("a result of a task, bytes in the store", size / RESULT, 1.2, "at most", "x", f"{size:,} of {RESULT:,}")
    ]


# ---- one call --------------------------------------------------------------------------------------------------------


def trivial_call(folder: Path) -> list[Bar]:
    """CPU of a turn with many calls over that of one without, all threads, without waiting for the disk."""

    def cpu(calls: int) -> float:
        script: list[Any] = [[call(look, item=number) for number in range(calls)]] if calls else []

        async def run() -> float:
            agent = hf.Agent("a", model=ScriptedModel([*script, *script, text("ok")] * 2, keep=0), tools=[look])
            async with hf.open(fresh(folder / "calls.db"), agents=[agent], durability="process") as runtime:
                await runtime.run(agent, "go", session="warm")
                begun = time.process_time()
                await runtime.run(agent, "go", session="s")
                return time.process_time() - begun

        return asyncio.run(run()) * 1e6

    bare, with_calls = best_of(ROUNDS, lambda: cpu(0), lambda: cpu(CALLS))
    each = (with_calls - bare) / (2 * CALLS)
    return [Bar("CPU of one trivial call", each, 150, "at most", "us", f"{2 * CALLS} calls in two steps, side by side")]


@dataclass(frozen=True)
class Shop:
    """Dependencies of a tool."""

    stock: int


@hf.tool(read_only=True)
async def look_with_context(ctx: hf.Context, item: int) -> dict[str, object]:
    """Stock of an item, for a person."""
    return {"item": item, "stock": 3, "for": ctx.session}


@hf.tool(read_only=True, name="look_with_context")
async def look_with_deps(ctx: hf.Context[Shop], item: int) -> dict[str, object]:
    """Stock of an item, for a person."""
    return {"item": item, "stock": ctx.deps.stock, "for": ctx.metadata["who"]}


def call_with_deps(folder: Path) -> list[Bar]:
    """CPU of a turn whose tools read dependencies and metadata, over one whose tools read only the session."""

    def cpu(tool: AnyTool, deps: Shop | None, metadata: dict[str, str]) -> float:
        script = [[call("look_with_context", item=number) for number in range(CALLS)]]

        async def run() -> float:
            agent = hf.Agent("a", model=ScriptedModel([*script, *script, text("ok")] * TURNS, keep=0), tools=[tool])
            path, taken = fresh(folder / "deps.db"), list[float]()
            async with hf.open(path, agents=[agent], durability="process", deps=deps) as runtime:
                for number in range(TURNS):
                    begun = time.process_time()
                    await runtime.run(agent, "go", session=f"s{number}", metadata=metadata)
                    taken.append(time.process_time() - begun)
            return min(taken)

        return asyncio.run(run()) * 1e6 / (2 * CALLS)

    without, with_deps = best_of(
        DEPS_ROUNDS,
        lambda: cpu(look_with_context, None, {}),
        lambda: cpu(look_with_deps, Shop(3), {"who": "ada"}),
    )
    detail = f"{with_deps:.1f} of {without:.1f} us a call"
    return [Bar("a call with deps and metadata, over one without", with_deps / without, 1.03, "at most", "x", detail)]


# ---- forgetting ------------------------------------------------------------------------------------------------------


def forgetting(folder: Path) -> list[Bar]:
    async def measured() -> tuple[float, int]:
        script = [[call(look, item=first + n) for n in range(AT_ONCE)] for first in range(0, FORGOTTEN, AT_ONCE)]
        model = ScriptedModel([*script, text("ok")], keep=0)
        agent = hf.Agent("a", model=model, tools=[look], limits=hf.Limits(steps=None))
        async with hf.open(fresh(folder / "forget.db"), agents=[agent]) as runtime:
            await runtime.run(agent, "go", session="s")
            begun = time.perf_counter()
            gone = await runtime.forget("s")
            return time.perf_counter() - begun, gone.records

    seconds, records = asyncio.run(measured())
    assert records > FORGOTTEN
    print(".", end="", file=sys.stderr, flush=True)
    return [Bar("forgetting a session", seconds, 1, "at most", "s", f"{records:,} records")]


# ---- the sandbox -----------------------------------------------------------------------------------------------------


def sandbox(folder: Path) -> list[Bar]:
    from holdfast.toolkits.shell import SandboxUnavailable, shell

    workspace = folder / "workspace"
    workspace.mkdir()
    try:
        (tool,) = shell(workspace)
    except SandboxUnavailable as error:
        print(f"\nno sandbox here: {error}", file=sys.stderr)
        return []
    bound = tool.bind({"command": "true"})

    async def confined() -> list[float]:
        times: list[float] = []
        for _ in range(COMMANDS):
            begun = time.perf_counter()
            await tool.call(bound)  # pyright: ignore[reportArgumentType]
            times.append((time.perf_counter() - begun) * 1000)
        return times

    def bare() -> float:
        begun = time.perf_counter()
        subprocess.run(["/bin/sh", "-c", "true"], check=True)
        return (time.perf_counter() - begun) * 1000

    inside = statistics.median(asyncio.run(confined()))
    outside = statistics.median(bare() for _ in range(COMMANDS))
    print(".", end="", file=sys.stderr, flush=True)
    detail = f"{inside:.1f} ms; a bare process {outside:.1f}"
    return [Bar("a command in the sandbox, over a bare process", inside - outside, 40, "at most", "ms", detail)]


def harness(folder: Path) -> list[Bar]:
    return [
        *finished(folder),
        *progress(folder),
        *stored_once(folder),
        *trivial_call(folder),
        *call_with_deps(folder),
        *forgetting(folder),
        *sandbox(folder),
    ]


if __name__ == "__main__":
    if sys.argv[1:] != ["figures"]:
        sys.exit("python benchmarks/harness.py figures")
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path(__file__).parent) as name, contextlib.suppress(OSError):
        found = harness(Path(name))
        print(*["", *[bar.line() for bar in found]], sep="\n")
