"""Names in a workspace that no command may change, because others obey what is in them.

A command can't be kept from making a name that is not there, unless something is there: an empty folder stands in for
it while commands run, and is taken away when the last of them ends. Processes agree on who is the last by a lock on
the folder, which the kernel lets go of when a process is killed; the next command then takes the folder away.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from holdfast.hands.shell.errors import WorkspaceRefused

PROTECTED: Final = (
    *(".git", ".gitconfig", ".husky", ".github", ".gitlab-ci.yml"),
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile"),
    *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".envrc"),
    *(".claude", ".codex", ".cursor", ".gemini", ".holdfast", ".mcp.json"),
    *("AGENTS.md", "CLAUDE.md", "GEMINI.md", ".vscode", ".idea"),
)
"""Repositories with their hooks, what runs elsewhere, start-up files, and the configuration of agents and editors."""

_STAND_IN: Final = 0o555
_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class _Held:
    name: str
    descriptor: int


class Protection:
    """The protected names of one workspace, for as long as one command runs."""

    __slots__ = ("_folder", "_held")

    def __init__(self, workspace: str) -> None:
        self._held: list[_Held] = []
        try:
            self._folder = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceRefused(workspace, f"it can't be opened ({error.strerror})") from error
        try:
            for name in PROTECTED:
                self._protect(workspace, name)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let go; stand-ins that no other command needs are taken away."""
        for held in self._held:
            with suppress(OSError):  # another command still needs it
                fcntl.flock(held.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_stand_in(os.fstat(held.descriptor)) and self._same(held):
                    os.rmdir(held.name, dir_fd=self._folder)
            os.close(held.descriptor)
        self._held.clear()
        os.close(self._folder)

    def _protect(self, workspace: str, name: str) -> None:
        for _ in range(_TRIES):
            try:
                found = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            except FileNotFoundError:
                self._stand_in(workspace, name)
                continue
            if stat.S_ISLNK(found.st_mode):
                reason = (
                    f"{name} is a symbolic link, which can't be kept from being replaced; put a file or folder there"
                )
                raise WorkspaceRefused(workspace, reason)
            if not _is_stand_in(found) or self._hold(name):
                return
        raise WorkspaceRefused(workspace, f"{name} keeps changing")

    def _stand_in(self, workspace: str, name: str) -> None:
        try:
            os.mkdir(name, _STAND_IN, dir_fd=self._folder)
        except FileExistsError:
            return
        except OSError as error:
            raise WorkspaceRefused(workspace, f"{name} can't be protected ({error.strerror})") from error

    def _hold(self, name: str) -> bool:
        """Share the stand-in with other commands; False when it went away meanwhile."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._folder)
        except OSError:
            return False
        held = _Held(name, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # whoever has it alone is about to remove it, and needs no time
        if self._same(held):
            self._held.append(held)
            return True
        os.close(descriptor)
        return False

    def _same(self, held: _Held) -> bool:
        try:
            there = os.stat(held.name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(held.descriptor))


def _is_stand_in(found: os.stat_result) -> bool:
    # A folder that nobody may write to. Somebody's own may look like it, but only an empty one can be removed.
    return stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o222
