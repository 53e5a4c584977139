"""`allow`, `ask`, `deny`, `within`: rules, checked where they are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from holdfast.errors.policy import PolicyInvalid
from holdfast.errors.tree import UsageError, excerpt
from holdfast.policy.conditions import Above, ArgumentTest, Below, Equals, Inside, Matches, OneOf
from holdfast.policy.hosts import read_rule
from holdfast.policy.real import absolute, real_path
from holdfast.policy.rules import Rule, Within
from holdfast.policy.selecting import read_selector
from holdfast.policy.spans import milliseconds
from holdfast.policy.subject import Subject

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.policy.conditions import Prefix, Scalar, Test
    from holdfast.policy.hosts import Host
    from holdfast.policy.rules import Example, Predicate
    from holdfast.policy.subject import Call, Verdict

When: TypeAlias = "Callable[[Call], bool] | Mapping[str, Mapping[str, Any]]"
"""A predicate on the call, or conditions on its arguments such as ``{"cents": {"above": 5000}}``."""
Argv: TypeAlias = "Sequence[str | Sequence[str]]"
"""The words that a command begins with; a list in place of a word means any of these."""
Examples: TypeAlias = "Sequence[str | Sequence[str] | Mapping[str, Any]]"

MOST: Final = 200
"""Words of a command, hosts, folders, conditions or examples of one rule."""
LONGEST: Final = 1_000
"""Characters of one text in a rule."""
_EXAMPLES: Final = "examples need a rule with exactly one of argv, domains and when"


def allow(  # noqa: PLR0913  one keyword for each thing that a rule can say
    tool: str,
    *,
    when: When | None = None,
    argv: Argv | None = None,
    domains: Sequence[str] | None = None,
    matches: Examples = (),
    never: Examples = (),
    name: str | None = None,
) -> Rule:
    """A rule that allows calls.

    `tool` is a tool, a pattern such as ``read*``, a family such as ``files``, ``files.read*``, ``mcp.SERVER`` or
    ``mcp.SERVER.TOOL``. The conditions must all hold: `when` is a function of the call or conditions on its arguments,
    `argv` the words that its command begins with, `domains` the hosts that its URL may lead to. `matches` and `never`
    are examples that are tried at once: a rule that says anything else about them is an error.
    """
    return _rule("allow", tool, when, argv, domains, matches, never, name)


def ask(  # noqa: PLR0913
    tool: str,
    *,
    when: When | None = None,
    argv: Argv | None = None,
    domains: Sequence[str] | None = None,
    matches: Examples = (),
    never: Examples = (),
    name: str | None = None,
    expires: timedelta | float | None = None,
) -> Rule:
    """A rule that asks a person. `expires` is how long the question stays open; then the answer is no. See `allow`."""
    return _rule("ask", tool, when, argv, domains, matches, never, name, expires_ms=_span(expires))


def deny(  # noqa: PLR0913
    tool: str,
    *,
    when: When | None = None,
    argv: Argv | None = None,
    domains: Sequence[str] | None = None,
    matches: Examples = (),
    never: Examples = (),
    name: str | None = None,
    reason: str | None = None,
) -> Rule:
    """A rule that denies calls. `reason` tells the model why. See `allow`."""
    said = None if reason is None else _text("reason", reason)
    return _rule("deny", tool, when, argv, domains, matches, never, name, reason=said)


def within(*roots: str | PurePath, tools: str = "*", name: str | None = None) -> Within:
    """A constraint: paths must really lead into one of these folders, links followed. It permits nothing by itself.

    It holds for all tools that say which of their arguments are paths, or for those of `tools`.
    """
    label = None if name is None else _text("name", name)
    return Within(roots=read_roots("within", list(roots)), tools=read_selector(tools, "tools"), name=label)


def _rule(  # noqa: PLR0913, PLR0917
    verdict: Verdict,
    tool: str,
    when: When | None,
    argv: Argv | None,
    domains: Sequence[str] | None,
    matches: Examples,
    never: Examples,
    name: str | None,
    *,
    reason: str | None = None,
    expires_ms: int | None = None,
) -> Rule:
    predicate, tests = _conditions(when)
    made = Rule(
        verdict=verdict,
        tools=read_selector(tool),
        tests=tests,
        predicate=predicate,
        argv=None if argv is None else _prefix(argv),
        domains=None if domains is None else _hosts(domains),
        matches=_examples("matches", matches),
        never=_examples("never", never),
        name=None if name is None else _text("name", name),
        reason=reason,
        expires_ms=expires_ms,
    )
    _try(made)
    return made


# ---- the parts of a rule ---------------------------------------------------------------------------------------------


def _text(key: str, value: object) -> str:
    if type(value) is not str or not 0 < len(value) <= LONGEST:
        raise PolicyInvalid(f"{excerpt(value)} is not text of 1 to {LONGEST:,} characters", key=key)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PolicyInvalid(f"{excerpt(value)} holds a lone surrogate", key=key) from None
    return value


def _list(key: str, value: object) -> list[object]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise PolicyInvalid(f"a list is wanted, not {excerpt(value)}", key=key)
    found = list(cast("Sequence[object]", value))
    if not 0 < len(found) <= MOST:
        raise PolicyInvalid(f"it has {len(found):,} entries; 1 to {MOST} can be meant", key=key)
    return found


def _prefix(argv: object) -> Prefix:
    return tuple(_choice(word) for word in _list("argv", argv))


def _choice(word: object) -> tuple[str, ...]:
    return (_text("argv", word),) if isinstance(word, str) else tuple(_text("argv", one) for one in _list("argv", word))


def _hosts(domains: object) -> tuple[Host, ...]:
    return tuple(read_rule(_text("domains", text)) for text in _list("domains", domains))


def _span(expires: timedelta | float | None) -> int | None:
    try:
        return None if expires is None else milliseconds(expires)
    except UsageError:
        wanted = "a timedelta or a number of seconds, above zero and below ten years"
        raise PolicyInvalid(f"{wanted} is wanted, not {excerpt(expires)}", key="expires") from None


def read_roots(key: str, roots: object) -> tuple[str, ...]:
    """Folders, as absolute paths."""
    listed = _list(key, roots)
    found = [_text(key, str(cast("object", root)) if isinstance(root, PurePath) else root) for root in listed]
    if any("\0" in text or text.startswith("~") for text in found):
        raise PolicyInvalid("a folder is a path from this folder or from the top; '~' is not expanded", key=key)
    return tuple(absolute(text) for text in found)


# ---- conditions on arguments -----------------------------------------------------------------------------------------


def _conditions(when: object) -> tuple[Predicate | None, tuple[ArgumentTest, ...]]:
    if when is None:
        return None, ()
    if isinstance(when, Mapping):
        given = cast("Mapping[object, object]", when)
        if not 0 < len(given) <= MOST:
            raise PolicyInvalid(f"it has {len(given):,} conditions; 1 to {MOST} can be meant", key="when")
        return None, tuple(_argument(argument, asked) for argument, asked in given.items())
    if not callable(when):
        raise PolicyInvalid(f"a function or conditions on arguments are wanted, not {excerpt(when)}", key="when")
    if iscoroutinefunction(when):
        raise PolicyInvalid("a predicate is a plain function: it decides from the call alone", key="when")
    return cast("Predicate", when), ()


def _argument(argument: object, asked: object) -> ArgumentTest:
    name = _text("when", argument)
    key = f"when.{name}"
    if not isinstance(asked, Mapping) or not asked:
        shown = excerpt(cast("object", asked))
        raise PolicyInvalid(f'conditions such as {{"above": 5000}} are wanted, not {shown}', key=key)
    tests = (_test(key, word, value) for word, value in cast("Mapping[object, object]", asked).items())
    return ArgumentTest(name, tuple(tests))


def _test(key: str, word: object, value: object) -> Test:
    match word:
        case "equals":
            return Equals(_scalar(f"{key}.equals", value))
        case "one_of":
            return OneOf(tuple(_scalar(f"{key}.one_of", one) for one in _list(f"{key}.one_of", value)))
        case "above":
            return Above(_number(f"{key}.above", value))
        case "below":
            return Below(_number(f"{key}.below", value))
        case "matches":
            return Matches(_text(f"{key}.matches", value))
        case "within":
            return Inside(read_roots(f"{key}.within", [value] if isinstance(value, str | PurePath) else value))
        case _:
            known = "equals, one_of, above, below, matches, within"
            raise PolicyInvalid(f"there is no condition {excerpt(word)}; there are {known}", key=key)


def _scalar(key: str, value: object) -> Scalar:
    if type(value) is str:
        return value if not value else _text(key, value)
    return value if type(value) is bool else _number(key, value)


def _number(key: str, value: object) -> float:
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return cast("float", value)
    raise PolicyInvalid(f"{excerpt(value)} is not a number that can be compared", key=key)


# ---- examples --------------------------------------------------------------------------------------------------------


def _examples(key: str, given: object) -> tuple[Example, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise PolicyInvalid(f"a list of examples is wanted, not {excerpt(given)}", key=key)
    return tuple(_example(key, one) for one in _list(key, given)) if given else ()  # pyright: ignore[reportUnknownArgumentType]  # of anything


def _example(key: str, one: object) -> Example:
    if isinstance(one, str):
        return one
    if isinstance(one, Mapping):
        return dict(cast("Mapping[str, object]", one))
    return tuple(_text(key, word) for word in _list(key, one))


def _try(rule: Rule) -> None:
    """Raise `PolicyInvalid` for the first example about which the rule says the opposite."""
    for key, examples, wanted in (("matches", rule.matches, True), ("never", rule.never, False)):
        for example in examples:
            subject = _pretended(rule, key, example)
            found = rule.find(subject, real_path)
            if found.state == "failed":
                raise PolicyInvalid(f"{excerpt(example)}: {found.why}", key=key)
            covered = found.state == "yes" or (found.state == "unclear" and rule.verdict != "allow")
            if covered is not wanted:
                what = "is not covered by the rule" if wanted else "is covered by the rule"
                raise PolicyInvalid(f"{excerpt(example)} {what}{f' ({found.why})' if found.why else ''}", key=key)


def _pretended(rule: Rule, key: str, example: Example) -> Subject:
    """A call for an example: what its arguments are called is known only to real tools."""
    conditions = [rule.argv is not None, rule.domains is not None, bool(rule.tests) or rule.predicate is not None]
    if sum(conditions) != 1:
        raise PolicyInvalid(_EXAMPLES, key=key)
    if rule.argv is not None and not isinstance(example, Mapping):
        return Subject(tool="example", args={"command": example}, command="command")
    if rule.domains is not None and isinstance(example, str):
        return Subject(tool="example", args={"url": example}, url="url")
    if (rule.tests or rule.predicate is not None) and isinstance(example, Mapping):
        return Subject(tool="example", args=example)
    wanted = (
        "a command" if rule.argv is not None else "a URL" if rule.domains is not None else "arguments, as a mapping"
    )
    raise PolicyInvalid(f"{excerpt(example)} is no example for this rule; {wanted} is wanted", key=key)
