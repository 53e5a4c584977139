"""Collecting blobs: what the search costs, and what is looked at again."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import apsw

from holdfast.clock import Instant
from holdfast.store import StoredAttachment, StoreLimits
from holdfast.store.retention import collect_blobs
from holdfast.store.sqlite.backend import MemoryDisk
from holdfast.store.sqlite.rows import SqliteRows
from holdfast.store.sqlite.schema import MIGRATIONS
from holdfast.store.sqlite.tables import SqliteTables
from holdfast.store.transaction import Transaction

if TYPE_CHECKING:
    from holdfast.store.sqlite.files import Db

LATE = 1_000


def _steps_of_search(db: Db, after: str) -> int:
    """How many times ten steps of SQLite's machine the search for unused blobs takes."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    db.set_progress_handler(count, 10)
    assert SqliteTables(db, None).attachments.unused(LATE, after=after, limit=10) == [("z", 1)]
    db.set_progress_handler(None)
    return steps


def test_the_search_for_more_unused_blobs_does_not_look_at_those_before_it_again() -> None:
    db = cast("Db", apsw.Connection(":memory:"))
    for script in MIGRATIONS:
        db.execute(script)
    for number in range(1_000):
        db.execute("INSERT INTO blobs (digest, at, body) VALUES (?, 0, x'00')", (f"a{number:04}",))
        db.execute("INSERT INTO refs VALUES (?, 1, 1)", (f"a{number:04}",))
    db.execute("INSERT INTO blobs (digest, at, body) VALUES ('z', 0, x'00')")
    assert _steps_of_search(db, "a0998") * 50 < _steps_of_search(db, "")


def test_what_is_needed_since_it_was_found_unused_is_not_collected() -> None:
    disk = MemoryDisk()
    rows = SqliteRows(disk.db, "", disk.seal)
    rows.put_blob("a", b"x", 0)
    rows.put_blob("b", b"x", 0)
    rows.put_blob("c", b"x", LATE)
    rows.attachments.put(StoredAttachment("s", "b", "text/plain", 1, at=LATE))
    tx = Transaction(rows, StoreLimits(), Instant(LATE, 0, ""))
    collected = collect_blobs(tx, LATE, ("a", "b", "c", "d"), without_roots=True)
    assert (collected.blobs, collected.bytes) == (1, 1)
    assert sorted(digest for digest, _ in disk.reader.raw_blobs()) == ["b", "c"]
