"""The wire: what a dialect is made of, and what it needs to know about an endpoint. Pure.

A dialect turns a neutral request into bytes, and the frames of a response into neutral events. It knows no clock, no
socket and no key; whoever sends the bytes adds the credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.errors import ModelError
    from holdfast.messages import Message, ModelPass, ModelReply, ModelRequest, StreamEvent


class Frame(NamedTuple):
    """One message of a stream: the name of a server-sent event (empty where there is none) and its data."""

    event: str
    data: bytes


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a provider is reached, and how it differs from the others that speak its dialect.

    Nothing is guessed from a URL: what is special about an endpoint is said here.
    """

    provider: str
    dialect: str
    """``anthropic``, ``responses``, ``chat`` or ``google``."""
    base_url: str
    keys: tuple[str, ...] = ()
    """Environment variables that may hold the key, the first that is set counts."""
    auth: str = "bearer"
    """``bearer``, ``x-api-key``, ``x-goog-api-key``, ``api-key`` or ``none``."""
    headers: Mapping[str, str] = {}
    flags: frozenset[str] = frozenset()
    """What this endpoint does differently; each dialect documents the flags it knows."""
    query: Mapping[str, str] = {}

    def __repr__(self) -> str:
        # Headers may hold what nobody should read in a log.
        return f"Endpoint({self.provider!r}, {self.dialect!r}, {self.base_url!r})"

    def route(self, model: str) -> str:
        """What stamps replay data: it is good for the same provider, dialect, address and model alone."""
        return f"{self.provider} {self.dialect} {self.base_url} {model}"


class WireRequest(msgspec.Struct, frozen=True):
    """A request as it goes out, without credentials."""

    path: str
    """Below the base URL, query included."""
    body: bytes
    headers: Mapping[str, str] = {}
    dropped: int = 0
    """Parts of replay data that another route made, left out of messages that were encoded for the first time now."""
    notes: tuple[str, ...] = ()
    """Settings that are not sent as they were set, in words."""


class Fold(Protocol):
    """The state of one response that is being read."""

    ignored: int
    """Frames that nobody here understands."""
    paused: bool
    """The provider wants the same conversation again, with what came so far, to go on."""

    @property
    def passes(self) -> tuple[ModelPass, ...]:
        """Each run of a model behind the response, where the provider tells of more than one."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the provider's terminal frame has come: what may still follow are numbers at most."""
        ...

    def feed(self, frame: Frame) -> list[StreamEvent]:
        """What a frame means. Raises a `ModelError` for an error that the provider puts into its stream."""
        ...

    def finish(self) -> ModelReply:
        """The whole reply; `StreamCut` when the provider's terminal frame has not come."""
        ...

    def whole(self, body: bytes) -> ModelReply:
        """The reply in a body that did not come as a stream."""
        ...


class Dialect(Protocol):
    """How one family of providers is spoken to."""

    name: str
    arrays: bool
    """Whether a body of JSON is a stream as well: each element of its array is a frame."""

    def encode(self, endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
        """The request for a stream."""
        ...

    def fold(self, endpoint: Endpoint, model: str) -> Fold:
        """A new reader for one response."""
        ...

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """What an answer with an error status means."""
        ...


def encoded(request: ModelRequest, key: str, encode: Callable[[Message], bytes]) -> list[bytes]:
    """The bytes of all messages, each encoded once for `key` (a dialect and a route) in the life of a conversation."""
    kept = request.wire
    if kept is None:
        return [encode(message) for message in request.messages]
    return kept.encoded(key, encode)


def bounded(text: Any, limit: int = 1_000) -> str:  # noqa: ANN401  whatever a provider sent
    """A provider's words about an error: printable and not too long."""
    words = text if isinstance(text, str) else str(text)
    words = words.encode("utf-8", "backslashreplace").decode()
    return words if len(words) <= limit else f"{words[:limit]}..."
