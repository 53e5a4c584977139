"""Which input a session takes in: each refusal has its own error, and nothing is refused by accident."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import (
    DuplicateInput,
    EmptyInput,
    InputTooLarge,
    InvalidArgument,
    RateExceeded,
    UsageError,
)
from holdfast.messages import Attachment, Text
from holdfast.policy.admission import Admission, Arrival, Recent, SameTurn, admit

NOW: Final = 1_700_000_000_000
FILE: Final = Attachment("f" * 64, "text/plain", 1_000)


def came(*parts: Text | Attachment, digest: str = "d", at: int = NOW) -> Arrival:
    return Arrival("s", parts or (Text("hello"),), digest, at)


# ---- by itself -------------------------------------------------------------------------------------------------------


def test_an_ordinary_input_is_taken_in() -> None:
    assert admit(Admission(), came(), ()) is None


@pytest.mark.parametrize("words", [(), ("",), (" \n\t",), ("", " ")], ids=repr)
def test_nothing_is_not_taken_in(words: tuple[str, ...]) -> None:
    arrival = Arrival("s", tuple(Text(word) for word in words), "d", NOW)
    assert isinstance(admit(Admission(), arrival, ()), EmptyInput)


def test_a_file_without_words_is_something() -> None:
    assert admit(Admission(), came(Text(""), FILE), ()) is None


def test_an_empty_input_is_an_argument_that_can_not_be_meant() -> None:
    assert issubclass(EmptyInput, InvalidArgument)


@pytest.mark.parametrize(
    ("admission", "what", "size", "limit"),
    [
        (Admission(max_chars=9), "characters", 10, 9),
        (Admission(max_parts=2), "parts", 3, 2),
        (Admission(max_bytes=999), "bytes", 1_000, 999),
    ],
    ids=["characters", "parts", "bytes"],
)
def test_too_much_is_not_taken_in_and_says_of_what(admission: Admission, what: str, size: int, limit: int) -> None:
    found = admit(admission, came(Text("hello"), Text("world"), FILE), ())
    assert isinstance(found, InputTooLarge)
    assert (found.session, found.what, found.size, found.limit) == ("s", what, size, limit)


def test_as_much_as_may_be_is_taken_in() -> None:
    admission = Admission(max_chars=10, max_parts=3, max_bytes=1_000)
    assert admit(admission, came(Text("hello"), Text("world"), FILE), ()) is None


# ---- duplicates ------------------------------------------------------------------------------------------------------

FIRST: Final = Recent("d", NOW - 5_000, "msg-1", 4)


def test_the_same_may_be_said_twice_unless_told_otherwise() -> None:
    assert admit(Admission(), came(), [FIRST]) is None


def test_a_duplicate_is_refused_with_the_name_of_the_first() -> None:
    found = admit(Admission(duplicates="refuse"), came(), [FIRST])
    assert isinstance(found, DuplicateInput)
    assert (found.session, found.key_of_first, found.at) == ("s", "msg-1", NOW - 5_000)


def test_a_duplicate_is_the_turn_of_the_first() -> None:
    later = Recent("d", NOW - 1_000, "msg-2", 5)
    assert admit(Admission(duplicates="same_turn"), came(), [later, FIRST]) == SameTurn(FIRST)


def test_other_content_is_no_duplicate() -> None:
    assert admit(Admission(duplicates="refuse"), came(digest="e"), [FIRST]) is None


@pytest.mark.parametrize(("ago", "refused"), [(0, True), (9_999, True), (10_000, False), (60_000, False)])
def test_what_was_said_before_the_window_is_forgotten(ago: int, *, refused: bool) -> None:
    found = admit(Admission(duplicates="refuse"), came(), [Recent("d", NOW - ago)])
    assert (found is not None) is refused


@pytest.mark.parametrize(("ahead", "refused"), [(9_999, True), (10_000, False)])
def test_a_clock_that_was_set_back_neither_opens_the_gate_nor_shuts_it_for_long(ahead: int, *, refused: bool) -> None:
    found = admit(Admission(duplicates="refuse"), came(), [Recent("d", NOW + ahead)])
    assert (found is not None) is refused


def test_nor_does_it_for_the_rate() -> None:
    admission = Admission(window=10, per_window=1)
    assert admit(admission, came(), [Recent("x", NOW + 9_999)]) is not None
    assert admit(admission, came(), [Recent("x", NOW + 10_000)]) is None


# ---- rate ------------------------------------------------------------------------------------------------------------

RATE: Final = Admission(window=timedelta(seconds=10), per_window=3)


def test_as_many_come_in_as_may_in_the_window() -> None:
    assert admit(RATE, came(), [Recent("x", NOW - 1), Recent("y", NOW - 2)]) is None


def test_one_more_is_refused_until_the_window_has_moved_on() -> None:
    recent = [Recent("x", NOW - 9_000), Recent("y", NOW - 5_000), Recent("z", NOW)]
    found = admit(RATE, came(), recent)
    assert isinstance(found, RateExceeded)
    assert (found.session, found.per_window, found.window_ms, found.retry_at) == ("s", 3, 10_000, NOW + 1_000)


@given(st.lists(st.integers(0, 30_000), max_size=12), st.integers(1, 5))
def test_there_is_room_at_the_time_that_was_told_and_not_before(ago: list[int], per_window: int) -> None:
    admission = Admission(window=10, per_window=per_window)
    recent = [Recent(str(number), NOW - span) for number, span in enumerate(ago)]
    found = admit(admission, came(), recent)
    if found is None:
        return
    assert isinstance(found, RateExceeded)
    assert admit(admission, came(at=found.retry_at), recent) is None
    assert admit(admission, came(at=found.retry_at - 1), recent) is not None


def test_a_duplicate_is_told_as_one_also_where_too_much_is_said() -> None:
    admission = Admission(duplicates="refuse", per_window=1)
    assert isinstance(admit(admission, came(), [FIRST]), DuplicateInput)


# ---- how far back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("admission", "span"),
    [
        (Admission(), 0),
        (Admission(per_window=5, window=30), 30_000),
        (Admission(duplicates="refuse", duplicate_window=5), 5_000),
        (Admission(duplicates="refuse", duplicate_window=5, per_window=5, window=30), 30_000),
    ],
    ids=["nothing", "rate", "duplicates", "both"],
)
def test_no_more_is_looked_at_than_is_needed(admission: Admission, span: int) -> None:
    assert admission.looks_back_ms == span


@pytest.mark.parametrize(
    "given",
    [
        {"max_chars": 0},
        {"max_parts": 0},
        {"max_bytes": -1},
        {"per_window": 0},
        {"per_window": 10_001},
        {"per_window": 1.5},
        {"window": 0},
        {"window": "1m"},
        {"duplicate_window": timedelta(0)},
        {"duplicates": "never"},
    ],
    ids=str,
)
def test_an_admission_that_can_not_be_meant_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Admission(**given)


@pytest.mark.parametrize("error", [EmptyInput(), DuplicateInput("s", None, 10**18), RateExceeded("s", 1, 1, -(10**18))])
def test_an_error_can_always_be_told(error: UsageError) -> None:
    assert str(error)
