"""Hooks: functions of the host that observe or decide actions of an agent. Subclass `Hooks` and override its methods.

A hook decides by its return value, and can only make the decision stricter: no hook allows a call that a policy denies.
A deciding hook that raises or times out denies. If an observing one does, the error is shown and the turn goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, cast

import msgspec

from holdfast.deps import NO_DEPS, DepsT
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.errors.caller import DepsMissing
from holdfast.policy.rules import milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from holdfast.messages import ModelReply, ModelRequest, ToolResult, UserMessage
    from holdfast.turns.machine import Ending


TIMEOUT: Final = 30.0
"""Default time limit of a hook, in seconds."""


class Deny(msgspec.Struct, frozen=True, tag="deny"):
    """Refuse the call, the model call or the turn. The model reads the reason."""

    reason: str


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Ask a person first."""

    why: str


class Replace(msgspec.Struct, frozen=True, tag="replace"):
    """Make the call with these arguments."""

    arguments: dict[str, Any]


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """Skip the call; this value is its result."""

    value: Any


RequestKind: TypeAlias = Literal["turn", "summary", "direct"]
ToolDecision: TypeAlias = Deny | Ask | Replace | Answer
ModelDecision: TypeAlias = Deny | Answer


@dataclass(frozen=True, slots=True)
class TurnContext(Generic[DepsT]):
    """The turn for which a hook, a function that gives instructions, or a tool provider is asked."""

    session: str
    agent: str
    turn: str
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """The metadata of the session, and of the input that began the turn."""
    given_deps: object = field(default=NO_DEPS, compare=False, repr=False)
    input: UserMessage | None = field(default=None, compare=False)
    """The input that began the turn; None outside of a turn."""

    @property
    def deps(self) -> DepsT:
        """The dependencies of the runtime: ``hf.open(..., deps=...)``."""
        if self.given_deps is NO_DEPS:
            raise DepsMissing("a function that is asked about a turn")
        return cast("DepsT", self.given_deps)

    def deny(self, reason: str) -> Deny:
        """Refuse the turn; it ends as failed."""
        return Deny(reason)


@dataclass(frozen=True, slots=True)
class HookRequest:
    """A request to the model, before it is sent.

    `kind` is its purpose: the next step of the turn, a summary that makes room in the conversation, or a direct
    question outside of any conversation. A direct question has the turn whose tool asks it. Without a turn, `turn` is
    empty, or has only the session for which a durable function works.
    """

    turn: TurnContext
    request: ModelRequest
    kind: RequestKind = "turn"

    def deny(self, reason: str) -> Deny:
        """Refuse the request; the turn ends as failed.

        For a summary, the runtime drops the oldest messages instead. A direct question raises a `ModelError` of the
        kind ``denied``.
        """
        return Deny(reason)

    def answer(self, text: str) -> Answer:
        """Use this text as the reply or the summary.

        Before the call, the model is not asked; after it, the text replaces its reply.
        """
        return Answer(text)


@dataclass(frozen=True, slots=True)
class HookCall:
    """A tool call. `arguments` is a copy; to change them, return `replace(...)`."""

    turn: TurnContext
    tool: str
    arguments: dict[str, Any]
    call_id: str
    idempotency_key: str = field(default="")

    def deny(self, reason: str) -> Deny:
        """Refuse the call; the model reads the reason."""
        return Deny(reason)

    def ask(self, why: str) -> Ask:
        """Ask a person before the call."""
        return Ask(why)

    def replace(self, arguments: dict[str, Any]) -> Replace:
        """Make the call with these arguments; the policy decides about them, not about the old ones."""
        return Replace(arguments)

    def answer(self, value: Any) -> Answer:  # any JSON value
        """Skip the call and use this as its result."""
        return Answer(value)


class Hooks:
    """Base class of hooks; override the methods you need.

    All are async. They run in order, those of the agent before those of the runtime. Methods with a return value
    decide; the others observe. Each call must end within `timeout`.
    """

    timeout: timedelta | float = TIMEOUT
    """Time limit of each call, in seconds or as a timedelta; exceeding it is a `HookTimeout`."""

    @property
    def seconds(self) -> float:
        return milliseconds(self.timeout) / 1000

    @property
    def name(self) -> str:
        """The name in records and errors."""
        return type(self).__name__

    async def before_turn(self, turn: TurnContext) -> Deny | None:
        """Before a turn begins."""

    async def after_turn(self, turn: TurnContext, ending: Ending) -> None:
        """After the end of a turn was recorded. Neither the outcome nor the next turn waits for this."""

    async def before_model(self, asked: HookRequest) -> ModelDecision | None:
        """Before a request to the model."""

    async def after_model(self, asked: HookRequest, reply: ModelReply) -> ModelDecision | None:
        """After the model answered, before the reply is recorded. An answer replaces the whole reply."""

    async def before_tool(self, call: HookCall) -> ToolDecision | None:
        """Before a tool call; the policy decides after this."""

    async def after_tool(self, call: HookCall, result: ToolResult) -> Answer | None:
        """After a call, also a denied one, one of an unknown tool or one with wrong arguments.

        A returned answer replaces the result, except an `unknown` one.
        """

    async def before_compaction(self, turn: TurnContext, messages: int, tokens: int) -> Deny | None:
        """Before `messages` messages of the conversation are shortened or summarised."""

    async def after_compaction(self, turn: TurnContext, summary: str | None) -> None:
        """After the conversation was compacted."""

    async def on_notification(self, turn: TurnContext, text: str) -> None:
        """When notifications enter the turn, as this text."""

    async def on_error(self, turn: TurnContext, error: HoldfastError | Exception) -> None:
        """When a model call or a tool call failed."""


HOOKS: Final = tuple(name for name, value in vars(Hooks).items() if not name.startswith("_") and callable(value))


def check_hooks(given: object) -> tuple[Hooks, ...]:
    """Check the hooks; they keep their order."""
    if not isinstance(given, list | tuple):
        raise InvalidArgument("hooks", given, "a list of Hooks")
    for hooks in cast("Sequence[object]", given):
        if not isinstance(hooks, Hooks):
            raise InvalidArgument("hooks", hooks, "Hooks: subclass hf.Hooks and override what is of interest")
        try:
            _ = hooks.seconds
        except InvalidArgument as error:
            raise InvalidArgument(f"{hooks.name}.timeout", hooks.timeout, error.wanted) from error
    return tuple(cast("Sequence[Hooks]", given))


def overrides(hooks: Hooks, name: str) -> bool:
    """True if the class of these hooks overrides the method."""
    return getattr(type(hooks), name) is not getattr(Hooks, name)
