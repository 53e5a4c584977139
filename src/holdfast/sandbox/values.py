"""Values of a program as plain JSON, within limits. Pure.

A few bytes in a program can describe an endless value: a list of lists, each a thousand times the same. So the size is
counted during conversion, which stops as soon as it is too large.
"""

from __future__ import annotations

import math
from typing import Any, Final, cast

MAX_DEPTH: Final = 60
"""Deepest nesting of lists and objects: a little less than a journal allows."""
_FLOAT: Final = 8
_ITEM_OVERHEAD: Final = 12
_SMALL: Final = 2**53


class NotJson(Exception):
    """A value without a JSON form, or too large."""


class ForeignValue:
    """A value of a program without a JSON form: only its type is known here; of a class also its own name."""

    __slots__ = ("name", "of")

    def __init__(self, name: str, of: str = "") -> None:
        self.name = name
        self.of = of


def too_large(room: int) -> NotJson:
    """The error for a value with more bytes than `room`."""
    return NotJson(f"it has more than {room:,} bytes as JSON")


class _SizeBudget:
    """The bytes that a value may still take."""

    __slots__ = ("left", "whole")

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self.left = whole

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise too_large(self.whole)


def to_json(value: object, room: int) -> tuple[Any, int]:
    """`value` as plain JSON, with its approximate size in bytes; `NotJson` if it has none. Tuples become lists."""
    flat = type(value) is dict
    size = _size_of_flat_dict(cast("dict[object, object]", value)) if flat else _size_of_scalar(value)
    if 0 <= size <= room:
        return value, size
    budget = _SizeBudget(room)
    return _convert(value, 0, budget), room - budget.left


def _size_of_scalar(value: Any) -> int:  # noqa: ANN401  anything may come in
    """The size of a plain text or a small number, which most results are; -1 for anything else."""
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anything
    if kind is str:
        return len(value) + 2 if value.isascii() else -1
    return _FLOAT if kind is int and -_SMALL < value < _SMALL else -1


def _size_of_flat_dict(value: dict[object, object]) -> int:
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
        size += len(key) + _ITEM_OVERHEAD
    return size


def _convert(value: Any, depth: int, room: _SizeBudget) -> Any:  # noqa: ANN401  anything may come in
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anything
    if kind is str:
        room.take(_length(value) + 2)
        return value
    if kind is bool or value is None:
        room.take(5)
        return value
    if kind is int or kind is float:
        if kind is int and not -(2**63) <= value < 2**64:
            raise NotJson("it has an integer of more than 64 bits")
        if kind is float and not math.isfinite(value):
            raise NotJson(f"it has {value}, which is no JSON number")
        room.take(_FLOAT)
        return value
    if depth >= MAX_DEPTH:
        raise NotJson(f"it is nested deeper than {MAX_DEPTH} levels")
    if kind is list or kind is tuple:
        room.take(2 + len(value))
        return [_convert(item, depth + 1, room) for item in value]
    if kind is not dict:
        raise NotJson(f"it has a {_kind_name(value)}, which JSON has no word for")
    made: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            raise NotJson(f"it has a key of the type {_kind_name(key)}; keys must be str")
        room.take(_length(key) + 4)
        made[key] = _convert(item, depth + 1, room)
    return made


def _length(text: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise NotJson("it has a text that is no valid Unicode") from None


def _kind_name(value: object) -> str:
    return value.name[:60] if isinstance(value, ForeignValue) else type(value).__name__


def has_repr_text(value: object) -> bool:
    """Whether plain JSON contains a text that may be the repr of something else, such as `<function ...>`."""
    if isinstance(value, str):
        return value.startswith("<") or value in {"[...]", "{...}"}
    if isinstance(value, dict):
        return any(has_repr_text(item) for item in cast("dict[str, object]", value).values())
    return isinstance(value, list) and any(has_repr_text(item) for item in cast("list[object]", value))
