"""The rules of admission, one by one."""

from __future__ import annotations

import pytest

from holdfast.errors.caller import DuplicateInput, RateExceeded
from holdfast.store import AdmissionWindow, Receipt
from holdfast.store.contract import InputRow, JournalRow
from holdfast.store.inbox import check_rate, decide_duplicate, window_around

ROW = JournalRow(1, "j", "session", None, "idle", 1, 0, 0)
FIRST = InputRow(4, "k", "d", b"1", 50, counted=True)


def test_a_window_holds_less_than_its_width_to_either_side() -> None:
    assert window_around(1_000, 100) == (901, 1_099)


def test_there_is_room_while_the_nth_has_left_the_window() -> None:
    check_rate(ROW, AdmissionWindow(per_window=1), None)


def test_no_rate_is_no_limit() -> None:
    check_rate(ROW, AdmissionWindow(), 5)


def test_a_refusal_tells_when_there_is_room_again() -> None:
    with pytest.raises(RateExceeded) as caught:
        check_rate(ROW, AdmissionWindow(per_window=3, window_ms=100), 950)
    assert (caught.value.session, caught.value.per_window, caught.value.retry_at) == ("j", 3, 1_050)


def test_what_was_not_said_before_is_taken_in() -> None:
    assert decide_duplicate(ROW, None, AdmissionWindow(duplicates="refuse")) is None


def test_what_was_said_before_is_the_same_input() -> None:
    same = AdmissionWindow(duplicates="same_turn")
    assert decide_duplicate(ROW, FIRST, same) == Receipt("j", 4, "k", 50, fresh=False)


def test_what_was_said_before_may_be_refused() -> None:
    with pytest.raises(DuplicateInput) as caught:
        decide_duplicate(ROW, FIRST, AdmissionWindow(duplicates="refuse"))
    assert (caught.value.session, caught.value.key_of_first, caught.value.at) == ("j", "k", 50)
