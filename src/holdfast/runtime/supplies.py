"""What a turn is given by the store and the runtime around it, whatever its drive does meanwhile."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, JournalCorrupt, RuleCorrupt
from holdfast.models.prices import reply_cost
from holdfast.policy.always import answered
from holdfast.runtime.awaiting import JournalWaits
from holdfast.runtime.services import Services
from holdfast.runtime.tainted_files import mark_written, writer_of

if TYPE_CHECKING:
    import asyncio

    from holdfast.agent import Agent
    from holdfast.driving import LeasedJournal
    from holdfast.messages import ModelReply
    from holdfast.policy.limits import Used
    from holdfast.policy.subject import Subject
    from holdfast.runtime.call import Call, Work
    from holdfast.runtime.surroundings import Surround
    from holdfast.sandbox import Sandbox
    from holdfast.store.contract import Wait
    from holdfast.store.spending.contract import Spend
    from holdfast.turns import OpenTurn

_log: Final = logging.getLogger("holdfast.driver")


class Supplies:
    """That part of a turn's `Surroundings` which is the same for all drives: waits, budgets, rules, tasks, prices."""

    _ledger: LeasedJournal
    """The journal of the session, under the lease of its drive."""

    def __init__(self, around: Surround, session: str) -> None:
        self.session = session
        self.host: Services | None = Services(around, session)
        self.hooks = around.hooks
        self.inline_budget = around.inline_budget
        self._around = around
        self._store = around.store
        self._waits = JournalWaits(around.store, session)
        self._agent: Agent | None = None
        """Who has the session, if that is known here."""
        self._open: OpenTurn | None = None
        """The turn that is open."""

    # ---- waits ----

    async def open_wait(
        self, name: str, deadline: int | None, *, kind: str | None = None, body: bytes | None = None
    ) -> Wait:
        return await self._waits.open_wait(name, deadline, kind=kind, body=body)

    async def find_wait(self, name: str) -> Wait | None:
        return await self._waits.find(name)

    async def quarantine(self, reason: str) -> JournalCorrupt:
        await self._store.quarantine(self.session, reason)
        return JournalCorrupt(self.session, 0, reason)

    async def close_wait(self, name: str) -> None:
        await self._waits.close_wait(name)

    def token(self, name: str) -> str:
        return self._waits.token(name)

    # ---- budgets and rules ----

    async def spent(self, agent: str, day: int | None) -> Spend:
        return await self._store.spent(agent, day)

    def worked(self) -> tuple[int, int]:
        now, watch = self._ledger.now(), self._ledger.watch
        return (0, now) if watch is None else (watch.total, watch.last(now))

    async def below(self, run: str | None) -> Used:
        return (await self._around.children.below(self.session, run)).used

    def price(self, reply: ModelReply, asked: str) -> float | None:
        return reply_cost(reply, asked, self._around.prices)

    async def always(self, agent: str, subject: Subject) -> bool:
        try:
            stored = await self._store.rules(agent)
        except RuleCorrupt as error:
            _log.error("%s; nothing is allowed by stored rules", error)
            return False
        return answered([rule.body for rule in stored], subject)

    # ---- files ----

    async def mark_written(self, subject: Subject, by: str) -> None:
        await mark_written(self._store, subject, by)

    async def writer_of(self, subject: Subject) -> str | None:
        return await writer_of(self._store, subject)

    # ---- where else calls run ----

    def sandbox(self, given: Sandbox | None) -> Sandbox:
        return self._around.programs.given(given)

    async def spilled(self, key: str) -> str | None:
        return await self._around.desk.spilled(self.session, key)

    async def start_task(self, call: Call) -> str:
        return await self._around.desk.start(self.session, self._agent_name, self._run_name, call)

    async def adopt_task(self, work: Work) -> str:
        return await self._around.desk.adopt(self.session, self._agent_name, self._run_name, work)

    async def stop_task(self, made: asyncio.Future[str]) -> None:
        with suppress(HoldfastError):  # it was not made
            await self._around.desk.cancel(await made, "the turn that asked for it was stopped")

    @property
    def _agent_name(self) -> str:
        return "" if self._agent is None else self._agent.name

    @property
    def _run_name(self) -> str:
        return "" if self._open is None else self._open.run
