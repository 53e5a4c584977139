"""A store in memory: SQLite without a file, run on the event loop. For tests, simulations and throw-away runs.

`MemoryDisk` is the database. It outlives the backends opened on it, so a test can drop a backend in the middle of
anything (that is a crash) and open another one on what was committed.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import apsw

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, StoreBusy, StoreClosed
from holdfast.store.checksum import KEY_BYTES, Seal
from holdfast.store.lease import current_owner
from holdfast.store.limits import StoreLimits
from holdfast.store.sqlite.backend import Versions
from holdfast.store.sqlite.files import translate, translated
from holdfast.store.sqlite.reader import SqliteReader
from holdfast.store.sqlite.rows import SqliteRows
from holdfast.store.sqlite.schema import migrate
from holdfast.store.sqlite.writer import RELEASE_LEASES
from holdfast.store.transaction import Transaction, command_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.store.contract import Command, Owner, Reader
    from holdfast.store.sqlite.connection import Db


T = TypeVar("T")
_NAME: Final = Path(":memory:")
"""Names the store in errors."""
_copying: Final = threading.Lock()
"""Threads with event loops of their own copy the same empty store."""


class MemoryDisk:
    """A database in memory. All backends opened on it share its one connection, and so each other's commits."""

    def __init__(self) -> None:
        self.versions = Versions()
        """Shared by all openings, so that each notices what the others commit."""
        self.openings = 0
        """How many have opened it so far, also those that are gone."""
        store_id = secrets.token_bytes(16)
        self.store_id = store_id.hex()
        self.seal = Seal(secrets.token_bytes(KEY_BYTES), store_id)
        self.db = _new_database()
        self.db.execute("INSERT INTO meta (key, value) VALUES ('store_id', ?)", (store_id,))
        self._rows = SqliteRows(self.db, "", self.seal)
        self.reader: Reader = SqliteReader(self.db, seal=self.seal)

    def __del__(self) -> None:
        self.db.close(True)  # noqa: FBT003  the rows refer to each other: their pages would wait for the garbage collector

    def commit(self, commands: list[Command[Any]], limits: StoreLimits, clock: Clock) -> list[Any]:
        """Carry out the commands in one transaction; answers a result or an error for each."""
        try:
            return self._transact(commands, limits, clock)
        except Exception as error:  # noqa: BLE001  a bug, or no memory: each caller gets an answer
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            self._rows.forget()
            if len(commands) == 1:
                return [translate(_NAME, error) if isinstance(error, apsw.Error) else command_failure(error)]
        return [self.commit([command], limits, clock)[0] for command in commands]

    def _transact(self, commands: list[Command[Any]], limits: StoreLimits, clock: Clock) -> list[Any]:
        self.db.execute("BEGIN")
        self._rows.begin()
        transaction = Transaction(self._rows, limits, clock.read())
        answers: list[Any] = []
        for command in commands:
            try:
                answers.append(transaction.apply(command))
            except HoldfastError as refusal:
                answers.append(refusal)
        self._rows.finish(0)
        self.db.execute("COMMIT")
        return answers

    def give_back(self, owner: Owner) -> None:
        """Free the leases of an opening that is closed."""
        self.db.execute(RELEASE_LEASES, (owner.instance,))
        self._rows.forget()  # it keeps rows with their owners


def _new_database() -> Db:
    """A copy of an empty store: making the tables anew takes thirty times as long."""
    made = apsw.Connection(":memory:")
    with _copying, made.backup("main", _empty_database(), "main") as copy:
        copy.step(-1)
    return cast("Db", made)


@cache
def _empty_database() -> apsw.Connection:
    made = apsw.Connection(":memory:")
    migrate(cast("Db", made), 0, lambda: None)
    return made


class MemoryBackend:
    """`Backend` in memory, with group commit as the event loop turns.

    `delay` (seconds, called twice per batch) puts time between acceptance, commit and answer: what a simulation needs
    to crash in between.
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
        self.clock = clock or SystemClock()
        self.limits = limits or StoreLimits()
        self.owner = current_owner(self.clock.read().boot)
        self.store_id = self.disk.store_id
        self.secret = self.disk.seal.token_key(None)
        self.folder: Path | None = None
        self.path: Path | None = None
        self._reader: Reader = SqliteReader(self.disk.db, self.limits.page_bytes, self.disk.seal)
        self._loop = asyncio.get_running_loop()
        self._delay = delay
        self._versions = self.disk.versions
        self._queue: list[tuple[Command[Any], asyncio.Future[Any]]] = []
        self._unanswered: dict[asyncio.Future[Any], None] = {}  # ordered, so that a simulation can be repeated
        self._scheduled = False
        self._closed = False

    def submit(self, command: Command[T], then: Callable[[asyncio.Future[T]], None] | None = None) -> asyncio.Future[T]:
        if self._closed:
            raise StoreClosed
        if len(self._queue) >= self.limits.queued:
            raise StoreBusy(f"{self.limits.queued:,} commands wait for the writer")
        waiter: asyncio.Future[Any] = self._loop.create_future()
        if then is not None:
            waiter.add_done_callback(then)
        self._queue.append((command, waiter))
        self._unanswered[waiter] = None
        if not self._scheduled:
            self._scheduled = True
            self._later(self._commit)
        return waiter

    def _later(self, callback: Callable[..., None], *values: object) -> None:
        if self._delay is None:
            self._loop.call_soon(callback, *values)
        else:
            self._loop.call_later(self._delay(), callback, *values)

    def _commit(self) -> None:
        if self._closed:
            return
        batch, self._queue = self._queue[: self.limits.batch], self._queue[self.limits.batch :]
        answers = self.disk.commit([command for command, _ in batch], self.limits, self.clock)
        self._later(self._deliver, [(waiter, answer) for (_, waiter), answer in zip(batch, answers, strict=True)])

    def _deliver(self, answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
        if self._closed:
            return
        for waiter, answer in answers:
            self._unanswered.pop(waiter, None)
            if waiter.done():
                continue
            if isinstance(answer, HoldfastError):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)
        self._versions.advance()
        self._scheduled = bool(self._queue)
        if self._scheduled:
            self._later(self._commit)

    async def read(self, query: Callable[[Reader], T]) -> T:
        if self._closed:
            raise StoreClosed
        with translated(_NAME):
            return query(self._reader)

    @property
    def version(self) -> int:
        return self._versions.current

    @property
    def shared(self) -> bool:
        return self.disk.openings > 1

    async def changed(self, version: int, timeout: float | None) -> int:
        if self._closed:
            raise StoreClosed
        found = await self._versions.after(version, timeout)
        if self._closed:
            raise StoreClosed
        return found

    def crash(self) -> None:
        """Stop at once, as a killed process does: what was not committed is gone, and nobody gets an answer."""
        self._closed = True
        for waiter in self._unanswered:
            if not waiter.done():
                waiter.set_exception(StoreClosed())
                waiter.exception()  # whoever waited died with the process: nobody has to look at it
        self._unanswered.clear()

    async def close(self) -> None:
        while self._unanswered and not self._closed:
            # Not for the answers themselves: one whose caller was cancelled is done before it is delivered.
            await self._versions.after(self._versions.current, None)
        if not self._closed:
            self.disk.give_back(self.owner)
        self._closed = True
        self._versions.advance()
