"""Bytes on their way into a store: looked at as they come, and kept beside it until they are written, not in memory."""

from __future__ import annotations

import codecs
import hashlib
import tempfile
import threading
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidArgument, PayloadTooLarge, StoreClosed, StoreFull
from holdfast.media import LOOKED_AT, Glance

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK: Final = 1024 * 1024
"""How many bytes are written, or told, at once."""
WINDOW: Final = 4 * CHUNK
"""How many are read at once: a store that keeps them in pages has to find its way to where they begin each time."""


class Spool:
    """Bytes that come in parts. Close it when they are written, or not wanted: a thread that adds more ends then."""

    def __init__(self, folder: Path | None, limit: int) -> None:
        # A file without a name: whatever happens, nothing is left of it. Without a folder it stays in memory.
        kept, where = (0, None) if folder is None else (CHUNK, str(folder))
        self._file = tempfile.SpooledTemporaryFile(max_size=kept, dir=where)  # noqa: SIM115
        self._using = threading.Lock()
        self._closed = False
        self._limit = limit
        self._hash = hashlib.sha256()
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = True
        self._beginning, self._end = b"", b""
        self.size = 0

    def add(self, part: bytes) -> None:
        """Take the next bytes in."""
        if type(part) is not bytes:
            raise InvalidArgument("data", part, "parts that are bytes")
        self.size += len(part)
        if self.size > self._limit:
            raise PayloadTooLarge("the attachment", self.size, self._limit)
        self._hash.update(part)
        self._beginning += part[: LOOKED_AT - len(self._beginning)]
        self._end = (self._end + part)[-LOOKED_AT:] if len(part) < LOOKED_AT else part[-LOOKED_AT:]
        self._decode(part)
        with self._using:
            if self._closed:
                raise StoreClosed
            try:
                self._file.write(part)
            except OSError as error:
                raise StoreFull(f"{error.strerror}, for an attachment that came in parts") from error

    def _decode(self, part: bytes, *, final: bool = False) -> None:
        if self._text:
            try:
                self._utf8.decode(part, final)
            except UnicodeDecodeError:
                self._text = False

    @property
    def digest(self) -> str:
        """The digest of what has come."""
        return self._hash.hexdigest()

    def glance(self) -> Glance:
        """What has come, as far as is needed to say what it is; nothing more is added."""
        self._decode(b"", final=True)
        return Glance(self._beginning, self._end, self.size, lambda: self._text)

    def chunks(self) -> Iterator[bytes]:
        """All of it, from the first byte on."""
        self._file.seek(0)
        while chunk := self._file.read(CHUNK):
            yield chunk

    def whole(self) -> bytes:
        """All of it at once."""
        return b"".join(self.chunks())

    def close(self) -> None:
        """Nobody needs it any more."""
        with self._using:
            self._closed = True
            self._file.close()
