"""`@tool`: a function becomes something that a model may call."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar, cast, final, overload

from holdfast.effects.canonical import digest
from holdfast.errors import InvalidArgument, InvalidValue, ToolInvalid
from holdfast.messages import ToolSpec
from holdfast.tools.definition import (
    AnyTool,
    OnInterrupt,
    Reach,
    Said,
    Span,
    Tool,
    check_reach,
    check_reconcile,
    checked_name,
    checked_terms,
    checked_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from holdfast.tools.definition import ToolRetryPolicy


P = ParamSpec("P")
R = TypeVar("R")


@overload
def tool(
    name: Callable[P, R],
    /,
    *,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    timeout: Span = None,
    inline_budget: Span = None,
    max_parallel: int | None = None,
    output_limit: int | None = None,
    retry: ToolRetryPolicy | int | None = None,
    background: bool | None = None,
    on_interrupt: OnInterrupt = "unknown",
    reconcile: Callable[..., Any] | None = None,
    untrusted: bool = False,
    polling: bool = False,
    reach: Reach | None = None,
    version: str | None = None,
    description: str | None = None,
) -> Tool[P, R]: ...


@overload
def tool(
    name: str | None = None,
    *,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    timeout: Span = None,
    inline_budget: Span = None,
    max_parallel: int | None = None,
    output_limit: int | None = None,
    retry: ToolRetryPolicy | int | None = None,
    background: bool | None = None,
    on_interrupt: OnInterrupt = "unknown",
    reconcile: Callable[..., Any] | None = None,
    untrusted: bool = False,
    polling: bool = False,
    reach: Reach | None = None,
    version: str | None = None,
    description: str | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(  # noqa: PLR0913  one keyword for each thing that can be said about a tool
    name: Callable[..., Any] | str | None = None,
    *,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    timeout: Span = None,
    inline_budget: Span = None,
    max_parallel: int | None = None,
    output_limit: int | None = None,
    retry: ToolRetryPolicy | int | None = None,
    background: bool | None = None,
    on_interrupt: OnInterrupt = "unknown",
    reconcile: Callable[..., Any] | None = None,
    untrusted: bool = False,
    polling: bool = False,
    reach: Reach | None = None,
    version: str | None = None,
    description: str | None = None,
) -> AnyTool | Callable[[Callable[..., Any]], AnyTool]:
    """Make a tool of a function: ``@tool``, ``@tool(read_only=True)`` or ``@tool("name")``.

    A tool that is neither `read_only` nor `idempotent` is never silently repeated. The model reads the docstring, with
    the descriptions of a Google style ``Args`` section put to the parameters they describe. Spans of time are seconds
    or a timedelta.

    Args:
        name: What models call it; otherwise the name of the function.
        read_only: It changes nothing. It may run beside others and be called again.
        idempotent: Called twice with the same ``ctx.idempotency_key`` it acts once.
        destructive: It may destroy something.
        timeout: How long one attempt may take before it is stopped.
        inline_budget: How long the model waits for it before it goes on in the background; the agent's default if None.
        max_parallel: How many calls of it run at once in this process.
        output_limit: Longest text of a result that the model gets, in characters; the whole is kept beside it.
        retry: How often it is tried again when it raises: a number of attempts or a `ToolRetryPolicy`. Only for tools
            that may be repeated.
        background: True: it always goes on in the background. False: it never does. None: past its `inline_budget`.
        on_interrupt: Who decides when nobody can say whether an interrupted call took effect: the model is told
            ("unknown"), or a person is asked ("ask").
        reconcile: Finds out after a crash what came of an interrupted call: called like the function, with the context
            as ``ctx``; gives the result, or raises `NotDone`.
        untrusted: What it returns was written by strangers (web pages, mails); the model gets it marked as data.
        polling: Calling it again and again with the same arguments is how it is used; the loop guard looks away.
        reach: What it touches (paths, commands, addresses, private data), for the rules of a policy.
        version: Names what it does, for approvals: one that was given for another version is not used. Without it, the
            code of the function counts.
        description: What the model reads, instead of the docstring.
    """
    said = Said(
        name=name if isinstance(name, str) else None,
        read_only=read_only,
        idempotent=idempotent,
        destructive=destructive,
        timeout=timeout,
        inline_budget=inline_budget,
        max_parallel=max_parallel,
        output_limit=output_limit,
        retry=retry,
        background=background,
        on_interrupt=on_interrupt,
        reconcile=reconcile,
        untrusted=untrusted,
        polling=polling,
        reach=reach,
        version=version,
        description=description,
    )
    if name is None or isinstance(name, str):
        return partial(_make, said=said)
    return _make(name, said)


def _make(function: Callable[..., Any], said: Said) -> AnyTool:
    from holdfast.tools.schema import read_docstring, read_signature  # noqa: PLC0415  pydantic only when a tool is made

    label = str(getattr(function, "__name__", type(function).__name__))
    _check_function(function, label)
    name = checked_name(said.name if said.name is not None else label, label)
    terms = checked_terms(said, label)
    documented, described = read_docstring(inspect.getdoc(function) or "")
    description = documented if said.description is None else said.description
    accepts = read_signature(function, label, described)
    check_reconcile(said.reconcile, [parameter for _, parameter in accepts.fields], label)
    reach = check_reach(said.reach, [parameter for _, parameter in accepts.fields], label)
    spec = ToolSpec(name, description, accepts.parameters)
    annotations = {"read_only": said.read_only, "idempotent": said.idempotent, "destructive": said.destructive}
    return Tool(
        function=function,
        read_only=said.read_only,
        idempotent=said.idempotent,
        destructive=said.destructive,
        reconcile=said.reconcile,
        terms=terms,
        spec=spec,
        digest=spec_digest(spec, annotations, label),
        accepts=accepts,
        reach=reach,
        version=checked_version(said.version, label),
    )


def renamed(given: AnyTool, name: str) -> AnyTool:
    """The same tool under another name."""
    if name == given.name:
        return given
    spec = ToolSpec(checked_name(name, given.name), given.description, given.parameters)
    annotations = {"read_only": given.read_only, "idempotent": given.idempotent, "destructive": given.destructive}
    return given.under(spec, spec_digest(spec, annotations, name))


def spec_digest(spec: ToolSpec, annotations: dict[str, bool | None], label: str) -> str:
    """What tells one tool from another in the eyes of a model."""
    seen = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    try:
        return digest("tool", {**seen, "annotations": annotations})
    except InvalidValue as error:
        raise ToolInvalid(label, None, f"what the model would see has no JSON form: {error}") from error


def _check_function(function: object, label: str) -> None:
    if isinstance(function, Tool):
        raise ToolInvalid(label, None, "it is a tool already; give its `function`")
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise ToolInvalid(label, None, f"a function is wanted, not a {type(function).__name__}; wrap it in one")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolInvalid(label, None, "it is a generator; return one value, or a list")


MAX_DEPTH: Final = 16
"""How deep lists of tools may be nested."""
_FAMILIES: Final = "holdfast.toolkits."
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
