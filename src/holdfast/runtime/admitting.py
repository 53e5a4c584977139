"""What becomes of an input before it is accepted: whether it is taken in, and until when it must be answered. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agent import milliseconds
from holdfast.policy.admission import misshapen
from holdfast.store.admission import Admission

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.turns.conversation import Said


def admission_of(agent: Agent | None, session: str, said: Said) -> Admission | None:
    """What a session takes in, as the store counts it; raises what is wrong with an input by itself."""
    admission = None if agent is None else agent.admission
    if admission is None:
        return None
    wrong = misshapen(admission, session, said.parts)
    if wrong is not None:
        raise wrong
    if not admission.looks_back_ms:
        return None
    return Admission(
        admission.per_window,
        milliseconds(admission.window),
        admission.duplicates,
        milliseconds(admission.duplicate_window),
    )


def deadline_of(agent: Agent | None, said: Said) -> int | None:
    """How long a turn may take, in milliseconds: as the input says, or else the agent."""
    if said.deadline_ms is None and agent is not None and agent.limits.deadline is not None:
        return milliseconds(agent.limits.deadline)
    return said.deadline_ms
