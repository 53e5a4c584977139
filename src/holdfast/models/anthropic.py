"""The Anthropic Messages dialect: a request as bytes, and the frames of a reply as neutral events. Pure.

What only the provider understands travels in `Reasoning` parts, in the order in which it came, and goes back unchanged
to the route that made it. Elsewhere it is left out. The form of `replay` says what it is:

=============================  =========================================================================================
``{"signature": ...}``         signs the thoughts that are the text of the part
``{"citations": [...]}``       belongs to the text right before it
a block with a ``"type"``      anything else, as it came: redacted thoughts, server tools and their results, compaction
=============================  =========================================================================================

Thoughts that nobody signed are shown and not sent back. A call that a server tool makes keeps who called it, and the
container it runs in, in `ToolCall.replay`.

Flags of an endpoint:

=====================  =================================================================================================
``adaptive_thinking``  `effort` is sent as adaptive thinking, whatever the model is called
``budget_thinking``    `effort` is sent as a budget of tokens, whatever the model is called
``unsigned_thinking``  thoughts are sent back also without a signature
``output_in_words``    the schema of the answer is told in the instructions; there is no field for it
=====================  =================================================================================================

Without a flag the version in a model's name decides: budgets before Claude 4.6 and for models of other makers, schemas
in words before Claude 4.1. `Settings.seed` has no counterpart here. Fields of `Settings.extra` go into the request as
they are, but for ``betas`` (a header), ``tools`` (before ours), and ``output_config`` (joined with ours).
"""

from __future__ import annotations

import binascii
import hashlib
import re
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast
from urllib.parse import urlencode

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
    StreamNote,
    StreamReset,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from holdfast.models.waiting import asked_in_headers
from holdfast.models.wire import WireRequest, bounded, encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.messages import (
        FinishReason,
        InputPart,
        Message,
        ModelRequest,
        OutputSpec,
        Part,
        Settings,
        StreamEvent,
        ToolResult,
        ToolSpec,
    )
    from holdfast.models.wire import Endpoint, Frame

VERSION: Final = "2023-06-01"
"""Of the API, as its header wants it."""
MAX_OUTPUT_TOKENS: Final = 8_192
"""For the answer, where nothing else was asked for; thinking comes on top."""
MAX_REPLY: Final = 64 * 1024 * 1024
"""Longest reply, in bytes of its frames."""
MAX_MARKED: Final = 2
"""Messages with a marker for the prompt cache; instructions and tools have one each, and the provider takes four."""

_json: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode

# ---- requests --------------------------------------------------------------------------------------------------------

_MARK: Final = b',"cache_control":{"type":"ephemeral"}}'
_OPEN: Final = (b'{"role":"user","content":[', b'{"role":"assistant","content":[')
_NEXT: Final = (b"]}," + _OPEN[0], b"]}," + _OPEN[1])
_OURS: Final = frozenset(("messages", "model", "stream", "system"))
_BUDGETS: Final = {"minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384}
_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
_LEAST_BUDGET: Final = 1_024
_VERSION: Final = re.compile(r"claude-(?:[a-z]+-)*?(\d+)(?:[-.](\d{1,2})(?!\d))?")
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_IMAGES: Final = {f"image/{kind}": f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp")}
_IMAGES["image/jpg"] = "image/jpeg"
_TEXTS: Final = frozenset(f"application/{kind}" for kind in ("json", "xml", "yaml", "x-yaml", "toml", "sql"))


@lru_cache(maxsize=256)
def _version(model: str) -> tuple[int, int]:
    """Of a Claude. Names without a number follow the newest; other makers follow what came first."""
    found = _VERSION.search(model)
    if found is None:
        return (99, 0) if "claude" in model else (0, 0)
    return int(found[1]), int(found[2] or 0)


class _Once:
    """The bytes of a value that is the same object in every request of an agent: encoded once, then looked up."""

    def __init__(self, encode: Callable[[Any], bytes], room: int = 128) -> None:
        self._encode = encode
        self._room = room
        # The value is kept with its bytes, so no other value can get its identity.
        self._kept: dict[int, tuple[Any, bytes]] = {}

    def __call__(self, value: Any) -> bytes:  # noqa: ANN401  what `encode` takes
        found = self._kept.get(id(value))
        if found is None:
            found = (value, self._encode(value))
            if len(self._kept) >= self._room:
                self._kept.clear()
            self._kept[id(value)] = found
        return found[1]


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
    return _text(f"Answer with JSON and nothing else. It must match this JSON schema:\n{schema}")


_tools: Final = _Once(_encode_tools)
_format: Final = _Once(_encode_format)
_words: Final = _Once(_encode_words)


class Anthropic:
    """How Anthropic, and whoever speaks like it, is spoken to."""

    name: ClassVar[str] = "anthropic"

    def encode(self, endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
        """The request for a stream. `dropped` counts what messages lose that are encoded here for the first time."""
        route = endpoint.route(model)
        writer = _Writer(route, request.files)
        pieces = encoded(request, f"anthropic {route}", writer.message)
        settings = request.settings
        marked = MAX_MARKED if settings.cache and "cache_control" not in (settings.extra or ()) else 0
        head = _json(_fields(endpoint, model, request))[:-1]
        body = b"".join([head, b',"messages":[', *_joined(request.messages, pieces, marked), b"]}"])
        path = f"/v1/messages?{urlencode(endpoint.query)}" if endpoint.query else "/v1/messages"
        return WireRequest(path, body, _headers(endpoint, settings), writer.dropped)

    def fold(self, endpoint: Endpoint, model: str) -> AnthropicFold:
        """A new reader for one response."""
        return AnthropicFold(endpoint, model)

    def whole(self, endpoint: Endpoint, model: str, body: bytes) -> ModelReply:
        """The reply in a body that did not come as a stream."""
        message = _object(body)
        if message.get("type") == "error" or message.get("error"):
            raise _told(message)
        if not isinstance(message.get("content"), list):
            raise ModelError("the provider's answer is no message", kind="bad_frame", retryable=True)
        fold = AnthropicFold(endpoint, model)
        fold.take(message)
        return fold.finish()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """What an answer with an error status means."""
        given = {name.lower(): value for name, value in headers.items()}
        try:
            told = _object(body)
        except ModelError:
            told = {}
        detail = told.get("error")
        error = _dict(detail)
        words = error.get("message") or (detail if isinstance(detail, str) else "") or _printed(body)
        kind = _KINDS.get(_str(error.get("type"))) or _by_status(status)
        failure = _failure(kind, _str(words) or f"HTTP {status}")
        failure.status = status
        failure.request_id = _str(told.get("request_id")) or given.get("request-id") or given.get("x-request-id")
        failure.retry_after = _retry_after(given)
        failure.retryable = status not in _FINAL and failure.kind in _PASSING and given.get("x-should-retry") != "false"
        return failure


DIALECT: Final = Anthropic()


def _headers(endpoint: Endpoint, settings: Settings) -> dict[str, str]:
    headers = {"anthropic-version": VERSION, "content-type": "application/json"}
    betas = (settings.extra or {}).get("betas")
    if betas:
        standing = [value for name, value in endpoint.headers.items() if name.lower() == "anthropic-beta"]
        headers["anthropic-beta"] = ",".join([*standing, *map(str, betas)])
    return headers


def _fields(endpoint: Endpoint, model: str, request: ModelRequest) -> dict[str, Any]:
    """All but the messages: what is small first, then what is long and stays the same from step to step."""
    settings = request.settings
    extra = settings.extra or {}
    if taken := _OURS & extra.keys():
        raise InvalidArgument("settings.extra", sorted(taken), f"other fields than {', '.join(sorted(_OURS))}")
    mark = _MARK if settings.cache else b"}"
    fields: dict[str, Any] = {"model": model, "stream": True}
    config = _thinking(endpoint, model, settings, fields)
    if settings.temperature is not None and "thinking" not in fields:
        fields["temperature"] = settings.temperature  # the provider takes none from a model that thinks
    if settings.top_p is not None:
        fields["top_p"] = settings.top_p
    if settings.stop:
        fields["stop_sequences"] = settings.stop
    if container := _container(request.messages, endpoint.route(model)):
        fields["container"] = container
    form = _form(endpoint, model, request.output)
    if form:
        config["format"] = msgspec.Raw(form)
    config.update(_dict(extra.get("output_config")))
    fields.update((name, value) for name, value in extra.items() if name not in {"betas", "tools", "output_config"})
    if config:
        fields["output_config"] = config
    told = b"" if form or request.output is None else _words(request.output)
    if system := b",".join([block for block in (_text(request.instructions), told) if block]):
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


def _thinking(endpoint: Endpoint, model: str, settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
    """Put thinking and the room for it into `fields`; what is left is for ``output_config``."""
    effort, limit = settings.effort, settings.max_output_tokens
    fields["max_tokens"] = limit or MAX_OUTPUT_TOKENS
    if effort is None:
        return {}
    adaptive = "adaptive_thinking" in endpoint.flags or (
        "budget_thinking" not in endpoint.flags and _version(model) >= (4, 6)
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
        return {"effort": _EFFORTS[effort]}
    room = limit or MAX_OUTPUT_TOKENS + budget
    budget = min(budget, room - 1)
    if budget >= _LEAST_BUDGET and not forced:
        fields["max_tokens"] = room
        fields["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return {}


def _choice(settings: Settings) -> dict[str, Any]:
    if settings.tool_choice == "none":
        return {"type": "none"}
    choice = {"auto": "auto", "required": "any"}[settings.tool_choice]
    if settings.parallel_tool_calls is False:
        return {"type": choice, "disable_parallel_tool_use": True}
    return {} if choice == "auto" else {"type": choice}


def _form(endpoint: Endpoint, model: str, output: OutputSpec | None) -> bytes:
    if output is None or "output_in_words" in endpoint.flags or _version(model) < (4, 1):
        return b""
    return _format(output)


def _container(messages: Sequence[Message], route: str) -> str:
    """Where the code runs that waits for the results at the end of `messages`."""
    if len(messages) < 2 or type(messages[-1]) is not ToolMessage or type(messages[-2]) is not AssistantMessage:
        return ""
    found = [_dict(call.replay).get("container") for call in messages[-2].calls if call.route == route]
    return next((_str(container) for container in found if container), "")


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


class _Writer:
    """Messages as blocks with commas between them."""

    __slots__ = ("_files", "_route", "dropped")

    def __init__(self, route: str, files: Mapping[str, bytes]) -> None:
        self._route = route
        self._files = files
        self.dropped = 0

    def message(self, message: Message) -> bytes:
        """All blocks of one message; nothing where it has none that the provider takes."""
        if type(message) is UserMessage:
            blocks = [self._input(part) for part in message.parts]
        elif type(message) is ToolMessage:
            blocks = [self._result(result) for result in message.results]
        else:
            blocks = self._said(cast("AssistantMessage", message).parts)
        return b",".join([block for block in blocks if block])

    def _input(self, part: InputPart) -> bytes:
        if type(part) is Text:
            return _text(part.text)
        file = cast("Attachment", part)
        data = self._files.get(file.digest)
        if data is None:
            raise ModelError(f"the bytes of the attachment {_named(file)} are not here", kind="bad_request")
        block = _file(file, data)
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
                blocks.append(_text(f"[{_named(part)}]"))
            else:
                blocks.append(_text(cast("Text | Refusal", part).text))
        return blocks

    def _replay(self, part: Reasoning, blocks: list[bytes], *, after_text: bool) -> None:
        replay = _dict(part.replay)
        if not replay:
            return
        if part.route != self._route:
            self.dropped += 1
        elif "type" in replay:
            blocks.append(_json(replay))
        elif "signature" in replay:
            blocks.append(_json({"type": "thinking", "thinking": part.text, "signature": replay["signature"]}))
        elif "citations" in replay and after_text:
            blocks[-1] = b'%b,"citations":%b}' % (blocks[-1][:-1], _json(replay["citations"]))

    def _call(self, call: ToolCall) -> bytes:
        arguments = call.arguments
        if arguments is None:  # there must be an object, and the model shall see what it wrote
            arguments = {"invalid_json": call.malformed or ""}
        block = {"type": "tool_use", "id": _id(call.id), "name": _name(call.name), "input": arguments}
        replay = _dict(call.replay)
        if replay and call.route != self._route:
            self.dropped += 1
        elif "caller" in replay:
            block["caller"] = replay["caller"]
        return _json(block)

    def _result(self, result: ToolResult) -> bytes:
        content = self._content(result.content, failed=result.state != "ok")
        end = b"}" if result.state == "ok" else b',"is_error":true}'
        return b'{"type":"tool_result","tool_use_id":%b,"content":%b%b' % (_json(_id(result.call_id)), content, end)

    def _content(self, content: Any, *, failed: bool) -> bytes:  # noqa: ANN401  text or a JSON value
        """Words as they are, values as JSON, and files as what they show; a call that failed may show words alone."""
        if type(content) is str:
            return _json(content)
        items = cast("list[Any]", content) if isinstance(content, list | tuple) else [content]
        files = [self._attached(item) for item in items]
        if not any(files):
            return _json(_json(content).decode())
        blocks: list[bytes] = []
        for item, file in zip(items, files, strict=True):
            if file is not None:
                block = None if failed else _file(file, self._files[file.digest])
                blocks.append(block or _text(f"[{_named(file)}]"))
            else:
                blocks.append(_text(_words_of(item)))
        return b"[%b]" % b",".join([block for block in blocks if block])

    def _attached(self, item: Any) -> Attachment | None:  # noqa: ANN401  any JSON value
        """The attachment that a value stands for; a value that only looks like one has no bytes here."""
        if isinstance(item, Attachment):
            return item if item.digest in self._files else None
        if _dict(item).get("type") != "attachment":
            return None
        try:
            file = msgspec.convert(item, Attachment)
        except msgspec.ValidationError:
            return None
        return file if file.digest in self._files else None


def _text(text: str) -> bytes:
    """A block of words; nothing for blanks, which the provider refuses."""
    return _json({"type": "text", "text": text}) if text.strip() else b""


def _words_of(item: Any) -> str:  # noqa: ANN401  any JSON value
    if isinstance(item, str):
        return item
    if _dict(item).keys() == {"type", "text"} and item["type"] == "text" and isinstance(item["text"], str):
        return item["text"]
    return _json(item).decode()


def _file(file: Attachment, data: bytes) -> bytes | None:
    """A block that shows a file, or None where the provider has none for it."""
    kind = file.media_type.partition(";")[0].strip().lower()
    if kind in _IMAGES:
        return b'{"type":"image","source":%b}' % _base64(_IMAGES[kind], data)
    title = b"" if not file.name else b',"title":%b' % _json(bounded(file.name, 500))
    if kind == "application/pdf":
        return b'{"type":"document","source":%b%b}' % (_base64(kind, data), title)
    if kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml")):
        words = _json({"type": "text", "media_type": "text/plain", "data": data.decode("utf-8", "replace")})
        return b'{"type":"document","source":%b%b}' % (words, title)
    return None


def _base64(media_type: str, data: bytes) -> bytes:
    coded = binascii.b2a_base64(data, newline=False)
    return b'{"type":"base64","media_type":%b,"data":"%b"}' % (_json(media_type), coded)


def _named(file: Attachment) -> str:
    return f"{bounded(file.name or file.digest, 200)} ({bounded(file.media_type, 100)}, {file.size:,} bytes)"


def _id(given: str) -> str:
    """The id of a call as the provider allows it, the same for the call and its result."""
    if _ID.fullmatch(given):
        return given
    return f"call_{hashlib.sha256(given.encode('utf-8', 'backslashreplace')).hexdigest()[:24]}"


def _name(given: str) -> str:
    return _NO_NAME.sub("_", given)[:128] or "_"


# ---- schemas ---------------------------------------------------------------------------------------------------------

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
    node = _dict(schema)
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
            made[key] = {name: _narrowed(one) for name, one in _dict(value).items()}
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
        words = ", ".join(f"{key}: {_json(value).decode()}" for key, value in untold.items())
        made["description"] = f"{made['description']} ({words})" if made.get("description") else words
    return made


def _circular(schema: dict[str, Any]) -> bool:
    """Whether a definition needs itself."""
    named = {
        f"#/{place}/{name}": set(_references(one))
        for place in ("$defs", "definitions")
        for name, one in _dict(schema.get(place)).items()
    }
    known: set[str] = set()
    while ready := {name for name, needs in named.items() if needs <= known} - known:
        known |= ready
    return not named.keys() <= known or not set(_references(schema)) <= known


def _references(node: Any) -> list[str]:  # noqa: ANN401  any JSON value
    if isinstance(node, list):
        return [found for item in cast("list[Any]", node) for found in _references(item)]
    found = [inner for value in _dict(node).values() for inner in _references(value)]
    reference = _dict(node).get("$ref")
    return [*found, reference] if isinstance(reference, str) else found


# ---- replies ---------------------------------------------------------------------------------------------------------

_FINISHES: Final[dict[str, FinishReason]] = {
    "max_tokens": "output_limit",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_overflow",
}
_PAUSES: Final = frozenset(("pause_turn", "compaction"))
_CUTS: Final = frozenset(_FINISHES)


class _Block:
    """A block while it grows."""

    __slots__ = ("citations", "given", "kind", "signature", "written")

    def __init__(self, kind: str, given: dict[str, Any]) -> None:
        self.kind = kind
        self.given = given
        self.written: list[str] = []
        self.citations: list[Any] = []
        self.signature = ""


class AnthropicFold:
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
        self._size = 0
        self._started = False
        self._done = False
        self._begin_again()

    def _begin_again(self) -> None:
        self._id = self._model = self._stop = self._container = ""
        self._details: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: list[_Block] = []
        self._open: dict[int, _Block] = {}

    def feed(self, frame: Frame) -> list[StreamEvent]:  # noqa: PLR0911  one for each kind of frame
        """What a frame means. Raises a `ModelError` for an error that the provider puts into its stream."""
        self._size += len(frame.data)
        if self._size > MAX_REPLY:
            raise ModelError(f"the reply of {self._name} is longer than {MAX_REPLY:,} bytes", kind="bad_frame")
        if self._done or not frame.data.strip():
            self.ignored += 1
            return []
        event = _object(frame.data)
        kind = _str(event.get("type")) or frame.event
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
                    raise _told(event)
                self.ignored += 1
                return []

    def finish(self) -> ModelReply:
        """The whole reply; `StreamCut` when the provider's terminal frame has not come."""
        if not self._done:
            raise StreamCut(self._name)
        parts = [part for block in self._blocks for part in self._parts(block)]
        calls = any(type(part) is ToolCall for part in parts)
        finish = _FINISHES.get(self._stop) or ("tool_calls" if calls else "stop")
        if finish == "refusal":
            parts.append(Refusal(_declined(self._details)))
        if finish != "tool_calls" and not self.paused:
            parts = settled(parts)
        return ModelReply(
            tuple(parts),
            finish,
            _usage(self._usage),
            self._model,
            raw_usage=self._usage or None,
            response_id=self._id or None,
        )

    def take(self, message: dict[str, Any]) -> None:
        """A message that came whole."""
        self._on_start({"message": message})
        self._ended(message)
        self._on_stop()

    # ---- frames ----

    def _on_start(self, event: dict[str, Any]) -> list[StreamEvent]:
        message = _dict(event.get("message"))
        events: list[StreamEvent] = []
        if self._started:
            if message.get("id") == self._id:  # some gateways say it twice
                self.ignored += 1
                return []
            # A gateway lost the reply it was passing on, asked again, and goes on in the same response.
            events.append(StreamReset("the provider began its reply anew"))
            self._begin_again()
        self._started = True
        self._id, self._model = _str(message.get("id")), _str(message.get("model"))
        events.append(StreamStart(self._model))
        events += self._counted(message.get("usage"))
        content = message.get("content")
        for index, block in enumerate(cast("list[Any]", content) if isinstance(content, list) else []):
            events += self._on_block({"index": index, "content_block": block})
            events += self._on_block_end({"index": index})
        return events

    def _on_block(self, event: dict[str, Any]) -> list[StreamEvent]:
        given, index = _dict(event.get("content_block")), event.get("index")
        kind = _str(given.get("type"))
        if not self._started or type(index) is not int or not kind:
            self.ignored += 1
            return []
        block = _Block(kind, given)
        self._blocks.append(block)
        self._open[index] = block
        if kind == "text":
            citations = given.get("citations")
            block.citations = list(cast("list[Any]", citations)) if isinstance(citations, list) else []
            return self._wrote(block, given.get("text"))
        if kind == "thinking":
            block.signature = _str(given.get("signature"))
            return self._wrote(block, given.get("thinking"))
        if kind == "tool_use":
            # An id is what pairs a call with its result; one that is missing is made up, the same each time.
            given["id"] = _str(given.get("id")) or f"{self._id or 'call'}_{len(self._blocks)}"
            return [CallStart(given["id"], _str(given.get("name")))]
        if kind == "fallback":
            before, after = (_str(_dict(given.get(side)).get("model")) for side in ("from", "to"))
            self._model = after or self._model
            return [StreamNote("fallback", f"{before} -> {after}")]
        return []

    def _grown(self, event: dict[str, Any]) -> list[StreamEvent]:
        delta, index = _dict(event.get("delta")), event.get("index")
        block = self._open.get(index) if type(index) is int else None
        if block is None:
            self.ignored += 1
            return []
        kind = delta.get("type")
        if kind == "text_delta" and block.kind == "text":
            return self._wrote(block, delta.get("text"))
        if kind == "thinking_delta" and block.kind == "thinking":
            return self._wrote(block, delta.get("thinking"))
        if kind == "input_json_delta" and block.kind not in {"text", "thinking"}:
            return self._wrote(block, delta.get("partial_json"))
        if kind == "signature_delta" and block.kind == "thinking":
            block.signature = _str(delta.get("signature"))
        elif kind == "citations_delta" and block.kind == "text":
            block.citations.append(delta.get("citation"))
        elif block.kind not in {"text", "thinking", "tool_use"}:
            _merge(block.given, delta)
        else:
            self.ignored += 1
        return []

    def _wrote(self, block: _Block, words: Any) -> list[StreamEvent]:  # noqa: ANN401  whatever came
        if not isinstance(words, str) or not words:
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
        return [CallEnd(self._call(block))] if block.kind == "tool_use" else []

    def _on_delta(self, event: dict[str, Any]) -> list[StreamEvent]:
        if not self._started:
            self.ignored += 1
            return []
        self._ended(_dict(event.get("delta")))
        return self._counted(event.get("usage"))

    def _on_stop(self) -> list[StreamEvent]:
        if not self._started:
            self.ignored += 1
            return []
        # A call that was begun and not ended, in a reply without a reason to stop, is not whole: it must not run.
        self._done = bool(self._stop) or not any(block.kind == "tool_use" for block in self._open.values())
        self.paused = self._stop in _PAUSES and not any(block.kind == "tool_use" for block in self._blocks)
        return []

    def _ended(self, told: dict[str, Any]) -> None:
        self._stop = _str(told.get("stop_reason")) or self._stop
        self._details = _dict(told.get("stop_details")) or self._details
        self._container = _str(_dict(told.get("container")).get("id")) or self._container

    def _counted(self, usage: Any) -> list[StreamEvent]:  # noqa: ANN401  whatever came
        """Counters are totals: the newest that says something counts."""
        news = {name: count for name, count in _dict(usage).items() if count is not None}
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
            cited: list[Part] = [self._opaque("", {"citations": block.citations})] if block.citations else []
            return [Text(words), *cited]
        if block.kind == "thinking":
            if block.signature or (self._unsigned and words):
                return [self._opaque(words, {"signature": block.signature})]
            return [Reasoning(words)] if words else []
        if block.kind == "tool_use":
            return [self._call(block)]
        if words:
            arguments, malformed = _arguments(words)
            block.given["input"] = {"invalid_json": malformed} if arguments is None else arguments
        return [self._opaque("", block.given)]

    def _opaque(self, words: str, replay: dict[str, Any]) -> Reasoning:
        return Reasoning(words, replay, self._route)

    def _call(self, block: _Block) -> ToolCall:
        given = block.given
        words = "".join(block.written)
        arguments, malformed = _arguments(words) if words else _given(given.get("input"))
        if not words and not arguments and self._stop in _CUTS and block is self._blocks[-1]:
            arguments, malformed = None, malformed or ""  # the reply was cut off before they came
        replay = None
        caller = _dict(given.get("caller"))
        if caller and caller.get("type") != "direct":
            replay = {"caller": caller} | ({"container": self._container} if self._container else {})
        route = None if replay is None else self._route
        return ToolCall(given["id"], _str(given.get("name")), arguments, malformed, replay, route)


def settled(parts: Sequence[Part]) -> list[Part]:
    """Parts of a reply that nobody goes on with: the provider refuses uses of its own tools that have no result."""
    answered = {_opaque_field(part, "tool_use_id") for part in parts}
    return [
        part
        for part in parts
        if not _opaque_field(part, "type").endswith("tool_use") or _opaque_field(part, "id") in answered
    ]


def _opaque_field(part: Part, name: str) -> str:
    return _str(_dict(part.replay).get(name)) if type(part) is Reasoning else ""


def _arguments(words: str) -> tuple[dict[str, Any] | None, str | None]:
    """The arguments of a call, or what stands in their place."""
    if words.strip() in {"", "null"}:
        return {}, None
    try:
        value = _decode(words)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None, words
    return (cast("dict[str, Any]", value), None) if isinstance(value, dict) else (None, words)


def _given(value: Any) -> tuple[dict[str, Any] | None, str | None]:  # noqa: ANN401  whatever came
    if value is None:
        return {}, None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value), None
    return _arguments(value) if isinstance(value, str) else (None, _json(value).decode())


def _merge(block: dict[str, Any], delta: dict[str, Any]) -> None:
    """Let a block that nobody here understands grow: words and lists at their end, the rest anew."""
    for name, value in delta.items():
        if name == "type":
            continue
        before = block.get(name)
        if type(before) is type(value) and isinstance(value, str | list):
            block[name] = cast("Any", before) + cast("Any", value)
        elif value is not None:
            block[name] = value


def _declined(details: dict[str, Any]) -> str:
    said = _str(details.get("explanation"))
    category = _str(details.get("category"))
    return said or (f"declined: {category}" if category else "the model declined to answer")


def _usage(raw: dict[str, Any]) -> Usage:
    details = _dict(raw.get("output_tokens_details"))
    return Usage(
        input=_count(raw.get("input_tokens")),
        output=_count(raw.get("output_tokens")),
        cache_read=_count(raw.get("cache_read_input_tokens")),
        cache_write=_count(raw.get("cache_creation_input_tokens")),
        reasoning=_count(details.get("thinking_tokens")),
    )


def _count(value: Any) -> int:  # noqa: ANN401  whatever came
    return value if type(value) is int and 0 <= value < 2**53 else 0


# ---- errors ----------------------------------------------------------------------------------------------------------

_KINDS: Final = {
    "invalid_request_error": "bad_request",
    "authentication_error": "authentication",
    "billing_error": "billing",
    "permission_error": "permission",
    "not_found_error": "not_found",
    "exceed_context_size_error": "context_overflow",
    "request_too_large": "context_overflow",
    "rate_limit_error": "rate_limited",
    "api_error": "server_error",
    "timeout_error": "timeout",
    "overloaded_error": "overloaded",
}
_STATUSES: Final = {
    401: "authentication",
    402: "billing",
    403: "permission",
    404: "not_found",
    408: "timeout",
    409: "server_error",
    413: "context_overflow",
    425: "server_error",
    429: "rate_limited",
    504: "timeout",
    529: "overloaded",
}
_PASSING: Final = frozenset(("rate_limited", "server_error", "timeout", "overloaded"))
_FINAL: Final = frozenset((400, 401, 402, 403, 404, 413, 422))
_SAYINGS: Final = (
    (
        re.compile("prompt is too long|context[ _](?:limit|window|length|size)|too many tokens", re.IGNORECASE),
        "context_overflow",
    ),
    (re.compile("content filtering policy", re.IGNORECASE), "content_filter"),
    (re.compile("credit balance", re.IGNORECASE), "billing"),
)
_SECRET: Final = re.compile(r"\bsk-[A-Za-z0-9_-]{8,}")
_LIMITS: Final = ("requests", "tokens", "input-tokens", "output-tokens")


def _told(event: dict[str, Any]) -> ModelError:
    """The error that an object inside a response tells of."""
    detail = event.get("error")
    error = _dict(detail)
    words = _str(error.get("message")) or _str(detail) or "the provider reports an error"
    failure = _failure(_KINDS.get(_str(error.get("type")), "server_error"), words)
    failure.request_id = _str(event.get("request_id")) or None
    return failure


def _failure(kind: str, words: str) -> ModelError:
    words = bounded(_SECRET.sub("sk-...", words))
    if kind in {"bad_request", "server_error"}:
        kind = next((better for saying, better in _SAYINGS if saying.search(words)), kind)
    if kind == "context_overflow":
        return ContextOverflow(words)
    return ModelError(words, kind=kind, retryable=kind in _PASSING)


def _by_status(status: int) -> str:
    return _STATUSES.get(status) or ("server_error" if status >= 500 else "bad_request")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """How long to wait, in seconds, as the response says: at once, or until a limit that is used up is reset."""
    asked, now = asked_in_headers(headers), _moment(headers.get("date"))
    if asked is not None or now is None:
        return asked
    moments = [
        _moment(headers.get(f"anthropic-ratelimit-{limit}-reset"))
        for limit in _LIMITS
        if headers.get(f"anthropic-ratelimit-{limit}-remaining") == "0"
    ]
    waits = [(moment - now).total_seconds() for moment in moments if moment is not None]
    return max(0.0, *waits) if waits else None


def _moment(text: str | None) -> datetime | None:
    """A point in time as HTTP or as the provider writes it; None for anything else."""
    if not text:
        return None
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = read(text)
        except (ValueError, TypeError, OverflowError):
            continue
        if moment.tzinfo is not None:
            return moment
    return None


# ---- whatever came ---------------------------------------------------------------------------------------------------


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        words = f"the provider sent no JSON: {bounded(error, 200)}"
        raise ModelError(words, kind="bad_frame", retryable=True) from None
    if not isinstance(value, dict):
        raise ModelError("the provider sent JSON that is no object", kind="bad_frame", retryable=True)
    return cast("dict[str, Any]", value)


def _dict(value: Any) -> dict[str, Any]:  # noqa: ANN401  whatever came
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _str(value: Any) -> str:  # noqa: ANN401  whatever came
    return value if isinstance(value, str) else ""


def _printed(body: bytes) -> str:
    return " ".join(body[:400].decode("utf-8", "replace").split())
