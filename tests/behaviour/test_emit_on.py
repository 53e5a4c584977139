"""`emit` and `on`: a receipt at once, one turn for each request, bounds that hold, and handlers that harm nobody."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from tests.behaviour.talk import until
from tests.every import every
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import InvalidArgument, JournalMissing
from holdfast.events import EVENTS, TERMINAL, LiveEvent, RecordEvent, TurnEnded
from holdfast.messages import StreamEvent, TextChunk
from holdfast.records import Admitted
from holdfast.testing import ManualClock, ScriptedModel, call, delayed, stream, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

RECORDS = get_args(RecordEvent)
LIVE = get_args(LiveEvent)


def _agent(name: str = "a") -> hf.Agent:
    """An agent that answers for ever."""
    return hf.Agent(name, model=ScriptedModel(lambda request: text(f"answer {len(request.messages)}")))


class Held:
    """A model that holds back its answer until a test lets it go, and counts how many ask at once."""

    name = "held:model"

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.opened = asyncio.Event()
        self._model = ScriptedModel(self._answer, name=self.name)
        self.stream = self._model.stream

    async def _answer(self, request: hf.ModelRequest) -> hf.Text:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.opened.wait()
            await asyncio.sleep(0)
        finally:
            self.inside -= 1
        return text("done")


# ---- emit: receipt and outcome ---------------------------------------------------------------------------------------


async def test_emit_gives_a_receipt_before_the_turn_is_over() -> None:
    model = Held()
    agent = hf.Agent("a", model=model)
    async with hf.open(None, agents=[agent]) as runtime:
        emitted = await asyncio.wait_for(runtime.emit(hf.EmitRequest(agent="a", input="hello", session="s")), PATIENCE)
        model.opened.set()
        assert (emitted.session, emitted.turn) == ("s", "t1")


async def test_awaiting_a_receipt_gives_the_outcome() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        outcome = await (await runtime.emit(hf.EmitRequest(agent="a", input="hello")))
        assert (outcome.status, outcome.text) == ("completed", "answer 1")


async def test_a_receipt_can_be_awaited_more_than_once() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        emitted = await runtime.emit(hf.EmitRequest(agent="a", input="hello"))
        assert await emitted == await emitted


async def test_a_receipt_leads_to_the_events_of_its_turn() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime, asyncio.timeout(PATIENCE):
        emitted = await runtime.emit(hf.EmitRequest(agent="a", input="hello"))
        found = [event async for event in emitted.events()]
        assert (type(found[0]), type(found[-1])) == (hf.TurnStarted, hf.TurnCompleted)


async def test_requests_without_a_session_get_one_each() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        emitted = [await runtime.emit(hf.EmitRequest(agent="a", input="hello")) for _ in range(5)]
        assert len({found.session for found in emitted}) == 5


async def test_an_agent_may_be_given_itself_or_by_its_name() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        one = await runtime.emit(hf.EmitRequest(agent=agent, input="hello", client_request_id="r-1"))
        two = await runtime.emit(hf.EmitRequest(agent="a", input="hello", client_request_id="r-1"))
        assert (one.session, one.turn) == (two.session, two.turn)


async def test_metadata_is_kept_with_the_input() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        request = hf.EmitRequest(agent="a", input="hello", session="s", metadata={"tenant": 7})
        await (await runtime.emit(request))
        inputs = [entry.record for entry in await runtime.store.read("s") if isinstance(entry.record, Admitted)]
        assert msgspec.json.decode(bytes(inputs[0].body))["metadata"] == {"tenant": 7}


# ---- emit: the same request ------------------------------------------------------------------------------------------


async def test_the_same_request_emitted_many_times_at_once_is_one_turn() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        request = hf.EmitRequest(agent="a", input="hello", client_request_id="r-1")
        emitted = await asyncio.gather(*(runtime.emit(request) for _ in range(20)))
        assert len({(found.session, found.turn) for found in emitted}) == 1


async def test_the_same_request_emitted_many_times_asks_the_model_once() -> None:
    model = ScriptedModel([text("hi")])
    async with hf.open(None, agents=[hf.Agent("a", model=model)]) as runtime:
        request = hf.EmitRequest(agent="a", input="hello", client_request_id="r-1")
        for emitted in await asyncio.gather(*(runtime.emit(request) for _ in range(20))):
            await emitted
        assert len(model.requests) == 1


async def test_the_same_request_in_two_runtimes_at_once_is_one_turn(tmp_path: Path) -> None:
    path, request = tmp_path / "store.db", hf.EmitRequest(agent="a", input="hello", client_request_id="r-1")
    async with hf.open(path, agents=[_agent()]) as one, hf.open(path, agents=[_agent()]) as two:
        emitted = await asyncio.gather(*(runtime.emit(request) for runtime in (one, two) for _ in range(5)))
        assert len({(found.session, found.turn) for found in emitted}) == 1


async def test_the_same_request_after_a_restart_is_the_same_turn_with_the_same_outcome(tmp_path: Path) -> None:
    path, request = tmp_path / "store.db", hf.EmitRequest(agent="a", input="hello", client_request_id="r-1")
    async with hf.open(path, agents=[_agent()]) as runtime:
        first = await (await runtime.emit(request))
    async with hf.open(path, agents=[_agent()]) as runtime:
        assert await (await runtime.emit(request)) == first


async def test_requests_emitted_just_before_the_runtime_closed_are_answered_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for n in range(5):
        async with hf.open(path, agents=[_agent()]) as runtime:
            await runtime.emit(hf.EmitRequest(agent="a", input=f"question {n}", session="s"))
    async with hf.open(path, agents=[_agent()]) as runtime:
        assert (await runtime.session("s").turn("t5").outcome(timeout=PATIENCE)).ok


@pytest.mark.parametrize(
    "other",
    [
        hf.EmitRequest(agent="a", input="something else", client_request_id="r-1"),
        hf.EmitRequest(agent="a", input="hello", client_request_id="r-1", metadata={"tenant": 7}),
    ],
)
async def test_the_same_id_with_another_payload_is_a_conflict(other: hf.EmitRequest) -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        await runtime.emit(hf.EmitRequest(agent="a", input="hello", client_request_id="r-1"))
        with pytest.raises(hf.KeyConflict):
            await runtime.emit(other)


async def test_the_same_id_for_another_agent_is_another_request() -> None:
    async with hf.open(None, agents=[_agent("a"), _agent("b")]) as runtime:
        one = await runtime.emit(hf.EmitRequest(agent="a", input="hello", client_request_id="r-1"))
        two = await runtime.emit(hf.EmitRequest(agent="b", input="hello", client_request_id="r-1"))
        assert one.session != two.session


# ---- emit: bad requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        None,
        "hello",
        {"agent": "a", "input": "hello"},
        hf.EmitRequest(agent="nobody", input="hello"),
        hf.EmitRequest(agent=None, input="hello"),
        hf.EmitRequest(agent="a", input=""),
        hf.EmitRequest(agent="a", input="  \n "),
        hf.EmitRequest(agent="a", input=None),  # pyright: ignore[reportArgumentType]
        hf.EmitRequest(agent="a", input="hello", session=""),
        hf.EmitRequest(agent="a", input="hello", session="x" * 1_000),
        hf.EmitRequest(agent="a", input="hello", client_request_id=""),
        hf.EmitRequest(agent="a", input="hello", client_request_id="x" * 1_000),
        hf.EmitRequest(agent="a", input="hello", client_request_id=7),  # pyright: ignore[reportArgumentType]
        hf.EmitRequest(agent="a", input="hello", metadata={"x": object()}),
        hf.EmitRequest(agent="a", input="hello", metadata="x"),  # pyright: ignore[reportArgumentType]
    ],
)
async def test_a_bad_request_is_refused_by_name(request_: Any) -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        with pytest.raises(hf.UsageError):
            await runtime.emit(request_)


async def test_a_closed_runtime_accepts_no_request() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        await runtime.close()
        with pytest.raises(hf.RuntimeStopped):
            await runtime.emit(hf.EmitRequest(agent="a", input="hello"))


# ---- control: cancel -------------------------------------------------------------------------------------------------


async def test_a_control_cancels_a_turn_while_the_model_is_asked() -> None:
    model = Held()
    async with hf.open(None, agents=[hf.Agent("a", model=model)]) as runtime:
        control = hf.Control()
        emitted = await runtime.emit(hf.EmitRequest(agent="a", input="hello"), control=control)
        await until(lambda: model.inside == 1)
        await control.cancel("enough")
        outcome = await emitted.outcome(timeout=PATIENCE)
        assert (outcome.status, outcome.message) == ("cancelled", "enough")


async def test_a_control_cancels_a_turn_that_streams() -> None:
    class Endless:
        name = "endless:model"

        async def stream(self, request: hf.ModelRequest) -> AsyncIterator[StreamEvent]:
            while True:
                yield TextChunk("again ")
                await asyncio.sleep(0.001)

    async with hf.open(None, agents=[hf.Agent("a", model=Endless())]) as runtime:
        control = hf.Control()
        emitted = await runtime.emit(hf.EmitRequest(agent="a", input="hello"), control=control)
        async for event in emitted.events():
            if isinstance(event, hf.TextDelta):
                break
        await control.cancel()
        assert (await emitted.outcome(timeout=PATIENCE)).status == "cancelled"


async def test_a_control_cancels_a_turn_in_its_tool() -> None:
    begun, unwound = asyncio.Event(), asyncio.Event()

    @hf.tool
    async def hang() -> None:
        """Take for ever."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            unwound.set()

    agent = hf.Agent("a", model=ScriptedModel([call("hang")]), tools=[hang], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        control = hf.Control()
        emitted = await runtime.emit(hf.EmitRequest(agent="a", input="hello"), control=control)
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await control.cancel()
        assert (await emitted.outcome(timeout=PATIENCE)).status == "cancelled"
        assert unwound.is_set()


async def test_a_control_cancels_a_turn_in_the_queue() -> None:
    model = Held()
    async with hf.open(None, agents=[hf.Agent("a", model=model)]) as runtime:
        control = hf.Control()
        first = await runtime.emit(hf.EmitRequest(agent="a", input="first", session="s"))
        await until(lambda: model.inside == 1)
        queued = await runtime.emit(hf.EmitRequest(agent="a", input="second", session="s"), control=control)
        await control.cancel()
        assert (await queued.outcome(timeout=PATIENCE)).status == "cancelled"
        model.opened.set()
        assert (await first).status == "completed"


async def test_a_control_cancels_a_turn_that_waits_for_somebody() -> None:
    @hf.tool
    async def ask(ctx: hf.Context) -> str:
        """Ask somebody."""
        return str(await ctx.wait("answer"))

    agent = hf.Agent("a", model=ScriptedModel([call("ask")]), tools=[ask], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        control = hf.Control()
        emitted = await runtime.emit(hf.EmitRequest(agent="a", input="hello"), control=control)
        async for event in emitted.events():
            if isinstance(event, hf.TurnWaiting):
                break
        await control.cancel()
        assert (await emitted.outcome(timeout=PATIENCE)).status == "cancelled"


async def test_a_control_cancels_all_that_was_emitted_with_it_and_nothing_else() -> None:
    model = Held()
    async with hf.open(None, agents=[hf.Agent("a", model=model)]) as runtime:
        control = hf.Control()
        request = hf.EmitRequest(agent="a", input="hello")
        mine = [await runtime.emit(request, control=control) for _ in range(5)]
        other = await runtime.emit(request)
        await control.cancel()
        ended = [(await emitted.outcome(timeout=PATIENCE)).status for emitted in mine]
        model.opened.set()
        assert (ended, (await other).status) == (["cancelled"] * 5, "completed")


async def test_a_request_that_is_being_accepted_when_its_control_is_cancelled_does_not_run(tmp_path: Path) -> None:
    model = Held()
    async with hf.open(tmp_path / "store.db", agents=[hf.Agent("a", model=model)]) as runtime:
        control = hf.Control()
        emitting = asyncio.create_task(
            runtime.emit(hf.EmitRequest(agent="a", input="hello", session="s"), control=control)
        )
        await asyncio.sleep(0)  # it has entered the control, and waits for the store
        assert not emitting.done()
        await control.cancel()
        try:
            emitted = await emitting
        except hf.UsageError:
            return  # refused: that is just as well
        try:
            outcome = await emitted.outcome(timeout=PATIENCE)
        finally:
            model.opened.set()
        assert outcome.status == "cancelled"


async def test_a_cancelled_control_accepts_nothing_new() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        control = hf.Control()
        await control.cancel()
        with pytest.raises(hf.UsageError):
            await runtime.emit(hf.EmitRequest(agent="a", input="hello"), control=control)


async def test_requests_that_wait_for_room_are_refused_when_their_control_is_cancelled() -> None:
    model = Held()
    async with hf.open(None, agents=[hf.Agent("a", model=model)]) as runtime:
        control = hf.Control(concurrency=1)
        request = hf.EmitRequest(agent="a", input="hello")
        await runtime.emit(request, control=control)
        waiting = [asyncio.create_task(runtime.emit(request, control=control)) for _ in range(3)]
        await until(lambda: model.inside == 1)
        await control.cancel()
        refused = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENCE)
        assert all(isinstance(error, hf.UsageError) for error in refused)


# ---- control: timeout and concurrency --------------------------------------------------------------------------------


async def test_a_timeout_ends_a_turn_whose_model_does_not_answer() -> None:
    async with hf.open(None, agents=[hf.Agent("a", model=Held())]) as runtime:
        emitted = await runtime.emit(hf.EmitRequest(agent="a", input="hello"), control=hf.Control(timeout=0.2))
        outcome = await emitted.outcome(timeout=PATIENCE)
        assert (outcome.status, outcome.code) == ("limit", "deadline")


async def test_a_timeout_ends_a_turn_whose_tool_does_not_return() -> None:
    @hf.tool
    async def hang() -> None:
        """Take for ever."""
        await asyncio.Event().wait()

    agent = hf.Agent("a", model=ScriptedModel([call("hang")]), tools=[hang], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        emitted = await runtime.emit(hf.EmitRequest(agent="a", input="hello"), control=hf.Control(timeout=0.2))
        assert (await emitted.outcome(timeout=PATIENCE)).code == "deadline"


async def test_a_turn_that_is_quick_enough_is_left_alone_by_its_timeout() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        emitted = await runtime.emit(hf.EmitRequest(agent="a", input="hello"), control=hf.Control(timeout=5))
        assert (await emitted).status == "completed"


@pytest.mark.parametrize("limit", [1, 3])
async def test_never_more_turns_than_allowed_run_at_once(limit: int) -> None:
    model = Held()
    async with hf.open(None, agents=[hf.Agent("a", model=model)]) as runtime:
        control = hf.Control(concurrency=limit)
        request = hf.EmitRequest(agent="a", input="hello")
        emitting = [asyncio.create_task(runtime.emit(request, control=control)) for _ in range(12)]
        await until(lambda: model.inside == limit)
        model.opened.set()
        for emitted in await asyncio.gather(*emitting):
            await emitted
        assert model.most == limit


async def test_a_request_is_durable_also_while_it_waits_for_room() -> None:
    model = Held()
    async with hf.open(None, agents=[hf.Agent("a", model=model)]) as runtime:
        control = hf.Control(concurrency=1)
        await runtime.emit(hf.EmitRequest(agent="a", input="first", session="s1"), control=control)
        request = hf.EmitRequest(agent="a", input="second", session="s2")
        waiting = asyncio.create_task(runtime.emit(request, control=control))
        await until(lambda: _is_accepted(runtime, "s2"))
        await until(lambda: model.inside == 1)
        assert not waiting.done()
        model.opened.set()
        assert (await (await asyncio.wait_for(waiting, PATIENCE))).status == "completed"
        assert model.most == 1


async def test_a_request_whose_caller_gave_up_waiting_for_room_is_answered_all_the_same() -> None:
    model = Held()
    async with hf.open(None, agents=[hf.Agent("a", model=model)]) as runtime:
        control = hf.Control(concurrency=1)
        await runtime.emit(hf.EmitRequest(agent="a", input="first", session="s1"), control=control)
        request = hf.EmitRequest(agent="a", input="second", session="s2")
        waiting = asyncio.create_task(runtime.emit(request, control=control))
        await until(lambda: _is_accepted(runtime, "s2"))
        waiting.cancel()
        model.opened.set()
        assert (await runtime.session("s2").turn("t1").outcome(timeout=PATIENCE)).status == "completed"
        assert model.most == 1


async def _is_accepted(runtime: hf.Runtime, session: str) -> bool:
    return session in [line.id for line in await runtime.sessions()]


async def test_a_request_that_was_refused_takes_no_room() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        control = hf.Control(concurrency=1)
        for _ in range(3):
            with pytest.raises(hf.UsageError):
                await runtime.emit(hf.EmitRequest(agent="nobody", input="hello"), control=control)
        request = hf.EmitRequest(agent="a", input="hello")
        assert (await asyncio.wait_for(runtime.emit(request, control=control), PATIENCE)).turn == "t1"


async def test_whoever_gives_up_waiting_for_room_takes_none() -> None:
    model = Held()
    async with hf.open(None, agents=[hf.Agent("a", model=model)]) as runtime:
        control = hf.Control(concurrency=1)
        request = hf.EmitRequest(agent="a", input="hello")
        await runtime.emit(request, control=control)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runtime.emit(request, control=control), 0.05)
        model.opened.set()
        assert (await (await asyncio.wait_for(runtime.emit(request, control=control), PATIENCE))).ok


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "3"])
def test_a_limit_that_lets_nothing_run_is_refused(concurrency: Any) -> None:
    with pytest.raises(hf.UsageError):
        hf.Control(concurrency=concurrency)


