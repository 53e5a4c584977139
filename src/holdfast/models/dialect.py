"""The contract of a dialect, and the functions that all dialects share. Pure.

A dialect translates between Holdfast's messages and one wire format. It knows no clock, no socket and no key.
To add a fifth, make a module with a `DIALECT`:

``encode_request``  (endpoint, model, request) -> `WireRequest`
``reader``          a `ResponseReader`: frames in, stream events out, at the end a `ModelReply`
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from holdfast import messages as msg
from holdfast.errors import ModelError
from holdfast.models.json_values import SurrogateJoiner, as_dict

T = TypeVar("T")


# ---- the contract of a dialect ----


class Frame(NamedTuple):
    """One message of a stream: the name of a server-sent event (or an empty name) and its data."""

    event: str
    data: bytes


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a provider, and its deviations from its dialect. Nothing is guessed from the URL."""

    provider: str
    dialect: str
    """``anthropic``, ``responses``, ``chat`` or ``google``."""
    base_url: str
    keys: tuple[str, ...] = ()
    """Environment variables that may hold the key; the first one that is set counts."""
    auth: str = "bearer"
    """``bearer``, ``x-api-key``, ``x-goog-api-key``, ``api-key`` or ``none``."""
    headers: Mapping[str, str] = {}
    flags: frozenset[str] = frozenset()
    """Deviations of this endpoint; `Dialect.flags` documents them."""
    query: Mapping[str, str] = {}

    def __repr__(self) -> str:
        # Headers may hold secrets.
        return f"Endpoint({self.provider!r}, {self.dialect!r}, {self.base_url!r})"

    def route(self, model: str) -> str:
        """The stamp on replay data, which only the same provider, dialect, address and model accepts."""
        return f"{self.provider} {self.dialect} {self.base_url} {model}"


class WireRequest(msgspec.Struct, frozen=True):
    """A request without credentials."""

    path: str
    """Below the base URL, query included."""
    body: bytes
    headers: Mapping[str, str] = {}
    dropped: int = 0
    """Parts with replay data of another route, left out of newly encoded messages."""
    notes: tuple[str, ...] = ()
    """Settings that were changed or left out, in words."""


