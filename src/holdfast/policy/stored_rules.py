"""Rules that a person stores with an approval: as narrow as the call that was approved, and shown before. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.errors.caller import PolicyInvalid
from holdfast.policy.conditions import parse_url_host
from holdfast.policy.decisions import Policy
from holdfast.policy.files import parse_rule
from holdfast.policy.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.policy.rules import Subject


_LEAST_WORDS: Final = 2


def narrowest_rule(subject: Subject) -> str | None:
    """The rule that allows calls like this one, as JSON; None where no rule could tell them from others.

    A command is allowed by its words (and whatever follows them, so it must have two at least), a URL by its host,
    anything else by all of its arguments: never a tool as a whole.
    """
    name = f"{subject.family}.{subject.tool}" if subject.of_server else subject.tool
    table: dict[str, Any] = {"allow": name}
    given: Any = None if subject.command is None else subject.args.get(subject.command)
    if isinstance(given, list):
        if len(cast("list[Any]", given)) < _LEAST_WORDS:
            return None  # a program as a whole may do anything
        table["argv"] = given
    elif subject.url is not None:
        place = parse_url_host(str(subject.args.get(subject.url)))
        if isinstance(place, str):
            return None
        table["domains"] = [place.host]
    else:
        when = {name: _equal(value) for name, value in subject.args.items() if value is not None}
        if not when or None in when.values() or len(when) != len(subject.args):
            return None
        table["when"] = when
    body = msgspec.json.encode(table).decode()
    try:
        return body if _allows(parse_stored_rule(body), subject) else None
    except PolicyInvalid:
        return None


def _equal(value: object) -> dict[str, object] | None:
    return {"equals": value} if isinstance(value, str | int | float | bool) else None


def parse_stored_rule(body: str) -> Rule:
    """The rule that was stored as JSON; `PolicyInvalid` when it is none."""
    try:
        table = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PolicyInvalid(f"a stored rule can't be read: {error}") from None
    rule = parse_rule(cast("dict[str, Any]", table), "a stored rule", "/")
    if not isinstance(rule, Rule):
        raise PolicyInvalid("a stored rule says allow, ask or deny")
    return rule


def is_allowed_by_stored(bodies: Iterable[str], subject: Subject) -> bool:
    """Whether one of the stored rules allows this call. One that can't be read allows nothing."""
    for body in bodies:
        try:
            rule = parse_stored_rule(body)
        except PolicyInvalid:
            continue
        if _allows(rule, subject):
            return True
    return False


def _allows(rule: Rule, subject: Subject) -> bool:
    return rule.verdict == "allow" and Policy((rule,), taint=False).decide(subject).verdict == "allow"
