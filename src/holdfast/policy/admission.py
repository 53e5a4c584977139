"""Which input a session takes in. Pure: the caller brings what was said a moment ago, and raises what comes back.

The same key with the same content is the same turn, always and before any of this. Here the content decides: what was
said, not under which key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast.bounds import check_int
from holdfast.errors import DuplicateInput, EmptyInput, InputTooLarge, InvalidArgument, RateExceeded
from holdfast.messages import Attachment, Text
from holdfast.policy.spans import milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        spans = [
            0 if self.per_window is None else milliseconds(self.window),
            0 if self.duplicates == "allow" else milliseconds(self.duplicate_window),
        ]
        return max(spans)


@dataclass(frozen=True, slots=True)
class Arrival:
    """An input that asks to be taken in, at a time in wall milliseconds. `digest` stands for what is said."""

    session: str
    parts: tuple[InputPart, ...]
    digest: str
    at: int


@dataclass(frozen=True, slots=True)
class Recent:
    """An input of the same session that was taken in."""

    digest: str
    at: int
    key: str | None = None
    input: int = 0
    """Its number in the session."""


@dataclass(frozen=True, slots=True)
class SameTurn:
    """The answer is the turn of an input that is there already."""

    first: Recent


Refused: TypeAlias = EmptyInput | InputTooLarge | DuplicateInput | RateExceeded


def admit(admission: Admission, arrival: Arrival, recent: Sequence[Recent]) -> SameTurn | Refused | None:
    """None when the input is taken in; otherwise what it is instead. `recent` may be in any order."""
    return misshapen(admission, arrival.session, arrival.parts) or crowded(
        arrival.session,
        arrival.digest,
        arrival.at,
        recent,
        window_ms=milliseconds(admission.window),
        per_window=admission.per_window,
        duplicate_window_ms=milliseconds(admission.duplicate_window),
        duplicates=admission.duplicates,
    )


def misshapen(admission: Admission, session: str, parts: tuple[InputPart, ...]) -> EmptyInput | InputTooLarge | None:
    """What is wrong with an input by itself. It needs no look at the store."""
    texts = [part.text for part in parts if isinstance(part, Text)]
    files = [part.size for part in parts if isinstance(part, Attachment)]
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


def crowded(  # noqa: PLR0913
    session: str,
    digest: str,
    at: int,
    recent: Sequence[Recent],
    *,
    window_ms: int,
    per_window: int | None,
    duplicate_window_ms: int,
    duplicates: Duplicates,
) -> SameTurn | DuplicateInput | RateExceeded | None:
    """What is wrong with an input beside those that came a moment ago. Plain numbers, for a rule of the store.

    A window lies around now: a clock that was set back a little, or very far, neither opens the gate nor shuts it for
    long.
    """
    if duplicates != "allow":
        same = [found for found in recent if found.digest == digest and abs(found.at - at) < duplicate_window_ms]
        if same:
            first = min(same, key=lambda found: (found.input, found.at))
            return SameTurn(first) if duplicates == "same_turn" else DuplicateInput(session, first.key, first.at)
    if per_window is None:
        return None
    within = sorted(found.at for found in recent if abs(found.at - at) < window_ms)
    if len(within) < per_window:
        return None
    # There is room when so many have grown old that one more fits.
    return RateExceeded(session, per_window, window_ms, within[-per_window] + window_ms)
