"""The contract between `Store` and its backends: the data, the commands, and the protocols of a backend.

Pure functions (`decisions` and the topic modules) decide a command, and `transaction` carries it out on the rows of a
backend, in one transaction with all other waiting commands. Backends differ only in how they store rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import msgspec

from holdfast.records import Blob, JournalKind, Opened, Record, Status
from holdfast.store.checksum import blob_digest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from holdfast.clock import Clock, Instant
    from holdfast.store.admission import AdmissionReader, AdmissionRows, AdmissionWindow
    from holdfast.store.attachments import AttachmentReader, AttachmentRows, AttachmentSpool
    from holdfast.store.memories import MemoryReader, MemoryRows
    from holdfast.store.notifications import NotificationReader, NotificationRows, Notify
    from holdfast.store.retention import RetentionReader, RetentionRows
    from holdfast.store.rules import AddRule, RuleReader, RuleRows, StoredRule
    from holdfast.store.spending import Spend, SpendingReader, SpendingRows


class StoreLimits(msgspec.Struct, frozen=True):
    """The limits of a store, with their defaults."""

    record_bytes: int = 1024 * 1024
    """One record. Larger values belong in blobs."""
    inline_bytes: int = 32 * 1024
    """Results of effects above this become blobs."""
    input_bytes: int = 1024 * 1024
    """One input, or one resolution of a wait."""
    blob_bytes: int = 64 * 1024 * 1024
    """One blob."""
    attachment_bytes: int = 64 * 1024 * 1024
    """One attachment."""
    attachments: int = 10_000
    """Attachments of one session, or of no session."""
    attachments_bytes: int = 4 * 1024 * 1024 * 1024
    """All attachments of one session, or of no session."""
    pending_inputs: int = 1_000
    """Pending inputs of one journal."""
    page: int = 1_000
    """Rows of one read."""
    page_bytes: int = 16 * 1024 * 1024
    """Payload of one read (a single larger row comes alone)."""
    queued: int = 100_000
    """Commands in the queue of the writer."""
    queued_bytes: int = 256 * 1024 * 1024
    """Payload in the queue of the writer."""
    batch: int = 2_048
    """Commands of one transaction."""
    batch_bytes: int = 16 * 1024 * 1024
    """Payload of one transaction (a single larger command goes alone)."""
    busy_ms: int = 10_000
    """Time that a write waits for another process."""
    read_ms: int = 30_000
    """Time of one read, after which it is interrupted; a store in memory does not interrupt reads."""
    wal_bytes: int = 16 * 1024 * 1024
    """Size of the write-ahead log at which it is reset."""
    wal_max_bytes: int = 1024 * 1024 * 1024
    """Size of the write-ahead log at which writes are refused, because a foreign reader keeps it from being reset."""
    wait_bytes: int = 1024 * 1024
    """The question of one wait."""
    rule_bytes: int = 32 * 1024
    """One stored rule."""
    rules: int = 200
    """Rules in force for one agent, or for every agent."""
    notification_bytes: int = 32 * 1024
    """The body of one notification."""
    notifications: int = 1_000
    """Queued and claimed notifications of one journal."""
    max_attempts: int = 8
    """Turns that carry a notification before it is dead."""
    notification_kept_ms: int = 30 * 24 * 60 * 60 * 1000
    """Time until an acknowledged, cancelled or expired notification may be purged, and its key with it."""
    memory_bytes: int = 256 * 1024
    """One value in memory."""
    scope_bytes: int = 16 * 1024 * 1024
    """All keys and values of one scope of memory."""
    scope_entries: int = 10_000
    """Entries of one scope of memory."""
    memory_changes: int = 50
    """Changes in the history of one entry of memory."""


R_co = TypeVar("R_co", covariant=True)


class Command(msgspec.Struct, Generic[R_co], frozen=True):
    """One request to change the store; `R_co` is the type of its answer."""

    def size(self) -> int:
        """Bytes of payload, for the limits of the queue."""
        return 0


WaitState = Literal["open", "resolved", "expired", "cancelled", "revoked"]
WAIT_STATES: Final[tuple[str, ...]] = get_args(WaitState)


class Wait(msgspec.Struct, frozen=True):
    """A one-shot durable promise. `payload` is the resolution as JSON."""

    journal: str
    name: str
    state: WaitState
    deadline: int | None = None
    payload: bytes | None = None
    opened: bool = True
    """False for a resolution that came before its wait was opened."""
    kind: str | None = None
    """The sort of question, for example "approval". Waits with a kind can be listed across journals."""
    body: bytes | None = None
    """The question."""
    at: int = 0
    """When it was opened, in wall milliseconds; 0 before that, and for waits of schema 3 and older."""
    consumed: int = 0
    """The record that consumed its resolution; 0 before that."""

    @property
    def digest(self) -> str | None:
        """SHA-256 of the question; an answer can name it."""
        return None if self.body is None else blob_digest(self.body)


class Settlement(msgspec.Struct, frozen=True):
    """The wait after an attempt to settle it; `won` if this attempt settled it."""

    wait: Wait
    won: bool
    rule: StoredRule | None = None
    """The rule that was stored with the answer, if this attempt won."""


class OpenWait(Command[Wait], frozen=True):
    """Open a wait. An existing one keeps its deadline, its question and its resolution."""

    journal: str
    name: str
    deadline: int | None
    kind: str | None = None
    body: bytes | None = None

    def size(self) -> int:
        return len(self.body or b"")


class SettleWait(Command[Settlement], frozen=True):
    """Settle a wait; the first attempt wins."""

    journal: str
    name: str
    state: Literal["resolved", "expired", "cancelled"]
    payload: bytes | None = None
    early: bool = True
    """The resolution may come before its wait is opened."""
    expect_digest: str | None = None
    """The digest of the question that this answers."""
    rule: AddRule | None = None
    """A rule to store in the same commit, if this attempt wins."""

    def size(self) -> int:
        return len(self.payload or b"") + (0 if self.rule is None else self.rule.size())


class SettleNext(Command[Settlement], frozen=True):
    """Resolve the first open one of numbered waits, or the next number.

    With a `key`, only once: the same payload under the same key settles nothing.
    """

    journal: str
    prefix: str
    """The prefix of their names; eight digits follow, from 1."""
    most: int
    """The highest number allowed."""
    payload: bytes
    key: str | None = None

    def size(self) -> int:
        return len(self.payload)


class RevokeWaits(Command[int], frozen=True):
    """Revoke one wait, or all present and future waits of a journal."""

    journal: str
    name: str | None


class WaitFilter(msgspec.Struct, frozen=True):
    """The open waits to list across journals, newest first, if they can still be answered at `now`.

    `before` is the (at, journal, name) of the last wait of the previous page.
    """

    kind: str
    now: int
    before: tuple[int, str, str] | None = None


T = TypeVar("T")
Durability = Literal["power", "process"]


class Owner(msgspec.Struct, frozen=True):
    """The holder of leases: one opening of a store by one process. Others can tell if that process has ended."""

    instance: str
    pid: int
    started: int
    namespace: str
    boot: str

    def describe(self) -> str:
        """For error messages."""
        return f"process {self.pid} ({self.instance})"


class Input(msgspec.Struct, frozen=True):
    """An accepted input."""

    input: int
    key: str
    body: bytes
    at: int


class NewJournal(msgspec.Struct, frozen=True):
    """The whole content of a new journal: its first record and its first input, if any."""

    opened: Opened
    input: Input | None = None


class Lease(msgspec.Struct, frozen=True):
    """The right to advance a journal. `epoch` only grows; a write under an old epoch fails."""

    journal: str
    epoch: int
    owner: Owner
    ttl_ms: int
    head: int
    """The head of the journal at the claim."""
    wakes: int = 0
    """The wake count of the journal at the claim; see `Store.release`."""
    made: NewJournal | None = None
    """The content of a journal that the same commit created, so that the holder need not read it."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A record with its sequence in its journal and its position in the store."""

    seq: int
    pos: int
    epoch: int
    record: Record


