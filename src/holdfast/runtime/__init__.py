"""The runtime: one open store with the agents that may run on it. The boundary that a host application talks to."""

from __future__ import annotations

from holdfast.runtime.open import open, run
from holdfast.runtime.runtime import Runtime
from holdfast.runtime.session import Session
from holdfast.runtime.subscriptions import Control, EmitRequest, Emitted, Subscription
from holdfast.runtime.turn import Turn, TurnOutcome

__all__ = [
    "Control",
    "EmitRequest",
    "Emitted",
    "Runtime",
    "Session",
    "Subscription",
    "Turn",
    "TurnOutcome",
    "open",
    "run",
]
