"""Results that are too long for a model: cut without harm, kept whole, read page by page."""

from __future__ import annotations

import re
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.every import every

from holdfast.messages import ToolCall
from holdfast.toolkits.tasks import read_result
from holdfast.tools import Bound, Complaint, ToolRetry
from holdfast.tools.results import (
    PAGE_BYTES,
    KeptResult,
    as_text,
    cut_text,
    is_boundary,
    long_json,
    read_page,
    render_page,
)

WHOLE = KeptResult("ab12", "read_result")
LINES = "".join(f"line {n}\n" for n in range(1, 10_001))
NOTE = re.compile(r"\[\.\.\. ([\d,]+) characters(?: \(([\d,]+) lines\))? are left out here\.")


def made(text: str, limit: int = 1_000, whole: KeptResult | None = WHOLE) -> str:
    found = cut_text(text, limit, whole)
    assert found is not text
    return found


# ---- cutting ---------------------------------------------------------------------------------------------------------


def test_a_text_that_fits_is_left_alone() -> None:
    text = "x" * 1_000
    assert cut_text(text, 1_000) is text


def test_the_beginning_and_the_end_are_kept_in_whole_lines() -> None:
    shown = made(LINES).splitlines()
    assert (shown[0], shown[-1]) == ("line 1", "line 10000")
    assert [line for line in shown if not line.startswith("line ")] == [shown[len(shown) // 2]] or (
        sum(line.startswith("[...") for line in shown) == 1
    )
    assert all(re.fullmatch(r"line \d+", line) or line.startswith("[...") for line in shown)


def test_the_note_says_how_much_is_missing() -> None:
    found = made(LINES)
    note = NOTE.search(found)
    assert note is not None
    head, _, tail = found.partition(note[0])
    tail = tail.partition("]\n")[2]
    assert int(note[1].replace(",", "")) == len(LINES) - len(head) - len(tail)
    assert int(cast("str", note[2]).replace(",", "")) == 10_000 - head.count("\n") - tail.count("\n")


def test_the_note_says_where_to_read_on() -> None:
    found = made(LINES)
    start = found.partition("[...")[0].count("\n") + 1
    assert f'Read them with read_result(id="ab12", start={start}).]' in found


def test_what_a_model_can_not_read_is_said_to_be_out_of_its_reach() -> None:
    assert "You have no tool that reads them: ask for less.]" in made(LINES, whole=None)


def test_one_giant_line_is_cut_within_it_and_the_note_says_at_which_byte() -> None:
    text = "é" * 1_000_000
    found = made(text)
    head = found.partition("\n")[0]
    assert f"start=1, skip={len(head.encode())})" in found
    assert found.startswith("éé")
    assert found.endswith("éé")


def test_a_short_line_before_a_giant_one_does_not_use_up_the_room() -> None:
    assert len(made("short\n" + "x" * 100_000)) > 700


@every(
    ("text", "at"),
    [
        ("e\u0301", 1),
        ("a\U0001f469\u200d\U0001f4bb", 2),
        ("a\U0001f469\u200d\U0001f4bb", 3),
        ("\U0001f44d\U0001f3fd", 1),
        ("\U0001f1ee\U0001f1f9", 1),
        ("\u2764\ufe0f", 1),
        ("\r\n", 1),
        ("\ud83d\ude00", 1),
    ],
    ids=ascii,
)
def test_what_is_seen_as_one_character_is_not_cut(text: str, at: int) -> None:
    assert not is_boundary(text, at)


def test_flags_are_cut_between_two_of_them() -> None:
    flags = "\U0001f1ee\U0001f1f9" * 3
    assert [is_boundary(flags, at) for at in range(1, 6)] == [False, True, False, True, False]


@pytest.mark.parametrize(
    "unit", ["e\u0301", "\U0001f469\u200d\U0001f4bb", "\U0001f1ee\U0001f1f9", "\ud83d\ude00", "\r\n"], ids=ascii
)
def test_a_line_of_such_characters_is_cut_between_them(unit: str) -> None:
    for extra in range(12):
        text = "x" * extra + unit * 5_000
        found = made(text, 1_000 + extra)
        head, _, rest = found.partition("\n[...") if unit != "\r\n" else found.partition("[...")
        tail = rest.partition("]\n")[2]
        assert (len(head) - extra) % len(unit) == 0
        assert len(tail) % len(unit) == 0


def test_a_line_of_nothing_but_marks_is_cut_all_the_same() -> None:
    assert len(made("\u0301" * 100_000)) <= 1_000


@given(
    st.text(st.characters(exclude_categories=()), min_size=1, max_size=200),
    st.integers(5, 60),
    st.integers(1_000, 2_000),
)
@example("\n", 60, 1_000)
def test_any_text_is_cut_within_the_limit(piece: str, times: int, limit: int) -> None:
    text = piece * times * 100
    found = cut_text(text, limit, WHOLE)
    assert len(found) <= limit
    if found is not text:
        assert len(text) > limit
        assert text.startswith(found[:50])
        assert text.endswith(found[-50:])


def test_a_huge_text_is_cut_without_copying_it() -> None:
    text = "0123456789abcde\n" * 4_000_000  # 64 MB
    tracemalloc.start()
    try:
        cut_text(text, 50_000, WHOLE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


# ---- what a function returned ----------------------------------------------------------------------------------------


def test_bytes_are_the_text_they_hold() -> None:
    assert as_text("naïve\n".encode()) == "naïve\n"


def test_bytes_that_are_not_utf_8_are_shown_as_their_escapes() -> None:
    assert as_text(b"caf\xe9 is a word in latin-1\n") == "caf\\xe9 is a word in latin-1\n"


@pytest.mark.parametrize(
    "data", [bytes(range(256)) * 10, b"\x00" * 100, b"\xff\xfe" * 50], ids=["all", "zeros", "none"]
)
def test_bytes_that_are_no_text_are_not_shown(data: bytes) -> None:
    assert f"[{len(data):,} bytes that are not text;" in cast("str", as_text(data))


def test_views_of_bytes_are_bytes() -> None:
    assert (as_text(bytearray(b"a")), as_text(memoryview(b"a"))) == ("a", "a")


def test_a_text_of_a_class_of_its_own_is_text() -> None:
    class Loud(str):
        __slots__ = ()

        def __str__(self) -> str:
            raise RuntimeError

        def __len__(self) -> int:
            raise RuntimeError

    found = as_text(Loud("x"))
    assert (found, type(found)) == ("x", str)


@pytest.mark.parametrize("value", [None, 3, ["x"], {"a": b"x"}], ids=repr)
def test_everything_else_is_left_alone(value: object) -> None:
    assert as_text(value) is value


def test_long_json_is_shown_with_a_line_for_each_thing() -> None:
    found = long_json(b'{"a":[' + b",".join([b"1"] * 1_000) + b"]}", 1_000)
    assert found is not None
    assert found.startswith('{\n "a": [\n  1,\n  1,')


@pytest.mark.parametrize("body", [b"[1]", b'"' + b"x" * 9_000 + b'"', b'["' + "é".encode() * 900 + b'"]'])
def test_json_that_fits_and_text_are_no_long_json(body: bytes) -> None:
    assert long_json(body, 1_000) is None


def test_text_that_no_encoding_knows_is_shown_as_its_escapes() -> None:
    assert as_text("caf\udce9 é") == "caf\\udce9 é"


# ---- paging ----------------------------------------------------------------------------------------------------------

DATA = LINES.encode()


def test_a_page_holds_the_lines_that_were_asked_for() -> None:
    found = read_page(DATA, 101, 3)
    assert (found.text, found.start, found.stop, found.lines) == ("line 101\nline 102\nline 103\n", 101, 103, 10_000)
    assert (found.next_start, found.next_skip) == (104, 0)


def test_the_last_page_says_that_it_is_the_last() -> None:
    found = read_page(DATA, 9_999, 500)
    assert (found.text, found.stop, found.next_start) == ("line 9999\nline 10000\n", 10_000, None)
    assert render_page(found, "ab12").endswith("line 10000\n[That is the end.]")


def test_a_page_past_the_end_says_how_many_lines_there_are() -> None:
    assert render_page(read_page(DATA, 20_000, 1), "ab12") == "[There are only 10,000 lines.]"


def test_an_empty_result_has_no_lines() -> None:
    assert render_page(read_page(b"", 1, 1), "ab12") == "[There are only 0 lines.]"


def test_a_page_is_bounded_and_ends_with_a_line() -> None:
    found = read_page(DATA, 1, 100_000, room=1_000)
    assert len(found.text) <= 1_000
    assert found.text.endswith("\n")
    assert found.next_start == found.stop + 1


def test_a_page_says_how_to_go_on() -> None:
    assert render_page(read_page(DATA, 1, 2), "ab12") == (
        '[Lines 1 to 2 of 10,000]\nline 1\nline 2\n[Go on with read_result(id="ab12", start=3).]'
    )


def test_a_page_that_is_to_begin_within_a_character_begins_with_the_next() -> None:
    assert read_page("€€€\n".encode(), 1, 1, 1).text == "€€\n"


def everything(data: bytes, lines: int, room: int) -> str:
    """What a model reads that goes on until the end."""
    text, start, skip = "", 1, 0
    for _ in range(100_000):
        found = read_page(data, start, lines, skip, room)
        text += found.text
        if found.next_start is None:
            return text
        assert (found.next_start, found.next_skip) > (start, skip)
        start, skip = found.next_start, found.next_skip
    raise AssertionError


@pytest.mark.parametrize("text", ["x" * 5_000, "é€\U0001f600" * 900, "a\n" + "y" * 3_000 + "\nb", "\n" * 300, "a\n\nb"])
def test_all_pages_together_are_the_whole(text: str) -> None:
    assert everything(text.encode(), 7, 100) == text


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=300), st.integers(1, 20), st.integers(8, 50))
def test_all_pages_of_any_text_are_the_whole(text: str, lines: int, room: int) -> None:
    assert everything(text.encode(), lines, room) == text


