"""Errors of the outside world: models, tools, effects, waits, processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors.base import WorldError
from holdfast.errors.fields import ErrorFields

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.messages import Attempt, Usage


_DIFFERENCES_SHOWN: Final = 8
"""Differences that the message about a recording names."""


class ModelError(WorldError):
    """The model call failed. `retryable` says whether the same request may succeed later."""

    def __init__(
        self,
        message: str,
        *,
        kind: str = "model_error",
        retryable: bool = False,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.retryable = retryable
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after
        """Pause that the provider asks for, in seconds."""
        self.attempts: tuple[Attempt, ...] = ()
        """Every try, where the model keeps a ledger."""
        self.usage: Usage | None = None
        """Usage of the failed try, if the provider reports it."""


class InstructionsFailed(ErrorFields, WorldError):
    """A function that gives the instructions of an agent raised, took too long, or gave no text."""

    agent: str
    reason: str
    _message = """the instructions of the agent {agent!r} could not be made: {reason}; mend the function, then try the
        turn again (turn.retry)"""


class ToolChoiceFailed(ErrorFields, WorldError):
    """The tools of a turn could not be chosen: a provider or a filter raised, took too long, or gave no valid tools."""

    agent: str
    source: str
    reason: str
    _message = """the tools of the agent {agent!r} could not be chosen: {source}: {reason}; mend it, then try the turn
        again (turn.retry)"""


class ToolGone(ErrorFields, WorldError):
    """A provider no longer has a tool that it listed for the turn. The model reads it as the result of the call."""

    tool: str
    provider: str
    _message = "the tool {tool!r} is gone: {provider!r} no longer has it; go on without it"


class StreamCut(ModelError):
    """The stream ended before the reply was complete."""

    def __init__(self, model: str) -> None:
        super().__init__(f"the reply of {model} ended in the middle", kind="stream_cut", retryable=True)
        self.model = model


class StreamFailed(StreamCut):
    """The provider reported an error in the middle of a reply. `kind` says which."""

    def __init__(self, message: str, *, kind: str, retryable: bool) -> None:
        ModelError.__init__(self, message, kind=kind, retryable=retryable)
        self.model = ""


class ContextOverflow(ModelError):
    """The conversation does not fit into the model's context window."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="context_overflow")


