"""The store as plain Python containers: the model that the state machine compares SQLite with."""

from __future__ import annotations

import asyncio
import bisect
import copy
import itertools
import secrets
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from holdfast import records
from holdfast.errors import HoldfastError, JournalMissing, StoreClosed
from holdfast.store.contract import (
    Entry,
    FeedEntry,
    Input,
    InputRow,
    Journal,
    JournalRow,
    RawRecord,
    Receipt,
    StoreLimits,
    Wait,
    Work,
)
from holdfast.store.lease import current_owner
from holdfast.store.memories import MemoryPage, MemoryScope, seen_at, size_of
from holdfast.store.memories import has_expired as is_forgotten
from holdfast.store.notifications import OPEN, has_expired, may_carry
from holdfast.store.retention import CollectionBasis, Purged
from holdfast.store.spending import NO_SPEND, DailySpend
from holdfast.store.sqlite.tables import earliest
from holdfast.store.transaction import Transaction
from holdfast.store.waits import EVERY_AGENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.clock import Clock, Instant
    from holdfast.store.attachments import AttachmentSpool, StoredAttachment
    from holdfast.store.contract import Command, JournalFilter, Owner, Reader, Rows, WaitState
    from holdfast.store.memories import MemoryChange, MemoryEntry
    from holdfast.store.notifications import Notification, NotificationState
    from holdfast.store.retention import Tombstone
    from holdfast.store.spending import Spend
    from holdfast.store.waits import StoredRule

T = TypeVar("T")
FINISHED = frozenset(("acknowledged", "cancelled", "expired"))
"""States in which a notification can be purged. A dead one waits for a person."""


class _Stored(NamedTuple):
    journal: int
    seq: int
    epoch: int
    body: bytes


class NotificationTable:
    """The table of the same name."""

    def __init__(self) -> None:
        self._kept: dict[int, Notification] = {}
        self._last = 0
        """The newest id, also when that one is gone: it is never given to another one."""

    # ---- inside a transaction ----

    def find(self, number: int) -> Notification | None:
        return self._kept.get(number)

    def by_key(self, journal: str, key: str) -> Notification | None:
        return next((found for found in self._of(journal) if found.key == key), None)

    def add(self, notification: Notification) -> Notification:
        last = max((found.no for found in self._of(notification.journal)), default=0)
        self._last += 1
        added = replace(notification, id=self._last, no=last + 1)
        self._kept[added.id] = added
        return added

    def save(self, notification: Notification) -> None:
        self._kept[notification.id] = notification

    def bury(self, journal: str, reason: str, now: int) -> None:
        for found in self._of(journal):
            if found.state in OPEN:
                self.save(replace(found, state="dead", reason=reason, updated=now, woken=True))

    def purge(self, before: int, limit: int) -> Purged:
        over = [found for found in self._kept.values() if found.state in FINISHED and found.updated <= before]
        gone = sorted(over, key=lambda found: (found.updated, found.id))[:limit]
        for found in gone:
            del self._kept[found.id]
        return Purged(len(gone), len(gone) >= limit)

    def claimed_by_input(self, journal: str, number: int) -> list[Notification]:
        return [found for found in self._of(journal) if found.state == "claimed" and found.input == number]

    def claimed_by_run(self, journal: str, run: str) -> list[Notification]:
        return [found for found in self._of(journal) if found.state == "claimed" and found.run == run]

    def claimed_by_pump(self, journal: str) -> list[Notification]:
        return [found for found in self._of(journal) if found.state == "claimed" and found.input is None]

    def has_ready(self, journal: str, now: int) -> bool:
        return any(may_carry(found, now) for found in self._of(journal))

    def unwoken(self, now: int, limit: int) -> list[Notification]:
        ripe = [found for found in self._queued() if not found.woken and found.due <= now]
        return sorted(ripe, key=lambda found: (found.due, found.id))[:limit]

    def overdue(self, now: int, limit: int) -> list[Notification]:
        over = [found for found in self._queued() if has_expired(found, now)]
        return sorted(over, key=lambda found: (found.expires or 0, found.id))[:limit]

    def ready_journals(self, after: str, now: int, limit: int) -> list[str]:
        return sorted({found.journal for found in self._queued() if may_carry(found, now) and found.journal > after})[
            :limit
        ]

    def _of(self, journal: str) -> list[Notification]:
        return [found for found in self._kept.values() if found.journal == journal]

    def _queued(self) -> list[Notification]:
        return [found for found in self._kept.values() if found.state == "queued"]

    # ---- reading ----

    get = find

    def next_due_of(self, journal: str, now: int) -> int | None:
        return min(
            (found.due for found in self._of(journal) if found.state == "queued" and found.due > now), default=None
        )

    def next(self, journal: str, now: int, limit: int) -> list[Notification]:
        ready = [found for found in self._of(journal) if may_carry(found, now)]
        return sorted(ready, key=lambda found: (-found.priority, found.no))[:limit]

    def newest(
        self, journal: str | None, state: NotificationState | None, before: int | None, limit: int
    ) -> tuple[list[Notification], set[str]]:
        chosen = [
            found
            for found in reversed(self._kept.values())
            if journal in (None, found.journal)
            and state in (None, found.state)
            and (before is None or found.id < before)
        ]
        return chosen[:limit], set()

    def next_due(self) -> int | None:
        due = [found.due for found in self._queued() if not found.woken]
        return earliest(*due, *(found.expires for found in self._queued()))

    def raw(self) -> Iterator[tuple[Notification, bool]]:
        for found in self._kept.values():
            yield found, True


