"""Memory in a SQLite file, with a full-text index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from holdfast.errors import MemoryCorrupt
from holdfast.store.memories.contract import MemoryChange, MemoryPage, MemoryPlace, MemoryScope, Remembered
from holdfast.store.memories.decisions import seen_at, size_of
from holdfast.store.sqlite.db import page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.store.sqlite.db import Db

_COLUMNS: Final = "scope, key, version, value, created, updated, expires, author"
_ENTRY: Final = (
    # Texts as bytes: one that is no text any more is damaged like any other, and stops nobody.
    "CAST(m.scope AS BLOB), CAST(m.key AS BLOB), m.version, CAST(m.value AS BLOB), m.created, m.updated, m.expires,"
    " CAST(m.author AS BLOB), m.crc"
)
_CHANGE: Final = "scope, key, version, change, value, at, author, expires"
_VALUE_OF_CHANGE: Final = 4
_LIVING: Final = "(m.expires IS NULL OR m.expires > ?)"
_BEYOND: Final = "\U0010ffff"
"""Greater than any character that a name may have."""

LIST_QUERY: Final = (
    # Without a limit: nobody knows how many damaged ones are among them.
    f"SELECT {_ENTRY} FROM memories m"  # noqa: S608  constants
    f" WHERE m.scope = ? AND m.key > ? AND m.key >= ? AND m.key < ? AND {_LIVING} ORDER BY m.key"
)
"""The statement that lists the entries of a scope."""


class MemoryTable:
    """`MemoryRows` on the writer's connection; `run` carries out a statement that changes something."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._db = connection
        self._run = run

    def entry(self, scope: str, key: str) -> Remembered | None:
        found = self._db.execute(f"SELECT {_ENTRY} FROM memories m WHERE scope = ? AND key = ?", (scope, key)).get  # noqa: S608
        return None if found is None else _row(found)[0]

    def last_version(self, scope: str, key: str) -> int:
        sql = "SELECT max(version) FROM memory_changes WHERE scope = ? AND key = ?"
        return self._db.execute(sql, (scope, key)).get or 0

    def usage(self, scope: str, now: int) -> MemoryScope:
        found = self._db.execute(
            "SELECT count(*), coalesce(sum(m.size), 0) FROM memories m INDEXED BY memories_usage"  # noqa: S608
            f" WHERE m.scope = ? AND {_LIVING}",
            (scope, now),
        ).get
        return MemoryScope(scope, *found)

    def put(self, entry: Remembered) -> None:
        size = size_of(entry.key, entry.value)
        self._run(
            f"INSERT INTO memories ({_COLUMNS}, size, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
            " ON CONFLICT (scope, key) DO UPDATE SET version = excluded.version, value = excluded.value,"
            " created = excluded.created, updated = excluded.updated, expires = excluded.expires,"
            " author = excluded.author, size = excluded.size, crc = excluded.crc",
            (
                *(entry.scope, entry.key, entry.version, entry.value, entry.created, entry.updated, entry.expires),
                *(entry.by, size, _crc(entry)),
            ),
        )
        number = self._number(entry.scope, entry.key)
        self._run("DELETE FROM memory_words WHERE rowid = ?", (number,))
        self._run("INSERT INTO memory_words (rowid, key, value) VALUES (?, ?, ?)", (number, entry.key, entry.value))

    def remove(self, scope: str, key: str) -> None:
        number = self._number(scope, key)
        self._run("DELETE FROM memory_words WHERE rowid = ?", (number,))
        self._run("DELETE FROM memories WHERE id = ?", (number,))

    def _number(self, scope: str, key: str) -> int:
        return self._db.execute("SELECT id FROM memories WHERE scope = ? AND key = ?", (scope, key)).get

    def add_change(self, change: MemoryChange, keep: int) -> None:
        self._run(
            f"INSERT INTO memory_changes ({_CHANGE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (
                *(change.scope, change.key, change.version, change.change, change.value),
                *(change.at, change.by, change.expires),
            ),
        )
        # Each change takes the next version, so the versions tell how many there are.
        self._run(
            "DELETE FROM memory_changes WHERE scope = ? AND key = ? AND version <= ?",
            (change.scope, change.key, change.version - keep),
        )

    def expired(self, now: int, limit: int) -> list[Remembered]:
        rows = self._db.execute(
            f"SELECT {_ENTRY} FROM memories m WHERE m.expires IS NOT NULL AND m.expires <= ?"  # noqa: S608
            " ORDER BY m.expires, m.id LIMIT ?",
            (now, limit),
        )
        return [_row(found)[0] for found in rows.fetchall()]

    def forget_expired_values(self, now: int, limit: int) -> int:
        rows = self._db.execute(
            "SELECT id FROM memory_changes WHERE expires IS NOT NULL AND value IS NOT NULL AND expires <= ? LIMIT ?",
            (now, limit),
        ).fetchall()
        for (number,) in rows:
            self._run("UPDATE memory_changes SET value = NULL WHERE id = ?", (number,))
        return len(rows)


