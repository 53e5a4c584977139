"""A process as its journal tells it. Pure.

    running <--> waiting          for a time, a signal, a child, the turn of an agent
       |
       '--> completed, failed, cancelled
       '--> abandoned: whoever ran it is gone, nobody else may, and a person has given it up

An attempt that failed and is followed by another one is not an end: both are told in one commit.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote

import msgspec

from holdfast.effects.canonical import digest
from holdfast.effects.envelope import segment
from holdfast.errors import InvalidId, RecordUnreadable
from holdfast.names import check_id, check_name
from holdfast.records import (
    PROCESS_RUN,
    Admitted,
    Cancelled,
    Done,
    Ended,
    ErrorInfo,
    Failed,
    Grouped,
    Handed,
    InputTaint,
    Intended,
    Opened,
    Parked,
    Progressed,
    Resumed,
    Started,
    Unknown,
)
from holdfast.store.decisions import STOP_KEY

if TYPE_CHECKING:
    from holdfast.records import Blob, EffectRequest, Record, Status
    from holdfast.store.contract import JournalPreview


ROLE: Final = "process"
"""The role of the journal of a durable function."""
RUN: Final = PROCESS_RUN
"""The run of the first attempt; the n-th is ``process.n``."""
CALL: Final = "holdfast/call"
"""The key of the input that a process begins with: its registration."""
CANCEL: Final = STOP_KEY
"""The key of the input that asks for a process to be cancelled."""
ABANDON: Final = "holdfast/abandon"
"""The key of the input that gives up a process whose owner is gone."""
TRANSFER: Final = "holdfast/transfer/"
"""What the keys of inputs begin with that give a process to another session."""
OWN_KEYS: Final = "holdfast/"
"""What keys of Holdfast itself begin with."""
MAX_ID: Final = 160
"""Longest id of a process, in characters: longer names are made of it."""
_PREFIX: Final = "process/"


def check_process_id(id: object) -> str:
    """The id itself, or `InvalidId`."""
    checked = check_id("process", id)
    if len(checked) > MAX_ID:
        raise InvalidId("process", id, f"it has {len(checked)} characters, the limit is {MAX_ID}")
    return checked


def check_signal_key(key: object) -> str | None:
    """The key of a signal, if it has one and the caller may choose it."""
    if key is None:
        return None
    checked = check_id("key", key)
    if checked.startswith(OWN_KEYS):
        raise InvalidId("key", key, f"keys that begin with {OWN_KEYS!r} are Holdfast's own")
    return checked


def journal_of(id: str) -> str:
    """The journal of a process."""
    return f"{_PREFIX}{check_process_id(id)}"


def id_of(journal: str) -> str:
    """The process that a journal belongs to."""
    return journal.removeprefix(_PREFIX)


def is_process_journal(journal: str) -> bool:
    """Whether a journal with this id is that of a process. No session is called like one."""
    return journal.startswith(_PREFIX)


def child_id(name: str, parent: str, key: str) -> str:
    """The id of the process that another one starts with its effect `key`: always the same one."""
    return f"{name[:100]}-{digest('child', [parent, key])[:20]}"


def run_of(attempt: int) -> str:
    """The run of an attempt; they count from 1."""
    return RUN if attempt == 1 else f"{RUN}.{attempt}"


def attempt_of(run: str) -> int | None:
    """Which attempt a run is; None when it is none."""
    if run == RUN:
        return 1
    prefix, _, number = run.partition(".")
    return int(number) if prefix == RUN and number.isascii() and number.isdigit() and len(number) <= 9 else None


def is_process_key(key: str) -> bool:
    """Whether the effect `key` is one of a process, or `key` is the run of one."""
    return attempt_of(unquote(key.partition("/")[0])) is not None


def signal_prefix(run: str, name: str) -> str:
    """What the waits for signals called `name` begin with."""
    return f"{segment(run)}/~signal/{segment(check_name('signal', name)[:100])}/"


def signal_wait(run: str, name: str, number: int) -> str:
    """The wait that the n-th signal of a name answers. They sort in the order of their numbers."""
    return f"{signal_prefix(run, name)}{number:08d}"


def signal_of(wait: str) -> str:
    """The name of the signal that a wait is for."""
    return unquote(wait.split("/")[2])


def number_of(wait: str) -> int:
    """The number of a wait for a signal."""
    return int(wait.rpartition("/")[2])


def timer_wait(key: str) -> str:
    """The wait that ends when a sleep does."""
    return key if len(key) <= 200 else f"{key[:150]}~{digest('wait', key)[:40]}"


def turn_wait(key: str, look: int) -> str:
    """The wait for the turn of an agent; it is looked at again and again, in case nobody tells."""
    return f"{timer_wait(key)}~{look}"


STUCK: Final = "stuck"
"""The kind of the wait that says why a runtime has stopped a process. Nobody answers it."""


def stuck_wait(run: str, head: int) -> str:
    """The name of the wait that says why a run was stopped when its journal had `head` records."""
    return f"{segment(run)}/%stuck-{head}"


def stuck_head(wait: str) -> int:
    """How many records the journal had when the run was stopped."""
    return int(wait.rpartition("-")[2])


def external_wait(run: str) -> str:
    """The wait that ends a process which is carried out elsewhere."""
    return f"{segment(run)}/~outside"


def retry_wait(run: str) -> str:
    """The pause before an attempt."""
    return f"{segment(run)}/~pause"


def label_of(wait: str) -> str:
    """A wait as people are told of it: the name of the signal, or what else it is."""
    run, _, rest = wait.partition("/")
    parts = rest.split("/")
    if parts[0] == "~signal" and len(parts) >= 3:
        return f"signal {unquote(parts[1])}"
    if parts[0] == "~outside":
        return "its completion from outside"
    if parts[0] == "~pause":
        return "the next attempt"
    return rest or run


ProcessStatus = Literal["running", "waiting", "completed", "failed", "cancelled", "abandoned"]
Recovery = Literal["rerunnable", "owner", "external"]
OnParentEnd = Literal["cancel", "abandon"]
TERMINAL: Final = frozenset(("completed", "failed", "cancelled", "abandoned"))
ABANDONED: Final = "abandoned"
"""The kind of the error with which a process ends that was given up."""
LISTED: Final[dict[ProcessStatus, Status]] = {
    "running": "running",
    "waiting": "waiting",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "abandoned": "failed",
}
"""How the lists of the store call a status."""


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process was started as: enough to run it, and all that must be the same for the same id."""

    name: str
    arguments: dict[str, Any]
    recovery: Recovery = "rerunnable"
    on_parent_end: OnParentEnd = "cancel"
    parent: str | None = None
    """The journal of the process that started it."""
    key: str | None = None
    """The effect with which that one did."""
    depth: int = 0
    """How many processes stand above it."""
    taint: InputTaint | None = None
    """What its arguments bring with them, where somebody outside wrote them."""


