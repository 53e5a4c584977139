"""Web applications of the examples in processes of their own, on ports that the system chooses, to be killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
from tests.patience import PATIENCE
from tests.programs import Program

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from tests.programs import Process, Programs

KILLED: Final = -signal.SIGKILL
_HERE: Final = Path(__file__).parent
_EXAMPLES: Final = _HERE.parents[1] / "examples"
_ADDRESS: Final = re.compile(r"running on (http://127\.0\.0\.1:\d+)")


class Server:
    """A web application that runs in one process after another."""

    def __init__(self, programs: Programs, example: str, folder: Path, **environment: str) -> None:
        self.url = ""
        self.kills = 0
        self._programs, self._example, self._folder, self._environment = programs, example, folder, environment
        self._log = folder / f"{token_hex(4)}.log"
        self._process: Process | None = None

    def start(self, crash_at: str = "") -> None:
        """Start a process; with `crash_at`, it ends itself with SIGKILL at that crash point."""
        environment = {**os.environ, **self._environment, "PORT": "0", "HOLDFAST_CRASH_AT": crash_at}
        self._log = self._folder / f"{token_hex(4)}.log"
        arguments = (_EXAMPLES / self._example, self._log)
        process = self._programs.start(Program(str(_HERE / "launch.py"), arguments, self._folder, environment))
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()  # it writes to its log
        self._process, ends = process, time.monotonic() + PATIENCE
        while (found := _ADDRESS.search(self.log)) is None:
            if process.poll() is not None:
                assert process.returncode == KILLED, self.log
                return  # while it opened the store
            assert time.monotonic() < ends, self.log
            time.sleep(0.01)
        self.url = found[1]

    @property
    def log(self) -> str:
        """The log of the last process."""
        return self._log.read_text(encoding="utf-8") if self._log.exists() else ""

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
        self._process.send_signal(signal.SIGTERM)
        return self.wait()


class Client:
    """Somebody with a token, who tries again when nobody answers."""

    def __init__(self, http: aiohttp.ClientSession, token: str, *servers: Server) -> None:
        self._http, self._servers = http, servers
        self._headers = {"Authorization": f"Bearer {token}"}

    async def ask(self, method: str, path: str, *, key: str = "", **options: Any) -> tuple[int, Any]:
        """One request, until a server answers: the status, and the body."""
        headers = self._headers | ({"Idempotency-Key": key} if key else {})
        async with asyncio.timeout(PATIENCE):
            for server in cycle(self._servers):
                with suppress(aiohttp.ClientError, ConnectionError):
                    url = server.url + path
                    async with self._http.request(method, url, headers=headers, **options) as answer:
                        is_json = answer.content_type == "application/json"
                        return answer.status, await (answer.json() if is_json else answer.text())
                await asyncio.sleep(0.01)
        raise AssertionError

    async def until(self, path: str, enough: Callable[[Any], bool]) -> Any:
        """Look again and again, until it is enough."""
        async with asyncio.timeout(PATIENCE):
            while not enough(found := (await self.ask("GET", path))[1]):
                await asyncio.sleep(0.01)
            return found

    async def follow(self, path: str, last: str = "") -> AsyncGenerator[Sent]:
        """Server-sent events, from one server after another: each is told the last id, as browsers do."""
        for server in cycle(self._servers):
            headers = self._headers | ({"Last-Event-ID": last} if last else {})
            with suppress(aiohttp.ClientError, ConnectionError):
                async with self._http.get(server.url + path, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    frame: dict[str, str] = {}
                    async for line in answer.content:
                        name, _, value = line.decode().rstrip("\n").partition(": ")
                        if name:
                            frame[name] = value
                        elif "id" in frame:
                            last = frame["id"]
                            yield Sent(last, frame["event"], json.loads(frame["data"]))
                            frame = {}
            await asyncio.sleep(0.01)


class Sent(NamedTuple):
    """A server-sent event."""

    id: str
    name: str
    data: Any
