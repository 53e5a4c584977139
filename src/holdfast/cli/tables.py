"""Listings: rows for people, JSON for scripts, and a word where there is nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.terminal import stdout, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.cli.terminal import Terminal


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
