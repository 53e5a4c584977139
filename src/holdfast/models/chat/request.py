"""Everything of a request but its messages, in the way in which an endpoint wants it. Pure."""

from __future__ import annotations

import hashlib
import re
import string
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote, urlencode

import msgspec

from holdfast.errors import InvalidArgument, ModelError
from holdfast.errors.world import NotOffered
from holdfast.messages import AssistantMessage, Attachment, Reasoning, Refusal, Text, ToolCall, ToolMessage, UserMessage
from holdfast.models.dialect import (
    NO_STREAM,
    PLAIN_WORDS,
    UNREADABLE,
    Once,
    Strictness,
    arguments_in,
    base64_of,
    bounded,
    data_url,
    is_strict,
    listed,
    made_id,
    mapping,
    pieces_of,
    sound,
    worded,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.messages import InputPart, Message, OutputSpec, Settings, ToolResult, ToolSpec
    from holdfast.models.dialect import Endpoint


_messages_encode: Final = msgspec.json.Encoder().encode
_OK: Final = {"role": "assistant", "content": "OK"}
"""What goes between results and a user message, where that is wanted."""
_ID_FLAGS: Final = frozenset(("call_ids_9", "call_ids_40"))


def opening(said: str, output: OutputSpec | None, flags: frozenset[str]) -> bytes | None:
    """The instructions as the first message."""
    if output is not None and (flags & {"json_object", "schema_in_words"} or not is_object(output)):
        schema = _messages_encode(output.schema).decode()
        words = f"Give the final answer as JSON and nothing else, in the shape of this JSON schema:\n{schema}"
        said = f"{said}\n\n{words}" if said else words
    if not said:
        return None
    role = "developer" if "developer" in flags else "user" if "instructions_as_user" in flags else "system"
    return _messages_encode({"role": role, "content": said})


def is_object(output: OutputSpec) -> bool:
    """Whether an answer is an object: only those can be demanded, other shapes are asked for in words."""
    return output.schema.get("type") == "object"


def in_place(messages: tuple[Message, ...], pieces: list[bytes], flags: frozenset[str]) -> list[bytes]:
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
            placed.append(_messages_encode(_OK))
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


class Writer:
    """Writes single messages for one route."""

    __slots__ = ("_keeps_ids", "dropped", "files", "flags", "route")

    def __init__(self, route: str, flags: frozenset[str], files: Mapping[str, bytes]) -> None:
        self.route = route
        self.flags = flags
        self.files = files
        self._keeps_ids = not flags & _ID_FLAGS
        self.dropped = 0
        """Parts with replay data that another route made, in the messages that were written here."""

    def message(self, message: Message) -> bytes:
        """One message of ours: none, one or several of theirs, joined by commas."""
        match message:
            case UserMessage():
                return self._user(message)
            case AssistantMessage():
                return self._assistant(message)
            case ToolMessage():
                return self._results(message)

    def _user(self, message: UserMessage) -> bytes:
        if "alternate" in self.flags:
            return b",".join([_messages_encode(self._part(part)) for part in message.parts]) or _messages_encode(
                _text_part("")
            )
        if all(type(part) is Text for part in message.parts) and len(message.parts) <= 1:
            return _messages_encode({"role": "user", "content": message.text})
        return _messages_encode({"role": "user", "content": [self._part(part) for part in message.parts]})

    def _part(self, part: InputPart) -> dict[str, Any]:
        return _text_part(part.text) if type(part) is Text else self._attachment(cast("Attachment", part))

    def _attachment(self, file: Attachment) -> dict[str, Any]:
        data = self.files.get(file.digest)
        if data is None:
            raise ModelError(f"the bytes of the attachment {_called(file)} are not there", kind="bad_request")
        family, kind = _family(file)
        if family == "image":
            return {"type": "image_url", "image_url": {"url": data_url(file.media_type, data)}}
        if family == "audio":
            return {"type": "input_audio", "input_audio": {"data": base64_of(data), "format": _AUDIO.get(kind, kind)}}
        if (family, kind) == ("application", "pdf"):
            return self._pdf(file, data)
        if _is_text(family, kind):
            return _text_part(f"{_called(file)}:\n{data.decode('utf-8', 'replace')}")
        wanted = "pictures, sound, PDFs and text can be sent"
        raise ModelError(f"{_called(file)} is {bounded(file.media_type, 100)}: {wanted}", kind="bad_request")

    def _pdf(self, file: Attachment, data: bytes) -> dict[str, Any]:
        name = file.name or "document.pdf"
        if "document_url" in self.flags:
            return {"type": "document_url", "document_url": data_url(file.media_type, data), "document_name": name}
        return {"type": "file", "file": {"filename": name, "file_data": data_url(file.media_type, data)}}

    def _assistant(self, message: AssistantMessage) -> bytes:
        text, refusal = "", ""
        calls: list[dict[str, Any]] = []
        thoughts: list[Reasoning] = []
        for part in message.parts:
            if type(part) is ToolCall:
                calls.append(self._call(part))
            elif type(part) is Text:
                text += part.text
            elif type(part) is Refusal:
                refusal += part.text
            elif type(part) is Reasoning:
                self.dropped += part.replay is not None and part.route != self.route
                thoughts.append(part)
        said: dict[str, Any] = {"role": "assistant"}
        if refusal and "refusal_field" in self.flags:
            said["refusal"] = refusal
        elif refusal:
            text = f"{text}\n{refusal}" if text else refusal
        if text:
            said["content"] = text
        if calls:
            said["tool_calls"] = calls
        if len(said) == 1:
            return b""  # nothing that may be sent: an answer that was cut off while the model thought
        self._think(said, thoughts)
        return _messages_encode(said)

    def _think(self, said: dict[str, Any], thoughts: list[Reasoning]) -> None:
        """Put reasoning into an assistant message, or what stands for it."""
        for thought in thoughts:
            if thought.route == self.route and isinstance(thought.replay, dict):
                _add_thought(said, thought.text, cast("dict[str, Any]", thought.replay))
        if "reasoning_content" not in said:
            # Another route thought here, or nobody did; the field is missed nevertheless.
            if "empty_reasoning_content" in self.flags:
                said["reasoning_content"] = ""
            elif "tool_calls" in said and "blank_reasoning_content" in self.flags:
                said["reasoning_content"] = " "

    def _call(self, call: ToolCall) -> dict[str, Any]:
        replay: dict[str, Any] = {}
        if call.replay is not None:
            if call.route == self.route:
                replay = mapping(call.replay)
            else:
                self.dropped += 1
        if replay.get("custom") and call.arguments is not None:
            shape: dict[str, Any] = {"name": tool_name(call.name), "input": worded(call.arguments.get("input"))}
            return {"id": self._id(call.id), "type": "custom", "custom": shape}
        # What was no JSON object is quoted in the result of the call; here everybody wants to read an object.
        arguments = "{}" if call.arguments is None else _messages_encode(call.arguments).decode()
        function = {"name": tool_name(call.name), "arguments": arguments}
        sent: dict[str, Any] = {"id": self._id(call.id), "type": "function", "function": function}
        if "extra_content" in replay:
            sent["extra_content"] = replay["extra_content"]
        return sent

    def _results(self, message: ToolMessage) -> bytes:
        said: list[dict[str, Any]] = []
        shown: list[dict[str, Any]] = []
        for result in message.results:
            content = result.content if isinstance(result.content, str) else self._content(result, shown)
            said.append({"role": "tool", "tool_call_id": self._id(result.call_id), "content": content})
        if shown:
            # A tool message takes text alone, so files that tools gave are shown right after the results.
            if "assistant_after_tools" in self.flags:
                said.append(_OK)
            said.append({"role": "user", "content": shown})
        return _messages_encode(said)[1:-1]

    def _content(self, result: ToolResult, shown: list[dict[str, Any]]) -> str:
        """What a call came to in words; the files that it speaks of are `shown`."""
        pieces = pieces_of(result, self.files, _label)
        if not pieces:
            return _messages_encode(result.content).decode()
        for file in [file for piece in pieces for file in ([piece.file] if piece.file else piece.inside)]:
            if _is_shown(file):
                shown += [_text_part(f"This is the file {_called(file)}:"), self._attachment(file)]
        return "\n".join(_result_text(piece.value) if piece.file is None else _label(piece.file) for piece in pieces)

    def _id(self, id: str) -> str:
        if self._keeps_ids and id:
            return id
        if "call_ids_9" in self.flags and not _NINE.fullmatch(id):
            return _short(id)
        if "call_ids_40" in self.flags and len(id) > 40:
            return made_id(id)
        return id or made_id(id)


_AUDIO: Final = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "mp4": "m4a", "x-m4a": "m4a"}
_TEXTS: Final = frozenset(("json", "xml", "yaml", "x-yaml", "toml", "javascript", "x-sh", "sql", "csv", "x-ndjson"))
_NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
_LETTERS: Final = string.ascii_letters + string.digits
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _result_text(item: Any) -> str:  # noqa: ANN401  any JSON value
    return item if isinstance(item, str) else _messages_encode(item).decode()


