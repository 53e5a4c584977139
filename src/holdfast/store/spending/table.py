"""Spending in memory: the rows of a transaction and the reads of a store that keeps nothing on a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.spending.contract import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.store.spending.contract import Spend, Spent


class SpendingTable:
    """`SpendingRows` and `SpendingReader`."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str | None, int | None], Spend] = {}

    def add(self, agent: str | None, day: int, spend: Spend) -> None:
        for place in ((agent, day), (agent, None)):
            self._kept[place] = self._kept.get(place, NOTHING) + spend

    def replace(self, rows: Sequence[Spent]) -> None:
        self._kept.clear()
        for row in rows:
            self.add(row.agent, row.day, row.spend)

    def complete(self, rows: Sequence[Spent]) -> None:
        for row in rows:
            self.add(row.agent, row.day, row.spend)

    def spent(self, agent: str | None, day: int | None) -> Spend:
        return self._kept.get((agent, day), NOTHING)

    def since(self) -> int:
        return 0

    def raw(self) -> Iterator[tuple[str | None, int | None, Spend]]:
        for (agent, day), spend in self._kept.items():
            yield agent, day, spend
