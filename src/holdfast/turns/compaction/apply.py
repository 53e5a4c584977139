"""Applies a compaction plan: gives the thread that the model sees from then on. Pure.

The same messages and the same plan give the same thread, also after more messages. Applying it twice changes nothing.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.errors import InvariantBroken, RecordUnreadable
from holdfast.messages import Attempt, ToolMessage, Usage, UserMessage, encode
from holdfast.records import Blob  # noqa: TC001  msgspec reads the annotations
from holdfast.turns.compaction.plan import FORMAT, Plan, bared, clipped, dropped_message, mark_of, summary_message
from holdfast.turns.environment import Environment
from holdfast.turns.state import Thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.messages import Message, ModelReply, ModelRequest
    from holdfast.turns.compaction.plan import Breaker, Span


def apply(thread: Thread, plan: Plan, summary: str | None = None) -> Thread:
    """The thread after `plan`; `summary` replaces its span, if the plan has one to summarise."""
    if plan.format != FORMAT:
        message = f"a compaction of format {plan.format}"
        raise RecordUnreadable(message)
    messages = list(thread.messages)
    if plan.span is not None:
        if any(message.id == plan.mark for message in messages):
            return thread
        messages = _without_span(messages, plan, plan.span, summary)
    keeps = {clip.message: clip.keep for clip in plan.clipped}
    bare = set(plan.bared)
    for at, message in enumerate(messages):
        keep = keeps.get(message.id)
        if keep is not None and type(message) is ToolMessage:
            messages[at] = clipped(message, keep, plan.reader)
        elif message.id in bare:
            messages[at] = bared(message)
    return Thread().add(*messages)


def _without_span(messages: list[Message], plan: Plan, span: Span, summary: str | None) -> list[Message]:
    """The messages with a mark in place of the span: the mark goes first, or after a summary that stays."""
    if plan.way == "drop":
        mark = dropped_message(plan.mark, plan.gone)
    elif summary and summary.strip():
        mark = summary_message(plan.mark, summary, plan.gone)
    else:
        message = "a span can't be replaced by a summary that is not there"
        raise InvariantBroken(message)
    going = {message.id for message in _inside(messages, span)}.difference(span.kept)
    if len(going) != span.count:
        message = f"{span.count} messages were to be replaced, and there are {len(going)}"
        raise InvariantBroken(message)
    left = [message for message in messages if message.id not in going]
    at = int(bool(left) and mark_of(left[0]) is not None)
    return [*left[:at], mark, *left[at:]]


def fallback(thread: Thread, plan: Plan) -> Plan:
    """The plan that drops its span because there is no summary. An earlier summary stays."""
    span = plan.span
    if span is None or plan.way != "summary":
        return plan
    inside = _inside(thread.messages, span)
    marks = {message.id: mark for message in inside if (mark := mark_of(message)) is not None}
    summaries = tuple(id for id, mark in marks.items() if mark.kind == "summary")
    going = span.count - len(summaries)
    gone = max([mark.gone for mark in marks.values()], default=0) + span.count - len(marks)
    # A summary is the first message of all, so the span begins behind it.
    first = next(m.id for m in inside if m.id not in span.kept and m.id not in summaries)
    return replace(plan, way="drop", span=replace(span, first=first, count=going), gone=gone)


def spanned(thread: Thread, plan: Plan) -> list[Message]:
    """The messages from the first to the last of the span of a plan, with the kept ones between them."""
    return [] if plan.span is None else _inside(thread.messages, plan.span)


def _inside(messages: Sequence[Message], span: Span) -> list[Message]:
    places = {message.id: place for place, message in enumerate(messages)}
    first, last = places.get(span.first), places.get(span.last)
    if first is None or last is None or last < first:
        message = f"the messages {span.first!r} to {span.last!r} are not in this conversation"
        raise InvariantBroken(message)
    return list(messages[first : last + 1])


@dataclass(frozen=True, slots=True)
class View:
    """The thread for the model, and the number of messages of the conversation that it covers."""

    thread: Thread = field(default_factory=Thread)
    told: int = 0

    def follow(self, whole: Thread) -> View:
        """The view after the conversation has grown; new messages are shown whole."""
        if len(whole) < self.told:
            message = f"a conversation of {self.told:,} messages has {len(whole):,} now"
            raise InvariantBroken(message)
        if not self.told:
            return View(whole, len(whole))
        added = whole.tail(len(whole) - self.told)
        return View(self.thread.add(*added), len(whole)) if added else self

    def compacted(self, plan: Plan, summary: str | None) -> View:
        """The view after applying a plan for its thread."""
        return View(apply(self.thread, plan, summary), self.told)


MARK: Final = "/%compact-"
"""Separates the key of a model call from the number of a compaction before it."""


class AskedSummary(msgspec.Struct, frozen=True):
    """The request for one chunk of a summary, stored whole: no conversation has its messages."""

    environment: Environment
    messages: tuple[UserMessage, ...]


def encode_asked(model: str, request: ModelRequest, clean: Callable[[bytes], bytes]) -> bytes:
    """Encode the request for a summary; `clean` removes secrets."""
    settings: dict[str, Any] = msgspec.to_builtins(request.settings)
    asked = AskedSummary(
        Environment(model, request.instructions, settings=settings),
        tuple(message for message in request.messages if isinstance(message, UserMessage)),
    )
    return zlib.compress(clean(encode(asked)))


def decode_asked(body: bytes) -> AskedSummary:
    """Decode the request for a summary."""
    return _asked(zlib.decompress(body))


_asked: Final = msgspec.json.Decoder(AskedSummary).decode


class RecordedCompaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a compaction: plan, summary and usage."""

    plan: Plan
    summary: str | None = None
    failure: str = ""
    """The reason why the summary failed."""
    model: str = ""
    calls: int = 0
    usage: Usage = Usage()
    cost: float | None = 0.0
    attempts: tuple[Attempt, ...] = ()
    """All attempts to get the summary."""
    asked: tuple[Blob, ...] = ()
    """The requests for the summary, each kept whole."""

    def applied(self, thread: Thread) -> Thread:
        """The thread after this compaction."""
        return apply(thread, self.plan, self.summary)

    def paying(self, refused: ModelReply) -> RecordedCompaction:
        """The compaction with the usage of the reply that refused the context."""
        usage, cost = self.usage + refused.usage, None
        if self.cost is not None and refused.cost is not None:
            cost = self.cost + refused.cost
        return replace(self, model=self.model or refused.model, calls=self.calls + 1, usage=usage, cost=cost)

    def judged(self, breaker: Breaker, at: int) -> Breaker:
        """The breaker after this compaction; unchanged if no summary was tried."""
        if self.failure:
            return breaker.failed(at)
        return breaker.succeeded() if self.plan.way == "summary" else breaker


decode_compaction: Final = msgspec.json.Decoder(RecordedCompaction).decode


def is_compaction(key: str) -> bool:
    """Whether `key` is that of a compaction."""
    return MARK in key
