"""Tools that are chosen for each turn: providers that list and run tools, and toolsets with a filter.

The runtime asks once for each turn and records the list, with enough of each tool to make it again. A turn that goes on
in another process, or days later, has the same tools without another question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import msgspec

from holdfast.deps import DepsT
from holdfast.effects.canonical import digest
from holdfast.errors import InvalidArgument, ToolGone
from holdfast.messages import ToolSpec
from holdfast.names import check_id
from holdfast.policy.rules import Reach
from holdfast.records import InputTaint
from holdfast.tools.definition import (
    OUTPUT_LIMIT,
    AnyTool,
    Tool,
    check_name,
    known_tools,
    rename_tool,
    seconds_of,
    spec_digest,
)
from holdfast.tools.json_schema import json_parameters
from holdfast.turns.keys import record_name

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from holdfast.policy.hooks import TurnContext
    from holdfast.tools.context import CallContext, Context


class ProvidedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that a provider lists. `parameters` is the JSON schema of its arguments, an object.

    The annotations mean the same as those of `tool`; by default, the tool acts, must not be repeated, and returns what
    strangers wrote. An approval is bound to everything here; `version` should change with the implementation.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    read_only: bool = False
    idempotent: bool = False
    destructive: bool | None = None
    untrusted: bool = True
    timeout: float | None = None
    """Seconds for one attempt."""
    reach: Reach = Reach()
    version: str = ""


class ToolProvider(Protocol[DepsT]):
    """Lists tools for each turn, and runs them: an MCP server, a plugin, a table in a database.

    The `name` belongs to records: it must stay the same, and no other provider of the agent may have it. `call` gets
    the tool as it was listed for the turn, maybe in another process and days ago; it raises `ToolGone` for a tool that
    is no longer there.
    """

    @property
    def name(self) -> str: ...

    async def list(self, ctx: TurnContext[DepsT], /) -> Sequence[ProvidedTool]: ...

    async def call(self, ctx: Context[DepsT], tool: ProvidedTool, arguments: dict[str, Any], /) -> Any: ...


AnyProvider: TypeAlias = ToolProvider[Any]
Keep: TypeAlias = "Callable[[TurnContext[Any], AnyTool], bool | Awaitable[bool]]"
Change: TypeAlias = Callable[[AnyTool], AnyTool | None]
"""Changes a tool, or leaves it out."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A function of the host that chooses tools of a toolset for each turn."""

    keep: Keep


@dataclass(frozen=True, slots=True)
class TurnTools:
    """Tools that are chosen for each turn: those of a provider or a toolset, after some steps."""

    source: AnyProvider | tuple[AnyTool | TurnTools, ...]
    steps: tuple[Filter | Change, ...] = ()

    def then(self, step: Filter | Change) -> TurnTools:
        return TurnTools(self.source, (*self.steps, step))

    @property
    def candidates(self) -> Sequence[AnyTool]:
        """All tools that a turn may have, as far as they are known before a turn."""
        if not isinstance(self.source, tuple):
            return ()
        found: Sequence[AnyTool] = known_tools(self.source)
        for step in self.steps:
            if not isinstance(step, Filter):
                found = changed(found, step)
        return found

    @property
    def providers(self) -> Iterator[AnyProvider]:
        if not isinstance(self.source, tuple):
            yield self.source
            return
        for each in self.source:
            if isinstance(each, TurnTools):
                yield from each.providers


def changed(tools: Sequence[AnyTool], change: Change) -> list[AnyTool]:
    """The tools after a step."""
    return [made for each in tools if (made := change(each)) is not None]


def tools_of_provider(given: object) -> TurnTools:
    """The tools of a provider, all as it lists them."""
    if isinstance(given, type):
        raise InvalidArgument("tool", given, "an object: call the class of the provider")
    provider = cast("AnyProvider", given)
    try:
        check_id("name of a tool provider", provider.name)
    except AttributeError:
        raise InvalidArgument("tool", given, "a tool provider with a `name`") from None
    return TurnTools(provider)


# ---- the steps ----


@dataclass(frozen=True, slots=True)
class Renaming:
    """Gives tools other names, or puts a prefix before them."""

    names: Mapping[str, str]
    prefix: str = ""

    def __call__(self, tool: AnyTool) -> AnyTool:
        return rename_tool(tool, self.prefix + self.names.get(tool.name, tool.name))


