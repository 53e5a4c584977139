"""A transaction on the rows of a store, and the commands on journals, leases, records and the inbox.

Each command carries itself out: it decides, then writes. It raises all of its refusals before its first write, so a
refused command leaves the other commands of its transaction untouched. The other topics have their commands in their
own modules (`waits`, `notifications`, `memories`, ...).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from holdfast import records
from holdfast.effects.canonical import canonical
from holdfast.effects.envelope import segment
from holdfast.errors import (
    BlobMissing,
    HoldfastError,
    InputTaken,
    InvariantBroken,
    JournalMissing,
    SiblingBegun,
    StopRequested,
)
from holdfast.records import (
    Admitted,
    Blob,
    Ended,
    Handed,
    JournalKind,
    Opened,
    Parked,
    Record,
    blobs_of,
    next_status,
    touches_lists,
)
from holdfast.store import admission, decisions, notifications, retention, spending, waits
from holdfast.store.contract import (
    Command,
    Head,
    Input,
    InputRow,
    Journal,
    JournalRow,
    Lease,
    NewJournal,
    Owner,
    Receipt,
)
from holdfast.store.lease import is_gone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Instant
    from holdfast.store.admission import AdmissionWindow
    from holdfast.store.contract import Rows, StoreLimits
    from holdfast.store.notifications import Notify
    from holdfast.store.spending import Spend


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
            except HoldfastError as refusal:
                answers.append(refusal)
        return answers

    def journal(self, journal: str) -> JournalRow:
        """The row of a journal; `JournalPruned` or `JournalMissing` without one."""
        row = self.rows.journal(journal)
        if row is None:
            retention.refuse_pruned_id(self, journal)
            raise JournalMissing(journal)
        return row

    def wake(self, row: JournalRow) -> None:
        """Count one more event that asks the driver of a journal for attention."""
        row.wakes += 1
        self.rows.save_wakes(row)

    def open_journal(self, command: OpenJournal) -> JournalRow:
        """The row of a journal, which is created if it is missing; `JournalConflict` if it has other values."""
        row = self.rows.journal(command.journal)
        if row is None:
            retention.refuse_pruned_id(self, command.journal, command)
            return self.add_journal(command)
        if command.agent != row.agent:
            body = self.rows.first_record(row)
            first = None if body is None else records.decode_unversioned(body)
            if command.agent == (first.agent if isinstance(first, Opened) else None):
                command = replace(command, agent=row.agent)  # another agent took it over since
        decisions.check_opening(row, command)
        if command.metadata is not None:
            known = records.metadata_in(self.rows.first_record(row))
            decisions.check_metadata(command.journal, known, msgspec.json.decode(command.metadata))
        return row

    def add_journal(self, opening: OpenJournal, parent: JournalRow | None = None, parent_seq: int = 0) -> JournalRow:
        """Create a journal with its first record."""
        at = self.now.wall
        row = JournalRow(0, opening.journal, opening.kind, opening.agent, "idle", 1, at, at)
        row.role, row.session = opening.role, opening.session
        if parent is not None:
            row.parent, row.parent_seq, row.inputs = parent.id, parent_seq, parent.inputs
        row = self.rows.add_journal(row)
        opened = Opened(
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
        """Let the lease of a journal run for a whole term from now."""
        row.term = ttl_ms
        row.expires = self.now.wall + ttl_ms
        row.mono_expires = self.now.mono + ttl_ms
        self.rows.save_lease(row)

    def require_blobs(self, digests: Sequence[str]) -> None:
        """Raise `BlobMissing` unless all of these blobs are there."""
        for digest in digests:
            if not self.rows.has_blob(digest):
                raise BlobMissing(digest)


# ---- journals ----


class OpenJournal(Command[Journal], frozen=True):
    """Create a journal, or find it unchanged."""

    journal: str
    kind: JournalKind
    agent: str | None
    role: str | None = None
    session: str | None = None
    metadata: bytes | None = None
    """A JSON object, which an existing journal must have; None for any."""

    def apply(self, tx: Transaction) -> Journal:
        return as_journal(tx.open_journal(self))


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
        decisions.check_fork(parent, row, self)
        if row is None:
            retention.refuse_pruned_id(tx, self.journal)
            known = records.metadata_in(tx.rows.first_record(parent))
            metadata = canonical(known) if known else None
            opening = OpenJournal(self.journal, parent.kind, self.agent, parent.role, parent.session, metadata)
            row = tx.add_journal(opening, parent, self.at)
        return as_journal(row)


class Quarantine(Command[None], frozen=True):
    """Stop serving a journal that can't be trusted."""

    journal: str
    reason: str

    def apply(self, tx: Transaction) -> None:
        row = tx.journal(self.journal)
        if row.quarantine is None:
            row.quarantine = self.reason
            notifications.bury_all(tx, row)
            tx.rows.save_journal(row)