class FeedEntry(msgspec.Struct, frozen=True, gc=False):
    """A record of any journal, by its position in the store. `record` is None for a damaged one.

    `journal` is "" at the newest position if its journal was pruned.
    """

    pos: int
    journal: str
    seq: int
    record: Record | None


class Journal(msgspec.Struct, frozen=True):
    """A journal as the lists show it."""

    id: str
    kind: JournalKind
    agent: str | None
    status: Status
    head: int
    created: int
    updated: int
    quarantine: str | None = None
    parent: str | None = None
    """The journal that this one forks; it continues after record `parent_seq` of the parent."""
    parent_seq: int = 0
    role: str | None = None
    """The sort of process, for example "task" for a tool call in the background."""
    session: str | None = None
    """The session that a process works for."""
    metadata: dict[str, Any] = {}
    """The metadata that the host gave when it opened the session."""


class Work(msgspec.Struct, frozen=True):
    """A session, or a process with a `role`, that needs a driver: it was woken since it was last seen, or it runs.

    `holder` is None if the lease is free or expired; `left_ms` is the rest of its term. A holder whose process has
    ended is still named; see `Store.owner_gone`.
    """

    no: int
    journal: str
    agent: str | None
    wakes: int
    status: Status
    holder: Owner | None
    left_ms: int
    kind: JournalKind = "session"
    role: str | None = None
    session: str | None = None
    """The session that a process works for."""


