"""The rows of journals, inputs, waits and blobs inside a write transaction.

Journal rows are cached from one transaction to the next. SQLite changes `data_version` when another connection commits,
and each transaction compares it under the write lock. So a cached row is either current or dropped before it is used.
"""

from __future__ import annotations

from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.errors import JournalCorrupt
from holdfast.records import JOURNAL_KINDS, STATUSES
from holdfast.store.contract import WAIT_STATES, InputRow, JournalRow, Owner, Wait
from holdfast.store.sqlite.files import after_prefix
from holdfast.store.sqlite.tables import SqliteTables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.store.attachments import AttachmentSpool
    from holdfast.store.sqlite.files import Db
    from holdfast.store.sqlite.key import Seal


_KEPT: Final = 1_000
_INSERT_RECORD: Final = "INSERT INTO records (journal, seq, epoch, crc, body) VALUES (?, ?, ?, ?, ?)"
_MARK: Final = "SELECT batch FROM writers WHERE instance = ?"
_SAME_RECORD: Final = "SELECT 1 FROM records WHERE journal = ? AND seq = ? AND epoch = ? AND crc = ?"
Evidence: TypeAlias = int | tuple[int, int, int, int]
"""Proof that a transaction took effect: a record that only it can have written under its epoch, which is free and
nearly always present, or else the batch number in the row of this writer.
"""
JOURNAL_COLUMNS: Final = (
    "no, id, kind, agent, status, head, created, updated, epoch, owner, expires, mono_expires, term, quarantine,"
    " revoked, wakes, seen, parent, parent_seq, inputs, role, session, notices,"
    " base"
)
INPUT_COLUMNS: Final = "input, key, digest, body, at, pending, counted"
_PUT_BLOB: Final = (
    "INSERT INTO blobs (digest, at, body) VALUES (?, ?, {})"
    " ON CONFLICT (digest) DO UPDATE SET at = max(at, excluded.at), body = excluded.body"
)
WAIT_COLUMNS: Final = "name, state, deadline, payload, opened, kind, body, at, consumed, crc, mac"
_JOURNAL_NAMES: Final = tuple(JOURNAL_COLUMNS.replace(",", " ").split())
_TEXTS: Final = frozenset(("id", "agent", "owner", "quarantine", "parent", "role", "session"))
_IN_PLACE: Final = {"id": "unreadable", "kind": "session", "status": "failed"}
"""Replacements for damaged values; for others, None or 0."""
_LEASE: Final = ("epoch", "owner", "expires", "mono_expires", "term", "seen")
"""Columns of a lease, none of them in an index of a list."""
_SAVED: Final = (
    *("agent", "status", "head", "updated", *_LEASE, "quarantine", "revoked", "wakes", "inputs", "notices", "base"),
)
_owner_decoder: Final = msgspec.json.Decoder(Owner)


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
        self._journals: dict[str, JournalRow] = {}
        self._salts: dict[int, int] = {}
        self._records: list[tuple[int, int, int, int, bytes]] = []
        self._heads: dict[int, JournalRow] = {}
        self._woken: dict[int, JournalRow] = {}
        self._leased: dict[int, JournalRow] = {}
        self._saved: dict[int, JournalRow] = {}
        self._held: Final = (
            (self._heads, *_row_update("head")),
            (self._woken, *_row_update("wakes", "inputs", "notices")),
            (self._leased, *_row_update(*_LEASE)),
            (self._saved, *_row_update(*_SAVED)),
        )
        self._touched = False
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

    def drop_journal(self, row: JournalRow) -> None:
        """Drop a removed journal from the cache and from the held-back changes."""
        self._journals.pop(row.id, None)
        self._salts.pop(row.no, None)
        for held, _, _ in self._held:
            held.pop(row.no, None)

    # ---- journals ----

    def last_position(self) -> int:
        return (self.db.execute("SELECT max(pos) FROM records").get or 0) + len(self._records)

    def journal(self, journal: str) -> JournalRow | None:
        row = self._journals.get(journal)
        if row is None:
            found = self.db.execute(f"SELECT {JOURNAL_COLUMNS} FROM journals WHERE id = ?", (journal,)).get  # constant
            if found is None:
                return None
            row = self._journals[journal] = journal_row(found)
            self._salts[row.no] = salt_of(row.id)
        return row

    def add_journal(self, row: JournalRow) -> JournalRow:
        self.run(
            f"INSERT INTO journals ({JOURNAL_COLUMNS})"
            " VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, 0, NULL, 0, 0, 0, NULL, 0, 0, 0, ?, ?, ?, ?, ?, 0, 0)",
            *(row.id, row.kind, row.agent, row.status, row.head, row.created, row.updated),
            *(row.parent, row.parent_seq, row.inputs, row.role, row.session),
        )
        row.no = self.db.last_insert_rowid()
        self._journals[row.id] = row
        self._salts[row.no] = salt_of(row.id)
        return row

    def save_journal(self, row: JournalRow) -> None:
        self._saved[row.no] = row

    def save_head(self, row: JournalRow) -> None:
        self._heads[row.no] = row

    def save_wakes(self, row: JournalRow) -> None:
        self._woken[row.no] = row

    def save_lease(self, row: JournalRow) -> None:
        self._leased[row.no] = row

    def add_records(self, row: JournalRow, first: int, epoch: int, bodies: Sequence[bytes]) -> None:
        salt, no = self._salts[row.no], row.no
        for seq, body in enumerate(bodies, first):
            crc = crc32(body, crc32(_pack_place(seq, epoch), salt))  # `checksum`, without a call for each record
            self._records.append((no, seq, epoch, crc, body))

    def first_record(self, row: JournalRow) -> bytes | None:
        """The bytes of the first record of a journal; None if they are damaged."""
        found = self.db.execute("SELECT epoch, crc, body FROM records WHERE journal = ? AND seq = 1", (row.no,)).get
        if found is None:
            return next((body for no, seq, _, _, body in self._records if (no, seq) == (row.no, 1)), None)
        epoch, crc, body = found
        return body if checksum(self._salts[row.no], 1, epoch, body) == crc else None

    # ---- inputs ----

    def input_by_key(self, row: JournalRow, key: str) -> InputRow | None:
        """The input accepted under this key, also as an alias."""
        number = "input = (SELECT input FROM input_aliases WHERE journal = ? AND key = ?)"
        return self._input("key = ?", row, key) or self._input(number, row, row.no, key)

    def _input(self, where: str, row: JournalRow, *values: Any) -> InputRow | None:
        sql = f"SELECT {INPUT_COLUMNS} FROM inputs WHERE journal = ? AND {where}"  # constants
        found = self.one(sql, row.no, *values)
        return None if found is None else input_row(found)

    def add_alias(self, row: JournalRow, key: str, number: int) -> None:
        self.run("INSERT INTO input_aliases (journal, key, input) VALUES (?, ?, ?)", row.no, key, number)

    def counted_input(self, row: JournalRow, digest: str, first: int, last: int) -> InputRow | None:
        """The first counted input with this digest in this span of time."""
        where = "counted = 1 AND digest = ? AND at BETWEEN ? AND ? ORDER BY at, input LIMIT 1"
        return self._input(where, row, digest, first, last)

    def counted_at(self, row: JournalRow, first: int, last: int, nth: int) -> int | None:
        """The time of the nth newest counted input in this span of time."""
        return self.one(
            "SELECT at FROM inputs INDEXED BY inputs_counted WHERE counted = 1 AND journal = ? AND at BETWEEN ? AND ?"
            " ORDER BY at DESC LIMIT 1 OFFSET ?",
            *(row.no, first, last, nth - 1),
        )

    def count_pending(self, row: JournalRow) -> int:
        return self.one("SELECT count(*) FROM inputs WHERE journal = ? AND pending = 1", row.no)

    def add_input(self, row: JournalRow, found: InputRow) -> None:
        self.run(
            f"INSERT INTO inputs (journal, {INPUT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, 1, ?)",
            *(row.no, found.input, found.key, found.digest, found.body, found.at, int(found.counted)),
        )

    def is_pending(self, row: JournalRow, number: int) -> bool:
        return self.one("SELECT pending FROM inputs WHERE journal = ? AND input = ?", row.no, number) == 1

    def admit_input(self, row: JournalRow, number: int) -> None:
        self.run("UPDATE inputs SET pending = 0 WHERE journal = ? AND input = ?", row.no, number)

    # ---- waits ----

    def wait(self, row: JournalRow, name: str) -> Wait | None:
        sql = f"SELECT {WAIT_COLUMNS} FROM waits WHERE journal = ? AND name = ?"
        found = self.one(sql, row.no, name)
        return None if found is None else wait_row(row.id, found, self.seal)

    def save_wait(self, row: JournalRow, wait: Wait) -> None:
        self.run(
            f"INSERT OR REPLACE INTO waits (journal, {WAIT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(row.no, wait.name, wait.state, wait.deadline, wait.payload, int(wait.opened), wait.kind, wait.body),
            *(wait.at, wait.consumed, wait_crc(wait), self.seal.of_wait(wait)),
        )

    def open_waits(self, row: JournalRow, prefix: str) -> list[str]:
        sql = "SELECT name FROM waits WHERE journal = ? AND name >= ? AND name < ? AND state = 'open'"
        return [name for (name,) in self.all(sql, row.no, prefix, after_prefix(prefix))]

    def last_wait(self, row: JournalRow, prefix: str) -> str | None:
        sql = "SELECT name FROM waits WHERE journal = ? AND name >= ? AND name < ? ORDER BY name DESC LIMIT 1"
        return self.one(sql, row.no, prefix, after_prefix(prefix))

    def revoke_waits(self, row: JournalRow) -> int:
        names = self.all("SELECT name FROM waits WHERE journal = ?", row.no)
        for (name,) in names:
            self.save_wait(row, Wait(row.id, name, "revoked"))
        return len(names)

    # ---- blobs ----

    def has_blob(self, digest: str) -> bool:
        return self.one("SELECT 1 FROM blobs WHERE digest = ?", digest) is not None

    def put_blob(self, digest: str, body: bytes | AttachmentSpool, at: int) -> None:
        if isinstance(body, bytes):
            self.run(_PUT_BLOB.format("?"), digest, at, body)
            return
        self.run(_PUT_BLOB.format("zeroblob(?)"), digest, at, body.size)
        number: int = self.one("SELECT id FROM blobs WHERE digest = ?", digest)
        with self.db.blob_open("main", "blobs", "body", number, True) as place:
            for chunk in body.chunks():
                place.write(chunk)
                crash_point("store.blob_part")

    def refer(self, digest: str, row: JournalRow, seq: int) -> None:
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


