"""The store contract: the rows it keeps, the commands it takes, and what a backend must provide.

A command is decided by the pure functions of `decisions` and carried out by `transaction` on the rows of a backend,
together with all other commands that are waiting, in one transaction. Backends differ only in how they keep rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import msgspec

from holdfast.records import Blob, JournalKind, Opened, Record, Status
from holdfast.store.checksum import blob_digest
from holdfast.store.limits import StoreLimits  # noqa: TC001

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


R_co = TypeVar("R_co", covariant=True)


class Command(msgspec.Struct, Generic[R_co], frozen=True):
    """One request to change the store; `R_co` is what it answers."""

    def size(self) -> int:
        """The payload, in bytes."""
        return 0


WaitState = Literal["open", "resolved", "expired", "cancelled", "revoked"]
WAIT_STATES: Final[tuple[str, ...]] = get_args(WaitState)


class Wait(msgspec.Struct, frozen=True):
    """A one-shot durable promise. `payload` is the JSON of its resolution."""

    journal: str
    name: str
    state: WaitState
    deadline: int | None = None
    payload: bytes | None = None
    opened: bool = True
    """False while a resolution is buffered for a wait that nobody has opened yet."""
    kind: str | None = None
    """What sort of question it is: "approval", say. Those that have one can be listed over all journals."""
    body: bytes | None = None
    """What is asked."""
    at: int = 0
    """When it was opened, in wall milliseconds; 0 while it is not, and for those of schema 3 and before."""
    consumed: int = 0
    """The record with which its resolution was used; 0 while it was not."""

    @property
    def digest(self) -> str | None:
        """SHA-256 of what is asked: what an answer may be about."""
        return None if self.body is None else blob_digest(self.body)


class Settlement(msgspec.Struct, frozen=True):
    """How an attempt to settle a wait went: the wait as it now is, and whether this attempt decided it."""

    wait: Wait
    won: bool
    rule: StoredRule | None = None
    """The rule that was asked for with the answer, if this attempt decided the wait."""


class OpenWait(Command[Wait], frozen=True):
    """Make the wait exist. One that is there already keeps its deadline, its question and its resolution."""

    journal: str
    name: str
    deadline: int | None
    kind: str | None = None
    body: bytes | None = None

    def size(self) -> int:
        return len(self.body or b"")


class SettleWait(Command[Settlement], frozen=True):
    """End the wait; the first to do so decides."""

    journal: str
    name: str
    state: Literal["resolved", "expired", "cancelled"]
    payload: bytes | None = None
    early: bool = True
    """A resolution may come before its wait is opened."""
    expect_digest: str | None = None
    """The answer is about the question with this digest, and about no other."""
    rule: AddRule | None = None
    """To be stored in the same commit, if this attempt decides the wait."""

    def size(self) -> int:
        return len(self.payload or b"") + (0 if self.rule is None else self.rule.size())


class SettleNext(Command[Settlement], frozen=True):
    """Resolve the first of numbered waits that can be: one that is open, or the one behind the last.

    With a `key`, once: the same payload under the same key again settles nothing.
    """

    journal: str
    prefix: str
    """What their names begin with; eight digits follow, from 1."""
    most: int
    """The highest number there may be."""
    payload: bytes
    key: str | None = None

    def size(self) -> int:
        return len(self.payload)


class RevokeWaits(Command[int], frozen=True):
    """Make waits worthless: one of them, or all of the journal's, also those to come."""

    journal: str
    name: str | None


class WaitFilter(msgspec.Struct, frozen=True):
    """Which open waits of all journals to list, newest first, of those that can still be answered at `now`.

    `before` is the (at, journal, name) of the last line of the page before.
    """

    kind: str
    now: int
    before: tuple[int, str, str] | None = None


T = TypeVar("T")
Durability = Literal["power", "process"]


class Owner(msgspec.Struct, frozen=True):
    """Who holds a lease: one opening of a store by one process, described so that others can tell if it is gone."""

    instance: str
    pid: int
    started: int
    namespace: str
    boot: str

    def describe(self) -> str:
        """For error messages."""
        return f"process {self.pid} ({self.instance})"


class Input(msgspec.Struct, frozen=True):
    """An accepted input that is not yet in its journal."""

    input: int
    key: str
    body: bytes
    at: int


class NewJournal(msgspec.Struct, frozen=True):
    """A journal as it was made: its first record, the input that it was made for (if any), and nothing else."""

    opened: Opened
    input: Input | None = None


class Lease(msgspec.Struct, frozen=True):
    """The right to advance a journal. `epoch` only grows; a write under an old one fails."""

    journal: str
    epoch: int
    owner: Owner
    ttl_ms: int
    head: int
    """Where the journal ended when the lease was claimed."""
    wakes: int = 0
    """How often the journal had been woken when the lease was claimed; see `Store.release`."""
    made: NewJournal | None = None
    """All that there was when the lease was claimed, where the same commit made the journal: nothing is to be read."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A record in its place: `seq` in its journal, `pos` among all records of the store."""

    seq: int
    pos: int
    epoch: int
    record: Record


