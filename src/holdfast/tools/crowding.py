"""How many calls of one tool run at once in this process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from holdfast.tools.definition import AnyTool

_gates: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Callable[..., Any], asyncio.Semaphore]]] = (
    WeakKeyDictionary()
)


class Place:
    """One of the places that a tool has. A thread that was abandoned keeps it until it ends."""

    __slots__ = ("_gate", "_kept", "_left")

    def __init__(self, gate: asyncio.Semaphore) -> None:
        self._gate = gate
        self._kept = 0
        self._left = False

    def keep(self) -> None:
        """A thread goes on although the call is over."""
        self._kept += 1

    def give_back(self) -> None:
        """That thread has ended; nothing was kept if it did before the call was seen to be over."""
        if self._kept:
            self._kept -= 1
            self._free()

    def leave(self) -> None:
        """The call is over."""
        self._left = True
        self._free()

    def _free(self) -> None:
        if self._left and not self._kept:
            self._gate.release()


held: Final[ContextVar[Place | None]] = ContextVar("held", default=None)
"""The place of the call that is running here."""


@asynccontextmanager
async def place(tool: AnyTool) -> AsyncGenerator[None]:
    """Wait until another call of `tool` may run, and run here. A tool without `max_parallel` never waits.

    The same function under two names, or in two agents, is one tool here.
    """
    if tool.max_parallel is None:
        yield
        return
    gates = _gates.setdefault(asyncio.get_running_loop(), {})
    gate = gates.setdefault(tool.function, asyncio.Semaphore(tool.max_parallel))
    await gate.acquire()
    taken = Place(gate)
    token = held.set(taken)
    try:
        yield
    finally:
        held.reset(token)
        taken.leave()
