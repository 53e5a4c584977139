"""Exact replacement: what a text becomes, why it does not, and whether it was done already. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

_TOLD: Final = 10
_CONTEXT: Final = 3


@dataclass(frozen=True, slots=True)
class Edited:
    """The text after the edit."""

    text: str
    count: int
    first_line: int
    """Where the first replacement begins."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why nothing is replaced."""

    reason: str


class Trace(Enum):
    """What a text says about an edit that may or may not have been made."""

    MADE = "made"
    NOT_MADE = "not made"
    UNCLEAR = "unclear"


def replace(text: str, old: str, new: str, *, every: bool) -> Edited | Refused:
    """`text` with `old` replaced by `new`: the only place where it is, or every place.

    In a text whose lines all end in CR LF, `old` and `new` may be written with plain line ends; the text keeps its own.
    """
    if not old:
        return Refused("the text to replace is empty; use write_file to write a whole file")
    if old == new:
        return Refused("the text to replace and the new text are the same")
    if _is_crlf(text) and "\r" not in old + new:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    count = text.count(old)
    if not count:
        return Refused(_not_found(text, old))
    # Overlapping places count: in "aaa" there are two places where "aa" could be replaced.
    places = _places(text, old, _TOLD + 1)
    if len(places) > 1 and not every:
        return Refused(_several(text, places))
    return Edited(text.replace(old, new), count, _line_of(text, places[0]))


def trace(text: str, old: str, new: str) -> Trace:
    """Whether this edit was made, if nobody else has touched the text.

    When in doubt it is unclear. `NOT_MADE` also stands for an edit that could not be made: it will say so itself.
    """
    if _is_crlf(text) and "\r" not in old + new:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    if new and new not in text:
        return Trace.NOT_MADE
    return Trace.UNCLEAR if old in text else Trace.MADE


def _is_crlf(text: str) -> bool:
    return "\r\n" in text and text.count("\r\n") == text.count("\n")


def _places(text: str, old: str, limit: int) -> list[int]:
    found: list[int] = []
    at = text.find(old)
    while at >= 0 and len(found) < limit:
        found.append(at)
        at = text.find(old, at + 1)
    return found


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _several(text: str, places: list[int]) -> str:
    lines = ", ".join(str(_line_of(text, at)) for at in places[:_TOLD])
    more = " and more" if len(places) > _TOLD else ""
    return (
        f"the text to replace is there several times (it begins in line {lines}{more}); "
        "give more of the text around it so that it is there once, or set all to true"
    )


def _not_found(text: str, old: str) -> str:
    reason = "the text to replace is not in it; it must be the same to the last space, without line numbers"
    first = next((line for line in old.splitlines() if line.strip()), "")
    wanted = " ".join(first.split())
    near = (n for n, line in enumerate(text.splitlines(), 1) if wanted and " ".join(line.split()) == wanted)
    number = next(near, None)
    return f"{reason}. Line {number} is like its first line; read the file there" if number else reason


def excerpt(text: str, first_line: int, new: str, *, line_chars: int) -> tuple[int, tuple[str, ...]]:
    """The lines around the first replacement: the number of the first of them, and the lines."""
    begin = max(first_line - _CONTEXT, 1)
    end = min(first_line + new.count("\n"), first_line + 2 * _CONTEXT) + _CONTEXT
    lines = re.split("\r?\n", text)
    if lines[-1] == "":
        lines.pop()
    return begin, tuple(line[:line_chars] for line in lines[begin - 1 : end])
