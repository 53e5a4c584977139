"""Models: nobody has the name, or nobody could answer; and what stands in a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors.tree import UsageError, WorldError

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.messages import Attempt, Usage

_SHOWN: Final = 8
"""Differences that the message names."""


class ModelUnknown(UsageError):
    """No model has this name."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        from difflib import get_close_matches  # noqa: PLC0415  only where a name is wrong

        close = get_close_matches(name.partition(":")[0], known, n=1) if ":" in name else []
        meant = f"did you mean '{close[0]}:{name.partition(':')[2]}'? " if close else ""
        choice = f"known providers are {', '.join(known)}" if known else "no provider is registered"
        super().__init__(f"{name!r} names no model: {meant}{choice}; write 'provider:model', or pass a Model")
        self.name = name
        self.known = known


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


class RecordingInvalid(UsageError):
    """The file is no recording that can be used here."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} can't be used as a recording: {reason}")
        self.path = path
        self.reason = reason


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
