"""Words for people: styles only on a terminal, nothing that could drive the terminal from outside."""

from __future__ import annotations

import os
import sys
import unicodedata
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
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
        """Now, not when a buffer is full."""
        self.stream.write(text)
        self.stream.flush()

    def line(self, text: str = "") -> None:
        """One line."""
        self.write(f"{text}\n")

    def clean(self, text: str) -> str:
        """Words from outside: on a terminal, without what a terminal would obey."""
        return printable(text) if self.live else text


def stdout() -> Terminal:
    """Where answers go."""
    return Terminal(sys.stdout)


def stderr() -> Terminal:
    """Where remarks go."""
    return Terminal(sys.stderr)


def printable(text: str) -> str:
    """The text without control characters, except for line breaks and tabs."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(found if found in "\n\t" or not _controls(found) else "\ufffd" for found in text)


def one_line(text: str, width: int = 100) -> str:
    """The text on one line, cut to a width."""
    flat = printable(" ".join(text[: 4 * width].split()))
    return flat if len(flat) <= width else f"{flat[: width - 3]}..."


def _controls(character: str) -> bool:
    # Control characters, and those that turn the direction of writing around.
    return (
        unicodedata.category(character) == "Cc" or character in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )


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
