"""Whether driven code has anything to do, or only waits.

A durable function whose branches all wait for something outside is unwound, and nothing of it stays in memory. Whether
one of its tasks is about to run, or has set a timer of its own, is seen in the queues of the event loop: each callback
there carries the context of the task that it belongs to. A loop that does not show its queues is given some rounds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal

from holdfast.effects.scopes import current

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.effects.scopes import Driver

ROUNDS: Final = 32
"""How many rounds of a loop that does not show its queues must pass without anything."""
TIMER: Final = 0.02
"""How long to wait before the next look at code that has set a timer of its own, in seconds."""


def about_to(drive: Driver) -> Literal["run", "wake"] | None:
    """What the code of `drive` is about to do: run now, wake by a timer of its own, or nothing."""
    loop: Any = asyncio.get_running_loop()
    for queue in ("_ready", "held"):  # a simulated loop holds back what it does not run in this round
        if _any_of(getattr(loop, queue, ()), drive):
            return "run"
    return "wake" if _any_of(getattr(loop, "_scheduled", ()), drive) else None


def _any_of(handles: Iterable[Any], drive: Driver) -> bool:
    for handle in handles:
        context = getattr(handle, "_context", None)
        if context is None or handle.cancelled():
            continue
        place = context.get(current)
        if place is not None and place.drive is drive:
            return True
    return False


async def settled(drive: Driver) -> bool:
    """Whether the code does nothing but wait. When it does more, this takes a moment before it says so."""
    shown = hasattr(asyncio.get_running_loop(), "_ready")
    for _ in range(1 if shown else ROUNDS):
        found = about_to(drive)
        if found is not None:
            await asyncio.sleep(0 if found == "run" else TIMER)
            return False
        if not shown:
            await asyncio.sleep(0)
    return True
