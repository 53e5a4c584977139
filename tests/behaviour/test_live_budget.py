"""How long a model waits for a call where a person waits for the model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path


def slow(go_on: asyncio.Event, begun: asyncio.Event | None = None, budget: float | None = None) -> hf.Agent:
    @hf.tool(idempotent=True)
    async def render() -> str:
        if begun is not None:
            begun.set()
        await go_on.wait()
        return "rendered"

    script = [call("render"), text("I have begun."), text("Done.")]
    return hf.Agent("a", model=ScriptedModel(script), tools=[render], policy=[hf.allow("*")], inline_budget=budget)


async def test_a_runtime_can_say_how_long_models_wait(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    agent = slow(go_on)
    async with hf.open(tmp_path / "s.db", agents=[agent], inline_budget=0.01) as runtime:
        assert (await runtime.run(agent, "Go.", session="s")).text == "I have begun."
        go_on.set()


async def test_without_one_a_model_waits_as_long_as_it_takes(tmp_path: Path) -> None:
    go_on, begun = asyncio.Event(), asyncio.Event()
    agent = slow(go_on, begun)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        running = asyncio.ensure_future(runtime.run(agent, "Go.", session="s"))
        await begun.wait()
        go_on.set()
        await running
        assert await runtime.tasks.list() == []


async def test_the_agent_goes_before_the_runtime(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    agent = slow(go_on, budget=0.01)
    async with hf.open(tmp_path / "s.db", agents=[agent], inline_budget=3_600) as runtime:
        assert (await runtime.run(agent, "Go.", session="s")).text == "I have begun."
        go_on.set()
