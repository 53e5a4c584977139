"""Going on behind a cursor: nothing twice, no record missing, and a Gap wherever live events are gone."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, get_args

import pytest
from tests.behaviour.played import Gate, PlayedModel
from tests.behaviour.talk import at_rest
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.events import TERMINAL, RecordEvent
from holdfast.messages import CallChunk, CallStart, ModelReply, StreamEnd, StreamStart, TextChunk
from holdfast.runtime.changes import MAX_ENDED_DRIVES
from holdfast.testing import ManualClock, ScriptedModel, call, error, stream, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from holdfast.testing.scripted import ScriptItem

RECORDS = get_args(RecordEvent)


def _done(words: str) -> StreamEnd:
    return StreamEnd(ModelReply((hf.Text(words),), "stop", model="played:model"))


@hf.tool(read_only=True)
async def look(ctx: hf.Context, n: int) -> int:
    """Look something up."""
    for part in range(n):
        ctx.progress(str(part))
        await asyncio.sleep(0)
    return n * 10


def _agent(script: Iterable[ScriptItem]) -> hf.Agent:
    return hf.Agent("a", model=ScriptedModel(script), tools=[look], policy=[hf.allow("*")])


def _records(events: Iterable[hf.Event]) -> list[hf.Event]:
    return [event for event in events if isinstance(event, RECORDS)]


async def _first(events: AsyncIterator[hf.Event], count: int) -> list[hf.Event]:
    """That many events, as soon as they are there."""
    found: list[hf.Event] = []
    if count == 0:
        return found
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def _until(events: AsyncIterator[hf.Event], enough: Callable[[hf.Event], bool]) -> list[hf.Event]:
    """Events up to the first that is `enough`."""
    found: list[hf.Event] = []
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            found.append(event)
            if enough(event):
                break
    return found


def _ends(event: hf.Event) -> bool:
    return isinstance(event, TERMINAL)


async def _finished(runtime: hf.Runtime, agent: hf.Agent) -> list[hf.Event]:
    """All events of a turn that is over, drive included."""
    turn = await runtime.session("s", agent=agent).send("hello")
    found = await _until(turn.events(), _ends)
    await at_rest(runtime)
    return found


# ---- behind every event ----------------------------------------------------------------------------------------------


async def test_behind_every_event_of_a_turn_that_runs_comes_exactly_the_rest() -> None:
    gate = Gate()
    played = PlayedModel(StreamStart("played:model"), TextChunk("one "), gate, TextChunk("two"), _done("one two"))
    agent = hf.Agent("a", model=played)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await session.send("hello")
        whole = await _until(session.events(), lambda event: isinstance(event, hf.TextDelta))
        for n, event in enumerate(whole[:-1], 1):
            assert await _first(session.events(after=event.cursor), len(whole) - n) == whole[n:]
        gate.opened.set()


async def test_behind_every_event_of_a_turn_that_is_over_come_the_remaining_records() -> None:
    agent = _agent([call("look", n=2), stream("ten ", "it is")])
    async with hf.open(None, agents=[agent]) as runtime:
        whole = await _finished(runtime, agent)
        session = runtime.session("s", agent=agent)
        for n, event in enumerate(whole[:-1], 1):
            rest = await _until(session.events(after=event.cursor), _ends)
            assert _records(rest) == _records(whole[n:])


async def test_behind_a_live_event_of_a_turn_that_has_just_ended_comes_exactly_the_rest() -> None:
    agent = _agent([call("look", n=2), stream("ten ", "it is")])
    async with hf.open(None, agents=[agent]) as runtime:
        whole = await _finished(runtime, agent)
        session = runtime.session("s", agent=agent)
        for n, event in enumerate(whole[:-1], 1):
            assert await _until(session.events(after=event.cursor), _ends) == whole[n:]


async def test_an_observer_that_comes_when_a_quick_turn_has_ended_sees_its_live_events() -> None:
    agent = _agent([stream("ten ", "it is")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        await turn.outcome()
        await at_rest(runtime)
        found = await _until(turn.events(), _ends)
        assert "".join(event.text for event in found if isinstance(event, hf.TextDelta)) == "ten it is"


async def test_behind_a_live_event_of_a_turn_that_ended_many_turns_ago_comes_a_gap_first() -> None:
    agent = _agent([call("look", n=2), stream("ten ", "it is")])
    other = hf.Agent("other", model=ScriptedModel([text("yes")] * MAX_ENDED_DRIVES))
    async with hf.open(None, agents=[agent, other]) as runtime:
        whole = await _finished(runtime, agent)
        for n in range(MAX_ENDED_DRIVES):
            await (await runtime.session(f"other-{n}", agent=other).send("?")).outcome()
        await at_rest(runtime)
        session = runtime.session("s", agent=agent)
        live = [event for event in whole if not isinstance(event, RECORDS)]
        assert live
        for event in live:
            assert isinstance((await _first(session.events(after=event.cursor), 1))[0], hf.events.Gap)


async def test_behind_the_last_event_of_a_turn_its_stream_is_over() -> None:
    agent = _agent([text("hi")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        whole = await _until(turn.events(), _ends)
        async with asyncio.timeout(PATIENCE):
            assert [event async for event in turn.events(after=whole[-1].cursor)] == []


@pytest.mark.parametrize("steer", [False, True], ids=["found by its id", "of a steering input"])
async def test_behind_the_last_event_of_a_turn_that_must_be_looked_up_its_stream_is_over(*, steer: bool) -> None:
    agent = _agent([text("hi")])
    async with hf.open(None, agents=[agent]) as runtime, asyncio.timeout(PATIENCE):
        session = runtime.session("s", agent=agent)
        sent = await session.send("hello", steer=steer)
        await sent.outcome()
        turn = sent if steer else session.turn(sent.id)
        whole = await _until(turn.events(), _ends)
        assert [event async for event in turn.events(after=whole[-1].cursor)] == []


async def test_behind_an_event_of_a_turn_its_stream_gives_the_rest_and_ends() -> None:
    agent = _agent([text("hi"), text("again")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("hello")
        whole = _records(await _until(turn.events(), _ends))
        await (await session.send("more")).outcome()
        for n, event in enumerate(whole[:-1], 1):
            async with asyncio.timeout(PATIENCE):
                assert [rest async for rest in turn.events(after=event.cursor)] == whole[n:]


async def test_the_stream_of_a_turn_ends_with_its_terminal_event_whoever_comes_next() -> None:
    agent = _agent([text("one"), text("two")])
    async with hf.open(None, agents=[agent]) as runtime, asyncio.timeout(PATIENCE):
        session = runtime.session("s", agent=agent)
        first, second = await session.send("first"), await session.send("second")
        await second.outcome()
        found = [event async for event in first.events()]
        assert [(type(event), event.turn) for event in found[-1:]] == [(hf.TurnCompleted, first.id)]


async def test_a_number_stands_for_the_record_with_that_sequence() -> None:
    agent = _agent([text("hi")])
    async with hf.open(None, agents=[agent]) as runtime:
        whole = _records(await _finished(runtime, agent))
        rest = await _until(runtime.session("s").events(after=whole[1].seq), _ends)
        assert _records(rest) == [event for event in whole if event.seq > whole[1].seq]


async def test_the_cursor_of_a_gap_leads_to_the_records_behind_it() -> None:
    agent = _agent([call("look", n=2), text("hi")])
    async with hf.open(None, agents=[agent]) as runtime:
        whole = await _finished(runtime, agent)
        session = runtime.session("s", agent=agent)
        live = next(n for n, event in enumerate(whole) if isinstance(event, hf.events.ToolCallProgress))
        gap = (await _first(session.events(after=whole[live].cursor), 1))[0]
        rest = await _until(session.events(after=gap.cursor), _ends)
        assert _records(rest) == _records(whole[live:])


# ---- bad cursors -----------------------------------------------------------------------------------------------------

MALFORMED: list[object] = [
    "",
    "x",
    "-1",
    "1.",
    ".1",
    "1.0.0",
    "1 ",
    "1\n",
    "١",  # noqa: RUF001  a digit, but not one of ours
    "1~",
    "1~zzzzzzzz.1",
    "1~0123abcd",
    "9" * 40,
    -1,
    True,
    1.5,
    b"1",
    ["1"],
]


@pytest.mark.parametrize("cursor", MALFORMED)
async def test_what_is_no_cursor_is_refused_by_a_session_before_the_first_event(cursor: object) -> None:
    agent = _agent([text("hi")])
    async with hf.open(None, agents=[agent]) as runtime:
        await _finished(runtime, agent)
        with pytest.raises(hf.errors.CursorInvalid):
            runtime.session("s").events(after=cursor)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("cursor", MALFORMED)
async def test_what_is_no_cursor_is_refused_by_a_turn_before_the_first_event(cursor: object) -> None:
    agent = _agent([text("hi")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        with pytest.raises(hf.errors.CursorInvalid):
            turn.events(after=cursor)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("cursor", [*MALFORMED, "p", "px", "p-1", "p1.", "p1~~", "p1~0123abcd.1"])
async def test_what_is_no_cursor_is_refused_by_a_runtime(cursor: object) -> None:
    agent = _agent([text("hi")])
    async with hf.open(None, agents=[agent]) as runtime:
        await _finished(runtime, agent)
        with pytest.raises(hf.errors.CursorInvalid):
            await _first(runtime.events(after=cursor), 1)  # pyright: ignore[reportArgumentType]


async def test_a_cursor_of_the_runtime_is_refused_by_a_session() -> None:
    agent = _agent([text("hi")])
    async with hf.open(None, agents=[agent]) as runtime:
        await _finished(runtime, agent)
        foreign = (await _first(runtime.events(after=0), 2))[-1]
        with pytest.raises(hf.errors.CursorInvalid):
            await _first(runtime.session("s").events(after=foreign.cursor), 1)


async def test_a_cursor_of_a_session_is_refused_by_the_runtime() -> None:
    agent = _agent([text("hi")])
    async with hf.open(None, agents=[agent]) as runtime:
        whole = await _finished(runtime, agent)
        with pytest.raises(hf.errors.CursorInvalid):
            await _first(runtime.events(after=whole[0].cursor), 1)


async def test_a_cursor_of_another_session_is_refused() -> None:
    agent = _agent([text("hi"), text("more")])
    async with hf.open(None, agents=[agent]) as runtime:
        whole = _records(await _finished(runtime, agent))
        other = runtime.session("other", agent=agent)
        await (await other.send("hello")).outcome()
        with pytest.raises(hf.errors.CursorInvalid):
            other.events(after=whole[1].cursor)


async def test_a_cursor_behind_the_end_of_the_journal_is_refused() -> None:
    agent = _agent([text("hi"), text("more")])
    async with hf.open(None, agents=[agent]) as runtime:
        await _finished(runtime, agent)
        with pytest.raises(hf.errors.CursorInvalid):
            await _first(runtime.session("s").events(after=1_000), 1)


# ---- several observers, slow ones ------------------------------------------------------------------------------------


async def test_two_observers_see_the_same_events() -> None:
    agent = _agent([call("look", n=3), stream("ten ", "it is")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        watching = [asyncio.create_task(_until(session.events(), _ends)) for _ in range(2)]
        await session.send("hello")
        one, two = await asyncio.gather(*watching)
        assert one == two


async def test_an_observer_that_comes_in_the_middle_sees_what_the_first_has_seen() -> None:
    gate = Gate()
    played = PlayedModel(StreamStart("played:model"), TextChunk("one "), gate, TextChunk("two"), _done("one two"))
    agent = hf.Agent("a", model=played)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        early = asyncio.create_task(_until(session.events(), _ends))
        await session.send("hello")
        await gate.wait()
        late = asyncio.create_task(_until(session.events(), _ends))
        await asyncio.sleep(0)
        gate.opened.set()
        assert await late == await early


async def test_an_observer_that_does_not_read_during_the_turn_loses_no_record() -> None:
    agent = _agent([call("look", n=3), stream("ten ", "it is")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("hello")
        events = session.events()
        first = await _first(events, 1)
        await turn.outcome()
        slow = first + await _until(events, _ends)
        assert _records(slow) == _records(await _until(session.events(), _ends))


async def test_an_observer_that_does_not_read_never_slows_the_turn() -> None:
    agent = _agent([call("look", n=5_000), text("hi")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("hello")
        stalled = [session.events() for _ in range(20)]
        for events in stalled:
            await _first(events, 1)
        assert (await turn.outcome(timeout=PATIENCE)).ok


async def test_an_observer_that_came_before_the_turn_and_reads_after_it_has_its_live_events_or_a_gap() -> None:
    agent = _agent([text("one"), stream("ten ", "it is")])
    async with hf.open(None, agents=[agent]) as runtime:
        await _finished(runtime, agent)
        session = runtime.session("s", agent=agent)
        events = session.events()
        await _until(events, _ends)  # from here on it does not read
        turn = await session.send("more")
        await turn.outcome()
        await at_rest(runtime)
        found = await _until(events, _ends)
        assert any(isinstance(event, hf.TextDelta | hf.events.Gap) for event in found)


async def test_an_observer_that_waits_sees_the_live_events_of_every_short_turn_or_a_gap(tmp_path: Path) -> None:
    agent = _agent([text(f"answer {n}") for n in range(20)])
    found: list[hf.Event] = []
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        events = session.events()
        for n in range(20):
            turn = await session.send(f"question {n}")
            found = await _until(events, lambda event, turn=turn: _ends(event) and event.turn == turn.id)
            assert any(isinstance(event, hf.TextDelta | hf.events.Gap) for event in found)


async def test_a_delta_that_came_while_the_observer_was_busy_is_not_held_back() -> None:
    before, after = Gate(), Gate()
    played = PlayedModel(TextChunk("one "), before, TextChunk("two"), after, _done("one two"))
    agent = hf.Agent("a", model=played)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        said = ""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                async for event in turn.events():
                    if isinstance(event, hf.TextDelta):
                        said += event.text
                    if said == "one two":
                        break
                    if said:
                        before.opened.set()
                        await after.wait()
        after.opened.set()
        assert said == "one two"


async def _pieces_read_late(*played: hf.StreamEvent) -> list[tuple[str, str]]:
    """The pieces of arguments that an observer sees who reads them only when all have come."""
    gate, over = Gate(), Gate()
    agent = hf.Agent("a", model=PlayedModel(gate, *played, over, _done("ok")))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        events = turn.events()
        await _until(events, lambda event: isinstance(event, hf.events.ModelStarted))
        gate.opened.set()
        await over.wait()
        over.opened.set()
        found = await _until(events, _ends)
    return [(event.call_id, event.arguments) for event in found if isinstance(event, hf.events.ToolCallDelta)]


async def test_pieces_of_arguments_that_nobody_has_read_are_joined() -> None:
    pieces = [CallChunk("c", piece) for piece in ('{"n":', " 1", "}")]
    assert await _pieces_read_late(CallStart("c", "look"), *pieces) == [("c", '{"n": 1}')]


async def test_pieces_of_the_arguments_of_two_calls_are_not_joined() -> None:
    assert await _pieces_read_late(CallChunk("c", "{}"), CallChunk("d", "{}")) == [("c", "{}"), ("d", "{}")]


async def test_more_pieces_of_arguments_than_live_events_are_kept_are_no_gap() -> None:
    found = await _pieces_read_late(*[CallChunk("c", "x") for _ in range(3_000)])
    assert "".join(piece for _, piece in found) == "x" * 3_000


# ---- gaps ------------------------------------------------------------------------------------------------------------


def _busy(count: int, done: asyncio.Event, go_on: asyncio.Event) -> hf.Agent:
    """An agent whose tool shows its progress once, and then more often than anybody keeps."""

    @hf.tool(read_only=True)
    async def busy(ctx: hf.Context) -> None:
        """Be busy."""
        ctx.progress("begun")
        await go_on.wait()
        for n in range(count):
            ctx.progress(str(n))
        done.set()

    return hf.Agent("a", model=ScriptedModel([call("busy"), text("done")]), tools=[busy], policy=[hf.allow("*")])


def _begun(event: hf.Event) -> bool:
    return isinstance(event, hf.events.ToolCallProgress) and event.note == "begun"


async def test_more_missed_live_events_than_are_kept_are_a_gap() -> None:
    done, go_on = asyncio.Event(), asyncio.Event()
    agent = _busy(3_000, done, go_on)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        events = turn.events()
        await _until(events, _begun)
        go_on.set()
        await asyncio.wait_for(done.wait(), PATIENCE)
        rest = await _until(events, _ends)
        assert isinstance(rest[0], hf.events.Gap)


async def test_behind_a_gap_come_the_newest_live_events_in_order() -> None:
    done, go_on = asyncio.Event(), asyncio.Event()
    agent = _busy(3_000, done, go_on)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        events = turn.events()
        await _until(events, _begun)
        go_on.set()
        await asyncio.wait_for(done.wait(), PATIENCE)
        rest = await _until(events, _ends)
        notes = [int(event.note or "") for event in rest if isinstance(event, hf.events.ToolCallProgress)]
        assert notes == list(range(notes[0], 3_000))
        assert 0 < len(notes) <= 2_048


async def test_as_many_missed_live_events_as_are_kept_are_no_gap() -> None:
    done, go_on = asyncio.Event(), asyncio.Event()
    agent = _busy(2_000, done, go_on)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        events = turn.events()
        await _until(events, _begun)
        go_on.set()
        await asyncio.wait_for(done.wait(), PATIENCE)
        rest = await _until(events, _ends)
        assert not any(isinstance(event, hf.events.Gap) for event in rest)


async def test_a_gap_costs_no_record() -> None:
    done, go_on = asyncio.Event(), asyncio.Event()
    agent = _busy(3_000, done, go_on)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("hello")
        events = turn.events()
        begun = await _until(events, _begun)
        go_on.set()
        await asyncio.wait_for(done.wait(), PATIENCE)
        seen = begun + await _until(events, _ends)
        assert _records(seen) == _records(await _until(session.events(), _ends))


async def test_live_events_that_were_not_read_for_two_minutes_are_a_gap() -> None:
    clock, gate, last = ManualClock(), Gate(), Gate()
    played = PlayedModel(TextChunk("one "), gate, TextChunk("two "), last, TextChunk("three"), _done("one two three"))
    agent = hf.Agent("a", model=played)
    async with hf.open(None, agents=[agent], clock=clock, lease_ms=600_000) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        events = turn.events()
        await _until(events, lambda event: isinstance(event, hf.TextDelta))
        gate.opened.set()
        await last.wait()
        clock.advance(121_000)
        last.opened.set()
        await turn.outcome(timeout=PATIENCE)
        assert isinstance((await _first(events, 1))[0], hf.events.Gap)


async def test_live_events_are_kept_for_two_minutes() -> None:
    clock, gate, last = ManualClock(), Gate(), Gate()
    played = PlayedModel(TextChunk("one "), gate, TextChunk("two "), last, TextChunk("three"), _done("one two three"))
    agent = hf.Agent("a", model=played)
    async with hf.open(None, agents=[agent], clock=clock, lease_ms=600_000) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        events = turn.events()
        await _until(events, lambda event: isinstance(event, hf.TextDelta))
        gate.opened.set()
        await last.wait()
        clock.advance(119_000)
        last.opened.set()
        await turn.outcome(timeout=PATIENCE)
        rest = await _until(events, _ends)
        assert "".join(event.text for event in rest if isinstance(event, hf.TextDelta)) == "two three"


async def test_a_live_cursor_from_before_a_restart_leads_to_a_gap(tmp_path: Path) -> None:
    agent = _agent([text("hi")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        whole = await _finished(runtime, agent)
    live = next(event for event in whole if isinstance(event, hf.TextDelta))
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        rest = await _until(runtime.session("s").events(after=live.cursor), _ends)
        assert isinstance(rest[0], hf.events.Gap)
        assert rest[1:] == _records(whole[whole.index(live) :])


async def test_a_record_cursor_from_before_a_restart_leads_to_exactly_the_rest(tmp_path: Path) -> None:
    agent = _agent([call("look", n=1), text("hi")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        whole = _records(await _finished(runtime, agent))
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        for n, event in enumerate(whole[:-1], 1):
            assert await _until(runtime.session("s").events(after=event.cursor), _ends) == whole[n:]


# ---- reconnecting anywhere -------------------------------------------------------------------------------------------


def _script(chance: random.Random) -> list[ScriptItem]:
    """A turn of up to four steps that ends in words, in an error, or beyond its script."""
    script: list[ScriptItem] = []
    for _ in range(chance.randrange(4)):
        calls = [call("look", n=chance.randrange(4)) for _ in range(chance.randint(1, 3))]
        words = [text("let me see")] if chance.random() < 0.5 else []
        script.append([*words, *calls])
    ending: list[ScriptItem] = [stream("a", "b", "c"), text("done"), error("broken")]
    return script + chance.sample(ending, chance.randrange(2))


async def _reconnecting(session: hf.Session, chance: random.Random) -> list[hf.Event | None]:
    """The events of a turn, seen by somebody who loses the connection (None) all the time."""
    found: list[hf.Event | None] = []
    cursor: int | str = 0
    while True:
        patience = chance.randint(1, 7)
        async for event in session.events(after=cursor):
            found.append(event)
            cursor = event.cursor
            if _ends(event):
                return found
            patience -= 1
            if patience == 0:
                break
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        found.append(None)


def _check(whole: list[hf.Event], seen: list[hf.Event | None]) -> None:
    """`seen` is `whole`, but for live events in whose place stands a Gap.

    Whoever connects behind a record has no half-told story: if the drive is over by then, there is nothing to retract,
    and no Gap. Until the next live event all are missing.
    """
    place, told = 0, False
    before: hf.Event | None = None
    for event in seen:
        if event is None or isinstance(event, hf.events.Gap):
            told = told or event is not None or isinstance(before, RECORDS)
            continue
        skipped: list[hf.Event] = []
        while whole[place] != event:
            skipped.append(whole[place])
            place += 1
            assert place < len(whole), f"{event} is not where it belongs"
        assert not _records(skipped), f"records are missing before {event}"
        assert told or not skipped, f"live events are missing before {event}, and nobody says so"
        place, before = place + 1, event
        told = told and isinstance(event, RECORDS)
    assert place == len(whole)


@pytest.mark.parametrize("seed", range(60))
async def test_reconnecting_anywhere_gives_the_stream_of_whoever_never_lost_the_connection(seed: int) -> None:
    chance = random.Random(seed)
    agent = _agent(_script(chance))
    async with hf.open(None, agents=[agent]) as runtime, asyncio.timeout(PATIENCE):
        session = runtime.session("s", agent=agent)
        whole = asyncio.create_task(_until(session.events(), _ends))
        seen = asyncio.create_task(_reconnecting(session, chance))
        await asyncio.sleep(0)
        await session.send("hello")
        _check(await whole, await seen)


@pytest.mark.parametrize("seed", range(8))
async def test_reconnecting_across_restarts_costs_no_record_and_repeats_none(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    agent = _agent([*_script(chance), text("well"), text("well")])
    found: list[hf.Event] = []
    for opening in range(3):
        async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime, asyncio.timeout(PATIENCE):
            session = runtime.session("s", agent=agent)
            await session.send(f"question {opening}")
            after = found[-1].cursor if found else 0
            found += await _first(session.events(after=after), chance.randint(1, 6))
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime, asyncio.timeout(PATIENCE):
        session = runtime.session("s", agent=agent)
        last = await session.turn("t3").outcome()
        found += await _until(session.events(after=found[-1].cursor), lambda e: _ends(e) and e.turn == last.turn)
        whole = await _until(session.events(), lambda e: _ends(e) and e.turn == last.turn)
        assert _records(found) == _records(whole)
