"""Real traffic of the Anthropic Messages API: read without loss, and continued as the recorded clients did."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pytest
from tests.every import every

from holdfast.errors import ContextOverflow, ModelError, StreamCut
from holdfast.messages import (
    AssistantMessage,
    Attachment,
    CallEnd,
    InputPart,
    Message,
    ModelReply,
    ModelRequest,
    Reasoning,
    ReasoningChunk,
    Refusal,
    Settings,
    StreamEvent,
    StreamNote,
    StreamReset,
    Text,
    TextChunk,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    Usage,
    UserMessage,
    join_refusal,
)
from holdfast.models.anthropic import DIALECT
from holdfast.models.dialect import Endpoint, Frame, ResponseReader
from holdfast.models.errors import classify_error
from holdfast.models.sse import SseDecoder

if TYPE_CHECKING:
    from holdfast.models.dialect import ResponseReader


def _beside(name: str) -> Any:
    """A module beside this one: test modules are loaded one by one, without a package."""
    spec = importlib.util.spec_from_file_location(f"recordings_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


conftest: Final = _beside("conftest")
RECORDINGS: Final[list[Any]] = conftest.recordings("anthropic.messages")
ENDPOINT: Final = Endpoint(provider="anthropic", dialect="anthropic", base_url="https://api.anthropic.com")
SMALL: Final = 9_000
"""Streams up to this many bytes are cut in two at every place; longer ones come byte by byte."""

STOPS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "output_limit",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_overflow",
}


# ---- reading ---------------------------------------------------------------------------------------------------------


def exchanges(path: Path) -> list[tuple[str, Any, Any]]:
    """The model and the response of each exchange, with its request."""
    return [
        (_asked(exchange["request"]), exchange["request"], exchange["response"])
        for exchange in conftest.load(path)["exchanges"]
    ]


def _asked(request: Any) -> str:
    return "unknown" if request is None else str(request["body"]["model"])


def good(path: Path) -> list[tuple[str, Any]]:
    """The model and the response of each exchange that went well."""
    found = [(model, response) for model, _, response in exchanges(path) if response["status"] == 200]
    return [(model, response) for model, response in found if '"type":"error"' not in response.get("sse", "")]


def frames(sse: str) -> list[Frame]:
    decoder = SseDecoder()
    return [*decoder.feed(sse.encode()), *decoder.close()]


def read(model: str, given: list[Frame]) -> tuple[ResponseReader, list[StreamEvent]]:
    reader = DIALECT.reader(ENDPOINT, model)
    return reader, [event for frame in given for event in reader.feed(frame)]


def reply_of(model: str, response: Any) -> ModelReply:
    if "sse" in response:
        return read(model, frames(response["sse"]))[0].finish()
    return DIALECT.reader(ENDPOINT, model).read_body(json.dumps(response["body"]).encode())


def message_of(response: Any) -> dict[str, Any]:
    """The message that a response tells, put together anew and without knowing what its blocks mean."""
    if "body" in response:
        return response["body"]
    message: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for event in (json.loads(frame.data) for frame in frames(response["sse"])):
        match event["type"]:
            case "message_start":
                message, blocks = event["message"], {}
            case "content_block_start":
                blocks[event["index"]] = event["content_block"]
            case "content_block_delta":
                grow(blocks[event["index"]], event["delta"])
            case "message_delta":
                message.update({name: value for name, value in event["delta"].items() if value is not None})
                message["usage"].update({name: value for name, value in event["usage"].items() if value is not None})
            case _:
                pass
    message["content"] = [blocks[index] for index in sorted(blocks)]
    for block in message["content"]:
        if isinstance(block.get("input"), str):
            block["input"] = json.loads(block["input"] or "{}")
    return message


def grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "citations_delta":
            block["citations"].append(delta["citation"])
        case "input_json_delta":
            block["input"] = (block["input"] or "") + delta["partial_json"]
        case other:
            raise AssertionError(other)


def blocks_of(reply: ModelReply) -> list[dict[str, Any]]:
    """The parts of a reply, in the provider's words."""
    blocks: list[dict[str, Any]] = []
    for part in reply.parts:
        match part:
            case Text(text):
                blocks.append({"type": "text", "text": text})
            case ToolCall():
                blocks.append({"type": "tool_use", "id": part.id, "name": part.name, "input": part.arguments})
            case Reasoning(text, None):
                blocks.append({"type": "thinking", "thinking": text})
            case Reasoning(text, {"signature": signature}):
                blocks.append({"type": "thinking", "thinking": text, "signature": signature})
            case Reasoning(_, {"citations": citations}):
                blocks[-1]["citations"] = citations
            case Reasoning(_, replay):
                blocks.append(replay)
            case _:
                pass
    return blocks


