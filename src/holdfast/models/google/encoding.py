"""A request as bytes: the conversation, which is joined and not encoded again, and all that stands beside it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.errors.unoffered import NotOffered
from holdfast.models.flags import NO_STREAM
from holdfast.models.google.contents import Writer
from holdfast.models.reading import listed, mapping
from holdfast.models.wire import WireRequest, encoded

if TYPE_CHECKING:
    from holdfast.messages import Effort, ModelRequest, OutputSpec, Settings
    from holdfast.models.wire import Endpoint

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