_decode: Final = msgspec.json.Decoder(Registration).decode


def decode_registration(body: bytes) -> Registration:
    """The registration in the input that a process begins with."""
    try:
        return _decode(body)
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(f"the registration of a process: {error}") from error


@dataclass(slots=True)
class ProcessState:
    """What is known of a process."""

    journal: str
    name: str | None = None
    session: str | None = None
    registration: Registration | None = None
    status: ProcessStatus = "running"
    attempt: int = 1
    created: int = 0
    updated: int = 0
    started: int | None = None
    ended: int | None = None
    by: str | None = None
    """Who ran it last."""
    starts: int = 0
    """How often somebody began, or went on."""
    code: str | None = None
    """The version of the code that began it."""
    waits: tuple[str, ...] = ()
    value: bytes = b""
    blob: Blob | None = None
    error: ErrorInfo | None = None
    failures: list[ErrorInfo] = field(default_factory=list["ErrorInfo"])
    """How earlier attempts ended."""
    children: dict[str, None] = field(default_factory=dict[str, None])
    """The processes that it started, by id."""
    turns: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """The turns of agents that it asked for, in sessions of its own."""
    records: list[Record] = field(default_factory=list["Record"], repr=False)
    head: int = 0

    @property
    def id(self) -> str:
        """The id under which it was started."""
        return id_of(self.journal)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status in TERMINAL

    def add(self, record: Record) -> None:
        """Take the next record into account."""
        self.records.append(record)
        self.head += 1
        self.updated = record.at
        match record:
            case Opened():
                self.created, self.session, self.name = record.at, record.session, record.agent
            case Admitted() if record.key == CALL and self.registration is None:
                self.registration = decode_registration(bytes(record.body))
            case Admitted() if record.key.startswith(TRANSFER):
                self.session = msgspec.json.decode(bytes(record.body), type=dict[str, str])["session"]
            case Started() | Resumed():
                self._begin(record)
            case Parked():
                self._enter(record.run)
                self.status, self.waits = "waiting", record.waits
            case Done() if record.ask is not None and record.ask.kind == "process":
                self._asked(record.ask, record)
            case Ended():
                self.ended, self.error, self.waits = record.at, record.error, ()
                self.value, self.blob = bytes(record.value), record.blob
                self.status = status_of(record)
            case _:
                pass

    def _asked(self, ask: EffectRequest, record: Done) -> None:
        """What it has started elsewhere."""
        if ask.target == "start":
            self.children[msgspec.json.decode(bytes(record.value), type=dict[str, str])["id"]] = None
        elif ask.target == "agent":
            told = msgspec.json.decode(bytes(record.value))
            if told["session"].startswith(f"{self.id}."):
                self.turns.append((told["session"], told["input"]))

    def _begin(self, record: Started | Resumed) -> None:
        self._enter(record.run)
        self.status, self.by, self.starts, self.waits = "running", record.by, self.starts + 1, ()
        if isinstance(record, Started):
            self.code = record.code
            self.started = self.started or record.at

    def _enter(self, run: str) -> None:
        """The run that is told of: after a failure, that of the next attempt."""
        attempt = attempt_of(run)
        if attempt is not None and attempt > self.attempt:
            self.attempt = attempt
            if self.error is not None:
                self.failures.append(self.error)
            self.ended, self.error = None, None


