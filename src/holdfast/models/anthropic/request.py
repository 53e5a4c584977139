"""A request as bytes: settings, instructions and tools, and messages that are joined and not encoded again. Pure."""

from __future__ import annotations

import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlencode

import msgspec

from holdfast.errors import InvalidArgument, ModelError
from holdfast.errors.world import NotOffered
from holdfast.messages import AssistantMessage, Attachment, Reasoning, Text, ToolCall, ToolMessage, UserMessage
from holdfast.models.dialect import (
    EMPTY_FILE,
    EMPTY_MESSAGE,
    NO_STREAM,
    Once,
    WireRequest,
    bounded,
    encoded,
    mapping,
    pieces_of,
    worded,
)
from holdfast.models.settings import claude_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.messages import (
        Effort,
        InputPart,
        Message,
        ModelRequest,
        OutputSpec,
        Part,
        Refusal,
        Settings,
        ToolResult,
        ToolSpec,
    )
    from holdfast.models.dialect import Endpoint


_blocks_json: Final = msgspec.json.Encoder().encode
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_IMAGES: Final = {f"image/{kind}": f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp")}
_IMAGES["image/jpg"] = "image/jpeg"
_TEXTS: Final = frozenset(f"application/{kind}" for kind in ("json", "xml", "yaml", "x-yaml", "toml", "sql"))


class Writer:
    """Messages as blocks with commas between them."""

    __slots__ = ("_files", "_route", "dropped")

    def __init__(self, route: str, files: Mapping[str, bytes]) -> None:
        self._route = route
        self._files = files
        self.dropped = 0

    def message(self, message: Message) -> bytes:
        """All blocks of one message; nothing where it has none that the provider takes."""
        if type(message) is UserMessage:
            # Left out, an empty message would let the conversation begin with the model, which the provider refuses.
            blocks = [block for part in message.parts if (block := self._input(part))] or [text_block(EMPTY_MESSAGE)]
        elif type(message) is ToolMessage:
            blocks = [self._result(result) for result in message.results]
        else:
            blocks = self._said(cast("AssistantMessage", message).parts)
        return b",".join([block for block in blocks if block])

    def _input(self, part: InputPart) -> bytes:
        if type(part) is Text:
            return text_block(part.text)
        file = cast("Attachment", part)
        block = _file(file, self._data(file))
        if block is None:
            words = f"this provider takes no {bounded(file.media_type, 100)}: {_named(file)}"
            raise ModelError(words, kind="bad_request")
        return block

    def _said(self, parts: Sequence[Part]) -> list[bytes]:
        blocks: list[bytes] = []
        after_text = False
        for part in parts:
            if type(part) is Reasoning:
                self._replay(part, blocks, after_text=after_text)
                after_text = False
                continue
            after_text = type(part) is Text and bool(part.text.strip())
            if type(part) is ToolCall:
                blocks.append(self._call(part))
            elif type(part) is Attachment:
                blocks.append(text_block(f"[{_named(part)}]"))
            else:
                blocks.append(text_block(cast("Text | Refusal", part).text))
        return blocks

    def _replay(self, part: Reasoning, blocks: list[bytes], *, after_text: bool) -> None:
        replay = mapping(part.replay)
        if not replay:
            return
        if part.route != self._route:
            self.dropped += 1
        elif "type" in replay:
            blocks.append(_blocks_json({"type": replay["type"], **replay}))  # the type first, whoever kept it
        elif "signature" in replay:
            blocks.append(_blocks_json({"type": "thinking", "thinking": part.text, "signature": replay["signature"]}))
        elif "citations" in replay and after_text:
            blocks[-1] = b'%b,"citations":%b}' % (blocks[-1][:-1], _blocks_json(replay["citations"]))

    def _call(self, call: ToolCall) -> bytes:
        arguments = call.arguments
        if arguments is None:  # there must be an object, and the model shall see what it wrote
            arguments = {"invalid_json": call.malformed or ""}
        block = {"type": "tool_use", "id": _id(call.id), "name": _name(call.name), "input": arguments}
        replay = mapping(call.replay)
        if replay and call.route != self._route:
            self.dropped += 1
        elif "caller" in replay:
            block["caller"] = replay["caller"]
        return _blocks_json(block)

    def _result(self, result: ToolResult) -> bytes:
        content = self._content(result)
        end = b"}" if result.state == "ok" else b',"is_error":true}'
        return b'{"type":"tool_result","tool_use_id":%b,"content":%b%b' % (
            _blocks_json(_id(result.call_id)),
            content,
            end,
        )

    def _content(self, result: ToolResult) -> bytes:
        """Words as they are, values as JSON, and files as what they show; a call that failed may show words alone.

        A file inside a value is named there, and shown behind it under the same name.
        """
        content, failed = result.content, result.state != "ok"
        if type(content) is str:
            return _blocks_json(content)
        pieces = pieces_of(result, self._files, _label)
        if not pieces:
            return _blocks_json(_blocks_json(content).decode())
        blocks: list[bytes] = []
        for value, file, inside in pieces:
            if file is not None:
                blocks.append(self._shown(file, failed=failed) or text_block(_label(file)))
                continue
            blocks.append(text_block(_words_of(value)))
            for part in inside:
                shown = self._shown(part, failed=failed)
                blocks += (text_block(_label(part)), shown) if shown else ()
        return b"[%b]" % b",".join([block for block in blocks if block])

    def _shown(self, file: Attachment, *, failed: bool) -> bytes | None:
        return None if failed else _file(file, self._data(file))

    def _data(self, file: Attachment) -> bytes:
        data = self._files.get(file.digest)
        if data is None:
            raise ModelError(f"the bytes of the attachment {_named(file)} are not here", kind="bad_request")
        return data


def text_block(text: str) -> bytes:
    """A block of words; nothing for blanks, which the provider refuses."""
    return _blocks_json({"type": "text", "text": text}) if text.strip() else b""


def _words_of(item: Any) -> str:  # noqa: ANN401  any JSON value
    if isinstance(item, str):
        return item
    if mapping(item).keys() == {"type", "text"} and item["type"] == "text" and isinstance(item["text"], str):
        return item["text"]
    return _blocks_json(item).decode()


def _file(file: Attachment, data: bytes) -> bytes | None:
    """A block that shows a file, or None where the provider has none for it."""
    kind = file.media_type.partition(";")[0].strip().lower()
    if kind in _IMAGES:
        return b'{"type":"image","source":%b}' % _base64(_IMAGES[kind], data)
    title = b"" if not file.name else b',"title":%b' % _blocks_json(bounded(file.name, 500))
    if kind == "application/pdf":
        return b'{"type":"document","source":%b%b}' % (_base64(kind, data), title)
    if kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml")):
        text = data.decode("utf-8", "replace")
        words = _blocks_json({"type": "text", "media_type": "text/plain", "data": text if text.strip() else EMPTY_FILE})
        return b'{"type":"document","source":%b%b}' % (words, title)
    return None


def _base64(media_type: str, data: bytes) -> bytes:
    coded = binascii.b2a_base64(data, newline=False)
    return b'{"type":"base64","media_type":%b,"data":"%b"}' % (_blocks_json(media_type), coded)


def _label(file: Attachment) -> str:
    """What stands in place of a file, or before it."""
    return f"[{_named(file)}]"


def _named(file: Attachment) -> str:
    return f"{bounded(file.name or file.digest, 200)} ({bounded(file.media_type, 100)}, {file.size:,} bytes)"


def _id(given: str) -> str:
    """The id of a call as the provider allows it, the same for the call and its result."""
    if _ID.fullmatch(given):
        return given
    return f"call_{hashlib.sha256(given.encode('utf-8', 'backslashreplace')).hexdigest()[:24]}"


def _name(given: str) -> str:
    return _NO_NAME.sub("_", given)[:128] or "_"


_schemas_json: Final = msgspec.json.Encoder().encode
_KEPT: Final = frozenset(("type", "title", "description", "enum", "const", "default", "required"))
_SILENT: Final = frozenset(("$schema", "$id", "$comment", "examples", "deprecated", "readOnly", "writeOnly"))
_LISTS: Final = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_MAPS: Final = frozenset(("properties", "$defs", "definitions"))
_FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
)  # fmt: skip
_OPEN_ENDED: Final = frozenset(
    ("patternProperties", "prefixItems", "not", "if", "then", "else", "dependentSchemas", "unevaluatedProperties")
)


class _NoFormError(Exception):
    """The provider has no form for a schema."""


def narrow(schema: dict[str, Any]) -> dict[str, Any] | None:
    """`schema` in the part of JSON schema that the provider enforces, or None where it does not fit into that.

    Bounds that it can't enforce are told in words; whoever reads the answer checks them anyway.
    """
    try:
        made = _narrowed(schema)
    except (_NoFormError, RecursionError):
        return None
    return None if made.get("type") != "object" or _circular(schema) else made


def _narrowed(schema: Any) -> dict[str, Any]:  # noqa: ANN401  anything may stand where a schema should
    node = mapping(schema)
    kinds = node.get("type")
    if isinstance(kinds, list):
        each = [{**node, "type": kind} for kind in cast("list[Any]", kinds)]
        return {"anyOf": [_narrowed(one) for one in each]}
    if not node.keys() & {"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"} or node.keys() & _OPEN_ENDED:
        raise _NoFormError
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    made: dict[str, Any] = {}
    untold: dict[str, Any] = {}
    for key, value in node.items():
        if key in _KEPT or _enforced(key, value):
            made[key] = value
        elif key in _MAPS:
            made[key] = {name: _narrowed(one) for name, one in mapping(value).items()}
        elif key in _LISTS:
            made[_LISTS[key]] = [_narrowed(one) for one in cast("list[Any]", value)]
        elif key == "items":
            made[key] = _narrowed(value)
        elif key == "additionalProperties":
            if value is not False:
                raise _NoFormError
        elif key not in _SILENT:
            untold[key] = value
    return _finished(made, untold)


def _enforced(key: str, value: Any) -> bool:  # noqa: ANN401  any JSON value
    if key == "format":
        return isinstance(value, str) and value in _FORMATS
    return key == "minItems" and type(value) is int and value < 2


def _finished(made: dict[str, Any], untold: dict[str, Any]) -> dict[str, Any]:
    if made.get("type") == "object":
        if not made.get("properties"):
            raise _NoFormError
        made["additionalProperties"] = False
    if made.get("type") == "array" and "items" not in made:
        raise _NoFormError
    if untold:
        words = ", ".join(f"{key}: {_schemas_json(value).decode()}" for key, value in untold.items())
        made["description"] = f"{made['description']} ({words})" if made.get("description") else words
    return made


def _circular(schema: dict[str, Any]) -> bool:
    """Whether a definition needs itself."""
    named = {
        f"#/{place}/{name}": set(_references(one))
        for place in ("$defs", "definitions")
        for name, one in mapping(schema.get(place)).items()
    }
    known: set[str] = set()
    while ready := {name for name, needs in named.items() if needs <= known} - known:
        known |= ready
    return not named.keys() <= known or not set(_references(schema)) <= known


def _references(node: Any) -> list[str]:  # noqa: ANN401  any JSON value
    if isinstance(node, list):
        return [found for item in cast("list[Any]", node) for found in _references(item)]
    found = [inner for value in mapping(node).values() for inner in _references(value)]
    reference = mapping(node).get("$ref")
    return [*found, reference] if isinstance(reference, str) else found


CLEARING_BETA: Final = "context-management-2025-06-27"
COMPACTING_BETA: Final = "compact-2026-01-12"
LEAST_COMPACTED: Final = 50_000
"""Tokens below which the provider makes no summary."""
_CLEARS_FROM: Final = (4, 0)
_COMPACTS_FROM: Final = (4, 6)
_BLOCK: Final = b'{"type":"compaction"'


@dataclass(frozen=True, slots=True)
class Editing:
    """What is asked for: the field ``context_management``, and the headers without which it is refused."""

    field: dict[str, Any]
    betas: tuple[str, ...]


def editing(model: str, version: tuple[int, int], at: int) -> Editing:
    """How a Claude of this version is asked to shorten the conversation at so many tokens."""
    if version < _CLEARS_FROM:
        advice = "it needs Claude 4 or newer; leave compact_at out, or use another model"
        raise NotOffered("settings.compact_at", model, advice)
    trigger = {"type": "input_tokens", "value": at}
    edits = [{"type": "clear_tool_uses_20250919", "trigger": trigger}]
    if version < _COMPACTS_FROM:
        return Editing({"edits": edits}, (CLEARING_BETA,))
    if at < LEAST_COMPACTED:
        advice = f"it makes no summaries below {LEAST_COMPACTED:,} tokens; set it to that or more"
        raise NotOffered(f"settings.compact_at={at}", model, advice)
    edits.append({"type": "compact_20260112", "trigger": trigger})
    return Editing({"edits": edits}, (CLEARING_BETA, COMPACTING_BETA))


def betas_of(asked: Editing | None, pieces: Sequence[bytes]) -> tuple[str, ...]:
    """The headers that a request needs: for what it asks, and for summaries of earlier that are among its messages."""
    if asked is not None and COMPACTING_BETA in asked.betas:
        return asked.betas
    mine = () if asked is None else asked.betas
    # An agent may no longer ask for summaries; those that it has stay in its conversation.
    return (*mine, COMPACTING_BETA) if any(piece.startswith(_BLOCK) for piece in pieces) else mine


VERSION: Final = "2023-06-01"
"""Of the API, as its header wants it."""
MAX_OUTPUT_TOKENS: Final = 8_192
"""For the answer, where nothing else was asked for; thinking comes on top."""
MAX_MARKED: Final = 2
"""Messages with a marker for the prompt cache; instructions and tools have one each, and the provider takes four."""
_json: Final = msgspec.json.Encoder().encode
_MARK: Final = b',"cache_control":{"type":"ephemeral"}}'
_OPEN: Final = (b'{"role":"user","content":[', b'{"role":"assistant","content":[')
_NEXT: Final = (b"]}," + _OPEN[0], b"]}," + _OPEN[1])
_OURS: Final = frozenset(("messages", "model", "stream", "system"))
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
"""While it thinks, a Claude takes no lower one."""
_LEAST_BUDGET: Final = 1_024
_THOUGHTS: Final = (b'{"type":"thinking"', b'{"type":"redacted_thinking"')


def _encode_tools(tools: Sequence[ToolSpec]) -> bytes:
    return b",".join(
        [_json({"name": tool.name, "description": tool.description, "input_schema": tool.parameters}) for tool in tools]
    )


def _encode_format(output: OutputSpec) -> bytes:
    """The schema as the provider takes it, or nothing where it has no form for it."""
    schema = narrow(output.schema)
    return b"" if schema is None else _json({"type": "json_schema", "schema": schema})


def _encode_words(output: OutputSpec) -> bytes:
    schema = _json(output.schema).decode()
    return text_block(f"Answer with JSON and nothing else. It must match this JSON schema:\n{schema}")


_tools: Final = Once(_encode_tools)
_format: Final = Once(_encode_format)
_words: Final = Once(_encode_words)


