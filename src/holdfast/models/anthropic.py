"""The Anthropic Messages dialect, spoken by Anthropic and compatible endpoints.

Data that only the provider understands travels in `Reasoning` parts, in its original order, and goes back unchanged to
the route that made it. Other routes do not get it. The form of `replay` says what it is:

=============================  =========================================================================================
``{"signature": ...}``         the signature of the thoughts in the text of the part
``{"citations": [...]}``       citations of the text right before it
a block with a ``"type"``      other blocks, as they came: redacted thoughts, server tools and their results, compaction
=============================  =========================================================================================

Thoughts without a signature are shown and not sent back. A call that a server tool makes keeps its caller, and the
container it runs in, in `ToolCall.replay`.

Without a flag the version in a model's name decides: thinking budgets before Claude 4.6 and for other makers' models,
schemas in the instructions before Claude 4.1. With a budget, Claude refuses a turn whose thoughts begin in the middle:
a turn that another route began, or that a forced call began, ends without thinking.

`Settings.seed` has no counterpart. Fields of `Settings.extra` go into the request as they are, except ``betas`` (a
header), ``tools`` (before ours), and ``output_config`` (merged with ours).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final, cast

import msgspec

from holdfast import messages as msg
from holdfast.errors import InvalidArgument, ModelError, StreamCut
from holdfast.errors.world import NotOffered
from holdfast.models import dialect
from holdfast.models import json_values as values
from holdfast.models.attachments import EMPTY_FILE, attachment_bytes, attachment_label, is_text_type, split_result
from holdfast.models.contract import EFFORTS, claude_version
from holdfast.models.errors import classify_stream_error
from holdfast.models.json_values import as_dict, as_list, as_text, clip_text, encode_json, parse_arguments, token_count
from holdfast.models.schemas import narrow_schema, schema_prompt

FLAGS: Final = dialect.COMMON_FLAGS | {
    "adaptive_thinking": "effort is sent as adaptive thinking to every model",
    "budget_thinking": "effort is sent as a budget of tokens to every model",
    "unsigned_thinking": "thoughts are sent back also without a signature",
    "output_in_words": "there is no field for the schema of the answer: it goes into the instructions",
}

# ==== requests ====

VERSION: Final = "2023-06-01"
"""Version of the API, sent as a header."""
MAX_OUTPUT_TOKENS: Final = 8_192
"""Default for the answer; thinking comes on top."""
MAX_MARKED: Final = 2
"""Messages with a marker for the prompt cache. Instructions and tools have one each; the provider takes four."""
_MARK: Final = b',"cache_control":{"type":"ephemeral"}}'
_RESERVED_FIELDS: Final = frozenset(("messages", "model", "stream", "system"))
_BUDGETS: Final = dict(zip(EFFORTS, (0, 1_024, 2_048, 8_192, 16_384, 32_768, 49_152), strict=True))
"""Tokens for thinking."""
_LEAST_TOP_P: Final = 0.95
"""A Claude that thinks takes no lower one."""
_LEAST_BUDGET: Final = 1_024
_THOUGHTS: Final = (b'{"type":"thinking"', b'{"type":"redacted_thinking"')


def encode_request(endpoint: dialect.Endpoint, model: str, request: msg.ModelRequest) -> dialect.WireRequest:
    """Encode a request; the encoded messages are joined, not encoded again."""
    encoder = AnthropicMessageEncoder(endpoint.route(model), endpoint.flags, request)
    messages = encoder.encode_all()
    settings = request.settings
    edits = [] if settings.compact_at is None else context_edits(model, claude_version(model), settings.compact_at)
    betas = [_BETAS[edit["type"]] for edit in edits]
    if any(piece.startswith(_COMPACTION) for piece in messages):
        betas.append(COMPACTING_BETA)  # an agent may no longer ask for summaries, and still have some
    betas += map(str, (settings.extra or {}).get("betas") or ())
    marks = MAX_MARKED if settings.cache and "cache_control" not in (settings.extra or ()) else 0
    notes: list[str] = []
    fields = encode_json(_fields(endpoint, model, request, messages, edits, notes))[:-1]
    body = b"".join([fields, b',"messages":[', *_join_messages(request.messages, messages, marks), b"]}"])
    headers = {"anthropic-version": VERSION, "content-type": "application/json"}
    if betas:
        configured = [value for name, value in endpoint.headers.items() if name.lower() == "anthropic-beta"]
        headers["anthropic-beta"] = ",".join([*configured, *dict.fromkeys(betas)])
    path = dialect.with_query("/v1/messages", endpoint.query)
    return dialect.WireRequest(path, body, headers, encoder.dropped, tuple(notes))


def _fields(
    endpoint: dialect.Endpoint,
    model: str,
    request: msg.ModelRequest,
    messages: Sequence[bytes],
    edits: list[dict[str, Any]],
    notes: list[str],
) -> dict[str, Any]:
    """Make all fields but the messages: short ones first, then instructions and tools, which stay the same.

    `notes` gets the settings that can't be sent.
    """
    settings = request.settings
    extra = settings.extra or {}
    if taken := _RESERVED_FIELDS & extra.keys():
        wanted = f"other fields than {', '.join(sorted(_RESERVED_FIELDS))}"
        raise InvalidArgument("settings.extra", sorted(taken), wanted)
    mark = _MARK if settings.cache else b"}"
    fields: dict[str, Any] = {"model": model, "stream": dialect.NO_STREAM not in endpoint.flags}
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
    if edits:
        fields["context_management"] = {"edits": edits}
    schema = b""
    if request.output is not None and "output_in_words" not in endpoint.flags and claude_version(model) >= (4, 1):
        schema = _output_format(request.output)
    if schema:
        output_config["format"] = msgspec.Raw(schema)
    output_config.update(as_dict(extra.get("output_config")))
    fields.update((name, value) for name, value in extra.items() if name not in {"betas", "tools", "output_config"})
    if output_config:
        fields["output_config"] = output_config
    schema_words = b"" if schema or request.output is None else text_block(schema_prompt(request.output.schema))
    if system := b",".join([block for block in (text_block(request.instructions), schema_words) if block]):
        fields["system"] = msgspec.Raw(b"[%b%b]" % (system[:-1], mark))
    extra_tools = b",".join([encode_json(tool) for tool in extra.get("tools") or ()])
    tools = _tools(request.tools)
    if extra_tools or tools:
        both = [some for some in (extra_tools, tools and tools[:-1] + mark) if some]
        fields["tools"] = msgspec.Raw(b"[%b]" % b",".join(both))
        choice: dict[str, Any] = {"type": "any" if settings.tool_choice == "required" else settings.tool_choice}
        if settings.parallel_tool_calls is False and settings.tool_choice != "none":
            choice["disable_parallel_tool_use"] = True
        if choice != {"type": "auto"}:
            fields.setdefault("tool_choice", choice)
    return fields


def _add_thinking(
    endpoint: dialect.Endpoint, model: str, request: msg.ModelRequest, messages: Sequence[bytes], fields: dict[str, Any]
) -> dict[str, Any]:
    """Add thinking and the tokens for it to `fields`; return the fields of ``output_config``."""
    settings = request.settings
    effort, limit = settings.effort, settings.max_output_tokens
    fields["max_tokens"] = limit or MAX_OUTPUT_TOKENS
    if effort is None:
        return {}
    budgeted = "budget_thinking" in endpoint.flags
    adaptive = "adaptive_thinking" in endpoint.flags or (not budgeted and claude_version(model) >= (4, 6))
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
    # With a budget, the current turn must begin with thoughts. It has none if another route began it, or if a call
    # was forced. Then this turn ends without thinking, and the next one thinks again.
    is_checked = budgeted or claude_version(model) > (0, 0)
    allowed = not is_checked or _turn_has_thoughts(request.messages, messages)
    if allowed and budget >= _LEAST_BUDGET and not forced:
        fields["max_tokens"] = room
        fields["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return {}


def _turn_has_thoughts(messages: Sequence[msg.Message], pieces: Sequence[bytes]) -> bool:
    """True if the current turn sends thoughts, or has not begun.

    Some models think only at the beginning of a turn, so later replies may have no thoughts.
    """
    begun = False
    answered: bool | None = None
    # Tool results are between two replies of the same turn, and never between two turns.
    for message, piece in zip(reversed(messages), reversed(pieces), strict=True):
        kind = type(message)
        if kind is msg.ToolMessage:
            answered = True
        elif not piece:
            continue
        elif kind is not msg.AssistantMessage:
            answered = answered or False
        elif answered is False:
            break
        elif piece.startswith(_THOUGHTS):
            return True
        else:
            begun, answered = True, None
    return not begun


def _container(messages: Sequence[msg.Message], route: str) -> str:
    """Return the container of the code that waits for the tool results at the end of `messages`."""
    if len(messages) < 2 or type(messages[-1]) is not msg.ToolMessage or type(messages[-2]) is not msg.AssistantMessage:
        return ""
    found = [as_dict(call.replay).get("container") for call in messages[-2].calls if call.route == route]
    return next((as_text(container) for container in found if container), "")


@dialect.IdentityCache
def _tools(tools: Sequence[msg.ToolSpec]) -> bytes:
    fields = [{"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools]
    return encode_json(fields)[1:-1]


@dialect.IdentityCache
def _output_format(output: msg.OutputSpec) -> bytes:
    """Encode the schema; returns no bytes if the provider can't enforce it."""
    schema = narrow_schema(output.schema)
    return b"" if schema is None else encode_json({"type": "json_schema", "schema": schema})


