"""`RecordedModel` and its two transports: one writes exchanges to a file, the other answers from a file."""

from __future__ import annotations

import asyncio
import json
import re
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast
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
        self.status = response.status
        self.headers = response.headers
        self._response = response
        self._ended: Callable[[bytes], None] | None = ended
        self._read: list[bytes] = []

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.chunks():
                self._read.append(chunk)
                yield chunk
        finally:
            self._end()

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
        return _ReplayedResponse(exchange.response)


class _ReplayedResponse:
    """A response from a file."""

    def __init__(self, recorded: RecordedResponse) -> None:
        self.status = recorded.status
        connection = {"transfer-encoding", "content-length", "content-encoding"}  # they describe the recorded one
        self.headers = {
            name.lower(): value for name, value in recorded.headers.items() if name.lower() not in connection
        }
        self._body = recorded.body_base64
        if recorded.sse is not None:
            self.headers.setdefault("content-type", "text/event-stream")
            self._body = recorded.sse.encode("utf-8", "surrogatepass")
        elif recorded.body is not msgspec.UNSET:
            self.headers.setdefault("content-type", "application/json")
            self._body = json.dumps(recorded.body).encode()
        elif recorded.body_text is not None:
            self._body = recorded.body_text.encode("utf-8", "surrogatepass")

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._body:
            yield self._body

    def close(self) -> None:
        """Do nothing: there is no connection."""


Mode = Literal["replay", "record", "auto"]
_APIS_BY_DIALECT: Final = {dialect: {api} for dialect, api in APIS.items()} | {
    "google": {"google.streamGenerateContent", "google.generateContent"}
}
_DEFAULT_PROVIDERS: Final = {"anthropic": "anthropic", "responses": "openai", "chat": "openai-chat", "google": "google"}
"""Providers for files that do not name theirs."""
_MODEL_IN_PATH: Final = re.compile(r"/(?:models|deployments)/([^/:]+)")


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
            if model is None:
                raise InvalidArgument("model", None, "the model to record")
            if not self.path.parent.is_dir():
                raise RecordingInvalid(self.path, "its folder does not exist")
            self._model = copy(_http_model(model))
            self._model.transport = RecordingTransport(self.path, self._model.transport, self._model.endpoint)
        else:
            recording = read_recording(self.path)
            given = _recorded_model(self.path, recording) if model is None else _http_model(model)
            self._replay = ReplayingTransport(self.path, recording.exchanges, check=check)
            self._model = HttpModel(
                given.endpoint,
                given.model,
                given.dialect,
                api_key="replay",
                transport=self._replay,
                retry=given.retry,
                timeouts=given.timeouts,
                sleep=_skip_delay,
            )
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


def _http_model(model: Model | str) -> HttpModel:
    found = resolve_model(model)
    if not isinstance(found, HttpModel):
        raise InvalidArgument("model", found, "a model that is reached over HTTP")
    return found


async def _skip_delay(_seconds: float) -> None:
    # The delays between attempts were made during the recording.
    await asyncio.sleep(0)


def _recorded_model(path: Path, recording: Recording) -> HttpModel:
    """Make the model of a file: the endpoint that speaks its API, and the model that its first request names."""
    apis = recording.apis
    dialect = next((dialect for dialect, spoken in _APIS_BY_DIALECT.items() if spoken.intersection(apis)), None)
    if dialect is None:
        raise RecordingInvalid(path, f"nobody here speaks {', '.join(apis) or 'what it holds'}")
    spoken = load_dialect(dialect)
    unknown = sorted(set(recording.flags or ()).difference(spoken.flags))
    if unknown:
        raise RecordingInvalid(path, f"the {dialect} dialect has no flag {', '.join(unknown)}")
    provider = recording.provider or _DEFAULT_PROVIDERS[dialect]
    known = ENDPOINTS.get(provider)
    address = known.base_url if known is not None and known.dialect == dialect else ""
    # An unknown provider has exactly the flags in the file.
    endpoint = resolve_endpoint(
        provider, base_url=address or "https://replay.invalid", dialect=dialect, flags=recording.flags
    )
    for request in [exchange.request for exchange in recording.exchanges if exchange.request]:
        body = request.get("body")
        name = cast("dict[str, Any]", body).get("model") if isinstance(body, dict) else None
        if not isinstance(name, str):
            found = _MODEL_IN_PATH.search(str(request.get("path", "")))
            name = unquote(found[1]) if found else ""
        if name:
            return HttpModel(endpoint, name, spoken)
    return HttpModel(endpoint, "unknown", spoken)
