"""What a sub-agent may do: never more than any of those above it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from holdfast.cli.sessions import SessionLine, arrange_tree
from holdfast.policy.limits import (
    Account,
    Budget,
    Consumption,
    Limits,
    Mandate,
    OutOf,
    limits_under_mandate,
    policy_of_sub_agent,
    promised_use,
    share_budget,
    smaller_budget,
)
from holdfast.policy.rules import CLEAN, STRICTNESS, Policy, Subject, Taint, allow, ask, decide, deny

if TYPE_CHECKING:
    from holdfast.policy.rules import PolicyPart

TOOLS = ("read", "write", "pay")


def _rule(verdict: str, name: str) -> PolicyPart:
    return {"allow": allow, "ask": ask, "deny": deny}[verdict](name)


def _policy(found: list[PolicyPart], taint: bool) -> Policy:
    return Policy(tuple(found), taint=taint)


rules = st.builds(_rule, st.sampled_from(["allow", "ask", "deny"]), st.sampled_from([*TOOLS, "*", "p*"]))
policies = st.none() | st.builds(_policy, st.lists(rules, max_size=4), st.booleans())
subjects = st.builds(
    Subject, tool=st.sampled_from(TOOLS), args=st.just({}), read_only=st.booleans(), private=st.booleans()
)
taints = st.builds(Taint, st.booleans(), st.booleans())
counts = st.none() | st.integers(1, 1_000)
budgets = st.builds(
    Budget,
    steps=counts,
    tokens=counts,
    cost_usd=st.none() | st.floats(0.01, 100),
    tool_calls=st.none() | st.integers(0, 100),
)
used = st.builds(Consumption, *[st.integers(0, 1_000)] * 2, st.floats(0, 100), st.integers(0, 100))


def mandate(budget: Budget = Budget(), depth: int = 2) -> Mandate:  # noqa: B008  frozen
    return Mandate(session="s", turn="t1", key="t1/2.tools/1.x", call="c", above=("a",), depth=depth, budget=budget)


@given(st.lists(policies, min_size=1, max_size=4), policies, subjects, taints)
@settings(max_examples=examples(200))
def test_no_sequence_of_spawns_allows_what_one_above_would_not(
    above: list[Policy | None], own: Policy | None, subject: Subject, taint: Taint
) -> None:
    found = STRICTNESS[policy_of_sub_agent(above, own).decide(subject, taint).verdict]
    for policy in above:
        assert found >= STRICTNESS[decide(policy, subject, taint).verdict]


@given(st.lists(policies, min_size=1, max_size=3), subjects)
def test_a_policy_of_its_own_is_never_widened_by_those_above(above: list[Policy | None], subject: Subject) -> None:
    own = Policy((deny("pay"), ask("write"), allow("*")))
    found = policy_of_sub_agent(above, own).decide(subject, CLEAN)
    assert STRICTNESS[found.verdict] >= STRICTNESS[own.decide(subject, CLEAN).verdict]


def test_below_an_agent_without_rules_only_reading_is_allowed() -> None:
    everything: tuple[PolicyPart, ...] = (allow("*"),)
    found = policy_of_sub_agent([None], Policy(everything)).decide(Subject(tool="write", args={}))
    assert found.verdict == "deny"


@given(budgets, st.lists(st.tuples(budgets, used), min_size=1, max_size=3), st.floats(0.01, 1.0))
def test_a_share_is_never_more_than_what_is_left_in_any_account(
    first: Budget, others: list[tuple[Budget, Consumption]], fraction: float
) -> None:
    accounts = [Account(first, Consumption(), "turn"), *(Account(budget, spent, "session") for budget, spent in others)]
    found = share_budget(fraction, accounts)
    if isinstance(found, OutOf):
        return
    for account in accounts:
        left = account.budget.tokens
        if left is not None:
            assert found.tokens is not None
            assert found.tokens <= left - account.used.tokens


def test_where_an_account_is_empty_nothing_is_shared() -> None:
    found = share_budget(0.5, [Account(Budget(tokens=10), Consumption(tokens=10), "turn")])
    assert isinstance(found, OutOf)
    assert found.code == "tokens"


def test_what_nobody_limits_is_not_limited_by_a_share() -> None:
    assert share_budget(0.5, [Account(Budget(), Consumption(5, 5, 5.0, 5), "turn")]) == Budget()


def test_of_two_budgets_the_lower_numbers_count() -> None:
    found = smaller_budget(Budget(steps=3, cost_usd=1.0), Budget(steps=5, tokens=7, cost_usd=0.5))
    assert found == Budget(steps=3, tokens=7, cost_usd=0.5)


def test_what_is_promised_counts_as_used_until_it_is_known() -> None:
    assert promised_use(Budget(steps=4, tokens=100), Consumption(1, 250, 0.5)) == Consumption(4, 250, 0.5)


def test_limits_below_are_the_own_ones_within_the_share() -> None:
    found = limits_under_mandate(Limits(steps=50, tokens=9, depth=4), mandate(Budget(steps=7, tokens=100), depth=1))
    assert (found.steps, found.tokens, found.depth) == (7, 9, 1)
    assert found.session == Budget(steps=7, tokens=100)


def test_taint_is_joined() -> None:
    both = Taint(untrusted_input=True, private_data=True)
    assert Taint(untrusted_input=True).joined(Taint(private_data=True)) == both


# ---- sessions as a tree ----------------------------------------------------------------------------------------------


def line(id: str, parent: str | None = None) -> SessionLine:
    return SessionLine(id, "agent", "running", 1, 0, 0, parent=parent)


def test_sub_agents_are_drawn_below_the_sessions_that_they_work_for() -> None:
    lines = [line("c", "b"), line("b", "a"), line("d", "a"), line("a"), line("e")]
    assert [placed.drawn + placed.line.id for placed in arrange_tree(lines)] == ["a", "|- b", "|  `- c", "`- d", "e"]


def test_a_sub_agent_whose_parent_is_not_shown_is_on_top() -> None:
    assert [placed.drawn for placed in arrange_tree([line("b", "gone")])] == [""]
