"""An agent that takes the session over, as a tool of the one that has it.

The call itself does nothing: whoever drives the turn records who has the session from then on, in the same commit as
the result of the call. So a handoff happens once, whatever crashes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidArgument
from holdfast.names import check_id
from holdfast.tools import tool
from holdfast.tools.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.hands.agents.family import SubAgent
    from holdfast.tools import AnyTool

_FAMILY: Final = "agents"
REASON: Final = 1_000
"""Longest reason that is recorded with a handoff, in characters."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """What the tool of a handoff calls."""

    to: str
    agent: SubAgent | None = None
    """None where it was given by its name."""

    async def take_over(self, reason: str) -> str:  # noqa: ARG002  it is recorded with the handoff
        """Hand the conversation over.

        Args:
            reason: Why, in a sentence or two. The other agent sees this conversation, and this reason.
        """
        return f"{self.to} has this conversation now, goes on with it, and answers."


def handoff(agent: SubAgent | str, name: str | None = None, description: str | None = None) -> AnyTool:
    """A tool with which another agent takes the session over: at once, with the whole conversation.

    From then on that agent has the session, with its own model, instructions, tools, policy and limits, until it hands
    it over itself.

    Args:
        agent: Who takes over; or its name, where two agents hand over to each other. That one must be known, too.
        name: What models call the tool; otherwise ``transfer_to_`` and the name of the agent.
        description: What the model reads: when to hand over.
    """
    if isinstance(agent, str):
        given = Handoff(check_id("agent", agent))
    elif type(getattr(agent, "name", None)) is str and isinstance(getattr(agent, "tools", None), dict):
        given = Handoff(agent.name, agent)
    else:
        raise InvalidArgument("agent", agent, "an Agent, or the name of one")
    said = f"Let {given.to}, another agent, take this conversation over. It sees all of it, and answers in your place."
    make = tool(
        re.sub(r"[^a-zA-Z0-9_-]", "_", f"transfer_to_{given.to}")[:64] if name is None else name,
        description=said if description is None else description,
        read_only=True,
        background=False,
        reach=Reach(family=_FAMILY),
    )
    return make(given.take_over)


def handoff_of(made: AnyTool | None) -> Handoff | None:
    """What a tool hands over to, if it does."""
    owner = None if made is None else getattr(made.function, "__self__", None)
    return owner if isinstance(owner, Handoff) else None


def handoffs(tools: Mapping[str, AnyTool]) -> Iterator[Handoff]:
    """What these tools hand over to."""
    for each in tools.values():
        found = handoff_of(each)
        if found is not None:
            yield found
