"""Reading a file in pages."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import InvalidNumber
from holdfast.toolkits.files.workspace import NotText, chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.toolkits.files.workspace import FileLimits, Place, Workspace


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


_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_page(workspace: Workspace, place: Place, start: int, lines: int, limits: FileLimits) -> str:
    """A page of a text file with numbered lines, and where to go on."""
    if start < 1:
        raise InvalidNumber("start", start, "the first line has the number 1")
    if lines < 1:
        raise InvalidNumber("lines", lines, "at least one line is wanted")
    label = str(place)
    with workspace.file(place.encoded(), label) as number:
        pieces = chunks(number, label, limits.read_bytes, "use search_files to find the part that you need")
        texts = decoded(pieces, label)
        count = min(lines, limits.page_lines)
        page = cut_page(texts, start, count, line_chars=limits.line_chars, room=limits.page_chars)
    if page.total and start > page.total:
        raise InvalidNumber("start", start, f"the file has {page.total:,} lines")
    return told(page)


def decoded(pieces: Iterable[bytes], label: str) -> Iterator[str]:
    """UTF-8 bytes as text; `NotText` says at which byte they are something else."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, held = 0, 0
    for piece in pieces:
        if not offset and piece.startswith(_UTF16):
            raise NotText(label, "it begins like UTF-16")
        try:
            text = decoder.decode(piece)
        except UnicodeDecodeError as error:
            raise _not_text(label, offset - held + error.start, error.object[error.start]) from error
        if b"\0" in piece:
            raise _not_text(label, offset + piece.index(b"\0"), 0)
        begins = not offset
        offset += len(piece)
        held = len(decoder.getstate()[0])
        # A byte order mark at the beginning is no part of what is said.
        yield text.removeprefix("\ufeff") if begins else text
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_text(label, offset - held + error.start, error.object[error.start]) from error


def _not_text(label: str, offset: int, byte: int) -> NotText:
    return NotText(label, f"byte {offset:,} is 0x{byte:02x}")
