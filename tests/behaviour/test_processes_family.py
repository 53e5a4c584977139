"""Processes that start processes, ask agents and models, and work for sessions."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from tests.behaviour.talk import SOON, asked, is_now, until

import holdfast as hf
from holdfast import crashpoints
from holdfast.testing import ScriptedModel, check, text

if TYPE_CHECKING:
    from pathlib import Path


class Answer(BaseModel):
    number: int


@hf.process
async def naps(ctx: hf.ProcessContext, n: int) -> int:
    await ctx.sleep(0.01)
    return n * 2


@hf.process
async def rests(ctx: hf.ProcessContext) -> Any:
    return await ctx.wait("go")


@hf.process(on_parent_end="abandon")
async def stays(ctx: hf.ProcessContext) -> Any:
    return await ctx.wait("go")


async def test_a_process_gets_the_result_of_a_child() -> None:
    @hf.process
    async def parent(ctx: hf.ProcessContext) -> list[int]:
        children = [await ctx.start(naps, n) for n in range(3)]
        return [await child.result() for child in children]

    async with hf.open(None, processes=[parent, naps]) as runtime:
        assert await (await runtime.start(parent)).result(timeout=SOON) == [0, 2, 4]
        assert await check(runtime.store) == []


async def test_a_child_is_started_once_however_often_its_parent_runs(tmp_path: Path) -> None:
    @hf.process
    async def parent(ctx: hf.ProcessContext) -> Any:
        child = await ctx.start(rests)
        return await child.result()

    for _ in range(2):
        async with hf.open(tmp_path / "s.db", processes=[parent, rests]) as runtime:
            process = await runtime.start(parent, id="p")
            await until(lambda process=process: is_now(process, "waiting"))
    async with hf.open(tmp_path / "s.db", processes=[parent, rests]) as runtime:
        (child,) = await runtime.processes.list(parent="p")
        await runtime.processes.handle(child.id).signal("go", "done")
        assert await runtime.processes.handle("p").result(timeout=SOON) == "done"


async def test_the_failure_of_a_child_can_be_caught() -> None:
    @hf.process
    async def breaks(ctx: hf.ProcessContext) -> None:
        raise ValueError("broken")

    @hf.process
    async def parent(ctx: hf.ProcessContext) -> str:
        try:
            await (await ctx.start(breaks)).result()
        except hf.ProcessFailed as error:
            return error.kind
        return ""

    async with hf.open(None, processes=[parent, breaks]) as runtime:
        assert await (await runtime.start(parent)).result(timeout=SOON) == "ValueError"


async def test_a_child_is_cancelled_when_its_parent_ends() -> None:
    @hf.process
    async def parent(ctx: hf.ProcessContext) -> str:
        return (await ctx.start(rests)).id

    async with hf.open(None, processes=[parent, rests]) as runtime:
        child = runtime.processes.handle(await (await runtime.start(parent)).result(timeout=SOON))
        with pytest.raises(hf.errors.ProcessCancelled):
            await child.result(timeout=SOON)


async def test_a_child_is_cancelled_when_its_parentis_now() -> None:
    @hf.process
    async def parent(ctx: hf.ProcessContext) -> Any:
        return await (await ctx.start(rests)).result()

    async with hf.open(None, processes=[parent, rests]) as runtime:
        process = await runtime.start(parent, id="p")
        await until(lambda: is_now(process, "waiting"))
        (line,) = await runtime.processes.list(parent="p")
        await process.cancel("enough")
        with pytest.raises(hf.errors.ProcessCancelled, match="the process p was cancelled"):
            await runtime.processes.handle(line.id).result(timeout=SOON)


async def test_a_child_that_is_to_be_abandoned_goes_on_by_itself() -> None:
    @hf.process
    async def parent(ctx: hf.ProcessContext) -> str:
        return (await ctx.start(stays)).id

    async with hf.open(None, processes=[parent, stays]) as runtime:
        child = runtime.processes.handle(await (await runtime.start(parent)).result(timeout=SOON))
        await child.signal("go", "still here")
        assert await child.result(timeout=SOON) == "still here"


async def test_a_process_can_signal_its_child_and_see_how_it_stands() -> None:
    @hf.process
    async def parent(ctx: hf.ProcessContext) -> list[Any]:
        child = await ctx.start(rests)
        status = (await child.status()).status
        await child.signal("go", 7)
        return [status, await child.result()]

    async with hf.open(None, processes=[parent, rests]) as runtime:
        status, value = await (await runtime.start(parent)).result(timeout=SOON)
        assert status in {"running", "waiting"}
        assert value == 7


async def test_processes_can_not_start_one_another_without_end() -> None:
    @hf.process
    async def deeper(ctx: hf.ProcessContext) -> Any:
        return await (await ctx.start("deeper")).result()

    async with hf.open(None, processes=[deeper]) as runtime:
        with pytest.raises(hf.ProcessFailed, match="16 are allowed"):
            await (await runtime.start(deeper)).result(timeout=2 * SOON)


async def test_a_process_asks_an_agent_and_waits_for_the_answer() -> None:
    writer = hf.Agent("writer", model=ScriptedModel([text("a draft")]))

    @hf.process
    async def digest(ctx: hf.ProcessContext) -> str:
        return await ctx.run_agent(writer, "Summarise")

    async with hf.open(None, agents=[writer], processes=[digest]) as runtime:
        assert await (await runtime.start(digest)).result(timeout=SOON) == "a draft"
    assert len(asked(writer)) == 1


async def test_an_agent_with_an_output_gives_its_value() -> None:
    counter = hf.Agent("counter", model=ScriptedModel([text('{"number": 3}')]), output=Answer)

    @hf.process
    async def counts(ctx: hf.ProcessContext) -> Any:
        return await ctx.run_agent(counter, "Count")

    async with hf.open(None, agents=[counter], processes=[counts]) as runtime:
        assert await (await runtime.start(counts)).result(timeout=SOON) == {"number": 3}


async def test_a_process_waits_for_an_agent_across_a_restart(tmp_path: Path) -> None:
    gate = asyncio.Event()

    @hf.tool(read_only=True)
    async def look() -> str:
        await gate.wait()
        return "seen"

    def make() -> hf.Agent:
        from holdfast.testing import call
        from holdfast.testing.scripted import position_of

        model = ScriptedModel(lambda request: call("look") if position_of(request) == 0 else text("told"))
        return hf.Agent("watcher", model=model, tools=[look])

    @hf.process
    async def watches(ctx: hf.ProcessContext) -> str:
        return await ctx.run_agent("watcher", "Look")

    async with hf.open(tmp_path / "s.db", agents=[make()], processes=[watches]) as runtime:
        process = await runtime.start(watches, id="p")
        await until(lambda: is_now(process, "waiting"))
        await runtime.close(grace=0)
    gate.set()
    async with hf.open(tmp_path / "s.db", agents=[make()], processes=[watches]) as runtime:
        assert await runtime.processes.handle("p").result(timeout=SOON) == "told"
        assert len(await runtime.sessions()) == 1


async def test_a_turn_that_fails_is_told_to_the_process() -> None:
    silent = hf.Agent("silent", model=ScriptedModel([]))

    @hf.process
    async def asks(ctx: hf.ProcessContext) -> str:
        try:
            return await ctx.run_agent(silent, "Say something")
        except hf.errors.AgentTurnFailed as error:
            return error.status

    async with hf.open(None, agents=[silent], processes=[asks]) as runtime:
        assert await (await runtime.start(asks)).result(timeout=SOON) == "failed"


async def test_a_direct_completion_is_asked_once() -> None:
    model = ScriptedModel([text("forty-two")])

    @hf.process
    async def asks(ctx: hf.ProcessContext) -> str:
        answer = await ctx.complete(model, "How many?")
        await ctx.sleep(0.01)
        return answer

    async with hf.open(None, processes=[asks]) as runtime:
        assert await (await runtime.start(asks)).result(timeout=SOON) == "forty-two"
    assert len(model.requests) == 1


async def test_a_direct_completion_gives_a_value_of_the_type_that_was_asked_for() -> None:
    model = ScriptedModel([text('{"number": 42}')])

    @hf.process
    async def asks(ctx: hf.ProcessContext) -> int:
        return (await ctx.complete(model, "How many?", output=Answer)).number

    async with hf.open(None, processes=[asks]) as runtime:
        assert await (await runtime.start(asks)).result(timeout=SOON) == 42


async def test_a_completion_of_the_wrong_shape_is_an_error() -> None:
    model = ScriptedModel([text("many")])

    @hf.process
    async def asks(ctx: hf.ProcessContext) -> str:
        try:
            await ctx.complete(model, "How many?", output=Answer)
        except hf.ModelError as error:
            return error.kind
        return ""

    async with hf.open(None, processes=[asks]) as runtime:
        assert await (await runtime.start(asks)).result(timeout=SOON) == "invalid_output"


async def test_the_session_of_a_process_is_told_how_it_ended() -> None:
    agent = hf.Agent("a", model=ScriptedModel(lambda _: text("noted")))
    async with hf.open(None, agents=[agent], processes=[naps]) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome(timeout=SOON)
        process = await runtime.start(naps, 4, session="s")
        await process.result(timeout=SOON)
        (notice,) = await runtime.store.notifications("s")
    assert (notice.kind, notice.body, notice.source) == ("process_completed", "8", f"process/{process.id}")


async def test_a_process_that_was_transferred_tells_its_new_session() -> None:
    agent = hf.Agent("a", model=ScriptedModel(lambda _: text("noted")))
    async with hf.open(None, agents=[agent], processes=[rests]) as runtime:
        for name in ("s", "t"):
            await (await runtime.session(name, agent=agent).send("hello")).outcome(timeout=SOON)
        process = await runtime.start(rests, session="s")
        await until(lambda: is_now(process, "waiting"))
        await process.transfer("t")
        await process.signal("go", 1)
        await process.result(timeout=SOON)
        assert [len(await runtime.store.notifications(name)) for name in ("s", "t")] == [0, 1]


async def test_a_session_that_gets_a_process_in_the_moment_of_its_end_is_told_of_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    agent = hf.Agent("a", model=ScriptedModel(lambda _: text("noted")))
    given: list[str] = []

    async def elsewhere() -> None:
        async with hf.open(path, drive=False) as other:
            given.append(await other.processes.transfer("p", "s"))

    def reached(point: str) -> None:
        if point == "process.before_end":
            crashpoints.arm(None)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(asyncio.run, elsewhere()).result(SOON)

    async with hf.open(path, agents=[agent], processes=[naps]) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome(timeout=SOON)
        crashpoints.arm(reached)
        try:
            process = await runtime.start(naps, 4, id="p")
            assert await process.result(timeout=SOON) == 8
        finally:
            crashpoints.arm(None)

        async def is_told() -> bool:
            return bool(await runtime.store.notifications("s"))

        await until(is_told)
        (notice,) = await runtime.store.notifications("s")
        assert (given, notice.kind, notice.body) == (["requested"], "process_completed", "8")
        assert (await process.line()).session == "s"
        assert await check(runtime.store) == []


async def test_a_process_that_has_ended_is_transferred_too_late() -> None:
    agent = hf.Agent("a", model=ScriptedModel(lambda _: text("noted")))
    async with hf.open(None, agents=[agent], processes=[naps]) as runtime:
        await (await runtime.session("s", agent=agent).send("hello")).outcome(timeout=SOON)
        process = await runtime.start(naps, 1)
        await process.result(timeout=SOON)
        assert await process.transfer("s") == "too_late"
        assert await runtime.store.notifications("s") == []