class MemoryTable:
    """The table of the same name."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], MemoryEntry] = {}
        self._changes: dict[tuple[str, str], list[MemoryChange]] = {}

    # ---- inside a transaction ----

    def entry(self, scope: str, key: str) -> MemoryEntry | None:
        return self._entries.get((scope, key))

    def last_version(self, scope: str, key: str) -> int:
        changes = self._changes.get((scope, key))
        return changes[-1].version if changes else 0

    def usage(self, scope: str, now: int) -> MemoryScope:
        sizes = [size_of(entry) for entry in self._living(now) if entry.scope == scope]
        return MemoryScope(scope, len(sizes), sum(sizes))

    def put(self, entry: MemoryEntry) -> None:
        self._entries[entry.scope, entry.key] = entry

    def remove(self, scope: str, key: str) -> None:
        del self._entries[scope, key]

    def add_change(self, change: MemoryChange, keep: int) -> None:
        changes = self._changes.setdefault((change.scope, change.key), [])
        changes.append(change)
        del changes[:-keep]

    def expired(self, now: int, limit: int) -> list[MemoryEntry]:
        return [entry for entry in self._entries.values() if is_forgotten(entry, now)][:limit]

    def forget_expired_values(self, now: int, limit: int) -> int:
        forgotten = 0
        for changes in self._changes.values():
            for place, change in enumerate(changes):
                if change.value is not None and is_forgotten(change, now) and forgotten < limit:
                    changes[place] = replace(change, value=None, summary="", metadata={})
                    forgotten += 1
        return forgotten

    def _living(self, now: int) -> list[MemoryEntry]:
        return [self._entries[place] for place in sorted(self._entries) if not is_forgotten(self._entries[place], now)]

    # ---- reading ----

    def list(self, scope: str, prefix: str, after: str, now: int, limit: int) -> MemoryPage:
        chosen = (entry for entry in self._living(now) if entry.scope == scope and entry.key > after)
        return _memory_page([entry for entry in chosen if entry.key.startswith(prefix)], limit)

    def search(self, scope: str | None, words: Sequence[str], now: int, limit: int) -> MemoryPage:
        chosen = (entry for entry in self._living(now) if scope in (None, entry.scope))
        return _memory_page(
            [entry for entry in chosen if all(word in f"{entry.key}\n{entry.text}\n{entry.summary}" for word in words)],
            limit,
        )

    def history(self, scope: str, key: str, now: int, limit: int) -> list[MemoryChange]:
        changes = self._changes.get((scope, key), [])
        return [seen_at(change, now) for change in reversed(changes)][:limit]

    def scopes(self, now: int) -> list[MemoryScope]:
        names = dict.fromkeys(entry.scope for entry in self._living(now))
        return [self.usage(name, now) for name in names]

    def raw(self) -> Iterator[tuple[MemoryEntry, bool]]:
        for place in sorted(self._entries):
            yield self._entries[place], True

    def raw_changes(self) -> Iterator[MemoryChange]:
        for place in sorted(self._changes):
            yield from self._changes[place]


def _memory_page(entries: list[MemoryEntry], limit: int) -> MemoryPage:
    """Nothing is ever damaged here."""
    return MemoryPage(entries[:limit], [], len(entries) >= limit)


class RuleTable:
    """The table of the same name."""

    def __init__(self) -> None:
        self._kept: dict[int, StoredRule] = {}

    # ---- inside a transaction ----

    def find(self, number: int) -> StoredRule | None:
        return self._kept.get(number)

    def same(self, agent: str, digest: str) -> StoredRule | None:
        return next((rule for rule in self._in_force(agent) if rule.digest == digest), None)

    def count(self, agent: str) -> int:
        return len(self._in_force(agent))

    def add(self, rule: StoredRule) -> StoredRule:
        added = replace(rule, id=len(self._kept) + 1)
        self._kept[added.id] = added
        return added

    def remove(self, rule: StoredRule) -> None:
        self._kept[rule.id] = rule

    def _in_force(self, *agents: str) -> list[StoredRule]:
        return [rule for rule in self._kept.values() if rule.removed_at is None and rule.agent in agents]

    # ---- reading ----

    def in_force(self, agent: str) -> list[StoredRule]:
        return self._in_force(agent, EVERY_AGENT)

    def newest(self, agent: str | None, before: int | None, limit: int) -> list[StoredRule]:
        chosen = [
            rule
            for rule in reversed(self._kept.values())
            if agent in (None, rule.agent) and (before is None or rule.id < before)
        ]
        return chosen[:limit]

    def raw(self) -> Iterator[tuple[StoredRule, bool]]:
        for rule in self._kept.values():
            yield rule, True


class SpendingTable:
    """The table of the same name."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str | None, int | None], Spend] = {}

    def add(self, agent: str | None, day: int, spend: Spend) -> None:
        for place in ((agent, day), (agent, None)):
            self._kept[place] = self._kept.get(place, NO_SPEND) + spend

    def since(self) -> int:
        return 0

    def forgotten(self) -> tuple[list[DailySpend], list[str | None]]:
        return [], []

    def raw(self) -> Iterator[tuple[str | None, int | None, Spend]]:
        for (agent, day), spend in self._kept.items():
            yield agent, day, spend


