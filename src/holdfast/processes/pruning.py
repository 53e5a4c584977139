"""Which processes may be forgotten, and what is told of it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.processes.ids import id_of
from holdfast.processes.state import TERMINAL, ProcessStatus
from holdfast.processes.timeline import ProcessEvent, ProcessLine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.processes.state import ProcessState
    from holdfast.store.pruning.contract import Tombstone

TOLD: Final = 1_000
"""How many processes a report names, of each sort."""


class PrunedProcess(msgspec.Struct, frozen=True):
    """A process that was pruned, or would be."""

    id: str
    name: str | None
    status: ProcessStatus
    ended: int | None


class KeptProcess(msgspec.Struct, frozen=True):
    """A process that is old enough, and is kept all the same."""

    id: str
    name: str | None
    reason: str


class PruneReport(msgspec.Struct, frozen=True):
    """What a pruning did, or would do."""

    pruned: int
    kept: int
    dry_run: bool
    processes: tuple[PrunedProcess, ...] = ()
    """The first thousand that were pruned."""
    reasons: tuple[KeptProcess, ...] = ()
    """The first thousand that are kept although they are old enough, and why."""


def why_kept(state: ProcessState, family: Mapping[str, str]) -> str | None:
    """Why a process is not pruned; None when it may be. `family` tells the status of journals that are there."""
    if not state.over:
        return f"it is {state.status}"
    parent = None if state.registration is None else state.registration.parent
    if parent is not None and family.get(parent, "completed") not in TERMINAL:
        return f"{id_of(parent)} started it, is under way, and may ask for it"
    going = next((journal for journal, status in family.items() if status not in TERMINAL), None)
    return None if going is None else f"{id_of(going)}, which it started, is under way and tells it of its end"


def line_of_tombstone(stone: Tombstone) -> ProcessLine:
    """A process that was pruned, as it stood."""
    return ProcessLine(
        id=id_of(stone.journal),
        name=stone.agent,
        status=ended_as(stone.detail),
        session=stone.session,
        created=stone.created,
        updated=stone.updated,
        ended=stone.updated,
        pruned=stone.at,
    )


def event_of_tombstone(stone: Tombstone) -> ProcessEvent:
    """What a reader of the changes is told in the place of all that it has missed of a process."""
    return ProcessEvent(
        process=id_of(stone.journal), seq=stone.head, at=stone.updated, what="pruned", detail=ended_as(stone.detail)
    )


def ended_as(detail: str) -> ProcessStatus:
    """How a process ended, as its tombstone says it."""
    return msgspec.convert(detail, ProcessStatus)
