"""Responses of the Responses dialect: items begin, grow and end, and a last frame ends the response. Pure."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, cast

import msgspec

from holdfast.errors import ModelError, StreamCut
from holdfast.messages import (
    CallChunk,
    CallEnd,
    CallStart,
    ModelReply,
    Reasoning,
    ReasoningChunk,
    Refusal,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolCall,
    Usage,
)
from holdfast.models.dialect import (
    JSON_ERRORS,
    SurrogateJoiner,
    as_dict,
    as_text,
    clip_text,
    derive_call_id,
    encode_json,
    parse_arguments,
    parse_json,
    repair_surrogates,
    token_count,
    unix_seconds,
)
from holdfast.models.responses.errors import classify_stream_error
from holdfast.models.responses.request import item_in, items_in, omit_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.messages import FinishReason, ModelPass, Part, StreamEvent
    from holdfast.models.dialect import Endpoint, Frame
    from holdfast.models.responses.request import Item

MAX_ITEMS: Final = 4_096
"""Most items of a reply."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest reply, in bytes of its items."""
_GROWING: Final = frozenset(("delta",))
"""Fields whose text goes on in later frames."""
_ERRORS: Final = frozenset(("error", "response.error"))
_NOTHING: Final = frozenset((b"", b"[DONE]"))
_TERMINAL: Final[Mapping[str, str]] = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
Key: TypeAlias = int | str | None
"""Identifies an item: its index in the reply, or its id if a server sends no index."""
Piece: TypeAlias = tuple[str, int]
"""Identifies a text of an item: ``text``, ``refusal``, ``summary``, ``thought`` or ``arguments``, and its index."""
_ARGUMENTS: Final[Piece] = ("arguments", 0)


class _ResponsesEvent(msgspec.Struct, gc=False):
    """A frame. Nothing has a type here: a frame of tomorrow must not fail for a field of today."""

    type: Any = None
    delta: Any = None
    text: Any = None
    refusal: Any = None
    arguments: Any = None
    item: Any = None
    part: Any = None
    item_id: Any = None
    output_index: Any = None
    content_index: Any = None
    summary_index: Any = None
    response: msgspec.Raw = msgspec.Raw()
    error: Any = None
    code: Any = None
    message: Any = None


_event: Final = msgspec.json.Decoder(_ResponsesEvent).decode


