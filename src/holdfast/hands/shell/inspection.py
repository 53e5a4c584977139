"""What a command left in a workspace: protected names that appeared, and git repositories, which are disarmed.

No sandbox can keep a command that may write from making a folder and a repository in it, with or without the name
`.git`, and git on the host runs programs that the configuration of a repository names. So after each command, when none
of its processes is left, the whole workspace is walked. A repository that was made meanwhile is disarmed: its HEAD is
renamed, and git no longer takes the folder for a repository. One that was there before is disarmed where what git runs
in it has changed (`inventory`).

The kernel sets the change time of a file, and nobody can set it back. That tells what is new.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from holdfast.hands.files.repositories import HEAD, is_repository
from holdfast.hands.shell.inventory import MOST_FOLDERS, REPOSITORY, file_digest, has_changed, program_digest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from holdfast.hands.files.confined import Opener
    from holdfast.hands.files.protected import Protection

DISARMED: Final = ".disarmed"

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_MOST_PATH: Final = 4_000
_MOST_TOLD: Final = 1_000
"""How many names of each kind are kept."""
_SLACK_NS: Final = 2_000_000_000
"""Some file systems keep times to two seconds."""


@dataclass(slots=True)
class Findings:
    """What appeared in a workspace while commands ran."""

    names: list[str] = field(default_factory=list[str])
    """Protected names that were made or changed."""
    disarmed: list[str] = field(default_factory=list[str])
    """Repositories that were made or changed, and are none any more."""
    armed: list[str] = field(default_factory=list[str])
    """Repositories that could not be disarmed."""
    left_out: int = 0
    """How many more there are of them."""
    unread: int = 0
    """Folders that could not be looked into."""

    def add(self, other: Findings) -> None:
        """Take in what an earlier walk found."""
        for mine, more in ((self.names, other.names), (self.disarmed, other.disarmed), (self.armed, other.armed)):
            known = set(mine)
            mine += [name for name in more if name not in known]
        self.left_out += other.left_out
        self.unread = max(self.unread, other.unread)

    def note(self, kind: list[str], path: str) -> None:
        """Add a path to one of the lists, as long as there is room."""
        if len(kind) < _MOST_TOLD:
            kind.append(path)
        else:
            self.left_out += 1


class Inspection:
    """One walk through a workspace. `kept` are paths that no command could change; they are passed over.

    `known` are the repositories that were there before, as `inventory` has them.
    """

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        root: int,
        opener: Opener,
        protection: Protection,
        kept: Collection[str],
        since: int,
        known: Mapping[str, bytes],
    ) -> None:
        self._root = root
        self._opener = opener
        self._protection = protection
        self._kept = kept
        self._since = since - _SLACK_NS
        self._known = known
        self._harmless: set[str] = set()
        self.found = Findings()

    def run(self) -> Findings:
        """Walk, breadth first, without following links."""
        todo: deque[tuple[tuple[str, ...], bool]] = deque([((), False)])
        looked = 0
        while todo:
            folder, covered = todo.popleft()
            looked += 1
            if looked > MOST_FOLDERS:
                self.found.unread += 1 + len(todo)
                break
            todo.extend(self._look_into(folder, covered=covered))
        return self.found

    def _look_into(self, folder: tuple[str, ...], *, covered: bool) -> list[tuple[tuple[str, ...], bool]]:
        """Judge one folder; answers the folders in it. `covered`: a rule holds for a folder above."""
        descriptor = self._open(folder)
        if descriptor is None:
            return []
        below: list[tuple[tuple[str, ...], bool]] = []
        suspect = False
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    name = entry.name
                    suspect = suspect or name.upper() == HEAD
                    path = "/".join((*folder, name))
                    if path in self._kept:
                        continue
                    named = not covered and self._is_named(folder, name)
                    if named and self._is_new(entry.stat(follow_symlinks=False)):
                        self._note(descriptor, path, name, is_folder=entry.is_dir(follow_symlinks=False))
                    if entry.is_dir(follow_symlinks=False):
                        below.append(((*folder, name), covered or named))
            suspect = suspect and self._protection.repositories
            if suspect and folder and is_repository(descriptor) and self._is_armed(descriptor, "/".join(folder)):
                self._disarm(descriptor, HEAD, "/".join(folder))
        except FileNotFoundError:
            pass  # removed meanwhile, by another command
        except OSError:
            self.found.unread += 1
        finally:
            os.close(descriptor)
        return below

    def _open(self, folder: tuple[str, ...]) -> int | None:
        path = os.fsencode("/".join(folder) or ".")
        if len(path) > _MOST_PATH:
            self.found.unread += 1
            return None
        try:
            return self._opener(self._root, path, _FOLDER, follow=False)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return None  # removed or replaced meanwhile, by another command
            if error.errno == errno.EACCES and self._make_readable(path):
                with suppress(OSError):
                    return self._opener(self._root, path, _FOLDER, follow=False)
        self.found.unread += 1
        return None

    def _make_readable(self, path: bytes) -> bool:
        """Give ourselves a folder that a command closed to us: git needs no permission to list it."""
        above, _, name = path.rpartition(b"/")
        try:
            parent = self._opener(self._root, above or b".", _FOLDER, follow=False)
        except OSError:
            return False
        try:
            # Without permission to list it, a folder can still be passed through.
            descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError:
            return False
        finally:
            os.close(parent)
        try:
            found = os.fstat(descriptor)
            if not self._is_new(found):
                return False
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(found.st_mode) | 0o700)  # noqa: PTH101  not a path
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _is_named(self, folder: tuple[str, ...], name: str) -> bool:
        if name in self._harmless:
            return False
        if self._protection.rule_at(folder, name) is not None:
            return True
        if not self._protection.depends_on_folder(name):
            self._harmless.add(name)
        return False

    def _note(self, descriptor: int, path: str, name: str, *, is_folder: bool) -> None:
        leads_away = name.lower() == REPOSITORY and not is_folder and self._protection.repositories
        known = self._known.get(path)
        if leads_away and (known is None or file_digest(descriptor, name) != known):
            self._disarm(descriptor, name, path)  # it leads to a repository elsewhere
        else:
            self.found.note(self.found.names, path)

    def _is_new(self, found: os.stat_result) -> bool:
        return found.st_ctime_ns >= self._since

    def _is_armed(self, descriptor: int, path: str) -> bool:
        """Whether git would run, in an open repository, what a command may have put there."""
        known = self._known.get(path)
        if known is not None:
            return program_digest(descriptor, self._opener) != known
        return has_changed(descriptor, self._opener, self._since)

    def _disarm(self, descriptor: int, name: str, path: str) -> None:
        """Rename what makes the folder a repository. The folder may be closed to us by now."""
        for listed in (path, f"{path}/{HEAD}"):
            with suppress(ValueError):
                self.found.names.remove(listed)
        try:
            found = os.fstat(descriptor)
            if found.st_mode & 0o300 != 0o300:
                os.fchmod(descriptor, stat.S_IMODE(found.st_mode) | 0o700)
            os.rename(name, _free_name(descriptor, name), src_dir_fd=descriptor, dst_dir_fd=descriptor)
        except OSError:
            self.found.note(self.found.armed, path)
        else:
            self.found.note(self.found.disarmed, path)


def _free_name(descriptor: int, name: str) -> str:
    made = f"{name}{DISARMED}"
    try:
        os.stat(made, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return made
    return f"{made}-{token_hex(4)}"
