"""Sessions as a tree: each below the one that it works for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.cli.listing import Line

MIDDLE: Final = "|- "
LAST: Final = "`- "
_BESIDE: Final = "|  "
_BELOW: Final = "   "


class Placed(NamedTuple):
    """A line, and what is drawn before its id."""

    drawn: str
    line: Line


def arranged(lines: Sequence[Line]) -> list[Placed]:
    """The lines with those below them, otherwise in the order they have. One whose parent is not there is on top."""
    known = {line.id for line in lines}
    below: dict[str, list[Line]] = {}
    for line in lines:
        if line.parent is not None and line.parent in known:
            below.setdefault(line.parent, []).append(line)
    tops = [line for line in lines if line.parent is None or line.parent not in known]
    placed = [each for top in tops for each in (Placed("", top), *_children(top, below, ""))]
    shown = {each.line.id for each in placed}
    # Sessions that work for each other in a circle are below none that is on top: a tampered store may have such.
    return [*placed, *(Placed("", line) for line in lines if line.id not in shown)]


def _children(line: Line, below: dict[str, list[Line]], before: str) -> Iterator[Placed]:
    """What is below a line, at any depth."""
    todo = [(iter(enumerate(below.get(line.id, []), 1)), len(below.get(line.id, [])), before)]
    while todo:
        children, count, before = todo[-1]
        number, child = next(children, (0, None))
        if child is None:
            todo.pop()
            continue
        yield Placed(before + (LAST if number == count else MIDDLE), child)
        found = below.get(child.id, [])
        todo.append((iter(enumerate(found, 1)), len(found), before + (_BELOW if number == count else _BESIDE)))