def plain(block: dict[str, Any]) -> bool:
    """A call of the model's own: that nobody else made it needs no saying."""
    return block["type"] == "tool_use" and block.get("caller", {}).get("type", "direct") == "direct"


@every("path", RECORDINGS)
def test_every_block_is_read_without_loss_and_in_order(path: Path) -> None:
    for model, response in good(path):
        told = message_of(response)["content"]
        expected = [
            {name: value for name, value in block.items() if value != []} | ({"caller": None} if plain(block) else {})
            for block in told
            if block.get("text") != ""
        ]
        found = [
            {name: value for name, value in block.items() if value != []} | ({"caller": None} if plain(block) else {})
            for block in blocks_of(reply_of(model, response))
        ]
        assert found == expected


@every("path", RECORDINGS)
def test_finish_model_and_id_are_what_the_provider_says(path: Path) -> None:
    for model, response in good(path):
        told, reply = message_of(response), reply_of(model, response)
        moved = [block["to"]["model"] for block in told["content"] if block["type"] == "fallback"]
        expected = (STOPS[told["stop_reason"]], moved[-1] if moved else told["model"], told["id"])
        assert (reply.finish, reply.model, reply.response_id) == expected


@every("path", RECORDINGS)
def test_usage_is_the_last_that_the_provider_counted(path: Path) -> None:
    for model, response in good(path):
        usage, reply = message_of(response)["usage"], reply_of(model, response)
        assert reply.raw_usage == usage
        runs = usage.get("iterations") or [usage]
        assert reply.usage == Usage(
            sum(run["input_tokens"] for run in runs),
            sum(run["output_tokens"] for run in runs),
            sum(run.get("cache_read_input_tokens", 0) for run in runs),
            sum(run.get("cache_creation_input_tokens", 0) for run in runs),
            usage.get("output_tokens_details", {}).get("thinking_tokens", 0),
        )


@every("path", RECORDINGS)
def test_what_streams_adds_up_to_the_reply(path: Path) -> None:
    for model, response in good(path):
        if "sse" not in response:
            continue
        reader, events = read(model, frames(response["sse"]))
        resets = [index for index, event in enumerate(events) if isinstance(event, StreamReset)]
        events = events[resets[-1] + 1 if resets else 0 :]
        reply = reader.finish()
        shown = "".join(event.text for event in events if isinstance(event, TextChunk))
        assert shown == reply.text + join_refusal(reply.parts)
        thoughts = "".join(event.text for event in events if isinstance(event, ReasoningChunk))
        assert thoughts == "".join(part.text for part in reply.parts if isinstance(part, Reasoning))
        assert tuple(event.call for event in events if isinstance(event, CallEnd)) == reply.calls


@every("path", RECORDINGS)
def test_no_frame_of_a_recording_is_unknown(path: Path) -> None:
    for model, response in good(path):
        assert "sse" not in response or read(model, frames(response["sse"]))[0].ignored == 0


@every("path", RECORDINGS)
def test_frames_that_come_byte_by_byte_or_split_in_many_places_give_the_same_reply(path: Path) -> None:
    _check_splits(path, every=37)


