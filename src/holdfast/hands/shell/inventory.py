"""The git repositories that are in a workspace before a command, with a digest of what makes git run programs.

A command and a person can both work in a repository that was there before. It stays a repository as long as the digest
is the same; its HEAD, index, refs and objects may change.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.hands.files.repositories import HEAD, is_repository

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.hands.files.confined import Opener

REPOSITORY: Final = ".git"
MOST_FOLDERS: Final = 1_000_000
"""How many folders one walk takes: more than the limit on files lets a command make."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_BYTES: Final = 1_000_000
_MOST_HOOKS: Final = 1_000
_HOOKS: Final = "hooks"
_PROGRAMS: Final = ("config", "config.worktree", "commondir")
"""Files of a repository that name programs, or the place of the files that do. Beside them are the hooks."""
_TELLING: Final = (HEAD, *_PROGRAMS, "objects", "refs", _HOOKS)
"""What makes a directory a repository, or names programs in it."""


def inventory(root: int, opener: Opener, kept: Collection[str], since: int) -> dict[str, bytes]:
    """The digest of each repository, and of each `.git` that is a file or a link, by its path from the top.

    What has changed since then is left out: a command that runs already may have made it. So is what lies below the
    paths in `kept`.
    """
    found: dict[str, bytes] = {}
    todo = [""]
    looked = 0
    for folder in todo:  # it grows meanwhile, breadth first
        looked += 1
        if looked > MOST_FOLDERS:
            break
        try:
            descriptor = opener(root, os.fsencode(folder or "."), _FOLDER, follow=False)
        except OSError:
            continue  # it went away, or nobody may look into it
        try:
            todo += _noted(descriptor, opener, folder, kept, since, found)
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return found


def _noted(  # noqa: PLR0913, PLR0917
    descriptor: int, opener: Opener, folder: str, kept: Collection[str], since: int, found: dict[str, bytes]
) -> list[str]:
    """Note the repositories of one folder; answers the folders in it."""
    below: list[str] = []
    suspect = False
    with os.scandir(descriptor) as entries:
        for entry in entries:
            name = entry.name
            path = f"{folder}/{name}" if folder else name
            suspect = suspect or name.upper() == HEAD
            if path in kept:
                continue
            if entry.is_dir(follow_symlinks=False):
                below.append(path)
            elif name.lower() == REPOSITORY:
                digest = file_digest(descriptor, name)  # before its change time: whoever writes now is seen
                if digest is not None and entry.stat(follow_symlinks=False).st_ctime_ns < since:
                    found[path] = digest
    if suspect and folder and is_repository(descriptor):
        digest = program_digest(descriptor, opener)
        if digest is not None and not has_changed(descriptor, opener, since):
            found[folder] = digest
    return below


def program_digest(descriptor: int, opener: Opener) -> bytes | None:
    """Digest of what makes git run programs in an open repository; None where it can't be read as a whole."""
    parts = [file_digest(descriptor, name) for name in _PROGRAMS]
    try:
        hooks = opener(descriptor, _HOOKS.encode(), _FOLDER, follow=False)
    except OSError:
        parts.append(file_digest(descriptor, _HOOKS))  # it is missing, or a link
    else:
        try:
            names = sorted(os.listdir(hooks))  # noqa: PTH208  it is open
            if len(names) > _MOST_HOOKS:
                return None
            for name in names:
                parts += (hashlib.sha256(os.fsencode(name)).digest(), file_digest(hooks, name))
        except OSError:
            return None
        finally:
            os.close(hooks)
    whole = [part for part in parts if part is not None]
    return hashlib.sha256(b"".join(whole)).digest() if len(whole) == len(parts) else None


def file_digest(folder: int, name: str) -> bytes | None:  # noqa: PLR0911
    """Digest of a file and whether it can be run, or of where a link leads; None for what can't be read as a whole."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            return hashlib.sha256(b"link:" + os.fsencode(os.readlink(name, dir_fd=folder))).digest()
        if stat.S_ISDIR(found.st_mode):
            return hashlib.sha256(b"folder").digest()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            return None
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except FileNotFoundError:
        return hashlib.sha256(b"missing").digest()
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            content = file.read(_MOST_BYTES + 1)
        except OSError:
            return None
    runs = found.st_mode & 0o111 != 0
    return hashlib.sha256(b"file:%d:" % runs + content).digest() if len(content) <= _MOST_BYTES else None


def has_changed(descriptor: int, opener: Opener, since: int) -> bool:
    """Whether anything that tells of an open repository has changed since then."""
    if os.fstat(descriptor).st_ctime_ns >= since:
        return True
    for name in _TELLING:
        with suppress(OSError):
            if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_ctime_ns >= since:
                return True
    with suppress(OSError):
        hooks = opener(descriptor, _HOOKS.encode(), _FOLDER, follow=False)
        try:
            with os.scandir(hooks) as entries:
                return any(entry.stat(follow_symlinks=False).st_ctime_ns >= since for entry in entries)
        finally:
            os.close(hooks)
    return False
