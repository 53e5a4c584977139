"""Responses of the Anthropic dialect, and its errors. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.errors import ModelError, StreamCut
from holdfast.messages import (
    CallChunk,
    CallEnd,
    CallStart,
    ModelPass,
    ModelReply,
    Reasoning,
    ReasoningChunk,
    Refusal,
    StreamNote,
    StreamReset,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolCall,
    Usage,
)
from holdfast.models.dialect import (
    ResponseReader,
    arguments_from_value,
    as_dict,
    as_list,
    as_text,
    bad_frame,
    clip_text,
    derive_call_id,
    kind_of_status,
    make_error,
    parse_arguments,
    parse_error_body,
    parse_json,
    reports_overflow,
    token_count,
)
from holdfast.models.retry import add_response_headers, delay_from_message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.messages import FinishReason, Part, StreamEvent
    from holdfast.models.dialect import Endpoint, Frame


MAX_REPLY: Final = 64 * 1024 * 1024
"""Largest reply, in bytes of its frames."""
_FINISHES: Final[dict[str, FinishReason]] = {
    "max_tokens": "output_limit",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_overflow",
}
_PAUSE_REASONS: Final = frozenset(("pause_turn", "compaction"))
_BLOCK_OF_DELTA: Final = {"text_delta": "text", "thinking_delta": "thinking"}
"""Deltas that are understood without a ``content_block_start``."""


class _AnthropicBlock:
    """A content block while it is streamed."""

    __slots__ = ("citations", "ended", "given", "grown", "index", "kind", "signature", "written")

    def __init__(self, index: int, kind: str, given: dict[str, Any]) -> None:
        self.index = index
        self.kind = kind
        self.given = given
        self.written: list[str] = []
        self.grown: dict[str, list[str]] = {}
        """Pieces of the texts of an unknown block."""
        self.citations: list[Any] = []
        self.signature = ""
        self.ended = False


class AnthropicReader(ResponseReader):
    """Reads one response. A paused one has the finish reason ``stop``."""

    growing_fields = frozenset(("text", "thinking", "partial_json", "content"))

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        super().__init__(endpoint, model)
        self._early = False
        """Blocks came before ``message_start``."""
        self._done = False
        self._reset()

    def _reset(self) -> None:
        self.passes = ()
        self._id = self._model = self._stop = self._container = ""
        self._details: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: list[_AnthropicBlock] = []
        self._open: dict[int, _AnthropicBlock] = {}
        self._seen: set[int] = set()
        """Indexes of all blocks."""
        self._ids.clear()
        self._seed = ""
        """Seed of the ids of calls without an id."""

    @property
    def complete(self) -> bool:
        """True if ``message_stop`` has come."""
        return self._done

    def feed(self, frame: Frame) -> list[StreamEvent]:
        """Translate a frame. Raises a `ModelError` if the frame reports an error."""
        data = frame.data
        self._size += len(data)
        if self._size > MAX_REPLY:
            raise ModelError(f"the reply of {self._name} is longer than {MAX_REPLY:,} bytes", kind="bad_frame")
        if self._done or not data or data.isspace() or data == b"[DONE]":
            return self._ignore()
        event = self._joiner.parse(data)
        if not isinstance(event, dict):
            raise bad_frame("the provider sent JSON that is no object")
        event = cast("dict[str, Any]", event)
        kind = as_text(event.get("type")) or frame.event
        match kind:
            case "content_block_delta":
                return self._on_block_delta(event)
            case "content_block_start":
                return self._on_block_start(event)
            case "content_block_stop":
                return self._on_block_stop(event)
            case "message_start":
                return self._on_message_start(event)
            case "message_delta":
                if not self._started:
                    return self._ignore()
                self._read_ending(as_dict(event.get("delta")))
                return self._update_usage(event.get("usage"))
            case "message_stop":
                return self._on_message_stop()
            case "ping":
                return []
            case _:
                if kind == "error" or event.get("error"):
                    raise classify_stream_error(event)
                return self._ignore()

    def finish(self) -> ModelReply:
        """Return the whole reply. Raises `StreamCut` if the terminal frame has not come."""
        if not self._done:
            raise StreamCut(self._name)
        parts = [part for block in self._blocks for part in self._parts(block)]
        calls = any(type(part) is ToolCall for part in parts)
        finish = _FINISHES.get(self._stop) or ("tool_calls" if calls else "stop")
        if finish == "refusal":
            parts.append(Refusal(_refusal_text(self._details)))
        if finish != "tool_calls" and not self.paused:
            parts = drop_unanswered_tool_uses(parts)
        return ModelReply(
            tuple(parts),
            finish,
            _usage(self._usage),
            self._model,
            raw_usage=self._usage or None,
            response_id=self._id or None,
        )

    def read_body(self, body: bytes) -> ModelReply:
        """Return the reply in a body that is not a stream."""
        message = as_dict(parse_json(body))
        if message.get("type") == "error" or message.get("error"):
            raise classify_stream_error(message)
        if not isinstance(message.get("content"), list):
            raise bad_frame("the provider's answer is no message")
        self._on_message_start({"message": message})
        self._read_ending(message)
        if not self._stop and any(block.kind == "tool_use" for block in self._blocks):
            raise StreamCut(self._name)  # calls without a stop reason may be incomplete
        self._on_message_stop()
        return self.finish()

    def _on_message_start(self, event: dict[str, Any]) -> list[StreamEvent]:
        message = as_dict(event.get("message"))
        events: list[StreamEvent] = []
        if self._started and not self._early:
            if message.get("id") == self._id:  # some gateways repeat it
                return self._ignore()
            # A gateway lost the reply, tried again, and goes on in the same response.
            events.append(StreamReset("the provider began its reply anew"))
            self._reset()
        self._started, self._early = True, False
        self._id, self._model = as_text(message.get("id")), as_text(message.get("model"))
        events.append(StreamStart(self._model))
        events += self._update_usage(message.get("usage"))
        for index, block in enumerate(as_list(message.get("content"))):
            events += self._on_block_start({"index": index, "content_block": block})
            events += self._on_block_stop({"index": index})
        return events

    def _on_block_start(self, event: dict[str, Any]) -> list[StreamEvent]:
        given, index = as_dict(event.get("content_block")), event.get("index")
        kind = as_text(given.get("type"))
        if type(index) is not int or not kind:
            return self._ignore()
        self._early = self._early or not self._started  # some gateways send `message_start` late, or never
        self._started = True
        block = _AnthropicBlock(index, kind, given)
        self._blocks.append(block)
        self._open[index] = block
        self._seen.add(index)
        match kind:
            case "text":
                block.citations = as_list(given.get("citations")).copy()
                return self._add_text(block, given.get("text"))
            case "thinking":
                block.signature = as_text(given.get("signature"))
                return self._add_text(block, given.get("thinking"))
            case "tool_use":
                given["id"] = self._call_id(given)
                return [CallStart(given["id"], as_text(given.get("name")))]
            case "fallback":
                before, after = (as_text(as_dict(given.get(side)).get("model")) for side in ("from", "to"))
                self._model = after or self._model
                return [StreamNote("fallback", f"{before} -> {after}")]
            case _:
                return []

    def _call_id(self, given: dict[str, Any]) -> str:
        """Return the id of a call. One that is missing or repeated is derived from all content of the reply so far."""
        id = as_text(given.get("id"))
        if not id or id in self._ids:
            if not self._seed:
                said = "".join([words for block in self._blocks for words in block.written])
                self._seed = f"{self._id} {self._usage} {said} {given}"
            id = derive_call_id(self._seed, str(len(self._blocks)))
        self._ids.add(id)
        return id

    def _on_block_delta(self, event: dict[str, Any]) -> list[StreamEvent]:
        delta, index = as_dict(event.get("delta")), event.get("index")
        kind = delta.get("type")
        begun = _BLOCK_OF_DELTA.get(as_text(kind), "")
        if delta.get(begun) and type(index) is int and index not in self._seen:  # some servers never announce a block
            self._on_block_start({"index": index, "content_block": {"type": begun}})
        block = self._open.get(index) if type(index) is int else None
        if block is None:
            return self._ignore()
        if kind == "text_delta" and block.kind == "text":
            return self._add_text(block, delta.get("text"))
        if kind == "thinking_delta" and block.kind == "thinking":
            return self._add_text(block, delta.get("thinking"))
        if kind == "input_json_delta" and block.kind not in {"text", "thinking"}:
            return self._add_text(block, delta.get("partial_json"))
        if kind == "signature_delta" and block.kind == "thinking":
            block.signature = as_text(delta.get("signature"))
        elif kind == "citations_delta" and block.kind == "text":
            block.citations.append(delta.get("citation"))
        elif block.kind not in {"text", "thinking", "tool_use"}:
            _grow_unknown_block(block, delta)
        else:
            self.ignored += 1
        return []

    def _add_text(self, block: _AnthropicBlock, words: Any) -> list[StreamEvent]:  # noqa: ANN401  any JSON value
        if not isinstance(words, str):
            return []
        if self._joiner.active:
            words = self._joiner.join(block, words)
        if not words:
            return []
        block.written.append(words)
        if block.kind == "text":
            return [TextChunk(words)]
        if block.kind == "thinking":
            return [ReasoningChunk(words)]
        return [CallChunk(block.given["id"], words)] if block.kind == "tool_use" else []

    def _on_block_stop(self, event: dict[str, Any]) -> list[StreamEvent]:
        index = event.get("index")
        block = self._open.pop(index, None) if type(index) is int else None
        if block is None:
            return self._ignore()
        block.ended = True
        events = self._add_text(block, self._joiner.flush(block))
        if block.kind == "tool_use":
            events.append(CallEnd(self._call(block)))
        return events

    def _on_message_stop(self) -> list[StreamEvent]:
        if not self._started:
            return self._ignore()
        if len(self._seen) == len(self._blocks):  # blocks may begin out of order
            self._blocks.sort(key=lambda block: block.index)
        # Without a stop reason, an open call is incomplete and must not run.
        growing = [block for block in self._blocks if not block.ended]
        self._done = bool(self._stop) or not any(block.kind == "tool_use" for block in growing)
        self.paused = self._stop in _PAUSE_REASONS and not any(block.kind == "tool_use" for block in self._blocks)
        events: list[StreamEvent] = []
        for block in growing:
            events += self._add_text(block, self._joiner.flush(block))
            if self._done and block.kind == "tool_use":
                events.append(CallEnd(self._call(block)))
        if self._stop == "refusal":
            events.append(TextChunk(_refusal_text(self._details)))
        return events

    def _read_ending(self, fields: dict[str, Any]) -> None:
        self._stop = as_text(fields.get("stop_reason")) or self._stop
        self._details = as_dict(fields.get("stop_details")) or self._details
        self._container = as_text(as_dict(fields.get("container")).get("id")) or self._container

    def _update_usage(self, usage: Any) -> list[StreamEvent]:  # noqa: ANN401  any JSON value
        """Merge counters, which are totals."""
        news = {name: count for name, count in as_dict(usage).items() if count is not None}
        if not news:
            return []
        self._usage = {**self._usage, **news}
        self.passes = _model_passes(self._usage)
        return [StreamUsage(_usage(self._usage))]

    def _parts(self, block: _AnthropicBlock) -> list[Part]:
        words = "".join(block.written)
        if block.kind == "text":
            if not words:
                return []
            citations = self._joiner.repair(block.citations)
            return [Text(words), Reasoning("", {"citations": citations}, self._route)] if citations else [Text(words)]
        if block.kind == "thinking":
            if block.signature or (words and "unsigned_thinking" in self._flags):
                return [Reasoning(words, {"signature": block.signature}, self._route)]
            return [Reasoning(words)] if words else []
        if block.kind == "tool_use":
            return [self._call(block)]
        if words:
            arguments, malformed = parse_arguments(words)
            block.given["input"] = {"invalid_json": malformed} if arguments is None else arguments
        block.given.update((name, "".join(pieces)) for name, pieces in block.grown.items())
        return [Reasoning("", self._joiner.repair(block.given), self._route)]

    def _call(self, block: _AnthropicBlock) -> ToolCall:
        given = block.given
        words = "".join(block.written)
        arguments, malformed = (
            parse_arguments(words) if words else arguments_from_value(self._joiner.repair(given.get("input")))
        )
        is_cut = not block.ended or (self._stop in _FINISHES and block is self._blocks[-1])
        if not words and not arguments and is_cut:
            arguments, malformed = None, malformed or ""  # the reply was cut off before they came
        replay = None
        caller = as_dict(given.get("caller"))
        if caller and caller.get("type") != "direct":
            replay = {"caller": caller} | ({"container": self._container} if self._container else {})
        route = None if replay is None else self._route
        return ToolCall(given["id"], as_text(given.get("name")), arguments, malformed, replay, route)


def drop_unanswered_tool_uses(parts: Sequence[Part]) -> list[Part]:
    """Drop uses of the provider's own tools without a result, which the provider refuses in a finished turn."""
    answered = {_opaque_field(part, "tool_use_id") for part in parts}
    return [
        part
        for part in parts
        if not _opaque_field(part, "type").endswith("tool_use") or _opaque_field(part, "id") in answered
    ]


