"""Values that leave a program."""

from __future__ import annotations

from typing import Any

import pytest
from tests.every import every

from holdfast.sandbox.contract import MAX_DEPTH, NotJson, has_repr_text, to_json

ROOM = 10_000


@every("value", [None, True, 0, -(2**63), 2**64 - 1, 1.5, "é", [], {}, [1, [2]], {"a": {"b": None}}])
def test_what_json_has_a_word_for_stays_as_it_is(value: object) -> None:
    assert to_json(value, ROOM)[0] == value


def test_a_tuple_becomes_a_list() -> None:
    assert to_json({"a": (1, (2,))}, ROOM)[0] == {"a": [1, [2]]}


@every(
    "value", [2**64, -(2**63) - 1, float("nan"), float("inf"), {1}, b"x", {1: 2}, [object()], "\ud800", {"\udfff": 1}]
)
def test_what_json_has_no_word_for_is_refused(value: object) -> None:
    with pytest.raises(NotJson):
        to_json(value, ROOM)


def _nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


def test_the_deepest_value_is_taken() -> None:
    assert to_json(_nested(MAX_DEPTH), ROOM)[0] == _nested(MAX_DEPTH)


def test_a_deeper_value_is_refused() -> None:
    with pytest.raises(NotJson, match="nested deeper"):
        to_json(_nested(MAX_DEPTH + 1), ROOM)


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotJson):
        to_json(value, ROOM)


def test_a_small_value_that_stands_for_billions_is_given_up_at_once() -> None:
    value: Any = "x"
    for _ in range(30):
        value = [value] * 1_000
    with pytest.raises(NotJson, match="more than 10,000 bytes"):
        to_json(value, ROOM)


@pytest.mark.parametrize("value", ["x" * 101, ["x" * 50, "y" * 50], {"x" * 101: 1}, [0] * 60, ["é" * 50]])
def test_the_bytes_of_all_parts_count(value: object) -> None:
    with pytest.raises(NotJson, match="more than 100 bytes"):
        to_json(value, 100)


def test_the_size_is_told() -> None:
    assert to_json("abc", ROOM)[1] == 5


@pytest.mark.parametrize("value", ["<function 'f' at 0xc>", ["<x"], {"a": [{"b": "<"}]}, "[...]"])
def test_a_text_that_may_stand_for_something_else_is_seen(value: object) -> None:
    assert has_repr_text(value)


@pytest.mark.parametrize("value", ["a < b", 1, [], {"<": 1}])
def test_other_texts_are_not_suspected(value: object) -> None:
    assert not has_repr_text(value)
