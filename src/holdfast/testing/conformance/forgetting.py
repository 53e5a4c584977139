"""Notifications that are over: purged after a while, or given up when nobody can deliver them any more."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import JournalQuarantined, NotificationUnknown
from holdfast.records import Admitted, Started
from holdfast.store import Notify
from holdfast.store.audit import audit
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.notifications import offered, told
from holdfast.testing.conformance.suite import Stores, append_here, case, contents, leased, refusal, step

if TYPE_CHECKING:
    from holdfast.store import Lease, Notification, Store

DAY: Final = 24 * 60 * 60 * 1000


async def _finished(store: Store, title: str = "done") -> int:
    """A notification of the session `s` that was taken as read."""
    return (await store.settle_notification((await told(store, title)).id, "acknowledged"))[0].id


async def _one_of_each(store: Store, lease: Lease) -> dict[str, int]:
    """A notification of the session `s` in each state. The dead one is for a journal that does not exist."""
    now = store.clock.read().wall
    numbers = {state: (await told(store, state)).id for state in ("claimed", "acknowledged", "cancelled")}
    await store.carry(lease, [numbers["claimed"]], "news")
    await store.settle_notification(numbers["acknowledged"], "acknowledged")
    await store.settle_notification(numbers["cancelled"], "cancelled")
    numbers["expired"] = (await store.notify("s", kind="task", title="expired", expires=now))[0].id
    numbers["queued"] = (await told(store, "queued")).id
    await append_here(store, lease, Started(at=1, run="r"))
    head = (await store.journal("s")).head
    await store.append(lease, [step("x")], head=head, notify=[Notify("ghost", "task", "dead")])
    numbers["dead"] = (await store.notifications("ghost"))[0].id
    for state, number in numbers.items():
        assert (await store.notification(number)).state == state
    return numbers


async def _states(store: Store) -> set[str]:
    return {found.state for found in await store.notifications()}


# ---- purging ----


@case
async def a_purge_removes_what_is_finished_and_nothing_else(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await _one_of_each(store, await leased(store, "s"))
        assert await store.purge_notifications(clock.read().wall) == (3, False)
        assert await _states(store) == {"queued", "claimed", "dead"}
        assert await store.purge_notifications(clock.read().wall) == (0, False)
    async with stores.open(clock) as store:
        assert await _states(store) == {"queued", "claimed", "dead"}
        assert await store.examine(audit) == []


@case
async def a_purge_leaves_what_changed_after_its_time(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("s")
        late = (await told(store, "late")).id
        await _finished(store, "early")
        clock.advance(1)
        await store.settle_notification(late, "cancelled")
        assert (await store.purge_notifications(clock.read().wall - 2)).removed == 0
        assert (await store.purge_notifications(clock.read().wall - 1)).removed == 1
        assert [found.title for found in await store.notifications()] == ["late"]


@case
async def what_is_finished_is_kept_for_thirty_days(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("s")
        await _finished(store)
        clock.advance(30 * DAY - 1)
        assert await store.purge_notifications() == (0, False)
        clock.advance(1)
        assert await store.purge_notifications() == (1, False)


@case
async def a_purge_removes_so_many_at_once_and_the_oldest_first(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("s")
        numbers = [(await told(store, f"{n}")).id for n in range(5)]
        for number in reversed(numbers):
            clock.advance(1)
            await store.settle_notification(number, "acknowledged")
        assert await store.purge_notifications(clock.read().wall, 2) == (2, True)
        assert [found.title for found in await store.notifications()] == ["2", "1", "0"]
        assert await store.purge_notifications(clock.read().wall, 2) == (2, True)
        assert await store.purge_notifications(clock.read().wall, 2) == (1, False)


@case
async def what_comes_after_a_purge_comes_after_all_that_were_kept(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("s")
        await told(store, "first")
        await _finished(store)
        await told(store, "second")
        newest = await _finished(store)
        await store.purge_notifications(clock.read().wall)
        assert await store.examine(audit) == []
    async with stores.open(clock) as store:
        assert (await told(store, "third")).id > newest, "a number is never given to another one"
        assert await offered(store) == ["first", "second", "third"]
        await refusal(NotificationUnknown, store.notification(newest))
        assert await store.examine(audit) == []


@case
async def a_key_is_free_when_its_notification_is_purged(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("s")
        found, _ = await store.notify("s", kind="task", title="done", key="k")
        await store.settle_notification(found.id, "acknowledged")
        assert not (await store.notify("s", kind="task", title="done", key="k"))[1]
        await store.purge_notifications(clock.read().wall)
        assert (await store.notify("s", kind="task", title="another", key="k"))[1]
        assert await offered(store) == ["another"]


# ---- quarantine ----


async def _stopped(store: Store) -> list[Notification]:
    """What waits for the session `s`, one for now, two claimed, one for later; and then it is quarantined."""
    lease = await leased(store, "s")
    numbers = [(await told(store, title)).id for title in ("now", "in the inbox", "in a turn")]
    numbers.append((await told(store, "later", due=store.clock.read().wall + DAY)).id)
    await store.carry(lease, [numbers[1]], "news")
    receipt = await store.carry(lease, [numbers[2]], "news")
    assert receipt is not None
    admitted = Admitted(at=1, input=receipt.input, key=receipt.key, run="t")
    await append_here(store, lease, Started(at=1, run="t"), admitted)
    await store.quarantine("s", "a test")
    return [await store.notification(number) for number in numbers]


@case
async def what_waits_for_a_journal_is_dead_when_it_is_quarantined(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("other")
        await store.notify("other", kind="task", title="fine")
        found = await _stopped(store)
        assert {one.state for one in found} == {"dead"}
        assert all("quarantined: a test" in (one.reason or "") for one in found)
        assert [one.run for one in found] == [None, None, "t", None]
        assert await store.next_notifications("s") == []
        assert await store.next_due() is None
        assert len(await store.next_notifications("other")) == 1
    async with stores.open(clock) as store:
        assert len(await store.notifications("s", "dead")) == 4
        assert await store.examine(audit) == []


@case
async def what_was_finished_before_a_quarantine_stays_as_it_was(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("s")
        number = await _finished(store)
        before = await store.notification(number)
        await store.quarantine("s", "a test")
        assert await store.notification(number) == before


@case
async def what_a_quarantine_has_given_up_is_not_tried_again_but_taken_as_read(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        found = await _stopped(store)
        before = await contents(store)
        await refusal(JournalQuarantined, store.settle_notification(found[0].id, "queued"))
        assert await contents(store) == before
        assert (await store.settle_notification(found[0].id, "acknowledged"))[1]
        assert await store.examine(audit) == []


@case
async def a_second_quarantine_changes_nothing(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await _stopped(store)
        before = await contents(store)
        clock.advance(1)
        await store.quarantine("s", "another test")
        assert await contents(store) == before
