"""Calls of a tool's function: limits on calls at once, threads for plain functions, and a watchdog of the event loop.

A function may do anything: it may block, never end, or ask to end the process. One tool must not stop the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import io
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from holdfast.eventloop import PerLoop
from holdfast.names import check_int
from holdfast.tools import subprocesses
from holdfast.tools.subprocesses import CallProcesses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable
    from types import CodeType, FrameType

    from holdfast.tools.definition import AnyTool


# ---- limits on calls at once ----

MAX_CALLS: Final = 512
"""Default limit of calls at once: one for each session and each background call that a runtime drives at once."""


class SlotGate:
    """Lets a number of calls in at once; the others wait in order."""

    __slots__ = ("_inside", "_limit", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter_now(self) -> bool:
        """Enter if no wait is needed; whether it did."""
        if self._inside >= self._limit or self._waiting:
            return False
        self._inside += 1
        return True

    async def enter(self) -> None:
        """Enter, after a wait if necessary."""
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
        self._inside -= 1
        if self._waiting:
            self._admit()

    def widen(self, limit: int) -> None:
        """Change the limit. Calls inside stay inside."""
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


class CallSlot:
    """The slot of a running call, used as a context manager.

    An abandoned thread keeps the slot of its tool until it ends. It gives the shared slot back: threads have a limit of
    their own, and hanging ones must not block all other tools.
    """

    __slots__ = ("_kept", "_left", "_token", "_tool", "shared")

    def __init__(self, everyone: SlotGate, tool: SlotGate | None = None) -> None:
        self.shared: SlotGate | None = everyone
        self._tool = tool
        self._kept = 0
        self._left = False

    def __enter__(self) -> None:
        self._token = _current_slot.set(self)

    def __exit__(self, *_: object) -> None:
        _current_slot.reset(self._token)
        self._left = True
        self.step_aside()
        if self._tool is not None:
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
        """Return the shared slot; this call goes on without one."""
        everyone, self.shared = self.shared, None
        if everyone is not None:
            everyone.leave()

    def _free(self) -> None:
        if self._tool is not None and self._left and not self._kept:
            self._tool.leave()


_current_slot: Final[ContextVar[CallSlot | None]] = ContextVar("held", default=None)
"""The slot of the call that runs in this context."""


def release_call_slot() -> None:
    """Return the shared slot of the current call, before it waits for other calls."""
    place = _current_slot.get()
    if place is not None:
        place.step_aside()


class CallSlots:
    """The slots for calls on one event loop."""

    __slots__ = ("_tools", "limits", "shared")

    def __init__(self) -> None:
        self.shared = SlotGate(MAX_CALLS)
        self.limits: list[int] = []
        """Limits of all open runtimes: the lowest counts."""
        self._tools: dict[Callable[..., Any], SlotGate] = {}

    def place_now(self, tool: AnyTool) -> CallSlot | None:
        """A slot for a call of `tool`, if the tool has no limit of its own and a shared slot is free."""
        if tool.max_parallel is None and self.shared.enter_now():
            return CallSlot(self.shared)
        return None

    async def place_for(self, tool: AnyTool) -> CallSlot:
        """Wait for a slot, of `tool` and among all tools.

        The same function under two names, or in two agents, is one tool here. A call that waits for its tool takes no
        shared slot yet.
        """
        most, own = tool.max_parallel, None
        if most is not None:
            own = self._tools.setdefault(tool.function, SlotGate(most))
            await own.enter()
        try:
            await self.shared.enter()
        except BaseException:
            if own is not None:
                own.leave()
            raise
        return CallSlot(self.shared, own)


_limits_by_loop: Final = PerLoop(CallSlots)
call_slots: Final = _limits_by_loop.here
"""The slots of the running event loop."""


@contextmanager
def limit_calls(calls: int) -> Generator[None]:
    """Limit the calls at once on this event loop inside the block; of several limits, the lowest counts."""
    check_int("max_calls", calls, least=1)
    slots = call_slots()
    slots.limits.append(calls)
    slots.shared.widen(min(slots.limits))
    try:
        yield
    finally:
        slots.limits.remove(calls)
        slots.shared.widen(min(slots.limits, default=MAX_CALLS))


# ---- threads for plain functions ----

MAX_THREADS: Final = 256
"""Largest number of plain functions at once; further ones wait."""
_log: Final = logging.getLogger("holdfast.tools")
_slots: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = WeakKeyDictionary()
_lock: Final = threading.Lock()
_abandoned: Final[dict[int, _ThreadCall]] = {}
_abandoned_count = 0


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The abandoned threads of this process: their call was cancelled or timed out, and a thread can't be stopped."""

    total: int
    """Since the process began."""
    running: tuple[str, ...]
    """The functions still running in one, oldest first."""


