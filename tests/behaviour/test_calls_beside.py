"""Calls of one reply that only read: side by side, and in a task of their own only where one has to wait."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

import holdfast as hf
from holdfast.runtime import tool_call
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    import pytest

    from holdfast.tools import AnyTool

MARK: ContextVar[str] = ContextVar("mark", default="none")


async def made(*tools: AnyTool) -> bool:
    """One turn, in which a model calls all of these at once; whether it came to its end."""
    agent = hf.Agent("reader", model=ScriptedModel([[call(tool) for tool in tools], text("Done.")]), tools=tools)
    async with hf.open(None, agents=[agent]) as runtime:
        return (await runtime.run(agent, "Go.")).ok


async def test_a_call_that_waits_for_one_behind_it_gets_what_it_waits_for() -> None:
    later = asyncio.Event()

    @hf.tool(read_only=True)
    async def first() -> str:
        await later.wait()
        return "first"

    @hf.tool(read_only=True)
    async def second() -> str:
        later.set()
        return "second"

    assert await made(first, second)


async def test_calls_that_wait_for_nothing_run_in_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_call, "_TIME_SLICE", 60.0)
    tasks: set[asyncio.Task[object] | None] = set()

    @hf.tool(read_only=True)
    async def first() -> None:
        tasks.add(asyncio.current_task())

    @hf.tool(read_only=True)
    async def second() -> None:
        tasks.add(asyncio.current_task())

    assert await made(first, second)
    assert len(tasks) == 1


async def test_a_call_that_begins_while_another_waits_does_not_see_what_that_one_has_set() -> None:
    later, seen = asyncio.Event(), list[str]()

    @hf.tool(read_only=True)
    async def first() -> None:
        MARK.set("first")
        await later.wait()

    @hf.tool(read_only=True)
    async def second() -> None:
        seen.append(MARK.get())
        later.set()

    assert await made(first, second)
    assert seen == ["none"]


async def test_calls_that_compute_for_long_let_others_have_their_turn() -> None:
    order: list[str] = []

    @hf.tool(read_only=True)
    async def first() -> None:
        asyncio.get_running_loop().call_soon(order.append, "another")
        time.sleep(0.001)  # noqa: ASYNC251  it computes
        order.append("first")

    @hf.tool(read_only=True)
    async def second() -> None:
        order.append("second")

    assert await made(first, second)
    assert order == ["first", "another", "second"]
