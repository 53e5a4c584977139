"""What goes wrong, in the words of those who speak this dialect. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.errors import ContextOverflow, ModelError, StreamFailed
from holdfast.models.dialect import bounded, mapping, read, request_id_in, too_long, written
from holdfast.models.retry import asked_by_limits, asked_in_headers, asked_in_words, longest, should_retry

if TYPE_CHECKING:
    from collections.abc import Mapping


_CODES: Final[Mapping[str, str]] = {
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
_STATUSES: Final[Mapping[int, str]] = {
    401: "authentication",
    402: "billing",
    403: "permission",
    404: "not_found",
    408: "timeout",
    409: "server_error",
    413: "context_overflow",
    425: "server_error",
    429: "rate_limited",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_RETRYABLE: Final = frozenset(("rate_limited", "overloaded", "server_error", "timeout"))
# To its end: of a key that is replaced in part, nobody would find the rest.
_SECRET: Final = re.compile(
    r"\b(?:sk|xai|gsk|rk|pk|key)-[\w*.\-]{4}[^\s\"'`<>()\[\]{},;]*|\bBearer\s+\S+", re.IGNORECASE
)


def http_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """What an answer with an error status means."""
    try:
        found = read(body)
    except ModelError:
        found = body[:4_000].decode("utf-8", "replace")
    return failure(found, status, {name.lower(): value for name, value in headers.items()})


def failure(found: Any, status: int | None, headers: Mapping[str, str]) -> ModelError:  # noqa: ANN401  what a provider said
    """The error that a provider told, by its words first and by the status of the response otherwise."""
    codes, said = _reasons(found)
    made = StreamFailed if status is None else ModelError
    if status is None:
        status = next((int(code) for code in codes if code.isdecimal() and len(code) == 3), None)
    message = bounded(_SECRET.sub("[key]", said)) if said else f"HTTP {status}" if status else "no reason was given"
    kind = _kind(codes, message, status)
    error = (
        ContextOverflow(message)
        if kind == "context_overflow"
        else made(message, kind=kind, retryable=kind in _RETRYABLE)
    )
    error.status = status
    error.request_id = request_id_in(headers)
    error.retry_after = longest(asked_in_headers(headers), asked_in_words(message))
    if error.retry_after is None and kind == "rate_limited":
        error.retry_after = asked_by_limits(headers, headers.get("date", ""))
    told = should_retry(headers)
    if told is not None:
        error.retryable = told
    return error


def _reasons(found: Any) -> tuple[list[str], str]:  # noqa: ANN401  what a provider said
    """The codes and the words in an error, in any of the shapes that are about."""
    if not isinstance(found, dict):
        return [], found if isinstance(found, str) else ""
    outer = cast("dict[str, Any]", found)
    inner: Any = outer.get("error")
    error = mapping(inner) or outer
    codes = [str(error.get(name)).lower() for name in ("code", "type", "status") if error.get(name) is not None]
    words = (error.get("message"), inner, outer.get("message"), outer.get("detail"))
    said = next((word for word in words if isinstance(word, str) and word), "")
    return codes, said or (written(outer) if outer else "")


def _kind(codes: list[str], message: str, status: int | None) -> str:
    named = next((_CODES[code] for code in codes if code in _CODES), None)
    if named is not None and named != "bad_request":
        return named
    if status in {None, 400, 413, 422} and too_long(message):
        return "context_overflow"
    if status is None:
        return named or "server_error"
    kind = _STATUSES.get(status)
    return kind or ("server_error" if status >= 500 else "bad_request")
