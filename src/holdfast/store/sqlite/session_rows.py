"""The rows of a session and of everything that belongs to it: read for its file, and written from it."""

from __future__ import annotations

from contextlib import closing
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.crashpoints import crash_point
from holdfast.errors import BlobCorrupt, BlobMissing, JournalCorrupt
from holdfast.names import MAX_INT
from holdfast.records import blobs_of, decode
from holdfast.store.contract import JournalRow
from holdfast.store.retention import ImportedJournal
from holdfast.store.session_file import (
    PART,
    AttachmentLine,
    BlobLine,
    ChangeLine,
    InputLine,
    JournalLine,
    MemoryLine,
    NotificationLine,
    PartLine,
    RecordLine,
    RefusalLine,
    TombstoneLine,
    WaitLine,
    journal_row,
)
from holdfast.store.spending import spent_in_all
from holdfast.store.sqlite.rows import WAIT_COLUMNS, sound_input, wait_row
from holdfast.store.sqlite.tables import INPUT_COLUMNS, input_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.store.session_file import Line, SessionFile
    from holdfast.store.spending import SpendOf
    from holdfast.store.sqlite.rows import SqliteReader, SqliteRows
    from holdfast.store.transaction import Transaction


_HELD: Final = 500
"""Records that are held back before they are written."""
_ROW: Final = frozenset(JournalLine.__struct_fields__) & frozenset(JournalRow.__struct_fields__)


# ---- reading ----


def digests_of(reader: SqliteReader, rows: Sequence[JournalRow]) -> list[str]:
    """The digests of the blobs that the records, inputs and attachments of these journals refer to."""
    found: set[str] = set()
    for row in rows:
        found.update(digest for (digest,) in reader.all("SELECT digest FROM refs WHERE journal = ?", row.no))
        found.update(digest for (digest,) in reader.all("SELECT digest FROM attachments WHERE session = ?", row.id))
    return sorted(found)


def read_blobs(reader: SqliteReader, digests: Sequence[str]) -> Iterator[Line]:
    """The blobs with these digests, in parts."""
    for digest in digests:
        number = reader.one("SELECT id FROM blobs WHERE digest = ?", digest)
        if number is None:
            raise BlobMissing(digest)
        with reader.db.blob_open("main", "blobs", "body", number, False) as place:
            yield BlobLine(digest, place.length())
            hashed = sha256()
            while part := place.read(PART):
                hashed.update(part)
                yield PartLine(part)
        if hashed.hexdigest() != digest:
            raise BlobCorrupt(digest)


def read_journal(reader: SqliteReader, row: JournalRow, store: str) -> Iterator[Line]:
    """A journal of the store with this id, its inputs, its waits and its records."""
    born = reader.retention.birthplace(row.id) or store
    attached = reader.all("SELECT digest FROM refs WHERE journal = ? AND seq = 0 ORDER BY digest", row.no)
    given = {name: getattr(row, name) for name in _ROW}
    yield JournalLine(**given, born=born, attached=tuple(digest for (digest,) in attached))
    aliases: dict[int, list[str]] = {}
    for key, number in reader.all("SELECT key, input FROM input_aliases WHERE journal = ? ORDER BY key", row.no):
        aliases.setdefault(number, []).append(key)
    for found in _each(reader, f"SELECT {INPUT_COLUMNS} FROM inputs WHERE journal = ? ORDER BY input", row.no):
        given = input_row(found)
        sound_input(row.id, given)
        yield InputLine(given, tuple(aliases.get(given.input, ())))
    for found in _each(reader, f"SELECT {WAIT_COLUMNS} FROM waits WHERE journal = ? ORDER BY name", row.no):
        yield WaitLine(wait_row(row.id, found, reader.seal))
    for record in reader.raw_records(row.id):
        if not record.sound or b"\n" in record.body:
            raise JournalCorrupt(row.id, record.seq, "it does not match its checksum")
        yield RecordLine(record.seq, record.epoch, msgspec.Raw(record.body))


def read_rest(reader: SqliteReader, rows: Sequence[JournalRow], scopes: Sequence[str]) -> Iterator[Line]:
    """What belongs to these journals beside them, and these scopes of memory."""
    for row in rows:
        for stone in reader.retention.tombstones_of(row.id):
            yield TombstoneLine(stone)
    for row in rows:
        for found in reader.notifications.of(row.id):
            yield NotificationLine(found)
    for row in rows:
        yield from map(RefusalLine, reversed(reader.admission.refusals(row.id, -1)))
    for row in rows:
        yield from map(AttachmentLine, reader.attachments.of(row.id, "", -1))
    for scope in scopes:
        yield from map(MemoryLine, reader.memories.of(scope))
    for scope in scopes:
        yield from map(ChangeLine, reader.memories.changes_of(scope))


def _each(reader: SqliteReader, sql: str, value: object) -> Iterator[tuple[Any, ...]]:
    with closing(reader.db.execute(sql, (value,))) as rows:
        yield from rows


# ---- writing ----


def write_session(tx: Transaction, rows: SqliteRows, file: SessionFile, spend_of: SpendOf) -> list[JournalRow]:
    """Write the rows of a session file. All refusals come before; from here on only the disk can fail."""
    header, made = file.header, list[Any]()
    tombstones = [line.tombstone for line in file.lines() if isinstance(line, TombstoneLine)]
    floor, held = rows.retention.epoch_floor(), 0
    for line in file.lines():
        match line:
            case JournalLine():
                row = rows.add_journal(replace(journal_row(line), epoch=max(line.epoch, floor)))
                made.append(row)
                note = ImportedJournal(header.export, line.born if header.move else None)
                rows.retention.note_import(row.id, note)
                for digest in line.attached:
                    rows.refer(digest, row, 0)
            case InputLine(input=given):
                rows.add_input(made[-1], given)
                for key in line.aliases:
                    rows.add_alias(made[-1], key, given.input)
            case WaitLine(wait=wait):
                rows.save_wait(made[-1], wait)
            case RecordLine():
                body = bytes(line.body)
                rows.add_records(made[-1], line.seq, line.epoch, (body,))
                for blob in blobs_of(decode(body)) if b'"digest":"' in body else ():
                    rows.refer(blob.digest, made[-1], line.seq)
                held += 1
                if held % _HELD == 0:
                    rows.flush_records()
                    crash_point("import.records")
            case NotificationLine(notification=found):
                rows.notifications.keep(found)
            case RefusalLine(refusal=refused):
                rows.admission.keep(refused)
            case AttachmentLine(attachment=found):
                rows.attachments.put(found)
            case MemoryLine(entry=entry):
                rows.memories.put(entry)
            case ChangeLine(change=change):
                rows.memories.add_change(change, tx.limits.memory_changes)
            case _:
                pass
    rows.flush_records()
    position = rows.last_position()
    for stone in tombstones:
        rows.retention.keep(replace(stone, pos=position))
        for day, spend in stone.spent:
            rows.spending.add(stone.agent, day, spend)
    for row in spent_in_all(rows.reader(), made, spend_of, MAX_INT)[0]:
        rows.spending.add(row.agent, row.day, row.spend)
    crash_point("import.written")
    return made
