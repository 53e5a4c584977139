"""Pumps: one host has the notifications of a session, and each has one end."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

from typing import TYPE_CHECKING, cast

from holdfast import errors
from holdfast.store import Lease, Notification, Store
from holdfast.store.audit import audit
from holdfast.store.notifications import backoff, pump_journal
from holdfast.testing.conformance.suite import leased, refusal, unchanged

if TYPE_CHECKING:
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.conformance.suite import Reopen, StoreA

TTL = 1_000


async def _notify(store: Store, title: str = "done", *, priority: int = 0, due: int | None = None) -> Notification:
    return (await store.notify("a", kind="task", title=title, priority=priority, due=due))[0]


async def _pumped(store: Store, lease: Lease) -> Notification:
    found = await store.pump_notification(lease, "a")
    assert isinstance(found, Notification)
    return found


async def _states(store: Store) -> dict[str, str]:
    return {found.title: found.state for found in await store.notifications("a")}


async def a_pump_claims_in_the_order_of_delivery_and_says_when_the_next_is_due(store: StoreA) -> None:
    lease = await store.open_pump("a", ttl_ms=TTL)
    now = store.clock.read().wall
    await _notify(store, "low")
    await _notify(store, "high", priority=1)
    await _notify(store, "later", due=now + 50)
    high, low = await _pumped(store, lease), await _pumped(store, lease)
    assert (high.title, low.title, high.state, high.attempts, high.input) == ("high", "low", "claimed", 1, None)
    assert await store.pump_notification(lease, "a") == now + 50
    assert await store.settle_pumped(lease, high.id, acknowledged=True)
    assert await store.settle_pumped(lease, high.id, acknowledged=True), "the same answer once more"
    assert not await store.settle_pumped(lease, high.id, acknowledged=False)
    assert await store.settle_pumped(lease, low.id, acknowledged=False, pause_ms=20, reason="busy")
    again = await store.notification(low.id)
    assert (again.state, again.due, again.reason) == ("queued", now + 20, "busy")
    assert await store.pump_notification(lease, "a") == now + 20
    assert await store.examine(audit) == []


async def while_a_pump_holds_a_session_nothing_else_delivers_to_it(store: StoreA) -> None:
    driver = await leased(store, "a")
    before = await _notify(store, "in a turn")
    assert await store.deliver_notifications(driver, [before.id], "news") is not None
    pump = await store.open_pump("a", ttl_ms=TTL)
    found = await _notify(store)
    assert await store.ripen(again=True) == []
    async with unchanged(store):
        assert await store.deliver_notifications(driver, [found.id], "news") is None
        assert not await store.settle_pumped(pump, before.id, acknowledged=True), "it is in the hands of a turn"
        await refusal(errors.PumpHeld, store.open_pump("a"), session="a")
        await refusal(errors.NotASession, store.open_pump(pump_journal("a")))
        await refusal(errors.JournalMissing, store.open_pump("ghost"))
    await store.close_pump(pump, "a")
    assert await store.deliver_notifications(driver, [found.id], "news") is not None


async def the_end_of_a_pump_returns_what_it_had_and_wakes_the_session(store: StoreA, reopen: Reopen) -> None:
    lease = await store.open_pump("a", ttl_ms=TTL)
    await _notify(store)
    found = await _pumped(store, lease)
    assert [work.journal for work in await store.work()] == [pump_journal("a")], "only the pump has work"
    await store.close_pump(lease, "a")
    assert [work.journal for work in await store.work()] == ["a"]
    async with unchanged(store):
        assert not await store.settle_pumped(lease, found.id, acknowledged=True)
        await refusal(errors.Fenced, store.close_pump(lease, "a"))
    store = await reopen()
    again = await store.notification(found.id)
    assert (again.state, again.attempts, again.due) == ("queued", 1, store.clock.read().wall)
    assert await store.examine(audit) == []


async def a_pump_whose_lease_lapsed_is_ended_once_and_fenced(store: StoreA, clock: ManualClock) -> None:
    lease = await store.open_pump("a", ttl_ms=TTL)
    await _notify(store)
    found = await _pumped(store, lease)
    assert not await store.recover_pump(pump_journal("a")), "it is held"
    clock.advance(TTL)
    assert await store.recover_pump(pump_journal("a"))
    assert await _states(store) == {"done": "queued"}
    assert [work.journal for work in await store.work()] == ["a"]
    assert not await store.settle_pumped(lease, found.id, acknowledged=True)
    await refusal(errors.Fenced, store.renew(lease), store.pump_notification(lease, "a"))
    other = await store.open_pump("a", ttl_ms=TTL)
    again = await _pumped(store, other)
    assert (again.id, again.attempts) == (found.id, 2)
    assert await store.settle_pumped(other, found.id, acknowledged=True)


async def the_next_pump_takes_over_what_a_lapsed_one_had(store: StoreA, clock: ManualClock, reopen: Reopen) -> None:
    lease = await store.open_pump("a", ttl_ms=TTL)
    await _notify(store)
    await _pumped(store, lease)
    clock.advance(TTL)
    store = await reopen()
    other = await store.open_pump("a", ttl_ms=TTL)
    assert (await _pumped(store, other)).attempts == 2
    assert await store.examine(audit) == []


async def one_that_no_pump_acknowledges_is_dead_after_the_last_attempt(store: StoreA, clock: ManualClock) -> None:
    lease = await store.open_pump("a", ttl_ms=TTL)
    found = await _notify(store)
    for attempt in range(1, store.limits.max_attempts + 1):
        await store.renew(lease)
        found = await _pumped(store, lease)
        assert found.attempts == attempt
        assert await store.settle_pumped(lease, found.id, acknowledged=False)
        clock.advance(backoff(attempt))
    assert await _states(store) == {"done": "dead"}
    assert await store.pump_notification(lease, "a") is None


async def what_is_settled_by_hand_or_quarantined_is_not_the_pumps_any_more(store: StoreA) -> None:
    lease = await store.open_pump("a", ttl_ms=TTL)
    for title in ("by hand", "quarantined"):
        await _notify(store, title)
    one, two = [cast("Notification", await store.pump_notification(lease, "a")) for _ in range(2)]
    await store.settle_notification(one.id, "cancelled")
    await store.quarantine("a", "a test")
    assert await _states(store) == {"by hand": "cancelled", "quarantined": "dead"}
    for found in (one, two):
        assert not await store.settle_pumped(lease, found.id, acknowledged=True)
    await store.close_pump(lease, "a")
    assert await _states(store) == {"by hand": "cancelled", "quarantined": "dead"}
