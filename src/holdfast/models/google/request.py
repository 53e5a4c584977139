"""A request as bytes: the conversation, which is joined and not encoded again, and all that stands beside it. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote, urlencode

import msgspec

from holdfast.errors import InvalidArgument, ModelError
from holdfast.errors.world import NotOffered
from holdfast.messages import AssistantMessage, Attachment, Reasoning, Refusal, Text, ToolCall, ToolMessage
from holdfast.models.dialect import (
    EMPTY_FILE,
    EMPTY_MESSAGE,
    NO_STREAM,
    WireRequest,
    attachment_in,
    base64_of,
    encoded,
    labelled,
    listed,
    mapping,
)
from holdfast.models.google.response import NO_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.messages import Effort, Message, ModelRequest, OutputSpec, Part, Settings, ToolResult, UserMessage
    from holdfast.models.dialect import Endpoint


FOREIGN: Final = "skip_thought_signature_validator"
"""What Google takes in place of the signature of a call that another model made."""
_contents_encode: Final = msgspec.json.Encoder().encode
_TEXTUAL: Final = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml|x-yaml|toml|javascript)\b")
_IN_RESULTS: Final = re.compile(r"image/|application/pdf\b")
"""Media that may stand inside the result of a tool."""
_TAKEN: Final = re.compile(
    r"(?:image|audio|video|text)/|application/(?:pdf|rtf|x-javascript|x-python)\b", re.IGNORECASE
)
"""Media that some model takes. Others that a tool gave are named only: what is refused would end the conversation."""


class Writer:
    """Messages as contents with commas between them."""

    __slots__ = ("_files", "_older", "_route", "dropped")

    def __init__(self, route: str, files: Mapping[str, bytes], *, older: bool) -> None:
        self._route = route
        self._files = files
        self._older = older
        self.dropped = 0

    def message(self, message: Message) -> bytes:
        """One message as a content, or as two of them; nothing when there is nothing to send."""
        if type(message) is AssistantMessage:
            self.dropped += _foreign(message, self._route)
            parts = _model_parts(message, self._route, self._files, signed=not self._older)
            return _contents_encode({"role": "model", "parts": parts}) if parts else b""
        if type(message) is ToolMessage:
            return _result_content(message, self._files, older=self._older)
        # Left out, an empty message would let the conversation begin with the model, which Google refuses.
        parts = _user_parts(cast("UserMessage", message), self._files) or [{"text": EMPTY_MESSAGE}]
        return _contents_encode({"role": "user", "parts": parts})


def _foreign(message: AssistantMessage, route: str) -> int:
    """How many parts hold replay data of another route."""
    held = [part for part in message.parts if isinstance(part, Reasoning | ToolCall)]
    return sum(part.replay is not None and part.route != route for part in held)


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
    replay = mapping(part.replay) if part.route == route else {}
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
    signature = mapping(call.replay).get("thoughtSignature") if own else None
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
    contents = [_contents_encode({"role": "user", "parts": some}) for some in (parts, beside) if some]
    return b",".join(contents)


def _result(result: ToolResult, files: Mapping[str, bytes]) -> tuple[dict[str, Any], list[Attachment]]:
    """What a call came to, as an object, and the media that belong to it."""
    media: list[Attachment] = []

    def told(attachment: Attachment) -> str:
        if (words := _words(attachment, files)) is not None:
            return words
        label = attachment.name or attachment.media_type
        if not _TAKEN.match(attachment.media_type):
            return f"[attachment that can't be shown: {label}]"
        media.append(attachment)
        return f"[attachment: {label}]"

    def seen(value: Any) -> Any:  # noqa: ANN401  any JSON value
        attachment = attachment_in(value, files)
        return value if attachment is None else told(attachment)

    content = result.content
    inside = {digest: files[digest] for digest in result.files if digest in files}
    if inside:
        said = labelled(content, inside, told)
    else:
        said = [seen(item) for item in cast("list[Any]", content)] if isinstance(content, list) else seen(content)
    return {"output" if result.state == "ok" else "error": said}, media


def _attached(attachment: Attachment, files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    words = _words(attachment, files)
    if words is None:
        return [_inline(attachment, files)]
    name = [{"text": f"{attachment.name}:"}] if attachment.name else []
    return [*name, {"text": words or EMPTY_FILE}]


def _words(attachment: Attachment, files: Mapping[str, bytes]) -> str | None:
    """The text of a file that is text."""
    if not _TEXTUAL.match(attachment.media_type):
        return None
    try:
        return _bytes(attachment, files).decode()
    except UnicodeDecodeError:
        return None


def _inline(attachment: Attachment, files: Mapping[str, bytes]) -> dict[str, Any]:
    return {"inlineData": {"mimeType": attachment.media_type, "data": base64_of(_bytes(attachment, files))}}


def _bytes(attachment: Attachment, files: Mapping[str, bytes]) -> bytes:
    try:
        return files[attachment.digest]
    except KeyError:
        message = f"the bytes of the attachment {attachment.digest} are not part of the request"
        raise ModelError(message, kind="bad_request") from None


_encode: Final = msgspec.json.Encoder().encode
_LEVELS: Final[dict[Effort, str]] = {
    "none": "MINIMAL",  # the least that there is: thinking can't be switched off
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
_SHAPE: Final = "Give your final answer as JSON and nothing else. It must have the shape of this JSON schema:\n"


def encoded_request(endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
    """The request for a stream."""
    if request.settings.compact_at is not None:
        raise NotOffered("settings.compact_at", model, "this dialect has no field for it; leave it out")
    route = endpoint.route(model)
    older = _older(endpoint, model)
    writer = Writer(route, request.files, older=older)
    contents = encoded(request, f"google{' gemini2' if older else ''} {route}", writer.message)
    body = _joined_body(list(filter(None, contents)), _encode(_rest(request, older=older)))
    return WireRequest(_path(endpoint, model), body, {"content-type": "application/json"}, writer.dropped)


def _older(endpoint: Endpoint, model: str) -> bool:
    return "gemini2" in endpoint.flags or model.rpartition("/")[2].startswith(("gemini-1", "gemini-2"))


def _path(endpoint: Endpoint, model: str) -> str:
    named = model if "/" in model else f"models/{model}"
    version = "" if "whole_url" in endpoint.flags else "/v1beta"
    whole = NO_STREAM in endpoint.flags
    method, query = ("generateContent", {}) if whole else ("streamGenerateContent", {"alt": "sse"})
    asked = urlencode(query | dict(endpoint.query))
    return f"{version}/{quote(named)}:{method}" + (f"?{asked}" if asked else "")


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
    tools = _tools(request) + listed(extra.pop("tools", None))
    # The second generation answers by schema or with tools, not both: there the shape is a matter of words.
    told = request.output if older and tools else None
    schema = None if told else request.output
    system = [{"text": request.instructions}] if request.instructions else []
    if told:
        system.append({"text": _SHAPE + _encode(told.schema).decode()})
    config = {**_config(settings, schema, older=older), **mapping(extra.pop("generationConfig", None))}
    choice = _CHOICES.get(settings.tool_choice) if tools else None
    calling = {"functionCallingConfig": {"mode": choice}} if choice else {}
    fields = {
        "systemInstruction": {"parts": system} if system else None,
        "tools": tools,
        "toolConfig": {**calling, **mapping(extra.pop("toolConfig", None))},
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