@given(st.binary(max_size=300), st.integers(1, 20), st.integers(8, 50))
def test_any_bytes_can_be_read_to_their_end(data: bytes, lines: int, room: int) -> None:
    everything(data, lines, room)


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)), max_size=9), max_size=40))
def test_a_line_is_found_by_its_number(lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    assert [read_page(data, n, 1).text for n in range(1, len(lines) + 1)] == [f"{line}\n" for line in lines]


@pytest.mark.parametrize("text", [LINES, "é" * 100_000, "a\n" + "b" * 100_000 + "\nc"])
def test_the_note_leads_to_the_first_character_that_is_missing(text: str) -> None:
    found = made(text)
    told = re.search(r"start=(\d+)(?:, skip=(\d+))?\)", found)
    assert told is not None
    head = found.partition("[...")[0]
    head = head if text.startswith(head) else head[:-1]
    there = read_page(text.encode(), int(told[1]), 1, int(told[2] or 0), room=100).text
    assert text[len(head) :].startswith(there)


class _Host:
    """The part of the runtime that has one kept result."""

    def __init__(self, data: bytes | None) -> None:
        self._data = data
        self.asked: list[str] = []

    async def kept(self, digest: str) -> bytes | None:
        self.asked.append(digest)
        return self._data


async def _read(host: _Host, **asked: object) -> Any:
    bound = read_result.bind(asked)
    assert isinstance(bound, Bound)
    return await read_result.invoke(bound, cast("Any", SimpleNamespace(host=host)))


async def test_the_tool_reads_what_the_runtime_has() -> None:
    host = _Host(DATA)
    assert (await _read(host, id="ab12", start=2, lines=1)).splitlines()[1] == "line 2"
    assert host.asked == ["ab12"]


async def test_an_id_that_is_not_there_is_told() -> None:
    with pytest.raises(ToolRetry, match="There is no result with the id 'nope'"):
        await _read(_Host(None), id="nope")


@pytest.mark.parametrize("asked", [{"start": 0}, {"lines": 0}, {"lines": 100_000}, {"skip": -1}], ids=str)
def test_pages_that_can_not_be_meant_are_complaints(asked: dict[str, int]) -> None:
    assert isinstance(read_result.bind({"id": "x", **asked}), Complaint)


def test_a_page_fits_into_the_limit_of_a_result() -> None:
    longest = render_page(read_page(b"\xff" * 10 + b"x" * 10_000_000, 1, 1), "ab12" * 16)
    assert len(longest) < read_result.output_limit
    assert read_result.output_limit > PAGE_BYTES
    assert ToolCall("c", read_result.name, {}).name == "read_result"
