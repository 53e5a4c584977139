"""Errors of the Responses dialect. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.models.dialect import (
    as_dict,
    as_text,
    clip_text,
    kind_of_status,
    make_error,
    parse_error_body,
    reports_overflow,
    to_json,
)
from holdfast.models.retry import add_response_headers, delay_from_message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.errors import ModelError


_CODES: Final = {
    "context_overflow": "context_length_exceeded exceed_context_size_error string_above_max_length",
    "billing": "insufficient_quota billing_hard_limit_reached billing_not_active usage_limit_reached "
    "usage_not_included",
    "rate_limited": "rate_limit_exceeded rate_limit_error too_many_requests tokens_exceeded",
    "authentication": "invalid_api_key authentication_error unauthorized",
    "permission": "permission_error permission_denied",
    "not_found": "model_not_found deploymentnotfound not_found_error",
    "content_filter": "content_filter content_policy_violation moderation_blocked invalid_prompt "
    "image_content_policy_violation cyber_policy bio_policy",
    "overloaded": "overloaded_error server_is_overloaded engine_overloaded slow_down service_unavailable",
    "server_error": "server_error internal_error internal_server_error",
    "timeout": "timeout request_timeout vector_store_timeout",
    "bad_request": "invalid_request_error",
}
_KINDS: Final = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
_KEY: Final = re.compile(r"\b(?:sk|xai|gsk|rk|pk|key)-[\w*.\-]{4}[^\s\"'`<>()\[\]{},;]*|\bBearer\s+\S+", re.IGNORECASE)
"""A key to its end: the redactor would not find the rest of a key that is replaced in part."""


def classify_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """Turn an error response into a `ModelError`."""
    codes, message = _codes_and_message(parse_error_body(body))
    error = _make(codes, message or f"HTTP {status}", status, in_stream=False)
    return add_response_headers(error, headers, delay_from_message(error.message))


def classify_stream_error(found: Any) -> ModelError:  # noqa: ANN401  any JSON value
    """Turn an error inside a response into a `ModelError`."""
    codes, message = _codes_and_message(found)
    status = next((int(code) for code in codes if code.isdecimal() and len(code) == 3), None)
    message = message or (f"HTTP {status}" if status else "no reason was given")
    error = _make(codes, message, status, in_stream=True)
    error.retry_after = delay_from_message(error.message)
    return error


def _codes_and_message(found: Any) -> tuple[list[str], str]:  # noqa: ANN401  any JSON value
    """Find codes and message in any of the shapes that servers use."""
    if not isinstance(found, dict):
        return [], as_text(found)
    outer = cast("dict[str, Any]", found)
    inner: Any = outer.get("error")
    error = as_dict(inner) or outer
    codes = [str(error.get(name)).lower() for name in ("code", "type", "status") if error.get(name) is not None]
    texts = (error.get("message"), inner, outer.get("message"), outer.get("detail"))
    message = next((text for text in texts if isinstance(text, str) and text), "")
    return codes, message or (to_json(outer) if outer else "")


def _make(codes: list[str], message: str, status: int | None, *, in_stream: bool) -> ModelError:
    message = clip_text(_KEY.sub("[key]", message))
    kind = next((_KINDS[code] for code in codes if code in _KINDS), None)
    if kind in {None, "bad_request"}:
        if status in {None, 400, 413, 422} and reports_overflow(message):
            kind = "context_overflow"
        elif status is not None:
            kind = kind_of_status(status)
    return make_error(kind or "server_error", message, status=status, in_stream=in_stream)
