"""What a body is, its first bytes say: events, one JSON value, or an array whose elements are a stream."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from holdfast.errors import ContextOverflow, ModelError, StreamCut
from holdfast.messages import ModelRequest, StreamEnd, Text, TextChunk, ToolCall, Usage, UserMessage
from holdfast.models.dialect import Endpoint
from holdfast.models.http import HttpModel
from holdfast.models.registry import load_dialect
from holdfast.models.retry import Retry
from holdfast.models.transport import Timeouts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

REQUEST = ModelRequest(messages=(UserMessage("u1", (Text("Hello"),)),))


class Answer:
    """A response in the pieces it is given, and as many as `more` brings."""

    def __init__(self, pieces: Iterable[bytes], kind: str, more: asyncio.Queue[bytes] | None, status: int) -> None:
        self.status = status
        self.headers = {"content-type": kind} if kind else {}
        self._pieces = pieces
        self._more = more

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        while self._more is not None:
            yield await self._more.get()

    def close(self) -> None:
        pass


class Carrier:
    """A transport whose every answer is the same."""

    def __init__(
        self,
        *pieces: bytes,
        kind: str = "application/json",
        more: asyncio.Queue[bytes] | None = None,
        status: int = 200,
    ) -> None:
        self._answer = (pieces, kind, more, status)

    async def open(self, url: str, headers: Mapping[str, str], body: bytes, timeouts: Timeouts) -> Answer:
        return Answer(*self._answer)


def model(spoken: str, carrier: Carrier, rest: float = 2.0) -> HttpModel:
    at = Endpoint(provider="here", dialect=spoken, base_url="https://here.test/v1", auth="none")
    times = Timeouts(rest=rest)
    return HttpModel(at, "m1", load_dialect(spoken), transport=carrier, retry=Retry(attempts=1), timeouts=times)


async def reply_of(spoken: str, *pieces: bytes, kind: str = "application/json") -> Any:
    return await model(spoken, Carrier(*pieces, kind=kind)).respond(REQUEST)


def element(text: str, **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, **more}], "modelVersion": "m1"}


ELEMENTS = [
    element("The \u00e4pfel "),
    element('say "[{]}" '),
    {**element("and end.", finishReason="STOP"), "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 7}},
]
ARRAY = json.dumps(ELEMENTS, indent=2, ensure_ascii=False).encode()
SAID = 'The \u00e4pfel say "[{]}" and end.'


# ---- arrays ----------------------------------------------------------------------------------------------------------


async def test_the_elements_of_an_array_are_shown_as_they_arrive() -> None:
    more: asyncio.Queue[bytes] = asyncio.Queue()
    asked = model("google", Carrier(b"[" + json.dumps(ELEMENTS[0]).encode(), more=more))
    async with aclosing(asked.stream(REQUEST)) as stream:
        first = [await anext(stream) for _ in range(2)][1]
    assert first == TextChunk("The \u00e4pfel ")


async def test_an_array_cut_anywhere_in_two_gives_the_same() -> None:
    for at in range(len(ARRAY) + 1):
        reply = await reply_of("google", ARRAY[:at], ARRAY[at:])
        assert (reply.text, reply.finish, reply.usage) == (SAID, "stop", Usage(input=5, output=7)), at


async def test_an_array_in_single_bytes_gives_the_same() -> None:
    assert (await reply_of("google", *(ARRAY[at : at + 1] for at in range(len(ARRAY))))).text == SAID


async def test_an_array_that_ends_before_its_last_element_is_cut() -> None:
    with pytest.raises(StreamCut):
        await reply_of("google", json.dumps(ELEMENTS[:2]).encode())


async def test_an_array_whose_bracket_is_missing_is_whole_if_its_last_element_is() -> None:
    assert (await reply_of("google", ARRAY.rstrip().removesuffix(b"]"))).text == SAID


async def test_an_error_in_the_middle_of_an_array_has_its_own_class() -> None:
    failed = {"error": {"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded."}}
    with pytest.raises(ModelError) as caught:
        await reply_of("google", json.dumps([ELEMENTS[0], failed]).encode())
    assert caught.value.kind == "overloaded"


async def test_an_answer_of_one_object_is_read_like_an_array_of_one() -> None:
    assert (await reply_of("google", json.dumps(element("All.", finishReason="STOP")).encode())).text == "All."


# ---- bodies under another name ---------------------------------------------------------------------------------------

CHUNKS: list[dict[str, Any]] = [
    {"id": "c1", "choices": [{"index": 0, "delta": {"content": "Hel"}}]},
    {"id": "c1", "choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]},
]
EVENTS = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in CHUNKS) + b"data: [DONE]\n\n"
BODY = json.dumps({"id": "c1", "choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}).encode()
TOO_LONG = json.dumps({"error": {"message": "too long", "code": "context_length_exceeded"}}).encode()


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "", "text/event-stream; charset=utf-8"])
@pytest.mark.parametrize("body", [EVENTS, b"\xef\xbb\xbf" + EVENTS, b": hi\n\n" + EVENTS, BODY, b"\n " + BODY])
async def test_events_and_json_are_told_apart_whatever_they_are_called(body: bytes, kind: str) -> None:
    assert (await reply_of("chat", body, kind=kind)).text == "Hello"


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_what_a_body_is_is_known_also_when_it_comes_in_single_bytes(kind: str) -> None:
    for body in (b"\xef\xbb\xbf" + EVENTS, b"\xef\xbb\xbf \n" + BODY):
        pieces = [body[at : at + 1] for at in range(len(body))]
        assert (await reply_of("chat", *pieces, kind=kind)).text == "Hello"


async def test_json_that_is_called_a_stream_is_shown_like_one() -> None:
    asked = model("chat", Carrier(BODY, kind="text/event-stream"))
    events = [event async for event in asked.stream(REQUEST)]
    assert TextChunk("Hello") in events
    assert isinstance(events[-1], StreamEnd)


@pytest.mark.parametrize("spoken", ["chat", "responses"])
async def test_an_error_that_is_called_a_stream_has_its_own_class(spoken: str) -> None:
    with pytest.raises(ContextOverflow):
        await reply_of(spoken, TOO_LONG, kind="text/event-stream")


async def test_json_that_is_called_a_stream_and_breaks_off_is_no_reply() -> None:
    with pytest.raises(ModelError) as caught:
        await reply_of("chat", BODY[:-5], kind="text/event-stream")
    assert caught.value.retryable


# ---- a last word that was not the last -------------------------------------------------------------------------------

SHORT = 0.05
"""How long these models wait for what may follow the provider's last word, in seconds."""


