"""Blobs: kept once, before the records that refer to them."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import (
    BlobMissing,
)
from holdfast.records import Admitted, Blob, Ended
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import (
    Stores,
    case,
    contents,
    leased,
    refusal,
    with_blob,
)

if TYPE_CHECKING:
    from holdfast.records import Record


@case
async def the_same_bytes_are_kept_once(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        first, second = await store.put_blob(b"hello"), await store.put_blob(b"hello")
        assert first == second == Blob("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", 5)
        assert await store.blob("0" * 64) is None
    async with stores.open(clock) as store:
        assert await store.blob(first.digest) == b"hello"
        assert len(await store.examine(lambda reader: list(reader.raw_blobs()))) == 1


@case
async def an_append_that_refers_to_a_missing_blob_is_refused(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        before = await contents(store)
        missing = Blob("0" * 64, 1)
        refers: list[Record] = [
            with_blob(missing),
            Admitted(at=1, input=1, key="k", blob=missing),
            Ended(at=1, run="main", status="completed", blob=missing),
        ]
        for record in refers:
            error = await refusal(BlobMissing, store.append(lease, [record], head=1))
            assert error.digest == missing.digest
        assert await contents(store) == before


@case
async def only_old_blobs_that_nothing_refers_to_are_collected(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "a")
        used, unused = await store.put_blob(b"used"), await store.put_blob(b"unused")
        await store.append(lease, [with_blob(used)], head=1)
        clock.advance(2_000)
        young = await store.put_blob(b"young")
        assert await store.collect_blobs(unused_ms=3_000) == 0
        assert await store.collect_blobs(unused_ms=1_000) == 1
        assert await store.blob(unused.digest) is None
        assert await store.blob(used.digest) == b"used"
        assert await store.blob(young.digest) == b"young"


@case
async def putting_a_blob_again_saves_it_from_collection(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.append(await leased(store, "a"), [with_blob(await store.put_blob(b"used"))], head=1)
        blob = await store.put_blob(b"x")
        clock.advance(2_000)
        await store.put_blob(b"x")
        assert await store.collect_blobs(unused_ms=1_000) == 0
        clock.advance(2_000)
        assert await store.collect_blobs(unused_ms=1_000) == 1
        assert await store.blob(blob.digest) is None


@case
async def a_collected_blob_can_be_put_again(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "a")
        blob = await store.put_blob(b"x")
        clock.advance(2_000)
        await store.collect_blobs(unused_ms=1_000, without_roots=True)
        await refusal(BlobMissing, store.append(lease, [with_blob(blob)], head=1))
        await store.put_blob(b"x")
        assert await store.append(lease, [with_blob(blob)], head=1) == 2


@case
async def an_empty_blob_is_a_blob(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        blob = await store.put_blob(b"")
        assert blob.size == 0
        assert await store.blob(blob.digest) == b""