def abandoned() -> Abandoned:
    """Count the abandoned threads of this process."""
    with _lock:
        return Abandoned(_abandoned_count, tuple(left.name for left in _abandoned.values()))


async def run_in_thread(function: Callable[..., Any], kwargs: dict[str, Any], *, name: str | None = None) -> object:
    """Call a plain function off the event loop, in the caller's context. Logs call it `name`."""
    loop = asyncio.get_running_loop()
    slots = _slots.setdefault(loop, asyncio.Semaphore(MAX_THREADS))
    if slots.locked():
        # Fail at once if all threads are abandoned: waiting for one might never end.
        with _lock:
            functions = [thread.name for thread in _abandoned.values() if thread.loop is loop]
        if len(functions) >= MAX_THREADS:
            names = ", ".join(sorted(set(functions))[:5])
            said = f"it was not begun: all {MAX_THREADS} threads for tools hang in calls that were given up ({names})"
            raise RuntimeError(said)
    await slots.acquire()
    call = _ThreadCall(loop, slots, name or str(getattr(function, "__name__", "")))
    context = contextvars.copy_context()

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function, **kwargs)
        except StopIteration as stop:  # a future can't carry it: the caller would wait for ever
            error = RuntimeError(f"the function raised StopIteration: {stop}")
        except BaseException as raised:  # noqa: BLE001  the caller gets it
            error = raised
        call.over()
        with suppress(RuntimeError):  # the loop is closed
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


class _ThreadCall:
    """One call in a thread, seen from the event loop."""

    __slots__ = ("_begun", "_finished", "_slots", "_spawned", "ended", "loop", "name", "place")

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: asyncio.Semaphore, name: str) -> None:
        self.ended: asyncio.Future[object] = loop.create_future()
        self.name = name
        self.place = _current_slot.get()
        self._spawned = subprocesses.current_call()
        self.loop = loop
        self._slots = slots
        self._begun = time.monotonic()
        self._finished = False

    def over(self) -> None:
        """In the thread: the function has ended."""
        with _lock:
            self._finished = True
            left = _abandoned.pop(id(self), None)
        if left is not None:
            _log.info("the abandoned thread of %r has ended after %.1f s", self.name, time.monotonic() - self._begun)

    def settle(self, value: object, error: BaseException | None) -> None:
        """On the event loop: hand the result to the waiting call."""
        self._slots.release()
        if self.ended.done():  # the caller is gone
            if self.place is not None:
                self.place.give_back()
        elif error is None:
            self.ended.set_result(value)
        else:
            self.ended.set_exception(error)

    def abandon(self) -> None:
        """On the event loop: the caller stopped waiting. Warn if the function still runs."""
        global _abandoned_count  # noqa: PLW0603  one number for the process
        with _lock:
            if self._finished:
                return
            _abandoned_count += 1
            _abandoned[id(self)] = self
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


# ---- the watchdog: which tool blocks the event loop ----

