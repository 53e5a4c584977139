"""Waits inside tools: a call that waits is left in order, goes on with the answer, and ends with its turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import results
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _agent(*tools: hf.Tool[..., Any], script: Any = None) -> hf.Agent:
    return hf.Agent(
        "a",
        model=ScriptedModel(script or [call(tools[0]), text("done"), text("next")]),
        tools=list(tools),
        policy=[hf.allow("*")],
    )


async def _waiting_for(runtime: hf.Runtime, end: str) -> str:
    """The name of the wait for which the session is parked."""
    found: list[str] = []

    async def is_parked() -> bool:
        names = [wait.name for wait in await runtime.waits("s") if wait.name.endswith(end)]
        found[:] = names
        return bool(names) and await runtime.session("s").status() == "waiting"

    await until(is_parked)
    return found[0]


async def _answered(runtime: hf.Runtime, end: str, value: object) -> None:
    name = await _waiting_for(runtime, end)
    assert (await runtime.resolve(runtime.wait_token("s", name), value)).won


# ---- going on --------------------------------------------------------------------------------------------------------


async def test_a_tool_may_wait_twice_under_one_name() -> None:
    @hf.tool
    async def insists(ctx: hf.Context) -> str:
        answers = [await ctx.wait("go"), await ctx.wait("go")]
        return " ".join(map(str, answers))

    agent = _agent(insists)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("x")
        await _answered(runtime, "/go", "no")
        await _answered(runtime, "/go#2", "yes")
        await turn.outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == ["no yes"]


async def test_the_token_of_a_wait_is_that_of_the_next_wait_under_its_name() -> None:
    tokens: list[str] = []

    @hf.tool
    async def insists(ctx: hf.Context) -> str:
        first = await ctx.wait("go")
        tokens.append(ctx.wait_token("go"))
        return f"{first} {await ctx.wait('go')}"

    agent = _agent(insists)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("x")
        await _answered(runtime, "/go", 1)
        await _waiting_for(runtime, "/go#2")
        await runtime.resolve(tokens[0], 2)
        await turn.outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == ["1 2"]


@pytest.mark.parametrize("kind", ["group", "gather"])
async def test_a_tool_may_wait_beside_a_step(kind: str) -> None:
    stepped = asyncio.Event()

    async def step() -> str:
        await stepped.wait()
        return "step"

    @hf.tool(read_only=True)
    async def both(ctx: hf.Context) -> list[Any]:
        if kind == "gather":
            return list(await asyncio.gather(ctx.step("a", step), ctx.wait("go")))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step("a", step)), group.create_task(ctx.wait("go"))]
        return [task.result() for task in tasks]

    agent = _agent(both)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("x")
        await _waiting_for(runtime, "/go")
        stepped.set()
        await _answered(runtime, "/go", "go")
        await turn.outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == [["step", "go"]]


async def test_steps_around_the_waits_of_calls_side_by_side_are_done_once() -> None:
    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    def waiting(name: str, timeout: float | None) -> hf.Tool[..., Any]:
        @hf.tool(name, read_only=True)
        async def tool(ctx: hf.Context) -> str:
            await ctx.step("before", note, f"{name} before")
            try:
                first = await ctx.wait("first", timeout=timeout)
            except hf.WaitExpired:
                first = "expired"
            await ctx.step("after", note, f"{name} after")
            return f"{first} {await ctx.wait('second')}"

        return tool

    tools = [waiting("x", 0.05), waiting("y", None)]
    agent = _agent(*tools, script=[[call("x"), call("y")], text("done")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("x")
        for name in ("x/second", "y/second"):
            number = 1 if name.startswith("x") else 2
            await runtime.resolve(runtime.wait_token("s", f"t1/2.tools/{number}.{name}"), "early")
        await _answered(runtime, "y/first", "yes")
        await turn.outcome(timeout=SOON)
        assert sorted(done) == ["x after", "x before", "y after", "y before"]


async def test_an_answer_as_large_as_an_input_may_be_reaches_the_tool(tmp_path: Path) -> None:
    @hf.tool
    async def measures(ctx: hf.Context) -> int:
        return len(await ctx.wait("go"))

    agent = _agent(measures)
    size = hf.StoreLimits().input_bytes - 2
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("x")
        await _answered(runtime, "/go", "x" * size)
        await turn.outcome(timeout=SOON)
        assert [result.content for result in results(await session.history())] == [size]


# ---- finding out -----------------------------------------------------------------------------------------------------


class Left:
    """A call that one process left in the middle; the next one has to find out what came of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reached = asyncio.Event()
        self.again = False

    def agent(self, look: Callable[..., Any]) -> hf.Agent:
        @hf.tool(reconcile=look)
        async def pay(ctx: hf.Context) -> str:
            if self.again:
                return f"paid by {await ctx.wait('approval')}"
            self.reached.set()
            await asyncio.Event().wait()
            return ""

        return _agent(pay)

    async def interrupted(self, look: Callable[..., Any]) -> hf.Agent:
        agent = self.agent(look)
        async with hf.open(self.path, agents=[agent]) as runtime:
            await runtime.session("s", agent=agent).send("x")
            await asyncio.wait_for(self.reached.wait(), SOON)
            await runtime.close(grace=0)
        self.again = True
        return agent


