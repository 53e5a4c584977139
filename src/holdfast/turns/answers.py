"""What the model reads about a tool call, by how the call ended in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.messages import AssistantMessage, ModelReply, Text, ToolCall, ToolResult
from holdfast.records import Cancelled, Done, EndStatus, Failed, Outcome, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable

decode: Final[Callable[[bytes], Any]] = msgspec.json.Decoder().decode

SAID_AS_IT_IS: Final = frozenset(("ToolRetry", "InvalidArguments", "ToolUnknown", "ToolTimeout"))
"""Errors whose message is written for the model; others are shown with the name of their type."""

UNKNOWN: Final = (
    "It is not known whether this call took effect: it was interrupted before it could report. "
    "It was not repeated. Find out what happened before you call it again."
)
CANCELLED: Final = "This call was stopped before it finished. It is safe to call it again."
_SKIPPED: Final[dict[EndStatus | None, str]] = {
    "cancelled": "This call was not begun: the turn was cancelled before.",
    "limit": "This call was not begun: the turn reached a limit before.",
    "failed": "This call was not begun: the turn failed before.",
    "completed": "This call was not begun: the turn ended before.",
    None: "This call was not begun here: the conversation was forked before.",
}


def result_of(call: ToolCall, outcome: Outcome) -> ToolResult:
    """The result of a call that has an outcome. A large value must have been fetched before."""
    match outcome:
        case Done():
            return ToolResult(call.id, call.name, decode(bytes(outcome.value)))
        case Failed(error=error):
            said = error.message if error.kind in SAID_AS_IT_IS else f"{error.kind}: {error.message}".removesuffix(": ")
            return ToolResult(call.id, call.name, said, "error")
        case Unknown():
            return unknown(call)
        case Cancelled():
            return ToolResult(call.id, call.name, CANCELLED, "cancelled")


def unknown(call: ToolCall) -> ToolResult:
    """The result of a call that was begun, and of which nobody can say how it ended."""
    return ToolResult(call.id, call.name, UNKNOWN, "unknown")


def said_in(reply: ModelReply, id: str) -> AssistantMessage:
    """A reply as a message of the conversation. Texts without a word are left out: providers refuse them."""
    parts = reply.parts
    if any(type(part) is Text and not part.text.strip() for part in parts):
        parts = tuple(part for part in parts if type(part) is not Text or part.text.strip())
    return AssistantMessage(id, parts, reply.finish)


def skipped(call: ToolCall, status: EndStatus | None) -> ToolResult:
    """The result of a call that was never begun, because the turn ended so (None: a fork cut it off)."""
    return ToolResult(call.id, call.name, _SKIPPED[status], "skipped")