class ResponsesReader:
    """One response that is being read."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.ignored = 0
        self.paused = False
        self._endpoint = endpoint
        self._model = model
        self._route = endpoint.route(model)
        self._started = False
        self._seed: tuple[str, ...] = ()
        """Id and date of the response: the seed of call ids."""
        self._size = 0
        self._begun: dict[Key, Item] = {}
        """Items as they were announced."""
        self._done: dict[Key, Item] = {}
        self._calls: dict[Key, str] = {}
        """Ids of announced calls."""
        self._ended: set[Key] = set()
        """Calls whose end was announced."""
        self._ids: set[str] = set()
        self._pieces = TextPieces()
        self._joiner = SurrogateJoiner(_GROWING)
        self._thought: tuple[Any, ...] | None = None
        """The reasoning text that was streamed last."""
        self._reply: ModelReply | None = None

    @property
    def passes(self) -> tuple[ModelPass, ...]:
        """Providers of this dialect never report more than one run."""
        return ()

    @property
    def complete(self) -> bool:
        """True if the terminal frame has come."""
        return self._reply is not None

    def feed(self, frame: Frame) -> list[StreamEvent]:
        """Translate a frame. Raises a `ModelError` if the frame reports an error."""
        if self._reply is not None or (frame.data[:1] != b"{" and frame.data.strip() in _NOTHING):
            self.ignored += 1
            return []
        event = self._read(frame.data)
        kind = event.type if isinstance(event.type, str) else frame.event
        status = _TERMINAL.get(kind)
        if status is not None:
            response = parse_response(event.response) if bytes(event.response) else ResponseBody(error=event.error)
            return self._end(response, _final_status(response, status))
        step = self._STEPS.get(kind)
        if step is not None:
            return step(self, event, len(frame.data))
        if kind in _ERRORS or (not kind and (event.error or event.code)):
            raise classify_stream_error(event.error or {"code": event.code, "message": event.message})
        # Progress of an item may be skipped: the finished item has it all.
        self.ignored += event.item_id is None and event.output_index is None
        return []

    def finish(self) -> ModelReply:
        """Return the whole reply. Raises `StreamCut` if the terminal frame has not come."""
        if self._reply is None:
            raise StreamCut(f"{self._endpoint.provider}:{self._model}")
        return self._reply

    def read_body(self, body: bytes) -> ModelReply:
        """Return the reply in a body that is not a stream."""
        response = parse_response(body)
        self._end(response, status_of(response))
        return self.finish()

    def _read(self, data: bytes) -> _ResponsesEvent:
        try:
            return _event(data)
        except JSON_ERRORS:
            pass
        fields = self._joiner.parse_leniently(data)
        delta = as_dict(fields).pop("delta", None)
        try:
            event = _event(encode_json(repair_surrogates(fields)))
        except JSON_ERRORS as error:
            message = f"a frame can't be read: {clip_text(error, 200)}"
            raise ModelError(message, kind="bad_frame", retryable=True) from None
        event.delta = delta
        return event

    def _start(self, event: _ResponsesEvent, _size: int) -> list[StreamEvent]:
        if self._started or not bytes(event.response):
            return []
        self._started = True
        response = parse_response(event.response)
        self._note_seed(response)
        return [StreamStart(model_of(response, self._model))]

    def _note_seed(self, response: ResponseBody) -> None:
        told = (as_text(response.id), str(unix_seconds(response.created_at) or ""))
        self._seed = self._seed or (told if any(told) else ())

    def _text(self, event: _ResponsesEvent, _size: int) -> list[StreamEvent]:
        text = self._extend(event, ("text", _index(event.content_index)), event.delta)
        return [TextChunk(text)] if text else []

    def _text_done(self, event: _ResponsesEvent, _size: int) -> list[StreamEvent]:
        text = self._finish_text(event, ("text", _index(event.content_index)), event.text)
        return [TextChunk(text)] if text else []

    def _part_done(self, event: _ResponsesEvent, size: int) -> list[StreamEvent]:
        """Read a whole text; some servers send no deltas."""
        part = as_dict(event.part)
        event.text, event.refusal = part.get("text"), part.get("refusal")
        match part.get("type"):
            case "output_text":
                return self._text_done(event, size)
            case "refusal":
                return self._refusal_done(event, size)
            case "summary_text" | "reasoning_text":
                return self._thinking_done(event, size)
            case _:
                return []

    def _refusal(self, event: _ResponsesEvent, _size: int) -> list[StreamEvent]:
        text = self._extend(event, ("refusal", _index(event.content_index)), event.delta)
        return [TextChunk(text)] if text else []

    def _refusal_done(self, event: _ResponsesEvent, _size: int) -> list[StreamEvent]:
        text = self._finish_text(event, ("refusal", _index(event.content_index)), event.refusal)
        return [TextChunk(text)] if text else []

    def _thinking(self, event: _ResponsesEvent, _size: int) -> list[StreamEvent]:
        return self._think(event, self._extend(event, _thought_piece(event), event.delta))

    def _thinking_done(self, event: _ResponsesEvent, _size: int) -> list[StreamEvent]:
        return self._think(event, self._finish_text(event, _thought_piece(event), event.text))

    def _think(self, event: _ResponsesEvent, text: str) -> list[StreamEvent]:
        if not text:
            return []
        place = (_key(event), *_thought_piece(event))
        before, self._thought = self._thought, place
        apart = before is not None and before != place and before[0] == place[0]
        return [ReasoningChunk("\n\n"), ReasoningChunk(text)] if apart else [ReasoningChunk(text)]

    def _arguments(self, event: _ResponsesEvent, _size: int) -> list[StreamEvent]:
        return self._called(event, self._extend(event, _ARGUMENTS, event.delta))

    def _arguments_done(self, event: _ResponsesEvent, _size: int) -> list[StreamEvent]:
        return self._called(event, self._finish_text(event, _ARGUMENTS, event.arguments))

    def _called(self, event: _ResponsesEvent, text: str) -> list[StreamEvent]:
        call = self._calls.get(_key(event)) if text else None
        return [CallChunk(call, text)] if call else []

    def _item_added(self, event: _ResponsesEvent, _size: int) -> list[StreamEvent]:
        item = item_in(event.item)
        if item is None:
            self.ignored += 1
            return []
        key = _key(event)
        self._check_size(0)
        self._begun[key] = item
        return self._call_start(key, item) if item["type"] == "function_call" else []

    def _item_done(self, event: _ResponsesEvent, size: int) -> list[StreamEvent]:
        item = item_in(event.item)
        if item is None:
            self.ignored += 1
            return []
        key = _key(event)
        item = self._pieces.complete(key, item, self._joiner)
        self._check_size(size - self._pieces.clear(key, item))  # they are part of the item
        if key is None:
            key = f"#{len(self._done)}"
        self._done[key] = item
        return self._finish_item(key, item)

    def _end(self, response: ResponseBody, status: str) -> list[StreamEvent]:
        """Read the terminal frame, or a body that is not a stream."""
        items = self._items(items_in(response.output), status)
        if status == "completed" and len(items) < len(self._begun):
            raise ModelError("an item of the reply was begun and never came", kind="bad_frame", retryable=True)
        self._note_seed(response)
        self._seed = self._seed or (fingerprint(items, response),)
        if status == "incomplete" and items and _lacks_arguments(items[-1][1]):
            items[-1][1]["status"] = "incomplete"  # the limit came before the arguments
        events: list[StreamEvent] = []
        for key, item in items:
            events += self._finish_item(key, item)
        self._reply = build_reply(response, status, [item for _, item in items], self._endpoint, self._model)
        self._done.clear()
        self._begun.clear()
        self._pieces = TextPieces()
        events.append(StreamUsage(self._reply.usage))
        return events

    def _items(self, told: list[Item], status: str) -> list[tuple[Key, Item]]:
        """Return the items of the reply: finished ones, else those of the terminal frame, else those made of pieces.

        The terminal frame repeats the items, but encrypts reasoning anew, and clients send back the first form. Some
        servers leave the items out of the terminal frame, or never finish them.
        """
        if all(isinstance(key, int) for key in self._done):
            found: dict[Key, Item] = {**dict(enumerate(told)), **self._done}
        elif len(told) > len(self._done):
            found = {as_text(item.get("id")) or f"#{place}": item for place, item in enumerate(told)}
        else:
            found = dict(self._done)
        found |= self._pieces.missing_items(self._begun, found, self._joiner, cut=status == "incomplete")
        if all(isinstance(key, int) for key in found):
            found = dict(sorted(found.items(), key=lambda pair: _index(pair[0])))
        return list(found.items())

    def _finish_item(self, key: Key, item: Item) -> list[StreamEvent]:
        """Return the events of a finished item that observers have not seen."""
        if item["type"] == "function_call":
            return self._call_end(key, item)
        if item["type"] == "message" and not self._pieces.has_any(key, item):
            words = message_texts(item)
            if words:
                self._pieces.pieces(key, ("text", 0))
            return [TextChunk(text) for _, text in words]
        return []

    def _call_start(self, key: Key, item: Item) -> list[StreamEvent]:
        """Announce a call, as soon as it has a unique id."""
        id = next((id for id in (item.get("call_id"), item.get("id")) if isinstance(id, str) and id), "")
        if not id or id in self._ids:
            if not self._seed:
                return []
            id = derive_call_id(*self._seed, str(key), str(len(self._ids)), as_text(item.get("name")))
        self._ids.add(id)
        self._calls[key] = id
        return [CallStart(id, as_text(item.get("name")))]

    def _call_end(self, key: Key, item: Item) -> list[StreamEvent]:
        if key in self._ended:
            item["call_id"] = self._calls[key]
            return []
        events: list[StreamEvent] = []
        if key not in self._calls:
            events += self._call_start(key, item)
            if not events:
                return []  # the terminal frame will bring a seed for the id
        item["call_id"] = self._calls[key]
        call = build_call(item, self._route)
        said = item.get("arguments")
        if events and isinstance(said, str) and said:
            events.append(CallChunk(call.id, said))
        self._ended.add(key)
        return [*events, CallEnd(call)]

    def _extend(self, event: _ResponsesEvent, piece: Piece, text: Any) -> str:  # noqa: ANN401  any JSON value
        """Add to a text; return the new characters."""
        if not isinstance(text, str) or not text:
            return ""
        key = _key(event)
        if self._joiner.active:
            text = self._joiner.join((key, piece), text)
        self._pieces.pieces(key, piece).append(text)
        self._size += len(text)
        if self._size > MAX_BYTES or self._pieces.count > MAX_ITEMS:
            raise _too_large()
        return text

    def _finish_text(self, event: _ResponsesEvent, piece: Piece, text: Any) -> str:  # noqa: ANN401  any JSON value
        """End a text; return what observers have not seen. Some servers send it at once, without deltas."""
        key = _key(event)
        if not self._pieces.has(key, piece):
            return self._extend(event, piece, text)
        rest = self._joiner.flush((key, piece))
        if rest:
            self._pieces.pieces(key, piece).append(rest)
        return rest

    def _check_size(self, size: int) -> None:
        self._size += size
        if self._size > MAX_BYTES or max(len(self._done), len(self._begun)) >= MAX_ITEMS:
            raise _too_large()

    _STEPS: ClassVar[Mapping[str, Callable[..., list[StreamEvent]]]] = {
        "response.created": _start,
        "response.queued": _start,
        "response.in_progress": _start,
        "response.output_text.delta": _text,
        "response.output_text.done": _text_done,
        "response.refusal.delta": _refusal,
        "response.refusal.done": _refusal_done,
        "response.reasoning_summary_text.delta": _thinking,
        "response.reasoning_summary_text.done": _thinking_done,
        "response.reasoning_text.delta": _thinking,
        "response.reasoning_text.done": _thinking_done,
        "response.function_call_arguments.delta": _arguments,
        "response.function_call_arguments.done": _arguments_done,
        "response.content_part.done": _part_done,
        "response.reasoning_summary_part.done": _part_done,
        "response.output_item.added": _item_added,
        "response.output_item.done": _item_done,
    }


def _final_status(response: ResponseBody, status: str) -> str:
    """Return the status of the response itself, if its frame says "completed" and it says otherwise."""
    told = as_text(response.status)
    return told if status == "completed" and told in _TERMINAL.values() else status


def _lacks_arguments(item: Item) -> bool:
    said = item.get("arguments")
    return item["type"] == "function_call" and (said is None or (isinstance(said, str) and not said.strip()))


def _key(event: _ResponsesEvent) -> Key:
    if type(event.output_index) is int:
        return event.output_index
    if isinstance(event.item_id, str):
        return event.item_id
    return as_text(as_dict(event.item).get("id")) or None


def _index(value: Any) -> int:  # noqa: ANN401  any JSON value
    return value if type(value) is int else 0


def _thought_piece(event: _ResponsesEvent) -> Piece:
    if type(event.summary_index) is int:
        return "summary", event.summary_index
    return "thought", _index(event.content_index)


def _too_large() -> ModelError:
    said = f"the reply has more than {MAX_ITEMS:,} items or texts, or {MAX_BYTES:,} bytes"
    return ModelError(said, kind="bad_frame")


# ---- the pieces of texts ----


class TextPieces:
    """Collects the pieces of all texts of a reply."""

    __slots__ = ("_kept", "count")

    def __init__(self) -> None:
        self._kept: dict[Key, dict[Piece, list[str]]] = {}
        self.count = 0
        """Number of texts."""

    def pieces(self, key: Key, piece: Piece) -> list[str]:
        """Return the list of a text's pieces."""
        try:
            return self._kept[key][piece]
        except KeyError:
            self.count += 1
            return self._kept.setdefault(key, {}).setdefault(piece, [])

    def has(self, key: Key, piece: Piece) -> bool:
        """True if a text has begun."""
        return piece in self._kept.get(key, ())

    def has_any(self, key: Key, item: Item) -> bool:
        """True if any text of an item has begun."""
        return any(self._texts(key, item))

    def clear(self, key: Key, item: Item) -> int:
        """Drop the pieces of a finished item; return their number of characters."""
        size = 0
        for texts in self._texts(key, item):
            for kept in texts.values():
                size += sum(map(len, kept))
                kept.clear()
        return size

    def complete(self, key: Key, item: Item, joiner: SurrogateJoiner) -> Item:
        """Fill a finished item that is empty from its pieces: some servers send it so."""
        said = {name: item.get(name) for name in ("content", "summary", "arguments")}
        if any(_has_text(value) for value in said.values()):
            return item
        grown = self._grown(key, item, joiner)
        return item if grown is None else {**item, **grown}

    def missing_items(
        self, begun: Mapping[Key, Item], found: Mapping[Key, Item], joiner: SurrogateJoiner, *, cut: bool
    ) -> dict[Key, Item]:
        """Build the items that are not `found` from their pieces: those that were `begun`, and unannounced ones.

        `cut`: a limit ended the reply, perhaps in the middle of an item.
        """
        ids = {as_text(item.get("id")) for item in found.values()} - {""}
        made: dict[Key, Item] = {}
        # If as many have come as were begun, none is missing, whatever their ids are.
        for key, item in begun.items() if len(found) < len(begun) else ():
            grown = None if key in found or as_text(item.get("id")) in ids else self._grown(key, item, joiner)
            if grown is not None:
                made[key] = {**item, **grown, "status": "incomplete" if cut else "completed"}
        ids |= {as_text(item.get("id")) for item in begun.values()}
        kinds = {item["type"] for item in (*found.values(), *made.values())}
        for key in [key for key in self._kept if key not in begun and key not in found and key not in ids]:
            for kind in [kind for kind in ("reasoning", "message") if kind not in kinds]:
                grown = self._grown(key, {"type": kind}, joiner)
                if grown is not None:
                    named = f"{kind} of {key}"
                    made[named] = {"type": kind, **grown}
                    self.pieces(named, ("text", 0))
        return made

    def _grown(self, key: Key, item: Item, joiner: SurrogateJoiner) -> Item | None:
        """Return the fields of an item that were streamed; None if there are none."""
        texts = {
            piece: "".join(kept) + joiner.flush((place, piece))
            for place in self._places(key, item)
            for piece, kept in sorted(self._kept[place].items())
        }
        match item["type"]:
            case "message":
                words = [*_parts(texts, "text", "output_text", "text"), *_parts(texts, "refusal", "refusal", "refusal")]
                return {"role": "assistant", "content": words} if words else None
            case "reasoning":
                summary = [*_parts(texts, "summary", "summary_text", "text")]
                content = [*_parts(texts, "thought", "reasoning_text", "text")]
                return {"summary": summary, "content": content} if summary or content else None
            case "function_call":
                arguments = texts.get(("arguments", 0))
                return {"arguments": arguments} if arguments else None
            case _:
                return None

    def _places(self, key: Key, item: Item) -> list[Key]:
        """Return the keys of an item: some servers send its index with the item, and its id with the pieces."""
        id = as_text(item.get("id"))
        return [place for place in dict.fromkeys((key, id or key)) if place in self._kept]

    def _texts(self, key: Key, item: Item) -> list[dict[Piece, list[str]]]:
        return [self._kept[place] for place in self._places(key, item)]


