"""A response as it comes: items that are begun, grow and are done, and the frame that ends them all. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from holdfast.errors import ModelError, StreamCut
from holdfast.messages import (
    CallChunk,
    CallEnd,
    CallStart,
    ModelReply,
    ReasoningChunk,
    StreamStart,
    StreamUsage,
    TextChunk,
)
from holdfast.models.reading import UNREADABLE, Halves, made_id, mapping, moment, sound, worded
from holdfast.models.responses.errors import failure
from holdfast.models.responses.items import item_in, items_in
from holdfast.models.responses.pieces import Piece, Pieces
from holdfast.models.responses.replies import (
    Response,
    call_of,
    fingerprint,
    reply_of,
    response_in,
    served_by,
    status_of,
    words_in,
)
from holdfast.models.wire import bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.messages import ModelPass, StreamEvent
    from holdfast.models.responses.items import Item
    from holdfast.models.responses.pieces import Key
    from holdfast.models.wire import Endpoint, Frame

_GROWING: Final = frozenset(("delta",))
"""Fields whose text goes on in later frames."""
MAX_ITEMS: Final = 4_096
"""How many items a reply may have."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""How large the items of a reply may be, together."""

_encode: Final = msgspec.json.Encoder().encode


class _Event(msgspec.Struct, gc=False):
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


_event: Final = msgspec.json.Decoder(_Event).decode


