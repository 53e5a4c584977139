"""What is left of a journal that was pruned, the commands that prune, and what a backend keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from holdfast.store.command import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.records import JournalKind, Status
    from holdfast.store.contract import JournalRow, Lease
    from holdfast.store.spending.contract import Spend


UNUSED_MS: Final = 3_600_000
"""A blob that was put since so long may be about to be referred to: it stays when the journal goes that had it."""


class Tombstone(msgspec.Struct, frozen=True):
    """A journal that was pruned: who had the id, and how it ended. It stays for ever, so that no id is used again."""

    journal: str
    kind: JournalKind
    agent: str | None
    role: str | None
    session: str | None
    status: Status
    detail: str
    """What whoever pruned it calls its end."""
    digest: str
    """That of the input that it began with: what tells the same start from another one. "" when there was none."""
    head: int
    pos: int
    """The position of its last record: where a reader of the feed meets the tombstone."""
    created: int
    updated: int
    at: int
    """When it was pruned, in wall milliseconds."""
    spent: tuple[tuple[int, Spend], ...] = ()
    """What its records said was spent, by day."""


# ---- commands --------------------------------------------------------------------------------------------------------


class PruneJournal(Command[Tombstone], frozen=True):
    """Remove a journal that is over, with all that belongs to it, and leave its tombstone."""

    journal: str
    head: int
    """Where it ended when whoever prunes it looked."""
    detail: str
    key: str
    """The key of the input that it began with."""
    spent: tuple[tuple[int, Spend], ...] = ()


class TrimJournal(Command[int], frozen=True):
    """Remove the records of a journal up to `seq`; answers how many there were."""

    lease: Lease
    seq: int


class EmptyInputs(Command[int], frozen=True):
    """Forget what was said in inputs that were admitted and came before `before`; their keys stay. Answers how many."""

    lease: Lease
    before: int
    spare: tuple[int, ...] = ()
    """Inputs whose content is still needed."""


class RemoveWaits(Command[int], frozen=True):
    """Remove waits whose names begin so, that are settled and were opened before `before`. Answers how many."""

    lease: Lease
    prefix: str
    before: int


# ---- what a backend provides -----------------------------------------------------------------------------------------


class PruningRows(Protocol):
    """Tombstones, and the removal of rows, inside a transaction."""

    def find(self, journal: str) -> Tombstone | None: ...
    def last_position_of(self, row: JournalRow) -> int:
        """The position of the last record of a journal."""
        ...

    def has_forks(self, row: JournalRow) -> bool: ...
    def bury(self, row: JournalRow, stone: Tombstone) -> None:
        """Remove the journal with its records, inputs, waits, notifications and references, and keep the tombstone.

        Blobs that nobody else refers to, and that were not put lately, go with it. The newest position of the store is
        never given to another record.
        """
        ...

    def trim(self, row: JournalRow, seq: int) -> int: ...
    def empty_inputs(self, row: JournalRow, before: int, spare: Sequence[int]) -> int: ...
    def remove_waits(self, row: JournalRow, prefix: str, before: int) -> int: ...


class PruningReader(Protocol):
    """Tombstones as they can be read."""

    def find(self, journal: str) -> Tombstone | None: ...
    def after(self, pos: int, role: str | None, limit: int) -> list[Tombstone]:
        """Those whose last record stood above this position, in the order of their positions."""
        ...

    def old(self, journal: str, before: int, spare: Sequence[int], prefix: str) -> tuple[int, int]:
        """How many inputs would be emptied, and how many waits removed."""
        ...

    def raw(self) -> Iterator[tuple[Tombstone, bool]]:
        """All of them, each with whether it is sound."""
        ...
