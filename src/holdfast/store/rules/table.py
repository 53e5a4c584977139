"""Stored rules in memory: the rows of a transaction and the reads of a store that keeps nothing on a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.store.rules.contract import EVERY_AGENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.rules.contract import RuleFilter, StoredRule


class RuleTable:
    """`RuleRows` and `RuleReader`."""

    def __init__(self) -> None:
        self._kept: dict[int, StoredRule] = {}

    # ---- inside a transaction ----

    def find(self, number: int) -> StoredRule | None:
        return self._kept.get(number)

    def same(self, agent: str, digest: str) -> StoredRule | None:
        return next((rule for rule in self._in_force(agent) if rule.digest == digest), None)

    def count(self, agent: str) -> int:
        return len(self._in_force(agent))

    def add(self, rule: StoredRule) -> StoredRule:
        added = replace(rule, id=len(self._kept) + 1)
        self._kept[added.id] = added
        return added

    def remove(self, rule: StoredRule) -> None:
        self._kept[rule.id] = rule

    def _in_force(self, *agents: str) -> list[StoredRule]:
        return [rule for rule in self._kept.values() if rule.removed_at is None and rule.agent in agents]

    # ---- reading ----

    def in_force(self, agent: str) -> list[StoredRule]:
        return self._in_force(agent, EVERY_AGENT)

    def newest(self, where: RuleFilter, limit: int) -> list[StoredRule]:
        chosen = [
            rule
            for rule in reversed(self._kept.values())
            if where.agent in (None, rule.agent) and (where.before is None or rule.id < where.before)
        ]
        return chosen[:limit]

    def raw(self) -> Iterator[tuple[StoredRule, bool]]:
        for rule in self._kept.values():
            yield rule, True
