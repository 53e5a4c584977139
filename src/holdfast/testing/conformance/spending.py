"""Spending: counted in the commit that holds the records, a day and in all."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast import errors
from holdfast.store import Lease, Spend, Store
from holdfast.testing.conformance.suite import append_here, audit_steps, leased, refusal, spend_of_step, step

if TYPE_CHECKING:
    from holdfast.records import Record
    from holdfast.testing.conformance.suite import ClerkLease, Reopen


DAY: Final = 86_400_000
ONE: Final = Spend(1, 2, 3, 4, 5, 6, 7, 8)
NOTHING: Final = Spend()


async def _of_agent(store: Store, journal: str, agent: str | None = "clerk") -> Lease:
    await store.open_journal(journal, agent=agent)
    return await store.claim(journal)


async def _spend(store: Store, lease: Lease, spend: Spend, *, at: int = 1) -> None:
    await append_here(store, lease, step(f"s{(await store.journal(lease.journal)).head}", at=at), spend=spend)


async def spends_add_up_for_each_day_and_in_all(store: Store, lease: ClerkLease, reopen: Reopen) -> None:
    ten = Spend(cost_micros=10)
    for spend, at in ((ONE, DAY - 1), (ONE, DAY), (ten, DAY + 1)):
        await _spend(store, lease, spend, at=at)
    store = await reopen()
    assert [await store.spent("clerk", day) for day in (0, 1, 2, None)] == [ONE, ONE + ten, NOTHING, ONE + ONE + ten]


async def agents_spend_apart_and_journals_of_one_agent_together(store: Store) -> None:
    for journal, agent in (("a", "clerk"), ("b", "clerk"), ("c", "cook"), ("d", None)):
        await _spend(store, await _of_agent(store, journal, agent), ONE)
    assert await store.spent("clerk") == ONE + ONE
    assert await store.spent("cook") == await store.spent(None) == ONE
    assert await store.spent("nobody") == NOTHING


async def spends_of_many_appends_at_once_are_all_counted(one: Store, two: Store) -> None:
    openings = [one] * 5 + [two] * 5
    leases = [(store, await _of_agent(store, f"{n}")) for n, store in enumerate(openings)]
    spends = (store.append(lease, [step(f"s{n}")], head=1 + n, spend=ONE) for store, lease in leases for n in range(4))
    await asyncio.gather(*spends)
    total = Spend(*(40 * number for number in msgspec.structs.astuple(ONE)))
    assert await one.spent("clerk") == await two.spent("clerk") == total


async def an_append_that_is_refused_spends_nothing(store: Store, lease: ClerkLease) -> None:
    await refusal(errors.HeadConflict, store.append(lease, [step("x")], head=7, spend=ONE))
    await store.release(lease)
    await refusal(errors.Fenced, store.append(lease, [step("x")], head=1, spend=ONE))
    assert await store.spent("clerk") == NOTHING


async def an_append_may_give_its_spending_by_day(store: Store, lease: ClerkLease) -> None:
    await store.append(lease, [step("x", at=DAY - 1), step("y", at=DAY)], head=1, spend={0: ONE, 1: Spend(tasks=1)})
    assert (await store.spent("clerk", 0), await store.spent("clerk", 1)) == (ONE, Spend(tasks=1))


async def a_journal_that_is_made_with_an_input_may_count_once(store: Store) -> None:
    for content, key in ((1, "k"), (1, "k"), (2, "other")):
        await store.accept_into("a", "process", "clerk", content, key=key, spend=Spend(tasks=1))
    assert await store.spent("clerk") == Spend(tasks=1)


async def an_audit_compares_spending_with_the_records(store: Store, lease: ClerkLease) -> None:
    await _spend(store, lease, Spend(tool_calls=1))
    assert await store.examine(audit_steps) == []
    await append_here(store, lease, step("not counted"))
    assert [violation.rule for violation in await store.examine(audit_steps)] == ["spending"]


async def spending_is_rebuilt_from_the_records(store: Store, lease: ClerkLease, reopen: Reopen) -> None:
    await append_here(store, lease, step("x", at=1), step("y", at=DAY))
    await append_here(store, await leased(store, "b"), step("z", at=1))
    await _spend(store, lease, Spend(tool_calls=5, tasks=3), at=DAY)
    await store.rebuild_spending(spend_of_step)
    store = await reopen()
    spent = (await store.spent("clerk"), await store.spent("clerk", 1), await store.spent(None))
    assert spent == (Spend(tool_calls=3), Spend(tool_calls=2), Spend(tool_calls=1))
    assert await store.examine(audit_steps) == []


async def spending_is_not_replaced_when_more_was_recorded_meanwhile(store: Store, lease: ClerkLease) -> None:
    position = await store.last_position()
    await _spend(store, lease, ONE)
    await refusal(errors.StoreBusy, store.replace_spending([], position=position))
    assert await store.spent("clerk") == ONE
    await store.replace_spending([("clerk", 3, ONE), ("clerk", 3, ONE)], position=position + 1)
    assert await store.spent("clerk") == await store.spent("clerk", 3) == ONE + ONE
    assert await store.spent("clerk", 0) == NOTHING


async def spending_after_a_rebuild_in_the_same_commit_is_added(store: Store, lease: ClerkLease) -> None:
    await _spend(store, lease, ONE)
    rebuilding = asyncio.ensure_future(store.replace_spending([("clerk", 0, ONE)], position=2))
    await asyncio.sleep(0)
    await store.append(lease, [step("y")], head=2, spend=ONE)
    await rebuilding
    assert await store.spent("clerk") == ONE + ONE


async def spending_is_not_rebuilt_from_records_that_make_no_sense_to_the_fold(store: Store, lease: ClerkLease) -> None:
    def broken(record: Record, _: object) -> Spend | None:
        raise errors.JournalCorrupt("a", 1, f"nobody knows what {type(record).__name__} costs")

    await _spend(store, lease, ONE)
    await refusal(errors.JournalCorrupt, store.rebuild_spending(broken))
    assert await store.spent("clerk") == ONE
