"""Live tracing: follows the journals that this process drives, and exports their spans as records become durable.

The journal is the queue: a tracer that falls behind reads on from where it was. Nothing in a drive waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from holdfast import errors, eventloop
from holdfast.names import is_trigger_id
from holdfast.records import Ended, Parked, Record, Resumed, Started
from holdfast.telemetry.journals import JournalSpans
from holdfast.telemetry.spans import Span, span_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.effects.performer import LeasedJournal
    from holdfast.store import Store
    from holdfast.store.contract import Lease
    from holdfast.telemetry.export import SpanExport

_log: Final = logging.getLogger("holdfast.telemetry")
INTERVAL: Final = 0.1
"""Pause between two looks at changed journals, in seconds."""
SOON: Final = 32
"""Records of one journal after which it is looked at at once: a drive keeps the last 64 in memory."""
TIME_SLICE: Final = 0.002
"""Time after which other tasks of the loop get their turn, in seconds."""
MAX_JOURNALS: Final = 1_024
"""Journals whose spans can be continued without reading them from their start."""
CLOSE_WAIT: Final = 2.0
"""Time to read and to send the last spans when the runtime is closed, in seconds."""
COUNT_INTERVAL: Final = 15.0
"""Pause between two counts of what waits, in seconds."""
MAX_COUNTED: Final = 10_000
"""Most sessions and processes that are counted."""


@dataclass(slots=True)
class _TracedJournal:
    """A journal that is driven here, or was."""

    spans: JournalSpans
    ledger: LeasedJournal | None = None
    """The journal of the newest drive; None when that is over and read."""
    over: bool = False
    """The newest drive is over."""
    foreign: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Records (after, upto) of drives of other processes, which export their spans."""
    unfinished: list[Span] | None = None
    """The spans of a drive elsewhere that has not ended yet: if it died, they may not have been exported."""

    def begin(self, ledger: LeasedJournal, head: int) -> None:
        """Follow a new drive, which begins after record `head`."""
        ours = self.spans.fold.seq if self.ledger is None else _durable(self.ledger)
        if head > ours:
            self.foreign.append((ours, head))
        self.ledger, self.over = ledger, False

    def mine(self, seq: int, record: Record, found: list[Span]) -> tuple[list[Span], bool]:
        """The spans that this process exports, and True if they ended here."""
        if not self.foreign or seq <= self.foreign[0][0]:
            return found, True
        if isinstance(record, Started | Resumed):
            self.unfinished = []
        elif isinstance(record, Parked) or (isinstance(record, Ended) and not record.unstarted):
            self.unfinished = None
        if self.unfinished is not None:
            self.unfinished += found
        if seq < self.foreign[0][1]:
            return [], False
        self.foreign.pop(0)
        died, self.unfinished = self.unfinished or [], None
        return died, False


def _durable(ledger: LeasedJournal) -> int:
    return ledger.head - ledger.behind


class JournalTrace:
    """The trace of one driven journal, for the code that performs its effects."""

    __slots__ = ("_export", "_spans", "_store")

    def __init__(self, spans: JournalSpans, store: str, export: SpanExport) -> None:
        self._spans = spans
        self._store = store
        self._export = export

    def current(self, key: str) -> AbstractContextManager[object]:
        """Make the span of the effect `key` the current one inside the block."""
        origin = self._spans.fold.origin(key.partition("/")[0])
        return self._export.current(origin.trace, span_id(self._store, self._spans.journal, key))


