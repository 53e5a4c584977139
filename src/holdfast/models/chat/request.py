"""Requests of the chat dialect. Pure."""

from __future__ import annotations

import hashlib
import re
import string
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

import msgspec

from holdfast.errors import InvalidArgument, ModelError
from holdfast.errors.world import NotOffered
from holdfast.messages import AssistantMessage, Attachment, Reasoning, Refusal, Text, ToolCall, ToolMessage, UserMessage
from holdfast.models.dialect import (
    COMMON_STRICT_KEYWORDS,
    NO_STREAM,
    IdentityCache,
    MessageEncoder,
    StrictSchemaRules,
    WireRequest,
    as_list,
    as_text,
    attachment_bytes,
    clip_text,
    data_url,
    derive_call_id,
    encode_json,
    encode_messages,
    fits_strict,
    split_result,
    to_base64,
    to_text,
    with_query,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.messages import InputPart, Message, ModelRequest, OutputSpec, Settings, ToolResult, ToolSpec
    from holdfast.models.dialect import Endpoint


def encode_request(endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
    """Encode a request. The bytes of messages are joined, and not encoded again."""
    flags = endpoint.flags
    encoder = ChatMessageEncoder(endpoint.route(model), request.files, flags)
    encoded = encode_messages(request, _cache_key(flags, endpoint.route(model)), encoder.encode)
    messages = _order_messages(request.messages, encoded, flags)
    fields, first = _beginning(model, request.settings, request.tools, request.output, request.instructions, flags)
    if first is not None:
        messages.insert(0, first)
    body = b"".join((fields, b',"messages":[', b",".join(messages), b"]}"))
    path = "/chat/completions"
    if "deployment_path" in flags:
        path = f"/deployments/{quote(model, safe='')}{path}"
    return WireRequest(with_query(path, endpoint.query), body, dropped=encoder.dropped)


@lru_cache(maxsize=1_024)
def _cache_key(flags: frozenset[str], route: str) -> str:
    """Return the key under which a conversation keeps its encoded messages."""
    return f"chat {' '.join(sorted(flags))} {route}"


# ---- fields ----

_RULES: Final = StrictSchemaRules(
    COMMON_STRICT_KEYWORDS
    | {"definitions", "minItems", "maxItems", "pattern", "format"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")),
    depth=10,
    properties=5_000,
)


@IdentityCache
def _beginning(
    model: str,
    settings: Settings,
    tools: tuple[ToolSpec, ...],
    output: OutputSpec | None,
    instructions: str,
    flags: frozenset[str],
) -> tuple[bytes, bytes | None]:
    """Encode what all requests of an agent share: the fields, as the beginning of an object, and the first message."""
    if settings.compact_at is not None:
        raise NotOffered("settings.compact_at", model, "this dialect has no field for it; leave it out")
    fields: dict[str, Any] = {"model": model, "stream": NO_STREAM not in flags}
    if fields["stream"] and "no_stream_usage" not in flags:
        fields["stream_options"] = {"include_usage": True}
    values = {
        "max_tokens" if "max_tokens" in flags else "max_completion_tokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "random_seed" if "random_seed" in flags else "seed": settings.seed,
        "stop": settings.stop or None,
    }
    fields.update({name: value for name, value in values.items() if value is not None})
    effort = settings.effort
    if effort is not None and "thinking_switch" in flags:
        fields["thinking"] = {"type": "disabled" if effort == "none" else "enabled"}
    if effort is not None and "no_effort" not in flags and not ("thinking_switch" in flags and effort == "none"):
        if "effort_object" in flags:
            fields["reasoning"] = {"effort": effort}
        else:
            fields["reasoning_effort"] = effort
    if output is not None:
        # Only objects can be enforced; other schemas go into the instructions.
        is_object = output.schema.get("type") == "object"
        if is_object and "json_object" in flags and "schema_in_words" not in flags:
            fields["response_format"] = {"type": "json_object"}
        elif is_object and "schema_in_words" not in flags:
            shape = {"name": tool_name(output.name), "schema": output.schema, "strict": allows_strict(output.schema)}
            fields["response_format"] = {"type": "json_schema", "json_schema": shape}
        if not is_object or flags & {"json_object", "schema_in_words"}:
            schema = encode_json(output.schema).decode()
            prompt = f"Give the final answer as JSON and nothing else, in the shape of this JSON schema:\n{schema}"
            instructions = f"{instructions}\n\n{prompt}" if instructions else prompt
    if settings.cache and "cache_control" in flags:
        fields["cache_control"] = {"type": "ephemeral"}
    own = b""
    if tools:
        own = _tools(tools, "strict_tools" in flags)
        fields["tools"] = msgspec.Raw(own)
        if settings.tool_choice != "auto":
            fields["tool_choice"] = settings.tool_choice
        if settings.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = settings.parallel_tool_calls
    if extra := settings.extra:
        if "messages" in extra:
            raise InvalidArgument("settings.extra", "messages", "a field that is not made from the conversation")
        fields.update(extra)
        more = extra.get("tools")
        if own and isinstance(more, list):  # tools are added to ours; everything else replaces ours
            fields["tools"] = msgspec.Raw(b",".join((own[:-1], encode_json(more)[1:])) if more else own)
    first = None
    if instructions:
        role = "developer" if "developer" in flags else "user" if "instructions_as_user" in flags else "system"
        first = encode_json({"role": role, "content": instructions})
    return encode_json(fields)[:-1], first


def allows_strict(schema: object) -> bool:
    """True if the provider can enforce `schema`: all properties required, no others allowed, known keywords only."""
    return fits_strict(schema, _RULES)


@IdentityCache
def _tools(tools: tuple[ToolSpec, ...], strict: bool) -> bytes:  # noqa: FBT001  the cache takes positions only
    made: list[dict[str, Any]] = []
    for tool in tools:
        function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        if strict and allows_strict(tool.parameters):
            function["strict"] = True
        made.append({"type": "function", "function": function})
    return encode_json(made)


# ---- messages ----

_OK: Final = {"role": "assistant", "content": "OK"}
"""Goes between tool results and a user message, for endpoints that want it."""
_AUDIO_FORMATS: Final = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "mp4": "m4a", "x-m4a": "m4a"}
_TEXT_TYPES: Final = frozenset(
    ("json", "xml", "yaml", "x-yaml", "toml", "javascript", "x-sh", "sql", "csv", "x-ndjson")
)
_NINE_CHARACTERS: Final = re.compile(r"[a-zA-Z0-9]{9}")
_LETTERS: Final = string.ascii_letters + string.digits
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


def _order_messages(messages: tuple[Message, ...], pieces: list[bytes], flags: frozenset[str]) -> list[bytes]:
    """Apply the flags that depend on neighbouring messages."""
    if not flags & {"alternate", "assistant_after_tools"}:
        return [piece for piece in pieces if piece]
    placed: list[bytes] = []
    before: type[Message] | None = None
    for message, piece in zip(messages, pieces, strict=True):
        if not piece:
            continue
        kind = type(message)
        if "alternate" in flags and kind is UserMessage:  # here pieces are parts
            begin = b'{"role":"user","content":['
            if before is UserMessage:
                begin = placed.pop()[:-2] + b","
            placed.append(begin + piece + b"]}")
        else:
            if "alternate" not in flags and before is ToolMessage and kind is UserMessage:
                placed.append(encode_json(_OK))
            placed.append(piece)
        before = kind
    return placed


class ChatMessageEncoder(MessageEncoder):
    """Encodes each message as none, one or several of the provider's, joined by commas."""

    def __init__(self, route: str, files: Mapping[str, bytes], flags: frozenset[str]) -> None:
        super().__init__(route, files)
        self._flags = flags
        self._keeps_ids = not flags & {"call_ids_9", "call_ids_40"}

    def encode(self, message: Message) -> bytes:
        """Encode a message; with the flag ``alternate``, a user message as its parts."""
        match message:
            case UserMessage():
                if "alternate" in self._flags:
                    return encode_json([self._part(part) for part in message.parts] or [_text_part("")])[1:-1]
                if all(type(part) is Text for part in message.parts) and len(message.parts) <= 1:
                    return encode_json({"role": "user", "content": message.text})
                return encode_json({"role": "user", "content": [self._part(part) for part in message.parts]})
            case AssistantMessage():
                return self._assistant(message)
            case ToolMessage():
                return self._results(message)

    def _part(self, part: InputPart) -> dict[str, Any]:
        return _text_part(part.text) if type(part) is Text else self._attachment(cast("Attachment", part))

    def _attachment(self, file: Attachment) -> dict[str, Any]:
        data = attachment_bytes(file, self._files)
        family, kind = _family(file)
        if family == "image":
            return {"type": "image_url", "image_url": {"url": data_url(file.media_type, data)}}
        if family == "audio":
            return {
                "type": "input_audio",
                "input_audio": {"data": to_base64(data), "format": _AUDIO_FORMATS.get(kind, kind)},
            }
        if (family, kind) == ("application", "pdf"):
            name, url = file.name or "document.pdf", data_url(file.media_type, data)
            if "document_url" in self._flags:
                return {"type": "document_url", "document_url": url, "document_name": name}
            return {"type": "file", "file": {"filename": name, "file_data": url}}
        if _is_text(family, kind):
            return _text_part(f"{_name(file)}:\n{data.decode('utf-8', 'replace')}")
        message = f"{_name(file)} is {clip_text(file.media_type, 100)}: pictures, sound, PDFs and text can be sent"
        raise ModelError(message, kind="bad_request")

    def _assistant(self, message: AssistantMessage) -> bytes:
        text, refusal = "", ""
        calls: list[dict[str, Any]] = []
        thoughts: list[tuple[str, dict[str, Any]]] = []
        for part in message.parts:
            if type(part) is ToolCall:
                calls.append(self._call(part))
            elif type(part) is Text:
                text += part.text
            elif type(part) is Refusal:
                refusal += part.text
            elif type(part) is Reasoning:
                thoughts.append((part.text, self._own_replay(part)))
        said: dict[str, Any] = {"role": "assistant"}
        if refusal and "refusal_field" in self._flags:
            said["refusal"] = refusal
        elif refusal:
            text = f"{text}\n{refusal}" if text else refusal
        if text:
            said["content"] = text
        if calls:
            said["tool_calls"] = calls
        if len(said) == 1:
            return b""  # the reply was cut off while the model thought
        for thought, replay in thoughts:
            field = replay.get("field")
            if "details" in replay:
                said["reasoning_details"] = [*said.get("reasoning_details", ()), *as_list(replay["details"])]
            elif field == "thinking":
                answer: Any = said.get("content", [])
                after = [_text_part(answer)] if isinstance(answer, str) else answer
                said["content"] = [{"type": "thinking", "thinking": [_text_part(thought)]}, *after]
            elif field in {"reasoning", "reasoning_content"}:
                said[field] = said.get(field, "") + thought
        if "reasoning_content" not in said:
            # The endpoint wants the field, though the model did not think, or another route did.
            if "empty_reasoning_content" in self._flags:
                said["reasoning_content"] = ""
            elif calls and "blank_reasoning_content" in self._flags:
                said["reasoning_content"] = " "
        return encode_json(said)

    def _call(self, call: ToolCall) -> dict[str, Any]:
        replay = self._own_replay(call)
        if replay.get("custom") and call.arguments is not None:
            shape: dict[str, Any] = {"name": tool_name(call.name), "input": as_text(call.arguments.get("input"))}
            return {"id": self._id(call.id), "type": "custom", "custom": shape}
        # Malformed arguments are quoted in the result of the call; providers want to read an object here.
        arguments = "{}" if call.arguments is None else encode_json(call.arguments).decode()
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
            # A tool message holds text only, so files follow the results in a user message.
            if "assistant_after_tools" in self._flags:
                said.append(_OK)
            said.append({"role": "user", "content": shown})
        return encode_json(said)[1:-1]

    def _content(self, result: ToolResult, shown: list[dict[str, Any]]) -> str:
        """Return a result as text, and add its files to `shown`."""
        pieces = split_result(result, self._files, _label)
        if not pieces:
            return encode_json(result.content).decode()
        for file in [file for piece in pieces for file in ([piece.file] if piece.file else piece.inside)]:
            if _is_shown(file):
                shown += [_text_part(f"This is the file {_name(file)}:"), self._attachment(file)]
        return "\n".join(to_text(piece.value) if piece.file is None else _label(piece.file) for piece in pieces)

    def _id(self, id: str) -> str:
        if self._keeps_ids and id:
            return id
        if "call_ids_9" in self._flags and not _NINE_CHARACTERS.fullmatch(id):
            number = int.from_bytes(hashlib.sha256(id.encode("utf-8", "surrogatepass")).digest())
            return "".join([_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(9)])
        if "call_ids_40" in self._flags and len(id) > 40:
            return derive_call_id(id)
        return id or derive_call_id(id)


@lru_cache(maxsize=4_096)
def tool_name(name: str) -> str:
    """Make the name of a tool valid. Only a name that a model invented can be invalid."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unknown"


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _family(file: Attachment) -> tuple[str, str]:
    family, _, kind = file.media_type.partition(";")[0].strip().lower().partition("/")
    return family, kind


def _is_text(family: str, kind: str) -> bool:
    return family == "text" or kind in _TEXT_TYPES or kind.endswith(("+json", "+xml"))


def _is_shown(file: Attachment) -> bool:
    """True if a file can be sent. A tool result with any other file only names it, so that the turn goes on."""
    family, kind = _family(file)
    return family in {"image", "audio"} or (family, kind) == ("application", "pdf") or _is_text(family, kind)


def _label(file: Attachment) -> str:
    return f"See the file {_name(file)}." if _is_shown(file) else f"[{_name(file)}, which can't be shown here]"


def _name(file: Attachment) -> str:
    return clip_text(file.name, 200) if file.name else file.digest[:12]
