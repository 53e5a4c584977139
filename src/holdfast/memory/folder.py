"""The folder of the mirror: a subfolder for each scope, a file for each entry. No text of a user is lost here.

A replacement swaps places with the file, then checks the displaced file. If it is not the expected one, a user wrote it
just now, and it gets its own name. All names of the mirror begin with a dot, which no key can: `.new` is a text being
written, `.old` one that was complete when it got this name.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import stat
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast.crashpoints import crash_point
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.memory import decisions
from holdfast.memory.decisions import SUFFIX, EntryPlace, FileDigests, MirrorBase, StrayFile, digest_of, file_name_of
from holdfast.memory.front_matter import FileContent, has_front_matter, parse_file
from holdfast.plainfiles import lock_file, write_durably
from holdfast.toolkits.files import workspace
from holdfast.toolkits.files.pages import decode_text
from holdfast.toolkits.files.workspace import FileMissing, printable_name, read_bytes, translate_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Mapping
    from pathlib import Path


_EXCHANGE: Final = 2
_UNSUPPORTED: Final = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}
_libc: Final = cache(lambda: ctypes.CDLL(None, use_errno=True))


def exchange_names(below: int, one: bytes, other: bytes) -> bool:
    """Swap two files; False if unsupported here. `FileNotFoundError` if one is missing."""
    try:
        call = _libc().renameat2
    except AttributeError:
        return False
    if call(below, ctypes.c_char_p(one), below, ctypes.c_char_p(other), ctypes.c_uint(_EXCHANGE)) == 0:
        return True
    failed = ctypes.get_errno()
    if failed in _UNSUPPORTED:
        return False
    raise OSError(failed, os.strerror(failed), os.fsdecode(other))


MAX_ENTRIES: Final = 200_000
"""Most names in the folder."""
_PATIENCE: Final = 5.0
_RACY_NS: Final = 2_000_000_000
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_COMPARED: Final = 2**20
_ADVICE: Final = "it is too large for an entry of memory"


@dataclass(slots=True)
class FolderContents:
    """The files in the folder."""

    files: dict[EntryPlace, FileDigests] = field(default_factory=dict["EntryPlace", FileDigests])
    refused: list[decisions.RefusedFile] = field(default_factory=list[decisions.RefusedFile])
    blocked: set[EntryPlace | str] = field(default_factory=set["EntryPlace | str"])
    """Entries with unusable files, and scopes with unusable folders."""

    def is_blocked(self, place: EntryPlace) -> bool:
        """True if the place of this entry's file is, or may be, taken by something that the mirror does not touch."""
        return place in self.blocked or place[0] in self.blocked


class WriteOutcome(Enum):
    """The outcome of writing a file."""

    WRITTEN = "written"
    KEPT = "kept"
    """Written; a text that a user put there at this moment is kept beside it."""
    IN_THE_WAY = "in the way"
    """Not written: another file is there, or the expected one is gone."""


KnownDigests: TypeAlias = dict[tuple[str, bytes], tuple[tuple[int, ...], FileDigests]]
"""Digests of files by their place, each with the version of the file that was read."""


def entry_path(place: EntryPlace) -> str:
    """The file of an entry, below the folder."""
    return f"{file_name_of(place[0])}/{file_name_of(place[1])}{SUFFIX}"


