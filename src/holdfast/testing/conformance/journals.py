"""Journals: dense, ordered, written under an epoch and an expected head."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from holdfast import errors
from holdfast.records import Admitted, Blob, Done, Ended, Opened, Record, Started
from holdfast.store import Lease, Store
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance import suite
from holdfast.testing.conformance.suite import append_here, leased, promptly, refusal, step, unchanged, with_blob

if TYPE_CHECKING:
    from holdfast.testing.conformance.suite import Reopen, StoreA, Stores


async def a_journal_begins_with_an_opened_record_at_sequence_one(store: Store) -> None:
    opened = await store.open_journal("a", "process", "clerk")
    (entry,) = await store.read("a")
    assert (entry.seq, entry.pos, entry.epoch) == (1, 1, 0)
    assert isinstance(entry.record, Opened)
    assert (entry.record.kind, entry.record.agent) == ("process", "clerk")
    assert (opened.id, opened.head, opened.status) == ("a", 1, "idle")


async def opening_a_journal_again_finds_it_as_it_is(store: Store, lease: Lease, clock: ManualClock) -> None:
    await append_here(store, lease, step("x"))
    clock.advance(5)
    async with unchanged(store):
        assert (await store.open_journal("a")).head == 2


async def one_id_belongs_to_one_kind_and_one_agent(store: Store) -> None:
    await store.open_journal("a", "session", "clerk")
    async with unchanged(store):
        opening = store.open_journal
        attempts = (opening("a", "process", "clerk"), opening("a", "session", "cook"), opening("a", "session"))
        await refusal(errors.JournalConflict, *attempts, journal="a")


async def journals_opened_at_the_same_moment_are_one_journal(one: Store, two: Store) -> None:
    await asyncio.gather(*(store.open_journal("a") for store in (one, two) for _ in range(10)))
    assert await one.last_position() == await two.last_position() == 1


async def every_call_on_a_missing_journal_says_so_and_writes_nothing(store: Store, lease: Lease) -> None:
    async with unchanged(store):
        ghost = Lease("ghost", lease.epoch, lease.owner, lease.ttl_ms, lease.head)
        for call in suite.ON_A_JOURNAL.values():
            await refusal(errors.JournalMissing, call(store, ghost), journal="ghost")


async def sequences_are_dense_from_one(store: Store, lease: Lease) -> None:
    assert await store.append(lease, [step("x"), step("y")], head=1) == 3
    assert await store.append(lease, [step("z")], head=3) == 4
    assert [entry.seq for entry in await store.read("a")] == [1, 2, 3, 4]


async def records_come_back_as_they_were_written(store: Store, lease: Lease, reopen: Reopen) -> None:
    written: list[Record] = [Started(at=7, run="main", code="v1"), step("é/☃", at=8)]
    await store.append(lease, written, head=1)
    store = await reopen()
    assert [entry.record for entry in await store.read("a", after=1)] == written


async def the_callback_of_an_append_runs_once_and_before_its_waiters(store: Store, lease: Lease) -> None:
    told: list[int | BaseException | None] = []
    await store.append(lease, [step("x")], head=1, then=lambda done: told.append(done.result()))
    assert told == [2]
    attempt = store.append(lease, [step("x")], head=7, then=lambda done: told.append(done.exception()))
    await refusal(errors.HeadConflict, attempt)
    assert [type(found) for found in told] == [int, errors.HeadConflict]


async def an_append_at_another_head_is_refused_with_both_heads(store: Store, lease: Lease) -> None:
    async with unchanged(store):
        for wrong in (0, 2, 99):
            await refusal(errors.HeadConflict, store.append(lease, [step("x")], head=wrong), expected=wrong, actual=1)


async def a_record_over_the_limit_is_refused_and_one_at_the_limit_is_not(store: Store, lease: Lease) -> None:
    limit = store.limits.record_bytes
    room = limit - len(msgspec.json.encode(step("y", value=b'""')))
    fits, too_large = (step("y", value=b'"%b"' % (b"x" * size)) for size in (room, room + 1))
    async with unchanged(store):
        attempt = store.append(lease, [step("x"), too_large], head=1)
        await refusal(errors.PayloadTooLarge, attempt, size=limit + 1, limit=limit)
    assert await store.append(lease, [fits], head=1) == 2


async def reading_goes_on_from_a_cursor_with_a_limit(store: Store, lease: Lease) -> None:
    await store.append(lease, [step(str(n)) for n in range(9)], head=1)
    assert [entry.seq for entry in await store.read("a", after=3, limit=4)] == [4, 5, 6, 7]
    assert [entry.seq for entry in await store.read("a", after=7)] == [8, 9, 10]
    assert await store.read("a", after=10) == await store.read("a", after=1_000) == []
    await refusal(errors.InvalidNumber, store.read("a", after=-5))
    await refusal(errors.UsageError, store.read("a", limit=0))


async def reading_everything_follows_the_pages_to_their_end(store: Store, lease: Lease) -> None:
    total = store.limits.page + 1
    await store.append(lease, [step(str(n)) for n in range(total - 1)], head=1)
    assert len(await store.read("a", limit=total)) == store.limits.page
    assert [entry.seq async for entry in store.read_all("a")] == list(range(1, total + 1))
    assert [entry.seq async for entry in store.read_all("a", after=total - 1)] == [total]


async def the_tail_is_the_last_records_oldest_first(store: Store, lease: Lease) -> None:
    await store.append(lease, [step(str(n)) for n in range(9)], head=1)
    assert [entry.seq for entry in await store.tail("a", limit=3)] == [8, 9, 10]
    assert [entry.seq for entry in await store.tail("a")] == list(range(1, 11))
    assert await store.tail("a", limit=3) == (await store.read("a"))[-3:]


async def the_heads_and_wakes_of_many_journals_are_found_and_missing_ones_left_out(store: Store) -> None:
    names = [f"j{n}" for n in range(1_100)]
    await asyncio.gather(*(store.open_journal(name) for name in names))
    await append_here(store, await store.claim("j7"), step("x"), step("y"))
    for content in ("hello", "again"):
        await store.accept("j8", content)
    assert await store.heads([*names, "ghost"]) == {**dict.fromkeys(names, 1), "j7": 3}
    assert await store.wakes([*names, "ghost"]) == {**dict.fromkeys(names, 0), "j8": 2}
    assert await store.heads([]) == {}


async def a_journal_and_its_inbox_are_read_in_one_go(store: StoreA) -> None:
    await append_here(store, await store.claim("a"), step("x"))
    await store.accept("a", "hello", key="k")
    page = await store.read_with_inbox("a")
    assert (page.fold, page.entries, page.pending) == (None, await store.read("a"), await store.pending("a"))
    assert (await store.read_with_inbox("a", after=1)).entries == await store.read("a", after=1)


async def feed_positions_have_no_gaps_and_follow_the_commits_of_all_journals(store: Store) -> None:
    names = [f"j{n}" for n in range(5)]
    leases = {name: await leased(store, name) for name in names}
    for head in range(1, 5):
        await asyncio.gather(*(store.append(leases[name], [step(f"x{head}")], head=head) for name in names))
    feed = await store.feed()
    assert [entry.pos for entry in feed] == list(range(1, len(names) * 5 + 1))
    assert await store.last_position() == feed[-1].pos
    for name in names:
        mine = [(entry.seq, entry.pos, entry.record) for entry in feed if entry.journal == name]
        assert mine == [(entry.seq, entry.pos, entry.record) for entry in await store.read(name)]
    assert await store.feed(after=7, limit=3) == feed[7:10]
    assert await store.feed(after=feed[-1].pos) == []


async def a_mark_comes_after_all_earlier_writes(store: Store, lease: Lease) -> None:
    appending = store.append(lease, [step("x")], head=1)
    mark = store.read_position()
    later = store.append(lease, [step("y")], head=2)
    assert (await appending, await mark, await later) == (2, 2, 3)
    assert [entry.seq for entry in await store.feed(after=await mark)] == [3]


async def a_refused_append_leaves_no_gap_in_the_feed(store: Store, lease: Lease) -> None:
    attempts = [store.append(lease, [step(str(n))], head=head) for n, head in enumerate((1, 7, 2, 9, 3))]
    await asyncio.gather(*attempts, return_exceptions=True)
    assert [entry.pos for entry in await store.feed()] == [1, 2, 3, 4]


async def pipelined_appends_are_carried_out_in_their_order(store: Store, lease: Lease) -> None:
    pending = [store.append(lease, [step(str(n))], head=n + 1) for n in range(200)]
    assert await asyncio.gather(*pending) == list(range(2, 202))
    keys = [entry.record.key for entry in await store.read("a", after=1) if isinstance(entry.record, Done)]
    assert keys == [f"main/{n}" for n in range(200)]


async def when_one_pipelined_append_fails_all_after_it_fail(store: Store, lease: Lease) -> None:
    first = store.append(lease, [step("x")], head=1)
    bad = store.append(lease, [with_blob(Blob("0" * 64, 1))], head=2)
    later = [store.append(lease, [step(f"l{n}")], head=3 + n) for n in range(5)]
    assert await first == 2
    await refusal(errors.BlobMissing, bad)
    await refusal(errors.HeadConflict, *later, actual=2)
    assert (await store.journal("a")).head == 2


async def closing_finishes_queued_appends(stores: Stores) -> None:
    clock = ManualClock()
    for turns in range(5):
        async with stores.open(clock) as store:
            attempt = store.append(await leased(store, f"j{turns}"), [step("x")], head=1)
            for _ in range(turns):  # so that the close meets the append at various stages of its way
                await asyncio.sleep(0)
            await promptly(store.close())
        done, _ = await asyncio.wait([attempt], timeout=suite.PATIENCE)
        assert done, f"the append was never answered when the loop turned {turns} times before the close"
        assert attempt.result() == 2
        async with stores.open(clock) as store:
            assert (await store.journal(f"j{turns}")).head == 2


async def every_call_on_a_closed_store_says_so(store: Store, lease: Lease) -> None:
    token = store.wait_token("a", "w")
    await store.close()
    for name, call in {**suite.ON_A_JOURNAL, **suite.ON_THE_STORE}.items():
        try:
            await promptly(call(store, lease))
        except errors.StoreClosed:
            continue
        raise AssertionError(name)
    await refusal(errors.StoreClosed, store.resolve(token, 1))
    await promptly(store.close())  # a second time is harmless


async def acknowledged_writes_survive_reopening(store: Store, reopen: Reopen) -> None:
    calls = {**suite.ON_A_JOURNAL, **suite.ON_THE_STORE}
    del calls["release"], calls["claim"]  # the lease itself is looked at elsewhere
    for number, (name, call) in enumerate(calls.items()):
        lease = await leased(store, f"j{number}")
        if name in ("expire_wait", "cancel_wait", "answer_wait"):
            await store.open_wait(lease.journal, "w")
        await call(store, lease)
        before = await suite.contents(store)
        store = await reopen()
        assert await suite.contents(store) == before, name


async def a_fork_names_its_parent_and_copies_nothing(store: Store, clock: ManualClock, reopen: Reopen) -> None:
    await store.open_journal("a", "session", "clerk")
    await append_here(store, await store.claim("a"), Started(at=1, run="r"), step("x"), step("y"))
    before = await store.last_position()
    clock.advance(5)
    fork = await store.fork("b", "a", 3)
    assert (fork.id, fork.kind, fork.agent, fork.status, fork.head) == ("b", "session", "clerk", "idle", 1)
    assert (fork.parent, fork.parent_seq, fork.created, fork.updated) == ("a", 3, *[clock.read().wall] * 2)
    (entry,) = await store.read("b")
    assert isinstance(entry.record, Opened)
    assert (entry.record.parent, entry.record.parent_seq) == ("a", 3)
    assert await store.last_position() == before + 1
    store = await reopen()
    assert await store.journal("b") == fork
    assert fork in await store.journals()


async def the_fork_of_a_process_is_a_process_with_its_role_and_session(store: Store) -> None:
    for name, role, session in (("a", None, None), ("task", "task", "s")):
        await store.open_journal(name, "process", role=role, session=session)
        await append_here(store, await store.claim(name), Started(at=1, run="r"))
        for at in (1, 2):
            fork = await store.fork(f"{name}-{at}", name, at)
            assert (fork.kind, fork.agent, fork.role, fork.session) == ("process", None, role, session)


async def a_fork_leaves_its_parent_as_it_is(store: Store, lease: Lease) -> None:
    before = await store.journal("a")
    await store.fork("b", "a", 1)
    assert await store.journal("a") == before
    assert await store.append(lease, [step("x")], head=1) == 2


async def a_journal_can_be_forked_at_each_of_its_records_and_nowhere_else(store: Store, lease: Lease) -> None:
    await append_here(store, lease, step("x"), step("y"))
    for at in (1, 2, 3):
        assert (await store.fork(f"b{at}", "a", at)).parent_seq == at
    async with unchanged(store):
        for at in (-1, 0, 4, 2**40):
            await refusal(errors.ForkPointMissing, store.fork("c", "a", at), journal="a", at=at, head=3)


async def a_fork_can_be_forked(store: Store) -> None:
    await append_here(store, await leased(store, "a"), step("x"), step("y"))
    await store.fork("b", "a", 3)
    await refusal(errors.ForkPointMissing, store.fork("c", "b", 2))  # its own records count
    await append_here(store, await store.claim("b"), step("z"))
    assert (await store.fork("c", "b", 2)).parent == "b"


async def the_same_fork_again_finds_it_as_it_is(store: Store, clock: ManualClock) -> None:
    await leased(store, "a")
    await store.fork("b", "a", 1)
    await append_here(store, await store.claim("b"), step("x"))
    clock.advance(5)
    await store.quarantine("a", "a test")
    async with unchanged(store):
        assert (await store.fork("b", "a", 1)).head == 2


async def a_fork_that_is_opened_is_found_as_it_is(store: Store) -> None:
    await store.open_journal("a", "session", "clerk")
    assert await store.fork("b", "a", 1) == await store.open_journal("b", "session", "clerk")
    await refusal(errors.JournalConflict, store.open_journal("b", "session", "cook"))


async def an_id_that_is_taken_cannot_become_a_fork(store: Store) -> None:
    await append_here(store, await leased(store, "a"), step("x"))
    await store.open_journal("other")
    await store.fork("b", "a", 1)
    async with unchanged(store):
        for journal, parent, at in (("other", "a", 1), ("a", "a", 1), ("b", "a", 2), ("b", "other", 1)):
            error = await refusal(errors.JournalConflict, store.fork(journal, parent, at))
            assert error.journal == journal
            assert f"{parent!r}" in error.asked


async def a_missing_or_quarantined_journal_cannot_be_forked(store: Store) -> None:
    await store.open_journal("bad")
    await store.quarantine("bad", "a test")
    async with unchanged(store):
        await refusal(errors.JournalMissing, store.fork("b", "ghost", 1), journal="ghost")
        await refusal(errors.JournalQuarantined, store.fork("b", "bad", 1), journal="bad")


async def forks_made_at_the_same_moment_are_one_fork(one: StoreA, two: Store) -> None:
    await asyncio.gather(*(store.fork("b", "a", 1) for store in (one, two) for _ in range(5)))
    assert await one.last_position() == await two.last_position() == 2


async def the_same_bytes_are_kept_once(store: Store, reopen: Reopen) -> None:
    first, second = await store.put_blob(b"hello"), await store.put_blob(b"hello")
    assert first == second == Blob("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", 5)
    assert await store.blob("0" * 64) is None
    store = await reopen()
    assert await store.blob(first.digest) == b"hello"
    assert len(await store.examine(lambda reader: list(reader.raw_blobs()))) == 1


async def an_append_that_refers_to_a_missing_blob_is_refused_as_a_whole(store: Store, lease: Lease) -> None:
    async with unchanged(store):
        missing = Blob("0" * 64, 1)
        admitted = Admitted(at=1, input=1, key="k", blob=missing)
        ended = Ended(at=1, run="main", status="completed", blob=missing)
        several = [Started(at=1, run="main"), step("x"), with_blob(missing)]
        for added in ([with_blob(missing)], [admitted], [ended], several):
            await refusal(errors.BlobMissing, store.append(lease, added, head=1), digest=missing.digest)


async def only_old_blobs_that_nothing_refers_to_are_collected(store: Store, lease: Lease, clock: ManualClock) -> None:
    used, unused = await store.put_blob(b"used"), await store.put_blob(b"unused")
    await store.append(lease, [with_blob(used)], head=1)
    clock.advance(2_000)
    young = await store.put_blob(b"young")
    assert [await store.collect_blobs(unused_ms=age) for age in (3_000, 1_000)] == [0, 1]
    assert [await store.blob(blob.digest) for blob in (unused, used, young)] == [None, b"used", b"young"]


async def putting_a_blob_again_saves_it_from_collection(store: Store, clock: ManualClock) -> None:
    await store.append(await leased(store, "a"), [with_blob(await store.put_blob(b"used"))], head=1)
    blob = await store.put_blob(b"x")
    clock.advance(2_000)
    await store.put_blob(b"x")
    for collected in (0, 1):
        assert await store.collect_blobs(unused_ms=1_000) == collected
        clock.advance(2_000)
    assert await store.blob(blob.digest) is None


async def a_collected_blob_can_be_put_again(store: Store, lease: Lease, clock: ManualClock) -> None:
    blob = await store.put_blob(b"x")
    clock.advance(2_000)
    await store.collect_blobs(unused_ms=1_000, without_roots=True)
    await refusal(errors.BlobMissing, store.append(lease, [with_blob(blob)], head=1))
    await store.put_blob(b"x")
    assert await store.append(lease, [with_blob(blob)], head=1) == 2


async def an_empty_blob_is_a_blob(store: Store) -> None:
    blob = await store.put_blob(b"")
    assert (blob.size, await store.blob(blob.digest)) == (0, b"")


async def the_version_grows_with_every_commit(store: Store, lease: Lease) -> None:
    await store.open_wait("a", "w")
    for name in (
        *("append", "renew", "accept", "open_wait", "cancel_wait"),
        *("open_journal", "fork", "accept_into", "put_blob", "notify", "memory_put", "memory_delete", "add_rule"),
    ):
        before = store.version
        await {**suite.ON_A_JOURNAL, **suite.ON_THE_STORE}[name](store, lease)
        assert store.version > before, name


async def a_change_wakes_its_waiters(store: Store) -> None:
    seen = store.version
    waiting = asyncio.ensure_future(store.changed(seen))
    await asyncio.sleep(0)
    await store.open_journal("a")
    assert await promptly(waiting) > seen


async def a_change_that_came_before_the_waiting_is_not_missed(store: Store) -> None:
    seen = store.version
    await store.open_journal("a")
    assert await promptly(store.changed(seen)) > seen


async def _quiet(store: Store) -> int:
    """The version once no change is left to notice; the opening of the store itself may be noticed late."""
    seen = store.version
    for _ in range(100):
        before, seen = seen, await store.changed(seen, 0.05)
        if seen == before:
            return seen
    raise AssertionError("the version grows although nothing is written")


async def waiting_for_a_change_ends_when_the_time_is_up(store: StoreA) -> None:
    seen = await _quiet(store)
    assert await promptly(store.changed(seen, 0.01)) == seen


async def a_commit_of_another_opening_is_noticed(one: Store, two: Store) -> None:
    for n in range(3):
        seen = two.version
        await one.open_journal(f"j{n}")
        assert await promptly(two.changed(seen)) > seen


async def an_observer_in_another_opening_misses_nothing(writer: Store, observer: Store, lease: Lease) -> None:

    async def observe() -> list[int]:
        seen: list[int] = []
        while len(seen) < 21:
            version = observer.version
            news = await observer.feed(after=len(seen))
            seen.extend(entry.pos for entry in news)
            if not news:
                await observer.changed(version)
        return seen

    observing = asyncio.ensure_future(observe())
    for n in range(20):
        await writer.append(lease, [step(str(n))], head=n + 1)
        await asyncio.sleep(0)
    try:
        assert await promptly(observing) == list(range(1, 22))
    finally:
        observing.cancel()


async def closing_wakes_those_who_wait_for_changes(store: StoreA) -> None:
    waiting = asyncio.ensure_future(store.changed(await _quiet(store)))
    await asyncio.sleep(0)
    await store.close()
    await refusal(errors.StoreClosed, promptly(waiting), promptly(store.changed(0)))


async def a_quarantined_journal_is_not_advanced_and_the_others_go_on(store: Store) -> None:
    lease, other = await leased(store, "a"), await leased(store, "b")
    await store.accept("a", 1, key="known")
    await store.quarantine("a", "a test")
    async with unchanged(store):
        assert not (await store.accept("a", 1, key="known")).fresh
        attempts = (store.append(lease, [step("x")], head=1), store.claim("a"), store.accept("a", 1, key="k"))
        await refusal(errors.JournalQuarantined, *attempts, journal="a", reason="a test")
    assert await store.append(other, [step("x")], head=1) == 2


async def the_first_reason_of_a_quarantine_stays_also_over_reopening(store: StoreA, reopen: Reopen) -> None:
    for reason in ("first", "second"):
        await store.quarantine("a", reason)
    store = await reopen()
    assert (await store.journal("a")).quarantine == "first"
    assert [line.quarantine for line in await store.journals()] == ["first"]
    await refusal(errors.JournalQuarantined, store.claim("a"))


async def a_store_keeps_its_identity_and_every_opening_has_its_own(one: Store, two: Store, reopen: Reopen) -> None:
    assert one.id == two.id
    assert one.owner.instance != two.owner.instance
    assert (await reopen()).id == one.id


async def two_openings_see_each_others_commits(one: Store, two: Store, lease: Lease) -> None:
    await one.append(lease, [step("x")], head=1)
    await two.accept("a", 1, key="k")
    await two.open_wait("a", "w")
    await one.append(lease, [Admitted(at=1, input=1, key="k")], head=2)
    assert await suite.contents(one) == await suite.contents(two)
    assert await two.pending("a") == []
