"""Everything of a request but the conversation. Pure."""

from __future__ import annotations

import hashlib
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import ModelError
from holdfast.models.flags import NO_STREAM
from holdfast.models.reading import listed, mapping
from holdfast.models.responses.items import NOT_IN_NAMES
from holdfast.models.responses.writing import context_management
from holdfast.models.writing import PLAIN_WORDS, Once, Strictness, is_strict

if TYPE_CHECKING:
    from holdfast.messages import ModelRequest, OutputSpec, ToolSpec
    from holdfast.models.wire import Endpoint

_ENCRYPTED: Final = "reasoning.encrypted_content"
# These refuse to be asked for encrypted reasoning, as they do not reason.
_UNREASONING: Final = re.compile(r"(?:\A|[/.])(?:gpt-3|gpt-4|chatgpt|gpt-5-chat)", re.IGNORECASE)
# What every provider of this dialect takes in a strict schema.
_RULES: Final = Strictness(PLAIN_WORDS, frozenset(), depth=5, properties=100)
_encode: Final = msgspec.json.Encoder().encode


def head_of(endpoint: Endpoint, model: str, request: ModelRequest, first: bytes) -> bytes:
    """Everything but the conversation, as the beginning of an object. `first` is the first message as it is sent."""
    return _encode(_fields(endpoint, model, request, first))[:-1]


def _fields(endpoint: Endpoint, model: str, request: ModelRequest, first: bytes) -> dict[str, Any]:
    settings, flags = request.settings, endpoint.flags
    at = settings.compact_at
    extra = dict(settings.extra) if settings.extra else {}
    if "input" in extra:
        raise ModelError("settings.extra can't set 'input': it is the conversation", kind="bad_request")
    instructions, text = request.instructions, None
    if request.output is not None:
        instructions, text = _output(request.output, instructions, strict="no_strict" not in flags)
    more = extra.pop("tools", None) or ()
    ours = (_loose_tools if "no_strict" in flags else _strict_tools)(request.tools)
    tools = b",".join([part for part in (ours, *(_encode(tool) for tool in more)) if part])
    fields: dict[str, Any] = {
        "model": model,
        "instructions": instructions or None,
        "tools": msgspec.Raw(b"[" + tools + b"]") if tools else None,
        "tool_choice": settings.tool_choice if tools and settings.tool_choice != "auto" else None,
        "parallel_tool_calls": settings.parallel_tool_calls if tools else None,
        "text": _merged(text, extra.pop("text", None)),
        "reasoning": _merged({"effort": settings.effort} if settings.effort else None, extra.pop("reasoning", None)),
        "max_output_tokens": settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "context_management": None if at is None else context_management(endpoint, model, at),
        "store": None if "no_store" in flags else False,
        "include": None if "no_encrypted" in flags or _UNREASONING.search(model) else [_ENCRYPTED],
        "stream": NO_STREAM not in flags,
    }
    if settings.cache and "no_cache_key" not in flags:
        fields["prompt_cache_key"] = _cache_key(instructions, tools, first)
    if extra.get("include") and fields["include"]:
        fields["include"] += [wanted for wanted in listed(extra.pop("include")) if wanted != _ENCRYPTED]
    return {name: value for name, value in (fields | extra).items() if value is not None and value != []}


def _cache_key(instructions: str, tools: bytes, first: bytes) -> str:
    """Names the stable beginning of a conversation, so that its requests meet where it is cached."""
    digest = hashlib.sha256(instructions.encode())
    digest.update(tools)
    digest.update(first[:4_096])
    return digest.hexdigest()[:32]


def _merged(ours: dict[str, Any] | None, theirs: Any) -> Any:  # noqa: ANN401  whatever a caller wrote
    return ours | mapping(theirs) if ours and isinstance(theirs, dict) else theirs or ours


def _output(output: OutputSpec, instructions: str, *, strict: bool) -> tuple[str, dict[str, Any] | None]:
    """How the shape of the answer is asked for: only objects can be demanded, other shapes are asked for in words."""
    schema = output.schema
    if schema.get("type") == "object":
        name = NOT_IN_NAMES.sub("_", output.name)[:64] or "answer"
        form = {"type": "json_schema", "name": name, "schema": schema, "strict": strict and is_strict(schema, _RULES)}
        return instructions, {"format": form}
    words = f"Answer with JSON alone, of this JSON schema:\n{_encode(schema).decode()}"
    return f"{instructions}\n\n{words}" if instructions else words, None


def _tool(tool: ToolSpec, *, strict: bool) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    made: dict[str, Any] = {"type": "function", "name": tool.name, "parameters": parameters}
    if tool.description:
        made["description"] = tool.description
    # Left out, the API would make it strict and change the schema.
    made["strict"] = strict and is_strict(parameters, _RULES)
    return made


# What every provider of this dialect takes in a strict schema; one word more and the schema is not sent as strict.


def _tools(tools: tuple[ToolSpec, ...], *, strict: bool) -> bytes:
    return b",".join([_encode(_tool(tool, strict=strict)) for tool in tools])


_loose_tools: Final = Once(partial(_tools, strict=False))
_strict_tools: Final = Once(partial(_tools, strict=True))