class MirrorFolder:
    """The folder, open and locked: one process compares at a time."""

    def __init__(self, path: Path, limit: int, digests: KnownDigests) -> None:
        self.path = path
        self._limit = limit
        self._digests = digests
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._workspace = workspace.Workspace(path, own=True)
        except (OSError, InvalidArgument) as error:
            raise decisions.MirrorUnavailable(str(path), str(error)) from error
        try:
            if not lock_file(self._workspace.root, _PATIENCE, optional=True):
                raise decisions.MirrorBusy(str(path))
        except BaseException as error:
            self._workspace.close()
            if isinstance(error, OSError):
                raise decisions.MirrorUnavailable(str(path), str(error)) from error
            raise

    def close(self) -> None:
        self._workspace.close()

    def bases(self, store: str) -> dict[EntryPlace, MirrorBase] | None:
        """The last mirrored state; None if it is unknown."""
        try:
            with self._workspace.file(decisions.INDEX_NAME.encode(), decisions.INDEX_NAME, follow=False) as number:
                data = read_bytes(number, decisions.INDEX_NAME, decisions.MAX_INDEX_BYTES, "remove it")
        except FileMissing:
            return {}
        except HoldfastError:
            return None
        return decisions.decode_index(store, data)

    def note(self, store: str, bases: dict[EntryPlace, MirrorBase]) -> None:
        """Save the mirrored state durably."""
        name = decisions.INDEX_NAME.encode()
        fresh = _own_name(name, b"new")
        root = self._workspace.root
        with translate_errors(decisions.INDEX_NAME):
            self._fill(root, fresh, decisions.encode_index(store, bases))
            crash_point("mirror.before_note")
            os.rename(fresh, name, src_dir_fd=root, dst_dir_fd=root)
            _sync(root)
        crash_point("mirror.noted")

    def look(self, places: Mapping[EntryPlace, object]) -> FolderContents:
        """All files by entry. `places` are the known entries."""
        found = FolderContents()
        scopes: dict[str, str] = {file_name_of(scope): scope for scope, _ in places}
        keys: dict[str, dict[str, str]] = {}
        for scope, key in places:
            keys.setdefault(scope, {})[file_name_of(key)] = key
        left = MAX_ENTRIES
        for name in self._names(self._workspace.root):
            scope = decisions.parse_file_name(name, scopes, suffix="")
            if isinstance(scope, StrayFile):
                _refuse(found, printable_name(name), scope.reason)
                continue
            try:
                left -= self._look_into_scope(scope, name, keys.get(scope, {}), found)
            except HoldfastError as error:
                found.blocked.add(scope)
                _refuse(found, printable_name(name), str(error))
            if left < 0:
                raise decisions.MirrorTooLarge(str(self.path), MAX_ENTRIES)
        return found

    def _look_into_scope(self, scope: str, folder: bytes, known: dict[str, str], found: FolderContents) -> int:
        count = 0
        with self._workspace.directory(folder, printable_name(folder), follow=False) as below:
            for name in self._names(below):
                count += 1
                label = f"{printable_name(folder)}/{printable_name(name)}"
                key = decisions.parse_file_name(name, known)
                if isinstance(key, StrayFile):
                    _refuse(found, label, key.reason)
                    continue
                try:
                    found.files[scope, key] = self._file_digests(below, (scope, name), label)
                except FileMissing:
                    continue  # removed meanwhile
                except HoldfastError as error:
                    found.blocked.add((scope, key))
                    _refuse(found, label, str(error))
        return count

    def _names(self, number: int) -> list[bytes]:
        with translate_errors("the folder"):
            names = [os.fsencode(name) for name in os.listdir(number)]
        if len(names) > MAX_ENTRIES:
            raise decisions.MirrorTooLarge(str(self.path), MAX_ENTRIES)
        return sorted(names)

    def _file_digests(self, below: int, at: tuple[str, bytes], label: str) -> FileDigests:
        with self._workspace.file(at[1], label, below=below, follow=False) as number:
            found = os.fstat(number)
            version = found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
            known = self._digests.get(at)
            if known is not None and known[0] == version:
                return known[1]
            pieces = workspace.read_chunks(number, label, self._limit + len(_BYTE_ORDER_MARK), _ADVICE)
            seen = _compute_digests(pieces, label)
            # A file that changed just now may change again within the resolution of its times.
            if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > _RACY_NS:
                self._digests[at] = version, seen
            return seen

    def read(self, place: EntryPlace) -> tuple[FileDigests, FileContent]:
        label = entry_path(place)
        with self._workspace.file(label.encode(), label, follow=False) as number:
            data = read_bytes(number, label, self._limit + len(_BYTE_ORDER_MARK), _ADVICE)
        text = "".join(decode_text([data], label)) if data else ""
        return _compute_digests([data], label), parse_file(text)

    def write(self, place: EntryPlace, value: str, over: str | None, aside: str) -> WriteOutcome:
        """Create a file, or replace the one with the digest `over`.

        A text that a user put there at this moment is kept as the file of the key `aside`.
        """
        with self._scope(place[0]) as below, translate_errors(entry_path(place)):
            name = _file_name(place[1])
            fresh = _own_name(name, b"new")
            self._fill(below, fresh, value.encode())
            crash_point("mirror.filled")
            if over is None:
                done = WriteOutcome.WRITTEN if _link_name(below, fresh, name) else WriteOutcome.IN_THE_WAY
            else:
                done = self._replace(below, fresh, name, over, aside)
            _sync(below)
            crash_point("mirror.written")
            return done

    def erase(self, place: EntryPlace, over: str, aside: str) -> bool:
        """Remove a file with the digest `over`; False if it was another one, which is then kept under `aside`."""
        with self._scope(place[0]) as below, translate_errors(entry_path(place)):
            name = _file_name(place[1])
            old = _own_name(name, b"old")
            try:
                os.rename(name, old, src_dir_fd=below, dst_dir_fd=below)
            except FileNotFoundError:
                return True
            crash_point("mirror.moved")
            done = self._settle(below, old, {over}, aside)
            _sync(below)
            crash_point("mirror.erased")
            return done

    def set_aside(self, place: EntryPlace, aside: str) -> str | None:
        """Rename a file to that of another key; returns its path, None if it is gone."""
        with self._scope(place[0]) as below, translate_errors(entry_path(place)):
            name = _file_name(place[1])
            try:
                made = _rename_aside(below, name, aside)
            except FileNotFoundError:
                return None
            _sync(below)
            crash_point("mirror.aside")
            return f"{file_name_of(place[0])}/{made.decode()}"

    def remove_scopes(self, store: str, scopes: Collection[str]) -> None:
        """Remove the files of these scopes, also those that users wrote, and their lines in the mirrored state."""
        for scope in scopes:
            name = file_name_of(scope)
            with suppress(FileMissing), self._workspace.directory(name.encode(), name, follow=False) as below:
                for file in self._names(below):
                    with translate_errors(name):
                        os.unlink(file, dir_fd=below)
                _sync(below)
                with suppress(OSError):
                    os.rmdir(name, dir_fd=self._workspace.root)
            self._digests.clear()
        bases = self.bases(store)
        if bases:
            self.note(store, {place: base for place, base in bases.items() if place[0] not in scopes})

    def recover(self, bases: Mapping[EntryPlace, MirrorBase]) -> None:
        """Clean up after a killed process: remove files of the mirror, and rename those that users wrote."""
        owners = {
            (file_name_of(scope).encode(), _own_name(_file_name(key), b"old")): (scope, key) for scope, key in bases
        }
        for folder in self._names(self._workspace.root):
            if folder.startswith(b"."):
                continue
            # `look` reports a folder that can't be opened, and a file that can't be removed.
            with (
                suppress(HoldfastError),
                self._workspace.directory(folder, printable_name(folder), follow=False) as below,
            ):
                for name in self._names(below):
                    if name.startswith(decisions.OWN_PREFIX.encode()):
                        self._recover_one(below, name, owners.get((folder, name)), bases)

    def _recover_one(
        self, below: int, name: bytes, place: EntryPlace | None, bases: Mapping[EntryPlace, MirrorBase]
    ) -> None:
        with translate_errors(printable_name(name)):
            if name.endswith(b".new"):
                os.unlink(name, dir_fd=below)
            elif name.endswith(b".old"):
                base = None if place is None else bases[place]
                copies = () if base is None else (base.mirrored, base.writing)
                ours = {copy.file for copy in copies if copy is not None}
                self._settle(
                    below, name, ours, decisions.conflict_key("recovered" if place is None else place[1], 0, "", ())
                )
            _sync(below)

    def _replace(self, below: int, fresh: bytes, name: bytes, over: str, aside: str) -> WriteOutcome:
        old = _own_name(name, b"old")
        os.rename(fresh, old, src_dir_fd=below, dst_dir_fd=below)
        crash_point("mirror.complete")
        try:
            swapped = exchange_names(below, old, name)
        except FileNotFoundError:
            os.unlink(old, dir_fd=below)
            return WriteOutcome.IN_THE_WAY
        if not swapped:
            os.rename(old, fresh, src_dir_fd=below, dst_dir_fd=below)
            with suppress(FileNotFoundError):
                os.rename(name, old, src_dir_fd=below, dst_dir_fd=below)
            crash_point("mirror.moved")
            if not _link_name(below, fresh, name):
                self._settle(below, old, {over}, aside)
                return WriteOutcome.IN_THE_WAY
        crash_point("mirror.swapped")
        return WriteOutcome.WRITTEN if self._settle(below, old, {over}, aside) else WriteOutcome.KEPT

    def _settle(self, below: int, old: bytes, ours: set[str], aside: str) -> bool:
        """Remove a displaced file of the mirror; rename one that a user wrote just now."""
        try:
            with self._workspace.file(old, "a file", below=below, follow=False) as number:
                seen = _compute_digests(
                    workspace.read_chunks(number, "a file", self._limit + len(_BYTE_ORDER_MARK), _ADVICE), "a file"
                )
                mine = seen.file in ours and not _is_being_written(number)
        except FileMissing:
            return True
        except HoldfastError:
            mine = False
        if mine:
            os.unlink(old, dir_fd=below)
        else:
            _rename_aside(below, old, aside)
        return mine

    def _fill(self, below: int, name: bytes, data: bytes) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=below)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        write_durably(self._workspace.opener(below, name, flags, follow=False, mode=0o600), data)

    @contextmanager
    def _scope(self, scope: str) -> Generator[int]:
        name = file_name_of(scope)
        with translate_errors(name), suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self._workspace.root)
            _sync(self._workspace.root)
        with self._workspace.directory(name.encode(), name, follow=False) as number:
            yield number


