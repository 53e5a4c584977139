"""A policy, and what it decides about a call. Pure, but for the function that says where a path really leads.

How a call is decided, so that people can predict it:

1. Of the rules about its tool, those that mean it most closely are asked first: a rule that names the tool, then
   patterns and families with more letters before those with fewer, then ``*``.
2. Among equally close rules the strictest that holds decides: deny, then ask, then allow. If none holds, the next
   closest are asked. If none is left, the call is denied. Without any rule, calls that only read are allowed.
3. Then `within` and taint are looked at. They can only make the decision stricter.

A deny is never overridden: where a deny rule holds, a predicate fails or a constraint is broken, adding allow and ask
rules that mean the tool no more closely than that rule never lifts the deny, in whatever order they are written; for a
constraint, no rule at all does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from holdfast.errors.base import excerpt
from holdfast.errors.caller import PolicyInvalid, PolicyMissing
from holdfast.policy.conditions import is_literal, real_path
from holdfast.policy.rules import CLEAN, STRICTNESS, Decision, PolicyPart, Rule, Within

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from holdfast.policy.conditions import Real
    from holdfast.policy.rules import Subject, Taint


_log: Final = logging.getLogger("holdfast.policy")
MAX_RULES: Final = 1_000
"""Rules and constraints of one policy."""
TAINTED: Final = (
    "the turn has read untrusted input and private data, and this call could send something out; a person decides"
)
_HINTS: Final = 3


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules and constraints. With ``taint=False`` nobody is asked about external effects of tainted turns."""

    rules: tuple[PolicyPart, ...] = ()
    _: KW_ONLY
    taint: bool = True
    above: tuple[Policy, ...] = ()
    """Policies of parents: each of them must permit a call as well."""

    def __post_init__(self) -> None:
        rules = cast("object", self.rules)
        if isinstance(rules, str) or not isinstance(rules, Sequence):
            raise PolicyInvalid(f"a list of rules is wanted, not {excerpt(rules)}")
        object.__setattr__(self, "rules", tuple(self.rules))
        if len(self.rules) > MAX_RULES:
            raise PolicyInvalid(f"it has {len(self.rules):,} rules; the limit is {MAX_RULES:,}")
        for number, rule in enumerate(cast("tuple[object, ...]", self.rules), 1):
            if not isinstance(rule, Rule | Within):
                wanted = "hf.allow(...), hf.ask(...), hf.deny(...) or hf.within(...)"
                raise PolicyInvalid(f"{wanted} is wanted, not {excerpt(rule)}", rule=number)
        if type(self.taint) is not bool:
            raise PolicyInvalid(f"True or False is wanted, not {excerpt(self.taint)}", key="taint")

    @classmethod
    def of(cls, given: Policy | Sequence[PolicyPart] | str | os.PathLike[str] | None) -> Policy | None:
        """The policy that an agent was given: itself, its rules, or the path of its file; None where there is none."""
        if given is None or isinstance(given, Policy):
            return given
        return (
            cls(cast("tuple[PolicyPart, ...]", given))
            if isinstance(given, list | tuple)
            else cls.load(cast("str", given))
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """The policy that a file holds. Folders in it begin at the folder of the file."""
        from holdfast.policy.files import load_policy  # noqa: PLC0415  it is made of policies

        return load_policy(path)

    def dumps(self) -> str:
        """The policy as the text of a file; `PolicyUnwritable` where a predicate can't be written."""
        from holdfast.policy.files import format_policy  # noqa: PLC0415

        return format_policy(self)

    def decide(self, subject: Subject, taint: Taint = CLEAN, *, real: Real = real_path) -> Decision:
        """What it says about a call, in a turn with this taint."""
        return decide(self, subject, taint, real=real)

    def numbered(self) -> Iterator[tuple[int, Rule]]:
        """Its rules with their numbers; constraints have numbers too."""
        return ((number, rule) for number, rule in enumerate(self.rules, 1) if isinstance(rule, Rule))

    def constraints(self) -> Iterator[tuple[int, Within]]:
        """Its constraints with their numbers."""
        return ((number, rule) for number, rule in enumerate(self.rules, 1) if isinstance(rule, Within))


NO_RULES: Final = Policy()
"""What holds for an agent without a policy: it may read."""


def decide(policy: Policy | None, subject: Subject, taint: Taint = CLEAN, *, real: Real = real_path) -> Decision:
    """What a policy says about a call, in a turn with this taint. Never raises because of what is in the call."""
    asked = NO_RULES if policy is None else policy
    decision = _decide_by_rules(asked, subject, real)
    decision = _apply_constraints(asked, decision, subject, real)
    if asked.taint:
        decision = _apply_taint(decision, subject, taint)
    for parent in asked.above:
        over = decide(parent, subject, taint, real=real)
        decision = stricter_decision(decision, msgspec.structs.replace(over, rule=f"parent: {over.rule}"))
    return decision


def narrow(parent: Policy | None, child: Policy | None) -> Policy:
    """The policy of a child agent: always the stricter of both decisions. A child without one has its parent's."""
    above = NO_RULES if parent is None else parent
    if child is None:
        return above
    return Policy(child.rules, taint=child.taint, above=(*child.above, above))


def stricter_decision(one: Decision, other: Decision) -> Decision:
    """The stricter decision, the first where they agree; two questions are one, open as long as the shorter."""
    if STRICTNESS[other.verdict] > STRICTNESS[one.verdict]:
        return other
    if one.verdict != "ask" or other.verdict != "ask":
        return one
    spans = [span for span in (one.expires_ms, other.expires_ms) if span is not None]
    return msgspec.structs.replace(
        one, expires_ms=min(spans, default=None), tainted=one.tainted or other.tainted, why=_join_questions(one, other)
    )


def _join_questions(one: Decision, other: Decision) -> str:
    return f"{one.why}; {other.why}" if other.tainted and not one.tainted else one.why


def check_agent(name: str, subjects: Iterable[Subject], policy: Policy | None) -> None:
    """Raise `PolicyMissing` for an agent that has tools which write, and no policy at all.

    A rule that names no tool of the agent, but nearly one, is told: `PolicyInvalid` if nothing else is said about that
    one, else a warning in the log, since the policy may be for other agents as well.
    """
    subjects = list(subjects)
    if policy is not None:
        _check_names(name, subjects, policy)
        return
    writing = [subject.tool for subject in subjects if not subject.read_only]
    if writing:
        raise PolicyMissing(name, writing)


def _check_names(agent: str, subjects: list[Subject], policy: Policy) -> None:
    rules = [rule for _, rule in policy.numbered()]
    named = {rule.tools.name for rule in rules if rule.tools.family is None}
    for number, rule in policy.numbered():
        tools = rule.tools
        if tools.family is not None or not is_literal(tools.name):
            continue
        if any(tools.specificity(subject) is not None for subject in subjects):
            continue
        from difflib import get_close_matches  # noqa: PLC0415  only where a name may be wrong

        others = {subject.tool: subject for subject in subjects if subject.tool not in named}
        close = get_close_matches(tools.name, others, n=1)
        if not close:
            continue
        said = f"the agent {agent!r} has no tool {tools.name!r}; did you mean {close[0]!r}?"
        if all(each.specificity(others[close[0]]) is None for each in rules):
            raise PolicyInvalid(said, rule=number)
        _log.warning("rule %d of its policy (%s) does nothing: %s", number, rule, said)


def _decide_by_rules(policy: Policy, subject: Subject, real: Real) -> Decision:
    levels: dict[int, list[tuple[int, Rule]]] = {}
    for number, rule in policy.numbered():
        level = rule.specificity(subject)
        if level is not None:
            levels.setdefault(level, []).append((number, rule))
    missed: list[str] = []
    for level in sorted(levels, reverse=True):
        decision = _strictest_at_level(levels[level], subject, real, missed)
        if decision is not None:
            return decision
    return _default(policy, subject, missed)


def _strictest_at_level(
    rules: list[tuple[int, Rule]], subject: Subject, real: Real, missed: list[str]
) -> Decision | None:
    """The strictest of equally close rules that hold. All are asked: what fails must not be hidden by what holds."""
    found: Decision | None = None
    for number, rule in rules:
        finding = rule.find(subject, real)
        label = f"{number}: {rule}"
        match finding.state:
            case "no":
                continue
            case "failed":
                decision = Decision("deny", label, f"{finding.why}; a rule that fails denies")
            case "unclear" if rule.verdict == "allow":
                missed.append(f"rule {label} does not cover it: {finding.why}")
                continue
            case _:
                decision = Decision(rule.verdict, label, _why(rule, subject, finding.why), rule.expires_ms)
        found = decision if found is None else stricter_decision(found, decision)
    return found


def _why(rule: Rule, subject: Subject, unclear: str) -> str:
    if rule.reason is not None:
        return rule.reason
    said = f"{subject.tool} is meant by {rule.written!r}"
    return f"{said}; {unclear}, which counts against it" if unclear else said


def _default(policy: Policy, subject: Subject, missed: list[str]) -> Decision:
    if any(True for _ in policy.numbered()):
        return Decision("deny", "default", "; ".join(["no rule allows it", *missed[:_HINTS]]))
    if subject.read_only:
        return Decision("allow", "default", "there are no rules, and it only reads")
    return Decision("deny", "default", "there are no rules, and it does not only read; add hf.allow(...) for it")


def _apply_constraints(policy: Policy, decision: Decision, subject: Subject, real: Real) -> Decision:
    for number, constraint in policy.constraints():
        why = constraint.objection(subject, real)
        if why is not None:
            return stricter_decision(decision, Decision("deny", f"{number}: {constraint}", why))
    return decision


def _apply_taint(decision: Decision, subject: Subject, taint: Taint) -> Decision:
    # What the call itself returns can't have led to it, but what it reads may leave with it.
    private = taint.private_data or subject.private
    if decision.verdict == "deny" or not (taint.untrusted_input and private and subject.reaches_out):
        return decision
    said = f"{TAINTED}{_sources(taint)}"
    if decision.verdict == "ask":
        return msgspec.structs.replace(decision, why=f"{decision.why}; {said}", tainted=True)
    return Decision("ask", "taint", f"{said} (otherwise: {decision.verdict} by {decision.rule})", tainted=True)


def _sources(taint: Taint) -> str:
    """The records that tainted the turn, in words."""
    private = taint.private_by or ("" if taint.private_data else "this call")
    found = [("untrusted", taint.untrusted_by), ("private", private)]
    named = [f"{what}: {by}" for what, by in found if by]
    return f" ({'; '.join(named)})" if taint.untrusted_by or taint.private_by else ""


class ListedRule(NamedTuple):
    """One rule or constraint."""

    number: int
    rule: PolicyPart
    reaches: tuple[str, ...]
    """The tools of the agent that it is about; a rule without any is never tried, and may have a wrong name."""


def list_rules(policy: Policy, subjects: Iterable[Subject]) -> list[ListedRule]:
    """Rules first, the closest and strictest before others; then constraints; those about no tool of the agent last."""
    tools = list(subjects)
    found = [(_closeness(rule, tools), number, rule) for number, rule in enumerate(policy.rules, 1)]
    return [
        ListedRule(number, rule, tuple(reached))
        for reached, number, rule in sorted(found, key=lambda one: _place(one[2], one[1], one[0]))
    ]


def _closeness(rule: PolicyPart, tools: list[Subject]) -> dict[str, int]:
    levels = {tool.tool: _level(rule, tool) for tool in tools}
    return {tool: level for tool, level in levels.items() if level is not None}


def _level(rule: PolicyPart, tool: Subject) -> int | None:
    if isinstance(rule, Rule):
        return rule.specificity(tool)
    # A constraint for all tools is about those that have paths.
    return None if rule.tools.everything and not tool.paths else rule.tools.specificity(tool)


def _place(rule: PolicyPart, number: int, reached: dict[str, int]) -> tuple[bool, bool, int, int, int]:
    if not isinstance(rule, Rule):
        return not reached, True, 0, 0, number
    return not reached, False, -max(reached.values(), default=0), -STRICTNESS[rule.verdict], number
