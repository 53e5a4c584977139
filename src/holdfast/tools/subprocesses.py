"""Processes that calls of tools start: when a call is stopped, so are they, with all that they have started themselves.

Python tells when somebody is about to start a program (`sys.addaudithook`), in the thread and in the context of whoever
does; that names the call, also in tasks and threads that `asyncio` makes for it. Which processes belong to a program is
what the kernel says. A call that was stopped starts nothing more: its thread can't be stopped, but it is refused.

Seen is what goes through `subprocess`, and so all of `asyncio`. Not seen are `os.fork`, `os.system`, `os.posix_spawn`,
`multiprocessing`, libraries that start processes in C, and threads that a function makes by itself, which have no
context. What has left its parents behind (a daemon) is found if it is in a session or group that such a program began.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping
    from types import FrameType


_PROC: Final = Path("/proc")
_ROUNDS: Final = 20
"""How often the processes of a call are looked for while new ones turn up."""
_KEPT: Final = 64
"""How many programs of one call are remembered before those that have ended are forgotten."""
_FRAMES: Final = 4
"""How far above the audit hook the one who starts a program is looked for."""
_STARTS: Final = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn"))
_log: Final = logging.getLogger("holdfast.tools")


class Process(NamedTuple):
    """A process, as the kernel tells of it."""

    parent: int
    group: int
    session: int
    began: int
    """In ticks since the machine started: with its number, it is this process and no other."""


def belonging(roots: Collection[int], table: Mapping[int, Process], me: int) -> set[int]:
    """The processes that the programs `roots`, which `me` has started, consist of now.

    A root that is no child of `me` any more is somebody else's by now, and so is what bears its number. One that is
    gone may have left others in the session or the group that it had begun.
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
    """A call that was stopped wants to start a process. It is raised in the function, which nobody waits for."""


class Spawned:
    """The programs that one call has started: within it, in tasks that are made there, and in threads for them."""

    __slots__ = ("_parent", "_programs", "_token", "abandoned", "name", "stopped")

    def __init__(self, name: str) -> None:
        if not _watching:
            _watch()
        self.name = name
        self.stopped = False
        """Nothing more is started for it."""
        self.abandoned = False
        """It left a thread behind that could not be stopped."""
        self._parent = _call.get()
        self._programs: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        self._token = _call.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _call.reset(self._token)

    def add(self, program: subprocess.Popen[Any]) -> None:
        """A program is about to be started; its number is known afterwards."""
        if len(self._programs) >= _KEPT:
            self._programs = [known for known in self._programs if known.returncode is None]
        self._programs.append(program)
        if self._parent is not None:
            self._parent.add(program)

    def abandon(self) -> None:
        """A thread goes on although the call is over."""
        self.abandoned = True
        if self._parent is not None:
            self._parent.abandon()

    @property
    def refused(self) -> bool:
        """Whether the call, or one around it, was stopped."""
        return self.stopped or (self._parent is not None and self._parent.refused)

    def stop(self) -> int:
        """End all processes of the call, and let it start no more; answers how many were ended."""
        self.stopped = True
        programs = [program for program in self._programs if getattr(program, "pid", None) is not None]
        # One that has ended may have left others behind, which only the kernel of Linux can tell.
        roots = {program.pid for program in programs if _LINUX or program.returncode is None}
        ended = _end(roots) if roots else 0
        if ended:
            _log.warning("%d processes that the tool %r had started were killed: it was stopped", ended, self.name)
        return ended


_call: Final[ContextVar[Spawned | None]] = ContextVar("spawned", default=None)
_LINUX: Final = sys.platform == "linux"
_watching = False


def current() -> Spawned | None:
    """The call that runs here."""
    return _call.get()


def _watch() -> None:
    global _watching  # noqa: PLW0603  a hook is for the process, and stays for ever
    if not _watching:
        _watching = True
        sys.addaudithook(_heard)


def _heard(event: str, _: tuple[object, ...]) -> None:
    if event not in _STARTS:
        return
    call = _call.get()
    if call is None:
        return
    if call.refused:
        message = f"the call of {call.name} was stopped; no process is started for it any more"
        raise CallStopped(message)
    if event == "subprocess.Popen":
        program = _starting(sys._getframe(1))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the event tells no process
        if program is not None:
            call.add(program)


def _starting(frame: FrameType | None) -> subprocess.Popen[Any] | None:
    """The program that is being started: the object whose method has raised the event."""
    for _ in range(_FRAMES):
        if frame is None:
            return None
        found = frame.f_locals.get("self")
        if isinstance(found, subprocess.Popen):
            return cast("subprocess.Popen[Any]", found)
        frame = frame.f_back
    return None


def _end(roots: Collection[int]) -> int:
    """End all processes of these programs; answers how many there were."""
    if not _LINUX:
        return sum(_killed(pid) for pid in roots)
    held: dict[int, Process] = {}
    me = os.getpid()
    for _ in range(_ROUNDS):
        table = dict(_processes())
        new = belonging(roots, table, me) - held.keys()
        if not new:
            break
        for pid in new:  # held before they are ended: nothing can begin others meanwhile, and all stay where they are
            if _signalled(pid, table[pid], signal.SIGSTOP):
                held[pid] = table[pid]
    return sum(_signalled(pid, process, signal.SIGKILL) for pid, process in held.items())


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _signalled(pid: int, process: Process, number: signal.Signals) -> bool:
    """Send a signal to this very process, and to no other that has its number by now; whether that was possible."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The handle stands for whoever had the number when it was made; after that, the number can't deceive.
        found = _process(pid)
        if found is None or found.began != process.began:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _processes() -> Generator[tuple[int, Process]]:
    """Everything that runs."""
    with os.scandir(_PROC) as entries:
        for entry in entries:
            found = _process(int(entry.name)) if entry.name.isdecimal() else None
            if found is not None:
                yield int(entry.name), found


def _process(pid: int) -> Process | None:
    """A process, if it runs."""
    try:
        told = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name of the program stands in brackets and may hold anything.
    state, parent, group, session, *rest = told[told.rindex(b")") + 2 :].split()
    return None if state in {b"Z", b"X"} else Process(int(parent), int(group), int(session), int(rest[15]))
