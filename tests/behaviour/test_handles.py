"""Handles of turns and sessions: they lead to what was meant, or say by name that there is no such thing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.runtime.runtime import context_of
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable


class Stage:
    """An agent whose first turn holds in a tool until a test lets it go."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

        @hf.tool(read_only=True)
        async def slow() -> str:
            self.reached.set()
            await self.go_on.wait()
            return "x"

        def answer(request: hf.ModelRequest) -> Any:
            return call("slow") if request.position == 0 else text("ok")

        self.agent = hf.Agent("a", model=ScriptedModel(answer), tools=[slow], policy=[hf.allow("*")])

    async def running(self) -> None:
        await asyncio.wait_for(self.reached.wait(), SOON)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    made.go_on.set()


async def _names(events: AsyncGenerator[hf.Event]) -> list[str]:
    async with asyncio.timeout(SOON):
        return [type(event).__name__ async for event in events]


ASKED: dict[str, Callable[[hf.Turn], Awaitable[object]]] = {
    "outcome": lambda turn: turn.outcome(timeout=SOON),
    "status": lambda turn: turn.status(),
    "cancel": lambda turn: turn.cancel(),
    "events": lambda turn: _names(turn.events()),
}


# ---- turns that are none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ASKED)
async def test_a_turn_that_never_was_is_unknown(stage: Stage, what: str) -> None:
    stage.go_on.set()
    async with hf.open(None, agents=[stage.agent]) as runtime:
        session = runtime.session("s", agent=stage.agent)
        await (await session.send("x")).outcome(timeout=SOON)
        with pytest.raises(hf.errors.TurnUnknown):
            await ASKED[what](session.turn("t99"))


@pytest.mark.parametrize("what", ASKED)
async def test_a_turn_of_a_session_that_never_was_is_unknown(stage: Stage, what: str) -> None:
    async with hf.open(None, agents=[stage.agent]) as runtime:
        with pytest.raises(hf.errors.TurnUnknown):
            await ASKED[what](runtime.session("nobody", agent=stage.agent).turn("t1"))


@pytest.mark.parametrize("what", ASKED)
async def test_a_turn_of_the_original_is_unknown_in_a_fork(stage: Stage, what: str) -> None:
    stage.go_on.set()
    async with hf.open(None, agents=[stage.agent]) as runtime:
        session = runtime.session("s", agent=stage.agent)
        await (await session.send("x")).outcome(timeout=SOON)
        fork = await session.fork()
        await (await fork.send("y")).outcome(timeout=SOON)
        with pytest.raises(hf.errors.TurnUnknown):
            await ASKED[what](fork.turn("t1"))


@pytest.mark.parametrize("what", ASKED)
async def test_a_request_to_stop_is_no_turn(stage: Stage, what: str) -> None:
    async with hf.open(None, agents=[stage.agent]) as runtime:
        session = runtime.session("s", agent=stage.agent)
        turn = await session.send("x")
        await stage.running()
        await turn.cancel("no")
        await turn.outcome(timeout=SOON)
        with pytest.raises(hf.errors.TurnUnknown):
            await ASKED[what](session.turn("t2"))


# ---- steering --------------------------------------------------------------------------------------------------------


async def test_events_of_steering_asked_for_before_it_entered_come_to_the_end_of_its_turn(stage: Stage) -> None:
    async with hf.open(None, agents=[stage.agent]) as runtime:
        session = runtime.session("s", agent=stage.agent)
        await session.send("one")
        await stage.running()
        steering = await session.send("steer", steer=True)
        cursor = (await anext(session.events())).cursor
        reading = asyncio.ensure_future(_names(steering.events(after=cursor)))
        await asyncio.sleep(0)
        stage.go_on.set()
        assert (await reading)[-1] == "TurnCompleted"


