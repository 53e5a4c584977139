"""Locks on files and folders: one process at a time changes what they protect."""

from __future__ import annotations

import errno
import fcntl
import time
from typing import Final

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
