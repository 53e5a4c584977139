"""Errors of the chat dialect, in the words of all providers that speak it. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from holdfast.models.dialect import (
    as_dict,
    as_list,
    as_text,
    clip_text,
    kind_of_status,
    make_error,
    parse_error_body,
    reports_overflow,
    to_json,
)
from holdfast.models.retry import add_response_headers, delay_from_details, delay_from_message, longest_delay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.errors import ModelError


_MAX_MESSAGE: Final = 990


class _Complaint(NamedTuple):
    """The error that a provider reports, wherever it puts it."""

    message: str
    codes: str
    """Code, type and the like, in lower case."""
    status: int | None
    retry_after: float | None
    limits: Mapping[str, str] = {}
    """Headers of the provider behind a gateway, if the gateway repeats them."""


_FILTERED: Final = re.compile(r"content_filter|content_policy|responsibleaipolicy|moderation|flagged_input")
_BILLING_CODES: Final = re.compile(
    r"insufficient_quota|billing|insufficient.(?:balance|credit|funds)|payment_required|usage_limit_reached"
)
_BILLING_MESSAGES: Final = re.compile(
    r"insufficient (?:account )?(?:balance|credit|funds)|(?:credit|balance) (?:balance )?is too low|enable billing"
    r"|billing hard limit|billing (?:account )?(?:is )?not active|credits are depleted|used all available credits"
    r"|(?:reached|exceeded) (?:its|your|the) (?:monthly )?spending (?:limit|cap)"
)
"""The word "billing" alone proves nothing: rate limit messages also say where to pay for more."""
_QUOTA: Final = "exceeded your current quota"
"""OpenAI says it of an account without money, Google also of a rate limit."""
_RATE_LIMITED: Final = re.compile(r"rate.?limit|too.many.requests|throttl")
_BAD_KEY: Final = re.compile(
    r"invalid_api_key|api_key_invalid|(?:incorrect|invalid) api key|api key not valid|authentication_error"
)
_RESAMPLED: Final = re.compile(r"tool_use_failed|output_parse_failed|json_validate_failed")
"""Groq checks the model's output, and answers 400 if it is no call or no JSON. The request is fine: another sample
mostly comes out well. So it counts as a server error, which is retried."""
_KEY: Final = re.compile(
    r"(?i)(?<=bearer )\S+"
    r"|(?<=key provided: )\S+?(?=[.,]?(?:\s|\Z))"
    r"|\b(?:(?:sk|gsk|xai|pplx|nvapi|csk|fw|hf|tgp|AIza)[-_][A-Za-z0-9_*-]{8}|AIza[A-Za-z0-9_-]{16})"
    r"[^\s\"'`<>()\[\]{},;]*",
)
"""A key to its end: the redactor would not find the rest of a key that is replaced in part."""
_KIND_BY_STATUS: Final = {413: "bad_request", 498: "overloaded", 499: "bad_request"}
"""Differences from `kind_of_status`."""
_KINDS_BY_MESSAGE: Final = (
    (re.compile(r"rate.?limit|too.many.requests"), "rate_limited"),
    (re.compile(r"overloaded|unavailable|capacity"), "overloaded"),
    (re.compile(r"timeout|timed.out"), "timeout"),
    (re.compile(r"model_not_found|not_found"), "not_found"),
    (re.compile(r"permission"), "permission"),
    (re.compile(r"invalid_request|bad_request|validation"), "bad_request"),
)
"""For errors without a status."""


def classify_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """Turn an error response into a `ModelError`."""
    complaint = _complaint(parse_error_body(body, 4 * _MAX_MESSAGE))
    message = _clean(f"HTTP {status}: {complaint.message or 'no reason was given'}")
    error = make_error(_kind(status, complaint), message, status=status)
    # A gateway may repeat the rate limits of the provider behind it.
    limits = {name: value for name, value in complaint.limits.items() if name.startswith("x-ratelimit-")}
    return add_response_headers(error, {**headers, **limits}, complaint.retry_after)


def classify_stream_error(said: Any) -> ModelError:  # noqa: ANN401  any JSON value
    """Turn an error inside a response into a `ModelError`."""
    complaint = _complaint(said)
    message = _clean(complaint.message or "the provider ended the reply with an error")
    error = make_error(_kind(complaint.status, complaint), message, in_stream=True)
    error.retry_after = complaint.retry_after
    return error


def is_error_frame(frame: dict[str, Any]) -> bool:
    """True if a frame without choices reports an error outside of the usual ``error`` field."""
    kinds = (as_text(frame.get("object")).lower(), as_text(frame.get("type")).lower())
    if "error" in kinds or frame.get("detail"):
        return True
    return bool(frame.get("message")) and any(frame.get(name) for name in ("code", "status", "status_code", "type"))


def _clean(message: str) -> str:
    return clip_text(_KEY.sub("***", message), _MAX_MESSAGE)


def _kind(status: int | None, complaint: _Complaint) -> str:
    codes, message = complaint.codes, complaint.message.lower()
    everything = f"{codes} {message}"
    for pattern, kind, where in (
        (_RESAMPLED, "server_error", codes),
        (_FILTERED, "content_filter", codes),
        (_BILLING_CODES, "billing", codes),
        (_BAD_KEY, "authentication", everything),
    ):
        if pattern.search(where):
            return kind
    if not _RATE_LIMITED.search(codes) and complaint.retry_after is None and not complaint.limits:
        # The message alone says that the account is out of money. If waiting helped, it would not be.
        if _QUOTA in message and "resource_exhausted" not in codes:
            return "billing"
        if _BILLING_MESSAGES.search(message):
            return "billing"
    if status != 429 and (status is None or status < 500 or "exceed_context" in codes) and reports_overflow(everything):
        return "context_overflow"
    if status is not None:
        return _KIND_BY_STATUS.get(status) or kind_of_status(status)
    return next((kind for pattern, kind in _KINDS_BY_MESSAGE if pattern.search(everything)), "server_error")


def _complaint(said: Any) -> _Complaint:  # noqa: ANN401  any JSON value
    if isinstance(said, list) and said:
        said = cast("list[Any]", said)[0]
    if not isinstance(said, dict):
        return _Complaint(as_text(said), "", None, delay_from_message(as_text(said)))
    top = cast("dict[str, Any]", said)
    inner = top.get("error")
    error = cast("dict[str, Any]", inner) if isinstance(inner, dict) else top
    message = as_text(inner)
    if not message:
        told = next(filter(None, map(error.get, ("message", "detail", "title", "errors"))), "")
        message = told if isinstance(told, str) else to_json(told)
    metadata = as_dict(error.get("metadata"))
    raw = metadata.get("raw")
    if raw:
        message = f"{message}: {raw if isinstance(raw, str) else to_json(raw)}"  # of the provider behind a gateway
    generated = as_text(error.get("failed_generation"))
    if generated:
        message = f"{message} The model had made: {generated}"
    details = [as_dict(detail) for detail in as_list(error.get("details"))]
    codes = [error.get("code"), error.get("type"), error.get("status"), as_dict(error.get("innererror")).get("code")]
    reasons = [detail.get("reason") for detail in details]
    words = " ".join([code.lower() for code in (*codes, *reasons) if isinstance(code, str)])
    if metadata.get("flagged_input") is not None:
        words += " flagged_input"
    codes += [error.get("status_code"), *(top.get(name) for name in ("status_code", "status", "code"))]
    status = next((found for code in codes if (found := _status(code)) is not None), None)
    asked = longest_delay(delay_from_details(details), delay_from_message(message))
    limits = {name.lower(): as_text(value) for name, value in as_dict(metadata.get("headers")).items()}
    return _Complaint(message, words, status, asked, limits)


def _status(code: Any) -> int | None:  # noqa: ANN401  any JSON value
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdecimal():
        code = int(code)
    return code if type(code) is int and 400 <= code < 600 else None
