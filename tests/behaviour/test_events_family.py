"""The events of a turn: which there are, in which order, and what they carry, for every way in which a turn can go."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, get_args

import msgspec
import pytest
from tests.behaviour.played import Gate, PlayedModel
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.events import EVENTS, TERMINAL, LiveEvent, RecordEvent, encode
from holdfast.messages import ModelReply, Reasoning, ReasoningChunk, StreamEnd, StreamReset, StreamStart, TextChunk
from holdfast.testing import ScriptedModel, call, cut, error, reply, stream, text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from holdfast.testing.scripted import ScriptItem

RECORDS = get_args(RecordEvent)
LIVE = get_args(LiveEvent)

BEGIN = ["TurnStarted", "InputAccepted", "MessageCommitted"]
ASKED = ["ContextBuilt", "ModelStarted"]
CALLED = ["ToolCallAnnounced", "ToolCallDelta", "ToolCallRequested", "MessageCommitted", "UsageRecorded"]
SAID = ["TextDelta", "MessageCommitted", "UsageRecorded"]
RAN = ["ToolCallStarted", "ToolCallFinished"]


@hf.tool(read_only=True)
async def look(n: int) -> int:
    """Look something up."""
    return n * 10


@hf.tool
async def ask(ctx: hf.Context) -> str:
    """Ask somebody."""
    return str(await ctx.wait("answer"))


@hf.tool(read_only=True)
async def breaks() -> None:
    """Break."""
    raise ValueError("broken")


def _agent(script: Iterable[ScriptItem], limits: hf.Limits | None = None) -> hf.Agent:
    return hf.Agent("a", model=ScriptedModel(script), tools=[look, ask, breaks], policy=[hf.allow("*")], limits=limits)


def _names(events: Iterable[hf.Event]) -> list[str]:
    return [type(event).__name__ for event in events]


async def _events_of(turn: hf.Turn) -> list[hf.Event]:
    async with asyncio.timeout(PATIENCE):
        return [event async for event in turn.events()]


async def _run(agent: hf.Agent) -> list[hf.Event]:
    async with hf.open(None, agents=[agent]) as runtime:
        return await _events_of(await runtime.session("s", agent=agent).send("hello"))


async def _record_events(session: hf.Session, last: type[hf.Event] = hf.TurnCompleted) -> list[hf.Event]:
    found: list[hf.Event] = []
    async with asyncio.timeout(PATIENCE):
        async for event in session.events():
            if isinstance(event, RECORDS):
                found.append(event)
            if isinstance(event, last):
                break
    return found


# ---- order and completeness ------------------------------------------------------------------------------------------


async def test_a_turn_of_text_shows_its_whole_family_in_order() -> None:
    found = await _run(_agent([text("hi")]))
    assert _names(found) == [*BEGIN, *ASKED, *SAID, "TurnCompleted"]


async def test_a_turn_with_a_tool_shows_the_call_its_run_and_the_answer() -> None:
    found = await _run(_agent([call("look", n=1), text("ten")]))
    assert _names(found) == [*BEGIN, *ASKED, *CALLED, *RAN, *ASKED, *SAID, "TurnCompleted"]


async def test_a_turn_whose_model_fails_shows_the_failure_and_ends() -> None:
    found = await _run(_agent([error("no such model", kind="not_found")]))
    assert _names(found) == [*BEGIN, *ASKED, "ModelFailed", "TurnFailed"]


async def test_a_stream_that_is_cut_ends_the_turn_with_an_event() -> None:
    found = await _run(_agent([cut("half a sen")]))
    assert _names(found) == [*BEGIN, *ASKED, "TextDelta", "ModelFailed", "TurnFailed"]


async def test_a_turn_that_reaches_its_limit_of_steps_says_so() -> None:
    found = await _run(_agent([call("look", n=1), text("never said")], hf.Limits(steps=1)))
    assert _names(found)[-1] == "TurnLimit"


async def test_a_turn_that_gets_nowhere_shows_the_loop_before_its_end() -> None:
    found = await _run(_agent([call("breaks")] * 9, hf.Limits(no_progress=3)))
    assert _names(found)[-2:] == ["LoopDetected", _names(found)[-1]]


async def test_a_turn_that_is_cancelled_while_it_streams_keeps_the_words_so_far() -> None:
    gate = Gate()
    agent = hf.Agent("a", model=PlayedModel(StreamStart("played:model"), TextChunk("half"), gate))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        watching = asyncio.create_task(_events_of(turn))
        await asyncio.wait_for(gate.reached.wait(), PATIENCE)
        await turn.cancel("enough")
        assert _names(await watching) == [*BEGIN, *ASKED, *SAID, "TurnCancelled"]


async def test_a_turn_that_is_cancelled_in_the_queue_shows_its_input_and_its_end() -> None:
    gate = Gate()
    agent = hf.Agent("a", model=PlayedModel(StreamStart("played:model"), gate))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await session.send("first")
        await asyncio.wait_for(gate.reached.wait(), PATIENCE)
        queued = await session.send("second")
        await queued.cancel()
        assert _names(await _events_of(queued)) == ["InputAccepted", "MessageCommitted", "TurnCancelled"]
        gate.opened.set()


async def test_the_events_of_a_queued_turn_hold_nothing_of_the_turn_before() -> None:
    agent = _agent([text("one"), text("two")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await session.send("first")
        second = await session.send("second")
        assert {event.turn for event in await _events_of(second)} == {second.id}


async def test_a_parked_turn_shows_what_it_waits_for_and_goes_on_when_it_is_answered() -> None:
    agent = _agent([call("ask"), text("thanks")])
    found: list[hf.Event] = []
    async with hf.open(None, agents=[agent]) as runtime, asyncio.timeout(PATIENCE):
        turn = await runtime.session("s", agent=agent).send("hello")
        async for event in turn.events():
            found.append(event)
            if isinstance(event, hf.TurnWaiting):
                await runtime.resolve(runtime.wait_token("s", event.waits[0]), "yes")
    parked = ["ToolCallStarted", "ApprovalRequested", "TurnWaiting", "TurnResumed"]
    assert _names(found) == [*BEGIN, *ASKED, *CALLED, *parked, *RAN, *ASKED, *SAID, "TurnCompleted"]


async def test_an_input_that_steers_shows_up_inside_the_turn() -> None:
    gate = Gate()
    done = StreamEnd(ModelReply((hf.Text("well"),), "stop", model="played:model"))
    agent = hf.Agent("a", model=PlayedModel(StreamStart("played:model"), gate, TextChunk("well"), done))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("first")
        await asyncio.wait_for(gate.reached.wait(), PATIENCE)
        await session.send("and also", steer=True)
        gate.opened.set()
        inputs = [event for event in await _events_of(turn) if isinstance(event, hf.events.InputAccepted)]
        assert [(event.turn, event.text) for event in inputs] == [(turn.id, "first"), (turn.id, "and also")]


ENDINGS: list[tuple[list[ScriptItem], hf.Limits | None]] = [
    ([text("hi")], None),
    ([[call("look", n=1), call("look", n=2)], text("hi")], None),
    ([call("nowhere"), text("hi")], None),
    ([call("look", wrong="x"), text("hi")], None),
    ([error("broken")], None),
    ([RuntimeError("a bug of the model")], None),
    ([call("look", n=1)] * 3, hf.Limits(steps=2)),
    ([call("breaks")] * 5, hf.Limits(no_progress=2)),
]


@pytest.mark.parametrize(("script", "limits"), ENDINGS)
async def test_every_turn_has_one_terminal_event_and_it_is_the_last(
    script: list[ScriptItem], limits: hf.Limits | None
) -> None:
    found = await _run(_agent(script, limits))
    assert [isinstance(event, TERMINAL) for event in found].index(True) == len(found) - 1


@pytest.mark.parametrize(("script", "limits"), ENDINGS)
async def test_every_call_that_the_model_made_has_a_result_event(
    script: list[ScriptItem], limits: hf.Limits | None
) -> None:
    found = await _run(_agent(script, limits))
    asked = [event.call for event in found if isinstance(event, hf.ToolCallRequested)]
    assert [event.call for event in found if isinstance(event, hf.ToolCallFinished)] == asked


# ---- records ---------------------------------------------------------------------------------------------------------


async def test_record_events_carry_the_sequence_of_their_record() -> None:
    agent = _agent([call("look", n=1), text("ten")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        shown = [event for event in await _events_of(turn) if isinstance(event, RECORDS)]
        times = {entry.seq: entry.record.at for entry in await runtime.store.read("s")}
        assert [event.at for event in shown] == [times[event.seq] for event in shown]


async def test_sequences_never_go_back() -> None:
    found = await _run(_agent([[call("look", n=1), call("look", n=2)], text("ten")]))
    assert all(one.seq <= two.seq for one, two in pairwise(found))


async def test_a_live_event_carries_the_sequence_of_the_record_before_it() -> None:
    last = 0
    for event in await _run(_agent([call("look", n=1), text("ten")])):
        if isinstance(event, RECORDS):
            last = event.seq
        else:
            # An intent is a record that shows no event; it may lie between.
            assert event.seq >= last


async def test_no_two_events_have_the_same_cursor() -> None:
    found = await _run(_agent([[call("look", n=1), call("look", n=2)], text("ten")]))
    assert len({event.cursor for event in found}) == len(found)


async def test_record_events_are_the_same_after_a_restart(tmp_path: Path) -> None:
    agent = _agent([call("look", n=1), text("ten")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        before = [event for event in await _events_of(turn) if isinstance(event, RECORDS)]
    async with hf.open(tmp_path / "store.db", drive=False) as runtime:
        assert await _record_events(runtime.session("s")) == before


async def test_a_reader_without_the_agent_sees_the_same_records(tmp_path: Path) -> None:
    agent = _agent([[call("look", n=1), call("breaks")], call("nowhere"), text("ten")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("hello")).outcome()
        async with hf.open(tmp_path / "store.db", drive=False) as other:
            assert await _record_events(other.session("s")) == await _record_events(session)


async def test_the_messages_that_were_committed_are_the_history() -> None:
    agent = _agent([[text("let me see"), call("look", n=1)], text("ten")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        found = await _events_of(await session.send("hello"))
        committed = [event.message for event in found if isinstance(event, hf.MessageCommitted)]
        assert committed == [said for said in await session.history() if not isinstance(said, hf.ToolMessage)]


async def test_the_results_that_were_shown_are_those_in_the_history() -> None:
    agent = _agent([[call("look", n=1), call("breaks"), call("nowhere")], text("ten")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        found = await _events_of(await session.send("hello"))
        shown = [(event.tool, event.state, event.content) for event in found if isinstance(event, hf.ToolCallFinished)]
        told = [said for said in await session.history() if isinstance(said, hf.ToolMessage)]
        assert shown == [(result.name, result.state, result.content) for said in told for result in said.results]


async def test_a_result_too_large_for_its_record_is_shown_whole() -> None:
    @hf.tool(read_only=True)
    async def large() -> str:
        """Much."""
        return "x" * 50_000

    found = await _run(
        hf.Agent("a", model=ScriptedModel([call("large"), text("hm")]), tools=[large], policy=[hf.allow("*")])
    )
    assert [event.content for event in found if isinstance(event, hf.ToolCallFinished)] == ["x" * 50_000]


async def test_the_duration_of_a_tool_is_real() -> None:
    @hf.tool(read_only=True)
    async def slow() -> None:
        """Take some time."""
        await asyncio.sleep(0.06)

    found = await _run(
        hf.Agent("a", model=ScriptedModel([call("slow"), text("hm")]), tools=[slow], policy=[hf.allow("*")])
    )
    assert next(event.ms for event in found if isinstance(event, hf.ToolCallFinished)) >= 50


async def test_calls_that_run_side_by_side_keep_their_names_apart() -> None:
    both = asyncio.Barrier(2)

    @hf.tool(read_only=True)
    async def meet(n: int) -> int:
        """Wait for the other one."""
        await both.wait()
        return n

    script = ScriptedModel([[call("meet", n=1), call("meet", n=2)], text("hm")])
    found = await _run(hf.Agent("a", model=script, tools=[meet], policy=[hf.allow("*")]))
    asked = {event.call: (event.arguments or {})["n"] for event in found if isinstance(event, hf.ToolCallRequested)}
    assert {event.call: event.content for event in found if isinstance(event, hf.ToolCallFinished)} == asked


async def test_usage_is_recorded_for_each_model_call_and_summed_up_at_the_end() -> None:
    costs = hf.Usage(input=7, output=3)
    script = [reply(call("look", n=1), usage=costs), reply(text("ten"), usage=costs)]
    found = await _run(_agent(script))
    recorded = [event.usage for event in found if isinstance(event, hf.events.UsageRecorded)]
    ended = next(event.usage for event in found if isinstance(event, hf.TurnCompleted))
    assert (recorded, ended) == ([costs, costs], hf.Usage(input=14, output=6))


async def test_a_failed_turn_says_who_can_act() -> None:
    found = await _run(_agent([error("overloaded", kind="overloaded")]))
    failed = found[-1]
    assert isinstance(failed, hf.TurnFailed)
    assert (failed.blame, failed.message) == ("model", "overloaded")


async def test_a_cancelled_turn_says_why() -> None:
    gate = Gate()
    agent = hf.Agent("a", model=PlayedModel(gate))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        await asyncio.wait_for(gate.reached.wait(), PATIENCE)
        await turn.cancel("the customer hung up")
        ended = (await _events_of(turn))[-1]
        assert isinstance(ended, hf.TurnCancelled)
        assert ended.message == "the customer hung up"


async def test_an_event_is_a_line_of_json_that_names_its_kind() -> None:
    for event in await _run(_agent([call("look", n=1), text("ten")])):
        line = encode(event)
        assert b"\n" not in line
        assert msgspec.json.decode(line)["event"] == type(event).__struct_config__.tag


def test_every_event_class_is_in_hf_events() -> None:
    assert all(getattr(hf.events, kind.__name__) is kind for kind in EVENTS)
    assert {kind.__name__ for kind in EVENTS} <= {*vars(hf.events)["__all__"]}


# ---- live ------------------------------------------------------------------------------------------------------------


async def test_deltas_add_up_to_the_text_of_the_committed_message() -> None:
    found = await _run(_agent([stream("every ", "word ", "counts")]))
    said = "".join(event.text for event in found if isinstance(event, hf.TextDelta))
    answer = [event.message for event in found if isinstance(event, hf.MessageCommitted)][-1]
    assert isinstance(answer, hf.AssistantMessage)
    assert said == "every word counts" == answer.text


async def test_deltas_are_seen_while_the_model_still_speaks() -> None:
    gate = Gate()
    done = StreamEnd(ModelReply((hf.Text("one two"),), "stop", model="played:model"))
    played = PlayedModel(StreamStart("played:model"), TextChunk("one "), gate, TextChunk("two"), done)
    agent = hf.Agent("a", model=played)
    async with hf.open(None, agents=[agent]) as runtime, asyncio.timeout(PATIENCE):
        turn = await runtime.session("s", agent=agent).send("hello")
        async for event in turn.events():
            if isinstance(event, hf.TextDelta) and not gate.opened.is_set():
                assert event.text == "one "
                gate.opened.set()
        assert gate.opened.is_set()


async def test_thoughts_and_words_are_shown_apart() -> None:
    found = await _run(_agent([[Reasoning("hm, "), text("yes")]]))
    shown = [event for event in found if isinstance(event, hf.events.ReasoningDelta | hf.TextDelta)]
    assert [(type(event), event.text) for event in shown] == [(hf.events.ReasoningDelta, "hm, "), (hf.TextDelta, "yes")]


async def test_what_stands_before_a_reset_does_not_count() -> None:
    done = StreamEnd(ModelReply((hf.Text("the right answer"),), "stop", model="played:model"))
    played = PlayedModel(
        StreamStart("played:model"),
        ReasoningChunk("lost thought"),
        TextChunk("the wr"),
        StreamReset("connection lost"),
        TextChunk("the right "),
        TextChunk("answer"),
        done,
    )
    found = await _run(hf.Agent("a", model=played))
    reset = next(n for n, event in enumerate(found) if isinstance(event, hf.events.AttemptReset))
    assert "".join(event.text for event in found[reset:] if isinstance(event, hf.TextDelta)) == "the right answer"


async def test_a_reset_says_why() -> None:
    done = StreamEnd(ModelReply((hf.Text("b"),), "stop", model="played:model"))
    played = PlayedModel(TextChunk("a"), StreamReset("connection lost"), TextChunk("b"), done)
    found = await _run(hf.Agent("a", model=played))
    assert [event.reason for event in found if isinstance(event, hf.events.AttemptReset)] == ["connection lost"]


async def test_words_before_and_after_a_reset_are_never_joined() -> None:
    done = StreamEnd(ModelReply((hf.Text("b"),), "stop", model="played:model"))
    played = PlayedModel(TextChunk("a"), StreamReset("connection lost"), TextChunk("b"), done)
    found = await _run(hf.Agent("a", model=played))
    assert [event.text for event in found if isinstance(event, hf.TextDelta)] == ["a", "b"]


async def test_the_pieces_of_a_call_add_up_to_its_arguments() -> None:
    found = await _run(_agent([call("look", n=12), text("hm")]))
    pieces = "".join(event.arguments for event in found if isinstance(event, hf.events.ToolCallDelta))
    asked = next(event for event in found if isinstance(event, hf.ToolCallRequested))
    assert msgspec.json.decode(pieces) == asked.arguments


async def test_progress_of_a_tool_is_shown_between_its_start_and_its_end() -> None:
    @hf.tool(read_only=True)
    async def long(ctx: hf.Context) -> None:
        """Take long."""
        ctx.progress("half way", fraction=0.5)

    found = await _run(
        hf.Agent("a", model=ScriptedModel([call("long"), text("hm")]), tools=[long], policy=[hf.allow("*")])
    )
    inner = [event for event in found if type(event).__name__.startswith("ToolCall")][-3:]
    assert _names(inner) == ["ToolCallStarted", "ToolCallProgress", "ToolCallFinished"]


async def test_progress_says_how_far_in_the_words_of_the_tool() -> None:
    @hf.tool(read_only=True)
    async def long(ctx: hf.Context) -> None:
        """Take long."""
        ctx.progress("half way", fraction=0.5)

    found = await _run(
        hf.Agent("a", model=ScriptedModel([call("long"), text("hm")]), tools=[long], policy=[hf.allow("*")])
    )
    shown = next(event for event in found if isinstance(event, hf.events.ToolCallProgress))
    assert (shown.tool, shown.note, shown.fraction) == ("long", "half way", 0.5)


async def test_every_event_is_either_a_record_or_live() -> None:
    assert set(RECORDS) | set(LIVE) == set(EVENTS)
    assert not set(RECORDS) & set(LIVE)
