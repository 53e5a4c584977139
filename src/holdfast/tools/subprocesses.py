"""Processes started by tool calls: a stopped call takes its processes with it, and all that these have started.

An audit hook (`sys.addaudithook`) sees a program before it starts, in the thread and context of the caller; the context
names the call, also in tasks and threads that `asyncio` makes. The kernel knows which processes belong to a program. A
stopped call can start nothing more: its thread can't be stopped, so the hook raises in it.

The hook tracks `subprocess`, and so all of `asyncio`. It does not track `os.fork`, `os.system`, `os.posix_spawn`,
`multiprocessing`, libraries that start processes in C, and threads that a function creates by itself, which have no
context. A daemon is found if it stays in a session or group that a tracked program began.
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
    from collections.abc import Collection, Mapping
    from types import FrameType


_PROC: Final = Path("/proc")
_ROUNDS: Final = 20
"""Scans for new processes of a call before it gives up."""
_MAX_PROGRAMS: Final = 64
"""Programs remembered for one call before ended ones are dropped."""
_FRAMES: Final = 4
"""Frames above the audit hook in which the `Popen` object is searched."""
_STARTS: Final = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn"))
_log: Final = logging.getLogger("holdfast.tools")


class ProcessInfo(NamedTuple):
    """A process in the kernel's table."""

    parent: int
    group: int
    session: int
    began: int
    """In ticks since boot. With its pid, it identifies one process for ever."""


def find_process_tree(roots: Collection[int], table: Mapping[int, ProcessInfo], me: int) -> set[int]:
    """The running processes of the programs `roots`, which the process `me` has started.

    A root that is no child of `me` any more is another process with a reused pid. A root that is gone may have left
    others in its session or group.
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
        """It may start nothing more."""
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
        """Whether this call, or one around it, was stopped."""
        return self.stopped or (self._parent is not None and self._parent.refused)

    def stop(self) -> int:
        """Kill all processes of the call and refuse new ones; returns the number of killed ones."""
        self.stopped = True
        programs = [program for program in self._programs if getattr(program, "pid", None) is not None]
        # A program that has ended may have left processes behind; only Linux tells which.
        roots = {program.pid for program in programs if _LINUX or program.returncode is None}
        ended = _kill_trees(roots) if roots else 0
        if ended:
            _log.warning("%d processes that the tool %r had started were killed: it was stopped", ended, self.name)
        return ended


_call: Final[ContextVar[CallProcesses | None]] = ContextVar("spawned", default=None)
_LINUX: Final = sys.platform == "linux"
_hooked = False


def current_call() -> CallProcesses | None:
    """The processes of the call that runs in this context."""
    return _call.get()


def _audit(event: str, _: tuple[object, ...]) -> None:
    if event not in _STARTS:
        return
    call = _call.get()
    if call is None:
        return
    if call.refused:
        message = f"the call of {call.name} was stopped; no process is started for it any more"
        raise CallStopped(message)
    if event == "subprocess.Popen":
        program = _find_popen(sys._getframe(1))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the event tells no process
        if program is not None:
            call.add(program)


def _find_popen(frame: FrameType | None) -> subprocess.Popen[Any] | None:
    """The `Popen` object whose method raised the audit event."""
    for _ in range(_FRAMES):
        if frame is None:
            return None
        found = frame.f_locals.get("self")
        if isinstance(found, subprocess.Popen):
            return cast("subprocess.Popen[Any]", found)
        frame = frame.f_back
    return None


def _kill_trees(roots: Collection[int]) -> int:
    if not _LINUX:
        return sum(_kill(pid) for pid in roots)
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


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def _send_signal(pid: int, process: ProcessInfo, number: signal.Signals) -> bool:
    """Signal this very process, and no other that reuses its pid; whether that was possible."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The handle refers to the process that had the pid when it was opened, whatever happens to the pid later.
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
