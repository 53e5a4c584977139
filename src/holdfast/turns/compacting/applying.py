"""A plan carried out: the thread that the model sees from then on. Pure.

The same messages and the same plan give the same thread, also when more was said since. A plan that was carried out
already changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.errors import InvariantBroken, RecordUnreadable
from holdfast.messages import ToolMessage
from holdfast.turns.compacting.clipping import bared, clipped
from holdfast.turns.compacting.marks import dropped_message, mark_of, summary_message
from holdfast.turns.compacting.plans import FORMAT
from holdfast.turns.thread import Thread

if TYPE_CHECKING:
    from holdfast.messages import Message, UserMessage
    from holdfast.turns.compacting.plans import Plan, Span


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
