"""Crash points: named points at which tests kill the process.

They are part of the code that must survive, and do nothing until `holdfast.testing` arms them.
"""

from __future__ import annotations

from collections.abc import Callable

_armed: Callable[[str], None] | None = None


def crash_point(name: str) -> None:
    """Mark that execution has reached the crash point `name`."""
    if _armed is not None:
        _armed(name)


def arm(callback: Callable[[str], None] | None) -> None:
    """Call `callback` at every crash point from now on; None disarms."""
    global _armed  # noqa: PLW0603  one switch for the whole process is the point
    _armed = callback
