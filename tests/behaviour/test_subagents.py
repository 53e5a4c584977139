"""An agent as a tool of another one: who answers, what is recorded of it, and that nothing is bought twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from tests.behaviour.stage import SOON, Stage
from tests.every import every
from tests.patience import stopwatch

import holdfast as hf
from holdfast.errors import InvalidArgument, InvalidNumber, JournalConflict
from holdfast.messages import ToolMessage
from holdfast.policy.limits import ROLE
from holdfast.testing import ScriptedModel, call, error, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.messages import ModelRequest, ToolResult
    from holdfast.runtime.runtime import Runtime
    from holdfast.testing.scripted import ScriptItem


class Finding(BaseModel):
    title: str


@hf.tool(read_only=True)
async def look(what: str) -> str:
    """Look something up."""
    return f"{what} is blue"


def researcher(script: list[ScriptItem] | None = None, **options: Any) -> hf.Agent:
    options.setdefault("tools", [look])
    said = [call("look", what="the sky"), text("It is blue.")] if script is None else script
    return hf.Agent("researcher", model=ScriptedModel(said), **options)


def chief(child: hf.Agent, script: list[ScriptItem] | None = None, tool: Any = None, **options: Any) -> hf.Agent:
    said = [call("researcher", prompt="Which colour?"), text("Blue, I hear.")] if script is None else script
    options.setdefault("policy", [hf.allow("*")])
    return hf.Agent("chief", model=ScriptedModel(said), tools=[tool or hf.agent_tool(child)], **options)


async def results_in(runtime: Runtime, session: str) -> list[ToolResult]:
    history = await runtime.session(session).history()
    return [found for message in history if isinstance(message, ToolMessage) for found in message.results]


async def children(runtime: Runtime, session: str) -> list[str]:
    return [line.id for line in await runtime.store.journals(role=ROLE, session=session)]


async def test_the_answer_of_a_sub_agent_is_the_result_of_the_call() -> None:
    async with hf.open(None, agents=[chief(researcher())]) as runtime:
        outcome = await runtime.run("chief", "Find out.", session="s")
        assert outcome.text == "Blue, I hear."
        assert [found.content for found in await results_in(runtime, "s")] == ["It is blue."]


async def test_a_typed_answer_comes_as_a_value() -> None:
    child = researcher([text('{"title": "sky"}')], output=Finding)
    async with hf.open(None, agents=[chief(child)]) as runtime:
        await runtime.run("chief", "Find out.", session="s")
        assert [found.content for found in await results_in(runtime, "s")] == [{"title": "sky"}]


async def test_a_sub_agent_sees_nothing_but_its_prompt() -> None:
    async with hf.open(None, agents=[chief(researcher())]) as runtime:
        await runtime.run("chief", "A secret plan.", session="s")
        (child,) = await children(runtime, "s")
        first, *_ = await runtime.session(child).history()
        assert isinstance(first, hf.UserMessage)
        assert first.text == "Which colour?"


async def test_a_sub_agent_is_known_to_the_runtime_with_its_parent() -> None:
    async with hf.open(None, agents=[chief(researcher())]) as runtime:
        assert set(runtime.agents) == {"chief", "researcher"}


async def test_its_session_is_listed_as_one_that_works_for_the_session_of_its_parent() -> None:
    async with hf.open(None, agents=[chief(researcher())]) as runtime:
        await runtime.run("chief", "Find out.", session="s")
        (line,) = await runtime.store.journals(role=ROLE, session="s")
        assert (line.agent, line.kind, line.session) == ("researcher", "session", "s")


async def test_an_event_links_the_session_of_a_sub_agent_with_the_call_of_its_parent() -> None:
    async with hf.open(None, agents=[chief(researcher())]) as runtime:
        await runtime.run("chief", "Find out.", session="s")
        (child,) = await children(runtime, "s")
        found = [event async for event in runtime.session(child).turn("t1").events()]
        (event,) = [event for event in found if isinstance(event, hf.events.SubAgentStarted)]
        assert (event.parent, event.parent_turn, event.call, event.above) == ("s", "t1", "t1.2.1", ("chief",))


async def test_nobody_else_talks_to_the_session_of_a_sub_agent() -> None:
    async with hf.open(None, agents=[chief(researcher())]) as runtime:
        await runtime.run("chief", "Find out.", session="s")
        (child,) = await children(runtime, "s")
        with pytest.raises(JournalConflict, match="fork it"):
            await runtime.session(child).send("And now without your parent.")


async def test_several_that_only_read_work_side_by_side(stage: Stage) -> None:
    prompts = ["one", "two", "three"]
    seen: set[str] = set()

    @hf.tool(read_only=True)
    async def gather(what: str) -> str:
        seen.add(what)
        if len(seen) == len(prompts):
            stage.go_on.set()
        await stage.go_on.wait()
        return what

    def say(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return call("gather", what=last.text) if not isinstance(last, ToolMessage) else text("done")

    child = hf.Agent("researcher", model=ScriptedModel(say), tools=[gather])
    asked = [call("researcher", prompt=prompt) for prompt in prompts]
    async with hf.open(None, agents=[chief(child, [asked, text("All done.")])]) as runtime:
        async with asyncio.timeout(SOON):
            outcome = await runtime.run("chief", "Find out.")
    assert outcome.text == "All done."


async def test_a_sub_agent_whose_tools_act_makes_a_tool_that_acts() -> None:
    @hf.tool
    async def act() -> str:
        return "acted"

    child = researcher(tools=[act], policy=[hf.allow("*")])
    assert not hf.agent_tool(child).read_only


async def test_with_room_for_one_session_the_parent_makes_room_for_its_sub_agent() -> None:
    async with hf.open(None, agents=[chief(researcher())], concurrency=1) as runtime, asyncio.timeout(SOON):
        outcome = await runtime.run("chief", "Find out.")
    assert outcome.text == "Blue, I hear."


async def test_with_room_for_one_call_the_sub_agent_gets_it() -> None:
    async with hf.open(None, agents=[chief(researcher())], max_calls=1) as runtime, asyncio.timeout(SOON):
        outcome = await runtime.run("chief", "Find out.")
    assert outcome.text == "Blue, I hear."


async def test_in_the_background_it_is_a_task_that_notifies() -> None:
    child = researcher()
    script: list[ScriptItem] = [call("researcher", prompt="Which colour?"), text("Started."), text("Heard.")]
    parent = chief(child, script, hf.agent_tool(child, background=True))
    async with hf.open(None, agents=[parent]) as runtime, asyncio.timeout(SOON):
        outcome = await runtime.run("chief", "Find out.", session="s")
        (task,) = await runtime.tasks.list(session="s")
        while not (state := await runtime.tasks.task(task.id)).over:
            await runtime.store.changed(runtime.store.version, 0.05)
        assert (outcome.text, state.status) == ("Started.", "succeeded")
        assert await runtime.tasks.result(state) == b'"It is blue."'


async def test_past_the_inline_budget_it_goes_on_in_the_background(stage: Stage) -> None:
    child = researcher([call("reads"), text("It is blue.")], tools=stage.tools(), policy=[hf.allow("*")])
    script: list[ScriptItem] = [call("researcher", prompt="Which colour?"), text("Later."), text("Heard.")]
    parent = chief(child, script, hf.agent_tool(child, inline_budget=0.05))
    async with hf.open(None, agents=[parent]) as runtime, asyncio.timeout(SOON):
        outcome = await runtime.run("chief", "Find out.", session="s")
        stage.go_on.set()
        (task,) = await runtime.tasks.list(session="s")
        while not (state := await runtime.tasks.task(task.id)).over:
            await runtime.store.changed(runtime.store.version, 0.05)
        assert (outcome.text, state.status) == ("Later.", "succeeded")


async def test_what_a_sub_agent_waits_for_parks_its_parent_too(stage: Stage) -> None:
    child = researcher([call("asks"), text("Approved.")], tools=stage.tools(), policy=[hf.allow("*")])
    async with hf.open(None, agents=[chief(child)]) as runtime, asyncio.timeout(SOON):
        runtime.children.patience = 0.0
        turn = await runtime.session("s", agent="chief").send("Find out.")
        while await turn.status() != "waiting" or not (found := await children(runtime, "s")):
            await runtime.store.changed(runtime.store.version, 0.05)
        while not (waits := await runtime.waits(found[0])):
            await runtime.store.changed(runtime.store.version, 0.05)
        await runtime.resolve(runtime.wait_token(found[0], waits[0].name), "yes")
        assert (await turn.outcome()).text == "Blue, I hear."


async def test_a_sub_agent_that_fails_is_told_with_its_session() -> None:
    child = researcher([error("no capacity")])
    async with hf.open(None, agents=[chief(child)]) as runtime:
        await runtime.run("chief", "Find out.", session="s")
        (result,) = await results_in(runtime, "s")
        (id,) = await children(runtime, "s")
        assert result.state == "error"
        assert "SubAgentFailed: 'researcher' failed" in result.content
        assert id in result.content


async def test_an_empty_prompt_is_refused_before_anything_begins() -> None:
    script: list[ScriptItem] = [call("researcher", prompt="  "), text("Never mind.")]
    async with hf.open(None, agents=[chief(researcher(), script)]) as runtime:
        await runtime.run("chief", "Find out.", session="s")
        assert await children(runtime, "s") == []


async def test_after_a_restart_the_same_turn_is_found_and_nothing_is_asked_again(tmp_path: Path, stage: Stage) -> None:
    path = tmp_path / "store.db"
    asked: list[str] = []

    def say(request: ModelRequest) -> Any:
        last = request.messages[-1]
        asked.append(last.text if not isinstance(last, ToolMessage) else "result")
        return text("It is blue.") if isinstance(last, ToolMessage) else call("reads")

    def agents() -> list[hf.Agent]:
        child = hf.Agent("researcher", model=ScriptedModel(say), tools=stage.tools(), policy=[hf.allow("*")])
        return [chief(child)]

    async with hf.open(path, agents=agents()) as runtime:
        await runtime.session("s", agent="chief").send("Find out.", key="k")
        await stage.reached.wait()
        await runtime.close(grace=0)
    stage.go_on.set()
    async with hf.open(path, agents=agents()) as runtime, asyncio.timeout(SOON):
        turn = await runtime.session("s", agent="chief").send("Find out.", key="k")
        assert (await turn.outcome()).text == "Blue, I hear."
        assert len(await children(runtime, "s")) == 1
    assert asked == ["Which colour?", "result"]


@every("budget", [0, -1, 1.5, True, "half", None])
def test_a_share_is_above_zero_and_at_most_one(budget: Any) -> None:
    with pytest.raises(InvalidNumber):
        hf.agent_tool(researcher(), budget=budget)


def test_only_an_agent_can_be_a_sub_agent() -> None:
    with pytest.raises(InvalidArgument):
        hf.agent_tool("researcher")  # type: ignore[arg-type]


def test_a_name_that_no_tool_can_have_is_made_one() -> None:
    child = hf.Agent("web/search", model=ScriptedModel([text("x")]))
    assert hf.agent_tool(child).name == "web_search"


async def test_a_parent_that_was_parked_goes_on_when_its_sub_agent_ends_in_another_process(
    tmp_path: Path, stage: Stage
) -> None:
    path = tmp_path / "store.db"

    def agents() -> list[hf.Agent]:
        return [chief(researcher([call("reads"), text("x")], tools=stage.tools(), policy=[hf.allow("*")]))]

    async with hf.open(path, agents=agents()) as runtime:
        runtime.children.patience = 0.0
        turn = await runtime.session("s", agent="chief").send("Find out.", key="k")
        while await turn.status() != "waiting":
            await runtime.store.changed(runtime.store.version, 0.05)
        await stage.reached.wait()
        await runtime.close(grace=0)
    stage.go_on.set()
    async with hf.open(path, agents=agents()) as runtime, stopwatch() as watch:
        turn = await runtime.session("s", agent="chief").send("Find out.", key="k")
        assert (await turn.outcome(timeout=SOON)).text == "Blue, I hear."
        assert watch.seconds < 2


async def test_the_end_of_a_sub_agent_answers_no_other_wait_of_its_parent(stage: Stage) -> None:
    child = researcher([text("It is blue.")])
    script: list[ScriptItem] = [[call("researcher", prompt="Go."), call("asks")], text("x")]
    parent = hf.Agent(
        "chief", model=ScriptedModel(script), tools=[hf.agent_tool(child), *stage.tools()], policy=[hf.allow("*")]
    )
    async with hf.open(None, agents=[parent]) as runtime, asyncio.timeout(SOON):
        turn = await runtime.session("s", agent="chief").send("Find out.")
        while await turn.status() != "waiting":
            await runtime.store.changed(runtime.store.version, 0.05)
        assert [wait.state for wait in await runtime.waits("s")] == ["open"]


async def test_a_runtime_for_one_session_drives_its_sub_agents_too(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open_store(path) as store, hf.Runtime(store, [chief(researcher())], only="s") as runtime:
        async with asyncio.timeout(SOON):
            outcome = await runtime.run("chief", "Find out.", session="s")
    assert outcome.text == "Blue, I hear."


async def test_a_parent_whose_runtime_is_closed_while_it_waits_does_not_hold_it_up(stage: Stage) -> None:
    child = researcher([call("asks"), text("x")], tools=stage.tools(), policy=[hf.allow("*")])
    async with hf.open(None, agents=[chief(child)]) as runtime, asyncio.timeout(SOON):
        turn = await runtime.session("s", agent="chief").send("Find out.")
        while not (found := await children(runtime, "s")) or not await runtime.waits(found[0]):
            await runtime.store.changed(runtime.store.version, 0.05)
        async with stopwatch() as watch:
            await runtime.close()
        assert watch.seconds < 1
        assert await turn.status() == "waiting"
