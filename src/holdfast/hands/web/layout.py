"""Text in blocks: what a page says is put here piece by piece, and comes out as lines. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_DEEPEST: Final = 8
"""How deep lists and quotes are shown; what is deeper stands at this depth."""
_SPACE: Final = re.compile(r"[ \t\n\r\f\x0b\xa0]+")
_TICKS: Final = re.compile(r"`{3,}")


@dataclass(slots=True)
class _Table:
    rows: list[list[str]] = field(default_factory=list[list[str]])
    in_cell: bool = False
    plain: bool = False
    """Made for looks: it holds more than cells can show, so its cells are shown one after another."""


@dataclass(slots=True)
class _Link:
    begin: int
    target: str | None


class Layout:
    """Blocks of text below each other. `size` is about how much there is."""

    def __init__(self) -> None:
        self.size = 0
        self._out: list[str] = []
        self._inline: list[str] = []
        self._lists: list[int | None] = []
        """Of each open list the next number; None where it has none."""
        self._quotes = 0
        self._marker = ""
        self._loose = True
        """Whether a blank line comes before the next block."""
        self._code: list[str] | None = None
        self._tables: list[_Table] = []
        self._link: _Link | None = None
        self._last_quotes = 0

    def finish(self) -> str:
        """All of it."""
        self.close_code()
        while self._tables:
            self.close_table()
        self.block()
        return "\n".join(self._out).strip("\n")

    # ---- inside a line ----

    def chars(self, text: str) -> None:
        """Text, whose white space means nothing unless it is code."""
        self.size += len(text)
        if self._code is not None:
            self._code.append(text)
        else:
            self._inline.append(_SPACE.sub(" ", text))

    def line_break(self) -> None:
        """Go on in the next line."""
        self._piece("\n")

    def tick(self) -> None:
        """Code within a line begins or ends."""
        if self._code is None:
            self._piece("`")

    def open_link(self, target: str | None) -> None:
        """What follows leads to `target`."""
        self.close_link()
        self._link = _Link(len(self._inline), target)

    def close_link(self) -> None:
        """What follows does not any more."""
        if self._link is not None:
            self._wrap(self._link)
            self._link = None

    # ---- blocks ----

    def block(self) -> None:
        """What was said so far is a block of its own."""
        if self._code is not None:
            return
        if self._tables and self._tables[-1].in_cell and not self._tables[-1].plain:
            self._piece(" ")
            return
        text = self._taken()
        if text:
            self._put(text.split("\n"))

    def end_block(self) -> None:
        """What was said so far is a block, and what was announced for it is said, even if it said nothing."""
        self.block()
        self._marker = ""

    def heading(self, level: int) -> None:
        """The next block is a heading."""
        self._leave_cells()
        self._marker = "#" * level + " "
        self._loose = True

    def definition(self) -> None:
        """The next block explains the one before."""
        self._marker = ": "
        self._loose = False

    def rule(self) -> None:
        """A line across."""
        self.block()
        if self._tables and self._tables[-1].in_cell and not self._tables[-1].plain:
            return
        self._loose = True
        self._put(["---"])

    def open_list(self, first: int | None) -> None:
        """A list begins, with numbers from `first` on or without."""
        self._lists.append(first)

    def item(self) -> None:
        """The next block is a point of the innermost list."""
        number = self._lists[-1] if self._lists else None
        if number is not None:
            self._lists[-1] = number + 1
        self._marker = "- " if number is None else f"{number}. "
        self._loose = self._loose and len(self._lists) <= 1

    def close_list(self) -> None:
        """The innermost list ends."""
        self.block()
        if self._lists:
            self._lists.pop()
        self._marker = ""
        self._loose = not self._lists

    def open_quote(self) -> None:
        """What follows are the words of somebody else."""
        self._quotes += 1
        self._loose = True

    def close_quote(self) -> None:
        """Until here."""
        self.block()
        self._quotes = max(self._quotes - 1, 0)
        self._loose = True

    def open_code(self) -> None:
        """What follows keeps its lines and its white space."""
        self._leave_cells()
        if self._code is None:
            self._code = []

    def close_code(self) -> None:
        """Until here."""
        if self._code is None:
            return
        text, self._code = "".join(self._code).replace("\r\n", "\n").strip("\n"), None
        if not text.strip():
            return
        fence = "`" * max((len(ticks) + 1 for ticks in _TICKS.findall(text)), default=3)
        self._put([fence, *text.split("\n"), fence])

    # ---- tables ----

    def open_table(self) -> None:
        """A table begins. One within a cell of another makes that other one a matter of looks."""
        self._leave_cells()
        self._tables.append(_Table())

    def row(self) -> None:
        """A row begins."""
        if self._tables and (not self._tables[-1].rows or self._tables[-1].rows[-1]):
            self._tables[-1].rows.append([])

    def open_cell(self) -> None:
        """A cell begins."""
        if self._tables:
            self.block()
            self._tables[-1].in_cell = True

    def close_cell(self) -> None:
        """A cell ends."""
        if not self._tables or not self._tables[-1].in_cell:
            return
        table = self._tables[-1]
        if table.plain:
            self.block()
        else:
            table.rows = table.rows or [[]]
            table.rows[-1].append(self._taken().replace("\n", " ").replace("|", "\\|"))
        table.in_cell = False

    def close_table(self) -> None:
        """The innermost table ends, and is shown."""
        self.close_cell()
        self.block()
        if self._tables:
            self._show(self._tables.pop())

    def _leave_cells(self) -> None:
        """Something comes that no cell can hold: the table around it, and so those around that, are there for looks."""
        if not self._tables or self._tables[-1].plain:
            return
        table = self._tables[-1]
        said = self._taken() if table.in_cell else ""
        table.plain = True
        self._show(table)
        table.rows = []
        if said:
            self._put(said.split("\n"))

    def _show(self, table: _Table) -> None:
        rows = [row for row in table.rows if any(row)]
        if not rows:
            return
        width = max(len(row) for row in rows)
        self._loose = True
        if width == 1 or table.plain or len(rows) == 1:
            for row in rows:
                self._put([" ".join(cell for cell in row if cell)])
                self._loose = False
        else:
            # A row of few cells is not filled up: a page could have one long row and very many short ones.
            lines = [f"| {' | '.join(row)} |" for row in rows]
            self._put([lines[0], f"|{' --- |' * width}", *lines[1:]])
        self._loose = True

    # ---- lines ----

    def _piece(self, text: str) -> None:
        if self._code is not None:
            self._code.append(text)
        else:
            self._inline.append(text)
        self.size += len(text)

    def _taken(self) -> str:
        """What was said since the last block, as lines without needless white space."""
        if self._link is not None:
            told = self._wrap(self._link)
            self._link = _Link(0, None if told else self._link.target)
        said, self._inline = "".join(self._inline), []
        lines = [" ".join(line.split()) for line in said.split("\n")]
        return "\n".join(line for line in lines if line)

    def _wrap(self, link: _Link) -> bool:
        """Show where the words of a link lead, if there are words yet; a target is told once."""
        said = "".join(self._inline[link.begin :])
        words = " ".join(said.split())
        if link.target is None or not words:
            return False
        before = " " if said[:1].isspace() else ""
        after = " " if said[-1:].isspace() else ""
        self._inline[link.begin :] = [f"{before}[{words}]({link.target}){after}"]
        self.size += len(link.target) + 4
        return True

    def _put(self, lines: list[str]) -> None:
        quotes, depth = min(self._quotes, _DEEPEST), min(len(self._lists), _DEEPEST)
        quote, hanging = "> " * quotes, "  " * depth
        marker, self._marker = self._marker, ""
        if marker.startswith("#"):
            lines = [" ".join(lines)]
        if self._loose and self._out:
            self._out.append(("> " * min(quotes, self._last_quotes)).rstrip())
        self._out.append(f"{quote}{hanging[2:] if marker else hanging}{marker}{lines[0]}")
        self._out.extend(f"{quote}{hanging}{line}".rstrip() for line in lines[1:])
        self.size += len(quote) + len(hanging)
        self._last_quotes = quotes
        self._loose = not self._lists
