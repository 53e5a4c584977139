"""Rules that a person has stored: what "always" makes of an approval. What a rule says is not for the store to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.errors import InvalidArgument, InvalidValue, PayloadTooLarge
from holdfast.errors.caller import RuleUnknown
from holdfast.errors.store import RulesFull
from holdfast.names import check_id, check_int, check_string
from holdfast.store.calls import Calls
from holdfast.store.checksum import blob_digest
from holdfast.store.contract import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.contract import Reader, Rows
    from holdfast.store.limits import StoreLimits


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


class RuleCalls(Calls):
    """Stored rules: what a person has decided once for all."""

    def new_rule(self, agent: str, body: str, *, by: str) -> AddRule:
        """A rule that `answer_wait` is to store, checked as by `add_rule`."""
        return checked_rule(agent, body, by, self._backend.limits)

    async def add_rule(self, agent: str, body: str, *, by: str) -> tuple[StoredRule, bool]:
        """Store a rule (JSON) for an agent, or for every one ("*"); answers it, and whether it is new.

        While the same text is in force for the same agent, it is that one. An agent that has too many is a `RulesFull`.
        """
        return await self._submit(checked_rule(agent, body, by, self._backend.limits))

    async def remove_rule(self, number: int, *, by: str) -> tuple[StoredRule, bool]:
        """Take a rule out of force; answers it as it now is, and whether this has done it.

        It stays in the history. A number that no rule has is a `RuleUnknown`.
        """
        check_int("rule id", number, least=1)
        check_id("author", by)
        return await self._submit(RemoveRule(number, by))

    async def rules(self, agent: str) -> list[StoredRule]:
        """All rules in force for this agent, with those for every one, in the order in which they were stored.

        If one of them is damaged it is a `RuleCorrupt`: the others do not decide without it.
        """
        check_id("agent", agent)
        return await self._backend.read(lambda reader: reader.rules.in_force(agent))

    async def rule_history(
        self, agent: str | None = None, *, before: StoredRule | None = None, limit: int = 50
    ) -> list[StoredRule]:
        """Rules (for exactly this agent, if it is given), newest first, also those that were removed.

        Pass the last one as `before` for the next page.
        """
        if agent is not None:
            check_id("agent", agent)
        if before is not None and not isinstance(before, StoredRule):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("before", before, "the last rule of the page before")
        where = RuleFilter(agent, None if before is None else before.id)
        page = self._page(limit)
        return await self._backend.read(lambda reader: reader.rules.newest(where, page))


def checked_rule(agent: str, body: str, by: str, limits: StoreLimits) -> AddRule:
    """The command that stores a rule, or the error that says what is wrong with it."""
    check_id("agent", agent)
    check_id("author", by)
    said = check_string("rule", body).encode()
    if len(said) > limits.rule_bytes:
        raise PayloadTooLarge("the rule", len(said), limits.rule_bytes)
    try:
        msgspec.json.decode(said)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidValue("$", f"a stored rule is JSON: {error}") from error
    return AddRule(agent, body, blob_digest(said), by)


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
        check_room(asked, self._rows.rules.count(asked.agent), self._limits)
        return self._rows.rules.add(draft(asked, self._now)), True

    def remove(self, asked: RemoveRule) -> tuple[StoredRule, bool]:
        found = self._rows.rules.find(asked.id)
        removed = remove(found, asked, self._now)
        if removed is None:
            return found, False  # pyright: ignore[reportReturnType]  # None means that it was removed before
        self._rows.rules.remove(removed)
        return removed, True


def audit_rules(reader: Reader) -> Iterator[tuple[str, str, str]]:
    """Every violated invariant: which, where, and what was found."""
    in_force: set[tuple[str, str]] = set()
    for rule, sound in reader.rules.raw():
        where = f"rule {rule.id}"
        if not sound:
            yield "checksum", where, "the rule does not match its checksum or its seal"
            continue
        if blob_digest(rule.body.encode()) != rule.digest:
            yield "rule", where, "what it says does not match its digest"
        if (rule.removed_by is None) != (rule.removed_at is None):
            yield "rule", where, "it was removed by nobody, or at no time"
        if rule.removed_at is None:
            if (rule.agent, rule.digest) in in_force:
                yield "rule", where, "the same rule is in force twice"
            in_force.add((rule.agent, rule.digest))
