"""`runtime.notifications`: list and settle notifications, and pump those of a session into the host's own hands."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from holdfast import errors
from holdfast.crashpoints import crash_point
from holdfast.eventloop import cancel_all, spawn
from holdfast.names import check_id, check_text
from holdfast.policy.limits import TICK
from holdfast.policy.rules import milliseconds
from holdfast.runtime.drive import JournalDrive
from holdfast.runtime.session_driver import check_gate, is_gate_open
from holdfast.store import Notification
from holdfast.store.lease import LeaseHolder
from holdfast.turns.notices import format_notices

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from datetime import timedelta

    from holdfast.runtime.context import RuntimeContext
    from holdfast.store.contract import Lease
    from holdfast.store.notifications import NotificationState, SettledByHand


MIN_PAUSE: Final = 0.05
"""Pause between two looks of a pump into a store that changes all the time, in seconds."""
MAX_REASON: Final = 1_000
"""Longest reason of a requeue, in characters."""


class PumpedNotification:
    """A notification in the hands of a pump, until it is acknowledged or requeued."""

    def __init__(self, pump: _Pump, notification: Notification) -> None:
        self._pump = pump
        self.notification: Final[Notification] = notification
        self.id: Final[int] = notification.id
        """The same at each delivery: by it you know one that came before."""

    def __repr__(self) -> str:
        return f"PumpedNotification({self.id}, {self.title!r})"

    @property
    def title(self) -> str:
        return self.notification.title

    @property
    def body(self) -> str:
        return self.notification.body

    @property
    def payload(self) -> Any:
        return self.notification.payload

    @property
    def attempts(self) -> int:
        """How often it was delivered, this time included."""
        return self.notification.attempts

    @property
    def text(self) -> str:
        """The text for a model: title and body, fenced as data."""
        return format_notices([self.notification])

    async def ack(self) -> bool:
        """Acknowledge it: it is done. False if it was settled otherwise, or its pump has lost it."""
        return await self._pump.settle(self, acknowledged=True)

    async def requeue(self, delay: timedelta | float | None = None, reason: str = "") -> bool:
        """Queue it again: after `delay` (a timedelta or seconds; by default 1 s, doubled with each attempt).

        After `StoreLimits.max_attempts` deliveries it is dead instead. False as for `ack`.
        """
        pause = None if delay is None else milliseconds(delay) if delay else 0
        return await self._pump.settle(
            self, acknowledged=False, pause_ms=pause, reason=check_text("reason", reason, MAX_REASON)
        )


class Notifications:
    """The notifications of one store."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._store = context.store
        self._pumps: set[_Pump] = set()

    async def list(
        self,
        session: str | None = None,
        state: NotificationState | None = None,
        *,
        before: Notification | None = None,
        limit: int = 50,
    ) -> list[Notification]:
        """Notifications, newest first; ``state="claimed"``: those in flight. `before` is the last one of a page."""
        return await self._store.notifications(session, state, before=before, limit=limit)

    async def settle(self, id: int, state: SettledByHand) -> bool:
        """Settle one by hand: ``cancelled``, ``acknowledged``, or a dead one ``queued`` again. False if too late."""
        found, decided = await self._store.settle_notification(id, state)
        if decided:
            self._context.poke(found.journal)
        return decided

    def pump(
        self,
        session: str,
        *,
        can_deliver: Callable[[str], bool | Awaitable[bool]] | None = None,
        interval: timedelta | float = TICK,
    ) -> AsyncGenerator[PumpedNotification]:
        """Take the notifications of a session yourself, one at a time, in the order of delivery.

        From the first step to the end of the iteration the runtime delivers none of them to the session. Settle each
        with `ack` or `requeue`: until then it is in flight, and no other one comes. `can_deliver` is asked before each,
        again every `interval` seconds while it says no, and after `Runtime.gate_changed`. One pump has a session at a
        time, else `PumpHeld`. One that is in flight when the pump ends, or its process dies, is queued again, with the
        same id: you may see it twice, but it is acknowledged once. The iteration ends when the runtime closes.
        """
        pause = milliseconds(interval) / 1000
        gate = self._context.can_deliver if can_deliver is None else check_gate(can_deliver)
        self._context.sessions.check_open()
        return _Pump(self._context, check_id("session", session), gate, max(pause, MIN_PAUSE), self._pumps).items()

    def gate_changed(self, session: str | None) -> None:
        """Let pumps ask their gates again."""
        for pump in self._pumps:
            if session in {None, pump.session}:
                pump.news.set()

    def stop(self) -> None:
        """Deliver nothing more to any pump."""
        for pump in self._pumps:
            pump.stop()

    async def close(self) -> None:
        """End all pumps. What is in flight is queued again."""
        for pump in list(self._pumps):
            await pump.close()