class ResponseReader:
    """Reads one response. A dialect implements the methods that raise `NotImplementedError` here."""

    paused = False
    """The provider stopped in the middle of its turn, and continues when it gets the reply so far."""
    passes: tuple[msg.ModelPass, ...] = ()
    """The model runs behind the response, if the provider reports more than one."""
    max_size = 64 * 1024 * 1024
    """Largest reply, in bytes or characters."""
    growing_fields: frozenset[str] = frozenset()
    """Fields whose text continues in later frames."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.ignored = 0
        """Number of frames that the dialect does not know."""
        self._name = f"{endpoint.provider}:{model}"
        self._model = model
        self._route = endpoint.route(model)
        self._flags = endpoint.flags
        self._joiner = SurrogateJoiner(self.growing_fields)
        self._started = False
        self._room = self.max_size
        """Size left for the rest of the reply. A hot path subtracts from it directly."""
        self._ids: set[str] = set()
        """Ids of the calls so far."""
        self._seed = ""
        """Seed of the ids of calls without an id."""

    @property
    def complete(self) -> bool:
        """True if the terminal frame has come. Only usage may still follow."""
        raise NotImplementedError

    def feed(self, frame: Frame) -> list[msg.StreamEvent]:
        """Translate a frame. Raises a `ModelError` if the frame reports an error."""
        raise NotImplementedError

    def finish(self) -> msg.ModelReply:
        """Return the whole reply. Raises `StreamCut` without a terminal frame."""
        raise NotImplementedError

    def read_body(self, body: bytes) -> msg.ModelReply:
        """Return the reply in a body that is not a stream."""
        raise NotImplementedError

    def _grow(self, size: int) -> None:
        """Count received bytes; raises when the limit is reached."""
        self._room -= size
        if self._room < 0:
            raise self._too_long()

    def _too_long(self) -> ModelError:
        return ModelError(f"the reply of {self._name} is longer than {self.max_size:,} bytes", kind="bad_frame")

    def _make_seed(self) -> str:
        """Return the seed of the ids of calls without an id: all content of the reply so far."""
        raise NotImplementedError

    def _unique_id(self, id: str, number: int, tool: str = "", prefix: str = "") -> str:
        """Return the id of a call. A missing or repeated one is derived: it differs from those of other replies."""
        if not id or id in self._ids:
            self._seed = self._seed or self._make_seed()
            id = prefix + derive_call_id(self._seed, str(number), tool)
        self._ids.add(id)
        return id

    def _ignore(self) -> list[msg.StreamEvent]:
        self.ignored += 1
        return []


def default_finish(parts: Iterable[msg.Part]) -> msg.FinishReason:
    """Return the finish reason of a reply that ended without an incident."""
    return "tool_calls" if any(type(part) is msg.ToolCall for part in parts) else "stop"


class Dialect(NamedTuple):
    """A wire format: one function for each direction."""

    name: str
    encode_request: Callable[[Endpoint, str, msg.ModelRequest], WireRequest]
    reader: Callable[[Endpoint, str], ResponseReader]
    """Makes the reader of one response."""
    flags: Mapping[str, str]
    """Every flag that an endpoint of this dialect may have, with its meaning."""
    streams_json_arrays: bool = False
    """A JSON body is also a stream: each element of its array is a frame."""


NO_STREAM: Final = "no_stream"
"""The flag of every dialect: the endpoint does not stream, or a proxy in front of it holds streams back."""
COMMON_FLAGS: Final = {NO_STREAM: "answers are asked for whole, not as a stream"}


# ---- writing a request ----

EMPTY_MESSAGE: Final = "(empty message)"
"""Replaces a user message without text or files, for providers that refuse an empty one."""
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


class MessageEncoder:
    """Encodes the messages of a request for one route, with the flags of its endpoint."""

    def __init__(self, route: str, flags: frozenset[str], request: msg.ModelRequest) -> None:
        self._route = route
        self._flags = flags
        self._request = request
        self._files = request.files
        self.dropped = 0
        """Parts with replay data of another route, which are not sent."""

    def encode(self, message: msg.Message) -> bytes:
        """Encode a message; empty if nothing of it can be sent."""
        raise NotImplementedError

    def encode_all(self) -> list[bytes]:
        """Encode all messages. A conversation keeps the bytes of each message for the route and its flags."""
        if self._request.wire is None:
            return [self.encode(message) for message in self._request.messages]
        return self._request.wire.encoded(" ".join((self._route, *sorted(self._flags))), self.encode)

    def _own_replay(self, part: msg.Reasoning | msg.ToolCall) -> dict[str, Any]:
        """Return the replay data of a part, if this route made it."""
        if part.replay is None:
            return {}
        if part.route == self._route:
            return as_dict(part.replay)
        self.dropped += 1
        return {}


def with_query(path: str, query: Mapping[str, str]) -> str:
    """Append the query to a path."""
    return f"{path}?{urlencode(query)}" if query else path


_CACHED: Final = 128


class IdentityCache(Generic[T]):
    """Caches the result of `make` by the identity of its arguments, which all requests of an agent share."""

    __slots__ = ("_entries", "_make")

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        # An entry keeps its arguments alive, so no other objects can get their identities.
        self._entries: dict[tuple[int, ...], tuple[tuple[Any, ...], T]] = {}

    def __call__(self, *values: Any) -> T:  # the arguments of `make`
        """Return `make(*values)`."""
        key = tuple(map(id, values))
        found = self._entries.get(key)
        if found is None:
            found = (values, self._make(*values))
            if len(self._entries) >= _CACHED:
                self._entries.clear()
            self._entries[key] = found
        return found[1]


def derive_call_id(*seed: str) -> str:
    """Make an id for a call without one: the same for the same seed."""
    digest = hashlib.sha256()
    for piece in seed:
        digest.update(f"{len(piece)}:{piece}".encode("utf-8", "surrogatepass"))
    return f"call_{digest.hexdigest()[:24]}"


@lru_cache(maxsize=4_096)
def tool_name(name: str) -> str:
    """Make the name of a tool or an answer valid. Only names invented by a model can be invalid."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unknown"
