"""The definition of an agent for one turn: functions give instructions, filters and providers choose tools.

The runtime asks them once, at the start of the turn, and records what they gave, or how they failed, as a
`sync_environment` effect. A turn that goes on after a crash or a wait uses the record and asks none of them again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast import errors
from holdfast.agent import MAX_INSTRUCTIONS, Agent, define_agent, join_instructions, prepare, tools_by_name
from holdfast.crashpoints import crash_point
from holdfast.effects import scopes
from holdfast.effects.canonical import digest_of_bytes
from holdfast.eventloop import cancel_and_wait
from holdfast.policy.rules import check_agent, milliseconds
from holdfast.records import ABSENT, Done, EffectRequest, ErrorInfo, Failed
from holdfast.runtime.context import is_control_flow
from holdfast.tools.definition import MAX_TOOLS, AnyTool, Tool
from holdfast.tools.functions import invoke_function
from holdfast.tools.providers import ChosenTool, Filter, TurnTools, changed, chosen_tool, make_tool, tool_of_record
from holdfast.tools.results import describe_error
from holdfast.turns import environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agent import TurnChoices
    from holdfast.effects.performer import Performer
    from holdfast.policy.hooks import TurnContext
    from holdfast.tools.providers import AnyProvider
    from holdfast.turns.conversation import OpenTurn


_log: Final = logging.getLogger("holdfast.runtime")


MAX_BYTES: Final = 8 * 1024 * 1024
"""Largest definition of a turn, as JSON."""


class Definition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parts of an agent that were defined for a turn, as the journal has them."""

    instructions: str = ""
    tools: tuple[ChosenTool, ...] = ()


_decode: Final = msgspec.json.Decoder(Definition).decode


async def define_for_turn(agent: Agent, turn: OpenTurn, performer: Performer, about: TurnContext[Any]) -> Agent:
    """The agent as it is in this turn: as recorded, or else as its functions and providers define it now.

    A failure is recorded, too, and raised as `DefinitionFailed`.
    """
    known = performer.below(turn.run, environment.MARK)
    outcome = known[0].outcome if known else None
    if outcome is None and prepare(agent).choices is not None and not performer.strict:
        outcome = await _Definer(agent, turn, performer, about).define()
    if isinstance(outcome, Failed):
        raise DefinitionFailed(outcome.error)
    if isinstance(outcome, Done):
        recorded = environment.decode_environment(await performer.read_value(outcome)).definition
        agent = _as_recorded(agent, _decode(recorded))
    return define_agent(agent, model=turn.model, settings=turn.settings)


class DefinitionFailed(Exception):
    """The recorded failure of a definition; it ends the turn."""

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.error = error


def _as_recorded(agent: Agent, found: Definition) -> Agent:
    providers = prepare(agent).providers
    tools = [tool_of_record(chosen, agent.tools, providers) for chosen in found.tools]
    by_name = {tool.name: tool for tool in tools if tool is not None}
    return define_agent(agent, instructions=found.instructions, tools=by_name)


