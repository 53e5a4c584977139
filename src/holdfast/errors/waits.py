"""Waits: unknown, over, not answered in time, answered about something else, or used up."""

from __future__ import annotations

from typing import Final

from holdfast.errors.tree import StoreError, UsageError, WorldError

_SHOWN: Final = 200


class WaitUnknown(UsageError):
    """The wait token is not valid.

    Tampered, never issued and revoked look the same on purpose: a bearer of a bad token learns nothing.
    """

    def __init__(self) -> None:
        super().__init__("this wait is unknown or was revoked")


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


class AnswerInvalid(UsageError):
    """An answer does not fit what the tool says that it returns. Nothing was settled: give another one."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"the answer is no result of {tool!r}: {reason}. Nothing was settled; give another answer")
        self.tool = tool
        self.reason = reason


class AskAnswerInvalid(UsageError):
    """An answer does not say what came of an interrupted call. Nothing was settled: give another one."""

    def __init__(self, journal: str, name: str, value: object) -> None:
        said = repr(value)
        shown = said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."
        super().__init__(
            f"{shown} does not say what came of the interrupted call; "
            'answer {"done": RESULT}, "not_done" or "unknown". Nothing was settled'
        )
        self.journal = journal
        self.name = name
        self.value = value


class AnswerLate(WorldError):
    """Somebody else has answered before, or nobody can any more."""

    def __init__(self, state: str) -> None:
        super().__init__(f"the answer came too late: the wait was {state} before")
        self.state = state


class ApprovalMismatch(UsageError):
    """The answer is about something else than what is asked. Nothing was settled."""

    def __init__(self, journal: str, name: str, expected: str, actual: str | None) -> None:
        asked = "asks for nothing in particular" if actual is None else f"is about {actual}"
        super().__init__(
            f"the answer is about {expected}, but the wait {name!r} of {journal!r} {asked}; "
            "nothing was settled. Look at what is asked now, and answer that"
        )
        self.journal = journal
        self.name = name
        self.expected = expected
        self.actual = actual


class WaitConsumed(StoreError):
    """The answer to a wait can't be used: it was used before, or there is none. Nothing was appended.

    `state` is that of the wait, "consumed" when the answer was used, "unknown" when there is no such wait.
    """

    def __init__(self, journal: str, name: str, state: str) -> None:
        why = "its answer was used before" if state == "consumed" else f"it is {state}, not resolved"
        super().__init__(
            f"the wait {name!r} of {journal!r} can't be used: {why}; nothing was appended. Ask again under another name"
        )
        self.journal = journal
        self.name = name
        self.state = state
