"""The tools with which an agent looks after its background work."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import (
    SESSION,
    Held,
    agent_with,
    asked,
    ended_task,
    results,
    the_task,
    told,
)
from tests.behaviour.talk import until

import holdfast as hf
from holdfast.processes.lists import glance_process
from holdfast.testing import ScriptedModel, call, text
from holdfast.toolkits.tasks import tasks
from holdfast.tools.context import CallContext, RuntimeMissing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.messages import ModelRequest, ToolResult
    from holdfast.runtime.runtime import Runtime
    from holdfast.testing.scripted import ScriptReply

LISTER, READER, CANCELLER, PAGER = tasks()


@pytest.fixture
async def held() -> Held:
    return Held()


@asynccontextmanager
async def opened(held: Held, *tools: hf.Tool[..., Any]) -> AsyncGenerator[Runtime]:
    """A runtime with an agent that has these tools; what is held is let go before it is closed."""
    async with hf.open(None, agents=[agent(*tools)]) as runtime:
        try:
            yield runtime
        finally:
            held.go.set()


def agent(*tools: hf.Tool[..., Any]) -> hf.Agent:
    """Calls its first tool, and from then on whatever the user writes: the name of a tool and its arguments."""

    def say(request: ModelRequest) -> ScriptReply:
        said = request.messages[-1]
        if isinstance(said, hf.UserMessage) and said.text.startswith("{"):
            wanted = json.loads(said.text)
            return call(wanted.pop("tool"), **wanted)
        return call(tools[0]) if len(request.messages) == 1 else text("well")

    return hf.Agent("a", model=ScriptedModel(say), tools=[*tools, hf.tools.tasks()], policy=[hf.allow("*")])


async def use(runtime: Runtime, tool: str, session: str = SESSION, **arguments: object) -> ToolResult:
    """What the model gets when it calls a tool."""
    outcome = await asked(runtime, runtime.agents["a"], json.dumps({"tool": tool, **arguments}), session=session)
    assert outcome.status == "completed"
    return results(await runtime.session(session).history())[-1]


async def said(runtime: Runtime, tool: str, **arguments: Any) -> str:
    found = await use(runtime, tool, **arguments)
    assert found.state == "ok", found.content
    return found.content


def test_the_family_has_four_tools() -> None:
    assert [tool.name for tool in tasks()] == ["list_tasks", "read_task", "cancel_task", "read_result"]


@pytest.mark.parametrize("tool", tasks(), ids=lambda tool: tool.name)
def test_none_of_them_goes_to_the_background_itself(tool: hf.Tool[..., Any]) -> None:
    assert tool.background is False


def test_those_that_read_say_so_and_the_one_that_stops_may_be_repeated() -> None:
    assert [tool.read_only for tool in tasks()] == [True, True, False, True]
    assert (CANCELLER.idempotent, CANCELLER.destructive) == (True, True)


def test_the_family_may_be_given_twice() -> None:
    assert len(hf.toolset(tasks(), tasks())) == 4


# ---- list ------------------------------------------------------------------------------------------------------------


async def test_a_session_without_tasks_is_told_so(held: Held) -> None:
    quick = held.tool(inline_budget=None)
    held.go.set()
    async with hf.open(None, agents=[agent(quick)]) as runtime:
        await asked(runtime, runtime.agents["a"])
        assert await said(runtime, "list_tasks") == "There are no tasks."


async def test_a_task_is_listed_with_its_tool_its_status_and_what_it_reported_last(held: Held) -> None:
    @hf.tool(background=True)
    async def index(ctx: hf.Context) -> str:
        for number in range(40):
            ctx.progress(f"file {number}\nof many", fraction=number / 40)
        await held.go.wait()
        return "indexed"

    async with opened(held, index) as runtime:
        await asked(runtime, runtime.agents["a"])
        task = await the_task(runtime)

        async def reported() -> bool:
            return "file 39" in await said(runtime, "list_tasks")

        await until(reported)
        listed = await said(runtime, "list_tasks")
        assert listed.startswith(f"{task.id}: index, running, begun ")
        assert listed.endswith("98 %: file 39 of many")


async def test_a_task_that_failed_is_listed_with_the_reason() -> None:
    @hf.tool(background=True)
    async def fail() -> str:
        message = "the disk is full"
        raise OSError(message)

    async with hf.open(None, agents=[agent(fail)]) as runtime:
        await asked(runtime, runtime.agents["a"])
        await ended_task(runtime)
        listed = await said(runtime, "list_tasks")
        assert ", failed " in listed
        assert listed.endswith("the disk is full")


async def test_a_list_of_a_task_with_many_reports_reads_only_the_ends_of_its_journal() -> None:
    @hf.tool(background=True)
    async def report(ctx: hf.Context) -> str:
        for number in range(60):
            await ctx.step(f"s{number}", str)
        return "x"

    async with hf.open(None, agents=[agent(report)]) as runtime:
        await asked(runtime, runtime.agents["a"])
        whole = await ended_task(runtime)
        seen = await glance_process(runtime.store, whole.id)
        assert (seen.status, seen.call, seen.ended) == (whole.status, whole.call, whole.ended)
        assert len(seen.records) < 12 < len(whole.records)


async def test_a_task_that_runs_is_listed_as_running_after_many_records(held: Held) -> None:
    @hf.tool(background=True)
    async def report(ctx: hf.Context) -> str:
        for number in range(60):
            await ctx.step(f"s{number}", str)
        ctx.progress("all steps")
        await held.go.wait()
        return "x"

    async with opened(held, report) as runtime:
        await asked(runtime, runtime.agents["a"])

        async def reported() -> bool:
            return "all steps" in await said(runtime, "list_tasks")

        await until(reported)
        assert ": report, running, made " in await said(runtime, "list_tasks")


# ---- read ------------------------------------------------------------------------------------------------------------


async def test_a_task_that_runs_has_no_result_yet(held: Held) -> None:
    async with opened(held, held.tool()) as runtime:
        await asked(runtime, runtime.agents["a"])
        task = await the_task(runtime)
        shown = await said(runtime, "read_task", id=task.id)
        assert "Status: running" in shown
        assert shown.endswith("There is no result yet. A notification will tell when it has ended.")


async def test_a_text_is_read_as_it_is(held: Held) -> None:
    held.go.set()
    async with hf.open(None, agents=[agent(held.tool("one\ntwo", background=True, inline_budget=None))]) as runtime:
        await asked(runtime, runtime.agents["a"])
        task = await ended_task(runtime)
        shown = await said(runtime, "read_task", id=task.id)
        assert "Status: succeeded" in shown
        assert shown.endswith("Result:\n[Lines 1 to 2 of 2]\none\ntwo\n[That is the end.]")


async def test_a_value_is_read_as_json_that_has_lines(held: Held) -> None:
    held.go.set()
    async with hf.open(None, agents=[agent(held.tool({"a": [1]}, background=True, inline_budget=None))]) as runtime:
        await asked(runtime, runtime.agents["a"])
        task = await ended_task(runtime)
        shown = await said(runtime, "read_task", id=task.id, start=2, lines=1)
        assert '\n  "a": [\n[Go on with read_task(id="' in shown


async def test_a_result_that_was_too_long_for_the_model_is_read_whole(held: Held) -> None:
    held.go.set()
    lines = "\n".join(f"line {number}" for number in range(1, 30_001))
    async with hf.open(None, agents=[agent(held.tool(lines, background=True, inline_budget=None))]) as runtime:
        await asked(runtime, runtime.agents["a"])
        task = await ended_task(runtime)
        shown = await said(runtime, "read_task", id=task.id, start=15_000, lines=2)
        assert shown == (
            f"Result of task {task.id}:\n[Lines 15,000 to 15,001 of 30,000]\nline 15000\nline 15001\n"
            f'[Go on with read_task(id="{task.id}", start=15002).]'
        )


async def test_the_note_in_a_cut_result_leads_to_the_whole_with_read_result() -> None:
    @hf.tool
    async def long() -> str:
        return "\n".join(f"line {number}" for number in range(1, 30_001))

    async with hf.open(None, agents=[agent(long)]) as runtime:
        await asked(runtime, runtime.agents["a"])
        (cut,) = results(await runtime.session(SESSION).history())
        id = cut.content.partition("read_result")[2].split('"')[1]
        shown = await said(runtime, "read_result", id=id, start=15_000, lines=1)
        assert "\nline 15000\n" in shown


async def test_a_result_of_another_session_is_not_to_be_had() -> None:
    @hf.tool
    async def long() -> str:
        return "secret\n" * 30_000

    async with hf.open(None, agents=[agent(long)]) as runtime:
        await asked(runtime, runtime.agents["a"], session="other")
        (cut,) = results(await runtime.session("other").history())
        id = cut.content.partition("read_result")[2].split('"')[1]
        refused = await use(runtime, "read_result", session="empty", id=id)
        assert "secret" not in refused.content


async def test_a_failed_task_tells_its_error() -> None:
    @hf.tool(background=True)
    async def fail() -> str:
        message = "the disk is full"
        raise OSError(message)

    async with hf.open(None, agents=[agent(fail)]) as runtime:
        await asked(runtime, runtime.agents["a"])
        task = await ended_task(runtime)
        assert "\nError: OSError: the disk is full" in await said(runtime, "read_task", id=task.id)


@pytest.mark.parametrize("tool", ["read_task", "cancel_task"])
@pytest.mark.parametrize("id", ["task-nonsense", "", "x" * 5_000, SESSION])
async def test_an_id_that_is_no_task_is_told_with_what_to_do(held: Held, tool: str, id: str) -> None:
    async with opened(held, held.tool()) as runtime:
        await asked(runtime, runtime.agents["a"])
        refused = await use(runtime, tool, id=id)
        assert refused.state == "error"
        assert "list_tasks tells which there are" in refused.content
        assert len(refused.content) < 500


@pytest.mark.parametrize("tool", ["read_task", "cancel_task"])
async def test_a_task_of_another_session_is_not_there(held: Held, tool: str) -> None:
    async with opened(held, held.tool()) as runtime:
        await asked(runtime, runtime.agents["a"], session="other")
        task = await the_task(runtime, "other")
        held.begun.clear()
        await asked(runtime, runtime.agents["a"])
        refused = await use(runtime, tool, id=task.id)
        assert refused.state == "error"
        assert (await runtime.tasks.task(task.id)).status == "running"


# ---- cancel ----------------------------------------------------------------------------------------------------------


async def test_a_task_is_stopped_and_its_session_is_told_once(held: Held) -> None:
    async with opened(held, held.tool()) as runtime:
        await asked(runtime, runtime.agents["a"])
        task = await the_task(runtime)
        assert "is being stopped" in await said(runtime, "cancel_task", id=task.id, reason="not needed")
        ended = await ended_task(runtime)
        assert ended.status == "cancelled"
        assert ended.error is not None
        assert ended.error.message == "not needed"
        assert [found.kind for found in await told(runtime.store)] == ["task_cancelled"]


async def test_a_task_that_has_ended_stays_as_it_is(held: Held) -> None:
    held.go.set()
    async with hf.open(None, agents=[agent(held.tool(background=True, inline_budget=None))]) as runtime:
        await asked(runtime, runtime.agents["a"])
        task = await ended_task(runtime)
        assert await said(runtime, "cancel_task", id=task.id) == f"Too late: task {task.id} has ended (succeeded)."


async def test_without_a_runtime_the_tools_say_what_they_need() -> None:
    class Running:
        over = False

    class Nobody:
        session, run, deadline, stopped, performer, host = "s", "t1", None, False, Running(), None

    with pytest.raises(RuntimeMissing, match="works only for an agent of a runtime"):
        await LISTER.function(CallContext(Nobody(), "t1/1.tools/1.list_tasks", "c", "list_tasks"))  # pyright: ignore[reportArgumentType]


def test_an_agent_takes_the_family_beside_other_tools(held: Held) -> None:
    made = agent_with(held.tool(), *tasks())
    assert {"slow", "read_task"} <= set(made.tools)