@every("timeout", [0, -1, "3", float("nan"), float("inf"), True])
def test_a_timeout_that_is_no_time_is_refused(timeout: Any) -> None:
    with pytest.raises(hf.UsageError):
        hf.Control(timeout=timeout)


# ---- on: what a handler gets -----------------------------------------------------------------------------------------


async def _handled(runtime: hf.Runtime, agent: hf.Agent, kind: Any) -> list[hf.Event]:
    """What a handler of `kind` gets of one turn."""
    found: list[hf.Event] = []
    ends: list[hf.Event] = []
    async with runtime.on(Any, ends.append), runtime.on(kind, found.append) as subscription:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await until(lambda: any(isinstance(event, TERMINAL) for event in ends))
        expected = sum(isinstance(event, RECORDS if kind is Any else kind) for event in ends)
        await until(lambda: subscription.handled >= expected)
    return found


@pytest.mark.parametrize("kind", [hf.TurnCompleted, hf.MessageCommitted, hf.TextDelta, hf.ToolCallFinished])
async def test_a_handler_gets_events_of_its_kind_and_no_other(kind: type[hf.Event]) -> None:
    @hf.tool(read_only=True)
    async def look() -> None:
        """Look."""

    agent = hf.Agent(
        "a", model=ScriptedModel([call("look"), stream("one ", "two")]), tools=[look], policy=[hf.allow("*")]
    )
    async with hf.open(None, agents=[agent]) as runtime:
        found = await _handled(runtime, agent, kind)
        assert {type(event) for event in found} == {kind}


