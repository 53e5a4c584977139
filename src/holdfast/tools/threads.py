"""Threads for plain functions: one for each call, so that one that hangs keeps neither the others nor the process.

A thread can't be stopped. One whose caller went away, because it was cancelled or took too long, is abandoned: it goes
on to its end, or ends with the process, and what it gives is dropped. `abandoned()` tells of them.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from holdfast.tools import processes
from holdfast.tools.crowding import held

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_THREADS: Final = 256
"""How many plain functions run at once; more wait for one to end."""

_log: Final = logging.getLogger("holdfast.tools")
_slots: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = WeakKeyDictionary()
_lock: Final = threading.Lock()
_left: Final[dict[int, Left]] = {}
_count = 0


@dataclass(frozen=True, slots=True)
class Left:
    """A thread that nobody waits for any more."""

    function: str
    begun: float
    """On the clock of `time.monotonic`."""
    loop: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The threads of this process that were abandoned."""

    total: int
    """Since the process began."""
    running: tuple[str, ...]
    """The functions that are still in one of them, the oldest first."""


def abandoned() -> Abandoned:
    """Threads whose caller was cancelled or ran out of time, and which could not be stopped."""
    with _lock:
        return Abandoned(_count, tuple(left.function for left in _left.values()))


async def in_thread(function: Callable[..., Any], kwargs: dict[str, Any], *, name: str | None = None) -> object:
    """Call a plain function off the event loop, in the context of the caller. `name` is what a log calls it."""
    loop = asyncio.get_running_loop()
    slots = _slots.setdefault(loop, asyncio.Semaphore(MAX_THREADS))
    if slots.locked():
        _check_free(id(loop))
    await slots.acquire()
    call = _Call(loop, slots, name or str(getattr(function, "__name__", "")))
    context = contextvars.copy_context()

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function, **kwargs)
        except StopIteration as stop:  # a future can't carry it: whoever awaits would wait for ever
            error = RuntimeError(f"the function raised StopIteration: {stop}")
        except BaseException as raised:  # noqa: BLE001  whoever awaits it gets it
            error = raised
        call.over()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(call.settle, value, error)

    try:
        threading.Thread(target=work, name=f"tool {call.name}", daemon=True).start()
    except BaseException:
        slots.release()
        raise
    try:
        return await call.ended
    except BaseException:
        call.abandon()
        raise


class _Call:
    """One call in a thread, seen from the event loop."""

    __slots__ = ("_begun", "_finished", "_loop", "_slots", "_spawned", "ended", "name", "place")

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: asyncio.Semaphore, name: str) -> None:
        self.ended: asyncio.Future[object] = loop.create_future()
        self.name = name
        self.place = held.get()
        self._spawned = processes.current()
        self._loop = loop
        self._slots = slots
        self._begun = time.monotonic()
        self._finished = False

    def over(self) -> None:
        """In the thread: the function has ended."""
        with _lock:
            self._finished = True
            left = _left.pop(id(self), None)
        if left is not None:
            _log.info("the abandoned thread of %r has ended after %.1f s", self.name, time.monotonic() - self._begun)

    def settle(self, value: object, error: BaseException | None) -> None:
        """On the event loop, after that."""
        self._slots.release()
        if self.ended.done():  # nobody waits any more
            if self.place is not None:
                self.place.give_back()
        elif error is None:
            self.ended.set_result(value)
        else:
            self.ended.set_exception(error)

    def abandon(self) -> None:
        """Whoever waited is gone; if the function is still running, it is told of."""
        global _count  # noqa: PLW0603  one number for the process
        with _lock:
            if self._finished:
                return
            _count += 1
            _left[id(self)] = Left(self.name, self._begun, id(self._loop))
        if self.place is not None:
            self.place.keep()
        if self._spawned is not None:
            self._spawned.abandon()
        ran = time.monotonic() - self._begun
        _log.warning(
            "the thread of %r was abandoned after %.1f s: a thread can't be stopped, it goes on to its end; "
            "let the function watch ctx.cancelled, or give what it waits for a timeout of its own",
            self.name,
            ran,
        )


def _check_free(loop: int) -> None:
    """Waiting for a thread has no end if all of them were abandoned."""
    with _lock:
        gone = [left.function for left in _left.values() if left.loop == loop]
    if len(gone) >= MAX_THREADS:
        names = ", ".join(sorted(set(gone))[:5])
        said = f"it was not begun: all {MAX_THREADS} threads for tools hang in calls that were given up ({names})"
        raise RuntimeError(said)
