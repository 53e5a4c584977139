"""The sockets of a store: who has not its key gets nothing and says nothing, and nobody else comes near them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.behaviour.played import Gate, PlayedModel
from tests.behaviour.talk import until
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import StoreInWorkspace
from holdfast.events import TERMINAL
from holdfast.messages import ModelReply, StreamEnd, StreamEvent, StreamStart, TextChunk
from holdfast.runtime import side_channel
from holdfast.runtime.runtime import context_of
from holdfast.store.paths import live_folder
from holdfast.store.sqlite.sockets import StoreSockets
from holdfast.testing import ScriptedModel, stream

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator
    from pathlib import Path

    from holdfast.runtime.side_channel import LiveSender

KEY = b"k" * 32


def _played(*parts: str | Gate) -> hf.Agent:
    said: list[StreamEvent | Gate] = [TextChunk(part) if isinstance(part, str) else part for part in parts]
    end = StreamEnd(ModelReply((hf.Text("said"),), "stop", model="played:model"))
    return hf.Agent("a", model=PlayedModel(StreamStart("played:model"), *said, end))


def _sender(runtime: hf.Runtime) -> LiveSender:
    sender = context_of(runtime).changes.sender
    assert sender is not None
    return sender


async def _seen(events: AsyncIterator[hf.Event], enough: Callable[[hf.Event], bool] | None = None) -> list[hf.Event]:
    found: list[hf.Event] = []
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            found.append(event)
            if isinstance(event, TERMINAL) or (enough is not None and enough(event)):
                break
    return found


def _text(events: list[hf.Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, hf.TextDelta))


def _frame(message: object) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


async def _message(reader: asyncio.StreamReader) -> list[object]:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return msgspec.msgpack.decode(await reader.readexactly(size), type=list[object])


async def _dial(runtime: hf.Runtime) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the socket of a runtime, by a process that may have anything but the key."""
    sockets = runtime.store.sockets
    assert sockets is not None
    made = await sockets.connect(_sender(runtime).name)
    assert made is not None
    return await asyncio.open_connection(sock=made)


@contextmanager
def _listening(path: Path, talk: Callable[[socket.socket], Awaitable[None]]) -> Generator[list[bytes]]:
    """A forged socket in the folder of a store, which talks to whoever comes."""
    forger = StoreSockets(path, KEY)
    listener = forger.listen()
    tasks: list[asyncio.Task[None]] = []
    peers: list[socket.socket] = []
    heard: list[bytes] = []

    def accept() -> None:
        peer, _ = listener.socket.accept()
        peer.setblocking(False)
        peers.append(peer)

        async def serve() -> None:
            await talk(peer)
            while data := await asyncio.get_running_loop().sock_recv(peer, 65_536):
                heard.append(data)

        tasks.append(asyncio.create_task(serve()))

    asyncio.get_running_loop().add_reader(listener.socket, accept)
    try:
        yield heard
    finally:
        asyncio.get_running_loop().remove_reader(listener.socket)
        for task in tasks:
            task.cancel()
        for peer in peers:
            peer.close()
        forger.close(listener)


# ---- who pretends to be a driving process ----


async def _says_hello(peer: socket.socket) -> None:
    hello = [1, side_channel.release_name(), b"n" * 32]
    welcome = [3, b"m" * 32]
    forged = [6, "s", "0" * 8, 99, 0, 1, 0, -1, False, [(0, "text_delta", "t1", 4, {"text": "forged"})]]
    await asyncio.get_running_loop().sock_sendall(peer, _frame(hello) + _frame(welcome) + _frame(forged))


async def test_a_forged_driver_is_refused_and_the_stream_goes_on_with_a_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, agent = tmp_path / "s.db", hf.Agent("a", model=ScriptedModel([stream("real")]))
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        with _listening(path, _says_hello) as heard:
            events = web.session("s").events()
            reading = asyncio.create_task(_seen(events))
            await until(lambda: "does not have the key" in caplog.text)
            await driver.session("s", agent=agent).send("hello")
            seen = await reading
        assert _text(seen) == "real"
        assert [type(event) for event in seen].count(hf.events.Gap) == 1
        assert caplog.text.count("PeerRefused") + caplog.text.count("does not have the key") == 1  # not again and again
        assert isinstance(seen[-1], hf.TurnCompleted)
        key = driver.store.sockets.key if driver.store.sockets else b""
        assert key not in b"".join(heard)


async def test_a_forged_driver_that_speaks_first_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def talks(peer: socket.socket) -> None:
        forged: list[object] = [6, "s", "0" * 8, 99, 0, 1, 0, -1, False, []]
        await asyncio.get_running_loop().sock_sendall(peer, _frame(forged))

    path, agent = tmp_path / "s.db", hf.Agent("a", model=ScriptedModel([stream("real")]))
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        with _listening(path, talks):
            await driver.session("s", agent=agent).send("hello")
            assert _text(await _seen(web.session("s").events())) == "real"
    assert "does not keep to the protocol" in caplog.text


