"""Messages as a transcript that a model reads as data. Pure.

Every line that somebody said stands behind a bar, and no line can end its entry or begin another, so nothing in it can
pass for an instruction of ours, for another message, or for a change of who speaks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.messages import (
    AssistantMessage,
    Attachment,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    encode,
)

if TYPE_CHECKING:
    from holdfast.messages import InputPart, Message, Part, ToolResult

_BREAKS: Final = re.compile("\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
    "|[\U000e0000-\U000e0fff]"
)
"""Controls, what turns the direction of writing around, and what nobody sees."""
_TURNS: Final = re.compile(r"<(?=\|)|\[(?=\s*/?\s*[A-Z][A-Z_]+\s*\])")
"""How some models mark who speaks."""
_NAME: Final = 100


class QuoteLimits(msgspec.Struct, frozen=True, gc=False):
    """How much of each thing is quoted, in characters."""

    words: int = 4_000
    """Of what the user or the model said."""
    arguments: int = 1_000
    """Of what a tool was called with."""
    result: int = 2_000
    """Of what it gave."""
    thoughts: int = 500

    def halved(self) -> QuoteLimits:
        """Half of each, and 40 characters at least."""
        return QuoteLimits(*(max(limit // 2, 40) for limit in msgspec.structs.astuple(self)))


def quoted(message: Message, limits: QuoteLimits, *, stays: bool = False) -> str:
    """One message. `stays`: it is not taken away, and is told only so that the rest can be understood."""
    kept = ' kept="yes"' if stays else ""
    match message:
        case UserMessage():
            who = "user" if message.origin == "user" else "runtime"
            lines = [line for part in message.parts for line in _input(part, limits)]
        case AssistantMessage():
            who = "agent"
            lines = [line for part in message.parts for line in _part(part, limits)]
        case ToolMessage():
            who = "tools"
            lines = [line for result in message.results for line in _result(result, limits)]
    return "\n".join([f'<entry from="{who}"{kept}>', *lines, "</entry>"])


def _input(part: InputPart, limits: QuoteLimits) -> list[str]:
    return _lines(part.text, limits.words) if type(part) is Text else [_file(part)] if type(part) is Attachment else []


def _part(part: Part, limits: QuoteLimits) -> list[str]:
    match part:
        case Text() | Refusal():
            return _lines(part.text, limits.words)
        case Reasoning():
            return ["(thinks)", *_lines(part.text, limits.thoughts)] if part.text.strip() else []
        case ToolCall():
            said = part.malformed or "" if part.arguments is None else encode(part.arguments).decode()
            return [f"(calls {inline(part.name)})", *_lines(said, limits.arguments)]
        case Attachment():
            return [_file(part)]


def _result(result: ToolResult, limits: QuoteLimits) -> list[str]:
    content = result.content
    said = content if isinstance(content, str) else encode(content).decode()
    return [f"(result of {inline(result.name)}: {result.state})", *_lines(said, limits.result)]


def _file(file: Attachment) -> str:
    name = f"{inline(file.name)}, " if file.name else ""
    return f"(a file: {name}{inline(file.media_type)}, {file.size:,} bytes, {inline(file.digest)[:12]})"


def bars(text: str) -> str:
    """A whole text behind bars."""
    return "\n".join(_lines(text, len(text)))


def inline(text: str) -> str:
    """A name from outside, on one line and not long."""
    line = " ".join(_harmless(text[: 4 * _NAME]).split())
    return line if len(line) <= _NAME else f"{line[: _NAME - 3]}..."


def _lines(text: str, limit: int) -> list[str]:
    return [f"| {_harmless(line)}".rstrip() for line in _BREAKS.split(_ends(text.strip(), limit))]


def _ends(text: str, limit: int) -> str:
    """The beginning and the end of a text that is too long; of what is said, both matter."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]}\n[... {len(text) - limit:,} characters are left out ...]\n{text[-tail:]}"


def _harmless(line: str) -> str:
    return _TURNS.sub(lambda found: f"{found[0]} ", _HIDDEN.sub("\ufffd", line))
