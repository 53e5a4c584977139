"""Folds: the state of a session after one of its records, sealed, so that a reader need not read all records before it.

A fold is a cache. The journal is the truth: a fold whose record is not in the journal, or whose seal does not match,
counts as missing. The store does not look into its body. All folds stay, so that a reader of an earlier point finds one
near it, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec.structs import replace

from holdfast.errors import InvalidNumber
from holdfast.store.contract import Command, Entry, Input, Lease

if TYPE_CHECKING:
    from holdfast.secrets.redactor import Redactor
    from holdfast.store.notifications import Notification
    from holdfast.store.transaction import Transaction


class Fold(NamedTuple):
    """The state of a journal after record `seq`."""

    journal: str
    seq: int
    anchor: int
    """The checksum of that record."""
    body: bytes
    """Compressed in the store."""


class JournalPage(NamedTuple):
    """A fold of a journal if there is one, the first records after it, and what waits for the journal."""

    fold: Fold | None
    entries: list[Entry]
    pending: list[Input]
    ready: list[Notification]


class SaveFold(Command[None], frozen=True):
    """Save a fold of a journal, under its lease."""

    lease: Lease
    seq: int
    body: bytes
    patient: bool = True
    """The caller does not wait."""

    def redact(self, redactor: Redactor) -> Self:
        clean = super().redact(redactor)
        # Without its secrets it would be another state than that of the records.
        return self if clean.body == self.body else replace(self, body=b"")

    def apply(self, tx: Transaction) -> None:
        row = tx.leased_journal(self.lease)
        if not 1 <= self.seq <= row.head:
            raise InvalidNumber("record", self.seq, f"{row.id!r} ends at {row.head:,}")
        if self.body:
            tx.rows.folds.save(row, self.seq, self.body)
