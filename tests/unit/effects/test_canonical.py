"""Canonical JSON: one value, one sequence of bytes. A change of these bytes strands every journal that exists."""

from __future__ import annotations

import os
import subprocess
import sys
from enum import IntEnum
from typing import Any

import pytest
from tests.every import every

from holdfast.effects.canonical import MAX_DEPTH, canonical, digest, digest_of_bytes
from holdfast.errors import InvalidValue

GOLDEN: list[tuple[Any, bytes]] = [
    (None, b"null"),
    (True, b"true"),
    (False, b"false"),
    (0, b"0"),
    (-1, b"-1"),
    (2**64 - 1, b"18446744073709551615"),
    (-(2**63), b"-9223372036854775808"),
    (0.5, b"0.5"),
    (1.0, b"1.0"),
    (-0.0, b"-0.0"),
    (1e16, b"1e16"),
    (1e300, b"1e300"),
    (1e-7, b"1e-7"),
    (0.1 + 0.2, b"0.30000000000000004"),
    ("", b'""'),
    ("é☃😀", b'"\xc3\xa9\xe2\x98\x83\xf0\x9f\x98\x80"'),
    ("\u2028", b'"\xe2\x80\xa8"'),
    ("\x7f", b'"\x7f"'),
    ('a"b\\c\n\t\x00\x1f/<>&', rb'"a\"b\\c\n\t\u0000\u001f/<>&"'),
    ([], b"[]"),
    ({}, b"{}"),
    ((1, (2, [3])), b"[1,[2,[3]]]"),
    ({"b": 1, "a": [1, {"d": None, "c": "x"}]}, b'{"a":[1,{"c":"x","d":null}],"b":1}'),
]


@every(("value", "body"), GOLDEN, ids=lambda item: repr(item)[:40])
def test_each_value_has_exactly_these_bytes(value: Any, body: bytes) -> None:
    assert canonical(value) == body


def test_keys_are_sorted_by_code_point_and_not_by_utf16_unit() -> None:
    value = {"\U0001f600": 5, "\uffff": 4, "é": 1, "z": 2, "Z": 3, "": 6, "a b": 7}
    keys = [f'"{key}"' for key in sorted(value)]
    body = canonical(value).decode()
    assert [body.index(key) for key in keys] == sorted(body.index(key) for key in keys)
    assert body.index("\uffff") < body.index("\U0001f600")


def test_the_order_of_insertion_leaves_no_trace() -> None:
    assert canonical({"a": 1, "b": {"x": 1, "y": 2}}) == canonical({"b": {"y": 2, "x": 1}, "a": 1})


@every(("one", "other"), [(1, True), (1, 1.0), (0, False), (0.0, -0.0), ("1", 1), ([], {}), (None, 0)])
def test_values_that_python_calls_equal_have_different_bytes(one: Any, other: Any) -> None:
    assert canonical([one]) != canonical([other])


def test_digests_are_kept_apart_by_their_domain() -> None:
    value = {"b": 1, "a": 2}
    assert digest("content", value) == "81518c6fb3ef66db92081283971f9c430fccf8274f848a20b0b82de1677e76b3"
    assert digest("identity", value) == "7405f91909dd1c96c59b92bc63bd235a4457fbb2d047778a96c0e263db3e4ebd"
    assert digest_of_bytes("content", canonical(value)) == digest("content", value)


_ELSEWHERE = """
from holdfast.effects.canonical import digest
print(digest("content", {key: {"n": n} for n, key in enumerate({"alpha", "beta", "gamma", "delta", "é"})} and
             {key: len(key) for key in {"alpha", "beta", "gamma", "delta", "é"}}))
"""


def test_digests_are_the_same_in_every_process_under_every_hash_seed() -> None:
    expected = digest("content", {"alpha": 5, "beta": 4, "gamma": 5, "delta": 5, "é": 1})
    for hash_seed in ("0", "1", "4242"):
        found = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONUTF8": "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert found.stdout.strip() == expected, hash_seed


class _Colour(IntEnum):
    RED = 1


class _Name(str):
    __slots__ = ()


def _nested(levels: int, leaf: object = 1) -> object:
    value = leaf
    for _ in range(levels):
        value = [value]
    return value


@every(
    ("value", "path", "reason"),
    [
        (float("nan"), "$", "nan is not a JSON number"),
        ({"a": [0, float("inf")]}, "$.a[1]", "inf is not a JSON number"),
        ([float("-inf")], "$[0]", "-inf is not a JSON number"),
        ({"a": b"x"}, "$.a", "a bytes has no JSON form"),
        ([bytearray(b"x")], "$[0]", "a bytearray has no JSON form"),
        ({"a": {1}}, "$.a", "a set has no JSON form"),
        (frozenset[int](), "$", "a frozenset has no JSON form"),
        ({"a": {1: 2}}, "$.a", "the key 1 is not a string"),
        ({None: 1}, "$", "the key None is not a string"),
        ({_Name("x"): 1}, "$", "the key 'x' is not a string"),
        ([object], "$[0]", "a type has no JSON form"),
        ([1, 2j], "$[1]", "a complex has no JSON form"),
        (_Colour.RED, "$", "a _Colour has no JSON form"),
        ([_Name("x")], "$[0]", "a _Name has no JSON form"),
        (_nested(MAX_DEPTH + 1), "$" + "[0]" * MAX_DEPTH, "it is nested deeper than 64 levels"),
    ],
)
def test_what_json_has_no_word_for_is_refused_with_its_path(value: object, path: str, reason: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        canonical(value)
    assert (caught.value.path, caught.value.reason) == (path, reason)


@every(
    ("value", "path", "reason"),
    [
        (2**64, "$", "the integer does not fit into 64 bits"),
        ({"a": [1, 2**64]}, "$.a[1]", "the integer does not fit into 64 bits"),
        ([-(2**63) - 1], "$[0]", "the integer does not fit into 64 bits"),
        ({"a": 10**5_000}, "$.a", "the integer does not fit into 64 bits"),
        ("\ud800", "$", "the text holds a lone surrogate"),
        ({"a": {"b": "x\udfff"}}, "$.a.b", "the text holds a lone surrogate"),
    ],
    ids=["2**64", "deep 2**64", "-2**63-1", "10**5000", "surrogate", "deep surrogate"],
)
def test_integers_and_strings_that_do_not_fit_are_refused_with_their_path(
    value: object, path: str, reason: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        canonical(value)
    assert (caught.value.path, caught.value.reason) == (path, reason)


def test_a_key_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidValue):
        canonical({"\ud800": 1})


def test_the_deepest_value_that_is_allowed_is_allowed() -> None:
    assert canonical(_nested(MAX_DEPTH)) == b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(InvalidValue):
        canonical(value)


def test_the_message_of_a_refusal_is_bounded() -> None:
    with pytest.raises(InvalidValue) as caught:
        canonical({"x" * 1_000_000: float("nan")})
    assert len(str(caught.value)) < 10_000
