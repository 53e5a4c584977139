"""A whole response as a reply: its items become parts. Pure."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.errors import ModelError, StreamCut
from holdfast.messages import ModelReply, Reasoning, Refusal, Text, ToolCall, Usage
from holdfast.models.reading import UNREADABLE, arguments_in, counted, mapping, read
from holdfast.models.responses.errors import failure
from holdfast.models.responses.items import items_in, without
from holdfast.models.wire import bounded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.messages import FinishReason, Part
    from holdfast.models.responses.items import Item
    from holdfast.models.wire import Endpoint

_encode: Final = msgspec.json.Encoder().encode


class Response(msgspec.Struct, gc=False):
    """A response, without the request that it repeats."""

    id: Any = None
    created_at: Any = None
    model: Any = None
    status: Any = None
    output: Any = None
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None


_response: Final = msgspec.json.Decoder(Response).decode


def response_in(data: bytes | msgspec.Raw) -> Response:
    """The response that came."""
    raw = bytes(data)
    try:
        return _response(raw)
    except UNREADABLE:
        pass
    try:
        return msgspec.convert(read(raw), Response)
    except UNREADABLE as error:
        message = f"a response can't be read: {bounded(error, 200)}"
        raise ModelError(message, kind="bad_frame", retryable=True) from None


def fingerprint(items: Iterable[tuple[Any, Item]], response: Response) -> str:
    """What tells a response without an id apart: all that it says, and what it counted."""
    try:
        said = _encode([[item for _, item in items], response.usage])
    except UNREADABLE as error:
        message = f"a response can't be read: {bounded(error, 200)}"
        raise ModelError(message, kind="bad_frame", retryable=True) from None
    return hashlib.sha256(said).hexdigest()


def served_by(response: Response, model: str) -> str:
    """The model that answered."""
    return response.model if isinstance(response.model, str) and response.model else model


def status_of(response: Response) -> str:
    """How far a response is that came as one body; what is still being made counts as cut off."""
    status = response.status
    if isinstance(status, str) and status:
        return status
    return "failed" if response.error else "in_progress"


def reply_of(response: Response, status: str, items: list[Item], endpoint: Endpoint, model: str) -> ModelReply:
    """The reply that a response with these items is."""
    if status == "failed":
        raise _paid(failure(response.error, None, {}), response)
    if status == "cancelled":
        cancelled = ModelError("the provider cancelled the response", kind="server_error", retryable=True)
        raise _paid(cancelled, response)
    if status not in {"completed", "incomplete"}:
        raise StreamCut(f"{endpoint.provider}:{model}")
    parts = _parts(items, endpoint.route(model))
    return ModelReply(
        parts,
        _finish(response, status, parts),
        _usage(response.usage),
        served_by(response, model),
        cast("Item", response.usage) if isinstance(response.usage, dict) else None,
        response_id=response.id if isinstance(response.id, str) else None,
    )


def _paid(error: ModelError, response: Response) -> ModelError:
    """An error, with what the response used before it failed."""
    used = _usage(response.usage)
    error.usage = used if used.total else None
    return error


def _finish(response: Response, status: str, parts: tuple[Part, ...]) -> FinishReason:
    if status == "incomplete":
        details = response.incomplete_details
        reason = mapping(details).get("reason")
        return "content_filter" if reason == "content_filter" else "output_limit"
    if any(type(part) is ToolCall for part in parts):
        return "tool_calls"
    return "refusal" if any(type(part) is Refusal for part in parts) else "stop"


def _usage(value: Any) -> Usage:  # noqa: ANN401  whatever came
    usage = mapping(value)
    asked, answered = mapping(usage.get("input_tokens_details")), mapping(usage.get("output_tokens_details"))
    read, written = counted(asked.get("cached_tokens")), counted(asked.get("cache_write_tokens"))
    return Usage(
        max(counted(usage.get("input_tokens")) - read - written, 0),
        counted(usage.get("output_tokens")),
        read,
        written,
        counted(answered.get("reasoning_tokens")),
    )


def _parts(items: list[Item], route: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    for item in items:
        match item["type"]:
            case "message":
                parts += _words(item, route)
            case "reasoning":
                parts.append(_reasoning(item, route))
            case "function_call":
                parts.append(call_of(item, route))
            case _:
                parts.append(Reasoning("", item, route))
    return tuple(parts)


def words_in(item: Item) -> list[tuple[Item, str]]:
    """The texts of a message that say something, each with the content that it stands in."""
    found = [
        (content, content.get("refusal" if content["type"] == "refusal" else "text"))
        for content in items_in(item.get("content"))
    ]
    return [(content, text) for content, text in found if isinstance(text, str) and text]


def _words(item: Item, route: str) -> list[Part]:
    found = words_in(item)
    words: list[Part] = [Refusal(text) if content["type"] == "refusal" else Text(text) for content, text in found]
    frames = [without(content, ("text", "refusal", "logprobs")) for content, _ in found]
    frame = {name: value for name, value in item.items() if name not in {"role", "content"} and value is not None}
    # Where nothing names the message, and nothing is noted about its words, the words alone say it all.
    if frame.keys() <= {"type", "status"} and not any(any(without(noted, ("type",)).values()) for noted in frames):
        return words
    return [Reasoning("", {**frame, "content": frames}, route), *words]


def _reasoning(item: Item, route: str) -> Reasoning:
    told = [part.get("text") for part in items_in(item.get("summary")) + items_in(item.get("content"))]
    # Status and empty content are only ever told, never taken.
    kept = {name: value for name, value in item.items() if value is not None and name != "status"}
    if not kept.get("content"):
        kept.pop("content", None)
    kept.setdefault("summary", [])
    return Reasoning("\n\n".join([text for text in told if isinstance(text, str) and text]), kept, route)


def call_of(item: Item, route: str) -> ToolCall:
    """A call as a part. Its item has an id."""
    name = item.get("name")
    said = item.get("arguments")
    arguments, malformed = _read_arguments(said, cut=item.get("status") == "incomplete")
    more = {
        name: value
        for name, value in item.items()
        if value is not None and name not in {"type", "call_id", "name", "arguments", "status"}
    }
    return ToolCall(
        item["call_id"],
        name if isinstance(name, str) else "",
        arguments,
        malformed,
        more or None,
        route if more else None,
    )


def _read_arguments(said: Any, *, cut: bool) -> tuple[dict[str, Any] | None, str | None]:  # noqa: ANN401  whatever came
    """The arguments of a call, or what came instead. Nothing at all means none, unless the reply was cut off there."""
    if isinstance(said, dict):  # some servers do not write them as text
        return cast("Item", said), None
    if said is not None and not isinstance(said, str):
        return None, bounded(_encode(said).decode())
    text = said or ""
    return (None, text) if cut and not text.strip() else arguments_in(text)
