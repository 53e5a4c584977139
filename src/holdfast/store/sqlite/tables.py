"""The SQL of each topic beside the journals: `...Table` for the writer, `...Queries` for readers.

A table gets `run`, which executes a statement that changes something. Checksums are compared when rows are read; a
writer that only moves rows skips that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec
from msgspec.structs import astuple, replace

from holdfast.errors import JournalCorrupt, MemoryCorrupt
from holdfast.errors.store import RuleCorrupt
from holdfast.store.admission import REFUSALS_KEPT, REFUSALS_KEPT_PER_JOURNAL, RefusedInput
from holdfast.store.attachments import StoredAttachment
from holdfast.store.decisions import earliest
from holdfast.store.memories import MemoryChange, MemoryEntry, MemoryKey, MemoryPage, MemoryScope, seen_at, size_of
from holdfast.store.notifications import Notification
from holdfast.store.retention import BLOB_GRACE_MS, CollectionBasis, Tombstone
from holdfast.store.rules import EVERY_AGENT, StoredRule
from holdfast.store.spending import NO_SPEND, Spend
from holdfast.store.sqlite.files import after_prefix, page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.store.admission import NoteRefusal
    from holdfast.store.checksum import Seal
    from holdfast.store.contract import JournalRow
    from holdfast.store.notifications import NotificationFilter
    from holdfast.store.rules import RuleFilter
    from holdfast.store.spending import DailySpend
    from holdfast.store.sqlite.files import Db


# ---- rules ---------------------------------------------------------------------------------------------------------

_RULE_COLUMNS: Final = "id, agent, body, digest, author, at, removed_by, removed_at"
_SELECT_RULES: Final = f"SELECT {_RULE_COLUMNS}, crc, mac FROM rules"  # noqa: S608  constants
_RULE_BODY: Final = 2
IN_FORCE_QUERY: Final = (
    # The named index holds only rules in force.
    f"{_SELECT_RULES} INDEXED BY rules_in_force WHERE agent IN (?, ?) AND removed_at IS NULL ORDER BY id"
)
"""Finds the rules that decide for an agent."""


class RuleTable:
    """`RuleRows` on the connection of the writer."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], object], seal: Seal) -> None:
        self._db = connection
        self._run = run
        self._seal = seal

    def find(self, number: int) -> StoredRule | None:
        found = self._db.execute(f"{_SELECT_RULES} WHERE id = ?", (number,)).get
        return None if found is None else _rule_row(found, self._seal)[0]

    def same(self, agent: str, digest: str) -> StoredRule | None:
        found = self._db.execute(
            f"{_SELECT_RULES} WHERE agent = ? AND digest = ? AND removed_at IS NULL", (agent, digest)
        ).get
        return None if found is None else _sound_rule(found, self._seal)

    def count(self, agent: str) -> int:
        sql = "SELECT count(*) FROM rules INDEXED BY rules_in_force WHERE agent = ? AND removed_at IS NULL"
        return self._db.execute(sql, (agent,)).get

    def add(self, rule: StoredRule) -> StoredRule:
        last = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'rules'").get
        added = replace(rule, id=(last or 0) + 1)  # the checksum covers the number
        self._run(
            f"INSERT INTO rules ({_RULE_COLUMNS}, crc, mac) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (
                *(added.id, added.agent, added.body, added.digest, added.by, added.at),
                *(added.removed_by, added.removed_at, rule_crc(added), self._seal.of_rule(added)),
            ),
        )
        return added

    def remove(self, rule: StoredRule) -> None:
        self._run(
            "UPDATE rules SET removed_by = ?, removed_at = ?, crc = ?, mac = ? WHERE id = ?",
            (rule.removed_by, rule.removed_at, rule_crc(rule), self._seal.of_rule(rule), rule.id),
        )

    def seal(self, rule: StoredRule) -> None:
        """Seal a rule of an older schema."""
        self._run("UPDATE rules SET mac = ? WHERE id = ?", (self._seal.of_rule(rule), rule.id))


class RuleQueries:
    """`RuleReader` on a read-only connection."""

    def __init__(self, connection: Db, page_bytes: int, seal: Seal | None = None) -> None:
        self._db = connection
        self._page_bytes = page_bytes
        self._seal = seal

    def in_force(self, agent: str) -> list[StoredRule]:
        return [
            _sound_rule(found, self._seal)
            for found in self._db.execute(IN_FORCE_QUERY, (agent, EVERY_AGENT)).fetchall()
        ]

    def newest(self, where: RuleFilter, limit: int) -> list[StoredRule]:
        sql, values = newest_rules_query(where, limit)
        return [_sound_rule(found, self._seal) for found in page(self._db, sql, values, _RULE_BODY, self._page_bytes)]

    def raw(self) -> Iterator[tuple[StoredRule, bool]]:
        for found in self._db.execute(f"{_SELECT_RULES} ORDER BY id"):
            yield _rule_row(found, self._seal)


