"""Lists, events, stuck reports and pruning of processes. A list costs what it shows, not the age of the processes."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import unquote

import msgspec

from holdfast import errors, records
from holdfast.crashpoints import crash_point
from holdfast.processes import keys
from holdfast.processes import state as process_state
from holdfast.processes.retries import inherited_history
from holdfast.processes.state import TERMINAL_STATUSES, ProcessState, ProcessStatus, Registration, decode_begin
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.inbox import STOP_KEY
from holdfast.store.spending import spend_by_day

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from holdfast.store import Spend, Store
    from holdfast.store.contract import Journal, JournalPreview, Owner, Wait, Work
    from holdfast.store.retention import Tombstone


T = TypeVar("T")
_STORED_STATUS: Final[dict[str, records.Status]] = {
    "created": "idle",
    "succeeded": "completed",
    "abandoned": "failed",
    "interrupted": "failed",
}


def stored_status(status: ProcessStatus | process_state.TaskStatus) -> records.Status:
    """The status under which the store lists a process. The store keeps abandoned and interrupted ones as failed."""
    return _STORED_STATUS.get(status) or cast("records.Status", status)


DAMAGE: Final = (
    errors.JournalCorrupt,
    errors.JournalQuarantined,
    errors.RecordUnreadable,
    errors.BlobCorrupt,
    errors.BlobMissing,
)
"""Errors of one journal. A list goes on with the next one."""
PAGE: Final = 500
"""Page size for reads of a whole list."""
MIN_PAGE: Final = 50
"""Smallest page of a list with a filter, which may drop lines."""
PREVIEW_RECORDS: Final = 32
"""Number of last records that lists read. A shorter journal is read whole."""


async def preview_processes(store: Store, journals: Sequence[str], tail: int = PREVIEW_RECORDS) -> list[JournalPreview]:
    """Previews of processes: the list line, the registration, the last transfer, and the last records."""
    return await store.preview_journals(journals, prefix=keys.TRANSFER_PREFIX, tail=tail)


def state_of_preview(found: JournalPreview) -> ProcessState:
    """Fold the state of a durable function or background call from the preview of its journal.

    For a long journal, its runner, its number of starts and its children are as in the last records.
    """
    line, tail = found.line, found.tail or []
    is_task = line.role == keys.TASK_ROLE
    state = ProcessState(line.id, line.agent, line.session, is_task=is_task, created=line.created, updated=line.updated)
    if found.first is not None and found.first.key == keys.CALL_KEY:
        state.register(found.first.body)
    for entry in tail:
        state.add(entry.record)
        key = getattr(entry.record, "key", None)
        attempt = keys.attempt_of_run(unquote(key.partition("/")[0])) if isinstance(key, str) else None
        state.attempt = max(state.attempt, attempt or 1)
    state.records.clear()
    state.head = line.head
    if not tail or tail[0].seq > 1:
        if state.status == "running" and line.status != "idle":  # nothing among the last records says otherwise
            state.status = cast("ProcessStatus", line.status)
        if found.latest is not None:
            state.session = process_state.transferred_to(found.latest.body)
    return state


class ProcessLine(msgspec.Struct, frozen=True, kw_only=True):
    """One process in a list. Times are wall milliseconds."""

    id: str
    name: str | None
    status: ProcessStatus
    session: str | None = None
    parent: str | None = None
    """The process that started it; of a work item the process, session or turn (``session/t3``) it belongs to."""
    attempt: int = 1
    created: int = 0
    updated: int = 0
    ended: int | None = None
    by: str | None = None
    """The operating-system process that ran it last."""
    starts: int = 0
    waits: tuple[str, ...] = ()
    """Labels of its open waits."""
    error: str | None = None
    children: tuple[str, ...] = ()
    pruned: int | None = None
    """When it was pruned; None while it is there."""
    stuck: str | None = None
    """Why it does not continue by itself. Only lists fill it in."""
    retry_of: str | None = None
    """The process that this one retries."""
    retry_step: str | None = None
    """The step from which the retry began; None: from the failure."""
    reused: int = 0
    """The number of results that a retry takes from the old process. Lists leave it out."""
    retries: tuple[str, ...] = ()
    """Its retries, oldest first. Lists leave them out."""
    title: str | None = None
    """The title of a work item."""
    tags: tuple[str, ...] = ()
    requested_by: str | None = None
    note: str | None = None
    """The newest progress note of a work item."""
    fraction: float | None = None
    """The part of it that is done, from 0 to 1."""


class ProcessEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a process. `seq` is its position, and a cursor."""

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
    made, told = state.registration, state.progress
    item = None if made is None else made.item
    return ProcessLine(
        id=state.id,
        name=state.name,
        status=cast("ProcessStatus", state.status),
        session=state.session,
        parent=_parent_name(made),
        attempt=state.attempt,
        created=state.created,
        updated=state.updated,
        ended=state.ended,
        by=state.by,
        starts=state.starts,
        waits=tuple(keys.wait_label(wait) for wait in state.waits),
        error=None if state.error is None else f"{state.error.kind}: {state.error.message}",
        children=tuple(state.children),
        retry_of=None if made is None or made.retry is None else made.retry.process,
        retry_step=None if made is None or made.retry is None else made.retry.step,
        reused=0 if state.inherited is None else state.inherited.results,
        title=None if item is None else item.title,
        tags=() if item is None else item.tags,
        requested_by=None if item is None else item.requested_by,
        note=None if told is None else told.note,
        fraction=None if told is None else told.fraction,
    )


