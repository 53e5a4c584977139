"""Pumps: a host that takes the notifications of one session itself, instead of the session's driver.

A pump holds the lease of a small journal beside the session. While the lease is held, no driver delivers notifications
to the session. A notification in the hands of a pump is claimed under the epoch of that lease, so a pump that lost the
lease can't settle it any more. The end of a pump, clean or not, returns what it had claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from holdfast.errors import NotASession
from holdfast.names import is_session_id
from holdfast.store.contract import Command, JournalRow, Lease, Owner
from holdfast.store.notifications import (
    Notification,
    has_lapsed,
    may_carry,
    move,
    pump_journal,
    queue_again,
)
from holdfast.store.transaction import Claim, OpenJournal, Release

if TYPE_CHECKING:
    from holdfast.store.transaction import Transaction


PUMP_ROLE: Final = "pump"
"""The role of the journal of a pump."""


class OpenPump(Command[Lease], frozen=True):
    """Hold the notifications of a session; `LeaseHeld` while another pump holds them."""

    session: str
    owner: Owner
    ttl_ms: int

    def apply(self, tx: Transaction) -> Lease:
        session = tx.journal(self.session)
        session.check_served()
        if session.kind != "session" or not is_session_id(session.id):
            raise NotASession(session.id)
        opening = OpenJournal(pump_journal(session.id), "process", None, PUMP_ROLE, session.id)
        row = tx.open_journal(opening)
        lease = Claim(row.id, self.owner, self.ttl_ms).apply(tx)
        _return_claimed(tx, session, "the pump before ended without settling it")
        tx.wake(row)  # it has work until its end: an engine that finds it without a holder takes care of that
        return lease


class PumpNotification(Command[Notification | None], frozen=True):
    """Claim a notification for the pump that holds the lease; None if it is not ready any more."""

    lease: Lease
    session: str
    number: int

    def apply(self, tx: Transaction) -> Notification | None:
        tx.leased_journal(self.lease)
        found = tx.rows.notifications.find(self.number)
        if found is None or found.journal != self.session or not may_carry(found, tx.now.wall):
            return None
        run, attempts = _run_of(self.lease), found.attempts + 1
        held = f"in the pump of process {self.lease.owner.pid}"
        claimed = replace(
            found, state="claimed", attempts=attempts, input=None, run=run, reason=held, updated=tx.now.wall
        )
        tx.rows.notifications.save(claimed)
        return claimed


class SettlePumped(Command[bool], frozen=True):
    """Acknowledge a notification, or queue it again after `pause_ms`; False if it is not the pump's any more."""

    lease: Lease
    number: int
    acknowledged: bool
    pause_ms: int | None = None
    reason: str = ""

    def apply(self, tx: Transaction) -> bool:
        row = tx.rows.journal(self.lease.journal)
        found = tx.rows.notifications.find(self.number)
        if row is None or found is None or found.run != _run_of(self.lease):
            return False
        if found.state != "claimed":
            return self.acknowledged and found.state == "acknowledged"  # the same answer once more
        row.check_epoch(self.lease.epoch)
        if self.acknowledged:
            settled = replace(found, state="acknowledged", reason=None, updated=tx.now.wall)
        else:
            why = self.reason or "the host requeued it"
            settled = queue_again(found, why, tx.now.wall, tx.limits, self.pause_ms)
        move(tx, tx.rows.journal(found.journal), [(found, settled)])
        return True


class ClosePump(Command[None], frozen=True):
    """End a pump: queue again what it has claimed, and let the driver of the session deliver."""

    lease: Lease
    session: str

    def apply(self, tx: Transaction) -> None:
        row = tx.journal(self.lease.journal)
        row.check_epoch(self.lease.epoch)
        Release(self.lease, row.wakes).apply(tx)
        _hand_over(tx, self.session, "its pump was closed")


class RecoverPump(Command[bool], frozen=True):
    """End a pump whose process is gone, or whose lease has lapsed; False if it is held."""

    journal: str

    def apply(self, tx: Transaction) -> bool:
        row = tx.journal(self.journal)
        if not has_lapsed(row, tx.now) or row.session is None:
            return False
        _fence(tx, row)
        _hand_over(tx, row.session, "its pump has died")
        return True


def end_pump(tx: Transaction, session: JournalRow, reason: str) -> None:
    """End the pump of a session, if it has one, whoever holds it: what it has claimed is queued again."""
    row = tx.rows.journal(pump_journal(session.id))
    if row is not None:
        _fence(tx, row)
        _return_claimed(tx, session, reason)


def _fence(tx: Transaction, row: JournalRow) -> None:
    """Take the lease from a holder that may be alive; the pump has no work any more."""
    row.owner, row.expires, row.mono_expires, row.seen = None, 0, 0, row.wakes
    tx.rows.save_lease(row)


def _hand_over(tx: Transaction, session: str, reason: str) -> None:
    row = tx.rows.journal(session)
    if row is None:
        return
    _return_claimed(tx, row, reason)
    if row.quarantine is None and tx.rows.notifications.has_ready(row.id, tx.now.wall):
        tx.wake(row)


def _return_claimed(tx: Transaction, session: JournalRow, reason: str) -> None:
    """Queue again what pumps of a session have claimed. Nobody holds its pump now."""
    left = tx.rows.notifications.claimed_by_pump(session.id)
    move(tx, session, [(each, queue_again(each, reason, tx.now.wall, tx.limits, 0)) for each in left])


def _run_of(lease: Lease) -> str:
    """The mark of notifications that a pump has claimed; no turn has such an id."""
    return f"pump.{lease.epoch}"
