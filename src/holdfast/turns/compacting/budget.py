"""How much room a request has, and what is known of how much of it is used. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from holdfast.bounds import check_int
from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from holdfast.messages import Usage

LEAST_SUMMARY: Final = 200
MOST_SUMMARY: Final = 4_000
"""Tokens of a summary, if no other number is given: an eighth of the room, within these."""

Why = Literal["full", "overflow", "asked"]
"""Why a conversation is compacted: it would soon not fit, the provider said that it does not, or somebody wants it."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The room of a request, in tokens; shares are of what instructions and tools leave of it."""

    window: int
    """All that the model takes in and gives out."""
    reserve: int
    """Room for the answer."""
    fixed: int = 0
    """What instructions and tools take."""
    full: float = 0.9
    """At this share the conversation is compacted: an estimate is never exact."""
    aim: float = 0.5
    """It is compacted to this share, so that it is not done again at once."""
    recent: float = 0.25
    """The share of the last messages that stay as they are."""
    summary: int = 0
    """Most tokens of a summary; 0 takes an eighth of the room, from 200 to 4,000."""

    def __post_init__(self) -> None:
        check_int("window", self.window, least=1)
        check_int("reserve", self.reserve, most=self.window - 1)
        check_int("fixed", self.fixed)
        check_int("summary", self.summary)
        for name in ("full", "aim", "recent"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value <= 1:
                raise InvalidArgument(name, value, "a share above 0, and 1 at most,")
        if self.aim >= self.full:
            raise InvalidArgument("aim", self.aim, f"a share below {self.full}, at which compaction begins,")

    @property
    def room(self) -> int:
        """What a request may take as a whole."""
        return self.window - self.reserve

    @property
    def cap(self) -> int:
        """Most tokens of a summary."""
        return self.summary or min(max((self.room - self.fixed) // 8, LEAST_SUMMARY), MOST_SUMMARY)

    def share(self, part: float, fixed: int) -> int:
        """What a request takes that uses this share of what `fixed` tokens leave."""
        return fixed + int(max(self.room - fixed, 0) * part)


class Reported(msgspec.Struct, frozen=True):
    """What a provider said of a request: how many tokens it took in, up to the message with this id."""

    message: str
    tokens: int

    @classmethod
    def of(cls, message: str, usage: Usage) -> Reported:
        """From the usage of a reply; `message` is the last one that was asked.

        What came out of the provider's cache takes room as well.
        """
        return cls(message, usage.input + usage.cache_read + usage.cache_write)


class TooLarge(msgspec.Struct, frozen=True):
    """Nothing that may be taken away makes the request fit."""

    needed: int
    """Tokens of what must stay."""
    room: int

    @property
    def reason(self) -> str:
        """In words, with what to do."""
        return (
            "what must stay in the conversation (instructions, tools, the input being answered, pinned messages) takes "
            f"about {self.needed:,} tokens, and there is room for {self.room:,}: say less at once, give large texts "
            "as files that a tool reads, or use a model with a larger window"
        )
