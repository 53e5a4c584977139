"""Carries out the commands of notifications: decide, then write. Shared by every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.errors import JournalQuarantined, KeyConflict
from holdfast.store import decisions as journals
from holdfast.store.contract import InputRow, Receipt
from holdfast.store.notifications import decisions
from holdfast.store.notifications.contract import PurgedNotifications, Ripened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.records import Admitted, Ended
    from holdfast.store.contract import JournalRow, Rows
    from holdfast.store.limits import StoreLimits
    from holdfast.store.notifications.contract import (
        Carry,
        Notification,
        Notify,
        PurgeNotifications,
        Ripen,
        SettleNotification,
    )


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
        if row is not None and found is not None and decisions.is_same(found, asked):
            return found, False
        refused = decisions.refusal(row, found, asked, self._limits)
        if refused is not None:
            raise refused
        return self._queue(row, decisions.draft(asked, self._now)), True

    def send(self, asked: Notify) -> None:
        """Notify from within an append: what can't be queued is dead, and nothing is refused."""
        row, found = self._rows.journal(asked.journal), self._under_key(asked)
        if found is not None and decisions.is_same(found, asked):
            return
        self._queue(row, decisions.draft(asked, self._now, decisions.refusal(row, found, asked, self._limits)))

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

    def carry(self, asked: Carry) -> Receipt | None:
        row = journals.require_journal(self._rows.journal(asked.journal), asked.journal)
        journals.check_epoch(row, asked.epoch)
        journals.check_served(row)
        found = [decisions.require(self._rows.notifications.find(number), number, row.id) for number in asked.ids]
        ready = [notification for notification in found if decisions.may_carry(notification, self._now)]
        if not ready:
            return None
        if self._rows.input_by_key(row, asked.key) is not None:
            raise KeyConflict(row.id, asked.key)  # that input may be over: nobody would answer for these
        journals.check_room(row, self._rows.count_pending(row), self._limits)
        row.inputs += 1
        self._rows.add_input(row, InputRow(row.inputs, asked.key, asked.digest, asked.body, self._now))
        for notification in ready:
            self._rows.notifications.save(decisions.claim(notification, row.inputs, self._now))
        self._wake(row)
        return Receipt(row.id, row.inputs, asked.key, self._now, head=row.head)

    def admitted(self, row: JournalRow, record: Admitted) -> None:
        """An input entered its journal, and with it what it carries."""
        claimed = self._rows.notifications.claimed_by_input(row.id, record.input)
        self._move(row, claimed, [decisions.enter(found, record.run, self._now) for found in claimed])

    def ended(self, row: JournalRow, record: Ended) -> None:
        """A turn is over: what it carried is acknowledged, or goes back."""
        claimed = self._rows.notifications.claimed_by_run(row.id, record.run)
        self._move(row, claimed, [decisions.after_run(found, record, self._now, self._limits) for found in claimed])

    def _move(self, row: JournalRow | None, before: Sequence[Notification], after: Sequence[Notification]) -> None:
        """Write what has become of notifications of one journal."""
        finished = 0
        for found, moved in zip(before, after, strict=True):
            self._rows.notifications.save(moved)
            finished += (found.state in decisions.OPEN) - (moved.state in decisions.OPEN)
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
        found = decisions.require(self._rows.notifications.find(asked.id), asked.id)
        settled = decisions.settle(found, asked.state, self._now)
        if settled is None:
            return found, False
        row = self._rows.journal(found.journal)
        if asked.state == "queued":
            row = journals.require_journal(row, found.journal)
            journals.check_served(row)
            decisions.check_room(row, self._limits)
            self._wake(row)
        self._move(row, [found], [settled])
        return settled, True

    def ripen(self, asked: Ripen) -> Ripened:
        table = self._rows.notifications
        overdue = table.overdue(self._now, asked.limit)
        for found in overdue:
            self._move(self._rows.journal(found.journal), [found], [decisions.expire(found, self._now)])
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
