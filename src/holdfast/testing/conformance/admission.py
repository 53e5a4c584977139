"""Admission: how much comes in, and what becomes of what was said a moment ago."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.errors import BlobMissing, InvalidArgument, InvalidId, InvalidNumber, KeyConflict
from holdfast.errors.admission import DuplicateInput, RateExceeded
from holdfast.records import Admitted, Blob
from holdfast.store import Admission
from holdfast.store.audit import audit
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import Stores, append_here, case, contents, leased, refusal

TWO_A_SECOND: Final = Admission(per_window=2, window_ms=1_000)
SAME_TURN: Final = Admission(duplicates="same_turn", duplicate_window_ms=1_000)
REFUSE: Final = Admission(duplicates="refuse", duplicate_window_ms=1_000)


@case
async def inputs_over_the_rate_are_refused_until_there_is_room(stores: Stores) -> None:
    clock = ManualClock()
    start = clock.read().wall
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.accept("a", 1, admission=TWO_A_SECOND)
        clock.advance(400)
        await store.accept("a", 2, admission=TWO_A_SECOND)
        before = await contents(store)
        clock.advance(599)
        error = await refusal(RateExceeded, store.accept("a", 3, admission=TWO_A_SECOND))
        assert (error.session, error.per_window, error.window_ms) == ("a", 2, 1_000)
        assert error.retry_at == start + 1_000
        assert await contents(store) == before
    async with stores.open(clock) as store:
        clock.advance(1)
        await store.accept("a", 3, admission=TWO_A_SECOND)
        error = await refusal(RateExceeded, store.accept("a", 4, admission=TWO_A_SECOND))
        assert error.retry_at == start + 1_400


@case
async def of_many_inputs_at_once_only_as_many_come_in_as_the_rate_lets(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        attempts = [
            store.accept_into("a", "session", None, n, admission=TWO_A_SECOND) for n, store in enumerate((one, two) * 5)
        ]
        answers = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(answer, RateExceeded) for answer in answers) == 8
        assert len(await one.pending("a")) == 2


@case
async def the_same_key_is_the_same_input_whatever_the_rate(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        first = await store.accept("a", 1, key="k", admission=TWO_A_SECOND)
        await store.accept("a", 2, admission=TWO_A_SECOND)
        again = await store.accept("a", 1, key="k", admission=TWO_A_SECOND)
        assert (again.input, again.fresh) == (first.input, False)
        await refusal(KeyConflict, store.accept("a", 2, key="k", admission=TWO_A_SECOND))


@case
async def inputs_count_for_their_own_journal_and_only_under_an_admission(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        for journal in ("a", "b"):
            await store.open_journal(journal)
        for n in range(3):
            await store.accept("a", n)
        for n in range(2):
            await store.accept("b", n, admission=TWO_A_SECOND)
            await store.accept("a", n, admission=TWO_A_SECOND)
        await refusal(RateExceeded, store.accept("a", 3, admission=TWO_A_SECOND))
        assert (await store.accept("a", 3)).fresh


@case
async def an_input_counts_also_when_it_is_in_its_journal(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        for n in (1, 2):
            await store.accept("a", n, key=f"k{n}", admission=TWO_A_SECOND)
            await append_here(store, lease, Admitted(at=1, input=n, key=f"k{n}"))
        await refusal(RateExceeded, store.accept("a", 3, admission=TWO_A_SECOND))


@case
async def a_clock_that_was_set_far_back_does_not_shut_the_gate(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        for n in range(2):
            await store.accept("a", n, admission=TWO_A_SECOND)
        clock.jump(-500)
        await refusal(RateExceeded, store.accept("a", 2, admission=TWO_A_SECOND))
        clock.jump(-100_000)
        assert (await store.accept("a", 2, admission=TWO_A_SECOND)).fresh


@case
async def what_was_said_a_moment_ago_is_refused(stores: Stores) -> None:
    clock = ManualClock()
    start = clock.read().wall
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.accept("a", {"say": "yes"}, key="k1", admission=REFUSE)
        clock.advance(999)
        before = await contents(store)
        error = await refusal(DuplicateInput, store.accept("a", {"say": "yes"}, key="k2", admission=REFUSE))
        assert (error.session, error.key_of_first, error.at) == ("a", "k1", start)
        assert await contents(store) == before
        assert (await store.accept("a", {"say": "no"}, key="k2", admission=REFUSE)).fresh
        clock.advance(1)
        assert (await store.accept("a", {"say": "yes"}, key="k3", admission=REFUSE)).fresh


@case
async def what_was_said_a_moment_ago_may_be_the_same_input(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        first = await store.accept("a", "yes", key="k1", admission=SAME_TURN)
        clock.advance(999)
        again = await store.accept("a", "yes", key="k2", admission=SAME_TURN)
        assert (again.input, again.key, again.at, again.fresh) == (first.input, "k1", first.at, False)
        assert len(await store.pending("a")) == 1
        assert await store.examine(audit) == []


@case
async def a_key_that_was_told_an_earlier_input_stays_with_it_for_ever(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.accept("a", "yes", key="k1", admission=SAME_TURN)
        await store.accept("a", "yes", key="k2", admission=SAME_TURN)
    async with stores.open(clock) as store:
        clock.advance(5_000)
        for terms in (SAME_TURN, None):
            again = await store.accept("a", "yes", key="k2", admission=terms)
            assert (again.input, again.fresh) == (1, False)
        await refusal(KeyConflict, store.accept("a", "no", key="k2"))
        found = await store.find_input("a", "k2")
        assert found is not None
        assert (found.input, found.key) == (1, "k1")


@case
async def an_input_without_a_key_that_was_said_before_leaves_nothing_behind(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.accept("a", "yes", admission=SAME_TURN)
        await store.accept("a", "yes", admission=SAME_TURN)
        assert await store.examine(lambda reader: list(reader.raw_aliases())) == []


@case
async def an_input_that_says_the_same_takes_no_place(stores: Stores) -> None:
    terms = Admission(per_window=1, window_ms=1_000, duplicates="same_turn", duplicate_window_ms=1_000)
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.accept("a", "yes", admission=terms)
        assert not (await store.accept("a", "yes", admission=terms)).fresh
        await refusal(RateExceeded, store.accept("a", "no", admission=terms))


@case
async def an_admission_that_can_not_be_meant_is_refused(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        for bad in (Admission(per_window=0), Admission(window_ms=0), Admission(duplicate_window_ms=-1)):
            await refusal(InvalidNumber, store.accept("a", 1, admission=bad))
        await refusal(InvalidId, store.accept("a", 1, admission=Admission(duplicates="drop")))  # pyright: ignore[reportArgumentType]
        await refusal(InvalidArgument, store.accept("a", 1, admission=2))  # pyright: ignore[reportArgumentType]
        assert await store.pending("a") == []


@case
async def an_input_that_is_refused_makes_no_journal(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        blob = Blob("0" * 64, 1)
        await refusal(BlobMissing, store.accept_into("a", "session", None, 1, refs=[blob], admission=TWO_A_SECOND))
        assert await store.journals() == []
