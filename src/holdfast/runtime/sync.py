"""`hf.open_sync` and `hf.run_sync`: Holdfast for code that is not async.

A runtime that `open_sync` opens lives on an event loop in a thread of its own. Its objects have the names and arguments
of the async ones; their methods wait. One class serves all of them: it passes each call to the async object, on its
loop. `sync.pyi`, which ``scripts/sync_stubs.py`` writes, gives the types.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from holdfast.errors import RuntimeStopped
from holdfast.errors.caller import RuntimeForked, WaitOnLoop
from holdfast.memory.handle import Memory
from holdfast.processes.service import Process, Processes
from holdfast.processes.tasks import Tasks
from holdfast.processes.work_item import ExternalWork
from holdfast.runtime.attachments import Attachments
from holdfast.runtime.host_call import HostCall
from holdfast.runtime.notifications import Notifications, PumpedNotification
from holdfast.runtime.open import open as open_runtime
from holdfast.runtime.open import run
from holdfast.runtime.runtime import Runtime
from holdfast.runtime.session import Session
from holdfast.runtime.subscriptions import Emitted, Subscription
from holdfast.runtime.turn import Turn
from holdfast.triggers.service import Trigger, Triggers

if TYPE_CHECKING:
    from types import TracebackType


T = TypeVar("T")
_END: Final = object()
OMITTED: Final[dict[str, frozenset[str]]] = {
    name: frozenset(words.split())
    for name, words in {
        "Runtime": "store redactor children serve",
        "Processes": """accept add answer_on_end as_declared begin begin_drive cancel close drive_of
            end_child find is_left leave procedure read register request_cancel send_signal settle settle_outside
            start stop_below stop_items stop_turn tell_stuck watch_turn""",
        "Notifications": "close gate_changed stop",
        "Tasks": "adopt find_tool note_recovery start task_for_call",
        "Triggers": "drive_of enabled_source every occurred stop targets",
        "Subscription": "start",
        "Attachments": "of_input",
    }.items()
}
"""Members left out: internal ones, and those that only async code can use."""


class LoopThread:
    """An event loop in a thread of its own, for callers in any other thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event
        self._ready = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="holdfast-loop", daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stopped.wait()

    def call(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine to its end. An interrupt (Ctrl-C) cancels it; work that was accepted goes on."""
        self._check(name)
        code = make()
        try:
            waiting = asyncio.run_coroutine_threadsafe(code, self._loop)
        except RuntimeError:  # the loop was closed in this moment
            code.close()
            raise RuntimeStopped from None
        try:
            return waiting.result()
        except concurrent.futures.CancelledError:
            if self._closed:
                raise RuntimeStopped from None
            raise
        except BaseException:
            waiting.cancel()
            raise

    @property
    def forked(self) -> bool:
        """True in a child of the process that started the thread."""
        return os.getpid() != self._pid

    def _check(self, name: str) -> None:
        if self.forked:
            raise RuntimeForked(self._pid)
        if threading.current_thread() is self._thread:
            raise WaitOnLoop(name)
        if self._closed:
            raise RuntimeStopped

    def post(self, code: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine some time, if the loop is there."""
        try:
            if not self.forked and not self._closed:
                asyncio.run_coroutine_threadsafe(code, self._loop)
                return
        except RuntimeError:
            pass
        code.close()

    def close(self) -> None:
        """Cancel everything that still runs, and end the thread."""
        if self._closed or self.forked:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()


class SyncHandle:
    """An object of the async API for callers that are not async: its methods wait."""

    __slots__ = ("_handle", "_thread")

    def __init__(self, thread: LoopThread, handle: Any) -> None:
        self._thread = thread
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in OMITTED.get(type(self._handle).__name__, ()):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self._handle, name)
        return partial(_call, self, name) if inspect.ismethod(found) else _as_sync(self._thread, found)

    def __dir__(self) -> list[str]:
        omitted = OMITTED.get(type(self._handle).__name__, ())
        return [name for name in dir(self._handle) if not name.startswith("_") and name not in omitted]

    def __repr__(self) -> str:
        return f"Sync{self._handle!r}"


