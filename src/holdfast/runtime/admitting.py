"""What becomes of an input before it is accepted: whether it is taken in, and until when it must be answered. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.agent import milliseconds
from holdfast.errors import (
    DuplicateInput,
    EmptyInput,
    InboxFull,
    InputTooLarge,
    KeyConflict,
    PayloadTooLarge,
    RateExceeded,
)
from holdfast.policy.admission import misshapen
from holdfast.store.admission import Admission

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent import Agent
    from holdfast.attachments import File
    from holdfast.messages import InputPart
    from holdfast.policy.admission import Admission as Terms
    from holdfast.turns.conversation import Said

REFUSALS: Final = (
    *(DuplicateInput, EmptyInput, InboxFull, InputTooLarge),
    *(KeyConflict, PayloadTooLarge, RateExceeded),
)
"""What an input is refused with that is well-formed otherwise: such a refusal is kept."""


def admission_of(terms: Terms) -> Admission | None:
    """What a session takes in, as the store counts it; None where it need not look back."""
    if not terms.looks_back_ms:
        return None
    return Admission(
        terms.per_window,
        milliseconds(terms.window),
        terms.duplicates,
        milliseconds(terms.duplicate_window),
    )


def check_shape(terms: Terms, session: str, parts: Sequence[InputPart | File]) -> None:
    """Raise what is wrong with an input by itself."""
    wrong = misshapen(terms, session, parts)
    if wrong is not None:
        raise wrong


def deadline_of(agent: Agent | None, said: Said) -> int | None:
    """How long a turn may take from now on, in milliseconds: as the input says, or else the agent."""
    if said.deadline_from_start:
        return None
    if said.deadline_ms is None and agent is not None and agent.limits.deadline is not None:
        return milliseconds(agent.limits.deadline)
    return said.deadline_ms
