"""A model that says what a test tells it to say.

It answers by the position in the conversation, never by a counter in memory: a process that takes over in the middle
meets the same script at the same place.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from holdfast.effects.values import decode_value, encode_value
from holdfast.errors import InvalidArgument, InvalidNumber, ModelError
from holdfast.messages import (
    AssistantMessage,
    Attachment,
    CallChunk,
    CallEnd,
    CallStart,
    FinishReason,
    ModelReply,
    ModelRequest,
    Part,
    Reasoning,
    ReasoningChunk,
    Refusal,
    StreamEnd,
    StreamEvent,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolCall,
    Usage,
    encode,
)
from holdfast.models.contract import respond
from holdfast.names import check_int

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.tools.definition import AnyTool


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call that gets its id from its place in the conversation."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chunked:
    """Words that come in several chunks."""

    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """A reply with what is usually left to the script: how it ends and what it costs."""

    parts: tuple[ScriptPart, ...]
    finish: FinishReason | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """A stream that ends in the middle."""

    text: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The provider answers with an error."""

    message: str
    kind: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Delayed:
    """A reply that takes its time."""

    seconds: float
    reply: ScriptItem


ScriptPart: TypeAlias = str | ScriptedCall | Chunked | Part
ScriptReply: TypeAlias = ScriptPart | Sequence[ScriptPart] | Whole | Cut | Fault | Delayed | ModelReply | BaseException
ScriptFunction: TypeAlias = Callable[[ModelRequest], ScriptReply | Awaitable[ScriptReply]]
ScriptItem: TypeAlias = ScriptReply | ScriptFunction
_PARTS: Final = (str, ScriptedCall, Chunked, Text, Reasoning, Refusal, ToolCall, Attachment)
_REPLIES: Final = (*_PARTS, Whole, Cut, Fault, Delayed, ModelReply, BaseException)
_WANTED: Final = "text(), call(), a list of these, reply(), cut(), error(), delayed(), an exception or a function"


def text(words: str) -> Text:
    """The model says this."""
    return Text(words)


def stream(*chunks: str) -> Chunked:
    """The model says this, one chunk at a time."""
    return Chunked(chunks)


def refusal(words: str) -> Refusal:
    """The model declines."""
    return Refusal(words)


def call(tool: str | AnyTool, /, **arguments: Any) -> ScriptedCall:  # noqa: ANN401  what the tool takes
    """The model calls a tool, with the JSON of these arguments."""
    return ScriptedCall(tool if isinstance(tool, str) else tool.name, decode_value(encode_value(arguments)))


def reply(*parts: ScriptPart, finish: FinishReason | None = None, usage: Usage | None = None) -> Whole:
    """The model says all of this in one reply, which ends and costs as given."""
    return Whole(parts, finish, usage)


def error(message: str, *, kind: str = "model_error", retryable: bool = False) -> Fault:
    """The provider answers with an error: a `ModelError` is raised."""
    return Fault(message, kind, retryable)


def cut(words: str) -> Cut:
    """The stream ends after these words, before the provider said that the reply is whole."""
    return Cut(words)


def delayed(seconds: float, item: ScriptItem, /) -> Delayed:
    """The same reply, after a while."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidNumber("delay", seconds, "it must be 0 seconds or more")
    return Delayed(seconds, item)


class ScriptedModel:
    """Answers from a script: a list with one item for each model call of a conversation, or one function for all.

    An item is a text, a call, a list of them (parallel calls, perhaps with text before), an error, or a function of the
    request that gives any of these. Past the end of the script comes a `ModelError` of the kind ``script_over``.
    `requests` has what it was asked, the last `keep` of them.
    """

    def __init__(
        self, replies: Iterable[ScriptItem] | ScriptFunction, *, name: str = "scripted:model", keep: int = 1_000
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._keep = check_int("keep", keep)
        self._function: ScriptFunction | None = None
        self._script: tuple[ScriptItem, ...] = ()
        if callable(replies):
            self._function = replies
        else:
            self._script = _checked_script(replies)
        # A reply that depends on nothing but its place is made once.
        self._made: dict[int, tuple[StreamEvent, ...]] = {}

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The reply for this place in the conversation, as a provider would stream it."""
        self._remember(request)
        position = position_of(request)
        events = self._made.get(position)
        if events is None:
            events = await self._make(request, position)
        for event in events:
            yield event

    async def respond(self, request: ModelRequest) -> ModelReply:
        """The whole reply at once."""
        return await respond(self, request)

    def _remember(self, request: ModelRequest) -> None:
        self.requests.append(request)
        if len(self.requests) > self._keep:
            del self.requests[0]

    async def _make(self, request: ModelRequest, position: int) -> tuple[StreamEvent, ...]:
        item = self._item(position)
        said = await _settle(item, request)
        if isinstance(said, Fault):
            raise ModelError(said.message, kind=said.kind, retryable=said.retryable)
        if isinstance(said, BaseException):
            raise said.with_traceback(None)
        if isinstance(said, Cut):
            return _cut_events(said, self.name)
        events = _events(said, position, self.name)
        if said is item:
            self._made[position] = events
        return events

    def _item(self, position: int) -> ScriptItem:
        if self._function is not None:
            return self._function
        if position < len(self._script):
            return self._script[position]
        message = f"the script of {self.name} is over: it has {len(self._script)} replies and is asked at {position}"
        raise ModelError(message, kind="script_over")