async def test_finding_out_may_wait_for_a_person(tmp_path: Path) -> None:
    async def ask(ctx: hf.Context) -> str:
        return f"found by {await ctx.wait('person')}"

    agent = await Left(tmp_path / "s.db").interrupted(ask)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s")
        await _answered(runtime, "/person", "Ada")
        await session.turn("t1").outcome(timeout=SOON)
        assert [(result.state, result.content) for result in results(await session.history())] == [
            ("ok", "found by Ada")
        ]


async def test_finding_out_may_take_steps(tmp_path: Path) -> None:
    async def look(ctx: hf.Context) -> str:
        return await ctx.step("look", lambda: "found")

    agent = await Left(tmp_path / "s.db").interrupted(look)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s")
        await session.turn("t1").outcome(timeout=SOON)
        assert [(result.state, result.content) for result in results(await session.history())] == [("ok", "found")]


async def test_what_finding_out_waited_for_does_not_let_the_call_run_again(tmp_path: Path) -> None:
    runs: list[str] = []
    reached = asyncio.Event()

    async def ask(ctx: hf.Context) -> str:
        return str(await ctx.wait("person"))

    @hf.tool(reconcile=ask)
    async def pay() -> str:
        runs.append("paid")
        reached.set()
        if len(runs) == 1:
            await asyncio.Event().wait()
        return "paid"

    agent = _agent(pay)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("x")
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await _answered(runtime, "/person", "it was paid")
        await runtime.session("s").turn("t1").outcome(timeout=SOON)
        assert runs == ["paid"]


async def test_a_call_that_is_cancelled_while_finding_out_waits_may_have_taken_effect(tmp_path: Path) -> None:
    async def ask(ctx: hf.Context) -> str:
        return str(await ctx.wait("person"))

    agent = await Left(tmp_path / "s.db").interrupted(ask)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await _waiting_for(runtime, "/person")
        assert await _cancelled(runtime) == ["unknown"]


async def test_a_call_that_was_found_not_done_may_wait(tmp_path: Path) -> None:
    async def look(ctx: hf.Context) -> str:
        raise hf.NotDone

    agent = await Left(tmp_path / "s.db").interrupted(look)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s")
        await _answered(runtime, "/approval", "Ada")
        await session.turn("t1").outcome(timeout=SOON)
        assert [(result.state, result.content) for result in results(await session.history())] == [
            ("ok", "paid by Ada")
        ]


