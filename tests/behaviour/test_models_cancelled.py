"""A model call that is cancelled leaves its tries in the ledger: what was asked was asked, and may have to be paid."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.behaviour.stage import SOON

import holdfast as hf
from holdfast.errors import ModelError
from holdfast.messages import Attempt, ModelRequest, StreamNote, Text, TextChunk, UserMessage, decode_reply
from holdfast.models.contract import flatten_batches, stream_batches
from holdfast.models.limits import CallLimits
from holdfast.records import Cancelled, Done, Failed
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import CutStream, FakeProvider, HttpError, Stall, check, stream, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.messages import StreamEvent
    from holdfast.records import Record

SOME_TIME = 60.0
"""A pause that no test waits for."""
SLOW = hf.Retry(first=SOME_TIME, longest=SOME_TIME)
QUICK = hf.Retry(first=0.001, longest=0.001)


def asks(provider: FakeProvider, retry: hf.Retry = QUICK, **more: Any) -> hf.HttpModel:
    return hf.model("mine:small", base_url=f"{provider.url}/v1", retry=retry, **more)  # pyright: ignore[reportReturnType]


def request(ledger: list[Attempt]) -> ModelRequest:
    return ModelRequest(messages=(UserMessage("u1", (Text("Hello"),)),), ledger=ledger)


async def stopped(model: hf.Model, ledger: list[Attempt], at: type[Any] = TextChunk) -> None:
    """Ask, and cancel the call after an event of some kind."""
    when = asyncio.Event()

    async def asking() -> None:
        async with aclosing(flatten_batches(stream_batches(model, request(ledger)))) as events:
            async for event in events:
                if isinstance(event, at):
                    when.set()

    task = asyncio.create_task(asking())
    await asyncio.wait_for(when.wait(), SOON)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# ---- the ledger of a model -------------------------------------------------------------------------------------------


async def test_a_call_that_is_cancelled_while_it_streams_notes_the_try_under_way() -> None:
    ledger: list[Attempt] = []
    async with FakeProvider([stream("one ", "two")], faults=[Stall(after=1)], chunks=2) as provider:
        await stopped(asks(provider), ledger)
    assert [(line.model, line.outcome, line.status) for line in ledger] == [("mine:small", "cancelled", 200)]


async def test_a_call_that_is_cancelled_in_a_pause_notes_the_try_before_it() -> None:
    ledger: list[Attempt] = []
    async with FakeProvider([text("never")], faults=[HttpError(529)]) as provider:
        await stopped(asks(provider, SLOW), ledger, StreamNote)
    assert [(line.outcome, line.status, bool(line.request_id)) for line in ledger] == [("overloaded", 529, True)]


async def test_tries_that_failed_and_the_one_that_is_cancelled_are_noted_in_their_order() -> None:
    ledger: list[Attempt] = []
    faults = [HttpError(500), HttpError(503), Stall(after=1)]
    async with FakeProvider([stream("one ", "two")], faults=faults, chunks=2) as provider:
        await stopped(asks(provider), ledger)
    assert [line.outcome for line in ledger] == ["server_error", "overloaded", "cancelled"]


async def test_a_call_that_waits_for_its_turn_has_made_no_try() -> None:
    ledger: list[Attempt] = []
    limits = CallLimits(concurrency=1)
    async with FakeProvider([stream("one ", "two")], faults=[Stall(after=1)], chunks=2) as provider:
        model = asks(provider, limits=limits)
        async with aclosing(model.stream(request([]))) as first:
            async for event in first:
                if isinstance(event, TextChunk):
                    break
            waiting = asyncio.create_task(model.respond(request(ledger)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
    assert ledger == []


async def test_whoever_stops_reading_has_the_try_in_the_ledger() -> None:
    ledger: list[Attempt] = []
    async with FakeProvider([stream("one ", "two")], faults=[Stall(after=1)], chunks=2) as provider:
        async with aclosing(asks(provider).stream(request(ledger))) as events:
            async for event in events:
                if isinstance(event, TextChunk):
                    break
        assert [line.outcome for line in ledger] == ["cancelled"]


async def test_a_call_that_is_answered_has_each_try_in_the_ledger_once() -> None:
    ledger: list[Attempt] = []
    async with FakeProvider([text("Yes.")], faults=[HttpError(500)]) as provider:
        reply = await asks(provider).respond(request(ledger))
    assert tuple(ledger) == reply.attempts


async def test_the_tries_of_all_models_of_a_list_are_noted() -> None:
    class Broken:
        name = "own:broken"

        def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
            raise ModelError("it has no answer", kind="bad_request")

    ledger: list[Attempt] = []
    refusing = FakeProvider([text("never")], faults=[HttpError(402)])
    stalling = FakeProvider([stream("one ", "two")], faults=[Stall(after=1)], chunks=2)
    async with refusing, stalling:
        await stopped(hf.Fallback([asks(refusing), Broken(), asks(stalling)]), ledger)
    assert [(line.model, line.outcome) for line in ledger] == [
        ("mine:small", "billing"),
        ("own:broken", "bad_request"),
        ("mine:small", "cancelled"),
    ]


# ---- the ledger of a turn --------------------------------------------------------------------------------------------


async def records(runtime: hf.Runtime, session: str) -> list[Record]:
    return [entry.record for entry in await runtime.store.read(session)]


def tries(record: Cancelled | Failed) -> list[Attempt]:
    return msgspec.json.decode(bytes(record.detail), type=list[Attempt])


async def test_a_turn_that_is_cancelled_between_two_tries_has_the_first_in_its_journal() -> None:
    async with FakeProvider([text("never")], faults=[HttpError(529)]) as provider:
        agent = hf.Agent("agent", model=asks(provider, SLOW))
        async with hf.open(None, agents=[agent]) as runtime:
            turn = await runtime.session("s", agent=agent).send("go")
            async for event in turn.events():
                if isinstance(event, hf.events.ModelNote):
                    await turn.cancel("hung up")
            assert (await turn.outcome(timeout=SOON)).status == "cancelled"
            (left,) = [record for record in await records(runtime, "s") if isinstance(record, Cancelled)]
            (line,) = tries(left)
            assert (line.model, line.outcome, line.status) == ("mine:small", "overloaded", 529)
            assert await check(runtime.store) == []


async def test_a_turn_that_is_cancelled_while_it_streams_has_all_tries_with_the_words_so_far() -> None:
    faults = [CutStream(after=1), Stall(after=1)]
    async with FakeProvider([stream("one ", "two")], faults=faults, chunks=2) as provider:
        agent = hf.Agent("agent", model=asks(provider))
        async with hf.open(None, agents=[agent]) as runtime:
            turn = await runtime.session("s", agent=agent).send("go")
            seen = 0
            async for event in turn.events():
                seen += isinstance(event, hf.TextDelta)
                if seen == 2:
                    await turn.cancel("hung up")
                    seen += 1
            assert (await turn.outcome(timeout=SOON)).text == "one "
            (_, said) = [record for record in await records(runtime, "s") if isinstance(record, Done)]
            reply = decode_reply(bytes(said.value))
            assert [line.outcome for line in reply.attempts] == ["stream_cut", "cancelled"]


async def test_a_turn_past_its_deadline_has_its_tries_in_its_journal() -> None:
    async with FakeProvider([text("never")], faults=[HttpError(500)]) as provider:
        agent = hf.Agent("agent", model=asks(provider, SLOW))
        async with hf.open(None, agents=[agent]) as runtime:
            turn = await runtime.session("s", agent=agent).send("go", deadline=timedelta(seconds=0.3))
            assert (await turn.outcome(timeout=SOON)).code == "deadline"
            (left,) = [record for record in await records(runtime, "s") if isinstance(record, Cancelled)]
            assert [line.outcome for line in tries(left)] == ["server_error"]


async def test_a_turn_that_was_cancelled_between_two_tries_replays_as_it_was() -> None:
    async with FakeProvider([text("never")], faults=[HttpError(500)]) as provider:
        agent = hf.Agent("agent", model=asks(provider, SLOW))
        async with hf.open(None, agents=[agent]) as runtime:
            turn = await runtime.session("s", agent=agent).send("go")
            async for event in turn.events():
                if isinstance(event, hf.events.ModelNote):
                    await turn.cancel("hung up")
            assert [found.verdict for found in await check_turns(runtime.store, "s", agent)] == ["ok"]


async def test_a_conversation_goes_on_after_a_call_that_was_cancelled_in_vain() -> None:
    async with FakeProvider([text("Here I am.")], faults=[HttpError(500)]) as provider:
        agent = hf.Agent("agent", model=asks(provider, SLOW))
        async with hf.open(None, agents=[agent]) as runtime:
            session = runtime.session("s", agent=agent)
            turn = await session.send("go")
            async for event in turn.events():
                if isinstance(event, hf.events.ModelNote):
                    await turn.cancel("hung up")
            again = await session.send("are you there?")
            assert (await again.outcome(timeout=SOON)).text == "Here I am."


async def test_a_question_that_fails_has_its_tries_in_its_journal() -> None:
    faults = [HttpError(500), HttpError(400)]
    async with FakeProvider([text("never")], faults=faults) as provider, hf.open(None) as runtime:
        with pytest.raises(ModelError):
            await runtime.complete(asks(provider), "Well?", key="q")
        (failed,) = [record for record in await records(runtime, "direct/q") if isinstance(record, Failed)]
        assert [line.outcome for line in tries(failed)] == ["server_error", "bad_request"]
