"""Listing what is in a directory."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.hands.files.globs import read_glob
from holdfast.hands.files.walking import Budget, Entry, Walk
from holdfast.hands.files.workspace import kind_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.hands.files.limits import FileLimits
    from holdfast.hands.files.paths import Place
    from holdfast.hands.files.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Lister:
    """Lists below one workspace, within limits."""

    workspace: Workspace
    limits: FileLimits
    skip: Collection[str]

    def entries(self, place: Place, glob: str, *, recursive: bool) -> str:
        """One line for each entry: directories end in '/', files have their size."""
        wanted = read_glob(glob) if glob else None
        budget = Budget(self.limits.seconds, self.limits.visited)
        lines: list[str] = []
        room, more = self.limits.page_chars, False
        with self.workspace.directory(place.encoded(), str(place)) as below:
            walk = Walk(self.workspace, below, self.skip, budget)
            for entry in walk.entries(recursive=recursive or "/" in glob or "**" in glob):
                if wanted is not None and not wanted.matches(entry.shown.split("/")):
                    continue
                line = _line(place, entry)
                room -= len(line) + 1
                more = len(lines) >= self.limits.entries or room < 0
                if more:
                    break
                lines.append(line)
        return "\n".join([*lines, *_notes(lines, walk, budget, more=more, filtered=wanted is not None)])


def _line(place: Place, entry: Entry) -> str:
    path = f"{place}/{entry.shown}" if place.parts else entry.shown
    if stat.S_ISDIR(entry.mode):
        return f"{path}/"
    if stat.S_ISREG(entry.mode):
        return f"{path} ({entry.found.st_size:,} bytes)"
    return f"{path} ({kind_of(entry.mode)})"


def _notes(lines: list[str], walk: Walk, budget: Budget, *, more: bool, filtered: bool) -> list[str]:
    notes: list[str] = []
    if more:
        notes.append(f"(There are more than these {len(lines):,}; narrow it with path or glob.)")
    if budget.over:
        notes.append(f"(Not everything was looked at: {budget.over}; narrow it with path.)")
    if walk.unread:
        notes.append(f"({walk.unread:,} directories could not be read.)")
    if not lines and not notes:
        notes.append("(nothing matches)" if filtered else "(the directory is empty)")
    return notes
