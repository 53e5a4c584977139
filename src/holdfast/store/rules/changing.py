"""Carries out the commands of stored rules: decide, then write. Shared by every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.rules import decisions

if TYPE_CHECKING:
    from holdfast.store.contract import Rows
    from holdfast.store.limits import StoreLimits
    from holdfast.store.rules.contract import AddRule, RemoveRule, StoredRule


class Rules:
    """The stored rules of one transaction, at one moment."""

    __slots__ = ("_limits", "_now", "_rows")

    def __init__(self, rows: Rows, limits: StoreLimits, now: int) -> None:
        self._rows = rows
        self._limits = limits
        self._now = now

    def add(self, asked: AddRule) -> tuple[StoredRule, bool]:
        found = self._rows.rules.same(asked.agent, asked.digest)
        if found is not None:
            return found, False
        decisions.check_room(asked, self._rows.rules.count(asked.agent), self._limits)
        return self._rows.rules.add(decisions.draft(asked, self._now)), True

    def remove(self, asked: RemoveRule) -> tuple[StoredRule, bool]:
        found = self._rows.rules.find(asked.id)
        removed = decisions.remove(found, asked, self._now)
        if removed is None:
            return found, False  # pyright: ignore[reportReturnType]  # None means that it was removed before
        self._rows.rules.remove(removed)
        return removed, True
