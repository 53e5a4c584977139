"""Workers: processes in a sandbox that run programs.

In this order: the pipes of one worker, its start, the launch script with bubblewrap, and the check that programs can
run here.

Most answers come within some ten microseconds, so an idle event loop itself waits briefly before it registers a reader.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import platform
import select
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Final, cast

from holdfast.errors.caller import ProgramsUnavailable
from holdfast.errors.world import WorkerFailed
from holdfast.sandbox.protocol import PRINTED_TAG, MalformedMessage, read_printed
from holdfast.toolkits.shell import SandboxFailed, SandboxUnavailable, run
from holdfast.toolkits.shell.policy import HostTree, isolation_arguments, seccomp_program
from holdfast.toolkits.shell.sandbox import require_sandbox, shell_program, visible_tree

# ---- the pipes of one worker ----

_MOMENT: Final = 0.0002
"""Seconds that the event loop blocks for an answer."""
_IDLE_READY: Final = 16
_SLICE: Final = 0.0005
"""Seconds that a program is driven before other tasks run."""
_CHUNK: Final = 65536
_SPARE: Final = 16 * 2**20
_AT_ONCE: Final = 8
"""Chunks of an answer to read before other tasks run."""
_PRINTED: Final = bytes((PRINTED_TAG,))
_SELECTABLE: Final = 1024
_END_SECONDS: Final = 10.0


class WorkerGone(Exception):
    """The worker ended, no longer answers, or sent an invalid message."""

    def __init__(self, *, timed_out: bool = False) -> None:
        super().__init__("timed out" if timed_out else "gone")
        self.timed_out = timed_out


class Worker:
    """One process for one program; `on_printed` gets the printed text."""

    def __init__(
        self, started: WorkerProcess, memory: int, on_printed: Callable[[bytes], None], gone: Callable[[Worker], None]
    ) -> None:
        """`gone` is called at its complete end. No message is larger than its `memory`."""
        self.closed = False
        self.status: int | None = None
        """Exit status, if it ended by itself."""
        self._most = 2 * memory + _SPARE
        self._on_printed = on_printed
        self._gone = gone
        self._buffer = bytearray()
        self._since = time.monotonic()
        """Time at which other tasks last ran."""
        self._asked: asyncio.Future[bytes] | None = None
        self._ended = asyncio.Event()
        self._process = started
        self._in, self._out = (pipe.fileno() for pipe in started.pipes)
        self._pidfd = started.pidfd
        self._quick = self._out < _SELECTABLE

    async def ask(self, request: bytes, seconds: float) -> bytes:
        """The next message, with its length before it, to this request or an earlier one; `WorkerGone` after `seconds`.

        Requests sent ahead of their answers must be short: a worker that can't write its answers does not read.
        """
        if self.closed:
            raise WorkerGone
        if time.monotonic() - self._since > _SLICE:
            await asyncio.sleep(0)
            self._since = time.monotonic()
            if self.closed:
                raise WorkerGone
        if request:
            try:
                sent = os.write(self._in, request)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise WorkerGone from error
            if sent < len(request):
                await self._send(memoryview(request)[sent:], seconds)
        if self._buffer:
            answer = self._taken()
            if answer is not None:
                return answer
        # An idle loop has nothing else to do; unknown loops count as idle.
        if self._quick and len(getattr(asyncio.get_running_loop(), "_ready", ())) < _IDLE_READY:
            answer = self._at_once()
            if answer is not None:
                return answer
        return await self._later(seconds)

    def kill(self) -> None:
        """Kill the process; a pending `ask` raises `WorkerGone`."""
        if self.closed:
            return
        self.closed = True
        self._process.kill()
        if self._asked is not None:
            _fail(self._asked, WorkerGone())
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    async def end(self) -> None:
        self.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._ended.wait()

    async def ended(self, seconds: float) -> None:
        """Let it end by itself for a moment, and read its exit status."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        loop.add_reader(self._pidfd, _settle, over)
        try:
            await asyncio.wait((over,), timeout=seconds)
        finally:
            if not self.closed:  # else `kill` waits for it
                loop.remove_reader(self._pidfd)
        if over.done() and not self.closed:
            with suppress(ChildProcessError):  # `_reap` collects it
                found = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)  # noqa: ASYNC222  with WNOHANG
                if found is not None and found.si_code == os.CLD_EXITED:
                    self.status = found.si_status

    async def _send(self, rest: memoryview, seconds: float) -> None:
        """Send the part of a request that the pipe did not take at once."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                while rest:
                    room = loop.create_future()
                    self._asked = room
                    loop.add_writer(self._in, _settle, room)
                    try:
                        await room
                    finally:
                        self._asked = None
                        if not self._ended.is_set():
                            loop.remove_writer(self._in)
                    rest = rest[os.write(self._in, rest[:_CHUNK]) :]
        except TimeoutError as error:
            raise WorkerGone(timed_out=True) from error
        except OSError as error:
            raise WorkerGone from error

    def _at_once(self) -> bytes | None:
        watched = (self._out,)
        for _ in range(_AT_ONCE):
            if not select.select(watched, (), (), _MOMENT)[0]:
                break
            answer = self._read() or self._read()  # it comes in two parts
            if answer is not None:
                return answer
        self._quick = False
        return None

    async def _later(self, seconds: float) -> bytes:
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[bytes] = loop.create_future()
        self._asked = asked
        begun = loop.time()
        loop.add_reader(self._out, self._readable, asked)
        late = loop.call_later(seconds, _fail, asked, WorkerGone(timed_out=True))
        try:
            return await asked
        finally:
            self._asked = None
            late.cancel()
            self._since = time.monotonic()
            if not self._ended.is_set():
                loop.remove_reader(self._out)
            if loop.time() - begun < _MOMENT:
                self._quick = self._out < _SELECTABLE

    def _readable(self, asked: asyncio.Future[bytes]) -> None:
        try:
            answer = self._read()
        except WorkerGone as gone:
            _fail(asked, gone)
        else:
            if answer is not None:
                _settle(asked, answer)

    def _read(self) -> bytes | None:
        """The message, if it is complete."""
        try:
            chunk = os.read(self._out, _CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            raise WorkerGone from error
        if not chunk:
            raise WorkerGone
        if not self._buffer and len(chunk) == int.from_bytes(chunk[:4], "little") + 4 and chunk[4:5] != _PRINTED:
            return chunk
        self._buffer += chunk
        return self._taken()

    def _taken(self) -> bytes | None:
        buffer = self._buffer
        while len(buffer) >= 4:
            size = int.from_bytes(buffer[:4], "little")
            if not 0 < size <= self._most:
                raise WorkerGone
            if len(buffer) < size + 4:
                return None
            frame = bytes(buffer[: size + 4])
            del buffer[: size + 4]
            if frame[4] != PRINTED_TAG:
                return frame
            try:
                self._on_printed(read_printed(frame, 4))
            except MalformedMessage as error:
                raise WorkerGone from error
        return None

    def _reap(self) -> None:
        if self._process.process.poll() is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        loop.remove_reader(self._out)
        loop.remove_writer(self._in)
        self._process.close()
        self._ended.set()
        self._gone(self)


def _settle(waiter: asyncio.Future[Any], value: object = None) -> None:
    if not waiter.done():
        waiter.set_result(value)


def _fail(waiter: asyncio.Future[Any], gone: WorkerGone) -> None:
    if not waiter.done():
        waiter.set_exception(gone)


# ---- starting a process ----


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A started process with two pipes."""

    process: subprocess.Popen[bytes]
    pidfd: int
    grouped: bool
    """True if it has its own process group."""

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Its standard input and output."""
        return cast("tuple[IO[bytes], IO[bytes]]", (self.process.stdin, self.process.stdout))

    def kill(self) -> None:
        """Kill it with its group. It must not have been waited for yet."""
        if self.grouped:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            run.forget_group(self.process.pid)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        os.close(self.pidfd)


_executor: tuple[int, ThreadPoolExecutor] | None = None
_lock: Final = threading.Lock()


async def spawn_in_thread(launcher: Launcher) -> WorkerProcess:
    """Start a worker; `WorkerFailed` if that fails.

    Always in the same lasting thread: a worker dies with the thread that started it.
    """
    global _executor  # noqa: PLW0603  one for the process; a fork loses the thread
    with _lock:
        if _executor is None or _executor[0] != os.getpid():
            _executor = os.getpid(), ThreadPoolExecutor(1, "holdfast programs")
        job = _executor[1].submit(spawn, launcher)
    try:
        return await asyncio.wrap_future(job)
    except asyncio.CancelledError:
        if not job.cancel():  # it is starting or started
            job.add_done_callback(lambda done: None if done.exception() else discard_process(done.result()))
        raise


def discard_process(started: WorkerProcess) -> None:
    """End a process that is not wanted any more."""
    started.kill()
    started.process.wait()
    started.close()


def spawn(launcher: Launcher) -> WorkerProcess:
    """Start a process with two pipes only. A confined one gets its own process group, which is watched."""
    try:
        process = subprocess.Popen(  # noqa: S603  a program that only root can change, or the interpreter's own
            launcher.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
            process_group=0 if launcher.confined else None,
            bufsize=0,
        )
        try:
            started = WorkerProcess(process, os.pidfd_open(process.pid), launcher.confined)
        except OSError:
            process.kill()
            process.communicate()
            raise
        try:
            writes, reads = started.pipes
            os.set_blocking(writes.fileno(), False)
            os.set_blocking(reads.fileno(), False)
            if launcher.confined:
                run.watch_group(process.pid)
                with suppress(BrokenPipeError):  # it has ended
                    writes.write(b"\n")  # the launch script waits until its group is watched
        except BaseException:
            discard_process(started)
            raise
    except SandboxFailed as error:
        raise WorkerFailed(error.reason) from error
    except OSError as error:
        raise WorkerFailed(error.strerror or str(error)) from error
    return started


# ---- the launch script: a shell that becomes bubblewrap ----

PROGRAM_PATH: Final = "/worker"
"""Path of the worker's program inside the sandbox."""
_MODE: Final = "subprocess"
"""The argument with which the program reads requests from its standard input."""
_LIBRARIES: Final = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store", "/etc/ld.so.cache")
_UNDER_USR: Final = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/local/lib")
_FILTER_DESCRIPTOR: Final = 9  # the highest number that every shell can redirect
_OPEN_FILES: Final = 64
_OVERHEAD: Final = 512 * 2**20
"""Memory of a worker beside the program's own, mostly for its type checker."""


