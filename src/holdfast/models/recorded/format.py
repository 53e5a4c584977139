"""The file format ``recording/1``: writing, reading and comparing exchanges."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec

from holdfast.errors import RecordingInvalid
from holdfast.models.recorded.redaction import (
    QUERY,
    REDACTED,
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    parse_container,
    redact_stream,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.models.dialect import Endpoint
    from holdfast.models.recorded.redaction import RecordingRedactor


FORMAT: Final = "recording/1"
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
    """JSON."""
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
    except ValueError:
        content = _content(body, "", secrets)
    return {
        "method": "POST",
        "host": place.hostname or "",
        "path": secrets.text(place.path),
        "query": {name: secrets.text(value) for name, value in parse_qsl(place.query) if name in QUERY},
        "headers": _headers(headers, REQUEST_HEADERS, secrets),
        **content,
    }


def format_response(status: int, headers: Mapping[str, str], body: bytes, secrets: RecordingRedactor) -> dict[str, Any]:
    """Format a response."""
    kept = _headers(headers, RESPONSE_HEADERS, secrets)
    return {"status": status, "headers": kept, **_content(body, kept.get("content-type", ""), secrets)}


def format_recording(name: str, endpoint: Endpoint, exchanges: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Format the whole file."""
    responses = [exchange["response"] for exchange in exchanges]
    features = {f"http_{response['status']}" for response in responses if response["status"] >= 400}
    if len(exchanges) > 1:
        features.add("multi_exchange")
    if any("sse" in response for response in responses):
        features.add("stream")
    return {
        "format": FORMAT,
        "id": f"{endpoint.provider}/{name}",
        "provider": endpoint.provider,
        "kind": "http",
        "apis": [APIS[endpoint.dialect]],
        "flags": sorted(endpoint.flags),
        "features": sorted(features),
        "source": {"authenticity": "recorded"},
        "exchanges": exchanges,
    }


def redact_exchange(exchange: Mapping[str, Any], secrets: RecordingRedactor) -> dict[str, Any]:
    """Redact a formatted exchange again, for secrets that were learnt later."""
    response = dict(exchange["response"])
    stream = response.pop("sse", None)
    clean = secrets.json({**exchange, "response": response})
    if stream is not None:
        clean["response"]["sse"] = redact_stream(stream, secrets)
    return clean


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


def write_recording(path: Path, recording: Mapping[str, Any]) -> None:
    """Write a recording atomically."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # Escaped, so that lone surrogates can be written.
        fresh.write_text(json.dumps(recording, indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise RecordingInvalid(path, f"it can't be written: {error.strerror}") from error


def request_differences(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Describe how two formatted requests differ. Hosts are not compared: another address is as good."""
    was, now = (str(request.get("path", "")).rstrip("/").rpartition("/")[2] for request in (recorded, asked))
    found = [f"the path: {difference}" for difference in json_differences(was, now)]
    found += [f"the query: {each}" for each in json_differences(recorded.get("query", {}), asked["query"])]
    for name in ("body", "body_text", "body_base64"):
        if name in recorded or name in asked:
            found += json_differences(recorded.get(name), asked.get(name))
    return found


def json_differences(recorded: Any, asked: Any, place: str = "") -> Iterator[str]:  # noqa: ANN401  any JSON values
    """Describe how two JSON values differ."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        was, now = cast("dict[str, Any]", recorded), cast("dict[str, Any]", asked)
        for name in [*was, *(name for name in now if name not in was)]:
            inner = f"{place}.{name}" if place else name
            if name not in now:
                yield f"{inner} is missing, it was {_clip(was[name])}"
            elif name not in was:
                yield f"{inner} is new: {_clip(now[name])}"
            else:
                yield from json_differences(was[name], now[name], inner)
    elif isinstance(recorded, list) and isinstance(asked, list):
        before, after = cast("list[Any]", recorded), cast("list[Any]", asked)
        for index, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from json_differences(one, other, f"{place}[{index}]")
        if len(before) != len(after):
            yield f"{place or 'the body'} has {len(after)} items, it had {len(before)}"
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
    """True if two texts are the same. A redacted part of the recorded one matches anything."""
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


def _clip(value: Any) -> str:  # noqa: ANN401
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
