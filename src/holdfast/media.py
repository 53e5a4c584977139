"""Files and their media types, detected from the first bytes. Pure.

The table is our own: it needs only the types that models read and those that a claimed type is compared with.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.errors import InvalidArgument, MediaTypeMismatch

UNKNOWN: Final = "application/octet-stream"
TEXT: Final = "text/plain"
ZIP: Final = "application/zip"
SAMPLE_BYTES: Final = 1 << 16
"""Bytes at the start and at the end that are examined."""
_CONTROLS: Final = bytes(set(range(32)) - set(b"\t\n\r\f\x1b\b"))
_MAGIC: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"%PDF-", "application/pdf"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"FLV\x01", "video/x-flv"),
    (b"\x00\x00\x01\xba", "video/mpeg"),
    (b"\x00\x00\x01\xb3", "video/mpeg"),
    (b"FORM", "audio/aiff"),
    (b"PK\x03\x04", ZIP),
    (b"PK\x05\x06", ZIP),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"{\\rtf", "application/rtf"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
    (b"\x7fELF", "application/x-executable"),
)
"""First bytes of files, and their media types."""
_RIFF: Final = {b"WAVE": "audio/wav", b"WEBP": "image/webp", b"AVI ": "video/x-msvideo"}
_BRANDS: Final = {
    **dict.fromkeys((b"heic", b"heix", b"hevc", b"heim", b"heis"), "image/heic"),
    **dict.fromkeys((b"mif1", b"msf1"), "image/heif"),
    **dict.fromkeys((b"avif", b"avis"), "image/avif"),
    **dict.fromkeys((b"M4A ", b"M4B "), "audio/mp4"),
    b"qt  ": "video/quicktime",
}
"""Brands of the MP4 family."""
_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
_OFFICE_FOLDERS: Final = (
    (b"word/", f"{_OFFICE}wordprocessingml.document"),
    (b"xl/", f"{_OFFICE}spreadsheetml.sheet"),
    (b"ppt/", f"{_OFFICE}presentationml.presentation"),
)
"""Folders inside archives that are documents."""
_ALIASES: Final = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "image/x-ms-bmp": "image/bmp",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/mp3": "audio/mpeg",
    "audio/x-flac": "audio/flac",
    "audio/x-aiff": "audio/aiff",
    "audio/x-m4a": "audio/mp4",
    "audio/m4a": "audio/mp4",
    "application/x-pdf": "application/pdf",
    "application/x-zip-compressed": ZIP,
    "application/x-gzip": "application/gzip",
    "text/rtf": "application/rtf",
}
"""Other names of the same types."""
_CONTAINERS: Final = {
    "audio/ogg": ("audio/opus", "audio/vorbis", "video/ogg", "application/ogg"),
    "video/webm": ("audio/webm", "video/x-matroska", "audio/x-matroska"),
    "video/mp4": ("audio/mp4", "audio/aac", "application/mp4", "video/x-m4v", "video/3gpp", "audio/3gpp"),
    "audio/mp4": ("video/mp4", "audio/aac"),
    "video/quicktime": ("video/mp4",),
    "image/heif": ("image/heic", "image/avif"),
    "image/heic": ("image/heif",),
    "audio/aiff": ("audio/x-aiff",),
    "application/x-ole-storage": (
        "application/msword",
        "application/vnd.ms-excel",
        "application/vnd.ms-powerpoint",
        "application/vnd.ms-outlook",
    ),
}
"""Other types that files of this detected type may have."""


class FileSample(NamedTuple):
    """The parts of a file that are needed to detect its media type."""

    beginning: bytes
    end: bytes
    size: int
    utf8: Callable[[], bool]
    """True if the whole file is UTF-8."""


def sample_of(data: bytes) -> FileSample:
    """The sample of bytes in memory."""
    return FileSample(data[:SAMPLE_BYTES], data[-SAMPLE_BYTES:], len(data), lambda: _is_utf8(data))


def sniff_media_type(data: bytes | FileSample) -> str | None:
    """Detect the media type; ``text/plain`` for any text in UTF-8, None if it is unknown."""
    seen = sample_of(data) if isinstance(data, bytes) else data
    return _type_by_magic(seen) or _type_by_frame(seen.beginning) or (TEXT if _reads_as_text(seen) else None)


def _type_by_magic(seen: FileSample) -> str | None:
    for mark, kind in _MAGIC:
        if seen.beginning.startswith(mark) and (mark not in _AMBIGUOUS_MAGIC or _AMBIGUOUS_MAGIC[mark](seen)):
            return _archive_type(seen) if kind == ZIP else kind
    return None


def _type_by_frame(data: bytes) -> str | None:
    if data.startswith(b"RIFF") and data[8:12] in _RIFF:
        return _RIFF[data[8:12]]
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "video/mp4")
    if _is_mpeg_audio(data):
        return "audio/mpeg"
    if len(data) > 6 and data[0] == 0xFF and data[1] & 0xF6 == 0xF0:
        return "audio/aac"
    return None


def _reads_as_text(seen: FileSample) -> bool:
    beginning = seen.beginning
    return len(beginning) == len(beginning.translate(None, _CONTROLS)) and seen.utf8()


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def media_type_of(data: bytes | FileSample, claimed: str | None, guessed: str | None = None) -> str:
    """The media type of bytes. The type `guessed` from the file name counts if the content allows it.

    Raises `MediaTypeMismatch` if the content contradicts the `claimed` type.
    """
    found = sniff_media_type(data)
    if claimed is not None and (usual := normalize_media_type(claimed)) != UNKNOWN:
        if not _is_compatible(usual, found):
            raise MediaTypeMismatch(claimed, found)
        return usual
    likely = UNKNOWN if guessed is None else normalize_media_type(guessed)
    return likely if likely != UNKNOWN and _is_compatible(likely, found) else found or UNKNOWN


def normalize_media_type(media_type: str) -> str:
    """A media type in its usual form: without parameters, in small letters, by its usual name."""
    bare = media_type.partition(";")[0].strip().lower()
    return _ALIASES.get(bare, bare)


def _is_compatible(claimed: str, found: str | None) -> bool:
    if found == claimed:
        return True
    if found == TEXT:  # markup, source code, tables and the like are all text; types with magic bytes are not
        return claimed not in _RECOGNIZABLE
    if found is None:
        return claimed not in _RECOGNIZABLE and not claimed.startswith("text/")
    if found == ZIP:
        return claimed.startswith("application/") and claimed not in _RECOGNIZABLE
    if found.startswith((_OFFICE, "application/vnd.oasis.")) or found.endswith("+zip"):
        return claimed == ZIP
    return claimed in _CONTAINERS.get(found, ())


def _archive_type(seen: FileSample) -> str:
    data, end = seen.beginning, seen.end
    if data[30:38] == b"mimetype":  # the first entry of archives that name their own type
        size = int.from_bytes(data[22:26], "little")
        said = data[38 : 38 + min(size, 128)]
        if said == b"application/epub+zip" or said.startswith(b"application/vnd.oasis.opendocument."):
            return normalize_media_type(said.decode("ascii", "replace"))
    if b"[Content_Types].xml" in data or b"[Content_Types].xml" in end:
        for mark, kind in _OFFICE_FOLDERS:
            if mark in data or mark in end:
                return kind
    return ZIP


def _is_mpeg_audio(data: bytes) -> bool:
    """True for a frame of MPEG audio, layer 1 to 3: eleven sync bits, and no reserved value."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return False
    version, layer = data[1] >> 3 & 3, data[1] >> 1 & 3
    return version != 1 and layer != 0 and data[2] >> 4 not in {0, 15} and data[2] >> 2 & 3 != 3


