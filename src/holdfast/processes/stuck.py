"""Which processes need a person, and what that one can do. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.processes.ids import label_of
from holdfast.records import ErrorInfo  # noqa: TC001  msgspec reads the annotations

if TYPE_CHECKING:
    from holdfast.processes.state import ProcessState


MISMATCH: Final = "ReplayMismatch"
"""The kind of the error of code that asks for something else than is recorded."""


class Stuck(msgspec.Struct, frozen=True):
    """A process that does not go on by itself."""

    id: str
    name: str | None
    reason: str
    command: str
    """What helps."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What the store and this runtime know of a process that is not over."""

    driven: bool
    """A process that lives holds its lease."""
    woken: bool = False
    """Something has come for it that nobody has looked at."""
    known: bool = True
    """This runtime has its function."""
    works: bool = True
    """This runtime drives processes; False for the command line, and for hosts that only look."""
    error: ErrorInfo | None = None
    """Why a runtime has stopped it."""
    timed: bool = False
    """Something that it waits for comes by the clock."""


def why_stuck(state: ProcessState, now: Situation) -> Stuck | None:
    """Why a process that is not over does not go on; None when it does, or will."""
    id = shlex.quote(state.id)

    def stuck(reason: str, command: str) -> Stuck:
        return Stuck(state.id, state.name, reason, command)

    if state.over or now.driven:
        return None
    if now.error is not None:
        return stuck(now.error.message, _after_error(now.error, id))
    if state.status == "waiting" and not now.woken:
        found = None if now.timed or not state.waits else _waits_for(label_of(state.waits[0]), id)
        return None if found is None else stuck(*found)
    owner = state.registration is not None and state.registration.recovery == "owner"
    if owner and state.starts:
        reason = f"{state.by} ran it and is gone; nobody else may go on"
        return stuck(reason, f"holdfast processes abandon {id} --reason TEXT")
    work = f"holdfast processes work MODULE, with a module that has {state.name!r}"
    if not now.works:
        return stuck("no process runs it now", work)
    return None if now.known else stuck(f"this runtime has no function {state.name!r}", work)


def _after_error(error: ErrorInfo, id: str) -> str:
    give_up = f"holdfast processes abandon {id} --reason TEXT"
    if error.kind != MISMATCH:
        return f"repair the cause and open the store again, or: {give_up}"
    return f"put the change behind 'if await ctx.version(\"NAME\")', or run the code that began it, or: {give_up}"


def _waits_for(label: str, id: str) -> tuple[str, str] | None:
    """Why a process waits without end, and what helps, where somebody must answer."""
    if label.startswith("signal "):
        name = shlex.quote(label.removeprefix("signal "))
        return f"it waits for the {label}, without a limit of time", f"holdfast processes signal {id} {name} JSON"
    if label.startswith("its completion"):
        return f"it waits for {label}", f"holdfast processes complete {id} JSON"
    return None
