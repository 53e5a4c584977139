"""`Store`: typed calls over a backend. Every method checks its arguments before it queues a command."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast

import msgspec
from msgspec.structs import replace

from holdfast import errors, records
from holdfast.effects.canonical import canonical, decode_value, encode_value
from holdfast.names import MAX_INT, check_choice, check_id, check_int, check_line, check_name, check_string, check_text
from holdfast.policy.limits import LEASE_MS
from holdfast.records import JOURNAL_KINDS, STATUSES, Admitted, Blob, Done, Ended, Handed, Opened
from holdfast.secrets.redactor import Redactor
from holdfast.store import attachments, contract, inbox, notifications, pumps, retention, spending, transaction, waits
from holdfast.store.attachments import AttachmentSpool, StoredAttachment
from holdfast.store.contract import Entry, Journal, JournalPreview, Lease, Owner, Reader, Receipt, Settlement, Wait
from holdfast.store.folds import JournalPage, SaveFold
from holdfast.store.lease import is_gone
from holdfast.store.memories import DeleteMemory, MemoryPage, PutMemory, text_of, words_of
from holdfast.store.notifications import Notification, NotificationState, Notify, SettledByHand
from holdfast.store.retention import Collected, Forgotten, Purged, Tombstone
from holdfast.store.spending import DailySpend, Spend, SpendOf
from holdfast.store.waits import AddRule, StoredRule

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.records import JournalKind, Record, Status
    from holdfast.store import exports
    from holdfast.store.backend import Backend
    from holdfast.store.folds import Fold
    from holdfast.store.memories import MemoryChange, MemoryEntry, MemoryScope
    from holdfast.store.session_file import SessionFile
    from holdfast.store.sqlite.backup import BackupReport
    from holdfast.store.sqlite.sockets import StoreSockets


T = TypeVar("T")
MIN_LEASE_MS: Final = 50
"""Shortest term of a lease."""
_CLOCK_CHECK_MS: Final = 30_000
"""Longest sleep of `until` before it reads the wall clock again."""


class WorkOverview(NamedTuple):
    """The state of a store that its drivers poll."""

    due: int | None
    """When the next wait or notification becomes due."""
    wakes: Mapping[str, int]
    """Wake counts of the driven journals."""
    work: Sequence[contract.Work]
    """The first page of work."""


class Store:
    """Journals, leases, inbox, waits, notifications, memory, rules, spending, blobs and attachments.

    A method that changes something returns when the change is durable. Several processes may open the same store, with
    `holdfast.open_store`.
    """

    id: str
    """The unique id of this store, part of every idempotency key."""
    path: Path | None
    """The file of the store; None in memory."""
    owner: Owner
    """The owner of the leases claimed by this opening of the store."""
    clock: Clock
    limits: contract.StoreLimits
    sockets: StoreSockets | None
    """Connects the processes that have this store open; None if no other process can."""

    def __init__(self, backend: Backend) -> None:
        for name, value in msgspec.structs.asdict(backend.limits).items():
            check_int(f"limit {name}", value, least=1)
        self._backend = backend
        self._read = backend.read
        self.id, self.path, self.owner = backend.store_id, backend.path, backend.owner
        self.clock, self.limits, self.sockets = backend.clock, backend.limits, backend.sockets
        self.redactor = Redactor()
        """Removes secrets from all writes."""
        self._terms: dict[str, tuple[int, int]] = {}
        """The epoch of each lease claimed here, and the monotonic time until which no other process can hold it."""
        self._births: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Commit everything that is queued, release all leases and close the file."""
        await self._backend.close()

    # ---- the way to the backend ----

    def _submit(
        self,
        command: contract.Command[T],
        then: Callable[[asyncio.Future[T]], None] | None = None,
        size: int | None = None,
    ) -> asyncio.Future[T]:
        """Queue a command without its secrets. All writes go through here. `size` is that of the command, if known."""
        if self.redactor.active:
            command, size = command.redact(self.redactor), None
        return self._backend.submit(command, then, size)

    def _call(self, function: Callable[[transaction.Transaction], T]) -> asyncio.Future[T]:
        """Queue a command without texts."""
        return self._submit(contract.FunctionCommand(function))

    async def _read_journal(self, journal: str, query: Callable[[Reader], T]) -> T:
        """Read; quarantine the journal if it is corrupt."""
        check_id("journal id", journal)
        try:
            return await self._read(query)
        except errors.JournalCorrupt as error:
            where = f"record {error.seq}: " if error.seq else ""
            with suppress(errors.StoreReadOnly):  # the next process that can write finds the same
                await self._submit(transaction.Quarantine(journal, f"{where}{error.reason}"))
            raise

    async def _quarantine_all(self, journals: set[str], reason: str) -> None:
        """One damaged row must neither hide the others nor stop them."""
        for journal in sorted(journals):
            with suppress(errors.JournalMissing, errors.StoreReadOnly):  # a notification may have no journal
                await self._submit(transaction.Quarantine(journal, reason))

    def _page(self, limit: int | None) -> int:
        page = self.limits.page
        if limit is None or (type(limit) is int and limit > page):
            return page
        return check_int("limit", limit, least=1)

    def _wall(self) -> int:
        return self.clock.read().wall

    def _input_body(self, what: str, content: object) -> bytes:
        return _check_size(what, canonical(content), self.limits.input_bytes)

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
        """Create a journal, or find it unchanged; `JournalConflict` if it exists with other values.

        `role` is the sort of a process and makes drivers run it; `session` is the session that it works for.
        """
        return await self._submit(_open_journal(journal, kind, agent, role, session))

    async def fork(self, journal: str, parent: str, at: int) -> Journal:
        """Create a journal that continues after record `at` of `parent`, with its kind and the agent of that record.

        Nothing is copied. The same fork again finds it unchanged; other values under its id raise `JournalConflict`, a
        missing record `ForkPointMissing`. The outcome that hands a session over and its handoff record belong together:
        a fork at the first starts after both.
        """
        check_id("journal id", journal)
        check_int("fork point", at, least=-MAX_INT)  # the transaction checks that the record exists
        at, agent = await self._read_journal(parent, lambda reader: _fork_point(reader, parent, at))
        return await self._submit(transaction.Fork(journal, parent, at, agent))

    def append(
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

        Raises `Fenced` if the lease has moved on, `HeadConflict` if the journal does not end at `head`. The append is
        queued at once. Appends to one journal run in the order of queueing, so a writer may have several under way,
        each naming the head that the one before will leave.

        `checked` proves that each record reads back as it is; `checked=False`, for records of Holdfast itself, only
        that it can be read. With `patient` the caller does not wait yet: the records may share a commit with the next
        command. `then` is called with the future as soon as it is done, before its waiters go on.

        In the same commit, `notify` adds notifications. One that can't be queued (its journal is missing, quarantined
        or full, or its key has other content) is stored as dead with the reason; the append still succeeds. `spend` is
        the spending of the records, counted for the agent of the journal: on the day of the last record, or by day.
        `consume` names resolved waits of this journal that these records consume: `WaitConsumed` if one was consumed
        before, or is not resolved.
        """
        try:
            if type(head) is not int or not 0 <= head <= MAX_INT:
                check_int("head", head)
            kept = _list_of("records", added, "a list of records")
            if not kept:
                raise errors.InvalidArgument("records", added, "at least one record")
            counted = () if spend is None else spending.spend_by_day_of(spend, kept)
            said = (head, patient, notify, counted, (), consume, then)
            return self.append_own(_check_lease(lease), kept, *said, checked=checked, tells_wakes=False)
        except errors.HoldfastError as refusal:
            return _failed_future(refusal)

    def append_own(
        self,
        lease: Lease,
        added: Sequence[Record],
        head: int,
        patient: bool,
        notify: Sequence[Notify],
        spend: Spend | tuple[tuple[int, Spend], ...] | None,
        worked: Sequence[tuple[int, int]],
        consume: Sequence[str],
        then: Callable[[asyncio.Future[Any]], None] | None,
        *,
        checked: bool = False,
        tells_wakes: bool = True,
    ) -> asyncio.Future[Any]:
        """`append` for trusted arguments of the runtime; `worked` are the spans of working time up to the records.

        If it `tells_wakes`, the future gives a `Head`, with the wake count of the journal. Raises a refusal directly if
        nothing was queued.
        """
        added, encode = tuple(added), encode_checked if checked else encode_readable
        limit, size = self.limits.record_bytes, 0
        bodies: list[bytes] = []
        for record in added:
            if type(record) is Opened:
                raise errors.InvalidValue("$", "a journal is opened once, by open_journal")
            if type(record) is Handed and (not check_id("agent", record.agent) or len(bodies) + 1 < len(added)):
                raise errors.InvalidValue("$", "a handoff is the last record of its commit")
            body = encode(record)
            if len(body) > limit:
                raise errors.PayloadTooLarge("a record", len(body), limit)
            bodies.append(body)
            size += len(body)
        plain, notices = all(map(is_plain, added)), ()
        if notify:
            given = _list_of("notify", notify, "a list of notifications")
            notices = tuple(notifications.check_notification(command, self.limits) for command in given)
        used = _check_wait_names(consume) if consume else ()
        command = transaction.Append(
            lease.journal, lease.epoch, head, added, bodies, plain, patient, notices, spend, worked, used, tells_wakes
        )
        return self._submit(command, then, None if notices else size)

    async def journal(self, journal: str) -> Journal:
        """One journal as in the lists; `JournalMissing` without one."""
        return await self._read_journal(journal, lambda reader: reader.find_journal(journal))

    async def read(self, journal: str, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        """A page of records with a sequence above `after`. A corrupt record quarantines the journal."""
        check_int("cursor", after)
        page = self._page(limit)
        return await self._read_journal(journal, lambda reader: reader.records(journal, after, page))

    async def read_with_inbox(self, journal: str, *, after: int | None = None) -> JournalPage:
        """A page of a journal, the first one of its inbox and of its deliverable notifications, in one read.

        The page begins after the newest fold of the journal, which comes with it, or after the record `after`.
        """
        page, now = self.limits.page, self._wall()

        def read(reader: Reader) -> JournalPage:
            fold = reader.fold(journal) if after is None else None
            first = after or 0 if fold is None else fold.seq
            entries, pending = reader.records(journal, first, page), reader.pending(journal, 0, page)
            return JournalPage(fold, entries, pending, reader.notifications.next(journal, now, page))

        return await self._read_journal(journal, read)

    async def fold(self, journal: str, *, upto: int | None = None) -> Fold | None:
        """The newest fold of a journal, up to a record; None without one that can be trusted."""
        _check_optional(check_int, "record", upto)
        return await self._read_journal(journal, lambda reader: reader.fold(journal, upto))

    def save_fold(self, lease: Lease, seq: int, body: bytes) -> asyncio.Future[None]:
        """Save the state of a journal after record `seq`. Nothing depends on it: `fold` need not find it again.

        One with a secret in it is not saved.
        """
        try:
            check_int("record", seq, least=1)
            body = _check_size("a fold", body, self.limits.fold_bytes)
            return self._submit(SaveFold(_check_lease(lease), seq, body))
        except errors.HoldfastError as refusal:
            return _failed_future(refusal)

    async def read_all(self, journal: str, *, after: int = 0) -> AsyncIterator[Entry]:
        """All records above `after`, page by page; holds no snapshot between two pages."""
        while True:
            entries = await self.read(journal, after=after)
            for entry in entries:
                yield entry
            if not entries:  # a short page may be full of bytes
                return
            after = entries[-1].seq

    async def tail(self, journal: str, limit: int = 50) -> list[Entry]:
        """The last records, oldest first, at a cost that does not depend on the length of the journal."""
        page = self._page(limit)
        return await self._read_journal(journal, lambda reader: reader.tail(journal, page))

    async def quarantine(self, journal: str, reason: str) -> None:
        """Stop serving an untrustworthy journal."""
        check_id("journal id", journal)
        await self._submit(transaction.Quarantine(journal, check_text("reason", reason)))

    # ---- feed and lists ----

    async def feed(self, *, after: int = 0, limit: int | None = None) -> list[contract.FeedEntry]:
        """Records of all journals in commit order, with a position above `after`."""
        check_int("cursor", after)
        page = self._page(limit)
        return await self._read(lambda reader: reader.feed(after, page))

    async def last_position(self) -> int:
        """The position of the newest record of the store."""
        return await self._read(lambda reader: reader.last_position())

    def read_position(self) -> asyncio.Future[int]:
        """The position of the newest record, after all commands queued so far."""
        future = self._call(lambda tx: tx.rows.last_position())
        future.add_done_callback(_ignore_failure)
        return future

    async def journals(
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
        """Journals, latest change of status first. Pass the last one as `before` for the next page.

        `changed_before` (wall milliseconds) leaves out newer ones; `untimed` leaves out journals with an open deadline.
        """
        _check_optional(check_choice, "journal kind", kind, JOURNAL_KINDS)
        _check_optional(check_choice, "status", status, STATUSES)
        _check_optional_ids(agent=agent, role=role, session=session)
        _check_type("before", before, Journal, "a line of the page before")
        cursors = [(before.updated, before.id)] if before is not None else []
        if changed_before is not None:
            cursors.append((check_int("changed before", changed_before), ""))
        where = contract.JournalFilter(kind, status, agent, min(cursors, default=None), role, session, bool(untimed))
        page = self._page(limit)
        return await self._read(lambda reader: reader.journals(where, page))

    async def preview_journals(self, journals: Sequence[str], *, prefix: str, tail: int) -> list[JournalPreview]:
        """Previews of several journals at constant cost for each; missing ones are left out.

        A preview has the newest admitted input whose key begins with `prefix`.
        """
        names, page = _check_journals(journals), self._page(tail)
        check_id("prefix", f"{prefix}1")
        found = await self._read(lambda reader: [reader.preview(name, prefix, page) for name in names])
        return [one for one in found if one is not None]

    async def forks(self, journal: str) -> list[str]:
        """The journals that were forked from this one, oldest first."""
        check_id("journal id", journal)
        return await self._read(lambda reader: reader.forks(journal))

    async def transferred(self, prefix: str, limit: int | None = None, *, after: str = "") -> list[str]:
        """Journals that were transferred to another session by an input whose key begins with `prefix`, by id.

        Pass the last one as `after` for more.
        """
        check_id("prefix", f"{prefix}1")
        page = self._page(limit)
        return await self._read(lambda reader: reader.with_inputs(prefix, after, page))

    async def heads(self, journals: Sequence[str]) -> dict[str, int]:
        """The heads of these journals; missing ones are left out."""
        names = _check_journals(journals)
        return await self._read(lambda reader: reader.heads(names))

    async def watch(self, journals: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        """The heads of these journals, and why nothing comes any more to those of them that were moved away."""
        names = _check_journals(journals)
        return await self._read(lambda reader: (reader.heads(names), reader.moved(names)))

    async def wakes(self, journals: Sequence[str]) -> dict[str, int]:
        """The wake counts of these journals; missing ones are left out."""
        names = _check_journals(journals)
        return await self._read(lambda reader: reader.wakes(names))

    async def youngest(self, role: str, session: str) -> str:
        """The newest journal of this role for this session; "" without one."""
        _check_ids(role=role, session=session)
        return await self._read(lambda reader: reader.youngest(role, session))

    async def poll_work(self, driven: Sequence[str]) -> WorkOverview:
        """All that a driver polls, in one read; `driven` are the journals whose wake counts it wants."""
        page, now = self.limits.page, self.clock.read()

        def poll(reader: Reader) -> WorkOverview:
            return WorkOverview(reader.next_due(), reader.wakes(driven) if driven else {}, reader.work(0, page, now))

        return await self._read(poll)

    async def work(self, after: int = 0, limit: int | None = None) -> list[contract.Work]:
        """Sessions, and processes with a role, that need a driver, with their present holder; oldest first.

        Pass the last `no` as `after` for the next page.
        """
        check_int("cursor", after)
        page = self._page(limit)
        now = self.clock.read()
        return await self._read(lambda reader: reader.work(after, page, now))

    # ---- leases ----

    def claim(self, journal: str, *, ttl_ms: int = LEASE_MS) -> asyncio.Future[Lease]:
        """Claim the lease of a journal; `LeaseHeld` if a live process holds it."""
        try:
            check_id("journal id", journal)
            check_int("lease time", ttl_ms, least=MIN_LEASE_MS)
            end = self.clock.read().mono + ttl_ms

            def note(claim: asyncio.Future[Lease]) -> None:
                if not claim.cancelled() and claim.exception() is None:
                    self._terms[journal] = (claim.result().epoch, end)
                    self._births[journal] = claim.result().born or self.id

            return self._submit(transaction.Claim(journal, self.owner, ttl_ms), note)
        except errors.HoldfastError as refusal:
            return _failed_future(refusal)

    async def renew(self, lease: Lease) -> None:
        """Extend the lease by another term; `Fenced` if it has moved on."""
        begun = self.clock.read().mono
        _check_lease(lease)
        await self._call(lambda tx: transaction.renew(tx, lease))
        self._terms[lease.journal] = (lease.epoch, begun + lease.ttl_ms)

    def surely_holds(self, lease: Lease) -> bool:
        """True if no other process can hold this journal yet: the lease was claimed or renewed within its term.

        False proves nothing. Renew the lease before an effect that must not happen twice.
        """
        epoch, end = self._terms.get(_check_lease(lease).journal, (0, 0))
        return epoch == lease.epoch and self.clock.read().mono < end

    def release(self, lease: Lease, *, seen: int | None = None) -> asyncio.Future[None]:
        """Release the lease; `Fenced` if it has moved on.

        `seen` is the wake count up to which the holder has handled everything, for example the `wakes` of the lease.
        Later wakes still count as work.
        """
        try:
            _check_optional(check_int, "seen", seen)
            if self._terms.get(_check_lease(lease).journal, (0, 0))[0] == lease.epoch:
                del self._terms[lease.journal]
                self._births.pop(lease.journal, None)
            return self._submit(transaction.Release(lease, seen))
        except errors.HoldfastError as refusal:
            return _failed_future(refusal)

    async def birthplace(self, journal: str) -> str:
        """The id of the store in which a journal was made, which its idempotency keys name.

        It is this one, unless the journal was moved here from another.
        """
        check_id("journal id", journal)
        return await self._read(lambda reader: reader.retention.birthplace(journal)) or self.id

    def leased_birthplace(self, journal: str) -> str:
        """The `birthplace` of a journal whose lease was claimed here."""
        return self._births.get(journal, self.id)

    async def holder(self, journal: str) -> Owner | None:
        """The live holder of a journal; None without one."""
        check_id("journal id", journal)
        now = self.clock.read()
        row = await self._read(lambda reader: reader.row(journal))
        found = None if row is None else row.as_work(now).holder
        return None if found is None or is_gone(found) else found

    def owner_gone(self, owner: Owner) -> bool:
        """True if the process of this owner has certainly ended, so that its leases can be claimed at once."""
        if not isinstance(owner, Owner):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise errors.InvalidArgument("owner", owner, "the owner of a lease")
        return is_gone(owner)

    # ---- inbox ----

    async def accept(
        self,
        journal: str,
        content: object,
        *,
        key: str | None = None,
        urgent: bool = False,
        admission: inbox.AdmissionWindow | None = None,
    ) -> Receipt:
        """Accept an input. The same key with the same content gives the same receipt, other content `KeyConflict`.

        An `urgent` input (a stop request) is accepted even if the inbox is full. An `admission` can raise
        `RateExceeded`, and for repeated content raise `DuplicateInput` or answer the receipt of the first.
        """
        check_id("journal id", journal)
        accept = self._accept_command(journal, content, key, None, admission)
        return await self._submit(replace(accept, urgent=True) if urgent else accept)

    def accept_into(
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
        admission: inbox.AdmissionWindow | None = None,
        youngest: str | None = None,
        spend: Spend | None = None,
        under: tuple[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
        parent: str | None = None,
    ) -> asyncio.Future[Receipt]:
        """Open a journal and accept an input, both or neither. Raises as `open_journal` and `accept` do.

        - `refs`: blobs of the content; they stay as long as the journal does.
        - `patient`: another command follows at once.
        - `youngest`: the answer of `youngest` on which the caller decided; `SiblingBegun` if a newer journal of this
          role and session exists.
        - `spend`: counted for the agent if this call creates the journal.
        - `under`: the journal of the caller and the key of its stop request; `StopRequested` once that request was
          accepted, unless this input was accepted before.
        - `metadata`: stored with a new journal; an existing one must have the same.
        - `parent`: a new journal is a fork of this ended one, at its last record.
        """
        try:
            opening = replace(_open_journal(journal, kind, agent, role, session), parent=parent)
            if metadata is not None:
                body = _check_size("the metadata of the session", canonical(metadata), self.limits.inline_bytes)
                opening = replace(opening, metadata=body)
            accept = self._accept_command(journal, content, key, opening, admission)
            digests = tuple(blob.digest for blob in refs)
            counted = None if spend is None else spending.check_spend_values(spend, spending.MAX_SPEND)
            accept = replace(accept, refs=digests, patient=patient, youngest=youngest, spend=counted, under=under)
            return self._submit(accept)
        except errors.HoldfastError as refusal:
            return _failed_future(refusal)

    def _accept_command(
        self,
        journal: str,
        content: object,
        key: str | None,
        opening: transaction.OpenJournal | None,
        admission: inbox.AdmissionWindow | None,
    ) -> inbox.Accept:
        named = f"auto-{secrets.token_hex(12)}" if key is None else check_id("input key", key)
        body = self._input_body("the input", content)
        accept = inbox.Accept(journal, named, contract.input_digest(body), body, opening, unnamed=key is None)
        return accept if admission is None else replace(accept, admission=inbox.check_admission(admission))

    async def find_input(self, journal: str, key: str) -> Receipt | None:
        """The receipt of the input accepted under `key`; None without one."""
        _check_ids(journal_id=journal, input_key=key)
        return await self._read(lambda reader: reader.receipt(journal, key))

    async def pending(self, journal: str, limit: int | None = None, *, after: int = 0) -> list[contract.Input]:
        """Accepted inputs above `after` that the journal has not admitted yet, in the order of acceptance."""
        check_int("cursor", after)
        page = self._page(limit)
        return await self._read_journal(journal, lambda reader: reader.pending(journal, after, page))

    async def input(self, journal: str, number: int) -> contract.Input | None:
        """An accepted input, pending or admitted; None without one of this number."""
        check_int("input", number)
        return await self._read_journal(journal, lambda reader: reader.input(journal, number))

    # ---- waits ----

    async def open_wait(
        self,
        journal: str,
        name: str,
        *,
        deadline: int | None = None,
        kind: str | None = None,
        body: bytes | None = None,
    ) -> Wait:
        """Open a wait, with a deadline in wall milliseconds. An open wait keeps all its values.

        `body` is the question, `kind` its sort. A resolution that came before a wait with a body does not count: an
        answer can't come before its question.
        """
        _check_ids(journal_id=journal, wait=name)
        _check_optional(check_int, "deadline", deadline)
        _check_optional(check_id, "wait kind", kind)
        if body is not None:
            if type(body) is not bytes:
                raise errors.InvalidArgument("wait body", body, "bytes")
            _check_size("the question", body, self.limits.wait_bytes)
        return await self._submit(waits.OpenWait(journal, name, deadline, kind, body))

    def wait_token(self, journal: str, name: str) -> str:
        """The bearer token of a wait. It resolves the wait once, even before the wait is opened."""
        _check_ids(journal_id=journal, wait=name)
        return waits.mint_token(self._backend.secret, journal, name)

    def wait_of(self, token: str) -> tuple[str, str]:
        """Journal and name of the wait of a token; `WaitUnknown` if this store did not make the token."""
        return waits.verify_token(self._backend.secret, token)

    async def resolve(self, token: str, value: object, *, expect_digest: str | None = None) -> Settlement:
        """Resolve the wait of a token. The first resolution decides; later callers get that one.

        With `expect_digest`, only if that is the digest of the question, else `ApprovalMismatch`.
        """
        # Check the value first: its errors must not depend on the token.
        body = self._input_body("the resolution", value)
        _check_optional(check_id, "digest", expect_digest)
        journal, name = waits.verify_token(self._backend.secret, token)
        settle = waits.SettleWait(journal, name, "resolved", body, expect_digest is None, expect_digest)
        try:
            return await self._submit(settle)
        except errors.JournalMissing:
            raise errors.WaitUnknown from None

    async def answer_wait(
        self, journal: str, name: str, value: object, *, expect_digest: str | None = None, rule: AddRule | None = None
    ) -> Settlement:
        """Resolve an open wait without a token; the first answer decides.

        `expect_digest` is as in `resolve`. `rule` (see `new_rule`) is stored in the same commit if this answer decides,
        and is in the settlement; if it can't be stored, nothing is settled.
        """
        _check_ids(journal_id=journal, wait=name)
        body = self._input_body("the resolution", value)
        _check_optional(check_id, "digest", expect_digest)
        _check_type("rule", rule, AddRule, "a rule that new_rule has made")
        if rule is not None:
            rule = waits.rule_command(rule.agent, rule.body, rule.by, self.limits)
        return await self._submit(waits.SettleWait(journal, name, "resolved", body, False, expect_digest, rule))

    async def answer_next(
        self, journal: str, prefix: str, value: object, *, most: int, key: str | None = None
    ) -> Settlement:
        """Resolve the first open one of the waits that are numbered after `prefix`, or the next number (up to `most`).

        The same value under the same `key` again settles nothing (`won` is False); another value is a `KeyConflict`.
        """
        _check_ids(journal_id=journal, prefix=f"{prefix}1")
        check_int("most", most, least=1)
        _check_optional(check_id, "key", key)
        body = self._input_body("the resolution", value)
        return await self._submit(waits.SettleNext(journal, prefix, most, body, key))

    async def expire_wait(self, journal: str, name: str) -> Settlement:
        """Expire a wait whose deadline has passed; one that is not due stays open."""
        _check_ids(journal_id=journal, wait=name)
        return await self._submit(waits.SettleWait(journal, name, "expired"))

    async def cancel_wait(self, journal: str, name: str) -> Settlement:
        """Cancel a wait that is no longer needed."""
        _check_ids(journal_id=journal, wait=name)
        return await self._submit(waits.SettleWait(journal, name, "cancelled"))

    async def revoke_waits(self, journal: str, name: str | None = None) -> int:
        """Revoke one wait, or all present and future waits of a journal; their tokens become unknown."""
        check_id("journal id", journal)
        _check_optional(check_id, "wait", name)
        return await self._submit(waits.RevokeWaits(journal, name))

    async def wait(self, journal: str, name: str) -> Wait | None:
        """The present wait; None if it was neither opened nor resolved."""
        check_id("wait", name)
        return await self._read_journal(journal, lambda reader: reader.wait(journal, name))

    async def waits(
        self, journal: str, limit: int | None = None, *, state: contract.WaitState | None = None, after: str = ""
    ) -> list[Wait]:
        """The waits of a journal by name, all or in one state. Pass the last name as `after` for more."""
        check_string("cursor", after)
        _check_optional(check_choice, "wait state", state, contract.WAIT_STATES)
        page = self._page(limit)
        return await self._read_journal(journal, lambda reader: reader.waits(journal, state, after, page))

    async def open_waits(self, kind: str, *, before: Wait | None = None, limit: int = 50) -> list[Wait]:
        """Open waits of this kind in all journals that can still be answered, newest first.

        Pass the last one as `before` for the next page.
        """
        check_id("wait kind", kind)
        _check_type("before", before, Wait, "the last wait of the page before")
        cursor = None if before is None else (before.at, before.journal, before.name)
        now, page = self._wall(), self._page(limit)
        found, damaged = await self._read(lambda reader: reader.list_open_waits(kind, now, cursor, page))
        await self._quarantine_all(damaged, "a wait does not match its checksum or its seal")
        return found

    async def due(self, limit: int | None = None) -> list[Wait]:
        """Open waits whose deadline has passed, longest overdue first. A timer is a wait that nothing resolves."""
        now, page = self._wall(), self._page(limit)
        due, damaged = await self._read(lambda reader: reader.due(now, page))
        await self._quarantine_all(damaged, "a wait does not match its checksum or its seal")
        return due

    async def next_due(self) -> int | None:
        """Due time of the next open wait or notification, in wall milliseconds.

        Handle waits with `due` and `expire_wait`, notifications with `ripen`.
        """
        return await self._read(lambda reader: reader.next_due())

    async def until(self, due: int) -> None:
        """Sleep until the wall clock reaches `due`; the sleep itself follows the monotonic clock.

        A wall clock set forward is noticed within half a minute; one set back delays the moment. Neither repeats it.
        """
        check_int("time", due)
        while (left := due - self._wall()) > 0:  # setting a clock gives no event
            await asyncio.sleep(min(left, _CLOCK_CHECK_MS) / 1000)

    # ---- notifications ----

    async def notify(
        self,
        journal: str,
        *,
        kind: str,
        title: str,
        body: str = "",
        source: str | None = None,
        priority: int = 0,
        key: str | None = None,
        due: int | None = None,
        expires: int | None = None,
        payload: object = None,
    ) -> tuple[Notification, bool]:
        """Queue a notification for `journal`; answers it, and True if it is new.

        The same key with the same content gives the same notification, other content `KeyConflict`. It is delivered
        from `due` (default: at once) until `expires`, both in wall milliseconds, higher `priority` first, and wakes its
        journal when it is due. `payload` is a JSON value for the host, which counts towards the size. Raises
        `JournalMissing`, `JournalQuarantined` or `NotificationsFull`.
        """
        more = None if payload is None else canonical(payload)
        command = Notify(journal, kind, title, body, source, priority, key, due, expires, more)
        return await self._submit(notifications.check_notification(command, self.limits))

    async def deliver_notifications(
        self, lease: Lease, ids: Sequence[int], content: object, *, key: str | None = None
    ) -> Receipt | None:
        """Claim notifications of the lease's journal and put one input with `content` into its inbox, in one commit.

        Leaves out notifications that are not queued, not due or expired; None if none is left. When the turn that
        admits the input completes or reaches a limit, they are acknowledged. When it fails or is cancelled they are
        queued again after a pause, and dead after too many attempts.
        """
        _check_lease(lease)
        numbers = _list_of("ids", ids, "a list of notification ids")
        chosen = tuple(dict.fromkeys(check_int("notification id", number, least=1) for number in numbers))
        body = self._input_body("the input", content)
        key = check_id("input key", f"carry-{secrets.token_hex(12)}" if key is None else key)
        said = (key, contract.input_digest(body), body)
        return await self._submit(notifications.DeliverNotifications(lease.journal, lease.epoch, chosen, *said))

    async def next_notifications(self, journal: str, limit: int | None = None) -> list[Notification]:
        """The deliverable notifications of a journal in the order of delivery: by priority, then by arrival."""
        page, now = self._page(limit), self._wall()

        def find(reader: Reader) -> list[Notification]:
            if not reader.heads([journal]):
                raise errors.JournalMissing(journal)
            return reader.notifications.next(journal, now, page)

        return await self._read_journal(journal, find)

    async def notification(self, number: int) -> Notification:
        """One notification by its id; `NotificationUnknown` without one."""
        check_int("notification id", number, least=1)
        try:
            found = await self._read(lambda reader: reader.notifications.get(number))
        except errors.JournalCorrupt as error:
            await self._quarantine_all({error.journal}, "a notification does not match its checksum")
            raise
        if found is None:
            raise errors.NotificationUnknown(number)
        return found

    async def notifications(
        self,
        journal: str | None = None,
        state: NotificationState | None = None,
        *,
        before: Notification | None = None,
        limit: int = 50,
    ) -> list[Notification]:
        """Notifications, newest first. Pass the last one as `before` for the next page."""
        _check_optional(check_id, "journal id", journal)
        _check_optional(check_choice, "notification state", state, notifications.NOTIFICATION_STATES)
        _check_type("before", before, Notification, "the last notification of the page before")
        cursor, page = None if before is None else before.id, self._page(limit)
        found, damaged = await self._read(lambda reader: reader.notifications.newest(journal, state, cursor, page))
        await self._quarantine_all(damaged, "a notification does not match its checksum")
        return found

    async def open_pump(self, session: str, *, ttl_ms: int = LEASE_MS) -> Lease:
        """Hold the notifications of a session; `PumpHeld` while another pump does."""
        check_id("session", session)
        check_int("lease time", ttl_ms, least=MIN_LEASE_MS)
        try:
            return await self._submit(pumps.OpenPump(session, self.owner, ttl_ms))
        except errors.LeaseHeld as held:
            raise errors.PumpHeld(session, held.holder, held.expires_in_ms) from None

    async def pump_notification(self, lease: Lease, session: str) -> Notification | int | None:
        """Claim the next notification for a pump; without one, the time at which the next is due."""
        now = self._wall()

        def find(reader: Reader) -> tuple[list[Notification], int | None]:
            table = reader.notifications
            return table.next(session, now, 1), table.next_due_of(session, now)

        ready, due = await self._read_journal(session, find)
        for found in ready:
            return await self._submit(pumps.PumpNotification(_check_lease(lease), session, found.id)) or now
        return due

    async def settle_pumped(
        self, lease: Lease, number: int, *, acknowledged: bool, pause_ms: int | None = None, reason: str = ""
    ) -> bool:
        """Acknowledge or queue again what a pump has claimed; False if it is not the pump's any more."""
        return await self._submit(pumps.SettlePumped(_check_lease(lease), number, acknowledged, pause_ms, reason))

    async def close_pump(self, lease: Lease, session: str) -> None:
        """End a pump: queue again what it has claimed. `Fenced` if another holds it by now."""
        await self._submit(pumps.ClosePump(_check_lease(lease), session))

    async def recover_pump(self, journal: str) -> bool:
        """End a pump whose process is gone, or whose lease has lapsed; False if it is held."""
        return await self._submit(pumps.RecoverPump(journal))

    async def settle_notification(self, number: int, state: SettledByHand) -> tuple[Notification, bool]:
        """Settle a notification by hand; answers it, and True if this call settled it.

        A queued, claimed or dead one can be `acknowledged` or `cancelled`; a dead one can be `queued` again with no
        attempts. Any other stays as it is.
        """
        check_int("notification id", number, least=1)
        check_choice("notification state", state, notifications.SETTLED_BY_HAND)
        return await self._call(lambda tx: notifications.settle_by_hand(tx, number, state))

    async def ripen(self, *, again: bool = False) -> list[str]:
        """Wake the journals of notifications that have become due, and expire overdue ones; answers the woken journals.

        Each is woken once for a due notification. With `again` (for a periodic check), journals that still have
        something to deliver are woken again.
        """
        woken: dict[str, None] = {}
        after, more = "", True
        while more:
            step = await self._call(partial(notifications.ripen, limit=self.limits.page, after=after, again=again))
            woken |= dict.fromkeys(step.journals)
            after, more = step.after, step.more
        return list(woken)

    # ---- memory ----

    async def memory_put(
        self,
        scope: str,
        key: str,
        value: object,
        *,
        summary: str = "",
        metadata: Mapping[str, object] | None = None,
        expected: int | None = None,
        expires: int | None = None,
        by: str | None = None,
    ) -> MemoryEntry:
        """Write an entry, a text or a value with a JSON form; answers it with its new version.

        With `expected`, only if that is its version (0: it must not exist), else `MemoryConflict`. The entry expires at
        `expires` (wall milliseconds). `MemoryFull` if its scope has no room.
        """
        _check_memory(scope, key)
        limits = self.limits
        given = check_string("memory value", value) if isinstance(value, str) else encode_value(value)
        if given == b"null":
            raise errors.InvalidArgument("memory value", value, "a text or a JSON value other than null")
        text = given if isinstance(given, str) else text_of(decode_value(given))
        _check_size("the value", text.encode(), limits.memory_bytes)
        _check_size("the summary", check_line("summary", summary).encode(), limits.memory_summary_bytes)
        _check_type("metadata", metadata, Mapping, "a dictionary")
        more = canonical(dict(metadata)) if metadata else None
        _check_size("the metadata of the entry", more or b"", limits.memory_metadata_bytes)
        _check_optional(check_int, "expires", expires)
        _check_memory_change(expected, by)
        return await self._submit(PutMemory(scope, key, given, expected, expires, by, summary, more))

    async def memory_get(self, scope: str, key: str) -> MemoryEntry | None:
        """The present entry; None without one. `MemoryCorrupt` if it is damaged."""
        _check_memory(scope, key)
        now = self._wall()
        return await self._read(lambda reader: reader.memories.get(scope, key, now))

    async def memory_delete(
        self, scope: str, key: str, *, expected: int | None = None, by: str | None = None
    ) -> MemoryEntry | None:
        """Remove an entry; answers the removed entry, None without one. `expected` is as in `memory_put`."""
        _check_memory(scope, key)
        _check_memory_change(expected, by)
        return await self._submit(DeleteMemory(scope, key, expected, by))

    async def memory_page(
        self, scope: str, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> MemoryPage:
        """A page of the entries of a scope whose key begins with `prefix`, by key.

        Damaged entries are left out. While there is `more`, pass the last key as `after` for the next page; each
        damaged key appears once.
        """
        check_name("memory scope", scope)
        check_string("prefix", prefix)
        check_string("cursor", after)
        page, now = self._page(limit), self._wall()
        return await self._read(lambda reader: reader.memories.list(scope, prefix, after, now, page))

    async def memory_list(
        self, scope: str, prefix: str = "", *, after: str = "", limit: int | None = None
    ) -> list[MemoryEntry]:
        """The entries of `memory_page`; a damaged entry raises `MemoryCorrupt`."""
        page = await self.memory_page(scope, prefix, after=after, limit=limit)
        if page.damaged:
            raise errors.MemoryCorrupt(*page.damaged[0])
        return page.entries

    async def memory_search(self, scope: str | None, words: str, limit: int | None = None) -> MemoryPage:
        """Entries of one scope, or of all, with all these words in key or value, the best match first.

        The backend decides how it splits words and if it finds parts of them. `words` has no operators. Damaged entries
        are left out.
        """
        _check_optional(check_name, "memory scope", scope)
        wanted = words_of(check_string("words", words))
        page, now = self._page(limit), self._wall()
        if not wanted:
            return MemoryPage([], [])
        return await self._read(lambda reader: reader.memories.search(scope, wanted, now, page))

    async def memory_history(self, scope: str, key: str, limit: int | None = None) -> list[MemoryChange]:
        """The latest changes of an entry, newest first, also of a deleted one. The store keeps a limited number."""
        _check_memory(scope, key)
        page, now = self._page(limit), self._wall()
        return await self._read(lambda reader: reader.memories.history(scope, key, now, page))

    async def memory_scopes(self) -> list[MemoryScope]:
        """The scopes that have entries, by name, with their sizes."""
        now = self._wall()
        return await self._read(lambda reader: reader.memories.scopes(now))

    # ---- rules ----

    def new_rule(self, agent: str, body: str, *, by: str) -> AddRule:
        """A rule for `answer_wait` to store, checked as by `add_rule`."""
        return waits.rule_command(agent, body, by, self.limits)

    async def add_rule(self, agent: str, body: str, *, by: str) -> tuple[StoredRule, bool]:
        """Store a rule (JSON) for an agent, or for every agent ("*"); answers it, and True if it is new.

        The same rule in force for the same agent is not stored twice. `RulesFull` if the agent has too many.
        """
        return await self._submit(waits.rule_command(agent, body, by, self.limits))

    async def remove_rule(self, number: int, *, by: str) -> tuple[StoredRule, bool]:
        """Take a rule out of force; answers it, and True if this call removed it. It stays in the history.

        `RuleUnknown` without a rule of this number.
        """
        check_int("rule id", number, least=1)
        check_id("author", by)
        return await self._submit(waits.RemoveRule(number, by))

    async def rules(self, agent: str) -> list[StoredRule]:
        """All rules in force for this agent and for every agent, oldest first.

        A damaged rule raises `RuleCorrupt`: the others must not decide without it.
        """
        check_id("agent", agent)
        return await self._read(lambda reader: reader.rules.in_force(agent))

    async def rule_history(
        self, agent: str | None = None, *, before: StoredRule | None = None, limit: int = 50
    ) -> list[StoredRule]:
        """Rules (of exactly this agent, if given), newest first, with removed ones.

        Pass the last one as `before` for the next page.
        """
        _check_optional(check_id, "agent", agent)
        _check_type("before", before, StoredRule, "the last rule of the page before")
        cursor, page = None if before is None else before.id, self._page(limit)
        return await self._read(lambda reader: reader.rules.newest(agent, cursor, page))

    # ---- spending ----

    async def spent(self, agent: str | None, day: int | None = None) -> Spend:
        """Spending of an agent on one day (since 1970-01-01, UTC), or in total; None for journals without an agent.

        The store counts it in the same commit as the records. In a store of an older schema, records from before the
        upgrade count only after `count_older_spending`, which a runtime calls first.
        """
        _check_optional(check_id, "agent", agent)
        _check_optional(check_int, "day", day)
        return await self._read(lambda reader: reader.spending.spent(agent, day))

    async def count_older_spending(self, spend_of: SpendOf) -> bool:
        """Count the records of an older schema, in one commit; True if there were any.

        In a damaged journal, the records before the first bad one count.
        """
        since = await self._read(lambda reader: reader.spending.since())
        if not since:
            return False
        rows = await self._count_spending(spend_of, since, strict=False)
        return await self._call(lambda tx: spending.count_older(tx, rows, since))

    async def rebuild_spending(self, spend_of: SpendOf) -> None:
        """Count all records again and replace the stored spending.

        `StoreBusy` if records were added meanwhile. A damaged journal raises `JournalCorrupt`: without it the count
        would be too low.
        """
        position = await self.last_position()
        rows = await self._count_spending(spend_of, position, strict=True)
        forgotten, _ = await self._read(lambda reader: reader.spending.forgotten())
        rows = spending.sum_by_agent_and_day([*rows, *forgotten])
        await self._call(lambda tx: spending.replace_spending(tx, rows, position))

    async def _count_spending(self, spend_of: SpendOf, upto: int, *, strict: bool) -> tuple[DailySpend, ...]:
        """Spending of all records up to this position, in as many reads as needed."""
        left, spends = await self._read(
            lambda reader: (reader.raw_journals(), spending.spend_of_pruned(reader, upto, strict=strict))
        )
        while left:
            some, number = await self._read(
                lambda reader: spending.fold_spending(reader, spend_of, upto, left, strict=strict)  # noqa: B023
            )
            spends, left = [*spending.sum_by_agent_and_day((*spends, *some))], left[number:]
        return spending.sum_by_agent_and_day(spends)

    async def replace_spending(self, spends: Iterable[tuple[str | None, int, Spend]], *, position: int) -> None:
        """Replace the stored spending by (agent, day, spend) of all records up to `position`.

        `StoreBusy` if there are later records.
        """
        check_int("position", position)
        try:
            rows = [DailySpend(agent, day, spend) for agent, day, spend in spends]
        except (TypeError, ValueError):
            raise errors.InvalidArgument("spends", spends, "a list of (agent, day, Spend)") from None
        for agent, day, spend in rows:
            _check_optional(check_id, "agent", agent)
            check_int("day", day)
            spending.check_spend_values(spend, 2**50)
        summed = spending.sum_by_agent_and_day(rows)
        await self._call(lambda tx: spending.replace_spending(tx, summed, position))

    # ---- admission ----

    async def note_refusal(
        self, journal: str, *, agent: str | None, key: str | None, error: str, message: str
    ) -> inbox.RefusedInput:
        """Record the refusal of an input of `journal`, which need not exist.

        The store keeps the last 20 refusals of a journal and the last 1,000 of all, and counts the rest.
        """
        check_id("journal id", journal)
        _check_optional_ids(agent=agent, input_key=key)
        text = self.redactor.text(check_string("message", message))[: inbox.MAX_MESSAGE]
        return await self._submit(inbox.NoteRefusal(journal, agent, key, check_id("error", error), text))

    async def refusals(self, journal: str | None = None, *, limit: int = 50) -> list[inbox.RefusedInput]:
        """Refused inputs of one journal, or of all, newest first."""
        _check_optional(check_id, "journal id", journal)
        page = self._page(limit)
        return await self._read(lambda reader: reader.admission.refusals(journal, page))

    async def set_terms(self, agent: str, body: str | None) -> None:
        """Store the admission of an agent as JSON for processes without its definition; None removes it."""
        check_id("agent", agent)
        await self._submit(inbox.SetTerms(agent, None if body is None else check_string("terms", body)))

    async def terms(self) -> dict[str, str]:
        """The stored admission of each agent that has one, as JSON."""
        return await self._read(lambda reader: reader.admission.terms())

    # ---- blobs ----

    async def put_blob(self, body: bytes) -> Blob:
        """Store bytes, once. Put them before the record that refers to them."""
        if type(body) is not bytes:
            raise errors.InvalidValue("$", f"a blob is bytes, not {type(cast('object', body)).__name__}")
        _check_size("the blob", body, self.limits.blob_bytes)
        return await self._submit(transaction.PutBlob(contract.blob_digest(body), body))

    def queue_blob(self, body: bytes) -> Blob:
        """Store bytes, once, without waiting: records appended after this call may refer to them."""
        digest = contract.blob_digest(body)
        self._submit(transaction.PutBlob(digest, body), _ignore_failure)  # the record that refers to it fails
        return Blob(digest, len(body))

    async def blob(self, digest: str) -> bytes | None:
        """The bytes under `digest`; None without any. `BlobCorrupt` if they do not match."""
        check_id("digest", digest)
        return await self._read(lambda reader: reader.blob(digest))

    async def blob_chunks(self, digest: str) -> AsyncGenerator[bytes]:
        """The bytes under `digest` in chunks; `BlobMissing` without any.

        Raises `BlobCorrupt` before the last chunk if the bytes do not match their digest.
        """
        check_id("digest", digest)
        seen, start, last = hashlib.sha256(), 0, b""
        while True:
            window = await self._read(lambda reader: reader.blob_part(digest, start, attachments.WINDOW))  # noqa: B023
            if window is None:
                raise errors.BlobMissing(digest)
            if not window and seen.hexdigest() != digest and start:
                raise errors.BlobCorrupt(digest)
            if last:
                yield last
            if not window:
                return
            seen.update(window)
            start += len(window)
            ends = (len(window) - 1) // attachments.CHUNK * attachments.CHUNK
            for at in range(0, ends, attachments.CHUNK):
                yield window[at : at + attachments.CHUNK]
            last = window[ends:]

    # ---- attachments ----

    async def put_attachment(
        self, body: bytes | AttachmentSpool, media_type: str, *, name: str | None = None, session: str | None = None
    ) -> StoredAttachment:
        """Store bytes once and let a session read them; without a session, until they are shared. Closes a spool.

        The same bytes for the same session are the same attachment, under its first name. `AttachmentsFull` if the
        session has too many.
        """
        spool = body if isinstance(body, AttachmentSpool) else None
        try:
            size = spool.size if spool is not None else len(body) if type(body) is bytes else 0
            if not size:
                raise errors.InvalidValue("$", "an attachment is bytes that are not empty")
            if size > self._max_attachment:
                raise errors.PayloadTooLarge("the attachment", size, self._max_attachment)
            check_id("media type", media_type)
            _check_optional(check_string, "file name", name)
            digest = contract.blob_digest(body) if isinstance(body, bytes) else body.digest
            put = attachments.PutAttachment(_session_or_none(session), digest, body, media_type, name)
            answer = self._submit(put)
        except BaseException:
            if spool is not None:
                spool.close()
            raise
        if spool is None:
            return await answer
        # The writer reads the spool later, even if the caller is cancelled meanwhile.
        answer.add_done_callback(lambda done: (spool.close(), _ignore_failure(done)))
        return await asyncio.shield(answer)

    @property
    def _max_attachment(self) -> int:
        limits = self.limits
        return min(limits.attachment_bytes, limits.blob_bytes)

    def spool(self) -> AttachmentSpool:
        """A spool for an attachment that arrives in parts; pass it to `put_attachment`, or close it."""
        return AttachmentSpool(None if self.path is None else self.path.parent, self._max_attachment)

    async def share_attachment(self, digest: str, session: str) -> StoredAttachment | None:
        """Let a session read an attachment without a session; None if there is none."""
        return await self._submit(attachments.ShareAttachment(check_id("session", session), check_id("digest", digest)))

    async def attachment(self, digest: str, *, session: str | None = None) -> StoredAttachment | None:
        """The attachment of a session, or one without a session; None if there is none."""
        check_id("digest", digest)
        owner = _session_or_none(session)
        return await self._read(lambda reader: reader.attachments.find(owner, digest))

    async def attachments(
        self, session: str | None = None, *, after: str = "", limit: int | None = None
    ) -> list[StoredAttachment]:
        """The attachments of a session, or those without one, by digest. Pass the last digest as `after` for more."""
        check_string("cursor", after)
        owner, page = _session_or_none(session), self._page(limit)
        return await self._read(lambda reader: reader.attachments.of(owner, after, page))

    async def may_read(self, session: str, digest: str) -> bool:
        """True if a session may read a blob: as its attachment, or by a record, input or task that refers to it.

        A fork may read the blobs that its parent could read when it was made.
        """
        _check_ids(session=session, digest=digest)
        return await self._read(lambda reader: attachments.may_read(reader, session, digest))

    # ---- retention ----

    async def prune_journal(
        self, journal: str, *, head: int, detail: str, key: str, spent: Mapping[int, Spend] | None = None
    ) -> Tombstone:
        """Remove an ended process with its records, inputs, waits and references; answers its tombstone.

        `head` is the expected head, `detail` the name of its end, `key` that of its first input, `spent` the spending
        of its records by day. `JournalInUse` if it can't be removed. Blobs that no other journal refers to go with it,
        or with a later `collect_blobs` if they were put within the last hour.
        """
        check_id("journal id", journal)
        check_int("head", head)
        _check_ids(detail=detail, input_key=key)
        days = tuple(sorted((spent or {}).items()))
        return await self._submit(retention.PruneJournal(journal, head, detail, key, days))

    async def forget_session(
        self,
        session: str,
        spend_of: SpendOf,
        *,
        forks: bool = False,
        memory: Sequence[str] | None = None,
        keep_hash: bool = False,
        idle_since: int | None = None,
        dry_run: bool = False,
    ) -> Forgotten:
        """Remove a session with its forks, sub-agents, processes, attachments and memory, also while it is driven.

        `SessionForked` if others were forked from it, unless `forks` are to go too; `ForgetRefused` for a session that
        works for another one. `memory` names the scopes that go with it, by default those with the ids of the sessions.
        With `keep_hash` the ids are refused from now on. With `idle_since`, `JournalInUse` if something of it waits,
        runs, or has changed since. `spend_of` is the spending of each record, which stays counted without the id.
        """
        check_id("session", session)
        _check_optional(check_int, "idle since", idle_since)
        scopes = None if memory is None else _scopes_of(memory)
        said = (bool(forks), scopes, bool(keep_hash), idle_since, bool(dry_run))
        forgotten = await self._submit(retention.ForgetSession(session, spend_of, *said))
        return forgotten if dry_run else replace(forgotten, wiped=self._backend.wiped)

    async def trim_journal(self, lease: Lease, seq: int) -> int:
        """Remove the records of a journal up to `seq`; answers how many. The last record always stays."""
        check_int("record", seq)
        return await self._call(lambda tx: retention.trim_journal(tx, lease, seq))

    async def empty_inputs(self, lease: Lease, before: int, spare: Sequence[int] = ()) -> int:
        """Empty the admitted inputs before `before`, except those to `spare`; answers how many.

        Their keys and digests stay, so no input is accepted twice.
        """
        check_int("before", before)
        kept = tuple(check_int("input", number) for number in _list_of("spare", spare, "a list of numbers of inputs"))
        return await self._call(lambda tx: tx.rows.retention.empty_inputs(tx.leased_journal(lease), before, kept))

    async def remove_waits(self, lease: Lease, prefix: str, before: int) -> int:
        """Remove settled waits with this prefix that were opened before `before`; answers how many."""
        check_id("prefix", f"{prefix}1")
        check_int("before", before)
        return await self._call(lambda tx: tx.rows.retention.remove_waits(tx.leased_journal(lease), prefix, before))

    async def count_old(self, journal: str, before: int, spare: Sequence[int], prefix: str) -> tuple[int, int]:
        """Count the inputs that `empty_inputs` would empty, and the waits that `remove_waits` would remove."""
        check_id("journal id", journal)
        check_int("before", before)
        return await self._read(lambda reader: reader.retention.old(journal, before, tuple(spare), prefix))

    async def tombstone(self, journal: str) -> Tombstone | None:
        """The tombstone of a pruned journal; None without one."""
        check_id("journal id", journal)
        return await self._read(lambda reader: reader.retention.find(journal))

    async def tombstones(self, *, after: int = 0, role: str | None = None, limit: int | None = None) -> list[Tombstone]:
        """Tombstones of journals with a last record above the position `after`, by position."""
        check_int("cursor", after)
        _check_optional(check_id, "role", role)
        page = self._page(limit)
        return await self._read(lambda reader: reader.retention.after(after, role, page))

    async def purge_notifications(self, before: int | None = None, limit: int | None = None) -> Purged:
        """Remove one page of acknowledged, cancelled or expired notifications, unchanged since `before`; oldest first.

        The default of `before` (wall milliseconds) follows from the limit `notification_kept_ms`. Their keys are free
        again. Dead notifications stay.
        """
        _check_optional(check_int, "before", before)
        page, until = self._page(limit), self._wall() - self.limits.notification_kept_ms if before is None else before
        return await self._call(lambda tx: tx.rows.notifications.purge(until, page))

    async def memory_purge(self) -> int:
        """Remove expired memory, also from the history; answers how many entries."""
        removed, more = 0, True
        while more:
            step = await self._call(lambda tx: retention.purge_memories(tx, self.limits.page))
            removed, more = removed + step.removed, step.more
        return removed

    async def collect_blobs(self, *, unused_ms: int = retention.BLOB_GRACE_MS, without_roots: bool = False) -> int:
        """Delete unreferenced blobs last put `unused_ms` ago; answers how many.

        `CollectionRefused` if the references can't be trusted: a journal is quarantined, or nothing at all refers to a
        blob (unless `without_roots`).
        """
        return (await self.collect_unused(unused_ms=unused_ms, without_roots=without_roots)).blobs

    async def collect_unused(
        self, *, unused_ms: int = retention.BLOB_GRACE_MS, without_roots: bool = False, dry_run: bool = False
    ) -> Collected:
        """`collect_blobs` that answers number and bytes. A `dry_run` deletes nothing."""
        check_int("age", unused_ms)
        before = self._wall() - unused_ms

        def unused(reader: Reader, after: str, limit: int) -> list[tuple[str, int]]:
            retention.check_collection(reader.attachments.collection_basis(), without_roots=without_roots)
            return reader.attachments.unused(before, after=after, limit=limit)

        if dry_run:
            found = await self._read(lambda reader: unused(reader, "", -1))
            return Collected(len(found), sum(size for _, size in found), dry_run=True)
        collected, last = Collected(), ""
        # A reader finds the blobs, so that the writer only has to check them again.
        while found := await self._read(lambda reader: unused(reader, last, retention.COLLECT_BATCH)):  # noqa: B023
            digests = [digest for digest, _ in found]
            collect = partial(retention.collect_blobs, before=before, digests=digests, without_roots=without_roots)
            collected += await self._call(collect)
            last = digests[-1]
        return collected

    async def backup(self, path: Path | str, spend_of: SpendOf | None = None, *, with_key: bool = True) -> BackupReport:
        """Copy one state of this store into a new file, while it is in use, and examine the copy.

        `BackupRefused` if the file exists or can't be written, or the store is in memory. The key file goes along as
        ``PATH.key`` unless `with_key` is False.
        """
        if not isinstance(path, str | Path) or not str(path) or "\0" in str(path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise errors.InvalidArgument("path", path, "a path that a file can have")
        return await self._backend.backup(Path(path), spend_of, with_key=bool(with_key))

    # ---- sessions in files ----

    async def move_away(self, session: str) -> exports.MovedAway:
        """Mark a session and all that belongs to it as moved: from now on nothing can be written for it here.

        The same again finds the same mark.
        """
        check_id("session", session)
        from holdfast.store import exports  # few processes export or import

        return await self._submit(exports.MoveAway(session, secrets.token_hex(16), self.owner))

    async def export_session(
        self, session: str, write: Callable[[bytes], object], *, memory: Sequence[str] | None = None
    ) -> exports.SessionReport:
        """Write one state of a session, with all that belongs to it, as the lines of a session file; see `moves`.

        A session that was not moved away must be at rest: `ExportRefused` if not. `memory` names the scopes that go
        along, by default those with the ids of the sessions.
        """
        check_id("session", session)
        from holdfast.store import exports

        scopes = None if memory is None else _scopes_of(memory)
        at = self._wall()
        return await self._backend.read_long(
            lambda reader: exports.write_file(reader, session, write, scopes, self.id, at, self._backend.file_macs)
        )

    async def read_session_file(self, source: IO[bytes], name: str) -> SessionFile:
        """Read a session file to its end, check it, and keep a copy of it. Close the copy after use."""
        from holdfast.store.session_file import SessionFile

        folder = None if self.path is None else self.path.parent
        return await asyncio.to_thread(SessionFile.read, source, name, folder, self.limits)

    async def import_session(
        self,
        file: SessionFile,
        name: str,
        spend_of: SpendOf,
        *,
        key: Path | None = None,
        trust: bool = False,
        dry_run: bool = False,
    ) -> exports.SessionReport:
        """Store the session of a file, with all that belongs to it: all in one transaction, and once.

        `SessionFileUntrusted` without `trust`, unless the file carries a MAC under the key of its store: this one, or
        one with the key in the file `key`, or one that shares its key with this one.
        """
        from holdfast.store import exports

        digest, store = bytes.fromhex(file.end.digest), file.header.store
        macs = await asyncio.to_thread(self._backend.file_macs, store, digest, key)
        if not trust and not any(hmac.compare_digest(mac, file.end.mac) for mac in macs):
            raise errors.SessionFileUntrusted(name, store)
        command = exports.ImportSession(file, name, spend_of, dry_run=True)
        found = await self._backend.submit(command)
        if dry_run or not found.fresh:
            return found
        for blob in file.blobs():
            await self._backend.submit(exports.PutSpooledBlob(blob))
        return await self._backend.submit(replace(command, dry_run=False))

    # ---- changes ----

    @property
    def version(self) -> int:
        """A number that grows with every commit seen by this process, its own and others."""
        return self._backend.version

    @property
    def shared(self) -> bool:
        """True if another process may have this store open, as of the last commit."""
        return self._backend.shared

    async def changed(self, version: int, timeout: float | None = None) -> int:
        """Wait for a newer version than `version`; answers the present one. No change is ever missed."""
        check_int("version", version)
        if timeout is not None and (type(timeout) not in (int, float) or not timeout >= 0):
            raise errors.InvalidArgument("timeout", timeout, "a number of seconds")
        return await self._backend.changed(version, timeout)

    async def examine(self, query: Callable[[Reader], T]) -> T:
        """Run an audit over the raw rows."""
        return await self._read(query)


def _failed_future(error: errors.HoldfastError) -> asyncio.Future[Any]:
    """A refusal before queueing, delivered like one of the writer."""
    failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    failed.set_exception(error)
    return failed


def _ignore_failure(done: asyncio.Future[Any]) -> None:
    """An unread failure is no warning."""
    if not done.cancelled():
        done.exception()


def _open_journal(
    journal: str, kind: JournalKind, agent: str | None, role: str | None, session: str | None
) -> transaction.OpenJournal:
    check_id("journal id", journal)
    check_choice("journal kind", kind, JOURNAL_KINDS)
    _check_optional_ids(agent=agent, role=role, session=session)
    return transaction.OpenJournal(journal, kind, agent, role, session)


def _fork_point(reader: Reader, journal: str, seq: int) -> tuple[int, str | None]:
    """The record after which a fork at `seq` starts, and the agent of the journal there."""
    last = reader.handed_at(journal, seq + 1)
    if 1 < last == seq + 1:
        outcome, handed = (entry.record for entry in reader.records(journal, seq - 1, 2))
        if isinstance(handed, Handed) and getattr(outcome, "key", None) == handed.key:
            return last, handed.agent
        last = reader.handed_at(journal, seq)
    found = reader.records(journal, max(last - 1, 0), 1)
    record = found[0].record if found else None
    return seq, record.agent if isinstance(record, Handed | Opened) else None


# ---- records ----


def encode_readable(record: Record) -> bytes:
    """The bytes of a record of Holdfast; raises if they can't be read back."""
    body = records.encode(record)
    if type(record) is Done and record.at >= 0 and record.ms >= 0:
        return body  # Holdfast has just written or read the JSON of its value
    try:
        records.decode_unversioned(body)
    except records.DECODE_ERRORS as error:
        raise errors.InvalidValue("$", f"the record can't be read back: {error}") from error
    return body


def encode_checked(record: object) -> bytes:
    """The bytes of a record of a caller; raises if they do not read back as the same record."""
    if type(record) not in records.RECORD_TYPES:
        raise errors.InvalidValue("$", f"a {type(record).__name__} is not a record")
    try:
        body = records.encode(record)
        same = records.decode_unversioned(body) == record
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise errors.InvalidValue("$", f"the record can't be read back: {error}") from error
    if not same:
        raise errors.InvalidValue("$", "the record reads back as another one")
    return body


def is_plain(record: Record) -> bool:
    """True if the record concerns only its own journal: no list, no inbox, no wait, no blob."""
    if type(record) is Done:  # as most are
        told = record.ask is None or record.ask.blob is None
        return told and record.blob is None and not record.refs and not record.kept
    if type(record) in (Admitted, Ended) or records.blobs_of(record):
        return False
    return not records.touches_lists(record)


# ---- checks of arguments ----


def _check_optional(check: Callable[..., object], what: str, value: object, *more: object) -> None:
    if value is not None:
        check(what, value, *more)


def _check_ids(**ids: str) -> None:
    """Check ids in their order. Errors name them as the keywords do, with spaces."""
    for what, name in ids.items():
        check_id(what.replace("_", " "), name)


def _check_optional_ids(**ids: str | None) -> None:
    _check_ids(**{what: name for what, name in ids.items() if name is not None})


def _check_size(what: str, body: bytes, limit: int) -> bytes:
    if len(body) > limit:
        raise errors.PayloadTooLarge(what, len(body), limit)
    return body


def _check_type(what: str, value: object, kind: type, wanted: str) -> None:
    """Callers may be untyped."""
    if value is not None and not isinstance(value, kind):
        raise errors.InvalidArgument(what, value, wanted)


def _list_of(what: str, values: Iterable[T], wanted: str) -> tuple[T, ...]:
    """A copy: the caller may change its list afterwards."""
    if isinstance(values, str) or not isinstance(values, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise errors.InvalidArgument(what, values, wanted)
    return tuple(values)


def _check_lease(lease: object) -> Lease:
    if not isinstance(lease, Lease):
        raise errors.InvalidArgument("lease", lease, "a lease that was claimed")
    return lease


def _check_wait_names(consume: Sequence[str]) -> tuple[str, ...]:
    wanted = "a list of names of waits, none of them twice,"
    names = tuple(check_id("wait", name) for name in _list_of("consume", consume, wanted))
    if not names or len(set(names)) != len(names):
        raise errors.InvalidArgument("consume", consume, wanted)
    return names


def _check_journals(journals: Sequence[str]) -> list[str]:
    return [check_id("journal id", name) for name in _list_of("journals", journals, "a list of journal ids")]


def _scopes_of(memory: Sequence[str]) -> tuple[str, ...]:
    return tuple(check_name("memory scope", scope) for scope in _list_of("memory", memory, "a list of scopes"))


def _check_memory(scope: str, key: str) -> None:
    check_name("memory scope", scope)
    check_name("memory key", key)


def _check_memory_change(expected: int | None, by: str | None) -> None:
    _check_optional(check_int, "expected version", expected)
    _check_optional(check_id, "author", by)


def _session_or_none(session: str | None) -> str:
    return attachments.NO_SESSION if session is None else check_id("session", session)
