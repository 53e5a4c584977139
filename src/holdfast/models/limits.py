"""Limits of calls to an endpoint: at once, and per minute.

All models of one endpoint in one event loop share a gate. A call holds a place in the gate while it is answered, and
releases it while it waits to try again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import ModelError
from holdfast.eventloop import PerLoop, SlotGate
from holdfast.names import check_int, check_number

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.models.dialect import Endpoint


class CallLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of calls to one endpoint."""

    concurrency: int = 1_000
    """Most calls at once."""
    per_minute: float | None = None
    """Most calls that begin in a minute; None leaves it to the provider."""
    burst: int = 10
    """Calls that may begin together before `per_minute` spaces them out."""
    waiting: int = 100_000
    """Most calls that wait for a place."""

    def __post_init__(self) -> None:
        check_int("limit concurrency", self.concurrency, least=1)
        check_int("limit burst", self.burst, least=1)
        check_int("limit waiting", self.waiting)
        if self.per_minute is not None:
            check_number("limit per_minute", self.per_minute, above=True)


def next_slot(due: float, now: float, *, per_minute: float, burst: int) -> tuple[float, float]:
    """Take the slot at `due`, or now if that has passed; returns the seconds to wait, and the time of the next slot.

    `burst` slots may be taken in advance.
    """
    interval = 60 / per_minute
    at = max(due, now)
    return max(0.0, at - (burst - 1) * interval - now), at + interval


class CallGate:
    """Admits calls in order of arrival. Belongs to one event loop."""

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
        self._slots = SlotGate(limits.concurrency)
        self.leave = self._slots.leave
        """Release a place: the call that has waited longest gets it."""
        self._pacing = 0
        self._due = float("-inf")
        self._clock = clock
        self._sleep = sleep

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a place."""
        return len(self._slots.waiting) + self._pacing

    def try_enter(self) -> bool:
        """Take a place if one is free and `per_minute` is not set."""
        return self.limits.per_minute is None and self._slots.enter_now()

    async def enter(self) -> None:
        """Wait for a place. Release it with `leave`."""
        if self.limits.per_minute is not None:
            await self._wait_for_slot(self.limits.per_minute)
        if not self._slots.enter_now():
            self._check_queue()
            await self._slots.enter()

    async def _wait_for_slot(self, per_minute: float) -> None:
        clock = asyncio.get_running_loop().time if self._clock is None else self._clock
        wait, due = next_slot(self._due, clock(), per_minute=per_minute, burst=self.limits.burst)
        if wait:
            self._check_queue()
        self._due = due
        if not wait:
            return
        self._pacing += 1
        try:
            await self._sleep(wait)
        except BaseException:
            self._due -= 60 / per_minute  # the next call gets the unused slot
            raise
        finally:
            self._pacing -= 1

    def _check_queue(self) -> None:
        if self.waiting >= self.limits.waiting:
            advice = "send less, or raise `waiting` in its CallLimits"
            raise ModelError(f"{self.waiting:,} calls wait for {self._name} already; {advice}", kind="overloaded")


_gates: Final = PerLoop(dict[tuple[str, str, CallLimits], CallGate])


def shared_gate(endpoint: Endpoint, limits: CallLimits) -> CallGate:
    """Return the gate of an endpoint in the running event loop. Models with the same limits share it."""
    key = (endpoint.provider, endpoint.base_url, limits)
    gates = _gates.here()
    if key not in gates:
        gates[key] = CallGate(endpoint.provider, limits)
    return gates[key]
