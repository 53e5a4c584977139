"""The four dialects on the provider's side: reading requests, writing replies and errors. Pure.

It shares no code with `holdfast.models`, so that neither can hide a mistake of the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Final, Literal, TypeAlias

import msgspec

from holdfast.messages import Attachment, ModelReply, Part, Reasoning, Refusal, Text, ToolCall, Usage

DialectName: TypeAlias = Literal["anthropic", "responses", "chat", "google"]
Form: TypeAlias = Literal["sse", "array", "whole"]
"""A stream of events, a stream of the elements of one JSON array (Google without ``alt=sse``), or one body."""


class _MessageHead(msgspec.Struct):
    """The role of a message, a content or an item."""

    role: str | None = None
    type: str | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _RequestHead(msgspec.Struct):
    """The fields of a request that decide the answer."""

    model: str = ""
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    messages: list[_MessageHead] = []
    contents: list[_MessageHead] = []
    input: list[_MessageHead] | str = []


_request_decoder: Final = msgspec.json.Decoder(_RequestHead)


class RequestSummary(msgspec.Struct, frozen=True):
    """Everything of a request that the answer depends on."""

    dialect: DialectName
    model: str
    position: int
    """Number of the model's replies in the conversation."""
    form: Form = "sse"
    reports_usage: bool = True
    """Chat Completions report the usage of a stream only on request."""


def dialect_of_path(path: str) -> DialectName | None:
    """Return the dialect of a path, by its end."""
    place = path.partition("?")[0]
    return next((dialect for end, dialect in _PATH_ENDS.items() if place.endswith(end)), None)


_PATH_ENDS: Final[Mapping[str, DialectName]] = {
    "/messages": "anthropic",
    "/chat/completions": "chat",
    "/responses": "responses",
    ":generateContent": "google",
    ":streamGenerateContent": "google",
}


def summarize_request(dialect: DialectName, path: str, body: bytes) -> RequestSummary:
    """Summarize a request. Raises `msgspec.DecodeError` (or its child `ValidationError`) for an invalid body."""
    found = _request_decoder.decode(body)
    if dialect == "google":
        place, _, query = path.partition("?")
        model, _, verb = place.rpartition("/")[2].partition(":")
        streamed: Form = "sse" if "alt=sse" in query.split("&") else "array"
        form: Form = streamed if verb == "streamGenerateContent" else "whole"
        return RequestSummary("google", model, _count_replies(entry.role == "model" for entry in found.contents), form)
    form = "sse" if found.stream else "whole"
    if dialect == "responses":
        items = [] if isinstance(found.input, str) else found.input
        return RequestSummary("responses", found.model, _count_replies(map(_is_reply, items)), form)
    position = _count_replies(entry.role == "assistant" for entry in found.messages)
    told = dialect == "anthropic" or (found.stream_options is not None and found.stream_options.include_usage)
    return RequestSummary(dialect, found.model, position, form, reports_usage=told)


def _is_reply(item: _MessageHead) -> bool:
    """True if an item of the Responses API belongs to a reply."""
    if item.role is not None:
        return item.role == "assistant"
    return not (item.type or "").endswith(("_output", "_response"))


def _count_replies(by_model: Iterable[bool]) -> int:
    """Count replies: neighbouring entries of the model are one reply."""
    return sum(said for said, _ in groupby(by_model))


encode: Final = msgspec.json.Encoder().encode


def sse(data: dict[str, Any], event: str = "") -> bytes:
    """Encode a server-sent event."""
    named = f"event: {event}\n".encode() if event else b""
    return named + b"data: " + encode(data) + b"\n\n"


def make_signature(position: int, index: int) -> str:
    """Make a provider's signature: different for every part, the same each time."""
    return b64encode(f"seal {position}.{index}".encode()).decode()


def array_element(data: dict[str, Any]) -> bytes:
    """Encode an element of an array."""
    return encode(data) + b",\r\n"


def prompt_tokens(usage: Usage) -> int:
    """Return the prompt tokens of a provider that includes cached ones."""
    return usage.input + usage.cache_read + usage.cache_write


