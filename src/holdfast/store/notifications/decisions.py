"""Every rule of notifications, as pure functions of what is stored, a request and the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from holdfast.errors import (
    JournalMissing,
    JournalQuarantined,
    KeyConflict,
    NotificationsFull,
    NotificationUnknown,
)
from holdfast.store.notifications.contract import Notification

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError
    from holdfast.records import Ended
    from holdfast.store.contract import JournalRow
    from holdfast.store.limits import StoreLimits
    from holdfast.store.notifications.contract import Notify, SettledByHand

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
