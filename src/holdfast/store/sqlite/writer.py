"""The writer thread of a store file: group commit, checkpoints, and the answer after a failed commit.

All commands queued when the thread is free go into one transaction. Commands without a waiting caller linger for a
moment, so that the next command shares their commit; a command with a waiting caller never waits for a timer. The
writer answers after the commit that holds the command.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import apsw
import msgspec

from holdfast import errors
from holdfast.crashpoints import crash_point
from holdfast.store.lease import is_gone
from holdfast.store.sqlite.files import Db, check_schema, check_version, connect, translate
from holdfast.store.sqlite.key import Seal, keep_key, make_seal
from holdfast.store.sqlite.rows import SqliteRows, owner_of
from holdfast.store.sqlite.schema import SEALED, VERSION, migrate
from holdfast.store.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.store.backend import WriteJob
    from holdfast.store.contract import Durability, StoreLimits
    from holdfast.store.sqlite.backend import SqliteBackend


_NO_LOG: Final = "the file system can't hold a write-ahead log, which needs shared memory; use a local disk"
_FRAME: Final = 4_096 + 24
_CHECKPOINT_FRAMES: Final = 1_000
_RESET_BUSY_MS: Final = 50
_WIPE_BUSY_MS: Final = 500
_LINGER: Final = 0.0005
"""Time that a patient command waits for others, in seconds: about that of a commit."""
RELEASE_LEASES: Final = """
    UPDATE journals SET owner = NULL, expires = 0, mono_expires = 0
    WHERE owner IS NOT NULL AND json_extract(owner, '$.instance') = ?
