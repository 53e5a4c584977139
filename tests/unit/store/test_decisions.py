"""The rules of the store as pure functions of rows, a request and the time."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest
from tests.every import every

from holdfast.clock import Instant
from holdfast.errors import (
    Fenced,
    ForkPointMissing,
    HeadConflict,
    HoldfastError,
    InboxFull,
    InvalidNumber,
    JournalConflict,
    JournalQuarantined,
    KeyConflict,
    LeaseHeld,
    WaitUnknown,
)
from holdfast.records import JournalKind, Started, Status
from holdfast.store import Owner, Receipt, Settlement, StoreLimits, Wait, Work, inbox, transaction, waits
from holdfast.store.contract import InputRow, JournalRow, WaitState
from holdfast.store.inbox import Accept
from holdfast.store.transaction import Append, Fork, OpenJournal
from holdfast.store.waits import OpenWait, SettleWait

NOW = Instant(wall=1_000_000, mono=5_000, boot="boot-1")
OWNER = Owner("abc", 42, 7, "pid:[1]", "boot-1")


TERM = 1_000


def row(
    *,
    owner: Owner | None = OWNER,
    mono_expires: int = NOW.mono + 100,
    expires: int = NOW.wall + 100,
    quarantine: str | None = None,
    revoked: bool = False,
) -> JournalRow:
    return JournalRow(
        *(1, "j", "session", "clerk", "idle", 3, 1, 1, 4, owner, expires, mono_expires, TERM, quarantine),
        revoked=revoked,
    )


@pytest.mark.parametrize(
    ("kind", "agent", "fits"),
    [
        ("session", "clerk", True),
        ("process", "clerk", False),
        ("session", "cook", False),
        ("session", None, False),
    ],
)
def test_a_journal_is_opened_again_only_as_what_it_is(
    kind: JournalKind,
    agent: str | None,
    fits: bool,
) -> None:
    asked = OpenJournal("j", kind, agent)
    if fits:
        transaction.check_opening(row(), asked)
        return
    with pytest.raises(JournalConflict) as caught:
        transaction.check_opening(row(), asked)
    assert caught.value.recorded == "a session of 'clerk'"


# ---- forks ----

FORKED = msgspec.structs.replace(row(), id="f", parent="j", parent_seq=2)
PLAIN = msgspec.structs.replace(row(), id="f")


@every(
    ("parent", "found", "at", "refused"),
    [
        (row(), None, 1, None),
        (row(), None, 3, None),
        (row(), None, 0, ForkPointMissing),
        (row(), None, -1, ForkPointMissing),
        (row(), None, 4, ForkPointMissing),
        (row(quarantine="bad"), None, 1, JournalQuarantined),
        (row(), FORKED, 2, None),
        (row(quarantine="bad"), FORKED, 2, None),
        (row(), FORKED, 1, JournalConflict),
        (row(), FORKED, 9, JournalConflict),
        (row(), PLAIN, 2, JournalConflict),
    ],
)
def test_a_fork_needs_a_record_to_go_on_from_and_an_id_of_its_own(
    parent: JournalRow, found: JournalRow | None, at: int, refused: type[HoldfastError] | None
) -> None:
    if refused is None:
        transaction.check_fork(parent, found, Fork("f", "j", at))
        return
    with pytest.raises(refused):
        transaction.check_fork(parent, found, Fork("f", "j", at))


def test_a_refused_fork_names_what_has_the_id_and_what_was_asked() -> None:
    with pytest.raises(JournalConflict) as caught:
        transaction.check_fork(row(), FORKED, Fork("f", "j", 1))
    assert caught.value.recorded == "a session of 'clerk' that goes on after record 2 of 'j'"
    assert caught.value.asked == "a session of 'clerk' that goes on after record 1 of 'j'"


# ---- work ----


def working(
    *,
    wakes: int = 0,
    seen: int = 0,
    status: Status = "idle",
    kind: JournalKind = "session",
    quarantine: str | None = None,
) -> JournalRow:
    return msgspec.structs.replace(row(quarantine=quarantine), wakes=wakes, seen=seen, status=status, kind=kind, id="j")


@every(
    ("found", "work"),
    [
        (working(), False),
        (working(wakes=1), True),
        (working(wakes=1, seen=1), False),
        (working(wakes=2, seen=1, status="waiting"), True),
        (working(wakes=1, seen=1, status="waiting"), False),
        (working(status="running"), True),
        (working(wakes=1, kind="process"), False),
        (working(status="running", kind="process"), False),
        (working(wakes=1, quarantine="bad"), False),
        (working(status="running", quarantine="bad"), False),
    ],
)
def test_work_is_what_was_woken_or_runs(found: JournalRow, work: bool) -> None:
    assert found.has_work() is work


@pytest.mark.parametrize(
    ("found", "holder", "left"),
    [
        (row(), OWNER, 100),
        (row(mono_expires=NOW.mono), None, 0),
        (row(mono_expires=NOW.mono - 50), None, 0),
        (row(owner=None), None, 0),
    ],
)
def test_work_names_a_holder_whose_lease_lasts(found: JournalRow, holder: Owner | None, left: int) -> None:
    assert found.as_work(NOW) == Work(1, "j", "clerk", 0, "idle", holder, left)


@pytest.mark.parametrize(("given", "after"), [(None, 2), (0, 2), (2, 2), (3, 3), (5, 5)])
def test_what_was_seen_never_shrinks(given: int | None, after: int) -> None:
    assert transaction.decide_seen(working(wakes=5, seen=2), given) == after


def test_more_than_there_was_can_not_have_been_seen() -> None:
    with pytest.raises(InvalidNumber):
        transaction.decide_seen(working(wakes=5, seen=2), 6)


# ---- leases: what is left of one, and who may have it ----

OTHER_BOOT = msgspec.structs.replace(OWNER, boot="boot-0")
NO_BOOT = msgspec.structs.replace(OWNER, boot="")


@every(
    ("found", "left"),
    [
        (row(owner=None, mono_expires=NOW.mono + 999), 0),
        (row(mono_expires=NOW.mono + 100, expires=0), 100),
        (row(mono_expires=NOW.mono, expires=NOW.wall + 999), 0),
        (row(mono_expires=NOW.mono - 50, expires=NOW.wall + 999), -50),
        (row(owner=OTHER_BOOT, mono_expires=0, expires=NOW.wall + 7), 7),
        (row(owner=OTHER_BOOT, mono_expires=NOW.mono + 999, expires=NOW.wall - 1), -1),
        (row(owner=NO_BOOT, mono_expires=NOW.mono + 999, expires=NOW.wall + 8), 8),
        (row(owner=OTHER_BOOT, mono_expires=0, expires=NOW.wall + TERM), TERM),
        (row(owner=OTHER_BOOT, mono_expires=0, expires=NOW.wall + TERM + 1), 0),
    ],
)
def test_within_one_boot_the_monotonic_clock_decides_and_else_the_wall_clock(found: JournalRow, left: int) -> None:
    assert found.lease_left(NOW) == left


def test_two_systems_that_do_not_name_their_boot_go_by_the_wall_clock() -> None:
    nameless = Instant(NOW.wall, NOW.mono, "")
    assert row(owner=NO_BOOT, mono_expires=0, expires=NOW.wall + 8).lease_left(nameless) == 8


@every(
    ("found", "gone", "refused"),
    [
        (row(owner=None), False, None),
        (row(mono_expires=NOW.mono), False, None),
        (row(mono_expires=NOW.mono + 1), False, LeaseHeld),
        (row(mono_expires=NOW.mono + 1), True, None),
        (row(owner=None, quarantine="bad"), False, JournalQuarantined),
        (row(mono_expires=NOW.mono + 1, quarantine="bad"), True, JournalQuarantined),
    ],
)
def test_a_lease_is_given_when_it_is_free_expired_or_its_holder_is_gone(
    found: JournalRow,
    gone: bool,
    refused: type[HoldfastError] | None,
) -> None:
    if refused is None:
        assert transaction.decide_claim(found, NOW, holder_gone=gone) == found.epoch + 1
        return
    with pytest.raises(refused):
        transaction.decide_claim(found, NOW, holder_gone=gone)


def test_a_refused_claim_names_the_holder_and_how_long_it_lasts() -> None:
    with pytest.raises(LeaseHeld) as caught:
        transaction.decide_claim(row(), NOW, holder_gone=False)
    assert (caught.value.journal, caught.value.holder, caught.value.expires_in_ms) == ("j", OWNER.describe(), 100)


@pytest.mark.parametrize(
    ("found", "epoch", "holder"),
    [
        (row(), 3, OWNER.describe()),
        (row(), 5, OWNER.describe()),
        (row(), 0, OWNER.describe()),
        (row(owner=None), 4, None),
        (row(owner=None), 3, None),
    ],
)
def test_only_the_newest_epoch_that_was_not_given_back_may_write(
    found: JournalRow, epoch: int, holder: str | None
) -> None:
    with pytest.raises(Fenced) as caught:
        found.check_epoch(epoch)
    assert (caught.value.epoch, caught.value.current, caught.value.holder) == (epoch, 4, holder)


def test_expiry_alone_fences_nobody() -> None:
    row(mono_expires=0, expires=0).check_epoch(4)


# ---- appends ----


def append(*, epoch: int = 4, head: int = 3, count: int = 2) -> Append:
    return Append("j", epoch, head, [Started(at=1, run="r")] * count, [b"{}"] * count)


@every(
    ("found", "asked", "expected"),
    [
        (row(), append(), 5),
        (row(), append(count=1), 4),
        (row(mono_expires=0, expires=0), append(), 5),
        (row(), append(head=2), HeadConflict),
        (row(), append(head=4), HeadConflict),
        (row(), append(epoch=3), Fenced),
        (row(), append(epoch=3, head=9), Fenced),
        (row(owner=None), append(), Fenced),
        (row(quarantine="bad"), append(), JournalQuarantined),
        (row(quarantine="bad"), append(head=9), JournalQuarantined),
        (row(quarantine="bad"), append(epoch=3), Fenced),
    ],
)
def test_an_append_passes_the_fence_first_and_then_its_place(
    found: JournalRow, asked: Append, expected: int | type[HoldfastError]
) -> None:
    if isinstance(expected, int):
        assert transaction.plan_append(found, asked) == expected
        return
    with pytest.raises(expected):
        transaction.plan_append(found, asked)


# ---- inbox ----

EARLIER = InputRow(7, "k", "digest", b"1", 99)
ADMITTED = msgspec.structs.replace(EARLIER, pending=False)


@every(
    ("found", "earlier", "digest", "expected"),
    [
        (row(), None, "digest", None),
        (row(), EARLIER, "digest", Receipt("j", 7, "k", 99, fresh=False)),
        (row(), ADMITTED, "digest", Receipt("j", 7, "k", 99, fresh=False)),
        (row(), EARLIER, "other", KeyConflict),
        (row(), ADMITTED, "other", KeyConflict),
        (row(quarantine="bad"), None, "digest", JournalQuarantined),
        (row(quarantine="bad"), EARLIER, "digest", Receipt("j", 7, "k", 99, fresh=False)),
        (row(quarantine="bad"), EARLIER, "other", KeyConflict),
    ],
)
def test_an_input_is_new_known_or_in_conflict(
    found: JournalRow, earlier: InputRow | None, digest: str, expected: Receipt | type[HoldfastError] | None
) -> None:
    asked = Accept("j", "k", digest, b"1")
    if isinstance(expected, type):
        with pytest.raises(expected):
            inbox.decide_accept(found, earlier, asked)
        return
    assert inbox.decide_accept(found, earlier, asked) == expected


@pytest.mark.parametrize(("pending", "full"), [(0, False), (2, False), (3, True), (4, True)])
def test_the_inbox_is_full_at_its_limit(pending: int, full: bool) -> None:
    limits = StoreLimits(pending_inputs=3)
    if not full:
        inbox.check_inbox_room(row(), pending, limits)
        return
    with pytest.raises(InboxFull) as caught:
        inbox.check_inbox_room(row(), pending, limits)
    assert caught.value.limit == 3


# ---- waits ----

DUE, LATER = NOW.wall, NOW.wall + 1


def wait(
    state: WaitState = "open", deadline: int | None = None, payload: bytes | None = None, *, opened: bool = True
) -> Wait:
    return Wait("j", "w", state, deadline, payload, opened)


BUFFERED = wait("resolved", payload=b"1", opened=False)


@every(
    ("found", "written"),
    [
        (None, wait(deadline=LATER)),
        (wait(deadline=5), wait(deadline=5)),
        (wait(), wait()),
        (wait("resolved", payload=b"1"), wait("resolved", payload=b"1")),
        (wait("expired", 5), wait("expired", 5)),
        (wait("cancelled"), wait("cancelled")),
        (BUFFERED, wait("resolved", LATER, b"1")),
    ],
)
def test_opening_a_wait_writes_it_once(found: Wait | None, written: Wait | None) -> None:
    assert waits.decide_open_wait(row(), found, OpenWait("j", "w", LATER), 0) == written


@every(
    ("status", "found", "after", "news"),
    [
        ("waiting", wait(), wait("resolved"), True),
        ("waiting", wait(), wait("expired"), True),
        ("waiting", wait(), wait("cancelled"), True),
        ("waiting", None, BUFFERED, True),
        ("waiting", wait(), wait(), False),
        ("waiting", wait("resolved"), wait("resolved"), False),
        ("running", wait(), wait("resolved"), False),
        ("idle", None, BUFFERED, False),
    ],
)
def test_a_journal_that_waits_is_woken_when_a_wait_is_settled(
    status: Status,
    found: Wait | None,
    after: Wait,
    news: bool,
) -> None:
    assert waits.wakes_waiting(working(status=status), found, after) is news


Settling = Literal["resolved", "expired", "cancelled"]


@every(
    ("found", "asked", "after", "won"),
    [
        (None, "resolved", wait("resolved", payload=b"1", opened=False), True),
        (wait(), "resolved", wait("resolved", payload=b"1"), True),
        (wait(deadline=LATER), "resolved", wait("resolved", LATER, b"1"), True),
        (wait(deadline=DUE), "resolved", wait("expired", DUE), False),
        (wait(), "expired", wait(), False),
        (wait(deadline=LATER), "expired", wait(deadline=LATER), False),
        (wait(deadline=DUE), "expired", wait("expired", DUE), True),
        (wait(), "cancelled", wait("cancelled"), True),
        (wait(deadline=LATER), "cancelled", wait("cancelled", LATER), True),
        (wait(deadline=DUE), "cancelled", wait("expired", DUE), False),
        (wait("resolved", payload=b"0"), "resolved", wait("resolved", payload=b"0"), False),
        (wait("resolved", DUE, b"0"), "expired", wait("resolved", DUE, b"0"), False),
        (wait("expired", DUE), "resolved", wait("expired", DUE), False),
        (wait("cancelled"), "resolved", wait("cancelled"), False),
        (BUFFERED, "resolved", BUFFERED, False),
        (BUFFERED, "cancelled", BUFFERED, False),
    ],
)
def test_the_first_to_settle_a_wait_decides(
    found: Wait | None,
    asked: Settling,
    after: Wait,
    won: bool,
) -> None:
    request = SettleWait("j", "w", asked, b"1" if asked == "resolved" else None)
    assert waits.decide_settle(row(), found, request, NOW) == Settlement(after, won=won)


@every("asked", ["resolved", "expired", "cancelled"])
@every("found", [None, wait(), BUFFERED, wait("revoked")])
def test_a_revoked_wait_is_unknown_whatever_is_asked(found: Wait | None, asked: Settling) -> None:
    alone = found is not None and found.state == "revoked"
    with pytest.raises(WaitUnknown):
        waits.decide_settle(row(revoked=not alone), found, SettleWait("j", "w", asked), NOW)
    with pytest.raises(WaitUnknown):
        waits.decide_open_wait(row(revoked=not alone), found, OpenWait("j", "w", None), 0)


@pytest.mark.parametrize("asked", ["expired", "cancelled"])
def test_only_a_resolution_may_come_before_its_wait(asked: Settling) -> None:
    with pytest.raises(WaitUnknown):
        waits.decide_settle(row(), None, SettleWait("j", "w", asked), NOW)
