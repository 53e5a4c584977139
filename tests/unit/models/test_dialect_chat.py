"""The chat dialect on small wires of our own: each flag, each odd way to say the same, and whatever bytes may come."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.errors import ContextOverflow, InvalidArgument, ModelError, ModelUnknown, StreamCut
from holdfast.messages import (
    AssistantMessage,
    Attachment,
    CallChunk,
    CallEnd,
    CallStart,
    Message,
    ModelReply,
    ModelRequest,
    OutputSpec,
    Reasoning,
    ReasoningChunk,
    Refusal,
    Settings,
    StreamEvent,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    Usage,
    UserMessage,
    decode_reply,
    encode,
    join_refusal,
)
from holdfast.models import chat
from holdfast.models.chat import DIALECT, FLAGS, allows_strict
from holdfast.models.dialect import Endpoint, Frame
from holdfast.models.endpoints import DIALECTS, ENDPOINTS, resolve_endpoint
from holdfast.models.errors import classify_error
from holdfast.turns.state import Thread

MODEL = "m-1"


def at(*flags: str, provider: str = "here", query: dict[str, str] | None = None) -> Endpoint:
    return Endpoint(
        provider=provider, dialect="chat", base_url="https://here/v1", flags=frozenset(flags), query=query or {}
    )


def ask(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(messages=messages or (user("Hi"),), **fields)


def user(*parts: str | Attachment, id: str = "u") -> UserMessage:
    return UserMessage(id, tuple(Text(part) if isinstance(part, str) else part for part in parts))


def said(*parts: Any, finish: Any = "stop") -> AssistantMessage:
    return AssistantMessage("a", tuple(Text(part) if isinstance(part, str) else part for part in parts), finish)


def results(*contents: Any) -> ToolMessage:
    return ToolMessage("r", tuple(ToolResult(f"c{at}", "t", content) for at, content in enumerate(contents)))


def sent(request: ModelRequest, *flags: str) -> dict[str, Any]:
    return json.loads(DIALECT.encode_request(at(*flags), MODEL, request).body)


def last(request: ModelRequest, *flags: str) -> dict[str, Any]:
    return sent(request, *flags)["messages"][-1]


def frame(chunk: Any, event: str = "") -> Frame:
    return Frame(event, chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode())


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "r1", "model": "m-1-served", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(index: int | None = 0, arguments: Any = "", **fields: Any) -> dict[str, Any]:
    name = fields.pop("name", None)
    made: dict[str, Any] = {"function": {"arguments": arguments} | ({"name": name} if name else {}), **fields}
    return delta(tool_calls=[made if index is None else {"index": index, **made}])


END = delta("stop")
CALLED = delta("tool_calls")


def read(*chunks: Any, flags: tuple[str, ...] = ()) -> tuple[ModelReply, list[StreamEvent]]:
    reader = DIALECT.reader(at(*flags), MODEL)
    events: list[StreamEvent] = []
    for chunk in chunks:
        events += reader.feed(frame(chunk))
    return reader.finish(), events


def reply(*chunks: Any, flags: tuple[str, ...] = ()) -> ModelReply:
    return read(*chunks, flags=flags)[0]


def whole(message: dict[str, Any], finish: str | None = "stop", *flags: str, **fields: Any) -> ModelReply:
    body = {"id": "r1", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": finish}], **fields}
    return DIALECT.reader(at(*flags), MODEL).read_body(json.dumps(body).encode())


# ---- the request -----------------------------------------------------------------------------------------------------


def test_a_plain_question_is_the_smallest_request_for_a_stream() -> None:
    assert sent(ask(instructions="Be kind")) == {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"}],
    }


def test_the_path_is_below_the_base_url() -> None:
    assert DIALECT.encode_request(at(), MODEL, ask()).path == "/chat/completions"


def test_a_deployment_is_part_of_the_path_and_the_query_follows() -> None:
    where = at("deployment_path", query={"api-version": "1"})
    assert DIALECT.encode_request(where, "a/b", ask()).path == "/deployments/a%2Fb/chat/completions?api-version=1"


@every(
    ("flag", "settings", "fields"),
    [
        ("no_stream_usage", Settings(), {}),
        ("max_tokens", Settings(max_output_tokens=5), {"max_tokens": 5}),
        ("", Settings(max_output_tokens=5), {"max_completion_tokens": 5}),
        ("random_seed", Settings(seed=7), {"random_seed": 7}),
        ("", Settings(seed=7, temperature=0.0, top_p=0.5), {"seed": 7, "temperature": 0.0, "top_p": 0.5}),
        ("", Settings(stop=("a", "b")), {"stop": ["a", "b"]}),
        ("", Settings(effort="low"), {"reasoning_effort": "low"}),
        ("no_effort", Settings(effort="low"), {}),
        ("effort_object", Settings(effort="low"), {"reasoning": {"effort": "low"}}),
        ("thinking_switch", Settings(effort="high"), {"reasoning_effort": "high", "thinking": {"type": "enabled"}}),
        ("thinking_switch", Settings(effort="none"), {"thinking": {"type": "disabled"}}),
        ("cache_control", Settings(), {"cache_control": {"type": "ephemeral"}}),
        ("cache_control", Settings(cache=False), {}),
        ("", Settings(extra={"top_k": 3}), {"top_k": 3}),
        ("", Settings(tool_choice="required", parallel_tool_calls=False), {}),
    ],
)
def test_settings_are_said_as_the_flags_ask(flag: str, settings: Settings, fields: dict[str, Any]) -> None:
    usual = {"model", "stream", "stream_options", "messages"}
    found = sent(ask(settings=settings), flag)
    assert {name: value for name, value in found.items() if name not in usual} == fields
    assert ("stream_options" in found) == (flag != "no_stream_usage")


@pytest.mark.parametrize(
    ("flags", "role"), [((), "system"), (("developer",), "developer"), (("instructions_as_user",), "user")]
)
def test_instructions_have_the_role_that_the_endpoint_knows(flags: tuple[str, ...], role: str) -> None:
    assert sent(ask(instructions="Be kind"), *flags)["messages"][0] == {"role": role, "content": "Be kind"}


OPEN = {"type": "object", "properties": {"a": {"type": "string"}}}
CLOSED = {**OPEN, "required": ["a"], "additionalProperties": False}


def test_tools_are_functions_and_choices_come_with_them() -> None:
    settings = Settings(tool_choice="none", parallel_tool_calls=False)
    found = sent(ask(tools=(ToolSpec("t", "does", OPEN),), settings=settings))
    assert found["tools"] == [
        {"type": "function", "function": {"name": "t", "description": "does", "parameters": OPEN}}
    ]
    assert (found["tool_choice"], found["parallel_tool_calls"]) == ("none", False)


def test_only_schemas_that_allow_it_are_strict() -> None:
    tools = (ToolSpec("open", "", OPEN), ToolSpec("closed", "", CLOSED))
    found = sent(ask(tools=tools), "strict_tools")["tools"]
    assert [tool["function"].get("strict") for tool in found] == [None, True]


@every(
    ("schema", "strict"),
    [
        (CLOSED, True),
        (OPEN, False),
        ({**CLOSED, "required": []}, False),
        ({**CLOSED, "properties": {"a": {"type": "string", "default": "x"}}}, False),
        ({**CLOSED, "properties": {"a": {"type": "string", "format": "uri"}}}, False),
        ({**CLOSED, "properties": {"a": {"type": "array", "items": OPEN}}}, False),
        ({**CLOSED, "properties": {"a": {"anyOf": [CLOSED, {"type": "null"}]}}}, True),
        ({**CLOSED, "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": CLOSED}}, True),
        ({**CLOSED, "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": OPEN}}, False),
        ({**CLOSED, "properties": {"a": {"$ref": "#/$defs/A", "description": "d"}}, "$defs": {"A": CLOSED}}, False),
        ({"type": "array", "items": CLOSED}, False),
        ({**CLOSED, "properties": {"a": {"type": "string", "format": []}}}, False),
        ({**CLOSED, "required": [["a"]]}, False),
        (True, False),
    ],
)
def test_what_a_provider_can_hold_a_model_to(schema: object, strict: object) -> None:
    assert allows_strict(schema) == strict


def test_the_same_tools_give_the_same_bytes_also_after_many_others() -> None:
    tools = (ToolSpec("t", "does", OPEN),)
    before = sent(ask(tools=tools))["tools"]
    for number in range(200):
        sent(ask(tools=(ToolSpec(f"t{number}", "", OPEN),)))
    assert sent(ask(tools=tools))["tools"] == before


def test_the_shape_of_the_answer_is_a_json_schema() -> None:
    found = sent(ask(output=OutputSpec("My answer", CLOSED)))["response_format"]
    assert found == {
        "type": "json_schema",
        "json_schema": {"name": "My_answer", "schema": CLOSED, "strict": True},
    }


@pytest.mark.parametrize(("flag", "wanted"), [("json_object", {"type": "json_object"}), ("schema_in_words", None)])
def test_where_there_is_no_json_schema_the_shape_is_in_the_instructions(flag: str, wanted: object) -> None:
    found = sent(ask(output=OutputSpec("A", CLOSED), instructions="Be kind"), flag)
    assert found.get("response_format") == wanted
    assert found["messages"][0]["content"].startswith("Be kind\n\n")
    assert json.dumps(CLOSED, separators=(",", ":")) in found["messages"][0]["content"]


def test_tools_of_the_provider_are_added_to_ours() -> None:
    settings = Settings(extra={"tools": [{"type": "search"}]})
    found = sent(ask(tools=(ToolSpec("t", "", OPEN),), settings=settings))
    assert [tool["type"] for tool in found["tools"]] == ["function", "search"]


def test_the_conversation_can_not_be_replaced_by_extra_fields() -> None:
    with pytest.raises(InvalidArgument):
        sent(ask(settings=Settings(extra={"messages": []})))


# ---- messages that go out --------------------------------------------------------------------------------------------


def test_calls_and_results_are_one_message_each_in_order() -> None:
    calls = (ToolCall("c0", "t", {"a": 1}), ToolCall("c1", "t", {}))
    found = sent(ask(user("Hi"), said("Wait", *calls), results("done", {"b": [2]})))["messages"]
    assert found[1]["content"] == "Wait"
    assert [one["function"] for one in found[1]["tool_calls"]] == [
        {"name": "t", "arguments": '{"a":1}'},
        {"name": "t", "arguments": "{}"},
    ]
    assert found[2:] == [
        {"role": "tool", "tool_call_id": "c0", "content": "done"},
        {"role": "tool", "tool_call_id": "c1", "content": '{"b":[2]}'},
    ]


def test_a_message_that_only_calls_has_no_content() -> None:
    assert "content" not in last(ask(said(ToolCall("c", "t", {}))))


def test_arguments_that_were_no_object_go_back_as_an_empty_one() -> None:
    found = last(ask(said(ToolCall("c", "t", None, malformed='{"a'))))
    assert found["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_name_that_a_model_made_up_is_made_acceptable() -> None:
    found = last(ask(said(ToolCall("c", "no such tool!" + "x" * 99, {}), ToolCall("d", "", {}))))
    assert [one["function"]["name"] for one in found["tool_calls"]] == ["no_such_tool_" + "x" * 51, "unknown"]


def test_a_reply_of_which_nothing_may_be_sent_is_left_out() -> None:
    assert len(sent(ask(user("Hi"), said(Reasoning("hm")), user("So?")))["messages"]) == 2


def test_a_refusal_is_text_or_has_its_own_field() -> None:
    assert last(ask(said(Refusal("No.")))) == {"role": "assistant", "content": "No."}
    assert last(ask(said(Refusal("No."))), "refusal_field") == {"role": "assistant", "refusal": "No."}


def test_neighbouring_user_messages_become_one_where_roles_must_alternate() -> None:
    found = sent(ask(user("a"), user("b"), said("c"), user("d")), "alternate")["messages"]
    assert [message["role"] for message in found] == ["user", "assistant", "user"]
    assert [part["text"] for part in found[0]["content"]] == ["a", "b"]


def test_an_assistant_message_goes_between_results_and_a_user_where_it_must() -> None:
    messages = (user("a"), said(ToolCall("c0", "t", {})), results("x"), user("b"))
    assert [one["role"] for one in sent(ask(*messages), "assistant_after_tools")["messages"]] == [
        *("user", "assistant", "tool", "assistant", "user")
    ]


@pytest.mark.parametrize("id", ["toolu_01ABC", "", "call_9", "é" * 9])
def test_ids_of_calls_become_nine_letters_where_they_must_and_still_pair(id: str) -> None:
    messages = (said(ToolCall(id, "t", {})), ToolMessage("r", (ToolResult(id, "t", "x"),)))
    found = sent(ask(*messages), "call_ids_9")["messages"]
    made = found[0]["tool_calls"][0]["id"]
    assert len(made) == 9
    assert made.isalnum()
    assert found[1]["tool_call_id"] == made


def test_ids_that_fit_stay_as_they_are() -> None:
    found = last(ask(said(ToolCall("abcdeF123", "t", {}))), "call_ids_9", "call_ids_40")
    assert found["tool_calls"][0]["id"] == "abcdeF123"


def test_ids_that_are_too_long_are_replaced_where_there_is_a_limit() -> None:
    found = last(ask(said(ToolCall("x" * 41, "t", {}))), "call_ids_40")
    assert len(found["tool_calls"][0]["id"]) <= 40


# ---- attachments -----------------------------------------------------------------------------------------------------

DATA = b"\x00\x01data"
CODED = base64.b64encode(DATA).decode()


def file(media_type: str, name: str | None = None) -> Attachment:
    return Attachment("d1", media_type, len(DATA), name)


def shown(attachment: Attachment, *flags: str, data: bytes = DATA) -> dict[str, Any]:
    return last(ask(user("Look", attachment), files={"d1": data}), *flags)["content"][1]


def test_a_picture_is_a_data_url() -> None:
    wanted = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{CODED}"}}
    assert shown(file("image/png")) == wanted


def test_a_pdf_is_a_file_with_a_name() -> None:
    data = f"data:application/pdf;base64,{CODED}"
    wanted = {"type": "file", "file": {"filename": "a.pdf", "file_data": data}}
    assert shown(file("application/pdf", "a.pdf")) == wanted
    assert shown(file("application/pdf", "a.pdf"), "document_url")["document_url"] == data


@pytest.mark.parametrize(
    ("media_type", "format"), [("audio/mpeg", "mp3"), ("audio/x-wav", "wav"), ("audio/ogg", "ogg")]
)
def test_sound_is_input_audio(media_type: str, format: str) -> None:
    assert shown(file(media_type)) == {"type": "input_audio", "input_audio": {"data": CODED, "format": format}}


def test_a_text_file_is_text_with_its_name() -> None:
    assert (
        shown(file("text/csv; charset=utf-8", "a.csv"), data=b"1,2\xff")["text"]
        == "a.csv:\n1,2\N{REPLACEMENT CHARACTER}"
    )


def test_what_can_not_be_sent_is_a_named_error() -> None:
    with pytest.raises(ModelError, match="video/mp4") as caught:
        shown(file("video/mp4"))
    assert (caught.value.kind, caught.value.retryable) == ("bad_request", False)


def test_an_attachment_without_its_bytes_is_a_named_error() -> None:
    with pytest.raises(ModelError, match="are missing"):
        sent(ask(user(file("image/png"))))


def test_files_that_tools_gave_follow_their_results() -> None:
    as_json = {"type": "attachment", "digest": "d1", "media_type": "image/png", "size": 6, "name": "b.png"}
    messages = (said(ToolCall("c0", "t", {}), ToolCall("c1", "t", {})), results(file("image/png"), ["two", as_json]))
    found = sent(ask(*messages, files={"d1": DATA}))["messages"][1:]
    assert [message["role"] for message in found] == ["tool", "tool", "user"]
    assert found[1]["content"] == "two\nSee the file b.png."
    assert [part["type"] for part in found[2]["content"]] == ["text", "image_url", "text", "image_url"]


@pytest.mark.parametrize("digest", ["elsewhere", [], None])
def test_json_that_only_looks_like_an_attachment_stays_json(digest: Any) -> None:
    lookalike = {"type": "attachment", "digest": digest}
    assert json.loads(last(ask(results(lookalike)))["content"]) == lookalike


# ---- reasoning, in and out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_in_the_field_that_the_flag_names(field: str) -> None:
    flag = f"send_{field}"
    made = reply(delta(**{field: "hm"}), delta(content="Yes"), END, flags=(flag,))
    assert made.parts == (Reasoning("hm", {"field": field}, at(flag).route(MODEL)), Text("Yes"))
    assert last(ask(said(*made.parts)), flag) == {"role": "assistant", "content": "Yes", field: "hm"}


def test_reasoning_stays_here_without_a_flag() -> None:
    made = reply(delta(reasoning="hm"), delta(content="Yes"), END)
    assert made.parts == (Reasoning("hm"), Text("Yes"))
    wire = DIALECT.encode_request(at(), MODEL, ask(said(*made.parts)))
    assert b"hm" not in wire.body
    assert wire.dropped == 0


def test_words_that_come_in_both_fields_count_once() -> None:
    assert reply(delta(reasoning="hm", reasoning_content="hm"), END).parts == (Reasoning("hm"),)


def test_details_are_joined_and_go_back_as_they_came() -> None:
    flags = ("send_reasoning_details", "send_reasoning")
    piece = {"type": "reasoning.text", "format": "f", "index": 0}
    sealed = {"type": "reasoning.encrypted", "data": "xyz", "index": 1}
    made = reply(
        delta(reasoning="He", reasoning_details=[{**piece, "text": "He"}]),
        delta(reasoning="llo", reasoning_details=[{**piece, "text": "llo"}]),
        delta(reasoning_details=[{"type": "reasoning.text", "signature": "s", "index": 0}, sealed]),
        delta(reasoning_details=[sealed]),
        call(name="t", id="c", arguments="{}"),
        CALLED,
        flags=flags,
    )
    details = [{**piece, "text": "Hello", "signature": "s"}, sealed, sealed]
    assert made.parts[0] == Reasoning("Hello", {"details": details}, at().route(MODEL))
    assert last(ask(said(*made.parts)), *flags)["reasoning_details"] == details


def test_details_without_plain_words_are_shown_by_their_own() -> None:
    made, events = read(delta(reasoning_details=[{"type": "reasoning.summary", "summary": "short"}]), END)
    assert ReasoningChunk("short") in events
    assert made.parts == (Reasoning("short"),)


def test_thinking_parts_are_read_and_go_back_as_such() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    made = reply(
        delta(content=[thinking]), delta(content=[{"type": "text", "text": "Yes"}]), END, flags=("send_thinking_parts",)
    )
    assert made.text == "Yes"
    found = last(ask(said(*made.parts)), "send_thinking_parts")
    assert found["content"] == [thinking, {"type": "text", "text": "Yes"}]


def test_what_another_route_made_is_left_out_and_counted() -> None:
    parts = (Reasoning("a", {"field": "reasoning"}, "elsewhere"), ToolCall("c", "t", {}, None, {"x": 1}, "elsewhere"))
    wire = DIALECT.encode_request(at("send_reasoning"), MODEL, ask(said("b", *parts), user("c")))
    assert wire.dropped == 2
    assert json.loads(wire.body)["messages"][0].keys() == {"role", "content", "tool_calls"}


CALL = ToolCall("c", "t", {})
ELSEWHERE = Reasoning("hm", {"signature": "s"}, "elsewhere")


@pytest.mark.parametrize("parts", [(CALL,), (ELSEWHERE, CALL), (ELSEWHERE, Text("a")), (Text("a"),)])
def test_an_endpoint_that_misses_reasoning_content_gets_an_empty_one(parts: tuple[Any, ...]) -> None:
    flags = ("send_reasoning_content", "empty_reasoning_content")
    assert last(ask(said(*parts)), *flags)["reasoning_content"] == ""


@pytest.mark.parametrize("parts", [(CALL,), (ELSEWHERE, CALL)])
def test_an_endpoint_that_takes_no_empty_reasoning_content_gets_a_blank_one(parts: tuple[Any, ...]) -> None:
    flags = ("send_reasoning_content", "blank_reasoning_content")
    assert last(ask(said(*parts)), *flags)["reasoning_content"] == " "


def test_an_endpoint_that_misses_reasoning_content_on_calls_gets_none_elsewhere() -> None:
    assert "reasoning_content" not in last(ask(said(ELSEWHERE, "a")), "blank_reasoning_content")


@pytest.mark.parametrize("flag", ["empty_reasoning_content", "blank_reasoning_content"])
def test_reasoning_of_the_same_route_is_not_replaced(flag: str) -> None:
    own = Reasoning("hm", {"field": "reasoning_content"}, at().route(MODEL))
    assert last(ask(said(own, CALL)), "send_reasoning_content", flag)["reasoning_content"] == "hm"


def test_without_a_flag_no_reasoning_content_is_made_up() -> None:
    assert "reasoning_content" not in last(ask(said(ELSEWHERE, CALL)), "send_reasoning_content")


def test_signatures_on_calls_go_back_with_the_call() -> None:
    extra = {"google": {"thought_signature": "s"}}
    made = reply(call(name="t", id="c", extra_content=extra), CALLED)
    assert last(ask(said(*made.parts)))["tool_calls"][0]["extra_content"] == extra


# ---- encoding once ---------------------------------------------------------------------------------------------------


def test_a_message_is_encoded_once_for_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Thread().add(user("a"), said("b"))
    first = DIALECT.encode_request(at(), MODEL, ModelRequest(messages=thread.messages, wire=thread))

    def changed(_self: object, _message: Message) -> bytes:
        return b'{"role":"user","content":"new"}'

    monkeypatch.setattr(chat.ChatMessageEncoder, "encode", changed)
    longer = thread.add(user("c"))
    second = DIALECT.encode_request(at(), MODEL, ModelRequest(messages=longer.messages, wire=longer))
    assert [message["content"] for message in json.loads(second.body)["messages"]] == ["a", "b", "new"]
    assert second.body.startswith(first.body.removesuffix(b"]}"))


def test_other_flags_are_another_encoding() -> None:
    thread = Thread().add(user("a"))
    request = ModelRequest(messages=thread.messages, wire=thread)
    DIALECT.encode_request(at(), MODEL, request)
    assert isinstance(
        json.loads(DIALECT.encode_request(at("alternate"), MODEL, request).body)["messages"][0]["content"], list
    )


def test_dropped_parts_are_counted_once_for_messages_that_are_kept() -> None:
    thread = Thread().add(said("b", Reasoning("a", {"field": "reasoning"}, "elsewhere")))
    counts: list[int] = []
    for _ in range(3):
        counts.append(DIALECT.encode_request(at(), MODEL, ModelRequest(messages=thread.messages, wire=thread)).dropped)
        thread = thread.add(user("c"))
    assert counts == [1, 0, 0]


# ---- the response ----------------------------------------------------------------------------------------------------


def test_text_comes_in_chunks_and_as_a_whole() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    made, events = read(delta(content="He"), delta(content="llo"), END, {"choices": [], "usage": usage}, b"[DONE]")
    counted = Usage(input=3, output=2)
    assert events == [StreamStart("m-1-served"), TextChunk("He"), TextChunk("llo"), StreamUsage(counted)]
    assert made == ModelReply((Text("Hello"),), "stop", counted, "m-1-served", raw_usage=usage, response_id="r1")


@pytest.mark.parametrize("chunks", [(), (delta(content="He"),), (delta(content="He"), b"[DONE]")])
def test_a_stream_without_a_reason_is_cut(chunks: tuple[Any, ...]) -> None:
    with pytest.raises(StreamCut):
        reply(*chunks)


def test_the_reason_is_enough_whatever_follows() -> None:
    assert reply(delta(content="x"), END).text == "x"
    assert reply(delta(content="x"), END, END, delta(), b"[DONE]", b"nonsense").text == "x"


@pytest.mark.parametrize("data", [b"", b"  ", b"\n", b"  [DONE] "])
def test_frames_that_keep_the_connection_alive_say_nothing(data: bytes) -> None:
    reader = DIALECT.reader(at(), MODEL)
    assert reader.feed(Frame("", data)) == []
    assert reader.ignored == 0


def test_white_space_before_the_json_does_not_matter() -> None:
    assert reply(b"   \n" + json.dumps(delta(content="x")).encode(), END).text == "x"


@pytest.mark.parametrize("chunk", [{"type": "ping"}, [], 3, None, {"choices": None}])
def test_frames_that_nobody_knows_are_counted(chunk: Any) -> None:
    reader = DIALECT.reader(at(), MODEL)
    assert reader.feed(frame(chunk)) == []
    assert reader.ignored == 1


def test_only_the_first_choice_counts() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "length"}]}
    assert reply(delta(content="a"), other, END).parts == (Text("a"),)


@every(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("length", "output_limit"),
        ("content_filter", "content_filter"),
        ("model_length", "context_overflow"),
        ("tool_calls", "stop"),
        ("whatever", "stop"),
    ],
)
def test_reasons_without_calls(reason: str, finish: str) -> None:
    assert reply(delta(content="x"), delta(reason)).finish == finish


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "function_call", "eos"])
def test_calls_make_the_reason(reason: str) -> None:
    assert reply(call(name="t", id="c"), delta(reason)).finish == "tool_calls"


@pytest.mark.parametrize(
    ("reason", "kind"), [("error", "server_error"), ("insufficient_system_resource", "overloaded")]
)
def test_a_reason_that_is_a_failure_is_raised(reason: str, kind: str) -> None:
    with pytest.raises(ModelError) as caught:
        reply(delta(content="x"), delta(reason))
    assert (caught.value.kind, caught.value.retryable) == (kind, True)


def test_a_refusal_is_shown_and_is_the_reason() -> None:
    made, events = read(delta(refusal="I "), delta(refusal="can't"), END)
    assert (made.parts, made.finish) == ((Refusal("I can't"),), "refusal")
    assert TextChunk("can't") in events


def test_a_refusal_is_shown_once_where_the_message_follows_its_deltas() -> None:
    message = {"choices": [{"index": 0, "message": {"refusal": "I can't"}, "finish_reason": "stop"}]}
    made, events = read(delta(refusal="I "), delta(refusal="can't"), message)
    assert made.parts == (Refusal("I can't"),)
    assert [event for event in events if isinstance(event, TextChunk)] == [TextChunk("I "), TextChunk("can't")]


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls"])
def test_a_fold_is_complete_when_the_reason_has_come(reason: str) -> None:
    reader = DIALECT.reader(at(), MODEL)
    reader.feed(frame(delta(content="x")))
    assert not reader.complete
    reader.feed(frame(delta(reason)))
    assert reader.complete
    reader.feed(frame({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}))
    assert reader.finish().usage == Usage(input=3, output=2)


def test_a_fold_without_a_reason_is_not_complete() -> None:
    reader = DIALECT.reader(at(), MODEL)
    reader.feed(frame(delta(content="x")))
    reader.feed(frame(b"[DONE]"))
    assert not reader.complete


# ---- characters that were cut in two ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "chunk"),
    [
        ("content", TextChunk),
        ("refusal", TextChunk),
        ("reasoning", ReasoningChunk),
        ("reasoning_content", ReasoningChunk),
    ],
)
def test_a_character_that_was_cut_in_two_is_joined(field: str, chunk: type[TextChunk | ReasoningChunk]) -> None:
    made, events = read(delta(**{field: "a\ud83d"}), delta(**{field: "\ude00b"}), END)
    assert events[1:] == [chunk("a"), chunk("\U0001f600b")]
    assert [getattr(part, "text", "") for part in made.parts] == ["a\U0001f600b"]


def test_a_character_that_was_cut_in_two_is_joined_in_arguments() -> None:
    made, events = read(call(0, '{"a":"\ud83d', name="t", id="c"), call(0, '\ude00"}'), CALLED)
    assert made.calls == (ToolCall("c", "t", {"a": "\U0001f600"}),)
    assert CallChunk("c", '\U0001f600"}') in events


def test_a_character_that_was_cut_in_two_is_joined_in_details() -> None:
    flags = ("send_reasoning_details",)
    pieces = [
        delta(reasoning_details=[{"type": "reasoning.text", "text": half, "index": 0}]) for half in ("\ud83d", "\ude00")
    ]
    made = reply(*pieces, END, flags=flags)
    details = [{"type": "reasoning.text", "text": "\U0001f600", "index": 0}]
    assert made.parts == (Reasoning("\U0001f600", {"details": details}, at().route(MODEL)),)


def test_halves_of_characters_in_different_texts_are_not_joined() -> None:
    made, _ = read(delta(reasoning="a\ud83d"), delta(content="\ude00b"), END)
    assert made.parts == (Reasoning("a\ufffd"), Text("\ufffdb"))


def test_half_of_a_character_that_stays_alone_is_replaced() -> None:
    made, events = read(delta(content="a\ud83d"), delta(content="b\ud83d"), END)
    assert made.text == "a\ufffdb\ufffd"
    assert "".join(event.text for event in events if isinstance(event, TextChunk)) == made.text


def test_half_of_a_character_at_the_end_of_arguments_is_replaced_and_shown() -> None:
    made, events = read(call(0, '{"a":"\ud83d', name="t", id="c"), delta("length"))
    assert made.calls[0].malformed == '{"a":"\ufffd'
    assert "".join(event.arguments for event in events if isinstance(event, CallChunk)) == '{"a":"\ufffd'


def test_half_of_a_character_never_reaches_the_journal() -> None:
    odd = {"\ud83d": "\ude00", "text": "\ud83d", "content": ["\ud83d"]}
    chunk = {
        **call(0, {"text": "\ud83d"}, name="t\ud83d", id="c\ud83d", extra_content=odd),
        "model": "\ud83d",
        "id": "\ud83d",
    }
    made = reply(chunk, delta(reasoning_details=[odd]), {**CALLED, "usage": odd}, flags=("send_reasoning_details",))
    assert decode_reply(encode(made)) == made
    assert decode_reply(encode(whole({"content": "a\ud83d", "refusal": "\ude00"}, usage=odd))).text == "a\ufffd"


def test_half_of_a_character_in_an_error_is_still_that_error() -> None:
    with pytest.raises(ModelError) as caught:
        reply({"error": {"message": "no\ud83d", "code": 429, "metadata": {"raw": {"text": "\ud83d"}}}})
    assert caught.value.kind == "rate_limited"
    assert caught.value.message.encode()


# ---- calls -----------------------------------------------------------------------------------------------------------


def test_calls_side_by_side_are_told_apart_by_their_index() -> None:
    made, events = read(
        call(0, name="a", id="c0"),
        call(1, name="b", id="c1"),
        call(1, '{"y"'),
        call(0, '{"x":1}'),
        call(1, ":2}"),
        CALLED,
    )
    assert made.calls == (ToolCall("c0", "a", {"x": 1}), ToolCall("c1", "b", {"y": 2}))
    assert [event for event in events if isinstance(event, CallChunk)] == [
        CallChunk("c1", '{"y"'),
        CallChunk("c0", '{"x":1}'),
        CallChunk("c1", ":2}"),
    ]
    assert [event.call for event in events if isinstance(event, CallEnd)] == list(made.calls)


@pytest.mark.parametrize("index", [0, None])
def test_calls_that_all_have_the_same_address_are_told_apart_by_their_id(index: int | None) -> None:
    made = reply(call(index, "{}", name="a", id="c0"), call(index, "{}", name="a", id="c1"), CALLED)
    assert [one.id for one in made.calls] == ["c0", "c1"]


@pytest.mark.parametrize("index", [0, None])
def test_calls_without_ids_are_told_apart_by_name_and_by_being_whole(index: int | None) -> None:
    chunks = [call(index, "{}", name=name) for name in ("a", "b", "b")]
    made = reply(*chunks, CALLED)
    assert [one.name for one in made.calls] == ["a", "b", "b"]
    assert len({one.id for one in made.calls}) == 3


def test_fragments_that_repeat_id_and_name_belong_to_the_same_call() -> None:
    made = reply(call(0, '{"a"', name="t", id="c"), call(0, ":1}", name="t", id="c"), CALLED)
    assert made.calls == (ToolCall("c", "t", {"a": 1}),)


def test_ids_that_are_missing_are_made_up_and_always_the_same() -> None:
    made, again = reply(call(name="t"), CALLED), reply(call(name="t"), CALLED)
    assert made == again
    assert made.calls[0].id


def test_ids_that_are_made_up_differ_from_reply_to_reply() -> None:
    bare = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": "t"}}]}}]}
    end: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    ids = {
        *(reply({**bare, "id": id}, end).calls[0].id for id in ("r1", "r2")),
        *(reply({**bare, "created": date}, end).calls[0].id for date in (1, 2)),
        *(reply(bare, {**end, "usage": {"prompt_tokens": count}}).calls[0].id for count in (1, 2)),
        *(reply(call(0, text) | {"id": ""}, bare, end).calls[0].id for text in ('{"a":1}', '{"a":2}')),
    }
    assert len(ids) == 8


def test_an_id_that_comes_twice_is_replaced_the_second_time() -> None:
    made, events = read(*(call(index, "{}", name="t", id="c") for index in range(3)), CALLED)
    assert made.calls[0].id == "c"
    assert len({one.id for one in made.calls}) == 3
    assert [event.id for event in events if isinstance(event, CallStart)] == [one.id for one in made.calls]


def test_a_call_that_nothing_can_name_yet_is_shown_when_the_reply_is_whole() -> None:
    bare = call(0, "{}", name="t") | {"id": None}
    made, events = read(bare, CALLED)
    (one,) = made.calls
    assert events[1:] == [CallStart(one.id, "t"), CallChunk(one.id, "{}"), CallEnd(one)]


def test_a_name_that_comes_late_shows_the_call_late() -> None:
    made, events = read(call(0, '{"a":', id="c"), call(0, "1}", name="t"), CALLED)
    assert made.calls == (ToolCall("c", "t", {"a": 1}),)
    assert events[1:3] == [CallStart("c", "t"), CallChunk("c", '{"a":1}')]


@pytest.mark.parametrize("arguments", ["", " ", "null", None])
def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    assert reply(call(name="t", id="c", arguments=arguments), CALLED).calls[0].arguments == {}


@pytest.mark.parametrize("arguments", ['{"a', "[1]", "3", '"x"', "[" * 100_000])
def test_arguments_that_are_no_object_are_kept_as_they_came(arguments: str) -> None:
    made = reply(call(name="t", id="c", arguments=arguments), CALLED)
    assert made.calls == (ToolCall("c", "t", None, arguments),)


def test_arguments_that_come_as_an_object_are_taken() -> None:
    assert reply(call(name="t", id="c", arguments={"a": 1}), CALLED).calls[0].arguments == {"a": 1}


def test_a_call_whose_arguments_the_limit_cut_off_is_no_call_without_arguments() -> None:
    made = reply(call(0, "{}", name="t", id="c"), call(1, name="u", id="d"), delta("length"))
    assert (made.calls[0].arguments, made.calls[1].arguments) == ({}, None)
    assert made.finish == "output_limit"


def test_fragments_that_say_nothing_are_no_calls() -> None:
    reader = DIALECT.reader(at(), MODEL)
    for chunk in (call(0, "{}", name="t", id="c"), call(1), CALLED):
        reader.feed(frame(chunk))
    assert len(reader.finish().calls) == 1
    assert reader.ignored == 1


def test_the_old_function_call_is_a_call() -> None:
    made = reply(
        delta(function_call={"name": "t", "arguments": '{"a"'}), delta(function_call={"arguments": ":1}"}), END
    )
    assert [(one.name, one.arguments) for one in made.calls] == [("t", {"a": 1})]


def test_a_custom_call_has_its_text_as_input_and_goes_back_as_custom() -> None:
    custom = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "t", "input": "4 "}}
    made = reply(delta(tool_calls=[custom]), delta(tool_calls=[{"index": 0, "custom": {"input": "+ 4"}}]), CALLED)
    assert made.calls[0].arguments == {"input": "4 + 4"}
    sent_back = last(ask(said(*made.parts)))["tool_calls"]
    assert sent_back == [{"id": "c", "type": "custom", "custom": {"name": "t", "input": "4 + 4"}}]


# ---- whole bodies ----------------------------------------------------------------------------------------------------


def test_a_whole_body_gives_the_same_reply_as_a_stream() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "t", "arguments": None}}]
    made = whole({"content": "x", "reasoning": "hm", "tool_calls": calls}, "tool_calls")
    assert made.parts == (Reasoning("hm"), Text("x"), ToolCall("c", "t", {}))
    assert made.finish == "tool_calls"


@pytest.mark.parametrize("besides", [{}, {"refusal": "no"}], ids=["alone", "with-a-refusal"])
def test_two_calls_of_a_whole_body_are_two_also_where_they_have_the_same_id(besides: dict[str, str]) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "t", "arguments": f'{{"a":{n}}}'}} for n in (1, 2)]
    made = whole({"content": None, "tool_calls": calls, **besides}, "tool_calls").calls
    assert [one.arguments for one in made] == [{"a": 1}, {"a": 2}]
    assert made[0].id != made[1].id


def test_a_whole_body_needs_no_reason() -> None:
    assert whole({"content": "x"}, None).finish == "stop"


def test_a_filtered_choice_may_have_no_message() -> None:
    body = b'{"choices":[{"index":0,"finish_reason":"content_filter"}]}'
    made = DIALECT.reader(at(), MODEL).read_body(body)
    assert (made.parts, made.finish) == ((), "content_filter")


@every("body", [b"", b"{", b"[]", b"{}", b'{"choices":[]}', b"<html>", b"\xff"])
def test_a_body_that_is_no_answer_is_a_named_error(body: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        DIALECT.reader(at(), MODEL).read_body(body)
    assert (caught.value.kind, caught.value.retryable) == ("bad_frame", True)


def test_an_error_in_a_whole_body_is_raised() -> None:
    with pytest.raises(ModelError, match="slow down") as caught:
        DIALECT.reader(at(), MODEL).read_body(b'{"error":{"message":"slow down","code":429}}')
    assert caught.value.kind == "rate_limited"


# ---- usage -----------------------------------------------------------------------------------------------------------


@every(
    ("usage", "counted"),
    [
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(input=6, output=5, cache_read=4),
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 4, "prompt_tokens_details": None},
            Usage(input=6, output=5, cache_read=4),
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cache_write_tokens": 3}},
            Usage(input=7, output=5, cache_write=3),
        ),
        (
            {"prompt_tokens": 1, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 4}},
            Usage(input=1, output=5, reasoning=4),
        ),
        (
            {
                "prompt_tokens": 1,
                "completion_tokens": 5,
                "total_tokens": 10,
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            Usage(input=1, output=9, reasoning=4),
        ),
        ({"prompt_tokens": "7", "completion_tokens": None, "cached_tokens": True}, Usage()),
    ],
)
def test_usage_is_counted_in_five_ways(usage: dict[str, Any], counted: Usage) -> None:
    made = whole({"content": "x"}, usage=usage)
    assert made.usage == counted
    assert made.raw_usage == usage


def test_the_last_usage_counts_wherever_it_is() -> None:
    in_choice = delta("stop")
    in_choice["choices"][0]["usage"] = {"prompt_tokens": 2}
    assert reply({**delta(content="x"), "usage": {"prompt_tokens": 1}}, in_choice).usage == Usage(input=2)
    assert reply(END, {"choices": [], "x_groq": {"usage": {"prompt_tokens": 3}}}).usage == Usage(input=3)


# ---- errors ----------------------------------------------------------------------------------------------------------


def failure(status: int, body: Any = None, **headers: str) -> ModelError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return classify_error(status, {name.replace("_", "-"): value for name, value in headers.items()}, data)


@every(
    ("status", "body", "kind", "retryable"),
    [
        (400, {"error": {"message": "no"}}, "bad_request", False),
        (400, {"error": {"code": "context_length_exceeded", "message": "x"}}, "context_overflow", False),
        (400, {"error": {"type": "exceed_context_size_error", "message": "x"}}, "context_overflow", False),
        (413, {"error": {"message": "Request too large for model `m`"}}, "context_overflow", False),
        (400, {"error": {"code": "content_filter", "message": "x"}}, "content_filter", False),
        (403, {"error": {"message": "x", "metadata": {"flagged_input": "y"}}}, "content_filter", False),
        (400, {"error": {"message": "API key not valid."}}, "authentication", False),
        (401, {"detail": "Unauthorized"}, "authentication", False),
        (402, b"", "billing", False),
        (403, b"<html>", "permission", False),
        (404, {"error": "model not found"}, "not_found", False),
        (408, b"", "timeout", True),
        (409, b"", "server_error", True),
        (422, {"detail": [{"loc": ["body"], "msg": "Extra inputs"}]}, "bad_request", False),
        (429, {"error": {"message": "slow down, tokens per minute"}}, "rate_limited", True),
        (429, {"error": {"code": "insufficient_quota", "message": "x"}}, "billing", False),
        (500, {"error": {"message": "boom"}}, "server_error", True),
        (502, b"bad gateway", "server_error", True),
        (503, b"", "overloaded", True),
        (504, b"", "timeout", True),
        (529, b"", "overloaded", True),
        (418, b"", "bad_request", False),
    ],
)
def test_an_error_status_has_a_kind(status: int, body: Any, kind: str, retryable: object) -> None:
    error = failure(status, body)
    assert (error.kind, error.retryable, error.status) == (kind, retryable, status)
    assert isinstance(error, ContextOverflow) == (kind == "context_overflow")


@every(
    ("body", "words"),
    [
        ({"error": {"message": "m1"}}, "m1"),
        ({"error": "m2"}, "m2"),
        ({"message": "m3", "object": "error"}, "m3"),
        ({"detail": "m4"}, "m4"),
        ([{"error": {"message": "m5"}}], "m5"),
        ({"error": {"message": "up", "metadata": {"raw": "m6"}}}, "m6"),
        (b"m7", "m7"),
        ({}, "HTTP 500"),
    ],
)
def test_the_words_of_an_error_are_found_wherever_they_are(body: Any, words: str) -> None:
    assert words in failure(500, body).message


@every(
    ("headers", "body", "seconds"),
    [
        ({"retry_after": "7"}, None, 7),
        ({"Retry_After_Ms": "1500", "retry_after": "9"}, None, 9),
        ({"retry_after": "Wed, 21 Oct 2026 07:28:10 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, None, 10),
        ({"retry_after": "Wed, 21 Oct 2026 07:28:10 GMT"}, None, None),
        ({"retry_after": "soon"}, None, None),
        ({"retry_after": "nan"}, None, None),
        ({}, {"error": {"message": "Please try again in 1m2.5s."}}, 62.5),
        ({}, {"error": {"message": "Please try again in 20ms."}}, 0.02),
        ({}, {"error": {"message": "Please try again in a while"}}, None),
    ],
)
def test_how_long_to_wait_is_said_in_many_ways(headers: dict[str, str], body: Any, seconds: float | None) -> None:
    assert failure(429, body, **headers).retry_after == seconds


def test_the_id_of_the_request_is_kept() -> None:
    assert failure(500, None, X_Request_Id="req_1").request_id == "req_1"


def test_a_provider_may_say_that_trying_again_is_of_no_use() -> None:
    assert not failure(500, None, x_should_retry="false").retryable
    assert failure(400, None, x_should_retry="true").retryable


@pytest.mark.parametrize(
    "words", ["Incorrect API key provided: my-secret-1234", "bad sk-secret_1234567890", "Bearer secret-token"]
)
def test_what_looks_like_a_key_is_not_repeated(words: str) -> None:
    assert "secret" not in failure(401, {"error": {"message": words}}).message


def test_the_words_of_an_error_are_bounded() -> None:
    assert len(failure(500, {"error": {"message": "x" * 100_000}}).message) <= 1_000


@every(
    ("chunk", "kind", "retryable"),
    [
        ({"error": {"message": "x", "code": 502}}, "server_error", True),
        ({"error": {"message": "x", "code": 429}, "choices": []}, "rate_limited", True),
        ({"error": {"message": "x", "type": "overloaded_error"}}, "overloaded", True),
        ({"error": {"message": "x", "type": "invalid_request_error"}}, "bad_request", False),
        ({"error": {"code": "context_length_exceeded", "message": "x"}}, "context_overflow", False),
        ({"error": "odd"}, "server_error", True),
        ({"error": {"code": "tool_use_failed", "status_code": 400, "message": "x"}}, "server_error", True),
        ({"choices": [{"index": 0, "error": {"code": 503, "message": "x"}}]}, "overloaded", True),
    ],
)
def test_an_error_inside_a_stream_is_raised(chunk: Any, kind: str, retryable: object) -> None:
    with pytest.raises(ModelError) as caught:
        reply(delta(content="x"), chunk)
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


def test_an_event_named_error_is_an_error_whatever_it_says() -> None:
    with pytest.raises(ModelError):
        DIALECT.reader(at(), MODEL).feed(frame({"message": "x"}, "error"))


# ---- whatever comes --------------------------------------------------------------------------------------------------


WRONG: list[dict[str, Any]] = [
    {"choices": [{"index": []}]},
    delta(reasoning_details=[{"type": []}, {"type": {}, "text": "x"}]),
    delta(content=[{"type": []}]),
    {"choices": [{"index": 0, "delta": {}, "finish_reason": []}]},
    delta(tool_calls=[{"index": [], "id": {}, "function": {"name": [], "arguments": []}}]),
]


@pytest.mark.parametrize("chunk", WRONG)
def test_values_of_the_wrong_kind_are_passed_over(chunk: dict[str, Any]) -> None:
    assert reply(chunk, END, flags=("send_reasoning_details",)).text == ""


@pytest.mark.parametrize("data", [b"{", b"\xff", b'{"a":' * 100_000, b'{"a":1e999}', b"data"])
def test_a_frame_that_is_no_json_is_a_named_error(data: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        DIALECT.reader(at(), MODEL).feed(Frame("", data))
    assert (caught.value.kind, caught.value.retryable) == ("bad_frame", True)


def test_a_reply_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat.ChatReader, "max_size", 1_000)
    with pytest.raises(ModelError, match="longer than"):
        reply(*[delta(content="0123456789")] * 101)


def test_calls_without_end_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_CALLS", 10)
    with pytest.raises(ModelError, match="tool calls"):
        reply(*[call(index, name="t", id=f"c{index}") for index in range(11)])


# Halves of characters among them.
TEXT = st.text(st.characters() | st.sampled_from("\ud83d\ude00"), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def odd(*, usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return usual | JSON


FUNCTION = st.fixed_dictionaries(
    {},
    optional={
        "name": odd(usual=st.sampled_from(["a", "b", ""])),
        "arguments": odd(usual=st.sampled_from(["", "{}", '{"a"', ":1}"])),
        "input": JSON,
    },
)
FRAGMENT = st.fixed_dictionaries(
    {},
    optional={
        "index": odd(usual=st.integers(-1, 2)),
        "id": odd(usual=st.sampled_from(["c0", "c1", ""])),
        "function": odd(usual=FUNCTION),
        "custom": odd(usual=FUNCTION),
        "extra_content": JSON,
    },
)
DETAIL = st.fixed_dictionaries(
    {"type": odd(usual=st.sampled_from(["reasoning.text", "reasoning.summary", "reasoning.encrypted"]))},
    optional={"text": JSON, "summary": JSON, "index": JSON, "id": JSON, "signature": JSON},
)
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "content": odd(usual=TEXT),
        "reasoning": odd(usual=TEXT),
        "reasoning_content": JSON,
        "reasoning_details": odd(usual=st.lists(odd(usual=DETAIL), max_size=3)),
        "refusal": odd(usual=TEXT),
        "tool_calls": odd(usual=st.lists(odd(usual=FRAGMENT), max_size=3)),
        "function_call": odd(usual=FUNCTION),
    },
)
REASON = st.sampled_from([None, None, "stop", "tool_calls", "length", "error", "??"])
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "index": odd(usual=st.just(0)),
        "delta": odd(usual=DELTA),
        "message": odd(usual=DELTA),
        "finish_reason": odd(usual=REASON),
        "error": st.none() | JSON,
        "usage": JSON,
    },
)
COUNTERS = st.sampled_from(["prompt_tokens", "completion_tokens", "prompt_tokens_details", "total_tokens"])
CHUNK = st.fixed_dictionaries(
    {},
    optional={
        "id": odd(usual=st.just("r")),
        "model": JSON,
        "choices": odd(usual=st.lists(odd(usual=CHOICE), max_size=2)),
        "usage": odd(usual=st.dictionaries(COUNTERS, JSON, max_size=3)),
        "x_groq": JSON,
        "error": st.none() | JSON,
    },
)
DATA_OF_FRAMES = (
    odd(usual=CHUNK).map(lambda chunk: json.dumps(chunk).encode()) | st.binary(max_size=20) | st.just(b"[DONE]")
)


@given(
    data=st.lists(DATA_OF_FRAMES, max_size=8),
    event=st.sampled_from(["", "error", "ping"]),
    flags=st.sets(st.sampled_from(sorted(FLAGS))),
)
def test_whatever_frames_come_there_is_a_reply_or_a_model_error(data: list[bytes], event: str, flags: set[str]) -> None:
    reader = DIALECT.reader(at(*flags), MODEL)
    events: list[StreamEvent] = []
    try:
        for one in data:
            events += reader.feed(Frame(event, one))
        made = reader.finish()
    except ModelError as error:
        assert len(error.message) <= 1_000  # noqa: PT017  any message is right, if it is bounded
        return
    assert tuple(one.call for one in events if isinstance(one, CallEnd)) == made.calls
    shown_text = "".join(one.text for one in events if isinstance(one, TextChunk))
    assert len(shown_text) == len(made.text) + len(join_refusal(made.parts))
    assert decode_reply(encode(made)) == made
    assert all(encode(one) for one in events)
    # What was read can always be sent again.
    json.loads(
        DIALECT.encode_request(at(*flags), MODEL, ask(said(*made.parts, finish=made.finish), user("go on"))).body
    )


@given(body=st.binary(max_size=50) | CHUNK.map(lambda chunk: json.dumps(chunk).encode()))
def test_whatever_body_comes_there_is_a_reply_or_a_model_error(body: bytes) -> None:
    try:
        made = DIALECT.reader(at(), MODEL).read_body(body)
        assert decode_reply(encode(made)) == made
    except ModelError as error:
        assert len(error.message) <= 1_000  # noqa: PT017


@given(
    status=st.integers(400, 599),
    headers=st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "date", "X-Request-Id"]), st.text()),
    body=st.binary(max_size=50) | JSON.map(lambda value: json.dumps({"error": value}).encode()),
)
def test_whatever_error_comes_it_has_a_kind(status: int, headers: dict[str, str], body: bytes) -> None:
    error = classify_error(status, headers, body)
    assert error.kind
    assert len(error.message) <= 1_000


# ---- the endpoints ---------------------------------------------------------------------------------------------------


@every("name", sorted(ENDPOINTS))
def test_every_endpoint_has_a_dialect_flags_and_an_address_that_are_known(name: str) -> None:
    known = ENDPOINTS[name]
    found = known
    assert found.provider == name
    assert found.dialect in DIALECTS
    assert found.keys
    assert found.base_url.startswith(("https://", "http://localhost:")) or known.variables
    if found.dialect == "chat":
        assert found.flags <= set(FLAGS)


def test_every_flag_is_used_by_an_endpoint_or_is_for_models_that_need_it() -> None:
    used = {flag for known in ENDPOINTS.values() for flag in known.flags}
    assert set(FLAGS) - used == {"developer", "done_ends", "instructions_as_user", "no_stream"}


def test_an_endpoint_takes_what_is_given_instead_of_what_is_known() -> None:
    found = resolve_endpoint("groq", base_url="http://there:1/v1/", headers={"a": "b"}, flags=["max_tokens"])
    assert (found.base_url, found.headers) == ("http://there:1/v1", {"a": "b"})
    assert (found.provider, found.flags) == ("groq", frozenset({"max_tokens"}))


def test_a_name_of_ones_own_needs_an_address() -> None:
    found = resolve_endpoint("mine", base_url="http://there/v1")
    assert (found.provider, found.dialect, found.auth) == ("mine", "chat", "none")
    with pytest.raises(ModelUnknown):
        resolve_endpoint("mine")


@pytest.mark.parametrize(
    ("name", "environ", "address"),
    [
        ("azure", {"AZURE_OPENAI_ENDPOINT": "https://r.openai.azure.com/"}, "https://r.openai.azure.com/openai/v1"),
        ("ollama", {"OLLAMA_HOST": "0.0.0.0:1234"}, "http://0.0.0.0:1234/v1"),
        ("ollama", {}, "http://localhost:11434/v1"),
        ("openai", {"OPENAI_BASE_URL": "https://proxy/x"}, "https://proxy/x"),
    ],
)
def test_an_address_may_come_from_a_variable(name: str, environ: dict[str, str], address: str) -> None:
    assert resolve_endpoint(name, environ=environ).base_url == address


def test_an_endpoint_without_an_address_says_how_to_give_one() -> None:
    with pytest.raises(InvalidArgument, match="AZURE_OPENAI_ENDPOINT"):
        resolve_endpoint("azure", environ={})


@every(
    "address",
    ["", "there/v1", "ftp://there", "http://", "http://a b", "https://x/v1?key=1", "http://a:99999", "http://["],
)
def test_an_address_that_can_not_be_used_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument):
        resolve_endpoint("groq", base_url=address)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve_endpoint("groq", base_url="https://me:hidden@there/v1")
    assert "hidden" not in str(caught.value)


def test_a_dialect_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        resolve_endpoint("groq", dialect="other")


# ---- a reply that came at once ---------------------------------------------------------------------------------------


def _shaped(
    required: dict[str, st.SearchStrategy[Any]], optional: dict[str, st.SearchStrategy[Any]] | None = None
) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional or {})


_words = st.text(max_size=8)
_counts = st.one_of(st.none(), st.integers(-2, 40), st.floats(0, 5), st.booleans())
_calls = _shaped(
    {
        "id": st.text(min_size=1, max_size=3),
        "type": st.just("function"),
        "function": _shaped(
            {"name": st.text(min_size=1, max_size=8)},
            {"arguments": st.sampled_from(["", "{}", '{"a":1}', "[", "7"])},
        ),
    },
)
_messages = _shaped(
    {"role": st.just("assistant"), "content": st.one_of(st.none(), _words)},
    {
        "tool_calls": st.one_of(st.none(), st.lists(_calls, max_size=3, unique_by=lambda call: str(call["id"]))),
        "reasoning_content": _words,
    },
)
_bodies = _shaped(
    {},
    {
        "id": st.one_of(st.none(), _words),
        "model": st.one_of(st.none(), _words),
        "created": _counts,
        "usage": _shaped({}, {"prompt_tokens": _counts, "completion_tokens": _counts, "total_tokens": _counts}),
    },
)


@given(body=_bodies, said=_messages, reason=st.sampled_from(["stop", "tool_calls", "length", "content_filter", "else"]))
def test_a_reply_that_is_made_in_one_go_is_the_one_that_is_put_together(
    body: dict[str, Any], said: dict[str, Any], reason: str
) -> None:
    whole = {**body, "choices": [{"index": 0, "finish_reason": reason, "message": said}]}
    # A field that is not usual: the reader puts such a reply together from its pieces.
    pieced = {**whole, "x_groq": {"id": "x"}}
    made, put_together = (DIALECT.reader(at(), MODEL).read_body(json.dumps(each).encode()) for each in (whole, pieced))
    assert made == put_together
