"""An agent: a definition. A value that holds no state; sessions do."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.bounds import check_int
from holdfast.effects.canonical import check as check_json
from holdfast.effects.canonical import digest
from holdfast.errors import AgentInvalid, InvalidArgument
from holdfast.messages import ModelRequest, Settings
from holdfast.models import Model, model
from holdfast.names import check_id
from holdfast.output import Output
from holdfast.tools.toolset import Toolset, flattened
from holdfast.turns.machine import Rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.messages import OutputSpec, ToolSpec
    from holdfast.tools import AnyTool
    from holdfast.tools.toolset import Given
    from holdfast.turns.thread import Thread

MAX_INSTRUCTIONS: Final = 1_000_000
"""Longest instructions, in characters."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn of an agent may use, with the defaults."""

    steps: int | None = 50
    """Model calls."""
    no_progress: int = 12
    """Model calls in a row that lead to nothing: every tool call failed, or the answer was of no use."""
    repairs: int = 3
    """How often an answer of the wrong shape is sent back."""
    continuations: int = 2
    """How often an answer that the output limit cut off is continued."""
    deadline: timedelta | None = None
    """From the moment the input was accepted, time in the queue included."""

    def __post_init__(self) -> None:
        if self.steps is not None:
            check_int("limit steps", self.steps, least=1)
        check_int("limit no_progress", self.no_progress, least=1)
        check_int("limit repairs", self.repairs)
        check_int("limit continuations", self.continuations)
        if self.deadline is not None:
            milliseconds(self.deadline)


class Agent:
    """Model, instructions, tools, the shape of the answer, limits.

    `model` is a Model or a name such as ``"provider:model"``, or a list of these: the first that works. `tools` are
    functions, tools, toolsets and lists of these; a function is made a tool, which is never silently repeated.
    `output` is the type of the answer: a pydantic model, a dataclass, anything pydantic understands, or a JSON schema.
    `settings` say how the model is to answer. A tool call that takes longer than `inline_budget` goes on in the
    background, where the tool says nothing else.
    """

    def __init__(  # noqa: PLR0913
        self,
        name: str,
        *,
        model: Model | str | Sequence[Model | str],
        instructions: str = "",
        tools: Sequence[Given] | Toolset = (),
        output: Any = None,  # noqa: ANN401  a type or a schema
        limits: Limits | None = None,
        settings: Settings | None = None,
        inline_budget: timedelta | float | None = None,
    ) -> None:
        self.name = check_id("agent", name)
        self.inline_budget = None if inline_budget is None else milliseconds(inline_budget) / 1000
        """How many seconds the model waits for a call before that goes on in the background; None: without end."""
        self.limits = Limits() if limits is None else limits
        if not isinstance(self.limits, Limits):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("limits", limits, "Limits")
        if type(instructions) is not str or len(instructions) > MAX_INSTRUCTIONS:
            raise AgentInvalid(name, f"its instructions are not text of at most {MAX_INSTRUCTIONS:,} characters")
        if not isinstance(model, (str, Model, list, tuple)):
            raise InvalidArgument("model", model, "a model, a name such as 'provider:model', or a list of them")
        check_json(instructions)
        self.instructions = instructions
        self.settings = Settings() if settings is None else settings
        if not isinstance(self.settings, Settings):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("settings", settings, "Settings")
        self.output = None if output is None else Output(output)
        self.tools: dict[str, AnyTool] = _by_name(name, tools)
        self._model = model

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    @cached_property
    def model(self) -> Model:
        """Who answers."""
        return model(self._model)

    @cached_property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model sees them, always in the same order."""
        return tuple(tool.spec for tool in self.tools.values())

    @cached_property
    def version(self) -> str:
        """What this definition asks for, in one digest: recorded with each turn."""
        return digest("agent", [self.name, self.prefix])[:16]

    @cached_property
    def prefix(self) -> str:
        """The digest of what every request begins with."""
        output = None if self.output is None else [self.output.spec.name, self.output.spec.schema]
        asked = msgspec.to_builtins(self.settings)
        return digest("prefix", [self.instructions, [tool.digest for tool in self.tools.values()], output, asked])

    @cached_property
    def rules(self) -> Rules:
        """What bounds a turn."""
        limits = self.limits
        check = None if self.output is None else self.output.complaint
        return Rules(limits.steps, limits.no_progress, limits.repairs, limits.continuations, check)

    def request(self, thread: Thread, position: int, files: Mapping[str, bytes]) -> ModelRequest:
        """The question that stands at the end of `thread`, with the bytes of its attachments."""
        spec: OutputSpec | None = None if self.output is None else self.output.spec
        return ModelRequest(
            messages=thread.messages,
            instructions=self.instructions,
            tools=self.tool_specs,
            output=spec,
            position=position,
            settings=self.settings,
            files=files,
            wire=thread,
        )


def milliseconds(span: timedelta | float) -> int:
    """A span of time as it is stored; seconds where it is a number."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if type(seconds) not in (int, float) or not 0 < seconds <= 10 * 365 * 86_400:
        raise InvalidArgument("time", span, "a timedelta or a number of seconds, above zero and below ten years")
    return max(1, round(seconds * 1000))


def _by_name(agent: str, tools: Sequence[Given] | Toolset) -> dict[str, AnyTool]:
    found: dict[str, AnyTool] = {}
    if not isinstance(tools, list | tuple | Toolset):
        raise InvalidArgument("tools", tools, "a list of functions, tools and toolsets")
    for made in flattened(tools):
        if found.setdefault(made.name, made) != made:
            raise AgentInvalid(agent, f"it has two tools called {made.name!r}; give one of them another name")
    return found