def _family(file: Attachment) -> tuple[str, str]:
    family, _, kind = file.media_type.partition(";")[0].strip().lower().partition("/")
    return family, kind


def _is_text(family: str, kind: str) -> bool:
    return family == "text" or kind in _TEXTS or kind.endswith(("+json", "+xml"))


def _is_shown(file: Attachment) -> bool:
    """Whether a file can be sent. One that a tool gave and that can't be is named in words: it must not end a turn."""
    family, kind = _family(file)
    return family in {"image", "audio"} or (family, kind) == ("application", "pdf") or _is_text(family, kind)


def _label(file: Attachment) -> str:
    """What stands in a result in place of a file."""
    return f"See the file {_called(file)}." if _is_shown(file) else f"[{_called(file)}, which can't be shown here]"


def _called(file: Attachment) -> str:
    return bounded(file.name, 200) if file.name else file.digest[:12]


@lru_cache(maxsize=4_096)
def tool_name(name: str) -> str:
    """A name that is accepted. Tools are named like this anyway; a model may have made one up."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unknown"


def _short(id: str) -> str:
    number = int.from_bytes(hashlib.sha256(id.encode("utf-8", "surrogatepass")).digest())
    letters: list[str] = []
    for _ in range(9):
        number, rest = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[rest])
    return "".join(letters)


def _add_thought(said: dict[str, Any], text: str, replay: dict[str, Any]) -> None:
    """Put reasoning into an assistant message, in the way in which its route wants it back."""
    field = replay.get("field")
    if "details" in replay:
        said["reasoning_details"] = [*said.get("reasoning_details", ()), *listed(replay["details"])]
    elif field == "thinking":
        answer: Any = said.get("content", [])
        after = [_text_part(answer)] if isinstance(answer, str) else answer
        said["content"] = [{"type": "thinking", "thinking": [_text_part(text)]}, *after]
    elif field in {"reasoning", "reasoning_content"}:
        said[field] = said.get(field, "") + text


_encode: Final = msgspec.json.Encoder().encode


def path_of(endpoint: Endpoint, model: str) -> str:
    """Where a request goes, below the base URL."""
    path = "/chat/completions"
    if "deployment_path" in endpoint.flags:
        path = f"/deployments/{quote(model, safe='')}{path}"
    return f"{path}?{urlencode(endpoint.query)}" if endpoint.query else path


def fields_of(
    model: str, settings: Settings, tools: tuple[ToolSpec, ...], output: OutputSpec | None, flags: frozenset[str]
) -> bytes:
    """Everything but the messages, as the beginning of an object."""
    if settings.compact_at is not None:
        raise NotOffered("settings.compact_at", model, "this dialect has no field for it; leave it out")
    fields: dict[str, Any] = {"model": model, "stream": NO_STREAM not in flags}
    if fields["stream"] and "no_stream_usage" not in flags:
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
    if output is not None and "schema_in_words" not in flags and is_object(output):
        fields["response_format"] = _response_format(output, flags)
    if settings.cache and "cache_control" in flags:
        fields["cache_control"] = {"type": "ephemeral"}
    if tools:
        encoded = _strict_tools if "strict_tools" in flags else _loose_tools
        fields["tools"] = msgspec.Raw(encoded(tools))
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
    shape = {"name": tool_name(output.name), "schema": output.schema, "strict": allows_strict(output.schema)}
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


_RULES: Final = Strictness(
    PLAIN_WORDS
    | {"definitions", "minItems", "maxItems", "pattern", "format"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")),
    depth=10,
    properties=5_000,
)


def allows_strict(schema: object) -> bool:
    """Whether the provider can hold a model to `schema`: all properties required, none other allowed, plain words."""
    return is_strict(schema, _RULES)


def _tools(tools: tuple[ToolSpec, ...], *, strict: bool) -> bytes:
    return _encode([_tool(tool, strict=strict) for tool in tools])


def _tool(tool: ToolSpec, *, strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if strict and allows_strict(tool.parameters):
        function["strict"] = True
    return {"type": "function", "function": function}


_loose_tools: Final = Once(partial(_tools, strict=False))
_strict_tools: Final = Once(partial(_tools, strict=True))

_OUTSIDE: Final = re.compile(r'["{}]')
_IN_TEXT: Final = re.compile(r'["\\]')
_FEW: Final = 4
"""Pieces in which "null" may come."""


class ObjectEnd:
    """How far the pieces of a text have been looked at, and whether they end an object."""

    __slots__ = ("_depth", "_escaped", "_over", "_quoted", "_seen", "_whole")

    def __init__(self) -> None:
        self._seen = 0
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._over = False
        """Whether as many braces were closed as were opened."""
        self._whole: bool | None = None
        """Whether that is an object; None as long as nobody had to read it."""

    def reached(self, pieces: list[str]) -> bool:
        """Whether `pieces`, which only ever grow at their end, are an object, or the null that stands for an empty one.

        Each piece is looked at once, and the text is read once.
        """
        while self._seen < len(pieces):
            self._look_at(pieces[self._seen])
            self._seen += 1
        if not self._over:
            return len(pieces) <= _FEW and "".join(pieces).strip() == "null"
        if self._whole is None:
            self._whole = arguments_in("".join(pieces))[0] is not None
        return self._whole

    def _look_at(self, piece: str) -> None:
        place = 0
        if self._escaped and piece:
            place, self._escaped = 1, False
        while not self._over:
            found = (_IN_TEXT if self._quoted else _OUTSIDE).search(piece, place)
            if found is None:
                return
            place = found.end()
            match found[0]:
                case '"':
                    self._quoted = not self._quoted
                case "\\":
                    self._escaped = place == len(piece)
                    place += 1
                case "{":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    self._over = self._depth <= 0
        if piece[place:].strip():
            self._whole = False  # nothing may follow an object


_GROWING: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The kinds of details that come in pieces, and the field in which they grow. Encrypted ones come whole."""
_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
"""Where endpoints tell what a model thinks. Those who fill two of them repeat themselves."""
_details_encode: Final = msgspec.json.Encoder().encode


