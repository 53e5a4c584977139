"""A conversation that outgrows the window: the model sees less of it in time, and nothing of it is lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, pairs_are_whole
from tests.behaviour.window import (
    LONG,
    SUMMARY,
    WINDOW,
    Writer,
    agent_of,
    clipped,
    compactions,
    look,
    marks,
    size,
)
from tests.unit.turns.test_compacting_validity import CHECKS

import holdfast as hf
from holdfast.messages import ToolMessage, Usage, encode
from holdfast.models.dialect import Endpoint
from holdfast.models.registry import load_dialect
from holdfast.records import Done
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import call, check, reply, text
from holdfast.turns.compaction.plan import is_compaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from holdfast.messages import Message, ModelRequest
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.session import Session

PRICES = {"scripted:model": hf.Price(input=1_000_000, output=1_000_000)}  # a dollar a token
PICTURE = b"\x89PNG\r\n\x1a\n" + b"x" * 50


async def answer(session: Session, words: str = "go", **options: Any) -> hf.TurnOutcome:
    return await (await session.send(words, **options)).outcome(timeout=SOON)


def texts(messages: list[Message] | tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages if isinstance(message, hf.UserMessage)]


# ---- before it would not fit -----------------------------------------------------------------------------------------


async def test_no_request_of_a_long_turn_is_larger_than_its_room() -> None:
    model = Writer(120)
    agent = agent_of(model)
    assert (await hf.run(agent, "go")).text == "done"
    assert max(size(agent, request.messages) for request in model.asked) <= WINDOW * 3 // 4


async def test_a_turn_of_400_steps_comes_to_its_end_in_a_window_of_32k() -> None:
    model = Writer(400, words=LONG)
    agent = agent_of(model, compaction=hf.Compaction(window=32_000))
    outcome = await hf.run(agent, "go")
    assert (outcome.text, outcome.steps) == ("done", 401)
    assert model.summarised
    assert max(size(agent, request.messages) for request in model.asked) <= 24_000


async def test_without_a_known_window_everything_is_sent() -> None:
    model = Writer(30)
    await hf.run(agent_of(model, compaction=hf.Compaction()), "go")
    assert len(model.asked[-1].messages) == 61


async def test_with_compaction_off_everything_is_sent() -> None:
    model = Writer(30)
    await hf.run(agent_of(model, compaction=hf.Compaction(enabled=False, window=WINDOW)), "go")
    assert len(model.asked[-1].messages) == 61


@pytest.mark.parametrize(("factor", "summaries"), [(1.0, 0), (1.8, 1)])
async def test_what_the_provider_counts_is_believed(factor: float, summaries: int) -> None:
    def say(asked: ModelRequest) -> Any:
        at = asked.position or 0
        counted = Usage(input=int(factor * size(agent, asked.messages)))
        return reply(call(look, at=at, words=40) if at < 16 else text("done"), usage=counted)

    model = Writer(say=say)
    agent = agent_of(model)
    await hf.run(agent, "go")
    assert len(model.summarised) == summaries


async def test_a_counter_of_the_host_decides() -> None:
    class Heavy:
        def tokens(self, message: Message) -> int:
            return 500 if isinstance(message, ToolMessage) else 10

    model = Writer(9, words=2)
    await hf.run(agent_of(model, compaction=hf.Compaction(window=WINDOW, counter=Heavy())), "go")
    assert model.summarised


async def test_long_results_are_clipped_before_anything_is_summarised() -> None:
    model = Writer(6, words=LONG)
    await hf.run(agent_of(model), "go")
    assert clipped(model.asked[-1].messages)
    assert not model.summarised


async def test_another_model_can_write_the_summaries() -> None:
    model, other = Writer(20), Writer(name="scripted:small")
    agent = agent_of(model, compaction=hf.Compaction(window=WINDOW, model=other))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        lines = {(line.model, line.source) for line in await session.usage()}
    assert lines == {("scripted:model", "turn"), ("scripted:small", "direct")}
    assert not model.summarised


async def test_a_summary_is_extended_not_written_anew() -> None:
    model = Writer(40)
    await hf.run(agent_of(model), "go")
    first, *_, last = model.summarised
    asked = [" ".join(texts(request.messages)) for request in (first, last)]
    assert ["the key is 7" in question for question in asked] == [False, True]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("window", [WINDOW, 8_000])
async def test_very_large_results_do_not_make_one_summary_a_step(window: int, share: float) -> None:
    model = Writer(20, words=int(window * share * 0.75))
    agent = agent_of(model, compaction=hf.Compaction(window=window))
    outcome = await hf.run(agent, "go")
    assert (outcome.status, outcome.steps) == ("completed", 21)
    assert len(model.summarised) <= 3
    assert max(size(agent, request.messages) for request in model.asked) <= window * 3 // 4


async def test_a_file_that_came_just_before_room_was_made_is_sent() -> None:
    @hf.tool(read_only=True)
    async def see(at: int) -> list[Any]:
        return [f"picture {at}", hf.File(PICTURE + bytes([at]), "image/png")]

    missing: list[int] = []

    def say(asked: ModelRequest) -> Any:
        at = asked.position or 0
        wanted = {
            digest
            for said in asked.messages
            if isinstance(said, ToolMessage)
            for result in said.results
            for digest in result.files
        }
        missing.extend([at] if wanted - set(asked.files) else [])
        looks = [call(look, at=at), call(see, at=at)]
        return reply(*looks, usage=Usage(output=1)) if at < 20 else reply(text("done"), usage=Usage(output=1))

    model = Writer(say=say)
    outcome = await hf.run(agent_of(model, tools=[look, see], compaction=hf.Compaction(window=16_000)), "go")
    assert (outcome.status, missing) == ("completed", [])
    assert clipped(model.asked[-1].messages)  # room was made


# ---- what stays ------------------------------------------------------------------------------------------------------


async def test_the_input_being_answered_stays() -> None:
    model = Writer(60)
    await hf.run(agent_of(model), "Look at everything, please.")
    assert all("Look at everything, please." in texts(request.messages) for request in model.asked)


async def test_a_call_is_never_parted_from_its_result() -> None:
    model = Writer(60)
    await hf.run(agent_of(model), "go")
    assert all(pairs_are_whole(request.messages) for request in model.asked)


async def test_what_is_pinned_stays_through_turns() -> None:
    model = Writer(20)
    agent = agent_of(model)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session, "Always in French.", pin=True)
        for _ in range(3):
            await answer(session, "more")
        assert "Always in French." in texts(model.asked[-1].messages)


async def test_what_is_not_pinned_goes() -> None:
    model = Writer(20)
    agent = agent_of(model)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session, "Always in French.")
        for _ in range(3):
            await answer(session, "more")
        assert "Always in French." not in texts(model.asked[-1].messages)


async def test_what_is_pinned_stays_after_a_restart(tmp_path: Path) -> None:
    model = Writer(20)
    agent = agent_of(model)
    for words in ("Always in French.", "more", "more"):
        async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
            await answer(runtime.session("s", agent=agent), words, pin=words != "more")
    assert "Always in French." in texts(model.asked[-1].messages)


async def test_a_clipped_result_can_be_read_again() -> None:
    def say(asked: ModelRequest) -> Any:
        old = clipped(asked.messages)
        if (asked.position or 0) < 10 or not old:
            return None
        read = [m for m in asked.messages if isinstance(m, ToolMessage) and m.results[0].name == "read_result"]
        if read:
            return text(str(read[-1].results[0].content))
        return reply(call("read_result", id=old[0].partition('id="')[2].partition('"')[0]), usage=Usage(output=1))

    model = Writer(40, words=LONG, say=say)
    tools = [look, *hf.tools.tasks()]
    agent = agent_of(model, tools=tools, policy=[hf.allow("*")], compaction=hf.Compaction(window=12_000))
    assert "\nat 0: word word" in (await hf.run(agent, "go")).text


@pytest.mark.parametrize("name", CHECKS)
async def test_every_request_is_one_that_the_dialect_takes(name: Any) -> None:
    model = Writer(40)
    agent = agent_of(model)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        await answer(session, "more")
    endpoint = Endpoint(provider="here", dialect=name, base_url="https://here")
    for request in model.requests:
        CHECKS[name](json.loads(load_dialect(name).encode_request(endpoint, "m", request).body))


# ---- what is kept ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def done() -> AsyncIterator[tuple[Runtime, Session, Writer]]:
    """A session whose only turn was compacted."""
    model = Writer(30)
    agent = agent_of(model)
    async with hf.open(None, agents=[agent], prices=PRICES) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        yield runtime, session, model


async def test_the_history_keeps_everything(done: tuple[Runtime, Session, Writer]) -> None:
    _, session, _ = done
    messages = await session.history()
    assert (len(messages), marks(messages)) == (62, [])


async def test_the_context_is_what_the_model_sees(done: tuple[Runtime, Session, Writer]) -> None:
    _, session, model = done
    context = await session.context()
    assert tuple(context[:-1]) == model.asked[-1].messages
    assert marks(context) == ["summary"]


async def test_the_next_turn_goes_on_with_it(done: tuple[Runtime, Session, Writer]) -> None:
    _, session, model = done
    context = await session.context()
    await answer(session, "more")
    assert list(model.asked[31].messages[:-1]) == context


async def test_whoever_sent_the_next_turn_elsewhere_is_told_how_it_ended(tmp_path: Path) -> None:
    agent = agent_of(Writer(30))
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent]) as runtime, hf.open(path, agents=[agent], drive=False) as away:
        await answer(runtime.session("s", agent=agent))
        turn = await away.session("s", agent=agent).send("more")
        await runtime.session("s").turn(turn.id).outcome(timeout=SOON)
        assert (await turn.outcome(timeout=SOON)).text == "done"


async def test_the_record_names_the_span_that_the_summary_stands_for(done: tuple[Runtime, Session, Writer]) -> None:
    runtime, session, _ = done
    made = (await compactions(runtime.store))[0]
    assert made.plan.span is not None
    ids = [message.id for message in await session.history()]
    first, last = ids.index(made.plan.span.first), ids.index(made.plan.span.last)
    assert last - first + 1 == made.plan.span.count + len(made.plan.span.kept)
    assert made.summary == SUMMARY


async def test_a_fork_before_it_has_the_full_text(done: tuple[Runtime, Session, Writer]) -> None:
    runtime, session, _ = done
    entries = [entry async for entry in runtime.store.read_all("s")]
    at = next(e.seq for e in entries if isinstance(e.record, Done) and is_compaction(e.record.key))
    before = await session.fork(at=at - 1)
    assert await before.context() == await before.history()


async def test_a_fork_after_it_has_the_compacted_context(done: tuple[Runtime, Session, Writer]) -> None:
    _, session, _ = done
    fork = await session.fork()
    assert await fork.context() == await session.context()
    assert await fork.history() == await session.history()


async def test_a_fork_goes_on_and_is_compacted_by_itself(done: tuple[Runtime, Session, Writer]) -> None:
    runtime, session, _ = done
    fork = await session.fork()
    for _ in range(3):
        assert (await answer(fork, "more")).text == "done"
    assert len(await compactions(runtime.store, fork.id)) > 1
    assert len(await fork.history()) == 4 * 62


async def test_an_event_tells_what_was_done(done: tuple[Runtime, Session, Writer]) -> None:
    _, session, _ = done
    events = [event async for event in session.turn("t1").events()]
    first = next(event for event in events if isinstance(event, hf.events.ContextCompacted))
    assert (first.way, first.summary, first.failure) == ("summary", SUMMARY, "")
    assert first.before > first.after
    assert first.messages > 10


async def test_a_summary_is_told_apart_in_the_usage(done: tuple[Runtime, Session, Writer]) -> None:
    _, session, model = done
    line = next(line for line in await session.usage() if line.source == "direct")
    assert line.calls == len(model.summarised)
    assert line.cost == line.usage.total > 0


async def test_a_summary_is_paid_for_by_its_turn(done: tuple[Runtime, Session, Writer]) -> None:
    _, session, _ = done
    outcome = await session.turn("t1").outcome()
    lines = await session.usage()
    assert outcome.usage.total == sum(line.usage.total for line in lines)
    assert outcome.cost == sum(line.cost or 0 for line in lines)


async def test_a_summary_is_no_step(done: tuple[Runtime, Session, Writer]) -> None:
    _, session, _ = done
    assert (await session.turn("t1").outcome()).steps == 31


async def test_the_store_is_sound_and_the_turns_fit_their_records(done: tuple[Runtime, Session, Writer]) -> None:
    runtime, session, model = done
    await answer(session, "more")
    assert await check(runtime.store) == []
    found = await check_turns(runtime.store, "s", agent_of(model))
    assert [turn.verdict for turn in found] == ["ok", "ok"]


async def test_a_summary_that_is_long_is_kept_apart() -> None:
    class Heavy:
        def tokens(self, message: Message) -> int:
            return 1_000 if isinstance(message, ToolMessage) else len(encode(message)) // 20

    long = SUMMARY.replace("Look.", "word " * 9_000)
    agent = agent_of(Writer(40, summary=long), compaction=hf.Compaction(window=40_000, summary=9_000, counter=Heavy()))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await answer(session)).status == "completed"
        records = [entry.record async for entry in runtime.store.read_all("s")]
        found = [record for record in records if isinstance(record, Done) and is_compaction(record.key)]
        assert found
        assert max(len(bytes(record.value)) for record in found) < runtime.store.limits.inline_bytes
        assert any(record.blob is not None for record in found)
        assert marks(await session.context()) == ["summary"]
        assert await check(runtime.store) == []


async def test_a_secret_in_a_summary_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PASSWORD", "correct-horse-battery")
    agent = agent_of(Writer(20, summary=SUMMARY.replace("7", "correct-horse-battery")))
    async with hf.open(None, agents=[agent], secrets={"PASSWORD": "env:TEST_PASSWORD"}) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        assert marks(await session.context()) == ["summary"]
        assert await check(runtime.store, canaries=[b"correct-horse-battery"]) == []
        assert [turn.verdict for turn in await check_turns(runtime.store, "s", agent)] == ["ok"]
