"""Following a stream of events: records from the store, and the live events between them, in one order.

A live event carries the number of the last record before it. Whoever has shown all records up to there shows the live
event next; whoever has not, shows the records first. So the order is the same for everybody, however slow.
"""

from __future__ import annotations

import re
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from holdfast.errors import CursorInvalid, JournalMissing
from holdfast.events import Event, Gap, LiveEvent
from holdfast.observed import events_of
from holdfast.runtime.live import Ring, tag_of
from holdfast.runtime.reading import fetched
from holdfast.runtime.watch import ANY, Watch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterator

    from holdfast.clock import Clock
    from holdfast.records import Record
    from holdfast.store import Store

WHOLE: Final = 1 << 30
"""All events of a record were seen."""
MAX_RINGS: Final = 4
"""Drives of one session whose live events a slow reader still gets."""
MAX_SESSIONS: Final = 1_024
"""Sessions whose live events a slow reader still gets."""
_SESSION: Final = re.compile(r"(\d{1,18})(?:\.(\d{1,9}))?(?:~([0-9a-f]{8})\.(\d{1,18}))?@([0-9a-f]{8})\Z", re.ASCII)
_STORE: Final = re.compile(r"p(\d{1,18})(?:\.(\d{1,9}))?(?:~([0-9a-f]{8})\.(\d{1,18}))?@([0-9a-f]{8})\Z", re.ASCII)


class Cursor(NamedTuple):
    """A place in a stream: the last record, the last of its events that was seen, and the last live event behind."""

    place: int
    seen: int = WHOLE
    ring: str | None = None
    number: int = 0


def session_cursor(given: object, session: str) -> Cursor:
    """The cursor of an event of a session; a number is the sequence of a record."""
    return _cursor(given, _SESSION, tag_of(session), "session")


def store_cursor(given: object, store: Store) -> Cursor:
    """The cursor of an event of a runtime; a number is a position in the store."""
    return _cursor(given, _STORE, tag_of(store.id), "runtime")


def _cursor(given: object, form: re.Pattern[str], tag: str, what: str) -> Cursor:
    if type(given) is int and 0 <= given < 1 << 62:
        return Cursor(given)
    found = form.match(given) if type(given) is str else None
    if found is None:
        raise CursorInvalid(given, f"it is no cursor of a {what}")
    place, seen, ring, number, whose = found.groups()
    if whose != tag:
        raise CursorInvalid(given, f"it comes from another {what}")
    return Cursor(int(place), WHOLE if seen is None else int(seen), ring, int(number or 0))


class Rings:
    """The rings of the sessions that are driven here, and who reads them."""

    def __init__(self) -> None:
        self._rings: dict[str, Ring] = {}
        self._readers: dict[str, list[_Reader]] = {}

    def get(self, session: str) -> Ring | None:
        """The ring of a session that is driven here."""
        return self._rings.get(session)

    def add(self, ring: Ring) -> None:
        """A drive begins; whoever watches gets its ring, and keeps it until it was read."""
        self._rings[ring.session] = ring
        for name in (ring.session, ANY):
            for reader in self._readers.get(name, ()):
                reader.offer(ring)

    def remove(self, ring: Ring) -> None:
        """A drive is over."""
        ring.closed = True
        if self._rings.get(ring.session) is ring:
            del self._rings[ring.session]

    def __iter__(self) -> Iterator[Ring]:
        return iter(list(self._rings.values()))

    @contextmanager
    def read_by(self, reader: _Reader, session: str) -> Generator[None]:
        """Offer new rings to a reader, as long as it reads."""
        readers = self._readers.setdefault(session, [])
        readers.append(reader)
        try:
            yield
        finally:
            readers.remove(reader)
            if not readers and self._readers.get(session) is readers:
                del self._readers[session]


class _Reader(Protocol):
    def offer(self, ring: Ring) -> None: ...


