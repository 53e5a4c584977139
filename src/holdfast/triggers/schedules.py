"""Schedules: the moments of a cron expression in a time zone, and of an interval. Pure.

A local time skipped by a clock change is due once, at the first minute after the gap; several skipped times are due
together, once. A repeated local time is due once, the first time. Moments are wall milliseconds, and strictly increase
within a schedule.
"""

from __future__ import annotations

import calendar
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

from holdfast.errors.caller import ScheduleInvalid

HORIZON: Final = timedelta(days=45 * 366)
"""Horizon of the search for the next moment: 29 February on a given weekday is at most 40 years away."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_EARLIEST: Final = date(1900, 1, 1)
_LATEST: Final = date(9990, 1, 1)


def check_zone(name: object) -> tzinfo:
    """The time zone of this name; `ScheduleInvalid` without one."""
    if not isinstance(name, str):
        raise ScheduleInvalid(name, f"a time zone is a name such as 'Europe/Rome', not a {type(name).__name__}")
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ScheduleInvalid(
            name, "no time zone has this name here; use a name such as 'Europe/Rome', or install 'tzdata'"
        ) from None


def to_datetime(moment: int, where: tzinfo = UTC) -> datetime:
    """Wall milliseconds as a datetime in a zone."""
    return (_EPOCH + timedelta(milliseconds=moment)).astimezone(where)


def to_wall(moment: datetime) -> int:
    """The wall milliseconds of a datetime with a zone."""
    return (moment - _EPOCH) // _MILLISECOND


class CronSchedule:
    """The moments of a cron expression in a time zone."""

    def __init__(self, cron: CronExpression, where: tzinfo) -> None:
        self._cron, self._where = cron, where
        self._times = [time(hour, minute) for hour in cron.hours for minute in cron.minutes]

    def after(self, moment: int) -> int | None:
        """The first moment after this one; None without one."""
        today = to_datetime(moment, self._where).date()
        # A zone may skip a whole day; its times are due on the day after.
        for day in self._cron.days_between(max(today - 2 * _DAY, _EARLIEST), min(today + HORIZON, _LATEST)):
            at = self._count_until(day, moment)
            if at < len(self._times):
                return self._moment(day, self._times[at])
        return None

    def until(self, moment: int) -> int | None:
        """The last moment up to and including this one; None without one."""
        today = to_datetime(moment, self._where).date()
        for day in self._cron.days_between(min(today + _DAY, _LATEST), max(today - HORIZON, _EARLIEST)):
            at = self._count_until(day, moment)
            if at:
                return self._moment(day, self._times[at - 1])
        return None

    def _count_until(self, day: date, moment: int) -> int:
        """Count the times of a day up to `moment`. Later local times are never earlier moments."""
        return bisect_right(self._times, moment, key=lambda at: self._moment(day, at))

    def _moment(self, day: date, at: time) -> int:
        local = datetime.combine(day, at)
        early = local.replace(tzinfo=self._where)
        found = early.astimezone(UTC)
        if found.astimezone(self._where).replace(tzinfo=None) == local:
            return to_wall(found)
        return to_wall(self._behind_gap(early))

    def _behind_gap(self, missing: datetime) -> datetime:
        """The first existing minute after a local time skipped by a clock change."""
        low = missing.replace(fold=1).astimezone(UTC)  # its offset is that after the gap, so this is before it
        high = missing.astimezone(UTC)
        offset = high.astimezone(self._where).utcoffset()
        while high - low > timedelta(seconds=1):
            middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
            if middle.astimezone(self._where).utcoffset() == offset:
                high = middle
            else:
                low = middle
        local = high.astimezone(self._where)
        seconds = timedelta(seconds=local.second, microseconds=local.microsecond)
        return high + (_MINUTE - seconds if seconds else timedelta())


@dataclass(frozen=True, slots=True)
class IntervalSchedule:
    """Moments at a fixed interval from an anchor, without drift."""

    period: int
    anchor: int

    def after(self, moment: int) -> int:
        return self.anchor + max((moment - self.anchor) // self.period + 1, 1) * self.period

    def until(self, moment: int) -> int | None:
        steps = (moment - self.anchor) // self.period
        return None if steps < 1 else self.anchor + steps * self.period


Schedule: TypeAlias = CronSchedule | IntervalSchedule
"""A sequence of moments in wall milliseconds."""


def moments_between(schedule: Schedule, first: int, last: int, most: int) -> list[int]:
    """The newest `most` moments after `first` and up to `last`, oldest first."""
    found: list[int] = []
    moment = schedule.until(last)
    while moment is not None and moment > first and len(found) < most:
        found.append(moment)
        moment = schedule.until(moment - 1)
    return found[::-1]


MAX_EXPRESSION: Final = 400
"""Longest expression, in characters."""
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"], 1
    )
}
_DAYS: Final = {name: number for number, name in enumerate(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"])}
_SHORTHANDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_DAYS_IN_MONTH: Final = {month: 29 if month == 2 else calendar.monthrange(2023, month)[1] for month in range(1, 13)}


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A parsed cron expression."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    last_day: bool
    """Also the last day of a month."""
    months: frozenset[int]
    weekdays: frozenset[int]
    """From 0, Sunday."""
    either: bool
    """A day counts if either day field matches."""

    def fits(self, day: date) -> bool:
        """True if the expression matches this day."""
        if day.month not in self.months:
            return False
        by_number = day.day in self.days or (self.last_day and (day + timedelta(1)).day == 1)
        by_name = day.isoweekday() % 7 in self.weekdays
        return by_number or by_name if self.either else by_number and by_name

    def days_between(self, first: date, last: date) -> Iterator[date]:
        """Matching days from `first` to `last`, forwards or backwards; skips whole months at once."""
        day, step = first, 1 if first <= last else -1
        while (last - day).days * step >= 0:
            if day.month in self.months:
                if self.fits(day):
                    yield day
                day += timedelta(step)
            elif step > 0:
                day = (day.replace(day=1) + timedelta(32)).replace(day=1)
            else:
                day = day.replace(day=1) - timedelta(1)


class _CronField(NamedTuple):
    what: str
    least: int
    most: int
    names: dict[str, int]


_FIELDS: Final = (
    _CronField("minute", 0, 59, {}),
    _CronField("hour", 0, 23, {}),
    _CronField("day of month", 1, 31, {}),
    _CronField("month", 1, 12, _MONTHS),
    _CronField("day of week", 0, 7, _DAYS),
)


def parse_cron(written: object) -> CronExpression:
    """Parse an expression; `ScheduleInvalid` has the reason."""
    if not isinstance(written, str):
        raise ScheduleInvalid(written, f"it is a {type(written).__name__}, not a text such as '0 6 * * *'")
    if len(written) > MAX_EXPRESSION:
        raise ScheduleInvalid(written, f"it has {len(written):,} characters, the limit is {MAX_EXPRESSION}")
    fields = _SHORTHANDS.get(written.strip().lower(), written).upper().split()
    if len(fields) != len(_FIELDS):
        raise ScheduleInvalid(written, f"it has {len(fields)} fields; minute, hour, day, month and weekday are wanted")
    minutes, hours, days, months, weekdays = (
        {number for part in text.split(",") for number in _range(written, field, part)}
        for field, text in zip(_FIELDS, fields, strict=True)
    )
    found = CronExpression(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days) - {0},
        0 in days,
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        either=not fields[2].startswith("*") and not fields[4].startswith("*"),
    )
    by_number = not found.either and not found.last_day
    if by_number and all(min(found.days) > _DAYS_IN_MONTH[month] for month in months):
        raise ScheduleInvalid(written, "there is no such day in any of these months")
    return found


def _range(written: str, field: _CronField, part: str) -> range:
    """The numbers of a part of a field; 0 means the last day of a month."""
    if part == "L" and field.what == "day of month":
        return range(1)
    span, slash, step_text = part.partition("/")
    step = _number(written, field, step_text, {}) if slash else 1
    if step < 1:
        raise ScheduleInvalid(written, f"a step of the {field.what} is 1 or more")
    if span == "*":
        return range(field.least, field.most + (field.what != "day of week"), step)
    low, dash, high = span.partition("-")
    first = _number(written, field, low, field.names)
    last = _number(written, field, high, field.names) if dash else field.most if slash else first
    if dash and field.what == "day of week" and last == 0 and first > 0:
        last = 7  # FRI-SUN
    for value in (first, last):
        if not field.least <= value <= field.most:
            wanted = f"{value} is no {field.what}; it must be from {field.least} to {field.most}"
            raise ScheduleInvalid(written, wanted)
    if first > last:
        raise ScheduleInvalid(written, f"the range {span} of the {field.what} runs backwards; write it as two")
    return range(first, last + 1, step)


def _number(written: str, field: _CronField, text: str, names: dict[str, int]) -> int:
    if text in names:
        return names[text]
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        raise ScheduleInvalid(written, f"{text!r} is no {field.what}")
    return int(text)
