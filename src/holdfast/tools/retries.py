"""How often a tool that may be repeated is tried again, and when."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from holdfast.bounds import check_int
from holdfast.errors import InvalidArgument
from holdfast.tools.signals import NotDone, ToolRetry

MAX_ATTEMPTS: Final = 10
"""Most attempts of one call."""
MAX_PAUSE: Final = 300.0
"""Longest pause between two attempts, in seconds."""


class ToolRetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What happens when a tool that is `read_only` or `idempotent` raises: it is tried again, under the same key.

    `attempts` counts the first one. The pause before the second attempt is `pause` seconds, and `factor` times longer
    before each that follows, up to `longest`. Only errors of the kinds in `on` are tried again; `ToolRetry` never is,
    because it asks the model for other arguments.
    """

    attempts: int = 3
    pause: float = 1.0
    factor: float = 2.0
    longest: float = 30.0
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        check_int("retry attempts", self.attempts, least=1, most=MAX_ATTEMPTS)
        for what, least, most in (("pause", 0.0, MAX_PAUSE), ("factor", 1.0, 100.0), ("longest", 0.0, MAX_PAUSE)):
            value = getattr(self, what)
            if type(value) not in (int, float) or not least <= value <= most:
                raise InvalidArgument(f"retry {what}", value, f"a number from {least:g} to {most:g}")
        if type(self.on) is not tuple or not self.on or not all(_is_error(kind) for kind in self.on):
            raise InvalidArgument("retry on", self.on, "a tuple of subclasses of Exception")

    def pause_after(self, attempt: int, error: BaseException) -> float | None:
        """How many seconds to wait before the next attempt, when number `attempt` (from 1) ended so; None: no other."""
        if attempt >= self.attempts or isinstance(error, ToolRetry | NotDone) or not isinstance(error, self.on):
            return None
        grown = self.pause * self.factor ** (attempt - 1)
        return min(grown if math.isfinite(grown) else self.longest, self.longest)


def retry_policy(given: object) -> ToolRetryPolicy | None:
    """What `retry=` means: a policy, the number of attempts, or none."""
    if given is None or isinstance(given, ToolRetryPolicy):
        return given
    if type(given) is not int:
        raise InvalidArgument("retry", given, "the number of attempts or a ToolRetryPolicy")
    return ToolRetryPolicy(attempts=given)


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)
