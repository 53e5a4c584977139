"""Live events of the sessions that are being driven here: a bounded ring for each, shared by all who watch.

Publishing never waits. A reader that is slower than the ring loses live events, and is told so; it never loses a
record, because records are read from the store.
"""

from __future__ import annotations

import secrets
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from holdfast.events import LiveEvent, ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock

MAX_EVENTS: Final = 2_048
"""Live events that are kept for one session."""
MAX_AGE_MS: Final = 120_000
"""How long a live event is kept."""
MAX_MERGED: Final = 4_096
"""Deltas that nobody has read yet are joined, up to so many characters."""


class _Item(msgspec.Struct, gc=False):
    """A live event that nobody may ever look at: the event itself is made when somebody does."""

    number: int
    wall: int
    mono: int
    kind: type[LiveEvent]
    turn: str
    seq: int
    fields: dict[str, Any]


class Ring:
    """The live events of one drive of one session, numbered from 1."""

    def __init__(self, session: str, base: int, clock: Clock, touched: Callable[[str], None]) -> None:
        self.session = session
        self.base = base
        """Where the journal ended when the drive began."""
        self.closed = False
        """The drive is over: nothing more comes."""
        self.last = 0
        """The number of the newest event."""
        self.lost = -1
        """The place of the newest event that is not here any more."""
        self._read_clock = clock.read
        self._touched = touched
        self._items: deque[_Item] = deque()
        self._read = 0

    @cached_property
    def id(self) -> str:
        """What tells this drive from others in cursors. Most are never looked at."""
        return secrets.token_hex(4)

    @cached_property
    def tag(self) -> str:
        """What tells the cursors of this session from those of others."""
        return tag_of(self.session)

    @property
    def first(self) -> int:
        """The number of the oldest event that is still here; one more than the newest when none is."""
        return self._items[0].number if self._items else self.last + 1

    def publish(self, kind: type[LiveEvent], turn: str, seq: int, fields: dict[str, Any]) -> None:
        """Show an event to whoever watches. `seq` is the last record that was submitted before it."""
        if (kind is TextDelta or kind is ReasoningDelta) and self._merged(kind, turn, seq, fields["text"]):
            return
        wall, mono, _ = self._read_clock()
        number = self.last = self.last + 1
        items = self._items
        items.append(_Item(number, wall, mono, kind, turn, seq, fields))
        if len(items) > MAX_EVENTS or items[0].mono < mono - MAX_AGE_MS:
            self._trim(mono)
        self._touched(self.session)

    def _merged(self, kind: type[LiveEvent], turn: str, seq: int, text: str) -> bool:
        """Join a delta with the one before, if nobody has read that yet."""
        if not self._items or self._read >= self.last:
            return False
        self.trim()
        if not self._items:
            return False
        item = self._items[-1]
        if item.kind is not kind or (item.turn, item.seq) != (turn, seq):
            return False
        words: str = item.fields["text"]
        if len(words) + len(text) > MAX_MERGED:
            return False
        item.fields = {"text": words + text}
        return True

    def _trim(self, now: int) -> None:
        items = self._items
        while len(items) > MAX_EVENTS or (items and items[0].mono < now - MAX_AGE_MS):
            self.lost = items.popleft().seq

    def trim(self) -> None:
        """Let go of what is too old."""
        self._trim(self._read_clock().mono)

    def next(self, number: int, seq: int) -> tuple[int, LiveEvent] | None:
        """The event behind `number`, with its number, unless a record above `seq` comes before it."""
        index = max(number + 1 - self.first, 0)
        if index >= len(self._items) or self._items[index].seq > seq:
            return None
        item = self._items[index]
        self._read = max(self._read, item.number)
        return item.number, self._event(item)

    def _event(self, item: _Item) -> LiveEvent:
        cursor = f"{item.seq}~{self.id}.{item.number}@{self.tag}"
        return item.kind(session=self.session, turn=item.turn, at=item.wall, seq=item.seq, cursor=cursor, **item.fields)


def tag_of(name: str) -> str:
    """What tells the cursors of one session from those of another."""
    return f"{crc32(name.encode()):08x}"