@dataclass(slots=True, eq=False)
class Tracer:
    """Exports the spans of all journals that one runtime drives."""

    store: Store
    export: SpanExport
    content: bool = False
    _followed: OrderedDict[str, _TracedJournal] = field(default_factory=OrderedDict[str, _TracedJournal])
    _changed: dict[str, None] = field(default_factory=dict[str, None])
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _soon: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    def start(self) -> None:
        """Begin to export."""
        self.export.start()
        self._tasks = [eventloop.spawn(self._run())]
        if self.export.measures:
            self._tasks.append(eventloop.spawn(self._count()))

    @asynccontextmanager
    async def following(self, ledger: LeasedJournal, lease: Lease) -> AsyncGenerator[None]:
        """Follow the drive of a journal inside the block."""
        await self._begin(ledger, lease)
        try:
            yield
        finally:
            self._end(ledger)

    async def _begin(self, ledger: LeasedJournal, lease: Lease) -> None:
        journal = ledger.journal
        if is_trigger_id(journal):
            return
        followed = self._followed.get(journal)
        if followed is None:
            spans = JournalSpans(self.store, journal, content=self.content)
            followed = self._followed[journal] = _TracedJournal(spans)
            try:
                await spans.resolve(None if lease.made is None else lease.made.input)
            except Exception as error:  # the drive itself will find out
                _log.warning("the trace of %r can't be found: %s", journal, error)
        self._followed.move_to_end(journal)
        if len(self._followed) > MAX_JOURNALS:
            self._forget_oldest()
        followed.begin(ledger, lease.head)
        ledger.trace = JournalTrace(followed.spans, self.store.id, self.export)

    def _end(self, ledger: LeasedJournal) -> None:
        followed = self._followed.get(ledger.journal)
        if followed is not None and followed.ledger is ledger:
            followed.over = True
            self.touch(ledger.journal)

    def _forget_oldest(self) -> None:
        idle = next((journal for journal, followed in self._followed.items() if followed.ledger is None), None)
        if idle is not None:
            del self._followed[idle]

    def touch(self, journal: str) -> None:
        """Look at a journal soon: records of it are durable."""
        followed = self._followed.get(journal)
        if followed is None:
            return
        self._changed[journal] = None
        ledger = followed.ledger
        if ledger is not None and _durable(ledger) - followed.spans.fold.seq >= SOON:
            self._soon.set()
        self._woken.set()

    async def close(self, seconds: float) -> None:
        """Export durable spans within `seconds`."""
        until = asyncio.get_running_loop().time() + seconds
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(seconds / 2):
                await self._look()
        except TimeoutError:
            _log.warning("the spans of %d journals were not read in time and are not exported", len(self._changed))
        await self.export.close(until - asyncio.get_running_loop().time())

    # ---- the work ----

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            try:
                async with asyncio.timeout(INTERVAL):
                    await self._soon.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            self._soon.clear()
            await self._look()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + TIME_SLICE
        while self._changed:
            if loop.time() > until:
                await asyncio.sleep(0)
                until = loop.time() + TIME_SLICE
            journal = next(iter(self._changed))
            del self._changed[journal]
            followed = self._followed.get(journal)
            if followed is None:
                continue
            try:
                await self._advance(followed)
            except asyncio.CancelledError:
                self._changed[journal] = None
                raise
            except errors.StoreError as error:  # closed, pruned, quarantined
                self._followed.pop(journal, None)
                _log.debug("the trace of %r ends here: %s", journal, error)
            except Exception:  # tracing must harm nothing
                self._followed.pop(journal, None)
                _log.exception("the trace of %r ends here", journal)

    async def _advance(self, followed: _TracedJournal) -> None:
        """Read on to the last durable record."""
        ledger, spans = followed.ledger, followed.spans
        if ledger is None:
            return
        while spans.fold.seq < (durable := _durable(ledger)):
            entries = _recent_records(ledger, spans.fold.seq, durable)
            if entries is None:
                found = await self.store.read(ledger.journal, after=spans.fold.seq)
                entries = [(entry.seq, entry.record) for entry in found if entry.seq <= durable]
                if not entries:
                    break
            for seq, record in entries:
                ready, ours = followed.mine(seq, record, await spans.add(seq, record))
                if ready:
                    self.export.add(ready, fresh=ours)
        if followed.over and followed.ledger is ledger and not ledger.behind:
            followed.ledger = None

    async def _count(self) -> None:
        """Count what waits, from time to time."""
        while True:
            waiting, last = 0, None
            try:
                while waiting < MAX_COUNTED and (page := await self.store.journals(status="waiting", before=last)):
                    waiting += len(page)
                    last = page[-1]
            except errors.StoreError as error:
                _log.debug("what waits can't be counted: %s", error)
            else:
                self.export.count_waiting(waiting)
            await asyncio.sleep(COUNT_INTERVAL)


def _recent_records(ledger: LeasedJournal, after: int, durable: int) -> list[tuple[int, Record]] | None:
    """The durable records above `after`; None if memory no longer has them all."""
    recent = ledger.recent
    if not recent or recent[0][0] > after + 1:
        return None
    begin = after + 1 - recent[0][0]  # they are numbered without gaps
    return list(islice(recent, begin, begin + durable - after))
