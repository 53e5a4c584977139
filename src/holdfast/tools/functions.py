"""Calls of a tool's function: limits on calls at once, processes, threads for plain functions, and a watchdog.

A function may do anything: it may block, never end, or ask to end the process. One tool must not stop the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from subprocess import Popen
from traceback import walk_stack
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

from holdfast.eventloop import CallSlot, PerLoop, SlotGate, current_slot
from holdfast.names import check_int
from holdfast.policy.limits import MAX_CALLS

if TYPE_CHECKING:
    from types import CodeType

    from holdfast.tools.definition import AnyTool


# ---- limits on calls at once ----

_log: Final = logging.getLogger("holdfast.tools")


class LoopCalls:
    """The calls of tools on one event loop: their slots, their threads, and the watchdog."""

    def __init__(self) -> None:
        self.shared = SlotGate(MAX_CALLS)
        self.limits: list[int] = []
        """Limits of all open runtimes: the lowest counts."""
        self._tools: dict[Callable[..., Any], SlotGate] = {}
        self.threads = asyncio.Semaphore(MAX_THREADS)
        self.running: dict[object, tuple[str, Callable[..., object] | None]] = {}
        """Running calls, each with its tool's name and its function: the watchdog recognizes the function's code."""
        self.watchdog: _Watchdog | None = None
        self.watchers = 0

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


calls_here: Final = PerLoop(LoopCalls).here
"""The calls of tools on the running event loop."""


@contextmanager
def limit_calls(calls: int) -> Generator[None]:
    """Limit the calls at once on this event loop inside the block; of several limits, the lowest counts."""
    check_int("max_calls", calls, least=1)
    here = calls_here()
    here.limits.append(calls)
    here.shared.widen(min(here.limits))
    try:
        yield
    finally:
        here.limits.remove(calls)
        here.shared.widen(min(here.limits, default=MAX_CALLS))


# ---- processes that a call starts ----
#
# A stopped call takes its processes with it, and all that these have started. An audit hook (`sys.addaudithook`) sees a
# program before it starts, in the thread and context of the caller; the context names the call, also in tasks and
# threads that `asyncio` makes. The kernel knows which processes belong to a program. A stopped call can start nothing
# more: its thread can't be stopped, so the hook raises in it.
#
# The hook tracks `subprocess`, and so all of `asyncio`. It does not track `os.fork`, `os.system`, `os.posix_spawn`,
# `multiprocessing`, libraries that start processes in C, and threads that a function creates by itself, which have no
# context. A daemon is found if it stays in a session or group that a tracked program began.

_PROC: Final = Path("/proc")
_ROUNDS: Final = 20
"""Scans for new processes of a call before it gives up."""
_MAX_PROGRAMS: Final = 64
"""Programs remembered for one call before ended ones are dropped."""
_FRAMES: Final = 4
"""Frames above the audit hook in which the `Popen` object is searched."""
_STARTS: Final = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn"))


class ProcessInfo(NamedTuple):
    """A process in the kernel's table."""

    parent: int
    group: int
    session: int
    began: int
    """In ticks since boot. Together with the pid, it identifies one process for ever."""


def find_process_tree(roots: Collection[int], table: Mapping[int, ProcessInfo], me: int) -> set[int]:
    """The running processes of the programs `roots`, which the process `me` has started.

    A root that is no longer a child of `me` is another process with a reused pid. A dead root may have left others in
    its session or group.
    """
    ours = {pid for pid in roots if pid in table and table[pid].parent == me}
    gone = {pid for pid in roots if pid not in table}
    found = ours | {pid for pid, process in table.items() if gone & {process.group, process.session}}
    below: dict[int, list[int]] = {}
    for pid, process in table.items():
        below.setdefault(process.parent, []).append(pid)
    left = list(found)
    while left:
        new = [pid for pid in below.get(left.pop(), ()) if pid not in found]
        found.update(new)
        left += new
    return found - {me}


class CallStopped(RuntimeError):
    """A stopped call tried to start a process. Raised inside the tool's function."""