class EventTooLarge(ModelError):
    """An event of the stream is over its limit. A retry would get the same event."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"an event of the stream is larger than {limit:,} bytes", kind="bad_frame")
        self.limit = limit


class RecordingDiffers(ModelError):
    """The request differs from the recorded one."""

    def __init__(self, path: Path, number: int, differences: tuple[str, ...]) -> None:
        shown = "; ".join(differences[:_DIFFERENCES_SHOWN])
        left = len(differences) - _DIFFERENCES_SHOWN
        more = f"; and {left:,} more" if left > 0 else ""
        super().__init__(
            f"request {number} is not the one in {path.name}: {shown}{more}. Record it again, or pass check=False",
            kind="recording_differs",
        )
        self.path = path
        self.number = number
        self.differences = differences


class RecordingEnded(ModelError):
    """The recording has no more replies."""

    def __init__(self, path: Path, number: int) -> None:
        super().__init__(
            f"{path.name} has {number - 1:,} exchanges, and request {number:,} was made. Record it again",
            kind="recording_ended",
        )
        self.path = path
        self.number = number


class NotOffered(ModelError):
    """A setting asks for a feature that the provider or model does not have. Nothing was sent."""

    def __init__(self, setting: str, model: str, advice: str) -> None:
        super().__init__(f"{setting} is not offered by {model}: {advice}", kind="not_offered")
        self.setting = setting
        self.model = model
        self.advice = advice


class EffectFailed(WorldError):
    """The effect raised. Every replay raises the same error."""

    def __init__(self, key: str, kind: str, message: str) -> None:
        super().__init__(f"{key} failed: {kind}: {message}" if message else f"{key} failed: {kind}")
        self.key = key
        self.kind = kind
        self.message = message


class CallDenied(ErrorFields, WorldError):
    """A host call was not made, or its result is withheld: a rule, a hook or a person denied it."""

    id: str
    tool: str
    reason: str
    _message = "the call of {tool} ({id}) was denied: {reason}"


class CallCancelled(ErrorFields, WorldError):
    """A host call was cancelled before it had a result."""

    id: str
    tool: str
    reason: str
    _message = "the call of {tool} ({id}) was cancelled: {reason}"


class EffectUnknown(ErrorFields, WorldError):
    """The effect began, its outcome was never recorded, and it was not repeated."""

    key: str
    target: str
    _message = """the outcome of {key} ({target}) is unknown: it was interrupted, and it is not safe to repeat; find out
        whether it took effect, then go on"""


class EffectCancelled(ErrorFields, WorldError):
    """The effect lost a race and was cancelled."""

    key: str
    _message = "{key} was cancelled: another member of its group was first"


class RunFailed(ErrorFields, WorldError):
    """The driven code raised. Everyone who asks for its result gets the same error."""

    journal: str
    run: str
    kind: str
    message: str
    _message = "{run} of {journal!r} failed: {kind}: {message}"


class ProcessFailed(ErrorFields, WorldError):
    """The function of the process raised. Everyone who asks for its result gets the same error."""

    process: str
    kind: str
    message: str
    _message = "the process {process!r} failed: {kind}: {message}"


class ProcessCancelled(WorldError):
    """The process was cancelled before it could complete."""

    def __init__(self, process: str, reason: str) -> None:
        super().__init__(f"the process {process!r} was cancelled" + (f": {reason}" if reason else ""))
        self.process = process
        self.reason = reason


class ProcessAbandoned(ErrorFields, WorldError):
    """The process was given up: its owner is gone and no other may run it. `evidence` has the details."""

    process: str
    evidence: str
    _message = "the process {process!r} was abandoned: {evidence}"


class AgentTurnFailed(WorldError):
    """A turn that the process waited for did not complete."""

    def __init__(self, session: str, turn: str, status: str, message: str) -> None:
        super().__init__(
            f"the turn {turn} of session {session!r} ended as {status}: {message or 'no reason was given'}"
        )
        self.session = session
        self.turn = turn
        self.status = status
        self.message = message


class WorkerFailed(ErrorFields, WorldError):
    """The worker for a program did not start. The program did not run."""

    reason: str
    _message = "the program was not run, its worker did not start: {reason}; start it again"


class SandboxFull(ErrorFields, WorldError):
    """The sandbox runs as many programs as it may. This one did not run."""

    limit: int
    _message = """the program was not run: {limit:,} others of its sandbox are running; start it again when one of
        them has ended or waits for long, or give the sandbox a larger max_programs"""


class SecretUnavailable(ErrorFields, WorldError):
    """The host's function for the secret raised or returned nothing."""

    name: str
    reason: str
    _message = "the secret {name} can't be had: {reason}; look at the function that was given for it"


class HiddenError(WorldError):
    """Replaces an error whose text contained a secret: its type and text with the secret removed, no traceback."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message


class TemplateUnfilled(ErrorFields, WorldError):
    """The occurrence lacks a field that the template of its trigger uses."""

    place: str
    reason: str
    _message = "the place {{{place}}} can't be filled: {reason}; change the template or what is sent"


class WaitExpired(ErrorFields, WorldError):
    """No answer came before the deadline of the wait."""

    name: str
    _message = "no answer to {name!r} came in time"


class WaitEnded(ErrorFields, WorldError):
    """The wait was cancelled or revoked and can no longer be answered."""

    name: str
    state: str
    _message = "the wait {name!r} was {state}; it can't be answered any more"


class WaitFailed(ErrorFields, WorldError):
    """The wait was answered with an error."""

    name: str
    message: str
    _message = "there is no answer to {name!r}: {message}"


class AnswerLate(ErrorFields, WorldError):
    """The wait was answered, cancelled or expired before this answer."""

    state: str
    _message = "the answer came too late: the wait was {state} before"


class TraceRefused(ErrorFields, WorldError):
    """A collector did not take the spans of a trace. They are still in the journal."""

    endpoint: str
    spans: int
    _message = """{endpoint} did not take the {spans} spans; see that a collector listens there (OTLP over HTTP) and run
        the command again"""
