"""Compaction that somebody asks for: `session.compact()`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, pairs_are_whole
from tests.behaviour.window import SUMMARY, Writer, agent_of, compactions, look, marks

import holdfast as hf
from holdfast.errors import JournalMissing, KeyConflict
from holdfast.messages import Usage
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import call, check, error, reply, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.messages import ModelRequest
    from holdfast.runtime.session import Session

LARGE = hf.Compaction(window=100_000, summary=300)


def writer(summary: Any = SUMMARY) -> Writer:
    return Writer(8, summary=summary)


async def compacted(session: Session, **options: Any) -> hf.TurnOutcome:
    return await (await session.compact(**options)).outcome(timeout=SOON)


async def test_a_conversation_is_compacted_when_somebody_asks_for_it() -> None:
    model = writer()
    agent = agent_of(model, compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        session = runtime.session("s")
        before = await session.history()
        outcome = await compacted(session)
        assert (outcome.status, outcome.text, outcome.steps) == ("completed", "", 0)
        assert await session.history() == before
        assert marks(await session.context()) == ["summary"]
        (made,) = await compactions(runtime.store)
        assert (made.plan.why, made.plan.way, made.summary) == ("asked", "summary", SUMMARY)
        assert await check(runtime.store) == []
        assert [turn.verdict for turn in await check_turns(runtime.store, "s", agent)] == ["ok", "ok"]


async def test_the_next_turn_goes_on_with_the_summary() -> None:
    model = writer()
    agent = agent_of(model, compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        await compacted(runtime.session("s"))
        assert (await runtime.run(agent, "more", session="s")).ok
    first = model.asked[9]
    assert marks(first.messages) == ["summary"]
    assert "more" in str(first.messages[-1])
    assert all(pairs_are_whole(request.messages) for request in model.asked)


async def test_its_events_tell_of_no_message() -> None:
    agent = agent_of(writer(), compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        turn = await runtime.session("s").compact()
        kinds = [type(event) for event in [event async for event in turn.events()]]
    assert hf.events.ContextCompacted in kinds
    assert hf.MessageCommitted not in kinds


async def test_what_it_took_is_part_of_its_outcome_and_of_the_session() -> None:
    agent = agent_of(writer(reply(text(SUMMARY), usage=Usage(input=70, output=30))), compaction=LARGE)
    prices = {"scripted:model": hf.Price(input=1_000_000, output=1_000_000)}
    async with hf.open(None, agents=[agent], prices=prices) as runtime:
        await runtime.run(agent, "go", session="s")
        outcome = await compacted(runtime.session("s"))
        lines = {line.source: line for line in await runtime.session("s").usage()}
    assert (outcome.usage, outcome.cost) == (Usage(input=70, output=30), 100.0)
    assert lines["direct"].usage == outcome.usage


async def test_it_survives_a_restart(tmp_path: Path) -> None:
    agent = agent_of(writer(), compaction=LARGE)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        await compacted(runtime.session("s"))
        context = await runtime.session("s").context()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert await runtime.session("s").context() == context
        assert await check(runtime.store) == []


async def test_a_request_that_nobody_drove_is_driven_by_the_next_process(tmp_path: Path) -> None:
    agent = agent_of(writer(), compaction=LARGE)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
    async with hf.open(tmp_path / "s.db", agents=[agent], drive=False) as runtime:
        turn = await runtime.session("s").compact()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert (await runtime.session("s").turn(turn.id).outcome(timeout=SOON)).ok
        assert marks(await runtime.session("s").context()) == ["summary"]


@pytest.mark.parametrize("summary", ["All went well.", error("no", kind="bad_request")], ids=["refused", "error"])
async def test_without_a_summary_it_fails_and_nothing_changes(summary: Any) -> None:
    agent = agent_of(writer(summary), compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        session = runtime.session("s")
        before = await session.context()
        outcome = await compacted(session)
        assert (outcome.status, outcome.code) == ("failed", "no_summary")
        assert await session.context() == before
        assert await compactions(runtime.store) == []
        assert (await runtime.run(agent, "more", session="s")).ok
        assert await check(runtime.store) == []
        assert [turn.verdict for turn in await check_turns(runtime.store, "s", agent)] == ["ok", "ok", "ok"]


async def test_what_a_summary_took_that_could_not_be_had_counts() -> None:
    agent = agent_of(writer(reply(text("no"), usage=Usage(input=7, output=2))), compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        outcome = await compacted(runtime.session("s"))
        lines = await runtime.session("s").usage()
        assert await check(runtime.store) == []
    assert outcome.usage == Usage(input=14, output=4)  # it was repaired once
    assert sum(line.usage.input for line in lines) == 14


async def test_where_there_is_nothing_to_take_away_nobody_is_asked() -> None:
    model = Writer(0)
    agent = agent_of(model, compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        assert (await compacted(runtime.session("s"))).ok
        assert await compactions(runtime.store) == []
    assert model.summarised == []


async def test_the_same_key_is_the_same_request() -> None:
    model = writer()
    agent = agent_of(model, compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        session = runtime.session("s", agent=agent)
        first = await session.compact(key="k")
        await first.outcome(timeout=SOON)
        assert (await session.compact(key="k")).id == first.id
        with pytest.raises(KeyConflict):
            await session.send("hello", key="k")
    assert len(model.summarised) == 1


async def test_it_waits_for_the_turn_that_runs() -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow(asked: ModelRequest) -> Any:
        if asked.position != 8:
            return reply(call(look, at=asked.position or 0), usage=Usage(output=5))
        reached.set()
        await go_on.wait()
        return text("done")

    agent = agent_of(Writer(8, say=slow), compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        async with asyncio.timeout(SOON):
            await reached.wait()
        asked = await runtime.session("s").compact()
        assert await compactions(runtime.store) == []
        go_on.set()
        assert (await turn.outcome(timeout=SOON)).text == "done"
        assert (await asked.outcome(timeout=SOON)).ok
        assert len(await compactions(runtime.store)) == 1


async def test_a_session_that_nobody_has_begun_can_not_be_compacted() -> None:
    agent = agent_of(writer(), compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        with pytest.raises(JournalMissing):
            await runtime.session("new", agent=agent).compact()


async def test_it_can_be_cancelled() -> None:
    reached = asyncio.Event()

    async def hang(_: ModelRequest) -> Any:
        reached.set()
        await asyncio.Event().wait()

    agent = agent_of(writer(hang), compaction=LARGE)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        turn = await runtime.session("s").compact()
        async with asyncio.timeout(SOON):
            await reached.wait()
        await turn.cancel("enough")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        assert await check(runtime.store) == []
