"""Events as server-sent events: cursors are their ids, signs of life come in between, a closed runtime ends them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.events import TERMINAL, encode
from holdfast.sse import sse_stream
from holdfast.testing import ScriptedModel, stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


def _agent() -> hf.Agent:
    return hf.Agent("a", model=ScriptedModel([stream("ten ", "it is")]))


async def _until(frames: AsyncGenerator[bytes], enough: Callable[[bytes], bool]) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE):
        async for frame in frames:
            found.append(frame)
            if enough(frame):
                break
    return found


async def test_events_are_sent_whole_with_their_cursors_as_ids() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        await turn.outcome()
        events = [event async for event in turn.events()]
        first, *frames = await _until(sse_stream(turn.events()), lambda _: False)
    assert first == b"retry: 500\n\n"
    assert frames == [
        f"id: {event.cursor}\nevent: {msgspec.json.decode(encode(event))['event']}\ndata: ".encode()
        + encode(event)
        + b"\n\n"
        for event in events
    ]


async def test_what_a_reader_sees_is_chosen_and_named_by_the_host() -> None:
    agent = _agent()

    def show(event: hf.Event) -> tuple[str, Any] | None:
        return ("words", {"text": f"{event.text}\n"}) if isinstance(event, hf.TextDelta) else None

    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        frames = await _until(sse_stream(turn.events(), show), lambda _: False)
    data = [frame.decode().split("\n") for frame in frames[1:]]
    assert all(len(lines) == 5 and lines[1] == "event: words" for lines in data)  # a line break stays inside its line
    said = "".join(msgspec.json.decode(lines[2].removeprefix("data: "))["text"] for lines in data)
    assert said.replace("\n", "") == "ten it is"


@pytest.mark.parametrize("name", ["", "two\nlines", "two\rlines", 5])
async def test_a_name_that_would_break_the_stream_is_refused(name: Any) -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        with pytest.raises(hf.errors.InvalidArgument):
            await _until(sse_stream(turn.events(), lambda _: (name, None)), lambda _: False)


async def test_given_json_can_not_break_the_stream() -> None:
    agent, given = _agent(), msgspec.Raw(b'{"a":\r\n\nevent: evil\ndata: 1}')
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        frames = await _until(sse_stream(turn.events(), lambda _: ("x", given)), lambda _: False)
    assert all(frame.endswith(b'\nevent: x\ndata: {"a":   event: evil data: 1}\n\n') for frame in frames[1:])


async def test_a_comment_is_sent_while_nothing_happens_and_no_event_is_lost_by_it() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        frames = sse_stream(session.events(), heartbeat=0.01, retry=2)
        assert await _until(frames, lambda frame: frame == b":\n\n") == [b"retry: 2000\n\n", b":\n\n"]
        await session.send("hello")
        seen = await _until(frames, lambda frame: b"event: turn_completed" in frame)
        whole: list[hf.Event] = []
        async for event in session.events():
            whole.append(event)
            if isinstance(event, TERMINAL):
                break
        ids = [frame.split(b"\n")[0].removeprefix(b"id: ").decode() for frame in seen if frame != b":\n\n"]
        assert ids == [event.cursor for event in whole]


async def test_a_comment_is_sent_while_only_hidden_events_come() -> None:
    async def events() -> AsyncGenerator[hf.Event]:
        while True:
            yield hf.events.Gap(session="s", turn=None, at=0, seq=0, cursor="0", reason="")
            await asyncio.sleep(0.001)

    frames = sse_stream(events(), lambda _: None, heartbeat=0.02)
    assert await _until(frames, lambda frame: frame == b":\n\n") == [b"retry: 500\n\n", b":\n\n"]
    await frames.aclose()


async def test_a_reader_with_a_cursor_that_the_store_has_not_reached_is_sent_back_to_the_start() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("hello")
        ahead = [event async for event in turn.events()][-1].cursor
        async with hf.open(None, agents=[agent]) as restored:  # from a backup that is older
            frames = await _until(sse_stream(restored.session("s").events(after=ahead)), lambda _: False)
    assert frames == [b"retry: 500\n\n", b"id\nevent: reset\ndata: {}\n\n"]


async def test_a_reader_of_a_session_that_is_forgotten_is_sent_back_to_the_start() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("hello")).outcome()
        frames = sse_stream(session.events())
        await _until(frames, lambda frame: b"event: turn_completed" in frame)
        await runtime.forget("s")
        assert await _until(frames, lambda _: False) == [b"id\nevent: reset\ndata: {}\n\n"]


async def test_the_stream_ends_when_the_runtime_is_closed() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        frames = sse_stream(runtime.session("s").events())
        await anext(frames)
        reading = asyncio.create_task(_until(frames, lambda _: False))
        await asyncio.sleep(0)
        await runtime.close()
        assert await reading == []


async def _waiting(ended: asyncio.Event) -> AsyncGenerator[hf.Event]:
    """One event, and then none; `ended` is set when nobody reads any more."""
    try:
        yield hf.events.Gap(session="s", turn=None, at=0, seq=0, cursor="0", reason="")
        await asyncio.Event().wait()
    finally:
        ended.set()


async def test_a_reader_that_is_cancelled_while_nothing_happens_ends_the_reading() -> None:
    ended = asyncio.Event()
    events = _waiting(ended)
    reading = asyncio.create_task(_until(sse_stream(events, heartbeat=0.01), lambda _: False))
    async with asyncio.timeout(PATIENCE):
        await asyncio.sleep(0.03)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await ended.wait()


async def test_a_reader_that_leaves_after_an_event_ends_the_reading() -> None:
    ended = asyncio.Event()
    events = _waiting(ended)
    frames = sse_stream(events)
    assert len(await _until(frames, lambda frame: b"event: gap" in frame)) == 2
    await frames.aclose()
    assert ended.is_set()
