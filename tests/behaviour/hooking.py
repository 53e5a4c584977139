"""Hooks that a test tells what to do, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.behaviour.approving import sent, told
from tests.behaviour.talk import until

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.messages import ModelReply, ToolResult
    from holdfast.policy.hooks import Answer, Deny, ModelDecision, ToolDecision
    from holdfast.runtime.runtime import Runtime
    from holdfast.turns.machine import Ending

OPEN = (hf.allow("*"),)


class Seen(hf.Hooks):
    """Writes down what it sees, and lets everything be."""

    def __init__(self, log: list[str] | None = None, mark: str = "") -> None:
        self.log = [] if log is None else log
        self._mark = mark

    def see(self, what: str) -> None:
        self.log.append(self._mark + what)

    async def before_turn(self, turn: hf.TurnContext) -> Deny | None:
        self.see("before_turn")

    async def after_turn(self, turn: hf.TurnContext, ending: Ending) -> None:
        self.see(f"after_turn {ending.status}")

    async def before_model(self, asked: hf.HookRequest) -> ModelDecision | None:
        self.see("before_model")

    async def after_model(self, asked: hf.HookRequest, reply: ModelReply) -> Deny | None:
        self.see("after_model")

    async def before_tool(self, call: hf.HookCall) -> ToolDecision | None:
        self.see(f"before_tool {call.tool}")

    async def after_tool(self, call: hf.HookCall, result: ToolResult) -> Answer | None:
        self.see(f"after_tool {result.state}")

    async def on_notification(self, turn: hf.TurnContext, text: str) -> None:
        self.see("on_notification")

    async def on_error(self, turn: hf.TurnContext, error: Exception) -> None:
        self.see(f"on_error {error}")


class Before(hf.Hooks):
    """Decides about calls as a test says, and counts how often it was asked."""

    def __init__(self, decide: Callable[[hf.HookCall], Any], tool: str = "refund") -> None:
        self.calls: list[hf.HookCall] = []
        self._decide = decide
        self._tool = tool

    async def before_tool(self, call: hf.HookCall) -> ToolDecision | None:
        if call.tool != self._tool:
            return None
        self.calls.append(call)
        return self._decide(call)


class After(hf.Hooks):
    """Makes something else of results."""

    def __init__(self, make: Callable[[hf.HookCall, ToolResult], Any]) -> None:
        self.seen: list[ToolResult] = []
        self._make = make

    async def after_tool(self, call: hf.HookCall, result: ToolResult) -> Answer | None:
        self.seen.append(result)
        return self._make(call, result)


def lets_be(*_: object) -> None:
    """Decide nothing."""


def raises(*_: object) -> Any:
    raise RuntimeError("the hook is broken")


async def said(runtime: Runtime, agent: hf.Agent) -> list[ToolResult]:
    """What the model reads of its calls, in a turn of its own."""
    await sent(runtime, agent)
    return await told(runtime)


async def failures(runtime: Runtime, act: Callable[[], Awaitable[object]]) -> list[tuple[str, str]]:
    """The hooks that are told to have failed while something is done."""
    found: list[tuple[str, str]] = []
    subscription = runtime.on(hf.events.HookFailed, lambda event: found.append((event.hook, event.where)))
    await act()

    async def is_told() -> bool:
        return bool(found)

    await until(is_told)
    await subscription.stop()
    return found


class Turns(hf.Hooks):
    """Denies turns."""

    def __init__(self, decide: Callable[[hf.TurnContext], Any]) -> None:
        self.count = 0
        self._decide = decide

    async def before_turn(self, turn: hf.TurnContext) -> Deny | None:
        self.count += 1
        return self._decide(turn)


class Models(hf.Hooks):
    """Decides about questions to the model, and about replies."""

    def __init__(
        self,
        before: Callable[[hf.HookRequest], Any] = lets_be,
        after: Callable[[hf.HookRequest, ModelReply], Any] = lets_be,
    ) -> None:
        self._before = before
        self._after = after

    async def before_model(self, asked: hf.HookRequest) -> ModelDecision | None:
        return self._before(asked)

    async def after_model(self, asked: hf.HookRequest, reply: ModelReply) -> Deny | None:
        return self._after(asked, reply)


ODD: dict[str, Any] = {
    "an object": object(),
    "a set": {1, 2},
    "no number": float("nan"),
    "bytes": b"\xff",
    "half a character": "\ud800",
    "a large number": 1 << 80,
    "itself": [],
}
ODD["itself"].append(ODD["itself"])
