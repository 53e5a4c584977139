"""Carries out commands on rows: decide, then write. Shared by every backend.

All refusals come before the first write of a command, so one that is refused leaves the others of its transaction
untouched.
"""

from __future__ import annotations

from functools import partial
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
    SiblingBegun,
    StopRequested,
    StoreBusy,
)
from holdfast.records import Admitted, Blob, Ended, Handed, Opened, Parked, blobs_of, next_status, touches_lists
from holdfast.store import admission, decisions
from holdfast.store.admission import NoteRefusal, RefusedInput, SetTerms
from holdfast.store.attachments import Attachments, CollectBlobs, PutAttachment, ShareAttachment
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
    Settlement,
    SettleNext,
    SettleWait,
    Wait,
)
from holdfast.store.lease import is_gone
from holdfast.store.memories import DeleteMemory, Memories, PurgeMemory, PutMemory
from holdfast.store.notifications import (
    DeliverNotifications,
    Notices,
    Notify,
    PurgeNotifications,
    Ripen,
    SettleNotification,
)
from holdfast.store.retention import EmptyInputs, PruneJournal, Pruning, RemoveWaits, TrimJournal
from holdfast.store.rules import AddRule, RemoveRule, Rules
from holdfast.store.spending import CountOlder, ReplaceSpending, day_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.clock import Instant
    from holdfast.records import Record
    from holdfast.store.limits import StoreLimits


