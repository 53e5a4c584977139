"""A process as its line, its registration and its last records tell it: what lists need, however long it is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec

from holdfast.processes.ids import CALL, attempt_of
from holdfast.processes.state import ProcessState, decode_registration

if TYPE_CHECKING:
    from holdfast.processes.state import ProcessStatus
    from holdfast.records import Record, Status
    from holdfast.store.contract import Glimpse

TAIL: Final = 32
"""How many last records are looked at. Shorter processes are known as a whole."""
_LISTED: Final[dict[Status, ProcessStatus]] = {
    "waiting": "waiting",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


def state_of(found: Glimpse) -> ProcessState:
    """What is known of a process at a glance.

    Of a long one, who ran it, how often it began and which children it has are known as far as its last records say.
    """
    line, tail = found.line, found.tail or []
    state = ProcessState(line.id, line.agent, line.session, created=line.created, updated=line.updated)
    if found.first is not None and found.first.key == CALL:
        state.registration = decode_registration(found.first.body)
    for entry in tail:
        state.add(entry.record)
        state.attempt = max(state.attempt, _attempt(entry.record))
    state.records.clear()
    state.head = line.head
    if not tail or tail[0].seq > 1:
        if state.status == "running":  # nothing among the last records says otherwise
            state.status = _LISTED.get(line.status, "running")
        if found.latest is not None:
            state.session = msgspec.json.decode(found.latest.body, type=dict[str, str])["session"]
    return state


def _attempt(record: Record) -> int:
    """The attempt that a record belongs to."""
    key = getattr(record, "key", None)
    return (attempt_of(unquote(key.partition("/")[0])) if isinstance(key, str) else None) or 1
