"""Protection of names deeper in a workspace: repositories, and files that agents and editors obey anywhere.

Before each command, a scan finds them, nearest to the top first, and the sandbox binds them read-only over themselves
by the open file, so that nothing can replace them meanwhile. The folders above a repository can't be renamed either.

No sandbox can keep a command that may write from creating a folder with a repository in it. Stand-ins for every name in
every folder would not help: their folder could be renamed, and could not be removed any more. `WorkspaceInspection`
finds what has appeared after the command.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from holdfast.toolkits.files.workspace import HEAD, choose_opener, is_repository
from holdfast.toolkits.shell.policy import OpenBind, WorkspaceRefused
from holdfast.toolkits.shell.sandbox import NameCover, StandIns, has_stand_ins

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from holdfast.toolkits.files.workspace import Opener, Protection


# ---- known repositories, by the digest of the programs that they name ----

REPOSITORY: Final = ".git"
MAX_WALKED_FOLDERS: Final = 1_000_000
"""Most folders of one walk: more than the limit on files lets a command create."""
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_BYTES: Final = 1_000_000
_MAX_HOOKS: Final = 1_000
_HOOKS: Final = "hooks"
_PROGRAM_FILES: Final = ("config", "config.worktree", "commondir")
"""Files of a repository that name programs, or the place of such files. The hooks are beside them."""
_MARKER_NAMES: Final = (HEAD, *_PROGRAM_FILES, "objects", "refs", _HOOKS)
"""Names that make a directory a repository, or name programs in it."""


def find_repositories(root: int, opener: Opener, kept: Collection[str], since: int) -> dict[str, bytes]:
    """The digest of each repository, and of each `.git` that is a file or a link, by its path from the top.

    Those that changed since `since` are left out: a running command may have made them. So are those below the paths in
    `kept`.
    """
    found: dict[str, bytes] = {}
    todo = [""]
    looked = 0
    for folder in todo:  # it grows meanwhile, breadth first
        looked += 1
        if looked > MAX_WALKED_FOLDERS:
            break
        try:
            descriptor = opener(root, os.fsencode(folder or "."), _FOLDER, follow=False)
        except OSError:
            continue  # it is gone or not readable
        try:
            todo += _scan_for_repositories(descriptor, opener, folder, kept, since, found)
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return found


def _scan_for_repositories(
    descriptor: int, opener: Opener, folder: str, kept: Collection[str], since: int, found: dict[str, bytes]
) -> list[str]:
    """Note the repositories of one folder; returns its subfolders."""
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
                digest = file_digest(descriptor, name)  # before its change time, to notice a concurrent write
                if digest is not None and entry.stat(follow_symlinks=False).st_ctime_ns < since:
                    found[path] = digest
    if suspect and folder and is_repository(descriptor):
        digest = program_digest(descriptor, opener)
        if digest is not None and not has_changed(descriptor, opener, since):
            found[folder] = digest
    return below


def program_digest(descriptor: int, opener: Opener) -> bytes | None:
    """Digest of the files that make git run programs in an open repository; None if one can't be read."""
    parts = [file_digest(descriptor, name) for name in _PROGRAM_FILES]
    try:
        hooks = opener(descriptor, _HOOKS.encode(), _FOLDER, follow=False)
    except OSError:
        parts.append(file_digest(descriptor, _HOOKS))  # it is missing, or a link
    else:
        try:
            names = sorted(os.listdir(hooks))  # noqa: PTH208  it is open
            if len(names) > _MAX_HOOKS:
                return None
            for name in names:
                parts += (hashlib.sha256(os.fsencode(name)).digest(), file_digest(hooks, name))
        except OSError:
            return None
        finally:
            os.close(hooks)
    whole = [part for part in parts if part is not None]
    return hashlib.sha256(b"".join(whole)).digest() if len(whole) == len(parts) else None


