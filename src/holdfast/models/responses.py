"""The OpenAI Responses dialect, as OpenAI, Azure, xAI, Bedrock and many servers speak it. Pure.

Nothing is stored at the provider (``store`` is false): every request carries the whole conversation, and what the model
needs of its own (encrypted reasoning, ids, phases, the items of tools that the provider runs) goes back as it came.

How a reply is kept: the items of a response become parts in their order.

    message         the words (`Text`, `Refusal`) behind a `Reasoning` without text, whose `replay` is the item without
                    its words: id, phase, annotations
    reasoning       `Reasoning` with the summary; `replay` is the item
    function_call   `ToolCall`; `replay` is what the item has beside id, name and arguments of the call
    anything else   `Reasoning` without text; `replay` is the item: searches, code, MCP, images, patches, compaction

Flags of an endpoint:

    no_cache_key    does not take ``prompt_cache_key``
    no_encrypted    does not take ``include: reasoning.encrypted_content``
    no_item_ids     looks up the ids of items, though nothing is stored: none are sent
    no_strict       does not know strict schemas
    no_store        does not take ``store``

The API has no seed and no stop sequences; such settings are left out. `Settings.extra` overrides every field except
``input``: its ``tools`` and ``include`` come after ours, its ``text`` and ``reasoning`` are merged with ours; None or
an empty list leaves a field out. Summaries of what the model thinks come with ``{"reasoning": {"summary": "auto"}}``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast
from urllib.parse import urlencode

import msgspec

from holdfast.errors import ContextOverflow, ModelError, StreamCut
from holdfast.messages import (
    AssistantMessage,
    Attachment,
    CallChunk,
    CallEnd,
    CallStart,
    FinishReason,
    ModelReply,
    Part,
    Reasoning,
    ReasoningChunk,
    Refusal,
    StreamEvent,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from holdfast.models.waiting import asked_in_headers, asked_in_words
from holdfast.models.wire import WireRequest, bounded, encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.messages import Message, ModelRequest, OutputSpec, ToolResult, ToolSpec
    from holdfast.models.wire import Endpoint, Frame

_T = TypeVar("_T")
_Item = dict[str, Any]

MAX_ITEMS: Final = 4_096
"""How many items a reply may have."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""How large the items of a reply may be, together."""

