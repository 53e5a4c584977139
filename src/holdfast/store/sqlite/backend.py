"""A store in one SQLite file."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from holdfast.clock import SystemClock
from holdfast.errors import (
    HoldfastError,
    InvalidArgument,
    StoreBusy,
    StoreClosed,
    StoreKeyMissing,
    StoreReadOnly,
    StoreRefused,
    UsageError,
)
from holdfast.store.lease import current_owner
from holdfast.store.limits import StoreLimits
from holdfast.store.sqlite.access import check_access, check_schema
from holdfast.store.sqlite.files import (
    check_current,
    check_viewable,
    closed,
    connect_reader,
    connect_viewer,
    connect_writer,
    opening,
    prepare,
    snapshot,
    translated,
)
from holdfast.store.sqlite.key import load_seal
from holdfast.store.sqlite.reader import SqliteReader
from holdfast.store.sqlite.writer import StoreWriter, WriteJob

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.store.checksum import Seal
    from holdfast.store.contract import Command, Durability, Owner, Reader
    from holdfast.store.sqlite.connection import Db


_IN_ATTRIB: Final = 0x4
_COALESCE: Final = 0.005
_POLL: Final = 0.025
_TICK: Final = 1.0


class LogWatcher:
    """Calls `look` soon after the write-ahead log was touched, while somebody waits, 200 times a second at the most."""

    def __init__(self, log: Path, look: Callable[[], None]) -> None:
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._waiting = 0
        self._closed = False
        self._inotify = _inotify(log)

    def begin_waiting(self) -> None:
        """Somebody waits for changes: look at once, since some may have come before."""
        self._waiting += 1
        if self._waiting == 1:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_soon(self._fire)

    def end_waiting(self) -> None:
        """One fewer."""
        self._waiting -= 1

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            self._loop.remove_reader(inotify.fd)
            os.close(inotify.fd)

    def _fire(self) -> None:
        """Listen again, then look. Our own commits touch the log too: while we do not listen they cost nothing."""
        self._timer = None
        if self._closed:
            return
        listening = self._waiting > 0 and self._listen()
        self._look()  # after listening: a commit in between is either seen now or heard of
        if not self._waiting:
            return
        self._timer = self._loop.call_later(_TICK if listening else _POLL, self._fire)

    def _listen(self) -> bool:
        if self._inotify is None or not self._inotify.watch():
            return False
        try:
            self._loop.add_reader(self._inotify.fd, self._on_event, self._inotify.fd)
        except NotImplementedError:  # an event loop that can't watch files
            return False
        return True

    def _on_event(self, fd: int) -> None:
        os.read(fd, 65_536)
        self._loop.remove_reader(fd)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_COALESCE, self._fire)


class _Inotify:
    """The kernel's word that a file was touched."""

    def __init__(self, log: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._log = os.fsencode(log)
        self.fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def watch(self) -> bool:
        """Watch the log; again and again, because it may have been made anew under the same name."""
        return int(self._libc.inotify_add_watch(self.fd, self._log, _IN_ATTRIB)) >= 0


def _inotify(log: Path) -> _Inotify | None:
    try:
        return _Inotify(log)
    except (AttributeError, OSError):  # not on this system, or no more of them
        return None


T = TypeVar("T")
_READERS: Final = 2
_PROGRESS_STEPS: Final = 50_000


class SqliteBackend:
    """`Backend` on SQLite: one writer thread, a few readers, one event loop."""

    def __init__(
        self, path: Path, *, durability: Durability, clock: Clock, limits: StoreLimits, vfs: str | None
    ) -> None:
        self.path: Path = path
        self.clock = clock
        self.limits = limits
        self.owner: Owner = current_owner(clock.read().boot)
        self.store_id = ""
        self.secret = b""
        self._seal: Seal | None = None
        self._durability: Durability = durability
        self._vfs = vfs
        self._loop = asyncio.get_running_loop()
        self._versions = Versions()
        self._wakeup: LogWatcher | None = None
        self._closed = False
        self._queued_bytes = 0
        self._closing: asyncio.Future[None] | None = None
        self._readers: list[ReadConnection] = []
        self._reading: list[ReadConnection] = []
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="holdfast-reader")
        self._writer = StoreWriter(
            path,
            self._connect,
            self.owner,
            clock=clock,
            limits=limits,
            answer=self._answer,
            proves_sync=durability == "power",
        )

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        durability: Durability = "power",
        clock: Clock | None = None,
        limits: StoreLimits | None = None,
        vfs: str | None = None,
    ) -> SqliteBackend:
        """Open the store at `path`, or make one."""
        if durability not in ("power", "process"):
            message = f"durability is 'power' or 'process', not {durability!r}"
            raise UsageError(message)
        absolute = await asyncio.to_thread(_absolute, path)
        backend = cls(
            absolute, durability=durability, clock=clock or SystemClock(), limits=limits or StoreLimits(), vfs=vfs
        )
        start = asyncio.ensure_future(asyncio.to_thread(backend._start))
        try:
            await asyncio.shield(start)
        except asyncio.CancelledError:
            # The thread can't be stopped half-way: let it finish, then undo what it did.
            await asyncio.wait([start])
            if start.exception() is None:
                await asyncio.to_thread(backend._stop)
            raise
        backend._wakeup = LogWatcher(absolute.with_name(absolute.name + "-wal"), backend._look)
        return backend

    @property
    def folder(self) -> Path:
        return self.path.parent

    def _start(self) -> None:
        with translated(self.path):
            try:
                with opening(self.path):
                    prepare(self.path)
                    self._writer.start()
            except OSError as error:
                raise StoreRefused(self.path, f"{error.strerror or error}: {error.filename}") from error
            try:
                # Kept open: while a reader is there, the log outlives a writer that has to reconnect.
                kept = self._connection()
                self._readers.append(kept)
                self.store_id = kept.store_id()
            except BaseException:
                self._stop()
                raise

    def _connection(self) -> ReadConnection:
        """One more connection to read from."""
        return ReadConnection(connect_reader(self.path, self.limits, self._vfs), self.limits, self._seal)

    def _connect(self) -> tuple[Db, Seal]:
        connection = connect_writer(self.path, self._durability, self.limits, self._vfs, self.clock.read().wall)
        if self._seal is None:
            try:
                self._seal, self.secret = load_seal(self.path, connection)
            except BaseException:
                connection.close()
                raise
        return connection, self._seal

    # ---- writing ----

    def submit(self, command: Command[T], then: Callable[[asyncio.Future[T]], None] | None = None) -> asyncio.Future[T]:
        if self._closed or asyncio.get_running_loop() is not self._loop:
            raise self._unusable()
        size = command.size()
        if self._writer.queued() >= self.limits.queued:
            raise StoreBusy(f"{self.limits.queued:,} commands wait for the writer")
        if self._queued_bytes and self._queued_bytes + size > self.limits.queued_bytes:
            raise StoreBusy(f"{self._queued_bytes:,} bytes wait for the writer")
        self._queued_bytes += size
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._writer.submit(WriteJob(command, waiter, size, getattr(command, "patient", False), then))
        return waiter

    def _check_usable(self) -> None:
        if self._closed or asyncio.get_running_loop() is not self._loop:
            raise self._unusable()

    def _unusable(self) -> HoldfastError:
        if self._closed:
            return StoreClosed()
        return UsageError("a store belongs to the event loop it was opened in; open it again in this one")

    def _answer(self, answers: list[tuple[WriteJob, Any]], foreign: bool) -> None:  # noqa: FBT001
        """From the writer's thread: hand the answers to the event loop, all at once."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._deliver, answers, foreign)

    def _deliver(self, answers: list[tuple[WriteJob, Any]], foreign: bool) -> None:  # noqa: FBT001
        wrote = foreign
        for job, answer in answers:
            waiter = job.waiter
            if waiter is None:
                continue
            wrote = True
            self._queued_bytes -= job.size
            if not waiter.done():  # otherwise the caller was cancelled meanwhile
                if isinstance(answer, HoldfastError):
                    waiter.set_exception(answer)
                else:
                    waiter.set_result(answer)
            try:
                if job.then is not None:
                    job.then(waiter)
            except Exception as error:  # noqa: BLE001  others wait for their answers
                told = {"message": "what was to follow a commit failed", "exception": error, "future": waiter}
                self._loop.call_exception_handler(told)
        if wrote:
            self._versions.advance()

    # ---- reading ----

    async def read(self, query: Callable[[Reader], T]) -> T:
        self._check_usable()
        return await self._loop.run_in_executor(self._pool, self._read, query)

    def _read(self, query: Callable[[Reader], T]) -> T:
        with translated(self.path):
            try:
                connection = self._readers.pop()
            except IndexError:
                connection = self._connection()
            self._reading.append(connection)
            try:
                return connection.run(query)
            finally:
                self._reading.remove(connection)
                self._readers.append(connection)

    # ---- changes ----

    @property
    def version(self) -> int:
        return self._versions.current

    @property
    def shared(self) -> bool:
        return self._writer.others

    async def changed(self, version: int, timeout: float | None) -> int:
        self._check_usable()
        wakeup = cast("LogWatcher", self._wakeup)
        wakeup.begin_waiting()
        try:
            found = await self._versions.after(version, timeout)
        finally:
            wakeup.end_waiting()
        self._check_usable()
        return found

    def _look(self) -> None:
        if not self._closed:
            self._writer.submit(WriteJob(None, None))

    async def close(self) -> None:
        if self._closing is None:
            self._closed = True
            if self._wakeup is not None:
                self._wakeup.close()
            self._versions.advance()  # whoever waits for changes learns that there will be none
            self._closing = asyncio.ensure_future(asyncio.to_thread(self._stop))
        await asyncio.shield(self._closing)

    def _stop(self) -> None:
        for connection in list(self._reading):
            connection.interrupt()
        self._pool.shutdown(wait=True)
        for connection in self._readers:
            connection.close()
        self._writer.stop()  # last: only a connection that can write tidies up the log
        closed(self.path)


def _absolute(path: Path | str) -> Path:
    """The path itself, if a file can have it."""
    if not isinstance(path, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument("path", path, "a path")
    try:
        usable = b"\0" not in os.fsencode(path) and bool(str(path))
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise InvalidArgument("path", path, "a path that a file can have")
    return Path(path).absolute()


class ReadConnection:
    """A read connection that gives up on a read that takes too long."""

    def __init__(self, db: Db, limits: StoreLimits, seal: Seal | None) -> None:
        self._db = db
        self._reader = SqliteReader(self._db, limits.page_bytes, seal)
        self._limit = limits.read_ms / 1000
        self._deadline = 0.0
        self._db.set_progress_handler(self._too_long, _PROGRESS_STEPS)

    def _too_long(self) -> bool:
        return time.monotonic() > self._deadline

    def run(self, query: Callable[[Reader], T]) -> T:
        """All that `query` reads is from one state of the store."""
        self._deadline = time.monotonic() + self._limit
        with snapshot(self._db):
            return query(self._reader)

    def store_id(self) -> str:
        """What tells the store from all others."""
        found: bytes = self._db.execute("SELECT value FROM meta WHERE key = 'store_id'").get
        return found.hex()

    def data_version(self) -> int:
        """A number that is another one after a commit of another connection."""
        return int(self._db.pragma("data_version"))

    def interrupt(self) -> None:
        """Let a read that is under way end soon."""
        self._deadline = 0.0

    def close(self) -> None:
        self._db.close()


class SqliteViewer(SqliteBackend):
    """`Backend` that reads and never writes. It sees what other processes commit."""

    _comparing: threading.Lock
    _kept: ReadConnection
    """The connection that tells whether others have written."""
    _version: int

    def _start(self) -> None:
        self._comparing = threading.Lock()
        with translated(self.path), opening(self.path):
            check_viewable(self.path)
            # A copy that can't be written was perhaps made so that others can read it, and has no key.
            is_copy = not (self.path.stat().st_mode & 0o222 and os.access(self.path, os.W_OK))
            if not is_copy:
                check_access(self.path)
            db = connect_viewer(self.path, self.limits, self._vfs)
            try:
                check_schema(self.path, db)
                check_current(self.path, db)
                with nullcontext() if not is_copy else suppress(StoreKeyMissing):
                    self._seal, self.secret = load_seal(self.path, db, look=True)
                self._kept = ReadConnection(db, self.limits, self._seal)
                self.store_id, self._version = self._kept.store_id(), self._kept.data_version()
            except BaseException:
                db.close()
                raise

    def _connection(self) -> ReadConnection:
        return ReadConnection(connect_viewer(self.path, self.limits, self._vfs), self.limits, self._seal)

    def submit(self, command: Command[T], then: Callable[[asyncio.Future[T]], None] | None = None) -> asyncio.Future[T]:  # noqa: ARG002
        self._check_usable()
        raise StoreReadOnly(self.path)

    @property
    def shared(self) -> bool:
        return True

    def _look(self) -> None:
        if not self._closed:
            self._pool.submit(self._compare)

    def _compare(self) -> None:
        """Wake those who wait for changes if another process has committed some."""
        with translated(self.path), self._comparing:
            found = self._kept.data_version()
            changed, self._version = found != self._version, found
        if changed:
            self._answer([], True)  # noqa: FBT003

    def _stop(self) -> None:
        for connection in list(self._reading):
            connection.interrupt()
        self._pool.shutdown(wait=True)
        for connection in (*self._readers, self._kept):
            connection.close()
        closed(self.path)


class Versions:
    """A version that grows. Who has seen version n and waits for more can't miss version n+1."""

    def __init__(self) -> None:
        self.current = 0
        self._next = asyncio.Event()

    def advance(self) -> None:
        """Something changed: wake everyone who waits."""
        self.current += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, version: int, timeout: float | None) -> int:
        """The first version above `version`, or the present one when the time is up."""
        try:
            async with asyncio.timeout(timeout):
                while self.current <= version:
                    await self._next.wait()
        except TimeoutError:
            pass
        return self.current
