"""Event streams: the events of a record, live events between records, and detecting that a journal has grown.

Drives of this process wake their readers themselves (`ChangeFeed.touch`). For journals that other processes drive, one
poll of the store after each commit, at most every few milliseconds, serves all readers; their live events come by
`runtime/side_channel.py`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import OrderedDict, deque
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from holdfast import events, records
from holdfast.clock import Clock, wall_clock
from holdfast.errors import CursorInvalid, HoldfastError, JournalMissing, JournalMoved, StoreClosed
from holdfast.eventloop import spawn
from holdfast.messages import Text, ToolCall, UserMessage, decode_reply, message_of_reply
from holdfast.names import MAX_INT
from holdfast.processes.state import ProcessState, task_status
from holdfast.runtime.session_records import fetch_value
from holdfast.turns import keys
from holdfast.turns.compaction.plan import decode_compaction, is_compaction
from holdfast.turns.conversation import CancelRequest, deadline_wait, decode_checkpoint, decode_input, ending_of_record
from holdfast.turns.programs import answer_message, finish_of, is_finish
from holdfast.turns.results import result_of, skipped_result

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Collection, Generator, Iterator

    from holdfast.effects.performer import LeasedJournal
    from holdfast.runtime.side_channel import LiveReceiver, LiveSender
    from holdfast.store import Store
    from holdfast.telemetry.tracer import Tracer
    from holdfast.turns.machine import Ending


# ---- the events of a record ----


def events_of(session: str, seq: int, record: records.Record, place: str, tag: str = "") -> list[events.Event]:
    """The events of a record, whose large value must have been fetched.

    `place` is the position of the record in the stream that `tag` names; its n-th event has the cursor ``place.n@tag``.
    """
    found: list[events.Event] = []
    at = record.at
    for kind, turn, fields in _outcome_events(record) if isinstance(record, _OUTCOMES) else _record_events(record):
        cursor = f"{place}.{len(found)}@{tag}"
        found.append(kind(session=session, turn=turn, at=at, seq=seq, cursor=cursor, **fields))
    return found


def call_name(key: keys.EffectKey) -> str:
    """The id of a tool call in events."""
    name = f"{key.run}.{key.number}.{key.call}"
    return f"{name}.{key.nested}" if key.nested else name


def _call_name_of(key: str) -> str:
    parsed = keys.parse_key(key)
    return key if parsed is None else call_name(parsed)


_OUTCOMES: Final = (records.Done, records.Failed, records.Unknown, records.Cancelled)
_EventFields: TypeAlias = "tuple[type[events.Event], str | None, dict[str, Any]]"
_END_EVENTS: Final[dict[records.EndStatus, type[events.Event]]] = {
    "completed": events.TurnCompleted,
    "failed": events.TurnFailed,
    "cancelled": events.TurnCancelled,
    "limit": events.TurnLimit,
}


def _record_events(record: records.Record) -> Iterator[_EventFields]:
    run = getattr(record, "run", None)
    if run == records.TRIGGER_RUN:
        return  # the state of a trigger; the sessions it starts have their own events
    if run is not None and (run == records.TASK_RUN or records.is_process_run(run)):
        yield from _process_events(record, is_task=run == records.TASK_RUN)
        return
    match record:
        case records.Started():
            yield events.TurnStarted, record.run, {"code": record.code, "by": record.by}
        case records.Resumed():
            yield events.TurnResumed, record.run, {"by": record.by}
        case records.Admitted() if run is not None:  # else a request to stop, or an input of a process
            said = decode_input(bytes(record.body))
            if isinstance(said, CancelRequest):
                return
            message = UserMessage(f"{run}.i{record.input}", said.parts, said.origin)
            fields = {"input": record.input, "key": record.key, "text": message.text, "metadata": said.metadata or {}}
            yield events.InputAccepted, run, fields | ({"retry_of": said.retry} if said.retry else {})
            if not said.compact:
                yield events.MessageCommitted, run, {"message": message}
            if (mandate := said.mandate) is not None:
                fields = {"parent": mandate.session, "parent_turn": mandate.turn, "above": mandate.above}
                yield events.SubAgentStarted, run, fields | {"call": _call_name_of(mandate.key)}
        case records.Parked():
            alarm = deadline_wait(record.run)
            yield events.TurnWaiting, record.run, {"waits": tuple(name for name in record.waits if name != alarm)}
        case records.Ended():
            yield from _turn_end_events(record)
        case records.Intended() if (key := keys.parse_key(record.key)) is not None:
            if record.ask.kind == "await_event":
                if not record.key.endswith(f"/{keys.DEFERRAL}"):
                    yield events.ApprovalRequested, key.run, {"call": call_name(key), "wait": record.ask.target}
            elif key.nested and not key.inner:
                yield _program_call_event(key, record.key, record.ask)
        case records.Handed():
            fields = {"agent": record.agent, "by": record.by, "reason": record.reason}
            yield events.HandedOff, record.run, fields | {"call": _call_name_of(record.key)}
        case _:
            return


def _process_events(record: records.Record, *, is_task: bool) -> Iterator[_EventFields]:
    match record:
        case records.Started() | records.Resumed():
            yield events.TaskStarted if is_task else events.ProcessStarted, record.run, {"by": record.by}
        case records.Progressed() if is_task:
            yield events.TaskProgressed, record.run, {"note": record.note, "fraction": record.fraction}
        case records.Parked() if not is_task:
            yield events.ProcessWaiting, record.run, {"waits": record.waits}
        case records.Ended():
            error = record.error or records.ErrorInfo("", "")
            fields = {"status": record.status, "code": error.kind, "message": error.message}
            if is_task:
                yield events.TaskEnded, record.run, fields | {"status": task_status(record)}
            else:
                yield events.ProcessEnded, record.run, fields
        case _:
            return


def _program_call_event(key: keys.EffectKey, name: str, ask: records.EffectRequest) -> _EventFields:
    arguments: dict[str, Any] | None = msgspec.json.decode(ask.body) if ask.body else None
    call = call_name(key)
    fields = {"call": call, "call_id": call, "tool": keys.tool_in_key(name), "arguments": arguments}
    return events.ToolCallRequested, key.run, fields


def _outcome_events(record: records.Outcome) -> Iterator[_EventFields]:
    key = keys.parse_key(record.key)
    if key is None or records.is_process_run(key.run):
        return
    run = key.run
    if key.inner:
        if isinstance(record, records.Done) and is_compaction(record.key):
            made = decode_compaction(bytes(record.value))
            plan = made.plan
            gone = 0 if plan.span is None else plan.span.count
            fields: dict[str, Any] = {"way": plan.way, "before": plan.before, "after": plan.after, "messages": gone}
            fields |= {"summary": made.summary, "failure": made.failure, "usage": made.usage, "cost": made.cost}
            yield events.ContextCompacted, run, fields
        elif isinstance(record, records.Done) and is_finish(record.key):
            yield events.MessageCommitted, run, {"message": answer_message(run, key.number, finish_of(record))}
        return
    if key.nested and record.ask is not None:
        yield _program_call_event(key, record.key, record.ask)
    match key.name, record:
        case "tools", _:
            tool = keys.tool_in_key(record.key)
            result = result_of(ToolCall("", tool, {}), record)
            fields = {"call": call_name(key), "tool": tool, "state": result.state, "content": result.content}
            yield events.ToolCallFinished, run, fields | {"ms": getattr(record, "ms", 0)}
        case "model", records.Done():
            reply = decode_reply(bytes(record.value))
            message = message_of_reply(reply, f"{run}.{key.number}")
            for number, call in enumerate(message.calls, 1):
                fields = {"call": f"{run}.{key.number + 1}.{number}", "call_id": call.id}
                yield events.ToolCallRequested, run, fields | {"tool": call.name, "arguments": call.arguments}
            if message.parts:
                yield events.MessageCommitted, run, {"message": message, "ms": record.ms}
            yield events.UsageRecorded, run, {"model": reply.model, "usage": reply.usage, "cost": reply.cost}
        case "model", records.Failed(error=error, ms=ms):
            yield events.ModelFailed, run, {"code": error.kind, "message": error.message, "ms": ms}
        case "checkpoint", records.Done():
            note = decode_checkpoint(record).note
            if note is not None:
                said = UserMessage(f"{run}.{key.number}", (Text(note),), "holdfast")
                yield events.MessageCommitted, run, {"message": said}
        case _:
            pass


def _turn_end_events(record: records.Ended) -> Iterator[_EventFields]:
    ending = ending_of_record(record)
    fields: dict[str, Any] = {"steps": ending.steps, "usage": ending.usage}
    for gone in ending.skipped:
        content = skipped_result(ToolCall("", gone.tool, {}), record.status, ending.message).content
        told = {"call": gone.call, "tool": gone.tool, "state": "skipped", "content": content, "ms": 0}
        yield events.ToolCallFinished, record.run, told
    if ending.code in {"no_progress", "loop"}:
        yield events.LoopDetected, record.run, {"message": ending.message}
    if record.status != "completed":
        fields |= {"code": ending.code, "message": ending.message, "blame": ending.blame}
    yield _END_EVENTS[record.status], record.run, fields


# ---- the feed: readers that wait for journals ----

ALL_JOURNALS: Final = ""
"""The key of readers of all journals."""
_POLL_PAUSE: Final = 0.02
_LOOK_AGAIN: Final = 1.0
"""Longest pause between two looks, in seconds: a journal that was moved away has no new record."""


class TurnEnded(NamedTuple):
    """A turn that ended in this process, with everything that a reader would find in the journal."""

    run: str
    inputs: Collection[int]
    """The inputs that entered it."""
    ending: Ending
    text: str


_News: TypeAlias = "TurnEnded | ProcessState | Literal['live'] | None"
"""The end of a turn or process; "live" if only live events of another process have come; None for anything else."""


@dataclass(eq=False, slots=True)
class Expectation:
    """One reader that waits for a journal, and the record up to which it has read."""

    head: int
    news: asyncio.Future[_News]
    """Done when something can be read; its result is the end itself if this process recorded it."""


class ChangeFeed:
    """Wakes the readers of journals: those that wait for any record or live event, and those that wait for an end.

    It also has the live events of the sessions that this process drives, and copies of those that it follows in other
    processes.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.readers = 0
        """Number of readers that wait for any record."""
        self.local: set[str] = set()
        """Journals that this process drives: their drives call `touch`."""
        self.buffers: dict[str, LiveEventBuffer] = {}
        """The live events of the drive of each session."""
        self.mirrors: dict[str, MirroredEvents] = {}
        """Copies of the live events of sessions that other processes drive."""
        self.sender: LiveSender | None = None
        """Sends our live events to other processes; None unless this process drives."""
        self.receiver: LiveReceiver | None = None
        """Receives the live events of other processes; None for a store in memory."""
        self._ended: OrderedDict[str, LiveEventBuffer | MirroredEvents] = OrderedDict()
        """The live events of the last drives, for readers that come as a quick turn ends."""
        self._followers: dict[str, list[_LivePosition | _LivePositions]] = {}
        self._waiting: dict[tuple[str, bool], list[Expectation]] = {}
        self._looking: asyncio.Task[None] | None = None
        self.tracer: Tracer | None = None
        """Exports the spans of the journals that this process drives; None without telemetry."""
        self._closed = False

    @contextmanager
    def until_closed(self) -> Generator[None]:
        """End the block without an error when the runtime is closed; a block begun after that raises `StoreClosed`."""
        begun = not self._closed
        try:
            yield
        except StoreClosed:
            if not begun:
                raise

    # ---- waking readers ----

    def touch(self, journal: str) -> None:
        """Wake the readers of `journal`, which has changed in this process: at once, or soon if it has live events."""
        buffer = self.buffers.get(journal)
        if buffer is not None and self.sender is not None and self.sender.followers:
            self.sender.mark(buffer)
        if self.tracer is not None:
            self.tracer.touch(journal)
        if self.readers:
            if buffer is None:
                self.wake_readers(journal)
            else:
                buffer.wake()

    def wake_readers(self, journal: str) -> None:
        """Wake all that wait for any record of `journal`."""
        self._wake((journal, False))
        self._wake((ALL_JOURNALS, False))

    def ended(self, journal: str, end: TurnEnded | ProcessState | None = None) -> None:
        """Wake all that wait for `journal`: a turn, the process or the drive has ended in this process."""
        if self._waiting:
            self.wake_readers(journal)
            self._wake((journal, True), end)

    def fail(self, journal: str, error: HoldfastError) -> None:
        """Give all that wait for `journal` this error: nothing comes any more."""
        for what in ((journal, False), (journal, True)):
            for found in self._waiting.pop(what, ()):
                if not found.news.done():
                    found.news.set_exception(error)

    def wake_live(self, session: str) -> None:
        """Wake all that wait for any record of `session`: live events of another process have come, no records."""
        self._wake((session, False), "live")
        self._wake((ALL_JOURNALS, False), "live")

    def _wake(self, what: tuple[str, bool], end: _News = None) -> None:
        for found in self._waiting.pop(what, ()):
            if not found.news.done():
                found.news.set_result(end)

    @contextmanager
    def expecting(self, journal: str, head: int, *, ends: bool = False) -> Generator[Expectation]:
        """Expect records of `journal` above `head`; a read inside the block misses nothing.

        With `ends`, a journal that this process drives wakes the reader only at the end of a turn or of the drive.
        """
        if self._closed:
            raise StoreClosed
        what = (journal, ends)
        found = Expectation(head, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(what, []).append(found)
        self.readers += not ends
        if journal not in self.local and (self._looking is None or self._looking.done()):
            self._looking = spawn(self._look(), upkeep=True)
        try:
            yield found
        finally:
            self.readers -= not ends
            waiting = self._waiting.get(what)
            if waiting is not None and found in waiting:
                waiting.remove(found)
                if not waiting:
                    del self._waiting[what]

    async def beyond(self, journal: str, head: int, version: int | None) -> bool:
        """Wait until `journal` has records above `head` (`ALL_JOURNALS`: positions), or is touched.

        Returns False if only live events of another process have come. `version` is the version of the store at the
        caller's last read. Pass None for a journal that this process drives and that has nothing durable above `head`
        at this moment: its drive touches it.
        """
        with self.expecting(journal, head) as found:
            if version is not None and self.store.version != version:
                await self._compare([(journal, False)])  # for commits since the caller read
            return await found.news != "live"

    async def _look(self) -> None:
        """Poll the heads of journals while readers wait for one that another process drives.

        Journals that this process drives need no poll: the end of a drive wakes its readers.
        """
        try:
            while waited := [what for what in self._waiting if what[0] not in self.local]:
                version = self.store.version
                if self.receiver is not None:
                    await self.receiver.refresh()  # first: live events come before the records behind them
                await self._compare(waited)
                await self.store.changed(version, _LOOK_AGAIN)
                await asyncio.sleep(_POLL_PAUSE)
        except Exception as error:  # readers must learn of it
            self._fail(error)

    async def _compare(self, waited: list[tuple[str, bool]]) -> None:
        names = list({journal for journal, _ in waited if journal != ALL_JOURNALS})
        heads, moved = await self.store.watch(names) if names else ({}, {})
        if (ALL_JOURNALS, False) in waited:
            heads[ALL_JOURNALS] = await self.store.last_position()
        for what in waited:
            for found in list(self._waiting.get(what, ())):
                gone = 0 < found.head < MAX_INT and what[0] not in heads  # forgotten: its reader finds out
                news = heads.get(what[0], 0) > found.head
                if what[0] in moved and not news and not found.news.done():
                    found.news.set_exception(JournalMoved(what[0], moved[what[0]]))
                elif (gone or news) and not found.news.done():
                    found.news.set_result(None)

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for entries in waiting.values():
            for found in entries:
                if not found.news.done():
                    found.news.set_exception(error)

    async def close(self) -> None:
        """Wake all readers with `StoreClosed`."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self.sender is not None:
            self.sender.close()
        if self.receiver is not None:
            self.receiver.close()
        self._fail(StoreClosed())
        self._ended.clear()

    # ---- live events ----

    def add_buffer(self, buffer: LiveEventBuffer) -> None:
        """Offer the live events of a new drive to all readers; they keep them until they have read them."""
        self.buffers[buffer.session] = buffer
        self._supersede(buffer)
        self._offer(buffer)
        if self.sender is not None and self.sender.followers:
            self.sender.mark(buffer, begins=True)

    def remove_buffer(self, buffer: LiveEventBuffer) -> None:
        """Remove the live events of an ended drive."""
        buffer.close()
        if self.buffers.get(buffer.session) is buffer:
            del self.buffers[buffer.session]
        self._keep_ended(buffer)
        if self.sender is not None and self.sender.followers:
            self.sender.mark(buffer)

    def add_mirror(self, mirror: MirroredEvents) -> None:
        """Offer the live events of a drive in another process to all readers."""
        self._supersede(mirror)
        self.mirrors[mirror.session] = mirror
        self._offer(mirror)

    def close_mirror(self, mirror: MirroredEvents) -> None:
        """Remove the live events of a drive in another process: it has ended, or is out of reach."""
        mirror.close()
        if self.mirrors.get(mirror.session) is mirror:
            del self.mirrors[mirror.session]
        self._keep_ended(mirror)
        self.wake_live(mirror.session)

    def _supersede(self, newer: LiveEventBuffer | MirroredEvents) -> None:
        """Close the copy of an older drive soon: its end may be on the way, or never come."""
        older = self.mirrors.get(newer.session)
        if older is not None:
            asyncio.get_running_loop().call_later(ARRIVAL_WAIT, self.close_mirror, older)

    def _offer(self, buffer: LiveEventBuffer | MirroredEvents) -> None:
        for name in (buffer.session, ALL_JOURNALS):
            for reader in self._followers.get(name, ()):
                reader.offer(buffer)

    def _keep_ended(self, buffer: LiveEventBuffer | MirroredEvents) -> None:
        newest = self._ended.get(buffer.session)
        if buffer.last and (newest is None or newest.epoch <= buffer.epoch):
            self._ended[buffer.session] = buffer
            self._ended.move_to_end(buffer.session)
            if len(self._ended) > MAX_ENDED_DRIVES:
                self._ended.popitem(last=False)

    def newest_buffer(self, session: str) -> LiveEventBuffer | MirroredEvents | None:
        """The live events of the drive of a session, or of its last one."""
        return self.buffers.get(session) or self.mirrors.get(session) or self._ended.get(session)

    def drives(self, drive: str | None = None) -> list[LiveEventBuffer | MirroredEvents]:
        """The live events of all drives under way, and of the ended drive with this id."""
        ended = [] if drive is None else [buffer for buffer in self._ended.values() if buffer.id == drive]
        return [*ended, *{**self.mirrors, **self.buffers}.values()]

    async def reach(self, name: str) -> None:
        """Get the live events of a session, or of all (`ALL_JOURNALS`), from the other processes that drive the store.

        Returns after a short time without them.
        """
        if self.receiver is not None and name not in self.local:
            await self.receiver.refresh(name)

    @property
    def followed(self) -> Collection[str]:
        """The sessions that readers follow; `ALL_JOURNALS` for a reader of all."""
        return self._followers.keys()

    def miss(self, session: str | None, reason: str) -> None:
        """Show the readers of a session (None: all readers) that live events are missing."""
        for name, readers in self._followers.items():
            if session is None or name in {session, ALL_JOURNALS}:
                for reader in readers:
                    reader.miss(reason)
                self.wake_live(name)

    @contextmanager
    def offering(self, session: str, reader: _LivePosition | _LivePositions) -> Generator[None]:
        """Offer the live events of new drives to a reader inside the block."""
        readers = self._followers.setdefault(session, [])
        readers.append(reader)
        try:
            yield
        finally:
            readers.remove(reader)
            if not readers and self._followers.get(session) is readers:
                del self._followers[session]
                if self.receiver is not None:
                    self.receiver.leave(session)


# ---- live events ----

MAX_EVENTS: Final = 2_048
"""Live events kept for one session."""
MAX_AGE_MS: Final = 120_000
"""Longest age of a buffered live event."""
MAX_ENDED_DRIVES: Final = 64
"""Ended drives whose live events are kept."""
ARRIVAL_WAIT: Final = 0.1
"""Longest time for which a record waits for the live events before it, which another process sends, in seconds."""
WAKE_INTERVAL: Final = 0.008
"""Least time between two wake-ups of a reader in seconds, half a frame of a screen: faster events are read together."""
LIVE_PAGE: Final = 64
"""Live events in one page."""
MAX_MERGED: Final = 4_096
"""Most characters of unread deltas that are joined."""
_DELTA_FIELDS: Final[dict[type[events.LiveEvent], str]] = {
    events.TextDelta: "text",
    events.ReasoningDelta: "text",
    events.ToolCallDelta: "arguments",
}
"""Events that are parts of a text, and the field with the part."""


class LiveItem(msgspec.Struct, gc=False):
    """The fields of a live event. The event itself is built for a reader; most events never have one."""

    at: int
    kind: type[events.LiveEvent]
    turn: str
    seq: int
    fields: dict[str, Any]


class DriveEvents:
    """The newest live events of one drive of one session, numbered from 1."""

    def __init__(self, session: str, base: int, epoch: int) -> None:
        self.session = session
        self.base = base
        """Head of the journal when the drive began."""
        self.epoch = epoch
        """The epoch of its lease."""
        self.closed = False
        """The drive has ended."""
        self.last: int = 0
        """Number of the newest event."""
        self.lost: int = -1
        """Sequence of the newest event that was dropped."""
        self._items: deque[LiveItem] = deque()
        self._read = 0

    @cached_property
    def id(self) -> str:
        """Id of the drive in cursors; made when a reader needs it."""
        return secrets.token_hex(4)

    @cached_property
    def tag(self) -> str:
        return cursor_tag(self.session)

    @property
    def first(self) -> int:
        """Number of the oldest buffered event; one more than the newest if the buffer is empty."""
        return self.last + 1 - len(self._items)

    def trim(self) -> None:
        """Drop events that are too many."""
        while len(self._items) > MAX_EVENTS:
            self.lost = self._items.popleft().seq

    def has_more(self, number: int, seq: int) -> bool:
        """True if events after `number` come before the record after `seq`, or were dropped."""
        items = self._items
        index = number + len(items) - self.last
        return index < 0 or (index < len(items) and items[index].seq <= seq)

    def items(self, number: int) -> Iterator[LiveItem]:
        """The buffered items after `number`, oldest first."""
        return islice(self._items, max(0, number + len(self._items) - self.last), None)

    def mark_read(self, number: int) -> None:
        """Keep the events up to `number` as they are: a reader has them."""
        self._read = max(self._read, number)

    def page(self, number: int, seq: int) -> list[events.LiveEvent]:
        """The next events after `number`, up to `LIVE_PAGE`, that come before the record after `seq`."""
        items, session = self._items, self.session
        buffer, tag = self.id, self.tag
        found: list[events.LiveEvent] = []
        number = max(number, self.last - len(items))
        begin = number + len(items) - self.last
        for index in range(begin, min(begin + LIVE_PAGE, len(items))):
            item = items[index]
            place = item.seq
            if place > seq:
                break
            number += 1
            cursor = f"{place}~{buffer}.{number}@{tag}"
            found.append(
                item.kind(session=session, turn=item.turn, at=item.at, seq=place, cursor=cursor, **item.fields)
            )
        if found and number > self._read:
            self._read = number
        return found


class _EndedLedger(NamedTuple):
    """The part of an ended drive's ledger that its buffer needs. The ledger itself can be freed."""

    head: int
    behind: int
    recent: deque[tuple[int, records.Record]]


class LiveEventBuffer(DriveEvents):
    """The live events of a drive of this process; old ones are dropped.

    Their age is measured by the wall clock. If that jumps, some are dropped too early or too late.
    """

    def __init__(self, ledger: LeasedJournal, feed: ChangeFeed) -> None:
        super().__init__(ledger.journal, ledger.head, ledger.epoch)
        self.ended: TurnEnded | None = None
        """The newest turn of this drive with a submitted end."""
        self._ledger: LeasedJournal | _EndedLedger = ledger
        self._redactor = ledger.redactor
        self._wall = wall_clock(feed.store.clock)
        self._feed = feed
        self._woken = 0.0
        """Loop time at which the readers were last woken."""
        self._later: asyncio.TimerHandle | None = None
        """Wakes them again after `WAKE_INTERVAL`."""

    @property
    def head(self) -> int:
        """Sequence of the newest submitted record: later events come behind it."""
        return self._ledger.head

    @property
    def durable(self) -> int:
        """Sequence of the newest durable record."""
        return self._ledger.head - self._ledger.behind

    def records(self, after: int) -> list[tuple[int, records.Record]] | None:
        """The durable records above `after`; None if memory no longer has them all."""
        recent, durable = self._ledger.recent, self.durable
        if not recent or recent[0][0] > after + 1:
            return None
        begin = after + 1 - recent[0][0]  # they are numbered without gaps
        return list(islice(recent, begin, max(begin, begin + durable - after)))

    def publish(self, kind: type[events.LiveEvent], turn: str, fields: dict[str, Any]) -> None:
        """Add an event behind the last submitted record, and wake the readers."""
        if self._redactor.active:
            fields = self._redactor.value(fields)
        seq = self._ledger.head
        if kind in _DELTA_FIELDS and self._read < self.last and self._join(kind, turn, seq, fields):
            return
        now, items = self._wall(), self._items
        items.append(LiveItem(now, kind, turn, seq, fields))
        self.last += 1
        if len(items) > MAX_EVENTS or items[0].at < now - MAX_AGE_MS:
            self.trim(now)
        if self._later is None and self._feed.readers:
            self.wake()
        sender = self._feed.sender
        if sender is not None and sender.followers:
            sender.mark(self)

    def wake(self) -> None:
        """Wake the readers: at once, or `WAKE_INTERVAL` after their last wake."""
        if self._later is None:
            loop = asyncio.get_running_loop()
            if loop.time() - self._woken >= WAKE_INTERVAL:
                self._wake_now()
            else:
                self._later = loop.call_at(self._woken + WAKE_INTERVAL, self._wake_now)

    def _wake_now(self) -> None:
        self._woken, self._later = asyncio.get_running_loop().time(), None
        self._feed.wake_readers(self.session)

    def _join(self, kind: type[events.LiveEvent], turn: str, seq: int, fields: dict[str, Any]) -> bool:
        """Join a delta with the unread one before it if both belong to the same text."""
        item = self._items[-1] if self._items else None
        if item is None or item.kind is not kind or item.seq != seq or item.turn != turn:
            return False
        name, before = _DELTA_FIELDS[kind], item.fields
        if kind is events.ToolCallDelta and before["call_id"] != fields["call_id"]:
            return False
        words: str = before[name] + fields[name]
        if len(words) > MAX_MERGED or item.at < self._wall() - MAX_AGE_MS:
            return False
        item.fields = {**fields, name: words}
        return True

    def trim(self, now: int | None = None) -> None:
        """Drop events that are too old or too many."""
        items, now = self._items, self._wall() if now is None else now
        while len(items) > MAX_EVENTS or (items and items[0].at < now - MAX_AGE_MS):
            self.lost = items.popleft().seq

    def close(self) -> None:
        """The drive has ended."""
        self.closed = True
        self._ledger = _EndedLedger(self._ledger.head, self._ledger.behind, deque())

    def end_of(self, turn: str | None, seq: int) -> TurnEnded | None:
        """The end of a turn with the last record `seq`, if it is the newest that ended in this drive."""
        ended = self.ended
        return ended if ended is not None and ended.run == turn and seq <= self.durable else None


class MirroredEvents(DriveEvents):
    """A copy of the live events of a drive in another process, with the same numbers."""

    def __init__(self, session: str, id: str, base: int, epoch: int) -> None:
        super().__init__(session, base, epoch)
        self.id = id
        self._head = base
        """All events before this record have come."""
        self._late = False
        """A record was shown without the events before it."""
        self._waiting: list[asyncio.Future[None]] = []

    def extend(self, first: int, items: list[LiveItem], head: int, lost: int) -> None:
        """Add the events from number `first` on, without those that are here; all before record `head` have come.

        `lost` is the sequence of the newest event that the other process has dropped.
        """
        if first > self.last + 1:
            self._items.clear()
            self.last, self.lost = first - 1, lost
        new = list(islice(items, self.last + 1 - first, None))
        self._items.extend(new)
        self.last += len(new)
        self.trim()
        if head > self._head:
            self._head, self._late = head, False
        self._wake()

    def close(self) -> None:
        """No more events come."""
        self.closed = True
        self._wake()

    def lacks(self, seq: int) -> bool:
        """True if events before record `seq` may still be on the way."""
        return self._head < seq and not self.closed and not self._late

    async def arrival(self, seq: int) -> None:
        """Wait for the events before record `seq`, at most `ARRIVAL_WAIT`, and then not again until others come."""
        loop = asyncio.get_running_loop()
        until = loop.time() + ARRIVAL_WAIT
        while self.lacks(seq):
            waiting: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiting)
            await asyncio.wait([waiting], timeout=until - loop.time())
            self._late = self._late or loop.time() >= until

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for found in waiting:
            if not found.done():
                found.set_result(None)


