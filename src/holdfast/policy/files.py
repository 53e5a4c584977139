"""Policy files: rules in TOML, with the words of the functions."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, Final, cast

from holdfast.errors import InvalidArgument, PolicyInvalid, PolicyUnsafe, PolicyUnwritable
from holdfast.plainfiles import read_plain_file
from holdfast.policy.paths import path_problem, real_path, why_outside
from holdfast.policy.rules import Policy, PolicyPart, Within, allow, ask, deny, within

MAX_FILE: Final = 1_000_000
"""Longest policy file, in bytes."""
_MAKERS: Final[dict[str, Callable[..., PolicyPart]]] = {"allow": allow, "ask": ask, "deny": deny, "within": within}
_KEYS: Final = {kind: tuple(signature(make).parameters)[1:] for kind, make in _MAKERS.items()}
"""The keys of a rule beside its kind: the keywords of the function."""


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Load a policy file. Errors name the file, the rule and the key."""
    if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument("policy", path, "a list of rules, a Policy, or the path of a policy file")
    place = Path(path)
    try:
        found, data = read_plain_file(path, MAX_FILE + 1)
    except (OSError, ValueError) as error:
        raise PolicyInvalid(f"it can't be read: {path_problem(error)}", file=str(place)) from None
    if not stat.S_ISREG(found.st_mode):
        raise PolicyInvalid("it is no file", file=str(place))
    if found.st_mode & stat.S_IWOTH:
        raise PolicyUnsafe(str(place), "everybody may write it; take that away with 'chmod o-w'")
    if len(data) > MAX_FILE:
        raise PolicyInvalid(f"it has more than {MAX_FILE:,} bytes", file=str(place))
    policy = parse_policy(data, str(place), str(place.absolute().parent))
    # An agent could rewrite a policy in a folder where it may work.
    for part in policy.rules:
        if isinstance(part, Within) and why_outside(str(place.absolute()), part.roots, None, real_path) is None:
            said = f"it lies in a folder that it opens to the agent ({part}); move it out of there"
            raise PolicyUnsafe(str(place), said)
    return policy


def parse_policy(data: bytes, file: str, folder: str) -> Policy:
    """Parse a policy in TOML. Its relative folders begin at `folder`."""
    try:
        found: dict[str, Any] = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PolicyInvalid(f"it is no TOML: {str(error)[:200]}", file=file) from None
    for key in found:
        if key not in {"rule", "taint"}:
            raise PolicyInvalid("there is no such key; there are taint and [[rule]]", key=key, file=file)
    tables: object = found.get("rule", [])
    if not isinstance(tables, list):
        raise PolicyInvalid("rules are written as [[rule]], each under its own heading", key="rule", file=file)
    rules = [parse_rule(table, file, folder, number) for number, table in enumerate(cast("list[object]", tables), 1)]
    try:
        return Policy(tuple(rules), taint=found.get("taint", True))
    except PolicyInvalid as error:
        raise error.located(file=file, rule=error.rule) from None


def parse_rule(table: object, file: str, folder: str, number: int = 1) -> PolicyPart:
    """Parse one rule; errors name `file` and `number`."""
    if not isinstance(table, dict):
        raise PolicyInvalid("a rule is a table under [[rule]]", rule=number, file=file)
    said = dict(cast("dict[str, Any]", table))
    kinds = [kind for kind in _MAKERS if kind in said]
    if len(kinds) != 1:
        raise PolicyInvalid("a rule says one of allow, ask, deny and within", rule=number, file=file)
    kind = kinds[0]
    unknown = next((key for key in said if key != kind and key not in _KEYS[kind]), None)
    if unknown is not None:
        known = ", ".join(_KEYS[kind])
        raise PolicyInvalid(f"{kind} has no such key; it has {known}", key=unknown, rule=number, file=file)
    if kind != "within" and not isinstance(said.get("when", {}), dict):
        wanted = "conditions on arguments are wanted, such as {cents = {above = 5000}}"
        raise PolicyInvalid(wanted, key="when", rule=number, file=file)
    first = said.pop(kind)
    try:
        if kind == "within":
            roots = _rooted(first, folder)
            return within(*(cast("list[str]", roots) if isinstance(roots, list) else [roots]), **said)
        if "when" in said:
            said["when"] = {name: _rooted_condition(asked, folder) for name, asked in said["when"].items()}
        return _MAKERS[kind](first, **said)
    except PolicyInvalid as error:
        # In a file, the verdict is the key and the tool its value.
        key = kind if error.key == "tool" else error.key
        raise PolicyInvalid(error.reason, key=key, rule=number, file=file) from None


def _rooted_condition(asked: object, folder: str) -> object:
    if not isinstance(asked, dict) or "within" not in asked:
        return cast("object", asked)
    table = cast("dict[str, Any]", asked)
    return {**table, "within": _rooted(table["within"], folder)}


def _rooted(roots: object, folder: str) -> Any:  # other types are refused later
    if isinstance(roots, list):
        return [_rooted(root, folder) for root in cast("list[object]", roots)]
    if not isinstance(roots, str) or not roots or roots.startswith("~"):
        return roots
    return os.path.join(folder, roots)  # noqa: PTH118  parse_roots resolves '..'


_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def format_policy(policy: Policy) -> str:
    """The policy in TOML; `PolicyUnwritable` names a rule that TOML can't express."""
    if policy.above:
        raise PolicyUnwritable("parent", "a policy within that of a parent is two policies; write each by itself")
    parts = [] if policy.taint else ["taint = false\n"]
    for rule in policy.rules:
        lines = [f"{key} = {_value(rule, value)}\n" for key, value in _fields(rule).items()]
        parts.append("".join(["[[rule]]\n", *lines]))
    return "\n".join(parts)


def _fields(rule: PolicyPart) -> dict[str, object]:
    """Keys and values in reading order."""
    if isinstance(rule, Within):
        tools = None if rule.tools.everything else rule.tools.text
        fields = {"within": rule.roots, "tools": tools, "name": rule.name}
    else:
        if rule.predicate is not None:
            reason = "its predicate is Python; use conditions on arguments, such as {'cents': {'above': 5000}}"
            raise PolicyUnwritable(str(rule), reason)
        when: dict[str, dict[str, object]] = {}
        for test in rule.tests:
            when.setdefault(test.argument, {})[test.word] = test.value
        argv = rule.argv
        expires = None if rule.expires_ms is None else rule.expires_ms / 1000
        fields = {
            rule.verdict: rule.tools.text,
            "when": when or None,
            "argv": None if argv is None else [choice[0] if len(choice) == 1 else choice for choice in argv],
            "domains": None if rule.domains is None else [str(host) for host in rule.domains],
            "matches": rule.matches or None,
            "never": rule.never or None,
            "reason": rule.reason,
            "expires": int(expires) if expires is not None and expires.is_integer() else expires,
            "name": rule.name,
        }
    return {key: value for key, value in fields.items() if value is not None}


def _value(rule: PolicyPart, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # JSON escapes all that TOML requires, except one character.
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
