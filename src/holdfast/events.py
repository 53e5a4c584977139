"""What observers see: one closed family of events.

Most events are records of a journal seen from outside: they carry its sequence, come in its order, and can be read
again at any time. The others are live: they show what happens between two records, and are gone when the turn is
over. The `cursor` of any event is a place from which to go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args

import msgspec

from holdfast.messages import (
    Message,
    ResultState,
    Text,
    ToolCall,
    Usage,
    UserMessage,
    decode_reply,
)
from holdfast.records import (
    TASK,
    TRIGGER,
    Admitted,
    Cancelled,
    Done,
    Ended,
    EndStatus,
    ErrorInfo,
    Failed,
    Handed,
    Intended,
    Outcome,
    Parked,
    Progressed,
    Record,
    Resumed,
    Started,
    Unknown,
    is_process_run,
)
from holdfast.tasks.state import TaskStatus, status_of
from holdfast.turns import keys
from holdfast.turns.answers import result_of, said_in, skipped
from holdfast.turns.compactions import decode_compaction, is_compaction
from holdfast.turns.conversation import Stop, checkpoint_of, deadline_wait, ending_of, input_of
from holdfast.turns.ending import Blame  # noqa: TC001  msgspec reads the annotations
from holdfast.turns.programs import answer_message, finish_of, is_finish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.policy.mandates import Mandate
    from holdfast.records import Ask
    from holdfast.turns.keys import EffectKey


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    session: str
    turn: str | None
    at: int
    """Wall time in milliseconds."""
    seq: int
    """The record that this event shows; for a live event, the last record before it."""
    cursor: str
    """A place in the stream that this event came from: pass it as `after` to go on behind it."""


# ---- records ---------------------------------------------------------------------------------------------------------


class InputAccepted(_Event, frozen=True, tag="input_accepted"):
    """An input entered the turn: the first one, or one that steers it."""

    input: int
    key: str
    text: str


class SubAgentStarted(_Event, frozen=True, tag="sub_agent_started"):
    """A session begins to work for another one: `parent`, whose turn `parent_turn` has made the call `call`."""

    parent: str
    parent_turn: str
    call: str
    above: tuple[str, ...]
    """The agents above, the first one of all first."""


class RunStarted(_Event, frozen=True, tag="run_started"):
    """The turn begins. `code` is the version of the agent, `by` the process."""

    code: str | None = None
    by: str | None = None


class HandedOver(_Event, frozen=True, tag="handed_over"):
    """Another agent has the session from here on, and goes on with the turn."""

    agent: str
    """Who has it now."""
    by: str
    """Who had it before."""
    call: str
    reason: str = ""


class RunResumed(_Event, frozen=True, tag="run_resumed"):
    """The turn goes on after an interruption or a wait. Live events of the interrupted attempt do not count."""

    by: str


class MessageCommitted(_Event, frozen=True, tag="message_committed"):
    """A message is part of the conversation for good. `ms` is how long the model took."""

    message: Message
    ms: int = 0


class UsageRecorded(_Event, frozen=True, tag="usage_recorded"):
    """What a model call cost."""

    model: str
    usage: Usage
    cost: float | None = None
    """In US dollars; None where no price is known."""


class ToolCallCompleted(_Event, frozen=True, tag="tool_call_completed"):
    """The model asked for a tool, or a program did that it wrote.

    `call` names the call in all events: ``t3.2.1`` is the first of a batch, ``t3.2.1.7`` a call of the program
    ``t3.2.1``. `call_id` is the provider's; calls of programs have none but their name. `arguments` are None where they
    are no JSON object, and for calls of programs also where they are large.
    """

    call: str
    call_id: str
    tool: str
    arguments: dict[str, Any] | None


class ToolExecutionFinished(_Event, frozen=True, tag="tool_execution_finished"):
    """The call has a result."""

    call: str
    tool: str
    state: ResultState
    content: Any = None
    ms: int = 0


class ModelFailed(_Event, frozen=True, tag="model_failed"):
    """The model could not answer."""

    code: str
    message: str
    ms: int = 0


class ApprovalRequested(_Event, frozen=True, tag="approval_requested"):
    """A tool waits for somebody outside."""

    call: str
    wait: str


class ContextCompacted(_Event, frozen=True, tag="context_compacted"):
    """The model sees less of the conversation from here on; the history has all of it."""

    way: str
    """"clip": old results were cut short; "summary": a summary stands for a span; "drop": a span is left out."""
    before: int
    """Tokens, about."""
    after: int
    messages: int
    """How many messages the summary stands for, or are left out."""
    summary: str | None = None
    failure: str = ""
    """Why there is no summary, where one was wanted."""
    usage: Usage = Usage()
    cost: float | None = 0.0


class TurnWaiting(_Event, frozen=True, tag="turn_waiting"):
    """The turn is parked; nothing runs until one of these waits is answered."""

    waits: tuple[str, ...]


class TaskStarted(_Event, frozen=True, tag="task_started"):
    """The process `by` carries out a call in the background; `session` is the id of the task."""

    by: str | None


class TaskProgressed(_Event, frozen=True, tag="task_progressed"):
    """How far a task is, in the words of its tool."""

    note: str | None = None
    fraction: float | None = None


class TaskEnded(_Event, frozen=True, tag="task_ended"):
    """A task has ended, and its session is notified."""

    status: TaskStatus
    code: str = ""
    """Why it did not succeed, in one word."""
    message: str = ""


class ProcessStarted(_Event, frozen=True, tag="process_started"):
    """A durable function begins or goes on, in the process `by`; `session` is its journal."""

    by: str | None


class ProcessWaiting(_Event, frozen=True, tag="process_waiting"):
    """A durable function waits: for a time, a signal, a child. Nothing of it is in memory meanwhile."""

    waits: tuple[str, ...]


class ProcessEnded(_Event, frozen=True, tag="process_ended"):
    """A durable function has ended."""

    status: EndStatus
    code: str = ""
    """Why it did not complete, in one word."""
    message: str = ""


class LoopDetected(_Event, frozen=True, tag="loop_detected"):
    """The model went on without getting anywhere."""

    message: str


class TurnCompleted(_Event, frozen=True, tag="turn_completed"):
    """The turn ended with an answer."""

    steps: int
    usage: Usage


class _Stopped(_Event, frozen=True):
    steps: int
    usage: Usage
    code: str
    message: str
    blame: Blame | None = None


class TurnFailed(_Stopped, frozen=True, tag="turn_failed"):
    """The turn ended in an error; `blame` says who can act."""


class TurnCancelled(_Stopped, frozen=True, tag="turn_cancelled"):
    """The turn was cancelled."""


class TurnLimit(_Stopped, frozen=True, tag="turn_limit"):
    """The turn reached a limit."""


# ---- live ------------------------------------------------------------------------------------------------------------


class ContextBuilt(_Event, frozen=True, tag="context_built"):
    """The next request is ready."""

    messages: int


class ModelStarted(_Event, frozen=True, tag="model_started"):
    """The model is being asked."""

    model: str
    step: int


class TextDelta(_Event, frozen=True, tag="text_delta"):
    """More words of the reply."""

    text: str


class ReasoningDelta(_Event, frozen=True, tag="reasoning_delta"):
    """More thoughts of the model."""

    text: str


class AttemptReset(_Event, frozen=True, tag="attempt_reset"):
    """The reply begins anew: deltas since the last `ModelStarted` do not count."""

    reason: str


class ModelNote(_Event, frozen=True, tag="model_note"):
    """Something about the model call: a retry, another model that takes over, replay data that was dropped."""

    what: str
    detail: str


class ToolCallStarted(_Event, frozen=True, tag="tool_call_started"):
    """The model begins to ask for a tool."""

    call_id: str
    tool: str


class ToolCallDelta(_Event, frozen=True, tag="tool_call_delta"):
    """More of the arguments, as JSON text."""

    call_id: str
    arguments: str


class ToolExecutionStarted(_Event, frozen=True, tag="tool_execution_started"):
    """The call is being performed."""

    call: str
    tool: str


class ToolExecutionProgress(_Event, frozen=True, tag="tool_execution_progress"):
    """How far the call is, in the tool's own words."""

    call: str
    tool: str
    note: str | None = None
    fraction: float | None = None


