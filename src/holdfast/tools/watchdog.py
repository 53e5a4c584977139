"""Who blocks the event loop: a tool that computes or waits without `await` stops every session of the process.

A thread asks the event loop for an answer while tools run on it. When the answer is late it says in the log which tool
it is, and where it stands. It can't stop it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast.perloop import PerLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import CodeType, FrameType

LATE: Final = 1.0
"""How many seconds the event loop may take to answer."""
EVERY: Final = 0.25
"""How often it is asked, in seconds."""

_WRAPPED: Final = 16
"""How many decorators are looked through."""

_log: Final = logging.getLogger("holdfast.tools")


# ---- the decision ----------------------------------------------------------------------------------------------------


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


# ---- who runs --------------------------------------------------------------------------------------------------------


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


# ---- the watch -------------------------------------------------------------------------------------------------------


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
