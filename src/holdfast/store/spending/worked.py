"""The time in which turns were worked on, by day: what a session spends of it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.spending.contract import DAY_MS, MAX_SPEND, NOTHING, Spend, day_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.records import Record
    from holdfast.turns.stopwatch import Stopwatch


def worked(watch: Stopwatch, record: Record) -> Iterator[tuple[int, int]]:
    """Day and milliseconds. What was before midnight counts for the day on which it began."""
    span = watch.take(record)
    if span is None:
        return
    begun, ended = span
    midnight = day_of(ended) * DAY_MS
    if begun < midnight:
        yield day_of(begun), min(midnight - begun, MAX_SPEND)
        begun = midnight
    if begun < ended:
        yield day_of(ended), ended - begun


def with_time(watch: Stopwatch, added: Iterable[Record], spend: Spend | None) -> Spend | dict[int, Spend] | None:
    """What an append spends, with the time that its records tell."""
    days: dict[int, int] = {}
    last = 0
    for record in added:
        last = record.at
        for day, ms in worked(watch, record):
            days[day] = days.get(day, 0) + ms
    if not days:
        return spend
    today = day_of(last)
    if len(days) == 1 and today in days:
        return (spend or NOTHING) + Spend(wall_ms=min(days[today], MAX_SPEND))
    told = {day: Spend(wall_ms=min(ms, MAX_SPEND)) for day, ms in days.items()}
    if spend is not None:
        told[today] = told.get(today, NOTHING) + spend
    return told
