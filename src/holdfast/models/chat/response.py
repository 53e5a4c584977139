"""A response as it comes: pieces of text, of reasoning and of calls, put together. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import msgspec

from holdfast.errors import ModelError, StreamCut, StreamFailed
from holdfast.messages import (
    CallChunk,
    CallEnd,
    CallStart,
    ModelReply,
    Reasoning,
    ReasoningChunk,
    Refusal,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolCall,
    Usage,
)
from holdfast.models.chat.errors import classify_stream_error, is_error_frame
from holdfast.models.dialect import (
    JSON_ERRORS,
    SurrogateJoiner,
    as_dict,
    as_list,
    as_text,
    derive_call_id,
    encode_json,
    parse_arguments,
    parse_json,
    repair_surrogates,
    token_count,
    unix_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.messages import FinishReason, ModelPass, Part, StreamEvent
    from holdfast.models.dialect import Endpoint, Frame


MAX_CALLS: Final = 1_000
"""Most tool calls in one reply."""


class ChatCall:
    """A call as far as it has come."""

    __slots__ = ("_whole", "arguments", "custom", "cut", "end", "extra", "id", "index", "name", "theirs")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.theirs = ""
        """The id that came. It may be that of another call, too."""
        self.id = ""
        """The id under which observers know the call; empty as long as they do not."""
        self.name = ""
        self.arguments: list[str] = []
        self.end = ObjectEndDetector()
        self.custom = False
        self.extra: Any = None
        self.cut = False
        """The limit came before its arguments: that is not a call without any."""
        self._whole: ToolCall | None = None

    def whole(self, route: str) -> ToolCall:
        """The call, after its last fragment."""
        if self._whole is None:
            self._whole = self._made(route)
        return self._whole

    def _made(self, route: str) -> ToolCall:
        text = "".join(self.arguments)
        if self.custom:
            return ToolCall(self.id, self.name, {"input": text}, None, {"custom": True}, route)
        arguments, malformed = (None, text) if self.cut else parse_arguments(text)
        if self.extra is None:
            return ToolCall(self.id, self.name, arguments, malformed)
        return ToolCall(self.id, self.name, arguments, malformed, {"extra_content": self.extra}, route)


class ChatCalls:
    """All calls of a reply, in the order in which they began."""

    __slots__ = ("_ids", "all")

    def __init__(self) -> None:
        self.all: list[ChatCall] = []
        self._ids: set[str] = set()

    def addressed(self, index: int | None, id: str, name: str, came: object) -> ChatCall:
        """The call that a fragment belongs to: by its index, or by its id where everybody has the same index."""
        if index is None:
            found = next((call for call in reversed(self.all) if id and call.theirs == id), None)
            if found is None and self.all and not id and not name:
                found = self.all[-1]
        else:
            found = self._at(index)
            if found is None and came and not name:
                # A tail under an index that nobody has: of the call with its id, or of the last one.
                found = next((call for call in reversed(self.all) if not id or call.theirs == id), None)
        if found is not None and not _another(found, id, name, came):
            return found
        if len(self.all) >= MAX_CALLS:
            raise ModelError(f"the reply has more than {MAX_CALLS:,} tool calls", kind="bad_frame")
        call = ChatCall(index)
        self.all.append(call)
        return call

    def _at(self, index: int) -> ChatCall | None:
        for call in reversed(self.all):
            if call.index == index:
                return call
        return None

    def needs_id(self, call: ChatCall) -> bool:
        """Whether an id has to be made up: none came, or that of another call."""
        return not call.theirs or call.theirs in self._ids

    def identify(self, call: ChatCall, *seed: str) -> None:
        """Give a call the id that came, or one made of `seed`, which is to differ from reply to reply."""
        call.id = call.theirs
        if self.needs_id(call):
            call.id = derive_call_id(*seed, str(self.all.index(call)), call.name, *call.arguments)
        self._ids.add(call.id)

    def settle(self) -> int:
        """Forget calls of which nothing came but their place; how many those were."""
        named = [call for call in self.all if call.name or call.arguments]
        empty = len(self.all) - len(named)
        self.all = named
        return empty


def _another(call: ChatCall, id: str, name: str, came: object) -> bool:
    """Whether a fragment begins another call, although it has the address of this one."""
    if not name:
        return False
    if id and call.theirs and id != call.theirs:
        return True
    if call.name and name != call.name:
        # A name may come in pieces, too: of a call with an id, before its first argument.
        return bool(id) or not call.theirs or bool(call.arguments)
    # The same tool again, without an id: another call when this one has all its arguments.
    return not id and bool(call.name) and bool(came) and call.end.reached(call.arguments)


class Function(msgspec.Struct, gc=False):
    """A piece of a call."""

    name: str | None = None
    arguments: str | None = None


class Fragment(msgspec.Struct, gc=False):
    """A piece of a call, and which call it belongs to."""

    index: int
    id: str | None = None
    function: Function | None = None
    custom: None = None
    extra_content: None = None


class Delta(msgspec.Struct, gc=False):
    """What is new in a frame."""

    content: str | None = None
    tool_calls: list[Fragment] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: None = None
    refusal: Literal[""] | None = None
    function_call: None = None
    reasoning_text: Literal[""] | None = None
    thinking: Literal[""] | None = None
    audio: None = None
    images: None = None


class Choice(msgspec.Struct, gc=False):
    """The one answer of a reply."""

    delta: Delta
    index: Literal[0] = 0
    finish_reason: str | None = None
    message: None = None
    usage: None = None
    error: None = None


class Chunk(msgspec.Struct, gc=False):
    """A frame."""

    choices: Annotated[list[Choice], msgspec.Meta(max_length=1)]
    id: str | None = None
    model: str | None = None
    created: Any = None
    usage: dict[str, Any] | None = None
    x_groq: None = None
    error: None = None


_decode: Final = msgspec.json.Decoder(Chunk).decode


def usual(data: bytes) -> Chunk | None:
    """The frame, if it has nothing but what is usual."""
    try:
        return _decode(data)
    except JSON_ERRORS:
        return None


_NAME: Final = 1_000
"""Longest name of a model or a reply that is kept."""
_NOTHING: Final = Usage()


class _Function(msgspec.Struct, gc=False):
    name: str
    arguments: str | None = None


class _Call(msgspec.Struct, gc=False):
    id: str
    function: _Function
    custom: None = None
    extra_content: None = None


class _Said(msgspec.Struct, gc=False):
    """Words and calls. Where there is anything in the other fields, it is not plain."""

    content: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    function_call: None = None
    reasoning_text: Any = None
    thinking: Any = None
    audio: Any = None
    images: Any = None


class _Choice(msgspec.Struct, gc=False):
    message: _Said
    finish_reason: Literal["stop", "tool_calls"]
    index: Literal[0] = 0
    delta: None = None
    usage: Any = None
    error: Any = None


class _Body(msgspec.Struct, gc=False):
    choices: tuple[_Choice]
    id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    x_groq: Any = None
    error: Any = None


_plain_decode: Final = msgspec.json.Decoder(_Body).decode


def plain_reply(data: bytes, model: str, usage_of: Callable[[dict[str, Any]], Usage]) -> ModelReply | None:
    """The reply, or None where it is not plain. `model` is who was asked."""
    try:
        body = _plain_decode(data)
    except JSON_ERRORS:
        return None
    (choice,) = body.choices
    said = choice.message
    if body.error or body.x_groq or choice.usage or choice.error or _is_more(said):
        return None
    parts: list[Part] = [Text(said.content)] if said.content else []
    ids: set[str] = set()
    for call in said.tool_calls or ():
        name = call.function.name
        if not call.id or not name or call.id in ids or len(ids) == MAX_CALLS:
            return None
        ids.add(call.id)
        parts.append(ToolCall(call.id, name, *parse_arguments(call.function.arguments or "")))
    return ModelReply(
        tuple(parts),
        "tool_calls" if ids else "stop",
        usage_of(body.usage) if body.usage else _NOTHING,
        (body.model or "")[:_NAME] or model,
        raw_usage=body.usage or None,
        response_id=(body.id or "")[:_NAME] or None,
    )


def _is_more(said: _Said) -> bool:
    """Whether there is something besides words and calls."""
    if said.reasoning_content or said.reasoning or said.reasoning_details or said.reasoning_text or said.thinking:
        return True
    return bool(said.refusal or said.audio or said.images)


MAX_REPLY: Final = 32 * 1024 * 1024
"""Longest reply that is taken, in characters of everything that is kept of it."""
_GROWS: Final = frozenset(
    ("content", "text", "refusal", "reasoning", "reasoning_content", "thinking", "summary", "arguments", "input")
)
"""The fields whose text goes on in the next chunk."""


class ChatReader:
    """The state of one response that is being read."""

    __slots__ = (
        *("_calls", "_created", "_details", "_done", "_finish", "_flags", "_joiner", "_held", "_id", "_model", "_name"),
        *("_raw_usage", "_refusal", "_route", "_started", "_text", "_thoughts", "_usage", "ignored", "paused"),
    )

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.ignored = 0
        """Frames, and parts of frames, that nobody here understands."""
        self.paused = False
        self._flags = endpoint.flags
        self._route = endpoint.route(model)
        self._name = f"{endpoint.provider}:{model}"
        self._model = model
        self._id: str | None = None
        self._created = 0
        self._started = False
        self._done = False
        self._finish: str | None = None
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._refusal: list[str] = []
        self._details = ReasoningDetails()
        self._calls = ChatCalls()
        self._joiner = SurrogateJoiner(_GROWS)
        self._usage = Usage()
        self._raw_usage: dict[str, Any] | None = None
        self._held = 0

    @property
    def passes(self) -> tuple[ModelPass, ...]:
        """Providers of this dialect never report more than one run."""
        return ()

    @property
    def complete(self) -> bool:
        """Whether the provider has said why the reply ended. A ``[DONE]`` without a reason is a reply that was cut."""
        return self._finish is not None

    def feed(self, frame: Frame) -> list[StreamEvent]:
        """Translate a frame. Raises a `ModelError` if the frame reports an error."""
        data = frame.data
        if data[:1] != b"{":
            data = data.strip()
            if not data:
                return []
            if data == b"[DONE]":
                self._done = True
                events: list[StreamEvent] = []
                if self._started and "done_ends" in self._flags:
                    self._close("stop", events)
                return events
        if self._done:
            self.ignored += 1
            return []
        if not frame.event and not self._joiner.active and (known := usual(data)) is not None:
            return self._usual(known)
        chunk = self._joiner.parse(data)
        if not isinstance(chunk, dict):
            self.ignored += 1
            return []
        return self._chunk(cast("dict[str, Any]", chunk), failed=frame.event == "error")

    def read_body(self, body: bytes) -> ModelReply:
        """The reply in a body that did not come as a stream: it is whole because it can be read.

        Words need no reason why they end. Calls do: without one, nobody says that their arguments are all there.
        """
        plain = plain_reply(body, self._model, _usage)
        if plain is not None:
            return plain
        said = parse_json(body)
        if isinstance(said, list) and len(cast("list[Any]", said)) == 1:
            said = cast("list[Any]", said)[0]
        if not isinstance(said, dict):
            raise _bad("the body is no JSON object")
        chunk = cast("dict[str, Any]", said)
        choices = as_list(chunk.get("choices"))
        if not choices and not chunk.get("error") and not is_error_frame(chunk):
            raise _bad("the body has no choices")
        for choice in choices:
            _number_calls(as_dict(as_dict(choice).get("message")))
        self._chunk(chunk, failed=False)
        if self._finish is None and not self._calls.all:
            self._close("stop", [])
        return self.finish()

    def finish(self) -> ModelReply:
        """Return the whole reply. Raises `StreamCut` if the terminal frame has not come."""
        if self._finish is None:
            raise StreamCut(self._name)
        self._end_texts([])
        calls = [call.whole(self._route) for call in self._calls.all]
        refusal = "".join(self._refusal)
        parts: list[Part] = [*self._reasoning()]
        if self._text:
            parts.append(Text("".join(self._text)))
        if refusal:
            parts.append(Refusal(refusal))
        parts += calls
        finish = _finished(self._finish, calls=bool(calls), refused=bool(refusal))
        usage = self._joiner.repair(self._raw_usage)
        return ModelReply(tuple(parts), finish, self._usage, self._model, raw_usage=usage, response_id=self._id)

    def _chunk(self, chunk: dict[str, Any], *, failed: bool) -> list[StreamEvent]:
        error = chunk.get("error")
        if error or failed:
            raise classify_stream_error(self._joiner.repair(error or chunk))
        choices = chunk.get("choices")
        usage = chunk.get("usage") or as_dict(chunk.get("x_groq")).get("usage")
        if not isinstance(choices, list) and not usage:
            if is_error_frame(chunk):
                raise classify_stream_error(self._joiner.repair(chunk))
            self.ignored += 1
            return []
        events: list[StreamEvent] = []
        self._begin(chunk.get("id"), chunk.get("model"), chunk.get("created"), events)
        if isinstance(usage, dict):
            self._raw_usage = cast("dict[str, Any]", usage)
        for choice in as_list(choices):
            self._choice(as_dict(choice), events)
        if isinstance(usage, dict):
            self._count(cast("dict[str, Any]", usage), events)
        return events

    def _usual(self, chunk: Chunk) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if self._id is None:
            self._begin(chunk.id, chunk.model, chunk.created, events)
        if chunk.usage:
            self._raw_usage = chunk.usage
        for choice in chunk.choices:
            delta = choice.delta
            thought = delta.reasoning_content or delta.reasoning
            if thought:
                self._say(self._thoughts, "thoughts", thought, ReasoningChunk, events)
            if delta.content:
                self._say(self._text, "text", delta.content, TextChunk, events)
            for piece in delta.tool_calls or ():
                function = piece.function
                name, more = ("", "") if function is None else (function.name or "", function.arguments or "")
                call = self._addressed(piece.index, piece.id or "", name, more)
                if call is not None:
                    self._grow(call, more, events)
            if choice.finish_reason:
                self._close(choice.finish_reason, events)
        if chunk.usage:
            self._count(chunk.usage, events)
        return events

    def _begin(self, id: Any, model: Any, created: Any, events: list[StreamEvent]) -> None:  # noqa: ANN401  any JSON value
        if not self._started:
            self._started = True
            self._model = as_text(model)[:1_000] or self._model
            events.append(StreamStart(self._model))
        if self._id is None:
            self._id = as_text(id)[:1_000] or None
            self._created = unix_seconds(created)

    def _choice(self, choice: dict[str, Any], events: list[StreamEvent]) -> None:
        if choice.get("index") not in (0, None):
            self.ignored += 1
            return
        if choice.get("error"):
            raise classify_stream_error(self._joiner.repair(choice["error"]))
        said = choice.get("delta")
        if said is None and not (self._text or self._refusal or self._calls.all):
            said = choice.get("message")  # some send it instead of a delta; those who send both repeat themselves
        if isinstance(said, dict):
            self._take(cast("dict[str, Any]", said), events)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._close(reason, events)
        usage = choice.get("usage")
        if isinstance(usage, dict):
            self._count(cast("dict[str, Any]", usage), events)

    # -- text

    def _take(self, said: dict[str, Any], events: list[StreamEvent]) -> None:
        details = said.get("reasoning_details")
        thought = reasoning_text(said)
        if details:
            self._keep_details(as_list(details))
            thought = thought or details_text(as_list(details))
        if thought:
            self._say(self._thoughts, "thoughts", thought, ReasoningChunk, events)
        content = said.get("content")
        if content:
            self._content(content, events)
        audio = as_dict(said.get("audio"))
        if audio:
            self._say(self._text, "text", as_text(audio.get("transcript")), TextChunk, events)
        self.ignored += bool(audio.get("data")) + len(as_list(said.get("images")))  # what is heard and seen of it
        refusal = said.get("refusal")
        if refusal and isinstance(refusal, str):
            self._say(self._refusal, "refusal", refusal, TextChunk, events)
        calls = said.get("tool_calls")
        if calls:
            for fragment in as_list(calls):
                self._fragment(as_dict(fragment), events)
        old = said.get("function_call")
        if isinstance(old, dict):
            self._fragment({"index": 0, "function": old}, events)

    def _content(self, content: Any, events: list[StreamEvent]) -> None:  # noqa: ANN401  any JSON value
        if isinstance(content, str):
            self._say(self._text, "text", content, TextChunk, events)
            return
        for item in as_list(content) or [content]:
            part = {"type": "text", "text": item} if isinstance(item, str) else as_dict(item)
            match part.get("type"):
                case "text":
                    self._say(self._text, "text", as_text(part.get("text")), TextChunk, events)
                case "thinking":
                    self._say(self._thoughts, "thoughts", thought_text(part.get("thinking")), ReasoningChunk, events)
                case _:
                    self.ignored += 1

    def _say(
        self,
        kept: list[str],
        place: str,
        text: str,
        chunk: Callable[[str], StreamEvent],
        events: list[StreamEvent],
    ) -> None:
        if self._joiner.active:
            text = self._joiner.join(place, text)
        if text:
            self._hold(len(text))
            kept.append(text)
            events.append(chunk(text))

    def _end_texts(self, events: list[StreamEvent]) -> None:
        """Half a character at the end of a text has no other half any more."""
        for kept, place, chunk in (
            (self._thoughts, "thoughts", ReasoningChunk),
            (self._text, "text", TextChunk),
            (self._refusal, "refusal", TextChunk),
        ):
            rest = self._joiner.flush(place)
            if rest:
                kept.append(rest)
                events.append(chunk(rest))

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > MAX_REPLY:
            raise ModelError(f"the reply is longer than {MAX_REPLY:,} characters", kind="bad_frame")

    def _keep_details(self, details: list[Any]) -> None:
        if "send_reasoning_details" not in self._flags:
            return
        for item in details:
            if detail := as_dict(item):
                self._hold(encoded_size(detail))
                self._details.add(detail)

    def _reasoning(self) -> Iterable[Reasoning]:
        text = "".join(self._thoughts)
        if self._details:
            yield Reasoning(text, {"details": self._joiner.repair(self._details.all())}, self._route)
        elif text:
            field = next((field for flag, field in _SENT_AS if flag in self._flags), None)
            yield Reasoning(text) if field is None else Reasoning(text, {"field": field}, self._route)

    # -- calls

    def _fragment(self, fragment: dict[str, Any], events: list[StreamEvent]) -> None:
        custom = isinstance(fragment.get("custom"), dict)
        function = as_dict(fragment.get("custom") if custom else fragment.get("function"))
        name, id = as_text(function.get("name")), as_text(fragment.get("id"))
        came: Any = function.get("input") if custom else function.get("arguments")
        index = fragment.get("index")
        call = self._addressed(index if type(index) is int else None, id, name, came)
        if call is None:
            return
        call.custom = call.custom or custom
        if fragment.get("extra_content") is not None:
            call.extra = self._joiner.repair(fragment["extra_content"])
        # Some send the arguments as the object itself.
        more = (
            came
            if isinstance(came, str)
            else encode_json(self._joiner.repair(came)).decode()
            if isinstance(came, dict)
            else ""
        )
        self._grow(call, more, events)

    def _addressed(self, index: int | None, id: str, name: str, came: object) -> ChatCall | None:
        """The call that a fragment belongs to, with its id and its name; None after the end of the calls."""
        if self._finish is not None:
            if not name or self._calls.all or _FINISHES.get(self._finish, "stop") != "stop":
                self.ignored += 1
                return None
            self._finish = None  # some end each piece: a call that begins now waits for an end of its own
        call = self._calls.addressed(index, id, name, came)
        call.theirs = call.theirs or id
        call.name = name if not call.name or name == call.name else call.name + name
        if not call.id:
            self._hold(len(id) + len(name))
        return call

    def _grow(self, call: ChatCall, more: str, events: list[StreamEvent]) -> None:
        if more and self._joiner.active:
            more = self._joiner.join(call, more)
        if more:
            self._hold(len(more))
            call.arguments.append(more)
        if call.id:
            if more:
                events.append(CallChunk(call.id, more))
        elif call.name and (self._id or self._created or not self._calls.needs_id(call)):
            self._show(call, events)

    def _show(self, call: ChatCall, events: list[StreamEvent]) -> None:
        # An id that is made up must not be that of a call of an earlier reply, nor depend on anything but what came.
        # Where the reply has neither a name nor a date, it is told apart by all that it says, at its end.
        told: tuple[str, ...] = ()
        if self._calls.needs_id(call):
            said = (self._id or "", str(self._created), "".join(self._thoughts), "".join(self._text))
            told = (*said, str(_usage(self._raw_usage or {})))
        self._calls.identify(call, *told)
        events.append(CallStart(call.id, call.name))
        if call.arguments:
            events.append(CallChunk(call.id, "".join(call.arguments)))

    def _close(self, reason: str, events: list[StreamEvent]) -> None:
        if self._finish is not None:
            return
        failure = _FAILURES.get(reason)
        if failure is not None:
            raise StreamFailed(f"the provider ended the reply with {reason!r}", kind=failure, retryable=True)
        self._finish = reason
        self._end_texts(events)
        self.ignored += self._calls.settle()
        calls = self._calls.all
        if calls and _FINISHES.get(reason) == "output_limit" and not "".join(calls[-1].arguments).strip():
            calls[-1].cut = True
        for call in calls:
            call.name = call.name or "unknown"
            rest = self._joiner.flush(call)
            if rest:
                call.arguments.append(rest)
            if not call.id:
                self._show(call, events)
            elif rest:
                events.append(CallChunk(call.id, rest))
            events.append(CallEnd(call.whole(self._route)))

    # -- the rest

    def _count(self, usage: dict[str, Any], events: list[StreamEvent]) -> None:
        self._raw_usage = usage
        found = _usage(usage)
        if found != self._usage:
            self._usage = found
            events.append(StreamUsage(found))


_SENT_AS: Final = (
    ("send_reasoning_content", "reasoning_content"),
    ("send_reasoning", "reasoning"),
    ("send_thinking_parts", "thinking"),
)
_FINISHES: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "length": "output_limit",
    "max_tokens": "output_limit",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
    "refusal": "refusal",
    "model_length": "context_overflow",
    "model_context_window_exceeded": "context_overflow",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}
"""How a reply may end. What is not here is `stop`, or `tool_calls` where there are calls."""
_FAILURES: Final[Mapping[str, str]] = {
    "error": "server_error",
    "abort": "server_error",
    "network_error": "network",
    "insufficient_system_resource": "overloaded",
}
"""Reasons that say that the reply is not whole."""


def _finished(reason: str, *, calls: bool, refused: bool) -> FinishReason:
    finish = _FINISHES.get(reason.lower().partition(":")[0], "stop")
    if finish not in {"stop", "tool_calls"}:
        return finish
    if calls:
        return "tool_calls"  # many say "stop" here
    return "refusal" if refused else "stop"


def _number_calls(message: dict[str, Any]) -> None:
    """Each call of a message that came at once is one of its own, also where two have the same id."""
    for number, call in enumerate(as_list(message.get("tool_calls"))):
        as_dict(call)["index"] = number


def _usage(usage: dict[str, Any]) -> Usage:
    """The counters of all who speak this dialect, as ours."""
    prompt, output = token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens"))
    read = write = reasoning = 0
    if asked := as_dict(usage.get("prompt_tokens_details")):
        read = token_count(asked.get("cached_tokens"))
        write = token_count(asked.get("cache_write_tokens")) or token_count(asked.get("cache_creation_tokens"))
    if answered := as_dict(usage.get("completion_tokens_details")):
        reasoning = token_count(answered.get("reasoning_tokens"))
    read = read or token_count(usage.get("prompt_cache_hit_tokens")) or token_count(usage.get("cached_tokens"))
    reasoning = reasoning or token_count(usage.get("reasoning_tokens"))
    if reasoning and token_count(usage.get("total_tokens")) == prompt + output + reasoning:
        output += reasoning  # theirs does not include it
    return Usage(max(prompt - read - write, 0), output, read, write, min(reasoning, output))


def _bad(message: str) -> ModelError:
    return ModelError(message, kind="bad_frame", retryable=True)


_OUTSIDE: Final = re.compile(r'["{}]')
_IN_TEXT: Final = re.compile(r'["\\]')
_FEW: Final = 4
"""Pieces in which "null" may come."""


class ObjectEndDetector:
    """How far the pieces of a text have been looked at, and whether they end an object."""

    __slots__ = ("_depth", "_escaped", "_over", "_quoted", "_seen", "_whole")

    def __init__(self) -> None:
        self._seen = 0
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._over = False
        """Whether as many braces were closed as were opened."""
        self._whole: bool | None = None
        """Whether that is an object; None as long as nobody had to read it."""

    def reached(self, pieces: list[str]) -> bool:
        """Whether `pieces`, which only ever grow at their end, are an object, or the null that stands for an empty one.

        Each piece is looked at once, and the text is read once.
        """
        while self._seen < len(pieces):
            self._look_at(pieces[self._seen])
            self._seen += 1
        if not self._over:
            return len(pieces) <= _FEW and "".join(pieces).strip() == "null"
        if self._whole is None:
            self._whole = parse_arguments("".join(pieces))[0] is not None
        return self._whole

    def _look_at(self, piece: str) -> None:
        place = 0
        if self._escaped and piece:
            place, self._escaped = 1, False
        while not self._over:
            found = (_IN_TEXT if self._quoted else _OUTSIDE).search(piece, place)
            if found is None:
                return
            place = found.end()
            match found[0]:
                case '"':
                    self._quoted = not self._quoted
                case "\\":
                    self._escaped = place == len(piece)
                    place += 1
                case "{":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    self._over = self._depth <= 0
        if piece[place:].strip():
            self._whole = False  # nothing may follow an object


_GROWING: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The kinds of details that come in pieces, and the field in which they grow. Encrypted ones come whole."""
_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
"""Where endpoints tell what a model thinks. Those who fill two of them repeat themselves."""


