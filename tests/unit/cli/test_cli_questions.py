"""How an approval is named and shown, and which options of `holdfast approve` go together."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.approvals import (
    LISTED_LENGTH,
    approve,
    describe_approval,
    diff_arguments,
    is_long,
    rule_text,
)
from holdfast.cli.options import CallInvalid
from holdfast.cli.output import Terminal
from holdfast.cli.sessions import approval_of_wait, wait_label
from holdfast.policy.approvals import Question
from holdfast.runtime.approvals import Approval

PATH = Path(".holdfast", "holdfast.db")
QUESTION = Question(
    session="s", agent="shop", effect="t1/2.tools/1.refund", tool="refund", definition="d", arguments={"cents": 9000}
)


def approval(**arguments: Any) -> Approval:
    return Approval("a-1", "s", "shop", "refund", arguments, "d", "because", "1: ask refund", 0, None)


def lines(found: Approval, *, whole: bool) -> list[str]:
    return list(describe_approval(Terminal(StringIO()), found, PATH, whole=whole))


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return list(diff_arguments(Terminal(StringIO()), before, after))


def test_the_name_of_a_wait_tells_the_id_of_the_approval_and_the_tool() -> None:
    assert approval_of_wait(QUESTION.wait) == (QUESTION.id, "refund")


def test_a_wait_of_a_tool_is_no_approval() -> None:
    assert approval_of_wait("t1/2.tools/1.ask/approval") is None
    assert wait_label("t1/2.tools/1.ask/approval") == "approval"


@pytest.mark.parametrize(("more", "long"), [(0, False), (1, True)])
def test_a_call_is_long_where_a_list_does_not_show_all_of_it(more: int, long: bool) -> None:
    around = len('refund {\n  "note": ""\n}')
    found = approval(note="x" * (LISTED_LENGTH - around + more))
    assert is_long(found) is long
    assert any("more characters" in line for line in lines(found, whole=False)) is long


def test_all_of_a_long_call_is_shown_where_it_is_wanted() -> None:
    found = approval(note="x" * 9_000)
    assert f'  |   "note": "{"x" * 9_000}"' in lines(found, whole=True)


def test_the_reason_of_a_hook_can_not_forge_a_line() -> None:
    found = Approval("a-1", "s", "shop", "refund", {}, "d", "x\n  rule     allowed\u202e", "hook", 0, None)
    assert lines(found, whole=True)[-1] == r"  why      x\n  rule     allowed\u202e"


def test_a_difference_names_what_is_new_what_is_gone_and_what_stays() -> None:
    assert changes({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 3, "d": 4}) == [
        '  |  "a": 1',
        '  | -"b": 2',
        '  | +"b": 3',
        '  | -"c": 3',
        '  | +"d": 4',
    ]


def test_true_in_the_place_of_one_is_a_diff_arguments() -> None:
    assert changes({"a": 1}, {"a": True}) == ['  | -"a": 1', '  | +"a": true']


def test_a_stored_rule_that_can_not_be_read_is_shown_as_it_is() -> None:
    assert rule_text('{"allow": 7}').startswith('{"allow": 7} (can\'t be read')


@pytest.mark.parametrize(
    "options",
    [
        {"edit": True, "arguments": "{}"},
        {"always": True, "edit": True},
        {"always": True, "arguments": "{}"},
        {"show": True, "yes": True},
        {"show": True, "always": True},
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together_are_refused_before_anything_is_looked_at(options: dict[str, Any]) -> None:
    with pytest.raises(CallInvalid):
        approve("a-1", store=Path("nowhere.db"), **options)
