"""Programs that models write, run in a sandbox where they can only call their tools.

Modules that start processes are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from holdfast.sandbox.contract import (
    CallError,
    CallOutcome,
    CallResult,
    CallValue,
    HostCall,
    KeptVariables,
    LimitHit,
    PendingCalls,
    Program,
    ProgramEnd,
    ProgramFailure,
    ProgramLimits,
    ProgramStep,
    Sandbox,
    call_id,
    call_number,
)

if TYPE_CHECKING:
    from holdfast.sandbox.execution import replay
    from holdfast.sandbox.monty import MontyProgram, MontySandbox
    from holdfast.sandbox.stubs import Stub, declarations, stubs_of
    from holdfast.sandbox.worker import programs_problem, require_programs


__all__ = [
    "CallError",
    "CallOutcome",
    "CallResult",
    "CallValue",
    "HostCall",
    "KeptVariables",
    "LimitHit",
    "MontyProgram",
    "MontySandbox",
    "PendingCalls",
    "Program",
    "ProgramEnd",
    "ProgramFailure",
    "ProgramLimits",
    "ProgramStep",
    "Sandbox",
    "Stub",
    "call_id",
    "call_number",
    "declarations",
    "programs_problem",
    "replay",
    "require_programs",
    "stubs_of",
]


_HOMES: Final = {
    "MontyProgram": "monty",
    "MontySandbox": "monty",
    "Stub": "stubs",
    "declarations": "stubs",
    "programs_problem": "worker",
    "replay": "execution",
    "require_programs": "worker",
    "stubs_of": "stubs",
}
if not TYPE_CHECKING:  # type checkers see the imports above, and nothing else

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            message = f"module 'holdfast.sandbox' has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(f"holdfast.sandbox.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
