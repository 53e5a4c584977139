"""Host calls: one tool call that the host makes outside a turn, by `Runtime.call`.

A host call is a background call for which no turn waits: a process with a journal of its own (`processes.tasks`), with
the policy, hooks and approvals of the session's agent, in the state of the session.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

import msgspec

from holdfast import errors, names
from holdfast.agent import name_tools
from holdfast.effects.canonical import as_declared, decode_value, encode_value, return_type
from holdfast.effects.canonical import check as check_json
from holdfast.effects.performer import idempotency_key
from holdfast.eventloop import release_call_slot
from holdfast.policy import limits
from holdfast.policy.rules import milliseconds
from holdfast.processes import keys, lists
from holdfast.processes.state import TaskCall
from holdfast.records import Cancelled, Done, Failed, Unknown
from holdfast.runtime.authorization import DENIED_ERROR
from holdfast.runtime.budgets import used_by_spend
from holdfast.runtime.session_records import read_conversation
from holdfast.runtime.waits import JournalWaits
from holdfast.store.spending import day_of
from holdfast.toolkits.agents import find_handoff, list_sub_agents
from holdfast.tools.definition import AnyTool, Complaint, Tool

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.agent import Agent
    from holdfast.processes.service import Requested
    from holdfast.processes.state import ProcessState
    from holdfast.runtime.context import RuntimeContext


R = TypeVar("R")
CallStatus = Literal["running", "waiting", "completed", "denied", "failed", "cancelled", "unknown"]
Disposition = Literal["inline", "background", "waiting", "denied", "failed", "cancelled", "unknown"]
MAX_ARGUMENTS: Final = 256 * 1024
"""Longest arguments of a host call, as JSON, in bytes."""


def call_status(state: ProcessState) -> CallStatus:
    """The status of a host call."""
    if not state.over:
        return "waiting" if state.status == "waiting" else "running"
    match state.outcome:
        case Done():
            return "completed"
        case Failed(error=error):
            return "denied" if error.kind == DENIED_ERROR else "failed"
        case Unknown():
            return "unknown"
        case Cancelled() | None:
            return "cancelled"


class HostCall(Generic[R]):
    """A tool call of the host. The handle caches nothing: each method reads the store."""

    def __init__(self, context: RuntimeContext, id: str, disposition: Disposition, returns: Any = None) -> None:
        self.id = id
        """The id of its task: `Runtime.tasks` and `holdfast tasks` know the call by it."""
        self.disposition: Final = disposition
        """The state when `Runtime.call` returned: ``inline`` with a result, running in the ``background``, ``waiting``
        for an approval or an answer, or ended without a result.
        """
        self._context = context
        self._returns = returns

    def __repr__(self) -> str:
        return f"HostCall({self.id!r}, {self.disposition!r})"

    async def status(self) -> CallStatus:
        """Its status now."""
        return call_status(await self._context.tasks.task(self.id))

    async def result(self, *, timeout: float | None = None) -> R:
        """Wait for its result, as the type that the tool declares.

        Raises `CallDenied`, `EffectFailed`, `EffectUnknown` or `CallCancelled` if it ended without one. A
        `TimeoutError` after `timeout` seconds does not stop it.
        """
        async with asyncio.timeout(timeout):
            state = await wait_for_call(self._context, self.id, parked=False)
        tool = "" if state.call is None else state.call.tool
        match call_status(state), state.outcome:
            case "denied", Failed(error=error):
                raise errors.CallDenied(self.id, tool, error.message)
            case _, Failed(error=error):
                raise errors.EffectFailed(f"{tool} ({self.id})", error.kind, error.message)
            case "unknown", _:
                raise errors.EffectUnknown(self.id, tool)
            case "cancelled", _:
                raise errors.CallCancelled(self.id, tool, "" if state.error is None else state.error.message)
            case _:
                body = await self._context.tasks.result(state)
                return cast("R", as_declared(decode_value(body or b"null"), self._returns))

    async def cancel(self, reason: str = "") -> Requested:
        """Request its cancellation, in any process. The first request counts; one after the end is too late."""
        return await self._context.tasks.cancel(self.id, reason)


async def wait_for_call(context: RuntimeContext, id: str, *, parked: bool) -> ProcessState:
    """Wait until a host call has ended, or with `parked` until it waits for a person or an answer."""
    release_call_slot()  # a tool that waits here must not keep the call from running
    head, waits = 0, JournalWaits(context.store, id)
    while True:
        with context.changes.expecting(id, head, ends=True) as found:
            state = await context.tasks.task(id)
            # One whose wait has been answered goes on soon.
            if state.over or (parked and state.status == "waiting" and not await waits.any_ended(state.waits)):
                return state
            error = context.sessions.stuck(id)
            if error is not None:
                raise error
            found.head = state.head
            await found.news
        head = found.head


def find_tool(agent: Agent, tool: AnyTool | str) -> AnyTool:
    """The tool of an agent that a host may call; `ToolInvalid` if there is none."""
    asked = tool.name if isinstance(tool, Tool) else names.check_string("tool", tool)
    found = agent.tools.get(asked)
    if found is None or (isinstance(tool, Tool) and tool != found):
        reason = f"the agent {agent.name!r} does not have it; it has: {name_tools(agent)}"
        raise errors.ToolInvalid(asked, None, reason)
    if find_handoff(found) is not None or any(list_sub_agents({asked: found})):
        raise errors.ToolInvalid(asked, None, "it belongs to a turn: send the session, or the agent, an input")
    return found


def check_arguments(tool: AnyTool, arguments: dict[str, Any]) -> None:
    """Raise `ArgumentsInvalid` with the complaint of the tool's schema."""
    if type(arguments) is not dict:
        raise errors.InvalidArgument("arguments", arguments, "an object with the arguments of the call")
    check_json(arguments)
    size = len(encode_value(arguments))
    if size > MAX_ARGUMENTS:
        raise errors.PayloadTooLarge("the arguments of a host call", size, MAX_ARGUMENTS)
    bound = tool.bind(arguments)
    if isinstance(bound, Complaint):
        raise errors.ArgumentsInvalid(tool.name, arguments, bound.text)


