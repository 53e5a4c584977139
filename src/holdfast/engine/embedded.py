"""The embedded engine: drives journals in this process with asyncio, beside other processes on the same store.

It polls the store after commits, when a timer is due, and, while other processes hold leases, often enough to notice
their end. It drives journals with work and without a holder, up to a bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast import errors, eventloop, names
from holdfast.policy.limits import TICK

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.drive import JournalDrive
    from holdfast.store import Store, contract


_log: Final = logging.getLogger("holdfast.engine")
MIN_PAUSE: Final = 0.05
"""Pause between two polls of a store that changes all the time, in seconds."""
PAUSE_FACTOR: Final = 10
"""The pause is at least this many times the duration of the last poll, so that polling does not take over."""
MAX_PAUSE: Final = 0.5
"""Longest pause, in seconds."""
HOLDER_CHECK: Final = 0.25
"""Interval of checks of processes that hold leases, in seconds."""
MIN_WAIT: Final = 0.001
"""Shortest wait for a timer, in seconds."""
IDLE_CHECK: Final = 30.0
"""Interval of polls when nothing happens, in seconds."""
PURGE_INTERVAL: Final = 600.0
"""Interval of purges of expired memories and old notifications, in seconds."""
TRANSIENT_ERRORS: Final = (
    errors.StoreBusy,
    errors.StoreFull,
    errors.StoreFailed,
    errors.CommitUnknown,
    errors.Fenced,
    errors.HeadConflict,
)
"""Errors of the store that may pass."""
DROP_PATIENCE: Final = 5.0
"""Time that a drive gets to stop when its journal is forgotten, in seconds; its tool may take longer."""
RETRY_DELAYS: Final = (0.1, 0.5, 2.0, 10.0)
"""Delays before a journal is retried after a transient error, in seconds."""


def pause_after(took: float) -> float:
    """The pause after a poll of this duration, for a store that changes all the time."""
    return max(MIN_PAUSE, min(PAUSE_FACTOR * took, MAX_PAUSE))


class EmbeddedEngine:
    """Drives the journals of one store in this process."""

    def __init__(
        self,
        store: Store,
        make: Callable[[contract.Work | str, bool], JournalDrive | None],
        on_stuck: Callable[[str], None],
        concurrency: int,
        *,
        tick: float = TICK,
    ) -> None:
        self._tick_every = tick
        self._store = store
        self._make = make
        self._on_stuck = on_stuck
        self._concurrency = concurrency
        self._active: dict[str, tuple[JournalDrive, asyncio.Task[None]]] = {}
        self._queue: dict[str, None] = {}
        self.stuck: dict[str, errors.HoldfastError] = {}
        """Journals that are not driven until the store is opened again, with the errors."""
        self._failures: dict[str, tuple[int, float]] = {}
        self._held: Counter[str] = Counter()
        """Number of held inputs of each session."""
        self._held_since: dict[str, float] = {}
        """Loop time at which the work of a held session was last considered."""
        self._wake = asyncio.Event()
        self.wake = self._wake.set
        """Poll again: this runtime may accept more work now."""
        self._tasks: list[asyncio.Task[None]] = []
        self._tasks_active: set[str] = set()
        """Background work driven here; it takes no room from sessions."""
        self._released: set[str] = set()
        """Journals with work and no holder although driven here: their drive has released the lease and is ending."""
        self._poked: set[str] = set()
        """Journals poked while driven here; their drive may have missed the change."""
        self._ticked = 0.0
        self._purged = 0.0
        self._foreign = False
        self._took = 0.0
        """Duration of the last poll, in seconds."""
        self._due: int | None = None
        self._full = False
        """The last poll found no room for all work."""
        self._stopping = False

    def start(self) -> None:
        """Begin to poll; the first poll finds interrupted work."""
        self._wake.set()
        self._tasks = [eventloop.spawn(each, upkeep=True) for each in (self._listen(), self._serve())]

    def poke(self, session: str, *, again: bool = False) -> None:
        """Drive `session`, or notify its drive, after a change in this process.

        With `again`, another drive follows the running one, because the store shows no trace of the change.
        """
        if self._stopping or session in self.stuck:
            return
        found = self._active.get(session)
        if found is not None:
            found[0].notify()
            self._poked.add(session)
            if again:
                self._queue[session] = None
        else:
            self._begin(session, session)

    def begin_early(self, session: str) -> bool:
        """Begin to drive a session whose input is being written; returns False if that is impossible.

        The drive claims the lease behind the input, usually in the same commit. After False, `poke` the session once
        the input is written.
        """
        if self._stopping or session in self.stuck or session in self._active or session in self._held:
            return False
        if self._room() <= 0:
            return False
        self._begin(session, session)
        return session in self._active

    def begin_task(self, id: str, drive: JournalDrive, *, under_way: bool = False) -> bool:
        """Drive a background task that is new or already `under_way` in this process.

        A new one waits if there is no room. Returns False when the engine is stopping.
        """
        if self._stopping:
            return False
        if id in self._active:
            return True
        if len(self._tasks_active) >= self._concurrency and not under_way:
            self._full = True  # a poll finds it once there is room
            return True
        self._tasks_active.add(id)
        self._spawn(id, drive)
        return True

    def tick(self) -> None:
        """Poll now, also for notifications that could not be delivered before."""
        self._ticked = 0.0
        self._wake.set()

    def retry(self, session: str) -> None:
        """Drive a stuck session again, for a stop request."""
        self.stuck.pop(session, None)
        self._urge(session)

    def _urge(self, session: str) -> None:
        found = self._active.get(session)
        if found is not None:
            found[0].notify()
        elif not self._stopping:
            self._begin(session, session, urgent=True)

    async def drop(self, journal: str, error: errors.HoldfastError) -> None:
        """Stop driving a journal that is gone, for this reason."""
        for kept in (self._queue, self._failures, self.stuck):
            kept.pop(journal, None)
        found = self._active.get(journal)
        if found is not None:
            drive, task = found
            drive.lose(error)
            await asyncio.wait([task], timeout=DROP_PATIENCE)

    @property
    def active(self) -> int:
        """Number of driven journals."""
        return len(self._active)

    def hold(self, session: str) -> None:
        """Hold an input of a session back: its work is considered only every `TICK` until `let_go`.

        Other events of the session are handled at once.
        """
        self._held[session] += 1
        self._held_since.setdefault(session, asyncio.get_running_loop().time())

    def let_go(self, session: str) -> None:
        """End one `hold` of a session, and drive the session."""
        self._held[session] -= 1
        if self._held[session] <= 0:
            del self._held[session]
            self._held_since.pop(session, None)
        self.poke(session)

    def drives(self, session: str) -> bool:
        """True if a session is driven here or waits for room."""
        return session in self._active or session in self._queue

    @property
    def crowded(self) -> bool:
        """True if sessions wait for room here."""
        return self._room() <= 0

    # ---- polling ----

    async def _listen(self) -> None:
        """Wake the poll loop after commits, of this process and of others."""
        with suppress(errors.StoreClosed):
            while not self._stopping:
                version = self._store.version
                self._wake.set()
                await self._store.changed(version, None)
                await asyncio.sleep(pause_after(self._took))

    async def _serve(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                await self._look()
            except errors.StoreClosed:
                return
            except errors.StoreError as error:
                _log.warning("the store can't be read: %s", error)
                await asyncio.sleep(RETRY_DELAYS[1])
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._patience())

    def _patience(self) -> float:
        """Time until the next poll if nothing happens."""
        waits = [HOLDER_CHECK if self._foreign else IDLE_CHECK]
        if self._due is not None:
            # An overdue wait that can't be expired now must not keep the engine busy.
            left = (self._due - self._store.clock.read().wall) / 1000
            waits.append(left if left > 0 else HOLDER_CHECK)
        now = asyncio.get_running_loop().time()
        waits.append(self._ticked + self._tick_every - now)
        waits.extend(at - now for _, at in self._failures.values() if at > now)
        # A wait below the resolution of the clock would end too early, again and again.
        return max(min(waits), MIN_WAIT)

    async def _tick(self) -> bool:
        """Search undelivered notifications again (the host's gate may have opened) and purge; False if too early."""
        now = asyncio.get_running_loop().time()
        if self._ticked and now - self._ticked < self._tick_every:
            return False
        self._ticked = now
        await self._store.ripen(again=True)
        if not self._purged or now - self._purged >= PURGE_INTERVAL:
            self._purged = now
            await self._store.memory_purge()
            if (await self._store.purge_notifications()).more:
                self._purged = 0.0  # one page at a time: the next tick continues
        return True

    async def _look(self) -> None:
        begun = asyncio.get_running_loop().time()
        seen = await self._store.poll_work(tuple(self._active))
        expired = await self._timers(seen.due)
        if await self._tick() or expired:  # both can make work
            seen = await self._store.poll_work(tuple(self._active))
        for session, wakes in seen.wakes.items():  # other processes changed their journals
            if (found := self._active.get(session)) is not None:
                found[0].notify(wakes)
        self._foreign = False
        self._full = True
        page = seen.work
        while self._room() > 0:
            for work in page:
                self._consider(work)
            if len(page) < self._store.limits.page:
                self._full = self._room() <= 0
                break
            page = await self._store.work(page[-1].no)
        now = asyncio.get_running_loop().time()
        # Forget the failures of sessions whose delay has passed and that have no work.
        self._failures = {name: one for name, one in self._failures.items() if one[1] > now or name in self._active}
        self._took = now - begun

    async def _timers(self, due: int | None) -> bool:
        """Expire due waits, which wakes their journals; returns whether any was due."""
        self._due = due
        if due is None or due > self._store.clock.read().wall:
            return False
        while self._due is not None and self._due <= self._store.clock.read().wall:
            before = self._due
            for wait in await self._store.due():
                with suppress(errors.HoldfastError):
                    await self._store.expire_wait(wait.journal, wait.name)
                    if wait.name.endswith("/deadline"):
                        self._urge(wait.journal)  # the deadline may end a queued turn
            await self._store.ripen()
            self._due = await self._store.next_due()
            if self._due == before:
                break
        return True

    def _consider(self, work: contract.Work) -> None:
        session = work.journal
        if session in self.stuck or self._stopping:
            return
        if session in self._active:
            if work.holder is None:
                self._released.add(session)
            return
        if work.holder is not None and (work.holder == self._store.owner or not self._store.owner_gone(work.holder)):
            self._foreign = True  # driven elsewhere
            return
        if session in self._held:
            now = asyncio.get_running_loop().time()
            if now - self._held_since.get(session, 0.0) < TICK:
                return
            self._held_since[session] = now
        self._begin(session, work)

    # ---- driving ----

    def _begin(self, session: str, work: contract.Work | str, *, urgent: bool = False) -> None:
        """Drive a session, or queue it without room. Urgent work (a stop) needs no room."""
        failed = self._failures.get(session)
        if failed is not None and failed[1] > asyncio.get_running_loop().time():
            return
        if not names.is_session_id(session):
            drive = self._make(work, False)
            if drive is not None:
                self.begin_task(session, drive, under_way=urgent)
            return
        full = self._room() <= 0
        if full:
            self._queue[session] = None
            if not urgent:
                return
        else:
            self._queue.pop(session, None)
        drive = self._make(work, full)
        if drive is not None:
            self._spawn(session, drive)

    def _spawn(self, session: str, drive: JournalDrive) -> None:
        task = eventloop.spawn(drive.run())
        self._active[session] = (drive, task)
        task.add_done_callback(lambda done: self._ended(session, done))

    def _room(self) -> int:
        return self._concurrency - (len(self._active) - len(self._tasks_active))

    def _ended(self, session: str, task: asyncio.Task[None]) -> None:
        self._active.pop(session, None)
        self._tasks_active.discard(session)
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._failures.pop(session, None)
        else:
            self._failed(session, error)
        if self._stopping:
            return
        while self._room() > 0:
            # A session to be driven again may still be driven; its end calls this too.
            following = next((name for name in self._queue if name not in self._active), None)
            if following is None:
                break
            del self._queue[following]
            self._begin(following, following)
        if self._full or error is not None or session in self._released or session in self._poked:
            self._released.discard(session)
            self._poked.discard(session)
            self._wake.set()  # work may wait for room, or for the end of this drive

    def _failed(self, session: str, error: BaseException) -> None:
        """Retry after transient errors; give up a journal that is damaged or does not fit its code."""
        if isinstance(error, TRANSIENT_ERRORS):
            count = self._failures.get(session, (0, 0.0))[0]
            rest = RETRY_DELAYS[min(count, len(RETRY_DELAYS) - 1)]
            self._failures[session] = (count + 1, asyncio.get_running_loop().time() + rest)
            _log.warning("session %r is tried again in %s s: %s", session, rest, error)
            return
        broken = errors.InvariantBroken(f"the session {session!r} could not be driven: {error!r}")
        self.stuck[session] = error if isinstance(error, errors.HoldfastError) else broken
        _log.error("session %r is stuck: %s", session, error, exc_info=error)
        self._on_stuck(session)

    # ---- stopping ----

    async def stop(self, grace: float) -> None:
        """Let work finish within `grace` seconds, then cancel the rest; the next process continues it."""
        self._stopping = True
        self._queue.clear()
        for drive, _ in self._active.values():
            drive.stop()
        tasks = [task for _, task in self._active.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        await eventloop.cancel_all([*tasks, *self._tasks])
