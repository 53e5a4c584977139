"""Whether and how long a provider asks to wait: in the headers of its response, or in its words. Pure."""

from __future__ import annotations

import math
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LATER: Final = re.compile(r"try again in (?:(\d{1,6})h)?(?:(\d{1,6})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?) ?(ms|s)\b)?")
_SEARCHED: Final = 4_000


def asked_in_headers(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds, from ``retry-after-ms`` or ``retry-after`` as a number or a date.

    A date is held against the date of the response; where that is not told against `now`, in seconds since 1970.
    """
    milliseconds = seconds_in(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1_000
    said = headers.get("retry-after")
    seconds = seconds_in(said)
    if seconds is not None or not said:
        return seconds
    moment, there = _date(said), _date(headers.get("date", ""))
    since = now if there is None else there
    return None if moment is None or since is None else max(moment - since, 0.0)


def asked_in_words(message: str) -> float | None:
    """Seconds, from words such as "Please try again in 1m2.5s"."""
    found = _LATER.search(message[:_SEARCHED].lower())
    if found is None or not any(found.groups()):
        return None
    hours, minutes, number, unit = found.groups()
    seconds = float(number or 0) / (1_000 if unit == "ms" else 1)
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
