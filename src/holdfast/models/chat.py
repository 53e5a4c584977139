"""The chat dialect: OpenAI Chat Completions, and the many providers that speak almost the same.

Flags say how an endpoint differs; nothing is guessed from an address or from the name of a model. Responses are read
leniently: the reader understands the fields of all known endpoints.

Reasoning goes back to the route that made it, in the field that a flag asks for. Without such a flag it is not sent.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, cast
from urllib.parse import quote

import msgspec

from holdfast import messages as msg
from holdfast.errors import InvalidArgument, ModelError, StreamCut, StreamFailed
from holdfast.errors.world import NotOffered
from holdfast.models import dialect, schemas
from holdfast.models import json_values as values
from holdfast.models.attachments import attachment_bytes, data_url, file_name, is_text_type, split_result, to_base64
from holdfast.models.errors import classify_stream_error
from holdfast.models.json_values import as_dict, as_list, as_text, clip_text, encode_json, parse_arguments, token_count
from holdfast.models.sse import ArraySplitter

FLAGS: Final = dialect.COMMON_FLAGS | {
    # the request
    "deployment_path": "the model is part of the path: /deployments/MODEL/chat/completions",
    "no_stream_usage": "stream_options is refused and left out (usage comes by itself, or not at all)",
    "max_tokens": "the limit of the answer is max_tokens, not max_completion_tokens",
    "random_seed": "the seed is random_seed, not seed",
    "cache_control": "the prompt cache has to be asked for, with one cache_control field for the whole request",
    # reasoning
    "effort_object": "the effort is reasoning.effort, not reasoning_effort",
    "thinking_switch": "thinking.type says whether the model thinks at all",
    "no_effort": "the effort itself can't be said and is left out",
    # structured output and tools
    "strict_tools": "tools whose schema allows it are marked strict",
    "json_object": "there is no json_schema: the answer is asked for as json_object, the schema is in the instructions",
    "schema_in_words": "response_format does not go with streams or tools: the schema is in the instructions alone",
    # messages
    "developer": "instructions have the role developer, not system",
    "instructions_as_user": "there is no role for instructions: they are the first user message",
    "alternate": "roles must alternate: neighbouring user messages are sent as one",
    "assistant_after_tools": "a user message may not follow tool results: a short assistant message goes between",
    "refusal_field": "a refusal goes back in its own field, not as text",
    "call_ids_9": "ids of calls have nine letters and digits; others are replaced by such, always by the same",
    "call_ids_40": "ids of calls have at most 40 characters; longer ones are replaced, always by the same",
    "document_url": "PDFs are document_url parts, not file parts",
    # the reply
    "done_ends": "a stream may end with [DONE] and no reason why: it is whole then, and not cut",
    # reasoning that goes back
    "send_reasoning_details": "reasoning goes back as reasoning_details, where it came with them",
    "send_reasoning_content": "reasoning goes back as reasoning_content",
    "send_reasoning": "reasoning goes back as reasoning",
    "send_thinking_parts": "reasoning goes back as a thinking part of the content",
    "empty_reasoning_content": "assistant messages must have reasoning_content; where there is none it is empty",
    "blank_reasoning_content": "those with calls must have one that is not empty; where there is none it is a space",
}

# ==== requests ====


def encode_request(endpoint: dialect.Endpoint, model: str, request: msg.ModelRequest) -> dialect.WireRequest:
    """Encode a request; the encoded messages are joined, not encoded again."""
    flags = endpoint.flags
    encoder = ChatMessageEncoder(endpoint.route(model), flags, request)
    messages = _order_messages(request.messages, encoder.encode_all(), flags)
    fields, first = _beginning(model, request.settings, request.tools, request.output, request.instructions, flags)
    if first is not None:
        messages.insert(0, first)
    body = b"".join((fields, b',"messages":[', b",".join(messages), b"]}"))
    path = "/chat/completions"
    if "deployment_path" in flags:
        path = f"/deployments/{quote(model, safe='')}{path}"
    return dialect.WireRequest(dialect.with_query(path, endpoint.query), body, dropped=encoder.dropped)


# ---- fields ----

_RULES: Final = schemas.StrictSchemaRules(
    schemas.COMMON_STRICT_KEYWORDS
    | {"definitions", "minItems", "maxItems", "pattern", "format"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    schemas.FORMATS,
    depth=10,
    properties=5_000,
)


@dialect.IdentityCache
def _beginning(
    model: str,
    settings: msg.Settings,
    tools: tuple[msg.ToolSpec, ...],
    output: msg.OutputSpec | None,
    instructions: str,
    flags: frozenset[str],
) -> tuple[bytes, bytes | None]:
    """Encode the common part of all requests of an agent: the fields, as the beginning of an object, and the first
    message.
    """
    if settings.compact_at is not None:
        raise NotOffered("settings.compact_at", model, "this dialect has no field for it; leave it out")
    fields: dict[str, Any] = {"model": model, "stream": dialect.NO_STREAM not in flags}
    if fields["stream"] and "no_stream_usage" not in flags:
        fields["stream_options"] = {"include_usage": True}
    values = {
        "max_tokens" if "max_tokens" in flags else "max_completion_tokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "random_seed" if "random_seed" in flags else "seed": settings.seed,
        "stop": settings.stop or None,
    }
    fields.update({name: value for name, value in values.items() if value is not None})
    effort = settings.effort
    if effort is not None and "thinking_switch" in flags:
        fields["thinking"] = {"type": "disabled" if effort == "none" else "enabled"}
    if effort is not None and "no_effort" not in flags and not ("thinking_switch" in flags and effort == "none"):
        fields |= {"reasoning": {"effort": effort}} if "effort_object" in flags else {"reasoning_effort": effort}
    if output is not None:
        # Only objects can be enforced; other schemas go into the instructions.
        is_enforced = output.schema.get("type") == "object" and "schema_in_words" not in flags
        if is_enforced and "json_object" in flags:
            fields["response_format"] = {"type": "json_object"}
        elif is_enforced:
            shape: dict[str, Any] = {"name": dialect.tool_name(output.name), "schema": output.schema}
            shape["strict"] = allows_strict(output.schema)
            fields["response_format"] = {"type": "json_schema", "json_schema": shape}
        if not is_enforced or "json_object" in flags:
            instructions = schemas.schema_prompt(output.schema, instructions)
    if settings.cache and "cache_control" in flags:
        fields["cache_control"] = {"type": "ephemeral"}
    own = b""
    if tools:
        own = _tools(tools, "strict_tools" in flags, "gemini" in model)
        fields["tools"] = msgspec.Raw(own)
        if settings.tool_choice != "auto":
            fields["tool_choice"] = settings.tool_choice
        if settings.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = settings.parallel_tool_calls
    if extra := settings.extra:
        if "messages" in extra:
            raise InvalidArgument("settings.extra", "messages", "a field that is not made from the conversation")
        fields.update(extra)
        more = extra.get("tools")
        if own and isinstance(more, list):  # tools are added to ours; everything else replaces ours
            fields["tools"] = msgspec.Raw(b",".join((own[:-1], encode_json(more)[1:])) if more else own)
    first = None
    if instructions:
        role = "developer" if "developer" in flags else "user" if "instructions_as_user" in flags else "system"
        first = encode_json({"role": role, "content": instructions})
    return encode_json(fields)[:-1], first


def allows_strict(schema: object) -> bool:
    """True if the provider can enforce `schema`: all properties required, no others allowed, known keywords only."""
    return schemas.fits_strict(schema, _RULES)


@dialect.IdentityCache
def _tools(tools: tuple[msg.ToolSpec, ...], strict: bool, google: bool) -> bytes:  # the cache takes positions only
    made: list[dict[str, Any]] = []
    for tool in tools:
        parameters = schemas.with_bare_choices(tool.parameters) if google else tool.parameters
        function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": parameters}
        if strict and allows_strict(tool.parameters):
            function["strict"] = True
        made.append({"type": "function", "function": function})
    return encode_json(made)


# ---- messages ----

_OK: Final = {"role": "assistant", "content": "OK"}
"""Goes between tool results and a user message, for endpoints that want it."""
_AUDIO_FORMATS: Final = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "mp4": "m4a", "x-m4a": "m4a"}
_NINE_CHARACTERS: Final = re.compile(r"[a-zA-Z0-9]{9}")
_LETTERS: Final = string.ascii_letters + string.digits


def _order_messages(messages: tuple[msg.Message, ...], pieces: list[bytes], flags: frozenset[str]) -> list[bytes]:
    """Apply the flags that depend on neighbouring messages."""
    if not flags & {"alternate", "assistant_after_tools"}:
        return [piece for piece in pieces if piece]
    placed: list[bytes] = []
    before: type[msg.Message] | None = None
    for message, piece in zip(messages, pieces, strict=True):
        if not piece:
            continue
        kind = type(message)
        if "alternate" in flags and kind is msg.UserMessage:  # here pieces are parts
            begin = b'{"role":"user","content":['
            if before is msg.UserMessage:
                begin = placed.pop()[:-2] + b","
            placed.append(begin + piece + b"]}")
        else:
            if "alternate" not in flags and before is msg.ToolMessage and kind is msg.UserMessage:
                placed.append(encode_json(_OK))
            placed.append(piece)
        before = kind
    return placed


class ChatMessageEncoder(dialect.MessageEncoder):
    """Encodes each message as any number of the provider's messages, joined by commas."""

    def encode(self, message: msg.Message) -> bytes:
        """Encode a message; with the flag ``alternate``, a user message as its parts."""
        match message:
            case msg.UserMessage():
                if "alternate" in self._flags:
                    return encode_json([self._part(part) for part in message.parts] or [_text_part("")])[1:-1]
                if all(type(part) is msg.Text for part in message.parts) and len(message.parts) <= 1:
                    return encode_json({"role": "user", "content": message.text})
                return encode_json({"role": "user", "content": [self._part(part) for part in message.parts]})
            case msg.AssistantMessage():
                return self._assistant(message)
            case msg.ToolMessage():
                return self._results(message)

    def _part(self, part: msg.InputPart) -> dict[str, Any]:
        return _text_part(part.text) if type(part) is msg.Text else self._attachment(cast("msg.Attachment", part))

    def _attachment(self, file: msg.Attachment) -> dict[str, Any]:
        data = attachment_bytes(file, self._files)
        family, kind = _family(file)
        if family == "image":
            return {"type": "image_url", "image_url": {"url": data_url(file.media_type, data)}}
        if family == "audio":
            audio = {"data": to_base64(data), "format": _AUDIO_FORMATS.get(kind, kind)}
            return {"type": "input_audio", "input_audio": audio}
        if (family, kind) == ("application", "pdf"):
            name, url = file.name or "document.pdf", data_url(file.media_type, data)
            if "document_url" in self._flags:
                return {"type": "document_url", "document_url": url, "document_name": name}
            return {"type": "file", "file": {"filename": name, "file_data": url}}
        if is_text_type(file.media_type):
            return _text_part(f"{file_name(file)}:\n{data.decode('utf-8', 'replace')}")
        message = f"{file_name(file)} is {clip_text(file.media_type, 100)}: pictures, sound, PDFs and text can be sent"
        raise ModelError(message, kind="bad_request")

    def _assistant(self, message: msg.AssistantMessage) -> bytes:
        text, refusal = "", ""
        calls: list[dict[str, Any]] = []
        thoughts: list[tuple[str, dict[str, Any]]] = []
        for part in message.parts:
            if type(part) is msg.ToolCall:
                calls.append(self._call(part))
            elif type(part) is msg.Text:
                text += part.text
            elif type(part) is msg.Refusal:
                refusal += part.text
            elif type(part) is msg.Reasoning:
                thoughts.append((part.text, self._own_replay(part)))
        if refusal and "refusal_field" not in self._flags:
            text, refusal = f"{text}\n{refusal}" if text else refusal, ""
        filled = {"refusal": refusal, "content": text, "tool_calls": calls}
        said: dict[str, Any] = {name: value for name, value in filled.items() if value}
        if not said:
            return b""  # the reply was cut off while the model thought
        said = {"role": "assistant", **said}
        for thought, replay in thoughts:
            field = replay.get("field")
            if "details" in replay:
                said["reasoning_details"] = [*said.get("reasoning_details", ()), *as_list(replay["details"])]
            elif field == "thinking":
                answer: Any = said.get("content", [])
                after = [_text_part(answer)] if isinstance(answer, str) else answer
                said["content"] = [{"type": "thinking", "thinking": [_text_part(thought)]}, *after]
            elif field in {"reasoning", "reasoning_content"}:
                said[field] = said.get(field, "") + thought
        if "reasoning_content" not in said:
            # The endpoint wants the field, though the model did not think, or another route did.
            if "empty_reasoning_content" in self._flags:
                said["reasoning_content"] = ""
            elif calls and "blank_reasoning_content" in self._flags:
                said["reasoning_content"] = " "
        return encode_json(said)

    def _call(self, call: msg.ToolCall) -> dict[str, Any]:
        replay = self._own_replay(call)
        id, name = self._id(call.id), dialect.tool_name(call.name)
        if replay.get("custom") and call.arguments is not None:
            return {"id": id, "type": "custom", "custom": {"name": name, "input": as_text(call.arguments.get("input"))}}
        # Malformed arguments are quoted in the result of the call; providers want to read an object here.
        arguments = "{}" if call.arguments is None else encode_json(call.arguments).decode()
        sent = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        return {**sent, "extra_content": replay["extra_content"]} if "extra_content" in replay else sent

    def _results(self, message: msg.ToolMessage) -> bytes:
        said: list[dict[str, Any]] = []
        shown: list[dict[str, Any]] = []
        for result in message.results:
            content = result.content if isinstance(result.content, str) else self._content(result, shown)
            said.append({"role": "tool", "tool_call_id": self._id(result.call_id), "content": content})
        if shown:
            # A tool message holds text only, so files follow the results in a user message.
            if "assistant_after_tools" in self._flags:
                said.append(_OK)
            said.append({"role": "user", "content": shown})
        return encode_json(said)[1:-1]

    def _content(self, result: msg.ToolResult, shown: list[dict[str, Any]]) -> str:
        """Return a result as text, and add its files to `shown`."""
        pieces = split_result(result, self._files, _label)
        if not pieces:
            return encode_json(result.content).decode()
        for file in [file for piece in pieces for file in piece.files]:
            if _is_shown(file):
                shown += [_text_part(f"This is the file {file_name(file)}:"), self._attachment(file)]
        return "\n".join(values.to_text(piece.value) for piece in pieces)

    def _id(self, id: str) -> str:
        if "call_ids_9" in self._flags and not _NINE_CHARACTERS.fullmatch(id):
            number = int.from_bytes(hashlib.sha256(id.encode("utf-8", "surrogatepass")).digest())
            return "".join([_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(9)])
        is_too_long = "call_ids_40" in self._flags and len(id) > 40
        return dialect.derive_call_id(id) if is_too_long or not id else id


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _family(file: msg.Attachment) -> tuple[str, str]:
    family, _, kind = file.media_type.partition(";")[0].strip().lower().partition("/")
    return family, kind


