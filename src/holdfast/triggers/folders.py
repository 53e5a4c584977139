"""Folder watching: scan for files and report the settled ones.

A scan reads names and stamps up to its bound, and follows no symbolic link. `SettlingFiles` folds scans: it reports a
file that has not changed for long enough, and again after a change.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.effects.canonical import digest
from holdfast.errors import HoldfastError, InboxFull, StoreClosed
from holdfast.triggers.definition import WatchSource
from holdfast.triggers.schedules import to_datetime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.triggers.service import Triggers


ANY_DEPTH: Final = "**"
MAX_DEPTH: Final = 32


class FoundFile(NamedTuple):
    """A file in a scan."""

    path: str
    """Relative to the folder."""
    size: int
    modified_ns: int


class FolderListing(NamedTuple):
    """The result of a scan."""

    files: tuple[FoundFile, ...]
    problem: str = ""
    """The reason why files are missing: too many, or an unreadable folder."""


def scan_folder(source: WatchSource) -> FolderListing:
    """Matching files by path. A missing folder gives a problem, not an error."""
    files: list[FoundFile] = []
    try:
        for found in _walk(source.folder, "", source.pattern.split("/"), 0):
            if len(files) == source.most:
                return FolderListing(tuple(sorted(files)), f"there are more than {source.most:,} files")
            files.append(found)
    except OSError as error:
        return FolderListing(tuple(sorted(files)), f"{source.folder}: {error.strerror}")
    return FolderListing(tuple(sorted(files)))


def _walk(folder: str, below: str, parts: Sequence[str], depth: int) -> Iterator[FoundFile]:
    part, rest = parts[0], parts[1:]
    here = not rest or (len(rest) == 1 and part == ANY_DEPTH)  # a file of this folder may match
    folders: list[str] = []
    with os.scandir(os.path.join(folder, below)) as entries:  # noqa: PTH118  names, not paths: it may be any bytes
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif here and entry.is_file(follow_symlinks=False) and _matches(entry.name, parts[-1]):
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    stat = entry.stat(follow_symlinks=False)
                    yield FoundFile(path, stat.st_size, stat.st_mtime_ns)
    if depth >= MAX_DEPTH:
        return
    for path in folders:
        name = path.rpartition("/")[2]
        if part == ANY_DEPTH:
            if not name.startswith("."):
                yield from _inside(folder, path, parts, depth)
            if len(rest) > 1 and _matches(name, rest[0]):
                yield from _inside(folder, path, rest[1:], depth)
        elif rest and _matches(name, part):
            yield from _inside(folder, path, rest, depth)


def _inside(folder: str, path: str, parts: Sequence[str], depth: int) -> Iterator[FoundFile]:
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):  # it was removed, or is unreadable
        yield from _walk(folder, path, parts, depth + 1)


def _matches(name: str, pattern: str) -> bool:
    """Hidden files match only a pattern that begins with a dot."""
    if name.startswith(".") and not pattern.startswith("."):
        return False
    return pattern == ANY_DEPTH or fnmatchcase(name, pattern)


class SettlingFiles:
    """Tracks how long each file has not changed."""

    def __init__(self, settle_ms: int) -> None:
        self._settle_ms = settle_ms
        self._since: dict[FoundFile, int] = {}
        """The files of the last scan, with the time since which each is unchanged."""
        self._reported: set[FoundFile] = set()

    def look(self, files: Sequence[FoundFile], mono: int) -> list[FoundFile]:
        """Settled files that are not reported yet."""
        self._since = {found: self._since.get(found, mono) for found in files}
        self._reported &= self._since.keys()
        return [
            found
            for found, since in self._since.items()
            if mono - since >= self._settle_ms and found not in self._reported
        ]

    def told(self, found: FoundFile) -> None:
        """Mark a file as reported, until it changes."""
        self._reported.add(found)


def content_digest(source: WatchSource, found: FoundFile) -> str:
    """SHA-256 of a file."""
    with open(os.path.join(source.folder, found.path), "rb") as file:  # noqa: PTH118, PTH123
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_key(source: WatchSource, found: FoundFile, content: str = "") -> str:
    """The occurrence key of a file in its present version."""
    path = path_text(found.path)
    known: list[object] = [path, content] if source.identity == "content" else [path, found.size, found.modified_ns]
    return f"file/{digest('file', known)[:40]}"


def file_payload(source: WatchSource, found: FoundFile, content: str = "") -> dict[str, object]:
    """The payload of a file occurrence."""
    told: dict[str, object] = {
        "path": path_text(os.path.join(source.folder, found.path)),  # noqa: PTH118
        "name": path_text(found.path.rpartition("/")[2]),
    }
    if source.identity == "content":
        return told | {"sha256": content}
    modified = to_datetime(found.modified_ns // 1_000_000).isoformat(timespec="milliseconds")
    return told | {"size": found.size, "modified": modified}


def path_text(path: str) -> str:
    """A path as text; bytes that are not UTF-8 are escaped."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


_log: Final = logging.getLogger("holdfast.triggers")
SCAN_RETRY: Final = 1.0
"""Interval of checks whether a disabled trigger is enabled again, in seconds."""


class FolderWatcher:
    """Scans the folder of one trigger at intervals."""

    def __init__(self, name: str, triggers: Triggers, mono: Callable[[], int]) -> None:
        self._name = name
        self._triggers = triggers
        self._mono = mono
        self._source: WatchSource | None = None
        self._settling = SettlingFiles(0)
        self.problem = ""
        """The problem of the last scan, or none."""

    async def run(self) -> None:
        """Scan until cancelled, or until the store is closed."""
        while True:
            try:
                await self.look()
            except StoreClosed:
                return
            except HoldfastError as error:
                self._tell(str(error))
            await asyncio.sleep(SCAN_RETRY if self._source is None else self._source.poll_ms / 1000)

    async def look(self) -> int:
        """Scan once; answers the number of accepted files."""
        source = await self._triggers.enabled_source(self._name)
        if not isinstance(source, WatchSource):
            self._source = None
            return 0
        if source != self._source:
            self._source, self._settling = source, SettlingFiles(source.settle_ms)
        listing = await asyncio.to_thread(scan_folder, source)
        self._tell(listing.problem)
        taken = 0
        for found in self._settling.look(listing.files, self._mono()):
            try:
                taken += await self._reported(source, found)
            except InboxFull:
                break  # the rest waits for room
        return taken

    async def _reported(self, source: WatchSource, found: FoundFile) -> bool:
        try:
            content = "" if source.identity == "stat" else await asyncio.to_thread(content_digest, source, found)
        except OSError as error:
            self._tell(f"{path_text(found.path)}: {error.strerror}")
            return False
        key = file_key(source, found, content)
        fresh = await self._triggers.occurred(self._name, key, file_payload(source, found, content))
        self._settling.told(found)
        return fresh

    def _tell(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning("the trigger %r does not see all files: %s", self._name, problem)
        self.problem = problem