async def said_slowly(spoken: str, *bodies: bytes) -> str:
    """The text of a reply whose third piece comes later than anybody waits for after a last word."""
    more: asyncio.Queue[bytes] = asyncio.Queue()
    asked = model(spoken, Carrier(*bodies[:2], kind="text/event-stream", more=more), rest=SHORT)
    told: list[str] = []
    async with aclosing(asked.stream(REQUEST)) as stream:
        async for event in stream:
            if isinstance(event, TextChunk):
                told.append(event.text)
                if len(told) == 2:
                    asyncio.get_running_loop().call_later(4 * SHORT, more.put_nowait, bodies[2])
            if len(told) == 3:
                break
    return "".join(told)


async def test_who_says_with_each_frame_that_it_was_the_last_is_heard_to_the_end_google() -> None:
    frames = [b"data: " + json.dumps(element(text, finishReason="STOP")).encode() + b"\n\n" for text in "abc"]
    assert await said_slowly("google", *frames) == "abc"


async def test_who_says_with_each_frame_that_it_was_the_last_is_heard_to_the_end_chat() -> None:
    chunks = [{"id": "c", "choices": [{"delta": {"content": text}, "finish_reason": "stop"}]} for text in "abc"]
    frames = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    assert await said_slowly("chat", *frames) == "abc"


async def test_a_stream_that_stays_open_after_its_last_word_holds_nobody_up() -> None:
    more: asyncio.Queue[bytes] = asyncio.Queue()
    asked = model("chat", Carrier(EVENTS, kind="text/event-stream", more=more), rest=SHORT)
    assert (await asyncio.wait_for(asked.respond(REQUEST), 5)).text == "Hello"


# ---- refusals --------------------------------------------------------------------------------------------------------


