"""Using the answer to a wait: once, in the commit that records what is done with it."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.errors import Fenced, HeadConflict, InvalidArgument
from holdfast.errors.waits import WaitConsumed
from holdfast.store.audit import audit
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import Stores, case, contents, leased, refusal, step

if TYPE_CHECKING:
    from holdfast.store import Lease, Store


async def _approved(store: Store, *names: str) -> Lease:
    lease = await leased(store, "a")
    for name in names:
        await store.open_wait("a", name, kind="approval", body=name.encode())
        await store.answer_wait("a", name, "yes")
    return lease


@case
async def an_answer_is_used_by_the_record_that_names_it(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await _approved(store, "v", "w", "x")
        await store.append(lease, [step("a"), step("b")], head=1, consume=["v", "w"])
    async with stores.open(clock) as store:
        found = {wait.name: (wait.state, wait.consumed, wait.payload) for wait in await store.waits("a")}
        assert found == {
            "v": ("resolved", 2, b'"yes"'),
            "w": ("resolved", 2, b'"yes"'),
            "x": ("resolved", 0, b'"yes"'),
        }
        assert await store.examine(audit) == []


@case
async def an_answer_is_used_once(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await _approved(store, "v", "w")
        await store.append(lease, [step("a")], head=1, consume=["w"])
        before = await contents(store)
        error = await refusal(WaitConsumed, store.append(lease, [step("b")], head=2, consume=["v", "w"]))
        assert (error.journal, error.name, error.state) == ("a", "w", "consumed")
        assert await contents(store) == before


@case
async def of_two_appends_at_once_one_uses_the_answer(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await _approved(store, "w")
        appends = [store.append(lease, [step("a")], head=1, consume=["w"]) for _ in range(2)]
        second = [store.append(lease, [step("b")], head=2, consume=["w"])]
        answers = await asyncio.gather(*appends, *second, return_exceptions=True)
        assert answers[0] == 2
        assert isinstance(answers[1], HeadConflict)
        assert isinstance(answers[2], WaitConsumed)


@case
async def only_a_resolution_can_be_used(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "a")
        for name in ("open", "cancelled", "revoked"):
            await store.open_wait("a", name)
        await store.open_wait("a", "expired", deadline=clock.read().wall)
        await store.expire_wait("a", "expired")
        await store.cancel_wait("a", "cancelled")
        await store.revoke_waits("a", "revoked")
        for name in ("open", "cancelled", "revoked", "expired", "unknown"):
            error = await refusal(WaitConsumed, store.append(lease, [step("x")], head=1, consume=[name]))
            assert (error.name, error.state) == (name, name)
        assert (await store.journal("a")).head == 1


@case
async def the_waits_of_another_journal_can_not_be_used(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await _approved(store, "w")
        other = await leased(store, "b")
        error = await refusal(WaitConsumed, store.append(other, [step("x")], head=1, consume=["w"]))
        assert error.state == "unknown"


@case
async def an_append_that_is_refused_uses_nothing(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await _approved(store, "w")
        await refusal(HeadConflict, store.append(lease, [step("x")], head=7, consume=["w"]))
        await store.release(lease)
        await refusal(Fenced, store.append(lease, [step("x")], head=1, consume=["w"]))
        lease = await store.claim("a")
        assert await store.append(lease, [step("x")], head=1, consume=["w"]) == 2


@case
async def a_used_answer_stays_used_when_its_wait_is_opened_again(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await _approved(store, "w")
        await store.append(lease, [step("a")], head=1, consume=["w"])
        assert (await store.open_wait("a", "w", body=b"other")).consumed == 2
        assert not (await store.answer_wait("a", "w", "again")).won
        await refusal(WaitConsumed, store.append(lease, [step("b")], head=2, consume=["w"]))


@case
async def the_same_answer_named_twice_is_refused(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        lease = await _approved(store, "w")
        await refusal(InvalidArgument, store.append(lease, [step("a")], head=1, consume=["w", "w"]))
        await refusal(InvalidArgument, store.append(lease, [step("a")], head=1, consume="w"))
        assert (await store.journal("a")).head == 1
