"""Notifications: durable items for a session, delivered at a safe moment and acknowledged by the turn they entered."""

from __future__ import annotations

import secrets
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, get_args

import msgspec
from msgspec.structs import replace

from holdfast.effects.canonical import canonical
from holdfast.errors import (
    InvalidArgument,
    InvalidNumber,
    JournalCorrupt,
    JournalMissing,
    JournalQuarantined,
    KeyConflict,
    NotificationsFull,
    NotificationUnknown,
    PayloadTooLarge,
    StoreReadOnly,
)
from holdfast.names import MAX_INT, check_choice, check_id, check_int, check_string, check_text
from holdfast.store import decisions as journals
from holdfast.store.calls import Calls
from holdfast.store.checksum import input_digest
from holdfast.store.contract import Command, InputRow, Lease, Quarantine, Receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.errors import HoldfastError
    from holdfast.records import Admitted, Ended
    from holdfast.store.contract import JournalRow, Reader, Rows
    from holdfast.store.limits import StoreLimits


NotificationState = Literal["queued", "claimed", "acknowledged", "cancelled", "expired", "dead"]
SettledByHand = Literal["cancelled", "acknowledged", "queued"]
NOTIFICATION_STATES: Final[tuple[str, ...]] = get_args(NotificationState)
SETTLED_BY_HAND: Final[tuple[str, ...]] = get_args(SettledByHand)


class Notification(msgspec.Struct, frozen=True):
    """One item for a journal. Times are wall milliseconds."""

    id: int
    """Its number in the store; never given to another one."""
    journal: str
    no: int
    """Its number among those of its journal that are kept, in the order in which they came."""
    kind: str
    title: str
    body: str
    source: str | None
    """What it is about: the id of a task, say."""
    priority: int
    """Higher ones are delivered first."""
    key: str | None
    state: NotificationState
    attempts: int
    """How often it was carried into a turn."""
    due: int
    """It is not delivered before."""
    expires: int | None
    """It is not delivered from then on."""
    created: int
    updated: int
    input: int | None = None
    """The input of its journal that carried it last."""
    run: str | None = None
    """The turn that this input entered."""
    reason: str | None = None
    """Why it is dead, or was queued again."""
    woken: bool = True
    """Whether its journal was woken for it; False while its time has not come."""


class Notify(Command[tuple[Notification, bool]], frozen=True):
    """Queue a notification, once per key; answers it, and whether it is new."""

    journal: str
    kind: str
    title: str
    body: str = ""
    source: str | None = None
    priority: int = 0
    key: str | None = None
    due: int | None = None
    expires: int | None = None

    def size(self) -> int:
        return len(self.title) + len(self.body)


class DeliverNotifications(Command[Receipt | None], frozen=True):
    """Claim notifications and put one input that tells of them into the inbox; None when none can be claimed."""

    journal: str
    epoch: int
    ids: tuple[int, ...]
    key: str
    digest: str
    body: bytes

    def size(self) -> int:
        return len(self.body)


class SettleNotification(Command[tuple[Notification, bool]], frozen=True):
    """Settle a notification by hand; answers it as it now is, and whether this has decided it."""

    id: int
    state: SettledByHand


class Ripened(NamedTuple):
    """What became due: the journals that were woken, whether there may be more, and where to go on with those."""

    journals: tuple[str, ...]
    more: bool
    after: str


class Ripen(Command[Ripened], frozen=True):
    """Wake the journals of notifications whose time has come, and expire those whose time is over.

    With `again`, also the journals of those that were ripe before and are still queued.
    """

    limit: int
    again: bool = False
    after: str = ""
    """With `again`: journals after this one."""


class PurgedNotifications(NamedTuple):
    """How many were removed, and whether there may be more."""

    removed: int
    more: bool


class PurgeNotifications(Command[PurgedNotifications], frozen=True):
    """Remove those that are finished and have not changed since `before`, the oldest first; at most `limit`."""

    before: int
    limit: int


class NotificationFilter(msgspec.Struct, frozen=True):
    """Which notifications to list, newest first. `before` is the id of the last one of the page before."""

    journal: str | None = None
    state: NotificationState | None = None
    before: int | None = None


