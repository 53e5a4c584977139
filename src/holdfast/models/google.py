"""The Google generateContent dialect: Gemini on its own API, on Vertex AI, and behind gateways.

**Replay data.** Data that Google wants back is kept in `.replay` of the part it came with, and goes only to the route
that made it:

- ``{"thoughtSignature": s}`` on a `ToolCall`, and on a `Reasoning` that is a signed thought. Thoughts without a
  signature are summaries for people; they are not sent back.
- ``{"thoughtSignature": s, "of": "text"}`` on an empty `Reasoning`: the signature of the `Text` before it.
- ``{"part": {...}}`` on an empty `Reasoning`: a part of Google's own (code that ran there and its result, media that
  the model made, a signature on an empty text), sent back as it came.
- ``{"aside": {...}}`` on an empty `Reasoning`: metadata of the reply without a place in a request (grounding,
  citations), kept for the host application and never sent.

**Ids.** Gemini gives ids to its calls, but not everywhere. A call without an id, or with the id of an earlier call of
the same reply, gets one that begins with ``noid_``. Such an id never goes out; Google then matches results by name and
order.

Models whose names begin with ``gemini-1`` or ``gemini-2``, and those of an endpoint with the flag ``gemini2``, belong
to the second generation: thinking has a budget instead of a level, an answer by schema does not go together with tools
(the schema is in the instructions), media do not go inside tool results (they follow in a content of their own), and
calls of other models need no signature.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import quote

from holdfast import messages as msg
from holdfast.errors import InvalidArgument, ModelError, StreamCut
from holdfast.errors.world import NotOffered
from holdfast.models import dialect
from holdfast.models import json_values as values
from holdfast.models.attachments import EMPTY_FILE, attachment_bytes, is_text_type, split_result, to_base64
from holdfast.models.contract import EFFORTS
from holdfast.models.errors import classify_stream_error
from holdfast.models.json_values import as_dict, as_list, as_text, clip_text, encode_json, token_count
from holdfast.models.schemas import schema_prompt, with_bare_choices
from holdfast.models.sse import ArraySplitter

FLAGS: Final = dialect.COMMON_FLAGS | {
    "whole_url": "the base URL holds everything before /models/...: version, project, publisher (Vertex AI)",
    "gemini2": "treat every model as one of the second generation",
}

# ==== requests ====

_LEVELS: Final = dict(zip(EFFORTS, ("MINIMAL", "MINIMAL", "LOW", "MEDIUM", "HIGH", "HIGH", "HIGH"), strict=True))
"""Thinking can't be switched off."""
_BUDGETS: Final = dict(zip(EFFORTS, (0, 512, 1_024, 8_192, 24_576, 24_576, 24_576), strict=True))
_CHOICES: Final = {"none": "NONE", "required": "ANY"}


def encode_request(endpoint: dialect.Endpoint, model: str, request: msg.ModelRequest) -> dialect.WireRequest:
    """Encode a request; the encoded messages are joined, not encoded again."""
    if request.settings.compact_at is not None:
        raise NotOffered("settings.compact_at", model, "this dialect has no field for it; leave it out")
    flags = endpoint.flags
    if model.rpartition("/")[2].startswith(("gemini-1", "gemini-2")):
        flags |= {"gemini2"}
    encoder = GoogleMessageEncoder(endpoint.route(model), flags, request)
    messages = encoder.encode_all()
    fields = encode_json(_fields(request, second_generation="gemini2" in flags))
    contents = b",".join([message for message in messages if message])
    body = b"".join((b'{"contents":[', contents, b"]," + fields[1:] if len(fields) > 2 else b"]}"))
    name = quote(model if "/" in model else f"models/{model}")
    version = "" if "whole_url" in endpoint.flags else "/v1beta"
    method, query = "streamGenerateContent", {"alt": "sse", **endpoint.query}
    if dialect.NO_STREAM in endpoint.flags:
        method, query = "generateContent", endpoint.query
    path = dialect.with_query(f"{version}/{name}:{method}", query)
    return dialect.WireRequest(path, body, {"content-type": "application/json"}, encoder.dropped)


