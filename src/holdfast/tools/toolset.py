"""Several tools as one thing: chosen, renamed, in an order that stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, final

from holdfast.errors import InvalidArgument, ToolInvalid
from holdfast.tools.decorator import renamed, tool
from holdfast.tools.definition import AnyTool, Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

MAX_DEPTH: Final = 16
"""How deep lists of tools may be nested."""
_FAMILIES: Final = "holdfast.hands."
"""Where the functions are that give the tools of a family."""
MAX_TOOLS: Final = 1_000
"""How many tools one list may hold."""

Given: TypeAlias = "AnyTool | Callable[..., Any] | Toolset | Sequence[Given]"
"""A tool, a function, a toolset, or a list of these."""


@final
class Toolset:
    """Tools in an order. A value: what changes it gives another one."""

    __slots__ = ("tools",)

    tools: tuple[AnyTool, ...]

    def __init__(self, *tools: Given) -> None:
        object.__setattr__(self, "tools", _distinct(flattened(tools)))

    def __setattr__(self, name: str, value: object) -> None:
        message = f"a toolset is not changed; make another one ({name!r})"
        raise AttributeError(message)

    def __iter__(self) -> Iterator[AnyTool]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    def __contains__(self, name: object) -> bool:
        return any(name in (each, each.name) for each in self.tools)

    def __eq__(self, other: object) -> bool:
        return self.tools == other.tools if isinstance(other, Toolset) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.tools)

    def __add__(self, other: Given) -> Toolset:
        return Toolset(self, other)

    def __repr__(self) -> str:
        return f"Toolset({', '.join(self.names)})"

    @property
    def names(self) -> tuple[str, ...]:
        """What models call them, in their order."""
        return tuple(each.name for each in self.tools)

    def only(self, *names: str) -> Toolset:
        """Those with these names, in the order they have here."""
        wanted = self._known("only", names)
        return Toolset(*(each for each in self.tools if each.name in wanted))

    def without(self, *names: str) -> Toolset:
        """All but those with these names."""
        unwanted = self._known("without", names)
        return Toolset(*(each for each in self.tools if each.name not in unwanted))

    def renamed(self, names: Mapping[str, str] | None = None, /, **more: str) -> Toolset:
        """The same tools, some under other names: ``renamed(old="new")``."""
        if names is not None and not isinstance(names, dict):
            raise InvalidArgument("rename", names, "a dict of old and new names")
        new = {**(names or {}), **more}
        self._known("rename", tuple(new))
        return Toolset(*(renamed(each, new.get(each.name, each.name)) for each in self.tools))

    def prefixed(self, prefix: str) -> Toolset:
        """The same tools, all names with `prefix` before them."""
        if type(prefix) is not str:
            raise InvalidArgument("prefix", prefix, "text")
        return Toolset(*(renamed(each, prefix + each.name) for each in self.tools))

    def _known(self, what: str, names: Collection[str]) -> frozenset[str]:
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise InvalidArgument(what, unknown[0], f"the name of a tool that is there ({', '.join(self.names)})")
        return frozenset(names)


def toolset(
    *tools: Given, prefix: str = "", only: Collection[str] = (), rename: Mapping[str, str] | None = None
) -> Toolset:
    """Tools as one thing: those in `only` (all if it is empty), under the names in `rename`, with `prefix` before."""
    if isinstance(only, str):
        raise InvalidArgument("only", only, "a list of names")
    made = Toolset(*tools)
    made = made.only(*only) if only else made
    made = made.renamed(rename) if rename is not None else made
    return made.prefixed(prefix)


def flattened(given: object) -> tuple[AnyTool, ...]:
    """The tools in lists, tuples and toolsets, in their order; a function is made a tool."""
    found: list[AnyTool] = []
    _flatten(given, found, 0)
    return tuple(found)


def _flatten(given: object, found: list[AnyTool], depth: int) -> None:
    if isinstance(given, list | tuple):
        if depth > MAX_DEPTH:
            raise InvalidArgument("tools", "...", f"lists that are nested at most {MAX_DEPTH} deep")
        for item in cast("list[object]", given):
            _flatten(item, found, depth + 1)
    elif isinstance(given, Toolset):
        found.extend(given.tools)
    elif isinstance(given, Tool):
        found.append(cast("AnyTool", given))
    elif callable(given):
        if getattr(given, "__module__", "").startswith(_FAMILIES):
            name = getattr(given, "__name__", "")
            raise ToolInvalid(name, None, f"it gives tools when it is called: write hf.tools.{name}(...)")
        found.append(tool(given))
    else:
        raise InvalidArgument("tool", given, "a function, a tool, a toolset or a list of these")
    if len(found) > MAX_TOOLS:
        raise InvalidArgument("tools", len(found), f"at most {MAX_TOOLS:,} tools")


def _distinct(tools: tuple[AnyTool, ...]) -> tuple[AnyTool, ...]:
    """Each once. Two that differ can't have one name."""
    found: dict[str, AnyTool] = {}
    for each in tools:
        if found.setdefault(each.name, each) != each:
            raise ToolInvalid(each.name, None, "another tool has this name; give one of them another")
    return tuple(found.values())
