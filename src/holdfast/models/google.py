"""Google generateContent: Gemini on its own API, on Vertex AI, and behind gateways that speak the same. Pure.

**Replay data.** What Google wants back is kept in `.replay` of the part it came with, and sent to the route that made
it and to no other:

- ``{"thoughtSignature": s}`` on a `ToolCall`, and on a `Reasoning` that is a signed thought. Thoughts without a
  signature are summaries for people; they are not sent back.
- ``{"thoughtSignature": s, "of": "text"}`` on an empty `Reasoning`: the signature of the `Text` before it.
- ``{"part": {...}}`` on an empty `Reasoning`: a part of Google's own (code that ran there and its result, media that
  the model made, a signature on an empty text), sent back as it came.
- ``{"aside": {...}}`` on an empty `Reasoning`: what was said about the reply and has no place in a request (grounding,
  citations); it is kept for the host application and never sent.

**Ids.** Gemini gives ids to its calls, but not everywhere. A call without one gets an id that begins with ``noid_``;
such an id never goes out, and results are then told apart by name and order.

**Flags** of an endpoint:

==============  =======================================================================================================
``whole_url``   The base URL holds all that stands before ``/models/...``: version, project, publisher (Vertex AI).
``gemini2``     The models are of the second generation, whatever their names are. That is assumed of names that begin
                with ``gemini-1`` or ``gemini-2``, and means: thinking is measured by a budget instead of a level, no
                answer by schema beside tools (the shape is told in the instructions), no media inside the results of
                tools (they follow in a content of their own), and calls of other models need no signature.
==============  =======================================================================================================
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote, urlencode

import msgspec

from holdfast.errors import ContextOverflow, InvalidArgument, ModelError, StreamCut
from holdfast.messages import (
    AssistantMessage,
    Attachment,
    CallChunk,
    CallEnd,
    CallStart,
    FinishReason,
    ModelReply,
    Part,
    Reasoning,
    ReasoningChunk,
    Refusal,
    StreamStart,
    StreamUsage,
    Text,
    TextChunk,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
)
from holdfast.models.arrays import ArraySplitter
from holdfast.models.waiting import asked_in_headers
from holdfast.models.wire import WireRequest, bounded, encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.messages import Effort, Message, ModelRequest, OutputSpec, Settings, StreamEvent, UserMessage
    from holdfast.models.wire import Endpoint, Frame

MAX_REPLY: Final = 64 * 1024 * 1024
"""Longest reply, in bytes of all its frames."""
NO_ID: Final = "noid_"
"""How the id of a call begins to which Google gave none."""
FOREIGN: Final = "skip_thought_signature_validator"
"""What Google takes in place of the signature of a call that another model made."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final[Callable[[bytes], Any]] = msgspec.json.Decoder().decode

_LEVELS: Final[dict[Effort, str]] = {
    "none": "MINIMAL",  # the least that there is: thinking can't be switched off
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
}
_BUDGETS: Final[dict[Effort, int]] = {"none": 0, "minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576}
_CHOICES: Final = {"none": "NONE", "required": "ANY"}
_SHAPE: Final = "Give your final answer as JSON and nothing else. It must have the shape of this JSON schema:\n"

_TEXTUAL: Final = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml|x-yaml|toml|javascript)\b")
_IN_RESULTS: Final = re.compile(r"image/|application/pdf\b")
"""Media that may stand inside the result of a tool."""


