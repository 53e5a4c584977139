"""How long tests wait.

What has to come is waited for as long as `PATIENCE`: it costs nothing when it comes, and on a busy machine it comes
late. What must come quickly is measured with a `Stopwatch`, which a busy machine does not make run faster.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PATIENCE: Final = 20.0
_TICK: Final = 0.005


class Stopwatch:
    """How much time has passed of that in which this event loop got to run.

    It counts the ticks that the loop came to. Whoever waits for a timer, a file or another task lets them pass; while
    the process itself is kept from running, there are none.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self.seconds += _TICK


@asynccontextmanager
async def stopwatch() -> AsyncGenerator[Stopwatch]:
    """A stopwatch that runs as long as the block."""
    watch = Stopwatch()
    running = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        running.cancel()
