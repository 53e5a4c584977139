"""A store in use: openings that fail or are cancelled, shutdown, observers, doctor, and damage beside health."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import StoreBusy, StoreClosed, StoreError
from holdfast.records import Blob, Done, EffectRequest, Parked
from holdfast.store.sqlite.backend import SqliteBackend
from holdfast.store.sqlite.health import examine


def _writers() -> int:
    return sum(thread.name == "holdfast-writer" for thread in threading.enumerate())


def _modes(folder: Path) -> list[int]:
    return [file.stat().st_mode for file in folder.iterdir()]


def _tamper(path: Path, sql: str) -> None:
    db: Any = apsw.Connection(str(path))
    db.execute(sql)
    db.close()


async def test_a_cancelled_opening_leaves_no_thread_and_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    before = _writers()
    for turns in range(6):
        task = asyncio.create_task(SqliteBackend.open(path))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await (await task).close()
    assert _writers() == before
    async with hf.open_store(path):
        db: Any = apsw.Connection(str(path))
        assert db.execute("SELECT count(*) FROM writers").get == 1
        db.close()


async def test_an_opening_that_fails_half_way_leaves_no_thread(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open_store(path):
        pass
    _tamper(path, "DELETE FROM meta WHERE key = 'key_check'")
    before = _writers()
    for _ in range(3):
        with pytest.raises(StoreError):
            await SqliteBackend.open(path)
    assert _writers() == before


def _holds_a_lock(path: Path) -> bool:
    wanted = (f":{path.stat().st_ino} ", f" {os.getpid()} ")
    return any(all(part in line for part in wanted) for line in Path("/proc/locks").read_text("ascii").splitlines())


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs /proc/locks to see which locks are held")
async def test_a_second_opening_in_this_process_does_not_drop_the_locks_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open_store(path) as store:
        await store.open_journal("j")
        assert _holds_a_lock(path)
        async with hf.open_store(path):
            await asyncio.to_thread(examine, path)
        assert _holds_a_lock(path)


async def test_closing_twice_at_once_closes_once_and_both_wait_for_it(tmp_path: Path) -> None:
    backend = await SqliteBackend.open(tmp_path / "store.db")
    first = asyncio.ensure_future(backend.close())
    await asyncio.sleep(0)
    first.cancel()
    await backend.close()
    with suppress(asyncio.CancelledError):
        await first
    with pytest.raises(StoreClosed):
        await backend.changed(0, 0.01)


async def test_doctor_finds_a_store_healthy_while_it_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open_store(path) as store:
        stop = asyncio.Event()

        async def write(number: int) -> None:
            await store.open_journal(f"j{number}")
            lease = await store.claim(f"j{number}")
            head = lease.head
            while not stop.is_set():
                blob: Blob = await store.put_blob(os.urandom(64))
                ask = EffectRequest("step", "s", "0" * 64)
                head = await store.append(lease, [Done(at=1, key=f"k/{head}", ask=ask, blob=blob)], head=head)

        writers = [asyncio.create_task(write(number)) for number in range(5)]
        reports = [await asyncio.to_thread(examine, path) for _ in range(5)]
        stop.set()
        await asyncio.gather(*writers)
    assert [report.problems for report in reports] == [()] * 5
    assert reports[-1].records > reports[0].records, "nothing was written meanwhile"


async def test_one_damaged_wait_does_not_stop_the_timers_of_other_journals(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open_store(path) as store:
        for name in ("bad", "good"):
            await store.open_journal(name)
            await store.open_wait(name, "alarm", deadline=1)
        _tamper(path, "UPDATE waits SET crc = crc + 1 WHERE journal = (SELECT no FROM journals WHERE id = 'bad')")
        assert [wait.journal for wait in await store.due()] == ["good"]
        assert (await store.journal("bad")).quarantine is not None
        assert [wait.journal for wait in await store.due()] == ["good"]


async def test_doctor_finds_an_index_that_lost_a_row_and_an_input_that_vanished(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open_store(path) as store:
        await store.open_journal("j")
        await store.accept("j", "hello")
    _tamper(path, "UPDATE inputs SET pending = 0")
    report = examine(path)
    assert not report.healthy
    assert "never admitted" in report.problems[0]


async def test_putting_the_right_bytes_again_heals_a_damaged_blob(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open_store(path) as store:
        blob = await store.put_blob(b"right")
        _tamper(path, "UPDATE blobs SET body = x'00'")
        with pytest.raises(StoreError):
            await store.blob(blob.digest)
        await store.put_blob(b"right")
        assert await store.blob(blob.digest) == b"right"


async def test_large_inputs_do_not_all_go_into_one_transaction(tmp_path: Path) -> None:
    limits = hf.StoreLimits(batch_bytes=1_000_000, wal_bytes=2_000_000, input_bytes=500_000)
    path = tmp_path / "store.db"
    async with hf.open_store(path, limits=limits) as store:
        await store.open_journal("j")
        await asyncio.gather(*[store.accept("j", f"{number}" + "x" * 400_000) for number in range(40)])
        assert path.with_name("store.db-wal").stat().st_size < 10_000_000


async def test_an_empty_file_that_others_can_read_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch(mode=0o644)
    async with hf.open_store(path) as store:
        await store.open_journal("j")
        lease = await store.claim("j")
        await store.append(lease, [Parked(at=1, run="r")], head=1)
        assert {mode & 0o777 for mode in await asyncio.to_thread(_modes, tmp_path)} == {0o600}


@pytest.mark.parametrize("field", ["page", "batch", "queued"])
async def test_limits_that_can_not_be_meant_are_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(hf.UsageError, match=field):
        async with hf.open_store(None, limits=hf.StoreLimits(**{field: 0})):
            pass


async def test_a_process_that_watches_and_writes_wakes_the_others_too(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open_store(path) as busy:
        await busy.open_journal("j")
        lease = await busy.claim("j")
        watching = asyncio.ensure_future(_watch(busy))
        await asyncio.sleep(0.05)  # it has looked, and found itself alone
        async with hf.open_store(path) as other:
            await asyncio.sleep(0.05)  # it has noticed the other one, by looking and not by writing
            latencies: list[float] = []
            for head in range(1, 8):
                seen = await other.changed(other.version, 0.05)
                waiting = asyncio.ensure_future(other.changed(seen, PATIENCE))
                await asyncio.sleep(0.02)
                begun = asyncio.get_running_loop().time()
                await busy.append(lease, [Parked(at=1, run="r")], head=head)
                await waiting
                latencies.append(asyncio.get_running_loop().time() - begun)
        watching.cancel()
        with suppress(asyncio.CancelledError, StoreClosed):
            await watching
    assert sorted(latencies)[1] < 0.05, latencies  # who is not woken would need a second each time


async def _watch(store: hf.Store) -> None:
    version = store.version
    while True:
        version = await store.changed(version)


async def test_a_page_is_bounded_in_bytes_and_nothing_is_missed(tmp_path: Path) -> None:
    limits = hf.StoreLimits(page_bytes=10_000)
    async with hf.open_store(tmp_path / "store.db", limits=limits) as store:
        await store.open_journal("j")
        lease = await store.claim("j")
        value = msgspec.Raw(b'"%b"' % (b"x" * 4_000))
        added = [Done(at=1, key=f"k/{n}", ask=EffectRequest("step", "s", "0" * 64), value=value) for n in range(10)]
        await store.append(lease, added, head=1)
        assert len(await store.read("j")) == 3
        assert len(await store.read("j", after=3)) == 2
        assert [entry.seq async for entry in store.read_all("j")] == list(range(1, 12))
        assert len(await store.feed()) == 3
        assert (await store.tail("j", 2))[-1].seq == 11


async def test_what_waits_for_the_writer_is_bounded_in_bytes(tmp_path: Path) -> None:
    limits = hf.StoreLimits(queued_bytes=1_000_000)
    async with hf.open_store(tmp_path / "store.db", limits=limits) as store:
        attempts = [store.put_blob(os.urandom(300_000)) for _ in range(10)]
        answers = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(answer, StoreBusy) for answer in answers) == 7
        await store.put_blob(os.urandom(900_000))  # and it goes on
