"""The tools with which an agent looks after its background work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from holdfast.errors import InvalidId, StoreError, TaskUnknown
from holdfast.hands.host import Host, host_of
from holdfast.hands.tasks.glance import glance
from holdfast.hands.tasks.words import as_lines, has_result, head, line
from holdfast.records import Done
from holdfast.tools import ToolRetry, tool
from holdfast.tools.context import Context  # noqa: TC001  read from the signature
from holdfast.tools.paging import MAX_LINES, page, shown
from holdfast.tools.reach import Reach
from holdfast.tools.reader import reader

if TYPE_CHECKING:
    from holdfast.tasks import TaskState
    from holdfast.tools import AnyTool

MOST: Final = 50
"""How many tasks one call lists."""
_REACH: Final = Reach(family="tasks", private=True, external=False)
_REASON: Final = 500


@tool(read_only=True, background=False, reach=_REACH, untrusted=True)
async def list_tasks(ctx: Context, limit: Annotated[int, Field(ge=1, le=MOST)] = 20) -> str:
    """List your background tasks, those that changed last first: id, tool, status and progress.

    You need not ask again and again: a notification tells you when a task has ended.

    Args:
        ctx: The call.
        limit: How many to list at the most.
    """
    host = host_of(ctx)
    found = await host.tasks(limit)
    if not found:
        return "There are no tasks."
    now = host.now
    return "\n".join([await _line(host, each.id, now) for each in found])


async def _line(host: Host, id: str, now: int) -> str:
    """One task; a damaged one must not hide the others."""
    try:
        return line(await glance(host.store, id), now)
    except StoreError:
        return f"{id}: it can't be read any more; its records are damaged"


@tool(read_only=True, background=False, reach=_REACH, untrusted=True)
async def read_task(
    ctx: Context,
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
    host = host_of(ctx)
    state = await _task(host, id)
    data = await _whole(host, state)
    if data is None:
        return head(state, host.now)
    part = shown(page(data, start, lines, skip), state.id, "read_task")
    begins = start == 1 and skip == 0
    return f"{head(state, host.now)}\nResult:\n{part}" if begins else f"Result of task {state.id}:\n{part}"


@tool(idempotent=True, destructive=True, background=False, reach=_REACH)
async def cancel_task(ctx: Context, id: str, reason: Annotated[str, Field(max_length=_REASON)] = "") -> str:
    """Stop a background task whose result is not wanted any more.

    What it has done by then stays done.

    Args:
        ctx: The call.
        id: The id of the task.
        reason: Why. It is recorded.
    """
    host = host_of(ctx)
    state = await _task(host, id)
    match await host.cancel_task(state.id, reason):
        case "too_late":
            ended = await host.task(state.id)
            return f"Too late: task {state.id} has ended ({ended.status})."
        case "already_requested":
            return f"Task {state.id} is being stopped already. A notification will tell when it has ended."
        case "requested":
            return f"Task {state.id} is being stopped. A notification will tell when it has ended."


async def _kept(context: Context, id: str) -> bytes | None:
    return await host_of(context).kept(id)


read_result: Final = reader(_kept)

TOOLS: Final[tuple[AnyTool, ...]] = (list_tasks, read_task, cancel_task, read_result)


async def _task(host: Host, id: str) -> TaskState:
    try:
        return await host.task(id)
    except (TaskUnknown, InvalidId):
        said = f"There is no task {id[:80]!r} here. list_tasks tells which there are."
        raise ToolRetry(said) from None


async def _whole(host: Host, state: TaskState) -> bytes | None:
    """What a task gave, also where the model was shown only the ends of it."""
    outcome = state.outcome
    if not has_result(state) or not isinstance(outcome, Done):
        return None
    for blob in outcome.kept:
        return await host.store.blob(blob.digest)
    result = await host.task_result(state)
    return None if result is None else as_lines(result)
