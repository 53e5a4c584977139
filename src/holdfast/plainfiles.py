"""Plain files: reads that never wait, durable writes, and locks."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_NO_LOCKS: Final = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
_PAUSE: Final = 0.01


def lock_file(number: int, seconds: float, *, optional: bool = False) -> bool:
    """Lock an open file or folder until it is closed; False if another process keeps it locked for so long.

    It blocks the thread. With `optional`, a file system without locks is no error.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(_PAUSE)
        except OSError as error:
            if not optional or error.errno not in _NO_LOCKS:
                raise
            return True
        else:
            return True


def read_plain_file(path: str | os.PathLike[str], most: int, *, follow: bool = True) -> tuple[os.stat_result, bytes]:
    """The status of a file and its first `most` bytes, none if it is not a regular file. Does not wait for a pipe."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    number = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            return found, b""
        with os.fdopen(number, "rb", closefd=False) as file:
            return found, file.read(most)
    finally:
        os.close(number)


def write_new_file(path: Path, data: bytes) -> None:
    """Write a file that only this user may read, and wait until it is on the disk. `FileExistsError` if it exists."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(number, 0o600)
    write_durably(number, data)


def write_durably(number: int, data: bytes) -> None:
    """Write an open file, wait until it is on the disk, and close it."""
    with os.fdopen(number, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(number)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut."""
    number = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
