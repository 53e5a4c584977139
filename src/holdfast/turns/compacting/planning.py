"""What to take out of a conversation that does not fit any more. Pure.

Cheap steps first: old results are clipped to a reference, old attachments become notes. Only if that is not enough, the
messages before the recent ones are put into a span, for which a summary will stand. What is never taken away: the input
being answered, the parts of an answer that is being continued, what was said into the turn since, pinned messages, and
as a rule all since the model last spoke. A call is never parted from its result, and no message is changed that holds
its provider's own data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidArgument
from holdfast.messages import AssistantMessage, Attachment, ToolMessage, UserMessage
from holdfast.turns.compacting.budget import LEAST_SUMMARY, Budget, TooLarge
from holdfast.turns.compacting.clipping import OLD, RECENT, bared, clipped
from holdfast.turns.compacting.marks import mark_of, summary_message
from holdfast.turns.compacting.measuring import Measure, measured
from holdfast.turns.compacting.plans import Clip, Plan, Span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.messages import Message
    from holdfast.turns.compacting.budget import Reported, Why
    from holdfast.turns.compacting.counting import Counter
    from holdfast.turns.thread import Thread

_LEAST_GAIN: Final = 20
"""A plan that frees less than this part of the room is not worth its price while the request still fits."""
_LEAST_NAME: Final = 4
"""A file is taken to be referred to where its name is said; shorter names may be words."""


def plan(  # noqa: PLR0913  each is a thing that the decision depends on
    thread: Thread,
    budget: Budget,
    counter: Counter,
    known: Reported | None,
    first_of_turn: str,
    *,
    pinned: frozenset[str] = frozenset(),
    reader: str = "",
    why: Why = "full",
) -> Plan | TooLarge | None:
    """What to take away before `thread` is sent; None if it may go as it is; `TooLarge` if nothing makes it fit.

    `first_of_turn` is the id of the input being answered, empty if no turn runs. `pinned` are ids of messages of the
    user that stay. `reader` is the tool that reads a clipped result, if the agent has one. `why` is ``overflow`` when
    the provider has refused the request as it stands: then all goes that may, also where that seems too little.
    """
    messages = thread.messages
    measure = measured(messages, budget, counter, known, overflown=why == "overflow")
    if why == "full" and measure.total <= budget.share(budget.full, budget.fixed):
        return None
    held = _held(messages, first_of_turn, pinned)
    scene = _Scene(messages, measure, budget, reader, why, held)
    found = scene.cheap() or scene.trimmed() or scene.spanning()
    if found is None and held.steered:
        # Whatever else was said into the turn goes as well, if it must; the last of it stays.
        found = _Scene(messages, measure, budget, reader, why, held.strictly()).spanning()
    if found is None and why == "overflow":
        found = scene.most()
    if found is None:
        if why != "overflow" and measure.total <= budget.room:
            return None
        return TooLarge(max(scene.least, budget.room + 1), budget.room)
    gain = found.before - found.after
    worth = max(budget.room - measure.fixed, 0) // _LEAST_GAIN
    fits = why == "full" and measure.total <= budget.room
    return None if gain <= 0 or (fits and gain < worth) else found


@dataclass(frozen=True, slots=True)
class _Held:
    """What stays: the ids, and those among them that were said into the turn after its first."""

    ids: frozenset[str]
    steered: tuple[str, ...]

    def strictly(self) -> _Held:
        return _Held(self.ids - frozenset(self.steered[:-1]), ())


def _held(messages: Sequence[Message], first: str, pinned: frozenset[str]) -> _Held:
    ids = {m.id for m in messages if type(m) is UserMessage and m.id in pinned and mark_of(m) is None}
    at = next((n for n, message in enumerate(messages) if message.id == first), None)
    if at is None:
        if first:
            raise InvalidArgument("first of turn", first, "the id of a message of the conversation")
        return _Held(frozenset(ids), ())
    # What Holdfast itself said (notes, notifications) may be summarised once the model has answered it.
    steered = [m.id for m in messages[at + 1 :] if type(m) is UserMessage and m.origin == "user" and m.id not in pinned]
    return _Held(frozenset((*ids, first, *steered, *_cut_off(messages[at + 1 :]))), tuple(steered))


def _cut_off(messages: Sequence[Message]) -> Iterator[str]:
    """The parts of an answer that the output limit cut off and that goes on: together they are the answer."""
    for message in reversed(messages):
        if type(message) is ToolMessage or (type(message) is AssistantMessage and message.finish != "output_limit"):
            return
        if type(message) is AssistantMessage:
            yield message.id


@dataclass(frozen=True, slots=True)
class _Unit:
    """What is never parted: a message, or a reply with calls and the results of them."""

    start: int
    stop: int
    weight: int
    held: bool


def _units(messages: Sequence[Message], weights: Sequence[int], held: frozenset[str]) -> Iterator[_Unit]:
    at = 0
    while at < len(messages):
        message = messages[at]
        calls = type(message) is AssistantMessage and bool(message.calls)
        answered = calls and at + 1 < len(messages) and type(messages[at + 1]) is ToolMessage
        stop = at + 2 if answered else at + 1
        yield _Unit(at, stop, sum(weights[at:stop]), message.id in held)
        at = stop


@dataclass(frozen=True, slots=True)
class _Cut:
    """What is shortened, and the tokens that it saves."""

    clips: tuple[Clip, ...]
    bare: tuple[str, ...]
    saved: int

    def with_more(self, more: _Cut) -> _Cut:
        """Both together."""
        return _Cut(self.clips + more.clips, self.bare + more.bare, self.saved + more.saved)


class _Scene:
    """One conversation, one budget: the choices that there are."""

    def __init__(  # noqa: PLR0913, PLR0917  all that a choice depends on
        self, messages: tuple[Message, ...], measure: Measure, budget: Budget, reader: str, why: Why, held: _Held
    ) -> None:
        self._messages = messages
        self._measure = measure
        self._budget = budget
        self._reader = reader
        self._why: Why = why
        self._units = tuple(_units(messages, measure.weights, held.ids))
        self._total = measure.total
        self._full = min(budget.share(budget.full, budget.fixed), budget.room)
        self._aim = min(budget.share(budget.aim, measure.fixed), self._full)
        # If more was counted than estimated, the window is smaller than is thought, and so is what a summary may take.
        short = why == "overflow" and measure.top > measure.bottom
        self._cap = max(budget.cap * measure.bottom // measure.top, LEAST_SUMMARY) if short else budget.cap
        self._mark = measure.of(summary_message("", "", 10**9)) + measure.scaled(self._cap)
        self._anchored = any(unit.held for unit in self._units)
        # As long as the request fits, nothing that the model has not seen yet is touched.
        self._pressed = self._total > budget.room

    @property
    def least(self) -> int:
        """Tokens of what must stay, if there is anything that must; else of all."""
        held = self._measure.fixed + sum(unit.weight for unit in self._units if unit.held)
        return min(held + self._mark, self._total) if self._anchored else self._total

    # ---- where the recent messages begin ----

    def _last_reply(self) -> int:
        """The unit with which the model spoke last: nothing since then was answered."""
        spoken = (n for n in range(len(self._units) - 1, -1, -1) if self._said_by_model(self._units[n]))
        return next(spoken, max(len(self._units) - 1, 0))

    def _said_by_model(self, unit: _Unit) -> bool:
        return type(self._messages[unit.start]) is AssistantMessage

    def _recent(self) -> int:
        """The unit with which the recent messages begin, as many as their share of the room takes."""
        fixed = self._measure.fixed
        held = sum(unit.weight for unit in self._units if unit.held)
        share = self._budget.share(self._budget.recent, fixed) - fixed
        left = min(share, self._aim - fixed - held - self._mark)
        at = len(self._units)
        for unit in reversed(self._units):
            left -= 0 if unit.held else unit.weight
            if left < 0:
                break
            at -= 1
        return min(at, self._last_reply())

    # ---- the cheap steps ----

    def cheap(self) -> Plan | None:
        """Old results clipped and old attachments dropped, if that is enough."""
        if self._why == "asked":
            return None
        recent = self._recent()
        old = [unit for unit in self._units[:recent] if not unit.held]
        cut = self._cut(old, OLD, self._total - self._aim, self._said_since(recent))
        if self._total - cut.saved > self._aim:
            return None
        return self._plan(cut, None, self._total - cut.saved)

    def trimmed(self) -> Plan | None:
        """Results clipped until the request fits, also where that is less than the aim.

        A summary would not be better off: what is too large is among what stays, and comes again with the next step.
        Then each step would take a summary, and a clip costs nothing.
        """
        if self._why != "full":
            return None
        worth = max(self._budget.room - self._measure.fixed, 0) // _LEAST_GAIN
        reply = self._last_reply()
        keeps = (None, RECENT, OLD) if self._pressed else (None,)
        for begin, keep in ((self._recent(), None), *((reply, keep) for keep in keeps)):
            old = [unit for unit in self._units[:begin] if not unit.held]
            cut = self._cut(old, OLD, self._total, self._said_since(begin))
            if keep is not None:
                free = [unit for unit in self._units[begin:] if not unit.held]
                cut = cut.with_more(self._cut(free, keep, self._total - cut.saved - self._full))
            if self._total - cut.saved <= self._full and cut.saved > worth:
                return self._plan(cut, None, self._total - cut.saved)
        return None

    def _said_since(self, recent: int) -> str:
        """The words of what stays: files that they name are kept."""
        stay = [unit for n, unit in enumerate(self._units) if n >= recent or unit.held]
        said = [message for unit in stay for message in self._messages[unit.start : unit.stop]]
        return "\n".join([m.text for m in said if isinstance(m, UserMessage | AssistantMessage)])

    def _cut(self, units: Sequence[_Unit], keep: int, wanted: int, said: str = "") -> _Cut:
        """The oldest are shortened first, until the wanted number of tokens is saved."""
        clips: list[Clip] = []
        bare: list[str] = []
        saved = 0
        for unit in units:
            for at in range(unit.start, unit.stop):
                if saved >= wanted:
                    return _Cut(tuple(clips), tuple(bare), saved)
                message = self._messages[at]
                short = self._short(message, keep, said)
                gain = 0 if short is message else self._measure.weights[at] - self._measure.of(short)
                if gain <= 0:
                    continue
                saved += gain
                if type(message) is ToolMessage:
                    clips.append(Clip(message.id, keep))
                else:
                    bare.append(message.id)
        return _Cut(tuple(clips), tuple(bare), saved)

    def _short(self, message: Message, keep: int, said: str) -> Message:
        if type(message) is ToolMessage:
            return clipped(message, keep, self._reader)
        parts = message.parts if type(message) is UserMessage or type(message) is AssistantMessage else ()
        names = [part.name for part in parts if type(part) is Attachment and part.name]
        if any(len(name) >= _LEAST_NAME and name in said for name in names):
            return message
        return bared(message)

    # ---- a span ----

    def spanning(self) -> Plan | None:
        """A span that goes, and if it must be, results that are clipped among those that stay."""
        # An estimate near the limit is good for a while; one at the limit is better than none.
        for most in (self._full, self._budget.room) if self._pressed else (self._full,):
            for begin, keep in self._ways():
                found = self._span(begin, keep, most)
                if found is not None:
                    return found
        return None

    def most(self) -> Plan | None:
        """All goes that may: by the estimate it is not enough, but the estimate is a guess, and the provider counts."""
        return self._span(len(self._units), None, self._total - 1) if self._anchored else None

    def _ways(self) -> Iterator[tuple[int, int | None]]:
        """Where what stays begins, and how many characters of its results stay: what loses least comes first."""
        reply, count = self._last_reply(), len(self._units)
        yield self._recent(), None
        yield reply, None
        if not self._pressed:
            return
        yield reply, RECENT
        yield reply, OLD
        if reply + 1 < count:
            yield reply + 1, None
            yield reply + 1, OLD
        if self._anchored:
            yield count, None

    def _span(self, begin: int, keep: int | None, most: int) -> Plan | None:
        going = [unit for unit in self._units[:begin] if not unit.held]
        after = self._total
        span = None
        if any(mark_of(self._messages[unit.start]) is None for unit in going):
            span = self._between(going)
            after += self._mark - sum(unit.weight for unit in going)
        cut = _Cut((), (), 0)
        if keep is not None:
            free = [unit for unit in self._units[begin:] if not unit.held]
            cut = self._cut(free, keep, after - self._full)
        after -= cut.saved
        if after > most or (span is None and not cut.saved):
            return None
        return self._plan(cut, span, after)

    def _between(self, going: Sequence[_Unit]) -> Span:
        ids = [m.id for unit in going for m in self._messages[unit.start : unit.stop]]
        start, stop = going[0].start, going[-1].stop
        inside = [message.id for message in self._messages[start:stop]]
        left = set(ids)
        return Span(ids[0], ids[-1], len(ids), tuple(id for id in inside if id not in left))

    def _plan(self, cut: _Cut, span: Span | None, after: int) -> Plan:
        marks = [mark.gone for message in self._messages[:2] if (mark := mark_of(message)) is not None]
        return Plan(
            way="clip" if span is None else "summary",
            why=self._why,
            clipped=cut.clips,
            bared=cut.bare,
            span=span,
            gone=max(marks, default=0) if span is not None else 0,
            reader=self._reader,
            cap=self._cap if span is not None else 0,
            before=self._total,
            after=after,
        )
