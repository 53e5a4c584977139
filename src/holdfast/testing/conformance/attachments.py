"""Attachments: access by session, limits, and collection."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.errors import AttachmentsFull, CollectionRefused
from holdfast.records import Admitted, Blob
from holdfast.store.contract import blob_digest
from holdfast.testing.conformance.suite import DAY, Reopen, append_here, leased, refusal, with_blob

if TYPE_CHECKING:
    from holdfast.store import Lease, Store
    from holdfast.testing.clock import ManualClock


TEXT = "text/plain"


async def _rooted(store: Store) -> None:
    """Make the store refer to a blob."""
    await append_here(store, await leased(store, "root"), with_blob(await store.put_blob(b"root")))


async def an_attachment_survives_reopening_and_is_the_same_when_it_is_put_again(store: Store, reopen: Reopen) -> None:
    put = await store.put_attachment(b"hello", TEXT, name="a.txt", session="s")
    store = await reopen()
    assert await store.attachment(put.digest, session="s") == put
    assert (put.digest, put.size, put.name) == (blob_digest(b"hello"), 5, "a.txt")
    assert (await store.attachments("s"), await store.attachments()) == ([put], [])
    assert await store.blob(put.digest) == b"hello"
    assert await store.put_attachment(b"hello", "text/csv", name="b.csv", session="s") == put
    assert len(await store.attachments("s")) == 1


async def the_attachments_of_a_session_are_listed_page_by_page(store: Store) -> None:
    put = [await store.put_attachment(bytes([n]), TEXT, session="s") for n in range(5)]
    await store.put_attachment(b"x", TEXT, session="t")
    digests = sorted(one.digest for one in put)
    assert [one.digest for one in await store.attachments("s", limit=3)] == digests[:3]
    assert [one.digest for one in await store.attachments("s", after=digests[2])] == digests[3:]


async def an_attachment_without_a_session_can_be_shared_and_that_of_another_session_cannot(store: Store) -> None:
    free = await store.put_attachment(b"free", TEXT, name="a.txt")
    taken = await store.put_attachment(b"taken", TEXT, session="a")
    assert await store.share_attachment(free.digest, "b") == replace(free, session="b")
    assert await store.share_attachment(taken.digest, "b") is None
    assert await store.share_attachment("0" * 64, "b") is None
    assert await store.may_read("b", free.digest)
    assert not await store.may_read("b", taken.digest)


async def a_session_may_not_read_attachments_of_another_session(store: Store, lease: Lease) -> None:
    await store.open_journal("b")
    blob = await store.put_blob(b"said in a")
    await store.append(lease, [with_blob(blob)], head=1)
    put = await store.put_attachment(b"put for a", TEXT, session="a")
    free = await store.put_attachment(b"put for nobody", TEXT)
    for digest in (blob.digest, put.digest):
        assert await store.may_read("a", digest)
        assert not await store.may_read("b", digest)
    for session in ("a", "b", "never opened"):
        assert not await store.may_read(session, free.digest)
        assert not await store.may_read(session, "0" * 64)


async def a_session_may_read_the_blobs_of_its_inputs_and_tasks(store: Store) -> None:
    sent, made = await store.put_blob(b"sent"), await store.put_blob(b"made")
    await store.accept_into("s", "session", "a", "hello", key="k", refs=[sent])
    await store.open_journal("task-1", kind="process", role="task", session="s")
    await store.open_journal("child", kind="session", role="agent", session="s")
    for journal, blob in (("task-1", made), ("child", await store.put_blob(b"of a sub-agent"))):
        await append_here(store, await store.claim(journal), with_blob(blob))
    digests = (sent.digest, made.digest, blob_digest(b"of a sub-agent"))
    assert [await store.may_read("s", digest) for digest in digests] == [True, True, False]


async def a_fork_may_read_the_blobs_that_its_parent_could_read_then(
    store: Store, lease: Lease, clock: ManualClock
) -> None:
    before, after = await store.put_blob(b"before"), await store.put_blob(b"after")
    await store.append(lease, [with_blob(before)], head=1)
    put = await store.put_attachment(b"put before", TEXT, session="a")
    clock.advance(1_000)
    await store.fork("b", "a", 2)
    clock.advance(1_000)
    await store.append(lease, [replace(with_blob(after), key="r/other")], head=2)
    late = await store.put_attachment(b"put after", TEXT, session="a")
    readable = [await store.may_read("b", found.digest) for found in (before, put, after, late)]
    assert readable == [True, True, False, False]
    await store.fork("c", "b", 1)
    assert await store.may_read("c", before.digest)


async def attachments_of_an_existing_session_are_not_collected(store: Store, clock: ManualClock) -> None:
    await _rooted(store)
    await store.open_journal("s")
    kept = await store.put_attachment(b"kept", TEXT, session="s")
    never = await store.put_attachment(b"for a session that never began", TEXT, session="never")
    nobody = await store.put_attachment(b"for nobody", TEXT)
    assert await store.collect_blobs(unused_ms=DAY) == 0
    clock.advance(DAY + 1)
    assert await store.collect_blobs(unused_ms=DAY) == 2
    assert await store.blob(kept.digest) == b"kept"
    assert await store.attachment(kept.digest, session="s") == kept
    assert await store.attachment(never.digest, session="never") is await store.attachment(nobody.digest) is None


async def blobs_of_a_pending_input_are_not_collected(store: Store, clock: ManualClock) -> None:
    sent = await store.put_attachment(b"sent", TEXT)
    refs = [Blob(sent.digest, sent.size)]
    await store.accept_into("s", "session", "a", "hello", key="k", refs=refs)
    clock.advance(DAY + 1)
    assert await store.collect_blobs(unused_ms=DAY) == 0
    await append_here(store, await store.claim("s"), Admitted(at=1, input=1, key="k", refs=tuple(refs)))
    assert await store.collect_blobs(unused_ms=DAY) == 0


async def putting_an_attachment_again_saves_it_from_collection(store: Store, other: Store, clock: ManualClock) -> None:
    await _rooted(store)
    await store.put_attachment(b"x", TEXT)
    clock.advance(DAY)
    await other.put_attachment(b"x", TEXT)
    clock.advance(1)
    assert await store.collect_blobs(unused_ms=DAY) == 0
    clock.advance(DAY)
    assert await store.collect_blobs(unused_ms=DAY) == 1


async def a_dry_run_counts_unused_blobs_and_keeps_them(store: Store, clock: ManualClock) -> None:
    await _rooted(store)
    put = await store.put_attachment(b"12345", TEXT)
    clock.advance(DAY)
    told = await store.collect_unused(unused_ms=1_000, dry_run=True)
    assert (told.blobs, told.bytes, told.dry_run) == (1, 5, True)
    assert await store.blob(put.digest) == b"12345"
    done = await store.collect_unused(unused_ms=1_000)
    assert (done.blobs, done.bytes, done.dry_run) == (1, 5, False)


async def more_than_one_batch_is_collected_at_once(store: Store, clock: ManualClock) -> None:
    await _rooted(store)
    for number in range(1_050):
        await store.put_blob(str(number).encode())
    clock.advance(DAY)
    assert await store.collect_blobs(unused_ms=1_000) == 1_050


async def nothing_is_collected_where_nothing_at_all_is_referred_to(store: Store, clock: ManualClock) -> None:
    assert await store.collect_blobs() == 0  # there is nothing to lose
    await store.open_journal("a")
    put = await store.put_attachment(b"x", TEXT)
    clock.advance(DAY)
    await refusal(CollectionRefused, store.collect_blobs(), store.collect_unused(dry_run=True))
    assert await store.blob(put.digest) == b"x"
    assert await store.collect_blobs(without_roots=True) == 1


async def nothing_is_collected_while_a_journal_is_quarantined(store: Store, clock: ManualClock) -> None:
    await _rooted(store)
    await store.open_journal("bad")
    await store.put_blob(b"x")
    await store.quarantine("bad", "a test")
    clock.advance(DAY)
    assert "'bad'" in str(await refusal(CollectionRefused, store.collect_blobs()))
    await refusal(CollectionRefused, store.collect_blobs(without_roots=True))


async def the_attachments_of_a_session_are_limited(store: Store) -> None:
    most = store.limits.attachments
    if most > 100:  # else it would only take time
        return
    for number in range(most):
        await store.put_attachment(str(number).encode(), TEXT, session="s")
    await refusal(AttachmentsFull, store.put_attachment(b"one more", TEXT, session="s"), session="s", limit=most)
    for known, session in ((b"0", "s"), (b"one more", "another")):
        await store.put_attachment(known, TEXT, session=session)
