"""Records as observers see them: which events each of them stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from holdfast.events import (
    ApprovalRequested,
    ContextCompacted,
    Event,
    HandedOff,
    InputAccepted,
    LoopDetected,
    MessageCommitted,
    ModelFailed,
    ProcessEnded,
    ProcessStarted,
    ProcessWaiting,
    SubAgentStarted,
    TaskEnded,
    TaskProgressed,
    TaskStarted,
    ToolCallFinished,
    ToolCallRequested,
    TurnCancelled,
    TurnCompleted,
    TurnFailed,
    TurnLimit,
    TurnResumed,
    TurnStarted,
    TurnWaiting,
    UsageRecorded,
)
from holdfast.messages import Text, ToolCall, UserMessage, decode_reply
from holdfast.processes.task_state import status_of
from holdfast.records import (
    TASK_RUN,
    TRIGGER_RUN,
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
from holdfast.turns import keys
from holdfast.turns.compaction.apply import decode_compaction, is_compaction
from holdfast.turns.conversation import Stop, checkpoint_of, deadline_wait, ending_of, input_of
from holdfast.turns.programs import answer_message, finish_of, is_finish
from holdfast.turns.results import result_of, said_in, skipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.policy.mandates import Mandate
    from holdfast.records import EffectRequest
    from holdfast.turns.keys import EffectKey


def events_of(session: str, seq: int, record: Record, place: str, tag: str = "") -> list[Event]:
    """What observers see of a record. Large values must have been fetched before.

    `place` is the place of the record in the stream that `tag` names; the cursor of its n-th event is ``place.n@tag``.
    """
    found: list[Event] = []
    at = record.at
    for kind, turn, fields in _outcome(record) if isinstance(record, _OUTCOMES) else _seen(record):
        cursor = f"{place}.{len(found)}@{tag}"
        found.append(kind(session=session, turn=turn, at=at, seq=seq, cursor=cursor, **fields))
    return found


def call_name(key: EffectKey) -> str:
    """How events name a tool call."""
    name = f"{key.run}.{key.number}.{key.call}"
    return f"{name}.{key.nested}" if key.nested else name


_OUTCOMES: Final = (Done, Failed, Unknown, Cancelled)
_Seen: TypeAlias = "tuple[type[Event], str | None, dict[str, Any]]"


def _seen(record: Record) -> Iterator[_Seen]:
    run = getattr(record, "run", None)
    if run == TASK_RUN:
        yield from _task(record)
        return
    if run == TRIGGER_RUN:
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
        case Handed():
            yield HandedOff, record.run, _handed(record)
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


def _called(key: EffectKey, name: str, ask: EffectRequest) -> _Seen:
    """A call that a program made."""
    arguments: dict[str, Any] | None = msgspec.json.decode(ask.body) if ask.body else None
    call = call_name(key)
    return (
        ToolCallRequested,
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
        return TurnStarted, record.run, {"code": record.code, "by": record.by}
    return TurnResumed, record.run, {"by": record.by}


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
    fields = {"input": record.input, "key": record.key, "text": message.text, "metadata": said.metadata or {}}
    yield InputAccepted, record.run, fields
    if not said.compact:
        yield MessageCommitted, record.run, {"message": message}
    if said.mandate is not None:
        yield SubAgentStarted, record.run, _ordered(said.mandate)


def _ordered(mandate: Mandate) -> dict[str, Any]:
    key = keys.parse(mandate.key)
    call = mandate.key if key is None else call_name(key)
    return {"parent": mandate.session, "parent_turn": mandate.turn, "call": call, "above": mandate.above}


def _outcome(record: Outcome) -> list[_Seen]:
    found: list[_Seen] = []
    key = keys.parse(record.key)
    if key is None or is_process_run(key.run):
        return found
    if key.inner:
        if isinstance(record, Done) and is_compaction(record.key):
            found.append(_compacted(key, record))
        elif isinstance(record, Done) and is_finish(record.key):
            message = answer_message(key.run, key.number, finish_of(record))
            found.append((MessageCommitted, key.run, {"message": message}))
        return found
    if key.nested and record.ask is not None:
        found.append(_called(key, record.key, record.ask))
    match key.name, record:
        case "tools", _:
            found.append(_finished(key, record))
        case "model", Done():
            found += _reply(key, record)
        case "model", Failed():
            fields = {"code": record.error.kind, "message": record.error.message, "ms": record.ms}
            found.append((ModelFailed, key.run, fields))
        case "checkpoint", Done():
            note = checkpoint_of(record).note
            if note is not None:
                said = UserMessage(f"{key.run}.{key.number}", (Text(note),), "holdfast")
                found.append((MessageCommitted, key.run, {"message": said}))
        case _:
            pass
    return found


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


def _reply(key: EffectKey, record: Done) -> list[_Seen]:
    run = key.run
    reply = decode_reply(bytes(record.value))
    message = said_in(reply, f"{run}.{key.number}")
    batch = f"{run}.{key.number + 1}"
    found: list[_Seen] = [
        (
            ToolCallRequested,
            run,
            {"call": f"{batch}.{number}", "call_id": call.id, "tool": call.name, "arguments": call.arguments},
        )
        for number, call in enumerate(message.calls, 1)
    ]
    if message.parts:
        found.append((MessageCommitted, run, {"message": message, "ms": record.ms}))
    found.append((UsageRecorded, run, {"model": reply.model, "usage": reply.usage, "cost": reply.cost}))
    return found


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
    return ToolCallFinished, key.run, fields


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
        content = skipped(ToolCall("", gone.tool, {}), record.status, ending.message).content
        told = {"call": gone.call, "tool": gone.tool, "state": "skipped", "content": content, "ms": 0}
        yield ToolCallFinished, record.run, told
    if ending.code in {"no_progress", "loop"}:
        yield LoopDetected, record.run, {"message": ending.message}
    if record.status != "completed":
        fields |= {"code": ending.code, "message": ending.message, "blame": ending.blame}
    yield _ENDS[record.status], record.run, fields
