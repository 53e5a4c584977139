"""The data of a conversation with a model: messages, their parts, usage, requests, replies and stream events.

The types are the same for every provider. Messages are frozen: a message of a conversation never changes, so it is sent
again byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import add
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.names import check_int, check_number

FinishReason = Literal[
    "stop", "tool_calls", "output_limit", "refusal", "content_filter", "context_overflow", "cancelled"
]
"""The reason why a reply ended. `cancelled`: the turn was stopped during streaming; the received part is kept."""
ResultState = Literal["ok", "error", "unknown", "cancelled", "skipped"]
"""Outcome of a tool call, as the model sees it.

`unknown`: it was interrupted, and may or may not have taken effect. `cancelled`: it was stopped, without an effect that
must not be repeated. `skipped`: it never began.
"""
Origin = Literal["user", "holdfast"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ToolChoice = Literal["auto", "none", "required"]


class Text(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """Text."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="reasoning"):
    """Thoughts of the model. `replay` is the provider's own data, which goes back only to the route that made it."""

    text: str
    replay: Any = None
    route: str | None = None


class Refusal(msgspec.Struct, frozen=True, gc=False, tag="refusal"):
    """A refusal, in the model's own words."""

    text: str


class Attachment(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="attachment"):
    """A file, which the store keeps once under its digest."""

    digest: str
    media_type: str
    size: int
    name: str | None = None


class ToolCall(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="tool_call"):
    """A tool call. `id` is the provider's; `arguments` is None if the model did not send a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    malformed: str | None = None
    """The text that is not a JSON object."""
    replay: Any = None
    route: str | None = None


class ToolResult(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="tool_result"):
    """The result of a tool call. The model reads `content`: text or a JSON value."""

    call_id: str
    name: str
    content: Any
    state: ResultState = "ok"
    files: tuple[str, ...] = ()
    """Digests of the attachments in `content`."""


Part: TypeAlias = Text | Reasoning | Refusal | ToolCall | Attachment
InputPart: TypeAlias = Text | Attachment


class UserMessage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="user"):
    """A message of a person or the host application, or of Holdfast itself."""

    id: str
    parts: tuple[InputPart, ...]
    origin: Origin = "user"
    metadata: dict[str, Any] | None = None
    """Metadata of the host. `session.history` returns it; models do not see it."""

    @property
    def text(self) -> str:
        return join_text(self.parts)


class _Parts:
    __slots__ = ()
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The text alone, without reasoning."""
        return join_text(self.parts)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple([part for part in self.parts if type(part) is ToolCall])


class AssistantMessage(_Parts, msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="assistant"):
    """A message of the model."""

    id: str
    parts: tuple[Part, ...]
    finish: FinishReason = "stop"


class ToolMessage(msgspec.Struct, frozen=True, gc=False, tag="tool"):
    """The results of all calls of the assistant message before it, in the order of the calls."""

    id: str
    results: tuple[ToolResult, ...]


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Counts of tokens. `reasoning` is part of `output`; `cache_read` and `cache_write` are not part of `input`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def __post_init__(self) -> None:
        """Raise negative counts to zero: they would lower the total of other calls."""
        if self.input < 0 or self.output < 0 or self.cache_read < 0 or self.cache_write < 0 or self.reasoning < 0:
            for name in self.__struct_fields__:
                msgspec.structs.force_setattr(self, name, max(0, getattr(self, name)))

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    @property
    def total(self) -> int:
        """All input and output tokens."""
        return self.input + self.cache_read + self.cache_write + self.output


class ToolSpec(msgspec.Struct, frozen=True, gc=False):
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: dict[str, Any]


class OutputSpec(msgspec.Struct, frozen=True, gc=False):
    """The schema of the final answer."""

    name: str
    schema: dict[str, Any]


