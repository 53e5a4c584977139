"""The contract of a dialect, and the functions that all dialects share. Pure.

A dialect translates between Holdfast's messages and one wire format. It knows no clock, no socket and no key.
To add a fifth, make a module with a `DIALECT`:

``encode_request``  (endpoint, model, request) -> `WireRequest`
``reader``          a `ResponseReader`: frames in, stream events out, at the end a `ModelReply`
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, TypeVar, cast
from urllib.parse import urlencode

import msgspec

from holdfast.errors import ModelError
from holdfast.media import FILES_DEPTH
from holdfast.messages import Attachment

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from holdfast.messages import (
        Message,
        ModelPass,
        ModelReply,
        ModelRequest,
        Reasoning,
        StreamEvent,
        ToolCall,
        ToolResult,
    )


T = TypeVar("T")


# ---- the contract of a dialect ----


class Frame(NamedTuple):
    """One message of a stream: the name of a server-sent event (empty if it has none) and its data."""

    event: str
    data: bytes


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a provider, and how it differs from others of its dialect. Nothing is guessed from the URL."""

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
    """Parts with replay data of another route, left out of messages that were encoded for the first time."""
    notes: tuple[str, ...] = ()
    """Settings that were changed or left out, in words."""


class ResponseReader:
    """Reads one response. A dialect implements the methods that raise `NotImplementedError` here."""

    paused = False
    """The provider stopped in the middle of its turn, and goes on when it gets back the reply so far."""
    passes: tuple[ModelPass, ...] = ()
    """The model runs behind the response, if the provider reports more than one."""
    max_size = 64 * 1024 * 1024
    """Largest reply, in bytes or characters."""
    growing_fields: frozenset[str] = frozenset()
    """Fields whose text goes on in later frames."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.ignored = 0
        """Number of frames that the dialect does not know."""
        self._name = f"{endpoint.provider}:{model}"
        self._model = model
        self._route = endpoint.route(model)
        self._flags = endpoint.flags
        self._joiner = SurrogateJoiner(self.growing_fields)
        self._started = False
        self._size = 0
        self._ids: set[str] = set()
        """Ids of calls."""

    @property
    def complete(self) -> bool:
        """True if the terminal frame has come. Only usage may still follow."""
        raise NotImplementedError

    def feed(self, frame: Frame) -> list[StreamEvent]:
        """Translate a frame. Raises a `ModelError` if the frame reports an error."""
        raise NotImplementedError

    def finish(self) -> ModelReply:
        """Return the whole reply. Raises `StreamCut` if the terminal frame has not come."""
        raise NotImplementedError

    def read_body(self, body: bytes) -> ModelReply:
        """Return the reply in a body that is not a stream."""
        raise NotImplementedError

    def _grow(self, size: int) -> None:
        """Count the size of what came, which is limited."""
        self._size += size
        if self._size > self.max_size:
            raise ModelError(f"the reply of {self._name} is longer than {self.max_size:,} bytes", kind="bad_frame")

    def _ignore(self) -> list[StreamEvent]:
        self.ignored += 1
        return []


class Dialect(NamedTuple):
    """A wire format: one function for each direction."""

    name: str
    encode_request: Callable[[Endpoint, str, ModelRequest], WireRequest]
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
EMPTY_FILE: Final = "(empty file)"
"""Replaces the text of an empty file."""
_TEXT_TYPE: Final = re.compile(
    r"text/|application/(?:[\w.+-]+\+)?(?:json|xml|yaml|x-yaml|toml|javascript|x-sh|sql|csv|x-ndjson)\b", re.IGNORECASE
)
encode_json: Final = msgspec.json.Encoder().encode


def encode_messages(request: ModelRequest, key: str, encode: Callable[[Message], bytes]) -> list[bytes]:
    """Encode all messages. A conversation keeps the bytes of each message under `key` (a dialect and a route)."""
    if request.wire is None:
        return [encode(message) for message in request.messages]
    return request.wire.encoded(key, encode)


class MessageEncoder:
    """Encodes the messages of one route."""

    def __init__(self, route: str, files: Mapping[str, bytes]) -> None:
        self._route = route
        self._files = files
        self.dropped = 0
        """Parts with replay data of another route, which are not sent."""

    def _own_replay(self, part: Reasoning | ToolCall) -> dict[str, Any]:
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


class IdentityCache(Generic[T]):
    """Caches the result of `make` by the identity of its arguments, which all requests of an agent share."""

    __slots__ = ("_entries", "_make", "_size")

    def __init__(self, make: Callable[..., T], size: int = 128) -> None:
        self._make = make
        self._size = size
        # An entry keeps its arguments alive, so no other objects can get their identities.
        self._entries: dict[tuple[int, ...], tuple[tuple[Any, ...], T]] = {}

    def __call__(self, *values: Any) -> T:  # noqa: ANN401  the arguments of `make`
        """Return `make(*values)`."""
        key = tuple(map(id, values))
        found = self._entries.get(key)
        if found is None:
            found = (values, self._make(*values))
            if len(self._entries) >= self._size:
                self._entries.clear()
            self._entries[key] = found
        return found[1]


def derive_call_id(*seed: str) -> str:
    """Make an id for a call that has none: the same for the same seed."""
    digest = hashlib.sha256()
    for piece in seed:
        digest.update(f"{len(piece)}:{piece}".encode("utf-8", "surrogatepass"))
    return f"call_{digest.hexdigest()[:24]}"


def to_base64(data: bytes) -> str:
    """Encode bytes as base64 text."""
    return base64.b64encode(data).decode("ascii")


def data_url(media_type: str, data: bytes) -> str:
    """Make a data URL, without the parameters of the media type."""
    return f"data:{media_type.partition(';')[0].strip()};base64,{to_base64(data)}"


def attachment_bytes(file: Attachment, files: Mapping[str, bytes]) -> bytes:
    """Return the content of an attachment; a `ModelError` if the request does not carry it."""
    data = files.get(file.digest)
    if data is None:
        name = clip_text(file.name, 200) if file.name else file.digest[:12]
        raise ModelError(f"the bytes of the attachment {name} are missing", kind="bad_request")
    return data


def attachment_label(file: Attachment) -> str:
    """Name a file in a text."""
    name = clip_text(file.name or file.digest, 200)
    return f"[{name} ({clip_text(file.media_type, 100)}, {file.size:,} bytes)]"


def is_text_type(media_type: str) -> bool:
    """True if files of a type are text, which can go into a message as such."""
    return _TEXT_TYPE.match(media_type.strip()) is not None


def to_text(value: Any) -> str:  # noqa: ANN401  any JSON value
    """Return a text as it is, any other value as JSON."""
    return value if isinstance(value, str) else encode_json(value).decode()


class ResultPiece(NamedTuple):
    """A piece of a tool's result: an item of a list, or all of it."""

    value: Any
    """The content, with labels in place of the files in it."""
    file: Attachment | None
    """The file, if the piece is a file."""
    inside: list[Attachment]
    """The files somewhere inside the value, in the order of their labels."""

    @property
    def files(self) -> list[Attachment]:
        """The file, or those inside."""
        return self.inside if self.file is None else [self.file]


