"""Every rule of the store, as pure functions of rows, a request and the time.

A rule either answers what is to be written or raises the error that the caller gets; it never writes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

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
    PayloadTooLarge,
    WaitUnknown,
)
from holdfast.errors.caller import ApprovalMismatch
from holdfast.errors.store import WaitConsumed
from holdfast.store.checksum import blob_digest
from holdfast.store.contract import Receipt, Settlement, Wait, Work

if TYPE_CHECKING:
    from holdfast.clock import Instant
    from holdfast.store.contract import (
        Accept,
        Append,
        Fork,
        InputRow,
        JournalRow,
        OpenJournal,
        OpenWait,
        SettleNext,
        SettleWait,
    )
    from holdfast.store.limits import StoreLimits
    from holdfast.store.retention import Tombstone


STOP_KEY: Final = "holdfast/cancel"
"""The key of the input that asks for a process to be stopped; that of a turn has the name of the turn behind it."""
SIGNAL_MEMO_PREFIX: Final = "~signalled/"
"""What the names begin with under which signals that have a key are remembered."""


def require_journal(row: JournalRow | None, journal: str) -> JournalRow:
    """The journal, or the error that says it is not there."""
    if row is None:
        raise JournalMissing(journal)
    return row


def check_opening(row: JournalRow | Tombstone, asked: OpenJournal) -> None:
    """An id belongs to one kind, one role and one session for ever, and to one agent unless that hands it over."""
    if (row.kind, row.agent, row.role, row.session) != (asked.kind, asked.agent, asked.role, asked.session):
        # Whoever works for somebody takes nothing from others.
        lent = row.kind == asked.kind == "session" and row.session is not None and asked.session is None
        helps = "fork it to go on from there, or choose another id" if lent else "choose another id"
        raise JournalConflict(asked.journal, _opened_as(row), _opened_as(asked), helps)


def check_metadata(journal: str, known: dict[str, Any], given: dict[str, Any]) -> None:
    """What the host says about a session is said once."""
    if known != given:
        shown = [msgspec.json.encode(each, order="sorted").decode()[:200] for each in (known, given)]
        helps = "open it without metadata, or choose another id"
        raise JournalConflict(journal, f"a session with the metadata {shown[0]}", f"one with {shown[1]}", helps)


def _opened_as(opened: JournalRow | OpenJournal | Tombstone) -> str:
    said = f"a {opened.kind} of {opened.agent!r}" if opened.agent else f"a {opened.kind}"
    if opened.role:
        said += f" with the role {opened.role!r}"
    return f"{said} for {opened.session!r}" if opened.session else said


def check_fork(parent: JournalRow, found: JournalRow | None, asked: Fork) -> None:
    """A fork begins at a record that its parent has. Its id belongs to it for ever."""
    if found is not None:
        if (found.parent, found.parent_seq) != (asked.parent, asked.at):
            taken = _opened_as(found) + _fork_of(found.parent, found.parent_seq)
            wanted = _opened_as(parent) + _fork_of(asked.parent, asked.at)
            raise JournalConflict(found.id, taken, wanted)
        return
    check_served(parent)
    if not 1 <= asked.at <= parent.head:
        raise ForkPointMissing(parent.id, asked.at, parent.head)


def _fork_of(parent: str | None, seq: int) -> str:
    return f" that goes on after record {seq} of {parent!r}" if parent else ""


def lease_left(row: JournalRow, now: Instant) -> int:
    """Milliseconds until the lease expires; 0 or less when it has, or when nobody holds it.

    Within one boot the monotonic clock decides, so a jump of the wall clock takes nobody's lease away. After a restart
    of the machine only the wall clock is left; more than a whole term can't be left, unless that clock was set back.
    """
    if row.owner is None:
        return 0
    if row.owner.boot and row.owner.boot == now.boot:
        return row.mono_expires - now.mono
    left = row.expires - now.wall
    return left if left <= row.term else 0


def decide_claim(row: JournalRow, now: Instant, *, holder_gone: bool) -> int:
    """The epoch of the new lease. A live lease is not given away, not even to the one who holds it."""
    check_served(row)
    left = lease_left(row, now)
    if row.owner is not None and left > 0 and not holder_gone:
        raise LeaseHeld(row.id, row.owner.describe(), left)
    return row.epoch + 1


def check_epoch(row: JournalRow, epoch: int) -> None:
    """A write needs the newest epoch. Expiry alone fences nobody: until someone takes over, the holder may go on."""
    if row.epoch != epoch or row.owner is None:
        raise Fenced(row.id, epoch, row.epoch, row.owner.describe() if row.owner else None)


def check_served(row: JournalRow) -> None:
    """A quarantined journal is not advanced."""
    if row.quarantine is not None:
        raise JournalQuarantined(row.id, row.quarantine)


def plan_append(row: JournalRow, asked: Append) -> int:
    """The head after the append: first the fence, then the place."""
    check_epoch(row, asked.epoch)
    check_served(row)
    if row.head != asked.head:
        raise HeadConflict(row.id, asked.head, row.head)
    return row.head + len(asked.bodies)


def decide_accept(row: JournalRow, found: InputRow | None, asked: Accept) -> Receipt | None:
    """The receipt of an earlier acceptance, or None when the input is new."""
    if found is None:
        check_served(row)
        return None
    if found.digest != asked.digest:
        raise KeyConflict(row.id, asked.key)
    return Receipt(row.id, found.input, found.key, found.at, fresh=False)


def check_room(row: JournalRow, pending: int, limits: StoreLimits) -> None:
    """The inbox has a limit."""
    if pending >= limits.pending_inputs:
        raise InboxFull(row.id, limits.pending_inputs)


def has_work(row: JournalRow) -> bool:
    """Whether somebody should advance this journal: it was woken, or it is in the middle of a run.

    A process without a role is advanced by whoever called it, and by nobody else.
    """
    woken = row.wakes > row.seen or row.status == "running"
    return woken and (row.kind == "session" or row.role is not None) and row.quarantine is None


def as_work(row: JournalRow, now: Instant) -> Work:
    """A journal that has work, and who holds it now."""
    left = max(lease_left(row, now), 0)
    holder = row.owner if left else None
    return Work(row.no, row.id, row.agent, row.wakes, row.status, holder, left, row.kind, row.role, row.session)


def decide_seen(row: JournalRow, seen: int | None) -> int:
    """How many wakes were attended to. More than there were can't be: the next ones would go unnoticed."""
    if seen is None:
        return row.seen
    if seen > row.wakes:
        raise InvalidNumber("seen", seen, f"{row.id!r} was woken {row.wakes:,} times")
    return max(row.seen, seen)


