"""The guard of one workspace while one command runs in it: before, what is protected; afterwards, what appeared."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

from holdfast.hands.files.confined import choose
from holdfast.hands.files.repositories import is_repository
from holdfast.hands.shell.errors import WorkspaceRefused
from holdfast.hands.shell.inspection import Findings, Inspection
from holdfast.hands.shell.inventory import inventory
from holdfast.hands.shell.nested import Look, Nested, Seen
from holdfast.hands.shell.protecting import Cover, StandIns, has_stand_ins

if TYPE_CHECKING:
    from holdfast.hands.files.protected import Protection
    from holdfast.hands.shell.confinement import Bind

_log: Final = logging.getLogger("holdfast.shell")
_TOLD: Final = 10


class Guard:
    """Protects the names of one workspace, from before a command starts until nothing of it is left.

    `deep` says whether bubblewrap can bind open files: only then can names deeper down be protected.
    """

    __slots__ = (
        *("_drift", "_known", "_nested", "_opener", "_protection", "_root", "_stand_ins", "_workspace"),
        "findings",
    )

    def __init__(self, workspace: str, protection: Protection, *, deep: bool) -> None:
        self._workspace = workspace
        self._protection = protection
        self._nested: Nested | None = None
        self._known: dict[str, bytes] = {}
        self.findings = Findings()
        """What appeared, once the command has ended."""
        try:
            self._root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceRefused(workspace, f"it can't be opened ({error.strerror})") from error
        try:
            self._refuse_repository()
            self._opener = choose(self._root)
            self._drift = _wall_ahead()
            self._stand_ins = StandIns(workspace, protection.literals)
        except BaseException:
            os.close(self._root)
            raise
        try:
            if self._stand_ins.abandoned is not None:
                self._inspect(self._stand_ins.abandoned, frozenset(self._stand_ins.covers))
            seen = Look(self._root, self._opener, protection, self._stand_ins.covers).run() if deep else _NOTHING
            self._nested = Nested(self._root, self._opener, seen, workspace, self._stand_ins.covers)
            if protection.repositories and not (deep and seen.all_bound):
                self._known = inventory(self._root, self._opener, self._unwritable(), self._stand_ins.since or 0)
        except BaseException:
            self.close()
            raise

    @property
    def covers(self) -> tuple[Cover, ...]:
        """What is laid over names at the top; outer ones first."""
        return tuple(sorted(self._stand_ins.covers.values(), key=lambda cover: cover.path.count("/")))

    @property
    def binds(self) -> tuple[Bind, ...]:
        """What is bound over itself deeper down."""
        return () if self._nested is None else self._nested.binds

    def handed_over(self) -> None:
        """The sandbox has what it binds."""
        if self._nested is not None:
            self._nested.close()

    def inspect(self) -> Findings:
        """Look for what appeared, also while a command ran that was killed before. No process of it may be left."""
        begun = self._stand_ins.since
        # Where the clock was set back meanwhile, what is new looks older than it is.
        since = 0 if begun is None else begun + min(_wall_ahead() - self._drift, 0)
        self._inspect(since, self._unwritable())
        return self.findings

    def close(self) -> None:
        """Let go of the workspace."""
        self.handed_over()
        self._stand_ins.release()
        os.close(self._root)

    def _refuse_repository(self) -> None:
        if self._protection.repositories and is_repository(self._root):
            reason = "it is a git repository without a working tree; give a folder with a working tree"
            raise WorkspaceRefused(self._workspace, reason)

    def _unwritable(self) -> set[str]:
        """Paths that the command can't change."""
        bound = (bind.path for bind in self.binds if not bind.writable)
        return {*bound, *(cover.path for cover in self.covers if cover.kind != "pinned")}

    def _inspect(self, since: int, kept: frozenset[str] | set[str]) -> None:
        found = Inspection(self._root, self._opener, self._protection, kept, since, self._known).run()
        self.findings.add(found)
        _log_findings(self._workspace, found)


_NOTHING: Final = Seen((), frozenset(), whole=True)


def inspect_abandoned(workspace: str, protection: Protection) -> None:
    """Look through a workspace in which a command ran when its process was killed. Others are left alone."""
    if has_stand_ins(workspace, protection.literals):
        Guard(workspace, protection, deep=False).close()


def _wall_ahead() -> int:
    return time.time_ns() - time.monotonic_ns()


def _log_findings(workspace: str, found: Findings) -> None:
    if found.names:
        _log.warning("protected names have appeared in %r, look at them: %s", workspace, _listed(found.names))
    if found.disarmed:
        reason = (
            "git repositories have appeared in %r and were disarmed (HEAD or .git was renamed; "
            "`mv HEAD.disarmed HEAD` there undoes it, if it is your own): %s"
        )
        _log.warning(reason, workspace, _listed(found.disarmed))
    if found.armed:
        reason = "git repositories have appeared in %r and could not be disarmed, do not run git there: %s"
        _log.warning(reason, workspace, _listed(found.armed))
    if found.unread:
        _log.warning("%d folders of %r could not be looked into", found.unread, workspace)


def _listed(names: list[str]) -> str:
    more = len(names) - _TOLD
    return ", ".join(names[:_TOLD]) + (f" and {more:,} more" if more > 0 else "")
