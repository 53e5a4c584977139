"""Notifications: durable messages for a journal. A turn carries them, and its end acknowledges them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, get_args

import msgspec
from msgspec.structs import replace

from holdfast import errors
from holdfast.effects.canonical import digest
from holdfast.errors.store import not_served
from holdfast.names import MAX_INT, PUMP_PREFIX, check_id, check_int, check_string, check_text
from holdfast.store.contract import Command, JournalRow, Reader, Receipt, StoreLimits, input_digest
from holdfast.store.inbox import add_input, check_inbox_room
from holdfast.store.lease import is_gone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.clock import Instant
    from holdfast.records import Admitted, Ended
    from holdfast.secrets.redactor import Redactor
    from holdfast.store.transaction import Transaction


NotificationState = Literal["queued", "claimed", "acknowledged", "cancelled", "expired", "dead"]
SettledByHand = Literal["cancelled", "acknowledged", "queued"]
NOTIFICATION_STATES: Final[tuple[str, ...]] = get_args(NotificationState)
SETTLED_BY_HAND: Final[tuple[str, ...]] = get_args(SettledByHand)
FIRST_PAUSE_MS: Final = 1_000
"""Pause after the first unsuccessful turn; it doubles with each attempt."""
LONGEST_PAUSE_MS: Final = 300_000
OPEN: Final = frozenset(("queued", "claimed"))
"""States in which a journal must still handle a notification."""


class Notification(msgspec.Struct, frozen=True):
    """One notification. Times are wall milliseconds."""

    id: int
    """Its number in the store; never used again."""
    journal: str
    no: int
    """Its number in its journal, by arrival."""
    kind: str
    title: str
    body: str
    source: str | None
    """The subject, for example the id of a task."""
    priority: int
    """Higher ones are delivered first."""
    key: str | None
    state: NotificationState
    attempts: int
    """Number of turns that have carried it."""
    due: int
    """Earliest delivery."""
    expires: int | None
    """End of delivery."""
    created: int
    updated: int
    input: int | None = None
    """The input of its journal that last carried it."""
    run: str | None = None
    """The turn that this input entered; of one in the hands of a pump, a mark of the pump."""
    reason: str | None = None
    """The reason why it is dead, or was queued again; or the pump that has it."""
    payload: Any = None
    """Payload for the host beside its text: a JSON value, which the model does not see."""
    woken: bool = True
    """Its journal was woken for it; False until it is due."""


class Notify(Command[tuple[Notification, bool]], frozen=True):
    """Queue a notification, once per key; answers it, and True if it is new."""

    journal: str
    kind: str
    title: str
    body: str = ""
    source: str | None = None
    priority: int = 0
    key: str | None = None
    due: int | None = None
    expires: int | None = None
    payload: bytes | None = None
    """Canonical JSON."""

    def apply(self, tx: Transaction) -> tuple[Notification, bool]:
        row, found = tx.rows.journal(self.journal), _under_key(tx, self)
        if row is not None and found is not None and is_same(found, self):
            return found, False
        refused = refusal(row, found, self, tx.limits)
        if refused is not None:
            raise refused
        return _queue(tx, row, draft(self, tx.now.wall)), True


class DeliverNotifications(Command[Receipt | None], frozen=True):
    """Claim notifications and put one input with their content into the inbox; None if none can be claimed."""

    journal: str
    epoch: int
    ids: tuple[int, ...]
    key: str
    digest: str
    body: bytes

    def redact(self, redactor: Redactor) -> Self:
        clean = super().redact(redactor)
        return clean if clean.body is self.body else replace(clean, digest=input_digest(clean.body))

    def apply(self, tx: Transaction) -> Receipt | None:
        now = tx.now.wall
        row = tx.leased_journal(self)
        if is_pumped(tx, row.id):
            return None
        found = [require(tx.rows.notifications.find(number), number, row.id) for number in self.ids]
        ready = [notification for notification in found if may_carry(notification, now)]
        if not ready:
            return None
        if tx.rows.input_by_key(row, self.key) is not None:
            # That input may be admitted already, and would free none of these.
            raise errors.KeyConflict(row.id, self.key)
        check_inbox_room(row, tx.rows.count_pending(row), tx.limits)
        receipt = add_input(tx, row, self)
        for each in ready:
            claimed = replace(each, state="claimed", attempts=each.attempts + 1, input=receipt.input)
            tx.rows.notifications.save(replace(claimed, run=None, reason=None, updated=now))
        return receipt


def settle_by_hand(tx: Transaction, number: int, state: SettledByHand) -> tuple[Notification, bool]:
    """Settle a notification by hand; answers it, and True if this command settled it."""
    found = require(tx.rows.notifications.find(number), number)
    settled = settle(found, state, tx.now.wall)
    if settled is None:
        return found, False
    row = tx.rows.journal(found.journal)
    if row is not None:
        row.check_here()
    if state == "queued":
        row = tx.journal(found.journal)
        row.check_served()
        if row.notices >= tx.limits.notifications:
            raise errors.NotificationsFull(row.id, tx.limits.notifications)
        tx.wake(row)
    move(tx, row, [(found, settled)])
    return settled, True


class Ripened(NamedTuple):
    """The journals that were woken; `more` if there may be others, after the journal `after`."""

    journals: tuple[str, ...]
    more: bool
    after: str


def ripen(tx: Transaction, limit: int, after: str, *, again: bool) -> Ripened:
    """Wake the journals of due notifications, and expire overdue ones.

    With `again`, also wake journals after `after` that were woken before and still have a queued notification.
    """
    table, now = tx.rows.notifications, tx.now.wall
    overdue = table.overdue(now, limit)
    for found in overdue:
        move(tx, tx.rows.journal(found.journal), [(found, expire(found, now))])
    ripe = table.unwoken(now, limit)
    for found in ripe:
        table.save(replace(found, woken=True))
    waiting = table.ready_journals(after, now, limit) if again else []
    woken = _wake_all(tx, dict.fromkeys(found.journal for found in ripe), asleep_only=False)
    woken += _wake_all(tx, dict.fromkeys(name for name in waiting if name not in woken), asleep_only=True)
    return Ripened(tuple(woken), limit in (len(overdue), len(ripe), len(waiting)), waiting[-1] if waiting else after)


def check_notification(command: Notify, limits: StoreLimits) -> Notify:
    """The command with a clean title; raises for an invalid value."""
    if not isinstance(command, Notify):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise errors.InvalidArgument("notify", command, "a Notify")
    check_id("journal id", command.journal)
    check_id("notification kind", command.kind)
    for what, name in (("notification source", command.source), ("notification key", command.key)):
        if name is not None:
            check_id(what, name)
    title = check_text("notification title", command.title)
    size = len(check_string("notification body", command.body).encode()) + len(command.payload or b"")
    if size > limits.notification_bytes:
        raise errors.PayloadTooLarge("the notification", size, limits.notification_bytes)
    check_int("priority", command.priority, least=-MAX_INT)
    for what, time in (("due", command.due), ("expires", command.expires)):
        if time is not None:
            check_int(what, time)
    if command.expires is not None and command.due is not None and command.expires <= command.due:
        raise errors.InvalidNumber("expires", command.expires, f"it is not after {command.due:,}, when it is due")
    return command if title == command.title else replace(command, title=title)


# ---- transactions ----


def send(tx: Transaction, command: Notify) -> None:
    """Notify as part of an append: a notification that can't be queued is dead, and the append goes on."""
    row, found = tx.rows.journal(command.journal), _under_key(tx, command)
    if found is None or not is_same(found, command):
        _queue(tx, row, draft(command, tx.now.wall, refusal(row, found, command, tx.limits)))


