from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.tools.results import OutputClip, OutputNotes, ShownOutput

LIMIT = 1000
NOTE = 100


def clipped(*chunks: bytes, limit: int = LIMIT) -> ShownOutput:
    clip = OutputClip(limit)
    for chunk in chunks:
        clip.add(chunk)
    return clip.shown()


def test_output_within_the_limit_is_shown_as_it_is() -> None:
    assert clipped(b"one\n", b"two\n") == ShownOutput("one\ntwo\n", 8, 0, replaced=False)


def test_no_output_is_empty_text() -> None:
    assert clipped().text == ""


def test_output_of_exactly_the_limit_is_not_cut() -> None:
    assert clipped(b"x" * LIMIT).left_out == 0


def test_long_output_shows_its_first_and_last_lines_whole() -> None:
    shown = clipped(*(f"line {number}\n".encode() for number in range(10_000)))
    lines = shown.text.splitlines()
    assert (lines[0], lines[-1]) == ("line 0", "line 9999")
    assert all(line.startswith("line ") for line in lines if "left out" not in line)


def test_the_marker_counts_what_is_missing() -> None:
    shown = clipped(b"12345678\n" * 1000)
    marker = next(line for line in shown.text.splitlines() if "left out" in line)
    kept = shown.text.count("12345678\n")
    assert marker == f"[... {9 * (1000 - kept):,} bytes, {1000 - kept:,} line ends left out ...]"


def test_one_endless_line_is_cut_between_characters() -> None:
    shown = clipped("ä€😀".encode() * 1000)
    assert not shown.replaced
    assert "\ufffd" not in shown.text


@every("shift", range(10))
def test_a_cut_never_splits_a_character_wherever_it_falls(shift: int) -> None:
    assert "\ufffd" not in clipped(b"x" * shift + "ä€😀".encode() * 1000).text


def test_bytes_that_are_not_utf_8_are_replaced_and_told() -> None:
    assert clipped(b"a\xff\xfeb") == ShownOutput("a\ufffd\ufffdb", 4, 0, replaced=True)


def test_a_character_that_comes_in_two_chunks_is_one_character() -> None:
    assert clipped(b"\xe2\x82", b"\xac").text == "€"


@given(st.lists(st.binary(max_size=400), max_size=40), st.integers(500, 2000))
def test_whatever_comes_the_result_is_bounded_and_accounts_for_every_byte(chunks: list[bytes], limit: int) -> None:
    shown = clipped(*chunks, limit=limit)
    whole = b"".join(chunks)
    assert shown.size == len(whole)
    assert len(shown.text) <= limit + 100
    if len(whole) <= limit - 1:
        assert shown.text == whole.decode(errors="replace")


@given(st.lists(st.text(max_size=200), max_size=40))
def test_what_is_shown_is_the_beginning_and_the_end_of_what_came(chunks: list[str]) -> None:
    whole = "".join(chunks).encode(errors="replace")
    shown = clipped(*(chunk.encode(errors="replace") for chunk in chunks), limit=500)
    head, _, tail = shown.text.partition("[... ") if shown.left_out else (shown.text, "", "")
    tail = tail.partition("...]\n")[2]
    assert whole.decode().startswith(head.removesuffix("\n"))
    assert whole.decode().endswith(tail)


def test_memory_does_not_grow_with_the_output() -> None:
    clip = OutputClip(30_000)
    chunk = b"y\n" * 32_768
    tracemalloc.start()
    for _ in range(2_000):
        clip.add(chunk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_note_has_whole_lines() -> None:
    notes = OutputNotes(NOTE)
    notes.add(b"one\ntwo\nthr")
    assert notes.take() == "one\ntwo"
    notes.add(b"ee\n")
    assert notes.take() == "three"


def test_a_line_that_does_not_end_is_not_told_yet() -> None:
    notes = OutputNotes(NOTE)
    notes.add(b"50 %")
    assert notes.take() is None


def test_what_is_left_is_told_at_the_end() -> None:
    notes = OutputNotes(NOTE)
    notes.add(b"50 %")
    assert notes.rest() == "50 %"


def test_of_a_flood_the_newest_is_told() -> None:
    notes = OutputNotes(NOTE)
    for number in range(10_000):
        notes.add(f"{number}\n".encode())
    told = notes.take()
    assert told is not None
    assert told.endswith("9999")
    assert len(told) <= NOTE


def test_a_line_longer_than_a_note_is_told_in_parts() -> None:
    notes = OutputNotes(NOTE)
    notes.add(b"x" * NOTE)
    assert notes.take() == "x" * NOTE


def test_nothing_new_is_no_note() -> None:
    assert OutputNotes(NOTE).take() is None
