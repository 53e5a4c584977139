"""What an agent may do: rules, the decision about one call, and files that hold rules."""

from __future__ import annotations

from holdfast.policy.deciding import Policy, check_agent, decide, narrow, stricter
from holdfast.policy.making import allow, ask, deny, within
from holdfast.policy.rules import Rule, Within
from holdfast.policy.subject import CLEAN, Call, Decision, Subject, Taint, Verdict

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
    "stricter",
    "within",
]
