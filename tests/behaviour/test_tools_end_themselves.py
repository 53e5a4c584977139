"""What a tool raises is its result, also where it raises what only its surroundings may; so with handlers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.messages import ToolMessage
from holdfast.testing import ScriptedModel, call, text


@hf.tool(read_only=True)
async def raises_generator_exit() -> str:
    raise GeneratorExit


@hf.tool(read_only=True)
async def raises_it_after_a_while() -> str:
    await asyncio.sleep(0)
    raise GeneratorExit


@hf.tool(read_only=True)
async def cancels_itself_and_waits() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)
    return "never"


@hf.tool(read_only=True)
async def cancels_itself_and_raises() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    raise asyncio.CancelledError


@hf.tool(read_only=True)
async def cancels_itself_with_a_context(ctx: hf.Context) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)
    return ctx.tool


@hf.tool(read_only=True)
async def cancels_itself_and_returns() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "returned"


ENDS: list[tuple[hf.Tool[..., Any], str]] = [
    (raises_generator_exit, "the tool raised GeneratorExit"),
    (raises_it_after_a_while, "the tool raised GeneratorExit"),
    (cancels_itself_and_waits, "cancelled the task"),
    (cancels_itself_and_raises, "cancelled the task"),
    (cancels_itself_with_a_context, "cancelled the task"),
    (cancels_itself_and_returns, "returned"),
]


@pytest.mark.parametrize(("tool", "said"), ENDS, ids=[tool.name for tool, _ in ENDS])
@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "beside another"])
async def test_what_a_tool_does_to_its_task_is_its_result(tool: hf.Tool[..., Any], said: str, beside: int) -> None:
    @hf.tool(read_only=True)
    async def other() -> str:
        await asyncio.sleep(0)
        return "other"

    script = [[call(tool.name), *[call("other")] * beside], text("done")]
    agent = hf.Agent("a", model=ScriptedModel(script), tools=[tool, other])
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await asyncio.wait_for(runtime.run(agent, "go", session="s"), SOON)
        assert (outcome.status, outcome.text) == ("completed", "done")
        history = await runtime.session("s").history()
        results = [found for each in history if isinstance(each, ToolMessage) for found in each.results]
        assert said in str(results[0].content)
        assert [found.content for found in results[1:]] == ["other"] * beside


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
async def test_what_a_handler_raises_is_surfaced_and_ends_nothing(error: type[BaseException]) -> None:
    agent = hf.Agent("a", model=ScriptedModel([text("one"), text("two")]))
    ended: list[str] = []

    async def handler(event: hf.TurnCompleted) -> None:
        ended.append(event.session)
        raise error(3)

    async with hf.open(None, agents=[agent]) as runtime, runtime.on(hf.TurnCompleted, handler) as subscription:
        await runtime.run(agent, "go", session="s1")
        await until(lambda: len(ended) == 1)
        await runtime.run(agent, "go", session="s2")
        await until(lambda: subscription.failures == 2)
        assert isinstance(subscription.errors[0][1], error)
        assert not subscription.finished
