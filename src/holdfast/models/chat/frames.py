"""Frames in the shape in which nearly everybody sends them, read at once into that shape. Pure.

Most of a stream is such frames, and reading them this way costs a fraction. Whatever looks different in any way is left
to the reader that takes everything.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.models.reading import UNREADABLE


class Function(msgspec.Struct, gc=False):
    """A piece of a call."""

    name: str | None = None
    arguments: str | None = None


class Fragment(msgspec.Struct, gc=False):
    """A piece of a call, and which call it belongs to."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None
    custom: Any = None
    extra_content: Any = None


class Delta(msgspec.Struct, gc=False):
    """What is new in a frame."""

    content: str | None = None
    tool_calls: list[Fragment] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: Any = None
    refusal: Any = None
    function_call: Any = None
    reasoning_text: Any = None
    thinking: Any = None
    audio: Any = None
    images: Any = None


class Choice(msgspec.Struct, gc=False):
    """The one answer of a reply."""

    delta: Delta
    index: int = 0
    finish_reason: str | None = None
    message: Any = None
    usage: Any = None
    error: Any = None


class Chunk(msgspec.Struct, gc=False):
    """A frame."""

    choices: list[Choice]
    id: str | None = None
    model: str | None = None
    created: Any = None
    usage: dict[str, Any] | None = None
    x_groq: Any = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(Chunk).decode


def usual(data: bytes) -> Chunk | None:
    """The frame, if it has nothing but what is usual."""
    try:
        chunk = _decode(data)
    except UNREADABLE:
        return None
    choices = chunk.choices
    if chunk.error or chunk.x_groq or len(choices) > 1 or (choices and not _is_usual(choices[0])):
        return None
    return chunk


def _is_usual(choice: Choice) -> bool:
    delta = choice.delta
    if choice.index or choice.error or choice.usage or choice.message is not None:
        return False
    if delta.refusal or delta.reasoning_details or delta.function_call is not None:
        return False
    if delta.reasoning_text or delta.thinking or delta.audio or delta.images:
        return False
    for piece in delta.tool_calls or ():
        if piece.index is None or piece.custom is not None or piece.extra_content is not None:
            return False
    return True
