"""Replies as Chat Completions are sent. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.messages import Reasoning, Refusal, ToolCall
from holdfast.testing.dialects.cutting import words_of
from holdfast.testing.dialects.frames import sent, sse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.messages import Part, Usage
    from holdfast.testing.dialects.asking import Asked
    from holdfast.testing.dialects.cutting import Said


class Chat:
    """A reply as a choice with its delta. Words have fields of their own by what they are."""

    def __init__(self, asked: Asked, said: Said) -> None:
        self._asked = asked
        self._said = said
        self._calls: dict[int, int] = {}
        for index, (part, _) in enumerate(said.parts):
            if isinstance(part, ToolCall):
                self._calls[index] = len(self._calls)

    def start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def opening(self, index: int, part: Part) -> bytes:
        if not isinstance(part, ToolCall):
            return b""
        function = {"name": part.name, "arguments": ""}
        call = {"index": self._calls[index], "id": part.id, "type": "function", "function": function}
        return self._chunk({"tool_calls": [call]})

    def piece(self, index: int, part: Part, words: str) -> bytes:
        if isinstance(part, ToolCall):
            return self._chunk({"tool_calls": [{"index": self._calls[index], "function": {"arguments": words}}]})
        return self._chunk({_CHAT_FIELDS.get(type(part), "content"): words})

    def closing(self, index: int, part: Part) -> bytes:  # noqa: ARG002  nothing says that a part is whole
        return b""

    def ending(self) -> bytes:
        ended = self._chunk({}, _CHAT_ENDS[self._said.reply.finish])
        if self._asked.usage_told:
            usage: dict[str, Any] = {"choices": [], "usage": _chat_usage(self._said.reply.usage)}
            ended += sse({**self._frame("chat.completion.chunk"), **usage})
        return ended + b"data: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for part, _ in self._said.parts:
            if isinstance(part, ToolCall):
                function = {"name": part.name, "arguments": words_of(part)}
                message.setdefault("tool_calls", []).append({"id": part.id, "type": "function", "function": function})
            else:
                field = _CHAT_FIELDS.get(type(part), "content")
                message[field] = (message.get(field) or "") + words_of(part)
        choice = {"index": 0, "message": message, "finish_reason": _CHAT_ENDS[self._said.reply.finish]}
        usage = _chat_usage(self._said.reply.usage)
        return {**self._frame("chat.completion"), "choices": [choice], "usage": usage}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return sse({**self._frame("chat.completion.chunk"), "choices": [choice]})

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self._asked.position}", "object": kind, "created": 0, "model": self._asked.model}


_CHAT_FIELDS: Final[Mapping[type[Part], str]] = {Reasoning: "reasoning_content", Refusal: "refusal"}
_CHAT_ENDS: Final = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "output_limit": "length",
    "refusal": "stop",
    "content_filter": "content_filter",
    "context_overflow": "length",
    "cancelled": "stop",
}


def _chat_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": sent(usage),
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
