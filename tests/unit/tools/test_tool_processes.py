"""Which processes belong to a program that was started: a decision over what the kernel tells."""

from __future__ import annotations

import pytest

from holdfast.tools.functions import ProcessInfo, find_process_tree

ME = 100


def _table(**parents: tuple[int, int]) -> dict[int, ProcessInfo]:
    """Processes by their number (``p7``): their parent, and the group and session that they are in."""
    return {int(name[1:]): ProcessInfo(parent, group, group, 1) for name, (parent, group) in parents.items()}


def test_a_program_is_found_with_all_that_it_has_begun() -> None:
    table = _table(p100=(1, 100), p1=(0, 1), p7=(100, 100), p8=(7, 100), p9=(8, 100), p10=(100, 100))
    assert find_process_tree({7}, table, ME) == {7, 8, 9}


def test_a_number_that_another_process_has_by_now_is_left_alone() -> None:
    table = _table(p100=(1, 100), p7=(50, 7), p8=(7, 7))
    assert find_process_tree({7}, table, ME) == set()


def test_what_a_program_that_is_gone_left_in_its_session_is_found_with_its_children() -> None:
    table = _table(p100=(1, 100), p1=(0, 1), p8=(1, 7), p9=(8, 9))
    assert find_process_tree({7}, table, ME) == {8, 9}


def test_what_is_in_the_group_of_this_process_is_not_taken_for_a_program_that_is_gone() -> None:
    table = _table(p100=(1, 100), p8=(1, 100))
    assert find_process_tree({7}, table, ME) == set()


def test_this_process_is_never_among_them() -> None:
    table = _table(p100=(1, 7), p8=(1, 7))
    assert find_process_tree({7}, table, ME) == {8}


@pytest.mark.parametrize("roots", [set[int](), {55}])
def test_nothing_is_found_where_nothing_runs(roots: set[int]) -> None:
    assert find_process_tree(roots, _table(p100=(1, 100), p7=(100, 100)), ME) == set()
