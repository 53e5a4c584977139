"""What a model reads of a fetch: a few lines about it, then the text, a part at a time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_TOLERATED: Final = 5
"""A part ends at a line, unless more than one in so many of its characters would be lost by that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A fetch that gave text."""

    url: str
    """Where the answer came from, after all redirects."""
    hops: int
    media_type: str
    title: str
    text: str
    cut_at: int | None = None
    """The limit of bytes, where the body was longer."""
    longer: bool = False
    """Whether the text was longer than is kept of any page."""

    def told(self, start: int, most: int) -> str:
        """The text from `start` on, at most `most` characters, below what there is to know about it."""
        begin = min(start, len(self.text))
        part = self.text[begin : begin + most]
        end = begin + len(part)
        if end < len(self.text):
            part = at_line_end(part)
            end = begin + len(part)
        lines = [f"URL: {self.url}{_redirected(self.hops)}"]
        if self.title:
            lines.append(f"Title: {self.title}")
        lines += [f"Type: {self.media_type}"] if self.media_type else []
        lines.append(self._extent(begin, end))
        return "\n".join(lines) + f"\n\n{part}".rstrip()

    def _extent(self, begin: int, end: int) -> str:
        whole = len(self.text)
        if not whole:
            return "It is empty."
        cut = f"; only the first {self.cut_at:,} bytes were read" if self.cut_at is not None else ""
        cut += "; the page goes on, but no further than this is read" if self.longer else ""
        if begin == 0 and end == whole:
            return f"Characters: {whole:,}{cut}"
        if begin >= whole:
            return f"Characters: {whole:,}{cut}; there is nothing from {begin:,} on"
        more = f"; go on with start={end}" if end < whole else ""
        return f"Characters: {begin:,} to {end:,} of {whole:,}{cut}{more}"


def at_line_end(part: str) -> str:
    """`part` up to the last end of a line, unless that is far from its end."""
    cut = part.rfind("\n") + 1
    return part[:cut] if cut and (len(part) - cut) * _TOLERATED <= len(part) else part


def page_of(text: str, most: int) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else f"{line[:most]}..."


def _redirected(hops: int) -> str:
    if not hops:
        return ""
    return f" (after {hops} redirect{'s' if hops > 1 else ''})"