MAX_SILENCE: Final = 1.0
"""Seconds without an answer after which the event loop counts as blocked."""
PROBE_INTERVAL: Final = 0.25
"""Seconds between two probes of the event loop."""
_MAX_WRAPPERS: Final = 16
"""Decorators whose code is attributed to a tool."""


@dataclass(frozen=True, slots=True)
class LoopCall:
    """A call on the event loop."""

    tool: str
    codes: frozenset[CodeType]
    """The code of its function, and of functions that it wraps."""


@dataclass(frozen=True, slots=True)
class BlockedLoop:
    """An event loop that does not answer."""

    seconds: float
    tools: tuple[str, ...]
    """The tool that blocks; if not `certain`, the tools that might."""
    certain: bool
    where: str
    """The line of code that the loop's thread executes."""

    def __str__(self) -> str:
        who = ", ".join(repr(tool) for tool in self.tools) or "no tool that is known"
        message = f"the tool {who} blocks" if self.certain else f"something blocks (of the tools, {who} may be it)"
        return (
            f"{message} the event loop: no answer for {self.seconds:.1f} s, at {self.where}; every session waits. "
            "Make it a plain function, which runs in a thread, or await what it waits for"
        )


def find_blocking_tool(
    asked: float | None, now: float, stack: Iterable[tuple[CodeType, str]], running: Iterable[LoopCall]
) -> BlockedLoop | None:
    """Find the tool that blocks a loop which was probed at `asked` and has not answered; None if it still has time.

    `stack` is the stack of the loop's thread, innermost frame first. A tool whose own code is in it blocks the loop.
    """
    if asked is None or now - asked < MAX_SILENCE:
        return None
    frames, calls = list(stack), list(running)
    codes = {code for code, _ in frames}
    found = tuple(dict.fromkeys(call.tool for call in calls if call.codes & codes))
    named = found or tuple(dict.fromkeys(call.tool for call in calls))
    return BlockedLoop(now - asked, named, bool(found), frames[0][1] if frames else "an unknown place")


RunningCalls: TypeAlias = "dict[object, tuple[str, Callable[..., object] | None]]"
"""Running calls, each with the name of its tool and its function, whose code the watchdog recognizes."""


class _LoopCalls:
    __slots__ = ("calls", "watch", "watchers")

    def __init__(self) -> None:
        self.calls: RunningCalls = {}
        self.watch: _Watchdog | None = None
        self.watchers = 0


_registries: Final = PerLoop(_LoopCalls)


def running_calls() -> RunningCalls:
    """The calls that run on this event loop. `invoke_function` adds and removes them."""
    return _registries.here().calls


@lru_cache(maxsize=1024)
def _codes_of(function: Callable[..., object] | None) -> frozenset[CodeType]:
    found: list[CodeType] = []
    while function is not None and len(found) < _MAX_WRAPPERS and hasattr(function, "__code__"):
        found.append(function.__code__)
        function = getattr(function, "__wrapped__", None)
    return frozenset(found)


@contextmanager
def watch_event_loop(tell: Callable[[BlockedLoop], None] | None = None) -> Generator[None]:
    """Watch this event loop inside the block. One thread watches for all; `tell` of the first caller is used."""
    loop = asyncio.get_running_loop()
    registry = _registries.of(loop)
    registry.watchers += 1
    if registry.watch is None:
        registry.watch = _Watchdog(loop, registry, tell or (lambda blocked: _log.warning("%s", blocked)))
    watch = registry.watch
    try:
        yield
    finally:
        registry.watchers -= 1
        if not registry.watchers:
            watch.stop()
            registry.watch = None