def newest_rules_query(where: RuleFilter, limit: int) -> tuple[str, list[Any]]:
    """The statement that lists rules. Every combination of filters has an index in its order."""
    terms: list[str] = []
    values: list[Any] = []
    for term, value in (("agent = ?", where.agent), ("id < ?", where.before)):
        if value is not None:
            terms.append(term)
            values.append(value)
    chosen = f" WHERE {' AND '.join(terms)}" if terms else ""
    return f"{_SELECT_RULES}{chosen} ORDER BY id DESC LIMIT ?", [*values, limit]


def _rule_row(found: tuple[Any, ...], seal: Seal | None) -> tuple[StoredRule, bool]:
    """A rule from its columns, and True if it matches its checksum and, with a key, its seal."""
    *columns, crc, mac = found
    rule = StoredRule(*columns)
    if not _is_rule(rule):
        return StoredRule(rule.id, str(rule.agent), str(rule.body), str(rule.digest), str(rule.by), 0), False
    return rule, rule_crc(rule) == crc and (seal is None or seal.matches_rule(rule, mac))


def _is_rule(rule: StoredRule) -> bool:
    """True if the columns have the types of a rule. A damaged or hostile file can hold anything."""
    texts = all(type(text) is str for text in (rule.agent, rule.body, rule.digest, rule.by))
    removed = (rule.removed_by is None or type(rule.removed_by) is str) and type(rule.removed_at) in {int, type(None)}
    return texts and removed and type(rule.at) is int


def _sound_rule(found: tuple[Any, ...], seal: Seal | None) -> StoredRule:
    rule, sound = _rule_row(found, seal)
    if not sound:
        raise RuleCorrupt(rule.id, rule.agent)
    return rule


def rule_crc(of: StoredRule) -> int:
    """The checksum of a stored rule."""
    said = (of.id, of.agent, of.digest, of.by, of.at, of.removed_by, of.removed_at, of.body)
    return crc32("\0".join(map(str, said)).encode())


# ---- memories ------------------------------------------------------------------------------------------------------

_MEMORY_COLUMNS: Final = "scope, key, version, value, created, updated, expires, author"
_ENTRY: Final = (
    # Texts as bytes: a text that is no longer UTF-8 then counts as damaged and raises nothing.
    "CAST(m.scope AS BLOB), CAST(m.key AS BLOB), m.version, CAST(m.value AS BLOB), m.created, m.updated, m.expires,"
    " CAST(m.author AS BLOB), m.crc"
)
_CHANGE_COLUMNS: Final = "scope, key, version, change, value, at, author, expires"
_CHANGE_VALUE: Final = 4
_UNEXPIRED: Final = "(m.expires IS NULL OR m.expires > ?)"
_AFTER_ALL_KEYS: Final = "\U0010ffff"
"""Greater than any character of a key."""
LIST_MEMORY_QUERY: Final = (
    # Without a limit, because damaged entries among them do not count.
    f"SELECT {_ENTRY} FROM memories m"  # noqa: S608  constants
    f" WHERE m.scope = ? AND m.key > ? AND m.key >= ? AND m.key < ? AND {_UNEXPIRED} ORDER BY m.key"
)
"""Lists the entries of a scope."""


