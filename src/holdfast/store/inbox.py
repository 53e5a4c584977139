"""The inbox: accepted inputs, and admission as the store enforces it.

An agent declares its admission in `policy.admission`, which also checks the input itself (size, parts). Rate and
duplicates need the inbox, so the store decides them in the commit that accepts the input. Only inputs accepted under an
`AdmissionWindow` count, so a stop request takes no place.

The same key with the same content is always the same input, before any of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Self, get_args

import msgspec
from msgspec.structs import replace

from holdfast.errors import InboxFull, InvalidArgument, KeyConflict, SiblingBegun, StopRequested
from holdfast.errors.caller import DuplicateInput, RateExceeded
from holdfast.names import check_choice, check_int
from holdfast.store import spending
from holdfast.store.contract import Command, Input, InputRow, NewJournal, Receipt, input_digest

if TYPE_CHECKING:
    from holdfast.secrets.redactor import Redactor
    from holdfast.store.contract import JournalRow, Rows, StoreLimits
    from holdfast.store.notifications import DeliverNotifications
    from holdfast.store.transaction import OpenJournal, Transaction


STOP_KEY: Final = "holdfast/cancel"
"""The key of a stop request for a process; for a turn, the name of the turn follows."""
Duplicates = Literal["allow", "same_turn", "refuse"]
DUPLICATES: Final[tuple[str, ...]] = get_args(Duplicates)
MOST_PER_WINDOW: Final = 100_000
REFUSALS_KEPT_PER_JOURNAL: Final = 20
"""The store keeps this many refusals of one journal; it only counts older ones."""
REFUSALS_KEPT: Final = 1_000
"""The store keeps this many refusals in all, so that made-up journal names can't fill it."""
MAX_MESSAGE: Final = 1_000


class AdmissionWindow(msgspec.Struct, frozen=True):
    """The rate limit and the treatment of duplicates for one input.

    A window reaches that many milliseconds back and forward from now, so a clock set back neither opens the inbox nor
    shuts it for long.
    """

    per_window: int | None = None
    """Inputs in `window_ms`; None for no limit."""
    window_ms: int = 60_000
    duplicates: Duplicates = "allow"
    """Content repeated within `duplicate_window_ms` becomes an input of its own (``"allow"``), gets the receipt of the
    first (``"same_turn"``), or raises `DuplicateInput` (``"refuse"``).
    """
    duplicate_window_ms: int = 10_000


class RefusedInput(msgspec.Struct, frozen=True):
    """A refused input. The store keeps nothing of its content."""

    id: int
    """Its number among all refusals of the store."""
    journal: str
    agent: str | None
    key: str | None
    at: int
    """In wall milliseconds."""
    error: str
    """The name of the error for the caller."""
    message: str
    nth: int
    """Its number among the refusals of this journal; counting restarts when the store has forgotten all of them."""


class NoteRefusal(Command[RefusedInput], frozen=True):
    """Record that an input was refused. The journal need not exist."""

    journal: str
    agent: str | None
    key: str | None
    error: str
    message: str

    def apply(self, tx: Transaction) -> RefusedInput:
        return tx.rows.admission.note(self, tx.now.wall)


class SetTerms(Command[None], frozen=True):
    """Store the admission of an agent as JSON; None removes it."""

    agent: str
    body: str | None

    def _contents(self) -> dict[str, str | bytes]:
        return {}  # numbers and choices: redacted, they would be other limits

    def apply(self, tx: Transaction) -> None:
        tx.rows.admission.set_terms(self.agent, self.body, tx.now.wall)


def check_admission(admission: object) -> AdmissionWindow:
    """Check the admission; raises for an invalid value."""
    if not isinstance(admission, AdmissionWindow):
        raise InvalidArgument("admission", admission, "an AdmissionWindow")
    if admission.per_window is not None:
        check_int("admission per_window", admission.per_window, least=1, most=MOST_PER_WINDOW)
    check_int("admission window_ms", admission.window_ms, least=1)
    check_choice("admission duplicates", admission.duplicates, DUPLICATES)
    check_int("admission duplicate_window_ms", admission.duplicate_window_ms, least=1)
    return admission


# ---- acceptance ----


