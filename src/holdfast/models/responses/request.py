"""Requests of the Responses dialect. Pure."""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from holdfast.errors import ModelError
from holdfast.errors.world import NotOffered
from holdfast.messages import AssistantMessage, Attachment, Reasoning, Refusal, Text, ToolCall, ToolMessage, UserMessage
from holdfast.models.dialect import (
    COMMON_STRICT_KEYWORDS,
    NO_STREAM,
    IdentityCache,
    MessageEncoder,
    StrictSchemaRules,
    WireRequest,
    as_dict,
    as_list,
    attachment_bytes,
    attachment_label,
    clip_text,
    data_url,
    encode_json,
    encode_messages,
    fits_strict,
    split_result,
    to_text,
    with_query,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.messages import Message, ModelRequest, ToolResult, ToolSpec
    from holdfast.models.dialect import Endpoint

_HEADERS: Final[Mapping[str, str]] = {"content-type": "application/json"}
_ENCRYPTED: Final = "reasoning.encrypted_content"
_NO_REASONING: Final = re.compile(r"(?:\A|[/.])(?:gpt-3|gpt-4|chatgpt|gpt-5-chat)", re.IGNORECASE)
"""Models that do not reason, and refuse the field for encrypted reasoning."""
_RULES: Final = StrictSchemaRules(COMMON_STRICT_KEYWORDS, frozenset(), depth=5, properties=100)
"""Accepted by every provider of this dialect."""
_COMPACTING_PROVIDERS: Final = frozenset(("openai", "azure-responses"))
"""Providers that document compaction. Others may drop the field silently."""


def encode_request(endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
    """Encode a request. The bytes of messages are joined, and not encoded again."""
    route = endpoint.route(model)
    with_ids = "no_item_ids" not in endpoint.flags
    encoder = ResponsesMessageEncoder(route, request.files, with_ids=with_ids)
    try:
        messages = encode_messages(request, f"responses {route}{'' if with_ids else ' bare'}", encoder.encode)
        fields = encode_json(_fields(endpoint, model, request, messages[0] if messages else b""))[:-1]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ModelError(f"the request has no JSON form: {clip_text(error, 200)}", kind="bad_request") from error
    # Fields first: they stay the same from step to step, so a request begins like the one before it.
    body = b"".join((fields, b',"input":[', b",".join([message for message in messages if message]), b"]}"))
    return WireRequest(with_query("/responses", endpoint.query), body, _HEADERS, encoder.dropped)


def _fields(endpoint: Endpoint, model: str, request: ModelRequest, first: bytes) -> dict[str, Any]:
    settings, flags = request.settings, endpoint.flags
    at = settings.compact_at
    extra = dict(settings.extra) if settings.extra else {}
    if "input" in extra:
        raise ModelError("settings.extra can't set 'input': it is the conversation", kind="bad_request")
    instructions, text = request.instructions, None
    strict = "no_strict" not in flags
    if request.output is not None:
        schema = request.output.schema
        if schema.get("type") == "object":
            name = NOT_IN_NAMES.sub("_", request.output.name)[:64] or "answer"
            shape = {"name": name, "schema": schema, "strict": strict and fits_strict(schema, _RULES)}
            text = {"format": {"type": "json_schema", **shape}}
        else:  # it can't be enforced, and goes into the instructions
            prompt = f"Answer with JSON alone, of this JSON schema:\n{encode_json(schema).decode()}"
            instructions = f"{instructions}\n\n{prompt}" if instructions else prompt
    more = extra.pop("tools", None) or ()
    ours = _tools(request.tools, strict)
    tools = b",".join([part for part in (ours, *(encode_json(tool) for tool in more)) if part])
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
        "stream": NO_STREAM not in flags,
    }
    if settings.cache and "no_cache_key" not in flags:
        # It names the stable beginning of a conversation, so that its requests reach the same cache.
        stable = b"".join((instructions.encode(), tools, first[:4_096]))
        fields["prompt_cache_key"] = hashlib.sha256(stable).hexdigest()[:32]
    if extra.get("include") and fields["include"]:
        fields["include"] += [wanted for wanted in as_list(extra.pop("include")) if wanted != _ENCRYPTED]
    return {name: value for name, value in (fields | extra).items() if value is not None and value != []}


def _merged(ours: dict[str, Any] | None, theirs: Any) -> Any:  # noqa: ANN401  any JSON value
    return ours | as_dict(theirs) if ours and isinstance(theirs, dict) else theirs or ours


def context_management(endpoint: Endpoint, model: str, at: int) -> list[dict[str, Any]]:
    """Make the field that asks for compaction at `at` tokens."""
    if endpoint.provider not in _COMPACTING_PROVIDERS:
        advice = (
            "it is known for OpenAI and Azure only; leave compact_at out, or send the field of your server with "
            "settings.extra={'context_management': [...]}"
        )
        raise NotOffered("settings.compact_at", f"{endpoint.provider}:{model}", advice)
    return [{"type": "compaction", "compact_threshold": at}]


@IdentityCache
def _tools(tools: tuple[ToolSpec, ...], strict: bool) -> bytes:  # noqa: FBT001  the cache takes positions only
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
NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_ID: Final = 64
_NEVER_ACCEPTED: Final = re.compile(
    r"audio/|video/|font/|application/(?:octet-stream|zip|gzip|vnd\.rar|x-(?:tar|gzip|bzip2|xz|7z-compressed|sqlite3)|wasm)",
    re.IGNORECASE,
)
"""Files that no model of this dialect accepts."""


class ResponsesMessageEncoder(MessageEncoder):
    """Encodes each message as its items, joined by commas."""

    def __init__(self, route: str, files: Mapping[str, bytes], *, with_ids: bool) -> None:
        super().__init__(route, files)
        self._with_ids = with_ids

    def encode(self, message: Message) -> bytes:
        """Encode a message; empty if it has no item."""
        match message:
            case UserMessage():
                content: str | list[Item] = message.text
                if len(message.parts) > 1 or any(type(part) is not Text for part in message.parts):
                    content = [
                        _input_text(part.text) if isinstance(part, Text) else self._file(part) for part in message.parts
                    ]
                return encode_json({"role": "user", "content": content})
            case ToolMessage():
                items = [
                    {
                        "type": "function_call_output",
                        "call_id": _wire_id(result.call_id),
                        "output": self._output(result),
                    }
                    for result in message.results
                ]
            case AssistantMessage():
                items = self._assistant_items(message)
        return encode_json(items)[1:-1]

    def _file(self, file: Attachment) -> Item:
        kind = file.media_type.strip().lower()
        url = data_url(kind, attachment_bytes(file, self._files))
        if kind.startswith("image/"):
            return {"type": "input_image", "detail": "auto", "image_url": url}
        name = file.name or f"attachment.{kind.rpartition('/')[2]}"
        return {"type": "input_file", "filename": name, "file_data": url}

    def _output(self, result: ToolResult) -> str | list[Item]:
        """Return a result as text, or as pieces if it has files. A file inside a value is named there, and follows."""
        content = result.content
        if isinstance(content, str):
            return content
        pieces = split_result(result, self._files, attachment_label)
        if not pieces:
            return encode_json(content).decode()
        output: list[Item] = []
        for value, file, inside in pieces:
            if file is not None:
                output.append(self._file(file) if _is_shown(file) else _input_text(attachment_label(file)))
                continue
            output.append(_input_text(to_text(value)))
            for part in filter(_is_shown, inside):
                output += [_input_text(attachment_label(part)), self._file(part)]
        return output

    def _assistant_items(self, message: AssistantMessage) -> list[Item]:
        parts = message.parts
        # The API refuses an item with an id if the reasoning that it came with is missing.
        own_reasoning = [part for part in parts if type(part) is Reasoning and part.route == self._route]
        with_ids = self._with_ids and all(_is_sendable(part.replay) for part in own_reasoning)
        items: list[Item] = []
        place = 0
        while place < len(parts):
            part = parts[place]
            place += 1
            own = self._own_replay(part) if isinstance(part, Reasoning | ToolCall) else {}
            bare = own if with_ids else omit_fields(own, ("id",))
            if isinstance(part, ToolCall):
                items.append(_call_item(part, bare))
            elif not isinstance(part, Reasoning) or own.get("type") == "message":
                begin = place if isinstance(part, Reasoning) else place - 1
                while place < len(parts) and not isinstance(parts[place], Reasoning | ToolCall):
                    place += 1
                words = [word for word in parts[begin:place] if not isinstance(word, Reasoning | ToolCall)]
                if words:
                    items.append(_message_item(bare, words))
            elif own and _is_sendable(own):
                items.append(bare if own.get("type") == "reasoning" else own)
        # The API refuses reasoning at the end: the reply was cut off while the model thought.
        while items and items[-1].get("type") == "reasoning":
            items.pop()
        return answer_provider_calls(items)


def _is_shown(file: Attachment) -> bool:
    # Other files in a tool result are only named: a refusal would end the conversation.
    return not _NEVER_ACCEPTED.match(file.media_type.strip())


def _input_text(text: str) -> Item:
    return {"type": "input_text", "text": text}


def _is_sendable(replay: Any) -> bool:  # noqa: ANN401  any JSON value
    """True if an item can go back: reasoning only with its content, since the provider stores none."""
    if not isinstance(replay, dict):
        return True
    item = cast("Item", replay)
    return item.get("type") != "reasoning" or bool(item.get("encrypted_content") or item.get("content"))


def _call_item(call: ToolCall, own: Item) -> Item:
    name = call.name if _NAME.fullmatch(call.name) else NOT_IN_NAMES.sub("_", call.name)[:64] or "unknown"
    # Malformed arguments are not repeated: many servers parse them, and the result says what was wrong.
    arguments = "{}" if call.arguments is None else encode_json(call.arguments).decode()
    ours = {"type": "function_call", "call_id": _wire_id(call.id), "name": name, "arguments": arguments}
    return {**own, **ours}


def _wire_id(id: str) -> str:
    """Shorten the id of a call to what the API accepts; other providers have longer ones."""
    return id if len(id) <= _LONGEST_ID else f"call_{hashlib.sha256(id.encode()).hexdigest()[:40]}"


def _message_item(own: Item, words: Iterable[Text | Refusal | Attachment]) -> Item:
    """Make a message item; `own` is the original item without its texts, if there was one."""
    said: list[Item] = []
    for word in words:
        match word:
            case Text():
                said.append({"type": "output_text", "text": word.text})
            case Refusal():
                said.append({"type": "refusal", "refusal": word.text})
            case Attachment():  # a reply can't hold files in this dialect
                label = f"[{word.media_type}: {word.name or word.digest[:12]}]"
                said.append({"type": "output_text", "text": label})
    frames = items_in(own.get("content"))
    if [frame["type"] for frame in frames] == [word["type"] for word in said]:
        said = [frame | word for frame, word in zip(frames, said, strict=True)]
    return {**(own or {"type": "message"}), "role": "assistant", "content": said}


def item_in(value: Any) -> Item | None:  # noqa: ANN401  any JSON value
    """Return an item, or None if it has no type."""
    found = as_dict(value)
    return found if isinstance(found.get("type"), str) else None


def items_in(value: Any) -> list[Item]:  # noqa: ANN401  any JSON value
    """Return the items in an array that have a type."""
    return [item for item in map(item_in, as_list(value)) if item is not None]


def omit_fields(item: Item, names: tuple[str, ...]) -> Item:
    """Copy an item without some of its fields."""
    return {name: value for name, value in item.items() if name not in names}


# ---- calls of the provider's own tools, which Holdfast does not run ----

_NOT_AVAILABLE: Final = "This tool is not available here. The call was not carried out."
_SIDE: Final = 64
"""Size of the blank screenshot, in pixels."""
_ANSWERED_TYPES: Final = frozenset(
    (
        *("apply_patch_call", "shell_call", "local_shell_call", "custom_tool_call", "computer_call"),
        *("tool_search_call", "mcp_approval_request"),
    )
)


def answer_provider_calls(items: list[Item]) -> list[Item]:
    """Append an answer to each provider call that has none among the items: the API refuses open calls."""
    waiting = [item for item in items if item.get("type") in _ANSWERED_TYPES and _answered_id(item)]
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
    """Refuse a call of a provider's tool, in the form that its item wants."""
    kind = item["type"]
    if kind == "mcp_approval_request":
        refusal = {"approve": False, "reason": "Nobody here can be asked about it."}
        return [{"type": "mcp_approval_response", "approval_request_id": item["id"], **refusal}]
    answer: Item = {"type": f"{kind}_output", "call_id": item["call_id"]}
    match kind:
        case "apply_patch_call":
            answer |= {"status": "failed", "output": _NOT_AVAILABLE}
        case "shell_call":
            output = {"stdout": "", "stderr": _NOT_AVAILABLE, "outcome": {"type": "exit", "exit_code": 1}}
            answer["output"] = [output]
        case "tool_search_call":
            answer |= {"type": "tool_search_output", "execution": "client", "status": "completed", "tools": []}
        case "computer_call":
            answer["output"] = {"type": "computer_screenshot", "image_url": _blank_screenshot()}
            checks = item.get("pending_safety_checks")
            if isinstance(checks, list) and checks:  # unread warnings are refused; nothing they warn of was done
                answer["acknowledged_safety_checks"] = checks
            # The API takes only a picture for an answer, so a message has to say that it shows nothing.
            return [answer, {"role": "developer", "content": f"{_NOT_AVAILABLE} The screenshot is blank."}]
        case _:
            answer["output"] = _NOT_AVAILABLE
    return [answer]


@lru_cache(maxsize=1)
def _blank_screenshot() -> str:
    rows = (b"\0" + bytes(_SIDE // 8)) * _SIDE
    header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return data_url("image/png", b"\x89PNG\r\n\x1a\n" + body)
