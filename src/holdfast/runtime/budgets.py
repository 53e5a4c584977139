"""Spending and shared budgets: the usage that a record stands for, and the budgets of family, session, day and agent.

The turn runner checks shared budgets before each new effect, from journal and store. Time runs on during an effect: the
session driver checks again when the time would be used up, and stops the turn then.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from holdfast.agent import prepare
from holdfast.errors import InvariantBroken, StoreBusy
from holdfast.messages import decode_reply
from holdfast.policy.limits import (
    ONE_STEP,
    Budget,
    Consumption,
    background_room,
    find_exceeded_budget,
    find_exceeded_limit,
    use_of_calls,
)
from holdfast.processes.state import is_process_key
from holdfast.records import TASK_RUN, Done, Opened, Outcome
from holdfast.store.spending import DAY_MS, MAX_SPEND, NO_SPEND, Spend, day_of
from holdfast.turns import keys
from holdfast.turns.compaction.plan import decode_compaction, is_compaction
from holdfast.turns.results import is_paid
from holdfast.turns.state import CallModel, RunTools

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from holdfast.agent import Agent
    from holdfast.messages import Usage
    from holdfast.policy.limits import OutOf
    from holdfast.records import Blob, Record
    from holdfast.runtime.session_driver import SessionDrive
    from holdfast.store import Store
    from holdfast.store.spending import ReadBlob
    from holdfast.turns.compaction.plan import RecordedCompaction
    from holdfast.turns.conversation import OpenTurn
    from holdfast.turns.state import Effect, TurnState


_CALL_SPEND = Spend(tool_calls=1)
_TASK_SPEND = Spend(tasks=1)


def model_call_spend(usage: Usage, cost: float | None) -> Spend:
    """Spend of a model call. Cached tokens count as input."""
    return _model_spend(1, usage, cost)


def unused_reply_spend(usage: Usage, cost: float | None) -> Spend:
    """Spend of a model call whose reply must not be used. It is no step of the turn."""
    return _model_spend(0, usage, cost)


def compaction_spend(made: RecordedCompaction) -> Spend | None:
    """Spend of a compaction; None if it asked no model. It is no step of the turn."""
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
    """Bound a number that a custom model reported."""
    return round(max(0, min(said, MAX_SPEND)))


def spend_of_record(record: Record, read: ReadBlob) -> Spend | None:
    """The spend that a record stands for; None if it stands for none."""
    if type(record) is Opened:  # a background call counts for its agent from the moment it is accepted
        return _TASK_SPEND if record.role == TASK_RUN and record.agent is not None else None
    if is_process_key(getattr(record, "key", "")):
        return _completion_spend(record, read)
    key = keys.parse_key(getattr(record, "key", ""))
    spends = type(record) is Done and (is_compaction(record.key) or is_paid(record.key))
    if key is None or (key.inner and not spends):
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


def _completion_spend(record: Record, read: ReadBlob) -> Spend | None:
    """Spend of a direct completion. Other effects of a process have none of their own."""
    if type(record) is not Done or record.ask is None or record.ask.kind != "direct":
        return None
    body = bytes(record.value) if record.blob is None else read(record.blob)
    if body is None:
        return None
    reply = decode_reply(body)
    return _model_spend(0 if is_paid(record.key) else 1, reply.usage, reply.cost)


def spend_of_records(records: Iterable[Record]) -> Spend:
    """The spend of records whose values are inline."""
    return sum((spend for record in records if (spend := spend_of_record(record, _no_blob)) is not None), NO_SPEND)


def _no_blob(blob: Blob) -> None:
    message = f"the value of a record is apart from it: {blob.digest}"
    raise InvariantBroken(message)


def used_by_spend(spend: Spend) -> Consumption:
    """A spend as budgets count it."""
    return Consumption(
        spend.model_calls,
        spend.input_tokens + spend.output_tokens,
        spend.cost_micros / 1_000_000,
        spend.tool_calls,
        spend.tasks,
        spend.unpriced,
        spend.wall_ms,
    )


def has_shared_budgets(agent: Agent, turn: OpenTurn) -> bool:
    """Whether a budget beyond the turn applies. After a handoff, an earlier agent may have had sub-agents."""
    return agent.limits.beyond_turn or prepare(agent).has_sub_agents or turn.handoffs > 0


class SharedBudgets:
    """The budgets that a turn shares with its sub-agents, its session and other sessions of the agent."""

    def __init__(
        self,
        host: SessionDrive,
        agent: Agent,
        turn: OpenTurn,
        now: Callable[[], int],
        settle: Callable[[], Awaitable[None]],
    ) -> None:
        self._host = host
        self._agent = agent
        self._turn = turn
        self._now = now
        self._settle = settle
        """Makes the usage so far durable."""
        self._used = Consumption()
        """Usage of the turn itself."""
        self.tasks: int | None = None
        """Most background calls of the batch under way; None: no bound but that of the turn."""
        self._delegates = prepare(agent).has_sub_agents or turn.handoffs > 0
        shared = (agent.limits.daily, agent.limits.total)
        self.counts_steps = any(budget is not None and budget.steps is not None for budget in shared)
        """A budget of the day or of the agent counts steps."""

    async def find_exhausted(self, state: TurnState, effect: Effect, recorded: int) -> OutOf | None:
        """The budget without room for an effect behind the last `recorded` one."""
        if effect.id < recorded:
            return None
        if isinstance(effect, CallModel):
            ahead = ONE_STEP
        elif isinstance(effect, RunTools):
            ahead = use_of_calls(len(effect.calls), sum(call.name in state.rules.tasks for call in effect.calls))
        else:
            return None
        out = await self._find_exhausted(state.used, ahead)
        return None if effect.id <= recorded else out  # effects that have begun are not judged again

    async def find_exhausted_in_batch(self, used: Consumption, within: Consumption, ahead: Consumption) -> OutOf | None:
        """The budget without room for more calls of a batch that has used `within` so far."""
        out = await self._find_exhausted(used, ahead)
        if self.tasks is not None:
            self.tasks += within.background  # it bounds the whole batch
        return out

    async def _find_exhausted(self, used: Consumption, ahead: Consumption) -> OutOf | None:
        limits, self._used = self._agent.limits, used
        if limits.daily is not None or limits.total is not None:
            await self._settle()  # the store counts the usage of this turn with its records
        below = await self._used_by_children(self._turn.run) if self._delegates else Consumption()
        turn, session, day, total = await self._used_so_far()
        self.tasks, ms = background_room(limits, turn, session, day, total)
        self._host.let_run(ms)
        out = None
        if below != Consumption():
            family = Budget(tokens=limits.tokens, cost_usd=limits.cost_usd)
            out = find_exceeded_limit(family, used + below, ahead, "family")
        return out or find_exceeded_budget(limits, turn=turn, session=session, day=day, total=total, ahead=ahead)

    async def is_last_step(self) -> bool:
        """Whether a budget of the day or of the agent leaves one step, by what is recorded."""
        limits = self._agent.limits
        await self._settle()
        _, _, day, total = await self._used_so_far()
        pairs = ((limits.daily, day), (limits.total, total))
        return any(budget is not None and budget.steps == used.steps + 1 for budget, used in pairs)

    async def find_exhausted_time(self) -> OutOf | None:
        """The budget of time that is used up by now, if one is."""
        used = await self._used_so_far()
        _, ms = background_room(self._agent.limits, *used)
        self._host.let_run(ms)
        if ms is None or ms > 0:
            return None
        turn, session, day, total = used
        turn = Consumption(wall_ms=turn.wall_ms)
        kept = [None if budget is None else Budget(wall_time=budget.wall_time) for budget in self._agent.limits.budgets]
        limits = replace(self._agent.limits, session=kept[0], daily=kept[1], total=kept[2])  # those of time alone
        return find_exceeded_budget(limits, turn=turn, session=session, day=day, total=total, ahead=Consumption())

    async def _used_by_children(self, run: str | None) -> Consumption:
        """The usage of the sub-agents of a turn, or of all turns of the session."""
        return (await self._host.context.children.below(self._host.session, run)).used

    async def _used_so_far(self) -> tuple[Consumption, Consumption, Consumption, Consumption]:
        """Usage of turn, session, day and agent up to now."""
        limits, name, mine = self._agent.limits, self._agent.name, self._used
        now = self._now()
        worked, since = self._host.worked()
        turn = replace(mine, wall_ms=max(worked + now - since - self._turn.used.wall_ms, 0))
        session = day = total = Consumption()
        if limits.session is not None:
            below = await self._used_by_children(None)  # with those of earlier turns
            session = replace(self._turn.used + mine + below, wall_ms=worked + now - since + below.wall_ms)
        if limits.daily is not None:
            today = day_of(now)
            more = now - max(since, today * DAY_MS)
            spent = used_by_spend(await self._host.context.store.spent(name, today))
            day = replace(spent, wall_ms=spent.wall_ms + more)
        if limits.total is not None:
            spent = used_by_spend(await self._host.context.store.spent(name, None))
            total = replace(spent, wall_ms=spent.wall_ms + now - since)
        return turn, session, day, total


_log: Final = logging.getLogger("holdfast")


async def count_older_spending(store: Store) -> None:
    """Count the spending of records that an older release wrote."""
    try:
        await store.count_older_spending(spend_of_record)
    except StoreBusy as error:  # another process does the same; the next one to open the store tries again
        _log.warning("spending recorded by an older release is not counted yet: %s", error)
