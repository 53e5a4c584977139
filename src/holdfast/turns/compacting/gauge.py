"""How full a conversation is, kept as it grows: looking at it costs what was added, not what there is. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.turns.compacting.budget import Reported
from holdfast.turns.thread import Thread

if TYPE_CHECKING:
    from holdfast.turns.compacting.budget import Budget
    from holdfast.turns.compacting.counting import Counter


@dataclass(frozen=True, slots=True)
class Gauge:
    """The tokens of a request with a thread: what the provider reported last, and an estimate of what came since."""

    counter: Counter
    fixed: int = 0
    """What instructions and tools take."""
    said: int = 0
    """Tokens of the thread, and of what a report counts besides."""
    seen: Thread = field(default_factory=Thread)
    known: Reported | None = None
    """The last report, if the thread still begins with what it was about."""

    @property
    def tokens(self) -> int:
        """Of a request with all that was seen."""
        return self.said if self.known else self.fixed + self.said

    def read(self, thread: Thread) -> Gauge:
        """The gauge of `thread`. If it grew out of the one that was seen, only what is new is counted."""
        count = len(self.seen)
        added = thread.tail(len(thread) - count) if len(thread) >= count else []
        if count and Thread(chain=self.seen.chain).add(*added).chain != thread.chain:
            return Gauge(self.counter, self.fixed).read(thread)
        more = sum(map(self.counter.tokens, added))
        return Gauge(self.counter, self.fixed, self.said + more, thread, self.known)

    def reported(self, tokens: int) -> Gauge:
        """The gauge after the provider said what a request with the thread that was seen took in."""
        last = self.seen.last
        if tokens <= 0 or last is None:  # not every provider says
            return self
        return Gauge(self.counter, self.fixed, tokens, self.seen, Reported(last.id, tokens))

    def needs(self, budget: Budget) -> bool:
        """Whether the conversation is to be compacted before it is sent again."""
        return self.tokens > budget.share(budget.full, budget.fixed)
