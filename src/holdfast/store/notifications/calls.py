"""The part of the door to a store that is about notifications."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.bounds import MAX_INT, check_int
from holdfast.effects.canonical import canonical
from holdfast.errors import (
    InvalidArgument,
    InvalidNumber,
    JournalCorrupt,
    JournalMissing,
    NotificationUnknown,
    PayloadTooLarge,
    StoreReadOnly,
)
from holdfast.names import check_choice, check_id, check_string, check_text
from holdfast.store.calls import Calls
from holdfast.store.contract import Lease, Quarantine
from holdfast.store.digests import input_digest
from holdfast.store.notifications.contract import (
    NOTIFICATION_STATES,
    SETTLED_BY_HAND,
    Carry,
    Notification,
    NotificationFilter,
    Notify,
    PurgedNotifications,
    PurgeNotifications,
    Ripen,
    SettleNotification,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store.contract import Reader, Receipt
    from holdfast.store.limits import StoreLimits
    from holdfast.store.notifications.contract import NotificationState, SettledByHand


class NotificationCalls(Calls):
    """Notifications: durable items for a session, delivered at a safe moment and acknowledged."""

    async def notify(  # noqa: PLR0913  what a notification says
        self,
        journal: str,
        *,
        kind: str,
        title: str,
        body: str = "",
        source: str | None = None,
        priority: int = 0,
        key: str | None = None,
        due: int | None = None,
        expires: int | None = None,
    ) -> tuple[Notification, bool]:
        """Queue a notification for `journal`; answers it, and whether it is new.

        The same key with the same content gives the same notification, other content `KeyConflict`. It is delivered
        from `due` on (at once without one) until `expires`, both in wall milliseconds, higher `priority` first, and
        wakes its journal when it is due. `JournalMissing`, `JournalQuarantined` and `NotificationsFull` refuse it.
        """
        asked = Notify(journal, kind, title, body, source, priority, key, due, expires)
        return await self._submit(checked(asked, self._backend.limits))

    async def carry(
        self, lease: Lease, ids: Sequence[int], content: object, *, key: str | None = None
    ) -> Receipt | None:
        """Deliver notifications of the lease's journal: claim them, and put one input that tells of them in its inbox.

        Both happen or neither. Those that are not queued any more, not due yet or expired are left out; None when none
        is left. When the turn that admits the input is completed or reaches a limit they are acknowledged; when it
        fails or is cancelled they are queued again after a pause, and dead after too many attempts.
        """
        if not isinstance(lease, Lease):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("lease", lease, "a lease that was claimed")
        chosen = _ids(ids)
        body = canonical(content)
        limit = self._backend.limits.input_bytes
        if len(body) > limit:
            raise PayloadTooLarge("the input", len(body), limit)
        key = check_id("input key", f"carry-{secrets.token_hex(12)}" if key is None else key)
        return await self._submit(Carry(lease.journal, lease.epoch, chosen, key, input_digest(body), body))

    async def next_notifications(self, journal: str, limit: int | None = None) -> list[Notification]:
        """What may be delivered to `journal` now, in the order of delivery: by priority, then as they came."""
        check_id("journal id", journal)
        page, now = self._page(limit), self._wall()
        return await self._guarded(journal, lambda reader: _next(reader, journal, now, page))

    async def notification(self, number: int) -> Notification:
        """One notification by its id; `NotificationUnknown` when there is none."""
        check_int("notification id", number, least=1)
        try:
            found = await self._backend.read(lambda reader: reader.notifications.get(number))
        except JournalCorrupt as error:
            await self._quarantine(error.journal)
            raise
        if found is None:
            raise NotificationUnknown(number)
        return found

    async def notifications(
        self,
        journal: str | None = None,
        state: NotificationState | None = None,
        *,
        before: Notification | None = None,
        limit: int = 50,
    ) -> list[Notification]:
        """Notifications, newest first. Pass the last one as `before` for the next page."""
        if journal is not None:
            check_id("journal id", journal)
        if state is not None:
            check_choice("notification state", state, NOTIFICATION_STATES)
        if before is not None and not isinstance(before, Notification):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("before", before, "the last notification of the page before")
        where = NotificationFilter(journal, state, None if before is None else before.id)
        page = self._page(limit)
        found, damaged = await self._backend.read(lambda reader: reader.notifications.newest(where, page))
        for name in sorted(damaged):  # one damaged notification must not hide all others
            await self._quarantine(name)
        return found

    async def _quarantine(self, journal: str) -> None:
        """Stop a journal with a notification that can't be trusted. Not every notification has a journal."""
        with suppress(JournalMissing, StoreReadOnly):
            await self._submit(Quarantine(journal, "a notification does not match its checksum"))

    async def settle_notification(self, number: int, state: SettledByHand) -> tuple[Notification, bool]:
        """Settle one by hand; answers it as it now is, and whether this has decided it.

        What is queued, claimed or dead can be `acknowledged` or `cancelled`; what is dead can be `queued` again, and
        its attempts count from 0. Anything else was decided before and stays.
        """
        check_int("notification id", number, least=1)
        check_choice("notification state", state, SETTLED_BY_HAND)
        return await self._submit(SettleNotification(number, state))

    async def ripen(self, *, again: bool = False) -> list[str]:
        """Wake the journals of notifications that have become due, and expire those whose time is over.

        Answers the journals that were woken. A journal is woken once for what is due; with `again`, for a tick that
        finds whatever was missed, also those that were woken before and still have something to deliver.
        """
        woken: dict[str, None] = {}
        after, more = "", True
        while more:
            step = await self._submit(Ripen(self._backend.limits.page, bool(again), after))
            woken |= dict.fromkeys(step.journals)
            after, more = step.after, step.more
        return list(woken)

    async def purge_notifications(self, before: int | None = None, limit: int | None = None) -> PurgedNotifications:
        """Remove notifications that are acknowledged, cancelled or expired and have not changed since `before`.

        Without `before` (wall milliseconds), those that are as old as `notification_kept_ms` says. The oldest go first,
        one page at the most; answers how many, and whether there may be more. Their keys are free again. What is dead
        stays.
        """
        if before is None:
            before = self._wall() - self._backend.limits.notification_kept_ms
        else:
            check_int("before", before)
        return await self._submit(PurgeNotifications(before, self._page(limit)))