class _Live:
    """One reader's place among the live events of one session."""

    def __init__(self, session: str, since: int | None, clock: Clock) -> None:
        self._session = session
        self._since = since
        """Where the reader began; not known at first to one who reads all sessions."""
        self._clock = clock
        self._rings: deque[Ring] = deque()
        self._number = 0
        self._missing: str | None = None

    def offer(self, ring: Ring) -> None:
        """A drive begins."""
        self._rings.append(ring)
        if len(self._rings) > MAX_RINGS:
            self._rings.popleft()
            self._number = 0
            self._missing = "the reader was slower than the turns"

    def resume(self, cursor: Cursor) -> None:
        """Go on behind a live event, if it and those behind it are still here."""
        ring = self._rings[0] if self._rings else None
        if ring is None or ring.id != cursor.ring or ring.first > cursor.number + 1:
            self._missing = "the live events behind this cursor are not here any more"
        else:
            self._number = cursor.number

    def skip(self) -> None:
        """Go on behind what is there now."""
        if self._rings and self._rings[-1].last:
            self._number = self._rings[-1].last
            self._missing = "live events of other sessions may have come before"

    def upto(self, seq: int) -> Iterator[LiveEvent]:
        """Live events that come before the record behind `seq`."""
        since = self._since = seq if self._since is None else self._since
        if self._missing is not None:
            yield self._gap(seq, self._missing)
            self._missing = None
        while self._rings:
            ring = self._rings[0]
            while page := self._page(ring, since, seq):
                yield from page
            if not ring.closed or self._number < ring.last:
                return
            self._rings.popleft()
            self._number = 0

    def _page(self, ring: Ring, since: int, seq: int) -> list[LiveEvent]:
        """The next live events of a ring that are to be shown; none when all up to `seq` were."""
        while self._number < ring.last:
            ring.trim()
            gap: list[LiveEvent] = []
            if ring.first > self._number + 1:
                self._number = ring.first - 1
                if ring.lost >= since:
                    gap.append(self._gap(seq, "the reader was slower than the live events"))
            found = ring.page(self._number, seq)
            self._number += len(found)
            if found and found[0].seq < since:
                found = [event for event in found if event.seq >= since]
                if not (gap or found):
                    continue
            return gap + found if gap else found
        return []

    def _gap(self, seq: int, reason: str) -> Gap:
        cursor = f"{seq}@{tag_of(self._session)}"
        return Gap(session=self._session, turn=None, at=self._clock.read().wall, seq=seq, cursor=cursor, reason=reason)

    @property
    def done(self) -> bool:
        """Whether nothing is left to read and nothing can come."""
        return not self._rings and self._missing is None


async def follow_session(
    store: Store, watch: Watch, rings: Rings, session: str, after: Cursor
) -> AsyncGenerator[Event]:
    """All events of a session behind a cursor: those that are there, then those to come, without an end."""
    live = _Live(session, after.place, store.clock)
    with rings.read_by(live, session):
        ring = rings.get(session)  # before anything is awaited: a quick turn may be over by then
        if ring is not None:
            live.offer(ring)
        head = (await store.heads([session])).get(session, 0)
        if after.place > head:
            raise CursorInvalid(after.place, f"the session has {head} records")
        if after.ring is not None:
            live.resume(after)
        seq = after.place if after.seen == WHOLE else after.place - 1
        tag = tag_of(session)
        while True:
            ring = rings.get(session)
            version = None
            if ring is None or ring.durable > seq:
                version = store.version
                entries = None if ring is None else ring.records(seq)
                if entries is None:
                    entries = await _stored(store, session, seq)
                for number, kept in entries:
                    for event in live.upto(seq):
                        yield event
                    seq = number
                    record = await fetched(store, kept) if getattr(kept, "blob", None) is not None else kept
                    found = events_of(session, seq, record, f"{seq}", tag)
                    for event in found if seq > after.place else found[after.seen + 1 :]:
                        yield event
                if entries:
                    continue
            shown = False
            for event in live.upto(seq):
                shown = True
                yield event
            if not shown:
                await watch.beyond(session, seq, version)


