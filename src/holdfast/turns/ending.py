"""How a turn ended: the content of its one terminal record."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.messages import Usage
from holdfast.records import EndStatus  # noqa: TC001  msgspec reads the annotations

Blame = Literal["caller", "model", "tool", "code", "limit"]
"""Who can act: whoever asked, the model (or its provider), a tool, the code around it, or whoever set the limit."""


class Skipped(msgspec.Struct, frozen=True, array_like=True):
    """A call that the model made and that was not begun, because the turn ended first."""

    call: str
    """Its name, as events have it: ``t3.2.1``."""
    tool: str


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a turn ended, and why. The words of the answer are in the conversation, not here again."""

    status: EndStatus
    code: str = ""
    """The reason in one word, for programs: ``steps``, ``deadline``, ``refusal``, ``stream_cut``..."""
    message: str = ""
    """The reason in a sentence, for people."""
    blame: Blame | None = None
    answer: str | None = None
    """The id of the message that is the answer."""
    typed: bool = False
    """The answer is JSON of the shape that was asked for."""
    steps: int = 0
    usage: Usage = Usage()
    cost: float | None = None
    """In US dollars; None where a price is not known."""
    allowed: int | float | None = None
    """The value of the limit that was reached: so many steps, tokens, dollars, as `code` says."""
    used: int | float | None = None
    """How much of it was used."""
    skipped: tuple[Skipped, ...] = ()
    """Calls of the last reply that were not begun."""
    agent: str | None = None
    """Who had the turn when it ended; None where nobody had begun it."""
    handoffs: int = 0
    """How often it was handed over before."""


decode_ending: Final = msgspec.json.Decoder(Ending).decode