def _has_text(value: Any) -> bool:  # noqa: ANN401  any JSON value
    if isinstance(value, list):
        parts = [as_dict(part) for part in cast("list[Any]", value)]
        return any(part.get("text") or part.get("refusal") for part in parts)
    return bool(value)


def _parts(texts: Mapping[Piece, str], kind: str, type: str, field: str) -> Iterable[dict[str, Any]]:
    return ({"type": type, field: text} for (found, _), text in texts.items() if found == kind and text)


# ---- the response, and its items as parts ----


class ResponseBody(msgspec.Struct, gc=False):
    """A response without the request that it repeats."""

    id: Any = None
    created_at: Any = None
    model: Any = None
    status: Any = None
    output: Any = None
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None


_response: Final = msgspec.json.Decoder(ResponseBody).decode


def parse_response(data: bytes | msgspec.Raw) -> ResponseBody:
    """Parse a response."""
    raw = bytes(data)
    try:
        return _response(raw)
    except JSON_ERRORS:
        pass
    try:
        return msgspec.convert(parse_json(raw), ResponseBody)
    except JSON_ERRORS as error:
        message = f"a response can't be read: {clip_text(error, 200)}"
        raise ModelError(message, kind="bad_frame", retryable=True) from None


def fingerprint(items: Iterable[tuple[Any, Item]], response: ResponseBody) -> str:
    """Hash items and usage, to identify a response without an id."""
    try:
        said = encode_json([[item for _, item in items], response.usage])
    except JSON_ERRORS as error:
        message = f"a response can't be read: {clip_text(error, 200)}"
        raise ModelError(message, kind="bad_frame", retryable=True) from None
    return hashlib.sha256(said).hexdigest()


