"""Web applications of the examples in processes of their own, on ports that the system chooses, to be killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[2]
LAUNCH: Final = """
import runpy, sys
from holdfast.testing.crashes import arm_from_environment
arm_from_environment()
runpy.run_path(sys.argv[1], run_name="__main__")
"""
KILLED: Final = -signal.SIGKILL
_ADDRESS: Final = re.compile(rb"running on (http://127\.0\.0\.1:\d+)")


class Server:
    """A web application that runs in one process after another."""

    def __init__(self, example: str, folder: Path, **environment: str) -> None:
        self.url = ""
        self.kills = 0
        self.log = folder / f"{token_hex(4)}.log"
        self._example, self._folder, self._environment = ROOT / "examples" / example, folder, environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, crash_at: str = "") -> None:
        """Start a process; with `crash_at`, it ends itself with SIGKILL at that crash point."""
        environment = {**os.environ, **self._environment, "PORT": "0", "HOLDFAST_CRASH_AT": crash_at}
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                (sys.executable, "-c", LAUNCH, str(self._example)),
                cwd=self._folder,
                env=environment,
                stdout=output,
                stderr=output,
            )
        ends = time.monotonic() + PATIENCE
        while (found := _ADDRESS.search(self.log.read_bytes())) is None:
            assert self._process.poll() in {None, KILLED}, self.log.read_text()
            assert time.monotonic() < ends, self.log.read_text()
            if self._process.returncode is not None:
                return  # it was killed while it opened the store
            time.sleep(0.01)
        self.url = found[1].decode()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End the process with SIGKILL, wherever it is."""
        if self._process is not None:
            self._process.kill()
            self.kills += self._process.wait() == KILLED
            self._process = None

    def kill_after(self, seconds: float) -> None:
        time.sleep(seconds)
        self.kill()

    def wait(self) -> int:
        """Wait until the process has ended; returns its exit code."""
        assert self._process is not None
        code = self._process.wait(PATIENCE)
        self._process = None
        self.kills += code == KILLED
        return code

    def stop(self) -> int:
        """Ask the process to end; returns its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self.wait()


class Client:
    """Somebody with a token, who tries again when nobody answers."""

    def __init__(self, http: aiohttp.ClientSession, server: Server, token: str) -> None:
        self._http, self._server = http, server
        self._headers = {"Authorization": f"Bearer {token}"}

    async def ask(self, method: str, path: str, *, key: str = "", **options: Any) -> tuple[int, Any]:
        """One request, until a server answers: the status, and the body."""
        headers = self._headers | ({"Idempotency-Key": key} if key else {})
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    url = self._server.url + path
                    async with self._http.request(method, url, headers=headers, **options) as answer:
                        is_json = answer.content_type == "application/json"
                        return answer.status, await (answer.json() if is_json else answer.text())
                except (aiohttp.ClientError, ConnectionError):
                    await asyncio.sleep(0.01)

    async def until(self, path: str, enough: Callable[[Any], bool]) -> Any:
        """Look again and again, until it is enough."""
        async with asyncio.timeout(PATIENCE):
            while True:
                _, found = await self.ask("GET", path)
                if enough(found):
                    return found
                await asyncio.sleep(0.01)