# ---- messages ----

_OPEN: Final = (b'{"role":"user","content":[', b'{"role":"assistant","content":[')
_NEXT: Final = (b"]}," + _OPEN[0], b"]}," + _OPEN[1])
_VALID_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_IMAGE_TYPES: Final = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))


def _join_messages(messages: Sequence[msg.Message], pieces: list[bytes], marks: int) -> list[bytes]:
    """Merge neighbours of the same role, and put cache markers on the last `marks` user messages."""
    pieces = _mark_for_cache(messages, pieces, marks) if marks else pieces
    joined: list[bytes] = []
    role: bool | None = None
    for message, piece in zip(messages, pieces, strict=True):
        if not piece:
            continue
        is_assistant = type(message) is msg.AssistantMessage
        if is_assistant is role:
            joined.append(b",")
        else:
            joined.append((_OPEN if role is None else _NEXT)[is_assistant])
            role = is_assistant
        joined.append(piece)
    return [*joined, b"]}"] if joined else []


def _mark_for_cache(messages: Sequence[msg.Message], pieces: list[bytes], count: int) -> list[bytes]:
    pieces = pieces.copy()
    ended = True
    for index in range(len(pieces) - 1, -1, -1):
        if not pieces[index]:
            continue
        if type(messages[index]) is msg.AssistantMessage:
            ended = True
        elif ended:
            pieces[index] = pieces[index][:-1] + _MARK
            ended = False
            count -= 1
            if not count:
                break
    return pieces


