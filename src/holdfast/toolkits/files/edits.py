"""Exact replacement: what a text becomes, why it does not, and whether it was done already. Pure."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError
from holdfast.toolkits.files.pages import Page, decoded, numbered
from holdfast.toolkits.files.workspace import (
    EditMismatch,
    FileChanged,
    FileFailed,
    FileMissing,
    FileTooLarge,
    NotText,
    PathProtected,
    PathRefused,
    Place,
    is_repository,
    read_all,
    told,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.toolkits.files.workspace import FileLimits, Protection, Workspace


_TOLD: Final = 10
_CONTEXT: Final = 3


@dataclass(frozen=True, slots=True)
class Edited:
    """The text after the edit."""

    text: str
    count: int
    first_line: int
    """Where the first replacement begins."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why nothing is replaced."""

    reason: str


class Trace(Enum):
    """What a text says about an edit that may or may not have been made."""

    MADE = "made"
    NOT_MADE = "not made"
    UNCLEAR = "unclear"


def replace(text: str, old: str, new: str, *, every: bool) -> Edited | Refused:
    """`text` with `old` replaced by `new`: the only place where it is, or every place.

    In a text whose lines all end in CR LF, `old` and `new` may be written with plain line ends; the text keeps its own.
    """
    if not old:
        return Refused("the text to replace is empty; use write_file to write a whole file")
    if old == new:
        return Refused("the text to replace and the new text are the same")
    if _is_crlf(text) and "\r" not in old + new:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    count = text.count(old)
    if not count:
        return Refused(_not_found(text, old))
    # Overlapping places count: in "aaa" there are two places where "aa" could be replaced.
    places = _places(text, old, _TOLD + 1)
    if len(places) > 1 and not every:
        return Refused(_several(text, places))
    return Edited(text.replace(old, new), count, _line_of(text, places[0]))


def trace(text: str, old: str, new: str) -> Trace:
    """Whether this edit was made, if nobody else has touched the text.

    When in doubt it is unclear. `NOT_MADE` also stands for an edit that could not be made: it will say so itself.
    """
    if _is_crlf(text) and "\r" not in old + new:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    if new and new not in text:
        return Trace.NOT_MADE
    return Trace.UNCLEAR if old in text else Trace.MADE


def _is_crlf(text: str) -> bool:
    return "\r\n" in text and text.count("\r\n") == text.count("\n")


def _places(text: str, old: str, limit: int) -> list[int]:
    found: list[int] = []
    at = text.find(old)
    while at >= 0 and len(found) < limit:
        found.append(at)
        at = text.find(old, at + 1)
    return found


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _several(text: str, places: list[int]) -> str:
    lines = ", ".join(str(_line_of(text, at)) for at in places[:_TOLD])
    more = " and more" if len(places) > _TOLD else ""
    return (
        f"the text to replace is there several times (it begins in line {lines}{more}); "
        "give more of the text around it so that it is there once, or set all to true"
    )


def _not_found(text: str, old: str) -> str:
    reason = "the text to replace is not in it; it must be the same to the last space, without line numbers"
    first = next((line for line in old.splitlines() if line.strip()), "")
    wanted = " ".join(first.split())
    near = (n for n, line in enumerate(text.splitlines(), 1) if wanted and " ".join(line.split()) == wanted)
    number = next(near, None)
    return f"{reason}. Line {number} is like its first line; read the file there" if number else reason


def excerpt(text: str, first_line: int, new: str, *, line_chars: int) -> tuple[int, tuple[str, ...]]:
    """The lines around the first replacement: the number of the first of them, and the lines."""
    begin = max(first_line - _CONTEXT, 1)
    end = min(first_line + new.count("\n"), first_line + 2 * _CONTEXT) + _CONTEXT
    lines = re.split("\r?\n", text)
    if lines[-1] == "":
        lines.pop()
    return begin, tuple(line[:line_chars] for line in lines[begin - 1 : end])