def _is_shown(file: msg.Attachment) -> bool:
    """True if a file can be sent. A tool result only names any other file, so that the turn can continue."""
    family, kind = _family(file)
    return family in {"image", "audio"} or (family, kind) == ("application", "pdf") or is_text_type(file.media_type)


def _label(file: msg.Attachment) -> str:
    return f"See the file {file_name(file)}." if _is_shown(file) else f"[{file_name(file)}, which can't be shown here]"


# ==== responses ====

MAX_CALLS: Final = 1_000
"""Most tool calls in one reply."""
_MAX_NAME: Final = 1_000
"""Longest name of a model or a response, in characters."""
_REASONING_FIELDS: Final = (
    ("send_reasoning_content", "reasoning_content"),
    ("send_reasoning", "reasoning"),
    ("send_thinking_parts", "thinking"),
)
_FINISHES: Final[Mapping[str, msg.FinishReason]] = {
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
"""Other reasons are `stop`, or `tool_calls` if there are calls."""
_FAILURES: Final[Mapping[str, str]] = {
    "error": "server_error",
    "abort": "server_error",
    "network_error": "network",
    "insufficient_system_resource": "overloaded",
}
"""Reasons of an incomplete reply, as error kinds."""
_CHUNKS: Final[Mapping[str, Callable[[str], msg.StreamEvent]]] = {
    "thoughts": msg.ReasoningChunk,
    "text": msg.TextChunk,
    "refusal": msg.TextChunk,
}


class ChatReader(dialect.ResponseReader):
    """Reads one response."""

    max_size = 32 * 1024 * 1024  # characters
    growing_fields = frozenset(
        ("content", "text", "refusal", "reasoning", "reasoning_content", "thinking", "summary", "arguments", "input")
    )

    def __init__(self, endpoint: dialect.Endpoint, model: str) -> None:
        super().__init__(endpoint, model)
        self._id: str | None = None
        self._created = 0
        self._done = False
        self._finish: str | None = None
        self._texts: dict[str, list[str]] = {"thoughts": [], "text": [], "refusal": []}
        self._details = ReasoningDetails()
        self._calls: list[ChatCall] = []
        """In the order in which they began."""
        self._usage = msg.Usage()
        self._raw_usage: dict[str, Any] | None = None

    @property
    def complete(self) -> bool:
        """True once a finish reason has come. A ``[DONE]`` without a reason means a truncated reply."""
        return self._finish is not None

    def feed(self, frame: dialect.Frame) -> list[msg.StreamEvent]:
        """Translate a frame. Raises a `ModelError` if the frame reports an error."""
        data = frame.data
        if data[:1] != b"{":
            data = data.strip()
            if not data:
                return []
            if data == b"[DONE]":
                self._done = True
                events: list[msg.StreamEvent] = []
                if self._started and "done_ends" in self._flags:
                    self._end("stop", events)
                return events
        if self._done:
            return self._ignore()
        if not frame.event and not self._joiner.active:
            common = _parse_common(data)
            if common is not None and not (common.choices and common.choices[0].message):
                return self._read_common_chunk(common)
        chunk = self._joiner.parse(data)
        if not values.is_dict(chunk):
            return self._ignore()
        return self._read_chunk(chunk, failed=frame.event == "error")

    def read_body(self, body: bytes) -> msg.ModelReply:
        """Return the reply in a body that is not a stream.

        Text needs no finish reason. Calls do: without one, their arguments may be incomplete.
        """
        plain = parse_plain_body(body, self._model)
        if plain is not None:
            return plain
        chunk = values.parse_json(body)
        if values.is_list(chunk) and len(chunk) == 1:
            chunk = chunk[0]
        if not values.is_dict(chunk):
            raise values.bad_frame("the body is no JSON object")
        choices = as_list(chunk.get("choices"))
        if not choices and not chunk.get("error") and not is_error_frame(chunk):
            raise values.bad_frame("the body has no choices")
        for choice in choices:
            # Each call of a whole message counts as one, even if two have the same id.
            for number, call in enumerate(as_list(as_dict(as_dict(choice).get("message")).get("tool_calls"))):
                as_dict(call)["index"] = number
        self._read_chunk(chunk, failed=False)
        if self._finish is None and not self._calls:
            self._end("stop", [])
        return self.finish()

    def finish(self) -> msg.ModelReply:
        """Return the whole reply. Raises `StreamCut` without a terminal frame."""
        if self._finish is None:
            raise StreamCut(self._name)
        self._end_texts([])
        calls = [call.build(self._route) for call in self._calls]
        thoughts, text, refusal = ("".join(kept) for kept in self._texts.values())
        parts: list[msg.Part] = []
        if self._details:
            parts.append(msg.Reasoning(thoughts, {"details": self._joiner.repair(self._details.all())}, self._route))
        elif thoughts:
            field = next((field for flag, field in _REASONING_FIELDS if flag in self._flags), None)
            parts.append(msg.Reasoning(thoughts, {"field": field}, self._route) if field else msg.Reasoning(thoughts))
        if text:
            parts.append(msg.Text(text))
        if refusal:
            parts.append(msg.Refusal(refusal))
        parts += calls
        finish = _FINISHES.get(self._finish.lower().partition(":")[0], "stop")
        if finish in {"stop", "tool_calls"}:  # many servers say "stop" after calls
            finish = "tool_calls" if calls else "refusal" if refusal else "stop"
        usage = self._joiner.repair(self._raw_usage)
        return msg.ModelReply(tuple(parts), finish, self._usage, self._model, raw_usage=usage, response_id=self._id)

    def _read_chunk(self, chunk: dict[str, Any], *, failed: bool) -> list[msg.StreamEvent]:
        error = chunk.get("error")
        if error or failed:
            raise classify_stream_error(self._joiner.repair(error or chunk))
        choices = chunk.get("choices")
        usage = chunk.get("usage") or as_dict(chunk.get("x_groq")).get("usage")
        if not isinstance(choices, list) and not usage:
            if is_error_frame(chunk):
                raise classify_stream_error(self._joiner.repair(chunk))
            return self._ignore()
        events: list[msg.StreamEvent] = []
        self._begin(chunk.get("id"), chunk.get("model"), chunk.get("created"), events)
        if values.is_dict(usage):
            self._raw_usage = usage
        for choice in as_list(choices):
            self._read_choice(as_dict(choice), events)
        if values.is_dict(usage):
            self._update_usage(usage, events)
        return events

    def _read_common_chunk(self, chunk: _ChatBody) -> list[msg.StreamEvent]:
        events: list[msg.StreamEvent] = []
        if self._id is None:
            self._begin(chunk.id, chunk.model, chunk.created, events)
        if chunk.usage:
            self._raw_usage = chunk.usage
        for choice in chunk.choices:
            delta = choice.delta or _EMPTY_MESSAGE
            thought = delta.reasoning_content or delta.reasoning
            if thought:
                self._add_text("thoughts", thought, events)
            if delta.content:
                self._add_text("text", delta.content, events)
            for piece in delta.tool_calls or ():
                function = piece.function
                name, more = ("", "") if function is None else (function.name or "", function.arguments or "")
                call = self._find_call(piece.index, piece.id or "", name, more)
                if call is not None:
                    self._add_arguments(call, more, events)
            if choice.finish_reason:
                self._end(choice.finish_reason, events)
        if chunk.usage:
            self._update_usage(chunk.usage, events)
        return events

    def _begin(self, id: Any, model: Any, created: Any, events: list[msg.StreamEvent]) -> None:  # any JSON value
        if not self._started:
            self._started = True
            self._model = as_text(model)[:_MAX_NAME] or self._model
            events.append(msg.StreamStart(self._model))
        if self._id is None:
            self._id = as_text(id)[:_MAX_NAME] or None
            self._created = values.unix_seconds(created)

    def _read_choice(self, choice: dict[str, Any], events: list[msg.StreamEvent]) -> None:
        if choice.get("index") not in (0, None):
            self.ignored += 1
            return
        if choice.get("error"):
            raise classify_stream_error(self._joiner.repair(choice["error"]))
        said = choice.get("delta")
        if said is None and not (self._texts["text"] or self._texts["refusal"] or self._calls):
            said = choice.get("message")  # instead of a delta; a server that sends both repeats itself
        if values.is_dict(said):
            self._read_message(said, events)
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            self._end(reason, events)
        if isinstance(choice.get("usage"), dict):
            self._update_usage(choice["usage"], events)

    def _read_message(self, said: dict[str, Any], events: list[msg.StreamEvent]) -> None:
        details = said.get("reasoning_details")
        thought = _thought_text(next((said[name] for name in _THOUGHT_FIELDS if said.get(name)), ""))
        if details:
            found = [as_dict(detail) for detail in as_list(details)]
            if "send_reasoning_details" in self._flags:
                for detail in filter(None, found):
                    self._grow(len(encode_json(self._joiner.repair(detail))))
                    self._details.add(detail)
            if not thought:
                told = [detail.get(_DETAIL_FIELDS.get(as_text(detail.get("type")), "")) for detail in found]
                thought = "".join(map(as_text, told))
        if thought:
            self._add_text("thoughts", thought, events)
        content = said.get("content")
        for item in as_list(content) or ([content] if content else []):
            part = {"type": "text", "text": item} if isinstance(item, str) else as_dict(item)
            if part.get("type") == "text":
                self._add_text("text", as_text(part.get("text")), events)
            elif part.get("type") == "thinking":
                self._add_text("thoughts", _thought_text(part.get("thinking")), events)
            else:
                self.ignored += 1
        audio = as_dict(said.get("audio"))
        if audio:
            self._add_text("text", as_text(audio.get("transcript")), events)
        self.ignored += bool(audio.get("data")) + len(as_list(said.get("images")))  # the audio and images themselves
        if refusal := said.get("refusal"):
            self._add_text("refusal", as_text(refusal), events)
        for fragment in as_list(said.get("tool_calls")):
            self._read_call(as_dict(fragment), events)
        if isinstance(said.get("function_call"), dict):
            self._read_call({"index": 0, "function": said["function_call"]}, events)

    def _add_text(self, place: str, text: str, events: list[msg.StreamEvent]) -> None:
        if self._joiner.active:
            text = self._joiner.join(place, text)
        if text:
            self._room -= len(text)
            if self._room < 0:
                raise self._too_long()
            self._texts[place].append(text)
            events.append(_CHUNKS[place](text))

    def _end_texts(self, events: list[msg.StreamEvent]) -> None:
        """Flush half characters at the ends of texts."""
        for place, kept in self._texts.items():
            if rest := self._joiner.flush(place):
                kept.append(rest)
                events.append(_CHUNKS[place](rest))

    def _read_call(self, fragment: dict[str, Any], events: list[msg.StreamEvent]) -> None:
        custom = isinstance(fragment.get("custom"), dict)
        function = as_dict(fragment.get("custom") if custom else fragment.get("function"))
        name, id = as_text(function.get("name")), as_text(fragment.get("id"))
        came: Any = function.get("input") if custom else function.get("arguments")
        index = fragment.get("index")
        call = self._find_call(index if type(index) is int else None, id, name, came)
        if call is None:
            return
        call.custom = call.custom or custom
        if fragment.get("extra_content") is not None:
            call.extra = self._joiner.repair(fragment["extra_content"])
        if isinstance(came, dict):  # some servers send the object itself
            came = encode_json(self._joiner.repair(came)).decode()
        self._add_arguments(call, as_text(came), events)

    def _find_call(self, index: int | None, id: str, name: str, came: object) -> ChatCall | None:
        """Find the call of a fragment, or begin one, and update its id and name; None after the end of the calls.

        A call is found by its index, or by its id if the server sends no index.
        """
        if self._finish is not None:
            if not name or self._calls or _FINISHES.get(self._finish, "stop") != "stop":
                self.ignored += 1
                return None
            self._finish = None  # some servers finish each piece: this call waits for another finish reason
        if index is None:
            call = next((call for call in reversed(self._calls) if id and call.sent_id == id), None)
            if call is None and self._calls and not id and not name:
                call = self._calls[-1]
        else:
            call = next((call for call in reversed(self._calls) if call.index == index), None)
            if call is None and came and not name:
                # Arguments under an unknown index belong to the call with the same id, or to the last one.
                call = next((call for call in reversed(self._calls) if not id or call.sent_id == id), None)
        if call is None or _begins_another_call(call, id, name, came):
            if len(self._calls) >= MAX_CALLS:
                raise ModelError(f"the reply has more than {MAX_CALLS:,} tool calls", kind="bad_frame")
            call = ChatCall(index)
            self._calls.append(call)
        call.sent_id = call.sent_id or id
        call.name = name if not call.name or name == call.name else call.name + name
        if not call.id:
            self._grow(len(id) + len(name))
        return call

    def _add_arguments(self, call: ChatCall, more: str, events: list[msg.StreamEvent]) -> None:
        if more and self._joiner.active:
            more = self._joiner.join(call, more)
        if more:
            self._grow(len(more))
            call.arguments.append(more)
        if call.id:
            if more:
                events.append(msg.CallChunk(call.id, more))
        elif call.name and (self._id or self._created or (call.sent_id and call.sent_id not in self._ids)):
            self._announce(call, events)

    def _announce(self, call: ChatCall, events: list[msg.StreamEvent]) -> None:
        call.id = self._unique_id(call.sent_id, len(self._ids), call.name)
        events.append(msg.CallStart(call.id, call.name))
        if call.arguments:
            events.append(msg.CallChunk(call.id, "".join(call.arguments)))

    def _make_seed(self) -> str:
        # If the response has neither id nor date, all of its content is the seed, at its end.
        calls = ((call.name, *call.arguments) for call in self._calls)
        said = ["".join(kept) for kept in (*self._texts.values(), *calls)]
        return f"{self._id} {self._created} {self._raw_usage} {said}"

    def _end(self, reason: str, events: list[msg.StreamEvent]) -> None:
        if self._finish is not None:
            return
        failure = _FAILURES.get(reason)
        if failure is not None:
            raise StreamFailed(f"the provider ended the reply with {reason!r}", kind=failure, retryable=True)
        self._finish = reason
        self._end_texts(events)
        calls = [call for call in self._calls if call.name or call.arguments]  # of others only an index came
        self.ignored += len(self._calls) - len(calls)
        self._calls = calls
        if calls and _FINISHES.get(reason) == "output_limit" and not "".join(calls[-1].arguments).strip():
            calls[-1].cut = True
        for call in calls:
            call.name = call.name or "unknown"
            rest = self._joiner.flush(call)
            if rest:
                call.arguments.append(rest)
            if not call.id:
                self._announce(call, events)
            elif rest:
                events.append(msg.CallChunk(call.id, rest))
            events.append(msg.CallEnd(call.build(self._route)))

    def _update_usage(self, usage: dict[str, Any], events: list[msg.StreamEvent]) -> None:
        self._raw_usage = usage
        found = _usage(usage)
        if found != self._usage:
            self._usage = found
            events.append(msg.StreamUsage(found))


def _usage(usage: dict[str, Any]) -> msg.Usage:
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
        output += reasoning  # this provider does not include it
    return msg.Usage(max(prompt - read - write, 0), output, read, write, min(reasoning, output))


# ---- tool calls ----


_MAX_NULL_PIECES: Final = 4
"""Most pieces in which "null" may come."""


class ObjectEndDetector:
    """Detects the end of a JSON object in pieces of text. Scans each piece once, and parses the text once."""

    __slots__ = ("_seen", "_splitter", "_whole")

    def __init__(self) -> None:
        self._splitter = ArraySplitter()
        self._seen = 0
        self._whole: bool | None = None
        """True if the text is an object; None before its end."""

    def reached(self, pieces: list[str]) -> bool:
        """True if `pieces` are an object, or null for an empty one. The list may only grow at its end."""
        more = "".join(pieces[self._seen :])
        self._seen = len(pieces)
        if self._whole is None:
            try:
                if self._splitter.feed(more.encode("utf-8", "surrogatepass")):
                    self._whole = parse_arguments("".join(pieces))[0] is not None
            except ModelError:
                self._whole = False
        elif more.strip(" \t\r\n"):
            self._whole = False  # nothing may follow an object
        return self._whole or (len(pieces) <= _MAX_NULL_PIECES and "".join(pieces).strip() == "null")


class ChatCall(msgspec.Struct, eq=False):
    """A tool call while it is streamed."""

    index: int | None
    sent_id: str = ""
    """The provider's id. Another call may have the same."""
    id: str = ""
    """The id that observers know; empty until the call is announced."""
    name: str = ""
    arguments: list[str] = []
    end: ObjectEndDetector = msgspec.field(default_factory=ObjectEndDetector)
    custom: bool = False
    extra: Any = None
    cut: bool = False
    """The output limit came before the arguments; not the same as a call without arguments."""
    built: msg.ToolCall | None = None

    def build(self, route: str) -> msg.ToolCall:
        """Return the call, after its last fragment."""
        if self.built is not None:
            return self.built
        text = "".join(self.arguments)
        arguments, malformed = (None, text) if self.cut else parse_arguments(text)
        replay = None if self.extra is None else {"extra_content": self.extra}
        if self.custom:
            arguments, malformed, replay = {"input": text}, None, {"custom": True}
        self.built = msg.ToolCall(self.id, self.name, arguments, malformed, replay, route if replay else None)
        return self.built


def _begins_another_call(call: ChatCall, id: str, name: str, came: object) -> bool:
    """True if a fragment begins another call, although it has the index or id of this one."""
    if not name:
        return False
    if id and call.sent_id and id != call.sent_id:
        return True
    if call.name and name != call.name:
        # The name of a call with an id may come in pieces, before its first argument.
        return bool(id) or not call.sent_id or bool(call.arguments)
    # The same tool again, without an id: another call if this one has all its arguments.
    return not id and bool(call.name) and bool(came) and call.end.reached(call.arguments)


# ---- reasoning ----

_DETAIL_FIELDS: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""Types of details that come in pieces, and the field that grows. Encrypted ones come whole."""
_THOUGHT_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
"""Fields of the model's thoughts. A server that fills two of them repeats itself."""


class ReasoningDetails:
    """The reasoning details of a reply, in order of their beginning."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[tuple[dict[str, Any], list[str]]] = []
        """Each detail without its growing text, and the pieces of that text."""

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, detail: dict[str, Any]) -> None:
        """Add a detail, or the next piece of the last one."""
        if not self._kept or not _continues(self._kept[-1][0], detail):
            self._kept.append(({}, []))
        kept, pieces = self._kept[-1]
        growing = _DETAIL_FIELDS.get(as_text(detail.get("type")))
        for field, value in detail.items():
            if field == growing and isinstance(value, str):
                pieces.append(value)
                kept[field] = ""
            elif (value is not None and not (field == growing and pieces)) or field not in kept:
                kept[field] = value

    def all(self) -> list[dict[str, Any]]:
        return [kept | ({_DETAIL_FIELDS[kept["type"]]: "".join(grown)} if grown else {}) for kept, grown in self._kept]


def _continues(last: dict[str, Any], detail: dict[str, Any]) -> bool:
    """True if a detail is the next piece of the last one."""
    kind = as_text(detail.get("type"))
    if kind not in _DETAIL_FIELDS or last.get("type") != kind or last.get("index") != detail.get("index"):
        return False
    return last.get("id") is None or detail.get("id") is None or last["id"] == detail["id"]


def _thought_text(thought: Any) -> str:  # any JSON value
    """The text of a thought: a string, an object with a text, or a list of such objects."""
    if isinstance(thought, str):
        return thought
    told = as_dict(thought)
    if told:
        return as_text(told.get("text")) or as_text(told.get("content"))
    return "".join([as_text(as_dict(part).get("text")) for part in as_list(thought)])


# ---- fast paths: msgspec decodes the common shapes, and refuses all others ----


class _ChatFunction(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ChatToolCall(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _ChatFunction | None = None
    custom: None = None
    extra_content: None = None


class _ChatMessage(msgspec.Struct, gc=False):
    content: str | None = None
    tool_calls: list[_ChatToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: None = None
    refusal: Literal[""] | None = None
    function_call: None = None
    reasoning_text: Literal[""] | None = None
    thinking: Literal[""] | None = None
    audio: None = None
    images: None = None


class _ChatChoice(msgspec.Struct, gc=False):
    delta: _ChatMessage | None = None
    index: Literal[0] = 0
    finish_reason: str | None = None
    message: _ChatMessage | None = None
    usage: None = None
    error: None = None


class _ChatBody(msgspec.Struct, gc=False):
    """A frame of a stream, with a delta in each choice, or a whole body, with a message in each."""

    choices: Annotated[list[_ChatChoice], msgspec.Meta(max_length=1)]
    id: str | None = None
    model: str | None = None
    created: Any = None
    usage: dict[str, Any] | None = None
    x_groq: None = None
    error: None = None


_EMPTY_MESSAGE: Final = _ChatMessage()
_decode_body: Final = msgspec.json.Decoder(_ChatBody).decode


def _parse_common(data: bytes) -> _ChatBody | None:
    """Parse a frame or a body that has only common fields; None for any other."""
    try:
        return _decode_body(data)
    except values.JSON_ERRORS:
        return None


def parse_plain_body(data: bytes, model: str) -> msg.ModelReply | None:
    """Parse a body that has only text and calls; None for any other."""
    body = _parse_common(data)
    if body is None or not body.choices:
        return None
    (choice,) = body.choices
    said = choice.message
    if said is None or choice.delta is not None or choice.finish_reason not in {"stop", "tool_calls"}:
        return None
    if said.reasoning_content or said.reasoning:
        return None
    parts: list[msg.Part] = [msg.Text(said.content)] if said.content else []
    ids: set[str] = set()
    for call in said.tool_calls or ():
        function = call.function
        if not call.id or function is None or not function.name or call.id in ids or len(ids) == MAX_CALLS:
            return None
        ids.add(call.id)
        parts.append(msg.ToolCall(call.id, function.name, *parse_arguments(function.arguments or "")))
    return msg.ModelReply(
        tuple(parts),
        "tool_calls" if ids else "stop",
        _usage(body.usage) if body.usage else msg.Usage(),
        (body.model or "")[:_MAX_NAME] or model,
        body.usage or None,
        response_id=(body.id or "")[:_MAX_NAME] or None,
    )


def is_error_frame(frame: dict[str, Any]) -> bool:
    """True if a frame without choices reports an error outside of the usual ``error`` field."""
    kinds = (as_text(frame.get("object")).lower(), as_text(frame.get("type")).lower())
    if "error" in kinds or frame.get("detail"):
        return True
    return bool(frame.get("message")) and any(frame.get(name) for name in ("code", "status", "status_code", "type"))


DIALECT: Final = dialect.Dialect("chat", encode_request, ChatReader, FLAGS)
