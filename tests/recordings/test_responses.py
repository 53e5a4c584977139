"""The Responses dialect, judged by real traffic: nothing of a reply is lost, and what the provider needs goes back."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from tests.every import every

from holdfast.errors import ContextOverflow, ModelError, StreamCut
from holdfast.messages import (
    AssistantMessage,
    Attachment,
    CallChunk,
    CallEnd,
    Message,
    ModelReply,
    ModelRequest,
    OutputSpec,
    Reasoning,
    ReasoningChunk,
    Settings,
    StreamEvent,
    StreamStart,
    Text,
    TextChunk,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    UserMessage,
)
from holdfast.models.dialect import Endpoint, Frame
from holdfast.models.errors import classify_error
from holdfast.models.responses import DIALECT
from holdfast.models.sse import SseDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def _beside(name: str) -> ModuleType:
    # Test folders are no packages.
    spec = importlib.util.spec_from_file_location(f"recordings_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_conftest = _beside("conftest")
load = _conftest.load
RECORDINGS = _conftest.recordings("openai.responses")


def _endpoint(request: dict[str, Any] | None) -> Endpoint:
    host = request["host"] if request else "api.openai.com"
    return Endpoint(provider="recorded", dialect="responses", base_url=f"https://{host}/v1")


def _model(request: dict[str, Any] | None) -> str:
    return (request or {}).get("body", {}).get("model", "gpt-5") if (request or {}).get("body") else "gpt-5"


def _frames(text: str, size: int | None = None) -> list[Frame]:
    decoder = SseDecoder()
    data = text.encode()
    size = size or max(len(data), 1)
    frames = [frame for at in range(0, len(data), size) for frame in decoder.feed(data[at : at + size])]
    return frames + decoder.close()


def _folded(text: str, model: str = "gpt-5", size: int | None = None) -> tuple[ModelReply, list[StreamEvent], int]:
    reader = DIALECT.reader(_endpoint(None), model)
    events = [event for frame in _frames(text, size) for event in reader.feed(frame)]
    return reader.finish(), events, reader.ignored


def _exchanges(path: Path) -> Iterator[dict[str, Any]]:
    yield from load(path)["exchanges"]


def _has(path: Path | None, key: str) -> bool:
    responses = [exchange["response"] for exchange in load(path)["exchanges"]] if path else []
    return not path or any(response["status"] < 400 if key == "reply" else key in response for response in responses)


each = every("path", RECORDINGS)
each_reply = every("path", [param for param in RECORDINGS if _has(param.values[0], "reply")])
each_stream = every("path", [param for param in RECORDINGS if _has(param.values[0], "sse")])
each_error = pytest.mark.parametrize("path", [param for param in RECORDINGS if "error-" in param.id])


def _streams(path: Path) -> list[str]:
    return [exchange["response"]["sse"] for exchange in _exchanges(path) if "sse" in exchange["response"]]


def _data(stream: str) -> list[dict[str, Any]]:
    return [json.loads(line[5:]) for line in stream.splitlines() if line.startswith("data:")]


def _bodies(path: Path) -> list[dict[str, Any]]:
    """The finished responses, as the provider wrote them: of streams, the last frame with the items as they came."""
    found: list[dict[str, Any]] = []
    for exchange in _exchanges(path):
        response = exchange["response"]
        if response["status"] == 200 and "sse" in response:
            data = _data(response["sse"])
            output = [frame["item"] for frame in data if frame["type"] == "response.output_item.done"]
            found.append({**data[-1]["response"], "output": output})
        elif response["status"] == 200 and response["body"]["status"] in {"completed", "incomplete"}:
            found.append(response["body"])
    return found


def _replies(path: Path) -> list[ModelReply]:
    found: list[ModelReply] = []
    for exchange in _exchanges(path):
        reply = _reply(exchange)
        if reply is not None:
            found.append(reply)
    return found


def _reply(exchange: dict[str, Any], endpoint: Endpoint | None = None, model: str = "gpt-5") -> ModelReply | None:
    response, endpoint = exchange["response"], endpoint or _endpoint(None)
    if response["status"] != 200:
        return None
    if "sse" not in response:
        try:
            return DIALECT.reader(endpoint, model).read_body(json.dumps(response["body"]).encode())
        except StreamCut:
            return None  # of a response in the background, which is asked for again
    reader = DIALECT.reader(endpoint, model)
    for frame in _frames(response["sse"]):
        reader.feed(frame)
    return reader.finish()


def _of_type(body: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [item for item in body["output"] if item["type"] == kind]


def _replays(reply: ModelReply) -> list[dict[str, Any]]:
    return [part.replay for part in reply.parts if isinstance(part, Reasoning) and part.replay]


# ---- nothing is lost -------------------------------------------------------------------------------------------------


@each_reply
def test_all_words_of_a_reply_are_kept(path: Path) -> None:
    for body, reply in zip(_bodies(path), _replies(path), strict=True):
        contents = [content for item in _of_type(body, "message") for content in item["content"]]
        assert reply.text == "".join(content["text"] for content in contents if content["type"] == "output_text")


@each_reply
def test_all_calls_are_kept_with_their_arguments(path: Path) -> None:
    for body, reply in zip(_bodies(path), _replies(path), strict=True):
        calls = _of_type(body, "function_call")
        said = [(item["call_id"], item["name"], json.loads(item["arguments"])) for item in calls]
        assert [(call.id, call.name, call.arguments) for call in reply.calls] == said


@each_reply
def test_reasoning_is_kept_with_what_the_provider_needs_back(path: Path) -> None:
    for body, reply in zip(_bodies(path), _replies(path), strict=True):
        items = _of_type(body, "reasoning")
        kept = [part for part in reply.parts if isinstance(part, Reasoning) and part.replay["type"] == "reasoning"]
        assert [part.text for part in kept] == ["\n\n".join(text["text"] for text in item["summary"]) for item in items]
        needed = [(item["id"], item.get("encrypted_content")) for item in items]
        assert [(part.replay["id"], part.replay.get("encrypted_content")) for part in kept] == needed


@each_reply
def test_ids_and_phases_of_messages_are_kept(path: Path) -> None:
    for body, reply in zip(_bodies(path), _replies(path), strict=True):
        said = [(item["id"], item.get("phase")) for item in _of_type(body, "message")]
        kept = [item for item in _replays(reply) if item["type"] == "message"]
        assert [(item["id"], item.get("phase")) for item in kept] == said


@each_reply
def test_items_of_the_providers_own_tools_are_kept_as_they_came(path: Path) -> None:
    ours = {"message", "reasoning", "function_call"}
    for body, reply in zip(_bodies(path), _replies(path), strict=True):
        kept = [item for item in _replays(reply) if item["type"] not in ours]
        assert kept == [item for item in body["output"] if item["type"] not in ours]


@each_reply
def test_items_keep_their_order(path: Path) -> None:
    for body, reply in zip(_bodies(path), _replies(path), strict=True):
        parts = [part for part in reply.parts if isinstance(part, Reasoning | ToolCall)]
        kinds = ["function_call" if isinstance(part, ToolCall) else part.replay["type"] for part in parts]
        assert kinds == [item["type"] for item in body["output"]]


@each_reply
def test_usage_is_that_of_the_provider(path: Path) -> None:
    for body, reply in zip(_bodies(path), _replies(path), strict=True):
        usage, told = reply.usage, body["usage"]
        assert reply.raw_usage == told
        assert usage.input + usage.cache_read + usage.cache_write == told["input_tokens"]
        assert usage.output == told["output_tokens"]
        assert usage.cache_read == told["input_tokens_details"]["cached_tokens"]
        assert usage.reasoning == told["output_tokens_details"]["reasoning_tokens"]
        assert usage.total == told["total_tokens"]


@each_reply
def test_the_finish_reason_says_why_the_reply_ended(path: Path) -> None:
    for body, reply in zip(_bodies(path), _replies(path), strict=True):
        if body["status"] == "incomplete":
            assert reply.finish == "output_limit"
            assert body["incomplete_details"]["reason"] == "max_output_tokens"
        else:
            assert reply.finish == ("tool_calls" if _of_type(body, "function_call") else "stop")


@each_reply
def test_the_reply_names_the_response_and_the_model_that_gave_it(path: Path) -> None:
    for body, reply in zip(_bodies(path), _replies(path), strict=True):
        assert (reply.response_id, reply.model) == (body["id"], body["model"])


# ---- streams ---------------------------------------------------------------------------------------------------------


@each_stream
def test_what_was_streamed_is_what_the_reply_says(path: Path) -> None:
    for stream in _streams(path):
        reply, events, _ = _folded(stream)
        assert isinstance(events[0], StreamStart)
        assert "".join(event.text for event in events if isinstance(event, TextChunk)) == reply.text
        thoughts = "".join(part.text for part in reply.parts if isinstance(part, Reasoning))
        assert "".join(event.text for event in events if isinstance(event, ReasoningChunk)) == thoughts
        assert tuple(event.call for event in events if isinstance(event, CallEnd)) == reply.calls
        for call in reply.calls:
            text = "".join(event.arguments for event in events if isinstance(event, CallChunk) and event.id == call.id)
            assert json.loads(text) == call.arguments


@each_stream
def test_every_frame_is_understood(path: Path) -> None:
    for stream in _streams(path):
        assert _folded(stream)[2] == 0


@each_stream
def test_bytes_that_come_one_by_one_give_the_same_reply(path: Path) -> None:
    for stream in _streams(path):
        assert _folded(stream, size=1) == _folded(stream)


@each_stream
def test_a_stream_and_its_last_frame_give_the_same_reply(path: Path) -> None:
    for stream in _streams(path):
        body = json.dumps(_data(stream)[-1]["response"]).encode()
        assert _plain(DIALECT.reader(_endpoint(None), "gpt-5").read_body(body)) == _plain(_folded(stream)[0])


def _plain(reply: ModelReply) -> Any:
    """A reply without what is encrypted anew each time it is told."""
    return msgspec.structs.replace(
        reply,
        parts=tuple(
            msgspec.structs.replace(part, replay={**part.replay, "encrypted_content": None})
            if isinstance(part, Reasoning)
            else part
            for part in reply.parts
        ),
    )


@each_stream
def test_a_stream_that_ends_before_its_last_frame_is_cut(path: Path) -> None:
    for stream in _streams(path):
        frames = _frames(stream)
        for count in {0, 1, len(frames) // 2, len(frames) - 1}:
            reader = DIALECT.reader(_endpoint(None), "gpt-5")
            for frame in frames[:count]:
                reader.feed(frame)
            with pytest.raises(StreamCut):
                reader.finish()


# ---- errors ----------------------------------------------------------------------------------------------------------


@each_error
def test_an_error_has_the_right_kind(path: Path) -> None:
    failed = [exchange["response"] for exchange in _exchanges(path) if exchange["response"]["status"] >= 400]
    for response in failed:
        error = classify_error(response["status"], response["headers"], json.dumps(response["body"]).encode())
        told = response["body"]["error"]
        assert isinstance(error, ModelError)
        assert error.message == told["message"]
        assert error.status == response["status"]
        overflow = told["code"] == "context_length_exceeded"
        assert error.kind == "context_overflow" if overflow else _conftest.may_mean(response["status"], error.kind)
        if response["status"] == 400:
            assert not error.retryable
        assert isinstance(error, ContextOverflow) is overflow


def test_a_response_that_is_still_being_made_is_no_reply() -> None:
    path = _path("openai-responses/background-mode-polling")
    states = [exchange["response"]["body"]["status"] for exchange in _exchanges(path)]
    assert states == ["queued", "completed", "queued", "in_progress", "completed"]
    assert [_reply(exchange) is not None for exchange in _exchanges(path)] == [False, True, False, False, True]


def _path(id: str) -> Path:
    found = [param.values[0] for param in RECORDINGS if param.id == id]
    if not found:
        pytest.skip("no recordings here; set HOLDFAST_RECORDINGS")
    return found[0]


# ---- what goes back --------------------------------------------------------------------------------------------------


def _asked(path: Path) -> list[tuple[dict[str, Any], ModelRequest, Endpoint]]:
    """Each recorded request with the one that we make of the same conversation, built from the recorded replies."""
    made: list[tuple[dict[str, Any], ModelRequest, Endpoint]] = []
    messages: list[Message] = []
    outputs = users = 0
    for number, exchange in enumerate(_exchanges(path)):
        request = exchange["request"]
        if request is None:
            continue
        endpoint, model = _endpoint(request), _model(request)
        body = request.get("body")
        if body is not None:
            items = _input(body)
            last = messages[-1] if messages else None
            if isinstance(last, AssistantMessage) and last.calls:
                given = [item for item in items if item.get("type") == "function_call_output"][outputs:]
                results = [_result(call, item) for call, item in zip(last.calls, given, strict=True)]
                messages.append(ToolMessage(f"r{number}", tuple(results)))
                outputs += len(results)
            if not messages:
                messages += [message for item in items if (message := _opening(item)) is not None]
                users = sum(isinstance(message, UserMessage) for message in messages)
            else:
                said = [item for item in items if item.get("role") == "user"]
                messages += [UserMessage(f"u{number}", (Text(_words(item)),)) for item in said[users:]]
                users = len(said)
            made.append((body, _request(body, items, messages), endpoint))
        reply = _reply(exchange, endpoint, _model(made[-1] and {"body": made[-1][0]}) if body is None else model)
        if reply is not None:
            messages.append(AssistantMessage(f"a{number}", reply.parts, reply.finish))
    return made


def _input(body: dict[str, Any]) -> list[dict[str, Any]]:
    given: Any = body["input"]
    return cast("list[dict[str, Any]]", given) if isinstance(given, list) else [{"role": "user", "content": given}]


def _opening(item: dict[str, Any]) -> Message | None:
    if item.get("role") == "assistant":
        return AssistantMessage("a", (Text(_words(item)),))
    return UserMessage("u", (Text(_words(item)),)) if item.get("role") == "user" else None


def _words(item: dict[str, Any]) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


IMAGE = b"bytes of an image"


def _result(call: ToolCall, item: dict[str, Any]) -> ToolResult:
    output = item["output"]
    if isinstance(output, list):
        return ToolResult(call.id, call.name, [Attachment("image", "image/png", len(IMAGE))])
    return ToolResult(call.id, call.name, output)


def _request(body: dict[str, Any], items: list[dict[str, Any]], messages: list[Message]) -> ModelRequest:
    developer = [_words(item) for item in items if item.get("role") == "developer"]
    functions = [tool for tool in body.get("tools", ()) if tool["type"] == "function"]
    hosted = [tool for tool in body.get("tools", ()) if tool["type"] != "function"]
    form = body.get("text", {}).get("format")
    extra: dict[str, Any] = {"tools": hosted} if hosted else {}
    summary = body.get("reasoning", {}).get("summary")
    if summary:
        extra["reasoning"] = {"summary": summary}
    return ModelRequest(
        messages=tuple(messages),
        instructions=body.get("instructions") or "".join(developer),
        tools=tuple(ToolSpec(tool["name"], tool["description"] or "", tool["parameters"]) for tool in functions),
        output=OutputSpec(form["name"], form["schema"]) if form else None,
        settings=Settings(
            max_output_tokens=body.get("max_output_tokens"),
            temperature=body.get("temperature"),
            effort=body.get("reasoning", {}).get("effort"),
            extra=extra or None,
        ),
        files={"image": IMAGE},
    )


def _named(items: list[dict[str, Any]]) -> dict[tuple[str, Any], dict[str, Any]]:
    """The items of a request by what they are: reasoning by its content, others by their number among their kind."""
    named: dict[tuple[str, Any], dict[str, Any]] = {}
    for item in items:
        kind = item["role"] if item.get("type", "message") == "message" else item["type"]
        if kind == "reasoning":
            named[kind, item.get("encrypted_content") or item["id"]] = item
        else:
            named[kind, sum(1 for other, _ in named if other == kind)] = item
    return named


def _compared(recorded: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    """Where two requests differ: ``+`` only ours has it, ``-`` only the recording, ``~`` other, ``=`` other form."""
    for name in recorded.keys() | ours.keys() - {"input", "tools"}:
        if name not in {"input", "tools"}:
            yield from _difference(name, recorded.get(name), ours.get(name))
    for theirs, own in zip(recorded.get("tools", ()), ours.get("tools", ()), strict=True):
        for name in theirs.keys() | own.keys():
            yield from _difference(f"tools.{name}", theirs.get(name), own.get(name))
    before, after = _named(_input(recorded)), _named(ours["input"])
    shared = [key for key in before if key in after]
    if shared != [key for key in after if key in before]:
        yield "~order of input"
    yield from (f"-input.{key[0]}" for key in before if key not in after)
    yield from (f"+input.{key[0]}" for key in after if key not in before)
    for key in shared:
        theirs, own = before[key], after[key]
        for name in theirs.keys() | own.keys():
            yield from _difference(f"input.{key[0]}.{name}", theirs.get(name), own.get(name))


def _difference(name: str, recorded: Any, ours: Any) -> Iterator[str]:
    if recorded == ours:
        return
    if isinstance(recorded, dict) and isinstance(ours, dict):
        theirs, own = cast("dict[str, Any]", recorded), cast("dict[str, Any]", ours)
        for inner in theirs.keys() | own.keys():
            yield from _difference(f"{name}.{inner}", theirs.get(inner), own.get(inner))
    elif recorded is None or ours is None:
        yield f"{'+' if recorded is None else '-'}{name}"
    elif _meaning(name, recorded) == _meaning(name, ours):
        yield f"={name}"
    else:
        yield f"~{name}"


def _meaning(name: str, value: Any) -> Any:
    if name.endswith(".arguments"):
        return json.loads(value)
    if name.endswith(".content"):
        return _words({"content": value})
    return value


def _differences(path: Path) -> list[str]:
    found: set[str] = set()
    for recorded, request, endpoint in _asked(path):
        ours = json.loads(DIALECT.encode_request(endpoint, recorded["model"], request).body)
        found.update(_compared(recorded, ours))
    return sorted(found)


@each
def test_our_requests_differ_from_the_recorded_ones_only_where_the_table_says_why(path: Path) -> None:
    assert _conftest.unexplained("responses", path, _differences(path)) == []


def test_every_row_of_the_table_is_needed() -> None:
    assert _conftest.needless("responses", RECORDINGS, _differences) == []


@each
def test_every_call_that_goes_back_has_its_result(path: Path) -> None:
    for recorded, request, endpoint in _asked(path):
        items = json.loads(DIALECT.encode_request(endpoint, recorded["model"], request).body)["input"]
        calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
        assert [item["call_id"] for item in items if item.get("type") == "function_call_output"] == calls


@each
def test_the_beginning_of_a_request_is_the_one_before(path: Path) -> None:
    bodies = [
        DIALECT.encode_request(endpoint, recorded["model"], request).body.removesuffix(b"]}")
        for recorded, request, endpoint in _asked(path)
    ]
    assert all(after.startswith(before) for before, after in itertools.pairwise(bodies))


@each
def test_what_another_route_made_is_left_out_and_counted(path: Path) -> None:
    for recorded, request, endpoint in _asked(path):
        made = DIALECT.encode_request(endpoint, "another", request)
        said = [message for message in request.messages if isinstance(message, AssistantMessage)]
        parts = [part for message in said for part in message.parts]
        assert made.dropped == sum(1 for part in parts if isinstance(part, Reasoning | ToolCall) and part.replay)
        items = json.loads(made.body)["input"]
        assert not [item for item in items if "id" in item or "encrypted_content" in item]
        assert DIALECT.encode_request(endpoint, recorded["model"], request).dropped == 0
