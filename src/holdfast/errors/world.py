"""Models: nobody has the name, or nobody could answer; and what stands in a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors.base import WorldError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.messages import Attempt, Usage


_SHOWN: Final = 8
"""Differences that the message names."""


class ModelError(WorldError):
    """The model could not answer. `retryable` tells whether the same request may succeed later."""

    def __init__(  # noqa: PLR0913
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
        """How long the provider asks to wait, in seconds."""
        self.attempts: tuple[Attempt, ...] = ()
        """Every try, where the model keeps a ledger."""
        self.usage: Usage | None = None
        """What the provider says that the try used, where it says so with the error."""


class StreamCut(ModelError):
    """The stream ended before the provider said that the reply is whole."""

    def __init__(self, model: str) -> None:
        super().__init__(f"the reply of {model} ended in the middle", kind="stream_cut", retryable=True)
        self.model = model


class StreamFailed(StreamCut):
    """The provider put an error into a response that had begun well: it is cut as well, and `kind` says why."""

    def __init__(self, message: str, *, kind: str, retryable: bool) -> None:
        ModelError.__init__(self, message, kind=kind, retryable=retryable)
        self.model = ""


class ContextOverflow(ModelError):
    """The conversation does not fit into the model's context window."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="context_overflow")


class EventTooLarge(ModelError):
    """An event of a stream is over its limit. Asking again would bring it again."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"an event of the stream is larger than {limit:,} bytes", kind="bad_frame")
        self.limit = limit


class RecordingDiffers(ModelError):
    """The request is not the one that was recorded."""

    def __init__(self, path: Path, number: int, differences: tuple[str, ...]) -> None:
        shown = "; ".join(differences[:_SHOWN])
        more = f"; and {len(differences) - _SHOWN:,} more" if len(differences) > _SHOWN else ""
        super().__init__(
            f"request {number} is not the one in {path.name}: {shown}{more}. Record it again, or pass check=False",
            kind="recording_differs",
        )
        self.path = path
        self.number = number
        self.differences = differences


class RecordingEnded(ModelError):
    """More was asked than was recorded."""

    def __init__(self, path: Path, number: int) -> None:
        super().__init__(
            f"{path.name} has {number - 1:,} exchanges, and request {number:,} was made. Record it again",
            kind="recording_ended",
        )
        self.path = path
        self.number = number


class NotOffered(ModelError):
    """A setting asks for what this provider or model does not have. Nothing was sent."""

    def __init__(self, setting: str, model: str, advice: str) -> None:
        super().__init__(f"{setting} is not offered by {model}: {advice}", kind="not_offered")
        self.setting = setting
        self.model = model
        self.advice = advice


class EffectFailed(WorldError):
    """The effect ended in an error. The same one is raised again on every replay."""

    def __init__(self, key: str, kind: str, message: str) -> None:
        super().__init__(f"{key} failed: {kind}: {message}" if message else f"{key} failed: {kind}")
        self.key = key
        self.kind = kind
        self.message = message


class EffectUnknown(WorldError):
    """The effect was begun and its outcome was never recorded; it was not repeated."""

    def __init__(self, key: str, target: str) -> None:
        super().__init__(
            f"nobody can say whether {key} ({target}) took effect: it was interrupted, and it is not safe to repeat; "
            "find out, then go on"
        )
        self.key = key
        self.target = target


class EffectCancelled(WorldError):
    """The effect lost a race and was cancelled."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} was cancelled: another member of its group was first")
        self.key = key


class NoneSucceeded(WorldError):
    """Every member of an `any` group failed."""

    def __init__(self, key: str, failures: Sequence[WorldError]) -> None:
        super().__init__(f"none of the {len(failures)} effects of {key} succeeded; the first said: {failures[0]}")
        self.key = key
        self.failures = tuple(failures)


class RunFailed(WorldError):
    """The driven code raised. The same error is raised for everybody who asks again."""

    def __init__(self, journal: str, run: str, kind: str, message: str) -> None:
        super().__init__(f"{run} of {journal!r} failed: {kind}: {message}")
        self.journal = journal
        self.run = run
        self.kind = kind
        self.message = message


class ProcessFailed(WorldError):
    """The function of a process raised. Everybody who asks is told the same."""

    def __init__(self, process: str, kind: str, message: str) -> None:
        super().__init__(f"the process {process!r} failed: {kind}: {message}")
        self.process = process
        self.kind = kind
        self.message = message


class ProcessCancelled(WorldError):
    """The process was cancelled before it could complete."""

    def __init__(self, process: str, reason: str) -> None:
        super().__init__(f"the process {process!r} was cancelled" + (f": {reason}" if reason else ""))
        self.process = process
        self.reason = reason


class ProcessAbandoned(WorldError):
    """The process was given up: whoever ran it is gone, and nobody else may. `evidence` says who, when and why."""

    def __init__(self, process: str, evidence: str) -> None:
        super().__init__(f"the process {process!r} was abandoned: {evidence}")
        self.process = process
        self.evidence = evidence


class AgentTurnFailed(WorldError):
    """A turn that a process waited for did not complete."""

    def __init__(self, session: str, turn: str, status: str, message: str) -> None:
        super().__init__(
            f"the turn {turn} of session {session!r} ended as {status}: {message or 'no reason was given'}"
        )
        self.session = session
        self.turn = turn
        self.status = status
        self.message = message


class WorkerFailed(WorldError):
    """The worker for a program did not come up. Nothing of the program was run."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the program was not run, its worker did not start: {reason}; start it again")
        self.reason = reason


class SandboxFull(WorldError):
    """A sandbox has as many programs as it may, and none of them waits for long. Nothing of this one was run."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the program was not run: {limit:,} others of its sandbox are running; start it again when one of them "
            "has ended or waits for long, or give the sandbox a larger max_programs"
        )
        self.limit = limit


class SecretUnavailable(WorldError):
    """The function of the host that gives a secret gave none."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the secret {name} can't be had: {reason}; look at the function that was given for it")
        self.name = name
        self.reason = reason


class HiddenError(WorldError):
    """Stands for an error that told a secret: its kind, and what it said without that. Its traceback is left out."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message


class TemplateUnfilled(WorldError):
    """An occurrence lacks what its trigger wants to put into a text."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"the place {{{place}}} can't be filled: {reason}; change the template or what is sent")
        self.place = place
        self.reason = reason


class WaitExpired(WorldError):
    """Nobody answered in time."""

    def __init__(self, name: str) -> None:
        super().__init__(f"nobody answered {name!r} in time")
        self.name = name


class WaitEnded(WorldError):
    """The wait was cancelled or revoked: nobody can answer it any more."""

    def __init__(self, name: str, state: str) -> None:
        super().__init__(f"the wait {name!r} was {state}; nobody can answer it any more")
        self.name = name
        self.state = state


class WaitFailed(WorldError):
    """Whoever was to answer said that there is no answer, and why."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"there is no answer to {name!r}: {message}")
        self.name = name
        self.message = message


class AnswerLate(WorldError):
    """Somebody else has answered before, or nobody can any more."""

    def __init__(self, state: str) -> None:
        super().__init__(f"the answer came too late: the wait was {state} before")
        self.state = state
