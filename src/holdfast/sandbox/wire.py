"""Protocol buffers, as far as a worker speaks them: numbers, texts and messages within messages. Pure.

What a worker says is not trusted: whatever does not fit is `Malformed`, and never read past its end.
"""

from __future__ import annotations

from typing import Final

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


# ---- writing ----


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


# ---- reading ----


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
