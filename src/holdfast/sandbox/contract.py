"""What a sandbox for programs is, so that there can be others than the one that comes with this package."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from holdfast.errors import InvalidNumber
from holdfast.names import check_int

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.sandbox.stubs import Stub


@runtime_checkable
class Program(Protocol):
    """One program. It runs only between `run` or `answer` and the step that they give."""

    @property
    def digest(self) -> str:
        """What the program is; the ids of its calls follow from it (`call_id`)."""
        ...

    async def run(self, recorded: Sequence[Result] = (), *, begun: bool = False) -> Step:
        """Begin. With `recorded` results, go on to the first step that they have no answer for: that is a replay.

        So it is with `begun`, though nothing has a result yet: it was found right when it began, and is not checked.

        Raises `ProgramDiverged` when the program makes other calls than those that were recorded.
        """
        ...

    async def answer(self, results: Sequence[Result]) -> Step:
        """Go on with results of calls that wait, in the order in which they were recorded. At least one."""
        ...

    async def snapshot(self) -> bytes | None:
        """The program as it stands, sealed, to go on from without a replay. None where there is none to be had."""
        ...

    async def close(self) -> None:
        """End the program and its worker, whatever it is doing. Can be called at any time, and more than once."""
        ...


@runtime_checkable
class Sandbox(Protocol):
    """Runs programs that nobody trusts."""

    async def start(  # noqa: PLR0913  one keyword for each thing that a program begins with
        self,
        source: str,
        *,
        tools: Sequence[Stub] = (),
        globals: Mapping[str, Any] | None = None,
        limits: ProgramLimits | None = None,
        seed: str = "",
        snapshot: bytes | None = None,
    ) -> Program:
        """A program that is ready to run. `globals` are the variables that the one before left (`Ended.kept`).

        `seed` is where its random numbers come from. A `snapshot` that does not fit is ignored.
        """
        ...

    async def close(self) -> None:
        """End all programs."""
        ...


MOST_CALLS: Final = 1_000_000
MOST_SECONDS: Final = 3600.0
MOST_BYTES: Final = 64 * 2**20
_LEAST_MEMORY: Final = 2**20
_MOST_MEMORY: Final = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """The limits of one program. Time is that of its own code: while it waits for a call, nothing is counted."""

    seconds: float = 30.0
    """For all of its code together."""
    step_seconds: float = 5.0
    """For its code between two calls."""
    memory: int = 64 * 2**20
    """Bytes of all that it holds."""
    calls: int = 10_000
    """Calls that it makes, the clock and pauses among them."""
    recursion: int = 400
    """How deep its functions may call each other."""
    source: int = 100_000
    """Bytes of the program itself."""
    value: int = 2**20
    """Bytes of the arguments of one call, and of the value at its end, as JSON."""
    variables: int = 2**20
    """Bytes of all variables that live on, as JSON."""
    output: int = 30_000
    """Bytes of what it printed that are shown; of more, the middle is left out."""
    error: int = 4_000
    """Bytes of an error that are shown."""

    def __post_init__(self) -> None:
        _check_seconds("seconds", self.seconds)
        _check_seconds("step_seconds", self.step_seconds)
        check_int("memory", self.memory, least=_LEAST_MEMORY, most=_MOST_MEMORY)
        check_int("calls", self.calls, most=MOST_CALLS)
        check_int("recursion", self.recursion, least=10, most=1_000)
        for name in ("source", "value", "variables"):
            check_int(name, getattr(self, name), least=1, most=MOST_BYTES)
        for name in ("output", "error"):
            check_int(name, getattr(self, name), least=500, most=MOST_BYTES)


def told(which: Limit, limits: ProgramLimits) -> str:
    """What a model is told about the limit that stopped its program."""
    said = {
        "time": f"its code took over {limits.step_seconds:g} s between two calls, or over {limits.seconds:g} s in all",
        "memory": f"it took more than {limits.memory:,} bytes of memory",
        "calls": f"it made more than {limits.calls:,} calls",
        "recursion": f"its functions called each other more than {limits.recursion:,} deep",
        "source": f"it has more than {limits.source:,} bytes",
        "worker": "its process died, most likely of too much memory",
    }
    return f"The program was stopped: {said[which]}. Its variables are what they were before it."


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidNumber(name, value, f"it is a {type(value).__name__}, not a number of seconds")
    if not (math.isfinite(value) and 0 < value <= MOST_SECONDS):
        raise InvalidNumber(name, value, f"it must be more than 0 and at most {MOST_SECONDS:,.0f}")


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
