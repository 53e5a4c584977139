"""What went wrong, by its neutral name. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import ContextOverflow, ModelError, StreamFailed
from holdfast.models.dialect import bounded, listed, mapping, read, too_long, worded
from holdfast.models.retry import PASSING_KINDS, asked_in_headers, asked_in_words, delay_in, kind_of_status, longest

if TYPE_CHECKING:
    from collections.abc import Mapping


_KINDS: Final = {
    "UNAUTHENTICATED": "authentication",
    "PERMISSION_DENIED": "permission",
    "NOT_FOUND": "not_found",
    "INVALID_ARGUMENT": "bad_request",
    "FAILED_PRECONDITION": "bad_request",
    "OUT_OF_RANGE": "bad_request",
    "UNIMPLEMENTED": "bad_request",
    "RESOURCE_EXHAUSTED": "rate_limited",
    "UNAVAILABLE": "overloaded",
    "DEADLINE_EXCEEDED": "timeout",
    "INTERNAL": "server_error",
    "UNKNOWN": "server_error",
    "DATA_LOSS": "server_error",
    "ABORTED": "server_error",
    "CANCELLED": "server_error",
}
_REASONS: Final = {
    "API_KEY_INVALID": "authentication",
    "API_KEY_EXPIRED": "authentication",
    "ACCESS_TOKEN_EXPIRED": "authentication",
    "BILLING_DISABLED": "billing",
}
_UNPAID: Final = re.compile(r"enable billing|billing account|credits are depleted|spending cap")
_SECRET: Final = re.compile(r"AIza[\w-]{10,}|ya29\.[\w.-]{10,}|\bAQ\.[\w-]{20,}")
_MOST_WORDS: Final = 990


def refused(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """What an answer with an error status means."""
    return failure(status, headers, _error_in(body), body)


def _error_in(body: bytes) -> dict[str, Any]:
    """The error object of a body: alone, or as an element of an array."""
    try:
        value = read(body)
    except ModelError:
        return {}
    for item in listed(value) or [value]:
        if error := mapping(mapping(item).get("error")):
            return error
    return {}


def failure(status: int, headers: Mapping[str, str], error: dict[str, Any], body: bytes) -> ModelError:
    """What an error object means, wherever it stood: in `body`, or in a frame that came with a good status."""
    code = error.get("code")
    code = status if status >= 300 or not isinstance(code, int) else code
    named = {name.lower(): value for name, value in headers.items()}
    details = [mapping(item) for item in listed(error.get("details"))]
    words = worded(error.get("message")) or body[:_MOST_WORDS].decode("utf-8", "replace").strip()
    words = _SECRET.sub("[key]", words) or f"HTTP {code}"
    kind = _kind(code, worded(error.get("status")), words, details)
    message = bounded(words, _MOST_WORDS)
    if kind == "context_overflow":
        failed: ModelError = ContextOverflow(message)
    else:
        made = StreamFailed if status < 300 else ModelError
        failed = made(message, kind=kind, retryable=kind in PASSING_KINDS)
    failed.status = status
    failed.request_id = _request_id(named, details)
    failed.retry_after = _retry_after(named, details, words)
    return failed


def _kind(code: int, status: str, words: str, details: list[dict[str, Any]]) -> str:
    reasons = [_REASONS[reason] for detail in details if (reason := worded(detail.get("reason"))) in _REASONS]
    if reasons:
        return reasons[0]
    kind = _KINDS.get(status) or kind_of_status(code)
    lowered = words.lower()
    if kind == "bad_request" and too_long(lowered):
        return "context_overflow"
    if kind == "bad_request" and "api key not valid" in lowered:
        return "authentication"
    if kind in {"bad_request", "rate_limited", "permission"} and _UNPAID.search(lowered):
        return "billing"
    return kind


def _request_id(headers: dict[str, str], details: list[dict[str, Any]]) -> str | None:
    told = [worded(detail.get("requestId")) for detail in details]
    found = headers.get("x-request-id") or headers.get("x-goog-request-id") or next(filter(None, told), "")
    return bounded(found, 200) or None


def _retry_after(headers: dict[str, str], details: list[dict[str, Any]], words: str) -> float | None:
    """How long to wait, in seconds: the longest of what header, details and words say. Details leave out fractions."""
    return longest(asked_in_headers(headers), delay_in(details), asked_in_words(words))