class AnthropicMessageEncoder(dialect.MessageEncoder):
    """Encodes each message as its blocks, joined by commas."""

    def encode(self, message: msg.Message) -> bytes:
        """Encode a message; empty if it has no block that the provider accepts."""
        if type(message) is msg.UserMessage:
            # Without a first user message the provider refuses the conversation.
            blocks = [self._input(part) for part in message.parts]
            blocks = blocks if any(blocks) else [text_block(dialect.EMPTY_MESSAGE)]
        elif type(message) is msg.ToolMessage:
            blocks = [self._result(result) for result in message.results]
        else:
            blocks = self._assistant_blocks(cast("msg.AssistantMessage", message).parts)
        return b",".join([block for block in blocks if block])

    def _input(self, part: msg.InputPart) -> bytes:
        if type(part) is msg.Text:
            return text_block(part.text)
        file = cast("msg.Attachment", part)
        if block := self._file_block(file):
            return block
        message = f"this provider takes no {clip_text(file.media_type, 100)}: {attachment_label(file)[1:-1]}"
        raise ModelError(message, kind="bad_request")

    def _assistant_blocks(self, parts: Sequence[msg.Part]) -> list[bytes]:
        blocks: list[bytes] = []
        after_text = False
        for part in parts:
            if type(part) is msg.Reasoning:
                replay = self._own_replay(part)
                if "type" in replay:
                    blocks.append(encode_json({"type": replay["type"], **replay}))  # type first
                elif "signature" in replay:
                    thought = {"type": "thinking", "thinking": part.text, "signature": replay["signature"]}
                    blocks.append(encode_json(thought))
                elif "citations" in replay and after_text:
                    blocks[-1] = b'%b,"citations":%b}' % (blocks[-1][:-1], encode_json(replay["citations"]))
            elif type(part) is msg.ToolCall:
                blocks.append(self._call(part))
            elif type(part) is msg.Attachment:
                blocks.append(text_block(attachment_label(part)))
            else:
                blocks.append(text_block(cast("msg.Text | msg.Refusal", part).text))
            after_text = type(part) is msg.Text and bool(part.text.strip())
        return blocks

    def _call(self, call: msg.ToolCall) -> bytes:
        # The API wants an object, and the model should see its own text.
        arguments = {"invalid_json": call.malformed or ""} if call.arguments is None else call.arguments
        block = {"type": "tool_use", "id": _id(call.id), "name": dialect.tool_name(call.name), "input": arguments}
        replay = self._own_replay(call)
        return encode_json({**block, "caller": replay["caller"]} if "caller" in replay else block)

    def _result(self, result: msg.ToolResult) -> bytes:
        """Encode texts verbatim, values as JSON, files as blocks. A failed call may have text blocks only.

        A file inside a value is named there, and follows it under the same name.
        """
        failed = result.state != "ok"
        pieces = [] if type(result.content) is str else split_result(result, self._files, attachment_label)
        blocks: list[bytes] = []
        for value, file, inside in pieces:
            if file is not None:
                blocks.append((not failed and self._file_block(file)) or text_block(attachment_label(file)))
                continue
            plain = as_dict(value)
            text = plain["text"] if plain.keys() == {"type", "text"} and plain["type"] == "text" else None
            blocks.append(text_block(text if isinstance(text, str) else values.to_text(value)))
            for part in () if failed else inside:
                if block := self._file_block(part):
                    blocks += (text_block(attachment_label(part)), block)
        content = b"[%b]" % b",".join(filter(None, blocks)) if pieces else encode_json(values.to_text(result.content))
        id, end = encode_json(_id(result.call_id)), b',"is_error":true}' if failed else b"}"
        return b'{"type":"tool_result","tool_use_id":%b,"content":%b%b' % (id, content, end)

    def _file_block(self, file: msg.Attachment) -> bytes:
        """Encode a file; empty if the provider has no block for its type."""
        data = attachment_bytes(file, self._files)
        kind = file.media_type.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
        if kind in _IMAGE_TYPES:
            return b'{"type":"image","source":%b}' % _base64(kind, data)
        title = b',"title":%b' % encode_json(clip_text(file.name, 500)) if file.name else b""
        if kind == "application/pdf":
            return b'{"type":"document","source":%b%b}' % (_base64(kind, data), title)
        if not is_text_type(kind):
            return b""
        text = data.decode("utf-8", "replace")
        words = encode_json({"type": "text", "media_type": "text/plain", "data": text if text.strip() else EMPTY_FILE})
        return b'{"type":"document","source":%b%b}' % (words, title)