class ResponsesFold:
    """One response that is being read."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.ignored = 0
        self.paused = False
        self._endpoint = endpoint
        self._model = model
        self._route = endpoint.route(model)
        self._started = False
        self._seed: tuple[str, ...] = ()
        """What no other response has: its id and its date."""
        self._size = 0
        self._begun: dict[Key, Item] = {}
        """Items that were announced, as they were then."""
        self._done: dict[Key, Item] = {}
        self._calls: dict[Key, str] = {}
        """The ids of calls that observers know of."""
        self._ended: set[Key] = set()
        """Calls that observers know to be whole."""
        self._ids: set[str] = set()
        self._pieces = Pieces()
        self._halves = Halves(_GROWING)
        self._thought: tuple[Any, ...] | None = None
        """The part of the reasoning that was streamed last."""
        self._reply: ModelReply | None = None

    @property
    def passes(self) -> tuple[ModelPass, ...]:
        """Nobody who speaks this dialect tells of more than one run of a model."""
        return ()

    @property
    def complete(self) -> bool:
        """Whether the frame that ends the response has come."""
        return self._reply is not None

    def feed(self, frame: Frame) -> list[StreamEvent]:
        """What a frame means. Raises a `ModelError` for an error that the provider puts into its stream."""
        if self._reply is not None or (frame.data[:1] != b"{" and frame.data.strip() in _NOTHING):
            self.ignored += 1
            return []
        event = self._read(frame.data)
        kind = event.type if isinstance(event.type, str) else frame.event
        status = _TERMINAL.get(kind)
        if status is not None:
            response = response_in(event.response) if bytes(event.response) else Response(error=event.error)
            return self._end(response, _said_inside(response, status))
        step = self._STEPS.get(kind)
        if step is not None:
            return step(self, event, len(frame.data))
        if kind in _ERRORS or (not kind and (event.error or event.code)):
            raise failure(event.error or {"code": event.code, "message": event.message}, None, {})
        # The progress of an item is told again, and in full, when the item is done.
        self.ignored += event.item_id is None and event.output_index is None
        return []

    def finish(self) -> ModelReply:
        """The whole reply; `StreamCut` when the frame that ends the response has not come."""
        if self._reply is None:
            raise StreamCut(f"{self._endpoint.provider}:{self._model}")
        return self._reply

    def whole(self, body: bytes) -> ModelReply:
        """The reply in a body that did not come as a stream."""
        response = response_in(body)
        self._end(response, status_of(response))
        return self.finish()

    def _read(self, data: bytes) -> _Event:
        try:
            return _event(data)
        except UNREADABLE:
            pass
        fields = self._halves.read_loosely(data)
        delta = mapping(fields).pop("delta", None)
        try:
            event = _event(_encode(sound(fields)))
        except UNREADABLE as error:
            message = f"a frame can't be read: {bounded(error, 200)}"
            raise ModelError(message, kind="bad_frame", retryable=True) from None
        event.delta = delta
        return event

    # ---- frames ----

    def _start(self, event: _Event, _size: int) -> list[StreamEvent]:
        if self._started or not bytes(event.response):
            return []
        self._started = True
        response = response_in(event.response)
        self._note(response)
        return [StreamStart(served_by(response, self._model))]

    def _note(self, response: Response) -> None:
        told = (worded(response.id), str(moment(response.created_at) or ""))
        self._seed = self._seed or (told if any(told) else ())

    def _text(self, event: _Event, _size: int) -> list[StreamEvent]:
        text = self._grown(event, ("text", _index(event.content_index)), event.delta)
        return [TextChunk(text)] if text else []

    def _text_done(self, event: _Event, _size: int) -> list[StreamEvent]:
        text = self._rest(event, ("text", _index(event.content_index)), event.text)
        return [TextChunk(text)] if text else []

    def _part_done(self, event: _Event, size: int) -> list[StreamEvent]:
        """A text that is whole; all that some servers tell of it."""
        part = mapping(event.part)
        event.text, event.refusal = part.get("text"), part.get("refusal")
        match part.get("type"):
            case "output_text":
                return self._text_done(event, size)
            case "refusal":
                return self._refused_done(event, size)
            case "summary_text" | "reasoning_text":
                return self._thinking_done(event, size)
            case _:
                return []

    def _refused(self, event: _Event, _size: int) -> list[StreamEvent]:
        text = self._grown(event, ("refusal", _index(event.content_index)), event.delta)
        return [TextChunk(text)] if text else []

    def _refused_done(self, event: _Event, _size: int) -> list[StreamEvent]:
        text = self._rest(event, ("refusal", _index(event.content_index)), event.refusal)
        return [TextChunk(text)] if text else []

    def _thinking(self, event: _Event, _size: int) -> list[StreamEvent]:
        return self._think(event, self._grown(event, _thought(event), event.delta))

    def _thinking_done(self, event: _Event, _size: int) -> list[StreamEvent]:
        return self._think(event, self._rest(event, _thought(event), event.text))

    def _think(self, event: _Event, text: str) -> list[StreamEvent]:
        if not text:
            return []
        place = (_key(event), *_thought(event))
        before, self._thought = self._thought, place
        apart = before is not None and before != place and before[0] == place[0]
        return [ReasoningChunk("\n\n"), ReasoningChunk(text)] if apart else [ReasoningChunk(text)]

    def _arguments(self, event: _Event, _size: int) -> list[StreamEvent]:
        return self._called(event, self._grown(event, _ARGUMENTS, event.delta))

    def _arguments_done(self, event: _Event, _size: int) -> list[StreamEvent]:
        return self._called(event, self._rest(event, _ARGUMENTS, event.arguments))

    def _called(self, event: _Event, text: str) -> list[StreamEvent]:
        call = self._calls.get(_key(event)) if text else None
        return [CallChunk(call, text)] if call else []

    def _item_added(self, event: _Event, _size: int) -> list[StreamEvent]:
        item = item_in(event.item)
        if item is None:
            self.ignored += 1
            return []
        key = _key(event)
        self._bound(0)
        self._begun[key] = item
        return self._call_start(key, item) if item["type"] == "function_call" else []

    def _item_done(self, event: _Event, size: int) -> list[StreamEvent]:
        item = item_in(event.item)
        if item is None:
            self.ignored += 1
            return []
        key = _key(event)
        item = self._pieces.filled(key, item, self._halves)
        self._bound(size - self._pieces.forget(key, item))  # they are part of the item
        if key is None:
            key = f"#{len(self._done)}"
        self._done[key] = item
        return self._completed(key, item)

    def _end(self, response: Response, status: str) -> list[StreamEvent]:
        """The frame that ends the response, or a body that is all there is."""
        items = self._items(items_in(response.output), status)
        if status == "completed" and len(items) < len(self._begun):
            raise ModelError("an item of the reply was begun and never came", kind="bad_frame", retryable=True)
        self._note(response)
        self._seed = self._seed or (fingerprint(items, response),)
        if status == "incomplete" and items and _is_bare(items[-1][1]):
            items[-1][1]["status"] = "incomplete"  # the reply was cut off before its arguments came
        events: list[StreamEvent] = []
        for key, item in items:
            events += self._completed(key, item)
        self._reply = reply_of(response, status, [item for _, item in items], self._endpoint, self._model)
        self._done.clear()
        self._begun.clear()
        self._pieces = Pieces()
        events.append(StreamUsage(self._reply.usage))
        return events

    # ---- items ----

    def _items(self, told: list[Item], status: str) -> list[tuple[Key, Item]]:
        """The items of the reply as each was finished, from the last frame those that came in no other, and from the
        pieces that were shown those that came in neither.

        Items and last frame hold the same, but for reasoning: the last frame encrypts it anew, and clients send back
        the first. Some servers leave out the items, from the last frame or altogether.
        """
        if all(isinstance(key, int) for key in self._done):
            found: dict[Key, Item] = {**dict(enumerate(told)), **self._done}
        elif len(told) > len(self._done):
            found = {worded(item.get("id")) or f"#{place}": item for place, item in enumerate(told)}
        else:
            found = dict(self._done)
        found |= self._pieces.items(self._begun, found, self._halves, cut=status == "incomplete")
        if all(isinstance(key, int) for key in found):
            found = dict(sorted(found.items(), key=lambda pair: _index(pair[0])))
        return list(found.items())

    def _completed(self, key: Key, item: Item) -> list[StreamEvent]:
        """What observers have not seen of an item that is whole."""
        if item["type"] == "function_call":
            return self._call_end(key, item)
        if item["type"] == "message" and not self._pieces.shown(key, item):
            words = words_in(item)
            if words:
                self._pieces.place(key, ("text", 0))
            return [TextChunk(text) for _, text in words]
        return []

    def _call_start(self, key: Key, item: Item) -> list[StreamEvent]:
        """Show a call, as soon as it has an id that no other call of the conversation has."""
        id = next((id for id in (item.get("call_id"), item.get("id")) if isinstance(id, str) and id), "")
        if not id or id in self._ids:
            if not self._seed:
                return []
            id = made_id(*self._seed, str(key), str(len(self._ids)), worded(item.get("name")))
        self._ids.add(id)
        self._calls[key] = id
        return [CallStart(id, worded(item.get("name")))]

    def _call_end(self, key: Key, item: Item) -> list[StreamEvent]:
        if key in self._ended:
            item["call_id"] = self._calls[key]
            return []
        events: list[StreamEvent] = []
        if key not in self._calls:
            events += self._call_start(key, item)
            if not events:
                return []  # the last frame will tell what it can be called
        item["call_id"] = self._calls[key]
        call = call_of(item, self._route)
        said = item.get("arguments")
        if events and isinstance(said, str) and said:
            events.append(CallChunk(call.id, said))
        self._ended.add(key)
        return [*events, CallEnd(call)]

    # ---- pieces ----

    def _grown(self, event: _Event, piece: Piece, text: Any) -> str:  # noqa: ANN401  whatever came
        """More of a text, as far as its characters are whole."""
        if not isinstance(text, str) or not text:
            return ""
        key = _key(event)
        if self._halves.broken:
            text = self._halves.join((key, piece), text)
        self._pieces.place(key, piece).append(text)
        self._size += len(text)
        if self._size > MAX_BYTES or self._pieces.count > MAX_ITEMS:
            raise _too_much()
        return text

    def _rest(self, event: _Event, piece: Piece, text: Any) -> str:  # noqa: ANN401  whatever came
        """What of a text has not been shown when all of it is told. Some servers send it at once, without deltas."""
        key = _key(event)
        if not self._pieces.has(key, piece):
            return self._grown(event, piece, text)
        rest = self._halves.left((key, piece))
        if rest:
            self._pieces.place(key, piece).append(rest)
        return rest

    def _bound(self, size: int) -> None:
        self._size += size
        if self._size > MAX_BYTES or max(len(self._done), len(self._begun)) >= MAX_ITEMS:
            raise _too_much()

    _STEPS: ClassVar[Mapping[str, Callable[..., list[StreamEvent]]]] = {
        "response.created": _start,
        "response.queued": _start,
        "response.in_progress": _start,
        "response.output_text.delta": _text,
        "response.output_text.done": _text_done,
        "response.refusal.delta": _refused,
        "response.refusal.done": _refused_done,
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


_ERRORS: Final = frozenset(("error", "response.error"))
_NOTHING: Final = frozenset((b"", b"[DONE]"))
_ARGUMENTS: Final[Piece] = ("arguments", 0)
_TERMINAL: Final[Mapping[str, str]] = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}


def _said_inside(response: Response, status: str) -> str:
    """How a response ended: a frame that says "completed" is not believed where the response itself knows better."""
    told = worded(response.status)
    return told if status == "completed" and told in _TERMINAL.values() else status


def _is_bare(item: Item) -> bool:
    """Whether an item is a call of which no arguments came."""
    said = item.get("arguments")
    return item["type"] == "function_call" and (said is None or (isinstance(said, str) and not said.strip()))


def _key(event: _Event) -> Key:
    """What an event is about: the place of an item in the reply, or its id where a server tells no place."""
    if type(event.output_index) is int:
        return event.output_index
    if isinstance(event.item_id, str):
        return event.item_id
    return worded(mapping(event.item).get("id")) or None


def _index(value: Any) -> int:  # noqa: ANN401  whatever came
    return value if type(value) is int else 0


def _thought(event: _Event) -> Piece:
    if type(event.summary_index) is int:
        return "summary", event.summary_index
    return "thought", _index(event.content_index)


def _too_much() -> ModelError:
    said = f"the reply has more than {MAX_ITEMS:,} items or texts, or {MAX_BYTES:,} bytes"
    return ModelError(said, kind="bad_frame")
