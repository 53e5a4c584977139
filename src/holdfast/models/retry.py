"""Retries of a model call: the decision to try again, and the delay before the next attempt. Pure.

`retry_delay` is the one place where the delay is computed, after a 429 as after any other failure: exponential backoff
with jitter, never less than the provider asks for. The second half of the module reads the provider's requested delay
from headers and messages.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.messages import Attempt, Usage
from holdfast.models.json_values import as_text, clip_text
from holdfast.names import check_int, check_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.errors import ModelError


FINAL_KINDS: Final = frozenset(
    {
        *("authentication", "permission", "not_found", "context_overflow", "content_filter", "billing"),
        *("redirect", "web_page", "bad_usage"),
    }
)
"""Errors of the request, the key or the account: another attempt would bring the same answer."""
TRANSIENT_KINDS: Final = frozenset({"rate_limited", "overloaded", "server_error", "timeout"})
"""Errors after which the same request may succeed."""
FINAL_STATUSES: Final = frozenset({400, 401, 403, 404})
TRANSIENT_STATUSES: Final = frozenset({408, 409, 425, 429})


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and delays of retries. Times are in seconds."""

    attempts: int = 4
    """Most attempts, including the first."""
    first: float = 0.5
    """Delay after the first failure. Each later delay is `factor` times as long; jitter takes off up to half."""
    factor: float = 2.0
    longest: float = 30.0
    """Longest delay that we choose ourselves."""
    longest_asked: float = 120.0
    """Longest delay that a provider may ask for.

    A longer one makes its error final: an earlier attempt would only make things worse, and another model may answer
    meanwhile.
    """
    within: float = 600.0
    """No attempt begins later than this after the first failure."""

    def __post_init__(self) -> None:
        check_int("retry attempts", self.attempts, least=1, most=1_000)
        for name in ("first", "factor", "longest", "longest_asked", "within"):
            check_number(f"retry {name}", getattr(self, name))


# ---- the decision ----


def is_retryable(error: ModelError, advice: bool | None = None) -> bool:  # from `retry_advice`
    """True if the same request may succeed later. `advice` is the provider's own statement, if any."""
    if advice is False or error.kind in FINAL_KINDS:
        return False
    if error.status in FINAL_STATUSES:
        # A dialect that knows the provider's error codes may know better than the status.
        return error.retryable and error.kind in TRANSIENT_KINDS
    if advice:
        return True
    transient = error.status is not None and (error.status in TRANSIENT_STATUSES or error.status >= 500)
    return transient or error.retryable


def retry_delay(
    policy: Retry, error: ModelError, *, failures: int, elapsed: float, chance: float, advice: bool | None = None
) -> float | None:
    """Return the seconds to wait before the next attempt; None to give up.

    `failures` counts the failed attempts in a row, `elapsed` the seconds since the first of them; `chance` is a random
    number from 0 to 1.
    """
    if failures >= policy.attempts or not is_retryable(error, advice):
        return None
    backoff = policy.longest
    if failures <= 64:  # above that, the power may overflow
        backoff = min(policy.longest, policy.first * policy.factor ** (failures - 1))
    delay = backoff * (1 - chance / 2)
    asked = error.retry_after
    if asked is not None and math.isfinite(asked) and asked > 0:
        if asked > policy.longest_asked:
            return None
        # Never earlier than asked. A little later, so that clients with the same answer do not all return at once.
        delay = max(delay, asked + min(asked, policy.first) * chance / 2)
    return None if elapsed + delay > policy.within else delay


def explain_refused_delay(policy: Retry, error: ModelError, *, elapsed: float, left: float | None = None) -> str:
    """Explain why the delay that a provider asks for is too long; empty if it is not.

    `left` is the time left of the whole call, if that is bounded.
    """
    asked = error.retry_after
    if asked is None or not math.isfinite(asked) or asked <= 0:
        return ""
    if asked > policy.longest_asked:
        limit = f"Retry.longest_asked allows {policy.longest_asked:,.1f} s"
    elif elapsed + asked > policy.within:
        limit = f"Retry.within leaves {max(policy.within - elapsed, 0.0):,.1f} s"
    elif left is not None and asked >= left:
        limit = f"Timeouts.total leaves {max(left, 0.0):,.1f} s"
    else:
        return ""
    return f"it asks for a pause of {asked:,.1f} s, and {limit}"


# ---- the delay that a provider asks for ----

