"""Errors of the Google dialect. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from holdfast.models.dialect import (
    as_dict,
    as_list,
    as_text,
    clip_text,
    kind_of_status,
    make_error,
    parse_error_body,
    reports_overflow,
)
from holdfast.models.retry import add_response_headers, delay_from_details, delay_from_message, longest_delay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.errors import ModelError


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
_KINDS_BY_REASON: Final = {
    "API_KEY_INVALID": "authentication",
    "API_KEY_EXPIRED": "authentication",
    "ACCESS_TOKEN_EXPIRED": "authentication",
    "BILLING_DISABLED": "billing",
}
_BILLING: Final = re.compile(r"enable billing|billing account|credits are depleted|spending cap")
_KEY: Final = re.compile(r"AIza[\w-]{10,}|ya29\.[\w.-]{10,}|\bAQ\.[\w-]{20,}")
_MAX_MESSAGE: Final = 990


def classify_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """Turn an error response into a `ModelError`. The error object may be an element of an array."""
    answer = parse_error_body(body)
    errors = [as_dict(as_dict(item).get("error")) for item in as_list(answer) or [answer]]
    error = next((error for error in errors if error), errors[0])
    return _classify(status, headers, error, body, in_stream=False)


def classify_stream_error(error: dict[str, Any], frame: bytes) -> ModelError:
    """Turn an error inside a response into a `ModelError`."""
    code = error.get("code")
    made = _classify(code if isinstance(code, int) else 200, {}, error, frame, in_stream=True)
    made.status = 200
    return made


def _classify(
    status: int, headers: Mapping[str, str], error: dict[str, Any], body: bytes, *, in_stream: bool
) -> ModelError:
    details = [as_dict(item) for item in as_list(error.get("details"))]
    message = as_text(error.get("message")) or body[:_MAX_MESSAGE].decode("utf-8", "replace").strip()
    message = _KEY.sub("[key]", message) or f"HTTP {status}"
    lower = message.lower()
    reasons = [_KINDS_BY_REASON.get(as_text(detail.get("reason"))) for detail in details]
    kind = next(filter(None, reasons), None)
    if kind is None:
        kind = _KINDS.get(as_text(error.get("status"))) or kind_of_status(status)
        if kind == "bad_request" and reports_overflow(lower):
            kind = "context_overflow"
        elif kind == "bad_request" and "api key not valid" in lower:
            kind = "authentication"
        elif kind in {"bad_request", "rate_limited", "permission"} and _BILLING.search(lower):
            kind = "billing"
    made = make_error(kind, clip_text(message, _MAX_MESSAGE), status=status, in_stream=in_stream)
    # A delay in the details leaves out fractions that the message has.
    add_response_headers(made, headers, longest_delay(delay_from_details(details), delay_from_message(message)))
    if made.request_id is None:
        ids = [as_text(detail.get("requestId")) for detail in details]
        made.request_id = clip_text(next(filter(None, ids), ""), 200) or None
    return made