class _Pump:
    """One pump. Its lease is claimed again if it was lost, after a long sleep of the machine say."""

    def __init__(
        self,
        context: RuntimeContext,
        session: str,
        gate: Callable[[str], Awaitable[bool]],
        interval: float,
        pumps: set[_Pump],
    ) -> None:
        self.session = session
        self.news = asyncio.Event()
        """There may be something to deliver, or the pump is to end."""
        self._store = context.store
        self._lease_ms = context.lease_ms
        self._gate = gate
        self._interval = interval
        self._pumps = pumps
        self._stopping = False
        self._opening: asyncio.Task[Lease] | None = None
        self._holder: LeaseHolder | None = None
        self._watching: asyncio.Task[None] | None = None
        self._item: PumpedNotification | None = None
        self._freed = asyncio.Event()
        """What was in flight is settled, or the pump has lost it."""

    async def items(self) -> AsyncGenerator[PumpedNotification]:
        """Each notification, when the one before is settled."""
        self._pumps.add(self)
        try:
            while not self._stopping:
                item = await self._next(await self._hold())
                if item is None or self._stopping:
                    continue
                self._freed.clear()
                self._item = item
                crash_point("pump.delivered")
                yield item
                await self._freed.wait()
                self._item = None
        except errors.StoreClosed:
            return
        finally:
            self._pumps.discard(self)
            await self.close()

    async def _hold(self) -> LeaseHolder:
        """The lease of the pump."""
        if self._holder is not None and not self._holder.lost.done():
            return self._holder
        await self._let_go()
        self._opening = spawn(self._store.open_pump(self.session, ttl_ms=self._lease_ms))
        lease = await asyncio.shield(self._opening)
        crash_point("pump.opened")
        holder = self._holder = LeaseHolder(self._store, lease.journal, self._lease_ms, None, lease)
        await holder.__aenter__()
        holder.lost.add_done_callback(lambda _: self._on_loss())
        self._watching = spawn(self._watch(), upkeep=True)
        return holder

    def _on_loss(self) -> None:
        self._freed.set()
        self.news.set()

    async def _watch(self) -> None:
        """Report commits of this process and of others."""
        with suppress(errors.StoreClosed):
            version = self._store.version
            while True:
                version = await self._store.changed(version, None)
                self.news.set()
                await asyncio.sleep(MIN_PAUSE)

    async def _next(self, holder: LeaseHolder) -> PumpedNotification | None:
        """The next notification; or None, after something has happened that may bring one."""
        self.news.clear()
        timeout = self._interval
        if await is_gate_open(self._gate, self.session):
            try:
                found = await self._store.pump_notification(holder.lease, self.session)
            except errors.Fenced as error:
                if not holder.lost.done():
                    holder.lost.set_result(error)
                return None
            if isinstance(found, Notification):
                crash_point("pump.claimed")
                return PumpedNotification(self, found)
            if found is not None:
                timeout = min(timeout, max((found - self._store.clock.read().wall) / 1000, 0.0))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.news.wait()
        return None

    async def settle(
        self, item: PumpedNotification, *, acknowledged: bool, pause_ms: int | None = None, reason: str = ""
    ) -> bool:
        """Settle what is in flight. An error of the store leaves it in flight, and can be tried again."""
        if item is not self._item or self._holder is None:
            return False
        lease = self._holder.lease
        try:
            won = await self._store.settle_pumped(
                lease, item.id, acknowledged=acknowledged, pause_ms=pause_ms, reason=reason
            )
        except (errors.Fenced, errors.StoreClosed):
            won = False
        crash_point("pump.settled")
        if item is self._item:
            self._freed.set()
        return won

    def stop(self) -> None:
        """Deliver nothing more."""
        self._stopping = True
        self.news.set()

    async def close(self) -> None:
        """End it. What is in flight is queued again."""
        self.stop()
        await asyncio.shield(spawn(self._let_go()))

    async def _let_go(self) -> None:
        opening, holder, watching = self._opening, self._holder, self._watching
        self._opening = self._holder = self._watching = self._item = None
        if watching is not None:
            await cancel_all([watching])
        if opening is not None:
            with suppress(errors.HoldfastError):  # it was refused, another has it by now, or the store is closed
                lease = await opening
                crash_point("pump.closing")
                await self._store.close_pump(lease, self.session)
        if holder is not None:
            await holder.__aexit__(None, None, None)
        self._freed.set()


class PumpRecovery(JournalDrive):
    """What an engine does with a pump that nobody holds: its notifications go back into the queue."""

    async def run(self) -> None:
        crash_point("pump.recovery")
        with suppress(errors.JournalMissing):  # its session was forgotten
            await self._store.recover_pump(self.session)
