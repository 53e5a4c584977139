"""Deterministic simulation: a seeded event loop with virtual time.

The seed decides the order of ready callbacks. Time jumps to the next timer when no callback is ready. The same seed
gives the same history, so a failure can be repeated by its seed. Simulated code must not use threads.
"""

from __future__ import annotations

import asyncio
import collections
import heapq
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from holdfast.clock import Instant

T = TypeVar("T")


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop that explores one of the possible orders of events."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.turns = 0
        """Number of iterations. The loop runs one callback in each, so nothing can happen between two turns."""
        self.on_turn: dict[int, Callable[[], object]] = {}
        """Functions to call at a turn, to interfere at any possible moment."""
        self.held: list[Any] = []
        """Ready callbacks that wait for a later turn; `processes.context` counts them as ready."""
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        self.turns += 1
        if (interference := self.on_turn.pop(self.turns, None)) is not None:
            interference()
        # asyncio has no public way to order its callbacks and timers.
        loop = cast("Any", self)
        rest: list[Any] = list(loop._ready)
        if not rest:
            self._jump(loop._scheduled)
        else:
            chosen = rest.pop(self.random.randrange(len(rest)))
            loop._ready = collections.deque([chosen])
        self.held = rest
        try:
            cast("Any", super())._run_once()
        finally:
            loop._ready.extend(rest)

    def _jump(self, timers: list[Any]) -> None:
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if timers:
            self._now = max(self._now, timers[0]._when)


class SimulatedClock:
    """The clocks of a simulated machine. They follow the virtual time of the loop."""

    def __init__(self, loop: SimulatedLoop, boot: str = "simulated") -> None:
        self._loop = loop
        self._boot = boot
        self.skew_ms = 0
        """Offset of the wall clock."""

    def read(self) -> Instant:
        now = round(self._loop.time() * 1000)
        return Instant(1_800_000_000_000 + now + self.skew_ms, now, self._boot)


def simulate(seed: int, main: Callable[[SimulatedLoop], Awaitable[T]]) -> T:
    """Run `main` in a loop with this seed."""
    loop = SimulatedLoop(seed)

    async def enter() -> T:
        return await main(loop)

    try:
        return loop.run_until_complete(enter())
    finally:
        _cancel_all(loop)
        loop.close()


def _cancel_all(loop: SimulatedLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
