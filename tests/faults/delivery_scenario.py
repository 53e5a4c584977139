"""A worker that ends tasks, delivers what they tell their session, and remembers it; it can be killed anywhere.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from forking import serve

import holdfast as hf
from holdfast.clock import Instant, SystemClock
from holdfast.errors import MemoryConflict
from holdfast.records import Admitted, Ended, Started
from holdfast.store import Notify

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.records import EndStatus, Record
    from holdfast.store import Input, Lease, Store

TASKS = ("t1", "t2", "t3")
SESSION = "s"


async def _end_task(store: Store, task: str) -> None:
    """Run a task to its end, which its session learns of in the same commit."""
    await store.open_journal(task, "process", role="task", session=SESSION)
    lease = await store.claim(task)
    head = lease.head
    if (await store.journal(task)).status == "idle":
        head = await store.append(lease, [Started(at=1, run="r")], head=head)
    if (await store.journal(task)).status == "running":
        ended = Ended(at=2, run="r", status="completed")
        await store.append(lease, [ended], head=head, notify=[Notify(SESSION, "task", f"{task} is done", source=task)])
    await store.release(lease, seen=lease.wakes)


class Skipping:
    """The time of the system, except that nobody has to wait for it."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._ahead = 0

    def read(self) -> Instant:
        now = self._system.read()
        return Instant(now.wall + self._ahead, now.mono, now.boot)

    def skip_to(self, wall: int) -> None:
        self._ahead += max(wall - self.read().wall, 0)


async def _deliver(store: Store, clock: Skipping) -> None:
    """Carry what is ready into turns, the first of which fails, until the session has nothing left to do."""
    lease = await store.claim(SESSION)
    await _end_open_turn(store, lease)
    while True:
        waiting = await store.pending(SESSION)
        if not waiting:
            ready = await store.next_notifications(SESSION, 2)
            if not ready and not await store.notifications(SESSION, "queued"):
                break
            if not ready:
                clock.skip_to(await store.next_due() or 0)
                await store.ripen()
                continue
            await store.deliver_notifications(lease, [found.id for found in ready], [found.title for found in ready])
            continue
        await _turn(store, lease, waiting[0])
    await store.release(lease, seen=(await store.wakes([SESSION]))[SESSION])


async def _turn(store: Store, lease: Lease, found: Input) -> None:
    run = f"t{found.input}"
    begun: list[Record] = [Started(at=1, run=run), Admitted(at=1, input=found.input, key=found.key, run=run)]
    await store.append(lease, begun, head=(await store.journal(SESSION)).head)
    await _end_open_turn(store, lease)


async def _end_open_turn(store: Store, lease: Lease) -> None:
    """End the turn that is under way, also one that another process began."""
    line = await store.journal(SESSION)
    if line.status != "running":
        return
    runs = [entry.record.run async for entry in store.read_all(SESSION) if isinstance(entry.record, Started)]
    status: EndStatus = "failed" if runs[-1] == "t1" else "completed"
    # At the time of its beginning: no time was worked, which a store without a runtime would not count.
    await store.append(lease, [Ended(at=1, run=runs[-1], status=status)], head=line.head)


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    clock = Skipping()
    async with hf.open_store(folder / "store.db", clock=clock) as store:
        await store.open_journal(SESSION)
        for task in TASKS:
            await _end_task(store, task)
        await _deliver(store, clock)
        for task in TASKS:
            with suppress(MemoryConflict):
                await store.memory_put("done", task, "yes", expected=0)


def _once(folder: Path, _request: dict[str, str]) -> None:
    asyncio.run(work(folder))


if __name__ == "__main__":
    serve(_once)
