"""Following a stream of events: records from the store, and the live events between them, in one order.

A live event carries the number of the last record before it. Whoever has shown all records up to there shows the live
event next; whoever has not, shows the records first. So the order is the same for everybody, however slow.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import CursorInvalid, JournalMissing
from holdfast.events import Event, Gap, LiveEvent, events_of
from holdfast.runtime.live import Ring, number_of
from holdfast.runtime.reading import fetched
from holdfast.runtime.watch import ANY, Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.clock import Clock
    from holdfast.records import Record
    from holdfast.store import Store

WHOLE: Final = -1
_SESSION: Final = re.compile(r"(\d{1,18})(?:\.(\d{1,9}))?(?:~([0-9a-f]{8})\.(\d{1,18}))?\Z", re.ASCII)
_STORE: Final = re.compile(r"p(\d{1,18})(?:\.(\d{1,9}))?(~)?\Z", re.ASCII)


class Cursor(NamedTuple):
    """A place in a stream: the last record, the last of its events that was seen, and the last live event behind."""

    place: int
    seen: int = WHOLE
    ring: str | None = None
    number: int = 0


def session_cursor(given: object) -> Cursor:
    """The cursor of an event of a session; a number is the sequence of a record."""
    if type(given) is int and given >= 0:
        return Cursor(given)
    found = _SESSION.match(given) if type(given) is str else None
    if found is None:
        raise CursorInvalid(given, "it is no cursor of a session")
    place, index, ring, number = found.groups()
    return Cursor(int(place), WHOLE if index is None else int(index), ring, int(number or 0))


def store_cursor(given: object) -> Cursor:
    """The cursor of an event of a runtime; a number is a position in the store."""
    if type(given) is int and given >= 0:
        return Cursor(given)
    found = _STORE.match(given) if type(given) is str else None
    if found is None:
        raise CursorInvalid(given, "it is no cursor of a runtime")
    place, index, live = found.groups()
    return Cursor(int(place), WHOLE if index is None else int(index), live)


class Rings:
    """The rings of the sessions that are driven here."""

    def __init__(self) -> None:
        self._rings: dict[str, Ring] = {}

    def get(self, session: str) -> Ring | None:
        """The ring of a session that is driven here."""
        return self._rings.get(session)

    def add(self, ring: Ring) -> None:
        """A drive begins."""
        self._rings[ring.session] = ring

    def remove(self, ring: Ring) -> None:
        """A drive is over. Whoever still reads the ring keeps it."""
        if self._rings.get(ring.session) is ring:
            del self._rings[ring.session]

    def __iter__(self) -> Iterator[Ring]:
        return iter(list(self._rings.values()))


class _Live:
    """One reader's place among the live events of one session."""

    def __init__(self, session: str, rings: Rings, cursor: Cursor, clock: Clock) -> None:
        self._clock = clock
        self._session = session
        self._rings = rings
        self._since = cursor.place
        self._ring = rings.get(session)
        self._number = 0
        self._missing = False
        if cursor.ring is not None:
            self._resume(cursor)

    def _resume(self, cursor: Cursor) -> None:
        ring = self._ring
        if ring is None or ring.id != cursor.ring or ring.first > cursor.number + 1:
            self._missing = True
        else:
            self._number = cursor.number

    def upto(self, seq: int) -> Iterator[LiveEvent]:
        """Live events that come before the record behind `seq`."""
        if self._missing:
            self._missing = False
            yield self._gap(seq, "the live events behind this cursor are not here any more")
        while True:
            ring = self._ring
            if ring is not None:
                yield from self._of(ring, seq)
            newest = self._rings.get(self._session)
            if newest is ring or newest is None:
                return
            self._ring, self._number = newest, 0

    def _of(self, ring: Ring, seq: int) -> Iterator[LiveEvent]:
        if ring.first > self._number + 1 and ring.lost >= self._since:
            yield self._gap(seq, "the reader was slower than the live events")
        self._number = max(self._number, ring.first - 1)
        for event in ring.after(self._number, seq):
            self._number = number_of(event)
            if event.seq >= self._since:
                yield event

    def _gap(self, seq: int, reason: str) -> Gap:
        return Gap(
            session=self._session, turn=None, at=self._clock.read().wall, seq=seq, cursor=str(seq), reason=reason
        )