def position_of(request: ModelRequest) -> int:
    """How many model calls of the conversation came before this one."""
    if request.position is not None:
        return request.position
    return sum(type(message) is AssistantMessage for message in request.messages)


def _checked_script(replies: object) -> tuple[ScriptItem, ...]:
    if isinstance(replies, str) or not isinstance(replies, Iterable):
        raise InvalidArgument("replies", replies, "a list of replies, or a function of the request")
    items = tuple(cast("Iterable[object]", replies))
    return tuple(_checked_item(item, f"reply {n} of the script") for n, item in enumerate(items))


def _checked_item(item: object, what: str) -> ScriptItem:
    if isinstance(item, list | tuple):
        for part in cast("Sequence[object]", item):
            _check_part(part, what)
    elif isinstance(item, Whole):
        for part in item.parts:
            _check_part(part, what)
    elif isinstance(item, Delayed):
        _checked_item(item.reply, what)
    elif isinstance(item, type) or not (isinstance(item, _REPLIES) or callable(item)):
        raise InvalidArgument(what, item, _WANTED)
    return cast("ScriptItem", item)


def _check_part(part: object, what: str) -> None:
    if not isinstance(part, _PARTS):
        raise InvalidArgument(f"a part of {what}", part, "text(), stream(), refusal(), call(), or a part of a message")


async def _settle(item: ScriptItem, request: ModelRequest) -> ScriptReply:
    """What is said in the end: functions are asked, delays are waited for."""
    while True:
        if isinstance(item, Delayed):
            await asyncio.sleep(item.seconds)
            item = item.reply
        elif callable(item):
            said = item(request)
            item = _checked_item(await said if inspect.isawaitable(said) else said, "what the script's function gave")
        else:
            return item


def _cut_events(said: Cut, name: str) -> tuple[StreamEvent, ...]:
    return (StreamStart(name), TextChunk(said.text)) if said.text else (StreamStart(name),)


def _events(said: ScriptReply, position: int, name: str) -> tuple[StreamEvent, ...]:
    if isinstance(said, ModelReply):
        return tuple(_framed(_part_events(said.parts), said, said.model or name))
    whole = said if isinstance(said, Whole) else Whole(_as_parts(said))
    parts = _numbered(whole.parts, position)
    events = _part_events(parts)
    flat = tuple(Text("".join(part.chunks)) if isinstance(part, Chunked) else part for part in parts)
    usage = whole.usage or Usage(input=10 * position + 10, output=_tokens(events))
    made = ModelReply(flat, whole.finish or _finish(flat), usage, name)
    return tuple(_framed(events, made, name))


def _framed(events: list[StreamEvent], made: ModelReply, name: str) -> list[StreamEvent]:
    return [StreamStart(name), *events, StreamUsage(made.usage), StreamEnd(made)]


def _as_parts(said: ScriptReply) -> tuple[ScriptPart, ...]:
    if isinstance(said, list | tuple):
        return tuple(cast("Sequence[ScriptPart]", said))
    return (cast("ScriptPart", said),)


def _numbered(parts: tuple[ScriptPart, ...], position: int) -> tuple[Part | Chunked, ...]:
    numbered: list[Part | Chunked] = []
    calls = 0
    for part in parts:
        if isinstance(part, ScriptedCall):
            numbered.append(ToolCall(f"call_{position}_{calls}", part.tool, part.arguments))
        else:
            numbered.append(Text(part) if isinstance(part, str) else part)
        calls += isinstance(part, ScriptedCall | ToolCall)
    return tuple(numbered)


def _part_events(parts: Iterable[Part | Chunked]) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    for part in parts:
        match part:
            case Chunked():
                events += [TextChunk(chunk) for chunk in part.chunks]
            case Text() | Refusal():
                events.append(TextChunk(part.text))
            case Reasoning():
                events.append(ReasoningChunk(part.text))
            case ToolCall():
                sent = encode(part.arguments).decode() if part.arguments is not None else part.malformed or ""
                events += [CallStart(part.id, part.name), CallChunk(part.id, sent), CallEnd(part)]
            case Attachment():
                pass
    return events


def _tokens(events: Iterable[StreamEvent]) -> int:
    """Four characters to a token, ten tokens for the frame of a call: about what providers count."""
    total = 0
    for event in events:
        match event:
            case TextChunk() | ReasoningChunk():
                total += len(event.text) // 4 + 1
            case CallChunk():
                total += len(event.arguments) // 4 + 10
            case _:
                pass
    return total


def _finish(parts: Iterable[Part]) -> FinishReason:
    kinds = {type(part) for part in parts}
    if ToolCall in kinds:
        return "tool_calls"
    return "refusal" if Refusal in kinds else "stop"
