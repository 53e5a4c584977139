"""The Responses dialect, feature by feature, with frames of our own writing."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.every import every
from tests.examples import examples

from holdfast.errors import ContextOverflow, ModelError, StreamCut
from holdfast.media import sniff_media_type
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
    decode_reply,
    encode,
)
from holdfast.models import responses
from holdfast.models.dialect import Endpoint, Frame
from holdfast.models.errors import classify_error
from holdfast.models.responses import DIALECT
from holdfast.turns.state import Thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENDPOINT = Endpoint(provider="openai", dialect="responses", base_url="https://api.example/v1")
MODEL = "gpt-5.5"
ROUTE = ENDPOINT.route(MODEL)
HELLO = UserMessage("u1", (Text("hello"),))


def flagged(*flags: str) -> Endpoint:
    return Endpoint(provider="openai", dialect="responses", base_url="https://api.example/v1", flags=frozenset(flags))


def sent(
    *messages: Message,
    endpoint: Endpoint = ENDPOINT,
    model: str = MODEL,
    **fields: Any,
) -> dict[str, Any]:
    request = ModelRequest(messages=messages or (HELLO,), **fields)
    return json.loads(DIALECT.encode_request(endpoint, model, request).body)


def said(*parts: Part) -> AssistantMessage:
    return AssistantMessage("a1", parts)


def frame(kind: str, **fields: Any) -> Frame:
    return Frame(kind, json.dumps({"type": kind, **fields}).encode())


def added(index: int, item: dict[str, Any]) -> Frame:
    return frame("response.output_item.added", output_index=index, item=item)


def done(index: int, item: dict[str, Any]) -> Frame:
    return frame("response.output_item.done", output_index=index, item=item)


def created() -> Frame:
    return frame("response.created", response={"id": "resp_1", "model": "gpt-5.5-2026", "status": "in_progress"})


def ended(status: str = "completed", **fields: Any) -> Frame:
    return frame(f"response.{status}", response={"id": "resp_1", "model": "gpt-5.5-2026", "status": status, **fields})


def message(*contents: dict[str, Any], **fields: Any) -> dict[str, Any]:
    item = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant"}
    return {**item, "content": list(contents), **fields}


def words(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [], **fields}


def called(arguments: Any, **fields: Any) -> dict[str, Any]:
    item = {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": "find"}
    return {**item, "arguments": arguments, **fields}


def thought(**fields: Any) -> dict[str, Any]:
    return {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "secret", **fields}


def read(*frames: Frame) -> tuple[ModelReply, list[StreamEvent]]:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    events = [event for one in frames for event in reader.feed(one)]
    return reader.finish(), events


def replied(*items: dict[str, Any], status: str = "completed", **fields: Any) -> ModelReply:
    body = {"id": "resp_1", "model": "gpt-5.5-2026", "status": status, "output": list(items), **fields}
    return DIALECT.reader(ENDPOINT, MODEL).read_body(json.dumps(body).encode())


def returned(*items: dict[str, Any], endpoint: Endpoint = ENDPOINT, model: str = MODEL) -> list[dict[str, Any]]:
    """What of a reply with these items goes back, after it went through a journal."""
    reply = decode_reply(encode(replied(*items)))
    return sent(said(*reply.parts), endpoint=endpoint, model=model)["input"]


# ---- requests --------------------------------------------------------------------------------------------------------


def test_a_request_streams_and_is_not_stored() -> None:
    made = DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=(HELLO,), instructions="Be brief."))
    body = json.loads(made.body)
    key = body.pop("prompt_cache_key")
    assert made.path == "/responses"
    assert made.headers["content-type"] == "application/json"
    assert len(key) == 32
    assert body == {
        "model": MODEL,
        "instructions": "Be brief.",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": True,
        "input": [{"role": "user", "content": "hello"}],
    }


def test_the_query_of_an_endpoint_is_part_of_the_path() -> None:
    azure = Endpoint(provider="azure", dialect="responses", base_url="https://a/openai", query={"api-version": "v1"})
    assert DIALECT.encode_request(azure, MODEL, ModelRequest(messages=(HELLO,))).path == "/responses?api-version=v1"


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1-mini", "openai/gpt-4o", "chatgpt-4o-latest", "gpt-5-chat-latest"])
def test_models_that_do_not_reason_are_not_asked_for_their_reasoning(model: str) -> None:
    assert "include" not in sent(model=model)


@pytest.mark.parametrize(
    ("flag", "field"),
    [("no_cache_key", "prompt_cache_key"), ("no_encrypted", "include"), ("no_store", "store")],
)
def test_a_flag_of_the_endpoint_leaves_a_field_out(flag: str, field: str) -> None:
    assert field in sent()
    assert field not in sent(endpoint=flagged(flag))


def test_settings_become_fields() -> None:
    wanted = Settings(
        max_output_tokens=100,
        temperature=0.5,
        top_p=0.9,
        effort="low",
        tool_choice="required",
        parallel_tool_calls=False,
        seed=1,
        stop=("x",),
        cache=False,
    )
    body = sent(settings=wanted, tools=(ToolSpec("find", "Finds.", {}),))
    assert body["max_output_tokens"] == 100
    assert (body["temperature"], body["top_p"]) == (0.5, 0.9)
    assert body["reasoning"] == {"effort": "low"}
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)
    assert not {"seed", "stop", "prompt_cache_key"} & body.keys()


def test_a_choice_of_tools_is_not_sent_without_tools() -> None:
    body = sent(settings=Settings(tool_choice="none", parallel_tool_calls=True))
    assert not {"tool_choice", "parallel_tool_calls", "tools"} & body.keys()


def test_extra_fields_are_sent_as_they_are() -> None:
    assert sent(settings=Settings(extra={"service_tier": "flex", "store": True}))["service_tier"] == "flex"
    assert sent(settings=Settings(extra={"store": True}))["store"] is True


def test_extra_fields_are_added_to_ours() -> None:
    extra = {
        "tools": [{"type": "web_search"}],
        "reasoning": {"summary": "auto"},
        "text": {"verbosity": "low"},
        "include": ["web_search_call.action.sources"],
    }
    spec = OutputSpec("answer", {"type": "object", "properties": {}})
    body = sent(
        settings=Settings(effort="high", extra=extra),
        tools=(ToolSpec("find", "Finds.", {}),),
        output=spec,
    )
    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]
    assert body["reasoning"] == {"effort": "high", "summary": "auto"}
    assert body["text"].keys() == {"format", "verbosity"}
    assert body["include"] == ["reasoning.encrypted_content", "web_search_call.action.sources"]


def test_an_extra_field_that_is_none_leaves_the_field_out() -> None:
    assert not {"include", "store"} & sent(settings=Settings(extra={"include": [], "store": None})).keys()


def test_the_conversation_can_not_be_overridden() -> None:
    with pytest.raises(ModelError, match="'input'") as caught:
        sent(settings=Settings(extra={"input": []}))
    assert caught.value.kind == "bad_request"


def test_a_request_without_a_json_form_is_a_bad_request() -> None:
    with pytest.raises(ModelError) as caught:
        sent(UserMessage("u1", (Text("\ud800"),)))
    assert (caught.value.kind, caught.value.retryable) == ("bad_request", False)


# ---- tools and output ------------------------------------------------------------------------------------------------

CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}


def changed(**fields: Any) -> dict[str, Any]:
    return CLOSED | fields


NESTED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


@every(
    ("schema", "strict"),
    [
        pytest.param(CLOSED, True, id="closed"),
        pytest.param(changed(additionalProperties=True), False, id="open"),
        pytest.param(changed(required=["name"]), False, id="optional"),
        pytest.param({"type": "object", "properties": {}, "additionalProperties": False}, False, id="no-required"),
        pytest.param(changed(properties={"name": {}, "tags": {"type": "string"}}), False, id="anything"),
        pytest.param(changed(properties={"name": NESTED, "tags": {"type": "string"}}), False, id="open-inside"),
        pytest.param(
            changed(properties={"name": {"type": "string", "minLength": 1}, "tags": {"type": "string"}}),
            False,
            id="other-words",
        ),
        pytest.param(
            changed(
                properties={"name": {"$ref": "#/$defs/N"}, "tags": {"anyOf": [{"type": "null"}, {"type": "string"}]}},
                **{"$defs": {"N": CLOSED}},
            ),
            True,
            id="references-and-choices",
        ),
        pytest.param(changed(**{"$defs": {"N": NESTED}}), False, id="open-definition"),
        pytest.param({"type": "array", "items": {"type": "string"}}, False, id="no-object"),
    ],
)
def test_a_tool_is_strict_only_where_its_schema_allows_it(schema: dict[str, Any], strict: bool) -> None:
    tool = sent(tools=(ToolSpec("find", "Finds.", schema),))["tools"][0]
    assert tool == {
        "type": "function",
        "name": "find",
        "description": "Finds.",
        "parameters": schema,
        "strict": strict,
    }


def test_nothing_is_strict_where_the_endpoint_does_not_know_it() -> None:
    body = sent(
        endpoint=flagged("no_strict"),
        tools=(ToolSpec("find", "", CLOSED),),
        output=OutputSpec("answer", CLOSED),
    )
    assert body["tools"][0]["strict"] is False
    assert body["text"]["format"]["strict"] is False


def test_a_tool_without_parameters_takes_an_object() -> None:
    assert sent(tools=(ToolSpec("now", "", {}),))["tools"][0]["parameters"] == {"type": "object", "properties": {}}


def test_an_answer_with_a_shape_is_asked_for_as_a_json_schema() -> None:
    form = sent(output=OutputSpec("My Answer[int]", CLOSED))["text"]["format"]
    assert form == {"type": "json_schema", "name": "My_Answer_int_", "schema": CLOSED, "strict": True}


def test_an_answer_that_is_no_object_is_asked_for_in_words() -> None:
    body = sent(output=OutputSpec("answer", {"type": "array"}), instructions="Be brief.")
    assert "text" not in body
    assert body["instructions"].startswith("Be brief.\n\n")
    assert '{"type":"array"}' in body["instructions"]


def test_tools_are_encoded_once() -> None:
    tools = (ToolSpec("find", "Finds.", {"type": "object", "properties": {}}),)
    before = sent(tools=tools)["tools"]
    tools[0].parameters["properties"]["later"] = {}
    assert sent(tools=tools)["tools"] == before


# ---- messages --------------------------------------------------------------------------------------------------------


def test_images_and_files_go_as_data() -> None:
    files = {"d1": b"image", "d2": b"pdf"}
    parts = (
        Text("Look:"),
        Attachment("d1", "image/png", 5),
        Attachment("d2", "application/pdf", 3, "a.pdf"),
        Attachment("d2", "application/pdf", 3),
    )
    content = sent(UserMessage("u1", parts), files=files)["input"][0]["content"]
    pdf = f"data:application/pdf;base64,{base64.b64encode(b'pdf').decode()}"
    assert content == [
        {"type": "input_text", "text": "Look:"},
        {
            "type": "input_image",
            "detail": "auto",
            "image_url": f"data:image/png;base64,{base64.b64encode(b'image').decode()}",
        },
        {"type": "input_file", "filename": "a.pdf", "file_data": pdf},
        {"type": "input_file", "filename": "attachment.pdf", "file_data": pdf},
    ]


def test_an_attachment_whose_bytes_are_missing_is_a_bad_request() -> None:
    with pytest.raises(ModelError, match="are missing") as caught:
        sent(UserMessage("u1", (Attachment("d1", "image/png", 5),)))
    assert caught.value.kind == "bad_request"


@pytest.mark.parametrize(
    ("content", "output"),
    [
        ("sunny", "sunny"),
        ({"sky": "blue"}, '{"sky":"blue"}'),
        ([1, "two"], '[1,"two"]'),
        (None, "null"),
        ({"type": "attachment", "digest": "gone"}, '{"type":"attachment","digest":"gone"}'),
    ],
)
def test_results_go_as_text(content: Any, output: str) -> None:
    result = ToolMessage("r1", (ToolResult("call_1", "find", content),))
    assert sent(result)["input"] == [{"type": "function_call_output", "call_id": "call_1", "output": output}]


def test_results_with_attachments_go_as_parts() -> None:
    kept = {"type": "attachment", "digest": "d1", "media_type": "image/png", "size": 5}
    result = ToolMessage("r1", (ToolResult("call_1", "find", ["Here:", kept, {"a": 1}]),))
    output = sent(result, files={"d1": b"image"})["input"][0]["output"]
    assert [part["type"] for part in output] == ["input_text", "input_image", "input_text"]
    assert output[2]["text"] == '{"a":1}'


def test_each_result_is_an_item_of_its_own() -> None:
    results = ToolMessage("r1", (ToolResult("c1", "find", "1"), ToolResult("c2", "find", "2", "error")))
    assert [item["call_id"] for item in sent(results)["input"]] == ["c1", "c2"]


def test_calls_of_another_provider_keep_their_pairs() -> None:
    long = "toolu_" + "x" * 90
    calls = said(ToolCall(long, "weird.name with spaces", {"a": 1}))
    items = sent(calls, ToolMessage("r1", (ToolResult(long, "weird", "ok"),)))["input"]
    assert items[0]["call_id"] == items[1]["call_id"]
    assert len(items[0]["call_id"]) <= 64
    assert items[0]["name"] == "weird_name_with_spaces"


def test_arguments_that_were_no_object_go_back_as_none() -> None:
    assert sent(said(ToolCall("c1", "find", None, "{broken")))["input"][0]["arguments"] == "{}"


def test_words_without_replay_data_are_a_plain_message() -> None:
    items = sent(said(Text("a"), Refusal("b"), Attachment("d1", "image/png", 1, "cat.png")))["input"]
    assert items == [
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "a"},
                {"type": "refusal", "refusal": "b"},
                {"type": "output_text", "text": "[image/png: cat.png]"},
            ],
        }
    ]


def test_a_reply_that_says_nothing_is_left_out() -> None:
    assert sent(HELLO, said(Reasoning("hm")), HELLO)["input"] == [{"role": "user", "content": "hello"}] * 2


# ---- what goes back --------------------------------------------------------------------------------------------------


def test_the_items_of_a_reply_go_back_in_their_order() -> None:
    items = [
        thought(),
        message(words("First I look."), phase="commentary"),
        thought(id="rs_2"),
        called('{"a":1}'),
        called("{}", id="fc_2", call_id="call_2"),
    ]
    back = returned(*items)
    assert [item["id"] for item in back] == ["rs_1", "msg_1", "rs_2", "fc_1", "fc_2"]
    assert back[0] == thought()
    assert back[1]["phase"] == "commentary"
    assert back[3] == {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_1",
        "name": "find",
        "arguments": '{"a":1}',
    }


def test_annotations_of_words_go_back() -> None:
    cited = {"type": "url_citation", "url": "https://a", "start_index": 0, "end_index": 1}
    back = returned(message(words("one", annotations=[cited]), {"type": "refusal", "refusal": "no"}))
    assert back[0]["content"] == [
        {"type": "output_text", "annotations": [cited], "text": "one"},
        {"type": "refusal", "refusal": "no"},
    ]


def test_two_messages_stay_two() -> None:
    back = returned(message(words("a"), id="m1"), message(words("b"), id="m2", phase="final_answer"))
    assert [(item["id"], item["content"][0]["text"]) for item in back] == [("m1", "a"), ("m2", "b")]


@every(
    "item",
    [
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"id": "ci_1", "type": "code_interpreter_call", "status": "completed", "code": "1", "container_id": "c"},
        {"id": "m_1", "type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "t"}]},
        {"id": "m_2", "type": "mcp_call", "name": "t", "arguments": "{}", "error": None, "output": "ok"},
        {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "aGk="},
        {"id": "cmp_1", "type": "compaction", "encrypted_content": "blob"},
        {"id": "n_1", "type": "something_of_tomorrow", "value": [1]},
    ],
)
def test_items_of_the_providers_own_go_back_as_they_came(item: dict[str, Any]) -> None:
    assert returned(item, message(words("done"), id="m")) == [item, message(words("done"), id="m") | _without_probs()]


def _without_probs() -> dict[str, Any]:
    return {"content": [{"type": "output_text", "text": "done", "annotations": []}]}


@pytest.mark.parametrize(
    "item",
    [
        {"id": "a", "type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "x"}},
        {"id": "s", "type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
        {"id": "l", "type": "local_shell_call", "call_id": "c", "action": {"type": "exec"}},
        {"id": "u", "type": "custom_tool_call", "call_id": "c", "name": "n", "input": "x"},
    ],
)
def test_calls_that_nobody_here_carries_out_are_answered(item: dict[str, Any]) -> None:
    call, answer = returned(item)
    assert call == item
    assert answer["type"] == f"{item['type']}_output"
    assert answer["call_id"] == "c"


def test_a_computer_that_nobody_has_is_answered_with_a_blank_screen_and_words() -> None:
    checks = [{"id": "cu_sc_1", "code": "malicious_instructions", "message": "careful"}]
    item = {
        "id": "cu",
        "type": "computer_call",
        "call_id": "c",
        "action": {"type": "screenshot"},
        "status": "completed",
    }
    call, answer, words = returned({**item, "pending_safety_checks": checks})
    assert call["type"] == "computer_call"
    assert (answer["type"], answer["call_id"]) == ("computer_call_output", "c")
    assert answer["output"]["type"] == "computer_screenshot"
    assert sniff_media_type(base64.b64decode(answer["output"]["image_url"].partition(",")[2])) == "image/png"
    assert answer["acknowledged_safety_checks"] == checks
    assert (words["role"], "not carried out" in words["content"]) == ("developer", True)


def test_a_request_for_an_approval_that_nobody_here_can_give_is_denied() -> None:
    item = {"id": "mcpr_1", "type": "mcp_approval_request", "arguments": "{}", "name": "t", "server_label": "s"}
    asked, answer = returned(item)
    assert asked == item
    assert answer["type"] == "mcp_approval_response"
    assert (answer["approval_request_id"], answer["approve"]) == ("mcpr_1", False)


@pytest.mark.parametrize("odd", [["c"], {"c": 1}, 7, None], ids=str)
def test_an_output_that_names_no_call_answers_none(odd: Any) -> None:
    call = {"id": "s", "type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}
    back = returned(call, {"id": "o", "type": "shell_call_output", "call_id": odd, "output": []})
    assert [item["type"] for item in back] == ["shell_call", "shell_call_output", "shell_call_output"]


def test_a_search_for_tools_that_the_client_has_to_make_finds_none() -> None:
    item = {"id": "ts", "type": "tool_search_call", "call_id": "c", "execution": "client"}
    _, answer = returned(item)
    assert (answer["type"], answer["call_id"], answer["tools"]) == ("tool_search_output", "c", [])


def test_a_search_for_tools_that_the_provider_makes_is_not_answered() -> None:
    item = {"id": "ts", "type": "tool_search_call", "call_id": "c", "execution": "server"}
    assert returned(item) == [item]


def test_a_call_that_the_provider_carried_out_is_not_answered_again() -> None:
    call = {"id": "s", "type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}
    output: dict[str, Any] = {"id": "o", "type": "shell_call_output", "call_id": "c", "output": []}
    assert returned(call, output) == [call, output]


def test_reasoning_that_nothing_follows_stays_behind() -> None:
    assert returned(message(words("a")), thought()) == returned(message(words("a")))


def test_reasoning_without_its_content_stays_behind_and_takes_all_ids_with_it() -> None:
    back = returned({"id": "rs_1", "type": "reasoning", "summary": []}, message(words("a"), phase="x"), called("{}"))
    assert [item["type"] for item in back] == ["message", "function_call"]
    assert [item for item in back if "id" in item] == []
    assert back[0]["phase"] == "x"


def test_open_reasoning_goes_back_without_encryption() -> None:
    content = [{"type": "reasoning_text", "text": "hm"}]
    item = {"id": "rs_1", "type": "reasoning", "summary": [], "content": content}
    assert returned(item, called("{}"))[0] == item


def test_a_status_of_reasoning_is_not_sent() -> None:
    assert returned(thought(status="completed", content=[]), called("{}"))[0] == thought()


def test_no_ids_go_to_an_endpoint_that_would_look_them_up() -> None:
    back = returned(thought(), message(words("a")), called("{}"), endpoint=flagged("no_item_ids"))
    assert [item["type"] for item in back] == ["reasoning", "message", "function_call"]
    assert [item for item in back if "id" in item] == []


def test_replay_data_of_another_route_is_left_out_and_counted() -> None:
    reply = replied(thought(), message(words("a")), called("{}"))
    request = ModelRequest(messages=(HELLO, said(*reply.parts)))
    made = DIALECT.encode_request(ENDPOINT, "another", request)
    assert made.dropped == 3
    assert json.loads(made.body)["input"][1:] == [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "call_1", "name": "find", "arguments": "{}"},
    ]


def test_reasoning_of_another_provider_is_left_out() -> None:
    other = Reasoning("hm", {"signature": "x"}, "anthropic https://b claude")
    made = DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=(said(other, Text("a")),)))
    assert made.dropped == 1
    assert len(json.loads(made.body)["input"]) == 1


def test_words_that_were_taken_out_of_a_message_do_not_shift_the_others() -> None:
    parts = [part for part in replied(message(words("a"), words("b"))).parts if part != Text("a")]
    assert sent(said(*parts))["input"][0]["content"] == [{"type": "output_text", "text": "b"}]


# ---- cheap and stable ------------------------------------------------------------------------------------------------


class Counted:
    """A conversation that notes which messages were encoded."""

    def __init__(self, thread: Thread, seen: list[str]) -> None:
        self._thread = thread
        self._seen = seen

    def encoded(self, key: str, encode: Callable[[Message], bytes]) -> list[bytes]:
        def noted(message: Message) -> bytes:
            self._seen.append(message.id)
            return encode(message)

        return self._thread.encoded(key, noted)


def test_each_message_is_encoded_once_in_a_conversation() -> None:
    seen: list[str] = []
    thread = Thread()
    for number in range(5):
        thread = thread.add(UserMessage(f"u{number}", (Text("y"),)), AssistantMessage(f"a{number}", (Text("x"),)))
        DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=thread.messages, wire=Counted(thread, seen)))
    assert seen == [message.id for message in thread.messages]


def test_the_beginning_of_a_request_does_not_change() -> None:
    thread = Thread().add(HELLO)
    fields: Mapping[str, Any] = {"instructions": "Be brief.", "tools": (ToolSpec("find", "", CLOSED),)}
    bodies: list[bytes] = []
    for number in range(4):
        request = ModelRequest(messages=thread.messages, wire=thread, **fields)
        bodies.append(DIALECT.encode_request(ENDPOINT, MODEL, request).body.removesuffix(b"]}"))
        thread = thread.add(
            said(*replied(thought(), called("{}")).parts), ToolMessage(f"r{number}", (ToolResult("call_1", "find", 1),))
        )
    assert all(body.startswith(bodies[0]) for body in bodies)


def test_dropped_parts_are_counted_once_for_messages_that_are_kept() -> None:
    thread = Thread().add(HELLO, said(*replied(thought(), message(words("a"))).parts))
    counts: list[int] = []
    for _ in range(3):
        request = ModelRequest(messages=thread.messages, wire=thread)
        counts.append(DIALECT.encode_request(ENDPOINT, "another", request).dropped)
        thread = thread.add(HELLO)
    assert counts == [2, 0, 0]


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_words_arrive_piece_by_piece() -> None:
    item = message(words("Hello."))
    reply, events = read(
        created(),
        added(0, message()),
        frame("response.content_part.added", output_index=0, content_index=0, item_id="msg_1"),
        frame("response.output_text.delta", output_index=0, content_index=0, delta="Hel"),
        frame("response.output_text.delta", output_index=0, content_index=0, delta="lo."),
        frame("response.output_text.done", output_index=0, content_index=0, text="Hello."),
        done(0, item),
        ended(output=[item], usage={"input_tokens": 3, "output_tokens": 2}),
    )
    assert events == [
        StreamStart("gpt-5.5-2026"),
        TextChunk("Hel"),
        TextChunk("lo."),
        StreamUsage(Usage(input=3, output=2)),
    ]
    assert (reply.text, reply.finish, reply.model, reply.response_id) == ("Hello.", "stop", "gpt-5.5-2026", "resp_1")


def test_a_text_that_comes_at_once_is_shown() -> None:
    item = message(words("Hello."))
    _, events = read(frame("response.output_text.done", output_index=0, text="Hello."), done(0, item), ended())
    assert TextChunk("Hello.") in events


def test_a_call_arrives_piece_by_piece() -> None:
    item = called('{"q":"x"}')
    reply, events = read(
        added(0, called("")),
        frame("response.function_call_arguments.delta", output_index=0, item_id="fc_1", delta='{"q":'),
        frame("response.function_call_arguments.delta", output_index=0, item_id="fc_1", delta='"x"}'),
        frame("response.function_call_arguments.done", output_index=0, item_id="fc_1", arguments='{"q":"x"}'),
        done(0, item),
        ended(output=[item]),
    )
    call = ToolCall("call_1", "find", {"q": "x"}, None, {"id": "fc_1"}, ROUTE)
    start, *chunks, end, _ = events
    assert start == CallStart("call_1", "find")
    assert chunks == [CallChunk("call_1", '{"q":'), CallChunk("call_1", '"x"}')]
    assert end == CallEnd(call)
    assert (reply.calls, reply.finish) == ((call,), "tool_calls")


def test_calls_side_by_side_do_not_mix() -> None:
    first, second = called('{"a":1}'), called('{"b":2}', id="fc_2", call_id="call_2")
    reply, events = read(
        added(0, called("")),
        added(1, called("", id="fc_2", call_id="call_2")),
        frame("response.function_call_arguments.delta", output_index=1, delta='{"b":2}'),
        frame("response.function_call_arguments.delta", output_index=0, delta='{"a":1}'),
        done(1, second),
        done(0, first),
        ended(output=[]),
    )
    assert [call.arguments for call in reply.calls] == [{"a": 1}, {"b": 2}]
    assert [event.id for event in events if isinstance(event, CallChunk)] == ["call_2", "call_1"]


def test_thoughts_arrive_piece_by_piece_with_their_paragraphs() -> None:
    summary = [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]
    reply, events = read(
        frame("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="One."),
        frame("response.reasoning_summary_text.delta", output_index=0, summary_index=1, delta="Tw"),
        frame("response.reasoning_summary_text.delta", output_index=0, summary_index=1, delta="o."),
        done(0, thought(summary=summary)),
        ended(),
    )
    text = "".join(event.text for event in events if isinstance(event, ReasoningChunk))
    assert reply.parts == (Reasoning(text, thought(summary=summary), ROUTE),)


def test_open_thoughts_are_reasoning() -> None:
    content = [{"type": "reasoning_text", "text": "hm"}]
    reply, events = read(
        frame("response.reasoning_text.delta", output_index=0, content_index=0, delta="hm"),
        done(0, {"id": "r", "type": "reasoning", "summary": [], "content": content}),
        ended(),
    )
    assert events[0] == ReasoningChunk("hm")
    assert [part.text for part in reply.parts if isinstance(part, Reasoning)] == ["hm"]


def test_reasoning_is_kept_as_it_came_first() -> None:
    reply, _ = read(done(0, thought(encrypted_content="first")), ended(output=[thought(encrypted_content="again")]))
    assert [part.replay["encrypted_content"] for part in reply.parts if isinstance(part, Reasoning)] == ["first"]


def test_items_that_only_the_last_frame_has_are_kept() -> None:
    item = message(words("a"), id="m")
    reply, _ = read(done(0, thought()), ended(output=[thought(), item]))
    assert reply.text == "a"


def test_a_server_that_numbers_nothing_is_understood() -> None:
    reply, _ = read(
        frame("response.output_item.added", item=called("")),
        frame("response.function_call_arguments.delta", item_id="fc_1", delta="{}"),
        frame("response.output_item.done", item=called("{}")),
        ended(),
    )
    assert [call.id for call in reply.calls] == ["call_1"]


NO = {"type": "refusal", "refusal": "I can't."}


@pytest.mark.parametrize(
    "frames",
    [
        [frame("response.refusal.delta", output_index=0, delta=text) for text in ("I ", "can't.")],
        [frame("response.refusal.done", output_index=0, refusal="I can't.")],
        [
            frame("response.refusal.delta", output_index=0, delta="I can't."),
            frame("response.refusal.done", output_index=0, refusal="I can't."),
        ],
        [],
    ],
)
def test_a_refusal_is_shown_once_as_it_comes(frames: list[Frame]) -> None:
    reply, events = read(added(0, message()), *frames, done(0, message(NO)), ended(output=[message(NO)]))
    assert "".join(event.text for event in events if isinstance(event, TextChunk)) == "I can't."
    assert reply.parts[-1] == Refusal("I can't.")


def test_a_text_that_comes_with_the_last_frame_alone_is_shown() -> None:
    _, events = read(created(), ended(output=[message(words("a"), words("b"))]))
    assert [event for event in events if isinstance(event, TextChunk)] == [TextChunk("a"), TextChunk("b")]


PIECES = [
    added(0, thought(encrypted_content=None)),
    frame("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="Hm"),
    frame("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="m."),
    added(1, message()),
    frame("response.output_text.delta", output_index=1, content_index=0, delta="Hel"),
    frame("response.output_text.delta", output_index=1, content_index=0, delta="lo."),
    frame("response.refusal.delta", output_index=1, content_index=1, delta="No."),
    added(2, called("")),
    frame("response.function_call_arguments.delta", output_index=2, delta='{"q":'),
    frame("response.function_call_arguments.delta", output_index=2, delta="1}"),
]


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_pieces_that_were_shown_are_the_reply_where_nothing_else_comes(status: str) -> None:
    reply, events = read(*PIECES, ended(status, output=[]))
    assert [part.text for part in reply.parts if isinstance(part, Reasoning | Text | Refusal) and part.text] == [
        *("Hmm.", "Hello.", "No.")
    ]
    assert [(call.id, call.arguments) for call in reply.calls] == [("call_1", {"q": 1})]
    assert events[-2] == CallEnd(reply.calls[0])
    assert [event for event in events if isinstance(event, TextChunk)] == [
        *(TextChunk("Hel"), TextChunk("lo."), TextChunk("No."))
    ]


def test_pieces_count_once_where_the_items_come_too() -> None:
    items = [
        thought(summary=[{"type": "summary_text", "text": "Hmm."}]),
        message(words("Hello."), NO),
        called('{"q":1}'),
    ]
    whole = replied(*items)
    for frames in (
        [*(done(index, item) for index, item in enumerate(items)), ended(output=[])],
        [ended(output=items)],
        [done(1, items[1]), ended(output=items)],
    ):
        assert read(*PIECES, *frames)[0].parts == whole.parts


def test_pieces_of_items_that_nobody_announced_are_the_reply_too() -> None:
    reply, events = read(
        frame("response.reasoning_text.delta", delta="Hm."),
        frame("response.output_text.delta", delta="Hel"),
        frame("response.output_text.delta", delta="lo."),
        ended(),
    )
    assert [type(part) for part in reply.parts] == [Reasoning, Text]
    assert reply.text == "Hello."
    assert [event for event in events if isinstance(event, TextChunk)] == [TextChunk("Hel"), TextChunk("lo.")]


def test_pieces_that_have_the_id_of_an_item_belong_to_it() -> None:
    delta = frame("response.output_text.delta", item_id="msg_1", delta="Hello.")
    for frames in ([ended()], [done(0, message(words("Hello."))), ended()], [ended(output=[message(words("Hello."))])]):
        reply, events = read(added(0, message()), delta, *frames)
        assert reply.text == "Hello."
        assert [event for event in events if isinstance(event, TextChunk)] == [TextChunk("Hello.")]


def test_pieces_count_once_where_the_item_comes_without_a_place_or_an_id() -> None:
    bare = message(words("Hello."), id=None)
    delta = frame("response.output_text.delta", output_index=0, delta="Hello.")
    reply, _ = read(added(0, message(id=None)), delta, frame("response.output_item.done", item=bare), ended())
    assert reply.text == "Hello."


def test_pieces_without_an_address_count_once_where_the_message_comes_too() -> None:
    reply, _ = read(frame("response.output_text.delta", delta="Hello."), done(0, message(words("Hello."))), ended())
    assert reply.text == "Hello."


def test_a_refusal_that_comes_at_once_is_shown_before_its_item_is_done() -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    assert reader.feed(frame("response.refusal.done", output_index=0, refusal="No.")) == [TextChunk("No.")]


def test_arguments_that_come_at_once_are_shown_and_kept() -> None:
    told = frame("response.function_call_arguments.done", output_index=0, arguments='{"q":1}')
    reply, events = read(added(0, called("")), told, ended())
    assert reply.calls[0].arguments == {"q": 1}
    assert CallChunk("call_1", '{"q":1}') in events


def test_pieces_have_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses.ResponsesReader, "max_size", 1_000)
    with pytest.raises(ModelError, match="longer than"):
        read(*[frame("response.output_text.delta", output_index=0, delta="a" * 100) for _ in range(11)])


def test_pieces_of_an_item_that_is_done_do_not_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses.ResponsesReader, "max_size", 2_000)
    item = message(words("a" * 900))
    delta = frame("response.output_text.delta", output_index=0, delta="a" * 900)
    assert read(added(0, message()), delta, done(0, item), ended())[0].text == "a" * 900


def test_a_fold_is_complete_with_the_frame_that_ends_the_response() -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    reader.feed(done(0, message(words("a"))))
    assert not reader.complete
    reader.feed(ended())
    assert reader.complete


def test_a_reply_that_lacks_an_item_it_began_is_refused() -> None:
    with pytest.raises(ModelError, match="never came") as caught:
        read(added(0, called("")), ended(output=[]))
    assert (caught.value.kind, caught.value.retryable) == ("bad_frame", True)


def test_a_stream_without_its_last_frame_is_cut() -> None:
    with pytest.raises(StreamCut):
        read(created(), done(0, message(words("a"))))


def test_unknown_frames_are_ignored_and_counted() -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    for one in (
        frame("response.something_new", payload=1),
        frame("keepalive"),
        Frame("", b"[DONE]"),
        ended(),
        frame("response.late"),
    ):
        reader.feed(one)
    assert reader.ignored == 4
    assert reader.finish().parts == ()


def test_the_progress_of_an_item_is_not_counted() -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    assert reader.feed(frame("response.web_search_call.searching", output_index=0, item_id="ws_1")) == []
    assert reader.ignored == 0


def test_the_name_of_the_event_counts_where_the_data_has_no_type() -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    assert reader.feed(Frame("response.output_text.delta", b'{"delta":"a"}')) == [TextChunk("a")]


@every("data", [b"{", b"[1]", b'"text"', b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":NaN}'])
def test_a_frame_that_can_not_be_read_is_a_bad_frame(data: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        DIALECT.reader(ENDPOINT, MODEL).feed(Frame("response.output_text.delta", data))
    assert (caught.value.kind, caught.value.retryable) == ("bad_frame", True)


@pytest.mark.parametrize(
    ("kind", "chunk"),
    [
        ("output_text", TextChunk),
        ("refusal", TextChunk),
        ("reasoning_summary_text", ReasoningChunk),
        ("reasoning_text", ReasoningChunk),
    ],
)
def test_a_character_that_was_cut_in_two_is_joined(kind: str, chunk: type[TextChunk | ReasoningChunk]) -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    first, second = (
        reader.feed(frame(f"response.{kind}.delta", output_index=0, delta=half)) for half in ("a\ud83d", "\ude00b")
    )
    assert (first, second) == ([chunk("a")], [chunk("\U0001f600b")])


def test_a_character_that_was_cut_in_two_is_joined_in_arguments() -> None:
    reply, events = read(
        added(0, called("")),
        frame("response.function_call_arguments.delta", output_index=0, delta='{"a":"\ud83d'),
        frame("response.function_call_arguments.delta", output_index=0, delta='\ude00"}'),
        ended(output=[]),
    )
    assert reply.calls[0].arguments == {"a": "\U0001f600"}
    assert CallChunk("call_1", '\U0001f600"}') in events


def test_halves_of_characters_in_different_texts_are_not_joined() -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    texts = [
        reader.feed(frame("response.output_text.delta", output_index=index, delta=half))
        for index, half in ((0, "a\ud83d"), (1, "\ude00b"))
    ]
    assert texts == [[TextChunk("a")], [TextChunk("\ufffdb")]]


def test_half_of_a_character_that_stays_alone_is_replaced() -> None:
    reply, events = read(
        added(0, message()),
        frame("response.output_text.delta", output_index=0, delta="a\ud83d"),
        frame("response.output_text.done", output_index=0, text="a\ud83d"),
        ended(output=[]),
    )
    assert "".join(event.text for event in events if isinstance(event, TextChunk)) == "a\ufffd"
    assert reply.text == "a\ufffd"


def test_half_of_a_character_never_reaches_the_journal() -> None:
    odd = {"\ud83d": "\ude00", "delta": "\ud83d"}
    item = called(json.dumps({"q": 1}), name="fi\ud83dnd", more=odd)
    reply, _ = read(created(), done(0, item), ended(output=[message(words("a\ud83d"))], usage=odd, id="\ud83d"))
    assert decode_reply(encode(reply)) == reply
    assert decode_reply(encode(replied(item, message(words("a\ud83d")), usage=odd))).text == "a\ufffd"


def test_bytes_that_are_no_text_do_not_break_a_frame() -> None:
    data = b'{"type":"response.output_text.delta","output_index":0,"delta":"a\xff"}'
    assert DIALECT.reader(ENDPOINT, MODEL).feed(Frame("", data)) == [TextChunk("a\ufffd")]


def test_a_reply_has_a_limit_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_ITEMS", 3)
    with pytest.raises(ModelError, match="more than") as caught:
        read(*[done(number, message(words("a"))) for number in range(5)])
    assert (caught.value.kind, caught.value.retryable) == ("bad_frame", False)


def test_a_reply_has_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses.ResponsesReader, "max_size", 1_000)
    with pytest.raises(ModelError, match="longer than"):
        read(done(0, message(words("a" * 2_000))))


# ---- replies ---------------------------------------------------------------------------------------------------------


@every(
    ("said_as", "arguments", "malformed"),
    [
        ('{"a":1}', {"a": 1}, None),
        ("", {}, None),
        ("  ", {}, None),
        (None, {}, None),
        ("null", {}, None),
        ({"a": 1}, {"a": 1}, None),
        ("[1]", None, "[1]"),
        ('{"a":', None, '{"a":'),
        ("1", None, "1"),
        (7, None, "7"),
    ],
)
def test_arguments_are_an_object_or_malformed(said_as: Any, arguments: Any, malformed: str | None) -> None:
    (call,) = replied(called(said_as)).calls
    assert (call.arguments, call.malformed) == (arguments, malformed)


@pytest.mark.parametrize("text", ["", '{"a":'])
def test_arguments_that_were_cut_off_are_malformed(text: str) -> None:
    details = {"reason": "max_output_tokens"}
    reply = replied(called(text, status="incomplete"), status="incomplete", incomplete_details=details)
    assert (reply.calls[0].arguments, reply.calls[0].malformed) == (None, text)
    assert reply.finish == "output_limit"


def test_a_call_without_an_id_of_its_own_has_that_of_its_item() -> None:
    assert replied(called("{}", call_id=None)).calls[0].id == "fc_1"


BARE = called("{}", call_id=None, id=None)


def test_an_id_that_is_missing_is_made_up_and_always_the_same() -> None:
    first, again = replied(BARE), replied(BARE)
    assert first == again
    assert first.calls[0].id


def test_ids_that_are_made_up_differ_from_reply_to_reply() -> None:
    ids = {
        *(replied(BARE, id=id).calls[0].id for id in ("resp_1", "resp_2")),
        *(replied(BARE, id=None, created_at=date).calls[0].id for date in (1, 2)),
        *(replied(BARE, id=None, usage={"input_tokens": count}).calls[0].id for count in (1, 2)),
        *(replied(BARE, message(words(text)), id=None).calls[0].id for text in "ab"),
    }
    assert len(ids) == 8


def test_an_id_that_comes_twice_is_replaced_the_second_time() -> None:
    reply = replied(called("{}"), called("{}"), called("{}"))
    assert reply.calls[0].id == "call_1"
    assert len({call.id for call in reply.calls}) == 3


def test_an_id_that_is_made_up_is_the_same_in_the_stream_and_in_the_reply() -> None:
    delta = frame("response.function_call_arguments.delta", output_index=0, delta="{}")
    reply, events = read(created(), added(0, BARE), delta, done(0, BARE), ended(output=[BARE]))
    (call,) = reply.calls
    assert events[1:4] == [CallStart(call.id, "find"), CallChunk(call.id, "{}"), CallEnd(call)]


def test_a_call_that_nothing_can_name_yet_is_shown_when_the_reply_is_whole() -> None:
    reply, events = read(added(0, BARE), done(0, BARE), ended(output=[BARE]))
    (call,) = reply.calls
    assert events[:3] == [CallStart(call.id, "find"), CallChunk(call.id, "{}"), CallEnd(call)]


def test_a_refusal_is_a_part_of_its_own() -> None:
    reply = replied(message({"type": "refusal", "refusal": "I can't."}))
    assert reply.parts[-1] == Refusal("I can't.")
    assert (reply.finish, reply.text) == ("refusal", "")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "output_limit"), ("content_filter", "content_filter"), (None, "output_limit")],
)
def test_an_incomplete_reply_says_why(reason: str | None, finish: str) -> None:
    reply, _ = read(
        done(0, message(words("a"))),
        ended("incomplete", incomplete_details={"reason": reason} if reason else None),
    )
    assert (reply.finish, reply.text) == (finish, "a")


def test_a_message_that_nothing_names_is_words_alone() -> None:
    assert replied({"type": "message", "content": [words("a")]}).parts == (Text("a"),)


def test_usage_has_five_counters() -> None:
    raw = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 120,
        "cost_in_usd_ticks": 9,
    }
    reply = replied(usage=raw)
    assert reply.usage == Usage(input=10, output=20, cache_read=60, cache_write=30, reasoning=5)
    assert reply.raw_usage == raw


@pytest.mark.parametrize("usage", [None, [], {"input_tokens": "x", "output_tokens": None}, {"input_tokens_details": 3}])
def test_odd_usage_counts_nothing(usage: Any) -> None:
    assert replied(usage=usage).usage == Usage()


@pytest.mark.parametrize("status", ["queued", "in_progress", "", None])
def test_a_body_that_is_not_finished_is_cut(status: Any) -> None:
    with pytest.raises(StreamCut):
        replied(status=status)


def test_a_reply_survives_the_journal() -> None:
    reply = replied(thought(), message(words("a"), phase="x"), called("{}"), {"type": "compaction", "id": "c"})
    assert decode_reply(encode(reply)) == reply


# ---- errors ----------------------------------------------------------------------------------------------------------


@every(
    ("status", "error", "kind", "retryable"),
    [
        (400, {"code": "context_length_exceeded", "message": "Too long."}, "context_overflow", False),
        (400, {"message": "Your input exceeds the context window of this model."}, "context_overflow", False),
        (400, {"type": "invalid_request_error", "message": "No."}, "bad_request", False),
        (400, {"code": "content_filter", "message": "No."}, "content_filter", False),
        (400, {"code": "invalid_prompt", "message": "Flagged."}, "content_filter", False),
        (401, {"code": "invalid_api_key", "message": "No."}, "authentication", False),
        (402, {"message": "Pay."}, "billing", False),
        (403, {"message": "No."}, "permission", False),
        (404, {"code": "model_not_found", "message": "No."}, "not_found", False),
        (404, {"code": "DeploymentNotFound", "message": "No."}, "not_found", False),
        (408, {"message": "Slow."}, "timeout", True),
        (409, {"message": "Busy."}, "server_error", True),
        (422, {"message": "No."}, "bad_request", False),
        (429, {"code": "rate_limit_exceeded", "message": "Slow down."}, "rate_limited", True),
        (429, {"code": "insufficient_quota", "message": "Pay."}, "billing", False),
        (500, {"type": "server_error", "message": "Oh."}, "server_error", True),
        (502, {}, "server_error", True),
        (503, {"message": "Oh."}, "overloaded", True),
        (504, {"message": "Oh."}, "timeout", True),
        (529, {"message": "Oh."}, "overloaded", True),
    ],
)
def test_errors_have_kinds(status: int, error: dict[str, Any], kind: str, retryable: bool) -> None:
    found = classify_error(status, {}, json.dumps({"error": error}).encode())
    assert (found.kind, found.retryable, found.status) == (kind, retryable, status)
    assert isinstance(found, ContextOverflow) is (kind == "context_overflow")


@every(
    ("body", "said"),
    [
        (b'{"error":{"message":"a"}}', "a"),
        (b'{"code":"x","error":"b"}', "b"),
        (b'{"message":"c"}', "c"),
        (b'{"detail":"d"}', "d"),
        (b'{"detail":[1]}', "[1]"),
        (b"<html>e</html>", "<html>e</html>"),
        (b"", "HTTP 400"),
        (b"[]", "HTTP 400"),
    ],
)
def test_errors_of_any_shape_have_words(body: bytes, said: str) -> None:
    assert classify_error(400, {}, body).message == said


def test_the_words_of_an_error_are_bounded() -> None:
    assert len(classify_error(400, {}, json.dumps({"error": {"message": "x" * 9_000}}).encode()).message) <= 1_010


def test_keys_in_the_words_of_an_error_are_not_kept() -> None:
    found = classify_error(401, {}, b'{"error":{"message":"Incorrect API key: sk-proj-abc123. Sent: Bearer tok123"}}')
    assert "abc123" not in str(found)
    assert "tok123" not in str(found)


@every(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 1.0),
        ({"retry-after-ms": "1250", "retry-after": "1"}, 1.25),
        ({"Retry-After": "Sun, 15 Nov 2026 10:00:30 GMT", "Date": "Sun, 15 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"Retry-After": "Sun, 15 Nov 2026 10:00:00 GMT", "Date": "Sun, 15 Nov 2026 10:00:30 GMT"}, 0.0),
        ({"Retry-After": "Sun, 15 Nov 2026 10:00:30 GMT"}, None),
        ({"Retry-After": "soon", "Date": "now"}, None),
        ({}, None),
    ],
)
def test_the_wait_that_a_provider_asks_for_is_told(headers: dict[str, str], seconds: float | None) -> None:
    assert classify_error(429, headers, b"{}").retry_after == seconds


@pytest.mark.parametrize(("status", "said", "retryable"), [(500, "false", False), (400, "true", True), (500, "", True)])
def test_what_a_provider_says_about_another_try_counts(status: int, said: str, retryable: bool) -> None:
    assert classify_error(status, {"X-Should-Retry": said}, b"").retryable is retryable


def test_the_id_of_a_failed_request_is_told() -> None:
    assert classify_error(500, {"X-Request-Id": "req_1"}, b"").request_id == "req_1"


@every(
    ("one", "kind", "retryable"),
    [
        (ended("failed", error={"code": "server_error", "message": "Oh."}), "server_error", True),
        (ended("failed", error={"code": "context_length_exceeded", "message": "x"}), "context_overflow", False),
        (ended("failed", error={"code": "invalid_prompt", "message": "x"}), "content_filter", False),
        (ended("failed", error=None), "server_error", True),
        (frame("response.failed", error={"code": "rate_limit_exceeded", "message": "x"}), "rate_limited", True),
        (ended("cancelled"), "server_error", True),
        (frame("error", code="rate_limit_exceeded", message="x"), "rate_limited", True),
        (frame("error", error={"type": "invalid_request_error", "message": "x"}), "bad_request", False),
        (frame("error", error={"code": 502, "message": "x"}), "server_error", True),
        (Frame("", b'{"error":{"code":429,"message":"x"}}'), "rate_limited", True),
        (Frame("error", b'{"code":null,"message":null}'), "server_error", True),
    ],
)
def test_an_error_inside_a_stream_is_raised(one: Frame, kind: str, retryable: bool) -> None:
    with pytest.raises(ModelError) as caught:
        DIALECT.reader(ENDPOINT, MODEL).feed(one)
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_response_that_failed_tells_what_it_used(status: str) -> None:
    usage = {"input_tokens": 30, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 10}}
    with pytest.raises(ModelError) as caught:
        DIALECT.reader(ENDPOINT, MODEL).feed(ended(status, error={"code": "server_error", "message": "x"}, usage=usage))
    assert caught.value.usage == Usage(input=20, output=4, cache_read=10)


def test_an_error_inside_a_stream_tells_how_long_to_wait() -> None:
    error = {"code": "rate_limit_exceeded", "message": "Rate limit reached. Please try again in 11.054s. Visit ..."}
    with pytest.raises(ModelError) as caught:
        DIALECT.reader(ENDPOINT, MODEL).feed(ended("failed", error=error))
    assert caught.value.retry_after == 11.054


def test_an_error_as_a_whole_body_is_raised() -> None:
    with pytest.raises(ModelError) as caught:
        DIALECT.reader(ENDPOINT, MODEL).read_body(b'{"error":{"code":"server_is_overloaded","message":"x"}}')
    assert caught.value.kind == "overloaded"


# ---- whatever comes --------------------------------------------------------------------------------------------------

KINDS = [
    *(
        f"response.{text}.{step}"
        for text in (
            *("output_text", "refusal", "reasoning_summary_text", "reasoning_text", "function_call_arguments"),
            *("content_part", "reasoning_summary_part", "output_item"),
        )
        for step in ("added", "delta", "done")
    ),
    *("response.created", "response.queued", "response.in_progress"),
    *(f"response.{status}" for status in ("completed", "incomplete", "failed", "cancelled", "new")),
    *("error", ""),
]
# Halves of characters among them.
texts = st.text(st.characters() | st.sampled_from("\ud83d\ude00"), max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
items = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "reasoning", "function_call", "compaction", "shell_call"]) | values},
    optional=dict.fromkeys(
        ("id", "call_id", "name", "arguments", "summary", "content", "encrypted_content", "status", "phase"),
        values | st.lists(st.fixed_dictionaries({"type": st.just("output_text"), "text": values}), max_size=2),
    ),
)
events = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | values},
    optional={
        "delta": values,
        "text": values,
        "refusal": values,
        "arguments": values,
        "item": items | values,
        "item_id": values,
        "output_index": st.integers(0, 2) | values,
        "content_index": values,
        "summary_index": values,
        "error": values,
        "code": values,
        "message": values,
        "response": values
        | st.fixed_dictionaries(
            {"output": st.lists(items | values, max_size=3) | values},
            optional=dict.fromkeys(("id", "model", "status", "usage", "error", "incomplete_details"), values),
        ),
    },
)
frames = st.builds(
    Frame,
    st.sampled_from(KINDS),
    events.map(lambda event: json.dumps(event).encode()) | st.binary(max_size=8),
)


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(frames, max_size=6), st.lists(items, max_size=3))
def test_whatever_frames_come_only_model_errors_are_raised(came: list[Frame], output: list[dict[str, Any]]) -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    shown: list[StreamEvent] = []
    for one in (*came, ended("incomplete", output=output)):
        with contextlib.suppress(ModelError):
            shown += reader.feed(one)
    try:
        reply = reader.finish()
    except StreamCut:
        return
    assert decode_reply(encode(reply)) == reply
    assert all(encode(event) for event in shown)
    assert len({call.id for call in reply.calls}) == len(reply.calls)
    json.loads(DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=(said(*reply.parts),))).body)
    json.loads(DIALECT.encode_request(ENDPOINT, "another", ModelRequest(messages=(said(*reply.parts),))).body)


@settings(deadline=None, max_examples=examples(200))
@given(events.map(lambda event: json.dumps(event).encode()) | st.binary(max_size=40))
def test_whatever_body_comes_only_model_errors_are_raised(body: bytes) -> None:
    with pytest.raises(ModelError):
        DIALECT.reader(ENDPOINT, MODEL).read_body(body)


@settings(deadline=None, max_examples=examples(200))
@given(
    st.integers(300, 599),
    st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "Date", "x-request-id"]), st.text(max_size=9)),
    values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40),
)
def test_whatever_error_comes_it_is_a_model_error(status: int, headers: dict[str, str], body: bytes) -> None:
    error = classify_error(status, headers, body)
    assert error.message
    assert error.retry_after is None or error.retry_after >= 0
