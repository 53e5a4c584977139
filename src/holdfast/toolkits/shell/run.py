"""Running one command, from its start to the end of all its processes.

In this order: limits while a command runs, the process that kills groups when Holdfast dies, and the command itself.
All of it blocks and runs in a thread, which is the parent of the sandbox: the kernel ends the sandbox with its parent.
"""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.store.paths import FOLDER
from holdfast.toolkits.shell import policy, sandbox
from holdfast.toolkits.shell.guard import Findings, WorkspaceGuard
from holdfast.tools.results import OutputClip, OutputNotes, ShownOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from holdfast.toolkits.shell.policy import ShellSettings


# ---- limits that are measured while a command runs ----

MAX_TEMPORARY_FILES: Final = 262_144
"""Most files in all folders in memory; each takes about a kilobyte of the kernel's memory."""
_STEP_BYTES: Final = 64 * 2**20
_STEP_FILES: Final = 10_000
_BETWEEN_MEASURES: Final = 30.0
_TIME_SHARE: Final = 20
"""Measuring takes at most one part in so many of the time."""
_SHARED_MEMORY_NAMES: Final = (b"/dev/zero (deleted)", b"/SYSV", b"/memfd:")
"""Names of shared memory without a file among the mappings of a process."""


@dataclass(frozen=True, slots=True)
class FolderSize:
    """Bytes on the disk, and number of files and folders."""

    bytes: int
    files: int