def launch_script(command: list[str], filter: str, memory: int) -> str:
    """A shell script that becomes the worker by `command`. `filter` is a file with the filter of system calls."""
    kilobytes = (memory + _OVERHEAD) // 1024
    return (
        # The line comes once the process group is watched: bubblewrap killed at its start would leave a process.
        "read -r go || exit 125\n"
        f"ulimit -c 0 && ulimit -f 0 && ulimit -n {_OPEN_FILES} && ulimit -d {kilobytes} || exit 125\n"
        f"exec {_FILTER_DESCRIPTOR}<{shlex.quote(filter)} || exit 125\n"
        f"exec {shlex.join(command)} 2>/dev/null\n"
    )


def bwrap_command(bwrap: str, binary: str, tree: HostTree, libraries: Sequence[str]) -> list[str]:
    """The command line that confines the program `binary`, which sees only libraries of this machine.

    `libraries` are the folders of libraries under ``/usr``, `tree` has all others.
    """
    folders = (*(path for path in tree.folders if path in _LIBRARIES and path != "/usr"), *libraries)
    links = tuple((name, target) for name, target in tree.links if name in _LIBRARIES)
    return [
        bwrap,
        *isolation_arguments(HostTree(folders, links), network=False),
        "--clearenv",
        *("--ro-bind", binary, PROGRAM_PATH, "--remount-ro", "/", "--chdir", "/"),
        *("--seccomp", str(_FILTER_DESCRIPTOR), "--", PROGRAM_PATH, _MODE),
    ]


