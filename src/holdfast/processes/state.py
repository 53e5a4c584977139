"""The state of a process, folded from its journal: durable functions and background calls. Pure.

    running <--> waiting          for a time, a signal, a child, the turn of an agent
       |
       '--> completed, failed, cancelled
       '--> abandoned: its owner is gone, and a person has given it up

A failed attempt that a retry follows is not an end: one commit records both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import msgspec

from holdfast import records as kinds
from holdfast.effects.canonical import digest_of_bytes
from holdfast.errors import RecordUnreadable
from holdfast.names import is_process_journal
from holdfast.processes import keys

if TYPE_CHECKING:
    from holdfast.processes.retries import InheritedHistory

T = TypeVar("T")


ProcessStatus = Literal["running", "waiting", "completed", "failed", "cancelled", "abandoned"]
Recovery = Literal["rerunnable", "owner", "external"]
OnParentEnd = Literal["cancel", "abandon"]
TaskStatus = Literal["created", "running", "waiting", "succeeded", "failed", "cancelled", "interrupted"]
TASK_TERMINAL_STATUSES: Final = frozenset(("succeeded", "failed", "cancelled", "interrupted"))
TERMINAL_STATUSES: Final = frozenset(("completed", "failed", "cancelled", "abandoned")) | TASK_TERMINAL_STATUSES
ABANDONED_ERROR: Final = "abandoned"
"""The error kind of processes that a person gave up."""
INTERRUPTED_ERROR: Final = "interrupted"
"""The error kind of background calls that were interrupted."""


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which process a retry repeats, and from which step."""

    process: str
    """The id of the old one."""
    again: tuple[str, ...] = ()
    """The keys of the effects to repeat; later ones are new."""
    step: str | None = None
    """The step to begin from; None: the failed one."""
    attempt: int = 1
    """The attempt of the old process that it continues."""
    number: int = 1
    """1 for a retry of the first run, 2 for a retry of that retry, and so on."""


class WorkItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Work that a person or another system carries out."""

    title: str
    instructions: str = ""
    tags: tuple[str, ...] = ()
    requested_by: str | None = None
    metadata: dict[str, Any] = {}
    span_ms: int | None = None
    """Most milliseconds from its acceptance to its end."""
    parent: str | None = None
    """The journal that it belongs to: of a session, or of a process."""
    turn: str | None = None
    """The turn of that session that it belongs to."""

    @property
    def parent_process(self) -> str | None:
        """The journal of the process that it belongs to."""
        return self.parent if self.parent is not None and is_process_journal(self.parent) else None

    @property
    def parent_name(self) -> str | None:
        """What it belongs to, for people: the id of a process or a session, or ``session/turn``."""
        if self.parent is None or self.turn is None:
            return None if self.parent is None else keys.process_id_of(self.parent)
        return f"{self.parent}/{self.turn}"


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """The function and arguments of a process. Starting the same id again must give the same registration."""

    name: str
    arguments: dict[str, Any]
    recovery: Recovery = "rerunnable"
    on_parent_end: OnParentEnd = "cancel"
    parent: str | None = None
    """The journal of the process that started it."""
    key: str | None = None
    depth: int = 0
    """The number of its ancestors."""
    taint: kinds.InputTaint | None = None
    """The taint of its arguments, if an outsider wrote them."""
    retry: Retry | None = None
    """Set if it is the retry of another process."""
    item: WorkItem | None = None
    """The work, if the process is a work item; it has no function then."""


class TaskCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The recorded tool call of a task, with all it takes to repeat the call."""

    tool: str
    arguments: dict[str, Any]
    call_id: str
    """The provider's id of the call."""
    turn: str
    key: str
    """The key of the call in the journal of its session."""
    idempotency: str
    """The idempotency key that external systems see."""
    begun: bool = False
    definition: str | None = None
    """The digest of the tool, if a person approved the call. A changed tool is not run."""
    implementation: str | None = None
    """The version of that tool, or the digest of its code; None if an old release did not record it."""
    host: bool = False
    """The host made the call outside a turn. It is authorized before it begins."""
    notify: bool = False
    """A host call notifies its session when it ends."""
    provided: dict[str, Any] | None = None
    """The tool of a provider as it was listed for the turn (a `ChosenTool`); None for a tool of the agent's code."""

    @property
    def is_silent(self) -> bool:
        """True for a host call that does not notify the model."""
        return self.host and not self.notify


