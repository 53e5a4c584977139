"""A text that is too long for a model: its beginning and its end, with a note of what is between. Pure.

The cut is made between lines; within a line only where the line alone is too long, and then never within what is seen
as one character. The text itself is not copied, however long it is.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

_ROOM: Final = 400
"""For the note in the middle, in characters."""
_BACK: Final = 32
"""How many characters one seen character may have; more is noise, and is cut."""
_LONGEST_RUN: Final = 65_536
_JOINER: Final = "\u200d"
_MODIFIERS: Final = range(0x1F3FB, 0x1F400)  # skin tones
_FLAGS: Final = range(0x1F1E6, 0x1F200)  # two make one flag
_HIGH: Final = range(0xD800, 0xDC00)
_LOW: Final = range(0xDC00, 0xE000)


@dataclass(frozen=True, slots=True)
class Whole:
    """Where the whole text can be read."""

    id: str
    """Of the attachment that holds it."""
    reader: str
    """The tool that reads it."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The whole text is larger than what is kept of one result; sizes in bytes."""

    size: int
    limit: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A text that was cut, and what is missing from it."""

    text: str
    characters: int
    """Of the whole."""
    missing: int
    """Characters that were left out."""


def cut(text: str, limit: int, whole: Whole | Lost | None = None, *, total: int | None = None) -> Cut | None:
    """`text` within `limit` characters; None if it fits as it is.

    `total` is the number of characters there were where `text` itself is only the beginning of them.
    """
    length = len(text)
    total = length if total is None else total
    if length <= limit and total <= length:
        return None
    room = max(limit - _ROOM, 2)
    begin = _head(text, room // 2)
    end = max(_tail(text, length - (room - room // 2)), begin)
    missing = total - begin - (length - end)
    head, tail = text[:begin], text[end:]
    note = _note(text, begin, end, missing, whole)
    gap = "" if head.endswith("\n") or not head else "\n"
    return Cut(f"{head}{gap}{note}\n{tail}", total, missing)


def is_boundary(text: str, at: int) -> bool:
    """Whether `text` may be cut before the character at `at` without breaking what is seen as one character."""
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before == "\r" and after == "\n":
        return False
    code, left = ord(after), ord(before)
    if (code in _LOW and left in _HIGH) or _JOINER in (before, after) or code in _MODIFIERS:
        return False
    if code in _FLAGS and left in _FLAGS:
        return _flags_before(text, at) % 2 == 0
    # Marks that sit on the character before them; among them are the selectors of a variant.
    return not unicodedata.category(after).startswith("M")


def _head(text: str, most: int) -> int:
    """Where the beginning ends: after the last line that fits, or within it if it is most of what there is."""
    line = text.rfind("\n", most // 2, most) + 1
    return line or _back(text, most)


def _tail(text: str, least: int) -> int:
    """Where the end begins."""
    if text[least - 1 : least] == "\n":
        return least
    half = least + (len(text) - least) // 2
    line = text.find("\n", least, half) + 1
    return line or _forth(text, least)


def _back(text: str, at: int) -> int:
    return next((place for place in range(at, max(at - _BACK, 0), -1) if is_boundary(text, place)), at)


def _forth(text: str, at: int) -> int:
    return next((place for place in range(at, min(at + _BACK, len(text))) if is_boundary(text, place)), at)


def _flags_before(text: str, at: int) -> int:
    count = 0
    while count < at and count < _LONGEST_RUN and ord(text[at - count - 1]) in _FLAGS:
        count += 1
    return count


def _note(text: str, begin: int, end: int, missing: int, whole: Whole | Lost | None) -> str:
    """What is missing, and how to read it."""
    lines = text.count("\n", begin, end)
    of_lines = f" ({lines:,} lines)" if lines else ""
    said = f"[... {missing:,} characters{of_lines} are left out here."
    if whole is None:
        return f"{said} You have no tool that reads them: ask for less.]"
    if isinstance(whole, Lost):
        kept = f"the whole result is {whole.size:,} bytes, and at most {whole.limit:,} are kept"
        return f"{said} They are gone: {kept}. Ask for less.]"
    start = text.count("\n", 0, begin) + 1
    line = text.rfind("\n", 0, begin) + 1
    skip = len(text[line:begin].encode("utf-8", "backslashreplace"))
    within = f", skip={skip}" if skip else ""
    return f'{said} Read them with {whole.reader}(id="{whole.id}", start={start}{within}).]'