class Receipt(msgspec.Struct, frozen=True):
    """The answer to an accepted input. `fresh` is False if the same input was accepted before."""

    journal: str
    input: int
    key: str
    at: int
    fresh: bool = True
    head: int = 0
    """The head of the journal at the acceptance; 0 for an earlier one."""


class Head(NamedTuple):
    """The head of a journal after an append, and its wake count at that commit.

    From the wake count its driver learns, without another read, that something was accepted meanwhile.
    """

    seq: int
    wakes: int


class JournalRow(msgspec.Struct):
    """The row of a journal. Mutable: it belongs to one transaction at a time.

    `wakes` counts events from outside that need a driver, `seen` the ones that were handled.
    """

    no: int
    id: str
    kind: JournalKind
    agent: str | None
    status: Status
    head: int
    created: int
    updated: int
    epoch: int = 0
    owner: Owner | None = None
    expires: int = 0
    mono_expires: int = 0
    term: int = 0
    quarantine: str | None = None
    revoked: bool = False
    wakes: int = 0
    seen: int = 0
    parent: str | None = None
    parent_seq: int = 0
    inputs: int = 0
    """Inputs accepted so far; a fork continues the count of its parent."""
    role: str | None = None
    session: str | None = None
    notices: int = 0
    """Queued and claimed notifications."""
    base: int = 0
    """The last trimmed record."""


class InputRow(msgspec.Struct, frozen=True):
    """The row of an input."""

    input: int
    key: str
    digest: str
    body: bytes
    at: int
    pending: bool = True
    counted: bool = False
    """It was accepted under an admission, and counts in its windows."""


class OpenJournal(Command[Journal], frozen=True):
    """Create a journal, or find it unchanged."""

    journal: str
    kind: JournalKind
    agent: str | None
    role: str | None = None
    session: str | None = None
    metadata: bytes | None = None
    """A JSON object, which an existing journal must have; None for any."""


class Fork(Command[Journal], frozen=True):
    """Create a journal that continues after record `at` of its parent, or find that fork."""

    journal: str
    parent: str
    at: int
    agent: str | None = None
    """The agent of the parent at that record."""


class Claim(Command[Lease], frozen=True):
    """Claim a lease that is free, expired, or held by a process that has ended."""

    journal: str
    owner: Owner
    ttl_ms: int


class Renew(Command[None], frozen=True):
    """Extend the lease by another term."""

    lease: Lease


class Release(Command[None], frozen=True):
    """Release the lease; the epoch stays. `seen` is the number of handled wakes."""

    lease: Lease
    seen: int | None = None
    patient: bool = True
    """The caller does not wait for it."""


class Append(Command[Any], frozen=True):
    """Add records under (epoch, expected head); answers the new head, as a `Head` if it `tells_wakes`."""

    journal: str
    epoch: int
    head: int
    records: Sequence[Record]
    bodies: Sequence[bytes]
    plain: bool = False
    """No record touches the lists, the inbox or a blob: the append is all there is to do."""
    patient: bool = False
    """The caller does not wait yet: the records may share the commit of the next command."""
    notify: tuple[Notify, ...] = ()
    """Notifications in the same commit. One that can't be queued is dead; the append succeeds."""
    spend: tuple[tuple[int, Spend], ...] = ()
    """The spending of the records by day, counted in the same commit."""
    consume: tuple[str, ...] = ()
    """Resolved waits of the journal that this commit consumes."""
    tells_wakes: bool = False

    def size(self) -> int:
        payload = sum(map(len, self.bodies))
        return payload + sum(notice.size() for notice in self.notify) if self.notify else payload


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
    """The store made up its key, so it needs no alias."""
    youngest: str | None = None
    """Create the journal only if this is still the newest of its role and session ("" for none)."""
    spend: Spend | None = None
    """Spending to count if this command creates the journal."""
    under: tuple[str, str] | None = None
    """The journal of the caller and the key of its stop request; refused once that request was accepted."""

    def size(self) -> int:
        return len(self.body)


