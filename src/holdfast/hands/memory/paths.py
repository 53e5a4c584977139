"""The paths of memory as a model writes them: '/memories/' and the key, with '.md'. Pure.

Keys have no separators. A path with folders is the key with ':' in their place: '/memories/people/ada.md' is the entry
'people:ada', which the mirror has as 'people:ada.md'. So there are no folders to make, and none that are empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.errors import InvalidId
from holdfast.hands.memory.errors import PathInvalid
from holdfast.names import check_name

ROOT: Final = "/memories"
JOINT: Final = ":"
SUFFIX: Final = ".md"


@dataclass(frozen=True, slots=True)
class Place:
    """What a path names: an entry, or all entries whose key begins like a folder. An empty key is the root."""

    key: str
    is_folder: bool = False
    """Whether only a folder can be meant."""
    is_file: bool = False
    """Whether only a file can be meant."""

    @property
    def prefix(self) -> str:
        """What the keys of all that is in this folder begin with."""
        return f"{self.key}{JOINT}" if self.key else ""


def read_path(path: str) -> Place:
    """What a path names; `PathInvalid` says why one names nothing."""
    if path.rstrip("/") == ROOT:
        return Place("", is_folder=True)
    if not path.startswith(f"{ROOT}/"):
        raise PathInvalid(path, f"it does not begin with '{ROOT}/'")
    inner = path.removeprefix(f"{ROOT}/")
    parts = inner.removesuffix("/").split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise PathInvalid(path, "it has an empty, '.' or '..' part")
    if any(JOINT in part for part in parts):
        raise PathInvalid(path, f"it has a '{JOINT}'; folders are separated by '/'")
    is_folder = inner.endswith("/")
    is_file = not is_folder and parts[-1].endswith(SUFFIX) and parts[-1] != SUFFIX
    key = JOINT.join(parts)
    key = key.removesuffix(SUFFIX) if is_file else key
    try:
        check_name("key", key)
    except InvalidId as error:
        raise PathInvalid(path, error.reason) from error
    return Place(key, is_folder, is_file)


def read_file_path(path: str) -> str:
    """The key of the file that a path names."""
    place = read_path(path)
    if place.is_folder:
        raise PathInvalid(path, "it names a folder, and a file is wanted")
    return place.key


def path_of(key: str) -> str:
    """The path of an entry, as a model sees it."""
    return f"{ROOT}/{key.replace(JOINT, '/')}{SUFFIX}"
