"""The turn machine: what an agent does next, decided without a clock, without I/O, without luck."""

from __future__ import annotations

from holdfast.policy.limits import OutOf
from holdfast.turns.conversation import Conversation, OpenTurn
from holdfast.turns.machine import Ending, poll, respond, start
from holdfast.turns.state import (
    CallModel,
    Checkpoint,
    Compacted,
    Finish,
    Inputs,
    ModelCallFailed,
    Replied,
    Results,
    Rules,
    RunTools,
    Thread,
    TurnState,
    UsedUp,
)

__all__ = [
    "CallModel",
    "Checkpoint",
    "Compacted",
    "Conversation",
    "Ending",
    "Finish",
    "Inputs",
    "ModelCallFailed",
    "OpenTurn",
    "OutOf",
    "Replied",
    "Results",
    "Rules",
    "RunTools",
    "Thread",
    "TurnState",
    "UsedUp",
    "poll",
    "respond",
    "start",
]
