"""The chat dialect: OpenAI Chat Completions, and the many who speak almost the same.

What an endpoint does differently is said by its flags, all of which are in `FLAGS`; nothing is guessed from an address
or from the name of a model. What comes back is read leniently: the fields of all known endpoints are understood
everywhere.

Reasoning goes back to the route that made it, in the field that the flags ask for; without such a flag it stays here.
"""

from __future__ import annotations

import base64
import hashlib
import re
import string
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import quote, urlencode

import msgspec

from holdfast.errors import ContextOverflow, InvalidArgument, ModelError, StreamCut
from holdfast.messages import (
    AssistantMessage,
    Attachment,
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
    ToolMessage,
    Usage,
    UserMessage,
    refusal_of,
    text_of,
)
from holdfast.models.waiting import asked_in_headers, asked_in_words
from holdfast.models.wire import WireRequest, bounded, encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.messages import (
        FinishReason,
        InputPart,
        Message,
        ModelRequest,
        OutputSpec,
        Part,
        StreamEvent,
        ToolSpec,
    )
    from holdfast.models.wire import Endpoint, Frame

FLAGS: Final[Mapping[str, str]] = {
    # the request
    "deployment_path": "the model is part of the path: /deployments/MODEL/chat/completions",
    "no_stream_usage": "stream_options is refused and left out (usage comes by itself, or not at all)",
    "max_tokens": "the limit of the answer is max_tokens, not max_completion_tokens",
    "random_seed": "the seed is random_seed, not seed",
    "cache_control": "the prompt cache has to be asked for, with one cache_control field for the whole request",
    # reasoning that is asked for
    "effort_object": "the effort is reasoning.effort, not reasoning_effort",
    "thinking_switch": "thinking.type says whether the model thinks at all",
    "no_effort": "the effort itself can't be said and is left out",
    # structured output and tools
    "strict_tools": "tools whose schema allows it are marked strict",
    "json_object": "there is no json_schema: the answer is asked for as json_object, the schema is in the instructions",
    "schema_in_words": "response_format does not go with streams or tools: the schema is in the instructions alone",
    # messages
    "developer": "instructions have the role developer, not system",
    "instructions_as_user": "there is no role for instructions: they are the first user message",
    "alternate": "roles must alternate: neighbouring user messages are sent as one",
    "assistant_after_tools": "a user message may not follow tool results: a short assistant message goes between",
    "refusal_field": "a refusal goes back in its own field, not as text",
    "call_ids_9": "ids of calls have nine letters and digits; others are replaced by such, always by the same",
    "call_ids_40": "ids of calls have at most 40 characters; longer ones are replaced, always by the same",
    "document_url": "PDFs are document_url parts, not file parts",
    # reasoning that goes back
    "send_reasoning_details": "reasoning goes back as reasoning_details, where it came with them",
    "send_reasoning_content": "reasoning goes back as reasoning_content",
    "send_reasoning": "reasoning goes back as reasoning",
    "send_thinking_parts": "reasoning goes back as a thinking part of the content",
}
"""Every flag of an endpoint that this dialect knows, and what it says about the endpoint."""

MAX_REPLY: Final = 32 * 1024 * 1024
"""Longest reply that is taken, in characters of everything that is kept of it."""
MAX_CALLS: Final = 1_000
"""Most tool calls in one reply."""

_MAX_MESSAGE: Final = 990
_MAX_COUNT: Final = 2**53 - 1
_encode: Final = msgspec.json.Encoder().encode
_decode: Final[Callable[[bytes | str], Any]] = msgspec.json.Decoder().decode
_UNREADABLE: Final = (ValueError, RecursionError)
"""What reading JSON that comes from outside can raise."""