async def _stored(store: Store, session: str, after: int) -> list[tuple[int, Record]]:
    """A page of the records above `after`, with their numbers."""
    try:
        return [(entry.seq, entry.record) for entry in await store.read(session, after=after)]
    except JournalMissing:
        return []


async def follow_store(store: Store, watch: Watch, rings: Rings, after: Cursor) -> AsyncGenerator[Event]:
    """All events of all sessions behind a cursor, in the order of their commit, without an end."""
    last = await store.last_position()
    if after.place > last:
        raise CursorInvalid(after.place, f"the store has come to {last}")
    lives = _Lives(store.clock, await store.heads([ring.session for ring in rings]))
    with rings.read_by(lives, ANY):
        lives.begin(rings, after)
        pos = after.place if after.seen == WHOLE else after.place - 1
        tag = tag_of(store.id)
        while True:
            version = store.version
            entries = await store.feed(after=pos)
            for entry in entries:
                for event in lives.before(entry.journal, entry.seq):
                    yield _moved(event, pos, tag)
                pos = entry.pos
                if entry.record is None:
                    continue  # it can't be trusted; its session is stopped with a report
                record = await fetched(store, entry.record)
                found = events_of(entry.journal, entry.seq, record, f"p{pos}", tag)
                for event in found if pos > after.place else found[after.seen + 1 :]:
                    yield event
            if entries:
                continue
            for event in lives.rest():
                yield _moved(event, pos, tag)
            await watch.beyond(ANY, pos, version)


class _Lives:
    """One reader's places among the live events of all sessions that are driven here, and nothing about others."""

    def __init__(self, clock: Clock, heads: dict[str, int]) -> None:
        self._clock = clock
        self._shown = heads
        self._lives: dict[str, _Live] = {}
        self._missing: str | None = None

    def begin(self, rings: Rings, after: Cursor) -> None:
        """Take up the rings that are there: from the beginning, or behind the live event of a cursor."""
        found = False
        for ring in rings:
            self.offer(ring)
            if after.ring is None:
                continue
            live = self._lives[ring.session]
            if ring.id == after.ring:
                found = True
                live.resume(after)
            else:
                live.skip()
        if after.ring is not None and not found:
            self._missing = "the live events behind this cursor are not here any more"

    def offer(self, ring: Ring) -> None:
        """A drive begins."""
        session = ring.session
        if session not in self._lives:
            if len(self._lives) >= MAX_SESSIONS:
                self._missing = "the reader was slower than the turns"
                return
            self._shown.setdefault(session, ring.base)
            self._lives[session] = _Live(session, None, self._clock)
        self._lives[session].offer(ring)

    def before(self, session: str, seq: int) -> Iterator[LiveEvent]:
        """Live events that come before a record, which is shown next."""
        yield from self._gap()
        live = self._lives.get(session)
        if live is not None:
            yield from live.upto(seq - 1)
            self._shown[session] = seq

    def rest(self) -> Iterator[LiveEvent]:
        """Live events behind the last records. Sessions of which nothing can come any more are forgotten."""
        yield from self._gap()
        for session, live in list(self._lives.items()):
            yield from live.upto(self._shown[session])
            if live.done:
                del self._lives[session], self._shown[session]

    def _gap(self) -> Iterator[LiveEvent]:
        if self._missing is not None:
            now = self._clock.read().wall
            yield Gap(session="", turn=None, at=now, seq=0, cursor="", reason=self._missing)
            self._missing = None


def _moved(event: LiveEvent, pos: int, tag: str) -> LiveEvent:
    """A live event in the stream of a runtime, with a cursor of that stream."""
    _, tilde, live = event.cursor.partition("@")[0].partition("~")
    return msgspec.structs.replace(event, cursor=f"p{pos}{tilde}{live}@{tag}")
