"""What the tests of programs share: tools, and a host that answers every call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.messages import ToolSpec
from holdfast.sandbox import CallResult, CallValue, PendingCalls, ProgramLimits, programs_problem, stubs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.sandbox import CallOutcome, HostCall, LimitHit, Program, ProgramEnd, ProgramFailure, Sandbox

PROBLEM = programs_problem()
needs_sandbox = pytest.mark.skipif(PROBLEM is not None, reason=f"no programs: {PROBLEM}")
NOW = 1_700_000_000.25
QUICK = ProgramLimits(seconds=2, step_seconds=0.5, memory=32 * 2**20, calls=200)


def spec(name: str, required: tuple[str, ...] = (), **properties: dict[str, Any]) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return ToolSpec(name, "", schema)


TOOLS = stubs_of(
    (
        spec("fetch", ("n",), n={"type": "integer"}),
        spec("save", ("rows",), rows={"type": "array", "items": {"type": "integer"}}, note={"type": "string"}),
    )
)


def doubled(call: HostCall) -> CallOutcome:
    """Twice what was asked for; the clock stands still."""
    if call.kind == "clock":
        return CallValue(NOW)
    return CallValue(call.arguments["n"] * 2 if call.name == "fetch" else None)


async def driven(
    program: Program, answer: Callable[[HostCall], CallOutcome] = doubled, recorded: Sequence[CallResult] = ()
) -> tuple[ProgramEnd | ProgramFailure | LimitHit, list[CallResult]]:
    """Drive a program to its end; all results, in the order in which they were given."""
    results = list(recorded)
    step = await program.run(recorded)
    while isinstance(step, PendingCalls):
        new = [CallResult(call.id, answer(call), call.digest) for call in step.calls]
        results += new
        step = await program.answer(new)
    return step, results


async def ran(sandbox: Sandbox, source: str, **given: Any) -> ProgramEnd | ProgramFailure | LimitHit:
    """How a program ends."""
    asked: dict[str, Any] = {"tools": TOOLS, "limits": QUICK, **given}
    program = await sandbox.start(source, **asked)
    step, _ = await driven(program)
    return step
