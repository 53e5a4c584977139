"""Level-triggered waiting for changes: a number that grows, and a way to wait until it has."""

from __future__ import annotations

import asyncio


class Versions:
    """A version that grows. Who has seen version n and waits for more can't miss version n+1."""

    def __init__(self) -> None:
        self.current = 0
        self._next = asyncio.Event()

    def advance(self) -> None:
        """Something changed: wake everyone who waits."""
        self.current += 1
        self._next.set()
        self._next = asyncio.Event()

    async def after(self, version: int, timeout: float | None) -> int:
        """The first version above `version`, or the present one when the time is up."""
        try:
            async with asyncio.timeout(timeout):
                while self.current <= version:
                    await self._next.wait()
        except TimeoutError:
            pass
        return self.current
