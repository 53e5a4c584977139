"""Agents as tools of agents: `agent_tool` and `handoff`."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast import errors, names, records
from holdfast.effects.canonical import digest
from holdfast.errors.fields import ErrorFields
from holdfast.tools.context import CallContext  # noqa: TC001  read from the signature
from holdfast.tools.definition import AnyTool, Duration, Reach, ToolRetry, tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.agent import Agent


_SESSION_LENGTH: Final = 160
_AGENT_LENGTH: Final = 32
_DIGEST_LENGTH: Final = 20


@dataclass(frozen=True, slots=True)
class SubAgentRequest:
    """One task for a sub-agent."""

    agent: str
    prompt: str
    budget: float
    """The share of the parent's remaining budget."""
    session: str
    turn: str
    key: str
    call: str
    """The idempotency key of the parent's call."""
    deadline: datetime | None = None
    by: str | None = None
    """The agent that asks; None: the agent of the session."""
    metadata: Mapping[str, Any] | None = None
    """Metadata of the parent's session and turn."""

    @property
    def child(self) -> str:
        """The session of the sub-agent: the same for every attempt of the call, and for no other call.

        It depends on the prompt: if a model reply was lost in a crash, the model may ask for something else.
        """
        told = digest("sub-agent", [self.call, self.agent, self.prompt])[:_DIGEST_LENGTH]
        return f"{self.session[:_SESSION_LENGTH]}~{self.agent[:_AGENT_LENGTH]}~{told}"


@dataclass(frozen=True, slots=True)
class SubAgentTurn:
    """The turn of a sub-agent."""

    session: str
    input: int
    agent: str


class SubAgentRefused(ErrorFields, errors.UsageError):
    """A sub-agent was not started: too deep, its own ancestor, or no budget left."""

    agent: str
    reason: str
    _message = "{agent!r} was not asked: {reason}"


class SubAgentFailed(errors.WorldError):
    """A sub-agent ended without an answer."""

    def __init__(self, agent: str, session: str, status: str, message: str) -> None:
        super().__init__(
            f"{agent!r} {_ENDED.get(status, status)}: {message} "
            f"(what it did: session {session!r}). Go on without it, or ask for less."
        )
        self.agent = agent
        self.session = session
        self.status = status


_ENDED: Final = {"failed": "failed", "cancelled": "was stopped", "limit": "reached a limit"}

# ---- sub-agents ----

SUB_AGENT_WAIT: Final = "sub-agent"
"""The name of the wait for a slow sub-agent."""
FIRST_WAIT: Final = timedelta(seconds=5)
LONGEST_WAIT: Final = timedelta(minutes=5)
"""Longest wait before the parent looks by itself, in case the process that would notify it is gone."""
MAX_PROMPT: Final = 200_000
"""Longest prompt, in characters."""
_FAMILY: Final = "agents"


@dataclass(frozen=True, slots=True)
class SubAgentTool:
    """The function of a sub-agent's tool."""

    agent: Agent
    budget: float

    async def ask(self, ctx: CallContext, prompt: str) -> Any:  # text, or a value of the agent's output
        """Let another agent do a piece of work.

        Args:
            ctx: The call.
            prompt: What it is to do, with all that it must know: it sees nothing of this conversation.
        """
        ctx.taint = records.InputTaint()  # errors before the sub-agent's answer carry no taint
        if not prompt.strip() or len(prompt) > MAX_PROMPT:
            raise ToolRetry(f"The prompt must say what is to be done, in at most {MAX_PROMPT:,} characters.")
        names.check_string("prompt", prompt)
        name, children, by = self.agent.name, ctx.host.children, ctx.host.agent
        call = (ctx.session, ctx.turn, ctx.key, ctx.idempotency_key, ctx.deadline)
        child = await children.delegate(SubAgentRequest(name, prompt, self.budget, *call, by, ctx.metadata))
        ctx.progress(f"{name} works in session {child.session}")
        span = FIRST_WAIT  # it waits in memory for a while, then suspended
        # A call that was suspended here before takes the same way again.
        while ctx.waited(SUB_AGENT_WAIT) or (outcome := await children.outcome(child)) is None:
            children.tell(child, ctx.wait_token(SUB_AGENT_WAIT))
            with suppress(errors.WaitExpired):
                await ctx.wait(SUB_AGENT_WAIT, timeout=span)
            span = min(4 * span, LONGEST_WAIT)
        ctx.taint = await children.taint(child)
        if outcome.status == "completed":
            return outcome.text if outcome.value is None else outcome.value
        text = outcome.message or outcome.code
        so_far = f"; its last words: {outcome.text[:2_000]}" if outcome.text.strip() else ""
        raise SubAgentFailed(name, child.session, outcome.status, f"{text}{so_far}")


