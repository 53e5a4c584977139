"""Replies as the Responses API sends them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.messages import Reasoning, Refusal, Text, ToolCall
from holdfast.testing.dialects.cutting import words_of
from holdfast.testing.dialects.frames import sealed, sent, sse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.messages import Part, Usage
    from holdfast.testing.dialects.asking import Asked
    from holdfast.testing.dialects.cutting import Said


class Responses:
    """A reply as a row of items. Every event has a number."""

    def __init__(self, asked: Asked, said: Said) -> None:
        self._asked = asked
        self._said = said
        self._number = 0

    def start(self) -> bytes:
        opened = self._response("in_progress", [])
        created = self._event("response.created", {"response": opened})
        return created + self._event("response.in_progress", {"response": opened})

    def opening(self, index: int, part: Part) -> bytes:
        item = self._item(index, part, empty=True)
        added = self._event("response.output_item.added", {"output_index": index, "item": item})
        match part:
            case ToolCall():
                return added
            case Reasoning():
                summary = {"summary_index": 0, "part": {"type": "summary_text", "text": ""}}
                return added + self._inside(index, part, "response.reasoning_summary_part.added", summary)
            case _:
                inner = {"content_index": 0, "part": self._words(part, "")}
                return added + self._inside(index, part, "response.content_part.added", inner)

    def piece(self, index: int, part: Part, words: str) -> bytes:
        kind, _, place = _RESPONSES_PIECES[type(part)]
        return self._inside(index, part, f"response.{kind}.delta", {**place, "delta": words})

    def closing(self, index: int, part: Part) -> bytes:
        kind, field, place = _RESPONSES_PIECES[type(part)]
        words = words_of(part)
        done = self._inside(index, part, f"response.{kind}.done", {**place, field: words})
        if isinstance(part, Reasoning):
            summary = {**place, "part": {"type": "summary_text", "text": words}}
            done += self._inside(index, part, "response.reasoning_summary_part.done", summary)
        elif not isinstance(part, ToolCall):
            done += self._inside(index, part, "response.content_part.done", {**place, "part": self._words(part, words)})
        item = self._item(index, part)
        return done + self._event("response.output_item.done", {"output_index": index, "item": item})

    def ending(self) -> bytes:
        ended = self.whole()
        return self._event(f"response.{ended['status']}", {"response": ended})

    def whole(self) -> dict[str, Any]:
        reason = _RESPONSES_INCOMPLETE.get(self._said.reply.finish)
        items = [self._item(index, part) for index, (part, _) in enumerate(self._said.parts)]
        ended = self._response("incomplete" if reason else "completed", items)
        ended["incomplete_details"] = {"reason": reason} if reason else None
        ended["usage"] = _responses_usage(self._said.reply.usage)
        return ended

    def _response(self, status: str, output: list[Any]) -> dict[str, Any]:
        return {
            "id": f"resp_{self._asked.position}",
            "object": "response",
            "created_at": 0,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._asked.model,
            "output": output,
            "usage": None,
        }

    def _item(self, index: int, part: Part, *, empty: bool = False) -> dict[str, Any]:
        status = "in_progress" if empty else "completed"
        words = "" if empty else words_of(part)
        named = {"id": self._id(index, part)}
        match part:
            case ToolCall():
                call = {"call_id": part.id, "name": part.name, "arguments": words}
                return {**named, "type": "function_call", "status": status, **call}
            case Reasoning():
                summary = [] if empty else [{"type": "summary_text", "text": words}]
                seal = sealed(self._asked.position, index)
                return {**named, "type": "reasoning", "summary": summary, "encrypted_content": seal}
            case _:
                content = [] if empty else [self._words(part, words)]
                return {**named, "type": "message", "role": "assistant", "status": status, "content": content}

    def _id(self, index: int, part: Part) -> str:
        return f"{_RESPONSES_IDS.get(type(part), 'msg')}_{self._asked.position}_{index}"

    @staticmethod
    def _words(part: Part, words: str) -> dict[str, Any]:
        if isinstance(part, Refusal):
            return {"type": "refusal", "refusal": words}
        return {"type": "output_text", "text": words, "annotations": []}

    def _inside(self, index: int, part: Part, kind: str, data: dict[str, Any]) -> bytes:
        return self._event(kind, {"item_id": self._id(index, part), "output_index": index, **data})

    def _event(self, kind: str, data: dict[str, Any]) -> bytes:
        numbered = {"type": kind, "sequence_number": self._number, **data}
        self._number += 1
        return sse(numbered, kind)


_RESPONSES_IDS: Final[Mapping[type[Part], str]] = {ToolCall: "fc", Reasoning: "rs"}
_RESPONSES_PIECES: Final[Mapping[type[Part], tuple[str, str, dict[str, int]]]] = {
    Text: ("output_text", "text", {"content_index": 0}),
    Refusal: ("refusal", "refusal", {"content_index": 0}),
    Reasoning: ("reasoning_summary_text", "text", {"summary_index": 0}),
    ToolCall: ("function_call_arguments", "arguments", {}),
}
_RESPONSES_INCOMPLETE: Final = {
    "output_limit": "max_output_tokens",
    "context_overflow": "max_output_tokens",
    "content_filter": "content_filter",
}


def _responses_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": sent(usage),
        "input_tokens_details": {"cached_tokens": usage.cache_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }
