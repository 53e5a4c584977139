"""What a notification is, the commands that move it, and what a backend keeps of it.

    queued --carry--> claimed --the turn ends well--> acknowledged
       ^                 |
       '---backoff-------+--the turn fails or is cancelled; after `max_attempts`--> dead

A queued one may also expire, and a person may settle one by hand. When its journal is quarantined, what it has not
finished with is dead. What is acknowledged, cancelled or expired is purged after a while; what is dead waits for a
person.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, get_args

import msgspec

from holdfast.store.contract import Command, Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

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


# ---- commands --------------------------------------------------------------------------------------------------------


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


class Carry(Command[Receipt | None], frozen=True):
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


# ---- what a backend provides -----------------------------------------------------------------------------------------


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