def wakes_waiting(row: JournalRow, found: Wait | None, after: Wait) -> bool:
    """Whether what became of a wait is news for a journal that waits."""
    return row.status == "waiting" and after.state != "open" and (found is None or found.state == "open")


def decide_open_wait(row: JournalRow, found: Wait | None, asked: OpenWait, now: int) -> Wait | None:
    """The wait to write, or None when it is there as it should be. The first deadline and the first question stay.

    A resolution that was buffered counts, unless the wait asks for something: nobody can have answered that before.
    """
    if row.revoked or (found is not None and found.state == "revoked"):
        raise WaitUnknown
    if found is not None and found.opened:
        return None
    opened = Wait(row.id, asked.name, "open", asked.deadline, kind=asked.kind, body=asked.body, at=now)
    if found is None or asked.body is not None:
        return opened
    return replace(opened, state=found.state, payload=found.payload)


def stop_key(run: str) -> str:
    """The key of the input that asks for a turn to be stopped. There is one for each turn: the first request counts."""
    return f"{STOP_KEY}/{run}"


def stop_before_answer(row: JournalRow, found: Wait | None, asked: SettleWait) -> str | None:
    """The key of the request to stop that would make an answer come too late; None where none can."""
    if row.kind != "session" or found is None or found.body is None or asked.state != "resolved":
        return None
    return stop_key(found.name.partition("/")[0])


