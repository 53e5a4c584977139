"""The inbox: accepted once, in order, bounded."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast import errors
from holdfast.records import Admitted, Blob, Opened
from holdfast.store import AdmissionWindow, Lease, Receipt, Store
from holdfast.store.inbox import REFUSALS_KEPT, REFUSALS_KEPT_PER_JOURNAL, RefusedInput
from holdfast.testing.conformance.suite import append_here, leased, refusal, step, unchanged, with_blob

if TYPE_CHECKING:
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.conformance.suite import Now, Reopen, StoreA


async def the_same_input_under_the_same_key_gives_the_same_receipt(store: StoreA, clock: ManualClock) -> None:
    first = await store.accept("a", {"x": 1, "y": 2}, key="k")
    clock.advance(5)
    again = await store.accept("a", {"y": 2, "x": 1}, key="k")
    assert (first.fresh, again.fresh) == (True, False)
    assert (again.input, again.key, again.at) == (first.input, first.key, first.at)
    assert len(await store.pending("a")) == 1


async def other_content_under_the_same_key_is_a_conflict(store: StoreA) -> None:
    await store.accept("a", 1, key="k")
    async with unchanged(store):
        for other in (2, 1.0, True, "1", [1], None):
            await refusal(errors.KeyConflict, store.accept("a", other, key="k"), journal="a", key="k")


async def idempotency_keys_are_remembered_over_reopening_and_after_admission(
    store: Store, lease: Lease, reopen: Reopen
) -> None:
    first = await store.accept("a", "hello", key="k")
    await append_here(store, lease, FIRST)
    store = await reopen()
    again = await store.accept("a", "hello", key="k")
    assert (again.input, again.at, again.fresh) == (first.input, first.at, False)
    await refusal(errors.KeyConflict, store.accept("a", "bye", key="k"))
    assert await store.pending("a") == []


async def of_many_inputs_with_one_key_at_once_one_is_taken(one: StoreA, two: Store) -> None:
    receipts = await asyncio.gather(*(store.accept("a", "hello", key="k") for store in (one, two) * 10))
    assert (sum(receipt.fresh for receipt in receipts), {receipt.input for receipt in receipts}) == (1, {1})
    assert len(await two.pending("a")) == 1


async def of_many_contents_with_one_key_at_once_one_is_taken_and_the_others_conflict(store: StoreA) -> None:
    answers = await asyncio.gather(*(store.accept("a", n, key="k") for n in range(10)), return_exceptions=True)
    assert sum(isinstance(answer, errors.KeyConflict) for answer in answers) == 9
    assert [found.body for found in await store.pending("a")] == [b"0"]


async def keys_belong_to_their_journal(store: StoreA) -> None:
    await store.open_journal("b")
    for content, journal in enumerate(("a", "b")):
        assert (await store.accept(journal, content, key="k")).fresh


async def inputs_without_a_key_are_all_different(store: StoreA) -> None:
    receipts = [await store.accept("a", "hello") for _ in range(3)]
    assert [receipt.input for receipt in receipts] == [1, 2, 3]
    assert len({receipt.key for receipt in receipts}) == 3


async def pending_inputs_are_in_the_order_of_their_acceptance(store: StoreA) -> None:
    await asyncio.gather(*(store.accept("a", n, key=f"k{9 - n}") for n in range(10)))
    found = [(waiting.input, waiting.body) for waiting in await store.pending("a")]
    assert found == [(n + 1, str(n).encode()) for n in range(10)]
    assert [found.input for found in await store.pending("a", limit=3)] == [1, 2, 3]


async def a_full_inbox_refuses_new_inputs_but_urgent_ones_and_still_answers_old_ones(
    store: Store, lease: Lease
) -> None:
    limit = store.limits.pending_inputs
    await asyncio.gather(*(store.accept("a", n, key=f"k{n}") for n in range(limit)))
    await refusal(errors.InboxFull, store.accept("a", "one more", key="more"), limit=limit)
    assert not (await store.accept("a", 0, key="k0")).fresh
    receipts = [await store.accept("a", "stop", key="stop", urgent=True) for _ in range(2)]
    assert [(receipt.input, receipt.fresh) for receipt in receipts] == [(limit + 1, True), (limit + 1, False)]
    await append_here(store, lease, Admitted(at=1, input=1, key="k0"))
    await refusal(errors.InboxFull, store.accept("a", "one more", key="more"))
    await append_here(store, lease, Admitted(at=1, input=2, key="k1"))
    assert (await store.accept("a", "one more", key="more")).input == limit + 2


async def an_admitted_record_takes_its_input_out_in_the_same_append(store: Store, lease: Lease) -> None:
    for n in range(3):
        await store.accept("a", n, key=f"k{n}")
    admitted = Admitted(at=1, input=2, key="k1", body=msgspec.Raw(b"1"))
    assert await append_here(store, lease, admitted, step("x")) == 3
    assert [found.input for found in await store.pending("a")] == [1, 3]


FIRST: Final = Admitted(at=1, input=1, key="k")
"""Takes the first input, with the key `k`, out of the inbox."""


async def a_refused_append_admits_nothing(store: Store, lease: Lease) -> None:
    await store.accept("a", 1, key="k")
    async with unchanged(store):
        await refusal(errors.HeadConflict, store.append(lease, [FIRST], head=5))
        await refusal(errors.BlobMissing, store.append(lease, [FIRST, with_blob(Blob("0" * 64, 1))], head=1))


async def an_input_is_admitted_once(store: Store, lease: Lease) -> None:
    await store.accept("a", 1, key="k")
    async with unchanged(store):
        await refusal(errors.InputTaken, store.append(lease, [FIRST, FIRST], head=1))
    await store.append(lease, [FIRST], head=1)
    async with unchanged(store):
        await refusal(errors.InputTaken, store.append(lease, [step("x"), FIRST], head=2), journal="a", input=1)
        await refusal(errors.InputTaken, store.append(lease, [Admitted(at=1, input=7, key="never")], head=2))


async def an_input_over_the_limit_is_refused(store: StoreA) -> None:
    limit = store.limits.input_bytes
    await refusal(errors.PayloadTooLarge, store.accept("a", "x" * (limit - 1), key="k"), size=limit + 1, limit=limit)
    assert await store.pending("a") == []
    assert (await store.accept("a", "x" * (limit - 2), key="k")).fresh


async def a_fresh_receipt_has_the_head_of_the_journal_and_a_repeated_one_has_not(store: Store) -> None:
    await append_here(store, await leased(store, "a"), step("x"), step("y"))
    assert [(await store.accept("a", 1, key="k")).head for _ in range(2)] == [3, 0]


async def an_input_knows_where_the_journal_ended_when_it_was_accepted(store: Store, reopen: Reopen) -> None:
    lease = await leased(store, "a")
    for number in (1, 2):
        await store.accept("a", number, key=f"k{number}")
        await append_here(store, lease, step(f"x{number}"))
    store = await reopen()
    assert [found.head for found in await store.pending("a")] == [1, 2]


async def an_input_is_found_by_its_number_and_key_also_when_it_was_taken(
    store: Store, lease: Lease, clock: ManualClock, reopen: Reopen
) -> None:
    await store.open_journal("b")
    first = await store.accept("a", "hello", key="k")
    clock.advance(5)
    (waiting,) = await store.pending("a")
    receipt = Receipt("a", first.input, "k", first.at, fresh=False)
    assert (await store.input("a", 1), await store.find_input("a", "k")) == (waiting, receipt)
    await append_here(store, lease, Admitted(at=1, input=1, key="k", run="t1"))
    store = await reopen()
    assert (await store.input("a", 1), await store.find_input("a", "k")) == (waiting, receipt)
    for journal, number in (("a", 2), ("a", 0), ("b", 1)):
        assert await store.input(journal, number) is None
    assert await store.find_input("a", "other") is await store.find_input("b", "k") is None


async def pending_inputs_are_read_page_by_page(store: Store, lease: Lease) -> None:
    for number in range(6):
        await store.accept("a", number, key=f"k{number}")
    await append_here(store, lease, Admitted(at=1, input=4, key="k3"))
    assert [found.input for found in await store.pending("a", 2, after=2)] == [3, 5]
    assert [found.input for found in await store.pending("a", after=5)] == [6]
    assert await store.pending("a", after=6) == []
    await refusal(errors.InvalidNumber, store.pending("a", after=-1))


async def an_input_may_come_with_the_opening_of_its_journal(store: Store) -> None:
    receipt = await store.accept_into("a", "session", "clerk", "hello", key="k")
    assert (receipt.journal, receipt.input, receipt.fresh, receipt.head) == ("a", 1, True, 1)
    (entry,) = await store.read("a")
    assert isinstance(entry.record, Opened)
    assert (entry.record.kind, entry.record.agent) == ("session", "clerk")
    assert [found.body for found in await store.pending("a")] == [b'"hello"']


async def an_input_that_comes_with_an_opening_finds_a_journal_that_is_there(store: Store) -> None:
    await store.open_journal("a", "session", "clerk")
    assert [(await store.accept_into("a", "session", "clerk", 1, key="k")).fresh for _ in range(2)] == [True, False]
    await refusal(errors.KeyConflict, store.accept_into("a", "session", "clerk", 2, key="k"))
    assert ((await store.journal("a")).head, len(await store.pending("a"))) == (1, 1)


async def an_input_is_not_accepted_when_its_opening_is_refused(store: Store) -> None:
    await store.open_journal("a", "session", "clerk")
    await store.accept("a", 1, key="k")
    await store.open_journal("bad", "session", "clerk")
    await store.quarantine("bad", "a test")
    async with unchanged(store):
        await refusal(errors.JournalConflict, store.accept_into("a", "process", "clerk", 2, key="new"))
        await refusal(errors.JournalConflict, store.accept_into("a", "session", "cook", 2, key="new"))
        await refusal(errors.JournalConflict, store.accept_into("a", "session", None, 1, key="k"))
        await refusal(errors.JournalQuarantined, store.accept_into("bad", "session", "clerk", 2, key="new"))


async def of_many_inputs_that_open_one_journal_at_once_all_are_taken(one: Store, two: Store) -> None:
    attempts = (store.accept_into("a", "session", "clerk", n, key=f"k{n}") for n, store in enumerate((one, two) * 5))
    assert sorted(receipt.input for receipt in await asyncio.gather(*attempts)) == list(range(1, 11))
    assert await one.last_position() == 1


TWO_A_SECOND: Final = AdmissionWindow(per_window=2, window_ms=1_000)
SAME_TURN: Final = AdmissionWindow(duplicates="same_turn", duplicate_window_ms=1_000)
REFUSE: Final = AdmissionWindow(duplicates="refuse", duplicate_window_ms=1_000)


async def inputs_over_the_rate_are_refused_until_there_is_room(
    store: StoreA, clock: ManualClock, start: Now, reopen: Reopen
) -> None:
    await store.accept("a", 1, admission=TWO_A_SECOND)
    clock.advance(400)
    await store.accept("a", 2, admission=TWO_A_SECOND)
    async with unchanged(store):
        clock.advance(599)
        error = {"session": "a", "per_window": 2, "window_ms": 1_000, "retry_at": start + 1_000}
        await refusal(errors.RateExceeded, store.accept("a", 3, admission=TWO_A_SECOND), **error)
    store = await reopen()
    clock.advance(1)
    await store.accept("a", 3, admission=TWO_A_SECOND)
    await refusal(errors.RateExceeded, store.accept("a", 4, admission=TWO_A_SECOND), retry_at=start + 1_400)


async def of_many_inputs_at_once_only_as_many_come_in_as_the_rate_lets(one: Store, two: Store) -> None:
    stores = enumerate((one, two) * 5)
    attempts = [store.accept_into("a", "session", None, n, admission=TWO_A_SECOND) for n, store in stores]
    answers = await asyncio.gather(*attempts, return_exceptions=True)
    assert sum(isinstance(answer, errors.RateExceeded) for answer in answers) == 8
    assert len(await one.pending("a")) == 2


async def the_same_key_is_the_same_input_whatever_the_rate(store: StoreA) -> None:
    first = await store.accept("a", 1, key="k", admission=TWO_A_SECOND)
    await store.accept("a", 2, admission=TWO_A_SECOND)
    again = await store.accept("a", 1, key="k", admission=TWO_A_SECOND)
    assert (again.input, again.fresh) == (first.input, False)
    await refusal(errors.KeyConflict, store.accept("a", 2, key="k", admission=TWO_A_SECOND))


async def inputs_count_for_their_own_journal_and_only_under_an_admission(store: StoreA) -> None:
    await store.open_journal("b")
    for n in range(3):
        await store.accept("a", n)
    for n in range(2):
        await store.accept("b", n, admission=TWO_A_SECOND)
        await store.accept("a", n, admission=TWO_A_SECOND)
    await refusal(errors.RateExceeded, store.accept("a", 3, admission=TWO_A_SECOND))
    assert (await store.accept("a", 3)).fresh


async def an_input_counts_also_when_it_is_in_its_journal(store: Store, lease: Lease) -> None:
    for n in (1, 2):
        await store.accept("a", n, key=f"k{n}", admission=TWO_A_SECOND)
        await append_here(store, lease, Admitted(at=1, input=n, key=f"k{n}"))
    await refusal(errors.RateExceeded, store.accept("a", 3, admission=TWO_A_SECOND))


async def a_clock_that_was_set_far_back_does_not_shut_the_gate(store: StoreA, clock: ManualClock) -> None:
    for n in range(2):
        await store.accept("a", n, admission=TWO_A_SECOND)
    clock.jump(-500)
    await refusal(errors.RateExceeded, store.accept("a", 2, admission=TWO_A_SECOND))
    clock.jump(-100_000)
    assert (await store.accept("a", 2, admission=TWO_A_SECOND)).fresh


async def a_duplicate_input_within_the_window_is_refused(store: StoreA, clock: ManualClock, start: Now) -> None:
    await store.accept("a", {"say": "yes"}, key="k1", admission=REFUSE)
    clock.advance(999)
    async with unchanged(store):
        again = store.accept("a", {"say": "yes"}, key="k2", admission=REFUSE)
        await refusal(errors.DuplicateInput, again, session="a", key_of_first="k1", at=start)
    assert (await store.accept("a", {"say": "no"}, key="k2", admission=REFUSE)).fresh
    clock.advance(1)
    assert (await store.accept("a", {"say": "yes"}, key="k3", admission=REFUSE)).fresh


async def a_duplicate_input_within_the_window_may_be_the_same_input(store: StoreA, clock: ManualClock) -> None:
    first = await store.accept("a", "yes", key="k1", admission=SAME_TURN)
    clock.advance(999)
    again = await store.accept("a", "yes", key="k2", admission=SAME_TURN)
    assert (again.input, again.key, again.at, again.fresh) == (first.input, "k1", first.at, False)
    assert len(await store.pending("a")) == 1


async def the_key_of_a_duplicate_stays_with_the_first_input(store: StoreA, clock: ManualClock, reopen: Reopen) -> None:
    await store.accept("a", "yes", key="k1", admission=SAME_TURN)
    await store.accept("a", "yes", key="k2", admission=SAME_TURN)
    store = await reopen()
    clock.advance(5_000)
    for terms in (SAME_TURN, None):
        again = await store.accept("a", "yes", key="k2", admission=terms)
        assert (again.input, again.fresh) == (1, False)
    await refusal(errors.KeyConflict, store.accept("a", "no", key="k2"))
    found = await store.find_input("a", "k2")
    assert found is not None
    assert (found.input, found.key) == (1, "k1")


async def a_duplicate_input_without_a_key_leaves_no_alias(store: StoreA) -> None:
    for _ in range(2):
        await store.accept("a", "yes", admission=SAME_TURN)
    assert await store.examine(lambda reader: list(reader.raw_aliases())) == []


async def a_duplicate_input_does_not_count_for_the_rate(store: StoreA) -> None:
    terms = AdmissionWindow(per_window=1, window_ms=1_000, duplicates="same_turn", duplicate_window_ms=1_000)
    await store.accept("a", "yes", admission=terms)
    assert not (await store.accept("a", "yes", admission=terms)).fresh
    await refusal(errors.RateExceeded, store.accept("a", "no", admission=terms))


async def an_input_that_is_refused_makes_no_journal(store: Store) -> None:
    blob = Blob("0" * 64, 1)
    await refusal(errors.BlobMissing, store.accept_into("a", "session", None, 1, refs=[blob], admission=TWO_A_SECOND))
    assert await store.journals() == []


async def _note(store: Store, journal: str, message: str = "too much") -> RefusedInput:
    return await store.note_refusal(journal, agent="a", key="k", error="RateExceeded", message=message)


async def refusals_are_there_for_the_next_opening_newest_first(store: Store, reopen: Reopen) -> None:
    first, second, third = await _note(store, "s"), await _note(store, "t"), await _note(store, "s", "again")
    store = await reopen()
    assert await store.refusals() == [third, second, first]
    assert await store.refusals("s") == [third, first]
    assert await store.refusals("s", limit=1) == [third]
    assert [found.nth for found in (first, second, third)] == [1, 1, 2]
    assert await store.journals() == []


async def of_one_journal_the_last_refusals_are_kept_and_all_are_counted(store: Store) -> None:
    noted = [await _note(store, "s") for _ in range(REFUSALS_KEPT_PER_JOURNAL + 3)]
    assert await store.refusals("s") == noted[: -REFUSALS_KEPT_PER_JOURNAL - 1 : -1]
    assert noted[-1].nth == REFUSALS_KEPT_PER_JOURNAL + 3


async def refusals_of_invented_journals_cannot_fill_the_store(store: Store) -> None:
    await asyncio.gather(*(_note(store, f"s{number}") for number in range(REFUSALS_KEPT + 5)))
    last = await _note(store, "last")
    found = await store.refusals(limit=REFUSALS_KEPT)
    assert (len(found), found[0], found[-1].id) == (REFUSALS_KEPT, last, last.id - REFUSALS_KEPT + 1)


async def the_terms_of_agents_survive_reopening(store: Store, reopen: Reopen) -> None:
    for agent, terms in (("a", "{}"), ("b", "1"), ("a", "2"), ("b", None)):
        await store.set_terms(agent, terms)
    assert await (await reopen()).terms() == {"a": "2"}
