"""What models and agents say to each other: messages, their parts, usage, and the stream in which a reply arrives.

Neutral words, the same for every provider. A message is frozen: once it is part of a conversation it never changes, so
what was sent before is sent again byte for byte.
"""

from __future__ import annotations

from collections.abc import (
    Iterable,  # noqa: TC003  msgspec reads the annotations
    Mapping,  # noqa: TC003  msgspec reads the annotations
)
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import msgspec

from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.names import check_int

FinishReason = Literal[
    "stop", "tool_calls", "output_limit", "refusal", "content_filter", "context_overflow", "cancelled"
]
"""Why a reply ended. `cancelled`: the turn was stopped while the reply was streaming; it is kept as far as it came."""
ResultState = Literal["ok", "error", "unknown", "cancelled", "skipped"]
"""How a tool call ended, as the model is told.

`unknown`: it was interrupted and nobody can say whether it took effect. `cancelled`: it was stopped, and had no effect
that must not be repeated. `skipped`: it was never begun.
"""
Origin = Literal["user", "holdfast"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ToolChoice = Literal["auto", "none", "required"]


class Text(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """Words."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="reasoning"):
    """What the model thought. `replay` is the provider's own data, good for the route that made it."""

    text: str
    replay: Any = None
    route: str | None = None


class Refusal(msgspec.Struct, frozen=True, gc=False, tag="refusal"):
    """The model declines, in its own words."""

    text: str


class Attachment(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="attachment"):
    """Bytes that are kept once in the store, under their digest."""

    digest: str
    media_type: str
    size: int
    name: str | None = None


class ToolCall(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="tool_call"):
    """The model asks for a tool. `id` is the provider's; `arguments` is None where what it sent was no JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    malformed: str | None = None
    """What came instead of a JSON object."""
    replay: Any = None
    route: str | None = None


class ToolResult(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="tool_result"):
    """What a tool call came to. `content` is what the model reads: text or a JSON value."""

    call_id: str
    name: str
    content: Any
    state: ResultState = "ok"
    files: tuple[str, ...] = ()
    """Digests of the attachments that `content` speaks of."""


Part: TypeAlias = Text | Reasoning | Refusal | ToolCall | Attachment
InputPart: TypeAlias = Text | Attachment


class UserMessage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="user"):
    """What a person (or the host application) said, or what Holdfast tells the model in the same place."""

    id: str
    parts: tuple[InputPart, ...]
    origin: Origin = "user"
    metadata: dict[str, Any] | None = None
    """What the host said about it. Only `session.history` tells it: no model gets to see it."""

    @property
    def text(self) -> str:
        """The words alone."""
        return text_of(self.parts)


class AssistantMessage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag="assistant"):
    """What the model said."""

    id: str
    parts: tuple[Part, ...]
    finish: FinishReason = "stop"

    @property
    def text(self) -> str:
        """The words alone, without reasoning."""
        return text_of(self.parts)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tools it asked for, in order."""
        return tuple([part for part in self.parts if type(part) is ToolCall])


class ToolMessage(msgspec.Struct, frozen=True, gc=False, tag="tool"):
    """The results of all calls of the assistant message before it, in the order of the calls."""

    id: str
    results: tuple[ToolResult, ...]


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens. `reasoning` is part of `output`; `cache_read` and `cache_write` are not part of `input`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def __post_init__(self) -> None:
        """Nobody gives tokens back: a number below zero would lower what others have used."""
        if self.input < 0 or self.output < 0 or self.cache_read < 0 or self.cache_write < 0 or self.reasoning < 0:
            for name in self.__struct_fields__:
                msgspec.structs.force_setattr(self, name, max(0, getattr(self, name)))

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )

    @property
    def total(self) -> int:
        """All tokens that went in and out."""
        return self.input + self.cache_read + self.cache_write + self.output


class ToolSpec(msgspec.Struct, frozen=True, gc=False):
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: dict[str, Any]


class OutputSpec(msgspec.Struct, frozen=True, gc=False):
    """The shape that the final answer must have."""

    name: str
    schema: dict[str, Any]


class Settings(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How a model is to answer. What is None is left to the provider."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    effort: Effort | None = None
    """How much it may think."""
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    cache: bool = True
    """Mark the stable beginning of the request for the provider's prompt cache."""
    compact_at: int | None = None
    """Tokens from which on the provider itself shortens the conversation, where it offers that."""
    extra: dict[str, Any] | None = None
    """Fields of the provider's own, put into the request as they are."""

    def __post_init__(self) -> None:
        for name in ("max_output_tokens", "compact_at"):
            if getattr(self, name) is not None:
                check_int(f"settings.{name}", getattr(self, name), least=1)
        if self.seed is not None:
            check_int("settings.seed", self.seed, least=-(2**63), most=2**63 - 1)
        _check_share("settings.temperature", self.temperature, most=2)
        _check_share("settings.top_p", self.top_p, most=1)
        _check_choice("settings.effort", self.effort, (None, *get_args(Effort)))
        _check_choice("settings.tool_choice", self.tool_choice, get_args(ToolChoice))
        _check_choice("settings.parallel_tool_calls", self.parallel_tool_calls, (None, True, False))
        _check_choice("settings.cache", self.cache, (True, False))
        msgspec.structs.force_setattr(self, "stop", _checked_stops(self.stop))
        _check_fields("settings.extra", self.extra)


def _check_share(what: str, value: object, *, most: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise InvalidNumber(what, value, f"it must be a number from 0 to {most}")


def _check_choice(what: str, value: object, choices: tuple[object, ...]) -> None:
    # Compared by type as well: 1 is not True here.
    if not any(value is each or (type(value) is str and value == each) for each in choices):
        raise InvalidArgument(what, value, f"one of {', '.join(map(repr, choices))}")


def _check_fields(what: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in cast("dict[object, object]", value)):
        raise InvalidArgument(what, cast("object", value), "a dictionary of fields by their names")


def _checked_stops(stop: object) -> tuple[str, ...]:
    if isinstance(stop, list | tuple):
        texts = tuple(text for text in cast("list[object]", stop) if type(text) is str and text)
        if len(texts) == len(cast("list[object]", stop)):
            return texts
    raise InvalidArgument("settings.stop", cast("object", stop), "a tuple of texts that are not empty")


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One question to a model. `position` counts the model calls of the conversation before this one."""

    messages: tuple[Message, ...]
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    output: OutputSpec | None = None
    position: int | None = None
    settings: Settings = Settings()
    files: Mapping[str, bytes] = {}
    """The bytes of attachments, by digest."""
    wire: Any = None
    """Where encoded messages are kept with the conversation; None encodes them anew."""
    ledger: list[Attempt] | None = None
    """Where each try is noted as soon as it is over, for a call that is cancelled and has no reply to tell them."""


class ModelPass(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One run of a model behind a try, where a provider runs several: a summary of its own, an adviser, a stand-in."""

    usage: Usage
    model: str = ""
    """The provider's name of it; empty for the model that was asked."""


class Attempt(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One try to get an answer: whom it was asked of, how it ended, what it took."""

    model: str
    outcome: str = "completed"
    """``completed``, or the kind of the error."""
    status: int | None = None
    """Of HTTP, where a response came."""
    request_id: str | None = None
    ms: int = 0
    usage: Usage | None = None
    message: str = ""
    ignored: int = 0
    """Frames, and parts of them, that the dialect does not know."""
    passes: tuple[ModelPass, ...] = ()
    """Each run of a model, where the provider tells of more than one; `usage` is all of them."""


class ModelReply(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A whole answer, with what it cost and who gave it."""

    parts: tuple[Part, ...]
    finish: FinishReason = "stop"
    usage: Usage = Usage()
    """All that it took: every try, failed ones too, and every run of a model behind them."""
    model: str = ""
    raw_usage: dict[str, Any] | None = None
    attempts: tuple[Attempt, ...] = ()
    """Every try, where the model keeps a ledger."""
    response_id: str | None = None
    cost: float | None = None
    """In US dollars, by the price of the day; None where no price is known."""

    def __post_init__(self) -> None:
        """Nobody gives money back."""
        if self.cost is not None and self.cost < 0:
            msgspec.structs.force_setattr(self, "cost", 0.0)

    @property
    def text(self) -> str:
        """The words alone, without reasoning."""
        return text_of(self.parts)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tools it asks for, in order."""
        return tuple([part for part in self.parts if type(part) is ToolCall])


class StreamStart(msgspec.Struct, frozen=True, gc=False):
    """The provider has begun to answer."""

    model: str


class TextChunk(msgspec.Struct, frozen=True, gc=False):
    """More words."""

    text: str


class ReasoningChunk(msgspec.Struct, frozen=True, gc=False):
    """More thoughts."""

    text: str


class CallStart(msgspec.Struct, frozen=True, gc=False):
    """The model begins to ask for a tool."""

    id: str
    name: str


class CallChunk(msgspec.Struct, frozen=True, gc=False):
    """More of the arguments, as JSON text."""

    id: str
    arguments: str


class CallEnd(msgspec.Struct, frozen=True, gc=False):
    """The call is whole."""

    call: ToolCall


class StreamUsage(msgspec.Struct, frozen=True, gc=False):
    """Tokens so far."""

    usage: Usage


class StreamReset(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed and another one begins: what came so far does not count."""

    reason: str


class StreamNote(msgspec.Struct, frozen=True, gc=False):
    """Something an observer may want to know: replay data that was dropped, settings that the model does not take,
    another model that takes over.
    """

    kind: Literal["replay_dropped", "settings_changed", "fallback", "retry"]
    detail: str


class StreamEnd(msgspec.Struct, frozen=True, gc=False):
    """The provider said that the reply is whole. A stream without this was cut off."""

    reply: ModelReply


StreamEvent: TypeAlias = (
    StreamStart
    | TextChunk
    | ReasoningChunk
    | CallStart
    | CallChunk
    | CallEnd
    | StreamUsage
    | StreamReset
    | StreamNote
    | StreamEnd
)
_encoder: Final = msgspec.json.Encoder()
encode = _encoder.encode
"""The bytes of a message, a part or a reply. The same value always gives the same bytes."""
decode_reply = msgspec.json.Decoder(ModelReply).decode
decode_result = msgspec.json.Decoder(ToolResult).decode


def used_by(tries: Iterable[Attempt]) -> Usage:
    """What tries used together, as far as the provider said so."""
    return sum((line.usage for line in tries if line.usage is not None), Usage())


def context_tokens(reply: ModelReply) -> int:
    """How many tokens the model read for a reply: of its last run, where `usage` counts several."""
    used = reply.usage
    if reply.attempts and (last := reply.attempts[-1]).usage is not None:
        used = last.passes[-1].usage if last.passes else last.usage
    return used.input + used.cache_read + used.cache_write


def refusal_of(parts: tuple[Any, ...]) -> str:
    """The words in which a model declines."""
    return "".join([part.text for part in parts if type(part) is Refusal])


def text_of(parts: tuple[Any, ...]) -> str:
    """The words among `parts`, in order."""
    return "".join([part.text for part in parts if type(part) is Text])


def attachments_of(message: Message) -> list[str]:
    """Digests of the attachments that a message speaks of."""
    if type(message) is UserMessage:
        return [part.digest for part in message.parts if type(part) is Attachment]
    if type(message) is ToolMessage:
        return [digest for result in message.results for digest in result.files]
    return []
