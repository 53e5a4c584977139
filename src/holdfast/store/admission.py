"""How much a journal takes in, and how it tells what was said before: plain numbers, and the rules about them.

Only inputs that were accepted under an admission count: a request to stop, say, takes nobody's place. The same key with
the same content is the same input, always and before any of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from holdfast.bounds import check_int
from holdfast.errors import InvalidArgument
from holdfast.errors.admission import DuplicateInput, RateExceeded
from holdfast.names import check_choice
from holdfast.store.contract import Receipt

if TYPE_CHECKING:
    from holdfast.store.contract import InputRow, JournalRow

Duplicates = Literal["allow", "same_turn", "refuse"]

DUPLICATES: Final[tuple[str, ...]] = get_args(Duplicates)
MOST_PER_WINDOW: Final = 100_000


class Admission(msgspec.Struct, frozen=True):
    """What is taken in. A window is that many milliseconds around now: a clock that was set back a little, or very
    far, neither opens the gate nor shuts it for long.
    """

    per_window: int | None = None
    """Inputs in `window_ms`; None is as many as come."""
    window_ms: int = 60_000
    duplicates: Duplicates = "allow"
    """What becomes of content that came within `duplicate_window_ms`: an input of its own, the receipt of the first,
    or a `DuplicateInput`."""
    duplicate_window_ms: int = 10_000


def checked_admission(given: object) -> Admission:
    """The admission itself, or the error that says what is wrong with it."""
    if not isinstance(given, Admission):
        raise InvalidArgument("admission", given, "an Admission")
    if given.per_window is not None:
        check_int("admission per_window", given.per_window, least=1, most=MOST_PER_WINDOW)
    check_int("admission window_ms", given.window_ms, least=1)
    check_choice("admission duplicates", given.duplicates, DUPLICATES)
    check_int("admission duplicate_window_ms", given.duplicate_window_ms, least=1)
    return given


def window_around(now: int, width_ms: int) -> tuple[int, int]:
    """The first and the last moment that count."""
    return now - width_ms + 1, now + width_ms - 1


def decide_duplicate(row: JournalRow, first: InputRow | None, admission: Admission) -> Receipt | None:
    """The receipt of the input that said the same, or None when the new one is taken in."""
    if first is None:
        return None
    if admission.duplicates == "refuse":
        raise DuplicateInput(row.id, first.key, first.at)
    return Receipt(row.id, first.input, first.key, first.at, fresh=False)


def check_rate(row: JournalRow, admission: Admission, nth: int | None) -> None:
    """`nth` is when the input came that must have left the window before another one has room; None: it has."""
    if admission.per_window is not None and nth is not None:
        raise RateExceeded(row.id, admission.per_window, admission.window_ms, nth + admission.window_ms)