class CompactionPaused(_Event, frozen=True, tag="compaction_paused"):
    """Summaries have failed so often that none is tried for a while; the oldest messages are dropped instead."""

    failures: int
    reason: str


class HookFailed(_Event, frozen=True, tag="hook_failed"):
    """A hook of the host raised. Where it decides, that is a denial."""

    hook: str
    where: str
    error: str


class Gap(_Event, frozen=True, tag="gap"):
    """Live events are missing here. Records never are: what the missing deltas said is in the records that follow."""

    reason: str


LiveEvent: TypeAlias = (
    ContextBuilt
    | ModelStarted
    | TextDelta
    | ReasoningDelta
    | AttemptReset
    | ModelNote
    | ToolCallStarted
    | ToolCallDelta
    | ToolExecutionStarted
    | ToolExecutionProgress
    | CompactionPaused
    | HookFailed
    | Gap
)
RecordEvent: TypeAlias = (
    InputAccepted
    | SubAgentStarted
    | RunStarted
    | RunResumed
    | HandedOver
    | TaskStarted
    | TaskProgressed
    | TaskEnded
    | ProcessStarted
    | ProcessWaiting
    | ProcessEnded
    | MessageCommitted
    | UsageRecorded
    | ToolCallCompleted
    | ToolExecutionFinished
    | ModelFailed
    | ApprovalRequested
    | ContextCompacted
    | TurnWaiting
    | LoopDetected
    | TurnCompleted
    | TurnFailed
    | TurnCancelled
    | TurnLimit
)
TurnEnded: TypeAlias = TurnCompleted | TurnFailed | TurnCancelled | TurnLimit
Event: TypeAlias = LiveEvent | RecordEvent

