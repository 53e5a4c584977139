"""Exceptions that unwind user code which must not go on; as no `Exception`, they pass its `except Exception`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.errors.base import HoldfastError


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
