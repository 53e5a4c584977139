"""The OpenAI Responses dialect, spoken by OpenAI, Azure, xAI, Bedrock and many servers.

The provider stores nothing (``store`` is false): every request carries the whole conversation, and the provider's own
data (encrypted reasoning, ids, phases, items of tools that the provider runs) goes back as it came.

The items of a response become parts in their order:

    message         `Text` and `Refusal` behind an empty `Reasoning`, whose `replay` is the item without its texts:
                    id, phase, annotations
    reasoning       `Reasoning` with the summary; `replay` is the item
    function_call   `ToolCall`; `replay` holds the fields of the item besides id, name and arguments of the call
    anything else   empty `Reasoning`; `replay` is the item: searches, code, MCP, images, patches, compaction

The API has no seed and no stop sequences; such settings are left out. `Settings.extra` overrides every field except
``input``: its ``tools`` and ``include`` come after ours, its ``text`` and ``reasoning`` are merged with ours; None or
an empty list leaves a field out. ``{"reasoning": {"summary": "auto"}}`` asks for summaries of the model's thoughts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final, TypeAlias, cast

import msgspec

from holdfast import messages as msg
from holdfast.errors import ModelError, StreamCut
from holdfast.errors.world import NotOffered
from holdfast.models import dialect
from holdfast.models import json_values as values
from holdfast.models.attachments import attachment_bytes, attachment_label, data_url, split_result
from holdfast.models.errors import classify_stream_error
from holdfast.models.json_values import as_dict, as_list, as_text, clip_text, encode_json, parse_arguments, token_count
from holdfast.models.schemas import COMMON_STRICT_KEYWORDS, StrictSchemaRules, fits_strict, schema_prompt

FLAGS: Final = dialect.COMMON_FLAGS | {
    "no_cache_key": "prompt_cache_key is refused and left out",
    "no_encrypted": "encrypted reasoning can't be asked for",
    "no_item_ids": "ids of items are looked up, though nothing is stored: none are sent",
    "no_strict": "strict schemas are not known",
    "no_store": "store is refused and left out",
}

# ==== requests ====

_HEADERS: Final[Mapping[str, str]] = {"content-type": "application/json"}
_ENCRYPTED: Final = "reasoning.encrypted_content"
_NO_REASONING: Final = re.compile(r"(?:\A|[/.])(?:gpt-3|gpt-4|chatgpt|gpt-5-chat)", re.IGNORECASE)
"""Models that do not reason, and refuse the field for encrypted reasoning."""
_RULES: Final = StrictSchemaRules(COMMON_STRICT_KEYWORDS, frozenset(), depth=5, properties=100)
"""Accepted by every provider of this dialect."""
_COMPACTING_PROVIDERS: Final = frozenset(("openai", "azure-responses"))
"""Providers that document compaction. Others may drop the field silently."""


def encode_request(endpoint: dialect.Endpoint, model: str, request: msg.ModelRequest) -> dialect.WireRequest:
    """Encode a request; the encoded messages are joined, not encoded again."""
    encoder = ResponsesMessageEncoder(endpoint.route(model), endpoint.flags, request)
    try:
        messages = encoder.encode_all()
        fields = encode_json(_fields(endpoint, model, request, messages[0] if messages else b""))[:-1]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ModelError(f"the request has no JSON form: {clip_text(error, 200)}", kind="bad_request") from error
    # Fields first: they stay the same from step to step, so a request begins like the one before it.
    body = b"".join((fields, b',"input":[', b",".join([message for message in messages if message]), b"]}"))
    return dialect.WireRequest(dialect.with_query("/responses", endpoint.query), body, _HEADERS, encoder.dropped)


def _fields(endpoint: dialect.Endpoint, model: str, request: msg.ModelRequest, first: bytes) -> dict[str, Any]:
    settings, flags = request.settings, endpoint.flags
    at = settings.compact_at
    extra = dict(settings.extra) if settings.extra else {}
    if "input" in extra:
        raise ModelError("settings.extra can't set 'input': it is the conversation", kind="bad_request")
    instructions, text = request.instructions, None
    strict = "no_strict" not in flags
    if request.output is not None:
        schema, name = request.output.schema, dialect.tool_name(request.output.name)
        if schema.get("type") == "object":
            shape = {"name": name, "schema": schema, "strict": strict and fits_strict(schema, _RULES)}
            text = {"format": {"type": "json_schema", **shape}}
        else:  # it can't be enforced, and goes into the instructions
            instructions = schema_prompt(schema, instructions)
    more = extra.pop("tools", None) or ()
    tools = b",".join(filter(None, [_tools(request.tools, strict), *map(encode_json, more)]))
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
        "context_management": None if at is None else context_management(endpoint, model, at),
        "store": None if "no_store" in flags else False,
        "include": None if "no_encrypted" in flags or _NO_REASONING.search(model) else [_ENCRYPTED],
        "stream": dialect.NO_STREAM not in flags,
    }
    if settings.cache and "no_cache_key" not in flags:
        # Identifies the stable beginning of a conversation, so that its requests reach the same cache.
        stable = b"".join((instructions.encode(), tools, first[:4_096]))
        fields["prompt_cache_key"] = hashlib.sha256(stable).hexdigest()[:32]
    if extra.get("include") and fields["include"]:
        fields["include"] += [wanted for wanted in as_list(extra.pop("include")) if wanted != _ENCRYPTED]
    return {name: value for name, value in (fields | extra).items() if value is not None and value != []}


def _merged(ours: dict[str, Any] | None, theirs: Any) -> Any:  # any JSON value
    return ours | as_dict(theirs) if ours and isinstance(theirs, dict) else theirs or ours


def context_management(endpoint: dialect.Endpoint, model: str, at: int) -> list[dict[str, Any]]:
    """Make the field that asks for compaction at `at` tokens."""
    if endpoint.provider not in _COMPACTING_PROVIDERS:
        advice = (
            "it is known for OpenAI and Azure only; leave compact_at out, or send the field of your server with "
            "settings.extra={'context_management': [...]}"
        )
        raise NotOffered("settings.compact_at", f"{endpoint.provider}:{model}", advice)
    return [{"type": "compaction", "compact_threshold": at}]


@dialect.IdentityCache
def _tools(tools: tuple[msg.ToolSpec, ...], strict: bool) -> bytes:  # the cache takes positions only
    made: list[Item] = []
    for tool in tools:
        parameters = tool.parameters or {"type": "object", "properties": {}}
        function: Item = {"type": "function", "name": tool.name, "parameters": parameters}
        if tool.description:
            function["description"] = tool.description
        # Without the field the API would make the schema strict, and change it.
        function["strict"] = strict and fits_strict(parameters, _RULES)
        made.append(function)
    return encode_json(made)[1:-1]


# ---- messages ----

Item: TypeAlias = dict[str, Any]
_LONGEST_ID: Final = 64
_NEVER_ACCEPTED: Final = re.compile(
    r"audio/|video/|font/|application/(?:octet-stream|zip|gzip|vnd\.rar|x-(?:tar|gzip|bzip2|xz|7z-compressed|sqlite3)|wasm)",
    re.IGNORECASE,
)
"""Files that no model of this dialect accepts."""


class ResponsesMessageEncoder(dialect.MessageEncoder):
    """Encodes each message as its items, joined by commas."""

    def encode(self, message: msg.Message) -> bytes:
        """Encode a message; empty if it has no item."""
        match message:
            case msg.UserMessage(parts=parts):
                content: str | list[Item] = message.text
                if len(parts) > 1 or any(type(part) is not msg.Text for part in parts):
                    content = [_input_text(p.text) if isinstance(p, msg.Text) else self._file(p) for p in parts]
                items = [{"role": "user", "content": content}]
            case msg.ToolMessage():
                kind = "function_call_output"
                items = [
                    {"type": kind, "call_id": _wire_id(result.call_id), "output": self._output(result)}
                    for result in message.results
                ]
            case msg.AssistantMessage():
                items = self._assistant_items(message)
        return encode_json(items)[1:-1]

    def _file(self, file: msg.Attachment) -> Item:
        kind = file.media_type.strip().lower()
        url = data_url(kind, attachment_bytes(file, self._files))
        if kind.startswith("image/"):
            return {"type": "input_image", "detail": "auto", "image_url": url}
        name = file.name or f"attachment.{kind.rpartition('/')[2]}"
        return {"type": "input_file", "filename": name, "file_data": url}

    def _output(self, result: msg.ToolResult) -> str | list[Item]:
        """Return a result as text, or as pieces if it has files. A file inside a value is named there, and follows."""
        content = result.content
        if isinstance(content, str):
            return content
        pieces = split_result(result, self._files, attachment_label)
        if not pieces:
            return encode_json(content).decode()
        output: list[Item] = []
        for value, file, inside in pieces:
            if file is not None and _is_shown(file):
                output.append(self._file(file))
                continue
            output.append(_input_text(values.to_text(value)))
            for part in filter(_is_shown, inside):
                output += [_input_text(attachment_label(part)), self._file(part)]
        return output

    def _assistant_items(self, message: msg.AssistantMessage) -> list[Item]:
        parts = message.parts
        # The API refuses an item with an id if the reasoning that it came with is missing.
        own_reasoning = [part for part in parts if type(part) is msg.Reasoning and part.route == self._route]
        with_ids = "no_item_ids" not in self._flags and all(_is_sendable(part.replay) for part in own_reasoning)
        items: list[Item] = []
        frame: Item = {}  # the original message of the texts that follow, without them
        # Texts that follow each other are one message.
        for are_words, group in groupby(parts, lambda part: not isinstance(part, msg.Reasoning | msg.ToolCall)):
            if are_words:
                items.append(_message_item(frame, cast("Iterator[msg.Text | msg.Refusal | msg.Attachment]", group)))
                continue
            for part in cast("Iterator[msg.Reasoning | msg.ToolCall]", group):
                own = self._own_replay(part)
                bare = own if with_ids else omit_fields(own, ("id",))
                frame = bare if isinstance(part, msg.Reasoning) and own.get("type") == "message" else {}
                if isinstance(part, msg.ToolCall):
                    # Malformed arguments are not repeated: many servers parse them, and the result explains the error.
                    arguments = "{}" if part.arguments is None else encode_json(part.arguments).decode()
                    call = {"type": "function_call", "call_id": _wire_id(part.id), "name": dialect.tool_name(part.name)}
                    items.append({**bare, **call, "arguments": arguments})
                elif own and not frame and _is_sendable(own):
                    items.append(bare if own.get("type") == "reasoning" else own)
        # The API refuses reasoning at the end: the reply was cut off while the model thought.
        while items and items[-1].get("type") == "reasoning":
            items.pop()
        return answer_provider_calls(items)


def _is_shown(file: msg.Attachment) -> bool:
    # Other files in a tool result are only named: a refusal would end the conversation.
    return not _NEVER_ACCEPTED.match(file.media_type.strip())


def _input_text(text: str) -> Item:
    return {"type": "input_text", "text": text}


def _is_sendable(replay: Any) -> bool:  # any JSON value
    """True if an item can go back: reasoning only with its content, since the provider stores none."""
    item = as_dict(replay)
    return item.get("type") != "reasoning" or bool(item.get("encrypted_content") or item.get("content"))


def _wire_id(id: str) -> str:
    """Shorten the id of a call to the API's limit; other providers have longer ones."""
    return id if len(id) <= _LONGEST_ID else dialect.derive_call_id(id)


