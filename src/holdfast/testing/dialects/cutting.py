"""A reply, cut into the pieces in which it goes out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.messages import Attachment, ModelReply, Part, Refusal, Text, ToolCall
from holdfast.testing.dialects.frames import encode

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Said:
    """A reply, each part with the pieces in which it goes out."""

    parts: tuple[tuple[Part, tuple[str, ...]], ...]
    reply: ModelReply


def said(reply: ModelReply, chunks: Sequence[str], count: int, *, calls_split: bool = True) -> Said:
    """Cut a reply into `count` pieces; `chunks` are its words (of text and refusals) as the script has cut them.

    Every part has one piece at least, no piece is empty beside another, and words that the script has cut stay so.
    """
    spoken = tuple(part for part in reply.parts if not isinstance(part, Attachment))
    given = _given(spoken, chunks)
    free = [
        number
        for number, (part, own) in enumerate(zip(spoken, given, strict=True))
        if len(own) == 1 and (calls_split or not isinstance(part, ToolCall))
    ]
    left = max(count - sum(len(own) for number, own in enumerate(given) if number not in free), 0)
    for place, number in enumerate(free):
        share = left // len(free) + (place < left % len(free))
        given[number] = _cut(given[number][0], share)
    return Said(tuple(zip(spoken, given, strict=True)), reply)


def _given(parts: Sequence[Part], chunks: Sequence[str]) -> list[tuple[str, ...]]:
    given: list[tuple[str, ...]] = []
    place = 0
    for part in parts:
        words = words_of(part)
        if not isinstance(part, Text | Refusal):
            given.append((words,))
            continue
        begin, length = place, 0
        while place < len(chunks) and (place == begin or length < len(words)):
            length += len(chunks[place])
            place += 1
        given.append(tuple(chunks[begin:place]) or (words,))
    return given


def _cut(words: str, count: int) -> tuple[str, ...]:
    count = min(max(count, 1), max(len(words), 1))
    bounds = [len(words) * number // count for number in range(count + 1)]
    return tuple(words[begin:end] for begin, end in pairwise(bounds))


def words_of(part: Part) -> str:
    """What is streamed of a part: its words, or the arguments of a call as JSON text."""
    match part:
        case ToolCall():
            return encode(part.arguments).decode() if part.arguments is not None else part.malformed or ""
        case Attachment():
            return ""
        case _:
            return part.text
