"""The backends on a store file: `SqliteBackend`, and `SqliteViewer`, which only reads. `memory` has one in memory."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from holdfast.errors import (
    InvalidArgument,
    StoreKeyMissing,
    StoreReadOnly,
    StoreRefused,
    UsageError,
)
from holdfast.store.backend import Backend, WriteJob
from holdfast.store.sqlite.files import (
    check_access,
    check_current,
    check_schema,
    check_viewable,
    closed,
    connect_reader,
    connect_viewer,
    opening,
    prepare,
    snapshot,
    translated,
)
from holdfast.store.sqlite.key import load_seal
from holdfast.store.sqlite.reader import SqliteReader
from holdfast.store.sqlite.writer import StoreWriter, connect_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.clock import Clock
    from holdfast.store.checksum import Seal
    from holdfast.store.contract import Command, Durability, Reader, StoreLimits
    from holdfast.store.sqlite.files import Db


T = TypeVar("T")
_READERS: Final = 2
_PROGRESS_STEPS: Final = 50_000
_IN_ATTRIB: Final = 0x4
_COALESCE: Final = 0.005
_POLL: Final = 0.025
_TICK: Final = 1.0


class _FileBackend(Backend):
    """A store in one SQLite file: a pool of readers, and a watcher for the commits of other processes."""

    path: Path

    def __init__(self, path: Path, clock: Clock | None, limits: StoreLimits | None) -> None:
        super().__init__(path, clock, limits)
        self._seal: Seal | None = None
        self._readers = ReadPool(path, self._connect_reader)
        self._watcher: LogWatcher
        self._closing: asyncio.Future[None] | None = None

    def _start(self) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        raise NotImplementedError

    def _connect_reader(self) -> ReadConnection:
        raise NotImplementedError

    def _look(self) -> None:
        """Look for commits of other processes."""
        raise NotImplementedError

    async def start(self) -> Self:
        """Open the file in a thread, and watch its log."""
        # A start in a thread can't be stopped half-way: after a cancellation, let it finish and undo it.
        started = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            await asyncio.shield(started)
        except asyncio.CancelledError:
            await asyncio.wait([started])
            if started.exception() is None:
                await asyncio.to_thread(self._stop)
            raise
        self._watcher = LogWatcher(self.path, self._look)
        return self

    async def read(self, query: Callable[[Reader], T]) -> T:
        self._check_usable()
        return await self._loop.run_in_executor(self._readers.threads, self._readers.run, query)

    async def changed(self, version: int, timeout: float | None) -> int:
        self._check_usable()
        with self._watcher.waiting():
            return await super().changed(version, timeout)

    async def close(self) -> None:
        if self._closing is None:
            self._closed = True
            self._watcher.close()
            self._versions.advance()  # wakes the callers of `changed`, which find the store closed
            self._closing = asyncio.ensure_future(asyncio.to_thread(self._stop))
        await asyncio.shield(self._closing)


class SqliteBackend(_FileBackend):
    """A store in one SQLite file, with a writer thread."""

    def __init__(
        self, path: Path, *, durability: Durability, clock: Clock | None, limits: StoreLimits | None, vfs: str | None
    ) -> None:
        super().__init__(path, clock, limits)
        self._durability: Durability = durability
        self._vfs = vfs
        self._writer = StoreWriter(
            path,
            self._connect_writer,
            self.owner,
            clock=self.clock,
            limits=self.limits,
            answer=self._answer,
            proves_sync=durability == "power",
        )
        self._enqueue = self._writer.submit
        self._queue_length = self._writer.queued

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        durability: Durability = "power",
        clock: Clock | None = None,
        limits: StoreLimits | None = None,
        vfs: str | None = None,
    ) -> Self:
        """Open the store at `path`, or create one."""
        if durability not in ("power", "process"):
            message = f"durability is 'power' or 'process', not {durability!r}"
            raise UsageError(message)
        absolute = await asyncio.to_thread(_absolute, path)
        return await cls(absolute, durability=durability, clock=clock, limits=limits, vfs=vfs).start()

    def _start(self) -> None:
        with translated(self.path):
            try:
                with opening(self.path):
                    prepare(self.path)
                    self._writer.start()
            except OSError as error:
                raise StoreRefused(self.path, f"{error.strerror or error}: {error.filename}") from error
            try:
                # This reader stays open, so that the log survives when the writer has to reconnect.
                self.store_id = self._readers.first().store_id()
            except BaseException:
                self._stop()
                raise

    def _stop(self) -> None:
        self._readers.close()
        self._writer.stop()  # last, because only a connection that can write tidies up the log
        closed(self.path)

    def _connect_reader(self) -> ReadConnection:
        return ReadConnection(connect_reader(self.path, self.limits, self._vfs), self.limits, self._seal)

    def _connect_writer(self) -> tuple[Db, Seal]:
        connection = connect_writer(self.path, self._durability, self.limits, self._vfs, self.clock.read().wall)
        if self._seal is None:
            try:
                self._seal, self.secret = load_seal(self.path, connection)
            except BaseException:
                connection.close()
                raise
        return connection, self._seal

    def _answer(self, answers: list[tuple[WriteJob, Any]], foreign: bool) -> None:  # noqa: FBT001
        """Hand a batch of answers from the writer's thread to the event loop."""
        with suppress(RuntimeError):  # the loop is closed: no caller is left
            self._loop.call_soon_threadsafe(self._deliver, answers, foreign)

    def _look(self) -> None:
        if not self._closed:
            self._writer.submit(WriteJob(None, None))

    @property
    def shared(self) -> bool:
        return self._writer.others