def decide_settle(row: JournalRow, found: Wait | None, asked: SettleWait, now: Instant) -> Settlement:
    """First writer wins. A resolution that comes before the wait is buffered; one after the deadline is too late.

    A deadline that has passed counts as expired although nobody has written that down yet. An answer that names its
    question settles that one and no other.
    """
    if row.revoked or (found is not None and found.state == "revoked"):
        raise WaitUnknown
    if found is None:
        if asked.state != "resolved" or not asked.early:
            raise WaitUnknown
        return Settlement(Wait(row.id, asked.name, "resolved", None, asked.payload, opened=False), won=True)
    # Whoever has nothing but a token does not say which question is answered.
    blind = asked.state == "resolved" and asked.early and asked.expect_digest is None and found.body is not None
    if blind or (asked.expect_digest is not None and asked.expect_digest != found.digest):
        raise ApprovalMismatch(row.id, found.name, asked.expect_digest or "", found.digest)
    if found.state != "open":
        return Settlement(found, won=False)
    overdue = found.deadline is not None and found.deadline <= now.wall
    if asked.state == "expired" and not overdue:
        return Settlement(found, won=False)
    state = "expired" if overdue else asked.state
    payload = asked.payload if state == "resolved" else None
    return Settlement(replace(found, state=state, payload=payload), won=state == asked.state)


def signal_memo_wait(row: JournalRow, asked: SettleNext) -> Wait:
    """What is remembered of a signal that has a key: that it came, and what it said. Each run has its own signals."""
    run = asked.prefix.partition("/")[0]
    name = f"{SIGNAL_MEMO_PREFIX}{blob_digest(f'{run}/{asked.key}'.encode())[:40]}"
    return Wait(row.id, name, "resolved", None, signal_memo_payload(asked.payload), opened=False)


def signal_memo_payload(payload: bytes) -> bytes:
    """What is remembered of what a signal said."""
    return f'"{blob_digest(payload)}"'.encode()


def decide_repeated_signal(row: JournalRow, known: Wait, memo: Wait, asked: SettleNext) -> Settlement:
    """The same signal again does nothing; another one under its key is a conflict."""
    if row.revoked or known.state == "revoked":
        raise WaitUnknown
    if known.payload != memo.payload:
        raise KeyConflict(row.id, asked.key or "")
    return Settlement(known, won=False)


def next_wait_name(asked: SettleNext, last: str | None) -> str:
    """The name of the wait behind the last one."""
    number = 1 + (0 if last is None else int(last.removeprefix(asked.prefix)))
    if number > asked.most:
        raise PayloadTooLarge("the signals of one name that a process gets", number, asked.most)
    return f"{asked.prefix}{number:08d}"


def decide_consume(row: JournalRow, found: Wait | None, name: str, seq: int) -> Wait:
    """The wait as it is used up by record `seq`. An answer is used once."""
    if found is None:
        raise WaitConsumed(row.id, name, "unknown")
    if found.consumed or found.state != "resolved":
        raise WaitConsumed(row.id, name, "consumed" if found.consumed else found.state)
    return replace(found, consumed=seq)


def earliest(*times: int | None) -> int | None:
    """The first of these moments; None when there is none."""
    return min((time for time in times if time is not None), default=None)


_PREFIX = "hfw1"
_MAX_TOKEN = 4_096


def mint_token(secret: bytes, journal: str, name: str) -> str:
    """The token of a wait: the same for the same wait, at any time."""
    claim = msgspec.json.encode([journal, name])
    return f"{_PREFIX}.{_armour(claim)}.{_armour(_sign(secret, claim))}"


def is_token(text: str) -> bool:
    """Whether this looks like a token, good or bad."""
    return text.startswith(f"{_PREFIX}.")


def verify_token(secret: bytes, token: object) -> tuple[str, str]:
    """Journal and name of the wait that `token` stands for, or `WaitUnknown`."""
    if not isinstance(token, str) or len(token) > _MAX_TOKEN:
        raise WaitUnknown
    prefix, _, rest = token.partition(".")
    body, _, signature = rest.partition(".")
    try:
        claim, signed = _bare(body), _bare(signature)
    except (binascii.Error, ValueError):
        raise WaitUnknown from None
    if not hmac.compare_digest(signed, _sign(secret, claim)) or prefix != _PREFIX:
        raise WaitUnknown
    journal, name = msgspec.json.decode(claim, type=tuple[str, str])
    return journal, name


def _sign(secret: bytes, claim: bytes) -> bytes:
    return hmac.new(secret, b"holdfast:wait:1\n" + claim, hashlib.sha256).digest()


def _armour(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bare(text: str) -> bytes:
    raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _armour(raw) != text:  # one token, one spelling: unused low bits must be zero
        raise ValueError(text)
    return raw
