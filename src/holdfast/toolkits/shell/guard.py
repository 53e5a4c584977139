"""The guard of one command: protects names in its workspace that other programs act on.

At the top, a stand-in takes the place of each missing name. Deeper down, a scan before the command finds repositories
and files that agents and editors obey, nearest to the top first, and the sandbox binds them read-only over themselves
by the open file, so that they can't be replaced meanwhile. Folders above a repository can't be renamed.

No sandbox can keep a command with write access from creating a folder with a repository in it. Stand-ins for every name
in every folder would not help: their folder could be renamed, and could not be removed any more. `WorkspaceInspection`
finds new ones after the command.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import stat
import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from secrets import token_hex
from typing import Final

from holdfast.toolkits.files.workspace import HEAD, Opener, Protection, choose_opener, is_repository
from holdfast.toolkits.shell.policy import CoverKind, NameCover, WorkspaceRefused

# ---- the walk ----

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
MAX_WALKED_FOLDERS: Final = 1_000_000
"""Most folders of one walk: more than the limit on files lets a command create."""


@dataclass(slots=True)
class WalkedFolder:
    """One open folder of a walk."""

    path: str
    """From the top; empty for the top itself."""
    descriptor: int
    kept: Collection[str]
    below: list[str] = field(default_factory=list[str])
    """The folders among its entries so far. The walk continues with those left in this list."""
    _has_head: bool = False

    def entries(self) -> Iterator[os.DirEntry[str]]:
        """Its entries, as they are read, without those in `kept`."""
        with os.scandir(self.descriptor) as scan:
            for entry in scan:
                self._has_head = self._has_head or entry.name.upper() == HEAD
                if self.join(entry.name) not in self.kept:
                    if entry.is_dir(follow_symlinks=False):
                        self.below.append(entry.name)
                    yield entry

    def join(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def is_repository(self) -> bool:
        """True if git accepts this folder, other than the top, as a repository. Read its entries first."""
        return self._has_head and self.path != "" and is_repository(self.descriptor)


@dataclass(slots=True)
class FolderWalk:
    """A breadth-first walk through at most `most` folders below an open one, without links and paths in `kept`."""

    root: int
    opener: Opener
    kept: Collection[str]
    most: int = MAX_WALKED_FOLDERS
    left: deque[str] = field(default_factory=lambda: deque(("",)))
    """Folders that the walk has not reached."""
    unread: int = 0
    """Folders that could not be read."""

    def folders(self) -> Iterator[WalkedFolder]:
        """Each folder, while it is open."""
        for _ in range(self.most):
            if not self.left:
                return
            path = self.left.popleft()
            try:
                descriptor = self._open(os.fsencode(path or "."))
                try:
                    folder = WalkedFolder(path, descriptor, self.kept)
                    yield folder
                    self.left.extend(map(folder.join, folder.below))
                finally:
                    os.close(descriptor)
            except OSError as error:
                # Removed or replaced meanwhile, by another command.
                self.unread += error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}

    def _open(self, path: bytes) -> int:
        return self.opener(self.root, path, _FOLDER, follow=False)


@contextmanager
def _open_folder(opener: Opener, root: int, path: bytes) -> Generator[int]:
    descriptor = opener(root, path, _FOLDER, follow=False)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# ---- known repositories, by the digest of the programs that they name ----

REPOSITORY: Final = ".git"
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_BYTES: Final = 1_000_000
_MAX_HOOKS: Final = 1_000
_HOOKS: Final = "hooks"
_PROGRAM_FILES: Final = ("config", "config.worktree", "commondir")
"""Files of a repository that name programs, or the place of such files. The hooks are handled separately."""
_MARKER_NAMES: Final = (HEAD, *_PROGRAM_FILES, "objects", "refs", _HOOKS)
"""Names that make a directory a repository, or name programs in it."""


def find_repositories(root: int, opener: Opener, kept: Collection[str], since: int) -> dict[str, bytes]:
    """The digest of each repository, and of each `.git` that is a file or a link, by its path from the top.

    Leaves out those below the paths in `kept`, and those changed since `since`: a running command may have made them.
    """
    found: dict[str, bytes] = {}
    for folder in FolderWalk(root, opener, kept).folders():
        with suppress(OSError):  # it may be gone or not readable
            for entry in folder.entries():
                if entry.name.lower() == REPOSITORY and entry.name not in folder.below:
                    digest = file_digest(folder.descriptor, entry.name)  # first: a concurrent write is noticed below
                    if digest is not None and entry.stat(follow_symlinks=False).st_ctime_ns < since:
                        found[folder.join(entry.name)] = digest
            if folder.is_repository():
                digest = program_digest(folder.descriptor, opener)
                if digest is not None and not has_changed(folder.descriptor, opener, since):
                    found[folder.path] = digest
    return found


def program_digest(descriptor: int, opener: Opener) -> bytes | None:
    """Digest of the files that make git run programs in an open repository; None if one is unreadable."""
    parts = [file_digest(descriptor, name) for name in _PROGRAM_FILES]
    try:
        hooks = opener(descriptor, _HOOKS.encode(), _FOLDER, follow=False)
    except OSError:
        parts.append(file_digest(descriptor, _HOOKS))  # it is missing, or a link
    else:
        try:
            names = sorted(os.listdir(hooks))  # it is open
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
    """Digest of a file and its executable bit, or of a link's target; None if it can't be read completely."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            content = b"link:" + os.fsencode(os.readlink(name, dir_fd=folder))
        elif stat.S_ISDIR(found.st_mode):
            content = b"folder"
        elif stat.S_ISREG(found.st_mode) and found.st_size <= _MAX_BYTES:
            with open(name, "rb", opener=lambda path, _: os.open(path, _FILE, dir_fd=folder)) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # replaced meanwhile
                    return None
                data = file.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                return None
            content = b"file:%d:" % (found.st_mode & 0o111 != 0) + data
        else:
            return None
    except FileNotFoundError:
        content = b"missing"
    except OSError:
        return None
    return hashlib.sha256(content).digest()


