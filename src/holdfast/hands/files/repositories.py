"""Which directories git takes for a repository, whatever they are called: it runs what their configuration names."""

from __future__ import annotations

import os
import stat
from typing import Final

HEAD: Final = "HEAD"
_OWN: Final = ("objects", "refs")
_SHARED: Final = "commondir"
"""A file that names another directory with the objects and refs."""


def is_repository(directory: int) -> bool:
    """Whether git would take this open directory for a repository, without any `.git` around it.

    HEAD may be a dangling link, and objects and refs may be links: git accepts that.
    """
    if not _is_there(directory, HEAD, folder=False):
        return False
    return _is_there(directory, _SHARED) or all(_is_there(directory, name) for name in _OWN)


def _is_there(directory: int, name: str, *, folder: bool = True) -> bool:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return folder or not stat.S_ISDIR(found.st_mode)
