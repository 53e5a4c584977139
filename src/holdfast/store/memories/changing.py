"""Carries out the commands of memory: decide, then write. Shared by every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.memories import decisions
from holdfast.store.memories.contract import Purged

if TYPE_CHECKING:
    from holdfast.store.contract import Rows
    from holdfast.store.limits import StoreLimits
    from holdfast.store.memories.contract import ChangeKind, DeleteMemory, PurgeMemory, PutMemory, Remembered


class Memories:
    """The memory of one transaction, at one moment."""

    __slots__ = ("_limits", "_now", "_rows")

    def __init__(self, rows: Rows, limits: StoreLimits, now: int) -> None:
        self._rows = rows
        self._limits = limits
        self._now = now

    def put(self, asked: PutMemory) -> Remembered:
        rows = self._rows.memories
        found = decisions.living(rows.entry(asked.scope, asked.key), self._now)
        decisions.check_version(asked.scope, asked.key, found, asked.expected)
        decisions.check_room(asked, found, rows.usage(asked.scope, self._now), self._limits)
        entry = decisions.written(asked, found, rows.last_version(asked.scope, asked.key), self._now)
        rows.put(entry)
        self._tell(entry, "put", entry.version, asked.by)
        return entry

    def delete(self, asked: DeleteMemory) -> Remembered | None:
        found = decisions.living(self._rows.memories.entry(asked.scope, asked.key), self._now)
        decisions.check_version(asked.scope, asked.key, found, asked.expected)
        if found is not None:
            self._remove(found, "deleted", asked.by)
        return found

    def purge(self, asked: PurgeMemory) -> Purged:
        rows = self._rows.memories
        expired = rows.expired(self._now, asked.limit)
        for entry in expired:
            self._remove(entry, "expired", None)
        forgotten = rows.forget_expired_values(self._now, asked.limit)
        return Purged(len(expired), asked.limit in (len(expired), forgotten))

    def _remove(self, entry: Remembered, kind: ChangeKind, by: str | None) -> None:
        rows = self._rows.memories
        version = rows.last_version(entry.scope, entry.key) + 1
        rows.remove(entry.scope, entry.key)
        self._tell(entry, kind, version, by)

    def _tell(self, entry: Remembered, kind: ChangeKind, version: int, by: str | None) -> None:
        change = decisions.change_of(entry, kind, version=version, now=self._now, by=by)
        self._rows.memories.add_change(change, self._limits.memory_changes)