def text_block(text: str) -> bytes:
    """Encode a text block; empty for blank text, which the provider refuses."""
    return encode_json({"type": "text", "text": text}) if text.strip() else b""


def _base64(media_type: str, data: bytes) -> bytes:
    coded = binascii.b2a_base64(data, newline=False)
    return b'{"type":"base64","media_type":%b,"data":"%b"}' % (encode_json(media_type), coded)


def _id(given: str) -> str:
    """Make the id of a call valid; a call and its result get the same."""
    return given if _VALID_ID.fullmatch(given) else dialect.derive_call_id(given)


# ---- context edits: the provider shortens a conversation that has grown too long ----

CLEARING_BETA: Final = "context-management-2025-06-27"
COMPACTING_BETA: Final = "compact-2026-01-12"
LEAST_COMPACTED: Final = 50_000
"""The provider makes no summary below this number of tokens."""
_BETAS: Final = {"clear_tool_uses_20250919": CLEARING_BETA, "compact_20260112": COMPACTING_BETA}
"""Beta headers that the edits need."""
_COMPACTION: Final = b'{"type":"compaction"'


def context_edits(model: str, version: tuple[int, int], at: int) -> list[dict[str, Any]]:
    """Ask a Claude of this version to shorten the conversation at `at` tokens."""
    if version < (4, 0):
        advice = "it needs Claude 4 or newer; leave compact_at out, or use another model"
        raise NotOffered("settings.compact_at", model, advice)
    compacts = version >= (4, 6)
    if compacts and at < LEAST_COMPACTED:
        advice = f"it makes no summaries below {LEAST_COMPACTED:,} tokens; set it to that or more"
        raise NotOffered(f"settings.compact_at={at}", model, advice)
    return [{"type": kind, "trigger": {"type": "input_tokens", "value": at}} for kind in list(_BETAS)[: 1 + compacts]]


