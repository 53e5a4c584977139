"""Notifications in memory: the rows of a transaction and the reads of a store that keeps nothing on a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.store.decisions import earliest
from holdfast.store.notifications.decisions import OPEN, bury, has_expired, may_carry, may_purge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.notifications.contract import Notification, NotificationFilter


class NotificationTable:
    """`NotificationRows` and `NotificationReader`."""

    def __init__(self) -> None:
        self._kept: dict[int, Notification] = {}
        self._last = 0
        """The newest id, also when that one is gone: it is never given to another one."""

    # ---- inside a transaction ----

    def find(self, number: int) -> Notification | None:
        return self._kept.get(number)

    def by_key(self, journal: str, key: str) -> Notification | None:
        return next((found for found in self._of(journal) if found.key == key), None)

    def add(self, notification: Notification) -> Notification:
        last = max((found.no for found in self._of(notification.journal)), default=0)
        self._last += 1
        added = replace(notification, id=self._last, no=last + 1)
        self._kept[added.id] = added
        return added

    def save(self, notification: Notification) -> None:
        self._kept[notification.id] = notification

    def bury(self, journal: str, reason: str, now: int) -> None:
        for found in self._of(journal):
            if found.state in OPEN:
                self.save(bury(found, reason, now))

    def remove(self, journal: str) -> None:
        """Forget what was meant for a journal that is gone."""
        for found in [one for one in self._kept.values() if one.journal == journal]:
            del self._kept[found.id]

    def purge(self, before: int, limit: int) -> int:
        over = [found for found in self._kept.values() if may_purge(found, before)]
        gone = sorted(over, key=lambda found: (found.updated, found.id))[:limit]
        for found in gone:
            del self._kept[found.id]
        return len(gone)

    def claimed_by_input(self, journal: str, number: int) -> list[Notification]:
        return [found for found in self._of(journal) if found.state == "claimed" and found.input == number]

    def claimed_by_run(self, journal: str, run: str) -> list[Notification]:
        return [found for found in self._of(journal) if found.state == "claimed" and found.run == run]

    def has_ready(self, journal: str, now: int) -> bool:
        return any(may_carry(found, now) for found in self._of(journal))

    def unwoken(self, now: int, limit: int) -> list[Notification]:
        ripe = [found for found in self._queued() if not found.woken and found.due <= now]
        return sorted(ripe, key=lambda found: (found.due, found.id))[:limit]

    def overdue(self, now: int, limit: int) -> list[Notification]:
        over = [found for found in self._queued() if has_expired(found, now)]
        return sorted(over, key=lambda found: (found.expires or 0, found.id))[:limit]

    def ready_journals(self, after: str, now: int, limit: int) -> list[str]:
        return sorted({found.journal for found in self._queued() if may_carry(found, now) and found.journal > after})[
            :limit
        ]

    def _of(self, journal: str) -> list[Notification]:
        return [found for found in self._kept.values() if found.journal == journal]

    def _queued(self) -> list[Notification]:
        return [found for found in self._kept.values() if found.state == "queued"]

    # ---- reading ----

    get = find

    def next(self, journal: str, now: int, limit: int) -> list[Notification]:
        ready = [found for found in self._of(journal) if may_carry(found, now)]
        return sorted(ready, key=lambda found: (-found.priority, found.no))[:limit]

    def newest(self, where: NotificationFilter, limit: int) -> tuple[list[Notification], set[str]]:
        chosen = [
            found
            for found in reversed(self._kept.values())
            if where.journal in (None, found.journal)
            and where.state in (None, found.state)
            and (where.before is None or found.id < where.before)
        ]
        return chosen[:limit], set()

    def next_due(self) -> int | None:
        due = [found.due for found in self._queued() if not found.woken]
        return earliest(*due, *(found.expires for found in self._queued()))

    def raw(self) -> Iterator[tuple[Notification, bool]]:
        for found in self._kept.values():
            yield found, True
