"""A turn, as a handle: addressable from any process, holding nothing but the end that its events have shown."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.events import TERMINAL, InputAccepted
from holdfast.names import check_text
from holdfast.policy.spans import milliseconds
from holdfast.runtime.following import Cursor, follow_session, session_cursor
from holdfast.runtime.outcome import TurnReader
from holdfast.tools.crowding import step_aside
from holdfast.turns import keys

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import timedelta

    from holdfast.events import Event
    from holdfast.runtime.outcome import TurnOutcome
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.watch import Expectation, TurnEnded

TurnStatus = Literal["queued", "running", "waiting", "no_agent", "completed", "failed", "cancelled", "limit"]
CancelStatus = Literal["requested", "already_requested", "too_late"]


class Turn:
    """The turn that answers one input of a session. What you do not ask of it costs nothing."""

    def __init__(  # noqa: PLR0913
        self,
        runtime: Runtime,
        session: str,
        number: int,
        after: int = 0,
        *,
        begins: bool = False,
        fresh: bool = False,
    ) -> None:
        self.session = session
        self.id = keys.run_of(number)
        """The turn that the input begins; one that steers may enter another turn instead."""
        self._runtime = runtime
        self._number = number
        self._after = after
        self._begins = begins
        """The input was accepted, and begins a turn of its own: nothing has to be looked up."""
        self._fresh = fresh
        """It was accepted just now, and not before."""
        self._ended: TurnEnded | None = None
        """The end, where its event was read here and this process has recorded it."""

    def __repr__(self) -> str:
        return f"Turn({self.session!r}, {self.id!r})"

    async def outcome(
        self, *, timeout: float | None = None, wait_for_agent: timedelta | float | None = None
    ) -> TurnOutcome:
        """How the turn ended, as soon as it has. A `TimeoutError` after `timeout` seconds leaves the turn alone.

        A session whose agent this runtime does not have, and that no other process drives, is an `AgentMissing`: at
        once, or when nobody has come who has that agent within `wait_for_agent`.
        """
        async with asyncio.timeout(timeout):
            return await self._outcome(None, 0 if wait_for_agent is None else milliseconds(wait_for_agent) / 1000)

    async def outcome_told(self, expected: Expectation) -> TurnOutcome:
        """The same, for somebody who expected the end before the input was accepted."""
        if not (self._begins and self._fresh):
            return await self._outcome(None)
        expected.head = self._after
        return await self._outcome(expected)

    async def _outcome(self, expected: Expectation | None, patience: float = 0) -> TurnOutcome:
        step_aside()  # a tool that waits for another turn must not keep the calls of that turn out
        reader, ending = self._reader(), None
        watch, stuck = self._runtime.watch, self._runtime.stuck
        if self._ended is not None and reader.is_told(self._ended):
            ending = self._ended.ending
        elif patience > 0 and await self._runtime.agent_missing(self.session) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    ending = await reader.wait(watch, stuck)
        if ending is None:
            ending = await reader.wait(watch, stuck, expected, self._runtime.agent_missing)
        agents = self._runtime.agents
        agent = None
        if ending.typed:
            agent = agents.get(ending.agent) if ending.agent else await self._runtime.agent_of(self.session)
        outcome = reader.outcome(ending, agent)
        # An agent that is known here and has no sub-agents has asked none.
        alone = ending.agent in agents and not ending.handoffs and not any(each.delegates for each in agents.values())
        return outcome if alone else await self._with_children(outcome)

    async def _with_children(self, outcome: TurnOutcome) -> TurnOutcome:
        below = await self._runtime.children.below(self.session, outcome.turn)
        if not below.costs:
            return outcome
        return msgspec.structs.replace(outcome, children=below.total, children_cost=below.cost)

    async def status(self) -> TurnStatus:
        """How it stands. `no_agent`: nobody here can go on with it, and no other process does."""
        reader = self._reader()
        ending = await reader.read()
        if ending is not None:
            return ending.status
        if await self._runtime.agent_missing(self.session) is not None:
            return "no_agent"
        if reader.run is None:
            return "queued"
        line = await self._runtime.store.journal(self.session)
        return "waiting" if line.status == "waiting" else "running"

    async def events(self, after: int | str | None = None) -> AsyncGenerator[Event]:
        """What happens in this turn, from its start or from a cursor, until it has ended or the runtime is closed."""
        cursor = Cursor(self._after) if after is None else session_cursor(after, self.session)
        runtime = self._runtime
        with runtime.watch.until_closed():
            run = self.id if self._begins else await self._entered()
            if after is not None and await self._is_over(cursor):
                return
            async for event in follow_session(runtime.store, runtime.watch, runtime.rings, self.session, cursor):
                turn = event.turn
                if run is None:
                    if not (isinstance(event, InputAccepted) and event.input == self._number):
                        continue
                    run = turn  # an input that steers is part of the turn from here on
                if turn is not None and turn != run:
                    continue
                if turn is not None and type(event) in TERMINAL:
                    ring = runtime.rings.get(self.session)
                    self._ended = None if ring is None else ring.end_of(run, event.seq)
                    yield event
                    return
                yield event

    async def _entered(self) -> str | None:
        """The turn that the input entered, if it has."""
        reader = self._reader()
        await reader.read()
        return reader.run

    async def _is_over(self, cursor: Cursor) -> bool:
        """Whether nothing of this turn comes behind a cursor."""
        ended = await self._reader().ended_at()
        return ended is not None and cursor >= Cursor(*ended)

    async def cancel(self, reason: str = "") -> CancelStatus:
        """Ask for the turn to be stopped, wherever it is. The first request counts; one after the end is too late."""
        reason = check_text("reason", reason)
        reader = self._reader()
        ending = await reader.read()
        if ending is not None:
            return "too_late"
        return await self._runtime.request_stop(self.session, reader.run or self.id, reason)

    def _reader(self) -> TurnReader:
        return TurnReader(self._runtime.store, self.session, self._number, self._after, known=self._begins)