class NotificationRows(Protocol):
    """Notifications inside a transaction: to be moved, not to be shown, so nothing is checked here."""

    def find(self, number: int) -> Notification | None: ...
    def by_key(self, journal: str, key: str) -> Notification | None: ...
    def add(self, notification: Notification) -> Notification:
        """Keep a new one; answers it with its `id` and its `no`."""
        ...

    def save(self, notification: Notification) -> None:
        """Keep how it stands. What it says never changes."""
        ...

    def bury(self, journal: str, reason: str, now: int) -> None:
        """Make those dead that are queued or claimed. Their texts need not be readable for that."""
        ...

    def purge(self, before: int, limit: int) -> int:
        """Remove those that are finished and were changed at `before` the latest; answers how many."""
        ...

    def claimed_by_input(self, journal: str, number: int) -> list[Notification]: ...
    def claimed_by_run(self, journal: str, run: str) -> list[Notification]: ...
    def has_ready(self, journal: str, now: int) -> bool:
        """Whether one is queued, due and not expired."""
        ...

    def unwoken(self, now: int, limit: int) -> list[Notification]:
        """Queued ones that are due and whose journal was not woken for them, longest due first."""
        ...

    def overdue(self, now: int, limit: int) -> list[Notification]:
        """Queued ones that have expired."""
        ...

    def ready_journals(self, after: str, now: int, limit: int) -> list[str]:
        """Journals after `after`, by id, that have one queued that is due and not expired."""
        ...


class NotificationReader(Protocol):
    """Notifications as they can be read. A damaged one is a `JournalCorrupt`."""

    def get(self, number: int) -> Notification | None: ...
    def next(self, journal: str, now: int, limit: int) -> list[Notification]:
        """Those that may be carried now, in the order of their delivery."""
        ...

    def newest(self, where: NotificationFilter, limit: int) -> tuple[list[Notification], set[str]]:
        """Newest first, and the journals of those that can't be trusted, which are left out."""
        ...

    def next_due(self) -> int | None:
        """When the next one becomes due or expires."""
        ...

    def raw(self) -> Iterator[tuple[Notification, bool]]:
        """All of them, each with whether it is sound."""
        ...


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
        return await self._submit(
            DeliverNotifications(lease.journal, lease.epoch, chosen, key, input_digest(body), body)
        )

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


FIRST_PAUSE_MS: Final = 1_000
"""How long a notification rests after the first turn that did not take it."""
LONGEST_PAUSE_MS: Final = 300_000
"""How long it rests at the most."""
OPEN: Final = frozenset(("queued", "claimed"))
"""The states of those that their journal has not finished with."""
FINISHED: Final = frozenset(("acknowledged", "cancelled", "expired"))
"""The states of those that nobody has to look at any more. One that is dead waits for a person."""


def backoff(attempts: int) -> int:
    """Milliseconds until the next attempt after so many: twice as long each time, up to a limit."""
    doublings = min(max(attempts - 1, 0), 30)  # far beyond the limit, and the number stays small
    return min(FIRST_PAUSE_MS << doublings, LONGEST_PAUSE_MS)


def is_same(found: Notification, asked: Notify) -> bool:
    """Whether a notification says what is asked to be said. When it is due is no part of that."""
    said = (asked.kind, asked.title, asked.body, asked.source, asked.priority)
    return (found.kind, found.title, found.body, found.source, found.priority) == said


def refusal(
    row: JournalRow | None, found: Notification | None, asked: Notify, limits: StoreLimits
) -> HoldfastError | None:
    """Why this can't be queued, or None. `found` is the notification under its key, which says something else."""
    if row is None:
        return JournalMissing(asked.journal)
    if found is not None:
        return KeyConflict(asked.journal, asked.key or "")
    if row.quarantine is not None:
        return JournalQuarantined(row.id, row.quarantine)
    return NotificationsFull(row.id, limits.notifications) if row.notices >= limits.notifications else None


