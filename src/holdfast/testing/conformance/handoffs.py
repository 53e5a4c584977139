"""Handoffs: who has a journal changes with the record that says so, in every list and for every account."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import Fenced, InvalidId, InvalidValue, JournalConflict
from holdfast.records import Done, Handed, Started
from holdfast.store import Spend
from holdfast.store.audit import audit
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import Stores, append_here, case, contents, refusal, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.records import Blob, Record
    from holdfast.store import Lease, Store
    from holdfast.store.audit import Violation
    from holdfast.store.contract import Reader


def _handed(agent: str, by: str, call: str, *, at: int = 7) -> Handed:
    return Handed(at=at, run="main", key=f"main/{call}", agent=agent, by=by)


async def _clerks(store: Store) -> Lease:
    """The journal "a", which a clerk has."""
    await store.open_journal("a", "session", "clerk")
    return await store.claim("a")


async def _to_cook(store: Store) -> Lease:
    """The journal "a", which a clerk has handed over to a cook with its fourth record."""
    lease = await _clerks(store)
    await append_here(store, lease, Started(at=1, run="main"), step("x"), _handed("cook", "clerk", "x"))
    return lease


def _spend_of(record: Record, _read_blob: Callable[[Blob], bytes | None]) -> Spend | None:
    """In these cases, every step is a tool call."""
    return Spend(tool_calls=1) if isinstance(record, Done) else None


def _audit(reader: Reader) -> list[Violation]:
    return audit(reader, None, _spend_of)


@case
async def a_journal_is_listed_for_whom_it_was_handed_over_to(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await _to_cook(store)
        assert (await store.journal("a")).agent == "cook"
    async with stores.open(clock) as store:
        line = await store.journal("a")
        assert (line.agent, line.status, line.updated, line.head) == ("cook", "running", 7, 4)
        assert await store.journals(agent="cook") == [line]
        assert await store.journals(agent="cook", kind="session", status="running") == [line]
        assert await store.journals(agent="clerk") == []
        assert [work.agent for work in await store.work()] == ["cook"]
        assert await store.examine(audit) == []


@case
async def a_handoff_that_is_refused_changes_nothing(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await _clerks(store)
        other = await _taken_over(store, lease)
        before = await contents(store)
        await refusal(Fenced, store.append(lease, [step("x"), _handed("cook", "clerk", "x")], head=1))
        assert await contents(store) == before
        assert (await store.journal("a")).agent == "clerk"
        await append_here(store, other, step("x"), _handed("cook", "clerk", "x"))
        assert (await store.journal("a")).agent == "cook"


async def _taken_over(store: Store, lease: Lease) -> Lease:
    await store.release(lease)
    return await store.claim(lease.journal)


@case
async def a_handoff_is_the_last_record_of_its_commit(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await _clerks(store)
        added = [step("x"), _handed("cook", "clerk", "x"), step("y")]
        await refusal(InvalidValue, store.append(lease, added, head=1))
        await refusal(InvalidId, store.append(lease, [step("x"), _handed("", "clerk", "x")], head=1))
        assert (await store.journal("a")).head == 1


@case
async def a_journal_is_opened_under_the_name_of_who_had_it_first_or_has_it_now(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await _to_cook(store)
    async with stores.open(clock) as store:
        line = await store.journal("a")
        for agent in ("clerk", "cook"):
            assert await store.open_journal("a", "session", agent) == line
            assert (await store.accept_into("a", "session", agent, agent, key=agent)).fresh
        for agent in ("waiter", None):
            await refusal(JournalConflict, store.open_journal("a", "session", agent))
            await refusal(JournalConflict, store.accept_into("a", "session", agent, 1))
        await refusal(JournalConflict, store.open_journal("a", "process", "clerk"))


@case
async def who_has_had_a_journal_in_between_does_not_open_it(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await _to_cook(store)
        await append_here(store, lease, step("y"), _handed("waiter", "cook", "y"))
        await refusal(JournalConflict, store.open_journal("a", "session", "cook"))
        assert (await store.open_journal("a", "session", "clerk")).agent == "waiter"


@case
async def a_fork_is_for_whom_the_parent_was_at_that_record(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await _to_cook(store)
        await append_here(store, lease, step("y"), _handed("clerk", "cook", "y"))
    async with stores.open(clock) as store:
        found = {at: (await store.fork(f"b{at}", "a", at)).agent for at in (1, 2, 4, 6)}
        assert found == {1: "clerk", 2: "clerk", 4: "cook", 6: "clerk"}
        assert (await store.fork("c", "b4", 1)).agent == "cook"
        assert await store.examine(audit) == []


@case
async def a_fork_at_the_outcome_of_a_handoff_begins_after_the_handoff(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await _to_cook(store)
        await append_here(store, lease, step("y"))
        fork = await store.fork("b", "a", 3)
        assert (fork.parent_seq, fork.agent) == (4, "cook")
        assert await store.fork("b", "a", 3) == await store.fork("b", "a", 4) == fork
        after = await store.fork("c", "a", 5)
        assert (after.parent_seq, after.agent) == (5, "cook")
        assert await store.examine(audit) == []


@case
async def a_handoff_that_stands_apart_from_its_call_does_not_move_a_fork(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await _clerks(store)
        await append_here(store, lease, step("x"), step("y"), _handed("cook", "clerk", "x"))
        fork = await store.fork("b", "a", 3)
        assert (fork.parent_seq, fork.agent) == (3, "clerk")


@case
async def each_agent_spends_what_it_did_itself(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await _clerks(store)
        one = Spend(tool_calls=1)
        await store.append(lease, [step("w")], head=1, spend=one)
        await store.append(lease, [step("x"), _handed("cook", "clerk", "x")], head=2, spend=one)
        await store.append(lease, [step("y")], head=4, spend=one)
        assert (await store.spent("clerk"), await store.spent("cook")) == (one + one, one)
        assert await store.examine(_audit) == []
    async with stores.open(clock) as store:
        before = await contents(store)
        await store.rebuild_spending(_spend_of)
        assert await contents(store) == before