def _row_update(*columns: str) -> tuple[str, Callable[[JournalRow], Sequence[Any]]]:
    """The statement that writes these columns of a journal, and the function that gives their values."""
    sql = f"UPDATE journals SET {' = ?, '.join(columns)} = ? WHERE no = ?"  # constants
    values = attrgetter(*columns, "no")
    if "owner" not in columns:
        return sql, values
    place = columns.index("owner")

    def with_owner(row: JournalRow) -> list[Any]:
        found = list(values(row))
        if row.owner is not None:
            found[place] = msgspec.json.encode(row.owner).decode()
        return found

    return sql, with_owner


def journal_row(found: Sequence[Any]) -> JournalRow:
    """A journal row from its columns, in the order of `JOURNAL_COLUMNS`.

    A damaged or hostile file can hold anything: impossible values are replaced, and quarantine the journal.
    """
    columns: dict[str, Any] = dict(zip(_JOURNAL_NAMES, found, strict=True))
    damaged = {name: value for name, value in columns.items() if not _fits(name, value)}
    for name in damaged:
        columns[name] = _IN_PLACE.get(name, None if name in _TEXTS else 0)
    if damaged and columns["quarantine"] is None:
        name, value = next(iter(damaged.items()))
        columns["quarantine"] = f"its column {name} holds {value!a:.60}, which no journal has"
    columns["owner"] = None if columns["owner"] is None else owner_of(columns["owner"])
    columns["revoked"] = bool(columns["revoked"])
    return JournalRow(*columns.values())


