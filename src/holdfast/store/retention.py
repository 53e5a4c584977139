"""Retention: everything that removes rows from a store.

- *prune* removes a whole journal that has ended and leaves a tombstone;
- *forget* removes a session with everything that belongs to it, and leaves no id;
- *trim* removes the oldest records of a journal, and empties or removes what belongs to them (inputs, waits);
- *purge* removes rows whose time is over: finished notifications, expired memory;
- *collect* removes blobs that no record, input or attachment refers to.

A purge takes at most one page in a transaction and answers whether there is more to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import CollectionRefused, ForgetRefused, InvalidNumber, JournalInUse, SessionForked
from holdfast.names import MAX_INT, PROCESS_PREFIX
from holdfast.records import JournalKind, Status  # noqa: TC001  msgspec reads the annotations
from holdfast.store import memories, spending
from holdfast.store.contract import Command, JournalRow, Lease, Reader
from holdfast.store.lease import is_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.store.sqlite.tables import RetentionTable
    from holdfast.store.transaction import Transaction


BLOB_GRACE_MS: Final = 3_600_000
"""Time that an unused blob stays after it was last put: a record may be about to refer to it."""
COLLECT_BATCH: Final = 500
"""Blobs that one transaction checks and collects."""
FINAL_STATUSES: Final = frozenset(("completed", "failed", "cancelled"))
"""The status of a journal whose last run has ended."""


class Tombstone(msgspec.Struct, frozen=True):
    """The rest of a pruned journal. It stays for ever, so that no journal id is used twice."""

    journal: str
    kind: JournalKind
    agent: str | None
    role: str | None
    session: str | None
    status: Status
    detail: str
    """Its end, in the words of the caller of `prune_journal`."""
    digest: str
    """Digest of its first input, to recognise a repeated start; "" without one."""
    head: int
    pos: int
    """The position of its last record, where readers of the feed meet the tombstone."""
    created: int
    updated: int
    at: int
    """When it was pruned, in wall milliseconds."""
    spent: tuple[tuple[int, spending.Spend], ...] = ()
    """The spending of its records, by day."""


class ImportedJournal(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a journal came into this store, if it was not made here."""

    export: str
    """The id of the export."""
    born: str | None = None
    """The store in which it was made, which its idempotency keys name; None for a copy, which has keys of its own."""


class Purged(NamedTuple):
    """Answer of a purge."""

    removed: int
    more: bool
    """The page was full: there may be more to remove."""


class Collected(msgspec.Struct, frozen=True):
    """Blobs that were collected, or would be in a dry run."""

    blobs: int = 0
    bytes: int = 0
    dry_run: bool = False

    def __add__(self, other: Collected) -> Collected:
        return Collected(self.blobs + other.blobs, self.bytes + other.bytes, self.dry_run)


class Forgotten(msgspec.Struct, frozen=True):
    """The rows removed with a forgotten session, or in a dry run those that would be."""

    session: str
    journals: tuple[str, ...]
    """The session, its forks and sub-agents, and the processes that worked for them."""
    records: int
    attachments: int
    """Attachments and large values that nothing else refers to; not counted in a dry run."""
    memories: int
    """Entries of memory."""
    dry_run: bool = False
    wiped: bool = False
    """The bytes have left the file and its log. If not, a reader of another program keeps the log; the store tries
    again after each write, and when it is closed or opened.
    """


class CollectionBasis(msgspec.Struct, frozen=True):
    """The facts that decide if blobs may be collected."""

    blobs: bool
    """There are blobs."""
    roots: bool
    """Something refers to one of them."""
    damaged: str | None = None
    """A quarantined journal: its references can't be trusted."""


# ---- commands ----


class PruneJournal(Command[Tombstone], frozen=True):
    """Remove an ended journal with everything that belongs to it, and leave its tombstone."""

    journal: str
    head: int
    """Expected head; pruning fails if it moved."""
    detail: str
    key: str
    """The key of its first input."""
    spent: tuple[tuple[int, spending.Spend], ...] = ()

    def apply(self, tx: Transaction) -> Tombstone:
        table = tx.rows.retention
        stone = table.find(self.journal)
        if stone is not None:
            return stone  # pruned before
        row = tx.journal(self.journal)
        check_prunable(tx, row, self)
        if table.has_forks(row):
            raise JournalInUse(row.id, "others go on from its records")
        first = tx.rows.input_by_key(row, self.key)
        stone = Tombstone(
            *(row.id, row.kind, row.agent, row.role, row.session, row.status, self.detail),
            *("" if first is None else first.digest, row.head, table.last_position_of(row)),
            *(row.created, row.updated, tx.now.wall, self.spent),
        )
        table.bury(row, stone)
        return stone