class UsageMonitor:
    """Measures one command. `inside` is the root of its files, seen from the host; `folders` are in memory."""

    def __init__(self, inside: str, settings: ShellSettings, folders: Iterable[str], *, memory_bound: bool) -> None:
        self._inside = inside
        self._settings = settings
        self._folders = tuple(folders)
        self._memory_bound = memory_bound
        """True if a control group limits all memory."""
        self._next_look = 0.0
        self._next_measure = time.monotonic() + _BETWEEN_MEASURES
        self._begin = None if settings.profile == "read" else _disk_usage(settings.workspace)
        self._room = FolderSize(_STEP_BYTES, _STEP_FILES)
        """Growth of the file system after which the workspace is measured again."""
        self._size: FolderSize | None = None
        """Size of the workspace at the last measurement."""

    def exceeded(self) -> str | None:
        """The limit that the command exceeded; None if it did not."""
        # The kernel's own limit of processes does not hold for root.
        if sum(1 for _ in self._processes()) > sandbox.MAX_PROCESSES:
            return f"it had more than {sandbox.MAX_PROCESSES} processes"
        now = time.monotonic()
        if now < self._next_look:
            return None
        try:
            return self._too_many_temporary_files() or self._too_much_shared() or self._workspace_too_large()
        finally:
            took = time.monotonic() - now
            self._next_look = now + max(0.25, took * _TIME_SHARE)

    def _too_many_temporary_files(self) -> str | None:
        sizes = [_disk_usage(self._inside + folder) for folder in self._folders]
        most = MAX_TEMPORARY_FILES
        too_many = sum(size.files for size in sizes if size is not None) > most
        return f"it had more than {most:,} files in /tmp and /dev/shm" if too_many else None

    def _too_much_shared(self) -> str | None:
        if self._memory_bound:
            return None
        most = self._settings.memory
        sizes: dict[bytes, int] = {}
        for process in self._processes():
            with suppress(OSError), open(f"{process}/maps", "rb") as maps:  # noqa: PTH123  a line at a time
                for line in maps:  # `from-to perms offset device inode path`
                    parts = line.split(None, 5)
                    if len(parts) == 6 and parts[1][3:4] == b"s" and parts[5].startswith(_SHARED_MEMORY_NAMES):
                        begin, _, end = parts[0].partition(b"-")
                        size = int(parts[2], 16) + int(end, 16) - int(begin, 16)
                        sizes[parts[4]] = max(sizes.get(parts[4], 0), size)
        return f"it shared more than {most:,} bytes of memory" if sum(sizes.values()) > most else None

    def _processes(self) -> Iterator[str]:
        with suppress(OSError):
            for name in os.listdir(f"{self._inside}/proc"):  # only names are wanted
                if name.isdigit():
                    yield f"{self._inside}/proc/{name}"

    def _workspace_too_large(self) -> str | None:
        bounds, now = self._settings, time.monotonic()
        used = _disk_usage(bounds.workspace)
        if used is None or self._begin is None:
            return None
        grown = FolderSize(used.bytes - self._begin.bytes, used.files - self._begin.files)
        late = now >= self._next_measure  # deletions by others may hide the growth
        if grown.bytes < self._room.bytes and grown.files < self._room.files and not late:
            return None
        named = measure_folder(bounds.workspace)
        size = FolderSize(named.bytes + self._unnamed(bounds.workspace), named.files)
        self._next_measure = time.monotonic() + max(_BETWEEN_MEASURES, (time.monotonic() - now) * _TIME_SHARE)
        before, self._size = self._size, size
        left = FolderSize(bounds.workspace_bytes - size.bytes, bounds.workspace_files - size.files)
        if left.bytes < 0 and _has_grown(size.bytes, before and before.bytes, grown.bytes, bounds.workspace_bytes):
            return f"the workspace had more than {bounds.workspace_bytes:,} bytes"
        if left.files < 0 and _has_grown(size.files, before and before.files, grown.files, bounds.workspace_files):
            return f"the workspace had more than {bounds.workspace_files:,} files and folders"
        self._room = FolderSize(grown.bytes + max(left.bytes // 2, 2**20), grown.files + max(left.files // 2, 100))
        return None

    def _unnamed(self, workspace: str) -> int:
        """Bytes of deleted files that are still open."""
        try:
            device = os.stat(workspace).st_dev  # noqa: PTH116
        except OSError:
            return 0
        found: dict[int, int] = {}
        for process in self._processes():
            with suppress(OSError):
                for name in os.listdir(f"{process}/fd"):  # only names are wanted
                    with suppress(OSError):
                        file = os.stat(f"{process}/fd/{name}")  # noqa: PTH116
                        if stat.S_ISREG(file.st_mode) and file.st_nlink == 0 and file.st_dev == device:
                            found[file.st_ino] = file.st_blocks * 512
        return sum(found.values())


def measure_folder(workspace: str) -> FolderSize:
    """The size of a folder with its contents. Links are not followed, other file systems not entered."""
    total = files = 0
    linked: set[int] = set()
    todo = [workspace]
    try:
        device = os.stat(workspace).st_dev  # noqa: PTH116
    except OSError:
        return FolderSize(0, 0)
    while todo:
        with suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                files += 1
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                        if found.st_ino in linked:
                            continue
                        linked.add(found.st_ino)
                    total += found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode) and found.st_dev == device:
                        todo.append(entry.path)
    return FolderSize(total, files)


def _has_grown(size: int, before: int | None, grown: int, limit: int) -> bool:
    """True if a workspace over its limit grew during the command. A command may tidy up one that was over it before."""
    return size > before if before is not None else size - limit <= grown


def _disk_usage(folder: str) -> FolderSize | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return FolderSize((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree)


# ---- the killer: ends process groups when this process dies ----

_KILLER_SCRIPT: Final = """
while read -r sign group; do
  if [ "$sign" = + ]; then groups="$groups $group"; continue; fi
  rest=
  for each in $groups; do [ "$each" = "$group" ] || rest="$rest $each"; done
  groups=$rest
done
for each in $groups; do kill -s KILL -- "-$each"; done
"""
# It is not a child of this process, so code that waits for all children does not see it.
_DETACH: Final = 'exec 3<&0; /bin/sh -c "$0" <&3 3<&- &'

_lock = threading.Lock()
_killer: int | None = None
"""The pipe to the killer."""
_groups: Final[set[int]] = set()


def _reset_after_fork() -> None:
    """After a fork, close the child's copy of the pipe: else the parent's killer would wait for it."""
    global _lock, _killer  # noqa: PLW0603
    _lock = threading.Lock()  # another thread may have held it at the fork
    if _killer is not None:
        os.close(_killer)
        _killer = None
    _groups.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def watch_group(group: int) -> None:
    """Have this process group killed when this process ends, until `forget_group`."""
    global _killer  # noqa: PLW0603  one for the process
    with _lock:
        if _killer is None:
            _killer = _start_killer()
        _groups.add(group)
        try:
            os.write(_killer, f"+ {group}\n".encode())
        except BrokenPipeError:  # it is gone
            os.close(_killer)
            _killer = None
            _killer = _start_killer()
            os.write(_killer, "".join(f"+ {each}\n" for each in _groups).encode())


def forget_group(group: int) -> None:
    """Stop watching a group that has ended; its number may be reused."""
    with _lock:
        _groups.discard(group)
        if _killer is not None:
            with suppress(OSError):
                os.write(_killer, f"- {group}\n".encode())


def _start_killer() -> int:
    read, write = os.pipe()
    try:
        subprocess.run(  # noqa: S603  our own script
            ["/bin/sh", "-c", _DETACH, _KILLER_SCRIPT],
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
            check=True,
        )
    except BaseException as error:
        os.close(write)
        if isinstance(error, OSError | subprocess.SubprocessError):
            raise policy.SandboxFailed(f"its watchdog could not be started ({error})") from error
        raise
    finally:
        os.close(read)
    return write


# ---- one command ----

_BETWEEN_NOTES: Final = 0.1
_BETWEEN_LOOKS: Final = 0.1
_START_SECONDS: Final = 20.0
_END_SECONDS: Final = 10.0
_STOPPED: Final = "stopped, with all that it had started"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command. `code` is None if it was killed."""

    code: int | None
    shown: ShownOutput
    killed: str | None
    """The reason why it was killed; None if it ended by itself."""
    findings: Findings = field(default_factory=Findings)
    """Names that appeared in the workspace meanwhile."""


@dataclass(slots=True, kw_only=True)
class _CommandProcess:
    """A started command in a separate session without a sandbox; it waits for a line on its standard input.

    Processes that leave that session are not ended.
    """

    process: subprocess.Popen[bytes]
    guard: WorkspaceGuard | None = None
    usage: UsageMonitor | None = None

    def end(self) -> None:
        """End the command with all its processes, and wait for that."""
        if self.process.returncode is None:  # its number is not reused before it was waited for
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def failed(self) -> bool:
        """True if the sandbox broke before the command began."""
        return False


def run_command(
    settings: ShellSettings, command: str, seconds: float, tell: Callable[[str], None], stop: threading.Event
) -> CommandResult:
    """Run a command to its end, for at most `seconds` and until `stop`; `tell` gets its output as it arrives."""
    clip = OutputClip(settings.output)
    if stop.is_set():
        return CommandResult(None, clip.shown(), _STOPPED)
    start = _start_confined if settings.sandboxed else _start_unconfined
    with start(settings, command) as child:
        try:
            assert child.process.stdin is not None  # noqa: S101  it was opened as a pipe
            with suppress(BrokenPipeError), child.process.stdin as begin:  # it may have ended already
                begin.write(b"\n")
            killed = _read_output(child, seconds, clip, tell, stop)
        finally:
            child.end()
            findings = Findings() if child.guard is None else child.guard.inspect()
        if killed is not None:
            return CommandResult(None, clip.shown(), killed, findings)
        code = child.process.wait()
        if child.failed():
            raise policy.SandboxFailed(" ".join(clip.shown().text.split())[:300] or f"bubblewrap ended with {code}")
        return CommandResult(code if code >= 0 else 128 - code, clip.shown(), None, findings)


def _read_output(
    child: _CommandProcess, seconds: float, clip: OutputClip, tell: Callable[[str], None], stop: threading.Event
) -> str | None:
    """Read the output until the command ends, or must be ended; returns the reason why it must.

    A process that an unconfined command left behind may keep the output open for ever, so the end of the command
    counts, with all output written by then.
    """
    assert child.process.stdout is not None  # noqa: S101  it was opened as a pipe
    output = child.process.stdout.fileno()
    leader = os.pidfd_open(child.process.pid)
    poll = select.poll()
    for descriptor in (output, leader):
        poll.register(descriptor, select.POLLIN)
    notes, next_note, next_look, until = OutputNotes(1_000), 0.0, 0.0, time.monotonic() + seconds
    try:
        while True:
            now = time.monotonic()
            if stop.is_set():
                return _STOPPED
            if now >= until:
                return f"killed after {seconds:g} s, with all that it had started"
            if now >= next_look:
                next_look = now + _BETWEEN_LOOKS
                over = None if child.usage is None else child.usage.exceeded()
                if over is not None:
                    return f"killed, with all that it had started: {over}"
            ready = {descriptor for descriptor, _ in poll.poll(min(until - now, _BETWEEN_LOOKS) * 1000 + 1)}
            if output in ready:
                chunk = os.read(output, 1 << 16)
                if not chunk:
                    poll.unregister(output)
                clip.add(chunk)
                notes.add(chunk)
            elif leader in ready:
                return None
            if time.monotonic() >= next_note and (note := notes.take()) is not None:
                next_note = time.monotonic() + _BETWEEN_NOTES
                tell(note)
    finally:
        if (note := notes.rest()) is not None:
            tell(note)
        os.close(leader)


@contextmanager
def _start_confined(settings: ShellSettings, command: str) -> Generator[_CommandProcess]:
    bwrap = sandbox.require_sandbox()
    store = os.path.join(settings.workspace, FOLDER)  # noqa: PTH118
    with ExitStack() as stack:
        guard: WorkspaceGuard | None = None
        if settings.profile != "read":
            guard = WorkspaceGuard(settings.workspace, settings.protection, deep=sandbox.binds_open_files(bwrap))
            stack.callback(guard.close)
        covers = () if guard is None else tuple(guard.covers)
        group = sandbox.ControlGroup(settings.control_groups, settings.memory)
        stack.callback(group.remove)
        segment = None if group.bounds_memory else settings.memory // sandbox.MAX_SEGMENTS
        files = stack.enter_context(sandbox.SandboxFiles(segment))
        if os.path.islink(store):  # noqa: PTH114  it could lead anywhere in the workspace
            raise policy.WorkspaceRefused(settings.workspace, f"{FOLDER} is a symbolic link; put a folder there")
        line = policy.bwrap_arguments(
            sandbox.shell_program(),
            command,
            bwrap=bwrap,
            tree=sandbox.visible_tree(settings.profile),
            workspace=settings.workspace,
            profile=settings.profile,
            covers=covers,
            memory=settings.memory,
            descriptors=files.descriptors,
            hidden=(FOLDER,) if os.path.isdir(store) else (),  # noqa: PTH112
        )
        passed = [*files.descriptors, *(cover.descriptor for cover in covers if cover.descriptor is not None)]
        process = stack.enter_context(_start_process(line, settings, passed, "/"))
        child = _BubblewrapProcess(process=process, guard=guard, status=files.status)
        stack.callback(child.end)
        watch_group(process.pid)
        files.begin()
        files.handed_over()
        if guard is not None:
            guard.handed_over()
        child.await_first(group, settings)
        files.begin()
        child.await_bound()
        in_memory = (
            *policy.TMPFS_FOLDERS,
            *(f"{policy.WORKSPACE}/{cover.path}" for cover in covers if cover.kind == "stand-in"),
        )
        child.usage = UsageMonitor(f"/proc/{child.number}/root", settings, in_memory, memory_bound=group.bounds_memory)
        yield child


@dataclass(slots=True, kw_only=True)
class _BubblewrapProcess(_CommandProcess):
    """A running bubblewrap. All processes of its namespace end with the first one."""

    status: int
    number: int = 0
    """The number of the first process; 0 until it has started."""
    _first: int | None = None
    _status_lines: bytes = b""
    _ended: bool = False

    def await_first(self, group: sandbox.ControlGroup, settings: ShellSettings) -> None:
        """Limit the first process before it starts another. If the sandbox breaks first, its output tells why."""
        until = time.monotonic() + _START_SECONDS
        while b"\n" not in self._status_lines:
            if not self._hear(until):
                if time.monotonic() >= until:
                    raise policy.SandboxFailed(f"it was not there after {_START_SECONDS:g} s")
                return
        number = _find_number(self._status_lines, "child-pid")
        if number is None:
            raise policy.SandboxFailed(f"bubblewrap said {self._status_lines[:100]!r} in the place of a process number")
        try:
            self._first = os.pidfd_open(number)
            self.number = number
            sandbox.limit_process(number, settings.memory, min(settings.workspace_bytes, sandbox.MAX_FILE_BYTES))
            group.take_in(number)
        except ProcessLookupError:
            return
        except OSError as error:
            raise policy.SandboxFailed(f"its limits could not be set ({error.strerror})") from error

    def await_bound(self) -> None:
        """Wait until the first process is bound to end with bubblewrap: only then may the command begin.

        Bubblewrap asks the kernel for that after it has started the command, and then installs its filter.
        """
        until = time.monotonic() + _START_SECONDS
        status = Path(f"/proc/{self.number}/status")
        while self._first is not None:
            with suppress(OSError):
                if b"\nSeccomp:\t2\n" in status.read_bytes():
                    return
            if _readable(self._first, 0.001):
                return  # it has ended
            if time.monotonic() >= until:
                raise policy.SandboxFailed(f"it was not ready after {_START_SECONDS:g} s")

    def end(self) -> None:
        # Kill the first process, and wait until the kernel has ended all others of the namespace.
        if self._ended:
            return
        self._ended = True
        forget_group(self.process.pid)  # before it is waited for: afterwards, its number may be reused
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            # Readable when the process has ended, and the first one ends after all others.
            _readable(self._first, _END_SECONDS)
        try:
            self.process.wait(_END_SECONDS if self._first is not None else 0)
        except subprocess.TimeoutExpired:
            # The whole group: the first process waits for ever if only bubblewrap is killed at its start.
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self._first is not None:
            os.close(self._first)
        until = time.monotonic() + 1
        while self._hear(until):
            pass

    def failed(self) -> bool:
        # bubblewrap reports an exit code only of a command that began.
        return self._first is None or (
            _find_number(self._status_lines, "exit-code") is None and self.process.returncode > 0
        )

    def _hear(self, until: float) -> bool:
        ready = _readable(self.status, max(until - time.monotonic(), 0))
        heard = os.read(self.status, 4_096) if ready else b""
        self._status_lines += heard
        return bool(heard)


def _readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()  # `select` knows no descriptor over 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _find_number(said: bytes, name: str) -> int | None:
    for line in said.splitlines():
        with suppress(ValueError):
            found = json.loads(line).get(name)
            if isinstance(found, int):
                return found
    return None


@contextmanager
def _start_unconfined(settings: ShellSettings, command: str) -> Generator[_CommandProcess]:
    line = policy.shell_arguments(sandbox.shell_program(), command)
    with _start_process(line, settings, (), settings.workspace) as process:
        child = _CommandProcess(process=process)
        try:
            sandbox.limit_process(process.pid, settings.memory)
            yield child
        finally:
            child.end()


def _start_process(
    argv: list[str], settings: ShellSettings, passed: Sequence[int], folder: str
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603  this is what a shell is for
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=policy.make_environment(settings, os.environ),
            cwd=folder,
            pass_fds=passed,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        raise policy.SandboxFailed(f"{error.strerror}") from error
