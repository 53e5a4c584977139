"""`tasks()`: tools that list, read and cancel the background tasks of the session, and read long results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from pydantic import Field

from holdfast import errors, records
from holdfast.processes.state import ProcessState, task_end_text
from holdfast.tools.context import CallContext  # noqa: TC001  read from the signature
from holdfast.tools.definition import AnyTool, Reach, ToolRetry, tool
from holdfast.tools.results import MAX_LINES, RESULT_READER, format_duration, format_time, read_page, render_page

if TYPE_CHECKING:
    from holdfast.runtime.tool_host import ToolHost


def tasks() -> tuple[AnyTool, ...]:
    """Tools that list, read and cancel the background tasks of the session, and read results that were too long.

    An agent sees only the tasks of its own session.
    """
    return list_tasks, read_task, cancel_task, read_result


_NOTE: Final = 200
"""Longest text of a tool in one line, in characters."""
_ARGUMENTS: Final = 500


def summary_line(state: ProcessState, now: int) -> str:
    """A task in one line."""
    parts = [f"{state.id}: {_tool(state)}", _describe_status(state, now)]
    if state.progress is not None and not state.over:
        parts.append(describe_progress(state.progress))
    if state.error is not None and state.error.message:
        parts.append(_one_line(state.error.message))
    return ", ".join(part for part in parts if part)


def describe_task(state: ProcessState, now: int) -> str:
    """The state of a task, without its result."""
    lines = [f"Task {state.id}", f"Tool: {_tool(state)}", f"Status: {_describe_status(state, now)}"]
    if state.call is not None:
        lines.append(f"Arguments: {_one_line(msgspec.json.encode(state.call.arguments).decode(), _ARGUMENTS)}")
    lines.append(f"Created: {format_time(state.created)}")
    if state.starts > 1:
        lines.append(f"Begun {state.starts} times: it was interrupted, or waited, and went on")
    if state.progress is not None:
        lines.append(f"Progress: {describe_progress(state.progress)} (report {state.reports:,})")
    if state.error is not None:
        lines.append(f"Error: {_one_line(f'{state.error.kind}: {state.error.message}', 10 * _NOTE)}")
    if not state.over:
        lines.append("There is no result yet. A notification will tell when it has ended.")
    elif isinstance(state.outcome, records.Unknown | records.Cancelled):
        lines.append(task_end_text(state.outcome, ""))
    return "\n".join(lines)


def describe_progress(reported: records.Progressed) -> str:
    """The progress, in the words of the tool."""
    share = "" if reported.fraction is None else f"{reported.fraction * 100:.0f} %"
    return ": ".join(part for part in (share, _one_line(reported.note or "")) if part)


def result_as_lines(result: bytes) -> bytes:
    """The result of a call as text with lines."""
    value: Any = msgspec.json.decode(result)
    return value.encode("utf-8", "backslashreplace") if isinstance(value, str) else msgspec.json.format(result)


def _describe_status(state: ProcessState, now: int) -> str:
    if state.ended is not None:
        return f"{state.status} {format_duration(now - state.ended)} ago"
    if state.started is not None:
        return f"{state.status}, begun {format_duration(now - state.started)} ago"
    made = f"{format_duration(now - state.created)} ago"
    # One that was not created just now began before the records that a list reads.
    return f"created {made}, not begun" if state.status == "created" else f"{state.status}, made {made}"


def _tool(state: ProcessState) -> str:
    return "an unknown tool" if state.call is None else _one_line(state.call.tool)


def _one_line(text: str, width: int = _NOTE) -> str:
    flat = " ".join(text[: 4 * width].split())
    return flat if len(flat) <= width and len(text) <= 4 * width else f"{flat[: width - 3]}..."


MOST: Final = 50
"""Most tasks of one list."""
_REASON: Final = 500
_REACH: Final = Reach(family="tasks", private=True, external=False)


@tool(read_only=True, background=False, reach=_REACH, untrusted=True)
async def list_tasks(ctx: CallContext, limit: Annotated[int, Field(ge=1, le=MOST)] = 20) -> str:
    """List your background tasks, those that changed last first: id, tool, status and progress.

    You need not ask again and again: a notification tells you when a task has ended.

    Args:
        ctx: The call.
        limit: How many to list at the most.
    """
    found = await ctx.host.tasks(limit)
    now = ctx.host.now
    lines: list[str] = []
    for each in found:
        try:
            lines.append(summary_line(await ctx.host.glance_task(each.id), now))
        except errors.StoreError:  # a damaged task must not hide the others
            lines.append(f"{each.id}: it can't be read any more; its records are damaged")
    return "\n".join(lines) or "There are no tasks."


@tool(read_only=True, background=False, reach=_REACH, untrusted=True)
async def read_task(
    ctx: CallContext,
    id: str,
    start: Annotated[int, Field(ge=1)] = 1,
    lines: Annotated[int, Field(ge=1, le=MAX_LINES)] = 500,
    skip: Annotated[int, Field(ge=0)] = 0,
) -> str:
    """Read how a background task stands, and the whole of what it gave.

    A long result comes in pages: the answer says how to go on.

    Args:
        ctx: The call.
        id: The id of the task.
        start: The number of the first line of the result to read.
        lines: How many lines of the result to read.
        skip: How many bytes of the first line to leave out, if the answer says so.
    """
    host = ctx.host
    state = await _task(host, id)
    data: bytes | None = None  # the whole result, even if the model has seen only its beginning and end
    if isinstance(state.outcome, records.Done) and state.outcome.kept:
        data = await host.store.blob(state.outcome.kept[0].digest)
    elif isinstance(state.outcome, records.Done) and (result := await host.task_result(state)) is not None:
        data = result_as_lines(result)
    if data is None:
        return describe_task(state, host.now)
    part = render_page(read_page(data, start, lines, skip), state.id, "read_task")
    begins = start == 1 and skip == 0
    return f"{describe_task(state, host.now)}\nResult:\n{part}" if begins else f"Result of task {state.id}:\n{part}"


@tool(idempotent=True, destructive=True, background=False, reach=_REACH)
async def cancel_task(ctx: CallContext, id: str, reason: Annotated[str, Field(max_length=_REASON)] = "") -> str:
    """Stop a background task whose result is not wanted any more.

    What it has done by then stays done.

    Args:
        ctx: The call.
        id: The id of the task.
        reason: Why. It is recorded.
    """
    host = ctx.host
    state = await _task(host, id)
    match await host.cancel_task(state.id, reason):
        case "too_late":
            ended = await host.task(state.id)
            return f"Too late: task {state.id} has ended ({ended.status})."
        case "already_requested":
            return f"Task {state.id} is being stopped already. A notification will tell when it has ended."
        case "requested":
            return f"Task {state.id} is being stopped. A notification will tell when it has ended."


@tool(RESULT_READER, read_only=True, background=False, untrusted=True, reach=_REACH)
async def read_result(
    ctx: CallContext,
    id: str,
    start: Annotated[int, Field(ge=1)] = 1,
    lines: Annotated[int, Field(ge=1, le=MAX_LINES)] = 500,
    skip: Annotated[int, Field(ge=0)] = 0,
) -> str:
    """Read a part of a result that was too long to be shown whole.

    Args:
        ctx: The call.
        id: The id in the note that stands where something was left out.
        start: The number of the first line to read.
        lines: How many lines to read.
        skip: How many bytes of the first line to leave out, if a note says so.
    """
    data = await ctx.host.kept(id)
    if data is None:
        said = f"There is no result with the id {id[:80]!r}. Use an id that stands in a note of this conversation."
        raise ToolRetry(said)
    return render_page(read_page(data, start, lines, skip), id)


async def _task(host: ToolHost, id: str) -> ProcessState:
    try:
        return await host.task(id)
    except (errors.TaskUnknown, errors.InvalidId):
        raise ToolRetry(f"There is no task {id[:80]!r} here. list_tasks tells which there are.") from None