def _fits(name: str, value: object) -> bool:
    kind = type(value)
    if name in _TEXTS:
        return kind is str or (value is None and name != "id")
    if name == "kind":
        return value in JOURNAL_KINDS
    if name == "status":
        return value in STATUSES
    return kind is int


def owner_of(text: str) -> Owner:
    """The owner in a column; an unreadable one becomes an owner that is neither alive nor gone."""
    try:
        return _owner_decoder.decode(text)
    except (msgspec.DecodeError, TypeError, ValueError):
        return Owner(instance="unreadable", pid=0, started=0, namespace="", boot="")


def input_row(found: tuple[Any, ...]) -> InputRow:
    """An input from its columns."""
    return InputRow(*found[:5], pending=bool(found[5]), counted=bool(found[6]))


def wait_row(journal: str, found: tuple[Any, ...], seal: Seal | None) -> Wait:
    """A wait from its columns; `JournalCorrupt` if it is damaged, or if another program has written it."""
    wait, sound = raw_wait(journal, found, seal)
    if not sound:
        broken = "seal: another program has written it" if raw_wait(journal, found)[1] else "checksum"
        raise JournalCorrupt(journal, 0, f"the wait {wait.name!r} does not match its {broken}")
    return wait


def raw_wait(journal: str, found: tuple[Any, ...], seal: Seal | None = None) -> tuple[Wait, bool]:
    """A wait from its columns, and True if it matches its checksum and, with a key, its seal."""
    name, state, deadline, payload, opened, kind, body, at, consumed, crc, mac = found
    texts = type(name) is str and state in WAIT_STATES and (kind is None or type(kind) is str)
    blobs = (payload is None or type(payload) is bytes) and (body is None or type(body) is bytes)
    numbers = type(opened) is type(at) is type(consumed) is int and (deadline is None or type(deadline) is int)
    if not (texts and blobs and numbers):  # a damaged or hostile file can hold anything
        return Wait(journal, str(name), "revoked"), False
    wait = Wait(journal, name, state, deadline, payload, bool(opened), kind, body, at, consumed)
    return wait, wait_crc(wait) == crc and (seal is None or seal.matches_wait(wait, mac))


def wait_crc(wait: Wait) -> int:
    """The checksum of a wait. Without values of schema 4 it equals the checksum of older schemas."""
    head = f"{wait.journal}\0{wait.name}\0{wait.state}\0{wait.deadline}\0{wait.payload is None}\0".encode()
    crc = crc32(wait.payload or b"", crc32(head))
    if wait.kind is None and wait.body is None and not wait.consumed:
        return crc
    return crc32(wait.body or b"", crc32(f"\0{wait.kind}\0{wait.consumed}\0{wait.body is None}\0".encode(), crc))
