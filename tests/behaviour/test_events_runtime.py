"""The events of all sessions together: in the order of commit, from any place, in this process and from another one."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import TYPE_CHECKING, get_args

import msgspec
import pytest
from tests.behaviour.talk import at_rest
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import StoreClosed
from holdfast.events import TERMINAL, RecordEvent, encode
from holdfast.messages import ModelReply, StreamEnd, StreamEvent, TextChunk
from holdfast.runtime.changes import MAX_ENDED_DRIVES
from holdfast.testing import ManualClock, ScriptedModel, call, stream, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

RECORDS = get_args(RecordEvent)


@hf.tool(read_only=True)
async def look(n: int) -> int:
    """Look something up."""
    return n * 10


def _answer(request: hf.ModelRequest) -> hf.Text:
    return text(f"answer to {len(request.messages)} messages")


def _agent() -> hf.Agent:
    """An agent that answers for ever."""
    return hf.Agent("a", model=ScriptedModel(_answer), tools=[look], policy=[hf.allow("*")])


def _records(events: Iterable[hf.Event]) -> list[hf.Event]:
    return [event for event in events if isinstance(event, RECORDS)]


async def _until(events: AsyncIterator[hf.Event], enough: Callable[[list[hf.Event]], bool]) -> list[hf.Event]:
    """Events, until there are enough of them."""
    found: list[hf.Event] = []
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            found.append(event)
            if enough(found):
                break
    return found


def _ended(turns: int) -> Callable[[list[hf.Event]], bool]:
    return lambda found: sum(isinstance(event, TERMINAL) for event in found) == turns


async def _work(runtime: hf.Runtime, agent: hf.Agent, sessions: int, turns: int = 1) -> None:
    """Several sessions at once, to their end."""
    for n in range(turns):
        sent = [await runtime.session(f"s{m}", agent=agent).send(f"question {n}") for m in range(sessions)]
        await asyncio.gather(*(turn.outcome(timeout=PATIENCE) for turn in sent))
    await at_rest(runtime)


# ---- order and completeness ------------------------------------------------------------------------------------------


async def test_all_sessions_are_seen_in_the_order_of_commit() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        watching = asyncio.create_task(_until(runtime.events(after=0), _ended(10)))
        await _work(runtime, agent, sessions=5, turns=2)
        seen = list(dict.fromkeys((event.session, event.seq) for event in _records(await watching)))
        committed = [(entry.journal, entry.seq) for entry in await runtime.store.feed(after=0)]
        assert seen == [place for place in committed if place in seen]


async def test_no_event_of_a_runtime_comes_twice() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        watching = asyncio.create_task(_until(runtime.events(after=0), _ended(10)))
        await _work(runtime, agent, sessions=5, turns=2)
        cursors = [event.cursor for event in await watching]
        assert len(set(cursors)) == len(cursors)


async def test_every_session_is_seen_whole() -> None:
    agent = hf.Agent("a", model=ScriptedModel([call("look", n=1), text("ten")]), tools=[look], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        watching = asyncio.create_task(_until(runtime.events(after=0), _ended(4)))
        await _work(runtime, agent, sessions=4)
        found = await watching
        for n in range(4):
            own = await _until(runtime.session(f"s{n}").events(), _ended(1))
            seen = [(type(event), event.seq) for event in _records(found) if event.session == f"s{n}"]
            assert seen == [(type(event), event.seq) for event in _records(own)]


async def test_live_events_stand_between_the_records_of_their_session() -> None:
    agent = hf.Agent("a", model=ScriptedModel([stream("one ", "two")]))
    async with hf.open(None, agents=[agent]) as runtime:
        watching = asyncio.create_task(_until(runtime.events(after=0), _ended(3)))
        await asyncio.sleep(0)
        await _work(runtime, agent, sessions=3)
        last: dict[str, int] = {}
        for event in await watching:
            assert event.seq >= last.get(event.session, 0)
            last[event.session] = event.seq


async def test_the_words_of_each_session_are_seen_as_they_come() -> None:
    gate = asyncio.Event()

    async def said(request: hf.ModelRequest) -> hf.Text:
        await gate.wait()
        return text("hello")

    agent = hf.Agent("a", model=ScriptedModel(said))
    async with hf.open(None, agents=[agent]) as runtime:
        watching = asyncio.create_task(_until(runtime.events(after=0), _ended(3)))
        for n in range(3):
            await runtime.session(f"s{n}", agent=agent).send("hello")
        gate.set()
        words = {event.session: event.text for event in await watching if isinstance(event, hf.TextDelta)}
        assert words == {f"s{n}": "hello" for n in range(3)}


# ---- from a cursor ---------------------------------------------------------------------------------------------------


async def test_behind_every_record_come_exactly_the_rest() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        await _work(runtime, agent, sessions=3)
        whole = await _until(runtime.events(after=0), _ended(3))
        for n, event in enumerate(whole[:-1], 1):
            rest = await _until(runtime.events(after=event.cursor), lambda found, n=n: len(found) == len(whole) - n)
            assert rest == whole[n:]


async def test_behind_a_live_event_no_live_event_comes_twice() -> None:
    first, last = asyncio.Event(), asyncio.Event()

    class Played:
        name = "played:model"

        async def stream(self, request: hf.ModelRequest) -> AsyncIterator[StreamEvent]:
            yield TextChunk("one ")
            await first.wait()
            yield TextChunk("two")
            await last.wait()
            yield StreamEnd(ModelReply((hf.Text("one two"),), "stop", model=self.name))

    agent = hf.Agent("a", model=Played())
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("hello")
        seen = await _until(runtime.events(after=0), lambda found: isinstance(found[-1], hf.TextDelta))
        first.set()
        seen += await _until(runtime.events(after=seen[-1].cursor), lambda found: isinstance(found[-1], hf.TextDelta))
        last.set()
        assert "".join(event.text for event in seen if isinstance(event, hf.TextDelta)) == "one two"


async def test_behind_a_live_event_no_record_is_missing_and_none_comes_twice() -> None:
    agent = hf.Agent(
        "a", model=ScriptedModel([call("look", n=1), stream("one ", "two")]), tools=[look], policy=[hf.allow("*")]
    )
    async with hf.open(None, agents=[agent]) as runtime:
        watching = asyncio.create_task(_until(runtime.events(after=0), _ended(2)))
        await asyncio.sleep(0)
        await _work(runtime, agent, sessions=2)
        whole = await watching
        live = [n for n, event in enumerate(whole) if not isinstance(event, RECORDS)]
        assert live
        for n in live:
            after = sum(isinstance(event, TERMINAL) for event in whole[n:])
            rest = await _until(runtime.events(after=whole[n].cursor), _ended(after))
            assert _records(rest) == _records(whole[n:])


async def test_behind_a_live_event_of_a_turn_that_has_just_ended_comes_exactly_the_rest() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        watching = asyncio.create_task(_until(runtime.events(after=0), _ended(1)))
        await asyncio.sleep(0)
        await _work(runtime, agent, sessions=1)
        await at_rest(runtime)
        whole = await watching
        for number, event in enumerate(whole[:-1], 1):
            if not isinstance(event, RECORDS):
                assert await _until(runtime.events(after=event.cursor), _ended(1)) == whole[number:]


async def test_behind_a_live_event_of_a_turn_that_ended_many_turns_ago_comes_a_gap() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        watching = asyncio.create_task(_until(runtime.events(after=0), _ended(1)))
        await asyncio.sleep(0)
        await _work(runtime, agent, sessions=1)
        live = next(event for event in await watching if isinstance(event, hf.TextDelta))
        await _work(runtime, agent, sessions=MAX_ENDED_DRIVES + 1)
        await at_rest(runtime)
        rest = await _until(runtime.events(after=live.cursor), _ended(1))
        assert isinstance(rest[0], hf.events.Gap)


async def test_without_a_cursor_only_what_comes_from_now_on_is_seen() -> None:
    agent = _agent()
    clock = ManualClock()  # it stands still: what was before has the same time as what comes
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        await _work(runtime, agent, sessions=1)
        watching = asyncio.create_task(_until(runtime.events(), _ended(1)))
        await asyncio.sleep(0)
        await (await runtime.session("new", agent=agent).send("hello")).outcome()
        assert {event.session for event in await watching} == {"new"}


async def test_a_clock_that_is_set_back_hides_nothing_from_whoever_watches() -> None:
    agent = _agent()
    clock = ManualClock()
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        watching = asyncio.create_task(_until(runtime.events(), _ended(1)))
        await asyncio.sleep(0)
        clock.jump(-3_600_000)
        await (await runtime.session("new", agent=agent).send("hello")).outcome()
        found = await asyncio.wait_for(watching, PATIENCE)
        assert isinstance(_records(found)[0], hf.TurnStarted)


# ---- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
async def test_across_restarts_no_record_is_missing_and_none_comes_twice(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    agent = _agent()
    found: list[hf.Event] = []
    for _ in range(3):
        async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
            after = found[-1].cursor if found else 0
            count = chance.randint(1, 20)
            watching = asyncio.create_task(_until(runtime.events(after), lambda seen, n=count: len(seen) == n))
            await asyncio.sleep(0)
            await _work(runtime, agent, sessions=3)
            found += await watching
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        left = 9 - sum(isinstance(event, TERMINAL) for event in found)
        if left:
            found += await _until(runtime.events(found[-1].cursor), _ended(left))
        whole = await _until(runtime.events(after=0), _ended(9))
        assert _records(found) == _records(whole)


async def test_the_same_records_are_seen_after_a_restart(tmp_path: Path) -> None:
    agent = _agent()
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        await _work(runtime, agent, sessions=3)
        before = await _until(runtime.events(after=0), _ended(3))
    async with hf.open(tmp_path / "store.db", drive=False) as runtime:
        assert await _until(runtime.events(after=0), _ended(3)) == _records(before)


# ---- another process -------------------------------------------------------------------------------------------------

OBSERVER = """
import asyncio, sys
import holdfast as hf
from holdfast.events import TERMINAL, encode

