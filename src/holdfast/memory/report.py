"""What one comparison of the folder with memory did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refused:
    """A file, a folder or an entry that was left alone, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """Paths are below the folder of the mirror."""

    written: tuple[str, ...] = ()
    """Files that were written."""
    erased: tuple[str, ...] = ()
    """Files that were removed, because their entries were."""
    taken: tuple[str, ...] = ()
    """Files whose text was taken in."""
    dropped: tuple[str, ...] = ()
    """Files that were removed by somebody, and their entries with them."""
    conflicts: tuple[str, ...] = ()
    """Files that hold a text that lost against a change of its entry."""
    refused: tuple[Refused, ...] = ()
    again: bool = False
    """Whether something moved meanwhile, so that another look is due."""
