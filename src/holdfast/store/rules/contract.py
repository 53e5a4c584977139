"""What a stored rule is, the commands that add and remove it, and what a backend keeps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from holdfast.store.command import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY_AGENT: Final = "*"
"""Stands for all agents where a rule names one."""


class StoredRule(msgspec.Struct, frozen=True):
    """One rule, in force until somebody removes it. Times are wall milliseconds."""

    id: int
    """Its number in the store; never given to another one."""
    agent: str
    """The agent that it is for; "*" is every one."""
    body: str
    """What it says, as JSON."""
    digest: str
    """SHA-256 of the body."""
    by: str
    at: int
    removed_by: str | None = None
    removed_at: int | None = None


# ---- commands --------------------------------------------------------------------------------------------------------


class AddRule(Command[tuple[StoredRule, bool]], frozen=True):
    """Store a rule, once while it is in force; answers it, and whether it is new."""

    agent: str
    body: str
    digest: str
    by: str

    def size(self) -> int:
        return len(self.body)


class RemoveRule(Command[tuple[StoredRule, bool]], frozen=True):
    """Take a rule out of force; answers it as it now is, and whether this has done it."""

    id: int
    by: str


# ---- what a backend provides -----------------------------------------------------------------------------------------


class RuleFilter(msgspec.Struct, frozen=True):
    """Which rules to list, newest first. `before` is the id of the last one of the page before."""

    agent: str | None = None
    before: int | None = None


class RuleRows(Protocol):
    """Rules inside a transaction: nothing is checked here."""

    def find(self, number: int) -> StoredRule | None: ...
    def same(self, agent: str, digest: str) -> StoredRule | None:
        """The rule for this agent with this digest that is in force."""
        ...

    def count(self, agent: str) -> int:
        """How many are in force for exactly this agent."""
        ...

    def add(self, rule: StoredRule) -> StoredRule:
        """Keep a new one; answers it with its `id`."""
        ...

    def remove(self, rule: StoredRule) -> None:
        """Keep by whom and when it was removed. It is sound then, whatever it was: nobody decides by it any more."""
        ...


class RuleReader(Protocol):
    """Rules as they can be read. A damaged one is a `RuleCorrupt`: without it, others would decide."""

    def in_force(self, agent: str) -> list[StoredRule]:
        """Those for this agent and those for every one, in the order in which they were stored."""
        ...

    def newest(self, where: RuleFilter, limit: int) -> list[StoredRule]:
        """Also those that were removed."""
        ...

    def raw(self) -> Iterator[tuple[StoredRule, bool]]:
        """All of them, each with whether it is sound."""
        ...
