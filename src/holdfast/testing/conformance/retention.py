"""Retention: sessions are forgotten, journals that are over leave a tombstone, long ones lose their oldest records."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import errors
from holdfast.records import Admitted, Done, Ended, Record, Started
from holdfast.store.audit import audit
from holdfast.store.spending import ReadBlob, Spend
from holdfast.testing.conformance.suite import Reopen, append_here, leased, open_each_wait, refusal, step, with_blob

if TYPE_CHECKING:
    from holdfast.store import Lease, Store
    from holdfast.store.retention import Forgotten, Tombstone
    from holdfast.testing.clock import ManualClock


KEY = "call"


async def _begun(store: Store, id: str = "p") -> Lease:
    """Begin a process; returns its lease."""
    await store.accept_into(id, "process", "f", "go", key=KEY, role="process", session="s")
    lease = await store.claim(id)
    await append_here(store, lease, Admitted(at=1, input=1, key=KEY), Started(at=1, run="r"))
    return lease


async def _end(store: Store, lease: Lease, *records: Record, spend: Spend | None = None) -> int:
    """End a process and release its lease; returns the head of its journal."""
    head = await append_here(store, lease, *records, Ended(at=2, run="r", status="completed"), spend=spend)
    await store.release(lease, seen=lease.wakes)
    return head


async def _over(store: Store, id: str = "p") -> int:
    """Run a process to its end; returns the head of its journal."""
    return await _end(store, await _begun(store, id), step("x"))


async def _prune(store: Store, id: str, head: int) -> Tombstone:
    return await store.prune_journal(id, head=head, detail="completed", key=KEY)


def _spends_nothing(_: Record, __: ReadBlob) -> Spend | None:
    return None


async def a_pruned_journal_is_gone_and_says_so(store: Store, reopen: Reopen) -> None:
    stone = await _prune(store, "p", await _over(store))
    assert (stone.journal, stone.detail, stone.session) == ("p", "completed", "s")
    attempts = (store.journal("p"), store.read("p"), store.claim("p"), store.waits("p"), store.pending("p"))
    await refusal(errors.JournalPruned, *attempts, status="completed")
    assert await store.journals() == []
    store = await reopen()
    assert await store.tombstone("p") == stone


async def an_id_that_was_pruned_is_never_used_again(store: Store) -> None:
    await _prune(store, "p", await _over(store))
    for content, same in (("go", True), ("stop", False)):
        again = store.accept_into("p", "process", "f", content, key=KEY, role="process", session="s")
        await refusal(errors.JournalPruned, again, same=same)
    await refusal(errors.JournalConflict, store.open_journal("p", "process", "g", role="process", session="s"))
    await refusal(errors.JournalPruned, store.open_journal("p", "process", "f", role="process", session="s"))
    await store.open_journal("q")
    await refusal(errors.JournalPruned, store.fork("p", "q", 1))


async def pruning_twice_is_pruning_once(store: Store) -> None:
    head = await _over(store)
    assert await _prune(store, "p", head) == await _prune(store, "p", head)
    await refusal(errors.JournalMissing, _prune(store, "nobody", 1))


async def an_unfinished_journal_is_not_pruned(store: Store) -> None:
    lease = await _begun(store)
    await refusal(errors.JournalInUse, _prune(store, "p", (await store.journal("p")).head))
    head = await append_here(store, lease, Ended(at=2, run="r", status="failed"))
    assert "holds it" in (await refusal(errors.JournalInUse, _prune(store, "p", head))).reason
    await store.release(lease)
    assert "came for it" in (await refusal(errors.JournalInUse, _prune(store, "p", head))).reason
    await store.release(await store.claim("p"), seen=1)
    assert "gone on" in (await refusal(errors.JournalInUse, _prune(store, "p", head - 1))).reason
    await _prune(store, "p", head)


async def a_session_and_a_journal_that_others_go_on_from_are_not_pruned(store: Store) -> None:
    await store.release(await leased(store, "s"))
    assert "only processes" in (await refusal(errors.JournalInUse, _prune(store, "s", 1))).reason
    head = await _over(store)
    await store.fork("q", "p", 2)
    assert "go on from" in (await refusal(errors.JournalInUse, _prune(store, "p", head))).reason


async def the_newest_position_is_not_given_to_another_record(store: Store, reopen: Reopen) -> None:
    await store.open_journal("before")
    stone = await _prune(store, "p", await _over(store))
    last = await store.last_position()
    assert stone.pos == last
    assert [(found.journal, found.record is None) for found in await store.feed(after=1)] == [("", True)]
    await store.open_journal("after")
    assert [(found.pos, found.journal) for found in await store.feed(after=last)] == [(last + 1, "after")]
    store = await reopen()
    for name in ("p2", "p3"):
        await _prune(store, name, await _over(store, name))
    assert [found.journal for found in await store.feed()] == ["before", "after", ""]


async def a_reader_of_the_feed_finds_the_tombstones_of_pruned_journals(store: Store) -> None:
    head = await _over(store, "p1")
    middle = await store.last_position()
    await _prune(store, "p2", await _over(store, "p2"))
    await _prune(store, "p1", head)
    assert [stone.journal for stone in await store.tombstones()] == ["p1", "p2"]
    assert [stone.journal for stone in await store.tombstones(after=middle)] == ["p2"]
    assert await store.tombstones(role="task") == []


async def blobs_of_a_pruned_journal_are_collected(store: Store, clock: ManualClock) -> None:
    blob, kept = await store.put_blob(b"large"), await store.put_blob(b"shared")
    head = await _end(store, await _begun(store), with_blob(blob), with_blob(kept, "shared"))
    await append_here(store, await leased(store, "other"), with_blob(kept))
    await _prune(store, "p", head)
    clock.advance(1)
    assert (await store.collect_blobs(unused_ms=0), await store.blob(kept.digest)) == (1, b"shared")


async def an_old_blob_goes_with_the_last_journal_that_had_it(store: Store, clock: ManualClock) -> None:
    blob = await store.put_blob(b"large")
    head = await _end(store, await _begun(store), with_blob(blob))
    clock.advance(3_600_001)
    await _prune(store, "p", head)
    assert await store.blob(blob.digest) is None


async def waits_and_notifications_go_with_their_journal(store: Store) -> None:
    lease = await _begun(store)
    await store.open_wait("p", "w", deadline=5)
    told, _ = await store.notify("p", kind="task", title="done")
    await store.settle_notification(told.id, "acknowledged")
    head = await _end(store, lease)
    await store.release(await store.claim("p"), seen=(await store.wakes(["p"]))["p"])
    await _prune(store, "p", head)
    assert await store.due() == await store.notifications() == []


async def spending_survives_pruning(store: Store) -> None:
    spend = Spend(model_calls=1, cost_micros=7)
    head = await _end(store, await _begun(store), step("x"), spend=spend)
    await store.prune_journal("p", head=head, detail="completed", key=KEY, spent={0: spend})
    assert await store.spent("f") == spend
    assert await store.examine(lambda reader: audit(reader, None, _spends_nothing)) == []
    await store.rebuild_spending(_spends_nothing)
    assert await store.spent("f") == spend


async def a_trimmed_journal_goes_on_where_it_was(store: Store, lease: Lease, reopen: Reopen) -> None:
    await append_here(store, lease, step("a"), step("b"), step("c"))
    assert [await store.trim_journal(lease, 3) for _ in range(2)] == [3, 0]
    await append_here(store, lease, step("d"))
    for entries in (await store.read("a"), await store.tail("a", 2)):
        assert [entry.seq for entry in entries] == [4, 5]
    store = await reopen()
    assert [entry.seq async for entry in store.read_all("a")] == [4, 5]


async def only_the_holder_of_a_journal_trims_it_and_never_its_last_record(store: Store, lease: Lease) -> None:
    await refusal(
        errors.InvalidNumber, store.trim_journal(lease, await append_here(store, lease, step("a"), step("b")))
    )
    await store.release(lease)
    await store.claim("a")
    await refusal(errors.Fenced, store.trim_journal(lease, 1), store.empty_inputs(lease, 1))


async def a_key_whose_input_was_emptied_is_still_taken(store: Store, lease: Lease, clock: ManualClock) -> None:
    for key in ("old", "spared"):
        await store.accept("a", {"said": key}, key=key)
    await append_here(store, lease, Admitted(at=1, input=1, key="old"), Admitted(at=1, input=2, key="spared"))
    clock.advance(10)
    await store.accept("a", {"said": "new"}, key="new")
    assert [await store.empty_inputs(lease, clock.read().wall, [2]) for _ in range(2)] == [1, 0]
    assert not (await store.accept("a", {"said": "old"}, key="old")).fresh
    inputs = [await store.input("a", number) for number in (1, 2, 3)]
    assert [(found.input, bool(found.body)) for found in inputs if found] == [(1, False), (2, True), (3, True)]


async def old_waits_that_are_settled_are_removed(store: Store, lease: Lease, clock: ManualClock) -> None:
    await open_each_wait(store, "w.1", "w.2", "x.1")
    for name in ("w.1", "x.1"):
        await store.cancel_wait("a", name)
    clock.advance(10)
    await store.open_wait("a", "w.3")
    await store.cancel_wait("a", "w.3")
    assert await store.count_old("a", clock.read().wall, (), "w.") == (0, 1)
    assert await store.remove_waits(lease, "w.", clock.read().wall) == 1
    assert [wait.name for wait in await store.waits("a")] == ["w.2", "w.3", "x.1"]


async def a_forgotten_session_leaves_no_row_and_frees_its_id(store: Store, lease: Lease, reopen: Reopen) -> None:
    blob = await store.put_blob(b"large")
    await append_here(store, lease, with_blob(blob))
    await store.accept("a", "hello", key="k")
    await store.open_wait("a", "w", deadline=5)
    await store.notify("a", kind="task", title="done")
    await store.put_attachment(b"a map", "text/plain", session="a")
    await store.memory_put("a", "k", "blue")
    await store.note_refusal("a", agent=None, key=None, error="InboxFull", message="full")
    forgotten = await store.forget_session("a", _spends_nothing)
    assert (forgotten.journals, forgotten.records, forgotten.attachments, forgotten.memories) == (("a",), 2, 2, 1)
    store = await reopen()
    await refusal(errors.JournalMissing, store.journal("a"))
    assert await store.journals() == await store.due() == await store.notifications() == await store.refusals() == []
    assert await store.attachments("a") == await store.memory_history("a", "k") == []
    assert (await store.memory_search(None, "blue")).entries == []
    assert await store.blob(blob.digest) is None
    assert (await store.open_journal("a")).head == 1


async def a_stale_lease_never_fits_a_session_that_has_the_id_again(store: Store, lease: Lease) -> None:
    await store.forget_session("a", _spends_nothing)
    await refusal(
        errors.JournalMissing, store.append(lease, [step("x")], head=1), store.renew(lease), store.release(lease)
    )
    await store.open_journal("a")
    again = await store.claim("a")
    assert again.epoch > lease.epoch
    await refusal(errors.Fenced, store.append(lease, [step("x")], head=1), store.renew(lease), store.release(lease))
    assert await store.append(again, [step("x")], head=1) == 2


async def what_works_for_a_session_is_forgotten_with_it(store: Store) -> None:
    await store.open_journal("s")
    await store.open_journal("below", session="s", role="agent")
    await store.open_journal("task", "process", session="below", role="task")
    await store.open_journal("other")
    assert (
        "works for 's'" in (await refusal(errors.ForgetRefused, store.forget_session("below", _spends_nothing))).reason
    )
    assert set((await store.forget_session("s", _spends_nothing)).journals) == {"s", "below", "task"}
    assert [line.id for line in await store.journals()] == ["other"]


async def forks_are_forgotten_only_when_they_are_meant(store: Store) -> None:
    await store.open_journal("s")
    await store.fork("branch", "s", 1)
    await store.fork("twig", "branch", 1)
    refused = await refusal(errors.SessionForked, store.forget_session("s", _spends_nothing))
    assert refused.forks == ("branch", "twig")
    assert set((await store.forget_session("s", _spends_nothing, forks=True)).journals) == {"s", "branch", "twig"}


async def a_forgotten_id_is_refused_if_its_hash_was_kept(store: Store, reopen: Reopen) -> None:
    for name in ("free", "kept"):
        await store.open_journal(name)
        await store.forget_session(name, _spends_nothing, keep_hash=name == "kept")
    store = await reopen()
    await store.open_journal("free")
    again = (store.open_journal("kept"), store.fork("kept", "free", 1), store.journal("kept"), store.accept("kept", 1))
    await refusal(errors.JournalForgotten, *again, journal="kept")


async def a_session_that_is_not_idle_is_not_forgotten_by_age(store: Store, lease: Lease, clock: ManualClock) -> None:
    now = clock.read().wall
    assert "holds it" in (await refusal(errors.JournalInUse, _forget_idle(store, now + 1))).reason
    await store.release(lease)
    assert "has changed" in (await refusal(errors.JournalInUse, _forget_idle(store, now))).reason
    await store.accept("a", "hello")
    assert "came for it" in (await refusal(errors.JournalInUse, _forget_idle(store, now + 1))).reason


async def _forget_idle(store: Store, since: int) -> Forgotten:
    return await store.forget_session("a", _spends_nothing, idle_since=since)


async def spending_survives_forgetting(store: Store) -> None:
    spend = Spend(model_calls=1, cost_micros=7)
    await store.open_journal("s", agent="f")
    await append_here(store, await store.claim("s"), step("x"), spend=spend)

    def spend_of(record: Record, _: ReadBlob) -> Spend | None:
        return spend if isinstance(record, Done) else None

    await store.forget_session("s", spend_of)
    assert await store.spent("f") == spend
    assert await store.examine(lambda reader: audit(reader, None, _spends_nothing)) == []
    await store.rebuild_spending(_spends_nothing)
    assert await store.spent("f") == spend


async def the_newest_position_outlives_a_forgotten_session(store: Store) -> None:
    await store.open_journal("before")
    await store.open_journal("s")
    last = await store.last_position()
    await store.forget_session("s", _spends_nothing)
    await store.open_journal("after")
    assert [(found.pos, found.journal) for found in await store.feed(after=last)] == [(last + 1, "after")]