class HostCalls:
    """Makes the host calls of one runtime."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._store = context.store

    async def call(
        self,
        tool: AnyTool | str,
        arguments: dict[str, Any],
        session: str,
        key: str | None,
        inline_budget: timedelta | float | None,
        *,
        notify: bool,
    ) -> HostCall[Any]:
        """Make a call, and wait for its result for `inline_budget`; see `Runtime.call`."""
        chosen = secrets.token_hex(8) if key is None else names.check_id("key", key)
        budget = None if inline_budget is None else milliseconds(inline_budget) / 1000
        agent, found = await self._find_tool(session, tool)
        call = await self._task_call(session, found, arguments, keys.host_call_key(chosen), notify=notify)
        id = keys.task_id(session, call.key)
        if not await self._is_made(id, call):
            await self._check_budget(session, agent)
            await self._context.tasks.start_host_call(id, agent.name, call, session)
        returns = return_type(found.function)
        if budget is None:
            budget = found.inline_budget or agent.inline_budget or self._context.inline_budget
        if found.background and inline_budget is None:
            budget = 0.0
        try:
            async with asyncio.timeout(budget):
                status = call_status(await wait_for_call(self._context, id, parked=True))
        except TimeoutError:
            return HostCall(self._context, id, "background", returns)
        words: dict[CallStatus, Disposition] = {"completed": "inline", "running": "background"}
        return HostCall(self._context, id, words.get(status) or cast("Disposition", status), returns)

    async def _find_tool(self, session: str, tool: AnyTool | str) -> tuple[Agent, AnyTool]:
        """The session's agent and its tool in this runtime."""
        name = (await self._store.journal(session)).agent or ""
        agent = self._context.agents.get(name)
        if agent is None:
            raise errors.AgentUnknown(name, tuple(self._context.agents))
        return agent, find_tool(agent, tool)

    async def _task_call(
        self, session: str, tool: AnyTool, arguments: dict[str, Any], key: str, *, notify: bool
    ) -> TaskCall:
        check_arguments(tool, arguments)
        # The call runs exactly as it was made: a secret can't be redacted later, so it is refused.
        self._store.redactor.check_json("arguments", msgspec.json.encode(arguments))
        idempotency = idempotency_key(await self._store.birthplace(session), session, key)
        return TaskCall(tool.name, arguments, key, "", key, idempotency, host=True, notify=bool(notify))

    async def _is_made(self, id: str, call: TaskCall) -> bool:
        """True if this call was made before; `CallConflict` if another one has its key."""
        try:
            state = await lists.read_process(self._store, id)
        except errors.JournalMissing:
            return False
        if state.call != call:
            raise errors.CallConflict(call.key.removeprefix(keys.host_call_key("")), id)
        return True

    async def _check_budget(self, session: str, agent: Agent) -> None:
        """Raise `CallOverBudget` if no budget (session, day, agent) has room for the call.

        A host call counts as a background call.
        """
        own = agent.limits
        if not any(own.budgets):
            return
        used = (await read_conversation(self._store, session)).used
        today = day_of(self._store.clock.read().wall)
        day, total = [used_by_spend(await self._store.spent(agent.name, each)) for each in (today, None)]
        ahead = limits.Consumption(tool_calls=1, background=1)
        out = limits.find_exceeded_budget(own, session=used, day=day, total=total, ahead=ahead)
        if out is not None:
            raise errors.CallOverBudget(session, out.code, out.message)
