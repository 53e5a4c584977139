"""Record what a model said, and play it back: real traffic for tests, without a network and without a key.

    model = RecordedModel("weather.json", hf.model("anthropic:claude-sonnet-4-6"), mode="auto")

The first run asks the provider and writes each exchange to the file; later runs are served from it, through the same
dialect, byte for byte as it came. Request *n* gets response *n*; a request that differs from the recorded one is an
error that says where. The file has the format ``recording/1``. Nothing gets into it that is not on a list: of headers
and queries only those below, and what went out as a credential is taken out wherever it comes back.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from holdfast.errors import InvalidArgument, ModelError, UsageError
from holdfast.models.contract import respond
from holdfast.models.endpoints import ENDPOINTS, endpoint
from holdfast.models.http import HttpModel
from holdfast.models.names import dialect as dialect_of
from holdfast.models.names import model as named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from holdfast.messages import ModelReply, ModelRequest, StreamEvent
    from holdfast.models.contract import Model
    from holdfast.models.transport import Response, Timeouts, Transport
    from holdfast.models.wire import Endpoint

Mode = Literal["replay", "record", "auto"]

APIS: Final = {
    "anthropic": "anthropic.messages",
    "responses": "openai.responses",
    "chat": "openai.chat",
    "google": "google.streamGenerateContent",
}
"""What the format calls the dialects."""
_SPOKEN: Final = {dialect: {api} for dialect, api in APIS.items()} | {
    "google": {"google.streamGenerateContent", "google.generateContent"}
}
_USUAL: Final = {"anthropic": "anthropic", "responses": "openai", "chat": "openai-chat", "google": "google"}
"""Who stands for a dialect where the file does not name an endpoint that is known here."""
_MODEL_IN_PATH: Final = re.compile(r"/(?:models|deployments)/([^/:]+)")
_NO_KEY: Final = "replay"
_NOWHERE: Final = "https://replay.invalid"

FORMAT: Final = "recording/1"
REDACTED: Final = "REDACTED"
_SHOWN: Final = 8
_EXCERPT: Final = 80
_SHORTEST_SECRET: Final = 8

_REQUEST_HEADERS: Final = re.compile(r"content-type|accept|anthropic-version|anthropic-beta|openai-beta")
_RESPONSE_HEADERS: Final = re.compile(
    r"content-type|date|retry-after.*|x-should-retry|.*ratelimit.*|openai-version|openai-processing-ms|x-amzn-errortype"
)
_QUERY: Final = frozenset(("alt", "api-version", "beta", "stream", "include"))
_CREDENTIAL: Final = re.compile(r"auth|key|token|secret|cookie|password|credential|signature", re.IGNORECASE)
_SHAPES: Final = re.compile(
    # Only where a word begins: the same letters in the middle of encrypted reasoning are none of our business.
    r"(?<![\w+/=*.-])(?:"
    r"(?:sk|pk|rk)-(?=[\w*-]*[\d*])[\w*-]{8,}"
    r"|(?:hf|gsk|xai|nvapi|pplx|csk|fw|tgp_v1)[_-](?=[\w*-]*[\d*])[\w*-]{16,}"
    r"|AIza[\w*-]{16,}|(?:AKIA|ASIA)[A-Z0-9*]{12,}|gh[a-z]_\w{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"
    r")"
)


class RecordingInvalid(UsageError):
    """The file is no recording that can be used here."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} can't be used as a recording: {reason}")
        self.path = path
        self.reason = reason


class RecordingDiffers(ModelError):
    """The request is not the one that was recorded."""

    def __init__(self, path: Path, number: int, differences: tuple[str, ...]) -> None:
        shown = "; ".join(differences[:_SHOWN])
        more = f"; and {len(differences) - _SHOWN:,} more" if len(differences) > _SHOWN else ""
        super().__init__(
            f"request {number} is not the one in {path.name}: {shown}{more}. Record it again, or pass check=False",
            kind="recording_differs",
        )
        self.path = path
        self.number = number
        self.differences = differences


class RecordingEnded(ModelError):
    """More was asked than was recorded."""

    def __init__(self, path: Path, number: int) -> None:
        super().__init__(
            f"{path.name} has {number - 1:,} exchanges, and request {number:,} was made. Record it again",
            kind="recording_ended",
        )
        self.path = path
        self.number = number


# ---- what may be written ---------------------------------------------------------------------------------------------


