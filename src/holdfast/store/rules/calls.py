"""The part of the door to a store that is about stored rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.bounds import check_int
from holdfast.errors import InvalidArgument, InvalidValue, PayloadTooLarge
from holdfast.names import check_id, check_string
from holdfast.store.calls import Calls
from holdfast.store.digests import blob_digest
from holdfast.store.rules.contract import AddRule, RemoveRule, RuleFilter, StoredRule

if TYPE_CHECKING:
    from holdfast.store.limits import StoreLimits


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
