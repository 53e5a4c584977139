"""Live events reach every process that has the store open, in their place among the records, or are told as a gap.

Two runtimes on one file are two processes to each other, also in one process: each has its own writer and its sockets.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from tests.behaviour.played import Gate, PlayedModel
from tests.behaviour.talk import at_rest, until
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import SocketsUnusable
from holdfast.events import TERMINAL, RecordEvent
from holdfast.messages import ModelReply, StreamEnd, StreamEvent, StreamStart, TextChunk
from holdfast.runtime import changes, side_channel
from holdfast.runtime.runtime import context_of
from holdfast.store import view_store
from holdfast.store.paths import live_folder
from holdfast.store.sqlite import sockets
from holdfast.testing import ScriptedModel, call, stream, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from tests.behaviour.shell import Shell

    from holdfast.runtime.side_channel import LiveSender, SenderLink

RECORDS = get_args(RecordEvent)


def _played(*parts: str | Gate) -> hf.Agent:
    """An agent that says these words, and stops at the gates between them."""
    said: list[StreamEvent | Gate] = [TextChunk(part) if isinstance(part, str) else part for part in parts]
    words = "".join(part for part in parts if isinstance(part, str))
    end = StreamEnd(ModelReply((hf.Text(words),), "stop", model="played:model"))
    return hf.Agent("a", model=PlayedModel(StreamStart("played:model"), *said, end))


async def _until(events: AsyncIterator[hf.Event], enough: Callable[[hf.Event], bool]) -> list[hf.Event]:
    found: list[hf.Event] = []
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            found.append(event)
            if enough(event):
                break
    return found


def _ends(event: hf.Event) -> bool:
    return isinstance(event, TERMINAL)


def _answers(event: hf.Event) -> bool:
    return isinstance(event, hf.MessageCommitted) and isinstance(event.message, hf.AssistantMessage)


def _says(words: str) -> Callable[[hf.Event], bool]:
    """True at the event with which these words are complete."""
    said: list[str] = []

    def complete(event: hf.Event) -> bool:
        said.extend([event.text] if isinstance(event, hf.TextDelta) else [])
        return words in "".join(said)

    return complete


def _text(events: Iterable[hf.Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, hf.TextDelta))


def _gaps(events: Iterable[hf.Event]) -> list[str]:
    return [event.reason for event in events if isinstance(event, hf.events.Gap)]


def _sender(runtime: hf.Runtime) -> LiveSender:
    sender = context_of(runtime).changes.sender
    assert sender is not None
    return sender


def _receiving(runtime: hf.Runtime) -> SenderLink:
    """The connection of a reading process to the only driving one."""
    receiver = context_of(runtime).changes.receiver
    assert receiver is not None
    (link,) = receiver.links.values()
    return link


def _on(runtime: hf.Runtime, turn: hf.Turn) -> AsyncIterator[hf.Event]:
    """What a handler is called with."""
    seen: asyncio.Queue[hf.Event] = asyncio.Queue()
    runtime.on(Any, seen.put_nowait, session=turn.session, after=0)

    async def heard() -> AsyncIterator[hf.Event]:
        while True:
            yield await seen.get()

    return heard()


STREAMS: dict[str, Callable[[hf.Runtime, hf.Turn], AsyncIterator[hf.Event]]] = {
    "turn": lambda runtime, turn: runtime.session(turn.session).turn(turn.id).events(),
    "session": lambda runtime, turn: runtime.session(turn.session).events(),
    "runtime": lambda runtime, _: runtime.events(after=0),
    "handler": _on,
}


# ---- in another process ----


@pytest.mark.parametrize("which", STREAMS)
async def test_text_is_read_in_another_process_while_the_model_still_writes(tmp_path: Path, which: str) -> None:
    first, second = Gate(), Gate()
    agent = _played("one ", first, "two ", second, "three")
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        turn = await driver.session("s", agent=agent).send("hello")
        events = STREAMS[which](web, turn)
        seen = await _until(events, _says("one "))
        first.opened.set()
        seen += await _until(events, _says("two "))  # no record comes with it
        second.opened.set()
        seen += await _until(events, _ends)
        assert _text(seen) == "one two three"
        assert _gaps(seen) == []


OBSERVER = """
import asyncio, sys
import holdfast as hf
from holdfast.events import TERMINAL, encode

