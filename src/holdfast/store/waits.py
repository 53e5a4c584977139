"""The part of the door to a store that is about waits, and about the time at which they are due."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.bounds import check_int
from holdfast.effects.canonical import canonical
from holdfast.errors import JournalMissing, PayloadTooLarge, WaitUnknown
from holdfast.names import check_choice, check_id
from holdfast.store import tokens
from holdfast.store.calls import Calls
from holdfast.store.contract import WAIT_STATES, OpenWait, Quarantine, RevokeWaits, SettleWait

if TYPE_CHECKING:
    from holdfast.store.contract import Settlement, Wait, WaitState

_LOOK_AGAIN_MS: Final = 30_000


class WaitCalls(Calls):
    """Waits: one-shot durable promises, the only way anything suspends."""

    async def open_wait(self, journal: str, name: str, *, deadline: int | None = None) -> Wait:
        """Make the wait exist, with a deadline in wall milliseconds. If it exists, the first deadline stays."""
        check_id("journal id", journal)
        check_id("wait", name)
        if deadline is not None:
            check_int("deadline", deadline)
        return await self._backend.submit(OpenWait(journal, name, deadline))

    def wait_token(self, journal: str, name: str) -> str:
        """The bearer token of a wait. Whoever has it can resolve the wait, once, also before it is opened."""
        return tokens.mint(self._backend.secret, check_id("journal id", journal), check_id("wait", name))

    async def resolve(self, token: str, value: object) -> Settlement:
        """Resolve the wait that `token` stands for; the first one decides, and everybody learns the same."""
        # First the value: what is wrong with it must not depend on whether the token is good.
        body = canonical(value)
        limit = self._backend.limits.input_bytes
        if len(body) > limit:
            raise PayloadTooLarge("the resolution", len(body), limit)
        journal, name = tokens.verify(self._backend.secret, token)
        try:
            return await self._backend.submit(SettleWait(journal, name, "resolved", body))
        except JournalMissing:
            raise WaitUnknown from None

    async def expire_wait(self, journal: str, name: str) -> Settlement:
        """End a wait whose deadline has passed; one that is not due stays open."""
        check_id("journal id", journal)
        check_id("wait", name)
        return await self._backend.submit(SettleWait(journal, name, "expired"))

    async def cancel_wait(self, journal: str, name: str) -> Settlement:
        """End a wait that nobody needs any more."""
        check_id("journal id", journal)
        check_id("wait", name)
        return await self._backend.submit(SettleWait(journal, name, "cancelled"))

    async def revoke_waits(self, journal: str, name: str | None = None) -> int:
        """Make one wait worthless, or all of the journal's for ever; their tokens look as if they never existed."""
        check_id("journal id", journal)
        if name is not None:
            check_id("wait", name)
        return await self._backend.submit(RevokeWaits(journal, name))

    async def wait(self, journal: str, name: str) -> Wait | None:
        """The wait as it is now; None when nobody opened or resolved it."""
        check_id("journal id", journal)
        check_id("wait", name)
        return await self._guarded(journal, lambda reader: reader.wait(journal, name))

    async def waits(self, journal: str, limit: int | None = None, *, state: WaitState | None = None) -> list[Wait]:
        """The waits of a journal (in one state, if it is given), by name."""
        check_id("journal id", journal)
        if state is not None:
            check_choice("wait state", state, WAIT_STATES)
        page = self._page(limit)
        return await self._guarded(journal, lambda reader: reader.waits(journal, state, page))

    async def due(self, limit: int | None = None) -> list[Wait]:
        """Open waits whose deadline has passed, longest overdue first. Timers are waits that nobody resolves."""
        now = self._backend.clock.read().wall
        page = self._page(limit)
        due, damaged = await self._backend.read(lambda reader: reader.due(now, page))
        for journal in sorted(damaged):  # one damaged wait must not stop the timers of all others
            await self._backend.submit(Quarantine(journal, "a wait does not match its checksum"))
        return due

    async def next_due(self) -> int | None:
        """When something becomes due, in wall milliseconds: the deadline of an open wait, or a notification.

        Waits are for `due` and `expire_wait`, notifications (also those that expire) for `ripen`.
        """
        return await self._backend.read(lambda reader: reader.next_due())

    async def until(self, due: int) -> None:
        """Wait until the wall clock says `due`.

        The waiting itself is by the monotonic clock. A wall clock set forward is noticed within half a minute; one set
        back delays the moment. Neither makes it come twice.
        """
        check_int("time", due)
        while (left := due - self._backend.clock.read().wall) > 0:  # noqa: ASYNC110  no event tells that a clock was set
            await asyncio.sleep(min(left, _LOOK_AGAIN_MS) / 1000)
