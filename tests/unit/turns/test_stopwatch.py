"""How long turns were worked on, by their records alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.clock import Stopwatch
from holdfast.records import Admitted, Done, EffectRequest, Ended, Parked, Resumed, Started
from holdfast.store.spending import DAY_MS, Spend, spend_by_day, spend_of_append

if TYPE_CHECKING:
    from holdfast.records import Record


def start(at: int, run: str = "t1") -> Started:
    return Started(at=at, run=run)


def step(at: int) -> Done:
    return Done(at=at, key="t1/1.model", ask=EffectRequest("model_call", "m", "0" * 64))


def park(at: int) -> Parked:
    return Parked(at=at, run="t1")


def resume(at: int) -> Resumed:
    return Resumed(at=at, run="t1", by="pid 2")


def end(at: int, run: str = "t1", *, unstarted: bool = False) -> Ended:
    return Ended(at=at, run=run, status="completed", unstarted=unstarted)


def queue(at: int) -> Admitted:
    return Admitted(at=at, input=2, key="k")


@every(
    ("records", "total"),
    [
        ([start(10), step(15), end(30)], 20),
        ([start(10), park(15), resume(100), end(130)], 35),
        ([start(10), step(15), resume(100), end(130)], 35),
        ([start(10), park(15), queue(50), resume(100), end(101)], 6),
        ([start(10), end(20, "t2", unstarted=True), end(30)], 20),
        ([start(10), step(5), end(8)], 3),
        ([start(10), end(20), step(90), start(100, "t2"), end(101, "t2")], 11),
        ([start(10, "main"), step(20), end(30, "main")], 0),
    ],
    ids=[
        "a turn",
        "waiting does not count",
        "a process that died counts up to its last record",
        "an input that comes while a turn waits does not count",
        "a queued turn that ends does not stop the clock",
        "a clock that was set back counts nothing",
        "between turns nothing counts",
        "what is no turn does not count",
    ],
)
def test_what_counts_is_the_time_in_which_a_turn_is_worked_on(records: list[Record], total: int) -> None:
    watch = Stopwatch()
    for record in records:
        watch.take(record)
    assert watch.total == total


def test_work_over_midnight_counts_for_both_days() -> None:
    records: list[Record] = [start(DAY_MS - 10), end(DAY_MS + 7)]
    found = spend_by_day(records, lambda _, __: None, lambda _: None, Stopwatch())
    assert found == {0: Spend(wall_ms=10), 1: Spend(wall_ms=7)}


kinds = st.sampled_from([start, step, park, resume, end, queue])


@given(st.lists(st.tuples(kinds, st.integers(0, 3 * DAY_MS)), max_size=12), st.integers(1, 4))
def test_appends_count_what_their_records_count(made: list[tuple[object, int]], size: int) -> None:
    records: list[Record] = [kind(at) for kind, at in made]  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
    sums: dict[int, int] = {}
    watch = Stopwatch()
    for first in range(0, len(records), size):
        added = records[first : first + size]
        spans = [span for record in added if (span := watch.take(record)) is not None]
        for day, spend in spend_of_append(added, None, spans):
            sums[day] = sums.get(day, 0) + spend.wall_ms
    whole = spend_by_day(records, lambda _, __: None, lambda _: None, Stopwatch())
    assert sums == {day: spend.wall_ms for day, spend in whole.items()}
    assert sum(sums.values()) == watch.total