def cursor_tag(name: str) -> str:
    """Short tag that ties a cursor to its session or store."""
    return f"{crc32(name.encode()):08x}"


# ---- cursors and readers ----

ALL_EVENTS: Final = 1 << 30
"""`Cursor.seen` after all events of a record."""
MAX_RINGS: Final = 4
"""Drives of one session that a slow reader may be behind."""
MAX_SESSIONS: Final = 1_024
"""Sessions that a slow reader may be behind."""
_CURSOR: Final = re.compile(r"(p?)(\d{1,18})(?:\.(\d{1,9}))?(?:~([0-9a-f]{8})\.(\d{1,18}))?@([0-9a-f]{8})\Z", re.ASCII)


class Cursor(NamedTuple):
    """A position in a stream: the last record, the last seen of its events, the last live event after it."""

    place: int
    seen: int = ALL_EVENTS
    buffer: str | None = None
    number: int = 0


def session_cursor(given: object, session: str) -> Cursor:
    """Parse a cursor of a session; an integer is the sequence of a record."""
    return _parse_cursor(given, "", cursor_tag(session), "session")


def store_cursor(given: object, store: Store) -> Cursor:
    """Parse a cursor of a runtime; an integer is a position in the store."""
    return _parse_cursor(given, "p", cursor_tag(store.id), "runtime")