class Secrets:
    """Takes out of any text what went out as a credential, and what has the shape of a key."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def learn(self, url: str, headers: Mapping[str, str]) -> None:
        """Remember the credentials of a request."""
        sent = [value for name, value in headers.items() if _CREDENTIAL.search(name)]
        sent += [value for name, value in parse_qsl(urlsplit(url).query) if name.lower() not in _QUERY]
        for value in sent:
            for part in {value, value.partition(" ")[2]}:
                if len(part) >= _SHORTEST_SECRET:
                    self._values |= {part, json.dumps(part)[1:-1], quote(part, safe="")}

    def text(self, text: str) -> str:
        """The text without them."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, REDACTED)
        return _SHAPES.sub(REDACTED, text)

    def bytes(self, data: bytes) -> bytes:
        """Bytes that are no text, without them."""
        for value in sorted(self._values, key=len, reverse=True):
            data = data.replace(value.encode(), REDACTED.encode())
        return data

    def json(self, value: Any) -> Any:  # noqa: ANN401  any JSON value
        """A JSON value without them, names included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(item) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {self.text(name): self.json(item) for name, item in cast("dict[str, Any]", value).items()}
        return value


def _written_request(url: str, headers: Mapping[str, str], body: bytes, secrets: Secrets) -> dict[str, Any]:
    place = urlsplit(url)
    return {
        "method": "POST",
        "host": place.hostname or "",
        "path": secrets.text(place.path),
        "query": {name: value for name, value in parse_qsl(place.query) if name in _QUERY},
        "headers": _headers(headers, _REQUEST_HEADERS, secrets),
        **_content(body, "application/json", secrets),
    }


def _written_response(status: int, headers: Mapping[str, str], body: bytes, secrets: Secrets) -> dict[str, Any]:
    kept = _headers(headers, _RESPONSE_HEADERS, secrets)
    return {"status": status, "headers": kept, **_content(body, kept.get("content-type", ""), secrets)}


def _headers(headers: Mapping[str, str], allowed: re.Pattern[str], secrets: Secrets) -> dict[str, str]:
    lower = {name.lower(): value for name, value in headers.items()}
    return {name: secrets.text(value) for name, value in lower.items() if allowed.fullmatch(name)}


def _content(body: bytes, kind: str, secrets: Secrets) -> dict[str, Any]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(secrets.bytes(body)).decode()}
    if "event-stream" in kind:
        return {"sse": secrets.text(text)}
    try:
        return {"body": secrets.json(json.loads(text))}
    except ValueError:
        return {"body_text": secrets.text(text)}


# ---- what was written ------------------------------------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True):
    """A recorded response; its body is in one of four forms."""

    status: int
    headers: dict[str, str] = {}
    body: Any = msgspec.UNSET
    """JSON."""
    sse: str | None = None
    body_text: str | None = None
    body_base64: bytes = b""


class Exchange(msgspec.Struct, frozen=True):
    """A question and its answer. Of some recordings only the answer is known."""

    response: Answer
    request: dict[str, Any] | None = None


class Recording(msgspec.Struct, frozen=True):
    """What is read of a file."""

    format: Literal["recording/1"]
    exchanges: list[Exchange]
    provider: str = ""
    apis: list[str] = []


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


def differences(recorded: Any, asked: Any, place: str = "") -> Iterator[str]:  # noqa: ANN401  any JSON values
    """Where two JSON values differ, in words."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        was, now = cast("dict[str, Any]", recorded), cast("dict[str, Any]", asked)
        for name in [*was, *(name for name in now if name not in was)]:
            inner = f"{place}.{name}" if place else name
            if name not in now:
                yield f"{inner} is missing, it was {_excerpt(was[name])}"
            elif name not in was:
                yield f"{inner} is new: {_excerpt(now[name])}"
            else:
                yield from differences(was[name], now[name], inner)
    elif isinstance(recorded, list) and isinstance(asked, list):
        before, after = cast("list[Any]", recorded), cast("list[Any]", asked)
        for index, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, other, f"{place}[{index}]")
        if len(before) != len(after):
            yield f"{place or 'the body'} has {len(after)} items, it had {len(before)}"
    elif recorded != asked or isinstance(recorded, bool) != isinstance(asked, bool):
        yield f"{place or 'the body'} is {_excerpt(asked)}, it was {_excerpt(recorded)}"


def _excerpt(value: Any) -> str:  # noqa: ANN401
    text = json.dumps(value)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