SplitParts: TypeAlias = "tuple[tuple[Part, tuple[str, ...]], ...]"
"""The parts of a reply, with the pieces of each."""


def split_reply(reply: ModelReply, chunks: Sequence[str], count: int, *, calls_split: bool = True) -> SplitParts:
    """Split a reply into `count` pieces; `chunks` are its texts and refusals as split by the script.

    Every part has at least one piece, split parts have no empty piece, and the script's own splits stay.
    """
    spoken = tuple(part for part in reply.parts if not isinstance(part, Attachment))
    given = _assign_chunks(spoken, chunks)
    free = [
        number
        for number, (part, own) in enumerate(zip(spoken, given, strict=True))
        if len(own) == 1 and (calls_split or not isinstance(part, ToolCall))
    ]
    left = max(count - sum(len(own) for number, own in enumerate(given) if number not in free), 0)
    for place, number in enumerate(free):
        share = left // len(free) + (place < left % len(free))
        words = given[number][0]
        bounds = _even_bounds(len(words), min(max(share, 1), max(len(words), 1)))
        given[number] = tuple(words[begin:end] for begin, end in bounds)
    return tuple(zip(spoken, given, strict=True))


def _assign_chunks(parts: Sequence[Part], chunks: Sequence[str]) -> list[tuple[str, ...]]:
    given: list[tuple[str, ...]] = []
    place = 0
    for part in parts:
        words = part_text(part)
        if not isinstance(part, Text | Refusal):
            given.append((words,))
            continue
        begin, length = place, 0
        while place < len(chunks) and (place == begin or length < len(words)):
            length += len(chunks[place])
            place += 1
        given.append(tuple(chunks[begin:place]) or (words,))
    return given


