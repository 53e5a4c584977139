"""The gate: what agents take in, and what was refused, bounded."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.errors import InvalidId
from holdfast.store.gate.contract import IN_ALL, PER_JOURNAL
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import Stores, case, contents, refusal

if TYPE_CHECKING:
    from holdfast.store import Store
    from holdfast.store.gate.contract import Refusal


async def _note(store: Store, journal: str, message: str = "too much") -> Refusal:
    return await store.note_refusal(journal, agent="a", key="k", error="RateExceeded", message=message)


@case
async def refusals_are_there_for_the_next_opening_newest_first(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        first = await _note(store, "s")
        second = await _note(store, "t")
        third = await _note(store, "s", "again")
    async with stores.open(clock) as store:
        assert await store.refusals() == [third, second, first]
        assert await store.refusals("s") == [third, first]
        assert await store.refusals("s", limit=1) == [third]
        assert [found.nth for found in (first, second, third)] == [1, 1, 2]


@case
async def a_refusal_makes_no_journal(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await _note(store, "s")
        assert await store.journals() == []


@case
async def of_one_journal_the_last_refusals_are_kept_and_all_are_counted(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        noted = [await _note(store, "s") for _ in range(PER_JOURNAL + 3)]
        assert await store.refusals("s") == noted[: -PER_JOURNAL - 1 : -1]
        assert noted[-1].nth == PER_JOURNAL + 3


@case
async def whoever_makes_up_names_can_not_fill_the_store(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await asyncio.gather(*(_note(store, f"s{number}") for number in range(IN_ALL + 5)))
        last = await _note(store, "last")
        found = await store.refusals(limit=IN_ALL)
        assert (len(found), found[0], found[-1].id) == (IN_ALL, last, last.id - IN_ALL + 1)


@case
async def a_refusal_of_what_can_not_be_a_journal_is_not_kept(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        before = await contents(store)
        await refusal(InvalidId, _note(store, ""))
        assert await contents(store) == before


@case
async def what_agents_take_in_is_there_for_the_next_opening(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.set_terms("a", "{}")
        await store.set_terms("b", "1")
        await store.set_terms("a", "2")
        await store.set_terms("b", None)
    async with stores.open(clock) as store:
        assert await store.terms() == {"a": "2"}
