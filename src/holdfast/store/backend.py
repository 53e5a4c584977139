"""The contract of a backend, with the part that all backends share; `sqlite/backend.py` implements it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import BackupRefused, HoldfastError, StoreBusy, StoreClosed, UsageError
from holdfast.store.contract import Command, Owner, Reader, StoreLimits
from holdfast.store.lease import current_owner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.store.spending import SpendOf
    from holdfast.store.sqlite.backup import BackupReport
    from holdfast.store.sqlite.sockets import StoreSockets


T = TypeVar("T")


class WriteJob(msgspec.Struct):
    """A command with the future of its caller; without a command, a check for commits of other processes."""

    command: Command[Any] | None
    waiter: asyncio.Future[Any] | None
    size: int = 0
    patient: bool = False
    """The caller does not wait yet."""
    then: Callable[[asyncio.Future[Any]], None] | None = None


class Backend:
    """The storage of a store: a queue of commands with its limits, consistent reads, and notice of changes.

    A subclass for another database implements this, and passes `holdfast.testing.conformance`:

    - `store_id` and `secret`, set when it opens;
    - `_enqueue` and `_queue_length`: the queue of the jobs that `submit` accepts. The backend carries them out in their
      order, many in one transaction: `Transaction(rows, limits, now).apply_all(commands)`, the commit, and then
      `_deliver(answers, foreign)` on the event loop. `rows` has the methods and tables of `SqliteRows`. A refused
      command has written nothing; a failure undoes the whole transaction, and each caller gets an error;
    - `read`: runs a query on an object with the methods and tables of `SqliteReader`, over one consistent state;
    - `sockets`, set when it opens, unless no other process can open the store: an object with the methods of
      `StoreSockets`, by which the processes send each other live events;
    - `shared`, kept up to date with each commit, and `_versions.advance()` after commits of other processes, while
      callers wait in `changed`;
    - `close`: commits everything that is queued, and releases the leases of this opening.
    """

    _enqueue: Callable[[WriteJob], None]
    _queue_length: Callable[[], int]

    def __init__(
        self, path: Path | None, clock: Clock | None, limits: StoreLimits | None, versions: Versions | None = None
    ) -> None:
        self.path = path
        """The file of the store; None in memory."""
        self.clock: Clock = clock or SystemClock()
        self.limits: StoreLimits = limits or StoreLimits()
        self.owner: Owner = current_owner(self.clock.read().boot)
        self.store_id = ""
        self.secret = b""
        """The key of wait tokens."""
        self.shared = True
        """False if no other process has this store open, as of the last commit."""
        self.sockets: StoreSockets | None = None
        """Connects the processes that have this store open; None if no other process can."""
        self._loop = asyncio.get_running_loop()
        self._versions = versions or Versions()
        self._closed = False
        self._queued_bytes = 0

    def submit(
        self, command: Command[T], then: Callable[[asyncio.Future[T]], None] | None = None, size: int | None = None
    ) -> asyncio.Future[T]:
        """Queue a command; commands run in the order of queueing.

        The future is done when the change is durable. `then` is called with it as soon as it is done, before its
        waiters go on. `size` is that of the command, if known.
        """
        self._check_usable()
        size = command.size() if size is None else size
        if self._queue_length() >= self.limits.queued:
            raise StoreBusy(f"{self.limits.queued:,} commands wait for the writer")
        if self._queued_bytes and self._queued_bytes + size > self.limits.queued_bytes:
            raise StoreBusy(f"{self._queued_bytes:,} bytes wait for the writer")
        self._queued_bytes += size
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._enqueue(WriteJob(command, waiter, size, getattr(command, "patient", False), then))
        return waiter

    def _deliver(self, answers: list[tuple[WriteJob, Any]], foreign: bool) -> None:
        """Answer the callers of a batch; `foreign` says that another process may have committed too."""
        wrote = foreign
        for job, answer in answers:
            waiter = job.waiter
            if waiter is None:
                continue
            wrote = True
            self._queued_bytes -= job.size
            if not waiter.done():  # the caller was not cancelled meanwhile
                if isinstance(answer, HoldfastError):
                    waiter.set_exception(answer)
                else:
                    waiter.set_result(answer)
            try:
                if job.then is not None:
                    job.then(waiter)
            except Exception as error:  # the other callers still need their answers
                context = {"message": "the callback of a commit failed", "exception": error, "future": waiter}
                self._loop.call_exception_handler(context)
        if wrote:
            self._versions.advance()

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreClosed
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError("a store belongs to the event loop it was opened in; open it again in this one")

    async def read(self, query: Callable[[Reader], T]) -> T:
        """Run `query` on a consistent state, in a thread if it can block."""
        raise NotImplementedError

    async def read_long(self, query: Callable[[Reader], T]) -> T:
        """`read` without a limit of time, for one caller at a time."""
        return await self.read(query)

    def file_macs(self, store: str, digest: bytes, key: Path | None = None) -> list[str]:
        """The MACs that a session file with this digest may have from the store with this id: with its `key`, or ours.

        The first one for its own id is its own.
        """
        raise NotImplementedError

    @property
    def wiped(self) -> bool:
        """False while bytes of forgotten sessions may still be in a log of this store."""
        return True

    async def backup(self, target: Path, spend_of: SpendOf | None, *, with_key: bool) -> BackupReport:
        """Copy the store into a new file, if it is in a file."""
        raise BackupRefused(target, "only a store in a file can be backed up")

    @property
    def version(self) -> int:
        """A number that grows with every commit seen by this process, its own and others."""
        return self._versions.current

    async def changed(self, version: int, timeout: float | None) -> int:
        """Wait for a newer version than `version`, or for the timeout; answers the present one."""
        self._check_usable()
        found = await self._versions.after(version, timeout)
        self._check_usable()
        return found

    async def close(self) -> None:
        """Commit everything that is queued, then close."""
        raise NotImplementedError


class Versions:
    """A growing version. A waiter that has seen version n can't miss version n+1."""

    def __init__(self) -> None:
        self.current = 0
        self._next = asyncio.Event()

    def advance(self) -> None:
        """Count one change and wake all waiters."""
        self.current += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, version: int, timeout: float | None) -> int:
        """The first version above `version`, or the present one after the timeout."""
        try:
            async with asyncio.timeout(timeout):
                while self.current <= version:
                    await self._next.wait()
        except TimeoutError:
            pass
        return self.current