def _next(reader: Reader, journal: str, now: int, limit: int) -> list[Notification]:
    if not reader.heads([journal]):
        raise JournalMissing(journal)
    return reader.notifications.next(journal, now, limit)


def checked(asked: Notify, limits: StoreLimits) -> Notify:
    """A notification as it may be stored, or the error that says what is wrong with it."""
    if not isinstance(asked, Notify):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument("notify", asked, "a Notify")
    check_id("journal id", asked.journal)
    check_id("notification kind", asked.kind)
    for what, name in (("notification source", asked.source), ("notification key", asked.key)):
        if name is not None:
            check_id(what, name)
    title = check_text("notification title", asked.title)
    size = len(check_string("notification body", asked.body).encode())
    if size > limits.notification_bytes:
        raise PayloadTooLarge("the notification", size, limits.notification_bytes)
    check_int("priority", asked.priority, least=-MAX_INT)
    for what, time in (("due", asked.due), ("expires", asked.expires)):
        if time is not None:
            check_int(what, time)
    if asked.expires is not None and asked.due is not None and asked.expires <= asked.due:
        raise InvalidNumber("expires", asked.expires, f"it is not after {asked.due:,}, when it is due")
    return asked if title == asked.title else _titled(asked, title)


def _titled(asked: Notify, title: str) -> Notify:
    return Notify(
        *(asked.journal, asked.kind, title, asked.body, asked.source, asked.priority, asked.key),
        *(asked.due, asked.expires),
    )


def _ids(ids: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(check_int("notification id", number, least=1) for number in ids))
    except TypeError:
        raise InvalidArgument("ids", ids, "a list of notification ids") from None
