"""Google generateContent against recorded traffic: what comes is decoded without loss, what goes is what was taken."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import pytest
from tests.every import every
from tests.recordings.conftest import load, may_mean, needless, recordings, unexplained

from holdfast.errors import ContextOverflow, ModelError
from holdfast.messages import (
    AssistantMessage,
    CallEnd,
    Message,
    ModelReply,
    ModelRequest,
    OutputSpec,
    Reasoning,
    ReasoningChunk,
    Settings,
    Text,
    TextChunk,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    UserMessage,
    join_refusal,
    join_text,
    message_of_reply,
)
from holdfast.models.dialect import Endpoint, Frame
from holdfast.models.errors import classify_error
from holdfast.models.google import DIALECT, NO_ID_PREFIX
from holdfast.models.sse import ArraySplitter, SseDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RECORDINGS = recordings("google.generateContent", "google.streamGenerateContent")


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


# ---- what was recorded -----------------------------------------------------------------------------------------------


def frames_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The frames, read by other means than ours."""
    if "sse" in response:
        lines = response["sse"].splitlines()
        return [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]
    body = response["body"]
    return body if is_array(body) else [body]


def answered(path: Path) -> list[dict[str, Any]]:
    return [exchange for exchange in load(path)["exchanges"] if exchange["response"]["status"] == 200]


def endpoint_of(exchange: dict[str, Any]) -> tuple[Endpoint, str]:
    """Where the exchange went, and to which model."""
    request = exchange["request"]
    if request is None:
        return Endpoint(provider="google", dialect="google", base_url="https://recorded"), "recorded"
    folder, _, named = request["path"].rpartition("/models/")
    model = named.partition(":")[0]
    host = f"https://{request['host']}"
    if folder == "/v1beta":
        return Endpoint(provider="google", dialect="google", base_url=host), model
    flags = frozenset({"whole_url"})
    return Endpoint(provider="vertex", dialect="google", base_url=host + folder, flags=flags), model


def reply_to(exchange: dict[str, Any]) -> ModelReply:
    endpoint, model = endpoint_of(exchange)
    response = exchange["response"]
    if "sse" not in response:
        return DIALECT.reader(endpoint, model).read_body(json.dumps(response["body"], indent=2).encode())
    reader = DIALECT.reader(endpoint, model)
    for frame in split(SseDecoder(), [response["sse"].encode()]):
        reader.feed(frame)
    return reader.finish()


def split(decoder: SseDecoder | ArraySplitter, pieces: list[bytes]) -> list[Frame]:
    frames = [frame for piece in pieces for frame in decoder.feed(piece)]
    return [*frames, *decoder.close()] if isinstance(decoder, SseDecoder) else frames


