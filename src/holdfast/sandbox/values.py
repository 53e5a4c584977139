"""Values that leave a program, as plain JSON and within bounds. Pure.

A few bytes in a program can stand for a value without end: a list of lists, each a thousand times the same. So a value
is counted as it is written out, and given up as soon as it is too large.
"""

from __future__ import annotations

import math
from typing import Any, Final, cast

MAX_DEPTH: Final = 60
"""How deep lists and objects may be nested: a little less than a journal takes."""
_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1
_FLOAT: Final = 8
_EACH: Final = 12
_SMALL: Final = 2**53


class NotPlain(Exception):
    """A value that JSON has no word for, or that is too large."""


class Foreign:
    """Something in a program that JSON has no word for: only its kind is known here. Of a class also its own name."""

    __slots__ = ("name", "of")

    def __init__(self, name: str, of: str = "") -> None:
        self.name = name
        self.of = of


def too_large(room: int) -> NotPlain:
    """For a value that has more bytes than there is room for."""
    return NotPlain(f"it has more than {room:,} bytes as JSON")


class _Room:
    """What is left of the bytes that a value may have."""

    __slots__ = ("left", "whole")

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self.left = whole

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise too_large(self.whole)


def plain(value: object, room: int) -> tuple[Any, int]:
    """`value` as plain JSON, with about how many bytes that has; `NotPlain` says why it can't be. Tuples are lists."""
    flat = type(value) is dict
    size = _flat(cast("dict[object, object]", value)) if flat else _scalar(value)
    if 0 <= size <= room:
        return value, size
    budget = _Room(room)
    return _plain(value, 0, budget), room - budget.left


def _scalar(value: Any) -> int:  # noqa: ANN401  anything may come in
    """The size of a plain text or a small number, which most results are; -1 for anything else."""
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anything
    if kind is str:
        return len(value) + 2 if value.isascii() else -1
    return _FLOAT if kind is int and -_SMALL < value < _SMALL else -1


def _flat(value: dict[object, object]) -> int:
    """The size of an object of short plain values, which most arguments are; -1 for anything else."""
    size = 0
    for key, item in value.items():
        if type(key) is not str or not key.isascii():
            return -1
        kind = type(item)
        if kind is str:
            if not cast("str", item).isascii():
                return -1
            size += len(cast("str", item))
        elif kind is int:
            if not _SMALL > cast("int", item) > -_SMALL:
                return -1
        elif kind is not bool and item is not None:
            return -1
        size += len(key) + _EACH
    return size


def _plain(value: Any, depth: int, room: _Room) -> Any:  # noqa: ANN401  anything may come in
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anything
    if kind is str:
        room.take(_length(value) + 2)
        return value
    if kind is bool or value is None:
        room.take(5)
        return value
    if kind is int:
        if not _LEAST <= value <= _MOST:
            raise NotPlain("it has an integer of more than 64 bits")
        room.take(_FLOAT)
        return value
    if kind is float:
        if not math.isfinite(value):
            raise NotPlain(f"it has {value}, which is no JSON number")
        room.take(_FLOAT)
        return value
    if depth >= MAX_DEPTH:
        raise NotPlain(f"it is nested deeper than {MAX_DEPTH} levels")
    if kind is list or kind is tuple:
        room.take(2 + len(value))
        return [_plain(item, depth + 1, room) for item in value]
    if kind is dict:
        return _plain_object(cast("dict[object, object]", value), depth, room)
    raise NotPlain(f"it has a {_kind_name(value)}, which JSON has no word for")


def _plain_object(value: dict[object, object], depth: int, room: _Room) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise NotPlain(f"it has a key of the type {_kind_name(key)}; keys must be str")
        room.take(_length(key) + 4)
        made[key] = _plain(item, depth + 1, room)
    return made


def _length(text: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise NotPlain("it has a text that is no valid Unicode") from None


def _kind_name(value: object) -> str:
    return value.name[:60] if isinstance(value, Foreign) else type(value).__name__


def has_lookalike(value: object) -> bool:
    """Whether plain JSON has a text that may stand for something else: a function arrives as `<function ...>`."""
    if isinstance(value, str):
        return value.startswith("<") or value in {"[...]", "{...}"}
    if isinstance(value, dict):
        return any(has_lookalike(item) for item in cast("dict[str, object]", value).values())
    return isinstance(value, list) and any(has_lookalike(item) for item in cast("list[object]", value))