async def main(path, turns):
    async with hf.open(path, drive=False) as runtime:
        print("ready", flush=True)
        async for event in runtime.events(after=0):
            print(encode(event).decode(), flush=True)
            turns -= isinstance(event, TERMINAL)
            if not turns:
                return

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_another_process_sees_all_records_in_order_while_this_one_works(tmp_path: Path) -> None:
    path, agent = tmp_path / "store.db", _agent()
    async with hf.open(path, agents=[agent]) as runtime:
        observer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OBSERVER, str(path), "9", stdout=asyncio.subprocess.PIPE
        )
        assert observer.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await observer.stdout.readline() == b"ready\n"
            await _work(runtime, agent, sessions=3, turns=3)
            seen = (await observer.stdout.read()).splitlines()
            assert await observer.wait() == 0
        here = [encode(event) for event in _records(await _until(runtime.events(after=0), _ended(9)))]
        assert [line for line in seen if "~" not in msgspec.json.decode(line)["cursor"]] == here


async def test_another_process_sees_a_record_before_the_turn_is_over(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    seen = asyncio.Event()

    async def answered(request: hf.ModelRequest) -> hf.Text:
        await seen.wait()
        return text("hello")

    agent = hf.Agent("a", model=ScriptedModel(answered))
    async with hf.open(path, agents=[agent]) as runtime, asyncio.timeout(PATIENCE):
        observer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OBSERVER, str(path), "1", stdout=asyncio.subprocess.PIPE
        )
        assert observer.stdout is not None
        await observer.stdout.readline()
        await runtime.session("s", agent=agent).send("hello")
        kinds: list[str] = []
        while line := await observer.stdout.readline():
            kinds.append(msgspec.json.decode(line)["event"])
            if kinds[-1] == "input_accepted":
                seen.set()
        await observer.wait()
        assert kinds[-1] == "turn_completed"


