"""The backends on SQLite: `SqliteBackend` on a store file, `SqliteViewer`, which only reads, and `MemoryBackend`."""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast
from weakref import WeakSet

import apsw

from holdfast import errors
from holdfast.store.backend import Backend, Versions, WriteJob
from holdfast.store.sqlite import files
from holdfast.store.sqlite.key import KEY_BYTES, Seal, load_seal, seals_of_files
from holdfast.store.sqlite.rows import SqliteReader, SqliteRows
from holdfast.store.sqlite.schema import migrate
from holdfast.store.sqlite.sockets import StoreSockets
from holdfast.store.sqlite.writer import RELEASE_LEASES, StoreWriter, connect_writer
from holdfast.store.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.clock import Clock
    from holdfast.store.contract import Command, Durability, Owner, Reader, StoreLimits
    from holdfast.store.spending import SpendOf
    from holdfast.store.sqlite.backup import BackupReport


T = TypeVar("T")
_READERS: Final = 2
_NO_LIMIT: Final = 1e9
_PROGRESS_STEPS: Final = 50_000
_IN_ATTRIB: Final = 0x4
_COALESCE: Final = 0.005
_POLL: Final = 0.025
_TICK: Final = 1.0
_NAME: Final = Path(":memory:")
"""The path of a store in memory, for errors."""
_copying: Final = threading.Lock()
"""Event loops in several threads copy the same empty database."""


class _FileBackend(Backend):
    """A store in one SQLite file: a pool of readers, and a watcher for commits of other processes."""

    path: Path
    _start: Callable[[], None]
    _stop: Callable[[], None]
    _connect_reader: Callable[[], ReadConnection]
    _look: Callable[[], None]

    def __init__(self, path: Path, clock: Clock | None, limits: StoreLimits | None) -> None:
        super().__init__(path, clock, limits)
        self._seal: Seal | None = None
        self._threads = ThreadPoolExecutor(_READERS, thread_name_prefix="holdfast-reader")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="holdfast-long-read")
        self._idle: list[ReadConnection] = []
        self._busy: list[ReadConnection] = []
        self._watcher: LogWatcher
        self._closing: asyncio.Future[None] | None = None

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
        if self._seal is not None:
            self.sockets = StoreSockets(self.path, self._seal.peers)
        return self

    async def read(self, query: Callable[[Reader], T]) -> T:
        self._check_usable()
        return await self._loop.run_in_executor(self._threads, self._run, query)

    async def read_long(self, query: Callable[[Reader], T]) -> T:
        self._check_usable()
        return await self._loop.run_in_executor(self._long, self._run, query, _NO_LIMIT)

    def file_macs(self, store: str, digest: bytes, key: Path | None = None) -> list[str]:
        own = [self._seal] if self._seal is not None and store == self.store_id else []
        seals = [*own, *seals_of_files(self.path, bytes.fromhex(store), key)]
        return [seal.file_mac(digest) for seal in seals]

    def _run(self, query: Callable[[Reader], T], seconds: float | None = None) -> T:
        """Run a query in the calling thread, on an idle connection or a new one."""
        with files.translated(self.path):
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect_reader()
            self._busy.append(connection)
            try:
                return connection.run(query, seconds)
            finally:
                self._busy.remove(connection)
                self._idle.append(connection)

    def _close_readers(self) -> None:
        """Interrupt running reads and close all reading connections."""
        for connection in list(self._busy):
            connection.deadline = 0.0
        for threads in (self._threads, self._long):
            threads.shutdown(wait=True)
        for connection in self._idle:
            connection.db.close()

    async def changed(self, version: int, timeout: float | None) -> int:
        self._check_usable()
        with self._watcher.waiting():
            return await super().changed(version, timeout)

    async def backup(self, target: Path, spend_of: SpendOf | None, *, with_key: bool) -> BackupReport:
        self._check_usable()
        from holdfast.store.sqlite.backup import copy_store  # few processes make backups

        stopped = threading.Event()
        copying = asyncio.ensure_future(
            asyncio.to_thread(copy_store, self.path, target, self.limits, spend_of, stopped.is_set, with_key=with_key)
        )
        try:
            made = await asyncio.shield(copying)
        except asyncio.CancelledError:
            stopped.set()
            await asyncio.wait([copying])
            raise
        if made is None:
            raise errors.StoreClosed
        return made

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
        self._writer = StoreWriter(self, proves_sync=durability == "power")
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
            raise errors.UsageError(f"durability is 'power' or 'process', not {durability!r}")
        absolute = await asyncio.to_thread(_absolute, path)
        return await cls(absolute, durability=durability, clock=clock, limits=limits, vfs=vfs).start()

    def _start(self) -> None:
        with files.translated(self.path):
            try:
                with files.opening(self.path):
                    files.prepare(self.path)
                    self._writer.start()
            except OSError as error:
                raise errors.StoreRefused(self.path, f"{error.strerror or error}: {error.filename}") from error
            try:
                # This reader stays open, so that the log survives when the writer reconnects.
                self._idle.append(self._connect_reader())
                self.store_id = self._idle[0].store_id()
            except BaseException:
                self._stop()
                raise

    @property
    def wiped(self) -> bool:
        return not self._writer.wipes

    def _stop(self) -> None:
        self._close_readers()
        self._writer.stop()  # last: only a connection that can write cleans up the log
        files.closed(self.path)

    def _connect_reader(self) -> ReadConnection:
        return ReadConnection(files.connect_reader(self.path, self.limits, self._vfs), self.limits, self._seal)

    def connect_writer(self) -> tuple[files.Db, Seal]:
        connection = connect_writer(self.path, self._durability, self.limits, self._vfs, self.clock.read().wall)
        if self._seal is None:
            try:
                self._seal, self.secret = load_seal(self.path, connection)
            except BaseException:
                connection.close()
                raise
        return connection, self._seal

    def answer(self, answers: list[tuple[WriteJob, Any]], foreign: bool) -> None:
        """Hand a batch of answers from the writer's thread to the event loop."""
        with suppress(RuntimeError):  # the loop is closed: no caller is left
            self._loop.call_soon_threadsafe(self._deliver, answers, foreign)

    def _look(self) -> None:
        if not self._closed:
            self._writer.submit(WriteJob(None, None))


