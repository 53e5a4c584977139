"""A coroutine of which somebody wants to know when it begins to wait, and the gate that lets calls in."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.eventloop import SlotGate, call_on_first_wait


async def test_what_waits_for_nothing_gives_its_value_and_is_not_told() -> None:
    told: list[str] = []

    async def work() -> int:
        return 3

    assert await call_on_first_wait(work(), lambda: told.append("waits")) == 3
    assert told == []


async def test_what_waits_is_told_once_and_gets_what_it_waited_for() -> None:
    told: list[str] = []

    async def work() -> int:
        return await asyncio.sleep(0, 1) + await asyncio.sleep(0.001, 2)

    assert await call_on_first_wait(work(), lambda: told.append("waits")) == 3
    assert told == ["waits"]


async def test_what_it_raises_is_raised() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        message = "broken"
        raise LookupError(message)

    with pytest.raises(LookupError):
        await call_on_first_wait(work(), lambda: None)


async def test_a_cancellation_gets_to_what_waits() -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    task = asyncio.ensure_future(asyncio.wait_for(call_on_first_wait(work(), lambda: None), 0.001))
    with pytest.raises(TimeoutError):
        await task
    assert cleaned == ["up"]


async def queue_at(gate: SlotGate, names: str, entered: list[str]) -> list[asyncio.Task[None]]:
    """Calls that wait at the gate, in order; each notes when it is let in."""

    async def enter(name: str) -> None:
        await gate.enter()
        entered.append(name)

    tasks = [asyncio.create_task(enter(name)) for name in names]
    await asyncio.sleep(0)
    return tasks


async def test_a_wait_that_is_cancelled_in_the_moment_in_which_a_place_becomes_free_is_cancelled() -> None:
    gate, entered = SlotGate(1), list[str]()
    await gate.enter()
    first, second = await queue_at(gate, "ab", entered)
    first.cancel()
    gate.leave()  # the task of the first has not run yet: its turn is passed over here
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(second, 1)
    assert entered == ["b"]


async def test_a_place_that_was_given_to_a_cancelled_wait_goes_to_the_next() -> None:
    gate, entered = SlotGate(1), list[str]()
    await gate.enter()
    first, second, third = await queue_at(gate, "abc", entered)
    gate.leave()
    first.cancel()  # it was let in, and does not know it yet
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(second, 1)
    assert (entered, third.done(), gate.enter_now()) == (["b"], False, False)
    gate.leave()
    await asyncio.wait_for(third, 1)
    gate.leave()
    assert gate.enter_now()


async def test_calls_are_let_in_in_their_order_and_nobody_overtakes_them() -> None:
    gate, entered = SlotGate(2), list[str]()
    assert gate.enter_now()
    assert gate.enter_now()
    tasks = await queue_at(gate, "abcd", entered)
    gate.leave()
    assert not gate.enter_now()  # the free place is that of the first who waits
    gate.widen(3)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert entered == ["a", "b"]
    gate.widen(1)
    gate.leave()
    gate.leave()
    await asyncio.sleep(0)
    assert entered == ["a", "b"]
    for _ in "cd":
        gate.leave()
    await asyncio.wait_for(asyncio.gather(*tasks), 1)
    assert entered == ["a", "b", "c", "d"]
