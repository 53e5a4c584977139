"""Sub-agents of one runtime: starts them for a parent, waits for them, sums their usage, and stops them with it.

The store lists the session of a sub-agent under the session of its parent. Its first input holds its mandate. There is
no other link between the two.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import msgspec

from holdfast import errors
from holdfast.agent import Agent, narrow_agent
from holdfast.crashpoints import crash_point
from holdfast.errors.store import not_served
from holdfast.eventloop import ignore_result, release_call_slot, spawn
from holdfast.messages import Text
from holdfast.policy import limits as policy_limits
from holdfast.policy.limits import ROLE, Consumption, Mandate, promised_use
from holdfast.policy.rules import milliseconds
from holdfast.processes.context import AwaitedTurn
from holdfast.processes.lists import DAMAGE
from holdfast.runtime.session_records import read_ending, read_present
from holdfast.runtime.taint import taint_of, taint_of_session
from holdfast.runtime.turn import TurnOutcome, TurnReader
from holdfast.store.inbox import STOP_KEY, stop_key
from holdfast.toolkits.agents import SUB_AGENT_WAIT, SubAgentRefused, SubAgentRequest, SubAgentTurn
from holdfast.turns import keys
from holdfast.turns.conversation import Conversation, UsageTotal, UserInput, decode_input

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from holdfast.records import InputTaint
    from holdfast.runtime.context import RuntimeContext
    from holdfast.store.contract import Journal
    from holdfast.turns.machine import Ending


_log: Final = logging.getLogger("holdfast.agents")
ORDER_KEY: Final = "order"
"""Key of the first input of a sub-agent's session. Its number is 1."""
FIRST_INPUT: Final = 1
WAIT_IN_MEMORY: Final = 30.0
"""Seconds that a parent waits in memory for a sub-agent before it is parked."""
LOOK_INTERVAL: Final = 0.25
"""Interval at which a waiting parent checks whether others need its room, in seconds."""
_MAX_CACHED: Final = 10_000
"""Most ended sub-agents whose usage is cached."""
_ACTIVE: Final = frozenset(("idle", "running", "waiting"))


@dataclass(slots=True)
class SubtreeUsage:
    """The usage of sub-agents."""

    used: Consumption = field(default_factory=Consumption)
    models: dict[str, UsageTotal] = field(default_factory=dict[str, UsageTotal])

    @property
    def total(self) -> UsageTotal:
        """Of all models together."""
        return sum(self.models.values(), UsageTotal())

    def count(self, model: str, total: UsageTotal) -> None:
        """Count calls of a model."""
        self.models[model] = self.models.get(model, UsageTotal()) + total

    def include(self, other: SubtreeUsage) -> None:
        """Count the usage of others as well."""
        self.used += other.used
        for model, total in other.models.items():
            self.count(model, total)


def agent_under_mandate(agent: Agent | None, mandate: Mandate | None, agents: Mapping[str, Agent]) -> Agent | None:
    """The agent with the limits of its mandate; None if it, or one above it, is unknown here."""
    if agent is None or mandate is None:
        return agent
    known = [agents[name] for name in mandate.above if name in agents]
    if len(known) < len(mandate.above) or not known:
        return None
    policy = policy_limits.policy_of_sub_agent([found.policy for found in known], agent.policy)
    return narrow_agent(agent, policy=policy)


