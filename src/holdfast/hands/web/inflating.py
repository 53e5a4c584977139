"""Bodies that come compressed, taken apart within bounds: a bomb is cut when its limit is reached. Pure."""

from __future__ import annotations

import zlib
from typing import Final, Protocol

ACCEPTED: Final = "gzip, deflate"
"""What a request says that it can take."""

MAX_MEMBERS: Final = 1_000
"""How many gzip members one body may have: each costs time, also when it holds nothing."""

_STEP: Final = 256 * 1024


class BodyBroken(ValueError):
    """Bytes that are not what their encoding says."""


class Body(Protocol):
    """Takes the bytes of the wire, gives those that are meant."""

    def feed(self, data: bytes, room: int) -> bytes:
        """At most `room` bytes and one more of what `data` adds; the one more tells that there was no room."""
        ...

    def end(self) -> None:
        """Raise `BodyBroken` when something is missing."""
        ...


def body_of(encoding: str) -> Body | None:
    """What reads a body with this Content-Encoding; None when it is one that was not asked for."""
    match encoding.strip().lower():
        case "" | "identity":
            return _Plain()
        case "gzip" | "x-gzip":
            return _Inflated(gzip=True)
        case "deflate":
            return _Inflated(gzip=False)
        case _:
            return None


class _Inflater(Protocol):
    """What `zlib.decompressobj` gives."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Plain:
    def feed(self, data: bytes, room: int) -> bytes:
        return data[: room + 1]

    def end(self) -> None:
        return


class _Inflated:
    """gzip with any number of members, or deflate with or without the header that it should have."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._members = 0
        self._inflater: _Inflater | None = None
        self._padding = False

    def feed(self, data: bytes, room: int) -> bytes:
        found: list[bytes] = []
        size, full = 0, False
        # A step that came out full may have left something in the inflater, also when it took all input.
        while (data or full) and size <= room and not self._over(data):
            inflater = self._inflater or self._begin(data)
            asked = min(_STEP, room + 1 - size)
            try:
                piece = inflater.decompress(data, asked)
            except zlib.error as error:
                raise BodyBroken(f"it can't be decompressed ({error})") from None
            found.append(piece)
            size += len(piece)
            data, full = inflater.unconsumed_tail, len(piece) == asked
            if inflater.eof:
                data, full = inflater.unused_data, False
                self._inflater = None
        return b"".join(found)

    def end(self) -> None:
        if self._inflater is not None:
            raise BodyBroken("it ends in the middle")

    def _begin(self, data: bytes) -> _Inflater:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise BodyBroken("it is compressed in too many pieces")
        headed = self._gzip or data[0] & 0x0F == 8
        self._inflater = zlib.decompressobj((16 * self._gzip + zlib.MAX_WBITS) * (1 if headed else -1))
        return self._inflater

    def _over(self, data: bytes) -> bool:
        """Whether only padding follows, which everybody ignores."""
        if self._inflater is None and self._members:
            self._padding = self._padding or not self._gzip or not data.startswith(b"\x1f")
        return self._padding
