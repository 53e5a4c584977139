"""Stored rules: in force until they are removed, once each, with a history."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from holdfast.errors import RulesFull, RuleUnknown
from holdfast.testing.conformance.suite import Now, Reopen, refusal

if TYPE_CHECKING:
    from holdfast.store import Store
    from holdfast.testing.clock import ManualClock


ALLOW = '{"allow":"files.read*"}'


async def a_rule_is_in_force_until_it_is_removed(store: Store, clock: ManualClock, now: Now, reopen: Reopen) -> None:
    added, fresh = await store.add_rule("clerk", ALLOW, by="ops")
    assert fresh
    assert (added.agent, added.body, added.by, added.at) == ("clerk", ALLOW, "ops", now)
    assert added.digest == hashlib.sha256(ALLOW.encode()).hexdigest()
    store = await reopen()
    assert await store.rules("clerk") == [added]
    clock.advance(5)
    removed, done = await store.remove_rule(added.id, by="boss")
    assert done
    assert (removed.removed_by, removed.removed_at, removed.body) == ("boss", now + 5, ALLOW)
    store = await reopen()
    assert await store.rules("clerk") == []


async def a_rule_for_every_agent_is_in_force_for_each(store: Store) -> None:
    for agent, body in (("clerk", "1"), ("*", "2"), ("cook", "3"), ("clerk", "4")):
        await store.add_rule(agent, body, by="ops")
    for agent, bodies in (("clerk", ["1", "2", "4"]), ("cook", ["2", "3"]), ("*", ["2"])):
        assert [rule.body for rule in await store.rules(agent)] == bodies, agent


async def the_first_to_store_a_rule_has_stored_it(one: Store, two: Store) -> None:
    attempts = (store.add_rule("clerk", ALLOW, by=f"p{n}") for n, store in enumerate((one, two) * 4))
    answers = await asyncio.gather(*attempts)
    assert (sum(fresh for _, fresh in answers), len({rule for rule, _ in answers})) == (1, 1)
    assert (await one.add_rule("cook", ALLOW, by="ops"))[1]


async def a_rule_that_was_removed_can_be_stored_again_under_another_number(store: Store) -> None:
    first, _ = await store.add_rule("clerk", ALLOW, by="ops")
    await store.remove_rule(first.id, by="ops")
    again, fresh = await store.add_rule("clerk", ALLOW, by="boss")
    assert fresh
    assert again.id > first.id
    assert await store.rules("clerk") == [again]


async def the_history_of_rules_names_who_removed_a_rule(store: Store) -> None:
    rules = [(await store.add_rule(agent, f"{n}", by="ops"))[0] for n, agent in enumerate(("a", "b", "a", "*"))]
    removed, _ = await store.remove_rule(rules[0].id, by="boss")
    assert await store.rule_history() == [rules[3], rules[2], rules[1], removed]
    assert await store.rule_history("a") == [rules[2], removed]
    page = await store.rule_history("a", limit=1)
    assert await store.rule_history("a", before=page[-1], limit=1) == [removed]


async def the_first_to_remove_a_rule_has_removed_it(store: Store) -> None:
    rule, _ = await store.add_rule("clerk", ALLOW, by="ops")
    first, done = await store.remove_rule(rule.id, by="boss")
    assert done
    assert await store.remove_rule(rule.id, by="other") == (first, False)
    await refusal(RuleUnknown, store.remove_rule(rule.id + 1, by="boss"), number=rule.id + 1)


async def rules_of_one_agent_are_bounded_and_those_removed_do_not_count(store: Store) -> None:
    limit = store.limits.rules
    await asyncio.gather(*(store.add_rule("clerk", f"{n}", by="ops") for n in range(limit)))
    await refusal(RulesFull, store.add_rule("clerk", '"more"', by="ops"), agent="clerk", limit=limit)
    assert not (await store.add_rule("clerk", "0", by="ops"))[1]
    assert (await store.add_rule("cook", '"more"', by="ops"))[1]
    await store.remove_rule((await store.rules("clerk"))[0].id, by="ops")
    assert (await store.add_rule("clerk", '"more"', by="ops"))[1]