class SqliteViewer(_FileBackend):
    """A store file opened only for reading. It sees the commits of other processes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, None, None)
        self._comparing = threading.Lock()
        self._first: ReadConnection
        self._data_version = 0

    @classmethod
    async def open(cls, path: Path | str) -> Self:
        """Open the store at `path`, which must exist."""
        return await cls(await asyncio.to_thread(_absolute, path)).start()

    def _start(self) -> None:
        with files.translated(self.path), files.opening(self.path):
            files.check_viewable(self.path)
            # A read-only copy may be for other users to read, without the key.
            is_copy = not (self.path.stat().st_mode & 0o222 and os.access(self.path, os.W_OK))
            if not is_copy:
                files.check_access(self.path)
            db = files.connect_viewer(self.path, self.limits)
            try:
                files.check_schema(self.path, db)
                files.check_current(self.path, db)
                with nullcontext() if not is_copy else suppress(errors.StoreKeyMissing):
                    self._seal, self.secret = load_seal(self.path, db, look=True)
                self._first = ReadConnection(db, self.limits, self._seal)
                self.store_id, self._data_version = self._first.store_id(), self._first.data_version()
            except BaseException:
                db.close()
                raise

    def _stop(self) -> None:
        self._close_readers()
        self._first.db.close()
        files.closed(self.path)

    def _connect_reader(self) -> ReadConnection:
        return ReadConnection(files.connect_viewer(self.path, self.limits), self.limits, self._seal)

    def submit(
        self, command: Command[T], then: Callable[[asyncio.Future[T]], None] | None = None, size: int | None = None
    ) -> asyncio.Future[T]:
        self._check_usable()
        raise errors.StoreReadOnly(self.path)

    def _look(self) -> None:
        if not self._closed:
            self._threads.submit(self._compare)

    def _compare(self) -> None:
        """Wake the callers of `changed` if another process has committed."""
        with files.translated(self.path), self._comparing:
            found = self._first.data_version()
            changed, self._data_version = found != self._data_version, found
        if changed:
            with suppress(RuntimeError):  # the loop is closed: no caller is left
                self._loop.call_soon_threadsafe(self._versions.advance)


def _absolute(path: Path | str) -> Path:
    if not isinstance(path, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise errors.InvalidArgument("path", path, "a path")
    try:
        usable = b"\0" not in os.fsencode(path) and bool(str(path))
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise errors.InvalidArgument("path", path, "a path that a file can have")
    return Path(path).absolute()


# ---- reading ----


class ReadConnection:
    """A reading connection, which interrupts a read longer than `StoreLimits.read_ms`."""

    def __init__(self, db: files.Db, limits: StoreLimits, seal: Seal | None) -> None:
        self.db = db
        self.deadline = 0.0
        self._reader = SqliteReader(db, seal, limits.page_bytes)
        self._limit = limits.read_ms / 1000
        db.set_progress_handler(lambda: time.monotonic() > self.deadline, _PROGRESS_STEPS)

    def run(self, query: Callable[[Reader], T], seconds: float | None = None) -> T:
        """Run a query on one snapshot, for so long at most."""
        self.deadline = time.monotonic() + (self._limit if seconds is None else seconds)
        with files.snapshot(self.db):
            return query(self._reader)

    def store_id(self) -> str:
        found: bytes = self.db.execute("SELECT value FROM meta WHERE key = 'store_id'").get
        return found.hex()

    def data_version(self) -> int:
        """A number that changes when another connection commits."""
        return int(self.db.pragma("data_version"))


# ---- changes by other processes ----


class LogWatcher:
    """Calls `look` soon after a change of the write-ahead log, at most 200 times a second, during waits."""

    def __init__(self, path: Path, look: Callable[[], None]) -> None:
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._waiting = 0
        self._closed = False
        self._log = os.fsencode(path.with_name(path.name + "-wal"))
        self._libc = ctypes.CDLL(None)
        # None where the system does not support it, or has no more of them.
        make = getattr(self._libc, "inotify_init1", None)
        fd = -1 if make is None else int(make(os.O_NONBLOCK | os.O_CLOEXEC))
        self._inotify = None if fd < 0 else fd

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
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        fd, self._inotify = self._inotify, None
        if fd is not None:
            self._loop.remove_reader(fd)
            # The kernel waits for its readers first, some ten milliseconds, which must not block the event loop.
            threading.Thread(target=os.close, args=[fd], name="holdfast-inotify").start()

    def _fire(self) -> None:
        """Listen again, then look. Our own commits touch the log too; they cost nothing while we do not listen."""
        self._timer = None
        if self._closed:
            return
        listening = self._waiting > 0 and self._listen()
        self._look()  # after listening: a commit in between is either seen now or heard of
        if not self._waiting:
            return
        self._timer = self._loop.call_later(_TICK if listening else _POLL, self._fire)

    def _listen(self) -> bool:
        fd = self._inotify
        # Watch the log anew each time: it may have been recreated under the same name.
        if fd is None or self._libc.inotify_add_watch(fd, self._log, _IN_ATTRIB) < 0:
            return False
        try:
            self._loop.add_reader(fd, self._on_event, fd)
        except NotImplementedError:  # an event loop that can't watch files
            return False
        return True

    def _on_event(self, fd: int) -> None:
        os.read(fd, 65_536)
        self._loop.remove_reader(fd)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_COALESCE, self._fire)


# ---- in memory ----


class MemoryDisk:
    """A database in memory. All backends opened on it share its connection."""

    def __init__(self) -> None:
        self.versions = Versions()
        """Shared by all backends, so that each notices the commits of the others."""
        self.openings = 0
        """Number of backends opened on it so far, with the closed ones."""
        self.backends: WeakSet[MemoryBackend] = WeakSet()
        store_id = secrets.token_bytes(16)
        self.store_id = store_id.hex()
        self.seal = Seal(secrets.token_bytes(KEY_BYTES), store_id)
        self.db = _new_database()
        self.db.execute("INSERT INTO meta (key, value) VALUES ('store_id', ?)", (store_id,))
        self._rows = SqliteRows(self.db, "", self.seal)
        self.reader: Reader = SqliteReader(self.db, self.seal)

    def __del__(self) -> None:
        self.db.close(True)  # reference cycles would keep its pages until the next garbage collection

    def commit(self, commands: list[Command[Any]], limits: StoreLimits, clock: Clock) -> list[Any]:
        """Carry out the commands in one transaction; answers a result or an error for each."""
        try:
            self.db.execute("BEGIN")
            self._rows.begin()
            answers = Transaction(self._rows, limits, clock.read()).apply_all(commands)
            self._rows.finish(0)
            self.db.execute("COMMIT")
        except Exception as error:  # a bug, or no memory: each caller gets an answer
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            self._rows.forget()
            if len(commands) == 1:
                return [files.translate(_NAME, error)]
            return [self.commit([command], limits, clock)[0] for command in commands]
        return answers

    def release_leases(self, owner: Owner) -> None:
        self.db.execute(RELEASE_LEASES, (owner.instance,))
        self._rows.forget()  # it caches journal rows with their owners


def _new_database() -> files.Db:
    """A copy of an empty store, thirty times as fast as creating the tables."""
    made = apsw.Connection(":memory:")
    with _copying, made.backup("main", _empty_database(), "main") as copy:
        copy.step(-1)
    return cast("files.Db", made)


@cache
def _empty_database() -> apsw.Connection:
    made = apsw.Connection(":memory:")
    migrate(cast("files.Db", made), 0)
    return made


class MemoryBackend(Backend):
    """A backend in memory. All commands queued when the event loop turns go into one commit.

    `delay` (seconds, called twice per batch) puts time between acceptance, commit and answer, so that a simulation can
    crash in between. Reads run at once on the event loop: `StoreLimits.read_ms` does not interrupt them.
    """

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        *,
        clock: Clock | None = None,
        limits: StoreLimits | None = None,
        delay: Callable[[], float] | None = None,
    ) -> None:
        self.disk = disk or MemoryDisk()
        super().__init__(None, clock, limits, self.disk.versions)
        self.disk.openings += 1
        self.disk.backends.add(self)
        for each in self.disk.backends:
            each.shared = self.disk.openings > 1
        self.store_id = self.disk.store_id
        self.secret = self.disk.seal.token_key(None)
        self._reader: Reader = SqliteReader(self.disk.db, self.disk.seal, self.limits.page_bytes)
        self._delay = delay
        self._queue: list[WriteJob] = []
        self._queue_length = lambda: len(self._queue)
        self._enqueue = self._add_job
        self._batch: list[WriteJob] = []
        """Committed, or about to be, and not yet answered."""
        self._scheduled = False

    def _add_job(self, job: WriteJob) -> None:
        self._queue.append(job)
        if not self._scheduled:
            self._scheduled = True
            self._commit_later()

    def _commit_later(self) -> None:
        if self._delay is None:
            self._loop.call_soon(self._commit)
        else:
            self._loop.call_later(self._delay(), self._commit)

    def _commit(self) -> None:
        if self._closed:
            return
        self._batch, self._queue = self._queue[: self.limits.batch], self._queue[self.limits.batch :]
        commands = [job.command for job in self._batch if job.command is not None]
        answers = list(zip(self._batch, self.disk.commit(commands, self.limits, self.clock), strict=True))
        if self._delay is None:
            self._answer(answers)
        else:
            self._loop.call_later(self._delay(), self._answer, answers)

    def _answer(self, answers: list[tuple[WriteJob, Any]]) -> None:
        if self._closed:
            return
        self._batch = []
        more = self._scheduled = bool(self._queue)
        self._deliver(answers, False)  # its callbacks may submit more, which schedules itself
        if more:
            self._commit_later()

    async def read(self, query: Callable[[Reader], T]) -> T:
        self._check_usable()
        with files.translated(_NAME):
            return query(self._reader)

    def file_macs(self, store: str, digest: bytes, key: Path | None = None) -> list[str]:
        own = [self.disk.seal] if store == self.store_id else []
        return [seal.file_mac(digest) for seal in (*own, *seals_of_files(None, bytes.fromhex(store), key))]

    def crash(self) -> None:
        """Stop at once, like a killed process: queued commands are lost, and no caller gets a result."""
        self._closed = True
        for job in (*self._batch, *self._queue):
            if job.waiter is not None and not job.waiter.done():
                job.waiter.set_exception(errors.StoreClosed())
                job.waiter.exception()  # its caller died with the process: an unread error is no warning
                if job.then is not None:
                    self._loop.call_soon(job.then, job.waiter)
        self._batch, self._queue = [], []

    async def close(self) -> None:
        while self._scheduled and not self._closed:
            # Wait for the batch, not for the futures: one with a cancelled caller is done before its batch.
            await self._versions.after(self._versions.current, None)
        if not self._closed:
            self.disk.release_leases(self.owner)
        self._closed = True
        self._versions.advance()
