"""A scripted model answers by the place in the conversation: a process that takes over meets the same script."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.messages import ToolMessage
from holdfast.testing import ScriptedModel, call, check, delayed, error, reply, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.testing.scripted import ScriptItem


class Crossing:
    """A tool that does not come back from some of its runs."""

    def __init__(self, *stops: int) -> None:
        self.stops = set(stops)
        self.runs = 0
        self.reached = asyncio.Event()

    def tool(self) -> hf.Tool[..., Any]:
        @hf.tool(read_only=True)
        async def cross(n: int = 0) -> int:
            self.runs += 1
            if self.runs in self.stops:
                self.reached.set()
                await asyncio.Event().wait()
            return n

        return cross


async def interrupted(path: Path, crossing: Crossing, agent: hf.Agent, words: str = "go") -> hf.Turn:
    """A turn that was left in the middle, in a tool."""
    crossing.reached.clear()
    async with hf.open(path, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send(words, key=words)
        await asyncio.wait_for(crossing.reached.wait(), SOON)
        await runtime.close(grace=0)
        return turn


async def test_a_new_process_goes_on_at_the_same_place_of_the_script(tmp_path: Path) -> None:
    crossing = Crossing(2)
    script: list[ScriptItem] = [call("cross", n=1), call("cross", n=2), call("cross", n=3), text("Done.")]
    first = hf.Agent("agent", model=ScriptedModel(script), tools=[crossing.tool()], policy=[hf.allow("*")])
    turn = await interrupted(tmp_path / "s.db", crossing, first)
    model = ScriptedModel(script)
    second = hf.Agent("agent", model=model, tools=[crossing.tool()], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[second]) as runtime:
        outcome = await runtime.session("s").turn(turn.id).outcome(timeout=SOON)
        assert (outcome.text, outcome.steps) == ("Done.", 4)
        assert await check(runtime.store) == []
    assert [request.position for request in model.requests] == [2, 3]


async def test_a_script_survives_being_interrupted_at_every_step(tmp_path: Path) -> None:
    steps = 5
    crossing = Crossing(*range(1, 2 * steps, 2))  # each call stops once, and comes through when it is repeated
    script: list[ScriptItem] = [*(call("cross", n=n) for n in range(steps)), text("Done.")]
    asked: list[int | None] = []
    for _ in range(steps):
        model = ScriptedModel(script)
        agent = hf.Agent("agent", model=model, tools=[crossing.tool()], policy=[hf.allow("*")])
        await interrupted(tmp_path / "s.db", crossing, agent)
        asked += [request.position for request in model.requests]
    model = ScriptedModel(script)
    agent = hf.Agent("agent", model=model, tools=[crossing.tool()], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        outcome = await runtime.session("s").turn("t1").outcome(timeout=SOON)
        results = [found.results[0] for found in await runtime.session("s").history() if isinstance(found, ToolMessage)]
        assert (outcome.text, [result.content for result in results]) == ("Done.", list(range(steps)))
    assert asked + [request.position for request in model.requests] == list(range(steps + 1))


async def test_places_go_on_counting_in_the_next_turn(tmp_path: Path) -> None:
    script: list[ScriptItem] = [call("cross"), text("one"), text("two")]
    first = hf.Agent("agent", model=ScriptedModel(script), tools=[Crossing().tool()], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[first]) as runtime:
        await (await runtime.session("s", agent=first).send("go")).outcome(timeout=SOON)
    second = hf.Agent("agent", model=ScriptedModel(script), tools=[Crossing().tool()], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[second]) as runtime:
        assert (await (await runtime.session("s").send("more")).outcome(timeout=SOON)).text == "two"


@pytest.mark.parametrize(
    "broken", [error("down"), ValueError("bug"), reply("no", finish="content_filter"), reply()], ids=str
)
async def test_a_reply_that_came_to_nothing_has_a_place_of_its_own(tmp_path: Path, broken: Any) -> None:
    script: list[ScriptItem] = [broken, text("the second reply"), text("the third reply")]

    async def second_turn(path: Path, *, restart: bool) -> str:
        agent = hf.Agent("agent", model=ScriptedModel(script))
        async with hf.open(path, agents=[agent]) as runtime:
            session = runtime.session("s", agent=agent)
            await (await session.send("go")).outcome(timeout=SOON)
            if not restart:
                return (await (await session.send("more")).outcome(timeout=SOON)).text
        agent = hf.Agent("agent", model=ScriptedModel(script))
        async with hf.open(path, agents=[agent]) as runtime:
            return (await (await runtime.session("s").send("more")).outcome(timeout=SOON)).text

    stayed = await second_turn(tmp_path / "a.db", restart=False)
    assert await second_turn(tmp_path / "b.db", restart=True) == stayed


async def test_a_reply_that_was_broken_off_by_a_cancel_has_the_same_place_with_and_without_a_restart(
    tmp_path: Path,
) -> None:
    async def second_turn(path: Path, *, restart: bool) -> str:
        reached = asyncio.Event()

        async def stuck(request: hf.ModelRequest) -> Any:
            reached.set()
            await asyncio.Event().wait()

        script: list[ScriptItem] = [stuck, text("the second reply"), text("the third reply")]
        agent = hf.Agent("agent", model=ScriptedModel([stuck if n == 0 else script[n] for n in range(3)]))
        agents = [agent, hf.Agent("agent", model=ScriptedModel([text("the first again"), *script[1:]]))]
        async with hf.open(path, agents=[agent]) as runtime:
            session = runtime.session("s", agent=agent)
            turn = await session.send("go")
            await asyncio.wait_for(reached.wait(), SOON)
            await turn.cancel()
            await turn.outcome(timeout=SOON)
            if not restart:
                runtime.agents["agent"] = agents[1]
                return (await (await session.send("more")).outcome(timeout=SOON)).text
        async with hf.open(path, agents=[agents[1]]) as runtime:
            return (await (await runtime.session("s").send("more")).outcome(timeout=SOON)).text

    stayed = await second_turn(tmp_path / "a.db", restart=False)
    assert await second_turn(tmp_path / "b.db", restart=True) == stayed


async def test_a_function_of_the_request_resumes_too(tmp_path: Path) -> None:
    crossing = Crossing(2)

    def script(request: hf.ModelRequest) -> Any:
        done = sum(isinstance(message, ToolMessage) for message in request.messages)
        return call("cross", n=done) if done < 3 else delayed(0, text(f"Done with {done}."))

    agent = hf.Agent("agent", model=ScriptedModel(script), tools=[crossing.tool()], policy=[hf.allow("*")])
    turn = await interrupted(tmp_path / "s.db", crossing, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert (await runtime.session("s").turn(turn.id).outcome(timeout=SOON)).text == "Done with 3."


async def test_a_fork_meets_the_script_where_the_other_was(tmp_path: Path) -> None:
    model = ScriptedModel([call("cross"), text("one"), text("two")])
    agent = hf.Agent("agent", model=model, tools=[Crossing().tool()], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        branches = (await session.fork(), session)
        texts = [(await (await branch.send("more")).outcome(timeout=SOON)).text for branch in branches]
        assert texts == ["two", "two"]


async def test_requests_are_kept_within_a_bound() -> None:
    model = ScriptedModel(lambda _: text("Done."), keep=3)
    agent = hf.Agent("agent", model=model)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        for _ in range(5):
            await (await session.send("go")).outcome(timeout=SOON)
    assert [request.position for request in model.requests] == [2, 3, 4]
