"""Errors of providers: an error response, or an error inside a response, becomes a `ModelError`. Pure.

All dialects share one reader, because gateways and compatible servers mix their shapes, codes and words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from holdfast.errors import ContextOverflow, ModelError, StreamFailed
from holdfast.models import retry
from holdfast.models.json_values import as_dict, as_list, as_text, clip_text, is_dict, is_list, parse_json, to_json

_MAX_MESSAGE: Final = 990
_KIND_BY_STATUS: Final = {
    401: "authentication",
    402: "billing",
    403: "permission",
    404: "not_found",
    429: "rate_limited",
    **dict.fromkeys((408, 504), "timeout"),
    **dict.fromkeys((409, 425, 499), "server_error"),
    **dict.fromkeys((498, 503, 529), "overloaded"),
}
"""Others from 300 to 499 are a ``bad_request``, all others a ``server_error``."""
_DECISIVE_CODES: Final = (
    # Groq checks the model's output, and answers 400 if it is not a call or not JSON. The request is fine, and
    # another sample mostly succeeds: so it counts as a server error, which is retried.
    ("tool_use_failed|output_parse_failed|json_validate_failed", "server_error"),
    ("content_filter|content_policy|responsibleaipolicy|moderation|flagged_input", "content_filter"),
    ("invalid_prompt|cyber_policy|bio_policy", "content_filter"),
    ("insufficient_quota|billing|insufficient.(?:balance|credit|funds)|payment_required", "billing"),
    ("usage_limit_reached|usage_not_included", "billing"),
    ("invalid_api_key|api_key_(?:invalid|expired)|access_token_expired", "authentication"),
    ("authentication_error|unauthori[sz]ed|unauthenticated", "authentication"),
    ("context_length_exceeded|exceed_context_size|request_too_large", "context_overflow"),
)
"""Codes that say more than status and message."""
_CODES: Final = (
    (r"rate.?limit|too.many.requests|resource_exhausted|tokens_exceeded|throttl", "rate_limited"),
    (r"overloaded|unavailable|capacity|slow_down", "overloaded"),
    (r"timeout|timed.out|deadline_exceeded", "timeout"),
    (r"not_?found", "not_found"),
    (r"permission", "permission"),
)
_BILLING: Final = re.compile(
    r"insufficient (?:account )?(?:balance|credit|funds)|(?:credit|balance) (?:balance )?is too low|enable billing"
    r"|billing hard limit|billing (?:account )?(?:is )?not active|used all available credits"
    r"|(?:reached|exceeded) (?:its|your|the) (?:monthly )?spending (?:limit|cap)|credit balance"
)
"""The word "billing" alone proves nothing: rate limit messages also say where to pay for more."""
_OUT_OF_MONEY: Final = re.compile(r"credits are depleted|spending cap|billing account")
"""Waiting does not help, even if the provider names a pause."""
_QUOTA: Final = "exceeded your current quota"
"""OpenAI says it of an account without money, Google also of a rate limit."""
_BAD_REQUEST: Final = re.compile(
    r"invalid_request|bad_request|validation|invalid_argument|failed_precondition|out_of_range|unimplemented"
)
_SERVER_ERROR: Final = re.compile(r"server_error|api_error|internal")
_RATE_LIMITED: Final = re.compile(r"rate.?limit|too.many.requests|throttl")
_BAD_KEY: Final = re.compile(r"(?:incorrect|invalid) api key|api key not valid|invalid_api_key|authentication_error")
_OVERFLOW: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|context[ _](?:length|window|size|limit)"
    r"|maximum (?:context|prompt|model) length|exceeds? (?:the )?max(?:imum)? length|range of input length should be"
    r"|(?:prompt|input|request|conversation) is too long|prompt too long"
    r"|too many (?:input )?tokens|exceeded model token limit"
    r"|input (?:length|tokens?).{0,24}exceed|token count.{0,80}exceeds|exceeds? the (?:maximum|model).{0,40}tokens"
    r"|tokens.{0,24}must be <=|must have less than \d+ tokens"
    r"|reduce the length|reduce your message size|request too large for model",
)
_LONG_MESSAGE: Final = re.compile(r"\bmessages\[|\binput\b")
"""OpenAI's code `string_above_max_length` is about the conversation only where the message names it."""
_PLAIN_STATUSES: Final = frozenset((401, 402, 403, 404))
"""They say more than a code or a word about a server that is busy."""
_KEY: Final = re.compile(
    r"(?i)(?<=bearer )\S+|\bbearer\s\s+\S+"
    r"|(?<=key provided: )\S+?(?=[.,]?(?:\s|\Z))"
    r"|\b(?:(?:sk|gsk|xai|pplx|nvapi|csk|fw|hf|tgp|AIza)[-_][A-Za-z0-9_*-]{8}|(?:sk|xai|gsk|rk|pk|key)-[\w*.-]{4}"
    r"|ya29\.[\w.-]{10}|AQ\.[\w-]{20})[^\s\"'`<>()\[\]{},;]*"
    r"|AIza[A-Za-z0-9_-]{10}[A-Za-z0-9_-]*",
)
"""A key to its end: the redactor would not find the rest of a key that is replaced in part."""