# ==== responses ====

_FINISHES: Final[dict[str, msg.FinishReason]] = {
    "max_tokens": "output_limit",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_overflow",
}
_PAUSE_REASONS: Final = frozenset(("pause_turn", "compaction"))
_BLOCK_OF_DELTA: Final = {"text_delta": "text", "thinking_delta": "thinking"}
"""Deltas that are understood without a ``content_block_start``."""


class _AnthropicBlock(msgspec.Struct, eq=False):
    """A content block during streaming."""

    index: int
    kind: str
    given: dict[str, Any]
    written: list[str] = []
    grown: dict[str, list[str]] = {}
    """Pieces of the texts of an unknown block."""
    citations: list[Any] = []
    signature: str = ""
    ended: bool = False


class AnthropicReader(dialect.ResponseReader):
    """Reads one response. A paused one has the finish reason ``stop``."""

    growing_fields = frozenset(("text", "thinking", "partial_json", "content"))

    def __init__(self, endpoint: dialect.Endpoint, model: str) -> None:
        super().__init__(endpoint, model)
        self._early = False
        """Blocks came before ``message_start``."""
        self._done = False
        self._reset()

    def _reset(self) -> None:
        self.passes = ()
        self._id = self._model = self._stop = self._container = ""
        self._details: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: list[_AnthropicBlock] = []
        self._open: dict[int, _AnthropicBlock] = {}
        self._seen: set[int] = set()
        """Indexes of all blocks."""
        self._ids.clear()
        self._seed = ""

    @property
    def complete(self) -> bool:
        return self._done

    def feed(self, frame: dialect.Frame) -> list[msg.StreamEvent]:
        """Translate a frame. Raises a `ModelError` if the frame reports an error."""
        data = frame.data
        self._room -= len(data)
        if self._room < 0:
            raise self._too_long()
        if self._done or not data or data.isspace() or data == b"[DONE]":
            return self._ignore()
        event = self._joiner.parse(data)
        if not values.is_dict(event):
            raise values.bad_frame("the provider sent JSON that is no object")
        kind = as_text(event.get("type")) or frame.event
        if kind == "content_block_delta":  # as nearly always
            return self._on_block_delta(event)
        if handler := self._handlers.get(kind):
            return handler(self, event)
        if kind == "ping":
            return []
        if kind == "error" or event.get("error"):
            raise classify_stream_error(event)
        return self._ignore()

    def finish(self) -> msg.ModelReply:
        """Return the whole reply. Raises `StreamCut` without a terminal frame."""
        if not self._done:
            raise StreamCut(self._name)
        parts = [part for block in self._blocks for part in self._parts(block)]
        finish = _FINISHES.get(self._stop) or dialect.default_finish(parts)
        if finish == "refusal":
            parts.append(msg.Refusal(_refusal_text(self._details)))
        if finish != "tool_calls" and not self.paused:
            parts = drop_unanswered_tool_uses(parts)
        usage, raw, id = _usage(self._usage), self._usage or None, self._id or None
        return msg.ModelReply(tuple(parts), finish, usage, self._model, raw, response_id=id)

    def read_body(self, body: bytes) -> msg.ModelReply:
        """Return the reply in a body that is not a stream."""
        message = as_dict(values.parse_json(body))
        if message.get("type") == "error" or message.get("error"):
            raise classify_stream_error(message)
        if not isinstance(message.get("content"), list):
            raise values.bad_frame("the provider's answer is no message")
        self._on_message_start({"message": message})
        self._on_message_delta({"delta": message})
        if not self._stop and any(block.kind == "tool_use" for block in self._blocks):
            raise StreamCut(self._name)  # calls without a stop reason may be incomplete
        self._on_message_stop({})
        return self.finish()

    def _on_message_start(self, event: dict[str, Any]) -> list[msg.StreamEvent]:
        message = as_dict(event.get("message"))
        events: list[msg.StreamEvent] = []
        if self._started and not self._early:
            if message.get("id") == self._id:  # some gateways repeat it
                return self._ignore()
            # A gateway lost the reply, tried again, and continues in the same response.
            events.append(msg.StreamReset("the provider began its reply anew"))
            self._reset()
        self._started, self._early = True, False
        self._id, self._model = as_text(message.get("id")), as_text(message.get("model"))
        events.append(msg.StreamStart(self._model))
        events += self._update_usage(message.get("usage"))
        for index, block in enumerate(as_list(message.get("content"))):
            events += self._on_block_start({"index": index, "content_block": block})
            events += self._on_block_stop({"index": index})
        return events

    def _on_block_start(self, event: dict[str, Any]) -> list[msg.StreamEvent]:
        given, index = as_dict(event.get("content_block")), event.get("index")
        kind = as_text(given.get("type"))
        if type(index) is not int or not kind:
            return self._ignore()
        self._early = self._early or not self._started  # some gateways send `message_start` late, or never
        self._started = True
        block = _AnthropicBlock(index, kind, given)
        self._blocks.append(block)
        self._open[index] = block
        self._seen.add(index)
        match kind:
            case "text":
                block.citations = as_list(given.get("citations")).copy()
                return self._add_text(block, given.get("text"))
            case "thinking":
                block.signature = as_text(given.get("signature"))
                return self._add_text(block, given.get("thinking"))
            case "tool_use":
                given["id"] = self._unique_id(as_text(given.get("id")), len(self._blocks))
                return [msg.CallStart(given["id"], as_text(given.get("name")))]
            case "fallback":
                before, after = (as_text(as_dict(given.get(side)).get("model")) for side in ("from", "to"))
                self._model = after or self._model
                return [msg.StreamNote("fallback", f"{before} -> {after}")]
            case _:
                return []

    def _make_seed(self) -> str:
        said = "".join([words for block in self._blocks for words in block.written])
        return f"{self._id} {self._usage} {said} {self._blocks[-1].given}"

    def _on_block_delta(self, event: dict[str, Any]) -> list[msg.StreamEvent]:
        delta, index = as_dict(event.get("delta")), event.get("index")
        kind = delta.get("type")
        begun = _BLOCK_OF_DELTA.get(as_text(kind), "")
        if delta.get(begun) and type(index) is int and index not in self._seen:  # some servers never announce a block
            self._on_block_start({"index": index, "content_block": {"type": begun}})
        block = self._open.get(index) if type(index) is int else None
        if block is None:
            return self._ignore()
        if begun and begun == block.kind:
            return self._add_text(block, delta.get(begun))
        if kind == "input_json_delta" and block.kind not in {"text", "thinking"}:
            return self._add_text(block, delta.get("partial_json"))
        if kind == "signature_delta" and block.kind == "thinking":
            block.signature = as_text(delta.get("signature"))
        elif kind == "citations_delta" and block.kind == "text":
            block.citations.append(delta.get("citation"))
        elif block.kind not in {"text", "thinking", "tool_use"}:
            _grow_unknown_block(block, delta)
        else:
            self.ignored += 1
        return []

    def _add_text(self, block: _AnthropicBlock, words: Any) -> list[msg.StreamEvent]:  # any JSON value
        if not isinstance(words, str):
            return []
        if self._joiner.active:
            words = self._joiner.join(block, words)
        if not words:
            return []
        block.written.append(words)
        if block.kind == "text":
            return [msg.TextChunk(words)]
        if block.kind == "thinking":
            return [msg.ReasoningChunk(words)]
        return [msg.CallChunk(block.given["id"], words)] if block.kind == "tool_use" else []

    def _on_block_stop(self, event: dict[str, Any]) -> list[msg.StreamEvent]:
        index = event.get("index")
        block = self._open.pop(index, None) if type(index) is int else None
        if block is None:
            return self._ignore()
        block.ended = True
        events = self._add_text(block, self._joiner.flush(block))
        if block.kind == "tool_use":
            events.append(msg.CallEnd(self._call(block)))
        return events

    def _on_message_stop(self, _event: dict[str, Any]) -> list[msg.StreamEvent]:
        if not self._started:
            return self._ignore()
        if len(self._seen) == len(self._blocks):  # blocks may begin out of order
            self._blocks.sort(key=lambda block: block.index)
        # Without a stop reason, an open call is incomplete and must not run.
        growing = [block for block in self._blocks if not block.ended]
        self._done = bool(self._stop) or not any(block.kind == "tool_use" for block in growing)
        self.paused = self._stop in _PAUSE_REASONS and not any(block.kind == "tool_use" for block in self._blocks)
        events: list[msg.StreamEvent] = []
        for block in growing:
            events += self._add_text(block, self._joiner.flush(block))
            if self._done and block.kind == "tool_use":
                events.append(msg.CallEnd(self._call(block)))
        if self._stop == "refusal":
            events.append(msg.TextChunk(_refusal_text(self._details)))
        return events

    def _on_message_delta(self, event: dict[str, Any]) -> list[msg.StreamEvent]:
        if not self._started:
            return self._ignore()
        fields = as_dict(event.get("delta"))
        self._stop = as_text(fields.get("stop_reason")) or self._stop
        self._details = as_dict(fields.get("stop_details")) or self._details
        self._container = as_text(as_dict(fields.get("container")).get("id")) or self._container
        return self._update_usage(event.get("usage"))

    def _update_usage(self, usage: Any) -> list[msg.StreamEvent]:  # any JSON value
        """Merge counters, which are totals."""
        news = {name: count for name, count in as_dict(usage).items() if count is not None}
        if not news:
            return []
        self._usage |= news
        self.passes = _model_passes(self._usage)
        return [msg.StreamUsage(_usage(self._usage))]

    def _parts(self, block: _AnthropicBlock) -> list[msg.Part]:
        words = "".join(block.written)
        if block.kind == "text":
            if not words:
                return []
            citations = self._joiner.repair(block.citations)
            noted = [msg.Reasoning("", {"citations": citations}, self._route)] if citations else []
            return [msg.Text(words), *noted]
        if block.kind == "thinking":
            if block.signature or (words and "unsigned_thinking" in self._flags):
                return [msg.Reasoning(words, {"signature": block.signature}, self._route)]
            return [msg.Reasoning(words)] if words else []
        if block.kind == "tool_use":
            return [self._call(block)]
        if words:
            arguments, malformed = parse_arguments(words)
            block.given["input"] = {"invalid_json": malformed} if arguments is None else arguments
        block.given.update((name, "".join(pieces)) for name, pieces in block.grown.items())
        return [msg.Reasoning("", self._joiner.repair(block.given), self._route)]

    def _call(self, block: _AnthropicBlock) -> msg.ToolCall:
        given = block.given
        words = "".join(block.written)
        value = words or self._joiner.repair(given.get("input"))
        arguments, malformed = values.arguments_from_value(value)
        is_cut = not block.ended or (self._stop in _FINISHES and block is self._blocks[-1])
        if not words and not arguments and is_cut:
            arguments, malformed = None, malformed or ""  # the reply was cut off before they came
        call = msg.ToolCall(given["id"], as_text(given.get("name")), arguments, malformed)
        caller = as_dict(given.get("caller"))
        if not caller or caller.get("type") == "direct":
            return call
        replay = {"caller": caller} | ({"container": self._container} if self._container else {})
        return msgspec.structs.replace(call, replay=replay, route=self._route)

    _handlers: ClassVar = {
        "content_block_start": _on_block_start,
        "content_block_stop": _on_block_stop,
        "message_start": _on_message_start,
        "message_delta": _on_message_delta,
        "message_stop": _on_message_stop,
    }


