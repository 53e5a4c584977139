"""Errors of the Anthropic dialect. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from holdfast.models.dialect import (
    as_dict,
    as_text,
    clip_text,
    kind_of_status,
    make_error,
    parse_error_body,
    reports_overflow,
)
from holdfast.models.retry import add_response_headers, delay_from_message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.errors import ModelError


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
_FINAL_STATUSES: Final = frozenset((400, 401, 402, 403, 404, 413, 422))
_KINDS_BY_MESSAGE: Final = (
    (re.compile("content filtering policy", re.IGNORECASE), "content_filter"),
    (re.compile("credit balance", re.IGNORECASE), "billing"),
)
_KEY: Final = re.compile(r"\bsk-[A-Za-z0-9_-]{8}[^\s\"'`<>()\[\]{},;]*")
"""A key to its end: the redactor would not find the rest of a key that is replaced in part."""


def classify_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """Turn an error response into a `ModelError`."""
    answer = as_dict(parse_error_body(body))
    error = as_dict(answer.get("error"))
    message = as_text(error.get("message")) or as_text(answer.get("error"))
    message = message or " ".join(body[:400].decode("utf-8", "replace").split())
    kind = _KINDS.get(as_text(error.get("type"))) or kind_of_status(status)
    made = _make(kind, message or f"HTTP {status}", status)
    if status in _FINAL_STATUSES:
        made.retryable = False
    made.request_id = as_text(answer.get("request_id")) or None
    return add_response_headers(made, headers, delay_from_message(message))


def classify_stream_error(event: dict[str, Any]) -> ModelError:
    """Turn an error inside a response into a `ModelError`."""
    error = as_dict(event.get("error"))
    message = as_text(error.get("message")) or as_text(event.get("error")) or "the provider reports an error"
    code = error.get("code")
    kind = kind_of_status(code) if type(code) is int and 400 <= code < 600 else "server_error"
    made = _make(_KINDS.get(as_text(error.get("type")), kind), message, None)
    made.request_id = as_text(event.get("request_id")) or None
    made.retry_after = delay_from_message(message)
    return made


def _make(kind: str, message: str, status: int | None) -> ModelError:
    message = clip_text(_KEY.sub("sk-...", message))
    if kind in {"bad_request", "server_error"}:
        known = next((better for pattern, better in _KINDS_BY_MESSAGE if pattern.search(message)), kind)
        kind = "context_overflow" if reports_overflow(message) else known
    return make_error(kind, message, status=status, in_stream=status is None)
