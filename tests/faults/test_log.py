"""The write-ahead log stays small, also while somebody reads; who pins it from outside is named."""

from __future__ import annotations

import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
import pytest

from holdfast import StoreLimits, open_store
from holdfast.errors import StoreFull, WalPinned
from holdfast.records import Done, EffectRequest
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from holdfast.store import Lease, Store
    from holdfast.store.contract import Entry

MIB = 1024 * 1024
_BODY = 60_000


@pytest.fixture
def database() -> Iterator[Path]:
    """In memory: many megabytes are written, and what is tested is not the disk."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
    with tempfile.TemporaryDirectory(dir=base) as name:
        yield Path(name) / "store.db"


def _record(number: int) -> Done:
    value = msgspec.Raw(b'"' + b"x" * _BODY + b'"')
    return Done(at=number, key=f"k{number}", ask=EffectRequest("step", "target", str(number)), value=value)


def _log_size(database: Path) -> int:
    return Path(f"{database}-wal").stat().st_size


async def _append(store: Store, lease: Lease, head: int, count: int) -> int:
    """So many records, one commit each."""
    for number in range(head + 1, head + count + 1):
        await store.append(lease, [_record(number)], head=number - 1)
    return head + count


class _Pin:
    """A read transaction of another program, held open."""

    def __init__(self, database: Path) -> None:
        self._connection: Any = apsw.Connection(str(database))
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT count(*) FROM records").fetchall()

    def end(self) -> None:
        self._connection.close()


async def test_the_log_stays_bounded_over_many_megabytes(database: Path) -> None:
    limits = StoreLimits(wal_bytes=4 * MIB)
    largest = 0
    async with open_store(database, durability="process", limits=limits) as store:
        await store.open_journal("j")
        lease, head = await store.claim("j"), 1
        for _ in range(20):
            head = await _append(store, lease, head, 30)
            largest = max(largest, _log_size(database))
    assert head * _BODY > 8 * limits.wal_bytes
    assert largest <= 3 * limits.wal_bytes, f"the log grew to {largest:,} bytes"


async def test_the_log_stays_bounded_while_a_reader_of_ours_sleeps_in_the_middle(database: Path) -> None:
    limits = StoreLimits(wal_bytes=4 * MIB, page=10)
    largest = 0
    async with open_store(database, durability="process", limits=limits) as store:
        await store.open_journal("j")
        lease = await store.claim("j")
        head = await _append(store, lease, 1, 25)
        reading: AsyncGenerator[Entry] = store.read_all("j")  # pyright: ignore[reportAssignmentType]
        async with aclosing(reading):
            first = [(await anext(reading)).seq for _ in range(15)]
            for _ in range(20):
                head = await _append(store, lease, head, 30)
                largest = max(largest, _log_size(database))
            rest = [entry.seq async for entry in reading]
    assert largest <= 3 * limits.wal_bytes, f"the log grew to {largest:,} bytes"
    assert first + rest == list(range(1, head + 1)), "the reader went on with a gap"


async def test_the_log_is_small_again_after_one_large_commit(database: Path) -> None:
    limits = StoreLimits(wal_bytes=2 * MIB)
    async with open_store(database, durability="process", limits=limits) as store:
        await store.open_journal("j")
        lease = await store.claim("j")
        await store.append(lease, [_record(number) for number in range(2, 202)], head=1)
        await _append(store, lease, 201, 3)
        assert _log_size(database) <= 3 * limits.wal_bytes


async def test_writes_go_on_for_a_while_when_another_program_pins_the_log(database: Path) -> None:
    limits = StoreLimits(wal_bytes=MIB, wal_max_bytes=8 * MIB)
    async with open_store(database, durability="process", limits=limits) as store:
        await store.open_journal("j")
        lease = await store.claim("j")
        pin = _Pin(database)
        assert await _append(store, lease, 1, 4 * MIB // _BODY) > 60
        pin.end()


async def _until_pinned(store: Store, lease: Lease) -> tuple[int, WalPinned]:
    head = 1
    for _ in range(1_000):
        try:
            head = await store.append(lease, [_record(head + 1)], head=head)
        except WalPinned as refusal:
            return head, refusal
    message = "the log was never found to be pinned"
    raise AssertionError(message)


async def test_writes_are_refused_when_the_pinned_log_reaches_its_limit(database: Path) -> None:
    limits = StoreLimits(wal_bytes=MIB, wal_max_bytes=6 * MIB)
    async with open_store(database, durability="process", limits=limits) as store:
        await store.open_journal("j")
        lease = await store.claim("j")
        pin = _Pin(database)
        head, refusal = await _until_pinned(store, lease)
        assert isinstance(refusal, StoreFull)
        assert refusal.limit == limits.wal_max_bytes <= refusal.size
        assert _log_size(database) < limits.wal_max_bytes + MIB, "the limit was passed by far"
        assert (await store.journal("j")).head == head, "something that was refused was written"
        pin.end()


async def test_reading_goes_on_while_writes_are_refused(database: Path) -> None:
    limits = StoreLimits(wal_bytes=MIB, wal_max_bytes=6 * MIB)
    async with open_store(database, durability="process", limits=limits) as store:
        await store.open_journal("j")
        lease = await store.claim("j")
        pin = _Pin(database)
        head, _ = await _until_pinned(store, lease)
        assert [entry.seq async for entry in store.read_all("j")] == list(range(1, head + 1))
        pin.end()


async def test_writes_go_on_when_the_other_program_has_finished(database: Path) -> None:
    limits = StoreLimits(wal_bytes=MIB, wal_max_bytes=6 * MIB)
    async with open_store(database, durability="process", limits=limits) as store:
        await store.open_journal("j")
        lease = await store.claim("j")
        pin = _Pin(database)
        head, _ = await _until_pinned(store, lease)
        pin.end()
        assert await _append(store, lease, head, 5) == head + 5
        assert _log_size(database) < 2 * limits.wal_bytes, "the log was not reset"
        assert await check(store) == []


async def test_a_log_that_a_dead_process_left_pinned_is_bounded_by_the_next_one(database: Path) -> None:
    """The size counts from what is in the file, not from what this process has written."""
    limits = StoreLimits(wal_bytes=MIB, wal_max_bytes=6 * MIB)
    async with open_store(database, durability="process", limits=limits) as store:
        await store.open_journal("j")
        lease = await store.claim("j")
        pin = _Pin(database)
        head, _ = await _until_pinned(store, lease)
    async with open_store(database, durability="process", limits=limits) as store:
        with pytest.raises(WalPinned):
            await store.open_journal("another")
        assert (await store.journal("j")).head == head
    pin.end()