@dialect.IdentityCache
def _declarations(tools: tuple[msg.ToolSpec, ...]) -> list[dict[str, Any]]:
    schemas = [with_bare_choices(tool.parameters) for tool in tools]
    return [
        {"name": tool.name, "description": tool.description, "parametersJsonSchema": schema}
        for tool, schema in zip(tools, schemas, strict=True)
    ]


def _fields(request: msg.ModelRequest, *, second_generation: bool) -> dict[str, Any]:
    """Make all fields but the messages."""
    settings, output = request.settings, request.output
    extra = dict(settings.extra or {})
    if "contents" in extra:
        raise InvalidArgument("extra", extra["contents"], "any field but 'contents', which is the conversation itself,")
    declarations = _declarations(request.tools)
    tools = [{"functionDeclarations": declarations}] if declarations else []
    tools += as_list(extra.pop("tools", None))
    system = [{"text": request.instructions}] if request.instructions else []
    if output is not None and second_generation and tools:
        # The second generation answers by schema or with tools, not both: the schema goes into the instructions.
        system.append({"text": schema_prompt(output.schema)})
        output = None
    config: dict[str, Any] = {
        "maxOutputTokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "seed": settings.seed,
        "stopSequences": settings.stop or None,
    }
    config = {name: value for name, value in config.items() if value is not None}
    if effort := settings.effort:
        amount = {"thinkingBudget": _BUDGETS[effort]} if second_generation else {"thinkingLevel": _LEVELS[effort]}
        config["thinkingConfig"] = {**amount, "includeThoughts": effort != "none"}
    if output is not None:
        config |= {"responseMimeType": "application/json", "responseJsonSchema": output.schema}
    choice = _CHOICES.get(settings.tool_choice) if tools else None
    calling = {"functionCallingConfig": {"mode": choice}} if choice else {}
    fields = {
        "systemInstruction": {"parts": system} if system else None,
        "tools": tools,
        "toolConfig": {**calling, **as_dict(extra.pop("toolConfig", None))},
        "generationConfig": {**config, **as_dict(extra.pop("generationConfig", None))},
    }
    return {name: value for name, value in fields.items() if value} | extra


# ---- messages ----

SKIP_SIGNATURE_CHECK: Final = "skip_thought_signature_validator"
"""Replaces the signature of a call that another model made."""
_IN_RESULTS: Final = re.compile(r"image/|application/pdf\b")
"""Media that a tool result may hold."""
_ACCEPTED: Final = re.compile(r"(?i)(?:image|audio|video|text)/|application/(?:pdf|rtf|x-javascript|x-python)\b")
"""Media that some model accepts. Others in a tool result are only named: a refusal would end the conversation."""


