"""Protected names deeper down in a workspace: repositories within it, and what agents and editors obey anywhere.

They are looked for before each command, nearest to the top first, and laid read-only over themselves by the open file,
so that nobody can put another in their place meanwhile. The folders above a repository can't be renamed either.

What no sandbox can do is to keep a command that may write from making a folder with a repository in it. Folders that
stood in for every name in every folder would not help: what they are in could be renamed, and could not be removed any
more. So what has appeared is told in the log.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from holdfast.hands.files.confined import choose
from holdfast.hands.shell.confinement import Bind
from holdfast.hands.shell.errors import WorkspaceRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.hands.files.confined import Opener

REPOSITORY: Final = ".git"
NESTED: Final = frozenset(
    (
        *(REPOSITORY, ".envrc", ".mcp.json", "AGENTS.md", "CLAUDE.md", "GEMINI.md"),
        *(".claude", ".codex", ".cursor", ".gemini", ".holdfast", ".vscode"),
    )
)
"""Names that are obeyed wherever they are, not only at the top."""
PASSED_OVER: Final = frozenset(("node_modules", ".venv", "venv", "__pycache__", ".tox", ".mypy_cache", "site-packages"))
"""Folders of other people's code: nobody works in them, and they are too many to look through."""

MOST_FOLDERS: Final = 400
"""How many folders are looked into: a command must not begin much later for it."""
MOST_NAMES: Final = 64
"""How many names deeper down are protected; repositories come first."""
_TOLD: Final = 10

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_log: Final = logging.getLogger("holdfast.shell")


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is deeper down in a workspace."""

    names: tuple[str, ...]
    """Protected names, as paths from the top, those nearest to it first."""
    whole: bool
    """Whether everything was looked at."""


def look(root: int, opener: Opener) -> Seen:
    """Look through a workspace, breadth first. Links are not followed."""
    names: list[str] = []
    folders, looked = deque([""]), 0
    while folders and looked < MOST_FOLDERS:
        folder = folders.popleft()
        looked += 1
        below: list[str] = []
        for name, is_folder in _entries(root, opener, folder):
            if name in NESTED:
                names += [f"{folder}/{name}"] if folder else []  # those at the top are protected by their names
            elif is_folder and name not in PASSED_OVER:
                below.append(f"{folder}/{name}" if folder else name)
        folders.extend(sorted(below))
    return Seen(tuple(names), not folders)


def _entries(root: int, opener: Opener, folder: str) -> Iterator[tuple[str, bool]]:
    """The names in a folder that are no links, and whether each is a folder."""
    try:
        descriptor = opener(root, os.fsencode(folder or "."), _FOLDER, follow=False)
    except OSError:
        return  # it went away, or nobody may look into it
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if not entry.is_symlink():
                    yield entry.name, entry.is_dir(follow_symlinks=False)
    except OSError:
        return
    finally:
        os.close(descriptor)


class Nested:
    """The protected names deeper down in one workspace, for as long as one command runs."""

    __slots__ = ("_open", "_opener", "_root", "_seen", "_workspace", "binds")

    def __init__(self, workspace: str) -> None:
        self.binds: tuple[Bind, ...] = ()
        self._workspace = workspace
        self._open: list[int] = []
        try:
            self._root = os.open(workspace, _FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceRefused(workspace, f"it can't be opened ({error.strerror})") from error
        try:
            self._opener = choose(self._root)
            self._seen = look(self._root, self._opener)
            self.binds = tuple(self._bound(chosen(self._seen.names)))
        except BaseException:
            self._close()
            raise
        if not self._seen.whole or len(self._seen.names) > MOST_NAMES:
            _log.warning(
                "not all protected names deeper down in %r are protected: it has more than %d folders or %d such names",
                workspace,
                MOST_FOLDERS,
                MOST_NAMES,
            )

    def handed_over(self) -> None:
        """The sandbox has what it binds: our own ends are not needed any more."""
        while self._open:
            os.close(self._open.pop())

    def release(self) -> None:
        """The command has ended; what it made is told."""
        try:
            known = {*self._seen.names}
            new = [name for name in look(self._root, self._opener).names if name not in known]
        finally:
            self._close()
        if new:
            told = ", ".join(new[:_TOLD])
            _log.warning("protected names have appeared in %r, look at them: %s", self._workspace, told)

    def _close(self) -> None:
        self.handed_over()
        os.close(self._root)

    def _bound(self, paths: Iterable[tuple[str, bool]]) -> Iterator[Bind]:
        for path, writable in paths:
            try:
                descriptor = self._opener(self._root, os.fsencode(path), os.O_RDONLY, follow=False)
            except OSError:
                continue  # it went away, or is a link by now, or nobody may read it
            self._open.append(descriptor)
            yield Bind(path, descriptor, writable=writable)


def chosen(names: Iterable[str]) -> list[tuple[str, bool]]:
    """What is bound over itself, and whether it can be written: names, and the folders above repositories.

    Outer ones come first: what is bound over a folder hides what was bound in it before.
    """
    # Repositories first: what is in their hooks is run.
    kept = sorted(names, key=lambda path: (_last(path) != REPOSITORY, path.count("/")))[:MOST_NAMES]
    pinned = above(path for path in kept if _last(path) == REPOSITORY)
    both = [*((path, True) for path in pinned), *((path, False) for path in kept)]
    return sorted(both, key=lambda bound: bound[0].count("/"))


def above(paths: Iterable[str]) -> list[str]:
    """The folders above these paths, each once."""
    found = (folder for path in paths for folder in accumulate(path.split("/")[:-1], "{}/{}".format))
    return list(dict.fromkeys(found))


def _last(path: str) -> str:
    return path.rpartition("/")[2]
