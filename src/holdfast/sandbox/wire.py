"""Protocol buffers, as far as a worker speaks them: numbers, texts and messages within messages. Pure.

What a worker says is not trusted: whatever does not fit is `Malformed`, and never read past its end.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.sandbox.values import Foreign

if TYPE_CHECKING:
    import datetime as dt


VARINT: Final = 0
FIXED: Final = 1
LENGTH: Final = 2
_SMALL: Final = 0x80
_MOST_BITS: Final = 70
_SHORT: Final = 5
MOST_FIELDS: Final = 100_000
"""How many fields a message may have: what is read of them takes far more room than they do."""


class Malformed(Exception):
    """Bytes that no worker sends that is in its right mind."""


def number(value: int) -> bytes:
    """A number that is not negative."""
    if value < _SMALL:
        return _BYTES[value]
    made = bytearray()
    while value >= _SMALL:
        made.append(value & 0x7F | _SMALL)
        value >>= 7
    made.append(value)
    return bytes(made)


def counted(field: int, value: int) -> bytes:
    """A field that is a number."""
    return number(field << 3) + number(value)


def part(field: int, content: bytes) -> bytes:
    """A field that is a text, bytes or a message."""
    return number(field << 3 | LENGTH) + number(len(content)) + content


def text(field: int, value: str) -> bytes:
    """A field that is a text. Half of a surrogate pair becomes a question mark."""
    return part(field, value.encode(errors="replace"))


def framed(message: bytes) -> bytes:
    """A message as it is sent, behind its length."""
    return len(message).to_bytes(4, "little") + message


_BYTES: Final = tuple(bytes((value,)) for value in range(_SMALL))


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
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
        if shift > _MOST_BITS:
            raise Malformed("a number without an end")


def read_part(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where the content of a field begins and ends, of which only the tag was read."""
    size = data[at]
    at += 1
    if size >= _SMALL:
        size, at = read_number(data, at - 1)
    stop = at + size
    if stop > end:
        raise Malformed("a field that is longer than its message")
    return at, stop


def read_text(data: bytes, start: int, stop: int) -> str:
    """The text of a field."""
    return data[start:stop].decode()


def fields(data: bytes, at: int, end: int) -> list[tuple[int, int, int]]:
    """The fields of a message: the tag, and its number and 0, or where its content begins and ends."""
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
        elif kind in {FIXED, _SHORT}:
            start, at = at, at + (8 if kind == FIXED else 4)
            found.append((tag, start, at))
        else:
            raise Malformed("a field of an unknown kind")
        if len(found) > MOST_FIELDS:
            raise Malformed("more fields than any message has")
    if at != end:
        raise Malformed("a field that is longer than its message")
    return found


def numbers(data: bytes, at: int, end: int) -> list[int]:
    """Many numbers in one field."""
    chunk = data[at:end]
    if chunk.isascii():  # each of them is one byte
        return list(chunk)
    found: list[int] = []
    while at < end:
        value, at = read_number(data, at)
        found.append(value)
    if at != end:
        raise Malformed("numbers that are longer than their field")
    return found


_MOST: Final = 2**63
_DOUBLE: Final = struct.Struct("<d")
_WIDER: Final = 8
"""A value takes at most so many times the bytes here that it is counted with as JSON."""
_SPARE: Final = 1024


class TooLarge(Exception):
    """More than there is room for, however it is written."""


_NONE: Final = part(2, b"")
_TRUE: Final = counted(4, 1)
_FALSE: Final = counted(4, 0)
_FEW: Final = tuple(part(2, counted(5, value << 1)) for value in range(64))
_ONE: Final = counted(1, 1)


def arena(*values: object) -> tuple[bytes, list[int]]:
    """The nodes of these values, and which of them each is. `TypeError` for what a program can't be given."""
    nodes: list[bytes] = []
    roots = [_add(value, nodes) for value in values]
    return counted(1, len(nodes)) + b"".join(nodes), roots


def one(value: object) -> tuple[bytes, int]:
    """The nodes of one value, and which of them it is."""
    kind = type(value)
    if kind is int and 0 <= cast("int", value) < len(_FEW):
        return _ONE + _FEW[cast("int", value)], 0
    nodes: list[bytes] = []
    root = _add(value, nodes)
    return counted(1, len(nodes)) + b"".join(nodes), root


def function(name: str) -> bytes:
    """The nodes of a function of the host."""
    return _ONE + part(2, part(25, part(1, name.encode())))


def _add(value: Any, nodes: list[bytes]) -> int:  # noqa: ANN401  whatever a host gives
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anything
    if kind is str:
        made = part(8, value.encode(errors="replace"))
    elif kind is int:
        made = _whole(value)
    elif kind is dict:
        made = part(14, _pairs(value, nodes))
    elif kind is list or kind is tuple:
        items = b"".join([number(_add(item, nodes)) for item in value])
        made = part(11 if kind is list else 12, part(1, items) if items else b"")
    elif value is None:
        made = _NONE
    elif kind is bool:
        made = _TRUE if value else _FALSE
    elif kind is float:
        made = number(7 << 3 | FIXED) + _DOUBLE.pack(value)
    else:
        message = f"a {kind.__name__} can't be given to a program"
        raise TypeError(message)
    nodes.append(part(2, made))
    return len(nodes) - 1


