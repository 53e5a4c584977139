"""Fairness: when hundreds of sessions can go on at once, only so many do in one round of the event loop.

Otherwise a single commit, which wakes all of them, would keep everything else of the process waiting until each has
taken its step.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from holdfast.perloop import PerLoop

ROUND: Final = 16
"""How many sessions take a step in one round of the event loop."""


class Turnstile:
    """Lets so many through in one round; the others wait for the next ones, in order."""

    def __init__(self, width: int = ROUND) -> None:
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
        """Pass at once if there is room in this round; otherwise a place among those who wait for the next ones."""
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
        self._scheduled = False
        while self._waiting and self._left > 0:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._left -= 1
        if self._waiting:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_round)


turnstiles: Final = PerLoop(Turnstile)
"""One for each event loop: two hundred runtimes on one loop keep it no busier than two hundred sessions of one."""
