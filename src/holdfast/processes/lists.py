"""Lists, events, stuck reports and pruning of processes. A list costs what it shows, not the age of the processes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, get_args
from urllib.parse import unquote

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.errors import BlobCorrupt, JournalMissing, JournalQuarantined, RecordUnreadable
from holdfast.errors.caller import JournalInUse
from holdfast.errors.store import JournalCorrupt
from holdfast.names import check_choice, check_int, is_process_journal
from holdfast.processes.state import (
    ABANDON_KEY,
    CALL_KEY,
    PROCESS_ROLE,
    STUCK_KIND,
    TERMINAL_STATUSES,
    TRANSFER_PREFIX,
    ProcessState,
    ProcessStatus,
    TaskState,
    attempt_of_run,
    decode_registration,
    process_id_of,
    process_journal,
    process_status,
    stuck_head,
    transferred_to,
    wait_label,
)
from holdfast.records import (
    Admitted,
    Cancelled,
    Done,
    Ended,
    ErrorInfo,
    Failed,
    Grouped,
    Handed,
    Intended,
    Opened,
    Parked,
    Progressed,
    Resumed,
    Started,
    Unknown,
    touches_lists,
)
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.contract import Journal
from holdfast.store.inbox import STOP_KEY
from holdfast.store.spending import spend_by_day

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

    from holdfast.engine.embedded import EmbeddedEngine
    from holdfast.records import Record, Status
    from holdfast.store import Spend, Store
    from holdfast.store.contract import JournalPreview, Owner, Wait, Work
    from holdfast.store.retention import Tombstone


S = TypeVar("S", bound=ProcessState)
CANCEL_KEY: Final = STOP_KEY
"""The key of the input that asks for a process to be cancelled."""
STORED_STATUS: Final[dict[ProcessStatus, Status]] = {
    "running": "running",
    "waiting": "waiting",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "abandoned": "failed",
}
"""How the lists of the store call a status."""
MIN_PAGE: Final = 50
"""Least number of lines read at once, since a filter may drop some of them."""
PREVIEW_RECORDS: Final = 32
"""Number of last records that lists read. Shorter processes are known as a whole."""
_STATUS_OF_STORED: Final[dict[Status, ProcessStatus]] = {
    "waiting": "waiting",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


def state_of_preview(found: JournalPreview) -> ProcessState:
    """The state of a process, from the preview of its journal.

    Of a long one, who ran it, how often it began and which children it has are known as far as its last records say.
    """
    line, tail = found.line, found.tail or []
    state = ProcessState(line.id, line.agent, line.session, created=line.created, updated=line.updated)
    if found.first is not None and found.first.key == CALL_KEY:
        state.registration = decode_registration(found.first.body)
    for entry in tail:
        state.add(entry.record)
        state.attempt = max(state.attempt, _attempt_of_record(entry.record))
    state.records.clear()
    state.head = line.head
    if not tail or tail[0].seq > 1:
        if state.status == "running":  # nothing among the last records says otherwise
            state.status = _STATUS_OF_STORED.get(line.status, "running")
        if found.latest is not None:
            state.session = transferred_to(found.latest.body)
    return state


def _attempt_of_record(record: Record) -> int:
    """The attempt that a record belongs to."""
    key = getattr(record, "key", None)
    return (attempt_of_run(unquote(key.partition("/")[0])) if isinstance(key, str) else None) or 1


class ProcessLine(msgspec.Struct, frozen=True, kw_only=True):
    """One process in a list. Times are wall milliseconds."""

    id: str
    name: str | None
    status: ProcessStatus
    session: str | None = None
    parent: str | None = None
    attempt: int = 1
    created: int = 0
    updated: int = 0
    ended: int | None = None
    by: str | None = None
    """The operating-system process that ran it last."""
    starts: int = 0
    waits: tuple[str, ...] = ()
    """What it waits for."""
    error: str | None = None
    children: tuple[str, ...] = ()
    pruned: int | None = None
    """When it was pruned; None while it is there."""
    stuck: str | None = None
    """The reason why it does not go on by itself. Only lists fill it in."""


class ProcessEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a process. `seq` is its position, and the cursor to go on after it."""

    process: str
    seq: int
    at: int
    what: str
    """started, resumed, waiting, asked, done, failed, unknown, cancelled, ended, signalled, ..."""
    key: str | None = None
    """The key of the step, sleep, wait or child."""
    kind: str | None = None
    ms: int | None = None
    detail: Any = None


