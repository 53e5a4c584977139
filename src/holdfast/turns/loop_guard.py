"""The loop guard: does a turn do the same again and again? Pure, and bounded: only the last few steps are looked at.

A step is a batch of tool calls with their results; which call stood first in it makes no difference, and how many calls
of a batch are equal makes none either. The same step several times in a row, or a circle of up to four steps gone round
so often, is a repetition. The model is told once; the same repetition after that ends the turn.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.effects.canonical import canonical_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.messages import ToolCall, ToolResult


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
