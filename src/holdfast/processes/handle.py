"""The handle of a process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, cast

from holdfast.effects.canonical import decode_value, encode_value
from holdfast.errors.caller import JournalPruned, ProcessPruned
from holdfast.processes.lists import process_event
from holdfast.processes.run import process_end, raise_unless_completed
from holdfast.processes.state import (
    TERMINAL_STATUSES,
    ProcessState,
    check_process_id,
    check_signal_key,
    process_journal,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.processes.driver import Requested
    from holdfast.processes.lists import ProcessEvent, ProcessLine
    from holdfast.processes.service import Processes
    from holdfast.processes.state import ProcessStatus
    from holdfast.runtime.runtime import Runtime


Signalled = Literal["signalled", "already_signalled", "too_late"]


class Process:
    """A process that was started. The handle holds nothing and reads only what you ask for."""

    def __init__(self, runtime: Runtime, processes: Processes, id: str) -> None:
        self.id = check_process_id(id)
        self._runtime = runtime
        self._processes = processes

    def __repr__(self) -> str:
        return f"Process({self.id!r})"

    async def result(self, *, timeout: float | None = None, returns: type[Any] | None = None) -> Any:  # noqa: ANN401
        """Its result, as soon as it has ended; converted to `returns` if that is set.

        `ProcessFailed`, `ProcessCancelled` or `ProcessAbandoned` where it did not complete. A process that can't go on
        here raises why. A `TimeoutError` after `timeout` seconds leaves it alone.
        """
        try:
            async with asyncio.timeout(timeout):
                state = await self._wait_for_end()
        except JournalPruned as error:  # while this was waiting
            raise ProcessPruned(self.id, error.status, error.at) from None
        told = await process_end(self._runtime.store, state)
        raise_unless_completed(self.id, told)
        return told["value"] if returns is None else decode_value(encode_value(told["value"]), returns)

    async def _wait_for_end(self) -> ProcessState:
        """Wait for the end. A drive in this runtime reports it without a read."""
        runtime, journal = self._runtime, process_journal(self.id)
        head = 0
        while True:
            with runtime.changes.expecting(journal, head, ends=True) as found:
                if journal not in runtime.changes.local:  # else whoever drives it here says when it has ended
                    line = await self._processes.find(journal)
                    if line.status in TERMINAL_STATUSES:
                        return await self._processes.read(journal)
                    error = runtime.stuck(journal)
                    if error is not None:
                        raise error
                    head = found.head = line.head
                end = await found.news
                if isinstance(end, ProcessState) and end.over:
                    return end

    async def status(self) -> ProcessStatus:
        """Its status."""
        return (await self.line()).status

    async def line(self) -> ProcessLine:
        """Its line in lists."""
        return await self._processes.line(self.id)

    async def signal(self, name: str, value: object = None, *, key: str | None = None) -> Signalled:
        """Send a signal that it waits for, or will wait for. After its end it is too late.

        The same value under the same `key` again is the same signal; another one is a `KeyConflict`.
        """
        return await self._processes.send_signal(self.id, name, value, check_signal_key(key))

    async def cancel(self, reason: str = "") -> Requested:
        """Ask for it to be stopped, wherever it is. The first request counts; one after the end is too late."""
        return cast("Requested", await self._processes.request_cancel(self.id, reason))

    async def complete(self, value: object = None) -> bool:
        """End a process that is carried out elsewhere; False if it had ended before."""
        return await self._processes.settle_outside(self.id, {"value": value})

    async def fail(self, message: str) -> bool:
        """End it with a failure."""
        return await self._processes.settle_outside(self.id, {"error": message})

    async def transfer(self, session: str) -> Requested:
        """Let it work for another session, which is notified of its end. After the end it is too late."""
        return cast("Requested", await self._processes.transfer(self.id, session))

    def events(self, after: int = 0) -> AsyncGenerator[ProcessEvent]:
        """Its events from the beginning or after a cursor (`seq`), until it has ended."""
        return self._processes.events(self.id, after)

    async def timeline(self) -> list[ProcessEvent]:
        """Its events so far."""
        state = await self._processes.read(process_journal(self.id))
        return [process_event(state.journal, seq, record) for seq, record in enumerate(state.records, 1)]
