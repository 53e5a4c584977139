"""The budgets beyond one turn: of its sub-agents, its session, the day, and all of its agent.

They are looked at before each effect that is new, from what the journal and the store say. Time runs on while an effect
is under way: whoever drives the turn looks again when it would be used up, and stops it then.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from holdfast.errors import InvariantBroken, StoreBusy
from holdfast.messages import decode_reply
from holdfast.policy.limits import ASKING, Budget, Used, exceeded, left, over, running
from holdfast.processes.state import is_process_key
from holdfast.records import TASK_RUN, Done, Opened, Outcome
from holdfast.store.spending import DAY_MS, MAX_SPEND, NO_SPEND, Spend, day_of
from holdfast.turns import CallModel, RunTools, keys
from holdfast.turns.compaction.apply import decode_compaction, is_compaction
from holdfast.turns.results import is_paid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from holdfast.agent import Agent
    from holdfast.messages import Usage
    from holdfast.policy.limits import Limits, OutOf
    from holdfast.records import Blob, Record
    from holdfast.runtime.context import TurnHost
    from holdfast.store import Store
    from holdfast.store.spending import ReadBlob
    from holdfast.turns import OpenTurn, TurnState
    from holdfast.turns.compaction.apply import Compaction
    from holdfast.turns.state import Effect


_CALL_SPEND = Spend(tool_calls=1)
_TASK_SPEND = Spend(tasks=1)


def model_call_spend(usage: Usage, cost: float | None) -> Spend:
    """What a model call used. What came out of a cache or went into one was read by the model, too."""
    return _model_spend(1, usage, cost)


def unused_reply_spend(usage: Usage, cost: float | None) -> Spend:
    """What a model call used whose reply must not be used. It is no step: it brought the turn no further."""
    return _model_spend(0, usage, cost)


def compaction_spend(made: Compaction) -> Spend | None:
    """What making room in the context used; None when no model was asked. It is no step: that is for turns."""
    return _model_spend(0, made.usage, made.cost, made.calls) if made.calls else None


def _model_spend(steps: int, usage: Usage, cost: float | None, calls: int = 1) -> Spend:
    return Spend(
        model_calls=steps,
        input_tokens=_bounded_count(usage.input + usage.cache_read + usage.cache_write),
        output_tokens=_bounded_count(usage.output),
        cost_micros=0 if cost is None else _bounded_count(cost * 1_000_000),
        unpriced=calls if cost is None else 0,
    )


def _bounded_count(said: float) -> int:
    """A number that can be counted: what a model of somebody's own says may be any number."""
    return round(max(0, min(said, MAX_SPEND)))


def spend_of_record(record: Record, read: ReadBlob) -> Spend | None:  # noqa: PLR0911  one for each kind of record
    """What one record says was spent; None when it says nothing of the kind."""
    if type(record) is Opened:  # a task counts from the moment it is taken in, for the agent that it works for
        return _TASK_SPEND if record.role == TASK_RUN and record.agent is not None else None
    if is_process_key(getattr(record, "key", "")):
        return _completion_spend(record, read)
    key = keys.parse(getattr(record, "key", ""))
    if key is None or (key.inner and not (type(record) is Done and _is_spending(record.key))):
        return None
    if type(record) is Done and key.name == "model":
        body = bytes(record.value) if record.blob is None else read(record.blob)
        if body is None:
            return None
        if key.inner and is_compaction(record.key):
            return compaction_spend(decode_compaction(body))
        reply = decode_reply(body)
        return _model_spend(0 if key.inner else 1, reply.usage, reply.cost)
    return _CALL_SPEND if key.name == "tools" and key.call and isinstance(record, Outcome) else None


def _is_spending(key: str) -> bool:
    """Whether what is below a model call took something by itself."""
    return is_compaction(key) or is_paid(key)


def _completion_spend(record: Record, read: ReadBlob) -> Spend | None:
    """A model call of a process, outside any conversation; what else a process does is no spending of its own."""
    if type(record) is not Done or record.ask is None or record.ask.kind != "direct":
        return None
    body = bytes(record.value) if record.blob is None else read(record.blob)
    if body is None:
        return None
    reply = decode_reply(body)
    return _model_spend(0 if is_paid(record.key) else 1, reply.usage, reply.cost)


def spend_of_records(records: Iterable[Record]) -> Spend:
    """What records say was spent that hold their values themselves."""
    return sum((spend for record in records if (spend := spend_of_record(record, _no_blob)) is not None), NO_SPEND)


def _no_blob(blob: Blob) -> None:
    message = f"the value of a record is apart from it: {blob.digest}"
    raise InvariantBroken(message)


def used_by_spend(spend: Spend) -> Used:
    """The same, as budgets count it."""
    return Used(
        spend.model_calls,
        spend.input_tokens + spend.output_tokens,
        spend.cost_micros / 1_000_000,
        spend.tool_calls,
        spend.tasks,
        spend.unpriced,
        spend.wall_ms,
    )


def has_shared_budgets(agent: Agent, turn: OpenTurn) -> bool:
    """Whether there is any budget beyond that of the turn. Who had it before may have had sub-agents."""
    return agent.limits.beyond_turn or agent.delegates or turn.handoffs > 0


class SharedBudgets:
    """What a turn may use of what it shares with others."""

    def __init__(self, host: TurnHost, agent: Agent, turn: OpenTurn, now: Callable[[], int]) -> None:
        self._host = host
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
        self._host.let_run(ms)
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
        self._host.let_run(ms)
        if ms is None or ms > 0:
            return None
        turn, session, day, total = used
        turn = Used(wall_ms=turn.wall_ms)
        return exceeded(_time_limits(self._agent), turn=turn, session=session, day=day, total=total, ahead=Used())

    async def _below(self) -> Used:
        return await self._host.used_by_children(self._turn.run) if self._delegates else Used()

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
        worked, since = self._host.worked()
        turn = replace(mine, wall_ms=max(worked + now - since - self._turn.used.wall_ms, 0))
        session = day = total = Used()
        if limits.session is not None:
            below = await self._host.used_by_children(None)  # also what those of earlier turns have used, or still use
            session = replace(self._turn.used + mine + below, wall_ms=worked + now - since + below.wall_ms)
        if limits.daily is not None:
            today = day_of(now)
            more = now - max(since, today * DAY_MS)
            day = _with_running_time(used_by_spend(await self._host.spent_by(name, today)), more)
        if limits.total is not None:
            total = _with_running_time(used_by_spend(await self._host.spent_by(name, None)), now - since)
        return turn, session, day, total


def _with_running_time(counted: Used, more: int) -> Used:
    """What was counted, with what is not yet: the time since the last record."""
    return replace(counted, wall_ms=counted.wall_ms + more)


def _time_limits(agent: Agent) -> Limits:
    """The budgets of time alone."""
    session, daily, total = (
        None if budget is None else Budget(wall_time=budget.wall_time) for budget in agent.limits.budgets
    )
    return replace(agent.limits, session=session, daily=daily, total=total)


_log: Final = logging.getLogger("holdfast")


async def count_older_spending(store: Store) -> None:
    """Let budgets count what was recorded before the store was brought up to date."""
    try:
        await store.count_older_spending(spend_of_record)
    except StoreBusy as error:  # others work on it, and begin with the same; whoever opens it next tries again
        _log.warning("what was spent before the store was brought up to date is not counted yet: %s", error)
