"""A compaction as the journal holds it: the outcome of one `direct` effect below the model call that needed room."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.messages import Attempt, Usage, UserMessage, encode
from holdfast.records import Blob  # noqa: TC001  msgspec reads the annotations
from holdfast.turns.compacting import Plan, apply
from holdfast.turns.environment import Environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.messages import ModelReply, ModelRequest
    from holdfast.turns.compacting import Breaker
    from holdfast.turns.thread import Thread

MARK: Final = "/%compact-"
"""What stands between the key of a model call and the number of a compaction before it."""


class AskedSummary(msgspec.Struct, frozen=True):
    """The request for one piece of a summary. It is kept whole: its words are in no conversation."""

    environment: Environment
    messages: tuple[UserMessage, ...]


def encode_asked(model: str, request: ModelRequest, clean: Callable[[bytes], bytes]) -> bytes:
    """The request for a summary as it is kept; `clean` takes secrets out of it."""
    settings: dict[str, Any] = msgspec.to_builtins(request.settings)
    asked = AskedSummary(
        Environment(model, request.instructions, settings=settings),
        tuple(message for message in request.messages if isinstance(message, UserMessage)),
    )
    return zlib.compress(clean(encode(asked)))


def decode_asked(body: bytes) -> AskedSummary:
    """The request for a summary that was kept."""
    return _asked(zlib.decompress(body))


_asked: Final = msgspec.json.Decoder(AskedSummary).decode


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
    asked: tuple[Blob, ...] = ()
    """The requests for the summary, each kept whole."""

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