def _under_key(tx: Transaction, command: Notify) -> Notification | None:
    return None if command.key is None else tx.rows.notifications.by_key(command.journal, command.key)


def _queue(tx: Transaction, row: JournalRow | None, drafted: Notification) -> Notification:
    added = tx.rows.notifications.add(drafted)
    if row is not None and added.state == "queued":
        row.notices += 1
        tx.rows.save_wakes(row)
        if added.woken and not is_pumped(tx, row.id):
            tx.wake(row)
    return added


def follow_admission(tx: Transaction, row: JournalRow, record: Admitted) -> None:
    """Handle the admission of an input with notifications. Without a run they are acknowledged at once."""
    claimed = tx.rows.notifications.claimed_by_input(row.id, record.input)
    state = "acknowledged" if record.run is None else "claimed"
    move(tx, row, [(each, replace(each, state=state, run=record.run, updated=tx.now.wall)) for each in claimed])


def follow_end(tx: Transaction, row: JournalRow, record: Ended) -> None:
    """Handle the end of a turn with notifications: acknowledge them, or queue them again."""
    claimed = tx.rows.notifications.claimed_by_run(row.id, record.run)
    move(tx, row, [(each, after_run(each, record, tx.now.wall, tx.limits)) for each in claimed])


def move(tx: Transaction, row: JournalRow | None, moved: Sequence[tuple[Notification, Notification]]) -> None:
    """Save notifications of one journal, given as (before, after)."""
    finished = 0
    for before, after in moved:
        tx.rows.notifications.save(after)
        finished += (before.state in OPEN) - (after.state in OPEN)
    if finished and row is not None:
        row.notices -= finished
        tx.rows.save_wakes(row)