@pytest.mark.torture
@every("path", RECORDINGS)
def test_frames_split_at_every_byte_give_the_same_reply(path: Path) -> None:
    _check_splits(path, every=1)


def _check_splits(path: Path, *, every: int) -> None:
    for model, response in good(path):
        if "sse" not in response:
            continue
        data = response["sse"].encode()
        whole = frames(response["sse"])
        decoder = SseDecoder()
        bytewise = [frame for index in range(len(data)) for frame in decoder.feed(data[index : index + 1])]
        assert read(model, bytewise + decoder.close())[0].finish() == read(model, whole)[0].finish()
        for cut in range(1, len(data), every) if len(data) <= SMALL else ():
            decoder = SseDecoder()
            assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) + decoder.close() == whole


@every("path", RECORDINGS)
def test_a_stream_that_ends_anywhere_before_its_last_frame_is_cut(path: Path) -> None:
    for model, response in good(path):
        given = frames(response["sse"]) if "sse" in response else []
        reader = DIALECT.reader(ENDPOINT, model)
        for frame in given[:-1]:
            reader.feed(frame)
            with pytest.raises(StreamCut):
                reader.finish()


# ---- particular recordings -------------------------------------------------------------------------------------------


def named(name: str) -> Path:
    found = [case.values[0] for case in RECORDINGS if case.id == name]
    if not found:
        pytest.skip("this recording is not here; set HOLDFAST_RECORDINGS")
    return cast("Path", found[0])


@pytest.mark.parametrize(
    ("name", "kind", "retryable"),
    [
        ("anthropic/error-400-context-length", "context_overflow", False),
        ("anthropic/error-401", "authentication", False),
        ("anthropic/error-404-model-name", "not_found", False),
        ("derived/anthropic-529-then-ok", "overloaded", True),
    ],
)
def test_an_error_gets_its_kind(name: str, kind: str, retryable: bool) -> None:
    _, _, response = exchanges(named(name))[0]
    error = classify_error(response["status"], response["headers"], json.dumps(response["body"]).encode())
    assert (error.kind, error.retryable, error.status) == (kind, retryable, response["status"])
    assert error.request_id == response["body"]["request_id"]
    assert error.message == response["body"]["error"]["message"]
    assert isinstance(error, ContextOverflow) is (kind == "context_overflow")


def test_an_error_in_the_middle_of_a_stream_is_raised() -> None:
    model, _, response = exchanges(named("derived/anthropic-midstream-overloaded"))[0]
    with pytest.raises(ModelError) as raised:
        read(model, frames(response["sse"]))
    assert (raised.value.kind, raised.value.retryable) == ("overloaded", True)


def test_a_pause_says_so_and_a_finished_reply_does_not() -> None:
    found = exchanges(named("anthropic/pause-turn-web-search"))
    assert [read(model, frames(response["sse"]))[0].paused for model, _, response in found] == [True, False]


def test_a_reply_that_begins_anew_takes_back_what_it_said() -> None:
    model, _, response = exchanges(named("anthropic/fx-spliced-message-start"))[0]
    reader, events = read(model, frames(response["sse"]))
    assert [type(event) for event in events].count(StreamReset) == 1
    assert [call.id for call in reader.finish().calls] == ["toolu_second"]


def test_a_refusal_keeps_the_explanation() -> None:
    model, _, response = exchanges(named("anthropic/fx-refusal-stream"))[0]
    (part,) = reply_of(model, response).parts
    assert isinstance(part, Refusal)
    assert part.text.startswith("This request triggered restrictions")


def test_a_fallback_of_the_provider_is_noted() -> None:
    model, _, response = exchanges(named("anthropic/fx-fallback-stream"))[0]
    _, events = read(model, frames(response["sse"]))
    assert StreamNote("fallback", "claude-fable-5 -> claude-opus-4-8") in events


# ---- asking ----------------------------------------------------------------------------------------------------------

SETTINGS: Final = frozenset(
    ("model", "messages", "system", "tools", "max_tokens", "temperature", "stop_sequences", "stream", "tool_choice")
)


