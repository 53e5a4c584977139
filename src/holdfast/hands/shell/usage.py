"""What a running command takes of the machine, where the kernel has no limit for it: measured every now and then.

Nobody but root can give a folder a quota. So the file system is asked how much it has grown, which costs next to
nothing, and only when that is a good part of the room that is left, the workspace is measured file by file.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_TEMPORARY_FILES: Final = 262_144
"""How many files the folders in memory may hold together; each takes about a kilobyte of the kernel's memory."""

_STEP_BYTES: Final = 64 * 2**20
_STEP_FILES: Final = 10_000
_LEAST_BYTES: Final = 2**20
_LEAST_FILES: Final = 100
_BETWEEN_LOOKS: Final = 0.25
_BETWEEN_MEASURES: Final = 30.0
_SHARE: Final = 20
"""Measuring takes at most one part in so many of the time."""
_SHARED: Final = (b"/dev/zero (deleted)", b"/SYSV", b"/memfd:")
"""How shared memory without a file is named among the mappings of a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a command may take."""

    memory: int | None
    """Shared memory; None where a control group bounds it with the rest."""
    folders: tuple[str, ...]
    """The folders in memory, inside the sandbox."""
    workspace: str | None
    """The workspace, if it can be written."""
    workspace_bytes: int
    workspace_files: int


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes on the disk, and files and folders."""

    bytes: int
    files: int


class Usage:
    """Follows one command. `inside` is the root of its files, as the host sees it."""

    def __init__(self, inside: str, bounds: Bounds) -> None:
        self._inside = inside
        self._bounds = bounds
        self._next_look = 0.0
        self._next_measure = time.monotonic() + _BETWEEN_MEASURES
        self._begin = None if bounds.workspace is None else _used(bounds.workspace)
        self._room = Size(_STEP_BYTES, _STEP_FILES)
        """How much the file system may grow before the workspace is measured."""
        self._size: Size | None = None
        """How large the workspace was when it was measured last."""

    def exceeded(self) -> str | None:
        """What the command took too much of; None as long as it did not."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        try:
            return self._too_many_temporary_files() or self._too_much_shared() or self._workspace_too_large()
        finally:
            took = time.monotonic() - now
            self._next_look = now + max(_BETWEEN_LOOKS, took * _SHARE)

    # ---- memory ----

    def _too_many_temporary_files(self) -> str | None:
        files = 0
        for folder in self._bounds.folders:
            with suppress(OSError):
                found = os.statvfs(self._inside + folder)
                files += found.f_files - found.f_ffree
        most = MAX_TEMPORARY_FILES
        return f"it had more than {most:,} files in /tmp and /dev/shm" if files > most else None

    def _too_much_shared(self) -> str | None:
        most = self._bounds.memory
        if most is None:
            return None
        sizes: dict[bytes, int] = {}
        for process in self._processes():
            with suppress(OSError), open(f"{process}/maps", "rb") as maps:  # noqa: PTH123  a line at a time
                for line in maps:
                    _add_shared(line, sizes)
        return f"it shared more than {most:,} bytes of memory" if sum(sizes.values()) > most else None

    def _processes(self) -> Iterator[str]:
        with suppress(OSError):
            for name in os.listdir(f"{self._inside}/proc"):  # noqa: PTH208  only names are wanted
                if name.isdigit():
                    yield f"{self._inside}/proc/{name}"

    # ---- the workspace ----

    def _workspace_too_large(self) -> str | None:
        workspace, now = self._bounds.workspace, time.monotonic()
        if workspace is None or self._begin is None:
            return None
        used = _used(workspace)
        if used is None:
            return None
        grown = Size(used.bytes - self._begin.bytes, used.files - self._begin.files)
        late = now >= self._next_measure  # what others delete meanwhile hides what the command writes
        if grown.bytes < self._room.bytes and grown.files < self._room.files and not late:
            return None
        size = self._measured(workspace)
        self._next_measure = time.monotonic() + max(_BETWEEN_MEASURES, (time.monotonic() - now) * _SHARE)
        bounds, before = self._bounds, self._size
        self._size = size
        left = Size(bounds.workspace_bytes - size.bytes, bounds.workspace_files - size.files)
        if left.bytes < 0 and _has_grown(size.bytes, before and before.bytes, grown.bytes, bounds.workspace_bytes):
            return f"the workspace had more than {bounds.workspace_bytes:,} bytes"
        if left.files < 0 and _has_grown(size.files, before and before.files, grown.files, bounds.workspace_files):
            return f"the workspace had more than {bounds.workspace_files:,} files and folders"
        self._room = Size(
            grown.bytes + max(left.bytes // 2, _LEAST_BYTES), grown.files + max(left.files // 2, _LEAST_FILES)
        )
        return None

    def _measured(self, workspace: str) -> Size:
        named = measure(workspace)
        return Size(named.bytes + self._unnamed(workspace), named.files)

    def _unnamed(self, workspace: str) -> int:
        """Bytes of files that were removed and are still open."""
        try:
            device = os.stat(workspace).st_dev  # noqa: PTH116
        except OSError:
            return 0
        found: dict[int, int] = {}
        for process in self._processes():
            with suppress(OSError):
                for name in os.listdir(f"{process}/fd"):  # noqa: PTH208  only names are wanted
                    with suppress(OSError):
                        file = os.stat(f"{process}/fd/{name}")  # noqa: PTH116
                        if stat.S_ISREG(file.st_mode) and file.st_nlink == 0 and file.st_dev == device:
                            found[file.st_ino] = file.st_blocks * 512
        return sum(found.values())


def measure(workspace: str) -> Size:
    """How large a folder is, with all that is in it. Links are not followed, and other file systems not entered."""
    total = files = 0
    linked: set[int] = set()
    todo = [workspace]
    try:
        device = os.stat(workspace).st_dev  # noqa: PTH116
    except OSError:
        return Size(0, 0)
    while todo:
        with suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                files += 1
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                        if found.st_ino in linked:
                            continue
                        linked.add(found.st_ino)
                    total += found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode) and found.st_dev == device:
                        todo.append(entry.path)
    return Size(total, files)


def _has_grown(size: int, before: int | None, grown: int, limit: int) -> bool:
    """Whether a workspace over its limit grew while the command ran. One that was over it before can be tidied up."""
    return size > before if before is not None else size - limit <= grown


def _used(folder: str) -> Size | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return Size((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree)


def _add_shared(line: bytes, sizes: dict[bytes, int]) -> None:
    """Take in one line of a process's mappings: `from-to perms offset device inode path`."""
    parts = line.split(None, 5)
    if len(parts) < 6 or parts[1][3:4] != b"s" or not parts[5].startswith(_SHARED):
        return
    begin, _, end = parts[0].partition(b"-")
    size = int(parts[2], 16) + int(end, 16) - int(begin, 16)
    sizes[parts[4]] = max(sizes.get(parts[4], 0), size)
