"""What can be had again is made short: old results become references, old attachments become notes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from holdfast.messages import AssistantMessage, Attachment, Reasoning, Text, ToolCall, ToolMessage, UserMessage, encode
from holdfast.turns.compacting.counting import files_in
from holdfast.turns.keys import input_of

if TYPE_CHECKING:
    from holdfast.messages import Message, ToolResult

OLD: Final = 200
"""How many characters of an old result stay."""
RECENT: Final = 4_000
"""How many characters of a recent result stay, where there is no other way."""

_NOTE: Final = 600
"""Most characters of what is said around them: what is not longer than both stays as it is."""
_LONGEST: Final = 80
_FILTERED: Final = (
    "[What was here the content filter of the model's provider did not let pass. It is in the history only.]"
)
_NAMES: Final = 3


def clipped(message: ToolMessage, keep: int, reader: str) -> ToolMessage:
    """A tool message whose long results are cut; itself if none is. Clipping it again changes nothing."""
    results = tuple(_clip(message.id, n, result, keep, reader) for n, result in enumerate(message.results, 1))
    same = all(new is old for new, old in zip(results, message.results, strict=True))
    return message if same else ToolMessage(message.id, results)


def bared(message: Message) -> Message:
    """A message with notes in place of its attachments; itself if it has none.

    A reply with data of its provider's stays whole, because that may speak of the parts around it.
    """
    if type(message) is UserMessage and any(type(part) is Attachment for part in message.parts):
        return replace(message, parts=tuple(_note(p) if type(p) is Attachment else p for p in message.parts))
    if type(message) is AssistantMessage and any(type(part) is Attachment for part in message.parts):
        if any(isinstance(part, Reasoning | ToolCall) and part.replay is not None for part in message.parts):
            return message
        return replace(message, parts=tuple(_note(p) if type(p) is Attachment else p for p in message.parts))
    return message


def without_files(message: Message) -> Message:
    """A message with notes in place of all its files; itself if it has none."""
    if type(message) is not ToolMessage:
        return bared(message)
    if not any(result.files for result in message.results):
        return message
    return ToolMessage(message.id, tuple(_bare(result) if result.files else result for result in message.results))


def without_words(message: Message) -> Message:
    """A message with a note in place of all that came from outside; a reply as it is."""
    if type(message) is UserMessage:
        return replace(message, parts=(Text(_FILTERED),))
    if type(message) is ToolMessage:
        return ToolMessage(message.id, tuple(replace(each, content=_FILTERED, files=()) for each in message.results))
    return message


class Place(NamedTuple):
    """Where a result is in the journal: the call with this number, of the batch that is effect `number` of `run`."""

    run: str
    number: int
    call: int


def result_id(message: str, call: int) -> str:
    """The name under which a clipped result is read: that of its message, and which of its calls it is."""
    return f"{message}/{call}"


def place_of(id: str) -> Place | None:
    """The place that `result_id` names; None for an id of another kind."""
    message, _, call = id.partition("/")
    run, _, number = message.partition(".")
    if input_of(run) is None or not _is_number(number) or not _is_number(call):
        return None
    return Place(run, int(number), int(call))


def _is_number(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) <= 9 and digits[0] != "0"


def _clip(message: str, number: int, result: ToolResult, keep: int, reader: str) -> ToolResult:
    content = result.content
    said = content if isinstance(content, str) else encode(content).decode()
    if len(said) <= keep + _NOTE and not result.files:
        return result
    files = files_in(result)
    names = ", ".join(_short(file.name or file.media_type) for file in files[:_NAMES])
    more = f", with {len(files):,} files ({names}{', ...' if len(files) > _NAMES else ''})" if files else ""
    id = result_id(_short(message), number)
    again = f'Read it whole with {_short(reader)}(id="{id}").' if reader else "It is whole in the history only."
    note = f"call {_short(result.call_id)}, {len(said):,} characters{more}"
    text = f"[Old result, clipped to save room: {note}. {again} It begins:]\n{said[:keep]}"
    return replace(result, content=text, files=())


def _bare(result: ToolResult) -> ToolResult:
    content = result.content
    said = content if isinstance(content, str) else encode(content).decode()
    note = f"[{len(files_in(result)):,} files were here. They are in the history only.]"
    return replace(result, content=f"{note}\n{said}", files=())


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _note(file: Attachment) -> Text:
    about = f"{_short(file.name)}, " if file.name else ""
    return Text(
        f"[An attachment was here: {about}{_short(file.media_type)}, {file.size:,} bytes. It is in the history only.]"
    )
