"""The data of a turn: its rules and state, the effects it asks for, their outcomes, its messages, and the loop guard.

The loop guard looks at the last steps of a turn. A step is a batch of tool calls with their results, in any order. The
same step several times in a row, or a circle of up to four steps, is a repetition: the model gets one note, and the
same repetition after that ends the turn.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from holdfast.effects.canonical import canonical_json
from holdfast.messages import Message, ModelReply, ToolCall, ToolResult, Usage, UserMessage, encode
from holdfast.policy.limits import NOTHING, Budget, Consumption, OutOf, Unpriced
from holdfast.turns.results import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.turns.machine import Ending


LONGEST: Final = 4
"""Longest circle of steps that the loop guard finds."""
_WARNED: Final = 16
"""Repetitions that the guard remembers to have reported to the model."""
_NAMES: Final = 4
_NAME: Final = 64


class Step(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A batch of calls with their results."""

    calls: Sequence[ToolCall]
    results: Sequence[ToolResult]
    asked: list[dict[str, Any] | None]
    """The arguments of the calls."""

    @cached_property
    def digest(self) -> bytes:
        """Digest of the step; equal for equal steps."""
        entries = [
            canonical_json((call.name, call.arguments, call.malformed, result.state, result.content, result.files))
            for call, result in zip(self.calls, self.results, strict=True)
        ]
        entries.sort()
        # No JSON has a line break in it.
        return hashlib.blake2b(b"\n".join(entries), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        # The requests of most steps differ: then the results need no comparison.
        return isinstance(other, Step) and self.asked[0] in other.asked and self.digest == other.digest

    def __ne__(self, other: object) -> bool:
        return not self == other  # a struct would define its own

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of its tools, each once."""
        return tuple(sorted({_shown(call.name) for call in self.calls}))


class Trace(msgspec.Struct, frozen=True, gc=False):
    """The last steps of a turn, and the repetitions reported to the model."""

    steps: tuple[Step, ...] = ()
    warned: tuple[bytes, ...] = ()

    def after(self, step: Step | None, repeats: int) -> Trace:
        """The trace with one more step; None is a polling step, which ends any repetition."""
        if step is None:
            return Trace((), self.warned)
        kept = repeats * LONGEST - 1
        return Trace((*self.steps[-kept:], step), self.warned)

    def told(self, repetition: Repetition) -> Trace:
        """The trace after a note to the model about a repetition; counting begins again."""
        return Trace((), (*self.warned, repetition.id)[-_WARNED:])


class Repetition(msgspec.Struct, frozen=True):
    """Steps that a turn repeats."""

    id: bytes
    """Equal for the same circle, whichever step comes first."""
    circle: tuple[Step, ...]
    times: int
    known: bool
    """The repetition was reported to the model before."""

    @property
    def named(self) -> str:
        """The tools of the circle in order."""
        return ", then ".join(_named(step.tools) for step in self.circle)

    @property
    def advice(self) -> str:
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
        """The reason for the end of the turn."""
        return (
            f"{self.named}: the same calls had the same results {self.times} times, and {self.times} times more after "
            "the model was told"
        )


def make_step(calls: Sequence[ToolCall], results: Sequence[ToolResult], polling: frozenset[str]) -> Step | None:
    """The step of these calls; None if one is of a polling tool, or was interrupted by the end of its process."""
    if polling and not polling.isdisjoint([call.name for call in calls]):
        return None
    for result in results:
        if result.state == "unknown" and result.content == UNKNOWN:  # nothing came of it: the model may well ask again
            return None
    return Step(calls, results, [call.arguments for call in calls])


def find_repetition(trace: Trace, repeats: int | None) -> Repetition | None:
    """The shortest circle that the last steps repeat; `repeats` None turns the guard off."""
    if repeats is None:
        return None
    steps = trace.steps
    for length in range(1, LONGEST + 1):
        size = length * repeats
        if size > len(steps):
            return None
        if steps[-1] == steps[-1 - length] and steps[length - size :] == steps[-size:-length]:
            digests = [step.digest for step in steps[-length:]]
            name = min(b"".join(digests[at:] + digests[:at]) for at in range(length))
            return Repetition(name, steps[-length:], repeats, name in trace.warned)
    return None


def _named(tools: tuple[str, ...]) -> str:
    shown = " and ".join(tools[:_NAMES])
    return shown if len(tools) <= _NAMES else f"{shown} and {len(tools) - _NAMES:,} more"


def _shown(name: str) -> str:
    """The name of a tool, or a phrase for an impossible name: models make names up."""
    plain = name.replace("_", "").replace("-", "")
    return name if plain.isalnum() and name.isascii() and len(name) <= _NAME else "a tool that is not there"


_START: Final = hashlib.sha256(b"holdfast:1:thread\n").digest()


class Thread:
    """Messages, oldest first, with one digest of them all. Immutable; threads share their common messages."""

    __slots__ = ("_count", "_shared", "_wire", "chain", "size")

    def __init__(
        self,
        shared: list[Message] | None = None,
        chain: bytes = _START,
        wire: dict[str, list[bytes]] | None = None,
        size: int = 0,
    ) -> None:
        self._shared: list[Message] = [] if shared is None else shared
        self._wire: dict[str, list[bytes]] = {} if wire is None else wire
        self._count = len(self._shared)
        self.chain = chain
        """Digest of all messages, as a hash chain: adding a message costs the same at any length."""
        self.size = size
        """Bytes of all messages."""

    def add(self, *messages: Message) -> Thread:
        # The shared list only grows at its end. A thread that is not at the end any more gets a copy.
        shared, wire = self._shared, self._wire
        if len(shared) != self._count:
            shared = shared[: self._count]
            wire = {key: kept[: self._count] for key, kept in wire.items()}
        shared += messages
        chain, size = self.chain, self.size
        for message in messages:
            body = encode(message)
            chain = hashlib.sha256(chain + body).digest()
            size += len(body)
        return Thread(shared, chain, wire, size)

    def detach(self) -> Thread:
        """The same thread without the messages that threads which share it have after it."""
        if len(self._shared) == self._count:
            return self
        wire = {key: kept[: self._count] for key, kept in self._wire.items()}
        return Thread(self._shared[: self._count], self.chain, wire, self.size)

    def encoded(self, key: str, encode: Callable[[Message], bytes]) -> list[bytes]:
        """The bytes of all messages for `key`. Each message is encoded once for all threads that share it."""
        kept = self._wire.setdefault(key, [])
        kept += [encode(message) for message in self._shared[len(kept) : self._count]]
        return kept[: self._count]

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._shared[: self._count])

    def tail(self, count: int) -> list[Message]:
        return self._shared[max(self._count - count, 0) : self._count]

    def backwards(self) -> Iterator[Message]:
        return (self._shared[index] for index in range(self._count - 1, -1, -1))

    @property
    def last(self) -> Message | None:
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
    """The bounds of a turn. `check` returns the complaint about an answer, or None."""

    steps: int | None = 50
    stalls: int = 12
    repairs: int = 3
    continuations: int = 2
    check: Callable[[str], str | None] | None = None
    budget: Budget | None = None
    """Budget of tokens, dollars and tool calls; None without one."""
    unpriced: Unpriced = "stop"
    background: int | None = None
    """Most calls in the background."""
    tasks: frozenset[str] = frozenset()
    """Tools whose calls always run in the background."""
    session_steps: int | None = None
    """Steps that the budget of the session left when the turn began."""
    repeats: int | None = 3
    """Repetitions that make a loop; None: no loop guard."""
    polling: frozenset[str] = frozenset()
    """Tools that may be called again and again."""


def join_notes(first: str | None, second: str | None) -> str | None:
    """Both notes as one; None if there is neither."""
    if not first or not second:
        return first or second or None
    return f"{first}\n\n{second}"


class CallModel(msgspec.Struct, frozen=True, gc=False):
    """Ask the model. `position` counts the model calls of the whole conversation before this one."""

    id: int
    thread: Thread
    position: int
    compacts: bool = False
    """Only compact the context; no answer is wanted."""


class RunTools(msgspec.Struct, frozen=True, gc=False):
    """Perform these calls; their results come back in this order."""

    id: int
    calls: tuple[ToolCall, ...]


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """A safe point where inputs may enter the turn. `note` is a note of Holdfast for the model.

    `advice` is an optional second note. It is not part of the effect's identity: a checkpoint recorded without it still
    matches.
    """

    id: int
    moment: Moment
    note: str | None = None
    advice: str | None = None

    def told(self, *, entering: bool) -> str | None:
        """The note for the model when the checkpoint is first passed; None if the turn ends here."""
        if self.moment == "before_completion" and not entering:
            return None
        return join_notes(self.note, self.advice)


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The turn has ended."""

    id: int
    ending: Ending


Effect: TypeAlias = CallModel | RunTools | Checkpoint | Finish
_NO_USAGE: Final = Usage()


class Replied(msgspec.Struct, frozen=True, gc=False):
    """The reply of the model. `seen` is the compacted thread that it saw, if it was compacted."""

    reply: ModelReply
    seen: Thread | None = None
    usage: Usage = _NO_USAGE
    cost: float | None = 0.0


class Compacted(msgspec.Struct, frozen=True, gc=False):
    """The context was compacted on request."""

    seen: Thread
    usage: Usage = _NO_USAGE
    cost: float | None = 0.0


class ModelCallFailed(msgspec.Struct, frozen=True, gc=False):
    """The model call failed. `usage` and `cost` are those of the compaction and of a rejected reply."""

    code: str
    message: str
    usage: Usage = Usage()
    cost: float | None = 0.0


class UsedUp(msgspec.Struct, frozen=True, gc=False):
    """Compaction used up a budget before the model call. `usage` and `cost` are those of the compaction."""

    out: OutOf
    usage: Usage = _NO_USAGE
    cost: float | None = 0.0


class Results(msgspec.Struct, frozen=True, gc=False):
    """The results of a batch in order, and the effects of its programs on the turn."""

    results: tuple[ToolResult, ...]
    within: Consumption = NOTHING
    """Usage of the calls that programs made."""
    polled: bool = False
    """A program called a polling tool."""
    answer: str | None = None
    """The answer with which a program ended the turn."""
    out: OutOf | None = None
    """The limit that a program reached, which ends the turn."""


class Inputs(msgspec.Struct, frozen=True, gc=False):
    """Inputs that entered at a checkpoint. `told` is the recorded note; None: the note of the checkpoint."""

    messages: tuple[UserMessage, ...] = ()
    told: str | None = None


# `OutOf`: a budget beyond the turn leaves no room for the effect; it was not begun.
Response: TypeAlias = Replied | Compacted | ModelCallFailed | UsedUp | Results | Inputs | OutOf


class TurnState(msgspec.Struct, frozen=True, gc=False):
    """The state of a turn. `awaited` is the next effect, whose outcome it needs."""

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
    """None if the price of one call is unknown."""
    used: Consumption = Consumption()
    trace: Trace = Trace()
    recorded: int = 0
    """Number of the last recorded effect; limits do not apply to effects up to it."""