class GoogleMessageEncoder(dialect.MessageEncoder):
    """Encodes each message as its contents, joined by commas."""

    def encode(self, message: msg.Message) -> bytes:
        """Encode a message as one content or two; empty if it has no content to send."""
        if type(message) is msg.AssistantMessage:
            parts = self._model_parts(message)
            return encode_json({"role": "model", "parts": parts}) if parts else b""
        if type(message) is msg.ToolMessage:
            return self._results(message)
        parts = list[dict[str, Any]]()
        for part in cast("msg.UserMessage", message).parts:
            if type(part) is msg.Attachment:
                parts.extend(self._file_parts(part))
            elif type(part) is msg.Text and part.text:
                parts.append({"text": part.text})
        # Without a first user message Google refuses the conversation.
        return encode_json({"role": "user", "parts": parts or [{"text": dialect.EMPTY_MESSAGE}]})

    def _model_parts(self, message: msg.AssistantMessage) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        last: msg.Part | None = None
        # Only the first call of a message needs a signature.
        needs_signature = "gemini2" not in self._flags
        for part in message.parts:
            match part:
                case msg.Text(text) | msg.Refusal(text):
                    # The provider's reason for filtering a reply is nothing that the model said.
                    if text and not (type(part) is msg.Refusal and message.finish == "content_filter"):
                        parts.append({"text": text})
                case msg.Reasoning():
                    replay = self._own_replay(part)
                    signature = replay.get("thoughtSignature")
                    if "part" in replay:
                        parts.append(replay["part"])
                    elif replay.get("of") == "text":
                        if type(last) is not msg.Text or not parts:
                            parts.append({"text": ""})
                        parts[-1]["thoughtSignature"] = signature
                    elif signature:
                        parts.append({"text": part.text, "thought": True, "thoughtSignature": signature})
                case msg.ToolCall():
                    parts.append(self._call(part, needs_signature=needs_signature))
                    needs_signature = False
                case msg.Attachment():
                    parts.extend(self._file_parts(part))
            last = part
        return parts

    def _call(self, call: msg.ToolCall, *, needs_signature: bool) -> dict[str, Any]:
        """Encode a call. Malformed arguments go back as an empty object; the result explains the error."""
        part: dict[str, Any] = {"functionCall": {**_id(call.id), "name": call.name, "args": call.arguments or {}}}
        signature = self._own_replay(call).get("thoughtSignature")
        if signature:
            part["thoughtSignature"] = signature
        elif call.route != self._route and needs_signature:
            part["thoughtSignature"] = SKIP_SIGNATURE_CHECK
        return part

    def _results(self, message: msg.ToolMessage) -> bytes:
        """Encode the results in one content. Media that a result can't hold follow in another."""
        parts: list[dict[str, Any]] = []
        beside: list[dict[str, Any]] = []
        for result in message.results:
            said, media = self._result(result)
            response = {"output" if result.state == "ok" else "error": said}
            answer: dict[str, Any] = {**_id(result.call_id), "name": result.name, "response": response}
            for item in media:
                if _IN_RESULTS.match(item.media_type) and "gemini2" not in self._flags:
                    answer.setdefault("parts", []).append(self._inline_data(item))
                else:
                    beside.extend(self._file_parts(item))
            parts.append({"functionResponse": answer})
        return b",".join([encode_json({"role": "user", "parts": some}) for some in (parts, beside) if some])

    def _result(self, result: msg.ToolResult) -> tuple[Any, list[msg.Attachment]]:
        """Return the content of a result with its files replaced, and the media among them."""
        pieces = split_result(result, self._files, self._label)
        if not pieces:
            return result.content, []
        said = [piece.value for piece in pieces]
        files = [file for piece in pieces for file in piece.files]
        media = [file for file in files if self._file_text(file) is None and _ACCEPTED.match(file.media_type)]
        return said if isinstance(result.content, list | tuple) else said[0], media

    def _label(self, file: msg.Attachment) -> str:
        text = self._file_text(file)
        if text is not None:
            return text
        hidden = "" if _ACCEPTED.match(file.media_type) else " that can't be shown"
        return f"[attachment{hidden}: {file.name or file.media_type}]"

    def _file_parts(self, file: msg.Attachment) -> list[dict[str, Any]]:
        text = self._file_text(file)
        if text is None:
            return [self._inline_data(file)]
        name = [{"text": f"{file.name}:"}] if file.name else []
        return [*name, {"text": text or EMPTY_FILE}]

    def _file_text(self, file: msg.Attachment) -> str | None:
        if not is_text_type(file.media_type):
            return None
        try:
            return attachment_bytes(file, self._files).decode()
        except UnicodeDecodeError:
            return None

    def _inline_data(self, file: msg.Attachment) -> dict[str, Any]:
        return {"inlineData": {"mimeType": file.media_type, "data": to_base64(attachment_bytes(file, self._files))}}


def _id(id: str) -> dict[str, str]:
    return {} if not id or id.startswith(NO_ID_PREFIX) else {"id": id}


# ==== responses ====

NO_ID_PREFIX: Final = "noid_"
"""Begins the id of a call without an id from Google."""
_FILTERED: Final = (
    *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
    *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
)
_FINISHES: Final[Mapping[str, msg.FinishReason]] = {
    "MAX_TOKENS": "output_limit",
    **dict.fromkeys(_FILTERED, "content_filter"),
}
"""Other reasons are `stop`, or `tool_calls` if there are calls."""
_MALFORMED: Final = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE")
"""The model made a mistake. Its valid calls run; if there are none, the request is retried."""
_UNSPECIFIED: Final = ("", "FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED")
_TEXT: Final = "text"
"""The one text that grows at a time, for the joiner."""
_ASIDES: Final = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
_KNOWN_FIELDS: Final = frozenset(("candidates", "promptFeedback", "usageMetadata", "modelVersion", "responseId"))