def _opaque_field(part: Part, name: str) -> str:
    return as_text(as_dict(part.replay).get(name)) if type(part) is Reasoning else ""


def _grow_unknown_block(block: _AnthropicBlock, delta: dict[str, Any]) -> None:
    """Apply a delta to an unknown block: texts and lists grow, other fields are replaced."""
    for name, value in delta.items():
        if name == "type":
            continue
        before = block.given.get(name)
        if isinstance(before, str) and isinstance(value, str):
            block.grown.setdefault(name, [before]).append(value)
        elif isinstance(before, list) and isinstance(value, list):
            cast("list[Any]", before).extend(cast("list[Any]", value))
        elif value is not None:
            block.given[name] = value
            block.grown.pop(name, None)


def _refusal_text(details: dict[str, Any]) -> str:
    said = as_text(details.get("explanation"))
    category = as_text(details.get("category"))
    return said or (f"declined: {category}" if category else "the model declined to answer")


def _usage(raw: dict[str, Any]) -> Usage:
    """Add up all model runs behind a message. The provider's own totals leave out some of them."""
    total = _counters(raw)
    runs = sum((run.usage for run in _model_passes(raw)), Usage())
    return Usage(
        input=max(total.input, runs.input),
        output=max(total.output, runs.output),
        cache_read=max(total.cache_read, runs.cache_read),
        cache_write=max(total.cache_write, runs.cache_write),
        reasoning=token_count(as_dict(raw.get("output_tokens_details")).get("thinking_tokens")),
    )


