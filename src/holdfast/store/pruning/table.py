"""Tombstones in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.pruning.contract import Tombstone


class TombstoneTable:
    """The tombstones of a store that keeps nothing on a disk."""

    def __init__(self) -> None:
        self._kept: dict[str, Tombstone] = {}

    def find(self, journal: str) -> Tombstone | None:
        return self._kept.get(journal)

    def keep(self, stone: Tombstone) -> None:
        self._kept[stone.journal] = stone

    def after(self, pos: int, role: str | None, limit: int) -> list[Tombstone]:
        found = [stone for stone in self._kept.values() if stone.pos > pos and role in (None, stone.role)]
        return sorted(found, key=lambda stone: stone.pos)[:limit]

    def raw(self) -> Iterator[tuple[Tombstone, bool]]:
        for stone in self._kept.values():
            yield stone, True
