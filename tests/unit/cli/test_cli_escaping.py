"""What is shown of a call is what is there: nothing hides, nothing turns around, and it is still the same JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.cli.output import BAR, CONTINUATION, WIDTH, escape_invisible, fence_lines, format_json

HIDDEN = [
    *("\x00", "\x07", "\x1b", "\x7f", "\x85", "\x9b", "\r", "\n"),
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
    *map(chr, range(0x200B, 0x2010)),
    *("\u2060", "\ufeff", "\u00ad", "\u061c", "\u2028", "\u2029"),
    *("\U000e0001", "\U000e0041", "\U000e007f", "\U000e0100", "\ufe0f", "\ue000"),
    *("\u00a0", "\u2003", "\u3000", "\u3164", "\u115f", "\u034f", "\u2800"),
]


@every("character", HIDDEN, ids=lambda character: f"U+{ord(character):04X}")
def test_a_character_that_nobody_sees_is_escaped(character: str) -> None:
    shown = escape_invisible(f"a{character}b")
    assert (shown[0], shown[1], shown[-1]) == ("a", "\\", "b")
    assert shown.isascii()


@every("text", ["plain words", "Grüße", "日本語", "e\u0301", "שלום", "🎉", "a\\b"])
def test_what_can_be_seen_stays_as_it_is(text: str) -> None:
    assert escape_invisible(text) == text


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text()), max_size=4))
def test_json_that_is_shown_is_json_of_the_same_value(value: dict[str, object]) -> None:
    shown = format_json(value)
    assert json.loads(shown) == value
    assert escape_invisible(shown.replace("\n", "")) == shown.replace("\n", "")


def test_an_escape_that_stands_in_the_text_is_not_taken_for_the_character() -> None:
    assert format_json("\\u202e") == r'"\\u202e"'
    assert format_json("\u202e") == r'"\u202e"'


@pytest.mark.parametrize(("length", "lines"), [(WIDTH - len('{"a": ""}'), 1), (WIDTH, 3)])
def test_long_json_takes_several_lines(length: int, lines: int) -> None:
    assert len(format_json({"a": "x" * length}).split("\n")) == lines


def test_a_line_that_a_terminal_would_wrap_is_broken_behind_a_sign() -> None:
    assert list(fence_lines(["x" * 50], 22)) == [
        f"{BAR}{'x' * 20}",
        f"{CONTINUATION}{'x' * 20}",
        f"{CONTINUATION}{'x' * 10}",
    ]


def test_a_line_is_broken_by_the_room_that_its_signs_take() -> None:
    assert list(fence_lines(["日" * 15], 22)) == [f"{BAR}{'日' * 10}", f"{CONTINUATION}{'日' * 5}"]


def test_lines_are_whole_where_there_is_no_terminal() -> None:
    assert list(fence_lines(["x" * 500, ""], None)) == [f"{BAR}{'x' * 500}", BAR]
