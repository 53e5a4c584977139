"""Carry out commands on the rows of a backend: decide, then write. Every backend uses this module.

A command raises all of its refusals before its first write. So a refused command leaves the other commands of its
transaction untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
from holdfast.records import Admitted, Blob, Ended, Handed, Opened, Parked, blobs_of, next_status, touches_lists
from holdfast.store import admission, attachments, decisions, memories, notifications, retention, rules, spending, waits
from holdfast.store.contract import (
    Accept,
    Append,
    Claim,
    Command,
    Fork,
    Head,
    Input,
    InputRow,
    Journal,
    JournalRow,
    Lease,
    NewJournal,
    OpenJournal,
    OpenWait,
    PutBlob,
    Quarantine,
    ReadPosition,
    Receipt,
    Release,
    Renew,
    RevokeWaits,
    Rows,
    SettleNext,
    SettleWait,
)
from holdfast.store.lease import is_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.clock import Instant
    from holdfast.records import Record
    from holdfast.store.contract import StoreLimits


class Transaction:
    """One transaction over `rows`, at one instant.

    The topic modules (`waits`, `notifications`, ...) carry out their own commands as functions of a transaction.
    """

    __slots__ = ("_new_journals", "limits", "now", "rows")

    def __init__(self, rows: Rows, limits: StoreLimits, now: Instant) -> None:
        self.rows = rows
        self.limits = limits
        self.now = now
        self._new_journals: dict[str, NewJournal] = {}
        """Journals created by this transaction and not yet claimed, without forks."""

    def apply(self, command: Command[Any]) -> Any:  # noqa: ANN401  each command has its own answer
        """Carry out one command, or raise its refusal with nothing written."""
        return _HANDLERS[type(command)](self, command)

    def apply_all(self, commands: Sequence[Command[Any] | None]) -> list[Any]:
        """Carry out commands in order; answers the result or the refusal of each, None for None."""
        answers: list[Any] = []
        for command in commands:
            try:
                answers.append(None if command is None else _HANDLERS[type(command)](self, command))
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

    # ---- journals ----

    def open_journal(self, command: OpenJournal) -> Journal:
        return as_journal(self._opened_row(command))

    def _opened_row(self, command: OpenJournal) -> JournalRow:
        row = self.rows.journal(command.journal)
        if row is None:
            retention.refuse_pruned_id(self, command.journal, command)
            return self._add_journal(command)
        if command.agent != row.agent and command.agent == self._first_agent(row):
            command = replace(command, agent=row.agent)  # another agent took it over since
        decisions.check_opening(row, command)
        if command.metadata is not None:
            known = records.metadata_in(self.rows.first_record(row))
            decisions.check_metadata(command.journal, known, msgspec.json.decode(command.metadata))
        return row

    def _first_agent(self, row: JournalRow) -> str | None:
        body = self.rows.first_record(row)
        first = None if body is None else records.decode_unversioned(body)
        return first.agent if isinstance(first, Opened) else None

    def fork(self, command: Fork) -> Journal:
        parent = self.journal(command.parent)
        row = self.rows.journal(command.journal)
        decisions.check_fork(parent, row, command)
        if row is None:
            retention.refuse_pruned_id(self, command.journal)
            known = records.metadata_in(self.rows.first_record(parent))
            metadata = canonical(known) if known else None
            opening = OpenJournal(command.journal, parent.kind, command.agent, parent.role, parent.session, metadata)
            row = self._add_journal(opening, parent, command.at)
        return as_journal(row)

    def _add_journal(self, opening: OpenJournal, parent: JournalRow | None = None, parent_seq: int = 0) -> JournalRow:
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
            self._new_journals[row.id] = NewJournal(opened)
        return row

    def quarantine(self, command: Quarantine) -> None:
        row = self.journal(command.journal)
        if row.quarantine is None:
            row.quarantine = command.reason
            notifications.bury_all(self, row)
            self.rows.save_journal(row)

    def read_position(self, _: ReadPosition) -> int:
        return self.rows.last_position()

    def put_blob(self, command: PutBlob) -> Blob:
        self.rows.put_blob(command.digest, command.body, self.now.wall)
        return Blob(command.digest, len(command.body))

    # ---- leases ----

    def claim(self, command: Claim) -> Lease:
        row = self.journal(command.journal)
        held = row.owner is not None and decisions.lease_left(row, self.now) > 0
        row.epoch = decisions.decide_claim(row, self.now, holder_gone=held and is_gone(row.owner))
        row.owner = command.owner
        self._extend_lease(row, command.ttl_ms)
        new = self._new_journals.pop(row.id, None)
        if new is not None and row.wakes > (new.input is not None):
            new = None  # more has come since
        return Lease(row.id, row.epoch, command.owner, command.ttl_ms, row.head, row.wakes, new)

    def renew(self, command: Renew) -> None:
        row = self.journal(command.lease.journal)
        decisions.check_epoch(row, command.lease.epoch)
        self._extend_lease(row, command.lease.ttl_ms)

    def _extend_lease(self, row: JournalRow, ttl_ms: int) -> None:
        row.term = ttl_ms
        row.expires = self.now.wall + ttl_ms
        row.mono_expires = self.now.mono + ttl_ms
        self.rows.save_lease(row)

    def release(self, command: Release) -> None:
        row = self.journal(command.lease.journal)
        decisions.check_epoch(row, command.lease.epoch)
        row.seen = decisions.decide_seen(row, command.seen)
        if command.seen is not None and not self._is_unfinished(row):
            row.seen = row.wakes  # nothing waits and nothing is open: every wake is dealt with
        row.owner, row.expires, row.mono_expires = None, 0, 0
        self.rows.save_lease(row)

    def _is_unfinished(self, row: JournalRow) -> bool:
        if row.status in {"running", "waiting"} or self.rows.count_pending(row):
            return True
        return row.notices > 0 and self.rows.notifications.has_ready(row.id, self.now.wall)

    # ---- records ----

    def append(self, command: Append) -> int | Head:
        row = self.journal(command.journal)
        first = row.head + 1
        head = decisions.plan_append(row, command)
        answered, agent = False, row.agent
        if not command.plain:
            self._check_references(row, command.records)
            answered = any(self._parks_for_answer(row, record) for record in command.records)
        used = [waits.decide_consume(row, self.rows.wait(row, name), name, first) for name in command.consume]
        self.rows.add_records(row, first, command.epoch, command.bodies)
        row.head = head
        if command.plain and row.status != "waiting":
            self.rows.save_head(row)
        else:
            self._follow(row, first, command.records)
        if answered:
            self.wake(row)
        for wait in used:
            self.rows.save_wait(row, wait)
        for day, spend in command.spend:
            # The agent that had the session before a handoff in these records has spent it.
            self.rows.spending.add(agent, day, spend)
        for notice in command.notify:
            notifications.send(self, notice)
        return Head(head, row.wakes) if command.tells_wakes else head

    def _parks_for_answer(self, row: JournalRow, record: Record) -> bool:
        """The run parks for a wait that is settled already: no other event would wake it."""
        if type(record) is not Parked:
            return False
        found = (self.rows.wait(row, name) for name in record.waits)
        return any(wait is not None and wait.state != "open" for wait in found)

    def _check_references(self, row: JournalRow, added: Sequence[Record]) -> None:
        admitted: set[int] = set()
        for record in added:
            self._require_blobs([blob.digest for blob in blobs_of(record)])
            if type(record) is Admitted:
                if record.input in admitted or not self.rows.is_pending(row, record.input):
                    raise InputTaken(row.id, record.input)
                admitted.add(record.input)

    def _require_blobs(self, digests: Sequence[str]) -> None:
        for digest in digests:
            if not self.rows.has_blob(digest):
                raise BlobMissing(digest)

    def _follow(self, row: JournalRow, first: int, added: Sequence[Record]) -> None:
        """Bring lists, inbox, waits, notifications and references up to date with new records."""
        for seq, record in enumerate(added, first):
            row.status = next_status(row.status, record)
            if touches_lists(record):
                row.updated = record.at
            if type(record) is Admitted:
                self.rows.admit_input(row, record.input)
                if row.notices:
                    notifications.follow_admission(self, row, record)
            if type(record) is Handed:
                row.agent = record.agent
            if type(record) is Ended:
                waits.cancel_open(self, row, f"{segment(record.run)}/")
                if row.notices:
                    notifications.follow_end(self, row, record)
            for blob in blobs_of(record):
                self.rows.refer(blob.digest, row, seq)
        self.rows.save_journal(row)

    # ---- inbox ----

    def accept(self, command: Accept) -> Receipt:
        new = command.opening if self.rows.journal(command.journal) is None else None
        if new is not None:
            retention.refuse_pruned_id(self, command.journal, new, command.digest)
            self._check_not_stopped(command)
            if command.youngest is not None:
                youngest = self.rows.youngest(new.role or "", new.session or "")
                if youngest != command.youngest:
                    raise SiblingBegun(command.journal, youngest)
            # The inbox of a new journal is empty, so only a missing blob can still refuse the input.
            self._require_blobs(command.refs)
        row = self.journal(command.journal) if command.opening is None else self._opened_row(command.opening)
        earlier = decisions.decide_accept(row, self.rows.input_by_key(row, command.key), command)
        if earlier is None and command.admission is not None:
            earlier = admission.find_duplicate(self, row, command, command.admission)
        if earlier is not None:
            return earlier
        self._check_not_stopped(command)
        if not command.urgent:
            decisions.check_inbox_room(row, self.rows.count_pending(row), self.limits)
        self._require_blobs(command.refs)
        now = self.now.wall
        row.inputs += 1
        for digest in command.refs:
            self.rows.refer(digest, row, 0)  # kept while the input waits; its record refers to it afterwards
        counted = command.admission is not None
        added = InputRow(row.inputs, command.key, command.digest, command.body, now, counted=counted)
        self.rows.add_input(row, added)
        if new is not None:
            opened = self._new_journals[row.id].opened
            self._new_journals[row.id] = NewJournal(opened, Input(added.input, added.key, added.body, added.at))
            if command.spend is not None:
                self.rows.spending.add(row.agent, spending.day_of(now), command.spend)
        self.wake(row)
        return Receipt(row.id, row.inputs, command.key, now, head=row.head)

    def _check_not_stopped(self, command: Accept) -> None:
        """A caller that is being stopped starts nothing more, so that the one who stops it knows all it started."""
        if command.under is not None:
            journal, key = command.under
            above = self.rows.journal(journal)
            if above is not None and self.rows.input_by_key(above, key) is not None:
                raise StopRequested(journal)


_HANDLERS: Final[dict[type[Command[Any]], Callable[[Transaction, Any], Any]]] = {
    OpenJournal: Transaction.open_journal,
    Fork: Transaction.fork,
    Quarantine: Transaction.quarantine,
    ReadPosition: Transaction.read_position,
    PutBlob: Transaction.put_blob,
    Claim: Transaction.claim,
    Renew: Transaction.renew,
    Release: Transaction.release,
    Append: Transaction.append,
    Accept: Transaction.accept,
    OpenWait: waits.open_wait,
    SettleWait: waits.settle,
    SettleNext: waits.settle_next,
    RevokeWaits: waits.revoke,
    notifications.Notify: notifications.notify,
    notifications.DeliverNotifications: notifications.deliver,
    notifications.SettleNotification: notifications.settle_by_hand,
    notifications.Ripen: notifications.ripen,
    memories.PutMemory: memories.put,
    memories.DeleteMemory: memories.delete,
    rules.AddRule: rules.add,
    rules.RemoveRule: rules.remove,
    attachments.PutAttachment: attachments.put,
    attachments.ShareAttachment: attachments.share,
    spending.ReplaceSpending: spending.replace_spending,
    spending.CountOlder: spending.count_older,
    admission.NoteRefusal: admission.note_refusal,
    admission.SetTerms: admission.set_terms,
    retention.PruneJournal: retention.prune_journal,
    retention.TrimJournal: retention.trim_journal,
    retention.EmptyInputs: retention.empty_inputs,
    retention.RemoveWaits: retention.remove_waits,
    retention.PurgeNotifications: retention.purge_notifications,
    retention.PurgeMemories: retention.purge_memories,
    retention.CollectBlobs: retention.collect_blobs,
}


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
