"""A coroutine of which somebody wants to know when it begins to wait."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.eventloop import call_on_first_wait


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
