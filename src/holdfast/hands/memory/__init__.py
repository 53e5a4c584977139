"""Memory for a model: the tool `memory`, with the commands that models know."""

from __future__ import annotations

from holdfast.hands.memory.errors import (
    EditRefused,
    FileExists,
    MemoryChanged,
    NothingThere,
    OutcomeUnclear,
    PathInvalid,
)
from holdfast.hands.memory.family import memory

__all__ = [
    "EditRefused",
    "FileExists",
    "MemoryChanged",
    "NothingThere",
    "OutcomeUnclear",
    "PathInvalid",
    "memory",
]
