"""A plan as plain tools: what the model reads, what is recorded, and that it is there after anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.messages import ToolMessage
from holdfast.testing import ScriptedModel, call, text
from holdfast.toolkits.planning import PlanStep, TaskPlan, read_session_plan
from holdfast.tools import toolset

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime

MADE = call("set_plan", steps=["look", "write", "publish"])


def planner(*script: Any, tools: Any = None) -> hf.Agent:
    return hf.Agent("planner", model=ScriptedModel([*script, text("done")]), tools=tools or hf.tools.plan())


async def results(runtime: Runtime, session: str = "s") -> list[tuple[str, Any]]:
    history = await runtime.session(session).history()
    return [(each.state, each.content) for found in history if isinstance(found, ToolMessage) for each in found.results]


async def ran(*script: Any) -> list[tuple[str, Any]]:
    async with hf.open(None, agents=[planner(*script)]) as runtime:
        await runtime.run("planner", "Go.", session="s")
        return await results(runtime)


async def test_a_plan_is_what_was_set_and_what_was_said_of_its_steps() -> None:
    async with hf.open(
        None, agents=[planner(MADE, call("update_step", step=1, status="done", note="seen"))]
    ) as runtime:
        await runtime.run("planner", "Go.", session="s")
        found = await read_session_plan(runtime.store, "s")
        assert found == TaskPlan((PlanStep("look", "done", "seen"), PlanStep("write"), PlanStep("publish")))


async def test_the_model_reads_the_whole_plan_after_each_change() -> None:
    found = await ran(MADE, call("update_step", step=2, status="in_progress"))
    assert found[1][1]["now"] == "1. [ ] look\n2. [>] write\n3. [ ] publish"


async def test_steps_that_are_updated_side_by_side_are_all_updated() -> None:
    updates = [call("update_step", step=step, status="done") for step in (1, 2, 3)]
    found = await ran(MADE, updates, call("read_plan"))
    assert found[-1] == ("ok", "1. [x] look\n2. [x] write\n3. [x] publish")


async def test_another_plan_takes_the_place_of_the_first() -> None:
    found = await ran(MADE, call("set_plan", steps=["rest"]), call("read_plan"))
    assert found[-1] == ("ok", "1. [ ] rest")


async def test_without_a_plan_there_is_nothing_to_update() -> None:
    assert await ran(call("update_step", step=1, status="done")) == [
        ("error", "There is no plan yet. Make one with set_plan.")
    ]


async def test_a_step_that_is_not_there_is_told_with_the_plan() -> None:
    found = await ran(MADE, call("update_step", step=4, status="done"))
    assert found[1] == ("error", "There is no step 4. The plan is: 1. [ ] look 2. [ ] write 3. [ ] publish")


async def test_a_plan_outlives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open(path, agents=[planner(MADE)]) as runtime:
        await runtime.run("planner", "Go.", session="s")
    async with hf.open(path, agents=[planner(MADE, text("x"), call("read_plan"))]) as runtime:
        assert (await read_session_plan(runtime.store, "s")).open == 3


async def test_a_fork_has_the_plan_of_its_parent_and_goes_its_own_way() -> None:
    async with hf.open(None, agents=[planner(MADE, text("x"), call("set_plan", steps=["other"]))]) as runtime:
        await runtime.run("planner", "Go.", session="s")
        fork = await runtime.session("s").fork(id="f")
        await runtime.run("planner", "Go on.", session="s")
        assert len((await read_session_plan(runtime.store, fork.id)).steps) == 3
        assert len((await read_session_plan(runtime.store, "s")).steps) == 1


async def test_a_change_is_seen_as_an_event_with_its_steps() -> None:
    async with hf.open(None, agents=[planner(MADE)]) as runtime:
        turn = await runtime.session("s", agent="planner").send("Go.")
        found = [event async for event in turn.events() if isinstance(event, hf.ToolCallFinished)]
        assert [step["text"] for step in found[0].content["steps"]] == ["look", "write", "publish"]


async def test_tools_with_a_prefix_keep_a_plan_too() -> None:
    tools = toolset(hf.tools.plan(), prefix="my_")
    script = (call("my_set_plan", steps=["a"]), call("my_update_step", step=1, status="done"), call("my_read_plan"))
    async with hf.open(None, agents=[planner(*script, tools=tools)]) as runtime:
        await runtime.run("planner", "Go.", session="s")
        assert (await results(runtime))[-1] == ("ok", "1. [x] a")


def test_keeping_a_plan_needs_no_policy() -> None:
    assert planner().policy is None


@pytest.mark.parametrize("steps", [[], [""], ["x" * 501], ["x"] * 101, "x"])
async def test_a_plan_is_bounded(steps: Any) -> None:
    ((state, _),) = await ran(call("set_plan", steps=steps))
    assert state == "error"
