"""The paths that a model may name: below the workspace, written with '/', without '..'. Pure."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

from holdfast.hands.files.errors import PathRefused

MAX_DEPTH: Final = 64
MAX_NAME: Final = 255
MAX_PATH: Final = 4_000


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere in the workspace; no parts at all is the workspace itself."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return "/".join(self.parts) or "."

    def encoded(self) -> bytes:
        """As the system takes it."""
        return str(self).encode()

    @property
    def parent(self) -> Place:
        """The directory that holds it."""
        return Place(self.parts[:-1])

    @property
    def name(self) -> bytes:
        """Its last part, as the system takes it."""
        return self.parts[-1].encode()


def read_place(given: str) -> Place:
    """The place that a path names; `PathRefused` says why one names none."""
    reason = _objection(given)
    if reason:
        raise PathRefused(given, reason)
    parts = tuple(part for part in given.split("/") if part not in {"", "."})
    if len(parts) > MAX_DEPTH:
        raise PathRefused(given, f"it is more than {MAX_DEPTH} directories deep")
    if any(len(part.encode()) > MAX_NAME for part in parts):
        raise PathRefused(given, f"a name in it has more than {MAX_NAME} bytes")
    if ".." in parts:
        raise PathRefused(given, "'..' leads upwards; write the path from the workspace on, without '..'")
    if parts[:1] == ("~",):
        raise PathRefused(given, "there is no home directory here; paths begin at the workspace")
    return Place(parts)


def file_place(given: str) -> Place:
    """The place of a file: not the workspace itself, and not a path that ends like a directory."""
    place = read_place(given)
    if not place.parts:
        raise PathRefused(given, "it is the workspace itself; name a file in it")
    if given.endswith(("/", "/.")):
        raise PathRefused(given, "it ends like a directory; name a file")
    return place


def _objection(given: str) -> str | None:
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        return "it has half a surrogate pair, which no path here can have"
    if size > MAX_PATH:
        return f"it has more than {MAX_PATH:,} bytes"
    if any(unicodedata.category(char) == "Cc" for char in given):
        return "it has control characters"
    if "\\" in given:
        return "it has a backslash; directories are separated by '/'"
    if given.startswith("/"):
        return "it is absolute; paths begin at the workspace, so write it without the leading '/'"
    return None


def shown_name(name: bytes) -> str:
    """A name on the disk as text: what is not UTF-8 or can't be printed is escaped."""
    text = name.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
