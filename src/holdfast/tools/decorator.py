"""`@tool` makes a tool of a function; `Toolset` groups tools."""

from __future__ import annotations

import inspect
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar, cast, final, overload

from holdfast.effects.canonical import digest
from holdfast.errors import InvalidArgument, InvalidValue, ToolInvalid
from holdfast.messages import ToolSpec
from holdfast.tools.definition import (
    AnyTool,
    Duration,
    OnInterrupt,
    Reach,
    Tool,
    ToolDeclaration,
    check_name,
    check_reach,
    check_reconcile,
    check_terms,
    check_version,
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
    timeout: Duration = None,
    inline_budget: Duration = None,
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
    timeout: Duration = None,
    inline_budget: Duration = None,
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


def tool(
    name: Callable[..., Any] | str | None = None,
    *,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    timeout: Duration = None,
    inline_budget: Duration = None,
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

    The runtime never silently repeats a tool that is neither `read_only` nor `idempotent`. The model reads the
    docstring; the entries of a Google style ``Args`` section become descriptions of the parameters. Durations are
    seconds or a timedelta.

    Args:
        name: The name for models; by default the name of the function.
        read_only: It changes nothing. It may run beside others and be called again.
        idempotent: Called twice with the same ``ctx.idempotency_key`` it acts once.
        destructive: It may destroy something.
        timeout: Limit for one attempt, after which it is stopped.
        inline_budget: Time that the model waits before the call goes on in the background; None: the agent's default.
        max_parallel: Most calls of it at once in this process.
        output_limit: Longest text of a result for the model, in characters; a longer result is kept as an attachment.
        retry: A number of attempts or a `ToolRetryPolicy` for calls that raise. Only for tools that may be repeated.
        background: True: it always runs in the background. False: never. None: past its `inline_budget`.
        on_interrupt: Who decides when the effect of an interrupted call is unknown: the model reads about it
            ("unknown"), or the runtime asks a person ("ask").
        reconcile: Finds out after a crash whether an interrupted call took effect: called like the function, with the
            context as ``ctx``; returns the result, or raises `NotDone`.
        untrusted: Strangers write its results (web pages, mails); the model gets them marked as data.
        polling: It is meant to be called repeatedly with the same arguments; the loop guard ignores it.
        reach: The things that it touches (paths, commands, addresses, private data), for policy rules.
        version: Replaces the function's code in approvals: an approval for another version does not count.
        description: The description for the model, instead of the docstring.
    """
    declared = ToolDeclaration(
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
        return partial(_make_tool, declared=declared)
    return _make_tool(name, declared)


def _make_tool(function: Callable[..., Any], declared: ToolDeclaration) -> AnyTool:
    from holdfast.tools.schema import read_signature  # noqa: PLC0415  pydantic only when a tool is made

    label = str(getattr(function, "__name__", type(function).__name__))
    _check_function(function, label)
    name = check_name(declared.name if declared.name is not None else label, label)
    terms = check_terms(declared, label)
    documented, described = read_docstring(inspect.getdoc(function) or "")
    description = documented if declared.description is None else declared.description
    accepts = read_signature(function, label, described)
    check_reconcile(declared.reconcile, [parameter for _, parameter in accepts.fields], label)
    reach = check_reach(declared.reach, [parameter for _, parameter in accepts.fields], label)
    spec = ToolSpec(name, description, accepts.parameters)
    annotations = {
        "read_only": declared.read_only,
        "idempotent": declared.idempotent,
        "destructive": declared.destructive,
    }
    return Tool(
        function=function,
        read_only=declared.read_only,
        idempotent=declared.idempotent,
        destructive=declared.destructive,
        reconcile=declared.reconcile,
        terms=terms,
        spec=spec,
        digest=spec_digest(spec, annotations, label),
        accepts=accepts,
        reach=reach,
        version=check_version(declared.version, label),
    )


def rename_tool(given: AnyTool, name: str) -> AnyTool:
    """The same tool under another name."""
    if name == given.name:
        return given
    spec = ToolSpec(check_name(name, given.name), given.description, given.parameters)
    annotations = {"read_only": given.read_only, "idempotent": given.idempotent, "destructive": given.destructive}
    return given.under(spec, spec_digest(spec, annotations, name))


def spec_digest(spec: ToolSpec, annotations: dict[str, bool | None], label: str) -> str:
    """The digest of a tool as models see it."""
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


_ARGS: Final = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*))?")


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its text without the ``Args`` section, and the entries of that section."""
    lines = doc.splitlines()
    begin = next((n for n, line in enumerate(lines) if _ARGS.fullmatch(line)), None)
    if begin is None:
        return doc.strip(), {}
    end = next((n for n in range(begin + 1, len(lines)) if lines[n][:1].strip()), len(lines))
    before = "\n".join(lines[:begin]).rstrip()
    after = "\n".join(lines[end:]).strip()
    entries: dict[str, list[str]] = {}
    words: list[str] = []
    section = lines[begin + 1 : end]
    margin = next((_indent(line) for line in section if line.strip()), 0)
    for line in section:
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) <= margin else None
        if entry:
            words = entries[entry[1]] = [entry[2] or ""]
        else:
            words.append(line.strip())
    descriptions = {name: " ".join(" ".join(words).split()) for name, words in entries.items()}
    return "\n\n".join(part for part in (before, after) if part), descriptions


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


# ---- toolsets ----

MAX_DEPTH: Final = 16
"""Deepest nesting of lists of tools."""
MAX_TOOLS: Final = 1_000
"""Most tools in one list."""
ToolSource: TypeAlias = "AnyTool | Callable[..., Any] | Toolset | Sequence[ToolSource]"
"""A tool, a function, a toolset, or a list of these."""


@final
class Toolset:
    """An immutable, ordered group of tools."""

    __slots__ = ("tools",)

    tools: tuple[AnyTool, ...]

    def __init__(self, *tools: ToolSource) -> None:
        object.__setattr__(self, "tools", _distinct(flatten_tools(tools)))

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

    def __add__(self, other: ToolSource) -> Toolset:
        return Toolset(self, other)

    def __repr__(self) -> str:
        return f"Toolset({', '.join(self.names)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names for models, in order."""
        return tuple(each.name for each in self.tools)

    def only(self, *names: str) -> Toolset:
        """The tools with these names, in the order of this toolset."""
        wanted = self._known("only", names)
        return Toolset(*(each for each in self.tools if each.name in wanted))

    def without(self, *names: str) -> Toolset:
        """All tools except those with these names."""
        unwanted = self._known("without", names)
        return Toolset(*(each for each in self.tools if each.name not in unwanted))

    def renamed(self, names: Mapping[str, str] | None = None, /, **more: str) -> Toolset:
        """The same tools, some under other names: ``renamed(old="new")``."""
        if names is not None and not isinstance(names, dict):
            raise InvalidArgument("rename", names, "a dict of old and new names")
        new = {**(names or {}), **more}
        self._known("rename", tuple(new))
        return Toolset(*(rename_tool(each, new.get(each.name, each.name)) for each in self.tools))

    def prefixed(self, prefix: str) -> Toolset:
        """The same tools, all names with `prefix` before them."""
        if type(prefix) is not str:
            raise InvalidArgument("prefix", prefix, "text")
        return Toolset(*(rename_tool(each, prefix + each.name) for each in self.tools))

    def _known(self, what: str, names: Collection[str]) -> frozenset[str]:
        unknown = [name for name in names if name not in self.names]
        if unknown:
            raise InvalidArgument(what, unknown[0], f"the name of a tool that is there ({', '.join(self.names)})")
        return frozenset(names)


def toolset(
    *tools: ToolSource, prefix: str = "", only: Collection[str] = (), rename: Mapping[str, str] | None = None
) -> Toolset:
    """A toolset of the tools in `only` (all if empty), renamed by `rename`, with `prefix` before each name."""
    if isinstance(only, str):
        raise InvalidArgument("only", only, "a list of names")
    made = Toolset(*tools)
    made = made.only(*only) if only else made
    made = made.renamed(rename) if rename is not None else made
    return made.prefixed(prefix)


def flatten_tools(given: object) -> tuple[AnyTool, ...]:
    """The tools in lists, tuples and toolsets, in order; a function becomes a tool."""
    found: list[AnyTool] = []

    def flatten(given: object, depth: int) -> None:
        if isinstance(given, list | tuple):
            if depth > MAX_DEPTH:
                raise InvalidArgument("tools", "...", f"lists that are nested at most {MAX_DEPTH} deep")
            for item in cast("list[object]", given):
                flatten(item, depth + 1)
        elif isinstance(given, Toolset):
            found.extend(given.tools)
        elif isinstance(given, Tool):
            found.append(cast("AnyTool", given))
        elif callable(given):
            if getattr(given, "__module__", "").startswith("holdfast.toolkits."):
                name = getattr(given, "__name__", "")
                raise ToolInvalid(name, None, f"it gives tools when it is called: write hf.tools.{name}(...)")
            found.append(tool(given))
        else:
            raise InvalidArgument("tool", given, "a function, a tool, a toolset or a list of these")
        if len(found) > MAX_TOOLS:
            raise InvalidArgument("tools", len(found), f"at most {MAX_TOOLS:,} tools")

    flatten(given, 0)
    return tuple(found)


def _distinct(tools: tuple[AnyTool, ...]) -> tuple[AnyTool, ...]:
    """Each tool once. Two different tools can't have one name."""
    found: dict[str, AnyTool] = {}
    for each in tools:
        if found.setdefault(each.name, each) != each:
            raise ToolInvalid(each.name, None, "another tool has this name; give one of them another")
    return tuple(found.values())
