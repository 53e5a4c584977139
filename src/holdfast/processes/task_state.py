"""Background work: tool calls that go on after the model has had an answer, each with a journal of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from holdfast.effects.canonical import digest, digest_of_bytes
from holdfast.effects.envelope import segment
from holdfast.errors import RecordUnreadable
from holdfast.records import (
    TASK_RUN,
    Admitted,
    Cancelled,
    Cause,
    Done,
    EffectRequest,
    Ended,
    Failed,
    Intended,
    Opened,
    Parked,
    Progressed,
    Resumed,
    Started,
    Unknown,
)

if TYPE_CHECKING:
    from holdfast.records import ErrorInfo, Outcome, Record


RUN: Final = TASK_RUN
"""The run of a task's journal: it has one."""
INTERRUPTED: Final = "interrupted"
"""The kind of the error with which a task ends that was interrupted."""
_ID: Final = re.compile(r"task-[0-9a-f]{20}")
TaskStatus = Literal["created", "running", "waiting", "succeeded", "failed", "cancelled", "interrupted"]
TERMINAL: Final = frozenset(("succeeded", "failed", "cancelled", "interrupted"))


class TaskCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """The call that a task carries out, as it is recorded: enough to carry it out again."""

    tool: str
    arguments: dict[str, Any]
    call_id: str
    """The provider's id of the call."""
    turn: str
    key: str
    """The key of the call in the journal of its session."""
    idempotency: str
    """What makes the call recognisable to the outside world."""
    begun: bool = False
    """It was under way already when it went to the background."""
    definition: str | None = None
    """The digest of the tool that was approved, where a person was asked: another one is not run."""
    implementation: str | None = None
    """The version of that tool, or the digest of its code; None in calls of releases that did not record it."""


_decode: Final = msgspec.json.Decoder(TaskCall).decode
CALL: Final = "holdfast/call"
"""The key of the input that a task begins with: its call."""


def decode_call(body: bytes) -> TaskCall:
    """The call in the input that a task begins with."""
    try:
        return _decode(body)
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(f"the call of a task: {error}") from error


def first_records(call: TaskCall, number: int, now: int) -> list[Record]:
    """What the journal of a task begins with: its call came in, and is about to be carried out."""
    body = msgspec.json.encode(call)
    ask = EffectRequest(
        "tool_call", call.tool, digest_of_bytes("task", body), cause=Cause("call", call.key), iteration=1
    )
    return [
        Admitted(at=now, input=number, key=CALL, body=msgspec.Raw(body), run=RUN),
        Intended(at=now, key=task_key(call.tool), ask=ask),
    ]


def task_id(session: str, key: str) -> str:
    """The id of the task that carries out the call `key` of a session: always the same one."""
    return f"task-{digest('task', [session, key])[:20]}"


def is_task_id(id: str) -> bool:
    """Whether a journal with this id is a task. No session is called like one."""
    return _ID.fullmatch(id) is not None


def task_key(tool: str) -> str:
    """The key of the call in the journal of its task."""
    return f"{RUN}/{segment(tool)}"


@dataclass(slots=True)
class TaskState:
    """What is known of a task."""

    id: str
    session: str | None = None
    agent: str | None = None
    call: TaskCall | None = None
    status: TaskStatus = "created"
    created: int = 0
    updated: int = 0
    started: int | None = None
    ended: int | None = None
    by: str | None = None
    """The process that carried it out last."""
    starts: int = 0
    """How often it was begun."""
    progress: Progressed | None = None
    """The newest one."""
    reports: int = 0
    """How many there are."""
    outcome: Outcome | None = None
    error: ErrorInfo | None = None
    waits: tuple[str, ...] = ()
    records: list[Record] = field(default_factory=list["Record"], repr=False)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status in TERMINAL

    @property
    def begun(self) -> bool:
        """Whether anybody has begun to carry it out."""
        return self.starts > 0 or (self.call is not None and self.call.begun)

    def add(self, record: Record) -> None:
        """Take the next record into account. After the end nothing changes any more."""
        self.records.append(record)
        if self.over:
            return
        self.updated = record.at
        match record:
            case Opened():
                self.created, self.session, self.agent = record.at, record.session, record.agent
            case Started() | Resumed():
                self.status, self.by, self.starts, self.waits = "running", record.by, self.starts + 1, ()
                self.started = self.started or record.at
            case Admitted() if self.call is None and record.key == CALL:
                self.call = decode_call(bytes(record.body))
            case Progressed():
                self.progress, self.reports = record, self.reports + 1
            case Parked():
                self.status, self.waits = "waiting", record.waits
            case Done() | Failed() | Unknown() | Cancelled() if self._is_own(record.key):
                self.outcome = record
            case Ended():
                self.ended, self.error = record.at, record.error
                self.status = status_of(record)
            case _:
                pass

    def _is_own(self, key: str) -> bool:
        return self.call is not None and key == task_key(self.call.tool)


def status_of(ended: Ended) -> TaskStatus:
    """How a task ended."""
    if ended.error is not None and ended.error.kind == INTERRUPTED:
        return "interrupted"
    match ended.status:
        case "completed":
            return "succeeded"
        case "cancelled":
            return "cancelled"
        case _:
            return "failed"


BODY: Final = 1_800
"""How much of a result is in a notification, in characters; the whole is read with a tool."""
_ENDS: Final[dict[TaskStatus, str]] = {
    "succeeded": "has completed",
    "failed": "has failed",
    "cancelled": "was cancelled",
    "interrupted": "was interrupted",
}


def continues(id: str, tool: str, seconds: float | None) -> dict[str, Any]:
    """The answer that a model gets at once for a call that goes on in the background."""
    why = "runs in the background" if seconds is None else f"takes longer than {_span(seconds)}"
    return {
        "task": id,
        "status": "running",
        "message": (
            f"The call of {tool} {why}. It goes on as task {id}, and a notification will tell when it has ended. "
            "Do not call it again for the same thing; go on with something else, or end your turn."
        ),
    }


def title(call: TaskCall, status: TaskStatus) -> str:
    """The title of the notification."""
    return f"The background call of {call.tool} {_ENDS.get(status, 'goes on')}"


def body(outcome: Outcome | None, text: str) -> str:
    """The body of the notification. `text` is what the call gave, or as much of it as somebody has read."""
    match outcome:
        case Done():
            return text if len(text) <= BODY else f"{text[:BODY]}\n... ({len(text):,} characters in all)"
        case Failed(error=error):
            return f"{error.kind}: {error.message}"[:BODY]
        case Unknown():
            return (
                "It is not known whether the call took effect: its process ended, or it was stopped, before it could "
                "report. It was not repeated. Find out what happened before you call it again."
            )
        case Cancelled():
            return "It was stopped before it had any effect that must not be repeated."
        case None:
            return ""


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:g} s"
