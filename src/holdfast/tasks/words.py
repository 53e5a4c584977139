"""What is said about tasks: to the model at once, and in the notification when a task has ended. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.records import Cancelled, Done, Failed, Unknown

if TYPE_CHECKING:
    from holdfast.records import Outcome
    from holdfast.tasks.state import TaskCall, TaskStatus

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
