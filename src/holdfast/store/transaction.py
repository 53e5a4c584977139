"""A transaction on the rows of a store, and the commands on journals, leases and records.

Each command carries itself out: it decides, then writes. It raises all of its refusals before its first write, so a
refused command leaves the other commands of its transaction untouched. The other topics have their commands in their
own modules (`inbox`, `waits`, `notifications`, `memories`, ...).

A decision is a pure function of rows, a command and the time: it answers the new state or raises the error for the
caller, and never writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec.structs import replace

from holdfast import errors, records
from holdfast.effects.canonical import canonical
from holdfast.effects.keys import segment
from holdfast.secrets.redactor import Redactor, redact_record
from holdfast.store import notifications, waits
from holdfast.store.contract import Command, Head, Journal, JournalRow, Lease, NewJournal, Owner, blob_digest
from holdfast.store.lease import is_gone
from holdfast.store.spending import Spend, spend_of_append

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Instant
    from holdfast.store.contract import Rows, StoreLimits
    from holdfast.store.retention import Tombstone


class Transaction:
    """One transaction over `rows`, at one instant."""

    __slots__ = ("limits", "new_journals", "now", "rows")

    def __init__(self, rows: Rows, limits: StoreLimits, now: Instant) -> None:
        self.rows = rows
        self.limits = limits
        self.now = now
        self.new_journals: dict[str, NewJournal] = {}
        """Journals created by this transaction and not yet claimed, without forks."""

    def apply_all(self, commands: Sequence[Command[Any] | None]) -> list[Any]:
        """Carry out commands in order; answers the result or the refusal of each, None for None."""
        answers: list[Any] = []
        for command in commands:
            try:
                answers.append(None if command is None else command.apply(self))
            except errors.HoldfastError as refusal:
                answers.append(refusal)
        return answers

    def journal(self, journal: str) -> JournalRow:
        """The row of a journal; `JournalPruned` or `JournalMissing` without one."""
        row = self.rows.journal(journal)
        if row is None:
            self.refuse_pruned_id(journal)
            raise errors.JournalMissing(journal)
        return row

    def refuse_pruned_id(self, journal: str, opening: OpenJournal | None = None, digest: str | None = None) -> None:
        """Raise if this id belonged to a pruned journal, or is refused because its session was forgotten.

        `digest` recognises a repeated start.
        """
        stone = self.rows.retention.find(journal)
        if stone is not None:
            if opening is not None:
                check_opening(stone, opening)
            same = digest is not None and digest == stone.digest
            raise errors.JournalPruned(journal, stone.detail, stone.at, same=same)
        at = self.rows.retention.forgotten_at(journal)
        if at is not None:
            raise errors.JournalForgotten(journal, at)

    def leased_journal(self, lease: Lease | notifications.DeliverNotifications) -> JournalRow:
        """The row of a served journal whose lease has not moved on."""
        row = self.journal(lease.journal)
        row.check_epoch(lease.epoch)
        row.check_served()
        return row

    def wake(self, row: JournalRow) -> None:
        """Count one more event for the driver of a journal."""
        row.wakes += 1
        self.rows.save_wakes(row)

    def open_journal(self, command: OpenJournal) -> JournalRow:
        """The row of a journal, created if missing; `JournalConflict` if it has other values."""
        row = self.rows.journal(command.journal)
        if row is None:
            self.refuse_pruned_id(command.journal, command)
            if command.parent is None:
                return self.add_journal(command)
            parent = self.journal(command.parent)
            parent.check_served()
            return self.add_journal(command, parent, parent.head, inputs=0)
        if command.agent != row.agent:
            body = self.rows.first_record(row)
            first = None if body is None else records.decode_unversioned(body)
            if command.agent == (first.agent if isinstance(first, records.Opened) else None):
                command = replace(command, agent=row.agent)  # another agent took it over since
        check_opening(row, command)
        if command.metadata is not None:
            known = records.metadata_in(self.rows.first_record(row))
            given = msgspec.json.decode(command.metadata)
            if known != given:  # they never change
                shown = [msgspec.json.encode(each, order="sorted").decode()[:200] for each in (known, given)]
                helps = "open it without metadata, or choose another id"
                opened = f"a session with the metadata {shown[0]}"
                raise errors.JournalConflict(command.journal, opened, f"one with {shown[1]}", helps)
        return row

    def add_journal(
        self,
        opening: OpenJournal,
        parent: JournalRow | None = None,
        parent_seq: int = 0,
        inputs: int | None = None,
    ) -> JournalRow:
        """Create a journal with its first record. A fork counts its inputs on from those of the parent, or `inputs`."""
        at = self.now.wall
        above = None if opening.session is None else self.rows.journal(opening.session)
        if above is not None:
            above.check_here()
        row = JournalRow(0, opening.journal, opening.kind, opening.agent, "idle", 1, at, at)
        row.role, row.session = opening.role, opening.session
        row.epoch = self.rows.retention.epoch_floor()
        if parent is not None:
            row.parent, row.parent_seq = parent.id, parent_seq
            row.inputs = parent.inputs if inputs is None else inputs
        row = self.rows.add_journal(row)
        opened = records.Opened(
            at=at,
            kind=opening.kind,
            format=records.FORMAT,
            agent=opening.agent,
            parent=row.parent,
            parent_seq=parent_seq,
            role=opening.role,
            session=opening.session,
            metadata=msgspec.Raw(opening.metadata) if opening.metadata else records.ABSENT,
        )
        self.rows.add_records(row, 1, 0, (records.encode(opened),))
        if parent is None:
            self.new_journals[row.id] = NewJournal(opened)
        return row

    def extend_lease(self, row: JournalRow, ttl_ms: int) -> None:
        row.term = ttl_ms
        row.expires = self.now.wall + ttl_ms
        row.mono_expires = self.now.mono + ttl_ms
        self.rows.save_lease(row)

    def require_blobs(self, digests: Sequence[str]) -> None:
        for digest in digests:
            if not self.rows.has_blob(digest):
                raise errors.BlobMissing(digest)


# ---- journals ----


class OpenJournal(Command[Journal], frozen=True):
    """Create a journal, or find it unchanged."""

    journal: str
    kind: records.JournalKind
    agent: str | None
    role: str | None = None
    session: str | None = None
    metadata: bytes | None = None
    """A JSON object, equal to that of an existing journal; None for any."""
    parent: str | None = None
    """The ended journal that this one forks, at its last record. Its inputs are counted from 1."""

    def apply(self, tx: Transaction) -> Journal:
        return tx.open_journal(self).as_journal()


class Fork(Command[Journal], frozen=True):
    """Create a journal that continues after record `at` of its parent, or find that fork."""

    journal: str
    parent: str
    at: int
    agent: str | None = None
    """The agent of the parent at that record."""

    def apply(self, tx: Transaction) -> Journal:
        parent = tx.journal(self.parent)
        row = tx.rows.journal(self.journal)
        check_fork(parent, row, self)
        if row is None:
            tx.refuse_pruned_id(self.journal)
            known = records.metadata_in(tx.rows.first_record(parent))
            metadata = canonical(known) if known else None
            opening = OpenJournal(self.journal, parent.kind, self.agent, parent.role, parent.session, metadata)
            row = tx.add_journal(opening, parent, self.at)
        return row.as_journal()


class Quarantine(Command[None], frozen=True):
    """Stop serving an untrustworthy journal."""

    journal: str
    reason: str

    def size(self) -> int:
        return 0

    def apply(self, tx: Transaction) -> None:
        row = tx.journal(self.journal)
        if row.quarantine is None:
            row.quarantine = self.reason
            notifications.bury_all(tx, row)
            tx.rows.save_journal(row)


class PutBlob(Command[records.Blob], frozen=True):
    """Store bytes under their digest."""

    digest: str
    body: bytes

    def size(self) -> int:
        return len(self.body)

    def redact(self, redactor: Redactor) -> Self:
        clean = super().redact(redactor)
        return clean if clean.body is self.body else replace(clean, digest=blob_digest(clean.body))

    def apply(self, tx: Transaction) -> records.Blob:
        tx.rows.put_blob(self.digest, self.body, tx.now.wall)
        return records.Blob(self.digest, len(self.body))


# ---- leases ----


class Claim(Command[Lease], frozen=True):
    """Claim a lease that is free, expired, or held by a process that has ended."""

    journal: str
    owner: Owner
    ttl_ms: int

    def apply(self, tx: Transaction) -> Lease:
        row = tx.journal(self.journal)
        held = row.owner is not None and row.lease_left(tx.now) > 0
        row.epoch = decide_claim(row, tx.now, holder_gone=held and is_gone(row.owner))
        row.owner = self.owner
        tx.extend_lease(row, self.ttl_ms)
        new = tx.new_journals.pop(row.id, None)
        if new is not None and row.wakes > (new.input is not None):
            new = None  # more has come since
        born = tx.rows.retention.birthplace(row.id)
        return Lease(row.id, row.epoch, self.owner, self.ttl_ms, row.head, row.wakes, new, born)


def renew(tx: Transaction, lease: Lease) -> None:
    """Extend the lease by another term."""
    row = tx.journal(lease.journal)
    row.check_epoch(lease.epoch)
    tx.extend_lease(row, lease.ttl_ms)


class Release(Command[None], frozen=True):
    """Release the lease; the epoch stays. `seen` is the number of handled wakes."""

    lease: Lease
    seen: int | None = None
    patient: bool = True
    """The caller does not wait."""

    def apply(self, tx: Transaction) -> None:
        row = tx.journal(self.lease.journal)
        row.check_epoch(self.lease.epoch)
        row.seen = decide_seen(row, self.seen)
        if self.seen is not None:
            unfinished = row.status in {"running", "waiting"} or tx.rows.count_pending(row)
            if not unfinished and not (row.notices and tx.rows.notifications.has_ready(row.id, tx.now.wall)):
                row.seen = row.wakes  # nothing waits and no run is open: every wake is handled
        row.owner, row.expires, row.mono_expires = None, 0, 0
        tx.rows.save_lease(row)


# ---- records ----


class Append(Command[Any], frozen=True):
    """Add records under (epoch, expected head); answers the new head, as a `Head` if it `tells_wakes`."""

    journal: str
    epoch: int
    head: int
    records: Sequence[records.Record]
    bodies: Sequence[bytes]
    plain: bool = False
    """No record touches the lists, the inbox or a blob, so there is nothing to update."""
    patient: bool = False
    """The caller does not wait yet: the records may share the commit of the next command."""
    notify: tuple[notifications.Notify, ...] = ()
    """Notifications in the same commit. One that can't be queued is dead; the append succeeds."""
    spend: Spend | tuple[tuple[int, Spend], ...] | None = None
    """The spending of the records, counted in the same commit: on the day of the last one, or by day."""
    worked: Sequence[tuple[int, int]] = ()
    """Spans of working time that end with these records."""
    consume: tuple[str, ...] = ()
    """Resolved waits of the journal that this commit consumes."""
    tells_wakes: bool = False

    def size(self) -> int:
        payload = sum(map(len, self.bodies))
        return payload + sum(notice.size() for notice in self.notify) if self.notify else payload

    def redact(self, redactor: Redactor) -> Self:
        clean = super().redact(redactor)
        pairs = [redact_record(*pair, redactor) for pair in zip(clean.records, clean.bodies, strict=True)]
        notices = tuple(notice.redact(redactor) for notice in clean.notify)
        added, bodies = tuple(record for record, _ in pairs), [body for _, body in pairs]
        return replace(clean, records=added, bodies=bodies, notify=notices)

    def apply(self, tx: Transaction) -> int | Head:
        row = tx.journal(self.journal)
        first = row.head + 1
        head = plan_append(row, self)
        answered, agent = False, row.agent
        if not self.plain:
            admitted: set[int] = set()
            for record in self.records:
                tx.require_blobs([blob.digest for blob in records.blobs_of(record)])
                if type(record) is records.Admitted:
                    if record.input in admitted or not tx.rows.is_pending(row, record.input):
                        raise errors.InputTaken(row.id, record.input)
                    admitted.add(record.input)
            # The run parks for a wait that is settled already: no other event would wake it.
            parked = (name for record in self.records if type(record) is records.Parked for name in record.waits)
            found = (tx.rows.wait(row, name) for name in parked)
            answered = any(wait is not None and wait.state != "open" for wait in found)
        used = [waits.decide_consume(row, tx.rows.wait(row, name), name, first) for name in self.consume]
        tx.rows.add_records(row, first, self.epoch, self.bodies)
        row.head = head
        if self.plain and row.status != "waiting":
            tx.rows.save_head(row)
        else:
            self._follow(tx, row, first)
        if answered:
            tx.wake(row)
        for wait in used:
            tx.rows.save_wait(row, wait)
        by_day = self.spend if isinstance(self.spend, tuple) else spend_of_append(self.records, self.spend, self.worked)
        for day, spend in by_day:
            # The agent before a handoff in these records has spent it.
            tx.rows.spending.add(agent, day, spend)
        for notice in self.notify:
            notifications.send(tx, notice)
        return Head(head, row.wakes) if self.tells_wakes else head

    def _follow(self, tx: Transaction, row: JournalRow, first: int) -> None:
        """Update lists, inbox, waits, notifications and references for the new records."""
        for seq, record in enumerate(self.records, first):
            row.status = records.next_status(row.status, record)
            if records.touches_lists(record):
                row.updated = record.at
            if type(record) is records.Admitted:
                tx.rows.admit_input(row, record.input)
                if row.notices:
                    notifications.follow_admission(tx, row, record)
            if type(record) is records.Handed:
                row.agent = record.agent
            if type(record) is records.Ended:
                waits.cancel_open(tx, row, f"{segment(record.run)}/")
                if row.notices:
                    notifications.follow_end(tx, row, record)
            for blob in records.blobs_of(record):
                tx.rows.refer(blob.digest, row, seq)
        tx.rows.save_journal(row)


