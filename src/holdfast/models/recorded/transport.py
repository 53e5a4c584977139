"""`RecordedModel` and its two transports: one writes exchanges to a file, the other answers from a file."""

from __future__ import annotations

import asyncio
import json
import re
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast
from urllib.parse import unquote

import msgspec

from holdfast.errors import InvalidArgument, RecordingDiffers, RecordingEnded, RecordingInvalid
from holdfast.models.contract import respond
from holdfast.models.endpoints import ENDPOINTS, resolve_endpoint
from holdfast.models.http import HttpModel
from holdfast.models.recorded.format import (
    APIS,
    format_recording,
    format_request,
    format_response,
    read_recording,
    redact_exchange,
    request_differences,
    write_recording,
)
from holdfast.models.recorded.redaction import RecordingRedactor
from holdfast.models.registry import load_dialect
from holdfast.models.registry import model as resolve_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from holdfast.messages import ModelReply, ModelRequest, StreamEvent
    from holdfast.models.contract import Model
    from holdfast.models.dialect import Endpoint
    from holdfast.models.recorded.format import RecordedExchange, RecordedResponse, Recording
    from holdfast.models.transport import HttpResponse, Timeouts, Transport


class RecordingTransport:
    """Sends requests through another transport, and writes each exchange to a file when it ends."""

    def __init__(self, path: Path, transport: Transport, endpoint: Endpoint) -> None:
        self._path = path
        self._transport = transport
        self._endpoint = endpoint
        self._secrets = RecordingRedactor()
        self._exchanges: list[dict[str, Any] | None] = []
        """In the order of the requests; None while the response is coming."""
        self._redacted_for = 0
        """Number of secrets that the exchanges were redacted for."""

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpResponse:
        """POST `body`, and record the answer while it is read."""
        self._secrets.learn(url, headers, body)
        response = await self._transport.open(url, headers, body, timeouts)
        place = len(self._exchanges)
        self._exchanges.append(None)

        def ended(read: bytes) -> None:
            self._exchanges[place] = {
                "request": format_request(url, headers, body, self._secrets),
                "response": format_response(response.status, response.headers, read, self._secrets),
            }
            self._save()

        return _RecordingResponse(response, ended)

    def _save(self) -> None:
        while self._redacted_for < self._secrets.known:
            # Earlier exchanges may hold secrets that were learnt later.
            self._redacted_for = self._secrets.known
            self._exchanges = [
                None if exchange is None else redact_exchange(exchange, self._secrets) for exchange in self._exchanges
            ]
        exchanges = [exchange for exchange in self._exchanges if exchange is not None]
        write_recording(self._path, format_recording(self._path.stem, self._endpoint, exchanges))


class _RecordingResponse:
    """A response that records its body."""

    def __init__(self, response: HttpResponse, ended: Callable[[bytes], None]) -> None:
        self._response = response
        self._ended: Callable[[bytes], None] | None = ended
        self._read: list[bytes] = []
        self._chunks: AsyncIterator[bytes]

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    def chunks(self) -> AsyncIterator[bytes]:
        self._chunks = aiter(self._response.chunks())
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await anext(self._chunks)
        except BaseException:
            self._end()
            raise
        self._read.append(chunk)
        return chunk

    def close(self) -> None:
        self._response.close()
        self._end()

    def _end(self) -> None:
        # Also after a broken connection: the replay is then cut in the same place.
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(b"".join(self._read))


class ReplayingTransport:
    """Answers request *n* with exchange *n* of a file. Nothing is sent."""

    def __init__(self, path: Path, exchanges: Sequence[RecordedExchange], *, check: bool = True) -> None:
        self.differences: list[tuple[int, str]] = []
        """Differences from the recorded requests, if they are not checked: number and description."""
        self._path = path
        self._exchanges = exchanges
        self._check = check
        self._secrets = RecordingRedactor()
        self._served = 0

    @property
    def left(self) -> int:
        """Number of exchanges that were not replayed yet."""
        return len(self._exchanges) - self._served

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpResponse:  # noqa: ARG002  part of the protocol
        """Return the next recorded response. Raises `RecordingDiffers` or `RecordingEnded`."""
        number = self._served + 1
        if not self.left:
            raise RecordingEnded(self._path, number)
        exchange = self._exchanges[self._served]
        if exchange.request is not None:
            self._secrets.learn(url, headers, body)
            asked = format_request(url, headers, body, self._secrets)
            # The recorded one as well: another tool may have redacted less.
            found = tuple(request_differences(self._secrets.request(exchange.request), asked))
            if found and self._check:
                raise RecordingDiffers(self._path, number, found)
            self.differences += [(number, difference) for difference in found]
        self._served = number
        return _replay_response(exchange.response)


class _ReplayedResponse(NamedTuple):
    """A response from a file."""

    status: int
    headers: dict[str, str]
    body: bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.body:
            yield self.body

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _replay_response(answer: RecordedResponse) -> _ReplayedResponse:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    # These describe the recorded connection.
    for name in ("transfer-encoding", "content-length", "content-encoding"):
        headers.pop(name, None)
    if answer.sse is not None:
        headers.setdefault("content-type", "text/event-stream")
        body = answer.sse.encode("utf-8", "surrogatepass")
    elif answer.body is not msgspec.UNSET:
        headers.setdefault("content-type", "application/json")
        body = json.dumps(answer.body).encode()
    elif answer.body_text is not None:
        body = answer.body_text.encode("utf-8", "surrogatepass")
    else:
        body = answer.body_base64
    return _ReplayedResponse(answer.status, headers, body)