_AMBIGUOUS_MAGIC: Final[dict[bytes, Callable[[FileSample], bool]]] = {
    b"BM": lambda seen: int.from_bytes(seen.beginning[2:6], "little") == seen.size,
    b"ID3": lambda seen: seen.beginning[3:4] in {b"\2", b"\3", b"\4"},
    b"FORM": lambda seen: seen.beginning[8:11] == b"AIF",
}
"""First bytes that a text may have, too, and the check that tells them apart."""
_RECOGNIZABLE: Final = frozenset(
    (
        *(kind for _, kind in _MAGIC if kind not in {ZIP, "application/x-executable"}),
        *_RIFF.values(),
        *_BRANDS.values(),
        *(other for others in _CONTAINERS.values() for other in others),
        *("video/mp4", ZIP, *(kind for _, kind in _OFFICE_FOLDERS)),
    )
)
"""Types with files that are always recognized: an unrecognized file has none of them."""

_TYPES_BY_SUFFIX: Final = {
    ".md": "text/markdown",
    ".csv": "text/csv",
    ".webp": "image/webp",
    ".jsonl": "application/jsonl",
}
_MEDIA_TYPE: Final = re.compile(r"[!-.0-~]+/[!-~]+")
_MAX_FILE_NAME: Final = 255
FILES_DEPTH: Final = 4
"""Depth to which the return value of a tool is searched for files."""


class File:
    """Bytes with their media type: ``hf.File(data, "image/png")`` or ``hf.File.read("invoice.pdf")``."""

    __slots__ = ("data", "media_type", "name")

    def __init__(self, data: bytes, media_type: str, *, name: str | None = None) -> None:
        if type(data) is not bytes or not data:
            raise InvalidArgument("file", data, "bytes that are not empty")
        self.data = data
        self.media_type = check_media_type(media_type, name)
        self.name = name

    @classmethod
    def read(cls, path: Path | str, media_type: str | None = None) -> File:
        """The file at `path`; its suffix decides the media type unless you pass one."""
        place = Path(path)
        kind = media_type or _TYPES_BY_SUFFIX.get(place.suffix.lower()) or mimetypes.guess_type(place.name)[0]
        if kind is None:
            raise InvalidArgument("file", str(path), "one whose media type is known; pass media_type=")
        try:
            return cls(place.read_bytes(), kind, name=place.name)
        except OSError as error:
            raise InvalidArgument("file", str(path), f"one that can be read ({error.strerror})") from error

    def __repr__(self) -> str:
        return f"File({self.media_type}, {len(self.data):,} bytes)"


def check_media_type(media_type: str, name: str | None) -> str:
    """Check a media type and a file name; returns the type in lower case."""
    if type(media_type) is not str or not _MEDIA_TYPE.fullmatch(media_type):
        raise InvalidArgument("media type", media_type, "one such as 'image/png'")
    if name is not None and (type(name) is not str or not name or len(name) > _MAX_FILE_NAME or not name.isprintable()):
        raise InvalidArgument("file name", name, f"up to {_MAX_FILE_NAME} printable characters")
    return media_type.lower()