class Details:
    """The details of a reply, in the order in which they began."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[tuple[dict[str, Any], list[str]]] = []
        """Each without the text that grows, and the pieces of that."""

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, detail: dict[str, Any]) -> None:
        """Take a detail, or the next piece of the last one."""
        if not self._kept or not _continues(self._kept[-1][0], detail):
            self._kept.append(({}, []))
        kept, pieces = self._kept[-1]
        growing = _GROWING.get(worded(detail.get("type")))
        for field, value in detail.items():
            if field == growing and isinstance(value, str):
                pieces.append(value)
                kept[field] = ""
            elif (value is not None and not (field == growing and pieces)) or field not in kept:
                kept[field] = value

    def all(self) -> list[dict[str, Any]]:
        """The details as they came, each whole."""
        return [{**kept, _GROWING[kept["type"]]: "".join(pieces)} if pieces else kept for kept, pieces in self._kept]


def _continues(last: dict[str, Any], detail: dict[str, Any]) -> bool:
    """Whether a detail is the next piece of the last one."""
    kind = worded(detail.get("type"))
    if kind not in _GROWING or last.get("type") != kind or last.get("index") != detail.get("index"):
        return False
    return last.get("id") is None or detail.get("id") is None or last["id"] == detail["id"]


def summary_of(details: list[Any]) -> str:
    """What details say that can be read."""
    found = [mapping(detail) for detail in details]
    return "".join([worded(detail.get(_GROWING.get(worded(detail.get("type")), ""))) for detail in found])


def thought_in(said: dict[str, Any]) -> str:
    """What a message, or a piece of one, tells of the thoughts of the model."""
    return words_of(next((said[name] for name in _FIELDS if said.get(name)), ""))


def words_of(thought: Any) -> str:  # noqa: ANN401  whatever came
    """A thought that may be told as a text, as an object with one, or as a list of such."""
    if isinstance(thought, str):
        return thought
    told = mapping(thought)
    if told:
        return worded(told.get("text")) or worded(told.get("content"))
    return "".join([worded(mapping(part).get("text")) for part in listed(thought)])


def size_of(detail: dict[str, Any]) -> int:
    """How much room a detail takes, in bytes."""
    try:
        return len(_details_encode(detail))
    except UNREADABLE:  # half a character
        return len(_details_encode(sound(detail)))
