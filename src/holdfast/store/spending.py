"""Spending: what each agent has used up, a day and in all, counted in the commits that hold the records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, cast

import msgspec
from msgspec.structs import astuple, replace

from holdfast import records
from holdfast.errors import BlobCorrupt, InvalidArgument, JournalCorrupt, JournalMissing, RecordUnreadable
from holdfast.names import check_id, check_int
from holdfast.records import Blob, Handed, Opened, Record
from holdfast.store.calls import Calls
from holdfast.store.contract import Command
from holdfast.turns.state import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.store.contract import JournalRow, RawRecord, Reader
    from holdfast.store.retention import Tombstone


DAY_MS: Final = 86_400_000
MAX_SPEND: Final = 2**40
"""The most that one append may count of anything; millions of such appends still fit into a row."""


class Spend(msgspec.Struct, frozen=True, gc=False):
    """What was used up."""

    model_calls: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0
    """In millionths of a dollar, of the calls whose price is known."""
    unpriced: int = 0
    """Model calls of unknown price."""
    tasks: int = 0
    """Tasks that were taken in."""
    wall_ms: int = 0
    """Milliseconds in which turns of sessions were worked on."""

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.model_calls + other.model_calls,
            self.tool_calls + other.tool_calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_micros + other.cost_micros,
            self.unpriced + other.unpriced,
            self.tasks + other.tasks,
            self.wall_ms + other.wall_ms,
        )


NO_SPEND: Final = Spend()


class DailySpend(NamedTuple):
    """What one agent spent on one day. `agent` is None for journals that have no agent."""

    agent: str | None
    day: int
    """In days since 1970-01-01, UTC."""
    spend: Spend


ReadBlob: TypeAlias = Callable[[Blob], bytes | None]
SpendOf: TypeAlias = Callable[[Record, ReadBlob], Spend | None]
"""What one record says was spent; None when it says nothing of the kind. Pure: blobs are read for it."""


def day_of(at: int) -> int:
    """The day (since 1970-01-01, UTC) of a time in wall milliseconds."""
    return at // DAY_MS if at > 0 else 0


class ReplaceSpending(Command[None], frozen=True):
    """Put these rows in the place of all that was counted, if no record came after `position`."""

    rows: tuple[DailySpend, ...]
    position: int


class CountOlder(Command[bool], frozen=True):
    """Add what the records up to `since` spent, which an older schema wrote; False when somebody has done so."""

    rows: tuple[DailySpend, ...]
    since: int


class SpendingRows(Protocol):
    """Spending inside a transaction."""

    def add(self, agent: str | None, day: int, spend: Spend) -> None:
        """Count it for the day and for the whole."""
        ...

    def replace(self, rows: Sequence[DailySpend]) -> None:
        """Drop all that was counted and keep these, counted from the first record on."""
        ...

    def since(self) -> int:
        """The position after which records are counted."""
        ...

    def complete(self, rows: Sequence[DailySpend]) -> None:
        """Count these as well: with them, all is counted from the first record on."""
        ...


class SpendingReader(Protocol):
    """Spending as it can be read."""

    def spent(self, agent: str | None, day: int | None) -> Spend:
        """Of one day, or of all days."""
        ...

    def since(self) -> int:
        """The position after which records are counted; above 0 where older ones come from an older schema."""
        ...

    def raw(self) -> Iterator[tuple[str | None, int | None, Spend]]:
        """All rows; the day is None in the row of the whole."""
        ...


def working_time_by_day(watch: Stopwatch, record: Record) -> Sequence[tuple[int, int]]:
    """Day and milliseconds. What was before midnight counts for the day on which it began."""
    span = watch.take(record)
    return () if span is None else _by_day(*span)


def _by_day(begun: int, ended: int) -> Sequence[tuple[int, int]]:
    today = day_of(ended)
    midnight = today * DAY_MS
    if begun >= midnight:
        return ((today, ended - begun),)
    before = (day_of(begun), min(midnight - begun, MAX_SPEND))
    return (before, (today, ended - midnight)) if midnight < ended else (before,)


def spend_of_append(
    watch: Stopwatch | None, added: Sequence[Record], spend: Spend | None
) -> tuple[tuple[int, Spend], ...]:
    """What an append counts, by day: what its records say was used, on the day of the last, and the time they tell."""
    today = day_of(added[-1].at)
    midnight, now = today * DAY_MS, 0
    others: dict[int, int] = {}
    if watch is not None:
        for record in added:
            span = watch.take(record)
            if span is None:
                continue
            begun, ended = span
            if begun >= midnight and ended < midnight + DAY_MS:
                now += ended - begun
                continue
            for day, ms in _by_day(begun, ended):
                others[day] = others.get(day, 0) + ms
    if others:
        now += others.pop(today, 0)
    if now:
        now = min(now, MAX_SPEND)
        spend = Spend(wall_ms=now) if spend is None else replace(spend, wall_ms=spend.wall_ms + now)
    told = () if spend is None or spend == NO_SPEND else ((today, spend),)
    return (*told, *((day, Spend(wall_ms=min(ms, MAX_SPEND))) for day, ms in others.items())) if others else told


_log: Final = logging.getLogger("holdfast")
_READ_S: Final = 2.0
"""How long one read goes on to the next journal, in seconds: no read may take long."""


def spend_by_day(
    added: Iterable[Record], spend_of: SpendOf, read_blob: ReadBlob, watch: Stopwatch | None = None
) -> dict[int, Spend]:
    """What these records say was spent, by day: what an append of them counts. In sessions, a stopwatch runs along."""
    days: dict[int, Spend] = {}
    for record in added:
        spend = spend_of(record, read_blob)
        if spend is not None and spend != NO_SPEND:
            day = day_of(record.at)
            days[day] = days.get(day, NO_SPEND) + spend
        for day, ms in () if watch is None else working_time_by_day(watch, record):
            days[day] = days.get(day, NO_SPEND) + Spend(wall_ms=min(ms, MAX_SPEND))
    return days


def sum_by_agent_and_day(spends: Iterable[tuple[str | None, int, Spend]]) -> tuple[DailySpend, ...]:
    """One row for each agent and day."""
    rows: dict[tuple[str | None, int], Spend] = {}
    for agent, day, spend in spends:
        rows[agent, day] = rows.get((agent, day), NO_SPEND) + spend
    return tuple(DailySpend(agent, day, spend) for (agent, day), spend in rows.items() if spend != NO_SPEND)


def fold_spending(reader: Reader, spend_of: SpendOf, *, strict: bool = True) -> tuple[DailySpend, ...]:
    """What all records of the store say was spent. One that can't be trusted is a `JournalCorrupt`.

    If not `strict`, it is the end of what is counted of its journal.
    """
    alive = (
        (agent, day, spend)
        for row in reader.raw_journals()
        for agent, day, spend in _spent_in(reader, row, spend_of, strict=strict)
    )
    return sum_by_agent_and_day((*alive, *_pruned(reader, strict=strict)))


def spend_of_pruned(reader: Reader, since: int) -> list[tuple[str | None, int, Spend]]:
    """What journals spent that were pruned and had no record after `since`."""
    stones = [stone for stone, sound in reader.pruning.raw() if sound and stone.pos <= since]
    return [(stone.agent, day, spend) for stone in stones for day, spend in stone.spent]


def fold_older_spending(
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
        for day, spend in spend_by_day((record,), counting, lambda blob: reader.blob(blob.digest), watch).items():
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


class SpendingAudit:
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
        days = spend_by_day((record,), self._spend_of, self._read_blob, self._watch)
        if pos > self._since:
            self._count(agent, days.items())

    def _count(self, agent: str | None, days: Iterable[tuple[int, Spend]]) -> None:
        for day, spend in days:
            self._counted[agent, day] = self._counted.get((agent, day), NO_SPEND) + spend

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

    def rows(self) -> tuple[Sequence[DailySpend], set[str | None]]:
        """What was counted, and the agents of which not all is known."""
        return sum_by_agent_and_day((*place, spend) for place, spend in self._counted.items()), self._unsure


class SpendingCalls(Calls):
    """Spending: what each agent has used up."""

    async def spent(self, agent: str | None, day: int | None = None) -> Spend:
        """What the agent has used up on one day (since 1970-01-01, UTC), or in all; None is journals without agent.

        Counted in the same commit as the records. In a store that comes from an older schema, what was recorded before
        it was brought up to date counts only after `count_older_spending`; a runtime that drives begins with that.
        """
        if agent is not None:
            check_id("agent", agent)
        if day is not None:
            check_int("day", day)
        return await self._backend.read(lambda reader: reader.spending.spent(agent, day))

    async def count_older_spending(self, spend_of: SpendOf) -> bool:
        """Count the records that an older schema wrote and nobody has counted; whether there were some.

        One commit: whoever is killed before it counts again. What others record meanwhile is counted as it comes. In a
        journal that can't be trusted, the records up to the first bad one count.
        """
        since = await self._backend.read(lambda reader: reader.spending.since())
        if not since:
            return False
        left, counted = await self._backend.read(lambda reader: (reader.raw_journals(), spend_of_pruned(reader, since)))
        while left:
            some, number = await self._backend.read(lambda reader: fold_older_spending(reader, spend_of, since, left))  # noqa: B023
            counted = [(row.agent, row.day, row.spend) for row in sum_by_agent_and_day((*counted, *some))]
            left = left[number:]
        return await self._submit(CountOlder(sum_by_agent_and_day(counted), since))

    async def rebuild_spending(self, spend_of: SpendOf) -> None:
        """Count all records of the store anew, and put that in the place of what was counted.

        `StoreBusy` when something was recorded meanwhile. A journal that can't be trusted is a `JournalCorrupt`:
        without it too little would be counted.
        """
        rows, position = await self._backend.read(
            lambda reader: (fold_spending(reader, spend_of), reader.last_position())
        )
        await self._submit(ReplaceSpending(rows, position))

    async def replace_spending(self, spends: Iterable[tuple[str | None, int, Spend]], *, position: int) -> None:
        """Put (agent, day, spend) in the place of all that was counted, if they tell of all records up to `position`.

        `StoreBusy` when there are records after it.
        """
        check_int("position", position)
        try:
            given = [_checked_row(*row) for row in spends]
        except TypeError:
            raise InvalidArgument("spends", spends, "a list of (agent, day, Spend)") from None
        await self._submit(ReplaceSpending(sum_by_agent_and_day(given), position))


_INT: Final = {int}


def _checked_row(agent: str | None, day: int, spend: Spend) -> tuple[str | None, int, Spend]:
    if agent is not None:
        check_id("agent", agent)
    return agent, check_int("day", day), check_spend_values(spend, 2**50)


def spend_by_day_of(given: Spend | Mapping[int, Spend], added: Sequence[Record]) -> tuple[tuple[int, Spend], ...]:
    """What an append counts, by day. Without a day it is that of the last record."""
    if type(given) is Spend:
        return () if given == NO_SPEND else ((day_of(added[-1].at), check_spend_values(given, MAX_SPEND)),)
    days = cast("object", given if isinstance(given, Mapping) else {day_of(added[-1].at): given})
    counted = [
        (check_int("day", day), check_spend_values(spend, MAX_SPEND))
        for day, spend in cast("Mapping[int, Spend]", days).items()
    ]
    return tuple((day, spend) for day, spend in counted if spend != NO_SPEND)


def check_spend_values(spend: Spend, most: int) -> Spend:
    """The same, if these are numbers that can be counted."""
    if type(spend) is not Spend:
        raise InvalidArgument("spend", spend, "a Spend, or one for each day")
    counts = astuple(spend)
    if set(map(type, counts)) != _INT or min(counts) < 0 or max(counts) > most:
        for name, count in zip(Spend.__struct_fields__, counts, strict=True):
            check_int(f"spend: {name}", count, most=most)
    return spend


def audit_spending(reader: Reader, tally: SpendingAudit | None = None) -> Iterator[tuple[str, str, str]]:
    """Every violated invariant: which, where, and what was found. With a tally, also against the records."""
    days: dict[tuple[str | None, int], Spend] = {}
    wholes: dict[str | None, Spend] = {}
    sums: dict[str | None, Spend] = {}
    for agent, day, spend in reader.spending.raw():
        if day is None:
            wholes[agent] = spend
        else:
            days[agent, day] = spend
            sums[agent] = sums.get(agent, NO_SPEND) + spend
    for agent in wholes.keys() | sums.keys():
        whole, summed = wholes.get(agent, NO_SPEND), sums.get(agent, NO_SPEND)
        if whole != summed:
            yield "spending", f"{agent or '(no agent)'}", f"{whole} in all, but its days say {summed}"
    if tally is not None:
        yield from _against_records(days, tally)


def _against_records(days: dict[tuple[str | None, int], Spend], tally: SpendingAudit) -> Iterator[tuple[str, str, str]]:
    rows, unsure = tally.rows()
    told = {(row.agent, row.day): row.spend for row in rows}
    for agent, day in sorted(days.keys() | told.keys(), key=lambda place: (place[0] or "", place[1])):
        listed, recorded = days.get((agent, day), NO_SPEND), told.get((agent, day), NO_SPEND)
        if listed != recorded and agent not in unsure:
            yield "spending", f"{agent or '(no agent)'}/day {day}", f"counted {listed}, its records say {recorded}"