_DURATION: Final = (
    r"(?:(\d{1,6}) ?h(?:ours?)?(?![a-z]) ?)?"
    r"(?:(\d{1,6}) ?m(?:in(?:ute)?s?)?(?![a-z]) ?)?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?) ?(m?s|(?:milli)?sec(?:ond)?s?)\b)?"
)
_TRY_AGAIN: Final = re.compile(rf"(?:try again|retry) (?:in|after) {_DURATION}")
_WHOLE_DURATION: Final = re.compile(_DURATION)
_GOOGLE_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_RATE_LIMITS: Final = (
    *("", "-requests", "-tokens", "-requests-minute", "-tokens-minute"),
    *("-requests-hour", "-tokens-hour", "-requests-day", "-tokens-day"),
)
_LIMIT_HEADERS: Final = (
    *((f"x-ratelimit-remaining{limit}", f"x-ratelimit-reset{limit}") for limit in _RATE_LIMITS),
    *(
        (f"anthropic-ratelimit-{limit}-remaining", f"anthropic-ratelimit-{limit}-reset")
        for limit in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
)
"""Pairs of headers: the rest of a rate limit, and when it is reset."""
_FIRST_UNIX_TIME: Final = 1_000_000_000
"""A larger number is a time in seconds since 1970, and not a duration."""
_FIRST_UNIX_TIME_MS: Final = 1_000 * _FIRST_UNIX_TIME
_MAX_SEARCHED: Final = 4_000
_REQUEST_ID_HEADERS: Final = (
    *("x-request-id", "request-id", "apim-request-id", "x-ms-request-id"),
    *("x-amzn-requestid", "x-goog-request-id", "cf-ray"),
)


def add_response_headers(error: ModelError, headers: Mapping[str, str], delay: float | None = None) -> ModelError:
    """Complete an error with request id, requested delay and retry advice of its response.

    `delay` is the delay requested in the body; the longest counts. Rate limits count only without another request.
    """
    headers = {name.lower(): value for name, value in headers.items()}
    error.request_id = error.request_id or request_id_from(headers)
    error.retry_after = longest_delay(delay_from_headers(headers), delay)
    if error.retry_after is None and error.kind == "rate_limited":
        error.retry_after = delay_from_rate_limits(headers, headers.get("date", ""))
    advice = retry_advice(headers)
    if advice is not None:
        error.retryable = advice
    return error


def request_id_from(headers: Mapping[str, str]) -> str | None:
    """Find the provider's id of a request in headers with lower-case names."""
    return next((clip_text(headers[name], 200) for name in _REQUEST_ID_HEADERS if headers.get(name)), None)


def longest_delay(*delays: float | None) -> float | None:
    """Return the longest of the delays that are known."""
    return max((delay for delay in delays if delay is not None), default=None)


def delay_from_headers(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Read the delay from ``retry-after-ms``, Azure's ``x-ms-retry-after-ms``, and ``retry-after``.

    ``retry-after`` is a number or a date. A date is compared with the date of the response or, without one, with `now`,
    in seconds since 1970.
    """
    milliseconds = [parse_seconds(headers.get(name)) for name in ("retry-after-ms", "x-ms-retry-after-ms")]
    retry_after = headers.get("retry-after", "")
    seconds = parse_seconds(retry_after)
    until, sent = _unix_time(retry_after), _unix_time(headers.get("date", ""))
    since = now if sent is None else sent
    if seconds is None and until is not None and since is not None:
        seconds = max(until - since, 0.0)
    return longest_delay(*[None if ms is None else ms / 1_000 for ms in milliseconds], seconds)


def delay_from_message(message: str) -> float | None:
    """Read the delay from a message such as "Please try again in 1m2.5s" or "retry after 9 seconds"."""
    return _duration(_TRY_AGAIN.search(message[:_MAX_SEARCHED].lower()))


def delay_from_details(details: Iterable[Mapping[str, Any]]) -> float | None:
    """Read the longest ``retryDelay``, such as "22s", from the details of a Google error."""
    delays = [_GOOGLE_DURATION.fullmatch(as_text(detail.get("retryDelay"))) for detail in details]
    return max((float(found.group(1)) for found in delays if found), default=None)


def delay_from_rate_limits(headers: Mapping[str, str], date: str = "") -> float | None:
    """Return the seconds until the last exhausted rate limit is reset.

    A reset is a duration such as "6m0s", a number of seconds, or a time, which is compared with `date`.
    """
    exhausted = [reset for remaining, reset in _LIMIT_HEADERS if headers.get(remaining, "").strip() == "0"]
    return longest_delay(*[_until_reset(headers.get(reset, "").strip(), date) for reset in exhausted])


def retry_advice(headers: Mapping[str, str]) -> bool | None:
    """Read ``x-should-retry``; None without it.

    OpenAI, Anthropic and others send it. It overrides the status, also in their own clients.
    """
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def parse_seconds(text: str | None) -> float | None:
    """Parse a number of at least zero; None for anything else."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _until_reset(text: str, date: str) -> float | None:
    number = parse_seconds(text)
    if number is not None and number < _FIRST_UNIX_TIME:
        return number
    if number is None:
        duration = _duration(_WHOLE_DURATION.fullmatch(text.lower()))
        if duration is not None:
            return duration
        reset = _unix_time(text)
    else:
        reset = number / 1_000 if number >= _FIRST_UNIX_TIME_MS else number
    now = _unix_time(date)
    return None if reset is None or now is None else max(reset - now, 0.0)


def _duration(found: re.Match[str] | None) -> float | None:
    if found is None or not any(found.groups()):
        return None
    hours, minutes, number, unit = found.groups()
    seconds = float(number or 0) / (1_000 if unit and unit.startswith("m") else 1)
    return int(hours or 0) * 3_600 + int(minutes or 0) * 60 + seconds


def _unix_time(text: str) -> float | None:
    """Parse a date in the HTTP format, or in ISO 8601 with a time zone."""
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            date = parse(text)
            if parse is parsedate_to_datetime or date.tzinfo is not None:
                return date.timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None


# ---- the ledger of attempts ----


def make_attempt(
    model: str,
    error: ModelError | None,
    seconds: float,
    status: int | None = None,
    request_id: str | None = None,
    usage: Usage | None = None,
    outcome: str = "completed",
) -> Attempt:
    """Make the ledger entry of an attempt that ended with `error`, or without."""
    ms = max(0, round(seconds * 1000))
    if error is None:
        return Attempt(model, outcome, status, request_id, ms, usage)
    seen = status if error.status is None else error.status
    return Attempt(model, error.kind, seen, error.request_id or request_id, ms, usage, clip_text(error.message, 300))


def attach_attempts(error: ModelError, attempts: list[Attempt]) -> ModelError:
    """Put all attempts that led to an error into it."""
    error.attempts = tuple(attempts)
    return error
