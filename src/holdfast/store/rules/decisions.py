"""Every rule about stored rules, as pure functions of what is stored and a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.errors.rules import RulesFull, RuleUnknown
from holdfast.store.rules.contract import StoredRule

if TYPE_CHECKING:
    from holdfast.store.limits import StoreLimits
    from holdfast.store.rules.contract import AddRule, RemoveRule


def check_room(asked: AddRule, count: int, limits: StoreLimits) -> None:
    """An agent has a limit of rules, and so has the sign for all agents."""
    if count >= limits.rules:
        raise RulesFull(asked.agent, limits.rules)


def draft(asked: AddRule, now: int) -> StoredRule:
    """A rule that is to be stored."""
    return StoredRule(0, asked.agent, asked.body, asked.digest, asked.by, now)


def remove(found: StoredRule | None, asked: RemoveRule, now: int) -> StoredRule | None:
    """The rule as it is removed, or None when it was removed before."""
    if found is None:
        raise RuleUnknown(asked.id)
    return None if found.removed_at is not None else replace(found, removed_by=asked.by, removed_at=now)
