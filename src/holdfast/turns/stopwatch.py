"""How long the turns of a session were worked on, by its records. Pure.

A turn is worked on from the record that begins or resumes it to the one that parks or ends it. Nobody knows when a
process died that wrote neither: its time counts up to its last record, and the time until the turn is resumed does not.
A clock that was set back counts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.records import Ended, Parked, Resumed, Started
from holdfast.turns.keys import input_of

if TYPE_CHECKING:
    from holdfast.records import Record


class Stopwatch:
    """Fed with the records of one session, in order."""

    __slots__ = ("_run", "_since", "total")

    def __init__(self) -> None:
        self.total = 0
        """Milliseconds in all, up to the last record."""
        self._run = ""
        """The turn that is worked on; empty when there is none."""
        self._since = 0

    def copy(self) -> Stopwatch:
        """One that goes on by itself from here."""
        made = Stopwatch()
        made.total, made._run, made._since = self.total, self._run, self._since
        return made

    def take(self, record: Record) -> tuple[int, int] | None:
        """From when to when was worked with this record; None where it is not about that."""
        kind = type(record)
        if kind is Started or kind is Resumed:
            self._begin(getattr(record, "run", ""), record.at)
            return None
        if not self._run:
            return None
        since, self._since = self._since, record.at
        if (kind is Parked or kind is Ended) and getattr(record, "run", "") == self._run:
            self._run = ""
        if since >= record.at:
            return None
        self.total += record.at - since
        return since, record.at

    def stop(self) -> None:
        """Nothing is worked on any more: a fork begins here."""
        self._run = ""

    def last(self, now: int) -> int:
        """Up to when the total counts: the last record, while a turn is worked on; else now."""
        return min(self._since, now) if self._run else now

    def _begin(self, run: str, at: int) -> None:
        if input_of(run) is not None:
            self._run, self._since = run, at
