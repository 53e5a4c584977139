"""Carries out the commands that prune: decide, then write. Shared by every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors.journals import JournalInUse
from holdfast.store import decisions as rules
from holdfast.store.owners import is_gone
from holdfast.store.pruning import decisions

if TYPE_CHECKING:
    from holdfast.clock import Instant
    from holdfast.store.contract import JournalRow, OpenJournal, Rows
    from holdfast.store.pruning.contract import EmptyInputs, PruneJournal, RemoveWaits, Tombstone, TrimJournal


class Pruning:
    """What is forgotten in one transaction, at one instant."""

    __slots__ = ("_now", "_rows")

    def __init__(self, rows: Rows, now: Instant) -> None:
        self._rows = rows
        self._now = now

    def require(self, journal: str) -> JournalRow:
        """The journal, or the error that says that it is not there, or that it was."""
        row = self._rows.journal(journal)
        if row is None:
            self.refuse(journal, None, None)
        return rules.require_journal(row, journal)

    def refuse(self, journal: str, asked: OpenJournal | None, digest: str | None) -> None:
        """Raise if this id was that of a journal that is pruned."""
        stone = self._rows.pruning.find(journal)
        if stone is not None:
            decisions.refuse_reopening(stone, asked, digest)

    def prune(self, asked: PruneJournal) -> Tombstone:
        row = self._rows.journal(asked.journal)
        if row is None:
            stone = self._rows.pruning.find(asked.journal)
            if stone is not None:
                return stone  # the same again: it is as it should be
        row = rules.require_journal(row, asked.journal)
        held = row.owner is not None and rules.lease_left(row, self._now) > 0
        decisions.check_prunable(row, asked, self._now, holder_gone=held and is_gone(row.owner))
        if self._rows.count_pending(row):
            raise JournalInUse(row.id, "inputs wait for it")
        if self._rows.pruning.has_forks(row):
            raise JournalInUse(row.id, "others go on from its records")
        first = self._rows.input_by_key(row, asked.key)
        digest = "" if first is None else first.digest
        pos = self._rows.pruning.last_position_of(row)
        stone = decisions.tombstone(row, asked, digest, pos, self._now.wall)
        self._rows.pruning.bury(row, stone)
        return stone

    def trim(self, asked: TrimJournal) -> int:
        row = self.require(asked.lease.journal)
        decisions.check_trim(row, asked)
        if asked.seq <= row.base:
            return 0
        removed = self._rows.pruning.trim(row, asked.seq)
        row.base = asked.seq
        self._rows.save_journal(row)
        return removed

    def empty_inputs(self, asked: EmptyInputs) -> int:
        row = self.require(asked.lease.journal)
        rules.check_epoch(row, asked.lease.epoch)
        rules.check_served(row)
        return self._rows.pruning.empty_inputs(row, asked.before, asked.spare)

    def remove_waits(self, asked: RemoveWaits) -> int:
        row = self.require(asked.lease.journal)
        rules.check_epoch(row, asked.lease.epoch)
        rules.check_served(row)
        return self._rows.pruning.remove_waits(row, asked.prefix, asked.before)
