"""The tools with which an agent keeps a plan of its work.

They change nothing but what is recorded of the session anyway, so they count as tools that only read, and need no rule
of a policy. The plan outlives compaction and restarts: `read_plan` shows it at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from holdfast.hands.host import host_of
from holdfast.hands.planning.plans import LONGEST, MOST_STEPS, Made, Moved, Step, StepStatus, applied, fold, told
from holdfast.hands.planning.reading import plan_of
from holdfast.tools import ToolRetry, tool
from holdfast.tools.context import Context  # noqa: TC001  read from the signature
from holdfast.tools.reach import Reach

if TYPE_CHECKING:
    from holdfast.hands.planning.plans import Plan
    from holdfast.tools import AnyTool

_REACH: Final = Reach(family="plan", external=False)
_Text = Annotated[str, Field(min_length=1, max_length=LONGEST)]


@tool(read_only=True, background=False, polling=True, reach=_REACH)
async def set_plan(steps: Annotated[list[_Text], Field(min_length=1, max_length=MOST_STEPS)]) -> dict[str, Any]:
    """Write down the steps of your work, in order, in place of any plan you had. Each is pending at first.

    Do it for work of more than a few steps. The plan is kept even when the conversation is shortened.

    Args:
        steps: What is to be done, one short sentence for each step.
    """
    made = Made(tuple(Step(text) for text in steps))
    return told(made, fold([made]))


@tool(read_only=True, background=False, polling=True, reach=_REACH)
async def update_step(
    ctx: Context,
    step: Annotated[int, Field(ge=1)],
    status: StepStatus,
    note: Annotated[str, Field(max_length=LONGEST)] = "",
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
    change = Moved(step, status, note)
    return told(change, applied(plan, change))


@tool(read_only=True, background=False, polling=True, reach=_REACH)
async def read_plan(ctx: Context) -> str:
    """Read your plan as it now is. Use it whenever you are not sure what is left to do.

    Args:
        ctx: The call.
    """
    return (await _plan(ctx, "read_plan")).shown()


TOOLS: Final[tuple[AnyTool, ...]] = (set_plan, update_step, read_plan)


def plan() -> tuple[AnyTool, ...]:
    """Tools with which an agent keeps a plan, or a to-do list: `set_plan`, `update_step` and `read_plan`."""
    return TOOLS


async def _plan(ctx: Context, name: str) -> Plan:
    host = host_of(ctx)
    return await plan_of(host.store, host.session, prefix=ctx.tool.removesuffix(name))
