"""A reply that came at once and holds nothing but words and calls, as nearly all do: made in one go. Pure.

Whatever has to be thought about is left to the fold, which puts replies together from their pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from holdfast.messages import ModelReply, Text, ToolCall, Usage
from holdfast.models.chat.calls import MAX_CALLS
from holdfast.models.reading import UNREADABLE, arguments_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.messages import Part

_NAME: Final = 1_000
"""Longest name of a model or a reply that is kept."""
_NOTHING: Final = Usage()


class _Function(msgspec.Struct, gc=False):
    name: str
    arguments: str | None = None


class _Call(msgspec.Struct, gc=False):
    id: str
    function: _Function
    custom: None = None
    extra_content: None = None


class _Said(msgspec.Struct, gc=False):
    """Words and calls. Where there is anything in the other fields, it is not plain."""

    content: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    function_call: None = None
    reasoning_text: Any = None
    thinking: Any = None
    audio: Any = None
    images: Any = None


class _Choice(msgspec.Struct, gc=False):
    message: _Said
    finish_reason: Literal["stop", "tool_calls"]
    index: Literal[0] = 0
    delta: None = None
    usage: Any = None
    error: Any = None


class _Body(msgspec.Struct, gc=False):
    choices: tuple[_Choice]
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    x_groq: Any = None
    error: Any = None


_decode: Final = msgspec.json.Decoder(_Body).decode


def plain_reply(data: bytes, model: str, usage_of: Callable[[dict[str, Any]], Usage]) -> ModelReply | None:
    """The reply, or None where it is not plain. `model` is who was asked."""
    try:
        body = _decode(data)
    except UNREADABLE:
        return None
    (choice,) = body.choices
    said = choice.message
    if body.error or body.x_groq or choice.usage or choice.error or _is_more(said):
        return None
    parts: list[Part] = [Text(said.content)] if said.content else []
    ids: set[str] = set()
    for call in said.tool_calls or ():
        name = call.function.name
        if not call.id or not name or call.id in ids or len(ids) == MAX_CALLS:
            return None
        ids.add(call.id)
        parts.append(ToolCall(call.id, name, *arguments_in(call.function.arguments or "")))
    return ModelReply(
        tuple(parts),
        "tool_calls" if ids else "stop",
        usage_of(body.usage) if body.usage else _NOTHING,
        (body.model or "")[:_NAME] or model,
        raw_usage=body.usage or None,
        response_id=(body.id or "")[:_NAME] or None,
    )


def _is_more(said: _Said) -> bool:
    """Whether there is something besides words and calls."""
    if said.reasoning_content or said.reasoning or said.reasoning_details or said.reasoning_text or said.thinking:
        return True
    return bool(said.refusal or said.audio or said.images)
