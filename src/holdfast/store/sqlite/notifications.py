"""Notifications in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from msgspec.structs import replace

from holdfast.errors import JournalCorrupt
from holdfast.store.decisions import earliest
from holdfast.store.notifications.contract import Notification
from holdfast.store.sqlite.db import page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.store.notifications.contract import NotificationFilter
    from holdfast.store.sqlite.db import Db

_COLUMNS: Final = (
    "id, journal, no, kind, title, body, source, priority, key, state, attempts, due, expires, created, updated,"
    " input, run, reason, woken"
)
_SELECT: Final = f"SELECT {_COLUMNS}, crc FROM notifications"  # noqa: S608  constants
_BODY: Final = 5
_READY: Final = "state = 'queued' AND due <= ? AND (expires IS NULL OR expires > ?)"

NEXT_QUERY: Final = (
    # The index is named: it holds nothing but what is queued, in the order of delivery.
    f"{_SELECT} INDEXED BY notifications_queued WHERE journal = ? AND {_READY} ORDER BY priority DESC, no LIMIT ?"
)
"""The statement that finds what to deliver next."""
PURGE_QUERY: Final = (
    # The index is named: it holds nothing but what is finished, the oldest first.
    "SELECT id FROM notifications INDEXED BY notifications_finished"
    " WHERE state IN ('acknowledged', 'cancelled', 'expired') AND updated <= ? ORDER BY updated, id LIMIT ?"
)
"""The statement that finds what may be forgotten."""


class NotificationTable:
    """`NotificationRows` on the writer's connection; `run` carries out a statement that changes something."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._db = connection
        self._run = run

    def find(self, number: int) -> Notification | None:
        return _first(self._all(f"{_SELECT} WHERE id = ?", number))

    def by_key(self, journal: str, key: str) -> Notification | None:
        return _first(self._all(f"{_SELECT} WHERE journal = ? AND key = ?", journal, key))

    def add(self, notification: Notification) -> Notification:
        last = self._db.execute(
            "SELECT no FROM notifications WHERE journal = ? ORDER BY id DESC LIMIT 1", (notification.journal,)
        ).get
        added = replace(notification, no=(last or 0) + 1)
        self._run(
            f"INSERT INTO notifications ({_COLUMNS}, crc)"  # noqa: S608
            " VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(added.journal, added.no, added.kind, added.title, added.body, added.source, added.priority),
                *(added.key, added.state, added.attempts, added.due, added.expires, added.created, added.updated),
                *(added.input, added.run, added.reason, int(added.woken), _crc(added)),
            ),
        )
        return replace(added, id=self._db.last_insert_rowid())

    def save(self, notification: Notification) -> None:
        self._run(
            "UPDATE notifications SET state = ?, attempts = ?, due = ?, updated = ?, input = ?, run = ?, reason = ?,"
            " woken = ? WHERE id = ?",
            (
                *(notification.state, notification.attempts, notification.due, notification.updated),
                *(notification.input, notification.run, notification.reason, int(notification.woken)),
                notification.id,
            ),
        )

    def bury(self, journal: str, reason: str, now: int) -> None:
        self._run(
            "UPDATE notifications SET state = 'dead', reason = ?, updated = ?, woken = 1"
            " WHERE journal = ? AND state IN ('queued', 'claimed')",
            (reason, now, journal),
        )

    def purge(self, before: int, limit: int) -> int:
        found = self._db.execute(PURGE_QUERY, (before, limit)).fetchall()
        for (number,) in found:
            self._run("DELETE FROM notifications WHERE id = ?", (number,))
        return len(found)

    def claimed_by_input(self, journal: str, number: int) -> list[Notification]:
        return self._all(f"{_SELECT} WHERE state = 'claimed' AND journal = ? AND input = ?", journal, number)

    def claimed_by_run(self, journal: str, run: str) -> list[Notification]:
        return self._all(
            f"{_SELECT} INDEXED BY notifications_claimed WHERE state = 'claimed' AND journal = ? AND run = ?",
            journal,
            run,
        )

    def has_ready(self, journal: str, now: int) -> bool:
        sql = f"SELECT 1 FROM notifications INDEXED BY notifications_queued WHERE journal = ? AND {_READY} LIMIT 1"  # noqa: S608
        return self._db.execute(sql, (journal, now, now)).get is not None

    def unwoken(self, now: int, limit: int) -> list[Notification]:
        return self._all(
            f"{_SELECT} WHERE state = 'queued' AND woken = 0 AND due <= ? ORDER BY due, id LIMIT ?", now, limit
        )

    def overdue(self, now: int, limit: int) -> list[Notification]:
        return self._all(
            f"{_SELECT} WHERE state = 'queued' AND expires IS NOT NULL AND expires <= ? ORDER BY expires, id LIMIT ?",
            now,
            limit,
        )

    def ready_journals(self, after: str, now: int, limit: int) -> list[str]:
        rows = self._db.execute(
            "SELECT DISTINCT journal FROM notifications INDEXED BY notifications_queued"  # noqa: S608
            f" WHERE {_READY} AND journal > ? ORDER BY journal LIMIT ?",
            (now, now, after, limit),
        )
        return [journal for (journal,) in rows]

    def _all(self, sql: str, *values: Any) -> list[Notification]:  # noqa: ANN401
        return [_row(found)[0] for found in self._db.execute(sql, values).fetchall()]


