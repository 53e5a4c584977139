"""What one run of a durable function waits for while it is in memory, and whether it does anything else."""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.effects.replay import Answer, Begin, Repeat
from holdfast.errors import Halted, RunEnded, StoreError
from holdfast.records import Cancelled, Failed, Intended
from holdfast.runtime.parking import about_to, settled
from holdfast.spawning import spawn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator

    from holdfast.effects.performer import Performer
    from holdfast.effects.scopes import Place
    from holdfast.records import Ask, Outcome
    from holdfast.runtime.seeking import Found, Sought

LOOK: Final = 0.5
"""How often what is waited for is looked at while other branches of the function work, in seconds."""


@dataclass(slots=True)
class _Pending:
    sought: Sought
    came: asyncio.Future[Found]
    alarm: asyncio.TimerHandle | None = None


class Waiting:
    """What one run waits for."""

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._loop = asyncio.get_running_loop()
        self._pending: dict[str, _Pending] = {}
        self._busy = 0
        """How many things the function does that are not waiting."""
        self._moved = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    @property
    def waits(self) -> tuple[str, ...]:
        """What the function waits for now."""
        return tuple(pending.sought.label for pending in self._pending.values())

    @property
    def quiet(self) -> bool:
        """Whether the function does nothing but wait, at this very moment."""
        if not self._pending or self._busy or any(pending.came.done() for pending in self._pending.values()):
            return False
        return about_to(self._performer) is None

    async def idle(self) -> None:
        """Return when the function does nothing but wait. Meanwhile, see whether what it waits for has come."""
        while True:
            self._moved.clear()
            if self._pending and not self._busy:
                if await settled(self._performer) and self.quiet:
                    return
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), LOOK if self._pending else None)
            self.look()

    def look(self) -> None:
        """Something may have come."""
        if self._pending and (self._looking is None or self._looking.done()):
            self._looking = spawn(self._look())

    async def _look(self) -> None:
        for pending in list(self._pending.values()):
            try:
                found = await pending.sought.look()
            except StoreError:
                return  # it is looked at again
            if found is not None and not pending.came.done():
                pending.came.set_result(found)

    async def close(self) -> None:
        """The function is not in memory any more."""
        for pending in self._pending.values():
            if pending.alarm is not None:
                pending.alarm.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    @contextmanager
    def at_work(self) -> Generator[None]:
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._moved.set()

    async def seek(self, place: Place, key: str, ask: Ask, sought: Sought, *, intend: bool = False) -> Outcome:
        """The outcome of waiting: the recorded one, or what comes."""
        performer = self._performer
        await performer.admit()
        with performer.occupied(place), self.at_work():
            decision = performer.decide(key, ask, Repeat.FREE)
            performer.check_order(place, key)
            if isinstance(decision, Answer):
                if isinstance(decision.outcome, Cancelled):
                    await performer.until_cancelled()
                return decision.outcome
            if intend and isinstance(decision, Begin):
                performer.submit([Intended(at=performer.now(), key=key, ask=ask)], patient=True)
            asked = None if intend else ask
            try:
                begun = self._loop.time()
                found = await self.guarded(sought.begin())
                if found is None:
                    found = await self._come(key, sought)
                if found.error is not None:
                    outcome: Outcome = Failed(at=performer.now(), key=key, ask=asked, error=found.error)
                else:
                    outcome = await performer.succeeded(key, asked, found.body, begun)
                await performer.record([outcome])
            except asyncio.CancelledError:
                await self._withdrawn(sought, Cancelled(at=performer.now(), key=key, ask=asked))
                raise
            return outcome

    async def guarded(self, work: Awaitable[Any]) -> Any:  # noqa: ANN401
        """A store that fails is no failure of what is waited for."""
        try:
            return await work
        except StoreError as error:
            raise self._performer.halt(error) from error

    async def _come(self, key: str, sought: Sought) -> Found:
        pending = self._pending[key] = _Pending(sought, self._loop.create_future())
        if sought.due is not None:
            delay = max(0.0, (sought.due - self._performer.now()) / 1000)
            pending.alarm = self._loop.call_later(min(delay, 30.0), self.look, context=contextvars.Context())
        self._busy -= 1
        self._moved.set()
        try:
            return await pending.came
        finally:
            self._busy += 1
            del self._pending[key]
            if pending.alarm is not None:
                pending.alarm.cancel()

    async def _withdrawn(self, sought: Sought, cancelled: Cancelled) -> None:
        """The code that waited was cancelled, and may go on without it. When the whole run is, nothing is withdrawn."""
        try:
            self._performer.check_running()
        except (Halted, RunEnded, asyncio.CancelledError):
            return
        self._performer.abandon([cancelled])
        with suppress(StoreError):
            await asyncio.shield(sought.withdraw())
