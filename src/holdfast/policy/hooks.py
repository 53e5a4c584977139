"""Hooks: functions of the host that see or decide what an agent does.

Subclass `Hooks` and override its methods. A hook decides by what it returns, and can only make things stricter: no hook
allows what a policy denies. A deciding hook that raises or takes too long denies; the error of an observing one is
shown, and the turn goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.policy.rules import milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from holdfast.messages import ModelReply, ModelRequest, ToolResult
    from holdfast.turns.machine import Ending


TIMEOUT: Final = 30.0
"""Default time limit of a hook, in seconds."""


class Deny(msgspec.Struct, frozen=True, tag="deny"):
    """The call, the model call or the turn is refused. The model reads the reason."""

    reason: str


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A person is asked first."""

    why: str


class Replace(msgspec.Struct, frozen=True, tag="replace"):
    """The call is made with these arguments."""

    arguments: dict[str, Any]


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The call is not made, and this value is its result."""

    value: Any


RequestKind: TypeAlias = Literal["turn", "summary", "direct"]
ToolDecision: TypeAlias = Deny | Ask | Replace | Answer
ModelDecision: TypeAlias = Deny | Answer


@dataclass(frozen=True, slots=True)
class HookTurn:
    """The turn in which a hook runs."""

    session: str
    agent: str
    turn: str
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """The metadata of the session and of the input with which the turn began."""

    def deny(self, reason: str) -> Deny:
        """The turn is not begun, and ends as failed."""
        return Deny(reason)


@dataclass(frozen=True, slots=True)
class HookRequest:
    """A question to the model, before it is asked. `kind` tells what is asked for: the next step of the turn, a
    summary of the conversation, which makes room for it, or the answer to a question outside of any conversation.

    Such a direct question has the turn whose tool asks it. In `turn` there is nothing where there is no turn, or only
    the session for which a durable function works.
    """

    turn: HookTurn
    request: ModelRequest
    kind: RequestKind = "turn"

    def deny(self, reason: str) -> Deny:
        """The model is not asked; the turn ends as failed. Instead of a summary, the oldest messages are dropped.

        Who asked a direct question gets a `ModelError` of the kind ``denied``.
        """
        return Deny(reason)

    def answer(self, text: str) -> Answer:
        """The model is not asked; this is its reply, or the summary. After it has answered, this is what it said."""
        return Answer(text)


@dataclass(frozen=True, slots=True)
class HookCall:
    """A tool call. `arguments` is a copy: to change them, return `replace(...)`."""

    turn: HookTurn
    tool: str
    arguments: dict[str, Any]
    call_id: str
    idempotency_key: str = field(default="")

    def deny(self, reason: str) -> Deny:
        """The call is not made; the model reads the reason."""
        return Deny(reason)

    def ask(self, why: str) -> Ask:
        """A person is asked before the call is made."""
        return Ask(why)

    def replace(self, arguments: dict[str, Any]) -> Replace:
        """The call is made with these arguments. The policy judges them, not the old ones."""
        return Replace(arguments)

    def answer(self, value: Any) -> Answer:  # any JSON value
        """The call is not made; this is its result."""
        return Answer(value)


class Hooks:
    """Override what is of interest. All are async, and run in the order in which they were given: first those of the
    agent, then those of the runtime.

    Those that may return something decide; the others observe. Each call must end within `timeout`.
    """

    timeout: timedelta | float = TIMEOUT
    """Time limit of each call of a hook, in seconds or as a timedelta; after it comes a `HookTimeout`."""

    @property
    def seconds(self) -> float:
        """The time limit in seconds."""
        return milliseconds(self.timeout) / 1000

    @property
    def name(self) -> str:
        """The name in records and errors."""
        return type(self).__name__

    async def before_turn(self, turn: HookTurn) -> Deny | None:
        """A turn is about to begin."""

    async def after_turn(self, turn: HookTurn, ending: Ending) -> None:
        """A turn has ended, and that is recorded. Nothing waits for this: neither the outcome nor the next turn."""

    async def before_model(self, asked: HookRequest) -> ModelDecision | None:
        """The model is about to be asked."""

    async def after_model(self, asked: HookRequest, reply: ModelReply) -> ModelDecision | None:
        """The model has answered; nothing of it is recorded yet. An answer takes the place of all that it said."""

    async def before_tool(self, call: HookCall) -> ToolDecision | None:
        """A tool is about to be called; the policy decides after this."""

    async def after_tool(self, call: HookCall, result: ToolResult) -> Answer | None:
        """A call has ended, also one that was denied, was of no tool or had wrong arguments.

        What is returned takes the place of its result; a result that is `unknown` stays so.
        """

    async def before_compaction(self, turn: HookTurn, messages: int, tokens: int) -> Deny | None:
        """`messages` messages of the conversation are about to be shortened or summarised."""

    async def after_compaction(self, turn: HookTurn, summary: str | None) -> None:
        """The context is shorter now."""

    async def on_notification(self, turn: HookTurn, text: str) -> None:
        """Notifications enter the turn, as this text."""

    async def on_error(self, turn: HookTurn, error: HoldfastError | Exception) -> None:
        """A model call or a tool call failed."""


HOOKS: Final = tuple(name for name, value in vars(Hooks).items() if not name.startswith("_") and callable(value))


def check_hooks(given: object) -> tuple[Hooks, ...]:
    """Hooks in their order, if they are some."""
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
