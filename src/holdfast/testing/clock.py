"""A clock that a test moves by hand."""

from __future__ import annotations

from holdfast.clock import Instant


class ManualClock:
    """Moves only by its methods. Wall clock and monotonic clock can be moved apart."""

    def __init__(self, wall: int = 1_800_000_000_000, mono: int = 1_000_000, boot: str = "boot-1") -> None:
        self._wall = wall
        self._mono = mono
        self._boot = boot

    def read(self) -> Instant:
        return Instant(self._wall, self._mono, self._boot)

    def advance(self, milliseconds: int) -> None:
        """Let time pass on both clocks."""
        self._wall += milliseconds
        self._mono += milliseconds

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward or back. No time passes."""
        self._wall += milliseconds

    def reboot(self, boot: str) -> None:
        """Restart the machine: the monotonic clock begins at zero."""
        self._boot = boot
        self._mono = 0