def parts_of(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    candidates = [candidate for frame in frames for candidate in frame.get("candidates", ())]
    return [part for candidate in candidates for part in candidate.get("content", {}).get("parts", ())]


def signatures(value: Any) -> list[str]:
    """Every signature in a JSON value, in order."""
    if is_array(value):
        return [found for item in value for found in signatures(item)]
    if not is_object(value):
        return []
    own = [value["thoughtSignature"]] if "thoughtSignature" in value else []
    return own + [found for item in value.values() for found in signatures(item)]


# ---- decoded without loss --------------------------------------------------------------------------------------------


@every("path", RECORDINGS)
def test_text_and_thoughts_are_those_of_the_frames(path: Path) -> None:
    for exchange in answered(path):
        reply = reply_to(exchange)
        parts = parts_of(frames_of(exchange["response"]))
        assert reply.text == "".join(part.get("text", "") for part in parts if not part.get("thought"))
        thoughts = "".join(part.text for part in reply.parts if isinstance(part, Reasoning))
        assert thoughts == "".join(part.get("text", "") for part in parts if part.get("thought"))


@every("path", RECORDINGS)
def test_signatures_are_kept_byte_for_byte_in_their_order(path: Path) -> None:
    for exchange in answered(path):
        kept = [part.replay for part in reply_to(exchange).parts if isinstance(part, Reasoning | ToolCall)]
        assert signatures(kept) == signatures(parts_of(frames_of(exchange["response"])))


@every("path", RECORDINGS)
def test_calls_are_those_of_the_frames(path: Path) -> None:
    for exchange in answered(path):
        said = [part["functionCall"] for part in parts_of(frames_of(exchange["response"])) if "functionCall" in part]
        said = [call for call in said if "args" in call or not call.get("willContinue", not call)]
        calls = reply_to(exchange).calls
        if any("partialArgs" in json.dumps(frame) for frame in frames_of(exchange["response"])):
            assert [call.arguments for call in calls] == [{"location": "Boston"}, {"location": "San Francisco"}]
            continue
        assert [(call.name, call.arguments) for call in calls] == [(call["name"], call["args"]) for call in said]
        for call, given in zip(calls, said, strict=True):
            assert call.id == given["id"] if "id" in given else call.id.startswith(NO_ID_PREFIX)


@every("path", RECORDINGS)
def test_parts_of_the_providers_own_are_kept_as_they_came(path: Path) -> None:
    for exchange in answered(path):
        own = [part for part in parts_of(frames_of(exchange["response"])) if not {"text", "functionCall"} & set(part)]
        replays = [part.replay for part in reply_to(exchange).parts if isinstance(part, Reasoning) and part.replay]
        assert [replay["part"] for replay in replays if "text" not in replay.get("part", {"text"})] == own


@every("path", RECORDINGS)
def test_usage_adds_up_to_the_total_that_the_last_frame_says(path: Path) -> None:
    for exchange in answered(path):
        reply = reply_to(exchange)
        last = frames_of(exchange["response"])[-1]["usageMetadata"]
        assert reply.raw_usage == last
        assert reply.usage.total == last.get("totalTokenCount", 0)
        assert reply.usage.reasoning == last.get("thoughtsTokenCount", 0)
        assert reply.usage.output == last.get("candidatesTokenCount", 0) + last.get("thoughtsTokenCount", 0)


FINISHES = {"STOP": "stop", "MAX_TOKENS": "output_limit", "UNEXPECTED_TOOL_CALL": "tool_calls"}


@every("path", RECORDINGS)
def test_the_finish_reason_is_that_of_the_last_frame(path: Path) -> None:
    for exchange in answered(path):
        reply = reply_to(exchange)
        last = frames_of(exchange["response"])[-1]
        if "promptFeedback" in last:
            assert reply.finish == "content_filter"
            continue
        said = FINISHES[last["candidates"][0]["finishReason"]]
        assert reply.finish == ("tool_calls" if said == "stop" and reply.calls else said)


@every("path", RECORDINGS)
def test_who_answered_is_told(path: Path) -> None:
    for exchange in answered(path):
        reply = reply_to(exchange)
        last = frames_of(exchange["response"])[-1]
        assert (reply.model, reply.response_id) == (last["modelVersion"], last["responseId"])


@every("path", RECORDINGS)
def test_the_events_tell_the_same_as_the_reply(path: Path) -> None:
    for exchange in answered(path):
        reader = DIALECT.reader(*endpoint_of(exchange))
        frames = [Frame("", json.dumps(frame).encode()) for frame in frames_of(exchange["response"])]
        events = [event for frame in frames for event in reader.feed(frame)]
        reply = reader.finish()
        assert reader.ignored == 0
        shown = "".join(event.text for event in events if isinstance(event, TextChunk))
        assert shown == reply.text + join_refusal(reply.parts)
        thoughts = "".join(part.text for part in reply.parts if isinstance(part, Reasoning))
        assert "".join(event.text for event in events if isinstance(event, ReasoningChunk)) == thoughts
        assert tuple(event.call for event in events if isinstance(event, CallEnd)) == reply.calls


@every("path", RECORDINGS)
def test_bytes_split_anywhere_give_the_same_frames(path: Path) -> None:
    for exchange in answered(path):
        response = exchange["response"]
        if "sse" not in response:
            data = json.dumps(response["body"], indent=1).encode()
            whole = split(ArraySplitter(), [data])
            assert [json.loads(frame.data) for frame in whole] == frames_of(response)
            assert split(ArraySplitter(), [data[at : at + 1] for at in range(len(data))]) == whole
            continue
        data = response["sse"].encode()
        whole = split(SseDecoder(), [data])
        assert [json.loads(frame.data) for frame in whole] == frames_of(response)
        assert split(SseDecoder(), [data[at : at + 1] for at in range(len(data))]) == whole
        for at in range(1, len(data)):
            assert split(SseDecoder(), [data[:at], data[at:]]) == whole


@every("path", RECORDINGS)
def test_a_stream_without_its_last_frame_is_cut(path: Path) -> None:
    for exchange in answered(path):
        reader = DIALECT.reader(*endpoint_of(exchange))
        for frame in frames_of(exchange["response"])[:-1]:
            reader.feed(Frame("", json.dumps(frame).encode()))
        with pytest.raises(ModelError) as caught:
            reader.finish()
        assert caught.value.kind == "stream_cut"


@pytest.mark.parametrize("path", recordings("google.interactions"))
def test_the_interactions_api_is_another_one(path: Path) -> None:
    pytest.skip(f"{path.stem}: interactions is another API, which this dialect does not speak")


# ---- errors ----------------------------------------------------------------------------------------------------------

ERRORS = {
    "error-400-context-length-vertex": ("context_overflow", None),
    "fx-429-retry-info": ("rate_limited", 34.4),
}


@every("path", RECORDINGS)
def test_an_error_is_named_for_what_it_is(path: Path) -> None:
    failed = [exchange["response"] for exchange in load(path)["exchanges"] if exchange["response"]["status"] != 200]
    assert failed or path.stem not in ERRORS
    for response in failed:
        error = classify_error(response["status"], response["headers"], json.dumps(response["body"]).encode())
        kind, retry_after = ERRORS.get(path.stem, (error.kind, error.retry_after))
        assert may_mean(response["status"], error.kind)
        assert (error.kind, error.retry_after, error.status) == (kind, retry_after, response["status"])
        assert error.retryable == (kind in {"rate_limited", "overloaded", "server_error", "timeout"})
        assert isinstance(error, ContextOverflow) == (kind == "context_overflow")
        assert error.message == response["body"]["error"]["message"]


# ---- what we send ----------------------------------------------------------------------------------------------------

_MISSING = object()


class Difference(NamedTuple):
    path: str
    ours: Any
    theirs: Any


def _same_signature(ours: Any, theirs: Any) -> bool:
    return base64.urlsafe_b64decode(_urlsafe(ours)) == base64.urlsafe_b64decode(_urlsafe(theirs))


def _urlsafe(text: str) -> str:
    return text.replace("+", "-").replace("/", "_")


def _same_result(ours: Any, theirs: Any) -> bool:
    """The same content, under another name."""
    (said,) = ours.values()
    if "content" in theirs:  # words and a file, side by side
        return said[0] == theirs["content"][0]["text"]
    return list(theirs.values()) == [said]


ACCEPTED: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "path": (
        r"path",
        lambda ours, theirs: re.sub(r":\w+$", "", ours) == re.sub(r":\w+$", "", theirs),
    ),
    "instructions-role": (
        r"systemInstruction\.role",
        lambda ours, theirs: ours is _MISSING and theirs == "user",
    ),
    "choice-auto": (
        r"toolConfig",
        lambda ours, theirs: ours is _MISSING and theirs == {"functionCallingConfig": {"mode": "AUTO"}},
    ),
    "empty-settings": (
        r"generationConfig",
        lambda ours, theirs: ours is _MISSING and theirs in ({}, {"responseModalities": ["TEXT"]}),
    ),
    "text-modality": (
        r"generationConfig\.responseModalities",
        lambda ours, theirs: ours is _MISSING and theirs == ["TEXT"],
    ),
    "json-schema": (
        r"tools\[\d+\]\.functionDeclarations\[\d+\]\.parameters(JsonSchema)?",
        lambda ours, theirs: (ours is _MISSING) != (theirs is _MISSING),
    ),
    "empty-description": (
        r"tools\[\d+\]\.functionDeclarations\[\d+\]\.description",
        lambda ours, theirs: ours == "" and theirs is None,
    ),
    "call-ids": (
        r"contents\[\d+\]\.parts\[\d+\]\.(functionCall|functionResponse)\.id",
        lambda ours, theirs: _MISSING in (ours, theirs),
    ),
    "signature-alphabet": (
        r"contents\[\d+\]\.parts\[\d+\]\.thoughtSignature",
        _same_signature,
    ),
    "result-name": (
        r"contents\[\d+\]\.parts\[\d+\]\.functionResponse\.response",
        _same_result,
    ),
    "uploaded-file": (
        r"contents\[\d+\]",
        lambda ours, theirs: ours is _MISSING and "fileData" in theirs["parts"][0],
    ),
}
"""Where a difference of this name stands in the request, and what is checked about it."""


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[Difference]:
    if is_object(ours) and is_object(theirs) and not path.endswith(".response"):
        for name in sorted({*ours, *theirs}):
            below = f"{path}.{name}" if path else name
            yield from differences(ours.get(name, _MISSING), theirs.get(name, _MISSING), below)
    elif is_array(ours) and is_array(theirs):
        for at in range(max(len(ours), len(theirs))):
            one = ours[at] if at < len(ours) else _MISSING
            other = theirs[at] if at < len(theirs) else _MISSING
            yield from differences(one, other, f"{path}[{at}]")
    elif ours != theirs:
        yield Difference(path, ours, theirs)