"""
"""Releases the leases of one owner."""
Answer = Any  # the result of a command, or its error


class StoreWriter:
    """Owns the connection that writes. All methods but `start`, `submit` and `stop` run in its thread."""

    def __init__(self, backend: SqliteBackend, *, proves_sync: bool) -> None:
        self._backend = backend
        self._path, self._limits = backend.path, backend.limits
        self._log = self._path.with_name(f"{self._path.name}-wal")
        self._answer = backend.answer
        self._proves_sync = proves_sync
        self._queue: SimpleQueue[WriteJob | None] = SimpleQueue()
        self.submit: Callable[[WriteJob], None] = self._queue.put
        """Queue a job; the backend answers it."""
        self.queued = self._queue.qsize
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._rows: SqliteRows | None = None
        """Of the writing connection; None without one, after a failure."""
        self._batch = 0
        self._checkpoint_after = min(_CHECKPOINT_FRAMES, self._limits.wal_bytes // _FRAME // 2)
        self._frames = 0
        self._checkpointed = 0
        self.wipes = False
        """Bytes of forgotten sessions may be in the log."""
        self._marked = False
        """The store has a mark that they were."""

    # ---- from the event loop ----

    def start(self) -> None:
        """Connect in the calling thread, so that the caller gets a refusal; then start the thread."""
        self._attach(*self._backend.connect_writer())
        try:
            self._register()
            self.wipes = self._attached().retention.wipe_due()
            self._wipe()
        except BaseException:
            self._detach()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Commit everything that is queued, then close."""
        self._queue.put(None)
        self._thread.join()

    # ---- the thread ----

    def _run(self) -> None:
        running = True
        while running:
            jobs, running = self._take()
            if jobs:
                self._serve(jobs)
        self._close()

    def _take(self) -> tuple[list[WriteJob], bool]:
        """All queued jobs up to the limits of one transaction, and False at the end."""
        jobs: list[WriteJob] = []
        size = 0
        patient = True
        job = self._queue.get()
        while True:
            if job is None:
                return jobs, False
            jobs.append(job)
            size += job.size
            patient = patient and job.patient
            if len(jobs) >= self._limits.batch or size >= self._limits.batch_bytes:
                return jobs, True
            try:
                # Linger once, not again for each new job.
                job = self._queue.get(timeout=_LINGER) if patient and len(jobs) == 1 else self._queue.get_nowait()
            except Empty:
                return jobs, True

    def _serve(self, jobs: list[WriteJob]) -> None:
        answers, foreign = self._commit(jobs)
        self._wipe()
        crash_point("store.before_answer")
        self._answer(list(zip(jobs, answers, strict=True)), foreign)
        crash_point("store.answered")
        self._maintain()

    def _commit(self, jobs: list[WriteJob]) -> tuple[list[Answer], bool]:
        """Commit all jobs in one transaction, or each by itself if that fails.

        Answers a result for each, and True if other processes may have written.
        """
        if self._rows is None and not self._reattach():
            return [errors.StoreFailed("it could not be opened again after a failed commit")] * len(jobs), False
        rows = self._attached()
        if all(job.command is None for job in jobs):
            try:
                return [None] * len(jobs), self._begin(rows)
            except apsw.Error:
                return [None] * len(jobs), True
        if (pinned := self._pinned()) is not None:
            return [pinned] * len(jobs), False
        try:
            answers, foreign, changed = self._execute(rows, jobs)
        except apsw.BusyError as error:
            self._roll_back()  # each job by itself would only wait again
            return [translate(self._path, error)] * len(jobs), False
        except Exception as error:
            self._roll_back()
            if len(jobs) == 1:
                return [translate(self._path, error)], True
            return [self._commit([job])[0][0] for job in jobs], True  # each job gets its own answer; none is lost
        if not changed:
            rows.db.execute("ROLLBACK")
            return answers, foreign
        try:
            rows.db.execute("COMMIT")
        except apsw.Error as error:
            return self._after_failed_commit(answers, error), True
        crash_point("store.committed")
        self._ring()
        return answers, foreign

    def _execute(self, rows: SqliteRows, jobs: list[WriteJob]) -> tuple[list[Answer], bool, bool]:
        rows.db.execute("BEGIN IMMEDIATE")
        crash_point("store.begun")
        foreign = self._begin(rows)
        answers = Transaction(rows, self._limits, self._backend.clock.read()).apply_all([job.command for job in jobs])
        self._batch += 1
        changed = rows.finish(self._batch)
        if rows.wipe_due:
            self.wipes, rows.wipe_due = True, False
        elif self._marked and not self.wipes and changed:
            rows.db.execute("DELETE FROM meta WHERE key = 'wipe_due'")
            self._marked = False
        crash_point("store.written")
        return answers, foreign, changed

    def _ring(self) -> None:
        """Touch the log, so that other processes look: the last write to it came before the commit was visible."""
        if not self._backend.shared:
            return
        with suppress(OSError):
            os.utime(self._log)

    def _begin(self, rows: SqliteRows) -> bool:
        """Drop cached rows that others have changed since the last transaction or look; True if other processes have
        written.
        """
        foreign = rows.begin()
        if foreign:
            self._backend.shared = rows.others()
        return foreign

    def _roll_back(self) -> None:
        rows = self._attached()
        rows.forget()
        try:
            if rows.db.in_transaction:
                rows.db.execute("ROLLBACK")
        except apsw.Error:
            self._detach()

    # ---- after a failed commit ----

    def _after_failed_commit(self, answers: list[Answer], error: apsw.Error) -> list[Answer]:
        """Close, reopen and look if the commit happened. The commit itself is never repeated."""
        failure = translate(self._path, error)
        evidence = self._attached().evidence
        self._detach()
        if not self._reattach():
            return [errors.CommitUnknown(f"{failure}; the store could not be opened again")] * len(answers)
        rows = self._attached()
        try:
            if not rows.happened(evidence):
                self._bury(rows.db, error)
                # Refused commands get it too: a refusal may follow from a command that did not happen.
                return [failure] * len(answers)
            if self._proves_sync:
                # The commit is visible, but its sync failed, and the kernel may have dropped the pages. Copying the log
                # into the database writes them anew, and a sync that succeeds now is about these writes.
                self._reset_log(rows.db, self._limits.busy_ms)
        except apsw.Error as trouble:
            return [errors.CommitUnknown(f"{failure}; then: {trouble}")] * len(answers)
        return answers

    def _bury(self, db: Db, error: apsw.Error) -> None:
        """Make sure that the failed commit never comes back.

        After a failed sync its frames may be complete in the log, only not counted; after a crash, recovery would count
        them. A small commit overwrites them. A full disk has cut them off already.
        """
        if not isinstance(error, apsw.FullError):
            self._batch += 1
            db.execute("UPDATE writers SET batch = ? WHERE instance = ?", (self._batch, self._backend.owner.instance))

    def _reset_log(self, db: Db, busy_ms: int) -> None:
        """Copy the whole log into the database and restart it; `apsw.BusyError` if a reader is in the way."""
        db.set_busy_timeout(busy_ms)
        try:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            db.set_busy_timeout(self._limits.busy_ms)

    # ---- the connection ----

    def _attached(self) -> SqliteRows:
        if self._rows is None:
            raise errors.StoreClosed
        return self._rows

    def _attach(self, db: Db, seal: Seal) -> None:
        db.set_wal_hook(self._on_wal)
        self._rows = SqliteRows(db, self._backend.owner.instance, seal)

    def _on_wal(self, _db: Db, _name: str, frames: int) -> int:
        self._frames = frames
        return apsw.SQLITE_OK

    def _detach(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            with suppress(apsw.Error):
                rows.db.close(force=True)

    def _reattach(self) -> bool:
        try:
            self._attach(*self._backend.connect_writer())
        except (apsw.Error, errors.HoldfastError, OSError):
            return False
        return True

    def _register(self) -> None:
        """Add the row of this writer, and remove the rows of processes that have ended."""
        db, own = self._attached().db, self._backend.owner
        db.execute("BEGIN IMMEDIATE")
        for instance, text in db.execute("SELECT instance, owner FROM writers").fetchall():
            if is_gone(owner_of(text)):
                db.execute("DELETE FROM writers WHERE instance = ?", (instance,))
        owner = msgspec.json.encode(own).decode()
        db.execute("INSERT INTO writers (instance, owner, batch) VALUES (?, ?, 0)", (own.instance, owner))
        db.execute("COMMIT")
        self._ring()

    def _close(self) -> None:
        if self._rows is None:
            return
        db, own = self._rows.db, (self._backend.owner.instance,)
        with suppress(apsw.Error):
            db.execute("BEGIN IMMEDIATE")
            db.execute(RELEASE_LEASES, own)
            db.execute("DELETE FROM writers WHERE instance = ?", own)
            db.execute("COMMIT")
            self._reset_log(db, _RESET_BUSY_MS)
        self._detach()

    # ---- the write-ahead log ----

    def _maintain(self) -> None:
        """Checkpoint the log from time to time, so that it stays small."""
        if self._rows is None or self._frames - self._checkpointed < self._checkpoint_after:
            if self._frames < self._checkpointed:
                self._checkpointed = 0  # the log began anew
            return
        # A reader may be in the way. After an error the commits are safe in the log, and SQLite copies the pages again.
        with suppress(apsw.Error):
            crash_point("store.before_checkpoint")
            self._checkpointed = self._frames
            if self._frames * _FRAME > self._limits.wal_bytes:
                self._reset_log(self._rows.db, _RESET_BUSY_MS)
                self._frames = self._checkpointed = 0
            else:
                self._rows.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _wipe(self) -> None:
        """Remove the bytes of forgotten sessions from the log: copy all of it into the file, and cut it off."""
        if not self.wipes or self._rows is None:
            return
        crash_point("store.before_wipe")
        with suppress(apsw.Error):  # a reader is in the way: tried again after the next commit, and when it is opened
            self._reset_log(self._rows.db, _WIPE_BUSY_MS)
            self._frames = self._checkpointed = 0
            self.wipes, self._marked = False, True
            crash_point("store.wiped")

    def _pinned(self) -> errors.HoldfastError | None:
        """The error for all writes if the log has reached its limit and can't be reset."""
        size = self._frames * _FRAME
        if size < self._limits.wal_max_bytes or self._rows is None:
            return None
        try:
            self._reset_log(self._rows.db, _RESET_BUSY_MS)
        except apsw.BusyError:
            return errors.WalPinned(size, self._limits.wal_max_bytes)
        except apsw.Error as error:
            return translate(self._path, error)
        self._frames = self._checkpointed = 0
        return None


# ---- opening ----


def connect_writer(path: Path, durability: Durability, limits: StoreLimits, vfs: str | None, now: int) -> Db:
    """The connection that writes and checkpoints. It migrates an older store, at `now`."""
    connection = connect(path, apsw.SQLITE_OPEN_READWRITE, vfs)
    try:
        connection.set_busy_timeout(limits.busy_ms)
        connection.execute("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA secure_delete = ON")  # what is removed is overwritten
        try:
            check_schema(path, connection)
            _bring_up_to_date(connection, path, now)
        except apsw.CantOpenError as error:
            # The file itself is open; its shared memory can't be opened.
            raise errors.StoreUnsafe(path, _NO_LOG) from error
        if not _switch_to_log(connection, limits.busy_ms):
            raise errors.StoreUnsafe(path, _NO_LOG)
        synchronous = "FULL" if durability == "power" else "NORMAL"
        connection.execute(f"PRAGMA synchronous = {synchronous}; PRAGMA wal_autocheckpoint = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def _switch_to_log(connection: Db, busy_ms: int) -> bool:
    """Switch to a write-ahead log. SQLite gives up at once if another process is there, so retry."""
    deadline = time.monotonic() + busy_ms / 1000
    while True:
        try:
            return connection.execute("PRAGMA journal_mode = WAL").get == "wal"
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _bring_up_to_date(connection: Db, path: Path, now: int) -> None:
    """Create or migrate in one transaction; check the version again under the write lock."""
    found = int(connection.pragma("user_version"))
    check_version(path, found)
    if found == VERSION:
        return
    if found == 0:
        # A new store uses the rollback journal: its first commit puts a complete, recognisable file in place.
        connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = int(connection.pragma("user_version"))
        migrate(connection, found)
        if found == 0:
            connection.execute("INSERT INTO meta (key, value) VALUES ('store_id', ?)", (secrets.token_bytes(16),))
        if found < SEALED:
            make_seal(path, connection, found, now)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    crash_point("store.migration.before_commit")
    connection.execute("COMMIT")
    crash_point("store.migration.committed")
    keep_key(path, connection)
