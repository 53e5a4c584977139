"""Noticing that somebody wrote in the folder of the mirror: by inotify where there is one; elsewhere nobody tells."""

from __future__ import annotations

import asyncio
import ctypes
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# A file was closed after writing, moved away or here, made or removed; only folders are watched, and no links followed.
_MASK: Final = 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x01000000 | 0x02000000


class FolderWatch:
    """Calls `tell` soon after something changed in the folder or in a folder below it."""

    def __init__(self, folder: Path, tell: Callable[[], None]) -> None:
        self._folder = folder
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._libc: ctypes.CDLL | None = None
        self._fd = -1
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            if self._fd >= 0:
                self._loop.add_reader(self._fd, self._on_event)
        except (AttributeError, OSError, NotImplementedError):  # not on this system, or not in this event loop
            self.close()

    def refresh(self) -> frozenset[Path]:
        """Watch all folders that are there now; answers which are watched, none where nobody will tell."""
        if self._libc is None or self._fd < 0:
            return frozenset()
        try:
            folders = [self._folder, *(inner for inner in self._folder.iterdir() if not inner.name.startswith("."))]
        except OSError:
            return frozenset()
        # Again for those that are watched already: they may have been made anew under the same name.
        watch = self._libc.inotify_add_watch
        return frozenset(folder for folder in folders if watch(self._fd, os.fsencode(folder), _MASK) >= 0)

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            with suppress(NotImplementedError):
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
        self._fd = -1

    def _on_event(self) -> None:
        try:
            while os.read(self._fd, 65_536):
                pass
        except BlockingIOError:
            pass
        self._tell()
