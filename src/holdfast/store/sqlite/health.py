"""The health report of a store file. It changes nothing and does not stop other processes."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import apsw
import msgspec

from holdfast import __version__
from holdfast.clock import Instant, SystemClock
from holdfast.errors import StoreRefused, StoreUntrusted
from holdfast.store.audit import Violation, audit
from holdfast.store.contract import JournalRow, StoreLimits
from holdfast.store.lease import is_gone
from holdfast.store.sqlite import files
from holdfast.store.sqlite.key import load_seal
from holdfast.store.sqlite.rows import SqliteReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store.spending import SpendOf


MAX_PROBLEMS = 100
"""Problems in a report, which counts the rest."""
HolderState = Literal["alive", "gone", "expired"]


class HeldLease(msgspec.Struct, frozen=True):
    """A lease with its holder."""

    journal: str
    epoch: int
    holder: str
    state: HolderState


class StoreHealth(msgspec.Struct, frozen=True):
    """The health report of a store file."""

    path: str
    healthy: bool
    holdfast: str
    sqlite: str
    schema: int
    bytes: int
    wal_bytes: int
    mode: str
    journals: dict[str, int]
    records: int
    pending_inputs: int
    open_waits: int
    next_due: int | None
    notifications: dict[str, int]
    """Number of notifications by state."""
    memories: int
    """Entries of memory."""
    memory_scopes: int
    memories_damaged: int
    """Entries that do not match their checksum."""
    rules: int
    """Stored rules that are in force."""
    blobs: int
    blob_bytes: int
    leases: tuple[HeldLease, ...]
    quarantined: dict[str, str]
    checksum_failures: int
    problem_count: int
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


EXAMINE_SECONDS: Final = 300.0
"""Default time limit; the report names the parts that were not examined."""
_STEPS: Final = 100_000


def examine(
    path: Path | str,
    progress: Callable[[int, int], None] | None = None,
    spend_of: SpendOf | None = None,
    *,
    seconds: float = EXAMINE_SECONDS,
) -> StoreHealth:
    """Examine the store at `path`, for at most `seconds`. Raises `StoreRefused` if it is no store.

    With `spend_of`, the spending of each record, the report compares spending with the records.
    """
    until = time.monotonic() + seconds
    file = Path(path)
    files.check_viewable(file)
    with files.translated(file), closing(files.connect_viewer(file, StoreLimits())) as connection:
        files.check_schema(file, connection)
        files.check_current(file, connection)
        seal, unsealed = None, list[str]()
        try:
            seal = load_seal(file, connection, look=True)[0]
        except StoreRefused as error:
            unsealed = [f"key: {error.reason}"]
        with files.snapshot(connection):  # other processes may go on writing

            def enough() -> str | None:
                return f"{seconds:g} seconds" if time.monotonic() > until else None

            connection.set_progress_handler(lambda: enough() is not None, _STEPS)
            violations = [
                *_damage(connection, enough),
                *audit(SqliteReader(connection, seal), progress, spend_of, enough),
            ]
            connection.set_progress_handler(None)
            return _report(file, connection, unsealed, violations)


def _damage(db: files.Db, enough: Callable[[], str | None]) -> list[Violation]:
    """Findings of SQLite's own integrity check."""
    try:
        return [
            Violation("sqlite", "file", line) for (line,) in db.execute("PRAGMA integrity_check(100)") if line != "ok"
        ]
    except apsw.InterruptError:
        return [Violation("limit", f"stopped after {enough()}", "SQLite's own check of the file did not end")]


def _report(path: Path, db: files.Db, unsealed: list[str], violations: list[Violation]) -> StoreHealth:
    reader = SqliteReader(db, None)
    rows = reader.raw_journals()
    quarantined = {row.id: row.quarantine for row in rows if row.quarantine is not None and not row.moved}
    problems: list[str] = []
    try:
        files.check_access(path)
    except StoreUntrusted as error:
        problems.append(f"access: {error.reason}")
    problems += unsealed
    problems += [f"quarantined: {journal}: {reason}" for journal, reason in quarantined.items()]
    problems += [str(violation) for violation in violations]
    blobs, blob_bytes = reader.one("SELECT count(*), coalesce(sum(length(body)), 0) FROM blobs")
    log = path.with_name(path.name + "-wal")
    log_bytes = log.stat().st_size if log.exists() else 0
    pinned = f"the write-ahead log has {log_bytes:,} bytes: a long read transaction keeps it from being reset"
    now = SystemClock().read()
    return StoreHealth(
        path=str(path),
        healthy=not problems,
        holdfast=__version__,
        sqlite=apsw.sqlite_lib_version(),
        schema=int(db.pragma("user_version")),
        bytes=path.stat().st_size,
        wal_bytes=log_bytes,
        mode=f"{path.stat().st_mode & 0o777:04o}",
        journals=dict(sorted(Counter(row.status for row in rows).items())),
        records=reader.one("SELECT count(*) FROM records"),
        pending_inputs=reader.one("SELECT count(*) FROM inputs WHERE pending = 1"),
        open_waits=reader.one("SELECT count(*) FROM waits WHERE state = 'open'"),
        next_due=reader.next_due(),
        notifications=dict(db.execute("SELECT state, count(*) FROM notifications GROUP BY state ORDER BY state")),
        memories=reader.one("SELECT count(*) FROM memories"),
        memory_scopes=reader.one("SELECT count(DISTINCT scope) FROM memories"),
        memories_damaged=sum(not sound for _, sound in reader.memories.raw()),
        rules=reader.one("SELECT count(*) FROM rules WHERE removed_at IS NULL"),
        blobs=blobs,
        blob_bytes=blob_bytes,
        leases=tuple(
            HeldLease(row.id, row.epoch, row.owner.describe(), _holder_state(row, now))
            for row in rows
            if row.owner is not None
        ),
        quarantined=quarantined,
        checksum_failures=sum(each.rule == "checksum" or "match the digest" in each.detail for each in violations),
        problem_count=len(problems),
        problems=tuple(problems[:MAX_PROBLEMS]),
        warnings=(pinned,) if log_bytes > 4 * StoreLimits().wal_bytes else (),
    )


def _holder_state(row: JournalRow, now: Instant) -> HolderState:
    if is_gone(row.owner):
        return "gone"
    return "alive" if row.lease_left(now) > 0 else "expired"
