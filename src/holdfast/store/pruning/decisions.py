"""What may be pruned, and what is left of it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidNumber
from holdfast.errors.journals import JournalInUse, JournalPruned
from holdfast.store import decisions
from holdfast.store.pruning.contract import Tombstone

if TYPE_CHECKING:
    from holdfast.clock import Instant
    from holdfast.store.contract import JournalRow, OpenJournal
    from holdfast.store.pruning.contract import PruneJournal, TrimJournal

OVER: Final = frozenset(("completed", "failed", "cancelled"))
"""How a journal is listed whose last run has ended."""


def check_prunable(row: JournalRow, asked: PruneJournal, now: Instant, *, holder_gone: bool) -> None:
    """Only a process that is over, that nobody holds and nothing waits for, and that is as it was looked at."""
    decisions.check_served(row)
    if row.kind != "process" or row.role is None:
        raise JournalInUse(row.id, "only processes are pruned")
    if row.status not in OVER:
        raise JournalInUse(row.id, f"it is {row.status}")
    if row.owner is not None and decisions.lease_left(row, now) > 0 and not holder_gone:
        raise JournalInUse(row.id, f"{row.owner.describe()} holds it")
    if decisions.has_work(row) or row.notices:
        raise JournalInUse(row.id, "something came for it that nobody has seen to")
    if row.head != asked.head:
        raise JournalInUse(row.id, f"it has gone on to {row.head:,} since it was looked at")


def tombstone(row: JournalRow, asked: PruneJournal, digest: str, pos: int, now: int) -> Tombstone:
    """What is left of a journal."""
    return Tombstone(
        *(row.id, row.kind, row.agent, row.role, row.session, row.status, asked.detail, digest, row.head, pos),
        *(row.created, row.updated, now, asked.spent),
    )


def refuse_reopening(stone: Tombstone, asked: OpenJournal | None, digest: str | None) -> None:
    """An id that was pruned is never used again; whoever asks is told whether it was the same that was started."""
    if asked is not None:
        decisions.check_opening(stone, asked)
    raise JournalPruned(stone.journal, stone.detail, stone.at, same=digest is not None and digest == stone.digest)


def check_trim(row: JournalRow, asked: TrimJournal) -> None:
    """Whoever holds the journal trims it, and its last record stays."""
    decisions.check_epoch(row, asked.lease.epoch)
    decisions.check_served(row)
    if not 0 <= asked.seq < row.head:
        raise InvalidNumber("record", asked.seq, f"{row.id!r} ends at {row.head:,}, and its last record stays")
