"""Record the replies of a model and replay them: real traffic for tests, without network or key.

    model = RecordedModel("weather.json", hf.model("anthropic:claude-sonnet-4-6"), mode="auto")

The first run asks the provider and writes each exchange to the file; later runs are served from it, through the same
dialect, byte for byte as it came. Request *n* gets response *n*; a request that differs from the recorded one is an
error that says where. The file has the format ``recording/1``; `redaction` says what never gets into it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holdfast.errors import InvalidArgument, RecordingDiffers, RecordingEnded, RecordingInvalid
from holdfast.models import redaction, registry
from holdfast.models.contract import Model, respond
from holdfast.models.endpoints import ENDPOINTS, resolve_endpoint
from holdfast.models.http import HttpModel
from holdfast.models.json_values import as_dict, clip_text, is_dict, is_list
from holdfast.models.redaction import REDACTED, RecordingRedactor, parse_container, redact_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from holdfast.messages import ModelReply, ModelRequest, StreamEvent
    from holdfast.models.dialect import Endpoint
    from holdfast.models.transport import HttpResponse, Timeouts, Transport

# ---- the file format ``recording/1`` ----


APIS: Final = {
    "anthropic": "anthropic.messages",
    "responses": "openai.responses",
    "chat": "openai.chat",
    "google": "google.streamGenerateContent",
}
"""Names of the dialects in the format."""


class RecordedResponse(msgspec.Struct, frozen=True):
    """A recorded response. Its body has one of four forms."""

    status: int
    headers: dict[str, str] = {}
    body: Any = msgspec.UNSET
    sse: str | None = None
    body_text: str | None = None
    body_base64: bytes = b""


class RecordedExchange(msgspec.Struct, frozen=True):
    """A request and its response. Some recordings have only the response."""

    response: RecordedResponse
    request: dict[str, Any] | None = None


class Recording(msgspec.Struct, frozen=True):
    """A recording file."""

    format: Literal["recording/1"]
    exchanges: list[RecordedExchange]
    provider: str = ""
    apis: list[str] = []
    flags: list[str] | None = None
    """Flags of the endpoint; None: the known flags of the provider."""


def format_request(url: str, headers: Mapping[str, str], body: bytes, secrets: RecordingRedactor) -> dict[str, Any]:
    """Format a request: only known headers and parameters, and no secrets."""
    place = urlsplit(url)
    try:
        content = {"body": secrets.request(json.loads(body))}
    except RecursionError:
        content = {"body_text": REDACTED}  # too deep to look through
    return {
        "method": "POST",
        "host": place.hostname or "",
        "path": secrets.text(place.path),
        "query": {name: secrets.text(value) for name, value in parse_qsl(place.query) if name in redaction.QUERY},
        "headers": _headers(headers, redaction.REQUEST_HEADERS, secrets),
        **content,
    }


def format_recording(name: str, endpoint: Endpoint, exchanges: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Format the whole file."""
    responses = [exchange["response"] for exchange in exchanges]
    features = {f"http_{response['status']}" for response in responses if response["status"] >= 400}
    features |= {"multi_exchange"} if len(exchanges) > 1 else set()
    features |= {"stream" for response in responses if "sse" in response}
    return {
        "format": "recording/1",
        "id": f"{endpoint.provider}/{name}",
        "provider": endpoint.provider,
        "kind": "http",
        "apis": [APIS[endpoint.dialect]],
        "flags": sorted(endpoint.flags),
        "features": sorted(features),
        "source": {"authenticity": "recorded"},
        "exchanges": exchanges,
    }


def _headers(headers: Mapping[str, str], allowed: re.Pattern[str], secrets: RecordingRedactor) -> dict[str, str]:
    lower = {name.lower(): value for name, value in headers.items()}
    return {name: secrets.text(value) for name, value in lower.items() if allowed.fullmatch(name)}


