"""The budgets beyond one turn: of its sub-agents, its session, the day, and all of its agent.

They are looked at before each effect that is new, from what the journal and the store say. Time runs on while an effect
is under way: whoever drives the turn looks again when it would be used up, and stops it then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.policy.limits import ASKING, Budget, Used, exceeded, left, over, running
from holdfast.runtime.spending import used_of
from holdfast.store.spending.contract import DAY_MS, day_of
from holdfast.turns import CallModel, RunTools

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.agent import Agent
    from holdfast.policy.limits import Limits, OutOf
    from holdfast.runtime.surroundings import Surroundings
    from holdfast.turns import OpenTurn, TurnState
    from holdfast.turns.machine import Effect


def shares(agent: Agent, turn: OpenTurn) -> bool:
    """Whether there is any budget beyond that of the turn. Who had it before may have had sub-agents."""
    return agent.limits.beyond_turn or agent.delegates or turn.handoffs > 0


class Budgeting:
    """What a turn may use of what it shares with others."""

    def __init__(self, around: Surroundings, agent: Agent, turn: OpenTurn, now: Callable[[], int]) -> None:
        self._around = around
        self._agent = agent
        self._turn = turn
        self._now = now
        self._used = Used()
        """What the turn itself has used."""
        self.tasks: int | None = None
        """How many calls of the batch under way may go on in the background; None: as many as the turn may."""
        # Who had the turn before may have had sub-agents.
        self._delegates = agent.delegates or turn.handoffs > 0
        shared = (agent.limits.daily, agent.limits.total)
        self.counts_steps = any(budget is not None and budget.steps is not None for budget in shared)
        """Whether a budget of the day or of the agent counts steps."""

    async def out_of(
        self, state: TurnState, effect: Effect, recorded: int, settle: Callable[[], Awaitable[None]]
    ) -> OutOf | None:
        """The budget that leaves no room for an effect after the last `recorded` one. `settle` makes that durable."""
        if effect.id < recorded:
            return None
        if isinstance(effect, CallModel):
            ahead = ASKING
        elif isinstance(effect, RunTools):
            ahead = running(len(effect.calls), sum(call.name in state.rules.tasks for call in effect.calls))
        else:
            return None
        out = await self._looked(state.used, ahead, settle)
        return None if effect.id <= recorded else out  # it may be under way; what is recorded is not judged again

    async def room(self, used: Used, within: Used, ahead: Used, settle: Callable[[], Awaitable[None]]) -> OutOf | None:
        """The budget that leaves no room for calls in the middle of a batch; `within` is what that has used so far."""
        out = await self._looked(used, ahead, settle)
        if self.tasks is not None:
            self.tasks += within.background  # they are told of the whole batch
        return out

    async def _looked(self, used: Used, ahead: Used, settle: Callable[[], Awaitable[None]]) -> OutOf | None:
        """The budget that leaves no room for what lies ahead, after what the turn has used."""
        limits, self._used = self._agent.limits, used
        if limits.daily is not None or limits.total is not None:
            await settle()  # what this turn has used is counted with its records
        below = await self._below()
        turn, session, day, total = await self._beyond()
        self.tasks, ms = left(limits, turn, session, day, total)
        self._around.let_run(ms)
        out = self._family(below, ahead)
        return out or exceeded(limits, turn=turn, session=session, day=day, total=total, ahead=ahead)

    async def is_last_step(self, settle: Callable[[], Awaitable[None]]) -> bool:
        """Whether a budget of the day or of the agent leaves one step, as far as anybody has recorded what it used."""
        limits = self._agent.limits
        await settle()
        _, _, day, total = await self._beyond()
        pairs = ((limits.daily, day), (limits.total, total))
        return any(budget is not None and budget.steps == used.steps + 1 for budget, used in pairs)

    async def out_of_time(self) -> OutOf | None:
        """The budget of time that is used up by now, whatever is under way."""
        used = await self._beyond()
        _, ms = left(self._agent.limits, *used)
        self._around.let_run(ms)
        if ms is None or ms > 0:
            return None
        turn, session, day, total = used
        turn = Used(wall_ms=turn.wall_ms)
        return exceeded(_timed(self._agent), turn=turn, session=session, day=day, total=total, ahead=Used())

    async def _below(self) -> Used:
        return await self._around.below(self._turn.run) if self._delegates else Used()

    def _family(self, below: Used, ahead: Used) -> OutOf | None:
        if below == Used():
            return None
        limits = self._agent.limits
        budget = Budget(tokens=limits.tokens, cost_usd=limits.cost_usd)
        return over(budget, self._used + below, ahead, "family")

    async def _beyond(self) -> tuple[Used, Used, Used, Used]:
        """What turn, session, day and agent have used up to now."""
        limits, name, mine = self._agent.limits, self._agent.name, self._used
        now = self._now()
        worked, since = self._around.worked()
        turn = replace(mine, wall_ms=max(worked + now - since - self._turn.used.wall_ms, 0))
        session = day = total = Used()
        if limits.session is not None:
            below = await self._around.below(None)  # also what those of earlier turns have used, or still use
            session = replace(self._turn.used + mine + below, wall_ms=worked + now - since + below.wall_ms)
        if limits.daily is not None:
            today = day_of(now)
            more = now - max(since, today * DAY_MS)
            day = _and_now(used_of(await self._around.spent(name, today)), more)
        if limits.total is not None:
            total = _and_now(used_of(await self._around.spent(name, None)), now - since)
        return turn, session, day, total


def _and_now(counted: Used, more: int) -> Used:
    """What was counted, with what is not yet: the time since the last record."""
    return replace(counted, wall_ms=counted.wall_ms + more)


def _timed(agent: Agent) -> Limits:
    """The budgets of time alone."""
    session, daily, total = (
        None if budget is None else Budget(wall_time=budget.wall_time) for budget in agent.limits.budgets
    )
    return replace(agent.limits, session=session, daily=daily, total=total)