def _even_bounds(length: int, count: int) -> Iterable[tuple[int, int]]:
    return pairwise(length * number // count for number in range(count + 1))


def part_text(part: Part) -> str:
    """Return the text of a part, or the arguments of a call as JSON."""
    match part:
        case ToolCall():
            return encode(part.arguments).decode() if part.arguments is not None else part.malformed or ""
        case Attachment():
            return ""
        case _:
            return part.text


def error_body(dialect: DialectName, status: int, message: str, *, code: str = "", retry: float | None = None) -> bytes:
    """Encode the body of an error response."""
    return encode(_error(dialect, status, message, code, retry))


def error_frame(request: RequestSummary, status: int, message: str) -> bytes:
    """Encode an error inside a stream."""
    failure = _error(request.dialect, status, message, "", None)
    match request.dialect:
        case "anthropic":
            return sse(failure, "error")
        case "responses":
            told = {"type": "error", "code": _openai_type(status), "message": message, "param": None}
            return sse({**told, "sequence_number": 0}, "error")
        case "google" if request.form == "array":
            return array_element(failure)
        case _:
            return sse(failure)


def bad_frame(request: RequestSummary) -> bytes:
    """Return a frame that is no JSON, with a known event name."""
    if request.form == "array":
        return b'{"candidates" 1},\r\n'
    name = {"anthropic": b"event: content_block_delta\n", "responses": b"event: response.output_text.delta\n"}
    return name.get(request.dialect, b"") + b'data: {"type": "cont\n\n'


def _error(dialect: DialectName, status: int, message: str, code: str, retry: float | None) -> dict[str, Any]:
    match dialect:
        case "anthropic":
            return {"type": "error", "error": {"type": _ERRORS.get(status, _OTHER_ERROR)[0], "message": message}}
        case "google":
            details: list[Any] = []
            if retry is not None:
                details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{retry:g}s"})
            name = _ERRORS.get(status, _OTHER_ERROR)[1]
            return {"error": {"code": status, "message": message, "status": name, "details": details}}
        case _:
            return {"error": {"message": message, "type": _openai_type(status), "param": None, "code": code or None}}


def _openai_type(status: int) -> str:
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_request_error" if status < 500 else "server_error"


_ERRORS: Final = {
    400: ("invalid_request_error", "INVALID_ARGUMENT"),
    401: ("authentication_error", "UNAUTHENTICATED"),
    402: ("billing_error", "INTERNAL"),
    403: ("permission_error", "PERMISSION_DENIED"),
    404: ("not_found_error", "NOT_FOUND"),
    413: ("request_too_large", "INTERNAL"),
    429: ("rate_limit_error", "RESOURCE_EXHAUSTED"),
    503: ("api_error", "UNAVAILABLE"),
    504: ("timeout_error", "DEADLINE_EXCEEDED"),
    529: ("overloaded_error", "UNAVAILABLE"),
}
"""Names of errors, for Anthropic and Google."""
_OTHER_ERROR: Final = ("api_error", "INTERNAL")
_FINISH_REASONS: Final = {
    "stop": ("end_turn", "stop", "STOP"),
    "tool_calls": ("tool_use", "tool_calls", "STOP"),
    "output_limit": ("max_tokens", "length", "MAX_TOKENS"),
    "refusal": ("refusal", "stop", "SAFETY"),
    "content_filter": ("refusal", "content_filter", "SAFETY"),
    "context_overflow": ("model_context_window_exceeded", "length", "MAX_TOKENS"),
    "cancelled": ("end_turn", "stop", "STOP"),
}
"""Names of the end of a reply, for Anthropic, Chat Completions and Google."""


class ReplyWriter(ABC):
    """Writes one reply in one dialect. The methods are in the order of a stream."""

    def __init__(self, request: RequestSummary, parts: SplitParts, reply: ModelReply) -> None:
        self._request = request
        self._parts = parts
        self._reply = reply

    @abstractmethod
    def start(self) -> bytes: ...

    def opening(self, index: int, part: Part) -> bytes:  # some dialects have no such frame
        return b""

    @abstractmethod
    def piece(self, index: int, part: Part, words: str) -> bytes: ...

    def closing(self, index: int, part: Part) -> bytes:  # same
        return b""

    @abstractmethod
    def ending(self) -> bytes: ...

    @abstractmethod
    def whole(self) -> dict[str, Any]: ...


class AnthropicWriter(ReplyWriter):
    """Writes a reply as a message with content blocks."""

    def start(self) -> bytes:
        usage = {**_anthropic_usage(self._reply.usage), "output_tokens": 1}
        return sse({"type": "message_start", "message": self._message([], None, usage)}, "message_start")

    def opening(self, index: int, part: Part) -> bytes:
        block = self._block(index, part, empty=True)
        return sse({"type": "content_block_start", "index": index, "content_block": block}, "content_block_start")

    def piece(self, index: int, part: Part, words: str) -> bytes:
        kind, field = _ANTHROPIC_PIECES.get(type(part), ("text_delta", "text"))
        return self._delta(index, {"type": kind, field: words})

    def closing(self, index: int, part: Part) -> bytes:
        signed = b""
        if isinstance(part, Reasoning):
            signature = make_signature(self._request.position, index)
            signed = self._delta(index, {"type": "signature_delta", "signature": signature})
        return signed + sse({"type": "content_block_stop", "index": index}, "content_block_stop")

    def ending(self) -> bytes:
        delta = {"stop_reason": _FINISH_REASONS[self._reply.finish][0], "stop_sequence": None}
        usage = _anthropic_usage(self._reply.usage)
        last = sse({"type": "message_delta", "delta": delta, "usage": usage}, "message_delta")
        return last + sse({"type": "message_stop"}, "message_stop")

    def whole(self) -> dict[str, Any]:
        content = [self._block(index, part) for index, (part, _) in enumerate(self._parts)]
        return self._message(content, _FINISH_REASONS[self._reply.finish][0], _anthropic_usage(self._reply.usage))

    def _message(self, content: list[Any], stop: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._request.position}",
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage,
        }

    def _block(self, index: int, part: Part, *, empty: bool = False) -> dict[str, Any]:
        match part:
            case ToolCall():
                given = part.malformed if part.arguments is None else part.arguments
                return {"type": "tool_use", "id": part.id, "name": part.name, "input": {} if empty else given}
            case Reasoning():
                seal = "" if empty else make_signature(self._request.position, index)
                return {"type": "thinking", "thinking": "" if empty else part.text, "signature": seal}
            case _:
                return {"type": "text", "text": "" if empty else part_text(part)}

    @staticmethod
    def _delta(index: int, delta: dict[str, str]) -> bytes:
        return sse({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")


_ANTHROPIC_PIECES: Final[Mapping[type[Part], tuple[str, str]]] = {
    ToolCall: ("input_json_delta", "partial_json"),
    Reasoning: ("thinking_delta", "thinking"),
}


def _anthropic_usage(usage: Usage) -> dict[str, Any]:
    thinking = {"output_tokens_details": {"thinking_tokens": usage.reasoning}} if usage.reasoning else {}
    return {
        **thinking,
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }


class ChatWriter(ReplyWriter):
    """Writes a reply as a choice with deltas."""

    def __init__(self, request: RequestSummary, parts: SplitParts, reply: ModelReply) -> None:
        super().__init__(request, parts, reply)
        calls = (index for index, (part, _) in enumerate(parts) if isinstance(part, ToolCall))
        self._calls = {index: number for number, index in enumerate(calls)}

    def start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def opening(self, index: int, part: Part) -> bytes:
        if not isinstance(part, ToolCall):
            return b""
        function = {"name": part.name, "arguments": ""}
        call = {"index": self._calls[index], "id": part.id, "type": "function", "function": function}
        return self._chunk({"tool_calls": [call]})

    def piece(self, index: int, part: Part, words: str) -> bytes:
        if isinstance(part, ToolCall):
            return self._chunk({"tool_calls": [{"index": self._calls[index], "function": {"arguments": words}}]})
        return self._chunk({_CHAT_FIELDS.get(type(part), "content"): words})

    def ending(self) -> bytes:
        ended = self._chunk({}, _FINISH_REASONS[self._reply.finish][1])
        if self._request.reports_usage:
            usage: dict[str, Any] = {"choices": [], "usage": _chat_usage(self._reply.usage)}
            ended += sse({**self._frame("chat.completion.chunk"), **usage})
        return ended + b"data: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for part, _ in self._parts:
            if isinstance(part, ToolCall):
                function = {"name": part.name, "arguments": part_text(part)}
                message.setdefault("tool_calls", []).append({"id": part.id, "type": "function", "function": function})
            else:
                field = _CHAT_FIELDS.get(type(part), "content")
                message[field] = (message.get(field) or "") + part_text(part)
        choice = {"index": 0, "message": message, "finish_reason": _FINISH_REASONS[self._reply.finish][1]}
        return {**self._frame("chat.completion"), "choices": [choice], "usage": _chat_usage(self._reply.usage)}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse({**self._frame("chat.completion.chunk"), "choices": [choice]})

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self._request.position}", "object": kind, "created": 0, "model": self._request.model}


_CHAT_FIELDS: Final[Mapping[type[Part], str]] = {Reasoning: "reasoning_content", Refusal: "refusal"}


def _chat_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens(usage),
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


class GoogleWriter(ReplyWriter):
    """Writes calls whole; a malformed call appears only as the finish reason."""

    def __init__(self, request: RequestSummary, parts: SplitParts, reply: ModelReply) -> None:
        super().__init__(request, parts, reply)
        self._frame = sse if request.form == "sse" else array_element
        calls = [part for part, _ in parts if isinstance(part, ToolCall)]
        self._sealed = next(iter(calls), None) if any(isinstance(part, Reasoning) for part, _ in parts) else None
        bad = any(call.arguments is None for call in calls)
        self._end = "MALFORMED_FUNCTION_CALL" if bad else _FINISH_REASONS[reply.finish][2]

    def start(self) -> bytes:
        return b"[" if self._request.form == "array" else b""

    def piece(self, index: int, part: Part, words: str) -> bytes:
        return self._frame(self._answer([self._part(index, part, words)]))

    def ending(self) -> bytes:
        last = self._frame(self._answer([{"text": ""}], self._end))
        return last if self._request.form == "sse" else last.rstrip(b",\r\n") + b"]"

    def whole(self) -> dict[str, Any]:
        parts = [self._part(index, part, part_text(part)) for index, (part, _) in enumerate(self._parts)]
        return self._answer(parts, self._end)

    def _part(self, index: int, part: Part, words: str) -> dict[str, Any]:
        match part:
            case ToolCall(arguments=None):
                return {"text": ""}
            case ToolCall():
                call: dict[str, Any] = {"functionCall": {"name": part.name, "args": part.arguments, "id": part.id}}
                if part is self._sealed:
                    call["thoughtSignature"] = make_signature(self._request.position, index)
                return call
            case Reasoning():
                return {"text": words, "thought": True}
            case _:
                return {"text": words}

    def _answer(self, parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
        reason = {} if finish is None else {"finishReason": finish}
        candidate = {"content": {"parts": parts, "role": "model"}, "index": 0, **reason}
        usage = self._reply.usage
        counts = {
            "promptTokenCount": prompt_tokens(usage),
            "cachedContentTokenCount": usage.cache_read,
            "candidatesTokenCount": usage.output - usage.reasoning,
            "thoughtsTokenCount": usage.reasoning,
            "totalTokenCount": usage.total,
        }
        return {
            "candidates": [candidate],
            "usageMetadata": counts,
            "modelVersion": self._request.model,
            "responseId": f"resp_{self._request.position}",
        }


class ResponsesWriter(ReplyWriter):
    """Writes a reply as items. Every event has a number."""

    _number = 0

    def start(self) -> bytes:
        opened = self._response("in_progress", [])
        created = self._event("response.created", {"response": opened})
        return created + self._event("response.in_progress", {"response": opened})

    def opening(self, index: int, part: Part) -> bytes:
        item = self._item(index, part, empty=True)
        added = self._event("response.output_item.added", {"output_index": index, "item": item})
        return added + self._frame(index, part, "added", "")

    def piece(self, index: int, part: Part, words: str) -> bytes:
        kind, _, _, place = _RESPONSES_PIECES[type(part)]
        return self._inside(index, part, f"response.{kind}.delta", {**place, "delta": words})

    def closing(self, index: int, part: Part) -> bytes:
        kind, field, _, place = _RESPONSES_PIECES[type(part)]
        words = part_text(part)
        done = self._inside(index, part, f"response.{kind}.done", {**place, field: words})
        done += self._frame(index, part, "done", words)
        item = self._item(index, part)
        return done + self._event("response.output_item.done", {"output_index": index, "item": item})

    def ending(self) -> bytes:
        ended = self.whole()
        return self._event(f"response.{ended['status']}", {"response": ended})

    def whole(self) -> dict[str, Any]:
        reason = _RESPONSES_INCOMPLETE.get(self._reply.finish)
        items = [self._item(index, part) for index, (part, _) in enumerate(self._parts)]
        ended = self._response("incomplete" if reason else "completed", items)
        ended["incomplete_details"] = {"reason": reason} if reason else None
        usage = self._reply.usage
        ended["usage"] = {
            "input_tokens": prompt_tokens(usage),
            "input_tokens_details": {"cached_tokens": usage.cache_read},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.total,
        }
        return ended

    def _response(self, status: str, output: list[Any]) -> dict[str, Any]:
        return {
            "id": f"resp_{self._request.position}",
            "object": "response",
            "created_at": 0,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._request.model,
            "output": output,
            "usage": None,
        }

    def _item(self, index: int, part: Part, *, empty: bool = False) -> dict[str, Any]:
        status = "in_progress" if empty else "completed"
        words = "" if empty else part_text(part)
        inner = [] if empty else [self._words(part, words)]
        named = {"id": self._id(index, part)}
        match part:
            case ToolCall():
                call = {"call_id": part.id, "name": part.name, "arguments": words}
                return {**named, "type": "function_call", "status": status, **call}
            case Reasoning():
                seal = make_signature(self._request.position, index)
                return {**named, "type": "reasoning", "summary": inner, "encrypted_content": seal}
            case _:
                return {**named, "type": "message", "role": "assistant", "status": status, "content": inner}

    def _id(self, index: int, part: Part) -> str:
        return f"{_RESPONSES_IDS.get(type(part), 'msg')}_{self._request.position}_{index}"

    @staticmethod
    def _words(part: Part, words: str) -> dict[str, Any]:
        match part:
            case Refusal():
                return {"type": "refusal", "refusal": words}
            case Reasoning():
                return {"type": "summary_text", "text": words}
            case _:
                return {"type": "output_text", "text": words, "annotations": []}

    def _frame(self, index: int, part: Part, happened: str, words: str) -> bytes:
        """Write the begin or the end of the content of an item; a call has none."""
        _, _, frame, place = _RESPONSES_PIECES[type(part)]
        data = {**place, "part": self._words(part, words)}
        return self._inside(index, part, f"response.{frame}.{happened}", data) if frame else b""

    def _inside(self, index: int, part: Part, kind: str, data: dict[str, Any]) -> bytes:
        return self._event(kind, {"item_id": self._id(index, part), "output_index": index, **data})

    def _event(self, kind: str, data: dict[str, Any]) -> bytes:
        numbered = {"type": kind, "sequence_number": self._number, **data}
        self._number += 1
        return sse(numbered, kind)


_RESPONSES_IDS: Final[Mapping[type[Part], str]] = {ToolCall: "fc", Reasoning: "rs"}
_RESPONSES_PIECES: Final[Mapping[type[Part], tuple[str, str, str, dict[str, int]]]] = {
    Text: ("output_text", "text", "content_part", {"content_index": 0}),
    Refusal: ("refusal", "refusal", "content_part", {"content_index": 0}),
    Reasoning: ("reasoning_summary_text", "text", "reasoning_summary_part", {"summary_index": 0}),
    ToolCall: ("function_call_arguments", "arguments", "", {}),
}
"""Names of a part's pieces, of its text and of the frame around it, and its place in the item."""
_RESPONSES_INCOMPLETE: Final = {
    "output_limit": "max_output_tokens",
    "context_overflow": "max_output_tokens",
    "content_filter": "content_filter",
}


class StreamedReply(msgspec.Struct, frozen=True):
    """A reply on the wire: pieces to write one by one, and the terminal frames."""

    pieces: tuple[bytes, ...]
    ending: bytes


_WRITERS: Final[Mapping[DialectName, type[ReplyWriter]]] = {
    "anthropic": AnthropicWriter,
    "responses": ResponsesWriter,
    "chat": ChatWriter,
    "google": GoogleWriter,
}


def stream_reply(request: RequestSummary, reply: ModelReply, chunks: Sequence[str], count: int) -> StreamedReply:
    """Write a reply as a stream, in `count` pieces or fewer if it is short."""
    parts = split_reply(reply, chunks, count, calls_split=request.dialect != "google")
    voice = _WRITERS[request.dialect](request, parts, reply)
    pieces: list[bytes] = []
    before = voice.start()
    for index, (part, words) in enumerate(parts):
        before += voice.opening(index, part)
        for piece in words:
            pieces.append(before + voice.piece(index, part, piece))
            before = b""
        pieces[-1] += voice.closing(index, part)
    if before:
        pieces.append(before)
    if len(pieces) > count:  # join neighbours
        pieces = [b"".join(pieces[begin:end]) for begin, end in _even_bounds(len(pieces), count)]
    return StreamedReply(tuple(pieces), voice.ending())


def encode_whole_reply(request: RequestSummary, reply: ModelReply) -> bytes:
    """Write a reply as one body."""
    return encode(_WRITERS[request.dialect](request, split_reply(reply, (), 1), reply).whole())
