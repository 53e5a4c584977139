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
    return [placed for top in tops for placed in (Placed("", top), *_children(top, below, ""))]


def _children(line: Line, below: dict[str, list[Line]], before: str) -> Iterator[Placed]:
    found = below.get(line.id, [])
    for number, child in enumerate(found, 1):
        last = number == len(found)
        yield Placed(before + (LAST if last else MIDDLE), child)
        yield from _children(child, below, before + (_BELOW if last else _BESIDE))
