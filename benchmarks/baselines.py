"""What the same machine does without Holdfast: the least code that gets the same bytes onto the same disk."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import apsw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

TABLES = {
    # How one would keep journals without thinking about it, and the cheapest table that keeps the bytes at all.
    "keyed": "CREATE TABLE t (journal TEXT, seq INTEGER, body BLOB, PRIMARY KEY (journal, seq)) STRICT, WITHOUT ROWID",
    "heap": "CREATE TABLE t (journal TEXT, seq INTEGER, body BLOB) STRICT",
}
INSERT = "INSERT INTO t VALUES (?, ?, ?)"

Row: TypeAlias = tuple[str, int, bytes]
Written: TypeAlias = "Sequence[tuple[Callable[[], Awaitable[object]], Row]]"
"""What a hand-written session does: pieces of work, each with the row that it leaves behind."""


def fresh(path: Path) -> Path:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return path


def connect(path: Path, table: str) -> Any:
    db: Any = apsw.Connection(str(fresh(path)))
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(TABLES[table])
    return db


def single_commits(path: Path, body: bytes, count: int, table: str = "keyed") -> float:
    """Rows per second, each in a transaction of its own."""
    return count / commit_each(path, (("journal-0", seq, body) for seq in range(count)), table)


def commit_each(path: Path, rows: Iterable[Row], table: str) -> float:
    """How long it takes to commit each of these rows by itself, in seconds."""
    db = connect(path, table)
    begun = time.perf_counter()
    for row in rows:
        db.execute("BEGIN IMMEDIATE")
        db.execute(INSERT, row)
        db.execute("COMMIT")
    taken = time.perf_counter() - begun
    db.close()
    return taken


def group_commits(path: Path, body: bytes, producers: int, each: int, table: str) -> float:
    """Rows per second that asyncio producers get acknowledged by a bare thread with group commit."""
    return asyncio.run(_group_commits(connect(path, table), body, producers, each))


async def _group_commits(db: Any, body: bytes, producers: int, each: int) -> float:
    loop = asyncio.get_running_loop()
    queue: SimpleQueue[Any] = SimpleQueue()

    def answer(waiters: list[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            waiter.set_result(None)

    def write() -> None:
        while (item := queue.get()) is not None:
            items = [item]
            while True:
                try:
                    items.append(queue.get_nowait())
                except Empty:
                    break
            db.execute("BEGIN IMMEDIATE")
            db.executemany(INSERT, [row for row, _ in items])
            db.execute("COMMIT")
            loop.call_soon_threadsafe(answer, [waiter for _, waiter in items])

    async def produce(number: int) -> None:
        journal = f"journal-{number}"
        for seq in range(each):
            waiter: asyncio.Future[None] = loop.create_future()
            queue.put(((journal, seq, body), waiter))
            await waiter

    thread = threading.Thread(target=write)
    thread.start()
    begun = time.perf_counter()
    await asyncio.gather(*[produce(number) for number in range(producers)])
    taken = time.perf_counter() - begun
    queue.put(None)
    thread.join()
    db.close()
    return producers * each / taken


def work_and_commit(path: Path, sessions: Sequence[Written]) -> float:
    """Seconds for hand-written sessions, all at once, with one thread that commits their rows.

    Every row is a transaction of its own, and is durable before the next piece of work begins.
    """
    return asyncio.run(_work_and_commit(connect(path, "keyed"), sessions))


async def _work_and_commit(db: Any, sessions: Sequence[Written]) -> float:
    loop = asyncio.get_running_loop()
    queue: SimpleQueue[Any] = SimpleQueue()

    def write() -> None:
        while (item := queue.get()) is not None:
            row, waiter = item
            db.execute("BEGIN IMMEDIATE")
            db.execute(INSERT, row)
            db.execute("COMMIT")
            loop.call_soon_threadsafe(waiter.set_result, None)

    async def go(session: Written) -> None:
        for work, row in session:
            await work()
            waiter: asyncio.Future[None] = loop.create_future()
            queue.put((row, waiter))
            await waiter

    thread = threading.Thread(target=write)
    thread.start()
    begun = time.perf_counter()
    await asyncio.gather(*[go(session) for session in sessions])
    taken = time.perf_counter() - begun
    queue.put(None)
    thread.join()
    db.close()
    return taken


# ---- agents written by hand ------------------------------------------------------------------------------------------

Save: TypeAlias = "Callable[[Row], Awaitable[None]]"
Tool: TypeAlias = "Callable[..., Awaitable[object]]"

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "How many there are of an item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "integer"}}, "required": ["item"]},
    },
}


async def bare_run(
    session: Any, url: str, tool: Tool, name: str, save: Save | None = None, *, streamed: bool = False
) -> int:
    """An agent as one writes it by hand: ask, run the calls side by side, ask again. Answers how often it asked.

    With `save`, every reply and every result is one row that must be durable before the agent goes on.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    seq = asked = 0
    while True:
        body = {"model": "m", "stream": streamed, "messages": messages, "tools": [TOOL]}
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            said = await _streamed(response) if streamed else (await response.json())["choices"][0]["message"]
        asked += 1
        if save is not None:
            await save((name, seq, json.dumps(said).encode()))
            seq += 1
        messages.append(said)
        calls = said.get("tool_calls")
        if not calls:
            return asked

        async def run(call: dict[str, Any], row: int) -> dict[str, Any]:
            found = await tool(**json.loads(call["function"]["arguments"] or "{}"))
            result = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(found)}
            if save is not None:
                await save((name, row, json.dumps(result).encode()))
            return result

        messages += await asyncio.gather(*[run(call, seq + number) for number, call in enumerate(calls)])
        seq += len(calls)


async def _streamed(response: Any) -> dict[str, Any]:
    """The message in a stream of Chat Completions; whoever writes it by hand checks that it is whole, and no more."""
    words: list[str] = []
    calls: list[dict[str, Any]] = []
    finished = False
    async for line in response.content:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            finished = finished or choice["finish_reason"] is not None
            if delta.get("content"):
                words.append(delta["content"])
            for piece in delta.get("tool_calls", ()):
                if piece["index"] == len(calls):
                    calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
                else:
                    calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    if not finished:
        raise ConnectionError("the stream was cut")
    return {"role": "assistant", "content": "".join(words) or None, **({"tool_calls": calls} if calls else {})}


class InLoop:
    """One row and one sync for each effect, in the thread of the event loop: the least CPU, and everybody waits."""

    def __init__(self, path: Path) -> None:
        self._db = connect(path, "keyed")

    async def __call__(self, row: Row) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(INSERT, row)
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


class InThread:
    """One row and one sync for each effect, in a thread of its own: two changes of thread, and nobody else waits."""

    def __init__(self, path: Path) -> None:
        self._db = connect(path, "keyed")
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            row, waiter = item
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(INSERT, row)
            self._db.execute("COMMIT")
            self._loop.call_soon_threadsafe(waiter.set_result, None)

    async def __call__(self, row: Row) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((row, waiter))
        await waiter

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._db.close()
