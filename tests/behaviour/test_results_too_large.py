"""A result that is larger than what is kept of one: the model and the host learn both sizes, and that it was made."""

from __future__ import annotations

from typing import Any

import pytest
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.errors import ResultTooLarge
from holdfast.errors.world import ProcessFailed
from holdfast.testing import ScriptedModel, call, text

LIMITS = hf.StoreLimits(blob_bytes=100_000, attachment_bytes=100_000, inline_bytes=1_000)
SIZE = 150_000


@hf.tool
async def words() -> str:
    """Give many words."""
    return "é" * (SIZE // 2)


@hf.tool
async def numbers() -> list[str]:
    """Give many numbers."""
    return ["0123456789"] * (SIZE // 10)


@hf.tool
async def photo() -> hf.File:
    """Give a large file."""
    return hf.File(b"x" * SIZE, "image/png", name="cat.png")


async def _told(tool: hf.Tool[..., Any], *more: Any) -> hf.ToolResult:
    """What the model reads of a call."""
    model = ScriptedModel([call(tool), text("ok")])
    agent = hf.Agent("a", model=model, tools=[tool, *more], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent], limits=LIMITS) as runtime:
        await runtime.run(agent, "go")
    (found,) = [
        result
        for message in model.requests[-1].messages
        if isinstance(message, hf.ToolMessage)
        for result in message.results
    ]
    return found


@pytest.mark.parametrize("reader", [[], [hf.tools.tasks()]], ids=["without read_result", "with read_result"])
async def test_a_text_that_can_not_be_kept_says_how_large_it_is_and_how_large_it_may_be(reader: list[Any]) -> None:
    told = str((await _told(words, *reader)).content)
    assert "the whole result is 150,000 bytes, and at most 100,000 are kept" in told
    assert "You have no tool" not in told


async def test_a_value_that_can_not_be_kept_says_how_large_it_is_and_how_large_it_may_be() -> None:
    assert "and at most 100,000 are kept" in str((await _told(numbers)).content)


async def test_a_file_that_can_not_be_kept_says_that_the_tool_ran_and_both_sizes() -> None:
    told = await _told(photo)
    assert told.state == "error"
    for words in ("it ran to its end", "cat.png", "150,000 bytes", "the limit is 100,000"):
        assert words in str(told.content)


@hf.process
async def gives_much(ctx: hf.ProcessContext) -> str:
    return "x" * SIZE


@hf.process
async def steps_much(ctx: hf.ProcessContext) -> str:
    return await ctx.step("much", lambda: "x" * SIZE)


@hf.process
async def asks_much(ctx: hf.ProcessContext) -> str:
    return await (await ctx.start(gives_much)).result()


@pytest.mark.parametrize("process", [gives_much, steps_much, asks_much], ids=lambda process: process.name)
async def test_a_process_whose_value_can_not_be_kept_fails_and_says_both_sizes(process: Any) -> None:
    async with hf.open(None, processes=[gives_much, steps_much, asks_much], limits=LIMITS) as runtime:
        started = await runtime.start(process)
        with pytest.raises(ProcessFailed, match="150,002 bytes, the limit is 100,000"):
            await started.result(timeout=SOON)


def test_the_error_carries_what_it_is_about() -> None:
    error = ResultTooLarge("a value", 7, 5)
    assert (error.what, error.size, error.limit) == ("a value", 7, 5)
