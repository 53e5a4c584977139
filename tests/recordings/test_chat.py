"""Real traffic of Chat Completions, of ten providers: read without loss, and continued as the recorded clients did."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.every import every

from holdfast.errors import ContextOverflow, ModelError, StreamCut
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
    Settings,
    StreamEvent,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolMessage,
    ToolResult,
    ToolSpec,
    UserMessage,
    join_refusal,
)
from holdfast.models.chat import DIALECT
from holdfast.models.endpoints import resolve_endpoint
from holdfast.models.errors import classify_error
from holdfast.models.sse import SseDecoder

if TYPE_CHECKING:
    from holdfast.models.dialect import Endpoint, ResponseReader

_spec = importlib.util.spec_from_file_location("recordings_conftest", Path(__file__).with_name("conftest.py"))
assert _spec
assert _spec.loader
conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(conftest)

RECORDINGS: list[Any] = conftest.recordings("openai.chat")
STREAMS = [
    pytest.param(param.values[0], index, id=f"{param.id}/{index}")
    for param in RECORDINGS
    if param.values[0] is not None
    for index, exchange in enumerate(conftest.load(param.values[0])["exchanges"])
    if "sse" in exchange["response"]
] or [pytest.param(None, 0, id="none", marks=RECORDINGS[0].marks)]

FILES = {"https://t3.ftcdn.net/jpg/00/85/79/92/360_F_85799278_0BBGV9OAdQDTLnKwAPBCcg1J7QtiieJY.jpg": b"a potato"}
"""What stands behind the addresses in the recorded requests; any bytes will do."""


# ---- reading ---------------------------------------------------------------------------------------------------------


def _endpoint(recording: dict[str, Any], request: dict[str, Any]) -> Endpoint:
    match recording["provider"]:
        case "azure":
            return resolve_endpoint(
                "azure-deployments", base_url=f"https://{request['host']}/openai", query=request["query"]
            )
        case "ollama":
            return resolve_endpoint("ollama", base_url="https://ollama.com/v1")
        case "zai":
            return resolve_endpoint("zai-coding", environ={})
        case "openai-chat" | "openai" | "derived":
            return resolve_endpoint("openai-chat", environ={})
        case name:
            return resolve_endpoint(name, environ={})


def _feed(reader: ResponseReader, pieces: list[bytes]) -> list[StreamEvent]:
    decoder = SseDecoder()
    events: list[StreamEvent] = []
    for piece in pieces:
        for frame in decoder.feed(piece):
            events += reader.feed(frame)
    for frame in decoder.close():
        events += reader.feed(frame)
    return events


def _reply(where: Endpoint, exchange: dict[str, Any]) -> ModelReply:
    model, response = exchange["request"]["body"]["model"], exchange["response"]
    if "body" in response:
        return DIALECT.reader(where, model).read_body(json.dumps(response["body"]).encode())
    reader = DIALECT.reader(where, model)
    _feed(reader, [response["sse"].encode()])
    return reader.finish()


_NOTHING: Any = {}


class _Oracle:
    """What the frames say, read in the simplest way that works for them."""

    def __init__(self, response: dict[str, Any]) -> None:
        self.text: str = ""
        self.reasoning: str = ""
        self.refusal: str = ""
        self.calls: dict[int, dict[str, str]] = {}
        self.usage: Any = None
        self.finish: str | None = None
        self.signature: str | None = None
        self.failed = False
        for chunk in [response["body"]] if "body" in response else self._chunks(response["sse"]):
            self._read(chunk)

    @staticmethod
    def _chunks(sse: str) -> list[dict[str, Any]]:
        found = [
            line.removeprefix("data:").strip() for line in re.split(r"\r\n|\n|\r", sse) if line.startswith("data:")
        ]
        return [json.loads(data) for data in found if data != "[DONE]"]

    def _read(self, chunk: dict[str, Any]) -> None:
        self.failed = self.failed or "error" in chunk
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices", []):
            self.finish = choice.get("finish_reason") or self.finish
            said: Any = choice.get("delta") or choice.get("message") or _NOTHING
            self.text += said.get("content") or ""
            self.refusal += said.get("refusal") or ""
            self.reasoning += said.get("reasoning_content") or said.get("reasoning") or ""
            for detail in said.get("reasoning_details") or _NOTHING:
                self.signature = detail.get("signature") or self.signature
            for position, call in enumerate(said.get("tool_calls") or _NOTHING):
                kept = self.calls.setdefault(call.get("index", position), {"id": "", "name": "", "arguments": ""})
                function = call.get("function") or call["custom"]
                kept["id"] += call.get("id") or ""
                kept["name"] += function.get("name") or ""
                kept["arguments"] += function.get("arguments") or function.get("input") or ""


FINISHES = {"stop": "stop", "length": "output_limit", "tool_calls": "tool_calls", "content_filter": "content_filter"}


def _check_reply(reply: ModelReply, said: _Oracle) -> None:
    assert reply.text == said.text
    assert join_refusal(reply.parts) == said.refusal
    assert "".join(part.text for part in reply.parts if isinstance(part, Reasoning)) == said.reasoning
    assert [(call.id, call.name) for call in reply.calls] == [
        (call["id"], call["name"]) for call in said.calls.values()
    ]
    for call, theirs in zip(reply.calls, said.calls.values(), strict=True):
        if call.replay is not None:
            assert call.arguments == {"input": theirs["arguments"]}
        elif call.malformed is not None:
            assert call.malformed == theirs["arguments"]
        else:
            assert call.arguments == json.loads(theirs["arguments"] or "{}")
    assert said.finish
    assert reply.finish == ("refusal" if said.refusal else FINISHES[said.finish])
    _check_usage(reply, said)
    if said.signature is not None:
        assert said.signature in json.dumps([part.replay for part in reply.parts if isinstance(part, Reasoning)])


def _check_usage(reply: ModelReply, said: _Oracle) -> None:
    assert reply.raw_usage == said.usage
    if said.usage is None:
        return
    assert reply.usage.total == said.usage["total_tokens"]
    assert reply.usage.output == said.usage["completion_tokens"]
    read = (said.usage.get("prompt_tokens_details") or _NOTHING).get("cached_tokens", 0)
    assert reply.usage.cache_read == read
    assert reply.usage.input == said.usage["prompt_tokens"] - read
    assert reply.usage.reasoning == (said.usage.get("completion_tokens_details") or _NOTHING).get("reasoning_tokens", 0)


@every("path", RECORDINGS)
def test_every_answer_is_read_without_loss(path: Path) -> None:
    recording = conftest.load(path)
    for exchange in recording["exchanges"]:
        response = exchange["response"]
        if response["status"] != 200:
            continue
        said = _Oracle(response)
        where = _endpoint(recording, exchange["request"])
        if said.failed or said.finish is None:
            with pytest.raises(ModelError):
                _reply(where, exchange)
        else:
            _check_reply(_reply(where, exchange), said)


@every(("path", "index"), STREAMS)
def test_events_tell_the_same_as_the_reply(path: Path, index: int) -> None:
    recording = conftest.load(path)
    exchange = recording["exchanges"][index]
    said = _Oracle(exchange["response"])
    if said.failed or said.finish is None:
        return
    reader = DIALECT.reader(_endpoint(recording, exchange["request"]), exchange["request"]["body"]["model"])
    events = _feed(reader, [exchange["response"]["sse"].encode()])
    reply = reader.finish()
    assert events[0] == StreamStart(reply.model)
    assert reader.ignored == 0
    assert "".join(event.text for event in events if isinstance(event, TextChunk)) == said.text + said.refusal
    assert "".join(event.text for event in events if isinstance(event, ReasoningChunk)) == said.reasoning
    assert tuple(event.call for event in events if isinstance(event, CallEnd)) == reply.calls
    for call, theirs in zip(reply.calls, said.calls.values(), strict=True):
        assert CallStart(call.id, call.name) in events
        chunks = [event.arguments for event in events if isinstance(event, CallChunk) and event.id == call.id]
        assert "".join(chunks) == theirs["arguments"]
    counted = [event.usage for event in events if isinstance(event, StreamUsage)]
    assert counted[-1:] == ([reply.usage] if said.usage else [])


def _outcome(where: Endpoint, model: str, pieces: list[bytes]) -> object:
    reader = DIALECT.reader(where, model)
    try:
        events = _feed(reader, pieces)
        return reader.finish(), events
    except ModelError as error:
        return type(error), error.kind, error.message


@every(("path", "index"), STREAMS)
def test_bytes_that_come_in_other_pieces_give_the_same_reply(path: Path, index: int) -> None:
    recording = conftest.load(path)
    exchange = recording["exchanges"][index]
    where, model = _endpoint(recording, exchange["request"]), exchange["request"]["body"]["model"]
    data = exchange["response"]["sse"].encode()
    expected = _outcome(where, model, [data])
    assert _outcome(where, model, [data[at : at + 1] for at in range(len(data))]) == expected
    shuffled = random.Random(index)
    for _ in range(5):
        cuts = sorted(shuffled.sample(range(len(data)), min(50, len(data) - 1)))
        pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert _outcome(where, model, pieces) == expected


# ---- errors ----------------------------------------------------------------------------------------------------------

ERRORS = {
    "deepseek/error-400-context-length": ("context_overflow", False),
    "groq/tool-use-failed-400-malformed": ("server_error", True),
    "mistral/error-401": ("authentication", False),
    "openai-chat/error-400-system-role": ("bad_request", False),
    "openai-chat/error-401": ("authentication", False),
    "openai-chat/error-404-model": ("not_found", False),
    "openrouter/errors-429-upstream": ("rate_limited", True),
}


@every("path", RECORDINGS)
def test_every_error_status_gets_its_kind(path: Path) -> None:
    for exchange in conftest.load(path)["exchanges"]:
        response = exchange["response"]
        if response["status"] == 200:
            continue
        error = classify_error(response["status"], response["headers"], json.dumps(response["body"]).encode())
        known = ERRORS.get(f"{path.parent.name}/{path.stem}")
        assert (
            conftest.may_mean(response["status"], error.kind)
            if known is None
            else (error.kind, error.retryable) == known
        )
        assert error.status == response["status"]
        assert isinstance(error, ContextOverflow) == (error.kind == "context_overflow")
        assert len(error.message) <= 1_000


def _load(id: str) -> dict[str, Any]:
    found = [param.values[0] for param in RECORDINGS if param.id == id]
    if not found:
        pytest.skip(f"no recording {id}")
    return conftest.load(found[0])


def test_an_error_inside_a_stream_is_raised_with_what_the_model_had_made() -> None:
    recording = _load("groq/stream-tool-use-failed-malformed")
    exchange = recording["exchanges"][0]
    with pytest.raises(ModelError, match="invalid_param") as caught:
        _reply(_endpoint(recording, exchange["request"]), exchange)
    assert (caught.value.kind, caught.value.retryable) == ("server_error", True)


def test_a_stream_that_ends_without_a_reason_is_cut() -> None:
    recording = _load("derived/openai-chat-cut-no-finish")
    exchange = recording["exchanges"][0]
    with pytest.raises(StreamCut):
        _reply(_endpoint(recording, exchange["request"]), exchange)


def test_a_call_before_the_limit_is_kept_and_the_limit_is_told() -> None:
    recording = _load("derived/openai-chat-args-cut-by-length")
    exchange = recording["exchanges"][0]
    reply = _reply(_endpoint(recording, exchange["request"]), exchange)
    assert reply.finish == "output_limit"
    assert [call.name for call in reply.calls] == ["get_country"]


def test_a_filtered_choice_without_a_message_is_a_reply_without_parts() -> None:
    recording = _load("azure/content-filter-prompt-and-completion")
    exchange = recording["exchanges"][0]
    reply = _reply(_endpoint(recording, exchange["request"]), exchange)
    assert (reply.parts, reply.finish) == ((), "content_filter")


# ---- writing ---------------------------------------------------------------------------------------------------------


def _built(recording: dict[str, Any], position: int) -> tuple[Endpoint, str, ModelRequest]:
    """Our request at a place in the recording: what users and tools said is recorded, the rest is what we read."""
    body = recording["exchanges"][position]["request"]["body"]
    where = _endpoint(recording, recording["exchanges"][position]["request"])
    history = body["messages"]
    replies = [_said(recording, index) for index in range(position)]
    messages: list[Message] = []
    instructions = ""
    for index, message in enumerate(history):
        match message["role"]:
            case "system":
                instructions = message["content"]
            case "user" if history[index - 1]["role"] == "tool" and isinstance(message["content"], list):
                pass  # files that a tool gave, which are part of its result for us
            case "user":
                messages.append(UserMessage(f"u{index}", (Text(_words(message["content"])),)))
            case "assistant" if not message.get("content") and not message.get("tool_calls"):
                pass
            case "assistant":
                reply = (replies.pop(0) if replies else None) or DIALECT.reader(where, body["model"]).read_body(
                    _as_body(message)
                )
                messages.append(AssistantMessage(f"a{index}", reply.parts, reply.finish))
            case _:
                _add_result(messages, message, history[index + 1 :])
    extra = {name: body[name] for name in ("user", "reasoning") if name in body}
    tools = [tool for tool in body.get("tools", []) if tool["type"] == "function"]
    if len(tools) != len(body.get("tools", [])):
        extra["tools"] = body["tools"]
    request = ModelRequest(
        messages=tuple(messages),
        instructions=instructions,
        tools=tuple(ToolSpec(**{key: tool["function"][key] for key in TOOL_FIELDS}) for tool in tools),
        output=_output(body),
        settings=Settings(
            max_output_tokens=body.get("max_tokens"),
            temperature=body.get("temperature"),
            effort=body.get("reasoning_effort"),
            tool_choice=body.get("tool_choice", "auto"),
            extra=extra or None,
        ),
        files={hashlib.sha256(data).hexdigest(): data for data in FILES.values()},
    )
    return where, body["model"], request


TOOL_FIELDS = ("name", "description", "parameters")


def _said(recording: dict[str, Any], position: int) -> ModelReply | None:
    exchange = recording["exchanges"][position]
    try:
        return _reply(_endpoint(recording, exchange["request"]), exchange)
    except ModelError:
        return None
    except KeyError:  # an error status has no choices
        return None


def _as_body(message: dict[str, Any]) -> bytes:
    """A message that the recorded client made up after an error, as if a model had said it."""
    said = {**message, "content": _without_thoughts(message.get("content") or "")}
    return json.dumps({"choices": [{"message": said, "finish_reason": "tool_calls"}]}).encode()


def _without_thoughts(text: str) -> str:
    return re.sub(r"\A<think>.*?</think>\s*", "", text, flags=re.DOTALL)


def _words(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _add_result(messages: list[Message], message: dict[str, Any], after: list[dict[str, Any]]) -> None:
    id = message["tool_call_id"]
    content: Any = message["content"]
    if content.startswith("See file"):
        address = after[0]["content"][1]["image_url"]["url"]
        data = FILES[address]
        content = Attachment(hashlib.sha256(data).hexdigest(), "image/jpeg", len(data), content.split()[-1])
    result = ToolResult(id, "", content)
    if isinstance(messages[-1], ToolMessage):
        messages[-1] = ToolMessage(messages[-1].id, (*messages[-1].results, result))
    else:
        messages.append(ToolMessage(f"r{id}", (result,)))


def _output(body: dict[str, Any]) -> OutputSpec | None:
    shape = body.get("response_format", {}).get("json_schema")
    return None if shape is None else OutputSpec(shape["name"], shape["schema"])


class _Differences:
    """Makes a recorded request equal to ours, where a difference is meant, and remembers which were."""

    def __init__(self, ours: dict[str, Any], theirs: dict[str, Any], provider: str) -> None:
        self.ours = ours
        self.theirs = theirs
        self.provider = provider
        self.used: set[str] = set()

    def settle(self) -> None:
        self._fields()
        for tool in self.theirs.get("tools", []):
            if tool.get("function", {}).get("strict") is False:
                self.used.add("strict-false")
                del tool["function"]["strict"]
        self._messages()

    def _fields(self) -> None:
        ours, theirs = self.ours, self.theirs
        if theirs.get("stream") is not True:
            self.used.add("stream")
            theirs["stream"] = True
        if "stream_options" in ours and "stream_options" not in theirs:
            self.used.add("stream-usage")
            theirs["stream_options"] = {"include_usage": True}
        if theirs.get("tool_choice") == "auto":
            self.used.add("choice-auto")
            del theirs["tool_choice"]
        if theirs.get("n") == 1:
            self.used.add("one-choice")
            del theirs["n"]
        if "max_tokens" in theirs and self.provider in {"openai-chat", "openai", "derived", "groq"}:
            self.used.add("limit-name")
            theirs["max_completion_tokens"] = theirs.pop("max_tokens")
        if theirs.get("usage") == {"include": True}:
            self.used.add("usage-include")
            del theirs["usage"]
        if self.provider == "openrouter" and ours.get("cache_control") == {"type": "ephemeral"}:
            self.used.add("cache-control")
            theirs["cache_control"] = ours["cache_control"]

    def _messages(self) -> None:
        kept: list[dict[str, Any]] = []
        for message in self.theirs["messages"]:
            if message == {"role": "assistant", "content": ""}:
                self.used.add("split-message")
            else:
                kept.append(message)
        self.theirs["messages"] = kept
        for ours, theirs in zip(self.ours["messages"], kept, strict=True):
            match theirs["role"]:
                case "assistant":
                    self._assistant(ours, theirs)
                case "user":
                    self._user(ours, theirs)
                case "tool" if theirs["content"].startswith("See file"):
                    self.used.add("file-words")
                    assert theirs["content"].split()[-1] in ours["content"]
                    theirs["content"] = ours["content"]
                case _:
                    pass

    def _user(self, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        content: Any = theirs["content"]
        if isinstance(content, str):
            return
        if len(content) == 1:
            self.used.add("text-part")
            theirs["content"] = content[0]["text"]
        else:
            self.used |= {"file-words", "file-bytes"}
            assert content[0]["text"].rstrip(":").split()[-1] in ours["content"][0]["text"]
            assert ours["content"][1]["image_url"]["url"].startswith("data:image/jpeg;base64,")
            theirs["content"] = ours["content"]

    def _assistant(self, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        said = theirs.get("content")
        if said == "":
            self.used.add("empty-content")
            del theirs["content"]
        if self.provider == "groq" and said and said.startswith("<think>"):
            self.used.add("think-tags")
            assert not _without_thoughts(said)
            del theirs["content"]
        if self.provider == "ollama" and "reasoning_content" in theirs:
            self.used.add("reasoning-twice")
            assert theirs.pop("reasoning_content") == theirs["reasoning"]
        for our_call, their_call in zip(ours.get("tool_calls", []), theirs.get("tool_calls", []), strict=True):
            mine, recorded = our_call["function"], their_call["function"]
            if mine["arguments"] != recorded["arguments"]:
                self.used.add("arguments-spacing")
                assert json.loads(mine["arguments"]) == json.loads(recorded["arguments"])
                recorded["arguments"] = mine["arguments"]
        if "kimi" in self.ours["model"] and "reasoning_details" in theirs:
            self.used.add("reasoning-begin")
            [detail], [full] = theirs["reasoning_details"], ours["reasoning_details"]
            assert full["text"] == f" The{detail['text']}"
            detail["text"] = full["text"]


def _differences(path: Path) -> set[str]:
    recording = conftest.load(path)
    used: set[str] = set()
    for position, exchange in enumerate(recording["exchanges"]):
        recorded = exchange["request"]
        if "<MASSIVE_TEXT>" in json.dumps(recorded["body"]):
            continue  # the conversation was taken out of the recording
        where, model, request = _built(recording, position)
        wire = DIALECT.encode_request(where, model, request)
        path_and_query = f"{recorded['path']}?" + "&".join(f"{key}={value}" for key, value in recorded["query"].items())
        assert f"{where.base_url}{wire.path}" == f"https://{recorded['host']}{path_and_query}".rstrip("?")
        assert wire.dropped == 0
        compared = _Differences(json.loads(wire.body), copy.deepcopy(recorded["body"]), recording["provider"])
        compared.settle()
        assert compared.ours == compared.theirs
        used |= compared.used
    return used


@every("path", RECORDINGS)
def test_our_requests_are_the_recorded_ones_but_for_what_the_table_says(path: Path) -> None:
    assert conftest.unexplained("chat", path, _differences(path)) == []


def test_every_row_of_the_table_is_needed() -> None:
    assert conftest.needless("chat", RECORDINGS, _differences) == []


@every("path", RECORDINGS)
def test_what_was_sent_once_is_sent_again_byte_for_byte(path: Path) -> None:
    recording = conftest.load(path)
    position = len(recording["exchanges"]) - 1
    where, model, request = _built(recording, position)
    if not request.messages:
        return
    longer = DIALECT.encode_request(where, model, request).body
    shorter = DIALECT.encode_request(where, model, ModelRequest(messages=request.messages[:-1])).body
    sent = shorter[shorter.index(b'"messages":[') + len(b'"messages":[') : -len(b"]}")]
    assert sent in longer
