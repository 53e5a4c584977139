"""Which input a session takes in. Pure. What came a moment ago the store knows, and decides by its own rule.

The same key with the same content is the same turn, always and before any of this. Here the content decides: what was
said, not under which key.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from holdfast.errors import EmptyInput, InputTooLarge, InvalidArgument
from holdfast.messages import Attachment, Text
from holdfast.names import check_int
from holdfast.policy.rules import milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.media import File
    from holdfast.messages import InputPart


Duplicates = Literal["allow", "same_turn", "refuse"]


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """What a session takes in, with the defaults. Spans are timedeltas, or seconds."""

    max_chars: int = 1_000_000
    """Characters of all texts of one input together."""
    max_parts: int = 100
    """Texts and files of one input."""
    max_bytes: int = 64 * 1024 * 1024
    """Bytes of all files of one input together."""
    window: timedelta | float = timedelta(minutes=1)
    """Over what `per_window` runs."""
    per_window: int | None = None
    """Inputs of one session; None: as many as come."""
    duplicates: Duplicates = "allow"
    """What becomes of content that was said within `duplicate_window`: a turn of its own (``"allow"``: people do say
    "yes" twice), the turn of the first (``"same_turn"``), or a `DuplicateInput` (``"refuse"``)."""
    duplicate_window: timedelta | float = timedelta(seconds=10)

    def __post_init__(self) -> None:
        check_int("admission max_chars", self.max_chars, least=1)
        check_int("admission max_parts", self.max_parts, least=1)
        check_int("admission max_bytes", self.max_bytes)
        if self.per_window is not None:
            check_int("admission per_window", self.per_window, least=1, most=10_000)
        if self.duplicates not in ("allow", "same_turn", "refuse"):
            raise InvalidArgument("admission duplicates", self.duplicates, "'allow', 'same_turn' or 'refuse'")
        milliseconds(self.window)
        milliseconds(self.duplicate_window)

    @property
    def looks_back_ms(self) -> int:
        """How far back `admit` needs to know what was said; 0: not at all."""
        rate = 0 if self.per_window is None else milliseconds(self.window)
        return max(rate, 0 if self.duplicates == "allow" else milliseconds(self.duplicate_window))


DEFAULT: Final = Admission()
_decode: Final = msgspec.json.Decoder(Admission).decode


def encode_admission(admission: Admission) -> str | None:
    """What an agent takes in, for others to read; None where it is as by default."""
    return None if admission == DEFAULT else msgspec.json.encode(admission).decode()


def decode_admission(body: str | None) -> Admission:
    """What `written` wrote. What can't be read (a newer release may have written it) is the default."""
    if body is None:
        return DEFAULT
    try:
        return _decode(body)
    except (msgspec.DecodeError, InvalidArgument, ValueError):
        return DEFAULT


def find_input_error(
    admission: Admission, session: str, parts: Sequence[InputPart | File]
) -> EmptyInput | InputTooLarge | None:
    """What is wrong with an input by itself. It needs no look at the store."""
    texts = [part.text for part in parts if isinstance(part, Text)]
    others = [part for part in parts if not isinstance(part, Text)]
    files = [part.size if isinstance(part, Attachment) else len(part.data) for part in others]
    if not files and not any(text.strip() for text in texts):
        return EmptyInput("".join(texts))
    sizes = (
        ("parts", len(parts), admission.max_parts),
        ("characters", sum(map(len, texts)), admission.max_chars),
        ("bytes", sum(files), admission.max_bytes),
    )
    for what, size, limit in sizes:
        if size > limit:
            return InputTooLarge(session, what, size, limit)
    return None
