"""Which input a session takes in: each refusal has its own error, and nothing is refused by accident."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import pytest
from tests.every import every

from holdfast.errors import DuplicateInput, EmptyInput, InputTooLarge, InvalidArgument, RateExceeded, UsageError
from holdfast.messages import Attachment, Text
from holdfast.policy.admission import Admission, find_input_error

FILE: Final = Attachment("f" * 64, "text/plain", 1_000)


def wrong(admission: Admission, *parts: Text | Attachment) -> object:
    return find_input_error(admission, "s", parts)


# ---- by itself -------------------------------------------------------------------------------------------------------


def test_an_ordinary_input_is_taken_in() -> None:
    assert wrong(Admission(), Text("hello")) is None


@pytest.mark.parametrize("words", [(), ("",), (" \n\t",), ("", " ")], ids=repr)
def test_nothing_is_not_taken_in(words: tuple[str, ...]) -> None:
    assert isinstance(wrong(Admission(), *map(Text, words)), EmptyInput)


def test_a_file_without_words_is_something() -> None:
    assert wrong(Admission(), Text(""), FILE) is None


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
    found = wrong(admission, Text("hello"), Text("world"), FILE)
    assert isinstance(found, InputTooLarge)
    assert (found.session, found.what, found.size, found.limit) == ("s", what, size, limit)


def test_as_much_as_may_be_is_taken_in() -> None:
    admission = Admission(max_chars=10, max_parts=3, max_bytes=1_000)
    assert wrong(admission, Text("hello"), Text("world"), FILE) is None


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


@every(
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
