"""Responses of the Google dialect, and its errors. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.errors import ModelError, StreamCut
from holdfast.messages import (
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
    Usage,
)
from holdfast.models.dialect import (
    ResponseReader,
    arguments_from_value,
    as_dict,
    as_list,
    as_text,
    clip_text,
    derive_call_id,
    encode_json,
    kind_of_status,
    make_error,
    parse_error_body,
    reports_overflow,
    token_count,
)
from holdfast.models.retry import add_response_headers, delay_from_details, delay_from_message, longest_delay
from holdfast.models.sse import ArraySplitter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.messages import StreamEvent
    from holdfast.models.dialect import Endpoint, Frame


NO_ID_PREFIX: Final = "noid_"
"""Begins the id of a call without an id from Google."""
MAX_REPLY: Final = 64 * 1024 * 1024
"""Largest reply, in bytes of its frames."""
_FINISHES: Final[dict[str, FinishReason]] = {
    "MAX_TOKENS": "output_limit",
    **dict.fromkeys(
        (
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
            *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"),
        ),
        "content_filter",
    ),
}
"""Other reasons are `stop`, or `tool_calls` if there are calls."""
_MALFORMED_REASONS: Final = frozenset(
    ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE")
)
"""The model made a mistake. Its valid calls run; if there are none, the request is retried."""
_UNSPECIFIED: Final = frozenset(
    ("", "FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED")
)
_TEXT: Final = "text"
"""The one text that grows at a time, for the joiner."""
_ASIDES: Final = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
_KNOWN_FIELDS: Final = frozenset(("candidates", "promptFeedback", "usageMetadata", "modelVersion", "responseId"))


class GoogleReader(ResponseReader):
    """Reads one response. The terminal frame has a finish reason, or says that the prompt is blocked."""

    growing_fields = frozenset(("text", "stringValue"))

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        super().__init__(endpoint, model)
        self._frame = b""
        self._response_id: str | None = None
        self._parts: list[Part] = []
        self._words: list[str] = []
        self._thinking = False
        """True if `_words` are thoughts."""
        self._call: GoogleCall | None = None
        self._seed = ""
        """Seed of the ids of calls without an id."""
        self._asides: dict[str, Any] = {}
        self._raw: dict[str, Any] = {}
        self._usage = Usage()
        self._reason = ""
        self._said = False
        """True if any content came."""
        self._why = ""
        self._refusal = ""
        """The provider's message about a filtered reply, as it was shown."""

    @property
    def complete(self) -> bool:
        """True if a finish reason has come after some content. Usage may follow.

        Some servers send a finish reason with each frame, even before the first content.
        """
        return bool(self._reason) and self._said

    def feed(self, frame: Frame) -> list[StreamEvent]:
        """Translate a frame. Raises a `ModelError` if the frame reports an error."""
        self._frame = data = frame.data
        self._size += len(data)
        if self._size > MAX_REPLY:
            raise ModelError(f"the reply of {self._name} is larger than {MAX_REPLY:,} bytes", kind="bad_frame")
        body = as_dict(self._joiner.parse(data)) if data.strip() not in {b"", b"[DONE]"} else {}
        if error := body.get("error"):
            raise classify_stream_error(as_dict(error), data)
        if _KNOWN_FIELDS.isdisjoint(body):
            return self._ignore()
        events: list[StreamEvent] = []
        self._model = as_text(body.get("modelVersion")) or self._model
        self._response_id = as_text(body.get("responseId")) or self._response_id
        if not self._started:
            self._started = True
            events.append(StreamStart(self._model))
        for candidate in as_list(body.get("candidates")):
            self._read_candidate(as_dict(candidate), events)
        feedback = as_dict(body.get("promptFeedback"))
        if (blocked := as_text(feedback.get("blockReason"))) not in _UNSPECIFIED:
            self._reason, self._said = "PROHIBITED_CONTENT", True
            self._why = clip_text(as_text(feedback.get("blockReasonMessage")) or f"the prompt was blocked: {blocked}")
        if self._why and not self._refusal and _FINISHES.get(self._reason) == "content_filter":
            self._refusal = self._why
            events.append(TextChunk(self._why))
        if counts := as_dict(body.get("usageMetadata")):
            # Counters are totals; a frame may leave some out.
            self._raw |= {name: value for name, value in counts.items() if value is not None}
            if (usage := _usage(self._raw)) != self._usage:
                self._usage = usage
                events.append(StreamUsage(usage))
        return events

    def read_body(self, body: bytes) -> ModelReply:
        """Return the reply in a body that is not a stream: one object, or all frames in an array."""
        for frame in ArraySplitter(MAX_REPLY).feed(body):
            self.feed(frame)
        return self.finish()

    def finish(self) -> ModelReply:
        """The whole reply; `StreamCut` when there is no reason yet why it should be over."""
        if not self._reason:
            raise StreamCut(self._name)
        self._end_text([])
        called = any(type(part) is ToolCall for part in self._parts)
        if self._reason in _MALFORMED_REASONS and not called:
            words = clip_text(f"the model failed to make a call: {self._reason}: {self._why}".removesuffix(": "), 990)
            raise ModelError(words, kind="server_error", retryable=True)
        if self._reason == "MISSING_THOUGHT_SIGNATURE":
            raise ModelError(clip_text(self._why or "a thought signature is missing", 990), kind="bad_request")
        finish = _FINISHES.get(self._reason) or ("tool_calls" if called else "stop")
        parts = self._parts.copy()
        if self._refusal:
            parts.append(Refusal(self._refusal))
        if self._asides:
            parts.append(self._opaque({"aside": self._joiner.repair(self._asides)}))
        if not parts and finish == "output_limit" and self._usage.reasoning:
            # The model used up the limit with hidden thoughts, which is not the same as an empty reply.
            parts.append(Reasoning(""))
        return ModelReply(
            tuple(parts),
            finish,
            self._usage,
            self._model,
            raw_usage=self._raw or None,
            response_id=self._response_id,
        )

    def _read_candidate(self, candidate: dict[str, Any], events: list[StreamEvent]) -> None:
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
            if self._call is not None:
                self._end_call(events, whole=False)
            # A blocked prompt stays blocked, whatever the candidate says.
            self._why = self._why or clip_text(as_text(candidate.get("finishMessage")))
            self._reason = reason if self._reason in {"", "STOP"} else self._reason
        if self._reason:
            self._flush(events)

    def _add_text(self, text: str, signature: str, events: list[StreamEvent], *, thought: bool) -> None:
        if thought is not self._thinking or signature:
            self._end_text(events)
        self._thinking = thought
        if self._joiner.active:
            text = self._joiner.join(_TEXT, text) + (self._joiner.flush(_TEXT) if signature else "")
        if text:
            events.append(ReasoningChunk(text) if thought else TextChunk(text))
        if not signature:
            if text:
                self._words.append(text)
        elif thought:
            self._parts.append(Reasoning(text, {"thoughtSignature": signature}, self._route))
        elif text:
            # Signed text is never joined with unsigned text.
            self._parts += (Text(text), self._opaque({"thoughtSignature": signature, "of": "text"}))
        else:
            self._parts.append(self._opaque({"part": {"text": "", "thoughtSignature": signature}}))

    def _read_call(self, call: dict[str, Any], signature: str, events: list[StreamEvent]) -> None:
        name = as_text(call.get("name"))
        if name:
            if self._call is not None:
                self._end_call(events)
            self._end_text(events)
            self._call = GoogleCall(self._call_id(call), name, self._joiner.repair)
            events.append(CallStart(self._call.id, name))
        elif self._call is None:
            self.ignored += 1
            return
        self._call.add(call, signature)
        if call.get("willContinue") is not True:
            self._end_call(events)

    def _end_call(self, events: list[StreamEvent], *, whole: bool = True) -> None:
        """End the open call. A call that is not `whole` is malformed, so that it does not run."""
        if self._call is None:
            return
        call = self._call.build(self._route, whole=whole)
        self._call = None
        self._parts.append(call)
        text = call.malformed if call.arguments is None else encode_json(call.arguments).decode()
        events += (CallChunk(call.id, text or ""), CallEnd(call))

    def _call_id(self, call: dict[str, Any]) -> str:
        """Return the id of a call. One that is missing or repeated is derived from all content of the reply so far."""
        id = as_text(call.get("id"))
        if not id or id in self._ids:
            if not self._seed:
                frame = self._frame.decode("utf-8", "replace")
                self._seed = f"{self._response_id} {self._raw} {self._parts} {frame}"
            id = NO_ID_PREFIX + derive_call_id(self._seed, str(len(self._ids)))
        self._ids.add(id)
        return id

    def _opaque(self, replay: dict[str, Any]) -> Reasoning:
        return Reasoning("", replay, self._route)

    def _flush(self, events: list[StreamEvent]) -> None:
        """Show half a character that was held back."""
        if rest := self._joiner.flush(_TEXT):
            self._words.append(rest)
            events.append(ReasoningChunk(rest) if self._thinking else TextChunk(rest))

    def _end_text(self, events: list[StreamEvent]) -> None:
        """Make a part of the text so far."""
        self._flush(events)
        if self._words:
            words = "".join(self._words)
            self._parts.append(Reasoning(words) if self._thinking else Text(words))
            self._words = []


