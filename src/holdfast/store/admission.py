"""How much a journal takes in, and how it tells what was said before: plain numbers, and the rules about them.

Only inputs that were accepted under an admission count: a request to stop, say, takes nobody's place. The same key with
the same content is the same input, always and before any of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.errors.caller import DuplicateInput, RateExceeded
from holdfast.names import check_choice, check_id, check_int, check_string
from holdfast.store.calls import Calls
from holdfast.store.contract import Command, Receipt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.contract import InputRow, JournalRow


Duplicates = Literal["allow", "same_turn", "refuse"]
DUPLICATES: Final[tuple[str, ...]] = get_args(Duplicates)
MOST_PER_WINDOW: Final = 100_000


class AdmissionWindow(msgspec.Struct, frozen=True):
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


def check_admission(given: object) -> AdmissionWindow:
    """The admission itself, or the error that says what is wrong with it."""
    if not isinstance(given, AdmissionWindow):
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


def decide_duplicate(row: JournalRow, first: InputRow | None, admission: AdmissionWindow) -> Receipt | None:
    """The receipt of the input that said the same, or None when the new one is taken in."""
    if first is None:
        return None
    if admission.duplicates == "refuse":
        raise DuplicateInput(row.id, first.key, first.at)
    return Receipt(row.id, first.input, first.key, first.at, fresh=False)


def check_rate(row: JournalRow, admission: AdmissionWindow, nth: int | None) -> None:
    """`nth` is when the input came that must have left the window before another one has room; None: it has."""
    if admission.per_window is not None and nth is not None:
        raise RateExceeded(row.id, admission.per_window, admission.window_ms, nth + admission.window_ms)


REFUSALS_KEPT_PER_JOURNAL: Final = 20
"""Refusals of one journal that are kept; older ones are only counted."""
REFUSALS_KEPT: Final = 1_000
"""Refusals of all journals that are kept: whoever makes up names can't fill the store."""
MAX_MESSAGE: Final = 1_000


class RefusedInput(msgspec.Struct, frozen=True):
    """An input that was not taken in. Of the input itself nothing is kept."""

    id: int
    """Its number in the store: so many were refused so far."""
    journal: str
    agent: str | None
    key: str | None
    at: int
    """In wall milliseconds."""
    error: str
    """The name of the error that the caller got."""
    message: str
    nth: int
    """So many inputs of this journal were refused so far, as long as one of them is kept."""


class NoteRefusal(Command[RefusedInput], frozen=True):
    """Keep that an input was refused. The journal need not be there."""

    journal: str
    agent: str | None
    key: str | None
    error: str
    message: str

    def size(self) -> int:
        return len(self.message)


class SetTerms(Command[None], frozen=True):
    """Keep what an agent takes in, as JSON; None: nothing of its own."""

    agent: str
    body: str | None

    def size(self) -> int:
        return len(self.body or "")


class AdmissionRows(Protocol):
    """The gate inside a transaction."""

    def note(self, asked: NoteRefusal, at: int) -> RefusedInput:
        """Keep a refusal, and drop those that are too many."""
        ...

    def set_terms(self, agent: str, body: str | None, at: int) -> None: ...


class AdmissionReader(Protocol):
    """The gate as it can be read."""

    def terms(self) -> dict[str, str]:
        """What agents take in, of all that have said something of their own."""
        ...

    def refusals(self, journal: str | None, limit: int) -> list[RefusedInput]:
        """Newest first."""
        ...

    def raw_texts(self) -> Iterator[str]:
        """All that is kept here."""
        ...


class GateCalls(Calls):
    """What agents take in, and what was refused."""

    async def note_refusal(
        self, journal: str, *, agent: str | None, key: str | None, error: str, message: str
    ) -> RefusedInput:
        """Keep that an input of `journal` was refused; the journal need not be there.

        The last 20 of a journal are kept, and the last 1,000 of all; a refusal tells how many there were before it.
        """
        check_id("journal id", journal)
        for what, name in (("agent", agent), ("input key", key)):
            if name is not None:
                check_id(what, name)
        said = self.redactor.text(check_string("message", message))[:MAX_MESSAGE]
        return await self._submit(NoteRefusal(journal, agent, key, check_id("error", error), said))

    async def refusals(self, journal: str | None = None, *, limit: int = 50) -> list[RefusedInput]:
        """Inputs that were refused, newest first; of one journal, or of all."""
        if journal is not None:
            check_id("journal id", journal)
        most = self._page(limit)
        return await self._backend.read(lambda reader: reader.admission.refusals(journal, most))

    async def set_terms(self, agent: str, body: str | None) -> None:
        """Keep what an agent takes in, as JSON, for processes that do not know the agent; None: nothing of its own."""
        check_id("agent", agent)
        await self._submit(SetTerms(agent, None if body is None else check_string("terms", body)))

    async def terms(self) -> dict[str, str]:
        """What agents take in, of all that have said something of their own."""
        return await self._backend.read(lambda reader: reader.admission.terms())
