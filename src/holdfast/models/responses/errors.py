"""Errors of the Responses dialect. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.models.dialect import (
    as_dict,
    clip_text,
    kind_of_status,
    lower_names,
    make_error,
    parse_error_body,
    reports_overflow,
    to_json,
)
from holdfast.models.retry import add_response_headers, delay_from_message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.errors import ModelError


_KINDS: Final[Mapping[str, str]] = {
    "context_length_exceeded": "context_overflow",
    "exceed_context_size_error": "context_overflow",
    "string_above_max_length": "context_overflow",
    "insufficient_quota": "billing",
    "billing_hard_limit_reached": "billing",
    "billing_not_active": "billing",
    "usage_limit_reached": "billing",
    "usage_not_included": "billing",
    "rate_limit_exceeded": "rate_limited",
    "rate_limit_error": "rate_limited",
    "too_many_requests": "rate_limited",
    "tokens_exceeded": "rate_limited",
    "invalid_api_key": "authentication",
    "authentication_error": "authentication",
    "unauthorized": "authentication",
    "permission_error": "permission",
    "permission_denied": "permission",
    "model_not_found": "not_found",
    "deploymentnotfound": "not_found",
    "not_found_error": "not_found",
    "content_filter": "content_filter",
    "content_policy_violation": "content_filter",
    "moderation_blocked": "content_filter",
    "invalid_prompt": "content_filter",
    "image_content_policy_violation": "content_filter",
    "cyber_policy": "content_filter",
    "bio_policy": "content_filter",
    "overloaded_error": "overloaded",
    "server_is_overloaded": "overloaded",
    "engine_overloaded": "overloaded",
    "slow_down": "overloaded",
    "service_unavailable": "overloaded",
    "server_error": "server_error",
    "internal_error": "server_error",
    "internal_server_error": "server_error",
    "timeout": "timeout",
    "request_timeout": "timeout",
    "vector_store_timeout": "timeout",
    "invalid_request_error": "bad_request",
}
_KEY: Final = re.compile(r"\b(?:sk|xai|gsk|rk|pk|key)-[\w*.\-]{4}[^\s\"'`<>()\[\]{},;]*|\bBearer\s+\S+", re.IGNORECASE)
"""A key to its end: the redactor would not find the rest of a key that is replaced in part."""


def classify_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """Turn an error response into a `ModelError`."""
    codes, message = _codes_and_message(parse_error_body(body))
    message = clip_text(_KEY.sub("[key]", message)) if message else f"HTTP {status}"
    made = make_error(_kind(codes, message, status), message)
    made.status = status
    return add_response_headers(made, lower_names(headers), delay_from_message(message))


def classify_stream_error(found: Any) -> ModelError:  # noqa: ANN401  any JSON value
    """Turn an error inside a response into a `ModelError`."""
    codes, message = _codes_and_message(found)
    status = next((int(code) for code in codes if code.isdecimal() and len(code) == 3), None)
    fallback = f"HTTP {status}" if status else "no reason was given"
    message = clip_text(_KEY.sub("[key]", message)) if message else fallback
    made = make_error(_kind(codes, message, status), message, in_stream=True)
    made.status = status
    made.retry_after = delay_from_message(message)
    return made


def _codes_and_message(found: Any) -> tuple[list[str], str]:  # noqa: ANN401  any JSON value
    """Find codes and message in any of the shapes that servers use."""
    if not isinstance(found, dict):
        return [], found if isinstance(found, str) else ""
    outer = cast("dict[str, Any]", found)
    inner: Any = outer.get("error")
    error = as_dict(inner) or outer
    codes = [str(error.get(name)).lower() for name in ("code", "type", "status") if error.get(name) is not None]
    texts = (error.get("message"), inner, outer.get("message"), outer.get("detail"))
    message = next((text for text in texts if isinstance(text, str) and text), "")
    return codes, message or (to_json(outer) if outer else "")


def _kind(codes: list[str], message: str, status: int | None) -> str:
    named = next((_KINDS[code] for code in codes if code in _KINDS), None)
    if named is not None and named != "bad_request":
        return named
    if status in {None, 400, 413, 422} and reports_overflow(message):
        return "context_overflow"
    if status is None:
        return named or "server_error"
    return kind_of_status(status)
