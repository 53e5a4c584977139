"""A model behind HTTP, against a server on the loopback that misbehaves in every way we could think of."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import traceback
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.every import every

import holdfast as hf
from holdfast.errors import InvalidArgument, InvalidNumber, ModelError, ModelUnknown, StreamCut
from holdfast.messages import (
    ModelReply,
    ModelRequest,
    StreamEnd,
    StreamEvent,
    StreamNote,
    StreamReset,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    Usage,
    UserMessage,
)
from holdfast.models import register, respond
from holdfast.models.dialect import Dialect, Endpoint, Frame, ResponseReader, WireRequest
from holdfast.models.http import HttpModel
from holdfast.models.limits import CallGate, CallLimits, next_slot, shared_gate
from holdfast.models.retry import Retry
from holdfast.models.sse import MAX_EVENT
from holdfast.models.transport import AiohttpTransport, Timeouts
from holdfast.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

CANARY = "sk-canary-0123456789"


# ---- a dialect of a few words ----------------------------------------------------------------------------------------


def encode_request(endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
    said = [message.text for message in request.messages if not isinstance(message, hf.ToolMessage)]
    body = json.dumps({"model": model, "said": said}).encode()
    return WireRequest("/say?alt=sse", body, {"x-tiny": "1"}, request.instructions.count("foreign"))


class TinyReader(ResponseReader):
    """Frames are objects with one of start, text, usage, pause, error, end."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        super().__init__(endpoint, model)
        self._text = ""
        self._usage = Usage()
        self._ended = False

    def feed(self, frame: Frame) -> list[StreamEvent]:
        found = _read(frame.data)
        match found:
            case {"start": _}:
                return [StreamStart(self._model)]
            case {"text": str(text)}:
                self._text += text
                return [TextChunk(text)]
            case {"usage": int(count)}:
                self._usage = Usage(output=count)
                return [StreamUsage(self._usage)]
            case {"error": str(kind)}:
                raise ModelError(f"the stream says {kind}, {found.get('detail')}", kind=kind, retryable=True)
            case {"end": _} | {"pause": _}:
                self._ended = True
                self.paused = "pause" in found
            case _:
                self.ignored += 1
        return []

    def finish(self) -> ModelReply:
        if not self._ended:
            raise StreamCut(self._model)
        return ModelReply((Text(self._text),), usage=self._usage)

    @property
    def complete(self) -> bool:
        return self._ended

    def read_body(self, body: bytes) -> ModelReply:
        found = _read(body)
        if "error" in found:
            raise ModelError(f"the body says {found['error']}", kind=found["error"], retryable=True)
        self.paused = "pause" in found
        return ModelReply((Text(found["text"]),), usage=Usage(output=1))


TINY = Dialect("tiny", encode_request, TinyReader, {})


def _read(data: bytes) -> dict[str, Any]:
    try:
        return json.loads(data)
    except ValueError:
        raise ModelError("no JSON", kind="bad_frame", retryable=True) from None


# ---- a server that does as it is told --------------------------------------------------------------------------------


