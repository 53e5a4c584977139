"""The chat service, over HTTP with two workers of which one is killed: readers miss nothing, and see nothing twice."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import runpy
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from tests.examples_apps.servers import Client, Sent, Server
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable

    from tests.programs import Programs

TOKENS = "t-ada=ada t-bob=bob"
EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = "I wandered lonely as a cloud that floats on high over vales and hills"


def _reply(number: int, words: str) -> str:
    return f"This is message {number}, and you said: {words}"


def _worker(programs: Programs, folder: Path, **environment: str) -> Server:
    return Server(programs, "chat_service.py", folder, CHAT_TOKENS=TOKENS, **environment)


@asynccontextmanager
async def _connected() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_read=PATIENCE)) as http:
        yield http


async def _until(found: AsyncGenerator[Sent], enough: Callable[[list[Sent]], bool]) -> list[Sent]:
    seen: list[Sent] = []
    async with asyncio.timeout(PATIENCE):
        async for sent in found:
            seen.append(sent)
            if enough(seen):
                return seen
    raise AssertionError(seen)


def _ends(count: int) -> Callable[[list[Sent]], bool]:
    return lambda seen: [sent.name for sent in seen].count("end") == count


def _recorded(seen: Iterable[Sent]) -> list[Sent]:
    return [sent for sent in seen if sent.name in {"input", "message", "end"}]


def _check(seen: list[Sent], replies: list[str]) -> None:
    """Every message once and in order, no id twice, and the words of each reply whole after its last restart."""
    assert [sent.data["text"] for sent in seen if sent.name == "message"] == replies
    assert [sent.name for sent in _recorded(seen)] == ["input", "message", "end"] * len(replies)
    assert len({sent.id for sent in seen}) == len(seen)


def _words(seen: list[Sent]) -> str:
    """What a reader sees of a reply that is being written."""
    words = ""
    for sent in seen:
        words = "" if sent.name == "restart" else words + sent.data.get("text", "") * (sent.name == "delta")
    return words


async def test_a_reader_sees_every_event_once_when_the_worker_that_writes_is_killed(
    programs: Programs, tmp_path: Path
) -> None:
    workers = [_worker(programs, tmp_path, CHAT_PACE="0.02") for _ in range(2)]
    await asyncio.gather(*(asyncio.to_thread(worker.start) for worker in workers))
    try:
        async with _connected() as http:
            ada = Client(http, "t-ada", *workers)
            assert (await ada.ask("POST", "/chats/c/messages", key="m", json={"text": WORDS}))[0] == 202
            orders = (workers, workers[::-1])  # one follows on the worker that writes, one on the other
            readers = [Client(http, "t-ada", *order).follow("/chats/c/events") for order in orders]
            seen = [await _until(reader, lambda seen: _words(seen).count(" ") > 5) for reader in readers]
            (writing,) = [worker for worker in workers if "turn started" in worker.log]
            assert [sent.name for sent in seen[0]].count("restart") == 1
            writing.kill()
            for before, reader in zip(seen, readers, strict=True):
                before.extend(await _until(reader, _ends(1)))
                _check(before, [_reply(1, WORDS)])
                assert _words(before) == _reply(1, WORDS)
            assert "took over from a dead process" in next(each for each in workers if each is not writing).log
            assert (await ada.ask("POST", "/chats/c/messages", key="m", json={"text": WORDS}))[1] == {"turn": "t1"}
            again = await _until(ada.follow("/chats/c/events"), _ends(1))
            assert _recorded(again) == _recorded(seen[0]) == _recorded(seen[1])
    finally:
        for worker in workers:
            worker.kill()


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_readers_see_every_event_once_however_often_workers_are_killed(
    programs: Programs, tmp_path: Path
) -> None:
    seed = int(os.environ.get("TORTURE_SEED") or random.randrange(1 << 30))
    print(f"repeat with: TORTURE_SEED={seed} python -m pytest -s {__file__} -m torture -k however_often")
    chance, count = random.Random(seed), 30
    workers = [_worker(programs, tmp_path, CHAT_PACE="0.01") for _ in range(2)]
    for worker in workers:
        worker.start()
    done = asyncio.Event()

    async def kill_often() -> None:
        while not done.is_set():
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            worker = chance.choice(workers)
            worker.kill()
            await asyncio.to_thread(worker.start)

    async def write(http: aiohttp.ClientSession) -> None:
        ada = Client(http, "t-ada", *workers)
        for number in range(1, count + 1):
            status, _ = await ada.ask("POST", "/chats/c/messages", key=f"m{number}", json={"text": f"{number} {WORDS}"})
            assert status == 202
            await asyncio.sleep(chance.uniform(0, 0.2))

    async def read(http: aiohttp.ClientSession, *servers: Server) -> None:
        async with asyncio.timeout(500):
            seen: list[Sent] = []
            async for sent in Client(http, "t-ada", *servers).follow("/chats/c/events"):
                seen.append(sent)
                if _ends(count)(seen):
                    break
        _check(seen, [_reply(number, f"{number} {WORDS}") for number in range(1, count + 1)])

    try:
        async with _connected() as http, asyncio.TaskGroup() as group:
            killing = group.create_task(kill_often())
            await asyncio.gather(write(http), read(http, *workers), read(http, *workers[::-1]))
            done.set()
            await killing
    finally:
        for worker in workers:
            worker.kill()
    print(sum(worker.kills for worker in workers), "kills")


@pytest.fixture(scope="module")
def worker(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    running = _worker(programs, tmp_path_factory.mktemp("chat"), CHAT_PACE="0.01")
    running.start()
    yield running
    running.kill()


async def test_a_reader_reconnects_behind_any_event_and_gets_the_rest(worker: Server) -> None:
    async with _connected() as http:
        ada = Client(http, "t-ada", worker)
        await ada.ask("POST", "/chats/again/messages", key="m", json={"text": WORDS})
        whole = await _until(ada.follow("/chats/again/events"), _ends(1))
        for number, sent in enumerate(whole[:-1], 1):
            assert await _until(ada.follow("/chats/again/events", sent.id), _ends(1)) == whole[number:]


async def test_a_reader_whose_worker_was_killed_gets_a_gap_and_then_the_reply_from_the_next_one(
    programs: Programs, tmp_path: Path
) -> None:
    worker = _worker(programs, tmp_path, CHAT_PACE="0.02")
    try:
        worker.start()
        async with _connected() as http:
            ada = Client(http, "t-ada", worker)
            await ada.ask("POST", "/chats/c/messages", key="m", json={"text": WORDS})
            before = await _until(ada.follow("/chats/c/events"), lambda seen: _words(seen).count(" ") > 5)
            worker.kill()
            worker.start()
            after = await _until(ada.follow("/chats/c/events", before[-1].id), _ends(1))
        assert [sent.name for sent in after].count("gap") == 1
        _check(before + after, [_reply(1, WORDS)])
        assert _words(before + after) == _reply(1, WORDS)
    finally:
        worker.kill()


async def test_a_reply_is_stopped(worker: Server) -> None:
    async with _connected() as http:
        ada = Client(http, "t-ada", worker)
        await ada.ask("POST", "/chats/long/messages", key="m", json={"text": "word " * 5_000})
        reader = ada.follow("/chats/long/events")
        await _until(reader, lambda seen: seen[-1].name == "delta")
        assert await ada.ask("POST", "/chats/long/stop") == (202, {"stop": "requested"})
        assert (await _until(reader, _ends(1)))[-1].data == {"status": "cancelled", "message": "stopped by the user"}


async def test_a_user_gets_only_their_own_chats(worker: Server) -> None:
    async with _connected() as http:
        ada, bob = (Client(http, f"t-{name}", worker) for name in ("ada", "bob"))
        await ada.ask("POST", "/chats/mine/messages", key="m", json={"text": "Ada's secret"})
        theirs = (await _until(ada.follow("/chats/mine/events"), _ends(1)))[-1]
        await bob.ask("POST", "/chats/mine/messages", key="m", json={"text": "Hello"})
        seen = await _until(bob.follow("/chats/mine/events"), _ends(1))
        assert "secret" not in str(seen)
        assert (await Client(http, "t-eve", worker).ask("GET", "/chats/mine/events"))[0] == 403
        async with http.get(
            f"{worker.url}/chats/mine/events", headers={"Authorization": "Bearer t-bob", "Last-Event-ID": theirs.id}
        ) as answer:
            assert (answer.status, (await answer.json())["error"]) == (400, "CursorInvalid")


async def test_bad_requests_are_refused_by_name(worker: Server) -> None:
    async with _connected() as http:
        ada = Client(http, "t-ada", worker)
        path = "/chats/bad/messages"
        assert (await ada.ask("POST", path, json={"text": "Hello"}))[0] == 400  # no key
        assert (await ada.ask("POST", path, key="k", json={"text": "Hello", "user": "bob"}))[0] == 400
        assert (await ada.ask("POST", path, key="k", data=b" " * 100_000))[0] == 413
        assert (await ada.ask("POST", path, key="k", json={"text": "Hello"}))[0] == 202
        assert (await ada.ask("POST", path, key="k", json={"text": "Bye"}))[1]["error"] == "KeyConflict"
        assert (await ada.ask("POST", "/chats/never/stop"))[0] == 404
        assert (await ada.ask("GET", "/chats/%20/events"))[1]["error"] == "InvalidId"


async def test_a_worker_that_is_asked_to_stop_ends_its_streams_and_leaves_no_traceback(
    programs: Programs, tmp_path: Path
) -> None:
    worker = _worker(programs, tmp_path)
    worker.start()
    async with _connected() as http:
        ada = Client(http, "t-ada", worker)
        await ada.ask("POST", "/chats/c/messages", key="m", json={"text": "Hi"})
        headers = {"Authorization": "Bearer t-ada"}
        async with http.get(f"{worker.url}/chats/c/events", headers=headers) as answer:
            await answer.content.readuntil(b"event: delta")
            stopped = asyncio.to_thread(worker.stop)
            _, code = await asyncio.gather(answer.content.read(), stopped)
    assert code == -signal.SIGTERM
    assert "Traceback" not in worker.log


async def test_a_slow_reader_holds_up_nobody_and_catches_up_with_few_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"STORE": str(tmp_path / "chat.db"), "TOKENS": TOKENS, "PACE": "0"}.items():
        monkeypatch.setenv(f"CHAT_{name}", value)
    service = _imported()
    reading, sent = asyncio.Event(), bytearray()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: dict[str, Any]) -> None:
        sent.extend(message.get("body", b""))
        if b"event: delta" in sent:
            await reading.wait()

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/chats/c/events",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer t-ada")],
    }
    words = "a " * 2_500
    async with service.lifespan(service.app), asyncio.timeout(PATIENCE):
        runtime = service.app.state.runtime
        following = asyncio.create_task(service.app(scope, receive, send))
        session = runtime.session("chat/ada/c", agent=service.chat, metadata={"user": "ada"})
        turn = await session.send(words, key="m")
        assert (await turn.outcome()).text == _reply(1, words.rstrip() + " ")
        assert b"event: gap" not in sent
        reading.set()
        while b"event: end" not in sent:
            await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    deltas = [json.loads(frame.split(b"data: ")[1]) for frame in sent.split(b"\n\n") if b"event: delta" in frame]
    assert "".join(delta["text"] for delta in deltas) == _reply(1, words)
    assert len(deltas) < 100
    assert sent.count(b"event: message") == 1


@pytest.mark.parametrize("tokens", ["=ada", "t-ada=ada =bob", "t-ada=", "t-ada"])
@pytest.mark.parametrize("example", ["chat_service", "refund_desk"])
def test_a_service_whose_tokens_have_an_empty_one_does_not_start(
    example: str, tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT_TOKENS", tokens)
    monkeypatch.setenv("DESK_TOKENS", tokens)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    with pytest.raises(ValueError, match="TOKEN=WHO"):  # else who sends no token is somebody
        runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name=example)


def _imported() -> Any:
    spec = importlib.util.spec_from_file_location("chat_service", EXAMPLES / "chat_service.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
