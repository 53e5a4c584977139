"""The mode in which a turn goes on: the one in which it began, whatever its agent is by now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import ModeUnavailable, ProgramsUnavailable, StubsInvalid

if TYPE_CHECKING:
    from holdfast.agent import Agent


def require_mode(turn: str, agent: Agent) -> None:
    """`ModeUnavailable` if an agent that was made for another mode can't go on with a turn in this one."""
    if agent.mode == "tools":
        return
    try:
        _ = agent.stubs
        if agent.sandbox is None:
            from holdfast.sandbox.launching import require_programs  # noqa: PLC0415  only where it is needed

            require_programs()
    except (StubsInvalid, ProgramsUnavailable) as error:
        raise ModeUnavailable(turn, agent.name, agent.mode, str(error)) from error
