"""Drive a journal: claim the lease, fold the records, run the code, record its end.

Driving is idempotent and resumable: after a crash, the next drive runs the same code from the top, gets the recorded
outcomes, and continues from there. A run that has ended only answers its result.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec

from holdfast.clock import wall_clock
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import decode_value, encode_value, error_info
from holdfast.effects.performer import Boundary, GuardedCoroutine, Performer, current_scope, install_task_factory
from holdfast.effects.replay import RunHistory, diverge
from holdfast.errors import (
    BlobMissing,
    Halted,
    HeadConflict,
    HoldfastError,
    InvalidArgument,
    ReplayMismatch,
    ReplayMiss,
    RunFailed,
    StoreBusy,
    StoreError,
)
from holdfast.names import check_id, check_int
from holdfast.records import Blob, Ended, Record, Started
from holdfast.secrets.logs import safe_cause
from holdfast.store.checksum import blob_digest
from holdfast.store.client import LEASE_MS, MIN_LEASE_MS
from holdfast.store.contract import Head
from holdfast.store.lease import LeaseHolder
from holdfast.store.spending import spend_of_append

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.records import JournalKind
    from holdfast.store import Notify
    from holdfast.store.client import Store
    from holdfast.store.contract import Lease
    from holdfast.store.spending import Spend
    from holdfast.turns.state import Stopwatch


T = TypeVar("T")
_CONFIRMATIONS: Final = 5
"""Renewals in a row, if each answer takes longer than the term of the lease."""


async def drive(
    store: Store,
    journal: str,
    body: Callable[[Boundary], Awaitable[T]],
    *,
    run: str = "main",
    kind: JournalKind = "process",
    agent: str | None = None,
    code: str | None = None,
    lease_ms: int = LEASE_MS,
) -> T:
    """Run `body` durably under the id `journal`; answers its value, also of an earlier run that has ended.

    `body` touches the world only through its boundary. `code` names the version of the code in the journal.

    Raises `LeaseHeld` if another process drives this journal, `Fenced` if one took over meanwhile, `ReplayMismatch` if
    the code does not fit the journal, and `RunFailed` if `body` raised.
    """
    check_id("run", run)
    check_int("lease time", lease_ms, least=MIN_LEASE_MS)
    if code is not None:
        check_id("code version", code)
    if not callable(body):
        raise InvalidArgument("body", body, "a function that takes the boundary")
    await store.open_journal(journal, kind, agent)
    try:
        async with LeaseHolder(store, journal, lease_ms) as held:
            ledger = LeasedJournal(store, held.lease)
            past = await ledger.past()
            ended = past.ended.get(run)
            if ended is not None:
                return await _result(ledger, ended)
            performer = Performer(ledger, past, run)
            return await _result(ledger, await _run(performer, ledger, body, held.lost, code), performer.failure)
    except Halted as halted:
        raise halted.reason from halted.reason.__cause__


async def replay(store: Store, journal: str, body: Callable[[Boundary], Awaitable[T]], *, run: str = "main") -> T:
    """Run `body` against the recorded outcomes, without performing or writing anything; answers its value.

    Raises `ReplayMismatch` if the code or the result does not fit the journal, and `ReplayMiss` at the end of the
    records. It needs no lease, so another process may drive the journal meanwhile.
    """
    check_id("run", run)
    past = await _past(store, journal)
    ledger = RecordedJournal(store, journal)
    performer = Performer(ledger, past, run, strict=True)
    install_task_factory(asyncio.get_running_loop())
    try:
        try:
            ended = await asyncio.ensure_future(_body(performer, ledger, body))
        finally:
            await performer.close("ended")
        performer.check_complete()
        recorded = past.ended.get(run)
        if recorded is not None and _ending(recorded) != _ending(ended):  # it must end the same way again
            raise performer.halt(ReplayMismatch(run, diverge(_ending(recorded), _ending(ended))))
    except Halted as halted:
        raise halted.reason from halted.reason.__cause__
    return await _result(ledger, ended)


def _ending(ended: Ended) -> dict[str, object]:
    value: object = None
    if ended.blob is not None:
        value = {"sha256": ended.blob.digest}
    elif ended.value:
        value = decode_value(bytes(ended.value))
    error = None if ended.error is None else [ended.error.kind, ended.error.message]
    return {"status": ended.status, "value": value, "error": error}


async def _run(
    performer: Performer,
    ledger: LeasedJournal,
    body: Callable[[Boundary], Awaitable[Any]],
    lost: asyncio.Future[HoldfastError],
    code: str | None,
) -> Ended:
    install_task_factory(asyncio.get_running_loop())
    if performer.run not in performer.past.started:
        performer.submit([Started(at=ledger.now(), run=performer.run, code=code)])
    work = asyncio.ensure_future(_body(performer, ledger, body))

    def halt(_: object) -> None:
        """Another process drives this journal now."""
        if not lost.cancelled():
            performer.halt(lost.result())
            work.cancel()

    lost.add_done_callback(halt)
    try:
        ended = await asyncio.shield(work)
    except asyncio.CancelledError:
        # Unwind the code. Its clean-up gets no effects; the next drive performs them.
        performer.refuse()
        work.cancel()
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        if not work.cancelled():
            work.exception()
        performer.check_halted()
        raise
    finally:
        await performer.close("ended")
    performer.check_complete()
    crash_point("drive.before_end")
    await performer.seal(ended)
    crash_point("drive.after_end")
    return ended


async def _called(body: Callable[[Boundary], Awaitable[T]], boundary: Boundary) -> T:
    return await body(boundary)


async def _body(performer: Performer, ledger: JournalLedger, body: Callable[[Boundary], Awaitable[Any]]) -> Ended:
    """Run the code in its own scope; answers the record of its end, which is not written yet."""
    current_scope.set(performer.root())
    try:
        value = ledger.redactor.bytes(
            encode_value(
                await GuardedCoroutine(_called(body, Boundary(performer)), getattr(body, "__qualname__", "body"))
            )
        )
        if len(value) > ledger.inline_bytes:
            return Ended(at=ledger.now(), run=performer.run, status="completed", blob=await ledger.put_blob(value))
        return Ended(at=ledger.now(), run=performer.run, status="completed", value=msgspec.Raw(value))
    except StoreError as error:
        raise performer.halt(error) from error
    except Exception as error:  # noqa: BLE001  any error of the code becomes the end of the run
        performer.check_halted()
        performer.failure = safe_cause(error, ledger.redactor)
        info = error_info(error, ledger.redactor.text)
        return Ended(at=ledger.now(), run=performer.run, status="failed", error=info)
    except BaseExceptionGroup:
        performer.check_halted()  # a task group wraps `Halted` of one of its tasks
        raise


RECENT: Final = 64
"""Records that a drive keeps in memory for its watchers."""


class LeasedJournal:
    """A journal as its performer needs it: written in order, under one lease."""

    def __init__(self, store: Store, lease: Lease, on_durable: Callable[[str], None] | None = None) -> None:
        self.journal = lease.journal
        self.store_id = store.id
        self.inline_bytes = store.limits.inline_bytes
        self.redactor = store.redactor
        self._store = store
        self._lease = lease
        self._on_durable = on_durable
        self.now = wall_clock(store.clock)
        self.head = lease.head
        """The head of the journal, with records that are not durable yet."""
        self.behind = 0
        """Number of submitted records that are not durable yet."""
        self.recent: deque[tuple[int, Record]] = deque(maxlen=RECENT)
        """The newest records with their sequences, also before they are durable: watchers need not read them."""
        self._pending: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
        """Done when all appended records are durable."""
        self._pending.set_result(Head(lease.head, lease.wakes))
        self.wakes = lease.wakes
        """The wake count of the journal at the last durable append."""
        self.on_wake: Callable[[int], None] | None = None
        """Called with `wakes` when an append finds that it has grown, before the waiters of that append go on."""
        self.attend: Callable[[], Awaitable[None]] | None = None
        """Looks at new inputs of the journal before an effect; does not return if the run must stop."""
        self.watch: Stopwatch | None = None
        """Counts the working time of a session, up to the last append."""

    def append(
        self,
        added: list[Record],
        *,
        patient: bool = False,
        notify: Sequence[Notify] = (),
        consume: Sequence[str] = (),
        spend: Spend | None = None,
    ) -> tuple[int, asyncio.Future[Head]]:
        if not added:
            return self.head, self._pending
        used = () if self.watch is None and spend is None else spend_of_append(self.watch, added, spend)
        # The callback sees a failure even if the caller does not wait: all later appends will fail too.
        then = self._appended
        future = self._store.append_own(self._lease, added, self.head, patient, notify, used, consume, then)
        if future.done() and (refusal := future.exception()) is not None:
            raise refusal  # not queued: no later append may follow it
        self.recent.extend(enumerate(added, self.head + 1))
        self.head += len(added)
        self.behind += len(added)
        self._pending = future
        return self.head, future

    def _appended(self, future: asyncio.Future[Head]) -> None:
        if not future.cancelled() and future.exception() is None:
            durable, wakes = future.result()
            self.behind = self.head - durable
            if wakes > self.wakes:
                self.wakes = wakes
                if self.on_wake is not None:
                    self.on_wake(wakes)
        if self._on_durable is not None:
            self._on_durable(self.journal)

    async def confirm(self) -> None:
        """Raise if another driver may have taken over this journal, and attend to its inbox."""
        for _ in range(_CONFIRMATIONS):
            if self._store.surely_holds(self._lease):
                break
            await self._store.renew(self._lease)  # its answer may come after the end of the term
        else:
            if not self._store.surely_holds(self._lease):
                message = f"the lease on {self.journal!r} runs out before the store has confirmed it"
                raise StoreBusy(message)
        if self.attend is not None:
            await self.attend()

    async def put_blob(self, body: bytes) -> Blob:
        return await self._store.put_blob(body)

    def queue_blob(self, body: bytes) -> Blob:
        return self._store.queue_blob(body)

    async def blob(self, digest: str) -> bytes | None:
        return await self._store.blob(digest)

    async def past(self) -> RunHistory:
        """The history of the journal, read under the lease."""
        past = await _past(self._store, self.journal)
        if past.records != self.head:
            raise HeadConflict(self.journal, self.head, past.records)
        return past


class RecordedJournal:
    """A journal as the performer of a replay needs it: it refuses to write."""

    def __init__(self, store: Store, journal: str) -> None:
        self.journal = journal
        self.store_id = store.id
        self.inline_bytes = store.limits.inline_bytes
        self.redactor = store.redactor
        self._store = store
        self._kept: dict[str, bytes] = {}
        self.behind = 0

    def now(self) -> int:
        return self._store.clock.read().wall

    def append(
        self,
        added: list[Record],
        **_: object,
    ) -> tuple[int, Awaitable[object]]:
        raise ReplayMiss(getattr(added[0], "key", self.journal))

    async def confirm(self) -> None:
        """A replay performs nothing."""

    async def put_blob(self, body: bytes) -> Blob:
        return self.queue_blob(body)

    def queue_blob(self, body: bytes) -> Blob:
        self._kept[blob_digest(body)] = body
        return Blob(blob_digest(body), len(body))

    async def blob(self, digest: str) -> bytes | None:
        return self._kept.get(digest) or await self._store.blob(digest)


JournalLedger: TypeAlias = LeasedJournal | RecordedJournal
"""The journal of a performer."""


async def _past(store: Store, journal: str) -> RunHistory:
    past = RunHistory()
    async for entry in store.read_all(journal):
        past.add(entry.record)
    return past


async def _result(ledger: JournalLedger, ended: Ended, cause: Exception | None = None) -> Any:  # noqa: ANN401
    """The value of a run that has ended, or its error."""
    if ended.error is not None:
        raise RunFailed(ledger.journal, ended.run, ended.error.kind, ended.error.message) from cause
    if ended.blob is None:
        return decode_value(bytes(ended.value))
    body = await ledger.blob(ended.blob.digest)
    if body is None:
        raise BlobMissing(ended.blob.digest)
    return decode_value(body)