class GoogleReader(dialect.ResponseReader):
    """Reads one response. The terminal frame has a finish reason, or reports a blocked prompt."""

    growing_fields = frozenset(("text", "stringValue"))

    def __init__(self, endpoint: dialect.Endpoint, model: str) -> None:
        super().__init__(endpoint, model)
        self._frame = b""
        self._response_id: str | None = None
        self._parts: list[msg.Part] = []
        self._words: list[str] = []
        self._thinking = False
        """True if `_words` are thoughts."""
        self._call: GoogleCall | None = None
        self._asides: dict[str, Any] = {}
        self._raw: dict[str, Any] = {}
        self._usage = msg.Usage()
        self._reason = ""
        self._said = False
        """True if any content came."""
        self._why = ""
        self._refusal = ""
        """The provider's message about a filtered reply, as it was shown."""

    @property
    def complete(self) -> bool:
        """True once a finish reason has come after some content. Usage may follow.

        Some servers send a finish reason with each frame, even before the first content.
        """
        return bool(self._reason) and self._said

    def feed(self, frame: dialect.Frame) -> list[msg.StreamEvent]:
        """Translate a frame. Raises a `ModelError` if the frame reports an error."""
        self._frame = data = frame.data
        self._room -= len(data)
        if self._room < 0:
            raise self._too_long()
        body = as_dict(self._joiner.parse(data)) if data.strip() not in {b"", b"[DONE]"} else {}
        if body.get("error"):
            raise classify_stream_error(self._joiner.repair(body))
        if _KNOWN_FIELDS.isdisjoint(body):
            return self._ignore()
        events: list[msg.StreamEvent] = []
        self._model = as_text(body.get("modelVersion")) or self._model
        self._response_id = as_text(body.get("responseId")) or self._response_id
        if not self._started:
            self._started = True
            events.append(msg.StreamStart(self._model))
        for candidate in as_list(body.get("candidates")):
            self._read_candidate(as_dict(candidate), events)
        feedback = as_dict(body.get("promptFeedback"))
        if (blocked := as_text(feedback.get("blockReason"))) not in _UNSPECIFIED:
            self._reason, self._said = "PROHIBITED_CONTENT", True
            self._why = clip_text(as_text(feedback.get("blockReasonMessage")) or f"the prompt was blocked: {blocked}")
        if self._why and not self._refusal and _FINISHES.get(self._reason) == "content_filter":
            self._refusal = self._why
            events.append(msg.TextChunk(self._why))
        if counts := as_dict(body.get("usageMetadata")):
            # Counters are totals; a frame may leave some out.
            self._raw |= {name: value for name, value in counts.items() if value is not None}
            if (usage := _usage(self._raw)) != self._usage:
                self._usage = usage
                events.append(msg.StreamUsage(usage))
        return events

    def read_body(self, body: bytes) -> msg.ModelReply:
        """Return the reply in a body that is not a stream: one object, or all frames in an array."""
        for frame in ArraySplitter().feed(body):
            self.feed(frame)
        return self.finish()

    def finish(self) -> msg.ModelReply:
        """Return the whole reply. Raises `StreamCut` if no finish reason or block was reported."""
        if not self._reason:
            raise StreamCut(self._name)
        self._end_text([])
        finish = _FINISHES.get(self._reason) or dialect.default_finish(self._parts)
        if self._reason in _MALFORMED and finish != "tool_calls":
            words = clip_text(f"the model failed to make a call: {self._reason}: {self._why}".removesuffix(": "), 990)
            raise ModelError(words, kind="server_error", retryable=True)
        if self._reason == "MISSING_THOUGHT_SIGNATURE":
            raise ModelError(clip_text(self._why or "a thought signature is missing", 990), kind="bad_request")
        parts = self._parts.copy()
        if self._refusal:
            parts.append(msg.Refusal(self._refusal))
        if self._asides:
            parts.append(self._opaque({"aside": self._joiner.repair(self._asides)}))
        if not parts and finish == "output_limit" and self._usage.reasoning:
            # The model used up the limit with hidden thoughts, which is not the same as an empty reply.
            parts.append(msg.Reasoning(""))
        raw = self._raw or None
        return msg.ModelReply(tuple(parts), finish, self._usage, self._model, raw, response_id=self._response_id)

    def _read_candidate(self, candidate: dict[str, Any], events: list[msg.StreamEvent]) -> None:
        if (candidate.get("index") or 0) != 0:
            self.ignored += 1
            return
        for part in map(as_dict, as_list(as_dict(candidate.get("content")).get("parts"))):
            self._said = True
            signature = as_text(part.get("thoughtSignature"))
            if isinstance(part.get("functionCall"), dict):
                self._read_call(part["functionCall"], signature, events)
            elif isinstance(text := part.get("text"), str):
                self._add_text(text, signature, events, thought=part.get("thought") is True)
            elif part.keys() - {"thought"}:
                self._end_text(events)
                self._parts.append(self._opaque({"part": self._joiner.repair(part)}))
            else:
                self.ignored += 1
        self._asides.update({name: told for name in _ASIDES if (told := candidate.get(name))})
        if (reason := as_text(candidate.get("finishReason"))) not in _UNSPECIFIED:
            self._end_call(events, whole=False)
            # A blocked prompt stays blocked, even with a candidate.
            self._why = self._why or clip_text(as_text(candidate.get("finishMessage")))
            self._reason = reason if self._reason in {"", "STOP"} else self._reason
        if self._reason:
            self._flush(events)

    def _add_text(self, text: str, signature: str, events: list[msg.StreamEvent], *, thought: bool) -> None:
        if thought is not self._thinking or signature:
            self._end_text(events)
        self._thinking = thought
        if self._joiner.active:
            text = self._joiner.join(_TEXT, text) + (self._joiner.flush(_TEXT) if signature else "")
        if text:
            events.append(msg.ReasoningChunk(text) if thought else msg.TextChunk(text))
        if not signature:
            if text:
                self._words.append(text)
        elif thought:
            self._parts.append(msg.Reasoning(text, {"thoughtSignature": signature}, self._route))
        elif text:
            # Signed text is never joined with unsigned text.
            self._parts += (msg.Text(text), self._opaque({"thoughtSignature": signature, "of": "text"}))
        else:
            self._parts.append(self._opaque({"part": {"text": "", "thoughtSignature": signature}}))

    def _read_call(self, call: dict[str, Any], signature: str, events: list[msg.StreamEvent]) -> None:
        name = as_text(call.get("name"))
        if name:
            self._end_call(events)
            self._end_text(events)
            id = self._unique_id(as_text(call.get("id")), len(self._ids), prefix=NO_ID_PREFIX)
            self._call = GoogleCall(id, name, self._joiner.repair)
            events.append(msg.CallStart(self._call.id, name))
        elif self._call is None:
            self.ignored += 1
            return
        self._call.add(call, signature)
        if call.get("willContinue") is not True:
            self._end_call(events)

    def _end_call(self, events: list[msg.StreamEvent], *, whole: bool = True) -> None:
        """End the open call. A call that is not `whole` is malformed, so that it does not run."""
        if self._call is None:
            return
        call = self._call.build(self._route, whole=whole)
        self._call = None
        self._parts.append(call)
        text = call.malformed if call.arguments is None else encode_json(call.arguments).decode()
        events += (msg.CallChunk(call.id, text or ""), msg.CallEnd(call))

    def _make_seed(self) -> str:
        return f"{self._response_id} {self._raw} {self._parts} {self._frame.decode('utf-8', 'replace')}"

    def _opaque(self, replay: dict[str, Any]) -> msg.Reasoning:
        return msg.Reasoning("", replay, self._route)

    def _flush(self, events: list[msg.StreamEvent]) -> None:
        """Show half a character that was held back."""
        if rest := self._joiner.flush(_TEXT):
            self._words.append(rest)
            events.append(msg.ReasoningChunk(rest) if self._thinking else msg.TextChunk(rest))

    def _end_text(self, events: list[msg.StreamEvent]) -> None:
        """Make a part of the text so far."""
        self._flush(events)
        if self._words:
            words = "".join(self._words)
            self._parts.append(msg.Reasoning(words) if self._thinking else msg.Text(words))
            self._words = []


