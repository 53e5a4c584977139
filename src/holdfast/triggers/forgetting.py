"""How much of what a trigger recorded may be forgotten. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.records import Cancelled, Done, Failed, Intended

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.records import Record


class Cut:
    """Finds the last record up to which nothing is needed: all is old, and nothing begun there goes on behind it."""

    def __init__(self, seq: int, before: int, last: int) -> None:
        self.seq = seq
        """Up to where it may be cut."""
        self._before = before
        self._last = last
        self._open: set[str] = set()

    def look(self, entries: Iterable[tuple[int, Record]]) -> bool:
        """Look at the next records; whether it may go on behind them."""
        for seq, record in entries:
            if record.at >= self._before or seq > self._last:
                return False
            match record:
                case Intended():
                    self._open.add(record.key)
                case Done() | Failed() | Cancelled():
                    self._open.discard(record.key)
                case _:
                    pass
            if not self._open:
                self.seq = seq
        return True