def check_room(row: JournalRow, limits: StoreLimits) -> None:
    """What waits for a journal has a limit."""
    if row.notices >= limits.notifications:
        raise NotificationsFull(row.id, limits.notifications)


def draft(asked: Notify, now: int, refused: HoldfastError | None = None) -> Notification:
    """A notification as it begins: queued, or dead if it was refused. It gets its numbers when it is stored."""
    due = now if asked.due is None else asked.due
    queued = Notification(
        *(0, asked.journal, 0, asked.kind, asked.title, asked.body, asked.source, asked.priority, asked.key),
        *("queued", 0, due, asked.expires, now, now),
        woken=due <= now,
    )
    if refused is not None:
        # The key stays with the one that has it: it would be taken twice, and a later attempt may succeed.
        return replace(queued, state="dead", key=None, reason=str(refused), woken=True)
    return expire(queued, now) if has_expired(queued, now) else queued


def has_expired(found: Notification, now: int) -> bool:
    """Whether it must not be delivered any more."""
    return found.expires is not None and found.expires <= now


def expire(found: Notification, now: int) -> Notification:
    """A notification whose time is over."""
    return replace(found, state="expired", updated=now, woken=True)


def bury(found: Notification, reason: str, now: int) -> Notification:
    """A notification that nobody can deliver any more. Which turn had it last can still be seen."""
    return replace(found, state="dead", reason=reason, updated=now, woken=True)


def may_carry(found: Notification, now: int) -> bool:
    """Whether it may be delivered now."""
    return found.state == "queued" and found.due <= now and not has_expired(found, now)


def require(found: Notification | None, number: int, journal: str | None = None) -> Notification:
    """The notification, or the error that says it is not there."""
    if found is None or journal not in (None, found.journal):
        raise NotificationUnknown(number, journal)
    return found


def claim(found: Notification, number: int, now: int) -> Notification:
    """A notification that the input `number` carries."""
    return replace(
        found, state="claimed", attempts=found.attempts + 1, input=number, run=None, reason=None, updated=now
    )


def enter(found: Notification, run: str | None, now: int) -> Notification:
    """A notification whose input was admitted. Without a run that answers for it, it is where it was meant to be."""
    if run is None:
        return replace(found, state="acknowledged", updated=now)
    return replace(found, run=run, updated=now)


class _Steps(msgspec.Struct):
    steps: int = 0


def _was_seen(ended: Ended) -> bool:
    """Whether the model has read what the turn carried: it completed, or reached a limit after it had answered."""
    if ended.unstarted or ended.status not in ("completed", "limit"):
        return False
    if ended.status == "completed" or not bytes(ended.value):
        return True
    try:
        return msgspec.json.decode(bytes(ended.value), type=_Steps).steps > 0
    except msgspec.MsgspecError:
        return True


def after_run(found: Notification, ended: Ended, now: int, limits: StoreLimits) -> Notification:
    """What becomes of a notification when the turn that carried it has ended.

    A turn that ended before it began has shown it to nobody, whatever its status.
    """
    if _was_seen(ended):
        return replace(found, state="acknowledged", updated=now)
    if found.attempts >= limits.max_attempts:
        reason = f"carried {found.attempts} times; the last turn, {ended.run}, ended as {ended.status}"
        return replace(found, state="dead", reason=reason, updated=now)
    if has_expired(found, now):
        return expire(found, now)
    reason = f"the turn {ended.run} ended as {ended.status}"
    return replace(found, state="queued", due=now + backoff(found.attempts), reason=reason, updated=now, woken=False)


def settle(found: Notification, state: SettledByHand, now: int) -> Notification | None:
    """The notification as a person settles it, or None when that was decided before.

    What is queued, claimed or dead may be taken as read or dropped; what is dead may be tried again. One that a turn
    has is not queued a second time.
    """
    if state == "queued":
        if found.state != "dead" or has_expired(found, now):
            return None
        return replace(
            found, state="queued", attempts=0, due=now, input=None, run=None, reason=None, updated=now, woken=True
        )
    if found.state not in (*OPEN, "dead"):
        return None
    return replace(found, state=state, updated=now, woken=True)


