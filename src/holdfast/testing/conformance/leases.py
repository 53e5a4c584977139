"""Leases: one writer, epochs that only grow."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast import errors
from holdfast.records import Admitted, Ended, Opened, Parked, Record, Resumed, Started
from holdfast.store import Lease, Store, Work
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance import suite
from holdfast.testing.conformance.suite import all_work, append_here, leased, refusal, step, unchanged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Settle: TypeAlias = Callable[[Store, str], Awaitable[object]]
    from holdfast.testing.conformance.suite import Reopen, RunLease, StoreA, Stores


async def a_claimed_lease_has_the_head_of_the_journal(store: Store) -> None:
    await append_here(store, await leased(store, "a"), step("x"), step("y"))
    await store.release(Lease("a", 1, store.owner, 10_000, 1))  # an older copy is worth as much
    lease = await store.claim("a", ttl_ms=5_000)
    assert (lease.journal, lease.head, lease.ttl_ms, lease.owner) == ("a", 3, 5_000, store.owner)


async def a_live_lease_cannot_be_claimed_again_not_even_by_its_holder(
    one: Store, two: Store, lease: Lease, clock: ManualClock
) -> None:
    clock.advance(999)
    held = {"journal": "a", "holder": one.owner.describe(), "expires_in_ms": 1}
    await refusal(errors.LeaseHeld, two.claim("a"), one.claim(lease.journal), **held)


async def of_many_claims_at_once_exactly_one_wins(one: StoreA, two: Store) -> None:
    claims = (store.claim("a") for store in (one, two) for _ in range(10))
    answers = await asyncio.gather(*claims, return_exceptions=True)
    assert sum(isinstance(answer, Lease) for answer in answers) == 1
    assert sum(isinstance(answer, errors.LeaseHeld) for answer in answers) == 19


async def a_renewed_lease_lasts_another_term(store: Store, lease: Lease, clock: ManualClock) -> None:
    clock.advance(900)
    await store.renew(lease)
    clock.advance(900)
    await refusal(errors.LeaseHeld, store.claim("a"))
    clock.advance(100)
    assert (await store.claim("a")).epoch == lease.epoch + 1


async def a_released_lease_is_free_at_once_and_worth_nothing(store: Store, lease: Lease) -> None:
    await store.release(lease)
    async with unchanged(store):
        for name in suite.STALE:
            await refusal(errors.Fenced, suite.ON_A_JOURNAL[name](store, lease), holder=None)
    assert (await store.claim("a")).epoch == lease.epoch + 1


async def an_expired_lease_can_be_taken_over_and_the_epoch_grows_by_one(
    one: Store, two: Store, lease: Lease, clock: ManualClock
) -> None:
    assert lease.owner == one.owner
    clock.advance(1_000)
    taken = await two.claim("a")
    assert (taken.epoch, taken.owner) == (lease.epoch + 1, two.owner)


async def epochs_only_grow_also_over_reopening(store: Store, clock: ManualClock, reopen: Reopen) -> None:
    for epoch in (1, 2, 3, 4):
        lease = await leased(store, "a", ttl_ms=1_000)
        assert lease.epoch == epoch
        await append_here(store, lease, step(f"x{epoch}"))
        if epoch % 2:
            await store.release(lease)
        clock.advance(1_000)
        store = await reopen()
    assert [entry.epoch for entry in await store.read("a")] == [0, 1, 2, 3, 4]


async def a_holder_of_an_expired_lease_may_go_on_until_a_takeover(
    store: Store, lease: Lease, clock: ManualClock
) -> None:
    clock.advance(60_000)
    assert await store.append(lease, [step("x")], head=1) == 2
    await store.renew(lease)
    await refusal(errors.LeaseHeld, store.claim("a"))


async def a_stale_holder_is_fenced_and_the_error_names_the_new_holder(
    one: Store, two: Store, stale: Lease, clock: ManualClock
) -> None:
    clock.advance(1_000)
    taken = await two.claim("a")
    async with unchanged(one):
        fenced = {"epoch": stale.epoch, "current": taken.epoch, "holder": two.owner.describe()}
        for name in suite.STALE:
            await refusal(errors.Fenced, suite.ON_A_JOURNAL[name](one, stale), journal="a", **fenced)
    assert await two.append(taken, [step("x")], head=1) == 2
    await refusal(errors.LeaseHeld, one.claim("a"))


async def a_fenced_append_is_refused_before_its_head_is_looked_at(
    store: Store, stale: Lease, clock: ManualClock
) -> None:
    clock.advance(1_000)
    await store.claim("a")
    await refusal(errors.Fenced, store.append(stale, [step("x")], head=99))


async def a_jump_of_the_wall_clock_takes_no_lease_away_and_prolongs_none(store: Store, clock: ManualClock) -> None:
    await leased(store, "a", ttl_ms=1_000)
    clock.jump(10_000_000)
    await refusal(errors.LeaseHeld, store.claim("a"), expires_in_ms=1_000)
    clock.jump(-20_000_000)
    clock.advance(999)
    await refusal(errors.LeaseHeld, store.claim("a"), expires_in_ms=1)
    clock.advance(1)
    assert (await store.claim("a")).epoch == 2


async def after_another_boot_a_lease_ends_by_the_wall_clock(stores: Stores) -> None:
    before, after = ManualClock(boot="first"), ManualClock(mono=0, boot="second")
    async with stores.open(before) as one, stores.open(after) as two:
        await leased(one, "a", ttl_ms=1_000)
        after.advance(999)
        await refusal(errors.LeaseHeld, two.claim("a"), expires_in_ms=1)
        after.advance(1)
        assert (await two.claim("a")).epoch == 2


async def closing_releases_the_leases_of_this_opening_only(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as other:
        kept = await leased(other, "kept")
        async with stores.open(clock) as store:
            leases = [await leased(store, name) for name in ("a", "b")]
            await refusal(errors.LeaseHeld, other.claim("a"))
        for lease in leases:
            await refusal(errors.Fenced, other.renew(lease), holder=None)
            assert (await other.claim(lease.journal)).epoch == lease.epoch + 1
        await other.renew(kept)


async def a_lease_on_one_journal_says_nothing_about_another(store: Store) -> None:
    one, two = await leased(store, "a"), await leased(store, "b")
    await store.release(one)
    assert await store.append(two, [step("x")], head=1) == 2


async def a_lease_has_the_content_of_a_journal_made_in_its_commit(store: Store) -> None:
    for name in map(str, range(200)):
        accepting = store.accept_into(name, "session", "a", {"name": name}, patient=True)
        made = (await store.claim(name)).made
        await accepting
        if made is not None:  # else the store has committed between the two commands, as it may
            _, entries, waiting, _ = await store.read_with_inbox(name)
            assert ([made.opened], [made.input]) == ([entry.record for entry in entries], waiting)
            return
    raise AssertionError("no lease has the content of its journal")


async def a_lease_lacks_the_content_if_more_came_in_the_same_commit(store: Store) -> None:
    for number in range(20):
        name = f"j{number}"
        for content in ("one", "two"):
            store.accept_into(name, "session", "a", content, patient=True)
        assert (await store.claim(name)).made is None


async def the_next_lease_lacks_the_content_of_a_new_journal(store: Store) -> None:
    for number in range(20):
        name = f"j{number}"
        store.accept_into(name, "session", "a", "one", patient=True)
        first = await store.claim(name)
        ending = store.append(first, [step("x")], head=1, patient=True), store.release(first)
        second = await store.claim(name)
        await asyncio.gather(*ending)
        assert (second.head, second.made) == (2, None)


async def a_lease_lacks_the_content_of_a_fork(store: Store, lease: Lease) -> None:
    await append_here(store, lease, step("x"))
    await store.fork("f", "a", 2)
    assert (await store.claim("f")).made is None


async def _task(store: Store, name: str, session: str | None = "s", *, role: str | None = "task") -> Lease:
    """Open a process in the middle of its work."""
    await store.open_journal(name, "process", role=role, session=session)
    lease = await store.claim(name)
    await append_here(store, lease, Started(at=1, run="r"))
    return lease


async def a_journal_keeps_its_role_and_its_session(store: Store, reopen: Reopen) -> None:
    made = await store.open_journal("a", "process", "clerk", role="task", session="s")
    assert (made.role, made.session) == ("task", "s")
    assert await store.open_journal("a", "process", "clerk", role="task", session="s") == made
    store = await reopen()
    assert await store.journal("a") == made
    (entry,) = await store.read("a")
    assert isinstance(entry.record, Opened)
    assert (entry.record.role, entry.record.session) == ("task", "s")


async def the_same_id_with_another_role_or_session_is_a_conflict(store: Store) -> None:
    await store.open_journal("a", "process", role="task", session="s")
    await store.open_journal("plain", "process")
    async with unchanged(store):
        for name, role, session in (
            *(("a", None, None), ("a", "task", None), ("a", None, "s"), ("a", "task", "other")),
            *(("a", "other", "s"), ("plain", "task", None), ("plain", None, "s")),
        ):
            await refusal(errors.JournalConflict, store.open_journal(name, "process", role=role, session=session))
            accepted = store.accept_into(name, "process", None, 1, role=role, session=session)
            await refusal(errors.JournalConflict, accepted)


async def a_process_with_a_role_is_work_while_it_runs_and_when_it_is_woken(store: Store) -> None:
    leases = [await _task(store, "task"), await _task(store, "driven", role=None)]
    (found,) = await store.work()
    assert (found.journal, found.kind, found.role, found.holder) == ("task", "process", "task", store.owner)
    for lease in leases:
        await append_here(store, lease, Ended(at=2, run="r", status="completed"))
    assert await store.work() == []
    for lease in leases:
        await store.accept(lease.journal, 1, key="k")
    assert [found.journal for found in await store.work()] == ["task"]


async def lists_can_be_narrowed_by_role_and_session(store: Store, clock: ManualClock) -> None:
    for n in range(12):
        clock.advance(n % 2)
        kind = "session" if n % 3 == 0 else "process"
        role, session = (None, "task", "timer")[n % 3], (None, "s", "t")[n // 4]
        await store.open_journal(f"j{n:02}", kind, role=role, session=session)
    await append_here(store, await store.claim("j04"), Started(at=clock.read().wall, run="r"))
    roles, sessions = (None, "task", "timer", "none"), (None, "s", "t", "none")
    await suite.check_narrowed(store.journals, 2, role=roles, session=sessions, status=(None, "idle", "running"))


async def a_journal_that_depends_on_its_siblings_is_made_only_where_they_are_as_they_were(
    one: Store, two: Store
) -> None:
    async def make(store: Store, name: str, role: str = "agent", session: str = "s", youngest: str = "") -> bool:
        made = store.accept_into(name, "session", "x", 1, key="k", role=role, session=session, youngest=youngest)
        return (await made).fresh

    assert await one.youngest("agent", "s") == await two.youngest("agent", "s") == ""
    assert await make(one, "a")
    await refusal(errors.SiblingBegun, make(two, "b"), journal="b", youngest="a")
    assert [line.id for line in await two.journals()] == ["a"]
    assert not await make(two, "a")  # it was made before; nothing is decided by this
    for name, role, session, youngest in (("z", "task", "s", ""), ("y", "agent", "t", ""), ("b", "agent", "s", "a")):
        await make(two, name, role, session, youngest)
    assert await one.youngest("agent", "s") == "b"


async def _wakes(store: Store, journal: str) -> int:
    """The number of wakes of a journal, which a claim reports too."""
    lease = await store.claim(journal)
    await store.release(lease)
    assert await store.wakes([journal]) == {journal: lease.wakes}
    return lease.wakes


async def _work(store: Store, journal: str) -> Work | None:
    return next((found for found in await all_work(store) if found.journal == journal), None)


async def _parked(store: Store, journal: str, *waits: str) -> Lease:
    """Park a session at waits, and release its lease with no work left."""
    lease = await leased(store, journal)
    await append_here(store, lease, Started(at=1, run="r"), Parked(at=2, run="r", waits=waits))
    await store.release(lease, seen=lease.wakes)
    return lease


async def a_session_without_wakes_is_no_work(store: Store) -> None:
    await store.open_journal("idle")
    await _parked(store, "waiting")
    lease = await leased(store, "done")
    await append_here(store, lease, Started(at=1, run="r"), Ended(at=2, run="r", status="completed"))
    assert await store.work() == []


async def an_accepted_input_is_work_until_a_holder_has_seen_it(store: Store, reopen: Reopen) -> None:
    await store.open_journal("a", agent="clerk")
    await store.accept("a", 1, key="k")
    store = await reopen()
    (found,) = await store.work()
    assert (found.journal, found.agent, found.wakes, found.status) == ("a", "clerk", 1, "idle")
    assert (found.holder, found.left_ms) == (None, 0)
    lease = await store.claim("a")
    assert lease.wakes == 1
    await store.release(lease, seen=lease.wakes)
    assert await store.work() == []


async def an_input_that_opened_its_journal_is_work(store: Store) -> None:
    await store.accept_into("a", "session", "clerk", 1, key="k")
    await store.accept_into("b", "process", None, 1, key="k", role="task", session="s")
    found = [(work.journal, work.kind, work.agent, work.role, work.wakes) for work in await store.work()]
    assert found == [("a", "session", "clerk", None, 1), ("b", "process", None, "task", 1)]
    assert (await store.journal("b")).session == "s"


async def only_a_fresh_input_wakes_its_journal(store: StoreA) -> None:
    for _ in range(2):
        await store.accept("a", 1, key="k")
    await refusal(errors.KeyConflict, store.accept("a", 2, key="k"))
    assert await _wakes(store, "a") == 1
    await store.accept("a", 2, key="l")
    assert await _wakes(store, "a") == 2


async def an_input_after_the_claim_is_still_work_after_the_release(store: StoreA) -> None:
    await store.accept("a", 1, key="k")
    lease = await store.claim("a")
    await store.accept("a", 2, key="l")
    await append_here(store, lease, Admitted(at=1, input=1, key="k"))
    await store.release(lease, seen=lease.wakes)
    assert [found.wakes for found in await store.work()] == [2]


async def a_release_leaves_the_work_until_one_has_seen_its_wakes(store: StoreA) -> None:
    await store.accept("a", 1, key="k")
    for seen, left in ((None, ["a"]), (0, ["a"]), (1, []), (0, [])):
        await store.release(await store.claim("a"), seen=seen)
        assert [found.journal for found in await store.work()] == left, seen


async def a_release_cannot_have_seen_more_wakes_than_there_were(store: StoreA) -> None:
    await store.accept("a", 1, key="k")
    lease = await store.claim("a")
    for bad in (2, -1):
        await refusal(errors.InvalidNumber, store.release(lease, seen=bad))
    await store.renew(lease)  # a refused release releases nothing
    assert await _work(store, "a") is not None


async def a_stale_holder_has_seen_nothing(store: StoreA, clock: ManualClock) -> None:
    await store.accept("a", 1, key="k")
    stale = await store.claim("a", ttl_ms=1_000)
    clock.advance(1_000)
    await store.release(await store.claim("a"))
    await refusal(errors.Fenced, store.release(stale, seen=1))
    assert await _work(store, "a") is not None


async def a_running_session_is_work_with_or_without_a_holder(
    one: Store, two: Store, lease: RunLease, clock: ManualClock
) -> None:
    for passed, holder, left in ((400, one.owner, 600), (599, one.owner, 1), (1, None, 0)):
        clock.advance(passed)
        for store in (one, two):
            (found,) = await store.work()
            assert (found.status, found.wakes, found.holder, found.left_ms) == ("running", 0, holder, left)
    await one.renew(lease)
    assert [found.holder for found in await two.work()] == [one.owner]
    await one.release(lease)
    assert [(found.holder, found.left_ms) for found in await two.work()] == [(None, 0)]


async def running_sessions_of_a_closed_store_are_work_without_a_holder(store: Store, reopen: Reopen) -> None:
    await append_here(store, await leased(store, "a"), Started(at=1, run="r"))
    store = await reopen()
    assert [(found.journal, found.holder) for found in await store.work()] == [("a", None)]


async def processes_and_quarantined_journals_are_no_work(store: Store) -> None:
    await store.open_journal("process", "process")
    await store.accept("process", 1, key="k")
    await append_here(store, await store.claim("process"), Started(at=1, run="r"))
    await store.open_journal("bad")
    await store.accept("bad", 1, key="k")
    assert [found.journal for found in await store.work()] == ["bad"]
    await store.quarantine("bad", "a test")
    assert await store.work() == []


async def work_follows_the_status_of_its_session(store: Store, lease: Lease) -> None:
    story: list[tuple[Record, bool]] = [
        (Started(at=1, run="r"), True),
        (step("x"), True),
        (Parked(at=2, run="r"), False),
        (Ended(at=3, run="queued", status="cancelled", unstarted=True), False),
        (Resumed(at=4, run="r", by="pid 2"), True),
        (Ended(at=5, run="other", status="cancelled", unstarted=True), True),
        (Ended(at=6, run="r", status="failed"), False),
    ]
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


async def _expect_woken(store: Store, journal: str) -> None:
    """Assert that the session waits, and was woken once."""
    found = await _work(store, journal)
    assert found is not None, journal
    assert (found.status, found.wakes) == ("waiting", 1), journal


async def a_wait_that_is_settled_wakes_a_session_that_waits(store: Store, clock: ManualClock) -> None:
    for how, settle in _SETTLINGS.items():
        await store.open_journal(how)
        await store.open_wait(how, "w")
        await store.open_wait(how, "late", deadline=clock.read().wall + 10)
        await _parked(store, how, "w", "late")
        clock.advance(10)
        assert await _work(store, how) is None, how
        await settle(store, how)
        await _expect_woken(store, how)


async def a_wait_that_stays_open_or_was_settled_before_wakes_no_session(store: StoreA) -> None:
    await suite.open_each_wait(store, "w", "other")
    await store.cancel_wait("a", "other")
    await _parked(store, "a", "w")
    await store.expire_wait("a", "w")
    await store.cancel_wait("a", "other")
    await store.resolve(store.wait_token("a", "other"), 1)
    await store.open_wait("a", "new")
    assert await store.work() == []


async def a_wait_that_is_settled_wakes_no_session_that_is_not_waiting(store: Store) -> None:
    await store.open_journal("idle")
    await store.open_wait("idle", "w")
    await store.cancel_wait("idle", "w")
    await append_here(store, await leased(store, "running"), Started(at=1, run="r"))
    await store.open_wait("running", "w")
    await store.resolve(store.wait_token("running", "w"), 1)
    assert await _wakes(store, "idle") == 0
    assert [(found.journal, found.wakes) for found in await store.work()] == [("running", 0)]


async def a_session_that_parks_for_an_answered_wait_is_woken_at_once(store: Store, lease: Lease) -> None:
    await suite.open_each_wait(store, "open", "answered")
    await store.resolve(store.wait_token("a", "answered"), 1)
    await append_here(store, lease, Started(at=1, run="r"))
    await append_here(store, lease, Parked(at=2, run="r", waits=("open", "answered")))
    await store.release(lease, seen=lease.wakes)
    assert [(found.status, found.wakes) for found in await store.work()] == [("waiting", 1)]


async def a_session_that_parks_for_a_buffered_answer_is_woken_at_once(store: Store, lease: Lease) -> None:
    await store.resolve(store.wait_token("a", "early"), 1)
    await append_here(store, lease, Started(at=1, run="r"), Parked(at=2, run="r", waits=("early",)))
    assert await _work(store, "a") is not None


async def a_session_that_parks_for_open_waits_is_not_woken(store: StoreA) -> None:
    await suite.open_each_wait(store, "open", "unrelated")
    await store.cancel_wait("a", "unrelated")
    await _parked(store, "a", "open", "nobody opened this yet")
    assert await store.work() == []


async def however_parking_and_the_answer_meet_the_session_is_woken(store: Store) -> None:
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
        await _expect_woken(store, name)


async def work_comes_in_the_order_of_creation_page_by_page(store: Store) -> None:
    names = [f"j{9 - n}" for n in range(10)]
    for name in names:
        await store.open_journal(name)
    expected = [name for name in names if name != "j4"]
    for name in (*expected[5:], *expected[:5]):
        await store.accept(name, 1, key="k")
    everything = await store.work()
    assert [found.journal for found in everything] == expected
    for size in (1, 2, 9, 50):
        assert await all_work(store, size) == everything, size
