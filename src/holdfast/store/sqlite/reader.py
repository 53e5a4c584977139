"""Reads of a SQLite store. Each statement is fetched completely, so that no snapshot stays open and pins the log."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from holdfast import records
from holdfast.errors import BlobCorrupt, JournalCorrupt, RecordUnreadable
from holdfast.store import contract
from holdfast.store.sqlite.files import after_prefix
from holdfast.store.sqlite.rows import (
    INPUT_COLUMNS,
    JOURNAL_COLUMNS,
    WAIT_COLUMNS,
    input_row,
    journal_row,
    raw_wait,
    salt_of,
    sound,
    wait_row,
)
from holdfast.store.sqlite.tables import SqliteTables, earliest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.clock import Instant


_FIRST_BODY: Final = "(SELECT body FROM records WHERE journal = journals.no AND seq = 1)"
_WAITS: Final = (
    f"SELECT j.id, {', '.join(f'w.{name}' for name in WAIT_COLUMNS.split(', '))}"  # constants
    " FROM waits w JOIN journals j ON j.no = w.journal"
)
_UNTIMED: Final = (
    "NOT EXISTS (SELECT 1 FROM waits w WHERE w.journal = journals.no AND w.state = 'open' AND w.deadline IS NOT NULL)"
)
_PAYLOAD: Final = 4
_BODY: Final = 7
_HEADS_AT_ONCE: Final = 500
WORK_QUERY: Final = (
    # The index is named, or SQLite would walk over all journals, which are in this order already.
    f"SELECT {JOURNAL_COLUMNS} FROM journals INDEXED BY journals_with_work"  # constants
    " WHERE quarantine IS NULL AND (kind = 'session' OR role IS NOT NULL)"
    " AND (wakes > seen OR status = 'running') AND no > ?"
    " ORDER BY no LIMIT ?"
)
"""Finds work. Its terms are those of the index, which holds only journals with work."""


class SqliteReader(SqliteTables):
    """Reads of one consistent state, on a read-only connection. `limit` never exceeds a page."""

    def row(self, journal: str) -> contract.JournalRow | None:
        found = self.one(f"SELECT {JOURNAL_COLUMNS} FROM journals WHERE id = ?", journal)
        row = None if found is None else journal_row(found)
        if row is not None and row.parent is not None:
            above = self.one("SELECT no FROM journals WHERE id = ?", row.parent)
            if above is not None and above >= row.no:
                raise JournalCorrupt(journal, 1, f"it is a fork of {row.parent!r}, which was made after it")
        return row

    def _require(self, journal: str) -> tuple[int, int, int]:
        """The number, the head and the base (last trimmed record) of a journal."""
        found = self.one("SELECT no, head, base FROM journals WHERE id = ?", journal)
        if found is None:
            raise self.retention.missing(journal)
        if not all(type(number) is int for number in found):  # a damaged or hostile file can hold anything
            raise JournalCorrupt(journal, 0, "where it ends is no number")
        return found

    def records(self, journal: str, after: int, limit: int) -> list[contract.Entry]:
        no, head, base = self._require(journal)
        after = max(after, base)
        rows = self.db.execute(
            "SELECT seq, pos, epoch, crc, body FROM records WHERE journal = ? AND seq > ? ORDER BY seq LIMIT ?",
            (no, after, limit),
        )
        try:
            return _verified(journal, rows, after, min(head, after + limit), self.page_bytes)
        finally:
            rows.close(True)  # a page that ends early must not keep its snapshot

    def tail(self, journal: str, limit: int) -> list[contract.Entry]:
        return self.records(journal, max(self._require(journal)[1] - limit, 0), limit)

    def handed_at(self, journal: str, upto: int) -> int:
        found = self.one(
            "SELECT seq FROM records WHERE journal = ? AND seq <= ? AND substr(body, 1, ?) = ?"
            " ORDER BY seq DESC LIMIT 1",
            *(self._require(journal)[0], upto, len(records.HANDED_PREFIX), records.HANDED_PREFIX),
        )
        return found or 0

    def feed(self, after: int, limit: int) -> list[contract.FeedEntry]:
        rows = self.page(
            "SELECT r.pos, j.id, r.seq, r.epoch, r.crc, r.body FROM records r LEFT JOIN journals j ON j.no = r.journal"
            " WHERE r.pos > ? ORDER BY r.pos LIMIT ?",
            (after, limit),
            5,
        )
        return [_feed_entry(row) for row in rows]

    def last_position(self) -> int:
        return self.one("SELECT max(pos) FROM records") or 0

    def heads(self, journals: Sequence[str]) -> dict[str, int]:
        return self._numbers("head", journals)

    def wakes(self, journals: Sequence[str]) -> dict[str, int]:
        return self._numbers("wakes", journals)

    def _numbers(self, column: str, journals: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for first in range(0, len(journals), _HEADS_AT_ONCE):
            chosen = tuple(journals[first : first + _HEADS_AT_ONCE])
            places = ", ".join("?" * len(chosen))
            found.update(self.db.execute(f"SELECT id, {column} FROM journals WHERE id IN ({places})", chosen))
        return found

    def work(self, after: int, limit: int, now: Instant) -> list[contract.Work]:
        rows = map(journal_row, self.all(WORK_QUERY, after, limit))
        return [row.as_work(now) for row in rows if row.quarantine is None]

    def receipt(self, journal: str, key: str) -> contract.Receipt | None:
        no = self._require(journal)[0]
        found = self.one("SELECT input, key, at FROM inputs WHERE journal = ? AND key = ?", no, key) or self.one(
            "SELECT i.input, i.key, i.at FROM input_aliases a"
            " JOIN inputs i ON i.journal = a.journal AND i.input = a.input WHERE a.journal = ? AND a.key = ?",
            *(no, key),
        )
        return None if found is None else contract.Receipt(journal, *found, fresh=False)

    def pending(self, journal: str, after: int, limit: int) -> list[contract.Input]:
        no = self._require(journal)[0]
        rows = self.page(
            f"SELECT {INPUT_COLUMNS} FROM inputs"
            " WHERE journal = ? AND pending = 1 AND input > ? ORDER BY input LIMIT ?",
            (no, after, limit),
            3,
        )
        return [_sound_input(journal, input_row(row)) for row in rows]

    def input(self, journal: str, number: int) -> contract.Input | None:
        no = self._require(journal)[0]
        found = self.one(f"SELECT {INPUT_COLUMNS} FROM inputs WHERE journal = ? AND input = ?", no, number)
        return None if found is None else _sound_input(journal, input_row(found))

    def wait(self, journal: str, name: str) -> contract.Wait | None:
        no = self._require(journal)[0]
        found = self.one(f"SELECT {WAIT_COLUMNS} FROM waits WHERE journal = ? AND name = ?", no, name)
        return None if found is None else wait_row(journal, found, self.seal)

    def waits(self, journal: str, state: contract.WaitState | None, after: str, limit: int) -> list[contract.Wait]:
        no = self._require(journal)[0]
        rows = self.page(
            f"{_WAITS} WHERE w.journal = ? AND w.name > ? AND (? IS NULL OR w.state = ?) ORDER BY w.name LIMIT ?",
            (no, after, state, state, limit),
            _PAYLOAD,
            _BODY,
        )
        return [wait_row(journal, row[1:], self.seal) for row in rows]

    def list_open_waits(
        self, kind: str, now: int, before: tuple[int, str, str] | None, limit: int
    ) -> tuple[list[contract.Wait], set[str]]:
        """Open waits of a kind that can still be answered, newest first, and the journals of damaged ones.

        `before` is the (at, journal, name) of the last wait of the previous page.
        """
        return self._trusted_waits(*open_waits_query(kind, now, before, limit))

    def due(self, now: int, limit: int) -> tuple[list[contract.Wait], set[str]]:
        return self._trusted_waits(
            f"{_WAITS} WHERE w.state = 'open' AND w.deadline IS NOT NULL AND w.deadline <= ? AND j.quarantine IS NULL"
            " ORDER BY w.deadline, j.id, w.name LIMIT ?",
            [now, limit],
        )

    def _trusted_waits(self, sql: str, values: list[Any]) -> tuple[list[contract.Wait], set[str]]:
        rows = [raw_wait(row[0], row[1:], self.seal) for row in self.page(sql, values, _PAYLOAD, _BODY)]
        return [wait for wait, sound in rows if sound], {wait.journal for wait, sound in rows if not sound}

    def next_due(self) -> int | None:
        wait = self.one(
            "SELECT w.deadline FROM waits w JOIN journals j ON j.no = w.journal"
            " WHERE w.state = 'open' AND w.deadline IS NOT NULL AND j.quarantine IS NULL ORDER BY w.deadline LIMIT 1"
        )
        return earliest(wait, self.notifications.next_due())

    def blob(self, digest: str) -> bytes | None:
        body = self.one("SELECT body FROM blobs WHERE digest = ?", digest)
        if body is not None and not (isinstance(body, bytes) and contract.blob_digest(body) == digest):
            raise BlobCorrupt(digest)
        return body

    def find_journal(self, journal: str) -> contract.Journal:
        row = self.row(journal)
        if row is None:
            raise self.retention.missing(journal)
        body = self.one("SELECT body FROM records WHERE journal = ? AND seq = 1", row.no)
        return row.as_journal(records.metadata_in(body))

    def journals(self, where: contract.JournalFilter, limit: int) -> list[contract.Journal]:
        sql, values = list_query(where, limit)
        rows = self.db.execute(sql, values).fetchall()
        return [journal_row(columns).as_journal(records.metadata_in(first)) for *columns, first in rows]

    def blob_part(self, digest: str, start: int, size: int) -> bytes | None:
        number = self.one("SELECT id FROM blobs WHERE digest = ?", digest)
        if number is None:
            return None
        with self.db.blob_open("main", "blobs", "body", number, False) as place:
            if start >= place.length():
                return b""
            place.seek(start)
            return place.read(size)

    def preview(self, journal: str, prefix: str, tail: int) -> contract.JournalPreview | None:
        try:
            found = self.row(journal)
        except JournalCorrupt:
            return None
        if found is None:
            return None
        latest = self.one(
            f"SELECT {INPUT_COLUMNS} FROM inputs INDEXED BY inputs_by_key"  # constants
            " WHERE journal = ? AND key >= ? AND key < ? AND pending = 0 ORDER BY input DESC LIMIT 1",
            *(found.no, prefix, after_prefix(prefix)),
        )
        try:
            first, entries = self.input(journal, 1), self.tail(journal, tail)
            newest = None if latest is None else _sound_input(journal, input_row(latest))
            return contract.JournalPreview(found.as_journal(), first, newest, entries)
        except JournalCorrupt:
            return contract.JournalPreview(found.as_journal(), None, None, None)

    def with_inputs(self, prefix: str, after: str, limit: int) -> list[str]:
        # The index holds only journals that were transferred to another session.
        rows = self.all(
            "SELECT DISTINCT j.id FROM inputs i INDEXED BY inputs_that_transfer JOIN journals j ON j.no = i.journal"
            " WHERE i.key >= 'holdfast/transfer/' AND i.key < 'holdfast/transfer0' AND i.key >= ? AND i.key < ?"
            " AND j.id > ? ORDER BY j.id LIMIT ?",
            *(prefix, after_prefix(prefix), after, limit),
        )
        return [journal for (journal,) in rows]

    # ---- for audits: raw rows, without errors ----

    def raw_journals(self) -> list[contract.JournalRow]:
        return [journal_row(row) for row in self.db.execute(f"SELECT {JOURNAL_COLUMNS} FROM journals ORDER BY no")]

    def raw_records(self, journal: str) -> Iterator[contract.RawRecord]:
        no = self.one("SELECT no FROM journals WHERE id = ?", journal)
        salt = salt_of(journal)
        rows = self.db.execute("SELECT seq, pos, epoch, crc, body FROM records WHERE journal = ? ORDER BY seq", (no,))
        for seq, pos, epoch, crc, body in rows:
            yield contract.RawRecord(journal, seq, pos, epoch or 0, sound(salt, seq, epoch, body, crc), body or b"")

    def raw_blobs(self) -> Iterator[tuple[str, bool]]:
        for digest, body in self.db.execute("SELECT digest, body FROM blobs"):
            yield digest, isinstance(body, bytes) and contract.blob_digest(body) == digest

    def raw_references(self) -> Iterator[tuple[str, str, int]]:
        yield from self.db.execute("SELECT r.digest, j.id, r.seq FROM refs r JOIN journals j ON j.no = r.journal")

    def raw_waits(self) -> Iterator[tuple[contract.Wait, bool]]:
        for journal, *found in self.db.execute(_WAITS):
            yield raw_wait(journal, tuple(found), self.seal)

    def raw_bytes(self) -> Iterator[tuple[str, bytes]]:
        bodies = (("records", "body"), ("blobs", "body"), ("inputs", "body"), ("waits", "body"))
        for table, column in (*bodies, ("waits", "payload")):
            for (body,) in self.db.execute(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL"):
                yield table, body
        texts = (("notifications", "title"), ("notifications", "body"), ("memories", "value"))
        for table, column in (*texts, ("memory_changes", "value"), ("rules", "body")):
            for (text,) in self.db.execute(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL"):
                yield table, text.encode()
        yield from (("gate", text.encode()) for text in self.admission.raw_texts())

    def raw_inputs(self) -> Iterator[tuple[str, contract.InputRow, bool]]:
        for journal, *found in self.db.execute(
            "SELECT j.id, i.input, i.key, i.digest, i.body, i.at, i.pending, i.counted"
            " FROM inputs i JOIN journals j ON j.no = i.journal"
        ):
            row = input_row(tuple(found))
            yield journal, row, _sound(row)

    def raw_aliases(self) -> Iterator[tuple[str, str, int]]:
        yield from self.db.execute(
            "SELECT j.id, a.key, a.input FROM input_aliases a JOIN journals j ON j.no = a.journal"
        )


def open_waits_query(kind: str, now: int, before: tuple[int, str, str] | None, limit: int) -> tuple[str, list[Any]]:
    """The statement that lists open waits of a kind, ordered by an index."""
    terms = "w.state = 'open' AND w.kind = ? AND (w.deadline IS NULL OR w.deadline > ?) AND j.quarantine IS NULL"
    if before is not None:
        terms += " AND (w.at, w.journal, w.name) < (?, (SELECT no FROM journals WHERE id = ?), ?)"
    sql = f"{_WAITS} WHERE {terms} ORDER BY w.at DESC, w.journal DESC, w.name DESC LIMIT ?"
    return sql, [kind, now, *(before or ()), limit]


def list_query(where: contract.JournalFilter, limit: int) -> tuple[str, list[Any]]:
    """The statement that lists journals. Each combination of filters has an index in its order."""
    columns = ("kind", "status", "agent", "role", "session")
    filters = {f"{column} = ?": value for column in columns if (value := getattr(where, column)) is not None}
    terms, values = list(filters), list(filters.values())
    if where.untimed:
        terms.append(_UNTIMED)
    if where.before is not None:
        terms.append("(updated, id) < (?, ?)")
        values.extend(where.before)
    chosen = f" WHERE {' AND '.join(terms)}" if terms else ""
    sql = f"SELECT {JOURNAL_COLUMNS}, {_FIRST_BODY} FROM journals{chosen} ORDER BY updated DESC, id DESC LIMIT ?"
    return sql, [*values, limit]


def _verified(journal: str, rows: Iterable[Any], after: int, end: int, page_bytes: int) -> list[contract.Entry]:
    """The entries of a page; `JournalCorrupt` if one is missing or does not match its checksum."""
    salt = salt_of(journal)
    decode = records.decode_unversioned
    entries: list[contract.Entry] = []
    expected = after
    taken = seq = 0
    try:
        for seq, pos, epoch, crc, body in rows:
            expected += 1
            if seq != expected:
                raise JournalCorrupt(journal, expected, f"it is missing; the next one is {seq}")
            if not sound(salt, seq, epoch, body, crc):
                raise JournalCorrupt(journal, seq, "it does not match its checksum")
            taken += len(body)
            if taken > page_bytes and entries:
                return entries
            entries.append(contract.Entry(seq, pos, epoch, decode(body) if seq > 1 else records.decode(body)))
    except RecordUnreadable as error:
        raise JournalCorrupt(journal, seq, error.reason) from error
    except records.DECODE_ERRORS as error:
        raise JournalCorrupt(journal, seq, str(error)) from error
    if expected < end:
        raise JournalCorrupt(journal, expected + 1, f"it is missing, and the journal should go on to {end}")
    return entries


def _feed_entry(row: tuple[Any, ...]) -> contract.FeedEntry:
    pos, journal, seq, epoch, crc, body = row
    if journal is None:  # it keeps the newest position of a pruned journal in use
        return contract.FeedEntry(pos, "", 0, None)
    record = None  # damaged: one bad record must not stop the feed
    if sound(salt_of(journal), seq, epoch, body, crc):
        with suppress(RecordUnreadable):
            record = records.decode(body)
    return contract.FeedEntry(pos, journal, seq, record)


def _sound(found: contract.InputRow) -> bool:
    """True if an input matches its digest. A damaged or hostile file can hold anything."""
    given = (type(found.body), type(found.key), type(found.digest), type(found.input), type(found.at))
    if given != (bytes, str, str, int, int):
        return False
    emptied = not found.body and not found.pending
    return emptied or contract.input_digest(found.body) == found.digest


def _sound_input(journal: str, found: contract.InputRow) -> contract.Input:
    if not _sound(found):
        raise JournalCorrupt(journal, 0, f"the input {found.input} does not match its digest")
    return contract.Input(found.input, found.key, found.body, found.at)
