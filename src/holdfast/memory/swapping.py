"""Two names of one directory change places, in one step that no other process can come between."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

_EXCHANGE: Final = 2
_NOT_HERE: Final = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}
_LIBC: Final[list[ctypes.CDLL]] = []


def exchange(below: int, one: bytes, other: bytes) -> bool:
    """Swap them; False where the system or the file system can't. `FileNotFoundError` where one is missing."""
    if not _LIBC:
        _LIBC.append(ctypes.CDLL(None, use_errno=True))
    try:
        call = _LIBC[0].renameat2
    except AttributeError:
        return False
    if call(below, ctypes.c_char_p(one), below, ctypes.c_char_p(other), ctypes.c_uint(_EXCHANGE)) == 0:
        return True
    failed = ctypes.get_errno()
    if failed in _NOT_HERE:
        return False
    raise OSError(failed, os.strerror(failed), os.fsdecode(other))
