"""Real traffic over a real connection: each recording is served here, and asked for as its provider would be.

The other tests give frames to a dialect. Here the whole way is gone: the request finds its address, the answer comes
in small pieces through the HTTP client, and what comes out is what the dialect alone makes of the frames.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import pytest
from tests.recordings.conftest import FOLDER, load, may_mean, recordings

from holdfast.errors import ContextOverflow, ModelError, StreamCut, StreamFailed
from holdfast.messages import ModelReply, ModelRequest, Text, UserMessage, decode_reply, encode
from holdfast.models.endpoints import ENDPOINTS, resolve_endpoint
from holdfast.models.errors import classify_error
from holdfast.models.http import HttpModel
from holdfast.models.registry import load_dialect
from holdfast.models.retry import Retry
from holdfast.models.sse import SseDecoder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from holdfast.models.dialect import Endpoint

SPOKEN: Final = {
    "anthropic.messages": "anthropic",
    "openai.responses": "responses",
    "openai.chat": "chat",
    "google.generateContent": "google",
    "google.streamGenerateContent": "google",
}
KNOWN_AS: Final = {
    ("azure", "chat"): "azure-deployments",
    ("azure", "responses"): "azure-responses",
    ("derived", "anthropic"): "anthropic",
    ("derived", "chat"): "openai-chat",
    ("openai-responses", "responses"): "openai",
    ("zai", "chat"): "zai-coding",
}
"""What we call whoever speaks in a recording, where it is not what the recording calls him."""
SMALL: Final = 61
"""Bytes of a piece: it ends in the middle of a line, and of a letter."""
PIECES: Final = 400
"""Long answers come in not many more pieces than this, so that the tests stay quick."""
REQUEST: Final = ModelRequest(messages=(UserMessage("u1", (Text("Hello"),)),))


# ---- the server ------------------------------------------------------------------------------------------------------


class Server:
    """Gives request *n* the recorded answer *n*; whoever asks at another address than the recorded one is told so."""

    def __init__(self, exchanges: list[dict[str, Any]]) -> None:
        self.exchanges = exchanges
        self.served = 0
        self.url = ""
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = asyncio.current_task()
        try:
            while True:
                line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(each.lower().split(": ", 1) for each in lines if each)
                await reader.readexactly(int(headers["content-length"]))
                await self._answer(line.split()[1], writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has what it wanted
        finally:
            writer.close()

    async def _answer(self, asked: str, writer: asyncio.StreamWriter) -> None:
        exchange = self.exchanges[self.served]
        self.served += 1
        response: dict[str, Any] = exchange["response"]
        if _address(exchange["request"]) not in {None, _plain(asked)}:
            response = {"status": 418, "headers": {}, "body": {"error": f"{asked} is not where this was recorded"}}
        data = _body(response)
        kind = "text/event-stream" if "sse" in response else "application/json"
        headers: dict[str, str] = {"content-type": kind, **response["headers"], "transfer-encoding": "chunked"}
        head = [f"HTTP/1.1 {response['status']} x", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*head, "", ""]).encode())
        size = max(SMALL, len(data) // PIECES)
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)  # so that the client reads this piece before the next one is there
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def close(self) -> None:
        for writer, task in self._connections.items():
            writer.transport.abort()
            if task is not None:
                await task


@asynccontextmanager
async def serving(exchanges: list[dict[str, Any]]) -> AsyncGenerator[Server, None]:
    made = Server(exchanges)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await made.close()
        await server.wait_closed()


def _address(request: dict[str, Any] | None) -> str | None:
    """Where a request went; None where it is not known, or where it asked for what we have come in a stream."""
    return None if request is None or request["method"] != "POST" else _plain(request["path"])


def _plain(path: str) -> str:
    """A path without its query, and without the way in which Google is to answer."""
    place = unquote(path.partition("?")[0])
    return place.rpartition(":")[0] if "enerateContent" in place else place


def _body(response: dict[str, Any]) -> bytes:
    return response["sse"].encode() if "sse" in response else json.dumps(response["body"]).encode()


# ---- who is asked ----------------------------------------------------------------------------------------------------


def _spoken(recording: dict[str, Any]) -> str | None:
    return next((SPOKEN[api] for api in recording.get("apis", ()) if api in SPOKEN), None)


def _model(recording: dict[str, Any], exchange: dict[str, Any], url: str) -> HttpModel:
    """The model of an exchange, at the place of the recorded one on this server."""
    spoken = _spoken(recording)
    assert spoken
    request: dict[str, Any] = exchange["request"] or {}
    place = _endpoint(recording["provider"], spoken, request, url)
    body: dict[str, Any] = request.get("body") or {}
    name: str = body.get("model") or _plain(request.get("path", "")).rpartition("/models/")[2] or "unknown"
    return HttpModel(place, name, load_dialect(spoken), api_key="key", retry=Retry(attempts=1))


def _endpoint(provider: str, spoken: str, request: dict[str, Any], url: str) -> Endpoint:
    path: str = request.get("path", "")
    if "/publishers/" in path:
        return resolve_endpoint("vertex", base_url=url + path.partition("/models/")[0])
    name = KNOWN_AS.get((provider, spoken), provider)
    if name not in ENDPOINTS:
        return resolve_endpoint(name, base_url=url + path.rpartition("/")[0], dialect=spoken)
    known = ENDPOINTS[name]
    below = urlsplit(known.base_url).path or known.default_path
    return resolve_endpoint(name, base_url=url + below, query=request.get("query"))


# ---- what is expected ------------------------------------------------------------------------------------------------


class Failure(NamedTuple):
    """An error by its class, its kind and the status of the answer."""

    error: type[ModelError]
    kind: str
    status: int | None = None


OVERFLOW: Final = Failure(ContextOverflow, "context_overflow", 400)
NOT_READY: Final = Failure(StreamCut, "stream_cut")
FAILURES: Final = {
    ("anthropic/error-400-context-length", 0): OVERFLOW,
    ("deepseek/error-400-context-length", 0): OVERFLOW,
    ("google/error-400-context-length-vertex", 0): OVERFLOW,
    ("openai-responses/error-400-context-length", 0): OVERFLOW,
    # The model has made a call that can't be read: it may do better when it is asked again.
    ("groq/tool-use-failed-400-malformed", 0): Failure(ModelError, "server_error", 400),
    ("groq/stream-tool-use-failed-malformed", 0): Failure(StreamFailed, "server_error"),
    ("derived/anthropic-midstream-overloaded", 0): Failure(StreamFailed, "overloaded"),
    ("derived/openai-chat-cut-no-finish", 0): Failure(StreamCut, "stream_cut"),
    # Answers that are still being made in the background.
    ("openai-responses/background-mode-polling", 0): NOT_READY,
    ("openai-responses/background-mode-polling", 2): NOT_READY,
    ("openai-responses/background-mode-polling", 3): NOT_READY,
}
"""Errors that an answer of status 200 holds, and those of which the status does not say enough."""


def _folded(model: HttpModel, response: dict[str, Any]) -> tuple[ModelReply, bool]:
    """What the dialect alone makes of an answer, and whether the provider has more to say."""
    reader = model.dialect.reader(model.endpoint, model.model)
    if "sse" not in response:
        return reader.read_body(_body(response)), reader.paused
    decoder = SseDecoder()
    for frame in [*decoder.feed(_body(response)), *decoder.close()]:
        if frame.data:
            reader.feed(frame)
    return reader.finish(), reader.paused


def _refused(model: HttpModel, response: dict[str, Any]) -> Failure:
    error = classify_error(response["status"], response["headers"], _body(response))
    assert may_mean(response["status"], error.kind)
    return Failure(type(error), error.kind, response["status"])


def _expected(id: str, number: int, model: HttpModel, responses: list[dict[str, Any]]) -> ModelReply | Failure:
    """What comes of asking when these are the answers to come."""
    first, *others = responses
    if (id, number) in FAILURES:
        return FAILURES[id, number]
    if first["status"] != 200:
        return _refused(model, first)
    try:
        reply, paused = _folded(model, first)
    except ModelError as error:  # of a recording that nobody here knows yet
        return Failure(type(error), error.kind, error.status)
    if not paused:
        return msgspec.structs.replace(reply, model=f"{model.endpoint.provider}:{reply.model or model.model}")
    rest = _expected(id, number + 1, model, others)
    assert isinstance(rest, ModelReply)
    return msgspec.structs.replace(rest, parts=reply.parts + rest.parts, usage=reply.usage + rest.usage)


async def _outcome(model: HttpModel) -> ModelReply | Failure:
    try:
        reply = await model.respond(REQUEST)
    except ModelError as error:
        return Failure(type(error), error.kind, error.status)
    assert decode_reply(encode(reply)) == reply  # it says that it is faithful
    return msgspec.structs.replace(reply, attempts=())


# ---- the tests -------------------------------------------------------------------------------------------------------


def _others() -> list[Any]:
    """The recordings of what this release does not support; they are counted as skipped."""
    found: list[Any] = []
    for path in sorted(FOLDER.glob("*/*.json")):
        recording = load(path)
        if _spoken(recording) is None:
            spoken = ", ".join(recording.get("apis", ())) or f"a {recording['kind']}"
            skip = pytest.mark.skip(reason=f"{spoken} is none of the four dialects")
            found.append(pytest.param(path, id=f"{path.parent.name}/{path.stem}", marks=skip))
    return found


@pytest.mark.parametrize("path", [*recordings(*SPOKEN), *_others()])
async def test_what_is_asked_for_over_http_is_what_the_frames_say(path: Path) -> None:
    recording, id = load(path), f"{path.parent.name}/{path.stem}"
    exchanges = recording["exchanges"]
    responses = [exchange["response"] for exchange in exchanges]
    async with serving(exchanges) as server:
        while server.served < len(exchanges):
            number = server.served
            model = _model(recording, exchanges[number], server.url)
            assert await _outcome(model) == _expected(id, number, model, responses[number:])
            assert server.served > number


def test_every_row_of_the_table_of_failures_is_of_a_recording() -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"no recordings at {FOLDER.name}; set HOLDFAST_RECORDINGS")
    if not all((FOLDER / f"{id}.json").is_file() for id, _ in FAILURES):
        pytest.skip(f"the table was not made for the recordings at {FOLDER.name}")
    assert [id for id, number in FAILURES if number >= len(load(FOLDER / f"{id}.json")["exchanges"])] == []
