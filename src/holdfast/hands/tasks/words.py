"""What a model reads of tasks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.hands.moments import moment, span
from holdfast.records import Cancelled, Done, Unknown
from holdfast.tasks.words import body

if TYPE_CHECKING:
    from holdfast.records import Progressed
    from holdfast.tasks import TaskState

_NOTE: Final = 200
"""How much of what a tool said of itself stands in one line, in characters."""
_ARGUMENTS: Final = 500


def line(state: TaskState, now: int) -> str:
    """A task in one line."""
    parts = [f"{state.id}: {_tool(state)}", _standing(state, now)]
    if state.progress is not None and not state.over:
        parts.append(progress(state.progress))
    if state.error is not None and state.error.message:
        parts.append(_flat(state.error.message))
    return ", ".join(part for part in parts if part)


def head(state: TaskState, now: int) -> str:
    """What is known of a task, without what it gave."""
    lines = [f"Task {state.id}", f"Tool: {_tool(state)}", f"Status: {_standing(state, now)}"]
    if state.call is not None:
        lines.append(f"Arguments: {_flat(msgspec.json.encode(state.call.arguments).decode(), _ARGUMENTS)}")
    lines.append(f"Created: {moment(state.created)}")
    if state.starts > 1:
        lines.append(f"Begun {state.starts} times: it was interrupted, or waited, and went on")
    if state.progress is not None:
        lines.append(f"Progress: {progress(state.progress)} (report {state.reports:,})")
    if state.error is not None:
        lines.append(f"Error: {_flat(f'{state.error.kind}: {state.error.message}', 10 * _NOTE)}")
    if not state.over:
        lines.append("There is no result yet. A notification will tell when it has ended.")
    elif isinstance(state.outcome, Unknown | Cancelled):
        lines.append(body(state.outcome, ""))
    return "\n".join(lines)


def progress(told: Progressed) -> str:
    """How far it is, in the words of the tool."""
    share = "" if told.fraction is None else f"{told.fraction * 100:.0f} %"
    return ": ".join(part for part in (share, _flat(told.note or "")) if part)


def as_lines(result: bytes) -> bytes:
    """The result of a call as a text that can be read line by line."""
    value: Any = msgspec.json.decode(result)
    return value.encode("utf-8", "backslashreplace") if isinstance(value, str) else msgspec.json.format(result)


def has_result(state: TaskState) -> bool:
    """Whether there is something to read."""
    return isinstance(state.outcome, Done)


def _standing(state: TaskState, now: int) -> str:
    if state.ended is not None:
        return f"{state.status} {span(now - state.ended)} ago"
    if state.started is not None:
        return f"{state.status}, begun {span(now - state.started)} ago"
    return f"{state.status} {span(now - state.created)} ago, not begun"


def _tool(state: TaskState) -> str:
    return "an unknown tool" if state.call is None else _flat(state.call.tool)


def _flat(text: str, width: int = _NOTE) -> str:
    """A text from outside, on one line."""
    flat = " ".join(text[: 4 * width].split())
    return flat if len(flat) <= width and len(text) <= 4 * width else f"{flat[: width - 3]}..."
