"""Running the hooks of a host, in their order. Where they decide, one that raises denies; elsewhere it is told."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast import events
from holdfast.messages import Text
from holdfast.policy.hooks import Answer, Ask, Deny, HookCall, HookTurn, Replace, overrides
from holdfast.runtime.surroundings import passes
from holdfast.tools.results import said_by

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.effects.performer import Performer
    from holdfast.messages import ModelReply, ToolResult
    from holdfast.policy.hooks import HookRequest, Hooks, ModelDecision, ToolDecision
    from holdfast.runtime.call import Call
    from holdfast.turns import Ending

    Show = Callable[[type[events.LiveEvent], str, dict[str, Any]], None]

_log: Final = logging.getLogger("holdfast.hooks")
around_call: Final[ContextVar[Hooked | None]] = ContextVar("holdfast_hooks", default=None)
"""The hooks of the turn or task whose code is running: they see what it asks a model outside of its conversation."""
D = TypeVar("D")


class Hooked:
    """The hooks around one turn, or around what is asked outside of turns. `show` tells of those that fail."""

    def __init__(self, hooks: Sequence[Hooks], turn: HookTurn, show: Show | None = None) -> None:
        self.turn = turn
        self._hooks = hooks
        self._show = show

    def has(self, name: str) -> bool:
        """Whether anybody wrote this hook."""
        return bool(self._hooks) and any(overrides(hooks, name) for hooks in self._hooks)

    # ---- deciding ----

    async def before_turn(self) -> Deny | None:
        """Whether the turn may begin."""
        for hooks in self._of("before_turn"):
            decision = await self._decided(hooks, "before_turn", hooks.before_turn(self.turn), (Deny,))
            if decision is not None:
                return decision
        return None

    async def before_model(self, asked: HookRequest) -> ModelDecision | None:
        """What is decided in place of asking the model."""
        for hooks in self._of("before_model"):
            decision = await self._decided(hooks, "before_model", hooks.before_model(asked), (Deny, Answer))
            if decision is not None:
                return decision
        return None

    async def after_model(self, asked: HookRequest, reply: ModelReply) -> ModelReply | Deny:
        """The reply as it may be used. Each hook sees what the one before has made of it; a denial is final."""
        for hooks in self._of("after_model"):
            decision = await self._decided(hooks, "after_model", hooks.after_model(asked, reply), (Deny, Answer))
            if isinstance(decision, Deny):
                return decision
            if decision is not None:
                said = (Text(str(decision.value)),)
                reply = msgspec.structs.replace(reply, parts=said, finish="stop", response_id=None)
        return reply

    async def before_tool(self, call: HookCall) -> list[ToolDecision]:
        """All that is decided about a call, in order; nothing is asked after a denial or an answer."""
        decided: list[ToolDecision] = []
        kinds = (Deny, Ask, Replace, Answer)
        for hooks in self._of("before_tool"):
            decision = await self._decided(hooks, "before_tool", hooks.before_tool(call), kinds)
            if decision is None:
                continue
            decided.append(decision)
            if isinstance(decision, Deny | Answer):
                break
            if isinstance(decision, Replace):
                call = HookCall(call.turn, call.tool, dict(decision.arguments), call.call_id, call.idempotency_key)
        return decided

    async def after_tool(self, call: HookCall, result: ToolResult) -> Answer | Deny | None:
        """What takes the place of a result. Each hook sees what the one before has made of it; a denial is final."""
        found: Answer | None = None
        for hooks in self._of("after_tool"):
            decision = await self._decided(hooks, "after_tool", hooks.after_tool(call, result), (Answer,))
            if isinstance(decision, Deny):
                return decision
            if decision is not None:
                found = decision
                result = msgspec.structs.replace(result, content=decision.value, state="ok")
        return found

    async def before_compaction(self, messages: int, tokens: int) -> Deny | None:
        """Whether the context must stay as it is."""
        for hooks in self._of("before_compaction"):
            asked = hooks.before_compaction(self.turn, messages, tokens)
            decision = await self._decided(hooks, "before_compaction", asked, (Deny,))
            if decision is not None:
                return decision
        return None

    # ---- observing ----

    async def after_turn(self, ending: Ending) -> None:
        """Tell how the turn ended."""
        for hooks in self._of("after_turn"):
            await self._observed(hooks, "after_turn", hooks.after_turn(self.turn, ending))

    async def after_compaction(self, summary: str | None) -> None:
        """Tell that the context is shorter."""
        for hooks in self._of("after_compaction"):
            await self._observed(hooks, "after_compaction", hooks.after_compaction(self.turn, summary))

    async def on_notification(self, text: str) -> None:
        """Tell what notifications enter."""
        for hooks in self._of("on_notification"):
            await self._observed(hooks, "on_notification", hooks.on_notification(self.turn, text))

    async def on_error(self, error: Exception) -> None:
        """Tell what failed."""
        for hooks in self._of("on_error"):
            await self._observed(hooks, "on_error", hooks.on_error(self.turn, error))

    def _of(self, name: str) -> list[Hooks]:
        return [hooks for hooks in self._hooks if overrides(hooks, name)]

    async def _decided(self, hooks: Hooks, where: str, asked: Awaitable[Any], kinds: tuple[type[D], ...]) -> D | Any:  # noqa: ANN401
        """What a hook decides. Whoever can't say what may be done has not allowed it."""
        try:
            decision = await asked
        except BaseException as error:
            if passes(error):
                raise
            self._tell(hooks, where, error)
            return Deny(f"the hook {hooks.name}.{where} failed: {said_by(error)}")
        if decision is None or isinstance(decision, kinds):
            return decision
        self._tell(hooks, where, TypeError(f"it returned a {type(decision).__name__}"))
        return Deny(f"the hook {hooks.name}.{where} returned a {type(decision).__name__}")

    async def _observed(self, hooks: Hooks, where: str, asked: Awaitable[None]) -> None:
        try:
            await asked
        except BaseException as error:
            if passes(error):
                raise
            self._tell(hooks, where, error)

    def _tell(self, hooks: Hooks, where: str, error: BaseException) -> None:
        _log.error("the hook %s.%s failed: %s", hooks.name, where, said_by(error))
        fields = {"hook": hooks.name, "where": where, "error": said_by(error)}
        if self._show is not None:
            self._show(events.HookFailed, self.turn.turn, fields)


def seen(turn: HookTurn, call: Call, performer: Performer) -> HookCall:
    """A call as hooks see it. The arguments are a copy."""
    arguments = msgspec.json.decode(msgspec.json.encode(call.call.arguments or {}))
    return HookCall(turn, call.call.name, arguments, call.call.id, performer.idempotency_key(call.key))
