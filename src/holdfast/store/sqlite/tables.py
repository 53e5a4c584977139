"""The SQL of each topic beside the journals.

Reads for a caller compare checksums; a transaction that only moves rows does not.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from zlib import compress, crc32, decompress

import msgspec
from msgspec.structs import astuple, replace

from holdfast import errors
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical, canonical_json
from holdfast.errors.store import MOVED
from holdfast.names import agent_session_process
from holdfast.store.attachments import StoredAttachment
from holdfast.store.contract import InputRow, JournalRow, StoreLimits
from holdfast.store.folds import Fold
from holdfast.store.inbox import REFUSALS_KEPT, REFUSALS_KEPT_PER_JOURNAL, NoteRefusal, RefusedInput
from holdfast.store.memories import (
    MemoryChange,
    MemoryEntry,
    MemoryKey,
    MemoryPage,
    MemoryScope,
    seen_at,
    size_of,
    text_of,
)
from holdfast.store.notifications import Notification, NotificationState
from holdfast.store.retention import BLOB_GRACE_MS, CollectionBasis, ImportedJournal, Purged, Tombstone
from holdfast.store.spending import NO_SPEND, DailySpend, Spend
from holdfast.store.sqlite.files import Db, after_prefix
from holdfast.store.waits import EVERY_AGENT, StoredRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.store.sqlite.key import Seal


T = TypeVar("T")
INPUT_COLUMNS: Final = "input, key, digest, body, at, pending, counted, head"


class SqliteTables:
    """A connection with the tables of each topic: the common part of `SqliteRows` and `SqliteReader`."""

    def __init__(self, db: Db, seal: Seal | None, page_bytes: int = StoreLimits().page_bytes) -> None:
        self.db = db
        self.seal = seal
        self.page_bytes = page_bytes
        self.notifications = NotificationTable(self)
        self.memories = MemoryTable(self)
        self.rules = RuleTable(self)
        self.attachments = AttachmentTable(self)
        self.spending = SpendingTable(self)
        self.admission = AdmissionTable(self)
        self.retention = RetentionTable(self)
        self.folds = FoldTable(self)

    def one(self, sql: str, *values: Any) -> Any:
        """The first row of a query (its value, if it has one column); None without rows."""
        return self.db.execute(sql, values).get

    def all(self, sql: str, *values: Any) -> list[Any]:
        """All rows, fetched at once so that no snapshot stays open."""
        return self.db.execute(sql, values).fetchall()

    def page(self, sql: str, values: Sequence[Any], column: int, also: int | None = None) -> list[Any]:
        """Rows until one column, or two, have `page_bytes` bytes or characters; at least one row."""
        rows: list[Any] = []
        taken = 0
        cursor = self.db.execute(sql, values)
        for row in cursor:
            taken += len(row[column] or b"") + (0 if also is None else len(row[also] or b""))
            if rows and taken > self.page_bytes:
                break
            rows.append(row)
        cursor.close(True)  # a page that ends early must not keep its snapshot
        return rows

    def run(self, sql: str, *values: Any) -> None:
        self.db.execute(sql, values)

    def youngest(self, role: str, session: str) -> str:
        """The newest journal of this role and session; "" without one."""
        sql = "SELECT id FROM journals INDEXED BY journals_by_session_and_role WHERE session = ? AND role = ?"
        return self.one(f"{sql} ORDER BY no DESC LIMIT 1", session, role) or ""

    def find_input(self, no: int, where: str, *values: Any) -> InputRow | None:
        """The first input of journal `no` that fits."""
        found = self.one(f"SELECT {INPUT_COLUMNS} FROM inputs WHERE journal = ? AND {where}", no, *values)  # constants
        return None if found is None else input_row(found)

    def find_input_by_key(self, no: int, key: str) -> InputRow | None:
        """The input accepted under this key, also as an alias."""
        alias = "input = (SELECT input FROM input_aliases WHERE journal = ? AND key = ?)"
        return self.find_input(no, "key = ?", key) or self.find_input(no, alias, no, key)

    def flush_records(self) -> None:
        """Write the records that the transaction holds back."""

    def drop_journal(self, row: JournalRow) -> None:
        """Forget a removed journal."""

    def wipe_later(self) -> None:
        """Note that removed bytes may still be in the log."""


def input_row(found: tuple[Any, ...]) -> InputRow:
    """An input from its columns."""
    return InputRow(*found[:5], pending=bool(found[5]), counted=bool(found[6]), head=found[7])


class _Table:
    def __init__(self, tables: SqliteTables) -> None:
        self._tables = tables
        self._db = tables.db
        self._one = tables.one
        self._all = tables.all
        self._run = tables.run


class _CheckedTable(_Table, Generic[T]):
    _select: str
    _order: str
    _row: Callable[[tuple[Any, ...]], tuple[T, bool]]
    """An item from its columns, and True if it matches its checksum and, with a key, its seal."""
    _error: Callable[[T], errors.StoreError]
    """The error for a damaged item that a caller reads."""

    def _sound(self, found: tuple[Any, ...]) -> T:
        item, sound = self._row(found)
        if not sound:
            raise self._error(item)
        return item

    def _first(self, where: str, *values: Any) -> T | None:
        """The first item, damaged or not."""
        found = self._one(f"{self._select} WHERE {where}", *values)
        return None if found is None else self._row(found)[0]

    def _first_sound(self, where: str, *values: Any) -> T | None:
        found = self._one(f"{self._select} WHERE {where}", *values)
        return None if found is None else self._sound(found)

    def raw(self) -> Iterator[tuple[T, bool]]:
        """All items, each with True if it is sound. For audits."""
        for found in self._db.execute(f"{self._select} ORDER BY {self._order}"):
            yield self._row(found)


def newest_query(select: str, filters: Mapping[str, Any], limit: int) -> tuple[str, list[Any]]:
    """A statement that lists the newest rows first. Each combination of filters with a value has an index."""
    terms = {term: value for term, value in filters.items() if value is not None}
    where = f" WHERE {' AND '.join(terms)}" if terms else ""
    return f"{select}{where} ORDER BY id DESC LIMIT ?", [*terms.values(), limit]


def earliest(*times: int | None) -> int | None:
    """The earliest of these times; None without any."""
    return min((time for time in times if time is not None), default=None)


def insert_into(table: str, columns: str, verb: str = "INSERT") -> str:
    """The statement that adds a row with these columns."""
    places = ", ".join("?" * len(columns.split(",")))
    return f"{verb} INTO {table} ({columns}) VALUES ({places})"


def update_of(table: str, key: str, *columns: str) -> tuple[str, Callable[[Any], tuple[Any, ...]]]:
    """The statement that writes these columns of a row, and the function that gives their values."""
    return f"UPDATE {table} SET {' = ?, '.join(columns)} = ? WHERE {key} = ?", attrgetter(*columns, key)


def _crc(*said: object) -> int:
    return crc32("\0".join(map(str, said)).encode())


# ---- rules ---------------------------------------------------------------------------------------------------------

_RULE_COLUMNS: Final = "id, agent, body, digest, author, at, removed_by, removed_at, crc, mac"
SELECT_RULES: Final = f"SELECT {_RULE_COLUMNS} FROM rules"  # constants
_INSERT_RULE: Final = insert_into("rules", _RULE_COLUMNS)
_RULE_BODY: Final = 2
IN_FORCE_QUERY: Final = (
    # The named index holds only rules in force.
    f"{SELECT_RULES} INDEXED BY rules_in_force WHERE agent IN (?, ?) AND removed_at IS NULL ORDER BY id"
)


class RuleTable(_CheckedTable[StoredRule]):
    """Stored rules. A damaged rule raises `RuleCorrupt`: the others must not decide without it."""

    _select = SELECT_RULES
    _order = "id"

    def find(self, number: int) -> StoredRule | None:
        """The rule with this number, damaged or not."""
        return self._first("id = ?", number)

    def same(self, agent: str, digest: str) -> StoredRule | None:
        """The rule in force for this agent with this digest."""
        return self._first_sound("agent = ? AND digest = ? AND removed_at IS NULL", agent, digest)

    def count(self, agent: str) -> int:
        """Number of rules for exactly this agent."""
        sql = "SELECT count(*) FROM rules INDEXED BY rules_in_force WHERE agent = ? AND removed_at IS NULL"
        return self._one(sql, agent)

    def add(self, rule: StoredRule) -> StoredRule:
        """Add a rule; answers it with its `id`."""
        last = self._one("SELECT seq FROM sqlite_sequence WHERE name = 'rules'")
        added = replace(rule, id=(last or 0) + 1)  # the checksum covers the number
        self._run(_INSERT_RULE, *astuple(added), rule_crc(added), self._mac(added))
        return added

    def remove(self, rule: StoredRule) -> None:
        """Write who removed the rule, and when. The row gets a new checksum, even if it was damaged."""
        sql = "UPDATE rules SET removed_by = ?, removed_at = ?, crc = ?, mac = ? WHERE id = ?"
        self._run(sql, rule.removed_by, rule.removed_at, rule_crc(rule), self._mac(rule), rule.id)

    def reseal(self, rule: StoredRule) -> None:
        self._run("UPDATE rules SET mac = ? WHERE id = ?", self._mac(rule), rule.id)

    def in_force(self, agent: str) -> list[StoredRule]:
        """The rules for this agent and for every agent, oldest first."""
        return [self._sound(found) for found in self._all(IN_FORCE_QUERY, agent, EVERY_AGENT)]

    def newest(self, agent: str | None, before: int | None, limit: int) -> list[StoredRule]:
        """Rules newest first, with removed ones; `before` is the id of the last rule of the previous page."""
        query = newest_query(SELECT_RULES, {"agent = ?": agent, "id < ?": before}, limit)
        return [self._sound(found) for found in self._tables.page(*query, _RULE_BODY)]

    def _mac(self, rule: StoredRule) -> bytes | None:
        return None if self._tables.seal is None else self._tables.seal.of(rule)

    def _row(self, found: tuple[Any, ...]) -> tuple[StoredRule, bool]:
        *columns, crc, mac = found
        rule = StoredRule(*columns)
        texts = all(type(text) is str for text in (rule.agent, rule.body, rule.digest, rule.by))
        removed = type(rule.removed_by) in {str, type(None)} and type(rule.removed_at) in {int, type(None)}
        if not (texts and removed and type(rule.at) is int):  # a damaged or hostile file can hold anything
            return StoredRule(rule.id, str(rule.agent), str(rule.body), str(rule.digest), str(rule.by), 0), False
        seal = self._tables.seal
        return rule, rule_crc(rule) == crc and (seal is None or seal.matches(rule, mac))

    def _error(self, damaged: StoredRule) -> errors.StoreError:
        return errors.RuleCorrupt(damaged.id, damaged.agent)


def rule_crc(of: StoredRule) -> int:
    """The checksum of a stored rule."""
    return _crc(of.id, of.agent, of.digest, of.by, of.at, of.removed_by, of.removed_at, of.body)


# ---- memories ------------------------------------------------------------------------------------------------------

_PUT_MEMORY: Final = (
    insert_into(
        "memories",
        "scope, key, version, value, created, updated, expires, author, is_json, summary, metadata, size, crc",
    )
    + " ON CONFLICT (scope, key) DO UPDATE SET version = excluded.version, value = excluded.value,"
    " created = excluded.created, updated = excluded.updated, expires = excluded.expires, author = excluded.author,"
    " is_json = excluded.is_json, summary = excluded.summary, metadata = excluded.metadata,"
    " size = excluded.size, crc = excluded.crc"
)
_ENTRIES: Final = (
    # Texts as bytes: a text that is no longer UTF-8 then counts as damaged and raises nothing.
    "SELECT CAST(m.scope AS BLOB), CAST(m.key AS BLOB), m.version, CAST(m.value AS BLOB), m.created, m.updated,"
    " m.expires, CAST(m.author AS BLOB), m.is_json, CAST(m.summary AS BLOB), CAST(m.metadata AS BLOB), m.crc"
    " FROM memories m"
)
_CHANGE_COLUMNS: Final = "scope, key, version, change, value, at, author, expires, is_json, summary, metadata"
_INSERT_CHANGE: Final = insert_into("memory_changes", _CHANGE_COLUMNS)
_CHANGE_VALUE: Final = 4
_MEMORY_TABLES: Final = ("memories", "memory_changes")
_VALUE: Final = 3
_UNEXPIRED: Final = "(m.expires IS NULL OR m.expires > ?)"
_AFTER_ALL_KEYS: Final = "\U0010ffff"
"""Greater than any character of a key."""
LIST_MEMORY_QUERY: Final = (
    # Without a limit, because damaged entries among them do not count.
    f"{_ENTRIES} WHERE m.scope = ? AND m.key > ? AND m.key >= ? AND m.key < ? AND {_UNEXPIRED} ORDER BY m.key"
)


class MemoryTable(_CheckedTable[MemoryEntry]):
    """Memory. Expired entries stay until a purge removes them; reads for a caller leave them out."""

    _select = _ENTRIES
    _order = "m.scope, m.key"

    def entry(self, scope: str, key: str) -> MemoryEntry | None:
        """The entry, even if it has expired or is damaged."""
        return self._first("scope = ? AND key = ?", scope, key)

    def last_version(self, scope: str, key: str) -> int:
        return self._one("SELECT max(version) FROM memory_changes WHERE scope = ? AND key = ?", scope, key) or 0

    def usage(self, scope: str, now: int) -> MemoryScope:
        """Without expired entries."""
        sql = "SELECT count(*), coalesce(sum(m.size), 0) FROM memories m INDEXED BY memories_usage"
        return MemoryScope(scope, *self._one(f"{sql} WHERE m.scope = ? AND {_UNEXPIRED}", scope, now))

    def put(self, entry: MemoryEntry) -> None:
        self._drop_words("scope = ? AND key = ?", entry.scope, entry.key)
        *place, value, created, updated, expires, by, summary, metadata = astuple(entry)
        row = (*place, text_of(value), created, updated, expires, by, *_details(value, summary, metadata))
        self._run(_PUT_MEMORY, *row, size_of(entry), _memory_crc(*row))
        sql = "INSERT INTO memory_words (rowid, key, words, summary) SELECT id, key, words, summary FROM memories"
        self._run(f"{sql} WHERE scope = ? AND key = ?", entry.scope, entry.key)

    def remove(self, scope: str, key: str) -> None:
        self._drop_words("scope = ? AND key = ?", scope, key)
        self._run("DELETE FROM memories WHERE scope = ? AND key = ?", scope, key)

    def _drop_words(self, where: str, *values: Any) -> None:
        """Remove entries from the index, before they change: it needs the words that it has of them."""
        sql = "INSERT INTO memory_words (memory_words, rowid, key, words, summary)"
        self._run(f"{sql} SELECT 'delete', id, key, words, summary FROM memories WHERE {where}", *values)

    def forget(self, scope: str) -> int:
        """Remove all entries of a scope with their history; answers how many."""
        self._drop_words("scope = ?", scope)
        self._run("DELETE FROM memory_changes WHERE scope = ?", scope)
        self._run("DELETE FROM memories WHERE scope = ?", scope)
        return self._db.changes()

    def count(self, scope: str) -> int:
        return self._one("SELECT count(*) FROM memories WHERE scope = ?", scope)

    def add_change(self, change: MemoryChange, keep: int) -> None:
        """Add to the history of an entry, which keeps its last `keep` changes."""
        *place, value, at, by, expires, summary, metadata = astuple(change)
        text = None if value is None else text_of(value)
        self._run(_INSERT_CHANGE, *place, text, at, by, expires, *_details(value, summary, metadata))
        # Each change takes the next version, so versions count the changes.
        sql = "DELETE FROM memory_changes WHERE scope = ? AND key = ? AND version <= ?"
        self._run(sql, change.scope, change.key, change.version - keep)

    def expired(self, now: int, limit: int) -> list[MemoryEntry]:
        sql = f"{_ENTRIES} WHERE m.expires IS NOT NULL AND m.expires <= ? ORDER BY m.expires, m.id LIMIT ?"
        return [self._row(found)[0] for found in self._all(sql, now, limit)]

    def forget_expired_values(self, now: int, limit: int) -> int:
        """Remove expired values from the history; answers how many."""
        sql = "SELECT id FROM memory_changes WHERE expires IS NOT NULL AND value IS NOT NULL AND expires <= ? LIMIT ?"
        rows = self._all(sql, now, limit)
        for (number,) in rows:  # without any, the transaction writes nothing
            self._run("UPDATE memory_changes SET value = NULL, summary = '', metadata = NULL WHERE id = ?", number)
        return len(rows)

    def get(self, scope: str, key: str, now: int) -> MemoryEntry | None:
        """The entry; `MemoryCorrupt` if it is damaged."""
        return self._first_sound(f"m.scope = ? AND m.key = ? AND {_UNEXPIRED}", scope, key, now)

    def list(self, scope: str, prefix: str, after: str, now: int, limit: int) -> MemoryPage:
        """By key. Damaged entries do not count against the limit."""
        rows = self._db.execute(LIST_MEMORY_QUERY, (scope, after, prefix, prefix + _AFTER_ALL_KEYS, now))
        found = self._page(rows, limit)
        rows.close(True)  # a page that ends early must not keep its snapshot
        return found

    def search(self, scope: str | None, words: Sequence[str], now: int, limit: int) -> MemoryPage:
        """Entries with all the words in key, value or summary, the best match first."""
        numbers = self._all(
            "SELECT m.id FROM memory_words JOIN memories m ON m.id = memory_words.rowid"
            f" WHERE memory_words MATCH ? AND (? IS NULL OR m.scope = ?) AND {_UNEXPIRED}"
            " ORDER BY memory_words.rank, m.id",
            *(match_expression(words), scope, scope, now),
        )
        return self._page((self._one(f"{_ENTRIES} WHERE m.id = ?", *number) for number in numbers), limit)

    def _page(self, rows: Iterable[tuple[Any, ...]], limit: int) -> MemoryPage:
        """The first intact entries up to the limits (at least one), and the damaged keys before the last one."""
        entries: list[MemoryEntry] = []
        damaged: list[MemoryKey] = []
        taken = before_last = 0
        for found in rows:
            entry, sound = self._row(found)
            if not sound:
                damaged.append(MemoryKey(entry.scope, entry.key))
                continue
            taken += len(found[_VALUE])
            if entries and taken > self._tables.page_bytes:
                return MemoryPage(entries, damaged[:before_last], more=True)  # later damaged ones: the next page
            entries.append(entry)
            before_last = len(damaged)
            if len(entries) == limit:
                return MemoryPage(entries, damaged, more=True)
        return MemoryPage(entries, damaged)

    def history(self, scope: str, key: str, now: int, limit: int) -> list[MemoryChange]:
        """Newest first."""
        sql = f"SELECT {_CHANGE_COLUMNS} FROM memory_changes WHERE scope = ? AND key = ? ORDER BY version DESC LIMIT ?"
        rows = self._tables.page(sql, (scope, key, limit), _CHANGE_VALUE)
        return [seen_at(_change_of(found), now) for found in rows]

    def of(self, scope: str) -> Iterator[MemoryEntry]:
        """All entries of a scope, also expired ones."""
        for found in self._all(f"{_ENTRIES} WHERE m.scope = ? ORDER BY m.key", scope):
            yield self._sound(found)

    def changes_of(self, scope: str) -> Iterator[MemoryChange]:
        """The history of a scope, the oldest change of each entry first."""
        sql = f"SELECT {_CHANGE_COLUMNS} FROM memory_changes WHERE scope = ? ORDER BY key, version"
        return (_change_of(found) for found in self._all(sql, scope))

    def is_used(self, scope: str) -> bool:
        """True if the scope has entries, or a history of them."""
        return any(self._one(f"SELECT 1 FROM {table} WHERE scope = ? LIMIT 1", scope) for table in _MEMORY_TABLES)

    def scopes(self, now: int) -> list[MemoryScope]:
        """Scopes with entries, by name."""
        sql = "SELECT m.scope, count(*), sum(m.size) FROM memories m INDEXED BY memories_usage"
        rows = self._all(f"{sql} WHERE {_UNEXPIRED} GROUP BY m.scope ORDER BY m.scope", now)
        return [MemoryScope(*found) for found in rows]

    def raw_changes(self) -> Iterator[MemoryChange]:
        for found in self._db.execute(f"SELECT {_CHANGE_COLUMNS} FROM memory_changes ORDER BY scope, key, version"):
            yield _change_of(found)

    def _row(self, found: tuple[Any, ...]) -> tuple[MemoryEntry, bool]:
        *columns, crc = found
        # A text that is no longer UTF-8 does not match its checksum, which covers the replacements.
        texts: list[Any] = [said.decode(errors="replace") if type(said) is bytes else said for said in columns]
        *place, text, created, updated, expires, by, is_json, summary, metadata = texts
        sound = _memory_crc(*texts) == crc
        try:
            value, more = _decode_details(text, is_json, metadata)
        except (msgspec.DecodeError, TypeError, RecursionError):  # a damaged or hostile file can hold anything
            value, more, sound = text, {}, False
        fields: list[Any] = [*place, value, created, updated, expires, by, summary, more]
        return MemoryEntry(*fields), sound

    def _error(self, damaged: MemoryEntry) -> errors.StoreError:
        return errors.MemoryCorrupt(damaged.scope, damaged.key)


def match_expression(words: Sequence[str]) -> str:
    """The FTS expression that finds all of these words, also as prefixes. In quotes, no character is an operator."""
    return " ".join('"' + word.replace('"', '""') + '"*' for word in words)


def _details(value: object, summary: str, metadata: dict[str, Any]) -> tuple[int, str, str | None]:
    """The columns `is_json`, `summary` and `metadata`."""
    said = canonical_json(metadata).decode() if metadata else None
    return int(value is not None and not isinstance(value, str)), summary, said


def _decode_details(text: str | None, is_json: int, metadata: str | None) -> tuple[Any, dict[str, Any]]:
    """The value and the metadata of the columns of an entry or a change."""
    value = text if text is None or not is_json else msgspec.json.decode(text)
    return value, {} if metadata is None else msgspec.json.decode(metadata, type=dict[str, Any])


def _change_of(found: tuple[Any, ...]) -> MemoryChange:
    *place, text, at, by, expires, is_json, summary, metadata = found
    try:
        value, more = _decode_details(text, is_json, metadata)
    except (msgspec.DecodeError, TypeError, RecursionError):  # damaged: no checksum covers the history
        value, more = text, {}
    fields: list[Any] = [*place, value, at, by, expires, summary, more]
    return MemoryChange(*fields)


def _memory_crc(*row: object) -> int:
    """The checksum of an entry; a text alone has the one that it had before schema 9."""
    scope, key, version, text, created, updated, expires, by, is_json, summary, metadata = row
    details = (is_json, summary, metadata) if is_json or summary or metadata is not None else ()
    return _crc(scope, key, version, created, updated, expires, by, *details, text)


# ---- notifications -------------------------------------------------------------------------------------------------

_NOTIFICATION_COLUMNS: Final = ", ".join((*Notification.__struct_fields__, "crc"))
_INSERT_NOTIFICATION: Final = insert_into("notifications", _NOTIFICATION_COLUMNS)
SELECT_NOTIFICATIONS: Final = f"SELECT {_NOTIFICATION_COLUMNS} FROM notifications"  # constants
_SAVE_NOTIFICATION, _state_of = update_of(
    "notifications", "id", "state", "attempts", "due", "updated", "input", "run", "reason", "woken"
)
_NOTICE_BODY: Final = 5
_READY: Final = "state = 'queued' AND due <= ? AND (expires IS NULL OR expires > ?)"
NEXT_NOTIFICATIONS_QUERY: Final = (
    # The named index holds only queued notifications, in the order of delivery.
    f"{SELECT_NOTIFICATIONS} INDEXED BY notifications_queued WHERE journal = ? AND {_READY}"
    " ORDER BY priority DESC, no LIMIT ?"
)
PURGE_NOTIFICATIONS_QUERY: Final = (
    # The named index holds only finished notifications, the oldest first.
    "SELECT id FROM notifications INDEXED BY notifications_finished"
    " WHERE state IN ('acknowledged', 'cancelled', 'expired') AND updated <= ? ORDER BY updated, id LIMIT ?"
)


class NotificationTable(_CheckedTable[Notification]):
    """Notifications. Reads for a caller raise `JournalCorrupt` for a damaged one."""

    _select = SELECT_NOTIFICATIONS
    _order = "id"

    def find(self, number: int) -> Notification | None:
        return self._first("id = ?", number)

    def by_key(self, journal: str, key: str) -> Notification | None:
        return self._first("journal = ? AND key = ?", journal, key)

    def add(self, notification: Notification) -> Notification:
        """Add a notification; answers it with its `id` and its `no`."""
        sql = "SELECT no FROM notifications WHERE journal = ? ORDER BY id DESC LIMIT 1"
        added = replace(notification, no=(self._one(sql, notification.journal) or 0) + 1)
        return replace(added, id=self.keep(added))

    def keep(self, notification: Notification) -> int:
        """Add a notification that has a `no`; answers its `id`."""
        stored = replace(notification, payload=_payload_text(notification))
        self._run(_INSERT_NOTIFICATION, None, *astuple(stored)[1:], _notification_crc(notification))
        return self._db.last_insert_rowid()

    def of(self, journal: str) -> list[Notification]:
        """All notifications of a journal, in the order of their numbers."""
        sql = f"{SELECT_NOTIFICATIONS} WHERE journal = ? ORDER BY no"
        return [self._sound(found) for found in self._all(sql, journal)]

    def save(self, notification: Notification) -> None:
        """Update the state. The content never changes."""
        self._run(_SAVE_NOTIFICATION, *_state_of(notification))

    def bury(self, journal: str, reason: str, now: int) -> None:
        """Mark all open notifications of a journal dead, without reading their texts."""
        sql = "UPDATE notifications SET state = 'dead', reason = ?, updated = ?, woken = 1"
        self._run(f"{sql} WHERE journal = ? AND state IN ('queued', 'claimed')", reason, now, journal)

    def purge(self, before: int, limit: int) -> Purged:
        """Remove finished notifications last changed at or before `before`, the oldest first."""
        found = self._all(PURGE_NOTIFICATIONS_QUERY, before, limit)
        for (number,) in found:  # without any, the transaction writes nothing
            self._run("DELETE FROM notifications WHERE id = ?", number)
        return Purged(len(found), len(found) >= limit)

    def claimed_by_input(self, journal: str, number: int) -> list[Notification]:
        return self._each("WHERE state = 'claimed' AND journal = ? AND input = ?", journal, number)

    def claimed_by_run(self, journal: str, run: str) -> list[Notification]:
        where = "INDEXED BY notifications_claimed WHERE state = 'claimed' AND journal = ? AND run = ?"
        return self._each(where, journal, run)

    def claimed_by_pump(self, journal: str) -> list[Notification]:
        where = "INDEXED BY notifications_claimed WHERE state = 'claimed' AND journal = ? AND input IS NULL"
        return self._each(where, journal)

    def has_ready(self, journal: str, now: int) -> bool:
        """True if one is queued, due and not expired."""
        sql = f"SELECT 1 FROM notifications INDEXED BY notifications_queued WHERE journal = ? AND {_READY} LIMIT 1"
        return self._one(sql, journal, now, now) is not None

    def unwoken(self, now: int, limit: int) -> list[Notification]:
        """Queued notifications that are due and have not woken their journal, longest due first."""
        return self._each("WHERE state = 'queued' AND woken = 0 AND due <= ? ORDER BY due, id LIMIT ?", now, limit)

    def overdue(self, now: int, limit: int) -> list[Notification]:
        where = "WHERE state = 'queued' AND expires IS NOT NULL AND expires <= ? ORDER BY expires, id LIMIT ?"
        return self._each(where, now, limit)

    def ready_journals(self, after: str, now: int, limit: int) -> list[str]:
        """Journals after `after`, by id, with a notification that is ready for delivery."""
        sql = "SELECT DISTINCT journal FROM notifications INDEXED BY notifications_queued"
        rows = self._all(f"{sql} WHERE {_READY} AND journal > ? ORDER BY journal LIMIT ?", now, now, after, limit)
        return [journal for (journal,) in rows]

    def _each(self, where: str, *values: Any) -> list[Notification]:
        return [self._row(found)[0] for found in self._all(f"{SELECT_NOTIFICATIONS} {where}", *values)]

    def get(self, number: int) -> Notification | None:
        return self._first_sound("id = ?", number)

    def next(self, journal: str, now: int, limit: int) -> list[Notification]:
        """Ready ones, in the order of delivery."""
        rows = self._tables.page(NEXT_NOTIFICATIONS_QUERY, (journal, now, now, limit), _NOTICE_BODY)
        return [self._sound(found) for found in rows]

    def next_due_of(self, journal: str, now: int) -> int | None:
        """Earliest due time, after `now`, of the queued ones of a journal."""
        sql = "SELECT min(due) FROM notifications INDEXED BY notifications_queued WHERE journal = ?"
        return self._one(f"{sql} AND state = 'queued' AND due > ?", journal, now)

    def newest(
        self, journal: str | None, state: NotificationState | None, before: int | None, limit: int
    ) -> tuple[list[Notification], set[str]]:
        """Newest first, and the journals of damaged ones, which are left out; `before` is the last id of a page."""
        filters = {"journal = ?": journal, "state = ?": state, "id < ?": before}
        found = self._tables.page(*newest_query(SELECT_NOTIFICATIONS, filters, limit), _NOTICE_BODY)
        rows = [self._row(columns) for columns in found]
        return [each for each, sound in rows if sound], {each.journal for each, sound in rows if not sound}

    def next_due(self) -> int | None:
        """Earliest due or expiry time."""
        queued = "FROM notifications WHERE state = 'queued'"
        due = self._one(f"SELECT due {queued} AND woken = 0 ORDER BY due LIMIT 1")
        expires = self._one(f"SELECT expires {queued} AND expires IS NOT NULL ORDER BY expires LIMIT 1")
        return earliest(due, expires)

    def _row(self, found: tuple[Any, ...]) -> tuple[Notification, bool]:
        *columns, payload, woken, crc = found
        notification = Notification(*columns, woken=bool(woken))
        if payload is not None:
            try:
                notification = replace(notification, payload=msgspec.json.decode(payload))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return notification, False
        return notification, _notification_crc(notification) == crc

    def _error(self, damaged: Notification) -> errors.StoreError:
        return errors.JournalCorrupt(damaged.journal, 0, f"the notification {damaged.id} does not match its checksum")


def _notification_crc(of: Notification) -> int:
    """The checksum of the content, which never changes."""
    content = (of.journal, of.no, of.kind, of.title, of.source, of.priority, of.key, of.expires, of.created, of.body)
    return _crc(*content) if of.payload is None else _crc(*content, _payload_text(of))


def _payload_text(of: Notification) -> str | None:
    return None if of.payload is None else canonical(of.payload).decode()


# ---- attachments ---------------------------------------------------------------------------------------------------

_ATTACHMENT_COLUMNS: Final = ", ".join(StoredAttachment.__struct_fields__)
_SELECT_ATTACHMENTS: Final = f"SELECT {_ATTACHMENT_COLUMNS} FROM attachments"  # constants
_PUT_ATTACHMENT: Final = insert_into("attachments", _ATTACHMENT_COLUMNS, "INSERT OR REPLACE")
_SESSION_ATTACHMENTS: Final = "SELECT 1 FROM attachments a JOIN journals j ON j.id = a.session"
_REFERENCES: Final = "SELECT 1 FROM refs r JOIN journals j ON j.no = r.journal WHERE r.digest = ?"
_UNUSED_BLOBS: Final = (
    "SELECT b.digest, length(b.body) FROM blobs b WHERE b.at < ?"
    " AND NOT EXISTS (SELECT 1 FROM refs r WHERE r.digest = b.digest)"
    f" AND NOT EXISTS ({_SESSION_ATTACHMENTS} WHERE a.digest = b.digest)"
    " AND NOT EXISTS (SELECT 1 FROM attachments n WHERE n.digest = b.digest AND n.at >= ?)"
)


_DAMAGED: Final = (
    f"SELECT min(id) FROM journals WHERE quarantine IS NOT NULL AND quarantine NOT LIKE '{MOVED}%'"  # a constant
)


class AttachmentTable(_Table):
    """Attachments, and the blobs that nothing refers to."""

    def find(self, session: str, digest: str) -> StoredAttachment | None:
        found = self._one(f"{_SELECT_ATTACHMENTS} WHERE session = ? AND digest = ?", session, digest)
        return None if found is None else StoredAttachment(*found)

    def collection_basis(self) -> CollectionBasis:
        damaged = self._one(_DAMAGED)
        roots = self._exists("SELECT 1 FROM refs") or self._exists(_SESSION_ATTACHMENTS)
        return CollectionBasis(self._exists("SELECT 1 FROM blobs"), roots, damaged)

    def unused(self, before: int, *, after: str = "", limit: int = -1) -> list[tuple[str, int]]:
        """Unreferenced blobs last put before `before`, by digest after `after`, with their sizes.

        A reference is a record, an input, an attachment of an existing session, or any attachment that was put or
        shared since `before`.
        """
        return self._all(f"{_UNUSED_BLOBS} AND b.digest > ? ORDER BY b.digest LIMIT ?", before, before, after, limit)

    def unused_of(self, digests: Iterable[str], before: int) -> list[tuple[str, int]]:
        """The unused ones of these blobs."""
        sql = f"{_UNUSED_BLOBS} AND b.digest = ?"
        return [found for digest in digests for found in self._all(sql, before, before, digest)]

    def _exists(self, query: str, *values: Any) -> bool:
        return self._one(f"{query} LIMIT 1", *values) is not None

    def total(self, session: str) -> tuple[int, int]:
        return self._one("SELECT count(*), coalesce(sum(size), 0) FROM attachments WHERE session = ?", session)

    def put(self, found: StoredAttachment) -> None:
        self._run(_PUT_ATTACHMENT, *astuple(found))

    def forget(self, digest: str) -> None:
        self._run("DELETE FROM attachments WHERE digest = ?", digest)
        self._run("DELETE FROM blobs WHERE digest = ?", digest)

    def of(self, session: str, after: str, limit: int) -> list[StoredAttachment]:
        sql = f"{_SELECT_ATTACHMENTS} WHERE session = ? AND digest > ? ORDER BY digest LIMIT ?"
        return [StoredAttachment(*found) for found in self._all(sql, session, after, limit)]

    def refers(self, journal: str, digest: str, upto: int | None) -> bool:
        """True if a journal refers to a blob, within its first `upto` records if given."""
        if upto is None:
            return self._exists(f"{_REFERENCES} AND j.id = ?", digest, journal)
        return self._exists(f"{_REFERENCES} AND j.id = ? AND r.seq BETWEEN 1 AND ?", digest, journal, upto)

    def task_refers(self, session: str, digest: str) -> bool:
        return self._exists(f"{_REFERENCES} AND j.session = ? AND j.role = 'task'", digest, session)

    def raw(self) -> Iterator[StoredAttachment]:
        for found in self._db.execute(f"{_SELECT_ATTACHMENTS} ORDER BY session, digest"):
            yield StoredAttachment(*found)


# ---- refusals and terms --------------------------------------------------------------------------------------------

_REFUSAL_COLUMNS: Final = "id, journal, agent, key, at, error, message, nth"
_INSERT_REFUSAL: Final = insert_into("refusals", _REFUSAL_COLUMNS)


class AdmissionTable(_Table):
    """Refusals and admission terms."""

    def note(self, command: NoteRefusal, at: int) -> RefusedInput:
        """Add a refusal and drop the oldest ones."""
        last = self._one("SELECT seq FROM sqlite_sequence WHERE name = 'refusals'") or 0
        nth = self._one("SELECT max(nth) FROM refusals WHERE journal = ?", command.journal) or 0
        said = (command.journal, command.agent, command.key, at, command.error, command.message)
        made = RefusedInput(last + 1, *said, nth + 1)
        self.keep(made)
        oldest = made.nth - REFUSALS_KEPT_PER_JOURNAL
        self._run("DELETE FROM refusals WHERE journal = ? AND nth <= ?", made.journal, oldest)
        # Ids have gaps from the line above, so at most this many are left.
        self._run("DELETE FROM refusals WHERE id <= ?", made.id - REFUSALS_KEPT)
        return made

    def keep(self, refused: RefusedInput) -> None:
        """Add a refusal as the newest."""
        self._run(_INSERT_REFUSAL, None, *astuple(refused)[1:])

    def set_terms(self, agent: str, body: str | None, at: int) -> None:
        if body is None:
            self._run("DELETE FROM terms WHERE agent = ?", agent)
        else:
            self._run("INSERT OR REPLACE INTO terms (agent, body, at) VALUES (?, ?, ?)", agent, body, at)

    def terms(self) -> dict[str, str]:
        """The stored admission of each agent that has one, as JSON."""
        return dict(self._all("SELECT agent, body FROM terms"))

    def refusals(self, journal: str | None, limit: int) -> list[RefusedInput]:
        """Newest first."""
        query = newest_query(f"SELECT {_REFUSAL_COLUMNS} FROM refusals", {"journal = ?": journal}, limit)
        return [RefusedInput(*columns) for columns in self._db.execute(*query).fetchall()]


# ---- spending ------------------------------------------------------------------------------------------------------

_TOTAL: Final = -1
"""The day of the row with the total."""
_NO_AGENT: Final = ""
"""The agent of journals without one."""
_SPEND_COLUMNS: Final = ", ".join(Spend.__struct_fields__)
_ADDS: Final = " ON CONFLICT (agent, day) DO UPDATE SET " + ", ".join(
    f"{name} = {name} + excluded.{name}" for name in Spend.__struct_fields__
)
_ADD_SPEND: Final = insert_into("spending", f"agent, day, {_SPEND_COLUMNS}") + _ADDS
_KEEP_SPEND: Final = insert_into("forgotten_spending", f"agent, day, {_SPEND_COLUMNS}") + _ADDS


class SpendingTable(_Table):
    """Spending. A transaction holds it back until its end."""

    def __init__(self, tables: SqliteTables) -> None:
        super().__init__(tables)
        self.held: dict[tuple[str, int], list[Spend]] = {}

    def add(self, agent: str | None, day: int, spend: Spend) -> None:
        """Add to the day and to the total."""
        self.held.setdefault((agent or _NO_AGENT, day), []).append(spend)

    def replace(self, rows: Sequence[DailySpend]) -> None:
        """Replace all rows; from now on spending is complete from the first record."""
        self.held.clear()
        self._run("DELETE FROM spending")
        self.complete(rows)

    def complete(self, rows: Sequence[DailySpend]) -> None:
        """Add these rows; from now on spending is complete from the first record."""
        self._run("UPDATE meta SET value = CAST('0' AS BLOB) WHERE key = 'spending_since'")
        for row in rows:
            self.add(row.agent, row.day, row.spend)

    def forget(self, rows: Iterable[DailySpend], unsure: Iterable[str | None]) -> None:
        """Keep the spending of forgotten records; `unsure` are agents with records that could not be read."""
        spent = [(row.agent or _NO_AGENT, row.day, *astuple(row.spend)) for row in rows]
        doubts = [(agent or _NO_AGENT, _TOTAL, *astuple(NO_SPEND)) for agent in unsure]
        self._db.executemany(_KEEP_SPEND, [*spent, *doubts])

    def forgotten(self) -> tuple[list[DailySpend], list[str | None]]:
        """The spending of forgotten records, and the agents for which it is not complete."""
        rows = self._all(f"SELECT agent, day, {_SPEND_COLUMNS} FROM forgotten_spending")
        known = [DailySpend(agent or None, day, Spend(*numbers)) for agent, day, *numbers in rows if day != _TOTAL]
        return known, [agent or None for agent, day, *_ in rows if day == _TOTAL]

    def since(self) -> int:
        """The position after which records are counted; above 0 in a store of an older schema."""
        return self._one("SELECT CAST(CAST(value AS TEXT) AS INTEGER) FROM meta WHERE key = 'spending_since'") or 0

    def flush(self) -> None:
        totals: dict[tuple[str, int], list[Spend]] = {}
        for (agent, _), spends in self.held.items():
            totals.setdefault((agent, _TOTAL), []).extend(spends)
        rows = [
            (*place, *map(sum, zip(*map(astuple, spends), strict=True)))
            for place, spends in (*self.held.items(), *totals.items())
        ]
        self._db.executemany(_ADD_SPEND, rows)
        self.held.clear()

    def spent(self, agent: str | None, day: int | None) -> Spend:
        """Spending of one day, or the total for None."""
        sql = f"SELECT {_SPEND_COLUMNS} FROM spending WHERE agent = ? AND day = ?"
        found = self._one(sql, agent or _NO_AGENT, _TOTAL if day is None else day)
        return NO_SPEND if found is None else Spend(*found)

    def raw(self) -> Iterator[tuple[str | None, int | None, Spend]]:
        """All rows; the day is None in the row of a total."""
        for agent, day, *numbers in self._db.execute(f"SELECT agent, day, {_SPEND_COLUMNS} FROM spending"):
            yield agent or None, None if day == _TOTAL else day, Spend(*numbers)


# ---- folds ---------------------------------------------------------------------------------------------------------

_NEWEST_FOLD: Final = (
    # A fold ahead of a journal that was cut short, or of another content of it, has no such record.
    "SELECT f.seq, f.anchor, f.body, f.mac FROM folds f"
    " JOIN records r ON r.journal = f.journal AND r.seq = f.seq AND r.crc = f.anchor"
    " WHERE f.journal = ? AND f.seq <= ? ORDER BY f.seq DESC LIMIT 1"
)
_SAVE_FOLD: Final = insert_into("folds", "journal, seq, anchor, body, mac")


class FoldTable(_Table):
    """Folds of sessions."""

    def newest(self, journal: str, no: int, upto: int) -> Fold | None:
        """The newest fold of a journal up to a record; None if there is none, or it does not match its seal."""
        found = self._one(_NEWEST_FOLD, no, upto)
        seal = self._tables.seal
        if found is None or seal is None:
            return None
        *columns, mac = found
        packed = Fold(journal, *columns)
        return packed._replace(body=decompress(packed.body)) if seal.matches(packed, mac) else None

    def save(self, row: JournalRow, seq: int, body: bytes) -> None:
        """Save a fold. One ahead of it is of a journal that was cut short, and goes."""
        self._tables.flush_records()
        anchor = self._one("SELECT crc FROM records WHERE journal = ? AND seq = ?", row.no, seq)
        seal = self._tables.seal
        if anchor is None or seal is None:
            return
        fold = Fold(row.id, seq, anchor, compress(body, 1))
        self._run("DELETE FROM folds WHERE journal = ? AND seq >= ?", row.no, seq)
        crash_point("store.fold_part")
        self._run(_SAVE_FOLD, row.no, *fold[1:], seal.of(fold))


# ---- tombstones ----------------------------------------------------------------------------------------------------

_TOMBSTONE_COLUMNS: Final = ", ".join((*Tombstone.__struct_fields__, "crc"))
_SELECT_TOMBSTONES: Final = f"SELECT {_TOMBSTONE_COLUMNS} FROM tombstones"  # constants
_INSERT_TOMBSTONE: Final = insert_into("tombstones", _TOMBSTONE_COLUMNS)
_OLD_WAITS: Final = "journal = ? AND name >= ? AND name < ? AND state != 'open' AND at BETWEEN 1 AND ? - 1"
_GIVEN_TO: Final = (
    # The index holds only the inputs that give a process to another session.
    "SELECT DISTINCT j.id FROM inputs i INDEXED BY inputs_that_transfer JOIN journals j ON j.no = i.journal"
    " WHERE i.key >= 'holdfast/transfer/' AND i.key < 'holdfast/transfer0' AND i.body = ?"
)
_FREE_BLOB: Final = (
    # Attachments without a session (the session is "") belong to the sessions that they are shared with.
    "SELECT 1 FROM blobs b WHERE b.digest = ? AND NOT EXISTS (SELECT 1 FROM refs r WHERE r.digest = b.digest)"
    " AND NOT EXISTS (SELECT 1 FROM attachments a WHERE a.digest = b.digest AND a.session != '')"
)
_spent_decoder: Final = msgspec.json.Decoder(tuple[tuple[int, Spend], ...])
_imported_decoder: Final = msgspec.json.Decoder(ImportedJournal)


class RetentionTable(_CheckedTable[Tombstone]):
    """Tombstones, and the removal of journals, records, inputs and waits."""

    _select = _SELECT_TOMBSTONES
    _order = "pos"

    def find(self, journal: str) -> Tombstone | None:
        return self._first_sound("journal = ?", journal)

    def missing(self, journal: str) -> errors.JournalMissing:
        """The error for a journal without a row."""
        stone = self.find(journal)
        if stone is not None:
            return errors.JournalPruned(journal, stone.detail, stone.at)
        at = self.forgotten_at(journal)
        return errors.JournalMissing(journal) if at is None else errors.JournalForgotten(journal, at)

    def last_position_of(self, row: JournalRow) -> int:
        self._tables.flush_records()
        return self._one("SELECT max(pos) FROM records WHERE journal = ?", row.no) or 0

    def has_forks(self, row: JournalRow) -> bool:
        return self._one("SELECT 1 FROM journals WHERE parent = ? LIMIT 1", row.id) is not None

    def bury(self, row: JournalRow, stone: Tombstone) -> None:
        """Remove the journal with its records, inputs, waits, notifications and references, and add the tombstone.

        Blobs that no other journal refers to go with it, unless they were put within `BLOB_GRACE_MS`. The newest
        position of the store is never given to another record.
        """
        self._tables.flush_records()
        self._run(
            "DELETE FROM blobs WHERE at < ? AND digest IN (SELECT digest FROM refs WHERE journal = ?) AND NOT EXISTS"
            " (SELECT 1 FROM refs WHERE refs.digest = blobs.digest AND refs.journal != ?) AND NOT EXISTS"
            " (SELECT 1 FROM attachments WHERE attachments.digest = blobs.digest)",
            *(stone.at - BLOB_GRACE_MS, row.no, row.no),
        )
        self._remove([row])
        self.keep(stone)

    def keep(self, stone: Tombstone) -> None:
        """Add a tombstone."""
        spent = msgspec.json.encode(stone.spent).decode()
        self._run(_INSERT_TOMBSTONE, *astuple(stone)[:-1], spent, _tombstone_crc(stone))

    def _remove(self, rows: Iterable[JournalRow]) -> int:
        """Remove journals with all that belongs to them, except blobs; answers how many records."""
        self._tables.flush_records()
        newest, removed = self._one("SELECT max(pos) FROM records"), 0
        for row in rows:
            for table in ("inputs", "input_aliases", "waits", "refs", "folds", "records"):
                self._run(f"DELETE FROM {table} WHERE journal = ?", row.no)  # constants
            removed += self._db.changes()
            self._run("DELETE FROM notifications WHERE journal = ?", row.id)
            self._run("DELETE FROM meta WHERE key = ?", _imported_key(row.id))
            self._run("DELETE FROM journals WHERE no = ?", row.no)
            self._tables.drop_journal(row)
        # Keep the newest position in use, by a record of journal 0: SQLite would give it to the next record.
        if self._one("SELECT max(pos) FROM records") == newest:
            self._run("DELETE FROM records WHERE journal = 0 AND pos < ?", newest)
        else:
            self._run("DELETE FROM records WHERE journal = 0")
            sql = "INSERT INTO records (pos, journal, seq, epoch, crc, body) VALUES (?, 0, ?, 0, 0, x'')"
            self._run(sql, newest, newest)
        return removed

    # ---- imports ----

    def imported(self, journal: str) -> ImportedJournal | None:
        """How a journal came here; None if it was made here."""
        found = self._one("SELECT value FROM meta WHERE key = ?", _imported_key(journal))
        return None if found is None else _imported_decoder.decode(found)

    def birthplace(self, journal: str) -> str | None:
        """The store in which a journal was made, if not this one."""
        found = self.imported(journal)
        return None if found is None else found.born

    def note_import(self, journal: str, note: ImportedJournal) -> None:
        self._run("INSERT INTO meta (key, value) VALUES (?, ?)", _imported_key(journal), msgspec.json.encode(note))

    # ---- forgetting ----

    def working_for(self, session: str) -> list[str]:
        """The journals that work for a session or were transferred to it."""
        given = self._all(_GIVEN_TO, canonical({"session": session}))
        rows = self._all("SELECT id FROM journals WHERE session = ? ORDER BY no", session)
        return [journal for (journal,) in (*rows, *given)]

    def forks_of(self, session: str) -> list[str]:
        return [journal for (journal,) in self._all("SELECT id FROM journals WHERE parent = ? ORDER BY no", session)]

    def sessions_of(self, process: str) -> list[str]:
        """The sessions that a process has made to ask agents."""
        sql = "SELECT id FROM journals WHERE id >= ? AND id < ? AND kind = 'session'"
        found = self._all(sql, f"{process}.", f"{process}/")
        return [session for (session,) in found if agent_session_process(session) == process]

    def tombstones_of(self, session: str) -> list[Tombstone]:
        """The tombstones of processes that worked for a session, damaged or not."""
        return [self._row(found)[0] for found in self._all(f"{_SELECT_TOMBSTONES} WHERE session = ?", session)]

    def forget(self, rows: Sequence[JournalRow], ids: Sequence[str], epoch: int) -> tuple[int, int]:
        """Remove journals and all rows that name these ids; answers how many records and blobs.

        Leases of new journals get epochs above `epoch`. Blobs that no other session has go as well.
        """
        digests = dict.fromkeys(
            digest
            for sql, values in (
                ("SELECT digest FROM refs WHERE journal = ?", [row.no for row in rows]),
                ("SELECT digest FROM attachments WHERE session = ?", ids),
            )
            for value in values
            for (digest,) in self._all(sql, value)
        )
        removed = self._remove(rows)
        for id in ids:
            self._run("DELETE FROM attachments WHERE session = ?", id)
            self._run("DELETE FROM notifications WHERE journal = ?", id)
            self._run("DELETE FROM refusals WHERE journal = ?", id)
            self._run("DELETE FROM tombstones WHERE journal = ? OR session = ?", id, id)
        blobs = [digest for digest in digests if self._one(_FREE_BLOB, digest) is not None]
        for digest in blobs:
            self._tables.attachments.forget(digest)
        if epoch > self.epoch_floor():
            self._run("INSERT OR REPLACE INTO meta (key, value) VALUES ('epoch_floor', ?)", b"%d" % epoch)
        self._tables.wipe_later()
        return removed, len(blobs)

    def epoch_floor(self) -> int:
        """The highest epoch of a forgotten journal. A stale lease of one never fits a new journal with its id."""
        return int(self._one("SELECT value FROM meta WHERE key = 'epoch_floor'") or 0)

    def wipe_due(self) -> bool:
        """True while bytes of forgotten sessions may be in the write-ahead log."""
        return self._one("SELECT 1 FROM meta WHERE key = 'wipe_due'") is not None

    def refuse_id(self, id: str, at: int) -> None:
        """Refuse an id from now on; only its keyed hash is stored."""
        if self._tables.seal is not None:
            hashed = self._tables.seal.id_hash(id)
            self._run("INSERT OR IGNORE INTO forgotten_ids (hash, at) VALUES (?, ?)", hashed, at)

    def forgotten_at(self, id: str) -> int | None:
        """When the session with this id was forgotten, if its hash was kept."""
        if self._tables.seal is None or self._one("SELECT 1 FROM forgotten_ids LIMIT 1") is None:
            return None
        return self._one("SELECT at FROM forgotten_ids WHERE hash = ?", self._tables.seal.id_hash(id))

    def trim(self, row: JournalRow, seq: int) -> int:
        self._tables.flush_records()
        self._run("DELETE FROM refs WHERE journal = ? AND seq BETWEEN 1 AND ?", row.no, seq)
        self._run("DELETE FROM records WHERE journal = ? AND seq <= ?", row.no, seq)
        return self._db.changes()

    def empty_inputs(self, row: JournalRow, before: int, spare: Sequence[int]) -> int:
        self._run(f"UPDATE inputs SET body = x'' WHERE {_old_inputs(spare)}", row.no, before, *spare)
        return self._db.changes()

    def remove_waits(self, row: JournalRow, prefix: str, before: int) -> int:
        self._run(f"DELETE FROM waits WHERE {_OLD_WAITS}", row.no, prefix, after_prefix(prefix), before)
        return self._db.changes()

    def after(self, pos: int, role: str | None, limit: int) -> list[Tombstone]:
        """Tombstones with a last record above this position, by position."""
        sql = f"{_SELECT_TOMBSTONES} WHERE pos > ? AND (? IS NULL OR role = ?) ORDER BY pos LIMIT ?"
        return [self._sound(found) for found in self._all(sql, pos, role, role, limit)]

    def old(self, journal: str, before: int, spare: Sequence[int], prefix: str) -> tuple[int, int]:
        """Count what `empty_inputs` and `remove_waits` would take."""
        no = self._one("SELECT no FROM journals WHERE id = ?", journal)
        inputs = f"SELECT count(*) FROM inputs WHERE {_old_inputs(spare)}"  # constants
        waits = f"SELECT count(*) FROM waits WHERE {_OLD_WAITS}"  # constants
        return self._one(inputs, no, before, *spare), self._one(waits, no, prefix, after_prefix(prefix), before)

    def _row(self, found: tuple[Any, ...]) -> tuple[Tombstone, bool]:
        *columns, spent, crc = found
        try:
            days = _spent_decoder.decode(spent)
        except (msgspec.MsgspecError, TypeError):
            return Tombstone(*columns), False
        stone = Tombstone(*columns, spent=days)
        return stone, _tombstone_crc(stone) == crc

    def _error(self, damaged: Tombstone) -> errors.StoreError:
        return errors.JournalCorrupt(damaged.journal, 0, "its tombstone does not match its checksum")


def _imported_key(journal: str) -> str:
    return f"imported/{journal}"


def _old_inputs(spare: Sequence[int]) -> str:
    places = ", ".join("?" * len(spare))
    return f"journal = ? AND pending = 0 AND at < ? AND length(body) > 0 AND input NOT IN ({places})"


def _tombstone_crc(stone: Tombstone) -> int:
    return crc32(msgspec.json.encode(stone))
