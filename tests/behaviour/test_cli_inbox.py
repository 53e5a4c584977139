"""`holdfast inbox`: what background calls, durable functions and families of agents wait for."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

    from holdfast.runtime.runtime import Runtime


@hf.tool(background=True)
async def asks(ctx: hf.Context) -> str:
    """Ask a person, in the background."""
    return str(await ctx.wait("person"))


@hf.tool(background=True)
async def orders(ctx: hf.Context) -> Any:
    """Order something; the shop answers later."""
    return await ctx.defer()


@hf.process
async def edits(ctx: hf.ProcessContext) -> list[Any]:
    return [await ctx.wait("the editor", timeout=3600), await (await ctx.defer()).answer()]


@hf.process(recovery="external")
async def ships(ctx: hf.ProcessContext) -> str: ...


def opened(shell: Shell, *agents: hf.Agent) -> Any:
    return hf.open(shell.folder / ".holdfast" / "holdfast.db", agents=agents, processes=[edits, ships])


async def rests(runtime: Runtime, role: str, count: int = 1) -> None:
    """So many of a kind wait, and nothing runs."""

    async def waits() -> bool:
        lines = await runtime.store.journals(role=role, status="waiting")
        return len(lines) == count and not runtime.active

    await until(waits)


async def test_what_background_calls_wait_for_is_in_the_inbox_and_can_be_answered_as_it_says(shell: Shell) -> None:
    script = ScriptedModel(lambda said: [call("asks"), call("orders")] if len(said.messages) == 1 else text("ok"))
    agent = hf.Agent("a", model=script, tools=[asks, orders], policy=[hf.allow("*")])
    async with opened(shell, agent) as runtime:
        await runtime.run(agent, "go", session="s")
        await rests(runtime, "task", 2)
    listed = shell("inbox")
    items = sorted(shell.json("inbox"), key=lambda item: item["tool"])
    assert [(item["kind"], item["what"]) for item in items] == [
        ("wait", "person (asks asks)"),
        ("wait", "result:orders (orders asks)"),
    ]
    assert listed.stderr == ""
    for item in items:
        _, *command = shlex.split(item["answer"].replace("JSON", "'\"yes\"'"))
        assert shell(*command).returncode == 0
    assert shell("inbox").stdout == "nothing waits for a person\n"


async def test_what_durable_functions_wait_for_is_in_the_inbox_and_can_be_answered_as_it_says(shell: Shell) -> None:
    async with opened(shell) as runtime:
        process = await runtime.start(edits, id="e")
        await runtime.start(ships, id="s")
        await rests(runtime, "process", 2)
        for wanted in ("the editor", "result:defer"):
            items = {item["session"]: item for item in shell.json("inbox")}
            assert wanted in items["process/e"]["what"]
            assert items["process/s"]["answer"] == "holdfast processes complete s JSON"
            _, *command = shlex.split(items["process/e"]["answer"].replace("JSON", "7"))
            assert shell(*command).returncode == 0
            if wanted == "the editor":

                async def waits_again() -> bool:
                    return "signal" not in str((await process.line()).waits) and await process.status() == "waiting"

                await until(waits_again)
        assert await process.result(timeout=SOON) == [7, 7]


async def test_triggers_and_parents_that_wait_for_sub_agents_are_no_business_of_a_person(shell: Shell) -> None:
    low = hf.Agent("low", model=ScriptedModel([call("waits"), text("ok")]), tools=[waits], policy=[hf.allow("*")])
    asking = ScriptedModel([call("low", prompt="go"), text("ok")])
    high = hf.Agent("high", model=asking, tools=[hf.agent_tool(low)], policy=[hf.allow("*")])
    async with opened(shell, high) as runtime:
        runtime.children.patience = 0
        await runtime.every("pulse", hf.interval(3600), high, prompt="Look around.")
        await runtime.session("s", agent=high).send("go")
        await rests(runtime, "agent")
        await rests(runtime, "trigger")
    listed = shell("inbox")
    assert [(item["session"].partition("~")[0], item["tool"]) for item in shell.json("inbox")] == [("s", "waits")]
    assert ("~low~" in listed.stdout, listed.stderr) == (True, "")


@pytest.mark.parametrize("command", ["show", "cancel", "resume", "replay --check", "fork --at 1"])
async def test_what_is_no_session_is_told_with_the_command_that_shows_it(shell: Shell, command: str) -> None:
    agent = hf.Agent("a", model=ScriptedModel([call("asks"), text("ok")]), tools=[asks], policy=[hf.allow("*")])
    async with opened(shell, agent) as runtime:
        await runtime.every("pulse", hf.event("never"), agent, prompt="x")
        await runtime.start(ships, id="s")
        await runtime.run(agent, "go", session="x")
        (task,) = await runtime.tasks.list()
    name, *options = command.split()
    for id, helps in (
        (task.id, f"holdfast tasks {task.id}"),
        ("process/s", "holdfast processes s"),
        ("trigger/pulse", "holdfast triggers pulse"),
    ):
        refused = shell(name, id, *options)
        assert (refused.returncode, helps in refused.stderr) == (2, True)


@hf.tool
async def waits(ctx: hf.Context) -> str:
    """Ask a person."""
    return str(await ctx.wait("person"))
