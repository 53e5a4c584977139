"""Programs that models write, run where they can do nothing but call the tools that they were given."""

from __future__ import annotations

from holdfast.sandbox.contract import Program, Sandbox
from holdfast.sandbox.launching import programs_problem, require_programs
from holdfast.sandbox.limits import ProgramLimits
from holdfast.sandbox.monty import MontyProgram, MontySandbox
from holdfast.sandbox.replaying import replay
from holdfast.sandbox.steps import (
    Calls,
    Ended,
    Failed,
    HostCall,
    Kept,
    LimitHit,
    Outcome,
    Raised,
    Result,
    Returned,
    Step,
    call_id,
    call_number,
)
from holdfast.sandbox.stubs import Stub, declarations, stubs_of

__all__ = [
    "Calls",
    "Ended",
    "Failed",
    "HostCall",
    "Kept",
    "LimitHit",
    "MontyProgram",
    "MontySandbox",
    "Outcome",
    "Program",
    "ProgramLimits",
    "Raised",
    "Result",
    "Returned",
    "Sandbox",
    "Step",
    "Stub",
    "call_id",
    "call_number",
    "declarations",
    "programs_problem",
    "replay",
    "require_programs",
    "stubs_of",
]
