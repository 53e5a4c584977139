"""Other ways to say the same: what the protocols allow, and what servers that speak them really send.

Each stream here is made by hand after a documented shape or a reported one. Nothing is taken from recorded traffic.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.every import every

from holdfast.errors import ContextOverflow, ModelError, StreamCut
from holdfast.messages import ModelReply, Reasoning, Refusal, Text, ToolCall, Usage
from holdfast.models.dialect import Endpoint, Frame
from holdfast.models.errors import classify_error
from holdfast.models.registry import load_dialect
from holdfast.models.retry import delay_from_headers
from holdfast.models.sse import SseDecoder


def reader_of(spoken: str) -> Any:
    return load_dialect(spoken).reader(Endpoint(provider="here", dialect=spoken, base_url="https://here"), "m")


def reply(spoken: str, *frames: dict[str, Any]) -> ModelReply:
    reader = reader_of(spoken)
    for frame in frames:
        reader.feed(Frame("", json.dumps(frame).encode()))
    return reader.finish()


def failure(spoken: str, *frames: dict[str, Any]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        reply(spoken, *frames)
    return caught.value


def thoughts(found: ModelReply) -> str:
    return "".join(part.text for part in found.parts if isinstance(part, Reasoning))


# ---- server-sent events ----------------------------------------------------------------------------------------------

FIRST, SECOND = '{"a":1}', '{"b":2}'


@every(
    "text",
    [
        f"data: {FIRST}\n\ndata: {SECOND}\n\n",
        f"data:{FIRST}\n\ndata:{SECOND}\n\n",
        f"data: {FIRST}\r\n\r\ndata: {SECOND}\r\n\r\n",
        f"data: {FIRST}\r\rdata: {SECOND}\r\r",
        f"data: {FIRST}\n\r\ndata: {SECOND}\r\n\n",
        f": hello\n\ndata: {FIRST}\n\n:\n\n: ping\ndata: {SECOND}\n\n",
        f"id: 1\nretry: 5\ndata: {FIRST}\n\nid\ndata: {SECOND}\n\n",
        f"data: {FIRST}\n\n\n\n\ndata: {SECOND}\n\n",
        f"event: x\n\ndata: {FIRST}\n\ndata:\n\ndata\n\ndata: {SECOND}",
        'data: {"a":\ndata: 1}\n\n' + f"data: {SECOND}\n\n",
    ],
    ids=str,
)
def test_events_are_the_same_however_they_are_written(text: str) -> None:
    data = text.encode()
    for size in (1, 2, 3, len(data)):
        decoder = SseDecoder()
        frames = [frame for at in range(0, len(data), size) for frame in decoder.feed(data[at : at + size])]
        found = [json.loads(frame.data) for frame in (*frames, *decoder.close()) if frame.data]
        assert found == [{"a": 1}, {"b": 2}]


# ---- chat ------------------------------------------------------------------------------------------------------------


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c1", "created": 1, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(index: Any = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    told = {"index": index, "id": id}
    function = {"name": name, "arguments": arguments}
    return {
        **{field: value for field, value in told.items() if value is not None},
        "function": {field: value for field, value in function.items() if value is not None},
    }


def called(*pieces: dict[str, Any] | list[dict[str, Any]]) -> list[tuple[str, str, Any]]:
    chunks = [chunk(tool_calls=piece if isinstance(piece, list) else [piece]) for piece in pieces]
    found = reply("chat", *chunks, chunk("tool_calls"))
    return [(made.id, made.name, made.arguments) for made in found.calls]


@every("field", ["reasoning_content", "reasoning", "reasoning_text", "thinking"])
@every("told", ["Hm.", {"text": "Hm."}, {"content": "Hm."}, [{"type": "text", "text": "Hm."}]], ids=str)
def test_chat_reasoning_is_found_in_each_field_and_form(field: str, told: Any) -> None:
    found = reply("chat", chunk(**{field: told}), chunk(content="Yes."), chunk("stop"))
    assert (thoughts(found), found.text) == ("Hm.", "Yes.")


@pytest.mark.parametrize("field", ["reasoning_text", "thinking"])
def test_chat_reasoning_is_found_in_a_whole_body_too(field: str) -> None:
    body = {"choices": [{"message": {"content": "Yes.", field: "Hm."}, "finish_reason": "stop"}]}
    assert thoughts(reader_of("chat").read_body(json.dumps(body).encode())) == "Hm."


@pytest.mark.parametrize(
    "content", ["ab", ["a", "b"], {"type": "text", "text": "ab"}, [{"type": "text", "text": "ab"}]]
)
def test_chat_content_may_be_a_text_a_part_or_a_list(content: Any) -> None:
    assert reply("chat", chunk(content=content), chunk("stop")).text == "ab"


def test_chat_sound_is_read_by_its_words() -> None:
    pieces = [chunk(audio={"id": "a1", "transcript": piece}) for piece in ("Good ", "day.")]
    assert reply("chat", *pieces, chunk(audio={"data": "UklGRg=="}), chunk("stop")).text == "Good day."


def test_chat_sound_and_pictures_that_can_not_be_kept_are_counted() -> None:
    reader = reader_of("chat")
    for frame in (chunk(audio={"data": "UklGRg=="}), chunk(images=[{"type": "image_url"}] * 2), chunk("stop")):
        reader.feed(Frame("", json.dumps(frame).encode()))
    assert reader.ignored == 3


def test_chat_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    tails = [call(None, "a", None, "1}"), call(None, "b", None, "2}")]
    found = called([call(None, "a", "f", '{"x":'), call(None, "b", "g", '{"y":')], tails)
    assert found == [("a", "f", {"x": 1}), ("b", "g", {"y": 2})]


def test_chat_calls_may_grow_in_turns() -> None:
    found = called(
        [call(0, "a", "f", ""), call(1, "b", "g", "")],
        call(1, None, None, '{"y"'),
        call(0, None, None, '{"x"'),
        call(1, None, None, ":2}"),
        call(0, None, None, ":1}"),
    )
    assert found == [("a", "f", {"x": 1}), ("b", "g", {"y": 2})]


@pytest.mark.parametrize("arguments", [{"x": 1}, '{"x": 1}', '{"x":1}\n'], ids=str)
def test_chat_arguments_may_be_an_object_or_its_text(arguments: Any) -> None:
    assert called(call(0, "a", "f", arguments)) == [("a", "f", {"x": 1})]


@pytest.mark.parametrize("arguments", [None, "", "null", {}, "{}"], ids=str)
def test_chat_a_call_may_have_no_arguments(arguments: Any) -> None:
    assert called(call(0, "a", "f", arguments)) == [("a", "f", {})]


def test_chat_a_name_may_come_after_the_first_arguments() -> None:
    assert called(call(0, "a", None, '{"x"'), call(0, None, "f", ":1}")) == [("a", "f", {"x": 1})]


def test_chat_a_name_may_come_in_pieces() -> None:
    assert called(call(0, "a", "get_"), call(0, None, "weather", "{}")) == [("a", "get_weather", {})]


def test_chat_a_name_that_is_said_again_is_no_piece() -> None:
    assert called(call(0, "a", "f", '{"x"'), call(0, "a", "f", ":1}")) == [("a", "f", {"x": 1})]


def test_chat_the_tail_of_a_call_may_stand_under_an_index_of_its_own() -> None:
    found = called(call(0, "a", "f", '{"x":1}'), call(0, "b", "g", ""), call(1, None, None, '{"y":2}'))
    assert found == [("a", "f", {"x": 1}), ("b", "g", {"y": 2})]


def test_chat_a_tail_with_an_id_belongs_to_the_call_with_that_id() -> None:
    found = called(call(0, "a", "f", '{"x"'), call(1, "b", "g", "{}"), call(7, "a", None, ":1}"))
    assert found == [("a", "f", {"x": 1}), ("b", "g", {})]


def test_chat_a_call_after_words_that_said_they_were_the_last_is_read() -> None:
    found = reply("chat", chunk("stop", content="Well. "), chunk("stop", tool_calls=[call(0, "a", "f", '{"x":1}')]))
    assert ([made.arguments for made in found.calls], found.finish, found.text) == ([{"x": 1}], "tool_calls", "Well. ")


def test_chat_a_call_that_begins_after_the_end_needs_an_end_of_its_own() -> None:
    error = failure("chat", chunk("stop", content="Well. "), chunk(tool_calls=[call(0, "a", "f", '{"x":1}')]))
    assert error.kind == "stream_cut"


def test_chat_nothing_is_added_to_calls_that_are_over() -> None:
    late = chunk(tool_calls=[call(1, "b", "g", "{}")])
    found = reply("chat", chunk("tool_calls", tool_calls=[call(0, "a", "f", "{}")]), late)
    assert [made.name for made in found.calls] == ["f"]


@every(
    ("frame", "kind"),
    [
        ({"error": {"message": "no", "code": 429}}, "rate_limited"),
        ({"error": {"message": "no", "code": "429"}}, "rate_limited"),
        ({"error": "no room"}, "server_error"),
        ({"object": "error", "message": "no", "type": "BadRequestError", "code": 400}, "bad_request"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "no"}}, "overloaded"),
        ({"message": "no", "status": 429}, "rate_limited"),
        ({"message": "no", "status_code": 503}, "overloaded"),
        ({"detail": "Internal"}, "server_error"),
        ({"status_code": 429, "error": {"message": "no", "type": "too_many_requests_error"}}, "rate_limited"),
        ({"error": {"message": "no", "type": "too_many_requests"}}, "rate_limited"),
        ({"object": "error", "message": "This model's maximum context length is 10", "code": 400}, "context_overflow"),
        ({"choices": [], "error": {"message": "no", "code": 502}}, "server_error"),
        ({"choices": [{"index": 0, "delta": {}, "error": {"code": 504, "message": "no"}}]}, "timeout"),
    ],
    ids=str,
)
def test_chat_an_error_in_the_middle_is_told_in_each_shape(frame: dict[str, Any], kind: str) -> None:
    assert failure("chat", chunk(content="Well"), frame).kind == kind


def test_chat_a_whole_body_may_be_an_error_of_the_other_shape() -> None:
    body = {"object": "error", "message": "no such model", "type": "NotFoundError", "code": 404}
    with pytest.raises(ModelError) as caught:
        reader_of("chat").read_body(json.dumps(body).encode())
    assert caught.value.kind == "not_found"


@pytest.mark.parametrize("frame", [{"type": "ping"}, {"message": "your request is in the queue"}, {"status": "ok"}])
def test_chat_what_is_no_answer_and_no_error_is_counted(frame: dict[str, Any]) -> None:
    reader = reader_of("chat")
    for each in (frame, chunk(content="Yes."), chunk("stop")):
        reader.feed(Frame("", json.dumps(each).encode()))
    assert (reader.finish().text, reader.ignored) == ("Yes.", 1)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("STOP", "stop"), ("eos", "stop"), ("LENGTH", "output_limit"), ("content_filter: SAFETY", "content_filter")],
)
def test_chat_a_reason_to_end_is_understood_in_each_case(reason: str, finish: str) -> None:
    assert reply("chat", chunk(content="Yes."), chunk(reason)).finish == finish


@pytest.mark.parametrize("flags", [frozenset[str](), frozenset({"done_ends"})], ids=["usual", "done_ends"])
def test_chat_done_without_a_reason_is_an_end_only_where_that_is_declared(flags: frozenset[str]) -> None:
    place = Endpoint(provider="here", dialect="chat", base_url="https://here", flags=flags)
    reader = load_dialect("chat").reader(place, "m")
    for data in (json.dumps(chunk(content="Yes.")).encode(), b"[DONE]"):
        reader.feed(Frame("", data))
    if flags:
        assert (reader.finish().text, reader.complete) == ("Yes.", True)
    else:
        with pytest.raises(StreamCut):
            reader.finish()


def test_chat_done_alone_is_no_reply_anywhere() -> None:
    place = Endpoint(provider="here", dialect="chat", base_url="https://here", flags=frozenset({"done_ends"}))
    reader = load_dialect("chat").reader(place, "m")
    reader.feed(Frame("", b"[DONE]"))
    with pytest.raises(StreamCut):
        reader.finish()


USED = {"prompt_tokens": 9, "completion_tokens": 3}


@every(
    "ending",
    [
        [{**chunk("stop"), "usage": USED}],
        [chunk("stop"), {"id": "c1", "choices": [], "usage": USED}],
        [chunk("stop"), {"id": "c1", "choices": None, "usage": USED}],
        [{**chunk("stop"), "usage": None}, {"id": "c1", "choices": [], "usage": USED}],
        [{**chunk("stop"), "usage": USED}, {"id": "c1", "choices": [], "usage": USED}],
        [{**chunk("stop"), "x_groq": {"usage": USED}}],
        [{"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USED}]}],
    ],
    ids=[
        *("in the last", "on its own", "without choices", "null before", "twice", "in an own field", "in the choice"),
    ],
)
def test_chat_usage_is_found_wherever_it_comes(ending: list[dict[str, Any]]) -> None:
    assert reply("chat", chunk(content="Yes."), *ending).usage == Usage(input=9, output=3)


# ---- anthropic -------------------------------------------------------------------------------------------------------


def begun(**more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 9, "output_tokens": 1}
    message: dict[str, Any] = {"id": "m1", "model": "claude", "content": [], "usage": usage, **more}
    return {"type": "message_start", "message": message}


def block(index: int, kind: str, **given: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **given}}


def grows(index: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **more}}


def stops(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ends(reason: str = "end_turn") -> list[dict[str, Any]]:
    told = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 3}}
    return [told, {"type": "message_stop"}]


def words(index: int, text: str) -> list[dict[str, Any]]:
    return [block(index, "text", text=""), grows(index, "text_delta", text=text), stops(index)]


def test_anthropic_blocks_stand_where_their_index_says() -> None:
    late = [block(1, "text", text=""), *words(0, "First. "), grows(1, "text_delta", text="Second."), stops(1)]
    assert reply("anthropic", begun(), *late, *ends()).text == "First. Second."


def test_anthropic_blocks_that_all_have_one_index_stand_as_they_came() -> None:
    assert reply("anthropic", begun(), *words(0, "First. "), *words(0, "Second."), *ends()).text == "First. Second."


def test_anthropic_a_block_that_nobody_announced_is_read() -> None:
    found = reply("anthropic", begun(), grows(0, "thinking_delta", thinking="Hm."), *words(1, "Yes."), *ends())
    assert (thoughts(found), found.text) == ("Hm.", "Yes.")


def test_anthropic_what_comes_for_a_block_that_is_over_is_not_taken_for_another() -> None:
    assert reply("anthropic", begun(), *words(0, "Yes."), grows(0, "text_delta", text="No."), *ends()).text == "Yes."


def test_anthropic_blocks_may_come_before_their_message() -> None:
    found = reply("anthropic", block(0, "text", text=""), begun(), grows(0, "text_delta", text="Yes."), *ends())
    assert (found.text, found.usage, found.response_id) == ("Yes.", Usage(input=9, output=3), "m1")


def test_anthropic_done_is_no_last_word() -> None:
    reader = reader_of("anthropic")
    for frame in (begun(), *words(0, "Yes."), ends()[0]):
        reader.feed(Frame("", json.dumps(frame).encode()))
    reader.feed(Frame("", b"[DONE]"))
    with pytest.raises(StreamCut):
        reader.finish()


@pytest.mark.parametrize(
    "given",
    [
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "container_upload", "file_id": "f1"},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "error", "error_code": "x"}},
        {"type": "mcp_tool_result", "tool_use_id": "s", "is_error": False, "content": [{"type": "text", "text": "x"}]},
        {"type": "a_block_of_tomorrow", "secret": {"deep": [1]}},
    ],
    ids=lambda given: given["type"],
)
def test_anthropic_blocks_of_its_own_are_kept_as_they_came(given: dict[str, Any]) -> None:
    kind = given["type"]
    more = {name: value for name, value in given.items() if name != "type"}
    found = reply("anthropic", begun(), block(0, kind, **more), stops(0), *words(1, "Yes."), *ends())
    kept = found.parts[0]
    assert isinstance(kept, Reasoning)
    assert kept.replay == given


@pytest.mark.parametrize("given", [{"x": 1}, '{"x": 1}'], ids=str)
def test_anthropic_input_may_come_with_the_announcement(given: Any) -> None:
    found = reply(
        "anthropic", begun(), block(0, "tool_use", id="t1", name="f", input=given), stops(0), *ends("tool_use")
    )
    assert found.calls == (ToolCall("t1", "f", {"x": 1}),)


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "no"}}, "overloaded"),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "no"}, "request_id": "r"}, "rate_limited"),
        (
            {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}},
            "context_overflow",
        ),
        ({"error": {"message": "no", "code": 429}}, "rate_limited"),
        ({"error": "no"}, "server_error"),
    ],
    ids=str,
)
def test_anthropic_an_error_in_the_middle_is_told_in_each_shape(frame: dict[str, Any], kind: str) -> None:
    assert failure("anthropic", begun(), *words(0, "Well"), frame).kind == kind


# ---- responses -------------------------------------------------------------------------------------------------------


def response(status: str = "in_progress", **more: Any) -> dict[str, Any]:
    return {"id": "r1", "created_at": 1, "model": "gpt", "status": status, "output": [], **more}


CREATED = {"type": "response.created", "response": response()}
COMPLETED = {"type": "response.completed", "response": response("completed")}


def item(kind: str, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": {"id": "i1", "type": kind, **fields}}


def grown(event: str, delta: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{event}.delta", "item_id": "i1", "output_index": index, "delta": delta, **more}


def message(*content: dict[str, Any]) -> dict[str, Any]:
    return item("message", role="assistant", status="completed", content=list(content))


def test_responses_an_item_that_is_done_and_empty_says_what_was_streamed_of_it() -> None:
    assert (
        reply("responses", CREATED, grown("output_text", "Yes.", content_index=0), message(), COMPLETED).text == "Yes."
    )


def test_responses_a_call_that_is_done_and_empty_has_the_arguments_that_were_streamed() -> None:
    made = item("function_call", call_id="c1", name="f", arguments="")
    found = reply("responses", CREATED, grown("function_call_arguments", '{"x":1}'), made, COMPLETED)
    assert [call.arguments for call in found.calls] == [{"x": 1}]


def test_responses_reasoning_that_is_done_and_empty_says_what_was_streamed_of_it() -> None:
    thought = item("reasoning", summary=[], encrypted_content="xyz")
    found = reply("responses", CREATED, grown("reasoning_summary_text", "Hm.", summary_index=0), thought, COMPLETED)
    assert thoughts(found) == "Hm."


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        ({"type": "output_text", "text": "Yes."}, Text("Yes.")),
        ({"type": "refusal", "refusal": "No."}, Refusal("No.")),
    ],
)
def test_responses_a_part_may_be_all_that_is_told_of_a_text(part: dict[str, Any], wanted: Any) -> None:
    told = {"type": "response.content_part.done", "item_id": "i1", "output_index": 0, "content_index": 0, "part": part}
    assert reply("responses", CREATED, told, COMPLETED).parts == (wanted,)


def test_responses_a_part_that_was_streamed_is_not_told_twice() -> None:
    part = {"type": "output_text", "text": "Yes."}
    told = {"type": "response.content_part.done", "item_id": "i1", "output_index": 0, "content_index": 0, "part": part}
    assert reply("responses", CREATED, grown("output_text", "Yes.", content_index=0), told, COMPLETED).text == "Yes."


def test_responses_done_is_completed_by_another_name() -> None:
    done = {"type": "response.done", "response": response("completed")}
    assert reply("responses", CREATED, message({"type": "output_text", "text": "Yes."}), done).text == "Yes."


def test_responses_done_is_not_completed_where_the_response_knows_better() -> None:
    details = {"reason": "max_output_tokens"}
    done = {"type": "response.done", "response": response("incomplete", incomplete_details=details)}
    assert reply("responses", CREATED, message({"type": "output_text", "text": "Ye"}), done).finish == "output_limit"


@every(
    "given",
    [
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "file_search_call", "status": "completed", "queries": ["q"], "results": None},
        {"type": "code_interpreter_call", "status": "completed", "code": "1", "container_id": "c", "outputs": []},
        {"type": "image_generation_call", "status": "completed", "result": "iVBORw0KGgo="},
        {"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": "some words"},
        {"type": "mcp_list_tools", "server_label": "s", "tools": []},
        {"type": "compaction", "encrypted_content": "xyz"},
        {"type": "an_item_of_tomorrow", "deep": {"er": [1]}},
    ],
    ids=lambda given: given["type"],
)
def test_responses_items_of_its_own_are_kept_as_they_came(given: dict[str, Any]) -> None:
    done = {"type": "response.output_item.done", "output_index": 0, "item": {"id": "i1", **given}}
    (kept,) = reply("responses", CREATED, done, COMPLETED).parts
    assert isinstance(kept, Reasoning)
    assert kept.replay == {"id": "i1", **given}


@every(
    ("frame", "kind"),
    [
        ({"type": "error", "code": "server_error", "message": "no", "sequence_number": 3}, "server_error"),
        ({"type": "error", "error": {"code": "rate_limit_exceeded", "message": "no"}}, "rate_limited"),
        ({"type": "response.error", "error": {"code": "server_is_overloaded", "message": "no"}}, "overloaded"),
        ({"error": {"code": "context_length_exceeded", "message": "no"}}, "context_overflow"),
        ({"type": "response.failed", "response": response("failed", error={"code": "server_error"})}, "server_error"),
        ({"type": "response.cancelled", "response": response("cancelled")}, "server_error"),
    ],
    ids=str,
)
def test_responses_an_error_in_the_middle_is_told_in_each_shape(frame: dict[str, Any], kind: str) -> None:
    assert failure("responses", CREATED, frame).kind == kind


# ---- google ----------------------------------------------------------------------------------------------------------


def candidate(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    told = {"content": {"role": "model", "parts": list(parts)}} if parts else {}
    reason = {"finishReason": finish} if finish else {}
    return {"candidates": [{"index": 0, **told, **reason, **more}], "responseId": "r1"}


def test_google_a_reason_to_end_in_each_frame_ends_nothing_before_the_last() -> None:
    frames = [candidate({"text": text}, finish="STOP") for text in ("One ", "two ", "three")]
    assert reply("google", *frames).text == "One two three"


def test_google_the_last_reason_counts_where_each_frame_has_one() -> None:
    frames = [candidate({"text": "One"}, finish="STOP"), candidate({"text": "two"}, finish="MAX_TOKENS")]
    assert reply("google", *frames).finish == "output_limit"


def test_google_a_stop_takes_nothing_back() -> None:
    frames = [candidate({"text": "One"}, finish="SAFETY"), candidate(finish="STOP")]
    assert reply("google", *frames).finish == "content_filter"


def test_google_a_reason_before_the_first_word_is_not_taken_for_the_end() -> None:
    reader = reader_of("google")
    reader.feed(Frame("", json.dumps(candidate(finish="STOP")).encode()))
    assert not reader.complete


@every(
    "part",
    [
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}, "thoughtSignature": "s1"},
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}, "thoughtSignature": "s1"},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "f"}},
        {"thoughtSignature": "s1"},
        {"aPartOfTomorrow": {"deep": [1]}},
    ],
    ids=str,
)
def test_google_parts_of_its_own_are_kept_as_they_came(part: dict[str, Any]) -> None:
    kept = reply("google", candidate(part), candidate({"text": "Yes."}, finish="STOP")).parts[0]
    assert isinstance(kept, Reasoning)
    assert kept.replay == {"part": part}


@pytest.mark.parametrize("arguments", [{}, {"args": None}, {"args": {}}], ids=str)
def test_google_a_call_may_have_neither_id_nor_arguments(arguments: dict[str, Any]) -> None:
    found = reply("google", candidate({"functionCall": {"name": "f", **arguments}}, finish="STOP"))
    assert [(call.name, call.arguments) for call in found.calls] == [("f", {})]


@every(
    ("finish", "meant"),
    [
        *((reason, "content_filter") for reason in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII")),
        *(("MAX_TOKENS", "output_limit"), ("OTHER", "stop"), ("A_REASON_OF_TOMORROW", "stop")),
    ],
)
def test_google_reasons_to_end_have_their_meaning(finish: str, meant: str) -> None:
    assert reply("google", candidate({"text": "x"}, finish=finish)).finish == meant


@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"])
def test_google_a_call_that_went_wrong_is_asked_for_again(finish: str) -> None:
    assert failure("google", candidate(finish=finish, finishMessage="no")).retryable


def test_google_a_prompt_that_is_blocked_is_a_reply() -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}
    found = reply("google", blocked)
    assert (found.finish, found.usage) == ("content_filter", Usage(input=4))


# ---- errors inside a good response -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoken", "frame"),
    [
        ("chat", {"error": {"message": "no", "code": 503}}),
        ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}),
        ("responses", {"type": "error", "code": "server_is_overloaded", "message": "no"}),
        ("google", {"error": {"code": 503, "status": "UNAVAILABLE", "message": "no"}}),
    ],
)
def test_a_stream_with_an_error_in_it_is_cut_and_says_why(spoken: str, frame: dict[str, Any]) -> None:
    error = failure(spoken, frame)
    assert isinstance(error, StreamCut)
    assert (error.kind, error.retryable, error.message) == ("overloaded", True, "no")


# ---- how long to wait ------------------------------------------------------------------------------------------------


@every(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT", "date": "Sun, 06 Nov 1994 08:49:07 GMT"}, 30.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 9.0),
        ({"x-ms-retry-after-ms": "250"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
    ],
    ids=str,
)
def test_a_pause_is_asked_for_in_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert delay_from_headers(headers) == seconds


TOO_LONG = [
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Input is too long for requested model.",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Please reduce the length of the messages or completion.",
    "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193.",
    "`inputs` must have less than 4095 tokens. Given: 5000",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "the request exceeds the available context size",
    "Invalid request: Your request exceeded model token limit: 8192",
    "Prompt exceeds max length",
    "Range of input length should be [1, 129024]",
    "Input length 9000 exceeds maximum allowed token size 8192",
    "prompt token count of 135662 exceeds the limit of 128000",
    "too many tokens: the prompt can't exceed 4081",
]


@every("said", TOO_LONG)
@every("spoken", ["chat", "responses", "anthropic", "google"])
def test_a_conversation_that_is_too_long_is_known_by_the_words_of_each_provider(spoken: str, said: str) -> None:
    body = json.dumps({"error": {"message": said, "type": "invalid_request_error", "status": "INVALID_ARGUMENT"}})
    assert isinstance(classify_error(400, {}, body.encode()), ContextOverflow)


@pytest.mark.parametrize("spoken", ["chat", "responses", "anthropic", "google"])
def test_too_many_tokens_in_a_minute_are_no_conversation_that_is_too_long(spoken: str) -> None:
    body = json.dumps({"error": {"message": "Rate limit reached: too many tokens per minute. Try again in 2s."}})
    assert classify_error(429, {}, body.encode()).kind == "rate_limited"
