"""Notifications: queued once, in order, bounded, and never forgotten."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.errors import (
    Fenced,
    InvalidNumber,
    JournalMissing,
    JournalQuarantined,
    KeyConflict,
    NotificationsFull,
    NotificationUnknown,
    PayloadTooLarge,
)
from holdfast.records import Ended, Started
from holdfast.store import Lease, Notification, Notify
from holdfast.store.audit import audit
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import Stores, append_here, case, contents, leased, refusal, step

if TYPE_CHECKING:
    from holdfast.store import Store


async def told(store: Store, title: str = "done", *, priority: int = 0, due: int | None = None) -> Notification:
    """A new notification for the session `s`."""
    return (await store.notify("s", kind="task", title=title, priority=priority, due=due))[0]


async def offered(store: Store) -> list[str]:
    """The titles of what may be delivered to the session `s` now, in order."""
    return [found.title for found in await store.next_notifications("s")]


async def attended(store: Store) -> None:
    """Look at the session `s` and leave it: whatever woke it was seen."""
    lease = await store.claim("s")
    await store.release(lease, seen=lease.wakes)


@case
async def a_notification_is_queued_as_it_was_given(stores: Stores) -> None:
    clock = ManualClock()
    now = clock.read().wall
    async with stores.open(clock) as store:
        await store.open_journal("s")
        found, fresh = await store.notify(
            "s",
            kind="task",
            title="Backup",
            body="12 files\n☃",
            source="task-7",
            priority=3,
            key="k",
            expires=now + 10,
        )
    assert fresh
    assert (found.journal, found.no, found.kind, found.title, found.body) == ("s", 1, "task", "Backup", "12 files\n☃")
    assert (found.source, found.priority, found.key, found.state) == ("task-7", 3, "k", "queued")
    assert (found.attempts, found.due, found.expires, found.created, found.updated) == (0, now, now + 10, now, now)
    assert (found.input, found.run, found.reason) == (None, None, None)
    async with stores.open(clock) as store:
        assert await store.notification(found.id) == found
        assert await store.next_notifications("s") == [found]
        assert await store.examine(audit) == []


@case
async def a_notification_that_is_due_wakes_its_journal(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("s")
        await told(store)
        assert [(found.journal, found.wakes) for found in await store.work()] == [("s", 1)]


@case
async def the_same_notification_under_the_same_key_is_queued_once(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("s")
        attempts = [store.notify("s", kind="task", title="done", key="k", due=due) for due in (None, 5, None)]
        answers = await asyncio.gather(*attempts)
        assert sorted(fresh for _, fresh in answers) == [False, False, True]
        assert len({found.id for found, _ in answers}) == 1
        assert [found.wakes for found in await store.work()] == [1]
        assert len(await store.notifications()) == 1


@case
async def another_notification_under_the_same_key_is_a_conflict(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("s")
        await store.open_journal("other")
        await store.notify("s", kind="task", title="done", key="k")
        before = await contents(store)
        for kind, title, body, source, priority in (
            *(("x", "done", "", None, 0), ("task", "x", "", None, 0), ("task", "done", "x", None, 0)),
            *(("task", "done", "", "x", 0), ("task", "done", "", None, 1)),
        ):
            attempt = store.notify("s", kind=kind, title=title, body=body, source=source, priority=priority, key="k")
            error = await refusal(KeyConflict, attempt)
            assert (error.journal, error.key) == ("s", "k")
        assert await contents(store) == before
        assert (await store.notify("other", kind="x", title="x", key="k"))[1], "a key belongs to its journal"


@case
async def a_notification_for_a_journal_that_can_not_take_it_is_refused(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("bad")
        await store.quarantine("bad", "a test")
        await store.open_journal("full")
        limit = store.limits.notifications
        await asyncio.gather(*(store.notify("full", kind="task", title="x") for _ in range(limit)))
        before = await contents(store)
        await refusal(JournalMissing, store.notify("ghost", kind="task", title="x"))
        await refusal(JournalQuarantined, store.notify("bad", kind="task", title="x"))
        error = await refusal(NotificationsFull, store.notify("full", kind="task", title="x"))
        assert (error.journal, error.limit) == ("full", limit)
        assert await contents(store) == before
        await store.settle_notification((await store.next_notifications("full", 1))[0].id, "cancelled")
        assert (await store.notify("full", kind="task", title="x"))[1], "one that is finished makes room"


@case
async def a_notification_over_its_limits_is_refused(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        before = await contents(store)
        large = "é" * (store.limits.notification_bytes // 2) + "x"
        await refusal(PayloadTooLarge, store.notify("s", kind="task", title="x", body=large))
        notice = Notify("s", "task", "x", large)
        await refusal(PayloadTooLarge, store.append(lease, [step("x")], head=1, notify=[notice]))
        await refusal(InvalidNumber, store.notify("s", kind="task", title="x", due=10, expires=10))
        assert await contents(store) == before


@case
async def the_most_urgent_come_first_and_then_those_that_came_first(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("s")
        await store.open_journal("other")
        for title, priority in (("b1", 0), ("c", -1), ("a1", 5), ("b2", 0), ("a2", 5)):
            await told(store, title, priority=priority)
            await store.notify("other", kind="task", title="not mine", priority=9)
        assert await offered(store) == ["a1", "a2", "b1", "b2", "c"]
        assert [found.title for found in await store.next_notifications("s", 2)] == ["a1", "a2"]
        assert [found.no for found in await store.next_notifications("s")] == [3, 5, 1, 4, 2]


@case
async def one_that_is_not_due_yet_waits_for_its_time(stores: Stores) -> None:
    clock = ManualClock()
    due = clock.read().wall + 100
    async with stores.open(clock) as store:
        await store.open_journal("s")
        await told(store, due=due)
        assert await store.work() == []
        assert await offered(store) == []
        assert await store.next_due() == due
        assert await store.ripen() == []
    clock.advance(99)
    async with stores.open(clock) as store:
        assert await store.ripen() == []
        clock.advance(1)
        assert await offered(store) == ["done"]
        assert await store.ripen() == ["s"]
        assert [(found.journal, found.wakes) for found in await store.work()] == [("s", 1)]
        assert await store.ripen() == [], "a journal is woken once"
        assert await store.next_due() is None
        assert await store.examine(audit) == []


@case
async def the_next_moment_is_that_of_a_wait_or_of_a_notification(stores: Stores) -> None:
    clock = ManualClock()
    now = clock.read().wall
    async with stores.open(clock) as store:
        await store.open_journal("s")
        await store.open_wait("s", "w", deadline=now + 50)
        await told(store, due=now + 100)
        assert await store.next_due() == now + 50
        await told(store, due=now + 20)
        assert await store.next_due() == now + 20


@case
async def several_that_become_due_wake_their_journal_once(stores: Stores) -> None:
    clock = ManualClock()
    now = clock.read().wall
    async with stores.open(clock) as store:
        for name in ("s", "t", "bad"):
            await store.open_journal(name)
            for n in range(3):
                await store.notify(name, kind="timer", title=f"{n}", due=now + 10 + n)
        await store.quarantine("bad", "a test")
        clock.advance(20)
        assert sorted(await store.ripen()) == ["s", "t"]
        assert [(found.journal, found.wakes) for found in await store.work()] == [("s", 1), ("t", 1)]
        assert await store.next_due() is None


@case
async def one_that_has_expired_is_not_delivered(stores: Stores) -> None:
    clock = ManualClock()
    now = clock.read().wall
    async with stores.open(clock) as store:
        await store.open_journal("s")
        found, _ = await store.notify("s", kind="task", title="done", expires=now + 10)
        assert await store.next_due() == now + 10
        clock.advance(10)
        assert await offered(store) == []
        assert await store.ripen() == []
        assert (await store.notification(found.id)).state == "expired"
        assert await store.next_due() is None
        late, _ = await store.notify("s", kind="task", title="late", expires=now)
        assert late.state == "expired"
        assert await store.examine(audit) == []


@case
async def a_tick_finds_what_was_seen_but_not_delivered(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        for name in ("s", "awake", "bad", "nothing"):
            await store.open_journal(name)
        for name in ("s", "awake", "bad"):
            await store.notify(name, kind="task", title="done")
        await attended(store)
        await store.quarantine("bad", "a test")
        assert await store.ripen() == []
    async with stores.open(clock) as store:
        assert await store.ripen(again=True) == ["s"]
        assert [(found.journal, found.wakes) for found in await store.work()] == [("s", 2), ("awake", 1)]
        assert await store.ripen(again=True) == [], "those that are awake are left alone"


@case
async def one_that_came_while_the_session_was_looked_at_is_still_work(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        await told(store)
        await store.release(lease, seen=lease.wakes)
        assert [found.journal for found in await store.work()] == ["s"]
        await attended(store)
        assert await store.work() == [], "nobody has to deliver what was looked at"


@case
async def notifications_are_listed_newest_first_page_by_page(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        for name in ("s", "t"):
            await store.open_journal(name)
        for n in range(9):
            found, _ = await store.notify("st"[n % 2], kind="task", title=f"{n}")
            if n % 3 == 0:
                await store.settle_notification(found.id, "acknowledged")
        everything = await store.notifications()
        assert [found.title for found in everything] == [f"{n}" for n in reversed(range(9))]
        assert len({found.id for found in everything}) == 9
        for journal in (None, "s", "t", "ghost"):
            for state in (None, "queued", "acknowledged", "dead"):
                expected = [
                    found for found in everything if journal in (None, found.journal) and state in (None, found.state)
                ]
                for size in (1, 2, 50):
                    seen: list[Notification] = []
                    while page := await store.notifications(
                        journal, state, before=seen[-1] if seen else None, limit=size
                    ):
                        assert len(page) <= size
                        seen.extend(page)
                    assert seen == expected, (journal, state, size)


# ---- in the same commit as records ----


@case
async def records_and_their_notification_are_one_commit(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("s")
        lease = await leased(store, "task")
        ended = [Started(at=1, run="r"), Ended(at=2, run="r", status="completed")]
        notices = [Notify("s", "task", "done", key="task"), Notify("s", "task", "more", due=clock.read().wall + 5)]
        stale = Lease(lease.journal, lease.epoch + 1, lease.owner, lease.ttl_ms, lease.head)
        await refusal(Fenced, store.append(stale, ended, head=1, notify=notices))
        assert await store.notifications() == []
        await store.append(lease, ended, head=1, notify=notices)
    async with stores.open(clock) as store:
        assert (await store.journal("task")).status == "completed"
        assert await offered(store) == ["done"]
        assert [(found.journal, found.wakes) for found in await store.work()] == [("s", 1)]
        assert [found.title for found in await store.notifications("s", "queued")] == ["more", "done"]
        assert await store.examine(audit) == []


@case
async def plain_records_carry_notifications_too(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        assert await store.append(lease, [step("x")], head=1, notify=[Notify("s", "task", "to itself")]) == 2
        assert await offered(store) == ["to itself"]
        assert await store.examine(audit) == []


@case
async def a_notification_that_can_not_be_delivered_is_dead_and_spoils_nothing(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("bad")
        await store.quarantine("bad", "a test")
        for name in ("full", "taken"):
            await store.open_journal(name)
        await asyncio.gather(*(store.notify("full", kind="task", title="x") for _ in range(store.limits.notifications)))
        await store.notify("taken", kind="task", title="first", key="k")
        lease = await leased(store, "task")
        for head, (name, why) in enumerate(
            {"ghost": "no 'ghost'", "bad": "a test", "full": "already wait", "taken": "other content"}.items(), 1
        ):
            notice = Notify(name, "task", "news", "the body", "task", key="k")
            assert await store.append(lease, [step(name)], head=head, notify=[notice]) == head + 1
            (found,) = await store.notifications(name, "dead")
            assert why in (found.reason or ""), found
            assert (found.title, found.body, found.source) == ("news", "the body", "task")
        assert await store.examine(audit) == []
        assert (await store.journal("task")).head == 5


@case
async def an_appended_notification_under_a_key_that_says_the_same_is_there_already(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("s")
        lease = await leased(store, "task")
        await store.notify("s", kind="task", title="done", key="k")
        await store.append(lease, [step("x")], head=1, notify=[Notify("s", "task", "done", key="k")] * 2)
        assert len(await store.notifications()) == 1


# ---- by hand ----


async def _in_state(store: Store, state: str) -> Notification:
    """A notification of the session `s` in a state that is not claimed."""
    now = store.clock.read().wall
    if state == "dead":
        lease = await leased(store, f"task-{len(await store.notifications())}")
        await store.append(lease, [step("x")], head=1, notify=[Notify("later", "task", "x")])
        await store.open_journal("later")
        return (await store.notifications("later"))[0]
    found, _ = await store.notify("s", kind="task", title="x", expires=now if state == "expired" else None)
    if state == "cancelled":
        return (await store.settle_notification(found.id, "cancelled"))[0]
    if state == "acknowledged":
        return (await store.settle_notification(found.id, "acknowledged"))[0]
    return found


@case
async def the_first_to_settle_a_notification_decides(stores: Stores) -> None:
    allowed = {
        *(("queued", "cancelled"), ("queued", "acknowledged")),
        *(("dead", "cancelled"), ("dead", "acknowledged"), ("dead", "queued")),
    }
    async with stores.open(ManualClock()) as store:
        await store.open_journal("s")
        for state in ("queued", "acknowledged", "cancelled", "expired"):
            for wanted in ("cancelled", "acknowledged", "queued"):
                found = await _in_state(store, state)
                assert found.state == state
                answer, won = await store.settle_notification(found.id, wanted)
                assert won is ((state, wanted) in allowed), (state, wanted)
                assert answer.state == (wanted if won else state), (state, wanted)
                assert await store.notification(found.id) == answer
        assert await store.examine(audit) == []


@case
async def a_dead_notification_can_be_tried_again(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        found = await _in_state(store, "dead")
        answer, won = await store.settle_notification(found.id, "queued")
        assert won
        assert (answer.state, answer.attempts, answer.reason) == ("queued", 0, None)
        assert await store.next_notifications("later") == [answer]
        assert [(work.journal, work.wakes) for work in await store.work()] == [("later", 1)]
        assert await store.examine(audit) == []


@case
async def a_dead_notification_without_a_journal_stays_dead_until_somebody_drops_it(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "task")
        await store.append(lease, [step("x")], head=1, notify=[Notify("ghost", "task", "x")])
        (found,) = await store.notifications()
        await refusal(JournalMissing, store.settle_notification(found.id, "queued"))
        assert (await store.settle_notification(found.id, "cancelled"))[1]
        assert await store.examine(audit) == []


@case
async def a_notification_that_is_not_there_is_unknown(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await refusal(NotificationUnknown, store.notification(7))
        error = await refusal(NotificationUnknown, store.settle_notification(7, "cancelled"))
        assert error.number == 7


@case
async def a_fork_does_not_take_notifications_along(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "s")
        await append_here(store, lease, Started(at=1, run="r"))
        await told(store)
        await store.fork("fork", "s", 2)
        assert await store.next_notifications("fork") == []
        assert await offered(store) == ["done"]
        assert await store.examine(audit) == []