def _parent_name(made: Registration | None) -> str | None:
    if made is not None and made.parent is not None:
        return keys.process_id_of(made.parent)
    return None if made is None or made.item is None else made.item.parent_name


def process_event(journal: str, seq: int, record: records.Record) -> ProcessEvent:
    """The event for a record; None for records that make none."""

    def event(what: str, **told: Any) -> ProcessEvent:
        return ProcessEvent(process=keys.process_id_of(journal), seq=seq, at=record.at, what=what, **told)

    match record:
        case records.Opened():
            return event("created", detail=record.agent)
        case records.Admitted():
            other = "transferred" if record.key.startswith(keys.TRANSFER_PREFIX) else "came"
            if record.key.startswith(keys.PROGRESS_PREFIX):
                other = "progressed"
            if record.key.startswith(keys.CHILD_PREFIX):
                other = "adopted"
            what = _INPUT_EVENTS.get(record.key, other)
            return event(what, detail=msgspec.json.decode(bytes(record.body)) if record.body else None)
        case records.Started():
            return event("started", key=record.run, detail=record.by)
        case records.Resumed():
            return event("resumed", key=record.run, detail=record.by)
        case records.Parked():
            return event("waiting", detail=[keys.wait_label(wait) for wait in record.waits])
        case records.Ended():
            error = None if record.error is None else f"{record.error.kind}: {record.error.message}"
            return event(process_state.process_status(record), key=record.run, detail=error)
        case records.Intended():
            return event("asked", key=record.key, kind=record.ask.kind)
        case records.Done():
            return event("done", key=record.key, kind=record.ask and record.ask.kind, ms=record.ms)
        case records.Failed():
            told = f"{record.error.kind}: {record.error.message}"
            return event("failed", key=record.key, kind=record.ask and record.ask.kind, ms=record.ms, detail=told)
        case records.Unknown():
            return event("unknown", key=record.key)
        case records.Cancelled():
            return event("cancelled", key=record.key)
        case records.Grouped():
            return event("grouped", key=record.key, detail=list(record.members))
        case records.Progressed():
            return event("progressed", detail=record.note)
        case records.Handed():
            return event("handed_over", key=record.key, detail=record.agent)


_INPUT_EVENTS: Final = {
    keys.CALL_KEY: "registered",
    STOP_KEY: "cancel_requested",
    keys.ABANDON_KEY: "abandon_requested",
}


class StuckProcess(msgspec.Struct, frozen=True):
    """A process that needs a person."""

    id: str
    name: str | None
    reason: str
    command: str
    """The command that helps."""


