"""Edits of files: exact replacement of text, and the writer that puts new content on the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, UsageError, WorldError
from holdfast.plainfiles import lock_file
from holdfast.toolkits.files import pages, workspace
from holdfast.tools.definition import NotDone

if TYPE_CHECKING:
    from pathlib import PurePosixPath


class EditMismatch(workspace.PathError, UsageError):
    """The text to replace does not occur exactly as often as it must. Nothing was changed."""

    text = "{path} was not changed: {reason}"


class FileChanged(workspace.PathError, WorldError):
    """Another writer changed the file meanwhile. This call changed nothing."""

    text = "{path} has changed meanwhile; read it again, then decide"


# ---- replacement of text: pure ----

_MAX_LISTED: Final = 10
_CONTEXT: Final = 3


@dataclass(frozen=True, slots=True)
class Replacement:
    """The text after an edit."""

    text: str
    count: int
    first_line: int
    """The line of the first replacement."""


class EditRefusal(Exception):
    """The edit can't be made; the message says why."""


def replace_text(text: str, old: str, new: str, *, every: bool) -> Replacement:
    """Replace `old` by `new` in `text`: at its only occurrence, or with `every` at all of them.

    In a text with CR LF at the end of all lines, `old` and `new` may have plain line ends; the text keeps its own.
    """
    if not old:
        raise EditRefusal("the text to replace is empty; use write_file to write a whole file")
    if old == new:
        raise EditRefusal("the text to replace and the new text are the same")
    old, new = _with_line_ends(text, old, new)
    count = text.count(old)
    if not count:
        reason = "the text to replace is not in it; it must be the same to the last space, without line numbers"
        wanted = next((" ".join(line.split()) for line in old.splitlines() if line.strip()), None)
        near = (number for number, line in enumerate(text.splitlines(), 1) if " ".join(line.split()) == wanted)
        number = next(near, None)
        like = "" if number is None else f". Line {number} is like its first line; read the file there"
        raise EditRefusal(f"{reason}{like}")
    # Overlapping places count: in "aaa" there are two places where "aa" could be replaced.
    places: list[int] = []
    at = text.find(old)
    while at >= 0 and len(places) <= _MAX_LISTED:
        places.append(at)
        at = text.find(old, at + 1)
    if len(places) > 1 and not every:
        lines = ", ".join(str(_line_of(text, at)) for at in places[:_MAX_LISTED])
        more = " and more" if len(places) > _MAX_LISTED else ""
        raise EditRefusal(
            f"the text to replace is there several times (it begins in line {lines}{more}); "
            "give more of the text around it so that it is there once, or set all to true"
        )
    return Replacement(text.replace(old, new), count, _line_of(text, places[0]))


def was_edited(text: str, old: str, new: str) -> bool | None:
    """True if this edit was made, assuming no other change of the text; None if in doubt.

    False also for an impossible edit: the next attempt fails with the reason.
    """
    old, new = _with_line_ends(text, old, new)
    if new and new not in text:
        return False
    return None if old in text else True


def _with_line_ends(text: str, old: str, new: str) -> tuple[str, str]:
    is_crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    if is_crlf and "\r" not in old + new:
        return old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    return old, new


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


# ---- writing ----

