"""Files that several processes change: locks, new private files, and folders that survive a power cut."""

from __future__ import annotations

import errno
import fcntl
import os
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


def write_private(path: Path, data: bytes) -> None:
    """Create a file for its owner alone, durably but for its name. The path must be free."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(handle, "wb") as file:  # noqa: PTH123  it is open already
        os.fchmod(handle, 0o600)
        file.write(data)
        file.flush()
        os.fsync(handle)


def sync_directory(directory: Path) -> None:
    """Make new names in `directory` survive a power cut."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
