"""Clocks: wall time, and monotonic time that all processes of one boot share."""

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

    `wall` is for people, deadlines and other machines; it may jump. `mono` never jumps, but is valid only on the
    machine since its `boot`. Within one boot all processes share it, so leases are measured by it.
    """

    wall: int
    mono: int
    boot: str


class Clock(Protocol):
    """A source of time. Tests pass a clock that they move by hand."""

    def read(self) -> Instant:
        """Both clocks, now."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def __init__(self) -> None:
        self._boot = boot_id()

    def read(self) -> Instant:
        # Quicker than `Instant(...)`, which calls a Python function: the clock is read all the time.
        now = (time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000, self._boot)
        return tuple.__new__(Instant, now)  # pyright: ignore[reportUnknownMemberType]  # of any tuple


def wall_clock(clock: Clock) -> Callable[[], int]:
    """A function that reads the wall clock alone."""
    if type(clock) is SystemClock:
        return wall_time
    return lambda: clock.read().wall


def wall_time() -> int:
    """The wall clock of this machine."""
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """The id of this boot of this machine; empty if the system has none."""
    return _boot_id(os.getpid())


@cache
def _boot_id(_pid: int) -> str:
    """The id of the boot and time namespace; cached per process, because a child may be in another namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    try:
        # A time namespace has its own monotonic clock, and start times that can't be compared.
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return boot
