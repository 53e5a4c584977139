"""Notifications: unknown ones, and too many."""

from __future__ import annotations

from holdfast.errors.tree import StoreError, UsageError


class NotificationUnknown(UsageError):
    """No notification of this journal, or of this store, has this number."""

    def __init__(self, number: int, journal: str | None = None) -> None:
        where = "in this store" if journal is None else f"of {journal!r}"
        super().__init__(f"there is no notification {number} {where}; check the id")
        self.number = number
        self.journal = journal


class NotificationsFull(StoreError):
    """Too many notifications wait for this journal."""

    def __init__(self, journal: str, limit: int) -> None:
        super().__init__(f"{limit:,} notifications already wait for {journal!r}; let it catch up, or raise the limit")
        self.journal = journal
        self.limit = limit
