"""How many calls an endpoint gets at once, and how many in a minute.

All models of one endpoint in one event loop share a gate. A call holds its place while it is answered, and gives it
back while it waits to try again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from holdfast.errors import ModelError
from holdfast.eventloop import PerLoop
from holdfast.models.retry import check_seconds
from holdfast.names import check_int

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.models.dialect import Endpoint


class CallLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one endpoint may be asked, with the defaults."""

    concurrency: int = 1_000
    """Calls under way at once."""
    per_minute: float | None = None
    """Calls begun in a minute; None leaves it to the provider."""
    burst: int = 10
    """Calls that may begin together before `per_minute` spaces them out."""
    waiting: int = 100_000
    """Calls that may wait for their turn."""

    def __post_init__(self) -> None:
        check_int("limit concurrency", self.concurrency, least=1)
        check_int("limit burst", self.burst, least=1)
        check_int("limit waiting", self.waiting)
        if self.per_minute is not None:
            check_seconds("limit per_minute", self.per_minute, above=True)


class Slot(NamedTuple):
    """When a call may begin, and what is left for the next one."""

    wait: float
    due: float
    """When the next call would begin if all came evenly."""


def next_slot(due: float, now: float, *, per_minute: float, burst: int) -> Slot:
    """The place of one more call on an even time line, of which `burst` places may be taken in advance."""
    interval = 60 / per_minute
    at = max(due, now)
    return Slot(max(0.0, at - (burst - 1) * interval - now), at + interval)


class CallGate:
    """Lets calls through in the order in which they came. Belongs to one event loop."""

    def __init__(
        self,
        name: str,
        limits: CallLimits,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.limits = limits
        self._name = name
        self._free = limits.concurrency
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._pacing = 0
        self._due = float("-inf")
        self._clock = clock
        self._sleep = sleep

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return len(self._waiters) + self._pacing

    def enter_now(self) -> bool:
        """Take a place, where nobody has to wait for one, nor for the minute."""
        if self.limits.per_minute is not None or not self._free:
            return False
        self._free -= 1
        return True

    async def enter(self) -> None:
        """Wait for a place; whoever has one gives it back with `leave`."""
        if self.limits.per_minute is not None:
            await self._paced(self.limits.per_minute)
        if self._free:
            self._free -= 1
            return
        self._check()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.leave()  # the place came together with the end of the wait
            elif waiter in self._waiters:  # whoever left in the same moment may have taken it out already
                self._waiters.remove(waiter)
            raise

    def leave(self) -> None:
        """Give the place to whoever waits longest."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1

    async def _paced(self, per_minute: float) -> None:
        clock = asyncio.get_running_loop().time if self._clock is None else self._clock
        wait, due = next_slot(self._due, clock(), per_minute=per_minute, burst=self.limits.burst)
        if wait:
            self._check()
        self._due = due
        if not wait:
            return
        self._pacing += 1
        try:
            await self._sleep(wait)
        except BaseException:
            self._due -= 60 / per_minute  # whoever comes next gets the place that is not used
            raise
        finally:
            self._pacing -= 1

    def _check(self) -> None:
        if self.waiting >= self.limits.waiting:
            message = (
                f"{self.waiting:,} calls wait for {self._name} already; send less, or raise `waiting` in its CallLimits"
            )
            raise ModelError(message, kind="overloaded")


_Key: TypeAlias = tuple[str, str, "CallLimits"]


def _none() -> dict[_Key, CallGate]:
    return {}


_gates: Final = PerLoop(_none)


def shared_gate(endpoint: Endpoint, limits: CallLimits) -> CallGate:
    """The gate of this endpoint in the running event loop, shared by all that give it the same limits."""
    here = _gates.here()
    key = (endpoint.provider, endpoint.base_url, limits)
    found = here.get(key)
    if found is None:
        found = here[key] = CallGate(endpoint.provider, limits)
    return found
