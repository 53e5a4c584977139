"""Whether to ask again, and when. Pure: time and chance are arguments.

What is worth another try: a connection that failed, 408, 409, 425, 429, every 5xx (529 among them), a provider that
says it is overloaded, a stream that was cut. Never: what is wrong with the request, the key or the account, and a
conversation that is too long; asking again would bring the same answer. Above all that stands what the provider says
itself (`waiting.should_retry`).
"""

from __future__ import annotations

import math
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import InvalidNumber, ModelError
from holdfast.messages import Attempt
from holdfast.models.dialect import bounded, worded
from holdfast.names import check_int

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.messages import Usage


FINAL_KINDS: Final = frozenset(
    {
        *("authentication", "permission", "not_found", "context_overflow", "content_filter", "billing"),
        *("redirect", "web_page", "bad_usage"),
    }
)
FINAL_STATUSES: Final = frozenset({400, 401, 403, 404})
PASSING_STATUSES: Final = frozenset({408, 409, 425, 429})
PASSING_KINDS: Final = frozenset({"rate_limited", "overloaded", "server_error", "timeout"})
"""What a dialect may call an answer whose status says otherwise, where it knows the words of the provider better."""
_MESSAGE: Final = 300
"""Longest words about one try, in characters."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long a question is asked again, with the defaults. Times are in seconds."""

    attempts: int = 4
    """Tries in all, the first included."""
    first: float = 0.5
    """The pause after the first failure; each one after it is `factor` times as long. Chance takes off up to half."""
    factor: float = 2.0
    longest: float = 30.0
    """The longest pause of our own choice."""
    longest_asked: float = 120.0
    """The longest pause that a provider may ask for. If it wants more, its error is final: coming back earlier than
    asked would only make things worse, and another model may answer meanwhile."""
    within: float = 600.0
    """A try begins at most this long after the first one failed."""

    def __post_init__(self) -> None:
        check_int("retry attempts", self.attempts, least=1, most=1_000)
        for name in ("first", "factor", "longest", "longest_asked", "within"):
            check_seconds(f"retry {name}", getattr(self, name))


def check_seconds(what: str, value: object, *, above: bool = False) -> float:
    """The number itself: finite, not negative, and with `above` not zero."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidNumber(what, value, "it must be a finite number")
    if value < 0 or (above and value == 0):
        raise InvalidNumber(what, value, "it must be above 0" if above else "it must be 0 or more")
    return value


def worth_another(error: ModelError, told: bool | None = None) -> bool:  # noqa: FBT001  as `should_retry` gives it
    """Whether the same request may succeed later. `told` is what the provider says about that, if it does."""
    if told is False or error.kind in FINAL_KINDS:
        return False
    if error.status in FINAL_STATUSES:
        return error.retryable and error.kind in PASSING_KINDS
    if told:
        return True
    passing = error.status is not None and (error.status in PASSING_STATUSES or error.status >= 500)
    return passing or error.retryable


def pause(  # noqa: PLR0913
    policy: Retry,
    error: ModelError,
    *,
    tried: int,
    elapsed: float,
    chance: float,
    told: bool | None = None,
) -> float | None:
    """Seconds to wait before the next try, after `tried` tries; None: this was the last one.

    `elapsed` counts from the first failure, `chance` is a number from 0 to 1, `told` is what the provider says about
    another try.
    """
    if tried >= policy.attempts or not worth_another(error, told):
        return None
    full = policy.longest
    # Past some power the product is over any bound, and past some more no number holds it.
    if tried <= 64:
        full = min(policy.longest, policy.first * policy.factor ** (tried - 1))
    seconds = full * (1 - chance / 2)
    asked = error.retry_after
    if asked is not None and math.isfinite(asked) and asked > 0:
        if asked > policy.longest_asked:
            return None
        # Never earlier than asked; a little later, so that those who were told the same do not all come at once.
        seconds = max(seconds, asked + min(asked, policy.first) * chance / 2)
    return None if elapsed + seconds > policy.within else seconds


def pause_refused(policy: Retry, error: ModelError, *, elapsed: float, left: float | None = None) -> str:
    """Why the pause that a provider asks for is not made, in words; empty where it would be.

    `left` is how many seconds of the whole call are left, where that is bounded.
    """
    asked = error.retry_after
    if asked is None or not math.isfinite(asked) or asked <= 0:
        return ""
    if asked > policy.longest_asked:
        return f"it asks for a pause of {asked:,.1f} s, and Retry.longest_asked allows {policy.longest_asked:,.1f} s"
    if elapsed + asked > policy.within:
        spare = max(policy.within - elapsed, 0.0)
        return f"it asks for a pause of {asked:,.1f} s, and Retry.within leaves {spare:,.1f} s"
    if left is not None and asked >= left:
        return f"it asks for a pause of {asked:,.1f} s, and Timeouts.total leaves {max(left, 0.0):,.1f} s"
    return ""


def attempt(  # noqa: PLR0913
    model: str,
    error: ModelError | None,
    *,
    seconds: float,
    status: int | None = None,
    request_id: str | None = None,
    usage: Usage | None = None,
    outcome: str = "completed",
) -> Attempt:
    """One line of the ledger: a try that ended with `error`, or without."""
    ms = max(0, round(seconds * 1000))
    if error is None:
        return Attempt(model, outcome, status, request_id, ms, usage)
    words = bounded(error.message, _MESSAGE)
    seen = status if error.status is None else error.status
    return Attempt(model, error.kind, seen, error.request_id or request_id, ms, usage, words)


def blame(error: ModelError, attempts: list[Attempt]) -> ModelError:
    """The error, with every try that led to it as `attempts`."""
    error.attempts = tuple(attempts)
    return error


_DURATION: Final = (
    r"(?:(\d{1,6}) ?h(?:ours?)?(?![a-z]) ?)?"
    r"(?:(\d{1,6}) ?m(?:in(?:ute)?s?)?(?![a-z]) ?)?"
    r"(?:(\d{1,9}(?:\.\d{1,9})?) ?(m?s|(?:milli)?sec(?:ond)?s?)\b)?"
)
_LATER: Final = re.compile(rf"(?:try again|retry) (?:in|after) {_DURATION}")
_SPAN: Final = re.compile(_DURATION)
_LIMITS: Final = (
    *("", "-requests", "-tokens", "-requests-minute", "-tokens-minute"),
    *("-requests-hour", "-tokens-hour", "-requests-day", "-tokens-day"),
)
"""What a limit is called in ``x-ratelimit-remaining...`` and ``x-ratelimit-reset...``."""
_MOMENTS: Final = 1_000_000_000
"""From here on a number says when, in seconds since 1970, and not how long."""
_MOMENTS_MS: Final = 1_000 * _MOMENTS
_DELAY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_SEARCHED: Final = 4_000


def asked_in_headers(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds: the longest of ``retry-after-ms``, Azure's ``x-ms-retry-after-ms``, and ``retry-after``.

    ``retry-after`` is a number or a date. A date is held against the date of the response; where that is missing
    against `now`, in seconds since 1970.
    """
    told = [seconds_in(headers.get(name)) for name in ("retry-after-ms", "x-ms-retry-after-ms")]
    return longest(*[None if ms is None else ms / 1_000 for ms in told], _retry_after(headers, now))