async def test_a_union_stands_for_all_its_kinds() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        found = await _handled(runtime, agent, hf.TurnStarted | hf.TurnCompleted)
        assert [type(event) for event in found] == [hf.TurnStarted, hf.TurnCompleted]


async def test_a_tuple_stands_for_all_its_kinds() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        found = await _handled(runtime, agent, (hf.TurnStarted, hf.TurnCompleted))
        assert [type(event) for event in found] == [hf.TurnStarted, hf.TurnCompleted]


async def test_the_named_union_of_endings_is_a_kind() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        found = await _handled(runtime, agent, TurnEnded)
        assert [type(event) for event in found] == [hf.TurnCompleted]


async def test_any_stands_for_records_and_live_events() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        found = await _handled(runtime, agent, Any)
        assert {isinstance(event, LIVE) for event in found} == {True, False}


@pytest.mark.parametrize("kind", EVENTS)
async def test_every_event_class_is_a_kind(kind: type[hf.Event]) -> None:
    async with hf.open(None) as runtime, runtime.on(kind, print) as subscription:
        assert not subscription.finished


@pytest.mark.parametrize("kind", [None, int, str, "TextDelta", (), (hf.TextDelta, int), hf.TextDelta | int, object])
async def test_what_is_no_kind_of_event_is_refused(kind: object) -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(InvalidArgument):
            runtime.on(kind, print)


