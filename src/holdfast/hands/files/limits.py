"""How much one call may read, write, list and find. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from holdfast.errors import InvalidNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Every bound of the file tools."""

    read_bytes: int = 64 * 1024 * 1024
    """The largest file that is read in pages."""
    write_bytes: int = 4 * 1024 * 1024
    """The largest file that is written or edited."""
    search_bytes: int = 16 * 1024 * 1024
    """The largest file that is searched."""
    page_lines: int = 1_000
    """How many lines one answer has."""
    page_chars: int = 60_000
    """How much text one answer has."""
    line_chars: int = 2_000
    """Where a line is cut when it is shown."""
    entries: int = 500
    """How many entries one list has."""
    visited: int = 100_000
    """How many entries one list or search looks at."""
    matches: int = 200
    """How many matches one search gives."""
    seconds: float = 5.0
    """How long one list or search may take."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.name != "seconds"
            kinds = (int,) if whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value) or value <= 0:
                raise InvalidNumber(field.name, value, f"a {'whole ' if whole else ''}number above 0 is wanted")