def process_line(state: ProcessState) -> ProcessLine:
    """The list line of a process."""
    made = state.registration
    return ProcessLine(
        id=state.id,
        name=state.name,
        status=state.status,
        session=state.session,
        parent=None if made is None or made.parent is None else process_id_of(made.parent),
        attempt=state.attempt,
        created=state.created,
        updated=state.updated,
        ended=state.ended,
        by=state.by,
        starts=state.starts,
        waits=tuple(wait_label(wait) for wait in state.waits),
        error=None if state.error is None else f"{state.error.kind}: {state.error.message}",
        children=tuple(state.children),
    )


def process_event(journal: str, seq: int, record: Record) -> ProcessEvent:
    """The event that a record stands for."""

    def event(what: str, **told: Any) -> ProcessEvent:  # noqa: ANN401
        return ProcessEvent(process=process_id_of(journal), seq=seq, at=record.at, what=what, **told)

    match record:
        case Opened():
            return event("created", detail=record.agent)
        case Admitted():
            what = _INPUT_EVENTS.get(record.key) or (
                "transferred" if record.key.startswith(TRANSFER_PREFIX) else "came"
            )
            return event(what, detail=msgspec.json.decode(bytes(record.body)) if record.body else None)
        case Started():
            return event("started", key=record.run, detail=record.by)
        case Resumed():
            return event("resumed", key=record.run, detail=record.by)
        case Parked():
            return event("waiting", detail=[wait_label(wait) for wait in record.waits])
        case Ended():
            error = None if record.error is None else f"{record.error.kind}: {record.error.message}"
            return event(process_status(record), key=record.run, detail=error)
        case Intended():
            return event("asked", key=record.key, kind=record.ask.kind)
        case Done():
            return event("done", key=record.key, kind=record.ask and record.ask.kind, ms=record.ms)
        case Failed():
            told = f"{record.error.kind}: {record.error.message}"
            return event("failed", key=record.key, kind=record.ask and record.ask.kind, ms=record.ms, detail=told)
        case Unknown():
            return event("unknown", key=record.key)
        case Cancelled():
            return event("cancelled", key=record.key)
        case Grouped():
            return event("grouped", key=record.key, detail=list(record.members))
        case Progressed():
            return event("progressed", detail=record.note)
        case Handed():
            return event("handed_over", key=record.key, detail=record.agent)


_INPUT_EVENTS: Final = {
    CALL_KEY: "registered",
    CANCEL_KEY: "cancel_requested",
    ABANDON_KEY: "abandon_requested",
}


MISMATCH_ERROR: Final = "ReplayMismatch"


class StuckProcess(msgspec.Struct, frozen=True):
    """A process that needs a person."""

    id: str
    name: str | None
    reason: str
    command: str
    """The command that helps."""


