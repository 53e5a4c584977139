"""An agent as a tool of another one.

A call begins a turn in a session of its own, whose id follows from the call: performed again after a crash, it finds
the same turn and waits for it, and nothing is bought twice. The wait itself is durable: what takes long is waited for
without anything in memory.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from holdfast.errors import InvalidArgument, InvalidNumber, WaitExpired
from holdfast.hands.agents.errors import SubAgentFailed
from holdfast.hands.agents.order import Order
from holdfast.hands.host import RuntimeMissing
from holdfast.names import check_string
from holdfast.records import InputTaint
from holdfast.tools import ToolRetry, tool
from holdfast.tools.context import Context  # noqa: TC001  read from the signature
from holdfast.tools.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.hands.agents.order import Answered, Child, Children
    from holdfast.tools import AnyTool
    from holdfast.tools.declared import Span

WAIT: Final = "sub-agent"
"""The name of the wait for a sub-agent that takes long."""
FIRST: Final = timedelta(seconds=5)
LONGEST: Final = timedelta(minutes=5)
"""How long a parent waits before it looks by itself, in case that whoever would have told it is gone."""
PROMPT: Final = 200_000
"""Longest prompt, in characters."""
_FAMILY: Final = "agents"


class SubAgent(Protocol):
    """What a tool needs to know of an agent."""

    @property
    def name(self) -> str: ...
    @property
    def tools(self) -> Mapping[str, AnyTool]: ...


@dataclass(frozen=True, slots=True)
class Delegation:
    """What the tool of a sub-agent calls."""

    agent: SubAgent
    budget: float

    async def ask(self, ctx: Context, prompt: str) -> Any:  # noqa: ANN401  text, or a value of the agent's output
        """Let another agent do a piece of work.

        Args:
            ctx: The call.
            prompt: What it is to do, with all that it must know: it sees nothing of this conversation.
        """
        ctx.taint = InputTaint()  # whatever is told before a sub-agent has answered was not read anywhere
        if not prompt.strip() or len(prompt) > PROMPT:
            raise ToolRetry(f"The prompt must say what is to be done, in at most {PROMPT:,} characters.")
        check_string("prompt", prompt)
        name = self.agent.name
        children = _children(ctx)
        by: str | None = getattr(ctx.host, "agent", None)
        told = ctx.metadata
        order = Order(
            *(name, prompt, self.budget, ctx.session, ctx.turn, ctx.key, ctx.idempotency_key, ctx.deadline, by, told)
        )
        child = await children.delegate(order)
        ctx.progress(f"{name} works in session {child.session}")
        outcome = await _answer(ctx, children, child)
        ctx.taint = await children.taint(child)
        return _told(child, outcome)


def agent_tool(  # noqa: PLR0913
    agent: SubAgent,
    *,
    name: str | None = None,
    description: str | None = None,
    background: bool | None = None,
    budget: float = 0.5,
    inline_budget: Span = None,
    max_parallel: int | None = None,
) -> AnyTool:
    """An agent as a tool: the model gives it a prompt, and gets its answer.

    It runs in a session of its own, under its own policy and that of its parent, and may use no more than a share of
    what is left to the parent. Where all its tools only read, so does this one: several can work side by side.

    Args:
        agent: Who does the work.
        name: What models call it; otherwise the name of the agent.
        description: What the model reads: what the agent is good for.
        background: True: it always goes on in the background. False: it never does. None: past its `inline_budget`.
        budget: The share of what is left to the parent (steps, tokens, money, tool calls), above 0 and up to 1.
        inline_budget: How long the model waits for it before it goes on in the background; the agent's default if None.
        max_parallel: How many of it work at once in this process.
    """
    tools: object = getattr(agent, "tools", None)
    if type(getattr(agent, "name", None)) is not str or not isinstance(tools, dict):
        raise InvalidArgument("agent", agent, "an Agent")
    if type(budget) not in (int, float) or not 0 < budget <= 1:
        raise InvalidNumber("budget", budget, "it is a share: above 0, and at most 1")
    below = list(cast("dict[str, AnyTool]", tools).values())
    said = f"Let {agent.name}, another agent, do a piece of work. It answers when it is done."
    make = tool(
        re.sub(r"[^a-zA-Z0-9_-]", "_", agent.name) if name is None else name,
        description=said if description is None else description,
        read_only=all(each.read_only for each in below),
        idempotent=True,
        background=background,
        inline_budget=inline_budget,
        max_parallel=max_parallel,
        untrusted=any(each.untrusted for each in below),
        reach=Reach(
            family=_FAMILY,
            private=any(each.reach.private for each in below),
            external=any(_reaches_out(each) for each in below),
        ),
    )
    return make(Delegation(agent, float(budget)).ask)


def sub_agents(tools: Mapping[str, AnyTool]) -> Iterator[SubAgent]:
    """The agents that these tools ask."""
    for each in tools.values():
        owner = getattr(each.function, "__self__", None)
        if isinstance(owner, Delegation):
            yield owner.agent


def _reaches_out(made: AnyTool) -> bool:
    return not made.read_only if made.reach.external is None else made.reach.external


def _children(ctx: Context) -> Children:
    children = getattr(ctx.host, "children", None)
    if children is None:
        raise RuntimeMissing(ctx.tool)
    return cast("Children", children)


async def _answer(ctx: Context, children: Children, child: Child) -> Answered:
    """How the turn ended: waited for in memory for a while, and then without anything there."""
    span = FIRST
    while True:
        # Where the call was left before, it goes the same way again.
        outcome = None if ctx.waited(WAIT) else await children.outcome(child)
        if outcome is not None:
            return outcome
        children.tell(child, ctx.wait_token(WAIT))
        with suppress(WaitExpired):
            await ctx.wait(WAIT, timeout=span)
        span = min(4 * span, LONGEST)


def _told(child: Child, outcome: Answered) -> Any:  # noqa: ANN401  text, or a value of the agent's output
    """What the model gets."""
    if outcome.status == "completed":
        return outcome.text if outcome.value is None else outcome.value
    said = outcome.message or outcome.code
    so_far = f"; its last words: {outcome.text[:2_000]}" if outcome.text.strip() else ""
    raise SubAgentFailed(child.agent, child.session, outcome.status, f"{said}{so_far}")
