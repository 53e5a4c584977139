"""Output of any size within a bound: its beginning and its end, cut where lines end. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shown:
    """What is left of an output."""

    text: str
    size: int
    """How many bytes there were."""
    left_out: int
    """How many of them are not shown."""
    replaced: bool
    """Whether some of what is shown was not UTF-8."""


class Clip:
    """Takes output as it comes, and keeps no more than about three times `limit` bytes of it."""

    __slots__ = ("_head", "_lines", "_room", "_size", "_tail")

    def __init__(self, limit: int) -> None:
        self._room = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0
        self._lines = 0

    def add(self, chunk: bytes) -> None:
        """The next bytes of the output."""
        self._size += len(chunk)
        self._lines += chunk.count(b"\n")
        free = self._room - len(self._head)
        if free > 0:
            self._head += chunk[:free]
            chunk = chunk[free:]
        self._tail += chunk[-self._room :] if len(chunk) > self._room else chunk
        if len(self._tail) > 2 * self._room:  # not with every chunk: each time costs a copy
            del self._tail[: -self._room]

    def shown(self) -> Shown:
        """What is kept, with a line in the place of what is not."""
        tail = bytes(self._tail[-self._room :]) if len(self._tail) > self._room else bytes(self._tail)
        head = bytes(self._head)
        if len(head) + len(tail) == self._size:
            text, replaced = _decoded(head + tail)
            return Shown(text, self._size, 0, replaced)
        head, tail = _whole_head(head), _whole_tail(tail)
        left_out = self._size - len(head) - len(tail)
        lines = self._lines - head.count(b"\n") - tail.count(b"\n")
        before, spoiled = _decoded(head)
        after, also = _decoded(tail)
        gap = "" if before.endswith("\n") else "\n"
        marker = f"{gap}[... {left_out:,} bytes, {lines:,} line ends left out ...]\n"
        return Shown(before + marker + after, self._size, left_out, spoiled or also)


class Notes:
    """Output as notes for those who watch: whole lines, or what there is of one that does not end."""

    __slots__ = ("_data", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = b""

    def add(self, chunk: bytes) -> None:
        """The next bytes of the output. Of a flood only the end is kept."""
        self._data = (self._data + chunk)[-4 * self._limit :]

    def take(self) -> str | None:
        """What came since the last note, the newest of it if it is much; None when there is nothing to tell."""
        end = self._data.rfind(b"\n") + 1
        if not end:
            if len(self._data) < self._limit:
                return None
            end = len(_whole_head(self._data))
        told, self._data = self._data[:end], self._data[end:]
        return self._note(told)

    def rest(self) -> str | None:
        """What is left when the output has ended."""
        told, self._data = self._data, b""
        return self._note(told)

    def _note(self, data: bytes) -> str | None:
        return _decoded(data)[0].rstrip("\n")[-self._limit :] or None


def _decoded(data: bytes) -> tuple[str, bool]:
    try:
        return data.decode(), False
    except UnicodeDecodeError:
        return data.decode(errors="replace"), True


def _whole_head(head: bytes) -> bytes:
    """The head up to the end of its last line; one long line is cut between two characters."""
    end = head.rfind(b"\n") + 1
    if end:
        return head[:end]
    for back in range(1, min(4, len(head)) + 1):  # a character has at most four bytes, its first says how many
        first = head[-back]
        if first >= 0xC0:
            length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return head[:-back] if length > back else head
        if first < 0x80:
            break
    return head


def _whole_tail(tail: bytes) -> bytes:
    """The tail from the beginning of its first line; one long line is cut between two characters."""
    begin = tail.find(b"\n") + 1
    if 0 < begin < len(tail):
        return tail[begin:]
    start = 0
    while start < min(3, len(tail)) and 0x80 <= tail[start] < 0xC0:
        start += 1
    return tail[start:]
