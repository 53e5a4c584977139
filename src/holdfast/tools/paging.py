"""A kept result, piece by piece: what a page holds, and how a model reads it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

READER: Final = "read_result"
"""What the tool is called."""
MAX_LINES: Final = 2_000
"""Most lines of one page."""
PAGE_BYTES: Final = 40_000
"""Most bytes of one page; what it says around them fits into the limit of a result as well."""

_CONTINUES: Final = range(0x80, 0xC0)  # a byte that is not the first of its character
_LONGEST_CHARACTER: Final = 4


@dataclass(frozen=True, slots=True)
class Page:
    """Some lines of a text."""

    text: str
    start: int
    """The number of its first line, from 1."""
    stop: int
    """The number of its last line; `start - 1` if there is none."""
    lines: int
    """How many lines there are."""
    next_start: int | None
    """The line to go on with; None at the end."""
    next_skip: int = 0
    """How many bytes of that line were on this page."""


def page(data: bytes, start: int, lines: int, skip: int = 0, room: int = PAGE_BYTES) -> Page:
    """Up to `lines` lines of `data` from line `start`, of which the first `skip` bytes are left out.

    A page holds whole lines, if they fit into `room` bytes; of a line that does not, it holds the part that does. Only
    the page is decoded. Bytes that are not UTF-8 are shown as their escapes.
    """
    count = data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
    if start > count:
        return Page("", start, start - 1, count, None)
    begin = _line_at(data, start)
    ending = data.find(b"\n", begin)
    begin = _aligned(data, min(begin + skip, len(data) if ending < 0 else ending))
    end = _end_of(data, begin, lines)
    if end - begin > room:
        line = data.rfind(b"\n", begin, begin + room) + 1
        end = line or _aligned_back(data, begin + room, begin)
    text = data[begin:end].decode("utf-8", "backslashreplace")
    passed = data.count(b"\n", begin, end)
    if end >= len(data):
        return Page(text, start, count, count, None)
    if data[end - 1 : end] == b"\n":
        return Page(text, start, start + passed - 1, count, start + passed)
    here = data.rfind(b"\n", 0, end) + 1
    return Page(text, start, start + passed, count, start + passed, end - here)


def shown(found: Page, id: str, tool: str = READER) -> str:
    """A page as a model reads it: which lines these are, the lines, and how to go on with `tool`."""
    if found.stop < found.start:
        return f"[There are only {found.lines:,} lines.]"
    head = f"[Lines {found.start:,} to {found.stop:,} of {found.lines:,}]"
    end = "" if found.text.endswith("\n") else "\n"
    if found.next_start is None:
        return f"{head}\n{found.text}{end}[That is the end.]"
    skip = f", skip={found.next_skip}" if found.next_skip else ""
    return f'{head}\n{found.text}{end}[Go on with {tool}(id="{id}", start={found.next_start}{skip}).]'


def _line_at(data: bytes, number: int) -> int:
    """Where line `number` begins. Halves are counted, so that it takes one pass and no copy."""
    if number == 1:
        return 0
    low, high, left = 0, len(data), number - 1
    while high - low > 1:
        middle = (low + high) // 2
        before = data.count(b"\n", low, middle)
        if before >= left:
            high = middle
        else:
            left -= before
            low = middle
    return high


def _end_of(data: bytes, begin: int, lines: int) -> int:
    end = begin
    for _ in range(lines):
        found = data.find(b"\n", end)
        if found < 0:
            return len(data)
        end = found + 1
    return end


def _aligned(data: bytes, at: int) -> int:
    """The next place from `at` on where a character begins."""
    return next((n for n in range(at, min(at + _LONGEST_CHARACTER, len(data))) if data[n] not in _CONTINUES), at)


def _aligned_back(data: bytes, at: int, least: int) -> int:
    places = range(at, max(at - _LONGEST_CHARACTER, least), -1)
    return next((n for n in places if data[n : n + 1] and data[n] not in _CONTINUES), at)
