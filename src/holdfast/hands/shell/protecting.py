"""Names at the top of a workspace that no command may change, because other programs act on what is in them.

A command can't be kept from making a name that is not there, unless something is there: an empty folder stands in for
it while commands run, and is taken away when the last of them ends. Processes agree on who is the last by a lock on
the folder, which the kernel lets go of when a process is killed; the next command then takes the folder away.

The stand-ins also tell since when commands have been running: a command can't touch them, and they outlive a kill.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from holdfast.hands.shell.errors import WorkspaceRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

_STAND_IN: Final = 0o555
_TRIES: Final = 100
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Kind = Literal["stand-in", "kept", "pinned"]


@dataclass(frozen=True, slots=True)
class Cover:
    """What the sandbox lays over one name: an empty folder, the thing itself read-only, or itself to pin it down."""

    path: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class _Held:
    name: str
    folder: int
    descriptor: int


class StandIns:
    """The protected names at the top of one workspace, for as long as one command runs."""

    __slots__ = ("_folders", "_held", "_workspace", "abandoned", "covers", "since")

    def __init__(self, workspace: str, paths: Iterable[tuple[str, ...]]) -> None:
        self._workspace = workspace
        self._held: list[_Held] = []
        self._folders: dict[tuple[str, ...], int] = {}
        self.covers: dict[str, Cover] = {}
        self.since: int | None = None
        """Since when commands have been running here without a pause, in nanoseconds of the file system's clock."""
        self.abandoned: int | None = None
        """Since when commands ran here whose process was killed; None if none did."""
        try:
            self._folders[()] = os.open(workspace, _FOLDER)
        except OSError as error:
            raise WorkspaceRefused(workspace, f"it can't be opened ({error.strerror})") from error
        try:
            for path in paths:
                self._protect(path)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let go; stand-ins that no other command needs are taken away."""
        for held in self._held:
            with suppress(OSError):  # another command still needs it
                fcntl.flock(held.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_stand_in(os.fstat(held.descriptor)) and _is_same(held):
                    os.rmdir(held.name, dir_fd=held.folder)
            os.close(held.descriptor)
        self._held.clear()
        for descriptor in self._folders.values():
            os.close(descriptor)
        self._folders.clear()

    def _protect(self, path: tuple[str, ...]) -> None:
        """Protect `path`; where a folder on its way is missing, that folder instead."""
        for size in range(1, len(path) + 1):
            kind = self._protect_name(path[:size], last=size == len(path))
            if kind != "pinned":
                return

    def _protect_name(self, path: tuple[str, ...], *, last: bool) -> Kind:
        shown = "/".join(path)
        if shown in self.covers and (self.covers[shown].kind != "pinned" or not last):
            return self.covers[shown].kind
        folder, name = self._folders[path[:-1]], path[-1]
        made = False
        for _ in range(_TRIES):
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                made = self._make(folder, name, shown)
                continue
            if stat.S_ISLNK(found.st_mode):
                reason = (
                    f"{shown} is a symbolic link, which can't be kept from being replaced; put a file or folder there"
                )
                raise WorkspaceRefused(self._workspace, reason)
            if not _is_stand_in(found):
                return self._keep(path, found, last=last)
            if self._hold(folder, name, made=made):
                return self._covered(shown, "stand-in")
        raise WorkspaceRefused(self._workspace, f"{shown} keeps changing")

    def _keep(self, path: tuple[str, ...], found: os.stat_result, *, last: bool) -> Kind:
        shown = "/".join(path)
        if last or not stat.S_ISDIR(found.st_mode):
            return self._covered(shown, "kept")
        if path not in self._folders:
            try:
                self._folders[path] = os.open(path[-1], _FOLDER, dir_fd=self._folders[path[:-1]])
            except OSError as error:
                raise WorkspaceRefused(self._workspace, f"{shown} can't be opened ({error.strerror})") from error
        return self._covered(shown, "pinned")

    def _covered(self, shown: str, kind: Kind) -> Kind:
        self.covers[shown] = Cover(shown, kind)
        return kind

    def _make(self, folder: int, name: str, shown: str) -> bool:
        try:
            os.mkdir(name, _STAND_IN, dir_fd=folder)
        except FileExistsError:
            return False
        except OSError as error:
            raise WorkspaceRefused(self._workspace, f"{shown} can't be protected ({error.strerror})") from error
        return True

    def _hold(self, folder: int, name: str, *, made: bool) -> bool:
        """Share the stand-in with other commands; False when it went away meanwhile."""
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:
            return False
        held = _Held(name, folder, descriptor)
        abandoned = not made and _is_free(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # whoever has it alone is about to remove it, and needs no time
        if not _is_same(held):
            os.close(descriptor)
            return False
        self._held.append(held)
        begun = os.fstat(descriptor).st_ctime_ns
        self.since = begun if self.since is None else min(self.since, begun)
        if abandoned:
            self.abandoned = begun if self.abandoned is None else min(self.abandoned, begun)
        return True


def has_stand_ins(workspace: str, paths: Iterable[tuple[str, ...]]) -> bool:
    """Whether stand-ins lie at the top: a command runs there, or its process was killed."""
    for name in dict.fromkeys(path[0] for path in paths):
        with suppress(OSError):
            if _is_stand_in(os.lstat(f"{workspace}/{name}")):
                return True
    return False


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_same(held: _Held) -> bool:
    try:
        there = os.stat(held.name, dir_fd=held.folder, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(there, os.fstat(held.descriptor))


def _is_stand_in(found: os.stat_result) -> bool:
    # A folder that nobody may write to. Somebody's own may look like it, but only an empty one can be removed.
    return stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o222