class Transaction:
    """One transaction over `rows`, at one instant."""

    __slots__ = ("_limits", "_made", "_now", "_rows", "_wake", "attachments", "memories", "notices", "pruning", "rules")

    def __init__(self, rows: Rows, limits: StoreLimits, now: Instant) -> None:
        self._rows = rows
        self._limits = limits
        self._now = now
        self._made: dict[str, NewJournal] = {}
        """Journals that were made here and not claimed yet; forks are not among them."""
        self._wake = partial(_woken, rows)  # not bound to this: what is over must not wait for the collector
        self.attachments = Attachments(rows, limits, now.wall)
        self.notices = Notices(rows, limits, now.wall, self._wake)
        self.memories = Memories(rows, limits, now.wall)
        self.rules = Rules(rows, limits, now.wall)
        self.pruning = Pruning(rows, now)

    def apply(self, command: Command[Any]) -> Any:  # noqa: ANN401  each command has its own answer
        """Carry out one command, or raise its refusal with nothing written."""
        return _HANDLERS[type(command)](self, command)

    def _row(self, journal: str) -> JournalRow:
        return self._rows.journal(journal) or self.pruning.require(journal)

    def open_journal(self, asked: OpenJournal) -> Journal:
        return as_journal(self._opened(asked))

    def _opened(self, asked: OpenJournal) -> JournalRow:
        row = self._rows.journal(asked.journal)
        if row is None:
            self.pruning.refuse(asked.journal, asked, None)
            return self._add_journal(asked)
        if asked.agent != row.agent and asked.agent == self._first_agent(row):
            asked = replace(asked, agent=row.agent)  # it was handed over since
        decisions.check_opening(row, asked)
        if asked.metadata is not None:
            known = records.metadata_in(self._rows.first_record(row))
            decisions.check_metadata(asked.journal, known, msgspec.json.decode(asked.metadata))
        return row

    def _first_agent(self, row: JournalRow) -> str | None:
        """The agent with which a journal was opened."""
        body = self._rows.first_record(row)
        first = None if body is None else records.decode_unversioned(body)
        return first.agent if isinstance(first, Opened) else None

    def fork(self, asked: Fork) -> Journal:
        parent = self._row(asked.parent)
        row = self._rows.journal(asked.journal)
        decisions.check_fork(parent, row, asked)
        if row is None:
            self.pruning.refuse(asked.journal, None, None)
            known = records.metadata_in(self._rows.first_record(parent))
            metadata = canonical(known) if known else None
            opening = OpenJournal(asked.journal, parent.kind, asked.agent, parent.role, parent.session, metadata)
            row = self._add_journal(opening, parent, asked.at)
        return as_journal(row)

    def _add_journal(self, asked: OpenJournal, parent: JournalRow | None = None, parent_seq: int = 0) -> JournalRow:
        at = self._now.wall
        row = JournalRow(0, asked.journal, asked.kind, asked.agent, "idle", 1, at, at)
        row.role, row.session = asked.role, asked.session
        if parent is not None:
            row.parent, row.parent_seq, row.inputs = parent.id, parent_seq, parent.inputs
        row = self._rows.add_journal(row)
        opened = Opened(
            at=at,
            kind=asked.kind,
            format=records.FORMAT,
            agent=asked.agent,
            parent=row.parent,
            parent_seq=parent_seq,
            role=asked.role,
            session=asked.session,
            metadata=msgspec.Raw(asked.metadata) if asked.metadata else records.ABSENT,
        )
        self._rows.add_records(row, 1, 0, (records.encode(opened),))
        if parent is None:
            self._made[row.id] = NewJournal(opened)
        return row

    def claim(self, asked: Claim) -> Lease:
        row = self._row(asked.journal)
        held = row.owner is not None and decisions.lease_left(row, self._now) > 0
        row.epoch = decisions.decide_claim(row, self._now, holder_gone=held and is_gone(row.owner))
        row.owner = asked.owner
        self._extend(row, asked.ttl_ms)
        made = self._made.pop(row.id, None)
        if made is not None and row.wakes > (made.input is not None):
            made = None  # more has come since
        return Lease(row.id, row.epoch, asked.owner, asked.ttl_ms, row.head, row.wakes, made)

    def renew(self, asked: Renew) -> None:
        row = self._row(asked.lease.journal)
        decisions.check_epoch(row, asked.lease.epoch)
        self._extend(row, asked.lease.ttl_ms)

    def _extend(self, row: JournalRow, ttl_ms: int) -> None:
        row.term = ttl_ms
        row.expires = self._now.wall + ttl_ms
        row.mono_expires = self._now.mono + ttl_ms
        self._rows.save_lease(row)

    def release(self, asked: Release) -> None:
        row = self._row(asked.lease.journal)
        decisions.check_epoch(row, asked.lease.epoch)
        row.seen = decisions.decide_seen(row, asked.seen)
        if asked.seen is not None and not self._is_unfinished(row):
            row.seen = row.wakes  # nothing waits and nothing is open: whatever woke it is done with
        row.owner, row.expires, row.mono_expires = None, 0, 0
        self._rows.save_lease(row)

    def _is_unfinished(self, row: JournalRow) -> bool:
        if row.status in {"running", "waiting"} or self._rows.count_pending(row):
            return True
        return self.notices.is_ready(row)

    def append(self, asked: Append) -> int | Head:
        row = self._row(asked.journal)
        first = row.head + 1
        head = decisions.plan_append(row, asked)
        woken, agent = False, row.agent
        if not asked.plain:
            self._check_references(row, asked.records)
            woken = any(self._is_answered(row, record) for record in asked.records)
        used = [decisions.decide_consume(row, self._rows.wait(row, name), name, first) for name in asked.consume]
        self._rows.add_records(row, first, asked.epoch, asked.bodies)
        row.head = head
        if asked.plain and row.status != "waiting":
            self._rows.save_head(row)
        else:
            self._follow(row, first, asked.records)
        if woken:
            self._wake(row)
        for wait in used:
            self._rows.save_wait(row, wait)
        for day, spend in asked.spend:
            self._rows.spending.add(agent, day, spend)  # who has handed the session over with this has spent it
        for notice in asked.notify:
            self.notices.send(notice)
        return Head(head, row.wakes) if asked.tells_wakes else head

    def _is_answered(self, row: JournalRow, record: Record) -> bool:
        """Whether the run parks for something that has come already: nothing else would wake it."""
        if type(record) is not Parked:
            return False
        waits = (self._rows.wait(row, name) for name in record.waits)
        return any(wait is not None and wait.state != "open" for wait in waits)

    def _check_references(self, row: JournalRow, added: Sequence[Record]) -> None:
        admitted: set[int] = set()
        for record in added:
            for blob in blobs_of(record):
                if not self._rows.has_blob(blob.digest):
                    raise BlobMissing(blob.digest)
            if type(record) is Admitted:
                if record.input in admitted or not self._rows.is_pending(row, record.input):
                    raise InputTaken(row.id, record.input)
                admitted.add(record.input)

    def _follow(self, row: JournalRow, first: int, added: Sequence[Record]) -> None:
        """Bring lists, inbox and references up to date with the new records."""
        for seq, record in enumerate(added, first):
            row.status = next_status(row.status, record)
            if touches_lists(record):
                row.updated = record.at
            if type(record) is Admitted:
                self._rows.admit_input(row, record.input)
                if row.notices:
                    self.notices.admitted(row, record)
            if type(record) is Handed:
                row.agent = record.agent
            if type(record) is Ended:
                self._end_waits(row, record.run)
                if row.notices:
                    self.notices.ended(row, record)
            for blob in blobs_of(record):
                self._rows.refer(blob.digest, row, seq)
        self._rows.save_journal(row)

    def _end_waits(self, row: JournalRow, run: str) -> None:
        """Waits whose name begins with that of a run belong to it: nobody needs them when it has ended."""
        for name in self._rows.open_waits(row, f"{segment(run)}/"):
            found = self._rows.wait(row, name)
            if found is not None:
                self._rows.save_wait(row, replace(found, state="cancelled"))

    def accept(self, asked: Accept) -> Receipt:
        made = asked.opening if self._rows.journal(asked.journal) is None else None
        if made is not None:
            self.pruning.refuse(asked.journal, made, asked.digest)
            self._check_under(asked)
            self._check_youngest(asked, made)
            # A journal that is made here has an empty inbox: nothing but this can refuse the input.
            self._require_blobs(asked.refs)
        row = self._row(asked.journal) if asked.opening is None else self._opened(asked.opening)
        earlier = decisions.decide_accept(row, self._rows.input_by_key(row, asked.key), asked)
        if earlier is None and asked.admission is not None:
            earlier = self._admit(row, asked, asked.admission)
        if earlier is not None:
            return earlier
        self._check_under(asked)
        if not asked.urgent:
            decisions.check_room(row, self._rows.count_pending(row), self._limits)
        self._require_blobs(asked.refs)
        row.inputs += 1
        for digest in asked.refs:
            self._rows.refer(digest, row, 0)  # kept while the input waits; its record refers to it afterwards
        counted = asked.admission is not None
        found = InputRow(row.inputs, asked.key, asked.digest, asked.body, self._now.wall, counted=counted)
        self._rows.add_input(row, found)
        if made is not None:
            self._made[row.id] = NewJournal(
                self._made[row.id].opened, Input(found.input, found.key, found.body, found.at)
            )
            if asked.spend is not None:
                self._rows.spending.add(row.agent, day_of(self._now.wall), asked.spend)
        self._wake(row)
        return Receipt(row.id, row.inputs, asked.key, self._now.wall, head=row.head)

    def _check_under(self, asked: Accept) -> None:
        """Whoever is being stopped begins nothing more: what was begun before is known to whoever stops it."""
        if asked.under is not None:
            journal, key = asked.under
            above = self._rows.journal(journal)
            if above is not None and self._rows.input_by_key(above, key) is not None:
                raise StopRequested(journal)

    def _check_youngest(self, asked: Accept, opening: OpenJournal) -> None:
        """What was decided for a journal that is made here still holds: no other one came in between."""
        if asked.youngest is not None:
            youngest = self._rows.youngest(opening.role or "", opening.session or "")
            if youngest != asked.youngest:
                raise SiblingBegun(asked.journal, youngest)

    def _require_blobs(self, digests: Sequence[str]) -> None:
        for digest in digests:
            if not self._rows.has_blob(digest):
                raise BlobMissing(digest)

    def _admit(self, row: JournalRow, asked: Accept, terms: admission.AdmissionWindow) -> Receipt | None:
        """The receipt of an input that said the same a moment ago; None when the new one is taken in."""
        now = self._now.wall
        if terms.duplicates != "allow":
            first, last = admission.window_around(now, terms.duplicate_window_ms)
            same = self._rows.counted_input(row, asked.digest, first, last)
            receipt = admission.decide_duplicate(row, same, terms)
            if receipt is not None:
                if not asked.unnamed:  # the same key is the same input, also when the window has passed
                    self._rows.add_alias(row, asked.key, receipt.input)
                return receipt
        if terms.per_window is not None:
            span = admission.window_around(now, terms.window_ms)
            admission.check_rate(row, terms, self._rows.counted_at(row, *span, terms.per_window))
        return None

    def open_wait(self, asked: OpenWait) -> Wait:
        row = self._row(asked.journal)
        found = self._rows.wait(row, asked.name)
        wait = decisions.decide_open_wait(row, found, asked, self._now.wall)
        if wait is not None:
            self._rows.save_wait(row, wait)
            return wait
        return found  # pyright: ignore[reportReturnType]  # None means that it is there already

    def settle_wait(self, asked: SettleWait) -> Settlement:
        row = self._row(asked.journal)
        found = self._rows.wait(row, asked.name)
        stop = decisions.stop_before_answer(row, found, asked)
        stopped = stop is not None and self._rows.input_by_key(row, stop) is not None
        if stopped:  # its turn is to be stopped: no answer counts any more
            asked = replace(asked, state="cancelled", rule=None)
        settlement = decisions.decide_settle(row, found, asked, self._now)
        if stopped:
            settlement = replace(settlement, won=False)
        if settlement.won and asked.rule is not None:  # first: it may be refused
            settlement = replace(settlement, rule=self.rules.add(asked.rule)[0])
        if settlement.wait != found:
            self._rows.save_wait(row, settlement.wait)
        if decisions.wakes_waiting(row, found, settlement.wait):
            self._wake(row)
        return settlement

    def settle_next(self, asked: SettleNext) -> Settlement:
        row = self._row(asked.journal)
        memo = None if asked.key is None else decisions.signal_memo_wait(row, asked)
        known = None if memo is None else self._rows.wait(row, memo.name)
        if memo is not None and known is not None:
            return decisions.decide_repeated_signal(row, known, memo, asked)
        for name in sorted(self._rows.open_waits(row, asked.prefix)):
            settlement = self._resolve(asked, name)
            if settlement.won:  # the others had to be answered earlier
                break
        else:
            settlement = self._resolve(asked, decisions.next_wait_name(asked, self._rows.last_wait(row, asked.prefix)))
        if memo is not None:
            self._rows.save_wait(row, memo)
        return settlement

    def _resolve(self, asked: SettleNext, name: str) -> Settlement:
        return self.settle_wait(SettleWait(asked.journal, name, "resolved", asked.payload))

    def revoke_waits(self, asked: RevokeWaits) -> int:
        row = self._row(asked.journal)
        if row.status == "waiting":
            self._wake(row)  # nobody can answer any more: the run must learn of it
        if asked.name is not None:
            self._rows.save_wait(row, Wait(row.id, asked.name, "revoked"))
            return 1
        row.revoked = True
        self._rows.save_journal(row)
        return self._rows.revoke_waits(row)

    def replace_spending(self, asked: ReplaceSpending) -> None:
        newer = self._rows.last_position() - asked.position
        if newer:
            raise StoreBusy(f"{newer:,} records came after those of which the spending was counted")
        self._rows.spending.replace(asked.rows)

    def count_older(self, asked: CountOlder) -> bool:
        if self._rows.spending.since() != asked.since:
            return False
        self._rows.spending.complete(asked.rows)
        return True

    def note_refusal(self, asked: NoteRefusal) -> RefusedInput:
        return self._rows.admission.note(asked, self._now.wall)

    def set_terms(self, asked: SetTerms) -> None:
        self._rows.admission.set_terms(asked.agent, asked.body, self._now.wall)

    def mark(self, _: ReadPosition) -> int:
        return self._rows.last_position()

    def put_blob(self, asked: PutBlob) -> Blob:
        self._rows.put_blob(asked.digest, asked.body, self._now.wall)
        return Blob(asked.digest, len(asked.body))

    def quarantine(self, asked: Quarantine) -> None:
        row = self._row(asked.journal)
        if row.quarantine is None:
            row.quarantine = asked.reason
            self.notices.bury(row)
            self._rows.save_journal(row)


