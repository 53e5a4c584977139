"""Files that go with what is said: images, documents, sounds. Their bytes are kept once, under their digest."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Final

from holdfast.errors import InvalidArgument

_KINDS: Final = {".md": "text/markdown", ".csv": "text/csv", ".webp": "image/webp", ".jsonl": "application/jsonl"}
_LONGEST: Final = 255

FILES_DEPTH: Final = 4
"""How deep in what a tool returns files are looked for."""


class File:
    """Bytes with their media type: ``hf.File(data, "image/png")`` or ``hf.File.read("invoice.pdf")``."""

    __slots__ = ("data", "media_type", "name")

    def __init__(self, data: bytes, media_type: str, *, name: str | None = None) -> None:
        if type(data) is not bytes or not data:
            raise InvalidArgument("file", data, "bytes that are not empty")
        self.data = data
        self.media_type = checked(media_type, name)
        self.name = name

    @classmethod
    def read(cls, path: Path | str, media_type: str | None = None) -> File:
        """The file at `path`; its media type follows from its suffix unless it is given."""
        place = Path(path)
        kind = media_type or _KINDS.get(place.suffix.lower()) or mimetypes.guess_type(place.name)[0]
        if kind is None:
            raise InvalidArgument("file", str(path), "one whose media type is known; pass media_type=")
        try:
            return cls(place.read_bytes(), kind, name=place.name)
        except OSError as error:
            raise InvalidArgument("file", str(path), f"one that can be read ({error.strerror})") from error

    def __repr__(self) -> str:
        return f"File({self.media_type}, {len(self.data):,} bytes)"


def checked(media_type: str, name: str | None) -> str:
    """The media type as it is kept, if both can be."""
    if type(media_type) is not str or not _is_media_type(media_type):
        raise InvalidArgument("media type", media_type, "one such as 'image/png'")
    if name is not None and (type(name) is not str or not name or len(name) > _LONGEST or not name.isprintable()):
        raise InvalidArgument("file name", name, f"up to {_LONGEST} printable characters")
    return media_type.lower()


def _is_media_type(given: str) -> bool:
    kind, slash, rest = given.partition("/")
    return bool(slash and kind and rest and given.isascii() and given.isprintable() and " " not in given)