class ForgetSession(Command[Forgotten], frozen=True):
    """Remove a session with everything that belongs to it, also while it is driven: its holder can't write any more."""

    session: str
    spend_of: spending.SpendOf
    """The spending of each record. It stays counted."""
    forks: bool = False
    memory: tuple[str, ...] | None = None
    """The scopes of memory that go with it; None: those with the ids of the sessions."""
    keep_hash: bool = False
    """Refuse the ids from now on."""
    idle_since: int | None = None
    """Only if nothing of it waits, runs, or has changed since this time (wall milliseconds)."""
    dry_run: bool = False

    def apply(self, tx: Transaction) -> Forgotten:
        table, memory = tx.rows.retention, tx.rows.memories
        rows = self._family(tx, tx.journal(self.session))
        if self.idle_since is not None:
            for row in rows:
                check_idle(tx, row, self.idle_since)
        stones = [stone for row in rows for stone in table.tombstones_of(row.id)]
        scopes = self.memory if self.memory is not None else tuple(row.id for row in rows if row.kind == "session")
        ids = tuple(row.id for row in rows)
        if self.dry_run:
            memories = sum(map(memory.count, scopes))
            return Forgotten(self.session, ids, sum(row.head - row.base for row in rows), 0, memories, dry_run=True)
        self._keep_spending(tx, rows, stones)
        removed, blobs = table.forget(rows, ids, max(row.epoch for row in rows))
        memories = sum(map(memory.forget, scopes))
        for id in (*ids, *(stone.journal for stone in stones)) if self.keep_hash else ():
            table.refuse_id(id, tx.now.wall)
        return Forgotten(self.session, ids, removed, blobs, memories)

    def _family(self, tx: Transaction, row: JournalRow) -> list[JournalRow]:
        """The session and all journals that belong to it; `ForgetRefused` if it can't be forgotten."""
        if row.kind != "session":
            raise ForgetRefused(row.id, "it is no session; processes are pruned")
        if row.session is not None:
            raise ForgetRefused(row.id, f"it works for {row.session!r}; forget that one")
        found, forks = family_of(row, tx.rows.retention, tx.journal)
        if forks and not self.forks:
            raise SessionForked(self.session, tuple(sorted(forks)))
        return found

    def _keep_spending(self, tx: Transaction, rows: Sequence[JournalRow], stones: Sequence[Tombstone]) -> None:
        """Keep the spending of the records, already counted, for later audits and counts."""
        reader, since = tx.rows.reader(), tx.rows.spending.since()
        spends, unsure = spending.spent_in_all(reader, rows, self.spend_of, MAX_INT)
        for stone in stones:
            spends += [spending.DailySpend(stone.agent, day, spend) for day, spend in stone.spent]
        tx.rows.spending.forget(spends, unsure)
        if since:  # records of an older schema were not counted, and can't be any more
            for row in spending.spent_in_all(reader, rows, self.spend_of, since)[0]:
                tx.rows.spending.add(row.agent, row.day, row.spend)


def family_of(
    row: JournalRow, table: RetentionTable, find: Callable[[str], JournalRow]
) -> tuple[list[JournalRow], list[str]]:
    """A session and all journals that belong to it, with the ids of the forks among them; `find` reads a journal."""
    found, left, forks = {row.id: row}, [row], list[str]()
    while left:
        row = left.pop()
        below, forked = table.working_for(row.id), table.forks_of(row.id)
        if row.kind == "session":
            below += [made for stone in table.tombstones_of(row.id) for made in _agent_sessions(table, stone.journal)]
        else:
            below += _agent_sessions(table, row.id)
        forks += forked
        for journal in (*below, *forked):
            if journal not in found:
                found[journal] = find(journal)
                left.append(found[journal])
    return list(found.values()), forks


def _agent_sessions(table: RetentionTable, process: str) -> list[str]:
    id = process.removeprefix(PROCESS_PREFIX)
    return [] if id == process else table.sessions_of(id)


