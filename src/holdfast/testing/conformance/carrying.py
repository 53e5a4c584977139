"""Delivery: claimed with one input, acknowledged by the turn that took it, queued again where that failed."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.errors import Fenced, InboxFull, JournalQuarantined, KeyConflict, NotificationUnknown
from holdfast.records import Admitted, Ended, Started
from holdfast.store.audit import audit
from holdfast.store.notifications.decisions import backoff
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.notifications import offered, told
from holdfast.testing.conformance.suite import Stores, append_here, case, contents, leased, refusal

if TYPE_CHECKING:
    from holdfast.records import EndStatus
    from holdfast.store import Lease, Receipt, Store


async def _carried(store: Store, lease: Lease, *ids: int) -> Receipt:
    """The input that carries these notifications."""
    chosen = ids or tuple(found.id for found in await store.next_notifications("s"))
    receipt = await store.carry(lease, chosen, "news")
    assert receipt is not None
    return receipt


async def _turn(
    store: Store, lease: Lease, receipt: Receipt, status: EndStatus | None, *, unstarted: bool = False
) -> None:
    """A turn that this input begins, and how it ends."""
    run = f"t{receipt.input}"
    admitted = Admitted(at=1, input=receipt.input, key=receipt.key, run=run)
    if unstarted:
        assert status is not None
        await append_here(store, lease, admitted, Ended(at=2, run=run, status=status, unstarted=True))
        return
    await append_here(store, lease, Started(at=1, run=run), admitted)
    if status is not None:
        await append_here(store, lease, Ended(at=2, run=run, status=status))


@case
async def several_are_carried_by_one_input(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "s")
        ids = [(await told(store, title)).id for title in ("a", "b", "c")]
        receipt = await store.carry(lease, ids[:2], {"say": "a and b"}, key="digest")
        assert receipt is not None
        assert (receipt.journal, receipt.input, receipt.key, receipt.fresh) == ("s", 1, "digest", True)
    async with stores.open(clock) as store:
        assert [(found.input, found.body) for found in await store.pending("s")] == [(1, b'{"say":"a and b"}')]
        claimed = [await store.notification(number) for number in ids[:2]]
        standing = [(found.state, found.attempts, found.input, found.run) for found in claimed]
        assert standing == [("claimed", 1, 1, None)] * 2
        assert await offered(store) == ["c"]
        assert [(found.journal, found.wakes) for found in await store.work()] == [("s", 4)]
        assert await store.examine(audit) == []


@case
async def what_is_not_ready_is_left_out(stores: Stores) -> None:
    clock = ManualClock()
    now = clock.read().wall
    async with stores.open(clock) as store:
        lease = await leased(store, "s")
        ready = await told(store, "ready")
        later = await told(store, "later", due=now + 100)
        gone = await told(store, "gone")
        await store.settle_notification(gone.id, "cancelled")
        expired, _ = await store.notify("s", kind="task", title="expired", expires=now + 10)
        clock.advance(10)
        ids = [later.id, gone.id, expired.id, ready.id, ready.id]
        await _carried(store, lease, *ids)
        states = [(await store.notification(number)).state for number in ids]
        assert states == ["queued", "cancelled", "queued", "claimed", "claimed"]
        before = await contents(store)
        assert await store.carry(lease, ids, "news") is None
        assert await store.carry(lease, [], "news") is None
        assert await contents(store) == before


@case
async def a_carriage_that_is_refused_claims_nothing(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        await store.open_journal("other")
        found = await told(store)
        foreign, _ = await store.notify("other", kind="task", title="not mine")
        await store.accept("s", 1, key="used")
        before = await contents(store)
        await refusal(KeyConflict, store.carry(lease, [found.id], 1, key="used"))
        error = await refusal(NotificationUnknown, store.carry(lease, [found.id, foreign.id], 1))
        assert (error.number, error.journal) == (foreign.id, "s")
        await refusal(NotificationUnknown, store.carry(lease, [found.id, 999], 1))
        assert await contents(store) == before
        await store.release(lease)
        await refusal(Fenced, store.carry(await _other_epoch(store, lease), [found.id], 1))
        assert (await store.notification(found.id)).state == "queued"


async def _other_epoch(store: Store, lease: Lease) -> Lease:
    """A lease that has moved on."""
    await store.claim(lease.journal)
    return lease


@case
async def a_full_inbox_takes_no_notifications(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        found = await told(store)
        await asyncio.gather(*(store.accept("s", n, key=f"k{n}") for n in range(store.limits.pending_inputs)))
        await refusal(InboxFull, store.carry(lease, [found.id], 1))
        assert (await store.notification(found.id)).state == "queued"


@case
async def nothing_is_carried_into_a_journal_in_quarantine(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        found = await told(store)
        await store.quarantine("s", "a test")
        await refusal(JournalQuarantined, store.carry(lease, [found.id], 1))


@case
async def a_turn_that_ends_well_acknowledges_what_it_carried(stores: Stores) -> None:
    endings: tuple[EndStatus, ...] = ("completed", "limit")
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        for status in endings:
            found = await told(store)
            receipt = await _carried(store, lease)
            await _turn(store, lease, receipt, None)
            carried = await store.notification(found.id)
            assert (carried.state, carried.run) == ("claimed", f"t{receipt.input}")
            await append_here(store, lease, Ended(at=2, run=f"t{receipt.input}", status=status))
            assert (await store.notification(found.id)).state == "acknowledged", status
            assert await store.examine(audit) == []


@case
async def a_turn_that_fails_gives_back_what_it_carried_after_a_pause(stores: Stores) -> None:
    endings: tuple[EndStatus, ...] = ("failed", "cancelled")
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "s", ttl_ms=600_000)
        for status in endings:
            found = await told(store, status)
            receipt = await _carried(store, lease)
            await _turn(store, lease, receipt, status)
            back = await store.notification(found.id)
            assert (back.state, back.attempts) == ("queued", 1), status
            assert back.due == clock.read().wall + backoff(1), status
            assert status in (back.reason or "")
            assert await offered(store) == []
            assert await store.next_due() == back.due
            await store.release(lease, seen=(await store.wakes(["s"]))["s"])
            assert await store.work() == []
            clock.advance(backoff(1))
            assert await store.ripen() == ["s"]
            assert [work.journal for work in await store.work()] == ["s"]
            assert await offered(store) == [status]
            lease = await store.claim("s", ttl_ms=600_000)
            await _turn(store, lease, await _carried(store, lease), "completed")
            assert await store.examine(audit) == []


@case
async def a_turn_that_ended_before_it_began_has_shown_nothing_to_anybody(stores: Stores) -> None:
    endings: tuple[EndStatus, ...] = ("cancelled", "limit", "completed")
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        for status in endings:
            found = await told(store)
            await _turn(store, lease, await _carried(store, lease, found.id), status, unstarted=True)
            assert (await store.notification(found.id)).state == "queued", status
        assert await store.examine(audit) == []


@case
async def one_that_no_turn_takes_is_dead_in_the_end(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "s", ttl_ms=10**9)
        found = await told(store)
        for attempt in range(1, store.limits.max_attempts + 1):
            assert (await store.notification(found.id)).state == "queued", attempt
            await _turn(store, lease, await _carried(store, lease), "failed")
            clock.advance(backoff(attempt))
        dead = await store.notification(found.id)
        assert (dead.state, dead.attempts) == ("dead", store.limits.max_attempts)
        assert f"{store.limits.max_attempts} times" in (dead.reason or "")
        assert await store.next_due() is None
        assert await store.examine(audit) == []
        again, won = await store.settle_notification(found.id, "queued")
        assert won
        assert again.attempts == 0
        assert await offered(store) == ["done"]


@case
async def what_comes_back_keeps_its_place(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "s", ttl_ms=600_000)
        first = await told(store, "first")
        await told(store, "second")
        await _turn(store, lease, await _carried(store, lease, first.id), "failed")
        await told(store, "urgent", priority=1)
        clock.advance(backoff(1))
        assert await offered(store) == ["urgent", "first", "second"]


@case
async def one_that_expired_in_a_turn_that_failed_does_not_come_back(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "s", ttl_ms=600_000)
        found, _ = await store.notify("s", kind="task", title="x", expires=clock.read().wall + 10)
        receipt = await _carried(store, lease)
        clock.advance(10)
        assert await store.ripen() == []
        assert (await store.notification(found.id)).state == "claimed", "it is with the turn"
        await _turn(store, lease, receipt, "failed")
        assert (await store.notification(found.id)).state == "expired"
        assert await store.examine(audit) == []


@case
async def an_input_without_a_turn_has_delivered_what_it_carries(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        found = await told(store)
        receipt = await _carried(store, lease)
        await append_here(store, lease, Admitted(at=1, input=receipt.input, key=receipt.key))
        assert (await store.notification(found.id)).state == "acknowledged"
        assert await store.examine(audit) == []


@case
async def a_turn_answers_only_for_what_it_took(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        one, two = await told(store, "one"), await told(store, "two")
        first, second = await _carried(store, lease, one.id), await _carried(store, lease, two.id)
        await _turn(store, lease, first, None)
        steered = Admitted(at=1, input=second.input, key=second.key, run=f"t{first.input}")
        await append_here(store, lease, Ended(at=2, run="another", status="cancelled", unstarted=True))
        assert {found.state for found in await store.notifications()} == {"claimed"}
        await append_here(store, lease, steered, Ended(at=2, run=f"t{first.input}", status="completed"))
        assert {found.state for found in await store.notifications()} == {"acknowledged"}


@case
async def a_person_can_settle_what_a_turn_has(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        for wanted in ("cancelled", "acknowledged"):
            found = await told(store)
            receipt = await _carried(store, lease)
            assert not (await store.settle_notification(found.id, "queued"))[1]
            assert (await store.settle_notification(found.id, wanted))[1]
            await _turn(store, lease, receipt, "failed")
            assert (await store.notification(found.id)).state == wanted
        assert await store.examine(audit) == []


@case
async def what_was_claimed_is_delivered_by_whoever_goes_on(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "s")
        found = await told(store)
        await _carried(store, lease)
    async with stores.open(clock) as store:
        assert [work.journal for work in await store.work()] == ["s"]
        (waiting,) = await store.pending("s")
        lease = await store.claim("s")
        ended = Ended(at=3, run="t1", status="completed")
        admitted = Admitted(at=1, input=waiting.input, key=waiting.key, run="t1")
        await append_here(store, lease, Started(at=1, run="t1"), admitted, ended)
        assert (await store.notification(found.id)).state == "acknowledged"