# ---- can programs run here? ----

RUNTIME_PACKAGE: Final = "pydantic-monty-runtime"
"""The package with the worker's program."""
_INSTALL: Final = "pip install 'holdfast[code]'"
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def programs_problem() -> str | None:
    """The reason why programs can't run on this machine; None if they can."""
    try:
        require_programs()
    except ProgramsUnavailable as error:
        return error.reason
    return None


def require_programs(*, confined: bool = True) -> None:
    """Raise `ProgramsUnavailable` if programs can't run on this machine."""
    worker_binary()
    if confined:
        try:
            require_sandbox()
        except SandboxUnavailable as error:
            raise ProgramsUnavailable(error.reason, error.next_step) from error


def worker_binary() -> str:
    """The worker's program from its installed package; never from the environment or PATH."""
    try:
        files = metadata.distribution(RUNTIME_PACKAGE).files or ()
    except metadata.PackageNotFoundError:
        raise ProgramsUnavailable("pydantic-monty is not installed", _INSTALL) from None
    for file in files:
        path = Path(os.path.realpath(str(file.locate())))
        if file.name == "monty" and path.is_file():
            return str(path)
    raise ProgramsUnavailable("the package of pydantic-monty has no worker in it", f"{_INSTALL} again")


class Launcher:
    """The command that starts workers. Keep it as long as workers are to start."""

    def __init__(self, memory: int, *, confined: bool = True) -> None:
        self.confined: Final = confined
        self._filter: int | None = None
        self._owner = os.getpid()
        self.command = self._confined(memory) if confined else [worker_binary(), _MODE]

    def fits(self) -> bool:
        """True if it belongs to this process: after a fork, its file is gone."""
        return self._owner == os.getpid()

    def close(self) -> None:
        """Close its file; no worker can start from it any more."""
        if self._filter is not None:
            os.close(self._filter)
            self._filter = None

    def _confined(self, memory: int) -> list[str]:
        libraries = [path for path in _UNDER_USR if Path(path).is_dir()]
        command = bwrap_command(require_sandbox(), worker_binary(), visible_tree("read"), libraries)
        try:
            self._filter = os.memfd_create("holdfast-filter", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.write(self._filter, seccomp_program(platform.machine()))
            os.fchmod(self._filter, 0o400)
            fcntl.fcntl(self._filter, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            self.close()
            raise WorkerFailed(f"its filter could not be made ({error.strerror})") from error
        filter_path = f"/proc/{os.getpid()}/fd/{self._filter}"
        return [shell_program(), "-c", launch_script(command, filter_path, memory)]