class FeedEntry(msgspec.Struct, frozen=True, gc=False):
    """A record of any journal, by its position in the store. `record` is None where it can't be trusted.

    `journal` is "" at the newest position if the journal that had it was pruned.
    """

    pos: int
    journal: str
    seq: int
    record: Record | None


class Journal(msgspec.Struct, frozen=True):
    """One line of the lists."""

    id: str
    kind: JournalKind
    agent: str | None
    status: Status
    head: int
    created: int
    updated: int
    quarantine: str | None = None
    parent: str | None = None
    """The journal that this one is a fork of; it goes on after record `parent_seq` of that one."""
    parent_seq: int = 0
    role: str | None = None
    """What a process is: "task" for a tool call in the background, say."""
    session: str | None = None
    """The session that it works for."""
    metadata: dict[str, Any] = {}
    """What the host said about a session when it was opened."""


class Work(msgspec.Struct, frozen=True):
    """A journal that somebody should advance: something came in since it was last looked at, or it is running.

    These are sessions, and processes that have a `role`; other processes are advanced by whoever calls them.

    `holder` is None when the lease is free or has expired, and `left_ms` what is left of it. A holder whose process is
    gone is still named; `Store.owner_gone` tells.
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
    """For which session a process works."""


class Receipt(msgspec.Struct, frozen=True):
    """An accepted input. `fresh` is False when the same input had been accepted before."""

    journal: str
    input: int
    key: str
    at: int
    fresh: bool = True
    head: int = 0
    """Where the journal ended when the input was accepted; 0 when that was not now."""


class Head(NamedTuple):
    """Where a journal ends after an append, and how often it had been woken by the time of that commit.

    Whoever drives the journal learns so, without another read, whether something was accepted for it meanwhile.
    """

    seq: int
    wakes: int


class JournalRow(msgspec.Struct):
    """A journal as the store keeps it. Mutable: it belongs to the transaction that holds it.

    `wakes` counts what came from outside and asks for attention, `seen` how much of that was attended to.
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
    """Accepted so far; in a fork they count on from those of the parent."""
    role: str | None = None
    session: str | None = None
    notices: int = 0
    """Notifications that it has not finished with: those that are queued or claimed."""
    base: int = 0
    """Records up to this one were trimmed."""


class InputRow(msgspec.Struct, frozen=True):
    """An input as the store keeps it."""

    input: int
    key: str
    digest: str
    body: bytes
    at: int
    pending: bool = True
    counted: bool = False
    """Whether it was accepted under an admission, and counts for those that come."""


class OpenJournal(Command[Journal], frozen=True):
    """Create the journal, or find it as it is."""

    journal: str
    kind: JournalKind
    agent: str | None
    role: str | None = None
    session: str | None = None
    metadata: bytes | None = None
    """A JSON object. A journal that is there must have been opened with the same one; None: with any."""


class Fork(Command[Journal], frozen=True):
    """Create a journal that goes on after record `at` of its parent, or find that very fork."""

    journal: str
    parent: str
    at: int
    agent: str | None = None
    """Who had the parent at that record."""


class Claim(Command[Lease], frozen=True):
    """Take the lease if it is free, expired, or held by a process that is gone."""

    journal: str
    owner: Owner
    ttl_ms: int


class Renew(Command[None], frozen=True):
    """Keep the lease for another term."""

    lease: Lease


class Release(Command[None], frozen=True):
    """Give the lease back. The epoch stays. `seen` is how many wakes were attended to."""

    lease: Lease
    seen: int | None = None
    patient: bool = True
    """Whoever gives a lease back has nothing more to do with it."""


class Append(Command[Any], frozen=True):
    """Add records under (epoch, expected head); answers the new head: a number, or a `Head` where it `tells_wakes`."""

    journal: str
    epoch: int
    head: int
    records: Sequence[Record]
    bodies: Sequence[bytes]
    plain: bool = False
    """None of the records touches the lists, the inbox or a blob: nothing to do but append."""
    patient: bool = False
    """Nobody waits for this one yet: it may share the commit of what follows within a moment."""
    notify: tuple[Notify, ...] = ()
    """Notifications for other journals, in the same commit. One that can't be delivered is dead; the records stay."""
    spend: tuple[tuple[int, Spend], ...] = ()
    """What the records say was spent, by day: counted in the same commit."""
    consume: tuple[str, ...] = ()
    """Waits of the journal that must be resolved and unused; they are used up by the same commit."""
    tells_wakes: bool = False

    def size(self) -> int:
        payload = sum(map(len, self.bodies))
        return payload + sum(notice.size() for notice in self.notify) if self.notify else payload


