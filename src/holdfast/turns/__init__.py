"""The turn machine: what an agent does next, decided without a clock, without I/O, without luck."""

from __future__ import annotations

from holdfast.turns.conversation import Conversation, OpenTurn
from holdfast.turns.ending import Ending
from holdfast.turns.machine import (
    CallModel,
    Checkpoint,
    Compacted,
    Finish,
    Inputs,
    ModelFailed,
    OutOf,
    Replied,
    Results,
    Rules,
    RunTools,
    TurnState,
    UsedUp,
    poll,
    respond,
    start,
)
from holdfast.turns.thread import Thread

__all__ = [
    "CallModel",
    "Checkpoint",
    "Compacted",
    "Conversation",
    "Ending",
    "Finish",
    "Inputs",
    "ModelFailed",
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