@pytest.mark.parametrize("handler", [None, "print", 7])
async def test_what_can_not_be_called_is_refused(handler: Any) -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(InvalidArgument):
            runtime.on(hf.TextDelta, handler)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5])
async def test_a_concurrency_that_lets_no_handler_run_is_refused(concurrency: Any) -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(hf.UsageError):
            runtime.on(hf.TextDelta, print, concurrency=concurrency)


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("after", ["nonsense", "-1", -1, True])
async def test_a_bad_cursor_is_refused_at_once(session: str | None, after: Any) -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(hf.errors.CursorInvalid):
            runtime.on(hf.TextDelta, print, session=session, after=after)


async def test_a_bad_session_is_refused_at_once() -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(hf.UsageError):
            runtime.on(hf.TextDelta, print, session="")


# ---- on: from where --------------------------------------------------------------------------------------------------


async def test_a_handler_of_one_session_gets_nothing_of_the_others() -> None:
    agent = _agent()
    found: list[hf.Event] = []
    async with hf.open(None, agents=[agent]) as runtime, runtime.on(Any, found.append, session="s2"):
        turns = [await runtime.session(f"s{n}", agent=agent).send("hello") for n in range(4)]
        await asyncio.gather(*(turn.outcome() for turn in turns))
        await until(lambda: any(isinstance(event, TERMINAL) for event in found))
        assert {event.session for event in found} == {"s2"}


