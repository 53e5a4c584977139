"""What must always be true of spending: the whole is the sum of its days, and both follow from the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.spending.contract import NOTHING, Spend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.contract import Reader
    from holdfast.store.spending.fold import Tally


def audit_spending(reader: Reader, tally: Tally | None = None) -> Iterator[tuple[str, str, str]]:
    """Every violated invariant: which, where, and what was found. With a tally, also against the records."""
    days: dict[tuple[str | None, int], Spend] = {}
    wholes: dict[str | None, Spend] = {}
    sums: dict[str | None, Spend] = {}
    for agent, day, spend in reader.spending.raw():
        if day is None:
            wholes[agent] = spend
        else:
            days[agent, day] = spend
            sums[agent] = sums.get(agent, NOTHING) + spend
    for agent in wholes.keys() | sums.keys():
        whole, summed = wholes.get(agent, NOTHING), sums.get(agent, NOTHING)
        if whole != summed:
            yield "spending", f"{agent or '(no agent)'}", f"{whole} in all, but its days say {summed}"
    if tally is not None:
        yield from _against_records(days, tally)


def _against_records(days: dict[tuple[str | None, int], Spend], tally: Tally) -> Iterator[tuple[str, str, str]]:
    rows, unsure = tally.rows()
    told = {(row.agent, row.day): row.spend for row in rows}
    for agent, day in sorted(days.keys() | told.keys(), key=lambda place: (place[0] or "", place[1])):
        listed, recorded = days.get((agent, day), NOTHING), told.get((agent, day), NOTHING)
        if listed != recorded and agent not in unsure:
            yield "spending", f"{agent or '(no agent)'}/day {day}", f"counted {listed}, its records say {recorded}"