def has_changed(descriptor: int, opener: Opener, since: int) -> bool:
    """True if any marker of an open repository has changed since then."""
    if os.fstat(descriptor).st_ctime_ns >= since:
        return True
    for name in _MARKER_NAMES:
        with suppress(OSError):
            if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_ctime_ns >= since:
                return True
    with suppress(OSError), _open_folder(opener, descriptor, _HOOKS.encode()) as hooks, os.scandir(hooks) as entries:
        return any(entry.stat(follow_symlinks=False).st_ctime_ns >= since for entry in entries)
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
_log: Final = logging.getLogger("holdfast.shell")


@dataclass(frozen=True, slots=True)
class ProtectedNames:
    """The protected names deeper in a workspace."""

    names: tuple[str, ...]
    """Paths from the top, nearest first."""
    repositories: frozenset[str]
    """Those of `names` that are repositories."""
    whole: bool
    """True if the scan was complete, except for skipped folders."""
    skipped_some: bool
    """True if the scan skipped folders."""


def scan_names(
    root: int, opener: Opener, protection: Protection, kept: Mapping[str, NameCover] | None = None
) -> ProtectedNames:
    """Scan a workspace, breadth first, without following links. The paths in `kept` are already protected."""
    kept = kept or {}
    names: list[str] = []
    repositories: set[str] = set()
    skipped_some = any(cover.kind == "pinned" for cover in kept.values())
    walk = FolderWalk(root, opener, kept, MAX_SCANNED_FOLDERS)
    for folder in walk.folders():
        entries: list[os.DirEntry[str]] = []
        with suppress(OSError):
            entries.extend(entry for entry in folder.entries() if entry.name == HEAD or not entry.is_symlink())
        if protection.repositories and folder.is_repository():
            names.append(folder.path)
            repositories.add(folder.path)
            folder.below.clear()
            continue
        above = folder.path.split("/") if folder.path else []
        below = set(folder.below)
        for name in (entry.name for entry in entries):
            if protection.rule_at(above, name) is not None:
                names.append(folder.join(name))
                if name == REPOSITORY:
                    repositories.add(folder.join(name))
                below.discard(name)
        skipped_some = skipped_some or not below.isdisjoint(DEPENDENCY_FOLDERS)
        folder.below = sorted(below - DEPENDENCY_FOLDERS)
    return ProtectedNames(tuple(names), frozenset(repositories), not walk.left, skipped_some)


def choose_covers(names: Iterable[str], repositories: Collection[str]) -> list[NameCover]:
    """The covers of these names, which are kept, and of the folders above repositories, which are pinned.

    Outer ones come first: a bind over a folder hides earlier binds in it.
    """
    # Repositories first: their hooks run.
    kept = sorted(names, key=lambda path: (path not in repositories, path.count("/")))[:MAX_BOUND_NAMES]
    pinned = [
        folder for path in kept if path in repositories for folder in accumulate(path.split("/")[:-1], "{}/{}".format)
    ]
    both = [*(NameCover(path, "pinned") for path in dict.fromkeys(pinned)), *(NameCover(path, "kept") for path in kept)]
    return sorted(both, key=_depth)


