"""Memory for people and agents: the handle on one scope, and its mirror as readable files."""

from __future__ import annotations

from holdfast.memory.errors import MirrorBusy, MirrorTooLarge, MirrorUnavailable
from holdfast.memory.handle import Memory
from holdfast.memory.mirror import Mirror
from holdfast.memory.report import MirrorReport, Refused

__all__ = [
    "Memory",
    "Mirror",
    "MirrorBusy",
    "MirrorReport",
    "MirrorTooLarge",
    "MirrorUnavailable",
    "Refused",
]