class _Definer:
    """Asks the functions, filters and providers of one agent about one turn."""

    def __init__(self, agent: Agent, turn: OpenTurn, performer: Performer, about: TurnContext[Any]) -> None:
        self._agent = agent
        self._turn = turn
        self._performer = performer
        self._about = about
        self._clean = performer.redactor.text
        self._asked = ""
        """The source that is asked now; empty for the instructions."""

    async def define(self) -> Done | Failed:
        """Ask, and record the outcome."""
        performer, agent = self._performer, self._agent
        place = f"{self._turn.run}{environment.MARK}{self._turn.handoffs + 1}"
        begun = asyncio.get_running_loop().time()
        try:
            body = msgspec.json.encode(await self._ask_in_time())
            if len(body) > MAX_BYTES:
                raise self._failed(f"it has {len(body):,} bytes, and may have {MAX_BYTES:,}")
            body = performer.redactor.bytes(body, numbers=False)
            made = self._checked(body)
        except (errors.InstructionsFailed, errors.ToolChoiceFailed) as error:
            ask = self._request(digest_of_bytes("environment", place.encode()))
            outcome: Done | Failed = performer.failed(place, ask, error, begun)
            body = None
        else:
            prepared = prepare(made)
            ask = self._request(prepared.environment_id, msgspec.Raw(msgspec.json.encode({"prefix": prepared.prefix})))
            whole = msgspec.structs.replace(prepared.environment, definition=msgspec.Raw(body))
            body = performer.redactor.bytes(environment.encode_environment(whole), numbers=False)
            small = len(body) <= environment.INLINE
            value, blob = (msgspec.Raw(body), None) if small else (ABSENT, performer.keep_soon(body))
            ms = round((asyncio.get_running_loop().time() - begun) * 1000)
            outcome = Done(at=performer.now(), key=place, ask=ask, value=value, blob=blob, ms=ms)
            # The model call that comes next uses it.
            self._turn.environments = {**self._turn.environments, agent.name: prepared.environment_id}
        crash_point("environment.before_record")
        performer.submit([outcome], patient=True)
        crash_point("environment.after_record")
        return outcome if body is None else msgspec.structs.replace(outcome, value=msgspec.Raw(body), blob=None)

    def _request(self, content: str, body: msgspec.Raw = ABSENT) -> EffectRequest:
        cause, step = self._performer.cause, self._performer.iteration or 0
        return EffectRequest("sync_environment", self._agent.name, content, body, cause=cause, iteration=step)

    def _checked(self, definition: bytes) -> Agent:
        """The agent of the turn; `ToolChoiceFailed` if it can't be used like that."""
        try:
            made = _as_recorded(self._agent, _decode(definition))
            prepared = prepare(made)
            if made.policy is None:
                check_agent(made.name, [prepared.subject(name) for name in made.tools], None)
            if made.mode == "code":
                _ = prepared.stubs
        except (errors.UsageError, msgspec.ValidationError) as error:
            raise self._failed(str(error)) from error
        return define_agent(made, model=self._turn.model, settings=self._turn.settings)

    # ---- asking ----

    async def _ask_in_time(self) -> Definition:
        """Ask all sources in the time they have together. One that does not end when it is cancelled is abandoned."""
        task, seconds = asyncio.ensure_future(self._ask()), milliseconds(self._agent.limits.definition) / 1000
        try:
            await asyncio.wait({task}, timeout=seconds)
        except BaseException:
            await cancel_and_wait(task)
            raise
        if not task.done():
            if not await cancel_and_wait(task):
                said = "a function that defines the turn %s of %r does not end although its time is up"
                _log.warning(said, self._turn.run, self._about.session)
            raise self._failed(f"it took longer than {seconds:g} s (Limits.definition)")
        return task.result()

    async def _ask(self) -> Definition:
        scopes.current_scope.set(None)  # it is no branch of the code that is driven
        choices = cast("TurnChoices", prepare(self._agent).choices)
        try:
            texts = [part if isinstance(part, str) else await self._text_of(part) for part in choices.instructions]
            instructions = join_instructions(texts)
            if len(instructions) > MAX_INSTRUCTIONS:
                raise self._failed(f"they are longer than {MAX_INSTRUCTIONS:,} characters")
            tools: list[AnyTool] = []
            for source in choices.sources:
                tools += [source] if isinstance(source, Tool) else await self._tools_of(source)
            self._asked = "the whole list"
            chosen = tuple(map(chosen_tool, tools_by_name(self._agent.name, tools).values()))
            if len(chosen) > MAX_TOOLS:
                raise self._failed(f"it has more than {MAX_TOOLS:,} tools")
        except (errors.InstructionsFailed, errors.ToolChoiceFailed):
            raise
        except errors.AgentInvalid as error:
            raise self._failed(f"{error.reason}, with prefix(...) or rename(...)") from error
        except BaseException as error:
            if is_control_flow(error):
                raise
            raise self._failed(describe_error(error, self._clean)) from error
        return Definition(instructions, chosen)

    async def _text_of(self, instruct: Callable[..., Any]) -> str:
        text = await self._call(instruct, self._about)
        if type(text) is not str:
            raise self._failed(f"the function gave a {type(text).__name__}, not a text")
        text.encode()  # half a character is no text
        return text

    async def _tools_of(self, source: TurnTools) -> list[AnyTool]:
        if isinstance(source.source, tuple):
            tools: list[AnyTool] = []
            for each in source.source:
                tools += [each] if isinstance(each, Tool) else await self._tools_of(each)
        else:
            tools = await self._listed_by(source.source)
        for step in source.steps:
            tools = await self._kept_by(step, tools) if isinstance(step, Filter) else changed(tools, step)
        return tools

    async def _listed_by(self, provider: AnyProvider) -> list[AnyTool]:
        self._asked = f"the tool provider {provider.name!r}"
        listed: object = await self._call(provider.list, self._about)
        if not isinstance(listed, list | tuple):
            raise self._failed(f"it listed a {type(listed).__name__}, not a list of ProvidedTool")
        found: dict[str, AnyTool] = {}
        for each in cast("list[object]", listed):
            tool = make_tool(each, provider.name, provider)
            if found.setdefault(tool.name, tool) is not tool:
                raise self._failed(f"it lists two tools called {tool.name!r}")
        return list(found.values())

    async def _kept_by(self, step: Filter, tools: list[AnyTool]) -> list[AnyTool]:
        before, self._asked = self._asked, f"the filter {getattr(step.keep, '__name__', 'function')!r}"
        if inspect.iscoroutinefunction(step.keep):
            answers = [await self._call(step.keep, self._about, tool) for tool in tools]
        else:  # in one thread, not one for each tool
            answers = [await _settled(each) for each in await self._call(_asked_about, step.keep, self._about, tools)]
        for answer in answers:
            if type(answer) is not bool:
                raise self._failed(f"it gave a {type(answer).__name__}, not True or False")
        self._asked = before
        return [tool for tool, answer in zip(tools, answers, strict=True) if answer]

    async def _call(self, function: Callable[..., Any], *arguments: object) -> Any:
        name = str(getattr(function, "__name__", type(function).__name__))
        on_loop = inspect.iscoroutinefunction(function)
        return await invoke_function(partial(function, *arguments), {}, name, on_loop=on_loop)

    def _failed(self, reason: str) -> errors.InstructionsFailed | errors.ToolChoiceFailed:
        if self._asked:
            return errors.ToolChoiceFailed(self._agent.name, self._asked, reason)
        return errors.InstructionsFailed(self._agent.name, reason)


def _asked_about(keep: Callable[..., Any], about: object, tools: list[AnyTool]) -> list[Any]:
    return [keep(about, tool) for tool in tools]


async def _settled(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
