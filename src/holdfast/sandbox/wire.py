"""Protocol buffers, as far as a worker uses them: fields, trees of values, and values as plain JSON. Pure.

Messages of a worker are not trusted: anything invalid is a `MalformedMessage`, and nothing is read past its end.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    import datetime as dt


# ---- fields ----

VARINT: Final = 0
FIXED: Final = 1
LENGTH: Final = 2
_SMALL: Final = 0x80
_MAX_BITS: Final = 70
_FIXED32: Final = 5
MAX_FIELDS: Final = 100_000
"""Most fields of a message: decoded, they take far more room than encoded."""


class MalformedMessage(Exception):
    """Bytes that no proper worker sends."""


def encode_number(value: int) -> bytes:
    """Encode a number that is not negative."""
    if value < _SMALL:
        return _BYTES[value]
    made = bytearray()
    while value >= _SMALL:
        made.append(value & 0x7F | _SMALL)
        value >>= 7
    made.append(value)
    return bytes(made)


def number_field(field: int, value: int) -> bytes:
    """A field with a number."""
    return encode_number(field << 3) + encode_number(value)


def bytes_field(field: int, content: bytes) -> bytes:
    """A field with bytes, a text or a message."""
    return encode_number(field << 3 | LENGTH) + encode_number(len(content)) + content


def text_field(field: int, value: str) -> bytes:
    """A field with a text. Half of a surrogate pair becomes a question mark."""
    return bytes_field(field, value.encode(errors="replace"))


def frame_message(message: bytes) -> bytes:
    """A message with its length before it, as it is sent."""
    return len(message).to_bytes(4, "little") + message


_BYTES: Final = tuple(bytes((value,)) for value in range(_SMALL))


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Decode a number; returns it and the offset after it."""
    value = data[at]
    at += 1
    if value < _SMALL:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _SMALL:
            return value, at
        shift += 7
        if shift > _MAX_BITS:
            raise MalformedMessage("a number without an end")