def decode_begin(body: bytes, kind: type[T]) -> T:
    """Decode the first input of a process: its registration or its call."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        what = "the registration of a process" if kind is Registration else "the call of a task"
        raise RecordUnreadable(f"{what}: {error}") from error


def transferred_to(body: bytes) -> str:
    """Decode the session in a transfer input."""
    return msgspec.json.decode(body, type=dict[str, str])["session"]


@dataclass(slots=True)
class ProcessState:
    """The state of a process: of a durable function, or of a background call."""

    journal: str
    name: str | None = None
    session: str | None = None
    registration: Registration | None = None
    """The function and its arguments; None for a background call."""
    call: TaskCall | None = None
    """The tool call of a background call; its agent is `name`."""
    is_task: bool = False
    """True for a background call. It has its own status words."""
    status: ProcessStatus | TaskStatus = "running"
    attempt: int = 1
    created: int = 0
    updated: int = 0
    started: int | None = None
    ended: int | None = None
    by: str | None = None
    """The operating-system process that ran it last."""
    starts: int = 0
    """The number of starts and resumes."""
    waits: tuple[str, ...] = ()
    value: bytes = b""
    blob: kinds.Blob | None = None
    error: kinds.ErrorInfo | None = None
    children: dict[str, None] = field(default_factory=dict[str, None])
    """The ids of the processes that it started."""
    turns: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """The agent turns that it started in sessions of its own."""
    progress: kinds.Progressed | None = None
    """The newest report of a background call or a work item."""
    reports: int = 0
    """The number of reports."""
    outcome: kinds.Outcome | None = None
    """The outcome of a background call."""
    open: dict[str, kinds.EffectRequest] = field(default_factory=dict[str, "kinds.EffectRequest"])
    """The effects that were begun and have no outcome."""
    records: list[kinds.Record] = field(default_factory=list["kinds.Record"], repr=False)
    inherited: InheritedHistory | None = field(default=None, repr=False)
    """The history with which a retry begins; None for others, and in states that were not read whole."""
    head: int = 0

    @property
    def id(self) -> str:
        """The id under which it was started."""
        return keys.process_id_of(self.journal)

    @property
    def history(self) -> list[kinds.Record]:
        """All records that a drive replays: those that a retry uses again, then its own."""
        return self.records if self.inherited is None else [*self.inherited.records, *self.records]

    @property
    def registered(self) -> bool:
        """True once its first input was read."""
        return self.registration is not None or self.call is not None

    @property
    def begun(self) -> bool:
        """True once a worker has begun it."""
        return self.starts > 0 or (self.call is not None and self.call.begun)

    @property
    def over(self) -> bool:
        return self.status in TERMINAL_STATUSES

    def add(self, record: kinds.Record) -> None:
        """Fold the next record and keep it."""
        self.records.append(record)
        self.note(record)

    def note(self, record: kinds.Record) -> None:
        """Fold the next record. After its end, a background call does not change."""
        if self.is_task and self.over:
            return
        self.head += 1
        self.updated = record.at
        match record:
            case kinds.Opened():
                self.created, self.session, self.name = record.at, record.session, record.agent
                if record.role == kinds.TASK_RUN:
                    self.is_task, self.status = True, "created"
            case kinds.Admitted() if record.key == keys.CALL_KEY:
                self.register(bytes(record.body))
            case kinds.Admitted() if record.key.startswith(keys.TRANSFER_PREFIX):
                self.session = transferred_to(bytes(record.body))
            case kinds.Admitted() if record.key.startswith(keys.CHILD_PREFIX):
                self.children[record.key.removeprefix(keys.CHILD_PREFIX)] = None
            case kinds.Admitted() if record.key.startswith(keys.PROGRESS_PREFIX):
                said = msgspec.json.decode(bytes(record.body), type=dict[str, Any])
                note, fraction = said.get("note") or None, said.get("fraction")
                self.progress = kinds.Progressed(at=record.at, run=keys.FIRST_RUN, note=note, fraction=fraction)
                self.reports += 1
            case kinds.Started() | kinds.Resumed():
                self._enter(record.run)
                self.status, self.by, self.starts, self.waits = "running", record.by, self.starts + 1, ()
                self.started = self.started or record.at
            case kinds.Parked():
                self._enter(record.run)
                self.status, self.waits = "waiting", record.waits
            case kinds.Intended():
                self.open[record.key] = record.ask
            case kinds.Done() | kinds.Failed() | kinds.Unknown() | kinds.Cancelled():
                if self.open:
                    below = f"{record.key}/"
                    self.open = {
                        key: ask for key, ask in self.open.items() if key != record.key and not key.startswith(below)
                    }
                if isinstance(record, kinds.Done) and record.ask is not None and record.ask.kind == "process":
                    self._note_start(record.ask, record)
                if self.call is not None and record.key == keys.task_key(self.call.tool):
                    self.outcome = record
            case kinds.Progressed():
                self.progress, self.reports = record, self.reports + 1
            case kinds.Ended():
                self.ended, self.error, self.waits = record.at, record.error, ()
                self.value, self.blob = bytes(record.value), record.blob
                self.status = task_status(record) if self.is_task else process_status(record)
            case _:
                pass

    def register(self, body: bytes) -> None:
        """Fold the first input of the journal."""
        if self.is_task:
            self.call = self.call or decode_begin(body, TaskCall)
        else:
            made = self.registration = self.registration or decode_begin(body, Registration)
            if made.retry is not None:
                self.attempt = max(self.attempt, made.retry.attempt)

    def _note_start(self, ask: kinds.EffectRequest, record: kinds.Done) -> None:
        if ask.target == "start":
            self.children[msgspec.json.decode(bytes(record.value), type=dict[str, str])["id"]] = None
        elif ask.target == "agent":
            told = msgspec.json.decode(bytes(record.value))
            if told["session"].startswith(f"{self.id}."):
                self.turns.append((told["session"], told["input"]))

    def _enter(self, run: str) -> None:
        attempt = keys.attempt_of_run(run)
        if attempt is not None and attempt > self.attempt:
            self.attempt = attempt
            self.ended, self.error = None, None


def outside_answer(told: Any) -> dict[str, Any]:  # any JSON value
    """The answer that ends external work: its ``value``, or its ``error``."""
    if isinstance(told, dict) and told.keys() in ({"value"}, {"error"}):
        return cast("dict[str, Any]", told)
    return {"value": told}


def process_status(ended: kinds.Ended) -> ProcessStatus:
    """The status of an ended durable function."""
    if ended.error is not None and ended.error.kind == ABANDONED_ERROR:
        return "abandoned"
    return "failed" if ended.status == "limit" else ended.status


def task_status(ended: kinds.Ended) -> TaskStatus:
    """The status of an ended background call."""
    if ended.error is not None and ended.error.kind == INTERRUPTED_ERROR:
        return "interrupted"
    status = process_status(ended)
    return "succeeded" if status == "completed" else "cancelled" if status == "cancelled" else "failed"


# ---- background calls: processes whose body is one tool call ----


def task_start_records(call: TaskCall, number: int, now: int) -> list[kinds.Record]:
    """The first records of a task: its call is admitted and intended."""
    body = msgspec.json.encode(call)
    content, cause = digest_of_bytes("task", body), kinds.Cause("call", call.key)
    ask = kinds.EffectRequest("tool_call", call.tool, content, cause=cause, iteration=1)
    return [
        kinds.Admitted(at=now, input=number, key=keys.CALL_KEY, body=msgspec.Raw(body), run=kinds.TASK_RUN),
        kinds.Intended(at=now, key=keys.task_key(call.tool), ask=ask),
    ]


MAX_NOTICE: Final = 1_800
"""Longest result in a notification, in characters. Tools read the whole."""
_END_WORDS: Final[dict[TaskStatus, str]] = {
    "succeeded": "has completed",
    "failed": "has failed",
    "cancelled": "was cancelled",
    "interrupted": "was interrupted",
}


def background_answer(id: str, tool: str, seconds: float | None) -> dict[str, Any]:
    """The immediate tool result of a call that goes to the background."""
    why = "runs in the background"
    if seconds is not None:
        why = f"takes longer than {f'{seconds * 1000:.0f} ms' if seconds < 1 else f'{seconds:g} s'}"
    return {
        "task": id,
        "status": "running",
        "message": (
            f"The call of {tool} {why}. It goes on as task {id}, and a notification will tell when it has ended. "
            "Do not call it again for the same thing; go on with something else, or end your turn."
        ),
    }


def notice_text(text: str) -> str:
    """The result of a process, cut to `MAX_NOTICE`."""
    return text if len(text) <= MAX_NOTICE else f"{text[:MAX_NOTICE]}\n... ({len(text):,} characters in all)"


def task_end_title(call: TaskCall, status: TaskStatus) -> str:
    """The title of the notification about the end of a task."""
    return f"The background call of {call.tool} {_END_WORDS.get(status, 'goes on')}"


def task_end_text(outcome: kinds.Outcome | None, text: str) -> str:
    """The body of the notification about the end of a task. `text` is its result."""
    match outcome:
        case kinds.Done():
            return notice_text(text)
        case kinds.Failed(error=error):
            return f"{error.kind}: {error.message}"[:MAX_NOTICE]
        case kinds.Unknown():
            return (
                "It is not known whether the call took effect: its process ended, or it was stopped, before it could "
                "report. It was not repeated. Find out what happened before you call it again."
            )
        case kinds.Cancelled():
            return "It was stopped before it had any effect that must not be repeated."
        case None:
            return ""
