"""Spans of time, as they are written on the command line."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from holdfast.cli.failures import CallInvalid

_SPAN: Final = re.compile(r"(\d{1,9})\s*([smhdw])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def span(option: str, text: str) -> timedelta:
    """``30d``, ``12h``, ``90m``, ``45s`` or ``2w``."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        message = f"{option} {text!r} is no span of time; write a number and a unit: 30d, 12h, 90m, 45s"
        raise CallInvalid(message)
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        message = f"{option} {text!r} is longer than there is time; write a smaller number"
        raise CallInvalid(message) from None
