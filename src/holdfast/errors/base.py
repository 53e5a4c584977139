"""Base classes of all errors, one for each party that can act, and the two that unwind user code."""

from __future__ import annotations

from typing import ClassVar, Literal

Actor = Literal["caller", "world", "store", "us"]


class HoldfastError(Exception):
    """Base of every error that Holdfast raises on purpose."""

    actor: ClassVar[Actor] = "us"


class UsageError(HoldfastError):
    """The caller can act: an argument, an id, an input or the order of calls is wrong. Nothing was written."""

    actor: ClassVar[Actor] = "caller"


class WorldError(HoldfastError):
    """The outside world decided: an effect failed, was cancelled, or its outcome is unknown."""

    actor: ClassVar[Actor] = "world"


class StoreError(HoldfastError):
    """The store refused or failed."""

    actor: ClassVar[Actor] = "store"


class InvariantBroken(HoldfastError):
    """A bug in Holdfast: it reached a state that must not exist. Please report it."""


def excerpt(value: object) -> str:
    """The repr of a value for an error message, cut short; never raises."""
    try:
        text = repr(value)
    except Exception:  # an error about a bad value must not fail because the value is bad
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text):,} characters)"


class Halted(BaseException):
    """Driven code must stop here: the lease was lost, the replay diverged or the store failed. `reason` says why."""

    def __init__(self, reason: HoldfastError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Suspended(BaseException):
    """The running tool waits for an answer from outside; the turn is parked until it comes."""

    def __init__(self, *waits: str) -> None:
        super().__init__(f"waiting for {', '.join(map(repr, waits))}")
        self.waits = waits