class ReadPosition(Command[int], frozen=True):
    """Answer the newest position of the store, after all commands that were queued before."""


class PutBlob(Command[Blob], frozen=True):
    """Store bytes under their digest."""

    digest: str
    body: bytes

    def size(self) -> int:
        return len(self.body)


class Quarantine(Command[None], frozen=True):
    """Stop serving a journal that can't be trusted."""

    journal: str
    reason: str


class Rows(Protocol):
    """The rows of a store inside one transaction. Reads see the writes of the same transaction."""

    @property
    def attachments(self) -> AttachmentRows: ...
    @property
    def notifications(self) -> NotificationRows: ...
    @property
    def memories(self) -> MemoryRows: ...
    @property
    def rules(self) -> RuleRows: ...
    @property
    def spending(self) -> SpendingRows: ...
    @property
    def admission(self) -> AdmissionRows: ...
    @property
    def retention(self) -> RetentionRows: ...
    def last_position(self) -> int: ...
    def journal(self, journal: str) -> JournalRow | None: ...
    def add_journal(self, row: JournalRow) -> JournalRow: ...
    def youngest(self, role: str, session: str) -> str:
        """The newest journal of this role and session; "" without one."""
        ...

    def save_journal(self, row: JournalRow) -> None: ...
    def save_head(self, row: JournalRow) -> None: ...
    def save_lease(self, row: JournalRow) -> None: ...
    def save_wakes(self, row: JournalRow) -> None: ...
    def add_records(self, row: JournalRow, first: int, epoch: int, bodies: Sequence[bytes]) -> None: ...
    def first_record(self, row: JournalRow) -> bytes | None:
        """The bytes of the first record of a journal; None if they are damaged."""
        ...

    def input_by_key(self, row: JournalRow, key: str) -> InputRow | None:
        """The input that was accepted under this key, or for which this key is an alias."""
        ...

    def add_alias(self, row: JournalRow, key: str, number: int) -> None:
        """Make `key` another key of an input."""
        ...

    def counted_input(self, row: JournalRow, digest: str, first: int, last: int) -> InputRow | None:
        """The first counted input with this digest in this span of time."""
        ...

    def counted_at(self, row: JournalRow, first: int, last: int, nth: int) -> int | None:
        """The time of the nth newest counted input in this span of time."""
        ...

    def count_pending(self, row: JournalRow) -> int: ...
    def add_input(self, row: JournalRow, found: InputRow) -> None: ...
    def is_pending(self, row: JournalRow, number: int) -> bool: ...
    def admit_input(self, row: JournalRow, number: int) -> None: ...
    def wait(self, row: JournalRow, name: str, /) -> Wait | None: ...
    def save_wait(self, row: JournalRow, wait: Wait) -> None: ...
    def revoke_waits(self, row: JournalRow) -> int: ...
    def open_waits(self, row: JournalRow, prefix: str) -> list[str]: ...
    def last_wait(self, row: JournalRow, prefix: str) -> str | None:
        """The last name of a wait with this prefix."""
        ...

    def has_blob(self, digest: str) -> bool: ...
    def put_blob(self, digest: str, body: bytes | AttachmentSpool, at: int) -> None: ...
    def refer(self, digest: str, row: JournalRow, seq: int) -> None: ...


class JournalFilter(msgspec.Struct, frozen=True):
    """The journals to list, newest first. `before` is the (updated, id) of the last one of the previous page."""

    kind: JournalKind | None = None
    status: Status | None = None
    agent: str | None = None
    before: tuple[int, str] | None = None
    role: str | None = None
    session: str | None = None
    untimed: bool = False
    """Only journals without an open deadline."""


class JournalPreview(msgspec.Struct, frozen=True):
    """A journal with its first and latest input and its last records; None for damaged parts."""

    line: Journal
    first: Input | None
    """Its first input."""
    latest: Input | None
    """The newest admitted input with the requested key prefix."""
    tail: list[Entry] | None


class RawRecord(NamedTuple):
    """A record as stored, for audits; `sound` if it matches its checksum."""

    journal: str
    seq: int
    pos: int
    epoch: int
    sound: bool
    body: bytes


