"""Noticing that another process has committed, without spinning.

On Linux the kernel tells: a writer touches the write-ahead log after each commit, an inotify watch on it wakes the
event loop, and nothing runs while nothing happens. (The writes to the log themselves come too early: a commit can be
seen only after its sync.) A slow tick covers a writer that died between commit and touch. Elsewhere the store is looked
at every 25 ms, as long as somebody waits for changes.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_IN_ATTRIB: Final = 0x4
_COALESCE: Final = 0.005
_POLL: Final = 0.025
_TICK: Final = 1.0


class Wakeup:
    """Calls `look` soon after the write-ahead log was touched, while somebody waits, 200 times a second at the most."""

    def __init__(self, log: Path, look: Callable[[], None]) -> None:
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._waiting = 0
        self._closed = False
        self._inotify = _inotify(log)

    def begin_waiting(self) -> None:
        """Somebody waits for changes: look at once, since some may have come before."""
        self._waiting += 1
        if self._waiting == 1:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_soon(self._fire)

    def end_waiting(self) -> None:
        """One fewer."""
        self._waiting -= 1

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        inotify, self._inotify = self._inotify, None
        if inotify is not None:
            self._loop.remove_reader(inotify.fd)
            os.close(inotify.fd)

    def _fire(self) -> None:
        """Listen again, then look. Our own commits touch the log too: while we do not listen they cost nothing."""
        self._timer = None
        if self._closed:
            return
        listening = self._waiting > 0 and self._listen()
        self._look()  # after listening: a commit in between is either seen now or heard of
        if not self._waiting:
            return
        self._timer = self._loop.call_later(_TICK if listening else _POLL, self._fire)

    def _listen(self) -> bool:
        if self._inotify is None or not self._inotify.watch():
            return False
        try:
            self._loop.add_reader(self._inotify.fd, self._on_event, self._inotify.fd)
        except NotImplementedError:  # an event loop that can't watch files
            return False
        return True

    def _on_event(self, fd: int) -> None:
        os.read(fd, 65_536)
        self._loop.remove_reader(fd)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_COALESCE, self._fire)


class _Inotify:
    """The kernel's word that a file was touched."""

    def __init__(self, log: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._log = os.fsencode(log)
        self.fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def watch(self) -> bool:
        """Watch the log; again and again, because it may have been made anew under the same name."""
        return int(self._libc.inotify_add_watch(self.fd, self._log, _IN_ATTRIB)) >= 0


def _inotify(log: Path) -> _Inotify | None:
    try:
        return _Inotify(log)
    except (AttributeError, OSError):  # not on this system, or no more of them
        return None
