"""Tasks, values per event loop, places for calls, and the garbage collector."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import types
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One value for each event loop: `make` creates it at first use, and it is dropped with its loop."""

    __slots__ = ("_last", "_made", "_make")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, T]] = WeakKeyDictionary()
        self._last: tuple[ref[asyncio.AbstractEventLoop], T] | None = None

    def here(self) -> T:
        """The value of the running loop."""
        loop = asyncio.get_running_loop()
        last = self._last
        if last is not None and last[0]() is loop:  # as nearly always: most processes have one loop
            return last[1]
        found = self._made.get(loop)
        if found is None:
            found = self._made[loop] = self._make()
        self._last = (ref(loop), found)
        return found


class SlotGate:
    """Lets a number of calls in at once; the others wait in order."""

    __slots__ = ("_inside", "_limit", "waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0
        self.waiting: deque[asyncio.Future[None]] = deque()

    def enter_now(self) -> bool:
        """Enter if no wait is needed; returns False otherwise."""
        if self._inside >= self._limit or self.waiting:
            return False
        self._inside += 1
        return True

    async def enter(self) -> None:
        """Wait for a place. Release it with `leave`."""
        if self.enter_now():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # it was let in, and can't use it any more
                self.leave()
            elif turn in self.waiting:  # `leave` may have removed it in the same moment
                self.waiting.remove(turn)
            raise

    def leave(self) -> None:
        self._inside -= 1
        if self.waiting:
            self._admit()

    def widen(self, limit: int) -> None:
        """Change the limit. Calls inside stay inside."""
        self._limit = limit
        self._admit()

    def _admit(self) -> None:
        while self.waiting and self._inside < self._limit:
            self._inside += 1
            turn = self.waiting.popleft()
            if turn.done():
                self._inside -= 1
            else:
                turn.set_result(None)


class CallSlot:
    """The slot of a running call, used as a context manager.

    An abandoned thread keeps the slot of its tool until it ends. It gives the shared slot back, so that hanging threads
    do not block all other tools; threads have their own limit.
    """

    __slots__ = ("_kept", "_left", "_token", "_tool", "shared")

    def __init__(self, everyone: SlotGate, tool: SlotGate | None = None) -> None:
        self.shared: SlotGate | None = everyone
        self._tool = tool
        self._kept = 0
        self._left = False

    def __enter__(self) -> None:
        self._token = current_slot.set(self)

    def __exit__(self, *_: object) -> None:
        current_slot.reset(self._token)
        self._left = True
        self.step_aside()
        self._free()

    def keep(self) -> None:
        """Keep the tool's slot for a thread that outlives its call."""
        self._kept += 1

    def give_back(self) -> None:
        """Return the slot of an abandoned thread. Does nothing if the thread ended before it was abandoned."""
        if self._kept:
            self._kept -= 1
            self._free()

    def step_aside(self) -> None:
        """Return the shared slot; this call continues without one."""
        everyone, self.shared = self.shared, None
        if everyone is not None:
            everyone.leave()

    def _free(self) -> None:
        if self._tool is not None and self._left and not self._kept:
            self._tool.leave()


current_slot: Final[contextvars.ContextVar[CallSlot | None]] = contextvars.ContextVar("held", default=None)
"""The slot of the call that runs in this context."""


def release_call_slot() -> None:
    """Return the shared slot of the current call, before it waits for other calls."""
    place = current_slot.get()
    if place is not None:
        place.step_aside()


UNWIND_TIMEOUT: Final = 0.5
"""Time that a cancelled task gets to clean up, in seconds; after that it is abandoned."""


_upkeep: Final = contextvars.ContextVar("holdfast_upkeep", default=False)


def upkeep_context() -> contextvars.Context:
    """A context for the timers of the runtime itself: polls, renewals. A test that advances time passes over them."""
    context = contextvars.Context()
    context.run(_upkeep.set, True)
    return context


def is_upkeep(context: contextvars.Context | None) -> bool:
    """True for the context of a timer of the runtime itself."""
    return context is not None and context.get(_upkeep, False)


def spawn(coro: Coroutine[Any, Any, T], *, upkeep: bool = False) -> asyncio.Task[T]:
    """Start a task in an empty context, so that a tool that causes it is not its parent."""
    context = upkeep_context() if upkeep else contextvars.Context()
    return context.run(asyncio.get_running_loop().create_task, coro)


@types.coroutine
def call_on_first_wait(coro: Coroutine[Any, Any, T], waits: Callable[[], None]) -> Generator[Any, Any, T]:
    """Run `coro`; `waits` is called when it suspends for the first time, if it does."""
    try:
        pending = coro.send(None)
        waits()
        while True:
            try:
                given = yield pending
            except BaseException as error:  # any exception is passed to `coro`
                pending = coro.throw(error)
            else:
                pending = coro.send(given)
    except StopIteration as ended:
        return ended.value


async def cancel_and_wait(task: asyncio.Task[Any]) -> bool:
    """Cancel a task and give it a moment to clean up; returns False if it still runs. It is then abandoned."""
    task.cancel()
    await asyncio.wait({task}, timeout=UNWIND_TIMEOUT)
    ignore_result(task)
    return task.done()


async def cancel_all(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def ignore_result(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of an abandoned task, so that asyncio does not log it."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


DEFAULT_THRESHOLDS: Final = (700, 10, 10)
"""The thresholds that Python 3.11 to 3.13 begin with."""
RARE_THRESHOLDS: Final = (30_000, 20, 20)
_open = 0


@contextmanager
def rare_collections() -> Generator[None]:
    """Run the garbage collector rarely inside the block, unless the host has set its own thresholds."""
    global _open  # noqa: PLW0603  thresholds belong to the process, and so does this count
    if _open == 0 and gc.get_threshold() == DEFAULT_THRESHOLDS:
        gc.set_threshold(*RARE_THRESHOLDS)
    _open += 1
    try:
        yield
    finally:
        _open -= 1
        if _open == 0 and gc.get_threshold() == RARE_THRESHOLDS:
            gc.set_threshold(*DEFAULT_THRESHOLDS)