class ReadPosition(Command[int], frozen=True):
    """Answer the newest position of the store, after all commands that were queued before."""

    def apply(self, tx: Transaction) -> int:
        return tx.rows.last_position()


class PutBlob(Command[Blob], frozen=True):
    """Store bytes under their digest."""

    digest: str
    body: bytes

    def size(self) -> int:
        return len(self.body)

    def apply(self, tx: Transaction) -> Blob:
        tx.rows.put_blob(self.digest, self.body, tx.now.wall)
        return Blob(self.digest, len(self.body))


# ---- leases ----


class Claim(Command[Lease], frozen=True):
    """Claim a lease that is free, expired, or held by a process that has ended."""

    journal: str
    owner: Owner
    ttl_ms: int

    def apply(self, tx: Transaction) -> Lease:
        row = tx.journal(self.journal)
        held = row.owner is not None and decisions.lease_left(row, tx.now) > 0
        row.epoch = decisions.decide_claim(row, tx.now, holder_gone=held and is_gone(row.owner))
        row.owner = self.owner
        tx.extend_lease(row, self.ttl_ms)
        new = tx.new_journals.pop(row.id, None)
        if new is not None and row.wakes > (new.input is not None):
            new = None  # more has come since
        return Lease(row.id, row.epoch, self.owner, self.ttl_ms, row.head, row.wakes, new)


class Renew(Command[None], frozen=True):
    """Extend the lease by another term."""

    lease: Lease

    def apply(self, tx: Transaction) -> None:
        row = tx.journal(self.lease.journal)
        decisions.check_epoch(row, self.lease.epoch)
        tx.extend_lease(row, self.lease.ttl_ms)


class Release(Command[None], frozen=True):
    """Release the lease; the epoch stays. `seen` is the number of handled wakes."""

    lease: Lease
    seen: int | None = None
    patient: bool = True
    """The caller does not wait for it."""

    def apply(self, tx: Transaction) -> None:
        row = tx.journal(self.lease.journal)
        decisions.check_epoch(row, self.lease.epoch)
        row.seen = decisions.decide_seen(row, self.seen)
        if self.seen is not None:
            unfinished = row.status in {"running", "waiting"} or tx.rows.count_pending(row)
            if not unfinished and not (row.notices and tx.rows.notifications.has_ready(row.id, tx.now.wall)):
                row.seen = row.wakes  # nothing waits and nothing is open: every wake is dealt with
        row.owner, row.expires, row.mono_expires = None, 0, 0
        tx.rows.save_lease(row)


# ---- records ----


class Append(Command[Any], frozen=True):
    """Add records under (epoch, expected head); answers the new head, as a `Head` if it `tells_wakes`."""

    journal: str
    epoch: int
    head: int
    records: Sequence[Record]
    bodies: Sequence[bytes]
    plain: bool = False
    """No record touches the lists, the inbox or a blob: the append is all there is to do."""
    patient: bool = False
    """The caller does not wait yet: the records may share the commit of the next command."""
    notify: tuple[Notify, ...] = ()
    """Notifications in the same commit. One that can't be queued is dead; the append succeeds."""
    spend: tuple[tuple[int, Spend], ...] = ()
    """The spending of the records by day, counted in the same commit."""
    consume: tuple[str, ...] = ()
    """Resolved waits of the journal that this commit consumes."""
    tells_wakes: bool = False

    def size(self) -> int:
        payload = sum(map(len, self.bodies))
        return payload + sum(notice.size() for notice in self.notify) if self.notify else payload

    def apply(self, tx: Transaction) -> int | Head:
        row = tx.journal(self.journal)
        first = row.head + 1
        head = decisions.plan_append(row, self)
        answered, agent = False, row.agent
        if not self.plain:
            self._check_references(tx, row)
            # The run parks for a wait that is settled already: no other event would wake it.
            parked = (name for record in self.records if type(record) is Parked for name in record.waits)
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
        for day, spend in self.spend:
            # The agent that had the session before a handoff in these records has spent it.
            tx.rows.spending.add(agent, day, spend)
        for notice in self.notify:
            notifications.send(tx, notice)
        return Head(head, row.wakes) if self.tells_wakes else head

    def _check_references(self, tx: Transaction, row: JournalRow) -> None:
        admitted: set[int] = set()
        for record in self.records:
            tx.require_blobs([blob.digest for blob in blobs_of(record)])
            if type(record) is Admitted:
                if record.input in admitted or not tx.rows.is_pending(row, record.input):
                    raise InputTaken(row.id, record.input)
                admitted.add(record.input)

    def _follow(self, tx: Transaction, row: JournalRow, first: int) -> None:
        """Bring lists, inbox, waits, notifications and references up to date with the new records."""
        for seq, record in enumerate(self.records, first):
            row.status = next_status(row.status, record)
            if touches_lists(record):
                row.updated = record.at
            if type(record) is Admitted:
                tx.rows.admit_input(row, record.input)
                if row.notices:
                    notifications.follow_admission(tx, row, record)
            if type(record) is Handed:
                row.agent = record.agent
            if type(record) is Ended:
                waits.cancel_open(tx, row, f"{segment(record.run)}/")
                if row.notices:
                    notifications.follow_end(tx, row, record)
            for blob in blobs_of(record):
                tx.rows.refer(blob.digest, row, seq)
        tx.rows.save_journal(row)


