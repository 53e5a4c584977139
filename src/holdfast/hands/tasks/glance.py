"""A task at a glance: from the two ends of its journal, so that a list costs the same however much a task reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.tasks import TaskState

if TYPE_CHECKING:
    from holdfast.store import Store

_FIRST: Final = 3
"""It was opened, what it is to do, and that it began."""
_LAST: Final = 8
"""How it stands: its end with the outcome before it, or what was reported last."""


async def glance(store: Store, id: str) -> TaskState:
    """What a list tells of a task. How often it was begun and has reported is not counted."""
    state = TaskState(id)
    seen = 0
    for entry in [*await store.read(id, limit=_FIRST), *await store.tail(id, _LAST)]:
        if entry.seq > seen:
            state.add(entry.record)
            seen = entry.seq
    return state
