"""Server-sent events, in whatever pieces they come."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import EventTooLarge, ModelError
from holdfast.models.dialect import Frame
from holdfast.models.sse import ArraySplitter, SseDecoder


def decode(*chunks: bytes, limit: int | None = None) -> list[Frame]:
    decoder = SseDecoder() if limit is None else SseDecoder(limit)
    frames = [frame for chunk in chunks for frame in decoder.feed(chunk)]
    return frames + decoder.close()


def data(*chunks: bytes) -> list[bytes]:
    return [frame.data for frame in decode(*chunks)]


def test_an_event_has_its_name_and_its_data() -> None:
    assert decode(b'event: delta\ndata: {"a": 1}\n\n') == [Frame("delta", b'{"a": 1}')]


def test_an_event_without_a_name_has_an_empty_one() -> None:
    assert decode(b"event: a\ndata: 1\n\ndata: 2\n\n") == [Frame("a", b"1"), Frame("", b"2")]


def test_one_chunk_may_bring_many_events() -> None:
    assert data(b"data: 1\n\ndata: 2\n\ndata: 3\n\n") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_kind_of_line_end_is_understood(end: bytes) -> None:
    assert decode(end.join([b"event: x", b"data: 1", b"", b"data: 2", b"", b""])) == [Frame("x", b"1"), Frame("", b"2")]


def test_line_ends_may_be_mixed() -> None:
    assert data(b"data: 1\r\n\ndata: 2\r\rdata: 3\n\r\ndata: 4\n\n") == [b"1", b"2", b"3", b"4"]


def test_a_carriage_return_at_the_end_of_a_chunk_ends_the_line_at_once() -> None:
    assert SseDecoder().feed(b"data: 1\r\r") == [Frame("", b"1")]


def test_a_line_feed_that_comes_after_its_carriage_return_is_no_second_line_end() -> None:
    assert data(b"data: 1\r", b"\ndata: 2\r\n\r\n") == [b"1\n2"]


def test_lines_of_data_are_joined_by_line_feeds() -> None:
    assert data(b"data: 1\ndata:\ndata: 3\n\n") == [b"1\n\n3"]


def test_the_space_after_the_colon_may_be_missing() -> None:
    assert decode(b"event:x\ndata:1\n\n") == [Frame("x", b"1")]


def test_only_one_space_is_taken_away() -> None:
    assert data(b"data:  1 \n\n") == [b" 1 "]


def test_a_field_without_a_colon_is_empty() -> None:
    assert decode(b"event: x\nevent\ndata\n\n") == [Frame("", b"")]


def test_comments_and_unknown_fields_are_passed_over() -> None:
    assert data(b": OPENROUTER PROCESSING\n\nid: 7\nretry: 10\ndatum: 0\ndata: 1\n: more\n\n") == [b"1"]


def test_a_name_without_data_is_no_event() -> None:
    assert decode(b"event: x\n\ndata: 1\n\n") == [Frame("", b"1")]


@pytest.mark.parametrize("rest", [b"data: 1", b"data: 1\n", b"data: 1\r"])
def test_an_event_that_the_end_leaves_open_is_delivered(rest: bytes) -> None:
    assert data(b"data: 0\n\n", rest) == [b"0", b"1"]


def test_an_empty_stream_has_no_events() -> None:
    assert decode() == decode(b"") == decode(b"\n\n\n") == []


def test_characters_of_several_bytes_survive_a_cut_in_the_middle() -> None:
    stream = 'event: größe\ndata: "\N{EURO SIGN}\u2028"\n\n'.encode()
    assert decode(*[stream[at : at + 1] for at in range(len(stream))]) == decode(stream)
    assert decode(stream) == [Frame("größe", '"\N{EURO SIGN}\u2028"'.encode())]


_FIELDS = (b"data: a", b"data:b", b"data", b"data:", b"event: e", b"event", b": c", b"id: 1", b"", b"", b"x")


@st.composite
def _streams(draw: st.DrawFn) -> bytes:
    lines = st.tuples(st.sampled_from(_FIELDS), st.sampled_from([b"\n", b"\r\n", b"\r"]))
    rest = draw(st.sampled_from([b"", b"data: open", b"dat"]))
    return b"".join(line + end for line, end in draw(st.lists(lines, max_size=20))) + rest


@given(_streams(), st.lists(st.integers(0, 200), max_size=8))
def test_where_the_pieces_are_cut_makes_no_difference(stream: bytes, cuts: list[int]) -> None:
    at = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    assert decode(*[stream[a:b] for a, b in pairwise(at)]) == decode(stream)


@given(_streams())
def test_a_stream_cut_at_every_byte_gives_the_same(stream: bytes) -> None:
    assert decode(*[stream[at : at + 1] for at in range(len(stream))]) == decode(stream)


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_no_bytes_lead_to_another_error_than_ours(chunks: list[bytes]) -> None:
    with suppress(ModelError):
        decode(*chunks, limit=40)


def test_an_event_over_the_limit_is_a_named_error() -> None:
    with pytest.raises(EventTooLarge) as caught:
        decode(b"data: 1234567890\n\n", limit=15)
    assert (caught.value.limit, caught.value.kind, caught.value.retryable) == (15, "bad_frame", False)


def test_a_line_that_never_ends_is_stopped_at_the_limit() -> None:
    with pytest.raises(EventTooLarge):
        decode(*[b"x"] * 1_001, limit=1_000)


def test_data_in_many_lines_is_counted_together() -> None:
    with pytest.raises(EventTooLarge):
        decode(*[b"data: x\n"] * 1_000, limit=1_000)


def test_many_events_may_be_larger_together_than_one_may_be() -> None:
    assert len(decode(*[b"data: 12345678\n\n"] * 100, limit=20)) == 100


def test_the_rest_of_a_chunk_after_a_large_event_counts_for_itself() -> None:
    assert data(b"data: " + b"x" * 10 + b"\n\nda", b"ta: y\n\n") == [b"x" * 10, b"y"]


# ---- arrays ----------------------------------------------------------------------------------------------------------

ELEMENTS = [{"a": 'x"]}{[,\\', "b": [1, {"\\": "\n"}]}, ",]", 7, {}, ["\\\\", '\\"'], "ä😀"]


@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_gives_the_same_elements_wherever_its_pieces_are_cut(indent: int | None) -> None:
    body = json.dumps(ELEMENTS, indent=indent).encode()
    for at in range(len(body) + 1):
        for pieces in ([body[:at], b"", body[at:]], [body[:at], body[at : at + 1], body[at + 1 :]]):
            splitter = ArraySplitter()
            found = [json.loads(frame.data) for piece in pieces for frame in splitter.feed(piece)]
            assert (found, splitter.ended) == (ELEMENTS, True), pieces