class Notices:
    """The notifications of one transaction, at one moment."""

    __slots__ = ("_limits", "_now", "_rows", "_wake")

    def __init__(self, rows: Rows, limits: StoreLimits, now: int, wake: Callable[[JournalRow], None]) -> None:
        self._rows = rows
        self._limits = limits
        self._now = now
        self._wake = wake

    # ---- in ----

    def notify(self, asked: Notify) -> tuple[Notification, bool]:
        row, found = self._rows.journal(asked.journal), self._under_key(asked)
        if row is not None and found is not None and is_same(found, asked):
            return found, False
        refused = refusal(row, found, asked, self._limits)
        if refused is not None:
            raise refused
        return self._queue(row, draft(asked, self._now)), True

    def send(self, asked: Notify) -> None:
        """Notify from within an append: what can't be queued is dead, and nothing is refused."""
        row, found = self._rows.journal(asked.journal), self._under_key(asked)
        if found is not None and is_same(found, asked):
            return
        self._queue(row, draft(asked, self._now, refusal(row, found, asked, self._limits)))

    def _under_key(self, asked: Notify) -> Notification | None:
        return None if asked.key is None else self._rows.notifications.by_key(asked.journal, asked.key)

    def _queue(self, row: JournalRow | None, drafted: Notification) -> Notification:
        added = self._rows.notifications.add(drafted)
        if row is not None and added.state == "queued":
            self._count(row, 1)
            if added.woken:
                self._wake(row)
        return added

    def _count(self, row: JournalRow, more: int) -> None:
        row.notices += more
        self._rows.save_wakes(row)

    # ---- on their way ----

    def carry(self, asked: DeliverNotifications) -> Receipt | None:
        row = journals.require_journal(self._rows.journal(asked.journal), asked.journal)
        journals.check_epoch(row, asked.epoch)
        journals.check_served(row)
        found = [require(self._rows.notifications.find(number), number, row.id) for number in asked.ids]
        ready = [notification for notification in found if may_carry(notification, self._now)]
        if not ready:
            return None
        if self._rows.input_by_key(row, asked.key) is not None:
            raise KeyConflict(row.id, asked.key)  # that input may be over: nobody would answer for these
        journals.check_room(row, self._rows.count_pending(row), self._limits)
        row.inputs += 1
        self._rows.add_input(row, InputRow(row.inputs, asked.key, asked.digest, asked.body, self._now))
        for notification in ready:
            self._rows.notifications.save(claim(notification, row.inputs, self._now))
        self._wake(row)
        return Receipt(row.id, row.inputs, asked.key, self._now, head=row.head)

    def admitted(self, row: JournalRow, record: Admitted) -> None:
        """An input entered its journal, and with it what it carries."""
        claimed = self._rows.notifications.claimed_by_input(row.id, record.input)
        self._move(row, claimed, [enter(found, record.run, self._now) for found in claimed])

    def ended(self, row: JournalRow, record: Ended) -> None:
        """A turn is over: what it carried is acknowledged, or goes back."""
        claimed = self._rows.notifications.claimed_by_run(row.id, record.run)
        self._move(row, claimed, [after_run(found, record, self._now, self._limits) for found in claimed])

    def _move(self, row: JournalRow | None, before: Sequence[Notification], after: Sequence[Notification]) -> None:
        """Write what has become of notifications of one journal."""
        finished = 0
        for found, moved in zip(before, after, strict=True):
            self._rows.notifications.save(moved)
            finished += (found.state in OPEN) - (moved.state in OPEN)
        if finished and row is not None:
            self._count(row, -finished)

    def is_ready(self, row: JournalRow) -> bool:
        """Whether something can be delivered."""
        return row.notices > 0 and self._rows.notifications.has_ready(row.id, self._now)

    def bury(self, row: JournalRow) -> None:
        """Give up what a journal has not finished with: it is quarantined, and nobody would ever deliver it."""
        reason = str(JournalQuarantined(row.id, row.quarantine or ""))
        self._rows.notifications.bury(row.id, reason, self._now)
        row.notices = 0
        self._rows.save_wakes(row)

    # ---- by hand, and by the clock ----

    def settle(self, asked: SettleNotification) -> tuple[Notification, bool]:
        found = require(self._rows.notifications.find(asked.id), asked.id)
        settled = settle(found, asked.state, self._now)
        if settled is None:
            return found, False
        row = self._rows.journal(found.journal)
        if asked.state == "queued":
            row = journals.require_journal(row, found.journal)
            journals.check_served(row)
            check_room(row, self._limits)
            self._wake(row)
        self._move(row, [found], [settled])
        return settled, True

    def ripen(self, asked: Ripen) -> Ripened:
        table = self._rows.notifications
        overdue = table.overdue(self._now, asked.limit)
        for found in overdue:
            self._move(self._rows.journal(found.journal), [found], [expire(found, self._now)])
        ripe = table.unwoken(self._now, asked.limit)
        for found in ripe:
            table.save(replace(found, woken=True))
        waiting = table.ready_journals(asked.after, self._now, asked.limit) if asked.again else []
        woken = self._wake_all(dict.fromkeys(found.journal for found in ripe), asleep_only=False)
        woken += self._wake_all(dict.fromkeys(name for name in waiting if name not in woken), asleep_only=True)
        more = asked.limit in (len(overdue), len(ripe), len(waiting))
        return Ripened(tuple(woken), more, waiting[-1] if waiting else asked.after)

    def purge(self, asked: PurgeNotifications) -> PurgedNotifications:
        removed = self._rows.notifications.purge(asked.before, asked.limit)
        return PurgedNotifications(removed, removed >= asked.limit)

    def _wake_all(self, names: dict[str, None], *, asleep_only: bool) -> list[str]:
        """Wake each of these journals once, if it is served; answers those that were."""
        woken: list[str] = []
        for name in names:
            row = self._rows.journal(name)
            if row is None or row.quarantine is not None or (asleep_only and row.wakes > row.seen):
                continue
            self._wake(row)
            woken.append(name)
        return woken