def _call(self: SyncHandle, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the async object on its loop, and wait for the result."""
    method = getattr(self._handle, name)  # pyright: ignore[reportPrivateUsage]

    async def invoke() -> Any:
        found = method(*map(_as_async, args), **{name: _as_async(value) for name, value in kwargs.items()})
        # What a method that does not wait gives may have to be awaited, too: a trigger until it is durable.
        return await cast("Awaitable[Any]", found) if isinstance(found, Awaitable) else found

    thread = self._thread  # pyright: ignore[reportPrivateUsage]
    return _as_sync(thread, thread.call(name, invoke))


def _as_async(value: Any) -> Any:
    return value._handle if isinstance(value, SyncHandle) else value  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _as_sync(thread: LoopThread, value: Any) -> Any:
    facade = FACADES.get(cast("type[Any]", type(value)))
    if facade is not None:
        return facade(thread, value)
    if isinstance(value, AsyncIterator):
        return _iterate(thread, cast("AsyncIterator[Any]", value))
    if type(value) is list:
        return [_as_sync(thread, item) for item in cast("list[Any]", value)]
    return value


def _iterate(thread: LoopThread, items: AsyncIterator[Any]) -> Iterator[Any]:
    """The items, as they come. Each is asked for in the same context, as one task would."""

    async def following() -> Any:
        return await anext(items, _END)

    try:
        while (item := thread.call("next", following)) is not _END:
            yield _as_sync(thread, item)
    finally:
        if inspect.isasyncgen(items):
            thread.post(cast("Any", items.aclose()))


class SyncSession(SyncHandle):
    """`hf.Session`, for callers that are not async."""

    __slots__ = ()


class SyncTurn(SyncHandle):
    """`hf.Turn`, for callers that are not async."""

    __slots__ = ()


class SyncProcess(SyncHandle):
    """`hf.Process`, for callers that are not async."""

    __slots__ = ()


class SyncExternalWork(SyncHandle):
    """The handle of a work item, for callers that are not async."""

    __slots__ = ()


class SyncHostCall(SyncHandle):
    """The result of `runtime.call`, for callers that are not async."""

    __slots__ = ()


class SyncProcesses(SyncHandle):
    """`runtime.processes`, for callers that are not async."""

    __slots__ = ()


class SyncTasks(SyncHandle):
    """`runtime.tasks`, for callers that are not async."""

    __slots__ = ()


class SyncAttachments(SyncHandle):
    """`runtime.attachments`, for callers that are not async."""

    __slots__ = ()


class SyncMemory(SyncHandle):
    """`runtime.memory(scope)`, for callers that are not async."""

    __slots__ = ()


class SyncTriggers(SyncHandle):
    """`runtime.triggers`, for callers that are not async."""

    __slots__ = ()


class SyncTrigger(SyncHandle):
    """`hf.Trigger`, for callers that are not async."""

    __slots__ = ()


class SyncSubscription(SyncHandle):
    """`hf.Subscription`, for callers that are not async."""

    __slots__ = ()


class SyncNotifications(SyncHandle):
    """`runtime.notifications`, for callers that are not async."""

    __slots__ = ()


class SyncPumpedNotification(SyncHandle):
    """A notification in the hands of a pump, for callers that are not async."""

    __slots__ = ()


class SyncEmitted(SyncHandle):
    """`hf.Emitted`, for callers that are not async."""

    __slots__ = ()


class SyncRuntime(SyncHandle):
    """`hf.Runtime`, for callers that are not async; a context manager. Any thread may use it."""

    __slots__ = ("__weakref__",)

    @property
    def forked(self) -> bool:
        """True in a child of the process that opened it."""
        return self._thread.forked

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def on(self, kind: Any, handler: Callable[[Any], Any], **options: Any) -> Any:
        """Call `handler` with each event of a kind. A plain function runs in a thread, so it may use this runtime."""
        if inspect.iscoroutinefunction(handler):
            return _call(self, "on", kind, handler, **options)

        async def in_thread(event: Any) -> None:
            found = await asyncio.to_thread(handler, event)
            if inspect.isawaitable(found):
                await found

        return _call(self, "on", kind, in_thread, **options)

    def close(self, **options: Any) -> None:
        """Close the runtime, its store and its thread: short work finishes, the rest waits for the next runtime."""
        try:
            _call(self, "close", **options)
        except RuntimeStopped:
            return  # it was closed before
        finally:
            self._thread.close()


FACADES: Final[dict[type, type[SyncHandle]]] = {
    Runtime: SyncRuntime,
    Session: SyncSession,
    Turn: SyncTurn,
    Process: SyncProcess,
    Processes: SyncProcesses,
    ExternalWork: SyncExternalWork,
    HostCall: SyncHostCall,
    Tasks: SyncTasks,
    Attachments: SyncAttachments,
    Memory: SyncMemory,
    Triggers: SyncTriggers,
    Trigger: SyncTrigger,
    Subscription: SyncSubscription,
    Emitted: SyncEmitted,
    Notifications: SyncNotifications,
    PumpedNotification: SyncPumpedNotification,
}
_open: Final[weakref.WeakSet[SyncRuntime]] = weakref.WeakSet()


def _close_all() -> None:
    for runtime in list(_open):
        if not runtime.forked:
            runtime.close()


# `atexit` is too late: by then threads can't be started any more, and closing a store needs them.
threading._register_atexit(_close_all)  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def call_on_loop(runtime: SyncRuntime, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on the loop of a runtime, and wait for it."""
    return runtime._thread.call(name, make)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def open_sync(path: Any, **options: Any) -> SyncRuntime:
    """Open a store like `hf.open`, for code that is not async: ``with hf.open_sync("x.db", agents=[...]) as runtime:``.

    The event loop has a thread of its own, so this works from any thread, also from one with a running loop (notebooks,
    web servers). The methods of the runtime and of everything that it gives wait; events are plain iterators. Without a
    block, call `runtime.close()`; what is open at the end of the program is closed then. A forked child must open its
    own.
    """
    thread = LoopThread()

    async def opened() -> Runtime:
        return await open_runtime(path, **options)

    try:
        runtime = SyncRuntime(thread, thread.call("open_sync", opened))
    except BaseException:
        thread.close()
        raise
    _open.add(runtime)
    return runtime


def run_sync(agent: Any, prompt: str, **options: Any) -> Any:
    """Ask an agent once, like `hf.run`, for code that is not async. It also works where an event loop is running."""

    def asked() -> Any:
        return asyncio.run(run(agent, prompt, **options))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asked()
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="holdfast-run") as pool:
        return pool.submit(contextvars.copy_context().run, asked).result()