class ReasoningDetails:
    """The details of a reply, in the order in which they began."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[tuple[dict[str, Any], list[str]]] = []
        """Each without the text that grows, and the pieces of that."""

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, detail: dict[str, Any]) -> None:
        """Take a detail, or the next piece of the last one."""
        if not self._kept or not _continues(self._kept[-1][0], detail):
            self._kept.append(({}, []))
        kept, pieces = self._kept[-1]
        growing = _GROWING.get(as_text(detail.get("type")))
        for field, value in detail.items():
            if field == growing and isinstance(value, str):
                pieces.append(value)
                kept[field] = ""
            elif (value is not None and not (field == growing and pieces)) or field not in kept:
                kept[field] = value

    def all(self) -> list[dict[str, Any]]:
        """The details as they came, each whole."""
        return [{**kept, _GROWING[kept["type"]]: "".join(pieces)} if pieces else kept for kept, pieces in self._kept]


def _continues(last: dict[str, Any], detail: dict[str, Any]) -> bool:
    """Whether a detail is the next piece of the last one."""
    kind = as_text(detail.get("type"))
    if kind not in _GROWING or last.get("type") != kind or last.get("index") != detail.get("index"):
        return False
    return last.get("id") is None or detail.get("id") is None or last["id"] == detail["id"]


def details_text(details: list[Any]) -> str:
    """What details say that can be read."""
    found = [as_dict(detail) for detail in details]
    return "".join([as_text(detail.get(_GROWING.get(as_text(detail.get("type")), ""))) for detail in found])


def reasoning_text(said: dict[str, Any]) -> str:
    """What a message, or a piece of one, tells of the thoughts of the model."""
    return thought_text(next((said[name] for name in _FIELDS if said.get(name)), ""))


def thought_text(thought: Any) -> str:  # noqa: ANN401  any JSON value
    """A thought that may be told as a text, as an object with one, or as a list of such."""
    if isinstance(thought, str):
        return thought
    told = as_dict(thought)
    if told:
        return as_text(told.get("text")) or as_text(told.get("content"))
    return "".join([as_text(as_dict(part).get("text")) for part in as_list(thought)])


def encoded_size(detail: dict[str, Any]) -> int:
    """How much room a detail takes, in bytes."""
    try:
        return len(encode_json(detail))
    except JSON_ERRORS:  # half a character
        return len(encode_json(repair_surrogates(detail)))
