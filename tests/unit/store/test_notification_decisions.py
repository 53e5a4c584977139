"""The rules of notifications, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.every import every

from holdfast.errors import NotificationUnknown
from holdfast.records import Ended
from holdfast.store import Notify, StoreLimits
from holdfast.store.notifications import after_run, backoff, draft, may_carry, require, settle

if TYPE_CHECKING:
    from holdfast.records import EndStatus

LIMITS = StoreLimits(max_attempts=3)
QUEUED = draft(Notify("s", "task", "done"), 1_000)
CLAIMED = replace(QUEUED, state="claimed", attempts=1, input=1, run="t1")


def test_each_pause_is_twice_as_long_as_the_one_before_up_to_five_minutes() -> None:
    pauses = [backoff(attempts) // 1_000 for attempts in range(1, 12)]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@pytest.mark.parametrize("attempts", [0, -5, 10**9])
def test_a_pause_is_never_out_of_its_bounds(attempts: int) -> None:
    assert 1_000 <= backoff(attempts) <= 300_000


@every(
    ("status", "unstarted", "state"),
    [
        ("completed", False, "acknowledged"),
        ("limit", False, "acknowledged"),
        ("failed", False, "queued"),
        ("cancelled", False, "queued"),
        ("cancelled", True, "queued"),
        ("limit", True, "queued"),
    ],
)
def test_the_end_of_a_turn_decides_about_what_it_carried(status: EndStatus, unstarted: bool, state: str) -> None:
    ended = Ended(at=1, run="t1", status=status, unstarted=unstarted)
    assert after_run(CLAIMED, ended, 2_000, LIMITS).state == state


def test_the_last_attempt_is_the_last() -> None:
    ended = Ended(at=1, run="t1", status="failed")
    assert after_run(replace(CLAIMED, attempts=2), ended, 2_000, LIMITS).state == "queued"
    dead = after_run(replace(CLAIMED, attempts=3), ended, 2_000, LIMITS)
    assert (dead.state, dead.reason) == ("dead", "carried 3 times; the last time, the turn t1 ended as failed")


def test_what_comes_back_is_due_later_and_wakes_its_journal_again() -> None:
    back = after_run(replace(CLAIMED, attempts=2), Ended(at=1, run="t1", status="failed"), 5_000, LIMITS)
    assert (back.due, back.woken) == (7_000, False)


@every(
    ("change", "ready"),
    [
        ({}, True),
        ({"due": 1_001}, False),
        ({"due": 1_000}, True),
        ({"expires": 1_000}, False),
        ({"expires": 1_001}, True),
        ({"state": "claimed"}, False),
        ({"state": "dead"}, False),
    ],
    ids=str,
)
def test_only_what_is_queued_and_due_and_not_expired_may_be_carried(change: dict[str, Any], ready: bool) -> None:
    assert may_carry(replace(QUEUED, **change), 1_000) is ready


def test_one_that_expired_is_not_tried_again_by_hand() -> None:
    assert settle(replace(QUEUED, state="dead", expires=5), "queued", 5) is None


def test_a_notification_of_another_journal_is_unknown() -> None:
    with pytest.raises(NotificationUnknown, match="no notification 0 of 'other'"):
        require(QUEUED, 0, "other")
