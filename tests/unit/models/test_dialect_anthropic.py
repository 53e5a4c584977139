"""The Anthropic Messages dialect, feature by feature, on small frames and requests of our own."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter
from tests.every import every
from tests.examples import examples

from holdfast.errors import ContextOverflow, InvalidArgument, ModelError, StreamCut
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
    StreamNote,
    StreamReset,
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
)
from holdfast.models.anthropic import DIALECT, AnthropicReader, drop_unanswered_tool_uses
from holdfast.models.dialect import Endpoint, Frame, ResponseReader
from holdfast.models.errors import classify_error
from holdfast.models.schemas import narrow_schema
from holdfast.turns.state import Thread

ENDPOINT: Final = Endpoint(provider="anthropic", dialect="anthropic", base_url="https://api.anthropic.com")
MODEL: Final = "claude-sonnet-4-6"
ROUTE: Final = ENDPOINT.route(MODEL)
FIND: Final = ToolSpec("find", "Finds.", {"type": "object", "properties": {"q": {"type": "string"}}})
HELLO: Final = UserMessage("u", (Text("hello"),))
MARK: Final = {"type": "ephemeral"}


def flagged(*flags: str) -> Endpoint:
    return Endpoint(provider="anthropic", dialect="anthropic", base_url="https://x", flags=frozenset(flags))


def body(*messages: Message, model: str = MODEL, endpoint: Endpoint = ENDPOINT, **fields: Any) -> dict[str, Any]:
    """The request as the provider reads it."""
    request = ModelRequest(messages=messages or (HELLO,), **fields)
    return json.loads(DIALECT.encode_request(endpoint, model, request).body)


def unmarked(value: Any) -> Any:
    """A request without the markers for the prompt cache."""
    if isinstance(value, dict):
        return {name: unmarked(one) for name, one in value.items() if name != "cache_control"}  # pyright: ignore[reportUnknownVariableType]
    return [unmarked(one) for one in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


def content(*messages: Message, **fields: Any) -> list[dict[str, Any]]:
    """The blocks of the only message that goes out."""
    (message,) = unmarked(body(*messages, **fields))["messages"]
    return message["content"]


def said(*parts: Part) -> AssistantMessage:
    return AssistantMessage("a", parts)


def frame(kind: str, **fields: Any) -> Frame:
    return Frame(kind, json.dumps({"type": kind, **fields}).encode())


def start(**fields: Any) -> Frame:
    message: dict[str, Any] = {
        "id": "msg_1",
        "model": "claude-x",
        "content": [],
        "usage": {"input_tokens": 5, "output_tokens": 1},
    }
    return frame("message_start", message=message | fields)


def block(index: int, given: dict[str, Any], *deltas: dict[str, Any]) -> list[Frame]:
    return [
        frame("content_block_start", index=index, content_block=given),
        *[frame("content_block_delta", index=index, delta=delta) for delta in deltas],
        frame("content_block_stop", index=index),
    ]


def end(reason: str | None = "end_turn", usage: dict[str, Any] | None = None, **delta: Any) -> list[Frame]:
    told = {"output_tokens": 9} if usage is None else usage
    return [frame("message_delta", delta={"stop_reason": reason, **delta}, usage=told), frame("message_stop")]


def fed(*frames: Frame, endpoint: Endpoint = ENDPOINT) -> tuple[ResponseReader, list[StreamEvent]]:
    reader = DIALECT.reader(endpoint, MODEL)
    return reader, [event for one in frames for event in reader.feed(one)]


def reply(*frames: Frame, endpoint: Endpoint = ENDPOINT) -> ModelReply:
    return fed(*frames, endpoint=endpoint)[0].finish()


def arguments(*pieces: str, reason: str = "tool_use", given: Any = None) -> ToolCall:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    tool: dict[str, Any] = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "find",
        "input": {} if given is None else given,
    }
    (call,) = reply(start(), *block(0, tool, *deltas), *end(reason)).calls
    return call


TEXT: Final[dict[str, Any]] = {"type": "text", "text": ""}
SEARCH: Final[dict[str, Any]] = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
FOUND: Final[dict[str, Any]] = {
    "type": "web_search_tool_result",
    "tool_use_id": "srv_1",
    "content": [{"type": "hit", "url": "u"}],
}


# ---- requests --------------------------------------------------------------------------------------------------------


def test_a_plain_request_has_what_the_provider_needs() -> None:
    wire = DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=(HELLO,)))
    assert (wire.path, wire.headers["anthropic-version"], wire.dropped) == ("/v1/messages", "2023-06-01", 0)
    assert unmarked(json.loads(wire.body)) == {
        "model": MODEL,
        "stream": True,
        "max_tokens": 8192,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    }


def test_settings_have_their_names() -> None:
    asked = Settings(max_output_tokens=10, temperature=0.5, top_p=0.9, stop=("END",), seed=7)
    made = body(settings=asked)
    assert {name: made[name] for name in ("max_tokens", "temperature", "top_p", "stop_sequences")} == {
        "max_tokens": 10,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["END"],
    }
    assert "seed" not in made


def test_tools_are_described_and_the_last_is_marked() -> None:
    (first, second) = body(tools=(FIND, ToolSpec("other", "", {"type": "object"})))["tools"]
    assert first == {"name": "find", "description": "Finds.", "input_schema": FIND.parameters}
    assert second["cache_control"] == MARK


def test_the_instructions_are_a_marked_block() -> None:
    assert body(instructions="Be brief.")["system"] == [{"type": "text", "text": "Be brief.", "cache_control": MARK}]


def test_there_are_at_most_four_markers_and_they_roll() -> None:
    turns = [said(ToolCall("c", "find", {})), ToolMessage("t", (ToolResult("c", "find", "x"),))]
    made = body(HELLO, *turns * 5, instructions="I", tools=(FIND,))
    assert json.dumps(made).count("cache_control") == 4
    marked = [index for index, message in enumerate(made["messages"]) if "cache_control" in json.dumps(message)]
    assert marked == [8, 10]


def test_nothing_is_marked_where_caching_is_off() -> None:
    made = body(instructions="I", tools=(FIND,), settings=Settings(cache=False))
    assert "cache_control" not in json.dumps(made)


def test_a_marker_that_the_caller_sets_takes_the_place_of_ours() -> None:
    made = body(instructions="I", tools=(FIND,), settings=Settings(extra={"cache_control": MARK}))
    assert "cache_control" not in json.dumps(made["messages"])


def test_the_prefix_stays_the_same_from_step_to_step() -> None:
    messages: list[Message] = [HELLO]
    before = ""
    for step in range(4):
        made = unmarked(body(*messages, instructions="I", tools=(FIND,)))
        text = json.dumps(made).removesuffix("]}")
        assert text.startswith(before)
        before = text
        messages += [
            said(Text("hm"), ToolCall(f"c{step}", "find", {})),
            ToolMessage("t", (ToolResult("c", "find", 1),)),
        ]


def test_results_and_the_words_after_them_are_one_message() -> None:
    call = said(ToolCall("c", "find", {}))
    made = unmarked(
        body(HELLO, call, ToolMessage("t", (ToolResult("c", "find", "x"),)), UserMessage("v", (Text("more"),)))
    )
    assert [message["role"] for message in made["messages"]] == ["user", "assistant", "user"]
    assert [part["type"] for part in made["messages"][2]["content"]] == ["tool_result", "text"]


def test_a_message_without_anything_to_say_is_left_out_and_its_neighbours_are_joined() -> None:
    made = unmarked(body(HELLO, said(Reasoning("unsigned")), UserMessage("v", (Text("still there?"),))))
    (message,) = made["messages"]
    assert [part["text"] for part in message["content"]] == ["hello", "still there?"]


def test_blank_text_is_left_out() -> None:
    assert content(UserMessage("u", (Text(" \n"), Text("x")))) == [{"type": "text", "text": "x"}]


def test_a_call_carries_its_arguments() -> None:
    (part,) = body(HELLO, said(ToolCall("toolu_1", "find", {"q": "é"})))["messages"][1]["content"]
    assert part == {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"q": "é"}}


def test_a_call_with_malformed_arguments_still_has_an_object() -> None:
    (part,) = body(HELLO, said(ToolCall("toolu_1", "find", None, '{"q"')))["messages"][1]["content"]
    assert part["input"] == {"invalid_json": '{"q"'}


def test_ids_and_names_of_other_providers_are_made_to_fit_and_still_match() -> None:
    odd = ToolCall("call/1.a", "functions.find", {})
    result = ToolMessage("t", (ToolResult("call/1.a", "functions.find", "x"),))
    made = body(HELLO, said(odd), result)["messages"]
    call, answer = made[1]["content"][0], made[2]["content"][0]
    assert call["id"] == answer["tool_use_id"]
    assert call["id"].replace("_", "").isalnum()
    assert call["name"] == "functions_find"


@every(
    ("value", "expected"),
    [("words", "words"), ({"a": [1, None]}, '{"a":[1,null]}'), (None, "null"), ("", ""), ([], "[]"), (3, "3")],
)
def test_a_result_is_words_or_json(value: Any, expected: str) -> None:
    (part,) = content(ToolMessage("t", (ToolResult("c", "find", value),)))
    assert part == {"type": "tool_result", "tool_use_id": "c", "content": expected}


@pytest.mark.parametrize("state", ["error", "unknown", "cancelled", "skipped"])
def test_a_result_that_is_not_ok_is_an_error(state: Any) -> None:
    (part,) = content(ToolMessage("t", (ToolResult("c", "find", "broken", state),)))
    assert part["is_error"] is True


PNG: Final = Attachment("d1", "image/png", 3, "a.png")
PDF: Final = Attachment("d2", "application/pdf", 3, "b.pdf")
TXT: Final = Attachment("d3", "text/csv; charset=utf-8", 3, "c.csv")
MP3: Final = Attachment("d4", "audio/mpeg", 3, "d.mp3")
FILES: Final = {"d1": b"png", "d2": b"pdf", "d3": b"a,b", "d4": b"mp3"}
SHOWN: Final = {
    "d1": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "cG5n"}},
    "d2": {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(b"pdf").decode()},
        "title": "b.pdf",
    },
    "d3": {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "a,b"},
        "title": "c.csv",
    },
}


@pytest.mark.parametrize("file", [PNG, PDF, TXT], ids=lambda file: str(file.name))
def test_a_file_of_the_user_is_shown(file: Attachment) -> None:
    assert content(UserMessage("u", (file,)), files=FILES) == [SHOWN[file.digest]]


@pytest.mark.parametrize("file", [PNG, PDF, TXT], ids=lambda file: str(file.name))
def test_a_file_that_a_tool_gives_is_shown(file: Attachment) -> None:
    stored = {"type": "attachment", "digest": file.digest, "media_type": file.media_type, "size": 3, "name": file.name}
    for value in (stored, file):
        (part,) = content(ToolMessage("t", (ToolResult("c", "find", ["Here:", value, {"n": 1}]),)), files=FILES)
        assert part["content"] == [
            {"type": "text", "text": "Here:"},
            SHOWN[file.digest],
            {"type": "text", "text": '{"n":1}'},
        ]


def test_a_file_of_a_call_that_failed_is_named_in_words() -> None:
    (part,) = content(ToolMessage("t", (ToolResult("c", "find", [PNG], "error"),)), files=FILES)
    assert part["content"] == [{"type": "text", "text": "[a.png (image/png, 3 bytes)]"}]


def test_a_file_of_a_tool_that_the_provider_does_not_take_is_named_in_words() -> None:
    (part,) = content(ToolMessage("t", (ToolResult("c", "find", MP3),)), files=FILES)
    assert part["content"] == [{"type": "text", "text": "[d.mp3 (audio/mpeg, 3 bytes)]"}]


def test_a_value_that_only_looks_like_a_file_is_json() -> None:
    value = {"type": "attachment", "digest": "elsewhere", "media_type": "image/png", "size": 1}
    (part,) = content(ToolMessage("t", (ToolResult("c", "find", value),)), files=FILES)
    assert json.loads(part["content"]) == value


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (MP3, "takes no audio/mpeg"),
        (Attachment("d4", "image/\ud83d", 3), r"takes no image/\\ud83d"),
        (Attachment("?", "image/png", 1), "are missing"),
    ],
    ids=["sound", "half a character", "missing"],
)
def test_a_file_of_the_user_that_can_not_be_shown_is_an_error(file: Attachment, words: str) -> None:
    with pytest.raises(ModelError, match=words) as raised:
        body(UserMessage("u", (file,)), files=FILES)
    assert (raised.value.kind, raised.value.retryable) == ("bad_request", False)


def test_a_refusal_goes_back_as_words() -> None:
    assert body(HELLO, said(Refusal("I won't.")))["messages"][1]["content"] == [{"type": "text", "text": "I won't."}]


# ---- thinking, output and the rest -----------------------------------------------------------------------------------


@every(
    ("model", "effort", "thinking", "config"),
    [
        ("claude-sonnet-4-6", "high", {"type": "adaptive"}, {"effort": "high"}),
        ("claude-opus-5", "minimal", {"type": "adaptive"}, {"effort": "low"}),
        ("claude-opus-4-8", "none", {"type": "disabled"}, None),
        ("claude-sonnet-4-5-20250929", "low", {"type": "enabled", "budget_tokens": 2048}, None),
        ("claude-sonnet-4-20250514", "minimal", {"type": "enabled", "budget_tokens": 1024}, None),
        ("claude-3-7-sonnet-latest", "high", {"type": "enabled", "budget_tokens": 16384}, None),
        ("claude-haiku-4-5", "none", None, None),
        ("kimi-k2", "medium", {"type": "enabled", "budget_tokens": 8192}, None),
    ],
)
def test_effort_is_said_as_the_model_takes_it(model: str, effort: Any, thinking: Any, config: Any) -> None:
    made = body(model=model, settings=Settings(effort=effort))
    assert (made.get("thinking"), made.get("output_config")) == (thinking, config)


def test_flags_decide_how_effort_is_said() -> None:
    low = Settings(effort="low")
    assert body(endpoint=flagged("budget_thinking"), settings=low)["thinking"]["type"] == "enabled"
    assert body(endpoint=flagged("adaptive_thinking"), model="x", settings=low)["thinking"]["type"] == "adaptive"


BUDGETED: Final = "claude-sonnet-4-5"
SIGNED: Final = Reasoning("hm", {"signature": "s"}, ENDPOINT.route(BUDGETED))
REDACTED: Final = Reasoning("", {"type": "redacted_thinking", "data": "d"}, ENDPOINT.route(BUDGETED))
FOREIGN: Final = Reasoning("hm", {"signature": "s"}, "another route")
CALL: Final = ToolCall("c", "find", {})
ANSWERED: Final = ToolMessage("t", (ToolResult("c", "find", "x"),))


def thinks(*messages: Message, endpoint: Endpoint = ENDPOINT, model: str = BUDGETED) -> bool:
    return "thinking" in body(*messages, endpoint=endpoint, model=model, settings=Settings(effort="low"))


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param((said(CALL), ANSWERED), id="nobody thought"),
        pytest.param((said(FOREIGN, CALL), ANSWERED), id="another route thought"),
        pytest.param((said(Text("Let me see."), CALL), ANSWERED), id="words before the call"),
        pytest.param((said(FOREIGN, CALL), ANSWERED, said(CALL), ANSWERED), id="we went on"),
        pytest.param((said(CALL), ANSWERED, HELLO), id="an input came in between"),
    ],
)
def test_a_turn_that_was_begun_without_our_thoughts_is_ended_without(begun: tuple[Message, ...]) -> None:
    assert not thinks(HELLO, *begun)


@every(
    "before",
    [
        pytest.param((said(SIGNED, CALL), ANSWERED), id="we thought"),
        pytest.param((said(REDACTED, CALL), ANSWERED), id="what we thought is hidden"),
        pytest.param((said(Text(" "), SIGNED, CALL), ANSWERED), id="a blank that is not sent"),
        pytest.param((said(SIGNED, CALL), ANSWERED, said(CALL), ANSWERED), id="we thought at the beginning alone"),
        pytest.param((said(FOREIGN, CALL), ANSWERED, said(Text("Done.")), HELLO), id="the turn is over"),
        pytest.param((said(Text("Done.")), HELLO), id="there were no calls"),
    ],
)
def test_a_turn_that_begins_with_our_thoughts_goes_on_with_them(before: tuple[Message, ...]) -> None:
    assert thinks(HELLO, *before)


def test_adaptive_thinking_needs_no_thoughts_before() -> None:
    assert thinks(HELLO, said(CALL), ANSWERED, model=MODEL)


def test_other_makers_do_not_ask_for_thoughts_unless_the_endpoint_says_so() -> None:
    assert thinks(HELLO, said(CALL), ANSWERED, model="kimi-k2")
    assert not thinks(HELLO, said(CALL), ANSWERED, model="kimi-k2", endpoint=flagged("budget_thinking"))


def test_without_thinking_there_is_no_room_for_it_and_a_temperature() -> None:
    asked = Settings(effort="low", temperature=0.2)
    made = body(HELLO, said(FOREIGN, CALL), ANSWERED, model=BUDGETED, settings=asked)
    assert (made["max_tokens"], made["temperature"]) == (8192, 0.2)


def test_thinking_leaves_room_for_the_answer() -> None:
    assert body(model="claude-sonnet-4-5", settings=Settings(effort="high"))["max_tokens"] == 8192 + 16384


def test_thinking_fits_into_the_limit_that_was_given() -> None:
    made = body(model="claude-sonnet-4-5", settings=Settings(effort="high", max_output_tokens=2000))
    assert (made["max_tokens"], made["thinking"]["budget_tokens"]) == (2000, 1999)
    assert "thinking" not in body(model="claude-sonnet-4-5", settings=Settings(effort="high", max_output_tokens=500))


def test_a_model_that_thinks_gets_no_temperature() -> None:
    assert "temperature" not in body(settings=Settings(effort="low", temperature=0.2))


def test_a_forced_call_is_not_thought_about() -> None:
    made = body(tools=(FIND,), settings=Settings(effort="low", tool_choice="required"))
    assert "thinking" not in made
    assert made["tool_choice"] == {"type": "any"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Settings(), None),
        (Settings(tool_choice="none"), {"type": "none"}),
        (Settings(parallel_tool_calls=False), {"type": "auto", "disable_parallel_tool_use": True}),
        (Settings(tool_choice="required", parallel_tool_calls=True), {"type": "any"}),
    ],
)
def test_the_choice_of_tools_is_said_where_it_differs(asked: Settings, expected: Any) -> None:
    assert body(tools=(FIND,), settings=asked).get("tool_choice") == expected
    assert "tool_choice" not in body(settings=asked)


class Address(BaseModel):
    city: str = Field(min_length=2, description="Where.")


class Person(BaseModel):
    name: str
    age: int = Field(ge=0)
    home: Address | None = None


class Node(BaseModel):
    next: Node | None = None


def test_the_schema_of_the_answer_is_narrowed_to_what_is_enforced() -> None:
    made = body(output=OutputSpec("Person", Person.model_json_schema()))["output_config"]["format"]
    assert made["type"] == "json_schema"
    schema = made["schema"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["age"] == {"title": "Age", "type": "integer", "description": "minimum: 0"}
    assert schema["$defs"]["Address"]["properties"]["city"]["description"] == "Where. (minLength: 2)"


@pytest.mark.parametrize(
    "wanted", [Node, list[int], dict[str, int], tuple[int, str], Any], ids=["recursive", "list", "dict", "tuple", "any"]
)
def test_a_schema_that_can_not_be_enforced_is_told_in_words(wanted: Any) -> None:
    schema = TypeAdapter(wanted).json_schema()
    made = body(instructions="I", output=OutputSpec("x", schema))
    assert narrow_schema(schema) is None
    assert "output_config" not in made
    assert made["system"][1]["text"].endswith(json.dumps(schema, separators=(",", ":")))
    assert [block.get("cache_control") for block in made["system"]] == [None, MARK]


def test_models_and_endpoints_without_schemas_are_told_in_words() -> None:
    output = OutputSpec("Person", Person.model_json_schema())
    assert "output_config" not in body(model="claude-3-5-sonnet-20240620", output=output)
    assert "output_config" not in body(endpoint=flagged("output_in_words"), output=output)


def test_effort_and_schema_share_their_field() -> None:
    made = body(output=OutputSpec("P", Person.model_json_schema()), settings=Settings(effort="low"))
    assert made["output_config"].keys() == {"effort", "format"}


def test_extra_fields_go_in_as_they_are() -> None:
    asked = Settings(extra={"metadata": {"user_id": "7"}, "thinking": {"type": "enabled", "budget_tokens": 3000}})
    made = body(settings=asked)
    assert (made["metadata"], made["thinking"]["budget_tokens"]) == ({"user_id": "7"}, 3000)


def test_tools_of_the_provider_come_before_ours() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    made = body(tools=(FIND,), settings=Settings(extra={"tools": [search]}))
    assert [tool["name"] for tool in made["tools"]] == ["web_search", "find"]
    assert made["tools"][0] == search


@pytest.mark.parametrize("name", ["messages", "model", "stream", "system"])
def test_extra_fields_can_not_replace_the_conversation(name: str) -> None:
    with pytest.raises(InvalidArgument):
        body(settings=Settings(extra={name: "x"}))


def test_betas_are_a_header() -> None:
    asked = ModelRequest(messages=(HELLO,), settings=Settings(extra={"betas": ["b", "c"]}))
    endpoint = Endpoint(provider="a", dialect="anthropic", base_url="https://x", headers={"Anthropic-Beta": "a"})
    wire = DIALECT.encode_request(endpoint, MODEL, asked)
    assert wire.headers["anthropic-beta"] == "a,b,c"
    assert "betas" not in json.loads(wire.body)


def test_the_query_of_an_endpoint_is_in_the_path() -> None:
    endpoint = Endpoint(provider="a", dialect="anthropic", base_url="https://x", query={"beta": "true"})
    assert DIALECT.encode_request(endpoint, MODEL, ModelRequest(messages=(HELLO,))).path == "/v1/messages?beta=true"


# ---- what goes back to the provider ----------------------------------------------------------------------------------


def back(*frames: Frame) -> list[dict[str, Any]]:
    """A reply, as it goes back in the next request."""
    found = reply(*frames)
    return body(HELLO, AssistantMessage("a", found.parts, found.finish))["messages"][1]["content"]


def test_signed_thoughts_go_back_with_their_signature() -> None:
    thought = [{"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta", "signature": "sig"}]
    given = block(0, {"type": "thinking", "thinking": "", "signature": ""}, *thought)
    assert back(start(), *given, *end()) == [{"type": "thinking", "thinking": "hm", "signature": "sig"}]


def test_thoughts_that_are_withheld_go_back_with_their_signature() -> None:
    given = block(0, {"type": "thinking", "thinking": ""}, {"type": "signature_delta", "signature": "sig"})
    assert back(start(), *given, *end()) == [{"type": "thinking", "thinking": "", "signature": "sig"}]


def test_unsigned_thoughts_go_back_only_where_the_endpoint_wants_them() -> None:
    given = [start(), *block(0, {"type": "thinking", "thinking": "hm"}), *end()]
    assert reply(*given).parts == (Reasoning("hm"),)
    endpoint = flagged("unsigned_thinking")
    message = AssistantMessage("a", reply(*given, endpoint=endpoint).parts)
    made = body(HELLO, message, endpoint=endpoint)["messages"][1]["content"]
    assert made == [{"type": "thinking", "thinking": "hm", "signature": ""}]


def test_redacted_thoughts_go_back_unchanged() -> None:
    given = {"type": "redacted_thinking", "data": "xyz"}
    assert back(start(), *block(0, given), *end()) == [given]


def test_tools_of_the_server_go_back_unchanged_and_in_order() -> None:
    use = block(0, SEARCH, *[{"type": "input_json_delta", "partial_json": piece} for piece in ('{"query":', '"x"}')])
    words = block(2, TEXT, {"type": "text_delta", "text": "Found."})
    expected = [SEARCH | {"input": {"query": "x"}}, FOUND, {"type": "text", "text": "Found."}]
    assert back(start(), *use, *block(1, FOUND), *words, *end()) == expected


def test_citations_go_back_with_their_text() -> None:
    citation = {"type": "web_search_result_location", "encrypted_index": "e"}
    given = block(
        0,
        {"type": "text", "text": "", "citations": []},
        {"type": "citations_delta", "citation": citation},
        {"type": "text_delta", "text": "So."},
    )
    assert back(start(), *given, *end()) == [{"type": "text", "text": "So.", "citations": [citation]}]


def test_a_block_that_nobody_knows_grows_and_goes_back() -> None:
    given = block(0, {"type": "compaction", "content": "a"}, {"type": "compaction_delta", "content": "b", "extra": [1]})
    assert back(start(), *given, *end()) == [{"type": "compaction", "content": "ab", "extra": [1]}]


def test_another_route_gets_none_of_it_and_the_loss_is_counted() -> None:
    parts = (
        Reasoning("hm", {"signature": "s"}, "other"),
        Text("So."),
        Reasoning("", {"citations": [1]}, "other"),
        Reasoning("", FOUND, "other"),
        ToolCall("c", "find", {}, None, {"thoughtSignature": "t"}, "other"),
    )
    wire = DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=(HELLO, said(*parts))))
    sent = json.loads(wire.body)["messages"][1]["content"]
    assert [part["type"] for part in sent] == ["text", "tool_use"]
    assert sent[0] == {"type": "text", "text": "So."}
    assert wire.dropped == 4


def test_a_call_made_by_code_goes_back_with_its_caller_and_its_container() -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srv_1"}
    tool: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}, "caller": caller}
    found = reply(start(), *block(0, SEARCH), *block(1, tool), *end("tool_use", container={"id": "box_1"}))
    result = ToolMessage("t", (ToolResult("toolu_1", "find", "x"),))
    made = unmarked(body(HELLO, AssistantMessage("a", found.parts), result))
    assert made["messages"][1]["content"] == [SEARCH, tool]
    assert made["container"] == "box_1"


def test_a_use_of_a_server_tool_without_result_is_kept_only_while_somebody_goes_on() -> None:
    given = [start(), *block(0, TEXT, {"type": "text_delta", "text": "x"}), *block(1, SEARCH)]
    assert reply(*given, *end("max_tokens")).parts == (Text("x"),)
    assert len(reply(*given, *end("pause_turn")).parts) == 2
    assert drop_unanswered_tool_uses(reply(*given, *end("pause_turn")).parts) == [Text("x")]


def test_each_message_is_encoded_once() -> None:
    thread = Thread().add(HELLO, said(Reasoning("hm", {"signature": "s"}, "other"), Text("hi")))
    dropped: list[int] = []
    bodies: list[bytes] = []
    for number in range(3):
        thread = thread.add(UserMessage(f"u{number}", (Text(f"more {number}"),)))
        request = ModelRequest(messages=thread.messages, wire=thread)
        wire = DIALECT.encode_request(ENDPOINT, MODEL, request)
        dropped.append(wire.dropped)
        bodies.append(wire.body)
        assert json.loads(wire.body) == body(*thread.messages)
    assert dropped == [1, 0, 0]


# ---- replies ---------------------------------------------------------------------------------------------------------


def test_a_reply_streams_and_ends() -> None:
    reader, events = fed(
        start(),
        frame("ping"),
        *block(0, TEXT, {"type": "text_delta", "text": "Hel"}, {"type": "text_delta", "text": "lo"}),
        *end(),
    )
    assert events == [
        StreamStart("claude-x"),
        StreamUsage(Usage(5, 1)),
        TextChunk("Hel"),
        TextChunk("lo"),
        StreamUsage(Usage(5, 9)),
    ]
    assert reader.finish() == ModelReply(
        (Text("Hello"),),
        "stop",
        Usage(5, 9),
        "claude-x",
        {"input_tokens": 5, "output_tokens": 9},
        response_id="msg_1",
    )


def test_thoughts_stream() -> None:
    _, events = fed(
        start(), *block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"})
    )
    assert ReasoningChunk("hm") in events


def test_a_call_streams() -> None:
    tool: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}}
    _, events = fed(start(), *block(0, tool, {"type": "input_json_delta", "partial_json": '{"q":1}'}))
    call = ToolCall("toolu_1", "find", {"q": 1})
    assert events[2:] == [CallStart("toolu_1", "find"), CallChunk("toolu_1", '{"q":1}'), CallEnd(call)]


def test_calls_whose_pieces_come_mixed_keep_their_arguments() -> None:
    tools: list[dict[str, Any]] = [
        {"type": "tool_use", "id": f"c{index}", "name": "find", "input": {}} for index in (0, 1)
    ]
    begun = [frame("content_block_start", index=index, content_block=tool) for index, tool in enumerate(tools)]
    pieces = [(0, '{"q":'), (1, '{"q":'), (1, "2}"), (0, "1}")]
    grown = [
        frame("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": piece})
        for index, piece in pieces
    ]
    found = reply(start(), *begun, *grown, *end("tool_use"))
    assert [call.arguments for call in found.calls] == [{"q": 1}, {"q": 2}]


@pytest.mark.parametrize("pieces", [(), ("",), ("null",), (" ",), ("{", "}")])
def test_no_arguments_are_an_empty_object(pieces: tuple[str, ...]) -> None:
    assert arguments(*pieces) == ToolCall("toolu_1", "find", {})


@every("text", ['{"q":', "[1]", '"x"', "nonsense", '{"q":"\\ud83d"}', "[" * 100_000])
def test_arguments_that_are_no_object_are_kept_as_they_came(text: str) -> None:
    assert arguments(text) == ToolCall("toolu_1", "find", None, text)


def test_arguments_may_come_with_the_beginning_of_the_call() -> None:
    assert arguments(given={"q": 1}).arguments == {"q": 1}
    assert arguments(given='{"q":1}').arguments == {"q": 1}
    assert arguments(given=[1]) == ToolCall("toolu_1", "find", None, "[1]")


def test_a_call_that_was_cut_off_before_its_arguments_has_none() -> None:
    assert arguments(reason="max_tokens") == ToolCall("toolu_1", "find", None, "")


NAMELESS: Final[dict[str, Any]] = {"type": "tool_use", "name": "find", "input": {}}


def call_ids(*frames: Frame) -> list[str]:
    return [call.id for call in reply(*frames, *end("tool_use")).calls]


def test_a_call_without_an_id_gets_one_that_is_always_the_same() -> None:
    (first,), (again,) = (call_ids(start(), *block(0, NAMELESS)) for _ in range(2))
    assert first
    assert first == again


def test_calls_without_an_id_are_told_apart() -> None:
    first, second = call_ids(start(), *block(0, NAMELESS), *block(1, NAMELESS))
    assert first != second


def test_an_id_that_comes_twice_in_a_reply_stands_for_the_first_call_alone() -> None:
    called = NAMELESS | {"id": "toolu_1"}
    first, second = call_ids(start(), *block(0, called), *block(1, called))
    assert first == "toolu_1"
    assert second not in {"", "toolu_1"}


@pytest.mark.parametrize(
    "other",
    [
        start(id="msg_2"),
        start(id=None, usage={"input_tokens": 90}),
        start(id=None, content=[{"type": "text", "text": "Once more."}]),
    ],
)
def test_an_id_that_is_made_up_is_another_one_in_another_reply(other: Frame) -> None:
    (id,) = call_ids(start(id=None), *block(2, NAMELESS))
    assert call_ids(other, *block(2, NAMELESS)) != [id]


def test_the_events_of_a_call_have_the_id_that_was_made_up() -> None:
    reader, events = fed(
        start(), *block(0, NAMELESS, {"type": "input_json_delta", "partial_json": "{}"}), *end("tool_use")
    )
    (call,) = reader.finish().calls
    assert [event.id for event in events if isinstance(event, CallStart | CallChunk)] == [call.id, call.id]


@every(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "output_limit"),
        ("model_context_window_exceeded", "context_overflow"),
        ("refusal", "refusal"),
        ("something_new", "stop"),
        (None, "stop"),
        ("pause_turn", "stop"),
        ("tool_use", "stop"),
    ],
)
def test_a_reason_to_stop_has_its_neutral_word(reason: str | None, finish: str) -> None:
    assert reply(start(), *block(0, TEXT, {"type": "text_delta", "text": "x"}), *end(reason)).finish == finish


def test_calls_finish_a_reply_whatever_the_reason_says() -> None:
    tool: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "find", "input": {}}
    for reason in ("end_turn", "pause_turn", "tool_use"):
        reader, _ = fed(start(), *block(0, tool), *end(reason))
        assert (reader.finish().finish, reader.paused) == ("tool_calls", False)


@pytest.mark.parametrize("reason", ["pause_turn", "compaction"])
def test_a_pause_is_told(reason: str) -> None:
    reader, _ = fed(start(), *block(0, SEARCH), *end(reason))
    assert reader.paused


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"explanation": "Not this."}, "Not this."),
        ({"category": "cyber"}, "declined: cyber"),
        (None, "the model declined to answer"),
    ],
)
def test_a_refusal_says_why(details: Any, words: str) -> None:
    assert reply(start(), *end("refusal", stop_details=details)).parts == (Refusal(words),)


def test_the_words_of_a_refusal_are_shown_once() -> None:
    words = block(0, TEXT, {"type": "text_delta", "text": "Well. "})
    _, events = fed(start(), *words, *end("refusal", stop_details={"explanation": "Not this."}))
    assert [event.text for event in events if isinstance(event, TextChunk)] == ["Well. ", "Not this."]


def test_a_reply_is_complete_with_its_last_frame_and_not_before() -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    seen: list[bool] = []
    for one in (start(), *block(0, TEXT), *end()):
        reader.feed(one)
        seen.append(reader.complete)
    assert seen == [False, False, False, False, True]


def test_usage_is_cumulative_and_nulls_change_nothing() -> None:
    first = {"input_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 3, "output_tokens": 1}
    last = {"input_tokens": None, "output_tokens": 20, "output_tokens_details": {"thinking_tokens": 8}}
    found = reply(start(usage=first), *end(usage=last))
    assert found.usage == Usage(5, 20, 7, 3, 8)


def test_a_message_that_begins_again_takes_back_what_was_said() -> None:
    half = frame("content_block_start", index=0, content_block={"type": "text", "text": "Hal"})
    words = block(0, TEXT, {"type": "text_delta", "text": "Whole"})
    reader, events = fed(start(), half, start(id="msg_2"), *words, *end())
    assert [type(event) for event in events].count(StreamReset) == 1
    assert reader.finish().text == "Whole"


def test_a_beginning_that_is_said_twice_changes_nothing() -> None:
    words = block(0, TEXT, {"type": "text_delta", "text": "x"})
    reader, events = fed(start(), start(), *words, *end())
    assert StreamReset not in [type(event) for event in events]
    assert (reader.finish().text, reader.ignored) == ("x", 1)


def test_another_model_that_takes_over_is_noted() -> None:
    given = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}
    reader, events = fed(start(), *block(0, given), *end())
    assert StreamNote("fallback", "a -> b") in events
    assert reader.finish().model == "b"


def test_content_at_the_beginning_counts() -> None:
    tool: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "find", "input": {"q": 1}}
    reader, events = fed(start(content=[tool]), *end("tool_use"))
    assert reader.finish().calls == (ToolCall("c", "find", {"q": 1}),)
    assert CallStart("c", "find") in events


def test_unknown_frames_are_ignored_and_counted() -> None:
    odd = [frame("novelty"), Frame("", b" "), frame("content_block_delta", index=9, delta={"type": "text_delta"})]
    reader, events = fed(start(), *odd, *end(), frame("ping"))
    assert (reader.ignored, len(events)) == (4, 3)


@pytest.mark.parametrize("count", range(4))
def test_a_stream_without_its_last_frame_is_cut(count: int) -> None:
    frames = [start(), *block(0, TEXT)[:1], *end()][:count]
    with pytest.raises(StreamCut):
        reply(*frames)


def test_an_end_without_a_beginning_is_no_reply() -> None:
    with pytest.raises(StreamCut):
        reply(*end())


@every("data", [b"{", b"\xff", b"[]", b"1", b'"\\ud800"', b"[" * 100_000])
def test_a_frame_that_is_no_object_is_an_error_that_may_pass(data: bytes) -> None:
    with pytest.raises(ModelError) as raised:
        reply(start(), Frame("message_delta", data))
    assert (raised.value.kind, raised.value.retryable) == ("bad_frame", True)


def test_a_reply_without_end_is_stopped() -> None:
    reader, _ = fed(start(), *block(0, TEXT)[:1])
    piece = frame("content_block_delta", index=0, delta={"type": "text_delta", "text": "x" * 2_000_000})
    for _ in range(AnthropicReader.max_size // len(piece.data)):
        reader.feed(piece)
    with pytest.raises(ModelError, match="longer than") as raised:
        reader.feed(piece)
    assert raised.value.kind == "bad_frame"


# ---- characters that were cut in two ---------------------------------------------------------------------------------


def torn(kind: str, *pieces: str) -> list[dict[str, Any]]:
    field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[kind]
    return [{"type": kind, field: piece} for piece in pieces]


def test_a_character_that_was_cut_in_two_is_joined() -> None:
    pieces = torn("text_delta", "a\ud83d", "\ude00b", "c")
    reader, events = fed(start(), *block(0, TEXT, *pieces), *end())
    assert [event.text for event in events if isinstance(event, TextChunk)] == ["a", "\U0001f600b", "c"]
    assert reader.finish().text == "a\U0001f600bc"


def test_a_character_that_was_cut_in_two_is_joined_in_thoughts() -> None:
    thinking: dict[str, Any] = {"type": "thinking", "thinking": "\ud83d", "signature": ""}
    signed = {"type": "signature_delta", "signature": "s"}
    found = reply(start(), *block(0, thinking, *torn("thinking_delta", "\ude00"), signed), *end())
    assert found.parts == (Reasoning("\U0001f600", {"signature": "s"}, ROUTE),)


def test_a_character_that_was_cut_in_two_is_joined_in_arguments() -> None:
    pieces = torn("input_json_delta", '{"q":"\ud83d', '\ude00"}')
    found = reply(start(), *block(0, NAMELESS, *pieces), *end("tool_use"))
    assert found.calls[0].arguments == {"q": "\U0001f600"}


def test_blocks_that_grow_side_by_side_do_not_get_halves_of_each_other() -> None:
    first, second = (block(index, TEXT, *torn("text_delta", "\ud83d", "\ude00")) for index in (0, 1))
    frames = [frame for pair in zip(first, second, strict=True) for frame in pair]
    assert reply(start(), *frames, *end()).parts == (Text("\U0001f600"), Text("\U0001f600"))


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [(("a\ud83d",), "a\ufffd"), (("\ude00a",), "\ufffda"), (("\ud83d", "\ud83d\ude00"), "\ufffd\U0001f600")],
)
def test_half_a_character_that_stays_alone_is_marked(pieces: tuple[str, ...], shown: str) -> None:
    reader, events = fed(start(), *block(0, TEXT, *torn("text_delta", *pieces)), *end())
    assert "".join(event.text for event in events if isinstance(event, TextChunk)) == shown
    assert reader.finish().text == shown


def test_half_a_character_at_the_end_of_a_block_without_an_end_is_marked() -> None:
    reader, events = fed(start(), *block(0, TEXT, *torn("text_delta", "a\ud83d"))[:-1], *end())
    assert [event.text for event in events if isinstance(event, TextChunk)] == ["a", "\ufffd"]
    assert reader.finish().text == "a\ufffd"


@pytest.mark.parametrize(
    "given",
    [
        {"type": "mcp_tool_result", "tool_use_id": "m\ud83d", "content": [{"type": "text", "text": "\ud83d"}]},
        {"type": "compaction", "content": "\ud83d"},
        {"type": "tool_use", "id": "c\ud83d", "name": "\ud83d", "input": {"text": "\ud83d", "\ud83d": 1}},
        {"type": "text", "text": "x", "citations": [{"text": "\ud83d"}]},
        {"type": "thinking", "thinking": "x", "signature": "\ud83d"},
    ],
)
def test_whatever_has_half_a_character_can_be_written_down(given: dict[str, Any]) -> None:
    found = reply(
        start(id="\ud83d", model="\ud83d"), *block(0, given), *end("refusal", stop_details={"category": "\ud83d"})
    )
    assert "\ufffd" in encode(found).decode()


def test_what_grows_in_a_block_of_the_providers_own_is_joined_as_well() -> None:
    grown = [{"type": "compaction_delta", "content": piece} for piece in ("\ud83d", "\ude00")]
    (part,) = reply(start(), *block(0, {"type": "compaction", "content": ""}, *grown), *end()).parts
    assert part == Reasoning("", {"type": "compaction", "content": "\U0001f600"}, ROUTE)


def test_half_a_character_in_a_whole_body_is_marked() -> None:
    assert whole({"content": [{"type": "text", "text": "a\ud83d"}], "stop_reason": "end_turn"}).text == "a\ufffd"


# ---- whole bodies and errors -----------------------------------------------------------------------------------------


def whole(body: Any) -> ModelReply:
    return DIALECT.reader(ENDPOINT, MODEL).read_body(body if isinstance(body, bytes) else json.dumps(body).encode())


def test_a_whole_body_is_the_same_reply() -> None:
    tool: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "find", "input": {"q": 1}}
    message = {
        "id": "msg_1",
        "type": "message",
        "model": "claude-x",
        "content": [{"type": "text", "text": "Hello", "citations": None}, tool],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 5, "output_tokens": 9},
    }
    words = block(0, TEXT, {"type": "text_delta", "text": "Hello"})
    called = block(1, tool | {"input": {}}, {"type": "input_json_delta", "partial_json": '{"q":1}'})
    assert whole(message) == reply(start(), *words, *called, *end("tool_use"))


def test_a_pause_in_a_whole_body_is_told() -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    reader.read_body(json.dumps({"content": [SEARCH], "stop_reason": "pause_turn"}).encode())
    assert (reader.paused, reader.complete) == (True, True)


@pytest.mark.parametrize("given", [b"", b"<html>", b"[]", {"type": "message"}, {"content": "x"}])
def test_a_body_that_is_no_message_is_an_error_that_may_pass(given: Any) -> None:
    with pytest.raises(ModelError) as raised:
        whole(given)
    assert (raised.value.kind, raised.value.retryable) == ("bad_frame", True)


def told(kind: str, words: str = "words") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": words}, "request_id": "req_1"}


@every(
    ("kind", "words", "expected", "retryable"),
    [
        ("overloaded_error", "Overloaded", "overloaded", True),
        ("api_error", "Internal", "server_error", True),
        ("rate_limit_error", "Slow down", "rate_limited", True),
        ("timeout_error", "Too slow", "timeout", True),
        ("invalid_request_error", "Bad", "bad_request", False),
        ("invalid_request_error", "prompt is too long: 3 tokens > 2 maximum", "context_overflow", False),
        (
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 3 > 2",
            "context_overflow",
            False,
        ),
        ("invalid_request_error", "Your credit balance is too low", "billing", False),
        ("api_error", "Output blocked by content filtering policy", "content_filter", False),
        ("authentication_error", "invalid x-api-key", "authentication", False),
        ("something_new", "?", "server_error", True),
    ],
)
def test_an_error_inside_a_response_is_raised(kind: str, words: str, expected: str, retryable: bool) -> None:
    for send in (lambda: whole(told(kind, words)), lambda: fed(start(), frame("error", **told(kind, words)))):
        with pytest.raises(ModelError) as raised:
            send()
        error = raised.value
        assert (error.kind, error.retryable, error.message, error.request_id) == (expected, retryable, words, "req_1")


def failed(status: int, given: Any = None, **headers: str) -> ModelError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return classify_error(status, named, given if isinstance(given, bytes) else json.dumps(given).encode())


@every(
    ("status", "kind", "retryable"),
    [
        (400, "bad_request", False),
        (401, "authentication", False),
        (402, "billing", False),
        (403, "permission", False),
        (404, "not_found", False),
        (408, "timeout", True),
        (409, "server_error", True),
        (413, "bad_request", False),
        (418, "bad_request", False),
        (422, "bad_request", False),
        (425, "server_error", True),
        (429, "rate_limited", True),
        (500, "server_error", True),
        (502, "server_error", True),
        (504, "timeout", True),
        (529, "overloaded", True),
    ],
)
def test_a_status_alone_says_enough(status: int, kind: str, retryable: bool) -> None:
    error = failed(status, b"<html>Bad Gateway</html>")
    assert (error.kind, error.retryable, error.status, error.message) == (
        kind,
        retryable,
        status,
        "<html>Bad Gateway</html>",
    )


def test_too_much_for_the_window_is_a_class_of_its_own() -> None:
    error = failed(400, told("invalid_request_error", "prompt is too long"))
    assert isinstance(error, ContextOverflow)
    assert (error.status, error.request_id) == (400, "req_1")


def test_an_error_without_words_says_its_status() -> None:
    assert failed(500, b"").message == "HTTP 500"


def test_the_id_of_the_request_may_be_in_the_headers() -> None:
    assert failed(500, b"", **{"Request-Id": "req_9"}).request_id == "req_9"


def test_the_provider_may_ask_for_another_try() -> None:
    assert classify_error(409, {"x-should-retry": "true"}, json.dumps(told("invalid_request_error")).encode()).retryable


def test_the_provider_may_forbid_another_try() -> None:
    assert not failed(500, b"", x_should_retry="false").retryable


@every(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 7.0),
        ({"retry-after-ms": "7250", "retry-after": "7"}, 7.25),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2026-10-21T07:28:12Z",
                "anthropic-ratelimit-tokens-remaining": "10",
                "anthropic-ratelimit-tokens-reset": "2026-10-21T09:00:00Z",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            12.0,
        ),
        ({"retry-after": "soon", "date": "now"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-1"}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait_is_read_from_the_response(headers: dict[str, str], seconds: float | None) -> None:
    assert classify_error(429, headers, b"{}").retry_after == seconds


def test_the_words_of_an_error_are_bounded_and_keep_no_key() -> None:
    error = failed(400, told("invalid_request_error", "sk-ant-api03-abcdefgh " + "x" * 5_000))
    assert "abcdefgh" not in error.message
    assert len(error.message) <= 1_003


# ---- whatever comes --------------------------------------------------------------------------------------------------

HALVES: Final = st.sampled_from(["\ud83d", "\ude00", "a\ud83d", "\ude00b", "\ude00\ud83d"])
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | HALVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KINDS: Final = ("text", "thinking", "tool_use", "redacted_thinking", "server_tool_use", "novel_tool_result", "novel")
DELTAS: Final = tuple(f"{kind}_delta" for kind in ("text", "thinking", "input_json", "signature", "citations", "novel"))
EVENTS: Final = (
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
    *("message_delta", "message_stop", "ping", "novel"),
)
FIELDS: Final = (
    *("id", "name", "text", "thinking", "partial_json", "signature", "citation", "citations", "input", "content"),
    *("tool_use_id", "model", "usage", "stop_reason", "stop_details", "container", "caller", "from", "to"),
)


def typed(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "type": kind}


def objects(kinds: tuple[str, ...]) -> st.SearchStrategy[Any]:
    return JSON | st.builds(typed, st.sampled_from(kinds), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))


def framed(kind: str, fields: dict[str, Any]) -> Frame:
    return frame(kind, **fields)


BODIES: Final[st.SearchStrategy[dict[str, Any]]] = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(0, 2) | JSON,
        "content_block": objects(KINDS),
        "delta": objects(DELTAS),
        "message": objects(("message",)),
        "usage": JSON,
    },
)
FRAMES: Final = st.builds(framed, st.sampled_from(EVENTS), BODIES) | st.builds(
    Frame, st.sampled_from(("", "ping", "error")), st.binary(max_size=20)
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(FRAMES, max_size=20))
def test_whatever_frames_come_there_is_a_reply_or_a_model_error(frames: list[Frame]) -> None:
    reader = DIALECT.reader(ENDPOINT, MODEL)
    try:
        for one in [start(), *frames, *end()]:
            reader.feed(one)
        found = reader.finish()
    except ModelError:
        return
    encode(found)
    again = DIALECT.encode_request(ENDPOINT, MODEL, ModelRequest(messages=(HELLO, AssistantMessage("a", found.parts))))
    json.loads(again.body)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_body_comes_there_is_a_reply_or_a_model_error(given_body: bytes) -> None:
    assert isinstance(classify_error(500, {"retry-after": "x"}, given_body), ModelError)
    try:
        whole(given_body)
    except ModelError:
        return


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(100, 599),
    st.dictionaries(st.sampled_from(["retry-after", "date", "retry-after-ms"]), st.text(max_size=30)),
)
def test_whatever_headers_come_an_error_has_a_kind(status: int, headers: dict[str, str]) -> None:
    assert classify_error(status, headers, b"").kind
