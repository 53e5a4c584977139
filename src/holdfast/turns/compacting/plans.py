"""What a compaction does, as the journal keeps it: messages by their ids, never by their places. Pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.turns.compacting.budget import Why  # noqa: TC001  msgspec reads the annotations
from holdfast.turns.compacting.marks import mark_id

FORMAT: Final = 1
"""Of plans, and of the words that are put in place of what they take away."""

Way = Literal["clip", "summary", "drop"]
"""How room is made: results clipped and attachments dropped; a span summarised; a span dropped."""


class Clip(msgspec.Struct, frozen=True, gc=False):
    """The results of a tool message are cut down to their first characters."""

    message: str
    keep: int


class Span(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The messages from `first` to `last` but for those that are kept; `count` of them go."""

    first: str
    last: str
    count: int
    kept: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is taken away, and what it makes of the request. The same plan always gives the same messages."""

    way: Way
    why: Why = "full"
    clipped: tuple[Clip, ...] = ()
    bared: tuple[str, ...] = ()
    """Messages whose attachments are dropped."""
    span: Span | None = None
    gone: int = 0
    """How many messages went without a summary, with those that went before."""
    reader: str = ""
    """The tool that reads a clipped result; empty if the agent has none."""
    cap: int = 0
    """Most tokens of the summary."""
    before: int = 0
    """Tokens of the request, about."""
    after: int = 0
    """Tokens that are left, about, with a summary of the largest size."""
    format: int = FORMAT

    @property
    def mark(self) -> str:
        """The id of the message that stands in place of the span; empty if there is none."""
        return "" if self.span is None or self.way == "clip" else mark_id(self.span.last, self.way, self.gone)


decode_plan: Final = msgspec.json.Decoder(Plan).decode
