"""Calling a function that may do anything: off the event loop where it is plain, and never ending the process."""

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
from holdfast.tools.subprocesses import Spawned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable
    from types import CodeType, FrameType

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
        self._spawned = subprocesses.current()
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


LATE: Final = 1.0
"""How many seconds the event loop may take to answer."""
EVERY: Final = 0.25
"""How often it is asked, in seconds."""
_WRAPPED: Final = 16
"""How many decorators are looked through."""


@dataclass(frozen=True, slots=True)
class Running:
    """A call that runs on the event loop."""

    tool: str
    codes: frozenset[CodeType]
    """Of its function, and of those that the function wraps."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The event loop does not answer."""

    seconds: float
    tools: tuple[str, ...]
    """Who does it; or, if `certain` is not, who may."""
    certain: bool
    where: str
    """The place in the code at which it stands."""

    def __str__(self) -> str:
        who = ", ".join(repr(tool) for tool in self.tools) or "no tool that is known"
        said = f"the tool {who} blocks" if self.certain else f"something blocks (of the tools, {who} may be it)"
        return (
            f"{said} the event loop: no answer for {self.seconds:.1f} s, at {self.where}; every session waits. "
            "Make it a plain function, which runs in a thread, or await what it waits for"
        )


def judged(
    asked: float | None, now: float, stack: Iterable[tuple[CodeType, str]], running: Iterable[Running]
) -> Blocked | None:
    """Whether the loop that was asked at `asked` and has not answered is blocked, and by whom.

    `stack` is where its thread stands, the innermost first. The tool whose own code is in it is the one.
    """
    if asked is None or now - asked < LATE:
        return None
    frames, calls = list(stack), list(running)
    codes = {code for code, _ in frames}
    found = tuple(dict.fromkeys(call.tool for call in calls if call.codes & codes))
    named = found or tuple(dict.fromkeys(call.tool for call in calls))
    return Blocked(now - asked, named, bool(found), frames[0][1] if frames else "an unknown place")


Calls: TypeAlias = "dict[object, tuple[str, Callable[..., object] | None]]"
"""Calls under way, each with the name of its tool, and its function: by the code of that the watchdog knows it."""


class _Registry:
    """The calls that run on one event loop."""

    __slots__ = ("calls", "watch", "watchers")

    def __init__(self) -> None:
        self.calls: Calls = {}
        self.watch: _Watch | None = None
        self.watchers = 0


_registries: Final = PerLoop(_Registry)


def calls_here() -> Calls:
    """The calls that run on this event loop: whoever begins one puts it in, and takes it out at its end."""
    return _registries.here().calls


@lru_cache(maxsize=1024)
def _codes_of(function: Callable[..., object] | None) -> frozenset[CodeType]:
    found: list[CodeType] = []
    while function is not None and len(found) < _WRAPPED and hasattr(function, "__code__"):
        found.append(function.__code__)
        function = getattr(function, "__wrapped__", None)
    return frozenset(found)


@contextmanager
def watching(tell: Callable[[Blocked], None] | None = None) -> Generator[None]:
    """Watch this event loop meanwhile. It is watched once, however many do; `tell` is for the first of them."""
    loop = asyncio.get_running_loop()
    registry = _registries.of(loop)
    registry.watchers += 1
    if registry.watch is None:
        registry.watch = _Watch(loop, registry, tell or _tell)
        registry.watch.start()
    watch = registry.watch
    try:
        yield
    finally:
        registry.watchers -= 1
        if not registry.watchers:
            watch.stop()
            registry.watch = None


def _tell(blocked: Blocked) -> None:
    _log.warning("%s", blocked)


