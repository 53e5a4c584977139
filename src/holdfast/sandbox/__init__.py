"""Sandbox for programs that models write; such a program can only call its tools.

Modules that start processes are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from holdfast.sandbox.contract import CallError as CallError
from holdfast.sandbox.contract import CallOutcome as CallOutcome
from holdfast.sandbox.contract import CallResult as CallResult
from holdfast.sandbox.contract import CallValue as CallValue
from holdfast.sandbox.contract import HostCall as HostCall
from holdfast.sandbox.contract import KeptVariables as KeptVariables
from holdfast.sandbox.contract import LimitHit as LimitHit
from holdfast.sandbox.contract import PendingCalls as PendingCalls
from holdfast.sandbox.contract import Program as Program
from holdfast.sandbox.contract import ProgramEnd as ProgramEnd
from holdfast.sandbox.contract import ProgramFailure as ProgramFailure
from holdfast.sandbox.contract import ProgramLimits as ProgramLimits
from holdfast.sandbox.contract import ProgramStep as ProgramStep
from holdfast.sandbox.contract import Sandbox as Sandbox
from holdfast.sandbox.contract import call_id as call_id
from holdfast.sandbox.contract import call_number as call_number

if TYPE_CHECKING:
    from holdfast.sandbox.monty import MontyProgram as MontyProgram
    from holdfast.sandbox.monty import MontySandbox as MontySandbox
    from holdfast.sandbox.monty import replay as replay
    from holdfast.sandbox.stubs import Stub as Stub
    from holdfast.sandbox.stubs import declarations as declarations
    from holdfast.sandbox.stubs import stubs_of as stubs_of
    from holdfast.sandbox.worker import programs_problem as programs_problem
    from holdfast.sandbox.worker import require_programs as require_programs

_HOMES: Final = {
    **dict.fromkeys(("MontyProgram", "MontySandbox", "replay"), "monty"),
    **dict.fromkeys(("Stub", "declarations", "stubs_of"), "stubs"),
    **dict.fromkeys(("programs_problem", "require_programs"), "worker"),
}
if not TYPE_CHECKING:  # type checkers use only the imports above

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            message = f"module 'holdfast.sandbox' has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(f"holdfast.sandbox.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
