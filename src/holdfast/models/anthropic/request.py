"""Requests of the Anthropic dialect. Pure."""

from __future__ import annotations

import binascii
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from holdfast.errors import InvalidArgument, ModelError
from holdfast.errors.world import NotOffered
from holdfast.messages import AssistantMessage, Attachment, Reasoning, Text, ToolCall, ToolMessage, UserMessage
from holdfast.models.contract import claude_version
from holdfast.models.dialect import (
    EMPTY_FILE,
    EMPTY_MESSAGE,
    NO_STREAM,
    IdentityCache,
    MessageEncoder,
    WireRequest,
    as_dict,
    as_text,
    attachment_bytes,
    attachment_label,
    clip_text,
    encode_json,
    encode_messages,
    split_result,
    to_text,
    with_query,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.messages import (
        Effort,
        InputPart,
        Message,
        ModelRequest,
        OutputSpec,
        Part,
        Refusal,
        ToolResult,
        ToolSpec,
    )
    from holdfast.models.dialect import Endpoint

VERSION: Final = "2023-06-01"
"""Version of the API, sent as a header."""
MAX_OUTPUT_TOKENS: Final = 8_192
"""Default for the answer; thinking comes on top."""
MAX_MARKED: Final = 2
"""Messages with a marker for the prompt cache. Instructions and tools have one each; the provider takes four."""
_MARK: Final = b',"cache_control":{"type":"ephemeral"}}'
_RESERVED_FIELDS: Final = frozenset(("messages", "model", "stream", "system"))
_BUDGETS: Final[dict[Effort, int]] = {
    "none": 0,
    "minimal": 1_024,
    "low": 2_048,
    "medium": 8_192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 49_152,
}
_LEAST_TOP_P: Final = 0.95
"""A Claude that thinks takes no lower one."""
_LEAST_BUDGET: Final = 1_024
_THOUGHTS: Final = (b'{"type":"thinking"', b'{"type":"redacted_thinking"')


def encode_request(endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
    """Encode a request. The bytes of messages are joined, and not encoded again."""
    route = endpoint.route(model)
    encoder = AnthropicMessageEncoder(route, request.files)
    messages = encode_messages(request, f"anthropic {route}", encoder.encode)
    settings = request.settings
    edits = None if settings.compact_at is None else context_edits(model, claude_version(model), settings.compact_at)
    marks = MAX_MARKED if settings.cache and "cache_control" not in (settings.extra or ()) else 0
    notes: list[str] = []
    fields = encode_json(_fields(endpoint, model, request, messages, edits, notes))[:-1]
    body = b"".join([fields, b',"messages":[', *_join_messages(request.messages, messages, marks), b"]}"])
    headers = {"anthropic-version": VERSION, "content-type": "application/json"}
    extra_betas = map(str, (settings.extra or {}).get("betas") or ())
    if betas := dict.fromkeys([*required_betas(edits, messages), *extra_betas]):
        configured = [value for name, value in endpoint.headers.items() if name.lower() == "anthropic-beta"]
        headers["anthropic-beta"] = ",".join([*configured, *betas])
    path = with_query("/v1/messages", endpoint.query)
    return WireRequest(path, body, headers, encoder.dropped, tuple(notes))


def _fields(
    endpoint: Endpoint,
    model: str,
    request: ModelRequest,
    messages: Sequence[bytes],
    edits: ContextEdits | None,
    notes: list[str],
) -> dict[str, Any]:
    """Make all fields but the messages: short ones first, then instructions and tools, which stay the same.

    `notes` gets the settings that can't be sent.
    """
    settings = request.settings
    extra = settings.extra or {}
    if taken := _RESERVED_FIELDS & extra.keys():
        raise InvalidArgument(
            "settings.extra", sorted(taken), f"other fields than {', '.join(sorted(_RESERVED_FIELDS))}"
        )
    mark = _MARK if settings.cache else b"}"
    fields: dict[str, Any] = {"model": model, "stream": NO_STREAM not in endpoint.flags}
    output_config = _add_thinking(endpoint, model, request, messages, fields)
    thinks = as_dict(fields.get("thinking")).get("type") not in {None, "disabled"}
    if settings.temperature is not None:
        if thinks:
            notes.append("temperature is left out: the provider takes none while the model thinks")
        else:
            fields["temperature"] = settings.temperature
    if settings.top_p is not None:
        if thinks and settings.top_p < _LEAST_TOP_P:
            notes.append(f"top_p is left out: while the model thinks the provider takes none below {_LEAST_TOP_P}")
        else:
            fields["top_p"] = settings.top_p
    if settings.stop:
        fields["stop_sequences"] = settings.stop
    if container := _container(request.messages, endpoint.route(model)):
        fields["container"] = container
    if edits is not None:
        fields["context_management"] = edits.field
    schema = b""
    if request.output is not None and "output_in_words" not in endpoint.flags and claude_version(model) >= (4, 1):
        schema = _output_format(request.output)
    if schema:
        output_config["format"] = msgspec.Raw(schema)
    output_config.update(as_dict(extra.get("output_config")))
    fields.update((name, value) for name, value in extra.items() if name not in {"betas", "tools", "output_config"})
    if output_config:
        fields["output_config"] = output_config
    schema_words = b"" if schema or request.output is None else _output_instructions(request.output)
    if system := b",".join([block for block in (text_block(request.instructions), schema_words) if block]):
        fields["system"] = msgspec.Raw(b"[%b%b]" % (system[:-1], mark))
    extra_tools = b",".join([encode_json(tool) for tool in extra.get("tools") or ()])
    tools = _tools(request.tools)
    if tools:
        tools = tools[:-1] + mark
    if extra_tools or tools:
        fields["tools"] = msgspec.Raw(b"[%b]" % b",".join([some for some in (extra_tools, tools) if some]))
        choice: dict[str, Any] = {"type": {"auto": "auto", "none": "none", "required": "any"}[settings.tool_choice]}
        if settings.parallel_tool_calls is False and settings.tool_choice != "none":
            choice["disable_parallel_tool_use"] = True
        if choice != {"type": "auto"}:
            fields.setdefault("tool_choice", choice)
    return fields


def _add_thinking(
    endpoint: Endpoint, model: str, request: ModelRequest, messages: Sequence[bytes], fields: dict[str, Any]
) -> dict[str, Any]:
    """Add thinking and the tokens for it to `fields`; return the fields of ``output_config``."""
    settings = request.settings
    effort, limit = settings.effort, settings.max_output_tokens
    fields["max_tokens"] = limit or MAX_OUTPUT_TOKENS
    if effort is None:
        return {}
    adaptive = "adaptive_thinking" in endpoint.flags or (
        "budget_thinking" not in endpoint.flags and claude_version(model) >= (4, 6)
    )
    if effort == "none":
        if adaptive:  # other models don't think by default
            fields["thinking"] = {"type": "disabled"}
        return {}
    budget = _BUDGETS[effort]
    forced = settings.tool_choice == "required"  # the provider refuses thinking before a call that is forced
    if adaptive:
        if not forced:
            fields["max_tokens"] = limit or MAX_OUTPUT_TOKENS + budget
            fields["thinking"] = {"type": "adaptive"}
        return {"effort": "low" if effort == "minimal" else effort}
    room = limit or MAX_OUTPUT_TOKENS + budget
    budget = min(budget, room - 1)
    checked = claude_version(model) > (0, 0) or "budget_thinking" in endpoint.flags
    if checked and not _turn_has_thoughts(request.messages, messages):
        # With a budget, the current turn must begin with thoughts. It has none if another route began it, or if a call
        # was forced. Then this turn ends without thinking, and the next one thinks again.
        return {}
    if budget >= _LEAST_BUDGET and not forced:
        fields["max_tokens"] = room
        fields["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return {}


def _turn_has_thoughts(messages: Sequence[Message], pieces: Sequence[bytes]) -> bool:
    """True if the current turn sends thoughts, or has not begun.

    Some models think only at the beginning of a turn, so later replies may have no thoughts.
    """
    begun = False
    answered: bool | None = None
    # Tool results stand between two replies of the same turn, and never between two turns.
    for message, piece in zip(reversed(messages), reversed(pieces), strict=True):
        kind = type(message)
        if kind is ToolMessage:
            answered = True
        elif not piece:
            continue
        elif kind is not AssistantMessage:
            answered = answered or False
        elif answered is False:
            break
        elif piece.startswith(_THOUGHTS):
            return True
        else:
            begun, answered = True, None
    return not begun


def _container(messages: Sequence[Message], route: str) -> str:
    """Return the container of the code that waits for the tool results at the end of `messages`."""
    if len(messages) < 2 or type(messages[-1]) is not ToolMessage or type(messages[-2]) is not AssistantMessage:
        return ""
    found = [as_dict(call.replay).get("container") for call in messages[-2].calls if call.route == route]
    return next((as_text(container) for container in found if container), "")


@IdentityCache
def _tools(tools: Sequence[ToolSpec]) -> bytes:
    fields = [{"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools]
    return encode_json(fields)[1:-1]


@IdentityCache
def _output_format(output: OutputSpec) -> bytes:
    """Encode the schema, or return nothing if the provider can't enforce it."""
    schema = narrow_schema(output.schema)
    return b"" if schema is None else encode_json({"type": "json_schema", "schema": schema})


@IdentityCache
def _output_instructions(output: OutputSpec) -> bytes:
    schema = encode_json(output.schema).decode()
    return text_block(f"Answer with JSON and nothing else. It must match this JSON schema:\n{schema}")


# ---- messages ----

_OPEN: Final = (b'{"role":"user","content":[', b'{"role":"assistant","content":[')
_NEXT: Final = (b"]}," + _OPEN[0], b"]}," + _OPEN[1])
_VALID_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_INVALID_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_IMAGE_TYPES: Final = {f"image/{kind}": f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp")}
_IMAGE_TYPES["image/jpg"] = "image/jpeg"
_TEXT_TYPES: Final = frozenset(f"application/{kind}" for kind in ("json", "xml", "yaml", "x-yaml", "toml", "sql"))


def _join_messages(messages: Sequence[Message], pieces: list[bytes], marks: int) -> list[bytes]:
    """Merge neighbours of the same role, and put cache markers on the last `marks` user messages."""
    pieces = _mark_for_cache(messages, pieces, marks) if marks else pieces
    joined: list[bytes] = []
    role: bool | None = None
    for message, piece in zip(messages, pieces, strict=True):
        if not piece:
            continue
        is_assistant = type(message) is AssistantMessage
        if is_assistant is role:
            joined.append(b",")
        else:
            joined.append((_OPEN if role is None else _NEXT)[is_assistant])
            role = is_assistant
        joined.append(piece)
    if joined:
        joined.append(b"]}")
    return joined


def _mark_for_cache(messages: Sequence[Message], pieces: list[bytes], count: int) -> list[bytes]:
    pieces = pieces.copy()
    ended = True
    for index in range(len(pieces) - 1, -1, -1):
        if not pieces[index]:
            continue
        if type(messages[index]) is AssistantMessage:
            ended = True
        elif ended:
            pieces[index] = pieces[index][:-1] + _MARK
            ended = False
            count -= 1
            if not count:
                break
    return pieces


class AnthropicMessageEncoder(MessageEncoder):
    """Encodes each message as its blocks, joined by commas."""

    def encode(self, message: Message) -> bytes:
        """Encode a message; empty if it has no block that the provider accepts."""
        if type(message) is UserMessage:
            # Without a first user message the provider refuses the conversation.
            blocks = [block for part in message.parts if (block := self._input(part))] or [text_block(EMPTY_MESSAGE)]
        elif type(message) is ToolMessage:
            blocks = [self._result(result) for result in message.results]
        else:
            blocks = self._assistant_blocks(cast("AssistantMessage", message).parts)
        return b",".join([block for block in blocks if block])

    def _input(self, part: InputPart) -> bytes:
        if type(part) is Text:
            return text_block(part.text)
        file = cast("Attachment", part)
        block = _file_block(file, attachment_bytes(file, self._files))
        if block is None:
            message = f"this provider takes no {clip_text(file.media_type, 100)}: {attachment_label(file)[1:-1]}"
            raise ModelError(message, kind="bad_request")
        return block

    def _assistant_blocks(self, parts: Sequence[Part]) -> list[bytes]:
        blocks: list[bytes] = []
        after_text = False
        for part in parts:
            if type(part) is Reasoning:
                replay = self._own_replay(part)
                if "type" in replay:
                    blocks.append(encode_json({"type": replay["type"], **replay}))  # type first
                elif "signature" in replay:
                    thought = {"type": "thinking", "thinking": part.text, "signature": replay["signature"]}
                    blocks.append(encode_json(thought))
                elif "citations" in replay and after_text:
                    blocks[-1] = b'%b,"citations":%b}' % (blocks[-1][:-1], encode_json(replay["citations"]))
            elif type(part) is ToolCall:
                blocks.append(self._call(part))
            elif type(part) is Attachment:
                blocks.append(text_block(attachment_label(part)))
            else:
                blocks.append(text_block(cast("Text | Refusal", part).text))
            after_text = type(part) is Text and bool(part.text.strip())
        return blocks

    def _call(self, call: ToolCall) -> bytes:
        arguments = call.arguments
        if arguments is None:  # the API wants an object, and the model should see what it wrote
            arguments = {"invalid_json": call.malformed or ""}
        name = _INVALID_IN_NAMES.sub("_", call.name)[:128] or "_"
        block = {"type": "tool_use", "id": _id(call.id), "name": name, "input": arguments}
        replay = self._own_replay(call)
        if "caller" in replay:
            block["caller"] = replay["caller"]
        return encode_json(block)

    def _result(self, result: ToolResult) -> bytes:
        id, content = encode_json(_id(result.call_id)), self._result_content(result)
        end = b"}" if result.state == "ok" else b',"is_error":true}'
        return b'{"type":"tool_result","tool_use_id":%b,"content":%b%b' % (id, content, end)

    def _result_content(self, result: ToolResult) -> bytes:
        """Encode texts as they are, values as JSON, files as blocks. A failed call may have text blocks only.

        A file inside a value is named there, and follows it under the same name.
        """
        content, failed = result.content, result.state != "ok"
        if type(content) is str:
            return encode_json(content)
        pieces = split_result(result, self._files, attachment_label)
        if not pieces:
            return encode_json(encode_json(content).decode())
        blocks: list[bytes] = []
        for value, file, inside in pieces:
            if file is not None:
                blocks.append(self._result_file(file, failed=failed) or text_block(attachment_label(file)))
                continue
            plain = as_dict(value)
            text = plain["text"] if plain.keys() == {"type", "text"} and plain["type"] == "text" else None
            blocks.append(text_block(text if isinstance(text, str) else to_text(value)))
            for part in inside:
                block = self._result_file(part, failed=failed)
                blocks += (text_block(attachment_label(part)), block) if block else ()
        return b"[%b]" % b",".join([block for block in blocks if block])

    def _result_file(self, file: Attachment, *, failed: bool) -> bytes | None:
        return None if failed else _file_block(file, attachment_bytes(file, self._files))


def text_block(text: str) -> bytes:
    """Encode a text block; empty for blank text, which the provider refuses."""
    return encode_json({"type": "text", "text": text}) if text.strip() else b""


def _file_block(file: Attachment, data: bytes) -> bytes | None:
    """Encode a file, or return None if the provider has no block for its type."""
    kind = file.media_type.partition(";")[0].strip().lower()
    if kind in _IMAGE_TYPES:
        return b'{"type":"image","source":%b}' % _base64(_IMAGE_TYPES[kind], data)
    title = b"" if not file.name else b',"title":%b' % encode_json(clip_text(file.name, 500))
    if kind == "application/pdf":
        return b'{"type":"document","source":%b%b}' % (_base64(kind, data), title)
    if kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith(("+json", "+xml")):
        text = data.decode("utf-8", "replace")
        words = encode_json({"type": "text", "media_type": "text/plain", "data": text if text.strip() else EMPTY_FILE})
        return b'{"type":"document","source":%b%b}' % (words, title)
    return None


def _base64(media_type: str, data: bytes) -> bytes:
    coded = binascii.b2a_base64(data, newline=False)
    return b'{"type":"base64","media_type":%b,"data":"%b"}' % (encode_json(media_type), coded)


def _id(given: str) -> str:
    """Make the id of a call valid; a call and its result get the same."""
    if _VALID_ID.fullmatch(given):
        return given
    return f"call_{hashlib.sha256(given.encode('utf-8', 'backslashreplace')).hexdigest()[:24]}"


# ---- context edits: the provider shortens a conversation that has grown too long ----

CLEARING_BETA: Final = "context-management-2025-06-27"
COMPACTING_BETA: Final = "compact-2026-01-12"
LEAST_COMPACTED: Final = 50_000
"""The provider makes no summary below this number of tokens."""
_CLEARS_FROM: Final = (4, 0)
_COMPACTS_FROM: Final = (4, 6)
_COMPACTION: Final = b'{"type":"compaction"'


class ContextEdits(NamedTuple):
    """The field ``context_management``, and the beta headers that it needs."""

    field: dict[str, Any]
    betas: tuple[str, ...]


def context_edits(model: str, version: tuple[int, int], at: int) -> ContextEdits:
    """Ask a Claude of this version to shorten the conversation at `at` tokens."""
    if version < _CLEARS_FROM:
        advice = "it needs Claude 4 or newer; leave compact_at out, or use another model"
        raise NotOffered("settings.compact_at", model, advice)
    trigger = {"type": "input_tokens", "value": at}
    edits = [{"type": "clear_tool_uses_20250919", "trigger": trigger}]
    if version < _COMPACTS_FROM:
        return ContextEdits({"edits": edits}, (CLEARING_BETA,))
    if at < LEAST_COMPACTED:
        advice = f"it makes no summaries below {LEAST_COMPACTED:,} tokens; set it to that or more"
        raise NotOffered(f"settings.compact_at={at}", model, advice)
    edits.append({"type": "compact_20260112", "trigger": trigger})
    return ContextEdits({"edits": edits}, (CLEARING_BETA, COMPACTING_BETA))


def required_betas(edits: ContextEdits | None, messages: Sequence[bytes]) -> tuple[str, ...]:
    """Return the betas that a request needs: for its context edits, and for earlier summaries among its messages."""
    betas = () if edits is None else edits.betas
    if COMPACTING_BETA in betas:
        return betas
    # An agent may no longer ask for summaries, and still have some in its conversation.
    return (*betas, COMPACTING_BETA) if any(piece.startswith(_COMPACTION) for piece in messages) else betas


# ---- schemas ----

_COPIED: Final = frozenset(("type", "title", "description", "enum", "const", "default", "required"))
_ANNOTATIONS: Final = frozenset(("$schema", "$id", "$comment", "examples", "deprecated", "readOnly", "writeOnly"))
_LISTS: Final = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_MAPS: Final = frozenset(("properties", "$defs", "definitions"))
_FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
)  # fmt: skip
_UNSUPPORTED: Final = frozenset(
    ("patternProperties", "prefixItems", "not", "if", "then", "else", "dependentSchemas", "unevaluatedProperties")
)


class _UnsupportedSchemaError(Exception):
    """The provider can't enforce a schema."""


def narrow_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Translate a schema into the subset that the provider enforces; None if it does not fit.

    Bounds outside of the subset go into the description; Holdfast checks the answer anyway.
    """
    try:
        made = _narrow_node(schema)
    except (_UnsupportedSchemaError, RecursionError):
        return None
    return None if made.get("type") != "object" or _is_circular(schema) else made


def _narrow_node(schema: Any) -> dict[str, Any]:  # noqa: ANN401  any JSON value
    node = as_dict(schema)
    kinds = node.get("type")
    if isinstance(kinds, list):
        each = [{**node, "type": kind} for kind in cast("list[Any]", kinds)]
        return {"anyOf": [_narrow_node(one) for one in each]}
    if not node.keys() & {"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"} or node.keys() & _UNSUPPORTED:
        raise _UnsupportedSchemaError
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    made: dict[str, Any] = {}
    unenforced: dict[str, Any] = {}
    for key, value in node.items():
        is_format = key == "format" and isinstance(value, str) and value in _FORMATS
        if key in _COPIED or is_format or (key == "minItems" and type(value) is int and value < 2):
            made[key] = value
        elif key in _MAPS:
            made[key] = {name: _narrow_node(one) for name, one in as_dict(value).items()}
        elif key in _LISTS:
            made[_LISTS[key]] = [_narrow_node(one) for one in cast("list[Any]", value)]
        elif key == "items":
            made[key] = _narrow_node(value)
        elif key == "additionalProperties":
            if value is not False:
                raise _UnsupportedSchemaError
        elif key not in _ANNOTATIONS:
            unenforced[key] = value
    kind = made.get("type")
    if (kind == "object" and not made.get("properties")) or (kind == "array" and "items" not in made):
        raise _UnsupportedSchemaError
    if kind == "object":
        made["additionalProperties"] = False
    if unenforced:
        words = ", ".join(f"{key}: {encode_json(value).decode()}" for key, value in unenforced.items())
        made["description"] = f"{made['description']} ({words})" if made.get("description") else words
    return made


def _is_circular(schema: dict[str, Any]) -> bool:
    """True if a definition refers to itself."""
    named = {
        f"#/{place}/{name}": set(_references(one))
        for place in ("$defs", "definitions")
        for name, one in as_dict(schema.get(place)).items()
    }
    known: set[str] = set()
    while ready := {name for name, needs in named.items() if needs <= known} - known:
        known |= ready
    return not named.keys() <= known or not set(_references(schema)) <= known


def _references(node: Any) -> list[str]:  # noqa: ANN401  any JSON value
    if isinstance(node, list):
        return [found for item in cast("list[Any]", node) for found in _references(item)]
    found = [inner for value in as_dict(node).values() for inner in _references(value)]
    reference = as_dict(node).get("$ref")
    return [*found, reference] if isinstance(reference, str) else found
