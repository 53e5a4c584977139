"""Which numbers may be given where a number is asked for."""

from __future__ import annotations

from typing import Final

from holdfast.errors import InvalidNumber

MAX_INT: Final = 2**62
"""Larger than any time, size, place or count that can be meant, and safe in every store."""


def check_int(what: str, value: object, *, least: int = 0, most: int = MAX_INT) -> int:
    """The integer itself, or `InvalidNumber` that says what is wrong with it."""
    if type(value) is not int:
        raise InvalidNumber(what, value, f"it is a {type(value).__name__}, not an integer")
    if not least <= value <= most:
        raise InvalidNumber(what, value, f"it must be from {least:,} to {most:,}")
    return value
