"""What happened in a process, and how it stands, as people and programs are told. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.processes.ids import ABANDON, CALL, CANCEL, TRANSFER, id_of, label_of
from holdfast.processes.state import ProcessStatus, status_of
from holdfast.records import (
    Admitted,
    Cancelled,
    Done,
    Ended,
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
)

if TYPE_CHECKING:
    from holdfast.processes.state import ProcessState
    from holdfast.records import Ask, Record


class ProcessLine(msgspec.Struct, frozen=True, kw_only=True):
    """One process, as it stands. Times are wall milliseconds."""

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
    """Who ran it last."""
    starts: int = 0
    waits: tuple[str, ...] = ()
    """What it waits for."""
    error: str | None = None
    children: tuple[str, ...] = ()
    pruned: int | None = None
    """When it was pruned; None while it is there."""
    stuck: str | None = None
    """Why it does not go on by itself, as lists tell it; None while it does, and where one process alone is told."""


class ProcessEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened in a process. `seq` is its place, and the cursor to go on after it."""

    process: str
    seq: int
    at: int
    what: str
    """started, resumed, waiting, asked, done, failed, unknown, cancelled, ended, signalled, ..."""
    key: str | None = None
    """Which step, sleep, wait or child."""
    kind: str | None = None
    ms: int | None = None
    detail: Any = None


def line_of(state: ProcessState) -> ProcessLine:
    """A process, as it stands."""
    made = state.registration
    return ProcessLine(
        id=state.id,
        name=state.name,
        status=state.status,
        session=state.session,
        parent=None if made is None or made.parent is None else id_of(made.parent),
        attempt=state.attempt,
        created=state.created,
        updated=state.updated,
        ended=state.ended,
        by=state.by,
        starts=state.starts,
        waits=tuple(label_of(wait) for wait in state.waits),
        error=None if state.error is None else f"{state.error.kind}: {state.error.message}",
        children=tuple(state.children),
    )


def event_of(journal: str, seq: int, record: Record) -> ProcessEvent:  # noqa: PLR0911, PLR0912  one line for each kind of record
    """A record, as it is told."""

    def event(what: str, **told: Any) -> ProcessEvent:  # noqa: ANN401
        return ProcessEvent(process=id_of(journal), seq=seq, at=record.at, what=what, **told)

    match record:
        case Opened():
            return event("created", detail=record.agent)
        case Admitted():
            return event(_came(record.key), detail=msgspec.json.decode(bytes(record.body)) if record.body else None)
        case Started():
            return event("started", key=record.run, detail=record.by)
        case Resumed():
            return event("resumed", key=record.run, detail=record.by)
        case Parked():
            return event("waiting", detail=[label_of(wait) for wait in record.waits])
        case Ended():
            error = None if record.error is None else f"{record.error.kind}: {record.error.message}"
            return event(status_of(record), key=record.run, detail=error)
        case Intended():
            return event("asked", key=record.key, kind=record.ask.kind)
        case Done():
            return event("done", key=record.key, kind=_kind(record.ask), ms=record.ms)
        case Failed():
            told = f"{record.error.kind}: {record.error.message}"
            return event("failed", key=record.key, kind=_kind(record.ask), ms=record.ms, detail=told)
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


def _kind(ask: Ask | None) -> str | None:
    return None if ask is None else ask.kind


def _came(key: str) -> str:
    if key == CALL:
        return "registered"
    if key == CANCEL:
        return "cancel_requested"
    if key == ABANDON:
        return "abandon_requested"
    return "transferred" if key.startswith(TRANSFER) else "came"