class SqliteViewer(_FileBackend):
    """A store file that is read and never written. It sees the commits of other processes."""

    def __init__(self, path: Path, clock: Clock | None, limits: StoreLimits | None) -> None:
        super().__init__(path, clock, limits)
        self._comparing = threading.Lock()
        self._first: ReadConnection
        """The connection that compares data versions."""
        self._data_version = 0

    @classmethod
    async def open(cls, path: Path | str, *, clock: Clock | None = None, limits: StoreLimits | None = None) -> Self:
        """Open the store at `path`, which must exist."""
        return await cls(await asyncio.to_thread(_absolute, path), clock, limits).start()

    def _start(self) -> None:
        with translated(self.path), opening(self.path):
            check_viewable(self.path)
            # A read-only copy may have been made for other users to read, without the key.
            is_copy = not (self.path.stat().st_mode & 0o222 and os.access(self.path, os.W_OK))
            if not is_copy:
                check_access(self.path)
            db = connect_viewer(self.path, self.limits)
            try:
                check_schema(self.path, db)
                check_current(self.path, db)
                with nullcontext() if not is_copy else suppress(StoreKeyMissing):
                    self._seal, self.secret = load_seal(self.path, db, look=True)
                self._first = ReadConnection(db, self.limits, self._seal)
                self.store_id, self._data_version = self._first.store_id(), self._first.data_version()
            except BaseException:
                db.close()
                raise

    def _stop(self) -> None:
        self._readers.close()
        self._first.close()
        closed(self.path)

    def _connect_reader(self) -> ReadConnection:
        return ReadConnection(connect_viewer(self.path, self.limits), self.limits, self._seal)

    def submit(self, command: Command[T], then: Callable[[asyncio.Future[T]], None] | None = None) -> asyncio.Future[T]:  # noqa: ARG002
        self._check_usable()
        raise StoreReadOnly(self.path)

    @property
    def shared(self) -> bool:
        return True

    def _look(self) -> None:
        if not self._closed:
            self._readers.threads.submit(self._compare)

    def _compare(self) -> None:
        """Wake the callers of `changed` if another process has committed."""
        with translated(self.path), self._comparing:
            found = self._first.data_version()
            changed, self._data_version = found != self._data_version, found
        if changed:
            with suppress(RuntimeError):  # the loop is closed: no caller is left
                self._loop.call_soon_threadsafe(self._versions.advance)


def _absolute(path: Path | str) -> Path:
    if not isinstance(path, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument("path", path, "a path")
    try:
        usable = b"\0" not in os.fsencode(path) and bool(str(path))
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise InvalidArgument("path", path, "a path that a file can have")
    return Path(path).absolute()


# ---- reading ----


class ReadPool:
    """Threads that read, and the connections that they share."""

    def __init__(self, path: Path, connect: Callable[[], ReadConnection]) -> None:
        self.threads = ThreadPoolExecutor(_READERS, thread_name_prefix="holdfast-reader")
        self._path = path
        self._connect = connect
        self._idle: list[ReadConnection] = []
        self._busy: list[ReadConnection] = []

    def first(self) -> ReadConnection:
        """Connect now, and keep the connection for reads."""
        connection = self._connect()
        self._idle.append(connection)
        return connection

    def run(self, query: Callable[[Reader], T]) -> T:
        """Run a query in the calling thread, on an idle connection or a new one."""
        with translated(self._path):
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            self._busy.append(connection)
            try:
                return connection.run(query)
            finally:
                self._busy.remove(connection)
                self._idle.append(connection)

    def close(self) -> None:
        """Interrupt running reads and close all connections."""
        for connection in list(self._busy):
            connection.interrupt()
        self.threads.shutdown(wait=True)
        for connection in self._idle:
            connection.close()


class ReadConnection:
    """A connection that reads, and interrupts a read that takes longer than `StoreLimits.read_ms`."""

    def __init__(self, db: Db, limits: StoreLimits, seal: Seal | None) -> None:
        self._db = db
        self._reader = SqliteReader(db, seal, limits.page_bytes)
        self._limit = limits.read_ms / 1000
        self._deadline = 0.0
        db.set_progress_handler(lambda: time.monotonic() > self._deadline, _PROGRESS_STEPS)

    def run(self, query: Callable[[Reader], T]) -> T:
        """Run a query on one snapshot of the store."""
        self._deadline = time.monotonic() + self._limit
        with snapshot(self._db):
            return query(self._reader)

    def store_id(self) -> str:
        """The unique id of the store."""
        found: bytes = self._db.execute("SELECT value FROM meta WHERE key = 'store_id'").get
        return found.hex()

    def data_version(self) -> int:
        """A number that changes when another connection commits."""
        return int(self._db.pragma("data_version"))

    def interrupt(self) -> None:
        """End a running read soon."""
        self._deadline = 0.0

    def close(self) -> None:
        self._db.close()


# ---- changes by other processes ----


class LogWatcher:
    """Calls `look` soon after the write-ahead log was touched, at most 200 times a second, while someone waits."""

    def __init__(self, path: Path, look: Callable[[], None]) -> None:
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._waiting = 0
        self._closed = False
        try:
            self._inotify = _Inotify(path.with_name(path.name + "-wal"))
        except (AttributeError, OSError):  # not on this system, or no more of them
            self._inotify = None

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Watch while this block waits. The first waiter looks at once, for changes that came before."""
        self._waiting += 1
        if self._waiting == 1:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_soon(self._fire)
        try:
            yield
        finally:
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
        """Listen again, then look. Our own commits touch the log too; while we do not listen they cost nothing."""
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
    """Kernel events about one file."""

    def __init__(self, log: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._log = os.fsencode(log)
        self.fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def watch(self) -> bool:
        """Watch the log; each time anew, because it may have been recreated under the same name."""
        return int(self._libc.inotify_add_watch(self.fd, self._log, _IN_ATTRIB)) >= 0