def _parse_cursor(given: object, prefix: str, tag: str, what: str) -> Cursor:
    if type(given) is int and 0 <= given < 1 << 62:
        return Cursor(given)
    found = _CURSOR.match(given) if type(given) is str else None
    if found is None or found[1] != prefix:
        raise CursorInvalid(given, f"it is no cursor of a {what}")
    _, place, seen, buffer, number, whose = found.groups()
    if whose != tag:
        raise CursorInvalid(given, f"it comes from another {what}")
    return Cursor(int(place), ALL_EVENTS if seen is None else int(seen), buffer, int(number or 0))


@dataclass(eq=False, slots=True)
class _LivePosition:
    """A reader's position in the live events of one session."""

    _session: str
    _since: int | None
    """Record at which the reader began; unknown at first to a reader of all sessions."""
    _clock: Clock
    _buffers: deque[LiveEventBuffer | MirroredEvents] = field(default_factory=deque["LiveEventBuffer | MirroredEvents"])
    _number: int = 0
    _passed: tuple[str, int] = ("", 0)
    """The last copy of a drive that was read to its end, and its last number."""
    _late: bool = False
    """Events that came too late were left out since the last shown one."""
    _gap_reason: str | None = None

    def offer(self, buffer: LiveEventBuffer | MirroredEvents) -> None:
        """Read the buffer of a new drive after the others."""
        if isinstance(buffer, MirroredEvents):
            # After a lost connection, another copy of the same drive continues the first.
            for index, known in enumerate(self._buffers):
                if isinstance(known, MirroredEvents) and known.id == buffer.id:
                    self._buffers[index] = buffer
                    return
        self._buffers.append(buffer)
        if len(self._buffers) == 1:
            self._begin()
        elif len(self._buffers) > MAX_RINGS:
            self._next()
            self._gap_reason = "the reader was slower than the turns"

    def _next(self) -> None:
        """Leave the first buffer."""
        left = self._buffers.popleft()
        if isinstance(left, MirroredEvents):
            self._passed = left.id, self._number
        self._begin()

    def _begin(self) -> None:
        self._number = 0
        if self._buffers and isinstance(self._buffers[0], MirroredEvents) and self._buffers[0].id == self._passed[0]:
            self._number = self._passed[1]

    def knows(self, drive: str) -> bool:
        """True if the drive with this id is among those to read."""
        return any(buffer.id == drive for buffer in self._buffers)

    def resume(self, cursor: Cursor) -> None:
        """Continue after the live event of a cursor, if the following ones are still kept."""
        known = next((buffer for buffer in self._buffers if buffer.id == cursor.buffer), None)
        if known is None or known.first > cursor.number + 1:
            self._gap_reason = "the live events behind this cursor are not here any more"
            return
        while self._buffers[0] is not known:
            self._buffers.popleft()
        self._number = cursor.number

    def skip(self) -> None:
        """Skip the existing live events."""
        if self._buffers and self._buffers[-1].last:
            self._number = self._buffers[-1].last
            self._gap_reason = "live events of other sessions may have come before"

    def miss(self, reason: str) -> None:
        """Show that live events are missing."""
        self._gap_reason = reason

    def lacking(self, seq: int) -> MirroredEvents | None:
        """The copy of a drive that may still get events before record `seq`."""
        newest = self._buffers[-1] if self._buffers else None
        return newest if isinstance(newest, MirroredEvents) and newest.lacks(seq) else None

    def upto(self, seq: int) -> Iterator[events.LiveEvent]:
        """Live events that come before the record after `seq`."""
        since = self._since = seq if self._since is None else self._since
        if self._gap_reason is not None:
            yield self._gap(seq, self._gap_reason)
            self._gap_reason = None
        while self._buffers:
            buffer = self._buffers[0]
            while buffer.has_more(self._number, seq):
                buffer.trim()
                if buffer.first > self._number + 1:
                    self._number = buffer.first - 1
                    if buffer.lost >= since:
                        yield self._gap(seq, "the reader was slower than the live events")
                page = buffer.page(self._number, seq)
                if not page:
                    break
                self._number += len(page)
                for event in page:
                    if event.seq < since:
                        continue
                    if event.seq == seq or not isinstance(buffer, MirroredEvents):
                        self._late = False
                        yield event
                    elif not self._late:
                        self._late = True
                        yield self._gap(seq, "live events came later than the records behind them")
            if not buffer.closed or self._number < buffer.last:
                return
            self._next()

    def _gap(self, seq: int, reason: str) -> events.Gap:
        cursor = f"{seq}@{cursor_tag(self._session)}"
        return events.Gap(
            session=self._session, turn=None, at=self._clock.read().wall, seq=seq, cursor=cursor, reason=reason
        )

    @property
    def done(self) -> bool:
        """True if everything is read and nothing can come."""
        return not self._buffers and self._gap_reason is None