class MemoryTable:
    """`MemoryRows` on the connection of the writer."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._db = connection
        self._run = run

    def entry(self, scope: str, key: str) -> MemoryEntry | None:
        sql = f"SELECT {_ENTRY} FROM memories m WHERE scope = ? AND key = ?"  # noqa: S608
        found = self._db.execute(sql, (scope, key)).get
        return None if found is None else _memory_row(found)[0]

    def last_version(self, scope: str, key: str) -> int:
        sql = "SELECT max(version) FROM memory_changes WHERE scope = ? AND key = ?"
        return self._db.execute(sql, (scope, key)).get or 0

    def usage(self, scope: str, now: int) -> MemoryScope:
        found = self._db.execute(
            "SELECT count(*), coalesce(sum(m.size), 0) FROM memories m INDEXED BY memories_usage"  # noqa: S608
            f" WHERE m.scope = ? AND {_UNEXPIRED}",
            (scope, now),
        ).get
        return MemoryScope(scope, *found)

    def put(self, entry: MemoryEntry) -> None:
        size = size_of(entry.key, entry.value)
        self._run(
            f"INSERT INTO memories ({_MEMORY_COLUMNS}, size, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
            " ON CONFLICT (scope, key) DO UPDATE SET version = excluded.version, value = excluded.value,"
            " created = excluded.created, updated = excluded.updated, expires = excluded.expires,"
            " author = excluded.author, size = excluded.size, crc = excluded.crc",
            (
                *(entry.scope, entry.key, entry.version, entry.value, entry.created, entry.updated, entry.expires),
                *(entry.by, size, _memory_crc(entry)),
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
            f"INSERT INTO memory_changes ({_CHANGE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (
                *(change.scope, change.key, change.version, change.change, change.value),
                *(change.at, change.by, change.expires),
            ),
        )
        # Each change takes the next version, so versions count the changes.
        self._run(
            "DELETE FROM memory_changes WHERE scope = ? AND key = ? AND version <= ?",
            (change.scope, change.key, change.version - keep),
        )

    def expired(self, now: int, limit: int) -> list[MemoryEntry]:
        rows = self._db.execute(
            f"SELECT {_ENTRY} FROM memories m WHERE m.expires IS NOT NULL AND m.expires <= ?"  # noqa: S608
            " ORDER BY m.expires, m.id LIMIT ?",
            (now, limit),
        )
        return [_memory_row(found)[0] for found in rows.fetchall()]

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

    def get(self, scope: str, key: str, now: int) -> MemoryEntry | None:
        found = self._db.execute(
            f"SELECT {_ENTRY} FROM memories m WHERE m.scope = ? AND m.key = ? AND {_UNEXPIRED}",  # noqa: S608
            (scope, key, now),
        ).get
        return None if found is None else _sound_memory(found)

    def list(self, scope: str, prefix: str, after: str, now: int, limit: int) -> MemoryPage:
        rows = self._db.execute(LIST_MEMORY_QUERY, (scope, after, prefix, prefix + _AFTER_ALL_KEYS, now))
        found = _memory_page(rows, limit, self._page_bytes)
        rows.close(True)  # noqa: FBT003  a page that ends early must not keep its snapshot
        return found

    def search(self, scope: str | None, words: Sequence[str], now: int, limit: int) -> MemoryPage:
        numbers = self._db.execute(
            "SELECT m.id FROM memory_words JOIN memories m ON m.id = memory_words.rowid"  # noqa: S608
            f" WHERE memory_words MATCH ? AND (? IS NULL OR m.scope = ?) AND {_UNEXPIRED}"
            " ORDER BY memory_words.rank, m.id",
            (match_expression(words), scope, scope, now),
        ).fetchall()
        return _memory_page(map(self._numbered, numbers), limit, self._page_bytes)

    def _numbered(self, number: tuple[int]) -> tuple[Any, ...]:
        return self._db.execute(f"SELECT {_ENTRY} FROM memories m WHERE m.id = ?", number).get  # noqa: S608

    def history(self, scope: str, key: str, now: int, limit: int) -> list[MemoryChange]:
        rows = page(
            self._db,
            f"SELECT {_CHANGE_COLUMNS} FROM memory_changes WHERE scope = ? AND key = ? ORDER BY version DESC LIMIT ?",  # noqa: S608
            (scope, key, limit),
            _CHANGE_VALUE,
            self._page_bytes,
        )
        return [seen_at(MemoryChange(*found), now) for found in rows]

    def scopes(self, now: int) -> list[MemoryScope]:
        rows = self._db.execute(
            "SELECT m.scope, count(*), sum(m.size) FROM memories m INDEXED BY memories_usage"  # noqa: S608
            f" WHERE {_UNEXPIRED} GROUP BY m.scope ORDER BY m.scope",
            (now,),
        )
        return [MemoryScope(*found) for found in rows.fetchall()]

    def raw(self) -> Iterator[tuple[MemoryEntry, bool]]:
        for found in self._db.execute(f"SELECT {_ENTRY} FROM memories m ORDER BY m.scope, m.key"):  # noqa: S608
            yield _memory_row(found)

    def raw_changes(self) -> Iterator[MemoryChange]:
        for found in self._db.execute(f"SELECT {_CHANGE_COLUMNS} FROM memory_changes ORDER BY scope, key, version"):  # noqa: S608
            yield MemoryChange(*found)


def match_expression(words: Sequence[str]) -> str:
    """The FTS expression that finds all of these words, also as prefixes. In quotes, no character is an operator."""
    return " ".join('"' + word.replace('"', '""') + '"*' for word in words)


def _memory_row(found: tuple[Any, ...]) -> tuple[MemoryEntry, bool]:
    """An entry from its columns, and True if it matches its checksum."""
    try:
        entry = _memory_entry(found, "strict")
    except UnicodeDecodeError:
        return _memory_entry(found, "replace"), False
    return entry, _memory_crc(entry) == found[-1]


def _memory_entry(found: tuple[Any, ...], errors: str) -> MemoryEntry:
    scope, key, version, value, created, updated, expires, author, _ = found
    scope, key, value = (text.decode(errors=errors) for text in (scope, key, value))
    by = None if author is None else author.decode(errors=errors)
    return MemoryEntry(scope, key, version, value, created, updated, expires, by)


def _memory_page(rows: Iterable[tuple[Any, ...]], limit: int, page_bytes: int) -> MemoryPage:
    """The first intact entries up to the limits (at least one), and the keys of the damaged ones before the last."""
    entries: list[MemoryEntry] = []
    damaged: list[MemoryKey] = []
    taken = before_last = 0
    for found in rows:
        entry, sound = _memory_row(found)
        if not sound:
            damaged.append(MemoryKey(entry.scope, entry.key))
            continue
        taken += len(entry.value)
        if entries and taken > page_bytes:
            return MemoryPage(entries, damaged[:before_last], more=True)  # later damaged ones belong to the next page
        entries.append(entry)
        before_last = len(damaged)
        if len(entries) == limit:
            return MemoryPage(entries, damaged, more=True)
    return MemoryPage(entries, damaged)


def _sound_memory(found: tuple[Any, ...]) -> MemoryEntry:
    entry, sound = _memory_row(found)
    if not sound:
        raise MemoryCorrupt(entry.scope, entry.key)
    return entry


def _memory_crc(of: MemoryEntry) -> int:
    said = (of.scope, of.key, of.version, of.created, of.updated, of.expires, of.by, of.value)
    return crc32("\0".join(map(str, said)).encode())


# ---- notifications -------------------------------------------------------------------------------------------------

_NOTIFICATION_COLUMNS: Final = (
    "id, journal, no, kind, title, body, source, priority, key, state, attempts, due, expires, created, updated,"
    " input, run, reason, woken"
)
_NOTICES: Final = f"SELECT {_NOTIFICATION_COLUMNS}, crc FROM notifications"  # noqa: S608  constants
_NOTICE_BODY: Final = 5
_READY: Final = "state = 'queued' AND due <= ? AND (expires IS NULL OR expires > ?)"
NEXT_NOTIFICATIONS_QUERY: Final = (
    # The named index holds only queued notifications, in the order of delivery.
    f"{_NOTICES} INDEXED BY notifications_queued WHERE journal = ? AND {_READY} ORDER BY priority DESC, no LIMIT ?"
)
"""Finds the notifications to deliver next."""
PURGE_NOTIFICATIONS_QUERY: Final = (
    # The named index holds only finished notifications, the oldest first.
    "SELECT id FROM notifications INDEXED BY notifications_finished"
    " WHERE state IN ('acknowledged', 'cancelled', 'expired') AND updated <= ? ORDER BY updated, id LIMIT ?"
)
"""Finds the notifications to purge."""


class NotificationTable:
    """`NotificationRows` on the connection of the writer."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._db = connection
        self._run = run

    def find(self, number: int) -> Notification | None:
        return _first(self._all(f"{_NOTICES} WHERE id = ?", number))

    def by_key(self, journal: str, key: str) -> Notification | None:
        return _first(self._all(f"{_NOTICES} WHERE journal = ? AND key = ?", journal, key))

    def add(self, notification: Notification) -> Notification:
        last = self._db.execute(
            "SELECT no FROM notifications WHERE journal = ? ORDER BY id DESC LIMIT 1", (notification.journal,)
        ).get
        added = replace(notification, no=(last or 0) + 1)
        self._run(
            f"INSERT INTO notifications ({_NOTIFICATION_COLUMNS}, crc)"  # noqa: S608
            " VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(added.journal, added.no, added.kind, added.title, added.body, added.source, added.priority),
                *(added.key, added.state, added.attempts, added.due, added.expires, added.created, added.updated),
                *(added.input, added.run, added.reason, int(added.woken), _notification_crc(added)),
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
        found = self._db.execute(PURGE_NOTIFICATIONS_QUERY, (before, limit)).fetchall()
        for (number,) in found:
            self._run("DELETE FROM notifications WHERE id = ?", (number,))
        return len(found)

    def claimed_by_input(self, journal: str, number: int) -> list[Notification]:
        return self._all(f"{_NOTICES} WHERE state = 'claimed' AND journal = ? AND input = ?", journal, number)

    def claimed_by_run(self, journal: str, run: str) -> list[Notification]:
        return self._all(
            f"{_NOTICES} INDEXED BY notifications_claimed WHERE state = 'claimed' AND journal = ? AND run = ?",
            journal,
            run,
        )

    def has_ready(self, journal: str, now: int) -> bool:
        sql = f"SELECT 1 FROM notifications INDEXED BY notifications_queued WHERE journal = ? AND {_READY} LIMIT 1"  # noqa: S608
        return self._db.execute(sql, (journal, now, now)).get is not None

    def unwoken(self, now: int, limit: int) -> list[Notification]:
        return self._all(
            f"{_NOTICES} WHERE state = 'queued' AND woken = 0 AND due <= ? ORDER BY due, id LIMIT ?",
            now,
            limit,
        )

    def overdue(self, now: int, limit: int) -> list[Notification]:
        return self._all(
            f"{_NOTICES} WHERE state = 'queued' AND expires IS NOT NULL AND expires <= ? ORDER BY expires, id LIMIT ?",
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
        return [_notification_row(found)[0] for found in self._db.execute(sql, values).fetchall()]


class NotificationQueries:
    """`NotificationReader` on a read-only connection."""

    def __init__(self, connection: Db, page_bytes: int) -> None:
        self._db = connection
        self._page_bytes = page_bytes

    def get(self, number: int) -> Notification | None:
        found = self._db.execute(f"{_NOTICES} WHERE id = ?", (number,)).get
        return None if found is None else _sound_notification(found)

    def next(self, journal: str, now: int, limit: int) -> list[Notification]:
        rows = page(self._db, NEXT_NOTIFICATIONS_QUERY, (journal, now, now, limit), _NOTICE_BODY, self._page_bytes)
        return [_sound_notification(found) for found in rows]

    def newest(self, where: NotificationFilter, limit: int) -> tuple[list[Notification], set[str]]:
        sql, values = newest_notifications_query(where, limit)
        rows = [_notification_row(found) for found in page(self._db, sql, values, _NOTICE_BODY, self._page_bytes)]
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
        for found in self._db.execute(f"{_NOTICES} ORDER BY id"):
            yield _notification_row(found)


def newest_notifications_query(where: NotificationFilter, limit: int) -> tuple[str, list[Any]]:
    """The statement that lists notifications. Every combination of filters has an index in its order."""
    terms: list[str] = []
    values: list[Any] = []
    for term, value in (("journal = ?", where.journal), ("state = ?", where.state), ("id < ?", where.before)):
        if value is not None:
            terms.append(term)
            values.append(value)
    chosen = f" WHERE {' AND '.join(terms)}" if terms else ""
    return f"{_NOTICES}{chosen} ORDER BY id DESC LIMIT ?", [*values, limit]


def _first(found: list[Notification]) -> Notification | None:
    return found[0] if found else None


def _notification_row(found: tuple[Any, ...]) -> tuple[Notification, bool]:
    """A notification from its columns, and True if its content matches its checksum."""
    *columns, woken, crc = found
    notification = Notification(*columns, woken=bool(woken))
    return notification, _notification_crc(notification) == crc


def _sound_notification(found: tuple[Any, ...]) -> Notification:
    notification, sound = _notification_row(found)
    if not sound:
        reason = f"the notification {notification.id} does not match its checksum"
        raise JournalCorrupt(notification.journal, 0, reason)
    return notification


def _notification_crc(of: Notification) -> int:
    """The checksum of the content, which never changes."""
    said = (of.journal, of.no, of.kind, of.title, of.source, of.priority, of.key, of.expires, of.created, of.body)
    return crc32("\0".join(map(str, said)).encode())


# ---- attachments ---------------------------------------------------------------------------------------------------

_ATTACHMENT_COLUMNS: Final = "session, digest, media_type, size, name, at"
_SELECT_ATTACHMENTS: Final = f"SELECT {_ATTACHMENT_COLUMNS} FROM attachments"  # noqa: S608  constants
_SESSION_ATTACHMENTS: Final = "SELECT 1 FROM attachments a JOIN journals j ON j.id = a.session"
_UNUSED_BLOBS: Final = (
    "SELECT b.digest, length(b.body) FROM blobs b WHERE b.at < ?"  # noqa: S608
    " AND NOT EXISTS (SELECT 1 FROM refs r WHERE r.digest = b.digest)"
    f" AND NOT EXISTS ({_SESSION_ATTACHMENTS} WHERE a.digest = b.digest)"
    " AND NOT EXISTS (SELECT 1 FROM attachments n WHERE n.digest = b.digest AND n.at >= ?)"
)
_UNUSED_BLOBS_AFTER: Final = f"{_UNUSED_BLOBS} AND b.digest > ? ORDER BY b.digest LIMIT ?"
_UNUSED_BLOB: Final = f"{_UNUSED_BLOBS} AND b.digest = ?"


class _AttachmentReads:
    """`AttachmentReads` on any connection."""

    def __init__(self, connection: Db) -> None:
        self._db = connection

    def find(self, session: str, digest: str) -> StoredAttachment | None:
        found = self._db.execute(f"{_SELECT_ATTACHMENTS} WHERE session = ? AND digest = ?", (session, digest)).get
        return None if found is None else StoredAttachment(*found)

    def collection_basis(self) -> CollectionBasis:
        damaged = self._db.execute("SELECT min(id) FROM journals WHERE quarantine IS NOT NULL").get
        roots = self._exists("SELECT 1 FROM refs") or self._exists(_SESSION_ATTACHMENTS)
        return CollectionBasis(self._exists("SELECT 1 FROM blobs"), roots, damaged)

    def unused(self, before: int, *, after: str = "", limit: int = -1) -> list[tuple[str, int]]:
        return list(self._db.execute(_UNUSED_BLOBS_AFTER, (before, before, after, limit)))

    def unused_of(self, digests: Sequence[str], before: int) -> list[tuple[str, int]]:
        found = (self._db.execute(_UNUSED_BLOB, (before, before, digest)).fetchall() for digest in digests)
        return [one for some in found for one in some]

    def _exists(self, query: str, values: tuple[Any, ...] = ()) -> bool:
        return self._db.execute(f"{query} LIMIT 1", values).get is not None


class AttachmentTable(_AttachmentReads):
    """`AttachmentRows` on the connection of the writer."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], None]) -> None:
        super().__init__(connection)
        self._run = run

    def total(self, session: str) -> tuple[int, int]:
        return self._db.execute(
            "SELECT count(*), coalesce(sum(size), 0) FROM attachments WHERE session = ?", (session,)
        ).get

    def put(self, found: StoredAttachment) -> None:
        self._run(
            f"INSERT OR REPLACE INTO attachments ({_ATTACHMENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
            (found.session, found.digest, found.media_type, found.size, found.name, found.at),
        )

    def forget(self, digest: str) -> None:
        self._run("DELETE FROM attachments WHERE digest = ?", (digest,))
        self._run("DELETE FROM blobs WHERE digest = ?", (digest,))


class AttachmentQueries(_AttachmentReads):
    """`AttachmentReader` on a read-only connection."""

    def of(self, session: str, after: str, limit: int) -> list[StoredAttachment]:
        sql = f"{_SELECT_ATTACHMENTS} WHERE session = ? AND digest > ? ORDER BY digest LIMIT ?"
        return [StoredAttachment(*found) for found in self._db.execute(sql, (session, after, limit))]

    def refers(self, journal: str, digest: str, upto: int | None) -> bool:
        sql = "SELECT 1 FROM refs r JOIN journals j ON j.no = r.journal WHERE j.id = ? AND r.digest = ?"
        if upto is None:
            return self._exists(sql, (journal, digest))
        return self._exists(f"{sql} AND r.seq BETWEEN 1 AND ?", (journal, digest, upto))

    def task_refers(self, session: str, digest: str) -> bool:
        sql = "SELECT 1 FROM refs r JOIN journals j ON j.no = r.journal"
        return self._exists(f"{sql} WHERE r.digest = ? AND j.session = ? AND j.role = 'task'", (digest, session))

    def raw(self) -> Iterator[StoredAttachment]:
        for found in self._db.execute(f"{_SELECT_ATTACHMENTS} ORDER BY session, digest"):
            yield StoredAttachment(*found)


# ---- refusals and terms --------------------------------------------------------------------------------------------

_REFUSAL_COLUMNS: Final = "id, journal, agent, key, at, error, message, nth"
_SELECT_REFUSALS: Final = f"SELECT {_REFUSAL_COLUMNS} FROM refusals"  # noqa: S608  constants


class AdmissionTable:
    """`AdmissionRows` on the connection of the writer."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._db = connection
        self._run = run

    def note(self, command: NoteRefusal, at: int) -> RefusedInput:
        last = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'refusals'").get or 0
        nth = self._db.execute("SELECT max(nth) FROM refusals WHERE journal = ?", (command.journal,)).get or 0
        made = RefusedInput(
            last + 1, command.journal, command.agent, command.key, at, command.error, command.message, nth + 1
        )
        self._run(
            f"INSERT INTO refusals ({_REFUSAL_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (made.id, made.journal, made.agent, made.key, made.at, made.error, made.message, made.nth),
        )
        self._run(
            "DELETE FROM refusals WHERE journal = ? AND nth <= ?", (made.journal, made.nth - REFUSALS_KEPT_PER_JOURNAL)
        )
        # Ids have gaps from the line above, so at most this many are left.
        self._run("DELETE FROM refusals WHERE id <= ?", (made.id - REFUSALS_KEPT,))
        return made

    def set_terms(self, agent: str, body: str | None, at: int) -> None:
        if body is None:
            self._run("DELETE FROM terms WHERE agent = ?", (agent,))
        else:
            self._run("INSERT OR REPLACE INTO terms (agent, body, at) VALUES (?, ?, ?)", (agent, body, at))


class AdmissionQueries:
    """`AdmissionReader` on a read-only connection."""

    def __init__(self, connection: Db) -> None:
        self._db = connection

    def terms(self) -> dict[str, str]:
        return dict(self._db.execute("SELECT agent, body FROM terms").fetchall())

    def refusals(self, journal: str | None, limit: int) -> list[RefusedInput]:
        where, values = ("", ()) if journal is None else (" WHERE journal = ?", (journal,))
        found = self._db.execute(f"{_SELECT_REFUSALS}{where} ORDER BY id DESC LIMIT ?", (*values, limit)).fetchall()
        return [RefusedInput(*columns) for columns in found]

    def raw_texts(self) -> Iterator[str]:
        for (text,) in self._db.execute("SELECT body FROM terms UNION ALL SELECT message FROM refusals"):
            yield text


# ---- spending ------------------------------------------------------------------------------------------------------

_TOTAL: Final = -1
"""The day of the row with the total."""
_NO_AGENT: Final = ""
"""Stands for journals without an agent."""
_SPEND_COLUMNS: Final = ", ".join(Spend.__struct_fields__)
_SPEND_PLACES: Final = ", ".join("?" * (2 + len(Spend.__struct_fields__)))
_ADD_SPEND: Final = (
    f"INSERT INTO spending (agent, day, {_SPEND_COLUMNS}) VALUES ({_SPEND_PLACES})"  # noqa: S608
    " ON CONFLICT (agent, day) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in Spend.__struct_fields__)
)
_COUNTED_SINCE: Final = "SELECT CAST(CAST(value AS TEXT) AS INTEGER) FROM meta WHERE key = 'spending_since'"
_COUNT_FROM_FIRST: Final = "UPDATE meta SET value = CAST('0' AS BLOB) WHERE key = 'spending_since'"


class SpendingTable:
    """`SpendingRows` on the connection of the writer. It holds spending back until the end of the transaction."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._db = connection
        self._run = run
        self.held: dict[tuple[str, int], list[Spend]] = {}

    def add(self, agent: str | None, day: int, spend: Spend) -> None:
        self.held.setdefault((agent or _NO_AGENT, day), []).append(spend)

    def replace(self, rows: Sequence[DailySpend]) -> None:
        self.held.clear()
        self._run("DELETE FROM spending", ())
        self._run(_COUNT_FROM_FIRST, ())
        for row in rows:
            self.add(row.agent, row.day, row.spend)

    def since(self) -> int:
        return self._db.execute(_COUNTED_SINCE).get or 0

    def complete(self, rows: Sequence[DailySpend]) -> None:
        self._run(_COUNT_FROM_FIRST, ())
        for row in rows:
            self.add(row.agent, row.day, row.spend)

    def flush(self) -> None:
        """Write the spending that is held back."""
        wholes: dict[tuple[str, int], list[Spend]] = {}
        for (agent, _), spends in self.held.items():
            wholes.setdefault((agent, _TOTAL), []).extend(spends)
        rows = [(*place, *_column_sums(spends)) for place, spends in (*self.held.items(), *wholes.items())]
        self._db.executemany(_ADD_SPEND, rows)
        self.held.clear()

    def forget(self) -> None:
        """Drop the spending that is held back, after a rollback."""
        self.held.clear()


class SpendingQueries:
    """`SpendingReader` on a read-only connection."""

    def __init__(self, connection: Db) -> None:
        self._db = connection

    def spent(self, agent: str | None, day: int | None) -> Spend:
        found = self._db.execute(
            f"SELECT {_SPEND_COLUMNS} FROM spending WHERE agent = ? AND day = ?",  # noqa: S608
            (agent or _NO_AGENT, _TOTAL if day is None else day),
        ).get
        return NO_SPEND if found is None else Spend(*found)

    def since(self) -> int:
        return self._db.execute(_COUNTED_SINCE).get or 0

    def raw(self) -> Iterator[tuple[str | None, int | None, Spend]]:
        for agent, day, *numbers in self._db.execute(f"SELECT agent, day, {_SPEND_COLUMNS} FROM spending"):  # noqa: S608
            yield agent or None, None if day == _TOTAL else day, Spend(*numbers)


def _column_sums(spends: Sequence[Spend]) -> Iterator[int]:
    return map(sum, zip(*map(astuple, spends), strict=True))


# ---- tombstones ----------------------------------------------------------------------------------------------------

_TOMBSTONE_COLUMNS: Final = (
    "journal, kind, agent, role, session, status, detail, digest, head, pos, created, updated, at, spent"
)
_SELECT_TOMBSTONES: Final = f"SELECT {_TOMBSTONE_COLUMNS}, crc FROM tombstones"  # noqa: S608  constants
_JOURNAL_TABLES: Final = ("records", "inputs", "input_aliases", "waits", "refs")
_OLD_WAITS: Final = "journal = ? AND name >= ? AND name < ? AND state != 'open' AND at BETWEEN 1 AND ? - 1"
_spent_decoder: Final = msgspec.json.Decoder(tuple[tuple[int, Spend], ...])


class RetentionTable:
    """`RetentionRows` on the connection of the writer.

    `flush` writes the records that are held back, and `drop` removes a journal from the cache.
    """

    def __init__(
        self,
        connection: Db,
        run: Callable[[str, tuple[Any, ...]], None],
        flush: Callable[[], None],
        drop: Callable[[JournalRow], None],
    ) -> None:
        self._db = connection
        self._run = run
        self._flush = flush
        self._drop = drop

    def find(self, journal: str) -> Tombstone | None:
        return _find_tombstone(self._db, journal)

    def last_position_of(self, row: JournalRow) -> int:
        self._flush()
        return self._db.execute("SELECT max(pos) FROM records WHERE journal = ?", (row.no,)).get or 0

    def has_forks(self, row: JournalRow) -> bool:
        return self._db.execute("SELECT 1 FROM journals WHERE parent = ? LIMIT 1", (row.id,)).get is not None

    def bury(self, row: JournalRow, stone: Tombstone) -> None:
        self._flush()
        newest = self._db.execute("SELECT max(pos) FROM records").get
        self._run(
            "DELETE FROM blobs WHERE at < ? AND digest IN (SELECT digest FROM refs WHERE journal = ?) AND NOT EXISTS"
            " (SELECT 1 FROM refs WHERE refs.digest = blobs.digest AND refs.journal != ?) AND NOT EXISTS"
            " (SELECT 1 FROM attachments WHERE attachments.digest = blobs.digest)",
            (stone.at - BLOB_GRACE_MS, row.no, row.no),
        )
        for table in _JOURNAL_TABLES:
            self._run(f"DELETE FROM {table} WHERE journal = ?", (row.no,))  # noqa: S608  constants
        self._run("DELETE FROM notifications WHERE journal = ?", (row.id,))
        self._run("DELETE FROM journals WHERE no = ?", (row.no,))
        self._keep_position(newest)
        values = (*msgspec.structs.astuple(stone)[:-1], msgspec.json.encode(stone.spent).decode())
        places = ", ".join("?" * (len(values) + 1))
        self._run(
            f"INSERT INTO tombstones ({_TOMBSTONE_COLUMNS}, crc) VALUES ({places})",  # noqa: S608
            (*values, _tombstone_crc(stone)),
        )
        self._drop(row)

    def _keep_position(self, newest: int) -> None:
        """Keep the newest position in use, by a record of journal 0: SQLite would give it to the next record."""
        if self._db.execute("SELECT max(pos) FROM records").get == newest:
            self._run("DELETE FROM records WHERE journal = 0 AND pos < ?", (newest,))
            return
        self._run("DELETE FROM records WHERE journal = 0", ())
        self._run(
            "INSERT INTO records (pos, journal, seq, epoch, crc, body) VALUES (?, 0, ?, 0, 0, x'')", (newest, newest)
        )

    def trim(self, row: JournalRow, seq: int) -> int:
        self._flush()
        self._run("DELETE FROM refs WHERE journal = ? AND seq BETWEEN 1 AND ?", (row.no, seq))
        self._run("DELETE FROM records WHERE journal = ? AND seq <= ?", (row.no, seq))
        return self._db.changes()

    def empty_inputs(self, row: JournalRow, before: int, spare: Sequence[int]) -> int:
        self._run(f"UPDATE inputs SET body = x'' WHERE {_old_inputs(spare)}", (row.no, before, *spare))  # noqa: S608
        return self._db.changes()

    def remove_waits(self, row: JournalRow, prefix: str, before: int) -> int:
        self._run(f"DELETE FROM waits WHERE {_OLD_WAITS}", (row.no, prefix, after_prefix(prefix), before))  # noqa: S608
        return self._db.changes()


class RetentionQueries:
    """`RetentionReader` on a read-only connection."""

    def __init__(self, connection: Db) -> None:
        self._db = connection

    def find(self, journal: str) -> Tombstone | None:
        return _find_tombstone(self._db, journal)

    def after(self, pos: int, role: str | None, limit: int) -> list[Tombstone]:
        rows = self._db.execute(
            f"{_SELECT_TOMBSTONES} WHERE pos > ? AND (? IS NULL OR role = ?) ORDER BY pos LIMIT ?",
            (pos, role, role, limit),
        )
        return [_sound_tombstone(found) for found in rows.fetchall()]

    def old(self, journal: str, before: int, spare: Sequence[int], prefix: str) -> tuple[int, int]:
        no = self._db.execute("SELECT no FROM journals WHERE id = ?", (journal,)).get
        inputs = f"SELECT count(*) FROM inputs WHERE {_old_inputs(spare)}"  # noqa: S608  constants
        waits = f"SELECT count(*) FROM waits WHERE {_OLD_WAITS}"  # noqa: S608  constants
        return (
            self._db.execute(inputs, (no, before, *spare)).get,
            self._db.execute(waits, (no, prefix, after_prefix(prefix), before)).get,
        )

    def raw(self) -> Iterator[tuple[Tombstone, bool]]:
        for found in self._db.execute(f"{_SELECT_TOMBSTONES} ORDER BY pos"):
            yield _tombstone_row(found)


def _old_inputs(spare: Sequence[int]) -> str:
    places = ", ".join("?" * len(spare))
    return f"journal = ? AND pending = 0 AND at < ? AND length(body) > 0 AND input NOT IN ({places})"


def _find_tombstone(db: Db, journal: str) -> Tombstone | None:
    found = db.execute(f"{_SELECT_TOMBSTONES} WHERE journal = ?", (journal,)).get
    return None if found is None else _sound_tombstone(found)


def _tombstone_row(found: tuple[Any, ...]) -> tuple[Tombstone, bool]:
    """A tombstone from its columns, and True if it matches its checksum."""
    *columns, spent, crc = found
    try:
        days = _spent_decoder.decode(spent)
    except (msgspec.MsgspecError, TypeError):
        return Tombstone(*columns), False
    stone = Tombstone(*columns, spent=days)
    return stone, _tombstone_crc(stone) == crc


def _sound_tombstone(found: tuple[Any, ...]) -> Tombstone:
    stone, sound = _tombstone_row(found)
    if not sound:
        raise JournalCorrupt(stone.journal, 0, "its tombstone does not match its checksum")
    return stone


def _tombstone_crc(stone: Tombstone) -> int:
    return crc32(msgspec.json.encode(stone))