def bury_all(tx: Transaction, row: JournalRow) -> None:
    """Mark the open notifications of a quarantined journal dead: it will never deliver them."""
    reason = str(not_served(row.id, row.quarantine or ""))
    tx.rows.notifications.bury(row.id, reason, tx.now.wall)
    row.notices = 0
    tx.rows.save_wakes(row)


def pump_journal(session: str) -> str:
    """The journal whose lease a pump of the session holds."""
    return f"{PUMP_PREFIX}{digest('pump', session)[:20]}"


def is_pumped(tx: Transaction, session: str) -> bool:
    """True while a pump holds the notifications of a session."""
    row = tx.rows.journal(pump_journal(session))
    return row is not None and not has_lapsed(row, tx.now)


def has_lapsed(row: JournalRow, now: Instant) -> bool:
    """True if no living process holds the lease of a journal."""
    return row.owner is None or row.lease_left(now) <= 0 or is_gone(row.owner)


def _wake_all(tx: Transaction, names: dict[str, None], *, asleep_only: bool) -> list[str]:
    """Wake each of these served journals once; answers the woken ones."""
    woken: list[str] = []
    for name in names:
        row = tx.rows.journal(name)
        if row is None or row.quarantine is not None or (asleep_only and row.wakes > row.seen) or is_pumped(tx, name):
            continue
        tx.wake(row)
        woken.append(name)
    return woken


# ---- decisions ----


def backoff(attempts: int) -> int:
    """Milliseconds until the next attempt, doubled each time, up to a limit."""
    doublings = min(max(attempts - 1, 0), 30)  # far beyond the limit, and a small number
    return min(FIRST_PAUSE_MS << doublings, LONGEST_PAUSE_MS)


def is_same(found: Notification, command: Notify) -> bool:
    """True if the notification has the content of the command; its due time does not count."""
    said = (command.kind, command.title, command.body, command.source, command.priority, _payload_of(command))
    return (found.kind, found.title, found.body, found.source, found.priority, found.payload) == said


def _payload_of(command: Notify) -> Any:  # any JSON value
    return None if command.payload is None else msgspec.json.decode(command.payload)


def refusal(
    row: JournalRow | None, found: Notification | None, command: Notify, limits: StoreLimits
) -> errors.HoldfastError | None:
    """The error if the command can't be queued. `found` is a notification with other content under the same key."""
    if row is None:
        return errors.JournalMissing(command.journal)
    if found is not None:
        return errors.KeyConflict(command.journal, command.key or "")
    if row.quarantine is not None:
        return not_served(row.id, row.quarantine)
    return errors.NotificationsFull(row.id, limits.notifications) if row.notices >= limits.notifications else None


def draft(command: Notify, now: int, refused: errors.HoldfastError | None = None) -> Notification:
    """A new notification: queued, or dead if refused. The table gives it its numbers."""
    due = now if command.due is None else command.due
    queued = Notification(
        *(0, command.journal, 0, command.kind, command.title, command.body, command.source, command.priority),
        *(command.key, "queued", 0, due, command.expires, now, now),
        payload=_payload_of(command),
        woken=due <= now,
    )
    if refused is not None:
        # Without its key: another notification may have it, and a later attempt may succeed.
        return replace(queued, state="dead", key=None, reason=str(refused), woken=True)
    return expire(queued, now) if has_expired(queued, now) else queued


def has_expired(found: Notification, now: int) -> bool:
    """True from the expiry time on."""
    return found.expires is not None and found.expires <= now


def expire(found: Notification, now: int) -> Notification:
    """The notification as expired."""
    return replace(found, state="expired", updated=now, woken=True)


