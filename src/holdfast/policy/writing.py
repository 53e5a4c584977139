"""A policy as the text of a file that means the same. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from holdfast.errors.policy import PolicyUnwritable
from holdfast.policy.conditions import Above, Below, Equals, Inside, Matches, OneOf
from holdfast.policy.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.policy.conditions import ArgumentTest, Test
    from holdfast.policy.deciding import Policy
    from holdfast.policy.rules import Given

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def written(policy: Policy) -> str:
    """The text in TOML; `PolicyUnwritable` names the rule that no file can say."""
    if policy.above:
        raise PolicyUnwritable("parent", "a policy within that of a parent is two policies; write each by itself")
    parts = [] if policy.taint else ["taint = false\n"]
    for rule in policy.rules:
        lines = [f"{key} = {_value(rule, value)}\n" for key, value in _said(rule)]
        parts.append("".join(["[[rule]]\n", *lines]))
    return "\n".join(parts)


def _said(rule: Given) -> Iterator[tuple[str, object]]:
    """Keys and values, in the order in which people would write them."""
    if not isinstance(rule, Rule):
        yield "within", list(rule.roots)
        if not rule.tools.everything:
            yield "tools", rule.tools.text
    else:
        yield rule.verdict, rule.tools.text
        yield from _conditions(rule)
    if rule.name is not None:
        yield "name", rule.name


def _conditions(rule: Rule) -> Iterator[tuple[str, object]]:
    if rule.predicate is not None:
        reason = "its predicate is Python; use conditions on arguments, such as {'cents': {'above': 5000}}"
        raise PolicyUnwritable(str(rule), reason)
    if rule.tests:
        yield "when", {test.argument: _tests(test) for test in rule.tests}
    if rule.argv is not None:
        yield "argv", [choice[0] if len(choice) == 1 else list(choice) for choice in rule.argv]
    if rule.domains is not None:
        yield "domains", [str(host) for host in rule.domains]
    for key, value in (("matches", rule.matches), ("never", rule.never)):
        if value:
            yield key, list(value)
    if rule.reason is not None:
        yield "reason", rule.reason
    if rule.expires_ms is not None:
        yield "expires", rule.expires_ms / 1000 if rule.expires_ms % 1000 else rule.expires_ms // 1000


def _tests(one: ArgumentTest) -> dict[str, object]:
    return dict(_test(test) for test in one.tests)


def _test(test: Test) -> tuple[str, object]:
    match test:
        case Equals(value):
            return "equals", value
        case OneOf(values):
            return "one_of", list(values)
        case Above(limit):
            return "above", limit
        case Below(limit):
            return "below", limit
        case Matches(pattern):
            return "matches", pattern
        case Inside(roots):
            return "within", list(roots)


def _value(rule: Given, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # JSON escapes what TOML wants escaped, but for one character.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(_value(rule, one) for one in value)}]"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # of anything
        case Mapping():
            pairs = (f"{_key(str(key))} = {_value(rule, one)}" for key, one in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # of anything
            return f"{{{', '.join(pairs)}}}"
        case _:
            raise PolicyUnwritable(str(rule), f"an example holds a {type(value).__name__}, which TOML has no word for")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False).replace("\x7f", "\\u007f")
