"""Replies as Google sends them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.messages import Reasoning, ToolCall
from holdfast.testing.dialects.cutting import words_of
from holdfast.testing.dialects.frames import element, sealed, sent, sse

if TYPE_CHECKING:
    from holdfast.messages import Part, Usage
    from holdfast.testing.dialects.asking import Asked
    from holdfast.testing.dialects.cutting import Said


class Google:
    """Calls come whole, and one that is malformed is only told as the reason for the end."""

    def __init__(self, asked: Asked, said: Said) -> None:
        self._asked = asked
        self._said = said
        self._frame = sse if asked.form == "sse" else element
        calls = [part for part, _ in said.parts if isinstance(part, ToolCall)]
        self._sealed = next(iter(calls), None) if any(isinstance(part, Reasoning) for part, _ in said.parts) else None
        bad = any(call.arguments is None for call in calls)
        self._end = "MALFORMED_FUNCTION_CALL" if bad else _GOOGLE_ENDS[said.reply.finish]

    def start(self) -> bytes:
        return b"[" if self._asked.form == "array" else b""

    def opening(self, index: int, part: Part) -> bytes:  # noqa: ARG002  no frame but those with words
        return b""

    def piece(self, index: int, part: Part, words: str) -> bytes:
        return self._frame(self._answer([self._part(index, part, words)]))

    def closing(self, index: int, part: Part) -> bytes:  # noqa: ARG002  same
        return b""

    def ending(self) -> bytes:
        last = self._frame(self._answer([{"text": ""}], self._end))
        return last if self._asked.form == "sse" else last.rstrip(b",\r\n") + b"]"

    def whole(self) -> dict[str, Any]:
        parts = [self._part(index, part, words_of(part)) for index, (part, _) in enumerate(self._said.parts)]
        return self._answer(parts, self._end)

    def _part(self, index: int, part: Part, words: str) -> dict[str, Any]:
        match part:
            case ToolCall(arguments=None):
                return {"text": ""}
            case ToolCall():
                call = {"functionCall": {"name": part.name, "args": part.arguments, "id": part.id}}
                seal = {"thoughtSignature": sealed(self._asked.position, index)} if part is self._sealed else {}
                return {**call, **seal}
            case Reasoning():
                return {"text": words, "thought": True}
            case _:
                return {"text": words}

    def _answer(self, parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        return {
            "candidates": [candidate],
            "usageMetadata": _google_usage(self._said.reply.usage),
            "modelVersion": self._asked.model,
            "responseId": f"resp_{self._asked.position}",
        }


_GOOGLE_ENDS: Final = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "output_limit": "MAX_TOKENS",
    "refusal": "SAFETY",
    "content_filter": "SAFETY",
    "context_overflow": "MAX_TOKENS",
    "cancelled": "STOP",
}


def _google_usage(usage: Usage) -> dict[str, int]:
    return {
        "promptTokenCount": sent(usage),
        "cachedContentTokenCount": usage.cache_read,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.total,
    }
