"""What passes between a program and its host: calls, results, and how a program ends. Pure."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

CallKind = Literal["tool", "clock", "sleep"]
"""`clock` asks for the time in seconds since 1970, `sleep` for a pause of `seconds`; a tool is called by its name."""

Limit = Literal["time", "memory", "calls", "recursion", "source", "worker"]
"""What a program ran into. `worker`: its process died, or no longer answered."""

Phase = Literal["check", "run"]
"""A program that fails its `check` has done nothing."""

ErrorKind: TypeAlias = Literal[
    "RuntimeError", "TimeoutError", "PermissionError", "ValueError", "TypeError", "SystemExit"
]
"""The exceptions by which a failed call reaches a program. No traceback of the host ever does.

`SystemExit` ends a program where it is: no `except Exception` catches it.
"""
_PREFIX = 16


def call_id(program: str, number: int) -> str:
    """The id of what the program with this digest asks for as number `number`, from 0: calls, times and pauses."""
    return f"{program[:_PREFIX]}/{number}"


def call_number(id: str) -> int:
    """The number in the id of a call."""
    return int(id.rpartition("/")[2])


class HostCall(msgspec.Struct, frozen=True, gc=False):
    """One call out of a program. The same program that got the same results makes the same call under the same id."""

    id: str
    kind: CallKind
    name: str
    """The tool's own name; `now` and `sleep` for the other kinds."""
    arguments: dict[str, Any]
    digest: str
    """Of the kind, the name and the arguments."""


class Returned(msgspec.Struct, frozen=True, tag="returned", gc=False):
    """A call that gave a value."""

    value: Any = None


class Raised(msgspec.Struct, frozen=True, tag="raised", gc=False):
    """A call that failed: the program sees an exception, which it may catch."""

    message: str
    kind: ErrorKind = "RuntimeError"


Outcome: TypeAlias = Returned | Raised


class Result(msgspec.Struct, frozen=True, gc=False):
    """What came of a call. With the call's `digest`, a replay checks that it is still the same call."""

    id: str
    outcome: Outcome
    digest: str = ""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """The variables that live on, and the names of those that can't, with the reason."""

    values: dict[str, Any]
    dropped: dict[str, str] = {}


class Calls(msgspec.Struct, frozen=True, tag="calls"):
    """The program waits. `calls` are new; `waiting` are the ids of all that have no answer, these among them."""

    calls: tuple[HostCall, ...]
    waiting: tuple[str, ...]


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The program came to its end. `value` is that of its last expression."""

    value: Any
    printed: str
    kept: Kept | None
    """None: they could not be read, and are what they were before."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The program was refused before it ran, or raised. `error` is for the model."""

    error: str
    phase: Phase
    printed: str
    kept: Kept | None
    """None: the variables are what they were before."""


class LimitHit(msgspec.Struct, frozen=True, tag="limit"):
    """The program was stopped. `error` is for the model. The variables are what they were before."""

    which: Limit
    error: str
    printed: str


Step: TypeAlias = Calls | Ended | Failed | LimitHit
