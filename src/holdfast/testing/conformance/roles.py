"""Roles: what a process is and for whom it works, and who finds it when nobody advances it."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from holdfast.errors import JournalConflict, SiblingBegun
from holdfast.records import Ended, Opened, Started
from holdfast.store.audit import audit
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import Stores, append_here, case, contents, refusal

if TYPE_CHECKING:
    from holdfast.store import Journal, Lease, Store


async def _task(store: Store, name: str, session: str | None = "s", *, role: str | None = "task") -> Lease:
    """A process that is in the middle of its work."""
    await store.open_journal(name, "process", role=role, session=session)
    lease = await store.claim(name)
    await append_here(store, lease, Started(at=1, run="r"))
    return lease


@case
async def a_journal_keeps_its_role_and_its_session(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        made = await store.open_journal("a", "process", "clerk", role="task", session="s")
        assert (made.role, made.session) == ("task", "s")
        assert await store.open_journal("a", "process", "clerk", role="task", session="s") == made
    async with stores.open(clock) as store:
        assert await store.journal("a") == made
        first = (await store.read("a"))[0].record
        assert isinstance(first, Opened)
        assert (first.role, first.session) == ("task", "s")
        assert await store.examine(audit) == []


@case
async def the_same_id_with_another_role_or_session_is_a_conflict(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a", "process", role="task", session="s")
        await store.open_journal("plain", "process")
        before = await contents(store)
        for name, role, session in (
            *(("a", None, None), ("a", "task", None), ("a", None, "s"), ("a", "task", "other")),
            *(("a", "other", "s"), ("plain", "task", None), ("plain", None, "s")),
        ):
            await refusal(JournalConflict, store.open_journal(name, "process", role=role, session=session))
            await refusal(JournalConflict, store.accept_into(name, "process", None, 1, role=role, session=session))
        assert await contents(store) == before


@case
async def an_input_can_open_a_journal_with_a_role(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.accept_into("a", "process", None, 1, key="k", role="task", session="s")
        assert [(found.journal, found.role) for found in await store.work()] == [("a", "task")]
        assert (await store.journal("a")).session == "s"


@case
async def a_process_with_a_role_is_work_while_it_runs_and_when_it_is_woken(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        leases = [await _task(store, "task"), await _task(store, "driven", role=None)]
        (found,) = await store.work()
        assert (found.journal, found.kind, found.role, found.holder) == ("task", "process", "task", store.owner)
        for lease in leases:
            await append_here(store, lease, Ended(at=2, run="r", status="completed"))
        assert await store.work() == []
        for lease in leases:
            await store.accept(lease.journal, 1, key="k")
        assert [found.journal for found in await store.work()] == ["task"]


@case
async def a_session_is_work_without_a_role(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.accept_into("a", "session", None, 1, key="k")
        (found,) = await store.work()
        assert (found.kind, found.role) == ("session", None)


@case
async def lists_can_be_narrowed_by_role_and_session(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        for n in range(12):
            clock.advance(n % 2)
            kind = "session" if n % 3 == 0 else "process"
            role, session = (None, "task", "timer")[n % 3], (None, "s", "t")[n // 4]
            await store.open_journal(f"j{n:02}", kind, role=role, session=session)
        await append_here(store, await store.claim("j04"), Started(at=clock.read().wall, run="r"))
        everything = await store.journals()
        roles, sessions = (None, "task", "timer", "none"), (None, "s", "t", "none")
        for role, session, status in itertools.product(roles, sessions, (None, "idle", "running")):
            expected = [
                line
                for line in everything
                if role in (None, line.role) and session in (None, line.session) and status in (None, line.status)
            ]
            asked = (role, session, status)
            assert await store.journals(role=role, session=session, status=status) == expected, asked
            seen: list[Journal] = []
            while page := await store.journals(
                role=role, session=session, status=status, before=seen[-1] if seen else None, limit=2
            ):
                seen.extend(page)
            assert seen == expected, asked


@case
async def a_fork_is_what_its_parent_is(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await _task(store, "task")
        fork = await store.fork("fork", "task", 2)
        assert (fork.role, fork.session) == ("task", "s")
        assert await store.examine(audit) == []


@case
async def a_journal_that_depends_on_its_siblings_is_made_only_where_they_are_as_they_were(stores: Stores) -> None:
    async with stores.open(ManualClock()) as one, stores.open(ManualClock()) as two:
        assert await one.youngest("agent", "s") == await two.youngest("agent", "s") == ""
        made = one.accept_into("a", "session", "x", 1, key="k", role="agent", session="s", youngest="")
        assert (await made).fresh
        late = two.accept_into("b", "session", "x", 1, key="k", role="agent", session="s", youngest="")
        error = await refusal(SiblingBegun, late)
        assert (error.journal, error.youngest) == ("b", "a")
        assert [line.id for line in await two.journals()] == ["a"]
        again = two.accept_into("a", "session", "x", 1, key="k", role="agent", session="s", youngest="")
        assert not (await again).fresh  # it was made before; nothing is decided by this
        await two.accept_into("z", "session", "x", 1, key="k", role="task", session="s", youngest="")
        await two.accept_into("y", "session", "x", 1, key="k", role="agent", session="t", youngest="")
        await two.accept_into("b", "session", "x", 1, key="k", role="agent", session="s", youngest="a")
        assert await one.youngest("agent", "s") == "b"