def _depth(cover: NameCover) -> int:
    return cover.path.count("/")


# ---- the inspection after a command ----

DISARMED_SUFFIX: Final = ".disarmed"
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


@dataclass(slots=True, kw_only=True)
class WorkspaceInspection(FolderWalk):
    """One walk through a workspace. `kept` are paths that no command could change."""

    protection: Protection
    since: int
    known: Mapping[str, bytes]
    """The earlier repositories, from `find_repositories`."""
    found: Findings = field(default_factory=Findings)
    _harmless: set[str] = field(default_factory=set[str])
    """Names that no rule protects in any folder."""
    _covered: set[str] = field(default_factory=set[str])
    """Folders for which a rule holds, or for a folder above."""

    def run(self) -> Findings:
        for folder in self.folders():
            try:
                self._inspect_folder(folder)
            except FileNotFoundError:
                pass  # removed meanwhile, by another command
            except OSError:
                self.unread += 1
        self.found.unread = self.unread + len(self.left)
        return self.found

    def _inspect_folder(self, folder: WalkedFolder) -> None:
        is_covered = folder.path in self._covered
        above = folder.path.split("/") if folder.path else []
        for entry in folder.entries():
            if not is_covered and self._is_named(above, entry.name):
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder:
                    self._covered.add(folder.join(entry.name))
                if self._is_new(entry.stat(follow_symlinks=False)):
                    path = folder.join(entry.name)
                    leads_away = entry.name.lower() == REPOSITORY and not is_folder and self.protection.repositories
                    known = self.known.get(path)
                    if leads_away and (known is None or file_digest(folder.descriptor, entry.name) != known):
                        self._disarm(folder.descriptor, entry.name, path)  # it leads to a repository elsewhere
                    else:
                        self.found.note(self.found.names, path)
        if is_covered:
            self._covered.update(map(folder.join, folder.below))
        if self.protection.repositories and folder.is_repository():
            known = self.known.get(folder.path)
            # Would git run programs in it that a command may have put there?
            if known is None:
                is_armed = has_changed(folder.descriptor, self.opener, self.since)
            else:
                is_armed = program_digest(folder.descriptor, self.opener) != known
            if is_armed:
                self._disarm(folder.descriptor, HEAD, folder.path)

    def _open(self, path: bytes) -> int:
        try:
            return self.opener(self.root, path, _FOLDER, follow=False)
        except PermissionError:
            if not self._make_readable(path):
                raise
            return self.opener(self.root, path, _FOLDER, follow=False)

    def _make_readable(self, path: bytes) -> bool:
        """Make a folder readable that a command made unreadable: git needs no permission to list it."""
        above, _, name = path.rpartition(b"/")
        try:
            with _open_folder(self.opener, self.root, above or b".") as parent:
                # Without permission to list it, a folder can still be passed through.
                descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError:
            return False
        try:
            found = os.fstat(descriptor)
            if self._is_new(found):
                os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(found.st_mode) | 0o700)  # noqa: PTH101  not a path
            return self._is_new(found)
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _is_named(self, folder: list[str], name: str) -> bool:
        if name in self._harmless:
            return False
        if self.protection.rule_at(folder, name) is not None:
            return True
        if not self.protection.depends_on_folder(name):
            self._harmless.add(name)
        return False

    def _is_new(self, found: os.stat_result) -> bool:
        return found.st_ctime_ns >= self.since

    def _disarm(self, descriptor: int, name: str, path: str) -> None:
        """Rename the file that makes the folder a repository. The folder may be unreadable by now."""
        for listed in (path, f"{path}/{HEAD}"):
            with suppress(ValueError):
                self.found.names.remove(listed)
        try:
            found = os.fstat(descriptor)
            if found.st_mode & 0o300 != 0o300:
                os.fchmod(descriptor, stat.S_IMODE(found.st_mode) | 0o700)
            free = f"{name}{DISARMED_SUFFIX}"
            with suppress(FileNotFoundError):
                os.stat(free, dir_fd=descriptor, follow_symlinks=False)
                free += f"-{token_hex(4)}"
            os.rename(name, free, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        except OSError:
            self.found.note(self.found.armed, path)
        else:
            self.found.note(self.found.disarmed, path)


# ---- stand-ins for protected names at the top of a workspace ----

_STAND_IN: Final = 0o555
_TRIES: Final = 100
_TOP: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StandIns:
    """The protected names at the top of one workspace, while one command runs."""

    def __init__(self, workspace: str, root: int, paths: Iterable[tuple[str, ...]]) -> None:
        self._workspace = workspace
        self._held: list[tuple[int, str, int]] = []
        """Stand-ins by folder and name, with their own descriptors."""
        self._folders: dict[tuple[str, ...], int] = {(): os.dup(root)}
        self.covers: dict[str, NameCover] = {}
        self.since: int | None = None
        """Begin of uninterrupted commands here, in nanoseconds of the file system's clock."""
        self.abandoned: int | None = None
        """Earliest start of a command whose process was killed; None if there is no such command."""
        try:
            for path in paths:  # if a folder on its way is missing, that folder is protected instead
                for size in range(1, len(path) + 1):
                    if self._protect_name(path[:size], last=size == len(path)) != "pinned":
                        break
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the locks, and remove stand-ins that no other command needs."""
        for folder, name, descriptor in self._held:
            with suppress(OSError):  # another command still needs it
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_stand_in(os.fstat(descriptor)) and _is_same(folder, name, descriptor):
                    os.rmdir(name, dir_fd=folder)
            os.close(descriptor)
        self._held.clear()
        for descriptor in self._folders.values():
            os.close(descriptor)
        self._folders.clear()

    def _protect_name(self, path: tuple[str, ...], *, last: bool) -> CoverKind:
        shown = "/".join(path)
        if shown in self.covers and (self.covers[shown].kind != "pinned" or not last):
            return self.covers[shown].kind
        folder, name = self._folders[path[:-1]], path[-1]
        made = False
        for _ in range(_TRIES):
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                try:
                    os.mkdir(name, _STAND_IN, dir_fd=folder)
                    made = True
                except FileExistsError:
                    made = False
                except OSError as error:
                    raise WorkspaceRefused(self._workspace, f"{shown} can't be protected ({error.strerror})") from error
                continue
            if stat.S_ISLNK(found.st_mode):
                reason = "is a symbolic link, which can't be kept from being replaced; put a file or folder there"
                raise WorkspaceRefused(self._workspace, f"{shown} {reason}")
            if _is_stand_in(found):
                if not self._hold(folder, name, made=made):
                    continue
                kind = "stand-in"
            elif last or not stat.S_ISDIR(found.st_mode):
                kind = "kept"
            else:
                kind = "pinned"
                if path not in self._folders:
                    try:
                        self._folders[path] = os.open(name, _TOP, dir_fd=folder)
                    except OSError as error:
                        raise WorkspaceRefused(
                            self._workspace, f"{shown} can't be opened ({error.strerror})"
                        ) from error
            self.covers[shown] = NameCover(shown, kind)
            return kind
        raise WorkspaceRefused(self._workspace, f"{shown} keeps changing")

    def _hold(self, folder: int, name: str, *, made: bool) -> bool:
        """Share the stand-in with other commands; False if it was removed meanwhile."""
        try:
            descriptor = os.open(name, _TOP, dir_fd=folder)
        except OSError:
            return False
        abandoned = False
        if not made:
            with suppress(OSError):  # a running command shares the lock
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                abandoned = True
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # a process with an exclusive lock is about to remove it, quickly
        if not _is_same(folder, name, descriptor):
            os.close(descriptor)
            return False
        self._held.append((folder, name, descriptor))
        begun = os.fstat(descriptor).st_ctime_ns
        self.since = begun if self.since is None else min(self.since, begun)
        if abandoned:
            self.abandoned = begun if self.abandoned is None else min(self.abandoned, begun)
        return True


def _is_same(folder: int, name: str, descriptor: int) -> bool:
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _is_stand_in(found: os.stat_result) -> bool:
    # A folder without write permission. A user's own folder may look like it, but only an empty one is removed.
    return stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o222


# ---- the guard of one command ----

_UNDO: Final = "HEAD or .git was renamed; `mv HEAD.disarmed HEAD` there undoes it, if it is your own"


class WorkspaceGuard:
    """Protects the names of one workspace, from before a command starts until all its processes have ended.

    `deep`: bubblewrap can bind open files; only then are names deeper down protected.
    """

    def __init__(self, workspace: str, protection: Protection, *, deep: bool) -> None:
        self._workspace = workspace
        self._protection = protection
        self._bound: list[int] = []
        self._known: dict[str, bytes] = {}
        self.findings = Findings()
        """Names that appeared, once the command has ended."""
        with ExitStack() as stack:
            try:
                self._root = os.open(workspace, _TOP)
            except OSError as error:
                raise WorkspaceRefused(workspace, f"it can't be opened ({error.strerror})") from error
            stack.callback(os.close, self._root)
            if protection.repositories and is_repository(self._root):
                reason = "it is a git repository without a working tree; give a folder with a working tree"
                raise WorkspaceRefused(workspace, reason)
            self._opener = choose_opener(self._root)
            self._drift = _clock_offset()
            self._stand_ins = StandIns(workspace, self._root, protection.literals)
            stack.callback(self._stand_ins.release)
            stack.callback(self.handed_over)
            top = self._stand_ins.covers
            self.covers = sorted(top.values(), key=_depth)
            """Covers of names at the top, then deeper down; outer ones first."""
            if self._stand_ins.abandoned is not None:
                self._inspect(self._stand_ins.abandoned, top)
            all_bound = False
            """True if every repository is bound over itself, so that no command can change it."""
            if deep:
                found = scan_names(self._root, self._opener, protection, top)
                all_bound = self._bind(found) and not found.skipped_some
            if protection.repositories and not all_bound:
                since = self._stand_ins.since or 0
                self._known = find_repositories(self._root, self._opener, self._unwritable(), since)
            self._stack = stack.pop_all()

    def _bind(self, found: ProtectedNames) -> bool:
        """Bind names deeper down over themselves; True if the scan saw every folder, and none of its names is left out.

        Folders that the scan skips don't count.
        """
        for cover in choose_covers(found.names, found.repositories):
            # A name covered at the top is pinned already, and a second bind would hide its contents.
            if cover.path not in self._stand_ins.covers:
                with suppress(OSError):  # it is gone, a link by now, or not readable
                    descriptor = self._opener(self._root, os.fsencode(cover.path), os.O_RDONLY, follow=False)
                    self._bound.append(descriptor)
                    self.covers.append(replace(cover, descriptor=descriptor))
        is_whole = found.whole and len(found.names) <= MAX_BOUND_NAMES
        if not is_whole:
            _log.warning(
                "not all protected names deeper down in %r are protected: it has more than %d folders or %d such names",
                self._workspace,
                MAX_SCANNED_FOLDERS,
                MAX_BOUND_NAMES,
            )
        return is_whole

    def handed_over(self) -> None:
        """Close the descriptors of the binds: the sandbox has them."""
        while self._bound:
            os.close(self._bound.pop())

    def inspect(self) -> Findings:
        """Find names that appeared, also during an earlier command that was killed. All processes must have ended."""
        begun = self._stand_ins.since
        # After the clock was set back, new files look older than they are.
        since = 0 if begun is None else begun + min(_clock_offset() - self._drift, 0)
        self._inspect(since, self._unwritable())
        return self.findings

    def close(self) -> None:
        """Release the stand-ins and close the workspace."""
        self._stack.close()

    def _unwritable(self) -> set[str]:
        return {cover.path for cover in self.covers if cover.kind != "pinned"}

    def _inspect(self, since: int, kept: Collection[str]) -> None:
        since -= _SLACK_NS
        found = WorkspaceInspection(
            self._root, self._opener, kept, protection=self._protection, since=since, known=self._known
        ).run()
        self.findings.add(found)
        for names, what in (
            (found.names, "protected names have appeared in %r, look at them: %s"),
            (found.disarmed, f"git repositories have appeared in %r and were disarmed ({_UNDO}): %s"),
            (found.armed, "git repositories have appeared in %r and could not be disarmed, do not run git there: %s"),
        ):
            if names:
                _log.warning(what, self._workspace, list_names(names, 10))
        if found.unread:
            _log.warning("%d folders of %r could not be looked into", found.unread, self._workspace)


def inspect_abandoned(workspace: str, protection: Protection) -> None:
    """Inspect a workspace with stand-ins at its top: a command runs there, or its process was killed."""
    tops: list[os.stat_result] = []
    for name in dict.fromkeys(path[0] for path in protection.literals):
        with suppress(OSError):
            tops.append(os.lstat(f"{workspace}/{name}"))
    if any(map(_is_stand_in, tops)):
        WorkspaceGuard(workspace, protection, deep=False).close()


def _clock_offset() -> int:
    return time.time_ns() - time.monotonic_ns()


def list_names(names: list[str], most: int) -> str:
    """The first names, and the number of the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