def file_digest(folder: int, name: str) -> bytes | None:
    """Digest of a file and its executable bit, or of a link's target; None if it can't be read as a whole."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            return hashlib.sha256(b"link:" + os.fsencode(os.readlink(name, dir_fd=folder))).digest()
        if stat.S_ISDIR(found.st_mode):
            return hashlib.sha256(b"folder").digest()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            return None
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except FileNotFoundError:
        return hashlib.sha256(b"missing").digest()
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            content = file.read(_MAX_BYTES + 1)
        except OSError:
            return None
    runs = found.st_mode & 0o111 != 0
    return hashlib.sha256(b"file:%d:" % runs + content).digest() if len(content) <= _MAX_BYTES else None


def has_changed(descriptor: int, opener: Opener, since: int) -> bool:
    """Whether any marker of an open repository has changed since then."""
    if os.fstat(descriptor).st_ctime_ns >= since:
        return True
    for name in _MARKER_NAMES:
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


# ---- the scan before a command ----

DEPENDENCY_FOLDERS: Final = frozenset(
    ("node_modules", ".venv", "venv", "__pycache__", ".tox", ".mypy_cache", "site-packages")
)
"""Folders of dependencies: too many to scan, and no one edits them."""
MAX_SCANNED_FOLDERS: Final = 400
"""Most folders of one scan: it delays the command."""
MAX_BOUND_NAMES: Final = 64
"""Most names deeper down that are protected; repositories come first."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_log: Final = logging.getLogger("holdfast.shell")


@dataclass(frozen=True, slots=True)
class ProtectedNames:
    """The protected names deeper in a workspace."""

    names: tuple[str, ...]
    """Paths from the top, nearest first."""
    repositories: frozenset[str]
    """Those of `names` that are repositories."""
    whole: bool
    """Whether the scan was complete, except for skipped folders."""
    skipped_some: bool = False
    """Whether there are folders that a scan skips."""

    @property
    def all_bound(self) -> bool:
        """Whether every repository is bound over itself, so that no command can change it."""
        return self.whole and not self.skipped_some and len(self.names) <= MAX_BOUND_NAMES


