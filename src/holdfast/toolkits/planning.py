"""`plan()`: tools with which an agent keeps a plan. The journal holds its changes; the plan is their fold."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace
from pydantic import Field

from holdfast.records import Done, Opened
from holdfast.tools.context import CallContext  # noqa: TC001  read from the signature
from holdfast.tools.definition import AnyTool, Reach, ToolRetry, tool
from holdfast.turns import keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.store import Store


StepStatus: TypeAlias = Literal["pending", "in_progress", "done", "dropped"]
MAX_STEPS: Final = 100
MAX_TEXT: Final = 500
"""Longest text of a step and of a note, in characters."""
_MARKS: Final[dict[StepStatus, str]] = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]", "dropped": "[-]"}


class PlanStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a plan."""

    text: str
    status: StepStatus = "pending"
    note: str = ""


class TaskPlan(msgspec.Struct, frozen=True):
    """Steps, in order, numbered from 1."""

    steps: tuple[PlanStep, ...] = ()

    @property
    def open(self) -> int:
        return sum(step.status in {"pending", "in_progress"} for step in self.steps)

    def shown(self) -> str:
        """The plan as a list of lines."""
        lines = [
            f"{number}. {_MARKS[step.status]} {step.text}" + (f" ({step.note})" if step.note else "")
            for number, step in enumerate(self.steps, 1)
        ]
        return "\n".join(lines) or "There is no plan."


class PlanMade(msgspec.Struct, frozen=True, tag="made", tag_field="plan"):
    """A new plan, in place of any other."""

    steps: tuple[PlanStep, ...]


class StepMoved(msgspec.Struct, frozen=True, tag="moved", tag_field="plan", omit_defaults=True):
    """A new status of one step."""

    step: int
    status: StepStatus
    note: str = ""


PlanChange: TypeAlias = PlanMade | StepMoved
_decode: Final = msgspec.json.Decoder(PlanMade | StepMoved).decode


def apply_change(plan: TaskPlan, change: PlanChange) -> TaskPlan:
    """The plan after a change. A change of a missing step has no effect."""
    match change:
        case PlanMade(steps):
            return TaskPlan(steps)
        case StepMoved(step, status, note):
            if not 1 <= step <= len(plan.steps):
                return plan
            before = plan.steps[step - 1]
            after = replace(before, status=status, note=note or before.note)
            return TaskPlan((*plan.steps[: step - 1], after, *plan.steps[step:]))


def describe_change(change: PlanChange, plan: TaskPlan) -> dict[str, Any]:
    """The result for the model: the change, and the new plan."""
    return {**msgspec.to_builtins(change), "now": plan.shown()}


async def read_session_plan(store: Store, session: str, *, prefix: str = "") -> TaskPlan:
    """The recorded plan of a session; `prefix` is the prefix of its tools' names, if they have one."""
    await store.read_position()  # earlier submissions are visible
    names = frozenset((f"{prefix}set_plan", f"{prefix}update_step"))
    plan = TaskPlan()
    async for change in _read_changes(store, session, names, None):
        plan = apply_change(plan, change)
    return plan


async def _read_changes(
    store: Store, journal: str, names: frozenset[str], upto: int | None
) -> AsyncIterator[PlanChange]:
    """All changes, those before a fork first."""
    async for entry in store.read_all(journal):
        if upto is not None and entry.seq > upto:
            return
        record = entry.record
        if isinstance(record, Opened) and record.parent is not None:
            async for change in _read_changes(store, record.parent, names, record.parent_seq):
                yield change
        if isinstance(record, Done) and _tool_of_key(record.key) in names:
            body = bytes(record.value) if record.blob is None else await store.blob(record.blob.digest)
            found: PlanChange | None = None
            with suppress(msgspec.DecodeError, UnicodeDecodeError):  # any other value of the tool changes nothing
                found = None if body is None else _decode(body)
            if found is not None:
                yield found


def _tool_of_key(key: str) -> str:
    """The tool in the key of a call; empty for any other key."""
    parsed = keys.parse_key(key)
    is_call = parsed is not None and not parsed.inner and parsed.name == "tools" and parsed.call
    return keys.tool_in_key(key) if is_call else ""


_REACH: Final = Reach(family="plan", external=False)
_Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]


@tool(read_only=True, background=False, polling=True, reach=_REACH)
async def set_plan(steps: Annotated[list[_Text], Field(min_length=1, max_length=MAX_STEPS)]) -> dict[str, Any]:
    """Write down the steps of your work, in order, in place of any plan you had. Each is pending at first.

    Do it for work of more than a few steps. The plan is kept even when the conversation is shortened.

    Args:
        steps: What is to be done, one short sentence for each step.
    """
    made = PlanMade(tuple(PlanStep(text) for text in steps))
    return describe_change(made, TaskPlan(made.steps))


@tool(read_only=True, background=False, polling=True, reach=_REACH)
async def update_step(
    ctx: CallContext,
    step: Annotated[int, Field(ge=1)],
    status: StepStatus,
    note: Annotated[str, Field(max_length=MAX_TEXT)] = "",
) -> dict[str, Any]:
    """Say how a step of your plan stands: one at a time in_progress, and done as soon as it is.

    Args:
        ctx: The call.
        step: The number of the step.
        status: How it stands now.
        note: What came of it, or why it was dropped, if that is worth keeping.
    """
    plan = await _plan(ctx, "update_step")
    if not plan.steps:
        raise ToolRetry("There is no plan yet. Make one with set_plan.")
    if step > len(plan.steps):
        raise ToolRetry(f"There is no step {step}. The plan is:\n{plan.shown()}")
    change = StepMoved(step, status, note)
    return describe_change(change, apply_change(plan, change))


@tool(read_only=True, background=False, polling=True, reach=_REACH)
async def read_plan(ctx: CallContext) -> str:
    """Read your plan as it now is. Use it whenever you are not sure what is left to do.

    Args:
        ctx: The call.
    """
    return (await _plan(ctx, "read_plan")).shown()


def plan() -> tuple[AnyTool, ...]:
    """Tools with which an agent keeps a plan, or a to-do list: `set_plan`, `update_step` and `read_plan`."""
    return set_plan, update_step, read_plan


async def _plan(ctx: CallContext, name: str) -> TaskPlan:
    return await read_session_plan(ctx.host.store, ctx.host.session, prefix=ctx.tool.removesuffix(name))