def _usage(counts: dict[str, Any]) -> msg.Usage:
    cached, thoughts = _count(counts.get("cachedContentTokenCount")), _count(counts.get("thoughtsTokenCount"))
    asked, tools = _count(counts.get("promptTokenCount")), _count(counts.get("toolUsePromptTokenCount"))
    said = _count(counts.get("candidatesTokenCount"))
    return msg.Usage(max(asked - cached, 0) + tools, said + thoughts, cached, 0, thoughts)


def _count(value: Any) -> int:  # any JSON value
    """Read a count. Large ones may come as text."""
    if value is None:
        return 0
    return token_count(int(value[:30]) if isinstance(value, str) and value.isascii() and value.isdecimal() else value)


# ---- tool calls ----

_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d{1,6})\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")
_PATH: Final = re.compile(rf"\$(?:{_STEP.pattern}){{1,64}}")


class GoogleCall:
    """A tool call while it is streamed. Its arguments may come in pieces, each with its JSON path."""

    def __init__(self, id: str, name: str, clean: Callable[[Any], Any]) -> None:
        self.id = id
        self._clean = clean
        """Repairs lone surrogates in a value."""
        self._name = name
        self._signature = ""
        self._arguments: dict[str, Any] = {}
        self._malformed: str | None = None
        self._path = ""
        self._pieces: list[str] = []
        """Pieces of the string at `_path`."""

    def add(self, call: dict[str, Any], signature: str) -> None:
        self._signature = signature or self._signature
        arguments, malformed = values.arguments_from_value(self._clean(call.get("args")))
        self._arguments |= arguments or {}
        self._malformed = malformed or self._malformed
        for piece in as_list(call.get("partialArgs")):
            self._piece(as_dict(piece))

    def build(self, route: str, *, whole: bool) -> msg.ToolCall:
        self._flush()
        self._arguments = self._clean(self._arguments)
        replay = {"thoughtSignature": self._signature} if self._signature else None
        malformed = self._malformed
        if malformed is None and not whole:
            malformed = encode_json(self._arguments).decode()
        arguments = self._arguments if malformed is None else None
        return msg.ToolCall(self.id, self._name, arguments, malformed, replay, route)

    def _piece(self, piece: dict[str, Any]) -> None:
        path = as_text(piece.get("jsonPath"))
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

    def _put(self, path: str, value: Any) -> None:  # any JSON value
        steps = _parse_path(path)
        if not steps or not _insert(self._arguments, steps, value):
            self._malformed = clip_text(f"{path}: {value}")


