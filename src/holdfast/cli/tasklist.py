"""What `holdfast tasks` does: finding tasks in a store, telling of them, and cancelling one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import msgspec

from holdfast.cli.failures import FAILED, SessionAmbiguous
from holdfast.cli.sessions import changing, find_session, looking
from holdfast.cli.tables import status_table, tell
from holdfast.cli.terminal import duration, one_line, stdout
from holdfast.errors import JournalMissing, TaskUnknown
from holdfast.hands.tasks.glance import glance
from holdfast.hands.tasks.words import as_lines, progress
from holdfast.names import check_choice
from holdfast.runtime.desk import ROLE
from holdfast.tasks import TaskState, TaskStatus

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cli.terminal import Terminal
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Journal, Store

_PATIENCE: Final = 2.0
"""How long `cancel` waits for the end, in seconds."""
_HEADINGS: Final = ["TASK", "TOOL", "STATUS", "SESSION", "CHANGED", "BY"]


class Line(msgspec.Struct, frozen=True):
    """One task, as it stands. Times are wall milliseconds."""

    id: str
    tool: str | None
    status: TaskStatus
    session: str | None
    agent: str | None
    created: int
    updated: int
    ended: int | None = None
    note: str | None = None
    """What was reported last."""
    fraction: float | None = None
    error: str | None = None
    pid: int | None = None
    """The process that carries it out."""


class Whole(msgspec.Struct, frozen=True):
    """One task with what it was asked and what it gave."""

    task: Line
    arguments: dict[str, Any]
    turn: str | None
    reports: int
    starts: int
    waits: tuple[str, ...]
    result: msgspec.Raw | None = None


async def listed(path: Path, session: str | None, status: str | None, limit: int, *, as_json: bool) -> int:
    """List tasks, those that changed last first."""
    if status is not None:
        check_choice("task status", status, get_args(TaskStatus))
    wanted = cast("TaskStatus | None", status)
    async with looking(path) as runtime:
        journal = None if session is None else (await find_session(runtime.store, session)).id
        lines = await _lines(runtime, journal, wanted, limit)
        now = runtime.store.clock.read().wall
    tell(lines, lambda out: _rows(out, lines, now), nothing="no tasks", as_json=as_json)
    return 0


async def shown(path: Path, given: str, *, as_json: bool) -> int:
    """Show one task with its result."""
    async with looking(path) as runtime:
        id = await find_task(runtime.store, given)
        state = await runtime.tasks.task(id)
        result = await runtime.tasks.result(state)
        line = _line(state, (await _workers(runtime.store)).get(id))
        now = runtime.store.clock.read().wall
    out = stdout()
    call = state.call
    whole = Whole(
        task=line,
        arguments={} if call is None else call.arguments,
        turn=None if call is None else call.turn,
        reports=state.reports,
        starts=state.starts,
        waits=state.waits,
        result=None if result is None else msgspec.Raw(result),
    )
    if as_json:
        out.line(msgspec.json.encode(whole).decode())
        return 0
    out.write("".join(f"{text}\n" for text in _story(out, whole, state, now)))
    if result is not None:
        out.line()
        out.line(out.clean(as_lines(result).decode()))
    return 0


async def cancelled(path: Path, given: str, reason: str) -> int:
    """Cancel a task; carried out here if nobody works on it."""
    out = stdout()
    async with changing(path) as runtime:
        id = await find_task(runtime.store, given)
        asked = await runtime.tasks.cancel(id, reason)
        if asked != "too_late":
            await runtime.tasks.settle(id)
        state = await _awaited(runtime, id)
        pid = (await _workers(runtime.store)).get(id)
    if not state.over:
        who = f"process {pid}" if pid else "whoever opens the store next"
        out.line(f"asked for: {who} has yet to stop {id}")
        return FAILED
    if state.status == "cancelled" and asked != "too_late":
        out.line(f"cancelled {id}")
        return 0
    out.line(f"too late: {id} had ended ({_end(state)})")
    return FAILED


def _end(state: TaskState) -> str:
    """How a task ended, and why if it did not end well."""
    error = state.error
    told = () if error is None else (part for part in (error.kind, error.message) if part not in {"", state.status})
    return ": ".join((state.status, *(one_line(part, 200) for part in told)))


async def _awaited(runtime: Runtime, id: str) -> TaskState:
    """The task when it is over, or as it is when that takes too long."""
    state = await runtime.tasks.task(id)
    try:
        async with asyncio.timeout(_PATIENCE):
            while not state.over:
                version = runtime.store.version
                state = await runtime.tasks.task(id)
                if not state.over:
                    await runtime.store.changed(version, None)
    except TimeoutError:
        pass
    return state


async def find_task(store: Store, given: str) -> str:
    """The id of the task that `given` names; it may be cut short, and need not begin with 'task-'."""
    candidates = (given, f"task-{given}")
    for id in candidates:
        try:
            line = await store.journal(id)
        except JournalMissing:
            continue
        if line.role == ROLE:
            return id
    known: list[str] = []
    last: Journal | None = None
    while page := await store.journals(role=ROLE, before=last, limit=store.limits.page):
        known += [line.id for line in page if line.id.startswith(candidates)]
        last = page[-1]
    if len(known) > 1:
        raise SessionAmbiguous(given, known)
    if not known:
        raise TaskUnknown(given)
    return known[0]


# ---- reading ---------------------------------------------------------------------------------------------------------


async def _lines(runtime: Runtime, session: str | None, status: TaskStatus | None, limit: int) -> list[Line]:
    workers = await _workers(runtime.store)
    found: list[Line] = []
    last: Journal | None = None
    while len(found) < limit:
        size = min(max(limit - len(found), 50), runtime.store.limits.page)
        page = await runtime.tasks.list(session=session, status=status, before=last, limit=size)
        found += [
            _line(await glance(runtime.store, journal.id), workers.get(journal.id))
            for journal in page
            if journal.quarantine is None  # what can't be trusted is for `doctor`
        ]
        if len(page) < size:
            break
        last = page[-1]
    return found[:limit]


async def _workers(store: Store) -> dict[str, int]:
    """The processes that carry out tasks."""
    found: dict[str, int] = {}
    after = 0
    while page := await store.work(after):
        for work in page:
            if work.role == ROLE and work.holder is not None and not store.owner_gone(work.holder):
                found[work.journal] = work.holder.pid
        after = page[-1].no
    return found


def _line(state: TaskState, pid: int | None) -> Line:
    told = state.progress
    return Line(
        id=state.id,
        tool=None if state.call is None else state.call.tool,
        status=state.status,
        session=state.session,
        agent=state.agent,
        created=state.created,
        updated=state.updated,
        ended=state.ended,
        note=None if told is None else told.note,
        fraction=None if told is None else told.fraction,
        error=None if state.error is None else f"{state.error.kind}: {state.error.message}",
        pid=None if state.over else pid,
    )


# ---- for people ------------------------------------------------------------------------------------------------------


def _rows(out: Terminal, lines: list[Line], now: int) -> list[str]:
    rows = [
        [
            line.id,
            one_line(line.tool or "-", 32),
            line.status,
            one_line(line.session or "-", 24),
            f"{duration(max(now - line.updated, 0))} ago",
            _by(line),
        ]
        for line in lines
    ]
    return status_table(out, _HEADINGS, rows)


def _by(line: Line) -> str:
    if line.status in ("running", "created"):
        return "nobody" if line.pid is None else f"pid {line.pid}"
    return "-"


def _story(out: Terminal, whole: Whole, state: TaskState, now: int) -> list[str]:
    line = whole.task
    parts = [out.paint(line.id, "bold"), one_line(line.tool or "-", 64), out.status(line.status)]
    if line.pid is not None:
        parts.append(f"pid {line.pid}")
    elif line.status == "running":
        parts.append("driven by nobody")
    end = now if state.ended is None else state.ended
    if state.started is not None:
        parts.append(duration(max(end - state.started, 0)))
    lines = [", ".join(parts)]
    lines.append(f"  session   {one_line(line.session or '-', 100)}{f'/{whole.turn}' if whole.turn else ''}")
    lines.append(f"  arguments {one_line(msgspec.json.encode(whole.arguments).decode(), 400)}")
    if whole.starts > 1:
        lines.append(f"  begun     {whole.starts} times")
    if state.progress is not None:
        lines.append(f"  progress  {one_line(progress(state.progress), 200)} (report {whole.reports:,})")
    if whole.waits:
        lines.append(f"  waits for {one_line(', '.join(whole.waits), 200)}")
    if line.error is not None:
        lines.append(f"  error     {one_line(line.error, 400)}")
    return lines
