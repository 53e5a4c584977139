"""The retention loop: prunes processes and trigger records past the retention while a runtime is open."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from holdfast.errors import StoreClosed
from holdfast.eventloop import spawn
from holdfast.policy.rules import milliseconds

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.processes.service import Processes
    from holdfast.triggers.service import Triggers


_log: Final = logging.getLogger("holdfast.retention")
PRUNE_INTERVAL: Final = 600.0
"""Pause between two rounds, in seconds."""
PRUNE_BATCH: Final = 500
"""Processes that one round prunes at most."""
NEXT_BATCH_DELAY: Final = 1.0


class RetentionLoop:
    """Prunes old processes and trigger records as long as the runtime is open."""

    def __init__(self, processes: Processes, triggers: Triggers, retention: timedelta | float) -> None:
        self._processes = processes
        self._triggers = triggers
        self._seconds = milliseconds(retention) / 1000
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the loop; the first round begins at once."""
        self._task = spawn(self._run())

    async def stop(self) -> None:
        """Stop the loop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            more = False
            try:
                more = await self.round()
            except StoreClosed:
                return
            except Exception as error:  # noqa: BLE001  the next round tries again
                _log.warning("pruning failed, the next round tries again: %s", error)
            await asyncio.sleep(NEXT_BATCH_DELAY if more else PRUNE_INTERVAL)

    async def round(self) -> bool:
        """Prune one batch; returns whether there may be more."""
        report = await self._processes.prune(self._seconds, limit=PRUNE_BATCH)
        await self._triggers.prune(older_than=self._seconds)
        return report.pruned >= PRUNE_BATCH
