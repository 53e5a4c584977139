"""Sessions that leave one store and come into another.

A *copy* is a second session with the same past; it is made of sessions at rest only. A *move* takes the right to go on
along: from the mark on, the exporting store refuses to drive the session, and to take anything in for it.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast import __version__
from holdfast.crashpoints import crash_point
from holdfast.errors import ExportRefused, ImportRefused, JournalForgotten, JournalMissing, JournalPruned
from holdfast.errors.store import MOVED
from holdfast.names import is_pump_id
from holdfast.store.contract import Command, JournalRow, Owner, Reader
from holdfast.store.lease import is_gone
from holdfast.store.pumps import end_pump
from holdfast.store.retention import family_of
from holdfast.store.session_file import FORMAT, Header, SessionFileWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.store.session_file import SessionFile, SpooledBlob
    from holdfast.store.spending import SpendOf
    from holdfast.store.sqlite.tables import RetentionTable
    from holdfast.store.transaction import Transaction


class SessionReport(msgspec.Struct, frozen=True):
    """A session that was exported or imported."""

    session: str
    path: str
    export: str
    """The id of the export."""
    move: bool
    journals: tuple[str, ...]
    """The session, its forks and sub-agents, and the processes that work for them."""
    records: int
    blobs: int
    """Attachments and large values."""
    bytes: int = 0
    """Size of the file that was written."""
    fresh: bool = True
    """False if the file was imported before: then nothing was done."""
    dry_run: bool = False


class MovedAway(msgspec.Struct, frozen=True):
    """A session that is not driven here any more."""

    export: str
    journals: tuple[str, ...]
    left_ms: int
    """Time until the leases of other living processes on it are over."""


class MoveAway(Command[MovedAway], frozen=True):
    """Mark a session and all that belongs to it as moved: nobody can write it here from now on.

    The holders of its leases stay known, so that the same command after a crash still waits for them.
    """

    session: str
    export: str
    owner: Owner

    def apply(self, tx: Transaction) -> MovedAway:
        rows = exported_family(self.session, tx.rows.retention, tx.journal)
        known, left = rows[0].quarantine or "", 0
        export = known.removeprefix(MOVED) if rows[0].moved else self.export  # moved before: the same file again
        for row in rows:
            if row.quarantine not in {None, f"{MOVED}{export}"}:
                raise ExportRefused(self.session, f"{row.id!r} can't be read: {row.quarantine}")
        for row in rows:
            if row.owner is not None and not is_gone(row.owner) and row.owner != self.owner:
                left = max(left, row.lease_left(tx.now))
            if row.quarantine is None:
                end_pump(tx, row, "its session was moved")
                row.quarantine, row.epoch = f"{MOVED}{export}", row.epoch + 1
                tx.rows.save_journal(row)
        return MovedAway(export, tuple(row.id for row in rows), left)


class ImportSession(Command[SessionReport], frozen=True):
    """Write a session file whose blobs are in the store; all or nothing, and once."""

    file: SessionFile
    name: str
    spend_of: SpendOf
    dry_run: bool = False

    def apply(self, tx: Transaction) -> SessionReport:
        header, made = self.file.header, tuple(self.file.journals)
        report = SessionReport(
            *(header.session, self.name, header.export, header.move, made, header.records, header.blobs),
            dry_run=self.dry_run,
        )
        if self.is_imported(tx):
            return msgspec.structs.replace(report, fresh=False)
        self._check(tx)
        if not self.dry_run:
            tx.rows.write_session(tx, self.file, self.spend_of)
        return report

    def is_imported(self, tx: Transaction) -> bool:
        """True if this file was imported before; what the session has done since does not matter."""
        known = tx.rows.retention.imported(self.file.header.session)
        return known is not None and known.export == self.file.header.export

    def _check(self, tx: Transaction) -> None:
        """Raise `ImportRefused` if something of the file is there already."""
        file, session = self.file, self.file.header.session
        for id in (*file.journals, *file.pruned):
            self._check_free(tx, session, id)
        for scope in file.scopes:
            if tx.rows.memories.is_used(scope):
                raise ImportRefused(session, f"the memory scope {scope!r} has entries here; export it without memory")
        if not self.dry_run:
            tx.require_blobs(file.digests)

    def _check_free(self, tx: Transaction, session: str, id: str) -> None:
        try:
            row = tx.journal(id)
        except (JournalPruned, JournalForgotten) as error:
            raise ImportRefused(session, str(error)) from error
        except JournalMissing:
            return
        if row.moved:
            raise ImportRefused(session, f"{id!r} was moved away from here; 'holdfast rm {session}', then import again")
        raise ImportRefused(session, f"{id!r} is here already; forget it first, or import into another store")


class PutSpooledBlob(Command[None], frozen=True):
    """Store the bytes of a session file. Nothing refers to them yet, so they are collected if the import ends here."""

    blob: SpooledBlob

    def size(self) -> int:
        return self.blob.size

    def apply(self, tx: Transaction) -> None:
        tx.rows.put_blob(self.blob.digest, self.blob, tx.now.wall)
        crash_point("import.blob")


def write_file(
    reader: Reader,
    session: str,
    write: Callable[[bytes], object],
    memory: Sequence[str] | None,
    store: str,
    at: int,
    macs_of: Callable[[str, bytes], Sequence[str]],
) -> SessionReport:
    """Write the file of a session that was moved away, or is at rest."""

    def find(id: str) -> JournalRow:
        row = reader.row(id)
        if row is None:
            raise reader.retention.missing(id)
        return row

    rows = exported_family(session, reader.retention, find)
    for row in rows:
        if row.moved != rows[0].moved or (row.quarantine is not None and not row.moved):
            raise ExportRefused(session, f"{row.id!r} can't be read: {row.quarantine}")
    move = rows[0].quarantine
    if move is None:
        check_at_rest(reader, session, rows)
    scopes = memory if memory is not None else [row.id for row in rows if row.kind == "session"]
    digests = reader.blobs_of(rows)
    export = secrets.token_hex(16) if move is None else move.removeprefix(MOVED)
    count = sum(row.head - row.base for row in rows)
    out = SessionFileWriter(write)
    out.add(Header(FORMAT, export, session, store, __version__, at, move is not None, len(rows), count, len(digests)))
    for line in reader.session_lines(rows, digests, scopes, store):
        out.add(line)
    out.end(partial(_own_mac, session, store, macs_of))
    ids = tuple(row.id for row in rows)
    return SessionReport(session, "", export, move is not None, ids, count, len(digests), out.bytes)


def _own_mac(session: str, store: str, macs_of: Callable[[str, bytes], Sequence[str]], digest: bytes) -> str:
    macs = macs_of(store, digest)
    if not macs:  # a copy of a store that only its reader has
        raise ExportRefused(session, "the key of the store is not at hand, so no file could prove where it is from")
    return macs[0]


# ---- decisions ----


def exported_family(session: str, table: RetentionTable, find: Callable[[str], JournalRow]) -> list[JournalRow]:
    """A session and all journals that belong to it, forks too, with the oldest ones first; the session is the first.

    Pumps stay behind: they are the hold that a host has here. `ExportRefused` if it can't leave without another one.
    """
    row = find(session)
    if row.kind != "session":
        raise ExportRefused(session, "it is no session")
    if row.session is not None:
        raise ExportRefused(session, f"it works for {row.session!r}; export that one")
    if row.parent is not None:
        raise ExportRefused(session, f"it goes on from records of {row.parent!r}; export that one, with its forks")
    family = [each for each in family_of(row, table, find)[0] if not is_pump_id(each.id)]
    rows = sorted(family, key=lambda each: each.no)
    ids = {each.id for each in rows}
    for each in rows:
        if each.parent is not None and each.parent not in ids:
            raise ExportRefused(session, f"{each.id!r} goes on from records of {each.parent!r}, which stays behind")
    return [row, *(each for each in rows if each is not row)]


def check_at_rest(reader: Reader, session: str, rows: Sequence[JournalRow]) -> None:
    """Raise `ExportRefused` if there is something to do for one of these journals: both sides would do it."""
    for row in rows:
        reason = None
        if row.status in {"running", "waiting"}:
            reason = f"is {row.status}"
        elif row.notices or reader.pending(row.id, 0, 1):
            reason = "has something in its inbox"
        if reason is not None:
            raise ExportRefused(session, f"{row.id!r} {reason}, and a copy would do the same again; move it (--move)")