@pytest.mark.parametrize("session", [None, "s"])
async def test_nothing_is_missed_between_on_and_the_next_send(session: str | None) -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        for n in range(10):
            found: list[hf.Event] = []
            subscription = runtime.on((hf.TurnStarted, hf.TurnCompleted), found.append, session=session)
            turn = await runtime.session("s", agent=agent).send(f"question {n}")
            await turn.outcome()
            ended = (hf.TurnCompleted, turn.id)
            await until(lambda found=found, ended=ended: ended in [(type(event), event.turn) for event in found])
            await subscription.stop()
            assert [type(event) for event in found if event.turn == turn.id] == [hf.TurnStarted, hf.TurnCompleted]


async def test_a_handler_without_a_cursor_gets_nothing_of_the_past() -> None:
    agent, clock = _agent(), ManualClock()  # it stands still: the past has the same time as what comes
    async with hf.open(None, agents=[agent], clock=clock) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("before")).outcome()
        found: list[hf.events.InputAccepted] = []
        async with runtime.on(hf.events.InputAccepted, found.append):
            await (await session.send("after")).outcome()
            await until(lambda: any(event.text == "after" for event in found))
        assert [event.text for event in found] == ["after"]


async def test_a_handler_with_a_cursor_gets_what_stands_behind_it() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        for n in range(3):
            await (await session.send(f"question {n}")).outcome()
        found: list[hf.events.InputAccepted] = []
        async with runtime.on(hf.events.InputAccepted, found.append, session="s", after=0):
            await until(lambda: len(found) == 3)
        again: list[hf.events.InputAccepted] = []
        async with runtime.on(hf.events.InputAccepted, again.append, session="s", after=found[0].cursor):
            await until(lambda: len(again) == 2)
        assert again == found[1:]