def longest(*waits: float | None) -> float | None:
    """The longest of the pauses that are told; None where none is."""
    return max((wait for wait in waits if wait is not None), default=None)


def _retry_after(headers: Mapping[str, str], now: float | None) -> float | None:
    said = headers.get("retry-after")
    seconds = seconds_in(said)
    if seconds is not None or not said:
        return seconds
    moment, there = _date(said), _date(headers.get("date", ""))
    since = now if there is None else there
    return None if moment is None or since is None else max(moment - since, 0.0)


def asked_in_words(message: str) -> float | None:
    """Seconds, from words such as "Please try again in 1m2.5s" or "retry after 9 seconds"."""
    return _span(_LATER.search(message[:_SEARCHED].lower()))


def delay_in(details: Iterable[Mapping[str, Any]]) -> float | None:
    """Seconds, from the details of an error of Google's: the longest ``retryDelay``, such as "22s"."""
    delays = [_DELAY.fullmatch(worded(detail.get("retryDelay"))) for detail in details]
    return max((float(found.group(1)) for found in delays if found), default=None)


def asked_by_limits(headers: Mapping[str, str], date: str = "") -> float | None:
    """Seconds until the last of the limits that are used up is lifted: for a request that was refused for them.

    A limit is told as ``x-ratelimit-remaining-NAME``, and its end as ``x-ratelimit-reset-NAME``: a duration such as
    "6m0s", a number of seconds, or a moment, which is held against `date`.
    """
    used_up = [limit for limit in _LIMITS if headers.get(f"x-ratelimit-remaining{limit}", "").strip() == "0"]
    waits = [_until(headers.get(f"x-ratelimit-reset{limit}", "").strip().lower(), date) for limit in used_up]
    return max((wait for wait in waits if wait is not None), default=None)


def _until(said: str, date: str) -> float | None:
    number = seconds_in(said)
    if number is None:
        return _span(_SPAN.fullmatch(said))
    if number < _MOMENTS:
        return number
    since = _date(date)
    return None if since is None else max((number / 1_000 if number >= _MOMENTS_MS else number) - since, 0.0)


def _span(found: re.Match[str] | None) -> float | None:
    if found is None or not any(found.groups()):
        return None
    hours, minutes, number, unit = found.groups()
    seconds = float(number or 0) / (1_000 if unit and unit.startswith("m") else 1)
    return int(hours or 0) * 3_600 + int(minutes or 0) * 60 + seconds


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """Whether a provider says that the same request is worth another try, from ``x-should-retry``.

    It knows better than any status: OpenAI, Anthropic and their like send it, and their own clients obey. None where
    nothing is said.
    """
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def seconds_in(text: str | None) -> float | None:
    """A number that is no less than zero; None for anything else."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


_KINDS: Final = {
    401: "authentication",
    402: "billing",
    403: "permission",
    404: "not_found",
    408: "timeout",
    409: "server_error",
    413: "context_overflow",
    425: "server_error",
    429: "rate_limited",
    499: "server_error",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}


def kind_of_status(status: int) -> str:
    """The kind of the error. What is no status of a refusal is the server's fault."""
    return _KINDS.get(status) or ("bad_request" if 300 <= status < 500 else "server_error")
