"""Requests of the Google dialect. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

from holdfast.errors import InvalidArgument
from holdfast.errors.world import NotOffered
from holdfast.messages import AssistantMessage, Attachment, Reasoning, Refusal, Text, ToolCall, ToolMessage
from holdfast.models.dialect import (
    EMPTY_FILE,
    EMPTY_MESSAGE,
    NO_STREAM,
    MessageEncoder,
    WireRequest,
    as_dict,
    as_list,
    attachment_bytes,
    attachment_from,
    encode_json,
    encode_messages,
    replace_attachments,
    to_base64,
    with_query,
)
from holdfast.models.google.response import NO_ID_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.messages import Effort, Message, ModelRequest, Part, ToolResult, UserMessage
    from holdfast.models.dialect import Endpoint

_LEVELS: Final[dict[Effort, str]] = {
    "none": "MINIMAL",  # thinking can't be switched off
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
_BUDGETS: Final[dict[Effort, int]] = {
    "none": 0,
    "minimal": 512,
    "low": 1_024,
    "medium": 8_192,
    "high": 24_576,
    "xhigh": 24_576,
    "max": 24_576,
}
_CHOICES: Final = {"none": "NONE", "required": "ANY"}
_SCHEMA_PROMPT: Final = "Give your final answer as JSON and nothing else. It must have the shape of this JSON schema:\n"


def encode_request(endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
    """Encode a request. The bytes of messages are joined, and not encoded again."""
    if request.settings.compact_at is not None:
        raise NotOffered("settings.compact_at", model, "this dialect has no field for it; leave it out")
    route = endpoint.route(model)
    gemini2 = "gemini2" in endpoint.flags or model.rpartition("/")[2].startswith(("gemini-1", "gemini-2"))
    encoder = GoogleMessageEncoder(route, request.files, second_generation=gemini2)
    messages = encode_messages(request, f"google{' gemini2' if gemini2 else ''} {route}", encoder.encode)
    fields = encode_json(_fields(request, second_generation=gemini2))
    body = b"".join(
        (
            b'{"contents":[',
            b",".join([message for message in messages if message]),
            b"]," + fields[1:] if len(fields) > 2 else b"]}",
        )
    )
    name = quote(model if "/" in model else f"models/{model}")
    version = "" if "whole_url" in endpoint.flags else "/v1beta"
    if NO_STREAM in endpoint.flags:
        path = with_query(f"{version}/{name}:generateContent", endpoint.query)
    else:
        path = with_query(f"{version}/{name}:streamGenerateContent", {"alt": "sse", **endpoint.query})
    return WireRequest(path, body, {"content-type": "application/json"}, encoder.dropped)


def _fields(request: ModelRequest, *, second_generation: bool) -> dict[str, Any]:
    """Make all fields but the messages."""
    settings, output = request.settings, request.output
    extra = dict(settings.extra or {})
    if "contents" in extra:
        raise InvalidArgument("extra", extra["contents"], "any field but 'contents', which is the conversation itself,")
    declarations = [
        {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
        for tool in request.tools
    ]
    tools = [{"functionDeclarations": declarations}] if declarations else []
    tools += as_list(extra.pop("tools", None))
    system = [{"text": request.instructions}] if request.instructions else []
    if output is not None and second_generation and tools:
        # The second generation answers by schema or with tools, not both: the schema goes into the instructions.
        system.append({"text": _SCHEMA_PROMPT + encode_json(output.schema).decode()})
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
_TEXTUAL: Final = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml|x-yaml|toml|javascript)\b")
_IN_RESULTS: Final = re.compile(r"image/|application/pdf\b")
"""Media that a tool result may hold."""
_ACCEPTED: Final = re.compile(
    r"(?:image|audio|video|text)/|application/(?:pdf|rtf|x-javascript|x-python)\b", re.IGNORECASE
)
"""Media that some model accepts. Others in a tool result are only named: a refusal would end the conversation."""


class GoogleMessageEncoder(MessageEncoder):
    """Encodes each message as its contents, joined by commas."""

    def __init__(self, route: str, files: Mapping[str, bytes], *, second_generation: bool) -> None:
        super().__init__(route, files)
        self._second_generation = second_generation

    def encode(self, message: Message) -> bytes:
        """Encode a message as one content or two; empty if there is nothing to send."""
        if type(message) is AssistantMessage:
            parts = self._model_parts(message)
            return encode_json({"role": "model", "parts": parts}) if parts else b""
        if type(message) is ToolMessage:
            return self._results(message)
        parts = list[dict[str, Any]]()
        for part in cast("UserMessage", message).parts:
            if type(part) is Attachment:
                parts.extend(self._file_parts(part))
            elif type(part) is Text and part.text:
                parts.append({"text": part.text})
        # Without a first user message Google refuses the conversation.
        return encode_json({"role": "user", "parts": parts or [{"text": EMPTY_MESSAGE}]})

    def _model_parts(self, message: AssistantMessage) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        last: Part | None = None
        # Only the first call of a message needs a signature.
        needs_signature = not self._second_generation
        for part in message.parts:
            match part:
                case Text(text) | Refusal(text):
                    # The provider's reason for filtering a reply is nothing that the model said.
                    if text and not (type(part) is Refusal and message.finish == "content_filter"):
                        parts.append({"text": text})
                case Reasoning():
                    replay = self._own_replay(part)
                    signature = replay.get("thoughtSignature")
                    if "part" in replay:
                        parts.append(replay["part"])
                    elif replay.get("of") == "text" and type(last) is Text and parts:
                        parts[-1]["thoughtSignature"] = signature
                    elif replay.get("of") == "text":
                        parts.append({"text": "", "thoughtSignature": signature})
                    elif signature:
                        parts.append({"text": part.text, "thought": True, "thoughtSignature": signature})
                case ToolCall():
                    parts.append(self._call(part, needs_signature=needs_signature))
                    needs_signature = False
                case Attachment():
                    parts.extend(self._file_parts(part))
            last = part
        return parts

    def _call(self, call: ToolCall, *, needs_signature: bool) -> dict[str, Any]:
        """Encode a call. Malformed arguments go back as an empty object; the result says what was wrong."""
        part: dict[str, Any] = {"functionCall": {**_id(call.id), "name": call.name, "args": call.arguments or {}}}
        signature = self._own_replay(call).get("thoughtSignature")
        if signature:
            part["thoughtSignature"] = signature
        elif call.route != self._route and needs_signature:
            part["thoughtSignature"] = SKIP_SIGNATURE_CHECK
        return part

    def _results(self, message: ToolMessage) -> bytes:
        """Encode the results in one content. Media that a result can't hold follow in another."""
        parts: list[dict[str, Any]] = []
        beside: list[dict[str, Any]] = []
        for result in message.results:
            said, media = self._result(result)
            response = {"output" if result.state == "ok" else "error": said}
            inside = [] if self._second_generation else [item for item in media if _IN_RESULTS.match(item.media_type)]
            for item in media:
                if item not in inside:
                    beside.extend(self._file_parts(item))
            answer: dict[str, Any] = {**_id(result.call_id), "name": result.name, "response": response}
            if inside:
                answer["parts"] = [self._inline_data(item) for item in inside]
            parts.append({"functionResponse": answer})
        contents = [encode_json({"role": "user", "parts": some}) for some in (parts, beside) if some]
        return b",".join(contents)

    def _result(self, result: ToolResult) -> tuple[Any, list[Attachment]]:
        """Return the content of a result with its files replaced, and the media among them."""
        media: list[Attachment] = []

        def replace(file: Attachment) -> str:
            text = self._file_text(file)
            if text is not None:
                return text
            label = file.name or file.media_type
            if not _ACCEPTED.match(file.media_type):
                return f"[attachment that can't be shown: {label}]"
            media.append(file)
            return f"[attachment: {label}]"

        def replace_top(value: Any) -> Any:  # noqa: ANN401  any JSON value
            file = attachment_from(value, self._files)
            return value if file is None else replace(file)

        content = result.content
        known = {digest: self._files[digest] for digest in result.files if digest in self._files}
        if known:
            return replace_attachments(content, known, replace), media
        if isinstance(content, list):
            return [replace_top(item) for item in cast("list[Any]", content)], media
        return replace_top(content), media

    def _file_parts(self, file: Attachment) -> list[dict[str, Any]]:
        text = self._file_text(file)
        if text is None:
            return [self._inline_data(file)]
        name = [{"text": f"{file.name}:"}] if file.name else []
        return [*name, {"text": text or EMPTY_FILE}]

    def _file_text(self, file: Attachment) -> str | None:
        if not _TEXTUAL.match(file.media_type):
            return None
        try:
            return attachment_bytes(file, self._files).decode()
        except UnicodeDecodeError:
            return None

    def _inline_data(self, file: Attachment) -> dict[str, Any]:
        data = to_base64(attachment_bytes(file, self._files))
        return {"inlineData": {"mimeType": file.media_type, "data": data}}


def _id(id: str) -> dict[str, str]:
    return {} if not id or id.startswith(NO_ID_PREFIX) else {"id": id}
