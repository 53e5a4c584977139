"""A model that follows a script.

It answers by the position in the conversation, never by a counter in memory: a process that takes over in the middle
finds the same place in the script.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from holdfast import messages
from holdfast.effects.canonical import decode_value, encode_value
from holdfast.errors import InvalidArgument, ModelError
from holdfast.messages import Attachment, ModelReply, ModelRequest, Part, Reasoning, Refusal, Text, ToolCall, Usage
from holdfast.models.contract import respond
from holdfast.names import check_int, check_number

if TYPE_CHECKING:
    from holdfast.tools.definition import AnyTool


class ScriptedCall(msgspec.Struct, frozen=True):
    """A tool call. Its id comes from its position in the conversation."""

    tool: str
    arguments: dict[str, Any]


class ScriptedStream(msgspec.Struct, frozen=True):
    """A text in several chunks."""

    chunks: tuple[str, ...]


class ScriptedReply(msgspec.Struct, frozen=True):
    """A reply with its own finish reason and usage."""

    parts: tuple[ScriptPart, ...]
    finish: messages.FinishReason | None = None
    usage: Usage | None = None


class ScriptedCut(msgspec.Struct, frozen=True):
    """A stream that ends in the middle."""

    text: str


class ScriptedError(msgspec.Struct, frozen=True):
    """An error of the provider."""

    message: str
    kind: str
    retryable: bool


class ScriptedDelay(msgspec.Struct, frozen=True):
    """A reply after a delay."""

    seconds: float
    reply: ScriptItem


class ScriptedPace(msgspec.Struct, frozen=True):
    """A reply whose pieces come with a pause before each."""

    seconds: float
    reply: ScriptItem


ScriptPart: TypeAlias = str | ScriptedCall | ScriptedStream | Part
ScriptFailure: TypeAlias = ScriptedCut | ScriptedError | BaseException
ScriptReply: TypeAlias = (
    ScriptPart | Sequence[ScriptPart] | ScriptedReply | ScriptedDelay | ScriptedPace | ModelReply | ScriptFailure
)
ScriptFunction: TypeAlias = Callable[[ModelRequest], ScriptReply | Awaitable[ScriptReply]]
ScriptItem: TypeAlias = ScriptReply | ScriptFunction
_PART_TYPES: Final = (str, ScriptedCall, ScriptedStream, Text, Reasoning, Refusal, ToolCall, Attachment)
_REPLY_TYPES: Final = (*_PART_TYPES, ScriptedCut, ScriptedError, ModelReply, BaseException)
_PIECES: Final = (messages.TextChunk, messages.ReasoningChunk, messages.CallChunk)
_ACCEPTED: Final = (
    "text(), call(), a list of these, reply(), cut(), error(), delayed(), paced(), an error or a function"
)


def text(words: str) -> Text:
    """Reply with a text."""
    return Text(words)


def stream(*chunks: str) -> ScriptedStream:
    """Reply with a text in these chunks."""
    return ScriptedStream(chunks)


def refusal(words: str) -> Refusal:
    """Reply with a refusal."""
    return Refusal(words)


def call(tool: str | AnyTool, /, **arguments: Any) -> ScriptedCall:  # the arguments of the tool
    """Call a tool, with the JSON of these arguments."""
    return ScriptedCall(tool if isinstance(tool, str) else tool.name, decode_value(encode_value(arguments)))


def reply(*parts: ScriptPart, finish: messages.FinishReason | None = None, usage: Usage | None = None) -> ScriptedReply:
    """Reply with several parts, a finish reason and usage."""
    return ScriptedReply(parts, finish, usage)


def error(message: str, *, kind: str = "model_error", retryable: bool = False) -> ScriptedError:
    """Raise a `ModelError`."""
    return ScriptedError(message, kind, retryable)


def cut(words: str) -> ScriptedCut:
    """End the stream after this text, without its terminal frame."""
    return ScriptedCut(words)


def delayed(seconds: float, item: ScriptItem, /) -> ScriptedDelay:
    """Reply after a delay."""
    return ScriptedDelay(check_number("delay", seconds), item)


def paced(seconds: float, item: ScriptItem, /) -> ScriptedPace:
    """Pause before each piece of a reply: the chunks of a `stream`, each call, each text."""
    return ScriptedPace(check_number("pace", seconds), item)


class ScriptedModel:
    """Answers from a script: a list with one item for each model call of a conversation, or one function for all.

    An item is a text, a call, a list of them (parallel calls, perhaps after a text), an error, or a function of the
    request that returns one of these. After the end of the script it raises a `ModelError` of the kind ``script_over``.
    `requests` has the last `keep` requests.
    """

    def __init__(
        self, replies: Iterable[ScriptItem] | ScriptFunction, *, name: str = "scripted:model", keep: int = 1_000
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._keep = check_int("keep", keep)
        self._function = replies if callable(replies) else None
        self._script = () if callable(replies) else _check_script(replies)
        self.fixed: dict[int, tuple[messages.StreamEvent, ...]] = {}
        """Replies that depend only on their position, once they are made."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[messages.StreamEvent]:
        """Stream the reply at this position of the conversation."""
        self.requests.append(request)
        if len(self.requests) > self._keep:
            del self.requests[0]
        position = position_of(request)
        events, pace = self.fixed.get(position), 0.0
        if events is None:
            events, pace = await self._make(request, position)
        for event in events:
            if pace and isinstance(event, _PIECES):
                await asyncio.sleep(pace)
            yield event

    async def respond(self, request: ModelRequest) -> ModelReply:
        return await respond(self, request)

    async def _make(self, request: ModelRequest, position: int) -> tuple[tuple[messages.StreamEvent, ...], float]:
        """The events of a reply, and the pause before each piece."""
        item = said = self._item(position)
        pace = 0.0
        while callable(said) or isinstance(said, ScriptedDelay | ScriptedPace):
            if isinstance(said, ScriptedDelay):
                await asyncio.sleep(said.seconds)
                said = said.reply
            elif isinstance(said, ScriptedPace):
                pace, said = said.seconds, said.reply
            else:
                given = said(request)
                given = await given if inspect.isawaitable(given) else given
                said = _check_item(given, "what the script's function gave")
        if isinstance(said, ScriptedError):
            raise ModelError(said.message, kind=said.kind, retryable=said.retryable)
        if isinstance(said, BaseException):
            raise said.with_traceback(None)
        if isinstance(said, ScriptedCut):
            start = messages.StreamStart(self.name)
            return ((start, messages.TextChunk(said.text)) if said.text else (start,)), pace
        events = _events(said, position, self.name)
        if said is item:
            self.fixed[position] = events
        return events, pace

    def _item(self, position: int) -> ScriptItem:
        if self._function is not None:
            return self._function
        if position < len(self._script):
            return self._script[position]
        message = f"the script of {self.name} is over: it has {len(self._script)} replies and is asked at {position}"
        raise ModelError(message, kind="script_over")


