"""Messages as blocks: what was said, in the provider's own words. Pure."""

from __future__ import annotations

import binascii
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.errors import ModelError
from holdfast.messages import Attachment, Reasoning, Text, ToolCall, ToolMessage, UserMessage
from holdfast.models.reading import mapping
from holdfast.models.wire import bounded
from holdfast.models.writing import EMPTY_FILE, EMPTY_MESSAGE, pieces_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.messages import AssistantMessage, InputPart, Message, Part, Refusal, ToolResult

_json: Final = msgspec.json.Encoder().encode

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
            blocks.append(_json({"type": replay["type"], **replay}))  # the type first, whoever kept it
        elif "signature" in replay:
            blocks.append(_json({"type": "thinking", "thinking": part.text, "signature": replay["signature"]}))
        elif "citations" in replay and after_text:
            blocks[-1] = b'%b,"citations":%b}' % (blocks[-1][:-1], _json(replay["citations"]))

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
        return _json(block)

    def _result(self, result: ToolResult) -> bytes:
        content = self._content(result)
        end = b"}" if result.state == "ok" else b',"is_error":true}'
        return b'{"type":"tool_result","tool_use_id":%b,"content":%b%b' % (_json(_id(result.call_id)), content, end)

    def _content(self, result: ToolResult) -> bytes:
        """Words as they are, values as JSON, and files as what they show; a call that failed may show words alone.

        A file inside a value is named there, and shown behind it under the same name.
        """
        content, failed = result.content, result.state != "ok"
        if type(content) is str:
            return _json(content)
        pieces = pieces_of(result, self._files, _label)
        if not pieces:
            return _json(_json(content).decode())
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
    return _json({"type": "text", "text": text}) if text.strip() else b""


def _words_of(item: Any) -> str:  # noqa: ANN401  any JSON value
    if isinstance(item, str):
        return item
    if mapping(item).keys() == {"type", "text"} and item["type"] == "text" and isinstance(item["text"], str):
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
        text = data.decode("utf-8", "replace")
        words = _json({"type": "text", "media_type": "text/plain", "data": text if text.strip() else EMPTY_FILE})
        return b'{"type":"document","source":%b%b}' % (words, title)
    return None


def _base64(media_type: str, data: bytes) -> bytes:
    coded = binascii.b2a_base64(data, newline=False)
    return b'{"type":"base64","media_type":%b,"data":"%b"}' % (_json(media_type), coded)


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
