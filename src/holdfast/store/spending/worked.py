"""The time in which turns were worked on, by day: what a session spends of it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.store.spending.contract import DAY_MS, MAX_SPEND, NOTHING, Spend, day_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.records import Record
    from holdfast.turns.stopwatch import Stopwatch


def worked(watch: Stopwatch, record: Record) -> Sequence[tuple[int, int]]:
    """Day and milliseconds. What was before midnight counts for the day on which it began."""
    span = watch.take(record)
    if span is None:
        return ()
    begun, ended = span
    today = day_of(ended)
    midnight = today * DAY_MS
    if begun >= midnight:
        return ((today, ended - begun),)
    before = (day_of(begun), min(midnight - begun, MAX_SPEND))
    return (before, (today, ended - midnight)) if midnight < ended else (before,)


def with_time(watch: Stopwatch, added: Sequence[Record], spend: Spend | None) -> Spend | dict[int, Spend] | None:
    """What an append spends, with the time that its records tell."""
    days: dict[int, int] = {}
    for record in added:
        for day, ms in worked(watch, record):
            days[day] = days.get(day, 0) + ms
    if not days:
        return spend
    today = day_of(added[-1].at)
    if len(days) == 1 and today in days:
        ms = min(days[today], MAX_SPEND)
        return Spend(wall_ms=ms) if spend is None else replace(spend, wall_ms=spend.wall_ms + ms)
    told = {day: Spend(wall_ms=min(ms, MAX_SPEND)) for day, ms in days.items()}
    if spend is not None:
        told[today] = told.get(today, NOTHING) + spend
    return told
