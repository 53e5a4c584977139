"""The trunk: who can act, and what unwinds code that must not go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.errors.base import HoldfastError


class Halted(BaseException):
    """This journal can't be driven further here.

    Raised inside driven code when the lease was lost, a replay diverged or the store failed. It derives from
    `BaseException` so that `except Exception` in user code can't swallow it and go on without a journal.
    `reason` says why; whoever drives the journal catches it.
    """

    def __init__(self, reason: HoldfastError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Suspended(BaseException):
    """The running tool waits for somebody outside, and the turn is parked until then.

    It derives from `BaseException` so that `except Exception` in user code can't swallow it.
    """

    def __init__(self, *waits: str) -> None:
        super().__init__(f"waiting for {', '.join(map(repr, waits))}")
        self.waits = waits
