"""When something is due: the moments of a cron expression in a time zone, and those of an interval. Pure.

A local time that does not exist (the clocks go forward) is due once, at the first minute that does; several such times
are due together, once. One that exists twice (the clocks go back) is due once, the first time. All moments are wall
milliseconds, and moments of one schedule strictly follow each other.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING, Final, Protocol
from zoneinfo import ZoneInfo

from holdfast.errors.triggers import ScheduleInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.triggers.expressions import Cron

FAR: Final = timedelta(days=45 * 366)
"""How far is looked for the next moment: 29 February on a given weekday is at most 40 years away."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_EARLIEST: Final = date(1900, 1, 1)
_LATEST: Final = date(9990, 1, 1)


class Schedule(Protocol):
    """Moments, one after the other."""

    def after(self, moment: int) -> int | None:
        """The first moment behind this one; None when there is none."""
        ...

    def until(self, moment: int) -> int | None:
        """The last moment up to this one, itself included; None when there is none."""
        ...


def zone(name: object) -> tzinfo:
    """The time zone of this name; `ScheduleInvalid` when there is none."""
    if not isinstance(name, str):
        raise ScheduleInvalid(name, f"a time zone is a name such as 'Europe/Rome', not a {type(name).__name__}")
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ScheduleInvalid(
            name, "no time zone has this name here; use a name such as 'Europe/Rome', or install 'tzdata'"
        ) from None


def to_datetime(moment: int, where: tzinfo = UTC) -> datetime:
    """A wall time in milliseconds as a date and a time somewhere."""
    return (_EPOCH + timedelta(milliseconds=moment)).astimezone(where)


def to_wall(moment: datetime) -> int:
    """The wall milliseconds of a date and time that knows its zone."""
    return (moment - _EPOCH) // _MILLISECOND


class Calendar:
    """The moments of a cron expression in a time zone."""

    def __init__(self, cron: Cron, where: tzinfo) -> None:
        self._cron = cron
        self._where = where
        self._times = [time(hour, minute) for hour in cron.hours for minute in cron.minutes]

    def after(self, moment: int) -> int | None:
        today = self._day_of(moment)
        # A whole day may be left out of a zone's calendar: what it held is due on the day that follows.
        for day in self._cron.days_from(max(today - 2 * _DAY, _EARLIEST), min(today + FAR, _LATEST)):
            if (found := self._first_behind(day, moment)) is not None:
                return found
        return None

    def until(self, moment: int) -> int | None:
        today = self._day_of(moment)
        for day in self._cron.days_back(min(today + _DAY, _LATEST), max(today - FAR, _EARLIEST)):
            at = self._bisect(day, moment)
            if at:
                return self._moment(day, self._times[at - 1])
        return None

    def _day_of(self, moment: int) -> date:
        return to_datetime(moment, self._where).date()

    def _first_behind(self, day: date, moment: int) -> int | None:
        at = self._bisect(day, moment)
        return None if at == len(self._times) else self._moment(day, self._times[at])

    def _bisect(self, day: date, moment: int) -> int:
        """How many of the times of a day are up to `moment`: later local times are never earlier moments."""
        low, high = 0, len(self._times)
        while low < high:
            middle = (low + high) // 2
            if self._moment(day, self._times[middle]) <= moment:
                low = middle + 1
            else:
                high = middle
        return low

    def _moment(self, day: date, at: time) -> int:
        local = datetime.combine(day, at)
        early = local.replace(tzinfo=self._where)
        found = early.astimezone(UTC)
        if found.astimezone(self._where).replace(tzinfo=None) == local:
            return to_wall(found)
        return to_wall(self._behind_gap(early))

    def _behind_gap(self, missing: datetime) -> datetime:
        """The first minute that exists behind a local time that does not."""
        low = missing.replace(fold=1).astimezone(UTC)  # read with the offset that holds behind the gap: before it
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


class Every:
    """A moment every so many milliseconds, counted from an anchor: no drift, whatever happens between them."""

    def __init__(self, period: int, anchor: int) -> None:
        self._period = period
        self._anchor = anchor

    def after(self, moment: int) -> int:
        steps = max((moment - self._anchor) // self._period + 1, 1)
        return self._anchor + steps * self._period

    def until(self, moment: int) -> int | None:
        steps = (moment - self._anchor) // self._period
        return None if steps < 1 else self._anchor + steps * self._period


def between(schedule: Schedule, first: int, last: int, most: int) -> list[int]:
    """The newest `most` moments behind `first` and up to `last`, oldest first."""
    found: list[int] = []
    moment = schedule.until(last)
    while moment is not None and moment > first and len(found) < most:
        found.append(moment)
        moment = schedule.until(moment - 1)
    return found[::-1]


def count(schedule: Schedule, first: int, last: int, most: int) -> int:
    """How many moments there are behind `first` and up to `last`; at most `most` are counted."""
    return _length(_walk(schedule, first, last), most)


def _walk(schedule: Schedule, first: int, last: int) -> Iterable[int]:
    moment = schedule.after(first)
    while moment is not None and moment <= last:
        yield moment
        moment = schedule.after(moment)


def _length(moments: Iterable[int], most: int) -> int:
    found = 0
    for _ in moments:
        found += 1
        if found >= most:
            break
    return found
