"""An open directory, and what is below it: the only way by which these tools reach a disk."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidArgument
from holdfast.hands.files.confined import Opener, StoreFolder, choose, outside_store
from holdfast.hands.files.errors import FileFailed, FileMissing, FileTooLarge, PathRefused, WrongKind
from holdfast.store.beside import FOLDER, in_store_folder

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from holdfast.errors import HoldfastError

_CHUNK: Final = 256 * 1024
_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}
_REASONS: Final = {
    errno.EACCES: "there is no permission",
    errno.EPERM: "there is no permission",
    errno.EROFS: "this file system can only be read",
    errno.ENOSPC: "there is no room on the disk",
    errno.EDQUOT: "there is no room left for this user",
    errno.EFBIG: "the file system does not take files of this size",
    errno.EIO: "the disk failed",
    errno.EMFILE: "too many files are open; try again",
    errno.ENFILE: "too many files are open; try again",
    errno.EAGAIN: "the directories on the way are being renamed; try again",
    errno.ENAMETOOLONG: "the path is too long",
    errno.ENOTEMPTY: "a directory is there",
}


class Workspace:
    """One directory that the host gave. It is opened once, so that nobody can put another one in its place later.

    With `own` it is one of Holdfast itself, such as the mirror of memory, and may lie in a store folder.
    """

    def __init__(
        self, root: Path, *, opener: Opener | None = None, hard_links: bool = False, own: bool = False
    ) -> None:
        try:
            self.path: Final = os.path.realpath(root)
            """Where it was when it was opened."""
            self.root: Final = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            wanted = f"a directory that exists and can be read ({error.strerror})"
            raise InvalidArgument("root", str(root), wanted) from error
        if in_store_folder(self.path) and not own:
            os.close(self.root)
            raise InvalidArgument("root", str(root), f"a directory outside of {FOLDER}, where stores are kept")
        self._close: Final = weakref.finalize(self, os.close, self.root)
        self._hard_links: Final = hard_links
        self.opener: Opener = choose(self.root) if opener is None else opener
        if not own:
            self.opener = outside_store(self.opener)

    def close(self) -> None:
        """Let go of the directory; nothing can be opened through this any more."""
        self._close()

    @contextmanager
    def file(self, path: bytes, label: str, *, below: int | None = None, follow: bool = True) -> Generator[int]:
        """A regular file, open for reading."""
        with told(label):
            number = self.opener(self.root if below is None else below, path, os.O_RDONLY, follow=follow)
        try:
            with told(label):
                self.check_file(os.fstat(number), label)
            yield number
        finally:
            os.close(number)

    @contextmanager
    def directory(self, path: bytes, label: str, *, below: int | None = None, follow: bool = True) -> Generator[int]:
        """A directory, open for reading."""
        flags = os.O_RDONLY | os.O_DIRECTORY
        with told(label):
            number = self.opener(self.root if below is None else below, path, flags, follow=follow)
        try:
            yield number
        finally:
            os.close(number)

    def check_file(self, found: os.stat_result, label: str) -> None:
        """Refuse what is no regular file, and what has other names that may lie elsewhere."""
        if not stat.S_ISREG(found.st_mode):
            raise WrongKind(label, kind_of(found.st_mode), "a file")
        if found.st_nlink > 1 and not self._hard_links:
            raise PathRefused(label, "it is a hard link: the same file has other names, which may be elsewhere")


def kind_of(mode: int) -> str:
    """What a model is told about something that is no file."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def read_all(number: int, label: str, limit: int, advice: str) -> bytes:
    """The whole file, if it is within `limit`; not one byte more is read than it takes to know."""
    return b"".join(chunks(number, label, limit, advice))


def chunks(number: int, label: str, limit: int, advice: str) -> Iterator[bytes]:
    """The file piece by piece. It may grow meanwhile, so it is the bytes that count and not the size it claims."""
    with told(label):
        size = os.fstat(number).st_size
        if size > limit:
            raise FileTooLarge(label, size, limit, advice)
        seen = 0
        while chunk := os.read(number, _CHUNK):
            seen += len(chunk)
            if seen > limit:
                raise FileTooLarge(label, seen, limit, advice)
            yield chunk


@contextmanager
def told(label: str) -> Generator[None]:
    """What the system refuses, in words for a model."""
    try:
        yield
    except OSError as error:
        raise _in_words(error, label) from error


def _in_words(error: OSError, label: str) -> HoldfastError:  # noqa: PLR0911  one answer for each kind of refusal
    if isinstance(error, StoreFolder):
        return PathRefused(label, f"it leads into {FOLDER}, where stores are kept")
    match error.errno:
        case errno.ENOENT:
            return FileMissing(label)
        case errno.ENOTDIR:
            return WrongKind(label, "a file, or below a file", "a directory")
        case errno.EISDIR:
            return WrongKind(label, "a directory", "a file")
        case errno.ENXIO | errno.ENODEV | errno.EOPNOTSUPP:
            return WrongKind(label, "a pipe, a socket or a device", "a file")
        case errno.EXDEV:
            return PathRefused(label, "it leads out of the workspace")
        case errno.ELOOP | errno.EMLINK:
            return PathRefused(label, "there is a symbolic link in it which is not followed; name the real path")
        case number:
            return FileFailed(label, _REASONS.get(number or 0, error.strerror or "the system refused"))
