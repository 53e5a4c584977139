"""A plan carried out: the thread that the model sees from then on. Pure.

The same messages and the same plan give the same thread, also when more was said since. A plan that was carried out
already changes nothing.
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
    from collections.abc import Callable

    from holdfast.messages import Message, ModelReply, ModelRequest
    from holdfast.turns.compaction.plan import Breaker, Span


def apply(thread: Thread, plan: Plan, summary: str | None = None) -> Thread:
    """The thread after `plan`. `summary` is what stands for its span, if it has one that is summarised."""
    if plan.format != FORMAT:
        message = f"a compaction of format {plan.format}"
        raise RecordUnreadable(message)
    messages = thread.messages
    span = plan.span
    if span is not None:
        if any(message.id == plan.mark for message in messages):
            return thread
        mark = _mark(plan, summary)
        messages = _without(messages, span, mark)
    return Thread().add(*_shortened(messages, plan))


def fallback(thread: Thread, plan: Plan) -> Plan:
    """The plan with its span dropped, not summarised: for when there is no summary. A summary from before stays."""
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
    """The messages from the first to the last of a plan's span, with those between them that are kept."""
    return [] if plan.span is None else _inside(thread.messages, plan.span)


def _mark(plan: Plan, summary: str | None) -> UserMessage:
    if plan.way == "drop":
        return dropped_message(plan.mark, plan.gone)
    if not summary or not summary.strip():
        message = "a span can't be replaced by a summary that is not there"
        raise InvariantBroken(message)
    return summary_message(plan.mark, summary, plan.gone)


def _inside(messages: tuple[Message, ...], span: Span) -> list[Message]:
    places = {message.id: place for place, message in enumerate(messages)}
    first, last = places.get(span.first), places.get(span.last)
    if first is None or last is None or last < first:
        message = f"the messages {span.first!r} to {span.last!r} are not in this conversation"
        raise InvariantBroken(message)
    return list(messages[first : last + 1])


def _without(messages: tuple[Message, ...], span: Span, mark: UserMessage) -> list[Message]:
    """The messages without the span: the mark goes first, or after a summary that stays."""
    kept = set(span.kept)
    going = {message.id for message in _inside(messages, span) if message.id not in kept}
    if len(going) != span.count:
        message = f"{span.count} messages were to be replaced, and there are {len(going)}"
        raise InvariantBroken(message)
    left = [message for message in messages if message.id not in going]
    at = int(bool(left) and mark_of(left[0]) is not None)
    return [*left[:at], mark, *left[at:]]


def _shortened(messages: list[Message] | tuple[Message, ...], plan: Plan) -> list[Message]:
    keeps = {clip.message: clip.keep for clip in plan.clipped}
    bare = set(plan.bared)
    made: list[Message] = []
    for message in messages:
        keep = keeps.get(message.id)
        if keep is not None and type(message) is ToolMessage:
            made.append(clipped(message, keep, plan.reader))
        else:
            made.append(bared(message) if message.id in bare else message)
    return made


@dataclass(frozen=True, slots=True)
class View:
    """The thread for the model, and how many messages of the whole conversation it stands for."""

    thread: Thread = field(default_factory=Thread)
    told: int = 0

    def follow(self, whole: Thread) -> View:
        """The view after the whole conversation has grown; what is new is seen as it is."""
        if len(whole) < self.told:
            message = f"a conversation of {self.told:,} messages has {len(whole):,} now"
            raise InvariantBroken(message)
        if not self.told:
            return View(whole, len(whole))
        added = whole.tail(len(whole) - self.told)
        return View(self.thread.add(*added), len(whole)) if added else self

    def compacted(self, plan: Plan, summary: str | None) -> View:
        """The view after a plan that was made for its thread."""
        return View(apply(self.thread, plan, summary), self.told)


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


class RecordedCompaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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

    def paying(self, refused: ModelReply) -> RecordedCompaction:
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


decode_compaction: Final = msgspec.json.Decoder(RecordedCompaction).decode


def is_compaction(key: str) -> bool:
    """Whether `key` is that of a compaction."""
    return MARK in key
