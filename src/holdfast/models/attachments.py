"""Attachments in requests: their bytes, their labels, and their places in the results of tools. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec

from holdfast.errors import ModelError
from holdfast.media import FILES_DEPTH
from holdfast.messages import Attachment, ToolResult
from holdfast.models.json_values import as_dict, clip_text, is_dict

EMPTY_FILE: Final = "(empty file)"
"""Replaces the text of an empty file."""
_TEXT_TYPE: Final = re.compile(
    r"text/|[\w.+-]+/[\w.+-]+\+(?:json|xml)\b"
    r"|application/(?:[\w.+-]+\+)?(?:json|xml|yaml|x-yaml|toml|javascript|x-sh|sql|csv|x-ndjson)\b",
    re.IGNORECASE,
)


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
        raise ModelError(f"the bytes of the attachment {file_name(file)} are missing", kind="bad_request")
    return data


def file_name(file: Attachment) -> str:
    """Return the name of a file for people, or the beginning of its digest."""
    return clip_text(file.name, 200) if file.name else file.digest[:12]


def attachment_label(file: Attachment) -> str:
    """Name a file in a text."""
    name = clip_text(file.name or file.digest, 200)
    return f"[{name} ({clip_text(file.media_type, 100)}, {file.size:,} bytes)]"


def is_text_type(media_type: str) -> bool:
    """True if files of a type are text, which can go into a message directly."""
    return _TEXT_TYPE.match(media_type.strip()) is not None


class ResultPiece(NamedTuple):
    """A piece of a tool's result: an item of a list, or all of it."""

    value: Any
    """The content, with labels in place of the files in it."""
    file: Attachment | None
    """The file, if the piece is a file."""
    files: list[Attachment]
    """The file, or those somewhere inside the value, in the order of their labels."""


def split_result(
    result: ToolResult, files: Mapping[str, bytes], label: Callable[[Attachment], str]
) -> list[ResultPiece]:
    """Split a result with files into its pieces; an empty list if it has no files."""
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
        found: list[Attachment] = []

        def stand_in(file: Attachment, found: list[Attachment] = found) -> str:
            found.append(file)
            return label(file)

        if file is not None:
            value = stand_in(file)
        else:
            value = replace_attachments(item, known, stand_in, int(is_list)) if known else item
        pieces.append(ResultPiece(value, file, found))
    return pieces if any(piece.files for piece in pieces) else []


def replace_attachments(
    value: Any,  # any JSON value
    files: Mapping[str, bytes],
    label: Callable[[Attachment], Any],
    depth: int = 0,
) -> Any:  # any JSON value
    """Replace each file in a value by its label. `depth` is the depth of the value in the result."""
    found = attachment_from(value, files)
    if found is not None:
        return label(found)
    if depth == FILES_DEPTH:
        return value
    if isinstance(value, list | tuple):
        return [replace_attachments(item, files, label, depth + 1) for item in cast("list[Any]", value)]
    if is_dict(value):
        return {name: replace_attachments(item, files, label, depth + 1) for name, item in value.items()}
    return value


def attachment_from(value: Any, files: Mapping[str, bytes]) -> Attachment | None:  # any JSON value
    """The attachment encoded in a value of a recorded result, if its bytes are at hand."""
    if isinstance(value, Attachment):
        return value
    if as_dict(value).get("type") != "attachment":
        return None
    try:
        found = msgspec.convert(value, Attachment)
    except msgspec.ValidationError:
        return None
    return found if found.digest in files else None