async def follow_session(store: Store, watch: Watch, rings: Rings, session: str, after: Cursor) -> AsyncIterator[Event]:
    """All events of a session behind a cursor: those that are there, then those to come, without an end."""
    live = _Live(session, rings, after, store.clock)
    seq = after.place if after.seen == WHOLE else after.place - 1
    while True:
        version = store.version
        try:
            entries = await store.read(session, after=seq)
        except JournalMissing:
            entries = []
        for entry in entries:
            for event in live.upto(seq):
                yield event
            seq = entry.seq
            found = await _events(store, session, seq, entry.record, str(seq))
            for event in found if seq > after.place else found[after.seen + 1 :]:
                yield event
        if entries:
            continue
        for event in live.upto(seq):
            yield event
        await watch.beyond(session, seq, version)


async def follow_store(store: Store, watch: Watch, rings: Rings, after: Cursor) -> AsyncIterator[Event]:
    """All events of all sessions behind a cursor, in the order of their commit, without an end."""
    pos = after.place if after.seen == WHOLE else after.place - 1
    lives = _Lives(rings, await store.heads([ring.session for ring in rings]), store.clock)
    if after.ring is not None:
        now = store.clock.read().wall
        yield Gap(session="", turn=None, at=now, seq=0, cursor=f"p{pos}", reason="live events may be missing here")
    while True:
        version = store.version
        entries = await store.feed(after=pos)
        for entry in entries:
            for event in lives.before(entry.journal, entry.seq):
                yield _moved(event, pos)
            pos = entry.pos
            if entry.record is None:
                continue  # it can't be trusted; its session is stopped with a report
            found = await _events(store, entry.journal, entry.seq, entry.record, f"p{pos}")
            for event in found if pos > after.place else found[after.seen + 1 :]:
                yield event
        if entries:
            continue
        for event in lives.rest():
            yield _moved(event, pos)
        await watch.beyond(ANY, pos, version)


class _Lives:
    """One reader's places among the live events of all sessions that are driven here, and nothing about others."""

    def __init__(self, rings: Rings, shown: dict[str, int], clock: Clock) -> None:
        self._clock = clock
        self._rings = rings
        self._shown = shown
        self._lives: dict[str, _Live] = {}

    def before(self, session: str, seq: int) -> Iterator[LiveEvent]:
        """Live events that come before a record, which is shown next."""
        if self._rings.get(session) is not None or session in self._lives:
            yield from self._of(session, seq - 1).upto(seq - 1)
            self._shown[session] = seq

    def rest(self) -> Iterator[LiveEvent]:
        """Live events behind the last records."""
        for ring in self._rings:
            seq = self._shown.setdefault(ring.session, ring.base)
            yield from self._of(ring.session, seq).upto(seq)
        for session in [name for name in self._shown if self._rings.get(name) is None]:
            del self._shown[session]
            self._lives.pop(session, None)

    def _of(self, session: str, since: int) -> _Live:
        live = self._lives.get(session)
        if live is None:
            live = self._lives[session] = _Live(session, self._rings, Cursor(since), self._clock)
        return live


def _moved(event: LiveEvent, pos: int) -> LiveEvent:
    """A live event in the stream of a runtime: one can go on behind the last record before it."""
    return msgspec.structs.replace(event, cursor=f"p{pos}~")


async def _events(store: Store, session: str, seq: int, record: Record, place: str) -> list[Event]:
    if getattr(record, "blob", None) is not None:
        record = await fetched(store, record)
    return events_of(session, seq, record, place)