def _request_differences(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """What is asked is compared, not where: a recording made at another address is as good."""
    found: list[str] = []
    for what, one, other in (
        ("the path", _last(recorded), _last(asked)),
        ("the query", recorded.get("query", {}), asked["query"]),
    ):
        found += [f"{what}: {difference}" for difference in differences(one, other)]
    for name in ("body", "body_text", "body_base64"):
        if name in recorded or name in asked:
            found += differences(recorded.get(name), asked.get(name))
    return found


def _last(request: Mapping[str, Any]) -> str:
    return str(request.get("path", "")).rstrip("/").rpartition("/")[2]


# ---- the file --------------------------------------------------------------------------------------------------------


def _read(path: Path) -> Recording:
    try:
        # Not by msgspec, which refuses half a surrogate pair; providers send such things.
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), Recording)
    except FileNotFoundError:
        raise RecordingInvalid(path, "it does not exist; make it with mode='record'") from None
    except (OSError, ValueError, RecursionError) as error:  # what msgspec and json raise are ValueErrors
        raise RecordingInvalid(path, str(error)) from error


def _write(path: Path, recording: Mapping[str, Any]) -> None:
    """The whole file or nothing of it: a reader never sees half a recording."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # Escaped, so that half a surrogate pair that a provider sent can be kept too.
        fresh.write_text(json.dumps(recording, indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise RecordingInvalid(path, f"it can't be written: {error.strerror}") from error


# ---- transports ------------------------------------------------------------------------------------------------------


class RecordingTransport:
    """Sends requests through another transport, and writes each exchange to a file as soon as it has ended."""

    def __init__(self, path: Path, transport: Transport, endpoint: Endpoint) -> None:
        self._path = path
        self._transport = transport
        self._endpoint = endpoint
        self._secrets = Secrets()
        self._exchanges: list[dict[str, Any] | None] = []
        """In the order of the requests; None where the response is still coming."""

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Response:
        """Ask, and keep the answer while it is read."""
        self._secrets.learn(url, headers)
        response = await self._transport.open(url, headers, body, timeouts)
        place = len(self._exchanges)
        self._exchanges.append(None)

        def ended(read: bytes) -> None:
            self._exchanges[place] = {
                "request": _written_request(url, headers, body, self._secrets),
                "response": _written_response(response.status, response.headers, read, self._secrets),
            }
            self._save()

        return _Copied(response, ended)

    def _save(self) -> None:
        exchanges = [exchange for exchange in self._exchanges if exchange is not None]
        provider = self._endpoint.provider
        recording = {
            "format": FORMAT,
            "id": f"{provider}/{self._path.stem}",
            "provider": provider,
            "kind": "http",
            "apis": [APIS[self._endpoint.dialect]],
            "features": _features(exchanges),
            "source": {"authenticity": "recorded"},
            "exchanges": exchanges,
        }
        _write(self._path, recording)


def _features(exchanges: list[dict[str, Any]]) -> list[str]:
    found = {"multi_exchange"} if len(exchanges) > 1 else set[str]()
    for exchange in exchanges:
        response = exchange["response"]
        if "sse" in response:
            found.add("stream")
        if response["status"] >= 400:
            found.add(f"http_{response['status']}")
    return sorted(found)


class _Copied:
    """A response that keeps what was read of it."""

    def __init__(self, response: Response, ended: Callable[[bytes], None]) -> None:
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
        self._served = 0

    @property
    def left(self) -> int:
        """Exchanges that nobody has asked for yet."""
        return len(self._exchanges) - self._served

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Response:  # noqa: ARG002  part of the protocol
        """The next recorded answer. Raises `RecordingDiffers` or `RecordingEnded`."""
        number = self._served + 1
        if not self.left:
            raise RecordingEnded(self._path, number)
        exchange = self._exchanges[self._served]
        if exchange.request is not None:
            secrets = Secrets()
            secrets.learn(url, headers)
            found = tuple(_request_differences(exchange.request, _written_request(url, headers, body, secrets)))
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


# ---- the model -------------------------------------------------------------------------------------------------------


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
            recording = _read(self.path)
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
        model = HttpModel(place, name, dialect_of(place.dialect))
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
    known = ENDPOINTS.get(recording.provider)
    if known is None or known.endpoint.dialect != dialect:
        known = ENDPOINTS[_USUAL[dialect]]
    found = endpoint(known.endpoint.provider, base_url=known.endpoint.base_url or _NOWHERE)
    named_in = (_model_in(exchange.request) for exchange in recording.exchanges if exchange.request is not None)
    return found, next(filter(None, named_in), "unknown")


def _model_in(request: Mapping[str, Any]) -> str | None:
    body = request.get("body")
    model = cast("dict[str, Any]", body).get("model") if isinstance(body, dict) else None
    if isinstance(model, str):
        return model
    found = _MODEL_IN_PATH.search(str(request.get("path", "")))
    return unquote(found[1]) if found else None
