"""The lists: quick, and a fold of the records."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import Fenced, JournalConflict, JournalMissing
from holdfast.records import Admitted, Ended, Handed, Opened, Parked, Resumed, Started, next_status, touches_lists
from holdfast.store import Journal, Lease, Spend, Store
from holdfast.testing.conformance import suite
from holdfast.testing.conformance.suite import append_here, leased, read_pages, refusal, step, unchanged

if TYPE_CHECKING:
    from holdfast.records import Record, Status
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.conformance.suite import ClerkLease, Reopen


async def _populate(store: Store, clock: ManualClock) -> None:
    """Create twelve journals of both kinds and several agents, in all states; some changed at the same time."""
    for n in range(12):
        name = f"j{n:02}"
        await store.open_journal(name, "process" if n % 3 == 0 else "session", ("clerk", "cook", None)[n % 3])
        if n % 2:
            clock.advance(7)
        lease = await store.claim(name)
        at = clock.read().wall
        ended = Ended(at=at + 2, run="r", status=("completed", "failed", "cancelled", "limit")[n % 4])
        story = (Started(at=at, run="r"), step("x", at=at), Parked(at=at, run="r", waits=("w",)), step("y", at=at + 1))
        await append_here(store, lease, *(*story, ended)[: n % 6 or 1])


async def the_status_of_a_journal_follows_its_records(store: Store, lease: Lease) -> None:
    story: list[tuple[Record, Status]] = [
        (Started(at=1, run="r"), "running"),
        (step("a"), "running"),
        (Parked(at=2, run="r"), "waiting"),
        (Admitted(at=3, input=1, key="k"), "waiting"),
        (step("b"), "running"),
        (Parked(at=4, run="r"), "waiting"),
        (Ended(at=5, run="r", status="completed"), "completed"),
        (Started(at=6, run="s"), "running"),
        (Ended(at=7, run="s", status="failed"), "failed"),
        (Started(at=8, run="t"), "running"),
        (Ended(at=9, run="t", status="cancelled"), "cancelled"),
        (Ended(at=10, run="u", status="limit"), "limit"),
        (Started(at=11, run="v"), "running"),
        (Parked(at=12, run="v"), "waiting"),
        (Resumed(at=13, run="v", by="pid 2"), "running"),
    ]
    await store.accept("a", 1, key="k")
    assert (await store.journal("a")).status == "idle"
    for record, status in story:
        await append_here(store, lease, record)
        assert (await store.journal("a")).status == status, record


async def a_batch_of_records_leaves_the_status_and_the_time_of_its_last_change(store: Store) -> None:
    started, resumed = Started(at=5, run="r", by="pid 1"), Resumed(at=6, run="r", by="pid 2")
    parked = Parked(at=6, run="r")
    for name, head, batch in (("a", 4, (started, parked, step("x", at=9))), ("b", 3, (started, resumed))):
        await append_here(store, await leased(store, name), *batch)
        line = await store.journal(name)
        assert (line.status, line.updated, line.head) == ("running", 6, head), name


async def the_end_of_a_run_that_never_began_does_not_change_how_its_journal_is_listed(store: Store) -> None:
    blob = await store.put_blob(b"why")
    started, parked = Started(at=5, run="r"), Parked(at=6, run="r")
    ended = Ended(at=6, run="r", status="completed")
    for n, story in enumerate(((), (started,), (started, parked), (started, ended))):
        lease = await leased(store, f"j{n}")
        head = await append_here(store, lease, *story) if story else 1
        before = await store.journal(f"j{n}")
        await append_here(store, lease, Ended(at=8, run="q", status="cancelled", unstarted=True))
        await append_here(store, lease, Ended(at=9, run="p", status="failed", unstarted=True, blob=blob))
        assert await store.journal(f"j{n}") == msgspec.structs.replace(before, head=head + 2), story


async def journals_are_listed_newest_first(store: Store, clock: ManualClock) -> None:
    await _populate(store, clock)
    lines = await store.journals()
    assert len(lines) == 12
    order = [(line.updated, line.id) for line in lines]
    assert order == sorted(order, reverse=True)


async def lists_can_be_narrowed_by_kind_status_and_agent(store: Store, clock: ManualClock) -> None:
    await _populate(store, clock)
    statuses = (None, "idle", "running", "waiting", "completed", "failed", "limit")
    kinds, agents = (None, "session", "process"), (None, "clerk", "cook", "nobody")
    await suite.check_narrowed(store.journals, kind=kinds, status=statuses, agent=agents)


async def pages_of_a_list_show_every_journal_once(store: Store, clock: ManualClock) -> None:
    await _populate(store, clock)
    everything = await store.journals()
    for size in (1, 2, 5, 12, 50):
        assert await read_pages(store.journals, size) == everything, size


async def the_lists_are_a_fold_of_the_records(store: Store, clock: ManualClock) -> None:
    await _populate(store, clock)
    await store.fork("fork", "j01", 2)
    await store.open_journal("task", "process", role="task", session="j01")
    folded: dict[str, Journal] = {}
    for entry in await store.feed():
        assert entry.record is not None
        folded[entry.journal] = _fold(folded.get(entry.journal), entry.journal, entry.seq, entry.record)
    assert {line.id: line for line in await read_pages(store.journals, store.limits.page)} == folded


def _fold(line: Journal | None, journal: str, seq: int, record: Record) -> Journal:
    """The line of a journal after one more record."""
    if line is None:
        assert isinstance(record, Opened)
        born = Journal(journal, record.kind, record.agent, "idle", seq, record.at, record.at)
        fork = {"parent": record.parent, "parent_seq": record.parent_seq}
        return msgspec.structs.replace(born, **fork, role=record.role, session=record.session)
    updated = record.at if touches_lists(record) else line.updated
    return msgspec.structs.replace(line, status=next_status(line.status, record), head=seq, updated=updated)


def _handed(agent: str, by: str, call: str, *, at: int = 7) -> Handed:
    return Handed(at=at, run="main", key=f"main/{call}", agent=agent, by=by)


async def _to_cook(store: Store) -> Lease:
    """Open the journal "a" and hand it from clerk to cook with its fourth record."""
    await store.open_journal("a", "session", "clerk")
    lease = await store.claim("a")
    await append_here(store, lease, Started(at=1, run="main"), step("x"), _handed("cook", "clerk", "x"))
    return lease


async def a_journal_is_listed_for_whom_it_was_handed_over_to(store: Store, reopen: Reopen) -> None:
    await _to_cook(store)
    assert (await store.journal("a")).agent == "cook"
    store = await reopen()
    line = await store.journal("a")
    assert (line.agent, line.status, line.updated, line.head) == ("cook", "running", 7, 4)
    assert await store.journals(agent="cook") == [line]
    assert await store.journals(agent="cook", kind="session", status="running") == [line]
    assert await store.journals(agent="clerk") == []
    assert [work.agent for work in await store.work()] == ["cook"]


async def a_handoff_that_is_refused_changes_nothing(store: Store, lease: ClerkLease) -> None:
    await store.release(lease)
    other = await store.claim("a")
    async with unchanged(store):
        await refusal(Fenced, store.append(lease, [step("x"), _handed("cook", "clerk", "x")], head=1))
    assert (await store.journal("a")).agent == "clerk"
    await append_here(store, other, step("x"), _handed("cook", "clerk", "x"))
    assert (await store.journal("a")).agent == "cook"


async def a_journal_is_opened_under_the_name_of_who_had_it_first_or_has_it_now(store: Store, reopen: Reopen) -> None:
    await _to_cook(store)
    store = await reopen()
    line = await store.journal("a")
    for agent in ("clerk", "cook"):
        assert await store.open_journal("a", "session", agent) == line
        assert (await store.accept_into("a", "session", agent, agent, key=agent)).fresh
    for agent in ("waiter", None):
        await refusal(JournalConflict, store.open_journal("a", "session", agent))
        await refusal(JournalConflict, store.accept_into("a", "session", agent, 1))
    await refusal(JournalConflict, store.open_journal("a", "process", "clerk"))


async def who_has_had_a_journal_in_between_does_not_open_it(store: Store) -> None:
    await append_here(store, await _to_cook(store), step("y"), _handed("waiter", "cook", "y"))
    await refusal(JournalConflict, store.open_journal("a", "session", "cook"))
    assert (await store.open_journal("a", "session", "clerk")).agent == "waiter"


async def a_fork_is_for_whom_the_parent_was_at_that_record(store: Store, reopen: Reopen) -> None:
    await append_here(store, await _to_cook(store), step("y"), _handed("clerk", "cook", "y"))
    store = await reopen()
    found = {at: (await store.fork(f"b{at}", "a", at)).agent for at in (1, 2, 4, 6)}
    assert found == {1: "clerk", 2: "clerk", 4: "cook", 6: "clerk"}
    assert (await store.fork("c", "b4", 1)).agent == "cook"


async def a_fork_at_the_outcome_of_a_handoff_begins_after_the_handoff(store: Store) -> None:
    await append_here(store, await _to_cook(store), step("y"))
    fork = await store.fork("b", "a", 3)
    assert (fork.parent_seq, fork.agent) == (4, "cook")
    assert await store.fork("b", "a", 3) == await store.fork("b", "a", 4) == fork
    after = await store.fork("c", "a", 5)
    assert (after.parent_seq, after.agent) == (5, "cook")


async def a_handoff_that_stands_apart_from_its_call_does_not_move_a_fork(store: Store, lease: ClerkLease) -> None:
    await append_here(store, lease, step("x"), step("y"), _handed("cook", "clerk", "x"))
    fork = await store.fork("b", "a", 3)
    assert (fork.parent_seq, fork.agent) == (3, "clerk")


async def an_input_may_open_a_fork_at_the_last_record_of_another_journal(store: Store, reopen: Reopen) -> None:
    await append_here(store, await _to_cook(store), step("y"))
    receipt = await store.accept_into("b", "session", "cook", {"n": 1}, key="k", parent="a")
    again = await store.accept_into("b", "session", "cook", {"n": 1}, key="k", parent="a")
    assert (receipt.fresh, receipt.input, again.fresh) == (True, 1, False)
    store = await reopen()
    line = await store.journal("b")
    assert (line.parent, line.parent_seq, line.head) == ("a", 5, 1)
    assert await store.forks("a") == ["b"]
    assert await store.forks("b") == []


async def a_fork_of_a_missing_journal_is_not_opened(store: Store) -> None:
    await refusal(JournalMissing, store.accept_into("b", "session", "cook", {"n": 1}, key="k", parent="a"))
    await refusal(JournalMissing, store.journal("b"))


async def spending_counts_for_the_agent_that_did_the_work(store: Store, lease: ClerkLease, reopen: Reopen) -> None:
    one = Spend(tool_calls=1)
    for records in ([step("w")], [step("x"), _handed("cook", "clerk", "x")], [step("y")]):
        await append_here(store, lease, *records, spend=one)
    assert (await store.spent("clerk"), await store.spent("cook")) == (one + one, one)
    assert await store.examine(suite.audit_steps) == []
    store = await reopen()
    async with unchanged(store):
        await store.rebuild_spending(suite.spend_of_step)