def read_part(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The begin and end of a field's content, from the offset after its tag."""
    size = data[at]
    at += 1
    if size >= _SMALL:
        size, at = read_number(data, at - 1)
    stop = at + size
    if stop > end:
        raise MalformedMessage("a field that is longer than its message")
    return at, stop


def read_fields(data: bytes, at: int, end: int) -> list[tuple[int, int, int]]:
    """The fields of a message: the tag, and its number and 0, or the begin and end of its content."""
    found: list[tuple[int, int, int]] = []
    while at < end:
        tag, at = read_number(data, at)
        kind = tag & 7
        if kind == VARINT:
            value, at = read_number(data, at)
            found.append((tag, value, 0))
        elif kind == LENGTH:
            start, at = read_part(data, at, end)
            found.append((tag, start, at))
        elif kind in {FIXED, _FIXED32}:
            start, at = at, at + (8 if kind == FIXED else 4)
            found.append((tag, start, at))
        else:
            raise MalformedMessage("a field of an unknown kind")
        if len(found) > MAX_FIELDS:
            raise MalformedMessage("more fields than any message has")
    if at != end:
        raise MalformedMessage("a field that is longer than its message")
    return found


class Fields:
    """The fields of a message, by number; of a repeated one the last."""

    __slots__ = ("_data", "_found")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._found = {tag: (start, stop) for tag, start, stop in read_fields(data, at, end)}

    def number(self, field: int) -> int:
        """A number."""
        return self._found.get(field << 3, (0,))[0]

    def part(self, field: int) -> tuple[int, int] | None:
        """The begin and end of a field's content, which may be a message itself."""
        return self._found.get(field << 3 | LENGTH)

    def content(self, field: int) -> bytes | None:
        """Bytes."""
        found = self.part(field)
        return None if found is None else self._data[found[0] : found[1]]

    def text(self, field: int) -> str | None:
        """A text."""
        found = self.content(field)
        return None if found is None else found.decode()


def read_numbers(data: bytes, at: int, end: int) -> list[int]:
    """Decode packed numbers."""
    chunk = data[at:end]
    if chunk.isascii():  # each of them is one byte
        return list(chunk)
    found: list[int] = []
    while at < end:
        value, at = read_number(data, at)
        found.append(value)
    if at != end:
        raise MalformedMessage("numbers that are longer than their field")
    return found


# ---- values: a list of nodes, which refer to earlier nodes by index ----

_INT_LIMIT: Final = 2**63
_DOUBLE: Final = struct.Struct("<d")
_MAX_EXPANSION: Final = 8
"""A value takes at most so many times its JSON size here."""
_SPARE: Final = 1024


class ForeignValue:
    """A value of a program without a JSON form: only its type is known here; of a class also its own name."""

    __slots__ = ("name", "of")

    def __init__(self, name: str, of: str = "") -> None:
        self.name = name
        self.of = of


class ValueTooLarge(Exception):
    """The value exceeds the limit in any encoding."""


_NONE: Final = bytes_field(2, b"")
_TRUE: Final = number_field(4, 1)
_FALSE: Final = number_field(4, 0)
_SMALL_INTS: Final = tuple(bytes_field(2, number_field(5, value << 1)) for value in range(64))
_ONE_NODE: Final = number_field(1, 1)


def encode_values(*values: object) -> tuple[bytes, list[int]]:
    """The nodes of these values, and the index of each. `TypeError` for a value that a program can't have."""
    nodes: list[bytes] = []
    roots = [_add_node(value, nodes) for value in values]
    return number_field(1, len(nodes)) + b"".join(nodes), roots


def encode_value(value: object) -> tuple[bytes, int]:
    """The nodes of one value, and its index."""
    if type(value) is int and 0 <= value < len(_SMALL_INTS):
        return _ONE_NODE + _SMALL_INTS[value], 0
    made, roots = encode_values(value)
    return made, roots[0]


def encode_function(name: str) -> bytes:
    """The nodes of a function of the host."""
    return _ONE_NODE + bytes_field(2, bytes_field(25, bytes_field(1, name.encode())))


def _add_node(value: Any, nodes: list[bytes]) -> int:  # noqa: ANN401  whatever a host gives
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anything
    if kind is str:
        made = bytes_field(8, value.encode(errors="replace"))
    elif kind is int:
        made = _encode_int(value)
    elif kind is dict:
        pairs = [
            bytes_field(1, number_field(1, _add_node(key, nodes)) + number_field(2, _add_node(item, nodes)))
            for key, item in value.items()
        ]
        made = bytes_field(14, b"".join(pairs))
    elif kind is list or kind is tuple:
        items = b"".join([encode_number(_add_node(item, nodes)) for item in value])
        made = bytes_field(11 if kind is list else 12, bytes_field(1, items) if items else b"")
    elif value is None:
        made = _NONE
    elif kind is bool:
        made = _TRUE if value else _FALSE
    elif kind is float:
        made = encode_number(7 << 3 | FIXED) + _DOUBLE.pack(value)
    else:
        message = f"a {kind.__name__} can't be given to a program"
        raise TypeError(message)
    nodes.append(bytes_field(2, made))
    return len(nodes) - 1


def _encode_int(value: int) -> bytes:
    if -_INT_LIMIT <= value < _INT_LIMIT:
        return number_field(5, value << 1 if value >= 0 else ~(value << 1))
    size = abs(value)
    magnitude = bytes_field(2, size.to_bytes((size.bit_length() + 7) // 8, "big"))
    return bytes_field(6, number_field(1, 1) + magnitude if value < 0 else magnitude)


def encode_date(value: dt.date) -> bytes:
    """The nodes of a date."""
    return _ONE_NODE + bytes_field(2, bytes_field(17, _numbers(value.year, value.month, value.day)))


def encode_datetime(value: dt.datetime, zone: str | None) -> bytes:
    """The nodes of a datetime; `zone` is the name of its time zone."""
    made = _numbers(value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    offset = value.utcoffset()
    if offset is not None:
        made += number_field(8, round(offset.total_seconds()) % 2**64)
        made += b"" if zone is None else text_field(9, zone)
    return _ONE_NODE + bytes_field(2, bytes_field(19, made))


def _numbers(*values: int) -> bytes:
    return b"".join(number_field(field, value) for field, value in enumerate(values, 1))


def decode_values(data: bytes, at: int, end: int, room: int) -> list[Any]:
    """Decode nodes; `ValueTooLarge` if they surely take more than `room` bytes of JSON."""
    if end - at > _MAX_EXPANSION * room + _SPARE:
        raise ValueTooLarge
    built: list[Any] = []
    while at < end:
        tag = data[at]
        if tag != _NODE:
            _, at = read_number(data, at + 1)  # how many there are
            if tag != _COUNT:
                raise MalformedMessage("something that is no node among nodes")
            continue
        start, at = at + 2, at + 2 + data[at + 1]
        if at > start + _ONE_BYTE or at > end:
            start, at = read_part(data, start - 1, end)
        kind = data[start]
        start += 1
        if kind == _STR:
            begin, stop = read_part(data, start, at)
            built.append(data[begin:stop].decode())
        elif kind == _INT:
            value = data[start]
            if value > _ONE_BYTE:
                value, _ = read_number(data, start)
            built.append(value >> 1 if not value & 1 else ~(value >> 1))
        elif kind == _DICT:
            built.append(_read_pairs(data, *read_part(data, start, at), built))
        elif kind == _LIST:
            built.append(_read_items(data, *read_part(data, start, at), built))
        elif kind == _NOTHING:
            built.append(None)
        elif kind == _BOOL:
            built.append(data[start] != 0)
        elif kind == _FLOAT:
            built.append(_DOUBLE.unpack_from(data[start:at])[0])
        elif kind == _TUPLE:
            built.append(tuple(_read_items(data, *read_part(data, start, at), built)))
        else:
            built.append(_decode_other(data, start - 1, at, built))
    return built


_ONE_BYTE: Final = 0x7F
_NODE: Final = 2 << 3 | LENGTH
_COUNT: Final = 1 << 3
_STR: Final = 8 << 3 | LENGTH
_INT: Final = 5 << 3
_DICT: Final = 14 << 3 | LENGTH
_LIST: Final = 11 << 3 | LENGTH
_TUPLE: Final = 12 << 3 | LENGTH
_NOTHING: Final = 2 << 3 | LENGTH
_BOOL: Final = 4 << 3
_FLOAT: Final = 7 << 3 | FIXED
_PACKED: Final = 1 << 3 | LENGTH
_KEY: Final = 1 << 3
_VALUE: Final = 2 << 3


def _read_items(data: bytes, at: int, end: int, built: list[Any]) -> list[Any]:
    if at == end:
        return []
    if data[at] != _PACKED:
        raise MalformedMessage("a list of something else than nodes")
    begin, stop = read_part(data, at + 1, end)
    return [built[index] for index in read_numbers(data, begin, stop)]


def _read_pairs(data: bytes, at: int, end: int, built: list[Any]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    while at < end:
        if data[at] != _PACKED:
            raise MalformedMessage("an object of something else than pairs")
        begin, at = read_part(data, at + 1, end)
        index, value = read_pair(data, begin, at)
        key = built[index]
        if type(key) is not str and not isinstance(key, ForeignValue):
            if isinstance(key, list | dict):
                raise MalformedMessage("a key that no object can have")
            # Only texts are keys in JSON. Hashing nested tuples, or many chosen numbers, might take very long.
            key = ForeignValue(type(key).__name__)
        made[key] = built[value]
    return made


def read_pair(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The indexes of a key and a value; index 0 may be omitted."""
    key = value = 0
    while at < end:
        tag = data[at]
        found, at = read_number(data, at + 1)
        if tag == _KEY:
            key = found
        elif tag == _VALUE:
            value = found
        else:
            raise MalformedMessage("a pair of something else than nodes")
    return key, value


_KINDS: Final = {
    1: "ellipsis",
    3: "NotImplementedType",
    9: "bytes",
    15: "set",
    16: "frozenset",
    17: "date",
    18: "time",
    19: "datetime",
    20: "timedelta",
    21: "timezone",
    23: "type",
    26: "builtin_function_or_method",
    27: "PurePosixPath",
    28: "file",
    31: "complex",
    32: "module",
    33: "Decimal",
}
_BIG, _NAMED_TUPLE, _EXCEPTION, _TYPE, _INSTANCE, _FUNCTION, _REPR, _CYCLE = 6, 13, 22, 23, 24, 25, 29, 30


def _decode_other(data: bytes, at: int, end: int, built: list[Any]) -> Any:  # noqa: ANN401  one for each kind
    """Values without a JSON form, large integers, and texts that describe values."""
    tag, start, stop = read_fields(data, at, end)[0]
    kind = tag >> 3
    if kind in {_REPR, _CYCLE}:
        return data[start:stop].decode()
    if kind not in {_BIG, _FUNCTION, _NAMED_TUPLE, _EXCEPTION, _TYPE, _INSTANCE}:
        return ForeignValue(_KINDS.get(kind, "value"))
    fields = Fields(data, start, stop)
    if kind == _BIG:
        size = int.from_bytes(fields.content(2) or b"", "big")
        return -size if fields.number(1) else size
    if kind == _INSTANCE:
        found = built[fields.number(1)]
        return ForeignValue(found.of if isinstance(found, ForeignValue) else "object")
    name = fields.text(1) or ""
    if kind == _FUNCTION:
        return name
    return ForeignValue("type", name) if kind == _TYPE else ForeignValue(name.rpartition(".")[2])


# ---- values as plain JSON, within limits ----
#
# A few bytes in a program can describe an endless value: a list of lists, each a thousand times the same. So the size
# is counted during conversion, which stops as soon as it is too large.

MAX_DEPTH: Final = 60
"""Deepest nesting of lists and objects: a little less than a journal allows."""
_NUMBER_SIZE: Final = 8
_ITEM_OVERHEAD: Final = 12
_SMALL_INT: Final = 2**53


class NotJson(Exception):
    """A value without a JSON form, or too large."""


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
    return _NUMBER_SIZE if kind is int and -_SMALL_INT < value < _SMALL_INT else -1


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
            if not -_SMALL_INT < cast("int", item) < _SMALL_INT:
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
        room.take(_NUMBER_SIZE)
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