class BlobTable:
    """`AttachmentRows` and `AttachmentReader` of a store that has blobs and no attachments."""

    def __init__(self, disk: ModelDisk) -> None:
        self._disk = disk

    def forget(self, digest: str) -> None:
        self._disk.blobs.pop(digest, None)

    def collection_basis(self) -> CollectionBasis:
        damaged = [row.id for row in self._disk.journal_rows.values() if row.quarantine is not None]
        return CollectionBasis(bool(self._disk.blobs), bool(self._roots()), min(damaged, default=None))

    def unused(self, before: int, *, after: str = "", limit: int = -1) -> list[tuple[str, int]]:
        found = self.unused_of(sorted(digest for digest in self._disk.blobs if digest > after), before)
        return found if limit < 0 else found[:limit]

    def unused_of(self, digests: Sequence[str], before: int) -> list[tuple[str, int]]:
        roots = self._roots()
        there = [(digest, self._disk.blobs[digest]) for digest in digests if digest in self._disk.blobs]
        return [(digest, len(body)) for digest, (at, body) in there if at < before and digest not in roots]

    def _roots(self) -> set[str]:
        return {digest for digest, _, _ in self._disk.references}

    def raw(self) -> Iterator[StoredAttachment]:
        return iter(())


class NoTombstones:
    """`RetentionRows` and `RetentionReader` where nothing is ever pruned or forgotten."""

    def forgotten_at(self, journal: str) -> int | None:
        return None

    def epoch_floor(self) -> int:
        return 0

    def find(self, journal: str) -> Tombstone | None:
        return None

    def birthplace(self, journal: str) -> str | None:
        return None

    def raw(self) -> Iterator[tuple[Tombstone, bool]]:
        return iter(())


