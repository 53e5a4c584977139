"""Spans of time, as callers give them and as they are stored."""

from __future__ import annotations

from datetime import timedelta

from holdfast.errors import InvalidArgument


def milliseconds(span: timedelta | float) -> int:
    """A span of time as it is stored; seconds where it is a number."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if type(seconds) not in (int, float) or not 0 < seconds <= 10 * 365 * 86_400:
        raise InvalidArgument("time", span, "a timedelta or a number of seconds, above zero and below ten years")
    return max(1, round(seconds * 1000))
