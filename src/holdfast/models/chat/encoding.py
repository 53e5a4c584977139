"""Everything of a request but its messages, in the way in which an endpoint wants it. Pure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote, urlencode

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.errors.unoffered import NotOffered
from holdfast.models.chat.messages import is_object, tool_name
from holdfast.models.flags import NO_STREAM
from holdfast.models.writing import PLAIN_WORDS, Once, Strictness, is_strict

if TYPE_CHECKING:
    from holdfast.messages import OutputSpec, Settings, ToolSpec
    from holdfast.models.wire import Endpoint

_encode: Final = msgspec.json.Encoder().encode


def path_of(endpoint: Endpoint, model: str) -> str:
    """Where a request goes, below the base URL."""
    path = "/chat/completions"
    if "deployment_path" in endpoint.flags:
        path = f"/deployments/{quote(model, safe='')}{path}"
    return f"{path}?{urlencode(endpoint.query)}" if endpoint.query else path


def fields_of(
    model: str, settings: Settings, tools: tuple[ToolSpec, ...], output: OutputSpec | None, flags: frozenset[str]
) -> bytes:
    """Everything but the messages, as the beginning of an object."""
    if settings.compact_at is not None:
        raise NotOffered("settings.compact_at", model, "this dialect has no field for it; leave it out")
    fields: dict[str, Any] = {"model": model, "stream": NO_STREAM not in flags}
    if fields["stream"] and "no_stream_usage" not in flags:
        fields["stream_options"] = {"include_usage": True}
    limit = "max_tokens" if "max_tokens" in flags else "max_completion_tokens"
    seed = "random_seed" if "random_seed" in flags else "seed"
    given = (
        (limit, settings.max_output_tokens),
        ("temperature", settings.temperature),
        ("top_p", settings.top_p),
        (seed, settings.seed),
        ("stop", settings.stop or None),
    )
    fields.update({name: value for name, value in given if value is not None})
    if settings.effort is not None:
        fields.update(_effort(settings.effort, flags))
    if output is not None and "schema_in_words" not in flags and is_object(output):
        fields["response_format"] = _response_format(output, flags)
    if settings.cache and "cache_control" in flags:
        fields["cache_control"] = {"type": "ephemeral"}
    if tools:
        encoded = _strict_tools if "strict_tools" in flags else _loose_tools
        fields["tools"] = msgspec.Raw(encoded(tools))
        if settings.tool_choice != "auto":
            fields["tool_choice"] = settings.tool_choice
        if settings.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = settings.parallel_tool_calls
    if settings.extra:
        _add_extra(fields, settings.extra)
    return _encode(fields)[:-1]


def _effort(effort: str, flags: frozenset[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if "thinking_switch" in flags:
        fields["thinking"] = {"type": "disabled" if effort == "none" else "enabled"}
        if effort == "none":
            return fields
    if "no_effort" in flags:
        return fields
    if "effort_object" in flags:
        fields["reasoning"] = {"effort": effort}
    else:
        fields["reasoning_effort"] = effort
    return fields


def _response_format(output: OutputSpec, flags: frozenset[str]) -> dict[str, Any]:
    if "json_object" in flags:
        return {"type": "json_object"}
    shape = {"name": tool_name(output.name), "schema": output.schema, "strict": allows_strict(output.schema)}
    return {"type": "json_schema", "json_schema": shape}


def _add_extra(fields: dict[str, Any], extra: dict[str, Any]) -> None:
    """The provider's own fields. Tools are added to ours; everything else counts instead of ours."""
    if "messages" in extra:
        raise InvalidArgument("settings.extra", "messages", "a field that is not made from the conversation")
    own = fields.get("tools")
    fields.update(extra)
    more = extra.get("tools")
    if own is not None and isinstance(more, list):
        tools = cast("list[Any]", more)
        fields["tools"] = msgspec.Raw(b",".join((bytes(own)[:-1], _encode(tools)[1:])) if tools else bytes(own))


_RULES: Final = Strictness(
    PLAIN_WORDS
    | {"definitions", "minItems", "maxItems", "pattern", "format"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")),
    depth=10,
    properties=5_000,
)


def allows_strict(schema: object) -> bool:
    """Whether the provider can hold a model to `schema`: all properties required, none other allowed, plain words."""
    return is_strict(schema, _RULES)


def _tools(tools: tuple[ToolSpec, ...], *, strict: bool) -> bytes:
    return _encode([_tool(tool, strict=strict) for tool in tools])


def _tool(tool: ToolSpec, *, strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if strict and allows_strict(tool.parameters):
        function["strict"] = True
    return {"type": "function", "function": function}


_loose_tools: Final = Once(partial(_tools, strict=False))
_strict_tools: Final = Once(partial(_tools, strict=True))
