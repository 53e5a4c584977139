"""What is shown is what is there: characters that nobody sees, or that turn a line around, as their JSON escapes. Pure.

A person approves what is on the screen. So nothing in it may hide, reorder or break what stands beside it, and the
escaped text is still JSON of the very same value.
"""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WIDTH: Final = 100
"""JSON that is longer is shown over several lines."""
BAR: Final = "| "
"""What stands before words from outside, so that they can't pass for ours."""
GOES_ON: Final = ": "
"""The same, where a line had to be broken."""
_LEAST: Final = 20
_UNSEEN: Final = frozenset(
    [
        *(chr(code) for code in (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180F, 0x2800, 0x3164, 0xFFA0)),
        *map(chr, range(0x180B, 0x180E)),
        *map(chr, range(0xFE00, 0xFE10)),
        *map(chr, range(0xE0000, 0xE1000)),
    ]
)
"""Fillers, joiners, selectors and tags: letters or marks for Unicode, nothing for the eye."""


def escaped(text: str) -> str:
    """The text with JSON escapes for all that has no sign of its own: also line breaks, and spaces of other kinds."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(json.dumps(found)[1:-1] if _hides(found) else found for found in text)


def as_json(value: object, width: int = WIDTH) -> str:
    """JSON of a value on one line, or on several where it is longer than `width`; nothing in it is hidden."""
    flat = escaped(json.dumps(value, ensure_ascii=False))
    if len(flat) <= width:
        return flat
    return "\n".join(map(escaped, json.dumps(value, ensure_ascii=False, indent=2).split("\n")))


def fenced(lines: Iterable[str], columns: int | None) -> Iterator[str]:
    """Lines behind a bar. With `columns` they are broken there: what a terminal wraps has no bar, and could be ours."""
    for line in lines:
        parts = [line] if columns is None else list(_broken(line, max(columns - len(BAR), _LEAST)))
        yield f"{BAR}{parts[0]}"
        for part in parts[1:]:
            yield f"{GOES_ON}{part}"


def _broken(line: str, columns: int) -> Iterator[str]:
    part, width = "", 0
    for found in line:
        needs = 2 if unicodedata.east_asian_width(found) in {"W", "F"} else 1
        if width + needs > columns:
            yield part
            part, width = "", 0
        part, width = part + found, width + needs
    yield part


def _hides(character: str) -> bool:
    # C: control, format (bidi, zero width), surrogates, private, unassigned. Z: line breaks and spaces.
    category = unicodedata.category(character)
    return category[0] == "C" or (category[0] == "Z" and character != " ") or character in _UNSEEN
