"""What a turn is made of: its rules, the effects it asks for, the outcomes it gets, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from holdfast.messages import ModelReply, ToolCall, ToolResult, Usage, UserMessage
from holdfast.policy.limits import Budget, Consumption, OutOf, Unpriced
from holdfast.records import Ended, Parked, Resumed, Started
from holdfast.turns.keys import input_number
from holdfast.turns.loop_guard import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.records import Record
    from holdfast.turns.machine import Ending
    from holdfast.turns.thread import Thread


Moment = Literal["after_work", "before_completion"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What bounds a turn. `check` says what is wrong with an answer; None when it has the shape that was asked for."""

    steps: int | None = 50
    stalls: int = 12
    repairs: int = 3
    continuations: int = 2
    check: Callable[[str], str | None] | None = None
    budget: Budget | None = None
    """Of tokens, money and tool calls; steps are above. None where none of them is limited."""
    unpriced: Unpriced = "stop"
    background: int | None = None
    """Calls that may go on in the background."""
    tasks: frozenset[str] = frozenset()
    """Tools whose calls always do."""
    session_steps: int | None = None
    """Steps that the budget of the session left for the turn when it began: the last one is announced."""
    repeats: int | None = 3
    """How often the same step is a loop."""
    polling: frozenset[str] = frozenset()
    """Tools that are there to be asked again and again."""


def joined(first: str | None, second: str | None) -> str | None:
    """What is said to the model, where there are two things to say; None where there is nothing."""
    if not first or not second:
        return first or second or None
    return f"{first}\n\n{second}"


class CallModel(msgspec.Struct, frozen=True, gc=False):
    """Ask the model. `position` counts the model calls of the whole conversation before this one."""

    id: int
    thread: Thread
    position: int
    compacts: bool = False
    """Only room is made in the context; the model is not asked to answer."""


class RunTools(msgspec.Struct, frozen=True, gc=False):
    """Perform these calls; their results come back in this order."""

    id: int
    calls: tuple[ToolCall, ...]


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """A safe point: input that came meanwhile may enter here. `note` is what Holdfast has to say to the model.

    `advice` is what it would say besides. It is no part of the effect's identity: a checkpoint that was recorded
    without it is the same checkpoint.
    """

    id: int
    moment: Moment
    note: str | None = None
    advice: str | None = None

    def told(self, *, entering: bool) -> str | None:
        """What is said to the model here the first time. Where no input enters a turn that is over, nobody hears it."""
        if self.moment == "before_completion" and not entering:
            return None
        return joined(self.note, self.advice)


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The turn has ended."""

    id: int
    ending: Ending


Effect: TypeAlias = CallModel | RunTools | Checkpoint | Finish
NOTHING: Final = Usage()
NOTHING_USED: Final = Consumption()


class Replied(msgspec.Struct, frozen=True, gc=False):
    """The model answered. `seen` is the conversation as it was shown to it, where it was compacted before."""

    reply: ModelReply
    seen: Thread | None = None
    usage: Usage = NOTHING
    """What making room took."""
    cost: float | None = 0.0


class Compacted(msgspec.Struct, frozen=True, gc=False):
    """Room was made in the context, as far as there was any to make. Nothing was said."""

    seen: Thread
    usage: Usage = NOTHING
    cost: float | None = 0.0


class ModelFailed(msgspec.Struct, frozen=True, gc=False):
    """The model could not answer. `usage` and `cost` are those of making room for the question, and of an answer that
    was paid for and must not be used.
    """

    code: str
    message: str
    usage: Usage = Usage()
    cost: float | None = 0.0


class UsedUp(msgspec.Struct, frozen=True, gc=False):
    """Making room for the question used up a budget; the model was not asked. `usage` and `cost` are those of that."""

    out: OutOf
    usage: Usage = NOTHING
    cost: float | None = 0.0


class Results(msgspec.Struct, frozen=True, gc=False):
    """What the calls came to, in their order; and what the programs among them did besides."""

    results: tuple[ToolResult, ...]
    within: Consumption = NOTHING_USED
    """What programs used: the calls that they made."""
    polled: bool = False
    """A program called a tool that is there to be asked again and again."""
    answer: str | None = None
    """The words with which a program ended the turn."""
    out: OutOf | None = None
    """The limit that left no room for a call of a program: the end of the turn."""


class Inputs(msgspec.Struct, frozen=True, gc=False):
    """What entered at a checkpoint. `told` is what Holdfast said there, as it is recorded; None: its note alone."""

    messages: tuple[UserMessage, ...] = ()
    told: str | None = None


# `OutOf`: a budget beyond the turn leaves no room for the effect; it was not begun.
Response: TypeAlias = Replied | Compacted | ModelFailed | UsedUp | Results | Inputs | OutOf


class TurnState(msgspec.Struct, frozen=True, gc=False):
    """Where a turn is. `awaited` is the effect whose outcome it needs next."""

    run: str
    rules: Rules
    thread: Thread
    awaited: Effect
    position: int = 0
    steps: int = 0
    stalls: int = 0
    repairs: int = 0
    continuations: int = 0
    empties: int = 0
    usage: Usage = Usage()
    cost: float | None = 0.0
    """None as soon as one call has no known price."""
    used: Consumption = Consumption()
    trace: Trace = Trace()
    recorded: int = 0
    """The number of the last effect of which there is a record: what is done is not judged again."""


class Stopwatch:
    """Fed with the records of one session, in order."""

    __slots__ = ("_run", "_since", "total")

    def __init__(self) -> None:
        self.total = 0
        """Milliseconds in all, up to the last record."""
        self._run = ""
        """The turn that is worked on; empty when there is none."""
        self._since = 0

    def copy(self) -> Stopwatch:
        """One that goes on by itself from here."""
        made = Stopwatch()
        made.total, made._run, made._since = self.total, self._run, self._since
        return made

    def take(self, record: Record) -> tuple[int, int] | None:
        """From when to when was worked with this record; None where it is not about that."""
        kind = type(record)
        if kind is Started or kind is Resumed:
            self._begin(getattr(record, "run", ""), record.at)
            return None
        if not self._run:
            return None
        since, self._since = self._since, record.at
        if (kind is Parked or kind is Ended) and getattr(record, "run", "") == self._run:
            self._run = ""
        if since >= record.at:
            return None
        self.total += record.at - since
        return since, record.at

    def stop(self) -> None:
        """Nothing is worked on any more: a fork begins here."""
        self._run = ""

    def last(self, now: int) -> int:
        """Up to when the total counts: the last record, while a turn is worked on; else now."""
        return min(self._since, now) if self._run else now

    def _begin(self, run: str, at: int) -> None:
        if input_number(run) is not None:
            self._run, self._since = run, at