def _parse_path(path: str) -> list[str | int]:
    """Parse a path such as ``$.orders[0]['a name']``; empty if it is invalid."""
    if not _PATH.fullmatch(path):
        return []
    steps = cast("list[tuple[str, str, str, str]]", _STEP.findall(path))
    return [int(index) if index else re.sub(r"\\(.)", r"\1", plain + one + two) for plain, index, one, two in steps]


def _insert(root: dict[str, Any], steps: list[str | int], value: Any) -> bool:  # any JSON value
    """Set `value` at a path; False if the path does not fit. Lists grow by one element at a time."""
    here: Any = root
    for step, follows in zip(steps, [*steps[1:], None], strict=True):
        made: Any = value if follows is None else [] if isinstance(follows, int) else {}
        is_index = isinstance(step, int)
        if not isinstance(here, list if is_index else dict):
            return False
        items = cast("Any", here)
        if is_index and step >= len(items):
            if step > len(items):
                return False
            items.append(made)
        elif follows is None:
            items[step] = _append_text(items[step] if is_index else items.get(step), value)
        elif not is_index:
            items.setdefault(step, made)
        here = items[step]
    return True


def _append_text(before: Any, value: Any) -> Any:  # any JSON value
    return before + value if isinstance(before, str) and isinstance(value, str) else value


DIALECT: Final = dialect.Dialect("google", encode_request, GoogleReader, FLAGS, streams_json_arrays=True)
