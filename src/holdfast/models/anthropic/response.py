"""A reply as it is read: frames become neutral events, and at the end a whole reply. Pure."""

from __future__ import annotations

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
from holdfast.models.anthropic.errors import classify_stream_error
from holdfast.models.dialect import (
    SurrogateJoiner,
    arguments_from_value,
    as_dict,
    as_list,
    as_text,
    derive_call_id,
    parse_arguments,
    parse_json,
    token_count,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.messages import FinishReason, Part, StreamEvent
    from holdfast.models.dialect import Endpoint, Frame


MAX_REPLY: Final = 64 * 1024 * 1024
"""Longest reply, in bytes of its frames."""
_FINISHES: Final[dict[str, FinishReason]] = {
    "max_tokens": "output_limit",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_overflow",
}
_PAUSES: Final = frozenset(("pause_turn", "compaction"))
_CUTS: Final = frozenset(_FINISHES)
_BEGUN_BY: Final = {"text_delta": "text", "thinking_delta": "thinking"}
"""The kinds of blocks that need no announcement to be understood."""
_GROWING: Final = frozenset(("text", "thinking", "partial_json", "content"))
"""Fields whose text goes on in later frames."""


class _Block:
    """A block while it grows."""

    __slots__ = ("citations", "ended", "given", "grown", "index", "kind", "signature", "written")

    def __init__(self, index: int, kind: str, given: dict[str, Any]) -> None:
        self.index = index
        self.kind = kind
        self.given = given
        self.written: list[str] = []
        self.grown: dict[str, list[str]] = {}
        """Texts of a block that nobody here understands, in their pieces."""
        self.citations: list[Any] = []
        self.signature = ""
        self.ended = False


class AnthropicReader:
    """The state of one response that is being read.

    `paused`: the provider stopped in the middle of its own work and goes on when the parts so far are sent back as the
    last message. The reply then says ``stop``, for want of a neutral word.
    """

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.ignored = 0
        self.paused = False
        self._name = f"{endpoint.provider}:{model}"
        self._route = endpoint.route(model)
        self._unsigned = "unsigned_thinking" in endpoint.flags
        self._joiner = SurrogateJoiner(_GROWING)
        self._size = 0
        self._started = False
        self._early = False
        """Blocks came before the message that they are part of."""
        self._done = False
        self._begin_again()

    def _begin_again(self) -> None:
        self._id = self._model = self._stop = self._container = ""
        self._details: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: list[_Block] = []
        self._open: dict[int, _Block] = {}
        self._seen: set[int] = set()
        """The places of all blocks."""
        self._ids: set[str] = set()
        """Of the calls."""
        self._seed = ""
        """For ids of calls that have none of their own."""

    @property
    def passes(self) -> tuple[ModelPass, ...]:
        """Each run of a model behind the message, where there were several."""
        return model_passes(self._usage) if "iterations" in self._usage else ()

    @property
    def complete(self) -> bool:
        """Whether the message is over."""
        return self._done

    def feed(self, frame: Frame) -> list[StreamEvent]:  # noqa: PLR0911  one for each kind of frame
        """Translate a frame. Raises a `ModelError` if the frame reports an error."""
        data = frame.data
        self._size += len(data)
        if self._size > MAX_REPLY:
            raise ModelError(f"the reply of {self._name} is longer than {MAX_REPLY:,} bytes", kind="bad_frame")
        if self._done or not data or data.isspace() or data == b"[DONE]":
            self.ignored += 1
            return []
        came = self._joiner.parse(data)
        if not isinstance(came, dict):
            raise _no_message("the provider sent JSON that is no object")
        event = cast("dict[str, Any]", came)
        kind = as_text(event.get("type")) or frame.event
        match kind:
            case "content_block_delta":
                return self._grown(event)
            case "content_block_start":
                return self._on_block(event)
            case "content_block_stop":
                return self._on_block_end(event)
            case "message_start":
                return self._on_start(event)
            case "message_delta":
                return self._on_delta(event)
            case "message_stop":
                return self._on_stop()
            case "ping":
                return []
            case _:
                if kind == "error" or event.get("error"):
                    raise classify_stream_error(event)
                self.ignored += 1
                return []

    def finish(self) -> ModelReply:
        """Return the whole reply. Raises `StreamCut` if the terminal frame has not come."""
        if not self._done:
            raise StreamCut(self._name)
        parts = [part for block in self._blocks for part in self._parts(block)]
        calls = any(type(part) is ToolCall for part in parts)
        finish = _FINISHES.get(self._stop) or ("tool_calls" if calls else "stop")
        if finish == "refusal":
            parts.append(Refusal(_declined(self._details)))
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
            raise _no_message("the provider's answer is no message")
        self._on_start({"message": message})
        self._ended(message)
        if not self._stop and any(block.kind == "tool_use" for block in self._blocks):
            raise StreamCut(self._name)  # nobody says that these are all its calls, and all of them
        self._on_stop()
        return self.finish()

    # ---- frames ----

    def _on_start(self, event: dict[str, Any]) -> list[StreamEvent]:
        message = as_dict(event.get("message"))
        events: list[StreamEvent] = []
        if self._started and not self._early:
            if message.get("id") == self._id:  # some gateways say it twice
                self.ignored += 1
                return []
            # A gateway lost the reply it was passing on, asked again, and goes on in the same response.
            events.append(StreamReset("the provider began its reply anew"))
            self._begin_again()
        self._started, self._early = True, False
        self._id, self._model = as_text(message.get("id")), as_text(message.get("model"))
        events.append(StreamStart(self._model))
        events += self._counted(message.get("usage"))
        for index, block in enumerate(as_list(message.get("content"))):
            events += self._on_block({"index": index, "content_block": block})
            events += self._on_block_end({"index": index})
        return events

    def _on_block(self, event: dict[str, Any]) -> list[StreamEvent]:
        given, index = as_dict(event.get("content_block")), event.get("index")
        kind = as_text(given.get("type"))
        if type(index) is not int or not kind:
            self.ignored += 1
            return []
        self._early = self._early or not self._started  # some gateways begin their message late, or never
        self._started = True
        block = _Block(index, kind, given)
        self._blocks.append(block)
        self._open[index] = block
        self._seen.add(index)
        if kind == "text":
            block.citations = as_list(given.get("citations")).copy()
            return self._wrote(block, given.get("text"))
        if kind == "thinking":
            block.signature = as_text(given.get("signature"))
            return self._wrote(block, given.get("thinking"))
        if kind == "tool_use":
            given["id"] = self._call_id(given)
            return [CallStart(given["id"], as_text(given.get("name")))]
        if kind == "fallback":
            before, after = (as_text(as_dict(given.get(side)).get("model")) for side in ("from", "to"))
            self._model = after or self._model
            return [StreamNote("fallback", f"{before} -> {after}")]
        return []

    def _call_id(self, given: dict[str, Any]) -> str:
        """What pairs a call with its result. One that is missing, or was there already, is made up, the same each time.

        Another reply must not come to the same one, so all that has come of this one goes into it.
        """
        id = as_text(given.get("id"))
        if not id or id in self._ids:
            if not self._seed:
                said = "".join([words for block in self._blocks for words in block.written])
                self._seed = f"{self._id} {self._usage} {said} {given}"
            id = derive_call_id(self._seed, str(len(self._blocks)))
        self._ids.add(id)
        return id

    def _grown(self, event: dict[str, Any]) -> list[StreamEvent]:
        delta, index = as_dict(event.get("delta")), event.get("index")
        kind = delta.get("type")
        begun = _BEGUN_BY.get(as_text(kind), "")
        if delta.get(begun) and type(index) is int and index not in self._seen:  # some never announce a block
            self._on_block({"index": index, "content_block": {"type": begun}})
        block = self._open.get(index) if type(index) is int else None
        if block is None:
            self.ignored += 1
            return []
        if kind == "text_delta" and block.kind == "text":
            return self._wrote(block, delta.get("text"))
        if kind == "thinking_delta" and block.kind == "thinking":
            return self._wrote(block, delta.get("thinking"))
        if kind == "input_json_delta" and block.kind not in {"text", "thinking"}:
            return self._wrote(block, delta.get("partial_json"))
        if kind == "signature_delta" and block.kind == "thinking":
            block.signature = as_text(delta.get("signature"))
        elif kind == "citations_delta" and block.kind == "text":
            block.citations.append(delta.get("citation"))
        elif block.kind not in {"text", "thinking", "tool_use"}:
            _merge(block, delta)
        else:
            self.ignored += 1
        return []

    def _wrote(self, block: _Block, words: Any) -> list[StreamEvent]:  # noqa: ANN401  any JSON value
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

    def _on_block_end(self, event: dict[str, Any]) -> list[StreamEvent]:
        index = event.get("index")
        block = self._open.pop(index, None) if type(index) is int else None
        if block is None:
            self.ignored += 1
            return []
        block.ended = True
        events = self._rest(block)
        if block.kind == "tool_use":
            events.append(CallEnd(self._call(block)))
        return events

    def _rest(self, block: _Block) -> list[StreamEvent]:
        """What is held back of a block that grows no more."""
        return self._wrote(block, self._joiner.flush(block))

    def _on_delta(self, event: dict[str, Any]) -> list[StreamEvent]:
        if not self._started:
            self.ignored += 1
            return []
        self._ended(as_dict(event.get("delta")))
        return self._counted(event.get("usage"))

    def _on_stop(self) -> list[StreamEvent]:
        if not self._started:
            self.ignored += 1
            return []
        if len(self._seen) == len(self._blocks):  # the order in which they began is not the one in which they stand
            self._blocks.sort(key=_place)
        # A call that was begun and not ended, in a reply without a reason to stop, is not whole: it must not run.
        growing = [block for block in self._blocks if not block.ended]
        self._done = bool(self._stop) or not any(block.kind == "tool_use" for block in growing)
        self.paused = self._stop in _PAUSES and not any(block.kind == "tool_use" for block in self._blocks)
        events: list[StreamEvent] = []
        for block in growing:
            events += self._rest(block)
            if self._done and block.kind == "tool_use":
                events.append(CallEnd(self._call(block)))
        if self._stop == "refusal":
            events.append(TextChunk(_declined(self._details)))
        return events

    def _ended(self, told: dict[str, Any]) -> None:
        self._stop = as_text(told.get("stop_reason")) or self._stop
        self._details = as_dict(told.get("stop_details")) or self._details
        self._container = as_text(as_dict(told.get("container")).get("id")) or self._container

    def _counted(self, usage: Any) -> list[StreamEvent]:  # noqa: ANN401  any JSON value
        """Counters are totals: the newest that says something counts."""
        news = {name: count for name, count in as_dict(usage).items() if count is not None}
        if not news:
            return []
        self._usage = {**self._usage, **news}
        return [StreamUsage(_usage(self._usage))]

    # ---- parts ----

    def _parts(self, block: _Block) -> list[Part]:
        words = "".join(block.written)
        if block.kind == "text":
            if not words:
                return []
            citations = self._joiner.repair(block.citations)
            cited: list[Part] = [self._opaque("", {"citations": citations})] if citations else []
            return [Text(words), *cited]
        if block.kind == "thinking":
            if block.signature or (self._unsigned and words):
                return [self._opaque(words, {"signature": block.signature})]
            return [Reasoning(words)] if words else []
        if block.kind == "tool_use":
            return [self._call(block)]
        if words:
            arguments, malformed = parse_arguments(words)
            block.given["input"] = {"invalid_json": malformed} if arguments is None else arguments
        block.given.update((name, "".join(pieces)) for name, pieces in block.grown.items())
        return [self._opaque("", self._joiner.repair(block.given))]

    def _opaque(self, words: str, replay: dict[str, Any]) -> Reasoning:
        return Reasoning(words, replay, self._route)

    def _call(self, block: _Block) -> ToolCall:
        given = block.given
        words = "".join(block.written)
        arguments, malformed = (
            parse_arguments(words) if words else arguments_from_value(self._joiner.repair(given.get("input")))
        )
        if not words and not arguments and self._is_cut(block):
            arguments, malformed = None, malformed or ""  # the reply was cut off before they came
        replay = None
        caller = as_dict(given.get("caller"))
        if caller and caller.get("type") != "direct":
            replay = {"caller": caller} | ({"container": self._container} if self._container else {})
        route = None if replay is None else self._route
        return ToolCall(given["id"], as_text(given.get("name")), arguments, malformed, replay, route)

    def _is_cut(self, block: _Block) -> bool:
        """Whether more of a block may have been to come: nobody ended it, or it is where the reply was cut off."""
        return not block.ended or (self._stop in _CUTS and block is self._blocks[-1])


def _place(block: _Block) -> int:
    return block.index


def drop_unanswered_tool_uses(parts: Sequence[Part]) -> list[Part]:
    """Parts of a reply that nobody goes on with: the provider refuses uses of its own tools that have no result."""
    answered = {_opaque_field(part, "tool_use_id") for part in parts}
    return [
        part
        for part in parts
        if not _opaque_field(part, "type").endswith("tool_use") or _opaque_field(part, "id") in answered
    ]


def _opaque_field(part: Part, name: str) -> str:
    return as_text(as_dict(part.replay).get(name)) if type(part) is Reasoning else ""


def _no_message(words: str) -> ModelError:
    return ModelError(words, kind="bad_frame", retryable=True)


def _merge(block: _Block, delta: dict[str, Any]) -> None:
    """Let a block that nobody here understands grow: words and lists at their end, the rest anew."""
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


def _declined(details: dict[str, Any]) -> str:
    said = as_text(details.get("explanation"))
    category = as_text(details.get("category"))
    return said or (f"declined: {category}" if category else "the model declined to answer")


def _usage(raw: dict[str, Any]) -> Usage:
    """All runs of models behind a message. The provider's own totals leave out some of them."""
    told, details = _counters(raw), as_dict(raw.get("output_tokens_details"))
    runs = sum((run.usage for run in model_passes(raw)), Usage())
    return Usage(
        input=max(told.input, runs.input),
        output=max(told.output, runs.output),
        cache_read=max(told.cache_read, runs.cache_read),
        cache_write=max(told.cache_write, runs.cache_write),
        reasoning=token_count(details.get("thinking_tokens")),
    )


def model_passes(raw: dict[str, Any]) -> tuple[ModelPass, ...]:
    """Each run of a model: the field ``iterations``, where there is more than one."""
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
