"""Mandates of sub-agents: their depth, their budget, and the policies above them. Pure.

A mandate is part of the input with which the session of a sub-agent begins, and holds for all of that session. It names
the agents above, so that their policies of today decide; it never makes anything wider than it would be without.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.policy.limits import Budget, Consumption, Limits, OutOf, Scope, limit_reached
from holdfast.policy.rules import CLEAN, NO_RULES, Taint, narrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.policy.rules import Policy


ROLE: Final = "agent"
"""The role of the session of a sub-agent; the session that it works for is that of its parent."""
T = TypeVar("T", int, float, timedelta)


class Mandate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """On whose behalf the session of a sub-agent works."""

    session: str
    """The session of the parent."""
    turn: str
    key: str
    """The call of the parent, in the journal in which it was begun."""
    call: str
    """The same, recognisable wherever the call goes on: its idempotency key."""
    above: tuple[str, ...]
    """The agents above, the first one of all first; the last one is the parent."""
    depth: int = 0
    """Levels of sub-agents that may follow below."""
    budget: Budget = Budget()
    """Budget of the session with all sub-agents below it."""
    untrusted: bool = False
    """The parent had read text of strangers."""
    private: bool = False
    """The parent had read private data."""
    untrusted_by: str = ""
    """The record with which it had."""
    private_by: str = ""


class Account(msgspec.Struct, frozen=True):
    """A budget, its span, and the usage and promises that count against it."""

    budget: Budget
    used: Consumption
    scope: Scope


def limits_under_mandate(limits: Limits, mandate: Mandate) -> Limits:
    """The limits of a sub-agent: its own, and no more than its share."""
    budget = mandate.budget
    own = Budget() if limits.session is None else limits.session
    return replace(
        limits,
        steps=_least(limits.steps, budget.steps),
        depth=min(limits.depth, mandate.depth),
        session=smaller_budget(own, budget),
    )


def smaller_budget(one: Budget, other: Budget) -> Budget:
    """A budget within both."""
    return Budget(**{name: _least(getattr(one, name), getattr(other, name)) for name in Budget.__struct_fields__})


def _least(one: T | None, other: T | None) -> T | None:
    return other if one is None else one if other is None else min(one, other)


def policy_of_sub_agent(above: Sequence[Policy | None], own: Policy | None) -> Policy:
    """The policy of a sub-agent below agents with these policies, the first one of all first."""
    decided = NO_RULES
    for number, policy in enumerate((*above, own)):
        rules = NO_RULES if policy is None else policy  # without one, an agent may read; also below one that may more
        decided = narrow(decided, rules) if number else rules
    return decided


def taint_under(mandate: Mandate | None) -> Taint:
    """The taint with which a session under this mandate begins."""
    if mandate is None:
        return CLEAN
    return Taint(mandate.untrusted, mandate.private, mandate.untrusted_by, mandate.private_by)


def promised_use(budget: Budget, used: Consumption) -> Consumption:
    """The most that a running sub-agent may have used when it has ended."""
    return Consumption(
        max(used.steps, budget.steps or 0),
        max(used.tokens, budget.tokens or 0),
        max(used.cost_usd, budget.cost_usd or 0.0),
        max(used.tool_calls, budget.tool_calls or 0),
        max(used.background, budget.background or 0),
        used.unpriced,
        max(used.wall_ms, budget.wall_ms or 0),
    )


def share_budget(fraction: float, accounts: Iterable[Account]) -> Budget | OutOf:
    """A share of the rest of all accounts; `OutOf` if one has none."""
    given = Budget()
    for account in accounts:
        part = _part(fraction, account)
        if isinstance(part, OutOf):
            return part
        given = smaller_budget(given, part)
    return given


def _part(fraction: float, account: Account) -> Budget | OutOf:
    budget, used, scope = account.budget, account.used, account.scope
    steps = _whole(fraction, budget.steps, used.steps)
    tokens = _whole(fraction, budget.tokens, used.tokens)
    cost = None if budget.cost_usd is None else (budget.cost_usd - used.cost_usd) * fraction
    calls = _whole(fraction, budget.tool_calls, used.tool_calls)
    tasks = _whole(fraction, budget.background, used.background)
    span = _whole(fraction, budget.wall_ms, used.wall_ms)
    if steps is not None and steps < 1:
        return limit_reached(scope, "steps", budget.steps or 0, used.steps)
    if tokens is not None and tokens < 1:
        return limit_reached(scope, "tokens", budget.tokens or 0, used.tokens)
    if cost is not None and cost <= 0:
        return limit_reached(scope, "cost_usd", budget.cost_usd or 0.0, used.cost_usd)
    if calls is not None and calls < 0:
        return limit_reached(scope, "tool_calls", budget.tool_calls or 0, used.tool_calls)
    if span is not None and span < 1:
        return limit_reached(scope, "wall_time", (budget.wall_ms or 0) / 1000, used.wall_ms / 1000)
    return Budget(
        steps=steps,
        tokens=tokens,
        cost_usd=cost,
        tool_calls=calls,
        background=None if tasks is None else max(tasks, 0),
        wall_time=None if span is None else timedelta(milliseconds=span),
    )


def _whole(fraction: float, allowed: int | None, used: int) -> int | None:
    return None if allowed is None else math.floor((allowed - used) * fraction)