class Google:
    """The dialect."""

    name = "google"

    @staticmethod
    def encode(endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
        route = endpoint.route(model)
        older = _older(endpoint, model)
        key = f"google{' gemini2' if older else ''} {route}"
        contents = encoded(request, key, lambda message: _content(message, route, request.files, older=older))
        dropped = encoded(request, f"{key} dropped", lambda message: b"-" * _foreign(message, route))
        body = _joined_body(list(filter(None, contents)), _encode(_rest(request, older=older)))
        headers = {"content-type": "application/json"}
        return WireRequest(_path(endpoint, model), body, headers, sum(map(len, dropped)))

    @staticmethod
    def fold(endpoint: Endpoint, model: str) -> GoogleFold:
        return GoogleFold(endpoint, model)

    @staticmethod
    def whole(endpoint: Endpoint, model: str, body: bytes) -> ModelReply:
        fold = GoogleFold(endpoint, model)
        for frame in ArraySplitter(MAX_REPLY).feed(body):
            fold.feed(frame)
        return fold.finish()

    @staticmethod
    def error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        return _failure(status, headers, _error_in(body), body)


DIALECT: Final = Google()


# ---- a request -------------------------------------------------------------------------------------------------------


def _older(endpoint: Endpoint, model: str) -> bool:
    return "gemini2" in endpoint.flags or model.rpartition("/")[2].startswith(("gemini-1", "gemini-2"))


def _path(endpoint: Endpoint, model: str) -> str:
    named = model if "/" in model else f"models/{model}"
    version = "" if "whole_url" in endpoint.flags else "/v1beta"
    query = urlencode({"alt": "sse", **endpoint.query})
    return f"{version}/{quote(named)}:streamGenerateContent?{query}"


def _joined_body(contents: list[bytes], rest: bytes) -> bytes:
    """The conversation and the fields of the object `rest`, copied once."""
    end = b"]," + rest[1:] if len(rest) > 2 else b"]}"
    if not contents:
        return b'{"contents":[' + end
    contents[0] = b'{"contents":[' + contents[0]
    contents[-1] += end
    return b",".join(contents)


def _rest(request: ModelRequest, *, older: bool) -> dict[str, Any]:
    """All but the conversation."""
    settings = request.settings
    extra = dict(settings.extra or {})
    if "contents" in extra:
        raise InvalidArgument("extra", extra["contents"], "any field but 'contents', which is the conversation itself,")
    tools = _tools(request) + _array(extra.pop("tools", None))
    # The second generation answers by schema or with tools, not both: there the shape is a matter of words.
    told = request.output if older and tools else None
    schema = None if told else request.output
    system = [{"text": request.instructions}] if request.instructions else []
    if told:
        system.append({"text": _SHAPE + _encode(told.schema).decode()})
    config = {**_config(settings, schema, older=older), **_object(extra.pop("generationConfig", None))}
    choice = _CHOICES.get(settings.tool_choice) if tools else None
    calling = {"functionCallingConfig": {"mode": choice}} if choice else {}
    fields = {
        "systemInstruction": {"parts": system} if system else None,
        "tools": tools,
        "toolConfig": {**calling, **_object(extra.pop("toolConfig", None))},
        "generationConfig": config,
    }
    return {name: value for name, value in fields.items() if value} | extra


def _tools(request: ModelRequest) -> list[Any]:
    declared = [
        {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
        for tool in request.tools
    ]
    return [{"functionDeclarations": declared}] if declared else []


def _config(settings: Settings, output: OutputSpec | None, *, older: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "maxOutputTokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "seed": settings.seed,
        "stopSequences": settings.stop or None,
        "thinkingConfig": _thinking(settings.effort, older=older) if settings.effort else None,
    }
    if output is not None:
        fields["responseMimeType"] = "application/json"
        fields["responseJsonSchema"] = output.schema
    return {name: value for name, value in fields.items() if value is not None}


def _thinking(effort: Effort, *, older: bool) -> dict[str, Any]:
    shown = effort != "none"
    if older:
        return {"thinkingBudget": _BUDGETS[effort], "includeThoughts": shown}
    return {"thinkingLevel": _LEVELS[effort], "includeThoughts": shown}


def _content(message: Message, route: str, files: Mapping[str, bytes], *, older: bool) -> bytes:
    """One message as a content, or as two of them; nothing when there is nothing to send."""
    if type(message) is AssistantMessage:
        parts = _model_parts(message, route, files, signed=not older)
        return _encode({"role": "model", "parts": parts}) if parts else b""
    if type(message) is ToolMessage:
        return _result_content(message, files, older=older)
    parts = _user_parts(cast("UserMessage", message), files)
    return _encode({"role": "user", "parts": parts}) if parts else b""


def _foreign(message: Message, route: str) -> int:
    """How many parts hold replay data of another route."""
    if type(message) is not AssistantMessage:
        return 0
    held = [part for part in message.parts if type(part) in {Reasoning, ToolCall}]
    return sum(getattr(part, "replay", None) is not None and getattr(part, "route", None) != route for part in held)


def _user_parts(message: UserMessage, files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        if type(part) is Attachment:
            parts.extend(_attached(part, files))
        elif type(part) is Text and part.text:
            parts.append({"text": part.text})
    return parts


def _model_parts(
    message: AssistantMessage, route: str, files: Mapping[str, bytes], *, signed: bool
) -> list[dict[str, Any]]:
    """What the model said. With `signed`, the first call that another model made says that it has no signature."""
    parts: list[dict[str, Any]] = []
    last: Part | None = None
    for part in message.parts:
        match part:
            case Text(text) | Refusal(text):
                # Why the provider's filter stopped a reply is nothing that the model said.
                if text and not (type(part) is Refusal and message.finish == "content_filter"):
                    parts.append({"text": text})
            case Reasoning():
                _replayed(part, route, parts, after_text=type(last) is Text)
            case ToolCall():
                parts.append(_call(part, route, bare=not signed))
                signed = False
            case Attachment():
                parts.extend(_attached(part, files))
        last = part
    return parts


def _replayed(part: Reasoning, route: str, parts: list[dict[str, Any]], *, after_text: bool) -> None:
    replay = _object(part.replay) if part.route == route else {}
    signature = replay.get("thoughtSignature")
    if "part" in replay:
        parts.append(replay["part"])
    elif replay.get("of") == "text":
        if after_text and parts:
            parts[-1]["thoughtSignature"] = signature
        else:
            parts.append({"text": "", "thoughtSignature": signature})
    elif signature:
        parts.append({"text": part.text, "thought": True, "thoughtSignature": signature})


def _call(call: ToolCall, route: str, *, bare: bool) -> dict[str, Any]:
    """A call as it came. What was no JSON object goes back as an empty one; its result says what was wrong."""
    part: dict[str, Any] = {"functionCall": {**_id(call.id), "name": call.name, "args": call.arguments or {}}}
    own = call.route == route
    signature = _object(call.replay).get("thoughtSignature") if own else None
    if signature:
        part["thoughtSignature"] = signature
    elif not own and not bare:
        part["thoughtSignature"] = FOREIGN
    return part


def _id(id: str) -> dict[str, str]:
    return {} if not id or id.startswith(NO_ID) else {"id": id}


def _result_content(message: ToolMessage, files: Mapping[str, bytes], *, older: bool) -> bytes:
    """The results in one content; media that can't stand inside them follow in another."""
    parts: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    for result in message.results:
        said, media = _result(result, files)
        inside = [] if older else [item for item in media if _IN_RESULTS.match(item.media_type)]
        for item in media:
            if item not in inside:
                beside.extend(_attached(item, files))
        answer: dict[str, Any] = {**_id(result.call_id), "name": result.name, "response": said}
        if inside:
            answer["parts"] = [_inline(item, files) for item in inside]
        parts.append({"functionResponse": answer})
    contents = [_encode({"role": "user", "parts": some}) for some in (parts, beside) if some]
    return b",".join(contents)


def _result(result: ToolResult, files: Mapping[str, bytes]) -> tuple[dict[str, Any], list[Attachment]]:
    """What a call came to, as an object, and the media that belong to it."""
    media: list[Attachment] = []

    def told(value: Any) -> Any:  # noqa: ANN401  any JSON value
        attachment = _attachment(value, files)
        if attachment is None:
            return value
        if (words := _words(attachment, files)) is not None:
            return words
        media.append(attachment)
        return f"[attachment: {attachment.name or attachment.media_type}]"

    content = result.content
    said = [told(item) for item in cast("list[Any]", content)] if isinstance(content, list) else told(content)
    return {"output" if result.state == "ok" else "error": said}, media


def _attachment(value: Any, files: Mapping[str, bytes]) -> Attachment | None:  # noqa: ANN401  any JSON value
    """The attachment that a value of a tool stands for: it was recorded as JSON, and its bytes are here."""
    if type(value) is Attachment:
        return value
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    if fields.get("type") != "attachment":
        return None
    try:
        found = msgspec.convert(fields, Attachment)
    except msgspec.ValidationError:
        return None
    return found if found.digest in files else None


def _attached(attachment: Attachment, files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    words = _words(attachment, files)
    if words is None:
        return [_inline(attachment, files)]
    name = [{"text": f"{attachment.name}:"}] if attachment.name else []
    return [*name, {"text": words}]


def _words(attachment: Attachment, files: Mapping[str, bytes]) -> str | None:
    """The text of a file that is text."""
    if not _TEXTUAL.match(attachment.media_type):
        return None
    try:
        return _bytes(attachment, files).decode()
    except UnicodeDecodeError:
        return None


def _inline(attachment: Attachment, files: Mapping[str, bytes]) -> dict[str, Any]:
    data = base64.b64encode(_bytes(attachment, files)).decode()
    return {"inlineData": {"mimeType": attachment.media_type, "data": data}}


def _bytes(attachment: Attachment, files: Mapping[str, bytes]) -> bytes:
    try:
        return files[attachment.digest]
    except KeyError:
        message = f"the bytes of the attachment {attachment.digest} are not part of the request"
        raise ModelError(message, kind="bad_request") from None


# ---- a response ------------------------------------------------------------------------------------------------------

_FINISH: Final[dict[str, FinishReason]] = {
    "MAX_TOKENS": "output_limit",
    **dict.fromkeys(
        (
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
            *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
        ),
        "content_filter",
    ),
}
"""Why a reply ended, where it is not `stop`; a reason that nobody knows yet is a stop as well."""
_SPOILT: Final = frozenset(
    ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE")
)
"""The model went wrong. The calls that came are carried out; where none came, it is asked again."""
_UNSAID: Final = frozenset(("", "FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED"))
_ASIDES: Final = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
_KNOWN: Final = frozenset(("candidates", "promptFeedback", "usageMetadata", "modelVersion", "responseId"))


class GoogleFold:
    """One response: the last frame is the one in which a candidate has a reason to finish, or the prompt is blocked."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.ignored = 0
        self.paused = False
        self._name = f"{endpoint.provider}:{model}"
        self._model = model
        self._route = endpoint.route(model)
        self._fed = 0
        self._started = False
        self._response_id: str | None = None
        self._parts: list[Part] = []
        self._words: list[str] = []
        self._thinking = False
        """Whether `_words` are thoughts."""
        self._call: _OpenCall | None = None
        self._calls = 0
        self._asides: dict[str, Any] = {}
        self._raw: dict[str, Any] = {}
        self._usage = Usage()
        self._reason = ""
        self._why = ""

    def feed(self, frame: Frame) -> list[StreamEvent]:
        data = frame.data
        self._fed += len(data)
        if self._fed > MAX_REPLY:
            raise ModelError(f"the reply of {self._name} is larger than {MAX_REPLY:,} bytes", kind="bad_frame")
        body = _object(_parsed(data)) if data.strip() not in {b"", b"[DONE]"} else {}
        if error := body.get("error"):
            raise _failure(200, {}, _object(error), data)
        if _KNOWN.isdisjoint(body):
            self.ignored += 1
            return []
        return self._read(body)

    def finish(self) -> ModelReply:
        if not self._reason:
            raise StreamCut(self._name)
        self._close()
        if self._reason in _SPOILT and not self._calls:
            words = bounded(f"the model failed to make a call: {self._reason}: {self._why}".removesuffix(": "), 990)
            raise ModelError(words, kind="server_error", retryable=True)
        if self._reason == "MISSING_THOUGHT_SIGNATURE":
            raise ModelError(bounded(self._why or "a thought signature is missing", 990), kind="bad_request")
        finish = _FINISH.get(self._reason) or ("tool_calls" if self._calls else "stop")
        return ModelReply(
            (*self._parts, *self._rest(finish)),
            finish,
            self._usage,
            self._model,
            raw_usage=self._raw or None,
            response_id=self._response_id,
        )

    def _rest(self, finish: FinishReason) -> list[Part]:
        """What is told about a reply besides its own parts."""
        rest: list[Part] = []
        if finish == "content_filter" and self._why:
            rest.append(Refusal(self._why))
        if self._asides:
            rest.append(self._opaque({"aside": self._asides}))
        if not self._parts and not rest and finish == "output_limit" and self._usage.reasoning:
            # It thought until nothing was left, and showed none of it: that is another thing than no room at all.
            rest.append(Reasoning(""))
        return rest

    def _read(self, body: dict[str, Any]) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        self._model = _string(body.get("modelVersion")) or self._model
        self._response_id = _string(body.get("responseId")) or self._response_id
        if not self._started:
            self._started = True
            events.append(StreamStart(self._model))
        for candidate in _array(body.get("candidates")):
            self._candidate(_object(candidate), events)
        feedback = _object(body.get("promptFeedback"))
        if (blocked := _string(feedback.get("blockReason"))) not in _UNSAID:
            self._reason = "PROHIBITED_CONTENT"
            self._why = bounded(_string(feedback.get("blockReasonMessage")) or f"the prompt was blocked: {blocked}")
        if counts := _object(body.get("usageMetadata")):
            self._count(counts, events)
        return events

    def _candidate(self, candidate: dict[str, Any], events: list[StreamEvent]) -> None:
        if (candidate.get("index") or 0) != 0:
            self.ignored += 1
            return
        for part in _array(_object(candidate.get("content")).get("parts")):
            self._part(_object(part), events)
        self._asides.update({name: told for name in _ASIDES if (told := candidate.get(name))})
        if (reason := _string(candidate.get("finishReason"))) not in _UNSAID:
            if self._call is not None:
                self._end_call(events, whole=False)
            # A prompt that is blocked stays blocked, whatever the candidate says.
            self._why = self._why or bounded(_string(candidate.get("finishMessage")))
            self._reason = self._reason or reason

    def _part(self, part: dict[str, Any], events: list[StreamEvent]) -> None:
        signature = _string(part.get("thoughtSignature"))
        if isinstance(part.get("functionCall"), dict):
            self._function_call(_object(part["functionCall"]), signature, events)
        elif isinstance(text := part.get("text"), str):
            self._text(text, signature, events, thought=part.get("thought") is True)
        elif part.keys() - {"thought"}:
            self._close()
            self._parts.append(self._opaque({"part": part}))
        else:
            self.ignored += 1

    def _text(self, text: str, signature: str, events: list[StreamEvent], *, thought: bool) -> None:
        if text:
            events.append(ReasoningChunk(text) if thought else TextChunk(text))
        if thought is not self._thinking or signature:
            self._close()
        self._thinking = thought
        if not signature:
            if text:
                self._words.append(text)
        elif thought:
            self._parts.append(Reasoning(text, {"thoughtSignature": signature}, self._route))
        elif text:
            # What is signed is never joined with what is not.
            signed = self._opaque({"thoughtSignature": signature, "of": "text"})
            self._parts += (Text(text), signed)
        else:
            self._parts.append(self._opaque({"part": {"text": "", "thoughtSignature": signature}}))

    def _function_call(self, call: dict[str, Any], signature: str, events: list[StreamEvent]) -> None:
        name = _string(call.get("name"))
        if name:
            if self._call is not None:
                self._end_call(events)
            self._close()
            self._calls += 1
            self._call = _OpenCall(_string(call.get("id")) or self._made_up(), name)
            events.append(CallStart(self._call.id, name))
        elif self._call is None:
            self.ignored += 1
            return
        self._call.add(call, signature)
        if call.get("willContinue") is not True:
            self._end_call(events)

    def _end_call(self, events: list[StreamEvent], *, whole: bool = True) -> None:
        """The open call is over; when it was cut off in the middle, what came of it is no call to carry out."""
        if self._call is None:
            return
        call = self._call.made(self._route, whole=whole)
        self._call = None
        self._parts.append(call)
        text = call.malformed if call.arguments is None else _encode(call.arguments).decode()
        events += (CallChunk(call.id, text or ""), CallEnd(call))

    def _made_up(self) -> str:
        """The same id whenever the same response is read."""
        response = re.sub(r"[^A-Za-z0-9_-]", "", self._response_id or "")[:24]
        return f"{NO_ID}{response}_{self._calls}" if response else f"{NO_ID}{self._calls}"

    def _count(self, counts: dict[str, Any], events: list[StreamEvent]) -> None:
        """Numbers are of the whole response so far; a frame may leave out some of them."""
        self._raw |= {name: value for name, value in counts.items() if value is not None}
        usage = _usage(self._raw)
        if usage != self._usage:
            self._usage = usage
            events.append(StreamUsage(usage))

    def _opaque(self, replay: dict[str, Any]) -> Reasoning:
        return Reasoning("", replay, self._route)

    def _close(self) -> None:
        """What was said so far is a part of its own."""
        if self._words:
            words = "".join(self._words)
            self._parts.append(Reasoning(words) if self._thinking else Text(words))
            self._words = []


def _usage(counts: dict[str, Any]) -> Usage:
    cached = _number(counts.get("cachedContentTokenCount"))
    thoughts = _number(counts.get("thoughtsTokenCount"))
    return Usage(
        input=max(_number(counts.get("promptTokenCount")) - cached, 0) + _number(counts.get("toolUsePromptTokenCount")),
        output=_number(counts.get("candidatesTokenCount")) + thoughts,
        cache_read=cached,
        reasoning=thoughts,
    )


class _OpenCall:
    """A call whose arguments may come in pieces, each with the path of the place where it belongs."""

    def __init__(self, id: str, name: str) -> None:
        self.id = id
        self._name = name
        self._signature = ""
        self._arguments: dict[str, Any] = {}
        self._malformed: str | None = None
        self._path = ""
        self._pieces: list[str] = []
        """Of the string at `_path`, which is not whole yet."""

    def add(self, call: dict[str, Any], signature: str) -> None:
        """A frame's share."""
        self._signature = signature or self._signature
        arguments = call.get("args")
        if isinstance(arguments, dict):
            self._arguments |= cast("dict[str, Any]", arguments)
        elif arguments is not None:
            self._read(arguments)
        for piece in _array(call.get("partialArgs")):
            self._piece(_object(piece))

    def made(self, route: str, *, whole: bool) -> ToolCall:
        """The call."""
        self._flush()
        replay = {"thoughtSignature": self._signature} if self._signature else None
        malformed = self._malformed
        if malformed is None and not whole:
            malformed = _encode(self._arguments).decode()
        arguments = self._arguments if malformed is None else None
        return ToolCall(self.id, self._name, arguments, malformed, replay, route)

    def _read(self, arguments: Any) -> None:  # noqa: ANN401  whatever a provider sent
        """Arguments that are no object: an object in a string, or none at all."""
        text = arguments if isinstance(arguments, str) else _encode(arguments).decode()
        try:
            value: Any = _decode(text.encode()) if text.strip() else {}
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            self._arguments |= cast("dict[str, Any]", value)
        else:
            self._malformed = text

    def _piece(self, piece: dict[str, Any]) -> None:
        path = _string(piece.get("jsonPath"))
        if isinstance(text := piece.get("stringValue"), str):
            if path != self._path:
                self._flush()
                self._path = path
            self._pieces.append(text)
            if piece.get("willContinue") is not True:
                self._flush()
            return
        self._flush()
        for name in ("numberValue", "boolValue", "nullValue"):
            if name in piece:
                self._put(path, None if name == "nullValue" else piece[name])

    def _flush(self) -> None:
        if self._path:
            self._put(self._path, "".join(self._pieces))
        self._path = ""
        self._pieces = []

    def _put(self, path: str, value: Any) -> None:  # noqa: ANN401  any JSON value
        steps = _steps(path)
        if not steps or not _place(self._arguments, steps, value):
            self._malformed = bounded(f"{path}: {value}")


_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d{1,6})\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")
_DEEPEST: Final = 64


def _steps(path: str) -> list[str | int]:
    """The steps of a path such as ``$.orders[0]['a name']``; none where it can't be followed."""
    steps: list[str | int] = []
    position = 1 if path.startswith("$") else len(path) + 1
    while position < len(path) and len(steps) < _DEEPEST:
        found = _STEP.match(path, position)
        if found is None:
            return []
        plain, index, *quoted = found.groups()
        name = plain if plain is not None else next((text for text in quoted if text is not None), None)
        steps.append(int(index) if name is None else re.sub(r"\\(.)", r"\1", name))
        position = found.end()
    return steps if position == len(path) else []


def _place(root: dict[str, Any], steps: list[str | int], value: Any) -> bool:  # noqa: ANN401  any JSON value
    """Put `value` where `steps` lead; False where they lead nowhere. Lists grow by one element at a time."""
    here: Any = root
    for step, follows in zip(steps, [*steps[1:], None], strict=True):
        made: Any = value if follows is None else [] if isinstance(follows, int) else {}
        if isinstance(step, int):
            if not isinstance(here, list) or step > len(cast("list[Any]", here)):
                return False
            items = cast("list[Any]", here)
            if step == len(items):
                items.append(made)
            elif follows is None:
                items[step] = _joined(items[step], value)
            here = items[step]
        else:
            if not isinstance(here, dict):
                return False
            fields = cast("dict[str, Any]", here)
            fields[step] = _joined(fields.get(step), value) if follows is None else fields.get(step, made)
            here = fields[step]
    return True


def _joined(before: Any, value: Any) -> Any:  # noqa: ANN401  any JSON value
    """A string that went on after something else came in between is one string."""
    return before + value if isinstance(before, str) and isinstance(value, str) else value


# ---- errors ----------------------------------------------------------------------------------------------------------

_KINDS: Final = {
    "UNAUTHENTICATED": "authentication",
    "PERMISSION_DENIED": "permission",
    "NOT_FOUND": "not_found",
    "INVALID_ARGUMENT": "bad_request",
    "FAILED_PRECONDITION": "bad_request",
    "OUT_OF_RANGE": "bad_request",
    "UNIMPLEMENTED": "bad_request",
    "RESOURCE_EXHAUSTED": "rate_limited",
    "UNAVAILABLE": "overloaded",
    "DEADLINE_EXCEEDED": "timeout",
    "INTERNAL": "server_error",
    "UNKNOWN": "server_error",
    "DATA_LOSS": "server_error",
    "ABORTED": "server_error",
    "CANCELLED": "server_error",
}
_STATUSES: Final = {
    401: "authentication",
    402: "billing",
    403: "permission",
    404: "not_found",
    408: "timeout",
    409: "server_error",
    425: "server_error",
    429: "rate_limited",
    499: "server_error",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_REASONS: Final = {
    "API_KEY_INVALID": "authentication",
    "API_KEY_EXPIRED": "authentication",
    "ACCESS_TOKEN_EXPIRED": "authentication",
    "BILLING_DISABLED": "billing",
}
_RETRYABLE: Final = frozenset(("rate_limited", "overloaded", "timeout", "server_error"))
_OVERFLOW: Final = re.compile(
    r"token count.{0,80}exceeds|exceeds the maximum number of tokens|context (?:window|length)"
)
_UNPAID: Final = re.compile(r"enable billing|billing account|credits are depleted|spending cap")
_SECRET: Final = re.compile(r"AIza[\w-]{10,}|ya29\.[\w.-]{10,}|\bAQ\.[\w-]{20,}")
_DELAY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_MOST_WORDS: Final = 990


def _error_in(body: bytes) -> dict[str, Any]:
    """The error object of a body: alone, or as an element of an array."""
    try:
        value = _decode(body)
    except (ValueError, RecursionError):
        return {}
    for item in _array(value) or [value]:
        if error := _object(_object(item).get("error")):
            return error
    return {}


def _failure(status: int, headers: Mapping[str, str], error: dict[str, Any], body: bytes) -> ModelError:
    code = error.get("code")
    code = status if status >= 300 or not isinstance(code, int) else code
    named = {name.lower(): value for name, value in headers.items()}
    details = [_object(item) for item in _array(error.get("details"))]
    words = _string(error.get("message")) or body[:_MOST_WORDS].decode("utf-8", "replace").strip()
    words = _SECRET.sub("[key]", words) or f"HTTP {code}"
    kind = _kind(code, _string(error.get("status")), words, details)
    message = bounded(words, _MOST_WORDS)
    failed = ContextOverflow(message) if kind == "context_overflow" else ModelError(message, kind=kind)
    failed.retryable = kind in _RETRYABLE
    failed.status = status
    failed.request_id = _request_id(named, details)
    failed.retry_after = _retry_after(named, details)
    return failed


def _kind(code: int, status: str, words: str, details: list[dict[str, Any]]) -> str:
    reasons = [_REASONS[reason] for detail in details if (reason := _string(detail.get("reason"))) in _REASONS]
    if reasons:
        return reasons[0]
    kind = _KINDS.get(status) or _STATUSES.get(code) or ("bad_request" if 400 <= code < 500 else "server_error")
    lowered = words.lower()
    if kind == "bad_request" and _OVERFLOW.search(lowered):
        return "context_overflow"
    if kind == "bad_request" and "api key not valid" in lowered:
        return "authentication"
    if kind in {"bad_request", "rate_limited", "permission"} and _UNPAID.search(lowered):
        return "billing"
    return kind


def _request_id(headers: dict[str, str], details: list[dict[str, Any]]) -> str | None:
    told = [_string(detail.get("requestId")) for detail in details]
    found = headers.get("x-request-id") or headers.get("x-goog-request-id") or next(filter(None, told), "")
    return bounded(found, 200) or None


def _retry_after(headers: dict[str, str], details: list[dict[str, Any]]) -> float | None:
    """How long to wait, in seconds: the longest of what the header and the error say."""
    delays = [_DELAY.fullmatch(_string(detail.get("retryDelay"))) for detail in details]
    told = [asked_in_headers(headers), *(float(found.group(1)) for found in delays if found)]
    return max((seconds for seconds in told if seconds is not None), default=None)


# ---- values of whatever shape ----------------------------------------------------------------------------------------


def _parsed(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    try:
        return _decode(data)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"a frame is not JSON: {bounded(error, 200)}", kind="bad_frame", retryable=True) from None


def _object(value: Any) -> dict[str, Any]:  # noqa: ANN401  any JSON value
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _array(value: Any) -> list[Any]:  # noqa: ANN401  any JSON value
    return cast("list[Any]", value) if isinstance(value, list) else []


def _string(value: Any) -> str:  # noqa: ANN401  any JSON value
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int:  # noqa: ANN401  any JSON value
    """A count. Long numbers may come as text."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 16:
        return int(value)
    return min(max(int(value), 0), 2**53) if isinstance(value, int | float) else 0
