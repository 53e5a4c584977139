"""Files of one directory as tools: list, read, search, write and edit, confined by the kernel."""

from __future__ import annotations

from holdfast.toolkits.files.tools import files
from holdfast.toolkits.files.workspace import (
    PROTECTED_NAMES,
    SKIPPED,
    ConfinementUnavailable,
    EditMismatch,
    FileChanged,
    FileFailed,
    FileLimits,
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

__all__ = [
    "PROTECTED_NAMES",
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
