"""The messages of a conversation, each written once for a route, and what depends on their neighbours. Pure."""

from __future__ import annotations

import hashlib
import re
import string
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.errors import ModelError
from holdfast.messages import (
    AssistantMessage,
    Attachment,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from holdfast.models.reading import listed, made_id, mapping, worded
from holdfast.models.wire import bounded
from holdfast.models.writing import base64_of, data_url, pieces_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.messages import InputPart, Message, OutputSpec, ToolResult

_encode: Final = msgspec.json.Encoder().encode

_OK: Final = {"role": "assistant", "content": "OK"}
"""What goes between results and a user message, where that is wanted."""
_ID_FLAGS: Final = frozenset(("call_ids_9", "call_ids_40"))


def opening(said: str, output: OutputSpec | None, flags: frozenset[str]) -> bytes | None:
    """The instructions as the first message."""
    if output is not None and (flags & {"json_object", "schema_in_words"} or not is_object(output)):
        schema = _encode(output.schema).decode()
        words = f"Give the final answer as JSON and nothing else, in the shape of this JSON schema:\n{schema}"
        said = f"{said}\n\n{words}" if said else words
    if not said:
        return None
    role = "developer" if "developer" in flags else "user" if "instructions_as_user" in flags else "system"
    return _encode({"role": role, "content": said})


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
            placed.append(_encode(_OK))
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
            return b",".join([_encode(self._part(part)) for part in message.parts]) or _encode(_text_part(""))
        if all(type(part) is Text for part in message.parts) and len(message.parts) <= 1:
            return _encode({"role": "user", "content": message.text})
        return _encode({"role": "user", "content": [self._part(part) for part in message.parts]})

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
        return _encode(said)

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
        arguments = "{}" if call.arguments is None else _encode(call.arguments).decode()
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
        return _encode(said)[1:-1]

    def _content(self, result: ToolResult, shown: list[dict[str, Any]]) -> str:
        """What a call came to in words; the files that it speaks of are `shown`."""
        pieces = pieces_of(result, self.files, _label)
        if not pieces:
            return _encode(result.content).decode()
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
    return item if isinstance(item, str) else _encode(item).decode()


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
