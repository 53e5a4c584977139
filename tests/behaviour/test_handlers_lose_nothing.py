"""A handler gets every event behind its cursor, whatever it does with it; a subscription that can't go on says why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.errors import CursorInvalid
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

MANY = 30


def _agent() -> hf.Agent:
    return hf.Agent("a", model=ScriptedModel([text("x")] * MANY))


async def _said(runtime: hf.Runtime, agent: hf.Agent, turns: int = MANY) -> None:
    session = runtime.session("s", agent=agent)
    for number in range(turns):
        await (await session.send(f"{number}")).outcome(timeout=SOON)


async def _upto(events: AsyncGenerator[hf.Event], last: Callable[[hf.Event], bool]) -> list[hf.Event]:
    """What a reader sees, up to an event."""
    seen: list[hf.Event] = []
    async with asyncio.timeout(SOON):
        async for event in events:
            seen.append(event)
            if last(event):
                break
    await events.aclose()
    return seen


def _is_last(event: hf.Event) -> bool:
    return isinstance(event, hf.TurnCompleted) and event.turn == f"t{MANY}"


# ---- every event -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [None, "s"], ids=["all sessions", "one session"])
@pytest.mark.parametrize("kind", ["plain", "async", "yielding"])
async def test_a_handler_gets_every_event_that_a_reader_sees(session: str | None, kind: str) -> None:
    agent = _agent()
    got: list[hf.Event] = []

    async def asynchronous(event: hf.Event) -> None:
        got.append(event)

    async def yielding(event: hf.Event) -> None:
        await asyncio.sleep(0)
        got.append(event)

    handlers: dict[str, Callable[[hf.Event], Any]] = {"plain": got.append, "async": asynchronous, "yielding": yielding}
    async with hf.open(None, agents=[agent]) as runtime:
        await _said(runtime, agent)
        events = runtime.events(0) if session is None else runtime.session("s").events(0)
        wanted = await _upto(events, _is_last)
        runtime.on(Any, handlers[kind], session=session, after=0)
        await until(lambda: bool(got) and _is_last(got[-1]))
        assert [event.cursor for event in got] == [event.cursor for event in wanted]


async def test_a_handler_of_one_session_does_not_wait_for_that_of_another() -> None:
    agent = _agent()
    other = asyncio.Event()

    async def handle(event: hf.TurnCompleted) -> None:
        if event.session == "first":
            await other.wait()
        else:
            other.set()

    async with hf.open(None, agents=[agent]) as runtime:
        runtime.on(hf.TurnCompleted, handle)
        for name in ("first", "second"):
            await runtime.session(name, agent=agent).send("x")
        await asyncio.wait_for(other.wait(), SOON)


async def test_a_handler_may_close_the_runtime() -> None:
    agent = _agent()
    closed = asyncio.Event()
    async with hf.open(None, agents=[agent]) as runtime:

        async def handle(_: hf.TurnCompleted) -> None:
            await runtime.close()
            closed.set()

        runtime.on(hf.TurnCompleted, handle)
        await runtime.session("s", agent=agent).send("x")
        await asyncio.wait_for(closed.wait(), SOON)


# ---- a subscription that can't go on ---------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [None, "s"], ids=["all sessions", "one session"])
async def test_a_subscription_behind_the_end_says_why_it_can_not_go_on(session: str | None) -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        subscription = runtime.on(Any, print, session=session, after=5_000)
        await until(lambda: subscription.finished)
        assert isinstance(subscription.error, CursorInvalid)


async def test_a_subscription_that_can_not_go_on_is_stopped_without_an_error() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        async with runtime.on(Any, print, session="s", after=50) as subscription:
            await until(lambda: subscription.finished)
        assert subscription.finished


async def test_a_subscription_that_can_not_go_on_does_not_keep_the_runtime_from_closing() -> None:
    async with hf.open(None, agents=[_agent()]) as runtime:
        subscription = runtime.on(Any, print, session="s", after=50)
        await until(lambda: subscription.finished)
        async with asyncio.timeout(SOON):
            await runtime.close()


# ---- connecting again ------------------------------------------------------------------------------------------------


class _Talk:
    """A turn with two tools that report progress; the second holds until a test lets it go."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

        @hf.tool(read_only=True)
        async def first(ctx: hf.Context) -> str:
            for number in range(3):
                ctx.progress(f"A{number}")
            return "x"

        @hf.tool(read_only=True)
        async def second(ctx: hf.Context) -> str:
            for number in range(3):
                ctx.progress(f"B{number}")
            self.reached.set()
            await self.go_on.wait()
            return "x"

        script = [call("first"), call("second"), text("ok")]
        self.agent = hf.Agent("a", model=ScriptedModel(script), tools=[first, second], policy=[hf.allow("*")])


def _note(event: hf.Event) -> str:
    if isinstance(event, hf.events.ToolCallProgress):
        return event.note or ""
    return type(event).__name__


NOTES = ["A0", "A1", "A2", "B0", "B1", "B2"]


async def test_whoever_reads_all_sessions_from_the_first_sees_the_live_events_of_a_turn_under_way() -> None:
    talk = _Talk()
    async with hf.open(None, agents=[talk.agent]) as runtime:
        await runtime.session("s", agent=talk.agent).send("x")
        await asyncio.wait_for(talk.reached.wait(), SOON)
        seen = await _upto(runtime.events(0), lambda event: _note(event) == "B2")
        talk.go_on.set()
        assert [note for note in map(_note, seen) if note in {*NOTES, "Gap"}] == NOTES


@pytest.mark.parametrize("behind", ["A1", "TurnStarted"])
async def test_whoever_reads_all_sessions_and_connects_again_misses_nothing(behind: str) -> None:
    talk = _Talk()
    async with hf.open(None, agents=[talk.agent]) as runtime:
        events = runtime.events(0)
        reading = asyncio.ensure_future(_upto(events, lambda event: _note(event) == behind))
        await runtime.session("s", agent=talk.agent).send("x")
        first = await reading
        await asyncio.wait_for(talk.reached.wait(), SOON)
        rest = await _upto(runtime.events(first[-1].cursor), lambda event: _note(event) == "B2")
        talk.go_on.set()
        seen = [_note(event) for event in (*first, *rest)]
        assert [note for note in seen if note in {*NOTES, "Gap"}] == NOTES
