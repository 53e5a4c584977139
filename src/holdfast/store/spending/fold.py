"""Spending as it follows from the records: to be compared with what was counted, and to be put in its place."""

from __future__ import annotations

import logging
from itertools import takewhile
from time import monotonic
from typing import TYPE_CHECKING, Final

from holdfast import records
from holdfast.errors import BlobCorrupt, JournalCorrupt, JournalMissing, RecordUnreadable
from holdfast.records import Handed, Opened
from holdfast.store.spending.contract import MAX_SPEND, NOTHING, Spend, Spent, day_of
from holdfast.store.spending.worked import worked
from holdfast.turns.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.records import Blob, Record
    from holdfast.store.contract import JournalRow, RawRecord, Reader
    from holdfast.store.pruning.contract import Tombstone
    from holdfast.store.spending.contract import ReadBlob, SpendOf


_log: Final = logging.getLogger("holdfast")
_READ_S: Final = 2.0
"""How long one read goes on to the next journal, in seconds: no read may take long."""


def by_day(
    added: Iterable[Record], spend_of: SpendOf, read_blob: ReadBlob, watch: Stopwatch | None = None
) -> dict[int, Spend]:
    """What these records say was spent, by day: what an append of them counts. In sessions, a stopwatch runs along."""
    days: dict[int, Spend] = {}
    for record in added:
        spend = spend_of(record, read_blob)
        if spend is not None and spend != NOTHING:
            day = day_of(record.at)
            days[day] = days.get(day, NOTHING) + spend
        for day, ms in () if watch is None else worked(watch, record):
            days[day] = days.get(day, NOTHING) + Spend(wall_ms=min(ms, MAX_SPEND))
    return days


def rebuild(spends: Iterable[tuple[str | None, int, Spend]]) -> tuple[Spent, ...]:
    """One row for each agent and day."""
    rows: dict[tuple[str | None, int], Spend] = {}
    for agent, day, spend in spends:
        rows[agent, day] = rows.get((agent, day), NOTHING) + spend
    return tuple(Spent(agent, day, spend) for (agent, day), spend in rows.items() if spend != NOTHING)


def fold(reader: Reader, spend_of: SpendOf, *, strict: bool = True) -> tuple[Spent, ...]:
    """What all records of the store say was spent. One that can't be trusted is a `JournalCorrupt`.

    If not `strict`, it is the end of what is counted of its journal.
    """
    alive = (
        (agent, day, spend)
        for row in reader.raw_journals()
        for agent, day, spend in _spent_in(reader, row, spend_of, strict=strict)
    )
    return rebuild((*alive, *_pruned(reader, strict=strict)))


def pruned_before(reader: Reader, since: int) -> list[tuple[str | None, int, Spend]]:
    """What journals spent that were pruned and had no record after `since`."""
    stones = [stone for stone, sound in reader.pruning.raw() if sound and stone.pos <= since]
    return [(stone.agent, day, spend) for stone in stones for day, spend in stone.spent]


def fold_older(
    reader: Reader, spend_of: SpendOf, since: int, rows: Sequence[JournalRow]
) -> tuple[list[tuple[str | None, int, Spend]], int]:
    """What the records up to `since` of some of these journals say was spent, and how many journals that were.

    As many as one read has time for. Such records are never changed: it does not matter what is recorded meanwhile.
    One that can't be trusted is the end of what is counted of its journal.
    """
    spends: list[tuple[str | None, int, Spend]] = []
    end = monotonic() + _READ_S
    for number, row in enumerate(rows, 1):
        try:
            spends += _spent_in(reader, row, spend_of, strict=False, upto=since)
        except JournalMissing:  # pruned since: its tombstone knows
            stone = reader.pruning.find(row.id)
            spends += () if stone is None else ((stone.agent, day, spend) for day, spend in stone.spent)
        if monotonic() > end:
            return spends, number
    return spends, len(rows)


def _pruned(reader: Reader, *, strict: bool) -> Iterator[tuple[str | None, int, Spend]]:
    """What the records of pruned journals said."""
    for stone, sound in reader.pruning.raw():
        if not sound and strict:
            raise JournalCorrupt(stone.journal, 0, "its tombstone does not match its checksum")
        if not sound:
            _log.warning("what %r spent does not count: its tombstone does not match its checksum", stone.journal)
            continue
        for day, spend in stone.spent:
            yield stone.agent, day, spend