async def test_a_handler_of_all_sessions_goes_on_from_the_cursor_of_its_last_event() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        found: list[hf.events.InputAccepted] = []
        async with runtime.on(hf.events.InputAccepted, found.append):
            await (await runtime.session("s1", agent=agent).send("one")).outcome()
            await until(lambda: len(found) == 1)
        await (await runtime.session("s2", agent=agent).send("two")).outcome()
        async with runtime.on(hf.events.InputAccepted, found.append, after=found[-1].cursor):
            await until(lambda: len(found) == 2)
        assert [event.text for event in found] == ["one", "two"]


async def test_a_handler_of_one_session_goes_on_from_the_cursor_of_its_last_event() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        found: list[hf.events.InputAccepted] = []
        async with runtime.on(hf.events.InputAccepted, found.append, session="s"):
            await (await session.send("one")).outcome()
            await until(lambda: len(found) == 1)
        await (await session.send("two")).outcome()
        async with runtime.on(hf.events.InputAccepted, found.append, session="s", after=found[-1].cursor):
            await until(lambda: len(found) == 2)
        assert [event.text for event in found] == ["one", "two"]


async def test_a_handler_goes_on_from_its_cursor_after_a_restart(tmp_path: Path) -> None:
    found: list[hf.events.InputAccepted] = []
    for n in range(3):
        async with hf.open(tmp_path / "store.db", agents=[_agent()]) as runtime:
            after = found[-1].cursor if found else 0
            async with runtime.on(hf.events.InputAccepted, found.append, after=after):
                await (await runtime.session("s", agent="a").send(f"question {n}")).outcome()
                await until(lambda n=n: len(found) == n + 1)
    assert [event.text for event in found] == ["question 0", "question 1", "question 2"]


async def test_a_handler_may_be_there_before_its_session() -> None:
    agent = _agent()
    found: list[hf.Event] = []
    async with hf.open(None, agents=[agent]) as runtime:
        async with runtime.on(hf.TurnCompleted, found.append, session="later", after=0):
            await (await runtime.session("later", agent=agent).send("hello")).outcome()
            await until(lambda: len(found) == 1)
        assert found[0].session == "later"


# ---- on: order and concurrency ---------------------------------------------------------------------------------------


async def test_a_slow_handler_gets_all_records_in_the_order_of_the_journal() -> None:
    agent = _agent()
    found: list[hf.Event] = []

    async def slowly(event: hf.Event) -> None:
        await asyncio.sleep(0.001)
        found.append(event)

    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        async with runtime.on(RECORDS, slowly):
            for n in range(30):
                await (await session.send(f"question {n}")).outcome()
            await until(lambda: sum(isinstance(event, TERMINAL) for event in found) == 30)
        seen = [(event.seq, type(event)) for event in found]
        assert len(set(seen)) == len(seen)
        assert [seq for seq, _ in seen] == sorted(seq for seq, _ in seen)


async def test_a_handler_that_does_not_return_never_slows_a_turn() -> None:
    agent = _agent()
    release = asyncio.Event()

    async def stuck(event: hf.Event) -> None:
        await release.wait()

    async with hf.open(None, agents=[agent]) as runtime, runtime.on(Any, stuck):
        session = runtime.session("s", agent=agent)
        for n in range(30):
            assert (await (await session.send(f"question {n}")).outcome(timeout=PATIENCE)).ok
        release.set()


async def test_by_default_one_handler_runs_at_a_time() -> None:
    assert await _most_at_once(1) == 1


async def test_with_more_concurrency_sessions_are_handled_side_by_side() -> None:
    assert await _most_at_once(3) == 3


