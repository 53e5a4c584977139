"""Printing: styles on a terminal, tables, durations, and escapes for text that could control a terminal.

Output to a pipe may reach a terminal later (`holdfast show s | less`), so control characters are escaped there, too.
The escapes are those of JSON, so printed JSON stays JSON of the same value.
"""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final, Literal, TextIO, TypeAlias, TypeVar

import msgspec

from holdfast.clock import wall_time

T = TypeVar("T")
Columns: TypeAlias = "Mapping[str, Callable[[T], str]]"
"""The columns of a table: the text of a cell by heading."""
Style = Literal["bold", "dim", "red", "green", "yellow", "cyan"]
_CODES: Final[dict[Style, str]] = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_STYLED: Final = re.compile(r"\x1b\[[\d;]+m")
_STATUSES: Final[dict[str, Style]] = {
    **dict.fromkeys(("completed", "ok"), "green"),
    **dict.fromkeys(("running",), "cyan"),
    **dict.fromkeys(("waiting", "queued", "drift", "unknown"), "yellow"),
    **dict.fromkeys(("interrupted", "failed", "error", "divergence", "quarantined", "problem", "dead"), "red"),
}
_C1_AND_BIDI: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""DEL, the C1 control characters, and those that change the direction of writing."""
_CONTROLS: Final = re.compile(rf"[\x00-\x08\x0b\x0c\x0e-\x1f]|\r(?!\n)|{_C1_AND_BIDI.pattern}")
"""The same and the C0 control characters, except tabs and line breaks."""


class Terminal:
    """An output stream, which is a terminal or not."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live = stream.isatty()
        self._styled = self.live and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def paint(self, text: str, *styles: Style) -> str:
        """Style the text if this is a terminal with colours."""
        if not self._styled or not text or not styles:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def status(self, word: str, shown: str | None = None) -> str:
        """A status in its colour; `shown` is printed in its place."""
        style = _STATUSES.get(word)
        text = word if shown is None else shown
        return text if style is None else self.paint(text, style)

    def write(self, text: str) -> None:
        """Write and flush. Escapes control characters; on a terminal, all but our own styles."""
        self.write_raw(_escape(text, _C1_AND_BIDI if self.live else _CONTROLS))

    def write_raw(self, text: str) -> None:
        """Write data unchanged, for a program that reads it."""
        self.stream.write(text)
        self.stream.flush()

    def line(self, text: str = "") -> None:
        self.write(f"{text}\n")

    def lines(self, lines: Iterable[str]) -> None:
        """Write several lines at once."""
        self.write("".join(f"{line}\n" for line in lines))

    def json(self, value: object) -> None:
        """Write a value as JSON on one line."""
        self.line(json_text(value))


def stdout() -> Terminal:
    """The stream for answers."""
    return Terminal(sys.stdout)


def stderr() -> Terminal:
    """The stream for remarks and errors."""
    return Terminal(sys.stderr)


def ask_yes_no(question: str, *, usual: bool = False) -> bool:
    """Ask the person at the terminal; an empty answer is the usual one, the end of the input is a no."""
    try:
        answer = input(f"{question} [{'Y/n' if usual else 'y/N'}] ").strip().lower()
    except EOFError:
        stdout().line()
        return False
    return usual if not answer else answer in {"y", "yes"}


class ProgressLine:
    """A counter on the error stream if that is a terminal; otherwise it prints nothing."""

    def __init__(self, text: str) -> None:
        self._err = stderr()
        self._text = text

    def show(self, *numbers: int) -> None:
        """Show the numbers in the text; only every 100th time, by the first of them."""
        if self._err.live and numbers[0] % 100 == 0:
            self._err.write(f"\r{self._text.format(*numbers)} ")

    def clear(self) -> None:
        if self._err.live:
            self._err.write("\r\x1b[K")


# ---- tables ----------------------------------------------------------------------------------------------------------


def table_of(
    out: Terminal,
    found: Iterable[T],
    columns: Columns[T],
    paint: Callable[[str], str] | None = None,
    *,
    painted: Container[str] = ("STATUS", "STATE"),
) -> list[str]:
    """A table below bold headings. The cells of the `painted` columns are painted, by default as statuses."""
    rows = [
        [(paint or out.status if name in painted else str)(cell(one)) for name, cell in columns.items()]
        for one in found
    ]
    return table([[out.paint(name, "bold") for name in columns], *rows])


def table(rows: list[list[str]]) -> list[str]:
    """Align columns by the text of the cells without its styles."""
    lengths = [[len(_STYLED.sub("", cell)) for cell in row] for row in rows]
    widths = [max(column) for column in zip(*lengths, strict=True)]
    return [
        "  ".join(
            cell + " " * (width - length) for cell, width, length in zip(row, widths, taken, strict=True)
        ).rstrip()
        for row, taken in zip(rows, lengths, strict=True)
    ]