class _Watch:
    """The thread that asks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, registry: _Registry, tell: Callable[[Blocked], None]) -> None:
        self._loop = loop
        self._registry = registry
        self._tell = tell
        self._over = threading.Event()
        self._loop_thread = threading.get_ident()
        self._asked: float | None = None
        self._told = False
        self._thread = threading.Thread(target=self._work, name="holdfast watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def _work(self) -> None:
        try:
            while not self._over.wait(EVERY):
                self._look()
        except RuntimeError:  # the loop is closed
            return

    def _look(self) -> None:
        asked = self._asked
        if asked is None:
            if self._registry.calls:
                self._asked = time.monotonic()
                self._loop.call_soon_threadsafe(self._answer)
            return
        if self._told:
            return
        calls = tuple(Running(tool, _codes_of(of)) for tool, of in self._registry.calls.copy().values())
        blocked = judged(asked, time.monotonic(), _stack(self._loop_thread), calls)
        if blocked is not None and self._asked is not None:
            self._told = True
            self._tell(blocked)

    def _answer(self) -> None:
        """On the event loop."""
        if self._told and self._asked is not None:
            _log.warning("the event loop answers again, after %.1f s", time.monotonic() - self._asked)
        self._told = False
        self._asked = None


def _stack(thread: int) -> list[tuple[CodeType, str]]:
    """Where a thread stands, the innermost frame first."""
    frame: FrameType | None = sys._current_frames().get(thread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the only way to see another thread
    found: list[tuple[CodeType, str]] = []
    while frame is not None:
        code = frame.f_code
        found.append((code, f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"))
        frame = frame.f_back
    return found


MAX_ITEMS: Final = 100_000
"""How many items are read from an iterator that a function returns."""
_PLAIN: Final = frozenset((dict, list, tuple, str, int, float, bool, bytes, type(None)))
"""What most functions return: nothing that has to be waited for or read to its end."""


async def invoked(function: Callable[..., Any], kwargs: dict[str, Any], name: str, *, on_loop: bool) -> object:
    """What `function` returns. An iterator is read to its end, where the function ran. Logs call it `name`.

    `on_loop`: it is an async one. If this is cancelled, the processes that the function has started are ended, once it
    has had its say.
    """
    with Spawned(name) as spawned:
        running = calls_here()
        try:
            if on_loop:
                running[spawned] = name, function
                value = await function(**kwargs)
            else:
                value = await in_thread(_listed, {"function": function, "kwargs": kwargs}, name=name)
                if not _has_more(value):
                    return value
                running[spawned] = name, function  # it is an async function behind a plain one
                value = await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value
            return value if type(value) in _PLAIN else await _collected(value, name)
        except SystemExit as error:
            # One tool must not take all other sessions of the process with it.
            said = f"the function asked to end the process (exit code {error.code!r:.60}); it was not ended"
            raise RuntimeError(said) from error
        except asyncio.CancelledError:
            if _is_cancelled():  # otherwise it was something that the function awaited
                spawned.stop()
            raise
        finally:
            running.pop(spawned, None)


def _is_cancelled() -> bool:
    """Whether the current task is being cancelled. No frame of the caller keeps the task: that would be a cycle."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _has_more(value: object) -> bool:
    return inspect.isawaitable(value) or isinstance(value, AsyncIterator)


def _listed(function: Callable[..., Any], kwargs: dict[str, Any]) -> object:
    value = function(**kwargs)
    return _read(value) if _is_iterator(value) else value


async def _collected(value: object, name: str) -> object:
    if isinstance(value, AsyncIterator):
        found: list[object] = []
        async for item in cast("AsyncIterator[object]", value):
            found.append(item)
            _check_count(len(found))
        return found
    if _is_iterator(value):  # what comes out of it is made as it is read: not on the event loop
        return await in_thread(_read, {"items": value}, name=name)
    return value


def _is_iterator(value: object) -> bool:
    return isinstance(value, Iterator) and not isinstance(value, io.IOBase)


def _read(items: Iterator[object]) -> list[object]:
    found = list(islice(items, MAX_ITEMS + 1))
    _check_count(len(found))
    return found


def _check_count(count: int) -> None:
    if count > MAX_ITEMS:
        said = f"the function ran, but the iterator it returned has more than {MAX_ITEMS:,} items; return a list"
        raise ValueError(said)
