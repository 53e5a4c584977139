"""Live events of the sessions that are being driven here: a bounded ring for each, shared by all who watch.

Publishing never waits. A reader that is slower than the ring loses live events, and is told so; it never loses a
record, because records are read from the store.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from holdfast.clock import wall_of
from holdfast.events import LiveEvent, ReasoningDelta, TextDelta, ToolCallDelta

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.driving import LeasedJournal
    from holdfast.records import Record
    from holdfast.runtime.watch import TurnEnded, Watch

MAX_EVENTS: Final = 2_048
"""Live events that are kept for one session."""
MAX_AGE_MS: Final = 120_000
"""How long a live event is kept."""
BETWEEN: Final = 0.005
"""Seconds between two times that live events wake a reader: tokens that come faster are read together."""
PAGE: Final = 64
"""Live events that a reader takes at once."""
MAX_MERGED: Final = 4_096
"""Deltas that nobody has read yet are joined, up to so many characters."""
_PIECES: Final[dict[type[LiveEvent], str]] = {TextDelta: "text", ReasoningDelta: "text", ToolCallDelta: "arguments"}
"""The events that are pieces of a text, and the field that has the piece."""


class _Item(msgspec.Struct, gc=False):
    """A live event that nobody may ever look at: the event itself is made when somebody does."""

    at: int
    kind: type[LiveEvent]
    turn: str
    seq: int
    fields: dict[str, Any]


class Ring:
    """The live events of one drive of one session, numbered from 1.

    Their age is that of the wall clock, which they tell anyway. If that is set forward, some go before their time; if
    it is set back, some stay longer.
    """

    def __init__(self, ledger: LeasedJournal, clock: Clock, watch: Watch) -> None:
        self.session = ledger.journal
        self.base = ledger.head
        """Where the journal ended when the drive began."""
        self.closed = False
        """The drive is over: nothing more comes."""
        self.last = 0
        """The number of the newest event."""
        self.lost = -1
        """The place of the newest event that is not here any more."""
        self.ended: TurnEnded | None = None
        """The newest turn of this drive whose end was submitted."""
        self._ledger = ledger
        self._redactor = ledger.redactor
        self._wall = wall_of(clock)
        self._watch = watch
        self._items: deque[_Item] = deque()
        self._read = 0
        self._woken = 0.0
        """When those who watch were last woken for a live event, by the clock of the loop."""
        self._later: asyncio.TimerHandle | None = None
        """Wakes them for what has come since."""

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
        return self.last + 1 - len(self._items)

    @property
    def durable(self) -> int:
        """The number of the newest record that can be read from the store."""
        return self._ledger.head - self._ledger.behind

    def records(self, after: int) -> list[tuple[int, Record]] | None:
        """The durable records above `after` with their numbers; None if they are not all in memory any more."""
        recent, durable = self._ledger.recent, self.durable
        if not recent or recent[0][0] > after + 1:
            return None
        begin = after + 1 - recent[0][0]  # they are numbered without gaps
        return list(islice(recent, begin, max(begin, begin + durable - after)))

    def publish(self, kind: type[LiveEvent], turn: str, fields: dict[str, Any]) -> None:
        """Show an event to whoever watches, behind the last record that was submitted before it."""
        if self._redactor.active:
            fields = self._redactor.value(fields)
        seq = self._ledger.head
        if kind in _PIECES and self._read < self.last and self._joined(kind, turn, seq, fields):
            return
        now, items = self._wall(), self._items
        items.append(_Item(now, kind, turn, seq, fields))
        self.last += 1
        if len(items) > MAX_EVENTS or items[0].at < now - MAX_AGE_MS:
            self._trim(now)
        if self._later is None and self._watch.readers:
            self._wake_readers()

    def _wake_readers(self) -> None:
        """Wake those who watch: at once, or when `BETWEEN` has passed since the last time."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._woken >= BETWEEN:
            self._wake_now()
        else:
            self._later = loop.call_at(self._woken + BETWEEN, self._wake_now)

    def _wake_now(self) -> None:
        self._woken, self._later = asyncio.get_running_loop().time(), None
        self._watch.touch(self.session)

    def _joined(self, kind: type[LiveEvent], turn: str, seq: int, fields: dict[str, Any]) -> bool:
        """Join a delta with the one before, which nobody has read yet, if both are pieces of the same text."""
        item = self._items[-1] if self._items else None
        if item is None or item.kind is not kind or item.seq != seq or item.turn != turn:
            return False
        name, before = _PIECES[kind], item.fields
        if kind is ToolCallDelta and before["call_id"] != fields["call_id"]:
            return False
        words: str = before[name] + fields[name]
        if len(words) > MAX_MERGED or item.at < self._wall() - MAX_AGE_MS:
            return False
        item.fields = {**fields, name: words}
        return True

    def _trim(self, now: int) -> None:
        items = self._items
        while len(items) > MAX_EVENTS or (items and items[0].at < now - MAX_AGE_MS):
            self.lost = items.popleft().seq

    def trim(self) -> None:
        """Let go of what is too old."""
        self._trim(self._wall())

    def page(self, number: int, seq: int) -> list[LiveEvent]:
        """The next events behind `number`, up to `PAGE`, as far as no record above `seq` comes before them."""
        items, session = self._items, self.session
        ring, tag = self.id, self.tag
        found: list[LiveEvent] = []
        number = max(number, self.last - len(items))
        begin = number + len(items) - self.last
        for index in range(begin, min(begin + PAGE, len(items))):
            item = items[index]
            place = item.seq
            if place > seq:
                break
            number += 1
            cursor = f"{place}~{ring}.{number}@{tag}"
            found.append(
                item.kind(session=session, turn=item.turn, at=item.at, seq=place, cursor=cursor, **item.fields)
            )
        if found and number > self._read:
            self._read = number
        return found

    def end_of(self, turn: str | None, seq: int) -> TurnEnded | None:
        """How a turn ended whose last record is `seq`, if that was written here and is the newest that ended here."""
        ended = self.ended
        return ended if ended is not None and ended.run == turn and seq <= self.durable else None


def tag_of(name: str) -> str:
    """What tells the cursors of one session from those of another."""
    return f"{crc32(name.encode()):08x}"
