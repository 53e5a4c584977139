"""Forgetting what a trigger recorded long ago: under its lease, so that nobody writes meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.errors import HoldfastError, JournalMissing
from holdfast.errors.triggers import TriggerUnknown
from holdfast.leasing import Held
from holdfast.runtime.triggering import ALARMS, TAIL, read_books
from holdfast.triggers.books import needed
from holdfast.triggers.definition import name_of
from holdfast.triggers.forgetting import Cut

if TYPE_CHECKING:
    from holdfast.store import Store
    from holdfast.triggers.books import Books


class PrunedTrigger(msgspec.Struct, frozen=True):
    """What was forgotten of a trigger, or would be."""

    name: str
    records: int = 0
    payloads: int = 0
    """Inputs of which only the key is left."""
    alarms: int = 0
    dry_run: bool = False
    problem: str = ""
    """Why nothing could be forgotten."""


async def forget(store: Store, id: str, before: int, lease_ms: int, *, dry_run: bool) -> PrunedTrigger:
    """Forget what one trigger recorded before this time. What is driven right now is left for another time."""
    name = name_of(id)
    try:
        if dry_run:
            records, (inputs, waits) = await _count(store, id, before)
            return PrunedTrigger(name, records, inputs, waits, dry_run=True)
        async with Held(store, id, lease_ms) as held:
            lease = held.lease
            books = (await read_books(store, id)).books
            seq = await _cut(store, id, before, lease.head)
            crash_point("trigger.before_prune")
            records = await store.trim_journal(lease, seq)
            crash_point("trigger.trimmed")
            inputs = await store.empty_inputs(lease, before, _spared(books))
            waits = await store.remove_waits(lease, ALARMS, before)
            crash_point("trigger.after_prune")
        return PrunedTrigger(name, records, inputs, waits)
    except JournalMissing:
        raise TriggerUnknown(name) from None
    except HoldfastError as error:
        return PrunedTrigger(name, dry_run=dry_run, problem=str(error))


async def _count(store: Store, id: str, before: int) -> tuple[int, tuple[int, int]]:
    books = (await read_books(store, id)).books
    first = (await store.read(id, limit=1))[0].seq
    seq = await _cut(store, id, before, (await store.journal(id)).head)
    return max(seq - first + 1, 0), await store.count_old(id, before, _spared(books), ALARMS)


def _spared(books: Books) -> list[int]:
    """The inputs whose content is still needed."""
    return sorted({*needed(books), *(one.input for one in books.queue if one.input)})


async def _cut(store: Store, id: str, before: int, head: int) -> int:
    """The last record that may go; 0 when none may."""
    cut: Cut | None = None
    after = 0
    while entries := await store.read(id, after=after):
        cut = cut or Cut(0, before, head - TAIL)
        if not cut.look((entry.seq, entry.record) for entry in entries):
            break
        after = entries[-1].seq
    return 0 if cut is None else cut.seq
