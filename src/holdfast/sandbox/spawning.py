"""Starting the processes of workers, in a thread of its own: the kernel ends a worker with the thread that started it.

That thread lasts as long as this process does. An event loop does not wait for it: on a busy machine, it takes a while
until a process has begun.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from holdfast.errors.programs import WorkerFailed
from holdfast.hands.shell import SandboxFailed, watchdog

_SIGNALS: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python ignores, and its children should not."""


class Spawned(NamedTuple):
    """A process that was started."""

    writes: int
    """Where it is written to."""
    reads: int
    """Where it is read from."""
    pidfd: int
    group: int
    """Its process group, if it has one of its own; 0 if not."""

    def kill(self) -> None:
        """Kill it with all of its group. It must not have been waited for yet."""
        if self.group:
            with suppress(ProcessLookupError):
                os.killpg(self.group, signal.SIGKILL)
            watchdog.forget(self.group)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of its pipes."""
        for descriptor in (self.writes, self.reads, self.pidfd):
            os.close(descriptor)


_Job: TypeAlias = "tuple[str, bool, asyncio.AbstractEventLoop, asyncio.Future[Spawned]]"


class _Spawner:
    """The thread, and what it is to start."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="holdfast programs", daemon=True).start()

    def _work(self) -> None:
        while True:
            path, confined, loop, done = self.jobs.get()
            made: Spawned | BaseException
            try:
                made = spawn(path, confined=confined)
            except BaseException as error:  # noqa: BLE001  whoever awaits it gets it
                made = error
            try:
                loop.call_soon_threadsafe(_settle, done, made)
            except RuntimeError:  # the loop is closed: nobody waits any more
                if isinstance(made, Spawned):
                    discard(made)


_spawner: _Spawner | None = None
_lock: Final = threading.Lock()


async def spawned(path: str, *, confined: bool) -> Spawned:
    """Start the program at `path`; `WorkerFailed` if that can't be."""
    global _spawner  # noqa: PLW0603  one for the process; after a fork, the thread is not there any more
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Spawned] = loop.create_future()
    with _lock:
        if _spawner is None or _spawner.owner != os.getpid():
            _spawner = _Spawner()
        _spawner.jobs.put((path, confined, loop, done))
    return await done


def _settle(done: asyncio.Future[Spawned], made: Spawned | BaseException) -> None:
    if done.done():
        if isinstance(made, Spawned):
            discard(made)
    elif isinstance(made, Spawned):
        done.set_result(made)
    else:
        done.set_exception(made)


def discard(made: Spawned) -> None:
    """End a process that nobody wants any more."""
    made.kill()
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, made.pidfd, os.WEXITED)
    made.close()


def spawn(path: str, *, confined: bool) -> Spawned:
    """Start a process with nothing but two pipes. A confined one gets a process group of its own, which is watched."""
    ours: list[int] = []
    theirs: list[int] = []
    try:
        for mine in (1, 0):
            pipe = os.pipe()
            ours.append(pipe[mine])
            theirs.append(pipe[1 - mine])
            os.set_blocking(pipe[mine], False)
        actions = [(os.POSIX_SPAWN_DUP2, theirs[0], 0), (os.POSIX_SPAWN_DUP2, theirs[1], 1)]
        # A confined one gets a group of its own; another one is in ours.
        process = os.posix_spawn(
            path,
            [path, "subprocess"],
            {},
            file_actions=actions,
            setpgroup=0 if confined else os.getpgrp(),
            setsigdef=_SIGNALS,
            setsigmask=(),
        )
        made = Spawned(ours[0], ours[1], _watched(process), process if confined else 0)
        return _begun(made) if confined else made
    except BaseException as error:
        for descriptor in ours:
            os.close(descriptor)
        if isinstance(error, OSError):
            raise WorkerFailed(error.strerror or str(error)) from error
        raise
    finally:
        for descriptor in theirs:
            os.close(descriptor)


def _begun(made: Spawned) -> Spawned:
    """Let a process that waits for its line go on, with its group watched."""
    try:
        watchdog.watch(made.group)
        with suppress(BrokenPipeError):  # it ended already
            os.write(made.writes, b"\n")
    except BaseException as error:
        made.kill()
        os.waitid(os.P_PIDFD, made.pidfd, os.WEXITED)
        os.close(made.pidfd)
        if isinstance(error, SandboxFailed):
            raise WorkerFailed(error.reason) from error
        raise
    return made


def _watched(process: int) -> int:
    try:
        return os.pidfd_open(process)
    except OSError:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise
