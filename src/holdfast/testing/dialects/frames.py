"""What replies and errors are made of on the wire, whatever the dialect. Pure."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from holdfast.messages import Usage

encode: Final = msgspec.json.Encoder().encode
"""A value as JSON."""


def sse(data: dict[str, Any], event: str = "") -> bytes:
    """One event of a stream, by its name where it has one."""
    named = f"event: {event}\n".encode() if event else b""
    return named + b"data: " + encode(data) + b"\n\n"


def sealed(position: int, index: int) -> str:
    """What a provider wants back unread: different for every part of a conversation, the same whenever it is made."""
    return b64encode(f"seal {position}.{index}".encode()).decode()


def element(data: dict[str, Any]) -> bytes:
    """One of the elements of an array."""
    return encode(data) + b",\r\n"


def sent(usage: Usage) -> int:
    """All that went in: where a provider counts cached tokens as part of the prompt."""
    return usage.input + usage.cache_read + usage.cache_write
