"""The bars of the ground: appends, reads, lists, opening, import, and resuming a long journal."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
from bars import Bar, median_of
from baselines import fresh, group_commits, single_commits

import holdfast as hf
from holdfast import records
from holdfast.effects.drive import drive
from holdfast.effects.performer import LeasedJournal
from holdfast.records import Done, EffectRequest, Ended, Started

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from holdfast.effects.drive import Boundary

ROUNDS = 5
SINGLE = 1_500
PRODUCERS = 100
EACH = 200
LONG = 100_000
SESSIONS = 100_000
RESUMED = 10_000
VALUE = msgspec.Raw(msgspec.json.encode({"ok": True, "rows": list(range(8)), "text": "x" * 60}))


def record(number: int) -> Done:
    """What one tool call leaves behind."""
    ask = EffectRequest("tool_call", "find_order", "a" * 64, msgspec.Raw(b'{"email":"a@b.c","limit":10}'))
    return Done(at=1_800_000_000_000, key=f"turn-1/step-{number}/find_order", ask=ask, value=VALUE)


BODY = records.encode(record(1_000))


def run(main: Callable[[], Coroutine[Any, Any, float]]) -> float:
    return asyncio.run(main())


async def _appends(path: Path, producers: int, each: int) -> float:
    async with hf.open_store(fresh(path)) as store:

        async def produce(number: int) -> None:
            lease = leases[number]
            head = lease.head
            for seq in range(each):
                head = await store.append(lease, [record(seq)], head=head)

        leases = []
        for number in range(producers):
            await store.open_journal(f"journal-{number}")
            leases.append(await store.claim(f"journal-{number}", ttl_ms=600_000))
        begun = time.perf_counter()
        await asyncio.gather(*[produce(number) for number in range(producers)])
        return producers * each / (time.perf_counter() - begun)


def appends(folder: Path) -> list[Bar]:
    one, raw = median_of(
        ROUNDS,
        lambda: run(lambda: _appends(folder / "one.db", 1, SINGLE)),
        lambda: max(single_commits(folder / "raw.db", BODY, SINGLE, table) for table in ("keyed", "heap")),
    )
    many, keyed, heap = median_of(
        ROUNDS,
        lambda: run(lambda: _appends(folder / "many.db", PRODUCERS, EACH)),
        lambda: group_commits(folder / "group.db", BODY, PRODUCERS, EACH, "keyed"),
        lambda: group_commits(folder / "group.db", BODY, PRODUCERS, EACH, "heap"),
    )
    best = max(keyed, heap)
    return [
        Bar("one producer, against raw commits", one / raw, 0.4, "at least", "x", f"{one:,.0f}/s of {raw:,.0f}/s"),
        Bar(
            "100 producers, against bare group commit",
            many / best,
            0.35,
            "at least",
            "x",
            f"{many:,.0f}/s of {best:,.0f}/s (a keyed table alone: {keyed:,.0f}/s)",
        ),
    ]


async def _write_long(path: Path) -> float:
    """Fill one journal; answers how much dearer the last appends were than the first."""
    async with hf.open_store(fresh(path), durability="process") as store:
        await store.open_journal("long")
        lease = await store.claim("long", ttl_ms=600_000)
        head = lease.head
        times: list[float] = []
        for start in range(0, LONG, 100):
            begun = time.process_time()
            head = await store.append(lease, [record(start + number) for number in range(100)], head=head)
            times.append(time.process_time() - begun)
    return statistics.median(times[-100:]) / statistics.median(times[1:101])


async def _read_long(path: Path) -> float:
    async with hf.open_store(path) as store:
        begun = time.perf_counter()
        last = 0
        while page := await store.read("long", after=last):  # as the runtime does: page by page
            last = page[-1].seq
        assert last == LONG + 1
        return time.perf_counter() - begun


def _read_raw(path: Path) -> float:
    """The same rows with a plain select, decoded; unchecked."""
    db: Any = apsw.Connection(str(path))
    begun = time.perf_counter()
    rows = db.execute("SELECT seq, body FROM records WHERE journal = 1 ORDER BY seq")
    found = [(seq, records.decode(body)) for seq, body in rows]
    taken = time.perf_counter() - begun
    assert len(found) == LONG + 1
    db.close()
    return taken


def long_journal(folder: Path) -> list[Bar]:
    path = folder / "long.db"
    growth = run(lambda: _write_long(path))
    ours, raw = median_of(ROUNDS, lambda: run(lambda: _read_long(path)), lambda: _read_raw(path))
    both = f"{ours:.2f} s of {raw:.2f} s"
    return [
        Bar("reading 100,000 records, against raw select", ours / raw, 1.5, "at most", "x", both),
        Bar("append at record 100,000, against record 10", growth, 1.3, "at most", "x", "CPU time of 100 records"),
    ]


async def _make_sessions(path: Path) -> None:
    async with hf.open_store(fresh(path), durability="process") as store:
        for start in range(0, SESSIONS, 1_000):
            await asyncio.gather(*[_session(store, f"session-{start + number}") for number in range(1_000)])


async def _session(store: hf.Store, name: str) -> None:
    await store.open_journal(name, "session", "support")
    lease = await store.claim(name)
    at = store.clock.read().wall
    ended = Ended(at=at, run="turn-1", status="completed", value=msgspec.Raw(b'"done"'))
    await store.append(lease, [Started(at=at, run="turn-1"), ended], head=lease.head)
    await store.release(lease)


async def _open(path: Path) -> float:
    begun = time.perf_counter()
    async with hf.open_store(path) as store:
        await store.journals(limit=1)
        return (time.perf_counter() - begun) * 1000


async def _newest(path: Path, **where: Any) -> float:
    async with hf.open_store(path) as store:
        await store.journals(limit=50, **where)
        begun = time.perf_counter()
        assert len(await store.journals(limit=50, **where)) == 50
        return (time.perf_counter() - begun) * 1000


def many_sessions(folder: Path) -> list[Bar]:
    path = folder / "sessions.db"
    asyncio.run(_make_sessions(path))
    opened, newest, chosen = median_of(
        ROUNDS,
        lambda: run(lambda: _open(path)),
        lambda: run(lambda: _newest(path, kind="session")),
        lambda: run(lambda: _newest(path, status="completed", agent="support")),
    )
    return [
        Bar("opening a store with 100,000 sessions", opened, 200, "at most", "ms", ""),
        Bar("newest 50 of 100,000 sessions", newest, 5, "at most", "ms", ""),
        Bar("newest 50 of 100,000, by status and agent", chosen, 5, "at most", "ms", ""),
    ]


class Interrupted(BaseException):
    """The process ends here, as far as the driven code can tell."""


async def _steps(path: Path, count: int, stop: int) -> None:
    async def one(number: int) -> int:
        return number

    async def body(ctx: Boundary) -> int:
        for number in range(count):
            if number == stop:
                raise Interrupted
            await ctx.step("one", one, number)
        return count

    async with hf.open_store(path, durability="process") as store:
        await drive(store, "long", body)


def _drive_and_stop(path: Path) -> float:
    begun = time.perf_counter()
    with suppress(Interrupted):
        asyncio.run(_steps(path, RESUMED, RESUMED - 1))
    return time.perf_counter() - begun


async def _fold(path: Path) -> float:
    async with hf.open_store(path) as store:
        begun = time.perf_counter()
        past = await LeasedJournal(store, await store.claim("long")).past()
        taken = time.perf_counter() - begun
        assert len(past.effects) == RESUMED - 1
        return taken


def resume(folder: Path) -> list[Bar]:
    path = fresh(folder / "resume.db")
    _drive_and_stop(path)
    fold, redriven = median_of(ROUNDS, lambda: run(lambda: _fold(path)), lambda: _drive_and_stop(path))
    return [
        Bar("reading back 10,000 recorded steps", fold, 0.2, "at most", "s", ""),
        Bar("re-driving 10,000 recorded steps", redriven, 1.0, "at most", "s", "open, replay, close"),
    ]


def imports() -> list[Bar]:
    code = (
        "import time, sys; begun = time.perf_counter(); import holdfast as hf; taken = time.perf_counter() - begun;"
        "heavy = {'apsw', 'pydantic', 'msgspec', 'asyncio', 'typer'} & set(sys.modules); assert not heavy, heavy;"
        "begun = time.process_time(); hf.Agent, hf.open, hf.tool, hf.model, hf.process;"
        "print(taken * 1000, (time.process_time() - begun) * 1000)"
    )
    # With compiled modules, as after an installation.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def once() -> list[float]:
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
        return [float(part) for part in done.stdout.split()]

    once()
    taken, used = map(statistics.median, zip(*(once() for _ in range(ROUNDS)), strict=True))
    return [
        Bar("import holdfast", taken, 120, "at most", "ms", "loads neither apsw nor pydantic"),
        Bar("its common names", used, 120, "at most", "ms", "CPU time: Agent, open, tool, model, process"),
    ]
