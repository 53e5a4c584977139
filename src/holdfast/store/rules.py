"""Stored rules: the answer "always" to an approval. The store does not interpret them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from holdfast.errors import InvalidValue, PayloadTooLarge
from holdfast.errors.caller import RuleUnknown
from holdfast.errors.store import RulesFull
from holdfast.names import check_id, check_string
from holdfast.store.checksum import blob_digest
from holdfast.store.contract import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.contract import Reader, StoreLimits
    from holdfast.store.transaction import Transaction


EVERY_AGENT: Final = "*"
"""The agent of a rule for every agent."""


class StoredRule(msgspec.Struct, frozen=True):
    """One rule, in force until it is removed. Times are wall milliseconds."""

    id: int
    """Its number in the store; never used again."""
    agent: str
    """The agent that it applies to; "*" for every agent."""
    body: str
    """The rule itself, as JSON."""
    digest: str
    """SHA-256 of the body."""
    by: str
    at: int
    removed_by: str | None = None
    removed_at: int | None = None


class AddRule(Command[tuple[StoredRule, bool]], frozen=True):
    """Store a rule unless the same one is in force; answers the rule, and True if it is new."""

    agent: str
    body: str
    digest: str
    by: str

    def size(self) -> int:
        return len(self.body)

    def apply(self, tx: Transaction) -> tuple[StoredRule, bool]:
        found = tx.rows.rules.same(self.agent, self.digest)
        if found is not None:
            return found, False
        if tx.rows.rules.count(self.agent) >= tx.limits.rules:
            raise RulesFull(self.agent, tx.limits.rules)
        return tx.rows.rules.add(StoredRule(0, self.agent, self.body, self.digest, self.by, tx.now.wall)), True


class RemoveRule(Command[tuple[StoredRule, bool]], frozen=True):
    """Take a rule out of force; answers the rule, and True if this command removed it."""

    id: int
    by: str

    def apply(self, tx: Transaction) -> tuple[StoredRule, bool]:
        found = tx.rows.rules.find(self.id)
        if found is None:
            raise RuleUnknown(self.id)
        if found.removed_at is not None:
            return found, False
        removed = replace(found, removed_by=self.by, removed_at=tx.now.wall)
        tx.rows.rules.remove(removed)
        return removed, True


def rule_command(agent: str, body: str, by: str, limits: StoreLimits) -> AddRule:
    """The command that stores a rule; raises if one of its values is invalid."""
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


def audit_rules(reader: Reader) -> Iterator[tuple[str, str, str]]:
    """Every violated invariant of the stored rules: rule, place, finding."""
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
