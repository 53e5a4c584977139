"""The inbox: accepted once, in order, bounded."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio

import msgspec

from holdfast.errors import (
    BlobMissing,
    HeadConflict,
    InboxFull,
    InputTaken,
    JournalConflict,
    JournalQuarantined,
    KeyConflict,
    PayloadTooLarge,
)
from holdfast.records import Admitted, Blob, Opened
from holdfast.store import Receipt
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import (
    Stores,
    append_here,
    case,
    contents,
    leased,
    refusal,
    step,
    with_blob,
)


@case
async def the_same_input_under_the_same_key_gives_the_same_receipt(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        first = await store.accept("a", {"x": 1, "y": 2}, key="k")
        clock.advance(5)
        again = await store.accept("a", {"y": 2, "x": 1}, key="k")
        assert first.fresh
        assert not again.fresh
        assert (again.input, again.key, again.at) == (first.input, first.key, first.at)
        assert len(await store.pending("a")) == 1


@case
async def other_content_under_the_same_key_is_a_conflict(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.accept("a", 1, key="k")
        before = await contents(store)
        for other in (2, 1.0, True, "1", [1], None):
            error = await refusal(KeyConflict, store.accept("a", other, key="k"))
            assert (error.journal, error.key) == ("a", "k")
        assert await contents(store) == before


@case
async def idempotency_keys_are_remembered_over_reopening_and_after_admission(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "a")
        first = await store.accept("a", "hello", key="k")
        await append_here(store, lease, Admitted(at=1, input=first.input, key="k"))
    async with stores.open(clock) as store:
        again = await store.accept("a", "hello", key="k")
        assert (again.input, again.at, again.fresh) == (first.input, first.at, False)
        await refusal(KeyConflict, store.accept("a", "bye", key="k"))
        assert await store.pending("a") == []


@case
async def of_many_inputs_with_one_key_at_once_one_is_taken(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        await one.open_journal("a")
        attempts = (store.accept("a", "hello", key="k") for store in (one, two) for _ in range(10))
        receipts = await asyncio.gather(*attempts)
        assert sum(receipt.fresh for receipt in receipts) == 1
        assert {receipt.input for receipt in receipts} == {1}
        assert len(await two.pending("a")) == 1


@case
async def of_many_contents_with_one_key_at_once_one_is_taken_and_the_others_conflict(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        answers = await asyncio.gather(*(store.accept("a", n, key="k") for n in range(10)), return_exceptions=True)
        assert sum(isinstance(answer, KeyConflict) for answer in answers) == 9
        assert [found.body for found in await store.pending("a")] == [b"0"]


@case
async def keys_belong_to_their_journal(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.open_journal("b")
        assert (await store.accept("a", 1, key="k")).fresh
        assert (await store.accept("b", 2, key="k")).fresh


@case
async def inputs_without_a_key_are_all_different(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        receipts = [await store.accept("a", "hello") for _ in range(3)]
        assert [receipt.input for receipt in receipts] == [1, 2, 3]
        assert len({receipt.key for receipt in receipts}) == 3


@case
async def pending_inputs_are_in_the_order_of_their_acceptance(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await asyncio.gather(*(store.accept("a", n, key=f"k{9 - n}") for n in range(10)))
        assert [(found.input, found.body) for found in await store.pending("a")] == [
            (n + 1, str(n).encode()) for n in range(10)
        ]
        assert [found.input for found in await store.pending("a", limit=3)] == [1, 2, 3]


@case
async def a_full_inbox_refuses_new_inputs_and_still_answers_old_ones(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        limit = store.limits.pending_inputs
        await asyncio.gather(*(store.accept("a", n, key=f"k{n}") for n in range(limit)))
        error = await refusal(InboxFull, store.accept("a", "one more", key="more"))
        assert error.limit == limit
        assert not (await store.accept("a", 0, key="k0")).fresh
        await append_here(store, lease, Admitted(at=1, input=1, key="k0"))
        assert (await store.accept("a", "one more", key="more")).input == limit + 1


@case
async def an_admitted_record_takes_its_input_out_in_the_same_append(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        for n in range(3):
            await store.accept("a", n, key=f"k{n}")
        head = await append_here(store, lease, Admitted(at=1, input=2, key="k1", body=msgspec.Raw(b"1")), step("x"))
        assert head == 3
        assert [found.input for found in await store.pending("a")] == [1, 3]


@case
async def a_refused_append_admits_nothing(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        await store.accept("a", 1, key="k")
        before = await contents(store)
        admitted = Admitted(at=1, input=1, key="k")
        await refusal(HeadConflict, store.append(lease, [admitted], head=5))
        await refusal(BlobMissing, store.append(lease, [admitted, with_blob(Blob("0" * 64, 1))], head=1))
        assert await contents(store) == before


@case
async def an_input_is_admitted_once(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        await store.accept("a", 1, key="k")
        admitted = Admitted(at=1, input=1, key="k")
        await store.append(lease, [admitted], head=1)
        before = await contents(store)
        error = await refusal(InputTaken, store.append(lease, [step("x"), admitted], head=2))
        assert (error.journal, error.input) == ("a", 1)
        await refusal(InputTaken, store.append(lease, [Admitted(at=1, input=7, key="never")], head=2))
        assert await contents(store) == before


@case
async def an_input_is_not_admitted_twice_by_one_append(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        await store.accept("a", 1, key="k")
        before = await contents(store)
        admitted = Admitted(at=1, input=1, key="k")
        await refusal(InputTaken, store.append(lease, [admitted, admitted], head=1))
        assert await contents(store) == before


@case
async def an_input_over_the_limit_is_refused(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        limit = store.limits.input_bytes
        error = await refusal(PayloadTooLarge, store.accept("a", "x" * (limit - 1), key="k"))
        assert (error.size, error.limit) == (limit + 1, limit)
        assert await store.pending("a") == []
        assert (await store.accept("a", "x" * (limit - 2), key="k")).fresh


@case
async def a_receipt_tells_where_the_journal_ended_and_a_repeated_one_does_not(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await append_here(store, await leased(store, "a"), step("x"), step("y"))
        first = await store.accept("a", 1, key="k")
        again = await store.accept("a", 1, key="k")
        assert (first.head, again.head) == (3, 0)


@case
async def an_input_is_found_by_its_key(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "a")
        await store.open_journal("b")
        first = await store.accept("a", "hello", key="k")
        clock.advance(5)
        found = await store.find_input("a", "k")
        assert found == Receipt("a", first.input, "k", first.at, fresh=False)
        await append_here(store, lease, Admitted(at=1, input=first.input, key="k", run="t1"))
        assert await store.find_input("a", "k") == found
        assert await store.find_input("a", "other") is None
        assert await store.find_input("b", "k") is None


@case
async def an_input_may_come_with_the_opening_of_its_journal(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        receipt = await store.accept_into("a", "session", "clerk", "hello", key="k")
        assert (receipt.journal, receipt.input, receipt.fresh, receipt.head) == ("a", 1, True, 1)
        (entry,) = await store.read("a")
        assert isinstance(entry.record, Opened)
        assert (entry.record.kind, entry.record.agent) == ("session", "clerk")
        assert [found.body for found in await store.pending("a")] == [b'"hello"']


@case
async def an_input_that_comes_with_an_opening_finds_a_journal_that_is_there(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a", "session", "clerk")
        first = await store.accept_into("a", "session", "clerk", 1, key="k")
        again = await store.accept_into("a", "session", "clerk", 1, key="k")
        assert (first.fresh, again.fresh) == (True, False)
        await refusal(KeyConflict, store.accept_into("a", "session", "clerk", 2, key="k"))
        assert (await store.journal("a")).head == 1
        assert len(await store.pending("a")) == 1


@case
async def an_input_is_not_accepted_when_its_opening_is_refused(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a", "session", "clerk")
        await store.accept("a", 1, key="k")
        await store.open_journal("bad", "session", "clerk")
        await store.quarantine("bad", "a test")
        before = await contents(store)
        await refusal(JournalConflict, store.accept_into("a", "process", "clerk", 2, key="new"))
        await refusal(JournalConflict, store.accept_into("a", "session", "cook", 2, key="new"))
        await refusal(JournalConflict, store.accept_into("a", "session", None, 1, key="k"))
        await refusal(JournalQuarantined, store.accept_into("bad", "session", "clerk", 2, key="new"))
        assert await contents(store) == before


@case
async def a_journal_is_not_opened_when_its_input_is_refused(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        too_large = "x" * store.limits.input_bytes
        await refusal(PayloadTooLarge, store.accept_into("a", "session", None, too_large, key="k"))
        assert await store.heads(["a"]) == {}


@case
async def of_many_inputs_that_open_one_journal_at_once_all_are_taken(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        attempts = (
            store.accept_into("a", "session", "clerk", n, key=f"k{n}") for n, store in enumerate((one, two) * 5)
        )
        receipts = await asyncio.gather(*attempts)
        assert sorted(receipt.input for receipt in receipts) == list(range(1, 11))
        assert await one.last_position() == 1