class NotificationContext(NamedTuple):
    """What notifications must fit to: the journals, their inputs (and whether each waits), the runs that have ended."""

    rows: Iterable[JournalRow]
    inputs: Mapping[str, Mapping[int, bool]]
    ended: Mapping[str, set[str]]


def audit_notifications(reader: Reader, around: NotificationContext) -> Iterator[tuple[str, str, str]]:
    """Every violated invariant: which, where, and what was found."""
    waiting: Counter[str] = Counter()
    last: dict[str, int] = {}
    stopped = {row.id: row.quarantine is not None for row in around.rows}
    for found, sound in reader.notifications.raw():
        where = f"{found.journal}/notification {found.id}"
        if not sound:
            yield "checksum", where, "the notification does not match its checksum"
            continue
        if found.no <= last.get(found.journal, 0):  # there are gaps where some were purged
            yield "notification", where, f"is number {found.no} of its journal, after {last.get(found.journal, 0)}"
        last[found.journal] = found.no
        if found.state in OPEN:
            waiting[found.journal] += 1
            if stopped.get(found.journal, True):
                what = "is quarantined" if found.journal in stopped else "is not there"
                yield "notification", where, f"is {found.state}, but its journal {what}"
        if found.state == "claimed":
            for detail in _unanswered(found, around):
                yield "notification", where, detail
    for row in around.rows:
        if row.notices != waiting[row.id]:
            detail = f"{row.notices} notifications are said to wait, but {waiting[row.id]} do"
            yield "notification", row.id, detail


def _unanswered(found: Notification, around: NotificationContext) -> Iterator[str]:
    """What is claimed must be in an input that waits or a turn that has not ended: nobody else would free it."""
    waits = around.inputs.get(found.journal, {}).get(found.input or 0)
    if waits is None:
        yield f"is claimed by input {found.input}, which is not there"
    elif found.run is None and not waits:
        yield f"is claimed by input {found.input}, which was admitted, but by no run"
    elif found.run is not None and found.run in around.ended.get(found.journal, ()):
        yield f"is claimed by the run {found.run!r}, which has ended"
