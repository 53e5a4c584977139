"""The drive of one journal: claim its lease, read it, act on its inbox, work, give the lease back.

Sessions, processes and triggers share it; each kind implements its own inbox and its own work.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from holdfast import errors, eventloop
from holdfast.effects import performer, scopes
from holdfast.runtime.context import RuntimeClosing, RuntimeContext
from holdfast.store.lease import LeaseHolder

if TYPE_CHECKING:
    from holdfast.store import contract


_log: Final = logging.getLogger("holdfast.driver")
LOOK_AGAIN: Final = 0.25
"""Pause before the next look after the store could not be read, in seconds."""


class JournalDrive:
    """One drive of one journal, by this process, while it holds the lease."""

    def __init__(self, context: RuntimeContext, journal: str, lease: contract.Lease | None = None) -> None:
        self.context = context
        self.session = journal
        self._store = context.store
        self._changes = context.changes
        self._claimed: LeaseHolder | None = None if lease is None else self._claim(lease)
        self._ledger: performer.LeasedJournal
        self._stopping = False
        self._interruption: Any = None
        """The request that stops the work under way."""
        self._news = False
        """Something came that no look has begun to read yet."""
        self._heard = 0
        """Wakes of the journal that this drive knows of."""
        self._seen: int | None = None
        """Wakes this drive has acted on; passed to the store when the lease is released."""
        self._reading = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None

    # ---- for the engine ----

    def notify(self, wakes: int = 0) -> None:
        """Report news of the journal. `wakes` counts its wakes: known ones are ignored."""
        if 0 < wakes <= self._heard:
            return
        self._heard = max(self._heard, wakes)
        self._news = True
        self._on_news()

    def stop(self) -> None:
        """Go no further than the next place between two effects."""
        self._stopping = True

    async def run(self) -> None:
        """Claim the lease and work until nothing is left. Does nothing while another process drives the journal."""
        scopes.install_task_factory(asyncio.get_running_loop())
        # The lease holder references its drive. The drive does not keep the holder, so that a finished drive is freed
        # without the garbage collector.
        holder, self._claimed = self._claimed or self._claim(), None
        self._changes.local.add(self.session)
        try:
            async with holder as held:
                await self._hold(held.lease, held.lost)
        except (errors.LeaseHeld, RuntimeClosing, errors.RuntimeStopped, errors.JournalMissing, errors.JournalMoved):
            # A journal is missing if the input that makes it was refused.
            return
        except errors.Halted as halted:
            if isinstance(halted.reason, errors.JournalMissing | errors.JournalMoved):  # it was forgotten, or moved
                return
            raise halted.reason from halted.reason.__cause__
        finally:
            self._changes.local.discard(self.session)
            self._changes.ended(self.session)

    # ---- for each kind ----

    async def _drive(self, lease: contract.Lease, lost: asyncio.Future[errors.HoldfastError]) -> None:
        """Read the journal and do its work. `lost` is done when another process has taken the lease."""
        raise NotImplementedError

    async def _take_inbox(self, pending: list[contract.Input], seen: int) -> None:
        """Act on the inputs that wait in the inbox; `seen` is the number of wakes they cover."""

    def _on_news(self) -> None:
        """Called when news arrives, also during work."""

    def _on_loss(self, error: errors.HoldfastError) -> None:
        """Called when another process has taken the lease, or the journal was forgotten."""

    def lose(self, error: errors.HoldfastError) -> None:
        """Stop at once: the journal is no longer ours."""
        self._on_loss(error)

    def _last_seen(self) -> int | None:
        """Wakes that need no other drive; None makes the engine look at the journal again."""
        return self._seen

    # ---- the bones ----

    def _claim(self, lease: contract.Lease | None = None) -> LeaseHolder:
        return LeaseHolder(self._store, self.session, self.context.lease_ms, self._last_seen, lease)

    async def _hold(self, lease: contract.Lease, lost: asyncio.Future[errors.HoldfastError]) -> None:
        self._heard = max(self._heard, lease.wakes)
        ledger = self._ledger = performer.LeasedJournal(self._store, lease, self._changes.touch)
        ledger.on_wake, ledger.attend = self.notify, self.attend
        lost.add_done_callback(lambda done: done.cancelled() or self._on_loss(done.result()))
        tracer = self._changes.tracer
        try:
            async with nullcontext() if tracer is None else tracer.following(ledger, lease):
                await self._drive(lease, lost)
        finally:
            ledger.on_wake = ledger.attend = ledger.note = None  # they know this drive
            if self._looking is not None:
                self._looking.cancel()
                await asyncio.gather(self._looking, return_exceptions=True)
                self._looking = None  # a cancelled task keeps its frames, and these keep this drive

    async def attend(self) -> None:
        """Read all news so far. Does not return if it stops the work."""
        if self._store.shared:  # another process may have accepted something of which nothing was heard here yet
            self.notify((await self._store.wakes([self.session])).get(self.session, 0))
        while self._news or self._reading.locked():
            async with self._reading:
                pass  # records being read count as well
            if self._news:
                await self._look()
        if self._interruption is not None:
            await asyncio.get_running_loop().create_future()

    @property
    def has_news(self) -> bool:
        """True if something that this process has heard of must be read, or a request to stop has come."""
        return self._news or self._reading.locked() or self._interruption is not None

    async def boundary(self) -> None:
        """Pass a point between two effects: other sessions may go first, and a closing runtime stops the drive here."""
        if self._stopping:
            raise RuntimeClosing
        if self._news or self._reading.locked():
            await self.attend()
        waiting = self.context.turnstile.place()
        if waiting is not None:
            await waiting

    async def _look(self) -> None:
        """Read the inbox and act on urgent inputs."""
        async with self._reading:
            self._news, seen = False, self._heard
            try:
                await self._take_inbox(await self._pending(), seen)
            except BaseException:
                self._news = True  # the news has not been acted on
                raise

    def _look_soon(self) -> None:
        """Read the inbox in a separate task, during the work."""
        if self._looking is None or self._looking.done():
            self._looking = eventloop.spawn(self._look_while_working())

    async def _look_while_working(self) -> None:
        """Read the inbox while there is news. Errors of the store are logged and retried."""
        while self._news:
            try:
                await self._look()
            except errors.StoreError as error:
                _log.warning("the inbox of %r can't be read: %s", self.session, error)
                await asyncio.sleep(LOOK_AGAIN)

    async def _pending(self) -> list[contract.Input]:
        """All inputs that wait: a request to stop may be behind a thousand others."""
        found: list[contract.Input] = []
        while page := await self._store.pending(self.session, after=found[-1].input if found else 0):
            found += page
            if len(page) < self._store.limits.page:
                break
        return found


TURNSTILE_WIDTH: Final = 16
"""Sessions that take a step in one round of the event loop."""


class Turnstile:
    """Limits the sessions that take a step in one round of the event loop. The others wait in order."""

    def __init__(self, width: int = TURNSTILE_WIDTH) -> None:
        self._width = width
        self._left = width
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def enter(self) -> None:
        """Pass, in this round or in a later one."""
        waiting = self.place()
        if waiting is not None:
            await waiting

    def place(self) -> asyncio.Future[None] | None:
        """Pass at once if this round has room; otherwise returns a future to wait for."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_round)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return None
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    def _next_round(self) -> None:
        self._left = self._width
        while self._waiting and self._left > 0:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._left -= 1
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._next_round)


turnstiles: Final = eventloop.PerLoop(Turnstile)
"""One per event loop: two hundred runtimes on one loop keep it no busier than two hundred sessions of one."""
