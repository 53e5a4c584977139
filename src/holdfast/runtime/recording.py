"""The records of one turn on their way into its journal: in their place at once, waited for as late as possible.

A record is in its place as soon as it is submitted, and what is submitted later can't be durable without it. Durability
is awaited before anything happens to the world that must not happen twice under another name, and before anybody is
told how the turn ended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.errors import Halted, HoldfastError, InvariantBroken
from holdfast.store.spending.contract import Spend, day_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from holdfast.effects.performer import Performer
    from holdfast.records import Record


BEHIND: Final = 256
"""Records of one turn that may be on their way to the disk when its next effect begins."""
_CALL: Final = Spend(tool_calls=1)


class Recorder:
    """Submits the records of one turn."""

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[Record, Sequence[Record]]] = []
        self._durable: Awaitable[object] | None = None

    def submit(
        self, added: list[Record], *, patient: bool = False, consume: Sequence[str] = (), spend: Spend | None = None
    ) -> None:
        """Put records into their place in the journal; `patient`: nobody will wait for them soon.

        `consume` are answered waits that are used up with them, `spend` is what they say was used.
        """
        gathered, self._gathered = self._gathered, []
        if gathered and day_of(gathered[0][0].at) != day_of((added[-1] if added else gathered[-1][0]).at):
            for outcome, beside in gathered:  # midnight has passed between them: each counts for its own day
                self._performer.submit([*beside, outcome], patient=True, spend=_CALL)
            gathered = []
        if gathered:
            calls = Spend(tool_calls=len(gathered))
            spend = calls if spend is None else spend + calls
        if not gathered and not added:
            return
        outcomes = [record for outcome, beside in gathered for record in (*beside, outcome)]
        _, self._durable = self._performer.submit([*outcomes, *added], patient=patient, consume=consume, spend=spend)

    def gather(self, outcome: Record, beside: Sequence[Record] = ()) -> None:
        """Submit the outcome of a tool call, together with those that end in the same round of the loop.

        What is `beside` it stands in the journal right before it, and is there if it is.
        """
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered.append((outcome, beside))

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
