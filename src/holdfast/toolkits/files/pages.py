"""Text files in pages, with numbered lines."""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from holdfast.errors import InvalidNumber
from holdfast.toolkits.files.workspace import FileLimits, NotText, Workspace, read_chunks


@dataclass(frozen=True, slots=True)
class FilePage:
    """Some lines of a file, and the number of all its lines."""

    first: int
    lines: tuple[str, ...]
    total: int

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


_JOINERS: Final = "\t\u200c\u200d"
"""A tab, and joiners of letters and emoji."""


def escape_line(text: str) -> str:
    """The text with line ends, hidden characters and direction marks escaped."""
    if text.isprintable():
        return text
    # Spaces of other kinds are not printable either, and harmless.
    return "".join(
        char
        if char.isprintable() or char in _JOINERS or unicodedata.category(char) == "Zs"
        else char.encode("unicode_escape").decode()
        for char in text
    )


def cut_page(chunks: Iterable[str], first: int, count: int, *, line_chars: int, room: int) -> FilePage:
    """Up to `count` lines from line `first` on, within `room` characters but at least one line.

    Memory is bounded for any text: other lines, and characters beyond `line_chars`, are counted and dropped.
    """
    found: list[str] = []
    kept, length = "", 0  # of the line that arrives in pieces
    number, full, ends_open = 1, False, False

    def end_line() -> None:
        nonlocal kept, length, room, full
        dropped = length - len(kept)
        text = f"{kept}... ({dropped:,} more characters)" if dropped else kept.removesuffix("\r")
        kept, length = "", 0
        room -= len(text) + 1
        if room >= 0 or not found:
            found.append(text)
        full = room < 0 or len(found) >= count

    for chunk in filter(None, chunks):
        ends_open = not chunk.endswith("\n")
        breaks = chunk.count("\n")
        if full or number + breaks < first:
            number += breaks
            continue
        for at, piece in enumerate(chunk.split("\n")):
            if at:
                if number >= first and not full:
                    end_line()
                number += 1
            if number >= first and not full:
                kept += piece[: max(line_chars - len(kept), 0)]
                length += len(piece)
    if ends_open and number >= first and not full:
        end_line()
    return FilePage(first, tuple(found), number if ends_open else number - 1)


def number_lines(first: int, lines: Iterable[str]) -> str:
    """Lines with their numbers, for a model."""
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, first))


def render_file_page(page: FilePage) -> str:
    """A page for a model, and the start of the next one."""
    if not page.total:
        return "(the file is empty)"
    text = number_lines(page.first, page.lines)
    if page.first == 1 and page.last == page.total:
        return text
    more = f" Go on with start={page.last + 1}." if page.last < page.total else ""
    return f"{text}\n(Lines {page.first:,} to {page.last:,} of {page.total:,}.{more})"


def read_file_page(
    workspace: Workspace, path: bytes, label: str, start: int, lines: int, limits: FileLimits, advice: str
) -> str:
    """A page of a text file with numbered lines, and the start of the next one.

    `advice` is for a file that is too large.
    """
    if start < 1:
        raise InvalidNumber("start", start, "the first line has the number 1")
    if lines < 1:
        raise InvalidNumber("lines", lines, "at least one line is wanted")
    with workspace.file(path, label) as number:
        text = decode_text(read_chunks(number, label, limits.read_bytes, advice), label)
        count = min(lines, limits.page_lines)
        page = cut_page(text, start, count, line_chars=limits.line_chars, room=limits.page_chars)
    if page.total and start > page.total:
        raise InvalidNumber("start", start, f"the file has {page.total:,} lines")
    return render_file_page(page)


def decode_text(pieces: Iterable[bytes], label: str) -> Iterator[str]:
    """Decode UTF-8 chunks; `NotText` names the first byte that is not text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, held = 0, 0
    for piece in chain(filter(None, pieces), (b"",)):
        if not offset and piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise NotText(label, "it begins like UTF-16")
        try:
            text = decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise _not_text(label, offset - held + error.start, error.object[error.start]) from error
        if b"\0" in piece:
            raise _not_text(label, offset + piece.index(b"\0"), 0)
        # A byte order mark is not part of the text.
        yield text if offset else text.removeprefix("\ufeff")
        offset += len(piece)
        held = len(decoder.getstate()[0])


def _not_text(label: str, offset: int, byte: int) -> NotText:
    return NotText(label, f"byte {offset:,} is 0x{byte:02x}")
