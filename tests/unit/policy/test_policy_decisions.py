"""What a policy decides: closest rules first, deny before ask before allow, and nothing without a rule."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.every import every

from holdfast.errors.caller import PolicyInvalid, PolicyMissing
from holdfast.policy.rules import (
    CLEAN,
    Call,
    Policy,
    Subject,
    Taint,
    allow,
    ask,
    check_agent,
    decide,
    deny,
    narrow,
    within,
)

if TYPE_CHECKING:
    from holdfast.policy.rules import Rule, Verdict, Within


def files(tool: str, **args: Any) -> Subject:
    return Subject(tool=tool, family="files", args=args, paths=("path",), read_only=tool.startswith("read"))


def refund(**args: Any) -> Subject:
    return Subject(tool="refund", args=args)


def verdict(subject: Subject, *rules: Rule | Within, taint: Taint = CLEAN) -> Verdict:
    return Policy(rules).decide(subject, taint).verdict


READ = files("read_file", path="a")
SERVED = Subject(tool="read_file", family="mcp.github", args={})


# ---- which rule ------------------------------------------------------------------------------------------------------


@every("tool", ["read_file", "read*", "*_file", "read_fil?", "*", "files", "files.read*", "files.*", "f*.read_file"])
def test_a_tool_is_meant_by_its_name_its_family_and_patterns_of_both(tool: str) -> None:
    assert verdict(READ, allow(tool)) == "allow"


@every("tool", ["read", "file", "web", "web.read*", "files.write*", "mcp", "mcp.files", "READ_FILE"])
def test_a_tool_is_not_meant_by_anything_else(tool: str) -> None:
    assert verdict(READ, allow(tool)) == "deny"


@every("tool", ["mcp", "mcp.github", "mcp.git*", "mcp.github.read*", "mcp.github.read_file", "*"])
def test_a_tool_of_a_server_is_meant_by_its_server(tool: str) -> None:
    assert verdict(SERVED, allow(tool)) == "allow"


@every("tool", ["mcp.gitlab", "mcp.github.write*", "read_file", "read*", "*.read*", "files"])
def test_a_server_gets_no_permission_by_naming_its_tool_like_another(tool: str) -> None:
    assert verdict(SERVED, allow(tool)) == "deny"


@pytest.mark.parametrize("tool", ["read_file", "read*"])
def test_a_tool_of_a_server_is_denied_by_its_name_as_well(tool: str) -> None:
    assert verdict(SERVED, deny(tool), allow("*")) == "deny"


CLOSER = ["read_file", "files.read*", "files", "read*", "*"]
"""From the closest to the least close, for `read_file` of the family `files`."""


@pytest.mark.parametrize("far", range(1, len(CLOSER)))
def test_a_closer_allow_goes_before_a_deny(far: int) -> None:
    assert verdict(READ, deny(CLOSER[far]), allow(CLOSER[far - 1])) == "allow"


@pytest.mark.parametrize("far", range(1, len(CLOSER)))
def test_a_closer_deny_goes_before_an_allow(far: int) -> None:
    assert verdict(READ, allow(CLOSER[far]), deny(CLOSER[far - 1])) == "deny"


@pytest.mark.parametrize("rules", [[deny("files.read_file"), allow("read_file")], [allow("*_file"), deny("read_*")]])
def test_of_equally_close_rules_the_strictest_decides(rules: list[Rule]) -> None:
    assert verdict(READ, *rules) == "deny"


def test_deny_goes_before_ask_before_allow() -> None:
    assert [verdict(READ, allow("*"), ask("*"), deny("*")), verdict(READ, allow("*"), ask("*"))] == ["deny", "ask"]


def test_a_rule_whose_condition_does_not_hold_leaves_the_decision_to_the_next_level() -> None:
    rules = [ask("refund", when=lambda call: call.args["cents"] > 5000), allow("*")]
    assert [verdict(refund(cents=cents), *rules) for cents in (900, 9000)] == ["allow", "ask"]


def test_the_decision_names_the_rule_by_its_number() -> None:
    decision = Policy((deny("shell"), ask("refund", when={"cents": {"above": 5000}}))).decide(refund(cents=9000))
    assert decision.rule == "2: ask refund when cents above 5000"


def test_a_rule_with_a_name_is_called_by_it() -> None:
    assert Policy((ask("refund", name="refunds"),)).decide(refund()).rule == "1: refunds"


def test_the_reason_of_a_deny_is_what_is_told() -> None:
    assert Policy((deny("refund", reason="Call the shop."),)).decide(refund()).why == "Call the shop."


@pytest.mark.parametrize("expires", [timedelta(hours=1), 3600, 3600.0])
def test_a_question_stays_open_as_long_as_its_rule_says(expires: timedelta | float) -> None:
    assert Policy((ask("refund", expires=expires),)).decide(refund()).expires_ms == 3_600_000


# ---- no rule ---------------------------------------------------------------------------------------------------------


def test_what_no_rule_allows_is_denied() -> None:
    decision = Policy((allow("find_order"),)).decide(refund())
    assert (decision.verdict, decision.rule, decision.why) == ("deny", "default", "no rule allows it")


@pytest.mark.parametrize("policy", [None, Policy()])
def test_without_any_rule_a_call_that_only_reads_is_allowed(policy: Policy | None) -> None:
    assert decide(policy, READ).verdict == "allow"


@pytest.mark.parametrize("policy", [None, Policy()])
def test_without_any_rule_a_call_that_writes_is_denied(policy: Policy | None) -> None:
    assert decide(policy, refund()).verdict == "deny"


def test_an_agent_that_writes_without_a_policy_is_refused_with_the_lines_that_help() -> None:
    with pytest.raises(PolicyMissing, match=r'policy=\[hf\.allow\("\*"\)\]') as raised:
        check_agent("support", [READ, refund()], None)
    assert raised.value.tools == ("refund",)


def test_an_agent_that_only_reads_needs_no_policy() -> None:
    check_agent("support", [READ], None)


def test_an_agent_with_a_policy_may_have_tools_that_write() -> None:
    check_agent("support", [refund()], Policy())


# ---- predicates ------------------------------------------------------------------------------------------------------


def _raises(call: Call) -> bool:
    return call.args["nowhere"]


@pytest.mark.parametrize("make", [allow, ask, deny])
def test_a_predicate_that_raises_denies(make: Any) -> None:
    decision = Policy((make("refund", when=_raises), allow("*"))).decide(refund())
    assert decision.verdict == "deny"
    assert "KeyError" in decision.why


@pytest.mark.parametrize("answer", [1, 0, None, "yes", [True]])
def test_a_predicate_that_gives_no_bool_denies(answer: object) -> None:
    decision = Policy((allow("refund", when=lambda _: cast("bool", answer)),)).decide(refund())
    assert decision.verdict == "deny"
    assert f"gave a {type(answer).__name__}" in decision.why


def test_a_predicate_that_gives_a_coroutine_denies() -> None:
    async def later() -> bool:
        return True

    assert verdict(refund(), allow("refund", when=lambda _: cast("bool", later()))) == "deny"


def test_a_predicate_that_raises_is_not_hidden_by_an_equally_close_question() -> None:
    assert verdict(refund(), ask("refund"), allow("refund", when=_raises)) == "deny"


def test_a_predicate_can_change_nothing() -> None:
    def meddles(call: Call) -> bool:
        call.args["items"].append("all")
        call.args["cents"] = 1
        return True

    subject = refund(cents=9000, items=["one"])
    verdict(subject, allow("refund", when=meddles))
    assert subject.args == {"cents": 9000, "items": ["one"]}


def test_what_one_predicate_does_to_its_arguments_another_does_not_see() -> None:
    def meddles(call: Call) -> bool:
        call.args["cents"] = 1
        return False

    rules = [allow("refund", when=meddles), ask("refund", when=lambda call: call.args["cents"] == 9000)]
    assert verdict(refund(cents=9000), *rules) == "ask"


# ---- conditions on arguments -----------------------------------------------------------------------------------------


@every(
    ("asked", "value", "expected"),
    [
        ({"equals": "IT"}, "IT", "allow"),
        ({"equals": "IT"}, "it", "deny"),
        ({"equals": 1}, 1.0, "allow"),
        ({"equals": 1}, True, "deny"),
        ({"equals": True}, 1, "deny"),
        ({"equals": "1"}, 1, "deny"),
        ({"one_of": ["IT", "FR"]}, "FR", "allow"),
        ({"one_of": ["IT", "FR"]}, "DE", "deny"),
        ({"above": 5}, 5.5, "allow"),
        ({"above": 5}, 5, "deny"),
        ({"above": 5}, "9", "deny"),
        ({"above": 0}, True, "deny"),
        ({"below": 5}, 4, "allow"),
        ({"below": 5}, 5, "deny"),
        ({"above": 1, "below": 5}, 3, "allow"),
        ({"above": 1, "below": 5}, 7, "deny"),
        ({"matches": "ord-*"}, "ord-7", "allow"),
        ({"matches": "ord-*"}, "an ord-7", "deny"),
        ({"matches": "ord-?"}, "ord-77", "deny"),
        ({"matches": "*"}, ["ord-7"], "deny"),
        ({"equals": "IT"}, None, "deny"),
    ],
)
def test_an_allow_covers_the_arguments_that_its_conditions_hold_for(
    asked: dict[str, Any], value: object, expected: str
) -> None:
    assert verdict(refund(x=value), allow("refund", when={"x": asked})) == expected


@pytest.mark.parametrize("args", [{}, {"cents": None}, {"cents": "9000"}, {"cents": [9000]}, {"cents": True}])
def test_an_argument_that_nobody_can_compare_counts_against_the_call(args: dict[str, Any]) -> None:
    assert verdict(refund(**args), ask("refund", when={"cents": {"above": 5000}}), allow("*")) == "ask"


@every("rule", [ask, deny])
@every(
    ("asked", "value"),
    [
        ({"equals": "DE"}, 5),
        ({"equals": "DE"}, ["DE"]),
        ({"equals": "DE"}, ["IT"]),
        ({"equals": "DE"}, {"country": "DE"}),
        ({"equals": 1}, True),
        ({"equals": True}, 1),
        ({"equals": 1}, "1"),
        ({"equals": 1}, [1]),
        ({"equals": 1}, math.nan),
        ({"one_of": ["DE", "IT"]}, ["DE"]),
        ({"one_of": ["DE", "IT"]}, {"DE": "IT"}),
        ({"one_of": ["DE", "IT"]}, 1),
        ({"one_of": [1, 2]}, True),
        ({"one_of": ["a", 1]}, True),
        ({"one_of": ["a", 1]}, ["a", 1]),
        ({"above": 1}, math.nan),
        ({"below": 1}, math.nan),
        ({"matches": "*"}, ["a"]),
    ],
)
def test_a_value_of_another_kind_counts_against_the_call(rule: Any, asked: dict[str, Any], value: object) -> None:
    wanted = "ask" if rule is ask else "deny"
    assert verdict(refund(x=value), rule("refund", when={"x": asked}), allow("*")) == wanted


@pytest.mark.parametrize(
    ("asked", "value"),
    [
        ({"equals": "DE"}, "IT"),
        ({"equals": 1}, 2.5),
        ({"equals": True}, False),
        ({"one_of": ["DE", 1]}, "IT"),
        ({"one_of": ["DE", 1]}, 2),
    ],
)
def test_a_refusal_leaves_other_values_of_the_same_kind_alone(asked: dict[str, Any], value: object) -> None:
    assert verdict(refund(x=value), deny("refund", when={"x": asked}), allow("*")) == "allow"


def test_a_pattern_with_many_stars_is_matched_in_no_time() -> None:
    assert verdict(refund(x="a" * 5000), allow("refund", when={"x": {"matches": "*a" * 100 + "b"}})) == "deny"


# ---- taint -----------------------------------------------------------------------------------------------------------

BOTH = Taint(untrusted_input=True, private_data=True)
SEND = Subject(tool="send_mail", args={}, external=True)


@every("untrusted", [False, True])
@every("private", [False, True])
@every("external", [False, True])
def test_an_external_effect_asks_in_a_turn_that_has_read_strangers_and_private_data(
    *, untrusted: bool, private: bool, external: bool
) -> None:
    subject = Subject(tool="send_mail", args={}, external=external)
    expected = "ask" if untrusted and private and external else "allow"
    assert verdict(subject, allow("*"), taint=Taint(untrusted, private)) == expected


def test_a_call_that_itself_reads_private_data_and_sends_asks_in_a_turn_that_has_read_strangers() -> None:
    subject = Subject(tool="shell", args={}, private=True, external=True)
    assert verdict(subject, allow("*"), taint=Taint(untrusted_input=True)) == "ask"


def test_what_a_call_will_return_does_not_taint_the_call() -> None:
    subject = Subject(tool="fetch", args={}, untrusted=True, external=True)
    assert verdict(subject, allow("*"), taint=Taint(private_data=True)) == "allow"


def test_a_tool_that_writes_and_does_not_say_where_is_taken_to_reach_out() -> None:
    assert verdict(refund(), allow("*"), taint=BOTH) == "ask"


def test_a_tool_that_only_reads_and_says_nothing_else_is_taken_to_stay_inside() -> None:
    assert verdict(READ, allow("*"), taint=BOTH) == "allow"


def test_taint_is_visible_in_the_decision() -> None:
    decision = Policy((allow("*"),)).decide(SEND, BOTH)
    assert decision.rule == "taint"
    assert "untrusted input and private data" in decision.why
    assert "1: allow *" in decision.why


def test_taint_is_visible_in_a_question_that_a_rule_asks() -> None:
    decision = Policy((ask("*", expires=60),)).decide(SEND, BOTH)
    assert (decision.rule, decision.expires_ms) == ("1: ask *", 60_000)
    assert "untrusted input and private data" in decision.why


@pytest.mark.parametrize("make", [allow, ask])
def test_a_question_that_taint_asks_is_marked_whichever_rule_asks_it_too(make: Any) -> None:
    assert Policy((make("*"),)).decide(SEND, BOTH).tainted


@pytest.mark.parametrize("taint", [True, False])
def test_a_question_that_only_the_taint_of_the_parent_asks_is_marked(*, taint: bool) -> None:
    decision = narrow(Policy((allow("*"),)), Policy((ask("*"),), taint=taint)).decide(SEND, BOTH)
    assert decision.tainted
    assert decision.why.count("untrusted input and private data") == 1


def test_a_question_that_only_a_rule_asks_is_not_marked() -> None:
    assert not Policy((ask("*"),)).decide(SEND).tainted


def test_taint_does_not_soften_a_deny() -> None:
    assert verdict(SEND, deny("*"), taint=BOTH) == "deny"


def test_taint_is_looked_at_without_any_rule() -> None:
    assert decide(None, Subject(tool="fetch", args={}, read_only=True, external=True), BOTH).verdict == "ask"


def test_taint_can_be_switched_off() -> None:
    assert Policy((allow("*"),), taint=False).decide(SEND, BOTH).verdict == "allow"


def test_taint_adds_up_call_by_call_and_stays() -> None:
    fetched = CLEAN.after(Subject(tool="fetch", args={}, untrusted=True))
    read = fetched.after(Subject(tool="read_file", args={}, private=True))
    assert [fetched, read, read.after(refund())] == [Taint(untrusted_input=True), BOTH, BOTH]


# ---- children --------------------------------------------------------------------------------------------------------


def test_a_child_may_do_less_than_its_parent() -> None:
    assert narrow(Policy((allow("*"),)), Policy((allow("find*"),))).decide(refund()).verdict == "deny"


def test_a_child_may_not_do_more_than_its_parent() -> None:
    decision = narrow(Policy((deny("refund"), allow("*"))), Policy((allow("refund"),))).decide(refund())
    assert (decision.verdict, decision.rule) == ("deny", "parent: 1: deny refund")


def test_a_child_without_a_policy_has_that_of_its_parent() -> None:
    parent = Policy((ask("*"),))
    assert narrow(parent, None) == parent


def test_a_child_of_a_parent_without_a_policy_may_only_read() -> None:
    policy = narrow(None, Policy((allow("*"),)))
    assert [policy.decide(READ).verdict, policy.decide(refund()).verdict] == ["allow", "deny"]


def test_a_grandchild_is_bound_by_all_above_it() -> None:
    policy = narrow(narrow(Policy((ask("refund"), allow("*"))), Policy((allow("*"),))), Policy((allow("*"),)))
    assert policy.decide(refund()).verdict == "ask"


def test_a_question_of_child_and_parent_is_open_as_long_as_the_shorter_one() -> None:
    policy = narrow(Policy((ask("*", expires=5),)), Policy((ask("*", expires=60),)))
    assert policy.decide(refund()).expires_ms == 5_000


def test_a_child_can_not_switch_the_taint_of_its_parent_off() -> None:
    policy = narrow(Policy((allow("*"),)), Policy((allow("*"),), taint=False))
    assert policy.decide(SEND, BOTH).verdict == "ask"


# ---- what can't be meant ---------------------------------------------------------------------------------------------


@every("tool", ["", "a b", "files.", ".read", "a.b.c", "mcp.a.b.c", "read[ab]", "x" * 201, 7, None])
def test_what_names_no_tools_is_an_error(tool: Any) -> None:
    with pytest.raises(PolicyInvalid, match="'tool'"):
        allow(tool)


@every("when", [7, "cents > 5", {}, {"cents": {}}, {"cents": 5}, {"cents": {"over": 5}}])
def test_conditions_that_can_not_be_meant_are_an_error(when: Any) -> None:
    with pytest.raises(PolicyInvalid, match="'when"):
        allow("refund", when=when)


@every(
    "asked", [{"above": "5"}, {"above": True}, {"below": float("nan")}, {"one_of": []}, {"equals": [1]}, {"matches": 5}]
)
def test_a_condition_with_a_value_that_nobody_can_compare_is_an_error(asked: dict[str, Any]) -> None:
    with pytest.raises(PolicyInvalid, match=f"'when.cents.{next(iter(asked))}'"):
        allow("refund", when={"cents": asked})


def test_a_predicate_that_is_async_is_an_error() -> None:
    async def later(call: Call) -> bool:
        return bool(call)

    with pytest.raises(PolicyInvalid, match="plain function"):
        allow("refund", when=cast("Any", later))


@pytest.mark.parametrize("expires", [0, -1, "1h", float("inf"), True])
def test_a_question_that_is_never_open_is_an_error(expires: Any) -> None:
    with pytest.raises(PolicyInvalid, match="'expires'"):
        ask("refund", expires=expires)


@pytest.mark.parametrize("rules", [("allow",), [7], "allow", 7])
def test_a_policy_is_made_of_rules(rules: Any) -> None:
    with pytest.raises(PolicyInvalid, match="is wanted"):
        Policy(rules)


def test_a_policy_with_too_many_rules_is_an_error() -> None:
    with pytest.raises(PolicyInvalid, match="1,001 rules"):
        Policy((allow("*"),) * 1001)


def test_a_constraint_without_a_folder_is_an_error() -> None:
    with pytest.raises(PolicyInvalid, match="'within'"):
        within()
