"""Which processes need a person, and what that one can do. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from holdfast.processes.ids import label_of

if TYPE_CHECKING:
    from holdfast.processes.state import ProcessState


class Stuck(msgspec.Struct, frozen=True):
    """A process that does not go on by itself."""

    id: str
    name: str | None
    reason: str
    command: str
    """What helps."""


def why_stuck(state: ProcessState, *, driven: bool, known: bool | None, error: str | None, timed: bool) -> Stuck | None:
    """Why a process that is not over does not go on; None when it does, or will.

    `driven`: somebody alive holds it. `known`: this runtime has its function (None: it has none at all). `error`: why
    it was stopped here. `timed`: something that it waits for comes by the clock.
    """
    id = shlex.quote(state.id)

    def stuck(reason: str, command: str) -> Stuck:
        return Stuck(state.id, state.name, reason, command)

    if error is not None:
        return stuck(error, f"run it with the code that began it, or: holdfast processes cancel {id}")
    if state.over or driven:
        return None
    if state.status == "waiting":
        found = None if timed or not state.waits else _waits_for(label_of(state.waits[0]), id)
        return None if found is None else stuck(*found)
    owner = state.registration is not None and state.registration.recovery == "owner"
    if owner and state.starts:
        reason = f"{state.by} ran it and is gone; nobody else may go on"
        return stuck(reason, f"holdfast processes abandon {id} --reason TEXT")
    if known is False:
        return stuck(f"no function {state.name!r} is here to go on with it", f"open the store with {state.name!r}")
    return None


def _waits_for(label: str, id: str) -> tuple[str, str] | None:
    """Why a process waits without end, and what helps, where somebody must answer."""
    if label.startswith("signal "):
        name = shlex.quote(label.removeprefix("signal "))
        return f"it waits for the {label}, without a limit of time", f"holdfast processes signal {id} {name} JSON"
    if label.startswith("its completion"):
        return f"it waits for {label}", f"holdfast processes complete {id} JSON"
    return None
