"""Events of a session, one closed family.

Record events show a record of a journal. They carry its number, come in its order and can be read again at any time.
Live events show progress between two records, such as streamed text, and are gone when the turn is over. Pass the
`cursor` of any event to continue from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args

import msgspec

from holdfast.messages import Message, ResultState, Usage
from holdfast.processes.state import TaskStatus  # noqa: TC001  as above
from holdfast.records import EndStatus  # noqa: TC001  msgspec reads the annotations
from holdfast.turns.machine import Blame  # noqa: TC001  as above


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    session: str
    turn: str | None
    at: int
    """Wall time in milliseconds."""
    seq: int
    """The number of the record that this event shows; for a live event, of the last record before it."""
    cursor: str
    """The position of this event in its stream: pass it as `after` to continue behind it."""


# ---- records: a turn from its start to its end ----


class TurnStarted(_Event, frozen=True, tag="turn_started"):
    """The turn begins. `code` is the version of the agent, `by` the worker that drives the turn."""

    code: str | None = None
    by: str | None = None


class TurnResumed(_Event, frozen=True, tag="turn_resumed"):
    """The turn continues after an interruption or a wait. Discard the live events of the interrupted attempt."""

    by: str


class TurnWaiting(_Event, frozen=True, tag="turn_waiting"):
    """The turn is parked until one of these waits is answered."""

    waits: tuple[str, ...]


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
    """The turn ended in an error; `blame` names the party that can fix it."""


class TurnCancelled(_Stopped, frozen=True, tag="turn_cancelled"):
    """The turn was cancelled."""


class TurnLimit(_Stopped, frozen=True, tag="turn_limit"):
    """The turn reached a limit."""


# ---- records: inputs, messages, the model ----


class InputAccepted(_Event, frozen=True, tag="input_accepted"):
    """An input entered the turn: the one that began it, or a later one that steers it."""

    input: int
    key: str
    text: str
    metadata: dict[str, Any] = {}
    """The metadata that the host sent with the input."""
    retry_of: str = ""
    """The turn that the input tries again."""


class MessageCommitted(_Event, frozen=True, tag="message_committed"):
    """A message is final. `ms` is the time that the model took."""

    message: Message
    ms: int = 0


class UsageRecorded(_Event, frozen=True, tag="usage_recorded"):
    """Tokens and price of a model call."""

    model: str
    usage: Usage
    cost: float | None = None
    """In US dollars; None when the price of the model is unknown."""


class ModelFailed(_Event, frozen=True, tag="model_failed"):
    """The model call failed for good."""

    code: str
    message: str
    ms: int = 0


class LoopDetected(_Event, frozen=True, tag="loop_detected"):
    """The model repeats itself without progress."""

    message: str


class ContextCompacted(_Event, frozen=True, tag="context_compacted"):
    """From here on the model sees less of the conversation. The history keeps all of it."""

    way: str
    """"clip": old results were cut short; "summary": a summary replaces a span; "drop": a span is left out."""
    before: int
    """Tokens, estimated."""
    after: int
    messages: int
    """Number of messages that the summary replaces, or that are left out."""
    summary: str | None = None
    failure: str = ""
    """The reason why a wanted summary is missing."""
    usage: Usage = Usage()
    cost: float | None = 0.0


# ---- records: tool calls ----


class ToolCallRequested(_Event, frozen=True, tag="tool_call_requested"):
    """The model, or a program that it wrote, calls a tool.

    `call` names the call in all events: ``t3.2.1`` is the first of a batch, ``t3.2.1.7`` a call of the program
    ``t3.2.1``. `call_id` is the provider's id; calls of programs have only their name. `arguments` is None if they are
    not a JSON object, and for large arguments of program calls.
    """

    call: str
    call_id: str
    tool: str
    arguments: dict[str, Any] | None


class _OfCall(_Event, frozen=True):
    call: str
    tool: str


class ToolCallFinished(_OfCall, frozen=True, tag="tool_call_finished"):
    """The call has a result."""

    state: ResultState
    content: Any = None
    ms: int = 0


class ApprovalRequested(_Event, frozen=True, tag="approval_requested"):
    """A tool call waits for an answer from outside: an approval, or a wait of the tool itself."""

    call: str
    wait: str


# ---- records: other agents, background tasks, processes ----


class HandedOff(_Event, frozen=True, tag="handed_off"):
    """Another agent takes over the session and continues the turn."""

    agent: str
    """The agent that has the session now."""
    by: str
    """The agent that handed it over."""
    call: str
    reason: str = ""


class SubAgentStarted(_Event, frozen=True, tag="sub_agent_started"):
    """This session works for the session `parent`, whose turn `parent_turn` made the call `call`."""

    parent: str
    parent_turn: str
    call: str
    above: tuple[str, ...]
    """All agents above this one, the topmost first."""


class TaskStarted(_Event, frozen=True, tag="task_started"):
    """The worker `by` performs a tool call in the background; `session` is the id of the task."""

    by: str | None


class TaskProgressed(_Event, frozen=True, tag="task_progressed"):
    """Progress of a task, as its tool reports it."""

    note: str | None = None
    fraction: float | None = None


class TaskEnded(_Event, frozen=True, tag="task_ended"):
    """A task has ended, and its session has a notification about it."""

    status: TaskStatus
    code: str = ""
    """The reason, in one word, if it did not succeed."""
    message: str = ""


class ProcessStarted(_Event, frozen=True, tag="process_started"):
    """A process begins or continues in the worker `by`; `session` is the id of its journal."""

    by: str | None


class ProcessWaiting(_Event, frozen=True, tag="process_waiting"):
    """A process waits for a time, a signal or a child; it holds no memory meanwhile."""

    waits: tuple[str, ...]


class ProcessEnded(_Event, frozen=True, tag="process_ended"):
    """A process has ended."""

    status: EndStatus
    code: str = ""
    """The reason, in one word, if it did not complete."""
    message: str = ""


# ---- live ----


class ContextBuilt(_Event, frozen=True, tag="context_built"):
    """The next request to the model is ready."""

    messages: int


class ModelStarted(_Event, frozen=True, tag="model_started"):
    """The model call begins."""

    model: str
    step: int


class TextDelta(_Event, frozen=True, tag="text_delta"):
    """The next piece of the reply's text."""

    text: str


