"""The rules about waits that ask for something, and about using their answers, one by one."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from msgspec.structs import replace

from holdfast.clock import Instant
from holdfast.errors import WaitUnknown
from holdfast.errors.caller import ApprovalMismatch
from holdfast.errors.store import WaitConsumed
from holdfast.store import Settlement, Wait, waits
from holdfast.store.contract import JournalRow, blob_digest
from holdfast.store.sqlite.rows import wait_crc
from holdfast.store.waits import OpenWait, SettleWait

NOW = Instant(wall=1_000_000, mono=5, boot="b")
ROW = JournalRow(1, "j", "session", None, "idle", 1, 0, 0)
BODY = b"refund 900"
ASKED = Wait("j", "w", "open", None, kind="approval", body=BODY, at=7)
RESOLVED = replace(ASKED, state="resolved", payload=b"1")
EARLY = Wait("j", "w", "resolved", None, b"1", opened=False)


def answer(**how: Any) -> SettleWait:
    return SettleWait("j", "w", "resolved", b"1", **how)


def test_a_wait_keeps_what_it_asks_and_when() -> None:
    opened = waits.decide_open_wait(ROW, None, OpenWait("j", "w", 9, "approval", BODY), 7)
    assert opened == replace(ASKED, deadline=9)


def test_an_early_resolution_counts_for_a_wait_that_asks_nothing() -> None:
    opened = waits.decide_open_wait(ROW, EARLY, OpenWait("j", "w", None, "signal"), 7)
    assert opened == Wait("j", "w", "resolved", None, b"1", kind="signal", at=7)


def test_an_early_resolution_does_not_count_for_a_wait_that_asks_something() -> None:
    assert waits.decide_open_wait(ROW, EARLY, OpenWait("j", "w", None, "approval", BODY), 7) == ASKED


def test_an_answer_about_the_question_settles_it() -> None:
    settled = waits.decide_settle(ROW, ASKED, answer(expect_digest=blob_digest(BODY)), NOW)
    assert settled == Settlement(RESOLVED, won=True)


@pytest.mark.parametrize("found", [ASKED, RESOLVED, replace(ASKED, body=None), replace(ASKED, deadline=1)])
def test_an_answer_about_something_else_is_refused_in_every_state(found: Wait) -> None:
    with pytest.raises(ApprovalMismatch) as caught:
        waits.decide_settle(ROW, found, answer(expect_digest="0" * 64), NOW)
    assert caught.value.actual == found.digest


def test_an_answer_to_a_revoked_wait_learns_nothing_of_its_question() -> None:
    with pytest.raises(WaitUnknown):
        waits.decide_settle(ROW, replace(ASKED, state="revoked"), answer(expect_digest="0" * 64), NOW)


def test_an_answer_that_may_not_come_early_needs_a_wait() -> None:
    with pytest.raises(WaitUnknown):
        waits.decide_settle(ROW, None, answer(early=False), NOW)


def test_a_token_alone_answers_no_question() -> None:
    with pytest.raises(ApprovalMismatch):
        waits.decide_settle(ROW, ASKED, answer(), NOW)


def test_an_expired_wait_is_not_resolved() -> None:
    settled = waits.decide_settle(ROW, replace(ASKED, deadline=NOW.wall), answer(early=False), NOW)
    assert (settled.won, settled.wait.state, settled.wait.payload) == (False, "expired", None)


def test_an_answer_is_used_by_a_record() -> None:
    assert waits.decide_consume(ROW, RESOLVED, "w", 5) == replace(RESOLVED, consumed=5)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (None, "unknown"),
        (ASKED, "open"),
        (replace(ASKED, state="expired"), "expired"),
        (replace(RESOLVED, consumed=3), "consumed"),
    ],
)
def test_what_is_no_unused_answer_is_not_used(found: Wait | None, state: str) -> None:
    with pytest.raises(WaitConsumed) as caught:
        waits.decide_consume(ROW, found, "w", 5)
    assert (caught.value.name, caught.value.state) == ("w", state)


def test_a_wait_without_a_question_has_the_checksum_of_schema_3() -> None:
    wait = Wait("j", "w", "resolved", 5, b"1", at=9)
    assert wait_crc(wait) == crc32(b"1", crc32(b"j\0w\0resolved\x005\0False\0"))


@pytest.mark.parametrize(
    "other",
    [
        replace(RESOLVED, body=b"refund 901"),
        replace(RESOLVED, body=None),
        replace(RESOLVED, kind=None),
        replace(RESOLVED, consumed=1),
        replace(RESOLVED, payload=b"2"),
    ],
)
def test_the_checksum_of_a_wait_covers_its_question_and_its_use(other: Wait) -> None:
    assert wait_crc(other) != wait_crc(RESOLVED)