async def _most_at_once(concurrency: int) -> int:
    """How many of six sessions were handled at once, at the most; the first ones wait for each other."""
    agent = _agent()
    inside = most = handled = 0
    met = asyncio.Event()

    async def handler(event: hf.Event) -> None:
        nonlocal inside, most, handled
        inside += 1
        most = max(most, inside)
        if inside == concurrency:
            met.set()
        await asyncio.wait_for(met.wait(), PATIENCE)
        await asyncio.sleep(0.01)
        inside -= 1
        handled += 1

    async with (
        hf.open(None, agents=[agent]) as runtime,
        runtime.on(hf.TurnCompleted, handler, concurrency=concurrency),
    ):
        turns = [await runtime.session(f"s{n}", agent=agent).send("hello") for n in range(6)]
        await asyncio.gather(*(turn.outcome() for turn in turns))
        await until(lambda: handled == 6)
    return most


async def test_however_many_run_at_once_each_session_is_handled_in_order() -> None:
    agent = _agent()
    found: dict[str, list[int]] = {}

    async def handler(event: hf.events.InputAccepted) -> None:
        await asyncio.sleep(0.001 * (event.input % 3))
        found.setdefault(event.session, []).append(event.input)

    async with hf.open(None, agents=[agent]) as runtime, runtime.on(hf.events.InputAccepted, handler, concurrency=8):
        for n in range(5):
            turns = [await runtime.session(f"s{m}", agent=agent).send(f"question {n}") for m in range(4)]
            await asyncio.gather(*(turn.outcome() for turn in turns))
        await until(lambda: sum(map(len, found.values())) == 20)
    assert found == {f"s{m}": [1, 2, 3, 4, 5] for m in range(4)}


# ---- on: errors ------------------------------------------------------------------------------------------------------


def _raise(event: hf.Event) -> None:
    raise ValueError(type(event).__name__)


async def test_an_error_of_a_handler_never_reaches_the_turn() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime, runtime.on(Any, _raise) as subscription:
        outcome = await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await until(lambda: subscription.failures > 0)
        assert outcome.ok


async def test_an_error_of_a_handler_surfaces_with_the_event_that_caused_it() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime, runtime.on(hf.TurnCompleted, _raise) as subscription:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await until(lambda: subscription.failures == 1)
        event, error = subscription.errors[0]
        assert (type(event), str(error)) == (hf.TurnCompleted, "TurnCompleted")


async def test_after_an_error_the_next_event_is_handled() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime, runtime.on(hf.TurnCompleted, _raise) as subscription:
        for _ in range(3):
            await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await until(lambda: subscription.failures == 3)
        assert not subscription.finished


async def test_errors_are_remembered_within_a_bound_and_all_counted() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime, runtime.on(RECORDS, _raise) as subscription:
        session = runtime.session("s", agent=agent)
        for n in range(20):
            await (await session.send(f"question {n}")).outcome()
        await until(lambda: subscription.failures == 20 * 6)
        assert len(subscription.errors) == 100


async def test_an_error_of_a_handler_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent]) as runtime, runtime.on(hf.TurnCompleted, _raise) as subscription:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await until(lambda: subscription.failures == 1)
        assert "TurnCompleted" in caplog.text


async def test_a_handler_that_waited_for_something_cancelled_fails_like_any_other() -> None:
    agent = _agent()
    found: list[hf.Event] = []

    async def handler(event: hf.Event) -> None:
        found.append(event)
        if len(found) == 1:
            raise asyncio.CancelledError

    async with hf.open(None, agents=[agent]) as runtime, runtime.on(RECORDS, handler) as subscription:
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await until(lambda: len(found) == 6)
        assert (subscription.failures, subscription.finished) == (1, False)


# ---- on: stopping ----------------------------------------------------------------------------------------------------


async def test_a_stopped_subscription_handles_nothing_more() -> None:
    agent = _agent()
    found: list[hf.Event] = []
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        subscription = runtime.on(hf.TurnCompleted, found.append)
        await (await session.send("one")).outcome()
        await until(lambda: len(found) == 1)
        await subscription.stop()
        other: list[hf.Event] = []
        async with runtime.on(hf.TurnCompleted, other.append):
            await (await session.send("two")).outcome()
            await until(lambda: any(event.turn == "t2" for event in other))
        assert len(found) == 1


async def test_a_subscription_is_finished_when_it_was_stopped() -> None:
    async with hf.open(None) as runtime:
        subscription = runtime.on(Any, print)
        assert not subscription.finished
        await subscription.stop()
        assert subscription.finished


async def test_a_subscription_may_be_stopped_twice() -> None:
    async with hf.open(None) as runtime:
        subscription = runtime.on(Any, print)
        await subscription.stop()
        await subscription.stop()
        assert subscription.finished


async def test_a_subscription_ends_with_its_block() -> None:
    async with hf.open(None) as runtime:
        async with runtime.on(Any, print) as subscription:
            assert not subscription.finished
        assert subscription.finished