_HEADERS: Final[Mapping[str, str]] = {"content-type": "application/json", "accept": "text/event-stream"}
_ENCRYPTED: Final = "reasoning.encrypted_content"
# These refuse to be asked for encrypted reasoning, as they do not reason.
_UNREASONING: Final = re.compile(r"(?:\A|[/.])(?:gpt-3|gpt-4|chatgpt|gpt-5-chat)", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_ID: Final = 64
_KEPT_TOOLS: Final = 64

_json: Final = msgspec.json.Encoder().encode


# ---- what is sent ----------------------------------------------------------------------------------------------------


class _Piece(bytes):
    """The items of a message from which replay data of another route was left out."""

    dropped: int = 0


class Responses:
    """How the Responses API is spoken."""

    name: ClassVar[str] = "responses"

    def __init__(self) -> None:
        # The tools of an agent are the same object at every step, so their bytes are made once; the tuple is kept
        # with them, for an id means nothing once its object is gone.
        self._tools: dict[tuple[int, bool], tuple[tuple[ToolSpec, ...], bytes]] = {}

    def encode(self, endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
        route = endpoint.route(model)
        named = "no_item_ids" not in endpoint.flags
        try:
            pieces = encoded(
                request,
                f"responses {route}{'' if named else ' bare'}",
                lambda message: _message(message, route, request.files, named=named),
            )
            tools = self._encoded_tools(request.tools, strict="no_strict" not in endpoint.flags)
            fields = _fields(endpoint, model, request, tools, pieces[0] if pieces else b"")
            head = _json(fields)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ModelError(f"the request has no JSON form: {bounded(error, 200)}", kind="bad_request") from error
        # What stays the same from step to step comes first, so the beginning of a request is that of the one before.
        body = b"".join((head[:-1], b',"input":[', b",".join([piece for piece in pieces if piece]), b"]}"))
        dropped = sum([piece.dropped for piece in pieces if type(piece) is _Piece])
        query = f"?{urlencode(endpoint.query)}" if endpoint.query else ""
        return WireRequest(f"/responses{query}", body, _HEADERS, dropped)

    def fold(self, endpoint: Endpoint, model: str) -> ResponsesFold:
        return ResponsesFold(endpoint, model)

    def whole(self, endpoint: Endpoint, model: str, body: bytes) -> ModelReply:
        response = _read(_whole, body)
        return _reply(response, _status(response), _items(response.output), endpoint, model)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        try:
            found = _read(_anything, body)
        except ModelError:
            found = body[:4_000].decode("utf-8", "replace")
        return _failure(found, status, {name.lower(): value for name, value in headers.items()})

    def _encoded_tools(self, tools: tuple[ToolSpec, ...], *, strict: bool) -> bytes:
        kept = self._tools.get((id(tools), strict))
        if kept is not None:
            return kept[1]
        made = b",".join([_json(_tool(tool, strict=strict)) for tool in tools])
        if len(self._tools) >= _KEPT_TOOLS:
            self._tools.clear()
        self._tools[id(tools), strict] = (tools, made)
        return made


def _fields(endpoint: Endpoint, model: str, request: ModelRequest, tools: bytes, first: bytes) -> dict[str, Any]:
    """Everything but the conversation."""
    settings, flags = request.settings, endpoint.flags
    extra = dict(settings.extra) if settings.extra else {}
    if "input" in extra:
        raise ModelError("settings.extra can't set 'input': it is the conversation", kind="bad_request")
    instructions, text = request.instructions, None
    if request.output is not None:
        instructions, text = _output(request.output, instructions, strict="no_strict" not in flags)
    more = extra.pop("tools", None) or ()
    tools = b",".join([part for part in (tools, *(_json(tool) for tool in more)) if part])
    fields: dict[str, Any] = {
        "model": model,
        "instructions": instructions or None,
        "tools": msgspec.Raw(b"[" + tools + b"]") if tools else None,
        "tool_choice": settings.tool_choice if tools and settings.tool_choice != "auto" else None,
        "parallel_tool_calls": settings.parallel_tool_calls if tools else None,
        "text": _merged(text, extra.pop("text", None)),
        "reasoning": _merged({"effort": settings.effort} if settings.effort else None, extra.pop("reasoning", None)),
        "max_output_tokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "store": None if "no_store" in flags else False,
        "include": None if "no_encrypted" in flags or _UNREASONING.search(model) else [_ENCRYPTED],
        "stream": True,
    }
    if settings.cache and "no_cache_key" not in flags:
        fields["prompt_cache_key"] = _cache_key(instructions, tools, first)
    if extra.get("include") and fields["include"]:
        fields["include"] += [wanted for wanted in _list(extra.pop("include")) if wanted != _ENCRYPTED]
    return {name: value for name, value in (fields | extra).items() if value is not None and value != []}


def _cache_key(instructions: str, tools: bytes, first: bytes) -> str:
    """Names the stable beginning of a conversation, so that its requests meet where it is cached."""
    digest = hashlib.sha256(instructions.encode())
    digest.update(tools)
    digest.update(first[:4_096])
    return digest.hexdigest()[:32]


def _merged(ours: dict[str, Any] | None, theirs: Any) -> Any:  # noqa: ANN401  whatever a caller wrote
    return ours | _mapping(theirs) if ours and isinstance(theirs, dict) else theirs or ours


def _output(output: OutputSpec, instructions: str, *, strict: bool) -> tuple[str, dict[str, Any] | None]:
    """How the shape of the answer is asked for: only objects can be demanded, other shapes are asked for in words."""
    schema = output.schema
    if schema.get("type") == "object":
        name = _NOT_NAME.sub("_", output.name)[:64] or "answer"
        form = {"type": "json_schema", "name": name, "schema": schema, "strict": strict and _is_strict(schema)}
        return instructions, {"format": form}
    words = f"Answer with JSON alone, of this JSON schema:\n{_json(schema).decode()}"
    return f"{instructions}\n\n{words}" if instructions else words, None


def _tool(tool: ToolSpec, *, strict: bool) -> _Item:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    made: _Item = {"type": "function", "name": tool.name, "parameters": parameters}
    if tool.description:
        made["description"] = tool.description
    made["strict"] = strict and _is_strict(parameters)  # left out, the API would make it strict and change the schema
    return made


# What every provider of this dialect takes in a strict schema; one word more and the schema is not sent as strict.
_STRICT_WORDS: Final = frozenset(
    [
        "type",
        "title",
        "description",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "anyOf",
        "$ref",
        "$defs",
    ]
)
_STRICT_DEPTH: Final = 5
_STRICT_PROPERTIES: Final = 100


def _is_strict(schema: dict[str, Any]) -> bool:
    """Whether a schema keeps the rules of strict mode: closed objects, all properties required, plain words only."""
    properties = [0]
    return schema.get("type") == "object" and _obeys(schema, 0, properties) and properties[0] <= _STRICT_PROPERTIES


def _obeys(schema: Any, depth: int, properties: list[int]) -> bool:  # noqa: ANN401  a piece of a schema
    if not isinstance(schema, dict) or depth > _STRICT_DEPTH:
        return False
    found = cast("_Item", schema)
    if "$ref" in found:
        return len(found) == 1 and str(found["$ref"]).startswith("#")
    kinds = {kind for kind in _list(found.get("type")) or [found.get("type")] if isinstance(kind, str)}
    if not found.keys() <= _STRICT_WORDS or not (kinds or "anyOf" in found) or not _is_closed(found, kinds):
        return False
    fields = _mapping(found.get("properties"))
    properties[0] += len(fields)
    inner = [(value, depth + 1) for value in fields.values()]
    inner += [(value, depth) for value in _list(found.get("anyOf"))]
    inner += [(value, 1) for value in _mapping(found.get("$defs")).values()]
    inner += [(found.get("items"), depth + 1)] if "array" in kinds else []
    return all(_obeys(value, level, properties) for value, level in inner)


def _is_closed(schema: _Item, kinds: set[str]) -> bool:
    """Whether an object has exactly the properties it names, each of them always."""
    if "object" not in kinds:
        return True
    required, fields = schema.get("required"), schema.get("properties")
    if (
        not isinstance(required, list)
        or not isinstance(fields, dict)
        or schema.get("additionalProperties") is not False
    ):
        return False
    return sorted(map(str, _list(required))) == sorted(_mapping(fields))


def _message(message: Message, route: str, files: Mapping[str, bytes], *, named: bool) -> bytes:
    """The items of one message, joined."""
    match message:
        case UserMessage():
            return _json({"role": "user", "content": _content(message, files)})
        case ToolMessage():
            return b",".join([_json(_result(result, files)) for result in message.results])
        case AssistantMessage():
            items, dropped = _said(message, route, named=named)
            made = b",".join([_json(item) for item in items])
            if not dropped:
                return made
            piece = _Piece(made)
            piece.dropped = dropped
            return piece


def _content(message: UserMessage, files: Mapping[str, bytes]) -> str | list[_Item]:
    if len(message.parts) == 1 and type(part := message.parts[0]) is Text:
        return part.text
    return [_input_text(part.text) if isinstance(part, Text) else _file(part, files) for part in message.parts]


def _input_text(text: str) -> _Item:
    return {"type": "input_text", "text": text}


def _file(attachment: Attachment, files: Mapping[str, bytes]) -> _Item:
    data = files.get(attachment.digest)
    if data is None:
        raise ModelError(f"the bytes of the attachment {attachment.digest[:12]} are not at hand", kind="bad_request")
    kind = attachment.media_type
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    if kind.startswith("image/"):
        return {"type": "input_image", "detail": "auto", "image_url": url}
    name = attachment.name or f"attachment.{kind.rpartition('/')[2]}"
    return {"type": "input_file", "filename": name, "file_data": url}


def _result(result: ToolResult, files: Mapping[str, bytes]) -> _Item:
    output = _result_output(result.content, files)
    return {"type": "function_call_output", "call_id": _wire_id(result.call_id), "output": output}


def _result_output(content: Any, files: Mapping[str, bytes]) -> str | list[_Item]:  # noqa: ANN401  any JSON value
    if isinstance(content, str):
        return content
    values = _list(content) if isinstance(content, list | tuple) else [content]
    attached = [_attachment(value, files) for value in values]
    if not any(attached):
        return _json(content).decode()
    return [
        _file(file, files) if file else _input_text(value if isinstance(value, str) else _json(value).decode())
        for value, file in zip(values, attached, strict=True)
    ]


def _attachment(value: Any, files: Mapping[str, bytes]) -> Attachment | None:  # noqa: ANN401  any JSON value
    """The attachment that a value in a tool's result stands for: one whose bytes are here."""
    if isinstance(value, Attachment):
        return value
    if not isinstance(value, dict) or cast("_Item", value).get("type") != "attachment":
        return None
    try:
        found = msgspec.convert(value, Attachment)
    except msgspec.ValidationError:
        return None
    return found if found.digest in files else None


def _said(message: AssistantMessage, route: str, *, named: bool) -> tuple[list[_Item], int]:
    """The items of a reply, and how many parts had replay data of another route."""
    parts = message.parts
    # An item that has an id is refused without the reasoning it came with, so one can't have an id without the other.
    named = named and all(_returnable(part.replay) for part in parts if type(part) is Reasoning and part.route == route)
    items: list[_Item] = []
    dropped = place = 0
    while place < len(parts):
        part = parts[place]
        place += 1
        own: _Item | None = None
        if isinstance(part, Reasoning | ToolCall) and part.replay is not None:
            own = _owned(part, route)
            dropped += own is None
        if isinstance(part, ToolCall):
            items.append(_call_item(part, own, named=named))
        elif not isinstance(part, Reasoning) or (own and own.get("type") == "message"):
            begin = place if isinstance(part, Reasoning) else place - 1
            while place < len(parts) and not isinstance(parts[place], Reasoning | ToolCall):
                place += 1
            words = [word for word in parts[begin:place] if not isinstance(word, Reasoning | ToolCall)]
            if words:
                items.append(_message_item(own, words, named=named))
        elif own:
            items += _own_items(own, named=named)
    # Reasoning that nothing follows is refused: the reply was cut off while the model thought.
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return _answered(items), dropped


def _owned(part: Reasoning | ToolCall, route: str) -> _Item | None:
    return cast("_Item", part.replay) if part.route == route and isinstance(part.replay, dict) else None


def _returnable(replay: Any) -> bool:  # noqa: ANN401  what was kept
    """Whether an item can be sent again: reasoning only with its content, as the provider has kept none."""
    if not isinstance(replay, dict):
        return True
    item = cast("_Item", replay)
    return item.get("type") != "reasoning" or bool(item.get("encrypted_content") or item.get("content"))


def _own_items(item: _Item, *, named: bool) -> list[_Item]:
    if not _returnable(item):
        return []
    if item.get("type") == "reasoning" and not named:
        return [_without(item, ("id",))]
    return [item]


def _call_item(call: ToolCall, own: _Item | None, *, named: bool) -> _Item:
    name = call.name if _NAME.fullmatch(call.name) else _NOT_NAME.sub("_", call.name)[:64] or "unknown"
    more = {} if own is None else own if named else _without(own, ("id",))
    # Arguments that are no JSON object are not repeated: many servers read them, and the result says what was wrong.
    arguments = "{}" if call.arguments is None else _json(call.arguments).decode()
    return {
        **more,
        "type": "function_call",
        "call_id": _wire_id(call.id),
        "name": name,
        "arguments": arguments,
    }


def _wire_id(id: str) -> str:
    """The id of a call, within what the API takes; calls of other providers may have longer ones."""
    return id if len(id) <= _LONGEST_ID else f"call_{hashlib.sha256(id.encode()).hexdigest()[:40]}"


def _message_item(own: _Item | None, words: Iterable[Text | Refusal | Attachment], *, named: bool) -> _Item:
    """A message with its words; `own` is what it was besides them."""
    said = [_word(word) for word in words]
    if own is None:
        return {"type": "message", "role": "assistant", "content": said}
    frames = _items(own.get("content"))
    if [frame["type"] for frame in frames] == [word["type"] for word in said]:
        said = [frame | word for frame, word in zip(frames, said, strict=True)]
    more = own if named else _without(own, ("id",))
    return {**more, "role": "assistant", "content": said}


def _word(part: Text | Refusal | Attachment) -> _Item:
    match part:
        case Text():
            return {"type": "output_text", "text": part.text}
        case Refusal():
            return {"type": "refusal", "refusal": part.text}
        case Attachment():  # a reply can't hold bytes in this dialect
            return {"type": "output_text", "text": f"[{part.media_type}: {part.name or part.digest[:12]}]"}


_NOBODY: Final = "This tool is not available here. The call was not carried out."
_UNANSWERED: Final[Mapping[str, Callable[[Any], _Item]]] = {
    "apply_patch_call": lambda call_id: {
        "type": "apply_patch_call_output",
        "call_id": call_id,
        "status": "failed",
        "output": _NOBODY,
    },
    "shell_call": lambda call_id: {
        "type": "shell_call_output",
        "call_id": call_id,
        "output": [{"stdout": "", "stderr": _NOBODY, "outcome": {"type": "exit", "exit_code": 1}}],
    },
    "local_shell_call": lambda call_id: {"type": "local_shell_call_output", "call_id": call_id, "output": _NOBODY},
    "custom_tool_call": lambda call_id: {"type": "custom_tool_call_output", "call_id": call_id, "output": _NOBODY},
}
"""Calls of the provider's own kind that wait for us: a conversation with one that has no answer is refused."""


def _answered(items: list[_Item]) -> list[_Item]:
    open_calls = [item for item in items if item.get("type") in _UNANSWERED and isinstance(item.get("call_id"), str)]
    if not open_calls:
        return items
    answers = [item.get("call_id") for item in items if str(item.get("type")).endswith("_output")]
    return items + [
        _UNANSWERED[str(item["type"])](item["call_id"]) for item in open_calls if item["call_id"] not in answers
    ]


# ---- what comes ------------------------------------------------------------------------------------------------------


class _Event(msgspec.Struct, gc=False):
    """A frame. Nothing has a type here: a frame of tomorrow must not fail for a field of today."""

    type: Any = None
    delta: Any = None
    text: Any = None
    item: Any = None
    item_id: Any = None
    output_index: Any = None
    content_index: Any = None
    summary_index: Any = None
    response: msgspec.Raw = msgspec.Raw()
    error: Any = None
    code: Any = None
    message: Any = None


class _Response(msgspec.Struct, gc=False):
    """A response, without the request that it repeats."""

    id: Any = None
    model: Any = None
    status: Any = None
    output: Any = None
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None


_event: Final = msgspec.json.Decoder(_Event).decode
_whole: Final = msgspec.json.Decoder(_Response).decode
_anything: Final[Callable[[bytes], Any]] = msgspec.json.Decoder().decode


def _read(decode: Callable[[bytes], _T], data: bytes | msgspec.Raw) -> _T:
    raw = bytes(data)
    try:
        return decode(raw)
    except (ValueError, RecursionError):
        pass
    try:
        return decode(_mended(raw))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"a frame can't be read: {bounded(error, 200)}", kind="bad_frame", retryable=True) from error


def _mended(raw: bytes) -> bytes:
    """JSON with bytes or halves of characters that are no text: each of them becomes U+FFFD."""
    value = json.loads(raw.decode("utf-8-sig", "replace"))
    text = json.dumps(value, ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


class ResponsesFold:
    """One response that is being read."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.ignored = 0
        self.paused = False
        self._endpoint = endpoint
        self._model = model
        self._route = endpoint.route(model)
        self._started = False
        self._size = 0
        self._begun: dict[Any, str] = {}
        """Items that were announced: the id of the call, or nothing."""
        self._done: dict[Any, _Item] = {}
        self._shown: set[tuple[Any, ...]] = set()
        """Which texts were streamed."""
        self._thought: tuple[Any, ...] | None = None
        """The part of the reasoning that was streamed last."""
        self._reply: ModelReply | None = None

    def feed(self, frame: Frame) -> list[StreamEvent]:
        if self._reply is not None or (frame.data[:1] != b"{" and frame.data.strip() in _NOTHING):
            self.ignored += 1
            return []
        event = _read(_event, frame.data)
        kind = event.type if isinstance(event.type, str) else frame.event
        status = _TERMINAL.get(kind)
        if status is not None:
            return self._end(event, status)
        step = self._STEPS.get(kind)
        if step is not None:
            return step(self, event, len(frame.data))
        if kind == "error" or (not kind and (event.error or event.code)):
            raise _failure(_told(event), None, {})
        # The progress of an item is told again, and in full, when the item is done.
        self.ignored += event.item_id is None and event.output_index is None
        return []

    def finish(self) -> ModelReply:
        if self._reply is None:
            raise StreamCut(f"{self._endpoint.provider}:{self._model}")
        return self._reply

    # ---- frames ----

    def _start(self, event: _Event, _size: int) -> list[StreamEvent]:
        if self._started or not bytes(event.response):
            return []
        self._started = True
        response = _read(_whole, event.response)
        return [StreamStart(_served(response, self._model))]

    def _text(self, event: _Event, _size: int) -> list[StreamEvent]:
        if not isinstance(event.delta, str) or not event.delta:
            return []
        self._show((_key(event), _index(event.content_index)))
        return [TextChunk(event.delta)]

    def _text_done(self, event: _Event, _size: int) -> list[StreamEvent]:
        """Some servers send a text at once, without deltas."""
        place = (_key(event), _index(event.content_index))
        if not isinstance(event.text, str) or not event.text or place in self._shown:
            return []
        self._show(place)
        return [TextChunk(event.text)]

    def _thinking(self, event: _Event, _size: int) -> list[StreamEvent]:
        return self._think(event, event.delta)

    def _thinking_done(self, event: _Event, _size: int) -> list[StreamEvent]:
        place = _thought(event)
        return [] if place in self._shown else self._think(event, event.text)

    def _think(self, event: _Event, text: Any) -> list[StreamEvent]:  # noqa: ANN401  whatever came
        if not isinstance(text, str) or not text:
            return []
        place = _thought(event)
        self._show(place)
        before, self._thought = self._thought, place
        apart = before is not None and before != place and before[0] == place[0]
        return [ReasoningChunk("\n\n"), ReasoningChunk(text)] if apart else [ReasoningChunk(text)]

    def _arguments(self, event: _Event, _size: int) -> list[StreamEvent]:
        call = self._begun.get(_key(event))
        return [CallChunk(call, event.delta)] if call and isinstance(event.delta, str) and event.delta else []

    def _item_added(self, event: _Event, _size: int) -> list[StreamEvent]:
        item = _item(event.item)
        if item is None:
            self.ignored += 1
            return []
        key = _key(event)
        self._bound(0)
        called = item["type"] == "function_call"
        call = _call(item, self._route, key) if called else None
        self._begun[key] = call.id if call else ""
        return [CallStart(call.id, call.name)] if call else []

    def _item_done(self, event: _Event, size: int) -> list[StreamEvent]:
        item = _item(event.item)
        if item is None:
            self.ignored += 1
            return []
        key = _key(event)
        self._bound(size)
        if key is None:
            key = f"#{len(self._done)}"
        self._done[key] = item
        return [CallEnd(_call(item, self._route, key))] if item["type"] == "function_call" else []

    def _end(self, event: _Event, status: str) -> list[StreamEvent]:
        response = _read(_whole, event.response) if bytes(event.response) else _Response(error=event.error)
        items = self._finished(_items(response.output))
        if status == "completed" and len(items) < len(self._begun):
            raise ModelError("an item of the reply was begun and never came", kind="bad_frame", retryable=True)
        self._reply = _reply(response, status, items, self._endpoint, self._model)
        self._done.clear()
        self._begun.clear()
        self._shown.clear()
        return [StreamUsage(self._reply.usage)]

    def _finished(self, told: list[_Item]) -> list[_Item]:
        """The items of the reply as each was finished, and from the last frame those that came in no other.

        Both hold the same, but for reasoning: the last frame encrypts it anew, and clients send back the first.
        """
        if not all(isinstance(key, int) for key in self._done):
            return told if len(told) > len(self._done) else list(self._done.values())
        return [item for _, item in sorted((dict(enumerate(told)) | self._done).items())]

    # ---- bounds ----

    def _bound(self, size: int) -> None:
        self._size += size
        if self._size > MAX_BYTES or max(len(self._done), len(self._begun)) >= MAX_ITEMS:
            said = f"the reply has more than {MAX_ITEMS:,} items or {MAX_BYTES:,} bytes"
            raise ModelError(said, kind="bad_frame")

    def _show(self, place: tuple[Any, ...]) -> None:
        if place not in self._shown:
            if len(self._shown) >= MAX_ITEMS:
                raise ModelError(f"the reply has more than {MAX_ITEMS:,} texts", kind="bad_frame")
            self._shown.add(place)

    _STEPS: ClassVar[Mapping[str, Callable[..., list[StreamEvent]]]] = {
        "response.created": _start,
        "response.queued": _start,
        "response.in_progress": _start,
        "response.output_text.delta": _text,
        "response.output_text.done": _text_done,
        "response.reasoning_summary_text.delta": _thinking,
        "response.reasoning_summary_text.done": _thinking_done,
        "response.reasoning_text.delta": _thinking,
        "response.reasoning_text.done": _thinking_done,
        "response.function_call_arguments.delta": _arguments,
        "response.output_item.added": _item_added,
        "response.output_item.done": _item_done,
    }


_NOTHING: Final = frozenset((b"", b"[DONE]"))
_TERMINAL: Final[Mapping[str, str]] = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}


def _key(event: _Event) -> int | str | None:
    """What an event is about: the place of an item in the reply, or its id where a server tells no place."""
    if type(event.output_index) is int:
        return event.output_index
    if isinstance(event.item_id, str):
        return event.item_id
    item = _item(event.item)
    id = item.get("id") if item else None
    return id if isinstance(id, str) else None


def _index(value: Any) -> int:  # noqa: ANN401  whatever came
    return value if type(value) is int else 0


def _thought(event: _Event) -> tuple[Any, ...]:
    summed = type(event.summary_index) is int
    return _key(event), summed, _index(event.summary_index if summed else event.content_index)


def _item(value: Any) -> _Item | None:  # noqa: ANN401  whatever came
    found = _mapping(value)
    return found if isinstance(found.get("type"), str) else None


def _items(value: Any) -> list[_Item]:  # noqa: ANN401  whatever came
    return [item for item in map(_item, _list(value)) if item is not None]


def _list(value: Any) -> list[Any]:  # noqa: ANN401  whatever came
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else []


def _mapping(value: Any) -> dict[str, Any]:  # noqa: ANN401  whatever came
    return cast("_Item", value) if isinstance(value, dict) else {}


def _without(item: _Item, names: tuple[str, ...]) -> _Item:
    return {name: value for name, value in item.items() if name not in names}


def _served(response: _Response, model: str) -> str:
    return response.model if isinstance(response.model, str) and response.model else model


def _status(response: _Response) -> str:
    """How far a response is that came as one body; what is still being made counts as cut off."""
    status = response.status
    if isinstance(status, str) and status:
        return status
    return "failed" if response.error else "in_progress"


def _reply(response: _Response, status: str, items: list[_Item], endpoint: Endpoint, model: str) -> ModelReply:
    if status == "failed":
        raise _failure(response.error, None, {})
    if status == "cancelled":
        raise ModelError("the provider cancelled the response", kind="server_error", retryable=True)
    if status not in {"completed", "incomplete"}:
        raise StreamCut(f"{endpoint.provider}:{model}")
    parts = _parts(items, endpoint.route(model))
    return ModelReply(
        parts,
        _finish(response, status, parts),
        _usage(response.usage),
        _served(response, model),
        cast("_Item", response.usage) if isinstance(response.usage, dict) else None,
        response_id=response.id if isinstance(response.id, str) else None,
    )


def _finish(response: _Response, status: str, parts: tuple[Part, ...]) -> FinishReason:
    if status == "incomplete":
        details = response.incomplete_details
        reason = _mapping(details).get("reason")
        return "content_filter" if reason == "content_filter" else "output_limit"
    if any(type(part) is ToolCall for part in parts):
        return "tool_calls"
    return "refusal" if any(type(part) is Refusal for part in parts) else "stop"


def _usage(value: Any) -> Usage:  # noqa: ANN401  whatever came
    usage = _mapping(value)
    read = _count(usage.get("input_tokens_details"), "cached_tokens")
    written = _count(usage.get("input_tokens_details"), "cache_write_tokens")
    return Usage(
        max(_count(usage, "input_tokens") - read - written, 0),
        _count(usage, "output_tokens"),
        read,
        written,
        _count(usage.get("output_tokens_details"), "reasoning_tokens"),
    )


def _count(counts: Any, name: str) -> int:  # noqa: ANN401  whatever came
    value = _mapping(counts).get(name)
    return value if type(value) is int and value > 0 else 0


def _parts(items: list[_Item], route: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    for place, item in enumerate(items):
        match item["type"]:
            case "message":
                parts += _words(item, route)
            case "reasoning":
                parts.append(_reasoning(item, route))
            case "function_call":
                parts.append(_call(item, route, place))
            case _:
                parts.append(Reasoning("", item, route))
    return tuple(parts)


def _words(item: _Item, route: str) -> list[Part]:
    words: list[Part] = []
    frames: list[_Item] = []
    for content in _items(item.get("content")):
        text = content.get("refusal" if content["type"] == "refusal" else "text")
        if isinstance(text, str) and text:
            words.append(Refusal(text) if content["type"] == "refusal" else Text(text))
            frames.append(_without(content, ("text", "refusal", "logprobs")))
    frame = {name: value for name, value in item.items() if name not in {"role", "content"} and value is not None}
    # Where nothing names the message, and nothing is noted about its words, the words alone say it all.
    if frame.keys() <= {"type", "status"} and not any(any(_without(noted, ("type",)).values()) for noted in frames):
        return words
    return [Reasoning("", {**frame, "content": frames}, route), *words]


def _reasoning(item: _Item, route: str) -> Reasoning:
    told = [part.get("text") for part in _items(item.get("summary")) + _items(item.get("content"))]
    # Status and empty content are only ever told, never taken.
    kept = {name: value for name, value in item.items() if value is not None and name != "status"}
    if not kept.get("content"):
        kept.pop("content", None)
    kept.setdefault("summary", [])
    return Reasoning("\n\n".join([text for text in told if isinstance(text, str) and text]), kept, route)


def _call(item: _Item, route: str, place: Any) -> ToolCall:  # noqa: ANN401  where it is in the reply
    id = next((id for id in (item.get("call_id"), item.get("id")) if isinstance(id, str) and id), f"call_{place}")
    name = item.get("name")
    said = item.get("arguments")
    arguments, malformed = _read_arguments(said, cut=item.get("status") == "incomplete")
    more = {
        name: value
        for name, value in item.items()
        if value is not None and name not in {"type", "call_id", "name", "arguments", "status"}
    }
    return ToolCall(
        id,
        name if isinstance(name, str) else "",
        arguments,
        malformed,
        more or None,
        route if more else None,
    )


def _read_arguments(said: Any, *, cut: bool) -> tuple[dict[str, Any] | None, str | None]:  # noqa: ANN401  whatever came
    """The arguments of a call, or what came instead. Nothing at all means none, unless the reply was cut off there."""
    if isinstance(said, dict):  # some servers do not write them as text
        return cast("_Item", said), None
    if said is not None and not isinstance(said, str):
        return None, bounded(_json(said).decode())
    text = said or ""
    if not text.strip():
        return (None, text) if cut else ({}, None)
    try:
        value = _anything(text.encode())
    except (ValueError, RecursionError):
        return None, text
    if value is None:
        return {}, None
    return (cast("_Item", value), None) if isinstance(value, dict) else (None, text)


# ---- what went wrong -------------------------------------------------------------------------------------------------

_CODES: Final[Mapping[str, str]] = {
    "context_length_exceeded": "context_overflow",
    "exceed_context_size_error": "context_overflow",
    "string_above_max_length": "context_overflow",
    "insufficient_quota": "billing",
    "billing_hard_limit_reached": "billing",
    "billing_not_active": "billing",
    "usage_limit_reached": "billing",
    "usage_not_included": "billing",
    "rate_limit_exceeded": "rate_limited",
    "rate_limit_error": "rate_limited",
    "too_many_requests": "rate_limited",
    "tokens_exceeded": "rate_limited",
    "invalid_api_key": "authentication",
    "authentication_error": "authentication",
    "unauthorized": "authentication",
    "permission_error": "permission",
    "permission_denied": "permission",
    "model_not_found": "not_found",
    "deploymentnotfound": "not_found",
    "not_found_error": "not_found",
    "content_filter": "content_filter",
    "content_policy_violation": "content_filter",
    "moderation_blocked": "content_filter",
    "invalid_prompt": "content_filter",
    "image_content_policy_violation": "content_filter",
    "cyber_policy": "content_filter",
    "bio_policy": "content_filter",
    "overloaded_error": "overloaded",
    "server_is_overloaded": "overloaded",
    "engine_overloaded": "overloaded",
    "slow_down": "overloaded",
    "service_unavailable": "overloaded",
    "server_error": "server_error",
    "internal_error": "server_error",
    "internal_server_error": "server_error",
    "timeout": "timeout",
    "request_timeout": "timeout",
    "vector_store_timeout": "timeout",
    "invalid_request_error": "bad_request",
}
_STATUSES: Final[Mapping[int, str]] = {
    401: "authentication",
    402: "billing",
    403: "permission",
    404: "not_found",
    408: "timeout",
    409: "server_error",
    413: "context_overflow",
    425: "server_error",
    429: "rate_limited",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_RETRYABLE: Final = frozenset(("rate_limited", "overloaded", "server_error", "timeout"))
_OVERFLOW: Final = re.compile(
    r"context (?:window|length|size)|context_(?:length|size)|maximum context|prompt is too long"
    r"|too many (?:input )?tokens|input (?:length|tokens?) exceeds?|exceeds? the (?:maximum|model).{0,40}tokens",
    re.IGNORECASE,
)
_SECRET: Final = re.compile(r"\b(?:sk|xai|gsk|rk|pk|key)-[\w*.\-]{4,}|\bBearer\s+\S+", re.IGNORECASE)
_REQUEST_IDS: Final = ("x-request-id", "request-id", "apim-request-id", "x-ms-request-id", "x-amzn-requestid")


def _told(event: _Event) -> Any:  # noqa: ANN401  whatever came
    return event.error or {"code": event.code, "message": event.message}


def _failure(found: Any, status: int | None, headers: Mapping[str, str]) -> ModelError:  # noqa: ANN401  what a provider said
    """The error that a provider told, by its words first and by the status of the response otherwise."""
    codes, said = _reasons(found)
    if status is None:
        status = next((int(code) for code in codes if code.isdecimal() and len(code) == 3), None)
    message = _SECRET.sub("[key]", bounded(said)) if said else f"HTTP {status}" if status else "no reason was given"
    kind = _kind(codes, message, status)
    error = (
        ContextOverflow(message)
        if kind == "context_overflow"
        else ModelError(message, kind=kind, retryable=kind in _RETRYABLE)
    )
    error.status = status
    error.request_id = next((bounded(headers[name], 200) for name in _REQUEST_IDS if headers.get(name)), None)
    asked = asked_in_headers(headers)
    error.retry_after = asked_in_words(message) if asked is None else asked
    return error


def _reasons(found: Any) -> tuple[list[str], str]:  # noqa: ANN401  what a provider said
    """The codes and the words in an error, in any of the shapes that are about."""
    if not isinstance(found, dict):
        return [], found if isinstance(found, str) else ""
    outer = cast("_Item", found)
    inner: Any = outer.get("error")
    error = _mapping(inner) or outer
    codes = [str(error.get(name)).lower() for name in ("code", "type", "status") if error.get(name) is not None]
    words = (error.get("message"), inner, outer.get("message"), outer.get("detail"))
    said = next((word for word in words if isinstance(word, str) and word), "")
    return codes, said or (_json(outer).decode() if outer else "")


def _kind(codes: list[str], message: str, status: int | None) -> str:
    named = next((_CODES[code] for code in codes if code in _CODES), None)
    if named is not None and named != "bad_request":
        return named
    if status in {None, 400, 413, 422} and _OVERFLOW.search(message):
        return "context_overflow"
    if status is None:
        return named or "server_error"
    kind = _STATUSES.get(status)
    return kind or ("server_error" if status >= 500 else "bad_request")


DIALECT: Final = Responses()