class SubAgents:
    """Starts, awaits and stops the sub-agents of one runtime."""

    def __init__(self, context: RuntimeContext) -> None:
        self.patience = WAIT_IN_MEMORY
        """Seconds that a parent waits in memory."""
        self._context = context
        self._store = context.store
        self.mine: set[str] = set()
        """Sessions of sub-agents that calls in this process wait for."""
        self._ended_usage: dict[str, SubtreeUsage] = {}
        """The own usage of ended sessions."""
        self._mandates: dict[str, Mandate | None] = {}
        """Cached mandates. A mandate never changes."""
        self._find_or_begin: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # ---- beginning ----

    async def delegate(self, order: SubAgentRequest) -> SubAgentTurn:
        """Find or begin the turn that carries out an order."""
        # One after the other: what was promised to one is not there for the next.
        lock = self._find_or_begin.setdefault(order.session, asyncio.Lock())
        async with lock:
            self.mine.add(order.child)
            receipt = None
            with suppress(errors.JournalMissing):
                receipt = await self._store.find_input(order.child, ORDER_KEY)
            if receipt is None:
                with suppress(errors.KeyConflict):  # a process that was fenced off has begun it
                    while not await self._begin(order):
                        pass  # another process used the budget meanwhile
            elif self._context.engine is not None:  # it may have been left alone until now
                self._context.engine.poke(order.child, again=True)
            return SubAgentTurn(order.child, FIRST_INPUT if receipt is None else receipt.input, order.agent)

    async def _begin(self, order: SubAgentRequest) -> bool:
        """Begin a sub-agent; False if another process took from the budget while its share was computed.

        Calls in this process take turns. A background call may run in another one.
        """
        # The reply that asks for this is in the journal of the parent, or this is not begun.
        await self._store.read_position()
        task = await self._context.tasks.task_for_call(order.session, order.key)
        # A request to stop its turn or its task refuses the sub-agent.
        under = (order.session, stop_key(order.turn)) if task is None else (task, STOP_KEY)
        youngest = await self._store.youngest(ROLE, order.session)
        said = UserInput(
            (Text(order.prompt),),
            deadline_ms=self._span(order),
            metadata=dict(order.metadata) if order.metadata else None,
            mandate=await self._mandate(order),
        )
        crash_point("delegate.reckoned")
        try:
            await self._accept(order, said, youngest, under)
        except errors.SiblingBegun:
            return False
        except errors.StopRequested:
            raise SubAgentRefused(order.agent, "what asked for it is being stopped") from None
        return True

    async def _accept(self, order: SubAgentRequest, said: UserInput, youngest: str, under: tuple[str, str]) -> None:
        try:
            await self._context.sessions.accept(
                order.child, order.agent, said, ORDER_KEY, youngest=youngest, under=under
            )
        except errors.RuntimeStopped:  # the next runtime continues both
            body = msgspec.to_builtins(said)
            opening: dict[str, Any] = {"key": ORDER_KEY, "role": ROLE, "session": order.session, "youngest": youngest}
            await self._store.accept_into(order.child, "session", order.agent, body, under=under, **opening)

    def _span(self, order: SubAgentRequest) -> int | None:
        """The time limit in milliseconds: its own, or until the deadline of the parent if that comes first."""
        own = self._agent(order.agent).limits.deadline
        spans = [] if own is None else [milliseconds(own)]
        if order.deadline is not None:
            spans.append(max(1, round(order.deadline.timestamp() * 1000) - self._store.clock.read().wall))
        return min(spans, default=None)

    def _agent(self, name: str) -> Agent:
        found = self._context.agents.get(name)
        if found is None:
            raise errors.AgentUnknown(name, tuple(self._context.agents))
        return found

    async def _mandate(self, order: SubAgentRequest) -> Mandate:
        conversation = await read_present(self._store, order.session)
        parent = self._agent(order.by or conversation.agent or "")  # who may have handed the session over since
        over = conversation.mandate
        limits = parent.limits if over is None else policy_limits.limits_under_mandate(parent.limits, over)
        above = (*(() if over is None else over.above), parent.name)
        if order.agent in above:
            raise SubAgentRefused(order.agent, f"it works on this itself already ({' > '.join(above)})")
        if limits.depth < 1:
            raise SubAgentRefused(order.agent, f"{parent.name!r} may start no sub-agents here (Limits.depth)")
        taint = taint_of(conversation, parent, order.session)
        accounts = [
            policy_limits.Account(
                policy_limits.Budget(
                    steps=limits.steps, tokens=limits.tokens, cost_usd=limits.cost_usd, tool_calls=limits.tool_calls
                ),
                await self._used_in_turn(conversation, order) + await self._promised(order.session, order.turn),
                "turn",
            )
        ]
        if limits.session is not None:
            used = conversation.used + await self._promised(order.session, None)
            accounts.append(policy_limits.Account(limits.session, used, "session"))
        budget = policy_limits.share_budget(order.budget, accounts)
        if isinstance(budget, policy_limits.OutOf):
            raise SubAgentRefused(order.agent, f"nothing is left for it: {budget.message}")
        return Mandate(
            session=order.session,
            turn=order.turn,
            key=order.key,
            call=order.call,
            above=above,
            depth=limits.depth - 1,
            budget=budget,
            untrusted=taint.untrusted_input,
            private=taint.private_data,
            untrusted_by=taint.untrusted_by,
            private_by=taint.private_by,
        )

    # ---- waiting ----

    async def outcome(self, child: SubAgentTurn) -> TurnOutcome | None:
        """The outcome of its turn; None after `patience`."""
        release_call_slot()  # it must not keep the calls of the sub-agent out
        reader = TurnReader(self._store, child.session, child.input, 0, known=True)
        ending = await reader.read() or await self._wait_in_memory(reader)
        if ending is not None:
            self.mine.discard(child.session)
        return None if ending is None else reader.outcome(ending, None)

    async def taint(self, child: SubAgentTurn) -> InputTaint:
        """The taint of its session."""
        return (await taint_of_session(self._store, self._context.agents, child.session)).as_input

    async def _wait_in_memory(self, reader: TurnReader) -> Ending | None:
        waiting = spawn(reader.wait(self._context))
        loop = asyncio.get_running_loop()
        until = loop.time() + self.patience
        try:
            while not waiting.done() and loop.time() < until and not self._context.sessions.crowded:
                await asyncio.wait({waiting}, timeout=LOOK_INTERVAL)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()
            ignore_result(waiting)

    def tell(self, child: SubAgentTurn, token: str) -> None:
        """Answer the wait with this token when its turn ends."""
        turn = AwaitedTurn(child.session, child.input)
        self._context.processes.watch_turn(turn, token, partial(self._store.resolve, token, value=True))

    async def ended(self, mandate: Mandate) -> None:
        """Wake a parked parent in any process."""
        await self._wake(mandate.session, f"{mandate.key}/")
        for line in await self._context.tasks.list(session=mandate.session, status="waiting"):
            call = (await self._context.tasks.task(line.id)).call
            if call is not None and call.idempotency == mandate.call:
                await self._wake(line.id, "")

    async def _wake(self, journal: str, scope: str) -> None:
        for wait in await self._store.waits(journal, state="open"):
            if wait.name.startswith(scope) and wait.name.rpartition("/")[2].partition("#")[0] == SUB_AGENT_WAIT:
                await self._store.answer_wait(journal, wait.name, value=True)

    # ---- stopping ----

    async def stop_turn(self, session: str, turn: str, reason: str) -> None:
        """Stop the sub-agents that a turn waits for. Those in the background go on."""
        await self._store.read_position()  # one that is being begun is seen
        async for line, mandate in self._of(session, turn):
            waited_for = mandate.key.startswith(f"{turn}/") and line.status in _ACTIVE
            if waited_for and await self._context.tasks.task_for_call(session, mandate.key) is None:
                await self._stop(line.id, reason)

    async def stop_call(self, session: str, call: str, reason: str) -> None:
        """Stop the sub-agent of one call, in any process."""
        await self._store.read_position()
        async for line, mandate in self._of(session):
            if mandate.call == call and line.status in _ACTIVE:
                await self._stop(line.id, reason)

    async def _stop(self, child: str, reason: str) -> None:
        said = f"what asked for it was stopped: {reason}" if reason else "what asked for it was stopped"
        try:
            await self._context.sessions.request_stop(child, keys.turn_id(FIRST_INPUT), said[:1_000])
        except DAMAGE as error:  # then it does not go on either
            _log.warning("%r can't be stopped: %s", child, error)

    # ---- counting ----

    async def any_of(self, session: str) -> bool:
        """True if a session has sub-agents."""
        return bool(await self._store.journals(kind="session", role=ROLE, session=session, limit=1))

    async def below(self, session: str, turn: str | None = None) -> SubtreeUsage:
        """The usage of a session's sub-agents and all below them, for one turn or all."""
        found = SubtreeUsage()
        async for line, mandate in self._of(session, turn):
            found.include(await self._counted(line, mandate))
        return found

    async def _counted(self, line: Journal, mandate: Mandate) -> SubtreeUsage:
        """The usage of one sub-agent and all below it; its whole budget if its journal is damaged."""
        try:
            return await self.whole(line)
        except DAMAGE:
            return SubtreeUsage(promised_use(mandate.budget, Consumption()), {"": UsageTotal(cost=None)})

    async def _promised(self, session: str, turn: str | None) -> Consumption:
        """The usage of ended sub-agents plus the budgets of those that still work."""
        total = Consumption()
        async for line, mandate in self._of(session, turn):
            used = (await self._counted(line, mandate)).used
            total += promised_use(mandate.budget, used) if await self._works(line) else used
        return total

    async def _works(self, line: Journal) -> bool:
        """True if a sub-agent, or one below it, may still use its budget."""
        if line.status in _ACTIVE:
            return True
        async for below, _ in self._of(line.id):
            if await self._works(below):
                return True
        return False

    def drop(self, session: str) -> None:
        """Drop the cache entries of a forgotten session."""
        self._mandates.pop(session, None)
        for known in [known for known in self._ended_usage if known.rpartition("@")[0] == session]:
            del self._ended_usage[known]

    async def whole(self, line: Journal) -> SubtreeUsage:
        """The usage of one session and all sub-agents below it. Sub-agents may outlive the session."""
        found = SubtreeUsage()
        found.include(await self._own(line))
        found.include(await self.below(line.id))
        return found

    async def _used_in_turn(self, conversation: Conversation, order: SubAgentRequest) -> Consumption:
        """The usage of the turn that gave the order, open or ended."""
        turn = conversation.turn
        if turn is not None and turn.run == order.turn:
            return Consumption(turn.steps, turn.usage.total, turn.cost or 0.0)
        ending = await read_ending(self._store, order.session, order.turn)
        return Consumption() if ending is None else Consumption(ending.steps, ending.usage.total, ending.cost or 0.0)

    async def _own(self, line: Journal) -> SubtreeUsage:
        if line.quarantine is not None and not line.moved:
            raise not_served(line.id, line.quarantine)
        known = self._ended_usage.get(f"{line.id}@{line.head}")
        if known is not None:
            return known
        conversation = await read_present(self._store, line.id)
        found = SubtreeUsage(conversation.used)
        for (model, _), total in conversation.usage.items():
            found.count(model, total)
        if line.status not in _ACTIVE and len(self._ended_usage) < _MAX_CACHED:
            self._ended_usage[f"{line.id}@{line.head}"] = found
        return found

    async def _of(self, session: str, turn: str | None = None) -> AsyncIterator[tuple[Journal, Mandate]]:
        """The sub-agents of a session, or of one of its turns, with their mandates."""
        for line in await self._lines(session):
            mandate = await self._mandate_of(line)
            if mandate is not None and turn in {None, mandate.turn}:
                yield line, mandate

    async def _lines(self, session: str) -> list[Journal]:
        """All sessions that work for a session. Includes those that change during the listing."""
        found: dict[str, Journal] = {}
        most = self._store.limits.page
        list_page = partial(self._store.journals, kind="session", role=ROLE, session=session, limit=most)
        while True:
            before, last = len(found), None
            while page := await list_page(before=last):
                found |= {line.id: line for line in page}
                if len(page) < most:
                    break
                last = page[-1]
            if last is None or len(found) == before:  # sessions that moved to the front meanwhile were seen there
                return list(found.values())

    async def _mandate_of(self, line: Journal) -> Mandate | None:
        """The mandate of a session; None for forks."""
        if line.parent is not None:
            return None
        if line.id not in self._mandates:
            try:
                begun = await self._store.input(line.id, FIRST_INPUT)
            except DAMAGE:
                return None
            said = None if begun is None else decode_input(begun.body)
            if len(self._mandates) >= _MAX_CACHED:
                self._mandates.clear()
            self._mandates[line.id] = said.mandate if isinstance(said, UserInput) else None
        return self._mandates[line.id]
