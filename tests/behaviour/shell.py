"""The command line, as a person or a script uses it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import time
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.patience import PATIENCE
from tests.programs import Program, run

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.programs import Done, Process, Programs


class Shell:
    """A folder with agents and a store, and the command line in it."""

    def __init__(self, folder: Path, programs: Programs) -> None:
        shutil.copy(Path(__file__).with_name("agents_for_cli.py"), folder / "agents.py")
        self.folder = folder
        self._programs = programs
        self._started: list[Process] = []
        unset = {"HOLDFAST_STORE", "HOLDFAST_PROFILE", "NO_COLOR"}
        self.env = {key: value for key, value in os.environ.items() if key not in unset}
        self.env["HOLDFAST_PROFILES"] = str(folder / "profiles")
        self.env["XDG_STATE_HOME"] = str(folder / "state")

    def __call__(self, *arguments: object, stdin: str = "", **environment: str) -> Done:
        """What a command did, when it has ended."""
        return run(self._programs, replace(self._program(arguments, environment), stdin=stdin))

    def start(self, *arguments: object) -> Process:
        """A command that goes on."""
        process = self._programs.start(self._program(arguments, {}))
        self._started.append(process)
        return process

    @contextmanager
    def on_terminal(self, *arguments: object, **environment: str) -> Generator[tuple[Process, int]]:
        """A command on a terminal, and the other end of the terminal: what the person types and sees."""
        leader, follower = pty.openpty()
        try:
            program = self._program(arguments, {"TERM": "xterm", **environment})
            process = self._programs.start(replace(program, terminal=follower))
        finally:
            os.close(follower)
        self._started.append(process)
        try:
            yield process, leader
            process.wait(PATIENCE)
        finally:
            os.close(leader)

    def _program(self, arguments: tuple[object, ...], environment: dict[str, str]) -> Program:
        return Program("holdfast", arguments, self.folder, environment={**self.env, **environment})

    def at(self, folder: Path) -> Shell:
        """The same, in another folder."""
        other = copy(self)
        other.folder = folder
        return other

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--json").stdout)

    def ps(self) -> list[dict[str, Any]]:
        return json.loads(self("ps", "-a", "--json").stdout or "[]")

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.02)

    def begun(self) -> bool:
        return (self.folder / "begun").exists()

    def begin_gated(self, session: str) -> Process:
        running = self.start("run", "agents.py:gated", "hello", "--as", session)
        self.until(self.begun)
        return running

    def open_gate(self) -> None:
        (self.folder / "open").touch()

    def close(self) -> None:
        """End whatever still runs."""
        self.open_gate()
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        ended = {os.getpid(), *(process.pid for process in self._started)}
        for line in self.ps() if self.begun() else []:
            if line.get("pid") and line["pid"] not in ended:  # what was detached
                with suppress(ProcessLookupError):  # it may have ended since
                    os.kill(line["pid"], signal.SIGKILL)
