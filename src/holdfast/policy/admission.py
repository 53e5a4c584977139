"""Admission of inputs: size, rate and repetition. Pure; `store.inbox` checks rate and repetition.

The same key with the same content is always the same turn, before any of this. Here only the content counts.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from holdfast.errors import EmptyInput, InputTooLarge, InvalidArgument
from holdfast.messages import Attachment, InputPart, Text
from holdfast.names import check_int
from holdfast.policy.rules import milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.media import File


Duplicates = Literal["allow", "same_turn", "refuse"]


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs that a session accepts. Spans are timedeltas or seconds."""

    max_chars: int = 1_000_000
    """Characters of all texts of one input together."""
    max_parts: int = 100
    """Texts and files of one input."""
    max_bytes: int = 64 * 1024 * 1024
    """Bytes of all files of one input together."""
    window: timedelta | float = timedelta(minutes=1)
    """The span in which `per_window` inputs are accepted."""
    per_window: int | None = None
    """Inputs of one session in each window; None for no limit."""
    duplicates: Duplicates = "allow"
    """Content that was sent before within `duplicate_window` becomes a turn of its own (``"allow"``: people do say
    "yes" twice), gets the turn of the first (``"same_turn"``), or raises `DuplicateInput` (``"refuse"``).
    """
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
        """Window of the check for earlier inputs in milliseconds; 0 for none."""
        rate = 0 if self.per_window is None else milliseconds(self.window)
        return max(rate, 0 if self.duplicates == "allow" else milliseconds(self.duplicate_window))


DEFAULT: Final = Admission()
_decode: Final = msgspec.json.Decoder(Admission).decode


def encode_admission(admission: Admission) -> str | None:
    """The admission as JSON for other processes; None for the default."""
    return None if admission == DEFAULT else msgspec.json.encode(admission).decode()


def decode_admission(body: str | None) -> Admission:
    """Decode an admission; an unreadable one (of a newer release) becomes the default."""
    if body is None:
        return DEFAULT
    try:
        return _decode(body)
    except (msgspec.DecodeError, InvalidArgument, ValueError):
        return DEFAULT


def find_input_error(
    admission: Admission, session: str, parts: Sequence[InputPart | File]
) -> EmptyInput | InputTooLarge | None:
    """The error for an empty or too large input. Does not read the store."""
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
