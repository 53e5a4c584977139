"""Ending a process at a named crash point.

The environment of a worker process says where:

- ``HOLDFAST_CRASH_TRACE=file`` writes the name of every crash point that is reached, one a line;
- ``HOLDFAST_CRASH_AT=17`` ends the process with SIGKILL at the 17th point that is reached;
- ``HOLDFAST_CRASH_AT=store.committed:2`` ends it when that point is reached for the second time.
"""

from __future__ import annotations

import os
import signal
import threading

from holdfast import crashpoints


def arm_from_environment() -> None:
    """Obey the environment, in a worker that a test has started."""
    at = os.environ.get("HOLDFAST_CRASH_AT", "")
    trace = os.environ.get("HOLDFAST_CRASH_TRACE", "")
    if at or trace:
        crashpoints.arm(_Armed(at, trace))


class _Armed:
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