class CallProcesses:
    """The programs that one call has started, also from its tasks and threads."""

    __slots__ = ("_parent", "_programs", "_token", "abandoned", "name", "stopped")

    def __init__(self, name: str) -> None:
        global _hooked  # noqa: PLW0603  a hook is for the process, and stays for ever
        if not _hooked:
            _hooked = True
            sys.addaudithook(_audit)
        self.name = name
        self.stopped = False
        """The call may start no more processes."""
        self.abandoned = False
        """The call left a thread behind that could not be stopped."""
        self._parent = _call.get()
        self._programs: list[Popen[Any]] = []

    def __enter__(self) -> Self:
        self._token = _call.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _call.reset(self._token)

    def add(self, program: Popen[Any]) -> None:
        """Remember a program that is about to start; its pid is known only afterwards."""
        if len(self._programs) >= _MAX_PROGRAMS:
            self._programs = [known for known in self._programs if known.returncode is None]
        self._programs.append(program)
        if self._parent is not None:
            self._parent.add(program)

    def abandon(self) -> None:
        self.abandoned = True
        if self._parent is not None:
            self._parent.abandon()

    @property
    def refused(self) -> bool:
        """True if this call, or one around it, was stopped."""
        return self.stopped or (self._parent is not None and self._parent.refused)

    def stop(self) -> None:
        """Kill all processes of the call and refuse new ones."""
        self.stopped = True
        programs = [program for program in self._programs if getattr(program, "pid", None) is not None]
        # A program that has ended may have left processes behind; only Linux tells which.
        roots = {program.pid for program in programs if _LINUX or program.returncode is None}
        ended = _kill_trees(roots) if roots else 0
        if ended:
            _log.warning("%d processes that the tool %r had started were killed: it was stopped", ended, self.name)


_call: Final[ContextVar[CallProcesses | None]] = ContextVar("spawned", default=None)
_LINUX: Final = sys.platform == "linux"
_hooked = False


def _audit(event: str, _: tuple[object, ...]) -> None:
    if event not in _STARTS:
        return
    call = _call.get()
    if call is None:
        return
    if call.refused:
        raise CallStopped(f"the call of {call.name} was stopped; no process is started for it any more")
    if event == "subprocess.Popen":
        # The event tells no process: it is the `Popen` object whose method raised it.
        for frame, _line in islice(walk_stack(sys._getframe(1)), _FRAMES):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            if isinstance(program := frame.f_locals.get("self"), Popen):
                call.add(cast("Popen[Any]", program))
                break


def _kill_trees(roots: Collection[int]) -> int:
    killed = 0
    if not _LINUX:
        for pid in roots:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        return killed
    held: dict[int, ProcessInfo] = {}
    me = os.getpid()
    for _ in range(_ROUNDS):
        with os.scandir(_PROC) as entries:
            found = {int(entry.name): _read_process(int(entry.name)) for entry in entries if entry.name.isdecimal()}
        table = {pid: process for pid, process in found.items() if process is not None}
        new = find_process_tree(roots, table, me) - held.keys()
        if not new:
            break
        for pid in new:  # stopped before they are killed: a stopped process starts no others
            if _send_signal(pid, table[pid], signal.SIGSTOP):
                held[pid] = table[pid]
    return sum(_send_signal(pid, process, signal.SIGKILL) for pid, process in held.items())