def _message_item(own: Item, words: Iterable[msg.Text | msg.Refusal | msg.Attachment]) -> Item:
    """Make a message item; `own` is the original item without its texts, if any."""
    said: list[Item] = []
    for word in words:
        if isinstance(word, msg.Refusal):
            said.append({"type": "refusal", "refusal": word.text})
        else:  # a reply can't hold files in this dialect
            text = word.text if isinstance(word, msg.Text) else f"[{word.media_type}: {word.name or word.digest[:12]}]"
            said.append({"type": "output_text", "text": text})
    frames = items_in(own.get("content"))
    if [frame["type"] for frame in frames] == [word["type"] for word in said]:
        said = [frame | word for frame, word in zip(frames, said, strict=True)]
    return {**(own or {"type": "message"}), "role": "assistant", "content": said}


def items_in(value: Any) -> list[Item]:  # any JSON value
    """Return the items in an array that have a type."""
    return [item for item in map(as_dict, as_list(value)) if isinstance(item.get("type"), str)]


def omit_fields(item: Item, names: tuple[str, ...]) -> Item:
    """Copy an item without some of its fields."""
    return {name: value for name, value in item.items() if name not in names}


# ---- calls of the provider's own tools, which Holdfast does not run ----

_NOT_AVAILABLE: Final = "This tool is not available here. The call was not carried out."
_BLANK_SCREENSHOT: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAAD0lEQVR42mNgGAWjgHwAAAJAAAHgTR1EAAAAAElFTkSuQmCC"
)
"""A picture of 64 by 64 black pixels."""
_ANSWERS: Final[Mapping[str, Item]] = {
    "apply_patch_call": {"status": "failed", "output": _NOT_AVAILABLE},
    "computer_call": {"output": {"type": "computer_screenshot", "image_url": _BLANK_SCREENSHOT}},
    "custom_tool_call": {"output": _NOT_AVAILABLE},
    "local_shell_call": {"output": _NOT_AVAILABLE},
    "mcp_approval_request": {
        "type": "mcp_approval_response",
        "approve": False,
        "reason": "Nobody here can be asked about it.",
    },
    "shell_call": {"output": [{"stdout": "", "stderr": _NOT_AVAILABLE, "outcome": {"type": "exit", "exit_code": 1}}]},
    "tool_search_call": {"type": "tool_search_output", "execution": "client", "status": "completed", "tools": []},
}
"""Types of calls that need an answer, and the answer that refuses them, in the form that each type requires."""