class DriveSituation(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that decide whether a process is stuck."""

    driven: bool
    """A live operating-system process holds its lease."""
    woken: bool = False
    """Its inbox has news that no drive has seen."""
    known: bool = True
    """This runtime has its function."""
    works: bool = True
    """This runtime drives processes; False for the command line and read-only hosts."""
    error: ErrorInfo | None = None
    """The error with which a runtime gave it up."""
    timed: bool = False
    """One of its waits has a deadline."""


def why_stuck(state: ProcessState, now: DriveSituation) -> StuckProcess | None:
    """The reason why a process does not go on, and the command that helps; None if it does or will."""
    id = shlex.quote(state.id)
    give_up = f"holdfast processes abandon {id} --reason TEXT"

    def stuck(reason: str, command: str) -> StuckProcess:
        return StuckProcess(state.id, state.name, reason, command)

    if state.over or now.driven:
        return None
    if now.error is not None:
        if now.error.kind == MISMATCH_ERROR:
            cure = "put the change behind 'if await ctx.version(\"NAME\")', or run the code that began it"
        else:
            cure = "repair the cause and open the store again"
        return stuck(now.error.message, f"{cure}, or: {give_up}")
    if state.status == "waiting" and not now.woken:
        label = "" if now.timed or not state.waits else wait_label(state.waits[0])
        if label.startswith("signal "):
            name = shlex.quote(label.removeprefix("signal "))
            reason = f"it waits for the {label}, without a limit of time"
            return stuck(reason, f"holdfast processes signal {id} {name} JSON")
        completed = label.startswith("its completion")
        return stuck(f"it waits for {label}", f"holdfast processes complete {id} JSON") if completed else None
    owner = state.registration is not None and state.registration.recovery == "owner"
    if owner and state.starts:
        return stuck(f"{state.by} ran it and is gone; nobody else may go on", give_up)
    work = f"holdfast processes work MODULE, with a module that has {state.name!r}"
    if not now.works:
        return stuck("no process runs it now", work)
    return None if now.known else stuck(f"this runtime has no function {state.name!r}", work)


async def read_process(store: Store, journal: str) -> ProcessState:
    """A process with all of its records; `JournalMissing` when there is none."""
    return await read_state(store, ProcessState(journal))


async def read_task(store: Store, id: str) -> TaskState:
    """A background call with all of its records; `JournalMissing` when there is none."""
    return await read_state(store, TaskState(id))


async def read_state(store: Store, state: S) -> S:
    """Fold all records of a journal into a fresh `state`; `JournalMissing` when there is none."""
    async for entry in store.read_all(state.journal):
        state.add(entry.record)
    if state.head == 1 and (found := await store.input(state.journal, 1)) is not None and found.key == CALL_KEY:
        state.register(found.body)  # it was accepted and never driven
    return state


MAX_REPORTED: Final = 1_000
"""Longest list of processes in a prune report."""


class PrunedProcess(msgspec.Struct, frozen=True):
    """A process that was pruned, or would be."""

    id: str
    name: str | None
    status: ProcessStatus
    ended: int | None


class KeptProcess(msgspec.Struct, frozen=True):
    """A process that is old enough to prune, and was kept."""

    id: str
    name: str | None
    reason: str


class PruneReport(msgspec.Struct, frozen=True):
    """The result of a pruning, or of a dry run."""

    pruned: int
    kept: int
    dry_run: bool
    processes: tuple[PrunedProcess, ...] = ()
    """The first thousand that were pruned."""
    reasons: tuple[KeptProcess, ...] = ()
    """The first thousand that were kept although they are old enough, with the reason."""


def reason_to_keep(state: ProcessState, family: Mapping[str, str]) -> str | None:
    """The reason to keep a process; None if it may go. `family` maps journals of relatives to their status."""
    if not state.over:
        return f"it is {state.status}"
    parent = None if state.registration is None else state.registration.parent
    if parent is not None and family.get(parent, "completed") not in TERMINAL_STATUSES:
        return f"{process_id_of(parent)} started it, is under way, and may ask for it"
    going = next((journal for journal, status in family.items() if status not in TERMINAL_STATUSES), None)
    return None if going is None else f"{process_id_of(going)}, which it started, is under way and tells it of its end"


def tombstone_line(stone: Tombstone) -> ProcessLine:
    """The list line of a pruned process."""
    return ProcessLine(
        id=process_id_of(stone.journal),
        name=stone.agent,
        status=tombstone_status(stone.detail),
        session=stone.session,
        created=stone.created,
        updated=stone.updated,
        ended=stone.updated,
        pruned=stone.at,
    )


def tombstone_event(stone: Tombstone) -> ProcessEvent:
    """The one event that stands for a pruned process in the changes."""
    return ProcessEvent(
        process=process_id_of(stone.journal),
        seq=stone.head,
        at=stone.updated,
        what="pruned",
        detail=tombstone_status(stone.detail),
    )


def tombstone_status(detail: str) -> ProcessStatus:
    """The final status in a tombstone."""
    return msgspec.convert(detail, ProcessStatus)


class ProcessChanges(NamedTuple):
    """Events of processes, and the cursor to go on from."""

    cursor: int
    changed: Sequence[ProcessEvent]


class ProcessFilter(NamedTuple):
    """The filter of a list."""

    status: ProcessStatus | None = None
    name: str | None = None
    session: str | None = None
    parent: str | None = None

    def fits(self, line: ProcessLine) -> bool:
        """Whether the filter lets a process through."""
        wanted = (self.status, self.name, self.session, self.parent)
        found = (line.status, line.name, line.session, line.parent)
        return all(one is None or one == other for one, other in zip(wanted, found, strict=True))


@dataclass(slots=True)
class _StoreView:
    """Who drives what in the store, at one moment."""

    driven: set[str] = field(default_factory=set[str])
    """Journals whose lease a live process holds."""
    woken: set[str] = field(default_factory=set[str])
    """Journals that have work and no live holder."""
    stopped: dict[str, tuple[int | None, ErrorInfo]] = field(default_factory=dict[str, tuple[int | None, ErrorInfo]])
    """The error that stopped a journal, with its head at that time; the head is None for errors of this runtime."""

    def error(self, journal: str, head: int) -> ErrorInfo | None:
        """The error that stopped a journal, unless it has grown since."""
        at, error = self.stopped.get(journal, (0, None))
        return error if at is None or at == head else None


async def journal_pages(
    store: Store,
    role: str,
    *,
    size: int | None = None,
    before: Journal | None = None,
    **wanted: Any,  # noqa: ANN401
) -> AsyncGenerator[list[Journal]]:
    """Journals of durable functions, background calls or triggers, the last changed first."""
    size = store.limits.page if size is None else min(max(size, MIN_PAGE), store.limits.page)
    while page := await store.journals(kind="process", role=role, before=before, limit=size, **wanted):
        yield page
        if len(page) < size:
            return
        before = page[-1]


async def all_work(store: Store) -> AsyncGenerator[tuple[Work, Owner | None]]:
    """Journals that have work or are driven, with the live process that drives them."""
    after = 0
    while page := await store.work(after):
        for work in page:
            gone = work.holder is None or store.owner_gone(work.holder)
            yield work, None if gone else work.holder
        after = page[-1].no


async def all_open_waits(store: Store, kind: str) -> AsyncGenerator[Wait]:
    """Open waits of one kind, in all journals."""
    last: Wait | None = None
    while waits := await store.open_waits(kind, before=last, limit=store.limits.page):
        for wait in waits:
            yield wait
        last = waits[-1]


class ProcessLists:
    """Questions about all processes of a store."""

    def __init__(self, store: Store, functions: Collection[str]) -> None:
        self._store = store
        self._functions = functions
        self.engine: EmbeddedEngine | None = None

    # ---- lists -------------------------------------------------------------------------------------------------------

    async def list(self, wanted: ProcessFilter, before: ProcessLine | None, limit: int) -> list[ProcessLine]:
        """Processes, the last changed first."""
        if wanted.status is not None:
            check_choice("process status", wanted.status, get_args(ProcessStatus))
        check_int("limit", limit, least=1)
        last = None if before is None else await self._position(before)
        found: list[ProcessLine] = []
        if wanted.parent is not None:
            candidates = self._children(wanted.parent, last)
        elif wanted.session is not None:
            candidates = self._of_session(wanted, last)
        else:
            candidates = self._pages(wanted, last, limit)
        async for lines in candidates:
            found += [line for line in await self._lines(lines) if wanted.fits(line)]
            if len(found) >= limit:
                break
        return found[:limit]

    async def _position(self, line: ProcessLine) -> Journal:
        """The position of a line in the list, even if its process was pruned meanwhile."""
        try:
            return await self._store.journal(process_journal(line.id))
        except JournalMissing:
            stone = await self._store.tombstone(process_journal(line.id))
            updated = line.updated if stone is None else stone.updated
            return Journal(process_journal(line.id), "process", line.name, "completed", 1, line.created, updated)

    def _pages(self, wanted: ProcessFilter, last: Journal | None, size: int) -> AsyncGenerator[list[Journal]]:
        status = None if wanted.status is None else STORED_STATUS[wanted.status]
        return journal_pages(
            self._store, PROCESS_ROLE, size=size, agent=wanted.name, status=status, session=wanted.session, before=last
        )

    async def _children(self, parent: str, last: Journal | None) -> AsyncGenerator[list[Journal]]:
        """The children of a process, as its state names them."""
        try:
            state = await read_process(self._store, process_journal(parent))
        except JournalMissing:
            return
        found = await self._store.preview_journals(
            [process_journal(id) for id in state.children], prefix=TRANSFER_PREFIX, tail=1
        )
        yield _lines_after([each.line for each in found], last)

    async def _of_session(self, wanted: ProcessFilter, last: Journal | None) -> AsyncGenerator[list[Journal]]:
        """Processes that were started for a session, and all that were ever transferred."""
        left: dict[str, Journal] = {}
        after = ""
        while ids := await self._store.transferred(TRANSFER_PREFIX, after=after):
            moved = await self._store.preview_journals(ids, prefix=TRANSFER_PREFIX, tail=1)
            left |= {each.line.id: each.line for each in moved}
            after = ids[-1]
        async for page in self._pages(wanted, last, self._store.limits.page):
            own = [line for line in page if line.id not in left]
            late = _lines_after(
                [line for line in left.values() if _list_position(line) > _list_position(page[-1])], last
            )
            yield sorted([*own, *late], key=_list_position, reverse=True)
            last = page[-1]
        yield _lines_after(list(left.values()), last)

    async def _lines(self, listed: Sequence[Journal]) -> list[ProcessLine]:
        """The lines of these journals, without quarantined ones."""
        ids = [line.id for line in listed if line.quarantine is None]
        found = await self._store.preview_journals(ids, prefix=TRANSFER_PREFIX, tail=PREVIEW_RECORDS)
        states = [(each, state_of_preview(each)) for each in found if each.tail is not None]
        if all(state.over for _, state in states):
            return [process_line(state) for _, state in states]
        view = await self._view()
        told: list[ProcessLine] = []
        for each, state in states:
            stuck = None if state.over else await self._reason(each, view)
            told.append(msgspec.structs.replace(process_line(state), stuck=None if stuck is None else stuck.reason))
        return told

    # ---- what needs a person -----------------------------------------------------------------------------------------

    async def stuck(self, limit: int | None) -> list[StuckProcess]:
        """Processes that need a person, with the command that helps."""
        if limit is not None:
            check_int("limit", limit, least=1)
        view = await self._view()
        found: dict[str, StuckProcess] = {}
        async for page in self._candidates_for_stuck(view):
            undriven = [line for line in page if line.id not in view.driven]
            for reason in await self._reasons(undriven, view):
                found.setdefault(reason.id, reason)
            if limit is not None and len(found) >= limit:
                break
        return list(found.values())[:limit]

    async def _candidates_for_stuck(self, view: _StoreView) -> AsyncGenerator[list[Journal]]:
        """Candidates: stopped, woken, running and idle processes, and waiting ones without a deadline."""
        if stopped := list({**view.stopped, **dict.fromkeys(view.woken)}):
            yield [each.line for each in await self._store.preview_journals(stopped, prefix=TRANSFER_PREFIX, tail=1)]
        for status in ("running", "waiting", "idle"):
            async for lines in journal_pages(self._store, PROCESS_ROLE, status=status, untimed=status == "waiting"):
                yield lines

    async def _reasons(self, lines: Sequence[Journal], view: _StoreView) -> list[StuckProcess]:
        reasons: list[StuckProcess] = []
        for line in lines:
            if line.quarantine is not None:
                told = f"its journal is damaged: {line.quarantine}"
                reasons.append(StuckProcess(process_id_of(line.id), line.agent, told, "holdfast doctor"))
        sound = [line.id for line in lines if line.quarantine is None]
        for each in await self._store.preview_journals(sound, prefix=TRANSFER_PREFIX, tail=PREVIEW_RECORDS):
            reason = await self._reason(each, view)
            if reason is not None:
                reasons.append(reason)
        return reasons

    async def _reason(self, each: JournalPreview, view: _StoreView) -> StuckProcess | None:
        state, journal = state_of_preview(each), each.line.id
        owned = state.registration is not None and state.registration.recovery == "owner"
        if owned and state.status == "running" and state.by is None and each.line.head > PREVIEW_RECORDS:
            state = await read_process(self._store, journal)  # who ran it stands further up
        now = DriveSituation(
            driven=journal in view.driven,
            woken=journal in view.woken,
            known=state.name in self._functions,
            works=self.engine is not None,
            error=view.error(journal, each.line.head),
        )
        found = why_stuck(state, now)
        if found is not None and state.status == "waiting" and now.error is None and not now.woken:
            waits = await self._store.waits(journal, state="open")
            return None if any(wait.deadline is not None for wait in waits) else found
        return found

    async def _view(self) -> _StoreView:
        view = _StoreView()
        async for work, holder in all_work(self._store):
            if work.role == PROCESS_ROLE:
                (view.woken if holder is None else view.driven).add(work.journal)
        async for wait in all_open_waits(self._store, STUCK_KIND):
            error = msgspec.json.decode(wait.body or b"", type=ErrorInfo)
            view.stopped.setdefault(wait.journal, (stuck_head(wait.name), error))
        if self.engine is not None:
            for journal in filter(is_process_journal, self.engine.all_stuck):
                error = self.engine.stuck(journal)
                if error is not None:
                    view.stopped[journal] = (None, ErrorInfo(type(error).__name__, str(error)))
        return view

    async def holder(self, journal: str) -> Owner | None:
        """The live holder of the lease of a journal, if there is one."""
        async for work, holder in all_work(self._store):
            if work.journal == journal:
                return holder
        return None

    # ---- changes -----------------------------------------------------------------------------------------------------

    async def changes(self, after: int, limit: int | None) -> ProcessChanges:
        """Events after a cursor. Pruned processes give one event each."""
        entries = await self._store.feed(after=after, limit=limit)
        if not entries:
            return ProcessChanges(after, [])
        end = entries[-1].pos
        stones = await self._store.tombstones(after=after, role=PROCESS_ROLE, limit=limit)
        if len(stones) >= min(limit or self._store.limits.page, self._store.limits.page):
            end = min(end, stones[-1].pos)  # there may be more of them: the next call goes on behind this one
        changed = [
            (entry.pos, process_event(entry.journal, entry.seq, entry.record))
            for entry in entries
            if entry.pos <= end and entry.record is not None
            if is_process_journal(entry.journal) and touches_lists(entry.record)
        ]
        changed += [(stone.pos, tombstone_event(stone)) for stone in stones if stone.pos <= end]
        return ProcessChanges(end, [event for _, event in sorted(changed, key=lambda one: one[0])])


def _list_position(line: Journal) -> tuple[int, str]:
    return line.updated, line.id


def _lines_after(lines: Sequence[Journal], last: Journal | None) -> list[Journal]:
    """The lines after `last`, in list order."""
    later = [line for line in lines if last is None or _list_position(line) < _list_position(last)]
    return sorted(later, key=_list_position, reverse=True)


_STORED_TERMINAL = ("completed", "failed", "cancelled")
_DAMAGE = (BlobCorrupt, JournalCorrupt, JournalQuarantined, RecordUnreadable, ValueError)
"""Errors of one damaged process (those of msgspec are ValueErrors). The others are pruned all the same."""


async def _lines_of(listed: list[AsyncGenerator[list[Journal]]]) -> AsyncGenerator[Journal]:
    for pages in listed:
        async for page in pages:
            for line in page:
                yield line


class ProcessPruner:
    """One pruning of the processes of a store."""

    def __init__(self, store: Store, before: int, name: str | None, *, dry_run: bool) -> None:
        self._store = store
        self._before = before
        self._name = name
        self._dry_run = dry_run
        self._pruned: list[PrunedProcess] = []
        self._kept: list[KeptProcess] = []
        self._counts = [0, 0]

    async def run(self, limit: int | None = None) -> PruneReport:
        """Prune everything that is old enough, or the first `limit`."""
        # Parents come before children that ended earlier.
        filters: dict[str, Any] = {"agent": self._name, "changed_before": self._before}
        pages = [journal_pages(self._store, PROCESS_ROLE, status=status, **filters) for status in _STORED_TERMINAL]
        async for line in _lines_of(pages):
            if limit is not None and self._counts[0] >= limit:
                break
            try:
                reason = await self._prune(line)
            except JournalInUse as error:
                reason = error.reason
            except JournalMissing:  # somebody else was quicker
                continue
            except _DAMAGE as error:  # it is kept, and the others go all the same
                reason = str(error)
            if reason is not None:
                self._counts[1] += 1
                if len(self._kept) < MAX_REPORTED:
                    self._kept.append(KeptProcess(process_id_of(line.id), line.agent, reason))
        pruned, kept = self._counts
        return PruneReport(pruned, kept, self._dry_run, tuple(self._pruned), tuple(self._kept))

    async def _prune(self, line: Journal) -> str | None:
        """Prune one process; answers the reason if it is kept."""
        first = await self._store.input(line.id, 1)
        parent = None if first is None or first.key != CALL_KEY else decode_registration(first.body).parent
        if parent is not None and (await self._statuses([parent])).get(parent) in {"running", "waiting", "idle"}:
            return f"{process_id_of(parent)} started it, is under way, and may ask for it"
        state = await read_process(self._store, line.id)
        reason = reason_to_keep(state, await self._statuses([process_journal(id) for id in state.children]))
        if reason is not None:
            return reason
        if not self._dry_run:
            spent = await self._spent(state)
            crash_point("process.before_prune")
            await self._store.prune_journal(line.id, head=state.head, detail=state.status, key=CALL_KEY, spent=spent)
            crash_point("process.after_prune")
        self._counts[0] += 1
        if len(self._pruned) < MAX_REPORTED:
            self._pruned.append(PrunedProcess(state.id, state.name, state.status, state.ended))
        return None

    async def _statuses(self, journals: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for journal in journals:
            try:
                found[journal] = (await self._store.journal(journal)).status
            except JournalMissing:
                continue
        return found

    async def _spent(self, state: ProcessState) -> dict[int, Spend]:
        """The spending in its records. It stays counted when the records are gone."""
        bodies: dict[str, bytes | None] = {}
        for record in state.records:
            if not isinstance(record, Done) or record.blob is None:
                continue
            if record.ask is not None and record.ask.kind == "direct":
                bodies[record.blob.digest] = await self._store.blob(record.blob.digest)
        return spend_by_day(state.records, spend_of_record, lambda blob: bodies.get(blob.digest))
