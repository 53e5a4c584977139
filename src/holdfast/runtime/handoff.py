"""Handing a session over to another agent: when that is refused, and the record of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.agent import prepare
from holdfast.records import ErrorInfo, Handed
from holdfast.toolkits.agents import MAX_HANDOFF_REASON, find_handoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.messages import ToolResult
    from holdfast.policy.rules import Taint
    from holdfast.runtime.tool_call import PreparedCall, ToolCallRunner
    from holdfast.turns import OpenTurn


REFUSED_ERROR: Final = "HandoffRefused"
"""The kind of the error that the model reads."""
ALREADY_TAKEN: Final = ErrorInfo(
    REFUSED_ERROR, "another agent takes the conversation over in the same step; it can't go to two"
)


class TurnHandedOver(Exception):
    """Another agent has the session now, and goes on with the turn."""


class Handoffs:
    """Hands a session over from the agent of one turn."""

    def __init__(
        self,
        agent: Agent,
        turn: OpenTurn,
        performer: Performer,
        runner: ToolCallRunner,
        mode_of: Callable[[str], str | None],
    ) -> None:
        self._agent = agent
        self._runner = runner
        self._turn = turn
        self._performer = performer
        self._mode_of = mode_of
        self.possible = prepare(agent).has_handoffs
        """Whether the agent has a tool that hands the session over."""

    def refusal(self, call: PreparedCall) -> ErrorInfo | None:
        """Why the session can't go to the agent that a call names; None if it can."""
        to, turn = _target_agent(call), self._turn
        above = () if turn.mandate is None else turn.mandate.above
        if turn.handoffs >= self._agent.limits.handoffs:
            said = f"this turn was handed over {turn.handoffs} times already (Limits.handoffs); answer it yourself"
        elif to in above:
            said = f"{to!r} waits for the answer to this ({' > '.join(above)}); answer it yourself"
        elif self._mode_of(to) is None:
            said = f"no agent {to!r} is known here; go on without it"
        else:
            return None
        return ErrorInfo(REFUSED_ERROR, said)

    def record(self, call: PreparedCall, taint: Taint, results: Sequence[tuple[str, ToolResult]]) -> Handed:
        """The record that hands the session over, after a step with these results, each with the key of its call."""
        arguments: dict[str, Any] = call.request.arguments or {}
        taint = self._runner.taint_after(self._agent, taint, results)
        return Handed(
            at=self._performer.now(),
            run=self._turn.run,
            key=call.key,
            agent=_target_agent(call),
            by=self._agent.name,
            reason=self._performer.redactor.text(str(arguments.get("reason", "")))[:MAX_HANDOFF_REASON],
            untrusted=taint.untrusted_input,
            private=taint.private_data,
            mode=self._mode_of(_target_agent(call)),
            untrusted_by=taint.untrusted_by,
            private_by=taint.private_by,
        )


def is_handoff(call: PreparedCall) -> bool:
    """Whether a call would hand the session over."""
    return find_handoff(call.tool) is not None


def _target_agent(call: PreparedCall) -> str:
    found = find_handoff(call.tool)
    return "" if found is None else found.to