def answer_provider_calls(items: list[Item]) -> list[Item]:
    """Append an answer to each unanswered provider call among the items: the API refuses open calls."""
    waiting = [item for item in items if item.get("type") in _ANSWERS and _answered_id(item)]
    if not waiting:
        return items
    # Lists, because a provider may have put unhashable values there.
    known = [item.get("call_id") for item in items if str(item.get("type")).endswith("_output")]
    known += [item.get("approval_request_id") for item in items]
    return items + [answer for item in waiting if _answered_id(item) not in known for answer in _answer(item)]


def _answered_id(item: Item) -> str | None:
    """Return the id that the answer refers to; None if the item needs no answer."""
    kind = item.get("type")
    if kind == "tool_search_call" and item.get("execution") != "client":
        return None  # the provider searches itself
    found = item.get("id" if kind == "mcp_approval_request" else "call_id")
    return found if isinstance(found, str) and found else None


def _answer(item: Item) -> list[Item]:
    kind = item["type"]
    field = "approval_request_id" if kind == "mcp_approval_request" else "call_id"
    answer: Item = {"type": f"{kind}_output", field: _answered_id(item), **_ANSWERS[kind]}
    if kind != "computer_call":
        return [answer]
    checks = item.get("pending_safety_checks")
    if isinstance(checks, list) and checks:  # unread warnings are refused; nothing they warn of was done
        answer["acknowledged_safety_checks"] = checks
    # The API takes only a picture for an answer, so a message explains that it shows nothing.
    return [answer, {"role": "developer", "content": f"{_NOT_AVAILABLE} The screenshot is blank."}]