Mode = Literal["replay", "record", "auto"]
_APIS_BY_DIALECT: Final = {dialect: {api} for dialect, api in APIS.items()} | {
    "google": {"google.streamGenerateContent", "google.generateContent"}
}
_DEFAULT_PROVIDERS: Final = {"anthropic": "anthropic", "responses": "openai", "chat": "openai-chat", "google": "google"}
"""Providers for files that do not name theirs."""
_MODEL_IN_PATH: Final = re.compile(r"/(?:models|deployments)/([^/:]+)")
_NO_KEY: Final = "replay"
_NOWHERE: Final = "https://replay.invalid"


class RecordedModel:
    """A model whose exchanges are recorded in a file, or replayed from one.

    `mode`: ``replay`` replays the file, ``record`` calls `model` and writes the file anew, ``auto`` replays the file if
    it exists and records it otherwise. A replay needs no `model`: the file names it. With ``check=False`` a request may
    differ from the recorded one; `differences` then describes how.
    """

    def __init__(
        self, path: str | Path, model: Model | str | None = None, *, mode: Mode = "replay", check: bool = True
    ) -> None:
        self.path = Path(path)
        if mode not in {"replay", "record", "auto"}:
            raise InvalidArgument("mode", mode, "'replay', 'record' or 'auto'")
        self.recording = mode == "record" or (mode == "auto" and not self.path.exists())
        """True if the model is called."""
        self._replay: ReplayingTransport | None = None
        if self.recording:
            self._model = _recording_model(self.path, model)
        else:
            recording = read_recording(self.path)
            self._replay = ReplayingTransport(self.path, recording.exchanges, check=check)
            self._model = _replaying_model(self.path, recording, model, self._replay)
        self.name = self._model.name

    def __repr__(self) -> str:
        return f"RecordedModel({str(self.path)!r}, {self.name!r}, mode={'record' if self.recording else 'replay'!r})"

    @property
    def left(self) -> int:
        """Number of exchanges that were not replayed yet."""
        return 0 if self._replay is None else self._replay.left

    @property
    def differences(self) -> tuple[tuple[int, str], ...]:
        """Differences from the recorded requests: number of the request, and description."""
        return () if self._replay is None else tuple(self._replay.differences)

    async def respond(self, request: ModelRequest) -> ModelReply:
        """Return the whole reply."""
        return await respond(self, request)

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Stream the reply."""
        return self._model.stream(request)


def _recording_model(path: Path, model: Model | str | None) -> HttpModel:
    if model is None:
        raise InvalidArgument("model", None, "the model to record")
    if not path.parent.is_dir():
        raise RecordingInvalid(path, "its folder does not exist")
    recorded = copy(_http_model(model))
    recorded.transport = RecordingTransport(path, recorded.transport, recorded.endpoint)
    return recorded


def _replaying_model(
    path: Path, recording: Recording, model: Model | str | None, transport: ReplayingTransport
) -> HttpModel:
    if model is None:
        endpoint, name = _find_endpoint(path, recording)
        model = HttpModel(endpoint, name, load_dialect(endpoint.dialect))
    given = _http_model(model)
    return HttpModel(
        given.endpoint,
        given.model,
        given.dialect,
        api_key=_NO_KEY,
        transport=transport,
        retry=given.retry,
        timeouts=given.timeouts,
        sleep=_skip_delay,
    )


def _http_model(model: Model | str) -> HttpModel:
    found = resolve_model(model)
    if not isinstance(found, HttpModel):
        raise InvalidArgument("model", found, "a model that is reached over HTTP")
    return found


async def _skip_delay(_seconds: float) -> None:
    # The delays between attempts were made during the recording.
    await asyncio.sleep(0)


def _find_endpoint(path: Path, recording: Recording) -> tuple[Endpoint, str]:
    """Return the endpoint that speaks the API of a file, and the model of its first request."""
    apis = recording.apis
    dialect = next((dialect for dialect, spoken in _APIS_BY_DIALECT.items() if spoken.intersection(apis)), None)
    if dialect is None:
        raise RecordingInvalid(path, f"nobody here speaks {', '.join(apis) or 'what it holds'}")
    unknown = sorted(set(recording.flags or ()).difference(load_dialect(dialect).flags))
    if unknown:
        raise RecordingInvalid(path, f"the {dialect} dialect has no flag {', '.join(unknown)}")
    known = ENDPOINTS.get(recording.provider or _DEFAULT_PROVIDERS[dialect])
    address = known.endpoint.base_url if known is not None and known.endpoint.dialect == dialect else ""
    # An unknown provider has exactly the flags in the file.
    found = resolve_endpoint(
        recording.provider or _DEFAULT_PROVIDERS[dialect],
        base_url=address or _NOWHERE,
        dialect=dialect,
        flags=recording.flags,
    )
    named_in = (_model_of_request(exchange.request) for exchange in recording.exchanges if exchange.request is not None)
    return found, next(filter(None, named_in), "unknown")


def _model_of_request(request: Mapping[str, Any]) -> str | None:
    body = request.get("body")
    model = cast("dict[str, Any]", body).get("model") if isinstance(body, dict) else None
    if isinstance(model, str):
        return model
    found = _MODEL_IN_PATH.search(str(request.get("path", "")))
    return unquote(found[1]) if found else None