def _woken(rows: Rows, row: JournalRow) -> None:
    row.wakes += 1
    rows.save_wakes(row)


_HANDLERS: Final[dict[type[Command[Any]], Callable[[Transaction, Any], Any]]] = {
    OpenJournal: Transaction.open_journal,
    Fork: Transaction.fork,
    Claim: Transaction.claim,
    Renew: Transaction.renew,
    Release: Transaction.release,
    Append: Transaction.append,
    Accept: Transaction.accept,
    OpenWait: Transaction.open_wait,
    SettleWait: Transaction.settle_wait,
    SettleNext: Transaction.settle_next,
    RevokeWaits: Transaction.revoke_waits,
    ReadPosition: Transaction.mark,
    PutBlob: Transaction.put_blob,
    ShareAttachment: lambda transaction, asked: transaction.attachments.share(asked),
    PutAttachment: lambda transaction, asked: transaction.attachments.put(asked),
    CollectBlobs: lambda transaction, asked: transaction.attachments.collect(asked),
    Quarantine: Transaction.quarantine,
    ReplaceSpending: Transaction.replace_spending,
    CountOlder: Transaction.count_older,
    NoteRefusal: Transaction.note_refusal,
    SetTerms: Transaction.set_terms,
    Notify: lambda transaction, asked: transaction.notices.notify(asked),
    DeliverNotifications: lambda transaction, asked: transaction.notices.carry(asked),
    SettleNotification: lambda transaction, asked: transaction.notices.settle(asked),
    Ripen: lambda transaction, asked: transaction.notices.ripen(asked),
    PurgeNotifications: lambda transaction, asked: transaction.notices.purge(asked),
    PutMemory: lambda transaction, asked: transaction.memories.put(asked),
    DeleteMemory: lambda transaction, asked: transaction.memories.delete(asked),
    PurgeMemory: lambda transaction, asked: transaction.memories.purge(asked),
    PruneJournal: lambda transaction, asked: transaction.pruning.prune(asked),
    TrimJournal: lambda transaction, asked: transaction.pruning.trim(asked),
    EmptyInputs: lambda transaction, asked: transaction.pruning.empty_inputs(asked),
    RemoveWaits: lambda transaction, asked: transaction.pruning.remove_waits(asked),
    AddRule: lambda transaction, asked: transaction.rules.add(asked),
    RemoveRule: lambda transaction, asked: transaction.rules.remove(asked),
}


def as_journal(row: JournalRow, metadata: dict[str, Any] | None = None) -> Journal:
    """The line that the lists show for a journal."""
    return Journal(
        *(row.id, row.kind, row.agent, row.status, row.head, row.created, row.updated, row.quarantine),
        *(row.parent, row.parent_seq, row.role, row.session, metadata or {}),
    )


def broken_by(error: Exception) -> HoldfastError:
    """What a caller is told whose command failed in a way it must not."""
    if isinstance(error, HoldfastError):
        return error
    broken = InvariantBroken(f"a command failed in a way it must not: {error!r}")
    broken.__cause__ = error
    return broken