def model_of(response: ResponseBody, model: str) -> str:
    """Return the model that answered."""
    return response.model if isinstance(response.model, str) and response.model else model


def status_of(response: ResponseBody) -> str:
    """Return the status of a response that came as one body."""
    status = response.status
    if isinstance(status, str) and status:
        return status
    return "failed" if response.error else "in_progress"


def build_reply(response: ResponseBody, status: str, items: list[Item], endpoint: Endpoint, model: str) -> ModelReply:
    """Build the reply, or raise the error of a failed response."""
    if status == "failed":
        raise _with_usage(classify_stream_error(response.error), response)
    if status == "cancelled":
        cancelled = ModelError("the provider cancelled the response", kind="server_error", retryable=True)
        raise _with_usage(cancelled, response)
    if status not in {"completed", "incomplete"}:
        raise StreamCut(f"{endpoint.provider}:{model}")
    parts = _build_parts(items, endpoint.route(model))
    return ModelReply(
        parts,
        _finish_reason(response, status, parts),
        _usage(response.usage),
        model_of(response, model),
        cast("Item", response.usage) if isinstance(response.usage, dict) else None,
        response_id=response.id if isinstance(response.id, str) else None,
    )


def _with_usage(error: ModelError, response: ResponseBody) -> ModelError:
    used = _usage(response.usage)
    error.usage = used if used.total else None
    return error


