"""A model that does the same again and again is told so, and then stopped; after a restart too."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.messages import ToolMessage
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.messages import Message
    from holdfast.store import Store


@hf.tool(read_only=True)
async def look(at: str = "here") -> str:
    """Look somewhere."""
    return f"nothing {at}"


@hf.tool(read_only=True)
async def find(at: str = "here") -> str:
    """Find something."""
    return f"no {at}"


@hf.tool
async def ask(ctx: hf.Context) -> str:
    """Ask somebody."""
    return str(await ctx.wait("somebody", timeout=86_400))


def always(*items: Any) -> Callable[[hf.ModelRequest], Any]:
    """A model that goes round these for ever."""
    return lambda request: items[(request.position or 0) % len(items)]


def agent_of(script: Any, **limits: Any) -> tuple[hf.Agent, ScriptedModel]:
    model = ScriptedModel(script)
    return hf.Agent(
        "agent", model=model, tools=[look, find, ask], policy=[hf.allow("*")], limits=hf.Limits(**limits)
    ), model


def notes(messages: tuple[Message, ...]) -> list[str]:
    """What Holdfast told the model."""
    return [said.text for said in messages if isinstance(said, hf.UserMessage) and said.origin == "holdfast"]


async def parked(runtime: hf.Runtime) -> str:
    """The token of what the session waits for."""
    turn = runtime.session("s").turn("t1")
    async for event in turn.events():
        if isinstance(event, hf.TurnWaiting):
            break
    (wait,) = await runtime.waits("s")
    return runtime.wait_token("s", wait.name)


# ---- told, then stopped ----------------------------------------------------------------------------------------------


async def test_after_three_times_the_model_is_told_what_it_repeats() -> None:
    agent, model = agent_of([*[call("look")] * 3, text("Nothing there.")])
    assert (await hf.run(agent, "go")).text == "Nothing there."
    (note,) = notes(model.requests[-1].messages)
    assert "look" in note


async def test_a_model_that_goes_on_all_the_same_is_stopped() -> None:
    agent, model = agent_of(always(call("look")))
    outcome = await hf.run(agent, "go")
    assert (outcome.status, outcome.code, outcome.blame) == ("limit", "loop", "limit")
    assert (len(model.requests), len(notes(model.requests[-1].messages))) == (6, 1)


async def test_a_circle_is_a_loop_too() -> None:
    agent, model = agent_of(always(call("look"), call("find")))
    outcome = await hf.run(agent, "go")
    assert (outcome.code, len(model.requests)) == ("loop", 12)


async def test_equal_calls_side_by_side_are_no_loop() -> None:
    agent, model = agent_of([[call("look"), call("look"), call("look")], text("Done.")])
    assert (await hf.run(agent, "go")).text == "Done."
    assert notes(model.requests[-1].messages) == []


async def test_the_same_call_with_other_results_is_no_loop() -> None:
    seen: list[int] = []

    @hf.tool(read_only=True)
    async def count() -> int:
        seen.append(1)
        return len(seen)

    agent = hf.Agent(
        "agent", model=ScriptedModel([*[call("count")] * 9, text("Nine.")]), tools=[count], policy=[hf.allow("*")]
    )
    assert (await hf.run(agent, "go")).text == "Nine."


async def test_a_tool_that_is_there_to_be_asked_again_is_no_loop() -> None:
    @hf.tool(read_only=True, polling=True)
    async def ready() -> bool:
        return False

    model = ScriptedModel([*[call("ready")] * 9, text("Not yet.")])
    assert (
        await hf.run(hf.Agent("agent", model=model, tools=[ready], policy=[hf.allow("*")]), "go")
    ).text == "Not yet."


class Numbers:
    """Tools whose results change, or do not."""

    def __init__(self) -> None:
        self.calls = 0

    def tools(self) -> list[hf.Tool[..., Any]]:
        @hf.tool(read_only=True)
        async def grows() -> int:
            """More each time."""
            self.calls += 1
            return self.calls

        @hf.tool(read_only=True)
        async def stays(at: int = 0) -> str:
            """Always the same."""
            return f"at {at}"

        @hf.tool(read_only=True, polling=True)
        async def ready() -> bool:
            """Whether something is ready."""
            return False

        return [grows, stays, ready]


ROUNDS: dict[str, Callable[[int], list[Any]]] = {
    "the same call with other results": lambda _: [call("grows")],
    "the same tool with other arguments": lambda n: [call("stays", at=n)],
    "a step in which one result is new": lambda _: [call("grows"), call("stays")],
    "alternating with a call that is of use": lambda n: [call("stays") if n % 2 else call("grows")],
    "polling between calls of use": lambda n: [call("ready") if n % 2 else call("stays", at=n)],
    "polling beside a call": lambda _: [call("ready"), call("stays")],
    "a round of five": lambda n: [call("stays", at=n % 5)],
}


@pytest.mark.parametrize("round_of", ROUNDS.values(), ids=ROUNDS)
async def test_what_is_of_use_is_no_loop(round_of: Callable[[int], list[Any]]) -> None:
    script = [round_of(n) for n in range(24)]
    model = ScriptedModel([*script, text("Done.")])
    agent = hf.Agent("agent", model=model, tools=Numbers().tools(), policy=[hf.allow("*")])
    assert (await hf.run(agent, "go")).text == "Done."
    assert notes(model.requests[-1].messages) == []


async def test_a_result_that_changes_once_begins_the_count_anew() -> None:
    answers = iter(["a", "a", "b", "b", "a", "a", "c"])

    @hf.tool(read_only=True)
    async def state() -> str:
        """How it stands."""
        return next(answers)

    model = ScriptedModel([*[call("state")] * 7, text("Done.")])
    assert (await hf.run(hf.Agent("agent", model=model, tools=[state]), "go")).text == "Done."
    assert notes(model.requests[-1].messages) == []


async def test_a_call_that_is_interrupted_again_and_again_by_the_end_of_its_process_is_no_loop(tmp_path: Path) -> None:
    reached, interruptions = asyncio.Event(), 7

    @hf.tool
    async def build() -> str:
        """Build the project."""
        if interruptions:
            reached.set()
            await asyncio.Event().wait()
        return "built"

    def answer(request: hf.ModelRequest) -> Any:
        last = request.messages[-1]
        built = isinstance(last, ToolMessage) and last.results[0].state == "ok"
        return text("Done.") if built else call("build")

    agent = hf.Agent("agent", model=ScriptedModel(answer), tools=[build], policy=[hf.allow("*")])
    while interruptions:
        async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
            await runtime.session("s", agent=agent).send("Build it.", key="k")
            await asyncio.wait_for(reached.wait(), SOON)
            reached.clear()
            interruptions -= 1
            await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s")
        assert (await session.turn("t1").outcome(timeout=SOON)).text == "Done."
        assert notes(tuple(await session.history())) == []


async def test_the_guard_can_be_switched_off() -> None:
    agent, _ = agent_of([*[call("look")] * 9, text("Done.")], repeats=None)
    assert (await hf.run(agent, "go")).text == "Done."


async def test_every_call_of_a_turn_that_was_stopped_has_a_result() -> None:
    agent, _ = agent_of(always(call("look")))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        history = await session.history()
        asked = [found.id for said in history if isinstance(said, hf.AssistantMessage) for found in said.calls]
        answered = [found.call_id for said in history if isinstance(said, ToolMessage) for found in said.results]
        assert asked == answered


async def test_the_note_is_in_the_history() -> None:
    agent, model = agent_of([*[call("look")] * 3, text("Nothing there.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        assert notes(tuple(await session.history())) == notes(model.requests[-1].messages)


async def test_a_loop_shows_itself_before_the_end() -> None:
    agent, _ = agent_of(always(call("look")))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        seen = [type(event) async for event in turn.events()]
        assert seen[-2:] == [hf.events.LoopDetected, hf.TurnLimit]


# ---- from the journal ------------------------------------------------------------------------------------------------


async def test_a_restart_does_not_forget_how_often(tmp_path: Path) -> None:
    script = [call("look"), call("look"), [call("look"), call("ask")], *[call("look")] * 9]
    agent, _ = agent_of(script)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await runtime.resolve(await parked(runtime), "yes")
        first = await runtime.session("s").turn("t1").outcome(timeout=SOON)
    agent, _ = agent_of(script)
    async with hf.open(tmp_path / "t.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        token = await parked(runtime)
    async with hf.open(tmp_path / "t.db", agents=[agent]) as runtime:
        await runtime.resolve(token, "yes")
        again = await runtime.session("s").turn("t1").outcome(timeout=SOON)
    assert (first.code, first.steps) == (again.code, again.steps) == ("loop", 9)


async def test_a_note_that_was_given_is_not_given_again(tmp_path: Path) -> None:
    agent, model = agent_of([*[call("look")] * 3, call("ask"), text("Done.")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        token = await parked(runtime)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.resolve(token, "yes")
        assert (await runtime.session("s").turn("t1").outcome(timeout=SOON)).text == "Done."
    assert len(notes(model.requests[-1].messages)) == 1


async def _recorded_without_a_guard(store: Store, script: list[Any]) -> None:
    """A turn that a runtime without a guard has begun, and that waits."""
    agent, _ = agent_of(script, repeats=None)
    async with hf.Runtime(store, [agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await runtime.resolve(await parked(runtime), "yes")
        await runtime.session("s").turn("t1").outcome(timeout=SOON)


async def test_a_turn_that_was_recorded_without_the_guard_fits_a_code_that_has_it() -> None:
    script = [*[call("look")] * 12, call("ask"), text("Done.")]
    async with hf.open_store(None) as store:
        await _recorded_without_a_guard(store, script)
        (check,) = await check_turns(store, "s", agent_of(script)[0])
        assert (check.verdict, check.status) == ("ok", "completed")


async def test_a_turn_with_a_note_ends_the_same_way_again() -> None:
    agent, _ = agent_of(always(call("look")))
    async with hf.open_store(None) as store:
        async with hf.Runtime(store, [agent]) as runtime:
            assert (await runtime.run(agent, "go", session="s")).code == "loop"
        (check,) = await check_turns(store, "s", agent)
        assert (check.verdict, check.status) == ("ok", "limit")


async def test_a_turn_that_an_old_runtime_began_is_gone_on_with_and_told_then() -> None:
    script = [*[call("look")] * 9, call("ask"), *[call("look")] * 3, text("Done.")]
    async with hf.open_store(None) as store:
        async with hf.Runtime(store, [agent_of(script, repeats=None)[0]]) as runtime:
            await runtime.session("s", agent="agent").send("go")
            token = await parked(runtime)
        agent, model = agent_of(script)
        async with hf.Runtime(store, [agent]) as runtime:
            await runtime.resolve(token, "yes")
            assert (await runtime.session("s").turn("t1").outcome(timeout=SOON)).text == "Done."
        assert len(notes(model.requests[-1].messages)) == 1