class Chat:
    """How Chat Completions is spoken."""

    name = "chat"

    def encode(self, endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
        """The request for a stream."""
        flags = endpoint.flags
        writer = _Writer(endpoint.route(model), flags, request.files)
        key = f"chat {' '.join(sorted(flags))} {writer.route}"
        messages = _in_place(request.messages, encoded(request, key, writer.message), flags)
        dropped = sum(map(len, encoded(request, f"{key} dropped", writer.foreign)))
        opening = _opening(request, flags)
        if opening is not None:
            messages.insert(0, opening)
        return WireRequest(
            _path(endpoint, model),
            b"".join((_fields(model, request, flags), b',"messages":[', b",".join(messages), b"]}")),
            dropped=dropped,
        )

    def fold(self, endpoint: Endpoint, model: str) -> ChatFold:
        """A new reader for one response."""
        return ChatFold(endpoint, model)

    def whole(self, endpoint: Endpoint, model: str, body: bytes) -> ModelReply:
        """The reply in a body that did not come as a stream."""
        fold = ChatFold(endpoint, model)
        fold.take_whole(body)
        return fold.finish()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """What an answer with an error status means."""
        return _http_error(status, headers, body)


DIALECT: Final = Chat()


# ---- the request -----------------------------------------------------------------------------------------------------


def _path(endpoint: Endpoint, model: str) -> str:
    path = "/chat/completions"
    if "deployment_path" in endpoint.flags:
        path = f"/deployments/{quote(model, safe='')}{path}"
    return f"{path}?{urlencode(endpoint.query)}" if endpoint.query else path


def _fields(model: str, request: ModelRequest, flags: frozenset[str]) -> bytes:
    """Everything but the messages, as the beginning of an object."""
    settings = request.settings
    fields: dict[str, Any] = {"model": model, "stream": True}
    if "no_stream_usage" not in flags:
        fields["stream_options"] = {"include_usage": True}
    limit = "max_tokens" if "max_tokens" in flags else "max_completion_tokens"
    seed = "random_seed" if "random_seed" in flags else "seed"
    given = (
        (limit, settings.max_output_tokens),
        ("temperature", settings.temperature),
        ("top_p", settings.top_p),
        (seed, settings.seed),
        ("stop", settings.stop or None),
    )
    fields.update({name: value for name, value in given if value is not None})
    if settings.effort is not None:
        fields.update(_effort(settings.effort, flags))
    if request.output is not None and "schema_in_words" not in flags:
        fields["response_format"] = _response_format(request.output, flags)
    if settings.cache and "cache_control" in flags:
        fields["cache_control"] = {"type": "ephemeral"}
    if request.tools:
        fields["tools"] = msgspec.Raw(_tools(request.tools, strict="strict_tools" in flags))
        if settings.tool_choice != "auto":
            fields["tool_choice"] = settings.tool_choice
        if settings.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = settings.parallel_tool_calls
    if settings.extra:
        _add_extra(fields, settings.extra)
    return _encode(fields)[:-1]


def _effort(effort: str, flags: frozenset[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if "thinking_switch" in flags:
        fields["thinking"] = {"type": "disabled" if effort == "none" else "enabled"}
        if effort == "none":
            return fields
    if "no_effort" in flags:
        return fields
    if "effort_object" in flags:
        fields["reasoning"] = {"effort": effort}
    else:
        fields["reasoning_effort"] = effort
    return fields


def _response_format(output: OutputSpec, flags: frozenset[str]) -> dict[str, Any]:
    if "json_object" in flags:
        return {"type": "json_object"}
    shape = {"name": _name(output.name), "schema": output.schema, "strict": allows_strict(output.schema)}
    return {"type": "json_schema", "json_schema": shape}


def _add_extra(fields: dict[str, Any], extra: dict[str, Any]) -> None:
    """The provider's own fields. Tools are added to ours; everything else counts instead of ours."""
    if "messages" in extra:
        raise InvalidArgument("settings.extra", "messages", "a field that is not made from the conversation")
    own = fields.get("tools")
    fields.update(extra)
    more = extra.get("tools")
    if own is not None and isinstance(more, list):
        tools = cast("list[Any]", more)
        fields["tools"] = msgspec.Raw(b",".join((bytes(own)[:-1], _encode(tools)[1:])) if tools else bytes(own))


_kept_tools: Final[dict[tuple[int, bool], tuple[tuple[ToolSpec, ...], bytes]]] = {}
_MAX_KEPT_TOOLS: Final = 64


def _tools(tools: tuple[ToolSpec, ...], *, strict: bool) -> bytes:
    """The tools as they are sent. An agent has the same tuple for all its requests, so it is encoded once."""
    kept = _kept_tools.get((id(tools), strict))
    if kept is None or kept[0] is not tools:
        if len(_kept_tools) >= _MAX_KEPT_TOOLS:
            _kept_tools.clear()
        kept = _kept_tools[id(tools), strict] = (tools, _encode([_tool(tool, strict=strict) for tool in tools]))
    return kept[1]


def _tool(tool: ToolSpec, *, strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if strict and allows_strict(tool.parameters):
        function["strict"] = True
    return {"type": "function", "function": function}


_STRICT_WORDS: Final = frozenset(
    (
        *("type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs", "definitions"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
_STRICT_FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
)
_STRICT_DEPTH: Final = 10


def allows_strict(schema: object) -> bool:
    """Whether the provider can hold a model to `schema`: all properties required, none other allowed, plain words."""
    return _object(schema).get("type") == "object" and _strict(schema, 0)


def _strict(schema: Any, depth: int) -> bool:  # noqa: ANN401  any JSON
    if not isinstance(schema, dict) or depth > _STRICT_DEPTH:
        return False
    words = cast("dict[str, Any]", schema)
    if not _STRICT_WORDS.issuperset(words) or ("$ref" in words and len(words) > 1):
        return False
    if "format" in words and _text(words["format"]) not in _STRICT_FORMATS:
        return False
    properties = _object(words.get("properties"))
    if (words.get("type") == "object" or properties) and not _closed(words, properties):
        return False
    named = [*_object(words.get("$defs")).values(), *_object(words.get("definitions")).values()]
    inner = [*properties.values(), *_list(words.get("anyOf")), *([words["items"]] if "items" in words else [])]
    return all(_strict(one, depth) for one in named) and all(_strict(one, depth + 1) for one in inner)


def _closed(words: dict[str, Any], properties: dict[str, Any]) -> bool:
    required = words.get("required")
    if words.get("additionalProperties") is not False or not isinstance(required, list):
        return False
    return sorted(properties) == sorted(map(str, cast("list[Any]", required)))


# ---- the messages ----------------------------------------------------------------------------------------------------

_OK: Final = b'{"role":"assistant","content":"OK"}'


def _opening(request: ModelRequest, flags: frozenset[str]) -> bytes | None:
    """The instructions as the first message."""
    said = request.instructions
    if request.output is not None and flags & {"json_object", "schema_in_words"}:
        schema = _encode(request.output.schema).decode()
        words = f"Give the final answer as JSON and nothing else, in the shape of this JSON schema:\n{schema}"
        said = f"{said}\n\n{words}" if said else words
    if not said:
        return None
    role = "developer" if "developer" in flags else "user" if "instructions_as_user" in flags else "system"
    return _encode({"role": role, "content": said})


def _in_place(messages: tuple[Message, ...], pieces: list[bytes], flags: frozenset[str]) -> list[bytes]:
    """The encoded messages as they follow each other. What depends on neighbours is decided here."""
    if "alternate" in flags:
        return _alternating(messages, pieces)
    if "assistant_after_tools" not in flags:
        return [piece for piece in pieces if piece]
    placed: list[bytes] = []
    before: type[Message] | None = None
    for message, piece in zip(messages, pieces, strict=True):
        if not piece:
            continue
        if before is ToolMessage and type(message) is UserMessage:
            placed.append(_OK)
        placed.append(piece)
        before = type(message)
    return placed


def _alternating(messages: tuple[Message, ...], pieces: list[bytes]) -> list[bytes]:
    placed: list[bytes] = []
    run: list[bytes] = []

    def close() -> None:
        if run:
            placed.append(b'{"role":"user","content":[' + b",".join(run) + b"]}")
            run.clear()

    for message, piece in zip(messages, pieces, strict=True):
        if type(message) is UserMessage:
            run.append(piece)
        elif piece:
            close()
            placed.append(piece)
    close()
    return placed


class _Writer:
    """Writes single messages for one route."""

    __slots__ = ("files", "flags", "route")

    def __init__(self, route: str, flags: frozenset[str], files: Mapping[str, bytes]) -> None:
        self.route = route
        self.flags = flags
        self.files = files

    def message(self, message: Message) -> bytes:
        """One message of ours: none, one or several of theirs, joined by commas."""
        match message:
            case UserMessage():
                return self._user(message)
            case AssistantMessage():
                return self._assistant(message)
            case ToolMessage():
                return self._results(message)

    def foreign(self, message: Message) -> bytes:
        """One byte for each part with replay data that another route made."""
        if type(message) is not AssistantMessage:
            return b""
        parts = [part for part in message.parts if type(part) is Reasoning or type(part) is ToolCall]
        return bytes(sum(part.replay is not None and part.route != self.route for part in parts))

    def _user(self, message: UserMessage) -> bytes:
        if "alternate" in self.flags:
            return b",".join([_encode(self._part(part)) for part in message.parts]) or _encode(_text_part(""))
        if all(type(part) is Text for part in message.parts) and len(message.parts) <= 1:
            return _encode({"role": "user", "content": message.text})
        return _encode({"role": "user", "content": [self._part(part) for part in message.parts]})

    def _part(self, part: InputPart) -> dict[str, Any]:
        return _text_part(part.text) if type(part) is Text else self._attachment(cast("Attachment", part))

    def _attachment(self, file: Attachment) -> dict[str, Any]:
        data = self.files.get(file.digest)
        if data is None:
            raise ModelError(f"the bytes of the attachment {_called(file)} are not there", kind="bad_request")
        family, _, kind = file.media_type.partition(";")[0].strip().lower().partition("/")
        if family == "image":
            return {"type": "image_url", "image_url": {"url": _data_url(file, data)}}
        if family == "audio":
            return {"type": "input_audio", "input_audio": {"data": _base64(data), "format": _AUDIO.get(kind, kind)}}
        if (family, kind) == ("application", "pdf"):
            return self._pdf(file, data)
        if family == "text" or kind in _TEXTS or kind.endswith(("+json", "+xml")):
            return _text_part(f"{_called(file)}:\n{data.decode('utf-8', 'replace')}")
        wanted = "pictures, sound, PDFs and text can be sent"
        raise ModelError(f"{_called(file)} is {bounded(file.media_type, 100)}: {wanted}", kind="bad_request")

    def _pdf(self, file: Attachment, data: bytes) -> dict[str, Any]:
        name = file.name or "document.pdf"
        if "document_url" in self.flags:
            return {"type": "document_url", "document_url": _data_url(file, data), "document_name": name}
        return {"type": "file", "file": {"filename": name, "file_data": _data_url(file, data)}}

    def _assistant(self, message: AssistantMessage) -> bytes:
        said: dict[str, Any] = {"role": "assistant"}
        text, refusal = text_of(message.parts), refusal_of(message.parts)
        if refusal and "refusal_field" in self.flags:
            said["refusal"] = refusal
        elif refusal:
            text = f"{text}\n{refusal}" if text else refusal
        if text:
            said["content"] = text
        calls = [self._call(call) for call in message.calls]
        if calls:
            said["tool_calls"] = calls
        if len(said) == 1:
            return b""  # nothing that may be sent: an answer that was cut off while the model thought
        for part in message.parts:
            if type(part) is Reasoning and part.route == self.route and isinstance(part.replay, dict):
                _think(said, part.text, cast("dict[str, Any]", part.replay))
        return _encode(said)

    def _call(self, call: ToolCall) -> dict[str, Any]:
        replay = _object(call.replay) if call.route == self.route else {}
        if replay.get("custom") and call.arguments is not None:
            shape: dict[str, Any] = {"name": _name(call.name), "input": _text(call.arguments.get("input"))}
            return {"id": self._id(call.id), "type": "custom", "custom": shape}
        # What was no JSON object is quoted in the result of the call; here everybody wants to read an object.
        arguments = "{}" if call.arguments is None else _encode(call.arguments).decode()
        function = {"name": _name(call.name), "arguments": arguments}
        sent: dict[str, Any] = {"id": self._id(call.id), "type": "function", "function": function}
        if "extra_content" in replay:
            sent["extra_content"] = replay["extra_content"]
        return sent

    def _results(self, message: ToolMessage) -> bytes:
        pieces: list[bytes] = []
        shown: list[dict[str, Any]] = []
        for result in message.results:
            content, files = self._content(result.content)
            pieces.append(_encode({"role": "tool", "tool_call_id": self._id(result.call_id), "content": content}))
            for file in files:
                shown += [_text_part(f"This is the file {_called(file)}:"), self._attachment(file)]
        if shown:
            # A tool message takes text alone, so files that tools gave are shown right after the results.
            if "assistant_after_tools" in self.flags:
                pieces.append(_OK)
            pieces.append(_encode({"role": "user", "content": shown}))
        return b",".join(pieces)

    def _content(self, content: Any) -> tuple[str, list[Attachment]]:  # noqa: ANN401  any JSON value
        if isinstance(content, str):
            return content, []
        items = cast("list[Any]", content) if isinstance(content, list) else [content]
        found = [self._as_file(item) for item in items]
        files = [file for file in found if file is not None]
        if not files:
            return _encode(content).decode(), []
        texts = [
            _result_text(item) if file is None else f"See the file {_called(file)}."
            for item, file in zip(items, found, strict=True)
        ]
        return "\n".join(texts), files

    def _as_file(self, item: Any) -> Attachment | None:  # noqa: ANN401  any JSON value
        if type(item) is Attachment:
            return item
        if not isinstance(item, dict):
            return None
        tagged = cast("dict[str, Any]", item)
        if tagged.get("type") != "attachment" or _text(tagged.get("digest")) not in self.files:
            return None
        try:
            return msgspec.convert(tagged, Attachment)
        except msgspec.ValidationError:
            return None

    def _id(self, id: str) -> str:
        if "call_ids_9" in self.flags and not _NINE.fullmatch(id):
            return _short(id)
        if "call_ids_40" in self.flags and len(id) > 40:
            return _made_id(id)
        return id or _made_id(id)


_AUDIO: Final = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "mp4": "m4a", "x-m4a": "m4a"}
_TEXTS: Final = frozenset(("json", "xml", "yaml", "x-yaml", "toml", "javascript", "x-sh", "sql", "csv", "x-ndjson"))
_NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
_LETTERS: Final = string.ascii_letters + string.digits
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _result_text(item: Any) -> str:  # noqa: ANN401  any JSON value
    return item if isinstance(item, str) else _encode(item).decode()


def _called(file: Attachment) -> str:
    return bounded(file.name, 200) if file.name else file.digest[:12]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _data_url(file: Attachment, data: bytes) -> str:
    return f"data:{file.media_type.partition(';')[0].strip()};base64,{_base64(data)}"


def _name(name: str) -> str:
    """A name that is accepted. Tools are named like this anyway; a model may have made one up."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unknown"


def _short(id: str) -> str:
    number = int.from_bytes(hashlib.sha256(id.encode("utf-8", "surrogatepass")).digest())
    letters: list[str] = []
    for _ in range(9):
        number, rest = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[rest])
    return "".join(letters)


def _made_id(seed: str) -> str:
    return f"call_{hashlib.sha256(seed.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _think(said: dict[str, Any], text: str, replay: dict[str, Any]) -> None:
    """Put reasoning into an assistant message, in the way in which its route wants it back."""
    field = replay.get("field")
    if "details" in replay:
        said["reasoning_details"] = [*said.get("reasoning_details", ()), *_list(replay["details"])]
    elif field == "thinking":
        answer: Any = said.get("content", [])
        after = [_text_part(answer)] if isinstance(answer, str) else answer
        said["content"] = [{"type": "thinking", "thinking": [_text_part(text)]}, *after]
    elif field in {"reasoning", "reasoning_content"}:
        said[field] = said.get(field, "") + text


# ---- the response ----------------------------------------------------------------------------------------------------


class _OpenCall:
    """A call as far as it has come."""

    __slots__ = ("arguments", "custom", "cut", "extra", "id", "index", "name", "shown")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.custom = False
        self.extra: Any = None
        self.shown = False
        """Whether an observer knows of it."""
        self.cut = False
        """The limit came before its arguments: that is not a call without any."""


class ChatFold:
    """The state of one response that is being read."""

    __slots__ = (
        *(
            "_calls",
            "_details",
            "_done",
            "_finish",
            "_flags",
            "_held",
            "_id",
            "_model",
            "_name",
            "_raw_usage",
            "_refusal",
        ),
        *("_route", "_started", "_text", "_thoughts", "_usage", "ignored", "paused"),
    )

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.ignored = 0
        """Frames, and parts of frames, that nobody here understands."""
        self.paused = False
        self._flags = endpoint.flags
        self._route = endpoint.route(model)
        self._name = f"{endpoint.provider}:{model}"
        self._model = model
        self._id: str | None = None
        self._started = False
        self._done = False
        self._finish: str | None = None
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._refusal: list[str] = []
        self._details: list[dict[str, Any]] = []
        self._calls: list[_OpenCall] = []
        self._usage = Usage()
        self._raw_usage: dict[str, Any] | None = None
        self._held = 0

    def feed(self, frame: Frame) -> list[StreamEvent]:
        """What a frame means. Raises a `ModelError` for an error that the provider puts into its stream."""
        data = frame.data
        if data[:1] != b"{":
            data = data.strip()
            if not data:
                return []
            if data == b"[DONE]":
                self._done = True
                return []
        if self._done:
            self.ignored += 1
            return []
        chunk = _read(data)
        if not isinstance(chunk, dict):
            self.ignored += 1
            return []
        return self._chunk(cast("dict[str, Any]", chunk), failed=frame.event == "error")

    def take_whole(self, body: bytes) -> None:
        """Read a body that did not come as a stream: it is whole because it can be read."""
        said = _read(body)
        if isinstance(said, list) and len(cast("list[Any]", said)) == 1:
            said = cast("list[Any]", said)[0]
        if not isinstance(said, dict):
            raise _bad("the body is no JSON object")
        chunk = cast("dict[str, Any]", said)
        choices = _list(chunk.get("choices"))
        if not choices and not chunk.get("error"):
            raise _bad("the body has no choices")
        self._chunk(chunk, failed=False)
        if self._finish is None:
            self._close("stop", [])

    def finish(self) -> ModelReply:
        """The whole reply; `StreamCut` when the provider has not said why it ended."""
        if self._finish is None:
            raise StreamCut(self._name)
        calls = [self._call(call) for call in self._calls]
        refusal = "".join(self._refusal)
        parts: list[Part] = [*self._reasoning()]
        if self._text:
            parts.append(Text("".join(self._text)))
        if refusal:
            parts.append(Refusal(refusal))
        parts += calls
        finish = _finished(self._finish, calls=bool(calls), refused=bool(refusal))
        return ModelReply(
            tuple(parts), finish, self._usage, self._model, raw_usage=self._raw_usage, response_id=self._id
        )

    def _chunk(self, chunk: dict[str, Any], *, failed: bool) -> list[StreamEvent]:
        error = chunk.get("error")
        if error or failed:
            raise _in_stream(error or chunk)
        choices = chunk.get("choices")
        usage = chunk.get("usage") or _object(chunk.get("x_groq")).get("usage")
        if not isinstance(choices, list) and not usage:
            self.ignored += 1
            return []
        events: list[StreamEvent] = []
        if not self._started:
            self._started = True
            self._model = _text(chunk.get("model"))[:1_000] or self._model
            events.append(StreamStart(self._model))
        if self._id is None:
            self._id = _text(chunk.get("id"))[:1_000] or None
        for choice in _list(choices):
            self._choice(_object(choice), events)
        if isinstance(usage, dict):
            self._count(cast("dict[str, Any]", usage), events)
        return events

    def _choice(self, choice: dict[str, Any], events: list[StreamEvent]) -> None:
        if choice.get("index") not in (0, None):
            self.ignored += 1
            return
        if choice.get("error"):
            raise _in_stream(choice["error"])
        said = choice.get("delta")
        if said is None and not (self._text or self._calls):
            said = choice.get("message")  # some send it instead of a delta; those who send both repeat themselves
        if isinstance(said, dict):
            self._take(cast("dict[str, Any]", said), events)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._close(reason, events)
        usage = choice.get("usage")
        if isinstance(usage, dict):
            self._count(cast("dict[str, Any]", usage), events)

    def _take(self, said: dict[str, Any], events: list[StreamEvent]) -> None:
        details = said.get("reasoning_details")
        thought = said.get("reasoning_content") or said.get("reasoning")
        if details:
            self._keep_details(_list(details))
            thought = thought or _summary(_list(details))
        if thought and isinstance(thought, str):
            self._say(self._thoughts, thought)
            events.append(ReasoningChunk(thought))
        content = said.get("content")
        if content:
            self._content(content, events)
        refusal = said.get("refusal")
        if refusal and isinstance(refusal, str):
            self._say(self._refusal, refusal)
            events.append(TextChunk(refusal))
        calls = said.get("tool_calls")
        if calls:
            for fragment in _list(calls):
                self._fragment(_object(fragment), events)
        old = said.get("function_call")
        if isinstance(old, dict):
            self._fragment({"index": 0, "function": old}, events)

    def _content(self, content: Any, events: list[StreamEvent]) -> None:  # noqa: ANN401  whatever came
        if isinstance(content, str):
            self._say(self._text, content)
            events.append(TextChunk(content))
            return
        for item in _list(content):
            part = _object(item)
            match part.get("type"):
                case "text" if text := _text(part.get("text")):
                    self._say(self._text, text)
                    events.append(TextChunk(text))
                case "thinking" if thought := _thinking(part.get("thinking")):
                    self._say(self._thoughts, thought)
                    events.append(ReasoningChunk(thought))
                case "text" | "thinking":
                    pass
                case _:
                    self.ignored += 1

    def _say(self, place: list[str], text: str) -> None:
        self._hold(len(text))
        place.append(text)

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > MAX_REPLY:
            raise ModelError(f"the reply is longer than {MAX_REPLY:,} characters", kind="bad_frame")

    def _keep_details(self, details: list[Any]) -> None:
        if "send_reasoning_details" not in self._flags:
            return
        for item in details:
            detail = _object(item)
            if not detail:
                continue
            self._hold(len(_encode(detail)))
            last = self._details[-1] if self._details else {}
            if _continues(last, detail):
                _merge(last, detail)
            else:
                self._details.append(dict(detail))

    # -- calls

    def _fragment(self, fragment: dict[str, Any], events: list[StreamEvent]) -> None:
        if self._finish is not None:
            self.ignored += 1
            return
        custom = isinstance(fragment.get("custom"), dict)
        function = _object(fragment.get("custom") if custom else fragment.get("function"))
        name, id = _text(function.get("name")), _text(fragment.get("id"))
        came: Any = function.get("input") if custom else function.get("arguments")
        index = fragment.get("index")
        call = self._addressed(index if type(index) is int else None, id, name, came)
        call.custom = call.custom or custom
        if fragment.get("extra_content") is not None:
            call.extra = fragment["extra_content"]
        call.id = call.id or id
        call.name = call.name or name
        # Some send the arguments as the object itself.
        more = came if isinstance(came, str) else _encode(came).decode() if isinstance(came, dict) else ""
        self._hold(len(more) + (len(id) + len(name) if not call.shown else 0))
        if more:
            call.arguments.append(more)
        if call.shown:
            if more:
                events.append(CallChunk(call.id, more))
        elif call.name:
            self._show(call, events)

    def _addressed(self, index: int | None, id: str, name: str, came: object) -> _OpenCall:
        """The call that a fragment belongs to: by its index, or by its id where everybody has the same index."""
        if index is None:
            found = next((call for call in reversed(self._calls) if id and call.id == id), None)
            if found is None and self._calls and not id and not name:
                found = self._calls[-1]
        else:
            found = next((call for call in reversed(self._calls) if call.index == index), None)
        if found is not None and not _another(found, id, name, came):
            return found
        if len(self._calls) >= MAX_CALLS:
            raise ModelError(f"the reply has more than {MAX_CALLS:,} tool calls", kind="bad_frame")
        call = _OpenCall(index)
        self._calls.append(call)
        return call

    def _show(self, call: _OpenCall, events: list[StreamEvent]) -> None:
        call.shown = True
        call.id = call.id or _made_id(f"{self._id or ''}/{self._calls.index(call)}")
        events.append(CallStart(call.id, call.name))
        if call.arguments:
            events.append(CallChunk(call.id, "".join(call.arguments)))

    def _close(self, reason: str, events: list[StreamEvent]) -> None:
        if self._finish is not None:
            return
        failure = _FAILURES.get(reason)
        if failure is not None:
            raise ModelError(f"the provider ended the reply with {reason!r}", kind=failure, retryable=True)
        self._finish = reason
        named = [call for call in self._calls if call.name or call.arguments]
        self.ignored += len(self._calls) - len(named)
        self._calls = named
        if named and _FINISHES.get(reason) == "output_limit" and not "".join(named[-1].arguments).strip():
            named[-1].cut = True
        for call in named:
            call.name = call.name or "unknown"
            if not call.shown:
                self._show(call, events)
            events.append(CallEnd(self._call(call)))

    def _call(self, call: _OpenCall) -> ToolCall:
        text = "".join(call.arguments)
        if call.custom:
            return ToolCall(call.id, call.name, {"input": text}, None, {"custom": True}, self._route)
        arguments, malformed = (None, text) if call.cut else _arguments(text)
        if call.extra is None:
            return ToolCall(call.id, call.name, arguments, malformed)
        return ToolCall(call.id, call.name, arguments, malformed, {"extra_content": call.extra}, self._route)

    # -- the rest

    def _reasoning(self) -> Iterable[Reasoning]:
        text = "".join(self._thoughts)
        if self._details:
            yield Reasoning(text, {"details": self._details}, self._route)
        elif text:
            field = next((field for flag, field in _SENT_AS if flag in self._flags), None)
            yield Reasoning(text) if field is None else Reasoning(text, {"field": field}, self._route)

    def _count(self, usage: dict[str, Any], events: list[StreamEvent]) -> None:
        self._raw_usage = usage
        counted = _usage(usage)
        if counted != self._usage:
            self._usage = counted
            events.append(StreamUsage(counted))


_SENT_AS: Final = (
    ("send_reasoning_content", "reasoning_content"),
    ("send_reasoning", "reasoning"),
    ("send_thinking_parts", "thinking"),
)

_FINISHES: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "length": "output_limit",
    "max_tokens": "output_limit",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
    "refusal": "refusal",
    "model_length": "context_overflow",
    "model_context_window_exceeded": "context_overflow",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}
"""How a reply may end. What is not here is `stop`, or `tool_calls` where there are calls."""

_FAILURES: Final[Mapping[str, str]] = {
    "error": "server_error",
    "abort": "server_error",
    "network_error": "network",
    "insufficient_system_resource": "overloaded",
}
"""Reasons that say that the reply is not whole."""


def _finished(reason: str, *, calls: bool, refused: bool) -> FinishReason:
    finish = _FINISHES.get(reason, "stop")
    if finish not in {"stop", "tool_calls"}:
        return finish
    if calls:
        return "tool_calls"  # many say "stop" here
    return "refusal" if refused else "stop"


def _another(call: _OpenCall, id: str, name: str, came: object) -> bool:
    """Whether a fragment begins another call, although it has the address of this one."""
    if not name:
        return False
    if id and call.id and id != call.id:
        return True
    if call.name and name != call.name:
        return True
    # The same tool again, without an id: another call when this one has all its arguments.
    return not id and bool(call.name) and bool(came) and _arguments("".join(call.arguments) or "[")[0] is not None


def _arguments(text: str) -> tuple[dict[str, Any] | None, str | None]:
    if not text.strip():
        return {}, None
    try:
        value = _decode(text)
    except _UNREADABLE:
        return None, text
    if value is None:
        return {}, None
    return (cast("dict[str, Any]", value), None) if isinstance(value, dict) else (None, text)


_GROWING: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}


def _continues(last: dict[str, Any], detail: dict[str, Any]) -> bool:
    """Whether a detail is the next piece of the last one. Encrypted ones come whole."""
    kind = _text(detail.get("type"))
    if kind not in _GROWING or last.get("type") != kind or last.get("index") != detail.get("index"):
        return False
    return last.get("id") is None or detail.get("id") is None or last["id"] == detail["id"]


def _merge(last: dict[str, Any], detail: dict[str, Any]) -> None:
    growing = _GROWING[cast("str", detail["type"])]
    for field, value in detail.items():
        if field == growing and isinstance(last.get(field), str):
            last[field] += _text(value)
        elif value is not None or field not in last:
            last[field] = value


def _summary(details: list[Any]) -> str:
    found = [_object(detail) for detail in details]
    return "".join([_text(detail.get(_GROWING.get(_text(detail.get("type")), ""))) for detail in found])


def _thinking(thinking: Any) -> str:  # noqa: ANN401  whatever came
    if isinstance(thinking, str):
        return thinking
    return "".join([_text(_object(part).get("text")) for part in _list(thinking)])


def _usage(usage: dict[str, Any]) -> Usage:
    """The counters of all who speak this dialect, as ours."""
    asked, answered = _object(usage.get("prompt_tokens_details")), _object(usage.get("completion_tokens_details"))
    prompt, output = _number(usage.get("prompt_tokens")), _number(usage.get("completion_tokens"))
    read = _first(asked.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens"))
    write = _first(asked.get("cache_write_tokens"), asked.get("cache_creation_tokens"))
    reasoning = _first(answered.get("reasoning_tokens"), usage.get("reasoning_tokens"))
    if reasoning and _number(usage.get("total_tokens")) == prompt + output + reasoning:
        output += reasoning  # theirs does not include it
    return Usage(max(prompt - read - write, 0), output, read, write, min(reasoning, output))


def _first(*values: Any) -> int:  # noqa: ANN401  whatever came
    return next((number for number in map(_number, values) if number), 0)


def _number(value: Any) -> int:  # noqa: ANN401  whatever came
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return min(max(int(value), 0), _MAX_COUNT)


def _object(value: Any) -> dict[str, Any]:  # noqa: ANN401  whatever came
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:  # noqa: ANN401  whatever came
    return cast("list[Any]", value) if isinstance(value, list) else []


def _text(value: Any) -> str:  # noqa: ANN401  whatever came
    return value if isinstance(value, str) else ""


def _read(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    try:
        return _decode(data)
    except _UNREADABLE as error:
        raise _bad(f"what came is no JSON: {bounded(error, 200)}") from None


def _bad(message: str) -> ModelError:
    return ModelError(message, kind="bad_frame", retryable=True)


# ---- errors ----------------------------------------------------------------------------------------------------------


class _Complaint(NamedTuple):
    """What a provider says about an error, wherever it says it."""

    message: str
    words: str
    """Code, type and the like, in lower case."""
    status: int | None
    retry_after: float | None


_OVERFLOW: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context length|context window|context size"
    r"|too many tokens|prompt is too long|input is too long|input length exceed|reduce the length"
    r"|reduce your message size|request too large for model",
)
_FILTERED: Final = re.compile(r"content_filter|content_policy|responsibleaipolicy|moderation|flagged_input")
_UNPAID: Final = re.compile(
    r"insufficient_quota|billing|insufficient.(?:balance|credit|funds)|exceeded your current quota",
)
_BAD_KEY: Final = re.compile(r"invalid_api_key|(?:incorrect|invalid) api key|api key not valid|authentication_error")
_RESAMPLED: Final = re.compile(r"tool_use_failed|output_parse_failed|json_validate_failed")
"""What the model made was refused by the provider itself: the same request may come out well the next time."""
_SECRET: Final = re.compile(
    r"(?i)(?<=bearer )\S+"
    r"|(?<=key provided: )[^\s.,]+"
    r"|\b(?:sk|gsk|xai|pplx|nvapi|csk|fw|hf|tgp|AIza)[-_][A-Za-z0-9_*-]{8,}|\bAIza[A-Za-z0-9_-]{16,}",
)
_REQUEST_IDS: Final = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid")

_STATUSES: Final[Mapping[int, tuple[str, bool]]] = {
    400: ("bad_request", False),
    401: ("authentication", False),
    402: ("billing", False),
    403: ("permission", False),
    404: ("not_found", False),
    408: ("timeout", True),
    409: ("server_error", True),
    425: ("server_error", True),
    429: ("rate_limited", True),
    498: ("overloaded", True),
    503: ("overloaded", True),
    504: ("timeout", True),
    529: ("overloaded", True),
}
"""What a status means when the words say nothing more, and whether the same request may succeed later."""

_WORDS: Final = (
    (re.compile(r"rate.?limit|too many requests"), ("rate_limited", True)),
    (re.compile(r"overloaded|unavailable|capacity"), ("overloaded", True)),
    (re.compile(r"timeout|timed.out"), ("timeout", True)),
    (re.compile(r"model_not_found|not_found"), ("not_found", False)),
    (re.compile(r"permission"), ("permission", False)),
    (re.compile(r"invalid_request|bad_request|validation"), ("bad_request", False)),
)
"""The same for errors without a status."""


def _http_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    head = {name.lower(): value for name, value in headers.items()}
    complaint = _complaint(_readable(body))
    message = complaint.message or "no reason was given"
    error = _mapped(complaint, status, f"HTTP {status}: {message}")
    error.status = status
    error.request_id = next((bounded(head[name], 200) for name in _REQUEST_IDS if head.get(name)), None)
    waiting = asked_in_headers(head)
    error.retry_after = waiting if waiting is not None else complaint.retry_after
    if head.get("x-should-retry", "").lower() == "false":
        error.retryable = False
    return error


def _in_stream(said: Any) -> ModelError:  # noqa: ANN401  whatever came
    """An error inside a response that had begun well."""
    complaint = _complaint(said)
    error = _mapped(complaint, complaint.status, complaint.message or "the provider ended the reply with an error")
    error.retry_after = complaint.retry_after
    return error


def _mapped(complaint: _Complaint, status: int | None, message: str) -> ModelError:
    message = bounded(_SECRET.sub("***", message), _MAX_MESSAGE)
    kind, retryable = _kind(status, complaint.words, complaint.message.lower())
    if kind == "context_overflow":
        return ContextOverflow(message)
    return ModelError(message, kind=kind, retryable=retryable)


def _kind(status: int | None, words: str, message: str) -> tuple[str, bool]:
    everything = f"{words} {message}"
    for pattern, kind, where in (
        (_RESAMPLED, ("server_error", True), words),
        (_FILTERED, ("content_filter", False), words),
        (_UNPAID, ("billing", False), everything),
        (_BAD_KEY, ("authentication", False), everything),
    ):
        if pattern.search(where):
            return kind
    if status != 429 and (status is None or status < 500 or "exceed_context" in words) and _OVERFLOW.search(everything):
        return "context_overflow", False
    if status is not None:
        return _STATUSES.get(status) or (("server_error", True) if status >= 500 else ("bad_request", False))
    return next((kind for pattern, kind in _WORDS if pattern.search(everything)), ("server_error", True))


def _readable(body: bytes) -> Any:  # noqa: ANN401  any JSON value, or the words themselves
    try:
        return _decode(body)
    except _UNREADABLE:
        return body[: 4 * _MAX_MESSAGE].decode("utf-8", "replace").strip()


def _complaint(said: Any) -> _Complaint:  # noqa: ANN401  whatever came
    if isinstance(said, list) and said:
        said = cast("list[Any]", said)[0]
    if not isinstance(said, dict):
        return _Complaint(_text(said), "", None, asked_in_words(_text(said)))
    top = cast("dict[str, Any]", said)
    inner = top.get("error")
    error = cast("dict[str, Any]", inner) if isinstance(inner, dict) else top
    message = _text(inner) or _words_of(error)
    metadata = _object(error.get("metadata"))
    raw = metadata.get("raw")
    if raw:
        message = f"{message}: {raw if isinstance(raw, str) else _encode(raw).decode()}"
    generated = _text(error.get("failed_generation"))
    if generated:
        message = f"{bounded(message, _MAX_MESSAGE // 2)} The model had made: {generated}"
    codes = [error.get("code"), error.get("type"), error.get("status"), _object(error.get("innererror")).get("code")]
    words = " ".join([code.lower() for code in codes if isinstance(code, str)])
    if metadata.get("flagged_input") is not None:
        words += " flagged_input"
    status = next((code for code in (error.get("status_code"), *codes) if _is_status(code)), None)
    return _Complaint(message, words, status, asked_in_words(message))


def _is_status(code: Any) -> bool:  # noqa: ANN401  whatever came
    return type(code) is int and 400 <= code < 600


def _words_of(error: dict[str, Any]) -> str:
    for field in ("message", "detail", "title", "errors"):
        value = error.get(field)
        if value:
            return value if isinstance(value, str) else _encode(value).decode()
    return ""
