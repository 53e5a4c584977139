"""Transports: one writes what it carries to a file, the other answers from a file."""

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
    read,
    request_differences,
    without_later_secrets,
    write,
    written_recording,
    written_request,
    written_response,
)
from holdfast.models.recorded.redaction import Secrets
from holdfast.models.registry import load_dialect
from holdfast.models.registry import model as named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from holdfast.messages import ModelReply, ModelRequest, StreamEvent
    from holdfast.models.contract import Model
    from holdfast.models.dialect import Endpoint
    from holdfast.models.recorded.format import Answer, Exchange, Recording
    from holdfast.models.transport import HttpResponse, Timeouts, Transport


class RecordingTransport:
    """Sends requests through another transport, and writes each exchange to a file as soon as it has ended."""

    def __init__(self, path: Path, transport: Transport, endpoint: Endpoint) -> None:
        self._path = path
        self._transport = transport
        self._endpoint = endpoint
        self._secrets = Secrets()
        self._exchanges: list[dict[str, Any] | None] = []
        """In the order of the requests; None where the response is still coming."""
        self._scrubbed = 0
        """How many secrets were known when all of them were last looked through."""

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpResponse:
        """Ask, and keep the answer while it is read."""
        self._secrets.learn(url, headers, body)
        response = await self._transport.open(url, headers, body, timeouts)
        place = len(self._exchanges)
        self._exchanges.append(None)

        def ended(read: bytes) -> None:
            self._exchanges[place] = {
                "request": written_request(url, headers, body, self._secrets),
                "response": written_response(response.status, response.headers, read, self._secrets),
            }
            self._save()

        return _Copied(response, ended)

    def _save(self) -> None:
        while self._scrubbed < self._secrets.known:
            # What was learnt later may stand in what was written before.
            self._scrubbed = self._secrets.known
            self._exchanges = [
                None if exchange is None else without_later_secrets(exchange, self._secrets)
                for exchange in self._exchanges
            ]
        exchanges = [exchange for exchange in self._exchanges if exchange is not None]
        write(self._path, written_recording(self._path.stem, self._endpoint, exchanges))


class _Copied:
    """A response that keeps what was read of it."""

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
        # Also when the connection broke: the recording then ends where the answer did, and is cut in the same place.
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(b"".join(self._read))


class ReplayingTransport:
    """Answers request *n* with exchange *n* of a file; nothing goes out."""

    def __init__(self, path: Path, exchanges: Sequence[Exchange], *, check: bool = True) -> None:
        self.differences: list[tuple[int, str]] = []
        """Where requests were not those of the recording, when that is not checked: number and words."""
        self._path = path
        self._exchanges = exchanges
        self._check = check
        self._secrets = Secrets()
        self._served = 0

    @property
    def left(self) -> int:
        """Exchanges that nobody has asked for yet."""
        return len(self._exchanges) - self._served

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpResponse:  # noqa: ARG002  part of the protocol
        """The next recorded answer. Raises `RecordingDiffers` or `RecordingEnded`."""
        number = self._served + 1
        if not self.left:
            raise RecordingEnded(self._path, number)
        exchange = self._exchanges[self._served]
        if exchange.request is not None:
            self._secrets.learn(url, headers, body)
            asked = written_request(url, headers, body, self._secrets)
            # Also the recorded one: it may come from somebody who took out less.
            found = tuple(request_differences(self._secrets.request(exchange.request), asked))
            if found and self._check:
                raise RecordingDiffers(self._path, number, found)
            self.differences += [(number, difference) for difference in found]
        self._served = number
        return _played(exchange.response)


class _Played(NamedTuple):
    """A response out of a file."""

    status: int
    headers: dict[str, str]
    body: bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.body:
            yield self.body

    def close(self) -> None:
        """There is nothing to let go."""


def _played(answer: Answer) -> _Played:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    # The length and the pieces were those of the recorded connection.
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
    return _Played(answer.status, headers, body)


Mode = Literal["replay", "record", "auto"]
_SPOKEN: Final = {dialect: {api} for dialect, api in APIS.items()} | {
    "google": {"google.streamGenerateContent", "google.generateContent"}
}
_USUAL: Final = {"anthropic": "anthropic", "responses": "openai", "chat": "openai-chat", "google": "google"}
"""Who stands for a dialect where the file does not say who spoke."""
_MODEL_IN_PATH: Final = re.compile(r"/(?:models|deployments)/([^/:]+)")
_NO_KEY: Final = "replay"
_NOWHERE: Final = "https://replay.invalid"


