"""Dependencies: `hf.open(..., deps=...)` gives tools, hooks and processes `ctx.deps`, and nothing of it is stored."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from tests.behaviour.talk import at_rest

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


@dataclass
class Bank:
    """A bank of the host."""

    refunds: list[str] = field(default_factory=list[str])
    open: bool = True


class Payments(Protocol):
    """Anything that can refund; not checked at run time."""

    refunds: list[str]


@hf.tool
async def refund(ctx: hf.Context[Bank], order: str) -> str:
    """Refund an order."""
    assert ctx.deps.open
    ctx.deps.refunds.append(order)
    return "refunded"


@hf.tool
async def refund_by_protocol(ctx: hf.Context[Payments], order: str) -> str:
    """Refund an order."""
    ctx.deps.refunds.append(order)
    return "refunded"


@hf.tool
async def look(ctx: hf.Context, order: str) -> str:
    """Look at an order."""
    return type(ctx.deps).__name__


@hf.process
async def refund_all(ctx: hf.ProcessContext[Bank], orders: list[str]) -> int:
    for order in orders:
        ctx.deps.refunds.append(order)
    return len(ctx.deps.refunds)


def _agent(*tools: Any, hooks: list[hf.Hooks] | None = None) -> hf.Agent:
    name = tools[0].name
    script = ScriptedModel([call(name, order="7"), text("done")])
    return hf.Agent("shop", model=script, tools=list(tools), policy=[hf.allow("*")], hooks=hooks or [])


# ---- giving them -----------------------------------------------------------------------------------------------------


async def test_a_tool_gets_the_value_that_the_host_gave() -> None:
    bank = Bank()
    async with hf.open(None, agents=[_agent(refund)], deps=bank) as runtime:
        await runtime.run("shop", "refund 7")
    assert bank.refunds == ["7"]


async def test_a_context_manager_is_entered_before_work_begins_and_left_after_it_has_ended() -> None:
    seen: list[str] = []
    bank = Bank()

    @asynccontextmanager
    async def make_deps() -> AsyncGenerator[Bank]:
        seen.append("entered")
        yield bank
        seen.append(f"left after {bank.refunds}")

    async with hf.open(None, agents=[_agent(refund)], deps=make_deps) as runtime:
        assert seen == ["entered"]
        await runtime.run("shop", "refund 7")
    assert seen == ["entered", "left after ['7']"]


async def test_a_function_that_gives_the_value_is_called_once() -> None:
    async def make_deps() -> Bank:
        made.append(Bank())
        return made[-1]

    made: list[Bank] = []
    async with hf.open(None, agents=[_agent(refund)], deps=make_deps) as runtime:
        await runtime.run("shop", "refund 7")
    assert [bank.refunds for bank in made] == [["7"]]


async def test_a_class_without_arguments_is_made() -> None:
    async with hf.open(None, agents=[_agent(look)], deps=Bank) as runtime:
        turn = await runtime.session("s", agent="shop").send("look")
        events = [event async for event in turn.events() if isinstance(event, hf.ToolCallFinished)]
    assert [event.content for event in events] == ["Bank"]


async def test_a_function_that_needs_arguments_is_refused_before_anything_begins() -> None:
    def make_deps(url: str) -> Bank:
        raise AssertionError(url)

    with pytest.raises(hf.errors.InvalidArgument, match="a function without required arguments"):
        async with hf.open(None, agents=[_agent(refund)], deps=make_deps):
            pass


async def test_an_error_of_the_context_manager_reaches_whoever_opens(tmp_path: Path) -> None:
    @asynccontextmanager
    async def make_deps() -> AsyncGenerator[Bank]:
        raise ConnectionError("no bank")
        yield Bank()

    with pytest.raises(ConnectionError, match="no bank"):
        async with hf.open(tmp_path / "s.db", agents=[_agent(refund)], deps=make_deps):
            pass
    async with hf.open(tmp_path / "s.db", agents=[_agent(refund)], deps=Bank()) as runtime:  # the store was closed
        assert (await runtime.run("shop", "refund 7")).ok


async def test_hooks_and_processes_get_them_too() -> None:
    seen: list[Bank] = []

    class Watching(hf.Hooks):
        async def before_turn(self, turn: hf.TurnContext[Bank]) -> None:
            seen.append(turn.deps)

    bank = Bank()
    agent = _agent(refund, hooks=[Watching()])
    async with hf.open(None, agents=[agent], processes=[refund_all], deps=bank) as runtime:
        await runtime.run(agent, "refund 7")
        started = await runtime.start(refund_all, ["8", "9"])
        assert await started.result() == 3
    assert seen == [bank]


async def test_a_background_call_gets_them() -> None:
    @hf.tool(background=True)
    async def refund_later(ctx: hf.Context[Bank], order: str) -> str:
        """Refund an order."""
        ctx.deps.refunds.append(order)
        return "refunded"

    bank = Bank()
    async with hf.open(None, agents=[_agent(refund_later)], deps=bank) as runtime:
        await runtime.run("shop", "refund 7")
        await at_rest(runtime)
    assert bank.refunds == ["7"]


async def test_hf_run_takes_them() -> None:
    bank = Bank()
    assert (await hf.run(_agent(refund), "refund 7", deps=bank)).ok
    assert bank.refunds == ["7"]


async def test_a_runtime_that_does_not_drive_makes_none(tmp_path: Path) -> None:
    def make_deps() -> Bank:
        raise AssertionError("made")

    async with hf.open(tmp_path / "s.db", agents=[_agent(refund)], deps=make_deps, drive=False) as runtime:
        assert await runtime.sessions() == []


async def test_nothing_of_them_is_stored(tmp_path: Path) -> None:
    bank = Bank(["a canary in the bank"])
    async with hf.open(tmp_path / "s.db", agents=[_agent(refund)], deps=bank) as runtime:
        await runtime.run("shop", "refund 7")
    stored = [path.read_bytes() for path in tmp_path.glob("s.db*") if path.is_file()]  # noqa: ASYNC240
    assert stored
    assert not any(b"canary" in found for found in stored)


# ---- the wrong ones --------------------------------------------------------------------------------------------------


async def test_a_tool_that_wants_others_is_refused_at_open() -> None:
    with pytest.raises(hf.errors.DepsMismatch, match=r"the tool 'refund' of the agent 'shop' wants Bank .* gave a str"):
        async with hf.open(None, agents=[_agent(refund)], deps="a bank"):
            pass


async def test_a_tool_that_wants_some_is_refused_at_open_when_there_are_none() -> None:
    with pytest.raises(hf.errors.DepsMissing, match="the tool 'refund' of the agent 'shop' wants Bank"):
        async with hf.open(None, agents=[_agent(refund)]):
            pass


async def test_an_agent_that_comes_later_is_refused_when_it_comes() -> None:
    async with hf.open(None, deps="a bank") as runtime:
        with pytest.raises(hf.errors.DepsMismatch):
            runtime.session("s", agent=_agent(refund))


async def test_a_process_that_wants_others_is_refused_at_open() -> None:
    with pytest.raises(hf.errors.DepsMismatch, match="the process 'refund_all' wants Bank"):
        async with hf.open(None, processes=[refund_all], deps="a bank"):
            pass


async def test_a_protocol_that_can_not_be_checked_is_taken() -> None:
    bank = Bank()
    async with hf.open(None, agents=[_agent(refund_by_protocol)], deps=bank) as runtime:
        await runtime.run("shop", "refund 7")
    assert bank.refunds == ["7"]


async def test_a_tool_that_asks_for_them_where_there_are_none_fails_by_name() -> None:
    async with hf.open(None, agents=[_agent(look)]) as runtime:
        turn = await runtime.session("s", agent="shop").send("look")
        events = [event async for event in turn.events() if isinstance(event, hf.ToolCallFinished)]
    assert "give it to hf.open(deps=...)" in str(events[0].content)
