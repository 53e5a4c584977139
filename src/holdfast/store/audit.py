"""The audit of a store: checks every invariant over the raw rows and lists all violations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from holdfast import records
from holdfast.effects.keys import segment
from holdfast.errors import RecordUnreadable
from holdfast.store.attachments import audit_attachments
from holdfast.store.memories import audit_memories
from holdfast.store.notifications import audit_notifications
from holdfast.store.retention import audit_tombstones
from holdfast.store.spending import SpendingAudit, SpendOf
from holdfast.store.waits import audit_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from holdfast.store.contract import JournalRow, RawRecord, Reader


T = TypeVar("T")
Finding: TypeAlias = tuple[str, str, str]


class Violation(msgspec.Struct, frozen=True):
    """One violated invariant: the rule, the place, and the finding."""

    rule: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.detail}"


def audit(
    reader: Reader,
    progress: Callable[[int, int], None] | None = None,
    spend_of: SpendOf | None = None,
    enough: Callable[[], str | None] = lambda: None,
) -> list[Violation]:
    """Every violated invariant of the store.

    `progress` gets (journals done, all journals). With `spend_of`, the spending of each record, it compares stored
    spending with the records. `enough` answers a reason to stop, or None. A violation of the rule "limit" names the
    sections that were not audited because of that, or because of `MOST_ROWS` or `MOST_FOUND`.
    """
    look = _AuditFindings(enough)
    blobs = dict(look.each("attachments", reader.raw_blobs()))
    unsound = (digest for digest, ok in blobs.items() if not ok)
    look.take("attachments", (("blob", digest, "the bytes do not match the digest") for digest in unsound))
    references = set(look.each("references to attachments", reader.raw_references()))
    inputs: dict[str, dict[int, bool]] = {}
    damaged: list[Finding] = []
    for journal, row, sound in look.each("inputs", reader.raw_inputs()):
        inputs.setdefault(journal, {})[row.input] = row.pending
        if not sound:
            damaged.append(("checksum", f"{journal}/input {row.input}", "the input does not match its digest"))
    rows = list(look.each("journals", reader.raw_journals()))
    by_id = {row.id: row for row in rows}
    ended: dict[str, set[str]] = {}
    tally = SpendingAudit(reader, spend_of)
    for done, row in enumerate(rows):
        if look.over is not None:
            look.left.append(f"{len(rows) - done:,} of {len(rows):,} journals")
            break
        if progress is not None:
            progress(done, len(rows))
        audited = JournalAudit(row, blobs, references, inputs.get(row.id, {}), tally)
        look.take(f"records of {row.id}", audited.run(reader.raw_records(row.id)))
        ended[row.id] = audited.ended
        look.take("forks", _audit_fork(row, by_id))
    look.take("references to attachments", _audit_references(references, blobs))
    look.take("inputs", damaged)
    look.take("waits", _audit_waits(reader, {row.id: row.head for row in rows}))
    look.take("inputs", _audit_aliases(reader, inputs))
    look.take("notifications", audit_notifications(reader, rows, inputs, ended))
    look.take("memory", audit_memories(reader))
    look.take("rules", audit_rules(reader))
    look.take("attachments", audit_attachments(reader, blobs))
    look.take("tombstones", audit_tombstones(reader, rows, tally))
    look.take("spending", tally.findings())
    return look.result()


MOST_ROWS: Final = 20_000_000
"""Most rows that an audit examines."""
MOST_FOUND: Final = 10_000
"""Most violations that an audit lists."""
_BROKEN: Final = (TypeError, ValueError, AttributeError, KeyError, OverflowError, RecursionError)
"""Errors that damaged rows can cause."""


class _AuditFindings:
    """The violations within the limits, and the sections that were not examined."""

    def __init__(self, enough: Callable[[], str | None]) -> None:
        self._enough = enough
        self._found: list[Violation] = []
        self._rows = 0
        self.over: str | None = None
        self.left: list[str] = []

    def each(self, section: str, items: Iterable[T]) -> Iterator[T]:
        """The items up to the limits. An unreadable row ends its section and becomes a violation."""
        left = iter(items)
        while True:
            self.over = self.over or self._limit()
            try:
                if self.over is not None:
                    self.left.append(section)
                    return
                item = next(left)
            except StopIteration:
                return
            except Exception as error:
                self.over = self._limit()
                if self.over is not None:  # the read itself was stopped
                    self.left.append(section)
                    return
                if not isinstance(error, _BROKEN):
                    raise
                self._found.append(Violation("unreadable", section, f"{type(error).__name__}: {error}"))
                return
            self._rows += 1
            yield item

    def take(self, section: str, findings: Iterable[Finding]) -> None:
        for finding in self.each(section, findings):
            self._found.append(Violation(*finding))

    def _limit(self) -> str | None:
        if self._rows >= MOST_ROWS:
            return f"{MOST_ROWS:,} rows"
        return f"{MOST_FOUND:,} problems" if len(self._found) >= MOST_FOUND else self._enough()

    def result(self) -> list[Violation]:
        if self.over is None:
            return self._found
        left = ", ".join(dict.fromkeys(self.left))
        return [
            Violation("limit", f"stopped after {self.over}", f"not looked at, or not to the end: {left}"),
            *self._found,
        ]


def _audit_fork(row: JournalRow, by_id: dict[str, JournalRow]) -> Iterator[Finding]:
    """A fork continues an existing record of its parent, and is younger than its parent."""
    above = None if row.parent is None else by_id.get(row.parent)
    if above is not None and above.no >= row.no:
        yield "fork", row.id, f"is a fork of {row.parent!r}, which was made after it"
    if row.parent is not None and not 1 <= row.parent_seq <= (0 if above is None else above.head):
        yield "fork", row.id, f"goes on after record {row.parent_seq} of {row.parent!r}, which is not there"


def _audit_references(references: set[tuple[str, str, int]], blobs: dict[str, bool]) -> Iterator[Finding]:
    for digest, journal, seq in sorted(references):
        if digest not in blobs:
            yield "blob", f"{journal}/{seq}", f"refers to {digest}, which is not there"


def _audit_waits(reader: Reader, heads: dict[str, int]) -> Iterator[Finding]:
    for wait, sound in reader.raw_waits():
        where = f"{wait.journal}/wait {wait.name}"
        if not sound:
            yield "checksum", where, "the wait does not match its checksum or its seal"
        if wait.consumed and (wait.state not in {"resolved", "revoked"} or wait.consumed > heads.get(wait.journal, 0)):
            yield "wait", where, f"is {wait.state}, but was used by record {wait.consumed}"


def _audit_aliases(reader: Reader, inputs: dict[str, dict[int, bool]]) -> Iterator[Finding]:
    for journal, key, number in reader.raw_aliases():
        if number not in inputs.get(journal, {}):
            yield "input", f"{journal}/key {key}", f"refers to input {number}, which is missing"


@dataclass(slots=True)
class JournalAudit:
    """The audit of one journal, fed with its records."""

    row: JournalRow
    blobs: dict[str, bool]
    references: Container[tuple[str, str, int]]
    inputs: dict[int, bool]
    tally: SpendingAudit | None = None
    found: list[Finding] = field(default_factory=list[Finding])
    seq: int = 0
    epoch: int = 0
    status: records.Status = "idle"
    updated: int = 0
    intended: set[str] = field(default_factory=set[str])
    settled: set[str] = field(default_factory=set[str])
    started: set[str] = field(default_factory=set[str])
    ended: set[str] = field(default_factory=set[str])
    groups: set[str] = field(default_factory=set[str])
    closed_scopes: set[str] = field(default_factory=set[str])
    admitted: set[int] = field(default_factory=set[int])
    opened: records.Opened | None = None
    agent: str | None = None
    """The agent by its records."""

    def run(self, raw: Iterator[RawRecord]) -> Iterator[Finding]:
        if self.row.base:  # records up to `base` were trimmed, with the agent; no run in them continues after it
            self.seq, self.agent = self.row.base, self.row.agent
        if self.tally is not None:
            self.tally.begin(self.row)
        for entry in raw:
            if entry.seq != self.seq + 1:
                self._report("gap", entry.seq, f"follows record {self.seq}")
            if entry.epoch < self.epoch:
                self._report("epoch", entry.seq, f"epoch {entry.epoch} after {self.epoch}")
            self.seq, self.epoch = entry.seq, max(self.epoch, entry.epoch)
            if not entry.sound:
                self._report("checksum", entry.seq, "the record does not match its checksum")
                continue
            try:
                record = records.decode(entry.body)
                # A handoff record still belongs to the old agent, an opening record to the new one.
                agent = record.agent if isinstance(record, records.Opened) else self.agent
                self._audit_lists(entry.seq, record)
                self._audit_story(entry.seq, record)
                if self.tally is not None:
                    self.tally.add(agent, entry.pos, record)
            except RecordUnreadable as error:
                self._report("unreadable", entry.seq, error.reason)
        self._audit_row()
        yield from self.found

    def _report(self, rule: str, seq: int, detail: str) -> None:
        self.found.append((rule, f"{self.row.id}/{seq}", detail))

    def _audit_lists(self, seq: int, record: records.Record) -> None:
        if (seq == 1) != isinstance(record, records.Opened):
            self._report("opening", seq, "a journal begins with exactly one 'opened' record")
        self.status = records.next_status(self.status, record)
        if records.touches_lists(record):
            self.updated = record.at
        for blob in records.blobs_of(record):
            if blob.digest not in self.blobs:
                self._report("blob", seq, f"refers to {blob.digest}, which is not there")
            if (blob.digest, self.row.id, seq) not in self.references:
                self._report("blob", seq, f"its reference to {blob.digest} is not listed")

    def _audit_story(self, seq: int, record: records.Record) -> None:
        match record:
            case records.Opened():
                self.opened = self.opened or record
                self.agent = self.opened.agent
            case records.Handed(key=key):
                if record.by != self.agent:
                    self._report("handoff", seq, f"it was handed over by {record.by!r}, but {self.agent!r} had it")
                if key not in self.settled:
                    self._report("handoff", seq, f"{key!r} asked for it, and has no outcome")
                self.agent = record.agent
            case records.Started(run=run) | records.Resumed(run=run):
                if run in self.ended:
                    self._report("terminal", seq, f"the run {run!r} goes on, but it had ended")
                self.started.add(run)
            case records.Intended(key=key):
                self._run_is_open(seq, key)
                self._once(self.intended, key, "intent", seq, f"{key!r} was intended before")
                if key in self.settled:
                    self._report("intent", seq, f"{key!r} had an outcome before it was intended")
            case records.Done() | records.Failed() | records.Unknown() | records.Cancelled():
                key = record.key
                self._run_is_open(seq, key)
                if isinstance(record, records.Cancelled) and key in (self.settled | self.groups):
                    return  # the code was cancelled before it saw the outcome
                self._once(self.settled, key, "outcome", seq, f"{key!r} has two outcomes")
                if getattr(record, "ask", None) is None and key not in self.intended:
                    self._report("intent", seq, f"{key!r} has an outcome, but was neither asked nor intended")
            case records.Ended():
                self._end(seq, record)
            case records.Grouped(key=key):
                self.groups.add(key)
                if key in self.settled | self.intended:
                    self._report("outcome", seq, f"{key!r} is both a group and an effect")
            case records.Admitted(input=number):
                if number in self.admitted:
                    self._report("input", seq, f"input {number} was admitted before")
                self.admitted.add(number)
                if self.inputs.get(number, True):
                    self._report("input", seq, f"input {number} is missing, or still pending")
            case _:
                pass

    def _run_is_open(self, seq: int, key: str) -> None:
        if key.partition("/")[0] in self.closed_scopes:
            self._report("terminal", seq, f"{key!r} belongs to a run that had ended")

    def _end(self, seq: int, record: records.Ended) -> None:
        self._once(self.ended, record.run, "terminal", seq, f"the run {record.run!r} ended before")
        if record.unstarted and record.run in self.started:
            self._report("terminal", seq, f"the run {record.run!r} is said to end before it began, but it had begun")
        scope = segment(record.run)
        self.closed_scopes.add(scope)
        for key in sorted(self.intended - self.settled):
            parts = key.split("/")
            below_settled = any("/".join(parts[:n]) in self.settled for n in range(1, len(parts)))
            if parts[0] == scope and len(parts) > 1 and not below_settled:
                self._report("terminal", seq, f"the run ended, but {key!r} was intended and never settled")

    def _once(self, seen: set[str], key: str, rule: str, seq: int, detail: str) -> None:
        if key in seen:
            self._report(rule, seq, detail)
        seen.add(key)

    def _audit_row(self) -> None:
        row, head, newest = self.row, self.row.head, max(self.inputs, default=0)
        if not 0 <= row.seen <= row.wakes:
            self._report("wakes", head, f"{row.seen} wakes were attended to, but there were {row.wakes}")
        if newest > row.inputs:
            self._report("input", head, f"{row.inputs} inputs were counted, but there is number {newest}")
        if row.wakes < len(self.inputs):
            self._report("wakes", head, f"it was woken {row.wakes} times, but it has {len(self.inputs)} inputs")
        for number, pending in self.inputs.items():
            if not pending and number not in self.admitted and not row.base:
                self._report("input", head, f"input {number} does not wait any more, but was never admitted")
        if head != self.seq:
            self._report("head", head, f"the journal says it ends at {head}, its last record is {self.seq}")
        if row.epoch < self.epoch:
            self._report("epoch", head, f"the lease is at {row.epoch}, a record at {self.epoch}")
        broken = any(rule in {"checksum", "unreadable", "gap"} for rule, _, _ in self.found)
        if self.tally is not None and (broken or head != self.seq):
            self.tally.doubt(row.agent)
            self.tally.doubt(self.agent)
        told = self.updated > 0 or not row.base  # a trimmed journal may have lost its beginning
        if told and not broken and (row.status, row.updated) != (self.status, self.updated):
            self._report("list", head, f"listed as {row.status}, its records say {self.status}")
        if not broken and row.agent != self.agent:
            self._report("list", head, f"listed as one of {row.agent!r}, its records say {self.agent!r}")
        first = self.opened
        if first is not None and (row.parent, row.parent_seq) != (first.parent, first.parent_seq):
            self._report("list", head, f"listed as a fork of {row.parent!r}, its records say {first.parent!r}")
        if first is not None and (row.role, row.session) != (first.role, first.session):
            listed = f"with the role {row.role!r} for {row.session!r}"
            self._report("list", head, f"listed {listed}, its records say {first.role!r} for {first.session!r}")
