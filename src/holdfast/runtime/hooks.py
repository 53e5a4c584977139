"""Running the hooks of a host: those of the agent first, those of the runtime last, each within its time limit.

A hook that raises or takes too long denies where it decides. Where it observes, the error is shown and logged.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar, copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast import errors, eventloop, events
from holdfast.effects import canonical, scopes
from holdfast.logs import log_event
from holdfast.messages import ModelReply, Text, ToolResult
from holdfast.policy.hooks import HOOKS, Answer, Ask, Deny, HookCall, Replace, TurnContext, overrides
from holdfast.runtime.context import is_control_flow
from holdfast.tools.results import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.effects.performer import Performer
    from holdfast.policy.hooks import HookRequest, Hooks, ModelDecision, ToolDecision
    from holdfast.runtime.tool_call import PreparedCall
    from holdfast.turns.machine import Ending

    Show = Callable[[type[events.LiveEvent], str, dict[str, Any]], None]


MAX_QUEUED_TURNS: Final = 100
"""Ended turns of one session that may wait for their `after_turn` hooks."""
CLOSE_SECONDS: Final = 0.5
"""Seconds that `after_turn` hooks get at least when the runtime is closed."""
_log: Final = logging.getLogger("holdfast.hooks")
current_hooks: Final[ContextVar[HookRunner | None]] = ContextVar("holdfast_hooks", default=None)
"""The hooks of the running turn or background call: they see its direct model calls."""
_MISSING: Final = object()
D = TypeVar("D")


class HookRunner:
    """The hooks around one turn, or around a model call outside of turns: those of the agent, then those of the
    runtime.

    `guards` are the hooks of the runtime. They run last, so that they see the final values. `show` publishes the event
    of a failed hook. `clean` removes secrets from reasons and errors of hooks.
    """

    def __init__(
        self,
        hooks: Sequence[Hooks],
        turn: TurnContext,
        show: Show | None = None,
        *,
        guards: Sequence[Hooks] = (),
        clean: Callable[[str], str] = str,
    ) -> None:
        self.turn = turn
        self._clean = clean
        self._hooks = (*hooks, *guards)
        self._guards = frozenset(map(id, guards))
        self._show = show
        self.overridden = frozenset(name for name in HOOKS if any(overrides(hooks, name) for hooks in self._hooks))
        """The methods that any of the hooks overrides."""

    def has(self, name: str) -> bool:
        return name in self.overridden

    # ---- deciding ----

    async def before_turn(self) -> Deny | None:
        """The first denial of the turn; None if it may begin."""
        return await self._first_decision("before_turn", (Deny,), self.turn)

    async def before_model(self, asked: HookRequest) -> ModelDecision | None:
        """The decision in place of the model call; None if the model is called."""
        return await self._first_decision("before_model", (Deny, Answer), asked)

    async def after_model(self, asked: HookRequest, reply: ModelReply) -> ModelReply | Deny:
        """The reply to use. Each hook sees that of the hook before; a denial is final."""
        for hooks in self._hooks_with("after_model"):
            decision = await self._decide(hooks, "after_model", (Deny, Answer), asked, reply)
            if isinstance(decision, Deny):
                return decision
            if decision is not None:
                said = (Text(str(decision.value)),)
                reply = msgspec.structs.replace(reply, parts=said, finish="stop", response_id=None)
        return reply

    async def before_tool(self, call: HookCall) -> list[ToolDecision]:
        """All decisions about a call, in order; a denial or an answer ends the list.

        When a hook of the runtime replaces arguments, those of the runtime before it judge the new ones.
        """
        decided: list[ToolDecision] = []
        asked = self._hooks_with("before_tool")
        passed: list[Hooks] = []
        for number, hooks in enumerate(asked):
            decision = await self._decide_about_call(hooks, call)
            if decision is None:
                continue
            decided.append(decision)
            if isinstance(decision, Deny | Answer):
                return decided
            if isinstance(decision, Replace):
                call = replace(call, arguments=_copied(decision.arguments))
                passed = [guard for guard in asked[:number] if id(guard) in self._guards]
        return decided + await self._judge_changed(passed, call)

    async def judge_edit(self, call: HookCall) -> list[ToolDecision]:
        """The decisions of all hooks about arguments that a person wrote: these can't be replaced, only denied."""
        return await self._judge_changed(self._hooks_with("before_tool"), call)

    async def _judge_changed(self, asked: Sequence[Hooks], call: HookCall) -> list[ToolDecision]:
        """Ask hooks about arguments that changed after they had seen the call. None of them may change more."""
        decided: list[ToolDecision] = []
        for hooks in asked:
            decision = await self._decide_about_call(hooks, call)
            if isinstance(decision, Replace):
                if decision.arguments == call.arguments:
                    continue
                decision = Deny(f"the hook {hooks.name}.before_tool does not accept what was changed after it")
            if decision is not None:
                decided.append(decision)
            if isinstance(decision, Deny | Answer):
                break
        return decided

    async def _decide_about_call(self, hooks: Hooks, call: HookCall) -> ToolDecision | None:
        """The decision of one hook about a call. Arguments that are not a JSON object are a denial."""
        decision = await self._decide(hooks, "before_tool", (Deny, Ask, Replace, Answer), call)
        if isinstance(decision, Replace):
            try:
                canonical.check(decision.arguments)
                return Replace(_copied(decision.arguments))
            except (errors.HoldfastError, msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
                self._report_failure(hooks, "before_tool", error)
                said = self._clean(str(error))[:500]
                return Deny(f"the hook {hooks.name}.before_tool gave arguments that are no JSON: {said}")
        return decision

    async def after_tool(self, call: HookCall, result: ToolResult) -> Answer | Deny | None:
        """The replacement of a result. Each hook sees that of the hook before; a denial is final."""
        found: Answer | None = None
        for hooks in self._hooks_with("after_tool"):
            decision = await self._decide(hooks, "after_tool", (Answer,), call, result)
            if isinstance(decision, Deny):
                return decision
            if decision is not None:
                found = decision
                result = msgspec.structs.replace(result, content=decision.value, state="ok")
        return found

    async def before_compaction(self, messages: int, tokens: int) -> Deny | None:
        """The first denial of the compaction; None if the context may be compacted."""
        return await self._first_decision("before_compaction", (Deny,), self.turn, messages, tokens)

    async def _first_decision(self, name: str, kinds: tuple[type[D], ...], *given: object) -> D | Any:
        for hooks in self._hooks_with(name):
            decision = await self._decide(hooks, name, kinds, *given)
            if decision is not None:
                return decision
        return None

    # ---- observing ----

    def _hooks_with(self, name: str) -> list[Hooks]:
        return [hooks for hooks in self._hooks if overrides(hooks, name)]

    async def _decide(self, hooks: Hooks, where: str, kinds: tuple[type[D], ...], *given: object) -> D | Any:
        """The decision of a hook. A hook that fails or takes too long denies."""
        try:
            decision = await self._run(hooks, where, given)
        except BaseException as error:
            if is_control_flow(error):
                raise
            self._report_failure(hooks, where, error)
            return Deny(f"the hook {hooks.name}.{where} failed: {describe_error(error, self._clean)}")
        if decision is None or isinstance(decision, kinds):
            match decision:  # without secrets: the model or a person reads it
                case Deny(reason):
                    return Deny(self._clean(str(reason)))
                case Ask(why):
                    return Ask(self._clean(str(why)))
                case _:
                    return decision
        self._report_failure(hooks, where, TypeError(f"it returned a {type(decision).__name__}"))
        return Deny(f"the hook {hooks.name}.{where} returned a {type(decision).__name__}")

    async def observe(self, name: str, *given: object) -> None:
        """Run the hooks that only observe: `after_turn`, `after_compaction`, `on_notification`, `on_error`."""
        for hooks in self._hooks_with(name):
            try:
                await self._run(hooks, name, (self.turn, *given))
            except BaseException as error:
                if is_control_flow(error):
                    raise
                self._report_failure(hooks, name, error)

    async def _run(self, hooks: Hooks, where: str, given: tuple[object, ...]) -> Any:  # any value
        """Run one hook within its time limit, else raise `HookTimeout`.

        The hook runs in its own task, so that one that swallows its cancellation can be abandoned. Context variables
        that it sets are kept, as if it had been awaited.
        """
        context = copy_context()
        context.run(scopes.current_scope.set, None)  # a hook is no branch of the code that is driven
        task = context.run(asyncio.get_running_loop().create_task, _caught(hooks, where, given), context=context)
        try:
            await asyncio.wait({task}, timeout=hooks.seconds)
        except BaseException:
            await eventloop.cancel_and_wait(task)
            raise
        if not task.done():
            if not await eventloop.cancel_and_wait(task):
                _log.warning("the hook %s.%s does not end although its time is up; it is left alone", hooks.name, where)
            raise errors.HookTimeout(hooks.name, where, hooks.seconds)
        for variable, value in context.items():
            if variable is not scopes.current_scope and variable.get(_MISSING) is not value:
                variable.set(value)
        returned, error = task.result()
        if error is not None:
            raise error
        return returned

    def _report_failure(self, hooks: Hooks, where: str, error: BaseException) -> None:
        said = describe_error(error, self._clean)
        fields = {"session": self.turn.session, "turn": self.turn.turn, "hook": hooks.name, "where": where}
        log_event(_log, logging.ERROR, "hook failed", raised=error, **fields, error=said)
        fields = {"hook": hooks.name, "where": where, "error": said}
        if self._show is not None:
            self._show(events.HookFailed, self.turn.turn, fields)


class AfterTurnHooks:
    """Runs `after_turn` hooks in the background: neither outcomes nor the next turn wait for them.

    The hooks of one session run in the order of its turns.
    """

    def __init__(self) -> None:
        self._running: dict[str, list[asyncio.Task[None]]] = {}
        """The running hooks by session, in the order of the turns; each waits for the one before."""

    def ended(self, hooked: HookRunner, ending: Ending) -> None:
        """Run the hooks of a turn that has ended, after those of the turns before it."""
        session, turn = hooked.turn.session, hooked.turn.turn
        running = self._running.setdefault(session, [])
        if len(running) >= MAX_QUEUED_TURNS:
            said = "after_turn is not run for %s of %s: %d turns of it are waiting"
            _log.error(said, turn, session, MAX_QUEUED_TURNS)
            return
        task = eventloop.spawn(self._run(running[-1] if running else None, hooked, ending))
        running.append(task)
        task.add_done_callback(lambda done: self._done(session, done))

    async def _run(self, before: asyncio.Task[None] | None, hooked: HookRunner, ending: Ending) -> None:
        if before is not None:
            await asyncio.wait({before})
        await hooked.observe("after_turn", ending)

    def _done(self, session: str, task: asyncio.Task[None]) -> None:
        running = self._running[session]
        running.remove(task)
        if not running:
            del self._running[session]
        if not task.cancelled() and task.exception() is not None:
            _log.error("after_turn of %s failed", session, exc_info=task.exception())

    async def close(self, seconds: float) -> None:
        """Wait for the running hooks; cut off those that do not end in time."""
        tasks = [task for running in self._running.values() for task in running]
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=max(seconds, CLOSE_SECONDS))
        if left:
            _log.warning("after_turn of %d turns was cut off: the runtime is closed", len(left))
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=CLOSE_SECONDS)


async def _caught(hooks: Hooks, where: str, given: tuple[object, ...]) -> tuple[Any, SystemExit | None]:
    """The value of a hook. `SystemExit` would end the event loop if it left a task."""
    try:
        return await getattr(hooks, where)(*given), None
    except SystemExit as error:
        return None, error


def _copied(arguments: dict[str, Any]) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(arguments), type=dict[str, Any])


def hook_call(turn: TurnContext, call: PreparedCall, performer: Performer) -> HookCall:
    """A call as hooks see it. The arguments are a copy."""
    arguments, key = _copied(call.request.arguments or {}), performer.idempotency_key(call.key)
    return HookCall(turn, call.request.name, arguments, call.request.id, key)