def _content(body: bytes, kind: str, secrets: RecordingRedactor) -> dict[str, Any]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(secrets.bytes(body)).decode()}
    if "event-stream" in kind:
        return {"sse": redact_stream(text, secrets)}
    try:
        return {"body": secrets.json(json.loads(text))}
    except (ValueError, RecursionError):
        return {"body_text": secrets.text(text)}


def read_recording(path: Path) -> Recording:
    """Read a recording."""
    try:
        # Not with msgspec, which refuses lone surrogates; providers send them.
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), Recording)
    except FileNotFoundError:
        raise RecordingInvalid(path, "it does not exist; make it with mode='record'") from None
    except (OSError, ValueError, RecursionError) as error:  # msgspec and json raise ValueErrors
        raise RecordingInvalid(path, str(error)) from error


def request_differences(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Describe the differences of two formatted requests. Hosts are not compared."""
    was, now = (str(request.get("path", "")).rstrip("/").rpartition("/")[2] for request in (recorded, asked))
    found = [f"the path: {difference}" for difference in json_differences(was, now)]
    found += [f"the query: {each}" for each in json_differences(recorded.get("query", {}), asked["query"])]
    for name in ("body", "body_text", "body_base64"):
        found += json_differences(recorded.get(name), asked.get(name))
    return found


def json_differences(recorded: Any, asked: Any, place: str = "") -> Iterator[str]:  # any JSON values
    """Describe how two JSON values differ."""
    if is_dict(recorded) and is_dict(asked):
        for name in recorded | asked:
            inner = f"{place}.{name}" if place else name
            if name not in asked:
                yield f"{inner} is missing, it was {_clip(recorded[name])}"
            elif name not in recorded:
                yield f"{inner} is new: {_clip(asked[name])}"
            else:
                yield from json_differences(recorded[name], asked[name], inner)
    elif is_list(recorded) and is_list(asked):
        for index, (one, other) in enumerate(zip(recorded, asked, strict=False)):
            yield from json_differences(one, other, f"{place}[{index}]")
        if len(recorded) != len(asked):
            yield f"{place or 'the body'} has {len(asked)} items, it had {len(recorded)}"
    elif isinstance(recorded, str) and isinstance(asked, str) and recorded != asked:
        # Texts that are both JSON, such as arguments of calls, are compared without their white space.
        one, other = parse_container(recorded), parse_container(asked)
        if one is not None and other is not None:
            yield from json_differences(one, other, place)
        elif not _matches_redacted(recorded, asked):
            yield f"{place or 'the body'} is {_clip(asked)}, it was {_clip(recorded)}"
    elif recorded != asked or isinstance(recorded, bool) != isinstance(asked, bool):
        yield f"{place or 'the body'} is {_clip(asked)}, it was {_clip(recorded)}"


def _matches_redacted(recorded: str, asked: str) -> bool:
    """True if two texts are equal. A redacted part of the recorded one matches any text."""
    first, *rest = recorded.split(REDACTED)
    if not rest:
        return recorded == asked
    *middle, last = rest
    if len(asked) < len(first) + len(last) or not asked.startswith(first) or not asked.endswith(last):
        return False
    at, end = len(first), len(asked) - len(last)
    for piece in middle:
        found = asked.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _clip(value: Any) -> str:
    return clip_text(json.dumps(value), 80)


# ---- transports, and the model ----


class RecordingTransport:
    """Sends requests through another transport, and writes each exchange to a file when it ends."""

    def __init__(self, path: Path, transport: Transport, endpoint: Endpoint) -> None:
        self._path = path
        self._transport = transport
        self._endpoint = endpoint
        self._secrets = RecordingRedactor()
        self._exchanges: list[dict[str, Any] | None] = []
        """In the order of the requests; None while the response is still arriving."""
        self._redacted_for = 0
        """Number of secrets that the exchanges were redacted for."""

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpResponse:
        """POST `body`, and record the answer while it is read."""
        self._secrets.learn(url, headers, body)
        response = await self._transport.open(url, headers, body, timeouts)
        place = len(self._exchanges)
        self._exchanges.append(None)

        def ended(read: bytes) -> None:
            secrets = self._secrets
            request = format_request(url, headers, body, secrets)
            kept = _headers(response.headers, redaction.RESPONSE_HEADERS, secrets)
            content = _content(read, kept.get("content-type", ""), secrets)
            answer = {"status": response.status, "headers": kept, **content}
            self._exchanges[place] = {"request": request, "response": answer}
            self._save()

        return _RecordingResponse(response, ended)

    def _save(self) -> None:
        while self._redacted_for < self._secrets.known:
            # Earlier exchanges may hold secrets that were learnt later.
            self._redacted_for = self._secrets.known
            self._exchanges = [exchange and self._redact_again(exchange) for exchange in self._exchanges]
        exchanges = [exchange for exchange in self._exchanges if exchange is not None]
        recording = format_recording(self._path.stem, self._endpoint, exchanges)
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            # Escaped, so that lone surrogates can be written.
            fresh.write_text(json.dumps(recording, indent=1) + "\n", encoding="utf-8")
            fresh.replace(self._path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise RecordingInvalid(self._path, f"it can't be written: {error.strerror}") from error

    def _redact_again(self, exchange: dict[str, Any]) -> dict[str, Any]:
        response = dict(exchange["response"])
        stream = response.pop("sse", None)
        clean = self._secrets.json({**exchange, "response": response})
        if stream is not None:
            clean["response"]["sse"] = redact_stream(stream, self._secrets)
        return clean


class _RecordingResponse:
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

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> HttpResponse:
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
    def __init__(self, recorded: RecordedResponse) -> None:
        self.status = recorded.status
        self.headers = {name.lower(): value for name, value in recorded.headers.items()}
        for name in ("transfer-encoding", "content-length", "content-encoding"):  # they describe the recorded one
            self.headers.pop(name, None)
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
_DEFAULT_PROVIDERS: Final = {"anthropic": "anthropic", "responses": "openai", "chat": "openai-chat", "google": "google"}
"""Providers for files that do not name theirs."""
_MODEL_IN_PATH: Final = re.compile(r"/(?:models|deployments)/([^/:]+)")


class RecordedModel:
    """A model with exchanges recorded in a file, or replayed from one.

    `mode`: ``replay`` replays the file, ``record`` calls `model` and rewrites the file, ``auto`` replays the file if it
    exists and records it otherwise. A replay needs no `model`: the file names it. With ``check=False`` a request may
    differ from the recorded one; `differences` then describes the difference.
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
        return await respond(self, request)

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        return self._model.stream(request)


def _http_model(model: Model | str) -> HttpModel:
    found = registry.model(model)
    if not isinstance(found, HttpModel):
        raise InvalidArgument("model", found, "a model that is reached over HTTP")
    return found


async def _skip_delay(_seconds: float) -> None:
    # The delays between attempts were made during the recording.
    await asyncio.sleep(0)


def _recorded_model(path: Path, recording: Recording) -> HttpModel:
    """The model of a file: the endpoint that speaks its API, and the model named in its first request."""
    apis = recording.apis
    dialect = next((dialect for dialect, api in APIS.items() if api in apis), None)
    if "google.generateContent" in apis:
        dialect = "google"
    if dialect is None:
        raise RecordingInvalid(path, f"this release does not support {', '.join(apis) or 'its protocol'}")
    spoken = registry.load_dialect(dialect)
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
        found = _MODEL_IN_PATH.search(str(request.get("path", "")))
        name = as_dict(request.get("body")).get("model")
        name = name if isinstance(name, str) else unquote(found[1]) if found else ""
        if name:
            return HttpModel(endpoint, name, spoken)
    return HttpModel(endpoint, "unknown", spoken)
