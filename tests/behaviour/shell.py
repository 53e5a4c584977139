"""The command line, as a person or a script uses it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 20.0


class Shell:
    """A folder with agents and a store, and the command line in it."""

    def __init__(self, folder: Path) -> None:
        shutil.copy(Path(__file__).with_name("agents_for_cli.py"), folder / "agents.py")
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        unset = {"HOLDFAST_STORE", "HOLDFAST_PROFILE", "NO_COLOR"}
        self.env = {key: value for key, value in os.environ.items() if key not in unset}
        self.env["HOLDFAST_PROFILES"] = str(folder / "profiles")

    def __call__(self, *arguments: object, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *map(str, arguments)],
            cwd=self.folder,
            env={**self.env, **environment},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *map(str, arguments)],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

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

    def begin_gated(self, session: str) -> subprocess.Popen[str]:
        running = self.start("run", "agents.py:gated", "hello", "--as", session)
        self.until(self.begun)
        return running

    def open_gate(self) -> None:
        (self.folder / "open").touch()

    def close(self) -> None:
        """End whatever still runs."""
        self.open_gate()
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        ended = {os.getpid(), *(process.pid for process in self.started)}
        for line in self.ps() if self.begun() else []:
            if line.get("pid") and line["pid"] not in ended:  # what was detached
                os.kill(line["pid"], signal.SIGKILL)
