"""What an agent may do: rules, the decision about one call, and files that hold rules."""

from __future__ import annotations

from holdfast.policy.rules import (
    CLEAN,
    Call,
    Decision,
    Policy,
    Rule,
    Subject,
    Taint,
    Verdict,
    Within,
    allow,
    ask,
    check_agent,
    decide,
    deny,
    narrow,
    stricter_decision,
    within,
)

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
