"""Forgetting: journals that are over leave a tombstone, long ones lose their oldest records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.errors.caller import JournalInUse, JournalPruned
from holdfast.names import check_id, check_int
from holdfast.store import decisions
from holdfast.store.calls import Calls
from holdfast.store.contract import Command
from holdfast.store.lease import is_gone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from holdfast.clock import Instant
    from holdfast.records import JournalKind, Status
    from holdfast.store.contract import JournalRow, Lease, OpenJournal, Reader, Rows
    from holdfast.store.spending import Spend, SpendingAudit


BLOB_GRACE_MS: Final = 3_600_000
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


class PruningCalls(Calls):
    """Pruning: what is over goes, and a tombstone stays, so that no id is ever used again."""

    async def prune_journal(
        self, journal: str, *, head: int, detail: str, key: str, spent: Mapping[int, Spend] | None = None
    ) -> Tombstone:
        """Remove a process that is over, with its records, inputs, waits and references; answers its tombstone.

        `head` is where it ended when it was looked at, `detail` what its end is called, `key` that of the input it
        began with, `spent` what its records say was spent, by day. `JournalInUse` says why it is kept. Blobs that
        nobody else refers to go with it, or with a later `collect_blobs` if they were put within the last hour.
        """
        check_id("journal id", journal)
        check_int("head", head)
        check_id("detail", detail)
        check_id("input key", key)
        return await self._submit(PruneJournal(journal, head, detail, key, tuple(sorted((spent or {}).items()))))

    async def trim_journal(self, lease: Lease, seq: int) -> int:
        """Remove the records of a journal up to `seq`; answers how many there were. The last one always stays."""
        check_int("record", seq)
        return await self._submit(TrimJournal(lease, seq))

    async def empty_inputs(self, lease: Lease, before: int, spare: Sequence[int] = ()) -> int:
        """Forget what was said in admitted inputs that came before `before`, but for those to `spare`.

        Their keys and digests stay: what was accepted once is never accepted again. Answers how many.
        """
        check_int("before", before)
        if isinstance(spare, str):
            raise InvalidArgument("spare", spare, "a list of numbers of inputs")
        return await self._submit(EmptyInputs(lease, before, tuple(check_int("input", number) for number in spare)))

    async def remove_waits(self, lease: Lease, prefix: str, before: int) -> int:
        """Remove waits whose names begin so, that are settled and were opened before `before`; answers how many."""
        check_id("prefix", f"{prefix}1")
        check_int("before", before)
        return await self._submit(RemoveWaits(lease, prefix, before))

    async def count_old(self, journal: str, before: int, spare: Sequence[int], prefix: str) -> tuple[int, int]:
        """How many inputs `empty_inputs` and how many waits `remove_waits` would forget."""
        check_id("journal id", journal)
        check_int("before", before)
        return await self._backend.read(lambda reader: reader.pruning.old(journal, before, tuple(spare), prefix))

    async def tombstone(self, journal: str) -> Tombstone | None:
        """What is left of a journal that was pruned; None when none of this id was."""
        check_id("journal id", journal)
        return await self._backend.read(lambda reader: reader.pruning.find(journal))

    async def tombstones(self, *, after: int = 0, role: str | None = None, limit: int | None = None) -> list[Tombstone]:
        """Journals that were pruned and whose last record stood above the position `after`, in that order."""
        check_int("cursor", after)
        if role is not None:
            check_id("role", role)
        page = self._page(limit)
        return await self._backend.read(lambda reader: reader.pruning.after(after, role, page))


FINAL_STATUSES: Final = frozenset(("completed", "failed", "cancelled"))
"""How a journal is listed whose last run has ended."""


def check_prunable(row: JournalRow, asked: PruneJournal, now: Instant, *, holder_gone: bool) -> None:
    """Only a process that is over, that nobody holds and nothing waits for, and that is as it was looked at."""
    decisions.check_served(row)
    if row.kind != "process" or row.role is None:
        raise JournalInUse(row.id, "only processes are pruned")
    if row.status not in FINAL_STATUSES:
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
        return decisions.require_journal(row, journal)

    def refuse(self, journal: str, asked: OpenJournal | None, digest: str | None) -> None:
        """Raise if this id was that of a journal that is pruned."""
        stone = self._rows.pruning.find(journal)
        if stone is not None:
            refuse_reopening(stone, asked, digest)

    def prune(self, asked: PruneJournal) -> Tombstone:
        row = self._rows.journal(asked.journal)
        if row is None:
            stone = self._rows.pruning.find(asked.journal)
            if stone is not None:
                return stone  # the same again: it is as it should be
        row = decisions.require_journal(row, asked.journal)
        held = row.owner is not None and decisions.lease_left(row, self._now) > 0
        check_prunable(row, asked, self._now, holder_gone=held and is_gone(row.owner))
        if self._rows.count_pending(row):
            raise JournalInUse(row.id, "inputs wait for it")
        if self._rows.pruning.has_forks(row):
            raise JournalInUse(row.id, "others go on from its records")
        first = self._rows.input_by_key(row, asked.key)
        digest = "" if first is None else first.digest
        pos = self._rows.pruning.last_position_of(row)
        stone = tombstone(row, asked, digest, pos, self._now.wall)
        self._rows.pruning.bury(row, stone)
        return stone

    def trim(self, asked: TrimJournal) -> int:
        row = self.require(asked.lease.journal)
        check_trim(row, asked)
        if asked.seq <= row.base:
            return 0
        removed = self._rows.pruning.trim(row, asked.seq)
        row.base = asked.seq
        self._rows.save_journal(row)
        return removed

    def empty_inputs(self, asked: EmptyInputs) -> int:
        row = self.require(asked.lease.journal)
        decisions.check_epoch(row, asked.lease.epoch)
        decisions.check_served(row)
        return self._rows.pruning.empty_inputs(row, asked.before, asked.spare)

    def remove_waits(self, asked: RemoveWaits) -> int:
        row = self.require(asked.lease.journal)
        decisions.check_epoch(row, asked.lease.epoch)
        decisions.check_served(row)
        return self._rows.pruning.remove_waits(row, asked.prefix, asked.before)


def audit_tombstones(
    reader: Reader, rows: Iterable[JournalRow], tally: SpendingAudit | None = None
) -> Iterator[tuple[str, str, str]]:
    """Every violated invariant: which, where, and what was found. What they say was spent is counted."""
    alive = {row.id for row in rows}
    last = reader.last_position()
    for stone, sound in reader.pruning.raw():
        where = f"{stone.journal}/tombstone"
        if not sound:
            yield "checksum", where, "the tombstone does not match its checksum"
            if tally is not None:
                tally.doubt(stone.agent)
            continue
        if stone.journal in alive:
            yield "tombstone", where, "it was pruned, but it is there"
        if not 0 < stone.pos <= last:
            yield "tombstone", where, f"its last record stood at {stone.pos}, but the store has come to {last}"
        if tally is not None:
            tally.add_pruned(stone)
