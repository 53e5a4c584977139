"""Two pieces of code of one run wait for the disk at the same time."""

from __future__ import annotations

import asyncio

import holdfast as hf
from holdfast.effects.performer import LeasedJournal, Performer
from holdfast.effects.replay import RunHistory
from holdfast.records import Started
from holdfast.testing import MemoryBackend, MemoryDisk, SimulatedClock, SimulatedLoop, simulate


def test_each_of_two_that_wait_at_once_goes_on_only_when_the_records_are_durable() -> None:
    async def main(loop: SimulatedLoop) -> list[list[str]]:
        disk = MemoryDisk()
        store = hf.Store(MemoryBackend(disk, clock=SimulatedClock(loop), delay=lambda: 0.02))
        await store.open_journal("j")
        ledger = LeasedJournal(store, await store.claim("j"))
        performer = Performer(ledger, RunHistory(), "main")
        performer.submit([Started(at=1, run="main")])

        async def on_disk() -> list[str]:
            await performer.settle()
            return [type(entry.record).__name__ for entry in await store.read("j")]

        return [*await asyncio.gather(on_disk(), on_disk())]

    assert simulate(1, main) == [["Opened", "Started"], ["Opened", "Started"]]
