"""The journal writer of the runtime: records of a turn, a background call or a direct completion go through `Recorder`.

A submitted record has its place in the journal at once, and no later record can be durable without it. Wait for
durability as late as possible: before an effect that must not happen twice, and before the end of the turn is shown.
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


MAX_BEHIND: Final = 256
"""Records of one run that may wait for the disk when its next effect begins."""


class Recorder:
    """Writes the records of one run to its journal: `submit` or `gather` now, `settle` when they must be durable."""

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Record] = []
        """Outcomes of tool calls that end in this round of the loop, each behind the records beside it."""
        self._calls = 0
        """Number of outcomes among them."""
        self._day_start = 0
        """Start of the day to which the gathered calls count: they are spent on one day."""
        self._durable: Awaitable[object] | None = None

    def submit(
        self, added: list[Record], *, patient: bool = False, consume: Sequence[str] = (), spend: Spend | None = None
    ) -> None:
        """Put records into their place in the journal. `patient`: no caller waits for them soon.

        The same commit uses up the answered waits `consume` and counts `spend`.
        """
        if self._gathered:
            if added and not self._day_start <= added[-1].at < self._day_start + DAY_MS:
                self.submit([], patient=True)
                self.submit(added, patient=patient, consume=consume, spend=spend)
                return
            added, self._gathered = [*self._gathered, *added], []
            calls, self._calls = Spend(tool_calls=self._calls), 0
            spend = calls if spend is None else spend + calls
        if added:
            _, self._durable = self._performer.submit(added, patient=patient, consume=consume, spend=spend)

    def gather(self, outcome: Record, beside: Sequence[Record] = ()) -> None:
        """Submit the outcome of a tool call together with the others of this round of the loop.

        The records `beside` it come right before it in the journal, in the same commit.
        """
        if not self._gathered:
            self._loop.call_soon(self.flush)
        if not self._day_start <= outcome.at < self._day_start + DAY_MS:
            self.flush()
            self._day_start = day_of(outcome.at) * DAY_MS
        self._gathered.extend(beside)
        self._gathered.append(outcome)
        self._calls += 1

    def flush(self) -> None:
        """Submit the gathered outcomes."""
        if not self._gathered:
            return
        try:
            self.submit([], patient=True)
        except (Halted, HoldfastError):
            pass  # the run is halted, and learns that with its next effect
        except Exception as error:  # noqa: BLE001  nothing may go on without these records
            broken = InvariantBroken(f"the results of tool calls can't be recorded: {error!r}")
            broken.__cause__ = error
            self._performer.halt(broken)

    @property
    def is_behind(self) -> bool:
        """Whether too many records wait for the disk: they are lost if the process dies."""
        return self._performer.behind > MAX_BEHIND

    async def record(self, added: list[Record], *, spend: Spend | None = None) -> None:
        """Submit records, and wait until they are durable."""
        self.submit(added, spend=spend)
        await self.settle()

    async def settle(self) -> None:
        """Wait until all submitted records are durable."""
        self.flush()
        if self._durable is not None:
            pending, self._durable = self._durable, None
            await self._performer.durable(pending)
