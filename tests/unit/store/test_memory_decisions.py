"""The rules of memory, one by one."""

from __future__ import annotations

import pytest

from holdfast.errors import MemoryConflict, MemoryFull
from holdfast.store import MemoryEntry, MemoryScope, StoreLimits
from holdfast.store.memories import check_room, check_version, size_of, unexpired, words_of
from holdfast.store.sqlite.tables import match_expression

LIMITS = StoreLimits(scope_entries=2, scope_bytes=10)
ENTRY = MemoryEntry("s", "k", 3, "four", 1, 1, expires=10)


def _entry(key: str, value: str) -> MemoryEntry:
    return MemoryEntry("s", key, 1, value, 1, 1)


@pytest.mark.parametrize("expected", [0, 2, 4])
def test_another_version_than_the_expected_one_is_a_conflict(expected: int) -> None:
    with pytest.raises(MemoryConflict, match="it is at version 3") as caught:
        check_version("s", "k", ENTRY, expected)
    assert (caught.value.expected, caught.value.current) == (expected, 3)


def test_without_an_expectation_there_is_no_conflict() -> None:
    check_version("s", "k", ENTRY, None)
    check_version("s", "k", None, None)


def test_an_entry_lives_until_its_time() -> None:
    assert unexpired(ENTRY, 9) is ENTRY
    assert unexpired(ENTRY, 10) is None


def test_the_number_of_entries_is_limited() -> None:
    with pytest.raises(MemoryFull, match="2 entries"):
        check_room(_entry("x", ""), None, MemoryScope("s", 2, 0), LIMITS)
    check_room(_entry("k", "five5"), ENTRY, MemoryScope("s", 2, 5), LIMITS)


def test_the_bytes_of_a_scope_are_limited() -> None:
    check_room(_entry("x", "1234"), None, MemoryScope("s", 1, 5), LIMITS)
    with pytest.raises(MemoryFull, match="10 bytes"):
        check_room(_entry("x", "12345"), None, MemoryScope("s", 1, 5), LIMITS)


def test_an_entry_can_be_made_smaller_in_a_scope_that_is_over_its_limit() -> None:
    check_room(_entry("k", "1"), ENTRY, MemoryScope("s", 1, 50), LIMITS)


def test_size_is_counted_in_bytes() -> None:
    assert size_of(_entry("é", "☃")) == 5
    assert size_of(MemoryEntry("s", "é", 1, [1], 1, 1, summary="☃", metadata={"a": 1})) == 2 + len("[\n  1\n]") + 3 + 7


def test_words_are_taken_apart_at_white_space_and_controls() -> None:
    assert words_of(" a\tb\x00c  a\u2028d ") == ("a", "b", "c", "d")


def test_a_search_expression_quotes_every_word() -> None:
    assert match_expression(['a"b', "OR", "*"]) == '"a""b"* "OR"* "*"*'