async def test_an_observer_beside_another_runtime_has_its_records_soon(tmp_path: Path) -> None:
    path, agent = tmp_path / "store.db", _agent()
    async with hf.open(path, agents=[agent]) as worker, hf.open(path, drive=False) as watcher:
        watching = asyncio.create_task(_until(watcher.session("s0").events(), _ended(1)))
        await _work(worker, agent, sessions=1)
        found = await asyncio.wait_for(watching, PATIENCE)
        assert _records(found) == _records(await _until(worker.session("s0").events(), _ended(1)))


# ---- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["runtime", "session", "turn"])
async def test_events_that_somebody_reads_end_when_the_runtime_is_closed(whose: str) -> None:
    reading = asyncio.Event()

    async def hangs(request: hf.ModelRequest) -> hf.Text:
        reading.set()
        await asyncio.Event().wait()
        return text("never")

    agent = hf.Agent("a", model=ScriptedModel([hangs]))

    async def read() -> int:
        return len([event async for event in events])

    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        events = {"runtime": runtime.events(0), "session": runtime.session("s").events(), "turn": turn.events()}[whose]
        reader = asyncio.create_task(read())
        await asyncio.wait_for(reading.wait(), PATIENCE)
        await runtime.close(grace=0)
    assert await asyncio.wait_for(reader, PATIENCE) > 0


async def test_events_that_are_asked_for_after_the_end_are_an_error() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        session = runtime.session("s")
    with pytest.raises(StoreClosed):
        _ = [event async for event in session.events()]