def _usage(counts: dict[str, Any]) -> Usage:
    cached = _count(counts.get("cachedContentTokenCount"))
    thoughts = _count(counts.get("thoughtsTokenCount"))
    return Usage(
        input=max(_count(counts.get("promptTokenCount")) - cached, 0) + _count(counts.get("toolUsePromptTokenCount")),
        output=_count(counts.get("candidatesTokenCount")) + thoughts,
        cache_read=cached,
        reasoning=thoughts,
    )


def _count(value: Any) -> int:  # noqa: ANN401  any JSON value
    """Read a count. Large ones may come as text."""
    if value is None:
        return 0
    return token_count(int(value[:30]) if isinstance(value, str) and value.isascii() and value.isdecimal() else value)


# ---- tool calls ----

_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d{1,6})\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")
_DEEPEST: Final = 64


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
        """Add the fields of a frame."""
        self._signature = signature or self._signature
        arguments, malformed = arguments_from_value(self._clean(call.get("args")))
        self._arguments |= arguments or {}
        self._malformed = malformed or self._malformed
        for piece in as_list(call.get("partialArgs")):
            self._piece(as_dict(piece))

    def build(self, route: str, *, whole: bool) -> ToolCall:
        """Return the call."""
        self._flush()
        self._arguments = self._clean(self._arguments)
        replay = {"thoughtSignature": self._signature} if self._signature else None
        malformed = self._malformed
        if malformed is None and not whole:
            malformed = encode_json(self._arguments).decode()
        arguments = self._arguments if malformed is None else None
        return ToolCall(self.id, self._name, arguments, malformed, replay, route)

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

    def _put(self, path: str, value: Any) -> None:  # noqa: ANN401  any JSON value
        steps = _parse_path(path)
        if not steps or not _insert(self._arguments, steps, value):
            self._malformed = clip_text(f"{path}: {value}")