def may_carry(found: Notification, now: int) -> bool:
    """True if it can be delivered now."""
    return found.state == "queued" and found.due <= now and not has_expired(found, now)


def require(found: Notification | None, number: int, journal: str | None = None) -> Notification:
    """The notification; `NotificationUnknown` without one, or for another journal."""
    if found is None or journal not in (None, found.journal):
        raise errors.NotificationUnknown(number, journal)
    return found


class _Steps(msgspec.Struct):
    steps: int = 0


def _was_seen(ended: Ended) -> bool:
    """True if the model has read the input of the turn: it completed, or reached a limit after its first step."""
    if ended.unstarted or ended.status not in ("completed", "limit"):
        return False
    if ended.status == "completed" or not bytes(ended.value):
        return True
    try:
        return msgspec.json.decode(bytes(ended.value), type=_Steps).steps > 0
    except msgspec.MsgspecError:
        return True


def after_run(found: Notification, ended: Ended, now: int, limits: StoreLimits) -> Notification:
    """The notification after its turn has ended: acknowledged, queued again, expired or dead.

    A turn that ended before it started did not show it to the model, with any status.
    """
    if _was_seen(ended):
        return replace(found, state="acknowledged", updated=now)
    return queue_again(found, f"the turn {ended.run} ended as {ended.status}", now, limits)


def queue_again(
    found: Notification, reason: str, now: int, limits: StoreLimits, pause: int | None = None
) -> Notification:
    """The notification after an attempt that did not settle it: queued after a pause, expired, or dead."""
    if found.attempts >= limits.max_attempts:
        why = f"carried {found.attempts} times; the last time, {reason}"
        return replace(found, state="dead", reason=why, updated=now)
    if has_expired(found, now):
        return expire(found, now)
    due = now + (backoff(found.attempts) if pause is None else pause)
    return replace(found, state="queued", due=due, reason=reason, updated=now, woken=False)


def settle(found: Notification, state: SettledByHand, now: int) -> Notification | None:
    """The notification as settled by hand; None if its state does not allow that.

    An open or dead one can be acknowledged or cancelled; a dead one can be queued again.
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


def audit_notifications(
    reader: Reader, rows: Sequence[JournalRow], inputs: Mapping[str, Mapping[int, bool]], ended: Mapping[str, set[str]]
) -> Iterator[tuple[str, str, str]]:
    """Violated invariants of the notifications: rule, place, finding.

    `inputs` are those of each journal (True: pending), `ended` the ended runs.
    """
    waiting: Counter[str] = Counter()
    last: dict[str, int] = {}
    stopped = {row.id: row.quarantine is not None and not row.moved for row in rows}
    pumps = {row.id: row for row in rows if row.id.startswith(PUMP_PREFIX)}
    for found, sound in reader.notifications.raw():
        where = f"{found.journal}/notification {found.id}"
        if not sound:
            yield "checksum", where, "the notification does not match its checksum"
            continue
        if found.no <= last.get(found.journal, 0):  # purges leave gaps
            yield "notification", where, f"is number {found.no} of its journal, after {last.get(found.journal, 0)}"
        last[found.journal] = found.no
        if found.state in OPEN:
            waiting[found.journal] += 1
            if stopped.get(found.journal, True):
                what = "is quarantined" if found.journal in stopped else "is not there"
                yield "notification", where, f"is {found.state}, but its journal {what}"
        if found.state == "claimed" and found.input is None:  # it needs a pump that an engine sees to
            pump = pumps.get(pump_journal(found.journal))
            if pump is None or not pump.has_work():
                yield "notification", where, "is claimed by a pump that is not there"
        elif found.state == "claimed":  # it needs a pending input or an open turn: nothing else would free it
            pending = inputs.get(found.journal, {}).get(found.input or 0)
            if pending is None:
                yield "notification", where, f"is claimed by input {found.input}, which is not there"
            elif found.run is None and not pending:
                yield "notification", where, f"is claimed by input {found.input}, which was admitted, but by no run"
            elif found.run is not None and found.run in ended.get(found.journal, ()):
                yield "notification", where, f"is claimed by the run {found.run!r}, which has ended"
    for row in rows:
        if row.notices != waiting[row.id]:
            yield "notification", row.id, f"{row.notices} notifications are said to wait, but {waiting[row.id]} do"
