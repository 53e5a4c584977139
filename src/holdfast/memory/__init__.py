"""Memory for people and agents: the handle on one scope, and its mirror as readable files."""

from __future__ import annotations

from holdfast.memory.decisions import MirrorBusy, MirrorReport, MirrorTooLarge, MirrorUnavailable, RefusedFile
from holdfast.memory.handle import Memory
from holdfast.memory.mirror import Mirror

__all__ = [
    "Memory",
    "Mirror",
    "MirrorBusy",
    "MirrorReport",
    "MirrorTooLarge",
    "MirrorUnavailable",
    "RefusedFile",
]