class MemoryQueries:
    """`MemoryReader` on a read-only connection."""

    def __init__(self, connection: Db, page_bytes: int) -> None:
        self._db = connection
        self._page_bytes = page_bytes

    def get(self, scope: str, key: str, now: int) -> Remembered | None:
        found = self._db.execute(
            f"SELECT {_ENTRY} FROM memories m WHERE m.scope = ? AND m.key = ? AND {_LIVING}",  # noqa: S608
            (scope, key, now),
        ).get
        return None if found is None else _sound(found)

    def list(self, scope: str, prefix: str, after: str, now: int, limit: int) -> MemoryPage:
        rows = self._db.execute(LIST_QUERY, (scope, after, prefix, prefix + _BEYOND, now))
        found = _sound_page(rows, limit, self._page_bytes)
        rows.close(True)  # noqa: FBT003  a page that ends early must not keep its snapshot
        return found

    def search(self, scope: str | None, words: Sequence[str], now: int, limit: int) -> MemoryPage:
        numbers = self._db.execute(
            "SELECT m.id FROM memory_words JOIN memories m ON m.id = memory_words.rowid"  # noqa: S608
            f" WHERE memory_words MATCH ? AND (? IS NULL OR m.scope = ?) AND {_LIVING}"
            " ORDER BY memory_words.rank, m.id",
            (match_of(words), scope, scope, now),
        ).fetchall()
        return _sound_page(map(self._numbered, numbers), limit, self._page_bytes)

    def _numbered(self, number: tuple[int]) -> tuple[Any, ...]:
        return self._db.execute(f"SELECT {_ENTRY} FROM memories m WHERE m.id = ?", number).get  # noqa: S608

    def history(self, scope: str, key: str, now: int, limit: int) -> list[MemoryChange]:
        rows = page(
            self._db,
            f"SELECT {_CHANGE} FROM memory_changes WHERE scope = ? AND key = ? ORDER BY version DESC LIMIT ?",  # noqa: S608
            (scope, key, limit),
            _VALUE_OF_CHANGE,
            self._page_bytes,
        )
        return [seen_at(MemoryChange(*found), now) for found in rows]

    def scopes(self, now: int) -> list[MemoryScope]:
        rows = self._db.execute(
            "SELECT m.scope, count(*), sum(m.size) FROM memories m INDEXED BY memories_usage"  # noqa: S608
            f" WHERE {_LIVING} GROUP BY m.scope ORDER BY m.scope",
            (now,),
        )
        return [MemoryScope(*found) for found in rows.fetchall()]

    def raw(self) -> Iterator[tuple[Remembered, bool]]:
        for found in self._db.execute(f"SELECT {_ENTRY} FROM memories m ORDER BY m.scope, m.key"):  # noqa: S608
            yield _row(found)

    def raw_changes(self) -> Iterator[MemoryChange]:
        for found in self._db.execute(f"SELECT {_CHANGE} FROM memory_changes ORDER BY scope, key, version"):  # noqa: S608
            yield MemoryChange(*found)


def match_of(words: Sequence[str]) -> str:
    """The expression that finds all of these words, also as the beginning of longer ones.

    Each stands in quotes, where no character means anything but itself.
    """
    return " ".join('"' + word.replace('"', '""') + '"*' for word in words)


def _row(found: tuple[Any, ...]) -> tuple[Remembered, bool]:
    """An entry from its columns, and whether it is what was written."""
    try:
        entry = _entry(found, "strict")
    except UnicodeDecodeError:
        return _entry(found, "replace"), False
    return entry, _crc(entry) == found[-1]


def _entry(found: tuple[Any, ...], errors: str) -> Remembered:
    scope, key, version, value, created, updated, expires, author, _ = found
    scope, key, value = (text.decode(errors=errors) for text in (scope, key, value))
    by = None if author is None else author.decode(errors=errors)
    return Remembered(scope, key, version, value, created, updated, expires, by)


def _sound_page(rows: Iterable[tuple[Any, ...]], limit: int, page_bytes: int) -> MemoryPage:
    """The first sound entries, up to the limits (at least one), and where the damaged ones before the last are."""
    entries: list[Remembered] = []
    damaged: list[MemoryPlace] = []
    taken = before_last = 0
    for found in rows:
        entry, sound = _row(found)
        if not sound:
            damaged.append(MemoryPlace(entry.scope, entry.key))
            continue
        taken += len(entry.value)
        if entries and taken > page_bytes:
            return MemoryPage(entries, damaged[:before_last], more=True)  # the others belong to the next page
        entries.append(entry)
        before_last = len(damaged)
        if len(entries) == limit:
            return MemoryPage(entries, damaged, more=True)
    return MemoryPage(entries, damaged)


def _sound(found: tuple[Any, ...]) -> Remembered:
    entry, sound = _row(found)
    if not sound:
        raise MemoryCorrupt(entry.scope, entry.key)
    return entry


def _crc(of: Remembered) -> int:
    said = (of.scope, of.key, of.version, of.created, of.updated, of.expires, of.by, of.value)
    return crc32("\0".join(map(str, said)).encode())