class ReasoningDelta(_Event, frozen=True, tag="reasoning_delta"):
    """The next piece of the model's reasoning."""

    text: str


class ToolCallAnnounced(_Event, frozen=True, tag="tool_call_announced"):
    """The model begins to write a tool call. Its arguments follow as deltas, then `ToolCallRequested`."""

    call_id: str
    tool: str


class ToolCallDelta(_Event, frozen=True, tag="tool_call_delta"):
    """The next piece of a call's arguments, as JSON text."""

    call_id: str
    arguments: str


class AttemptReset(_Event, frozen=True, tag="attempt_reset"):
    """The reply begins anew: discard the deltas since the last `ModelStarted`."""

    reason: str


class ModelNote(_Event, frozen=True, tag="model_note"):
    """A remark on the model call: a retry, a fallback to another model, dropped replay data."""

    what: str
    detail: str


class ToolCallStarted(_OfCall, frozen=True, tag="tool_call_started"):
    """The tool begins to run."""


class ToolCallProgress(_OfCall, frozen=True, tag="tool_call_progress"):
    """Progress of a running call, as the tool reports it."""

    note: str | None = None
    fraction: float | None = None


class CompactionPaused(_Event, frozen=True, tag="compaction_paused"):
    """Summaries failed too often. For a while the oldest messages are dropped instead."""

    failures: int
    reason: str


class HookFailed(_Event, frozen=True, tag="hook_failed"):
    """A hook of the host raised. If the hook decides about a call, the call is denied."""

    hook: str
    where: str
    error: str


class Gap(_Event, frozen=True, tag="gap"):
    """Live events are missing here. Records never are: the records that follow contain the text of the deltas."""

    reason: str


_CallProgress: TypeAlias = ToolCallAnnounced | ToolCallDelta | ToolCallStarted | ToolCallProgress
_ModelProgress: TypeAlias = ContextBuilt | ModelStarted | TextDelta | ReasoningDelta | AttemptReset | ModelNote
LiveEvent: TypeAlias = _ModelProgress | _CallProgress | CompactionPaused | HookFailed | Gap
TurnEnded: TypeAlias = TurnCompleted | TurnFailed | TurnCancelled | TurnLimit
_Begun: TypeAlias = InputAccepted | SubAgentStarted | TurnStarted | TurnResumed | HandedOff
_Apart: TypeAlias = TaskStarted | TaskProgressed | TaskEnded | ProcessStarted | ProcessWaiting | ProcessEnded
_Called: TypeAlias = ToolCallRequested | ToolCallFinished | ModelFailed | ApprovalRequested
_Rest: TypeAlias = ContextCompacted | TurnWaiting | LoopDetected | TurnEnded
RecordEvent: TypeAlias = _Begun | _Apart | MessageCommitted | UsageRecorded | _Called | _Rest
Event: TypeAlias = LiveEvent | RecordEvent
EVENTS: Final[tuple[type[Event], ...]] = (*get_args(RecordEvent), *get_args(LiveEvent))
TERMINAL: Final[tuple[type[Event], ...]] = get_args(TurnEnded)
if not TYPE_CHECKING:  # type checkers find the public names themselves
    __all__ = ["EVENTS", "TERMINAL", "Event", "LiveEvent", "RecordEvent", "TurnEnded", "encode"]
    __all__ += [kind.__name__ for kind in EVENTS]
_encode: Final = msgspec.json.Encoder().encode


def encode(event: Event) -> bytes:
    """An event as a line of JSON."""
    return _encode(event)
