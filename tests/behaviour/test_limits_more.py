"""Limits of a turn beyond its steps: which one was reached, what it was, and how much was used. Never an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.messages import Message, ToolMessage, Usage
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import ScriptedModel, call, reply, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.tools import AnyTool

PRICES = {"scripted:model": hf.Price(input=1_000_000, output=1_000_000)}  # a dollar a token


def looking() -> tuple[AnyTool, list[int]]:
    """A tool, and where it has looked."""
    seen: list[int] = []

    @hf.tool(read_only=True)
    async def look(at: int = 0) -> int:
        seen.append(at)
        return at

    return look, seen


def steps(count: int, usage: Usage | None = None) -> list[Any]:
    return [reply(call("look", at=number), usage=usage or Usage(input=1, output=1)) for number in range(count)]


async def ran(script: list[Any], **limits: Any) -> tuple[hf.TurnOutcome, ScriptedModel, list[int]]:
    look, seen = looking()
    model = ScriptedModel(script)
    agent = hf.Agent("agent", model=model, tools=[look], policy=[hf.allow("*")], limits=hf.Limits(**limits))
    return await hf.run(agent, "go"), model, seen


def notes(messages: tuple[Message, ...]) -> list[str]:
    return [said.text for said in messages if isinstance(said, hf.UserMessage) and said.origin == "holdfast"]


# ---- the last step ---------------------------------------------------------------------------------------------------


async def test_the_model_is_told_that_a_step_is_the_last() -> None:
    outcome, model, _ = await ran([*steps(2), text("So far.")], steps=3)
    assert outcome.text == "So far."
    assert [len(notes(request.messages)) for request in model.requests] == [0, 0, 1]


async def test_tools_that_it_asks_for_all_the_same_are_not_run() -> None:
    outcome, _, seen = await ran(steps(9), steps=3)
    assert (outcome.status, outcome.code, seen) == ("limit", "steps", [0, 1])


async def test_they_have_a_result_in_the_history() -> None:
    look, _ = looking()
    agent = hf.Agent(
        "agent", model=ScriptedModel(steps(2)), tools=[look], policy=[hf.allow("*")], limits=hf.Limits(steps=1)
    )
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        last = (await session.history())[-1]
        assert isinstance(last, ToolMessage)
        assert [result.state for result in last.results] == ["skipped"]


async def test_they_have_an_event() -> None:
    look, _ = looking()
    agent = hf.Agent(
        "agent", model=ScriptedModel(steps(2)), tools=[look], policy=[hf.allow("*")], limits=hf.Limits(steps=1)
    )
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        ends = [event async for event in turn.events() if isinstance(event, hf.ToolCallFinished)]
        assert [(event.call, event.tool, event.state) for event in ends] == [("t1.2.1", "look", "skipped")]


async def test_a_turn_with_an_announcement_ends_the_same_way_again() -> None:
    look, _ = looking()
    agent = hf.Agent(
        "agent", model=ScriptedModel(steps(9)), tools=[look], policy=[hf.allow("*")], limits=hf.Limits(steps=3)
    )
    async with hf.open_store(None) as store:
        async with hf.Runtime(store, [agent]) as runtime:
            await runtime.run(agent, "go", session="s")
        (check,) = await check_turns(store, "s", agent)
        assert (check.verdict, check.status) == ("ok", "limit")


# ---- tokens, money, calls --------------------------------------------------------------------------------------------


async def test_tokens_are_limited() -> None:
    outcome, model, _ = await ran(steps(9, Usage(input=40, output=10)), tokens=100)
    assert (outcome.status, outcome.code, len(model.requests)) == ("limit", "tokens", 2)
    assert "100 tokens" in outcome.message


async def test_tool_calls_are_limited() -> None:
    outcome, _, seen = await ran(steps(9), tool_calls=3)
    assert (outcome.status, outcome.code, seen) == ("limit", "tool_calls", [0, 1, 2])


async def test_money_is_limited() -> None:
    look, seen = looking()
    agent = hf.Agent(
        "agent", model=ScriptedModel(steps(9)), tools=[look], policy=[hf.allow("*")], limits=hf.Limits(cost_usd=6)
    )
    async with hf.open(None, agents=[agent], prices=PRICES) as runtime:
        outcome = await runtime.run(agent, "go")
    assert (outcome.status, outcome.code, outcome.cost, seen) == ("limit", "cost_usd", 6.0, [0, 1])


async def test_money_that_nobody_can_count_ends_the_turn() -> None:
    outcome, _, seen = await ran(steps(9), cost_usd=6)
    assert (outcome.status, outcome.code, seen) == ("limit", "cost_unknown", [])
    assert "unpriced" in outcome.message


async def test_money_that_nobody_can_count_may_be_free() -> None:
    outcome, _, _ = await ran([*steps(3), text("Done.")], cost_usd=6, unpriced="free")
    assert outcome.text == "Done."


@pytest.mark.parametrize("limits", [{"tokens": 1}, {"tool_calls": 0}, {"cost_usd": 0.01}], ids=str)
async def test_an_answer_at_once_is_within_every_limit(limits: dict[str, Any]) -> None:
    outcome, _, _ = await ran([text("Done.")], **limits)
    assert (outcome.status, outcome.text) == ("completed", "Done.")


async def test_a_session_goes_on_after_a_limit() -> None:
    look, _ = looking()
    model = ScriptedModel([*steps(2), text("Here.")])
    agent = hf.Agent("agent", model=model, tools=[look], policy=[hf.allow("*")], limits=hf.Limits(tool_calls=1))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await (await session.send("go")).outcome(timeout=SOON)).code == "tool_calls"
        assert (await (await session.send("and now?")).outcome(timeout=SOON)).text == "Here."


# ---- a restart -------------------------------------------------------------------------------------------------------


@hf.tool
async def ask(ctx: hf.Context) -> str:
    """Ask somebody."""
    return str(await ctx.wait("somebody", timeout=86_400))


def asking(**limits: Any) -> hf.Agent:
    script = [*steps(3), reply(call("ask"), usage=Usage(input=1, output=1)), *steps(9)]
    return hf.Agent(
        "agent",
        model=ScriptedModel(script),
        tools=[looking()[0], ask],
        policy=[hf.allow("*")],
        limits=hf.Limits(**limits),
    )


async def _waits(database: Path, agent: hf.Agent) -> str:
    async with hf.open(database, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        async for event in turn.events():
            if isinstance(event, hf.TurnWaiting):
                break
        (wait,) = await runtime.waits("s")
        return runtime.wait_token("s", wait.name)


async def _went_on(database: Path, agent: hf.Agent, token: str) -> hf.TurnOutcome:
    async with hf.open(database, agents=[agent]) as runtime:
        await runtime.resolve(token, "yes")
        return await runtime.session("s").turn("t1").outcome(timeout=SOON)


async def test_a_restart_does_not_begin_the_count_anew(tmp_path: Path) -> None:
    agent = asking(tool_calls=6)
    token = await _waits(tmp_path / "s.db", agent)
    outcome = await _went_on(tmp_path / "s.db", agent, token)
    assert (outcome.code, outcome.steps) == ("tool_calls", 7)


@pytest.mark.parametrize("limits", [{"tool_calls": 1}, {"tokens": 1}], ids=str)
async def test_a_limit_that_was_lowered_meanwhile_ends_the_turn_where_it_is(
    tmp_path: Path, limits: dict[str, Any]
) -> None:
    token = await _waits(tmp_path / "s.db", asking())
    outcome = await _went_on(tmp_path / "s.db", asking(**limits), token)
    assert (outcome.status, outcome.code) == ("limit", *limits)