EVENTS: Final[tuple[type[Event], ...]] = (*get_args(RecordEvent), *get_args(LiveEvent))
TERMINAL: Final[tuple[type[Event], ...]] = get_args(TurnEnded)
ToolCallFinished = ToolExecutionFinished

_encode: Final = msgspec.json.Encoder().encode


def encode(event: Event) -> bytes:
    """An event as a line of JSON."""
    return _encode(event)


# ---- from records to events ------------------------------------------------------------------------------------------


def events_of(session: str, seq: int, record: Record, place: str, tag: str = "") -> list[Event]:
    """What observers see of a record. Large values must have been fetched before.

    `place` is the place of the record in the stream that `tag` names; the cursor of its n-th event is ``place.n@tag``.
    """
    found: list[Event] = []
    for kind, turn, fields in _seen(record):
        cursor = f"{place}.{len(found)}@{tag}"
        found.append(kind(session=session, turn=turn, at=record.at, seq=seq, cursor=cursor, **fields))
    return found


def call_name(key: EffectKey) -> str:
    """How events name a tool call."""
    name = f"{key.run}.{key.number}.{key.call}"
    return f"{name}.{key.nested}" if key.nested else name


_Seen: TypeAlias = "tuple[type[Event], str | None, dict[str, Any]]"


def _seen(record: Record) -> Iterator[_Seen]:
    if getattr(record, "run", None) == TASK:
        yield from _task(record)
        return
    run = getattr(record, "run", None)
    if run == TRIGGER:
        return  # the books of a trigger: what it starts is seen where it was started
    if run is not None and is_process_run(run):
        yield from _process(record)
        return
    match record:
        case Started() | Resumed():
            yield _begun(record)
        case Admitted():
            yield from _admitted(record)
        case Parked():
            alarm = deadline_wait(record.run)
            yield TurnWaiting, record.run, {"waits": tuple(name for name in record.waits if name != alarm)}
        case Ended():
            yield from _ended(record)
        case Intended():
            yield from _intended(record)
        case Done() | Failed() | Unknown() | Cancelled():
            yield from _outcome(record)
        case Handed():
            yield HandedOver, record.run, _handed(record)
        case _:
            return


def _intended(record: Intended) -> Iterator[_Seen]:
    key = keys.parse(record.key)
    if key is None:
        return
    if record.ask.kind == "await_event":
        if not record.key.endswith(f"/{keys.DEFERRAL}"):
            yield ApprovalRequested, key.run, {"call": call_name(key), "wait": record.ask.target}
    elif key.nested and not key.inner:
        yield _called(key, record.key, record.ask)


def _called(key: EffectKey, name: str, ask: Ask) -> _Seen:
    """A call that a program made."""
    arguments: dict[str, Any] | None = msgspec.json.decode(ask.body) if ask.body else None
    call = call_name(key)
    return (
        ToolCallCompleted,
        key.run,
        {
            "call": call,
            "call_id": call,
            "tool": keys.tool_of(name),
            "arguments": arguments,
        },
    )


def _begun(record: Started | Resumed) -> _Seen:
    if isinstance(record, Started):
        return RunStarted, record.run, {"code": record.code, "by": record.by}
    return RunResumed, record.run, {"by": record.by}


def _handed(record: Handed) -> dict[str, Any]:
    key = keys.parse(record.key)
    call = record.key if key is None else call_name(key)
    return {"agent": record.agent, "by": record.by, "call": call, "reason": record.reason}


def _task(record: Record) -> Iterator[_Seen]:
    """What the records of a task tell; its call itself came in before it was begun."""
    match record:
        case Started() | Resumed():
            yield TaskStarted, record.run, {"by": record.by}
        case Progressed():
            yield TaskProgressed, record.run, {"note": record.note, "fraction": record.fraction}
        case Ended():
            error = record.error or ErrorInfo("", "")
            yield TaskEnded, record.run, {"status": status_of(record), "code": error.kind, "message": error.message}
        case _:
            return


