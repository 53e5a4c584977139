"""The contract of a sandbox for programs: `Sandbox`, `Program`, its limits, calls, steps and values. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, cast, runtime_checkable

import msgspec

from holdfast.errors import InvalidNumber
from holdfast.names import check_int

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.sandbox.stubs import Stub


@runtime_checkable
class Program(Protocol):
    """One program. It runs only during `run` and `answer`."""

    @property
    def digest(self) -> str:
        """The digest of the program, from which the ids of its calls follow (`call_id`)."""
        ...

    async def run(self, recorded: Sequence[CallResult] = (), *, begun: bool = False) -> ProgramStep:
        """Begin. With `recorded` results, replay up to the first step without an answer.

        `begun`: the program began before, without any result; it passed its check then and is not checked again. Raises
        `ProgramDiverged` if the program makes other calls than the recorded ones.
        """
        ...

    async def answer(self, results: Sequence[CallResult]) -> ProgramStep:
        """Continue with results of waiting calls, at least one, in the order of their records."""
        ...

    async def close(self) -> None:
        """End the program and its worker at any time. May be called more than once."""
        ...


@runtime_checkable
class Sandbox(Protocol):
    """Runs untrusted programs."""

    async def start(
        self,
        source: str,
        *,
        tools: Sequence[Stub] = (),
        globals: Mapping[str, Any] | None = None,
        limits: ProgramLimits | None = None,
        seed: str = "",
    ) -> Program:
        """A program that is ready to run.

        `globals` are the variables left by the one before (`ProgramEnd.kept`), `seed` is that of its random numbers.
        """
        ...

    async def close(self) -> None:
        """End all programs."""
        ...


# ---- limits ----

MAX_CALLS: Final = 1_000_000
MAX_SECONDS: Final = 3600.0
MAX_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """The limits of one program. Time is that of its own code, without waiting for calls."""

    seconds: float = 30.0
    """For all of its code together."""
    step_seconds: float = 5.0
    """For its code between two calls."""
    memory: int = 64 * 2**20
    """Bytes of all its objects."""
    calls: int = 10_000
    """Calls, including clock and pauses."""
    recursion: int = 400
    """Depth of function calls."""
    source: int = 100_000
    """Bytes of the source."""
    value: int = 2**20
    """Bytes of the arguments of one call, and of the final value, as JSON."""
    variables: int = 2**20
    """Bytes of all kept variables, as JSON."""
    output: int = 30_000
    """Bytes of shown printed text; of more, the middle is left out."""
    error: int = 4_000
    """Bytes of a shown error."""

    def __post_init__(self) -> None:
        for name in ("seconds", "step_seconds"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidNumber(name, value, f"it is a {type(value).__name__}, not a number of seconds")
            if not (math.isfinite(value) and 0 < value <= MAX_SECONDS):
                raise InvalidNumber(name, value, f"it must be more than 0 and at most {MAX_SECONDS:,.0f}")
        check_int("memory", self.memory, least=2**20, most=4 * 2**30)
        check_int("calls", self.calls, most=MAX_CALLS)
        check_int("recursion", self.recursion, least=10, most=1_000)
        for name in ("source", "value", "variables"):
            check_int(name, getattr(self, name), least=1, most=MAX_BYTES)
        for name in ("output", "error"):
            check_int(name, getattr(self, name), least=500, most=MAX_BYTES)


def describe_limit(which: LimitName, limits: ProgramLimits) -> str:
    """The text that tells the model which limit stopped its program."""
    reasons = {
        "time": f"its code took over {limits.step_seconds:g} s between two calls, or over {limits.seconds:g} s in all",
        "memory": f"it took more than {limits.memory:,} bytes of memory",
        "calls": f"it made more than {limits.calls:,} calls",
        "recursion": f"its functions called each other more than {limits.recursion:,} deep",
        "source": f"it has more than {limits.source:,} bytes",
        "worker": "its process died, most likely of too much memory",
    }
    return f"The program was stopped: {reasons[which]}. Its variables are what they were before it."


# ---- calls and steps ----

CallKind = Literal["tool", "clock", "sleep"]
"""`clock` is the time in seconds since 1970, `sleep` a pause of `seconds`, `tool` a tool by name."""
LimitName = Literal["time", "memory", "calls", "recursion", "source", "worker"]
"""The exceeded limit; `worker`: its process died or did not answer."""
FailurePhase = Literal["check", "run"]
"""A program that fails its `check` has done nothing."""
ErrorKind: TypeAlias = Literal[
    "RuntimeError", "TimeoutError", "PermissionError", "ValueError", "TypeError", "SystemExit"
]
"""The exceptions of failed calls in a program; no traceback of the host is among them.