def agent_tool(
    agent: Agent,
    *,
    name: str | None = None,
    description: str | None = None,
    background: bool | None = None,
    budget: float = 0.5,
    inline_budget: Duration = None,
    max_parallel: int | None = None,
) -> AnyTool:
    """An agent as a tool: the model writes a prompt and reads the agent's answer.

    The sub-agent runs in a session of its own, under its own policy and that of its parent, with a share of the
    parent's remaining budget. If all its tools are read-only, so is this one: several can work side by side.

    Args:
        agent: The agent that does the work.
        name: The name for models; by default the name of the agent.
        description: The description for the model: the tasks that the agent is good for.
        background: True: it always runs in the background. False: never. None: past its `inline_budget`.
        budget: The share of the parent's remaining steps, tokens, money and tool calls, above 0 and up to 1.
        inline_budget: Time that the model waits before the call goes on in the background; None: the agent's default.
        max_parallel: Most calls of it at once in this process.
    """
    tools: object = getattr(agent, "tools", None)
    if type(getattr(agent, "name", None)) is not str or not isinstance(tools, dict):
        raise errors.InvalidArgument("agent", agent, "an Agent")
    if type(budget) not in (int, float) or not 0 < budget <= 1:
        raise errors.InvalidNumber("budget", budget, "it is a share: above 0, and at most 1")
    below = list(cast("dict[str, AnyTool]", tools).values())
    listed = bool(getattr(agent, "providers", ()))  # tools that are not known yet may do anything
    text = f"Let {agent.name}, another agent, do a piece of work. It answers when it is done."
    make = tool(
        re.sub(r"[^a-zA-Z0-9_-]", "_", agent.name) if name is None else name,
        description=text if description is None else description,
        read_only=not listed and all(each.read_only for each in below),
        idempotent=True,
        background=background,
        inline_budget=inline_budget,
        max_parallel=max_parallel,
        untrusted=listed or any(each.untrusted for each in below),
        reach=Reach(
            family=_FAMILY,
            private=listed or any(each.reach.private for each in below),
            external=listed
            or any((not each.read_only) if each.reach.external is None else each.reach.external for each in below),
        ),
    )
    return make(SubAgentTool(agent, float(budget)).ask)


def list_sub_agents(tools: Mapping[str, AnyTool]) -> Iterator[Agent]:
    """The agents behind these tools."""
    owners = (getattr(each.function, "__self__", None) for each in tools.values())
    return (owner.agent for owner in owners if isinstance(owner, SubAgentTool))


# ---- handoffs ----

MAX_HANDOFF_REASON: Final = 1_000
"""Longest reason that is recorded with a handoff, in characters."""


@dataclass(frozen=True, slots=True)
class HandoffTool:
    """The function of a handoff's tool."""

    to: str
    agent: Agent | None = None
    """None if only the name is known."""

    async def take_over(self, reason: str) -> str:  # it is recorded with the handoff
        """Hand the conversation over.

        Args:
            reason: Why, in a sentence or two. The other agent sees this conversation, and this reason.
        """
        return f"{self.to} has this conversation now, goes on with it, and answers."


def handoff(agent: Agent | str, name: str | None = None, description: str | None = None) -> AnyTool:
    """A tool that hands the session over to another agent: at once, with the whole conversation.

    From then on that agent has the session, with its own model, instructions, tools, policy and limits, until it hands
    the session over itself.

    Args:
        agent: The agent that takes over, or its name if two agents hand over to each other. The runtime must know it.
        name: The name of the tool for models; by default ``transfer_to_`` and the name of the agent.
        description: The description for the model: when to hand over.
    """
    if isinstance(agent, str):
        given = HandoffTool(names.check_id("agent", agent))
    elif type(getattr(agent, "name", None)) is str and isinstance(getattr(agent, "tools", None), dict):
        given = HandoffTool(agent.name, agent)
    else:
        raise errors.InvalidArgument("agent", agent, "an Agent, or the name of one")
    text = f"Let {given.to}, another agent, take this conversation over. It sees all of it, and answers in your place."
    make = tool(
        re.sub(r"[^a-zA-Z0-9_-]", "_", f"transfer_to_{given.to}")[:64] if name is None else name,
        description=text if description is None else description,
        read_only=True,
        background=False,
        reach=Reach(family=_FAMILY),
    )
    return make(given.take_over)


def find_handoff(made: AnyTool | None) -> HandoffTool | None:
    """The handoff of a tool, if it is one."""
    owner = None if made is None else getattr(made.function, "__self__", None)
    return owner if isinstance(owner, HandoffTool) else None
