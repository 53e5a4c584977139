"""What a function returned, on its way to the model and to the store. Pure.

Text goes as it is, and bytes as the text they hold. What is too long is kept whole beside the record, and the model
gets its beginning and its end: `Long` says what to keep, and makes the text once it has a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import msgspec

from holdfast.effects.failures import printable
from holdfast.tools.cutting import Cut, Lost, Whole, cut

SHARE: Final = 0.1
"""How much of what is called text may be bytes that no text has."""

_LOOKED_AT: Final = 65_536
_CONTROLS: Final = bytes({*range(32)} - {*b"\t\n\r\f\b\x1b"})


@dataclass(frozen=True, slots=True)
class Long:
    """A text that is too long for the model."""

    text: str
    limit: int

    def body(self) -> bytes:
        """The bytes to keep. What no encoding knows is written as its escape."""
        return self.text.encode("utf-8", "backslashreplace")

    def told(self, whole: Whole | Lost | None) -> Cut:
        """What the model gets; `whole` is where the rest was kept, or why it was not; None if nothing reads it."""
        made = cut(self.text, self.limit, whole)
        return made if made is not None else Cut(self.text, len(self.text), 0)


def as_text(value: object) -> object:
    """Bytes as the text that they hold, and text as text that can be stored; everything else as it is."""
    if isinstance(value, str):
        return _storable(value if type(value) is str else str.__str__(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _decoded(bytes(cast("bytes", value)))
    return value


def long_text(value: object, limit: int) -> Long | None:
    """`value`, if it is text of more than `limit` characters. Nothing is copied."""
    return Long(value, limit) if type(value) is str and len(value) > limit else None


def long_json(body: bytes, limit: int) -> Long | None:
    """The JSON in `body` as text to read, if it has more than `limit` characters: a line for each thing in it."""
    if len(body) <= limit or body[:1] == b'"':
        return None
    if len(body) <= 4 * limit and len(body.decode()) <= limit:
        return None
    return Long(msgspec.json.format(body, indent=1).decode(), limit)


def _storable(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:  # a name of a file in another encoding, half of a pair
        return printable(text)
    return text


def _decoded(data: bytes) -> str:
    sample = data[:_LOOKED_AT]
    if _is_binary(sample):
        said = "return holdfast.File(data, media_type) to hand it over as a file"
        return f"[{len(data):,} bytes that are not text; {said}]"
    return data.decode("utf-8", "backslashreplace")


def _is_binary(sample: bytes) -> bool:
    """Whether much of it is what no text has: zeros, control characters, bytes of no encoding."""
    if not sample:
        return False
    strange = len(sample) - len(sample.translate(None, _CONTROLS))
    wrong = sample.decode("utf-8", "replace").count("\ufffd")
    return strange + wrong > SHARE * len(sample)
