"""Decoders of response bodies: server-sent events, and the elements of a JSON array. Pure.

`SseDecoder` follows WHATWG, with one exception: it delivers a last event without its empty line, because providers end
their streams that way. The reader finds out whether that event is complete. Strip a byte order mark first.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.errors import EventTooLarge, ModelError
from holdfast.models.dialect import Frame
from holdfast.models.json_values import bad_frame

MAX_EVENT: Final = 32 * 1024 * 1024
"""Largest event, in bytes; a generated image comes in one event."""


class SseDecoder:
    """Decodes one stream of server-sent events."""

    __slots__ = ("_after_cr", "_data", "_event", "_limit", "_size", "_tail")

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._limit = limit
        self._after_cr = False
        """The last piece ended with CR, so a following LF belongs to it."""
        self._tail = bytearray()
        """An incomplete line."""
        self._event = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that this piece completes."""
        between_events = not (self._after_cr or self._tail or self._data or self._event)
        if chunk[:6] == b"data: " and chunk[-2:] == b"\n\n" and between_events:
            # Fast path for most pieces: whole events with one line of data each.
            events = chunk[6:-2].split(b"\n\ndata: ")
            if chunk.count(b"\n") == 2 * len(events) and b"\r" not in chunk and len(chunk) <= self._limit:
                return [Frame("", data) for data in events]
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == 10:
                chunk = chunk[1:]
        if not chunk:
            return []
        if b"\n" not in chunk and b"\r" not in chunk:
            self._tail += chunk
            self._check(len(self._tail))
            return []
        if self._tail:
            self._tail += chunk
            chunk = bytes(self._tail)
            self._tail.clear()
        lines = chunk.splitlines()
        last = chunk[-1]
        if last == 13:
            self._after_cr = True
        elif last != 10:
            self._tail += lines.pop()
        frames = self._read(lines)
        if self._tail:
            self._check(len(self._tail))
        return frames

    def close(self) -> list[Frame]:
        """Return the event that the end of the stream left open."""
        rest = bytes(self._tail)
        self._tail.clear()
        # An empty line ends the open event, if there is one.
        return self._read([rest, b""] if rest else [b""])

    def _read(self, lines: list[bytes]) -> list[Frame]:
        frames: list[Frame] = []
        for line in lines:
            if not line:
                if self._data:
                    data = self._data
                    frames.append(Frame(self._event, data[0] if len(data) == 1 else b"\n".join(data)))
                    self._data = []
                self._event = ""
                self._size = 0
            elif line.startswith(b"data:") or line == b"data":
                self._check(len(line))
                self._size += len(line)
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:") or line == b"event":
                self._event = (line[7:] if line[6:7] == b" " else line[6:]).decode("utf-8", "replace")
            # Comments, ids, reconnection times and unknown fields are ignored.
        return frames

    def _check(self, more: int) -> None:
        if self._size + more > self._limit:
            raise EventTooLarge(self._limit)


MAX_ELEMENT: Final = 64 * 1024 * 1024
"""Largest element, in bytes."""
_OUTSIDE: Final = re.compile(rb'["{}\[\],]')
_INSIDE: Final = re.compile(rb'["\\]')
_BLANK: Final = b" \t\r\n"


class ArraySplitter:
    """Splits a JSON array into frames. Objects without an array around them are frames as well."""

    __slots__ = ("_base", "_begun", "_depth", "_kept", "_limit", "_quoted", "_size", "_skipped", "ended")

    def __init__(self, limit: int = MAX_ELEMENT) -> None:
        self._limit = limit
        self._kept: list[bytes] = []
        """Pieces of the incomplete element."""
        self._size = 0
        self._begun = False
        self._base = 0
        """Depth of the elements: 1 in an array, 0 without one."""
        self._depth = 0
        self._quoted = False
        self._skipped = 0
        """1 if the next piece begins with an escaped character."""
        self.ended = False
        """True if the array has ended. The rest of the body is ignored."""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the elements that these bytes complete. Raises a `ModelError` for a body of another kind."""
        if not self._begun:
            data = self._begin(data)
        frames: list[Frame] = []
        start, position = 0, self._skipped
        while not self.ended and (found := (_INSIDE if self._quoted else _OUTSIDE).search(data, position)):
            mark, position = found.group(), found.end()
            if mark == b'"':
                self._quoted = not self._quoted
            elif mark == b"\\":
                position += 1  # the escaped character may be in the next piece
            elif self._ends_element(mark):
                # The comma after an element, and the bracket that closes the array, are not part of it.
                closed = self._depth == self._base and mark != b","
                self._keep(data[start : position if closed else position - 1])
                if element := b"".join(self._kept).rstrip(_BLANK):
                    frames.append(Frame("", element))
                self.close()
                start = position
        self._skipped = max(position - len(data), 0)
        if not self.ended:
            self._keep(data[start:])
        return frames

    def close(self) -> list[Frame]:
        """Drop the element so far; at the end of the body it is incomplete."""
        self._kept.clear()
        self._size = 0
        return []

    def _begin(self, data: bytes) -> bytes:
        data = data.lstrip(_BLANK)
        if not data:
            return b""
        if data[:1] not in {b"[", b"{"}:
            raise bad_frame("the body is neither a JSON array nor an object")
        self._begun = True
        if data[:1] == b"[":
            self._base = self._depth = 1
            return data[1:]
        return data

    def _ends_element(self, mark: bytes) -> bool:
        """True if an element ends with this byte, which is outside of strings."""
        if mark == b",":
            return self._depth == self._base
        if mark in b"{[":
            self._depth += 1
            return False
        self._depth -= 1
        self.ended = self._depth < self._base
        return self._depth <= self._base

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
