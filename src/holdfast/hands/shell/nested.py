"""Protected names deeper down in a workspace: repositories within it, and what agents and editors obey anywhere.

They are looked for before each command, nearest to the top first, and laid read-only over themselves by the open file,
so that nobody can put another in their place meanwhile. The folders above a repository can't be renamed either.

What no sandbox can do is to keep a command that may write from making a folder with a repository in it. Folders that
stood in for every name in every folder would not help: what they are in could be renamed, and could not be removed any
more. `inspection` finds what has appeared.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from holdfast.hands.files.repositories import HEAD, is_repository
from holdfast.hands.shell.confinement import Bind
from holdfast.hands.shell.inventory import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from holdfast.hands.files.confined import Opener
    from holdfast.hands.files.protected import Protection
    from holdfast.hands.shell.protecting import Cover

PASSED_OVER: Final = frozenset(("node_modules", ".venv", "venv", "__pycache__", ".tox", ".mypy_cache", "site-packages"))
"""Folders of other people's code: nobody works in them, and they are too many to look through."""

MOST_FOLDERS: Final = 400
"""How many folders are looked into: a command must not begin much later for it."""
MOST_NAMES: Final = 64
"""How many names deeper down are protected; repositories come first."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_log: Final = logging.getLogger("holdfast.shell")


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is deeper down in a workspace."""

    names: tuple[str, ...]
    """Protected names, as paths from the top, those nearest to it first."""
    repositories: frozenset[str]
    """Those of them that are repositories."""
    whole: bool
    """Whether everything was looked at, but for what is always passed over."""
    passed_over: bool = False
    """Whether there are folders that are always passed over."""

    @property
    def all_bound(self) -> bool:
        """Whether every repository is bound over itself, so that no command can change it."""
        return self.whole and not self.passed_over and len(self.names) <= MOST_NAMES


class Look:
    """Looks through a workspace, breadth first, without following links. `kept` are protected at the top already."""

    def __init__(
        self, root: int, opener: Opener, protection: Protection, kept: Mapping[str, Cover] | None = None
    ) -> None:
        kept = kept or {}
        self._root = root
        self._opener = opener
        self._protection = protection
        self._kept = kept
        self._names: list[str] = []
        self._repositories: set[str] = set()
        self._passed_over = any(cover.kind == "pinned" for cover in kept.values())

    def run(self) -> Seen:
        """All protected names that are there."""
        folders: deque[tuple[str, ...]] = deque([()])
        looked = 0
        while folders and looked < MOST_FOLDERS:
            looked += 1
            folders.extend(sorted(self._look_into(folders.popleft())))
        return Seen(tuple(self._names), frozenset(self._repositories), not folders, self._passed_over)

    def _look_into(self, folder: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Note the names in a folder; answers the folders in it that are to be looked into."""
        try:
            descriptor = self._opener(self._root, os.fsencode("/".join(folder) or "."), _FOLDER, follow=False)
        except OSError:
            return []  # it went away, or nobody may look into it
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
            elif is_folder and name in PASSED_OVER:
                self._passed_over = True
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
    """The names in a folder that are no links but for HEAD, and whether each is a folder."""
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if not entry.is_symlink() or entry.name == HEAD:
                    yield entry.name, entry.is_dir(follow_symlinks=False)
    except OSError:
        return


class Nested:
    """The protected names deeper down in one workspace, for as long as one command runs."""

    __slots__ = ("_open", "_opener", "_root", "binds")

    def __init__(self, root: int, opener: Opener, seen: Seen, workspace: str, kept: Collection[str] = ()) -> None:
        self._root = root
        self._opener = opener
        self._open: list[int] = []
        self.binds: tuple[Bind, ...] = ()
        try:
            paths = chosen(seen.names, seen.repositories)
            # What is covered at the top is pinned already, and binding it again would hide what lies in it.
            self.binds = tuple(self._bound((path, writable) for path, writable in paths if path not in kept))
        except BaseException:
            self.close()
            raise
        if not seen.whole or len(seen.names) > MOST_NAMES:
            _log.warning(
                "not all protected names deeper down in %r are protected: it has more than %d folders or %d such names",
                workspace,
                MOST_FOLDERS,
                MOST_NAMES,
            )

    def close(self) -> None:
        """The sandbox has what it binds: our own ends are not needed any more."""
        while self._open:
            os.close(self._open.pop())

    def _bound(self, paths: Iterable[tuple[str, bool]]) -> Iterator[Bind]:
        for path, writable in paths:
            try:
                descriptor = self._opener(self._root, os.fsencode(path), os.O_RDONLY, follow=False)
            except OSError:
                continue  # it went away, or is a link by now, or nobody may read it
            self._open.append(descriptor)
            yield Bind(path, descriptor, writable=writable)


def chosen(names: Iterable[str], repositories: Collection[str]) -> list[tuple[str, bool]]:
    """What is bound over itself, and whether it can be written: names, and the folders above repositories.

    Outer ones come first: what is bound over a folder hides what was bound in it before.
    """
    # Repositories first: what is in their hooks is run.
    kept = sorted(names, key=lambda path: (path not in repositories, path.count("/")))[:MOST_NAMES]
    pinned = above(path for path in kept if path in repositories)
    both = [*((path, True) for path in pinned), *((path, False) for path in kept)]
    return sorted(both, key=lambda bound: bound[0].count("/"))


def above(paths: Iterable[str]) -> list[str]:
    """The folders above these paths, each once."""
    found = (folder for path in paths for folder in accumulate(path.split("/")[:-1], "{}/{}".format))
    return list(dict.fromkeys(found))
