"""Clocks for tests: a manual one, and one that runs and can be advanced with the event loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack

from holdfast.clock import Instant, SystemClock
from holdfast.errors import InvalidArgument, StoreClosed, UsageError
from holdfast.eventloop import is_upkeep
from holdfast.runtime.sync import SyncRuntime, call_on_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from holdfast.store import Store


class ManualClock:
    """Moves only by its methods. Wall clock and monotonic clock can be moved apart."""

    def __init__(self, wall: int = 1_800_000_000_000, mono: int = 1_000_000, boot: str = "boot-1") -> None:
        self._wall = wall
        self._mono = mono
        self._boot = boot

    def read(self) -> Instant:
        return Instant(self._wall, self._mono, self._boot)

    def advance(self, milliseconds: int) -> None:
        """Let time pass on both clocks."""
        self._wall += milliseconds
        self._mono += milliseconds

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward or back. No time passes."""
        self._wall += milliseconds

    def reboot(self, boot: str) -> None:
        """Restart the machine: the monotonic clock begins at zero."""
        self._boot = boot
        self._mono = 0


T = TypeVar("T")
_QUIET_ROUNDS: Final = 2
_NEAR: Final = 0.06
"""Timers that are due within this many seconds are waited for: most of them are pauses after a commit."""
_SETTLE_TIMEOUT: Final = 10.0
"""Real seconds that `advance` waits for the work of one moment: a tool may block for ever."""


class Advance(TypedDict, total=False):
    """The time to advance; `to` excludes all others."""

    days: float
    hours: float
    minutes: float
    seconds: float
    to: datetime | None


class VirtualClock:
    """The clock of this machine, which a test can advance: sleeps, deadlines, schedules and retries are due at once.

    Give it to `hf.open(clock=...)`. ``await clock.advance(days=2)`` goes from one due moment to the next, in their
    order, and lets the work of each be done; timers of the running event loop (`asyncio.sleep`, timeouts) are among
    them. Leases follow real time: no process loses one because a test moved the clock.
    """

    def __init__(self) -> None:
        self._system = SystemClock()
        self._skipped = 0.0
        """Seconds by which this clock is ahead."""
        self._loop: Any = None
        """The event loop whose time is moved as well."""
        self._loop_ahead = 0.0
        self._stores: list[Store] = []
        self._in_threads: set[asyncio.Future[Any]] = set()
        self._advancing = False

    def read(self) -> Instant:
        wall, mono, boot = self._system.read()
        return Instant(wall + round(self._skipped * 1000), mono, boot)

    @property
    def now(self) -> datetime:
        """The time of this clock."""
        return datetime.fromtimestamp(self.read().wall / 1000, tz=UTC)

    def watch(self, store: Store) -> None:
        """Stop at all that is due in `store`; a runtime that is opened with this clock calls it."""
        self._stores.append(store)

    async def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        to: datetime | None = None,
    ) -> None:
        """Let time pass: all that is due until then happens, in order, before this returns."""
        left = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
        if to is not None:
            if left or to.tzinfo is None:
                raise InvalidArgument("to", to, "a time with a time zone, and nothing else")
            left = (to - self.now).total_seconds()
        if not 0 <= left < math.inf:
            raise InvalidArgument("time", left, "a time that is not in the past")
        if self._advancing:
            raise UsageError("this clock is being advanced; await that first")
        self._advancing = True
        try:
            self._take_loop()
            end = self._skipped + left
            await self._settle()
            while (step := min(await self._next_step(), end - self._skipped)) > 0:
                self._skipped += step
                self._loop_ahead += step
                await self._settle()
        finally:
            self._advancing = False

    def advance_sync(self, runtime: SyncRuntime, **time: Unpack[Advance]) -> None:
        """Let time pass for a runtime of `hf.open_sync`."""
        call_on_loop(runtime, "advance", partial(self.advance, **time))

    def restore(self) -> None:
        """Give the event loop its own time back. The clock stays ahead."""
        loop, ahead = self._loop, self._loop_ahead
        self._loop, self._loop_ahead = None, 0.0
        if loop is None:
            return
        for name in ("time", "run_in_executor"):
            del vars(loop)[name]
        for timer in loop._scheduled:  # all move alike: their order stays
            timer._when -= ahead

    # ---- the event loop ----

    def _take_loop(self) -> None:
        loop: Any = asyncio.get_running_loop()
        if loop is self._loop:
            return
        self.restore()
        if not isinstance(loop, asyncio.BaseEventLoop):
            raise UsageError(f"time can be advanced on an event loop of asyncio, not on a {type(loop).__name__}")
        real_time, run = loop.time, loop.run_in_executor
        vars(loop)["time"] = lambda: real_time() + self._loop_ahead

        def run_in_executor(executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
            work = run(executor, function, *args)
            self._in_threads.add(work)
            work.add_done_callback(self._in_threads.discard)
            return work

        vars(loop)["run_in_executor"] = run_in_executor
        self._loop = loop

    def _timers(self, *, upkeep: bool) -> Iterator[float]:
        """Seconds until each timer of the loop; timers of the runtime itself only with `upkeep`."""
        now = self._loop.time()
        for timer in self._loop._scheduled:  # asyncio has no public way to see its timers
            if not timer._cancelled and (upkeep or not is_upkeep(timer._context)):
                yield timer._when - now

    async def _ask_stores(self, question: Callable[[Store], Awaitable[T]]) -> list[T]:
        """The answers of the stores that are open; the others are forgotten."""
        answers: list[T] = []
        for store in list(self._stores):
            try:
                answers.append(await question(store))
            except StoreClosed:
                self._stores.remove(store)
        return answers

    async def _next_step(self) -> float:
        """Seconds until the next moment at which something is due; infinite without one."""
        wall = self.read().wall
        steps = list(self._timers(upkeep=False))
        dues = await self._ask_stores(lambda store: store.next_due())
        steps += [(due - wall) / 1000 for due in dues if due is not None and due > wall]
        return max(min(steps, default=math.inf), 0.001)

    async def _settle(self) -> None:
        """Wait until all work is done that can be done now."""
        until, quiet = time.monotonic() + _SETTLE_TIMEOUT, 0
        before: list[int] = []
        while quiet < _QUIET_ROUNDS and time.monotonic() < until:
            positions = await self._ask_stores(lambda store: store.read_position())  # after all earlier writes
            await self._drain(until)
            await asyncio.sleep(0.001)  # for sockets
            await self._drain(until)
            quiet = quiet + 1 if positions == before else 0
            before = positions

    async def _drain(self, until: float) -> None:
        """Let the loop and the threads work until nothing is ready, and nothing is due in a moment."""
        while time.monotonic() < until:
            if self._loop._ready:
                await asyncio.sleep(0)
            elif self._in_threads:
                await asyncio.wait(set(self._in_threads), timeout=0.1)
            elif any(thread.name.startswith("tool ") for thread in threading.enumerate()):
                await asyncio.sleep(0.002)
            elif (near := min(self._timers(upkeep=True), default=math.inf)) < _NEAR:
                await asyncio.sleep(max(near, 0.0))
            else:
                return