class _Watchdog:
    """A thread that probes the event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, registry: _LoopCalls, tell: Callable[[BlockedLoop], None]
    ) -> None:
        self._loop = loop
        self._registry = registry
        self._tell = tell
        self._stopped = threading.Event()
        self._loop_thread = threading.get_ident()
        self._asked: float | None = None
        self._reported = False
        threading.Thread(target=self._run, name="holdfast watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(PROBE_INTERVAL):
                self._probe()
        except RuntimeError:  # the loop is closed
            return

    def _probe(self) -> None:
        asked = self._asked
        if asked is None:
            if self._registry.calls:
                self._asked = time.monotonic()
                self._loop.call_soon_threadsafe(self._answer)
            return
        if self._reported:
            return
        calls = tuple(LoopCall(tool, _codes_of(of)) for tool, of in self._registry.calls.copy().values())
        blocked = find_blocking_tool(asked, time.monotonic(), _stack(self._loop_thread), calls)
        if blocked is not None and self._asked is not None:
            self._reported = True
            self._tell(blocked)

    def _answer(self) -> None:
        if self._reported and self._asked is not None:
            _log.warning("the event loop answers again, after %.1f s", time.monotonic() - self._asked)
        self._reported = False
        self._asked = None


def _stack(thread: int) -> list[tuple[CodeType, str]]:
    """The stack of a thread, innermost frame first."""
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the only way to see another thread
    found: list[tuple[CodeType, str]] = []
    while frame is not None:
        code = frame.f_code
        found.append((code, f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"))
        frame = frame.f_back
    return found


# ---- one call ----

MAX_ITEMS: Final = 100_000
"""Largest number of items read from an iterator that a function returns."""
_PLAIN: Final = frozenset((dict, list, tuple, str, int, float, bool, bytes, type(None)))
"""Common result types, which are neither awaited nor iterated."""


async def invoke_function(function: Callable[..., Any], kwargs: dict[str, Any], name: str, *, on_loop: bool) -> object:
    """Call `function` and return its result; an iterator is read into a list. Logs call the function `name`.

    `on_loop`: it is async and runs here; any other runs in a thread. After a cancellation, the processes that the
    function has started are killed.
    """
    with CallProcesses(name) as spawned:
        running = running_calls()
        try:
            if on_loop:
                running[spawned] = name, function
                value = await function(**kwargs)
            else:
                value = await run_in_thread(_call_and_read, {"function": function, "kwargs": kwargs}, name=name)
                if not _is_pending(value):
                    return value
                running[spawned] = name, function  # it is an async function behind a plain one
                value = await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value
            return value if type(value) in _PLAIN else await _collect(value, name)
        except SystemExit as error:
            # One tool must not take all other sessions of the process with it.
            message = f"the function asked to end the process (exit code {error.code!r:.60}); it was not ended"
            raise RuntimeError(message) from error
        except asyncio.CancelledError:
            if _is_cancelled():  # otherwise it was something that the function awaited
                spawned.stop()
            raise
        finally:
            running.pop(spawned, None)


def _is_pending(value: object) -> bool:
    return inspect.isawaitable(value) or isinstance(value, AsyncIterator)


def _is_cancelled() -> bool:
    """Whether the current task is being cancelled.

    A local in the caller's frame would keep the task alive in a cycle.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _call_and_read(function: Callable[..., Any], kwargs: dict[str, Any]) -> object:
    value = function(**kwargs)
    return _read_items(value) if _is_iterator(value) else value


async def _collect(value: object, name: str) -> object:
    if isinstance(value, AsyncIterator):
        found: list[object] = []
        async for item in cast("AsyncIterator[object]", value):
            found.append(item)
            _check_count(len(found))
        return found
    if _is_iterator(value):  # what comes out of it is made as it is read: not on the event loop
        return await run_in_thread(_read_items, {"items": value}, name=name)
    return value


def _is_iterator(value: object) -> bool:
    return isinstance(value, Iterator) and not isinstance(value, io.IOBase)


def _read_items(items: Iterator[object]) -> list[object]:
    found = list(islice(items, MAX_ITEMS + 1))
    _check_count(len(found))
    return found


def _check_count(count: int) -> None:
    if count > MAX_ITEMS:
        message = f"the function ran, but the iterator it returned has more than {MAX_ITEMS:,} items; return a list"
        raise ValueError(message)
