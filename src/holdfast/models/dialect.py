"""The wire: what a dialect is made of, and what it needs to know about an endpoint. Pure.

A dialect turns a neutral request into bytes, and the frames of a response into neutral events. It knows no clock, no
socket and no key; whoever sends the bytes adds the credentials.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar, cast

import msgspec

from holdfast.errors import ModelError
from holdfast.media import FILES_DEPTH
from holdfast.messages import Attachment

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from holdfast.messages import Message, ModelPass, ModelReply, ModelRequest, StreamEvent, ToolResult


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


NO_STREAM: Final = "no_stream"
"""The flag that every dialect knows: the endpoint does not stream, or what is in front of it holds streams back."""
_WHOLE: Final = {NO_STREAM: "answers are asked for whole, not as a stream"}
_FLAGS: Final[Mapping[str, Mapping[str, str]]] = {
    "anthropic": {
        **_WHOLE,
        "adaptive_thinking": "effort is sent as adaptive thinking, whatever the model is called",
        "budget_thinking": "effort is sent as a budget of tokens, whatever the model is called",
        "unsigned_thinking": "thoughts are sent back also without a signature",
        "output_in_words": "there is no field for the schema of the answer: it is told in the instructions",
    },
    "responses": {
        **_WHOLE,
        "no_cache_key": "prompt_cache_key is refused and left out",
        "no_encrypted": "encrypted reasoning can't be asked for",
        "no_item_ids": "ids of items are looked up, though nothing is stored: none are sent",
        "no_strict": "strict schemas are not known",
        "no_store": "store is refused and left out",
    },
    "google": {
        **_WHOLE,
        "whole_url": "the address holds all that stands before /models/...: version, project, publisher",
        "gemini2": "the models are of the second generation, whatever their names are",
    },
}


def flags_of(dialect: str) -> Mapping[str, str]:
    """Every flag that a dialect knows, and what it says about an endpoint."""
    found = _FLAGS.get(dialect)
    if found is None:
        from holdfast.models.chat import FLAGS  # noqa: PLC0415  a dialect is imported when it is first spoken

        found = {**_WHOLE, **FLAGS}
    return found


UNREADABLE: Final = (ValueError, RecursionError)
"""What reading or writing JSON that comes from outside can raise."""
MOST_TOKENS: Final = 1_000_000_000
"""More than any model reads or writes in one reply."""
_LATEST: Final = 2**53 - 1
_decode: Final[Callable[[bytes | str], Any]] = msgspec.json.Decoder().decode
_HALF: Final = re.compile("[\ud800-\udfff]")
_REQUEST_IDS: Final = ("x-request-id", "request-id", "apim-request-id", "x-ms-request-id", "x-amzn-requestid")


def mapping(value: Any) -> dict[str, Any]:  # noqa: ANN401  whatever came
    """The object that came, or an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:  # noqa: ANN401  whatever came
    """The array that came, or an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def worded(value: Any) -> str:  # noqa: ANN401  whatever came
    """The text that came, or none."""
    return value if isinstance(value, str) else ""


def counted(value: Any) -> int:  # noqa: ANN401  whatever came
    """The count of tokens that came; 0 for anything that is no number.

    One that can't be true is a `ModelError`: taken for true, it would use up every budget, or give some back.
    """
    if type(value) is int:  # as nearly always
        if 0 <= value <= MOST_TOKENS:
            return value
    elif value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    elif math.isfinite(value) and 0 <= value <= MOST_TOKENS:
        return int(value)
    words = bounded(written(value) or value, 40)
    raise ModelError(f"the provider counted {words} tokens, which can't be true", kind="bad_usage")


def moment(value: Any) -> int:  # noqa: ANN401  whatever came
    """The time that came, in whole seconds; 0 for anything else."""
    return value if type(value) is int and 0 <= value <= _LATEST else 0


def arguments_in(text: str) -> tuple[dict[str, Any] | None, str | None]:
    """The arguments of a call, and what came instead where it was no JSON object. Nothing and null mean none."""
    if not text.strip():
        return {}, None
    try:
        value = _decode(text)
    except UNREADABLE:
        return None, text
    if value is None:
        return {}, None
    return (cast("dict[str, Any]", value), None) if isinstance(value, dict) else (None, text)


def arguments_of(value: Any) -> tuple[dict[str, Any] | None, str | None]:  # noqa: ANN401  whatever came
    """The same, where a provider sends a value instead of its text."""
    if value is None or isinstance(value, dict):
        return mapping(value), None
    return arguments_in(value) if isinstance(value, str) else (None, written(value))


def written(value: Any) -> str:  # noqa: ANN401  whatever came
    """A value as JSON, for somebody to read; nothing where it has no such form, or is nested too deeply."""
    try:
        return msgspec.json.encode(value).decode()
    except UNREADABLE:
        return ""


def made_id(*seed: str) -> str:
    """An id for a call that has none: always the same for the same seed, and like no other."""
    digest = hashlib.sha256()
    for piece in seed:
        digest.update(f"{len(piece)}:{piece}".encode("utf-8", "surrogatepass"))
    return f"call_{digest.hexdigest()[:24]}"


def request_id_in(headers: Mapping[str, str]) -> str | None:
    """The provider's own name for a request, from headers with names in lower case."""
    return next((bounded(headers[name], 200) for name in _REQUEST_IDS if headers.get(name)), None)


