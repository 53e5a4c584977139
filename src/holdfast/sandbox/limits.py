"""How much one program may take. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.bounds import check_int
from holdfast.errors import InvalidNumber

if TYPE_CHECKING:
    from holdfast.sandbox.steps import Limit

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
