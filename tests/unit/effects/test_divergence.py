"""Where two commands differ: the first places, both values, and never too much of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.every import every

from holdfast.effects.canonical import canonical
from holdfast.effects.replay import MAX_PATHS, Difference, diverge


@every(
    ("recorded", "asked", "differences"),
    [
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 3}]}}, [("a.b[1].c", "2", "3")]),
        ({"a": 1}, {"a": 1, "b": None}, [("b", "(absent)", "null")]),
        ({"a": 1, "b": {}}, {"a": 1}, [("b", "{}", "(absent)")]),
        ([1, 2, 3], [3, 1, 2], [("[0]", "1", "3"), ("[1]", "2", "1"), ("[2]", "3", "2")]),
        ([1], [1, 2], [("[1]", "(absent)", "2")]),
        ({"n": 1}, {"n": True}, [("n", "1", "true")]),
        ({"n": 1}, {"n": 1.0}, [("n", "1", "1.0")]),
        ({"n": 0}, {"n": False}, [("n", "0", "false")]),
        ({"n": []}, {"n": {}}, [("n", "[]", "{}")]),
        ({"n": None}, {}, [("n", "null", "(absent)")]),
        ("x", "y", [("$", '"x"', '"y"')]),
        ({"b": 1, "a": 1}, {"b": 2, "a": 2}, [("a", "1", "2"), ("b", "1", "2")]),
        ({"a": "é☃"}, {"a": "é"}, [("a", '"é☃"', '"é"')]),
    ],
)
def test_each_difference_has_its_path_and_both_values(
    recorded: Any, asked: Any, differences: list[tuple[str, str, str]]
) -> None:
    found = diverge(recorded, asked)
    assert found.total == len(differences)
    assert found.first == tuple(Difference(*difference) for difference in differences)


@pytest.mark.parametrize("value", [None, 1, "x", [1, (2,)], {"a": {"b": [1.5, None]}}])
def test_a_value_does_not_differ_from_itself(value: Any) -> None:
    assert diverge(value, value).total == 0


def test_a_tuple_is_the_same_as_its_list() -> None:
    assert diverge({"a": (1, 2)}, {"a": [1, 2]}).total == 0


def test_other_bytes_are_always_a_difference() -> None:
    # Zero and minus zero are equal in Python, but their digests differ: an empty report would explain nothing.
    assert canonical({"n": 0.0}) != canonical({"n": -0.0})
    assert diverge({"n": 0.0}, {"n": -0.0}).total == 1


def test_of_many_differences_the_first_eight_are_kept_and_all_are_counted() -> None:
    found = diverge({f"k{n:02}": n for n in range(30)}, {f"k{n:02}": -1 for n in range(30)})
    assert found.total == 30
    assert [difference.path for difference in found.first] == [f"k{n:02}" for n in range(MAX_PATHS)]
    assert found.describe().endswith("(and 22 more)")


def test_a_long_value_is_shown_by_its_length_and_digest() -> None:
    (difference,) = diverge({"a": "x" * 3_000}, {"a": "y" * 3_000}).first
    assert difference.recorded == "(3,002 bytes, sha256 46b031068a4f0d67)"
    assert difference.asked == "(3,002 bytes, sha256 00c6d2d8dfebb423)"


def test_the_description_names_both_sides() -> None:
    assert diverge({"cents": 100}, {"cents": 900}).describe() == "cents: recorded 100, asked 900"


def test_the_description_is_bounded_when_values_are_long() -> None:
    found = diverge([f"{'x' * 2_000}{n}" for n in range(50)], [f"{'y' * 2_000}{n}" for n in range(50)])
    assert len(found.describe()) < 5_000


def test_the_description_is_bounded_when_keys_are_long() -> None:
    found = diverge({"k" * 100_000 + str(n): 1 for n in range(20)}, {})
    assert len(found.describe()) < 5_000
