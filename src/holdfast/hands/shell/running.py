"""One command from its start to the end of all that it started.

Everything here blocks: it runs in a thread of its own. The thread is also the parent of the sandbox, which the kernel
ends when its parent does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from holdfast.hands.shell import watchdog
from holdfast.hands.shell.cgroups import Group
from holdfast.hands.shell.confinement import IN_MEMORY, Confinement, arguments, beginning
from holdfast.hands.shell.cutting import Clip, Notes
from holdfast.hands.shell.errors import SandboxFailed, SandboxUnavailable, WorkspaceRefused
from holdfast.hands.shell.guard import Guard
from holdfast.hands.shell.inspection import Findings
from holdfast.hands.shell.sandbox import (
    MAX_FILE,
    MAX_PROCESSES,
    MAX_SEGMENTS,
    Files,
    binds_open_files,
    limit,
    shell_program,
    shown_tree,
    trusted,
)
from holdfast.hands.shell.settings import WORKSPACE, environment
from holdfast.hands.shell.usage import Bounds, Usage
from holdfast.store.beside import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.hands.shell.cutting import Shown
    from holdfast.hands.shell.settings import Settings

_CHUNK: Final = 1 << 16
_NOTE: Final = 1_000
_BETWEEN_NOTES: Final = 0.1
_BETWEEN_LOOKS: Final = 0.1
_BETWEEN_STATES: Final = 0.001
_START_SECONDS: Final = 20.0
_END_SECONDS: Final = 10.0
_STATUS: Final = 4_096

Why = Literal["ended", "timeout", "stopped", "crowded", "over"]
"""What ended a command: itself, its time, whoever asked for it, too many processes, or another limit."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `code` is None for one that was killed."""

    code: int | None
    shown: Shown
    why: Why
    limit: str = ""
    """Which limit it went over."""
    findings: Findings = field(default_factory=Findings)
    """What appeared in the workspace meanwhile."""


class Stop:
    """Tells a running command from another thread that it must end."""

    __slots__ = ("_closed", "_descriptor", "_lock", "asked")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False
        self.asked = False

    def fileno(self) -> int:
        """Readable when it was asked for."""
        return self._descriptor

    def ask(self) -> None:
        """End the command, and all that it started."""
        with self._lock:
            self.asked = True
            if not self._closed:
                os.eventfd_write(self._descriptor, 1)

    def close(self) -> None:
        """Nothing is left to be ended."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class _Child:
    """A command that waits for its line to begin, with the process whose end is the end of all."""

    process: subprocess.Popen[bytes]
    end: Callable[[], None]
    """Ends the command and all that it started, and waits for that."""
    failed: Callable[[], bool]
    """Whether the sandbox broke before it had a command in it."""
    crowded: Callable[[], bool]
    """Whether it has more processes than it may. The kernel's own limit does not hold for root."""
    exceeded: Callable[[], str | None]
    """What else it took too much of."""
    inspect: Callable[[], Findings]
    """Looks for what it left in the workspace, once all of it has ended."""


def run(settings: Settings, command: str, seconds: float, tell: Callable[[str], None], stop: Stop) -> Ended:
    """Run a command to its end, `seconds` at most; `tell` gets its output as it comes."""
    try:
        if stop.asked:
            return Ended(None, Clip(settings.output).shown(), "stopped")
        start = _confined if settings.sandboxed else _bare
        with start(settings, command) as child:
            try:
                ended = _followed(child, settings, seconds, tell, stop)
            finally:
                child.end()
                findings = child.inspect()
            return replace(ended, findings=findings)
    finally:
        stop.close()


def _followed(child: _Child, settings: Settings, seconds: float, tell: Callable[[str], None], stop: Stop) -> Ended:
    clip = Clip(settings.output)
    _say_begin(child.process)
    why, limit = _read(child, time.monotonic() + seconds, clip, _Telling(tell), stop)
    child.end()
    if why != "ended":
        return Ended(None, clip.shown(), why, limit)
    code = child.process.wait()
    if child.failed():
        raise SandboxFailed(" ".join(clip.shown().text.split())[:300] or f"bubblewrap ended with {code}")
    return Ended(code if code >= 0 else 128 - code, clip.shown(), why)


