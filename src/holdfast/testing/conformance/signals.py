"""Numbered waits: what comes answers the first that can be answered, once for each key."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import KeyConflict, PayloadTooLarge
from holdfast.store.audit import audit
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import Stores, case, refusal

if TYPE_CHECKING:
    from holdfast.store import Settlement, Store


async def _said(store: Store, value: object, key: str | None = None) -> Settlement:
    return await store.answer_next("a", "w/", value, most=3, key=key)


@case
async def what_comes_answers_the_first_open_wait_and_then_the_next_number(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.open_wait("a", "w/00000001")
        await store.open_wait("a", "w/00000002")
        names = [(await _said(store, n)).wait.name for n in range(3)]
        assert names == ["w/00000001", "w/00000002", "w/00000003"]
        await refusal(PayloadTooLarge, _said(store, 4))


@case
async def an_overdue_wait_is_passed_over(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.open_wait("a", "w/00000001", deadline=clock.read().wall + 5)
        clock.advance(6)
        assert (await _said(store, 1)).wait.name == "w/00000002"


@case
async def the_same_key_answers_once_also_after_a_restart(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        assert (await _said(store, 1, "k")).won
    async with stores.open(ManualClock()) as store:
        assert not (await _said(store, 1, "k")).won
        assert [wait.name for wait in await store.waits("a") if wait.name.startswith("w/")] == ["w/00000001"]
        await refusal(KeyConflict, _said(store, 2, "k"))
        assert (await _said(store, 1, "other")).won
        assert await store.examine(audit) == []
