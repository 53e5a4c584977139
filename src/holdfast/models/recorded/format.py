"""The file: what is written of an exchange, and what is read. The format is ``recording/1``."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec

from holdfast.errors import RecordingInvalid
from holdfast.models.recorded.redaction import QUERY, REDACTED, REQUEST_HEADERS, RESPONSE_HEADERS
from holdfast.models.recorded.streams import stream_without_secrets

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from holdfast.models.recorded.redaction import Secrets
    from holdfast.models.wire import Endpoint

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


# ---- what is written -------------------------------------------------------------------------------------------------


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


# ---- the file --------------------------------------------------------------------------------------------------------


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