def position_of(request: ModelRequest) -> int:
    """Return the number of earlier model calls of the conversation."""
    if request.position is not None:
        return request.position
    return sum(type(message) is messages.AssistantMessage for message in request.messages)


def _check_script(replies: object) -> tuple[ScriptItem, ...]:
    if isinstance(replies, str) or not isinstance(replies, Iterable):
        raise InvalidArgument("replies", replies, "a list of replies, or a function of the request")
    items = enumerate(cast("Iterable[object]", replies))
    return tuple(_check_item(item, f"reply {n} of the script") for n, item in items)


def _check_item(item: object, what: str) -> ScriptItem:
    if isinstance(item, list | tuple | ScriptedReply):
        parts = item.parts if isinstance(item, ScriptedReply) else cast("Sequence[object]", item)
        for part in parts:
            if not isinstance(part, _PART_TYPES):
                wanted = "text(), stream(), refusal(), call(), or a part of a message"
                raise InvalidArgument(f"a part of {what}", part, wanted)
    elif isinstance(item, ScriptedDelay | ScriptedPace):
        _check_item(item.reply, what)
    elif isinstance(item, type) or not (isinstance(item, _REPLY_TYPES) or callable(item)):
        raise InvalidArgument(what, item, _ACCEPTED)
    return cast("ScriptItem", item)


def _events(said: ScriptReply, position: int, name: str) -> tuple[messages.StreamEvent, ...]:
    if isinstance(said, ModelReply):
        return tuple(_with_frame(_part_events(said.parts), said, said.model or name))
    if not isinstance(said, ScriptedReply):
        listed = said if isinstance(said, list | tuple) else (said,)
        said = ScriptedReply(tuple(cast("Sequence[ScriptPart]", listed)))
    parts = _assign_ids(said.parts, position)
    events = _part_events(parts)
    flat = tuple(Text("".join(part.chunks)) if isinstance(part, ScriptedStream) else part for part in parts)
    usage = said.usage or Usage(input=10 * position + 10, output=_estimate_tokens(events))
    made = ModelReply(flat, said.finish or _finish_reason(flat), usage, name)
    return tuple(_with_frame(events, made, name))


def _with_frame(events: list[messages.StreamEvent], made: ModelReply, name: str) -> list[messages.StreamEvent]:
    return [messages.StreamStart(name), *events, messages.StreamUsage(made.usage), messages.StreamEnd(made)]


def _assign_ids(parts: tuple[ScriptPart, ...], position: int) -> tuple[Part | ScriptedStream, ...]:
    numbered: list[Part | ScriptedStream] = []
    calls = 0
    for part in parts:
        if isinstance(part, ScriptedCall):
            numbered.append(ToolCall(f"call_{position}_{calls}", part.tool, part.arguments))
        else:
            numbered.append(Text(part) if isinstance(part, str) else part)
        calls += isinstance(part, ScriptedCall | ToolCall)
    return tuple(numbered)


def _part_events(parts: Iterable[Part | ScriptedStream]) -> list[messages.StreamEvent]:
    events: list[messages.StreamEvent] = []
    for part in parts:
        events += (
            map(messages.TextChunk, part.chunks) if isinstance(part, ScriptedStream) else messages.part_events([part])
        )
    return events


def _estimate_tokens(events: Sequence[messages.StreamEvent]) -> int:
    """Estimate tokens as providers count them: four characters each, and ten for the frame of a call."""
    texts = [event.text for event in events if isinstance(event, messages.TextChunk | messages.ReasoningChunk)]
    calls = [event.arguments for event in events if isinstance(event, messages.CallChunk)]
    return sum(len(words) // 4 + 1 for words in texts) + sum(len(words) // 4 + 10 for words in calls)


def _finish_reason(parts: Iterable[Part]) -> messages.FinishReason:
    kinds = {type(part) for part in parts}
    if ToolCall in kinds:
        return "tool_calls"
    return "refusal" if Refusal in kinds else "stop"
