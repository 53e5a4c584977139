"""Each recorded effect says what led to it, and in which step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import holdfast as hf
from holdfast.records import Cause
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

    from holdfast.records import EffectRequest
    from holdfast.store import Store


@hf.tool(read_only=True)
async def look(ctx: hf.Context, word: str) -> str:
    """Look a word up."""
    return await ctx.step("read", str.upper, word)


@hf.tool
async def ask(ctx: hf.Context) -> str:
    """Ask a person."""
    return str(await ctx.wait("answer"))


async def asked(store: Store, journal: str) -> dict[str, EffectRequest]:
    """What was asked in a journal, by key."""
    found: dict[str, EffectRequest] = {}
    async for entry in store.read_all(journal):
        told: Any = getattr(entry.record, "ask", None)
        if told is not None:
            found[getattr(entry.record, "key", "")] = told
    return found


def why(found: dict[str, EffectRequest]) -> dict[str, tuple[Cause | None, int]]:
    return {key: (told.cause, told.iteration) for key, told in found.items()}


async def test_model_calls_and_tool_calls_say_what_led_to_them() -> None:
    script = ScriptedModel([[call("look", word="a"), call("look", word="b")], text("Done.")])
    agent = hf.Agent("a", model=script, tools=[look])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        found = why(await asked(runtime.store, "s"))
    assert found["t1/1.model"] == (Cause("input", "1"), 1)
    assert found["t1/1.model/%environment-1"] == (Cause("model", "t1/1.model"), 1)
    assert found["t1/2.tools/1.look"] == (Cause("model", "t1/1.model", 1), 0)
    assert found["t1/2.tools/2.look"] == (Cause("model", "t1/1.model", 2), 0)
    assert found["t1/2.tools/2.look/read"] == (Cause("effect", "t1/2.tools/2.look"), 1)
    assert found["t1/4.model"] == (Cause("effect", "t1/2.tools"), 2)


async def test_a_wait_says_which_call_waits() -> None:
    agent = hf.Agent("a", model=ScriptedModel([call("ask"), text("Done.")]), tools=[ask], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        async for event in turn.events():
            if isinstance(event, hf.TurnWaiting):
                break
        found = why(await asked(runtime.store, "s"))
    assert found["t1/2.tools/1.ask/answer"] == (Cause("call", "t1/2.tools/1.ask"), 1)


async def test_a_steering_input_is_what_led_to_the_next_model_call() -> None:
    async def steer(ctx: hf.Context) -> str:
        """Have more said."""
        await runtime.session(ctx.session).send("and this", steer=True)
        return "said"

    model = ScriptedModel([call("steer"), text("Done.")])
    agent = hf.Agent("a", model=model, tools=[hf.tool(read_only=True)(steer)])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        found = why(await asked(runtime.store, "s"))
    assert found["t1/3.checkpoint"] == (Cause("input", "2"), 1)
    assert found["t1/4.model"] == (Cause("input", "2"), 2)


async def test_a_turn_that_a_trigger_began_says_which_occurrence() -> None:
    agent = hf.Agent("a", model=ScriptedModel([text("Done.")]))
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go", key="trigger/nightly/1/2026-01-01")
        await runtime.session("s").turn("t1").outcome()
        found = why(await asked(runtime.store, "s"))
    assert found["t1/1.model"] == (Cause("trigger", "trigger/nightly/1/2026-01-01"), 1)


@hf.process
async def works(ctx: hf.ProcessContext) -> str:
    await ctx.step("before", str, 1)
    await ctx.wait("go")
    return await ctx.step("after", str, 2)


async def test_steps_of_a_process_say_what_started_it_and_which_signal_came() -> None:
    async with hf.open(None, processes=[works]) as runtime:
        process = await runtime.start(works, id="p")
        await process.signal("go", 1)
        await process.result()
        found = why(await asked(runtime.store, "process/p"))
    assert found["process/before"] == (Cause("input", "1"), 1)
    assert found["process/after"] == (Cause("signal", "go"), 1)


def test_the_command_line_shows_what_led_to_a_step(shell: Shell) -> None:
    shell("run", "agents.py:looks", "hello", "--as", "s")
    (turn,) = shell.json("show", "s")["turns"]
    told = [(step["kind"], step.get("cause"), step.get("iteration")) for step in turn["steps"]]
    assert told[2:] == [
        ("model", ["input", "1", 0], 1),
        ("tool", ["model", "t1/1.model", 1], 1),
        ("tool", ["model", "t1/1.model", 2], 1),
        ("model", ["effect", "t1/2.tools", 0], 2),
    ]
    assert "call 2 of t1/1.model" in shell("show", "s").stdout
