"""A JSON array that arrives in pieces, element by element. Pure.

Some providers stream their frames as the elements of one long JSON array. An element is handed out as soon as its last
byte is there, wherever the network cut; what stands between elements is not kept.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.errors import ModelError
from holdfast.models.wire import Frame

MAX_ELEMENT: Final = 64 * 1024 * 1024
"""Longest element, in bytes."""

_OUTSIDE: Final = re.compile(rb'["{}\[\],]')
_INSIDE: Final = re.compile(rb'["\\]')
_BLANK: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"


class ArraySplitter:
    """Cuts an array into frames. Objects that stand there without an array around them are frames as well."""

    __slots__ = ("_base", "_begun", "_depth", "_escaped", "_head", "_kept", "_limit", "_quoted", "_size", "ended")

    def __init__(self, limit: int = MAX_ELEMENT) -> None:
        self._limit = limit
        self._kept: list[bytes] = []
        """What has come of the element that is not whole yet."""
        self._size = 0
        self._begun = False
        self._head: bytes = b""
        """The first bytes, as long as they may be a byte order mark."""
        self._base = 0
        """How deep the elements lie: 1 in an array, 0 without one."""
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self.ended = False
        """Whether the end of the array was seen; what follows it is nobody's."""

    def feed(self, data: bytes) -> list[Frame]:
        """The elements that are whole with these bytes. Raises a `ModelError` where there is no array or object."""
        if not self._begun:
            data = self._begin(data)
        frames: list[Frame] = []
        start = position = 0
        while not self.ended and position < len(data):
            if self._quoted:
                position = self._string(data, position)
                continue
            found = _OUTSIDE.search(data, position)
            if found is None:
                break
            position = found.end()
            if self._whole(found.group()):
                # A bracket that closes the array, and a comma, are no part of the element that they end.
                closed = self._depth == self._base and found.group() in b"}]"
                self._keep(data[start : position if closed else position - 1])
                frames.extend(self._take())
                start = position
        if not self.ended:
            self._keep(data[start:])
        return frames

    def close(self) -> list[Frame]:
        """The end of the body: an element that is not whole by then never will be."""
        self._kept.clear()
        self._size = 0
        return []

    def _begin(self, data: bytes) -> bytes:
        data = self._head + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._head = data
            return b""
        self._head = b""
        data = data.removeprefix(_BOM).lstrip(_BLANK)
        if not data:
            return b""
        if data[:1] not in {b"[", b"{"}:
            raise ModelError("the body is neither a JSON array nor an object", kind="bad_frame", retryable=True)
        self._begun = True
        if data[:1] == b"[":
            self._base = self._depth = 1
            return data[1:]
        return data

    def _string(self, data: bytes, position: int) -> int:
        """Where the search goes on, from inside a string."""
        if self._escaped:
            self._escaped = False
            return position + 1
        found = _INSIDE.search(data, position)
        if found is None:
            return len(data)
        if found.group() == b'"':
            self._quoted = False
        else:
            self._escaped = True
        return found.end()

    def _whole(self, mark: bytes) -> bool:
        """Whether an element is whole with this byte, which stands outside of any string."""
        if mark == b'"':
            self._quoted = True
        elif mark in b"{[":
            self._depth += 1
        elif mark == b",":
            return self._depth == self._base
        else:
            self._depth -= 1
            self.ended = self._depth < self._base
            return self._depth <= self._base
        return False

    def _keep(self, piece: bytes) -> None:
        if not self._kept:
            piece = piece.lstrip(_BLANK)
        if not piece:
            return
        self._size += len(piece)
        if self._size > self._limit:
            message = f"an element of the array is larger than {self._limit:,} bytes"
            raise ModelError(message, kind="bad_frame")
        self._kept.append(piece)

    def _take(self) -> list[Frame]:
        element = b"".join(self._kept).rstrip(_BLANK)
        self._kept.clear()
        self._size = 0
        return [Frame("", element)] if element else []