class Reader(Protocol):
    """Reads of one consistent state. `limit` never exceeds a page."""

    @property
    def attachments(self) -> AttachmentReader: ...
    @property
    def notifications(self) -> NotificationReader: ...
    @property
    def memories(self) -> MemoryReader: ...
    @property
    def rules(self) -> RuleReader: ...
    @property
    def spending(self) -> SpendingReader: ...
    @property
    def admission(self) -> AdmissionReader: ...
    @property
    def retention(self) -> RetentionReader: ...
    def row(self, journal: str) -> JournalRow | None: ...
    def line(self, journal: str) -> Journal | None:
        """A journal as the lists show it."""
        ...

    def records(self, journal: str, after: int, limit: int) -> list[Entry]: ...
    def tail(self, journal: str, limit: int) -> list[Entry]: ...
    def handed_at(self, journal: str, upto: int) -> int:
        """The last handoff record up to `upto`; 0 without one."""
        ...

    def feed(self, after: int, limit: int) -> list[FeedEntry]: ...
    def last_position(self) -> int: ...
    def heads(self, journals: Sequence[str]) -> dict[str, int]: ...
    def wakes(self, journals: Sequence[str]) -> dict[str, int]: ...
    def work(self, after: int, limit: int, now: Instant) -> list[Work]: ...
    def receipt(self, journal: str, key: str) -> Receipt | None: ...
    def pending(self, journal: str, after: int, limit: int) -> list[Input]: ...
    def input(self, journal: str, number: int) -> Input | None: ...
    def wait(self, journal: str, name: str, /) -> Wait | None: ...
    def waits(self, journal: str, state: WaitState | None, after: str, limit: int) -> list[Wait]: ...
    def asked(self, where: WaitFilter, limit: int) -> tuple[list[Wait], set[str]]: ...
    def due(self, now: int, limit: int) -> tuple[list[Wait], set[str]]: ...
    def next_due(self) -> int | None: ...
    def blob(self, digest: str) -> bytes | None: ...
    def blob_part(self, digest: str, start: int, size: int) -> bytes | None:
        """Some of the bytes under a digest, unchecked; None without any."""
        ...

    def journals(self, where: JournalFilter, limit: int) -> list[Journal]: ...
    def youngest(self, role: str, session: str) -> str: ...
    def glimpse(self, journal: str, prefix: str, tail: int) -> JournalPreview | None: ...
    def with_inputs(self, prefix: str, after: str, limit: int) -> list[str]: ...
    def raw_journals(self) -> list[JournalRow]: ...
    def raw_records(self, journal: str) -> Iterator[RawRecord]: ...
    def raw_blobs(self) -> Iterator[tuple[str, bool]]: ...
    def raw_references(self) -> Iterator[tuple[str, str, int]]: ...
    def raw_waits(self) -> Iterator[tuple[Wait, bool]]: ...
    def raw_bytes(self) -> Iterator[tuple[str, bytes]]: ...
    def raw_inputs(self) -> Iterator[tuple[str, InputRow, bool]]: ...
    def raw_aliases(self) -> Iterator[tuple[str, str, int]]: ...


class Backend(Protocol):
    """The storage of a store: a queue of commands, consistent reads, and notice of changes."""

    clock: Clock
    limits: StoreLimits
    owner: Owner
    store_id: str
    secret: bytes

    @property
    def path(self) -> Path | None:
        """The file of the store; None in memory."""
        ...

    @property
    def folder(self) -> Path | None:
        """The folder of its files; None in memory."""
        ...

    def submit(self, command: Command[T], then: Callable[[asyncio.Future[T]], None] | None = None) -> asyncio.Future[T]:
        """Queue a command; commands run in the order of queueing. The future is done when the change is durable.

        `then` is called with the future as soon as it is done, before its waiters go on.
        """
        ...

    async def read(self, query: Callable[[Reader], T]) -> T:
        """Run `query` on a consistent state, in a thread if it can block."""
        ...

    @property
    def version(self) -> int:
        """A number that grows with every commit that this process has seen, its own and others."""
        ...

    @property
    def shared(self) -> bool:
        """True if another process has this store open, as of the last commit."""
        ...

    async def changed(self, version: int, timeout: float | None) -> int:
        """Wait for a newer version than `version`, or for the timeout; answers the present one."""
        ...

    async def close(self) -> None:
        """Commit everything that is queued, then close."""
        ...
