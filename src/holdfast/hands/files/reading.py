"""Reading a file in pages."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from holdfast.errors import InvalidNumber
from holdfast.hands.files.errors import NotText
from holdfast.hands.files.pages import cut_page, told
from holdfast.hands.files.workspace import chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.hands.files.limits import FileLimits
    from holdfast.hands.files.paths import Place
    from holdfast.hands.files.workspace import Workspace

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