async def test_a_handler_that_runs_while_its_subscription_is_stopped_may_finish() -> None:
    agent = _agent()
    begun, done = asyncio.Event(), asyncio.Event()

    async def handler(event: hf.Event) -> None:
        begun.set()
        await asyncio.sleep(0.02)
        done.set()

    async with hf.open(None, agents=[agent]) as runtime:
        subscription = runtime.on(hf.TurnCompleted, handler)
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await begun.wait()
        await subscription.stop()
        assert done.is_set()


async def test_a_handler_may_stop_its_own_subscription() -> None:
    agent = _agent()
    subscriptions: list[hf.Subscription] = []
    found: list[hf.Event] = []

    async def once(event: hf.Event) -> None:
        found.append(event)
        await subscriptions[0].stop()

    async with hf.open(None, agents=[agent]) as runtime:
        subscription = runtime.on(hf.MessageCommitted, once)
        subscriptions.append(subscription)
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await until(lambda: subscription.finished)
        await asyncio.wait_for(subscription.stop(), PATIENCE)
        assert len(found) == 1


async def test_closing_the_runtime_finishes_its_subscriptions() -> None:
    async with hf.open(None) as runtime:
        subscription = runtime.on(Any, print)
        await runtime.close()
        assert subscription.finished


async def test_a_handler_that_never_returns_does_not_keep_the_runtime_from_closing() -> None:
    agent = _agent()
    begun, never = asyncio.Event(), asyncio.Event()

    async def hang(event: hf.Event) -> None:
        begun.set()
        await never.wait()

    async with hf.open(None, agents=[agent]) as runtime:
        runtime.on(hf.TurnCompleted, hang)
        await (await runtime.session("s", agent=agent).send("hello")).outcome()
        await begun.wait()
        try:
            await asyncio.wait_for(runtime.close(grace=0.2), PATIENCE)
        finally:
            never.set()


async def test_a_closed_runtime_takes_no_handler() -> None:
    async with hf.open(None) as runtime:
        await runtime.close()
        with pytest.raises(hf.RuntimeStopped):
            runtime.on(Any, print)


async def test_a_handler_may_start_work_of_its_own() -> None:
    script = ScriptedModel([delayed(0.001, text("one")), text("two")])
    agent = hf.Agent("a", model=script)
    answers: list[str] = []
    async with hf.open(None, agents=[agent]) as runtime:

        async def react(event: hf.TurnCompleted) -> None:
            if event.turn == "t1":
                answers.append((await (await runtime.session("s", agent=agent).send("and then?")).outcome()).text)

        async with runtime.on(hf.TurnCompleted, react):
            await (await runtime.session("s", agent=agent).send("hello")).outcome()
            await until(lambda: answers == ["two"])


async def test_a_request_that_waits_for_room_does_not_hold_up_the_turn_that_has_the_room() -> None:
    """The first request parks; the second, in the same session, waits for its room; the answer must reach the first."""

    @hf.tool
    async def refund() -> str:
        return "refunded"

    script = ScriptedModel([call(refund), text("refunded"), text("hello")])
    agent = hf.Agent("a", model=script, tools=[refund], policy=[hf.ask("refund")])
    control = hf.Control(concurrency=1)
    async with hf.open(None, agents=[agent]) as runtime:
        first = await runtime.emit(hf.EmitRequest(agent=agent, input="refund", session="s"), control=control)
        await until(lambda: runtime.active == 0)
        second = asyncio.create_task(
            runtime.emit(hf.EmitRequest(agent=agent, input="hello", session="s"), control=control)
        )
        await until(lambda: _accepted(runtime, 2))
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id, by="ops")
        assert (await first.outcome(timeout=PATIENCE)).text == "refunded"
        assert (await (await second).outcome(timeout=PATIENCE)).text == "hello"


async def _accepted(runtime: hf.Runtime, count: int) -> bool:
    with suppress(JournalMissing):
        return await runtime.store.input("s", count) is not None
    return False


async def test_the_timeout_of_a_control_counts_from_the_start_of_the_turn() -> None:
    """Each of three turns runs into the timeout, one after the other: none while it waits for room."""
    asked = 0

    async def never(_: hf.ModelRequest) -> hf.Text:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        return text("never")

    agent = hf.Agent("a", model=ScriptedModel(never))
    control = hf.Control(concurrency=1, timeout=0.2)
    async with hf.open(None, agents=[agent]) as runtime:
        request = hf.EmitRequest(agent=agent, input="hello")
        emitted = await asyncio.gather(*(runtime.emit(request, control=control) for _ in range(3)))
        outcomes = [await each.outcome(timeout=PATIENCE) for each in emitted]
    assert [outcome.code for outcome in outcomes] == ["deadline"] * 3
    assert asked == 3