# ==== responses ====

MAX_ITEMS: Final = 4_096
"""Most items of a reply."""
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
_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "response.output_text.delta": ("text", "delta"),
    "response.output_text.done": ("text", "text"),
    "response.refusal.delta": ("refusal", "delta"),
    "response.refusal.done": ("refusal", "refusal"),
    "response.reasoning_summary_text.delta": ("thought", "delta"),
    "response.reasoning_summary_text.done": ("thought", "text"),
    "response.reasoning_text.delta": ("thought", "delta"),
    "response.reasoning_text.done": ("thought", "text"),
    "response.function_call_arguments.delta": ("arguments", "delta"),
    "response.function_call_arguments.done": ("arguments", "arguments"),
}
"""Frames with a text: the kind of the text, and the field that holds it."""
_PART_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "output_text": ("text", "text"),
    "refusal": ("refusal", "refusal"),
    "summary_text": ("thought", "text"),
    "reasoning_text": ("thought", "text"),
}
"""The same for whole parts; some servers send no deltas."""


class _ResponsesEvent(msgspec.Struct, gc=False):
    """A frame. Its fields are untyped: a future frame must not fail because of a field's type."""

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


class ResponsesReader(dialect.ResponseReader):
    """Reads one response."""

    growing_fields = frozenset(("delta",))

    def __init__(self, endpoint: dialect.Endpoint, model: str) -> None:
        super().__init__(endpoint, model)
        self._begun: dict[Key, Item] = {}
        """Items as they were announced."""
        self._done: dict[Key, Item] = {}
        self._calls: dict[Key, str] = {}
        """Ids of announced calls."""
        self._ended: set[Key] = set()
        """Calls with an announced end."""
        self._pieces = TextPieces(self._joiner)
        self._thought: tuple[Any, ...] | None = None
        """The reasoning text that was streamed last."""
        self._reply: msg.ModelReply | None = None

    @property
    def complete(self) -> bool:
        return self._reply is not None

    def feed(self, frame: dialect.Frame) -> list[msg.StreamEvent]:
        """Translate a frame. Raises a `ModelError` if the frame reports an error."""
        if self._reply is not None or (frame.data[:1] != b"{" and frame.data.strip() in _NOTHING):
            return self._ignore()
        event = self._read(frame.data)
        kind = event.type if isinstance(event.type, str) else frame.event
        if kind in _TEXTS:
            return self._read_text(event, *_TEXTS[kind])
        if kind in _TERMINAL:
            response = parse_response(event.response) if bytes(event.response) else ResponseBody(error=event.error)
            status, told = _TERMINAL[kind], as_text(response.status)
            # The response itself may say otherwise than its frame.
            return self._end(response, told if status == "completed" and told in _TERMINAL.values() else status)
        match kind:
            case "response.created" | "response.queued" | "response.in_progress":
                if self._started or not bytes(event.response):
                    return []
                self._started = True
                response = parse_response(event.response)
                self._note_seed(response)
                return [msg.StreamStart(as_text(response.model) or self._model)]
            case "response.content_part.done" | "response.reasoning_summary_part.done":
                part = as_dict(event.part)
                event.text, event.refusal = part.get("text"), part.get("refusal")
                text = _PART_TEXTS.get(as_text(part.get("type")))
                return [] if text is None else self._read_text(event, *text)
            case "response.output_item.added" | "response.output_item.done":
                item = as_dict(event.item)
                if not isinstance(item.get("type"), str):
                    return self._ignore()
                return self._add_item(_key(event), item, len(frame.data) if kind.endswith("done") else None)
            case _:
                if kind in _ERRORS or (not kind and (event.error or event.code)):
                    raise classify_stream_error(event.error or {"code": event.code, "message": event.message})
                # Progress of an item may be skipped: the finished item has it all.
                self.ignored += event.item_id is None and event.output_index is None
                return []

    def finish(self) -> msg.ModelReply:
        """Return the whole reply. Raises `StreamCut` without a terminal frame."""
        if self._reply is None:
            raise StreamCut(self._name)
        return self._reply

    def read_body(self, body: bytes) -> msg.ModelReply:
        """Return the reply in a body that is not a stream."""
        response = parse_response(body)
        self._end(response, as_text(response.status) or ("failed" if response.error else "in_progress"))
        return self.finish()

    def _read(self, data: bytes) -> _ResponsesEvent:
        try:
            return _event(data)
        except values.JSON_ERRORS:
            pass
        fields = self._joiner.parse_leniently(data)
        delta = as_dict(fields).pop("delta", None)
        try:
            event = _event(encode_json(values.repair_surrogates(fields)))
        except values.JSON_ERRORS as error:
            raise values.bad_frame(f"a frame can't be read: {clip_text(error, 200)}") from None
        event.delta = delta
        return event

    def _note_seed(self, response: ResponseBody) -> None:
        told = f"{as_text(response.id)} {values.unix_seconds(response.created_at) or ''}"
        self._seed = self._seed or told.strip()

    def _read_text(self, event: _ResponsesEvent, kind: str, field: str) -> list[msg.StreamEvent]:
        """Read a piece of a text, or its end; return the part that observers have not seen."""
        key = _key(event)
        index = event.content_index if type(event.content_index) is int else 0
        piece: Piece = (kind, 0 if kind == "arguments" else index)
        if kind == "thought" and type(event.summary_index) is int:
            piece = ("summary", event.summary_index)
        given: Any = getattr(event, field)
        if field != "delta" and self._pieces.has(key, piece):
            text = self._joiner.flush((key, piece))
            if not text:
                return []
        elif isinstance(given, str) and given:  # some servers send a text at once, without deltas
            text = self._joiner.join((key, piece), given) if self._joiner.active else given
        else:
            return []
        self._pieces.pieces(key, piece).append(text)
        self._room -= len(text)
        if self._room < 0:
            raise self._too_long()
        if self._pieces.count > MAX_ITEMS:
            raise _too_many()
        if not text:
            return []
        if kind == "arguments":
            return [msg.CallChunk(self._calls[key], text)] if key in self._calls else []
        if kind != "thought":
            return [msg.TextChunk(text)]
        before, self._thought = self._thought, (key, piece)
        apart = before is not None and before != self._thought and before[0] == key
        return [msg.ReasoningChunk("\n\n"), msg.ReasoningChunk(text)] if apart else [msg.ReasoningChunk(text)]

    def _add_item(self, key: Key, item: Item, size: int | None) -> list[msg.StreamEvent]:
        """Add an item that begins, or a finished one of `size` bytes."""
        if max(len(self._done), len(self._begun)) >= MAX_ITEMS:
            raise _too_many()
        if size is None:
            self._begun[key] = item
            return self._call_start(key, item) if item["type"] == "function_call" else []
        item = self._pieces.complete(key, item)
        self._grow(size - self._pieces.clear(key, item))  # they are part of the item
        if key is None:
            key = f"#{len(self._done)}"
        self._done[key] = item
        return self._finish_item(key, item)

    def _end(self, response: ResponseBody, status: str) -> list[msg.StreamEvent]:
        """Read the terminal frame, or a body that is not a stream."""
        items = self._items(items_in(response.output), status)
        if status == "completed" and len(items) < len(self._begun):
            raise values.bad_frame("an item of the reply was begun and never came")
        self._note_seed(response)
        if not self._seed:
            try:
                said = encode_json([[item for _, item in items], response.usage])
            except values.JSON_ERRORS as error:
                raise values.bad_frame(f"a response can't be read: {clip_text(error, 200)}") from None
            self._seed = hashlib.sha256(said).hexdigest()
        if status == "incomplete" and items and items[-1][1]["type"] == "function_call":
            said = items[-1][1].get("arguments")
            if said is None or (isinstance(said, str) and not said.strip()):
                items[-1][1]["status"] = "incomplete"  # the limit came before the arguments
        events: list[msg.StreamEvent] = []
        for key, item in items:
            events += self._finish_item(key, item)
        self._reply = self._build_reply(response, status, [item for _, item in items])
        self._done.clear()
        self._begun.clear()
        self._pieces = TextPieces(self._joiner)
        events.append(msg.StreamUsage(self._reply.usage))
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
        found |= self._pieces.missing_items(self._begun, found, cut=status == "incomplete")
        if all(isinstance(key, int) for key in found):
            found = dict(sorted(found.items(), key=lambda pair: cast("int", pair[0])))
        return list(found.items())

    def _finish_item(self, key: Key, item: Item) -> list[msg.StreamEvent]:
        """Return the events of a finished item that observers have not seen."""
        if item["type"] == "function_call":
            return self._call_end(key, item)
        words = [] if item["type"] != "message" or self._pieces.places(key, item) else message_texts(item)
        if words:
            self._pieces.pieces(key, ("text", 0))
        return [msg.TextChunk(text) for _, text in words]

    def _call_start(self, key: Key, item: Item) -> list[msg.StreamEvent]:
        """Announce a call once it has a unique id."""
        id = next((id for id in (item.get("call_id"), item.get("id")) if isinstance(id, str) and id), "")
        if (not id or id in self._ids) and not self._seed:
            return []
        id = self._calls[key] = self._unique_id(id, len(self._ids), as_text(item.get("name")))
        return [msg.CallStart(id, as_text(item.get("name")))]

    def _call_end(self, key: Key, item: Item) -> list[msg.StreamEvent]:
        events = [] if key in self._calls else self._call_start(key, item)
        if key not in self._calls:
            return []  # the terminal frame will bring a seed for the id
        item["call_id"] = self._calls[key]
        if key in self._ended:
            return []
        self._ended.add(key)
        said = as_text(item.get("arguments"))
        if events and said:
            events.append(msg.CallChunk(item["call_id"], said))
        return [*events, msg.CallEnd(build_call(item, self._route))]

    def _build_reply(self, response: ResponseBody, status: str, items: list[Item]) -> msg.ModelReply:
        usage = _usage(response.usage)
        if status in {"failed", "cancelled"}:
            error = ModelError("the provider cancelled the response", kind="server_error", retryable=True)
            if status == "failed":
                error = classify_stream_error(response.error)
            error.usage = usage if usage.total else None
            raise error
        if status not in {"completed", "incomplete"}:
            raise StreamCut(self._name)
        parts: list[msg.Part] = []
        for item in items:
            match item["type"]:
                case "message":
                    parts += _message_parts(item, self._route)
                case "reasoning":
                    parts.append(_reasoning_part(item, self._route))
                case "function_call":
                    parts.append(build_call(item, self._route))
                case _:
                    parts.append(msg.Reasoning("", item, self._route))
        finish = dialect.default_finish(parts)
        if status == "incomplete":
            reason = as_dict(response.incomplete_details).get("reason")
            finish = "content_filter" if reason == "content_filter" else "output_limit"
        elif finish == "stop" and any(type(part) is msg.Refusal for part in parts):
            finish = "refusal"
        raw = response.usage if values.is_dict(response.usage) else None
        id = response.id if isinstance(response.id, str) else None
        return msg.ModelReply(tuple(parts), finish, usage, as_text(response.model) or self._model, raw, response_id=id)