def _process(record: Record) -> Iterator[_Seen]:
    """What the records of a durable function tell; what it does inside is in its timeline."""
    match record:
        case Started() | Resumed():
            yield ProcessStarted, record.run, {"by": record.by}
        case Parked():
            yield ProcessWaiting, record.run, {"waits": record.waits}
        case Ended():
            error = record.error or ErrorInfo("", "")
            yield ProcessEnded, record.run, {"status": record.status, "code": error.kind, "message": error.message}
        case _:
            return


def _admitted(record: Admitted) -> Iterator[_Seen]:
    if record.run is None:
        return  # it entered no turn: a request to stop, or something for a process
    said = input_of(bytes(record.body))
    if isinstance(said, Stop):
        return
    message = UserMessage(f"{record.run}.i{record.input}", said.parts, said.origin)
    yield InputAccepted, record.run, {"input": record.input, "key": record.key, "text": message.text}
    yield MessageCommitted, record.run, {"message": message}
    if said.mandate is not None:
        yield SubAgentStarted, record.run, _ordered(said.mandate)


def _ordered(mandate: Mandate) -> dict[str, Any]:
    key = keys.parse(mandate.key)
    call = mandate.key if key is None else call_name(key)
    return {"parent": mandate.session, "parent_turn": mandate.turn, "call": call, "above": mandate.above}


def _outcome(record: Outcome) -> Iterator[_Seen]:
    key = keys.parse(record.key)
    if key is None or is_process_run(key.run):
        return
    if key.inner:
        if isinstance(record, Done) and is_compaction(record.key):
            yield _compacted(key, record)
        elif isinstance(record, Done) and is_finish(record.key):
            yield MessageCommitted, key.run, {"message": answer_message(key.run, key.number, finish_of(record))}
        return
    if key.nested and record.ask is not None:
        yield _called(key, record.key, record.ask)
    match key.name, record:
        case "model", Done():
            yield from _reply(key, record)
        case "model", Failed():
            yield ModelFailed, key.run, {"code": record.error.kind, "message": record.error.message, "ms": record.ms}
        case "checkpoint", Done():
            note = checkpoint_of(record).note
            if note is not None:
                message = UserMessage(f"{key.run}.{key.number}", (Text(note),), "holdfast")
                yield MessageCommitted, key.run, {"message": message}
        case "tools", _:
            yield _finished(key, record)
        case _:
            return


def _compacted(key: EffectKey, record: Done) -> _Seen:
    made = decode_compaction(bytes(record.value))
    gone = 0 if made.plan.span is None else made.plan.span.count
    fields = {
        "way": made.plan.way,
        "before": made.plan.before,
        "after": made.plan.after,
        "messages": gone,
        "summary": made.summary,
        "failure": made.failure,
        "usage": made.usage,
        "cost": made.cost,
    }
    return ContextCompacted, key.run, fields


def _reply(key: EffectKey, record: Done) -> Iterator[_Seen]:
    reply = decode_reply(bytes(record.value))
    message = said_in(reply, f"{key.run}.{key.number}")
    for number, call in enumerate(message.calls, 1):
        yield (
            ToolCallCompleted,
            key.run,
            {
                "call": f"{key.run}.{key.number + 1}.{number}",
                "call_id": call.id,
                "tool": call.name,
                "arguments": call.arguments,
            },
        )
    if message.parts:
        yield MessageCommitted, key.run, {"message": message, "ms": record.ms}
    yield UsageRecorded, key.run, {"model": reply.model, "usage": reply.usage, "cost": reply.cost}


def _finished(key: EffectKey, record: Outcome) -> _Seen:
    tool = keys.tool_of(record.key)
    result = result_of(ToolCall("", tool, {}), record)
    fields = {
        "call": call_name(key),
        "tool": tool,
        "state": result.state,
        "content": result.content,
        "ms": getattr(record, "ms", 0),
    }
    return ToolExecutionFinished, key.run, fields


_ENDS: Final[dict[EndStatus, type[Event]]] = {
    "completed": TurnCompleted,
    "failed": TurnFailed,
    "cancelled": TurnCancelled,
    "limit": TurnLimit,
}


def _ended(record: Ended) -> Iterator[_Seen]:
    ending = ending_of(record)
    fields: dict[str, Any] = {"steps": ending.steps, "usage": ending.usage}
    for gone in ending.skipped:
        content = skipped(ToolCall("", gone.tool, {}), record.status).content
        told = {"call": gone.call, "tool": gone.tool, "state": "skipped", "content": content, "ms": 0}
        yield ToolExecutionFinished, record.run, told
    if ending.code in {"no_progress", "loop"}:
        yield LoopDetected, record.run, {"message": ending.message}
    if record.status != "completed":
        fields |= {"code": ending.code, "message": ending.message, "blame": ending.blame}
    yield _ENDS[record.status], record.run, fields
