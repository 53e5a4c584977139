"""A store in memory, with the same contract: for tests, simulations and throw-away runs.

`MemoryDisk` is what would be on the disk. It outlives the backends opened on it, so a test can drop a backend in the
middle of anything (that is a crash) and open another one on what was committed.
"""

from __future__ import annotations

import asyncio
import bisect
import copy
import itertools
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec.structs import replace

from holdfast import records
from holdfast.clock import SystemClock
from holdfast.errors import (
    BlobCorrupt,
    HoldfastError,
    JournalCorrupt,
    JournalMissing,
    RecordUnreadable,
    StoreBusy,
    StoreClosed,
)
from holdfast.errors.journals import JournalPruned
from holdfast.store.attachments.table import AttachmentTable
from holdfast.store.checksum import checksum, salt_of
from holdfast.store.contract import (
    Entry,
    FeedEntry,
    Glimpse,
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
from holdfast.store.decisions import as_work, earliest, has_work
from holdfast.store.digests import blob_digest, sound_input, trusted
from holdfast.store.gate.table import GateTable
from holdfast.store.memories.table import MemoryTable
from holdfast.store.notifications.table import NotificationTable
from holdfast.store.owners import this_process
from holdfast.store.pruning.disk import Forgetting, MemoryPruning
from holdfast.store.pruning.table import TombstoneTable
from holdfast.store.rules.table import RuleTable
from holdfast.store.spending.table import SpendingTable
from holdfast.store.transaction import Transaction, as_journal, broken_by
from holdfast.store.waiting import Versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.clock import Clock, Instant
    from holdfast.store.contract import Command, JournalFilter, Owner, Reader, WaitState
    from holdfast.store.spooling import Spool
    from holdfast.store.waits.contract import WaitFilter

T = TypeVar("T")


class _Stored(NamedTuple):
    journal: int
    seq: int
    epoch: int
    crc: int
    body: bytes


class MemoryDisk(Forgetting):
    """What was committed. Implements both the rows of a transaction and the reads."""

    def __init__(self) -> None:
        self.versions = Versions()
        """Shared by all openings, so that each notices what the others commit."""
        self.openings = 0
        """How many have opened it so far, also those that are gone."""
        self.store_id = secrets.token_hex(16)
        self.secret = secrets.token_bytes(32)
        self._journals: dict[str, JournalRow] = {}
        self._feed: list[_Stored | None] = []
        """None where a record was pruned."""
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
        self.gate = GateTable()
        self.attachments = AttachmentTable(self)
        self.stones = TombstoneTable()
        self.pruning = MemoryPruning(self)

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
        salt = salt_of(row.id)
        for seq, body in enumerate(bodies, first):
            self._feed.append(_Stored(row.no, seq, epoch, checksum(salt, seq, epoch, body), body))
            self._positions[row.no].append(len(self._feed))

    def first_record(self, row: JournalRow) -> bytes | None:
        found = self._feed[self._positions[row.no][0] - 1]
        if found is None:  # it was trimmed
            return None
        return found.body if checksum(salt_of(row.id), found.seq, found.epoch, found.body) == found.crc else None

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

    def last_wait(self, row: JournalRow, prefix: str) -> str | None:
        return max((name for name in self._waits[row.no] if name.startswith(prefix)), default=None)

    def revoke_waits(self, row: JournalRow) -> int:
        waits = self._waits[row.no]
        for name in waits:
            waits[name] = Wait(row.id, name, "revoked")
        return len(waits)

    def has_blob(self, digest: str) -> bool:
        return digest in self.blobs

    def put_blob(self, digest: str, body: bytes | Spool, at: int) -> None:
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
            stone = self.stones.find(journal)
            raise JournalMissing(journal) if stone is None else JournalPruned(journal, stone.detail, stone.at)
        return row

    def row(self, journal: str) -> JournalRow | None:
        return copy.copy(self._journals.get(journal))

    def records(self, journal: str, after: int, limit: int) -> list[Entry]:
        row = self._known(journal)
        first = max(after, row.base)
        positions = self._positions[row.no][first : first + limit]
        return [self._entry(row, pos) for pos in positions]

    def _entry(self, row: JournalRow, pos: int) -> Entry:
        found = self._stored(pos)
        if checksum(salt_of(row.id), found.seq, found.epoch, found.body) != found.crc:
            raise JournalCorrupt(row.id, found.seq, "it does not match its checksum")
        try:
            return Entry(found.seq, pos, found.epoch, records.decode(found.body))
        except RecordUnreadable as error:
            raise JournalCorrupt(row.id, found.seq, error.reason) from error

    def _stored(self, pos: int) -> _Stored:
        found = self._feed[pos - 1]
        assert found is not None, "a journal that is there refers to a record that was pruned"  # noqa: S101
        return found

    def tail(self, journal: str, limit: int) -> list[Entry]:
        return self.records(journal, max(self._known(journal).head - limit, 0), limit)

    def handed_at(self, journal: str, upto: int) -> int:
        positions = self._positions[self._known(journal).no][: max(upto, 0)]
        found = (self._feed[pos - 1] for pos in reversed(positions))
        handed = (entry.seq for entry in found if entry is not None and entry.body.startswith(records.HANDED))
        return next(handed, 0)

    def feed(self, after: int, limit: int) -> list[FeedEntry]:
        names = {row.no: row.id for row in self._journals.values()}
        entries: list[FeedEntry] = []
        for pos, found in enumerate(itertools.islice(self._feed, after, None), after + 1):
            if len(entries) == limit:
                break
            if found is None:
                if pos == len(self._feed):
                    entries.append(FeedEntry(pos, "", 0, None))
                continue
            journal = names[found.journal]
            sound = checksum(salt_of(journal), found.seq, found.epoch, found.body) == found.crc
            entries.append(FeedEntry(pos, journal, found.seq, trusted(found.body, sound=sound)))
        return entries

    def last_position(self) -> int:
        return len(self._feed)

    def heads(self, journals: Sequence[str]) -> dict[str, int]:
        return {name: self._journals[name].head for name in journals if name in self._journals}

    def wakes(self, journals: Sequence[str]) -> dict[str, int]:
        return {name: self._journals[name].wakes for name in journals if name in self._journals}

    def work(self, after: int, limit: int, now: Instant) -> list[Work]:
        found = (row for row in self._journals.values() if row.no > after and has_work(row))
        return [as_work(row, now) for row in itertools.islice(found, limit)]

    def receipt(self, journal: str, key: str) -> Receipt | None:
        found = self.input_by_key(self._known(journal), key)
        return None if found is None else Receipt(journal, found.input, found.key, found.at, fresh=False)

    def pending(self, journal: str, after: int, limit: int) -> list[Input]:
        waiting = self._inputs[self._known(journal).no].values()
        found = [row for row in waiting if row.pending and row.input > after]
        return [Input(row.input, row.key, row.body, row.at) for row in found[:limit]]

    def input(self, journal: str, number: int) -> Input | None:
        found = self._inputs[self._known(journal).no].get(number)
        return None if found is None else Input(found.input, found.key, found.body, found.at)

    def waits(self, journal: str, state: WaitState | None, after: str, limit: int) -> list[Wait]:
        found = self._waits[self._known(journal).no]
        return [found[name] for name in sorted(found) if name > after and state in (None, found[name].state)][:limit]

    def asked(self, where: WaitFilter, limit: int) -> tuple[list[Wait], set[str]]:
        numbers = {row.id: row.no for row in self._journals.values() if row.quarantine is None}
        found = [
            (wait.at, numbers[wait.journal], wait.name, wait)
            for waits in self._waits.values()
            for wait in waits.values()
            if wait.journal in numbers and wait.state == "open" and wait.kind == where.kind
            if wait.deadline is None or wait.deadline > where.now
        ]
        if where.before is not None:
            at, journal, name = where.before
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
        if found is not None and blob_digest(found[1]) != digest:
            raise BlobCorrupt(digest)
        return None if found is None else found[1]

    def blob_part(self, digest: str, start: int, size: int) -> bytes | None:
        found = self.blobs.get(digest)
        return None if found is None else found[1][start : start + size]

    def youngest(self, role: str, session: str) -> str:
        found = [row for row in self._journals.values() if (row.role, row.session) == (role, session)]
        return max(found, key=lambda row: row.no).id if found else ""

    def journals(self, where: JournalFilter, limit: int) -> list[Journal]:
        fitting = (row for row in self._journals.values() if _matches(row, where) and not self._is_left_out(row, where))
        found = sorted(fitting, key=lambda row: (row.updated, row.id))
        end = len(found)
        if where.before is not None:
            end = bisect.bisect_left(found, where.before, key=lambda row: (row.updated, row.id))
        return [self._line(row) for row in found[max(end - limit, 0) : end][::-1]]

    def line(self, journal: str) -> Journal | None:
        row = self._journals.get(journal)
        return None if row is None else self._line(row)

    def _line(self, row: JournalRow) -> Journal:
        return as_journal(row, records.metadata_in(self.first_record(row)))

    def _is_left_out(self, row: JournalRow, where: JournalFilter) -> bool:
        waits = self._waits[row.no].values() if where.untimed else ()
        return any(wait.state == "open" and wait.deadline is not None for wait in waits)

    def glimpse(self, journal: str, prefix: str, tail: int) -> Glimpse | None:
        row = self._journals.get(journal)
        if row is None:
            return None
        inputs = self._inputs[row.no].values()
        found = [one for one in inputs if one.key.startswith(prefix) and not one.pending]
        newest = max(found, key=lambda one: one.input, default=None)
        latest = None if newest is None else Input(newest.input, newest.key, newest.body, newest.at)
        try:
            return Glimpse(as_journal(row), self.input(journal, 1), latest, self.tail(journal, tail))
        except JournalCorrupt:
            return Glimpse(as_journal(row), None, None, None)

    def with_inputs(self, prefix: str, after: str, limit: int) -> list[str]:
        rows = [row for name, row in sorted(self._journals.items()) if name > after]
        found = (row.id for row in rows if any(one.key.startswith(prefix) for one in self._inputs[row.no].values()))
        return list(itertools.islice(found, limit))

    def raw_journals(self) -> list[JournalRow]:
        return [copy.copy(row) for row in self._journals.values()]

    def raw_records(self, journal: str) -> Iterator[RawRecord]:
        row = self._known(journal)
        for pos in self._positions[row.no][row.base :]:
            found = self._stored(pos)
            sound = checksum(salt_of(journal), found.seq, found.epoch, found.body) == found.crc
            yield RawRecord(journal, found.seq, pos, found.epoch, sound, found.body)

    def raw_blobs(self) -> Iterator[tuple[str, bool]]:
        for digest, (_, body) in self.blobs.items():
            yield digest, blob_digest(body) == digest

    def raw_references(self) -> Iterator[tuple[str, str, int]]:
        names = {row.no: row.id for row in self._journals.values()}
        for digest, no, seq in self._refs:
            yield digest, names[no], seq

    def raw_waits(self) -> Iterator[tuple[Wait, bool]]:
        for found in self._waits.values():
            for wait in found.values():
                yield wait, True

    def raw_bytes(self) -> Iterator[tuple[str, bytes]]:
        yield from (("record", found.body) for found in self._feed if found is not None)
        yield from (("blob", body) for _, body in self.blobs.values())
        yield from (("input", row.body) for found in self._inputs.values() for row in found.values())
        for wait, _ in self.raw_waits():
            yield from (("wait", body) for body in (wait.payload, wait.body) if body is not None)
        yield from (("gate", text.encode()) for text in self.gate.raw_texts())
        yield from (("rule", rule.body.encode()) for rule, _ in self.rules.raw())
        for found, _ in self.notifications.raw():
            yield from (("notification", text.encode()) for text in (found.title, found.body))
        yield from (("memory", entry.value.encode()) for entry, _ in self.memories.raw())
        yield from (("memory", (change.value or "").encode()) for change in self.memories.raw_changes())

    def raw_inputs(self) -> Iterator[tuple[str, InputRow, bool]]:
        names = {row.no: row.id for row in self._journals.values()}
        for no, found in self._inputs.items():
            for row in found.values():
                yield names[no], row, sound_input(row)

    def raw_aliases(self) -> Iterator[tuple[str, str, int]]:
        names = {row.no: row.id for row in self._journals.values()}
        for (no, key), number in self._aliases.items():
            yield names[no], key, number


def _matches(row: JournalRow, where: JournalFilter) -> bool:
    wanted = (where.kind, where.status, where.agent, where.role, where.session)
    found = (row.kind, row.status, row.agent, row.role, row.session)
    return all(one is None or one == other for one, other in zip(wanted, found, strict=True))


class MemoryBackend:
    """`Backend` in memory, with group commit as the event loop turns.

    `delay` (seconds, called twice per batch) puts time between acceptance, commit and answer: what a simulation needs
    to crash in between.
    """

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        *,
        clock: Clock | None = None,
        limits: StoreLimits | None = None,
        delay: Callable[[], float] | None = None,
    ) -> None:
        self.disk = disk or MemoryDisk()
        self.disk.openings += 1
        self.clock = clock or SystemClock()
        self.limits = limits or StoreLimits()
        self.owner = this_process(self.clock.read().boot)
        self.store_id = self.disk.store_id
        self.secret = self.disk.secret
        self.folder: Path | None = None
        self.path: Path | None = None
        self._loop = asyncio.get_running_loop()
        self._delay = delay
        self._versions = self.disk.versions
        self._queue: list[tuple[Command[Any], asyncio.Future[Any]]] = []
        self._unanswered: dict[asyncio.Future[Any], None] = {}  # ordered, so that a simulation can be repeated
        self._scheduled = False
        self._closed = False

    def submit(self, command: Command[T], then: Callable[[asyncio.Future[T]], None] | None = None) -> asyncio.Future[T]:
        if self._closed:
            raise StoreClosed
        if len(self._queue) >= self.limits.queued:
            raise StoreBusy(f"{self.limits.queued:,} commands wait for the writer")
        waiter: asyncio.Future[Any] = self._loop.create_future()
        if then is not None:
            waiter.add_done_callback(then)
        self._queue.append((command, waiter))
        self._unanswered[waiter] = None
        if not self._scheduled:
            self._scheduled = True
            self._later(self._commit)
        return waiter

    def _later(self, callback: Callable[..., None], *values: object) -> None:
        if self._delay is None:
            self._loop.call_soon(callback, *values)
        else:
            self._loop.call_later(self._delay(), callback, *values)

    def _commit(self) -> None:
        if self._closed:
            return
        batch, self._queue = self._queue[: self.limits.batch], self._queue[self.limits.batch :]
        transaction = Transaction(self.disk, self.limits, self.clock.read())
        answers: list[tuple[asyncio.Future[Any], Any]] = []
        for command, waiter in batch:
            try:
                answers.append((waiter, transaction.apply(command)))
            except HoldfastError as refusal:
                answers.append((waiter, refusal))
            except Exception as error:  # noqa: BLE001  a bug: whoever waits must hear of it
                answers.append((waiter, broken_by(error)))
        self._later(self._deliver, answers)

    def _deliver(self, answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
        if self._closed:
            return
        for waiter, answer in answers:
            self._unanswered.pop(waiter, None)
            if waiter.done():
                continue
            if isinstance(answer, HoldfastError):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)
        self._versions.advance()
        self._scheduled = bool(self._queue)
        if self._scheduled:
            self._later(self._commit)

    async def read(self, query: Callable[[Reader], T]) -> T:
        if self._closed:
            raise StoreClosed
        return query(self.disk)

    @property
    def version(self) -> int:
        return self._versions.current

    @property
    def shared(self) -> bool:
        return self.disk.openings > 1

    async def changed(self, version: int, timeout: float | None) -> int:
        if self._closed:
            raise StoreClosed
        found = await self._versions.after(version, timeout)
        if self._closed:
            raise StoreClosed
        return found

    def crash(self) -> None:
        """Stop at once, as a killed process does: what was not committed is gone, and nobody gets an answer."""
        self._closed = True
        for waiter in self._unanswered:
            if not waiter.done():
                waiter.set_exception(StoreClosed())
                waiter.exception()  # whoever waited died with the process: nobody has to look at it
        self._unanswered.clear()

    async def close(self) -> None:
        while self._unanswered and not self._closed:
            # Not for the answers themselves: one whose caller was cancelled is done before it is delivered.
            await self._versions.after(self._versions.current, None)
        if not self._closed:
            self.disk.give_back(self.owner)
        self._closed = True
        self._versions.advance()