class NameScan:
    """Scans a workspace, breadth first, without following links. `kept` are already protected at the top."""

    def __init__(
        self, root: int, opener: Opener, protection: Protection, kept: Mapping[str, NameCover] | None = None
    ) -> None:
        kept = kept or {}
        self._root = root
        self._opener = opener
        self._protection = protection
        self._kept = kept
        self._names: list[str] = []
        self._repositories: set[str] = set()
        self._skipped_some = any(cover.kind == "pinned" for cover in kept.values())

    def run(self) -> ProtectedNames:
        """All protected names."""
        folders: deque[tuple[str, ...]] = deque([()])
        looked = 0
        while folders and looked < MAX_SCANNED_FOLDERS:
            looked += 1
            folders.extend(sorted(self._scan_folder(folders.popleft())))
        return ProtectedNames(tuple(self._names), frozenset(self._repositories), not folders, self._skipped_some)

    def _scan_folder(self, folder: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Note the names in a folder; returns the subfolders to scan."""
        try:
            descriptor = self._opener(self._root, os.fsencode("/".join(folder) or "."), _FOLDER, follow=False)
        except OSError:
            return []  # it is gone or not readable
        try:
            entries = [*_entries(descriptor)]
            if folder and self._is_repository(descriptor, entries):
                self._note("/".join(folder), repository=True)
                return []
        finally:
            os.close(descriptor)
        below: list[tuple[str, ...]] = []
        for name, is_folder in entries:
            path = "/".join((*folder, name))
            if path in self._kept:
                continue
            if self._protection.rule_at(folder, name) is not None:
                self._note(path, repository=name == REPOSITORY)
            elif is_folder and name in DEPENDENCY_FOLDERS:
                self._skipped_some = True
            elif is_folder:
                below.append((*folder, name))
        return below

    def _is_repository(self, descriptor: int, entries: Iterable[tuple[str, bool]]) -> bool:
        named = any(name.upper() == HEAD for name, _ in entries)
        return named and self._protection.repositories and is_repository(descriptor)

    def _note(self, path: str, *, repository: bool) -> None:
        self._names.append(path)
        if repository:
            self._repositories.add(path)


def _entries(descriptor: int) -> Iterator[tuple[str, bool]]:
    """The names in a folder that are no links (except HEAD), and whether each is a folder."""
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if not entry.is_symlink() or entry.name == HEAD:
                    yield entry.name, entry.is_dir(follow_symlinks=False)
    except OSError:
        return


class BoundNames:
    """The protected names deeper in one workspace, while one command runs."""

    __slots__ = ("_open", "_opener", "_root", "binds")

    def __init__(
        self, root: int, opener: Opener, names_found: ProtectedNames, workspace: str, kept: Collection[str] = ()
    ) -> None:
        self._root = root
        self._opener = opener
        self._open: list[int] = []
        self.binds: tuple[OpenBind, ...] = ()
        try:
            paths = choose_binds(names_found.names, names_found.repositories)
            # A name covered at the top is pinned already, and a second bind would hide its contents.
            self.binds = tuple(self._bound((path, writable) for path, writable in paths if path not in kept))
        except BaseException:
            self.close()
            raise
        if not names_found.whole or len(names_found.names) > MAX_BOUND_NAMES:
            _log.warning(
                "not all protected names deeper down in %r are protected: it has more than %d folders or %d such names",
                workspace,
                MAX_SCANNED_FOLDERS,
                MAX_BOUND_NAMES,
            )

    def close(self) -> None:
        """Close the descriptors: the sandbox has them."""
        while self._open:
            os.close(self._open.pop())

    def _bound(self, paths: Iterable[tuple[str, bool]]) -> Iterator[OpenBind]:
        for path, writable in paths:
            try:
                descriptor = self._opener(self._root, os.fsencode(path), os.O_RDONLY, follow=False)
            except OSError:
                continue  # it is gone, a link by now, or not readable
            self._open.append(descriptor)
            yield OpenBind(path, descriptor, writable=writable)


def choose_binds(names: Iterable[str], repositories: Collection[str]) -> list[tuple[str, bool]]:
    """The paths to bind over themselves, and whether each is writable: names, and the folders above repositories.

    Outer ones come first: a bind over a folder hides earlier binds in it.
    """
    # Repositories first: their hooks run.
    kept = sorted(names, key=lambda path: (path not in repositories, path.count("/")))[:MAX_BOUND_NAMES]
    pinned = folders_above(path for path in kept if path in repositories)
    both = [*((path, True) for path in pinned), *((path, False) for path in kept)]
    return sorted(both, key=lambda bound: bound[0].count("/"))


def folders_above(paths: Iterable[str]) -> list[str]:
    """The folders above these paths, each once."""
    found = (folder for path in paths for folder in accumulate(path.split("/")[:-1], "{}/{}".format))
    return list(dict.fromkeys(found))


# ---- the inspection after a command ----

DISARMED_SUFFIX: Final = ".disarmed"
_MAX_PATH: Final = 4_000
_MAX_LISTED: Final = 1_000
_SLACK_NS: Final = 2_000_000_000
"""Some file systems keep times to two seconds."""


@dataclass(slots=True)
class Findings:
    """Names that appeared in a workspace while commands ran."""

    names: list[str] = field(default_factory=list[str])
    """Protected names that were created or changed."""
    disarmed: list[str] = field(default_factory=list[str])
    """Repositories that were created or changed, and are disarmed now."""
    armed: list[str] = field(default_factory=list[str])
    """Repositories that could not be disarmed."""
    left_out: int = 0
    """Number of further names."""
    unread: int = 0
    """Folders that could not be read."""

    def add(self, other: Findings) -> None:
        """Add the findings of an earlier inspection."""
        for mine, more in ((self.names, other.names), (self.disarmed, other.disarmed), (self.armed, other.armed)):
            known = set(mine)
            mine += [name for name in more if name not in known]
        self.left_out += other.left_out
        self.unread = max(self.unread, other.unread)

    def note(self, kind: list[str], path: str) -> None:
        """Add a path to one of the lists, within `_MAX_LISTED`."""
        if len(kind) < _MAX_LISTED:
            kind.append(path)
        else:
            self.left_out += 1


class WorkspaceInspection:
    """One walk through a workspace. `kept` are paths that no command could change; it skips them.

    `known` are the earlier repositories, from `find_repositories`.
    """

    def __init__(
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
            if looked > MAX_WALKED_FOLDERS:
                self.found.unread += 1 + len(todo)
                break
            todo.extend(self._scan_folder(folder, covered=covered))
        return self.found

    def _scan_folder(self, folder: tuple[str, ...], *, covered: bool) -> list[tuple[tuple[str, ...], bool]]:
        """Inspect one folder; returns its subfolders. `covered`: a rule holds for a folder above."""
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
        if len(path) > _MAX_PATH:
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
        """Make a folder readable that a command made unreadable: git needs no permission to list it."""
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
        """Whether git would run, in an open repository, programs that a command may have put there."""
        known = self._known.get(path)
        if known is not None:
            return program_digest(descriptor, self._opener) != known
        return has_changed(descriptor, self._opener, self._since)

    def _disarm(self, descriptor: int, name: str, path: str) -> None:
        """Rename the file that makes the folder a repository. The folder may be unreadable by now."""
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
    made = f"{name}{DISARMED_SUFFIX}"
    try:
        os.stat(made, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return made
    return f"{made}-{token_hex(4)}"


# ---- the guard of one command ----

_MAX_LOGGED: Final = 10


class WorkspaceGuard:
    """Protects the names of one workspace, from before a command starts until all its processes have ended.

    `deep`: bubblewrap can bind open files. Only then are names deeper down protected.
    """

    __slots__ = (
        *("_drift", "_known", "_nested", "_opener", "_protection", "_root", "_stand_ins", "_workspace"),
        "findings",
    )

    def __init__(self, workspace: str, protection: Protection, *, deep: bool) -> None:
        self._workspace = workspace
        self._protection = protection
        self._nested: BoundNames | None = None
        self._known: dict[str, bytes] = {}
        self.findings = Findings()
        """Names that appeared, once the command has ended."""
        try:
            self._root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceRefused(workspace, f"it can't be opened ({error.strerror})") from error
        try:
            if protection.repositories and is_repository(self._root):
                reason = "it is a git repository without a working tree; give a folder with a working tree"
                raise WorkspaceRefused(workspace, reason)  # noqa: TRY301  the root is closed below
            self._opener = choose_opener(self._root)
            self._drift = _clock_offset()
            self._stand_ins = StandIns(workspace, protection.literals)
        except BaseException:
            os.close(self._root)
            raise
        try:
            if self._stand_ins.abandoned is not None:
                self._inspect(self._stand_ins.abandoned, frozenset(self._stand_ins.covers))
            names_found = (
                NameScan(self._root, self._opener, protection, self._stand_ins.covers).run() if deep else _NO_NAMES
            )
            self._nested = BoundNames(self._root, self._opener, names_found, workspace, self._stand_ins.covers)
            if protection.repositories and not (deep and names_found.all_bound):
                self._known = find_repositories(
                    self._root, self._opener, self._unwritable(), self._stand_ins.since or 0
                )
        except BaseException:
            self.close()
            raise

    @property
    def covers(self) -> tuple[NameCover, ...]:
        """The covers of names at the top; outer ones first."""
        return tuple(sorted(self._stand_ins.covers.values(), key=lambda cover: cover.path.count("/")))

    @property
    def binds(self) -> tuple[OpenBind, ...]:
        """The binds deeper down."""
        return () if self._nested is None else self._nested.binds

    def handed_over(self) -> None:
        """Close the descriptors of the binds: the sandbox has them."""
        if self._nested is not None:
            self._nested.close()

    def inspect(self) -> Findings:
        """Find names that appeared, also during an earlier command that was killed. All processes must have ended."""
        begun = self._stand_ins.since
        # After the clock was set back, new files look older than they are.
        since = 0 if begun is None else begun + min(_clock_offset() - self._drift, 0)
        self._inspect(since, self._unwritable())
        return self.findings

    def close(self) -> None:
        """Let go of the workspace."""
        self.handed_over()
        self._stand_ins.release()
        os.close(self._root)

    def _unwritable(self) -> set[str]:
        """Paths that the command can't change."""
        bound = (bind.path for bind in self.binds if not bind.writable)
        return {*bound, *(cover.path for cover in self.covers if cover.kind != "pinned")}

    def _inspect(self, since: int, kept: frozenset[str] | set[str]) -> None:
        found = WorkspaceInspection(self._root, self._opener, self._protection, kept, since, self._known).run()
        self.findings.add(found)
        _log_findings(self._workspace, found)


_NO_NAMES: Final = ProtectedNames((), frozenset(), whole=True)


def inspect_abandoned(workspace: str, protection: Protection) -> None:
    """Inspect a workspace in which a command ran when its process was killed. Other workspaces are left alone."""
    if has_stand_ins(workspace, protection.literals):
        WorkspaceGuard(workspace, protection, deep=False).close()


def _clock_offset() -> int:
    return time.time_ns() - time.monotonic_ns()


def _log_findings(workspace: str, found: Findings) -> None:
    if found.names:
        _log.warning("protected names have appeared in %r, look at them: %s", workspace, _list_names(found.names))
    if found.disarmed:
        reason = (
            "git repositories have appeared in %r and were disarmed (HEAD or .git was renamed; "
            "`mv HEAD.disarmed HEAD` there undoes it, if it is your own): %s"
        )
        _log.warning(reason, workspace, _list_names(found.disarmed))
    if found.armed:
        reason = "git repositories have appeared in %r and could not be disarmed, do not run git there: %s"
        _log.warning(reason, workspace, _list_names(found.armed))
    if found.unread:
        _log.warning("%d folders of %r could not be looked into", found.unread, workspace)


def _list_names(names: list[str]) -> str:
    more = len(names) - _MAX_LOGGED
    return ", ".join(names[:_MAX_LOGGED]) + (f" and {more:,} more" if more > 0 else "")
