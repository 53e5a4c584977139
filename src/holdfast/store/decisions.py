"""The rules for journals, leases and the inbox, as pure functions of rows, a command and the time.

A rule answers the new state or raises the error for the caller; it never writes. The other topics have their rules in
their own modules (`waits`, `notifications`, `memories`, ...).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import (
    Fenced,
    ForkPointMissing,
    HeadConflict,
    InboxFull,
    InvalidNumber,
    JournalConflict,
    JournalMissing,
    JournalQuarantined,
    KeyConflict,
    LeaseHeld,
)
from holdfast.store.contract import Receipt, Work

if TYPE_CHECKING:
    from holdfast.clock import Instant
    from holdfast.store.contract import InputRow, JournalRow, StoreLimits
    from holdfast.store.retention import Tombstone
    from holdfast.store.transaction import Accept, Append, Fork, OpenJournal


STOP_KEY: Final = "holdfast/cancel"
"""The key of the input that asks to stop a process; for a turn, the name of the turn follows."""


def require_journal(row: JournalRow | None, journal: str) -> JournalRow:
    """The journal; raises `JournalMissing` without one."""
    if row is None:
        raise JournalMissing(journal)
    return row


def check_opening(row: JournalRow | Tombstone, command: OpenJournal) -> None:
    """An id belongs to one kind, role and session for ever, and to one agent unless that hands it over."""
    if (row.kind, row.agent, row.role, row.session) != (command.kind, command.agent, command.role, command.session):
        # A sub-agent session works for its own session and takes no other input.
        lent = row.kind == command.kind == "session" and row.session is not None and command.session is None
        helps = "fork it to go on from there, or choose another id" if lent else "choose another id"
        raise JournalConflict(command.journal, _opened_as(row), _opened_as(command), helps)


def check_metadata(journal: str, known: dict[str, Any], given: dict[str, Any]) -> None:
    """The metadata of a session never changes."""
    if known != given:
        shown = [msgspec.json.encode(each, order="sorted").decode()[:200] for each in (known, given)]
        helps = "open it without metadata, or choose another id"
        raise JournalConflict(journal, f"a session with the metadata {shown[0]}", f"one with {shown[1]}", helps)


def _opened_as(opened: JournalRow | OpenJournal | Tombstone) -> str:
    said = f"a {opened.kind} of {opened.agent!r}" if opened.agent else f"a {opened.kind}"
    if opened.role:
        said += f" with the role {opened.role!r}"
    return f"{said} for {opened.session!r}" if opened.session else said


def check_fork(parent: JournalRow, found: JournalRow | None, command: Fork) -> None:
    """A fork starts at a record of its parent. Its id belongs to it for ever."""
    if found is not None:
        if (found.parent, found.parent_seq) != (command.parent, command.at):
            taken = _opened_as(found) + _fork_of(found.parent, found.parent_seq)
            wanted = _opened_as(parent) + _fork_of(command.parent, command.at)
            raise JournalConflict(found.id, taken, wanted)
        return
    check_served(parent)
    if not 1 <= command.at <= parent.head:
        raise ForkPointMissing(parent.id, command.at, parent.head)


def _fork_of(parent: str | None, seq: int) -> str:
    return f" that goes on after record {seq} of {parent!r}" if parent else ""


def lease_left(row: JournalRow, now: Instant) -> int:
    """Milliseconds until the lease expires; 0 or less if it has expired or is free.

    Within one boot the monotonic clock decides, so a jump of the wall clock ends no lease. After a reboot only the wall
    clock is left; more than a whole term left means that it was set back, and the lease counts as expired.
    """
    if row.owner is None:
        return 0
    if row.owner.boot and row.owner.boot == now.boot:
        return row.mono_expires - now.mono
    left = row.expires - now.wall
    return left if left <= row.term else 0


def decide_claim(row: JournalRow, now: Instant, *, holder_gone: bool) -> int:
    """The epoch of the new lease. A live lease is refused to everyone, its holder included."""
    check_served(row)
    left = lease_left(row, now)
    if row.owner is not None and left > 0 and not holder_gone:
        raise LeaseHeld(row.id, row.owner.describe(), left)
    return row.epoch + 1


def check_epoch(row: JournalRow, epoch: int) -> None:
    """A write needs the newest epoch. Expiry alone does not fence: the holder may go on until another claims."""
    if row.epoch != epoch or row.owner is None:
        raise Fenced(row.id, epoch, row.epoch, row.owner.describe() if row.owner else None)


def check_served(row: JournalRow) -> None:
    """Raise `JournalQuarantined` for a quarantined journal."""
    if row.quarantine is not None:
        raise JournalQuarantined(row.id, row.quarantine)


def plan_append(row: JournalRow, command: Append) -> int:
    """The head after the append; raises `Fenced` before `HeadConflict`."""
    check_epoch(row, command.epoch)
    check_served(row)
    if row.head != command.head:
        raise HeadConflict(row.id, command.head, row.head)
    return row.head + len(command.bodies)


def decide_accept(row: JournalRow, found: InputRow | None, command: Accept) -> Receipt | None:
    """The receipt of an earlier acceptance; None if the input is new."""
    if found is None:
        check_served(row)
        return None
    if found.digest != command.digest:
        raise KeyConflict(row.id, command.key)
    return Receipt(row.id, found.input, found.key, found.at, fresh=False)


def check_inbox_room(row: JournalRow, pending: int, limits: StoreLimits) -> None:
    """Raise `InboxFull` if too many inputs wait."""
    if pending >= limits.pending_inputs:
        raise InboxFull(row.id, limits.pending_inputs)


def has_work(row: JournalRow) -> bool:
    """True if a driver should advance this journal: it was woken, or it is in the middle of a run.

    Only its caller advances a process without a role.
    """
    woken = row.wakes > row.seen or row.status == "running"
    return woken and (row.kind == "session" or row.role is not None) and row.quarantine is None


def as_work(row: JournalRow, now: Instant) -> Work:
    """A journal with work, and its present holder."""
    left = max(lease_left(row, now), 0)
    holder = row.owner if left else None
    return Work(row.no, row.id, row.agent, row.wakes, row.status, holder, left, row.kind, row.role, row.session)


def decide_seen(row: JournalRow, seen: int | None) -> int:
    """The new count of seen wakes. It can't exceed the wakes: the next ones would go unnoticed."""
    if seen is None:
        return row.seen
    if seen > row.wakes:
        raise InvalidNumber("seen", seen, f"{row.id!r} was woken {row.wakes:,} times")
    return max(row.seen, seen)


def stop_key(run: str) -> str:
    """The key of the input that asks to stop a turn. Each turn has one: the first request counts."""
    return f"{STOP_KEY}/{run}"


def earliest(*times: int | None) -> int | None:
    """The earliest of these times; None without any."""
    return min((time for time in times if time is not None), default=None)
