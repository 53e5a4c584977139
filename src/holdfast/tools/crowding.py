"""How many calls run at once in this process: of one tool, and of all tools together.

A call waits for its place before it begins, in order, and the time that it may take begins with its place. A call that
was cancelled while it waits is gone at once. Whoever has a place only ever waits for the world outside, never for
another place: one that begins a turn and waits for its end steps aside first, so nothing can wait in a circle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from holdfast.bounds import check_int
from holdfast.perloop import PerLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.tools.definition import AnyTool

MAX_CALLS: Final = 512
"""How many calls run at once where nobody says otherwise.

Enough for each session and each background call that a runtime drives at once to have one.
"""


class Gate:
    """Lets so many in at once; the others wait, in order."""

    __slots__ = ("_inside", "_limit", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter_now(self) -> bool:
        """Take a place, if nobody has to wait for one."""
        if self._inside >= self._limit or self._waiting:
            return False
        self._inside += 1
        return True

    async def enter(self) -> None:
        """Take a place, as soon as there is one."""
        if self.enter_now():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # it was let in, and can't use it any more
                self.leave()
            else:
                self._waiting.remove(turn)
            raise

    def leave(self) -> None:
        """Give the place back."""
        self._inside -= 1
        if self._waiting:
            self._admit()

    def widen(self, limit: int) -> None:
        """Let in so many from now on. Nobody who is inside is sent away."""
        self._limit = limit
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._inside < self._limit:
            self._inside += 1
            turn = self._waiting.popleft()
            if turn.done():
                self._inside -= 1
            else:
                turn.set_result(None)


class Place:
    """The place that a call has while it runs `with` it. A thread that was abandoned keeps the one of its tool.

    It does so until it ends. It does not keep the one among all calls: threads have a bound of their own, and those
    that hang must not keep everybody else waiting for ever.
    """

    __slots__ = ("_everyone", "_kept", "_left", "_token", "_tool")

    def __init__(self, everyone: Gate, tool: Gate | None = None) -> None:
        self._everyone: Gate | None = everyone
        self._tool = tool
        self._kept = 0
        self._left = False

    def __enter__(self) -> None:
        self._token = held.set(self)

    def __exit__(self, *_: object) -> None:
        held.reset(self._token)
        self._left = True
        self.step_aside()
        if self._tool is not None:
            self._free()

    def keep(self) -> None:
        """A thread goes on although the call is over."""
        self._kept += 1

    def give_back(self) -> None:
        """That thread has ended; nothing was kept if it did before the call was seen to be over."""
        if self._kept:
            self._kept -= 1
            self._free()

    def step_aside(self) -> None:
        """Let another call have the place among all calls; this one goes on without."""
        everyone, self._everyone = self._everyone, None
        if everyone is not None:
            everyone.leave()

    def _free(self) -> None:
        if self._tool is not None and self._left and not self._kept:
            self._tool.leave()


held: Final[ContextVar[Place | None]] = ContextVar("held", default=None)
"""The place of the call that is running here."""


def step_aside() -> None:
    """What runs here is about to wait for calls of others: if it is a call itself, it must not keep them out."""
    place = held.get()
    if place is not None:
        place.step_aside()


class Crowd:
    """The calls of one event loop."""

    __slots__ = ("_everyone", "_limits", "_tools")

    def __init__(self) -> None:
        self._everyone = Gate(MAX_CALLS)
        self._limits: list[int] = []
        """What was asked for by those who are open: the lowest counts."""
        self._tools: dict[Callable[..., Any], Gate] = {}

    def place_now(self, tool: AnyTool) -> Place | None:
        """A place for another call of `tool`, if it has no bound of its own and there is one among all calls."""
        if tool.terms.max_parallel is None and self._everyone.enter_now():
            return Place(self._everyone)
        return None

    async def place_for(self, tool: AnyTool) -> Place:
        """Wait until another call may run, of `tool` and of all tools.

        The same function under two names, or in two agents, is one tool here. A call that waits for another one of
        its tool takes no place among all calls yet.
        """
        most, own = tool.max_parallel, None
        if most is not None:
            own = self._tools.setdefault(tool.function, Gate(most))
            await own.enter()
        try:
            await self._everyone.enter()
        except BaseException:
            if own is not None:
                own.leave()
            raise
        return Place(self._everyone, own)

    @contextmanager
    def at_most(self, calls: int) -> Generator[None]:
        """Let so many calls run at once meanwhile; of several who say so, the lowest counts."""
        self._limits.append(calls)
        self._everyone.widen(min(self._limits))
        try:
            yield
        finally:
            self._limits.remove(calls)
            self._everyone.widen(min(self._limits, default=MAX_CALLS))


_crowds: Final = PerLoop(Crowd)
here: Final = _crowds.here
"""The crowd of the running event loop."""


@contextmanager
def at_most(calls: int) -> Generator[None]:
    """Let so many calls run at once on this event loop meanwhile; of several who say so, the lowest counts."""
    check_int("max_calls", calls, least=1)
    with here().at_most(calls):
        yield
