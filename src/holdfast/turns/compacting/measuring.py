"""What each message of a thread takes, in step with what the provider reported. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.messages import Message
    from holdfast.turns.compacting.budget import Budget, Reported
    from holdfast.turns.compacting.counting import Counter

_MOST: Final = 2
"""So many times more, or fewer, tokens are put down to the estimate of messages; the rest to what is no message."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Tokens of messages, corrected by what is known."""

    counter: Counter
    weights: tuple[int, ...]
    fixed: int
    """What is no message: instructions, tools, and whatever else the provider counts."""
    top: int = 1
    bottom: int = 1
    """The correction is `top` / `bottom`."""

    @property
    def total(self) -> int:
        """Of the request."""
        return self.fixed + sum(self.weights)

    def of(self, message: Message) -> int:
        """Of one message, that need not be in the thread."""
        return self.scaled(self.counter.tokens(message))

    def scaled(self, tokens: int) -> int:
        """An estimate, corrected."""
        return _scaled(tokens, self.top, self.bottom)


def measured(
    messages: Sequence[Message], budget: Budget, counter: Counter, known: Reported | None, *, overflown: bool
) -> Measure:
    """What the messages take. If they have `overflown`, the provider says that it is more than there is room for."""
    plain = [counter.tokens(message) for message in messages]
    measure = _anchored(messages, plain, budget, counter, known)
    if not overflown or measure.total > budget.room:
        return measure
    # Whatever was counted, it was too little by at least this much.
    total = max(measure.total, 1)
    over = budget.room + 1
    weights = tuple(_scaled(weight, over, total) for weight in measure.weights)
    fixed = _scaled(measure.fixed, over, total)
    return Measure(counter, weights, fixed, measure.top * over, measure.bottom * total)


def _anchored(
    messages: Sequence[Message], plain: list[int], budget: Budget, counter: Counter, known: Reported | None
) -> Measure:
    at = None if known is None else next((n for n, m in enumerate(messages, 1) if m.id == known.message), None)
    if known is None or at is None or known.tokens <= 0:
        return Measure(counter, tuple(plain), budget.fixed)
    told = sum(plain[:at])
    guess = max(budget.fixed + told, 1)
    top, bottom = known.tokens, guess
    if top > bottom * _MOST:
        top, bottom = _MOST, 1
    elif bottom > top * _MOST:
        top, bottom = 1, _MOST
    weights = tuple(_scaled(weight, top, bottom) for weight in plain)
    return Measure(counter, weights, max(known.tokens - sum(weights[:at]), 0), top, bottom)


def _scaled(tokens: int, top: int, bottom: int) -> int:
    return -(-tokens * top // bottom)
