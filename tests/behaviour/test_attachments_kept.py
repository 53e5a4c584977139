"""Attachments that somebody is about to need: those of a fork's parent, and those that were just shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from holdfast.store import Store

DAY = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["file", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    async with hf.open_store(tmp_path / "s.db" if request.param == "file" else None, clock=clock) as opened:
        yield opened


async def test_a_fork_may_read_what_its_parent_was_given_again_after_it_began(store: Store, clock: ManualClock) -> None:
    await store.open_journal("parent", "session", "a")
    kept = await store.put_attachment(b"hello", "text/plain", session="parent")
    clock.advance(10)
    await store.fork("fork", "parent", 1)
    clock.advance(10)
    await store.put_attachment(b"hello", "text/plain", session="parent")
    assert await store.may_read("fork", kept.digest)


async def test_bytes_that_are_given_again_are_kept_as_if_they_were_new(store: Store, clock: ManualClock) -> None:
    kept = await store.put_attachment(b"report", "text/plain")
    clock.advance(2 * DAY)
    await store.put_attachment(b"report", "text/plain")
    assert await store.collect_blobs(unused_ms=DAY, without_roots=True) == 0
    assert await store.blob(kept.digest) == b"report"


async def test_an_old_attachment_that_was_just_shared_is_kept_until_it_is_sent(
    store: Store, clock: ManualClock
) -> None:
    kept = await store.put_attachment(b"report", "text/plain")
    clock.advance(2 * DAY)
    await store.share_attachment(kept.digest, "new")
    assert await store.collect_blobs(unused_ms=DAY, without_roots=True) == 0


async def test_an_attachment_that_was_shared_and_never_sent_is_collected_in_the_end(
    store: Store, clock: ManualClock
) -> None:
    kept = await store.put_attachment(b"report", "text/plain")
    await store.share_attachment(kept.digest, "new")
    clock.advance(2 * DAY)
    assert await store.collect_blobs(unused_ms=DAY, without_roots=True) == 1
