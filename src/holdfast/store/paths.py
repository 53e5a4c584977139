"""The paths of a store: the database file, and the files that Holdfast keeps beside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from holdfast.names import STORE_FOLDER

FOLDER: Final = STORE_FOLDER
"""The folder of stores. No toolkit can reach it, even inside a workspace."""
_SUFFIXES: Final = ("", "-wal", "-shm", "-journal", ".key", ".log")


def memory_folder(store: Path | str) -> Path:
    """The folder that mirrors the memory of the store in this file."""
    path = Path(store)
    return path.with_name(f"{path.name}.memory")


def key_file(store: Path | str) -> Path:
    """The key file of a store: beside the real file, even if a link opens it."""
    path = Path(os.path.realpath(store))
    return path.with_name(f"{path.name}.key")


def live_folder(store: Path | str) -> Path:
    """The folder with the sockets of the processes that drive a store: beside the real file, like its key."""
    path = Path(os.path.realpath(store))
    return path.with_name(f"{path.name}.live")


def in_store_folder(path: str) -> bool:
    """True if a real path is a store folder or inside one, in upper or lower case."""
    return any(name.casefold() == FOLDER for name in path.split("/"))


def real_places(store: Path | str) -> tuple[str, ...]:
    """The real paths of all files of a store, existing or not, and of the links to them."""
    named = os.path.abspath(store)  # noqa: PTH100  links are resolved below
    found: dict[str, None] = {}
    for path in (named, os.path.realpath(named)):
        folder = os.path.realpath(os.path.dirname(path))  # noqa: PTH120
        for suffix in (*_SUFFIXES, ".memory", ".live"):
            place = os.path.join(folder, os.path.basename(path) + suffix)  # noqa: PTH118, PTH119
            found[place] = None
            found[os.path.realpath(place)] = None
    return tuple(found)