def _key(event: _ResponsesEvent) -> Key:
    if type(event.output_index) is int:
        return event.output_index
    if isinstance(event.item_id, str):
        return event.item_id
    return as_text(as_dict(event.item).get("id")) or None


def _too_many() -> ModelError:
    return ModelError(f"the reply has more than {MAX_ITEMS:,} items or texts", kind="bad_frame")


# ---- the pieces of texts ----


class TextPieces:
    """Collects the pieces of all texts of a reply."""

    def __init__(self, joiner: values.SurrogateJoiner) -> None:
        self._joiner = joiner
        self._kept: dict[Key, dict[Piece, list[str]]] = {}
        self.count = 0
        """Number of texts."""

    def pieces(self, key: Key, piece: Piece) -> list[str]:
        try:
            return self._kept[key][piece]
        except KeyError:
            self.count += 1
            return self._kept.setdefault(key, {}).setdefault(piece, [])

    def has(self, key: Key, piece: Piece) -> bool:
        return piece in self._kept.get(key, ())

    def clear(self, key: Key, item: Item) -> int:
        """Drop the pieces of a finished item; return their number of characters."""
        size = 0
        for place in self.places(key, item):
            for kept in self._kept[place].values():
                size += sum(map(len, kept))
                kept.clear()
        return size

    def complete(self, key: Key, item: Item) -> Item:
        """Fill a finished but empty item from its pieces: some servers send it so."""
        for said in map(item.get, ("content", "summary", "arguments")):
            parts = [as_dict(part) for part in as_list(said)]
            if (said and not isinstance(said, list)) or any(part.get("text") or part.get("refusal") for part in parts):
                return item
        return {**item, **(self._grown(key, item) or {})}

    def missing_items(self, begun: Mapping[Key, Item], found: Mapping[Key, Item], *, cut: bool) -> dict[Key, Item]:
        """Build the items that are not `found` from their pieces: `begun` and unannounced ones.

        `cut`: a limit ended the reply, perhaps in the middle of an item.
        """
        ids = {as_text(item.get("id")) for item in found.values()} - {""}
        made: dict[Key, Item] = {}
        # If as many items arrived as began, none is missing, even under other ids.
        for key, item in begun.items() if len(found) < len(begun) else ():
            grown = None if key in found or as_text(item.get("id")) in ids else self._grown(key, item)
            if grown is not None:
                made[key] = {**item, **grown, "status": "incomplete" if cut else "completed"}
        ids |= {as_text(item.get("id")) for item in begun.values()}
        kinds = {item["type"] for item in (*found.values(), *made.values())}
        for key in [key for key in self._kept if key not in begun and key not in found and key not in ids]:
            for kind in [kind for kind in ("reasoning", "message") if kind not in kinds]:
                grown = self._grown(key, {"type": kind})
                if grown is not None:
                    named = f"{kind} of {key}"
                    made[named] = {"type": kind, **grown}
                    self.pieces(named, ("text", 0))
        return made

    def _grown(self, key: Key, item: Item) -> Item | None:
        """Return the fields of an item that were streamed; None if there are none."""
        texts = {
            piece: "".join(kept) + self._joiner.flush((place, piece))
            for place in self.places(key, item)
            for piece, kept in sorted(self._kept[place].items())
        }

        def parts(kind: str, type: str, field: str = "text") -> list[Item]:
            return [{"type": type, field: text} for (found, _), text in texts.items() if found == kind and text]

        match item["type"]:
            case "message":
                words = parts("text", "output_text") + parts("refusal", "refusal", "refusal")
                return {"role": "assistant", "content": words} if words else None
            case "reasoning":
                summary, content = parts("summary", "summary_text"), parts("thought", "reasoning_text")
                return {"summary": summary, "content": content} if summary or content else None
            case "function_call":
                arguments = texts.get(("arguments", 0))
                return {"arguments": arguments} if arguments else None
            case _:
                return None

    def places(self, key: Key, item: Item) -> list[Key]:
        """Return the keys of the texts of an item: some servers send its index with it, and its id with the pieces."""
        id = as_text(item.get("id"))
        return [place for place in dict.fromkeys((key, id or key)) if place in self._kept]


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
        try:
            return _response(raw)
        except values.JSON_ERRORS:
            return msgspec.convert(values.parse_json(raw), ResponseBody)
    except values.JSON_ERRORS as error:
        raise values.bad_frame(f"a response can't be read: {clip_text(error, 200)}") from None


