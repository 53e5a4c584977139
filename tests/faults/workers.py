"""Worker processes for fault tests, and what the tests need to drive them.

Run as a script: ``python workers.py KIND DATABASE [OPTIONS as JSON]``. A worker acknowledges with `os.write(1, ...)`,
one system call a line: what was printed was acknowledged, whatever happens to the process next.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Final, Self, cast

import msgspec

from holdfast import open_store
from holdfast.errors import HoldfastError
from holdfast.records import Blob, Done, EffectRequest
from holdfast.store import StoreLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.store import Lease, Store

SCRIPT: Final = Path(__file__)
BLOB_EVERY: Final = 5
"""Every fifth record of the power workload refers to a blob."""


# ---- what a worker writes: a pure function of the place, so that a reader knows what to expect -----------------------


def blob_of(journal: str, seq: int) -> bytes:
    """The blob that the record in this place refers to."""
    seed = random.Random(f"{journal}/{seq}/blob")
    return seed.randbytes(seed.choice((200, 6_000, 40_000)))


def record_of(journal: str, seq: int) -> Done:
    """The record in this place, without a blob."""
    seed = random.Random(f"{journal}/{seq}")
    text = seed.choice("abcdefgh") * seed.choice((10, 200, 1_500, 5_000))
    return Done(
        at=1_800_000_000_000 + seq,
        key=f"step-{seq}",
        ask=EffectRequest("step", "target", f"content-{seq}"),
        value=msgspec.Raw(json.dumps(text).encode()),
    )


def record_with_blob(journal: str, seq: int) -> Done:
    """The record in this place of the power workload."""
    record = record_of(journal, seq)
    if seq % BLOB_EVERY:
        return record
    body = blob_of(journal, seq)
    return msgspec.structs.replace(record, blob=Blob(hashlib.sha256(body).hexdigest(), len(body)))


# ---- in the test: starting workers and talking to them ---------------------------------------------------------------


def command(kind: str, database: Path, **options: Any) -> list[str]:
    """The command line of a worker."""
    return [sys.executable, str(SCRIPT), kind, str(database), json.dumps(options)]


def environment(**extra: str) -> dict[str, str]:
    """The environment of a worker: ours, and what the test adds."""
    return {**os.environ, **extra}


def run(
    kind: str, database: Path, *, under: Sequence[str] = (), env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a worker to its end, perhaps under another program."""
    return subprocess.run(
        [*under, *command(kind, database, **options)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment(**(env or {})),
    )


def lines_of(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """What a worker printed, in words."""
    return [line.split() for line in done.stdout.splitlines()]


class Servant:
    """A process with the store open that does what it is told, one request at a time."""

    def __init__(self, database: Path, *, under: Sequence[str] = (), **options: Any) -> None:
        self._process = subprocess.Popen(
            [*under, *command("servant", database, **options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        self._answers: Queue[str] = Queue()
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()
        self.hello = self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with the program that it may run under
        self._process.wait()
        self._thread.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Stop, continue or kill; killed, it stays a zombie until the test ends."""
        self._process.send_signal(number)

    def reap(self) -> None:
        """Take notice of its end, so that the kernel forgets it."""
        self._process.wait(20)

    def wait_for_state(self, wanted: str) -> None:
        """Until the kernel says that the process is in one of these states."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            state = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            if state in wanted:
                return
            time.sleep(0.002)
        message = f"process {self.pid} did not come into one of the states {wanted!r}"
        raise AssertionError(message)

    def tell(self, op: str, **arguments: Any) -> None:
        """Send a request; the answer is fetched later."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        stdin.flush()

    def answer(self, timeout: float = 60) -> dict[str, Any]:
        """The next answer."""
        try:
            line = self._answers.get(timeout=timeout)
        except Empty:
            message = f"process {self.pid} did not answer within {timeout} s"
            raise AssertionError(message) from None
        return cast("dict[str, Any]", json.loads(line))

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        self.tell(op, **arguments)
        return self.answer()

    def _collect(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            self._answers.put(line)


# ---- in the worker ---------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _open(database: str, options: dict[str, Any]) -> Any:
    limits = StoreLimits(**options.get("limits", {}))
    return open_store(database, durability=options.get("durability", "power"), limits=limits)


def _patch_constant(name: str, value: object) -> None:
    """Small files need small thresholds."""
    from holdfast.store.sqlite import writer

    assert name in vars(writer), name
    writer.__dict__[name] = value


def _no_sync() -> None:
    """For the control only: a writer that never syncs, so that an explorer worth its name finds the losses."""
    from holdfast.store.sqlite import backend, writer

    real = writer.connect_writer

    def lying(*arguments: Any) -> Any:
        connection = real(*arguments)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    assert vars(backend)["connect_writer"] is real
    backend.__dict__["connect_writer"] = lying


async def _power(database: str, options: dict[str, Any]) -> None:
    """Several journals at once, with blobs, inputs and waits; acknowledges everything it did."""
    _patch_constant("_CHECKPOINT_FRAMES", options["frames"])
    if options.get("no_sync"):
        _no_sync()
    async with _open(database, options) as store:
        _say("ACK open")
        await asyncio.gather(*(_one_journal(store, f"j{n}", options["records"]) for n in range(options["journals"])))
    _say("ACK closed")


async def _one_journal(store: Store, journal: str, count: int) -> None:
    await store.open_journal(journal)
    _say(f"ACK head {journal} 1")
    lease = await store.claim(journal)
    head, seed = lease.head, random.Random(journal)
    while head < count:
        last = min(head + seed.randint(1, 3), count)
        for seq in range(head + 1, last + 1):
            if seq % BLOB_EVERY == 0:
                blob = await store.put_blob(blob_of(journal, seq))
                _say(f"ACK blob {blob.digest} 0")
        added = [record_with_blob(journal, seq) for seq in range(head + 1, last + 1)]
        head = await store.append(lease, added, head=head)
        _say(f"ACK head {journal} {head}")
        if head % 4 == 0:
            receipt = await store.accept(journal, {"n": head}, key=f"key-{head}")
            _say(f"ACK input {journal} {receipt.input}")


async def _appender(database: str, options: dict[str, Any]) -> None:
    """Appends one record at a time and says truthfully what became of each."""
    journal = options["journal"]
    async with _open(database, options) as store:
        await store.open_journal(journal)
        lease = await store.claim(journal)
        head = lease.head
        _say(f"READY {head} 0")
        for _ in range(options["records"]):
            head = await _append_one(store, lease, head, options)
        _say(f"END {head} 0")


async def _append_one(store: Store, lease: Lease, head: int, options: dict[str, Any]) -> int:
    if options.get("read_first"):
        await store.read(lease.journal, limit=1)  # a reading connection of our own stays open
    try:
        head = await store.append(lease, [record_of(lease.journal, head + 1)], head=head)
    except HoldfastError as error:
        _say(f"REFUSED {head + 1} {type(error).__name__} {error}")
        if options.get("die_when_refused"):
            os.kill(os.getpid(), signal.SIGKILL)
        return await _head_after(store, lease, head)
    _say(f"ACK {head} -")
    return head


async def _head_after(store: Store, lease: Lease, head: int) -> int:
    """After a refusal: where the journal is now. A reader must live."""
    try:
        return (await store.journal(lease.journal)).head
    except HoldfastError as error:
        _say(f"UNREADABLE {head} {type(error).__name__} {error}")
        return head


async def _filler(database: str, options: dict[str, Any]) -> None:
    """Fill a small disk, see the refusal, read on, wait until there is room, go on."""
    journal, room = options["journal"], Path(options["filler"])
    async with _open(database, options) as store:
        await store.open_journal(journal)
        lease = await store.claim(journal)
        head, refused = lease.head, 0
        for _ in range(options["records"]):
            try:
                head = await store.append(lease, [record_of(journal, head + 1)], head=head)
                _say(f"ACK {head} -")
            except HoldfastError as error:
                _say(f"REFUSED {head + 1} {type(error).__name__} {error}")
                entries = [entry async for entry in store.read_all(journal)]
                _say(f"READ {len(entries)} -")
                refused += 1
                if refused == 2:
                    await asyncio.to_thread(room.unlink)
                    _say("ROOM 0 -")
        _say(f"END {head} -")


async def _create(database: str, options: dict[str, Any]) -> None:
    """Open a store, which makes it."""
    async with _open(database, options) as store:
        _say(f"ACK {store.id}")


# ---- the servant -----------------------------------------------------------------------------------------------------


class _Desk:
    """What a servant can be asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._leases: dict[str, Lease] = {}

    async def serve(self, request: dict[str, Any]) -> dict[str, Any]:
        operation: Callable[..., Awaitable[dict[str, Any]]] = getattr(self, request.pop("op"))
        began = time.monotonic()
        try:
            answer = await operation(**request)
        except HoldfastError as error:
            named = {"holder": getattr(error, "holder", None)}
            return {"error": type(error).__name__, "text": str(error), "took": time.monotonic() - began, **named}
        return {**answer, "took": time.monotonic() - began}

    async def open(self, journal: str) -> dict[str, Any]:
        return {"head": (await self._store.open_journal(journal)).head}

    async def claim(self, journal: str, ttl_ms: int = 10_000) -> dict[str, Any]:
        lease = self._leases[journal] = await self._store.claim(journal, ttl_ms=ttl_ms)
        return {"epoch": lease.epoch, "head": lease.head, "holder": lease.owner.describe()}

    async def append(self, journal: str, count: int, head: int) -> dict[str, Any]:
        """One by one, each acknowledged before the next."""
        for _ in range(count):
            head = await self._store.append(self._leases[journal], [record_of(journal, head + 1)], head=head)
        return {"head": head}

    async def accept(self, journal: str, key: str, content: object) -> dict[str, Any]:
        receipt = await self._store.accept(journal, content, key=key)
        return {"input": receipt.input, "fresh": receipt.fresh}

    async def stamp(self, journal: str, head: int) -> dict[str, Any]:
        """Append one record and say when the append was acknowledged; the clock is the same for all processes."""
        head = await self._store.append(self._leases[journal], [record_of(journal, head + 1)], head=head)
        return {"head": head, "at": time.monotonic()}

    async def meet(self, at: float) -> dict[str, Any]:
        """Sleep until a moment on the clock that all processes share, so that the next request collides."""
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        return {}


async def _servant(database: str, options: dict[str, Any]) -> None:
    async with _open(database, options) as store:
        desk = _Desk(store)
        _say(json.dumps({"holder": store.owner.describe(), "instance": store.owner.instance}))
        while line := await asyncio.to_thread(sys.stdin.readline):
            _say(json.dumps(await desk.serve(json.loads(line))))


_KINDS: Final[dict[str, Callable[[str, dict[str, Any]], Awaitable[None]]]] = {
    "power": _power,
    "appender": _appender,
    "filler": _filler,
    "create": _create,
    "servant": _servant,
}


async def _main(kind: str, database: str, options: str) -> None:
    await _KINDS[kind](database, json.loads(options))


def tally(words: Sequence[Sequence[str]]) -> Counter[str]:
    """How often each kind of line was printed."""
    return Counter(line[0] for line in words)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:4]))
