"""Clocks: wall time, monotonic time that all processes of one boot share, and the working time of a session."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.names import is_turn_id
from holdfast.records import Ended, Parked, Record, Resumed, Started


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


@dataclass(slots=True)
class Stopwatch:
    """Measures the working time of a session from its records, fed in order."""

    total: int = 0
    """Milliseconds of work up to the last record."""
    _run: str = ""
    """The turn under way; empty without one."""
    _since: int = 0

    def take(self, record: Record) -> tuple[int, int] | None:
        """Count the time up to a record; returns the counted interval, if any."""
        kind = type(record)
        if kind is Started or kind is Resumed:
            run = getattr(record, "run", "")
            if is_turn_id(run):
                self._run, self._since = run, record.at
            return None
        if not self._run:
            return None
        since, self._since = self._since, record.at
        if (kind is Parked or kind is Ended) and getattr(record, "run", "") == self._run:
            self._run = ""
        if since >= record.at:
            return None
        self.total += record.at - since
        return since, record.at

    def stop(self) -> None:
        """Stop measuring, where a fork begins."""
        self._run = ""

    def last(self, now: int) -> int:
        """The time up to which `total` counts: the last record during a turn, else now."""
        return min(self._since, now) if self._run else now
