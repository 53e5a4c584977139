"""A compaction as the journal holds it: the outcome of one `direct` effect below the model call that needed room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from holdfast.messages import Attempt, Usage
from holdfast.turns.compacting import Plan, apply

if TYPE_CHECKING:
    from holdfast.messages import ModelReply
    from holdfast.turns.compacting import Breaker
    from holdfast.turns.thread import Thread

MARK: Final = "/%compact-"
"""What stands between the key of a model call and the number of a compaction before it."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was taken out of the context, what stands for it, and what that cost."""

    plan: Plan
    summary: str | None = None
    failure: str = ""
    """Why there is no summary, where one was wanted."""
    model: str = ""
    calls: int = 0
    usage: Usage = Usage()
    cost: float | None = 0.0
    attempts: tuple[Attempt, ...] = ()
    """Every try to get a summary."""

    def applied(self, thread: Thread) -> Thread:
        """What the model sees of a conversation after it."""
        return apply(thread, self.plan, self.summary)

    def paying(self, refused: ModelReply) -> Compaction:
        """The same, with what a reply took that says nothing but that there was no room."""
        usage, cost = self.usage + refused.usage, None
        if self.cost is not None and refused.cost is not None:
            cost = self.cost + refused.cost
        return replace(self, model=self.model or refused.model, calls=self.calls + 1, usage=usage, cost=cost)

    def judged(self, breaker: Breaker, at: int) -> Breaker:
        """Whether summaries may be tried after it. Where none was tried, nothing changes."""
        if self.failure:
            return breaker.failed(at)
        return breaker.succeeded() if self.plan.way == "summary" else breaker


decode_compaction: Final = msgspec.json.Decoder(Compaction).decode


def is_compaction(key: str) -> bool:
    """Whether `key` is that of a compaction."""
    return MARK in key
