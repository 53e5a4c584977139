"""Journals, records, inputs, waits and blobs: `SqliteRows` in a write transaction, `SqliteReader` for reads.

Journal rows are cached from one transaction to the next. SQLite changes `data_version` when another connection commits,
and each transaction compares it under the write lock. So a cached row is either current or dropped before it is used.

A read fetches each statement completely, so that no snapshot stays open and pins the log.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32, decompress
from zlib import error as zlib_error

import msgspec
from msgspec.structs import astuple

from holdfast import records
from holdfast.crashpoints import crash_point
from holdfast.errors import BlobCorrupt, JournalCorrupt, RecordUnreadable
from holdfast.errors.store import MOVED
from holdfast.store import contract
from holdfast.store.sqlite.files import Db, after_prefix
from holdfast.store.sqlite.tables import INPUT_COLUMNS, SqliteTables, earliest, input_row, insert_into, update_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.clock import Instant
    from holdfast.store.attachments import AttachmentSpool
    from holdfast.store.folds import Fold
    from holdfast.store.session_file import Line, SessionFile, SpooledBlob
    from holdfast.store.spending import SpendOf
    from holdfast.store.sqlite.key import Seal
    from holdfast.store.transaction import Transaction


_KEPT: Final = 1_000
_INSERT_RECORD: Final = "INSERT INTO records (journal, seq, epoch, crc, body) VALUES (?, ?, ?, ?, ?)"
_MARK: Final = "SELECT batch FROM writers WHERE instance = ?"
_SAME_RECORD: Final = "SELECT 1 FROM records WHERE journal = ? AND seq = ? AND epoch = ? AND crc = ?"
Evidence: TypeAlias = int | tuple[int, int, int, int]
"""Proof that a transaction took effect: a record that only it can have written under its epoch, which is free and
nearly always present, or else the batch number in the row of this writer.
"""
JOURNAL_COLUMNS: Final = ", ".join(contract.JournalRow.__struct_fields__)
_PUT_BLOB: Final = (
    "INSERT INTO blobs (digest, at, body) VALUES (?, ?, {})"
    " ON CONFLICT (digest) DO UPDATE SET at = max(at, excluded.at), body = excluded.body"
)
WAIT_COLUMNS: Final = "name, state, deadline, payload, opened, kind, body, at, consumed, crc, mac"
_INSERT_JOURNAL: Final = insert_into("journals", JOURNAL_COLUMNS)
_INSERT_INPUT: Final = insert_into("inputs", f"journal, {INPUT_COLUMNS}")
_SAVE_WAIT: Final = insert_into("waits", f"journal, {WAIT_COLUMNS}", "INSERT OR REPLACE")
_TEXTS: Final = frozenset(("agent", "owner", "quarantine", "parent", "role", "session"))
_TYPES: Final[dict[str, frozenset[type]]] = {
    **dict.fromkeys(contract.JournalRow.__struct_fields__, frozenset((int,))),
    **dict.fromkeys(_TEXTS, frozenset((str, type(None)))),
    **dict.fromkeys(("id", "kind", "status"), frozenset((str,))),
}
"""The types of the columns of a journal, in their order."""
_TYPED: Final = frozenset(product(*_TYPES.values()))
_COLUMNS: Final = len(_TYPES)
_IN_PLACE: Final = {"id": "unreadable", "kind": "session", "status": "failed"}
"""Replacements for damaged values; for others, None or 0."""
_WORDS: Final = {"kind": records.JOURNAL_KINDS, "status": records.STATUSES}
_KIND, _STATUS = map(tuple(_TYPES).index, _WORDS)
_listed_of: Final = itemgetter(*map(tuple(_TYPES).index, contract.Journal.__struct_fields__[:-1]))
"""The columns of a journal in a list; its metadata come from its first record."""
_LEASE: Final = ("epoch", "owner", "expires", "mono_expires", "term", "seen")
"""Columns of a lease, none of them in an index of a list."""
_SAVED: Final = (
    *("agent", "status", "head", "updated", *_LEASE, "quarantine", "revoked", "wakes", "inputs", "notices", "base"),
)
_owner_decoder: Final = msgspec.json.Decoder(contract.Owner)
_FIRST_BODY: Final = "(SELECT body FROM records WHERE journal = journals.no AND seq = 1)"
_WAITS: Final = (
    f"SELECT j.id, {', '.join(f'w.{name}' for name in WAIT_COLUMNS.split(', '))}"  # constants
    " FROM waits w JOIN journals j ON j.no = w.journal"
)
_TIMED: Final = "w.state = 'open' AND w.deadline IS NOT NULL AND j.quarantine IS NULL"
_UNTIMED: Final = (
    "NOT EXISTS (SELECT 1 FROM waits w WHERE w.journal = journals.no AND w.state = 'open' AND w.deadline IS NOT NULL)"
)
_PAYLOAD: Final = 4
_BODY: Final = 7
_HEADS_AT_ONCE: Final = 500
_CONTENTS: Final = (
    *("records.body", "blobs.body", "inputs.body", "waits.body", "waits.payload"),
    *(
        "notifications.title",
        "notifications.body",
        "notifications.payload",
        *("memories.value", "memories.summary", "memories.metadata"),
        *("memory_changes.value", "memory_changes.summary", "memory_changes.metadata"),
        "rules.body",
    ),
    *("terms.body", "refusals.message"),
)
"""The columns with texts and bytes of callers."""
WORK_QUERY: Final = (
    # The index is named, or SQLite would walk over all journals, which are in this order already.
    f"SELECT {JOURNAL_COLUMNS} FROM journals INDEXED BY journals_with_work"  # constants
    " WHERE quarantine IS NULL AND (kind = 'session' OR role IS NOT NULL)"
    " AND (wakes > seen OR status = 'running') AND no > ?"
    " ORDER BY no LIMIT ?"
)
"""Finds work. Its terms are those of the index, which holds only journals with work."""


class SqliteRows(SqliteTables):
    """The rows of a store inside a transaction, on the connection of the writer. Reads see its writes.

    Changes to journals and records are held back until `finish`.
    """

    def __init__(self, connection: Db, instance: str, seal: Seal) -> None:
        # Without an instance it is the only connection: no other process commits, and no commit is in doubt.
        super().__init__(connection, seal)
        self.seal: Seal = seal
        self._instance = instance
        self._version = -1
        self._journals: dict[str, contract.JournalRow] = {}
        self._salts: dict[int, int] = {}
        self._records: list[tuple[int, int, int, int, bytes]] = []
        self._heads: dict[int, contract.JournalRow] = {}
        self._woken: dict[int, contract.JournalRow] = {}
        self._leased: dict[int, contract.JournalRow] = {}
        self._saved: dict[int, contract.JournalRow] = {}
        self._held: Final = (
            (self._heads, *_row_update("head")),
            (self._woken, *_row_update("wakes", "inputs", "notices")),
            (self._leased, *_row_update(*_LEASE)),
            (self._saved, *_row_update(*_SAVED)),
        )
        self._touched = False
        self.wipe_due = False
        """A session was forgotten since the writer last looked."""
        self.evidence: Evidence = 0

    def begin(self) -> bool:
        """Start a transaction; True if other connections have committed since the last one."""
        version = int(self.db.execute("PRAGMA data_version").get) if self._instance else 0
        foreign = version != self._version
        if foreign or len(self._journals) > _KEPT:
            self._journals.clear()
            self._salts.clear()
        self._version = version
        return foreign

    def finish(self, batch: int) -> bool:
        """Write all held-back changes, with evidence of this batch; False if there are none."""
        if not (self._touched or self._records or self._heads or self._woken or self._leased or self._saved):
            return False
        self.evidence = batch
        if self._records:
            self.db.executemany(_INSERT_RECORD, self._records)
            self.evidence = next((record[:4] for record in self._records if record[2] > 0), batch)
            self._records.clear()
        if self.spending.held:
            self.spending.flush()
        for no in self._saved:
            for held in (self._heads, self._woken, self._leased):
                held.pop(no, None)
        for held, sql, columns in self._held:
            if held:
                self.db.executemany(sql, map(columns, held.values()))
                held.clear()
        if self.evidence == batch and self._instance:
            self.db.execute("UPDATE writers SET batch = ? WHERE instance = ?", (batch, self._instance))
        self._touched = False
        return True

    def happened(self, evidence: Evidence) -> bool:
        """True if the transaction with this evidence took effect."""
        if isinstance(evidence, int):
            return self.db.execute(_MARK, (self._instance,)).get == evidence
        return self.db.execute(_SAME_RECORD, evidence).get is not None

    def others(self) -> bool:
        return self.db.execute("SELECT count(*) FROM writers").get > 1

    def forget(self) -> None:
        """Drop the cache and all held-back changes, after a rollback."""
        for kept in (self._journals, self._salts, *(held for held, _, _ in self._held)):
            kept.clear()
        self._records.clear()
        self.spending.held.clear()
        self._touched = False

    def run(self, sql: str, *values: Any) -> None:
        self._touched = True
        self.db.execute(sql, values)

    def flush_records(self) -> None:
        """Write the held-back records, before some are removed."""
        if self._records:
            self._touched = True
            self.db.executemany(_INSERT_RECORD, self._records)
            self._records.clear()

    def drop_journal(self, row: contract.JournalRow) -> None:
        """Drop a removed journal from the cache and from the held-back changes."""
        self._journals.pop(row.id, None)
        self._salts.pop(row.no, None)
        for held, _, _ in self._held:
            held.pop(row.no, None)

    def reader(self) -> SqliteReader:
        """Reads of the rows inside this transaction. Held-back changes to rows of journals are not in them."""
        self.flush_records()
        return SqliteReader(self.db, self.seal, self.page_bytes)

    def wipe_later(self) -> None:
        if self._instance:  # in memory there is no log
            self.wipe_due = True
            self.run("INSERT OR REPLACE INTO meta (key, value) VALUES ('wipe_due', x'01')")

    # ---- journals ----

    def last_position(self) -> int:
        return (self.db.execute("SELECT max(pos) FROM records").get or 0) + len(self._records)

    def journal(self, journal: str) -> contract.JournalRow | None:
        row = self._journals.get(journal)
        if row is None:
            found = self.db.execute(f"SELECT {JOURNAL_COLUMNS} FROM journals WHERE id = ?", (journal,)).get  # constant
            if found is None:
                return None
            row = self._journals[journal] = journal_row(found)
            self._salts[row.no] = salt_of(row.id)
        return row

    def add_journal(self, row: contract.JournalRow) -> contract.JournalRow:
        self.run(_INSERT_JOURNAL, None, *astuple(row)[1:])  # a new journal has no holder
        row.no = self.db.last_insert_rowid()
        self._journals[row.id] = row
        self._salts[row.no] = salt_of(row.id)
        return row

    def save_journal(self, row: contract.JournalRow) -> None:
        self._saved[row.no] = row

    def save_head(self, row: contract.JournalRow) -> None:
        self._heads[row.no] = row

    def save_wakes(self, row: contract.JournalRow) -> None:
        self._woken[row.no] = row

    def save_lease(self, row: contract.JournalRow) -> None:
        self._leased[row.no] = row

    def add_records(self, row: contract.JournalRow, first: int, epoch: int, bodies: Sequence[bytes]) -> None:
        salt, no = self._salts[row.no], row.no
        for seq, body in enumerate(bodies, first):
            crc = crc32(body, crc32(_pack_place(seq, epoch), salt))  # `checksum`, without a call for each record
            self._records.append((no, seq, epoch, crc, body))

    def first_record(self, row: contract.JournalRow) -> bytes | None:
        """The bytes of the first record of a journal; None if they are damaged."""
        found = self.db.execute("SELECT epoch, crc, body FROM records WHERE journal = ? AND seq = 1", (row.no,)).get
        if found is None:
            return next((body for no, seq, _, _, body in self._records if (no, seq) == (row.no, 1)), None)
        epoch, crc, body = found
        return body if checksum(self._salts[row.no], 1, epoch, body) == crc else None

    # ---- inputs ----

    def input_by_key(self, row: contract.JournalRow, key: str) -> contract.InputRow | None:
        return self.find_input_by_key(row.no, key)

    def add_alias(self, row: contract.JournalRow, key: str, number: int) -> None:
        self.run("INSERT INTO input_aliases (journal, key, input) VALUES (?, ?, ?)", row.no, key, number)

    def counted_input(self, row: contract.JournalRow, digest: str, first: int, last: int) -> contract.InputRow | None:
        """The first counted input with this digest in this span of time."""
        where = "counted = 1 AND digest = ? AND at BETWEEN ? AND ? ORDER BY at, input LIMIT 1"
        return self.find_input(row.no, where, digest, first, last)

    def counted_at(self, row: contract.JournalRow, first: int, last: int, nth: int) -> int | None:
        """The time of the nth newest counted input in this span of time."""
        where = "counted = 1 AND journal = ? AND at BETWEEN ? AND ? ORDER BY at DESC LIMIT 1 OFFSET ?"
        sql = f"SELECT at FROM inputs INDEXED BY inputs_counted WHERE {where}"
        return self.one(sql, row.no, first, last, nth - 1)

    def count_pending(self, row: contract.JournalRow) -> int:
        return self.one("SELECT count(*) FROM inputs WHERE journal = ? AND pending = 1", row.no)

    def add_input(self, row: contract.JournalRow, found: contract.InputRow) -> None:
        self.run(_INSERT_INPUT, row.no, *astuple(found))

    def is_pending(self, row: contract.JournalRow, number: int) -> bool:
        return self.one("SELECT pending FROM inputs WHERE journal = ? AND input = ?", row.no, number) == 1

    def admit_input(self, row: contract.JournalRow, number: int) -> None:
        self.run("UPDATE inputs SET pending = 0 WHERE journal = ? AND input = ?", row.no, number)

    # ---- waits ----

    def wait(self, row: contract.JournalRow, name: str) -> contract.Wait | None:
        sql = f"SELECT {WAIT_COLUMNS} FROM waits WHERE journal = ? AND name = ?"
        found = self.one(sql, row.no, name)
        return None if found is None else wait_row(row.id, found, self.seal)

    def save_wait(self, row: contract.JournalRow, wait: contract.Wait) -> None:
        self.run(_SAVE_WAIT, row.no, *astuple(wait)[1:], wait_crc(wait), self.seal.of(wait))

    def open_waits(self, row: contract.JournalRow, prefix: str) -> list[str]:
        sql = "SELECT name FROM waits WHERE journal = ? AND name >= ? AND name < ? AND state = 'open'"
        return [name for (name,) in self.all(sql, row.no, prefix, after_prefix(prefix))]

    def last_wait(self, row: contract.JournalRow, prefix: str) -> str | None:
        sql = "SELECT name FROM waits WHERE journal = ? AND name >= ? AND name < ? ORDER BY name DESC LIMIT 1"
        return self.one(sql, row.no, prefix, after_prefix(prefix))

    def revoke_waits(self, row: contract.JournalRow) -> int:
        names = self.all("SELECT name FROM waits WHERE journal = ?", row.no)
        for (name,) in names:
            self.save_wait(row, contract.Wait(row.id, name, "revoked"))
        return len(names)

    # ---- blobs ----

    def has_blob(self, digest: str) -> bool:
        return self.one("SELECT 1 FROM blobs WHERE digest = ?", digest) is not None

    def put_blob(self, digest: str, body: bytes | AttachmentSpool | SpooledBlob, at: int) -> None:
        if isinstance(body, bytes):
            self.run(_PUT_BLOB.format("?"), digest, at, body)
            return
        self.run(_PUT_BLOB.format("zeroblob(?)"), digest, at, body.size)
        number: int = self.one("SELECT id FROM blobs WHERE digest = ?", digest)
        with self.db.blob_open("main", "blobs", "body", number, True) as place:
            for chunk in body.chunks():
                place.write(chunk)
                crash_point("store.blob_part")

    def write_session(self, tx: Transaction, file: SessionFile, spend_of: SpendOf) -> None:
        """Write the rows of a session file."""
        from holdfast.store.sqlite.session_rows import write_session  # few processes import sessions

        write_session(tx, self, file, spend_of)

    def refer(self, digest: str, row: contract.JournalRow, seq: int) -> None:
        self.run("INSERT OR IGNORE INTO refs (digest, journal, seq) VALUES (?, ?, ?)", digest, row.no, seq)


_pack_place: Final = Struct("<qq").pack


def salt_of(journal: str) -> int:
    """The start value of the checksums of a journal."""
    return crc32(journal.encode())


def checksum(salt: int, seq: int, epoch: int, body: bytes) -> int:
    """The checksum of a record."""
    return crc32(body, crc32(_pack_place(seq, epoch), salt))


def sound(salt: int, seq: object, epoch: object, body: object, crc: object) -> bool:
    """True if a stored record matches its checksum. A damaged file can hold any type."""
    if type(seq) is not int or type(epoch) is not int or type(body) is not bytes:
        return False
    return crc32(body, crc32(_pack_place(seq, epoch), salt)) == crc  # not `checksum`: a call for each record read


def _row_update(*columns: str) -> tuple[str, Callable[[contract.JournalRow], Sequence[Any]]]:
    """The statement that writes these columns of a journal, and the function that gives their values."""
    sql, values = update_of("journals", "no", *columns)
    if "owner" not in columns:
        return sql, values
    place = columns.index("owner")

    def with_owner(row: contract.JournalRow) -> list[Any]:
        found = list(values(row))
        found[place] = None if row.owner is None else msgspec.json.encode(row.owner).decode()
        return found

    return sql, with_owner


def journal_row(found: Sequence[Any]) -> contract.JournalRow:
    """A journal row from its columns, in the order of `JOURNAL_COLUMNS`."""
    row = contract.JournalRow(*mended(found))
    row.owner = None if row.owner is None else owner_of(row.owner)
    row.revoked = bool(row.revoked)
    return row


def mended(found: Sequence[Any]) -> Sequence[Any]:
    """The columns of a journal, with replacements for impossible values, which quarantine it.

    A damaged or hostile file can hold anything. Further columns stay as they are.
    """
    typed = tuple(map(type, found[:_COLUMNS])) in _TYPED
    if typed and found[_KIND] in records.JOURNAL_KINDS and found[_STATUS] in records.STATUSES:
        return found
    columns = dict(zip(_TYPES, found, strict=False))
    damaged = [
        name
        for name, value in columns.items()
        if type(value) not in _TYPES[name] or value not in _WORDS.get(name, (value,))
    ]
    reason = f"its column {damaged[0]} holds {columns[damaged[0]]!a:.60}, which no journal has"
    columns |= {name: _IN_PLACE.get(name, None if name in _TEXTS else 0) for name in damaged}
    if columns["quarantine"] is None:
        columns["quarantine"] = reason
    return [*columns.values(), *found[_COLUMNS:]]


def owner_of(text: Any) -> contract.Owner:
    """The owner in a column; an unreadable one becomes an owner that is neither alive nor gone."""
    try:
        return _owner_decoder.decode(text)
    except (msgspec.DecodeError, TypeError, ValueError):
        return contract.Owner(instance="unreadable", pid=0, started=0, namespace="", boot="")


def wait_row(journal: str, found: tuple[Any, ...], seal: Seal | None) -> contract.Wait:
    """A wait from its columns; `JournalCorrupt` if it is damaged, or if another program has written it."""
    wait, sound = raw_wait(journal, found, seal)
    if not sound:
        broken = "seal: another program has written it" if raw_wait(journal, found)[1] else "checksum"
        raise JournalCorrupt(journal, 0, f"the wait {wait.name!r} does not match its {broken}")
    return wait


def raw_wait(journal: str, found: tuple[Any, ...], seal: Seal | None = None) -> tuple[contract.Wait, bool]:
    """A wait from its columns, and True if it matches its checksum and, with a key, its seal."""
    name, state, deadline, payload, opened, kind, body, at, consumed, crc, mac = found
    texts = type(name) is str and state in contract.WAIT_STATES and (kind is None or type(kind) is str)
    blobs = (payload is None or type(payload) is bytes) and (body is None or type(body) is bytes)
    numbers = type(opened) is type(at) is type(consumed) is int and (deadline is None or type(deadline) is int)
    if not (texts and blobs and numbers):  # a damaged or hostile file can hold anything
        return contract.Wait(journal, str(name), "revoked"), False
    wait = contract.Wait(journal, name, state, deadline, payload, bool(opened), kind, body, at, consumed)
    return wait, wait_crc(wait) == crc and (seal is None or seal.matches(wait, mac))


def wait_crc(wait: contract.Wait) -> int:
    """The checksum of a wait; the values of waits with a question came later, and count only where they are set."""
    head = f"{wait.journal}\0{wait.name}\0{wait.state}\0{wait.deadline}\0{wait.payload is None}\0".encode()
    crc = crc32(wait.payload or b"", crc32(head))
    if wait.kind is None and wait.body is None and not wait.consumed:
        return crc
    return crc32(wait.body or b"", crc32(f"\0{wait.kind}\0{wait.consumed}\0{wait.body is None}\0".encode(), crc))


# ---- reading ----


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
        """The entries of a page; `JournalCorrupt` if one is missing or does not match its checksum."""
        no, head, base = self._require(journal)
        expected = after = max(after, base)
        salt, decode = salt_of(journal), records.decode_unversioned
        entries: list[contract.Entry] = []
        taken = seq = 0
        sql = "SELECT seq, pos, epoch, crc, body FROM records WHERE journal = ? AND seq > ? ORDER BY seq LIMIT ?"
        rows = self.db.execute(sql, (no, after, limit))
        try:
            for seq, pos, epoch, crc, body in rows:
                expected += 1
                if seq != expected:
                    raise JournalCorrupt(journal, expected, f"it is missing; the next one is {seq}")
                if not sound(salt, seq, epoch, body, crc):
                    raise JournalCorrupt(journal, seq, "it does not match its checksum")
                taken += len(body)
                if taken > self.page_bytes and entries:
                    return entries
                entries.append(contract.Entry(seq, pos, epoch, decode(body) if seq > 1 else records.decode(body)))
        except RecordUnreadable as error:
            raise JournalCorrupt(journal, seq, error.reason) from error
        except records.DECODE_ERRORS as error:
            raise JournalCorrupt(journal, seq, str(error)) from error
        finally:
            rows.close(True)  # a page that ends early must not keep its snapshot
        if expected < (end := min(head, after + limit)):
            raise JournalCorrupt(journal, expected + 1, f"it is missing, and the journal should go on to {end}")
        return entries

    def fold(self, journal: str, upto: int | None = None) -> Fold | None:
        """The newest fold of a journal, up to a record."""
        no, head, _ = self._require(journal)
        return self.folds.newest(journal, no, head if upto is None else min(upto, head))

    def tail(self, journal: str, limit: int) -> list[contract.Entry]:
        return self.records(journal, max(self._require(journal)[1] - limit, 0), limit)

    def handed_at(self, journal: str, upto: int) -> int:
        no, prefix = self._require(journal)[0], records.HANDED_PREFIX
        where = f"journal = ? AND seq <= ? AND substr(body, 1, {len(prefix)}) = x'{prefix.hex()}'"  # constants
        sql = f"SELECT seq FROM records INDEXED BY records_handed WHERE {where} ORDER BY seq DESC LIMIT 1"
        return self.one(sql, no, upto) or 0

    def feed(self, after: int, limit: int) -> list[contract.FeedEntry]:
        rows = self.page(
            "SELECT r.pos, j.id, r.seq, r.epoch, r.crc, r.body FROM records r LEFT JOIN journals j ON j.no = r.journal"
            " WHERE r.pos > ? ORDER BY r.pos LIMIT ?",
            *((after, limit), 5),
        )
        entries: list[contract.FeedEntry] = []
        for pos, journal, seq, epoch, crc, body in rows:
            if journal is None:  # it keeps the newest position of a pruned journal in use
                entries.append(contract.FeedEntry(pos, "", 0, None))
                continue
            record = None  # damaged: one bad record must not stop the feed
            if sound(salt_of(journal), seq, epoch, body, crc):
                with suppress(RecordUnreadable):
                    record = records.decode(body)
            entries.append(contract.FeedEntry(pos, journal, seq, record))
        return entries

    def last_position(self) -> int:
        return self.one("SELECT max(pos) FROM records") or 0

    def heads(self, journals: Sequence[str]) -> dict[str, int]:
        return self._numbers("head", journals)

    def moved(self, journals: Sequence[str]) -> dict[str, str]:
        """Those of these journals that were moved away, with the reason for which they are not served."""
        found = self._numbers("quarantine", journals)
        return {id: said for id, said in found.items() if isinstance(said, str) and said.startswith(MOVED)}

    def wakes(self, journals: Sequence[str]) -> dict[str, int]:
        return self._numbers("wakes", journals)

    def _numbers(self, column: str, journals: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for first in range(0, len(journals), _HEADS_AT_ONCE):
            chosen = tuple(journals[first : first + _HEADS_AT_ONCE])
            places = ", ".join("?" * len(chosen))
            found.update(self.db.execute(f"SELECT id, {column} FROM journals WHERE id IN ({places})", chosen))
        return found

    def work(self, after: int, limit: int, now: Instant) -> list[contract.Work]:
        rows = map(journal_row, self.all(WORK_QUERY, after, limit))
        return [row.as_work(now) for row in rows if row.quarantine is None]

    def receipt(self, journal: str, key: str) -> contract.Receipt | None:
        found = self.find_input_by_key(self._require(journal)[0], key)
        return None if found is None else contract.Receipt(journal, found.input, found.key, found.at, fresh=False)

    def pending(self, journal: str, after: int, limit: int) -> list[contract.Input]:
        no = self._require(journal)[0]
        where = "journal = ? AND pending = 1 AND input > ? ORDER BY input LIMIT ?"
        # The index is named, or SQLite would walk over all inputs, which are in this order already.
        sql = f"SELECT {INPUT_COLUMNS} FROM inputs INDEXED BY inputs_pending WHERE {where}"  # constants
        rows = self.page(sql, (no, after, limit), 3)
        return [sound_input(journal, input_row(row)) for row in rows]

    def input(self, journal: str, number: int) -> contract.Input | None:
        found = self.find_input(self._require(journal)[0], "input = ?", number)
        return None if found is None else sound_input(journal, found)

    def wait(self, journal: str, name: str) -> contract.Wait | None:
        no = self._require(journal)[0]
        found = self.one(f"SELECT {WAIT_COLUMNS} FROM waits WHERE journal = ? AND name = ?", no, name)
        return None if found is None else wait_row(journal, found, self.seal)

    def waits(self, journal: str, state: contract.WaitState | None, after: str, limit: int) -> list[contract.Wait]:
        no = self._require(journal)[0]
        sql = f"{_WAITS} WHERE w.journal = ? AND w.name > ? AND (? IS NULL OR w.state = ?) ORDER BY w.name LIMIT ?"
        rows = self.page(sql, (no, after, state, state, limit), _PAYLOAD, _BODY)
        return [wait_row(journal, row[1:], self.seal) for row in rows]

    def list_open_waits(
        self, kind: str, now: int, before: tuple[int, str, str] | None, limit: int
    ) -> tuple[list[contract.Wait], set[str]]:
        """Open waits of a kind that can still be answered, newest first, and the journals of damaged ones.

        `before` is the (at, journal, name) of the last wait of the previous page.
        """
        return self._trusted_waits(*open_waits_query(kind, now, before, limit))

    def due(self, now: int, limit: int) -> tuple[list[contract.Wait], set[str]]:
        where = f"{_TIMED} AND w.deadline <= ? ORDER BY w.deadline, j.id, w.name LIMIT ?"
        return self._trusted_waits(f"{_WAITS} WHERE {where}", (now, limit))

    def _trusted_waits(self, sql: str, values: Sequence[Any]) -> tuple[list[contract.Wait], set[str]]:
        rows = [raw_wait(row[0], row[1:], self.seal) for row in self.page(sql, values, _PAYLOAD, _BODY)]
        return [wait for wait, sound in rows if sound], {wait.journal for wait, sound in rows if not sound}

    def next_due(self) -> int | None:
        places = "waits w JOIN journals j ON j.no = w.journal"
        wait = self.one(f"SELECT w.deadline FROM {places} WHERE {_TIMED} ORDER BY w.deadline LIMIT 1")
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
        read = records.metadata_in
        return [contract.Journal(*_listed_of(mended(found)), metadata=read(found[-1])) for found in rows]

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
        where = "journal = ? AND key >= ? AND key < ? AND pending = 0 ORDER BY input DESC LIMIT 1"
        sql = f"SELECT {INPUT_COLUMNS} FROM inputs INDEXED BY inputs_by_key WHERE {where}"
        latest = self.one(sql, found.no, prefix, after_prefix(prefix))
        try:
            first, entries = self.input(journal, 1), self.tail(journal, tail)
            newest = None if latest is None else sound_input(journal, input_row(latest))
            return contract.JournalPreview(found.as_journal(), first, newest, entries)
        except JournalCorrupt:
            return contract.JournalPreview(found.as_journal(), None, None, None)

    def forks(self, journal: str) -> list[str]:
        return [id for (id,) in self.all("SELECT id FROM journals WHERE parent = ? ORDER BY no", journal)]

    def with_inputs(self, prefix: str, after: str, limit: int) -> list[str]:
        # The index holds only journals that were transferred to another session.
        rows = self.all(
            "SELECT DISTINCT j.id FROM inputs i INDEXED BY inputs_that_transfer JOIN journals j ON j.no = i.journal"
            " WHERE i.key >= 'holdfast/transfer/' AND i.key < 'holdfast/transfer0' AND i.key >= ? AND i.key < ?"
            " AND j.id > ? ORDER BY j.id LIMIT ?",
            *(prefix, after_prefix(prefix), after, limit),
        )
        return [journal for (journal,) in rows]

    def blobs_of(self, rows: Sequence[contract.JournalRow]) -> list[str]:
        """The digests of the blobs that the records, inputs and attachments of these journals refer to."""
        from holdfast.store.sqlite.session_rows import digests_of  # few processes export sessions

        return digests_of(self, rows)

    def session_lines(
        self, rows: Sequence[contract.JournalRow], digests: Sequence[str], scopes: Sequence[str], store: str
    ) -> Iterator[Line]:
        """The lines of a session file between the first and the last."""
        from holdfast.store.sqlite.session_rows import read_blobs, read_journal, read_rest

        yield from read_blobs(self, digests)
        for row in rows:
            yield from read_journal(self, row, store)
        yield from read_rest(self, rows, scopes)

    # ---- for audits: raw rows, without errors ----

    def raw_journals(self) -> list[contract.JournalRow]:
        return [journal_row(row) for row in self.db.execute(f"SELECT {JOURNAL_COLUMNS} FROM journals ORDER BY no")]

    def raw_records(self, journal: str) -> Iterator[contract.RawRecord]:
        no = self.one("SELECT no FROM journals WHERE id = ?", journal)
        salt = salt_of(journal)
        rows = self.db.execute("SELECT seq, pos, epoch, crc, body FROM records WHERE journal = ? ORDER BY seq", (no,))
        for seq, pos, epoch, crc, body in rows:
            yield contract.RawRecord(seq, pos, epoch or 0, sound(salt, seq, epoch, body, crc), body or b"")

    def raw_blobs(self) -> Iterator[tuple[str, bool]]:
        for digest, body in self.db.execute("SELECT digest, body FROM blobs"):
            yield digest, isinstance(body, bytes) and contract.blob_digest(body) == digest

    def raw_references(self) -> Iterator[tuple[str, str, int]]:
        yield from self.db.execute("SELECT r.digest, j.id, r.seq FROM refs r JOIN journals j ON j.no = r.journal")

    def raw_waits(self) -> Iterator[tuple[contract.Wait, bool]]:
        for journal, *found in self.db.execute(_WAITS):
            yield raw_wait(journal, tuple(found), self.seal)

    def raw_bytes(self) -> Iterator[tuple[str, bytes]]:
        for place in _CONTENTS:
            table, _, column = place.partition(".")
            for (said,) in self.db.execute(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL"):
                yield table, said if type(said) is bytes else said.encode()
        for (body,) in self.db.execute("SELECT body FROM folds"):
            with suppress(zlib_error, TypeError):  # damaged
                yield "folds", decompress(body)

    def raw_inputs(self) -> Iterator[tuple[str, contract.InputRow, bool]]:
        for journal, *found in self.db.execute(
            f"SELECT j.id, {', '.join(f'i.{name}' for name in INPUT_COLUMNS.split(', '))}"  # constants
            " FROM inputs i JOIN journals j ON j.no = i.journal"
        ):
            row = input_row(tuple(found))
            yield journal, row, _sound(row)

    def raw_aliases(self) -> Iterator[tuple[str, str, int]]:
        sql = "SELECT j.id, a.key, a.input FROM input_aliases a JOIN journals j ON j.no = a.journal"
        yield from self.db.execute(sql)


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
    terms, values = list(filters), [*filters.values()]
    if where.untimed:
        terms.append(_UNTIMED)
    if where.before is not None:
        terms.append("(updated, id) < (?, ?)")
        values.extend(where.before)
    chosen = f" WHERE {' AND '.join(terms)}" if terms else ""
    sql = f"SELECT {JOURNAL_COLUMNS}, {_FIRST_BODY} FROM journals{chosen} ORDER BY updated DESC, id DESC LIMIT ?"
    return sql, [*values, limit]


def _sound(found: contract.InputRow) -> bool:
    """True if an input matches its digest. A damaged or hostile file can hold anything."""
    given = (type(found.body), type(found.key), type(found.digest), type(found.input), type(found.at))
    if given != (bytes, str, str, int, int):
        return False
    emptied = not found.body and not found.pending
    return emptied or contract.input_digest(found.body) == found.digest


def sound_input(journal: str, found: contract.InputRow) -> contract.Input:
    """The input of a row; `JournalCorrupt` if it is damaged."""
    if not _sound(found):
        raise JournalCorrupt(journal, 0, f"the input {found.input} does not match its digest")
    return contract.Input(found.input, found.key, found.body, found.at, found.head)
