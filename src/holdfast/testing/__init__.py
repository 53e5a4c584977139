"""Tools for testing code that uses Holdfast, and Holdfast itself.

A model that follows a script, a context for calling a tool directly, a provider on the loopback that follows a script
in four dialects, a manual clock, a seeded event loop, named crash points, a world that remembers the effects on it, one
`check` of every invariant, and the conformance suite for store backends.
"""

from __future__ import annotations

from holdfast.store.audit import Violation
from holdfast.store.sqlite.backend import MemoryBackend, MemoryDisk
from holdfast.testing.calls import DirectContext, WaitUnanswered, context
from holdfast.testing.clock import ManualClock, VirtualClock
from holdfast.testing.crashes import arm_from_environment
from holdfast.testing.provider import (
    BadFrame,
    CutStream,
    Disconnect,
    ErrorFrame,
    FakeProvider,
    HttpError,
    ProviderRequest,
    Stall,
)
from holdfast.testing.scenarios import CrashReport, CrashRunner, CrashStage, RuntimeFactory
from holdfast.testing.scripted import ScriptedModel, call, cut, delayed, error, paced, refusal, reply, stream, text
from holdfast.testing.simulation import SimulatedClock, SimulatedLoop, simulate
from holdfast.testing.world import EffectAttempt, World, check

__all__ = [
    "BadFrame",
    "CrashReport",
    "CrashRunner",
    "CrashStage",
    "CutStream",
    "DirectContext",
    "Disconnect",
    "EffectAttempt",
    "ErrorFrame",
    "FakeProvider",
    "HttpError",
    "ManualClock",
    "MemoryBackend",
    "MemoryDisk",
    "ProviderRequest",
    "RuntimeFactory",
    "ScriptedModel",
    "SimulatedClock",
    "SimulatedLoop",
    "Stall",
    "Violation",
    "VirtualClock",
    "WaitUnanswered",
    "World",
    "arm_from_environment",
    "call",
    "check",
    "context",
    "cut",
    "delayed",
    "error",
    "paced",
    "refusal",
    "reply",
    "simulate",
    "stream",
    "text",
]