async def follow_session(feed: ChangeFeed, session: str, after: Cursor) -> AsyncGenerator[events.Event]:
    """Yield all events of a session after a cursor: existing ones, then new ones, without end."""
    store, buffers = feed.store, feed.buffers
    live = _LivePosition(session, after.place, store.clock)
    with feed.offering(session, live):
        ended = feed.newest_buffer(session)  # a quick turn may have ended, or end during the first await
        if ended is not None:
            live.offer(ended)
        await feed.reach(session)
        head = (await store.heads([session])).get(session, 0)
        if after.place > head:
            raise CursorInvalid(after.place, f"the session has {head} records")
        if after.buffer is not None:
            live.resume(after)
        seq = after.place if after.seen == ALL_EVENTS else after.place - 1
        tag = cursor_tag(session)
        read: int | None = None
        """The version of the store at the last read that found nothing; None if records may be there."""
        while True:
            buffer = buffers.get(session)
            version = None
            if buffer is None and read is not None:
                version = read
            elif buffer is None or buffer.durable > seq:
                version = store.version
                entries = None if buffer is None else buffer.records(seq)
                if entries is None:
                    with suppress(JournalMissing) if not seq else nullcontext():  # one that was read is forgotten
                        entries = [(entry.seq, entry.record) for entry in await store.read(session, after=seq)]
                for number, kept in entries or ():
                    if (mirror := live.lacking(number)) is not None:
                        await mirror.arrival(number)
                    for event in live.upto(seq):
                        yield event
                    seq = number
                    record = await fetch_value(store, kept) if getattr(kept, "blob", None) is not None else kept
                    found = events_of(session, seq, record, f"{seq}", tag)
                    for event in found if seq > after.place else found[after.seen + 1 :]:
                        yield event
                if entries:
                    continue
                read = version
            shown = False
            for event in live.upto(seq):
                shown = True
                yield event
            if not shown and await feed.beyond(session, seq, version):
                read = None


