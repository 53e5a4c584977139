"""Spending in a SQLite file. What one transaction counts is folded, held back, and written once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import astuple

from holdfast.store.spending.contract import NOTHING, Spend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.store.spending.contract import Spent
    from holdfast.store.sqlite.db import Db

_WHOLE: Final = -1
"""The day of the row that is about all days."""
_NO_AGENT: Final = ""
"""No agent has this name."""
_COLUMNS: Final = ", ".join(Spend.__struct_fields__)
_PLACES: Final = ", ".join("?" * (2 + len(Spend.__struct_fields__)))
_ADD: Final = (
    f"INSERT INTO spending (agent, day, {_COLUMNS}) VALUES ({_PLACES}) ON CONFLICT (agent, day) DO UPDATE SET "  # noqa: S608
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in Spend.__struct_fields__)
)
_SINCE: Final = "SELECT CAST(CAST(value AS TEXT) AS INTEGER) FROM meta WHERE key = 'spending_since'"
_FROM_THE_FIRST: Final = "UPDATE meta SET value = CAST('0' AS BLOB) WHERE key = 'spending_since'"


class SpendingTable:
    """`SpendingRows` on the writer's connection; `run` carries out a statement that changes something."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._db = connection
        self._run = run
        self._held: dict[tuple[str, int], list[Spend]] = {}

    def add(self, agent: str | None, day: int, spend: Spend) -> None:
        self._held.setdefault((agent or _NO_AGENT, day), []).append(spend)

    def replace(self, rows: Sequence[Spent]) -> None:
        self._held.clear()
        self._run("DELETE FROM spending", ())
        self._run(_FROM_THE_FIRST, ())
        for row in rows:
            self.add(row.agent, row.day, row.spend)

    def since(self) -> int:
        return self._db.execute(_SINCE).get or 0

    def complete(self, rows: Sequence[Spent]) -> None:
        self._run(_FROM_THE_FIRST, ())
        for row in rows:
            self.add(row.agent, row.day, row.spend)

    def flush(self) -> None:
        """Write what is held back."""
        if not self._held:
            return
        wholes: dict[tuple[str, int], list[Spend]] = {}
        for (agent, _), spends in self._held.items():
            wholes.setdefault((agent, _WHOLE), []).extend(spends)
        rows = [(*place, *_sums(spends)) for place, spends in (*self._held.items(), *wholes.items())]
        self._db.executemany(_ADD, rows)
        self._held.clear()

    def forget(self) -> None:
        """Drop what is held back: the transaction was rolled back."""
        self._held.clear()


class SpendingQueries:
    """`SpendingReader` on a read-only connection."""

    def __init__(self, connection: Db) -> None:
        self._db = connection

    def spent(self, agent: str | None, day: int | None) -> Spend:
        found = self._db.execute(
            f"SELECT {_COLUMNS} FROM spending WHERE agent = ? AND day = ?",  # noqa: S608
            (agent or _NO_AGENT, _WHOLE if day is None else day),
        ).get
        return NOTHING if found is None else Spend(*found)

    def since(self) -> int:
        return self._db.execute(_SINCE).get or 0

    def raw(self) -> Iterator[tuple[str | None, int | None, Spend]]:
        for agent, day, *numbers in self._db.execute(f"SELECT agent, day, {_COLUMNS} FROM spending"):  # noqa: S608
            yield agent or None, None if day == _WHOLE else day, Spend(*numbers)


def _sums(spends: Sequence[Spend]) -> Iterator[int]:
    """What was spent in all, column by column."""
    return map(sum, zip(*map(astuple, spends), strict=True))