def drop_unanswered_tool_uses(parts: Sequence[msg.Part]) -> list[msg.Part]:
    """Drop uses of the provider's own tools without a result, which the provider refuses in a finished turn."""
    answered = {_opaque_field(part, "tool_use_id") for part in parts}

    def is_open(part: msg.Part) -> bool:
        return _opaque_field(part, "type").endswith("tool_use") and _opaque_field(part, "id") not in answered

    return [part for part in parts if not is_open(part)]


def _opaque_field(part: msg.Part, name: str) -> str:
    return as_text(as_dict(part.replay).get(name)) if type(part) is msg.Reasoning else ""


def _grow_unknown_block(block: _AnthropicBlock, delta: dict[str, Any]) -> None:
    """Apply a delta to an unknown block: texts and lists grow, other fields are replaced."""
    for name, value in delta.items():
        if name == "type":
            continue
        before = block.given.get(name)
        if isinstance(before, str) and isinstance(value, str):
            block.grown.setdefault(name, [before]).append(value)
        elif values.is_list(before) and values.is_list(value):
            before.extend(value)
        elif value is not None:
            block.given[name] = value
            block.grown.pop(name, None)


def _refusal_text(details: dict[str, Any]) -> str:
    said = as_text(details.get("explanation"))
    category = as_text(details.get("category"))
    return said or (f"declined: {category}" if category else "the model declined to answer")


def _usage(raw: dict[str, Any]) -> msg.Usage:
    """Add up all model runs behind a message. The provider's own totals leave out some of them."""
    total, passes = _counters(raw), _model_passes(raw)
    if passes:
        runs = sum((run.usage for run in passes), msg.Usage())
        total = msg.Usage(*map(max, msgspec.structs.astuple(total), msgspec.structs.astuple(runs)))
    thought = token_count(as_dict(raw.get("output_tokens_details")).get("thinking_tokens"))
    return msgspec.structs.replace(total, reasoning=thought) if thought else total


def _model_passes(raw: dict[str, Any]) -> tuple[msg.ModelPass, ...]:
    """Read the field ``iterations``, if it has more than one entry."""
    runs = [as_dict(item) for item in as_list(raw.get("iterations"))]
    found = [msg.ModelPass(_counters(run), as_text(run.get("model"))) for run in runs if run]
    return tuple(found) if len(found) > 1 else ()


def _counters(raw: dict[str, Any]) -> msg.Usage:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return msg.Usage(*[token_count(raw.get(name)) for name in names])


DIALECT: Final = dialect.Dialect("anthropic", encode_request, AnthropicReader, FLAGS)
