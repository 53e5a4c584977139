"""How spends add up, and how they follow from records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records import Blob, Done, EffectRequest, Ended, Started
from holdfast.store import Spend, open_store
from holdfast.store.spending import (
    DAY_MS,
    NO_SPEND,
    DailySpend,
    day_of,
    fold_spending,
    spend_by_day,
    sum_by_agent_and_day,
)

if TYPE_CHECKING:
    from holdfast.records import Record
    from holdfast.store.spending import ReadBlob

spends = st.builds(Spend, *[st.integers(0, 100)] * 8)


def done(at: int, blob: Blob | None = None) -> Done:
    return Done(at=at, key="t1/1.model", ask=EffectRequest("model_call", "m", "0" * 64), blob=blob)


@given(spends, spends)
def test_every_number_of_a_spend_adds_up(one: Spend, two: Spend) -> None:
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(two), strict=True)
    assert msgspec.structs.astuple(one + two) == tuple(a + b for a, b in pairs)


def test_a_day_begins_at_midnight_utc() -> None:
    assert [day_of(at) for at in (0, DAY_MS - 1, DAY_MS, 20_000 * DAY_MS)] == [0, 0, 1, 20_000]


def test_a_time_before_1970_is_of_the_first_day() -> None:
    assert day_of(-5) == 0


def test_records_spend_on_their_own_day() -> None:
    found = spend_by_day(
        [done(1), done(2), Started(at=3, run="t1"), done(DAY_MS)], lambda record, _: _one(record), _none
    )
    assert found == {0: Spend(model_calls=2), 1: Spend(model_calls=1)}


def test_a_record_that_spends_nothing_has_no_day() -> None:
    assert spend_by_day([done(1)], lambda _, __: NO_SPEND, _none) == {}


def test_what_a_record_refers_to_is_read_for_it() -> None:
    kept = {"d": b"12"}

    def tokens(record: Record, read: ReadBlob) -> Spend | None:
        found = read(record.blob) if isinstance(record, Done) and record.blob else None
        return None if found is None else Spend(input_tokens=int(found))

    assert spend_by_day([done(1, Blob("d", 2))], tokens, lambda blob: kept[blob.digest]) == {0: Spend(input_tokens=12)}


def test_rows_are_one_for_each_agent_and_day() -> None:
    one = Spend(tasks=1)
    found = sum_by_agent_and_day([("a", 1, one), (None, 1, one), ("a", 2, one), ("a", 1, one), ("b", 1, NO_SPEND)])
    assert found == (DailySpend("a", 1, one + one), DailySpend(None, 1, one), DailySpend("a", 2, one))


async def test_a_journal_that_is_pruned_while_spending_is_counted_counts_by_its_tombstone() -> None:
    async with open_store(None) as store:
        await store.open_journal("p", "process", "f", role="process")
        lease = await store.claim("p")
        head = await store.append(lease, [Started(at=1, run="r"), Ended(at=2, run="r", status="completed")], head=1)
        await store.release(lease)
        upto, rows = await store.examine(lambda reader: (reader.last_position(), reader.raw_journals()))
        await store.prune_journal("p", head=head, detail="completed", key="k", spent={0: Spend(tasks=3)})
        found = await store.examine(lambda reader: fold_spending(reader, _nothing, upto, rows, strict=True))
        assert found == ([DailySpend("f", 0, Spend(tasks=3))], 1)


def _nothing(_: Record, __: ReadBlob) -> Spend | None:
    return None


def _one(record: object) -> Spend | None:
    return Spend(model_calls=1) if isinstance(record, Done) else None


def _none(_: Blob) -> bytes | None:
    return None