# ---- inbox ----


class Accept(Command[Receipt], frozen=True):
    """Put an input into the inbox of a journal, once per key; `opening` creates the journal if it is missing."""

    journal: str
    key: str
    digest: str
    body: bytes
    opening: OpenJournal | None = None
    urgent: bool = False
    """Accept it even if the inbox is full, for example a stop request."""
    refs: tuple[str, ...] = ()
    """Digests of the blobs that it refers to."""
    patient: bool = False
    """Another command follows at once and may share its commit."""
    admission: AdmissionWindow | None = None
    """The rate limit, and the treatment of duplicates."""
    unnamed: bool = False
    """The store made up its key, so it needs no alias."""
    youngest: str | None = None
    """Create the journal only if this is still the newest of its role and session ("" for none)."""
    spend: Spend | None = None
    """Spending to count if this command creates the journal."""
    under: tuple[str, str] | None = None
    """The journal of the caller and the key of its stop request; refused once that request was accepted."""

    def size(self) -> int:
        return len(self.body)

    def apply(self, tx: Transaction) -> Receipt:
        rows = tx.rows
        new = self.opening if rows.journal(self.journal) is None else None
        if new is not None:
            retention.refuse_pruned_id(tx, self.journal, new, self.digest)
            self._check_not_stopped(rows)
            if self.youngest is not None:
                youngest = rows.youngest(new.role or "", new.session or "")
                if youngest != self.youngest:
                    raise SiblingBegun(self.journal, youngest)
            # The inbox of a new journal is empty, so only a missing blob can still refuse the input.
            tx.require_blobs(self.refs)
        row = tx.journal(self.journal) if self.opening is None else tx.open_journal(self.opening)
        earlier = decisions.decide_accept(row, rows.input_by_key(row, self.key), self)
        if earlier is None and self.admission is not None:
            earlier = admission.find_duplicate(tx, row, self, self.admission)
        if earlier is not None:
            return earlier
        self._check_not_stopped(rows)
        if not self.urgent:
            decisions.check_inbox_room(row, rows.count_pending(row), tx.limits)
        tx.require_blobs(self.refs)
        now = tx.now.wall
        row.inputs += 1
        for digest in self.refs:
            rows.refer(digest, row, 0)  # kept while the input waits; its record refers to it afterwards
        counted = self.admission is not None
        rows.add_input(row, InputRow(row.inputs, self.key, self.digest, self.body, now, counted=counted))
        if new is not None:
            opened = tx.new_journals[row.id].opened
            tx.new_journals[row.id] = NewJournal(opened, Input(row.inputs, self.key, self.body, now))
            if self.spend is not None:
                rows.spending.add(row.agent, spending.day_of(now), self.spend)
        tx.wake(row)
        return Receipt(row.id, row.inputs, self.key, now, head=row.head)

    def _check_not_stopped(self, rows: Rows) -> None:
        """A caller that is being stopped starts nothing more, so that the one who stops it knows all it started."""
        if self.under is not None:
            journal, key = self.under
            above = rows.journal(journal)
            if above is not None and rows.input_by_key(above, key) is not None:
                raise StopRequested(journal)


def as_journal(row: JournalRow, metadata: dict[str, Any] | None = None) -> Journal:
    """A journal row as the lists show it."""
    return Journal(
        *(row.id, row.kind, row.agent, row.status, row.head, row.created, row.updated, row.quarantine),
        *(row.parent, row.parent_seq, row.role, row.session, metadata or {}),
    )


def command_failure(error: Exception) -> HoldfastError:
    """The answer to a command that failed with anything but a refusal."""
    if isinstance(error, HoldfastError):
        return error
    broken = InvariantBroken(f"a command failed in a way it must not: {error!r}")
    broken.__cause__ = error
    return broken
