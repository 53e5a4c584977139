"""The text of an entry's file: the text alone, or after a front matter with its form, summary and metadata.

    ---
    memory: json
    summary: "the sizes that she wears"
    metadata: {"source":"crm"}
    ---
    {"shoe": 38}

A file is read like this only if its second line begins with `memory:`; any other file is a text as it is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from holdfast.effects.canonical import canonical_json, check
from holdfast.errors import InvalidId, InvalidValue, UsageError
from holdfast.errors.fields import ErrorFields
from holdfast.names import check_line
from holdfast.store.memories import text_of

if TYPE_CHECKING:
    from holdfast.store import MemoryChange, MemoryEntry, StoreLimits


_OURS: Final = re.compile(r"---[ \t]{0,20}\r?\nmemory:")
_LONGEST_BEGIN: Final = 32
"""Bytes of the longest text that matches it."""
_WHOLE: Final = re.compile(r"---[ \t]*\r?\n(?P<lines>.*?\n)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_FORMS: Final = ("text", "json")


class FrontMatterInvalid(ErrorFields, UsageError):
    """The front matter of a file, or the JSON after it, can't be read. The file and the entry stay as they are."""

    reason: str
    _message = "its front matter can't be read: {reason}"


class FileContent(NamedTuple):
    """The value, summary and metadata in a file."""

    value: Any
    summary: str = ""
    metadata: dict[str, Any] = {}  # noqa: RUF012  never changed

    @property
    def text(self) -> str:
        """The text of the file, in the one form that the mirror writes."""
        is_json = not isinstance(self.value, str)
        if not (is_json or self.summary or self.metadata or _OURS.match(self.value)):
            return self.value
        lines = ["---", f"memory: {_FORMS[is_json]}"]
        lines += [f"summary: {canonical_json(self.summary).decode()}"] if self.summary else []
        lines += [f"metadata: {canonical_json(self.metadata).decode()}"] if self.metadata else []
        return "\n".join([*lines, "---", f"{text_of(self.value)}\n" if is_json else self.value])


def file_text(of: MemoryEntry | MemoryChange) -> str:
    """The text of the file of an entry."""
    return FileContent(of.value, of.summary, of.metadata).text


def has_front_matter(data: bytes) -> bool:
    """True if a file begins like one with a front matter."""
    return _OURS.match(data[:_LONGEST_BEGIN].decode(errors="replace")) is not None


def max_file_bytes(limits: StoreLimits) -> int:
    """The size of the largest file that can be an entry."""
    # Each character of a summary is escaped with at most one more.
    return limits.memory_bytes + 2 * limits.memory_summary_bytes + limits.memory_metadata_bytes + 100


def parse_file(text: str) -> FileContent:
    """The entry in the text of a file; `FrontMatterInvalid` names the line that can't be read."""
    if not _OURS.match(text):
        return FileContent(text)
    found = _WHOLE.match(text)
    if found is None:
        raise FrontMatterInvalid("no line '---' ends it")
    fields: dict[str, str] = {}
    for line in found["lines"].removesuffix("\n").split("\n"):
        name, mark, said = line.partition(":")
        if not mark or name not in {"memory", "summary", "metadata"} or name in fields:
            reason = "it comes twice" if name in fields else "it is none of memory, summary and metadata"
            raise FrontMatterInvalid(f"the line {line[:80]!r}: {reason}")
        fields[name] = said.strip()
    form = fields["memory"]
    if form not in _FORMS:
        raise FrontMatterInvalid(f"'memory: {form[:80]}': text or json is wanted")
    body = text[found.end() :]
    value = body if form == "text" else parse_json(body, "the text after it")
    metadata = parse_json(fields.get("metadata") or "{}", "metadata")
    if not isinstance(metadata, dict):
        raise FrontMatterInvalid("metadata is no JSON object")
    return FileContent(value, _parse_summary(fields.get("summary", "")), metadata)


def parse_json(text: str, what: str) -> Any:
    """The value of a JSON text other than a text and null; `FrontMatterInvalid` says why there is none."""
    try:
        value = msgspec.json.decode(text)
        check(value)
    except (msgspec.DecodeError, InvalidValue, RecursionError, UnicodeEncodeError) as error:
        raise FrontMatterInvalid(f"{what} is no JSON that can be stored: {error}") from None
    if value is None or isinstance(value, str):
        raise FrontMatterInvalid(f"{what} is null or a text; an object, a list, a number or true or false is wanted")
    return value


def _parse_summary(said: str) -> str:
    """A summary in quotes, as in JSON, or without."""
    try:
        return check_line("summary", msgspec.json.decode(said, type=str) if said.startswith('"') else said)
    except (msgspec.DecodeError, InvalidId) as error:
        raise FrontMatterInvalid(f"the summary: {error}") from None
