"""Noticing that another process has committed, without spinning.

On Linux the kernel tells: an inotify watch on the write-ahead log wakes the event loop, and nothing runs while nothing
happens. Elsewhere the store is looked at every 25 ms, as long as somebody waits for changes.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_IN_MODIFY: Final = 0x2
_COALESCE: Final = 0.005
_POLL: Final = 0.025


class Wakeup:
    """Calls `look` soon after the write-ahead log has changed, while somebody waits."""

    def __init__(self, log: Path, look: Callable[[], None]) -> None:
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0
        self._fd = _watch(log)
        if self._fd is not None:
            try:
                self._loop.add_reader(self._fd, self._on_event)
            except NotImplementedError:
                os.close(self._fd)
                self._fd = None

    def begin_waiting(self) -> None:
        """Somebody waits for changes."""
        self._waiting += 1
        self._schedule(_COALESCE)

    def end_waiting(self) -> None:
        """One fewer."""
        self._waiting -= 1

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _on_event(self) -> None:
        if self._fd is not None:
            os.read(self._fd, 65_536)
        if self._waiting:
            self._schedule(_COALESCE)

    def _schedule(self, delay: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(delay, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._look()
        if self._fd is None and self._waiting:
            self._schedule(_POLL)


def _watch(log: Path) -> int | None:
    """An inotify descriptor that becomes readable when `log` is written, or None where there is no inotify."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    except (AttributeError, OSError):
        return None
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(log), _IN_MODIFY) < 0:
        os.close(fd)
        return None
    return fd
