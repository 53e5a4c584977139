"""What a host asks of a worker, as bytes. Pure.

This is version 6 of the protocol of Monty's workers. A worker that does not speak it refuses to begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.sandbox import nodes
from holdfast.sandbox.steps import Raised
from holdfast.sandbox.wire import counted, framed, part, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.sandbox.steps import Outcome

VERSION: Final = 6
_MICRO: Final = 1_000_000
_CONCISE: Final = 2


class Bounds(msgspec.Struct, frozen=True):
    """What a worker itself sees to."""

    memory: int
    recursion: int
    feed_seconds: float
    """For one piece of code, all in all."""
    turn_seconds: float
    """Between two things that it asks its host for."""
    suspensions: int
    """How often it may ask. The host itself counts."""


def configure(bounds: Bounds, stubs: str, seed: str) -> bytes:
    """The first request: what the program may take, and what is checked before it runs."""
    limits = (
        counted(2, bounds.memory)
        + counted(4, bounds.recursion)
        + counted(5, bounds.suspensions)
        + counted(6, round(bounds.feed_seconds * _MICRO))
        + counted(7, round(bounds.turn_seconds * _MICRO))
        + counted(8, 0)
    )
    nothing = b""
    policy = (
        part(2, nothing)  # the clock is asked for
        + part(4, part(1, nothing))  # UTC
        + part(5, part(2, nothing))  # pauses are asked for
        + part(8, text(3, seed))
        + part(9, nothing)  # no clock of the processor
    )
    content = (
        text(1, "program.py")
        + part(2, limits)
        + counted(3, 1)
        + text(4, stubs)
        + counted(7, _CONCISE)
        + counted(9, VERSION)
        + part(11, policy)
    )
    return framed(part(1, content))


def feed(code: str, variables: Mapping[str, Any], *, unchecked: bool) -> bytes:
    """Run this code. `unchecked`: its types are not looked at."""
    made, roots = nodes.arena(*variables.values())
    named = b"".join([part(2, text(1, name) + counted(2, root)) for name, root in zip(variables, roots, strict=True)])
    return framed(part(3, text(1, code) + named + part(3, made) + counted(4, int(unchecked))))


def deferred(call: int) -> bytes:
    """The result of this call comes later."""
    return framed(part(4, counted(1, call) + part(2, counted(3, call))))


def answered(call: int, value: object) -> bytes:
    """The value of a call that can't wait."""
    made, root = nodes.one(value)
    return framed(part(4, counted(1, call) + part(2, counted(1, root)) + part(3, made)))


def answered_with(call: int, made: bytes) -> bytes:
    """The same, where the value was made already: the only node."""
    return framed(part(4, counted(1, call) + part(2, counted(1, 0)) + part(3, made)))


def refused(call: int, kind: str, message: str) -> bytes:
    """The call fails with this exception, where it was made."""
    return framed(part(4, counted(1, call) + part(2, _failure(kind, message))))


def not_handled(call: int) -> bytes:
    """There is nobody who would do this for a program."""
    return framed(part(4, counted(1, call) + part(2, part(5, b""))))


def settled(call: int, outcome: Outcome) -> bytes:
    """The result of a call that is awaited."""
    if isinstance(outcome, Raised):
        return framed(part(6, part(1, counted(1, call) + part(2, _failure(outcome.kind, outcome.message)))))
    made, root = nodes.one(outcome.value)
    return framed(part(6, part(1, counted(1, call) + part(2, counted(1, root))) + part(2, made)))


def function(name: str) -> bytes:
    """The name that was looked up is a function of the host."""
    return framed(part(5, part(1, nodes.function(name)) + counted(2, 0)))


def load(state: bytes) -> bytes:
    """Go on where a worker stood when it gave this."""
    return framed(part(8, part(1, state)))


UNDEFINED: Final = framed(part(5, part(3, b"")))
"""The name that was looked up is none."""
DUMP: Final = framed(part(7, b""))
"""Say where you stand."""


def _failure(kind: str, message: str) -> bytes:
    return part(2, text(1, kind) + text(2, message))
