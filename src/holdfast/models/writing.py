"""What the dialects share when they write: bytes made once, files, and schemas that are held strictly. Pure."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec

from holdfast.attachments import FILES_DEPTH
from holdfast.messages import Attachment
from holdfast.models.reading import listed, mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.messages import ToolResult

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


# ---- files -----------------------------------------------------------------------------------------------------------


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


# ---- schemas that a provider can hold a model to ---------------------------------------------------------------------


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
