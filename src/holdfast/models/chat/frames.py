"""Frames in the shape in which nearly everybody sends them, read at once into that shape. Pure.

Most of a stream is such frames, and reading them this way costs a fraction. Whatever looks different in any way is left
to the reader that takes everything: a field that has to be empty here has a type that nothing else fits.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast.models.reading import UNREADABLE


class Function(msgspec.Struct, gc=False):
    """A piece of a call."""

    name: str | None = None
    arguments: str | None = None


class Fragment(msgspec.Struct, gc=False):
    """A piece of a call, and which call it belongs to."""

    index: int
    id: str | None = None
    function: Function | None = None
    custom: None = None
    extra_content: None = None


class Delta(msgspec.Struct, gc=False):
    """What is new in a frame."""

    content: str | None = None
    tool_calls: list[Fragment] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: None = None
    refusal: Literal[""] | None = None
    function_call: None = None
    reasoning_text: Literal[""] | None = None
    thinking: Literal[""] | None = None
    audio: None = None
    images: None = None


class Choice(msgspec.Struct, gc=False):
    """The one answer of a reply."""

    delta: Delta
    index: Literal[0] = 0
    finish_reason: str | None = None
    message: None = None
    usage: None = None
    error: None = None


class Chunk(msgspec.Struct, gc=False):
    """A frame."""

    choices: Annotated[list[Choice], msgspec.Meta(max_length=1)]
    id: str | None = None
    model: str | None = None
    created: Any = None
    usage: dict[str, Any] | None = None
    x_groq: None = None
    error: None = None


_decode: Final = msgspec.json.Decoder(Chunk).decode


def usual(data: bytes) -> Chunk | None:
    """The frame, if it has nothing but what is usual."""
    try:
        return _decode(data)
    except UNREADABLE:
        return None
