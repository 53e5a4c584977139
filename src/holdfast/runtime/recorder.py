"""The records of one turn on their way into its journal: in their place at once, waited for as late as possible.

A record is in its place as soon as it is submitted, and what is submitted later can't be durable without it. Durability
is awaited before anything happens to the world that must not happen twice under another name, and before anybody is
told how the turn ended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.errors import Halted, HoldfastError, InvariantBroken
from holdfast.store.spending import DAY_MS, Spend, day_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from holdfast.effects.performer import Performer
    from holdfast.records import Record


BEHIND: Final = 256
"""Records of one turn that may be on their way to the disk when its next effect begins."""


class Recorder:
    """Submits the records of one turn."""

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Record] = []
        """Outcomes of tool calls, each behind what stands beside it."""
        self._calls = 0
        """How many outcomes that are."""
        self._dawn = 0
        """When the day began on which all of them were made: they count for that day."""
        self._durable: Awaitable[object] | None = None

    def submit(
        self, added: list[Record], *, patient: bool = False, consume: Sequence[str] = (), spend: Spend | None = None
    ) -> None:
        """Put records into their place in the journal; `patient`: nobody will wait for them soon.

        `consume` are answered waits that are used up with them, `spend` is what they say was used.
        """
        if self._gathered:
            if added and not self._dawn <= added[-1].at < self._dawn + DAY_MS:
                self.submit([], patient=True)
                self.submit(added, patient=patient, consume=consume, spend=spend)
                return
            added, self._gathered = [*self._gathered, *added], []
            calls, self._calls = Spend(tool_calls=self._calls), 0
            spend = calls if spend is None else spend + calls
        if added:
            _, self._durable = self._performer.submit(added, patient=patient, consume=consume, spend=spend)

    def gather(self, outcome: Record, beside: Sequence[Record] = ()) -> None:
        """Submit the outcome of a tool call, together with those that end in the same round of the loop.

        What is `beside` it stands in the journal right before it, and is there if it is.
        """
        if not self._gathered:
            self._loop.call_soon(self.flush)
        if not self._dawn <= outcome.at < self._dawn + DAY_MS:
            self.flush()
            self._dawn = day_of(outcome.at) * DAY_MS
        self._gathered.extend(beside)
        self._gathered.append(outcome)
        self._calls += 1

    def flush(self) -> None:
        """Submit what was gathered."""
        if not self._gathered:
            return
        try:
            self.submit([], patient=True)
        except (Halted, HoldfastError):
            pass  # the turn is halted: it hears of it with its next effect
        except Exception as error:  # noqa: BLE001  nothing may go on without these records
            broken = InvariantBroken(f"what a tool gave can't be recorded: {error!r}")
            broken.__cause__ = error
            self._performer.halt(broken)

    @property
    def behind(self) -> bool:
        """Whether the disk is far behind: what is not durable is held in memory, and lost with the process."""
        return self._performer.behind > BEHIND

    async def keep_up(self) -> None:
        """Wait for the disk if it is far behind."""
        if self.behind:
            await self.settle()

    async def keep(self, added: list[Record]) -> None:
        """Submit records, and wait until they are durable."""
        self.submit(added)
        await self.settle()

    async def settle(self) -> None:
        """Wait until everything that was submitted is durable."""
        self.flush()
        if self._durable is not None:
            pending, self._durable = self._durable, None
            await self._performer.durable(pending)
