"""What an agent may do: rules, the decision about one call, and files that hold rules."""

from __future__ import annotations

from holdfast.policy.decisions import Policy, check_agent, decide, narrow, stricter_decision
from holdfast.policy.rules import CLEAN, Call, Decision, Rule, Subject, Taint, Verdict, Within, allow, ask, deny, within

__all__ = [
    "CLEAN",
    "Call",
    "Decision",
    "Policy",
    "Rule",
    "Subject",
    "Taint",
    "Verdict",
    "Within",
    "allow",
    "ask",
    "check_agent",
    "decide",
    "deny",
    "narrow",
    "stricter_decision",
    "within",
]