# ---- words -----------------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Escape control characters, except line breaks and tabs."""
    return _escape(text, _CONTROLS)


def _escape(text: str, pattern: re.Pattern[str]) -> str:
    if text.isascii() and text.isprintable():
        return text
    return pattern.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json_text(value: object) -> str:
    """A value as JSON on one line."""
    return msgspec.json.encode(value).decode()


def one_line(text: str, width: int = 100) -> str:
    """The text on one line, cut to a width."""
    flat = printable(" ".join(text[: 4 * width].split()))
    return flat if len(flat) <= width else f"{flat[: width - 3]}..."


def reason_text(shown: str, status: str, *reasons: str) -> str:
    """A status in its `shown` form, with the reasons that add to it."""
    return ": ".join([shown, *(reason for reason in reasons if reason not in {"", status})])


def count_noun(number: int, noun: str) -> str:
    """A number and its noun: 1 step, 2 steps."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def diff_line(out: Terminal, text: str) -> str:
    """A line of a diff in its colour."""
    styles: dict[str, Style] = {"-": "red", "+": "green"}
    style = styles.get(text.lstrip()[:1])
    clean = printable(text)
    return clean if style is None else out.paint(clean, style)


def duration(ms: float) -> str:
    """A span of time for people: 20 ms, 1.5 s, 3 m 20 s, 2 h 5 m, 3 d."""
    seconds = ms / 1000
    if seconds < 1:
        return f"{ms:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds >= 48 * 3600:
        return f"{seconds / 86_400:.0f} d"
    size, unit, below, part = (3600, "h", 60, "m") if seconds >= 3600 else (60, "m", 1, "s")
    return f"{seconds // size:.0f} {unit} {seconds % size // below:.0f} {part}"


def ago(at: int) -> str:
    """The time since `at`, in wall milliseconds."""
    return f"{duration(max(wall_time() - at, 0))} ago"


def time_left(at: int) -> str:
    """The time until `at`, in wall milliseconds."""
    return duration(max(at - wall_time(), 0))


# ---- text from outside -----------------------------------------------------------------------------------------------

WIDTH: Final = 100
"""Longer JSON is printed on several lines."""
BAR: Final = "| "
"""Prefix of text from outside, so that it can't pass for a line of ours."""
CONTINUATION: Final = ": "
"""Prefix of the rest of a broken line."""
_LEAST_COLUMNS: Final = 20
_INVISIBLE: Final = frozenset(
    [
        *(chr(code) for code in (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180F, 0x2800, 0x3164, 0xFFA0)),
        *map(chr, range(0x180B, 0x180E)),
        *map(chr, range(0xFE00, 0xFE10)),
        *map(chr, range(0xE0000, 0xE1000)),
    ]
)
"""Fillers, joiners, selectors and tags: letters or marks to Unicode, but without a glyph."""


def escape_invisible(text: str) -> str:
    """Replace every character without a visible glyph, also line breaks and unusual spaces, by its JSON escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(json.dumps(found)[1:-1] if _is_invisible(found) else found for found in text)


def format_json(value: object, width: int = WIDTH) -> str:
    """JSON on one line, or on several if it is longer than `width`; invisible characters are escaped."""
    flat = escape_invisible(json.dumps(value, ensure_ascii=False))
    if len(flat) <= width:
        return flat
    return "\n".join(map(escape_invisible, json.dumps(value, ensure_ascii=False, indent=2).split("\n")))


def fence_lines(lines: Iterable[str], columns: int | None) -> Iterator[str]:
    """Lines behind a bar, broken at `columns`: a line that the terminal wraps would have no bar."""
    for line in lines:
        parts = [line] if columns is None else list(_break(line, max(columns - len(BAR), _LEAST_COLUMNS)))
        yield f"{BAR}{parts[0]}"
        for part in parts[1:]:
            yield f"{CONTINUATION}{part}"


def _break(line: str, columns: int) -> Iterator[str]:
    part, width = "", 0
    for found in line:
        needs = 2 if unicodedata.east_asian_width(found) in {"W", "F"} else 1
        if width + needs > columns:
            yield part
            part, width = "", 0
        part, width = part + found, width + needs
    yield part


def _is_invisible(character: str) -> bool:
    # C: control, format (bidi, zero width), surrogates, private, unassigned. Z: line breaks and spaces.
    category = unicodedata.category(character)
    return category[0] == "C" or (category[0] == "Z" and character != " ") or character in _INVISIBLE
