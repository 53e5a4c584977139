"""One writer: at most one process advances a journal, and a stale one is fenced off at its next write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast import open_store
from holdfast.errors import Fenced, LeaseHeld
from holdfast.records import Started, Unknown
from holdfast.testing import ManualClock, check

if TYPE_CHECKING:
    from pathlib import Path

_WORKER = """
import asyncio, sys
from holdfast import open_store

async def main():
    async with open_store(sys.argv[1]) as store:
        await store.open_journal("job")
        lease = await store.claim("job", ttl_ms=600_000)
        print(lease.epoch, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def _start_worker(path: Path) -> subprocess.Popen[bytes]:
    """A process that holds the lease for ten minutes; answers when it has it."""
    worker = subprocess.Popen([sys.executable, "-c", _WORKER, str(path)], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert int(worker.stdout.readline()) == 1
    return worker


def _kill(worker: subprocess.Popen[bytes]) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(timeout=30)
    assert worker.stdout is not None
    worker.stdout.close()


async def test_a_second_process_is_refused_while_the_lease_lives(tmp_path: Path) -> None:
    worker = _start_worker(tmp_path / "store.db")
    try:
        async with open_store(tmp_path / "store.db") as store:
            with pytest.raises(LeaseHeld, match=f"process {worker.pid} "):
                await store.claim("job")
    finally:
        _kill(worker)


async def test_the_lease_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    _kill(_start_worker(tmp_path / "store.db"))
    async with open_store(tmp_path / "store.db") as store:
        assert (await store.claim("job")).epoch == 2


async def test_a_closed_store_gives_its_leases_back(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        await store.open_journal("job")
        await store.claim("job")
    async with open_store(tmp_path / "store.db") as store:
        assert (await store.claim("job")).epoch == 2


async def test_a_stale_writer_is_fenced_off_and_told_by_whom(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        open_store(tmp_path / "store.db", clock=clock) as slow,
        open_store(tmp_path / "store.db", clock=clock) as quick,
    ):
        await slow.open_journal("job")
        stale = await slow.claim("job", ttl_ms=1_000)
        clock.advance(1_000)  # the slow one sleeps through its term
        lease = await quick.claim("job")
        await quick.append(lease, [Started(at=1, run="main")], head=lease.head)
        with pytest.raises(Fenced) as caught:
            await slow.append(stale, [Unknown(at=1, key="main/pay")], head=stale.head)
        assert caught.value.holder == quick.owner.describe()
        assert [type(entry.record).__name__ for entry in await slow.read("job")] == ["Opened", "Started"]
        assert await check(slow) == []


async def test_a_slow_writer_that_nobody_replaced_goes_on(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_store(tmp_path / "store.db", clock=clock) as store:
        await store.open_journal("job")
        lease = await store.claim("job", ttl_ms=1_000)
        clock.advance(60_000)
        assert await store.append(lease, [Started(at=1, run="main")], head=lease.head) == 2


async def test_a_jump_of_the_wall_clock_takes_nobodys_lease_away(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_store(tmp_path / "store.db", clock=clock) as store:
        await store.open_journal("job")
        await store.claim("job", ttl_ms=1_000)
        clock.jump(3_600_000)
        with pytest.raises(LeaseHeld):
            await store.claim("job")


async def test_epochs_never_go_back(tmp_path: Path) -> None:
    epochs: list[int] = []
    for _ in range(3):
        async with open_store(tmp_path / "store.db") as store:
            await store.open_journal("job")
            lease = await store.claim("job")
            await store.append(lease, [Started(at=1, run=f"run-{lease.epoch}")], head=lease.head)
            epochs.append(lease.epoch)
    assert epochs == [1, 2, 3]
