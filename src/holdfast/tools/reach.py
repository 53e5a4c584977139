"""What a tool touches, in words that policies understand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.errors import ToolInvalid

if TYPE_CHECKING:
    from collections.abc import Collection

_TEXTS: Final = ("family", "base", "command", "url", "sandbox")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What calls of a tool touch: for rules about paths, commands and addresses, and for what makes a turn ask.

    `paths`, `command` and `url` are names of parameters.
    """

    family: str | None = None
    """A name that rules may use for several tools together."""
    private: bool = False
    """What it returns is not meant for everybody."""
    external: bool | None = None
    """It reaches somebody outside, who may learn from it or be acted upon. None: it does unless it is `read_only`."""
    paths: tuple[str, ...] = ()
    base: str | None = None
    """The folder to which relative paths belong."""
    command: str | None = None
    url: str | None = None
    sandbox: str | None = None
    """How it is confined, in one line: part of what is approved."""
    workspaces: tuple[str, ...] = ()
    """Real paths of the folders in which calls read or write. A runtime refuses a tool that can reach its store."""
    hides_store: bool = False
    """Calls can't reach the folder ``.holdfast`` at the top of a workspace, so the store may lie in there."""


def check_reach(reach: object, parameters: Collection[str], label: str) -> Reach:
    """What was said about the reach of a tool, if it fits its parameters."""
    if reach is None:
        return Reach()
    if not isinstance(reach, Reach):
        raise ToolInvalid(label, None, f"reach is a Reach, not a {type(reach).__name__}")
    fields: dict[str, Any] = {name: getattr(reach, name) for name in _TEXTS}
    wrong = [name for name, value in fields.items() if value is not None and type(value) is not str]
    wrong += [name for name in ("paths", "workspaces") if not _names(getattr(reach, name))]
    if wrong:
        raise ToolInvalid(label, None, f"reach.{wrong[0]} is of the wrong type")
    for name in (*reach.paths, reach.command, reach.url):
        if name is not None and name not in parameters:
            raise ToolInvalid(label, None, f"reach names {name!r:.60}, which is no parameter of it")
    return reach


def _names(value: object) -> bool:
    return type(value) is tuple and all(type(name) is str for name in cast("tuple[object, ...]", value))