class Exchange:
    """One request, and the connection on which the answer goes."""

    def __init__(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.line, *lines = head.split("\r\n")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        self.body = b""
        self._reader = reader
        self._writer = writer

    async def begin(self, status: int = 200, kind: str = "text/event-stream", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} x", f"content-type: {kind}", "transfer-encoding: chunked"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.raw(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def send(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def say(self, *frames: dict[str, Any]) -> None:
        for frame in frames:
            await self.send(f"data: {json.dumps(frame)}\n\n".encode())

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def abort(self) -> None:
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()

    async def gone(self) -> None:
        """Until the other side has closed the connection."""
        try:
            while await self._reader.read(1_000):
                pass
        except ConnectionError:
            pass


class Loopback:
    """Gives each request the next answer; the last one again and again."""

    def __init__(self, *answers: Callable[[Exchange], Awaitable[None]]) -> None:
        self.answers = list(answers)
        self.exchanges: list[Exchange] = []
        self.connections = 0
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                exchange = Exchange(head, reader, writer)
                exchange.body = await reader.readexactly(int(exchange.headers["content-length"]))
                self.exchanges.append(exchange)
                await self.answers[min(len(self.exchanges), len(self.answers)) - 1](exchange)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def serving(*answers: Callable[[Exchange], Awaitable[None]]) -> AsyncGenerator[Loopback, None]:
    loopback = Loopback(*answers)
    server = await asyncio.start_server(loopback.serve, "127.0.0.1", 0)
    loopback.port = server.sockets[0].getsockname()[1]
    try:
        yield loopback
    finally:
        server.close()
        loopback.close()
        await server.wait_closed()


class Pauses:
    """Sleeps in no time, and remembers how long it should have been."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)


def tiny(server: Loopback | str, **more: Any) -> HttpModel:
    url = server if isinstance(server, str) else server.url
    auth, keys = more.pop("auth", "bearer"), more.pop("keys", ())
    endpoint = Endpoint(provider="tiny", dialect="tiny", base_url=url, keys=keys, auth=auth)
    more.setdefault("sleep", Pauses().sleep)
    return HttpModel(endpoint, "m1", TINY, **more)


REQUEST = ModelRequest(messages=(UserMessage("u1", (Text("hello"),)),))


async def events_of(model: HttpModel, request: ModelRequest = REQUEST) -> list[StreamEvent]:
    return [event async for event in model.stream(request)]


# ---- answers ---------------------------------------------------------------------------------------------------------


async def good(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.say({"start": 1}, {"text": "good "}, {"text": "day"}, {"usage": 3}, {"end": True})
    await exchange.end()


def refusing(status: int, words: str = "", **headers: str) -> Callable[[Exchange], Awaitable[None]]:
    async def answer(exchange: Exchange) -> None:
        await exchange.begin(status, "text/plain", **headers)
        if words:
            await exchange.send(words.encode())
        await exchange.end()

    return answer


def cut_after(count: int, *, clean: bool) -> Callable[[Exchange], Awaitable[None]]:
    async def answer(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"start": 1}, *({"text": f"{n} "} for n in range(count)), {"usage": 2})
        await (exchange.end() if clean else asyncio.sleep(0))
        if not clean:
            exchange.abort()

    return answer


async def dropping(exchange: Exchange) -> None:
    exchange.abort()


async def silent(exchange: Exchange) -> None:
    await exchange.gone()


async def stalling(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.say({"start": 1}, {"text": "wait"})
    await exchange.gone()


# ---- the good case ---------------------------------------------------------------------------------------------------


async def test_a_stream_gives_its_events_and_ends_with_the_reply() -> None:
    async with serving(good) as server:
        events = await events_of(tiny(server))
    assert events[:-1] == [StreamStart("m1"), TextChunk("good "), TextChunk("day"), StreamUsage(Usage(output=3))]
    end = events[-1]
    assert isinstance(end, StreamEnd)
    wanted = ModelReply((Text("good day"),), usage=Usage(output=3), model="tiny:m1")
    assert msgspec.structs.replace(end.reply, attempts=()) == wanted


async def test_the_request_carries_what_dialect_and_endpoint_say() -> None:
    async with serving(good) as server:
        await tiny(server, api_key="k-1234567890").respond(REQUEST)
    sent = server.exchanges[0]
    assert sent.line == "POST /v1/say?alt=sse HTTP/1.1"
    assert json.loads(sent.body) == {"model": "m1", "said": ["hello"]}
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["x-tiny"] == "1"
    assert sent.headers["user-agent"].startswith("holdfast/")


async def test_calls_one_after_the_other_use_one_connection() -> None:
    async with serving(good) as server:
        model = tiny(server)
        for _ in range(3):
            await model.respond(REQUEST)
        assert server.connections == 1


async def test_parts_made_elsewhere_that_were_left_out_are_told() -> None:
    async with serving(good) as server:
        events = await events_of(tiny(server), ModelRequest(messages=REQUEST.messages, instructions="foreign foreign"))
    assert isinstance(events[0], StreamNote)
    assert (events[0].kind, events[0].detail[:8]) == ("replay_dropped", "2 parts ")


async def test_a_body_that_is_no_stream_is_read_as_a_whole() -> None:
    async def whole(exchange: Exchange) -> None:
        await exchange.begin(kind="application/json; charset=utf-8")
        await exchange.send(b'{"text": ')
        await exchange.send(b'"at once"}')
        await exchange.end()

    async with serving(whole) as server:
        events = await events_of(tiny(server))
    assert events[:3] == [StreamStart("tiny:m1"), TextChunk("at once"), StreamUsage(Usage(output=1))]
    assert isinstance(events[-1], StreamEnd)


async def test_a_stream_under_a_strange_content_type_is_read_nevertheless() -> None:
    async def strange(exchange: Exchange) -> None:
        await exchange.begin(kind="application/octet-stream")
        await exchange.say({"text": "still here"}, {"end": True})
        await exchange.end()

    async with serving(strange) as server:
        assert (await tiny(server).respond(REQUEST)).text == "still here"


async def test_a_web_page_is_no_answer() -> None:
    async def page(exchange: Exchange) -> None:
        await exchange.begin(kind="text/html")
        await exchange.send(b"<h1>Please log in</h1>")
        await exchange.end()

    async with serving(page) as server:
        with pytest.raises(ModelError) as caught:
            await tiny(server).respond(REQUEST)
        assert len(server.exchanges) == 1
        assert f"POST {server.url}/say:" in caught.value.message
    assert caught.value.kind == "web_page"
    assert "base_url" in caught.value.message
    assert "alt=sse" not in caught.value.message


PAGE = b"<!DOCTYPE html><html><head><title>Sign in\n to Acme</title></head><body><h1>Hi</h1></body></html>"
DIALECTS = ("anthropic", "responses", "chat", "google")


def page_answer(status: int, kind: str, body: bytes = PAGE, **headers: str) -> Callable[[Exchange], Awaitable[None]]:
    async def answer(exchange: Exchange) -> None:
        await exchange.begin(status, kind, **headers)
        await exchange.send(body)
        await exchange.end()

    return answer


async def failure_of(server: Loopback, dialect: str, **more: Any) -> ModelError:
    more.setdefault("retry", Retry(first=0.001, longest=0.002))
    model = hf.model("mine:small", base_url=server.url, dialect=dialect, api_key="not-a-real-key", **more)
    with pytest.raises(ModelError) as caught:
        await respond(model, REQUEST)
    return caught.value


@pytest.mark.parametrize("kind", ["text/html", "text/event-stream", "application/json"])
@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_web_page_is_named_with_its_address_and_not_asked_for_again(
    dialect: str, status: int, kind: str
) -> None:
    async with serving(page_answer(status, kind)) as server:
        error = await failure_of(server, dialect)
        assert len(server.exchanges) == 1
        assert f"POST {server.url}" in error.message
    assert error.kind == "web_page"
    assert "'Sign in to Acme'" in error.message
    assert "base_url" in error.message
    assert "<" not in error.message


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_web_page_of_a_gateway_that_is_down_is_tried_again_and_not_quoted(dialect: str) -> None:
    async with serving(page_answer(502, "text/html")) as server:
        error = await failure_of(server, dialect)
        assert len(server.exchanges) == 4
    assert error.kind == "server_error"
    assert "a web page ('Sign in to Acme')" in error.message
    assert "<" not in error.message
    assert all("<" not in line.message for line in error.attempts)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_web_page_inside_the_words_of_a_refusal_is_not_quoted(dialect: str) -> None:
    words = json.dumps({"error": {"message": f"upstream said {PAGE.decode()} and gave up"}}).encode()
    async with serving(page_answer(400, "application/json", words)) as server:
        error = await failure_of(server, dialect)
    assert "upstream said a web page ('Sign in to Acme') and gave up" in error.message


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_redirect_names_both_addresses_and_is_not_tried_again(dialect: str, status: int) -> None:
    moved = page_answer(status, "text/html", location="https://login.example.org/start?token=secret")
    async with serving(moved) as server:
        error = await failure_of(server, dialect)
        assert len(server.exchanges) == 1
        assert f"a redirect to https://login.example.org/start (POST {server.url}" in error.message
    assert error.kind == "redirect"
    assert "base_url" in error.message
    assert "secret" not in error.message


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_nothing_at_an_address_names_the_address_and_is_not_tried_again(dialect: str) -> None:
    async with serving(page_answer(404, "application/json", b'{"error":{"message":"no such route"}}')) as server:
        error = await failure_of(server, dialect)
        assert len(server.exchanges) == 1
        assert f"POST {server.url}" in error.message
    assert error.kind == "not_found"
    assert "no such route" in error.message
    assert "base_url" in error.message


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_pause_that_is_longer_than_allowed_is_told_with_both_numbers(dialect: str) -> None:
    busy = page_answer(429, "application/json", b'{"error":{"message":"slow down"}}', retry_after="300")
    async with serving(busy) as server:
        error = await failure_of(server, dialect)
        assert len(server.exchanges) == 1
    assert "it asks for a pause of 300.0 s, and Retry.longest_asked allows 120.0 s" in error.message


async def test_a_provider_that_pauses_gets_back_what_it_said_and_goes_on() -> None:
    async def pausing(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"start": 1}, {"text": "first "}, {"usage": 2}, {"pause": True})
        await exchange.end()

    async with serving(pausing, good) as server:
        events = await events_of(tiny(server))
    assert json.loads(server.exchanges[1].body)["said"] == ["hello", "first "]
    end = events[-1]
    assert isinstance(end, StreamEnd)
    assert (end.reply.text, end.reply.usage) == ("first good day", Usage(output=5))
    assert [line.outcome for line in end.reply.attempts] == ["paused", "completed"]
    assert sum(isinstance(event, StreamStart) for event in events) == 1
    assert [event.usage.output for event in events if isinstance(event, StreamUsage)] == [2, 5]


async def test_a_failure_after_a_pause_shows_again_what_still_counts() -> None:
    async def pausing(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"text": "first "}, {"pause": True})
        await exchange.end()

    async with serving(pausing, cut_after(1, clean=True), good) as server:
        events = await events_of(tiny(server))
    reset = next(at for at, event in enumerate(events) if isinstance(event, StreamReset))
    shown = "".join(event.text for event in events[reset:] if isinstance(event, TextChunk))
    assert shown == "first good day"
    assert isinstance(events[-1], StreamEnd)
    assert events[-1].reply.text == shown


async def test_a_body_that_is_no_stream_may_pause_too() -> None:
    async def paused(exchange: Exchange) -> None:
        await exchange.begin(kind="application/json")
        await exchange.send(b'{"text": "first ", "pause": 1}')
        await exchange.end()

    async with serving(paused, good) as server:
        reply = await tiny(server).respond(REQUEST)
    assert reply.text == "first good day"


async def test_a_reply_is_not_held_back_by_a_body_that_does_not_end() -> None:
    async def held(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"start": 1}, {"text": "all of it"}, {"end": True})
        await exchange.gone()

    async with serving(held) as server:
        reply = await tiny(server, timeouts=Timeouts(rest=0.05, idle=30)).respond(REQUEST)
    assert reply.text == "all of it"


async def test_a_provider_that_keeps_saying_that_it_is_there_does_not_hold_back_its_reply() -> None:
    async def chatty(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"start": 1}, {"text": "all of it"}, {"end": True})
        with suppress(ConnectionError):
            while True:
                await exchange.send(b": ping\n\n")
                await asyncio.sleep(0.01)

    async with serving(chatty) as server, asyncio.timeout(10):
        reply = await tiny(server, timeouts=Timeouts(rest=0.1)).respond(REQUEST)
    assert reply.text == "all of it"


async def test_what_can_not_be_read_after_the_last_word_takes_nothing_away() -> None:
    async def noisy(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"start": 1}, {"text": "all of it"}, {"end": True})
        await exchange.send(b"data: {nonsense\n\n")
        await exchange.end()

    async with serving(noisy) as server:
        reply = await tiny(server).respond(REQUEST)
        assert (reply.text, len(server.exchanges)) == ("all of it", 1)


async def test_a_function_that_gives_no_key_in_time_has_failed() -> None:
    async def never() -> str:
        return await asyncio.get_running_loop().create_future()

    async with serving(good) as server:
        with pytest.raises(ModelError, match="took longer") as caught:
            await tiny(server, api_key=never, timeouts=Timeouts(connect=0.05)).respond(REQUEST)
    assert caught.value.kind == "authentication"


async def test_frames_that_nobody_knows_are_counted_in_the_ledger() -> None:
    async def odd(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"start": 1}, {"novelty": 1}, {"text": "ok"}, {"novelty": 2}, {"end": True})
        await exchange.end()

    async with serving(odd) as server:
        reply = await tiny(server).respond(REQUEST)
    assert [line.ignored for line in reply.attempts] == [2]


async def test_numbers_that_follow_the_last_word_count() -> None:
    async def late(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"start": 1}, {"text": "all of it"}, {"end": True})
        await exchange.say({"usage": 7})
        await exchange.end()

    async with serving(late) as server:
        reply = await tiny(server).respond(REQUEST)
    assert reply.usage.output == 7


async def test_a_refusal_whose_words_do_not_come_is_acted_on() -> None:
    async def wordless(exchange: Exchange) -> None:
        await exchange.begin(503)
        await exchange.gone()

    async with serving(wordless, good) as server:
        reply = await tiny(server, timeouts=Timeouts(rest=0.05, idle=30)).respond(REQUEST)
    assert [line.outcome for line in reply.attempts] == ["overloaded", "completed"]


async def test_a_provider_that_pauses_for_ever_is_stopped() -> None:
    async def pausing(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"text": "."}, {"pause": True})
        await exchange.end()

    async with serving(pausing) as server:
        with pytest.raises(ModelError) as caught:
            await tiny(server).respond(REQUEST)
    assert caught.value.kind == "paused"


# ---- what fails and is tried again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_a_passing_failure_is_tried_again(status: int) -> None:
    async with serving(refusing(status, "come back"), good) as server:
        reply = await tiny(server).respond(REQUEST)
    assert reply.text == "good day"
    assert [(line.outcome == "completed", line.status) for line in reply.attempts] == [(False, status), (True, 200)]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
async def test_what_would_fail_again_is_asked_once(status: int) -> None:
    async with serving(refusing(status, "no")) as server:
        with pytest.raises(ModelError) as caught:
            await tiny(server, auth="none").respond(REQUEST)
    assert (len(server.exchanges), caught.value.status) == (1, status)


async def test_retry_after_in_seconds_is_honoured() -> None:
    pauses = Pauses()
    async with serving(refusing(429, retry_after="7"), good) as server:
        await tiny(server, sleep=pauses.sleep, chance=lambda: 0.0).respond(REQUEST)
    assert pauses.asked == [7.0]


async def test_retry_after_as_a_date_is_honoured_by_the_clock_of_the_server() -> None:
    pauses = Pauses()
    now = datetime(2020, 1, 1, 12, 0, 0, tzinfo=UTC)
    later = format_datetime(now.replace(second=9), usegmt=True)
    dates = {"date": format_datetime(now, usegmt=True), "retry_after": later}
    async with serving(refusing(429, **dates), good) as server:
        await tiny(server, sleep=pauses.sleep, chance=lambda: 0.0).respond(REQUEST)
    assert pauses.asked == [9.0]


async def test_a_provider_that_asks_for_too_long_a_pause_has_failed() -> None:
    async with serving(refusing(429, retry_after="86400")) as server:
        with pytest.raises(ModelError) as caught:
            await tiny(server).respond(REQUEST)
    assert (len(server.exchanges), caught.value.retry_after) == (1, 86400.0)


async def test_a_connection_that_ends_before_an_answer_is_tried_again() -> None:
    async with serving(dropping, good) as server:
        reply = await tiny(server).respond(REQUEST)
    assert [line.outcome for line in reply.attempts] == ["network", "completed"]


async def test_nobody_at_the_address_is_a_failure_of_the_network() -> None:
    async with serving(good) as server:
        url = server.url
    with pytest.raises(ModelError) as caught:
        await tiny(url, retry=Retry(attempts=2)).respond(REQUEST)
    assert caught.value.kind == "network"
    assert [line.outcome for line in vars(caught.value)["attempts"]] == ["network", "network"]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_stream_that_is_cut_is_taken_back_and_tried_again(clean: bool) -> None:
    async with serving(cut_after(3, clean=clean), good) as server:
        events = await events_of(tiny(server))
    at = next(at for at, event in enumerate(events) if isinstance(event, StreamReset))
    assert isinstance(events[at + 1], StreamNote)
    assert [event.text for event in events[at:] if isinstance(event, TextChunk)] == ["good ", "day"]
    end = events[-1]
    assert isinstance(end, StreamEnd)
    assert [(line.outcome, line.status) for line in end.reply.attempts] == [("stream_cut", 200), ("completed", 200)]


async def test_nothing_is_taken_back_when_nothing_was_shown() -> None:
    async with serving(refusing(500), good) as server:
        events = await events_of(tiny(server))
    assert [type(event) for event in events[:2]] == [StreamNote, StreamStart]


async def test_half_a_frame_at_the_end_is_a_cut_stream() -> None:
    async def half(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"text": "so "})
        await exchange.send(b'data: {"te')
        await exchange.end()

    async with serving(half) as server:
        with pytest.raises(StreamCut):
            await tiny(server, retry=Retry(attempts=1)).respond(REQUEST)


async def test_a_last_frame_without_its_empty_line_counts() -> None:
    async def open_end(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"text": "whole"})
        await exchange.send(b'data: {"end": true}')
        await exchange.end()

    async with serving(open_end) as server:
        assert (await tiny(server).respond(REQUEST)).text == "whole"


async def test_a_quick_reply_is_whole_even_if_the_connection_broke_before_its_last_frames_were_read() -> None:
    async def broken(exchange: Exchange) -> None:
        await exchange.begin()
        for frame in ({"start": 1}, {"text": "wh"}, {"text": "o"}, {"text": "le"}, {"end": True}):
            await exchange.say(frame)
            await asyncio.sleep(0.001)
        exchange.abort()

    async with serving(broken) as server:
        reply = await tiny(server, retry=Retry(attempts=1)).respond(REQUEST)
    assert reply.text == "whole"


async def test_a_reply_is_whole_when_its_last_frame_came_even_if_the_connection_broke_after_it() -> None:
    read = asyncio.Event()

    async def broken(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"text": "whole"}, {"end": True}, {"usage": 1})
        await read.wait()
        exchange.abort()

    async with serving(broken) as server, aclosing(tiny(server).stream(REQUEST)) as events:
        async for event in events:
            if isinstance(event, StreamUsage):
                read.set()
            if isinstance(event, StreamEnd):
                assert event.reply.text == "whole"
    assert len(server.exchanges) == 1


@pytest.mark.parametrize("kind", ["overloaded", "rate_limited", "server_error"])
async def test_an_error_inside_a_good_answer_is_tried_again(kind: str) -> None:
    async def spoiled(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"text": "well"}, {"error": kind})
        await exchange.end()

    async with serving(spoiled, good) as server:
        reply = await tiny(server).respond(REQUEST)
    assert [line.outcome for line in reply.attempts] == [kind, "completed"]


async def test_an_error_object_in_a_whole_body_is_an_error() -> None:
    async def spoiled(exchange: Exchange) -> None:
        await exchange.begin(kind="application/json")
        await exchange.send(b'{"error": "overloaded"}')
        await exchange.end()

    async with serving(spoiled, good) as server:
        assert (await tiny(server).respond(REQUEST)).attempts[0].outcome == "overloaded"


async def test_a_frame_that_is_no_json_is_tried_again() -> None:
    async def garbled(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(b"data: {]\n\n")
        await exchange.say({"end": True})
        await exchange.end()

    async with serving(garbled, good) as server:
        assert (await tiny(server).respond(REQUEST)).attempts[0].outcome == "bad_frame"


async def test_an_answer_that_is_no_http_is_tried_again() -> None:
    async def noise(exchange: Exchange) -> None:
        await exchange.raw(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
        exchange.close()

    async with serving(noise, good) as server:
        assert (await tiny(server).respond(REQUEST)).attempts[0].outcome == "network"


async def test_an_event_without_end_is_stopped_and_not_asked_for_again() -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(b"data: ")
        piece = b"x" * (1024 * 1024)
        for _ in range(MAX_EVENT // len(piece) + 2):
            await exchange.send(piece)
        await exchange.end()

    async with serving(endless) as server:
        with pytest.raises(ModelError) as caught:
            await tiny(server).respond(REQUEST)
    assert (caught.value.kind, len(server.exchanges)) == ("bad_frame", 1)


async def test_the_words_of_a_refusal_and_its_request_id_are_kept() -> None:
    async with serving(refusing(400, "the tool has no name", x_request_id="req-7")) as server:
        with pytest.raises(ModelError) as caught:
            await tiny(server).respond(REQUEST)
    assert (caught.value.message, caught.value.request_id) == ("the tool has no name", "req-7")


async def test_a_refusal_with_an_endless_body_is_read_as_far_as_needed() -> None:
    async def talkative(exchange: Exchange) -> None:
        await exchange.begin(400, "text/plain")
        for _ in range(1_000):
            await exchange.send(b"no " * 1_000)

    async with serving(talkative) as server:
        with pytest.raises(ModelError) as caught:
            await tiny(server).respond(REQUEST)
    assert caught.value.status == 400


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    async with serving(good) as other, serving(refusing(307, location=other.url)) as server:
        with pytest.raises(ModelError) as caught:
            await tiny(server, api_key=CANARY, retry=Retry(attempts=1)).respond(REQUEST)
    assert (caught.value.status, other.exchanges) == (307, [])


# ---- times -----------------------------------------------------------------------------------------------------------


async def test_a_server_that_never_begins_to_answer_is_left() -> None:
    async with serving(silent, good) as server:
        reply = await tiny(server, timeouts=Timeouts(first_byte=0.25)).respond(REQUEST)
    assert [line.outcome for line in reply.attempts] == ["timeout", "completed"]


async def test_headers_alone_are_no_first_byte() -> None:
    async def headers_only(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.gone()

    async with serving(headers_only, good) as server:
        reply = await tiny(server, timeouts=Timeouts(first_byte=0.25)).respond(REQUEST)
    assert [line.outcome for line in reply.attempts] == ["timeout", "completed"]


async def test_a_stream_that_stalls_is_left_and_its_connection_closed() -> None:
    closed = asyncio.Event()

    async def watched(exchange: Exchange) -> None:
        await stalling(exchange)
        closed.set()

    async with serving(watched, good) as server:
        reply = await tiny(server, timeouts=Timeouts(idle=0.25)).respond(REQUEST)
        await closed.wait()
    assert [line.outcome for line in reply.attempts] == ["timeout", "completed"]


async def test_a_reader_that_takes_its_time_is_not_taken_for_a_stalled_stream() -> None:
    read = asyncio.Event()

    async def patient(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"text": "first"})
        await read.wait()
        await exchange.say({"end": True})
        await exchange.end()

    async with serving(patient) as server:
        events: list[StreamEvent] = []
        async for event in tiny(server, timeouts=Timeouts(idle=0.2)).stream(REQUEST):
            events.append(event)
            if isinstance(event, TextChunk):
                await asyncio.sleep(0.3)  # longer than the stream may be idle
                read.set()
    assert isinstance(events[-1], StreamEnd)
    assert len(events[-1].reply.attempts) == 1


async def test_a_stream_that_keeps_dripping_outlives_every_other_time() -> None:
    async def dripping(exchange: Exchange) -> None:
        await exchange.begin()
        for n in range(20):
            await exchange.say({"text": f"{n},"})
            await asyncio.sleep(0.06)
        await exchange.say({"end": True})
        await exchange.end()

    async with serving(dripping) as server:
        reply = await tiny(server, timeouts=Timeouts(connect=1, first_byte=1, idle=1)).respond(REQUEST)
    assert (reply.text.count(","), len(server.exchanges)) == (20, 1)


async def test_the_whole_call_has_a_deadline_of_its_own() -> None:
    async def dripping(exchange: Exchange) -> None:
        await exchange.begin()
        while True:
            await exchange.say({"text": "drip "})
            await asyncio.sleep(0.01)

    async with serving(dripping) as server:
        with pytest.raises(ModelError) as caught:
            await tiny(server, timeouts=Timeouts(total=0.1)).respond(REQUEST)
    assert (caught.value.kind, len(server.exchanges)) == ("timeout", 1)


async def test_each_of_many_calls_at_once_has_its_own_time() -> None:
    slow = {"retry": Retry(attempts=1), "timeouts": Timeouts(first_byte=30)}
    asked = asyncio.Event()

    async def slowly(exchange: Exchange) -> None:
        asked.set()
        await silent(exchange)

    async with serving(slowly, silent) as server:
        long = asyncio.create_task(tiny(server, **slow).respond(REQUEST))
        await asked.wait()
        quick = tiny(server, retry=Retry(attempts=1), timeouts=Timeouts(first_byte=0.1))
        with pytest.raises(ModelError, match="did not begin to answer"):
            await quick.respond(REQUEST)
        assert not long.done()
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long


async def test_a_request_that_nobody_takes_is_left() -> None:
    request = ModelRequest(messages=(UserMessage("u1", (Text("x" * 20_000_000),)),))
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, and never reads
        timeouts = Timeouts(connect=0.1, first_byte=0.1)
        model = tiny(f"http://127.0.0.1:{listener.getsockname()[1]}", retry=Retry(attempts=1), timeouts=timeouts)
        with pytest.raises(ModelError) as caught:
            await model.respond(request)
    assert caught.value.kind == "timeout"


async def test_a_small_request_over_an_open_connection_starts_no_task() -> None:
    made: list[object] = []

    def counting(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **more)

    async with serving(good) as server:
        model = tiny(server)
        await model.respond(REQUEST)
        asyncio.get_running_loop().set_task_factory(counting)
        await model.respond(REQUEST)
    asyncio.get_running_loop().set_task_factory(None)
    assert made == []


async def test_a_pause_that_would_pass_the_deadline_is_not_begun() -> None:
    pauses = Pauses()
    async with serving(refusing(429, retry_after="30")) as server:
        with pytest.raises(ModelError):
            await tiny(server, sleep=pauses.sleep, timeouts=Timeouts(total=10)).respond(REQUEST)
    assert pauses.asked == []


async def test_a_connection_that_does_not_come_about_in_time_is_a_timeout() -> None:
    # A listener whose queue is full does not answer the next one who knocks.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        knocking: list[socket.socket] = []
        try:
            for _ in range(8):
                knock = socket.socket()
                knock.setblocking(False)
                knock.connect_ex(address)
                knocking.append(knock)
            model = tiny(f"http://127.0.0.1:{address[1]}", retry=Retry(attempts=1), timeouts=Timeouts(connect=0.1))
            with pytest.raises(ModelError) as caught:
                await model.respond(REQUEST)
        finally:
            for knock in knocking:
                knock.close()
    assert (caught.value.kind, caught.value.message) == ("timeout", f"no connection to 127.0.0.1:{address[1]} in time")


@every("name", ["connect", "first_byte", "idle", "total"])
@every("value", [0, -1, float("nan"), float("inf"), "1", True])
def test_a_time_that_can_not_be_meant_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidNumber):
        Timeouts(**{name: value})


# ---- cancelling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [silent, stalling])
async def test_cancelling_closes_the_connection_at_once(answer: Any) -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    async def watched(exchange: Exchange) -> None:
        begun.set()
        await answer(exchange)
        closed.set()

    async with serving(watched) as server:
        asking = asyncio.create_task(tiny(server).respond(REQUEST))
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await closed.wait()


async def test_whoever_stops_reading_lets_go_of_the_connection() -> None:
    closed = asyncio.Event()

    async def watched(exchange: Exchange) -> None:
        await stalling(exchange)
        closed.set()

    async with serving(watched) as server:
        stream = tiny(server).stream(REQUEST)
        async for event in stream:
            if isinstance(event, TextChunk):
                break
        await stream.aclose()
        await closed.wait()


async def test_a_pause_between_two_tries_can_be_cancelled() -> None:
    pausing = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        pausing.set()
        await asyncio.Event().wait()

    async with serving(refusing(500)) as server:
        asking = asyncio.create_task(tiny(server, sleep=sleep).respond(REQUEST))
        await pausing.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert len(server.exchanges) == 1


# ---- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        ("bearer", "authorization", f"Bearer {CANARY}"),
        ("x-api-key", "x-api-key", CANARY),
        ("x-goog-api-key", "x-goog-api-key", CANARY),
        ("api-key", "api-key", CANARY),
        ("none", "authorization", f"Bearer {CANARY}"),
    ],
)
async def test_the_key_goes_where_the_endpoint_wants_it(auth: str, header: str, value: str) -> None:
    async with serving(good) as server:
        await tiny(server, auth=auth, api_key=CANARY).respond(REQUEST)
    assert server.exchanges[0].headers[header] == value


async def test_the_key_is_read_from_the_environment_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(good) as server:
        model = tiny(server, keys=("TINY_KEY", "OTHER_KEY"))
        for name, value in (("OTHER_KEY", "second-choice"), ("TINY_KEY", "first-choice\n")):
            monkeypatch.setenv(name, value)
            await model.respond(REQUEST)
    sent = [exchange.headers["authorization"] for exchange in server.exchanges]
    assert sent == ["Bearer second-choice", "Bearer first-choice"]


async def test_a_function_gives_the_key_for_each_try() -> None:
    keys = iter(["key-number-1", "key-number-2"])

    async def fresh() -> str:
        return next(keys)

    async with serving(refusing(500), good) as server:
        await tiny(server, api_key=fresh).respond(REQUEST)
    assert [exchange.headers["authorization"][-1] for exchange in server.exchanges] == ["1", "2"]


async def test_a_missing_key_is_named_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINY_KEY", raising=False)
    with pytest.raises(ModelError, match="set TINY_KEY, or pass api_key") as caught:
        await tiny("http://127.0.0.1:9", keys=("TINY_KEY",)).respond(REQUEST)
    assert caught.value.kind == "authentication"


async def test_an_endpoint_that_wants_no_key_gets_none() -> None:
    async with serving(good) as server:
        await tiny(server, auth="none").respond(REQUEST)
    assert "authorization" not in server.exchanges[0].headers


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "\N{EURO SIGN}uro", "", " "])
async def test_a_key_that_can_not_be_sent_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ModelError) as caught:
        await tiny("http://127.0.0.1:9", api_key=lambda: key).respond(REQUEST)
    assert caught.value.kind == "authentication"
    assert not key.strip() or key not in "".join(traceback.format_exception(caught.value))


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(vars(error)) + repr(error.__context__)


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_a_key_that_the_provider_repeats_is_in_no_error(status: int) -> None:
    async with serving(refusing(status, f"Incorrect API key provided: {CANARY}.")) as server:
        with pytest.raises(ModelError) as caught:
            await tiny(server, api_key=CANARY, retry=Retry(attempts=2)).respond(REQUEST)
    assert CANARY not in _told(caught.value)
    assert "[key]" in caught.value.message


async def test_a_key_that_the_provider_repeats_in_a_stream_is_in_no_event() -> None:
    async def spoiled(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"text": "well"}, {"error": "overloaded", "detail": f"for {CANARY}"})
        await exchange.end()

    async with serving(spoiled, good) as server:
        events = await events_of(tiny(server, api_key=CANARY))
    assert CANARY not in repr(events)


async def test_a_key_is_in_no_error_of_the_network() -> None:
    async with serving(dropping) as server:
        with pytest.raises(ModelError) as caught:
            await tiny(server, api_key=CANARY).respond(REQUEST)
    assert CANARY not in _told(caught.value)


async def test_a_function_that_fails_to_give_a_key_tells_nothing_of_it() -> None:
    def broken() -> str:
        raise RuntimeError(f"the vault did not take {CANARY}")

    with pytest.raises(ModelError, match="failed with RuntimeError") as caught:
        await tiny("http://127.0.0.1:9", api_key=broken).respond(REQUEST)
    assert CANARY not in _told(caught.value)


def test_a_key_is_in_no_repr() -> None:
    model = tiny("http://127.0.0.1:9", api_key=CANARY)
    assert CANARY not in repr(model) + repr(vars(model))


@pytest.mark.parametrize("key", [b"sk-bytes", 7, ["sk"]])
def test_a_key_of_the_wrong_kind_is_refused_without_showing_it(key: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tiny("http://127.0.0.1:9", api_key=key)
    assert "sk" not in str(caught.value)


# ---- sessions of aiohttp ---------------------------------------------------------------------------------------------


def test_an_event_loop_that_ends_takes_its_connections_along() -> None:
    async def once(transport: AiohttpTransport) -> str:
        async with serving(good) as server:
            return (await tiny(server, transport=transport).respond(REQUEST)).text

    # A session that is left open makes a warning when it is collected, and warnings are errors here.
    shared = AiohttpTransport()
    assert [asyncio.run(once(shared)) for _ in range(2)] == ["good day", "good day"]
    del shared
    gc.collect()


async def test_a_transport_that_was_closed_opens_again_for_the_next_call() -> None:
    transport = AiohttpTransport()
    async with serving(good) as server:
        model = tiny(server, transport=transport)
        await model.respond(REQUEST)
        await transport.aclose()
        assert (await model.respond(REQUEST)).text == "good day"
        assert server.connections == 2
        await transport.aclose()


async def test_closing_a_transport_ends_the_answers_that_are_being_read() -> None:
    transport = AiohttpTransport()

    async def half(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.say({"text": "half"})
        await asyncio.Event().wait()

    async with serving(half) as server:
        asking = tiny(server, transport=transport, retry=Retry(attempts=1)).stream(REQUEST)
        async for event in asking:
            if isinstance(event, TextChunk):
                break
        rest = asyncio.create_task(anext(asking))
        await asyncio.sleep(0)
        await transport.aclose()
        with pytest.raises(StreamCut, match="closed on this side"):
            await asyncio.wait_for(rest, 10)


async def test_calls_that_are_made_before_one_of_them_is_awaited_share_the_connections_of_their_loop() -> None:
    transport = AiohttpTransport()
    async with serving(good) as server:
        calls = [transport.open(f"http://127.0.0.1:{server.port}/", {}, b"{}", Timeouts()) for _ in range(2)]
        for call in calls:
            response = await call
            async for _ in response.chunks():
                pass
            response.close()
        await transport.aclose()
    assert server.connections == 1


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(good) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "")
        transport = AiohttpTransport()
        await tiny("http://models.invalid/v1", transport=transport).respond(REQUEST)
        await transport.aclose()
    assert proxy.exchanges[0].line == "POST http://models.invalid/v1/say?alt=sse HTTP/1.1"


async def test_a_proxy_that_wants_a_login_gets_it_with_a_request_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(good) as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:s%20cret@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "")
        transport = AiohttpTransport()
        await tiny("http://models.invalid/v1", transport=transport).respond(REQUEST)
        await transport.aclose()
    assert proxy.exchanges[0].headers["proxy-authorization"] == "Basic bWU6cyBjcmV0"


async def test_an_address_that_the_environment_excepts_is_reached_without_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(good) as proxy, serving(good) as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        transport = AiohttpTransport()
        await tiny(server, transport=transport).respond(REQUEST)
        await transport.aclose()
    assert (len(proxy.exchanges), len(server.exchanges)) == (0, 1)


# ---- limits of an endpoint -------------------------------------------------------------------------------------------


async def test_only_so_many_calls_run_at_once() -> None:
    running = most = 0

    async def counted(exchange: Exchange) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await exchange.begin()
        await asyncio.sleep(0)
        running -= 1
        await exchange.say({"text": "x"}, {"end": True})
        await exchange.end()

    async with serving(counted) as server:
        models = [tiny(server, limits=CallLimits(concurrency=2)) for _ in range(2)]
        await asyncio.gather(*(models[n % 2].respond(REQUEST) for n in range(12)))
    assert (most, len(server.exchanges)) == (2, 12)


async def test_a_call_that_is_cancelled_while_it_waits_leaves_no_hole() -> None:
    place = CallGate("here", CallLimits(concurrency=1))
    await place.enter()
    first, second = asyncio.create_task(place.enter()), asyncio.create_task(place.enter())
    await asyncio.sleep(0)
    assert place.waiting == 2
    first.cancel()
    place.leave()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    place.leave()
    await asyncio.wait_for(place.enter(), 1)


async def test_a_place_that_comes_together_with_a_cancellation_goes_to_the_next() -> None:
    place = CallGate("here", CallLimits(concurrency=1))
    await place.enter()
    waiting = asyncio.create_task(place.enter())
    await asyncio.sleep(0)
    place.leave()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(place.enter(), 1)


async def test_more_calls_than_may_wait_are_refused() -> None:
    place = CallGate("here", CallLimits(concurrency=1, waiting=0))
    await place.enter()
    with pytest.raises(ModelError) as caught:
        await place.enter()
    assert caught.value.kind == "overloaded"


async def test_a_call_that_gives_up_its_place_in_the_minute_leaves_it_to_the_next() -> None:
    asked: list[float] = []

    async def given_up(seconds: float) -> None:
        asked.append(seconds)
        raise asyncio.CancelledError

    place = CallGate("here", CallLimits(per_minute=60, burst=1), clock=lambda: 100.0, sleep=given_up)
    await place.enter()
    for _ in range(3):
        with pytest.raises(asyncio.CancelledError):
            await place.enter()
    assert asked == [1.0, 1.0, 1.0]


async def test_calls_of_one_minute_are_spaced_out_after_the_first_few() -> None:
    pauses = Pauses()
    place = CallGate("here", CallLimits(per_minute=60, burst=2), clock=lambda: 100.0, sleep=pauses.sleep)
    for _ in range(5):
        await place.enter()
    assert pauses.asked == [1.0, 2.0, 3.0]


def test_a_minute_without_calls_gives_no_more_than_the_first_few() -> None:
    assert next_slot(0.0, 1_000.0, per_minute=60, burst=3) == (0.0, 1_001.0)


async def test_models_with_the_same_limits_share_the_gate_of_their_endpoint() -> None:
    endpoint = Endpoint(provider="x", dialect="chat", base_url="http://x")
    assert shared_gate(endpoint, CallLimits()) is shared_gate(endpoint, CallLimits())
    assert shared_gate(endpoint, CallLimits()) is not shared_gate(endpoint, CallLimits(concurrency=3))


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_name_gives_the_model_of_a_known_endpoint() -> None:
    model = hf.model("groq:llama-4", api_key=CANARY)
    assert isinstance(model, HttpModel)
    assert (model.name, model.endpoint.dialect, model.dialect.name) == ("groq:llama-4", "chat", "chat")


@pytest.mark.parametrize("name", ["anthropic:c", "openai:g", "google:g", "openai-chat:g"])
def test_every_dialect_is_found_by_name(name: str) -> None:
    assert hf.model(name).name == name


def test_a_model_name_may_have_colons_and_slashes() -> None:
    model = hf.model("openrouter:meta/llama:free")
    assert isinstance(model, HttpModel)
    assert model.model == "meta/llama:free"


def test_an_address_makes_an_endpoint_of_any_name() -> None:
    model = hf.model("mine:small", base_url="http://127.0.0.1:9/v1")
    assert isinstance(model, HttpModel)
    assert (model.name, model.endpoint.base_url) == ("mine:small", "http://127.0.0.1:9/v1")


@pytest.mark.parametrize("name", ["", "gpt", "nobody:home", "groq:", ":x"])
def test_a_name_that_stands_for_nothing_is_refused(name: str) -> None:
    with pytest.raises(ModelUnknown) as caught:
        hf.model(name)
    assert "anthropic" in caught.value.known


def test_an_address_for_a_model_that_is_there_already_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        hf.model(ScriptedModel([]), base_url="http://x")


def test_a_provider_of_ones_own_goes_first() -> None:
    mine = ScriptedModel([], name="homemade:x")
    register("homemade", lambda _name: mine)
    assert hf.model("homemade:x") is mine
    with pytest.raises(InvalidArgument):
        hf.model("homemade:x", api_key=CANARY)


@pytest.mark.parametrize("url", ["ftp://x", "x.example/v1", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        tiny(url)


async def test_a_turn_is_answered_over_http() -> None:
    async with serving(cut_after(2, clean=False), good) as server:
        outcome = await hf.run(hf.Agent("greeter", model=tiny(server)), "hello")
    assert (outcome.status, outcome.text) == ("completed", "good day")