def _spent_in(
    reader: Reader, row: JournalRow, spend_of: SpendOf, *, strict: bool, upto: int | None = None
) -> Iterator[tuple[str | None, int, Spend]]:
    """What one journal spent: who, on which day, how much. With `upto`, by its records up to that position."""
    counting, watch = _counting(spend_of, row, strict=strict), _watch(row)
    first = row.agent if row.base else None  # of one that was trimmed, the record that says so is gone
    raw = reader.raw_records(row.id)
    if upto is not None:
        raw = takewhile(lambda entry: entry.pos <= upto, raw)
    for agent, record in with_agents(_trusted(row.id, raw, strict=strict), first):
        for day, spend in by_day((record,), counting, lambda blob: reader.blob(blob.digest), watch).items():
            yield agent, day, spend


def with_agents(journal: Iterable[Record], first: str | None = None) -> Iterator[tuple[str | None, Record]]:
    """The records of a journal, each with the agent that had it then: who hands it over has it until then."""
    agent = first
    for record in journal:
        agent = record.agent if isinstance(record, Opened) else agent
        yield agent, record
        agent = record.agent if isinstance(record, Handed) else agent


def _counting(spend_of: SpendOf, row: JournalRow, *, strict: bool) -> SpendOf:
    """What a record spends; nothing where it makes no sense and nobody insists on it."""

    def counted(record: Record, read: ReadBlob) -> Spend | None:
        try:
            return spend_of(record, read)
        except (BlobCorrupt, RecordUnreadable, ValueError) as error:  # msgspec's errors are ValueErrors
            if strict:
                raise
            _log.warning("what a record of %r spent can't be told, and does not count: %s", row.id, error)
            return None

    return counted


def _watch(row: JournalRow) -> Stopwatch | None:
    return Stopwatch() if row.kind == "session" else None


def _trusted(journal: str, raw: Iterator[RawRecord], *, strict: bool) -> Iterator[Record]:
    for entry in raw:
        try:
            record = _decoded(journal, entry)
        except JournalCorrupt as error:
            if strict:
                raise
            _log.warning("what %r spent from record %d on does not count: %s", journal, entry.seq, error.reason)
            return
        yield record


def _decoded(journal: str, entry: RawRecord) -> Record:
    if not entry.sound:
        raise JournalCorrupt(journal, entry.seq, "it does not match its checksum")
    try:
        return records.decode(entry.body)
    except RecordUnreadable as error:
        raise JournalCorrupt(journal, entry.seq, error.reason) from error


class Tally:
    """Counts along with an audit, which reads all records anyway."""

    def __init__(self, reader: Reader, spend_of: SpendOf) -> None:
        self._reader = reader
        self._spend_of = spend_of
        self._since = reader.spending.since()
        self._counted: dict[tuple[str | None, int], Spend] = {}
        self._unsure: set[str | None] = set()
        self._watch: Stopwatch | None = None

    def begin(self, row: JournalRow) -> None:
        """The records of this journal follow."""
        self._watch = _watch(row)

    def add(self, agent: str | None, pos: int, record: Record) -> None:
        """Count a record of this agent, if its spending was counted when it was appended."""
        days = by_day((record,), self._spend_of, self._read_blob, self._watch)
        if pos > self._since:
            self._count(agent, days.items())

    def _count(self, agent: str | None, days: Iterable[tuple[int, Spend]]) -> None:
        for day, spend in days:
            self._counted[agent, day] = self._counted.get((agent, day), NOTHING) + spend

    def add_pruned(self, stone: Tombstone) -> None:
        """Count what the records of a pruned journal said."""
        if stone.pos > self._since:
            self._count(stone.agent, stone.spent)

    def doubt(self, agent: str | None) -> None:
        """A record of this agent can't be read: nobody can say what it has spent."""
        self._unsure.add(agent)

    def _read_blob(self, blob: Blob) -> bytes | None:
        try:
            return self._reader.blob(blob.digest)
        except BlobCorrupt:
            return None

    def rows(self) -> tuple[Sequence[Spent], set[str | None]]:
        """What was counted, and the agents of which not all is known."""
        return rebuild((*place, spend) for place, spend in self._counted.items()), self._unsure
