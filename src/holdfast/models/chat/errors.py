"""What goes wrong, in the words of all who speak this dialect, and whether the same request may succeed later. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from holdfast.errors import ContextOverflow, ModelError, StreamFailed
from holdfast.models.dialect import bounded, listed, mapping, read, request_id_in, too_long, worded, written
from holdfast.models.retry import asked_by_limits, asked_in_headers, asked_in_words, delay_in, longest, should_retry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_MAX_MESSAGE: Final = 990


class _Complaint(NamedTuple):
    """What a provider says about an error, wherever it says it."""

    message: str
    words: str
    """Code, type and the like, in lower case."""
    status: int | None
    retry_after: float | None
    limits: Mapping[str, str] = {}
    """The headers of whoever stands behind the provider, where it repeats them."""


_FILTERED: Final = re.compile(r"content_filter|content_policy|responsibleaipolicy|moderation|flagged_input")
_UNPAID_CODES: Final = re.compile(
    r"insufficient_quota|billing|insufficient.(?:balance|credit|funds)|payment_required|usage_limit_reached"
)
_UNPAID: Final = re.compile(
    r"insufficient (?:account )?(?:balance|credit|funds)|(?:credit|balance) (?:balance )?is too low|enable billing"
    r"|billing hard limit|billing (?:account )?(?:is )?not active|credits are depleted|used all available credits"
    r"|(?:reached|exceeded) (?:its|your|the) (?:monthly )?spending (?:limit|cap)"
)
"""The word alone says nothing: those who ask to wait a second tell where to pay for more."""
_QUOTA: Final = "exceeded your current quota"
"""OpenAI says it of an account without money, and Google also of a minute that is used up."""
_RATED: Final = re.compile(r"rate.?limit|too.many.requests|throttl")
_BAD_KEY: Final = re.compile(
    r"invalid_api_key|api_key_invalid|(?:incorrect|invalid) api key|api key not valid|authentication_error"
)
_RESAMPLED: Final = re.compile(r"tool_use_failed|output_parse_failed|json_validate_failed")
"""Groq checks what the model made, and answers 400 where it is no call or no JSON. Nothing is wrong with the request:
the model is asked for another sample, which mostly comes out well, as often as any other failure is tried again. That
is why it counts as a fault of the server, whose status says otherwise."""
_SECRET: Final = re.compile(
    r"(?i)(?<=bearer )\S+"
    r"|(?<=key provided: )\S+?(?=[.,]?(?:\s|\Z))"
    r"|\b(?:(?:sk|gsk|xai|pplx|nvapi|csk|fw|hf|tgp|AIza)[-_][A-Za-z0-9_*-]{8}|AIza[A-Za-z0-9_-]{16})"
    r"[^\s\"'`<>()\[\]{},;]*",
)
"""What looks like a key, to its end: of one that is replaced in part, nobody would find the rest."""
_STATUSES: Final[Mapping[int, tuple[str, bool]]] = {
    400: ("bad_request", False),
    401: ("authentication", False),
    402: ("billing", False),
    403: ("permission", False),
    404: ("not_found", False),
    408: ("timeout", True),
    409: ("server_error", True),
    425: ("server_error", True),
    429: ("rate_limited", True),
    498: ("overloaded", True),
    503: ("overloaded", True),
    504: ("timeout", True),
    529: ("overloaded", True),
}
"""What a status means when the words say nothing more, and whether the same request may succeed later."""
_WORDS: Final = (
    (re.compile(r"rate.?limit|too.many.requests"), ("rate_limited", True)),
    (re.compile(r"overloaded|unavailable|capacity"), ("overloaded", True)),
    (re.compile(r"timeout|timed.out"), ("timeout", True)),
    (re.compile(r"model_not_found|not_found"), ("not_found", False)),
    (re.compile(r"permission"), ("permission", False)),
    (re.compile(r"invalid_request|bad_request|validation"), ("bad_request", False)),
)
"""The same for errors without a status."""


def is_complaint(frame: dict[str, Any]) -> bool:
    """Whether a frame without an answer tells of an error, though it does not say so in the usual field."""
    kinds = (worded(frame.get("object")).lower(), worded(frame.get("type")).lower())
    if "error" in kinds or frame.get("detail"):
        return True
    return bool(frame.get("message")) and any(frame.get(name) for name in ("code", "status", "status_code", "type"))


def http_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """What an answer with an error status means."""
    head = {name.lower(): value for name, value in headers.items()}
    complaint = _complaint(_readable(body))
    message = complaint.message or "no reason was given"
    error = _mapped(complaint, status, f"HTTP {status}: {message}")
    error.status = status
    error.request_id = request_id_in(head)
    error.retry_after = longest(asked_in_headers(head), complaint.retry_after)
    if error.kind == "rate_limited" and error.retry_after is None:
        limits = [asked_by_limits(limits, head.get("date", "")) for limits in (complaint.limits, head)]
        error.retry_after = next((wait for wait in limits if wait is not None), None)
    told = should_retry(head)
    if told is not None:
        error.retryable = told
    return error


def in_stream(said: Any) -> ModelError:  # noqa: ANN401  whatever came
    """An error inside a response that had begun well."""
    complaint = _complaint(said)
    message = complaint.message or "the provider ended the reply with an error"
    error = _mapped(complaint, complaint.status, message, StreamFailed)
    error.retry_after = complaint.retry_after
    return error


def _mapped(
    complaint: _Complaint, status: int | None, message: str, made: Callable[..., ModelError] = ModelError
) -> ModelError:
    message = bounded(_SECRET.sub("***", message), _MAX_MESSAGE)
    kind, retryable = _kind(status, complaint)
    if kind == "context_overflow":
        return ContextOverflow(message)
    return made(message, kind=kind, retryable=retryable)


def _kind(status: int | None, complaint: _Complaint) -> tuple[str, bool]:
    words, message = complaint.words, complaint.message.lower()
    everything = f"{words} {message}"
    for pattern, kind, where in (
        (_RESAMPLED, ("server_error", True), words),
        (_FILTERED, ("content_filter", False), words),
        (_UNPAID_CODES, ("billing", False), words),
        (_BAD_KEY, ("authentication", False), everything),
    ):
        if pattern.search(where):
            return kind
    if not _RATED.search(words) and _is_unpaid(complaint, message):
        return "billing", False
    if status != 429 and (status is None or status < 500 or "exceed_context" in words) and too_long(everything):
        return "context_overflow", False
    if status is not None:
        return _STATUSES.get(status) or (("server_error", True) if status >= 500 else ("bad_request", False))
    return next((kind for pattern, kind in _WORDS if pattern.search(everything)), ("server_error", True))


def _is_unpaid(complaint: _Complaint, message: str) -> bool:
    """Whether the words alone say that it is a matter of money. Where time helps, it is not."""
    if complaint.retry_after is not None or complaint.limits:
        return False
    quota = _QUOTA in message and "resource_exhausted" not in complaint.words
    return quota or _UNPAID.search(message) is not None


def _readable(body: bytes) -> Any:  # noqa: ANN401  any JSON value, or the words themselves
    try:
        return read(body)
    except ModelError:
        return body[: 4 * _MAX_MESSAGE].decode("utf-8", "replace").strip()


def _complaint(said: Any) -> _Complaint:  # noqa: ANN401  whatever came
    if isinstance(said, list) and said:
        said = cast("list[Any]", said)[0]
    if not isinstance(said, dict):
        return _Complaint(worded(said), "", None, asked_in_words(worded(said)))
    top = cast("dict[str, Any]", said)
    inner = top.get("error")
    error = cast("dict[str, Any]", inner) if isinstance(inner, dict) else top
    message = worded(inner) or _words_of(error)
    metadata = mapping(error.get("metadata"))
    raw = metadata.get("raw")
    if raw:
        message = f"{message}: {raw if isinstance(raw, str) else written(raw)}"
    generated = worded(error.get("failed_generation"))
    if generated:
        message = f"{message} The model had made: {generated}"
    details = [mapping(detail) for detail in listed(error.get("details"))]
    codes = [error.get("code"), error.get("type"), error.get("status"), mapping(error.get("innererror")).get("code")]
    reasons = [detail.get("reason") for detail in details]
    words = " ".join([code.lower() for code in (*codes, *reasons) if isinstance(code, str)])
    if metadata.get("flagged_input") is not None:
        words += " flagged_input"
    codes += [error.get("status_code"), *(top.get(name) for name in ("status_code", "status", "code"))]
    status = next((found for code in codes if (found := _status(code)) is not None), None)
    asked = longest(delay_in(details), asked_in_words(message))
    limits = {name.lower(): worded(value) for name, value in mapping(metadata.get("headers")).items()}
    return _Complaint(message, words, status, asked, limits)


def _status(code: Any) -> int | None:  # noqa: ANN401  whatever came
    """A status of HTTP, as a number or as its digits."""
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdecimal():
        code = int(code)
    return code if type(code) is int and 400 <= code < 600 else None


def _words_of(error: dict[str, Any]) -> str:
    for field in ("message", "detail", "title", "errors"):
        value = error.get(field)
        if value:
            return value if isinstance(value, str) else written(value)
    return ""