_PATIENCE: Final = 5.0
_PAUSE: Final = 0.01
_SPLIT: Final = "split it into several files"
# An advisory lock is a courtesy between writers; where the file system has none, the check for changes remains.
_NO_LOCKS: Final = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes below one workspace, within limits, and never what is protected.

    No link is followed on the way to what is written: a path that is written is the path that it says.
    """

    workspace: Workspace
    protection: Protection
    limits: FileLimits

    def write(self, place: Place, content: str) -> str:
        """Make or replace a file."""
        data = self._data(place, content)
        self._check(place)
        with self._directory(place.parent, make=True) as below, _locked(below, str(place)):
            old = self._existing(below, place)
            self._put(below, place, data, old)
        lines = content.count("\n") + (not content.endswith("\n") and bool(content))
        return f"{'Replaced' if old else 'Created'} {place}: {lines:,} lines, {len(data):,} bytes."

    def edit(self, place: Place, old: str, new: str, *, every: bool) -> str:
        """Replace a piece of a file."""
        self._check(place)
        with self._directory(place.parent) as below, _locked(below, str(place)):
            before, text = self._read(below, place)
            done = replace(text, old, new, every=every)
            if isinstance(done, Refused):
                raise EditMismatch(str(place), done.reason)
            self._put(below, place, self._data(place, done.text), before)
        return self._said(place, done, new)

    def find_out(self, place: Place, old: str, new: str) -> str | None:
        """What became of an edit that was interrupted: what it would have said, None if it was not made."""
        self._check(place)
        with self._directory(place.parent) as below:
            _, text = self._read(below, place)
        match trace(text, old, new):
            case Trace.MADE:
                return f"Edited {place}."
            case Trace.NOT_MADE:
                return None
            case Trace.UNCLEAR:
                raise EditMismatch(str(place), "it can't be told whether an interrupted edit was made")

    def _check(self, place: Place) -> None:
        rule = self.protection.rule_for(place.parts)
        if rule is not None:
            raise PathProtected(str(place), rule)
        for depth in range(len(place.parts) if self.protection.repositories else 0):
            if self._is_repository(Place(place.parts[:depth])):
                raise PathProtected(str(place), "a git directory")

    def _is_repository(self, place: Place) -> bool:
        try:
            with self.workspace.directory(place.encoded(), str(place), follow=False) as below:
                return is_repository(below)
        except HoldfastError:
            return False  # a directory that can't be opened is not written to either

    def _data(self, place: Place, content: str) -> bytes:
        try:
            data = content.encode()
        except UnicodeEncodeError as error:
            raise NotText(str(place), "the new text has half a surrogate pair") from error
        if len(data) > self.limits.write_bytes:
            raise FileTooLarge(f"the new text of {place}", len(data), self.limits.write_bytes, _SPLIT)
        return data

    def _read(self, below: int, place: Place) -> tuple[os.stat_result, str]:
        label = str(place)
        with self.workspace.file(place.name, label, below=below, follow=False) as number:
            before = os.fstat(number)
            data = read_all(number, label, self.limits.write_bytes, "it is too large to be edited")
        text = "".join(decoded([data], label))
        return before, f"\ufeff{text}" if data.startswith(b"\xef\xbb\xbf") else text

    def _said(self, place: Place, done: Edited, new: str) -> str:
        begin, lines = excerpt(done.text, done.first_line, new, line_chars=self.limits.line_chars)
        places = "1 place" if done.count == 1 else f"{done.count:,} places"
        where = f"from line {done.first_line:,} on"
        return f"Edited {place}: replaced {places}, {where}.\n{numbered(Page(begin, lines, 0))}"

    # ---- the disk ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _directory(self, place: Place, *, make: bool = False) -> Generator[int]:
        if make:
            self._make(place)
        with self.workspace.directory(place.encoded(), str(place), follow=False) as number:
            yield number

    def _make(self, place: Place) -> None:
        """Make the directories that are missing, from the last one that is there on."""
        try:
            with self.workspace.directory(place.encoded(), str(place), follow=False):
                return
        except FileMissing:
            if not place.parts:
                raise FileFailed(str(place), "the workspace itself was removed") from None
        self._make(place.parent)
        with self.workspace.directory(place.parent.encoded(), str(place.parent), follow=False) as below:
            with told(str(place)), suppress(FileExistsError):
                os.mkdir(place.name, dir_fd=below)
            _sync(below, str(place))

    def _existing(self, below: int, place: Place) -> os.stat_result | None:
        try:
            with told(str(place)):
                found = os.stat(place.name, dir_fd=below, follow_symlinks=False)
        except FileMissing:
            return None
        if stat.S_ISLNK(found.st_mode):
            raise PathRefused(str(place), "it is a symbolic link; write to the file itself")
        self.workspace.check_file(found, str(place))
        return found

    def _check_same(self, below: int, place: Place, old: os.stat_result | None) -> None:
        if _version(self._existing(below, place)) != _version(old):
            raise FileChanged(str(place))

    def _put(self, below: int, place: Place, data: bytes, old: os.stat_result | None) -> None:
        label = str(place)
        beside = _beside(place.name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with told(label):
            # We hold the lock, so one that is there was left by a process that was killed.
            with suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=below)
            # What replaces a private file is private from its first byte on.
            mode = 0o666 if old is None else 0o600
            number = self.workspace.opener(below, beside, flags, follow=False, mode=mode)
        try:
            with told(label):
                _fill(number, data, old)
            self._check_same(below, place, old)
            with told(label):
                os.rename(beside, place.name, src_dir_fd=below, dst_dir_fd=below)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside, dir_fd=below)
            raise
        _sync(below, label)


def _beside(name: bytes) -> bytes:
    return f".holdfast-{hashlib.sha256(name).hexdigest()[:16]}.tmp".encode()


def _fill(number: int, data: bytes, old: os.stat_result | None) -> None:
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(number, left) :]
        if old is not None:
            with suppress(PermissionError):  # only some may give a file away; then it is ours
                if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(number, old.st_uid, old.st_gid)
            os.fchmod(number, stat.S_IMODE(old.st_mode) & 0o777)
        os.fsync(number)
    finally:
        os.close(number)


def _version(found: os.stat_result | None) -> tuple[int, ...] | None:
    return None if found is None else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _sync(number: int, label: str) -> None:
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP}:  # not for directories here
            reason = f"it was written, but nobody knows whether that survives a power cut ({error.strerror})"
            raise FileFailed(label, reason) from error


@contextmanager
def _locked(number: int, label: str) -> Generator[None]:
    """One writer in a directory at a time, also among processes."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                raise FileFailed(label, "somebody else keeps its directory locked; try again") from None
            time.sleep(_PAUSE)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            break
    yield  # closing the directory gives the lock back
