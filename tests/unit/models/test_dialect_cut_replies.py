"""Replies that were cut off, whatever their last frame says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.every import every

from holdfast.errors import ModelError, StreamCut
from holdfast.messages import CallEnd, Text, ToolCall
from holdfast.models.dialect import Endpoint, Frame
from holdfast.models.registry import load_dialect

if TYPE_CHECKING:
    from holdfast.messages import ModelReply, StreamEvent


def at(name: str, *flags: str) -> Endpoint:
    return Endpoint(provider="here", dialect=name, base_url="https://here", flags=frozenset(flags))


def read(name: str, *frames: dict[str, Any]) -> tuple[ModelReply, list[StreamEvent]]:
    reader = load_dialect(name).reader(at(name), "m")
    events = [event for frame in frames for event in reader.feed(Frame("", json.dumps(frame).encode()))]
    return reader.finish(), events


def whole(name: str, body: dict[str, Any]) -> ModelReply:
    return load_dialect(name).reader(at(name), "m").read_body(json.dumps(body).encode())


# ---- responses -------------------------------------------------------------------------------------------------------

WORDS = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "half an ans"}]}


def pay(arguments: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": arguments, **fields}


def completed(status: str, *items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A frame that says that all went well, whatever the response says itself."""
    return {"type": "response.completed", "response": {"id": "r", "status": status, "output": items, **fields}}


def test_a_response_that_is_incomplete_is_so_also_in_a_frame_that_says_completed() -> None:
    details = {"reason": "max_output_tokens"}
    assert read("responses", completed("incomplete", WORDS, incomplete_details=details))[0].finish == "output_limit"


def test_a_response_that_failed_has_failed_also_in_a_frame_that_says_completed() -> None:
    with pytest.raises(ModelError, match="boom") as caught:
        read("responses", completed("failed", error={"code": "server_error", "message": "boom"}))
    assert caught.value.kind == "server_error"


def test_a_response_that_was_cancelled_is_none_also_in_a_frame_that_says_completed() -> None:
    with pytest.raises(ModelError, match="cancelled"):
        read("responses", completed("cancelled", WORDS))


def test_a_frame_that_says_failed_is_believed() -> None:
    frame = {**completed("completed", WORDS, error={"message": "boom"}), "type": "response.failed"}
    with pytest.raises(ModelError, match="boom"):
        read("responses", frame)


@every("status", ["completed", "in_progress", "incomplete"])
@every("arguments", ["", " ", None])
def test_the_last_call_of_a_cut_response_is_malformed_without_arguments(status: str, arguments: str | None) -> None:
    reply, _ = read("responses", completed("incomplete", pay('{"n":1}'), pay(arguments, call_id="c2", status=status)))
    assert [call.arguments for call in reply.calls] == [{"n": 1}, None]


def test_a_call_before_the_cut_may_have_no_arguments() -> None:
    reply, _ = read("responses", completed("incomplete", pay(""), WORDS))
    assert [call.arguments for call in reply.calls] == [{}]


def test_the_last_call_of_a_whole_response_may_have_no_arguments() -> None:
    assert [call.arguments for call in read("responses", completed("completed", pay("")))[0].calls] == [{}]


# ---- anthropic -------------------------------------------------------------------------------------------------------

WIPE: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "wipe", "input": {}}
START = {"type": "message_start", "message": {"id": "x", "model": "m"}}
STOP = {"type": "message_stop"}


def begun(index: int = 0, block: dict[str, Any] = WIPE) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def wrote(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}}


def reason(said: str | None) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": said}}


def test_a_call_that_nobody_ended_is_malformed_without_arguments() -> None:
    reply, events = read("anthropic", START, begun(), reason("tool_use"), STOP)
    assert reply.calls == (ToolCall("c1", "wipe", None, ""),)
    assert events[-1] == CallEnd(reply.calls[0])


def test_a_call_that_nobody_ended_is_malformed_also_where_another_took_its_place() -> None:
    again = begun(block={**WIPE, "id": "c2"})
    reply, _ = read(
        "anthropic", START, begun(), again, {"type": "content_block_stop", "index": 0}, reason("tool_use"), STOP
    )
    assert [call.arguments for call in reply.calls] == [None, {}]


def test_a_call_that_nobody_ended_counts_where_its_arguments_are_all_there() -> None:
    reply, _ = read("anthropic", START, begun(), wrote('{"n":'), wrote("1}"), reason("tool_use"), STOP)
    assert [call.arguments for call in reply.calls] == [{"n": 1}]


def test_a_call_that_ended_may_have_no_arguments() -> None:
    reply, _ = read("anthropic", START, begun(), {"type": "content_block_stop", "index": 0}, reason("tool_use"), STOP)
    assert [call.arguments for call in reply.calls] == [{}]


def test_a_message_with_calls_and_no_reason_to_stop_is_cut() -> None:
    with pytest.raises(StreamCut):
        whole("anthropic", {"type": "message", "content": [WIPE], "stop_reason": None})


def test_a_message_of_words_needs_no_reason_to_stop() -> None:
    said = [{"type": "text", "text": "hi"}]
    assert whole("anthropic", {"type": "message", "content": said, "stop_reason": None}).parts == (Text("hi"),)


# ---- chat ------------------------------------------------------------------------------------------------------------


def choice(finish: str | None, **message: Any) -> dict[str, Any]:
    return {"id": "r", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


CALLS = [{"id": "c1", "function": {"name": "wipe", "arguments": ""}}]


def test_a_body_with_calls_and_no_reason_to_stop_is_cut() -> None:
    with pytest.raises(StreamCut):
        whole("chat", choice(None, content="half", tool_calls=CALLS))


def test_a_body_with_calls_and_a_reason_is_whole() -> None:
    assert whole("chat", choice("tool_calls", tool_calls=CALLS)).calls == (ToolCall("c1", "wipe", {}),)


def test_a_body_of_words_needs_no_reason_to_stop() -> None:
    assert whole("chat", choice(None, content="hi")).parts == (Text("hi"),)
