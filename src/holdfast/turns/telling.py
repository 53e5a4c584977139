"""Messages in words: to be read by people, and to be searched. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.messages import Attachment, Reasoning, ToolCall, ToolMessage, UserMessage

if TYPE_CHECKING:
    from holdfast.messages import Message


def speaker(message: Message) -> str:
    """Who said it: user, holdfast, assistant or tools."""
    if isinstance(message, UserMessage):
        return message.origin
    return "tools" if isinstance(message, ToolMessage) else "assistant"


def words_of(message: Message) -> str:
    """All that a message says, calls with their arguments and results with their content."""
    if isinstance(message, ToolMessage):
        said = (f"{result.name} {result.state}: {_plain(result.content)}" for result in message.results)
        return "\n".join(said)
    return "\n".join(words for part in message.parts if (words := _part(part)))


def speaks_of(message: Message, words: str) -> bool:
    """Whether these words are in it, in large or small letters."""
    return words.casefold() in words_of(message).casefold()


def _part(part: Any) -> str:  # noqa: ANN401  any part of a message
    if isinstance(part, ToolCall):
        arguments = part.malformed if part.arguments is None else _plain(part.arguments)
        return f"-> {part.name} {arguments}"
    if isinstance(part, Attachment):
        return f"[{part.name or part.media_type}, {part.size:,} bytes]"
    return "" if isinstance(part, Reasoning) else getattr(part, "text", "")


def _plain(content: Any) -> str:  # noqa: ANN401  any JSON value
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()