def follow_store(feed: ChangeFeed, after: Cursor | None) -> AsyncGenerator[events.Event]:
    """Yield the events of all sessions in commit order, after a cursor or (None) after all submitted records."""
    return _follow_store(feed, feed.store.read_position() if after is None else after)


async def _follow_store(feed: ChangeFeed, start: Cursor | Awaitable[int]) -> AsyncGenerator[events.Event]:
    store = feed.store
    with feed.until_closed():
        after = start if isinstance(start, Cursor) else Cursor(await start)
        last = await store.last_position()
        if after.place > last:
            raise CursorInvalid(after.place, f"the store has come to {last}")
        await feed.reach(ALL_JOURNALS)
        heads = await store.heads([buffer.session for buffer in feed.drives(after.buffer)])
        positions = _LivePositions(store.clock, OrderedDict(heads))
        with feed.offering(ALL_JOURNALS, positions):
            positions.begin(feed.drives(after.buffer), after)
            pos = after.place if after.seen == ALL_EVENTS else after.place - 1
            tag = cursor_tag(store.id)
            version, news = 0, True
            while True:
                if news:
                    version = store.version
                entries = await store.feed(after=pos) if news else []
                for entry in entries:
                    if (mirror := positions.lacking(entry.journal, entry.seq)) is not None:
                        await mirror.arrival(entry.seq)
                    for event in positions.before(entry.journal, entry.seq):
                        yield _with_store_cursor(event, pos, tag)
                    pos = entry.pos
                    if entry.record is None:
                        continue  # corrupt: its session is stopped with a report
                    record = await fetch_value(store, entry.record)
                    found = events_of(entry.journal, entry.seq, record, f"p{pos}", tag)
                    for event in found if pos > after.place else found[after.seen + 1 :]:
                        yield event
                if entries:
                    continue
                shown = news = False
                for event in positions.rest():
                    shown = True
                    yield _with_store_cursor(event, pos, tag)
                if not shown:
                    news = await feed.beyond(ALL_JOURNALS, pos, version)


