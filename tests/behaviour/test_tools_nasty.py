"""Whatever a tool does, its turn goes on and its session stays usable."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.messages import ToolMessage, ToolResult
from holdfast.testing import ScriptedModel, call, text
from holdfast.tools import abandoned, toolset

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


async def _result(given: Any, **arguments: Any) -> ToolResult:
    """What the model reads about one call; the turn and the one after it complete."""
    agent = hf.Agent(
        "a",
        model=ScriptedModel([call(given.name, **arguments), text("ok"), text("next")]),
        tools=[given],
        policy=[hf.allow("*")],
    )
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await (await session.send("x")).outcome(timeout=SOON)
        history = await session.history()
        following = await (await session.send("and now?")).outcome(timeout=SOON)
    assert (first.status, following.status) == ("completed", "completed")
    (found,) = [result for message in history if isinstance(message, ToolMessage) for result in message.results]
    return found


def _falls() -> int:
    return _falls()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "MemoryError: it ran out of memory"),
        (Hostile(), "Hostile"),
        (BaseExceptionGroup("both", [SystemExit(1), OSError("x")]), "BaseExceptionGroup: SystemExit: 1; OSError: x"),
    ],
    ids=["memory", "hostile", "group"],
)
async def test_what_a_tool_raises_is_what_the_model_reads(error: BaseException, said: str) -> None:
    @hf.tool(read_only=True)
    async def breaks() -> str:
        raise error

    found = await _result(breaks)
    assert (found.state, found.content) == ("error", said)


async def test_a_recursion_without_end_is_a_result() -> None:
    found = await _result(hf.tool("falls", read_only=True)(_falls))
    assert str(found.content).startswith("RecursionError: maximum recursion depth exceeded")


async def test_an_iterator_is_the_list_of_what_it_gives() -> None:
    @hf.tool(read_only=True)
    def lists() -> Iterator[int]:
        return (n * n for n in range(4))

    assert (await _result(lists)).content == [0, 1, 4, 9]


async def _later() -> AsyncIterator[str]:
    yield "a"


async def test_an_async_iterator_is_the_list_of_what_it_gives() -> None:
    @hf.tool(read_only=True)
    def lists() -> AsyncIterator[str]:
        return _later()

    assert (await _result(lists)).content == ["a"]


async def test_a_plain_function_that_hangs_past_its_timeout_is_abandoned_by_name() -> None:
    go = threading.Event()

    @hf.tool(read_only=True, timeout=0.05)
    def hangs_for_long() -> str:
        go.wait(SOON)
        return "late"

    try:
        found = await _result(hangs_for_long)
        assert found.state == "error"
        assert "hangs_for_long" in abandoned().running
    finally:
        go.set()


async def test_arguments_deep_inside_go_back_with_the_exact_complaint() -> None:
    from pydantic import BaseModel

    class Line(BaseModel):
        title: str
        cents: int

    def order(lines: Any) -> str:
        return str(lines)

    order.__annotations__["lines"] = list[Line]
    found = await _result(hf.tool(order, read_only=True), lines=[{"title": "x", "cents": 1}, {"title": "y"}])
    assert '- lines[1].cents: it is missing (expected {"type":"integer"})' in str(found.content)


async def test_a_tool_is_called_by_the_name_that_its_toolset_gave_it() -> None:
    @hf.tool(read_only=True)
    async def read(path: str) -> str:
        await asyncio.sleep(0)
        return path

    (made,) = toolset(read, prefix="fs_", rename={"read": "cat"})
    found = await _result(made, path="a.txt")
    assert (found.name, found.content) == ("fs_cat", "a.txt")
