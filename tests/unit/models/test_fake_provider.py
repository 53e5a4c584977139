"""The fake provider: four dialects on a real socket, answers by position, and faults on demand."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import pytest
from tests.every import every

from holdfast.errors import InvalidArgument, InvalidNumber, UsageError
from holdfast.messages import ModelReply, Reasoning, Refusal, Text, ToolCall, Usage
from holdfast.testing import (
    BadFrame,
    CutStream,
    Disconnect,
    ErrorFrame,
    FakeProvider,
    HttpError,
    ProviderRequest,
    Stall,
    call,
    cut,
    delayed,
    dialects,
    error,
    refusal,
    reply,
    stream,
    text,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from holdfast.messages import FinishReason, ModelRequest
    from holdfast.testing.dialects import DialectName
    from holdfast.testing.scripted import ScriptReply

DIALECTS: list[DialectName] = ["anthropic", "responses", "chat", "google"]
WORK = [Reasoning("I should look."), text("Let me see."), call("look", item=1), call("look", item=2)]


class Got(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def frames(self) -> list[Any]:
        lines = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]


class Client:
    """Asks a provider as the dialect wants to be asked, with so many replies in the conversation before."""

    def __init__(self, provider: FakeProvider, session: aiohttp.ClientSession) -> None:
        self.provider = provider
        self.session = session

    def open(self, dialect: DialectName = "chat", position: int = 0, *, streamed: bool = True) -> Any:
        path, body = asking(dialect, position, streamed=streamed)
        return self.session.post(self.provider.url + path, json=body, headers={"authorization": "Bearer sesame"})

    async def ask(self, dialect: DialectName = "chat", position: int = 0, *, streamed: bool = True) -> Got:
        async with self.open(dialect, position, streamed=streamed) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Got(response.status, headers, await response.read())


def asking(dialect: DialectName, position: int, *, streamed: bool) -> tuple[str, dict[str, Any]]:
    model = "model" if dialect == "google" else "assistant"
    roles = ["user", *[role for _ in range(position) for role in (model, "user")]]
    if dialect == "google":
        verb = "streamGenerateContent?alt=sse" if streamed else "generateContent"
        return f"/v1beta/models/m:{verb}", {"contents": [{"role": role, "parts": [{"text": "."}]} for role in roles]}
    said = [{"role": role, "content": "."} for role in roles]
    if dialect == "responses":
        return "/v1/responses", {"model": "m", "stream": streamed, "input": said}
    if dialect == "anthropic":
        return "/v1/messages", {"model": "m", "stream": streamed, "max_tokens": 9, "messages": said}
    options = {"stream_options": {"include_usage": True}} if streamed else {}
    return "/v1/chat/completions", {"model": "m", "stream": streamed, "messages": said, **options}


@asynccontextmanager
async def serving(*script: Any, **options: Any) -> AsyncGenerator[Client]:
    async with FakeProvider(script, **options) as provider, aiohttp.ClientSession() as session:
        yield Client(provider, session)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # what a server sees has no event here
            await asyncio.sleep(0.001)


# ---- replies in four dialects ----------------------------------------------------------------------------------------


async def test_anthropic_streams_blocks_with_a_start_pieces_and_a_stop() -> None:
    async with serving(WORK) as client:
        got = await client.ask("anthropic")
    kinds = [frame["type"] for frame in got.frames]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    thinking = [*block[:2], "content_block_delta", block[2]]
    assert kinds == ["message_start", *thinking, *block * 3, "message_delta", "message_stop"]


async def test_anthropic_ends_a_reply_with_calls_as_tool_use_and_signs_its_thoughts() -> None:
    async with serving(WORK) as client:
        got = (await client.ask("anthropic", streamed=False)).json
    thought, words, *calls = got["content"]
    assert thought["thinking"] == "I should look."
    assert thought["signature"]
    assert words == {"type": "text", "text": "Let me see."}
    assert [(block["name"], block["input"]) for block in calls] == [("look", {"item": 1}), ("look", {"item": 2})]
    assert got["stop_reason"] == "tool_use"


async def test_chat_tells_calls_by_index_and_ends_with_usage_and_done() -> None:
    async with serving(WORK) as client:
        got = await client.ask("chat")
    deltas = [frame["choices"][0]["delta"] for frame in got.frames if frame["choices"]]
    calls = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    assert [(piece["index"], piece["function"]["arguments"]) for piece in calls] == [
        (0, ""),
        (0, '{"item":1}'),
        (1, ""),
        (1, '{"item":2}'),
    ]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "I should look."
    assert got.frames[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert got.frames[-1]["usage"]["total_tokens"] > 0
    assert got.body.endswith(b"data: [DONE]\n\n")


async def test_chat_tells_no_usage_of_a_stream_unless_it_is_asked_to() -> None:
    async with serving(text("Hi.")) as client:
        body: dict[str, Any] = {"model": "m", "stream": True, "messages": []}
        async with client.session.post(f"{client.provider.url}/chat/completions", json=body) as response:
            assert b"usage" not in await response.read()


async def test_responses_number_their_events_and_end_with_the_whole_response() -> None:
    async with serving(WORK) as client:
        got = await client.ask("responses")
    assert [frame["sequence_number"] for frame in got.frames] == list(range(len(got.frames)))
    last = got.frames[-1]
    assert last["type"] == "response.completed"
    kinds = [item["type"] for item in last["response"]["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    assert last["response"]["output"][0]["encrypted_content"]


async def test_google_sends_calls_whole_and_signs_the_first_after_thoughts() -> None:
    async with serving(WORK, chunks=8) as client:
        got = await client.ask("google")
    parts = [part for frame in got.frames for part in frame["candidates"][0]["content"]["parts"]]
    calls = [part for part in parts if "functionCall" in part]
    assert [part["functionCall"]["args"] for part in calls] == [{"item": 1}, {"item": 2}]
    assert ["thoughtSignature" in part for part in calls] == [True, False]
    assert got.frames[-1]["candidates"][0]["finishReason"] == "STOP"


async def test_google_without_sse_streams_one_json_array() -> None:
    async with serving(WORK, chunks=4) as client:
        path, body = asking("google", 0, streamed=True)
        async with client.session.post(client.provider.url + path.partition("?")[0], json=body) as response:
            assert response.headers["content-type"] == "application/json"
            found = json.loads(await response.read())
    assert found[-1]["candidates"][0]["finishReason"] == "STOP"
    assert len(found) > 2


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_body_that_is_no_stream_says_the_same(dialect: DialectName) -> None:
    async with serving(WORK) as client:
        whole = await client.ask(dialect, streamed=False)
    assert whole.headers["content-type"] == "application/json"
    for words in ("I should look.", "Let me see.", "look"):
        assert words in json.dumps(whole.json)


USAGES: dict[DialectName, Callable[[Any], Any]] = {
    "anthropic": lambda got: got["usage"],
    "responses": lambda got: got["usage"],
    "chat": lambda got: got["usage"],
    "google": lambda got: got["usageMetadata"],
}
COUNTED: dict[DialectName, dict[str, Any]] = {
    "anthropic": {
        "input_tokens": 5,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 3},
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 100,
    },
    "responses": {
        "input_tokens": 125,
        "input_tokens_details": {"cached_tokens": 20},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 132,
    },
    "chat": {
        "prompt_tokens": 125,
        "completion_tokens": 7,
        "total_tokens": 132,
        "prompt_tokens_details": {"cached_tokens": 20},
        "completion_tokens_details": {"reasoning_tokens": 3},
    },
    "google": {
        "promptTokenCount": 125,
        "cachedContentTokenCount": 20,
        "candidatesTokenCount": 4,
        "thoughtsTokenCount": 3,
        "totalTokenCount": 132,
    },
}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_usage_is_told_as_each_provider_counts(dialect: DialectName) -> None:
    usage = Usage(input=5, output=7, cache_read=20, cache_write=100, reasoning=3)
    async with serving(reply("Hi.", usage=usage)) as client:
        got = (await client.ask(dialect, streamed=False)).json
    assert USAGES[dialect](got) == COUNTED[dialect]


ENDS: dict[DialectName, Callable[[Any], Any]] = {
    "anthropic": lambda got: got["stop_reason"],
    "responses": lambda got: got["incomplete_details"]["reason"] if got["incomplete_details"] else got["status"],
    "chat": lambda got: got["choices"][0]["finish_reason"],
    "google": lambda got: got["candidates"][0]["finishReason"],
}


@pytest.mark.parametrize(
    ("dialect", "finish", "told"),
    [
        ("anthropic", "stop", "end_turn"),
        ("anthropic", "output_limit", "max_tokens"),
        ("anthropic", "refusal", "refusal"),
        ("anthropic", "context_overflow", "model_context_window_exceeded"),
        ("responses", "stop", "completed"),
        ("responses", "output_limit", "max_output_tokens"),
        ("responses", "content_filter", "content_filter"),
        ("chat", "stop", "stop"),
        ("chat", "output_limit", "length"),
        ("chat", "content_filter", "content_filter"),
        ("google", "stop", "STOP"),
        ("google", "output_limit", "MAX_TOKENS"),
        ("google", "content_filter", "SAFETY"),
    ],
)
async def test_a_reply_ends_as_the_script_says(dialect: DialectName, finish: FinishReason, told: str) -> None:
    async with serving(reply("Hi.", finish=finish)) as client:
        assert ENDS[dialect]((await client.ask(dialect, streamed=False)).json) == told


async def test_a_refusal_has_a_field_of_its_own_where_the_dialect_has_one() -> None:
    async with serving(refusal("I'd rather not.")) as client:
        chat = (await client.ask("chat", streamed=False)).json
        responses = (await client.ask("responses", streamed=False)).json
    assert chat["choices"][0]["message"]["refusal"] == "I'd rather not."
    assert responses["output"][0]["content"] == [{"type": "refusal", "refusal": "I'd rather not."}]


@pytest.mark.parametrize("dialect", ["anthropic", "responses", "chat"])
async def test_malformed_arguments_go_out_as_they_are(dialect: DialectName) -> None:
    async with serving([ToolCall("c1", "look", None, malformed='{"item": ')]) as client:
        got = await client.ask(dialect)
    assert '{\\"item\\": ' in got.body.decode()


async def test_google_tells_a_malformed_call_as_the_reason_of_the_end() -> None:
    async with serving([ToolCall("c1", "look", None, malformed='{"item": ')]) as client:
        got = await client.ask("google")
    assert got.frames[-1]["candidates"][0]["finishReason"] == "MALFORMED_FUNCTION_CALL"


# ---- the place in the conversation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_it_answers_by_the_number_of_replies_in_the_request(dialect: DialectName) -> None:
    async with serving(text("first"), text("second"), text("third")) as client:
        assert b"third" in (await client.ask(dialect, 2)).body
        assert b"first" in (await client.ask(dialect, 0)).body


async def test_the_items_of_one_reply_are_one_place() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "Go."},
        {"type": "reasoning", "id": "rs_0", "summary": []},
        {"type": "message", "role": "assistant", "content": []},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
    ]
    assert dialects.summarize_request("responses", "/responses", json.dumps({"input": items}).encode()).position == 1


async def test_past_the_end_of_the_script_comes_an_error_that_says_so() -> None:
    async with serving(text("only")) as client:
        got = await client.ask("chat", 1)
    assert got.status == 400
    assert "is over" in got.json["error"]["message"]


async def test_a_function_is_told_the_position() -> None:
    def answer(request: ModelRequest) -> ScriptReply:
        return text(f"at {request.position}")

    async with FakeProvider(answer) as provider, aiohttp.ClientSession() as session:
        assert b"at 3" in (await Client(provider, session).ask("chat", 3)).body


async def test_a_function_that_raises_gives_an_error_that_says_what() -> None:
    def answer(_: ModelRequest) -> ScriptReply:
        raise KeyError("oops")

    async with FakeProvider(answer) as provider, aiohttp.ClientSession() as session:
        got = await Client(provider, session).ask()
    assert got.status == 400
    assert "KeyError('oops')" in got.json["error"]["message"]


async def test_a_delayed_reply_is_the_same_reply() -> None:
    async with serving(delayed(0.001, text("late"))) as client:
        assert b"late" in (await client.ask()).body


async def test_an_error_of_the_script_has_the_status_of_its_kind() -> None:
    async with serving(error("slow down", kind="rate_limited", retryable=True)) as client:
        got = await client.ask("anthropic")
    assert got.status == 429
    assert got.json["error"] == {"type": "rate_limit_error", "message": "slow down"}


async def test_a_context_that_is_too_long_is_told_with_the_code_for_it() -> None:
    async with serving(error("too long", kind="context_overflow")) as client:
        got = await client.ask("responses")
    assert got.status == 400
    assert got.json["error"]["code"] == "context_length_exceeded"


async def test_a_cut_of_the_script_ends_without_the_last_frame() -> None:
    async with serving(cut("so far")) as client:
        got = await client.ask("anthropic")
    assert b"so far" in got.body
    assert b"message_stop" not in got.body


# ---- chunks ----------------------------------------------------------------------------------------------------------


def pieces_of(made: ModelReply, chunks: list[str], count: int) -> list[tuple[str, ...]]:
    return [pieces for _, pieces in dialects.split_reply(made, chunks, count)]


def test_a_reply_is_cut_into_as_many_pieces_as_are_wanted() -> None:
    calls = tuple(ToolCall(f"c{n}", "look", {"item": n}) for n in range(3))
    cuts = pieces_of(ModelReply(calls), [], 8)
    assert [len(pieces) for pieces in cuts] == [3, 3, 2]
    assert ["".join(pieces) for pieces in cuts] == ['{"item":0}', '{"item":1}', '{"item":2}']


def test_every_part_has_a_piece_even_when_fewer_are_wanted() -> None:
    assert pieces_of(ModelReply((Text("one"), Refusal("two"))), ["one", "two"], 1) == [("one",), ("two",)]


def test_words_that_the_script_has_cut_stay_so() -> None:
    made = ModelReply((Text("one two"), Text("three")))
    assert pieces_of(made, ["one ", "two", "three"], 3) == [("one ", "two"), ("three",)]


def test_short_words_are_cut_into_characters_at_most() -> None:
    assert pieces_of(ModelReply((Text("ab"),)), ["ab"], 8) == [("a", "b")]


def test_no_words_are_one_empty_piece() -> None:
    assert pieces_of(ModelReply((Text(""),)), [""], 8) == [("",)]


async def test_each_chunk_is_a_write_of_its_own() -> None:
    async with serving(text("abcdefgh"), chunks=8, pace=0.002) as client, client.open("chat") as response:
        chunks = [chunk async for chunk, _ in response.content.iter_chunks()]
    assert len(chunks) == 8


@every("dialect", DIALECTS)
@every("chunks", [1, 3, 8])
def test_a_reply_goes_out_in_as_many_writes_as_are_wanted(dialect: DialectName, chunks: int) -> None:
    made = ModelReply((Text("Let me look for it."), ToolCall("c", "look", {"item": 1}), Text("And for this.")))
    answer = dialects.stream_reply(
        dialects.RequestSummary(dialect, "m", 0), made, ["Let me look for it.", "And for this."], chunks
    )
    assert len(answer.pieces) == chunks


async def test_a_reply_of_nothing_is_a_whole_stream() -> None:
    async with serving(reply()) as client:
        for dialect in DIALECTS:
            assert (await client.ask(dialect)).frames, dialect


async def test_the_chunks_of_the_script_are_those_of_the_wire() -> None:
    async with serving(stream("Hel", "lo.")) as client:
        got = await client.ask("anthropic")
    deltas = [frame["delta"]["text"] for frame in got.frames if frame["type"] == "content_block_delta"]
    assert deltas == ["Hel", "lo."]


# ---- faults ----------------------------------------------------------------------------------------------------------


async def test_a_fault_is_met_once_and_the_next_request_gets_the_answer() -> None:
    async with serving(text("Hi."), faults=[HttpError(500)]) as client:
        assert [(await client.ask()).status for _ in range(2)] == [500, 200]


async def test_faults_by_position_wait_for_a_request_at_theirs() -> None:
    faults = {1: [HttpError(500), HttpError(529)]}
    async with serving(text("a"), text("b"), faults=faults) as client:
        assert [(await client.ask(position=position)).status for position in (0, 1, 1, 1, 0)] == [
            *(200, 500, 529, 200, 200)
        ]


async def test_a_function_decides_about_the_fault_of_each_request() -> None:
    def second(request: ProviderRequest) -> HttpError | None:
        return HttpError(503) if request.number == 2 else None

    async with serving(text("Hi."), faults=second) as client:
        assert [(await client.ask()).status for _ in range(3)] == [200, 503, 200]


async def test_a_function_of_faults_that_raises_gives_an_error_that_says_what() -> None:
    def broken(_: ProviderRequest) -> HttpError | None:
        raise KeyError("oops")

    async with serving(text("Hi."), faults=broken) as client:
        got = await client.ask()
    assert got.status == 400
    assert "oops" in got.json["error"]["message"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_too_many_requests_come_with_the_time_to_wait(dialect: DialectName) -> None:
    async with serving(text("Hi."), faults=[HttpError(429, retry_after=1.5)]) as client:
        got = await client.ask(dialect)
    assert got.status == 429
    assert got.headers["retry-after"] == "1.5"


async def test_google_tells_the_time_to_wait_in_the_body_too() -> None:
    async with serving(text("Hi."), faults=[HttpError(429, retry_after=1.5)]) as client:
        got = await client.ask("google")
    assert got.json["error"]["details"][0]["retryDelay"] == "1.5s"


async def test_the_time_to_wait_may_be_a_date() -> None:
    date = "Wed, 21 Oct 2026 07:28:00 GMT"
    async with serving(text("Hi."), faults=[HttpError(429, retry_after=date)]) as client:
        assert (await client.ask()).headers["retry-after"] == date


@pytest.mark.parametrize(
    ("dialect", "field", "told"),
    [
        ("anthropic", "type", "overloaded_error"),
        ("responses", "type", "server_error"),
        ("chat", "type", "server_error"),
        ("google", "status", "UNAVAILABLE"),
    ],
)
async def test_an_overloaded_provider_says_so_in_its_own_words(dialect: DialectName, field: str, told: str) -> None:
    async with serving(text("Hi."), faults=[HttpError(529)]) as client:
        got = await client.ask(dialect)
    assert got.status == 529
    assert got.json["error"][field] == told


async def test_a_disconnect_comes_before_the_first_byte() -> None:
    async with serving(text("Hi."), faults=[Disconnect()]) as client:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await client.ask()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_clean_cut_looks_whole_to_http_but_has_no_last_frame(dialect: DialectName) -> None:
    async with serving(text("abcdefgh"), chunks=8) as client:
        whole = await client.ask(dialect)
    async with serving(text("abcdefgh"), chunks=8, faults=[CutStream(5)]) as client:
        got = await client.ask(dialect)
    assert whole.body.startswith(got.body)
    assert 0 < len(got.frames) < len(whole.frames)


async def test_a_cut_after_all_chunks_still_has_no_last_frame() -> None:
    async with serving(text("abc"), chunks=3, faults=[CutStream(99)]) as client:
        got = await client.ask("chat")
    assert [frame["choices"][0]["finish_reason"] for frame in got.frames] == [None] * len(got.frames)


async def test_a_broken_cut_breaks_the_connection() -> None:
    async with serving(text("abcdefgh"), chunks=8, faults=[CutStream(5, clean=False)]) as client:
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.ask()


async def test_a_stall_before_the_first_byte_lasts_until_the_client_hangs_up() -> None:
    async with serving(text("Hi."), faults=[Stall()]) as client:
        asking_now = asyncio.create_task(client.ask())
        await until(lambda: client.provider.requests)
        assert not asking_now.done()
        asking_now.cancel()
        await until(lambda: client.provider.open_connections == 0)


async def test_a_stall_in_the_middle_comes_after_its_chunks() -> None:
    async with serving(text("abcdefgh"), chunks=8, faults=[Stall(after=3)]) as client:
        async with client.open("chat") as response:
            read = b""
            while read.count(b'"content":') < 4:  # an empty one is in the start
                read += await response.content.readany()
            assert client.provider.open_connections == 1
        await until(lambda: client.provider.open_connections == 0)


async def test_a_stall_that_ends_loses_nothing() -> None:
    async with serving(text("abc"), chunks=3, faults=[Stall(after=1, seconds=0.001)]) as client:
        assert (await client.ask("chat")).body == (await client.ask("chat")).body


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_bad_frame_stands_between_good_ones(dialect: DialectName) -> None:
    async with serving(text("abcdefgh"), chunks=8, faults=[BadFrame(2)]) as client:
        got = await client.ask(dialect)
        whole = await client.ask(dialect)
    bad = b'data: {"type": "cont\n\n'
    assert bad in got.body
    assert got.body.endswith(whole.body[-40:])


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_error_inside_a_stream_is_its_last_frame(dialect: DialectName) -> None:
    async with serving(text("abcdefgh"), chunks=8, faults=[ErrorFrame(2, message="went wrong")]) as client:
        got = await client.ask(dialect)
    assert got.status == 200
    assert "went wrong" in json.dumps(got.frames[-1])


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_error_inside_a_body_that_is_no_stream_is_all_of_it(dialect: DialectName) -> None:
    async with serving(text("Hi."), faults=[ErrorFrame(message="went wrong")]) as client:
        got = await client.ask(dialect, streamed=False)
    assert got.status == 200
    assert got.json["error"]["message"] == "went wrong"


async def test_what_a_request_met_is_kept_with_it() -> None:
    async with serving(text("Hi."), faults=[HttpError(500)]) as client:
        await client.ask()
        await client.ask()
        assert [request.fault for request in client.provider.requests] == [HttpError(500), None]


# ---- requests and connections ----------------------------------------------------------------------------------------


async def test_requests_are_kept_with_headers_and_body() -> None:
    async with serving(text("Hi.")) as client:
        await client.ask("anthropic")
        (request,) = client.provider.requests
    assert request.path == "/v1/messages"
    assert request.json["max_tokens"] == 9
    assert request.headers["authorization"] == "Bearer sesame"


async def test_a_key_is_not_in_the_repr_of_a_request() -> None:
    async with serving(text("Hi.")) as client:
        await client.ask()
        assert "sesame" not in repr(client.provider.requests)


async def test_only_the_last_requests_are_kept() -> None:
    async with serving(text("Hi."), keep=2) as client:
        for _ in range(3):
            await client.ask()
        assert [request.number for request in client.provider.requests] == [2, 3]


async def test_every_answer_has_an_id_of_its_own() -> None:
    async with serving(text("Hi.")) as client:
        assert (await client.ask("anthropic")).headers["request-id"] == "req_1"
        assert (await client.ask("chat")).headers["x-request-id"] == "req_2"


async def test_one_connection_serves_many_requests() -> None:
    async with serving(text("Hi.")) as client:
        for _ in range(3):
            await client.ask()
        assert client.provider.connections == 1


async def test_requests_that_come_in_one_packet_are_answered_in_order() -> None:
    async with FakeProvider([delayed(0.005, text("slow")), text("fast")]) as provider:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(provider.url.rpartition(":")[2]))
        for position in (0, 1):
            path, body = asking("chat", position, streamed=True)
            data = json.dumps(body).encode()
            writer.write(f"POST {path} HTTP/1.1\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        read = b""
        while b"fast" not in read:
            read += await reader.read(65_536)
        assert read.index(b"slow") < read.index(b"fast")
        writer.close()
        await writer.wait_closed()


async def test_a_request_may_come_byte_by_byte() -> None:
    async with FakeProvider([text("Hi.")]) as provider:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(provider.url.rpartition(":")[2]))
        path, body = asking("chat", 0, streamed=True)
        data = json.dumps(body).encode()
        for byte in f"POST {path} HTTP/1.1\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()


async def test_closing_hangs_up_on_who_still_waits() -> None:
    async with FakeProvider([text("Hi.")], faults=[Stall()]) as provider, aiohttp.ClientSession() as session:
        waiting = asyncio.create_task(Client(provider, session).ask())
        await until(lambda: provider.requests)
        await provider.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await waiting


# ---- what is not understood ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/nothing", b"{}", 404),
        ("GET", "/v1/messages", b"", 405),
        ("POST", "/v1/messages", b"no json", 400),
        ("POST", "/v1/messages", b'{"messages": 3}', 400),
        ("POST", "/v1/messages", b"\xff\xfe", 400),
    ],
)
async def test_a_request_that_is_not_understood_gets_an_error(method: str, path: str, body: bytes, status: int) -> None:
    async with serving(text("Hi.")) as client:
        async with client.session.request(method, client.provider.url + path, data=body) as response:
            assert response.status == status
            assert (await response.json())["error"]["message"]
        assert client.provider.requests == []


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"transfer-encoding: chunked", b"411"),
        (b"content-length: many", b"411"),
        (b"content-length: 99999999999", b"413"),
        (b"x: " + b"y" * 70_000, b"431"),
    ],
)
async def test_a_head_that_is_not_served_is_refused_by_name(head: bytes, status: bytes) -> None:
    async with FakeProvider([]) as provider:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(provider.url.rpartition(":")[2]))
        writer.write(b"POST /v1/messages HTTP/1.1\r\n" + head + (b"" if status == b"431" else b"\r\n\r\n"))
        assert (await reader.readline()).split()[1] == status
        writer.close()


def test_a_provider_that_does_not_run_has_no_url() -> None:
    with pytest.raises(UsageError, match="not running"):
        _ = FakeProvider([]).url


async def test_a_provider_starts_once() -> None:
    async with FakeProvider([]) as provider:
        with pytest.raises(UsageError, match="running already"):
            await provider.start()


@pytest.mark.parametrize("script", [3, "words", [3], [[3]]])
def test_a_bad_script_is_refused_at_once(script: Any) -> None:
    with pytest.raises(InvalidArgument):
        FakeProvider(script)


@pytest.mark.parametrize("faults", [3, "words", [429], {1: 429}, {1: [429]}])
def test_bad_faults_are_refused_at_once(faults: Any) -> None:
    with pytest.raises(InvalidArgument):
        FakeProvider([], faults=faults)


@every(
    "make",
    [
        lambda: FakeProvider([], chunks=0),
        lambda: FakeProvider([], pace=-1),
        lambda: FakeProvider([], keep=-1),
        lambda: FakeProvider([], faults={-1: HttpError(500)}),
        lambda: HttpError(200),
        lambda: HttpError(429, retry_after=-1),
        lambda: CutStream(-1),
        lambda: Stall(after=-1),
        lambda: Stall(seconds=float("nan")),
        lambda: BadFrame(-1),
        lambda: ErrorFrame(status=200),
    ],
)
def test_a_number_that_can_not_be_meant_is_refused(make: Any) -> None:
    with pytest.raises(InvalidNumber):
        make()


def test_a_time_to_wait_can_not_smuggle_in_a_header() -> None:
    with pytest.raises(InvalidArgument):
        HttpError(429, retry_after="1\r\nx: y")
