"""The items that a conversation is made of, written from messages. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from holdfast.errors import ModelError
from holdfast.messages import AssistantMessage, Attachment, Reasoning, Refusal, Text, ToolCall, ToolMessage, UserMessage
from holdfast.models.reading import listed, mapping
from holdfast.models.responses.unanswered import answered
from holdfast.models.wire import bounded
from holdfast.models.writing import data_url, pieces_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.messages import Message, ToolResult

Item: TypeAlias = dict[str, Any]

NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_ID: Final = 64
_UNSHOWN: Final = re.compile(
    r"audio/|video/|font/|application/(?:octet-stream|zip|gzip|vnd\.rar|x-(?:tar|gzip|bzip2|xz|7z-compressed|sqlite3)|wasm)",
    re.IGNORECASE,
)
"""Files that no model takes in this dialect."""
_encode: Final = msgspec.json.Encoder().encode


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
                return _encode({"role": "user", "content": _content(message, self._files)})
            case ToolMessage():
                return b",".join([_encode(_result(result, self._files)) for result in message.results])
            case AssistantMessage():
                items, dropped = _said(message, self._route, named=self._named)
                self.dropped += dropped
                return b",".join([_encode(item) for item in items])


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
        return _encode(content).decode()
    output: list[Item] = []
    for value, file, inside in pieces:
        if file is not None:
            output.append(_file(file, files) if _is_shown(file) else _input_text(_label(file)))
            continue
        output.append(_input_text(value if isinstance(value, str) else _encode(value).decode()))
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
    arguments = "{}" if call.arguments is None else _encode(call.arguments).decode()
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