def _refuse(found: FolderContents, label: str, reason: str) -> None:
    if reason:
        found.refused.append(decisions.RefusedFile(label, reason))


def _file_name(key: str) -> bytes:
    return f"{file_name_of(key)}{SUFFIX}".encode()


def _own_name(name: bytes, end: bytes) -> bytes:
    return f"{decisions.OWN_PREFIX}{hashlib.sha256(name).hexdigest()[:24]}.".encode() + end


def _compute_digests(pieces: Iterator[bytes] | list[bytes], label: str) -> FileDigests:
    data = b"".join(pieces)
    whole = digest_of(data)
    text = data.removeprefix(_BYTE_ORDER_MARK)
    if has_front_matter(text):  # people write it in several ways
        text = parse_file("".join(decode_text([text], label))).text.encode()
    return FileDigests(whole, whole if text is data else digest_of(text))


def _link_name(below: int, one: bytes, name: bytes) -> bool:
    """Rename without replacing; False if the name is taken."""
    try:
        os.link(one, name, src_dir_fd=below, dst_dir_fd=below, follow_symlinks=False)
    except FileExistsError:
        os.unlink(one, dir_fd=below)
        return False
    crash_point("mirror.linked")
    os.unlink(one, dir_fd=below)
    return True


def _rename_aside(below: int, old: bytes, aside: str) -> bytes:
    count = 1
    while True:
        made = _file_name(aside if count == 1 else f"{aside}-{count}")
        try:
            os.link(old, made, src_dir_fd=below, dst_dir_fd=below, follow_symlinks=False)
        except FileExistsError:
            if not _same_text(below, old, made):
                count += 1
                continue
        os.unlink(old, dir_fd=below)
        return made


def _same_text(below: int, one: bytes, other: bytes) -> bool:
    """True if two files have the same text, and no process writes the first."""
    text = _quick_text(below, one)
    return text is not None and text == _quick_text(below, other)


def _quick_text(below: int, name: bytes) -> bytes | None:
    """The text of a small file; None for a large one, or while it is being written."""
    try:
        number = os.open(name, _READ, dir_fd=below)
    except OSError:
        return None
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_COMPARED or _is_being_written(number):
            return None
        return os.read(number, _MAX_COMPARED)
    except OSError:
        return None
    finally:
        os.close(number)


def _is_being_written(number: int) -> bool:
    """True if a process has it open for writing: only then does the kernel refuse a read lease."""
    setting, kind, none = (getattr(fcntl, name, None) for name in ("F_SETLEASE", "F_RDLCK", "F_UNLCK"))
    if setting is None or kind is None or none is None:
        return False
    try:
        fcntl.fcntl(number, setting, kind)
    except OSError as error:
        return error.errno == errno.EAGAIN
    fcntl.fcntl(number, setting, none)
    return False


def _sync(number: int) -> None:
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP}:  # not for directories here
            raise
