"""Replies as Anthropic sends them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.messages import Reasoning, ToolCall
from holdfast.testing.dialects.cutting import words_of
from holdfast.testing.dialects.frames import sealed, sse

if TYPE_CHECKING:
    from holdfast.messages import Part, Usage
    from holdfast.testing.dialects.asking import Asked
    from holdfast.testing.dialects.cutting import Said


class Anthropic:
    """A reply as a message with its blocks of content."""

    def __init__(self, asked: Asked, said: Said) -> None:
        self._asked = asked
        self._said = said

    def start(self) -> bytes:
        usage = {**_anthropic_usage(self._said.reply.usage), "output_tokens": 1}
        return sse({"type": "message_start", "message": self._message([], None, usage)}, "message_start")

    def opening(self, index: int, part: Part) -> bytes:
        block = self._block(index, part, empty=True)
        return sse({"type": "content_block_start", "index": index, "content_block": block}, "content_block_start")

    def piece(self, index: int, part: Part, words: str) -> bytes:
        match part:
            case ToolCall():
                return self._delta(index, {"type": "input_json_delta", "partial_json": words})
            case Reasoning():
                return self._delta(index, {"type": "thinking_delta", "thinking": words})
            case _:
                return self._delta(index, {"type": "text_delta", "text": words})

    def closing(self, index: int, part: Part) -> bytes:
        signed = b""
        if isinstance(part, Reasoning):
            signed = self._delta(index, {"type": "signature_delta", "signature": sealed(self._asked.position, index)})
        return signed + sse({"type": "content_block_stop", "index": index}, "content_block_stop")

    def ending(self) -> bytes:
        delta = {"stop_reason": _ANTHROPIC_ENDS[self._said.reply.finish], "stop_sequence": None}
        usage = _anthropic_usage(self._said.reply.usage)
        last = sse({"type": "message_delta", "delta": delta, "usage": usage}, "message_delta")
        return last + sse({"type": "message_stop"}, "message_stop")

    def whole(self) -> dict[str, Any]:
        content = [self._block(index, part) for index, (part, _) in enumerate(self._said.parts)]
        reply = self._said.reply
        return self._message(content, _ANTHROPIC_ENDS[reply.finish], _anthropic_usage(reply.usage))

    def _message(self, content: list[Any], stop: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._asked.position}",
            "type": "message",
            "role": "assistant",
            "model": self._asked.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage,
        }

    def _block(self, index: int, part: Part, *, empty: bool = False) -> dict[str, Any]:
        match part:
            case ToolCall():
                given = part.malformed if part.arguments is None else part.arguments
                return {"type": "tool_use", "id": part.id, "name": part.name, "input": {} if empty else given}
            case Reasoning():
                seal = "" if empty else sealed(self._asked.position, index)
                return {"type": "thinking", "thinking": "" if empty else part.text, "signature": seal}
            case _:
                return {"type": "text", "text": "" if empty else words_of(part)}

    @staticmethod
    def _delta(index: int, delta: dict[str, str]) -> bytes:
        return sse({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")


_ANTHROPIC_ENDS: Final = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "output_limit": "max_tokens",
    "refusal": "refusal",
    "content_filter": "refusal",
    "context_overflow": "model_context_window_exceeded",
    "cancelled": "end_turn",
}


def _anthropic_usage(usage: Usage) -> dict[str, Any]:
    thinking = {"output_tokens_details": {"thinking_tokens": usage.reasoning}} if usage.reasoning else {}
    return {
        **thinking,
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