class Settings(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Settings of a model call. None leaves a setting to the provider."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    effort: Effort | None = None
    """Amount of thinking."""
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    cache: bool = True
    """Mark the stable beginning of the request for the provider's prompt cache."""
    compact_at: int | None = None
    """Number of tokens at which the provider shortens the conversation, if it can."""
    extra: dict[str, Any] | None = None
    """The provider's own fields, put into the request as they are."""

    def __post_init__(self) -> None:
        for name in ("max_output_tokens", "compact_at"):
            if getattr(self, name) is not None:
                check_int(f"settings.{name}", getattr(self, name), least=1)
        if self.seed is not None:
            check_int("settings.seed", self.seed, least=-(2**63), most=2**63 - 1)
        for name, most in (("temperature", 2), ("top_p", 1)):
            if getattr(self, name) is not None:
                check_number(f"settings.{name}", getattr(self, name), most=most)
        _check_choice("settings.effort", self.effort, (None, *get_args(Effort)))
        _check_choice("settings.tool_choice", self.tool_choice, get_args(ToolChoice))
        _check_choice("settings.parallel_tool_calls", self.parallel_tool_calls, (None, True, False))
        _check_choice("settings.cache", self.cache, (True, False))
        msgspec.structs.force_setattr(self, "stop", _check_stops(self.stop))
        _check_fields("settings.extra", self.extra)


def _check_choice(what: str, value: object, choices: tuple[object, ...]) -> None:
    # Compared by type as well: 1 is not True here.
    if not any(value is each or (type(value) is str and value == each) for each in choices):
        raise InvalidArgument(what, value, f"one of {', '.join(map(repr, choices))}")


def _check_fields(what: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in cast("dict[object, object]", value)):
        raise InvalidArgument(what, cast("object", value), "a dictionary of fields by their names")


def _check_stops(stop: object) -> tuple[str, ...]:
    if isinstance(stop, list | tuple):
        texts = tuple(text for text in cast("list[object]", stop) if type(text) is str and text)
        if len(texts) == len(cast("list[object]", stop)):
            return texts
    raise InvalidArgument("settings.stop", cast("object", stop), "a tuple of texts that are not empty")


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a model. `position` is the number of earlier model calls of the conversation."""

    messages: tuple[Message, ...]
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    output: OutputSpec | None = None
    position: int | None = None
    settings: Settings = Settings()
    files: Mapping[str, bytes] = {}
    """The bytes of attachments, by digest."""
    wire: Any = None
    """Cache of the conversation's encoded messages; None encodes them anew."""
    ledger: list[Attempt] | None = None
    """Gets each attempt as it ends, also if the call is cancelled and has no reply."""


class ModelPass(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A model run behind an attempt, if the provider runs several: for a summary, an advisor, a fallback."""

    usage: Usage
    model: str = ""
    """The provider's name of the model; empty for the requested one."""


class Attempt(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One attempt of a model call: its model, outcome and usage."""

    model: str
    outcome: str = "completed"
    """``completed``, or the kind of the error."""
    status: int | None = None
    """The HTTP status, if a response came."""
    request_id: str | None = None
    ms: int = 0
    usage: Usage | None = None
    message: str = ""
    ignored: int = 0
    """Number of frames that the dialect does not know."""
    passes: tuple[ModelPass, ...] = ()
    """The model runs, if the provider reports more than one; `usage` is their sum."""


class ModelReply(_Parts, msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A whole reply, with model, usage and cost."""

    parts: tuple[Part, ...]
    finish: FinishReason = "stop"
    usage: Usage = Usage()
    """Usage of all attempts, failed ones too, and of all model runs behind them."""
    model: str = ""
    raw_usage: dict[str, Any] | None = None
    attempts: tuple[Attempt, ...] = ()
    """All attempts, if the model keeps a ledger."""
    response_id: str | None = None
    cost: float | None = None
    """In US dollars at the time of the call; None if no price is known."""

    def __post_init__(self) -> None:
        """Raise a negative cost to zero."""
        if self.cost is not None and self.cost < 0:
            msgspec.structs.force_setattr(self, "cost", 0.0)


class StreamStart(msgspec.Struct, frozen=True, gc=False):
    """The provider begins to answer."""

    model: str


class TextChunk(msgspec.Struct, frozen=True, gc=False):
    """More text."""

    text: str


class ReasoningChunk(msgspec.Struct, frozen=True, gc=False):
    """More thoughts."""

    text: str


class CallStart(msgspec.Struct, frozen=True, gc=False):
    """A tool call begins."""

    id: str
    name: str


class CallChunk(msgspec.Struct, frozen=True, gc=False):
    """More of the arguments, as JSON text."""

    id: str
    arguments: str


class CallEnd(msgspec.Struct, frozen=True, gc=False):
    """A tool call is complete."""

    call: ToolCall


class StreamUsage(msgspec.Struct, frozen=True, gc=False):
    """Tokens so far."""

    usage: Usage


class StreamReset(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed and another one begins: forget everything so far."""

    reason: str


class StreamNote(msgspec.Struct, frozen=True, gc=False):
    """A note for observers: dropped replay data, changed settings, a retry, a fallback to another model."""

    kind: Literal["replay_dropped", "settings_changed", "fallback", "retry"]
    detail: str


class StreamEnd(msgspec.Struct, frozen=True, gc=False):
    """The reply is complete. A stream without this event was cut off."""

    reply: ModelReply


_PartEvent: TypeAlias = TextChunk | ReasoningChunk | CallStart | CallChunk | CallEnd
StreamEvent: TypeAlias = StreamStart | _PartEvent | StreamUsage | StreamReset | StreamNote | StreamEnd
_encoder: Final = msgspec.json.Encoder()
encode = _encoder.encode
"""Encodes a message, a part or a reply. The same value always gives the same bytes."""
decode_reply = msgspec.json.Decoder(ModelReply).decode


def part_events(parts: Iterable[Part], *, chunks: bool = True) -> list[StreamEvent]:
    """Return the events of parts; without `chunks` the arguments of a call come with its end only."""
    events: list[StreamEvent] = []
    for part in parts:
        if type(part) is ToolCall:
            events.append(CallStart(part.id, part.name))
            if chunks:
                sent = encode(part.arguments).decode() if part.arguments is not None else part.malformed or ""
                events.append(CallChunk(part.id, sent))
            events.append(CallEnd(part))
        elif (type(part) is Text or type(part) is Refusal) and part.text:
            events.append(TextChunk(part.text))
        elif type(part) is Reasoning and part.text:
            events.append(ReasoningChunk(part.text))
    return events


def total_usage(attempts: Iterable[Attempt]) -> Usage:
    """Add up the usage of attempts, as far as the provider reported it."""
    return sum((attempt.usage for attempt in attempts if attempt.usage is not None), Usage())


def context_tokens(reply: ModelReply) -> int:
    """Return the input tokens of a reply: those of the last model run, if there were several."""
    used = reply.usage
    if reply.attempts and (last := reply.attempts[-1]).usage is not None:
        used = last.passes[-1].usage if last.passes else last.usage
    return used.input + used.cache_read + used.cache_write


def join_refusal(parts: tuple[Any, ...]) -> str:
    """Join the refusals among parts."""
    return "".join([part.text for part in parts if type(part) is Refusal])


def join_text(parts: tuple[Any, ...]) -> str:
    """Join the texts among parts."""
    return "".join([part.text for part in parts if type(part) is Text])


def attachment_digests(message: Message) -> list[str]:
    """Return the digests of the attachments of a message."""
    if type(message) is UserMessage:
        return [part.digest for part in message.parts if type(part) is Attachment]
    if type(message) is ToolMessage:
        return [digest for result in message.results for digest in result.files]
    return []


def message_of_reply(reply: ModelReply, id: str) -> AssistantMessage:
    """A reply as a message of the conversation: without empty texts, and with a unique id for each call."""
    parts = reply.parts
    ids = [part.id for part in parts if type(part) is ToolCall]
    if len(ids) < len(parts):  # it is not calls alone
        spoken = any([part.text.strip() for part in parts if type(part) is Text])  # noqa: C419  cheaper
        parts = tuple([part for part in parts if type(part) is not Text or (part.text if spoken else False)])
    if "" in ids or len(set(ids)) < len(ids):
        parts = _told_apart(parts)
    return AssistantMessage(id, parts, reply.finish)


def _told_apart(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Give calls without an id, or with a repeated one, another: a result belongs to one call."""
    used: set[str] = set()
    told: list[Part] = []
    for number, part in enumerate(parts, 1):
        if type(part) is ToolCall:
            name = part.id if part.id and part.id not in used else f"{part.id or 'call'}-{number}"
            used.add(name)
            told.append(part if name == part.id else msgspec.structs.replace(part, id=name))
        else:
            told.append(part)
    return tuple(told)
