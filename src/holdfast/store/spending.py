"""Spending of each agent, per day and in total, counted in the same commit as the records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from operator import add
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

import msgspec
from msgspec.structs import astuple, replace

from holdfast import records
from holdfast.clock import Stopwatch
from holdfast.errors import BlobCorrupt, InvalidArgument, JournalCorrupt, RecordUnreadable, StoreBusy
from holdfast.names import MAX_INT, check_int
from holdfast.records import Blob, Handed, Opened, Record

if TYPE_CHECKING:
    from holdfast.messages import Usage
    from holdfast.store.contract import JournalRow, Reader
    from holdfast.store.retention import Tombstone
    from holdfast.store.transaction import Transaction


DAY_MS: Final = 86_400_000
MAX_SPEND: Final = 2**40
"""The largest value of one append; millions of such appends still fit into a row."""
_READ_S: Final = 2.0
"""Time after which one read starts no further journal, in seconds."""
_log: Final = logging.getLogger("holdfast")


class Spend(msgspec.Struct, frozen=True, gc=False):
    """Used resources."""

    model_calls: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0
    """Cost of the calls with a known price, in millionths of a dollar."""
    unpriced: int = 0
    """Model calls of unknown price."""
    tasks: int = 0
    """Started tasks."""
    wall_ms: int = 0
    """Working time of turns in milliseconds."""

    @property
    def cost(self) -> float | None:
        """In US dollars; None where a price is not known."""
        return None if self.unpriced else self.cost_micros / 1_000_000

    def __add__(self, other: Spend) -> Spend:
        return Spend(*map(add, astuple(self), astuple(other)))


NO_SPEND: Final = Spend()


def model_spend(usage: Usage, cost: float | None, *, steps: int = 1, calls: int = 1) -> Spend:
    """Spend of model calls, `steps` of which are steps of a turn. Cached tokens count as input."""
    return Spend(
        model_calls=steps,
        input_tokens=_bounded_count(usage.input + usage.cache_read + usage.cache_write),
        output_tokens=_bounded_count(usage.output),
        cost_micros=0 if cost is None else _bounded_count(cost * 1_000_000),
        unpriced=calls if cost is None else 0,
    )


def _bounded_count(said: float) -> int:
    return round(max(0, min(said, MAX_SPEND)))


class DailySpend(NamedTuple):
    """Spending of one agent on one day. `agent` is None for journals without an agent."""

    agent: str | None
    day: int
    """In days since 1970-01-01, UTC."""
    spend: Spend


ReadBlob: TypeAlias = Callable[[Blob], bytes | None]
SpendOf: TypeAlias = Callable[[Record, ReadBlob], Spend | None]
"""Spending of one record, or None. A pure function: the caller reads blobs for it."""


def day_of(at: int) -> int:
    """The day (since 1970-01-01, UTC) of a time in wall milliseconds."""
    return at // DAY_MS if at > 0 else 0


def replace_spending(tx: Transaction, rows: Sequence[DailySpend], position: int) -> None:
    """Replace all counted spending by these rows, if no record came after `position`."""
    newer = tx.rows.last_position() - position
    if newer:
        raise StoreBusy(f"{newer:,} records came after those of which the spending was counted")
    tx.rows.spending.replace(rows)


def count_older(tx: Transaction, rows: Sequence[DailySpend], since: int) -> bool:
    """Add the spending of records up to `since`, which an older schema did not count; False if already done."""
    if tx.rows.spending.since() != since:
        return False
    tx.rows.spending.complete(rows)
    return True


def _by_day(begun: int, ended: int) -> Sequence[tuple[int, int]]:
    today = day_of(ended)
    midnight = today * DAY_MS
    if begun >= midnight:
        return ((today, ended - begun),)
    before = (day_of(begun), min(midnight - begun, MAX_SPEND))
    return (before, (today, ended - midnight)) if midnight < ended else (before,)


def spend_of_append(
    added: Sequence[Record], spend: Spend | None, spans: Iterable[tuple[int, int]]
) -> tuple[tuple[int, Spend], ...]:
    """The spending of an append by day: `spend` on the day of the last record, and the `spans` of working time."""
    today = day_of(added[-1].at)
    worked: dict[int, int] = {}
    for span in spans:
        for day, ms in _by_day(*span):
            worked[day] = worked.get(day, 0) + ms
    if now := min(worked.pop(today, 0), MAX_SPEND):
        spend = Spend(wall_ms=now) if spend is None else replace(spend, wall_ms=spend.wall_ms + now)
    told = () if spend is None or spend == NO_SPEND else ((today, spend),)
    return (*told, *((day, Spend(wall_ms=min(ms, MAX_SPEND))) for day, ms in worked.items())) if worked else told


def spend_by_day(
    added: Iterable[Record], spend_of: SpendOf, read_blob: ReadBlob, watch: Stopwatch | None = None
) -> dict[int, Spend]:
    """Spending of these records by day, as an append counts it. Sessions pass a stopwatch for their working time."""
    days: dict[int, Spend] = {}
    for record in added:
        spend = spend_of(record, read_blob)
        if spend is not None and spend != NO_SPEND:
            day = day_of(record.at)
            days[day] = days.get(day, NO_SPEND) + spend
        span = None if watch is None else watch.take(record)
        for day, ms in () if span is None else _by_day(*span):
            days[day] = days.get(day, NO_SPEND) + Spend(wall_ms=min(ms, MAX_SPEND))
    return days


def sum_by_agent_and_day(spends: Iterable[tuple[str | None, int, Spend]]) -> tuple[DailySpend, ...]:
    """One row for each agent and day."""
    rows: dict[tuple[str | None, int], Spend] = {}
    for agent, day, spend in spends:
        rows[agent, day] = rows.get((agent, day), NO_SPEND) + spend
    return tuple(DailySpend(agent, day, spend) for (agent, day), spend in rows.items() if spend != NO_SPEND)


def fold_spending(
    reader: Reader, spend_of: SpendOf, upto: int, rows: Sequence[JournalRow], *, strict: bool
) -> tuple[list[DailySpend], int]:
    """Spending up to position `upto` of as many journals as one read has time for, and their number.

    Old records never change, so later appends do not matter. A damaged record raises `JournalCorrupt`; if not `strict`,
    it ends the count of its journal instead.
    """
    spends: list[DailySpend] = []
    end = monotonic() + _READ_S
    for number, row in enumerate(rows, 1):
        stone = reader.retention.find(row.id)  # if pruned since, its records are gone
        spends += _spent_in(reader, row, spend_of, upto, strict=strict) if stone is None else _spent_by(stone, upto)
        if monotonic() > end:
            return spends, number
    return spends, len(rows)


def spend_of_pruned(reader: Reader, upto: int, *, strict: bool) -> list[DailySpend]:
    """Spending of pruned journals without a record after `upto`."""
    spends: list[DailySpend] = []
    for stone, sound in reader.retention.raw():
        if sound:
            spends += _spent_by(stone, upto)
        elif strict:
            raise JournalCorrupt(stone.journal, 0, "its tombstone does not match its checksum")
        else:
            _log.warning("what %r spent does not count: its tombstone does not match its checksum", stone.journal)
    return spends


def _spent_by(stone: Tombstone, upto: int) -> list[DailySpend]:
    return [DailySpend(stone.agent, day, spend) for day, spend in stone.spent] if stone.pos <= upto else []


def _spent_in(reader: Reader, row: JournalRow, spend_of: SpendOf, upto: int, *, strict: bool) -> Iterator[DailySpend]:
    """Spending of the records of one journal up to that position."""

    def read_blob(blob: Blob) -> bytes | None:
        return reader.blob(blob.digest)

    def counted(record: Record, read: ReadBlob) -> Spend | None:
        try:
            return spend_of(record, read)
        except (BlobCorrupt, RecordUnreadable, ValueError) as error:  # msgspec's errors are ValueErrors
            if strict:
                raise
            _log.warning("what a record of %r spent can't be told, and does not count: %s", row.id, error)
            return None

    watch = Stopwatch() if row.kind == "session" else None
    agent = row.agent if row.base else None  # a trimmed journal has lost the record with its agent
    for entry in takewhile(lambda entry: entry.pos <= upto, reader.raw_records(row.id)):
        record, reason = None, "it does not match its checksum"
        try:
            record = records.decode(entry.body) if entry.sound else None
        except RecordUnreadable as error:
            reason = error.reason
        if record is None:
            if strict:
                raise JournalCorrupt(row.id, entry.seq, reason)
            _log.warning("what %r spent from record %d on does not count: %s", row.id, entry.seq, reason)
            return
        # A handoff record still belongs to the agent that hands over.
        agent = record.agent if isinstance(record, Opened) else agent
        for day, spend in spend_by_day((record,), counted, read_blob, watch).items():
            yield DailySpend(agent, day, spend)
        agent = record.agent if isinstance(record, Handed) else agent


def spent_in_all(
    reader: Reader, rows: Iterable[JournalRow], spend_of: SpendOf, upto: int
) -> tuple[list[DailySpend], list[str | None]]:
    """Spending of these journals up to a position, and the agents of those with damaged records."""
    spends: list[tuple[str | None, int, Spend]] = []
    unsure: list[str | None] = []
    for row in rows:
        try:
            found = list(_spent_in(reader, row, spend_of, upto, strict=True))
        except (BlobCorrupt, JournalCorrupt, RecordUnreadable, ValueError):
            found = list(_spent_in(reader, row, spend_of, upto, strict=False))
            unsure += {row.agent, *(one.agent for one in found)}
        spends += found
    return list(sum_by_agent_and_day(spends)), unsure


class SpendingAudit:
    """Counts spending during an audit, which reads all records anyway; without `spend_of` it counts nothing."""

    def __init__(self, reader: Reader, spend_of: SpendOf | None) -> None:
        self._reader = reader
        self._spend_of = spend_of
        self._since = reader.spending.since()
        self._counted: dict[tuple[str | None, int], Spend] = {}
        self._unsure: set[str | None] = set()
        self._watch: Stopwatch | None = None

    def begin(self, row: JournalRow) -> None:
        self._watch = Stopwatch() if row.kind == "session" else None

    def add(self, agent: str | None, pos: int, record: Record) -> None:
        """Count a record, unless an older schema appended it without counting."""
        if self._spend_of is not None:
            self.add_days(agent, pos, spend_by_day((record,), self._spend_of, self._read_blob, self._watch).items())

    def add_days(self, agent: str | None, pos: int, days: Iterable[tuple[int, Spend]]) -> None:
        """Count the spending of records up to the position `pos`."""
        for day, spend in days if pos > self._since else ():
            self._counted[agent, day] = self._counted.get((agent, day), NO_SPEND) + spend

    def doubt(self, agent: str | None) -> None:
        """Leave an agent out of the comparison: one of its records is unreadable."""
        self._unsure.add(agent)

    def _read_blob(self, blob: Blob) -> bytes | None:
        try:
            return self._reader.blob(blob.digest)
        except BlobCorrupt:
            return None

    def findings(self) -> Iterator[tuple[str, str, str]]:
        """Violated invariants of the listed spending, also against the records: rule, place, finding."""
        forgotten, unsure = self._reader.spending.forgotten()
        for row in forgotten:
            self.add_days(row.agent, MAX_INT, [(row.day, row.spend)])
        self._unsure.update(unsure)
        days: dict[tuple[str | None, int], Spend] = {}
        wholes: dict[str | None, Spend] = {}
        sums: dict[str | None, Spend] = {}
        for agent, day, spend in self._reader.spending.raw():
            if day is None:
                wholes[agent] = spend
            else:
                days[agent, day] = spend
                sums[agent] = sums.get(agent, NO_SPEND) + spend
        for agent in wholes.keys() | sums.keys():
            whole, summed = wholes.get(agent, NO_SPEND), sums.get(agent, NO_SPEND)
            if whole != summed:
                yield "spending", f"{agent or '(no agent)'}", f"{whole} in all, but its days say {summed}"
        if self._spend_of is None:
            return
        for agent, day in sorted(days.keys() | self._counted.keys(), key=lambda place: (place[0] or "", place[1])):
            listed, recorded = days.get((agent, day), NO_SPEND), self._counted.get((agent, day), NO_SPEND)
            if listed != recorded and agent not in self._unsure:
                yield "spending", f"{agent or '(no agent)'}/day {day}", f"counted {listed}, its records say {recorded}"


# ---- checks of the caller's values ----

_INT: Final = {int}


def spend_by_day_of(given: Spend | Mapping[int, Spend], added: Sequence[Record]) -> tuple[tuple[int, Spend], ...]:
    """The spending of an append by day; a plain `Spend` belongs to the day of the last record."""
    if type(given) is Spend:
        return () if given == NO_SPEND else ((day_of(added[-1].at), check_spend_values(given, MAX_SPEND)),)
    days = cast("object", given if isinstance(given, Mapping) else {day_of(added[-1].at): given})
    counted = [
        (check_int("day", day), check_spend_values(spend, MAX_SPEND))
        for day, spend in cast("Mapping[int, Spend]", days).items()
    ]
    return tuple((day, spend) for day, spend in counted if spend != NO_SPEND)


def check_spend_values(spend: Spend, most: int) -> Spend:
    """Check a spend; raises for an invalid count."""
    if type(spend) is not Spend:
        raise InvalidArgument("spend", spend, "a Spend, or one for each day")
    counts = astuple(spend)
    if set(map(type, counts)) != _INT or min(counts) < 0 or max(counts) > most:
        for name, count in zip(Spend.__struct_fields__, counts, strict=True):
            check_int(f"spend: {name}", count, most=most)
    return spend