def read(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    """JSON that came whole. Halves of characters, and bytes that are no text, become U+FFFD."""
    try:
        return _decode(data)
    except UNREADABLE:
        return sound(read_loosely(data))


def read_loosely(data: bytes) -> Any:  # noqa: ANN401  any JSON value
    """JSON in which a text may have half a character. Slow: for what the strict reader has refused."""
    try:
        return json.loads(data.decode("utf-8-sig", "replace"), parse_constant=_no_number, parse_float=_finite)
    except UNREADABLE as error:
        message = f"what came is no JSON: {bounded(error, 200)}"
        raise ModelError(message, kind="bad_frame", retryable=True) from None


def sound(value: Any, growing: frozenset[str] = frozenset()) -> Any:  # noqa: ANN401  any JSON value
    """A value in which each half of a character is U+FFFD, but for texts in fields that are `growing`."""
    try:
        return _sound(value, growing)
    except RecursionError:
        raise ModelError("what came is nested too deeply", kind="bad_frame", retryable=True) from None


def _sound(value: Any, growing: frozenset[str]) -> Any:  # noqa: ANN401  any JSON value
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, list):
        return [_sound(item, growing) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            whole_characters(name): item if name in growing and isinstance(item, str) else _sound(item, growing)
            for name, item in cast("dict[str, Any]", value).items()
        }
    return value


def whole_characters(text: str) -> str:
    """Text in which two halves that meet are one character, and one without the other is U+FFFD."""
    if _HALF.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


