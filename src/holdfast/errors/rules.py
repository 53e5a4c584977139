"""Stored rules: unknown, too many, or damaged."""

from __future__ import annotations

from holdfast.errors.tree import StoreError, UsageError


class RuleUnknown(UsageError):
    """No stored rule has this number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"there is no stored rule {number} in this store; list the rules to find its number")
        self.number = number


class RulesFull(StoreError):
    """Too many rules are stored for this agent."""

    def __init__(self, agent: str, limit: int) -> None:
        super().__init__(
            f"{limit:,} rules are already stored for {agent!r}; remove those that nobody needs, or raise the limit"
        )
        self.agent = agent
        self.limit = limit


class RuleCorrupt(StoreError):
    """A stored rule can't be trusted, so nothing is decided by it or by the others of its agent."""

    def __init__(self, number: int, agent: str) -> None:
        super().__init__(
            f"the stored rule {number} for {agent!r} does not match its checksum or its seal; remove it and store it "
            "anew, or restore it from a backup"
        )
        self.number = number
        self.agent = agent
