"""Several models in a row: the first that works answers, and everybody is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.errors import InvalidArgument, ModelError, ModelUnknown
from holdfast.messages import (
    ModelReply,
    ModelRequest,
    StreamEnd,
    StreamEvent,
    StreamNote,
    StreamReset,
    StreamStart,
    Text,
    TextChunk,
    UserMessage,
)
from holdfast.models import register
from holdfast.models.fallback import Fallback
from holdfast.testing import ScriptedModel
from holdfast.testing.scripted import cut, error, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REQUEST = ModelRequest(messages=(UserMessage("u1", (Text("hello"),)),))


def says(name: str, *script: Any) -> ScriptedModel:
    return ScriptedModel(list(script), name=name)


def failing(name: str, kind: str = "overloaded") -> ScriptedModel:
    return says(name, error(f"{name} is down", kind=kind))


async def events_of(model: Fallback) -> list[StreamEvent]:
    return [event async for event in model.stream(REQUEST)]


async def test_the_first_model_answers_when_it_can() -> None:
    second = says("b:2", text("second"))
    reply = await Fallback([says("a:1", text("first")), second]).respond(REQUEST)
    assert (reply.text, reply.attempts, second.requests) == ("first", (), [])


@pytest.mark.parametrize("kind", ["overloaded", "authentication", "not_found", "bad_request", "billing", "network"])
async def test_the_next_model_answers_when_one_has_failed_for_good(kind: str) -> None:
    reply = await Fallback([failing("a:1", kind), says("b:2", text("second"))]).respond(REQUEST)
    assert (reply.text, reply.model) == ("second", "b:2")


async def test_the_ledger_has_the_tries_of_all_models() -> None:
    reply = await Fallback([failing("a:1"), failing("b:2", "network"), says("c:3", text("x"))]).respond(REQUEST)
    told = [(line.model, line.outcome) for line in reply.attempts]
    assert told == [("a:1", "overloaded"), ("b:2", "network"), ("c:3", "completed")]


async def test_the_last_error_has_the_tries_of_all_models() -> None:
    with pytest.raises(ModelError, match="b:2 is down") as caught:
        await Fallback([failing("a:1"), failing("b:2")]).respond(REQUEST)
    assert [line.model for line in caught.value.attempts] == ["a:1", "b:2"]


@pytest.mark.parametrize("kind", ["context_overflow", "content_filter"])
async def test_what_is_about_the_conversation_is_not_taken_elsewhere(kind: str) -> None:
    second = says("b:2", text("second"))
    with pytest.raises(ModelError) as caught:
        await Fallback([failing("a:1", kind), second]).respond(REQUEST)
    assert (caught.value.kind, second.requests) == (kind, [])


async def test_observers_are_told_who_takes_over_and_why() -> None:
    events = await events_of(Fallback([failing("a:1"), says("b:2", text("second"))]))
    assert events[0] == StreamNote("fallback", "b:2 takes over from a:1 after overloaded: a:1 is down")


async def test_what_the_first_model_showed_is_taken_back() -> None:
    events = await events_of(Fallback([says("a:1", cut("half a")), says("b:2", text("whole"))]))
    kinds = [type(event) for event in events]
    assert kinds[:4] == [StreamStart, TextChunk, StreamReset, StreamNote]
    assert kinds.count(StreamReset) == 1
    assert [event.text for event in events[4:] if isinstance(event, TextChunk)] == ["whole"]


async def test_nothing_is_taken_back_when_nothing_was_shown() -> None:
    events = await events_of(Fallback([failing("a:1"), says("b:2", text("second"))]))
    assert not any(isinstance(event, StreamReset) for event in events)


async def test_what_was_taken_back_already_is_not_taken_back_twice() -> None:
    class Wavering:
        name = "a:1"

        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
            yield TextChunk("half")
            yield StreamReset("cut")
            raise ModelError("gone", kind="network")

    events = await events_of(Fallback([Wavering(), says("b:2", text("second"))]))
    assert sum(isinstance(event, StreamReset) for event in events) == 1


async def test_a_mistake_of_the_program_is_not_covered_by_another_model() -> None:
    second = says("b:2", text("second"))
    with pytest.raises(ZeroDivisionError):
        await Fallback([says("a:1", ZeroDivisionError()), second]).respond(REQUEST)
    assert second.requests == []


async def test_whoever_stops_reading_closes_the_stream_of_the_model() -> None:
    closed: list[str] = []

    class Watched:
        name = "a:1"

        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
            try:
                yield TextChunk("one")
                yield StreamEnd(ModelReply((Text("one"),)))
            finally:
                closed.append(self.name)

    stream = Fallback([Watched()]).stream(REQUEST)
    assert await anext(stream) == TextChunk("one")
    await stream.aclose()
    assert closed == ["a:1"]


def test_a_list_of_names_is_a_chain() -> None:
    register("chained", lambda name: says(f"chained:{name}"))
    chain = hf.model(["chained:a", "groq:b", says("own:c")])
    assert isinstance(chain, Fallback)
    assert chain.name == "chained:a | groq:b | own:c"


def test_a_name_in_a_list_that_stands_for_nothing_is_refused() -> None:
    with pytest.raises(ModelUnknown):
        hf.model(["groq:b", "nobody:home"])


@pytest.mark.parametrize("wrong", [[], (), "groq:a", None, [1]])
def test_a_chain_of_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        Fallback(wrong)


async def test_a_turn_goes_on_with_the_next_model() -> None:
    chain = Fallback([failing("a:1"), says("b:2", text("second"))])
    outcome = await hf.run(hf.Agent("helper", model=chain), "hello")
    assert (outcome.status, outcome.text) == ("completed", "second")
