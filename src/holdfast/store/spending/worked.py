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
    return () if span is None else _by_day(*span)


def _by_day(begun: int, ended: int) -> Sequence[tuple[int, int]]:
    today = day_of(ended)
    midnight = today * DAY_MS
    if begun >= midnight:
        return ((today, ended - begun),)
    before = (day_of(begun), min(midnight - begun, MAX_SPEND))
    return (before, (today, ended - midnight)) if midnight < ended else (before,)


def counted(watch: Stopwatch | None, added: Sequence[Record], spend: Spend | None) -> tuple[tuple[int, Spend], ...]:
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
    told = () if spend is None or spend == NOTHING else ((today, spend),)
    return (*told, *((day, Spend(wall_ms=min(ms, MAX_SPEND))) for day, ms in others.items())) if others else told
