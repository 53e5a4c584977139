"""Notifications: queued once, in order, bounded, and never forgotten."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from holdfast import errors
from holdfast.records import Admitted, Ended, EndStatus, Started
from holdfast.store import Lease, Notification, Notify, Receipt, Store
from holdfast.store.audit import audit
from holdfast.store.notifications import backoff
from holdfast.testing.conformance.suite import DAY, append_here, check_narrowed, leased, refusal, step, unchanged

if TYPE_CHECKING:
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.conformance.suite import Now, Reopen, RunLease, StoreA


async def _notify(store: Store, title: str = "done", *, priority: int = 0, due: int | None = None) -> Notification:
    return (await store.notify("a", kind="task", title=title, priority=priority, due=due))[0]


async def _work(store: Store) -> list[tuple[str, int]]:
    return [(found.journal, found.wakes) for found in await store.work()]


async def _offered_titles(store: Store) -> list[str]:
    """The titles of notifications that may be delivered to the session `a` now, in order."""
    return [found.title for found in await store.next_notifications("a")]


async def _attend(store: Store) -> None:
    """Claim and release the session `a`, so that all its wakes are seen."""
    lease = await store.claim("a")
    await store.release(lease, seen=lease.wakes)


async def a_notification_is_queued_as_it_was_given(store: StoreA, now: Now, reopen: Reopen) -> None:
    backup = partial(store.notify, "a", kind="task", title="Backup", body="12 files\n☃", source="task-7")
    found, fresh = await backup(priority=3, key="k", expires=now + 10)
    assert fresh
    assert (found.journal, found.no, found.kind, found.title, found.body) == ("a", 1, "task", "Backup", "12 files\n☃")
    assert (found.source, found.priority, found.key, found.state) == ("task-7", 3, "k", "queued")
    assert (found.attempts, found.due, found.expires, found.created, found.updated) == (0, now, now + 10, now, now)
    assert found.input is found.run is found.reason is None
    store = await reopen()
    assert await store.notification(found.id) == found
    assert await store.next_notifications("a") == [found]
    assert await _work(store) == [("a", 1)]


async def the_same_notification_under_the_same_key_is_queued_once(store: StoreA) -> None:
    attempts = [store.notify("a", kind="task", title="done", key="k", due=due) for due in (None, 5, None)]
    answers = await asyncio.gather(*attempts)
    assert sorted(fresh for _, fresh in answers) == [False, False, True]
    assert len({found.id for found, _ in answers}) == 1
    assert (await _work(store), len(await store.notifications())) == ([("a", 1)], 1)


async def another_notification_under_the_same_key_is_a_conflict(store: StoreA) -> None:
    await store.open_journal("other")
    await store.notify("a", kind="task", title="done", key="k")
    async with unchanged(store):
        notify = partial(store.notify, "a", key="k")
        same = partial(notify, kind="task", title="done")
        others = (notify(kind="x", title="done"), notify(kind="task", title="x"), same(body="x"), same(source="x"))
        await refusal(errors.KeyConflict, *others, same(priority=1), journal="a", key="k")
    assert (await store.notify("other", kind="x", title="x", key="k"))[1], "a key belongs to its journal"


async def a_notification_for_a_missing_quarantined_or_full_journal_is_refused(store: Store) -> None:
    await store.open_journal("bad")
    await store.quarantine("bad", "a test")
    await store.open_journal("full")
    limit = store.limits.notifications
    await asyncio.gather(*(store.notify("full", kind="task", title="x") for _ in range(limit)))
    async with unchanged(store):
        await refusal(errors.JournalMissing, store.notify("ghost", kind="task", title="x"))
        await refusal(errors.JournalQuarantined, store.notify("bad", kind="task", title="x"))
        more = store.notify("full", kind="task", title="x")
        await refusal(errors.NotificationsFull, more, journal="full", limit=limit)
    await store.settle_notification((await store.next_notifications("full", 1))[0].id, "cancelled")
    assert (await store.notify("full", kind="task", title="x"))[1], "one that is finished makes room"


async def the_most_urgent_come_first_and_then_those_that_came_first(store: StoreA) -> None:
    await store.open_journal("other")
    for title, priority in (("b1", 0), ("c", -1), ("a1", 5), ("b2", 0), ("a2", 5)):
        await _notify(store, title, priority=priority)
        await store.notify("other", kind="task", title="not mine", priority=9)
    assert await _offered_titles(store) == ["a1", "a2", "b1", "b2", "c"]
    assert [found.title for found in await store.next_notifications("a", 2)] == ["a1", "a2"]
    assert [found.no for found in await store.next_notifications("a")] == [3, 5, 1, 4, 2]


async def a_notification_waits_until_it_is_due(store: StoreA, clock: ManualClock, reopen: Reopen) -> None:
    due = clock.read().wall + 100
    await _notify(store, due=due)
    assert await store.work() == await _offered_titles(store) == await store.ripen() == []
    assert await store.next_due() == due
    clock.advance(99)
    store = await reopen()
    assert await store.ripen() == []
    clock.advance(1)
    assert await _offered_titles(store) == ["done"]
    assert await store.ripen() == ["a"]
    assert await _work(store) == [("a", 1)]
    assert await store.ripen() == [], "a journal is woken once"
    assert await store.next_due() is None


async def the_next_moment_is_that_of_a_wait_or_of_a_notification(store: StoreA, now: Now) -> None:
    await store.open_wait("a", "w", deadline=now + 50)
    for due, first in ((100, 50), (20, 20)):
        await _notify(store, due=now + due)
        assert await store.next_due() == now + first


async def several_notifications_that_become_due_wake_their_journal_once(store: Store, clock: ManualClock) -> None:
    for name in ("a", "t", "bad"):
        await store.open_journal(name)
        for n in range(3):
            await store.notify(name, kind="timer", title=f"{n}", due=clock.read().wall + 10 + n)
    await store.quarantine("bad", "a test")
    clock.advance(20)
    assert sorted(await store.ripen()) == ["a", "t"]
    assert await _work(store) == [("a", 1), ("t", 1)]
    assert await store.next_due() is None


async def an_expired_notification_is_not_delivered(store: StoreA, clock: ManualClock, now: Now) -> None:
    found, _ = await store.notify("a", kind="task", title="done", expires=now + 10)
    assert await store.next_due() == now + 10
    clock.advance(10)
    assert await _offered_titles(store) == await store.ripen() == []
    assert (await store.notification(found.id)).state == "expired"
    assert await store.next_due() is None
    late, _ = await store.notify("a", kind="task", title="late", expires=now)
    assert late.state == "expired"


async def a_tick_finds_notifications_that_were_seen_but_not_delivered(store: Store, reopen: Reopen) -> None:
    for name in ("a", "awake", "bad", "nothing"):
        await store.open_journal(name)
    for name in ("a", "awake", "bad"):
        await store.notify(name, kind="task", title="done")
    await _attend(store)
    await store.quarantine("bad", "a test")
    assert await store.ripen() == []
    store = await reopen()
    assert await store.ripen(again=True) == ["a"]
    assert await _work(store) == [("a", 2), ("awake", 1)]
    assert await store.ripen(again=True) == [], "those that are awake are left alone"


async def a_notification_during_a_drive_is_still_work(store: Store, lease: Lease) -> None:
    await _notify(store)
    await store.release(lease, seen=lease.wakes)
    assert [found.journal for found in await store.work()] == ["a"]
    await _attend(store)
    assert await store.work() == [], "nobody has to deliver what was looked at"


async def notifications_are_listed_newest_first_page_by_page(store: Store) -> None:
    for name in ("a", "t"):
        await store.open_journal(name)
    for n in range(9):
        found, _ = await store.notify("at"[n % 2], kind="task", title=f"{n}")
        if n % 3 == 0:
            await store.settle_notification(found.id, "acknowledged")
    everything = await store.notifications()
    assert [found.title for found in everything] == [f"{n}" for n in reversed(range(9))]
    assert len({found.id for found in everything}) == 9
    states = (None, "queued", "acknowledged", "dead")
    await check_narrowed(store.notifications, 1, 2, 50, journal=(None, "a", "t", "ghost"), state=states)


async def records_and_their_notification_are_one_commit(store: StoreA, clock: ManualClock, reopen: Reopen) -> None:
    lease = await leased(store, "task")
    ended = [Started(at=1, run="r"), Ended(at=2, run="r", status="completed")]
    notices = [Notify("a", "task", "done", key="task"), Notify("a", "task", "more", due=clock.read().wall + 5)]
    stale = Lease(lease.journal, lease.epoch + 1, lease.owner, lease.ttl_ms, lease.head)
    await refusal(errors.Fenced, store.append(stale, ended, head=1, notify=notices))
    assert await store.notifications() == []
    await store.append(lease, ended, head=1, notify=notices)
    store = await reopen()
    assert (await store.journal("task")).status == "completed"
    assert await _offered_titles(store) == ["done"]
    assert await _work(store) == [("a", 1)]
    assert [found.title for found in await store.notifications("a", "queued")] == ["more", "done"]


async def plain_records_carry_notifications_too(store: Store, lease: Lease) -> None:
    assert await store.append(lease, [step("x")], head=1, notify=[Notify("a", "task", "to itself")]) == 2
    assert await _offered_titles(store) == ["to itself"]


async def an_undeliverable_notification_is_dead_and_does_not_fail_the_append(store: Store) -> None:
    await store.open_journal("bad")
    await store.quarantine("bad", "a test")
    for name in ("full", "taken"):
        await store.open_journal(name)
    await asyncio.gather(*(store.notify("full", kind="task", title="x") for _ in range(store.limits.notifications)))
    await store.notify("taken", kind="task", title="first", key="k")
    lease = await leased(store, "task")
    reasons = {"ghost": "no 'ghost'", "bad": "a test", "full": "already wait", "taken": "other content"}
    for head, (name, why) in enumerate(reasons.items(), 1):
        notice = Notify(name, "task", "news", "the body", "task", key="k")
        assert await store.append(lease, [step(name)], head=head, notify=[notice]) == head + 1
        (found,) = await store.notifications(name, "dead")
        assert why in (found.reason or ""), found
        assert (found.title, found.body, found.source) == ("news", "the body", "task")
    assert await store.examine(audit) == []
    assert (await store.journal("task")).head == 5


async def an_appended_notification_under_a_key_that_says_the_same_is_there_already(store: StoreA) -> None:
    lease = await leased(store, "task")
    await store.notify("a", kind="task", title="done", key="k")
    await store.append(lease, [step("x")], head=1, notify=[Notify("a", "task", "done", key="k")] * 2)
    assert len(await store.notifications()) == 1


async def the_first_to_settle_a_notification_decides(store: StoreA, now: Now) -> None:
    for state in ("queued", "acknowledged", "cancelled", "expired"):
        for wanted in ("cancelled", "acknowledged", "queued"):
            found, _ = await store.notify("a", kind="task", title="x", expires=now if state == "expired" else None)
            if state in ("cancelled", "acknowledged"):
                found, _ = await store.settle_notification(found.id, state)
            assert found.state == state
            answer, won = await store.settle_notification(found.id, wanted)
            assert won is (state == "queued" and wanted != "queued"), (state, wanted)
            assert answer.state == (wanted if won else state), (state, wanted)
            assert await store.notification(found.id) == answer


async def a_dead_notification_can_be_tried_again_if_there_is_a_journal_for_it(store: Store) -> None:
    notices = [Notify("later", "task", "x"), Notify("ghost", "task", "x")]
    await store.append(await leased(store, "task"), [step("x")], head=1, notify=notices)
    await store.open_journal("later")
    (found,) = await store.notifications("later")
    answer, won = await store.settle_notification(found.id, "queued")
    assert (won, answer.state, answer.attempts, answer.reason) == (True, "queued", 0, None)
    assert await store.next_notifications("later") == [answer]
    assert await _work(store) == [("later", 1)]
    (found,) = await store.notifications("ghost")
    await refusal(errors.JournalMissing, store.settle_notification(found.id, "queued"))
    assert (await store.settle_notification(found.id, "cancelled"))[1]


async def a_notification_that_is_not_there_is_unknown(store: Store) -> None:
    await refusal(errors.NotificationUnknown, store.notification(7))
    await refusal(errors.NotificationUnknown, store.settle_notification(7, "cancelled"), number=7)


async def a_fork_does_not_take_notifications_along(store: Store, lease: Lease) -> None:
    await append_here(store, lease, Started(at=1, run="r"))
    await _notify(store)
    await store.fork("fork", "a", 2)
    assert await store.next_notifications("fork") == []
    assert await _offered_titles(store) == ["done"]


async def _carried(store: Store, lease: Lease, *ids: int) -> Receipt:
    """Deliver these notifications; returns their input."""
    chosen = ids or tuple(found.id for found in await store.next_notifications("a"))
    receipt = await store.deliver_notifications(lease, chosen, "news")
    assert receipt is not None
    return receipt


async def _turn(store: Store, lease: Lease, receipt: Receipt, status: EndStatus | None) -> str:
    """Run a turn begun by this input, with an optional end; returns its run."""
    run = f"t{receipt.input}"
    admitted = Admitted(at=1, input=receipt.input, key=receipt.key, run=run)
    await append_here(store, lease, Started(at=1, run=run), admitted)
    if status is not None:
        await append_here(store, lease, Ended(at=2, run=run, status=status))
    return run


async def several_notifications_are_carried_by_one_input(store: Store, lease: Lease, reopen: Reopen) -> None:
    ids = [(await _notify(store, title)).id for title in ("a", "b", "c")]
    receipt = await store.deliver_notifications(lease, ids[:2], {"say": "a and b"}, key="digest")
    assert receipt is not None
    assert (receipt.journal, receipt.input, receipt.key, receipt.fresh) == ("a", 1, "digest", True)
    store = await reopen()
    assert [(found.input, found.body) for found in await store.pending("a")] == [(1, b'{"say":"a and b"}')]
    for number in ids[:2]:
        found = await store.notification(number)
        assert (found.state, found.attempts, found.input, found.run) == ("claimed", 1, 1, None)
    assert await _offered_titles(store) == ["c"]
    assert await _work(store) == [("a", 4)]


async def an_input_carries_only_notifications_that_are_ready(store: Store, clock: ManualClock, now: Now) -> None:
    lease = await leased(store, "a")
    ready = await _notify(store, "ready")
    later = await _notify(store, "later", due=now + 100)
    gone = await _notify(store, "gone")
    await store.settle_notification(gone.id, "cancelled")
    expired, _ = await store.notify("a", kind="task", title="expired", expires=now + 10)
    clock.advance(10)
    ids = [later.id, gone.id, expired.id, ready.id, ready.id]
    await _carried(store, lease, *ids)
    states = [(await store.notification(number)).state for number in ids]
    assert states == ["queued", "cancelled", "queued", "claimed", "claimed"]
    async with unchanged(store):
        assert await store.deliver_notifications(lease, ids, "news") is None
        assert await store.deliver_notifications(lease, [], "news") is None


async def a_carriage_that_is_refused_claims_nothing(store: Store, lease: Lease) -> None:
    await store.open_journal("other")
    found = await _notify(store)
    foreign, _ = await store.notify("other", kind="task", title="not mine")
    await store.accept("a", 1, key="used")
    async with unchanged(store):
        await refusal(errors.KeyConflict, store.deliver_notifications(lease, [found.id], 1, key="used"))
        for number in (foreign.id, 999):
            carriage = store.deliver_notifications(lease, [found.id, number], 1)
            await refusal(errors.NotificationUnknown, carriage, number=number, journal="a")
    await store.release(lease)
    await store.claim("a")
    await refusal(errors.Fenced, store.deliver_notifications(lease, [found.id], 1))
    assert (await store.notification(found.id)).state == "queued"


async def nothing_is_carried_into_a_full_inbox_or_a_journal_in_quarantine(store: Store, lease: Lease) -> None:
    found = await _notify(store)
    await asyncio.gather(*(store.accept("a", n, key=f"k{n}") for n in range(store.limits.pending_inputs)))
    await refusal(errors.InboxFull, store.deliver_notifications(lease, [found.id], 1))
    assert (await store.notification(found.id)).state == "queued"
    await store.quarantine("a", "a test")
    await refusal(errors.JournalQuarantined, store.deliver_notifications(lease, [found.id], 1))


async def a_turn_that_ends_well_acknowledges_its_notifications(store: Store, lease: Lease) -> None:
    for status in ("completed", "limit"):
        found = await _notify(store)
        run = await _turn(store, lease, await _carried(store, lease), None)
        carried = await store.notification(found.id)
        assert (carried.state, carried.run) == ("claimed", run)
        await append_here(store, lease, Ended(at=2, run=run, status=status))
        assert (await store.notification(found.id)).state == "acknowledged", status
        assert await store.examine(audit) == []


async def a_failed_turn_gives_its_notifications_back_after_a_pause(store: Store, clock: ManualClock) -> None:
    lease = await leased(store, "a", ttl_ms=600_000)
    for status in ("failed", "cancelled"):
        found = await _notify(store, status)
        await _turn(store, lease, await _carried(store, lease), status)
        back = await store.notification(found.id)
        assert (back.state, back.attempts) == ("queued", 1), status
        assert back.due == clock.read().wall + backoff(1), status
        assert status in (back.reason or "")
        assert await _offered_titles(store) == []
        assert await store.next_due() == back.due
        await store.release(lease, seen=(await store.wakes(["a"]))["a"])
        assert await store.work() == []
        clock.advance(backoff(1))
        assert await store.ripen() == ["a"]
        assert [work.journal for work in await store.work()] == ["a"]
        assert await _offered_titles(store) == [status]
        lease = await store.claim("a", ttl_ms=600_000)
        await _turn(store, lease, await _carried(store, lease), "completed")
        assert await store.examine(audit) == []


async def a_turn_that_never_started_gives_its_notifications_back(store: Store, lease: Lease) -> None:
    for status in ("cancelled", "limit", "completed"):
        found = await _notify(store)
        receipt, run = await _carried(store, lease, found.id), f"unstarted-{status}"
        admitted = Admitted(at=1, input=receipt.input, key=receipt.key, run=run)
        await append_here(store, lease, admitted, Ended(at=2, run=run, status=status, unstarted=True))
        assert (await store.notification(found.id)).state == "queued", status


async def a_notification_that_fails_too_often_is_dead(store: Store, clock: ManualClock) -> None:
    lease = await leased(store, "a", ttl_ms=10**9)
    found = await _notify(store)
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
    assert (won, again.attempts) == (True, 0)
    assert await _offered_titles(store) == ["done"]


async def a_notification_that_comes_back_keeps_its_place(store: Store, clock: ManualClock) -> None:
    lease = await leased(store, "a", ttl_ms=600_000)
    first = await _notify(store, "first")
    await _notify(store, "second")
    await _turn(store, lease, await _carried(store, lease, first.id), "failed")
    await _notify(store, "urgent", priority=1)
    clock.advance(backoff(1))
    assert await _offered_titles(store) == ["urgent", "first", "second"]


async def a_notification_that_expired_in_a_failed_turn_does_not_come_back(store: Store, clock: ManualClock) -> None:
    lease = await leased(store, "a", ttl_ms=600_000)
    found, _ = await store.notify("a", kind="task", title="x", expires=clock.read().wall + 10)
    receipt = await _carried(store, lease)
    clock.advance(10)
    assert await store.ripen() == []
    assert (await store.notification(found.id)).state == "claimed", "it is with the turn"
    await _turn(store, lease, receipt, "failed")
    assert (await store.notification(found.id)).state == "expired"


async def an_input_without_a_turn_acknowledges_its_notifications(store: Store, lease: Lease) -> None:
    found = await _notify(store)
    receipt = await _carried(store, lease)
    await append_here(store, lease, Admitted(at=1, input=receipt.input, key=receipt.key))
    assert (await store.notification(found.id)).state == "acknowledged"


async def a_turn_settles_only_its_own_notifications(store: Store, lease: Lease) -> None:
    notices = [await _notify(store, title) for title in ("one", "two")]
    first, second = [await _carried(store, lease, notice.id) for notice in notices]
    run = await _turn(store, lease, first, None)
    steered = Admitted(at=1, input=second.input, key=second.key, run=run)
    await append_here(store, lease, Ended(at=2, run="another", status="cancelled", unstarted=True))
    assert await _states(store) == {"claimed"}
    await append_here(store, lease, steered, Ended(at=2, run=run, status="completed"))
    assert await _states(store) == {"acknowledged"}


async def a_person_can_settle_a_claimed_notification(store: Store, lease: Lease) -> None:
    for wanted in ("cancelled", "acknowledged"):
        found = await _notify(store)
        receipt = await _carried(store, lease)
        assert not (await store.settle_notification(found.id, "queued"))[1]
        assert (await store.settle_notification(found.id, wanted))[1]
        await _turn(store, lease, receipt, "failed")
        assert (await store.notification(found.id)).state == wanted


async def a_claimed_notification_is_delivered_after_a_restart(store: Store, lease: Lease, reopen: Reopen) -> None:
    found = await _notify(store)
    await _carried(store, lease)
    store = await reopen()
    assert [work.journal for work in await store.work()] == ["a"]
    (waiting,) = await store.pending("a")
    admitted = Admitted(at=1, input=waiting.input, key=waiting.key, run="t1")
    turn = [Started(at=1, run="t1"), admitted, Ended(at=3, run="t1", status="completed")]
    await append_here(store, await store.claim("a"), *turn)
    assert (await store.notification(found.id)).state == "acknowledged"


async def _states(store: Store) -> set[str]:
    return {found.state for found in await store.notifications()}


async def _finished(store: Store, title: str = "done") -> int:
    """Create an acknowledged notification of the session `a`."""
    return (await store.settle_notification((await _notify(store, title)).id, "acknowledged"))[0].id


async def a_purge_removes_finished_notifications_only(store: Store, lease: RunLease, now: Now, reopen: Reopen) -> None:
    numbers = {state: (await _notify(store, state)).id for state in ("claimed", "acknowledged", "cancelled")}
    await store.deliver_notifications(lease, [numbers["claimed"]], "news")
    for state in ("acknowledged", "cancelled"):
        await store.settle_notification(numbers[state], state)
    numbers["expired"] = (await store.notify("a", kind="task", title="expired", expires=now))[0].id
    numbers["queued"] = (await _notify(store, "queued")).id
    await store.append(lease, [step("x")], head=2, notify=[Notify("ghost", "task", "dead")])
    numbers["dead"] = (await store.notifications("ghost"))[0].id
    for state, number in numbers.items():
        assert (await store.notification(number)).state == state
    for removed in (3, 0):
        assert await store.purge_notifications(now) == (removed, False)
        assert await _states(store) == {"queued", "claimed", "dead"}
    store = await reopen()
    assert await _states(store) == {"queued", "claimed", "dead"}


async def a_purge_leaves_notifications_that_changed_later(store: StoreA, clock: ManualClock) -> None:
    late = (await _notify(store, "late")).id
    await _finished(store, "early")
    clock.advance(1)
    await store.settle_notification(late, "cancelled")
    assert [(await store.purge_notifications(clock.read().wall - ago)).removed for ago in (2, 1)] == [0, 1]
    assert [found.title for found in await store.notifications()] == ["late"]


async def finished_notifications_are_kept_for_thirty_days(store: StoreA, clock: ManualClock) -> None:
    await _finished(store)
    for passed, removed in ((30 * DAY - 1, 0), (1, 1)):
        clock.advance(passed)
        assert await store.purge_notifications() == (removed, False)


async def a_purge_removes_a_limited_number_oldest_first(store: StoreA, clock: ManualClock) -> None:
    for number in reversed([(await _notify(store, f"{n}")).id for n in range(5)]):
        clock.advance(1)
        await store.settle_notification(number, "acknowledged")
    assert await store.purge_notifications(clock.read().wall, 2) == (2, True)
    assert [found.title for found in await store.notifications()] == ["2", "1", "0"]
    assert await store.purge_notifications(clock.read().wall, 2) == (2, True)
    assert await store.purge_notifications(clock.read().wall, 2) == (1, False)


async def numbers_of_notifications_are_not_used_again_after_a_purge(store: StoreA, reopen: Reopen) -> None:
    await _notify(store, "first")
    await _finished(store)
    await _notify(store, "second")
    newest = await _finished(store)
    await store.purge_notifications(store.clock.read().wall)
    assert await store.examine(audit) == []
    store = await reopen()
    assert (await _notify(store, "third")).id > newest, "a number is never given to another one"
    assert await _offered_titles(store) == ["first", "second", "third"]
    await refusal(errors.NotificationUnknown, store.notification(newest))


async def a_key_is_free_when_its_notification_is_purged(store: StoreA, clock: ManualClock) -> None:
    found, _ = await store.notify("a", kind="task", title="done", key="k")
    await store.settle_notification(found.id, "acknowledged")
    assert not (await store.notify("a", kind="task", title="done", key="k"))[1]
    await store.purge_notifications(clock.read().wall)
    assert (await store.notify("a", kind="task", title="another", key="k"))[1]
    assert await _offered_titles(store) == ["another"]


async def _stopped(store: Store) -> list[Notification]:
    """Create notifications for the session `a`, one due now, two claimed, one for later; then quarantine it."""
    lease = await leased(store, "a")
    numbers = [(await _notify(store, title)).id for title in ("now", "in the inbox", "in a turn")]
    numbers.append((await _notify(store, "later", due=store.clock.read().wall + DAY)).id)
    await store.deliver_notifications(lease, [numbers[1]], "news")
    await _turn(store, lease, await _carried(store, lease, numbers[2]), None)
    await store.quarantine("a", "a test")
    return [await store.notification(number) for number in numbers]


async def unfinished_notifications_of_a_quarantined_journal_are_dead(
    store: StoreA, clock: ManualClock, reopen: Reopen
) -> None:
    await store.open_journal("other")
    await store.notify("other", kind="task", title="fine")
    finished = await store.notification(await _finished(store))
    found = await _stopped(store)
    assert await store.notification(finished.id) == finished
    assert {one.state for one in found} == {"dead"}
    assert all("quarantined: a test" in (one.reason or "") for one in found)
    assert [one.run for one in found] == [None, None, "t2", None]
    assert await store.next_notifications("a") == []
    assert await store.next_due() is None
    assert len(await store.next_notifications("other")) == 1
    async with unchanged(store):
        clock.advance(1)
        await store.quarantine("a", "another test")
    store = await reopen()
    assert len(await store.notifications("a", "dead")) == 4


async def notifications_of_a_quarantined_journal_can_be_acknowledged_but_not_retried(store: Store) -> None:
    found = await _stopped(store)
    async with unchanged(store):
        await refusal(errors.JournalQuarantined, store.settle_notification(found[0].id, "queued"))
    assert (await store.settle_notification(found[0].id, "acknowledged"))[1]
