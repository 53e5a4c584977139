"""The part of the door to a store that is about spending."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import astuple

from holdfast.bounds import check_int
from holdfast.errors import InvalidArgument
from holdfast.names import check_id
from holdfast.store.calls import Calls
from holdfast.store.spending.contract import MAX_SPEND, NOTHING, CountOlder, ReplaceSpending, Spend, day_of
from holdfast.store.spending.fold import fold, fold_older, pruned_before, rebuild

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.records import Record
    from holdfast.store.spending.contract import SpendOf


class SpendingCalls(Calls):
    """Spending: what each agent has used up."""

    async def spent(self, agent: str | None, day: int | None = None) -> Spend:
        """What the agent has used up on one day (since 1970-01-01, UTC), or in all; None is journals without agent.

        Counted in the same commit as the records. In a store that comes from an older schema, what was recorded before
        it was brought up to date counts only after `count_older_spending`; a runtime that drives begins with that.
        """
        if agent is not None:
            check_id("agent", agent)
        if day is not None:
            check_int("day", day)
        return await self._backend.read(lambda reader: reader.spending.spent(agent, day))

    async def count_older_spending(self, spend_of: SpendOf) -> bool:
        """Count the records that an older schema wrote and nobody has counted; whether there were some.

        One commit: whoever is killed before it counts again. What others record meanwhile is counted as it comes. In a
        journal that can't be trusted, the records up to the first bad one count.
        """
        since = await self._backend.read(lambda reader: reader.spending.since())
        if not since:
            return False
        left, counted = await self._backend.read(lambda reader: (reader.raw_journals(), pruned_before(reader, since)))
        while left:
            some, number = await self._backend.read(lambda reader: fold_older(reader, spend_of, since, left))  # noqa: B023
            counted = [(row.agent, row.day, row.spend) for row in rebuild((*counted, *some))]
            left = left[number:]
        return await self._submit(CountOlder(rebuild(counted), since))

    async def rebuild_spending(self, spend_of: SpendOf) -> None:
        """Count all records of the store anew, and put that in the place of what was counted.

        `StoreBusy` when something was recorded meanwhile. A journal that can't be trusted is a `JournalCorrupt`:
        without it too little would be counted.
        """
        rows, position = await self._backend.read(lambda reader: (fold(reader, spend_of), reader.last_position()))
        await self._submit(ReplaceSpending(rows, position))

    async def replace_spending(self, spends: Iterable[tuple[str | None, int, Spend]], *, position: int) -> None:
        """Put (agent, day, spend) in the place of all that was counted, if they tell of all records up to `position`.

        `StoreBusy` when there are records after it.
        """
        check_int("position", position)
        try:
            given = [_checked_row(*row) for row in spends]
        except TypeError:
            raise InvalidArgument("spends", spends, "a list of (agent, day, Spend)") from None
        await self._submit(ReplaceSpending(rebuild(given), position))


_INT: Final = {int}


def _checked_row(agent: str | None, day: int, spend: Spend) -> tuple[str | None, int, Spend]:
    if agent is not None:
        check_id("agent", agent)
    return agent, check_int("day", day), checked(spend, 2**50)


def checked_spend(given: Spend | Mapping[int, Spend], added: Sequence[Record]) -> tuple[tuple[int, Spend], ...]:
    """What an append counts, by day. Without a day it is that of the last record."""
    if type(given) is Spend:
        return () if given == NOTHING else ((day_of(added[-1].at), checked(given, MAX_SPEND)),)
    days = cast("object", given if isinstance(given, Mapping) else {day_of(added[-1].at): given})
    counted = [
        (check_int("day", day), checked(spend, MAX_SPEND)) for day, spend in cast("Mapping[int, Spend]", days).items()
    ]
    return tuple((day, spend) for day, spend in counted if spend != NOTHING)


def checked(spend: Spend, most: int) -> Spend:
    """The same, if these are numbers that can be counted."""
    if type(spend) is not Spend:
        raise InvalidArgument("spend", spend, "a Spend, or one for each day")
    counts = astuple(spend)
    if set(map(type, counts)) != _INT or min(counts) < 0 or max(counts) > most:
        for name, count in zip(Spend.__struct_fields__, counts, strict=True):
            check_int(f"spend: {name}", count, most=most)
    return spend
