"""Words for people: styles only on a terminal, and nothing that could drive a terminal from outside.

What is piped may reach a terminal later (`holdfast show s | less`), so control characters are escaped there, too. The
escapes are those of JSON: JSON that was printed is JSON of the same value.
"""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TextIO


Style = Literal["bold", "dim", "red", "green", "yellow", "cyan"]
_CODES: Final[dict[Style, str]] = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
_STATUSES: Final[dict[str, Style]] = {
    "completed": "green",
    "ok": "green",
    "running": "cyan",
    "waiting": "yellow",
    "queued": "yellow",
    "drift": "yellow",
    "unknown": "yellow",
    "interrupted": "red",
    "failed": "red",
    "error": "red",
    "divergence": "red",
    "quarantined": "red",
    "problem": "red",
    "dead": "red",
}
_LATE: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""DEL, the second set of control characters (C1), and those that turn the direction of writing around (bidi)."""
_CONTROLS: Final = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f]|\r(?!\n)|{_LATE.pattern}")
"""These, and the first set (C0) but for tabs and line breaks."""


class Terminal:
    """One output stream."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live = stream.isatty()
        self._styled = self.live and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def paint(self, text: str, *styles: Style) -> str:
        """The text in a style, where there is one."""
        if not self._styled or not text or not styles:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def status(self, word: str, shown: str | None = None) -> str:
        """A status in its colour."""
        style = _STATUSES.get(word)
        text = word if shown is None else shown
        return text if style is None else self.paint(text, style)

    def write(self, text: str) -> None:
        """Write at once, not when a buffer is full. What could drive a terminal is escaped, but for our own styles."""
        self.exactly(_without(text, _LATE if self.live else _CONTROLS))

    def exactly(self, text: str) -> None:
        """Write data as it is, for a program that reads it."""
        self.stream.write(text)
        self.stream.flush()

    def line(self, text: str = "") -> None:
        """One line."""
        self.write(f"{text}\n")

    def clean(self, text: str) -> str:
        """Words from outside, without what a terminal would obey."""
        return printable(text)


def stdout() -> Terminal:
    """Where answers go."""
    return Terminal(sys.stdout)


def stderr() -> Terminal:
    """Where remarks go."""
    return Terminal(sys.stderr)


def printable(text: str) -> str:
    """The text with escapes for control characters, except for line breaks and tabs."""
    return _without(text, _CONTROLS)


def one_line(text: str, width: int = 100) -> str:
    """The text on one line, cut to a width."""
    flat = printable(" ".join(text[: 4 * width].split()))
    return flat if len(flat) <= width else f"{flat[: width - 3]}..."


def _without(text: str, pattern: re.Pattern[str]) -> str:
    """The text with each character that matches as its JSON escape."""
    if text.isascii() and text.isprintable():
        return text
    return pattern.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def counted(number: int, noun: str) -> str:
    """A number of things: 1 step, 2 steps."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def diff_line(out: Terminal, text: str) -> str:
    """A line of a diff in its colour."""
    styles: dict[str, Style] = {"-": "red", "+": "green"}
    style = styles.get(text.lstrip()[:1])
    clean = printable(text)
    return clean if style is None else out.paint(clean, style)


def duration(ms: float) -> str:
    """A span of time as people say it."""
    seconds = ms / 1000
    if seconds < 1:
        return f"{ms:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    for size, unit, below, part in ((3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            if seconds >= 48 * 3600:
                return f"{seconds / 86_400:.0f} d"
            return f"{seconds // size:.0f} {unit} {seconds % size // below:.0f} {part}"
    return f"{seconds:.0f} s"


def table(rows: list[list[str]], painted: list[list[str]]) -> list[str]:
    """Columns, aligned by the plain text of each cell and shown in its painted form."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines: list[str] = []
    for row, shown in zip(rows, painted, strict=True):
        cells = [show + " " * (width - len(cell)) for cell, show, width in zip(row, shown, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def tell(found: Sequence[object], rows: Callable[[Terminal], Iterable[str]], *, nothing: str, as_json: bool) -> None:
    """Print what was found: as one JSON list, or as `rows` of text; `nothing` is said where nothing was."""
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(found).decode())
    elif found:
        out.write("".join(f"{line}\n" for line in rows(out)))
    else:
        out.line(nothing)


def status_table(out: Terminal, headings: list[str], rows: list[list[str]], column: int = 2) -> list[str]:
    """Rows under their headings; in one `column` stands a status, which is shown in its colour."""
    painted = [[*row[:column], out.status(row[column]), *row[column + 1 :]] for row in rows]
    return table([headings, *rows], [[out.paint(word, "bold") for word in headings], *painted])


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