def _parse_path(path: str) -> list[str | int]:
    """Parse a path such as ``$.orders[0]['a name']``; empty if it is invalid."""
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


def _insert(root: dict[str, Any], steps: list[str | int], value: Any) -> bool:  # noqa: ANN401  any JSON value
    """Set `value` at a path; False if the path does not fit. Lists grow by one element at a time."""
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
                items[step] = _append_text(items[step], value)
            here = items[step]
        else:
            if not isinstance(here, dict):
                return False
            fields = cast("dict[str, Any]", here)
            fields[step] = _append_text(fields.get(step), value) if follows is None else fields.get(step, made)
            here = fields[step]
    return True


def _append_text(before: Any, value: Any) -> Any:  # noqa: ANN401  any JSON value
    """Continue a string that was interrupted by another value."""
    return before + value if isinstance(before, str) and isinstance(value, str) else value


# ---- errors ----

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
_KINDS_BY_REASON: Final = {
    "API_KEY_INVALID": "authentication",
    "API_KEY_EXPIRED": "authentication",
    "ACCESS_TOKEN_EXPIRED": "authentication",
    "BILLING_DISABLED": "billing",
}
_BILLING: Final = re.compile(r"enable billing|billing account|credits are depleted|spending cap")
_KEY: Final = re.compile(r"AIza[\w-]{10,}|ya29\.[\w.-]{10,}|\bAQ\.[\w-]{20,}")
_MAX_MESSAGE: Final = 990


def classify_error(status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
    """Turn an error response into a `ModelError`. The error object may be an element of an array."""
    answer = parse_error_body(body)
    errors = [as_dict(as_dict(item).get("error")) for item in as_list(answer) or [answer]]
    error = next((error for error in errors if error), errors[0])
    return _classify(status, headers, error, body, in_stream=False)


def classify_stream_error(error: dict[str, Any], frame: bytes) -> ModelError:
    """Turn an error inside a response into a `ModelError`."""
    code = error.get("code")
    made = _classify(code if isinstance(code, int) else 200, {}, error, frame, in_stream=True)
    made.status = 200
    return made


def _classify(
    status: int, headers: Mapping[str, str], error: dict[str, Any], body: bytes, *, in_stream: bool
) -> ModelError:
    details = [as_dict(item) for item in as_list(error.get("details"))]
    message = as_text(error.get("message")) or body[:_MAX_MESSAGE].decode("utf-8", "replace").strip()
    message = _KEY.sub("[key]", message) or f"HTTP {status}"
    lower = message.lower()
    reasons = [_KINDS_BY_REASON.get(as_text(detail.get("reason"))) for detail in details]
    kind = next(filter(None, reasons), None)
    if kind is None:
        kind = _KINDS.get(as_text(error.get("status"))) or kind_of_status(status)
        if kind == "bad_request" and reports_overflow(lower):
            kind = "context_overflow"
        elif kind == "bad_request" and "api key not valid" in lower:
            kind = "authentication"
        elif kind in {"bad_request", "rate_limited", "permission"} and _BILLING.search(lower):
            kind = "billing"
    made = make_error(kind, clip_text(message, _MAX_MESSAGE), status=status, in_stream=in_stream)
    # A delay in the details leaves out fractions that the message has.
    add_response_headers(made, headers, longest_delay(delay_from_details(details), delay_from_message(message)))
    if made.request_id is None:
        ids = [as_text(detail.get("requestId")) for detail in details]
        made.request_id = clip_text(next(filter(None, ids), ""), 200) or None
    return made
