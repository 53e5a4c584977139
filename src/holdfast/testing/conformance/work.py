"""Work: which sessions somebody should advance, and who does."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from holdfast.clock import boot_id
from holdfast.errors import (
    Fenced,
    InvalidNumber,
    KeyConflict,
)
from holdfast.records import Admitted, Ended, Parked, Resumed, Started
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import (
    Stores,
    all_work,
    append_here,
    case,
    leased,
    refusal,
    step,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.records import Record
    from holdfast.store import Lease, Store, Work

    Settle: TypeAlias = Callable[[Store, str], Awaitable[object]]


async def _wakes(store: Store, journal: str) -> int:
    """How often the journal was woken: whoever claims it is told."""
    lease = await store.claim(journal)
    await store.release(lease)
    return lease.wakes


async def _work(store: Store, journal: str) -> Work | None:
    return next((found for found in await all_work(store) if found.journal == journal), None)


async def _parked(store: Store, journal: str, *waits: str) -> Lease:
    """A session whose run waits for something; its lease is given back, and nothing is left to do."""
    lease = await leased(store, journal)
    await append_here(store, lease, Started(at=1, run="r"), Parked(at=2, run="r", waits=waits))
    await store.release(lease, seen=lease.wakes)
    return lease


@case
async def a_session_that_nobody_has_woken_is_no_work(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("idle")
        await _parked(store, "waiting")
        lease = await leased(store, "done")
        await append_here(store, lease, Started(at=1, run="r"), Ended(at=2, run="r", status="completed"))
        assert await store.work() == []


@case
async def an_accepted_input_is_work_until_somebody_has_seen_it(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("a", agent="clerk")
        await store.accept("a", 1, key="k")
    async with stores.open(clock) as store:
        (found,) = await store.work()
        assert (found.journal, found.agent, found.wakes, found.status) == ("a", "clerk", 1, "idle")
        assert (found.holder, found.left_ms) == (None, 0)
        lease = await store.claim("a")
        assert lease.wakes == 1
        await store.release(lease, seen=lease.wakes)
        assert await store.work() == []


@case
async def an_input_that_opened_its_journal_is_work(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.accept_into("a", "session", "clerk", 1, key="k")
        assert [(found.journal, found.agent, found.wakes) for found in await store.work()] == [("a", "clerk", 1)]


@case
async def only_a_fresh_input_wakes_its_journal(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.accept("a", 1, key="k")
        await store.accept("a", 1, key="k")
        await refusal(KeyConflict, store.accept("a", 2, key="k"))
        assert await _wakes(store, "a") == 1
        await store.accept("a", 2, key="l")
        assert await _wakes(store, "a") == 2


@case
async def what_came_in_after_the_claim_is_still_work_after_the_release(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.accept("a", 1, key="k")
        lease = await store.claim("a")
        await store.accept("a", 2, key="l")
        await append_here(store, lease, Admitted(at=1, input=1, key="k"))
        await store.release(lease, seen=lease.wakes)
        (found,) = await store.work()
        assert found.wakes == 2


@case
async def a_release_that_has_seen_nothing_leaves_the_work(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.accept("a", 1, key="k")
        await store.release(await store.claim("a"))
        assert await _work(store, "a") is not None
        await store.release(await store.claim("a"), seen=0)
        assert await _work(store, "a") is not None


@case
async def what_was_seen_once_stays_seen(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.accept("a", 1, key="k")
        await store.release(await store.claim("a"), seen=1)
        await store.release(await store.claim("a"), seen=0)
        assert await store.work() == []


@case
async def more_wakes_than_there_were_can_not_have_been_seen(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.accept("a", 1, key="k")
        lease = await store.claim("a")
        for bad in (2, -1):
            await refusal(InvalidNumber, store.release(lease, seen=bad))
        await store.renew(lease)  # a refused release releases nothing
        assert await _work(store, "a") is not None


@case
async def a_stale_holder_has_seen_nothing(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.accept("a", 1, key="k")
        stale = await store.claim("a", ttl_ms=1_000)
        clock.advance(1_000)
        await store.release(await store.claim("a"))
        await refusal(Fenced, store.release(stale, seen=1))
        assert await _work(store, "a") is not None


@case
async def a_running_session_is_work_whoever_holds_it(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        lease = await leased(one, "a", ttl_ms=1_000)
        await append_here(one, lease, Started(at=1, run="r"))
        clock.advance(400)
        (found,) = await two.work()
        assert (found.status, found.wakes, found.holder, found.left_ms) == ("running", 0, one.owner, 600)
        await one.release(lease)
        (found,) = await two.work()
        assert (found.holder, found.left_ms) == (None, 0)


@case
async def an_expired_holder_is_not_named(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await append_here(store, await leased(store, "a", ttl_ms=1_000), Started(at=1, run="r"))
        clock.advance(999)
        assert [(found.holder, found.left_ms) for found in await store.work()] == [(store.owner, 1)]
        clock.advance(1)
        assert [(found.holder, found.left_ms) for found in await store.work()] == [(None, 0)]


@case
async def a_closed_store_leaves_its_running_sessions_as_work_of_nobody(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await append_here(store, await leased(store, "a"), Started(at=1, run="r"))
    async with stores.open(clock) as store:
        assert [(found.journal, found.holder) for found in await store.work()] == [("a", None)]


@case
async def a_holder_whose_process_is_gone_can_be_told_from_one_that_lives(stores: Stores) -> None:
    async with stores.open(ManualClock(boot=boot_id())) as store:
        await append_here(store, await leased(store, "a"), Started(at=1, run="r"))
        (found,) = await store.work()
        assert found.holder is not None
        assert not store.owner_gone(found.holder)
        if found.holder.started:  # else this system does not tell when a process began, and nothing can be proved
            before = msgspec.structs.replace(found.holder, started=found.holder.started + 1)
            assert store.owner_gone(before)


@case
async def processes_and_quarantined_journals_are_no_work(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("process", "process")
        await store.accept("process", 1, key="k")
        await append_here(store, await store.claim("process"), Started(at=1, run="r"))
        await store.open_journal("bad")
        await store.accept("bad", 1, key="k")
        assert [found.journal for found in await store.work()] == ["bad"]
        await store.quarantine("bad", "a test")
        assert await store.work() == []


@case
async def work_follows_the_status_of_its_session(stores: Stores) -> None:
    story: list[tuple[Record, bool]] = [
        (Started(at=1, run="r"), True),
        (step("x"), True),
        (Parked(at=2, run="r"), False),
        (Ended(at=3, run="queued", status="cancelled", unstarted=True), False),
        (Resumed(at=4, run="r", by="pid 2"), True),
        (Ended(at=5, run="other", status="cancelled", unstarted=True), True),
        (Ended(at=6, run="r", status="failed"), False),
    ]
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        for record, expected in story:
            await append_here(store, lease, record)
            assert (await _work(store, "a") is not None) is expected, record


_SETTLINGS: Final[dict[str, Settle]] = {
    "resolved": lambda store, journal: store.resolve(store.wait_token(journal, "w"), 1),
    "expired": lambda store, journal: store.expire_wait(journal, "late"),
    "too late": lambda store, journal: store.resolve(store.wait_token(journal, "late"), 1),
    "cancelled": lambda store, journal: store.cancel_wait(journal, "w"),
    "buffered": lambda store, journal: store.resolve(store.wait_token(journal, "new"), 1),
    "revoked": lambda store, journal: store.revoke_waits(journal, "w"),
    "all revoked": lambda store, journal: store.revoke_waits(journal),
}


@case
async def a_wait_that_is_settled_wakes_a_session_that_waits(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        for how, settle in _SETTLINGS.items():
            await store.open_journal(how)
            await store.open_wait(how, "w")
            await store.open_wait(how, "late", deadline=clock.read().wall + 10)
            await _parked(store, how, "w", "late")
            clock.advance(10)
            assert await _work(store, how) is None, how
            await settle(store, how)
            found = await _work(store, how)
            assert found is not None, how
            assert (found.status, found.wakes) == ("waiting", 1), how


@case
async def a_wait_that_stays_open_or_was_settled_before_wakes_nobody(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.open_wait("a", "w")
        await store.open_wait("a", "other")
        await store.cancel_wait("a", "other")
        await _parked(store, "a", "w")
        await store.expire_wait("a", "w")
        await store.cancel_wait("a", "other")
        await store.resolve(store.wait_token("a", "other"), 1)
        await store.open_wait("a", "new")
        assert await store.work() == []


@case
async def a_wait_that_is_settled_while_its_session_does_not_wait_wakes_nobody(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("idle")
        await store.open_wait("idle", "w")
        await store.cancel_wait("idle", "w")
        await append_here(store, await leased(store, "running"), Started(at=1, run="r"))
        await store.open_wait("running", "w")
        await store.resolve(store.wait_token("running", "w"), 1)
        assert await _wakes(store, "idle") == 0
        assert [(found.journal, found.wakes) for found in await store.work()] == [("running", 0)]


@case
async def a_session_that_parks_for_what_has_come_already_is_woken_at_once(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        for name in ("open", "answered"):
            await store.open_wait("a", name)
        await store.resolve(store.wait_token("a", "answered"), 1)
        await append_here(store, lease, Started(at=1, run="r"))
        await append_here(store, lease, Parked(at=2, run="r", waits=("open", "answered")))
        await store.release(lease, seen=lease.wakes)
        (found,) = await store.work()
        assert (found.status, found.wakes) == ("waiting", 1)


@case
async def a_session_that_parks_for_what_was_answered_before_anybody_asked_is_woken_at_once(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        await store.resolve(store.wait_token("a", "early"), 1)
        await append_here(store, lease, Started(at=1, run="r"), Parked(at=2, run="r", waits=("early",)))
        assert await _work(store, "a") is not None


@case
async def a_session_that_parks_for_what_is_still_open_is_left_alone(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.open_wait("a", "open")
        await store.open_wait("a", "unrelated")
        await store.cancel_wait("a", "unrelated")
        await _parked(store, "a", "open", "nobody opened this yet")
        assert await store.work() == []


@case
async def however_parking_and_the_answer_meet_the_session_is_woken(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        for n in range(6):
            name = f"j{n}"
            lease = await leased(store, name)
            await store.open_wait(name, "w")
            await append_here(store, lease, Started(at=1, run="r"))
            parking = store.append(lease, [Parked(at=2, run="r", waits=("w",))], head=2)
            answer = asyncio.ensure_future(store.resolve(store.wait_token(name, "w"), 1))
            if n % 2:
                await parking
            await asyncio.gather(parking, answer)
            await store.release(lease, seen=lease.wakes)
            found = await _work(store, name)
            assert found is not None
            assert (found.status, found.wakes) == ("waiting", 1)


@case
async def work_comes_in_the_order_of_creation_page_by_page(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        names = [f"j{9 - n}" for n in range(10)]
        for name in names:
            await store.open_journal(name)
        for name in (*names[5:], *names[:5]):
            if name != "j4":
                await store.accept(name, 1, key="k")
        expected = [name for name in names if name != "j4"]
        everything = await store.work()
        assert [found.journal for found in everything] == expected
        for size in (1, 2, 9, 50):
            seen: list[Work] = []
            while page := await store.work(seen[-1].no if seen else 0, limit=size):
                assert len(page) <= size
                seen.extend(page)
                assert len(seen) <= len(expected), size
            assert seen == everything, size