@dataclass(frozen=True, slots=True)
class Choice:
    """Leaves out the tools with these names, or (`only`) all others."""

    names: frozenset[str]
    only: bool

    def __call__(self, tool: AnyTool) -> AnyTool | None:
        return tool if (tool.name in self.names) is self.only else None


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """Makes a person approve the calls of tools; without names, of all."""

    names: frozenset[str]

    def __call__(self, tool: AnyTool) -> AnyTool:
        return replace(tool, approval=True) if not self.names or tool.name in self.names else tool


# ---- a tool of a provider ----


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """The function of a provider's tool."""

    listed: ProvidedTool
    owner: str
    """The name of the provider."""
    provider: AnyProvider | None
    """None if the agent no longer has it."""

    async def call(self, ctx: CallContext, arguments: dict[str, Any]) -> Any:
        listed = self.listed
        ctx.taint = taint_of_listed(listed, ctx.session, ctx.key)
        if self.provider is None:
            raise ToolGone(listed.name, self.owner)
        return await self.provider.call(ctx, listed, arguments)


def taint_of_listed(listed: ProvidedTool, session: str, key: str) -> InputTaint:
    """The taint of what a tool returns. It is recorded with the result: a later turn may not know the tool any more."""
    by = record_name(session, key)
    return InputTaint(by if listed.untrusted else "", by if listed.reach.private else "")


def make_tool(listed: object, owner: str, provider: AnyProvider | None) -> AnyTool:
    """The tool that a provider lists; `ToolInvalid` or `InvalidArgument` if it can't be one."""
    if not isinstance(listed, ProvidedTool):
        raise InvalidArgument("tool", listed, f"a ProvidedTool: the provider {owner!r} lists it")
    label = f"{owner}: {listed.name!s:.80}"
    check_name(listed.name, label)
    try:
        listed = msgspec.convert(msgspec.to_builtins(listed), ProvidedTool)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidArgument("tool", listed.name, f"a valid ProvidedTool ({error})") from error
    if listed.read_only and listed.destructive:
        raise InvalidArgument("tool", listed.name, "a tool that is not read_only and destructive at once")
    accepts = json_parameters(listed.parameters, label, context="ctx", whole="arguments")
    spec = ToolSpec(listed.name, listed.description, accepts.parameters)
    marks: dict[str, Any] = {
        "read_only": listed.read_only,
        "idempotent": listed.idempotent,
        "destructive": listed.destructive,
    }
    return Tool(
        function=ProviderCall(listed, owner, provider).call,
        **marks,
        reconcile=None,
        timeout=seconds_of("timeout", listed.timeout, label),
        inline_budget=None,
        max_parallel=None,
        output_limit=OUTPUT_LIMIT,
        retry=None,
        background=None,
        on_interrupt="unknown",
        untrusted=listed.untrusted,
        polling=False,
        spec=spec,
        digest=spec_digest(spec, label, **marks),
        accepts=accepts,
        reach=listed.reach,
        version=f"{owner}@{listed.version}#{digest('listed', msgspec.to_builtins(listed))[:20]}",
        provided=(owner, listed),
    )


class ChosenTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool of one turn as the journal has it: enough to make it again."""

    name: str
    listed: ProvidedTool | None = None
    """Set for the tool of a provider; any other is in the code of the agent."""
    provider: str = ""
    approval: bool = False


def chosen_tool(tool: AnyTool) -> ChosenTool:
    """A tool as the journal keeps it."""
    if tool.provided is None:
        return ChosenTool(tool.name)
    provider, listed = tool.provided
    return ChosenTool(tool.name, listed, provider, tool.approval)


def tool_of_record(
    chosen: ChosenTool, tools: Mapping[str, AnyTool], providers: Mapping[str, AnyProvider]
) -> AnyTool | None:
    """The tool that the journal names, of today's code; None if the code no longer has it."""
    if chosen.listed is None:
        return tools.get(chosen.name)
    made = make_tool(chosen.listed, chosen.provider, providers.get(chosen.provider))
    return replace(rename_tool(made, chosen.name), approval=chosen.approval)