class ModelDisk:
    """What was committed. Implements both the rows of a transaction and the reads."""

    def __init__(self) -> None:
        self.store_id = secrets.token_hex(16)
        self.secret = secrets.token_bytes(32)
        self._journals: dict[str, JournalRow] = {}
        self._feed: list[_Stored] = []
        self._made = 0
        self._positions: dict[int, list[int]] = {}
        self._inputs: dict[int, dict[int, InputRow]] = {}
        self._aliases: dict[tuple[int, str], int] = {}
        self._waits: dict[int, dict[str, Wait]] = {}
        self.blobs: dict[str, tuple[int, bytes]] = {}
        self._refs: set[tuple[str, int, int]] = set()
        self.notifications = NotificationTable()
        self.memories = MemoryTable()
        self.rules = RuleTable()
        self.spending = SpendingTable()
        self.attachments = BlobTable(self)
        self.retention = NoTombstones()

    @property
    def journal_rows(self) -> Mapping[str, JournalRow]:
        """All journals by their ids."""
        return self._journals

    @property
    def references(self) -> Iterable[tuple[str, int, int]]:
        """Which record of which journal refers to which blob."""
        return self._refs

    # ---- Rows ----

    def journal(self, journal: str) -> JournalRow | None:
        return self._journals.get(journal)

    def add_journal(self, row: JournalRow) -> JournalRow:
        self._made += 1
        row.no = self._made
        self._journals[row.id] = row
        self._positions[row.no] = []
        self._inputs[row.no] = {}
        self._waits[row.no] = {}
        return row

    def save_journal(self, row: JournalRow) -> None:
        """The row is the stored one: there is nothing to write."""

    save_head = save_wakes = save_lease = save_journal

    def add_records(self, row: JournalRow, first: int, epoch: int, bodies: Sequence[bytes]) -> None:
        for seq, body in enumerate(bodies, first):
            self._feed.append(_Stored(row.no, seq, epoch, body))
            self._positions[row.no].append(len(self._feed))

    def first_record(self, row: JournalRow) -> bytes:
        return self._feed[self._positions[row.no][0] - 1].body

    def input_by_key(self, row: JournalRow, key: str) -> InputRow | None:
        found = next((found for found in self._inputs[row.no].values() if found.key == key), None)
        return found or self._inputs[row.no].get(self._aliases.get((row.no, key), 0))

    def add_alias(self, row: JournalRow, key: str, number: int) -> None:
        self._aliases[row.no, key] = number

    def counted_input(self, row: JournalRow, digest: str, first: int, last: int) -> InputRow | None:
        found = [one for one in self._counted(row, first, last) if one.digest == digest]
        return min(found, key=lambda one: (one.at, one.input), default=None)

    def counted_at(self, row: JournalRow, first: int, last: int, nth: int) -> int | None:
        times = sorted((found.at for found in self._counted(row, first, last)), reverse=True)
        return times[nth - 1] if len(times) >= nth else None

    def _counted(self, row: JournalRow, first: int, last: int) -> list[InputRow]:
        return [found for found in self._inputs[row.no].values() if found.counted and first <= found.at <= last]

    def count_pending(self, row: JournalRow) -> int:
        return sum(found.pending for found in self._inputs[row.no].values())

    def add_input(self, row: JournalRow, found: InputRow) -> None:
        self._inputs[row.no][found.input] = found

    def is_pending(self, row: JournalRow, number: int) -> bool:
        found = self._inputs[row.no].get(number)
        return found is not None and found.pending

    def admit_input(self, row: JournalRow, number: int) -> None:
        self._inputs[row.no][number] = replace(self._inputs[row.no][number], pending=False)

    def save_wait(self, row: JournalRow, wait: Wait) -> None:
        self._waits[row.no][wait.name] = wait

    def open_waits(self, row: JournalRow, prefix: str) -> list[str]:
        waits = self._waits[row.no].values()
        return [wait.name for wait in waits if wait.state == "open" and wait.name.startswith(prefix)]

    def revoke_waits(self, row: JournalRow) -> int:
        waits = self._waits[row.no]
        for name in waits:
            waits[name] = Wait(row.id, name, "revoked")
        return len(waits)

    def has_blob(self, digest: str) -> bool:
        return digest in self.blobs

    def put_blob(self, digest: str, body: bytes | AttachmentSpool, at: int) -> None:
        last = self.blobs[digest][0] if digest in self.blobs else at
        self.blobs[digest] = (max(at, last), body if isinstance(body, bytes) else body.whole())

    def refer(self, digest: str, row: JournalRow, seq: int) -> None:
        self._refs.add((digest, row.no, seq))

    def give_back(self, owner: Owner) -> None:
        """Free the leases of an opening that is closed."""
        for row in self._journals.values():
            if row.owner == owner:
                row.owner, row.expires, row.mono_expires = None, 0, 0

    # ---- Rows and Reader: a wait is found by the row inside a transaction, by id outside ----

    def wait(self, row: JournalRow | str, name: str, /) -> Wait | None:
        no = self._known(row).no if isinstance(row, str) else row.no
        return self._waits[no].get(name)

    # ---- Reader ----

    def _known(self, journal: str) -> JournalRow:
        row = self._journals.get(journal)
        if row is None:
            raise JournalMissing(journal)
        return row

    def row(self, journal: str) -> JournalRow | None:
        return copy.copy(self._journals.get(journal))

    def records(self, journal: str, after: int, limit: int) -> list[Entry]:
        positions = self._positions[self._known(journal).no][after : after + limit]
        return [self._entry(pos) for pos in positions]

    def _entry(self, pos: int) -> Entry:
        found = self._feed[pos - 1]
        return Entry(found.seq, pos, found.epoch, records.decode(found.body))

    def handed_at(self, journal: str, upto: int) -> int:
        positions = self._positions[self._known(journal).no][: max(upto, 0)]
        found = (self._feed[pos - 1] for pos in reversed(positions))
        handed = (entry.seq for entry in found if entry.body.startswith(records.HANDED_PREFIX))
        return next(handed, 0)

    def feed(self, after: int, limit: int) -> list[FeedEntry]:
        names = {row.no: row.id for row in self._journals.values()}
        found = enumerate(self._feed[after : after + limit], after + 1)
        return [FeedEntry(pos, names[one.journal], one.seq, records.decode(one.body)) for pos, one in found]

    def last_position(self) -> int:
        return len(self._feed)

    def heads(self, journals: Sequence[str]) -> dict[str, int]:
        return {name: self._journals[name].head for name in journals if name in self._journals}

    def work(self, after: int, limit: int, now: Instant) -> list[Work]:
        found = (row for row in self._journals.values() if row.no > after and row.has_work())
        return [row.as_work(now) for row in itertools.islice(found, limit)]

    def receipt(self, journal: str, key: str) -> Receipt | None:
        found = self.input_by_key(self._known(journal), key)
        return None if found is None else Receipt(journal, found.input, found.key, found.at, fresh=False)

    def pending(self, journal: str, after: int, limit: int) -> list[Input]:
        waiting = self._inputs[self._known(journal).no].values()
        found = [row for row in waiting if row.pending and row.input > after]
        return [Input(row.input, row.key, row.body, row.at, row.head) for row in found[:limit]]

    def waits(self, journal: str, state: WaitState | None, after: str, limit: int) -> list[Wait]:
        found = self._waits[self._known(journal).no]
        return [found[name] for name in sorted(found) if name > after and state in (None, found[name].state)][:limit]

    def list_open_waits(
        self, kind: str, now: int, before: tuple[int, str, str] | None, limit: int
    ) -> tuple[list[Wait], set[str]]:
        numbers = {row.id: row.no for row in self._journals.values() if row.quarantine is None}
        found = [
            (wait.at, numbers[wait.journal], wait.name, wait)
            for waits in self._waits.values()
            for wait in waits.values()
            if wait.journal in numbers and wait.state == "open" and wait.kind == kind
            if wait.deadline is None or wait.deadline > now
        ]
        if before is not None:
            at, journal, name = before
            row = self._journals.get(journal)
            found = [line for line in found if row is not None and line[:3] < (at, row.no, name)]
        return [line[3] for line in sorted(found, key=lambda line: line[:3], reverse=True)[:limit]], set()

    def _open_waits(self) -> list[tuple[int, Wait]]:
        served = {row.id for row in self._journals.values() if row.quarantine is None}
        waits = (wait for found in self._waits.values() for wait in found.values() if wait.journal in served)
        due = [(wait.deadline, wait) for wait in waits if wait.state == "open" and wait.deadline is not None]
        return sorted(due, key=lambda item: (item[0], item[1].journal, item[1].name))

    def due(self, now: int, limit: int) -> tuple[list[Wait], set[str]]:
        due = [wait for deadline, wait in self._open_waits() if deadline <= now]
        return due[:limit], set()

    def next_due(self) -> int | None:
        waiting = self._open_waits()
        return earliest(waiting[0][0] if waiting else None, self.notifications.next_due())

    def blob(self, digest: str) -> bytes | None:
        found = self.blobs.get(digest)
        return None if found is None else found[1]

    def journals(self, where: JournalFilter, limit: int) -> list[Journal]:
        fitting = (row for row in self._journals.values() if _matches(row, where) and not self._is_left_out(row, where))
        found = sorted(fitting, key=lambda row: (row.updated, row.id))
        end = len(found)
        if where.before is not None:
            end = bisect.bisect_left(found, where.before, key=lambda row: (row.updated, row.id))
        return [self._line(row) for row in found[max(end - limit, 0) : end][::-1]]

    def find_journal(self, journal: str) -> Journal:
        return self._line(self._known(journal))

    def _line(self, row: JournalRow) -> Journal:
        return row.as_journal(records.metadata_in(self.first_record(row)))

    def _is_left_out(self, row: JournalRow, where: JournalFilter) -> bool:
        waits = self._waits[row.no].values() if where.untimed else ()
        return any(wait.state == "open" and wait.deadline is not None for wait in waits)

    def raw_journals(self) -> list[JournalRow]:
        return [copy.copy(row) for row in self._journals.values()]

    def raw_records(self, journal: str) -> Iterator[RawRecord]:
        row = self._known(journal)
        for pos in self._positions[row.no]:
            found = self._feed[pos - 1]
            yield RawRecord(found.seq, pos, found.epoch, True, found.body)

    def raw_blobs(self) -> Iterator[tuple[str, bool]]:
        for digest in self.blobs:
            yield digest, True

    def raw_references(self) -> Iterator[tuple[str, str, int]]:
        names = {row.no: row.id for row in self._journals.values()}
        for digest, no, seq in self._refs:
            yield digest, names[no], seq

    def raw_waits(self) -> Iterator[tuple[Wait, bool]]:
        for found in self._waits.values():
            for wait in found.values():
                yield wait, True

    def raw_inputs(self) -> Iterator[tuple[str, InputRow, bool]]:
        names = {row.no: row.id for row in self._journals.values()}
        for no, found in self._inputs.items():
            for row in found.values():
                yield names[no], row, True

    def raw_aliases(self) -> Iterator[tuple[str, str, int]]:
        names = {row.no: row.id for row in self._journals.values()}
        for (no, key), number in self._aliases.items():
            yield names[no], key, number


