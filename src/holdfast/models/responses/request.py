"""Everything of a request but the conversation. Pure."""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from base64 import b64encode
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from holdfast.errors import ModelError
from holdfast.errors.world import NotOffered
from holdfast.messages import AssistantMessage, Attachment, Reasoning, Refusal, Text, ToolCall, ToolMessage, UserMessage
from holdfast.models.dialect import (
    NO_STREAM,
    PLAIN_WORDS,
    Once,
    Strictness,
    bounded,
    data_url,
    is_strict,
    listed,
    mapping,
    pieces_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.messages import Message, ModelRequest, OutputSpec, ToolResult, ToolSpec
    from holdfast.models.dialect import Endpoint


_Item: TypeAlias = dict[str, Any]
_NOBODY: Final = "This tool is not available here. The call was not carried out."
_SIDE: Final = 64
"""Of the picture that stands for a screen, in pixels."""


def answered(items: list[_Item]) -> list[_Item]:
    """The items of a reply, and behind them an answer to each call that has none among them."""
    waiting = [item for item in items if item.get("type") in _ANSWERS and _name(item)]
    if not waiting:
        return items
    # In lists, since a provider may have put anything there.
    known = [item.get("call_id") for item in items if str(item.get("type")).endswith("_output")]
    known += [item.get("approval_request_id") for item in items]
    return items + [
        answer for item in waiting if _name(item) not in known for answer in _ANSWERS[str(item["type"])](item)
    ]


def _name(item: _Item) -> str | None:
    """What the answer has to name; None where it needs none."""
    kind = item.get("type")
    if kind == "tool_search_call" and item.get("execution") != "client":
        return None  # the provider searches itself
    found = item.get("id" if kind == "mcp_approval_request" else "call_id")
    return found if isinstance(found, str) and found else None


def _patch(item: _Item) -> list[_Item]:
    return [
        {"type": "apply_patch_call_output", "call_id": item["call_id"], "status": "failed", "output": _NOBODY},
    ]


def _shell(item: _Item) -> list[_Item]:
    said = {"stdout": "", "stderr": _NOBODY, "outcome": {"type": "exit", "exit_code": 1}}
    return [{"type": "shell_call_output", "call_id": item["call_id"], "output": [said]}]


def _local_shell(item: _Item) -> list[_Item]:
    return [{"type": "local_shell_call_output", "call_id": item["call_id"], "output": _NOBODY}]


def _custom(item: _Item) -> list[_Item]:
    return [{"type": "custom_tool_call_output", "call_id": item["call_id"], "output": _NOBODY}]


def _search(item: _Item) -> list[_Item]:
    found: _Item = {"type": "tool_search_output", "call_id": item["call_id"], "execution": "client"}
    return [{**found, "status": "completed", "tools": []}]


def _approval(item: _Item) -> list[_Item]:
    return [
        {
            "type": "mcp_approval_response",
            "approval_request_id": item["id"],
            "approve": False,
            "reason": "Nobody here can be asked about it.",
        }
    ]


def _computer(item: _Item) -> list[_Item]:
    """Only a picture is taken for an answer, so words have to say that there is nothing to be seen on it."""
    shown = {"type": "computer_screenshot", "image_url": _blank()}
    answer: _Item = {"type": "computer_call_output", "call_id": item["call_id"], "output": shown}
    checks = item.get("pending_safety_checks")
    if isinstance(checks, list) and checks:  # unread warnings are refused; nothing they warn of was done
        answer["acknowledged_safety_checks"] = checks
    return [answer, {"role": "developer", "content": f"{_NOBODY} The screenshot is blank."}]


@lru_cache(maxsize=1)
def _blank() -> str:
    """A small black picture, as a data URL."""
    rows = (b"\0" + bytes(_SIDE // 8)) * _SIDE
    header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    picture = b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
    return f"data:image/png;base64,{picture}"


_ANSWERS: Final[Mapping[str, Callable[[_Item], list[_Item]]]] = {
    "apply_patch_call": _patch,
    "shell_call": _shell,
    "local_shell_call": _local_shell,
    "custom_tool_call": _custom,
    "computer_call": _computer,
    "tool_search_call": _search,
    "mcp_approval_request": _approval,
}

Item: TypeAlias = dict[str, Any]
NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_ID: Final = 64
_UNSHOWN: Final = re.compile(
    r"audio/|video/|font/|application/(?:octet-stream|zip|gzip|vnd\.rar|x-(?:tar|gzip|bzip2|xz|7z-compressed|sqlite3)|wasm)",
    re.IGNORECASE,
)
"""Files that no model takes in this dialect."""
_items_encode: Final = msgspec.json.Encoder().encode


def item_in(value: Any) -> Item | None:  # noqa: ANN401  whatever came
    """The item that came, if it says what it is."""
    found = mapping(value)
    return found if isinstance(found.get("type"), str) else None


def items_in(value: Any) -> list[Item]:  # noqa: ANN401  whatever came
    """The items among what came."""
    return [item for item in map(item_in, listed(value)) if item is not None]


def without(item: Item, names: tuple[str, ...]) -> Item:
    """An item without some of its fields."""
    return {name: value for name, value in item.items() if name not in names}


class Writer:
    """Writes single messages for one route."""

    __slots__ = ("_files", "_named", "_route", "dropped")

    def __init__(self, route: str, files: Mapping[str, bytes], *, named: bool) -> None:
        self._route = route
        self._files = files
        self._named = named
        """Whether items are sent with their ids."""
        self.dropped = 0
        """Parts with replay data that another route made, in the messages that were written here."""

    def message(self, message: Message) -> bytes:
        """The items of one message, joined."""
        match message:
            case UserMessage():
                return _items_encode({"role": "user", "content": _content(message, self._files)})
            case ToolMessage():
                return b",".join([_items_encode(_result(result, self._files)) for result in message.results])
            case AssistantMessage():
                items, dropped = _said(message, self._route, named=self._named)
                self.dropped += dropped
                return b",".join([_items_encode(item) for item in items])


def _content(message: UserMessage, files: Mapping[str, bytes]) -> str | list[Item]:
    if not message.parts:
        return ""
    if len(message.parts) == 1 and type(part := message.parts[0]) is Text:
        return part.text
    return [_input_text(part.text) if isinstance(part, Text) else _file(part, files) for part in message.parts]


def _input_text(text: str) -> Item:
    return {"type": "input_text", "text": text}


def _file(attachment: Attachment, files: Mapping[str, bytes]) -> Item:
    data = files.get(attachment.digest)
    if data is None:
        raise ModelError(f"the bytes of the attachment {attachment.digest[:12]} are not at hand", kind="bad_request")
    kind = attachment.media_type.strip().lower()
    url = data_url(kind, data)
    if kind.startswith("image/"):
        return {"type": "input_image", "detail": "auto", "image_url": url}
    name = attachment.name or f"attachment.{kind.rpartition('/')[2]}"
    return {"type": "input_file", "filename": name, "file_data": url}


def _result(result: ToolResult, files: Mapping[str, bytes]) -> Item:
    output = _result_output(result, files)
    return {"type": "function_call_output", "call_id": _wire_id(result.call_id), "output": output}


def _result_output(result: ToolResult, files: Mapping[str, bytes]) -> str | list[Item]:
    """Words, JSON, or the pieces of what has files in it. A file inside a value is named there and shown behind it."""
    content = result.content
    if isinstance(content, str):
        return content
    pieces = pieces_of(result, files, _label)
    if not pieces:
        return _items_encode(content).decode()
    output: list[Item] = []
    for value, file, inside in pieces:
        if file is not None:
            output.append(_file(file, files) if _is_shown(file) else _input_text(_label(file)))
            continue
        output.append(_input_text(value if isinstance(value, str) else _items_encode(value).decode()))
        for part in inside:
            output += [_input_text(_label(part)), _file(part, files)] if _is_shown(part) else []
    return output


def _is_shown(file: Attachment) -> bool:
    """Whether a file that a tool gave is sent: one that is refused would end the conversation, so it is named only."""
    return not _UNSHOWN.match(file.media_type.strip())


def _label(file: Attachment) -> str:
    return f"[{bounded(file.name or file.digest[:12], 200)} ({bounded(file.media_type, 100)}, {file.size:,} bytes)]"


def _said(message: AssistantMessage, route: str, *, named: bool) -> tuple[list[Item], int]:
    """The items of a reply, and how many parts had replay data of another route."""
    parts = message.parts
    # An item that has an id is refused without the reasoning it came with, so one can't have an id without the other.
    named = named and all(_returnable(part.replay) for part in parts if type(part) is Reasoning and part.route == route)
    items: list[Item] = []
    dropped = place = 0
    while place < len(parts):
        part = parts[place]
        place += 1
        own: Item | None = None
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
    return answered(items), dropped


def _owned(part: Reasoning | ToolCall, route: str) -> Item | None:
    return cast("Item", part.replay) if part.route == route and isinstance(part.replay, dict) else None


def _returnable(replay: Any) -> bool:  # noqa: ANN401  what was kept
    """Whether an item can be sent again: reasoning only with its content, as the provider has kept none."""
    if not isinstance(replay, dict):
        return True
    item = cast("Item", replay)
    return item.get("type") != "reasoning" or bool(item.get("encrypted_content") or item.get("content"))


def _own_items(item: Item, *, named: bool) -> list[Item]:
    if not _returnable(item):
        return []
    if item.get("type") == "reasoning" and not named:
        return [without(item, ("id",))]
    return [item]


def _call_item(call: ToolCall, own: Item | None, *, named: bool) -> Item:
    name = call.name if _NAME.fullmatch(call.name) else NOT_IN_NAMES.sub("_", call.name)[:64] or "unknown"
    more = {} if own is None else own if named else without(own, ("id",))
    # Arguments that are no JSON object are not repeated: many servers read them, and the result says what was wrong.
    arguments = "{}" if call.arguments is None else _items_encode(call.arguments).decode()
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


def _message_item(own: Item | None, words: Iterable[Text | Refusal | Attachment], *, named: bool) -> Item:
    """A message with its words; `own` is what it was besides them."""
    said = [_word(word) for word in words]
    if own is None:
        return {"type": "message", "role": "assistant", "content": said}
    frames = items_in(own.get("content"))
    if [frame["type"] for frame in frames] == [word["type"] for word in said]:
        said = [frame | word for frame, word in zip(frames, said, strict=True)]
    more = own if named else without(own, ("id",))
    return {**more, "role": "assistant", "content": said}


def _word(part: Text | Refusal | Attachment) -> Item:
    match part:
        case Text():
            return {"type": "output_text", "text": part.text}
        case Refusal():
            return {"type": "refusal", "refusal": part.text}
        case Attachment():  # a reply can't hold bytes in this dialect
            return {"type": "output_text", "text": f"[{part.media_type}: {part.name or part.digest[:12]}]"}


_OFFERING: Final = frozenset(("openai", "azure-responses"))
"""Those that document it. Others who speak the dialect may drop the field without a word."""


def context_management(endpoint: Endpoint, model: str, at: int) -> list[dict[str, Any]]:
    """The field that asks for compaction at so many tokens."""
    if endpoint.provider not in _OFFERING:
        advice = (
            "it is known for OpenAI and Azure only; leave compact_at out, or send the field of your server with "
            "settings.extra={'context_management': [...]}"
        )
        raise NotOffered("settings.compact_at", f"{endpoint.provider}:{model}", advice)
    return [{"type": "compaction", "compact_threshold": at}]


_ENCRYPTED: Final = "reasoning.encrypted_content"
# These refuse to be asked for encrypted reasoning, as they do not reason.
_UNREASONING: Final = re.compile(r"(?:\A|[/.])(?:gpt-3|gpt-4|chatgpt|gpt-5-chat)", re.IGNORECASE)
# What every provider of this dialect takes in a strict schema.
_RULES: Final = Strictness(PLAIN_WORDS, frozenset(), depth=5, properties=100)
_encode: Final = msgspec.json.Encoder().encode


def head_of(endpoint: Endpoint, model: str, request: ModelRequest, first: bytes) -> bytes:
    """Everything but the conversation, as the beginning of an object. `first` is the first message as it is sent."""
    return _encode(_fields(endpoint, model, request, first))[:-1]


def _fields(endpoint: Endpoint, model: str, request: ModelRequest, first: bytes) -> dict[str, Any]:
    settings, flags = request.settings, endpoint.flags
    at = settings.compact_at
    extra = dict(settings.extra) if settings.extra else {}
    if "input" in extra:
        raise ModelError("settings.extra can't set 'input': it is the conversation", kind="bad_request")
    instructions, text = request.instructions, None
    if request.output is not None:
        instructions, text = _output(request.output, instructions, strict="no_strict" not in flags)
    more = extra.pop("tools", None) or ()
    ours = (_loose_tools if "no_strict" in flags else _strict_tools)(request.tools)
    tools = b",".join([part for part in (ours, *(_encode(tool) for tool in more)) if part])
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
        "include": None if "no_encrypted" in flags or _UNREASONING.search(model) else [_ENCRYPTED],
        "stream": NO_STREAM not in flags,
    }
    if settings.cache and "no_cache_key" not in flags:
        fields["prompt_cache_key"] = _cache_key(instructions, tools, first)
    if extra.get("include") and fields["include"]:
        fields["include"] += [wanted for wanted in listed(extra.pop("include")) if wanted != _ENCRYPTED]
    return {name: value for name, value in (fields | extra).items() if value is not None and value != []}


def _cache_key(instructions: str, tools: bytes, first: bytes) -> str:
    """Names the stable beginning of a conversation, so that its requests meet where it is cached."""
    digest = hashlib.sha256(instructions.encode())
    digest.update(tools)
    digest.update(first[:4_096])
    return digest.hexdigest()[:32]


def _merged(ours: dict[str, Any] | None, theirs: Any) -> Any:  # noqa: ANN401  whatever a caller wrote
    return ours | mapping(theirs) if ours and isinstance(theirs, dict) else theirs or ours


def _output(output: OutputSpec, instructions: str, *, strict: bool) -> tuple[str, dict[str, Any] | None]:
    """How the shape of the answer is asked for: only objects can be demanded, other shapes are asked for in words."""
    schema = output.schema
    if schema.get("type") == "object":
        name = NOT_IN_NAMES.sub("_", output.name)[:64] or "answer"
        form = {"type": "json_schema", "name": name, "schema": schema, "strict": strict and is_strict(schema, _RULES)}
        return instructions, {"format": form}
    words = f"Answer with JSON alone, of this JSON schema:\n{_encode(schema).decode()}"
    return f"{instructions}\n\n{words}" if instructions else words, None


def _tool(tool: ToolSpec, *, strict: bool) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    made: dict[str, Any] = {"type": "function", "name": tool.name, "parameters": parameters}
    if tool.description:
        made["description"] = tool.description
    # Left out, the API would make it strict and change the schema.
    made["strict"] = strict and is_strict(parameters, _RULES)
    return made


def _tools(tools: tuple[ToolSpec, ...], *, strict: bool) -> bytes:
    return b",".join([_encode(_tool(tool, strict=strict)) for tool in tools])


_loose_tools: Final = Once(partial(_tools, strict=False))
_strict_tools: Final = Once(partial(_tools, strict=True))
