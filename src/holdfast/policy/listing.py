"""The rules of a policy in the order in which they are tried for the tools of one agent. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.policy.rules import Rule
from holdfast.policy.subject import STRICTNESS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.policy.deciding import Policy
    from holdfast.policy.rules import Given
    from holdfast.policy.subject import Subject


class Listed(NamedTuple):
    """One rule or constraint."""

    number: int
    rule: Given
    reaches: tuple[str, ...]
    """The tools of the agent that it is about; a rule without any is never tried, and may have a wrong name."""


def tried(policy: Policy, subjects: Iterable[Subject]) -> list[Listed]:
    """Rules first, the closest and strictest before others; then constraints; those about no tool of the agent last."""
    tools = list(subjects)
    found = [(_closeness(rule, tools), number, rule) for number, rule in enumerate(policy.rules, 1)]
    return [
        Listed(number, rule, tuple(reached))
        for reached, number, rule in sorted(found, key=lambda one: _place(one[2], one[1], one[0]))
    ]


def _closeness(rule: Given, tools: list[Subject]) -> dict[str, int]:
    levels = {tool.tool: _level(rule, tool) for tool in tools}
    return {tool: level for tool, level in levels.items() if level is not None}


def _level(rule: Given, tool: Subject) -> int | None:
    if isinstance(rule, Rule):
        return rule.specificity(tool)
    # A constraint for all tools is about those that have paths.
    return None if rule.tools.everything and not tool.paths else rule.tools.specificity(tool)


def _place(rule: Given, number: int, reached: dict[str, int]) -> tuple[bool, bool, int, int, int]:
    if not isinstance(rule, Rule):
        return not reached, True, 0, 0, number
    return not reached, False, -max(reached.values(), default=0), -STRICTNESS[rule.verdict], number
