"""Attachments in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.store.attachments.contract import Grounds, StoredAttachment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.store.sqlite.db import Db

_COLUMNS: Final = "session, digest, media_type, size, name, at"
_SELECT: Final = f"SELECT {_COLUMNS} FROM attachments"  # noqa: S608  constants
_OF_SESSIONS: Final = "SELECT 1 FROM attachments a JOIN journals j ON j.id = a.session"
_UNUSED: Final = (
    "SELECT b.digest, length(b.body) FROM blobs b WHERE b.at < ?"  # noqa: S608
    " AND NOT EXISTS (SELECT 1 FROM refs r WHERE r.digest = b.digest)"
    f" AND NOT EXISTS ({_OF_SESSIONS} WHERE a.digest = b.digest)"
    " AND NOT EXISTS (SELECT 1 FROM attachments n WHERE n.digest = b.digest AND n.at >= ?)"
)
_UNUSED_BEHIND: Final = f"{_UNUSED} AND b.digest > ? ORDER BY b.digest LIMIT ?"
_UNUSED_ONE: Final = f"{_UNUSED} AND b.digest = ?"


class _Reads:
    """`AttachmentReads` on any connection."""

    def __init__(self, connection: Db) -> None:
        self._db = connection

    def find(self, session: str, digest: str) -> StoredAttachment | None:
        found = self._db.execute(f"{_SELECT} WHERE session = ? AND digest = ?", (session, digest)).get
        return None if found is None else StoredAttachment(*found)

    def grounds(self) -> Grounds:
        damaged = self._db.execute("SELECT min(id) FROM journals WHERE quarantine IS NOT NULL").get
        roots = self._there("SELECT 1 FROM refs") or self._there(_OF_SESSIONS)
        return Grounds(self._there("SELECT 1 FROM blobs"), roots, damaged)

    def unused(self, before: int, *, after: str = "", limit: int = -1) -> list[tuple[str, int]]:
        return list(self._db.execute(_UNUSED_BEHIND, (before, before, after, limit)))

    def unused_of(self, digests: Sequence[str], before: int) -> list[tuple[str, int]]:
        found = (self._db.execute(_UNUSED_ONE, (before, before, digest)).fetchall() for digest in digests)
        return [one for some in found for one in some]

    def _there(self, query: str, values: tuple[Any, ...] = ()) -> bool:
        return self._db.execute(f"{query} LIMIT 1", values).get is not None


class AttachmentTable(_Reads):
    """`AttachmentRows` on the writer's connection; `run` carries out a statement that changes something."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], None]) -> None:
        super().__init__(connection)
        self._run = run

    def total(self, session: str) -> tuple[int, int]:
        return self._db.execute(
            "SELECT count(*), coalesce(sum(size), 0) FROM attachments WHERE session = ?", (session,)
        ).get

    def put(self, found: StoredAttachment) -> None:
        self._run(
            f"INSERT OR REPLACE INTO attachments ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
            (found.session, found.digest, found.media_type, found.size, found.name, found.at),
        )

    def forget(self, digest: str) -> None:
        self._run("DELETE FROM attachments WHERE digest = ?", (digest,))
        self._run("DELETE FROM blobs WHERE digest = ?", (digest,))


class AttachmentQueries(_Reads):
    """`AttachmentReader` on a read-only connection."""

    def of(self, session: str, after: str, limit: int) -> list[StoredAttachment]:
        sql = f"{_SELECT} WHERE session = ? AND digest > ? ORDER BY digest LIMIT ?"
        return [StoredAttachment(*found) for found in self._db.execute(sql, (session, after, limit))]

    def refers(self, journal: str, digest: str, upto: int | None) -> bool:
        sql = "SELECT 1 FROM refs r JOIN journals j ON j.no = r.journal WHERE j.id = ? AND r.digest = ?"
        if upto is None:
            return self._there(sql, (journal, digest))
        return self._there(f"{sql} AND r.seq BETWEEN 1 AND ?", (journal, digest, upto))

    def task_refers(self, session: str, digest: str) -> bool:
        sql = "SELECT 1 FROM refs r JOIN journals j ON j.no = r.journal"
        return self._there(f"{sql} WHERE r.digest = ? AND j.session = ? AND j.role = 'task'", (digest, session))

    def raw(self) -> Iterator[StoredAttachment]:
        for found in self._db.execute(f"{_SELECT} ORDER BY session, digest"):
            yield StoredAttachment(*found)
