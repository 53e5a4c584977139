"""Time as an argument: what the wall clock says, and what only ever moves forward."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Instant(NamedTuple):
    """One reading of both clocks, in milliseconds.

    `wall` is for people, deadlines and other machines; it may jump. `mono` never does, but means something only on the
    machine since its `boot`. Within one boot it is the same for all processes, so leases are judged by it.
    """

    wall: int
    mono: int
    boot: str


class Clock(Protocol):
    """Where time comes from. Tests pass a clock they move by hand."""

    def read(self) -> Instant:
        """Both clocks, now."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def __init__(self) -> None:
        self._boot = boot_id()

    def read(self) -> Instant:
        # As `Instant(...)`, without the function in Python that this goes through: it is read all the time.
        now = (time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000, self._boot)
        return tuple.__new__(Instant, now)  # pyright: ignore[reportUnknownMemberType]  # of any tuple


def wall_clock(clock: Clock) -> Callable[[], int]:
    """What reads the wall clock alone."""
    if type(clock) is SystemClock:
        return _wall
    return lambda: clock.read().wall


def _wall() -> int:
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """What names this boot of this machine; empty where the system does not say."""
    return _boot_id(os.getpid())


@cache
def _boot_id(_pid: int) -> str:
    """Read once by each process: a child may have been put into another time namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    try:
        # A time namespace has a monotonic clock of its own, and start times that can't be compared.
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return boot
