"""Forks: a journal that goes on from a record of another one, of which nothing is copied."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio

from holdfast.errors import (
    ForkPointMissing,
    JournalConflict,
    JournalMissing,
    JournalQuarantined,
)
from holdfast.records import Opened, Started
from holdfast.store.audit import audit
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import (
    Stores,
    append_here,
    case,
    contents,
    leased,
    refusal,
    step,
)


@case
async def a_fork_names_its_parent_and_copies_nothing(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("a", "session", "clerk")
        await append_here(store, await store.claim("a"), Started(at=1, run="r"), step("x"), step("y"))
        before = await store.last_position()
        clock.advance(5)
        fork = await store.fork("b", "a", 3)
        assert (fork.id, fork.kind, fork.agent, fork.status, fork.head) == ("b", "session", "clerk", "idle", 1)
        assert (fork.parent, fork.parent_seq) == ("a", 3)
        assert (fork.created, fork.updated) == (clock.read().wall, clock.read().wall)
        (entry,) = await store.read("b")
        assert isinstance(entry.record, Opened)
        assert (entry.record.parent, entry.record.parent_seq) == ("a", 3)
        assert await store.last_position() == before + 1
    async with stores.open(clock) as store:
        assert await store.journal("b") == fork
        assert fork in await store.journals()
        assert await store.examine(audit) == []


@case
async def the_fork_of_a_process_is_a_process(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a", "process")
        fork = await store.fork("b", "a", 1)
        assert (fork.kind, fork.agent) == ("process", None)


@case
async def a_fork_leaves_its_parent_as_it_is(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        before = await store.journal("a")
        await store.fork("b", "a", 1)
        assert await store.journal("a") == before
        assert await store.append(lease, [step("x")], head=1) == 2


@case
async def a_journal_can_be_forked_at_each_of_its_records_and_nowhere_else(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await append_here(store, await leased(store, "a"), step("x"), step("y"))
        for at in (1, 2, 3):
            assert (await store.fork(f"b{at}", "a", at)).parent_seq == at
        before = await contents(store)
        for at in (-1, 0, 4, 2**40):
            error = await refusal(ForkPointMissing, store.fork("c", "a", at))
            assert (error.journal, error.at, error.head) == ("a", at, 3)
        assert await contents(store) == before


@case
async def a_fork_can_be_forked(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await append_here(store, await leased(store, "a"), step("x"), step("y"))
        await store.fork("b", "a", 3)
        await refusal(ForkPointMissing, store.fork("c", "b", 2))  # its own records count
        await append_here(store, await store.claim("b"), step("z"))
        assert (await store.fork("c", "b", 2)).parent == "b"


@case
async def the_same_fork_again_finds_it_as_it_is(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await leased(store, "a")
        await store.fork("b", "a", 1)
        await append_here(store, await store.claim("b"), step("x"))
        clock.advance(5)
        await store.quarantine("a", "a test")
        before = await contents(store)
        assert (await store.fork("b", "a", 1)).head == 2
        assert await contents(store) == before


@case
async def a_fork_that_is_opened_is_found_as_it_is(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a", "session", "clerk")
        fork = await store.fork("b", "a", 1)
        assert await store.open_journal("b", "session", "clerk") == fork
        await refusal(JournalConflict, store.open_journal("b", "session", "cook"))


@case
async def an_id_that_is_taken_can_not_become_a_fork(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await append_here(store, await leased(store, "a"), step("x"))
        await store.open_journal("other")
        await store.fork("b", "a", 1)
        before = await contents(store)
        for journal, parent, at in (("other", "a", 1), ("a", "a", 1), ("b", "a", 2), ("b", "other", 1)):
            error = await refusal(JournalConflict, store.fork(journal, parent, at))
            assert error.journal == journal
            assert f"{parent!r}" in error.asked
        assert await contents(store) == before


@case
async def a_missing_or_quarantined_journal_can_not_be_forked(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("bad")
        await store.quarantine("bad", "a test")
        before = await contents(store)
        assert (await refusal(JournalMissing, store.fork("b", "ghost", 1))).journal == "ghost"
        assert (await refusal(JournalQuarantined, store.fork("b", "bad", 1))).journal == "bad"
        assert await contents(store) == before


@case
async def forks_made_at_the_same_moment_are_one_fork(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        await one.open_journal("a")
        await asyncio.gather(*(store.fork("b", "a", 1) for store in (one, two) for _ in range(5)))
        assert await one.last_position() == await two.last_position() == 2