async def main(path):
    async with hf.open(path, drive=False) as runtime:
        print("ready", flush=True)
        async for event in runtime.session("s").events():
            print(encode(event).decode(), flush=True)
            if isinstance(event, TERMINAL):
                return

asyncio.run(main(sys.argv[1]))
"""


async def test_a_process_of_its_own_sees_the_same_events_as_the_driving_one(tmp_path: Path) -> None:
    path, gate = tmp_path / "s.db", Gate()
    agent = _played("one ", gate, "two")
    async with hf.open(path, agents=[agent]) as driver:
        session = driver.session("s", agent=agent)
        await session.send("hello")
        pipe = asyncio.subprocess.PIPE
        observer = await asyncio.create_subprocess_exec(sys.executable, "-c", OBSERVER, str(path), stdout=pipe)
        assert observer.stdout is not None
        seen: list[bytes] = []
        async with asyncio.timeout(PATIENCE):
            assert await observer.stdout.readline() == b"ready\n"
            while not seen or msgspec.json.decode(seen[-1])["event"] != "text_delta":
                seen.append(await observer.stdout.readline())
            gate.opened.set()
            seen += (await observer.stdout.read()).splitlines(keepends=True)
        await observer.wait()
        here = await _until(session.events(), _ends)
    assert seen == [hf.events.encode(event) + b"\n" for event in here]


async def test_a_cursor_of_one_process_continues_in_another_behind_every_event(tmp_path: Path) -> None:
    path, gate = tmp_path / "s.db", Gate()
    agent = _played("one ", gate, "two")
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        session = driver.session("s", agent=agent)
        await session.send("hello")
        there = web.session("s").events()
        whole = await _until(there, _says("one "))
        for number, event in enumerate(whole[:-1], 1):
            for runtime in (driver, web):
                rest = whole[number:]
                left = list(rest)
                behind = runtime.session("s").events(after=event.cursor)
                assert await _until(behind, lambda _, left=left: left.pop() is None or not left) == rest
        gate.opened.set()
        assert _text(whole + await _until(session.events(after=whole[-1].cursor), _ends)) == "one two"


async def test_a_cursor_of_the_runtime_continues_in_another_process(tmp_path: Path) -> None:
    path, gate = tmp_path / "s.db", Gate()
    agent = _played("one ", gate, "two")
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        await driver.session("s", agent=agent).send("hello")
        first = await _until(web.events(after=0), _says("one "))
        gate.opened.set()
        rest = await _until(driver.events(after=first[-1].cursor), _ends)
        assert _text(first + rest) == "one two"
        assert _gaps(first + rest) == []


async def test_a_reader_that_comes_when_a_quick_turn_has_ended_sees_its_live_events_in_another_process(
    tmp_path: Path,
) -> None:
    path, agent = tmp_path / "s.db", hf.Agent("a", model=ScriptedModel([stream("ten ", "it is")]))
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        turn = await driver.session("s", agent=agent).send("hello")
        await turn.outcome()
        await at_rest(driver)
        assert _text(await _until(web.session("s").turn(turn.id).events(), _ends)) == "ten it is"


async def test_a_session_that_goes_on_in_one_process_after_another_is_followed_through_both(tmp_path: Path) -> None:
    path, agent = tmp_path / "s.db", hf.Agent("a", model=ScriptedModel([stream("one"), stream("two")]))
    async with hf.open(path, agents=[agent], drive=False) as web:
        events = web.session("s").events()
        seen: list[hf.Event] = []
        for number in range(2):
            async with hf.open(path, agents=[agent]) as driver:
                await driver.session("s", agent=agent).send(f"hello {number}")
                seen += await _until(events, _ends)
        assert [_text(seen[: seen.index(end) + 1]) for end in seen if _ends(end)] == ["one", "onetwo"]


async def test_a_store_that_is_opened_only_to_be_read_gets_live_events(tmp_path: Path) -> None:
    path, gate = tmp_path / "s.db", Gate()
    agent = _played("one ", gate)
    async with hf.open(path, agents=[agent]) as driver:
        await driver.session("s", agent=agent).send("hello")
        async with view_store(path) as store, hf.Runtime(store, (), drive=False) as viewer:
            assert _text(await _until(viewer.session("s").events(), _says("one "))) == "one "
        gate.opened.set()


async def test_logs_that_follow_show_text_on_a_terminal_while_the_model_writes(shell: Shell) -> None:
    path, gate = shell.folder / "s.db", Gate()
    agent = _played("one ", gate, "two")

    def read(screen: int, wanted: str) -> str:
        seen = ""
        while wanted not in seen:
            seen += os.read(screen, 4096).decode()
        return seen

    async with hf.open(path, agents=[agent]) as driver, asyncio.timeout(PATIENCE):
        await driver.session("s", agent=agent).send("hello")
        with shell.on_terminal("logs", "-f", "s", "--store", str(path), NO_COLOR="1") as (process, screen):
            seen = await asyncio.to_thread(read, screen, "writes: one ")
            gate.opened.set()
            seen += await asyncio.to_thread(read, screen, "completed in 1 step")
            process.send_signal(signal.SIGTERM)
    assert "writes: one two\r\n" in seen
    assert "model: one two" in seen


async def test_logs_as_json_have_the_live_events(shell: Shell) -> None:
    path, agent = shell.folder / "s.db", hf.Agent("a", model=ScriptedModel([stream("one")]))
    async with hf.open(path, agents=[agent]) as driver, asyncio.timeout(PATIENCE):
        turn = await driver.session("s", agent=agent).send("hello")
        await turn.outcome()
        process = shell.start("logs", "-f", "s", "--json", "--store", str(path))
        kinds: list[str] = []
        assert process.stdout is not None
        while "turn_completed" not in kinds:
            kinds.append(msgspec.json.decode(await asyncio.to_thread(process.stdout.readline))["event"])
        process.send_signal(signal.SIGTERM)
    assert "text_delta" in kinds


# ---- late, slow, absent ----


async def test_live_events_that_come_after_the_next_record_was_shown_are_one_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, gate = tmp_path / "s.db", Gate()
    agent = _played("one ", gate, "two ", "three")
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        session = driver.session("s", agent=agent)
        await session.send("hello")
        events = web.session("s").events()
        seen = await _until(events, _says("one "))
        monkeypatch.setattr(changes, "ARRIVAL_WAIT", 0.01)
        link = _receiving(web)
        link.transport.pause_reading()
        gate.opened.set()
        seen += await _until(events, _answers)
        link.transport.resume_reading()
        seen += await _until(events, lambda event: isinstance(event, hf.events.Gap))
        assert _text(seen) == "one "
        await session.send("more")  # the stream goes on
        seen += await _until(events, _answers)
        assert len(_gaps(seen)) == 1


async def test_a_record_waits_for_the_live_events_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "ARRIVAL_WAIT", PATIENCE)
    path, gate = tmp_path / "s.db", Gate()
    agent = _played("one ", gate, "two")
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        turn = await driver.session("s", agent=agent).send("hello")
        events = web.session("s").events()
        seen = await _until(events, _says("one "))
        link = _receiving(web)
        link.transport.pause_reading()
        gate.opened.set()
        reading = asyncio.create_task(_until(events, _ends))
        await web.session("s").turn(turn.id).outcome(timeout=PATIENCE)  # its records are known here by now
        (mirror,) = context_of(web).changes.mirrors.values()
        await until(lambda: vars(mirror)["_waiting"])  # the reader has come to the record
        link.transport.resume_reading()
        seen += await reading
        assert _text(seen) == "one two"
        assert _gaps(seen) == []


async def test_a_receiver_that_does_not_read_loses_events_and_holds_nobody_up(tmp_path: Path) -> None:
    path, gate = tmp_path / "s.db", Gate()
    many = 2 * changes.MAX_EVENTS

    @hf.tool(read_only=True)
    async def report(ctx: hf.Context) -> str:
        """Report progress."""
        await gate.passed()
        for part in range(many):
            ctx.progress(f"{part} {'x' * 400}")
            if part % 50 == 0:
                await asyncio.sleep(0)
        return "done"

    agent = hf.Agent(
        "a",
        model=ScriptedModel([call(report), text("ok")]),
        tools=[report],
        policy=[hf.allow("*")],
    )
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        events = web.session("s").events()
        turn = await driver.session("s", agent=agent).send("hello")
        seen = await _until(events, lambda event: isinstance(event, hf.events.ToolCallStarted))
        await gate.wait()
        (link,) = _sender(driver).links
        other = _receiving(web)
        other.transport.pause_reading()
        gate.opened.set()
        outcome = await turn.outcome(timeout=PATIENCE)
        assert outcome.ok
        _sender(driver).send()
        waiting = link.transport.get_write_buffer_size()
        assert side_channel.MAX_UNSENT < waiting < side_channel.MAX_UNSENT + 2 * side_channel.PAGE_BYTES
        other.transport.resume_reading()
        seen += await _until(events, _ends)
        assert len(_gaps(seen)) >= 1
        assert [event for event in seen if isinstance(event, RECORDS)] == [
            event for event in await _until(driver.session("s").events(), _ends) if isinstance(event, RECORDS)
        ]


async def test_a_process_without_readers_is_not_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_channel, "LINGER", 0.05)
    path, agent = tmp_path / "s.db", hf.Agent("a", model=ScriptedModel([stream("one"), stream("two")]))
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        turn = await driver.session("s", agent=agent).send("hello")
        await web.session("s").turn(turn.id).outcome()
        assert not _sender(driver).links
        events = web.session("s").events()
        await _until(events, _ends)
        assert len(_sender(driver).links) == 1
        await events.aclose()
        await until(lambda: not _sender(driver).links)


async def test_more_sessions_than_can_be_named_are_followed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_channel, "MAX_FOLLOWED", 2)
    path, gate = tmp_path / "s.db", Gate()
    agent = _played(gate, "o", "ne")
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        names = [f"s{number}" for number in range(4)]
        reading = [asyncio.create_task(_until(web.session(name).events(), _ends)) for name in names]
        for name in names:
            await driver.session(name, agent=agent).send("hello")
        await until(lambda: len(context_of(web).changes.mirrors) == len(names))
        gate.opened.set()
        assert [_text(seen) for seen in await asyncio.gather(*reading)] == ["one"] * 4


# ---- the sockets ----


async def test_sockets_are_for_our_user_alone_and_go_with_the_processes(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    folder = live_folder(path)
    async with hf.open(path), hf.open(path, drive=False):
        (name,) = os.listdir(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
        async with hf.open(path):
            assert len(os.listdir(folder)) == 2
    assert not folder.exists()


async def test_a_store_in_memory_has_no_sockets() -> None:
    async with hf.open(None) as runtime:
        assert runtime.store.sockets is None
        assert context_of(runtime).changes.sender is None


async def test_the_socket_of_a_killed_process_is_removed_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    folder = live_folder(path)
    async with hf.open(path) as driver:
        assert driver.store.sockets is not None
        dead = driver.store.sockets.listen()
        dead.socket.close()
        assert (folder / dead.name).exists()
        async with hf.open(path):
            assert not (folder / dead.name).exists()


async def test_a_reader_removes_the_socket_of_a_killed_process(tmp_path: Path) -> None:
    path, agent = tmp_path / "s.db", hf.Agent("a", model=ScriptedModel([stream("one")]))
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        assert driver.store.sockets is not None
        dead = driver.store.sockets.listen()
        dead.socket.close()
        await driver.session("s", agent=agent).send("hello")
        assert _text(await _until(web.session("s").events(), _ends)) == "one"
        assert not (live_folder(path) / dead.name).exists()


async def test_a_path_that_is_too_long_for_a_socket_does_no_harm(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-rather-long-name"] * 8)
    deep.mkdir(parents=True, mode=0o700)
    path, agent = deep / "s.db", hf.Agent("a", model=ScriptedModel([stream("one")]))
    async with hf.open(path, agents=[agent]) as driver, hf.open(path, drive=False) as web:
        await driver.session("s", agent=agent).send("hello")
        assert _text(await _until(web.session("s").events(), _ends)) == "one"


async def test_a_path_that_is_too_long_is_told_where_the_system_has_no_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sockets, "_DESCRIPTORS", str(tmp_path / "none"))
    deep = tmp_path.joinpath(*["a-rather-long-name"] * 8)
    deep.mkdir(parents=True, mode=0o700)
    path, agent = deep / "s.db", hf.Agent("a", model=ScriptedModel([stream("one")]))
    async with hf.open(path, agents=[agent]) as driver:
        assert driver.store.sockets is not None
        with pytest.raises(SocketsUnusable):
            driver.store.sockets.listen()
        assert (await driver.run(agent, "hello")).ok
    assert "too long for a socket" in caplog.text