LOCK_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class FileWriter:
    """Writes below one workspace, within limits, and never a protected name.

    It follows no links.
    """

    root: workspace.Workspace
    protection: workspace.Protection
    limits: workspace.FileLimits

    def write(self, place: PurePosixPath, content: str) -> str:
        data = self._encode(place, content)
        self._check(place)
        self._make_directories(place.parent)
        with self._directory(place.parent) as below:
            _lock_directory(below, str(place))
            old = self._existing(below, place)
            self._replace_file(below, place, data, old)
        lines = content.count("\n") + (not content.endswith("\n") and bool(content))
        return f"{'Replaced' if old else 'Created'} {place}: {lines:,} lines, {len(data):,} bytes."

    def edit(self, place: PurePosixPath, old: str, new: str, *, every: bool) -> str:
        self._check(place)
        with self._directory(place.parent) as below:
            _lock_directory(below, str(place))
            before, text = self._read(below, place)
            try:
                done = replace_text(text, old, new, every=every)
            except EditRefusal as error:
                raise EditMismatch(str(place), str(error)) from None
            self._replace_file(below, place, self._encode(place, done.text), before)
        places = "1 place" if done.count == 1 else f"{done.count:,} places"
        # The lines around the first replacement, with their numbers.
        begin = max(done.first_line - _CONTEXT, 1)
        end = min(done.first_line + new.count("\n"), done.first_line + 2 * _CONTEXT) + _CONTEXT
        lines = re.split("\r?\n", done.text)
        lines = lines if lines[-1] else lines[:-1]
        shown = pages.number_lines(begin, [line[: self.limits.line_chars] for line in lines[begin - 1 : end]])
        return f"Edited {place}: replaced {places}, from line {done.first_line:,} on.\n{shown}"

    def find_out(self, place: PurePosixPath, old: str, new: str) -> str:
        """The result of an interrupted edit; `NotDone` if it was not made."""
        self._check(place)
        with self._directory(place.parent) as below:
            _, text = self._read(below, place)
        made = was_edited(text, old, new)
        if made is None:
            raise EditMismatch(str(place), "it can't be told whether an interrupted edit was made")
        if not made:
            raise NotDone
        return f"Edited {place}."

    def _check(self, place: PurePosixPath) -> None:
        rule = self.protection.rule_for(place.parts)
        if rule is not None:
            raise workspace.PathProtected(str(place), rule)
        for folder in reversed(place.parents) if self.protection.repositories else ():
            found = False
            # A directory that can't be opened is not written to either.
            with suppress(HoldfastError), self._directory(folder) as below:
                found = workspace.is_repository(below)
            if found:
                raise workspace.PathProtected(str(place), "a git directory")

    def _encode(self, place: PurePosixPath, content: str) -> bytes:
        try:
            data = content.encode()
        except UnicodeEncodeError as error:
            raise workspace.NotText(str(place), "the new text has half a surrogate pair") from error
        if len(data) > self.limits.write_bytes:
            what, most = f"the new text of {place}", self.limits.write_bytes
            raise workspace.FileTooLarge(what, len(data), most, "split it into several files")
        return data

    def _read(self, below: int, place: PurePosixPath) -> tuple[os.stat_result, str]:
        label = str(place)
        with self.root.file(place.name.encode(), label, below=below, follow=False) as number:
            before = os.fstat(number)
            data = workspace.read_bytes(number, label, self.limits.write_bytes, "it is too large to be edited")
        text = "".join(pages.decode_text([data], label))
        return before, f"\ufeff{text}" if data.startswith(b"\xef\xbb\xbf") else text

    def _directory(self, place: PurePosixPath) -> AbstractContextManager[int]:
        return self.root.directory(str(place).encode(), str(place), follow=False)

    def _make_directories(self, place: PurePosixPath) -> None:
        """Make the missing directories below the last existing one."""
        try:
            with self._directory(place):
                return
        except workspace.FileMissing:
            if not place.parts:
                raise workspace.FileFailed(str(place), "the workspace itself was removed") from None
        self._make_directories(place.parent)
        with self._directory(place.parent) as below:
            with workspace.translate_errors(str(place)), suppress(FileExistsError):
                os.mkdir(place.name.encode(), dir_fd=below)
            _sync(below, str(place))

    def _existing(self, below: int, place: PurePosixPath) -> os.stat_result | None:
        try:
            with workspace.translate_errors(str(place)):
                found = os.stat(place.name.encode(), dir_fd=below, follow_symlinks=False)
        except workspace.FileMissing:
            return None
        if stat.S_ISLNK(found.st_mode):
            raise workspace.PathRefused(str(place), "it is a symbolic link; write to the file itself")
        self.root.check_file(found, str(place))
        return found

    def _replace_file(self, below: int, place: PurePosixPath, data: bytes, old: os.stat_result | None) -> None:
        label = str(place)
        temporary = f".holdfast-{hashlib.sha256(place.name.encode()).hexdigest()[:16]}.tmp".encode()
        with workspace.translate_errors(label):
            # This process holds the lock, so an existing temporary file was left by a killed process.
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=below)
            # The replacement of a private file is private from its first byte on.
            mode = 0o666 if old is None else 0o600
            number = self.root.opener(below, temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, follow=False, mode=mode)
        try:
            with workspace.translate_errors(label):
                _write_file(number, data, old)
            if _version(self._existing(below, place)) != _version(old):
                raise FileChanged(label)  # the temporary file is removed below
            with workspace.translate_errors(label):
                os.rename(temporary, place.name.encode(), src_dir_fd=below, dst_dir_fd=below)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=below)
            raise
        _sync(below, label)


def _write_file(number: int, data: bytes, old: os.stat_result | None) -> None:
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
            reason = f"it was written, but may not survive a power cut ({error.strerror})"
            raise workspace.FileFailed(label, reason) from error


def _lock_directory(number: int, label: str) -> None:
    """Lock a directory for one writer, also among processes. Closing the directory releases the lock."""
    # Without advisory locks in the file system, the check for changes by others remains.
    if not lock_file(number, LOCK_SECONDS, optional=True):
        raise workspace.FileFailed(label, "another process keeps its directory locked; try again")
