"""Going through the directories of a workspace, in order, without following links, for a bounded time."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError
from holdfast.hands.files.paths import MAX_DEPTH, shown_name
from holdfast.hands.files.workspace import told
from holdfast.store.beside import in_store_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from holdfast.hands.files.workspace import Workspace

SKIPPED: Final[tuple[str, ...]] = (
    *(".git", ".hg", ".svn", ".jj", "node_modules", "__pycache__", ".venv", ".tox", ".nox"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache"),
)
"""Directories that a walk does not enter unless it begins there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a directory. `path` is how to open it from where the walk began."""

    path: bytes
    shown: str
    found: os.stat_result

    @property
    def mode(self) -> int:
        """What kind of thing it is."""
        return self.found.st_mode


class Budget:
    """How long a walk may take, and how much it may look at. `over` says which of them ended it."""

    def __init__(self, seconds: float, entries: int) -> None:
        self.seconds: Final = seconds
        self.until: Final = time.monotonic() + seconds
        self.over: str | None = None
        self._entries = self._left = entries

    def take(self) -> bool:
        """Whether one more may be looked at."""
        if self._left <= 0:
            self.over = f"it stopped after {self._entries:,} entries"
        elif time.monotonic() > self.until:
            self.over = f"it stopped after {self.seconds:g} seconds"
        self._left -= 1
        return self.over is None


class Walk:
    """A walk from one open directory downwards. `unread` counts directories that could not be opened."""

    def __init__(self, workspace: Workspace, below: int, skip: Collection[str], budget: Budget) -> None:
        self._workspace = workspace
        self._below = below
        self._skip = {name.encode() for name in skip}
        self._budget = budget
        self.unread = 0

    def entries(self, *, recursive: bool) -> Iterator[Entry]:
        """Every entry, each directory before what is in it, by name."""
        todo = [iter(self._inside(b"."))]
        while todo:
            entry = next(todo[-1], None)
            if entry is None:
                todo.pop()
                continue
            yield entry
            if recursive and self._enters(entry) and len(todo) < MAX_DEPTH:
                todo.append(iter(self._inside(entry.path)))

    def _enters(self, entry: Entry) -> bool:
        return stat.S_ISDIR(entry.mode) and entry.path.rpartition(b"/")[2] not in self._skip

    def _inside(self, path: bytes) -> list[Entry]:
        prefix = b"" if path == b"." else path + b"/"
        try:
            # Always from the beginning of the walk, name by name without links: a directory that was swapped for a
            # link meanwhile is not entered.
            with self._workspace.directory(path, shown_name(path), below=self._below, follow=False) as number:
                return sorted(self._scan(number, prefix), key=lambda entry: entry.path)
        except HoldfastError:
            if path == b".":
                raise
            self.unread += 1
            return []

    def _scan(self, number: int, prefix: bytes) -> Iterator[Entry]:
        with told(shown_name(prefix) or "."), os.scandir(number) as scan:
            for item in scan:
                if not self._budget.take():
                    return
                try:
                    found = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # it was removed meanwhile
                if in_store_folder(item.name):
                    continue
                path = prefix + os.fsencode(item.name)
                yield Entry(path, shown_name(path), found)