def _say_begin(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # it ended already
            process.stdin.write(b"\n")
            process.stdin.flush()
        with suppress(BrokenPipeError):
            process.stdin.close()


class _Telling:
    """Passes output on, a note every now and then."""

    __slots__ = ("_next", "_notes", "_tell")

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._notes = Notes(_NOTE)
        self._next = 0.0

    def add(self, chunk: bytes) -> None:
        self._notes.add(chunk)
        self.tick()

    def tick(self) -> None:
        if time.monotonic() >= self._next:
            self._pass_on(self._notes.take())

    def end(self) -> None:
        self._pass_on(self._notes.rest())

    def _pass_on(self, note: str | None) -> None:
        if note is not None:
            self._next = time.monotonic() + _BETWEEN_NOTES
            self._tell(note)


def _read(child: _Child, until: float, clip: Clip, telling: _Telling, stop: Stop) -> tuple[Why, str]:
    """Read the output until the command ends, or must; answers why, and which limit it went over.

    Something that a bare command left behind may keep the output open for ever, so it is the end of the command that
    counts, with all that it had written by then.
    """
    assert child.process.stdout is not None  # noqa: S101  it was opened as a pipe
    output = child.process.stdout.fileno()
    leader = os.pidfd_open(child.process.pid)
    poll = select.poll()
    for descriptor in (output, leader, stop.fileno()):
        poll.register(descriptor, select.POLLIN)
    look = 0.0
    try:
        while True:
            now = time.monotonic()
            if now >= until or stop.asked:
                return "stopped" if stop.asked else "timeout", ""
            if now >= look:
                look = now + _BETWEEN_LOOKS
                if child.crowded():
                    return "crowded", ""
                over = child.exceeded()
                if over is not None:
                    return "over", over
            ready = {descriptor for descriptor, _ in poll.poll(min(until - now, _BETWEEN_LOOKS) * 1000 + 1)}
            telling.tick()
            if output in ready:
                chunk = os.read(output, _CHUNK)
                if not chunk:
                    poll.unregister(output)
                clip.add(chunk)
                telling.add(chunk)
            elif leader in ready:
                return "ended", ""
    finally:
        telling.end()
        os.close(leader)


# ---- in a sandbox ----------------------------------------------------------------------------------------------------


@contextmanager
def _confined(settings: Settings, command: str) -> Generator[_Child]:
    bwrap = trusted("bwrap")
    if bwrap is None:  # it was there when the shell was made
        raise SandboxUnavailable("bubblewrap (bwrap) is gone", "install it again")
    with ExitStack() as stack:
        guard: Guard | None = None
        if settings.profile != "read":
            guard = Guard(settings.workspace, settings.protection, deep=binds_open_files(bwrap))
            stack.callback(guard.close)
        deeper = () if guard is None else guard.binds
        group = Group(settings.control_groups, settings.memory, MAX_PROCESSES)
        stack.callback(group.remove)
        files = stack.enter_context(Files(None if group.bounds_memory else settings.memory // MAX_SEGMENTS))
        confinement = Confinement(
            bwrap=bwrap,
            tree=shown_tree(settings.profile),
            workspace=settings.workspace,
            profile=settings.profile,
            covers=() if guard is None else guard.covers,
            memory=settings.memory,
            descriptors=files.descriptors,
            hidden=_store_folders(settings.workspace),
            deeper=deeper,
        )
        passed = (*files.descriptors.all(), *(bind.descriptor for bind in deeper))
        process = _started(arguments(confinement, shell_program(), command), settings, passed, "/")
        stack.callback(_closed, process)
        sandbox = _Sandbox(process, files.status)
        stack.callback(sandbox.end)
        watchdog.watch(process.pid)
        files.begin()
        files.handed_over()
        if guard is not None:
            guard.handed_over()
        sandbox.await_first(group, settings)
        files.begin()
        sandbox.await_bound()
        covers = () if guard is None else guard.covers
        bounds = Bounds(
            memory=None if group.bounds_memory else settings.memory,
            folders=(*IN_MEMORY, *(f"{WORKSPACE}/{cover.path}" for cover in covers if cover.kind == "stand-in")),
            workspace=None if guard is None else settings.workspace,
            workspace_bytes=settings.workspace_bytes,
            workspace_files=settings.workspace_files,
        )
        usage = Usage(sandbox.inside, bounds)
        inspect = Findings if guard is None else guard.inspect
        yield _Child(process, sandbox.end, sandbox.failed, sandbox.crowded, usage.exceeded, inspect)


def _store_folders(workspace: str) -> tuple[str, ...]:
    """The store folder at the top of a workspace, if it is there. A link could lead anywhere in the workspace."""
    path = os.path.join(workspace, FOLDER)  # noqa: PTH118
    if os.path.islink(path):  # noqa: PTH114
        raise WorkspaceRefused(workspace, f"{FOLDER} is a symbolic link; put a folder there")
    return (FOLDER,) if os.path.isdir(path) else ()  # noqa: PTH112


class _Sandbox:
    """A running bubblewrap. The first process of its namespace is the one whose end ends all others."""

    __slots__ = ("_ended", "_first", "_number", "_process", "_said", "_status")

    def __init__(self, process: subprocess.Popen[bytes], status: int) -> None:
        self._process = process
        self._status = status
        self._first: int | None = None
        self._number = 0
        self._said = b""
        self._ended = False

    def await_first(self, group: Group, settings: Settings) -> None:
        """Bound the first process before it starts another. If the sandbox breaks before, its output says why."""
        until = time.monotonic() + _START_SECONDS
        while b"\n" not in self._said:
            if not self._hear(until):
                if time.monotonic() >= until:
                    raise SandboxFailed(f"it was not there after {_START_SECONDS:g} s")
                return
        number = _number(self._said, "child-pid")
        if number is None:
            raise SandboxFailed(f"bubblewrap said {self._said[:100]!r} in the place of a process number")
        try:
            self._first = os.pidfd_open(number)
            self._number = number
            limit(number, settings.memory, min(settings.workspace_bytes, MAX_FILE))
            group.take_in(number)
        except ProcessLookupError:
            return
        except OSError as error:
            raise SandboxFailed(f"its limits could not be set ({error.strerror})") from error

    def await_bound(self) -> None:
        """Wait until the first process ends with bubblewrap: only then may the command begin.

        It asks the kernel for that after it has started the command, and puts on its filter right afterwards.
        """
        until = time.monotonic() + _START_SECONDS
        while self._first is not None and not _is_filtered(self._number):
            if _readable(self._first, _BETWEEN_STATES):
                return  # it has ended
            if time.monotonic() >= until:
                raise SandboxFailed(f"it was not ready after {_START_SECONDS:g} s")

    @property
    def inside(self) -> str:
        """The root of the command's files, as we see it."""
        return f"/proc/{self._number}/root"

    def crowded(self) -> bool:
        """Whether the namespace has too many processes; as its own /proc shows them, once that is there."""
        inside = self.inside
        try:
            names = os.listdir(f"{inside}/proc")  # noqa: PTH208  only names are wanted
        except OSError:
            return False
        return sum(name.isdigit() for name in names) > MAX_PROCESSES

    def end(self) -> None:
        """Kill the first process, and wait until the kernel has ended all others of the namespace."""
        if self._ended:
            return
        self._ended = True
        watchdog.forget(self._process.pid)  # before it is waited for: afterwards, its number may be another's
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            # Readable when the process has ended, and the first one ends after all others.
            _readable(self._first, _END_SECONDS)
        self._finish()

    def _finish(self) -> None:
        try:
            self._process.wait(_END_SECONDS if self._first is not None else 0)
        except subprocess.TimeoutExpired:
            # The whole group: its first process waits for ever if bubblewrap alone is killed at its start.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._first is not None:
            os.close(self._first)
        until = time.monotonic() + 1
        while self._hear(until):
            pass

    def failed(self) -> bool:
        """Whether there never was a command: bubblewrap tells an exit code only of one that began."""
        return self._first is None or (_number(self._said, "exit-code") is None and self._process.returncode > 0)

    def _hear(self, until: float) -> bool:
        ready = _readable(self._status, max(until - time.monotonic(), 0))
        heard = os.read(self._status, _STATUS) if ready else b""
        self._said += heard
        return bool(heard)


def _is_filtered(process: int) -> bool:
    try:
        return b"\nSeccomp:\t2\n" in Path(f"/proc/{process}/status").read_bytes()
    except OSError:
        return False


def _readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()  # `select` knows no descriptor over 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _number(said: bytes, name: str) -> int | None:
    for line in said.splitlines():
        with suppress(ValueError):
            found = json.loads(line).get(name)
            if isinstance(found, int):
                return found
    return None


# ---- without one -----------------------------------------------------------------------------------------------------


@contextmanager
def _bare(settings: Settings, command: str) -> Generator[_Child]:
    """A plain process in a session of its own. What leaves that session is out of reach."""
    process = _started(beginning(shell_program(), command), settings, (), settings.workspace)

    def end() -> None:
        if process.returncode is None:  # as long as nobody has waited for it, its number is not given to another
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    with ExitStack() as stack:
        stack.callback(_closed, process)
        stack.callback(end)
        limit(process.pid, settings.memory)
        yield _Child(process, end, failed=lambda: False, crowded=lambda: False, exceeded=lambda: None, inspect=Findings)


def _started(argv: list[str], settings: Settings, passed: tuple[int, ...], folder: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603  this is what a shell is for
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(settings, os.environ),
            cwd=folder,
            pass_fds=passed,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        raise SandboxFailed(f"{error.strerror}") from error


def _closed(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