def status_of(ended: Ended) -> ProcessStatus:
    """How a process ended."""
    if ended.error is not None and ended.error.kind == ABANDONED:
        return "abandoned"
    match ended.status:
        case "completed":
            return "completed"
        case "cancelled":
            return "cancelled"
        case _:
            return "failed"


TAIL: Final = 32
"""How many last records are looked at. Shorter processes are known as a whole."""
_LISTED: Final[dict[Status, ProcessStatus]] = {
    "waiting": "waiting",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


def state_of(found: JournalPreview) -> ProcessState:
    """What is known of a process at a glance.

    Of a long one, who ran it, how often it began and which children it has are known as far as its last records say.
    """
    line, tail = found.line, found.tail or []
    state = ProcessState(line.id, line.agent, line.session, created=line.created, updated=line.updated)
    if found.first is not None and found.first.key == CALL:
        state.registration = decode_registration(found.first.body)
    for entry in tail:
        state.add(entry.record)
        state.attempt = max(state.attempt, _attempt(entry.record))
    state.records.clear()
    state.head = line.head
    if not tail or tail[0].seq > 1:
        if state.status == "running":  # nothing among the last records says otherwise
            state.status = _LISTED.get(line.status, "running")
        if found.latest is not None:
            state.session = msgspec.json.decode(found.latest.body, type=dict[str, str])["session"]
    return state


def _attempt(record: Record) -> int:
    """The attempt that a record belongs to."""
    key = getattr(record, "key", None)
    return (attempt_of(unquote(key.partition("/")[0])) if isinstance(key, str) else None) or 1


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


def _kind(ask: EffectRequest | None) -> str | None:
    return None if ask is None else ask.kind


def _came(key: str) -> str:
    if key == CALL:
        return "registered"
    if key == CANCEL:
        return "cancel_requested"
    if key == ABANDON:
        return "abandon_requested"
    return "transferred" if key.startswith(TRANSFER) else "came"


MISMATCH: Final = "ReplayMismatch"
"""The kind of the error of code that asks for something else than is recorded."""


class Stuck(msgspec.Struct, frozen=True):
    """A process that does not go on by itself."""

    id: str
    name: str | None
    reason: str
    command: str
    """What helps."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What the store and this runtime know of a process that is not over."""

    driven: bool
    """A process that lives holds its lease."""
    woken: bool = False
    """Something has come for it that nobody has looked at."""
    known: bool = True
    """This runtime has its function."""
    works: bool = True
    """This runtime drives processes; False for the command line, and for hosts that only look."""
    error: ErrorInfo | None = None
    """Why a runtime has stopped it."""
    timed: bool = False
    """Something that it waits for comes by the clock."""


def why_stuck(state: ProcessState, now: Situation) -> Stuck | None:
    """Why a process that is not over does not go on; None when it does, or will."""
    id = shlex.quote(state.id)

    def stuck(reason: str, command: str) -> Stuck:
        return Stuck(state.id, state.name, reason, command)

    if state.over or now.driven:
        return None
    if now.error is not None:
        return stuck(now.error.message, _after_error(now.error, id))
    if state.status == "waiting" and not now.woken:
        found = None if now.timed or not state.waits else _waits_for(label_of(state.waits[0]), id)
        return None if found is None else stuck(*found)
    owner = state.registration is not None and state.registration.recovery == "owner"
    if owner and state.starts:
        reason = f"{state.by} ran it and is gone; nobody else may go on"
        return stuck(reason, f"holdfast processes abandon {id} --reason TEXT")
    work = f"holdfast processes work MODULE, with a module that has {state.name!r}"
    if not now.works:
        return stuck("no process runs it now", work)
    return None if now.known else stuck(f"this runtime has no function {state.name!r}", work)


def _after_error(error: ErrorInfo, id: str) -> str:
    give_up = f"holdfast processes abandon {id} --reason TEXT"
    if error.kind != MISMATCH:
        return f"repair the cause and open the store again, or: {give_up}"
    return f"put the change behind 'if await ctx.version(\"NAME\")', or run the code that began it, or: {give_up}"


def _waits_for(label: str, id: str) -> tuple[str, str] | None:
    """Why a process waits without end, and what helps, where somebody must answer."""
    if label.startswith("signal "):
        name = shlex.quote(label.removeprefix("signal "))
        return f"it waits for the {label}, without a limit of time", f"holdfast processes signal {id} {name} JSON"
    if label.startswith("its completion"):
        return f"it waits for {label}", f"holdfast processes complete {id} JSON"
    return None
