"""Spending and shared budgets: the usage of each record, and the budgets of family, session, day and agent.

The turn runner checks shared budgets before each new effect, from journal and store. Time also passes during an effect:
the session driver checks again when the time would be used up, and then stops the turn.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from holdfast import errors, messages
from holdfast.policy import limits
from holdfast.policy.limits import ONE_STEP, Budget, Consumption, OutOf
from holdfast.processes.keys import is_process_key
from holdfast.records import TASK_RUN, Blob, Done, Opened, Outcome, Record
from holdfast.store.spending import DAY_MS, NO_SPEND, ReadBlob, Spend, day_of, model_spend
from holdfast.turns import keys, results
from holdfast.turns.compaction.plan import RecordedCompaction, decode_compaction, is_compaction
from holdfast.turns.state import CallModel, Effect, RunTools, TurnState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.runtime.session_driver import SessionDrive
    from holdfast.store import Store
    from holdfast.turns.conversation import OpenTurn


_CALL_SPEND = Spend(tool_calls=1)
_TASK_SPEND = Spend(tasks=1)


def compaction_spend(made: RecordedCompaction) -> Spend | None:
    """Spend of a compaction; None if it called no model. It is not a step of the turn."""
    return model_spend(made.usage, made.cost, steps=0, calls=made.calls) if made.calls else None


def spend_of_record(record: Record, read: ReadBlob) -> Spend | None:
    """The spend of a record; None if it spends nothing."""
    if type(record) is Opened:  # a background call counts for its agent from the moment it is accepted
        return _TASK_SPEND if record.role == TASK_RUN and record.agent is not None else None
    name = getattr(record, "key", "")
    unused = results.is_paid(name)
    if is_process_key(name):
        if type(record) is Done and record.ask is not None and record.ask.kind == "direct":
            return _spend_of_value(record, read, 0 if unused else 1)
        return None  # its other effects spend nothing
    key = keys.parse_key(name)
    if key is None or (key.inner and not (type(record) is Done and (unused or is_compaction(name)))):
        return None
    if type(record) is Done and key.name == "model":
        return _spend_of_value(record, read, 0 if key.inner else 1)
    return _CALL_SPEND if key.name == "tools" and key.call and isinstance(record, Outcome) else None


def _spend_of_value(record: Done, read: ReadBlob, steps: int) -> Spend | None:
    body = bytes(record.value) if record.blob is None else read(record.blob)
    if body is None:
        return None
    if is_compaction(record.key):
        return compaction_spend(decode_compaction(body))
    reply = messages.decode_reply(body)
    return model_spend(reply.usage, reply.cost, steps=steps)


def spend_of_records(records: Iterable[Record]) -> Spend:
    """The spend of records whose values are inline."""
    return sum((spend for record in records if (spend := spend_of_record(record, _no_blob)) is not None), NO_SPEND)


def _no_blob(blob: Blob) -> None:
    raise errors.InvariantBroken(f"the value of a record is apart from it: {blob.digest}")


def used_by_spend(spend: Spend) -> Consumption:
    """A spend as budgets count it."""
    tokens, cost = spend.input_tokens + spend.output_tokens, spend.cost_micros / 1_000_000
    return Consumption(spend.model_calls, tokens, cost, spend.tool_calls, spend.tasks, spend.unpriced, spend.wall_ms)


class SharedBudgets:
    """The budgets that a turn shares with its sub-agents, its session and other sessions of the agent."""

    def __init__(
        self, host: SessionDrive, agent: Agent, turn: OpenTurn, performer: Performer, *, delegates: bool
    ) -> None:
        self._host = host
        self._agent = agent
        self._turn = turn
        self._performer = performer
        self._delegates = delegates
        """The turn has, or may have had, sub-agents."""
        self._used = Consumption()
        """Usage of the turn itself."""
        self.tasks: int | None = None
        """Most background calls of the current batch; None: only the turn's own limit."""
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
            ahead = limits.use_of_calls(len(effect.calls), sum(call.name in state.rules.tasks for call in effect.calls))
        else:
            return None
        out = await self._find_exhausted(state.used, ahead)
        return None if effect.id <= recorded else out  # effects that have begun are not judged again

    async def find_exhausted_within(self, used: Consumption, within: Consumption, ahead: Consumption) -> OutOf | None:
        """The budget without room for `ahead` in an effect that has used `within` so far."""
        out = await self._find_exhausted(used, ahead)
        if self.tasks is not None:
            self.tasks += within.background  # it bounds the whole batch
        return out

    async def _find_exhausted(self, used: Consumption, ahead: Consumption) -> OutOf | None:
        own, self._used = self._agent.limits, used
        if own.daily is not None or own.total is not None:
            await self._performer.settle()  # the store counts the usage of this turn with its records
        below = await self._used_by_children(self._turn.run) if self._delegates else Consumption()
        turn, session, day, total = await self._used_so_far()
        self.tasks, ms = limits.background_room(own, turn, session, day, total)
        self._host.let_run(ms)
        out = None
        if below != Consumption():
            family = Budget(tokens=own.tokens, cost_usd=own.cost_usd)
            out = limits.find_exceeded_limit(family, used + below, ahead, "family")
        return out or limits.find_exceeded_budget(own, turn=turn, session=session, day=day, total=total, ahead=ahead)

    async def is_last_step(self) -> bool:
        """True if a budget of the day or of the agent leaves one step, by the recorded usage."""
        own = self._agent.limits
        await self._performer.settle()
        _, _, day, total = await self._used_so_far()
        pairs = ((own.daily, day), (own.total, total))
        return any(budget is not None and budget.steps == used.steps + 1 for budget, used in pairs)

    async def find_exhausted_time(self) -> OutOf | None:
        """The budget of time that is used up, if any."""
        used = await self._used_so_far()
        _, ms = limits.background_room(self._agent.limits, *used)
        self._host.let_run(ms)
        if ms is None or ms > 0:
            return None
        turn, session, day, total = used
        turn = Consumption(wall_ms=turn.wall_ms)
        kept = [None if budget is None else Budget(wall_time=budget.wall_time) for budget in self._agent.limits.budgets]
        own = replace(self._agent.limits, session=kept[0], daily=kept[1], total=kept[2])  # those of time alone
        return limits.find_exceeded_budget(own, turn=turn, session=session, day=day, total=total, ahead=Consumption())

    async def _used_by_children(self, run: str | None) -> Consumption:
        return (await self._host.context.children.below(self._host.session, run)).used

    async def _used_so_far(self) -> tuple[Consumption, Consumption, Consumption, Consumption]:
        """The usage of turn, session, day and agent so far."""
        own, name, mine = self._agent.limits, self._agent.name, self._used
        now = self._performer.now()
        worked, since = self._host.worked()
        turn = replace(mine, wall_ms=max(worked + now - since - self._turn.used.wall_ms, 0))
        session = day = total = Consumption()
        if own.session is not None:
            below = await self._used_by_children(None)  # with those of earlier turns
            session = replace(self._turn.used + mine + below, wall_ms=worked + now - since + below.wall_ms)
        if own.daily is not None:
            today = day_of(now)
            more = now - max(since, today * DAY_MS)
            spent = used_by_spend(await self._host.context.store.spent(name, today))
            day = replace(spent, wall_ms=spent.wall_ms + more)
        if own.total is not None:
            spent = used_by_spend(await self._host.context.store.spent(name, None))
            total = replace(spent, wall_ms=spent.wall_ms + now - since)
        return turn, session, day, total


_log: Final = logging.getLogger("holdfast")


async def count_older_spending(store: Store) -> None:
    """Count the spending of records that an older release wrote."""
    try:
        await store.count_older_spending(spend_of_record)
    except errors.StoreBusy as error:  # another process does the same; the next one to open the store tries again
        _log.warning("spending recorded by an older release is not counted yet: %s", error)
