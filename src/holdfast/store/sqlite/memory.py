"""A store in memory: SQLite without a file, run on the event loop. For tests, simulations and throw-away runs.

`MemoryDisk` is the database. It outlives its backends, so a test can drop a backend at any moment (a crash) and open
another one on the committed state.
"""

from __future__ import annotations

import secrets
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import apsw

from holdfast.errors import StoreClosed
from holdfast.store.backend import Backend, Versions
from holdfast.store.checksum import KEY_BYTES, Seal
from holdfast.store.sqlite.files import translate, translated
from holdfast.store.sqlite.reader import SqliteReader
from holdfast.store.sqlite.rows import SqliteRows
from holdfast.store.sqlite.schema import migrate
from holdfast.store.sqlite.writer import RELEASE_LEASES
from holdfast.store.transaction import Transaction, command_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.store.backend import WriteJob
    from holdfast.store.contract import Command, Owner, Reader, StoreLimits
    from holdfast.store.sqlite.files import Db


T = TypeVar("T")
_NAME: Final = Path(":memory:")
"""Stands for the path of the store in errors."""
_copying: Final = threading.Lock()
"""Event loops in several threads copy the same empty database."""


class MemoryDisk:
    """A database in memory. All backends opened on it share its connection."""

    def __init__(self) -> None:
        self.versions = Versions()
        """Shared by all backends, so that each notices the commits of the others."""
        self.openings = 0
        """How many backends were opened on it, with the closed ones."""
        store_id = secrets.token_bytes(16)
        self.store_id = store_id.hex()
        self.seal = Seal(secrets.token_bytes(KEY_BYTES), store_id)
        self.db = _new_database()
        self.db.execute("INSERT INTO meta (key, value) VALUES ('store_id', ?)", (store_id,))
        self._rows = SqliteRows(self.db, "", self.seal)
        self.reader: Reader = SqliteReader(self.db, self.seal)

    def __del__(self) -> None:
        self.db.close(True)  # noqa: FBT003  reference cycles would keep its pages until the next garbage collection

    def commit(self, commands: list[Command[Any]], limits: StoreLimits, clock: Clock) -> list[Any]:
        """Carry out the commands in one transaction; answers a result or an error for each."""
        try:
            self.db.execute("BEGIN")
            self._rows.begin()
            answers = Transaction(self._rows, limits, clock.read()).apply_all(commands)
            self._rows.finish(0)
            self.db.execute("COMMIT")
        except Exception as error:  # noqa: BLE001  a bug, or no memory: each caller gets an answer
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            self._rows.forget()
            if len(commands) == 1:
                return [translate(_NAME, error) if isinstance(error, apsw.Error) else command_failure(error)]
            return [self.commit([command], limits, clock)[0] for command in commands]
        return answers

    def release_leases(self, owner: Owner) -> None:
        """Release the leases of a backend that is closed."""
        self.db.execute(RELEASE_LEASES, (owner.instance,))
        self._rows.forget()  # it caches journal rows with their owners


def _new_database() -> Db:
    """A copy of an empty store, thirty times as fast as creating the tables."""
    made = apsw.Connection(":memory:")
    with _copying, made.backup("main", _empty_database(), "main") as copy:
        copy.step(-1)
    return cast("Db", made)


@cache
def _empty_database() -> apsw.Connection:
    made = apsw.Connection(":memory:")
    migrate(cast("Db", made), 0, lambda: None)
    return made


class MemoryBackend(Backend):
    """A backend in memory. Everything that is queued when the event loop turns goes into one commit.

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
        self.disk.openings += 1
        super().__init__(None, clock, limits, self.disk.versions)
        self.store_id = self.disk.store_id
        self.secret = self.disk.seal.token_key(None)
        self._reader: Reader = SqliteReader(self.disk.db, self.disk.seal, self.limits.page_bytes)
        self._delay = delay
        self._queue: list[WriteJob] = []
        self._queue_length = lambda: len(self._queue)
        self._enqueue = self._add_job
        self._unanswered: dict[int, WriteJob] = {}  # in the order of submission, so that a simulation can be repeated
        self._scheduled = False

    def _add_job(self, job: WriteJob) -> None:
        self._queue.append(job)
        self._unanswered[id(job)] = job
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
        batch, self._queue = self._queue[: self.limits.batch], self._queue[self.limits.batch :]
        commands = [job.command for job in batch if job.command is not None]
        answers = list(zip(batch, self.disk.commit(commands, self.limits, self.clock), strict=True))
        if self._delay is None:
            self._answer(answers)
        else:
            self._loop.call_later(self._delay(), self._answer, answers)

    def _answer(self, answers: list[tuple[WriteJob, Any]]) -> None:
        if self._closed:
            return
        for job, _ in answers:
            self._unanswered.pop(id(job), None)
        more = self._scheduled = bool(self._queue)
        self._deliver(answers, False)  # noqa: FBT003  its callbacks may submit more, which schedules itself
        if more:
            self._commit_later()

    async def read(self, query: Callable[[Reader], T]) -> T:
        self._check_usable()
        with translated(_NAME):
            return query(self._reader)

    @property
    def shared(self) -> bool:
        return self.disk.openings > 1

    def crash(self) -> None:
        """Stop at once, like a killed process: queued commands are lost, and no caller gets a result."""
        self._closed = True
        for job in self._unanswered.values():
            if job.waiter is not None and not job.waiter.done():
                job.waiter.set_exception(StoreClosed())
                job.waiter.exception()  # its caller died with the process: an unread error is no warning
                if job.then is not None:
                    self._loop.call_soon(job.then, job.waiter)
        self._unanswered.clear()

    async def close(self) -> None:
        while self._unanswered and not self._closed:
            # Wait for the batch, not for the futures: one with a cancelled caller is done before its batch.
            await self._versions.after(self._versions.current, None)
        if not self._closed:
            self.disk.release_leases(self.owner)
        self._closed = True
        self._versions.advance()