class _Report(NamedTuple):
    """An error report of a provider, from any place in a response."""

    message: str
    codes: str = ""
    """Code, type and the like, in lower case."""
    status: int | None = None
    retry_after: float | None = None
    request_id: str | None = None
    limits: Mapping[str, str] = {}
    """Headers of the provider behind a gateway, if the gateway repeats them."""


def classify_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """Turn an error response into a `ModelError`."""
    try:
        said = parse_json(body)
    except ModelError:
        said = body[: 4 * _MAX_MESSAGE].decode("utf-8", "replace").strip()
    report = _read_report(said)
    error = _make_error(report, status, report.message or f"HTTP {status}")
    error.status = status
    # A gateway may repeat the rate limits of the provider behind it.
    limits = {name: value for name, value in report.limits.items() if name.startswith("x-ratelimit-")}
    return retry.add_response_headers(error, {**headers, **limits}, report.retry_after)


def classify_stream_error(said: Any) -> ModelError:  # any JSON value
    """Turn an error inside a response into a `ModelError`."""
    report = _read_report(said)
    message = report.message or "the provider ended the reply with an error"
    error = _make_error(report, report.status, message, StreamFailed)
    error.retry_after = report.retry_after
    return error


def _make_error(
    report: _Report, status: int | None, message: str, make: Callable[..., ModelError] = ModelError
) -> ModelError:
    kind = _kind(status, report)
    message = clip_text(_KEY.sub("[key]", message), _MAX_MESSAGE)
    retryable = kind in retry.TRANSIENT_KINDS
    error = ContextOverflow(message) if kind == "context_overflow" else make(message, kind=kind, retryable=retryable)
    error.request_id = report.request_id
    return error


def _kind(status: int | None, report: _Report) -> str:
    codes, message = report.codes, report.message.lower()
    everything = f"{codes} {message}"
    kind = _first(_DECISIVE_CODES, codes)
    if kind is not None:
        return kind
    if "content filtering policy" in message:
        return "content_filter"
    if _BAD_KEY.search(everything):
        return "authentication"
    if _OUT_OF_MONEY.search(message) and (status is None or status < 500):
        return "billing"
    # The message alone says that the account is out of money. If waiting helped, it would not be.
    waiting_helps = _RATE_LIMITED.search(codes) or report.retry_after is not None or report.limits
    no_quota = _QUOTA in message and "resource_exhausted" not in codes
    if not waiting_helps and (no_quota or _BILLING.search(message)):
        return "billing"
    coded = None if status in _PLAIN_STATUSES else _first(_CODES, codes)
    if coded is not None and status is None:
        return coded  # rate limits speak of too many tokens, too
    if status != 429 and (status is None or status <= 500) and _OVERFLOW.search(everything):
        return "context_overflow"
    if "string_above_max_length" in codes and _LONG_MESSAGE.search(message):
        return "context_overflow"
    if coded is not None:
        return coded
    if status is not None:
        return _KIND_BY_STATUS.get(status) or ("bad_request" if 300 <= status < 500 else "server_error")
    if _SERVER_ERROR.search(codes):
        return "server_error"
    return _first(_CODES, everything) or ("bad_request" if _BAD_REQUEST.search(everything) else "server_error")


def _first(patterns: tuple[tuple[str, str], ...], text: str) -> str | None:
    return next((kind for pattern, kind in patterns if re.search(pattern, text)), None)


def _read_report(said: Any) -> _Report:  # any JSON value
    if is_list(said):
        said = next((item for item in said if as_dict(item).get("error")), said[0] if said else "")
    if not is_dict(said):
        return _Report(as_text(said), retry_after=retry.delay_from_message(as_text(said)))
    top, inner = said, said.get("error")
    error = inner if is_dict(inner) else top
    message = as_text(inner)
    if not message:
        told = next(filter(None, map(error.get, ("message", "detail", "title", "errors"))), top)
        message = told if isinstance(told, str) else to_json(told) if told else ""
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
    asked = retry.longest_delay(retry.delay_from_details(details), retry.delay_from_message(message))
    ids = [as_text(top.get("request_id")), *(as_text(detail.get("requestId")) for detail in details)]
    limits = {name.lower(): as_text(value) for name, value in as_dict(metadata.get("headers")).items()}
    return _Report(message, words, status, asked, clip_text(next(filter(None, ids), ""), 200) or None, limits)


def _status(code: Any) -> int | None:  # any JSON value
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdecimal():
        code = int(code)
    return code if type(code) is int and 400 <= code < 600 else None
