"""What holds for every policy and every call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.rules import (
    EXACT,
    STRICTNESS,
    Policy,
    Rule,
    Subject,
    Taint,
    Within,
    allow,
    ask,
    deny,
    narrow,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policy.rules import Call, Real


def _raises(call: Call) -> bool:
    return call.args["nowhere"]


def _large(call: Call) -> bool:
    return call.args["cents"] > 5


TOOLS = [
    "read_file",
    "refund",
    "read*",
    "*_file",
    "*",
    "files",
    "files.read*",
    "files.*",
    "mcp",
    "mcp.shop",
    "mcp.shop.r*",
]
CONDITIONS: list[dict[str, Any]] = [
    {},
    {"when": _large},
    {"when": _raises},
    {"when": {"cents": {"above": 5}}},
    {"when": {"cents": {"below": 5}}},
    {"when": {"path": {"within": "/shop"}}},
    {"argv": ["git"]},
    {"domains": ["example.com"]},
]
FOLDERS = ["/shop", "/shop/sub", "/else"]


def _lexical(path: str, base: str | None) -> str:
    """A disk without links."""
    return path if path.startswith("/") else f"{base}/{path}"


REAL: Real = _lexical


def _permission(make: Callable[..., Rule], tool: str, condition: dict[str, Any]) -> Rule:
    return make(tool, **condition)


def _constraint(root: str, tools: str) -> Within:
    return within(root, tools=tools)


def _policy(given: list[Rule | Within], taint: bool) -> Policy:  # drawn, one by one
    return Policy(tuple(given), taint=taint)


some_tools = st.sampled_from(TOOLS)
some_conditions = st.sampled_from(CONDITIONS)
permissions = st.builds(_permission, st.sampled_from([allow, ask]), some_tools, some_conditions)
denials = st.builds(_permission, st.just(deny), some_tools, some_conditions)
constraints = st.builds(_constraint, st.sampled_from(FOLDERS), st.sampled_from(["*", "files", "refund"]))
rules: st.SearchStrategy[Rule | Within] = st.one_of(permissions, denials, constraints)
policies = st.builds(_policy, st.lists(rules, max_size=6), st.booleans())
subjects = st.builds(
    Subject,
    tool=st.sampled_from(["read_file", "refund", "run"]),
    family=st.sampled_from([None, "files", "mcp.shop"]),
    args=st.fixed_dictionaries(
        {},
        optional={
            "cents": st.sampled_from([1, 9, "9"]),
            "path": st.sampled_from(["a", "/shop/a", "/else/a", 7]),
            "command": st.sampled_from([["git"], ["rm"], "git"]),
            "url": st.sampled_from(["https://example.com", "https://evil.com", "?"]),
        },
    ),
    read_only=st.booleans(),
    private=st.booleans(),
    external=st.sampled_from([None, False, True]),
    paths=st.sampled_from([(), ("path",)]),
    command=st.sampled_from([None, "command"]),
    url=st.sampled_from([None, "url"]),
    base=st.just("/shop"),
)
taints = st.builds(Taint, st.booleans(), st.booleans())


def strictness(policy: Policy, subject: Subject, taint: Taint) -> int:
    return STRICTNESS[policy.decide(subject, taint, real=REAL).verdict]


def _denied_at(policy: Policy, subject: Subject) -> int | None:
    """How closely what denies means the tool; None where nothing denies but the want of a permission."""
    decision = policy.decide(subject, real=REAL)
    if decision.verdict != "deny" or decision.rule == "default":
        return None
    rule = policy.rules[int(decision.rule.partition(":")[0]) - 1]
    return rule.specificity(subject) if isinstance(rule, Rule) else EXACT


@given(policies, st.lists(permissions, max_size=6), st.randoms(use_true_random=False), subjects, taints)
def test_a_deny_is_never_lifted_by_permissions_that_are_no_closer(
    policy: Policy, added: list[Rule], order: Any, subject: Subject, taint: Taint
) -> None:
    level = _denied_at(policy, subject)
    if level is None:
        return
    more: list[Rule | Within] = [rule for rule in added if (rule.specificity(subject) or 0) <= level]
    mixed = [*policy.rules, *more]
    order.shuffle(mixed)
    assert Policy(tuple(mixed), taint=policy.taint).decide(subject, taint, real=REAL).verdict == "deny"


@given(policies, policies, subjects, taints)
def test_a_child_gets_the_stricter_of_both_decisions(
    parent: Policy, child: Policy, subject: Subject, taint: Taint
) -> None:
    expected = max(strictness(parent, subject, taint), strictness(child, subject, taint))
    assert strictness(narrow(parent, child), subject, taint) == expected


@given(policies, policies, rules, subjects, taints)
def test_a_rule_that_is_added_to_a_child_never_widens_what_its_parent_permits(
    parent: Policy, child: Policy, rule: Rule | Within, subject: Subject, taint: Taint
) -> None:
    wider = narrow(parent, Policy((*child.rules, rule), taint=child.taint))
    assert strictness(wider, subject, taint) >= strictness(parent, subject, taint)


@given(policies, policies, policies, subjects, taints)
def test_no_chain_of_children_gets_more_than_any_of_its_ancestors(
    one: Policy, two: Policy, three: Policy, subject: Subject, taint: Taint
) -> None:
    last = narrow(narrow(one, two), three)
    expected = max(strictness(policy, subject, taint) for policy in (one, two, three))
    assert strictness(last, subject, taint) == expected


@given(policies, st.randoms(use_true_random=False), subjects, taints)
def test_the_order_in_which_rules_are_written_changes_no_verdict(
    policy: Policy, order: Any, subject: Subject, taint: Taint
) -> None:
    shuffled = list(policy.rules)
    order.shuffle(shuffled)
    assert strictness(Policy(tuple(shuffled), taint=policy.taint), subject, taint) == strictness(policy, subject, taint)


@given(policies, constraints, subjects, taints)
def test_a_constraint_only_makes_a_decision_stricter(
    policy: Policy, constraint: Within, subject: Subject, taint: Taint
) -> None:
    more = Policy((*policy.rules, constraint), taint=policy.taint)
    assert strictness(more, subject, taint) >= strictness(policy, subject, taint)


@given(policies, subjects, taints)
def test_taint_only_makes_a_decision_stricter(policy: Policy, subject: Subject, taint: Taint) -> None:
    assert strictness(policy, subject, taint) >= strictness(policy, subject, Taint())
