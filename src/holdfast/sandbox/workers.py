"""A worker: one process in its sandbox, and the thread that started it, which the kernel ends it with.

Everything that blocks happens in the thread; what it finds comes back to the event loop of whoever asked.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from holdfast.errors.programs import ProgramOver, WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    import pydantic_monty as monty

    from holdfast.sandbox.limits import ProgramLimits

T = TypeVar("T")

START_SECONDS: Final = 20.0
"""How long a worker may take to come up."""
_GRACE: Final = 5.0
"""How long a worker may take to stop by itself what is over its time, before it is killed."""
_REPLAYING: Final = 4.0
_END_SECONDS: Final = 10.0

_Job: TypeAlias = "tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]] | None"


class Worker:
    """One process for one program."""

    __slots__ = ("_ended", "_jobs", "_lock", "_path", "_pidfd", "_pool", "_seconds", "_waiters", "closed")

    def __init__(self, path: str, limits: ProgramLimits) -> None:
        self.closed = False
        self._path = path
        self._seconds = limits.seconds * _REPLAYING + 2 * _GRACE
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pidfd: int | None = None
        self._pool: monty.Monty | None = None
        self._ended = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        threading.Thread(target=self._work, name="holdfast program", daemon=True).start()

    async def do(self, job: Callable[[monty.Monty], T]) -> T:
        """Do something in the worker's thread."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        if self.closed:
            raise ProgramOver("it was closed")
        self._jobs.put((lambda: job(self._started()), loop, done))
        return await done

    def watch(self, number: int | None) -> None:
        """In the thread: the process that is to be killed when it must end at once."""
        if number is None:
            return
        with self._lock, suppress(OSError):
            if self._pidfd is None and not self.closed:
                self._pidfd = os.pidfd_open(number)

    def kill(self) -> None:
        """End the process, whatever it does. What the thread was waiting for fails, and the thread ends."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._jobs.put(None)
            if self._pidfd is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def end(self) -> None:
        """Kill it, and wait until nothing of it is left."""
        self.kill()
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._ended:
                return
            self._waiters.append((loop, gone))
        await asyncio.wait((gone,), timeout=_END_SECONDS)

    # ---- in the thread ----

    def _started(self) -> monty.Monty:
        if self._pool is None:
            import pydantic_monty as monty  # noqa: PLC0415  loaded with the first program

            pool = monty.Monty(
                binary_path=self._path,
                min_processes=1,
                max_processes=1,
                checkout_timeout=START_SECONDS,
                request_timeout=self._seconds,
                max_checkouts_per_worker=1,
                feed_duration_limit_grace=_GRACE,
                turn_duration_limit_grace=_GRACE,
            )
            try:
                self._pool = pool.__enter__()
            except (monty.MontyError, OSError, RuntimeError) as error:
                raise WorkerFailed(str(error)[:300]) from error
        return self._pool

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                _do(*job)
        finally:
            self._finish()

    def _finish(self) -> None:
        try:
            if self._pool is not None:
                with suppress(Exception):  # the process is gone already, and this is the end of its thread
                    self._pool.__exit__(None, None, None)
        finally:
            with self._lock:
                self.closed = True
                pidfd, self._pidfd = self._pidfd, None
            if pidfd is not None:
                _reap(pidfd)
            with self._lock:
                self._ended = True
                waiters, self._waiters = self._waiters, []
            for loop, gone in waiters:
                _settle(loop, gone, None, None)


def _reap(pidfd: int) -> None:
    """Wait until the process is gone, and let the kernel forget it: who started it does not."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    os.close(pidfd)


def _do(job: Callable[[], Any], loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any]) -> None:
    value: object = None
    failure: BaseException | None = None
    try:
        value = job()
    except Exception as error:  # noqa: BLE001  whoever awaits it gets it
        failure = error

    _settle(loop, done, value, failure)


def _settle(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], value: object, failure: BaseException | None
) -> None:
    def settle() -> None:
        if done.done():
            return
        if failure is None:
            done.set_result(value)
        else:
            done.set_exception(failure)

    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(settle)