def _model_passes(raw: dict[str, Any]) -> tuple[ModelPass, ...]:
    """Read the field ``iterations``, if it has more than one entry."""
    runs = [as_dict(item) for item in as_list(raw.get("iterations"))]
    found = [ModelPass(_counters(run), as_text(run.get("model"))) for run in runs if run]
    return tuple(found) if len(found) > 1 else ()


def _counters(raw: dict[str, Any]) -> Usage:
    return Usage(
        input=token_count(raw.get("input_tokens")),
        output=token_count(raw.get("output_tokens")),
        cache_read=token_count(raw.get("cache_read_input_tokens")),
        cache_write=token_count(raw.get("cache_creation_input_tokens")),
    )


# ---- errors ----

_KINDS: Final = {
    "invalid_request_error": "bad_request",
    "authentication_error": "authentication",
    "billing_error": "billing",
    "permission_error": "permission",
    "not_found_error": "not_found",
    "exceed_context_size_error": "context_overflow",
    "request_too_large": "context_overflow",
    "rate_limit_error": "rate_limited",
    "api_error": "server_error",
    "timeout_error": "timeout",
    "overloaded_error": "overloaded",
}
_FINAL_STATUSES: Final = frozenset((400, 401, 402, 403, 404, 413, 422))
_KINDS_BY_MESSAGE: Final = (
    (re.compile("content filtering policy", re.IGNORECASE), "content_filter"),
    (re.compile("credit balance", re.IGNORECASE), "billing"),
)
_KEY: Final = re.compile(r"\bsk-[A-Za-z0-9_-]{8}[^\s\"'`<>()\[\]{},;]*")
"""A key to its end: the redactor would not find the rest of a key that is replaced in part."""