def trim_journal(tx: Transaction, lease: Lease, seq: int) -> int:
    """Remove the records of a journal up to `seq`; answers how many."""
    row = tx.leased_journal(lease)
    if not 0 <= seq < row.head:
        raise InvalidNumber("record", seq, f"{row.id!r} ends at {row.head:,}, and its last record stays")
    if seq <= row.base:
        return 0
    removed = tx.rows.retention.trim(row, seq)
    row.base = seq
    tx.rows.save_journal(row)
    return removed


def purge_memories(tx: Transaction, limit: int) -> Purged:
    """Remove expired memory entries, and expired values from the history; at most `limit` of each."""
    expired = tx.rows.memories.expired(tx.now.wall, limit)
    for entry in expired:
        memories.remove_entry(tx, entry, "expired", None)
    emptied = tx.rows.memories.forget_expired_values(tx.now.wall, limit)
    return Purged(len(expired), limit in (len(expired), emptied))


def collect_blobs(tx: Transaction, before: int, digests: Iterable[str], *, without_roots: bool) -> Collected:
    """Delete the unreferenced ones of these blobs that were last put before `before` (wall milliseconds)."""
    table = tx.rows.attachments
    check_collection(table.collection_basis(), without_roots=without_roots)
    unused = table.unused_of(digests, before)
    for digest, _ in unused:
        table.forget(digest)
    return Collected(len(unused), sum(size for _, size in unused))


# ---- decisions ----


def check_prunable(tx: Transaction, row: JournalRow, command: PruneJournal) -> None:
    """Raise `JournalInUse` unless this is an ended process without a holder or work, still at the expected head."""
    row.check_served()
    if row.kind != "process" or row.role is None:
        raise JournalInUse(row.id, "only processes are pruned")
    if row.status not in FINAL_STATUSES:
        raise JournalInUse(row.id, f"it is {row.status}")
    _check_unused(tx, row)
    if row.head != command.head:
        raise JournalInUse(row.id, f"it has gone on to {row.head:,} records since")


def check_idle(tx: Transaction, row: JournalRow, since: int) -> None:
    """Raise `JournalInUse` unless nothing of this journal waits or runs, and it has not changed since a time."""
    row.check_served()
    if row.status in {"running", "waiting"}:
        raise JournalInUse(row.id, f"it is {row.status}")
    _check_unused(tx, row)
    if row.updated >= since:
        raise JournalInUse(row.id, "it has changed since")


def _check_unused(tx: Transaction, row: JournalRow) -> None:
    """Raise `JournalInUse` if a live process holds the journal, or it has unhandled wakes, notices or inputs."""
    if row.owner is not None and row.lease_left(tx.now) > 0 and not is_gone(row.owner):
        raise JournalInUse(row.id, f"{row.owner.describe()} holds it")
    if row.has_work() or row.notices or tx.rows.count_pending(row):
        raise JournalInUse(row.id, "something came for it that no worker has handled")


def check_collection(basis: CollectionBasis, *, without_roots: bool) -> None:
    """Raise `CollectionRefused` if the store can't see which blobs are needed."""
    if basis.damaged is not None:
        raise CollectionRefused(
            f"the journal {basis.damaged!r} is quarantined, and what it refers to can't be seen; "
            "restore it from a backup (holdfast doctor tells more)"
        )
    if basis.blobs and not basis.roots and not without_roots:
        raise CollectionRefused(
            "there are blobs, and nothing at all refers to one of them; if that is how it should be, say without_roots"
        )


def audit_tombstones(
    reader: Reader, rows: Iterable[JournalRow], tally: spending.SpendingAudit
) -> Iterator[tuple[str, str, str]]:
    """Violated invariants of the tombstones: rule, place, finding. Adds their spending to the spending audit."""
    alive = {row.id for row in rows}
    last = reader.last_position()
    for stone, sound in reader.retention.raw():
        where = f"{stone.journal}/tombstone"
        if not sound:
            yield "checksum", where, "the tombstone does not match its checksum"
            tally.doubt(stone.agent)
            continue
        if stone.journal in alive:
            yield "tombstone", where, "it was pruned, but it is there"
        if not 0 < stone.pos <= last:
            yield "tombstone", where, f"its last record stood at {stone.pos}, but the store has come to {last}"
        tally.add_days(stone.agent, stone.pos, stone.spent)
