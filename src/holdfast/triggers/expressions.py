"""Cron expressions: which minutes of which days are meant. Pure; time zones are for `schedules`.

Five fields: minute, hour, day of month, month, day of week. Each is ``*``, numbers, names (``JAN``, ``MON``), ranges,
lists and steps; ``L`` among the days of the month is the last one. Sunday is 0 and 7. As everywhere, a day must fit one
of the two day fields where both are restricted, and both where one of them begins with ``*``.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from holdfast.errors.triggers import ScheduleInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator

LAST: Final = "L"
MOST: Final = 400
"""Longest expression, in characters."""
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"], 1
    )
}
_DAYS: Final = {name: number for number, name in enumerate(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"])}
_SHORT: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LONGEST: Final = {month: 29 if month == 2 else calendar.monthrange(2023, month)[1] for month in range(1, 13)}


@dataclass(frozen=True, slots=True)
class Cron:
    """What an expression means."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    last_day: bool
    """The last day of a month, too."""
    months: frozenset[int]
    weekdays: frozenset[int]
    """From 0, Sunday."""
    either: bool
    """A day that fits one of the two day fields is enough."""

    def fits(self, day: date) -> bool:
        """Whether anything is to happen on this day."""
        if day.month not in self.months:
            return False
        by_number = day.day in self.days or (self.last_day and (day + timedelta(1)).day == 1)
        by_name = day.isoweekday() % 7 in self.weekdays
        return by_number or by_name if self.either else by_number and by_name

    def days_from(self, first: date, until: date) -> Iterator[date]:
        """The days that fit, forwards; whole months that do not are left out at once."""
        day = first
        while day <= until:
            if day.month not in self.months:
                day = (day.replace(day=1) + timedelta(32)).replace(day=1)
                continue
            if self.fits(day):
                yield day
            day += timedelta(1)

    def days_back(self, first: date, until: date) -> Iterator[date]:
        """The days that fit, backwards."""
        day = first
        while day >= until:
            if day.month not in self.months:
                day = day.replace(day=1) - timedelta(1)
                continue
            if self.fits(day):
                yield day
            day -= timedelta(1)


@dataclass(frozen=True, slots=True)
class _Field:
    what: str
    least: int
    most: int
    names: dict[str, int]


_FIELDS: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)


def parse(written: object) -> Cron:
    """What was written; `ScheduleInvalid` says what is wrong with it."""
    if not isinstance(written, str):
        raise ScheduleInvalid(written, f"it is a {type(written).__name__}, not a text such as '0 6 * * *'")
    if len(written) > MOST:
        raise ScheduleInvalid(written, f"it has {len(written):,} characters, the limit is {MOST}")
    fields = _SHORT.get(written.strip().lower(), written).upper().split()
    if len(fields) != len(_FIELDS):
        raise ScheduleInvalid(written, f"it has {len(fields)} fields; minute, hour, day, month and weekday are wanted")
    minutes, hours, days, months, weekdays = (
        _values(written, field, text) for field, text in zip(_FIELDS, fields, strict=True)
    )
    found = Cron(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days) - {0},
        0 in days,
        frozenset(months),
        frozenset(day % 7 for day in weekdays),
        either=not fields[2].startswith("*") and not fields[4].startswith("*"),
    )
    if not found.either and not found.last_day and not any(min(found.days) <= _LONGEST[month] for month in months):
        raise ScheduleInvalid(written, "there is no such day in any of these months")
    return found


def _values(written: str, field: _Field, text: str) -> set[int]:
    """All numbers that a field stands for; 0 is the last day of a month."""
    found: set[int] = set()
    for part in text.split(","):
        if part == LAST and field.what == "day of month":
            found.add(0)
            continue
        found.update(_range(written, field, part))
    return found


def _range(written: str, field: _Field, part: str) -> range:
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
            wanted = f"from {field.least} to {field.most}"
            raise ScheduleInvalid(written, f"{value} is no {field.what}; it must be {wanted}")
    if first > last:
        raise ScheduleInvalid(written, f"the range {span} of the {field.what} runs backwards; write it as two")
    return range(first, last + 1, step)


def _number(written: str, field: _Field, text: str, names: dict[str, int]) -> int:
    if text in names:
        return names[text]
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        raise ScheduleInvalid(written, f"{text!r} is no {field.what}")
    return int(text)