def why_stuck(
    state: ProcessState,
    *,
    driven: bool,
    woken: bool = False,
    known: bool = True,
    works: bool = True,
    error: records.ErrorInfo | None = None,
) -> StuckProcess | None:
    """Why a process does not continue, and the command that helps; None if it does or will.

    `driven`: a live worker holds its lease. `woken`: its inbox has news that no drive has seen. `known`: this runtime
    has its function. `works`: this runtime drives processes. `error`: the error with which a runtime gave it up.
    """
    id = shlex.quote(state.id)
    give_up = f"holdfast processes abandon {id} --reason TEXT"

    def stuck(reason: str, command: str) -> StuckProcess:
        return StuckProcess(state.id, state.name, reason, command)

    if state.over or driven:
        return None
    if error is not None:
        cure = "repair the cause and open the store again"
        if error.kind == "ReplayMismatch":
            cure = "put the change behind 'if await ctx.version(\"NAME\")', or run the code that began it"
        return stuck(error.message, f"{cure}, or: {give_up}")
    if state.status == "waiting" and not woken:
        label = keys.wait_label(state.waits[0]) if state.waits else ""
        if label.startswith("signal "):
            name = shlex.quote(label.removeprefix("signal "))
            reason = f"it waits for the {label}, without a limit of time"
            return stuck(reason, f"holdfast processes signal {id} {name} JSON")
        completed = label.startswith("its completion")
        return stuck(f"it waits for {label}", f"holdfast processes complete {id} JSON") if completed else None
    if state.starts and state.registration is not None and state.registration.recovery == "owner":
        return stuck(f"{state.by} ran it and is gone; no other process may go on", give_up)
    work = f"holdfast processes work MODULE, with a module that has {state.name!r}"
    if not works:
        return stuck("no process runs it now", work)
    return None if known else stuck(f"this runtime has no function {state.name!r}", work)


async def read_process(store: Store, journal: str) -> ProcessState:
    """Read a durable function or background call with all of its records; `JournalMissing` if there is none."""
    state = ProcessState(journal)
    async for entry in store.read_all(journal):
        state.add(entry.record)
    if state.head == 1 and (found := await store.input(journal, 1)) is not None and found.key == keys.CALL_KEY:
        state.register(found.body)  # it was accepted and never driven
    made = state.registration
    if made is not None and made.retry is not None:
        old = await read_process(store, keys.process_journal(made.retry.process))
        run = keys.attempt_run(old.attempt)
        whole = inherited_history(journal, made.retry, old.journal, run, old.records, old.inherited)
        above = {} if old.inherited is None else old.inherited.birthplaces
        whole.birthplaces = {**above, old.journal: await store.birthplace(old.journal)}
        state.inherited = whole
    return state


async def glance_process(store: Store, journal: str) -> ProcessState:
    """The state of a process from its preview, or from all of its records if it has no preview."""
    found = await preview_processes(store, [journal])
    return state_of_preview(found[0]) if found and found[0].tail is not None else await read_process(store, journal)


MAX_REPORTED: Final = 1_000
"""Longest list of processes in a prune report."""


class PrunedProcess(msgspec.Struct, frozen=True):
    """A process that was pruned, or would be."""

    id: str
    name: str | None
    status: ProcessStatus
    ended: int | None


class KeptProcess(msgspec.Struct, frozen=True):
    """A process that is old enough to prune but was kept."""

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
    """The first thousand that were old enough but kept, with the reason."""


def tombstone_line(stone: Tombstone) -> ProcessLine:
    """The list line of a pruned process."""
    return ProcessLine(
        id=keys.process_id_of(stone.journal),
        name=stone.agent,
        status=tombstone_status(stone.detail),
        session=stone.session,
        created=stone.created,
        updated=stone.updated,
        ended=stone.updated,
        pruned=stone.at,
    )


