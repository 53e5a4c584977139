"""Whether a JSON object that comes in pieces is all there, without reading it anew with each piece. Pure."""

from __future__ import annotations

import re
from typing import Final

from holdfast.models.reading import arguments_in

_OUTSIDE: Final = re.compile(r'["{}]')
_IN_TEXT: Final = re.compile(r'["\\]')
_FEW: Final = 4
"""Pieces in which "null" may come."""


class ObjectEnd:
    """How far the pieces of a text have been looked at, and whether they end an object."""

    __slots__ = ("_depth", "_escaped", "_over", "_quoted", "_seen", "_whole")

    def __init__(self) -> None:
        self._seen = 0
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._over = False
        """Whether as many braces were closed as were opened."""
        self._whole: bool | None = None
        """Whether that is an object; None as long as nobody had to read it."""

    def reached(self, pieces: list[str]) -> bool:
        """Whether `pieces`, which only ever grow at their end, are an object, or the null that stands for an empty one.

        Each piece is looked at once, and the text is read once.
        """
        while self._seen < len(pieces):
            self._look_at(pieces[self._seen])
            self._seen += 1
        if not self._over:
            return len(pieces) <= _FEW and "".join(pieces).strip() == "null"
        if self._whole is None:
            self._whole = arguments_in("".join(pieces))[0] is not None
        return self._whole

    def _look_at(self, piece: str) -> None:
        place = 0
        if self._escaped and piece:
            place, self._escaped = 1, False
        while not self._over:
            found = (_IN_TEXT if self._quoted else _OUTSIDE).search(piece, place)
            if found is None:
                return
            place = found.end()
            match found[0]:
                case '"':
                    self._quoted = not self._quoted
                case "\\":
                    self._escaped = place == len(piece)
                    place += 1
                case "{":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    self._over = self._depth <= 0
        if piece[place:].strip():
            self._whole = False  # nothing may follow an object