def _matches(row: JournalRow, where: JournalFilter) -> bool:
    wanted = (where.kind, where.status, where.agent, where.role, where.session)
    found = (row.kind, row.status, row.agent, row.role, row.session)
    return all(one is None or one == other for one, other in zip(wanted, found, strict=True))


class ModelBackend:
    """`Backend` that carries out a command as soon as it is submitted."""

    def __init__(self, disk: ModelDisk, clock: Clock) -> None:
        self.disk = disk
        # The model has no attachments, gate, signals or pruning: the state machine uses none of them.
        self._rows, self._reader = cast("Rows", disk), cast("Reader", disk)
        self.clock = clock
        self.limits = StoreLimits()
        self.owner = current_owner(clock.read().boot)
        self.store_id = disk.store_id
        self.secret = disk.secret
        self.path: Path | None = None
        self.version = 0
        self.shared = False
        self.sockets = None
        self._closed = False

    def submit(
        self,
        command: Command[T],
        then: Callable[[asyncio.Future[T]], None] | None = None,
        size: int | None = None,
    ) -> asyncio.Future[T]:
        if self._closed:
            raise StoreClosed
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if then is not None:
            waiter.add_done_callback(then)
        try:
            waiter.set_result(command.apply(Transaction(self._rows, self.limits, self.clock.read())))
        except HoldfastError as refusal:
            waiter.set_exception(refusal)
        return waiter

    async def read(self, query: Callable[[Reader], T]) -> T:
        return query(self._reader)

    async def changed(self, version: int, timeout: float | None) -> int:
        raise NotImplementedError

    def crash(self) -> None:
        """Stop as a killed process does: it keeps its leases."""
        self._closed = True

    async def close(self) -> None:
        if not self._closed:
            self.disk.give_back(self.owner)
        self._closed = True