# ---- decisions ----


def check_opening(row: JournalRow | Tombstone, command: OpenJournal) -> None:
    """Check kind, role and session of an id, which never change, and its agent, which changes only by handoff."""
    if (row.kind, row.agent, row.role, row.session) != (command.kind, command.agent, command.role, command.session):
        # A sub-agent session works for its own session and takes no other input.
        lent = row.kind == command.kind == "session" and row.session is not None and command.session is None
        helps = "fork it to go on from there, or choose another id" if lent else "choose another id"
        raise errors.JournalConflict(command.journal, _opened_as(row), _opened_as(command), helps)


def _opened_as(opened: JournalRow | OpenJournal | Tombstone) -> str:
    said = f"a {opened.kind} of {opened.agent!r}" if opened.agent else f"a {opened.kind}"
    if opened.role:
        said += f" with the role {opened.role!r}"
    return f"{said} for {opened.session!r}" if opened.session else said


def check_fork(parent: JournalRow, found: JournalRow | None, command: Fork) -> None:
    """Check that a fork starts at a record of its parent and keeps its id."""
    if found is not None:
        if (found.parent, found.parent_seq) != (command.parent, command.at):
            taken = _opened_as(found) + _fork_of(found.parent, found.parent_seq)
            wanted = _opened_as(parent) + _fork_of(command.parent, command.at)
            raise errors.JournalConflict(found.id, taken, wanted)
        return
    parent.check_served()
    if not 1 <= command.at <= parent.head:
        raise errors.ForkPointMissing(parent.id, command.at, parent.head)


def _fork_of(parent: str | None, seq: int) -> str:
    return f" that goes on after record {seq} of {parent!r}" if parent else ""


def decide_claim(row: JournalRow, now: Instant, *, holder_gone: bool) -> int:
    """The epoch of the new lease. A live lease is refused to everyone, its holder included."""
    row.check_served()
    left = row.lease_left(now)
    if row.owner is not None and left > 0 and not holder_gone:
        raise errors.LeaseHeld(row.id, row.owner.describe(), left)
    return row.epoch + 1


def plan_append(row: JournalRow, command: Append) -> int:
    """The head after the append; raises `Fenced` before `HeadConflict`."""
    row.check_epoch(command.epoch)
    row.check_served()
    if row.head != command.head:
        raise errors.HeadConflict(row.id, command.head, row.head)
    return row.head + len(command.bodies)


def decide_seen(row: JournalRow, seen: int | None) -> int:
    """The new count of seen wakes, at most the wakes: otherwise the next ones would go unnoticed."""
    if seen is None:
        return row.seen
    if seen > row.wakes:
        raise errors.InvalidNumber("seen", seen, f"{row.id!r} was woken {row.wakes:,} times")
    return max(row.seen, seen)
