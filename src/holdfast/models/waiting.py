"""Whether and how long a provider asks to wait: in the headers of its response, or in its words. Pure."""

from __future__ import annotations

import math
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from holdfast.models.reading import worded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
