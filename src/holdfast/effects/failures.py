"""Errors as they are recorded: bounded, and in words that any store can keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.records import ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ERROR: Final = 4_096
"""Longest error message that is recorded, in characters."""


def printable(text: str) -> str:
    """A text that can be stored: what no encoding knows is shown as its escape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def bounded(message: str) -> str:
    """A message as it is recorded."""
    text = printable(message)
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]}... ({len(text):,} characters)"


def error_info(error: BaseException, clean: Callable[[str], str] = str) -> ErrorInfo:
    """An error as it is recorded: bounded, and without anything that would have to be revived."""
    try:
        message = clean(str(error))
    except Exception as trouble:  # noqa: BLE001  an error that can't say what it is must still be recorded
        message = f"(its message can't be read: {type(trouble).__name__})"
    return ErrorInfo(type(error).__name__, bounded(message))
