"""What a turn is made of: its rules, the effects it asks for, the outcomes it gets, and where it stands."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from holdfast.effects.canonical import canonical_json
from holdfast.messages import ModelReply, ToolCall, ToolResult, Usage, UserMessage, encode
from holdfast.policy.limits import Budget, Consumption, OutOf, Unpriced
from holdfast.records import Ended, Parked, Resumed, Started
from holdfast.turns.keys import input_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.messages import Message
    from holdfast.records import Record
    from holdfast.turns.machine import Ending


LONGEST: Final = 4
"""How many steps a circle may have to be seen."""
_WARNED: Final = 16
"""How many repetitions are remembered of which the model was told."""
_NAMES: Final = 4
_NAME: Final = 64


class Step(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A batch of calls and what came of it."""

    calls: Sequence[ToolCall]
    results: Sequence[ToolResult]
    asked: list[dict[str, Any] | None]
    """The arguments of the calls."""

    @cached_property
    def digest(self) -> bytes:
        """The same for the same step."""
        entries = [
            canonical_json((call.name, call.arguments, call.malformed, result.state, result.content, result.files))
            for call, result in zip(self.calls, self.results, strict=True)
        ]
        entries.sort()
        # No JSON has a line break in it.
        return hashlib.blake2b(b"\n".join(entries), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        # Most steps differ from others in what they ask for, which is seen without a look at what came of it.
        return isinstance(other, Step) and self.asked[0] in other.asked and self.digest == other.digest

    def __ne__(self, other: object) -> bool:
        return not self == other  # a struct has one of its own

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def tools(self) -> tuple[str, ...]:
        """Whom it called, each once."""
        return tuple(sorted({_shown(call.name) for call in self.calls}))


class Trace(msgspec.Struct, frozen=True, gc=False):
    """The last steps of a turn, and the repetitions that the model knows of."""

    steps: tuple[Step, ...] = ()
    warned: tuple[bytes, ...] = ()

    def after(self, step: Step | None, repeats: int) -> Trace:
        """The trace with one more step. None is a step that may be repeated: no repetition goes across it."""
        if step is None:
            return Trace((), self.warned)
        kept = repeats * LONGEST - 1
        return Trace((*self.steps[-kept:], step), self.warned)

    def told(self, repetition: Repetition) -> Trace:
        """The trace after the model was told: from here on it is counted anew."""
        return Trace((), (*self.warned, repetition.id)[-_WARNED:])


class Repetition(msgspec.Struct, frozen=True):
    """What a turn has been doing again and again."""

    id: bytes
    """The same for the same circle, wherever one enters it."""
    circle: tuple[Step, ...]
    times: int
    known: bool
    """The model was told before."""

    @property
    def named(self) -> str:
        """The tools, in their order."""
        return ", then ".join(_named(step.tools) for step in self.circle)

    @property
    def advice(self) -> str:
        """What the model is told."""
        if len(self.circle) == 1:
            seen = f"You have called {self.named} {self.times} times in a row with the same arguments"
        else:
            seen = f"You have gone round in a circle {self.times} times, with the same arguments: {self.named}"
        return (
            f"{seen}, and the results were the same each time. Doing it again will not change them, and will end this "
            "turn. Use what you have, try another way, or say what is missing."
        )

    @property
    def ending(self) -> str:
        """Why the turn ends."""
        return (
            f"{self.named}: the same calls had the same results {self.times} times, and {self.times} times more after "
            "the model was told"
        )


def make_step(calls: Sequence[ToolCall], results: Sequence[ToolResult], polling: frozenset[str]) -> Step | None:
    """The step that these calls are; None where a tool is among them that is there to be asked again and again."""
    if polling and not polling.isdisjoint([call.name for call in calls]):
        return None
    return Step(calls, results, [call.arguments for call in calls])


def find_repetition(trace: Trace, repeats: int | None) -> Repetition | None:
    """What the last steps repeat; the shortest circle counts. None repeats: nobody looks for it."""
    if repeats is None:
        return None
    steps = trace.steps
    for length in range(1, LONGEST + 1):
        size = length * repeats
        if size > len(steps):
            return None
        if steps[-1] == steps[-1 - length] and steps[length - size :] == steps[-size:-length]:
            name = _circle_id([step.digest for step in steps[-length:]])
            return Repetition(name, steps[-length:], repeats, name in trace.warned)
    return None


def _circle_id(digests: list[bytes]) -> bytes:
    return min(b"".join(digests[at:] + digests[:at]) for at in range(len(digests)))


def _named(tools: tuple[str, ...]) -> str:
    shown = " and ".join(tools[:_NAMES])
    return shown if len(tools) <= _NAMES else f"{shown} and {len(tools) - _NAMES:,} more"


def _shown(name: str) -> str:
    """A name in words of ours. Models make names up: one that no tool can have is not repeated."""
    plain = name.replace("_", "").replace("-", "")
    return name if plain.isalnum() and name.isascii() and len(name) <= _NAME else "a tool that is not there"


_START: Final = hashlib.sha256(b"holdfast:1:thread\n").digest()


class Thread:
    """Messages, oldest first. Immutable: adding to it gives another one."""

    __slots__ = ("_count", "_shared", "_wire", "chain")

    def __init__(
        self,
        shared: list[Message] | None = None,
        chain: bytes = _START,
        wire: dict[str, list[bytes]] | None = None,
    ) -> None:
        self._shared: list[Message] = [] if shared is None else shared
        self._wire: dict[str, list[bytes]] = {} if wire is None else wire
        self._count = len(self._shared)
        self.chain = chain
        """The digest of all messages."""

    def add(self, *messages: Message) -> Thread:
        """This conversation, and what was said next."""
        # The list only ever grows at its end; whoever does not stand at the end any more gets a list of its own.
        shared, wire = self._shared, self._wire
        if len(shared) != self._count:
            shared = shared[: self._count]
            wire = {key: kept[: self._count] for key, kept in wire.items()}
        shared += messages
        chain = self.chain
        for message in messages:
            chain = hashlib.sha256(chain + encode(message)).digest()
        return Thread(shared, chain, wire)

    def encoded(self, key: str, encode: Callable[[Message], bytes]) -> list[bytes]:
        """The bytes of all messages for `key`; each is encoded once, and kept for the threads that grow from this."""
        kept = self._wire.setdefault(key, [])
        kept += [encode(message) for message in self._shared[len(kept) : self._count]]
        return kept[: self._count]

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of them."""
        return tuple(self._shared[: self._count])

    def tail(self, count: int) -> list[Message]:
        """The last ones, oldest first."""
        return self._shared[max(self._count - count, 0) : self._count]

    def backwards(self) -> Iterator[Message]:
        """The last one first."""
        return (self._shared[index] for index in range(self._count - 1, -1, -1))

    @property
    def last(self) -> Message | None:
        """What was said last."""
        return self._shared[self._count - 1] if self._count else None

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thread) and (self._count, self.chain) == (other._count, other.chain)

    def __hash__(self) -> int:
        return hash(self.chain)

    def __repr__(self) -> str:
        return f"Thread({self._count} messages, {self.chain.hex()[:12]})"


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


class ModelCallFailed(msgspec.Struct, frozen=True, gc=False):
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
Response: TypeAlias = Replied | Compacted | ModelCallFailed | UsedUp | Results | Inputs | OutOf


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
