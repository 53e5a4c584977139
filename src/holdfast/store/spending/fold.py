"""Spending as it follows from the records: to be compared with what was counted, and to be put in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import records
from holdfast.errors import BlobCorrupt, JournalCorrupt, RecordUnreadable
from holdfast.store.spending.contract import NOTHING, Spend, Spent, day_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.records import Blob, Record
    from holdfast.store.contract import RawRecord, Reader
    from holdfast.store.pruning.contract import Tombstone
    from holdfast.store.spending.contract import ReadBlob, SpendOf


def by_day(added: Iterable[Record], spend_of: SpendOf, read_blob: ReadBlob) -> dict[int, Spend]:
    """What these records say was spent, by day: what an append of them counts."""
    days: dict[int, Spend] = {}
    for record in added:
        spend = spend_of(record, read_blob)
        if spend is not None and spend != NOTHING:
            day = day_of(record.at)
            days[day] = days.get(day, NOTHING) + spend
    return days


def rebuild(spends: Iterable[tuple[str | None, int, Spend]]) -> tuple[Spent, ...]:
    """One row for each agent and day."""
    rows: dict[tuple[str | None, int], Spend] = {}
    for agent, day, spend in spends:
        rows[agent, day] = rows.get((agent, day), NOTHING) + spend
    return tuple(Spent(agent, day, spend) for (agent, day), spend in rows.items() if spend != NOTHING)


def fold(reader: Reader, spend_of: SpendOf) -> tuple[Spent, ...]:
    """What all records of the store say was spent. One that can't be trusted is a `JournalCorrupt`."""
    alive = (
        (row.agent, day, spend)
        for row in reader.raw_journals()
        for day, spend in by_day(
            _trusted(row.id, reader.raw_records(row.id)), spend_of, lambda blob: reader.blob(blob.digest)
        ).items()
    )
    return rebuild((*alive, *_pruned(reader)))


def _pruned(reader: Reader) -> Iterator[tuple[str | None, int, Spend]]:
    """What the records of pruned journals said."""
    for stone, sound in reader.pruning.raw():
        if not sound:
            raise JournalCorrupt(stone.journal, 0, "its tombstone does not match its checksum")
        for day, spend in stone.spent:
            yield stone.agent, day, spend


def _trusted(journal: str, raw: Iterator[RawRecord]) -> Iterator[Record]:
    for entry in raw:
        if not entry.sound:
            raise JournalCorrupt(journal, entry.seq, "it does not match its checksum")
        try:
            yield records.decode(entry.body)
        except RecordUnreadable as error:
            raise JournalCorrupt(journal, entry.seq, error.reason) from error


class Tally:
    """Counts along with an audit, which reads all records anyway."""

    def __init__(self, reader: Reader, spend_of: SpendOf) -> None:
        self._reader = reader
        self._spend_of = spend_of
        self._since = reader.spending.since()
        self._counted: list[tuple[str | None, int, Spend]] = []
        self._unsure: set[str | None] = set()

    def add(self, agent: str | None, pos: int, record: Record) -> None:
        """Count a record, if its spending was counted when it was appended."""
        if pos > self._since:
            days = by_day((record,), self._spend_of, self._read_blob)
            self._counted.extend((agent, day, spend) for day, spend in days.items())

    def add_pruned(self, stone: Tombstone) -> None:
        """Count what the records of a pruned journal said."""
        if stone.pos > self._since:
            self._counted.extend((stone.agent, day, spend) for day, spend in stone.spent)

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
        return rebuild(self._counted), self._unsure
