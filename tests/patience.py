"""How long tests wait.

What has to come is waited for as long as `PATIENCE`: it costs nothing when it comes, and on a busy machine it comes
late. What must come quickly is measured with a `Stopwatch`, which a busy machine does not make run faster.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PATIENCE: Final = 45.0
_TICK: Final = 0.005
_LOOK: Final = 0.3


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


async def processor_at_rest() -> float:
    """The share of a processor that this process uses while nothing should happen.

    What is measured is that nothing happens, so there is no condition to wait for. What was begun before may still come
    to its end meanwhile: the least of a few looks counts, since whoever is busy without work is so in each of them.
    """
    looks: list[float] = []
    for _ in range(3):
        before = time.process_time()
        await asyncio.sleep(_LOOK)
        looks.append((time.process_time() - before) / _LOOK)
    return min(looks)