class Accept(Command[Receipt], frozen=True):
    """Put an input into the inbox of a journal, once per key; `opening` creates the journal if it is missing."""

    journal: str
    key: str
    digest: str
    body: bytes
    opening: OpenJournal | None = None
    urgent: bool = False
    """Accept it even if the inbox is full, for example a stop request."""
    refs: tuple[str, ...] = ()
    """Digests of the blobs that it refers to."""
    patient: bool = False
    """Another command follows at once and may share its commit."""
    admission: AdmissionWindow | None = None
    """The rate limit, and the treatment of duplicates."""
    unnamed: bool = False
    """The store made its key, so it needs no alias."""
    youngest: str | None = None
    """Create the journal only if this is still the newest of its role and session ("" for none)."""
    spend: spending.Spend | None = None
    """Spending to count if this command creates the journal."""
    under: tuple[str, str] | None = None
    """The journal of the caller and the key of its stop request; refused once that request was accepted."""

    def redact(self, redactor: Redactor) -> Self:
        clean = super().redact(redactor)
        if clean.opening is not None:
            clean = replace(clean, opening=clean.opening.redact(redactor))
        return clean if clean.body is self.body else replace(clean, digest=input_digest(clean.body))

    def apply(self, tx: Transaction) -> Receipt:
        rows = tx.rows
        new = self.opening if rows.journal(self.journal) is None else None
        if new is not None:
            tx.refuse_pruned_id(self.journal, new, self.digest)
            self._check_not_stopped(rows)
            if self.youngest is not None:
                youngest = rows.youngest(new.role or "", new.session or "")
                if youngest != self.youngest:
                    raise SiblingBegun(self.journal, youngest)
            # The inbox of a new journal is empty, so only a missing blob can still refuse the input.
            tx.require_blobs(self.refs)
        row = tx.journal(self.journal) if self.opening is None else tx.open_journal(self.opening)
        earlier = decide_accept(row, rows.input_by_key(row, self.key), self)
        if earlier is None and self.admission is not None:
            earlier = find_duplicate(tx, row, self, self.admission)
        if earlier is not None:
            return earlier
        self._check_not_stopped(rows)
        if not self.urgent:
            check_inbox_room(row, rows.count_pending(row), tx.limits)
        tx.require_blobs(self.refs)
        for digest in self.refs:
            rows.refer(digest, row, 0)  # kept until the input is admitted; then its record refers to it
        receipt = add_input(tx, row, self, counted=self.admission is not None)
        if new is not None and new.parent is None:
            opened = tx.new_journals[row.id].opened
            said = Input(receipt.input, self.key, self.body, receipt.at, row.head)
            tx.new_journals[row.id] = NewJournal(opened, said)
            if self.spend is not None:
                rows.spending.add(row.agent, spending.day_of(receipt.at), self.spend)
        return receipt

    def _check_not_stopped(self, rows: Rows) -> None:
        """Refuse new work of a caller that is being stopped, so that the stop covers everything it started."""
        if self.under is not None:
            journal, key = self.under
            above = rows.journal(journal)
            if above is not None and rows.input_by_key(above, key) is not None:
                raise StopRequested(journal)


def add_input(
    tx: Transaction, row: JournalRow, command: Accept | DeliverNotifications, *, counted: bool = False
) -> Receipt:
    """Put the content of a command into the inbox of a journal, and wake it."""
    now = tx.now.wall
    row.inputs += 1
    said = (row.inputs, command.key, command.digest, command.body, now)
    tx.rows.add_input(row, InputRow(*said, counted=counted, head=row.head))
    tx.wake(row)
    return Receipt(row.id, row.inputs, command.key, now, head=row.head)


def decide_accept(row: JournalRow, found: InputRow | None, command: Accept) -> Receipt | None:
    """The receipt of an earlier acceptance; None if the input is new."""
    if found is None:
        row.check_served()
        return None
    if found.digest != command.digest:
        raise KeyConflict(row.id, command.key)
    return Receipt(row.id, found.input, found.key, found.at, fresh=False)


def check_inbox_room(row: JournalRow, pending: int, limits: StoreLimits) -> None:
    """Raise `InboxFull` if too many inputs wait."""
    if pending >= limits.pending_inputs:
        raise InboxFull(row.id, limits.pending_inputs)


def find_duplicate(tx: Transaction, row: JournalRow, command: Accept, admission: AdmissionWindow) -> Receipt | None:
    """The receipt of the same content in the duplicate window; None if the journal takes the input as a new one.

    Raises `DuplicateInput` or `RateExceeded`.
    """
    now = tx.now.wall
    if admission.duplicates != "allow":
        first, last = window_around(now, admission.duplicate_window_ms)
        receipt = decide_duplicate(row, tx.rows.counted_input(row, command.digest, first, last), admission)
        if receipt is not None:
            if not command.unnamed:  # this key names the same input even after the window
                tx.rows.add_alias(row, command.key, receipt.input)
            return receipt
    if admission.per_window is not None:
        first, last = window_around(now, admission.window_ms)
        check_rate(row, admission, tx.rows.counted_at(row, first, last, admission.per_window))
    return None


# ---- decisions ----


def window_around(now: int, width_ms: int) -> tuple[int, int]:
    """The first and the last moment of a window."""
    return now - width_ms + 1, now + width_ms - 1


def decide_duplicate(row: JournalRow, first: InputRow | None, admission: AdmissionWindow) -> Receipt | None:
    """The receipt of the first input with this content; None if there is none."""
    if first is None:
        return None
    if admission.duplicates == "refuse":
        raise DuplicateInput(row.id, first.key, first.at)
    return Receipt(row.id, first.input, first.key, first.at, fresh=False)


def check_rate(row: JournalRow, admission: AdmissionWindow, nth_newest_at: int | None) -> None:
    """Raise `RateExceeded` if the window is full: then the `per_window`-th newest input lies inside it."""
    if admission.per_window is not None and nth_newest_at is not None:
        raise RateExceeded(row.id, admission.per_window, admission.window_ms, nth_newest_at + admission.window_ms)


def stop_key(run: str) -> str:
    """The key of the input that asks to stop a turn. Each turn has one: the first request counts."""
    return f"{STOP_KEY}/{run}"


def stop_call_key(call: str) -> str:
    """The key of the input that asks to stop one tool call. Each call has one: the first request counts."""
    return f"{STOP_KEY}/{call}"
