"""What can be spent, how it is counted, and what a backend keeps of it.

A row is about one agent and one day. The sum over all days has a row of its own, so that both are read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from holdfast.records import Blob, Record
from holdfast.store.command import Command

DAY_MS: Final = 86_400_000
MAX_SPEND: Final = 2**40
"""The most that one append may count of anything; millions of such appends still fit into a row."""


class Spend(msgspec.Struct, frozen=True, gc=False):
    """What was used up."""

    model_calls: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0
    """In millionths of a dollar, of the calls whose price is known."""
    unpriced: int = 0
    """Model calls of unknown price."""
    tasks: int = 0
    """Tasks that were taken in."""
    wall_ms: int = 0
    """Milliseconds in which turns of sessions were worked on."""

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.model_calls + other.model_calls,
            self.tool_calls + other.tool_calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_micros + other.cost_micros,
            self.unpriced + other.unpriced,
            self.tasks + other.tasks,
            self.wall_ms + other.wall_ms,
        )


NOTHING: Final = Spend()


class Spent(NamedTuple):
    """What one agent spent on one day. `agent` is None for journals that have no agent."""

    agent: str | None
    day: int
    """In days since 1970-01-01, UTC."""
    spend: Spend


ReadBlob: TypeAlias = Callable[[Blob], bytes | None]
SpendOf: TypeAlias = Callable[[Record, ReadBlob], Spend | None]
"""What one record says was spent; None when it says nothing of the kind. Pure: blobs are read for it."""


def day_of(at: int) -> int:
    """The day (since 1970-01-01, UTC) of a time in wall milliseconds."""
    return at // DAY_MS if at > 0 else 0


# ---- commands --------------------------------------------------------------------------------------------------------


class ReplaceSpending(Command[None], frozen=True):
    """Put these rows in the place of all that was counted, if no record came after `position`."""

    rows: tuple[Spent, ...]
    position: int


class CountOlder(Command[bool], frozen=True):
    """Add what the records up to `since` spent, which an older schema wrote; False when somebody has done so."""

    rows: tuple[Spent, ...]
    since: int


# ---- what a backend provides -----------------------------------------------------------------------------------------


class SpendingRows(Protocol):
    """Spending inside a transaction."""

    def add(self, agent: str | None, day: int, spend: Spend) -> None:
        """Count it for the day and for the whole."""
        ...

    def replace(self, rows: Sequence[Spent]) -> None:
        """Drop all that was counted and keep these, counted from the first record on."""
        ...

    def since(self) -> int:
        """The position after which records are counted."""
        ...

    def complete(self, rows: Sequence[Spent]) -> None:
        """Count these as well: with them, all is counted from the first record on."""
        ...


class SpendingReader(Protocol):
    """Spending as it can be read."""

    def spent(self, agent: str | None, day: int | None) -> Spend:
        """Of one day, or of all days."""
        ...

    def since(self) -> int:
        """The position after which records are counted; above 0 where older ones come from an older schema."""
        ...

    def raw(self) -> Iterator[tuple[str | None, int | None, Spend]]:
        """All rows; the day is None in the row of the whole."""
        ...
