"""The rules of a policy in the order in which they are tried."""

from __future__ import annotations

from holdfast.policy.rules import Policy, Subject, allow, ask, deny, list_rules, within

READ = Subject(tool="read_file", family="files", args={}, paths=("path",))
SUBJECTS = [READ, Subject(tool="refund", args={})]


def numbers(*rules: object) -> list[int]:
    return [listed.number for listed in list_rules(Policy(rules), SUBJECTS)]  # pyright: ignore[reportArgumentType]


def test_closer_rules_go_before_stricter_ones() -> None:
    assert numbers(deny("*"), ask("read*"), allow("files"), allow("files.read*"), allow("read_file")) == [5, 4, 3, 2, 1]


def test_equally_close_rules_go_by_strictness_and_then_as_they_are_written() -> None:
    assert numbers(allow("refund"), deny("refund"), ask("refund"), deny("read_file")) == [2, 4, 3, 1]


def test_constraints_come_after_the_rules() -> None:
    assert numbers(within("a"), allow("*")) == [2, 1]


def test_what_is_about_no_tool_comes_last() -> None:
    assert numbers(deny("shell"), within("a"), allow("*")) == [3, 2, 1]


def test_each_rule_is_listed_with_the_tools_that_it_is_about() -> None:
    listed = list_rules(Policy((allow("*"), within("a"), deny("shell"))), SUBJECTS)
    assert [one.reaches for one in listed] == [("read_file", "refund"), ("read_file",), ()]
