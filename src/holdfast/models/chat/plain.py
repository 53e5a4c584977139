"""A reply that came at once and holds nothing but words and calls, as nearly all do: made in one go. Pure.

Whatever has to be thought about is left to the fold, which puts replies together from their pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.messages import ModelReply, Text, ToolCall, Usage
from holdfast.models.chat.calls import MAX_CALLS
from holdfast.models.reading import arguments_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.messages import Part
    from holdfast.models.chat.frames import Chunk, Fragment

_NAME: Final = 1_000
"""Longest name of a model or a reply that is kept."""
_NOTHING: Final = Usage()


def plain_reply(body: Chunk, model: str, usage_of: Callable[[dict[str, Any]], Usage]) -> ModelReply | None:
    """The reply, or None where it is not plain. `model` is who was asked."""
    choice = body.choices[0]
    said, reason = choice.delta, choice.finish_reason
    if reason not in {"stop", "tool_calls"} or said.reasoning or said.reasoning_content:
        return None
    calls = _calls(said.tool_calls or [])
    if calls is None:
        return None
    parts: list[Part] = [Text(said.content), *calls] if said.content else [*calls]
    return ModelReply(
        tuple(parts),
        "tool_calls" if calls else "stop",
        usage_of(body.usage) if body.usage else _NOTHING,
        (body.model or "")[:_NAME] or model,
        raw_usage=body.usage or None,
        response_id=(body.id or "")[:_NAME] or None,
    )


def _calls(pieces: list[Fragment]) -> list[ToolCall] | None:
    """The calls, if each has a name and an id of its own."""
    calls: list[ToolCall] = []
    for piece in pieces:
        function = piece.function
        if not piece.id or function is None or not function.name:
            return None
        calls.append(ToolCall(piece.id, function.name, *arguments_in(function.arguments or "")))
    return None if len(calls) > MAX_CALLS or len({call.id for call in calls}) != len(calls) else calls