def encoded_request(endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
    """The request for a stream."""
    route = endpoint.route(model)
    writer = Writer(route, request.files)
    pieces = encoded(request, f"anthropic {route}", writer.message)
    settings = request.settings
    asked = None if settings.compact_at is None else editing(model, claude_version(model), settings.compact_at)
    marked = MAX_MARKED if settings.cache and "cache_control" not in (settings.extra or ()) else 0
    left_out: list[str] = []
    head = _json(_fields(endpoint, model, request, pieces, asked, left_out))[:-1]
    body = b"".join([head, b',"messages":[', *_joined(request.messages, pieces, marked), b"]}"])
    path = f"/v1/messages?{urlencode(endpoint.query)}" if endpoint.query else "/v1/messages"
    return WireRequest(
        path, body, _headers(endpoint, settings, betas_of(asked, pieces)), writer.dropped, tuple(left_out)
    )


def _headers(endpoint: Endpoint, settings: Settings, needed: Sequence[str]) -> dict[str, str]:
    headers = {"anthropic-version": VERSION, "content-type": "application/json"}
    betas = dict.fromkeys([*needed, *map(str, (settings.extra or {}).get("betas") or ())])
    if betas:
        standing = [value for name, value in endpoint.headers.items() if name.lower() == "anthropic-beta"]
        headers["anthropic-beta"] = ",".join([*standing, *betas])
    return headers


def _fields(  # noqa: PLR0913, PLR0917
    endpoint: Endpoint,
    model: str,
    request: ModelRequest,
    pieces: Sequence[bytes],
    asked: Editing | None,
    left_out: list[str],
) -> dict[str, Any]:
    """All but the messages: what is small first, then what is long and stays the same from step to step.

    Settings that can't be sent are told in `left_out`.
    """
    settings = request.settings
    extra = settings.extra or {}
    if taken := _OURS & extra.keys():
        raise InvalidArgument("settings.extra", sorted(taken), f"other fields than {', '.join(sorted(_OURS))}")
    mark = _MARK if settings.cache else b"}"
    fields: dict[str, Any] = {"model": model, "stream": NO_STREAM not in endpoint.flags}
    config = _thinking(endpoint, model, request, pieces, fields)
    thinks = mapping(fields.get("thinking")).get("type") not in {None, "disabled"}
    fields |= _sampling(settings, left_out, thinks=thinks)
    if settings.stop:
        fields["stop_sequences"] = settings.stop
    if container := _container(request.messages, endpoint.route(model)):
        fields["container"] = container
    if asked is not None:
        fields["context_management"] = asked.field
    form = _form(endpoint, model, request.output)
    if form:
        config["format"] = msgspec.Raw(form)
    config.update(mapping(extra.get("output_config")))
    fields.update((name, value) for name, value in extra.items() if name not in {"betas", "tools", "output_config"})
    if config:
        fields["output_config"] = config
    told = b"" if form or request.output is None else _words(request.output)
    if system := b",".join([block for block in (text_block(request.instructions), told) if block]):
        fields["system"] = msgspec.Raw(b"[%b%b]" % (system[:-1], mark))
    foreign = b",".join([_json(tool) for tool in extra.get("tools") or ()])
    own = _tools(request.tools)
    if own:
        own = own[:-1] + mark
    if foreign or own:
        fields["tools"] = msgspec.Raw(b"[%b]" % b",".join([tools for tools in (foreign, own) if tools]))
        if choice := _choice(settings):
            fields.setdefault("tool_choice", choice)
    return fields


def _sampling(settings: Settings, left_out: list[str], *, thinks: bool) -> dict[str, float]:
    fields: dict[str, float] = {}
    if settings.temperature is not None:
        if thinks:
            left_out.append("temperature is left out: the provider takes none while the model thinks")
        else:
            fields["temperature"] = settings.temperature
    if settings.top_p is not None:
        if thinks and settings.top_p < _LEAST_TOP_P:
            left_out.append(f"top_p is left out: while the model thinks the provider takes none below {_LEAST_TOP_P}")
        else:
            fields["top_p"] = settings.top_p
    return fields


def _thinking(
    endpoint: Endpoint, model: str, request: ModelRequest, pieces: Sequence[bytes], fields: dict[str, Any]
) -> dict[str, Any]:
    """Put thinking and the room for it into `fields`; what is left is for ``output_config``."""
    settings = request.settings
    effort, limit = settings.effort, settings.max_output_tokens
    fields["max_tokens"] = limit or MAX_OUTPUT_TOKENS
    if effort is None:
        return {}
    adaptive = "adaptive_thinking" in endpoint.flags or (
        "budget_thinking" not in endpoint.flags and claude_version(model) >= (4, 6)
    )
    if effort == "none":
        if adaptive:  # others don't think unless they are asked to
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
    if checked and not _thoughtful(request.messages, pieces):
        # With a budget, the turn that the request goes on with must begin with thoughts. There are none when another
        # route began it, or a call was forced; then this turn is ended without, and the next one thinks again.
        return {}
    if budget >= _LEAST_BUDGET and not forced:
        fields["max_tokens"] = room
        fields["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return {}


def _thoughtful(messages: Sequence[Message], pieces: Sequence[bytes]) -> bool:
    """Whether the turn that `messages` are in the middle of has thoughts that go out, or is yet to begin.

    Some models think at the beginning of a turn alone, so later replies of it may have no thoughts.
    """
    begun = False
    answered: bool | None = None
    # Between two replies there are results of tools in the same turn, and none where another one begins.
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


def _choice(settings: Settings) -> dict[str, Any]:
    if settings.tool_choice == "none":
        return {"type": "none"}
    choice = {"auto": "auto", "required": "any"}[settings.tool_choice]
    if settings.parallel_tool_calls is False:
        return {"type": choice, "disable_parallel_tool_use": True}
    return {} if choice == "auto" else {"type": choice}


def _form(endpoint: Endpoint, model: str, output: OutputSpec | None) -> bytes:
    if output is None or "output_in_words" in endpoint.flags or claude_version(model) < (4, 1):
        return b""
    return _format(output)


def _container(messages: Sequence[Message], route: str) -> str:
    """Where the code runs that waits for the results at the end of `messages`."""
    if len(messages) < 2 or type(messages[-1]) is not ToolMessage or type(messages[-2]) is not AssistantMessage:
        return ""
    found = [mapping(call.replay).get("container") for call in messages[-2].calls if call.route == route]
    return next((worded(container) for container in found if container), "")


def _joined(messages: Sequence[Message], pieces: list[bytes], marked: int) -> list[bytes]:
    """Messages as the provider wants them: neighbours of one side are one, and the last of the user's have markers."""
    pieces = _with_marks(messages, pieces, marked) if marked else pieces
    joined: list[bytes] = []
    side: bool | None = None
    for message, piece in zip(messages, pieces, strict=True):
        if not piece:
            continue
        said = type(message) is AssistantMessage
        if said is side:
            joined.append(b",")
        else:
            joined.append((_OPEN if side is None else _NEXT)[said])
            side = said
        joined.append(piece)
    if joined:
        joined.append(b"]}")
    return joined


def _with_marks(messages: Sequence[Message], pieces: list[bytes], count: int) -> list[bytes]:
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