def _usage(value: Any) -> msg.Usage:  # any JSON value
    usage = as_dict(value)
    details = as_dict(usage.get("input_tokens_details"))
    read, written = token_count(details.get("cached_tokens")), token_count(details.get("cache_write_tokens"))
    asked, answered = token_count(usage.get("input_tokens")), token_count(usage.get("output_tokens"))
    thought = token_count(as_dict(usage.get("output_tokens_details")).get("reasoning_tokens"))
    return msg.Usage(max(asked - read - written, 0), answered, read, written, thought)


def message_texts(item: Item) -> list[tuple[Item, str]]:
    """Return the non-empty texts of a message, each with its content."""
    found = [
        (content, content.get("refusal" if content["type"] == "refusal" else "text"))
        for content in items_in(item.get("content"))
    ]
    return [(content, text) for content, text in found if isinstance(text, str) and text]


def _message_parts(item: Item, route: str) -> list[msg.Part]:
    found = message_texts(item)
    words: list[msg.Part] = [
        msg.Refusal(text) if content["type"] == "refusal" else msg.Text(text) for content, text in found
    ]
    frames = [omit_fields(content, ("text", "refusal", "logprobs")) for content, _ in found]
    frame = {name: value for name, value in item.items() if name not in {"role", "content"} and value is not None}
    # A message without id and annotations consists of its texts alone.
    if frame.keys() <= {"type", "status"} and not any(any(omit_fields(noted, ("type",)).values()) for noted in frames):
        return words
    return [msg.Reasoning("", {**frame, "content": frames}, route), *words]