class RecordedModel:
    """A model whose exchanges are recorded in a file, or played back from one.

    `mode`: ``replay`` plays the file back, ``record`` asks `model` and writes the file anew, ``auto`` plays it back if
    it is there and records it otherwise. To play back, `model` may be left out: the file says whose words it holds.
    With ``check=False`` a request may differ from the recorded one; `differences` then says where.
    """

    def __init__(
        self, path: str | Path, model: Model | str | None = None, *, mode: Mode = "replay", check: bool = True
    ) -> None:
        self.path = Path(path)
        if mode not in {"replay", "record", "auto"}:
            raise InvalidArgument("mode", mode, "'replay', 'record' or 'auto'")
        self.recording = mode == "record" or (mode == "auto" and not self.path.exists())
        """Whether the model is really asked."""
        self._replay: ReplayingTransport | None = None
        if self.recording:
            self._model = _recorded(self.path, model)
        else:
            recording = read(self.path)
            self._replay = ReplayingTransport(self.path, recording.exchanges, check=check)
            self._model = _replayed(self.path, recording, model, self._replay)
        self.name = self._model.name

    def __repr__(self) -> str:
        return f"RecordedModel({str(self.path)!r}, {self.name!r}, mode={'record' if self.recording else 'replay'!r})"

    @property
    def left(self) -> int:
        """Exchanges of the file that nobody has asked for yet."""
        return 0 if self._replay is None else self._replay.left

    @property
    def differences(self) -> tuple[tuple[int, str], ...]:
        """Where requests were not those of the recording: number of the request, and words."""
        return () if self._replay is None else tuple(self._replay.differences)

    async def respond(self, request: ModelRequest) -> ModelReply:
        """The whole reply at once."""
        return await respond(self, request)

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The reply as it comes, or as it came."""
        return self._model.stream(request)


def _recorded(path: Path, model: Model | str | None) -> HttpModel:
    if model is None:
        raise InvalidArgument("model", None, "the model to record")
    if not path.parent.is_dir():
        raise RecordingInvalid(path, "its folder does not exist")
    recorded = copy(_http(model))
    recorded.transport = RecordingTransport(path, recorded.transport, recorded.endpoint)
    return recorded


def _replayed(path: Path, recording: Recording, model: Model | str | None, transport: ReplayingTransport) -> HttpModel:
    if model is None:
        place, name = _speaker(path, recording)
        model = HttpModel(place, name, load_dialect(place.dialect))
    given = _http(model)
    return HttpModel(
        given.endpoint,
        given.model,
        given.dialect,
        api_key=_NO_KEY,
        transport=transport,
        retry=given.retry,
        timeouts=given.timeouts,
        sleep=_at_once,
    )


def _http(model: Model | str) -> HttpModel:
    found = named(model)
    if not isinstance(found, HttpModel):
        raise InvalidArgument("model", found, "a model that is reached over HTTP")
    return found


async def _at_once(_seconds: float) -> None:
    """The pauses between tries were made when it was recorded."""
    await asyncio.sleep(0)


def _speaker(path: Path, recording: Recording) -> tuple[Endpoint, str]:
    """Whose words a file holds: the endpoint that speaks its API, and the model that its first request names."""
    apis = recording.apis
    dialect = next((dialect for dialect, spoken in _SPOKEN.items() if spoken.intersection(apis)), None)
    if dialect is None:
        raise RecordingInvalid(path, f"nobody here speaks {', '.join(apis) or 'what it holds'}")
    unknown = sorted(set(recording.flags or ()).difference(load_dialect(dialect).flags))
    if unknown:
        raise RecordingInvalid(path, f"the {dialect} dialect has no flag {', '.join(unknown)}")
    known = ENDPOINTS.get(recording.provider or _USUAL[dialect])
    address = known.endpoint.base_url if known is not None and known.endpoint.dialect == dialect else ""
    # Somebody who is not known has the flags that the file names, and no others.
    found = resolve_endpoint(
        recording.provider or _USUAL[dialect], base_url=address or _NOWHERE, dialect=dialect, flags=recording.flags
    )
    named_in = (_model_in(exchange.request) for exchange in recording.exchanges if exchange.request is not None)
    return found, next(filter(None, named_in), "unknown")


def _model_in(request: Mapping[str, Any]) -> str | None:
    body = request.get("body")
    model = cast("dict[str, Any]", body).get("model") if isinstance(body, dict) else None
    if isinstance(model, str):
        return model
    found = _MODEL_IN_PATH.search(str(request.get("path", "")))
    return unquote(found[1]) if found else None
