"""Access checks of a store: its files, their folder, and code in the schema that SQLite would run."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors.store import StoreUntrusted

if TYPE_CHECKING:
    from holdfast.store.sqlite.connection import Db


_BEYOND_OWNER: Final = 0o177
_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")


def check_access(path: Path) -> None:
    """Raise `StoreUntrusted` if other users can read or change the files of the store at `path`."""
    real = Path(os.path.realpath(path))
    for folder in dict.fromkeys((path.parent, real.parent)):
        _check_folder(path, folder)
    for suffix in _SUFFIXES:
        check_file(path, real.with_name(real.name + suffix))


def check_file(path: Path, file: Path) -> None:
    """Raise `StoreUntrusted` if this file of the store exists and other users can access it."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        return
    quoted = shlex.quote(str(file))
    if not stat.S_ISREG(found.st_mode):
        raise StoreUntrusted(path, f"{file} is no regular file", f"mv {quoted} {quoted}.away")
    _check_owner(path, file, found)
    if found.st_mode & _BEYOND_OWNER:
        reason = f"others may read or write {file} (mode {stat.S_IMODE(found.st_mode):04o})"
        raise StoreUntrusted(path, reason, f"chmod 600 {quoted}")
    if found.st_nlink > 1:
        # Do not replace the file by a copy: a process that has it open would go on writing to the old one.
        reason = (
            f"{file} has {found.st_nlink} names (hard links), and tools may reach it by another one; rm every other "
            "name that the command lists"
        )
        raise StoreUntrusted(path, reason, f"find {shlex.quote(str(_mount_of(file)))} -xdev -inum {found.st_ino}")


def _mount_of(file: Path) -> Path:
    """The top folder of the file system that a file is on."""
    return next(folder for folder in file.absolute().parents if os.path.ismount(folder))


def _check_folder(path: Path, folder: Path) -> None:
    found = folder.stat()
    _check_owner(path, folder, found)
    others = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found))
    if others:
        aside = "" if not found.st_mode & stat.S_ISVTX else ", or keep the store in a folder of its own"
        reason = f"others may write to its folder {folder} (mode {stat.S_IMODE(found.st_mode):04o})"
        raise StoreUntrusted(path, reason, f"chmod go-w {shlex.quote(str(folder))}{aside}")


def _check_owner(path: Path, place: Path, found: os.stat_result) -> None:
    own = os.geteuid()
    if found.st_uid not in {own, 0}:
        reason = f"{place} belongs to another user ({found.st_uid})"
        raise StoreUntrusted(path, reason, f"chown {own} {shlex.quote(str(place))}")


def _is_own_group(found: os.stat_result) -> bool:
    """True if the owner is the only member of the group, as on systems with a group for each user."""
    try:
        user, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return user.pw_gid == group.gr_gid and user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}


def sync_directory(directory: Path) -> None:
    """Make new names in `directory` survive a power cut."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_schema(path: Path, connection: Db) -> None:
    """Raise `StoreUntrusted` if the schema has triggers or views: Holdfast makes none, and SQLite would run them."""
    found = connection.execute("SELECT type, name FROM sqlite_schema WHERE type IN ('trigger', 'view') LIMIT 1").get
    if found is not None:
        kind, name = found
        shown = name if isinstance(name, str) and name.isprintable() else ascii(name)
        drop = f'DROP {kind.upper()} "{shown}"'
        raise StoreUntrusted(
            path,
            f"it has a {kind} {shown!r}, which Holdfast did not make",
            f"sqlite3 {shlex.quote(str(path))} {shlex.quote(drop)}",
        )
