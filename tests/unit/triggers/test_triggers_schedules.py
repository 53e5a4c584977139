"""Cron and intervals: checked against a slow reference that walks through every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.every import every
from tests.examples import examples

from holdfast.errors.caller import ScheduleInvalid
from holdfast.triggers.schedules import (
    CronSchedule,
    IntervalSchedule,
    check_zone,
    moments_between,
    parse_cron,
    to_datetime,
    to_wall,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MINUTE: Final = 60_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
ZONES: Final = (
    "UTC",
    "Europe/Rome",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/St_Johns",
    "Africa/Casablanca",
    "Pacific/Apia",
    "America/Sao_Paulo",
)
YEARS: Final = (2011, 2018, 2023, 2024, 2026, 2100)


def _wall(*parts: int) -> int:
    return to_wall(datetime(*parts, tzinfo=UTC))


def _moments(expression: str, tz: str, first: int, last: int) -> list[int]:
    """What the schedule says, moment by moment."""
    schedule = CronSchedule(parse_cron(expression), check_zone(tz))
    found: list[int] = []
    moment = schedule.after(first)
    while moment is not None and moment <= last:
        found.append(moment)
        moment = schedule.after(moment)
    return found


def _local(tz: str, first: int, last: int) -> Iterator[tuple[int, datetime]]:
    where = ZoneInfo(tz)
    for moment in range(first - first % MINUTE, last + 1, MINUTE):
        yield moment, to_datetime(moment, where).replace(tzinfo=None)


def _reference(expression: str, tz: str, first: int, last: int) -> list[int]:
    """The same, by looking at the local time of every minute, and at all that were jumped over."""
    cron = parse_cron(expression)

    def fits(local: datetime) -> bool:
        return cron.fits(local.date()) and local.hour in cron.hours and local.minute in cron.minutes

    found: list[int] = []
    newest: datetime | None = None  # the furthest that the local clock has come: what comes twice counts once
    for moment, local in _local(tz, first - DAY, last):
        if newest is not None and local <= newest:
            continue
        skipped = [] if newest is None else _minutes_between(newest, local)
        if (fits(local) or any(map(fits, skipped))) and first < moment <= last:
            found.append(moment)
        newest = local
    return found


def _minutes_between(before: datetime, after: datetime) -> list[datetime]:
    count = (after - before) // timedelta(minutes=1) - 1
    return [before + timedelta(minutes=number + 1) for number in range(count)]


def _field(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    ranged = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.integers(1, most).map(lambda size: f"*/{size}")
    return st.one_of(
        st.just("*"),
        number.map(str),
        ranged,
        step,
        st.lists(number, min_size=2, max_size=3).map(lambda numbers: ",".join(map(str, numbers))),
    )


_DAYS = st.one_of(_field(1, 28), st.just("L"), st.just("L,15"))
EXPRESSIONS = st.builds(
    lambda *fields: " ".join(fields), _field(0, 59), _field(0, 23), _DAYS, _field(1, 12), _field(0, 7)
)


@settings(max_examples=examples(25), deadline=None)
@given(EXPRESSIONS, st.sampled_from(ZONES), st.sampled_from(YEARS), st.integers(0, 365))
def test_the_moments_of_any_expression_in_any_zone_are_those_of_the_slow_reference(
    expression: str, tz: str, year: int, day: int
) -> None:
    first = _wall(year, 1, 1) + day * DAY
    last = first + DAY
    assert _moments(expression, tz, first, last) == _reference(expression, tz, first, last)


@settings(max_examples=examples(12), deadline=None)
@given(
    st.sampled_from(["30 2 * * *", "*/20 * * * *", "0 0 * * *", "15 1,2,3 * * *", "59 23 * * *", "0 */2 * * 0"]),
    st.sampled_from(
        [
            ("Europe/Rome", (2026, 3, 29)),
            ("Europe/Rome", (2026, 10, 25)),
            ("America/New_York", (2024, 3, 10)),
            ("America/New_York", (2024, 11, 3)),
            ("Australia/Lord_Howe", (2023, 10, 1)),
            ("Australia/Lord_Howe", (2023, 4, 2)),
            ("America/Sao_Paulo", (2018, 11, 4)),
            ("Pacific/Apia", (2011, 12, 30)),
            ("Africa/Casablanca", (2024, 3, 10)),
        ]
    ),
)
def test_around_every_change_of_the_clocks_they_are_those_of_the_slow_reference(
    expression: str, change: tuple[str, tuple[int, int, int]]
) -> None:
    tz, day = change
    first, last = _wall(*day) - DAY, _wall(*day) + 2 * DAY
    assert _moments(expression, tz, first, last) == _reference(expression, tz, first, last)


@settings(max_examples=examples(60), deadline=None)
@given(EXPRESSIONS, st.sampled_from(ZONES), st.sampled_from(YEARS), st.integers(0, 366 * 24 * 60))
def test_looking_back_finds_what_looking_forward_has_found(expression: str, tz: str, year: int, minute: int) -> None:
    schedule = CronSchedule(parse_cron(expression), check_zone(tz))
    start = _wall(year, 1, 1) + minute * MINUTE
    following = schedule.after(start)
    assert following is not None
    assert following > start
    assert schedule.until(following) == following
    before = schedule.until(following - 1)
    assert before is None or before <= start


def test_a_time_that_does_not_exist_runs_once_at_the_next_valid_minute() -> None:
    found = _moments("*/15 2 * * *", "Europe/Rome", _wall(2026, 3, 28, 12), _wall(2026, 3, 29, 12))
    assert [to_datetime(moment, ZoneInfo("Europe/Rome")).isoformat() for moment in found] == [
        "2026-03-29T03:00:00+02:00"
    ]


def test_a_time_that_comes_twice_runs_once_the_first_time() -> None:
    found = _moments("30 2 * * *", "Europe/Rome", _wall(2026, 10, 24, 12), _wall(2026, 10, 25, 12))
    assert [to_datetime(moment).isoformat() for moment in found] == ["2026-10-25T00:30:00+00:00"]


def test_a_day_that_a_zone_left_out_runs_once_at_the_beginning_of_the_next() -> None:
    found = _moments("0 12 * * *", "Pacific/Apia", _wall(2011, 12, 30, 9), _wall(2011, 12, 31, 9))
    assert [to_datetime(moment, ZoneInfo("Pacific/Apia")).isoformat() for moment in found] == [
        "2011-12-31T00:00:00+14:00",
        "2011-12-31T12:00:00+14:00",
    ]


def test_a_leap_day_is_found_also_across_a_century_without_one() -> None:
    found = CronSchedule(parse_cron("0 0 29 2 *"), UTC).after(_wall(2096, 3, 1))
    assert found == _wall(2104, 2, 29)


def test_the_last_day_of_a_month_is_meant_by_l() -> None:
    found = _moments("0 0 L * *", "UTC", _wall(2024, 1, 15), _wall(2024, 4, 15))
    assert found == [_wall(2024, 1, 31), _wall(2024, 2, 29), _wall(2024, 3, 31)]


def test_a_day_fits_one_of_the_two_day_fields_where_both_are_restricted() -> None:
    cron = parse_cron("0 0 13 * FRI")
    assert cron.fits(datetime(2026, 11, 13, tzinfo=UTC).date())
    assert cron.fits(datetime(2026, 11, 20, tzinfo=UTC).date())
    assert not cron.fits(datetime(2026, 11, 21, tzinfo=UTC).date())


def test_a_day_must_fit_both_day_fields_where_one_begins_with_a_star() -> None:
    cron = parse_cron("0 0 */2 * FRI")
    assert cron.fits(datetime(2026, 11, 13, tzinfo=UTC).date())
    assert not cron.fits(datetime(2026, 11, 20, tzinfo=UTC).date())


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("@daily", "0 0 * * *"),
        ("0 6 * JAN-MAR mon", "0 6 * 1-3 1"),
        ("5/20 * * * 7", "5,25,45 * * * 0"),
        ("0 0 * * FRI-SUN", "0 0 * * 5,6,0"),
        ("@Hourly", "0 * * * *"),
    ],
)
def test_names_steps_and_short_forms_mean_the_numbers(written: str, same: str) -> None:
    assert parse_cron(written) == parse_cron(same)


@every(
    "written",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "a * * * *",
        "1.5 * * * *",
        "-1 * * * *",
        "0 0 30 2 *",
        "0 0 31 4,6 *",
        "@never",
        "L * * * *",
        "* * * * L",
        "1,,2 * * * *",
        "٣ * * * *",
        "*" * 500,
        7,
        None,
    ],
)
def test_what_can_not_be_meant_is_refused_by_name(written: object) -> None:
    with pytest.raises(ScheduleInvalid):
        parse_cron(written)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "Europe", 5])
def test_a_zone_that_is_none_is_refused_by_name(name: object) -> None:
    with pytest.raises(ScheduleInvalid):
        check_zone(name)


@given(st.integers(1_000, 10**9), st.integers(0, 2 * 10**12), st.integers(0, 2 * 10**12))
def test_an_interval_is_anchored_and_never_drifts(period: int, anchor: int, moment: int) -> None:
    every = IntervalSchedule(period, anchor)
    following = every.after(moment)
    assert following > max(moment, anchor)
    assert (following - anchor) % period == 0
    assert following - max(moment, anchor) <= period
    assert every.until(following) == following


def test_the_newest_moments_of_a_span_are_found_oldest_first() -> None:
    every = IntervalSchedule(HOUR, 0)
    assert moments_between(every, 0, 10 * HOUR, 3) == [8 * HOUR, 9 * HOUR, 10 * HOUR]