_ARBITRARY = {"args", "response", "parameters", "parametersJsonSchema", "responseJsonSchema", "modelArmorConfig"}


def camel(value: Any) -> Any:
    """Names as the API documents them: it takes both spellings, and the recordings have both."""
    if is_array(value):
        return [camel(item) for item in value]
    if not is_object(value):
        return value
    named = {re.sub(r"_([a-z])", lambda found: found[1].upper(), name): item for name, item in value.items()}
    return {name: item if name in _ARBITRARY else camel(item) for name, item in named.items()}


def spec_of(tool: dict[str, Any]) -> ToolSpec:
    parameters = tool["parametersJsonSchema"] if "parametersJsonSchema" in tool else tool["parameters"]
    return ToolSpec(tool["name"], tool["description"] or "", parameters)


class Conversation:
    """A recorded conversation, rebuilt from neutral messages as our runtime would have them."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.messages: list[Message] = []

    def hear(self, contents: list[dict[str, Any]]) -> None:
        """What was said to the model since its last reply."""
        for content in contents:
            number = f"m{len(self.messages)}"
            parts = content["parts"]
            if content["role"] == "model":
                self.messages.append(AssistantMessage(number, tuple(Text(part["text"]) for part in parts)))
            elif "functionResponse" in parts[0]:
                asked = self.messages[-1]
                assert isinstance(asked, AssistantMessage)
                pairs = zip(asked.calls, parts, strict=True)
                results = [self._result(call, part["functionResponse"]) for call, part in pairs]
                self.messages.append(ToolMessage(number, tuple(results)))
            elif "text" in parts[0]:
                self.messages.append(UserMessage(number, tuple(Text(part["text"]) for part in parts)))

    def _result(self, call: ToolCall, response: dict[str, Any]) -> ToolResult:
        assert call.name == response["name"]
        told = response["response"]
        if "error" in told:
            return ToolResult(call.id, call.name, told["error"], "error")
        files = [self._attachment(part["inlineData"]) for part in response.get("parts", ())]
        if files:
            return ToolResult(call.id, call.name, [told["content"][0]["text"], *files])
        (value,) = told.values()
        return ToolResult(call.id, call.name, value)

    def _attachment(self, blob: dict[str, Any]) -> dict[str, Any]:
        data = base64.b64decode(blob["data"])
        digest = hashlib.sha256(data).hexdigest()
        self.files[digest] = data
        # As a journal has it: JSON, not an object of ours.
        return {"type": "attachment", "digest": digest, "media_type": blob["mimeType"], "size": len(data)}

    def request(self, theirs: dict[str, Any]) -> ModelRequest:
        config = dict(theirs.get("generationConfig", {}))
        config.pop("responseModalities", None)
        config.pop("responseMimeType", None)
        schema = config.pop("responseJsonSchema", None)
        declared = [tool for tools in theirs.get("tools", ()) for tool in tools.get("functionDeclarations", ())]
        extra = {name: theirs[name] for name in ("safetySettings", "modelArmorConfig") if name in theirs}
        return ModelRequest(
            messages=tuple(self.messages),
            instructions=theirs.get("systemInstruction", {"parts": [{"text": ""}]})["parts"][0]["text"],
            tools=tuple(map(spec_of, declared)),
            output=OutputSpec("answer", schema) if schema else None,
            settings=Settings(
                max_output_tokens=config.pop("maxOutputTokens", None),
                extra=extra
                | {"generationConfig": config}
                | {"tools": [tool for tool in theirs.get("tools", ()) if "functionDeclarations" not in tool]},
            ),
            files=self.files,
        )


def found_in(path: Path) -> Iterator[Difference]:
    """All differences between the requests of a recording and those that we build from what came before."""
    conversation = Conversation()
    heard = 0
    for exchange in load(path)["exchanges"]:
        if exchange["request"] is None:
            continue
        theirs = camel(exchange["request"]["body"])
        conversation.hear(theirs["contents"][heard:])
        endpoint, model = endpoint_of(exchange)
        sent = DIALECT.encode_request(endpoint, model, conversation.request(theirs))
        assert sent.dropped == 0
        yield from differences(json.loads(sent.body), theirs)
        folder = endpoint.base_url.removeprefix(f"https://{exchange['request']['host']}")
        yield from differences(folder + sent.path.removesuffix("?alt=sse"), exchange["request"]["path"], "path")
        if exchange["response"]["status"] == 200:
            reply = reply_to(exchange)
            conversation.messages.append(message_of_reply(reply, f"m{len(conversation.messages)}"))
            heard = len(theirs["contents"]) + 1


def named_in(path: Path) -> list[str]:
    """The names of all differences in a recording; what has no name is told in full."""
    return [name_of(difference) for difference in found_in(path)]


def name_of(difference: Difference) -> str:
    for name, (pattern, check) in ACCEPTED.items():
        if re.fullmatch(pattern, difference.path) and check(difference.ours, difference.theirs):
            return name
    return repr(difference)


@every("path", RECORDINGS)
def test_our_requests_are_the_recorded_ones_but_for_the_differences_in_the_table(path: Path) -> None:
    assert unexplained("google", path, named_in(path)) == []


def test_every_row_of_the_table_is_needed() -> None:
    assert needless("google", RECORDINGS, named_in) == []


@every("path", RECORDINGS)
def test_a_signature_goes_back_on_the_part_it_came_with(path: Path) -> None:
    for exchange in answered(path):
        if exchange["request"] is None:
            continue
        reply = reply_to(exchange)
        endpoint, model = endpoint_of(exchange)
        messages = (UserMessage("u", (Text("hi"),)), message_of_reply(reply, "a"))
        sent = json.loads(DIALECT.encode_request(endpoint, model, ModelRequest(messages=messages)).body)
        came = [part for part in parts_of(frames_of(exchange["response"])) if "thoughtSignature" in part]
        back = [part for content in sent["contents"] for part in content["parts"] if "thoughtSignature" in part]
        assert back == came
        assert join_text(reply.parts) == "".join(
            part.get("text", "") for part in sent["contents"][-1]["parts"] if sent["contents"][-1]["role"] == "model"
        )
