"""Files of one directory as tools: list, read, search, write and edit, confined by the kernel."""

from __future__ import annotations

from holdfast.hands.files.errors import (
    ConfinementUnavailable,
    EditMismatch,
    FileChanged,
    FileFailed,
    FileMissing,
    FileTooLarge,
    NotText,
    PathProtected,
    PathRefused,
    PatternInvalid,
    SearchStopped,
    SearchUnavailable,
    WrongKind,
)
from holdfast.hands.files.family import files
from holdfast.hands.files.limits import FileLimits
from holdfast.hands.files.protected import RULES
from holdfast.hands.files.walking import SKIPPED

__all__ = [
    "RULES",
    "SKIPPED",
    "ConfinementUnavailable",
    "EditMismatch",
    "FileChanged",
    "FileFailed",
    "FileLimits",
    "FileMissing",
    "FileTooLarge",
    "NotText",
    "PathProtected",
    "PathRefused",
    "PatternInvalid",
    "SearchStopped",
    "SearchUnavailable",
    "WrongKind",
    "files",
]