class Conversation:
    """A recorded conversation in neutral words: inputs from its requests, replies as we read them."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.messages: list[Message] = []
        self.recorded: list[Any] = []

    def goes_on(self, body: Any) -> bool:
        """Whether a request continues this conversation."""
        before = len(self.recorded)
        return 0 < before < len(body["messages"]) and body["messages"][:before] == self.recorded

    def hear(self, body: Any, reply: ModelReply | None) -> None:
        """The reply to the request before, and what this one adds."""
        new = body["messages"][len(self.recorded) :]
        self.recorded = body["messages"]
        if reply is not None:
            assert new[0]["role"] == "assistant"
            self.messages.append(AssistantMessage(f"m{len(self.messages)}", reply.parts, reply.finish))
            new = new[1:]
        for message in new:
            assert message["role"] == "user", "only inputs are taken from a request"
            self._input(message["content"])

    def _input(self, content: Any) -> None:
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        results = [self._result(block) for block in blocks if block["type"] == "tool_result"]
        parts = [self._part(block) for block in blocks if block["type"] != "tool_result"]
        if results:
            self.messages.append(ToolMessage(f"m{len(self.messages)}", tuple(results)))
        if parts:
            self.messages.append(UserMessage(f"m{len(self.messages)}", tuple(parts)))

    def _part(self, block: Any) -> InputPart:
        if block["type"] == "text":
            return Text(block["text"])
        data = base64.b64decode(block["source"]["data"])
        digest = hashlib.sha256(data).hexdigest()
        self.files[digest] = data
        return Attachment(digest, block["source"]["media_type"], len(data))

    def _result(self, block: Any) -> ToolResult:
        content = block["content"]
        if isinstance(content, list):
            parts = [msgspec.to_builtins(self._part(part)) for part in cast("list[Any]", content)]
            content = parts[0]["text"] if [part["type"] for part in parts] == ["text"] else parts
        return ToolResult(block["tool_use_id"], "tool", content, "error" if block.get("is_error") else "ok")

    def request(self, body: Any) -> ModelRequest:
        system = body.get("system", "")
        own = [tool for tool in body.get("tools", ()) if tool.keys() == {"name", "description", "input_schema"}]
        foreign = [tool for tool in body.get("tools", ()) if tool not in own]
        extra = {name: value for name, value in body.items() if name not in SETTINGS}
        return ModelRequest(
            messages=tuple(self.messages),
            instructions=system if isinstance(system, str) else "".join(block["text"] for block in system),
            tools=tuple(ToolSpec(tool["name"], tool["description"], tool["input_schema"]) for tool in own),
            settings=Settings(
                max_output_tokens=body["max_tokens"],
                temperature=body.get("temperature"),
                stop=tuple(body.get("stop_sequences", ())),
                extra=extra | ({"tools": foreign} if foreign else {}),
            ),
            files=self.files,
        )


def requests(path: Path) -> list[tuple[Any, Any]]:
    """Each recorded request with the one that we build in its place."""
    found: list[tuple[Any, Any]] = []
    conversation = Conversation()
    reply: ModelReply | None = None
    for model, request, response in exchanges(path):
        if request is None or response["status"] not in {200, 529}:
            continue
        body = request["body"]
        if not conversation.goes_on(body):
            conversation, reply = Conversation(), None
        conversation.hear(body, reply)
        wire = DIALECT.encode_request(ENDPOINT, model, conversation.request(body))
        assert (wire.path, wire.dropped) == (request["path"], 0)
        found.append((body, json.loads(wire.body)))
        if response["status"] == 200 and '"type":"error"' not in response.get("sse", ""):
            reply = reply_of(model, response)
    return found


def differences(recorded: Any, ours: Any, path: tuple[str, ...] = ()) -> list[str]:
    """The names of all differences; what has no name is told in full."""
    if recorded == ours:
        return []
    if isinstance(recorded, dict) and isinstance(ours, dict):
        theirs, own = cast("dict[str, Any]", recorded), cast("dict[str, Any]", ours)
        found: list[str] = []
        for name in theirs.keys() | own.keys():
            found += differences(theirs.get(name, MISSING), own.get(name, MISSING), (*path, name))
        return found
    if name := accepted(path, recorded, ours):
        return [name]
    if isinstance(recorded, list) and isinstance(ours, list):
        if path[-1] == "content":
            return in_content(cast("list[Any]", recorded), cast("list[Any]", ours), path)
        if len(cast("list[Any]", recorded)) == len(cast("list[Any]", ours)):
            return items(cast("list[Any]", recorded), cast("list[Any]", ours), path)
    return [f"{'.'.join(path)}: {cast('Any', recorded)!r:.200} is {cast('Any', ours)!r:.200}"]


MISSING: Final = "(missing)"
PLAIN: Final = {0x2013: "-", 0x2014: "-", 0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2026: "..."}


def items(recorded: list[Any], ours: list[Any], path: tuple[str, ...]) -> list[str]:
    pairs = zip(recorded, ours, strict=True)
    return [found for one, other in pairs for found in differences(one, other, (*path, "*"))]


def in_content(recorded: list[Any], ours: list[Any], path: tuple[str, ...]) -> list[str]:
    names: list[str] = []
    kept = [block for block in recorded if block.get("type") != "text" or block["text"].strip()]
    if len(kept) != len(recorded):
        names.append("blank-text")
    if len(ours) == len(kept) + 1 and ours[0]["type"] == "text" and kept[0]["type"] == "tool_use":
        names.append("text-before-calls")
        ours = ours[1:]
    if len(kept) != len(ours):
        return [*names, f"{'.'.join(path)}: {len(recorded)} blocks are {len(ours)}"]
    return names + items(kept, ours, path)


def accepted(path: tuple[str, ...], recorded: Any, ours: Any) -> str | None:
    match path[-1], recorded, ours:
        case "stream", False, True:
            return "stream"
        case "system", str(), [{"text": text}] if text == recorded:
            return "system-blocks"
        case "content", str(), [{"type": "text", "text": text}] if text == recorded:
            return "content-blocks"
        case "content", [{"type": "text", "text": text}], str() if text == ours:
            return "result-text"
        case "cache_control", _, {"type": "ephemeral"} if recorded == MISSING:
            return "cache-markers"
        case "tool_choice", {"type": "auto"}, _ if ours == MISSING:
            return "choice-auto"
        case "is_error", False, _ if ours == MISSING:
            return "error-false"
        case "caller", _, {"type": "direct"} if recorded == MISSING:
            return "caller-direct"
        case "title", str(), str() if recorded == ours.translate(PLAIN):
            return "plain-titles"
        case _:
            return None


def found_in(path: Path) -> list[str]:
    return [name for recorded, ours in requests(path) for name in differences(recorded, ours)]


@every("path", RECORDINGS)
def test_the_requests_that_we_build_differ_only_as_the_table_says(path: Path) -> None:
    assert conftest.unexplained("anthropic", path, found_in(path)) == []


def test_every_row_of_the_table_is_needed() -> None:
    assert conftest.needless("anthropic", RECORDINGS, found_in) == []


@every("path", RECORDINGS)
def test_no_request_has_more_cache_markers_than_the_provider_takes(path: Path) -> None:
    for _, ours in requests(path):
        assert 1 <= json.dumps(ours).count('"cache_control"') <= 4


@every("path", RECORDINGS)
def test_every_result_follows_its_call(path: Path) -> None:
    for _, ours in requests(path):
        for before, after in zip(ours["messages"], ours["messages"][1:], strict=False):
            assert before["role"] != after["role"]
            called = [block["id"] for block in before["content"] if block["type"] == "tool_use"]
            answered = [block["tool_use_id"] for block in after["content"] if block["type"] == "tool_result"]
            assert called == answered
