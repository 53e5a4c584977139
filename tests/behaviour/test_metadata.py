"""What the host says about a session or an input: tools, hooks, events, the history and lists have it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import until

import holdfast as hf
from holdfast.errors import JournalConflict, PayloadTooLarge
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.behaviour.shell import Shell

    from holdfast.store import Store

SESSION = {"tenant": "acme", "plan": "free"}
INPUT = {"message": 881, "plan": "gold"}
BOTH = {"tenant": "acme", "plan": "gold", "message": 881}


@pytest.fixture(params=["file", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with hf.open_store(tmp_path / "s.db" if request.param == "file" else None) as opened:
        yield opened


def looking(seen: list[Any], **options: Any) -> Any:
    async def look(ctx: hf.Context) -> str:
        """Look around."""
        seen.append(ctx.metadata)
        return "seen"

    return hf.tool(read_only=True, **options)(look)


def agent_of(*tools: Any, **options: Any) -> hf.Agent:
    return hf.Agent("a", model=ScriptedModel([call("look"), text("Done.")]), tools=list(tools), **options)


async def say(runtime: hf.Runtime, agent: hf.Agent) -> hf.TurnOutcome:
    session = runtime.session("s", agent=agent, metadata=SESSION)
    return await (await session.send("hello", metadata=INPUT)).outcome()


async def test_a_tool_reads_it_and_the_input_wins(store: Store) -> None:
    seen: list[Any] = []
    async with hf.Runtime(store, [agent := agent_of(looking(seen))]) as runtime:
        await say(runtime, agent)
    assert seen == [BOTH]


async def test_a_tool_reads_it_after_a_restart(store: Store) -> None:
    seen: list[Any] = []
    agent = agent_of(looking(seen))
    async with hf.Runtime(store, [agent], drive=False) as runtime:
        await runtime.session("s", agent=agent, metadata=SESSION).send("hello", metadata=INPUT)
    async with hf.Runtime(store, [agent]) as runtime:
        await runtime.session("s").turn("t1").outcome()
    assert seen == [BOTH]


async def test_a_tool_in_the_background_reads_it(store: Store) -> None:
    seen: list[Any] = []
    async with hf.Runtime(store, [agent := agent_of(looking(seen, background=True))]) as runtime:
        await say(runtime, agent)
        await until(lambda: seen)
    assert seen == [BOTH]


async def test_a_sub_agent_has_that_of_the_turn_it_works_for(store: Store) -> None:
    seen: list[Any] = []
    below = hf.Agent("below", model=ScriptedModel([call("look"), text("Seen.")]), tools=[looking(seen)])
    script = ScriptedModel([call("below", prompt="look"), text("Done.")])
    agent = hf.Agent("a", model=script, tools=[hf.agent_tool(below)], policy=[hf.allow("*")])
    async with hf.Runtime(store, [agent]) as runtime:
        await say(runtime, agent)
    assert seen == [BOTH]


async def test_hooks_read_it(store: Store) -> None:
    seen: list[Any] = []

    class Watching(hf.Hooks):
        async def before_turn(self, turn: hf.TurnContext) -> None:
            seen.append(dict(turn.metadata))

    async with hf.Runtime(store, [agent := agent_of(looking([]), hooks=[Watching()])]) as runtime:
        await say(runtime, agent)
    assert seen == [BOTH]


async def test_events_and_history_have_that_of_each_input(store: Store) -> None:
    async with hf.Runtime(store, [agent := agent_of(looking([]))]) as runtime:
        await say(runtime, agent)
        session = runtime.session("s")
        events = [event async for event in session.turn("t1").events()]
        (first, *_) = await session.history()
    assert [event.metadata for event in events if isinstance(event, hf.events.InputAccepted)] == [INPUT]
    assert isinstance(first, hf.UserMessage)
    assert first.metadata == INPUT


async def test_lists_have_that_of_the_session(store: Store) -> None:
    async with hf.Runtime(store, [agent := agent_of(looking([]))]) as runtime:
        await say(runtime, agent)
        (line,) = await runtime.sessions()
        assert line.metadata == SESSION == await runtime.session("s").metadata()


async def test_a_fork_keeps_that_of_the_session(store: Store) -> None:
    async with hf.Runtime(store, [agent := agent_of(looking([]))]) as runtime:
        await say(runtime, agent)
        assert await (await runtime.session("s").fork(id="f")).metadata() == SESSION


async def test_a_session_is_not_opened_twice_with_other_metadata(store: Store) -> None:
    async with hf.Runtime(store, [agent := agent_of(looking([]))]) as runtime:
        await say(runtime, agent)
        with pytest.raises(JournalConflict, match="metadata"):
            await runtime.session("s", agent=agent, metadata={"tenant": "other"}).send("again")
        await (await runtime.session("s", agent=agent, metadata=SESSION).send("again")).outcome()


async def test_metadata_of_a_session_holds_no_secret(store: Store) -> None:
    store.redactor.register("canary", "s3cr3t-canary-value")
    async with hf.Runtime(store, [agent_of(looking([]))], drive=False) as runtime:
        await runtime.session("s", agent="a", metadata={"key": "s3cr3t-canary-value"}).send("hello")
        assert "s3cr3t" not in str(await runtime.session("s").metadata())


async def test_metadata_that_is_too_large_is_refused(store: Store) -> None:
    async with hf.Runtime(store, [agent_of(looking([]))], drive=False) as runtime:
        with pytest.raises(PayloadTooLarge, match="metadata"):
            await runtime.session("s", agent="a", metadata={"x": "y" * 40_000}).send("hello")


def test_the_command_line_shows_it(shell: Shell) -> None:
    async def main() -> None:
        async with hf.open(shell.folder / "s.db", agents=[agent_of(looking([]))], drive=False) as runtime:
            await runtime.session("s", agent="a", metadata=SESSION).send("hello", metadata=INPUT)

    asyncio.run(main())
    shell("run", "agents.py:echo", "hello", "--as", "other", "--store", "s.db")
    lines = {line["id"]: line["metadata"] for line in shell.json("ps", "-a", "--store", "s.db")}
    assert lines == {"s": SESSION, "other": {}}
    assert shell.json("show", "s", "--store", "s.db")["session"]["metadata"] == SESSION