@pytest.mark.parametrize("whose", ["the one that was given", "one by its id"])
async def test_events_of_steering_that_has_entered_are_those_of_its_turn(stage: Stage, whose: str) -> None:
    async with hf.open(None, agents=[stage.agent]) as runtime:
        session = runtime.session("s", agent=stage.agent)
        await session.send("one")
        await stage.running()
        given = await session.send("steer", steer=True)
        stage.go_on.set()
        await given.outcome(timeout=SOON)
        names = await _names((given if whose.startswith("the") else session.turn("t2")).events())
        assert (names[0], names[-1]) == ("TurnStarted", "TurnCompleted")


async def test_the_outcome_of_steering_is_that_of_the_turn_it_entered(stage: Stage) -> None:
    async with hf.open(None, agents=[stage.agent]) as runtime:
        session = runtime.session("s", agent=stage.agent)
        await session.send("one")
        await stage.running()
        await session.send("steer", steer=True)
        stage.go_on.set()
        assert (await session.turn("t2").outcome(timeout=SOON)).turn == "t1"


# ---- the outcome of a turn whose events were read --------------------------------------------------------------------


async def _ends(turn: hf.Turn) -> list[hf.Event]:
    async with asyncio.timeout(SOON):
        return [event async for event in turn.events()]


async def test_the_outcome_after_the_events_is_the_one_that_the_journal_tells(stage: Stage) -> None:
    stage.go_on.set()
    async with hf.open(None, agents=[stage.agent]) as runtime:
        session = runtime.session("s", agent=stage.agent)
        turn = await session.send("x")
        await _ends(turn)
        assert await turn.outcome(timeout=SOON) == await session.turn("t1").outcome(timeout=SOON)


async def test_the_outcome_after_the_events_is_that_of_the_turn_and_not_of_a_later_one(stage: Stage) -> None:
    stage.go_on.set()
    async with hf.open(None, agents=[stage.agent]) as runtime:
        session = runtime.session("s", agent=stage.agent)
        first, second = await session.send("x"), await session.send("y")
        await second.outcome(timeout=SOON)
        await _ends(first)
        assert (await first.outcome(timeout=SOON)).turn == "t1"


async def test_the_outcome_after_the_events_of_steering_is_that_of_the_turn_it_entered(stage: Stage) -> None:
    async with hf.open(None, agents=[stage.agent]) as runtime:
        session = runtime.session("s", agent=stage.agent)
        await session.send("one")
        await stage.running()
        steering = await session.send("steer", steer=True)
        reading = asyncio.ensure_future(_ends(steering))
        stage.go_on.set()
        await reading
        assert (await steering.outcome(timeout=SOON)).turn == "t1"


async def test_the_outcome_after_the_events_of_a_cancelled_turn_says_why(stage: Stage) -> None:
    async with hf.open(None, agents=[stage.agent]) as runtime:
        turn = await runtime.session("s", agent=stage.agent).send("one")
        await stage.running()
        await turn.cancel("enough")
        await _ends(turn)
        outcome = await turn.outcome(timeout=SOON)
        assert (outcome.status, outcome.message) == ("cancelled", "enough")


# ---- stopping a session ----------------------------------------------------------------------------------------------


async def test_a_session_is_cancelled_right_after_an_input_was_sent(stage: Stage) -> None:
    async with hf.open(None, agents=[stage.agent]) as runtime:
        session = runtime.session("s", agent=stage.agent)
        turn = await session.send("x")
        assert await session.cancel("stop") == "requested"
        assert (await turn.outcome(timeout=SOON)).message == "stop"


async def test_with_no_turn_open_a_session_cancels_the_next_one_in_the_queue(stage: Stage) -> None:
    stage.go_on.set()
    async with hf.open(None, agents=[stage.agent], drive=False) as runtime:
        session = runtime.session("s", agent=stage.agent)
        first, second = await session.send("one"), await session.send("two")
        await session.cancel("stop")
        await context_of(runtime).sessions.settle("s")
        assert (await first.status(), await second.status()) == ("cancelled", "completed")
