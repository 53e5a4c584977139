"""Keeps the store out of the workspaces of tools: an agent that reaches it could approve its own calls."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.agent import Agent, team_of
from holdfast.errors.caller import StoreInWorkspace
from holdfast.store.paths import FOLDER, real_places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.tools import AnyTool


def check_workspaces(agents: Sequence[Agent], store: Path | str | None) -> None:
    """Raise `StoreInWorkspace` if a tool of these agents, or of their sub-agents, can reach a file of the store."""
    if not isinstance(store, str | Path) or "\0" in str(store):
        return  # in memory, or refused when it is opened
    places: tuple[str, ...] | None = None
    for member, tool in _tools(agents):
        hides = tool.reach.hides_store
        for workspace in tool.reach.workspaces:
            places = real_places(store) if places is None else places
            place = next((place for place in places if _reaches(workspace, place, hides_store=hides)), None)
            if place is not None:
                remedy = _remedy(workspace, os.path.realpath(store), place, hides_store=hides)
                raise StoreInWorkspace(member.name, tool.name, workspace, place, remedy)


def _tools(agents: Sequence[Agent]) -> Iterator[tuple[Agent, AnyTool]]:
    for agent in agents:
        if isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            for member in team_of(agent).values():
                yield from ((member, tool) for tool in member.tools.values())


def _remedy(workspace: str, store: str, place: str, *, hides_store: bool) -> str:
    if _below(place, workspace) is None:
        return "Give the tool another folder to work in"
    if not hides_store:
        return "Move the store out of that folder, or give the tool another one"
    folder = shlex.quote(f"{workspace}/{FOLDER}")
    return (
        f"Move the store to {workspace}/{FOLDER}/, which no toolkit reaches "
        f"(mkdir -m 700 -p {folder} && mv {shlex.quote(store)}* {folder}/), or out of that folder"
    )


def _reaches(workspace: str, place: str, *, hides_store: bool) -> bool:
    """Whether a workspace contains a file of the store, or lies inside a folder of the store."""
    below = _below(place, workspace)
    if below is not None:
        # Only the folder at the top of the workspace: the parent of a deeper one could be renamed by a command.
        return not (hides_store and len(below) > 1 and below[0] == FOLDER)
    return _below(workspace, place) is not None  # the folder of the mirror


def _below(path: str, folder: str) -> tuple[str, ...] | None:
    """The names that lead from `folder` to `path`; None when it is not inside.

    Folders are compared by what they are and not only by name: a bind mount, or a file system that ignores case, gives
    one folder several names.
    """
    names: list[str] = []
    for above in _upwards(path):
        if above == folder or _same(above, folder):
            return tuple(reversed(names))
        names.append(os.path.basename(above))  # noqa: PTH119
    return None


def _upwards(path: str) -> Iterator[str]:
    yield path
    while (above := os.path.dirname(path)) != path:  # noqa: PTH120
        path = above
        yield path


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)  # noqa: PTH121
    except OSError:
        return False