def _send_signal(pid: int, process: ProcessInfo, number: signal.Signals) -> bool:
    """Signal exactly this process, never another that reuses its pid; False if that was impossible."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The handle refers to the process that had the pid when it was opened, even if the pid is reused.
        found = _read_process(pid)
        if found is None or found.began != process.began:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _read_process(pid: int) -> ProcessInfo | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The program's name is in brackets and may contain anything.
    state, parent, group, session, *rest = stat[stat.rindex(b")") + 2 :].split()
    return None if state in {b"Z", b"X"} else ProcessInfo(int(parent), int(group), int(session), int(rest[15]))


# ---- threads for plain functions ----

MAX_THREADS: Final = 256
"""Largest number of plain functions at once; further ones wait."""
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
    slots = calls_here().threads
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
        except BaseException as raised:  # the caller gets it
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
    """One call in a thread, as the event loop sees it."""

    __slots__ = ("_begun", "_finished", "_slots", "_spawned", "ended", "loop", "name", "place")

    def __init__(self, loop: asyncio.AbstractEventLoop, slots: asyncio.Semaphore, name: str) -> None:
        self.ended: asyncio.Future[object] = loop.create_future()
        self.name = name
        self.place = current_slot.get()
        self._spawned = _call.get()
        self.loop = loop
        self._slots = slots
        self._begun = time.monotonic()
        self._finished = False

    def over(self) -> None:
        """Called in the thread when the function has ended."""
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


@lru_cache(maxsize=1024)
def _codes_of(function: Callable[..., object] | None) -> frozenset[CodeType]:
    found: list[CodeType] = []
    while isinstance(function, partial):
        function = cast("Callable[..., object]", function.func)
    while function is not None and len(found) < _MAX_WRAPPERS and hasattr(function, "__code__"):
        found.append(function.__code__)
        function = getattr(function, "__wrapped__", None)
    return frozenset(found)


def describe_block(
    seconds: float, stack: list[tuple[CodeType, str]], running: Iterable[tuple[str, Callable[..., object] | None]]
) -> str:
    """Name the tool that blocks an event loop; or all running ones, if the loop's stack has the code of none.

    `stack` is the stack of the loop's thread, innermost frame first.
    """
    calls, codes = list(running), {code for code, _ in stack}
    guilty = dict.fromkeys(tool for tool, function in calls if _codes_of(function) & codes)
    who = ", ".join(map(repr, guilty or dict.fromkeys(tool for tool, _ in calls))) or "no tool that is known"
    said = f"the tool {who} blocks" if guilty else f"something blocks (of the tools, {who} may be it)"
    where = stack[0][1] if stack else "an unknown place"
    return (
        f"{said} the event loop: no answer for {seconds:.1f} s, at {where}; every session waits. "
        "Make it a plain function, which runs in a thread, or await what it waits for"
    )


@contextmanager
def watch_event_loop() -> Generator[None]:
    """Watch this event loop inside the block, and log the code that blocks it. One thread watches for all callers."""
    here = calls_here()
    here.watchers += 1
    if here.watchdog is None:
        here.watchdog = _Watchdog(here)
    watchdog = here.watchdog
    try:
        yield
    finally:
        here.watchers -= 1
        if not here.watchers:
            watchdog.stopped.set()
            here.watchdog = None


class _Watchdog:
    """A thread that probes the event loop."""

    def __init__(self, calls: LoopCalls) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = calls
        self.stopped = threading.Event()
        self._loop_thread = threading.get_ident()
        self._asked: float | None = None
        self._reported = False
        threading.Thread(target=self._run, name="holdfast watchdog", daemon=True).start()

    def _run(self) -> None:
        try:
            while not self.stopped.wait(PROBE_INTERVAL):
                self._probe()
        except RuntimeError:  # the loop is closed
            return

    def _probe(self) -> None:
        asked = self._asked
        if asked is None:
            if self._calls.running:
                self._asked = time.monotonic()
                self._loop.call_soon_threadsafe(self._answer)
            return
        seconds = time.monotonic() - asked
        if self._reported or seconds < MAX_SILENCE:
            return
        said = describe_block(seconds, _stack(self._loop_thread), self._calls.running.copy().values())
        if self._asked is not None:
            self._reported = True
            _log.warning("%s", said)

    def _answer(self) -> None:
        if self._reported and self._asked is not None:
            _log.warning("the event loop answers again, after %.1f s", time.monotonic() - self._asked)
        self._reported = False
        self._asked = None


def _stack(thread: int) -> list[tuple[CodeType, str]]:
    """The stack of a thread, innermost frame first."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the only way to see another thread
    frames = () if frame is None else walk_stack(frame)
    return [(code := frame.f_code, f"{code.co_filename}:{line} in {code.co_qualname}") for frame, line in frames]


# ---- one call ----

MAX_ITEMS: Final = 100_000
"""Largest number of items read from an iterator that a function returns."""
_PLAIN: Final = frozenset((dict, list, tuple, str, int, float, bool, bytes, type(None)))
"""Common result types, which are neither awaited nor iterated."""


async def invoke_function(function: Callable[..., Any], kwargs: dict[str, Any], name: str, *, on_loop: bool) -> object:
    """Call `function` and return its result; an iterator is read into a list. Logs call the function `name`.

    `on_loop`: it is async and runs here; any other runs in a thread. After a cancellation, the processes that the
    function started are killed.
    """
    with CallProcesses(name) as spawned:
        running = calls_here().running
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
            # One tool must not end all other sessions of the process.
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
    """True if the current task is being cancelled.

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
    # An iterator runs code when it is read: not on the event loop.
    return await run_in_thread(_read_items, {"items": value}, name=name) if _is_iterator(value) else value


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
