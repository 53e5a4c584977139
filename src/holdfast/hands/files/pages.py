"""Text in pages with numbered lines, cut where it is too long. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Page:
    """A few lines of a file, and how many there are."""

    first: int
    lines: tuple[str, ...]
    total: int

    @property
    def last(self) -> int:
        """The number of its last line."""
        return self.first + len(self.lines) - 1


class _Line:
    """One line that may come in pieces; what goes beyond its limit is counted and dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = ""
        self._length = 0

    def add(self, piece: str) -> None:
        self._kept += piece[: max(self._limit - len(self._kept), 0)]
        self._length += len(piece)

    def take(self) -> str:
        dropped = self._length - len(self._kept)
        text = f"{self._kept}... ({dropped:,} more characters)" if dropped else self._kept.removesuffix("\r")
        self._kept, self._length = "", 0
        return text


def cut_page(chunks: Iterable[str], first: int, count: int, *, line_chars: int, room: int) -> Page:
    """Lines `first` and following, up to `count` of them, within `room` characters but at least one.

    Memory stays bounded whatever the text is: lines that are not wanted are counted, not kept.
    """
    line, found = _Line(line_chars), list[str]()
    number, full, ends_open = 1, False, False
    for chunk in chunks:
        ends_open = chunk[-1:] != "\n" if chunk else ends_open
        breaks = chunk.count("\n")
        if full or number + breaks < first:
            number += breaks
            continue
        pieces = chunk.split("\n")
        for piece in pieces[:-1]:
            if number >= first and not full:
                line.add(piece)
                room = _keep(found, line.take(), room)
                full = room < 0 or len(found) >= count
            number += 1
        if number >= first and not full:
            line.add(pieces[-1])
    if ends_open and number >= first and not full:
        _keep(found, line.take(), room)
    return Page(first, tuple(found), number if ends_open else number - 1)


def _keep(found: list[str], line: str, room: int) -> int:
    """Keep a line if there is room for it; answers how much there is after it, below 0 for none."""
    left = room - len(line) - 1
    if left >= 0 or not found:
        found.append(line)
    return left


def numbered(page: Page) -> str:
    """The lines with their numbers, as a model reads them."""
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(page.lines, page.first))


def told(page: Page) -> str:
    """The page, and how to go on."""
    if not page.total:
        return "(the file is empty)"
    end = page.first == 1 and page.last == page.total
    if end:
        return numbered(page)
    more = f" Go on with start={page.last + 1}." if page.last < page.total else ""
    return f"{numbered(page)}\n(Lines {page.first:,} to {page.last:,} of {page.total:,}.{more})"
