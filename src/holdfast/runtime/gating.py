"""The gate of a runtime: what sessions of an agent take in, also where the agent is not known, and what was refused.

What a known agent takes in is written into the store, so that processes which only accept inputs keep to it too.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, StoreError
from holdfast.policy.admission import read, written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.agent import Agent
    from holdfast.policy.admission import Admission
    from holdfast.store import Store

_log: Final = logging.getLogger("holdfast")


class Gate:
    """Who may say what to the sessions of one store."""

    def __init__(self, store: Store, agents: Mapping[str, Agent]) -> None:
        self._store = store
        self._agents = agents
        self._written: dict[str, str | None] = {}
        """What this process knows to be in the store, of agents that it knows."""

    async def open(self) -> None:
        """Let other processes see what the agents here take in."""
        found = await self._store.terms()
        self._written = {name: found.get(name) for name in self._agents}
        for name in self._agents:
            await self._show(name)

    async def terms(self, agent: str) -> Admission:
        """What the sessions of an agent take in."""
        known = self._agents.get(agent)
        if known is None:
            return read((await self._store.terms()).get(agent))
        if agent not in self._written:  # it was registered later
            self._written[agent] = (await self._store.terms()).get(agent)
            await self._show(agent)
        return known.admission

    async def _show(self, agent: str) -> None:
        body = written(self._agents[agent].admission)
        if body == self._written[agent]:
            return
        try:
            await self._store.set_terms(agent, body)
        except StoreError as error:  # here it holds all the same
            _log.warning("what agent %r takes in can't be told to other processes: %s", agent, error)
        self._written[agent] = body

    async def refused(self, session: str, agent: str | None, key: str | None, error: HoldfastError) -> None:
        """Keep that an input was refused. That it can't be kept changes nothing about the refusal."""
        _log.info("an input of %r was refused: %s", session, error)
        with suppress(HoldfastError):
            await self._store.note_refusal(
                session, agent=agent, key=key, error=type(error).__name__, message=str(error)
            )
