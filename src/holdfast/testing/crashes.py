"""Crash points: end a process at a named one.

The environment of a worker process chooses the point:

- ``HOLDFAST_CRASH_TRACE=file`` writes the name of every reached crash point, one on each line;
- ``HOLDFAST_CRASH_AT=17`` ends the process with SIGKILL at the 17th reached point;
- ``HOLDFAST_CRASH_AT=store.committed:2`` ends it when it reaches that point for the second time.
"""

from __future__ import annotations

import os
import signal
import threading

from holdfast import crashpoints


def arm_from_environment() -> None:
    """Arm the crash points of a worker process from its environment."""
    at = os.environ.get("HOLDFAST_CRASH_AT", "")
    trace = os.environ.get("HOLDFAST_CRASH_TRACE", "")
    if at or trace:
        crashpoints.arm(CrashTrigger(at, trace))


class CrashTrigger:
    """Ends the process at a crash point, and writes the names of those that it reaches."""

    def __init__(self, at: str, trace: str) -> None:
        name, _, count = at.rpartition(":")
        self._name = name
        self._count = int(count) if count else 0
        self._trace = os.open(trace, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600) if trace else None
        self._lock = threading.Lock()
        self._reached = 0

    def __call__(self, name: str) -> None:
        with self._lock:
            if self._trace is not None:
                os.write(self._trace, f"{name}\n".encode())
            if self._name in ("", name):
                self._reached += 1
                if self._reached == self._count:
                    os.kill(os.getpid(), signal.SIGKILL)