def _reasoning_part(item: Item, route: str) -> msg.Reasoning:
    told = [part.get("text") for part in items_in(item.get("summary")) + items_in(item.get("content"))]
    # The API sends status and empty content, and refuses them.
    kept = {name: value for name, value in item.items() if value is not None and name != "status"}
    if not kept.get("content"):
        kept.pop("content", None)
    kept.setdefault("summary", [])
    return msg.Reasoning("\n\n".join([text for text in told if isinstance(text, str) and text]), kept, route)


def build_call(item: Item, route: str) -> msg.ToolCall:
    """Build the call of an item, which must have a call_id."""
    said = item.get("arguments")
    if values.is_dict(said):  # some servers send the object itself
        arguments, malformed = said, None
    elif said is not None and not isinstance(said, str):
        arguments, malformed = None, clip_text(encode_json(said).decode())
    elif not (said or "").strip() and item.get("status") == "incomplete":
        arguments, malformed = None, said or ""  # the reply was cut off there
    else:
        arguments, malformed = parse_arguments(said or "")
    rest = omit_fields(item, ("type", "call_id", "name", "arguments", "status"))
    more = {name: value for name, value in rest.items() if value is not None} or None
    name, own_route = as_text(item.get("name")), route if more else None
    return msg.ToolCall(item["call_id"], name, arguments, malformed, more, own_route)


DIALECT: Final = dialect.Dialect("responses", encode_request, ResponsesReader, FLAGS)
