"""The history is what the model gets: the same messages with the same ids, in flight and after a restart."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, asked

import holdfast as hf
from holdfast.messages import Message, Reasoning, ToolMessage, Usage, encode
from holdfast.testing import ScriptedModel, call, cut, error, refusal, reply, stream, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.testing.scripted import ScriptItem


@hf.tool(read_only=True)
async def find(order: int = 1) -> dict[str, Any]:
    """Find an order."""
    return {"order": order, "name": "Bücher", "price": 1.50}


@hf.tool
async def fails() -> str:
    """Fail."""
    raise ValueError("no")


@hf.tool(read_only=True)
async def huge() -> str:
    """Give a lot."""
    return "x" * 100_000


def agent_of(script: Any, **options: Any) -> hf.Agent:
    return hf.Agent("agent", model=ScriptedModel(script), tools=[find, fails, huge], policy=[hf.allow("*")], **options)


def as_bytes(messages: list[Message] | tuple[Message, ...]) -> list[bytes]:
    return [encode(message) for message in messages]


TURNS: dict[str, list[ScriptItem]] = {
    "an answer": [text("Hello.")],
    "a streamed answer": [stream("Hel", "lo", ".")],
    "thoughts": [reply(Reasoning("hm", replay={"signature": "abc"}, route="x"), "Hello.")],
    "a call": [call("find", order=7), text("Done.")],
    "parallel calls": [["Looking.", call("find"), call("fails"), call("nope")], text("Done.")],
    "a huge result": [call("huge"), text("Done.")],
    "a huge answer": [text("y" * 100_000)],
    "an empty reply": [reply(), text("Done.")],
    "a cut answer": [reply("Once upon ", finish="output_limit"), text("a time.")],
    "a refusal": [refusal("I won't.")],
    "a filtered reply": [reply("Well", finish="content_filter")],
    "filtered calls": [reply(call("find"), finish="content_filter")],
    "a failed model": [call("find"), error("down")],
    "a cut stream": [cut("half")],
    "a script that is over": [call("find")],
}


@pytest.mark.parametrize("name", TURNS)
async def test_the_history_is_what_the_model_gets_next(tmp_path: Path, name: str) -> None:
    rest = [] if name == "a script that is over" else [text("next")]
    model = ScriptedModel([*TURNS[name], *rest])
    agent = hf.Agent("agent", model=model, tools=[find, fails, huge], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        history = await session.history()
        await (await session.send("and now?")).outcome(timeout=SOON)
        assert as_bytes(model.requests[-1].messages[:-1]) == as_bytes(history)


@pytest.mark.parametrize("name", TURNS)
async def test_the_history_is_the_same_after_a_restart(tmp_path: Path, name: str) -> None:
    agent = agent_of(TURNS[name])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        before = as_bytes(await session.history())
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert as_bytes(await runtime.session("s").history()) == before


async def test_what_was_sent_before_is_sent_again_byte_for_byte() -> None:
    script: list[ScriptItem] = [call("find"), [call("find"), call("fails")], text("one"), call("find"), text("two")]
    agent = agent_of(script)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        for _ in range(2):
            await (await session.send("go")).outcome(timeout=SOON)
        sent = [as_bytes(request.messages) for request in asked(agent)]
        assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(sent))


async def test_ids_tell_the_turn_and_the_place_in_it() -> None:
    agent = agent_of([call("find"), text("one"), text("two")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        for _ in range(2):
            await (await session.send("go")).outcome(timeout=SOON)
        ids = [message.id for message in await session.history()]
        assert ids == ["t1.i1", "t1.1", "t1.2", "t1.4", "t2.i2", "t2.1"]


async def history_of(session: hf.Session, count: int) -> list[bytes]:
    """The history, as soon as it has `count` messages: it shows what is durable, which the turn need not wait for."""
    async with asyncio.timeout(SOON):
        while len(history := await session.history()) < count:  # what is awaited is in the store
            await asyncio.sleep(0.001)
    return as_bytes(history)


async def test_the_turn_under_way_is_part_of_the_history() -> None:
    seen: list[bytes] = []
    sessions: list[hf.Session] = []

    @hf.tool(read_only=True)
    async def reads() -> str:
        seen.extend(await history_of(sessions[0], 2))
        return "read"

    model = ScriptedModel([call("reads"), text("Done.")])
    agent = hf.Agent("agent", model=model, tools=[reads], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        sessions.append(runtime.session("s", agent=agent))
        await (await sessions[0].send("go")).outcome(timeout=SOON)
        assert seen == as_bytes(model.requests[-1].messages[:2])


async def test_while_the_model_is_asked_the_history_is_what_it_was_asked() -> None:
    sessions: list[hf.Session] = []
    same: list[bool] = []

    async def compare(request: hf.ModelRequest) -> Any:
        same.append(as_bytes(request.messages) == await history_of(sessions[0], len(request.messages)))
        return text("Done.") if isinstance(request.messages[-1], ToolMessage) else [call("find"), call("fails")]

    agent = agent_of(compare)
    async with hf.open(None, agents=[agent]) as runtime:
        sessions.append(runtime.session("s", agent=agent))
        for _ in range(2):
            await (await sessions[0].send("go")).outcome(timeout=SOON)
    assert same == [True] * 4


async def test_a_resumed_turn_asks_with_the_same_messages(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def stuck(request: hf.ModelRequest) -> Any:
        reached.set()
        await asyncio.Event().wait()

    first = agent_of([["Looking.", call("find"), call("fails")], call("huge"), stuck])
    async with hf.open(tmp_path / "s.db", agents=[first]) as runtime:
        turn = await runtime.session("s", agent=first).send("go")
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)
    second = agent_of([text("unused"), text("unused"), text("Done.")])
    async with hf.open(tmp_path / "s.db", agents=[second]) as runtime:
        assert (await runtime.session("s").turn(turn.id).outcome(timeout=SOON)).text == "Done."
    assert as_bytes(asked(second)[0].messages) == as_bytes(asked(first)[-1].messages)


async def test_the_history_at_a_record_is_what_it_was_then() -> None:
    agent = agent_of([text("one"), text("two")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        then, at = await session.history(), (await runtime.store.journal("s")).head
        await (await session.send("more")).outcome(timeout=SOON)
        assert await session.history(at=at) == then


async def test_the_history_at_every_record_is_a_beginning_of_the_whole() -> None:
    agent = agent_of([[call("find"), call("fails")], text("one"), text("two")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        for _ in range(2):
            await (await session.send("go")).outcome(timeout=SOON)
        whole = await session.history()
        for at in range(1, (await runtime.store.journal("s")).head + 1):
            part = await session.history(at=at)
            assert part == whole[: len(part)]


async def test_a_session_in_which_nothing_was_said_has_no_history(tmp_path: Path) -> None:
    agent = agent_of([text("one")])
    async with hf.open(tmp_path / "s.db", agents=[agent], drive=False) as runtime:
        session = runtime.session("s", agent=agent)
        await session.send("queued")
        assert (await session.history(), await session.usage()) == ([], [])


@pytest.mark.parametrize("at", [-1, "1", 1.5, True, b"", float("nan")], ids=str)
async def test_a_place_in_the_history_that_can_not_be_meant_is_refused(at: Any) -> None:
    agent = agent_of([text("one")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        with pytest.raises(hf.UsageError):
            await session.history(at=at)


# ---- usage -----------------------------------------------------------------------------------------------------------


async def test_usage_is_told_by_model() -> None:
    small, large = Usage(input=10, output=1), Usage(input=100, output=10, cache_read=5)
    script: list[ScriptItem] = [
        hf.ModelReply((hf.ToolCall("c1", "find", {}),), "tool_calls", small, "small"),
        hf.ModelReply((hf.Text("Done."),), "stop", large, "large"),
        hf.ModelReply((hf.Text("Done."),), "stop", large, "large"),
    ]
    agent = agent_of(script)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        for _ in range(2):
            await (await session.send("go")).outcome(timeout=SOON)
        lines = {line.model: (line.calls, line.usage) for line in await session.usage()}
        assert lines == {"small": (1, small), "large": (2, large + large)}


async def test_usage_is_the_sum_of_the_turns() -> None:
    agent = agent_of([call("find"), text("one"), call("fails"), text("two")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        outcomes = [await (await session.send("go")).outcome(timeout=SOON) for _ in range(2)]
        (line,) = await session.usage()
        assert (line.calls, line.source, line.usage) == (4, "turn", outcomes[0].usage + outcomes[1].usage)


async def test_usage_is_not_counted_twice_after_a_restart(tmp_path: Path) -> None:
    agent = agent_of([call("find"), text("one")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        outcome = await (await runtime.session("s", agent=agent).send("go")).outcome(timeout=SOON)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        (line,) = await runtime.session("s").usage()
        assert line.usage == outcome.usage == (await runtime.session("s").turn("t1").outcome(timeout=SOON)).usage


async def test_an_outcome_read_later_from_elsewhere_is_the_same(tmp_path: Path) -> None:
    agent = agent_of([call("find"), reply("Once ", finish="output_limit"), text("more.")])
    async with (
        hf.open(tmp_path / "s.db", agents=[agent]) as here,
        hf.open(tmp_path / "s.db", drive=False) as there,
    ):
        outcome = await (await here.session("s", agent=agent).send("go")).outcome(timeout=SOON)
        assert await there.session("s").turn("t1").outcome(timeout=SOON) == outcome