async def test_a_refusal_in_the_form_of_a_stream_is_read() -> None:
    said = json.dumps({"error": {"message": "no", "code": "insufficient_quota"}}).encode()
    refused = Carrier(b"event: error\ndata: " + said + b"\n\n", kind="text/event-stream", status=429)
    with pytest.raises(ModelError) as caught:
        await model("chat", refused).respond(REQUEST)
    assert caught.value.kind == "billing"


# ---- whatever comes --------------------------------------------------------------------------------------------------

STREAMS: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {"id": "c1", "created": 1, "choices": [{"index": 0, "delta": {"reasoning_content": "Hm \U0001f914."}}]},
        {"id": "c1", "choices": [{"index": 0, "delta": {"content": "\u00dcber "}}]},
        {
            "id": "c1",
            "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}}],
        },
        {
            "id": "c1",
            "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]}}],
        },
        {
            "id": "c1",
            "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}}],
        },
        {"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"id": "c1", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}},
    ],
    "anthropic": [
        {"type": "message_start", "message": {"id": "m1", "model": "m", "usage": {"input_tokens": 5}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm \U0001f914."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s1"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "a", "name": "f"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"x":'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ],
    "responses": [
        {"type": "response.created", "response": {"id": "r1", "created_at": 1, "status": "in_progress"}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "\u00dcber "},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "\U0001f914"},
        {
            "type": "response.output_item.done",
            "output_index": 1,
            "item": {"type": "reasoning", "id": "q", "summary": []},
        },
        {
            "type": "response.completed",
            "response": {"id": "r1", "status": "completed", "usage": {"input_tokens": 5, "output_tokens": 7}},
        },
    ],
    "google": [
        element("Hm \U0001f914."),
        {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": {"x": 1}}}]}}]},
        {**element("Ende.", finishReason="STOP"), "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 7}},
    ],
}


@st.composite
def written(draw: st.DrawFn, spoken: str) -> list[bytes]:
    """The stream of a dialect in some form that the rules for events allow, in some pieces."""
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    text = draw(st.sampled_from(["", "\ufeff"]))
    for frame in STREAMS[spoken]:
        text += draw(
            st.sampled_from(["", f": ping{end}", f":{end}{end}", f"id: 7{end}", f"retry: 1{end}", f"data{end}{end}"])
        )
        lines = json.dumps(frame, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1]))).split("\n")
        name = frame.get("type", "") if draw(st.booleans()) else ""
        text += f"event: {name}{end}" if name else ""
        text += "".join(f"data:{draw(st.sampled_from(['', ' ']))}{line}{end}" for line in lines)
        text += end
    data = text.encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=12)))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize("spoken", STREAMS)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_stream_means_the_same_in_every_form(spoken: str, data: st.DataObject) -> None:
    pieces = data.draw(written(spoken))
    plain = [b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in STREAMS[spoken]]
    expected, found = (asyncio.run(reply_of(spoken, *some, kind="text/event-stream")) for some in (plain, pieces))
    nameless = [part for part in found.parts if not isinstance(part, ToolCall)]
    assert nameless == [part for part in expected.parts if not isinstance(part, ToolCall)]
    assert [(call.name, call.arguments) for call in found.calls] == [("f", {"x": 1}) for _ in expected.calls]
    assert (found.finish, found.usage) == (expected.finish, Usage(input=5, output=7))


_FRAMES = [json.dumps(frame).encode() for frames in STREAMS.values() for frame in frames]
_ODD = st.sampled_from(
    [
        b"data: ",
        b"\n\n",
        b"\r",
        b"[",
        b"]",
        b",",
        b"{",
        b"}",
        b'"',
        b"\\",
        b":",
        b"null",
        b"[DONE]",
        b"\xef\xbb\xbf",
        b"\xff",
    ]
)


@settings(max_examples=examples(150), deadline=None)
@given(
    spoken=st.sampled_from(sorted(STREAMS)),
    kind=st.sampled_from(["text/event-stream", "application/json", "text/plain", ""]),
    pieces=st.lists(st.sampled_from(_FRAMES) | _ODD | st.binary(max_size=8), max_size=12),
)
def test_whatever_comes_there_is_a_reply_or_a_model_error(spoken: str, kind: str, pieces: list[bytes]) -> None:
    with suppress(ModelError):
        asyncio.run(reply_of(spoken, *pieces, kind=kind))
