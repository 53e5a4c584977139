"""What a request asks for, in each of the four dialects. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

DialectName: TypeAlias = Literal["anthropic", "responses", "chat", "google"]
Form: TypeAlias = Literal["sse", "array", "whole"]
"""A stream of events, a stream of the elements of one JSON array (Google without ``alt=sse``), or one body."""


class _Entry(msgspec.Struct):
    """A message, a content or an item: who said it."""

    role: str | None = None
    type: str | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Body(msgspec.Struct):
    """As much of a body as says what to answer; the words of the conversation are passed over."""

    model: str = ""
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    messages: list[_Entry] = []
    contents: list[_Entry] = []
    input: list[_Entry] | str = []


_body: Final = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for: everything that an answer depends on."""

    dialect: DialectName
    model: str
    position: int
    """How many replies of the model are in the conversation already."""
    form: Form = "sse"
    usage_told: bool = True
    """Chat Completions tell the usage of a stream only when they are asked to."""


def dialect_of(path: str) -> DialectName | None:
    """The dialect that is spoken at a path, whatever stands before it."""
    place = path.partition("?")[0]
    if place.endswith("/messages"):
        return "anthropic"
    if place.endswith("/chat/completions"):
        return "chat"
    if place.endswith("/responses"):
        return "responses"
    return "google" if place.endswith((":generateContent", ":streamGenerateContent")) else None


def asked(dialect: DialectName, path: str, body: bytes) -> Asked:
    """What a request asks for. Raises `msgspec.DecodeError` (or its child `ValidationError`) for another body."""
    found = _body.decode(body)
    if dialect == "google":
        place, _, query = path.partition("?")
        model, _, verb = place.rpartition("/")[2].partition(":")
        streamed: Form = "sse" if "alt=sse" in query.split("&") else "array"
        form: Form = streamed if verb == "streamGenerateContent" else "whole"
        return Asked("google", model, _replies(entry.role == "model" for entry in found.contents), form)
    form = "sse" if found.stream else "whole"
    if dialect == "responses":
        items = [] if isinstance(found.input, str) else found.input
        return Asked("responses", found.model, _replies(map(_is_reply, items)), form)
    position = _replies(entry.role == "assistant" for entry in found.messages)
    told = dialect == "anthropic" or (found.stream_options is not None and found.stream_options.include_usage)
    return Asked(dialect, found.model, position, form, usage_told=told)


def _is_reply(item: _Entry) -> bool:
    """Of the Responses API: one reply is a row of items, each with a type of its own."""
    if item.role is not None:
        return item.role == "assistant"
    kind = item.type or ""
    return not kind.endswith(("_output", "_response"))


def _replies(by_model: Iterable[bool]) -> int:
    """Neighbours that the model said are one reply, however they were cut into entries."""
    count, before = 0, False
    for said in by_model:
        count += said and not before
        before = said
    return count
