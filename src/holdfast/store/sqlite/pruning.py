"""Forgetting in a SQLite file: tombstones, and the rows that go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from holdfast.errors import JournalCorrupt
from holdfast.store.pruning.contract import UNUSED_MS, Tombstone
from holdfast.store.spending.contract import Spend
from holdfast.store.sqlite.db import after_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.store.contract import JournalRow
    from holdfast.store.sqlite.db import Db

_COLUMNS: Final = "journal, kind, agent, role, session, status, detail, digest, head, pos, created, updated, at, spent"
_SELECT: Final = f"SELECT {_COLUMNS}, crc FROM tombstones"  # noqa: S608  constants
_OF_A_JOURNAL: Final = ("records", "inputs", "input_aliases", "waits", "refs")
_OLD_WAITS: Final = "journal = ? AND name >= ? AND name < ? AND state != 'open' AND at BETWEEN 1 AND ? - 1"
_spent: Final = msgspec.json.Decoder(tuple[tuple[int, Spend], ...])


class PruningTable:
    """`PruningRows` on the writer's connection; `run` carries out a statement that changes something.

    `settle` writes what is held back of a journal, and `drop` forgets what is kept of it in memory.
    """

    def __init__(
        self,
        connection: Db,
        run: Callable[[str, tuple[Any, ...]], None],
        settle: Callable[[], None],
        drop: Callable[[JournalRow], None],
    ) -> None:
        self._db = connection
        self._run = run
        self._settle = settle
        self._drop = drop

    def find(self, journal: str) -> Tombstone | None:
        return _find(self._db, journal)

    def last_position_of(self, row: JournalRow) -> int:
        self._settle()
        return self._db.execute("SELECT max(pos) FROM records WHERE journal = ?", (row.no,)).get or 0

    def has_forks(self, row: JournalRow) -> bool:
        return self._db.execute("SELECT 1 FROM journals WHERE parent = ? LIMIT 1", (row.id,)).get is not None

    def bury(self, row: JournalRow, stone: Tombstone) -> None:
        self._settle()
        newest = self._db.execute("SELECT max(pos) FROM records").get
        self._run(
            "DELETE FROM blobs WHERE at < ? AND digest IN (SELECT digest FROM refs WHERE journal = ?) AND NOT EXISTS"
            " (SELECT 1 FROM refs WHERE refs.digest = blobs.digest AND refs.journal != ?) AND NOT EXISTS"
            " (SELECT 1 FROM attachments WHERE attachments.digest = blobs.digest)",
            (stone.at - UNUSED_MS, row.no, row.no),
        )
        for table in _OF_A_JOURNAL:
            self._run(f"DELETE FROM {table} WHERE journal = ?", (row.no,))  # noqa: S608  constants
        self._run("DELETE FROM notifications WHERE journal = ?", (row.id,))
        self._run("DELETE FROM journals WHERE no = ?", (row.no,))
        self._keep_position(newest)
        values = (*msgspec.structs.astuple(stone)[:-1], msgspec.json.encode(stone.spent).decode())
        places = ", ".join("?" * (len(values) + 1))
        self._run(f"INSERT INTO tombstones ({_COLUMNS}, crc) VALUES ({places})", (*values, _crc(stone)))  # noqa: S608
        self._drop(row)

    def _keep_position(self, newest: int) -> None:
        """SQLite gives the number behind the largest one: that of the newest record stays taken, whoever has gone."""
        if self._db.execute("SELECT max(pos) FROM records").get == newest:
            self._run("DELETE FROM records WHERE journal = 0 AND pos < ?", (newest,))
            return
        self._run("DELETE FROM records WHERE journal = 0", ())
        self._run(
            "INSERT INTO records (pos, journal, seq, epoch, crc, body) VALUES (?, 0, ?, 0, 0, x'')", (newest, newest)
        )

    def trim(self, row: JournalRow, seq: int) -> int:
        self._settle()
        self._run("DELETE FROM refs WHERE journal = ? AND seq BETWEEN 1 AND ?", (row.no, seq))
        self._run("DELETE FROM records WHERE journal = ? AND seq <= ?", (row.no, seq))
        return self._db.changes()

    def empty_inputs(self, row: JournalRow, before: int, spare: Sequence[int]) -> int:
        self._run(f"UPDATE inputs SET body = x'' WHERE {_old_inputs(spare)}", (row.no, before, *spare))  # noqa: S608
        return self._db.changes()

    def remove_waits(self, row: JournalRow, prefix: str, before: int) -> int:
        self._run(f"DELETE FROM waits WHERE {_OLD_WAITS}", (row.no, prefix, after_prefix(prefix), before))  # noqa: S608
        return self._db.changes()


class PruningQueries:
    """`PruningReader` on a read-only connection."""

    def __init__(self, connection: Db) -> None:
        self._db = connection

    def find(self, journal: str) -> Tombstone | None:
        return _find(self._db, journal)

    def after(self, pos: int, role: str | None, limit: int) -> list[Tombstone]:
        rows = self._db.execute(
            f"{_SELECT} WHERE pos > ? AND (? IS NULL OR role = ?) ORDER BY pos LIMIT ?", (pos, role, role, limit)
        )
        return [_sound(found) for found in rows.fetchall()]

    def old(self, journal: str, before: int, spare: Sequence[int], prefix: str) -> tuple[int, int]:
        no = self._db.execute("SELECT no FROM journals WHERE id = ?", (journal,)).get
        inputs = f"SELECT count(*) FROM inputs WHERE {_old_inputs(spare)}"  # noqa: S608  constants
        waits = f"SELECT count(*) FROM waits WHERE {_OLD_WAITS}"  # noqa: S608  constants
        return (
            self._db.execute(inputs, (no, before, *spare)).get,
            self._db.execute(waits, (no, prefix, after_prefix(prefix), before)).get,
        )

    def raw(self) -> Iterator[tuple[Tombstone, bool]]:
        for found in self._db.execute(f"{_SELECT} ORDER BY pos"):
            yield _row(found)


def _old_inputs(spare: Sequence[int]) -> str:
    places = ", ".join("?" * len(spare))
    return f"journal = ? AND pending = 0 AND at < ? AND length(body) > 0 AND input NOT IN ({places})"


def _find(db: Db, journal: str) -> Tombstone | None:
    found = db.execute(f"{_SELECT} WHERE journal = ?", (journal,)).get
    return None if found is None else _sound(found)


def _row(found: tuple[Any, ...]) -> tuple[Tombstone, bool]:
    """A tombstone from its columns, and whether it is what was written."""
    *columns, spent, crc = found
    try:
        days = _spent.decode(spent)
    except (msgspec.MsgspecError, TypeError):
        return Tombstone(*columns), False
    stone = Tombstone(*columns, spent=days)
    return stone, _crc(stone) == crc


def _sound(found: tuple[Any, ...]) -> Tombstone:
    stone, sound = _row(found)
    if not sound:
        raise JournalCorrupt(stone.journal, 0, "its tombstone does not match its checksum")
    return stone


def _crc(stone: Tombstone) -> int:
    return crc32(msgspec.json.encode(stone))
