"""Times and spans as a model reads them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_LAST: Final = 253_402_300_799_000
"""The last second that has a date, in wall milliseconds."""
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def moment(wall: int) -> str:
    """A wall time as a date in UTC, to the second."""
    at = datetime.fromtimestamp(min(max(wall, 0), _LAST) // 1000, tz=UTC)
    return at.isoformat().replace("+00:00", "Z")


def span(ms: float) -> str:
    """A span of time, in its two largest units."""
    seconds = max(ms, 0) / 1000
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    rest = int(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:,} {unit}")
    if rest:
        parts.append(f"{rest} s")
    return " ".join(parts[:2])