class Halves:
    """Characters that a stream cut in two: the first half waits here until the next piece of the same text comes.

    Whoever reads a stream reads each frame with `read` and passes each piece of text through `join`. That costs nothing
    before the first frame that has half a character, and such frames are rare: a character outside of the basic plane
    has to be written as two escapes, and to be cut between them.
    """

    __slots__ = ("_growing", "_waiting", "broken")

    def __init__(self, growing: frozenset[str]) -> None:
        self._growing = growing
        """The fields whose text goes on in later frames. In all others half a character is U+FFFD at once."""
        self.broken = False
        """Whether a frame had half a character. Before that a reader in a hurry need not call `join`."""
        self._waiting: dict[Hashable, str] = {}

    def read(self, data: bytes) -> Any:  # noqa: ANN401  any JSON value
        """A frame. Texts in growing fields may have halves of characters, and have to go through `join`."""
        try:
            return _decode(data)
        except UNREADABLE:
            return self.read_loosely(data)

    def read_loosely(self, data: bytes) -> Any:  # noqa: ANN401  any JSON value
        """The same, for a frame that a strict reader of the caller's has refused."""
        value = sound(read_loosely(data), self._growing)
        self.broken = True
        return value

    def join(self, place: Hashable, text: str) -> str:
        """The next piece of the text at `place`, as far as its characters are whole."""
        if not self.broken:
            return text
        text = self._waiting.pop(place, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._waiting[place] = text[-1]
            text = text[:-1]
        return whole_characters(text)

    def kept(self, value: Any) -> Any:  # noqa: ANN401  any JSON value
        """A value that did not grow and is kept as it came, though it has fields that are called like growing ones."""
        return sound(value) if self.broken else value

    def left(self, place: Hashable) -> str:
        """What stands for a half at `place` whose other one never came; nothing where there is none."""
        return "\ufffd" if self._waiting.pop(place, None) else ""


T = TypeVar("T")
EMPTY_MESSAGE: Final = "(empty message)"
"""Sent in place of a user message without words or files, by dialects whose providers refuse an empty one."""
EMPTY_FILE: Final = "(empty file)"
"""Sent in place of the text of a file that has none."""


class Once(Generic[T]):
    """What is made of values that are the same objects in every request of an agent: made once, then looked up."""

    __slots__ = ("_kept", "_make", "_room")

    def __init__(self, make: Callable[..., T], room: int = 128) -> None:
        self._make = make
        self._room = room
        # The values are kept with what is made of them, so no other values can get their identities.
        self._kept: dict[tuple[int, ...], tuple[tuple[Any, ...], T]] = {}

    def __call__(self, *values: Any) -> T:  # noqa: ANN401  what `make` takes
        """What is made of `values`."""
        key = tuple(map(id, values))
        found = self._kept.get(key)
        if found is None:
            found = (values, self._make(*values))
            if len(self._kept) >= self._room:
                self._kept.clear()
            self._kept[key] = found
        return found[1]


def attachment_in(value: Any, files: Mapping[str, bytes]) -> Attachment | None:  # noqa: ANN401  any JSON value
    """The attachment that a value in a tool's result stands for: it was recorded as JSON, and its bytes are here."""
    if isinstance(value, Attachment):
        return value
    if mapping(value).get("type") != "attachment":
        return None
    try:
        found = msgspec.convert(value, Attachment)
    except msgspec.ValidationError:
        return None
    return found if found.digest in files else None


class Piece(NamedTuple):
    """A piece of a tool's result: an item of a list, or all of it."""

    value: Any
    """What it says, with labels in place of the files in it."""
    file: Attachment | None
    """The file that it is, if it is one."""
    inside: list[Attachment]
    """The files that it holds somewhere in it, in the order of their labels."""


def pieces_of(result: ToolResult, files: Mapping[str, bytes], label: Callable[[Attachment], str]) -> list[Piece]:
    """The pieces of a result in which there are files; none where there is no file, and the content is just JSON."""
    content = result.content
    many = isinstance(content, list | tuple)
    if not files and not many and not isinstance(content, Attachment):
        return []  # as in most conversations
    told = {digest: files[digest] for digest in result.files if digest in files}
    items = cast("list[Any]", content) if many else [content]
    # Most results speak of no file, and need not be walked.
    if not told and not any(attachment_in(item, files) for item in items):
        return []
    pieces = [_piece(item, files, told, label, 1 if many else 0) for item in items]
    return pieces if any(piece.file or piece.inside for piece in pieces) else []


def _piece(
    value: Any,  # noqa: ANN401  any JSON value
    files: Mapping[str, bytes],
    told: Mapping[str, bytes],
    label: Callable[[Attachment], str],
    depth: int,
) -> Piece:
    file = attachment_in(value, files)
    inside: list[Attachment] = []

    def stand_in(found: Attachment) -> str:
        inside.append(found)
        return label(found)

    return Piece(labelled(value, told, stand_in, depth) if told and file is None else value, file, inside)


def labelled(value: Any, files: Mapping[str, bytes], label: Callable[[Attachment], Any], depth: int = 0) -> Any:  # noqa: ANN401  any JSON value
    """A value with what `label` gives in place of each file in it. `depth` is how deep in a result it stands itself."""
    found = attachment_in(value, files)
    if found is not None:
        return label(found)
    if depth == FILES_DEPTH:
        return value
    if isinstance(value, list | tuple):
        return [labelled(item, files, label, depth + 1) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: labelled(item, files, label, depth + 1) for name, item in cast("dict[Any, Any]", value).items()}
    return value


def base64_of(data: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(data).decode("ascii")


def data_url(media_type: str, data: bytes) -> str:
    """Bytes as an address, without the parameters of their media type."""
    return f"data:{media_type.partition(';')[0].strip()};base64,{base64_of(data)}"


class Strictness(NamedTuple):
    """What an API takes in a schema that is marked strict. One thing more, and it refuses the request."""

    words: frozenset[str]
    formats: frozenset[str]
    depth: int
    properties: int


PLAIN_WORDS: Final = frozenset(
    (
        *("type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs"),
        *("properties", "required", "additionalProperties", "items"),
    )
)
"""What everybody takes who knows strict schemas at all."""


def is_strict(schema: Any, rules: Strictness) -> bool:  # noqa: ANN401  any JSON value
    """Whether `schema` keeps the rules: closed objects, all properties required, plain words only."""
    if mapping(schema).get("type") != "object":
        return False
    properties = [0]
    return _obeys(schema, rules, 0, properties) and properties[0] <= rules.properties


def _obeys(schema: Any, rules: Strictness, depth: int, properties: list[int]) -> bool:  # noqa: ANN401  a piece of it
    if not isinstance(schema, dict) or depth > rules.depth:
        return False
    found = cast("dict[str, Any]", schema)
    if "$ref" in found:
        return len(found) == 1 and str(found["$ref"]).startswith("#")
    kinds = {kind for kind in listed(found.get("type")) or [found.get("type")] if isinstance(kind, str)}
    plain = found.keys() <= rules.words and ("format" not in found or str(found["format"]) in rules.formats)
    if not plain or not (kinds or "anyOf" in found) or not _is_closed(found, kinds):
        return False
    fields = mapping(found.get("properties"))
    properties[0] += len(fields)
    inner = [(value, depth + 1) for value in fields.values()]
    inner += [(value, depth) for value in listed(found.get("anyOf"))]
    inner += [(value, 1) for name in ("$defs", "definitions") for value in mapping(found.get(name)).values()]
    inner += [(found.get("items"), depth + 1)] if "array" in kinds else []
    return all(_obeys(value, rules, level, properties) for value, level in inner)


def _is_closed(schema: dict[str, Any], kinds: set[str]) -> bool:
    """Whether an object has exactly the properties it names, each of them always."""
    if "object" not in kinds:
        return True
    required, fields = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(fields, dict):
        return False
    named = sorted(map(str, cast("list[Any]", required))) == sorted(map(str, cast("dict[Any, Any]", fields)))
    return named and schema.get("additionalProperties") is False


_TOO_LONG: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|context[ _](?:length|window|size|limit)"
    r"|maximum (?:context|prompt|model) length|exceeds? (?:the )?max(?:imum)? length|range of input length should be"
    r"|(?:prompt|input|request|conversation) is too long|prompt too long"
    r"|too many (?:input )?tokens|exceeded model token limit"
    r"|input (?:length|tokens?).{0,24}exceed|token count.{0,80}exceeds|exceeds? the (?:maximum|model).{0,40}tokens"
    r"|tokens.{0,24}must be <=|must have less than \d+ tokens"
    r"|reduce the length|reduce your message size|request too large for model",
    re.IGNORECASE,
)


def too_long(words: str) -> bool:
    """Whether somebody says so. Where a status says that time helps, these words are about a minute instead."""
    return _TOO_LONG.search(words) is not None
