"""The data that `Store`, its commands and its backend exchange.

A command (in `transaction` and the topic modules) decides by pure functions and writes to the `Rows` of the backend, in
one transaction with all other waiting commands. `backend.Backend` is the contract of a backend.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar, get_args

import msgspec
from msgspec.structs import astuple, replace

from holdfast.effects.canonical import digest_of_bytes
from holdfast.errors import Fenced
from holdfast.errors.store import MOVED, not_served

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Instant
    from holdfast.records import JournalKind, Opened, Record, Status
    from holdfast.secrets.redactor import Redactor
    from holdfast.store.sqlite.rows import SqliteReader, SqliteRows
    from holdfast.store.transaction import Transaction
    from holdfast.store.waits import StoredRule


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
    """Longest read, after which it is interrupted; a store in memory does not interrupt reads."""
    wal_bytes: int = 16 * 1024 * 1024
    """Size of the write-ahead log at which it is reset."""
    wal_max_bytes: int = 1024 * 1024 * 1024
    """Size of the write-ahead log at which writes are refused; a foreign reader keeps it from being reset."""
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
    """Time until a finished notification may be purged, and its key with it."""
    memory_bytes: int = 256 * 1024
    """One value in memory; JSON counts as it is indented."""
    memory_summary_bytes: int = 500
    """The summary of one entry of memory."""
    memory_metadata_bytes: int = 16 * 1024
    """The metadata of one entry of memory."""
    scope_bytes: int = 16 * 1024 * 1024
    """All keys, values, summaries and metadata of one scope of memory."""
    scope_entries: int = 10_000
    """Entries of one scope of memory."""
    memory_changes: int = 50
    """Changes in the history of one entry of memory."""
    fold_bytes: int = 16 * 1024 * 1024
    """One fold of a session; a larger one is not saved."""


def blob_digest(body: bytes) -> str:
    """The digest of a blob: plain SHA-256, so that other programs can check it."""
    return hashlib.sha256(body).hexdigest()


def input_digest(body: bytes) -> str:
    """The digest that compares two inputs under one key. The span of the caller, the first member, does not count."""
    return digest_of_bytes("input", _CALLER.sub(b"{", body, count=1) if body.startswith(b'{"caller":') else body)


_CALLER: Final = re.compile(rb'\A\{"caller":"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}",')


R_co = TypeVar("R_co", covariant=True)


_NAMES: Final = ("journal", "agent", "session", "key", "kind", "source", "scope", "name", "by", "parent", "role")
"""Fields of commands that are names. They must not change, so that they are found again."""
_PLAIN: Final = ("digest", "expect_digest", "state", "prefix", "after", "youngest", "error", "detail", "media_type")
"""Other fields of commands without content."""


class Command(msgspec.Struct, Generic[R_co], frozen=True):
    """One request to change the store; `R_co` is the type of its answer."""

    def size(self) -> int:
        """Bytes and characters of its content, for the limits of the queue; 0 for a command that must always fit."""
        return sum(map(len, self._contents().values()))

    def redact(self, redactor: Redactor) -> Self:
        """The command without the secrets in its content; `SecretExposed` if a name holds one."""
        for name in _NAMES:
            said = getattr(self, name, None)
            if type(said) is str:
                redactor.check(name, said)
        cleaned = {
            field: redactor.text(said) if isinstance(said, str) else redactor.bytes(said, numbers=False)
            for field, said in self._contents().items()
        }
        return replace(self, **cleaned) if cleaned else self

    def _contents(self) -> dict[str, str | bytes]:
        """All texts and bytes, except the fields listed above."""
        return {
            field: said
            for field, said in zip(self.__struct_fields__, astuple(self), strict=True)
            if isinstance(said, str | bytes) and field not in _NAMES and field not in _PLAIN
        }

    def apply(self, tx: Transaction) -> R_co:
        """Carry it out, or raise its refusal with nothing written."""
        raise NotImplementedError


class FunctionCommand(Command[R_co], frozen=True):
    """A command without texts: a function of the transaction, which carries it out like `apply`."""

    function: Callable[[Transaction], R_co]

    def apply(self, tx: Transaction) -> R_co:
        return self.function(tx)


Rows: TypeAlias = "SqliteRows"
"""The rows of a store inside one transaction. Reads see its writes."""
Reader: TypeAlias = "SqliteReader"
"""Reads of one consistent state. `limit` never exceeds a page."""


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
        """SHA-256 of the question, which an answer can name."""
        return None if self.body is None else blob_digest(self.body)


class Settlement(msgspec.Struct, frozen=True):
    """The wait after an attempt to settle it; `won` if this attempt settled it."""

    wait: Wait
    won: bool
    rule: StoredRule | None = None
    """The rule that was stored with the answer, if this attempt won."""


Durability = Literal["power", "process"]


class Owner(msgspec.Struct, frozen=True):
    """The holder of leases: one opening of a store by one process. Others can check if that process has ended."""

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
    head: int = 0
    """The head of the journal at the acceptance: its turn begins later. 0 for inputs of schema 7 and older."""


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
    """The content of a journal created in the same commit, so that the holder need not read it."""
    born: str | None = None
    """The store in which the journal was made, if not this one; see `Store.birthplace`."""


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
    """A journal in a list."""

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
    """Metadata from the host at the opening of the session."""

    @property
    def moved(self) -> bool:
        """True after its export to another store: here it can only be read."""
        return self.quarantine is not None and self.quarantine.startswith(MOVED)


class Work(msgspec.Struct, frozen=True):
    """A session, or a process with a `role`, that needs a driver: it was woken since it was last seen, or it runs.

    `holder` is None if the lease is free or expired; `left_ms` is the rest of its term. An ended holder is still named;
    see `Store.owner_gone`.
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

    The wake count tells the driver, without another read, that something was accepted meanwhile.
    """

    seq: int
    wakes: int


class JournalRow(msgspec.Struct):
    """The row of a journal, with the rules that need nothing else.

    Mutable: it belongs to one transaction at a time. `wakes` counts events from outside that need a driver, `seen` the
    handled ones.
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

    def check_served(self) -> None:
        if self.quarantine is not None:
            raise not_served(self.id, self.quarantine)

    @property
    def moved(self) -> bool:
        """True after its export to another store."""
        return self.quarantine is not None and self.quarantine.startswith(MOVED)

    def check_here(self) -> None:
        """Raise `JournalMoved` for a journal that goes on in another store."""
        if self.moved:
            self.check_served()

    def check_epoch(self, epoch: int) -> None:
        """Raise `Fenced` unless the epoch is the newest.

        Expiry alone does not fence: the holder may go on until another claims.
        """
        if self.epoch != epoch or self.owner is None:
            raise Fenced(self.id, epoch, self.epoch, self.owner.describe() if self.owner else None)

    def lease_left(self, now: Instant) -> int:
        """Milliseconds until the lease expires; 0 or less if it has expired or is free.

        Within one boot the monotonic clock decides, so a jump of the wall clock ends no lease. After a reboot only the
        wall clock is left; more than a whole term left means that it was set back, and the lease counts as expired.
        """
        if self.owner is None:
            return 0
        if self.owner.boot and self.owner.boot == now.boot:
            return self.mono_expires - now.mono
        left = self.expires - now.wall
        return left if left <= self.term else 0

    def has_work(self) -> bool:
        """True if a driver should advance this journal: it was woken, or a run is open.

        Only its caller advances a process without a role.
        """
        woken = self.wakes > self.seen or self.status == "running"
        return woken and (self.kind == "session" or self.role is not None) and self.quarantine is None

    def as_work(self, now: Instant) -> Work:
        left = max(self.lease_left(now), 0)
        holder = self.owner if left else None
        return Work(
            *(self.no, self.id, self.agent, self.wakes, self.status, holder, left, self.kind, self.role, self.session)
        )

    def as_journal(self, metadata: dict[str, Any] | None = None) -> Journal:
        return Journal(
            *(self.id, self.kind, self.agent, self.status, self.head, self.created, self.updated, self.quarantine),
            *(self.parent, self.parent_seq, self.role, self.session, metadata or {}),
        )


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
    head: int = 0
    """The head of the journal at the acceptance."""


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
    """A stored record, for audits; `sound` if it matches its checksum."""

    seq: int
    pos: int
    epoch: int
    sound: bool
    body: bytes
