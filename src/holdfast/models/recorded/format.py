"""The file: what is written of an exchange, and what is read. The format is ``recording/1``."""

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
    parsed,
    stream_without_secrets,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.models.dialect import Endpoint
    from holdfast.models.recorded.redaction import Secrets


FORMAT: Final = "recording/1"
APIS: Final = {
    "anthropic": "anthropic.messages",
    "responses": "openai.responses",
    "chat": "openai.chat",
    "google": "google.streamGenerateContent",
}
"""What the format calls the dialects."""


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
    flags: list[str] | None = None
    """What the endpoint did differently; None: as it is known for the provider."""


def written_request(url: str, headers: Mapping[str, str], body: bytes, secrets: Secrets) -> dict[str, Any]:
    """A request as it is written: what is on a list, and no secret."""
    place = urlsplit(url)
    return {
        "method": "POST",
        "host": place.hostname or "",
        "path": secrets.text(place.path),
        "query": {name: secrets.text(value) for name, value in parse_qsl(place.query) if name in QUERY},
        "headers": _headers(headers, REQUEST_HEADERS, secrets),
        **_request_content(body, secrets),
    }


def written_response(status: int, headers: Mapping[str, str], body: bytes, secrets: Secrets) -> dict[str, Any]:
    """A response as it is written."""
    kept = _headers(headers, RESPONSE_HEADERS, secrets)
    return {"status": status, "headers": kept, **_response_content(body, kept.get("content-type", ""), secrets)}


def written_recording(name: str, endpoint: Endpoint, exchanges: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole file."""
    return {
        "format": FORMAT,
        "id": f"{endpoint.provider}/{name}",
        "provider": endpoint.provider,
        "kind": "http",
        "apis": [APIS[endpoint.dialect]],
        "flags": sorted(endpoint.flags),
        "features": _features(exchanges),
        "source": {"authenticity": "recorded"},
        "exchanges": exchanges,
    }


def without_later_secrets(exchange: Mapping[str, Any], secrets: Secrets) -> dict[str, Any]:
    """A written exchange, without what was learnt after it was written."""
    clean = secrets.json({**exchange, "response": {**exchange["response"], "sse": ""}})
    response = exchange["response"]
    if "sse" in response:
        clean["response"]["sse"] = stream_without_secrets(response["sse"], secrets)
    else:
        del clean["response"]["sse"]
    return clean


def _headers(headers: Mapping[str, str], allowed: re.Pattern[str], secrets: Secrets) -> dict[str, str]:
    lower = {name.lower(): value for name, value in headers.items()}
    return {name: secrets.text(value) for name, value in lower.items() if allowed.fullmatch(name)}


def _request_content(body: bytes, secrets: Secrets) -> dict[str, Any]:
    try:
        return {"body": secrets.request(json.loads(body))}
    except RecursionError:
        return {"body_text": REDACTED}  # too deep to look through
    except ValueError:
        return _response_content(body, "", secrets)


def _response_content(body: bytes, kind: str, secrets: Secrets) -> dict[str, Any]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(secrets.bytes(body)).decode()}
    if "event-stream" in kind:
        return {"sse": stream_without_secrets(text, secrets)}
    try:
        return {"body": secrets.json(json.loads(text))}
    except (ValueError, RecursionError):
        return {"body_text": secrets.text(text)}


def _features(exchanges: Sequence[Mapping[str, Any]]) -> list[str]:
    found = {"multi_exchange"} if len(exchanges) > 1 else set[str]()
    for exchange in exchanges:
        response = exchange["response"]
        if "sse" in response:
            found.add("stream")
        if response["status"] >= 400:
            found.add(f"http_{response['status']}")
    return sorted(found)


def read(path: Path) -> Recording:
    """The recording in a file."""
    try:
        # Not by msgspec, which refuses half a surrogate pair; providers send such things.
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), Recording)
    except FileNotFoundError:
        raise RecordingInvalid(path, "it does not exist; make it with mode='record'") from None
    except (OSError, ValueError, RecursionError) as error:  # what msgspec and json raise are ValueErrors
        raise RecordingInvalid(path, str(error)) from error


def write(path: Path, recording: Mapping[str, Any]) -> None:
    """The whole file or nothing of it: a reader never sees half a recording."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # Escaped, so that half a surrogate pair that a provider sent can be kept too.
        fresh.write_text(json.dumps(recording, indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise RecordingInvalid(path, f"it can't be written: {error.strerror}") from error


_EXCERPT: Final = 80


def request_differences(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Where two written requests differ. What is asked is compared, not where: another address is as good."""
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
    elif (pair := _inner(recorded, asked)) is not None:
        yield from differences(*pair, place)
    elif not _same(recorded, asked):
        yield f"{place or 'the body'} is {_excerpt(asked)}, it was {_excerpt(recorded)}"


def _inner(recorded: Any, asked: Any) -> tuple[Any, Any] | None:  # noqa: ANN401
    """What two texts say that are both JSON, such as arguments of calls: where they have spaces is of no interest."""
    if not isinstance(recorded, str) or not isinstance(asked, str) or recorded == asked:
        return None
    one, other = parsed(recorded), parsed(asked)
    return None if one is None or other is None else (one, other)


def _same(recorded: Any, asked: Any) -> bool:  # noqa: ANN401
    """Whether two plain values are the same. What was taken out of the recorded one may be anything now."""
    if isinstance(recorded, str) and isinstance(asked, str) and REDACTED in recorded:
        return _fits(recorded.split(REDACTED), asked)
    return recorded == asked and isinstance(recorded, bool) == isinstance(asked, bool)


def _fits(pieces: list[str], text: str) -> bool:
    """Whether a text consists of these pieces, in this order, with anything between them."""
    first, *middle, last = pieces
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _last(request: Mapping[str, Any]) -> str:
    return str(request.get("path", "")).rstrip("/").rpartition("/")[2]


def _excerpt(value: Any) -> str:  # noqa: ANN401
    text = json.dumps(value)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."