def tombstone_event(stone: Tombstone) -> ProcessEvent:
    """The one event of a pruned process in the changes."""
    return ProcessEvent(
        process=keys.process_id_of(stone.journal),
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


async def journal_pages(
    store: Store, role: str, *, size: int | None = None, before: Journal | None = None, **wanted: Any
) -> AsyncGenerator[list[Journal]]:
    """Journals of durable functions, background calls or triggers, the last changed first."""
    size = store.limits.page if size is None else min(max(size, MIN_PAGE), store.limits.page)
    while page := await store.journals(kind="process", role=role, before=before, limit=size, **wanted):
        yield page
        if len(page) < size:
            return
        before = page[-1]


async def read_pages(
    read: Callable[..., Awaitable[Sequence[T]]], *, limit: int = PAGE, **terms: Any
) -> AsyncGenerator[T]:
    """All items of a list of the store, page by page; `limit` is the size of a page."""
    last: T | None = None
    while page := await read(before=last, limit=limit, **terms):
        for item in page:
            yield item
        last = page[-1]


async def all_work(store: Store) -> AsyncGenerator[tuple[Work, Owner | None]]:
    """Journals with pending work or a live driver, with that driver."""
    last = 0
    while page := await store.work(last):
        for work in page:
            gone = work.holder is None or store.owner_gone(work.holder)
            yield work, None if gone else work.holder
        last = page[-1].no


def all_open_waits(store: Store, kind: str) -> AsyncGenerator[Wait]:
    """Open waits of one kind, in all journals."""
    return read_pages(partial(store.open_waits, kind), limit=store.limits.page)


async def prune_processes(
    store: Store, before: int, *, name: str | None = None, dry_run: bool = False, limit: int | None = None
) -> PruneReport:
    """Prune the processes that ended before a time, or the first `limit` of them."""
    pruned: list[PrunedProcess] = []
    kept: list[KeptProcess] = []
    counts = {True: 0, False: 0}
    async for line in _ended_processes(store, name, before):
        if limit is not None and counts[True] >= limit:
            break
        try:
            found = await _prune_process(store, line, dry_run=dry_run)
        except errors.JournalMissing:  # another process was quicker
            continue
        except errors.JournalInUse as error:
            found = error.reason
        except (*DAMAGE, ValueError) as error:  # ValueError: of msgspec; it is kept, and the others go all the same
            found = str(error)
        counts[isinstance(found, PrunedProcess)] += 1
        if isinstance(found, PrunedProcess):
            pruned.append(found)
        else:
            kept.append(KeptProcess(keys.process_id_of(line.id), line.agent, found))
        del pruned[MAX_REPORTED:], kept[MAX_REPORTED:]
    return PruneReport(counts[True], counts[False], dry_run, tuple(pruned), tuple(kept))


async def _ended_processes(store: Store, name: str | None, before: int) -> AsyncGenerator[Journal]:
    """Processes that ended before a time. Parents come before children that ended earlier."""
    for status in ("completed", "failed", "cancelled"):
        async for page in journal_pages(store, keys.PROCESS_ROLE, status=status, agent=name, changed_before=before):
            for line in page:
                yield line


async def _prune_process(store: Store, line: Journal, *, dry_run: bool) -> PrunedProcess | str:
    """Prune one process, or return why it is kept."""
    first = await store.input(line.id, 1)
    parent = None if first is None or first.key != keys.CALL_KEY else decode_begin(first.body, Registration).parent
    if parent is not None and await _is_under_way(store, parent):
        return f"{keys.process_id_of(parent)} started it, is under way, and may ask for it"
    state = await read_process(store, line.id)
    if not state.over:
        return f"it is {state.status}"
    for child in state.children:
        if await _is_under_way(store, keys.process_journal(child)):
            return f"{child}, which it started, is under way and tells it of its end"
    if not dry_run:
        spent = await _spent(store, state)
        crash_point("process.before_prune")
        await store.prune_journal(line.id, head=state.head, detail=state.status, key=keys.CALL_KEY, spent=spent)
        crash_point("process.after_prune")
    return PrunedProcess(state.id, state.name, cast("ProcessStatus", state.status), state.ended)


async def _is_under_way(store: Store, journal: str) -> bool:
    try:
        return (await store.journal(journal)).status not in TERMINAL_STATUSES
    except errors.JournalMissing:
        return False


async def _spent(store: Store, state: ProcessState) -> dict[int, Spend]:
    """Sum the spending in its records. It stays counted after pruning."""
    done = [record for record in state.records if isinstance(record, records.Done) and record.blob is not None]
    blobs = [one.blob.digest for one in done if one.blob and one.ask is not None and one.ask.kind == "direct"]
    bodies = {digest: await store.blob(digest) for digest in blobs}
    return spend_by_day(state.records, spend_of_record, lambda blob: bodies.get(blob.digest))