async def test_each_interruption_is_found_out_about_anew(tmp_path: Path) -> None:
    runs: list[str] = []
    paid: list[str] = []
    reached = asyncio.Event()

    async def look(ctx: hf.Context) -> str:
        if not await ctx.step("look", lambda: len(paid)):
            raise hf.NotDone
        return "it was paid"

    @hf.tool(reconcile=look)
    async def pay() -> str:
        runs.append("run")
        if len(runs) > 1:  # the first run is interrupted before it pays, the second one after it
            paid.append("paid")
        reached.set()
        if len(runs) < 3:
            await asyncio.Event().wait()
        return "paid"

    agent = _agent(pay)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("x")
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)
    reached.clear()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s").turn("t1").outcome(timeout=SOON)
        assert paid == ["paid"]


class Odd(BaseException):
    """Not an `Exception`: what some libraries use for control flow."""


@pytest.mark.parametrize("error", [ValueError("no"), Odd("odd"), asyncio.CancelledError()], ids=repr)
async def test_finding_out_that_breaks_leaves_the_call_unknown(tmp_path: Path, error: BaseException) -> None:
    async def look(ctx: hf.Context) -> str:
        raise error

    agent = await Left(tmp_path / "s.db").interrupted(look)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s")
        await session.turn("t1").outcome(timeout=SOON)
        assert [result.state for result in results(await session.history())] == ["unknown"]


# ---- ending with the turn --------------------------------------------------------------------------------------------


async def _cancelled(runtime: hf.Runtime) -> list[str]:
    """The states of the calls of the turn, after it was cancelled."""
    turn = runtime.session("s").turn("t1")
    await turn.cancel("no")
    await turn.outcome(timeout=SOON)
    return [result.state for result in results(await runtime.session("s").history())]


async def test_a_call_that_has_only_waited_is_cancelled() -> None:
    @hf.tool
    async def books(ctx: hf.Context) -> None:
        await ctx.wait("go")

    agent = _agent(books)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("x")
        await _waiting_for(runtime, "/go")
        assert await _cancelled(runtime) == ["cancelled"]


async def test_a_call_that_waits_after_a_step_may_have_taken_effect() -> None:
    @hf.tool
    async def books(ctx: hf.Context) -> None:
        await ctx.step("charge", lambda: 100)
        await ctx.wait("go")

    agent = _agent(books)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("x")
        await _waiting_for(runtime, "/go")
        assert await _cancelled(runtime) == ["unknown"]


async def test_a_call_that_waits_again_after_an_answer_may_have_taken_effect() -> None:
    @hf.tool
    async def books(ctx: hf.Context) -> None:
        await ctx.wait("first")
        await ctx.wait("second")

    agent = _agent(books)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("x")
        await _answered(runtime, "/first", 1)
        await _waiting_for(runtime, "/second")
        assert await _cancelled(runtime) == ["unknown"]


async def test_a_call_that_waits_after_a_step_is_told_so_also_by_another_process(tmp_path: Path) -> None:
    @hf.tool
    async def books(ctx: hf.Context) -> None:
        await ctx.step("charge", lambda: 100)
        await ctx.wait("go")

    agent = _agent(books)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("x")
        await _waiting_for(runtime, "/go")
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert await _cancelled(runtime) == ["unknown"]


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
async def test_the_waits_of_a_turn_end_with_it(how: str) -> None:
    @hf.tool
    async def asks(ctx: hf.Context) -> None:
        await ctx.wait("go")

    agent = _agent(asks)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("x", deadline=0.2 if how == "deadline" else None)
        name = await _waiting_for(runtime, "/go")
        if how == "cancelled":
            await turn.cancel("no")
        await turn.outcome(timeout=SOON)
        wait = await runtime.store.wait("s", name)
        assert wait is not None
        assert wait.state == "cancelled"


async def test_an_open_wait_is_found_behind_pages_of_answered_ones() -> None:
    @hf.tool
    async def asks(ctx: hf.Context) -> None:
        await ctx.wait("go")

    agent = _agent(asks)
    async with hf.open(None, agents=[agent], limits=hf.StoreLimits(page=5)) as runtime:
        await runtime.session("s", agent=agent).send("x")
        name = await _waiting_for(runtime, "/go")
        for number in range(12):
            await runtime.resolve(runtime.wait_token("s", f"t1/1{number}"), 1)
        assert [wait.name for wait in await runtime.waits("s")] == [name]
