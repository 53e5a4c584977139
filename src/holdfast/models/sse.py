"""Server-sent events: bytes in any pieces, frames out. Pure.

As WHATWG says it, but for one thing: an event that the end of the stream leaves without its empty line is delivered,
because providers end their last event that way, and whoever reads it can tell whether it is whole.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import EventTooLarge
from holdfast.models.wire import Frame

MAX_EVENT: Final = 32 * 1024 * 1024
"""Largest event, in bytes; an image that a model made comes in one."""

_BOM: Final = b"\xef\xbb\xbf"


class SseDecoder:
    """The state of one stream: `feed` gives the frames that a piece completes, `close` what is left at the end."""

    __slots__ = ("_after_cr", "_data", "_event", "_head", "_limit", "_size", "_tail")

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._limit = limit
        self._head: bytes | None = b""
        """The first bytes, while they may be a byte order mark; None afterwards."""
        self._after_cr = False
        """The last piece ended with CR: an LF that follows belongs to it."""
        self._tail = bytearray()
        """A line whose end has not come."""
        self._event = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that are whole now."""
        if self._head is not None:
            chunk = self._started(chunk)
        if chunk[:6] == b"data: " and chunk[-2:] == b"\n\n" and self._is_between_events():
            # As most pieces are: whole events, and nothing but one line of data in each.
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
        """The event that the end of the stream left open, if there is one."""
        rest = bytes(self._tail)
        self._tail.clear()
        # An empty line ends an event; one more does nothing where there is none.
        return self._read([rest, b""] if rest else [b""])

    def _is_between_events(self) -> bool:
        """Whether the last event ended with the piece before."""
        return not (self._after_cr or self._tail or self._data or self._event or self._head)

    def _started(self, chunk: bytes) -> bytes:
        head = (self._head or b"") + chunk
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_BOM)

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
            elif line.startswith(b"data:"):
                self._check(len(line))
                self._size += len(line)
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._event = (line[7:] if line[6:7] == b" " else line[6:]).decode("utf-8", "replace")
            elif line == b"data":
                self._check(len(line))
                self._size += len(line)
                self._data.append(b"")
            elif line == b"event":
                self._event = ""
            # The rest are comments, ids, times to reconnect, and what nobody knows.
        return frames

    def _check(self, more: int) -> None:
        if self._size + more > self._limit:
            raise EventTooLarge(self._limit)