def classify_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """Turn an error response into a `ModelError`."""
    answer = as_dict(parse_error_body(body))
    error = as_dict(answer.get("error"))
    message = as_text(error.get("message")) or as_text(answer.get("error"))
    message = message or " ".join(body[:400].decode("utf-8", "replace").split())
    kind = _KINDS.get(as_text(error.get("type"))) or kind_of_status(status)
    made = _make(kind, message or f"HTTP {status}", status)
    if status in _FINAL_STATUSES:
        made.retryable = False
    made.request_id = as_text(answer.get("request_id")) or None
    return add_response_headers(made, headers, delay_from_message(message))


def classify_stream_error(event: dict[str, Any]) -> ModelError:
    """Turn an error inside a response into a `ModelError`."""
    error = as_dict(event.get("error"))
    message = as_text(error.get("message")) or as_text(event.get("error")) or "the provider reports an error"
    code = error.get("code")
    kind = kind_of_status(code) if type(code) is int and 400 <= code < 600 else "server_error"
    made = _make(_KINDS.get(as_text(error.get("type")), kind), message, None)
    made.request_id = as_text(event.get("request_id")) or None
    made.retry_after = delay_from_message(message)
    return made


def _make(kind: str, message: str, status: int | None) -> ModelError:
    message = clip_text(_KEY.sub("sk-...", message))
    if kind in {"bad_request", "server_error"}:
        known = next((better for pattern, better in _KINDS_BY_MESSAGE if pattern.search(message)), kind)
        kind = "context_overflow" if reports_overflow(message) else known
    return make_error(kind, message, status=status, in_stream=status is None)
