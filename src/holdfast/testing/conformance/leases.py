"""Leases: one writer, epochs that only grow."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio

from holdfast.errors import (
    Fenced,
    LeaseHeld,
)
from holdfast.store import Lease, Store
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import (
    ON_A_JOURNAL,
    STALE,
    Stores,
    append_here,
    case,
    contents,
    leased,
    refusal,
    step,
)


@case
async def a_claimed_lease_tells_where_the_journal_ends(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await append_here(store, await leased(store, "a"), step("x"), step("y"))
        await store.release(Lease("a", 1, store.owner, 10_000, 1))
        lease = await store.claim("a", ttl_ms=5_000)
        assert (lease.journal, lease.head, lease.ttl_ms, lease.owner) == ("a", 3, 5_000, store.owner)


@case
async def a_live_lease_is_given_to_nobody_else(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        await leased(one, "a", ttl_ms=1_000)
        clock.advance(999)
        error = await refusal(LeaseHeld, two.claim("a"))
        assert (error.journal, error.holder, error.expires_in_ms) == ("a", one.owner.describe(), 1)


@case
async def a_live_lease_is_not_given_twice_to_its_own_holder(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await leased(store, "a")
        await refusal(LeaseHeld, store.claim("a"))


@case
async def of_many_claims_at_once_exactly_one_wins(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        await one.open_journal("a")
        claims = (store.claim("a") for store in (one, two) for _ in range(10))
        answers = await asyncio.gather(*claims, return_exceptions=True)
        assert sum(isinstance(answer, Lease) for answer in answers) == 1
        assert sum(isinstance(answer, LeaseHeld) for answer in answers) == 19


@case
async def a_renewed_lease_lasts_another_term(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "a", ttl_ms=1_000)
        clock.advance(900)
        await store.renew(lease)
        clock.advance(900)
        await refusal(LeaseHeld, store.claim("a"))
        clock.advance(100)
        assert (await store.claim("a")).epoch == lease.epoch + 1


@case
async def a_released_lease_is_free_at_once_and_worth_nothing(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        await store.release(lease)
        before = await contents(store)
        for name in STALE:
            error = await refusal(Fenced, ON_A_JOURNAL[name](store, lease))
            assert error.holder is None, name
        assert await contents(store) == before
        assert (await store.claim("a")).epoch == lease.epoch + 1


@case
async def an_expired_lease_can_be_taken_over_and_the_epoch_grows_by_one(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        lease = await leased(one, "a", ttl_ms=1_000)
        clock.advance(1_000)
        taken = await two.claim("a")
        assert (taken.epoch, taken.owner) == (lease.epoch + 1, two.owner)


@case
async def epochs_only_grow_also_over_reopening(stores: Stores) -> None:
    clock = ManualClock()
    epochs: list[int] = []
    for _ in range(4):
        async with stores.open(clock) as store:
            lease = await leased(store, "a", ttl_ms=1_000)
            await append_here(store, lease, step("x"))
            epochs.append(lease.epoch)
            if lease.epoch % 2:
                await store.release(lease)
            clock.advance(1_000)
    assert epochs == [1, 2, 3, 4]
    async with stores.open(clock) as store:
        assert [entry.epoch for entry in await store.read("a")] == [0, 1, 2, 3, 4]


@case
async def a_holder_whose_lease_expired_may_go_on_until_somebody_takes_over(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "a", ttl_ms=1_000)
        clock.advance(60_000)
        assert await store.append(lease, [step("x")], head=1) == 2
        await store.renew(lease)
        await refusal(LeaseHeld, store.claim("a"))


@case
async def a_stale_holder_is_fenced_off_and_told_who_holds_the_lease_now(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        stale = await leased(one, "a", ttl_ms=1_000)
        clock.advance(1_000)
        taken = await two.claim("a")
        before = await contents(one)
        for name in STALE:
            error = await refusal(Fenced, ON_A_JOURNAL[name](one, stale))
            assert (error.journal, error.epoch, error.current) == ("a", stale.epoch, taken.epoch), name
            assert error.holder == two.owner.describe(), name
        assert await contents(one) == before
        assert await two.append(taken, [step("x")], head=1) == 2
        await refusal(LeaseHeld, one.claim("a"))


@case
async def a_fenced_append_is_refused_before_its_head_is_looked_at(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        stale = await leased(store, "a", ttl_ms=1_000)
        clock.advance(1_000)
        await store.claim("a")
        await refusal(Fenced, store.append(stale, [step("x")], head=99))


@case
async def a_jump_of_the_wall_clock_takes_no_lease_away_and_prolongs_none(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await leased(store, "a", ttl_ms=1_000)
        clock.jump(10_000_000)
        assert (await refusal(LeaseHeld, store.claim("a"))).expires_in_ms == 1_000
        clock.jump(-20_000_000)
        clock.advance(999)
        assert (await refusal(LeaseHeld, store.claim("a"))).expires_in_ms == 1
        clock.advance(1)
        assert (await store.claim("a")).epoch == 2


@case
async def after_another_boot_a_lease_ends_by_the_wall_clock(stores: Stores) -> None:
    before, after = ManualClock(boot="first"), ManualClock(mono=0, boot="second")
    async with stores.open(before) as one, stores.open(after) as two:
        await leased(one, "a", ttl_ms=1_000)
        after.advance(999)
        assert (await refusal(LeaseHeld, two.claim("a"))).expires_in_ms == 1
        after.advance(1)
        assert (await two.claim("a")).epoch == 2


@case
async def closing_gives_all_leases_back_and_those_of_nobody_else(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as other:
        kept = await leased(other, "kept")
        async with stores.open(clock) as store:
            leases = [await leased(store, name) for name in ("a", "b")]
            await refusal(LeaseHeld, other.claim("a"))
        for lease in leases:
            assert (await refusal(Fenced, other.renew(lease))).holder is None
            assert (await other.claim(lease.journal)).epoch == lease.epoch + 1
        await other.renew(kept)


@case
async def a_lease_on_one_journal_says_nothing_about_another(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        one, two = await leased(store, "a"), await leased(store, "b")
        await store.release(one)
        assert await store.append(two, [step("x")], head=1) == 2


@case
async def a_lease_is_surely_held_until_its_term_is_over_and_again_when_it_is_renewed(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "a", ttl_ms=1_000)
        assert store.surely_holds(lease)
        clock.advance(1_000)
        assert not store.surely_holds(lease)
        await store.renew(lease)
        assert store.surely_holds(lease)
        await store.release(lease)
        assert not store.surely_holds(lease)


async def _made_and_claimed(store: Store, name: str) -> Lease:
    accepting = store.accept_into(name, "session", "a", {"name": name}, patient=True)
    lease = await store.claim(name)
    await accepting
    return lease


@case
async def a_lease_tells_all_that_there_is_in_a_journal_that_its_commit_made(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        names = iter(range(200))
        lease = await _made_and_claimed(store, f"j{next(names)}")
        while lease.made is None:  # the store has committed between the two commands, as it may
            lease = await _made_and_claimed(store, f"j{next(names)}")
        entries, waiting, _ = await store.read_with_inbox(lease.journal)
        assert [lease.made.opened] == [entry.record for entry in entries]
        assert [lease.made.input] == waiting


@case
async def a_lease_does_not_tell_what_there_is_where_more_has_come_in_the_same_commit(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        for number in range(20):
            name = f"j{number}"
            for content in ("one", "two"):
                store.accept_into(name, "session", "a", content, patient=True)
            assert (await store.claim(name)).made is None


@case
async def a_lease_does_not_tell_what_there_is_to_whoever_claims_next(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        for number in range(20):
            name = f"j{number}"
            store.accept_into(name, "session", "a", "one", patient=True)
            first = await store.claim(name)
            appending = store.append(first, [step("x")], head=1, patient=True)
            releasing = store.release(first)
            second = await store.claim(name)
            await appending
            await releasing
            assert (second.head, second.made) == (2, None)


@case
async def a_lease_does_not_tell_what_there_is_in_a_fork(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await append_here(store, await leased(store, "a"), step("x"))
        await store.fork("f", "a", 2)
        assert (await store.claim("f")).made is None
