"""The store as everybody else sees it: typed calls over a backend. Bad input is refused here, before it is queued."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

import msgspec
from msgspec.structs import replace

from holdfast import records
from holdfast.effects.canonical import canonical
from holdfast.errors import HoldfastError, InvalidArgument, InvalidValue, JournalMissing, PayloadTooLarge
from holdfast.errors.caller import JournalPruned
from holdfast.names import MAX_INT, check_choice, check_id, check_int, check_text
from holdfast.records import JOURNAL_KINDS, STATUSES, Blob, Handed, Opened, is_plain
from holdfast.store.admission import GateCalls, check_admission
from holdfast.store.attachments import AttachmentCalls
from holdfast.store.calls import Calls, refused
from holdfast.store.checksum import blob_digest, input_digest
from holdfast.store.contract import (
    Accept,
    Append,
    Claim,
    Fork,
    Journal,
    JournalFilter,
    Lease,
    OpenJournal,
    Owner,
    PutBlob,
    Quarantine,
    ReadPosition,
    Release,
    Renew,
)
from holdfast.store.decisions import as_work
from holdfast.store.lease import is_gone
from holdfast.store.memories import MemoryCalls
from holdfast.store.notifications import NotificationCalls
from holdfast.store.notifications import checked as checked_notice
from holdfast.store.retention import PruningCalls
from holdfast.store.rules import RuleCalls
from holdfast.store.spending import MAX_SPEND, SpendingCalls, check_spend_values, spend_by_day_of
from holdfast.store.waits import WaitCalls

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import TypeVar

    from holdfast.clock import Clock
    from holdfast.records import JournalKind, Record, Status
    from holdfast.store.admission import AdmissionWindow
    from holdfast.store.contract import Backend, Entry, FeedEntry, Head, Input, JournalPreview, Reader, Receipt, Work
    from holdfast.store.limits import StoreLimits
    from holdfast.store.notifications import Notification, Notify
    from holdfast.store.spending import Spend

    T = TypeVar("T")


class InboxCalls(Calls):
    """The inbox: what was accepted, once per key, and waits to be admitted."""

    async def accept(
        self,
        journal: str,
        content: object,
        *,
        key: str | None = None,
        urgent: bool = False,
        admission: AdmissionWindow | None = None,
    ) -> Receipt:
        """Take an input in. The same key with the same content gives the same receipt, other content `KeyConflict`.

        What is `urgent` (a request to stop, say) comes in also when the inbox is full. Under an `admission`, what is
        too much is a `RateExceeded`, and what came a moment ago may be a `DuplicateInput`, or the same receipt.
        """
        check_id("journal id", journal)
        accept = self._accept(journal, content, key, None, admission)
        return await self._submit(replace(accept, urgent=True) if urgent else accept)

    def accept_into(  # noqa: PLR0913
        self,
        journal: str,
        kind: JournalKind,
        agent: str | None,
        content: object,
        *,
        key: str | None = None,
        refs: Sequence[Blob] = (),
        patient: bool = False,
        role: str | None = None,
        session: str | None = None,
        admission: AdmissionWindow | None = None,
        youngest: str | None = None,
        spend: Spend | None = None,
        under: tuple[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> asyncio.Future[Receipt]:
        """Open the journal and take an input in, both or neither. Refused as `open_journal` and `accept` are.

        `refs` are blobs that the content speaks of; they stay as long as the journal does. `patient`: another command
        follows at once. `youngest` is what `youngest` said before it was decided what to begin: `SiblingBegun` when
        another journal of this role for this session was made since. `spend` is counted for the agent if this makes the
        journal, and not again otherwise. `under` is on whose behalf this comes: a journal, and the key of the request
        to stop it. `StopRequested` once that request was accepted, unless the input was accepted before. `metadata` is
        kept with the journal that is made; one that is there must have been made with the same.
        """
        try:
            opened = opening(journal, kind, agent, role, session)
            if metadata is not None:
                opened = replace(opened, metadata=self._metadata(metadata))
            accept = self._accept(journal, content, key, opened, admission)
            digests = tuple(blob.digest for blob in refs)
            counted = None if spend is None else check_spend_values(spend, MAX_SPEND)
            said = replace(accept, refs=digests, patient=patient, youngest=youngest, spend=counted, under=under)
            return self._submit(said)
        except HoldfastError as refusal:
            return refused(refusal)

    def _metadata(self, given: dict[str, Any]) -> bytes:
        body, limit = canonical(given), self._backend.limits.inline_bytes
        if len(body) > limit:
            raise PayloadTooLarge("the metadata of the session", len(body), limit)
        return body

    async def youngest(self, role: str, session: str) -> str:
        """The journal of this role for this session that was made last; "" when there is none."""
        check_id("role", role)
        check_id("session", session)
        return await self._backend.read(lambda reader: reader.youngest(role, session))

    def _accept(
        self,
        journal: str,
        content: object,
        key: str | None,
        made: OpenJournal | None,
        admission: AdmissionWindow | None,
    ) -> Accept:
        named = f"auto-{secrets.token_hex(12)}" if key is None else check_id("input key", key)
        body = canonical(content)
        limit = self._backend.limits.input_bytes
        if len(body) > limit:
            raise PayloadTooLarge("the input", len(body), limit)
        accept = Accept(journal, named, input_digest(body), body, made, unnamed=key is None)
        return accept if admission is None else replace(accept, admission=check_admission(admission))

    async def find_input(self, journal: str, key: str) -> Receipt | None:
        """The receipt of the input that was accepted under `key`; None when there is none."""
        check_id("journal id", journal)
        check_id("input key", key)
        return await self._backend.read(lambda reader: reader.receipt(journal, key))

    async def pending(self, journal: str, limit: int | None = None, *, after: int = 0) -> list[Input]:
        """Accepted inputs above `after` that are not in the journal yet, in the order of their acceptance."""
        check_id("journal id", journal)
        check_int("cursor", after)
        page = self._page(limit)
        return await self._guarded(journal, lambda reader: reader.pending(journal, after, page))

    async def input(self, journal: str, number: int) -> Input | None:
        """An input that was accepted, whether it still waits or not; None when there is none with this number."""
        check_id("journal id", journal)
        check_int("input", number)
        return await self._guarded(journal, lambda reader: reader.input(journal, number))


def opening(journal: str, kind: JournalKind, agent: str | None, role: str | None, session: str | None) -> OpenJournal:
    """The command that opens a journal, or the error that says what is wrong with it."""
    check_id("journal id", journal)
    check_choice("journal kind", kind, JOURNAL_KINDS)
    for what, name in (("agent", agent), ("role", role), ("session", session)):
        if name is not None:
            check_id(what, name)
    return OpenJournal(journal, kind, agent, role, session)


LEASE_MS: Final = 10_000
"""How long a lease lasts when it is not renewed."""
MIN_LEASE_MS: Final = 50
"""The shortest lease."""


class WorkOverview(NamedTuple):
    """What there is to do in a store, at a glance."""

    due: int | None
    """When the next wait or notification becomes due."""
    wakes: Mapping[str, int]
    """How often each of the journals was woken."""
    work: Sequence[Work]
    """The first page of the work."""


class Store(
    InboxCalls,
    WaitCalls,
    NotificationCalls,
    MemoryCalls,
    RuleCalls,
    SpendingCalls,
    GateCalls,
    AttachmentCalls,
    PruningCalls,
):
    """Journals, leases, inbox, waits, notifications, memory, rules, spending, blobs and attachments in one place.

    Every method that changes something returns when the change is durable. Several processes may have the same store
    open; `holdfast.open_store` opens one.
    """

    def __init__(self, backend: Backend) -> None:
        for name, value in msgspec.structs.asdict(backend.limits).items():
            check_int(f"limit {name}", value, least=1)
        super().__init__(backend)
        self._terms: dict[str, tuple[int, int]] = {}
        """Of each lease that was claimed here, its epoch, and until when nobody else can hold it (monotonic)."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def id(self) -> str:
        """What tells this store from all others; part of every idempotency key."""
        return self._backend.store_id

    @property
    def path(self) -> Path | None:
        """The file of the store; None for one in memory."""
        return self._backend.path

    @property
    def owner(self) -> Owner:
        """As whom this opening of the store claims leases."""
        return self._backend.owner

    @property
    def clock(self) -> Clock:
        """Where this store takes the time from."""
        return self._backend.clock

    @property
    def limits(self) -> StoreLimits:
        """The bounds of this store."""
        return self._backend.limits

    async def close(self) -> None:
        """Finish what is queued, give all leases back and let go of the file."""
        await self._backend.close()

    # ---- journals ----

    async def open_journal(
        self,
        journal: str,
        kind: JournalKind = "session",
        agent: str | None = None,
        *,
        role: str | None = None,
        session: str | None = None,
    ) -> Journal:
        """Create the journal, or find it as it is. Another kind or agent under the same id is a `JournalConflict`.

        `role` says what a process is, and makes it work that others may take up; `session` for which session it works.
        Another role or session is a conflict, too.
        """
        return await self._submit(opening(journal, kind, agent, role, session))

    async def fork(self, journal: str, parent: str, at: int) -> Journal:
        """Create a journal that goes on after record `at` of `parent`, with the kind of that one, and who had it there.

        Nothing is copied. The same fork again finds it as it is; anything else under its id is a `JournalConflict`, and
        a record that the parent does not have is a `ForkPointMissing`. The outcome with which the parent was handed
        over and the record that says so are one fact: a fork at the first begins after both.
        """
        check_id("journal id", journal)
        check_id("journal id", parent)
        check_int("fork point", at, least=-MAX_INT)  # which records there are is known to the store
        at, agent = await self._guarded(parent, lambda reader: _forked_at(reader, parent, at))
        return await self._submit(Fork(journal, parent, at, agent))

    def append(  # noqa: PLR0913
        self,
        lease: Lease,
        added: Sequence[Record],
        *,
        head: int,
        checked: bool = True,
        patient: bool = False,
        notify: Sequence[Notify] = (),
        spend: Spend | Mapping[int, Spend] | None = None,
        consume: Sequence[str] = (),
        then: Callable[[asyncio.Future[int]], None] | None = None,
    ) -> asyncio.Future[int]:
        """Add records after `head`; the future gives the new head when they are durable.

        Raises `Fenced` when the lease has moved on, `HeadConflict` when the journal does not end at `head`.

        The append is queued at once. Appends to one journal are carried out in the order in which they were queued, so
        a writer may have several under way, each naming the head that the one before will leave. Records are checked
        to read back as they are; with `checked=False`, for those that Holdfast made itself, to be readable at all.
        With `patient`, the caller does not wait yet: the records may share a commit with what follows at once.

        `notify` are notifications in the same commit. One that can't be queued (its journal is missing, quarantined or
        full, or its key says something else) is kept as a dead one that tells why; the records are appended all the
        same.

        `spend` is what the records say was spent, counted for the agent of the journal in the same commit: on the day
        of the last record, or by day where they are of several. `consume` are waits of this journal whose resolution
        is used by these records, once: `WaitConsumed` when one was used before, or is not resolved.

        `then` is called with the future as soon as it is done, before whoever waits for it goes on.
        """
        try:
            check_int("head", head)
            kept = _as_tuple(added)
            counted = () if spend is None else spend_by_day_of(spend, kept)
            encode = records.encode_checked if checked else records.encode_readable
            command = self._appending(_lease(lease), kept, head, patient, notify, counted, consume, encode)
            return self._submit(command, then)
        except HoldfastError as refusal:
            return refused(refusal)

    def append_own(  # noqa: PLR0913, PLR0917
        self,
        lease: Lease,
        added: Sequence[Record],
        head: int,
        patient: bool,  # noqa: FBT001
        notify: Sequence[Notify],
        counted: tuple[tuple[int, Spend], ...],
        consume: Sequence[str],
        then: Callable[[asyncio.Future[Head]], None] | None,
    ) -> asyncio.Future[Head]:
        """As `append`, for those who have made all of it themselves; `counted` is what was spent, by day.

        The future also tells how often the journal was woken so far. Raises what refuses it, unless it was queued.
        """
        encode = records.encode_readable
        command = self._appending(
            lease, tuple(added), head, patient, notify, counted, consume, encode, tells_wakes=True
        )
        return self._submit(command, then)

    def _appending(  # noqa: PLR0913, PLR0917
        self,
        lease: Lease,
        kept: tuple[Record, ...],
        head: int,
        patient: bool,  # noqa: FBT001
        notify: Sequence[Notify],
        counted: tuple[tuple[int, Spend], ...],
        consume: Sequence[str],
        encode: Callable[[Record], bytes],
        *,
        tells_wakes: bool = False,
    ) -> Append:
        return Append(
            lease.journal,
            lease.epoch,
            head,
            kept,
            self._bodies(kept, encode),
            all(map(is_plain, kept)),
            patient,
            tuple(checked_notice(each, self._backend.limits) for each in _notices(notify)) if notify else (),
            counted,
            _wait_names(consume) if consume else (),
            tells_wakes,
        )

    def _bodies(self, kept: tuple[Record, ...], encode: Callable[[Record], bytes]) -> list[bytes]:
        limit = self._backend.limits.record_bytes
        bodies: list[bytes] = []
        for record in kept:
            if type(record) is Opened:
                raise InvalidValue("$", "a journal is opened once, by open_journal")
            if type(record) is Handed and (not check_id("agent", record.agent) or len(bodies) + 1 < len(kept)):
                raise InvalidValue("$", "a handoff is the last record of its commit")
            body = encode(record)
            if len(body) > limit:
                raise PayloadTooLarge("a record", len(body), limit)
            bodies.append(body)
        return bodies

    async def journal(self, journal: str) -> Journal:
        """One line of the lists; `JournalMissing` when there is none."""
        check_id("journal id", journal)
        found = await self._guarded(journal, lambda reader: reader.line(journal))
        if found is None:
            stone = await self.tombstone(journal)
            raise JournalMissing(journal) if stone is None else JournalPruned(journal, stone.detail, stone.at)
        return found

    async def read(self, journal: str, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Records with a sequence above `after`, at most a page of them. A corrupt one quarantines the journal."""
        check_id("journal id", journal)
        check_int("cursor", after)
        page = self._page(limit)
        return await self._guarded(journal, lambda reader: reader.records(journal, after, page))

    async def read_with_inbox(self, journal: str) -> tuple[list[Entry], list[Input], list[Notification]]:
        """The first page of a journal, of its inbox, and of what may be delivered to it now, in one go."""
        check_id("journal id", journal)
        page, now = self._backend.limits.page, self._wall()
        return await self._guarded(
            journal,
            lambda reader: (
                reader.records(journal, 0, page),
                reader.pending(journal, 0, page),
                reader.notifications.next(journal, now, page),
            ),
        )

    async def read_all(self, journal: str, *, after: int = 0) -> AsyncIterator[Entry]:
        """All records above `after`, page by page; nothing is held in the store between two pages."""
        while True:
            entries = await self.read(journal, after=after)
            for entry in entries:
                yield entry
            if not entries:  # a page may be short because it is full of bytes
                return
            after = entries[-1].seq

    async def tail(self, journal: str, limit: int = 50) -> list[Entry]:
        """The last records, oldest first, whatever the length of the journal."""
        check_id("journal id", journal)
        page = self._page(limit)
        return await self._guarded(journal, lambda reader: reader.tail(journal, page))

    async def feed(self, *, after: int = 0, limit: int | None = None) -> list[FeedEntry]:
        """Records of all journals, in the order of their commit, with a position above `after`."""
        check_int("cursor", after)
        page = self._page(limit)
        return await self._backend.read(lambda reader: reader.feed(after, page))

    async def last_position(self) -> int:
        """The position of the newest record of the store."""
        return await self._backend.read(lambda reader: reader.last_position())

    def mark(self) -> asyncio.Future[int]:
        """The position of the newest record, behind all that was asked of the store before this call."""
        future = self._submit(ReadPosition())
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody has to look at it
        return future

    async def journals(  # noqa: PLR0913
        self,
        *,
        kind: JournalKind | None = None,
        status: Status | None = None,
        agent: str | None = None,
        role: str | None = None,
        session: str | None = None,
        before: Journal | None = None,
        limit: int = 50,
        changed_before: int | None = None,
        untimed: bool = False,
    ) -> list[Journal]:
        """Journals, those with the newest change of status first. Pass the last line as `before` for the next page.

        `changed_before` (wall milliseconds) leaves newer ones out; with `untimed`, those that wait for something that
        comes by the clock.
        """
        if kind is not None:
            check_choice("journal kind", kind, JOURNAL_KINDS)
        if status is not None:
            check_choice("status", status, STATUSES)
        for what, name in (("agent", agent), ("role", role), ("session", session)):
            if name is not None:
                check_id(what, name)
        if before is not None and not isinstance(before, Journal):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("before", before, "a line of the page before")
        cursors = [(before.updated, before.id)] if before is not None else []
        if changed_before is not None:
            cursors.append((check_int("changed before", changed_before), ""))
        where = JournalFilter(kind, status, agent, min(cursors, default=None), role, session, bool(untimed))
        page = self._page(limit)
        return await self._backend.read(lambda reader: reader.journals(where, page))

    async def glimpses(self, journals: Sequence[str], *, prefix: str, tail: int) -> list[JournalPreview]:
        """Several journals at a glance, at a cost that does not depend on their length; those that are not there lack.

        `prefix` is what the keys of the inputs begin with of which the newest is told.
        """
        names, page = _names(journals), self._page(tail)
        check_id("prefix", f"{prefix}1")
        found = await self._backend.read(lambda reader: [reader.glimpse(name, prefix, page) for name in names])
        return [one for one in found if one is not None]

    async def transferred(self, prefix: str, limit: int | None = None, *, after: str = "") -> list[str]:
        """Journals with an input whose key begins so, among those that were given to another session, by id.

        Pass the last one as `after` for more.
        """
        check_id("prefix", f"{prefix}1")
        page = self._page(limit)
        return await self._backend.read(lambda reader: reader.with_inputs(prefix, after, page))

    async def heads(self, journals: Sequence[str]) -> dict[str, int]:
        """Where each of these journals ends; those that do not exist are left out."""
        names = _names(journals)
        return await self._backend.read(lambda reader: reader.heads(names))

    async def wakes(self, journals: Sequence[str]) -> dict[str, int]:
        """How often each of these journals was woken; those that do not exist are left out."""
        names = _names(journals)
        return await self._backend.read(lambda reader: reader.wakes(names))

    async def glance(self, driven: Sequence[str]) -> WorkOverview:
        """What whoever drives journals looks at all the time, at once: for the names of those that are `driven`."""
        page, now = self._backend.limits.page, self._backend.clock.read()
        return await self._backend.read(
            lambda reader: WorkOverview(
                reader.next_due(), reader.wakes(driven) if driven else {}, reader.work(0, page, now)
            )
        )

    async def work(self, after: int = 0, limit: int | None = None) -> list[Work]:
        """Sessions, and processes with a role, that somebody should advance, also those that somebody does.

        `holder` tells who does. They come in the order of their creation. Pass the last `no` as `after` for the next
        page.
        """
        check_int("cursor", after)
        page = self._page(limit)
        now = self._backend.clock.read()
        return await self._backend.read(lambda reader: reader.work(after, page, now))

    async def quarantine(self, journal: str, reason: str) -> None:
        """Stop serving a journal that can't be trusted."""
        check_id("journal id", journal)
        await self._submit(Quarantine(journal, check_text("reason", reason)))

    # ---- leases ----

    def claim(self, journal: str, *, ttl_ms: int = LEASE_MS) -> asyncio.Future[Lease]:
        """Become the one who advances `journal`; `LeaseHeld` when somebody else is and lives."""
        try:
            check_id("journal id", journal)
            check_int("lease time", ttl_ms, least=MIN_LEASE_MS)
            end = self._backend.clock.read().mono + ttl_ms
            return self._submit(Claim(journal, self._backend.owner, ttl_ms), partial(self._claimed, end))
        except HoldfastError as refusal:
            return refused(refusal)

    def _claimed(self, end: int, claim: asyncio.Future[Lease]) -> None:
        if not claim.cancelled() and claim.exception() is None:
            lease = claim.result()
            self._terms[lease.journal] = (lease.epoch, end)

    async def renew(self, lease: Lease) -> None:
        """Keep the lease for another term; `Fenced` when it has moved on."""
        asked = self._backend.clock.read().mono
        await self._submit(Renew(_lease(lease)))
        self._terms[lease.journal] = (lease.epoch, asked + lease.ttl_ms)

    def surely_holds(self, lease: Lease) -> bool:
        """Whether nobody else can hold this journal yet: the lease was claimed or renewed less than its term ago.

        False proves nothing. Whoever is about to do something that must not be done twice renews it first.
        """
        epoch, end = self._terms.get(_lease(lease).journal, (0, 0))
        return epoch == lease.epoch and self._backend.clock.read().mono < end

    def release(self, lease: Lease, *, seen: int | None = None) -> asyncio.Future[None]:
        """Give the lease back; `Fenced` when it has moved on.

        `seen` says how much of what came in was attended to: the `wakes` of the lease, if that was all of it. What came
        after the lease was claimed still counts as work.
        """
        try:
            if seen is not None:
                check_int("seen", seen)
            if self._terms.get(_lease(lease).journal, (0, 0))[0] == lease.epoch:
                del self._terms[lease.journal]
            return self._submit(Release(lease, seen))
        except HoldfastError as refusal:
            return refused(refusal)

    async def holder(self, journal: str) -> Owner | None:
        """Who advances a journal now; None where nobody does whose process is alive."""
        check_id("journal id", journal)
        now = self._backend.clock.read()
        row = await self._backend.read(lambda reader: reader.row(journal))
        found = None if row is None else as_work(row, now).holder
        return None if found is None or is_gone(found) else found

    def owner_gone(self, owner: Owner) -> bool:
        """Whether that process certainly does not run any more, so that its leases can be claimed at once."""
        if not isinstance(owner, Owner):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("owner", owner, "the owner of a lease")
        return is_gone(owner)

    # ---- blobs ----

    async def put_blob(self, body: bytes) -> Blob:
        """Keep these bytes, once. Put them before the record that refers to them."""
        if type(body) is not bytes:
            raise InvalidValue("$", f"a blob is bytes, not {type(cast('object', body)).__name__}")
        limit = self._backend.limits.blob_bytes
        if len(body) > limit:
            raise PayloadTooLarge("the blob", len(body), limit)
        return await self._submit(PutBlob(blob_digest(body), body))

    def queue_blob(self, body: bytes) -> Blob:
        """Keep these bytes, once, without waiting: records that are appended after this call may refer to them."""
        digest = blob_digest(body)
        self._submit(PutBlob(digest, body), _passed_over)
        return Blob(digest, len(body))

    async def blob(self, digest: str) -> bytes | None:
        """The bytes under `digest`; None when there are none. Bytes that do not match are a `BlobCorrupt`."""
        check_id("digest", digest)
        return await self._backend.read(lambda reader: reader.blob(digest))

    # ---- changes ----

    @property
    def version(self) -> int:
        """Grows with every commit that this process has seen, its own and those of others."""
        return self._backend.version

    @property
    def shared(self) -> bool:
        """Whether another process has this store open, as far as the last commit could tell."""
        return self._backend.shared

    async def changed(self, version: int, timeout: float | None = None) -> int:
        """Wait until there is a newer version than `version`; answers the present one. No change is ever missed."""
        check_int("version", version)
        if timeout is not None and (type(timeout) not in (int, float) or not timeout >= 0):
            raise InvalidArgument("timeout", timeout, "a number of seconds")
        return await self._backend.changed(version, timeout)

    async def examine(self, query: Callable[[Reader], T]) -> T:
        """Run an audit over the raw rows."""
        return await self._backend.read(query)


def _notices(given: Sequence[Notify]) -> tuple[Notify, ...]:
    try:
        return tuple(given)
    except TypeError:
        raise InvalidArgument("notify", given, "a list of notifications") from None


def _wait_names(given: Sequence[str]) -> tuple[str, ...]:
    """Waits that are to be used, each once."""
    try:
        names = tuple(check_id("wait", name) for name in given) if not isinstance(given, str) else ()
    except TypeError:
        names = ()
    if not names or len(set(names)) != len(names):
        raise InvalidArgument("consume", given, "a list of names of waits, none of them twice,")
    return names


def _forked_at(reader: Reader, journal: str, seq: int) -> tuple[int, str | None]:
    """The record after which a fork begins that was asked for at one, and who had the journal there."""
    last = reader.handed_at(journal, seq + 1)
    if 1 < last == seq + 1:
        outcome, handed = (entry.record for entry in reader.records(journal, seq - 1, 2))
        if isinstance(handed, Handed) and getattr(outcome, "key", None) == handed.key:
            return last, handed.agent
        last = reader.handed_at(journal, seq)
    found = reader.records(journal, max(last - 1, 0), 1)
    record = found[0].record if found else None
    return seq, record.agent if isinstance(record, Handed | Opened) else None


def _names(journals: Sequence[str]) -> list[str]:
    if isinstance(journals, str):
        raise InvalidArgument("journals", journals, "a list of journal ids")
    try:
        return [check_id("journal id", journal) for journal in journals]
    except TypeError:
        raise InvalidArgument("journals", journals, "a list of journal ids") from None


def _passed_over(done: asyncio.Future[Blob]) -> None:
    """A blob that could not be kept needs no report: the record that refers to it fails."""
    if not done.cancelled():
        done.exception()


def _lease(given: object) -> Lease:
    if not isinstance(given, Lease):
        raise InvalidArgument("lease", given, "a lease that was claimed")
    return given


def _as_tuple(added: Sequence[Record]) -> tuple[Record, ...]:
    """The records as they are now: what the caller does to its list afterwards must not matter."""
    try:
        kept = tuple(added)
    except TypeError:
        raise InvalidArgument("records", added, "a list of records") from None
    if not kept:
        raise InvalidArgument("records", added, "at least one record")
    return kept
