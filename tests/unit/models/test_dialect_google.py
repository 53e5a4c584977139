"""The Google dialect and the array splitter, on wire fixtures of our own: one feature each."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.every import every

from holdfast.errors import ContextOverflow, InvalidArgument, ModelError, StreamCut
from holdfast.messages import (
    AssistantMessage,
    Attachment,
    CallChunk,
    CallEnd,
    CallStart,
    FinishReason,
    Message,
    ModelReply,
    ModelRequest,
    OutputSpec,
    Part,
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
    encode,
    join_refusal,
)
from holdfast.models.dialect import Endpoint, Frame
from holdfast.models.errors import classify_error
from holdfast.models.google import DIALECT, NO_ID_PREFIX, SKIP_SIGNATURE_CHECK
from holdfast.models.sse import ArraySplitter
from holdfast.turns.state import Thread

if TYPE_CHECKING:
    from collections.abc import Callable

ENDPOINT = Endpoint(provider="google", dialect="google", base_url="https://example.test")
MODEL = "gemini-3-pro"
ROUTE = ENDPOINT.route(MODEL)
HELLO = UserMessage("u1", (Text("hi"),))


def sent(*messages: Message, model: str = MODEL, endpoint: Endpoint = ENDPOINT, **fields: Any) -> dict[str, Any]:
    request = ModelRequest(messages=messages or (HELLO,), **fields)
    return json.loads(DIALECT.encode_request(endpoint, model, request).body)


def said(*parts: Part, finish: FinishReason = "stop") -> AssistantMessage:
    return AssistantMessage("a1", parts, finish)


def back(*parts: Part, model: str = MODEL) -> list[dict[str, Any]]:
    """The parts in which a reply goes back."""
    return sent(HELLO, said(*parts), model=model)["contents"][1]["parts"]


def frame(*parts: dict[str, Any], reason: str | None = None, **fields: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if reason:
        candidate["finishReason"] = reason
    return {"candidates": [candidate], **fields}


def read(*frames: dict[str, Any]) -> tuple[list[StreamEvent], ModelReply]:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    events = [event for one in frames for event in reader.feed(Frame("", json.dumps(one).encode()))]
    return events, reader.finish()


def reply(*frames: dict[str, Any]) -> ModelReply:
    return read(*frames)[1]


# ---- requests --------------------------------------------------------------------------------------------------------


def test_a_request_goes_to_the_stream_of_its_model() -> None:
    path = DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=(HELLO,))).path
    assert path == "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse"


def test_a_base_url_that_is_whole_gets_the_model_alone() -> None:
    endpoint = msgspec.structs.replace(ENDPOINT, flags=frozenset({"whole_url"}))
    path = DIALECT.encode_request(endpoint, MODEL, ModelRequest(messages=(HELLO,))).path
    assert path == "/models/gemini-3-pro:streamGenerateContent?alt=sse"


def test_the_query_of_an_endpoint_is_part_of_the_path() -> None:
    endpoint = msgspec.structs.replace(ENDPOINT, query={"quotaUser": "a b"})
    path = DIALECT.encode_request(endpoint, "tunedModels/mine?", ModelRequest(messages=(HELLO,))).path
    assert path == "/v1beta/tunedModels/mine%3F:streamGenerateContent?alt=sse&quotaUser=a+b"


def test_a_plain_question_is_nothing_but_its_contents() -> None:
    assert sent() == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


def test_instructions_stand_apart_from_the_conversation() -> None:
    assert sent(instructions="Be brief.")["systemInstruction"] == {"parts": [{"text": "Be brief."}]}


TOOL = ToolSpec("find", "Finds.", {"type": "object", "properties": {"q": {"$ref": "#/$defs/Q"}}})
ANSWER = OutputSpec("answer", {"type": "object", "properties": {"n": {"type": "integer"}}})


def test_tools_are_declared_with_their_json_schema() -> None:
    declared = {"name": "find", "description": "Finds.", "parametersJsonSchema": TOOL.parameters}
    assert sent(tools=(TOOL,))["tools"] == [{"functionDeclarations": [declared]}]


@pytest.mark.parametrize(("choice", "mode"), [("none", "NONE"), ("required", "ANY")])
def test_a_choice_of_tools_is_told(choice: Any, mode: str) -> None:
    body = sent(tools=(TOOL,), settings=Settings(tool_choice=choice))
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": mode}}


def test_a_choice_of_tools_without_tools_is_not_told() -> None:
    assert "toolConfig" not in sent(settings=Settings(tool_choice="required"))


def test_settings_become_the_generation_config() -> None:
    settings = Settings(max_output_tokens=9, temperature=0.0, top_p=0.5, seed=0, stop=("END",))
    assert sent(settings=settings)["generationConfig"] == {
        "maxOutputTokens": 9,
        "temperature": 0.0,
        "topP": 0.5,
        "seed": 0,
        "stopSequences": ["END"],
    }


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("gemini-3-pro", "low", {"thinkingLevel": "LOW", "includeThoughts": True}),
        ("gemini-3-flash", "none", {"thinkingLevel": "MINIMAL", "includeThoughts": False}),
        ("gemini-2.5-flash", "low", {"thinkingBudget": 1_024, "includeThoughts": True}),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0, "includeThoughts": False}),
    ],
)
def test_effort_is_a_level_or_a_budget(model: str, effort: Any, thinking: dict[str, Any]) -> None:
    assert sent(model=model, settings=Settings(effort=effort))["generationConfig"] == {"thinkingConfig": thinking}


def test_a_flag_says_that_a_model_is_of_the_second_generation() -> None:
    endpoint = msgspec.structs.replace(ENDPOINT, flags=frozenset({"gemini2"}))
    body = sent(model="ours", endpoint=endpoint, settings=Settings(effort="high"))
    assert body["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 24_576


def test_structured_output_is_asked_for_by_schema() -> None:
    config = sent(output=ANSWER, tools=(TOOL,))["generationConfig"]
    assert config == {"responseMimeType": "application/json", "responseJsonSchema": ANSWER.schema}


def test_the_second_generation_is_told_the_shape_in_words_when_there_are_tools() -> None:
    body = sent(model="gemini-2.5-pro", output=ANSWER, tools=(TOOL,), instructions="Be brief.")
    assert "generationConfig" not in body
    first, second = body["systemInstruction"]["parts"]
    assert first == {"text": "Be brief."}
    assert json.loads(second["text"].partition("\n")[2]) == ANSWER.schema


def test_fields_of_the_providers_own_go_out_as_they_are() -> None:
    extra: dict[str, Any] = {"tools": [{"googleSearch": {}}], "generationConfig": {"topK": 3}, "cachedContent": "c/1"}
    body = sent(tools=(TOOL,), settings=Settings(temperature=1.0, extra=extra))
    assert body["tools"][1] == {"googleSearch": {}}
    assert body["generationConfig"] == {"temperature": 1.0, "topK": 3}
    assert body["cachedContent"] == "c/1"


def test_the_conversation_is_not_to_be_replaced_by_extra_fields() -> None:
    with pytest.raises(InvalidArgument):
        sent(settings=Settings(extra={"contents": []}))


# ---- attachments -----------------------------------------------------------------------------------------------------

FILES = {"d-png": b"\x89PNG", "d-pdf": b"%PDF", "d-wav": b"RIFF", "d-csv": b"a,b", "d-bad": b"\xff\xfe"}
PNG = Attachment("d-png", "image/png", 4)
PDF = Attachment("d-pdf", "application/pdf", 4, "r.pdf")
WAV = Attachment("d-wav", "audio/wav", 4)
CSV = Attachment("d-csv", "text/csv", 3, "t.csv")


def inline(attachment: Attachment) -> dict[str, Any]:
    data = base64.b64encode(FILES[attachment.digest]).decode()
    return {"inlineData": {"mimeType": attachment.media_type, "data": data}}


@pytest.mark.parametrize("attachment", [PNG, PDF, WAV, Attachment("d-bad", "text/plain", 2)])
def test_media_are_sent_inline(attachment: Attachment) -> None:
    body = sent(UserMessage("u", (Text("see"), attachment)), files=FILES)
    assert body["contents"][0]["parts"] == [{"text": "see"}, inline(attachment)]


def test_a_text_file_is_sent_as_text_under_its_name() -> None:
    body = sent(UserMessage("u", (CSV,)), files=FILES)
    assert body["contents"][0]["parts"] == [{"text": "t.csv:"}, {"text": "a,b"}]


def test_an_attachment_whose_bytes_are_missing_is_an_error_with_a_name() -> None:
    with pytest.raises(ModelError, match="d-png") as caught:
        sent(UserMessage("u", (PNG,)))
    assert caught.value.kind == "bad_request"


# ---- calls and results -----------------------------------------------------------------------------------------------


def results(*items: ToolResult, model: str = MODEL) -> list[dict[str, Any]]:
    return sent(ToolMessage("t", items), model=model, files=FILES)["contents"]


def test_a_result_is_an_output_under_the_id_of_its_call() -> None:
    (content,) = results(ToolResult("c1", "find", {"n": 1}))
    assert content == {
        "role": "user",
        "parts": [{"functionResponse": {"id": "c1", "name": "find", "response": {"output": {"n": 1}}}}],
    }


@pytest.mark.parametrize("state", ["error", "unknown", "cancelled", "skipped"])
def test_a_result_that_is_not_ok_is_an_error(state: Any) -> None:
    (content,) = results(ToolResult("c1", "find", "no", state))
    assert content["parts"][0]["functionResponse"]["response"] == {"error": "no"}


def test_ids_that_google_did_not_give_stay_here() -> None:
    call = ToolCall(f"{NO_ID_PREFIX}1", "find", {}, None, None, ROUTE)
    contents = sent(said(call), ToolMessage("t", (ToolResult(f"{NO_ID_PREFIX}1", "find", 1),)))["contents"]
    assert contents[0]["parts"] == [{"functionCall": {"name": "find", "args": {}}}]
    assert contents[1]["parts"] == [{"functionResponse": {"name": "find", "response": {"output": 1}}}]


def test_results_of_one_message_are_one_content_in_the_order_of_the_calls() -> None:
    (content,) = results(ToolResult(f"{NO_ID_PREFIX}1", "find", "a"), ToolResult(f"{NO_ID_PREFIX}2", "find", "b"))
    assert [part["functionResponse"]["response"]["output"] for part in content["parts"]] == ["a", "b"]


def test_an_image_of_a_tool_stands_inside_its_result() -> None:
    (content,) = results(ToolResult("c1", "find", ["done", msgspec.to_builtins(PNG)]))
    answer = content["parts"][0]["functionResponse"]
    assert answer["parts"] == [inline(PNG)]
    assert answer["response"] == {"output": ["done", "[attachment: image/png]"]}


@pytest.mark.parametrize(("attachment", "model"), [(WAV, MODEL), (PNG, "gemini-2.5-flash")])
def test_media_that_a_result_can_not_hold_follow_it(attachment: Attachment, model: str) -> None:
    answer, media = results(ToolResult("c1", "find", attachment), model=model)
    assert "parts" not in answer["parts"][0]["functionResponse"]
    assert media == {"role": "user", "parts": [inline(attachment)]}


def test_a_text_file_of_a_tool_is_its_text() -> None:
    (content,) = results(ToolResult("c1", "find", msgspec.to_builtins(CSV)))
    assert content["parts"][0]["functionResponse"]["response"] == {"output": "a,b"}


def test_a_value_that_only_looks_like_an_attachment_is_a_value() -> None:
    value = {"type": "attachment", "digest": ["d-png"], "media_type": "image/png", "size": 1}
    (content,) = results(ToolResult("c1", "find", value))
    assert content["parts"][0]["functionResponse"]["response"] == {"output": value}


def test_arguments_that_were_no_object_go_back_as_an_empty_one() -> None:
    (part,) = back(ToolCall("c1", "find", None, "[1", None, ROUTE))
    assert part == {"functionCall": {"id": "c1", "name": "find", "args": {}}}


# ---- what goes back to the route that made it ------------------------------------------------------------------------


def signed_call(route: str) -> ToolCall:
    return ToolCall("c1", "find", {}, None, {"thoughtSignature": "s=="}, route)


def test_the_signature_of_a_call_goes_back_to_its_route() -> None:
    assert back(signed_call(ROUTE))[0]["thoughtSignature"] == "s=="


def test_the_first_call_of_another_model_says_that_it_has_no_signature() -> None:
    first, second = back(signed_call("elsewhere"), ToolCall("c2", "find", {}))
    assert first["thoughtSignature"] == SKIP_SIGNATURE_CHECK
    assert "thoughtSignature" not in second


def test_the_second_generation_needs_no_signature_for_calls_of_others() -> None:
    assert "thoughtSignature" not in back(signed_call("elsewhere"), model="gemini-2.5-flash")[0]


def test_what_was_dropped_for_another_route_is_counted() -> None:
    foreign = Reasoning("hm", {"signature": "x"}, "elsewhere")
    messages = (HELLO, said(foreign, Reasoning("plain"), signed_call("elsewhere"), signed_call(ROUTE)))
    request = ModelRequest(messages=messages)
    assert DIALECT.encode_request(ENDPOINT, MODEL, request).dropped == 2


def test_what_was_dropped_is_counted_when_a_message_is_encoded_first() -> None:
    thread = Thread().add(HELLO, said(signed_call("elsewhere")))
    counts: list[int] = []
    for number in range(3):
        thread = thread.add(UserMessage(f"u{number}", (Text("more"),)))
        counts.append(
            DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=thread.messages, wire=thread)).dropped
        )
    assert counts == [1, 0, 0]


def test_every_step_of_another_model_says_that_it_has_no_signature() -> None:
    foreign, found = said(ToolCall("c1", "find", {})), ToolMessage("t", (ToolResult("c1", "find", 1),))
    contents = sent(HELLO, foreign, found, foreign, found)["contents"]
    assert [content["parts"][0].get("thoughtSignature") for content in contents] == [
        None,
        SKIP_SIGNATURE_CHECK,
        None,
        SKIP_SIGNATURE_CHECK,
        None,
    ]


def test_thoughts_without_a_signature_are_not_sent() -> None:
    assert back(Reasoning("hm", None, ROUTE), Text("hi")) == [{"text": "hi"}]


def test_a_message_with_nothing_to_send_is_left_out() -> None:
    assert len(sent(HELLO, said(Reasoning("hm")), HELLO)["contents"]) == 2


def test_why_a_filter_stopped_a_reply_is_not_put_into_the_models_mouth() -> None:
    assert len(sent(HELLO, said(Refusal("blocked"), finish="content_filter"))["contents"]) == 1


def test_a_refusal_is_what_the_model_said() -> None:
    assert back(Refusal("I won't.")) == [{"text": "I won't."}]


PARTS: list[list[dict[str, Any]]] = [
    [{"text": "hm", "thought": True, "thoughtSignature": "a+/="}],
    [{"text": "", "thought": True, "thoughtSignature": "a"}],
    [{"text": "yes", "thoughtSignature": "a"}],
    [{"text": "yes"}, {"text": "no", "thoughtSignature": "a"}, {"text": "maybe"}],
    [{"text": "yes"}, {"text": "", "thoughtSignature": "a"}],
    [{"text": "", "thoughtSignature": "a"}],
    [{"thoughtSignature": "a"}],
    [{"executableCode": {"language": "PYTHON", "code": "1"}}, {"codeExecutionResult": {"outcome": "OUTCOME_OK"}}],
    [{"inlineData": {"mimeType": "image/png", "data": "aaaa"}, "thoughtSignature": "a"}],
    [{"toolCall": {"id": "1"}, "thought": True}],
    [{"functionCall": {"id": "i", "name": "find", "args": {"q": [1, None]}}, "thoughtSignature": "a"}],
    [{"functionCall": {"name": "find", "args": {}}}, {"functionCall": {"name": "find", "args": {}}}],
]


@every("parts", PARTS)
def test_parts_go_back_as_they_came(parts: list[dict[str, Any]]) -> None:
    assert back(*reply(frame(*parts, reason="STOP")).parts) == parts


@every("parts", PARTS)
def test_parts_go_back_as_they_came_also_after_a_journal(parts: list[dict[str, Any]]) -> None:
    came = reply(frame(*parts, reason="STOP"))
    kept = msgspec.json.decode(msgspec.json.encode(came), type=ModelReply)
    assert back(*kept.parts) == parts


# ---- cheap and stable ------------------------------------------------------------------------------------------------


class Counting:
    """Keeps encoded messages as a conversation does, and counts how many it had to ask for."""

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.asked: list[Message] = []

    def encoded(self, key: str, encode: Callable[[Message], bytes]) -> list[bytes]:
        def counted(message: Message) -> bytes:
            self.asked.append(message)
            return encode(message)

        return self.thread.encoded(key, counted)


def test_a_message_is_encoded_once_in_the_life_of_a_conversation() -> None:
    thread = Thread().add(HELLO, said(Text("yes")))
    DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=thread.messages, wire=thread))
    more = UserMessage("u2", (Text("more"),))
    grown = Counting(thread.add(more))
    DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=grown.thread.messages, wire=grown))
    assert set(map(id, grown.asked)) == {id(more)}


def test_what_was_sent_before_is_sent_again_byte_for_byte() -> None:
    thread = Thread().add(HELLO, said(signed_call(ROUTE)))
    before = DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=thread.messages, wire=thread)).body
    grown = thread.add(ToolMessage("t", (ToolResult("c1", "find", 1),)))
    after = DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=grown.messages, wire=grown)).body
    assert after.startswith(before.removesuffix(b"]}"))


def test_another_model_gets_an_encoding_of_its_own() -> None:
    thread = Thread().add(HELLO, said(signed_call(ROUTE)))
    request = ModelRequest(messages=thread.messages, wire=thread)
    DIALECT.encode_request(ENDPOINT, MODEL, request)
    other = DIALECT.encode_request(ENDPOINT, "gemini-3-flash", request)
    assert other.dropped == 1
    assert b"s==" not in other.body


# ---- replies ---------------------------------------------------------------------------------------------------------


def test_words_come_as_they_are_said() -> None:
    events, whole = read(
        frame({"text": "hm", "thought": True}, modelVersion="g-3.1", responseId="r1"),
        frame({"text": "Hel", "thought": False}),
        frame({"text": "lo"}, reason="STOP"),
    )
    assert events == [StreamStart("g-3.1"), ReasoningChunk("hm"), TextChunk("Hel"), TextChunk("lo")]
    assert whole == ModelReply((Reasoning("hm"), Text("Hello")), model="g-3.1", response_id="r1")


def test_a_call_comes_with_start_arguments_and_end() -> None:
    events, whole = read(frame({"functionCall": {"id": "c", "name": "find", "args": {"q": 1}}}, reason="STOP"))
    call = ToolCall("c", "find", {"q": 1}, route=ROUTE)
    assert events[1:] == [CallStart("c", "find"), CallChunk("c", '{"q":1}'), CallEnd(call)]
    assert (whole.calls, whole.finish) == ((call,), "tool_calls")


@every("arguments", [{}, {"args": None}, {"args": {}}, {"args": ""}, {"args": " "}, {"args": "{}"}])
def test_a_call_without_arguments_has_an_empty_object(arguments: dict[str, Any]) -> None:
    (call,) = reply(frame({"functionCall": {"name": "find", **arguments}}, reason="STOP")).calls
    assert call.arguments == {}


@pytest.mark.parametrize("arguments", ["[1]", '{"q":', "x", [1], 7])
def test_arguments_that_are_no_object_are_malformed(arguments: Any) -> None:
    (call,) = reply(frame({"functionCall": {"name": "find", "args": arguments}}, reason="STOP")).calls
    assert call.arguments is None
    assert call.malformed == (arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode())


NAMELESS: dict[str, Any] = {"functionCall": {"name": "find"}}


def call_ids(*frames: dict[str, Any]) -> list[str]:
    return [call.id for call in reply(*frames).calls]


def test_calls_without_an_id_get_one_that_is_always_the_same() -> None:
    frames = frame(*[NAMELESS] * 2, reason="STOP", responseId="r/1")
    first, second = call_ids(frames)
    assert [first, second] == call_ids(frames)
    assert first != second
    assert all(re.fullmatch(NO_ID_PREFIX + r"[\w-]{1,40}", id) for id in (first, second))


def test_an_id_that_comes_twice_in_a_reply_stands_for_the_first_call_alone() -> None:
    called = {"functionCall": {"name": "find", "id": "c"}}
    first, second = call_ids(frame(called), frame(called, reason="STOP"))
    assert first == "c"
    assert second.startswith(NO_ID_PREFIX)


@pytest.mark.parametrize(
    "other",
    [
        [frame(NAMELESS, reason="STOP", responseId="r2")],
        [frame(NAMELESS, reason="STOP", usageMetadata={"promptTokenCount": 9})],
        [frame({"text": "Once more."}), frame({"text": ""}), frame(NAMELESS, reason="STOP")],
        [frame({"functionCall": {"name": "find", "args": {"q": 1}}}, reason="STOP")],
    ],
)
def test_an_id_that_is_made_up_is_another_one_in_another_reply(other: list[dict[str, Any]]) -> None:
    (id,) = call_ids(frame(NAMELESS, reason="STOP"))
    assert call_ids(*other) != [id]


def test_arguments_in_pieces_are_put_together() -> None:
    def piece(path: str, **value: Any) -> dict[str, Any]:
        return {"functionCall": {"partialArgs": [{"jsonPath": path, **value}], "willContinue": True}}

    whole = reply(
        frame({"functionCall": {"name": "find", "id": "c", "willContinue": True}, "thoughtSignature": "s"}),
        frame(piece("$.q", stringValue="Bos", willContinue=True)),
        frame(piece("$.q", stringValue="ton", willContinue=True)),
        frame(piece("$.q", stringValue="")),
        frame(piece("$.list[0].n", numberValue=1), piece("$.list[1].n", boolValue=False)),
        frame(piece("$['a b'].c", nullValue="NULL_VALUE")),
        frame({"functionCall": {}}, {"functionCall": {"name": "next"}}, reason="STOP"),
    )
    first, second = whole.calls
    assert first.arguments == {"q": "Boston", "list": [{"n": 1}, {"n": False}], "a b": {"c": None}}
    assert first.replay == {"thoughtSignature": "s"}
    assert (second.name, second.arguments) == ("next", {})


@every("path", ["", "$", "q", "$.q[5]", "$.q[999999999]", "$..q", "$.q['x", "$[0]"])
def test_a_piece_that_belongs_nowhere_makes_the_call_malformed(path: str) -> None:
    part = {"functionCall": {"name": "find", "partialArgs": [{"jsonPath": path, "numberValue": 1}]}}
    (call,) = reply(frame(part, reason="STOP")).calls
    assert call.arguments is None


def test_a_call_that_the_output_limit_cut_off_is_not_carried_out() -> None:
    part = {"functionCall": {"name": "find", "args": {"q": "x"}, "willContinue": True}}
    events, whole = read(frame(part), frame(reason="MAX_TOKENS"))
    assert whole.finish == "output_limit"
    (call,) = whole.calls
    assert (call.arguments, call.malformed) == (None, '{"q":"x"}')
    assert events[-1] == CallEnd(whole.calls[0])


FINISHES: list[tuple[str, FinishReason]] = [
    ("STOP", "stop"),
    ("MAX_TOKENS", "output_limit"),
    ("SAFETY", "content_filter"),
    ("RECITATION", "content_filter"),
    ("LANGUAGE", "content_filter"),
    ("BLOCKLIST", "content_filter"),
    ("PROHIBITED_CONTENT", "content_filter"),
    ("SPII", "content_filter"),
    ("IMAGE_SAFETY", "content_filter"),
    ("OTHER", "stop"),
    ("SOMETHING_NEW", "stop"),
]


@every(("reason", "finish"), FINISHES)
def test_a_finish_reason_has_its_neutral_word(reason: str, finish: FinishReason) -> None:
    assert reply(frame({"text": "so"}, reason=reason)).finish == finish


SPOILT = ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"]


@pytest.mark.parametrize("reason", SPOILT)
def test_a_call_that_the_model_spoilt_is_worth_another_try(reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        reply(frame({"text": "Let me look."}, reason=reason))
    assert (caught.value.kind, caught.value.retryable) == ("server_error", True)


@pytest.mark.parametrize("reason", SPOILT)
def test_calls_that_came_in_spite_of_it_are_carried_out(reason: str) -> None:
    assert reply(frame({"functionCall": {"name": "find"}}, reason=reason)).finish == "tool_calls"


def test_a_missing_signature_is_a_bad_request() -> None:
    with pytest.raises(ModelError) as caught:
        reply(frame(reason="MISSING_THOUGHT_SIGNATURE"))
    assert (caught.value.kind, caught.value.retryable) == ("bad_request", False)


def test_a_blocked_prompt_is_a_content_filter_with_its_reason() -> None:
    whole = reply({"promptFeedback": {"blockReason": "SAFETY"}})
    assert (whole.finish, whole.parts) == ("content_filter", (Refusal("the prompt was blocked: SAFETY"),))


def test_why_a_reply_was_filtered_is_shown_once() -> None:
    events, whole = read(
        frame({"text": "Well. "}),
        frame(reason="SAFETY") | {"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": "Not this."}},
        {"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": {"promptTokenCount": 1}},
    )
    assert [event.text for event in events if isinstance(event, TextChunk)] == ["Well. ", "Not this."]
    assert whole.parts == (Text("Well. "), Refusal("Not this."))


def test_feedback_that_blocks_nothing_is_no_end() -> None:
    with pytest.raises(StreamCut):
        reply({"promptFeedback": {"safetyRatings": []}}, frame({"text": "a"}, reason="FINISH_REASON_UNSPECIFIED"))


def test_thinking_that_left_no_room_for_an_answer_is_not_an_empty_reply() -> None:
    whole = reply(frame(reason="MAX_TOKENS", usageMetadata={"thoughtsTokenCount": 2}))
    assert whole.parts == (Reasoning(""),)
    assert len(sent(HELLO, said(*whole.parts))["contents"]) == 1


def test_sources_are_kept_aside_and_not_sent() -> None:
    first, last = frame({"text": "a"}), frame({"text": "b"}, reason="STOP")
    first["candidates"][0]["groundingMetadata"] = {}
    last["candidates"][0]["groundingMetadata"] = {"webSearchQueries": ["q"]}
    whole = reply(first, last)
    assert whole.parts[1] == Reasoning("", {"aside": {"groundingMetadata": {"webSearchQueries": ["q"]}}}, ROUTE)
    assert back(*whole.parts) == [{"text": "ab"}]


def test_only_the_first_candidate_counts() -> None:
    other = {"content": {"parts": [{"text": "no"}]}, "index": 1, "finishReason": "STOP"}
    one = frame({"text": "yes"}, reason="STOP")
    assert reply({"candidates": [*one["candidates"], other]}).text == "yes"


def test_usage_is_split_into_five_counters() -> None:
    counts = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "toolUsePromptTokenCount": 7,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": "3",
        "totalTokenCount": 115,
    }
    events, whole = read(frame({"text": "a"}, reason="STOP", usageMetadata=counts))
    assert whole.usage == Usage(input=47, output=8, cache_read=60, reasoning=3)
    assert whole.usage.total == 115
    assert whole.raw_usage == counts
    assert events[-1] == StreamUsage(whole.usage)


def test_usage_is_cumulative_and_a_frame_may_leave_numbers_out() -> None:
    whole = reply(
        frame({"text": "a"}, usageMetadata={"promptTokenCount": 9, "candidatesTokenCount": 1}),
        frame({"text": "b"}, reason="STOP", usageMetadata={"candidatesTokenCount": 2}),
        {"usageMetadata": {"trafficType": "ON_DEMAND"}},
    )
    assert whole.usage == Usage(input=9, output=2)


# ---- bytes that are not as they should be ----------------------------------------------------------------------------


def test_a_stream_without_a_finish_reason_is_cut() -> None:
    with pytest.raises(StreamCut, match="google:gemini-3-pro"):
        reply(frame({"text": "Hel"}))


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[" * 100_000, b'{"a": 1e999}', b'{"a": NaN}'])
def test_a_frame_that_is_no_json_is_a_bad_frame(data: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        DIALECT.reader(ENDPOINT, MODEL).feed(Frame("", data))
    assert (caught.value.kind, caught.value.retryable) == ("bad_frame", True)


@every("data", [b"", b" ", b"[DONE]", b"{}", b"[]", b"1", b'"x"', b'{"new":{}}'])
def test_a_frame_that_nobody_knows_is_ignored_and_counted(data: bytes) -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    assert reader.feed(Frame("", data)) == []
    assert reader.ignored == 1


def test_an_error_inside_a_stream_is_raised() -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    error = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    with pytest.raises(ModelError, match="overloaded") as caught:
        reader.feed(Frame("", json.dumps(error).encode()))
    assert (caught.value.kind, caught.value.retryable) == ("overloaded", True)


@pytest.mark.parametrize("end", [frame(reason="STOP"), {"promptFeedback": {"blockReason": "SAFETY"}}])
def test_a_reply_is_complete_when_there_is_a_reason_to_finish(end: dict[str, Any]) -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    seen: list[bool] = []
    for one in (frame({"text": "a"}), end, {"usageMetadata": {"promptTokenCount": 1}}):
        reader.feed(Frame("", json.dumps(one).encode()))
        seen.append(reader.complete)
    assert seen == [False, True, True]


def test_numbers_that_come_after_the_end_count() -> None:
    events, whole = read(
        frame({"text": "a"}, reason="STOP"),
        {"usageMetadata": {"promptTokenCount": 9}},
        {"usageMetadata": {"candidatesTokenCount": 2}},
        {"candidates": [], "usageMetadata": {"thoughtsTokenCount": 3}},
    )
    assert whole.usage == Usage(input=9, output=5, reasoning=3)
    assert events[-1] == StreamUsage(whole.usage)


def test_a_body_that_is_one_object_is_a_reply() -> None:
    body = json.dumps(frame({"text": "Hello"}, reason="STOP"), indent=2).encode()
    assert DIALECT.reader(ENDPOINT, MODEL).read_body(body).text == "Hello"


def test_an_error_in_a_body_that_is_an_array_is_raised() -> None:
    error = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    body = json.dumps([frame({"text": "Hel"}), error]).encode()
    with pytest.raises(ModelError, match="overloaded") as caught:
        DIALECT.reader(ENDPOINT, MODEL).read_body(body)
    assert caught.value.kind == "overloaded"


def test_a_body_that_is_an_array_is_read_as_its_frames() -> None:
    body = json.dumps([frame({"text": "Hel"}), frame({"text": "lo"}, reason="STOP")], indent=2).encode()
    assert DIALECT.reader(ENDPOINT, MODEL).read_body(body).text == "Hello"


@pytest.mark.parametrize("body", [b"", b"[]", b"[{}", b'{"candidates":[]}'])
def test_a_body_that_is_not_whole_is_cut(body: bytes) -> None:
    with pytest.raises(StreamCut):
        DIALECT.reader(ENDPOINT, MODEL).read_body(body)


def test_a_body_that_is_a_page_is_a_bad_frame() -> None:
    with pytest.raises(ModelError) as caught:
        DIALECT.reader(ENDPOINT, MODEL).read_body(b"<html>")
    assert caught.value.kind == "bad_frame"


# ---- characters that were cut in two ---------------------------------------------------------------------------------


@every(
    ("pieces", "shown"),
    [
        (("a\ud83d", "\ude00b", "c"), ["a", "\U0001f600b", "c"]),
        (("\ud83d", "\ude00"), ["\U0001f600"]),
        (("a\ud83d",), ["a", "\ufffd"]),
        (("\ude00a",), ["\ufffda"]),
        (("\ud83d", "\ud83d\ude00"), ["\ufffd\U0001f600"]),
        (("\ud83d", "a"), ["\ufffda"]),
    ],
)
@every("thought", [False, True])
def test_a_character_that_was_cut_in_two_is_joined_or_marked(
    pieces: tuple[str, ...],
    shown: list[str],
    thought: bool,
) -> None:
    frames = [frame({"text": piece, "thought": thought}) for piece in pieces]
    events, whole = read(*frames, frame(reason="STOP"))
    kind, part = (ReasoningChunk, Reasoning) if thought else (TextChunk, Text)
    assert events[1:] == [kind(words) for words in shown]
    assert whole.parts == (part("".join(shown)),)


@pytest.mark.parametrize(
    "after",
    [
        {"text": "\ude00", "thought": True},
        {"text": "\ude00", "thoughtSignature": "s"},
        {"functionCall": {"name": "find", "id": "c"}},
        {"executableCode": {"code": "1"}},
    ],
)
def test_half_a_character_does_not_wait_for_another_part(after: dict[str, Any]) -> None:
    events, whole = read(frame({"text": "a\ud83d"}, after), frame(reason="STOP"))
    assert events[1:3] == [TextChunk("a"), TextChunk("\ufffd")]
    assert whole.parts[0] == Text("a\ufffd")


def test_half_a_character_at_the_end_of_a_signed_text_is_marked_there() -> None:
    signed = {"text": "a\ud83d", "thoughtSignature": "s"}
    events, whole = read(frame(signed), frame({"text": "b"}, reason="STOP"))
    assert events[1:] == [TextChunk("a\ufffd"), TextChunk("b")]
    assert whole.text == "a\ufffdb"


def test_a_character_that_was_cut_in_two_is_joined_in_arguments() -> None:
    def piece(text: str, **more: Any) -> dict[str, Any]:
        return {"functionCall": {"partialArgs": [{"jsonPath": "$.q", "stringValue": text, **more}], **more}}

    opening = {"functionCall": {"name": "find", "id": "c", "willContinue": True}}
    whole = reply(frame(opening), frame(piece("\ud83d", willContinue=True)), frame(piece("\ude00"), reason="STOP"))
    assert whole.calls[0].arguments == {"q": "\U0001f600"}


@every(
    "part",
    [
        {"functionCall": {"name": "\ud83d", "id": "\ud83d", "args": {"text": "\ud83d", "\ud83d": ["\ud83d"]}}},
        {"functionCall": {"name": "find", "args": [{"text": "\ud83d"}]}},
        {"functionCall": {"name": "find", "partialArgs": [{"jsonPath": "$.q", "stringValue": "\ud83d"}]}},
        {"functionCall": {"name": "find", "partialArgs": [{"jsonPath": "q", "stringValue": "\ud83d"}]}},
        {"executableCode": {"text": "\ud83d"}},
        {"text": "x\ud83d", "thoughtSignature": "\ud83d"},
    ],
)
def test_whatever_has_half_a_character_can_be_written_down(part: dict[str, Any]) -> None:
    last = frame(part, reason="SAFETY", modelVersion="\ud83d", responseId="\ud83d")
    last["candidates"][0] |= {"finishMessage": "\ud83d", "groundingMetadata": {"segment": {"text": "\ud83d"}}}
    assert "\ufffd" in encode(reply(last)).decode()


# ---- errors ----------------------------------------------------------------------------------------------------------


def failure(status: int, error: Any, headers: dict[str, str] | None = None) -> ModelError:
    return classify_error(status, headers or {}, json.dumps({"error": error}).encode())


KINDS: list[tuple[int, dict[str, Any], str, bool]] = [
    (400, {"status": "INVALID_ARGUMENT", "message": "no"}, "bad_request", False),
    (400, {"status": "INVALID_ARGUMENT", "message": "API key not valid."}, "authentication", False),
    (400, {"details": [{"reason": "API_KEY_INVALID"}]}, "authentication", False),
    (400, {"status": "FAILED_PRECONDITION", "message": "Please enable billing."}, "billing", False),
    (400, {"message": "The input token count (9) exceeds the maximum (8)."}, "context_overflow", False),
    (401, {"status": "UNAUTHENTICATED"}, "authentication", False),
    (403, {"status": "PERMISSION_DENIED"}, "permission", False),
    (404, {"status": "NOT_FOUND"}, "not_found", False),
    (408, {}, "timeout", True),
    (409, {"status": "ABORTED"}, "server_error", True),
    (429, {"status": "RESOURCE_EXHAUSTED", "message": "Quota."}, "rate_limited", True),
    (429, {"status": "RESOURCE_EXHAUSTED", "message": "Your credits are depleted."}, "billing", False),
    (500, {"status": "INTERNAL"}, "server_error", True),
    (503, {"status": "UNAVAILABLE"}, "overloaded", True),
    (504, {"status": "DEADLINE_EXCEEDED"}, "timeout", True),
    (418, {}, "bad_request", False),
    (599, {"status": "NEW"}, "server_error", True),
]


@every(("status", "error", "kind", "retryable"), KINDS)
def test_an_error_has_its_kind(status: int, error: dict[str, Any], kind: str, retryable: bool) -> None:
    failed = failure(status, error)
    assert (failed.kind, failed.retryable, failed.status) == (kind, retryable, status)
    assert isinstance(failed, ContextOverflow) == (kind == "context_overflow")


def test_an_error_in_an_array_is_the_same_error() -> None:
    error = {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}
    failed = classify_error(429, {}, json.dumps([{"error": error}]).encode())
    assert (failed.message, failed.kind) == ("slow down", "rate_limited")


@every("body", [b"", b"<html>busy</html>", b"\xff", b"[" * 100_000, b'{"error": "busy"}', b"[1]"])
def test_an_error_of_any_other_shape_goes_by_its_status(body: bytes) -> None:
    assert classify_error(503, {}, body).kind == "overloaded"


@pytest.mark.parametrize(("delay", "said", "seconds"), [("22s", "22.5s", 22.5), ("30s", "22.5s", 30.0)])
def test_the_longer_of_delay_and_words_is_how_long_to_wait(delay: str, said: str, seconds: float) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]
    error = {"code": 429, "message": f"Quota exceeded. Please retry in {said}.", "details": details}
    assert classify_error(429, {}, json.dumps({"error": error}).encode()).retry_after == seconds


NOW = "Sun, 15 Nov 2026 12:00:00 GMT"
THEN = "Sun, 15 Nov 2026 12:00:30 GMT"


@every(
    ("headers", "delay", "seconds"),
    [
        ({}, None, None),
        ({"Retry-After": "7"}, None, 7),
        ({"retry-after-ms": "1500"}, None, 1.5),
        ({"Retry-After": THEN, "Date": NOW}, None, 30),
        ({"Retry-After": THEN}, None, None),
        ({"Retry-After": "soon"}, None, None),
        ({}, "34.4s", 34.4),
        ({"Retry-After": "7"}, "3s", 7),
        ({}, "1e9s", None),
        ({}, 3, None),
    ],
)
def test_a_provider_may_say_how_long_to_wait(headers: dict[str, str], delay: Any, seconds: float | None) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]
    assert failure(429, {"details": details}, headers).retry_after == seconds


def test_an_error_keeps_the_id_of_its_request() -> None:
    assert failure(500, {}, {"X-Request-Id": "r1"}).request_id == "r1"
    assert failure(500, {"details": [{"requestId": "r2"}]}).request_id == "r2"


def test_an_error_is_bounded_and_shows_no_key() -> None:
    key = "AIza" + "x" * 35
    failed = failure(403, {"message": f"Consumer 'api_key:{key}' is suspended." + "x" * 5_000})
    assert len(failed.message) <= 1_000
    assert "xxxxxx'" not in failed.message
    assert failed.message.startswith("Consumer 'api_key:[key]'")


# ---- arrays ----------------------------------------------------------------------------------------------------------

ARRAY = ' [ {"a":"}],\\"\\\\"} ,\r\n{"b":[1,{"c":"é"}]},3 , "x,y" ,[[],{}]\t] rest'.encode()
ELEMENTS = [b'{"a":"}],\\"\\\\"}', '{"b":[1,{"c":"é"}]}'.encode(), b"3", b'"x,y"', b"[[],{}]"]


def elements(*pieces: bytes, limit: int = 1_000) -> list[bytes]:
    splitter = ArraySplitter(limit)
    return [one.data for piece in pieces for one in splitter.feed(piece)]


@every("first", range(len(ARRAY) + 1))
def test_an_array_split_anywhere_gives_its_elements(first: int) -> None:
    for second in range(first, len(ARRAY) + 1):
        assert elements(ARRAY[:first], ARRAY[first:second], ARRAY[second:]) == ELEMENTS


def test_an_element_is_there_as_soon_as_it_is_whole() -> None:
    assert elements(b'[{"a":1}') == [b'{"a":1}']


def test_an_array_that_is_cut_keeps_its_half_element() -> None:
    assert elements(b'[{"a":1},{"b":') == [b'{"a":1}']


def test_objects_without_an_array_are_elements_as_well() -> None:
    assert elements(b'{"a":1}\n', b' {"b":', b"2}") == [b'{"a":1}', b'{"b":2}']


def test_what_stands_between_elements_is_not_kept() -> None:
    assert elements(b"[", *[b"\n" * 600] * 5, b"1]", limit=1_000) == [b"1"]


def test_an_element_over_the_limit_is_an_error_with_a_name() -> None:
    with pytest.raises(ModelError, match="1,000 bytes") as caught:
        elements(b'["', *[b"x" * 300] * 5)
    assert caught.value.kind == "bad_frame"


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(VALUES, max_size=6), st.integers(1, 9), st.sampled_from([None, 1]))
def test_any_array_is_split_into_its_elements(values: list[Any], size: int, indent: int | None) -> None:
    data = json.dumps(values, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    found = [json.loads(one.decode("utf-8", "surrogatepass")) for one in elements(*pieces, limit=1 << 20)]
    assert found == values


@settings(deadline=None)
@given(st.lists(st.text(alphabet='[]{}",:\\1 ').map(str.encode) | st.binary()))
def test_no_bytes_bring_the_splitter_to_another_error(pieces: list[bytes]) -> None:
    splitter = ArraySplitter(64)
    with contextlib.suppress(ModelError):
        for piece in pieces:
            splitter.feed(piece)


# ---- any frames ------------------------------------------------------------------------------------------------------

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def shape(required: dict[str, st.SearchStrategy[Any]] | None = None, **optional: Any) -> st.SearchStrategy[Any]:
    """An object of about the right shape, in which anything may be something else."""
    mixed = {name: strategy | ANY for name, strategy in optional.items()}
    return st.fixed_dictionaries(required or {}, optional=mixed)


WORDS = st.text(max_size=5) | st.sampled_from(["\ud83d", "\ude00", "a\ud83d", "\ude00b", "\ude00\ud83d"])
PATHS = st.sampled_from(["$.a", "$.a.b", "$.a[0]", "$.a[1]", "$['x']", "$", "b"]) | WORDS
PIECE = shape(
    jsonPath=PATHS, stringValue=WORDS, numberValue=st.integers(), boolValue=st.booleans(), willContinue=st.booleans()
)
CALL = shape(
    name=st.just("find") | WORDS,
    id=WORDS,
    args=st.just({"q": 1}),
    partialArgs=st.lists(PIECE, max_size=3),
    willContinue=st.booleans(),
)
PART = (
    shape(text=WORDS, thought=st.booleans(), thoughtSignature=WORDS)
    | shape({"functionCall": CALL}, thoughtSignature=WORDS)
    | shape(executableCode=ANY)
)
REASONS = st.sampled_from([reason for reason, _ in FINISHES] + SPOILT + ["", "FINISH_REASON_UNSPECIFIED"])
CANDIDATE = shape(
    content=shape(parts=st.lists(PART | ANY, max_size=4), role=WORDS),
    finishReason=REASONS,
    finishMessage=WORDS,
    index=st.integers(0, 1),
    groundingMetadata=ANY,
)
COUNTS = shape(promptTokenCount=st.integers(), cachedContentTokenCount=st.integers(), thoughtsTokenCount=st.integers())
ERROR = shape(code=st.integers(), message=WORDS, status=WORDS, details=st.lists(shape(reason=WORDS, retryDelay=WORDS)))
FRAME = shape(
    candidates=st.lists(CANDIDATE | ANY, max_size=2),
    usageMetadata=COUNTS,
    promptFeedback=shape(blockReason=WORDS, blockReasonMessage=WORDS),
    modelVersion=WORDS,
    responseId=WORDS,
) | shape({"error": ERROR | ANY})


@settings(deadline=None)
@given(st.lists(FRAME.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=9), max_size=6))
def test_no_frames_bring_the_fold_to_an_error_that_is_not_of_the_model(frames: list[bytes]) -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    try:
        events = [event for data in frames for event in reader.feed(Frame("", data))]
        whole = reader.finish()
    except ModelError:
        return
    assert tuple(event.call for event in events if isinstance(event, CallEnd)) == whole.calls
    shown = "".join(event.text for event in events if isinstance(event, TextChunk))
    refusal = join_refusal(whole.parts)
    assert sorted(shown) == sorted(whole.text + refusal)  # words may follow those about the filter
    assert refusal or shown == whole.text
    # Whatever was understood can be kept in a journal and sent again.
    kept = msgspec.json.decode(msgspec.json.encode(whole), type=ModelReply)
    assert DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=(HELLO, said(*kept.parts)))).dropped == 0


@settings(deadline=None)
@given(st.integers(100, 599), st.dictionaries(st.sampled_from(["retry-after", "Date", "retry-after-ms"]), WORDS), FRAME)
def test_no_body_brings_the_error_mapping_to_an_error(status: int, headers: dict[str, str], body: Any) -> None:
    assert classify_error(status, headers, json.dumps(body).encode()).kind