def _finish_reason(response: ResponseBody, status: str, parts: tuple[Part, ...]) -> FinishReason:
    if status == "incomplete":
        details = response.incomplete_details
        reason = as_dict(details).get("reason")
        return "content_filter" if reason == "content_filter" else "output_limit"
    if any(type(part) is ToolCall for part in parts):
        return "tool_calls"
    return "refusal" if any(type(part) is Refusal for part in parts) else "stop"


def _usage(value: Any) -> Usage:  # noqa: ANN401  any JSON value
    usage = as_dict(value)
    asked, answered = as_dict(usage.get("input_tokens_details")), as_dict(usage.get("output_tokens_details"))
    read, written = token_count(asked.get("cached_tokens")), token_count(asked.get("cache_write_tokens"))
    return Usage(
        max(token_count(usage.get("input_tokens")) - read - written, 0),
        token_count(usage.get("output_tokens")),
        read,
        written,
        token_count(answered.get("reasoning_tokens")),
    )


def _build_parts(items: list[Item], route: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    for item in items:
        match item["type"]:
            case "message":
                parts += _message_parts(item, route)
            case "reasoning":
                parts.append(_reasoning_part(item, route))
            case "function_call":
                parts.append(build_call(item, route))
            case _:
                parts.append(Reasoning("", item, route))
    return tuple(parts)


def message_texts(item: Item) -> list[tuple[Item, str]]:
    """Return the texts of a message that are not empty, each with its content."""
    found = [
        (content, content.get("refusal" if content["type"] == "refusal" else "text"))
        for content in items_in(item.get("content"))
    ]
    return [(content, text) for content, text in found if isinstance(text, str) and text]


def _message_parts(item: Item, route: str) -> list[Part]:
    found = message_texts(item)
    words: list[Part] = [Refusal(text) if content["type"] == "refusal" else Text(text) for content, text in found]
    frames = [omit_fields(content, ("text", "refusal", "logprobs")) for content, _ in found]
    frame = {name: value for name, value in item.items() if name not in {"role", "content"} and value is not None}
    # A message without id and annotations consists of its texts alone.
    if frame.keys() <= {"type", "status"} and not any(any(omit_fields(noted, ("type",)).values()) for noted in frames):
        return words
    return [Reasoning("", {**frame, "content": frames}, route), *words]


def _reasoning_part(item: Item, route: str) -> Reasoning:
    told = [part.get("text") for part in items_in(item.get("summary")) + items_in(item.get("content"))]
    # The API sends status and empty content, and refuses them.
    kept = {name: value for name, value in item.items() if value is not None and name != "status"}
    if not kept.get("content"):
        kept.pop("content", None)
    kept.setdefault("summary", [])
    return Reasoning("\n\n".join([text for text in told if isinstance(text, str) and text]), kept, route)


def build_call(item: Item, route: str) -> ToolCall:
    """Build the call of an item, which must have a call_id."""
    name = item.get("name")
    said = item.get("arguments")
    arguments, malformed = _read_arguments(said, cut=item.get("status") == "incomplete")
    more = {
        name: value
        for name, value in item.items()
        if value is not None and name not in {"type", "call_id", "name", "arguments", "status"}
    }
    return ToolCall(
        item["call_id"],
        name if isinstance(name, str) else "",
        arguments,
        malformed,
        more or None,
        route if more else None,
    )


def _read_arguments(said: Any, *, cut: bool) -> tuple[dict[str, Any] | None, str | None]:  # noqa: ANN401  any JSON value
    """Parse the arguments of a call. Empty means none, unless the reply was `cut` off there."""
    if isinstance(said, dict):  # some servers send the object itself
        return cast("Item", said), None
    if said is not None and not isinstance(said, str):
        return None, clip_text(encode_json(said).decode())
    text = said or ""
    return (None, text) if cut and not text.strip() else parse_arguments(text)
