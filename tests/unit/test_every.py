"""Tables that are tried in one test lose no case."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from tests.every import every


def test_all_combinations_of_stacked_tables_are_tried() -> None:
    tried: list[tuple[int, str, str]] = []

    @every("number", [1, 2])
    @every(("letter", "word"), [("a", "x"), pytest.param("b", "y", id="second")])
    def test(number: int, letter: str, word: str) -> None:
        tried.append((number, letter, word))

    test()  # pyright: ignore[reportCallIssue]
    assert tried == [(1, "a", "x"), (1, "b", "y"), (2, "a", "x"), (2, "b", "y")]


def test_every_case_that_fails_is_named_with_its_data_and_its_error() -> None:
    @every("number", range(40), ids=lambda number: f"n{number}")
    def test(number: int) -> None:
        if number % 2:
            raise ValueError(f"odd: {number}")

    with pytest.raises(ExceptionGroup, match="20 of 40 cases fail") as caught:
        test()  # pyright: ignore[reportCallIssue]
    for number in range(1, 40, 2):
        assert f"case n{number} (number={number}): ValueError('odd: {number}')" in str(caught.value)
    assert len(caught.value.exceptions) == 20


def test_a_case_that_skips_or_does_not_raise_fails() -> None:
    @every("skips", [True, False])
    def test(*, skips: bool) -> None:
        if skips:
            pytest.skip("not here")
        with pytest.raises(ValueError, match="never"):
            pass

    with pytest.raises(ExceptionGroup, match="2 of 2 cases fail"):
        test()  # pyright: ignore[reportCallIssue]


def test_pytest_sees_the_fixtures_and_not_the_table() -> None:
    @every("number", [1])
    def test(number: int, request: object) -> None: ...

    assert [*inspect.signature(test).parameters] == ["request"]


def test_a_table_that_would_try_nothing_is_refused() -> None:
    with pytest.raises(AssertionError, match="tests nothing"):
        every("number", [])


async def test_the_cases_of_a_test_that_awaits_are_awaited() -> None:
    tried: list[int] = []

    @every("number", range(3))
    async def test(number: int) -> None:
        await asyncio.sleep(0)
        tried.append(number)
        assert number != 1

    with pytest.raises(ExceptionGroup, match=r"1 of 3 cases fail\ncase 1 "):
        await test()  # pyright: ignore[reportCallIssue]
    assert tried == [0, 1, 2]