@dataclass(eq=False, slots=True)
class _LivePositions:
    """A reader's positions in the live events of all driven sessions."""

    _clock: Clock
    _shown: OrderedDict[str, int]
    """The last shown record of each session that has live events, and of the last other ones."""
    _positions: dict[str, _LivePosition] = field(default_factory=dict[str, _LivePosition])
    _gap_reason: str | None = None

    def begin(self, buffers: list[LiveEventBuffer | MirroredEvents], after: Cursor) -> None:
        """Read the existing buffers, from the start or after the live event of a cursor."""
        for buffer in buffers:
            self._add(buffer, None)
        if after.buffer is None:
            return
        self._gap_reason = "the live events behind this cursor are not here any more"
        for live in self._positions.values():
            if live.knows(after.buffer):
                live.resume(after)
                self._gap_reason = None
            else:
                live.skip()

    def offer(self, buffer: LiveEventBuffer | MirroredEvents) -> None:
        """Read the buffer of a new drive."""
        self._add(buffer, min(self._shown.get(buffer.session, buffer.base), buffer.base))

    def _add(self, buffer: LiveEventBuffer | MirroredEvents, since: int | None) -> None:
        session = buffer.session
        if session not in self._positions:
            if len(self._positions) >= MAX_SESSIONS:
                self._gap_reason = "the reader was slower than the turns"
                return
            self._shown.setdefault(session, buffer.base)
            self._positions[session] = _LivePosition(session, since, self._clock)
        self._positions[session].offer(buffer)

    def miss(self, reason: str) -> None:
        """Show that live events are missing."""
        self._gap_reason = reason

    def lacking(self, session: str, seq: int) -> MirroredEvents | None:
        """The copy of a drive that may still get events before record `seq` of a session."""
        live = self._positions.get(session)
        return None if live is None else live.lacking(seq)

    def before(self, session: str, seq: int) -> Iterator[events.LiveEvent]:
        """Live events that come before a record that is shown next."""
        yield from self._gap()
        live = self._positions.get(session)
        if live is not None:
            yield from live.upto(seq - 1)
        self._shown[session] = seq
        self._shown.move_to_end(session)
        if len(self._shown) > 2 * MAX_SESSIONS:
            self._forget_shown()

    def _forget_shown(self) -> None:
        old = [session for session in self._shown if session not in self._positions]
        for session in old[: len(self._shown) - MAX_SESSIONS]:
            del self._shown[session]

    def rest(self) -> Iterator[events.LiveEvent]:
        """Live events after the last records. Forgets sessions that have no more."""
        yield from self._gap()
        for session, live in list(self._positions.items()):
            yield from live.upto(self._shown[session])
            if live.done:
                del self._positions[session]

    def _gap(self) -> Iterator[events.LiveEvent]:
        if self._gap_reason is not None:
            now = self._clock.read().wall
            yield events.Gap(session="", turn=None, at=now, seq=0, cursor="", reason=self._gap_reason)
            self._gap_reason = None


def _with_store_cursor(event: events.LiveEvent, pos: int, tag: str) -> events.LiveEvent:
    _, tilde, live = event.cursor.partition("@")[0].partition("~")
    return msgspec.structs.replace(event, cursor=f"p{pos}{tilde}{live}@{tag}")
