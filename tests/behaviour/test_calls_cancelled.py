"""One call of a running turn is cancelled: the model reads so, and the others go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.approving import CALL, Shop
from tests.behaviour.background import Held
from tests.behaviour.stage import SOON, agent_of
from tests.behaviour.talk import at_rest, is_now, pairs_are_whole, states, until

import holdfast as hf
from holdfast.errors import CallUnknown
from holdfast.runtime.replay_check import check_turns
from holdfast.runtime.runtime import context_of
from holdfast.testing import ScriptedModel, call, check, text

if TYPE_CHECKING:
    from pathlib import Path

    from tests.behaviour.stage import Stage

FIRST = "t1.2.1"
"""The name of the first call of the first turn."""


async def results(session: hf.Session) -> list[hf.ToolResult]:
    messages = await session.history()
    assert pairs_are_whole(messages)
    return [result for message in messages if isinstance(message, hf.ToolMessage) for result in message.results]


async def sound(runtime: hf.Runtime, turn: hf.Turn) -> None:
    assert (await turn.outcome(timeout=SOON)).ok
    assert await check(runtime.store) == []
    assert await runtime.store.pending(turn.session) == []


async def test_the_model_reads_that_a_running_call_was_cancelled_and_why(stage: Stage) -> None:
    agent = agent_of(stage, [call("reads"), text("Then not.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        assert await turn.cancel_call(FIRST, "too slow") == "requested"
        await sound(runtime, turn)
        [result] = await results(runtime.session("s"))
        assert (result.state, "too slow" in result.content) == ("cancelled", True)


async def test_a_call_that_may_have_taken_effect_is_unknown(stage: Stage) -> None:
    agent = agent_of(stage, [call("acts"), text("I see.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await turn.cancel_call(FIRST)
        await sound(runtime, turn)
        [result] = await results(runtime.session("s"))
        assert (result.state, stage.done) == ("unknown", [])


async def test_the_others_of_its_batch_go_on(stage: Stage) -> None:
    agent = agent_of(stage, [[call("quick"), call("reads"), call("listens")], text("Two of three.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await turn.cancel_call("t1.2.2")
        stage.free.set()
        await sound(runtime, turn)
        assert states(await runtime.session("s").history()) == ["ok", "cancelled", "ok"]


async def test_a_call_that_has_not_begun_is_not_begun(stage: Stage) -> None:
    agent = agent_of(stage, [[call("acts"), call("acts")], text("One.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        assert await turn.cancel_call("t1.2.2") == "requested"
        stage.go_on.set()
        await sound(runtime, turn)
        assert states(await runtime.session("s").history()) == ["ok", "cancelled"]
        assert stage.done == ["acts"]


async def test_a_call_that_waits_for_approval_is_cancelled_and_nobody_is_asked_any_more() -> None:
    shop = Shop()
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await at_rest(runtime, "s")
        assert len(await runtime.approvals()) == 1
        assert await turn.cancel_call(FIRST, "the order was withdrawn") == "requested"
        await sound(runtime, turn)
        assert states(await runtime.session("s").history()) == ["cancelled"]
        assert (await runtime.approvals(), shop.done) == ([], [])


async def test_one_of_two_waiting_calls_is_cancelled_and_the_other_still_asks() -> None:
    shop = Shop()
    agent = shop.agent([CALL, call("refund", order="8", cents=1)])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await at_rest(runtime, "s")
        await turn.cancel_call(FIRST)
        await until(lambda: _asked_once(runtime))
        await at_rest(runtime, "s")
        [left] = await runtime.approvals()
        await runtime.approve(left.id)
        await sound(runtime, turn)
        assert states(await runtime.session("s").history()) == ["cancelled", "ok"]
        assert shop.done == [("8", 1)]


async def _asked_once(runtime: hf.Runtime) -> bool:
    return len(await runtime.approvals()) == 1


async def test_a_call_that_waits_for_an_answer_from_outside_is_cancelled(stage: Stage) -> None:
    agent = agent_of(stage, [call("asks"), text("Then not.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await at_rest(runtime, "s")
        await turn.cancel_call(FIRST)
        await sound(runtime, turn)
        assert states(await session.history()) == ["cancelled"]
        assert await runtime.waits("s") == []


async def test_a_call_behind_one_that_waits_is_cancelled_at_once(stage: Stage) -> None:
    agent = agent_of(stage, [[call("asks"), call("acts")], text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await at_rest(runtime, "s")
        await turn.cancel_call("t1.2.2")
        await until(lambda: _has_settled(turn))
        await at_rest(runtime, "s")
        [wait] = await runtime.waits("s")
        await runtime.resolve(runtime.wait_token("s", wait.name), "yes")
        await sound(runtime, turn)
        assert states(await runtime.session("s").history()) == ["ok", "cancelled"]
        assert stage.done == []


async def _has_settled(turn: hf.Turn) -> bool:
    return await turn.cancel_call("t1.2.2") == "too_late"


async def test_a_call_in_the_background_is_cancelled_after_its_turn() -> None:
    held = Held()
    slow = held.tool(read_only=True)
    agent = hf.Agent("a", model=ScriptedModel([call("slow"), text("It goes on."), text("It ended.")]), tools=[slow])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        assert (await turn.outcome(timeout=SOON)).text == "It goes on."
        assert await turn.cancel_call(FIRST, "no need") == "requested"
        [task] = await runtime.tasks.list(session="s")
        await until(lambda: held.ended == ["cancelled"])
        await until(lambda: is_cancelled(runtime, task.id))


async def test_a_request_that_comes_just_after_the_call_went_to_the_background_follows_it(stage: Stage) -> None:
    held = Held()
    model = ScriptedModel([call("slow"), call("reads"), text("It goes on."), text("It ended.")])
    tools = [held.tool(read_only=True), *stage.tools()]
    agent = hf.Agent("a", model=model, tools=tools, policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        # Accepted as if the caller had looked at the journal a moment earlier, when the call still ran in the turn.
        await context_of(runtime).sessions.request_call_stop("s", "t1", "t1/2.tools/1.slow", "no need")
        await until(lambda: held.ended == ["cancelled"])
        stage.go_on.set()
        assert (await turn.outcome(timeout=SOON)).ok


async def is_cancelled(runtime: hf.Runtime, task: str) -> bool:
    return (await runtime.tasks.task(task)).status == "cancelled"


async def test_a_cancel_after_the_result_is_too_late_and_says_so(stage: Stage) -> None:
    agent = agent_of(stage, [call("quick"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await turn.outcome(timeout=SOON)
        assert await turn.cancel_call(FIRST) == "too_late"


async def test_the_first_request_counts(stage: Stage) -> None:
    agent = agent_of(stage, [[call("acts"), call("acts")], text("One.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        asked = [await turn.cancel_call("t1.2.2", "mine"), await turn.cancel_call("t1.2.2", "yours")]
        stage.go_on.set()
        await sound(runtime, turn)
        assert asked == ["requested", "already_requested"]
        assert "mine" in (await results(runtime.session("s")))[1].content


@pytest.mark.parametrize("name", ["t1.2.9", "t1.9.1", "t2.2.1", "t1.2.1.4", "nonsense", ""])
async def test_a_call_that_does_not_exist_is_named(stage: Stage, name: str) -> None:
    agent = agent_of(stage, [call("quick"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await turn.outcome(timeout=SOON)
        with pytest.raises(CallUnknown):
            await turn.cancel_call(name)


async def test_another_runtime_on_the_store_cancels_a_call(tmp_path: Path, stage: Stage) -> None:
    agent = agent_of(stage, [call("reads"), text("Then not.")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        async with hf.open(tmp_path / "s.db", drive=False) as other:
            assert await other.session("s").turn("t1").cancel_call(FIRST) == "requested"
        await sound(runtime, turn)
        assert states(await runtime.session("s").history()) == ["cancelled"]


async def test_a_request_before_a_restart_holds_after_it(tmp_path: Path, stage: Stage) -> None:
    agent = agent_of(stage, [call("asks"), text("Then not.")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await at_rest(runtime, "s")
    async with hf.open(tmp_path / "s.db", drive=False) as other:
        await other.session("s").turn("t1").cancel_call(FIRST)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = runtime.session("s").turn("t1")
        await sound(runtime, turn)
        assert states(await runtime.session("s").history()) == ["cancelled"]


async def test_a_call_of_a_fork_is_cancelled_there(stage: Stage) -> None:
    agent = agent_of(stage, [call("quick"), text("One."), call("reads"), text("Two.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        fork = await session.fork()
        turn = await fork.send("again")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        assert await turn.cancel_call(f"{turn.id}.2.1") == "requested"
        await sound(runtime, turn)
        assert states(await fork.history()) == ["ok", "cancelled"]


async def test_a_sub_agent_stops_with_the_call_that_asked_for_it(stage: Stage) -> None:
    clerk = agent_of(stage, [call("reads"), text("never")])
    boss = hf.Agent(
        "boss",
        model=ScriptedModel([call("agent", prompt="Work."), text("Then not.")]),
        tools=[hf.agent_tool(clerk)],
        policy=[hf.allow("*")],
    )
    async with hf.open(None, agents=[boss]) as runtime:
        turn = await runtime.session("s", agent=boss).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await turn.cancel_call(FIRST)
        await sound(runtime, turn)
        [child] = await runtime.sessions(agent="agent")
        await until(lambda: is_now(runtime.session(child.id), "cancelled"))


async def test_cancelling_the_turn_meanwhile_still_ends_it(stage: Stage) -> None:
    agent = agent_of(stage, [call("stubborn"), text("never")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await turn.cancel_call(FIRST)
        await until(lambda: stage.done == ["ignored"])
        await turn.cancel("all of it")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        stage.go_on.set()
        await until(lambda: _is_empty(runtime))
        assert await check(runtime.store) == []


async def _is_empty(runtime: hf.Runtime) -> bool:
    return not await runtime.store.pending("s")


async def test_what_a_tool_returns_although_it_was_cancelled_counts(stage: Stage) -> None:
    agent = agent_of(stage, [call("swallows"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await turn.cancel_call(FIRST)
        await sound(runtime, turn)
        assert states(await runtime.session("s").history()) == ["ok"]


async def test_a_replay_of_the_turn_agrees(stage: Stage) -> None:
    agent = agent_of(stage, [[call("quick"), call("reads")], text("Half.")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        await turn.cancel_call("t1.2.2")
        await sound(runtime, turn)
        assert [found.verdict for found in await check_turns(runtime.store, "s", agent)] == ["ok"]


async def test_all_calls_of_a_session_are_aborted_and_its_turn_goes_on(stage: Stage) -> None:
    held = Held()
    model = ScriptedModel([call("slow"), call("reads"), text("Neither."), text("I see.")])
    tools = [held.tool(read_only=True), *stage.tools()]
    agent = hf.Agent("a", model=model, tools=tools, policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        aborted = await runtime.abort_calls("s", "closing time")
        assert [(each.tool, each.status) for each in aborted] == [("reads", "requested"), ("slow", "requested")]
        assert (await turn.outcome(timeout=SOON)).ok
        await until(lambda: held.ended == ["cancelled"])
        await until(lambda: _nothing_left(runtime))


async def _nothing_left(runtime: hf.Runtime) -> bool:
    return await runtime.abort_calls("s") == []
