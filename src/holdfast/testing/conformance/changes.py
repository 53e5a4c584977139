"""Changes that are noticed, journals that are quarantined, and the store as a whole."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.errors import (
    JournalQuarantined,
    StoreClosed,
)
from holdfast.records import Admitted
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import (
    ON_A_JOURNAL,
    ON_THE_STORE,
    Stores,
    case,
    contents,
    leased,
    promptly,
    refusal,
    step,
)

if TYPE_CHECKING:
    from holdfast.store import Store


@case
async def the_version_grows_with_every_commit(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await leased(store, "a")
        await store.open_wait("a", "w")
        calls = {name: call for name, call in {**ON_A_JOURNAL, **ON_THE_STORE}.items() if name in _CHANGES}
        for name, call in calls.items():
            before = store.version
            await call(store, lease)
            assert store.version > before, name


_CHANGES: Final = (
    *("append", "renew", "accept", "open_wait", "cancel_wait"),
    *("open_journal", "fork", "accept_into", "put_blob", "notify", "memory_put", "memory_delete", "add_rule"),
)


@case
async def whoever_waits_for_a_change_is_woken_by_it(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        seen = store.version
        waiting = asyncio.ensure_future(store.changed(seen))
        await asyncio.sleep(0)
        await store.open_journal("a")
        assert await promptly(waiting) > seen


@case
async def a_change_that_came_before_the_waiting_is_not_missed(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        seen = store.version
        await store.open_journal("a")
        assert await promptly(store.changed(seen)) > seen


async def _quiet(store: Store) -> int:
    """The version when nothing is left to notice; the opening of the store itself may come late."""
    seen = store.version
    for _ in range(100):
        before, seen = seen, await store.changed(seen, 0.05)
        if seen == before:
            return seen
    raise AssertionError("the version grows although nothing is written")


@case
async def waiting_for_a_change_ends_when_the_time_is_up(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        seen = await _quiet(store)
        assert await promptly(store.changed(seen, 0.01)) == seen


@case
async def a_commit_of_another_opening_is_noticed(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        for n in range(3):
            seen = two.version
            await one.open_journal(f"j{n}")
            assert await promptly(two.changed(seen)) > seen


@case
async def an_observer_in_another_opening_misses_nothing(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as writer, stores.open(clock) as observer:
        lease = await leased(writer, "a")

        async def observe() -> list[int]:
            seen: list[int] = []
            while len(seen) < 21:
                version = observer.version
                news = await observer.feed(after=len(seen))
                seen.extend(entry.pos for entry in news)
                if not news:
                    await observer.changed(version)
            return seen

        observing = asyncio.ensure_future(observe())
        for n in range(20):
            await writer.append(lease, [step(str(n))], head=n + 1)
            await asyncio.sleep(0)
        try:
            assert await promptly(observing) == list(range(1, 22))
        finally:
            observing.cancel()


@case
async def closing_wakes_those_who_wait_for_changes(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        waiting = asyncio.ensure_future(store.changed(await _quiet(store)))
        await asyncio.sleep(0)
    await refusal(StoreClosed, promptly(waiting))
    await refusal(StoreClosed, promptly(store.changed(0)))


@case
async def a_quarantined_journal_is_not_advanced_and_the_others_go_on(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease, other = await leased(store, "a"), await leased(store, "b")
        await store.quarantine("a", "a test")
        before = await contents(store)
        for attempt in (
            store.append(lease, [step("x")], head=1),
            store.claim("a"),
            store.accept("a", 1, key="k"),
        ):
            error = await refusal(JournalQuarantined, attempt)
            assert (error.journal, error.reason) == ("a", "a test")
        assert await contents(store) == before
        assert await store.append(other, [step("x")], head=1) == 2


@case
async def a_quarantined_journal_still_answers_inputs_it_has_accepted(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.accept("a", 1, key="k")
        await store.quarantine("a", "a test")
        assert not (await store.accept("a", 1, key="k")).fresh


@case
async def the_first_reason_of_a_quarantine_stays_also_over_reopening(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.quarantine("a", "first")
        await store.quarantine("a", "second")
    async with stores.open(clock) as store:
        assert (await store.journal("a")).quarantine == "first"
        assert [line.quarantine for line in await store.journals()] == ["first"]
        await refusal(JournalQuarantined, store.claim("a"))


@case
async def a_store_keeps_its_identity_and_every_opening_has_its_own(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        assert one.id == two.id
        assert one.owner.instance != two.owner.instance
        identity = one.id
    async with stores.open(clock) as again:
        assert again.id == identity


@case
async def two_openings_see_what_the_other_has_committed(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        lease = await leased(one, "a")
        await one.append(lease, [step("x")], head=1)
        await two.accept("a", 1, key="k")
        await two.open_wait("a", "w")
        await one.append(lease, [Admitted(at=1, input=1, key="k")], head=2)
        assert await contents(one) == await contents(two)
        assert await two.pending("a") == []
