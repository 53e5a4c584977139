"""What the model reads about a call, by how the call ended. Pure.

A call that failed is an `ErrorInfo`, which is what the journal keeps of it; `failed` makes of it what the model reads.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.effects.performer import printable
from holdfast.effects.replay import Repeat
from holdfast.messages import ToolCall, ToolResult
from holdfast.records import ErrorInfo
from holdfast.turns.answers import CANCELLED, SAID_AS_IT_IS, UNKNOWN, skipped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.tools.definition import Complaint

MAX_TEXT: Final = 2_000
"""Longest text about a failed call, in characters."""
MAX_NAMES: Final = 50
"""How many tools are listed to a model that asked for one that is not there."""

_SHOWN: Final = 200

__all__ = [
    "MAX_NAMES",
    "MAX_TEXT",
    "cancelled",
    "complained",
    "failed",
    "malformed",
    "ok",
    "raised",
    "shorten",
    "skipped",
    "timed_out",
    "unknown",
    "unknown_tool",
]


def ok(call: ToolCall, value: Any) -> ToolResult:  # noqa: ANN401  any JSON value
    """It ended well: the model reads what the tool returned."""
    return ToolResult(call.id, call.name, value)


def failed(call: ToolCall, error: ErrorInfo) -> ToolResult:
    """It ended in an error. What was written for the model is said as it is, anything else with its kind before it."""
    said = error.message if error.kind in SAID_AS_IT_IS else f"{error.kind}: {error.message}".removesuffix(": ")
    return ToolResult(call.id, call.name, shorten(said, MAX_TEXT), "error")


def unknown(call: ToolCall) -> ToolResult:
    """It was begun, and nobody can say whether it took effect."""
    return ToolResult(call.id, call.name, UNKNOWN, "unknown")


def cancelled(call: ToolCall, repeat: Repeat) -> ToolResult:
    """It was stopped in the middle. Of a call that must not be repeated, that leaves the effect unknown."""
    if repeat is Repeat.NEVER:
        return unknown(call)
    return ToolResult(call.id, call.name, CANCELLED, "cancelled")


def raised(error: BaseException) -> ErrorInfo:
    """What the tool raised: its kind and its message on one line, without the traceback.

    A group of errors is told as its members; what holds them together means nothing to a model.
    """
    leaves = _leaves(error)
    if len(leaves) == 1:
        return ErrorInfo(type(leaves[0]).__name__, _message(leaves[0]))
    lines = [f"{type(leaf).__name__}: {_message(leaf)}".removesuffix(": ") for leaf in leaves]
    return ErrorInfo(type(error).__name__, shorten("; ".join(lines), MAX_TEXT))


def complained(complaint: Complaint) -> ErrorInfo:
    """The arguments do not fit."""
    return ErrorInfo("InvalidArguments", shorten(complaint.text, MAX_TEXT))


def malformed(call: ToolCall) -> ErrorInfo:
    """The arguments are no JSON object at all."""
    came = f": {shorten(call.malformed, _SHOWN)!r}" if call.malformed else ""
    said = f"The arguments of {shorten(call.name, 64)} are not a JSON object{came}. Call it again with one."
    return ErrorInfo("InvalidArguments", said)


def unknown_tool(name: str, known: Iterable[str]) -> ErrorInfo:
    """No tool has this name: the model is told which there are, and which one it may have meant."""
    names = list(known)
    if not names:
        return ErrorInfo("ToolUnknown", f"There is no tool {shorten(name, 64)!r}: there are no tools.")
    close = difflib.get_close_matches(name[:64], names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    listed = shorten(", ".join(names[:MAX_NAMES]), MAX_TEXT - _SHOWN) + more
    return ErrorInfo("ToolUnknown", f"There is no tool {shorten(name, 64)!r}.{meant} The tools are: {listed}.")


def timed_out(name: str, seconds: float, repeat: Repeat) -> ErrorInfo:
    """It took longer than it may and was stopped."""
    said = f"{name} did not finish within {seconds:g} s and was stopped."
    if repeat is Repeat.NEVER:
        return ErrorInfo("ToolTimeout", f"{said} {UNKNOWN}")
    return ErrorInfo("ToolTimeout", f"{said} It is safe to call it again.")


def shorten(text: str, limit: int) -> str:
    """`text`, or its beginning with the count of what is missing, within `limit` characters."""
    if len(text) <= limit:
        return text
    end = f"... ({len(text):,} characters)"
    return text[: max(limit - len(end), 0)] + end


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return [leaf for member in members for leaf in _leaves(member)]
    return [error]


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  an error that can't even be shown must not hide that it happened
        return ""
    # No traceback; a huge message is not split into words before it is cut.
    return printable(shorten(" ".join(text[: 4 * MAX_TEXT].split()), MAX_TEXT - 100))