`SystemExit` ends a program where it is: no `except Exception` catches it.
"""


def call_id(program: str, number: int) -> str:
    """The id of call number `number`, from 0, of the program with this digest."""
    return f"{program[:16]}/{number}"


def call_number(id: str) -> int:
    """The number in the id of a call."""
    return int(id.rpartition("/")[2])


class HostCall(msgspec.Struct, frozen=True, gc=False):
    """One call of a program. The same program with the same results makes the same call under the same id."""

    id: str
    kind: CallKind
    name: str
    """The name of the tool; `now` and `sleep` for the other kinds."""
    arguments: dict[str, Any]
    digest: str
    """Of the kind, the name and the arguments."""


class CallValue(msgspec.Struct, frozen=True, tag="returned", gc=False):
    """A call that returned a value."""

    value: Any = None


class CallError(msgspec.Struct, frozen=True, tag="raised", gc=False):
    """A call that failed: an exception in the program, which may catch it."""

    message: str
    kind: ErrorKind = "RuntimeError"


CallOutcome: TypeAlias = CallValue | CallError


class CallResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a call. With the call's `digest`, a replay checks that it is still the same call."""

    id: str
    outcome: CallOutcome
    digest: str = ""


class KeptVariables(msgspec.Struct, frozen=True, gc=False):
    """The variables for the next program, and the names of the dropped ones with the reason."""

    values: dict[str, Any]
    dropped: dict[str, str] = {}


class PendingCalls(msgspec.Struct, frozen=True, tag="calls"):
    """The program waits. `calls` are new; `waiting` are the ids of all calls without an answer."""

    calls: tuple[HostCall, ...]
    waiting: tuple[str, ...]


class ProgramEnd(msgspec.Struct, frozen=True, tag="ended"):
    """The program ended. `value` is that of its last expression."""

    value: Any
    printed: str
    kept: KeptVariables | None
    """None: the variables are unreadable and stay as before."""


class ProgramFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The program was refused before its start, or raised. `error` is for the model."""

    error: str
    phase: FailurePhase
    printed: str
    kept: KeptVariables | None
    """None: the variables stay as before."""


class LimitHit(msgspec.Struct, frozen=True, tag="limit"):
    """The program was stopped. `error` is for the model. The variables stay as before."""

    which: LimitName
    error: str
    printed: str


ProgramStep: TypeAlias = PendingCalls | ProgramEnd | ProgramFailure | LimitHit


# ---- values as plain JSON, within limits ----
#
# A few bytes in a program can describe an endless value: nested lists, each a thousand times the same. So conversion
# counts the size, and stops as soon as it is too large.

MAX_DEPTH: Final = 60
"""Deepest nesting of lists and objects, a little less than in a journal."""
_NUMBER_SIZE: Final = 8


class NotJson(Exception):
    """A value without a JSON form, or too large."""


@dataclass(slots=True, eq=False)
class ForeignValue:
    """A value of a program without a JSON form: its type, and for a class its name."""

    name: str
    of: str = ""


def too_large(room: int) -> NotJson:
    """The error for a value of more than `room` bytes."""
    return NotJson(f"it has more than {room:,} bytes as JSON")


@dataclass(slots=True)
class _SizeBudget:
    """The bytes that a value may still take."""

    whole: int
    left: int

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise too_large(self.whole)


def to_json(value: object, room: int) -> tuple[Any, int]:
    """`value` as plain JSON, with its approximate size in bytes; `NotJson` if it has none. Tuples become lists."""
    budget = _SizeBudget(room, room)
    return _convert(value, 0, budget), room - budget.left


def _convert(value: Any, depth: int, room: _SizeBudget) -> Any:  # callers may pass anything
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # any type
    if kind is str:
        room.take(_length(value) + 2)
        return value
    if kind is bool or value is None:
        room.take(5)
        return value
    if kind is int or kind is float:
        if kind is int and not -(2**63) <= value < 2**64:
            raise NotJson("it has an integer of more than 64 bits")
        if kind is float and not math.isfinite(value):
            raise NotJson(f"it has {value}, which is no JSON number")
        room.take(_NUMBER_SIZE)
        return value
    if depth >= MAX_DEPTH:
        raise NotJson(f"it is nested deeper than {MAX_DEPTH} levels")
    if kind is list or kind is tuple:
        room.take(2 + len(value))
        return [_convert(item, depth + 1, room) for item in value]
    if kind is not dict:
        raise NotJson(f"it has a {_kind_name(value)}, which JSON has no word for")
    made: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise NotJson(f"it has a key of the type {_kind_name(key)}; keys must be str")
        room.take(_length(key) + 4)
        made[key] = _convert(item, depth + 1, room)
    return made


def _length(text: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise NotJson("it has a text that is no valid Unicode") from None


def _kind_name(value: object) -> str:
    return value.name[:60] if isinstance(value, ForeignValue) else type(value).__name__


def has_repr_text(value: object) -> bool:
    """True if plain JSON contains a text that may be the repr of something else, such as `<function ...>`."""
    if isinstance(value, str):
        return value.startswith("<") or value in {"[...]", "{...}"}
    if isinstance(value, dict):
        return any(has_repr_text(item) for item in cast("dict[str, object]", value).values())
    return isinstance(value, list) and any(has_repr_text(item) for item in cast("list[object]", value))