def _whole(value: int) -> bytes:
    if -_MOST <= value < _MOST:
        return counted(5, value << 1 if value >= 0 else ~(value << 1))
    size = abs(value)
    magnitude = part(2, size.to_bytes((size.bit_length() + 7) // 8, "big"))
    return part(6, counted(1, 1) + magnitude if value < 0 else magnitude)


def _pairs(value: dict[object, object], nodes: list[bytes]) -> bytes:
    return b"".join(
        [part(1, counted(1, _add(key, nodes)) + counted(2, _add(item, nodes))) for key, item in value.items()]
    )


def day(value: dt.date) -> bytes:
    """The nodes of a date."""
    return _ONE + part(2, part(17, _date(value)))


def moment(value: dt.datetime, zone: str | None) -> bytes:
    """The nodes of a date with a time; `zone` is the name that its time zone was given."""
    offset = value.utcoffset()
    made = _date(value) + _time(value)
    if offset is not None:
        seconds = round(offset.total_seconds())
        made += counted(8, seconds if seconds >= 0 else 2**64 + seconds)
        made += b"" if zone is None else text(9, zone)
    return _ONE + part(2, part(19, made))


def _date(value: dt.date) -> bytes:
    return counted(1, value.year) + counted(2, value.month) + counted(3, value.day)


def _time(value: dt.datetime) -> bytes:
    return counted(4, value.hour) + counted(5, value.minute) + counted(6, value.second) + counted(7, value.microsecond)


def values(data: bytes, at: int, end: int, room: int) -> list[Any]:  # noqa: PLR0912  one branch for each kind
    """What the nodes of a message stand for; `TooLarge` if that is surely more than `room` bytes of JSON."""
    if end - at > _WIDER * room + _SPARE:
        raise TooLarge
    built: list[Any] = []
    while at < end:
        tag = data[at]
        if tag != _NODE:
            _, at = read_number(data, at + 1)  # how many there are
            if tag != _COUNT:
                raise Malformed("something that is no node among nodes")
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
            built.append(_other(data, start - 1, at, built))
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
        raise Malformed("a list of something else than nodes")
    begin, stop = read_part(data, at + 1, end)
    return [built[index] for index in numbers(data, begin, stop)]


def _read_pairs(data: bytes, at: int, end: int, built: list[Any]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    while at < end:
        if data[at] != _PACKED:
            raise Malformed("an object of something else than pairs")
        begin, at = read_part(data, at + 1, end)
        key, value = pair(data, begin, at)
        made[_key(built[key])] = built[value]
    return made


def _key(found: object) -> object:
    """A key that is no text has no place in JSON. To hash a tuple of tuples, or many chosen numbers, may take ages."""
    if type(found) is str or isinstance(found, Foreign):
        return found
    if isinstance(found, list | dict):
        raise Malformed("a key that no object can have")
    return Foreign(type(found).__name__)


def pair(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The nodes of a key and a value. The first node goes without saying."""
    key = value = 0
    while at < end:
        tag = data[at]
        found, at = read_number(data, at + 1)
        if tag == _KEY:
            key = found
        elif tag == _VALUE:
            value = found
        else:
            raise Malformed("a pair of something else than nodes")
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


def _other(data: bytes, at: int, end: int, built: list[Any]) -> Any:  # noqa: ANN401, PLR0911  one for each kind
    """What no JSON value stands for; a large number; and texts that stand for what has no value at all."""
    tag, start, stop = fields(data, at, end)[0]
    kind = tag >> 3
    if kind == _BIG:
        return _big(data, start, stop)
    if kind in {_REPR, _CYCLE}:
        return data[start:stop].decode()
    if kind == _FUNCTION:
        return _named(data, start, stop)
    if kind in {_NAMED_TUPLE, _EXCEPTION}:
        return Foreign(_named(data, start, stop).rpartition(".")[2])
    if kind == _TYPE:
        return Foreign("type", _named(data, start, stop))
    if kind == _INSTANCE:
        return Foreign(_class_of(data, start, stop, built))
    return Foreign(_KINDS.get(kind, "value"))


def _named(data: bytes, at: int, end: int) -> str:
    """The name that comes first."""
    for tag, start, stop in fields(data, at, end):
        if tag == _PACKED:
            return data[start:stop].decode()
    return ""


def _class_of(data: bytes, at: int, end: int, built: list[Any]) -> str:
    index = next((value for tag, value, _ in fields(data, at, end) if tag == _KEY), 0)
    found = built[index]
    return found.of if isinstance(found, Foreign) else "object"


def _big(data: bytes, at: int, end: int) -> int:
    negative, size = False, 0
    for tag, start, stop in fields(data, at, end):
        if tag == _KEY:
            negative = bool(start)
        elif tag == _VALUE | LENGTH:
            size = int.from_bytes(data[start:stop], "big")
    return -size if negative else size