class NotificationQueries:
    """`NotificationReader` on a read-only connection."""

    def __init__(self, connection: Db, page_bytes: int) -> None:
        self._db = connection
        self._page_bytes = page_bytes

    def get(self, number: int) -> Notification | None:
        found = self._db.execute(f"{_SELECT} WHERE id = ?", (number,)).get
        return None if found is None else _sound(found)

    def next(self, journal: str, now: int, limit: int) -> list[Notification]:
        rows = page(self._db, NEXT_QUERY, (journal, now, now, limit), _BODY, self._page_bytes)
        return [_sound(found) for found in rows]

    def newest(self, where: NotificationFilter, limit: int) -> tuple[list[Notification], set[str]]:
        sql, values = newest_query(where, limit)
        rows = [_row(found) for found in page(self._db, sql, values, _BODY, self._page_bytes)]
        damaged = {found.journal for found, sound in rows if not sound}
        return [found for found, sound in rows if sound], damaged

    def next_due(self) -> int | None:
        due = self._db.execute(
            "SELECT due FROM notifications WHERE state = 'queued' AND woken = 0 ORDER BY due LIMIT 1"
        ).get
        expires = self._db.execute(
            "SELECT expires FROM notifications WHERE state = 'queued' AND expires IS NOT NULL ORDER BY expires LIMIT 1"
        ).get
        return earliest(due, expires)

    def raw(self) -> Iterator[tuple[Notification, bool]]:
        for found in self._db.execute(f"{_SELECT} ORDER BY id"):
            yield _row(found)


def newest_query(where: NotificationFilter, limit: int) -> tuple[str, list[Any]]:
    """The statement that lists notifications. Every combination of filters has an index that is in its order."""
    terms: list[str] = []
    values: list[Any] = []
    for term, value in (("journal = ?", where.journal), ("state = ?", where.state), ("id < ?", where.before)):
        if value is not None:
            terms.append(term)
            values.append(value)
    chosen = f" WHERE {' AND '.join(terms)}" if terms else ""
    return f"{_SELECT}{chosen} ORDER BY id DESC LIMIT ?", [*values, limit]


def _first(found: list[Notification]) -> Notification | None:
    return found[0] if found else None


def _row(found: tuple[Any, ...]) -> tuple[Notification, bool]:
    """A notification from its columns, and whether it says what it said when it came."""
    *columns, woken, crc = found
    notification = Notification(*columns, woken=bool(woken))
    return notification, _crc(notification) == crc


def _sound(found: tuple[Any, ...]) -> Notification:
    notification, sound = _row(found)
    if not sound:
        reason = f"the notification {notification.id} does not match its checksum"
        raise JournalCorrupt(notification.journal, 0, reason)
    return notification


def _crc(of: Notification) -> int:
    """The checksum of what never changes."""
    said = (of.journal, of.no, of.kind, of.title, of.source, of.priority, of.key, of.expires, of.created, of.body)
    return crc32("\0".join(map(str, said)).encode())
