"""Python programs in processes of their own, as a person starts them, without what the imports cost each time.

`Forked` asks a server that has imported everything once (`program_server.py`), and that forks a child for each program.
The child is a process like any other: its own id, folder, environment, streams, signals, threads and exit code, and it
ends as an interpreter ends. `Fresh` starts a new interpreter. `test_programs.py` shows that they are alike, and
`make torture` tries with the second whatever `make test` shows with the first.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias

from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
Done: TypeAlias = "subprocess.CompletedProcess[str]"


@dataclass(frozen=True, slots=True)
class Program:
    """What to start: `python -m NAME ARGUMENTS`, or `python NAME ARGUMENTS` when it is a file."""

    name: str
    arguments: tuple[object, ...]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    stdin: str | None = ""
    """What it reads; None is a pipe that stays open, for whoever started it to write to."""
    terminal: int | None = None
    """All its streams, instead of pipes; it is the head of a session of its own then."""

    @property
    def words(self) -> list[str]:
        return [*map(str, self.arguments)]


class Process(Protocol):
    """A process that was started: what `subprocess.Popen` and `Child` have in common."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    @property
    def stdin(self) -> IO[str] | None: ...
    @property
    def stdout(self) -> IO[str] | None: ...
    @property
    def stderr(self) -> IO[str] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class Programs(Protocol):
    """Starts programs."""

    def start(self, program: Program) -> Process: ...

    def close(self) -> None: ...


def run(programs: Programs, program: Program) -> Done:
    """Run a program to its end."""
    process = programs.start(program)
    out, err = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess([program.name, *program.words], process.wait(), out, err)


@dataclass(frozen=True, slots=True)
class _Streams:
    """The ends of stdin, stdout and stderr: ours, where we have one, and those of the program."""

    ours: tuple[IO[str] | None, IO[str] | None, IO[str] | None]
    theirs: tuple[int, int, int]

    def given(self) -> None:
        """The program has its ends, so we need them no more."""
        for number in self.theirs:
            os.close(number)


def _streams(program: Program) -> _Streams:
    if program.terminal is not None:
        same = program.terminal
        return _Streams((None, None, None), (os.dup(same), os.dup(same), os.dup(same)))
    stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
    writing = os.fdopen(stdin[1], "w") if program.stdin is None else _filled(stdin[1], program.stdin)
    return _Streams((writing, os.fdopen(stdout[0]), os.fdopen(stderr[0])), (stdin[0], stdout[1], stderr[1]))


def _filled(writing: int, text: str) -> None:
    """Put all of the text into the pipe, and close it."""
    data = text.encode()
    if len(data) > 1 << 16:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, len(data))
    with os.fdopen(writing, "wb") as stream:
        stream.write(data)


# ---- a new interpreter -----------------------------------------------------------------------------------------------


class Fresh:
    """Starts a new interpreter for each program."""

    def start(self, program: Program) -> Process:
        named = [program.name] if program.name.endswith(".py") else ["-m", program.name]
        streams = _streams(program)
        started = subprocess.Popen(
            [sys.executable, *named, *program.words],
            cwd=program.folder,
            env=program.environment,
            stdin=streams.theirs[0],
            stdout=streams.theirs[1],
            stderr=streams.theirs[2],
            start_new_session=program.terminal is not None,
            text=True,
        )
        streams.given()
        started.stdin, started.stdout, started.stderr = streams.ours
        return started

    def close(self) -> None:
        """Nothing is left."""


# ---- a fork ----------------------------------------------------------------------------------------------------------


class Forked:
    """Forks, for each program, a process that has imported everything."""

    def __init__(self) -> None:
        self._asks, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with asked:
            command = [sys.executable, "-m", "tests.program_server", str(asked.fileno())]
            self._server = subprocess.Popen(command, cwd=ROOT, pass_fds=[asked.fileno()])

    def start(self, program: Program) -> Process:
        request = {
            "program": program.name,
            "arguments": program.words,
            "folder": str(program.folder),
            "environment": dict(program.environment),
            "new_session": program.terminal is not None,
        }
        told, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        streams = _streams(program)
        with tells:
            socket.send_fds(self._asks, [json.dumps(request).encode()], [*streams.theirs, tells.fileno()])
        streams.given()
        return Child(told, *streams.ours)

    def close(self) -> None:
        self._asks.close()
        self._server.wait(PATIENCE)


class Child:
    """A process that was forked for us; the one that waits for it tells what becomes of it."""

    def __init__(
        self, told: socket.socket, stdin: IO[str] | None, stdout: IO[str] | None, stderr: IO[str] | None
    ) -> None:
        self._told = told
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        said = told.recv(64)
        assert said, "the server of programs has ended"
        self.pid = int(said)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; its exit code."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            with self._told:
                self.returncode = int(self._told.recv(64))
        return self.returncode

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        """All that it still says, when it has ended."""
        assert self.stdout is not None
        assert self.stderr is not None
        with ThreadPoolExecutor(2) as reading, self.stdout, self.stderr:
            out, err = reading.submit(self.stdout.read), reading.submit(self.stderr.read)
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()  # so that the reading ends too
                raise
            return out.result(), err.result()

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it may have ended since
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