def split_result(
    result: ToolResult, files: Mapping[str, bytes], label: Callable[[Attachment], str]
) -> list[ResultPiece]:
    """Split a result that has files in it into its pieces; an empty list if it has no files."""
    content = result.content
    is_list = isinstance(content, list | tuple)
    if not files and not is_list and not isinstance(content, Attachment):
        return []  # as in most conversations
    known = {digest: files[digest] for digest in result.files if digest in files}
    items = cast("list[Any]", content) if is_list else [content]
    # Most results have no file, and need not be walked.
    if not known and not any(attachment_from(item, files) for item in items):
        return []
    pieces: list[ResultPiece] = []
    for item in items:
        file = attachment_from(item, files)
        inside: list[Attachment] = []

        def stand_in(found: Attachment, inside: list[Attachment] = inside) -> str:
            inside.append(found)
            return label(found)

        value = replace_attachments(item, known, stand_in, int(is_list)) if known and file is None else item
        pieces.append(ResultPiece(value, file, inside))
    return pieces if any(piece.file or piece.inside for piece in pieces) else []


def replace_attachments(
    value: Any,  # noqa: ANN401  any JSON value
    files: Mapping[str, bytes],
    label: Callable[[Attachment], Any],
    depth: int = 0,
) -> Any:  # noqa: ANN401  any JSON value
    """Replace each file in a value by its label. `depth` is the depth of the value in the result."""
    found = attachment_from(value, files)
    if found is not None:
        return label(found)
    if depth == FILES_DEPTH:
        return value
    if isinstance(value, list | tuple):
        return [replace_attachments(item, files, label, depth + 1) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return {name: replace_attachments(item, files, label, depth + 1) for name, item in fields.items()}
    return value


def attachment_from(value: Any, files: Mapping[str, bytes]) -> Attachment | None:  # noqa: ANN401  any JSON value
    """Return the attachment that a value of a recorded result is, if its bytes are at hand."""
    if isinstance(value, Attachment):
        return value
    if as_dict(value).get("type") != "attachment":
        return None
    try:
        found = msgspec.convert(value, Attachment)
    except msgspec.ValidationError:
        return None
    return found if found.digest in files else None


# ---- strict schemas ----


class StrictSchemaRules(NamedTuple):
    """The rules of an API for strict schemas. It refuses a request that breaks them."""

    keywords: frozenset[str]
    formats: frozenset[str]
    depth: int
    properties: int


COMMON_STRICT_KEYWORDS: Final = frozenset(
    (
        *("type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs"),
        *("properties", "required", "additionalProperties", "items"),
    )
)
"""Accepted by every API that has strict schemas."""


def fits_strict(schema: Any, rules: StrictSchemaRules) -> bool:  # noqa: ANN401  any JSON value
    """True if `schema` obeys the rules: closed objects, all properties required, known keywords only."""
    if as_dict(schema).get("type") != "object":
        return False
    properties = [0]
    return _obeys(schema, rules, 0, properties) and properties[0] <= rules.properties


def _obeys(schema: Any, rules: StrictSchemaRules, depth: int, properties: list[int]) -> bool:  # noqa: ANN401
    if not isinstance(schema, dict) or depth > rules.depth:
        return False
    node = cast("dict[str, Any]", schema)
    if "$ref" in node:
        return len(node) == 1 and str(node["$ref"]).startswith("#")
    types = {kind for kind in as_list(node.get("type")) or [node.get("type")] if isinstance(kind, str)}
    plain = node.keys() <= rules.keywords and ("format" not in node or str(node["format"]) in rules.formats)
    if not plain or not (types or "anyOf" in node):
        return False
    fields = as_dict(node.get("properties"))
    if "object" in types:  # it must have exactly the properties that it names, all of them required
        required, closed = node.get("required"), node.get("additionalProperties") is False
        if not closed or not isinstance(required, list) or not isinstance(node.get("properties"), dict):
            return False
        if sorted(map(str, cast("list[Any]", required))) != sorted(fields):
            return False
    properties[0] += len(fields)
    inner = [(value, depth + 1) for value in fields.values()]
    inner += [(value, depth) for value in as_list(node.get("anyOf"))]
    inner += [(value, 1) for name in ("$defs", "definitions") for value in as_dict(node.get(name)).values()]
    inner += [(node.get("items"), depth + 1)] if "array" in types else []
    return all(_obeys(value, rules, level, properties) for value, level in inner)


# ---- reading what a provider sent ----

JSON_ERRORS: Final = (ValueError, RecursionError)
"""Raised when foreign JSON is read or written."""
MAX_TOKEN_COUNT: Final = 1_000_000_000
"""More than any model reads or writes in one reply."""
_MAX_SECONDS: Final = 2**53 - 1
_decode: Final[Callable[[bytes | str], Any]] = msgspec.json.Decoder().decode
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def as_dict(value: Any) -> dict[str, Any]:  # noqa: ANN401  any JSON value
    """Return an object as it is, anything else as an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:  # noqa: ANN401  any JSON value
    """Return an array as it is, anything else as an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_text(value: Any) -> str:  # noqa: ANN401  any JSON value
    """Return a string as it is, anything else as an empty one."""
    return value if isinstance(value, str) else ""


def token_count(value: Any) -> int:  # noqa: ANN401  any JSON value
    """Read a count of tokens; 0 for anything that is not a number.

    An impossible count is a `ModelError`: believed, it would use up every budget, or refund some.
    """
    if type(value) is int:  # as nearly always
        if 0 <= value <= MAX_TOKEN_COUNT:
            return value
    elif value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    elif math.isfinite(value) and 0 <= value <= MAX_TOKEN_COUNT:
        return int(value)
    words = clip_text(to_json(value) or value, 40)
    raise ModelError(f"the provider counted {words} tokens, which can't be true", kind="bad_usage")


def unix_seconds(value: Any) -> int:  # noqa: ANN401  any JSON value
    """Read a time in whole seconds; 0 for anything else."""
    return value if type(value) is int and 0 <= value <= _MAX_SECONDS else 0


def parse_arguments(text: str) -> tuple[dict[str, Any] | None, str | None]:
    """Return the arguments of a call, or None and the text if it is not a JSON object. Empty and null mean none."""
    if not text.strip():
        return {}, None
    try:
        value = _decode(text)
    except JSON_ERRORS:
        return None, text
    if value is None:
        return {}, None
    return (cast("dict[str, Any]", value), None) if isinstance(value, dict) else (None, text)


def arguments_from_value(value: Any) -> tuple[dict[str, Any] | None, str | None]:  # noqa: ANN401  any JSON value
    """Like `parse_arguments`, for providers that send a value instead of its text."""
    if value is None or isinstance(value, dict):
        return as_dict(value), None
    return parse_arguments(value) if isinstance(value, str) else (None, to_json(value))


def to_json(value: Any) -> str:  # noqa: ANN401  any JSON value
    """Write a value as JSON for people; empty if it has no JSON form or is nested too deeply."""
    try:
        return encode_json(value).decode()
    except JSON_ERRORS:
        return ""


def clip_text(text: Any, limit: int = 1_000) -> str:  # noqa: ANN401  any JSON value
    """Make a provider's text printable and at most `limit` characters long."""
    words = text if isinstance(text, str) else str(text)
    words = words.encode("utf-8", "backslashreplace").decode()
    return words if len(words) <= limit else f"{words[:limit]}..."


def parse_json(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    """Parse a whole JSON text. Lone surrogates and invalid bytes become U+FFFD."""
    try:
        return _decode(data)
    except JSON_ERRORS:
        return repair_surrogates(_parse_leniently(data))


def _parse_leniently(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    """Parse JSON with lone surrogates in it. Slow: for data that the strict parser has refused."""
    try:
        return json.loads(data.decode("utf-8-sig", "replace"), parse_constant=_refuse_number, parse_float=_parse_float)
    except JSON_ERRORS as error:
        raise bad_frame(f"what came is no JSON: {clip_text(error, 200)}") from None


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _parse_float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


def repair_surrogates(value: Any, growing: frozenset[str] = frozenset()) -> Any:  # noqa: ANN401  any JSON value
    """Replace lone surrogates in a value by U+FFFD, except in the texts of `growing` fields."""
    try:
        return _repair(value, growing)
    except RecursionError:
        raise bad_frame("what came is nested too deeply") from None


def _repair(value: Any, growing: frozenset[str]) -> Any:  # noqa: ANN401  any JSON value
    if isinstance(value, str):
        return _join_surrogates(value)
    if isinstance(value, list):
        return [_repair(item, growing) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            _join_surrogates(name): item if name in growing and isinstance(item, str) else _repair(item, growing)
            for name, item in cast("dict[str, Any]", value).items()
        }
    return value


def _join_surrogates(text: str) -> str:
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class SurrogateJoiner:
    """Joins characters that a stream cut in two. The first half waits for the next piece of the same text.

    A reader parses each frame with `parse` and passes each piece of text through `join`. That costs nothing before the
    first frame with half a character. Such frames are rare: a character outside the basic plane has to be written as
    two escapes, and to be cut between them.
    """

    __slots__ = ("_growing", "_waiting", "active")

    def __init__(self, growing: frozenset[str]) -> None:
        self._growing = growing
        """Fields whose text goes on in later frames. In all others a lone surrogate is U+FFFD at once."""
        self.active = False
        """True if a frame had half a character. Before that, hot paths need not call `join`."""
        self._waiting: dict[Hashable, str] = {}

    def parse(self, data: bytes) -> Any:  # noqa: ANN401  any JSON value
        """Parse a frame. Texts in growing fields may have lone surrogates, and have to go through `join`."""
        try:
            return _decode(data)
        except JSON_ERRORS:
            return self.parse_leniently(data)

    def parse_leniently(self, data: bytes) -> Any:  # noqa: ANN401  any JSON value
        """Parse a frame that the caller's own strict parser has refused."""
        value = repair_surrogates(_parse_leniently(data), self._growing)
        self.active = True
        return value

    def join(self, place: Hashable, text: str) -> str:
        """Return the next piece of the text at `place`, without a trailing half."""
        if not self.active:
            return text
        text = self._waiting.pop(place, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._waiting[place] = text[-1]
            text = text[:-1]
        return _join_surrogates(text)

    def flush(self, place: Hashable) -> str:
        """Return U+FFFD if a half still waits at `place`, else nothing."""
        return "\ufffd" if self._waiting.pop(place, None) else ""

    def repair(self, value: Any) -> Any:  # noqa: ANN401  any JSON value
        """Repair a value that is kept as it came, though its fields are named like growing ones."""
        return repair_surrogates(value) if self.active else value


# ---- errors ----


def bad_frame(message: str) -> ModelError:
    """Make the error for a response that can't be understood. Another attempt may bring a better one."""
    return ModelError(message, kind="bad_frame", retryable=True)