class Accept(Command[Receipt], frozen=True):
    """Put an input into the inbox of a journal, once per key; with `opening`, into one that is made if need be."""

    journal: str
    key: str
    digest: str
    body: bytes
    opening: OpenJournal | None = None
    urgent: bool = False
    """It must come in although the inbox is full: a request to stop, say."""
    refs: tuple[str, ...] = ()
    """Digests of blobs that it refers to."""
    patient: bool = False
    """Another command follows at once, and may share its commit."""
    admission: AdmissionWindow | None = None
    """How much is taken in, and what becomes of content that came a moment ago."""
    unnamed: bool = False
    """Its key was made up here: nobody will ask for it again."""
    youngest: str | None = None
    """The journal is made only if this one is still the youngest of its role for its session ("": there is none)."""
    spend: Spend | None = None
    """What making the journal counts, if it is made here."""
    under: tuple[str, str] | None = None
    """On whose behalf it comes: a journal, and the key of the request to stop that one. Refused once that was made."""

    def size(self) -> int:
        return len(self.body)


class ReadPosition(Command[int], frozen=True):
    """Answer the position that the store has come to, behind all commands that were queued before."""


class PutBlob(Command[Blob], frozen=True):
    """Keep these bytes under their digest."""

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
        """The journal of this role for this session that was made last; "" when there is none."""
        ...

    def save_journal(self, row: JournalRow) -> None: ...
    def save_head(self, row: JournalRow) -> None: ...
    def save_lease(self, row: JournalRow) -> None: ...
    def save_wakes(self, row: JournalRow) -> None: ...
    def add_records(self, row: JournalRow, first: int, epoch: int, bodies: Sequence[bytes]) -> None: ...
    def first_record(self, row: JournalRow) -> bytes | None:
        """The bytes of the first record of a journal, if they are what was written."""
        ...

    def input_by_key(self, row: JournalRow, key: str) -> InputRow | None:
        """The input that was accepted under this key, or that stands for what was."""
        ...

    def add_alias(self, row: JournalRow, key: str, number: int) -> None:
        """Let an input stand for what was said under another key."""
        ...

    def counted_input(self, row: JournalRow, digest: str, first: int, last: int) -> InputRow | None:
        """The first of the counted inputs with this digest that came in this span of time."""
        ...

    def counted_at(self, row: JournalRow, first: int, last: int, nth: int) -> int | None:
        """When the nth newest of the counted inputs came, of those in this span of time."""
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
        """The last name of a wait that begins so."""
        ...

    def has_blob(self, digest: str) -> bool: ...
    def put_blob(self, digest: str, body: bytes | AttachmentSpool, at: int) -> None: ...
    def refer(self, digest: str, row: JournalRow, seq: int) -> None: ...


class JournalFilter(msgspec.Struct, frozen=True):
    """Which journals to list, newest first. `before` is the (updated, id) of the last line of the page before."""

    kind: JournalKind | None = None
    status: Status | None = None
    agent: str | None = None
    before: tuple[int, str] | None = None
    role: str | None = None
    session: str | None = None
    untimed: bool = False
    """Only those that wait for nothing that comes by the clock."""


class JournalPreview(msgspec.Struct, frozen=True):
    """A journal at a glance: its line, what it began with, and its last records. None where it can't be trusted."""

    line: Journal
    first: Input | None
    """Its first input."""
    latest: Input | None
    """The newest admitted input whose key begins with what was asked for."""
    tail: list[Entry] | None


class RawRecord(NamedTuple):
    """A record as it lies in the store, not trusted: for audits."""

    journal: str
    seq: int
    pos: int
    epoch: int
    sound: bool
    body: bytes


class Reader(Protocol):
    """What can be read, each call from one consistent state. `limit` never exceeds a page."""

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
        """The line that the lists show for a journal."""
        ...

    def records(self, journal: str, after: int, limit: int) -> list[Entry]: ...
    def tail(self, journal: str, limit: int) -> list[Entry]: ...
    def handed_at(self, journal: str, upto: int) -> int:
        """The last record up to `upto` with which a journal was handed over; 0 when it was not."""
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
        """Some of the bytes under a digest, as they lie there; None when there are none."""
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
    """How a store keeps its rows."""

    clock: Clock
    limits: StoreLimits
    owner: Owner
    store_id: str
    secret: bytes

    @property
    def path(self) -> Path | None:
        """The file of the store; None where it has none."""
        ...

    @property
    def folder(self) -> Path | None:
        """Where it keeps its files; None where it has none."""
        ...

    def submit(self, command: Command[T], then: Callable[[asyncio.Future[T]], None] | None = None) -> asyncio.Future[T]:
        """Queue a command, after all that were queued before; the future is done when it is durable.

        `then` is called with the future as soon as it is done, before whoever waits for it goes on.
        """
        ...

    async def read(self, query: Callable[[Reader], T]) -> T:
        """Run `query` on a consistent state, off the event loop where it would block."""
        ...

    @property
    def version(self) -> int:
        """Grows with every commit that this process has seen, its own and those of others."""
        ...

    @property
    def shared(self) -> bool:
        """Whether somebody else has this store open, as far as the last commit could tell."""
        ...

    async def changed(self, version: int, timeout: float | None) -> int:
        """Wait until `version` is old (or the time is up); answers the present one."""
        ...

    async def close(self) -> None:
        """Finish what is queued, then let go of everything."""
        ...
