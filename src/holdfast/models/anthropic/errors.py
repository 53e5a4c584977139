"""What went wrong, by its neutral name. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import ContextOverflow, ModelError, StreamFailed
from holdfast.models.dialect import bounded, mapping, read, too_long, worded
from holdfast.models.retry import PASSING_KINDS, asked_in_headers, asked_in_words, kind_of_status, longest, should_retry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_KINDS: Final = {
    "invalid_request_error": "bad_request",
    "authentication_error": "authentication",
    "billing_error": "billing",
    "permission_error": "permission",
    "not_found_error": "not_found",
    "exceed_context_size_error": "context_overflow",
    "request_too_large": "context_overflow",
    "rate_limit_error": "rate_limited",
    "api_error": "server_error",
    "timeout_error": "timeout",
    "overloaded_error": "overloaded",
}
_FINAL: Final = frozenset((400, 401, 402, 403, 404, 413, 422))
_SAYINGS: Final = (
    (re.compile("content filtering policy", re.IGNORECASE), "content_filter"),
    (re.compile("credit balance", re.IGNORECASE), "billing"),
)
_SECRET: Final = re.compile(r"\bsk-[A-Za-z0-9_-]{8}[^\s\"'`<>()\[\]{},;]*")
"""A key to its end: of one that is replaced in part, nobody would find the rest."""
_LIMITS: Final = ("requests", "tokens", "input-tokens", "output-tokens")


def refused(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """What an answer with an error status means."""
    given = {name.lower(): value for name, value in headers.items()}
    try:
        answer = mapping(read(body))
    except ModelError:
        answer = {}
    detail = answer.get("error")
    error = mapping(detail)
    words = worded(error.get("message")) or worded(detail) or _printed(body)
    kind = _KINDS.get(worded(error.get("type"))) or kind_of_status(status)
    failure = _failure(kind, words or f"HTTP {status}")
    failure.status = status
    failure.request_id = worded(answer.get("request_id")) or given.get("request-id") or given.get("x-request-id")
    failure.retry_after = _retry_after(given, words)
    advice = should_retry(given)
    failure.retryable = (status not in _FINAL and failure.kind in PASSING_KINDS) if advice is None else advice
    return failure


def told(event: dict[str, Any]) -> ModelError:
    """The error that an object inside a response tells of."""
    detail = event.get("error")
    error = mapping(detail)
    words = worded(error.get("message")) or worded(detail) or "the provider reports an error"
    code = error.get("code")
    kind = kind_of_status(code) if type(code) is int and 400 <= code < 600 else "server_error"
    failure = _failure(_KINDS.get(worded(error.get("type")), kind), words, StreamFailed)
    failure.request_id = worded(event.get("request_id")) or None
    failure.retry_after = asked_in_words(words)
    return failure


def _failure(kind: str, words: str, made: Callable[..., ModelError] = ModelError) -> ModelError:
    words = bounded(_SECRET.sub("sk-...", words))
    if kind in {"bad_request", "server_error"}:
        found = next((better for saying, better in _SAYINGS if saying.search(words)), kind)
        kind = "context_overflow" if too_long(words) else found
    if kind == "context_overflow":
        return ContextOverflow(words)
    return made(words, kind=kind, retryable=kind in PASSING_KINDS)


def _retry_after(headers: Mapping[str, str], words: str) -> float | None:
    """How long to wait, in seconds, as header and words say, or else until a limit that is used up is reset."""
    asked, now = longest(asked_in_headers(headers), asked_in_words(words)), _moment(headers.get("date"))
    if asked is not None or now is None:
        return asked
    moments = [
        _moment(headers.get(f"anthropic-ratelimit-{limit}-reset"))
        for limit in _LIMITS
        if headers.get(f"anthropic-ratelimit-{limit}-remaining") == "0"
    ]
    waits = [(moment - now).total_seconds() for moment in moments if moment is not None]
    return max(0.0, *waits) if waits else None


def _moment(text: str | None) -> datetime | None:
    """A point in time as HTTP or as the provider writes it; None for anything else."""
    if not text:
        return None
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = parse(text)
        except (ValueError, TypeError, OverflowError):
            continue
        if moment.tzinfo is not None:
            return moment
    return None


def _printed(body: bytes) -> str:
    return " ".join(body[:400].decode("utf-8", "replace").split())