async def test_a_forged_driver_that_says_nothing_holds_up_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(peer: socket.socket) -> None:
        """Say nothing."""

    monkeypatch.setattr(side_channel, "PROOF_WAIT", 0.5)
    monkeypatch.setattr(side_channel, "RETRY", 60)
    path, agent = tmp_path / "s.db", hf.Agent("a", model=ScriptedModel([stream("real")]))
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        with _listening(path, silent):
            await driver.session("s", agent=agent).send("hello")
            assert _text(await _seen(web.session("s").events())) == "real"
            receiver = context_of(web).changes.receiver
            assert receiver is not None
            await until(lambda: receiver.links.keys() == {_sender(driver).name})


async def test_a_driver_of_another_release_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def other(peer: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(peer, _frame([1, "another", b"n" * 32]))

    path, agent = tmp_path / "s.db", hf.Agent("a", model=ScriptedModel([stream("real")]))
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        with _listening(path, other):
            await driver.session("s", agent=agent).send("hello")
            await _seen(web.session("s").events())
    assert "another release of Holdfast" in caplog.text


# ---- who pretends to be a reader ----


@pytest.mark.parametrize(
    "answer",
    {
        "a wrong proof": _frame([2, b"n" * 32, b"m" * 32]),
        "no proof": _frame([4, 1, [""], []]),
        "a short nonce": _frame([2, b"", b"m" * 32]),
        "garbage": b"\0\0\0\x04junk",
        "a message without end": b"\xff\xff\xff\xff" + b"x" * 100,
        "more than a proof needs": _frame([2, b"n" * 5_000, b"m"]),
    }.items(),
    ids=lambda found: found[0],
)
async def test_a_forged_reader_gets_a_challenge_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: tuple[str, bytes]
) -> None:
    gate = Gate()
    agent = _played("one ", gate, "two")
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        await driver.session("s", agent=agent).send("hello")
        events = web.session("s").events()
        seen = await _seen(events, lambda event: isinstance(event, hf.TextDelta))
        reader, writer = await _dial(driver)
        assert (await _message(reader))[0] == 1
        writer.write(answer[1])
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()
        assert "was refused" in caplog.text
        gate.opened.set()
        assert _text(seen + await _seen(events)) == "one two"


async def test_the_proof_of_one_connection_is_good_for_no_other(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with hf.open(path) as driver:
        sender = _sender(driver)
        first, writing = await _dial(driver)
        nonce = (await _message(first))[2]
        assert isinstance(nonce, bytes)
        own = b"n" * 32
        proof = _frame([2, own, side_channel.proof_of(sender.sockets.key, b"receiver", sender.name, nonce, own)])
        writing.write(proof)
        async with asyncio.timeout(PATIENCE):
            assert (await _message(first))[0] == 3
        second, again = await _dial(driver)
        await _message(second)
        again.write(proof)
        async with asyncio.timeout(PATIENCE):
            assert await second.read() == b""
        writing.close()
        again.close()


async def test_a_process_of_another_user_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_user(self: StoreSockets, peer: socket.socket) -> bool:
        return False

    async with hf.open(tmp_path / "s.db") as driver:
        monkeypatch.setattr(StoreSockets, "own_user", other_user)
        reader, writer = await _dial(driver)
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()
    assert "runs as another user" in caplog.text


async def test_more_readers_than_there_is_room_for_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_channel, "MAX_RECEIVERS", 1)
    async with hf.open(tmp_path / "s.db") as driver:
        reader, writer = await _dial(driver)
        await _message(reader)
        other, closing = await _dial(driver)
        async with asyncio.timeout(PATIENCE):
            assert await other.read() == b""
        writer.close()
        closing.close()
    assert "1 processes follow this one already" in caplog.text


# ---- the folder ----


async def test_a_folder_that_others_may_enter_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, agent = tmp_path / "s.db", hf.Agent("a", model=ScriptedModel([stream("one")]))
    folder = live_folder(path)
    folder.mkdir()
    folder.chmod(0o755)
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        turn = await driver.session("s", agent=agent).send("hello")
        seen = await _seen(web.session("s").turn(turn.id).events())
        assert context_of(driver).changes.sender is None
        assert isinstance(seen[-1], hf.TurnCompleted)
        assert not list(folder.iterdir())
    assert f"others may enter {folder} (mode 0755); run: chmod 700" in caplog.text
    assert {record.levelno for record in caplog.records if record.name == "holdfast.live"} == {logging.ERROR}


@pytest.mark.parametrize("what", ["link", "file"])
async def test_a_folder_that_is_none_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str) -> None:
    path = tmp_path / "s.db"
    folder, elsewhere = live_folder(path), tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if what == "link":
        folder.symlink_to(elsewhere)
    else:
        folder.write_text("mine")
    async with hf.open(path) as driver:
        assert context_of(driver).changes.sender is None
    assert "is no folder" in caplog.text
    assert not list(elsewhere.iterdir())
    assert what == "link" or folder.read_text() == "mine"


async def test_no_tool_may_work_in_the_folder_of_the_sockets(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    folder = live_folder(path)
    folder.mkdir(mode=0o700)
    agent = hf.Agent("a", model=ScriptedModel([]), tools=hf.tools.files(folder), policy=[hf.allow("*")])
    with pytest.raises(StoreInWorkspace):
        async with hf.open(path, agents=[agent]):
            pass
