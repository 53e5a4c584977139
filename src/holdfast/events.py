"""What observers see: one closed family of events.

Most events are records of a journal seen from outside: they carry its sequence, come in its order, and can be read
again at any time. The others are live: they show what happens between two records, and are gone when the turn is
over. The `cursor` of any event is a place from which to go on.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, get_args

import msgspec

from holdfast.messages import Message, ResultState, Usage
from holdfast.processes.task_state import TaskStatus  # noqa: TC001  as above
from holdfast.records import EndStatus  # noqa: TC001  msgspec reads the annotations
from holdfast.turns.machine import Blame  # noqa: TC001  as above


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    session: str
    turn: str | None
    at: int
    """Wall time in milliseconds."""
    seq: int
    """The record that this event shows; for a live event, the last record before it."""
    cursor: str
    """A place in the stream that this event came from: pass it as `after` to go on behind it."""


class InputAccepted(_Event, frozen=True, tag="input_accepted"):
    """An input entered the turn: the first one, or one that steers it."""

    input: int
    key: str
    text: str
    metadata: dict[str, Any] = {}
    """What the host said about it."""


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
